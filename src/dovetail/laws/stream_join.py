"""Joins of two streams within a window of time: which pairs meet, and which rows stay alone.

The law. R joins L when ``L.ts - before <= R.ts <= L.ts + after``. *Stream time* is the largest
timestamp of all records of both streams so far, the arriving one's included. Each record, as it
arrives, joins the rows of the other side that have arrived before it and are still kept: those with
``ts >= stream time - (before + after + grace)``, a negative bound counting as none. So what comes
in order of time is joined by the window alone.

A row of a preserved side that finds no match is *unmatched*. It is emitted

- ``"on_close"``: once, if it has no match when it closes, which is when stream time has passed its
  limit, the end of its window plus grace; one that comes too late for that closes as it comes. From
  then on it joins nothing. So each row is in one state for good: it is in some pairs, or it has
  been emitted alone;
- ``"eager"``: at once, and what joins it later comes in addition;
- ``"retract"``: at once, and withdrawn just before the first result that joins it.

Kafka Streams differs in two ways. It keeps rows by a clock of each side, the largest timestamp
stored there, ``ts > clock - (before + after + grace)``: a bucket does not know that clock, for
other buckets have rows of the side. And it lets rows be joined that it has emitted alone.

Source: KIP-77 "KStream-KStream"; Kafka Streams join design, "windowed join"; spec/stream_stream.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from dovetail.arrays.search import bisect, expand
from dovetail.arrays.timeline import Ints, Mask

Unmatched: TypeAlias = Literal["on_close", "eager", "retract"]

NEVER = int(np.iinfo(np.int64).max)


@dataclass(frozen=True)
class Window:
    """Which rows join: ``before_us``, ``after_us`` and ``grace_us`` as in the law."""

    before_us: int
    after_us: int
    grace_us: int

    @property
    def retention_us(self) -> int:
        """How far behind stream time a row still joins; no less than ``reach_us``."""
        return max(self.before_us, 0) + max(self.after_us, 0) + self.grace_us

    def of_other(self, side: int, time_us: Ints) -> tuple[Ints, Ints]:
        """The times, both inclusive, at which the other side joins a row of ``side``."""
        before, after = self._reach(side)
        return time_us - before, time_us + after

    def limit(self, side: int, time_us: Ints) -> Ints:
        """The last stream time at which a row of ``side`` may still find a match."""
        return time_us + self.reach_us(side)

    def reach_us(self, side: int) -> int:
        """How long, in stream time, a row of ``side`` may still find a match."""
        return self._reach(side)[1] + self.grace_us

    def _reach(self, side: int) -> tuple[int, int]:
        return (self.before_us, self.after_us) if side == 0 else (self.after_us, self.before_us)


@dataclass(frozen=True)
class Arrivals:
    """The n rows of one side in a batch, ordered by (group, time, arrival).

    ``group``, ``time_us``: int64[n]; ``arrival``: int64[n], when each is processed, in a numbering
    of both sides' rows.
    """

    group: Ints
    time_us: Ints
    arrival: Ints

    def __len__(self) -> int:
        return len(self.group)


def stream_times(seen_us: Ints, first_us: int, last_us: int) -> Ints:
    """Stream time after each arrival and, last, at the end of the batch: int64[arrivals + 1].

    ``seen_us``: int64[arrivals], stream time as of each record, one without key or value
    too; ``first_us``, ``last_us``: stream time before the batch and at its end.
    """
    return np.maximum.accumulate(np.maximum(np.append(seen_us, last_us), first_us))


@dataclass(frozen=True)
class Pairs:
    """m pairs that the records of one side make: its row (an index into its ``Arrivals``) and the
    row of the other side, by whatever number that has; ``other_time_us`` its time.
    """

    row: Ints
    other: Ints
    other_time_us: Ints

    def where(self, kept: Mask | Ints) -> Pairs:
        """Some of the pairs."""
        return Pairs(self.row[kept], self.other[kept], self.other_time_us[kept])


@dataclass(frozen=True)
class Reach:
    """Which rows of the other side each of n records may join. There may be as many pairs as the
    square of the records; these are made some at a time.

    ``own``: the records; ``other``: m rows of the other side, ``STORED`` the arrival of stored
    ones, and ``number``: int64[m], by whatever number they have; ``first``, ``end``: int64[n], the
    record may join those of the rows from the first up to an exclusive end that came before it.
    """

    own: Arrivals
    other: Arrivals
    number: Ints
    first: Ints
    end: Ints

    @classmethod
    def of(
        cls,
        side: int,
        own: Arrivals,
        other: Arrivals,
        number: Ints,
        stream_us: Ints,
        window: Window,
    ) -> Reach:
        """The rows of the other side, in any order, within the windows of records of ``side`` and
        still kept when these arrive.
        """
        order = np.lexsort((other.arrival, other.time_us, other.group))
        other = Arrivals(other.group[order], other.time_us[order], other.arrival[order])
        low, high = window.of_other(side, own.time_us)
        low = np.maximum(low, stream_us[own.arrival] - window.retention_us)
        first = np.searchsorted(other.group, own.group)
        end = np.searchsorted(other.group, own.group, side="right")
        return cls(
            own,
            other,
            number[order],
            bisect(other.time_us, first, end, low, right=False),
            bisect(other.time_us, first, end, high, right=True),
        )

    def pairs(self, row: Ints) -> Pairs:
        """The pairs of some records."""
        which, found = expand(self.first[row], self.end[row])
        row = row[which]
        pairs = Pairs(row, self.number[found], self.other.time_us[found])
        return pairs.where(self.other.arrival[found] < self.own.arrival[row])


def first_due(limit_us: Ints, stream_us: Ints) -> Ints:
    """When rows that wait for these limits close: the first arrival after which stream time is
    past the limit, the last number of ``stream_us`` standing for the end of the batch; ``NEVER``
    for those that do not close in this batch. A row that comes later than that closes as it comes.
    """
    due = np.searchsorted(stream_us, limit_us, side="right")
    return np.where(due < len(stream_us), due, NEVER)


def settled(record: Ints, other: Ints, joined: Mask) -> Mask:
    """Which rows have been joined, where rows that have been emitted alone join nothing.

    ``record``, ``other``: int64[m], a row that came when one that it may join was closed;
    ``joined``: bool[rows], which have joined an open one, or have been joined before.

    A closed row is joined if it has been before, which may follow from what it joined itself when
    it came, closed rows among these. So this goes from row to row that comes late, a step at a
    time, and in all over each possible pair once.

    >>> joined = np.array([True, False, False, False, False])
    >>> settled(np.array([1, 2, 4]), np.array([0, 1, 3]), joined).tolist()
    [True, True, True, False, False]
    """
    joined = joined.copy()
    pending = np.flatnonzero(~joined[record])
    pending = pending[np.argsort(other[pending], kind="stable")]
    source = other[pending]
    fresh = np.unique(source[joined[source]])
    while len(fresh):
        first, end = (np.searchsorted(source, fresh, side=side) for side in ("left", "right"))
        reached = record[pending[expand(first, end)[1]]]
        fresh = np.unique(reached[~joined[reached]])
        joined[fresh] = True
    return joined
