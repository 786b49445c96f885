"""Session windows: which sessions a key's records make, extend and merge.

A session lies from its first record to its last, and no two of a key that are open lie within the
gap of each other. The law, for a record at ``t`` that comes when stream time is ``clock``:

- a session is closed when ``end + gap + grace < clock``; it takes no more records;
- the record makes one session of itself and the open ones within the gap, both ends included;
- where there are none, and a session of the record alone would be closed, it is late and dropped;
- a session that becomes another, because a bound moves or because two merge, is deleted first.

Records are taken in *waves*: of each key those that come in order of time and reach at most one
session further than the first of them do, all keys at once. Records in order are one wave.

Source: Kafka Streams join design, "Windowed Aggregate"; spec/windowed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dovetail.kernels.search import bisect, expand
from dovetail.kernels.timeline import NO_TIME, Ints, Mask

_NEVER = int(np.iinfo(np.int64).max)


@dataclass(frozen=True)
class Sessions:
    """Sessions by (group, end), so that the open ones, which lie apart, come last: int64[m] each;
    ``ref``: where the accumulators of each lie.
    """

    group: Ints
    start_us: Ints
    end_us: Ints
    ref: Ints

    def where(self, kept: Mask | Ints) -> Sessions:
        """Some of them."""
        return Sessions(self.group[kept], self.start_us[kept], self.end_us[kept], self.ref[kept])

    def beside(self, other: Sessions) -> Sessions:
        """These and others, in order."""
        both = Sessions(
            np.append(self.group, other.group),
            np.append(self.start_us, other.start_us),
            np.append(self.end_us, other.end_us),
            np.append(self.ref, other.ref),
        )
        return both.where(np.lexsort((both.end_us, both.group)))


@dataclass(frozen=True)
class Wave:
    """What one wave does.

    ``event``: int64[n], the events that are taken, by group and arrival; ``segment``: int64[n],
    non-decreasing, the session that each goes to; ``end_us``: int64[n], where that ends after it;
    ``moves``: bool[n], whether it ended earlier before. Per segment: ``start_us``; ``first``,
    ``last``: the sessions, by their number before the wave, that it is made of, from the first up
    to an exclusive last; ``made``: the sessions that the segments are after the wave, in their
    order, ``ref`` the segment.
    """

    event: Ints
    segment: Ints
    end_us: Ints
    moves: Mask
    start_us: Ints
    first: Ints
    last: Ints
    made: Sessions

    @property
    def begins(self) -> Ints:
        """Per segment its first event, by its number in ``event``."""
        return np.searchsorted(self.segment, np.arange(len(self.start_us)))


@dataclass
class Waves:
    """The waves of a batch's events, which lie by group and arrival.

    ``closing_us``: int64[n], non-decreasing by arrival: a session that ends before it is closed
    when the event comes. ``late`` counts the events that are dropped.
    """

    group: Ints
    time_us: Ints
    closing_us: Ints
    gap_us: int
    late: int = 0

    def __post_init__(self) -> None:
        n = len(self.group)
        groups = int(self.group.max(initial=-1)) + 1
        bounds = np.searchsorted(self.group, np.arange(groups + 1))
        self._next, self._stop = bounds[:-1].copy(), bounds[1:]
        breaks = np.ones(n + 1, np.bool_)
        breaks[1:n] = self.group[1:] != self.group[:-1]
        breaks[1:n] |= self.time_us[1:] < self.time_us[:-1]
        place = np.where(breaks, np.arange(n + 1), n)
        self._break = np.minimum.accumulate(place[::-1])[::-1][1:]

    @property
    def left(self) -> bool:
        """Whether there are events left."""
        return bool((self._next < self._stop).any())

    def take(self, sessions: Sessions) -> Wave:
        """The next wave, over the sessions as they stand."""
        active = np.flatnonzero(self._next < self._stop)
        head = self._next[active]
        time, closing = self.time_us[head], self.closing_us[head]
        low = np.searchsorted(sessions.group, active)
        high = np.searchsorted(sessions.group, active, side="right")
        reach = np.maximum(time - self.gap_us, closing)
        first = bisect(sessions.end_us, low, high, reach, right=False)
        last = bisect(sessions.start_us, first, high, time + self.gap_us, right=True)
        met = last > first
        start = np.append(sessions.start_us, _NEVER)
        end = np.append(sessions.end_us, NO_TIME)
        own_start = np.where(met, np.minimum(time, start[first]), time)
        own_end = np.where(met, np.maximum(time, end[last - 1]), time)
        limit = np.where(last < high, start[last] - self.gap_us, _NEVER)
        stop = np.maximum(
            bisect(self.time_us, head, self._break[head], limit, right=False), head + 1
        )
        self._next[active] = stop
        run, event = expand(head, stop)
        late = self.time_us[event] < self.closing_us[event]
        late &= own_end[run] < self.closing_us[event]
        self.late += int(np.count_nonzero(late))
        taken = np.ones(len(active), np.bool_)
        taken[run[late & (event == head[run])]] = False
        own_end = np.where(taken, own_end, NO_TIME)
        run, event = run[~late], event[~late]
        time = self.time_us[event]
        ends = np.maximum(own_end[run], time)
        before = np.append(NO_TIME, ends)[: len(ends)]
        joins = np.zeros(len(run), np.bool_)
        joins[1:] = run[1:] == run[:-1]
        joins &= (time - self.gap_us <= before) & (before >= self.closing_us[event])
        segment = np.cumsum(~joins) - 1
        begins = np.flatnonzero(~joins)
        heads = event[begins] == head[run[begins]]
        made_of = run[begins]
        tail = np.append(begins, len(event))[1:] - 1
        starts = np.where(heads, own_start[made_of], time[begins])
        return Wave(
            event=event,
            segment=segment,
            end_us=ends,
            moves=joins & (ends > before),
            start_us=starts,
            first=np.where(heads, first[made_of], 0),
            last=np.where(heads, last[made_of], 0),
            made=Sessions(self.group[event[begins]], starts, ends[tail], np.arange(len(begins))),
        )
