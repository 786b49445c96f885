"""The place of a source's records in the order of arrival, the same for every bucket that reads
them.

A source is read from *logs*: an input partition, a Kafka partition, or all files of a folder by
age. Packing cuts logs into *runs*: the consecutive rows of one log that one task has read. Every
bucket hears of all runs of the micro-batch. So every bucket finds the same *clock* for a record:
the largest timestamp in its log so far in the micro-batch.

Between logs and sources, the record with the smallest clock comes first. So a record's clock is
also *stream time* within the batch: the largest timestamp of all records so far. Earlier batches
are not part of it.

| log | record time | clock | place in the order of arrival |
|-----|-------------|-------|-------------------------------|
| 0   | 5           | 5     | 0                             |
| 0   | 9           | 9     | 2                             |
| 0   | 6           | 9     | 3                             |
| 1   | 7           | 7     | 1                             |
| 1   | 12          | 12    | 4                             |
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from dovetail.arrays.timeline import NO_TIME, Ints, Mask
from dovetail.laws.windows.fixed import running_max

NEVER = int(np.iinfo(np.int64).max)
"""As a position: after all records."""

_LOOPED_MAX = 64
"""The most segments that are scanned one by one; more are scanned together."""

_ORIGIN_SHIFT, _LOG_SHIFT, _RUN_SHIFT = 56, 44, 32


@dataclass(frozen=True)
class LogRuns:
    """The k runs of a micro-batch. All arrays are int64[k]."""

    log: Ints
    """The id of the run's log."""
    first: Ints
    """The position of the run's first row in its log."""
    last: Ints
    """The position of the run's last row in its log, inclusive."""
    high_us: Ints
    """The run's largest timestamp, ``NO_TIME`` for none. Rows that a condition leaves out do not
    count.
    """
    low_us: Ints | None = None
    """The timestamp of the run's first row that is not left out, ``NEVER`` for none; None for a
    source without conditions.
    """
    trail_us: Ints | None = None
    """The largest timestamp of the rows left out after the last other row, ``NO_TIME`` for none."""
    stream_us: Ints | None = None
    """The run's largest stream time, ``NO_TIME`` for none; None if that is ``high_us``."""

    def latest_in_earlier_runs(self) -> Ints:
        """Return for each run the largest timestamp in the earlier runs of its log, those with a
        smaller ``first`` position: int64[k]. It is ``NO_TIME`` for a log's first run. Runs may lie
        in any order.

        >>> log, first = np.array([0, 0, 0]), np.array([8, 0, 4])
        >>> runs = LogRuns(log, first, first + 3, np.array([70, 90, 50]))
        >>> runs.latest_in_earlier_runs().tolist()[::2]
        [90, 90]
        """
        order = np.lexsort((self.first, self.log))
        log = self.log[order]
        before = np.full(len(order), NO_TIME)
        for start, end in _equal_segments(log):
            runs = order[start:end]
            before[runs[1:]] = np.maximum.accumulate(self.high_us[runs])[:-1]
        return before

    # Four runs of one log. `[25]` is a row that is left out:
    #
    # | run | rows     | high    | low   | trail   | lead    | next  |
    # |-----|----------|---------|-------|---------|---------|-------|
    # | 0   | 10, [25] | 10      | 10    | 25      | NO_TIME | 30    |
    # | 1   | [22]     | NO_TIME | NEVER | 22      | 25      | 30    |
    # | 2   | [12], 30 | 30      | 30    | NO_TIME | 25      | 40    |
    # | 3   | 40       | 40      | 40    | NO_TIME | NO_TIME | NEVER |
    def left_out_bounds(self) -> tuple[Ints, Ints]:
        """Return two bounds for the clocks of rows that a condition leaves out at the ends of runs:
        int64[k] each, microseconds.

        The first is the largest timestamp of the rows left out between the log's last other row and
        the run's begin, ``NO_TIME`` for none. The second is the clock of the first row in later
        runs that is not left out, ``NEVER`` for none. Without ``low_us`` and ``trail_us``,
        ``AssertionError`` is raised.
        """
        assert self.low_us is not None
        assert self.trail_us is not None
        before = self.latest_in_earlier_runs()
        order = np.lexsort((self.first, self.log))
        lead, following = np.full(len(order), NO_TIME), np.full(len(order), NEVER)
        for start, end in _equal_segments(self.log[order]):
            runs = order[start:end]
            low = self.low_us[runs]
            clock = np.where(low == NEVER, NEVER, np.maximum(low, before[runs]))
            following[runs[:-1]] = np.minimum.accumulate(clock[::-1])[::-1][1:]
            gap = np.cumsum(low != NEVER)
            lead[runs[1:]] = running_clock(gap, self.trail_us[runs])[:-1]
        return lead, following

    def find_interleaved(self) -> Mask:
        """Return a mask of the runs of logs in which any two runs overlap: bool[k]. All runs of
        such a log are marked. Runs overlap if one begins at or before another's last position.

        >>> log, first = np.array([0, 0, 1]), np.array([0, 2, 4])
        >>> LogRuns(log, first, np.array([3, 5, 6]), first).find_interleaved().tolist()
        [True, True, False]
        """
        order = np.lexsort((self.first, self.log))
        log = self.log[order]
        overlaps = np.zeros(len(order), np.bool_)
        for start, end in _equal_segments(log):
            runs = order[start:end]
            reached = np.maximum.accumulate(self.last[runs])[:-1]
            overlaps[runs] = bool(np.any(self.first[runs[1:]] <= reached))
        return overlaps

    def latest_in_ended_runs(self, log: Ints, position: Ints) -> Ints:
        """Return for each of n positions in logs the largest timestamp in the runs of its log that
        end before it: int64[n], ``NO_TIME`` if there is no such run.

        ``log``, ``position``: int64[n]. A run that ends at the position itself does not count.
        """
        order = np.lexsort((self.last, self.log))
        high_us = np.full(len(log), NO_TIME)
        for start, end in _equal_segments(self.log[order]):
            runs = order[start:end]
            rows = np.flatnonzero(log == self.log[runs[0]])
            ended = np.searchsorted(self.last[runs], position[rows], side="left")
            highest = np.append(NO_TIME, np.maximum.accumulate(self.high_us[runs]))
            high_us[rows] = highest[ended]
        return high_us


@dataclass(frozen=True)
class Stairs:
    """Steps of a source's stream time in a micro-batch: ``time_us`` from ``position`` on. Both
    arrays are int64[k], ascending.
    """

    position: Ints
    time_us: Ints

    @classmethod
    def build(cls, position: Ints, time_us: Ints) -> Stairs:
        """Build the steps from n records in any order: the positions at which stream time, the
        largest time so far, rises, and the time from there on (``time_us``).

        ``position``, ``time_us``: int64[n], of each record; ``NO_TIME`` never rises. Each position
        has at most one step, the highest. Without records there are no steps.

        >>> Stairs.build(np.array([3, 1, 2]), np.array([9, 5, 4]))
        Stairs(position=array([1, 3]), time_us=array([5, 9]))
        """
        order = np.lexsort((time_us, position))
        position, time = position[order], np.maximum.accumulate(time_us[order])
        rises = time > np.append(NO_TIME, time[:-1])[: len(time)]
        # Several steps at one position: keep the last, which is the highest.
        position, time = position[rises], time[rises]
        last = np.append(position[1:] != position[:-1], True)[: len(position)]
        return cls(position[last], time[last])

    def at_period(self, span_us: int, offset_us: int) -> Stairs:
        """Return only the steps with which stream time reaches a time ``offset_us + k * span_us``,
        and the first one. So ``first_position_at`` such a time stays as it is.

        ``span_us``: at least 1 microsecond.

        >>> Stairs(np.array([1, 2, 3, 4]), np.array([5, 9, 12, 31])).at_period(10, 2)
        Stairs(position=array([1, 3, 4]), time_us=array([ 5, 12, 31]))
        """
        period = (self.time_us - offset_us) // span_us
        kept = np.append(True, period[1:] > period[:-1])[: len(period)]
        return Stairs(self.position[kept], self.time_us[kept])

    def time_at(self, position: Ints, *, inclusive: Ints | bool) -> Ints:
        """Return stream time at each position in microseconds: int64[n], ``NO_TIME`` before the
        first step. ``position``: int64[n], in any order.

        ``inclusive``: true if a step at the position itself counts; one flag for all positions, or
        an array with a flag for each.
        """
        highest = np.append(NO_TIME, self.time_us)
        upto = np.searchsorted(self.position, position, side="right")
        below = np.searchsorted(self.position, position, side="left")
        time_us: Ints = highest[np.where(inclusive, upto, below)]
        return time_us

    def first_position_at(self, time_us: Ints) -> Ints:
        """Return the position of the first step whose time reaches or exceeds each time: int64[n],
        ``NEVER`` if none does. ``time_us``: int64[n], in any order.
        """
        position: Ints = np.append(self.position, NEVER)[np.searchsorted(self.time_us, time_us)]
        return position


# Two tasks read log 0 in turns, and one task after the other reads log 1:
#
# | log | run | position | largest of its run so far | clock   | because                       |
# |-----|-----|----------|---------------------------|---------|-------------------------------|
# | 0   | 0   | 0        | 4                         | NO_TIME | no run ends before it         |
# | 0   | 1   | 1        | 6                         | NO_TIME | no run ends before it         |
# | 0   | 0   | 2        | 9                         | NO_TIME | no run ends before it         |
# | 0   | 1   | 3        | 7                         | 9       | run 0 ends at 2 and reaches 9 |
# | 1   | 2   | 0        | 5                         | 5       | its own run reaches 5         |
# | 1   | 3   | 2        | 3                         | 5       | run 2, before it, reaches 5   |
#
# A bucket has some of the rows, but hears of all runs. It does not know which rows of an
# interleaved run lie before a position, so it leaves such a run out.
def record_clocks(runs: LogRuns, run: Ints, clock_us: Ints, log: Ints, position: Ints) -> Ints:
    """Return each record's clock, the largest timestamp of its log up to it in the micro-batch:
    int64[n], microseconds.

    ``runs``: all runs of the source. ``run``: int64[n], the index of each record's run.
    ``clock_us``: int64[n], the largest timestamp of its run so far. ``log``, ``position``:
    int64[n], the record's log and its position there.

    Input partitions may interleave one log. Then only runs count that end before the record. Such a
    clock may be too low, even ``NO_TIME``, but never too high. It is the same in all buckets. With
    ``runs.low_us``, records that a condition leaves out keep clocks between those of the other rows
    around them (``left_out_bounds``).
    """
    before = runs.latest_in_earlier_runs()
    log_clock_us = np.maximum(clock_us, before[run])
    if runs.low_us is not None:
        lead, following = runs.left_out_bounds()
        low = runs.low_us
        first_us = np.where(low == NEVER, following, np.maximum(low, before))
        leading = np.minimum(np.maximum(log_clock_us, lead[run]), first_us[run])
        trailing = np.minimum(log_clock_us, following[run])
        log_clock_us = np.where(clock_us <= low[run], leading, trailing)
    unclear = runs.find_interleaved()[run]
    if unclear.any():
        log_clock_us[unclear] = runs.latest_in_ended_runs(log[unclear], position[unclear])
    return log_clock_us


# A log in which rows 1, 3 and 4 are left out. The time of row 1 is far ahead:
#
# | row | time | left out | stream time | clock | because                     |
# |-----|------|----------|-------------|-------|-----------------------------|
# | 0   | 10   |          | 10          | 10    |                             |
# | 1   | 99   | yes      | 10          | 20    | not after row 2             |
# | 2   | 20   |          | 20          | 20    | row 1 does not advance time |
# | 3   | 25   | yes      | 20          | 25    | its own time                |
# | 4   | 22   | yes      | 20          | 25    | not before row 3            |
# | 5   | 30   |          | 30          | 30    |                             |
def clocks_with_left_out(log: Ints, stream_us: Ints, trail_us: Ints, left_out: Mask) -> Ints:
    """Return the clocks of n rows of which a condition leaves some out: int64[n], microseconds.
    Other rows keep ``stream_us``, the clock without the left-out rows; without left-out rows it is
    returned as it is.

    A row that is left out deletes its key's row at its own time. Its clock lies neither before the
    row ahead of it nor after the next row of the log that is not left out.

    ``log``: int64[n], equal for neighbours of one log. ``trail_us``: int64[n], the largest time of
    the rows left out since the last other row. ``left_out``: bool[n].
    """
    count = len(log)
    if not left_out.any():
        return stream_us
    other = np.where(left_out, count, np.arange(count))
    following = np.minimum.accumulate(other[::-1])[::-1]
    same_log = np.append(log, -1)[following] == log
    next_us = np.where(same_log, np.append(stream_us, NEVER)[following], NEVER)
    return np.where(left_out, np.minimum(np.maximum(trail_us, stream_us), next_us), stream_us)


def trailing_times(log: Ints, time_us: Ints, left_out: Mask) -> Ints:
    """Return for each row the largest time of the rows left out since the last other row of its
    log, itself included: int64[n]. The time is ``NO_TIME`` at a row that is not left out.

    ``log``: int64[n], equal for neighbours of one log. ``time_us``: int64[n], each row's time.
    ``left_out``: bool[n].

    >>> log, left_out = np.zeros(4, np.int64), np.array([False, True, True, False])
    >>> trailing_times(log, np.array([1, 9, 5, 7]), left_out)[1:3].tolist()
    [9, 9]
    """
    if not left_out.any():
        return np.full(len(log), NO_TIME)
    begins = ~left_out
    begins[1:] |= log[1:] != log[:-1]
    return running_clock(np.cumsum(begins), np.where(left_out, time_us, NO_TIME))


def running_clock(log: Ints, time_us: Ints) -> Ints:
    """Return the largest time so far, the row's own included, in each segment of equal neighbours
    in ``log``: int64[n]. A log that comes again after another one begins anew.

    ``log``, ``time_us``: int64[n], the log and the time of each row.

    >>> running_clock(np.array([4, 4, 4, 2]), np.array([5, 3, 6, 1])).tolist()
    [5, 5, 6, 1]
    """
    clock_us = np.maximum.accumulate(time_us)
    segments = _equal_segments(log)
    if len(segments) > _LOOPED_MAX:
        start, end = np.array(segments).T
        segment = np.repeat(np.arange(len(segments)), end - start)
        return running_max(time_us, start, segment, np.full(len(segments), NO_TIME))
    for start, end in segments[1:]:
        np.maximum.accumulate(time_us[start:end], out=clock_us[start:end])
    return clock_us


def order_by_run(origin: int, rank: Ints, ordinal: Ints) -> Ints:
    """Return an int64 per record that orders records of equal clocks: by source, then by run, then
    by place in the run.

    ``origin``: the index of the source, below 2**7. ``rank``: int64[n], the index of each record's
    log run, below 2**24. ``ordinal``: int64[n], the record's index in the run, below 2**32. Larger
    ones give a wrong order, without an error.
    """
    order: Ints = (origin << _ORIGIN_SHIFT) + (rank << _RUN_SHIFT) + ordinal
    return order


def order_before_records(hash_: Ints) -> Ints:
    """Return int64s that order rows of equal clocks by the hash of their key, before all records:
    int64[n], from -2**62 to -1. They serve rows that are emitted because stream time moves.

    ``hash_``: int64[n]. Hashes that differ only in their last two bits give equal results.
    """
    order: Ints = (hash_ >> 2) - (1 << 61)
    return order


def order_by_due_time(time_us: Ints) -> Ints:
    """Return int64s that order rows of equal clocks by the time at which they are due, before all
    records and all results of ``order_before_records``: int64[n].

    ``time_us``: int64[n], from -2**61 to below 2**61; others give a wrong order, without an error.
    """
    order: Ints = time_us - 3 * (1 << 61)
    return order


def order_by_log(origin: int, rank: Ints, position: Ints) -> Ints:
    """Return an int64 per record that orders records of equal clocks: by source, then by log, then
    by position in the log.

    ``origin``: the index of the source, below 2**7. ``rank``: int64[n], the index of the log, below
    2**12. ``position``: int64[n], below 2**44. Larger ones give a wrong order, without an error.
    """
    order: Ints = (origin << _ORIGIN_SHIFT) + (rank << _LOG_SHIFT) + position
    return order


def _equal_segments(log: Ints) -> list[tuple[int, int]]:
    """Return the (start, exclusive end) of each segment of equal neighbours in ``log``, in order;
    an empty list for an empty array.
    """
    edges = np.flatnonzero(np.diff(log)) + 1
    bounds = [0, *edges.tolist(), len(log)] if len(log) else [0]
    return list(pairwise(bounds))
