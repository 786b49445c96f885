"""Each window's last row, once the window is closed, on one bucket (``FinalLaw``).

A window is emitted once, when stream time reaches its end plus the *grace period*, the time for
which late records are accepted. Its own key need not have a record then. A deleted row is not
emitted. Changes of a closed window, such as a table's record may make, are ignored. The stores hold
the rows of open windows, and a queue of these by closing time.

Source: Kafka Streams join design, "Windowed Aggregate"; spec/windowed.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from dovetail.arrays.grouping import rank_of_keys
from dovetail.arrays.timeline import ABSENT, Ints, Mask, Timeline, timeline, versions_around
from dovetail.base.columns import EVENT_TIME, SEQUENCE
from dovetail.laws.joins.stream_join import first_due
from dovetail.operators.job import Cause, Job, OperatorOutcome, output_table
from dovetail.operators.tables import Pool, open_key_queue, queue_keys, queued_keys, store_rows
from dovetail.physical.specs.groups import FinalLaw
from dovetail.state.table_state import TableState


def run(job: Job, law: FinalLaw) -> OperatorOutcome:
    """Emit the last row of each window that closes in this batch, in the order in which they close.
    Store the batch's rows, and queue new windows by closing time.

    Windows that one record closes come by closing time, then by key. A window without a row is not
    emitted. Rows for a window that is closed already emit nothing, and are not counted. Without
    rows in the batch, windows close all the same as stream time goes on. Return the rows as
    ``output``, with both stores.
    """
    store = job.table_store(0, law.OPEN)
    assert isinstance(store, TableState)
    initial_us, final_us = job.initial_us[0], job.final_us[0]
    source = job.sources[0]
    queue = open_key_queue(job, law.CLOSING)
    waiting = queued_keys(queue.take_due(final_us), numbered=True)
    if not job.any_rows and not len(waiting):
        return OperatorOutcome(None, {law.OPEN: store.runs, law.CLOSING: queue.runs})
    events = timeline([job.source_rows(0), waiting])
    located = store.locate(events.hash, events.keys)
    due = events.keys[-1].cast(pa.int64()).to_numpy() + law.due_us
    closing = np.flatnonzero((due > initial_us) & (due <= final_us))
    clock_us = np.append(job.clock_us, final_us)
    arrival = first_due(due[closing] - 1, clock_us)
    reference = _rows_at_closing(
        events, located.present, closing, _cause_positions(job, events), arrival
    )
    there = reference != ABSENT
    closing, arrival, reference = closing[there], arrival[there], reference[there]
    rank = rank_of_keys([key.take(pa.array(closing)) for key in events.keys], events.hash[closing])
    order = np.lexsort((rank, due[closing], arrival))
    closing, arrival, reference = closing[order], arrival[order], reference[order]
    rows = job.batches[0].rows
    pool = Pool(rows, located, events.groups)
    time = np.concatenate((located.event_time_us, rows.column(EVENT_TIME).to_numpy()))
    group = pa.array(closing)
    emitted = output_table(
        job.operator,
        [key.take(group) for key in events.keys],
        [pool.columns_at(reference, source.shape.value_columns)],
        [reference],
        deleted=np.zeros(len(closing), np.bool_),
        event_time_us=time[reference],
        position=job.manifest.position,
        cause=Cause({SEQUENCE: np.minimum(arrival, max(len(clock_us) - 2, 0))}),
    )
    queue_keys(queue, events, np.flatnonzero((due > final_us) & (located.segment < 0)), due)
    store_rows(job, 0, store, events, events.source == 0)
    stores = {law.OPEN: store.runs, law.CLOSING: queue.runs}
    return OperatorOutcome(emitted if len(emitted) else None, stores)


def _cause_positions(job: Job, events: Timeline) -> Ints:
    """Return for each event the position in the micro-batch of the record that caused it:
    int64[events]. A window that was taken from the queue has the count of all records, so it comes
    last.
    """
    is_record = events.source == 0
    sequence = np.full(len(events.row), len(job.clock_us))
    sequence[is_record] = job.batches[0].rows.column(SEQUENCE).to_numpy()[events.row[is_record]]
    return sequence


def _rows_at_closing(
    events: Timeline, stored: Mask, group: Ints, sequence: Ints, closing: Ints
) -> Ints:
    """Return for each of m groups the row that it has when its window closes: int64[m], a reference
    or ABSENT. A reference below the count of groups is a stored row, any other a row of the batch.

    ``events``: the batch's rows and the queued windows, by group. ``stored``: bool[groups], the
    group has a row from earlier batches. ``group``: int64[m], the indices of the asked groups.

    ``sequence``: int64[events], the position in the micro-batch of each event's record.
    ``closing``: int64[m], the position of the record that closes each asked group; events at or
    after it do not count.
    """
    record_event = np.flatnonzero(events.source == 0)
    after = versions_around(events, 0, stored)[1]
    span = int(sequence.max(initial=0)) + 2
    sort_key = events.group[record_event] * span + sequence[record_event]
    last = np.searchsorted(sort_key, group * span + np.minimum(closing, span - 1)) - 1
    heard = (
        (last >= 0) & (events.group[record_event[last]] == group)
        if len(record_event)
        else last >= 0
    )
    before = np.where(stored[group], group, ABSENT)
    return np.where(heard, after[record_event[last]], before) if len(record_event) else before
