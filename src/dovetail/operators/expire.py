"""A table whose rows expire, on one bucket (``ExpireLaw``).

The stores hold the rows, and a queue of their keys. A key waits until the row that it had when it
was queued would have expired. If it has another row by then, it waits for that one. An expired row
leaves the store without being read or rewritten. Each row says in ``_due`` when it and all earlier
rows of its key are gone. Rows whose ``_due`` is behind stream time are dropped.

Source: spec/view.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dovetail.arrays.equality import rows_equal
from dovetail.arrays.grouping import last_of_each, rank_of_keys
from dovetail.arrays.timeline import (
    ABSENT,
    NO_TIME,
    Ints,
    Mask,
    SourceRows,
    Timeline,
    arrival_order,
    timeline,
)
from dovetail.base.columns import (
    CLOCK,
    DELETED,
    DUE,
    ORDER,
    SEQUENCE,
    STREAM_TIME,
    TIE,
)
from dovetail.laws.arrival import Stairs, order_by_due_time
from dovetail.laws.expire import VersionFates, version_fates
from dovetail.operators.counts import Counts
from dovetail.operators.job import END_OF_TIME, Cause, Job, OperatorOutcome, output_table
from dovetail.operators.tables import Pool, open_key_queue, queue_keys, queued_keys
from dovetail.physical.specs.by_key import ExpireLaw, expiry_store_name
from dovetail.plan.metrics import metric_name
from dovetail.state.queue import QueueState
from dovetail.state.run_state import Located
from dovetail.state.table_state import TableState


def run(job: Job, law: ExpireLaw) -> OperatorOutcome:
    """Emit each record's change, and a tombstone for each expired row before the record whose time
    expires it. With ``emit="batch"``, emit each key's last change, if it differs from the stored
    row.

    Rows and a queue of their keys are stored. Rows that had expired when they arrived are counted
    as ``late``. Such a row is not emitted, but if its key has a row, that is removed by a
    tombstone. Without rows in the batch, rows expire all the same as stream time goes on. The end
    of the input expires none. Return the changes as ``output``, with both stores and the counts.
    """
    (name,) = job.operator.names
    read_us = _read_us(job)
    final_us = read_us if job.final_us[0] == END_OF_TIME else job.final_us[0]
    store = _open_store(job, name, final_us)
    queue = open_key_queue(job, expiry_store_name(name))
    waiting = queued_keys(queue.take_due(final_us))
    if job.any_rows or len(waiting):
        # A slice has all records of its keys, so stream time moves on for them alone.
        until_us = read_us if job.operator.emit == "batch" else final_us
        versions = _Versions.build(job, law, store, waiting, until_us, final_us)
        changes = versions.net_changes() if job.operator.emit == "batch" else versions.all_changes()
        table, late = versions.output_table(changes), versions.late_rows
        versions.store_rows(store, queue)
    else:
        table, late = None, np.zeros(0, np.int64)
        store.expire(store.horizon_us)
    stores = {name: store.runs, expiry_store_name(name): queue.runs}
    counts, source = Counts(), job.sources[0]
    counts.add_rows(metric_name(source.name, "late"), source, job.batches[0].rows, late)
    return OperatorOutcome(table, stores, counts=counts)


def _read_us(job: Job) -> int:
    """Return the largest time of the source's records after the micro-batch in microseconds,
    ``NO_TIME`` before any record. If the input has ended, that is still the time of its records,
    not ``END_OF_TIME``, so the end expires no rows.
    """
    final_us = job.final_us[0]
    known_us = job.initial_us[0] if final_us == END_OF_TIME else final_us
    return int(_stream_time_stairs(job).time_us.max(initial=known_us))


def _stream_time_stairs(job: Job) -> Stairs:
    """Return the steps of the only source's stream time in the whole batch, rows of other buckets
    included. Pack always sends them for this operator, so None raises ``AssertionError``.
    """
    stairs = job.batches[0].stairs
    assert stairs is not None
    return stairs


def _open_store(job: Job, name: str, final_us: int) -> TableState:
    """Open the store of rows named ``name`` as it was before the batch.

    ``final_us``: the stream time with which the next batch begins. The store drops rows whose
    ``_due``, the time at which they expire, is at or before it.
    """
    shape = job.sources[0].shape
    return TableState(
        shape.schema.append(pa.field(DUE, pa.int64())),
        shape.keys,
        job.stored_runs(name),
        job.blobs,
        job.cache,
        horizon_us=NO_TIME if final_us == NO_TIME else final_us + 1,
        expiry=DUE,
    )


@dataclass(frozen=True)
class _Changes:
    """Some changes that records or the passing of time make, in order."""

    version: Ints
    """int64: the index of the version that each change is about."""
    expires: Mask
    """bool[changes]: the change comes because stream time passes."""
    moves: Ints
    """The position in the micro-batch at which stream time passes; 0 for other changes."""

    def select(self, which: Ints | Mask) -> _Changes:
        """Return the changes that ``which`` selects by indices or flags, in that order."""
        return _Changes(self.version[which], self.expires[which], self.moves[which])


@dataclass(frozen=True)
class _Versions:
    """The versions of all keys that have records or were taken from the queue, by (key, arrival).
    Each key's first version is the stored one, or none; its records follow.
    """

    job: Job
    law: ExpireLaw
    events: Timeline
    pool: Pool
    group: Ints
    """The group of each version."""
    reference: Ints
    """The reference to each version's row, ABSENT for a tombstone."""
    row: Ints
    """The batch's row of each version, ABSENT for a stored one."""
    arrival: Ints
    """The arrival of each version, -1 for a stored one."""
    time_us: Ints
    """The event time of each version, in microseconds."""
    lives: VersionFates
    """The fate of each version: whether it enters the table, and when it expires."""
    first: Ints
    """Per group, its first version."""
    waited: Mask
    """Per group, whether its key was taken from the queue."""
    stored_due_us: Ints
    """Per group, the stored ``_due``, ``NO_TIME`` for none."""
    final_us: int
    """Stream time with which the next batch begins, in microseconds."""

    @classmethod
    def build(
        cls,
        job: Job,
        law: ExpireLaw,
        store: TableState,
        waiting: SourceRows,
        until_us: int,
        final_us: int,
    ) -> _Versions:
        """Build the versions of a batch's keys from its rows, the rows in ``store`` and the
        ``waiting`` keys, those taken from the queue. A version is a key's stored row or one record
        of the key. Nothing is written.

        ``until_us``: stream time after the last records of these keys, up to which rows expire.
        ``final_us``: stream time with which the next batch begins. Both are in microseconds.
        """
        records, batch = job.source_rows(0), job.batches[0]
        order = np.append(arrival_order([records]), len(records) + np.arange(len(waiting)))
        events = timeline([records, waiting], order)
        located = store.locate(events.hash, events.keys)
        groups = events.groups
        record = np.flatnonzero(events.source == 0)
        arranged = np.argsort(np.append(np.arange(groups), events.group[record]), kind="stable")

        def in_version_order(of_stored: Ints, of_records: Ints) -> Ints:
            """Return values of stored versions and of records as one array, in the order of all
            versions: by key, the stored version first, then the records by arrival. ``of_stored``:
            int64[groups], one per key. ``of_records``: int64[records], by (key, arrival).
            """
            merged: Ints = np.concatenate((of_stored, of_records))[arranged]
            return merged

        row = events.row[record]
        stands = np.where(located.present, np.arange(groups), ABSENT)
        reference = in_version_order(stands, np.where(events.deleted[record], ABSENT, groups + row))
        group = in_version_order(np.arange(groups), events.group[record])
        time_us = in_version_order(located.event_time_us, events.event_time_us[record])
        before_us = _stream_time_stairs(job).time_at(job.arrival_positions(0), inclusive=False)
        stream_us = np.maximum(job.clock_at_rows(0, 0), before_us)[row]
        stream_us = in_version_order(np.full(groups, job.initial_us[0]), stream_us)
        waited = np.zeros(groups, np.bool_)
        waited[events.group[events.source == 1]] = True
        return cls(
            job=job,
            law=law,
            events=events,
            pool=Pool(batch.rows, located, groups),
            group=group,
            reference=reference,
            row=in_version_order(np.full(groups, ABSENT), row),
            arrival=in_version_order(np.full(groups, -1), events.arrival[record]),
            time_us=time_us,
            lives=version_fates(
                group, time_us, reference != ABSENT, stream_us, until_us, law.after_us
            ),
            first=np.searchsorted(group, np.arange(groups)),
            waited=waited,
            stored_due_us=_due_us(located),
            final_us=final_us,
        )

    @property
    def late_rows(self) -> Ints:
        """The indices of the batch's rows that had expired when they arrived: int64, by (key,
        arrival).
        """
        late: Ints = self.row[self.lives.late & (self.row != ABSENT)]
        return late

    def all_changes(self) -> _Changes:
        """Return the changes of all records that count and all expiries, in order. A row expires
        before the record that moves stream time to its due time, even a record of another bucket.
        Of several, the one due first expires first; ties go by key.

        Rows stay 3 behind stream time. A record has the slot ``2 * arrival + 1``, so expiries fit
        between:

        | change                                   | arrival | slot  |
        |------------------------------------------|---------|-------|
        | k1 comes, time 1                         | 0       | 1     |
        | k1 expires: due at 5, reached by k2      | -       | 2     |
        | k2 comes, time 9                         | 1       | 3     |
        """
        record = np.flatnonzero((self.row != ABSENT) & (self.lives.stands | self.lives.removes))
        gone = np.flatnonzero(self.lives.expires)
        moves = _stream_time_stairs(self.job).first_position_at(self.lives.due_us[gone])
        positions = np.sort(self.job.arrival_positions(0))
        slot = np.maximum(2 * np.searchsorted(positions, moves), 2 * self.arrival[gone] + 1)
        zeros = np.zeros(len(record), np.int64)
        group = self.group[gone]
        keys = [key.take(pa.array(group)) for key in self.events.keys]
        rank = rank_of_keys(keys, self.events.hash[group])
        unordered = _Changes(
            np.append(record, gone),
            np.append(zeros, np.ones(len(gone), np.int64)).astype(np.bool_),
            np.append(zeros, moves),
        )
        due_us = np.append(zeros, self.lives.due_us[gone])
        slot = np.append(2 * self.arrival[record] + 1, slot)
        return unordered.select(
            np.lexsort((np.append(zeros, rank), due_us, unordered.moves, unordered.expires, slot))
        )

    def net_changes(self) -> _Changes:
        """Return each key's last change, without those that leave the row as it was before the
        batch. Changes keep the order of arrival, expiries included. A row differs if a value
        differs; times do not count.
        """
        changes = self.all_changes()
        group = self.group[changes.version]
        last = last_of_each(group)
        changes, group = changes.select(last), group[last]
        now = self._row_references(changes)
        first = self.first[group]
        then = np.where(self.lives.stands[first], self.reference[first], ABSENT)
        same = (now == ABSENT) == (then == ABSENT)
        compared = np.flatnonzero(same & (now != ABSENT))
        columns = self.job.sources[0].shape.value_columns
        if columns:
            values = (self.pool.columns_at(refs[compared], columns) for refs in (now, then))
            same[compared] = rows_equal(*values)
        return changes.select(~same)

    def _row_references(self, changes: _Changes) -> Ints:
        """Return the reference to the row that each change puts in place: int64[changes], ABSENT
        for a tombstone, an expiry or a late row. A reference below the count of groups is a stored
        row, any other a row of the batch.
        """
        stands = self.lives.stands[changes.version] & ~changes.expires
        return np.where(stands, self.reference[changes.version], ABSENT)

    def output_table(self, changes: _Changes) -> pa.Table | None:
        """Return the changes as a table of ``Operator.output_schema``, one row each in their order;
        None if there are none.

        A row has its record's event time. A tombstone of an expired or late row has the time at
        which that row expires.
        """
        version = changes.version
        if not len(version):
            return None
        job, source, group = self.job, self.job.sources[0], self.group[version]
        reference = self._row_references(changes)
        ends = changes.expires | self.lives.late[version]
        time_us = self.time_us[version] + np.where(ends, self.law.after_us, 0)
        return output_table(
            job.operator,
            [key.take(pa.array(group)) for key in self.events.keys],
            [self.pool.columns_at(reference, source.shape.value_columns)],
            [reference],
            deleted=reference == ABSENT,
            event_time_us=time_us,
            position=job.manifest.position,
            cause=self._change_causes(changes),
        )

    def _change_causes(self, changes: _Changes) -> Cause:
        """Return the cause of each change: the columns ``Operator.feeds``, int64[changes] each. A
        record's change has its record as the cause.

        An expiry is ordered before the record that moves stream time to its due time. If that is
        the expired row's own record, the expiry comes right after it.
        """
        due_us, row = self.lives.due_us[changes.version], self.row[changes.version]
        of_record = row != ABSENT
        caused = self.job.causes_of_rows(row[of_record])
        order = order_by_due_time(due_us)
        if ORDER in caused.columns:
            record_change = np.flatnonzero(of_record)
            beside = (
                self.job.arrival_positions(0)[row[record_change]] == changes.moves[record_change]
            )
            order[record_change[beside]] = caused.columns[ORDER][beside]
        early = {
            SEQUENCE: changes.moves,
            CLOCK: changes.moves,
            ORDER: order,
            TIE: self.events.hash[self.group[changes.version]],
            STREAM_TIME: due_us,
        }
        columns = {feed: early[feed].copy() for feed in self.job.operator.feeds}
        is_record = ~changes.expires
        for feed, column in columns.items():
            column[is_record] = caused.columns[feed][is_record[of_record]]
        return Cause(columns)

    def store_rows(self, store: TableState, queue: QueueState) -> None:
        """Put each key's row after the batch into ``store``. Put into ``queue`` the keys that have
        a row, unless the queue already holds the key with an earlier or equal time.

        A key without a row gets a tombstone only if a stored row that it must hide is not yet due.
        Rows that are due by ``final_us`` are not stored.
        """
        lives, last = self.lives, np.append(self.first[1:], len(self.group)) - 1
        due_us, there = lives.due_us[last], lives.stands[last] & ~lives.expires[last]
        until_us = np.maximum(self.stored_due_us, np.where(there, due_us, NO_TIME))
        stored_group = np.flatnonzero((self.row[last] != ABSENT) & (until_us > self.final_us))
        rows = self.job.batches[0].rows.select(range(len(store.schema) - 1))
        rows = rows.take(pa.array(self.row[last[stored_group]]))
        deleted_column = rows.schema.get_field_index(DELETED)
        rows = rows.set_column(
            deleted_column, store.schema.field(DELETED), pa.array(~there[stored_group])
        )
        store.store(rows.append_column(store.schema.field(DUE), pa.array(until_us[stored_group])))
        stood = lives.stands[self.first]
        is_queued = stood & ~self.waited & (lives.due_us[self.first] <= due_us)
        queue_keys(queue, self.events, np.flatnonzero(there & ~is_queued), due_us)


def _due_us(located: Located) -> Ints:
    """Return the stored ``_due`` (the time of expiry) of each key that ``located`` was asked for,
    in microseconds, stored tombstones included: int64[keys]. ``NO_TIME`` for a key without a stored
    row.
    """
    due_us = np.full(len(located.segment), NO_TIME)
    stored_query = np.flatnonzero(located.segment >= 0)
    rows, gathered_row = located.fetch_by_segment(stored_query, [len(located.schema) - 1])
    due_us[stored_query] = rows.column(DUE).to_numpy()[gathered_row]
    return due_us
