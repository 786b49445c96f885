"""Sliding windows: which windows a key's records make, and what each record changes of them.

Windows of one ``size``, both ends included. The law, for the records of one key:

- a record at ``t`` makes the window that ends at ``t``, and, once another lies in it, the one that
  begins right after ``t``; two of one start are one window;
- a record is added to each window that holds it and is open: stream time has not passed its end by
  more than the grace period. It tells the windows that are there, and those that it makes be there.

Source: Kafka Streams join design, "Windowed Aggregate"; spec/windowed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dovetail.kernels.search import bisect, expand
from dovetail.kernels.timeline import Ints, Mask

STORED = -1
"""As an arrival: before the batch."""
_NEVER = int(np.iinfo(np.int64).max)


@dataclass(frozen=True)
class Windows:
    """The windows that a batch changes, and the records that are added to each.

    ``group``, ``start_us``; ``since``: the arrival that makes the window be there, ``STORED`` where
    it was there before: int64[w]. ``window``, ``record``: int64[m], a record that is added to a
    window: of those that were there the batch's alone, of others all. ``apart``: bool[w], whether
    the record that makes a window be there is not in it.
    """

    group: Ints
    start_us: Ints
    since: Ints
    apart: Mask
    window: Ints
    record: Ints


def changed(group: Ints, time_us: Ints, arrival: Ints, closing_us: Ints, size_us: int) -> Windows:
    """The windows of n records, stored ones and the batch's, by (group, time).

    ``arrival``: int64[n], ``STORED`` for a stored one; ``closing_us``: int64[arrivals], what ends
    before this is closed when the record comes.
    """
    groups = int(group.max(initial=-1)) + 1
    bounds = np.searchsorted(group, np.arange(groups + 1))
    first = np.ones(len(group), np.bool_)
    first[1:] = (group[1:] != group[:-1]) | (time_us[1:] != time_us[:-1])
    at = np.flatnonzero(first)
    own = np.minimum.reduceat(arrival, at) if len(at) else at
    owner, moment = group[at], time_us[at]
    low, high = _members(bounds, time_us, owner, moment + 1, size_us)
    seen = _least(arrival, low, high)
    holds = low < high
    windows = (
        np.append(owner, owner[holds]),
        np.append(moment - size_us, moment[holds] + 1),
        np.append(own, np.maximum(own, seen)[holds]),
    )
    order = np.lexsort((windows[2], windows[1], windows[0]))
    owner, start, since = (column[order] for column in windows)
    kept = np.ones(len(order), np.bool_)
    kept[1:] = (owner[1:] != owner[:-1]) | (start[1:] != start[:-1])
    end_closing = np.append(closing_us, np.iinfo(np.int64).min)
    kept &= start + size_us >= end_closing[since]
    owner, start, since = owner[kept], start[kept], since[kept]
    low, high = _members(bounds, time_us, owner, start, size_us)
    window, record = _added(arrival, low, high, since)
    taken = start[window] + size_us >= end_closing[arrival[record]]
    window, record = window[taken], record[taken]
    maker = np.full(len(closing_us) + 1, -1)
    maker[arrival] = np.arange(len(arrival))
    made = maker[since]
    apart = (since != STORED) & ((made < low) | (made >= high))
    touched = apart.copy()
    touched[window[arrival[record] != STORED]] = True
    place = np.cumsum(touched) - 1
    told = touched[window]
    return Windows(
        owner[touched],
        start[touched],
        since[touched],
        apart[touched],
        place[window[told]],
        record[told],
    )


def _members(
    bounds: Ints, time_us: Ints, group: Ints, start_us: Ints, size_us: int
) -> tuple[Ints, Ints]:
    """The records in each of these windows: from the first up to an exclusive end."""
    first, end = bounds[group], bounds[group + 1]
    low = bisect(time_us, first, end, start_us, right=False)
    return low, bisect(time_us, low, end, start_us + size_us, right=True)


def _added(arrival: Ints, low: Ints, high: Ints, since: Ints) -> tuple[Ints, Ints]:
    """The records that are added to each window: (window, record)."""
    fresh = np.flatnonzero(arrival != STORED)
    known = since == STORED
    begin, stop = np.searchsorted(fresh, low), np.searchsorted(fresh, high)
    old, place = expand(np.where(known, begin, 0), np.where(known, stop, 0))
    new, record = expand(np.where(known, 0, low), np.where(known, 0, high))
    return np.append(old, new), np.append(fresh[place], record)


def _least(values: Ints, low: Ints, high: Ints) -> Ints:
    """The least value in each range, a large one where it is empty: by two overlapping ranges whose
    length is a power of two.
    """
    levels = [values]
    while 2 ** len(levels) <= len(values):
        half = 2 ** (len(levels) - 1)
        levels.append(np.minimum(levels[-1][:-half], levels[-1][half:]))
    least = np.full(len(low), _NEVER)
    length = high - low
    for number, level in enumerate(levels):
        own = np.flatnonzero((length >= 2**number) & (length < 2 ** (number + 1)))
        if len(own):
            least[own] = np.minimum(level[low[own]], level[high[own] - 2**number])
    return least
