"""Sliding windows: the windows that a key's records make and change.

All windows have one ``size``, both ends included. The law, for the records of one key:

- A record at ``t`` makes the window that ends at ``t``. It also makes the window that begins right
  after ``t``, once another record lies in it. Two windows with one start are one window.
- A record is added to each open window that holds it. A window is open until stream time, the
  largest timestamp so far, has passed its end by more than the *grace period*.
- A record emits the existing windows that it is added to, and the windows that it brings into
  existence.

Size 10; the record at 15 arrives before the one at 10:

| window   | exists since | records | emitted by                                  |
|----------|--------------|---------|---------------------------------------------|
| [0, 10]  | 10 arrives   | 10      | 10                                          |
| [5, 15]  | 15 arrives   | 10, 15  | 15, then 10                                 |
| [11, 21] | 10 arrives   | 15      | 10, though it is not in the window: *apart* |

A record's windows are a range of its key's windows. The pairs of record and window may be as many
as the square of the records. So per-window facts are computed from the ranges, and pairs are made
in portions.

Source: Kafka Streams join design, "Windowed Aggregate"; spec/windowed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dovetail.aggregates.running_aggregates import lowest_over
from dovetail.arrays.grouping import start_mask
from dovetail.arrays.search import bisect, cut_by_count, expand_ranges, least_in_ranges
from dovetail.arrays.timeline import NO_TIME, STORED, Ints, Mask

_PAIRS_MAX = 1 << 18
_NEVER = int(np.iinfo(np.int64).max)


@dataclass(frozen=True)
class SlidingRecords:
    """The n records, stored ones and the batch's, by (group, time, ``number``): int64[n] each."""

    group: Ints
    """The index of each record's key."""
    time_us: Ints
    """The event time of each record."""
    arrival: Ints
    """The order of processing in the batch, ``STORED`` for a stored record."""
    number: Ints
    """The order of all records, across batches."""
    closing_us: Ints
    """Windows that end before this were closed when the record arrived; ``NO_TIME`` for a stored
    one.
    """

    @cached_property
    def group_bounds(self) -> Ints:
        """The index of the first record of each group, then the count of records: int64[groups +
        1].
        """
        return np.searchsorted(self.group, np.arange(int(self.group.max(initial=-1)) + 2))

    def records_in_windows(self, group: Ints, start_us: Ints, size_us: int) -> tuple[Ints, Ints]:
        """Return the records in each window as a range of indices: (first, exclusive end),
        int64[windows] each. A range may be empty.

        ``group``: int64[windows], the index of each window's key. ``start_us``: int64[windows]. A
        window lasts from ``start_us`` to ``start_us + size_us``, both inclusive.
        """
        first, end = self.group_bounds[group], self.group_bounds[group + 1]
        low = bisect(self.time_us, first, end, start_us, right=False)
        return low, bisect(self.time_us, low, end, start_us + size_us, right=True)


@dataclass(frozen=True)
class WindowUpdates:
    """Some of the pairs of a record and a window that it is added to, by (window, order of the
    records).
    """

    window: Ints
    """The index of each pair's window in ``ChangedWindows``."""
    record: Ints
    """The index of each pair's record in ``SlidingRecords``."""
    emitted: Ints
    """The pairs after which the window is emitted, in the order of emission."""
    moment: Ints
    """The arrival that causes each emission."""


@dataclass(frozen=True)
class ChangedWindows:
    """The w windows that a batch changes, and the records that are added to each. A window that
    existed before the batch gets the batch's records; a new one gets all.
    """

    records: SlidingRecords
    size_us: int
    """The length of all windows."""
    group: Ints
    """int64[w]: the index of each window's key."""
    start_us: Ints
    """int64[w]: the first time in each window, inclusive."""
    since: Ints
    """int64[w]: the arrival that brings the window into existence, ``STORED`` for an earlier
    batch.
    """
    apart: Mask
    """bool[w]: the record that brings the window into existence is not in it."""
    record: Ints
    """int64[m]: a record that is added to the windows from ``first`` to ``end``."""
    first: Ints
    """int64[m]: the first of these windows."""
    end: Ints
    """int64[m]: the exclusive end of these windows."""

    def __len__(self) -> int:
        """Return the count of changed windows."""
        return len(self.start_us)

    @property
    def count(self) -> Ints:
        """The count of records that the batch adds to each window: int64[w]. For a new window,
        stored records count, too.
        """
        return _count_coverings(self.first, self.end, len(self))

    @property
    def latest_us(self) -> Ints:
        """The largest time in microseconds of the records that the batch adds to each window:
        int64[w]. For a new window, stored records count, too.
        """
        time_us = self.records.time_us[self.record]
        return -lowest_over(self.first, self.end, -time_us, len(self), _NEVER)

    @property
    def moment(self) -> Ints:
        """The arrival (index in the order of processing) at which each window is emitted last:
        int64[w].
        """
        arrival = self.records.arrival[self.record]
        latest = -lowest_over(self.first, self.end, -arrival, len(self), _NEVER)
        return np.maximum(latest, self.since)

    def members(self, window: Ints) -> tuple[Ints, Ints]:
        """Return all pairs of a window and a record that is added to it: the window's index, and
        the record's index in ``records``, int64[pairs] each. Pairs lie by window, then by the
        records' ``number``.

        ``window``: int64, indices of windows. A window of an earlier batch gets only the batch's
        records, a new window stored ones, too. A record for which the window was closed when it
        arrived is left out.
        """
        records, since = self.records, self.since[window]
        low, high = records.records_in_windows(
            self.group[window], self.start_us[window], self.size_us
        )
        fresh = np.flatnonzero(records.arrival != STORED)
        is_stored = since == STORED
        begin, stop = np.searchsorted(fresh, low), np.searchsorted(fresh, high)
        old, fresh_index = expand_ranges(
            np.where(is_stored, begin, 0), np.where(is_stored, stop, 0)
        )
        new, record = expand_ranges(np.where(is_stored, 0, low), np.where(is_stored, 0, high))
        window, record = window[np.append(old, new)], np.append(fresh[fresh_index], record)
        open_ = self.start_us[window] + self.size_us >= records.closing_us[record]
        return self._order_pairs(window[open_], record[open_])

    @property
    def pairs_max(self) -> int:
        """The most pairs of a record and a window that are made at a time: 2**18, or four times the
        count of windows if that is more. Accumulators of all windows are carried from one portion
        to the next.
        """
        return max(_PAIRS_MAX, 4 * len(self))

    def cut_arrivals(self) -> list[tuple[int, int]]:
        """Cut all arrivals (indices in the order of processing) into consecutive ranges that make
        at most ``pairs_max`` pairs each. Return the (start, exclusive stop) of each. An arrival
        with more is a range of its own. Without arrivals the list is empty.
        """
        records = self.records
        new_window = np.flatnonzero(self.since != STORED)
        low, high = records.records_in_windows(
            self.group[new_window], self.start_us[new_window], self.size_us
        )
        arrival = records.arrival[self.record]
        is_fresh = arrival != STORED
        count = np.zeros(int(records.arrival.max(initial=-1)) + 1, np.int64)
        np.add.at(count, arrival[is_fresh], (self.end - self.first)[is_fresh])
        np.add.at(count, self.since[new_window], high - low)
        return list(cut_by_count(count, self.pairs_max))

    def updates_by(self, start: int, stop: int) -> WindowUpdates:
        """Return the pairs of a record and a window that the arrivals from ``start`` to the
        exclusive ``stop`` make. They lie by window and the records' ``number``. ``emitted`` has the
        pairs after which a window is emitted, ``moment`` the arrival that causes each emission. An
        arrival is an index in the order of processing.

        An arriving record pairs with the existing windows that hold it, and each such pair is
        emitted. A window that the record brings into existence pairs with that record, which is
        emitted, and with all earlier ones in it, which are not.

        A record may also bring a window into existence that does not hold it (``apart``). The pairs
        of that window come with this record's arrival, too. The last of them is emitted.
        """
        arrival = self.records.arrival
        record_arrival = arrival[self.record]
        record_index = np.flatnonzero((record_arrival >= start) & (record_arrival < stop))
        which, window = expand_ranges(self.first[record_index], self.end[record_index])
        record = self.record[record_index][which]
        there = self.since[window] <= arrival[record]
        new_window = np.flatnonzero((self.since >= start) & (self.since < stop))
        fresh, before = self.members(new_window)
        silent = arrival[before] < self.since[fresh]
        window, record = self._order_pairs(
            np.append(window[there], fresh[silent]), np.append(record[there], before[silent])
        )
        emits = arrival[record] >= np.maximum(self.since[window], 0)
        # An apart window is emitted after its last record before the one that makes it exist.
        apart = np.flatnonzero(~emits & self.apart[window])
        apart = apart[np.append(np.diff(window[apart]) != 0, True)[: len(apart)]]
        emitted = np.append(np.flatnonzero(emits), apart)
        moment = np.append(arrival[record[emits]], self.since[window[apart]])
        order = np.lexsort((self.start_us[window[emitted]], moment))
        return WindowUpdates(window, record, emitted[order], moment[order])

    def count_results(self, start: int, stop: int) -> int:
        """Return the count of results that ``updates_by(start, stop)`` would emit, without making
        the pairs. ``start``, ``stop``: indices in the order of arrival; ``stop`` is exclusive.
        """
        record_arrival = self.records.arrival[self.record]
        record_index = np.flatnonzero((record_arrival >= start) & (record_arrival < stop))
        which, window = expand_ranges(self.first[record_index], self.end[record_index])
        there = np.count_nonzero(self.since[window] <= record_arrival[record_index][which])
        is_new = (self.since >= start) & (self.since < stop)
        return int(there) + int(np.count_nonzero(is_new & self.apart))

    def _order_pairs(self, window: Ints, record: Ints) -> tuple[Ints, Ints]:
        """Return the pairs of a window and a record ordered by window, then by the records'
        ``number``: int64[pairs] each. ``window``, ``record``: int64[pairs], the indices of each
        pair, in any order.
        """
        order = np.lexsort((self.records.number[record], window))
        return window[order], record[order]


# Size 10, one key, all windows open. The record at 2 is stored; those at 15, 10 and 30 arrive as 0,
# 1 and 2. A record at t makes a window that ends at t and, once another record lies in it, the
# window that begins right after t:
#
# | window   | made by        | since  | records | apart | emitted at arrival |
# |----------|----------------|--------|---------|-------|--------------------|
# | [-8, 2]  | 2              | STORED | 2       |       | not changed        |
# | [0, 10]  | 10             | 1      | 2, 10   |       | 1                  |
# | [3, 13]  | right after 2  | 1      | 10      |       | 1                  |
# | [5, 15]  | 15             | 0      | 10, 15  |       | 0 and 1            |
# | [11, 21] | right after 10 | 1      | 15      | yes   | 1                  |
# | [20, 30] | 30             | 2      | 30      |       | 2                  |
#
# [16, 26], right after 15, holds no record, so it does not exist.
def find_changed_windows(records: SlidingRecords, closing_us: Ints, size_us: int) -> ChangedWindows:
    """Return the windows of length ``size_us`` that the batch's records change, with the records of
    each; none if all are closed. Windows of earlier batches come first, then new ones; each kind by
    (group, start).

    ``records``: stored ones and the batch's. ``closing_us``: int64[arrivals]. A window that ends
    before ``closing_us[a]`` is closed when the record with arrival a comes. Windows that already
    existed and get no record are left out.
    """
    group, time_us, arrival = records.group, records.time_us, records.arrival
    at = np.flatnonzero(start_mask(group, time_us))
    first_arrival = np.minimum.reduceat(arrival, at) if len(at) else at
    owner, moment = group[at], time_us[at]
    low, high = records.records_in_windows(owner, moment + 1, size_us)
    seen = least_in_ranges(arrival, low, high)
    holds = low < high
    owner = np.append(owner, owner[holds])
    start = np.append(moment - size_us, moment[holds] + 1)
    since = np.append(first_arrival, np.maximum(first_arrival, seen)[holds])
    order = np.lexsort((since, start, owner))
    owner, start, since = owner[order], start[order], since[order]
    selected = start_mask(owner, start)
    selected &= start + size_us >= np.append(closing_us, NO_TIME)[since]
    order = np.flatnonzero(selected)
    order = order[np.argsort(since[order] != STORED, kind="stable")]
    owner, start, since = owner[order], start[order], since[order]
    record, low, high = _window_ranges(records, owner, start, since, size_us)
    maker = np.zeros(len(closing_us) + 1, np.int64)
    maker[arrival] = time_us
    apart = (since != STORED) & ((maker[since] < start) | (maker[since] > start + size_us))
    is_fresh = arrival[record] != STORED
    updated = apart | (_count_coverings(low[is_fresh], high[is_fresh], len(start)) > 0)
    updated_before = np.append(0, np.cumsum(updated))
    low, high = updated_before[low], updated_before[high]
    some = low < high
    return ChangedWindows(
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


# The example of ``find_changed_windows``: window 0 is [-8, 2], from an earlier batch; 1 to 5 are
# new. The batch's records may be added to old windows, all records to new ones. No old window holds
# a new record:
#
# | record | old windows | new windows | these are               |
# |--------|-------------|-------------|-------------------------|
# | 2      |             | 1 to 2      | [0, 10]                 |
# | 10     | 1 to 1      | 1 to 4      | [0, 10] [3, 13] [5, 15] |
# | 15     | 1 to 1      | 3 to 5      | [5, 15] [11, 21]        |
# | 30     | 1 to 1      | 5 to 6      | [20, 30]                |
#
# Ends are exclusive. Windows of one size are ordered by their start and by their end alike, so
# those with a record are neighbours.
def _window_ranges(
    records: SlidingRecords, group: Ints, start_us: Ints, since: Ints, size_us: int
) -> tuple[Ints, Ints, Ints]:
    """Return for each record the windows that it is added to: (record, first window, exclusive
    end), int64[m] each, indices. A range may be empty.

    ``group``, ``start_us``, ``since``: int64[windows], the key, the start and the arrival that
    makes each window exist, ``STORED`` for earlier batches. ``size_us``: the length of all windows.

    A record of the batch comes twice: first all of them with windows of earlier batches, then all
    records with new windows. Windows lie in that order too, each kind by (group, start). A window
    that was closed for a record is not in its range.
    """
    groups = len(records.group_bounds) - 1
    kind = group + groups * (since != STORED)
    bounds = np.searchsorted(kind, np.arange(2 * groups + 1))
    fresh = np.flatnonzero(records.arrival != STORED)
    record = np.append(fresh, np.arange(len(records.group)))
    record_group = records.group[record]
    record_group[len(fresh) :] += groups
    time_us = records.time_us[record]
    least = np.maximum(time_us, records.closing_us[record]) - size_us
    first = bisect(start_us, bounds[record_group], bounds[record_group + 1], least, right=False)
    return record, first, bisect(start_us, first, bounds[record_group + 1], time_us, right=True)


def _count_coverings(first: Ints, end: Ints, places: int) -> Ints:
    """Return how many ranges cover each index from 0 to ``places`` - 1: int64[places]. Ranges are
    ``first[i]``, inclusive, to ``end[i]``, exclusive; both are at most ``places``.
    """
    begun, ended = (np.bincount(at, minlength=places + 1) for at in (first, end))
    return np.cumsum(begun - ended)[:places]
