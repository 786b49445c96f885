"""Rows aggregated by key, and by window of time, on one bucket (``AggregationLaw``).

A record is *late* for a window that is closed when the record arrives, and is left out of that
window. What becomes of the groups is in ``accumulators``.

Source: Kafka Streams join design, "KTable Aggregate", "Windowed Aggregate"; spec/windowed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from dovetail.arrays.timeline import (
    Ints,
    Timeline,
    arrival_order,
    timeline,
)
from dovetail.base.columns import INSTRUCTION
from dovetail.laws.retract import SILENT
from dovetail.laws.windows.fixed import assign_windows, open_windows
from dovetail.operators.groups.accumulators import (
    BatchUpdates,
    Columns,
    UpdatedGroups,
    aggregated_values,
    count_late,
    open_accumulator_store,
    timeline_of_windows,
)
from dovetail.operators.groups.long_lists import open_parts
from dovetail.operators.job import Job, OperatorOutcome
from dovetail.physical.specs.groups import AggregationLaw


def run(job: Job, law: AggregationLaw) -> OperatorOutcome:
    """Aggregate the batch's rows by key, and by window if the law has windows. Emit the group's
    result after every record or, with ``emit="batch"``, each group's last result if it changed.
    Results lie by the record that makes them, then by the window's start.

    Accumulators are stored. Records are counted as late once for each closed window that they would
    be in, and left out of it. Rows that enter or leave a group silently change it, but emit
    nothing. In a key, a null is a value like others.

    Without rows in the batch, emit nothing and leave the stores as they are. Return the changes as
    ``output``, with the stores and the counts. Raises ``DataError`` if an aggregate fails or a key
    that must be unique has several rows.
    """
    store, parts = open_accumulator_store(job, law), open_parts(job, law)
    if not job.any_rows:
        return OperatorOutcome(None, job.stores)
    updated = _assign_to_groups(job, law)
    groups = UpdatedGroups.aggregate_batch(job, law, updated, store, parts)
    results = groups.net_results() if job.operator.emit == "batch" else groups.each_result()
    groups.store_groups(store)
    runs = {law.GROUPS: store.runs}
    for part in parts:
        runs |= part.runs
    return OperatorOutcome(results, runs, counts=count_late(job, law, updated.late))


def _assign_to_groups(job: Job, law: AggregationLaw) -> BatchUpdates:
    """Assign the batch's rows to groups by key or, with windows, to every open window that contains
    them. Return the updates by group, with their values, and those after which a result is emitted.

    A row is in ``late`` once for each closed window that it would belong to. Without windows, rows
    marked as silent update a group and emit nothing.
    """
    rows, table = job.source_rows(0), job.batches[0].rows
    if law.windows is None:
        events = timeline([rows])
        values = aggregated_values(job, law, table, events.row)
        emitted = _emitted_updates(job, events)
        if law.retracts:
            instruction = table.column(INSTRUCTION).to_numpy()[events.row]
            emitted = np.flatnonzero((instruction & SILENT) == 0)
        return _build_batch_updates(events, values, events.row, emitted)
    windows = law.windows
    order = arrival_order([rows])
    time = rows.event_time_us[order]
    clock_us = job.clock_at_rows(0, 0)[order]
    record, start = assign_windows(time, windows.size_us, windows.advance_us)
    open_ = open_windows(start + windows.size_us, clock_us[record], windows.grace_us)
    late = order[record[~open_]]
    if len(late):
        record, start = record[open_], start[open_]
    row = order[record]
    events = timeline_of_windows(
        [key.take(pa.array(row)) for key in rows.keys],
        rows.hash[row],
        (start, start + windows.size_us),
        rows.event_time_us[row],
        np.arange(len(row)),
    )
    row = row[events.row]
    values = aggregated_values(job, law, table, row)
    return replace(
        _build_batch_updates(events, values, row, _emitted_updates(job, events)), late=late
    )


def _emitted_updates(job: Job, events: Timeline) -> Ints:
    """Return the indices of the updates after which a result is emitted, ascending: all of
    ``events`` or, with ``emit="batch"``, each group's last. Silent updates, after which nothing is
    emitted, are not told apart here.
    """
    return events.last if job.operator.emit == "batch" else np.arange(len(events.row))


def _build_batch_updates(
    events: Timeline, values: Sequence[Columns], row: Ints, emitted: Ints
) -> BatchUpdates:
    """Return the updates of a batch as ``BatchUpdates`` without late rows. Those in ``emitted``,
    indices of updates, are emitted in the order of their arrival.

    ``events``: the updates by group. ``values``: for each result column its aggregated columns, a
    row per update. ``row``: int64[updates], the batch's row of each update.
    """
    emitted = emitted[events.by_arrival(emitted)]
    return BatchUpdates(events, values, emitted, row[emitted])
