"""One side of an interval join in a bucket: its stores, and its rows in a batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from dovetail.arrays.search import pieces
from dovetail.arrays.timeline import NO_TIME, STORED, Ints, Mask, Timeline
from dovetail.columns import DELETED, DUE, EVENT_TIME, HASH, PENDING, ROW
from dovetail.laws.stream_join import NEVER, Arrivals, Pairs, Reach, Window, first_due, settled
from dovetail.laws.table_join import preserved
from dovetail.operators.job import Job, minus
from dovetail.physical.operators import StreamJoin, marks, waiting
from dovetail.state.history import HistoryState
from dovetail.state.queue import QueueState
from dovetail.state.run_state import RunState
from dovetail.state.table_state import TableState

_PAIRS_MAX = 1 << 18
_MARK = pa.schema(
    [(HASH, pa.int64()), (EVENT_TIME, pa.int64()), (DELETED, pa.bool_()), (ROW, pa.int64())]
)


@dataclass(frozen=True)
class Stores:
    """``histories``: per source; ``queues`` and ``marks``: per side, empty where the side needs
    none.
    """

    histories: Sequence[HistoryState]
    queues: Sequence[QueueState]
    marks: Sequence[TableState]

    @classmethod
    def of(cls, job: Job, law: StreamJoin) -> Stores:
        """The stores of a bucket."""
        return cls(
            [
                HistoryState(
                    _stored_schema(job, source),
                    range(4, 4 + job.operator.keys),
                    job.runs(name),
                    job.blobs,
                    job.cache,
                    versioned=False,
                )
                for source, name in enumerate(job.operator.names)
            ],
            [
                QueueState(
                    _queue_schema(job, source),
                    job.runs(waiting(side)),
                    job.blobs,
                    job.cache,
                    taken_us=minus(max(job.initial_us), 1),
                )
                for side, source in enumerate(law.sides)
            ],
            [TableState(_MARK, 1, job.runs(marks(side)), job.blobs, job.cache) for side in (0, 1)],
        )

    def by_name(self, job: Job) -> dict[str, RunState]:
        """The stores that the operator declares."""
        named: dict[str, RunState] = dict(zip(job.operator.names, self.histories, strict=True))
        for side in (0, 1):
            named |= {waiting(side): self.queues[side], marks(side): self.marks[side]}
        return {name: named[name] for name in job.operator.stores}


def _stored_schema(job: Job, source: int) -> pa.Schema:
    """``_hash``, ``_event_time``, ``_row``, ``_pending`` (a bit per side), keys, values."""
    spec = job.sources[source]
    own = [(name, pa.int64()) for name in (HASH, EVENT_TIME, ROW, PENDING)]
    return pa.schema([*own, *spec.fields(spec.user_columns)])


def _queue_schema(job: Job, source: int) -> pa.Schema:
    spec = job.sources[source]
    own = [(name, pa.int64()) for name in (DUE, EVENT_TIME, HASH, ROW)]
    return pa.schema([*own, *spec.fields(spec.user_columns)])


@dataclass(eq=False)
class Side:
    """One side of the join in this batch.

    Its rows are numbered: first the stored ones that the other side's records meet (``met``), then
    those that waited for this batch (``waiting``), then the batch's, in the order of the source.
    ``arrivals``: its records; ``unpaired``: which of them found no match on arrival;
    ``identity``: per number, the row's number for good; ``first_match``: per
    number, the arrival of the first record of this batch that joins the row, ``NEVER`` for none.
    ``met_group``: the groups of the rows that are met.
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
    met_group: Ints
    unpaired: Mask
    first_match: Ints
    closes: Ints
    joined: Mask

    @classmethod
    def of(
        cls,
        job: Job,
        law: StreamJoin,
        stores: Stores,
        side: int,
        events: Timeline,
        event: Ints,
        arrivals: Arrivals,
        window: Window,
        stream_us: Ints,
    ) -> Side:
        """A side before it has met the other."""
        source = law.sides[side]
        none = np.zeros(0, np.int64)
        identity = np.zeros(job.batches[source].rows.num_rows, np.int64)
        own = events.source == source
        identity[events.row[own]] = job.manifest.rows + events.arrival[own]
        return cls(
            side=side,
            source=source,
            keys=job.operator.keys,
            preserved=preserved(law.how)[side],
            waits=preserved(law.how)[side] and law.unmatched == "on_close",
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
            met_group=none,
            unpaired=np.ones(len(event), np.bool_),
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

    @cached_property
    def identity(self) -> Ints:
        """Per number, the row's number for good."""
        stored = [t.column(ROW).to_numpy() for t in (self.met, self.waiting)]
        return np.concatenate([*stored, self.batch_identity])

    @cached_property
    def time_us(self) -> Ints:
        """Per number, the row's timestamp."""
        tables = (self.met, self.waiting, self.batch)
        return np.concatenate([table.column(EVENT_TIME).to_numpy() for table in tables])

    def meet(self, events: Timeline, other: Side) -> None:
        """Find the stored rows of the other side that this side's records meet."""
        group = self.arrivals.group
        low, high = self.window.of_other(self.side, self.arrivals.time_us)
        # The windows of a key that overlap are asked for as one.
        new = np.ones(len(group), np.bool_)
        new[1:] = (group[1:] != group[:-1]) | (low[1:] > high[:-1])
        first = np.flatnonzero(new)
        group, low = group[first], low[first]
        high = high[np.append(first[1:], len(high)) - 1] if len(first) else high
        keys = [key.take(pa.array(group)) for key in events.keys]
        found = self.stores.histories[other.source].between(events.hash[group], keys, low, high)
        other.met = found.rows
        other.met_group = np.empty(len(found.rows), np.int64)
        other.met_group[found.row] = group[found.query]

    def reach(self, other: Side) -> Reach:
        """Which rows of the other side this side's records may join, once both have met."""
        met, own = len(other.met), other.arrivals
        rows = Arrivals(
            np.append(other.met_group, own.group),
            np.append(other.time_us[:met], own.time_us),
            np.append(np.full(met, STORED), own.arrival),
        )
        number = np.append(np.arange(met), other.numbers)
        return Reach.of(self.side, self.arrivals, rows, number, self.stream_us, self.window)

    def await_closing(self) -> None:
        """When each row closes, and which had been joined before this batch; none has in it."""
        total = self.base + len(self.batch)
        self.first_match = np.full(total, NEVER)
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

    def finds_open(self, other: Side, possible: Pairs) -> Mask:
        """Which pairs are with a row that is open when the side's record comes."""
        arrival = self.arrivals.arrival[possible.row]
        return other.closes[possible.other] > arrival

    def _due(self, time_us: Ints) -> Ints:
        return first_due(self.window.limit(self.side, time_us), self.stream_us)

    @property
    def alone(self) -> Mask:
        """Which records found no match on arrival, where the side is preserved."""
        return self.unpaired & self.preserved

    @property
    def lost(self) -> Mask:
        """Which records join nothing, as they come later than they are kept and found no match on
        arrival, and are not emitted alone.
        """
        kept_us = self.stream_us[self.arrivals.arrival] - self.window.retention_us
        return self.unpaired & (not self.preserved) & (self.arrivals.time_us < kept_us)

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

    @cached_property
    def pool(self) -> pa.Table:
        """Keys and values of all numbered rows."""
        names = self.met.schema.names[4:]
        tables = [t.select(names) for t in (self.met, self.waiting, self.batch)]
        return pa.concat_tables(tables).combine_chunks()

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


class Meeting:
    """The pairs that the records of both sides make, in ``cuts``: ranges of arrivals with up to so
    many pairs each, or of one arrival. Pairs are made anew each time they are asked for.

    ``made``: how many there are; ``too_late``: how many are not made, since the other row has been
    emitted alone. The sides are told which of their rows have been joined.
    """

    def __init__(self, left: Side, right: Side) -> None:
        self._sides = left, right
        self._reach = left.reach(right), right.reach(left)
        self._order = [np.argsort(side.arrivals.arrival) for side in self._sides]
        count = np.zeros(len(left.stream_us), np.int64)
        for reach in self._reach:
            np.add.at(count, reach.own.arrival, np.maximum(reach.end - reach.first, 0))
        self.cuts = list(pieces(count, _PAIRS_MAX))
        self._all: list[tuple[Side, Side, Pairs]] | None = None
        if len(self.cuts) == 1:
            self._all = [*self._possible(self.cuts[0])]
        self._closed = False
        self.made = self.too_late = 0
        for side in self._sides:
            side.await_closing()
        if left.waits or right.waits:
            self._settle(left, right)
        for cut in self.cuts:
            for own, other, possible in self._possible(cut):
                pairs = self._made(own, other, possible)
                own.unpaired[pairs.row] = False
                np.minimum.at(other.first_match, pairs.other, own.arrivals.arrival[pairs.row])
                self.made += len(pairs.row)
                self.too_late += len(possible.row) - len(pairs.row)

    def pairs(self, cut: tuple[int, int]) -> Iterator[tuple[Side, Side, Pairs]]:
        """What records of each side join, and the other side."""
        for own, other, possible in self._possible(cut):
            yield own, other, self._made(own, other, possible)

    def _possible(self, cut: tuple[int, int]) -> Iterable[tuple[Side, Side, Pairs]]:
        if self._all is not None:
            return self._all
        return map(self._possible_of, (0, 1), (cut, cut))

    def _possible_of(self, side: int, cut: tuple[int, int]) -> tuple[Side, Side, Pairs]:
        order, reach = self._order[side], self._reach[side]
        start, stop = np.searchsorted(reach.own.arrival, cut, sorter=order)
        return self._sides[side], self._sides[1 - side], reach.pairs(order[start:stop])

    def _made(self, own: Side, other: Side, possible: Pairs) -> Pairs:
        if not self._closed:
            return possible
        return possible.where(own.finds_open(other, possible) | other.joined[possible.other])

    def _settle(self, left: Side, right: Side) -> None:
        """Find which rows are joined, where those that have been emitted alone join nothing."""
        for cut in self.cuts:
            for own, other, possible in self._possible(cut):
                open_ = own.finds_open(other, possible)
                own.joined[own.numbers[possible.row[open_]]] = True
                other.joined[possible.other[open_]] = True
                self._closed |= not open_.all()
        if not self._closed:
            return
        offsets = {left: 0, right: len(left.joined)}
        records, others = [], []
        for cut in self.cuts:
            for own, other, possible in self._possible(cut):
                late = possible.where(~own.finds_open(other, possible))
                late = late.where(~own.joined[own.numbers[late.row]])
                records.append(offsets[own] + own.numbers[late.row])
                others.append(offsets[other] + late.other)
        joined = settled(
            np.concatenate(records),
            np.concatenate(others),
            np.concatenate((left.joined, right.joined)),
        )
        left.joined, right.joined = np.split(joined, [len(left.joined)])
