"""Where a source's records stand in the order of arrival, whichever bucket reads them.

A source is read from *logs*: each input partition is one, or a Kafka partition, or all files of a
folder by their age. Pack cuts them into *runs*, the rows of one log that one task has read one
after the other, and tells every bucket of all runs of the micro-batch. So every bucket comes to the
same *clock* for a record: the largest timestamp that its log has had by then in the micro-batch.

Between logs and sources the record with the smallest clock comes first. So a record's clock is also
the largest timestamp of all records that have come by then: stream time, but for earlier batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from dovetail.arrays.timeline import NO_TIME, Ints, Mask
from dovetail.laws.windows import running_max

NEVER = int(np.iinfo(np.int64).max)
"""As a position: after all records."""

_LOOPED_MAX = 64
"""Up to so many segments are scanned one by one, more of them together."""

_ORIGIN_SHIFT, _LOG_SHIFT, _RUN_SHIFT = 56, 44, 32


@dataclass(frozen=True)
class LogRuns:
    """k runs: the ``log`` of each; ``first``, ``last``: the positions of its ends there;
    ``high_us``: its largest timestamp, ``NO_TIME`` for none. All int64[k].
    """

    log: Ints
    first: Ints
    last: Ints
    high_us: Ints

    def before(self) -> Ints:
        """The largest timestamp in the runs of its log that come before each run: int64[k].

        >>> log, first = np.array([0, 0, 0]), np.array([8, 0, 4])
        >>> LogRuns(log, first, first + 3, np.array([70, 90, 50])).before().tolist()[::2]
        [90, 90]
        """
        order = np.lexsort((self.first, self.log))
        log = self.log[order]
        before = np.full(len(order), NO_TIME)
        for start, end in _segments(log):
            own = order[start:end]
            before[own[1:]] = np.maximum.accumulate(self.high_us[own])[:-1]
        return before

    def interleaved(self) -> Mask:
        """Whether each run's log has runs that overlap: bool[k].

        >>> log, first = np.array([0, 0, 1]), np.array([0, 2, 4])
        >>> LogRuns(log, first, np.array([3, 5, 6]), first).interleaved().tolist()
        [True, True, False]
        """
        order = np.lexsort((self.first, self.log))
        log = self.log[order]
        overlaps = np.zeros(len(order), np.bool_)
        for start, end in _segments(log):
            own = order[start:end]
            reached = np.maximum.accumulate(self.last[own])[:-1]
            overlaps[own] = bool(np.any(self.first[own[1:]] <= reached))
        return overlaps

    def ended_before(self, log: Ints, position: Ints) -> Ints:
        """The largest timestamp in the runs of a log that end before a position: int64[n]."""
        order = np.lexsort((self.last, self.log))
        found = np.full(len(log), NO_TIME)
        for start, end in _segments(self.log[order]):
            runs = order[start:end]
            rows = np.flatnonzero(log == self.log[runs[0]])
            ended = np.searchsorted(self.last[runs], position[rows], side="left")
            highest = np.append(NO_TIME, np.maximum.accumulate(self.high_us[runs]))
            found[rows] = highest[ended]
        return found


@dataclass(frozen=True)
class Stairs:
    """How a source's stream time rises in a micro-batch: from ``position`` on it is ``time_us``.
    Both int64[k], ascending.
    """

    position: Ints
    time_us: Ints

    @classmethod
    def of(cls, position: Ints, time_us: Ints) -> Stairs:
        """The positions at which it rises, of records in any order.

        >>> Stairs.of(np.array([3, 1, 2]), np.array([9, 5, 4]))
        Stairs(position=array([1, 3]), time_us=array([5, 9]))
        """
        order = np.lexsort((time_us, position))
        position, time = position[order], np.maximum.accumulate(time_us[order])
        rises = time > np.append(NO_TIME, time[:-1])[: len(time)]
        # Of one position the highest: the last to rise there.
        position, time = position[rises], time[rises]
        last = np.append(position[1:] != position[:-1], True)[: len(position)]
        return cls(position[last], time[last])

    def at(self, position: Ints, *, inclusive: Ints | bool) -> Ints:
        """Stream time at each position, ``NO_TIME`` before the first: with what comes there itself
        where ``inclusive``.
        """
        highest = np.append(NO_TIME, self.time_us)
        upto = np.searchsorted(self.position, position, side="right")
        below = np.searchsorted(self.position, position, side="left")
        found: Ints = highest[np.where(inclusive, upto, below)]
        return found

    def first(self, time_us: Ints) -> Ints:
        """The position at which stream time reaches each time, ``NEVER`` where it does not."""
        found: Ints = np.append(self.position, NEVER)[np.searchsorted(self.time_us, time_us)]
        return found


def clocks(runs: LogRuns, run: Ints, clock_us: Ints, log: Ints, position: Ints) -> Ints:
    """Each record's clock: int64[n].

    ``run``: whose it is; ``clock_us``: the largest timestamp of its run by then; ``log``,
    ``position``: where it is. Where input partitions interleave one log, only those runs count that
    end before the record: then the clock is too low rather than too high, and alike in all buckets.
    """
    found = np.maximum(clock_us, runs.before()[run])
    unclear = runs.interleaved()[run]
    if unclear.any():
        found[unclear] = runs.ended_before(log[unclear], position[unclear])
    return found


def running_clock(log: Ints, time_us: Ints) -> Ints:
    """The largest time so far in each segment of equal neighbours in ``log``: int64[n].

    >>> running_clock(np.array([4, 4, 4, 2]), np.array([5, 3, 6, 1])).tolist()
    [5, 5, 6, 1]
    """
    clock_us = np.maximum.accumulate(time_us)
    segments = _segments(log)
    if len(segments) > _LOOPED_MAX:
        start, end = np.array(segments).T
        number = np.repeat(np.arange(len(segments)), end - start)
        return running_max(time_us, start, number, np.full(len(segments), NO_TIME))
    for start, end in segments[1:]:
        np.maximum.accumulate(time_us[start:end], out=clock_us[start:end])
    return clock_us


def order_by_run(origin: int, rank: Ints, ordinal: Ints) -> Ints:
    """A number per record that orders those of one clock: of sources, by ``origin``; of its runs,
    by ``rank`` (below 2**24); by the number in its run (below 2**32).
    """
    order: Ints = (origin << _ORIGIN_SHIFT) + (rank << _RUN_SHIFT) + ordinal
    return order


def before_all(hash_: Ints) -> Ints:
    """The numbers of what comes as stream time moves, before all records: by the keys' hashes, from
    -2**62 on.
    """
    order: Ints = (hash_ >> 2) - (1 << 61)
    return order


def as_due(time_us: Ints) -> Ints:
    """The numbers of what comes as stream time passes these times (within 2**61), in their order
    and before all else.
    """
    order: Ints = time_us - 3 * (1 << 61)
    return order


def order_by_log(origin: int, rank: Ints, place: Ints) -> Ints:
    """As ``order_by_run``, by the rank of its log (below 2**12) and the ``place`` there (below
    2**44).
    """
    order: Ints = (origin << _ORIGIN_SHIFT) + (rank << _LOG_SHIFT) + place
    return order


def _segments(log: Ints) -> list[tuple[int, int]]:
    """Where equal neighbours begin and end."""
    edges = np.flatnonzero(np.diff(log)) + 1
    bounds = [0, *edges.tolist(), len(log)] if len(log) else [0]
    return list(pairwise(bounds))
