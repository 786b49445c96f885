"""Sliding windows: which windows a key's records make, and what each record changes of them.

Windows of one ``size``, both ends included. The law, for the records of one key:

- a record at ``t`` makes the window that ends at ``t``, and, once another lies in it, the one that
  begins right after ``t``; two of one start are one window;
- a record is added to each window that holds it and is open: stream time has not passed its end by
  more than the grace period. It emits the windows that are there, and those that it makes be there.

The windows that a record is added to are a range of its key's windows. A batch may have as many
pairs of a record and a window as the square of its records, so what it makes of each window is read
off the ranges; the pairs are made some at a time.

Source: Kafka Streams join design, "Windowed Aggregate"; spec/windowed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dovetail.aggregates.scans import lowest_over
from dovetail.arrays.search import bisect, expand, least, pieces
from dovetail.arrays.timeline import NO_TIME, STORED, Ints, Mask

_PAIRS_MAX = 1 << 18
_NEVER = int(np.iinfo(np.int64).max)


@dataclass(frozen=True)
class Records:
    """n records, stored ones and the batch's, by (group, time): int64[n] each.

    ``arrival``: ``STORED`` for a stored one; ``number``: their order for good; ``closing_us``: what
    ends before this was closed when the record came, ``NO_TIME`` for a stored one.
    """

    group: Ints
    time_us: Ints
    arrival: Ints
    number: Ints
    closing_us: Ints

    @cached_property
    def bounds(self) -> Ints:
        """Where each group's records begin, and the end."""
        return np.searchsorted(self.group, np.arange(int(self.group.max(initial=-1)) + 2))

    def within(self, group: Ints, start_us: Ints, size_us: int) -> tuple[Ints, Ints]:
        """The records in each of these windows: from the first up to an exclusive end."""
        first, end = self.bounds[group], self.bounds[group + 1]
        low = bisect(self.time_us, first, end, start_us, right=False)
        return low, bisect(self.time_us, low, end, start_us + size_us, right=True)


@dataclass(frozen=True)
class Updates:
    """Some of the pairs, by (window, order of the records): a ``record`` is added to a ``window``.
    ``emitted``: those after which the window is emitted, in that order; ``moment``: for which
    arrival.
    """

    window: Ints
    record: Ints
    emitted: Ints
    moment: Ints


@dataclass(frozen=True)
class Windows:
    """The w windows that a batch changes, and the records that are added to each: of windows that
    were there before the batch's alone, of others all.

    ``group``, ``start_us``; ``since``: the arrival that makes the window be there, ``STORED`` where
    it was there before: int64[w]. ``apart``: bool[w], whether the record that makes a window be
    there is not in it. ``record``, ``first``, ``end``: int64[m], the record is added to the windows
    from the first up to an exclusive end.
    """

    records: Records
    size_us: int
    group: Ints
    start_us: Ints
    since: Ints
    apart: Mask
    record: Ints
    first: Ints
    end: Ints

    def __len__(self) -> int:
        return len(self.start_us)

    @property
    def count(self) -> Ints:
        """How many records are added to each."""
        return _coverings(self.first, self.end, len(self))

    @property
    def latest_us(self) -> Ints:
        """The largest time of these."""
        time_us = self.records.time_us[self.record]
        return -lowest_over(self.first, self.end, -time_us, len(self), _NEVER)

    @property
    def moment(self) -> Ints:
        """The arrival for which each is emitted last."""
        arrival = self.records.arrival[self.record]
        latest = -lowest_over(self.first, self.end, -arrival, len(self), _NEVER)
        return np.maximum(latest, self.since)

    def members(self, window: Ints) -> tuple[Ints, Ints]:
        """The records that are added to these windows: (window, record), by window and order."""
        records, since = self.records, self.since[window]
        low, high = records.within(self.group[window], self.start_us[window], self.size_us)
        fresh = np.flatnonzero(records.arrival != STORED)
        known = since == STORED
        begin, stop = np.searchsorted(fresh, low), np.searchsorted(fresh, high)
        old, place = expand(np.where(known, begin, 0), np.where(known, stop, 0))
        new, record = expand(np.where(known, 0, low), np.where(known, 0, high))
        window, record = window[np.append(old, new)], np.append(fresh[place], record)
        open_ = self.start_us[window] + self.size_us >= records.closing_us[record]
        return self._arranged(window[open_], record[open_])

    @property
    def pairs_max(self) -> int:
        """How many pairs are made at a time: no fewer than there are windows, whose accumulators
        are carried from one time to the next.
        """
        return max(_PAIRS_MAX, 4 * len(self))

    def cuts(self) -> list[tuple[int, int]]:
        """The arrivals in ranges with up to ``pairs_max`` pairs each, or of one arrival."""
        records = self.records
        made = np.flatnonzero(self.since != STORED)
        low, high = records.within(self.group[made], self.start_us[made], self.size_us)
        arrival = records.arrival[self.record]
        came = arrival != STORED
        count = np.zeros(int(records.arrival.max(initial=-1)) + 1, np.int64)
        np.add.at(count, arrival[came], (self.end - self.first)[came])
        np.add.at(count, self.since[made], high - low)
        return list(pieces(count, self.pairs_max))

    def updates(self, start: int, stop: int) -> Updates:
        """The pairs that arrivals from ``start`` up to an exclusive ``stop`` make: each record's
        with the windows that are there, and those of the windows that it makes be there with what
        came before.
        """
        arrival = self.records.arrival
        came = arrival[self.record]
        own = np.flatnonzero((came >= start) & (came < stop))
        which, window = expand(self.first[own], self.end[own])
        record = self.record[own][which]
        there = self.since[window] <= arrival[record]
        made = np.flatnonzero((self.since >= start) & (self.since < stop))
        fresh, before = self.members(made)
        silent = arrival[before] < self.since[fresh]
        window, record = self._arranged(
            np.append(window[there], fresh[silent]), np.append(record[there], before[silent])
        )
        emits = arrival[record] >= np.maximum(self.since[window], 0)
        # A window that is there because of a record that is not in it: its last record before that.
        apart = np.flatnonzero(~emits & self.apart[window])
        apart = apart[np.append(np.diff(window[apart]) != 0, True)[: len(apart)]]
        emitted = np.append(np.flatnonzero(emits), apart)
        moment = np.append(arrival[record[emits]], self.since[window[apart]])
        order = np.lexsort((self.start_us[window[emitted]], moment))
        return Updates(window, record, emitted[order], moment[order])

    def emitted(self, start: int, stop: int) -> int:
        """How many of these pairs are emitted."""
        came = self.records.arrival[self.record]
        own = np.flatnonzero((came >= start) & (came < stop))
        which, window = expand(self.first[own], self.end[own])
        there = np.count_nonzero(self.since[window] <= came[own][which])
        made = (self.since >= start) & (self.since < stop)
        return int(there) + int(np.count_nonzero(made & self.apart))

    def _arranged(self, window: Ints, record: Ints) -> tuple[Ints, Ints]:
        order = np.lexsort((self.records.number[record], window))
        return window[order], record[order]


def changed(records: Records, closing_us: Ints, size_us: int) -> Windows:
    """The windows that the batch's records change.

    ``closing_us``: int64[arrivals], what ends before this is closed when the record comes.
    """
    group, time_us, arrival = records.group, records.time_us, records.arrival
    first = np.ones(len(group), np.bool_)
    first[1:] = (group[1:] != group[:-1]) | (time_us[1:] != time_us[:-1])
    at = np.flatnonzero(first)
    own = np.minimum.reduceat(arrival, at) if len(at) else at
    owner, moment = group[at], time_us[at]
    low, high = records.within(owner, moment + 1, size_us)
    seen = least(arrival, low, high)
    holds = low < high
    owner = np.append(owner, owner[holds])
    start = np.append(moment - size_us, moment[holds] + 1)
    since = np.append(own, np.maximum(own, seen)[holds])
    order = np.lexsort((since, start, owner))
    owner, start, since = owner[order], start[order], since[order]
    kept = np.ones(len(order), np.bool_)
    kept[1:] = (owner[1:] != owner[:-1]) | (start[1:] != start[:-1])
    kept &= start + size_us >= np.append(closing_us, NO_TIME)[since]
    order = np.flatnonzero(kept)
    order = order[np.argsort(since[order] != STORED, kind="stable")]
    owner, start, since = owner[order], start[order], since[order]
    record, low, high = _ranges(records, owner, start, since, size_us)
    maker = np.zeros(len(closing_us) + 1, np.int64)
    maker[arrival] = time_us
    apart = (since != STORED) & ((maker[since] < start) | (maker[since] > start + size_us))
    came = arrival[record] != STORED
    updated = apart | (_coverings(low[came], high[came], len(start)) > 0)
    place = np.append(0, np.cumsum(updated))
    low, high = place[low], place[high]
    some = low < high
    return Windows(
        records,
        size_us,
        owner[updated],
        start[updated],
        since[updated],
        apart[updated],
        record[some],
        low[some],
        high[some],
    )


def _ranges(
    records: Records, group: Ints, start_us: Ints, since: Ints, size_us: int
) -> tuple[Ints, Ints, Ints]:
    """The windows that each record is added to: the record, the first window, an exclusive end.
    Windows that were there before come first, then others, each kind by (group, start).
    """
    groups = len(records.bounds) - 1
    kind = group + groups * (since != STORED)
    bounds = np.searchsorted(kind, np.arange(2 * groups + 1))
    fresh = np.flatnonzero(records.arrival != STORED)
    record = np.append(fresh, np.arange(len(records.group)))
    own = records.group[record]
    own[len(fresh) :] += groups
    time_us = records.time_us[record]
    least = np.maximum(time_us, records.closing_us[record]) - size_us
    first = bisect(start_us, bounds[own], bounds[own + 1], least, right=False)
    return record, first, bisect(start_us, first, bounds[own + 1], time_us, right=True)


def _coverings(first: Ints, end: Ints, places: int) -> Ints:
    """How many of the ranges cover each place."""
    begun, ended = (np.bincount(at, minlength=places + 1) for at in (first, end))
    return np.cumsum(begun - ended)[:places]
