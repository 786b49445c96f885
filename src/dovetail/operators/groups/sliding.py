"""Rows aggregated by key and sliding window, on one bucket.

The law is ``AggregationLaw`` over sliding windows.

The stores hold the accumulators of each window, and the records themselves, because windows of
later records may hold them. A record is kept as long as a window with it may be open.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dovetail.aggregates.aggregate import Aggregate, GroupUpdates
from dovetail.aggregates.first_last import End
from dovetail.aggregates.running_aggregates import fold_over
from dovetail.arrays.grouping import by_group_and_time
from dovetail.arrays.search import cut_by_count
from dovetail.arrays.timeline import NO_TIME, STORED, Ints, Mask, Timeline, timeline
from dovetail.base.columns import EVENT_TIME, HASH, ROW
from dovetail.laws.windows.fixed import running_max
from dovetail.laws.windows.sliding import ChangedWindows, SlidingRecords, find_changed_windows
from dovetail.operators.groups.accumulators import (
    BatchUpdates,
    Columns,
    GroupsBefore,
    UpdatedGroups,
    aggregated_values,
    call_each_kernel,
    count_late,
    open_accumulator_store,
    run_kernels,
    timeline_of_windows,
)
from dovetail.operators.job import Job, OperatorOutcome, output_table, subtract_span, take_rows
from dovetail.physical.specs.groups import AggregationLaw
from dovetail.state.history import HistoryState
from dovetail.state.table_state import TableState


def run(job: Job, law: AggregationLaw) -> OperatorOutcome:
    """Aggregate the batch's records by key and sliding window. Emit the results of a key's windows
    after every record or, with ``emit="batch"``, the batch's net changes. They lie by the record
    that makes them, then by the window's start.

    Windows and records are stored, and returned as ``stores``. Many results leave in several
    tables, ``chunks``. A window closes once stream time is past its end by more than the grace
    period. Closed windows are not changed; a record all of whose windows are closed is counted as
    late. Packing has left out records without a value and, unless the source has ``null_keys``,
    null keys.

    Without rows in the batch, emit nothing, and leave the stores and the count of records as they
    are. Raises ``DataError`` if an aggregate fails, perhaps only as ``chunks`` are read.
    """
    if not job.any_rows:
        return OperatorOutcome(None, job.stores, job.manifest.rows)
    windows = law.windows
    assert windows is not None
    store, records = open_accumulator_store(job, law), _open_records(job, law)
    events = timeline([job.source_rows(0)])
    closing_us = np.empty(len(events.row), np.int64)
    closing_us[events.arrival] = job.clock_at_events(0, events) - windows.grace_us
    open_ = events.event_time_us + windows.size_us >= closing_us[events.arrival]
    sliding_records, values = _held_records(job, law, records, events, open_, closing_us)
    batch = _WindowBatch(
        job, law, events, find_changed_windows(sliding_records, closing_us, windows.size_us), values
    )
    groups = batch.aggregate_windows(store)
    emitted: Iterator[pa.Table | None]
    cuts: list[tuple[int, int]] = []
    if job.operator.emit == "batch":
        emitted = iter((groups.net_results(),))
    else:
        cuts = batch.windows.cut_arrivals()
        emitted = batch.each_result(groups, cuts)
    first = next(emitted, None)
    later = 0
    if first is not None and len(cuts) > 1:
        later = sum(batch.windows.count_results(*cut) for cut in cuts) - len(first)
    groups.store_groups(store)
    _store_records(job, records, events, open_)
    return OperatorOutcome(
        first,
        {law.GROUPS: store.runs, law.RECORDS: records.runs},
        job.manifest.rows + len(open_),
        chunks=emitted,
        later=later,
        counts=count_late(job, law, events.row[~open_]),
    )


@dataclass(frozen=True)
class _WindowBatch:
    """The ``windows`` that a batch changes, of the keys in ``events``."""

    job: Job
    law: AggregationLaw
    events: Timeline
    windows: ChangedWindows
    values: Sequence[Columns]
    """For each result column the values of the windows' records, a row per record."""

    def aggregate_windows(self, store: TableState) -> UpdatedGroups:
        """Aggregate each changed window over its accumulators in ``store``, without storing
        anything. Return the windows as groups, each with one update that stands for all its
        records.

        A new window begins with null accumulators. Raises ``DataError`` if an aggregate fails.
        """
        windows = self.windows
        owner = windows.group
        updates = timeline_of_windows(
            [key.take(pa.array(owner)) for key in self.events.keys],
            self.events.hash[owner],
            (windows.start_us, windows.start_us + windows.size_us),
            windows.latest_us,
            np.arange(len(windows)),
        )
        before = GroupsBefore.read_stored(self.law, updates, store)
        window_row = updates.row
        moment = windows.moment[window_row]
        emitted = np.lexsort((windows.start_us[window_row], moment))
        return UpdatedGroups(
            job=self.job,
            law=self.law,
            updated=BatchUpdates(updates, [], emitted, self._rows_of_arrivals(moment[emitted])),
            before=before,
            state=call_each_kernel(
                self.law,
                lambda kernel, column_index: self._final_accumulators(
                    kernel, column_index, before, window_row
                ),
            ),
            time_us=np.maximum(before.time_us, updates.event_time_us),
            count=before.count + windows.count[window_row],
            last=np.arange(len(window_row)),
        )

    def _final_accumulators(
        self, kernel: Aggregate, column_index: int, before: GroupsBefore, window_row: Ints
    ) -> Columns:
        """Return the accumulator columns of one result column after the batch, a row per group.

        ``kernel``: the aggregate. ``column_index``: the index of the result column. ``before``: the
        stored accumulators of the groups. ``window_row``: int64[groups], the index of each group's
        window in ``windows``. Raises ``AggregateError`` if the aggregate fails.

        If the aggregate depends on the order of records, all pairs of window and record are
        computed, in portions of ``windows.pairs_max``.
        """
        windows, values, stored = (
            self.windows,
            self.values[column_index],
            before.state[column_index],
        )
        if kernel.commutes or isinstance(kernel, End):
            totals = take_rows(values, windows.record)
            ranges = windows.first, windows.end
            if isinstance(kernel, End):
                order = windows.records.number[windows.record]
                totals = kernel.fold_over(*ranges, order, totals, len(windows))
            else:
                totals = fold_over(kernel, *ranges, totals, len(windows))
            return kernel.merged(stored, take_rows(totals, window_row))
        window_of, count = np.argsort(window_row), windows.count[window_row]
        parts: list[Columns] = [[column.slice(0, 0) for column in stored]]
        for start, stop in cut_by_count(count, windows.pairs_max):
            group, record = windows.members(window_row[start:stop])
            group = window_of[group] - start
            order = np.argsort(group, kind="stable")
            updates = GroupUpdates.added(group[order], stop - start)
            index = pa.array(record[order])
            initial = [column.slice(start, stop - start) for column in stored]
            parts.append(kernel.fold(updates, initial, [c.take(index) for c in values]))
        return [pa.concat_arrays(list(columns)) for columns in zip(*parts, strict=True)]

    def each_result(
        self, groups: UpdatedGroups, cuts: Sequence[tuple[int, int]]
    ) -> Iterator[pa.Table]:
        """Yield a table of results for each range of arrivals in ``cuts`` that emits any, computed
        on demand. A result is that of a window after one record that changes it. Results lie in the
        order of the records, then by the window's start.

        ``groups``: the changed windows over their stored accumulators. ``cuts``: (start, exclusive
        end) ranges of arrivals (``ChangedWindows.cut_arrivals``), consecutive over all. Raises
        ``DataError`` if an aggregate fails.
        """
        windows, job, before = self.windows, self.job, groups.before
        group_of = np.argsort(groups.updated.events.row)
        state = [take_rows(columns, group_of) for columns in before.state]
        time_us, position = before.time_us[group_of], job.manifest.position
        for start, stop in cuts:
            updated = windows.updates_by(start, stop)
            updates = GroupUpdates.added(updated.window, len(windows))
            values = [take_rows(columns, updated.record) for columns in self.values]
            after_us = running_max(
                windows.records.time_us[updated.record],
                updates.bounds[updates.updated],
                updated.window,
                time_us[updates.updated],
            )
            emitted = updated.emitted
            if len(emitted):
                results = run_kernels(self.law, "scan", updates, state, values)
                group = pa.array(group_of[updated.window[emitted]])
                yield output_table(
                    job.operator,
                    [key.take(group) for key in groups.updated.events.keys],
                    [take_rows(results, emitted)],
                    [emitted],
                    deleted=np.zeros(len(emitted), np.bool_),
                    event_time_us=after_us[emitted],
                    position=position,
                    cause=job.causes_of_rows(self._rows_of_arrivals(updated.moment)),
                )
                position += len(emitted)
            if stop < cuts[-1][1]:
                state = run_kernels(self.law, "fold", updates, state, values)
                time_us[updates.updated] = after_us[updates.last]

    def _rows_of_arrivals(self, arrival: Ints) -> Ints:
        """Return the row in the batch of the record with each arrival: int64, one per element of
        ``arrival``. An arrival is a record's index in the order of processing, from 0. Every
        arrival must be that of a record.
        """
        row = np.empty(len(self.events.row), np.int64)
        row[self.events.arrival] = self.events.row
        return row[arrival]


def _held_records(
    job: Job,
    law: AggregationLaw,
    records: HistoryState,
    events: Timeline,
    open_: Mask,
    closing_us: Ints,
) -> tuple[SlidingRecords, list[Columns]]:
    """Return all records that changed windows may hold, ordered by (group, time, id), and for each
    result column the values that it aggregates of them.

    They are the records of the batch that ``open_`` marks, and records of their keys in the store
    ``records``. The stored ones lie at most a window's size and 1 µs before or after the key's open
    records.

    ``events``: the batch's records by key. ``open_``: bool[events]. ``closing_us``: int64, for each
    arrival (order of processing) the time before which windows are closed.
    """
    assert law.windows is not None
    size_us = law.windows.size_us
    event = np.flatnonzero(open_)
    group, time = events.group[event], events.event_time_us[event]
    asked, start = np.unique(group, return_index=True)
    low = np.minimum.reduceat(time, start) if len(start) else start
    high = np.maximum.reduceat(time, start) if len(start) else start
    keys = [key.take(pa.array(asked)) for key in events.keys]
    matches = records.find_between(events.hash[asked], keys, low - size_us - 1, high + size_us + 1)
    stored = matches.rows.take(pa.array(matches.row))
    rows = job.batches[0].rows.take(pa.array(events.row[event]))
    fresh = _stored_rows(rows, job.manifest.rows + events.arrival[event], records.schema)
    rows = pa.concat_tables([stored, fresh]).combine_chunks()
    group = np.append(asked[matches.query], group)
    time, row_number = (rows.column(name).to_numpy() for name in (EVENT_TIME, ROW))
    arrival = np.append(np.full(len(stored), STORED), events.arrival[event])
    order = np.lexsort((row_number, time, group))
    arrival = arrival[order]
    sliding_records = SlidingRecords(
        group[order],
        time[order],
        arrival,
        row_number[order],
        np.append(closing_us, NO_TIME)[arrival],
    )
    return sliding_records, aggregated_values(job, law, rows, order)


def _open_records(job: Job, law: AggregationLaw) -> HistoryState:
    """Open the store of records, as it was before the batch: ``_hash``, ``_event_time``, ``_row``
    (the record's id in the bucket), then the user columns. Its horizon lies grace, window size and
    1 µs behind the final stream time.
    """
    assert law.windows is not None
    shape = job.sources[0].shape
    system_fields = [(HASH, pa.int64()), (EVENT_TIME, pa.int64()), (ROW, pa.int64())]
    reach_us = law.windows.grace_us + law.windows.size_us + 1
    return HistoryState(
        pa.schema([*system_fields, *shape.user_fields]),
        range(len(system_fields), len(system_fields) + shape.keys),
        job.stored_runs(law.RECORDS),
        job.blobs,
        job.cache,
        versioned=False,
        horizon_us=subtract_span(job.final_us[0], reach_us),
    )


def _stored_rows(rows: pa.Table, row_number: Ints, schema: pa.Schema) -> pa.Table:
    """Return ``rows`` of the batch, in order, with the columns of ``schema``, that of the store of
    records. ``row_number``: int64[rows], the id of each record in the bucket, which becomes
    ``_row``.
    """
    system_columns = [rows.column(HASH), rows.column(EVENT_TIME), pa.array(row_number)]
    return pa.table([*system_columns, *rows.select(schema.names[3:]).columns], schema=schema)


def _store_records(job: Job, records: HistoryState, events: Timeline, open_: Mask) -> None:
    """Put the records of the batch that ``open_`` marks, and that a later window may hold, into the
    store ``records``. Their ids follow those of earlier batches.

    ``events``: the batch's records by key. ``open_``: bool[events]. Sorted runs whose records are
    all behind the horizon are dropped from the store.
    """
    event = np.flatnonzero(open_ & (events.event_time_us >= records.horizon_us))
    hash_ = events.hash[events.group[event]]
    event = event[by_group_and_time(hash_, events.event_time_us[event])]
    rows = job.batches[0].rows.take(pa.array(events.row[event]))
    row_number = job.manifest.rows + events.arrival[event]
    records.store(_stored_rows(rows, row_number, records.schema))
    records.expire(records.horizon_us)
