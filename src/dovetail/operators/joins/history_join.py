"""Two versioned tables joined over all of their history, on one bucket (``HistoryJoinLaw``)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from dovetail.arrays.grouping import start_mask
from dovetail.arrays.timeline import ABSENT, NO_TIME, Ints, Mask, Timeline, timeline
from dovetail.base.columns import DELETED, EVENT_TIME
from dovetail.laws.joins.history_join import Corrections, Points, correct_points
from dovetail.laws.versioning import LATEST, batch_versions
from dovetail.operators.counts import Counts
from dovetail.operators.job import Job, OperatorOutcome, output_table, subtract_span_each, take_rows
from dovetail.operators.tables import count_ignored, find_accepted_events, store_rows
from dovetail.physical.specs.by_key import HistoryJoinLaw
from dovetail.state.history import HistoryState


def run(job: Job, law: HistoryJoinLaw) -> OperatorOutcome:
    """Emit the points of the joined history that each record makes or corrects, in order of
    arrival. A point is a time from which on a joined row, or none, stands. Store all versions of
    both sides. Records older than their table's history emit nothing, are not stored, and are
    counted as ``too_old``.

    Without rows in the batch, emit nothing and leave the stores as they are. Return the changes as
    ``output``, with the stores and the counts.
    """
    if not job.any_rows:
        return OperatorOutcome(None, job.stores)
    events = timeline([job.source_rows(source) for source in law.leaves])
    counted = [find_accepted_events(job, events, source) for source in law.leaves]
    earliest = np.minimum.reduceat(events.event_time_us, events.start)
    stores, pools, points, firsts = [], [], [], []
    for source in law.leaves:
        store = job.table_store(source)
        assert isinstance(store, HistoryState)
        pool, first, side_points = _side_points(
            job, source, store, events, counted[source], earliest
        )
        stores.append(store)
        pools.append(pool)
        firsts.append(first)
        points.append(side_points)
    parts = []
    for side in law.leaves:
        event = np.flatnonzero(counted[side])
        row = firsts[side] + events.row[event]
        corrections = correct_points(
            law.how,
            side,
            events.group[event],
            events.event_time_us[event],
            events.arrival[event],
            np.where(events.deleted[event], ABSENT, row),
            points,
        )
        parts.append((event[corrections.record], corrections))
    emitted = _output_table(job, law, events, pools, parts)
    ignored = Counts()
    for source, store in enumerate(stores):
        store_rows(job, source, store, events, counted[source])
        count_ignored(ignored, job, source, events, counted[source])
    runs = {n: s.runs for n, s in zip(job.operator.names, stores, strict=True)}
    return OperatorOutcome(emitted, runs, counts=ignored)


def _side_points(
    job: Job, source: int, store: HistoryState, events: Timeline, counted: Mask, earliest: Ints
) -> tuple[pa.Table, int, Points]:
    """Return the values of the side with index ``source``, the index of the batch's first row in
    them, and the side's versions.

    Values are the stored rows that may count, then the batch's rows. Versions are ordered by (key,
    time, arrival); each is an index into the values, ABSENT for a tombstone. Of each key they begin
    with the version that stands at its earliest record in the batch.

    ``earliest``: int64[groups], the time of that record in microseconds. ``counted``: bool[events],
    the events that are versions of this side. ``store``: the versions before the batch.
    """
    groups = np.arange(events.groups)
    stands = store.find_as_of(events.hash, events.keys, earliest).event_time_us
    low = np.where(stands == NO_TIME, earliest, stands)
    stored = store.find_between(events.hash, events.keys, low, np.full(events.groups, LATEST))
    values = job.sources[source].shape.value_columns
    retention_us = job.sources[source].meaning.versioned_us
    assert retention_us is not None
    rows = stored.rows
    # Of versions with one key and time, the one in the run written last counts.
    time = rows.column(EVENT_TIME).to_numpy()[stored.row]
    order = np.lexsort((np.arange(len(time)), time, stored.query))
    query, time, row = stored.query[order], time[order], stored.row[order]
    last = start_mask(query[::-1], time[::-1])[::-1]
    query, time, row = query[last], time[last], row[last]
    deleted = rows.column(DELETED).to_numpy()[row]
    fresh = batch_versions(events, counted).event
    group = np.append(query, events.group[fresh])
    time = np.append(time, events.event_time_us[fresh])
    arrival = np.append(np.full(len(query), -1), events.arrival[fresh])
    new = np.where(events.deleted[fresh], ABSENT, len(rows) + events.row[fresh])
    reference = np.append(np.where(deleted, ABSENT, row), new)
    order = np.lexsort((arrival, time, group))
    horizon_us = np.empty(len(events.row), np.int64)
    horizon_us[events.arrival] = subtract_span_each(
        job.clock_at_events(source, events), retention_us
    )
    points = Points(
        np.searchsorted(group[order], np.append(groups, events.groups)),
        time[order],
        arrival[order],
        reference[order],
        horizon_us,
    )
    pool = pa.concat_tables([rows.select(values), job.batches[source].rows.select(values)])
    return pool, len(rows), points


def _output_table(
    job: Job,
    law: HistoryJoinLaw,
    events: Timeline,
    pools: Sequence[pa.Table],
    parts: Sequence[tuple[Ints, Corrections]],
) -> pa.Table | None:
    """Return the corrections of both sides as changes (``Operator.output_schema``), or None if
    there are none. They lie in the order in which their records arrived, those of one record by
    time.

    ``pools``: the value columns of each side's rows, which corrections refer to. ``parts``: per
    side, the index in ``events`` of the record that causes each correction, and the corrections.
    """
    event = np.concatenate([event for event, _ in parts])
    if len(event) == 0:
        return None
    order = np.argsort(events.arrival[event], kind="stable")
    references = [
        np.concatenate([corrections.reference[side] for _, corrections in parts])[order]
        for side in law.leaves
    ]
    group = pa.array(events.group[event[order]])
    return output_table(
        job.operator,
        [key.take(group) for key in events.keys],
        [take_rows(pool.columns, refs) for pool, refs in zip(pools, references, strict=True)],
        references,
        deleted=~np.concatenate([corrections.present for _, corrections in parts])[order],
        event_time_us=np.concatenate([corrections.time_us for _, corrections in parts])[order],
        position=job.manifest.position,
        cause=job.event_causes(events).take(event[order]),
    )
