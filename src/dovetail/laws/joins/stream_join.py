"""Joins of two streams within a window of time: the pairs that match, and the rows that stay alone.

The law. R joins L when ``L.ts - before <= R.ts <= L.ts + after``. *Stream time* is the largest
timestamp of all records of both streams so far, the arriving one's included. An arriving record
joins the rows of the other side that arrived before it and are still kept. Rows are kept while ``ts
>= stream time - (before + after + grace)``, a negative bound counting as 0. So records in order of
time are joined by the window alone.

A row of a preserved side without a match is *unmatched*. ``unmatched`` decides about it:

- ``"on_close"``: it is emitted once, if it has no match when it closes. A row closes when stream
  time passes its limit, the end of its window plus grace. A row that arrives after its limit closes
  at once. A row emitted alone joins nothing later, so each row is either in pairs or alone.
- ``"eager"``: it is emitted at once; later matches are emitted in addition.
- ``"retract"``: it is emitted at once, and withdrawn just before its first match.

Kafka Streams differs in two ways. It keeps rows by a clock of each side, the largest timestamp
stored there: ``ts > clock - (before + after + grace)``. A bucket does not know that clock, because
other buckets hold rows of the side. And Kafka Streams lets rows join that it has emitted alone.

Source: KIP-77 "KStream-KStream"; Kafka Streams join design, "windowed join"; spec/stream_stream.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from dovetail.arrays.search import bisect, expand_ranges
from dovetail.arrays.timeline import Ints, Mask

Unmatched: TypeAlias = Literal["on_close", "eager", "retract"]

NEVER = int(np.iinfo(np.int64).max)
"""As an arrival: after the batch."""


@dataclass(frozen=True)
class Window:
    """The window of time within which rows of two streams join: the right row's time is from
    ``before_us`` before the left row's to ``after_us`` after it, both inclusive.
    """

    before_us: int
    """The microseconds before the left row's time; negative if the window begins after it."""
    after_us: int
    """The microseconds after the left row's time; negative if the window ends before it."""
    grace_us: int
    """The time behind stream time at which a row outside the window is still waited for."""

    @property
    def retention_us(self) -> int:
        """The largest distance behind stream time at which a row still joins, inclusive, in
        microseconds. The distance is no less than ``reach_us``.
        """
        return max(self.before_us, 0) + max(self.after_us, 0) + self.grace_us

    def other_side_bounds(self, side: int, time_us: Ints) -> tuple[Ints, Ints]:
        """Return the least and the greatest time, both inclusive, of rows of the other side that
        may join each row of ``side``: int64[n] each, microseconds.

        ``side``: 0 for the left, 1 for the right. ``time_us``: int64[n], the times of its rows.
        """
        before, after = self._reach_bounds(side)
        return time_us - before, time_us + after

    def match_limit_us(self, side: int, time_us: Ints) -> Ints:
        """Return the last stream time, inclusive, at which each row of ``side`` may still find a
        match: int64[n], microseconds. ``side``: 0 for the left, 1 for the right. ``time_us``:
        int64[n], the times of its rows.
        """
        return time_us + self.reach_us(side)

    def reach_us(self, side: int) -> int:
        """Return the microseconds of stream time after its own time for which a row of ``side`` may
        still find a match; perhaps negative. ``side``: 0 for the left, 1 for the right.
        """
        return self._reach_bounds(side)[1] + self.grace_us

    def _reach_bounds(self, side: int) -> tuple[int, int]:
        """Return how far before and after a row of ``side`` its matches may lie, in microseconds:
        (before, after), each perhaps negative. ``side``: 0 for the left, 1 for the right.
        """
        return (self.before_us, self.after_us) if side == 0 else (self.after_us, self.before_us)


@dataclass(frozen=True)
class Arrivals:
    """The n rows of one side in a batch, by (group, time, arrival): int64[n] each."""

    group: Ints
    """The index of each row's key."""
    time_us: Ints
    """The event time of each row."""
    arrival: Ints
    """The place in the order of processing, among the rows of both sides."""

    def __len__(self) -> int:
        """Return the count of rows."""
        return len(self.group)


def stream_times(seen_us: Ints, first_us: int, last_us: int) -> Ints:
    """Return stream time after each arrival and, last, at the end of the batch: int64[arrivals +
    1], non-decreasing, microseconds.

    ``seen_us``: int64[arrivals], stream time at each record, records without key or value included.
    ``first_us``, ``last_us``: stream time before the batch and at its end.
    """
    return np.maximum.accumulate(np.maximum(np.append(seen_us, last_us), first_us))


@dataclass(frozen=True)
class Pairs:
    """The m pairs that the records of one side make."""

    row: Ints
    """int64[m]: the record, an index into its side's ``Arrivals``."""
    other: Ints
    """int64[m]: the caller's index of the other side's row."""
    other_time_us: Ints
    """int64[m]: the event time of the other side's row, in microseconds."""

    def select(self, selected: Mask | Ints) -> Pairs:
        """Return the pairs that ``selected`` picks by flags or indices, in that order."""
        return Pairs(self.row[selected], self.other[selected], self.other_time_us[selected])


@dataclass(frozen=True)
class Reach:
    """The rows of the other side that each of n records may join. The pairs may be as many as the
    square of the records, so they are made in portions.
    """

    own: Arrivals
    """The n records."""
    other: Arrivals
    """The m rows of the other side; stored ones have the arrival ``STORED``."""
    number: Ints
    """int64[m]: the caller's index of each row of the other side."""
    first: Ints
    """int64[n]: the first row of the other side that the record may join."""
    end: Ints
    """int64[n]: the exclusive end. Of the range, only rows that arrived before the record join."""

    @classmethod
    def find(
        cls,
        side: int,
        records: Arrivals,
        others: Arrivals,
        other_row: Ints,
        stream_us: Ints,
        window: Window,
    ) -> Reach:
        """Return for each record the range of other rows in its window that are still kept when it
        arrives: ``first`` and the exclusive ``end``. The pairs are made of it later, by ``pairs``.

        - ``side``: that of the records, 0 for the left, 1 for the right.
        - ``records``: by (group, time, arrival), with these three as arrays. ``others``: rows of
          the other side, in any order; a stored one has the arrival ``STORED``.
        - ``other_row``: int64, the caller's index of each row of ``others``.
        - ``stream_us``: stream time by arrival, as ``stream_times`` returns it.
        - ``window``: the window of the join. A row at its limit, or at that of retention, is in the
          range.
        """
        order = np.lexsort((others.arrival, others.time_us, others.group))
        others = Arrivals(others.group[order], others.time_us[order], others.arrival[order])
        low, high = window.other_side_bounds(side, records.time_us)
        low = np.maximum(low, stream_us[records.arrival] - window.retention_us)
        first = np.searchsorted(others.group, records.group)
        end = np.searchsorted(others.group, records.group, side="right")
        return cls(
            records,
            others,
            other_row[order],
            bisect(others.time_us, first, end, low, right=False),
            bisect(others.time_us, first, end, high, right=True),
        )

    def pairs(self, row: Ints) -> Pairs:
        """Return the pairs that some records make with rows of the other side that arrived before
        them: the record, the caller's index of the other row, and that row's time. Pairs lie by
        ``row``, then by the other row's time and arrival. ``row``: int64, indices of records in
        ``own``.
        """
        which, other_index = expand_ranges(self.first[row], self.end[row])
        row = row[which]
        pairs = Pairs(row, self.number[other_index], self.other.time_us[other_index])
        return pairs.select(self.other.arrival[other_index] < self.own.arrival[row])


def first_due(limit_us: Ints, stream_us: Ints) -> Ints:
    """Return the first arrival at which stream time is past each limit: int64[n], ``NEVER`` if it
    stays at or below the limit in this batch.

    ``limit_us``: int64[n], microseconds. ``stream_us``: as ``stream_times`` returns it, so its last
    index means the end of the batch. A row that arrives after the returned arrival closes at once.
    """
    due = np.searchsorted(stream_us, limit_us, side="right")
    return np.where(due < len(stream_us), due, NEVER)


def find_joined(record: Ints, other: Ints, joined: Mask) -> Mask:
    """Return a mask of the rows that have been joined, if rows that have been emitted alone join
    nothing: bool[rows].

    ``record``, ``other``: int64[m], pairs of a row and one that it may join but that was closed at
    its arrival. ``joined``: bool[rows], the rows that have joined an open row or were joined
    before; it is not changed.

    A row closes when stream time passes the end of its window plus grace. Without a match it is
    then emitted alone. A closed row may be joined only if it has been joined before. That may
    follow from other closed rows that it joined at its own arrival. So the search goes from row to
    late row, a step at a time, and visits each possible pair once.

    In this example row 0 is joined, so row 1 joins it and row 2 joins row 1. Row 3 was emitted
    alone, and so row 4 stays alone:

    >>> joined = np.array([True, False, False, False, False])
    >>> find_joined(np.array([1, 2, 4]), np.array([0, 1, 3]), joined).tolist()
    [True, True, True, False, False]
    """
    joined = joined.copy()
    pending = np.flatnonzero(~joined[record])
    pending = pending[np.argsort(other[pending], kind="stable")]
    source = other[pending]
    fresh = np.unique(source[joined[source]])
    while len(fresh):
        first, end = (np.searchsorted(source, fresh, side=side) for side in ("left", "right"))
        reached = record[pending[expand_ranges(first, end)[1]]]
        fresh = np.unique(reached[~joined[reached]])
        joined[fresh] = True
    return joined
