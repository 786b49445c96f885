"""One side of an interval join in a bucket: its stores, and its rows in a batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from dovetail.arrays.search import cut_by_count
from dovetail.arrays.timeline import NO_TIME, STORED, Ints, Mask, Timeline
from dovetail.base.columns import DELETED, DUE, EVENT_TIME, HASH, PENDING, ROW
from dovetail.laws.joins.stream_join import (
    NEVER,
    Arrivals,
    Pairs,
    Reach,
    Window,
    find_joined,
    first_due,
)
from dovetail.laws.joins.table_join import sides_preserved
from dovetail.operators.job import Job, subtract_span
from dovetail.physical.specs.by_key import StreamJoinLaw, marks_store_name, waiting_store_name
from dovetail.state.history import HistoryState
from dovetail.state.queue import QueueState
from dovetail.state.run_state import RunState
from dovetail.state.table_state import TableState

_PAIRS_MAX = 1 << 18
_MARK = pa.schema(
    [(HASH, pa.int64()), (EVENT_TIME, pa.int64()), (DELETED, pa.bool_()), (ROW, pa.int64())]
)


@dataclass(frozen=True)
class SideStores:
    """The stores of a bucket for a join of streams: records, those that wait, and marks."""

    histories: Sequence[HistoryState]
    """One per source."""
    queues: Sequence[QueueState]
    """One per side, empty if the side needs none."""
    marks: Sequence[TableState]
    """One per side, empty if the side needs none."""

    @classmethod
    def open_stores(cls, job: Job, law: StreamJoinLaw) -> SideStores:
        """Open the stores as they were before the batch. There is a history of rows per source.
        Each side, left first, has a queue of unmatched rows and a store of marks, the ids of rows
        joined later. Queues and marks that ``law`` does not need are opened empty.
        """
        return cls(
            [
                HistoryState(
                    _stored_schema(job, source),
                    range(4, 4 + job.operator.keys),
                    job.stored_runs(name),
                    job.blobs,
                    job.cache,
                    versioned=False,
                )
                for source, name in enumerate(job.operator.names)
            ],
            [
                QueueState(
                    _queue_schema(job, source),
                    job.stored_runs(waiting_store_name(side)),
                    job.blobs,
                    job.cache,
                    taken_us=subtract_span(max(job.initial_us), 1),
                )
                for side, source in enumerate(law.sides)
            ],
            [
                TableState(_MARK, 1, job.stored_runs(marks_store_name(side)), job.blobs, job.cache)
                for side in (0, 1)
            ],
        )

    def declared_stores(self, job: Job) -> dict[str, RunState]:
        """Return the stores that the job's operator declares, by the operator's names for them.
        These are the history of rows of each source. For the sides that need them, they are also
        the queue of unmatched rows and the marks, the ids of rows joined later.
        """
        named: dict[str, RunState] = dict(zip(job.operator.names, self.histories, strict=True))
        for side in (0, 1):
            named |= {
                waiting_store_name(side): self.queues[side],
                marks_store_name(side): self.marks[side],
            }
        return {name: named[name] for name in job.operator.stores}


def _stored_schema(job: Job, source: int) -> pa.Schema:
    """Return the schema of the history of the source with index ``source``: ``_hash``,
    ``_event_time``, ``_row``, ``_pending``, keys, values. The first four are int64.

    ``_row`` is the id that the row keeps in this bucket. ``_pending`` has two bits, set if the row
    had no match when it was stored: bit 0 as a left row, bit 1 as a right row.
    """
    spec = job.sources[source]
    system_fields = [(name, pa.int64()) for name in (HASH, EVENT_TIME, ROW, PENDING)]
    return pa.schema([*system_fields, *spec.shape.user_fields])


def _queue_schema(job: Job, source: int) -> pa.Schema:
    """Return the schema of a queue of rows of the source with index ``source``: ``_due``,
    ``_event_time``, ``_hash``, ``_row``, keys, values. The first four are int64. ``_due`` is the
    last stream time in microseconds at which the row's window is open. ``_row`` is the id that the
    row keeps in this bucket.
    """
    spec = job.sources[source]
    system_fields = [(name, pa.int64()) for name in (DUE, EVENT_TIME, HASH, ROW)]
    return pa.schema([*system_fields, *spec.shape.user_fields])


@dataclass(eq=False)
class Side:
    """One side of the join in this batch.

    Its rows lie in one list, ``pool``, of three parts. A *side row* is an index into this list. A
    *row id* is the number that a row keeps in later batches, ``_row`` in the stores.

    | rows          | side rows                                                                   |
    |---------------|-----------------------------------------------------------------------------|
    | ``met``       | from 0: stored rows that the other side's records meet                      |
    | ``waiting``   | next: rows that waited for this batch                                       |
    | ``batch``     | from ``base``: the batch's rows, in the order of the source                 |
    """

    side: int
    """0 for the left side, 1 for the right."""
    source: int
    """The index of the side's source."""
    keys: int
    """The count of key columns."""
    preserved: bool
    """True if records without a match are emitted."""
    waits: bool
    """True if the side is preserved, and its unmatched rows wait for their window to close
    (``unmatched="on_close"``).
    """
    stores: SideStores
    arrivals: Arrivals
    """The side's records."""
    window: Window
    stream_us: Ints
    """int64[arrivals + 1]: the stream time after each arrival on either side and, last, at the end
    of the batch, in microseconds.
    """
    batch: pa.Table
    """All rows of the batch, in the order of the source."""
    batch_row: Ints
    """The index in ``batch`` of each record in ``arrivals``."""
    batch_row_ids: Ints
    """The row id of each row in ``batch``."""
    waiting: pa.Table
    """The rows that waited for this batch, read from the queue."""
    met: pa.Table
    """The stored rows that the other side's records meet, each once."""
    met_group: Ints
    """The group of each row in ``met``."""
    unpaired: Mask
    """The records that found no match on arrival: bool[arrivals], all true before ``Meeting``."""
    first_match: Ints
    """Per side row, the arrival of this batch's first record that joins it, ``NEVER`` for none. Set
    by ``Meeting``.
    """
    closes: Ints
    """Per side row, the arrival at which it closes, ``NEVER`` if it does not. It does only if the
    side ``waits``. Set by ``Meeting``.
    """
    joined: Mask
    """Per side row, whether it has been joined when it closes, if the side ``waits``; else all
    false. Set by ``Meeting``.
    """

    @classmethod
    def begin_batch(
        cls,
        job: Job,
        law: StreamJoinLaw,
        stores: SideStores,
        side: int,
        events: Timeline,
        event: Ints,
        arrivals: Arrivals,
        window: Window,
        stream_us: Ints,
    ) -> Side:
        """Return a side that has not yet met the other: ``met`` is empty, and no row is joined.
        Take from the side's queue the rows that are due in this batch, so call it once a batch.

        ``side``: 0 for left, 1 for right. ``events``: all events of the batch. ``arrivals``: the
        side's records, by (group, time, arrival). ``event``: int64[records], the index of each
        among ``events``. ``stream_us``: int64[arrivals + 1], the stream time after each arrival of
        all events, that event included, and last at the end of the batch. In a self-join each event
        arrives twice.
        """
        source = law.sides[side]
        none = np.zeros(0, np.int64)
        identity = np.zeros(job.batches[source].rows.num_rows, np.int64)
        of_source = events.source == source
        identity[events.row[of_source]] = job.manifest.rows + events.arrival[of_source]
        return cls(
            side=side,
            source=source,
            keys=job.operator.keys,
            preserved=sides_preserved(law.how)[side],
            waits=sides_preserved(law.how)[side] and law.unmatched == "on_close",
            stores=stores,
            arrivals=arrivals,
            window=window,
            stream_us=stream_us,
            batch=job.batches[source].rows,
            batch_row=events.row[event],
            batch_row_ids=identity,
            waiting=stores.queues[side].take_due(int(stream_us[-1]) - 1)
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
        """The index in ``pool`` of the batch's first row: the count of rows in ``met`` and
        ``waiting``, which come before it.
        """
        return len(self.met) + len(self.waiting)

    @property
    def record_rows(self) -> Ints:
        """The index in ``pool`` of each of the batch's records: int64[records], in the order of
        ``arrivals``.
        """
        return self.base + self.batch_row

    @cached_property
    def row_ids(self) -> Ints:
        """The id that each row in ``pool`` keeps in later batches, ``_row`` in the stores:
        int64[pool].
        """
        stored = [t.column(ROW).to_numpy() for t in (self.met, self.waiting)]
        return np.concatenate([*stored, self.batch_row_ids])

    @cached_property
    def time_us(self) -> Ints:
        """The event time of each row in ``pool``, in its order, in microseconds: int64[pool]."""
        tables = (self.met, self.waiting, self.batch)
        return np.concatenate([table.column(EVENT_TIME).to_numpy() for table in tables])

    def meet_stored_rows(self, events: Timeline, other: Side) -> None:
        """Read the stored rows of ``other`` that lie in a window of one of this side's records, and
        have its key. Set ``other.met`` to these rows, each once, and ``other.met_group`` to the
        indices of their keys among the groups of ``events``. Without records both are empty. They
        may have left the retention by the time a record arrives; ``reachable_rows`` leaves those
        out.
        """
        group = self.arrivals.group
        low, high = self.window.other_side_bounds(self.side, self.arrivals.time_us)
        # Overlapping windows of a key are read as one range.
        new = np.ones(len(group), np.bool_)
        new[1:] = (group[1:] != group[:-1]) | (low[1:] > high[:-1])
        first = np.flatnonzero(new)
        group, low = group[first], low[first]
        high = high[np.append(first[1:], len(high)) - 1] if len(first) else high
        keys = [key.take(pa.array(group)) for key in events.keys]
        matches = self.stores.histories[other.source].find_between(
            events.hash[group], keys, low, high
        )
        other.met = matches.rows
        other.met_group = np.empty(len(matches.rows), np.int64)
        other.met_group[matches.row] = group[matches.query]

    def reachable_rows(self, other: Side) -> Reach:
        """Return for each of this side's records the range of rows of ``other`` that it may join,
        stored and arriving ones. They lie in its window and are still kept at its arrival. A range
        may be empty, and may have rows that arrive later. Both sides must have read their stored
        rows (``meet_stored_rows``).

        A range is one pair of ``first`` and ``end`` in the returned ``Reach``, indices into its
        ``other``: those rows by (group, time, arrival). ``Reach.number`` has the index of each in
        ``other.pool``.
        """
        met, other_arrivals = len(other.met), other.arrivals
        rows = Arrivals(
            np.append(other.met_group, other_arrivals.group),
            np.append(other.time_us[:met], other_arrivals.time_us),
            np.append(np.full(met, STORED), other_arrivals.arrival),
        )
        side_row = np.append(np.arange(met), other.record_rows)
        return Reach.find(self.side, self.arrivals, rows, side_row, self.stream_us, self.window)

    def set_closing_arrivals(self) -> None:
        """Set two facts of each row in ``pool``, stored or of the batch: ``closes``, the arrival at
        which it closes, and ``joined``, true if it has been joined. Set all of ``first_match`` to
        ``NEVER``.

        A stored row counts as joined if it had a match when it was stored, or in a later batch
        since (it has a mark). Rows of the batch count as not joined yet. For a side that does not
        wait, no row closes and none is joined.
        """
        total = self.base + len(self.batch)
        self.first_match = np.full(total, NEVER)
        self.closes, self.joined = np.full(total, NEVER), np.zeros(total, np.bool_)
        if self.waits:
            met = self.met.column(EVENT_TIME).to_numpy()
            self.closes[: len(met)] = self._closing_arrivals(met)
            self.closes[len(met) : self.base] = self._closing_arrivals(
                self.waiting.column(EVENT_TIME).to_numpy()
            )
            self.closes[self.record_rows] = self._closing_arrivals(self.arrivals.time_us)
            self.joined[: len(met)] = ~self._pending_rows()
            asked = np.flatnonzero(~self.joined[: self.base] & (self.closes[: self.base] != NEVER))
            self.joined[asked] = self.marked_rows(self.row_ids[asked])

    def find_open_pairs(self, other: Side, possible: Pairs) -> Mask:
        """Find the pairs whose row of ``other`` is still open when this side's record arrives:
        bool[pairs]. A row that closes at this very arrival is not open.

        ``possible``: pairs of a record of this side and a row of ``other``. Both sides must have
        set ``closes``.
        """
        arrival = self.arrivals.arrival[possible.row]
        return other.closes[possible.other] > arrival

    def _closing_arrivals(self, time_us: Ints) -> Ints:
        """Return the arrival at which a row of this side with each of the event times ``time_us``
        closes: int64[n]. It is the first at which stream time is past the end of the row's window
        plus grace. It is ``NEVER`` if the row does not close in this batch.
        """
        return first_due(self.window.match_limit_us(self.side, time_us), self.stream_us)

    @property
    def unmatched_records(self) -> Mask:
        """The records that found no match on arrival: bool[records], in the order of ``arrivals``.
        None of them if the side is not preserved.
        """
        return self.unpaired & self.preserved

    @property
    def lost_records(self) -> Mask:
        """The records that join nothing and are not emitted alone: bool[records], in the order of
        ``arrivals``. They found no match, and their time was behind stream time by more than the
        window's retention. None of them if the side is preserved.
        """
        kept_us = self.stream_us[self.arrivals.arrival] - self.window.retention_us
        return self.unpaired & (not self.preserved) & (self.arrivals.time_us < kept_us)

    def closing_rows(self) -> Ints:
        """Return the rows that close in this batch without having been joined, as indices into
        ``pool``: int64. Rows from the queue (``waiting``) come first, then the batch's rows in the
        order of ``arrivals``. It is empty if none close.

        A row of the batch may have been due before it arrived. Rows that were only read from the
        history for the other side (``met``) are not among them.
        """
        side_row: Ints = np.concatenate((np.arange(len(self.met), self.base), self.record_rows))
        side_row = side_row[(self.closes[side_row] != NEVER) & ~self.joined[side_row]]
        if len(self.waiting) and len(self.met):
            joined = self.met.column(ROW).to_numpy()[self.joined[: len(self.met)]]
            side_row = side_row[~np.isin(self.row_ids[side_row], joined)]
        return side_row

    def marked_rows(self, identity: Ints) -> Mask:
        """Find the rows that have a mark: bool[rows], in the order of ``identity``. A marked row
        was joined in an earlier batch, but after the one that stored the row.

        ``identity``: int64[rows], the row ids (``_row`` in the stores), distinct, in any order.
        """
        order = np.argsort(identity)
        ids = identity[order]
        located = self.stores.marks[self.side].locate(ids, [pa.array(ids)])
        marked = np.zeros(len(identity), dtype=np.bool_)
        marked[order] = located.present
        return marked

    @cached_property
    def pool(self) -> pa.Table:
        """The keys, then the values, of all rows of the side: ``met``, ``waiting`` and ``batch``,
        one after the other. Each column has one chunk.
        """
        names = self.met.schema.names[4:]
        tables = [t.select(names) for t in (self.met, self.waiting, self.batch)]
        return pa.concat_tables(tables).combine_chunks()

    def emitted_unmatched(self) -> Mask:
        """Find the rows of a side with ``unmatched="retract"`` whose emission alone may still be
        withdrawn: bool[pool]. A row of the batch is found if it had no match on arrival and the
        side is preserved. A stored row is found if it was stored without a match, and this batch is
        the first that joins it. ``Meeting`` must have set ``first_match``.
        """
        alone = np.zeros(len(self.first_match), dtype=np.bool_)
        alone[self.record_rows[self.unmatched_records]] = True
        stored = self._pending_rows() & (self.first_match[: len(self.met)] != NEVER)
        at = np.flatnonzero(stored)
        alone[at] = ~self.marked_rows(self.row_ids[at])
        return alone

    def mark_joined(self) -> None:
        """Store a mark for each stored row that was unmatched when it was stored and is joined in
        this batch: a row with its id and its event time. Rows of the batch itself need none.
        ``Meeting`` must have set ``first_match``.
        """
        joined = self._pending_rows() & (self.first_match[: len(self.met)] != NEVER)
        rows = self.met.filter(pa.array(joined)).sort_by(ROW)
        identity = rows.column(ROW)
        none = pa.array(np.zeros(len(rows), np.bool_))
        columns = [identity, rows.column(EVENT_TIME), none, identity]
        self.stores.marks[self.side].store(pa.table(columns, schema=_MARK))

    def queue_rows(self, side_row: Ints) -> None:
        """Put rows of the batch into the side's queue, by the stream time after which their window
        closes, then by row id. ``side_row``: their indices in ``pool``, each at least ``base``;
        without any, nothing is stored.
        """
        rows = self.batch.take(pa.array(side_row - self.base))
        due = self.window.match_limit_us(self.side, rows.column(EVENT_TIME).to_numpy())
        queue = self.stores.queues[self.side]
        columns = [
            pa.array(due),
            rows.column(EVENT_TIME),
            rows.column(HASH),
            pa.array(self.row_ids[side_row]),
            *rows.select(queue.schema.names[4:]).columns,
        ]
        order = np.lexsort((self.row_ids[side_row], due))
        queue.store(pa.table(columns, schema=queue.schema).take(pa.array(order)))

    def forget_marks(self) -> None:
        """Drop the marks (stored ids of rows joined later) of rows that the source's history no
        longer keeps, as such rows have closed. The history must have the horizon of the end of the
        batch.
        """
        self.stores.marks[self.side].expire(self.stores.histories[self.source].horizon_us)

    def _pending_rows(self) -> Mask:
        """Return a mask of the rows in ``met``, the stored rows in reach of the other side:
        bool[met]. It is true for rows that had no match as rows of this side when they were stored.
        """
        bits = self.met.column(PENDING).to_numpy()
        return (bits >> self.side & 1).astype(np.bool_)  # type: ignore[no-any-return]


class Meeting:
    """The pairs that the records of both sides make. The sides learn which of their rows have been
    joined.

    ``cuts`` are ranges of arrivals with at most ``_PAIRS_MAX`` pairs each, or of one arrival.
    ``made`` is the count of pairs. ``too_late`` is the count of pairs not made because the other
    row had been emitted alone. Pairs are computed anew each time they are asked for.
    """

    def __init__(self, left: Side, right: Side) -> None:
        """Find the pairs of both sides' records, and set what follows from them in ``left`` and
        ``right``: ``unpaired``, ``first_match``, ``closes`` (arrivals) and ``joined``. Both sides
        must have read their stored rows (``Side.meet_stored_rows``).

        Pairs are found in ranges of arrivals, the ``cuts``, and kept in memory only if there is one
        range. A closed row still makes pairs if it has been joined. ``made`` counts the pairs that
        are emitted, ``too_late`` those not made because the row had been emitted alone.
        """
        self._sides = left, right
        self._reach = left.reachable_rows(right), right.reachable_rows(left)
        self._order = [np.argsort(side.arrivals.arrival) for side in self._sides]
        count = np.zeros(len(left.stream_us), np.int64)
        for reach in self._reach:
            np.add.at(count, reach.own.arrival, np.maximum(reach.end - reach.first, 0))
        self.cuts = list(cut_by_count(count, _PAIRS_MAX))
        self._all: list[tuple[Side, Side, Pairs]] | None = None
        if len(self.cuts) == 1:
            self._all = [*self._possible_pairs(self.cuts[0])]
        self._closed = False
        self.made = self.too_late = 0
        for side in self._sides:
            side.set_closing_arrivals()
        if left.waits or right.waits:
            self._settle_joined(left, right)
        for cut in self.cuts:
            for this_side, other, possible in self._possible_pairs(cut):
                pairs = self._made_pairs(this_side, other, possible)
                this_side.unpaired[pairs.row] = False
                np.minimum.at(other.first_match, pairs.other, this_side.arrivals.arrival[pairs.row])
                self.made += len(pairs.row)
                self.too_late += len(possible.row) - len(pairs.row)

    def pairs(self, cut: tuple[int, int]) -> Iterator[tuple[Side, Side, Pairs]]:
        """Yield the pairs that records with arrivals in ``cut`` make: (side of the records, other
        side, pairs), for the left records and then for the right ones. ``Pairs.row`` is an index
        into the records, ``Pairs.other`` one into the other side's ``pool``. Pairs with rows that
        were emitted alone are left out.

        ``cut``: one of ``cuts``, the first arrival and the exclusive end. If there is only one, its
        pairs are yielded, and ``cut`` is not read.
        """
        for side, other, possible in self._possible_pairs(cut):
            yield side, other, self._made_pairs(side, other, possible)

    def _possible_pairs(self, cut: tuple[int, int]) -> Iterable[tuple[Side, Side, Pairs]]:
        """Return (side of the records, other side, pairs), for the left records and then for the
        right ones: the pairs of records with arrivals in ``cut``. Pairs with rows that are closed
        are included.

        ``cut``: one of ``cuts``, the first arrival and the exclusive end. If there is only one, its
        pairs are returned, and ``cut`` is not read.
        """
        if self._all is not None:
            return self._all
        return map(self._possible_pairs_of_side, (0, 1), (cut, cut))

    def _possible_pairs_of_side(self, side: int, cut: tuple[int, int]) -> tuple[Side, Side, Pairs]:
        """Return (side, other side, pairs) for the records of one side with arrivals in ``cut``, in
        the order of arrival. ``side``: 0 for left, 1 for right. ``cut``: the first arrival and the
        exclusive end.
        """
        order, reach = self._order[side], self._reach[side]
        start, stop = np.searchsorted(reach.own.arrival, cut, sorter=order)
        return self._sides[side], self._sides[1 - side], reach.pairs(order[start:stop])

    def _made_pairs(self, side: Side, other: Side, possible: Pairs) -> Pairs:
        """Return the pairs among ``possible`` that are made: the row of ``other`` is open at the
        arrival of the record of ``side``, or has been joined. If no possible pair of the batch has
        a closed row, these are all.
        """
        if not self._closed:
            return possible
        return possible.select(side.find_open_pairs(other, possible) | other.joined[possible.other])

    def _settle_joined(self, left: Side, right: Side) -> None:
        """Set ``joined`` of both sides: true for each row that is joined in the end. A closed row
        that was emitted alone joins nothing more.

        Also set ``_closed`` if any possible pair has a closed row. Both sides must have set
        ``closes``.
        """
        for cut in self.cuts:
            for side, other, possible in self._possible_pairs(cut):
                open_ = side.find_open_pairs(other, possible)
                side.joined[side.record_rows[possible.row[open_]]] = True
                other.joined[possible.other[open_]] = True
                self._closed |= not open_.all()
        if not self._closed:
            return
        offsets = {left: 0, right: len(left.joined)}
        records, others = [], []
        for cut in self.cuts:
            for side, other, possible in self._possible_pairs(cut):
                late = possible.select(~side.find_open_pairs(other, possible))
                late = late.select(~side.joined[side.record_rows[late.row]])
                records.append(offsets[side] + side.record_rows[late.row])
                others.append(offsets[other] + late.other)
        joined = find_joined(
            np.concatenate(records),
            np.concatenate(others),
            np.concatenate((left.joined, right.joined)),
        )
        left.joined, right.joined = np.split(joined, [len(left.joined)])
