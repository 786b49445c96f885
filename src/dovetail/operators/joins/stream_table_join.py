"""A stream joined with tables, on one bucket (``StreamTableJoinLaw``).

Only the stream's records have results. Each meets the tables as they stand when it is processed; a
versioned table is read as of the record's own time. With a *grace period* a record waits in a queue
until stream time has passed its own time by that period.

Source: KIP-77 "KStream-KTable"; KIP-914 "Stream-table joins"; spec/stream_table.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from dovetail.arrays.grouping import any_null, rank_of_keys
from dovetail.arrays.timeline import (
    ABSENT,
    NO_TIME,
    Ints,
    Mask,
    Timeline,
    arrival_order,
    timeline,
    versions_around,
)
from dovetail.base.columns import DUE, EVENT_TIME, HASH, ROW
from dovetail.laws.arrival import order_before_records
from dovetail.laws.joins.stream_join import NEVER
from dovetail.laws.joins.table_join import join_stream
from dovetail.laws.versioning import LATEST, batch_versions, version_as_of
from dovetail.operators.counts import Counts
from dovetail.operators.emission import event_output_table
from dovetail.operators.job import Batch, Job, OperatorOutcome, combine_chunks, take_rows
from dovetail.operators.tables import (
    Pool,
    TableStore,
    count_ignored,
    find_accepted_events,
    store_rows,
)
from dovetail.physical.specs.by_key import StreamTableJoinLaw
from dovetail.plan.metrics import metric_name
from dovetail.state.history import HistoryState
from dovetail.state.queue import QueueState


def run(job: Job, law: StreamTableJoinLaw) -> OperatorOutcome:
    """Emit the result of each stream record that is processed in this batch, in that order. With a
    grace period, records wait in the queue before, and those that are due now are released. Store
    the rows of the tables.

    A record with a null in its key finds no rows. Records older than the history of a table are
    counted if they have no result, as are those with and without rows of all tables. Without rows
    and released records, emit nothing and leave the stores of the tables as they are. Return the
    changes as ``output``, with the stores and the counts.
    """
    sources = range(len(job.sources))
    stream = law.leaves[0]
    names, runs, numbered = job.operator.names, dict(job.stores), job.manifest.rows
    order = None
    if law.grace_us is not None:
        released = _release_rows(job, stream, law.grace_us)
        job, order, numbered = released.job, released.order, released.numbered
        runs[names[stream]] = released.queue.runs
    if not job.any_rows:
        return OperatorOutcome(None, runs, numbered)
    events = timeline([job.source_rows(source) for source in sources], order)
    asked = np.flatnonzero(events.source == stream)
    reference = {stream: events.row[asked]}
    pools: dict[int, Pool] = {}
    past = np.zeros(len(asked), np.bool_)
    stores = {source: job.table_store(source) for source in sources if source != stream}
    null = any_null(events.keys, events.groups)[events.group[asked]]
    for source, store in stores.items():
        row_refs, pools[source], gone = _find_table_rows(job, source, store, events, asked)
        past |= gone & (row_refs == ABSENT)
        reference[source] = np.where(null, ABSENT, row_refs)
    changes = join_stream(law.tree, events, asked, reference)
    values = job.batches[stream].rows.select(job.sources[stream].shape.value_columns).columns
    leaves = [
        take_rows(values, refs)
        if source == stream
        else pools[source].columns_at(refs, job.sources[source].shape.value_columns)
        for source, refs in zip(law.leaves, changes.reference, strict=True)
    ]
    result = event_output_table(job, events, changes, leaves)
    ignored = Counts()
    pairs = np.logical_and.reduce([reference[source] != ABSENT for source in stores])
    ignored.add_matches(job.sources[stream], pairs)
    for source, store in stores.items():
        taken = find_accepted_events(job, events, source)
        store_rows(job, source, store, events, taken)
        count_ignored(ignored, job, source, events, taken)
        runs[names[source]] = store.runs
    if past.any():
        spec, lost = job.sources[stream], np.setdiff1d(asked[past], changes.event)
        too_old = metric_name(spec.name, "too_old")
        ignored.add_rows(too_old, spec, job.batches[stream].rows, events.row[lost])
    return OperatorOutcome(result, runs, numbered, counts=ignored)


def _find_table_rows(
    job: Job, source: int, store: TableStore, events: Timeline, asked: Ints
) -> tuple[Ints, Pool, Mask]:
    """Find the row of a table for each of the events ``asked``: int64[asked], ascending indices of
    stream records in ``events``. ``source``: the index of the table among the sources; ``store``:
    its store before the batch.

    Only rows that arrived before the event count. A versioned table gives the version that stood at
    the event's time: the last one at or before it. Other tables give their last row. A deleted row
    is none. Nulls in keys are compared like values; the caller lets such records match nothing.

    Returns three things: the references to the rows, int64[asked], ABSENT for none; the pool that
    they name; and a mask, bool[asked]. The mask marks events that are older than the table's
    history, in which older versions are no longer known. Such an event finds the table's latest
    version if that stood at the event's time already, else none. The mask is all false for a table
    without versions.
    """
    rows = job.batches[source].rows
    if not isinstance(store, HistoryState):
        located = store.locate(events.hash, events.keys)
        refs = versions_around(events, source, located.present)[1][asked]
        return refs, Pool(rows, located, events.groups), np.zeros(len(asked), np.bool_)
    retention_us = job.sources[source].meaning.versioned_us
    assert retention_us is not None
    group, arrival, time = (a[asked] for a in (events.group, events.arrival, events.event_time_us))
    clock_us = job.clock_at_events(source, events)[asked]
    past = (time < clock_us - retention_us) & (clock_us != NO_TIME)
    sought = np.where(past, LATEST, time)
    keys = [key.take(pa.array(group)) for key in events.keys]
    located = store.find_as_of(events.hash[group], keys, sought)
    fresh_versions = batch_versions(events, find_accepted_events(job, events, source))
    fresh = version_as_of(fresh_versions, group, sought, arrival)
    fresh_time = np.where(fresh == ABSENT, NO_TIME, events.event_time_us[fresh])
    newer = (fresh != ABSENT) & (fresh_time >= located.event_time_us)
    old = np.where(located.present, np.arange(len(asked)), ABSENT)
    new = np.where(events.deleted[fresh], ABSENT, len(asked) + events.row[fresh])
    stood = np.where(newer, fresh_time, located.event_time_us) <= time
    refs = np.where(stood, np.where(newer, new, old), ABSENT)
    return refs, Pool(rows, located, len(asked)), past


@dataclass(frozen=True)
class _ReleasedRows:
    """The outcome of releasing stream rows."""

    job: Job
    """The job, with the stream rows that are processed in this batch in place of those that
    arrived.
    """
    order: Ints
    """The order in which all rows of the job are processed: indices into the concatenated rows of
    its sources.
    """
    queue: QueueState
    """The queue of rows that wait."""
    numbered: int
    """The count of stream rows that the bucket has given ids so far, this batch included."""


# The row at index i of the order of arrival has the place 2 * i + 1, so a released record fits
# before it, at 2 * i. Grace period 5, in microseconds as all times; a is released by b, which is
# still in the queue after the batch::
#
#     index   row              place   due    processed at
#     0       stream a at 10   1       15     4, just before b
#     1       table x          3       -      3
#     2       stream b at 15   5       20     never in this batch: no record reaches 20
#     3       table y          7       -      7
#     4       stream d at 9    9       late   9, at its arrival: 9 < 15 - 5
#
# So a sees x but not y, and the order is x, a, y, d.
def _release_rows(job: Job, stream: int, grace_us: int) -> _ReleasedRows:
    """Release the records of the source with index ``stream`` whose grace period is over: queued
    ones and those of the batch. Put other records of the batch into the queue. Return four things:
    the job with the released records as its stream rows, and the order of all its rows. Then come
    the queue after the batch, and the count of stream rows that have ids so far.

    A record is due when the stream's clock reaches its time plus ``grace_us``. It is released just
    before the record, of any bucket, that moves the clock there. Several are released in order of
    time, then of key. Two kinds do not wait but are released at their own arrival: a late record,
    more than the grace period behind the stream's clock, and one with a null in its key. Rows of
    tables keep their places.
    """
    sources = [job.source_rows(source) for source in range(len(job.sources))]
    stream_rows, batch = sources[stream], job.batches[stream]
    arranged = arrival_order(sources)
    slot = 2 * np.argsort(arranged) + 1
    first = np.cumsum([0, *(len(rows) for rows in sources)])
    stream_slot = slot[first[stream] : first[stream + 1]]
    null = any_null(stream_rows.keys, len(stream_rows))
    clock_us = job.clock_at_rows(stream, stream)
    at_once = null | (stream_rows.event_time_us < clock_us - grace_us)
    queue = _open_queue(job, stream)
    waiting = queue.take_due(job.final_us[stream])
    row_ids = job.manifest.rows + np.argsort(np.argsort(stream_slot))
    fresh = _queue_table(batch.rows, queue.schema, stream_rows.event_time_us + grace_us, row_ids)
    everything = pa.concat_tables([waiting, fresh]).combine_chunks()
    at_once = np.append(np.zeros(len(waiting), np.bool_), at_once)
    limit = everything.column(DUE).to_numpy()
    # The record that moves the clock may be in any bucket; released rows come before it.
    positions = np.concatenate([job.arrival_positions(n) for n in range(len(sources))])[arranged]
    moves = limit if batch.stairs is None else batch.stairs.first_position_at(limit)
    moves = np.where(limit <= job.initial_us[stream], NO_TIME, moves)
    trigger = 2 * np.searchsorted(positions, moves, side="left")
    trigger = np.where(limit <= job.final_us[stream], trigger, NEVER)
    arrival_slot = np.append(np.zeros(len(waiting), np.int64), stream_slot)
    trigger = np.where(at_once, arrival_slot, np.maximum(trigger, arrival_slot))
    arrival_position = np.append(np.full(len(waiting), NO_TIME), job.arrival_positions(stream))
    moves = np.where(at_once, arrival_position, np.maximum(moves, arrival_position))
    still_waiting = np.flatnonzero(trigger == NEVER)
    queue.store(
        everything.take(pa.array(still_waiting[np.argsort(limit[still_waiting], kind="stable")]))
    )
    chosen = np.flatnonzero(trigger != NEVER)
    rank = rank_of_keys(
        [combine_chunks(everything.column(i)) for i in job.operator.key_columns],
        everything.column(HASH).to_numpy(),
    )
    row_number = everything.column(ROW).to_numpy()
    event_time = everything.column(EVENT_TIME).to_numpy()
    chosen = chosen[
        np.lexsort(
            (
                row_number[chosen],
                rank[chosen],
                event_time[chosen],
                ~at_once[chosen],
                moves[chosen],
                trigger[chosen],
            )
        )
    ]
    batches, order = (
        list(job.batches),
        [slot[first[s] : first[s + 1]] for s in range(len(sources))],
    )
    batches[stream] = Batch(
        _as_batch_rows(everything.take(pa.array(chosen)), batch.rows.schema, moves[chosen]),
        clock_us=moves[chosen],
        stream_us=np.where(at_once, np.append(np.zeros(len(waiting), np.int64), clock_us), limit)[
            chosen
        ],
        order=np.where(
            at_once[chosen],
            np.append(np.zeros(len(waiting), np.int64), stream_rows.order)[chosen],
            order_before_records(everything.column(HASH).to_numpy()[chosen]),
        )
        if stream_rows.order is not None
        else None,
        tie=None if stream_rows.tie is None else everything.column(HASH).to_numpy()[chosen],
    )
    order[stream] = trigger[chosen]
    return _ReleasedRows(
        replace(job, batches=batches),
        np.argsort(np.concatenate(order), kind="stable"),
        queue,
        job.manifest.rows + len(stream_rows),
    )


def _open_queue(job: Job, stream: int) -> QueueState:
    """Open the queue of the records that wait, as it was before the batch. Records that were due by
    the stream time before the batch have left it. ``stream``: the index of the stream among the
    sources.
    """
    return QueueState(
        _queue_schema(job.sources[stream].shape.schema),
        job.stored_runs(job.operator.names[stream]),
        job.blobs,
        job.cache,
        taken_us=job.initial_us[stream],
    )


def _queue_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema of the queue of waiting records: the stream's columns ``schema``, then
    ``_due`` and ``_row``, both int64.
    """
    return schema.append(pa.field(DUE, pa.int64())).append(pa.field(ROW, pa.int64()))


def _queue_table(rows: pa.Table, schema: pa.Schema, due_us: Ints, row_ids: Ints) -> pa.Table:
    """Return ``rows`` of the stream in ``schema``, that of the queue, in their order. ``due_us``
    and ``row_ids``: int64[rows], the last two columns, ``_due`` and ``_row``. Further columns of
    ``rows``, which tell when each row arrived, are left out.
    """
    columns = [*rows.select(range(len(schema) - 2)).columns, pa.array(due_us), pa.array(row_ids)]
    return pa.table(columns, schema=schema)


def _as_batch_rows(rows: pa.Table, schema: pa.Schema, position: Ints) -> pa.Table:
    """Return queued rows, in their order, with the columns of a batch, ``schema``.

    ``position``: int64[rows], the position at which each row is processed. It stands in each column
    that the queue lacks.
    """
    answered = pa.array(position)
    columns = [rows.column(n) if n in rows.schema.names else answered for n in schema.names]
    return pa.table(columns, schema=schema)
