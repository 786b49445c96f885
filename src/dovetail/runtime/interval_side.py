"""One side of an interval join in a bucket: its stores, and its rows in a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dovetail.columns import DELETED, DUE, EVENT_TIME, HASH, PENDING, ROW
from dovetail.kernels.interval_join import (
    NEVER,
    Arrivals,
    Pairs,
    Window,
    first_due,
    kept,
    pairs_of_batch,
    settled,
)
from dovetail.kernels.table_join import preserved
from dovetail.kernels.timeline import NO_TIME, Ints, Mask, Timeline
from dovetail.plan.spec import Interval
from dovetail.runtime.job import Job, minus
from dovetail.state.history import HistoryState
from dovetail.state.queue import QueueState
from dovetail.state.run_state import RunState
from dovetail.state.table_state import TableState

_MARK = pa.schema(
    [(HASH, pa.int64()), (EVENT_TIME, pa.int64()), (DELETED, pa.bool_()), (ROW, pa.int64())]
)


def store_count(sources: int) -> int:
    """How many stores the join of so many distinct streams has."""
    return sources + 4


@dataclass(frozen=True)
class Stores:
    """``histories``: per source; ``queues`` and ``marks``: per side."""

    histories: Sequence[HistoryState]
    queues: Sequence[QueueState]
    marks: Sequence[TableState]

    @classmethod
    def of(cls, job: Job, operator: Interval) -> Stores:
        """The stores of a bucket, in the order of the manifest."""
        runs = iter(job.manifest.stores)
        return cls(
            [
                HistoryState(
                    _stored_schema(job, source),
                    range(4, 4 + job.spec.keys),
                    next(runs),
                    job.blobs,
                    job.cache,
                    versioned=False,
                )
                for source in range(len(job.spec.sources))
            ],
            [
                QueueState(
                    _queue_schema(job, source),
                    next(runs),
                    job.blobs,
                    job.cache,
                    taken_us=minus(max(job.initial_us), 1),
                )
                for source in operator.leaves
            ],
            [TableState(_MARK, 1, next(runs), job.blobs, job.cache) for _ in operator.leaves],
        )

    @property
    def all(self) -> Sequence[RunState]:
        """All stores, in the order of the manifest."""
        return [*self.histories, *self.queues, *self.marks]


def _stored_schema(job: Job, source: int) -> pa.Schema:
    """``_hash``, ``_event_time``, ``_row``, ``_pending`` (a bit per side), keys, values."""
    schema = job.spec.sources[source].schema
    own = [schema.field(HASH), schema.field(EVENT_TIME), (ROW, pa.int64()), (PENDING, pa.int64())]
    return pa.schema([*own, *list(schema)[3:]])


def _queue_schema(job: Job, source: int) -> pa.Schema:
    schema = job.spec.sources[source].schema
    own = [(DUE, pa.int64()), schema.field(EVENT_TIME), schema.field(HASH), (ROW, pa.int64())]
    return pa.schema([*own, *list(schema)[3:]])


@dataclass
class Side:
    """One side of the join in this batch.

    Its rows are numbered: first the stored ones that the other side's records meet (``met``), then
    those that waited for this batch (``waiting``), then the batch's, in the order of the source.
    ``arrivals``: its records; ``alone``: which of them found no match on arrival, where
    the side is preserved; ``identity``: per number, the row's number for good; ``first_match``: per
    number, the arrival of the first record of this batch that joins the row, ``NEVER`` for none.
    Where unmatched rows wait (``waits``): ``closes``: per number, when the row closes; ``joined``:
    whether it has been joined by then.
    """

    side: int
    source: int
    keys: int
    preserved: bool
    waits: bool
    stores: Stores
    arrivals: Arrivals
    window: Window
    stream_us: Ints
    batch: pa.Table
    batch_row: Ints
    batch_identity: Ints
    waiting: pa.Table
    met: pa.Table
    pairs: Pairs
    alone: Mask
    first_match: Ints
    closes: Ints
    joined: Mask

    @classmethod
    def of(
        cls,
        job: Job,
        operator: Interval,
        stores: Stores,
        side: int,
        events: Timeline,
        event: Ints,
        arrivals: Arrivals,
        window: Window,
        stream_us: Ints,
    ) -> Side:
        """A side before it has met the other."""
        source = operator.leaves[side]
        none = np.zeros(0, np.int64)
        identity = np.zeros(job.batches[source].rows.num_rows, np.int64)
        own = events.source == source
        identity[events.row[own]] = job.manifest.rows + events.arrival[own]
        return cls(
            side=side,
            source=source,
            keys=job.spec.keys,
            preserved=preserved(operator.how)[side],
            waits=preserved(operator.how)[side] and operator.unmatched == "on_close",
            stores=stores,
            arrivals=arrivals,
            window=window,
            stream_us=stream_us,
            batch=job.batches[source].rows,
            batch_row=events.row[event],
            batch_identity=identity,
            waiting=stores.queues[side].take(int(stream_us[-1]) - 1)
            if stream_us[-1] != NO_TIME
            else stores.queues[side].schema.empty_table(),
            met=stores.histories[source].schema.empty_table(),
            pairs=Pairs(none, none, none),
            alone=np.zeros(len(event), np.bool_),
            first_match=none,
            closes=none,
            joined=np.zeros(0, np.bool_),
        )

    @property
    def base(self) -> int:
        """The number of the batch's first row."""
        return len(self.met) + len(self.waiting)

    @property
    def numbers(self) -> Ints:
        """The numbers of the batch's records, as ``arrivals`` has them."""
        return self.base + self.batch_row

    @property
    def identity(self) -> Ints:
        """Per number, the row's number for good."""
        stored = [t.column(ROW).to_numpy() for t in (self.met, self.waiting)]
        return np.concatenate([*stored, self.batch_identity])

    @property
    def time_us(self) -> Ints:
        """Per number, the row's timestamp."""
        tables = (self.met, self.waiting, self.batch)
        return np.concatenate([table.column(EVENT_TIME).to_numpy() for table in tables])

    def meet(self, events: Timeline, other: Side) -> None:
        """Find what this side's records join on the other side."""
        low, high = self.window.of_other(self.side, self.arrivals.time_us)
        keys = [key.take(pa.array(self.arrivals.group)) for key in events.keys]
        hash_ = events.hash[self.arrivals.group]
        found = self.stores.histories[other.source].between(hash_, keys, low, high)
        stored = Pairs(found.query, found.row, found.rows.column(EVENT_TIME).to_numpy()[found.row])
        other.met = found.rows
        fresh = pairs_of_batch(self.side, self.arrivals, other.arrivals, self.window)
        fresh = Pairs(fresh.row, other.numbers[fresh.other], fresh.other_time_us)
        joined = (np.concatenate(part) for part in zip(_parts(stored), _parts(fresh), strict=True))
        self.pairs = kept(Pairs(*joined), self.arrivals, self.stream_us, self.window)

    def find_matched(self, other: Side) -> None:
        """Which of this side's records found a match on arrival, and when each row is first joined
        by a record of the other side.
        """
        self.alone = np.full(len(self.arrivals), self.preserved)
        self.alone[self.pairs.row] = False
        self.first_match = np.full(self.base + len(self.batch), NEVER)
        arrival = other.arrivals.arrival[other.pairs.row]
        np.minimum.at(self.first_match, other.pairs.other, arrival)

    def await_closing(self) -> None:
        """When each row closes, and which had been joined before this batch."""
        total = self.base + len(self.batch)
        self.closes, self.joined = np.full(total, NEVER), np.zeros(total, np.bool_)
        if self.waits:
            met = self.met.column(EVENT_TIME).to_numpy()
            self.closes[: len(met)] = self._due(met)
            self.closes[len(met) : self.base] = self._due(
                self.waiting.column(EVENT_TIME).to_numpy()
            )
            self.closes[self.numbers] = self._due(self.arrivals.time_us)
            self.joined[: len(met)] = ~self._pending()
            asked = np.flatnonzero(~self.joined[: self.base] & (self.closes[: self.base] != NEVER))
            self.joined[asked] = self.marked(self.identity[asked])

    def _due(self, time_us: Ints) -> Ints:
        return first_due(self.window.limit(self.side, time_us), self.stream_us)

    def closing(self) -> Ints:
        """The numbers of the rows that close in this batch and have not been joined by then; a
        record's may have been due before it came.
        """
        own: Ints = np.concatenate((np.arange(len(self.met), self.base), self.numbers))
        own = own[(self.closes[own] != NEVER) & ~self.joined[own]]
        if len(self.waiting) and len(self.met):
            joined = self.met.column(ROW).to_numpy()[self.joined[: len(self.met)]]
            own = own[~np.isin(self.identity[own], joined)]
        return own

    def marked(self, identity: Ints) -> Mask:
        """Which rows, by their numbers for good, were joined in an earlier batch."""
        order = np.argsort(identity)
        ids = identity[order]
        located = self.stores.marks[self.side].locate(ids, [pa.array(ids)])
        marked = np.zeros(len(identity), dtype=np.bool_)
        marked[order] = located.present
        return marked

    @property
    def pool(self) -> pa.Table:
        """Keys and values of all numbered rows."""
        names = self.met.schema.names[4:]
        return pa.concat_tables([t.select(names) for t in (self.met, self.waiting, self.batch)])

    def was_alone(self) -> Mask:
        """Per number, whether the row was emitted unmatched and has not been withdrawn."""
        alone = np.zeros(len(self.first_match), dtype=np.bool_)
        alone[self.numbers[self.alone]] = True
        stored = self._pending() & (self.first_match[: len(self.met)] != NEVER)
        at = np.flatnonzero(stored)
        alone[at] = ~self.marked(self.identity[at])
        return alone

    def mark_joined(self) -> None:
        """Remember which stored rows that were unmatched have been joined."""
        joined = self._pending() & (self.first_match[: len(self.met)] != NEVER)
        rows = self.met.filter(pa.array(joined)).sort_by(ROW)
        number = rows.column(ROW)
        none = pa.array(np.zeros(len(rows), np.bool_))
        columns = [number, rows.column(EVENT_TIME), none, number]
        self.stores.marks[self.side].store(pa.table(columns, schema=_MARK))

    def wait(self, number: Ints) -> None:
        """Let these of the batch's rows wait for their window to close."""
        rows = self.batch.take(pa.array(number - self.base))
        due = self.window.limit(self.side, rows.column(EVENT_TIME).to_numpy())
        queue = self.stores.queues[self.side]
        columns = [
            pa.array(due),
            rows.column(EVENT_TIME),
            rows.column(HASH),
            pa.array(self.identity[number]),
            *rows.select(queue.schema.names[4:]).columns,
        ]
        order = np.lexsort((self.identity[number], due))
        queue.store(pa.table(columns, schema=queue.schema).take(pa.array(order)))

    def forget_marks(self) -> None:
        """Drop the marks of rows that are no longer kept; then they have closed, too."""
        self.stores.marks[self.side].expire(self.stores.histories[self.source].horizon_us)

    def _pending(self) -> Mask:
        bits = self.met.column(PENDING).to_numpy()
        return (bits >> self.side & 1).astype(np.bool_)  # type: ignore[no-any-return]


def settle(left: Side, right: Side) -> int:
    """Leave out the pairs with rows that have been emitted alone; returns how many these are."""
    if not (left.waits or right.waits):
        return 0
    sides, offsets = (left, right), (0, left.base + len(left.batch))
    record, other, arrival = [], [], []
    for own, shift, others in zip(sides, offsets, reversed(offsets), strict=True):
        own.await_closing()
        record.append(shift + own.numbers[own.pairs.row])
        other.append(others + own.pairs.other)
        arrival.append(own.arrivals.arrival[own.pairs.row])
    made, joined = settled(
        np.concatenate(record),
        np.concatenate(other),
        np.concatenate(arrival),
        np.concatenate((left.closes, right.closes)),
        np.concatenate((left.joined, right.joined)),
    )
    left.pairs = left.pairs.where(made[: len(record[0])])
    right.pairs = right.pairs.where(made[len(record[0]) :])
    left.joined, right.joined = joined[: offsets[1]], joined[offsets[1] :]
    return len(made) - int(np.count_nonzero(made))


def _parts(pairs: Pairs) -> tuple[Ints, Ints, Ints]:
    return pairs.row, pairs.other, pairs.other_time_us
