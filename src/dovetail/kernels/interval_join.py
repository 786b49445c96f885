"""Joins of two streams within a window of time: which pairs meet, and which rows stay alone.

The law. R joins L when ``L.ts - before <= R.ts <= L.ts + after``. Each record, as it arrives,
joins the rows of the other side that have arrived before it and that the side still retains: those
with ``ts > clock(side) - (before + after + grace)``, where a side's clock is the largest timestamp
that it has stored in this bucket.
A row of a preserved side that finds no match is *unmatched*. It is emitted

- ``"on_close"``: once, when stream time (the largest timestamp of all records) has passed its
  limit, the end of its window plus grace, and nothing has joined it; at once if its window, grace
  aside, is over when it arrives;
- ``"eager"``: at once, and what joins it later comes in addition;
- ``"retract"``: at once, and withdrawn just before the first result that joins it.

Source: KIP-77 "KStream-KStream"; Kafka Streams join design, "windowed join"; spec/stream_stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from dovetail.kernels.search import bisect, expand
from dovetail.kernels.timeline import Ints, Mask

Unmatched: TypeAlias = Literal["on_close", "eager", "retract"]

NEVER = int(np.iinfo(np.int64).max)


@dataclass(frozen=True)
class Window:
    """Which rows join: ``before_us`` and ``after_us`` as in the law, and how long rows are kept."""

    before_us: int
    after_us: int
    grace_us: int

    @property
    def retention_us(self) -> int:
        """How far behind its side's clock a row still joins."""
        return self.before_us + self.after_us + self.grace_us

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


@dataclass(frozen=True)
class Clocks:
    """Clocks after each arrival: int64[arrivals + 1], the last being the end of the batch.

    ``stream_us``: the larger of both sides'; ``side_us``: per side its own.
    """

    stream_us: Ints
    side_us: Sequence[Ints]


def clocks(
    sides: Sequence[Arrivals],
    seen_us: Ints,
    side_us: Sequence[int],
    stream_us: tuple[int, int],
) -> Clocks:
    """The clocks of a batch. ``side_us``: what the sides' were before it; ``stream_us``: the stream
    time before it and at its end.

    ``seen_us``: int64[arrivals], the timestamp of every record, one without key or value too: it
    moves stream time, though not its side's clock.
    """
    arrivals, own = len(seen_us), []
    for side, first in zip(sides, side_us, strict=True):
        time = np.full(arrivals + 1, first)
        time[side.arrival] = np.maximum(side.time_us, first)
        own.append(np.maximum.accumulate(time))
    first, last = stream_us
    stream = np.maximum.accumulate(np.maximum(np.append(seen_us, last), first))
    return Clocks(stream, own)


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


def retained(pairs: Pairs, own: Arrivals, other_clock_us: Ints, window: Window) -> Pairs:
    """The pairs whose other row is still retained when the own row arrives."""
    horizon = other_clock_us[own.arrival[pairs.row]] - window.retention_us
    return pairs.where(pairs.other_time_us > horizon)


def pairs_of_batch(side: int, own: Arrivals, other: Arrivals, window: Window) -> Pairs:
    """The pairs of each row of ``own`` with the rows of ``other`` that have arrived before it."""
    if len(own) == 0 or len(other) == 0:
        none = np.zeros(0, np.int64)
        return Pairs(none, none, none)
    low, high = window.of_other(side, own.time_us)
    count = np.bincount(other.group, minlength=int(own.group[-1]) + 1)
    end = np.cumsum(count)[own.group]
    first = end - count[own.group]
    row, found = expand(
        bisect(other.time_us, first, end, low, right=False),
        bisect(other.time_us, first, end, high, right=True),
    )
    pairs = Pairs(row, found, other.time_us[found])
    return pairs.where(other.arrival[found] < own.arrival[row])


def first_due(limit_us: Ints, stream_us: Ints) -> Ints:
    """When rows that wait for these limits are due: the first arrival after which stream time is
    past the limit, the last number of ``stream_us`` standing for the end of the batch; ``NEVER``
    for those that are not due in this batch.
    """
    due = np.searchsorted(stream_us, limit_us, side="right")
    return np.where(due < len(stream_us), due, NEVER)
