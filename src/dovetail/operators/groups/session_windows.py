"""Rows aggregated by key and session, on one bucket (``AggregationLaw`` over session windows).

The store holds the sessions with their accumulators, those of one key side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from dovetail.aggregates.aggregate import GroupUpdates
from dovetail.aggregates.running_aggregates import merged_over, replace_rows
from dovetail.arrays.equality import rows_equal
from dovetail.arrays.hashing import (
    combine_hashes,
    combined_hash_range,
    lower_hash_bits,
    stable_hash,
)
from dovetail.arrays.timeline import ABSENT, Ints, Mask, Timeline, last_of_source, timeline
from dovetail.laws.windows.sessions import Forest, Sessions, build_forest
from dovetail.operators.groups.accumulators import (
    Columns,
    aggregated_values,
    call_each_kernel,
    count_late,
    open_accumulator_store,
    run_kernels,
    window_bounds,
)
from dovetail.operators.job import Job, OperatorOutcome, combine_chunks, output_table, take_rows
from dovetail.physical.specs.groups import AggregationLaw
from dovetail.state.table_state import TableState

_Changed: TypeAlias = tuple[Sessions, Sessions, Ints]


def run(job: Job, law: AggregationLaw) -> OperatorOutcome:
    """Aggregate the batch's records by key and session. Emit a session's row after every record,
    after tombstones of the sessions that it replaces. With ``emit="batch"``, emit the net changes
    of the batch. Changes lie by the record that makes them, or by the key's last record for a
    session that is gone. Of one record, tombstones come before rows; each kind lies by the
    session's start.

    Changed sessions are stored. A record is late if a session of it alone would be closed, and no
    open one is within the gap. It is counted as ``late`` and emits nothing. Without rows in the
    batch, emit nothing and leave the store as it is. Return the changes as ``output``, with the
    store and the counts. Raises ``DataError`` if an aggregate fails.
    """
    if not job.any_rows:
        return OperatorOutcome(None, job.stores)
    assert law.windows is not None
    store = open_accumulator_store(job, law)
    events = timeline([job.source_rows(0)])
    closing_us = job.clock_at_events(0, events) - law.windows.wait_us
    stored = _StoredSessions.read_stored(store, events, law)
    session_forest = build_forest(
        events.group,
        events.event_time_us,
        events.arrival,
        closing_us,
        stored.sessions,
        law.windows.size_us,
    )
    batch = _SessionBatch(job, law, events, stored, session_forest)
    changed = batch.find_changed()
    emitted = batch.net_rows(changed) if job.operator.emit == "batch" else batch.each_record_rows()
    batch.store_sessions(store, changed)
    return OperatorOutcome(
        emitted,
        {law.GROUPS: store.runs},
        counts=count_late(job, law, events.row[session_forest.late]),
    )


@dataclass(frozen=True)
class _StoredSessions:
    """The stored sessions of the keys in the batch."""

    sessions: Sessions
    """The sessions; ``ref`` is the session's own index."""
    state: Sequence[Columns]
    """Per aggregate, the accumulators of the sessions."""
    count: Ints
    """int64[sessions]: the count of records in each session."""

    @classmethod
    def read_stored(
        cls, store: TableState, events: Timeline, law: AggregationLaw
    ) -> _StoredSessions:
        """Read all stored sessions of the keys of ``events``, closed ones included, ordered by
        (key, end). A session's ``group`` is the group of its key in ``events``. A key without
        sessions has none in the result.
        """
        scanned = store.scan(*combined_hash_range(events.hash), events.keys)
        rows = np.arange(len(scanned.query))
        session_rows = scanned.located.fetch(rows, [*store.key_columns[-2:], *store.value_columns])
        columns = [combine_chunks(column) for column in session_rows.columns]
        start, end = (column.cast(pa.int64()).to_numpy() for column in columns[:2])
        order = np.lexsort((end, scanned.query))
        query, start, end = scanned.query[order], start[order], end[order]
        arranged = iter(column.take(pa.array(order)) for column in columns[3:])
        count = next(arranged).to_numpy()
        state = [[next(arranged) for _ in column.kernel.state] for column in law.columns]
        return cls(Sessions(query, start, end, np.arange(len(order))), state, count)


@dataclass(frozen=True)
class _SessionBatch:
    """A batch's sessions.

    A session made of only the one before it shares a *segment* with it. So a segment is a series of
    records, added one after the other to the children of its first session.
    """

    job: Job
    law: AggregationLaw
    events: Timeline
    stored: _StoredSessions
    forest: Forest
    """The sessions that exist at some time in the batch, stored ones included."""

    @cached_property
    def _record_sessions(self) -> Ints:
        """The indices in ``forest`` of the sessions that a record makes, in contrast to stored
        ones: int64, ascending.
        """
        return np.flatnonzero(self.forest.event != ABSENT)

    @cached_property
    def _segment_of_session(self) -> Ints:
        """The index of each session's segment, non-decreasing from 0: int64, one per session in
        ``forest``. A session shares its segment with the one before it if it is made of that one
        and a record alone.

        For the sessions a, b made of a, c, and d made of b and c the segments are 0, 0, 1 and 2.
        """
        first_child, second_child = self.forest.children
        begins = (self.forest.event == ABSENT) | (first_child == ABSENT) | (second_child != ABSENT)
        return np.cumsum(begins) - 1

    @cached_property
    def _record_updates(self) -> GroupUpdates:
        """The batch's records as updates of segments, one for each of ``_record_sessions`` in that
        order; none is retracted. A segment is a run of sessions, each made of the one before it and
        a record. A segment without a record has no update.
        """
        segment, record = self._segment_of_session, self._record_sessions
        segments = int(segment[-1]) + 1 if len(segment) else 0
        return GroupUpdates.added(segment[record], segments)

    @cached_property
    def _record_values(self) -> list[Columns]:
        """The values that each aggregate takes of the records of ``_record_sessions``: for each
        aggregate a list of columns, one row per record.
        """
        event = self.forest.event[self._record_sessions]
        rows = self.job.batches[0].rows
        return aggregated_values(self.job, self.law, rows, self.events.row[event])

    @cached_property
    def _initial_accumulators(self) -> list[Columns]:
        """The accumulators with which each segment begins: for each aggregate a list of columns,
        one row per segment. A segment is a run of sessions, each made of the one before it and a
        record.

        They are the accumulators of a stored session, null for a segment that a record begins.
        """
        first = np.searchsorted(self._segment_of_session, np.arange(self._record_updates.groups))
        return [take_rows(state, self.forest.ref[first]) for state in self.stored.state]

    @cached_property
    def _segment_accumulators(self) -> list[Columns]:
        """The accumulators of each segment after its records: for each aggregate a list of columns,
        one row per segment. A segment is a run of sessions, each made of the one before it and a
        record.

        They begin with ``_initial_accumulators``. Sessions merged into the segment's first one are
        not in them. Raises ``DataError`` if an aggregate fails.
        """
        return run_kernels(
            self.law, "fold", self._record_updates, self._initial_accumulators, self._record_values
        )

    def _merge_segments(self, session: Ints, end: Ints) -> list[Columns]:
        """Return the accumulators of m sessions, merged from those of their segments: for each
        aggregate a list of columns, one row per session. A segment is a run of sessions, each made
        of the one before it and a record.

        ``session``: int64[m], indices into ``forest``. ``end``: int64[m], indices of segments. The
        segments of a session go from that of its first descendant in ``forest`` (``low``) to
        ``end``, exclusive. Raises ``DataError`` if an aggregate fails.
        """
        first = self._segment_of_session[self.forest.low[session]]
        return call_each_kernel(
            self.law,
            lambda kernel, n: merged_over(kernel, self._segment_accumulators[n], first, end),
        )

    @cached_property
    def _last_sessions(self) -> Ints:
        """The indices in ``forest`` of the sessions that records have made and that no later
        session has replaced: int64, ascending.
        """
        there = self.forest.event != ABSENT
        for below in self.forest.children:
            there[below[below != ABSENT]] = False
        return np.flatnonzero(there)

    @cached_property
    def accumulators(self) -> list[Columns]:
        """The accumulators of stored and new sessions: for each aggregate a list of arrays. Their
        rows are the stored sessions, then those in ``_last_sessions``. Raises ``DataError`` if an
        aggregate fails.
        """
        merged = self._merge_segments(
            self._last_sessions, self._segment_of_session[self._last_sessions] + 1
        )
        return [
            [pa.concat_arrays([old, new]) for old, new in zip(before, after, strict=True)]
            for before, after in zip(self.stored.state, merged, strict=True)
        ]

    @cached_property
    def record_counts(self) -> Ints:
        """The count of records in each session: int64, for the stored sessions, then for those in
        ``_last_sessions``.
        """
        node_count = np.append(self.stored.count, 1)[self.forest.ref]
        total = np.append(0, np.cumsum(node_count))
        return np.append(
            self.stored.count,
            total[self._last_sessions + 1] - total[self.forest.low[self._last_sessions]],
        )

    def each_record_rows(self) -> pa.Table | None:
        """Return an output table in the order of the records, or None if no record makes a session.
        It has the row of each record's session, after the tombstones of the sessions that it
        replaces.

        A replaced session with the same bounds as the new one gets no tombstone. Raises
        ``DataError`` if an aggregate fails.
        """
        session_forest, record = self.forest, self._record_sessions
        if len(record) == 0:
            return None
        first_child, second_child = session_forest.children
        merges = np.flatnonzero(second_child != ABSENT)
        into = self._segment_of_session[merges]
        initial = [
            replace_rows(columns, into, others)
            for columns, others in zip(
                self._initial_accumulators, self._merge_segments(merges, into), strict=True
            )
        ]
        results = run_kernels(self.law, "scan", self._record_updates, initial, self._record_values)
        emitted = [record]
        by = [record]
        for below in (first_child, second_child):
            parent = np.flatnonzero((session_forest.event != ABSENT) & (below != ABSENT))
            was = below[parent]
            moved = (session_forest.start_us[was] != session_forest.start_us[parent]) | (
                session_forest.end_us[was] != session_forest.end_us[parent]
            )
            emitted.append(was[moved])
            by.append(parent[moved])
        session, event = np.concatenate(emitted), session_forest.event[np.concatenate(by)]
        result = np.full(len(session), ABSENT)
        result[: len(record)] = np.arange(len(record))
        start, end = session_forest.start_us[session], session_forest.end_us[session]
        order = np.lexsort((start, result != ABSENT, self.events.arrival[event]))
        result = result[order]
        return self._output_table(
            event[order], start[order], end[order], take_rows(results, result), result
        )

    def net_rows(self, changed: _Changed) -> pa.Table | None:
        """Return an output table of the batch's net changes, None for none: tombstones of stored
        sessions that are gone, and rows of sessions whose result is new or differs from the stored
        one.

        ``changed``: the result of ``find_changed()``. Changes are ordered by the record that made
        the session, or by the key's last record for a session that is gone. Raises ``DataError`` if
        an aggregate fails.
        """
        gone, now, then = changed
        compared = np.flatnonzero(then != ABSENT)
        differs = np.ones(len(now.group), np.bool_)
        results = call_each_kernel(
            self.law, lambda kernel, column_index: kernel.results(self.accumulators[column_index])
        )
        differs[compared] = ~rows_equal(
            take_rows(results, now.ref[compared]), take_rows(results, then[compared])
        )
        now = now.select(differs)
        group = np.append(gone.group, now.group)
        if len(group) == 0:
            return None
        event = last_of_source(self.events, 0)[group]
        event[len(gone.group) :] = self.forest.event[
            self._last_sessions[now.ref - len(self.stored.count)]
        ]
        start = np.append(gone.start_us, now.start_us)
        end = np.append(gone.end_us, now.end_us)
        ref = np.append(np.full(len(gone.group), ABSENT), now.ref)
        order = np.lexsort((start, ref != ABSENT, self.events.arrival[event]))
        ref = ref[order]
        return self._output_table(
            event[order], start[order], end[order], take_rows(results, ref), ref
        )

    def find_changed(self) -> _Changed:
        """Find the sessions that the batch changes, and return (gone, now, twin):

        - ``gone``: stored sessions that were replaced and whose bounds no present session has.
        - ``now``: the sessions in ``_last_sessions``, which are new or changed. ``ref`` is a row of
          ``accumulators``.
        - ``twin``: int64, for each of ``now`` the replaced stored session with the same bounds, a
          row of ``accumulators``; ABSENT for none.
        """
        session_forest, last = self.forest, self._last_sessions
        below = np.concatenate(session_forest.children)
        below = session_forest.ref[below[below != ABSENT]]
        stored = self.stored.sessions.select(below[below != ABSENT])
        now = Sessions(
            self.events.group[session_forest.event[last]],
            session_forest.start_us[last],
            session_forest.end_us[last],
            len(self.stored.count) + np.arange(len(last)),
        )
        everything = [
            np.append(a, b)
            for a, b in (
                (stored.group, now.group),
                (stored.start_us, now.start_us),
                (stored.end_us, now.end_us),
            )
        ]
        order = np.lexsort((np.arange(len(everything[0])), *reversed(everything)))
        same = np.ones(max(len(order) - 1, 0), np.bool_)
        for column in everything:
            same &= column[order[1:]] == column[order[:-1]]
        twin = np.full(len(order), ABSENT)
        twin[order[1:][same]] = np.append(stored.ref, now.ref)[order[:-1][same]]
        stays = np.zeros(len(stored.ref), np.bool_)
        stays[order[:-1][same]] = True
        return stored.select(~stays), now, twin[len(stored.ref) :]

    def store_sessions(self, store: TableState, changed: _Changed) -> None:
        """Put the sessions that are new or changed into ``store``, and a tombstone for each that is
        gone. Without any, only expired runs are dropped. ``changed``: the result of
        ``find_changed()``.
        """
        gone, now, _ = changed
        group = np.append(gone.group, now.group)
        start = np.append(gone.start_us, now.start_us)
        end = np.append(gone.end_us, now.end_us)
        ref = np.append(gone.ref, now.ref)
        bounds_hash = stable_hash([pa.array(start), pa.array(end)])
        hash_ = combine_hashes(self.events.hash[group], lower_hash_bits(bounds_hash))
        order = np.argsort(hash_, kind="stable")
        group, start, end, ref = group[order], start[order], end[order], ref[order]
        deleted = (np.arange(len(order)) < len(gone.group))[order]
        columns = [
            pa.array(hash_[order]),
            pa.array(end),
            pa.array(deleted),
            *(key.take(pa.array(group)) for key in self.events.keys),
            *window_bounds(start, end),
            pa.array(end),
            pa.array(self.record_counts[ref]),
            *(column for state in self.accumulators for column in take_rows(state, ref)),
        ]
        store.store(pa.table(columns, schema=store.schema))

    def _output_table(
        self, event: Ints, start: Ints, end: Ints, values: Sequence[pa.Array], result: Ints
    ) -> pa.Table:
        """Return m changes of sessions as a table of ``Operator.output_schema``, in the given
        order, with a session's end as event time.

        ``event``: int64[m], the index of the event that causes each. ``start``, ``end``: int64[m],
        the session's bounds in microseconds. ``values``: for each aggregate m results. ``result``:
        int64[m], ABSENT for a tombstone, else any int.
        """
        events, operator = self.events, self.job.operator
        group = pa.array(events.group[event])
        gone: Mask = result == ABSENT
        return output_table(
            operator,
            [*(key.take(group) for key in events.keys), *window_bounds(start, end)],
            [values],
            [result],
            deleted=gone,
            event_time_us=end,
            position=self.job.manifest.position,
            cause=self.job.causes_of_rows(events.row[event]),
        )
