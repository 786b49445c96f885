"""Windows of time: the windows that hold a record, and their closing.

Fixed windows are ``[n * advance, n * advance + size)``. Kafka Streams has no window that begins
before the epoch. Here such windows exist, but hold only records before the epoch.

Source: Kafka Streams join design, "Windowed Aggregate"; spec/windowed.
"""

from __future__ import annotations

import numpy as np

from dovetail.arrays.search import expand_ranges
from dovetail.arrays.timeline import NO_TIME, Ints, Mask

_FAR = 1 << 62


def assign_windows(event_time_us: Ints, size_us: int, advance_us: int) -> tuple[Ints, Ints]:
    """Return the windows of n records as pairs of a record's index and a window's start: int64[m]
    each. Pairs lie by record, then by start.

    ``event_time_us``: int64[n]. Starts are the multiples of ``advance_us``; a window lasts from its
    start to ``size_us`` later, exclusive. A record from 0 on is in no window that starts before 0.
    If ``advance_us`` is larger than ``size_us``, a record may be in no window. All are in
    microseconds.

    >>> record, start = assign_windows(np.array([5, 13]), 10, 4)
    >>> record.tolist(), start.tolist()
    ([0, 0, 1, 1, 1], [0, 4, 4, 8, 12])
    """
    last = event_time_us // advance_us
    if size_us == advance_us:
        return np.arange(len(last)), last * advance_us
    first = (event_time_us - size_us) // advance_us + 1
    first = np.where(event_time_us >= 0, np.maximum(first, 0), first)
    record, window_index = expand_ranges(first, last + 1)
    return record, window_index * advance_us


def open_windows(end_us: Ints, clock_us: Ints, grace_us: int) -> Mask:
    """Return a mask of n windows, true for those that still take records: bool[n]. A window closes
    when stream time reaches ``end_us + grace_us``, so at that time it is closed.

    ``end_us``, ``clock_us``: int64[n], the exclusive end of each window, and the stream time at
    which it is asked for.
    """
    return end_us > clock_us - grace_us


def running_max(values: Ints, start: Ints, group: Ints, initial: Ints) -> Ints:
    """Return the largest value so far in each group, the value itself and ``initial`` included:
    int64[n].

    ``values``: int64[n]; ``NO_TIME`` among them stands for none. ``start``: the index of the first
    value of each group that has any. ``group``: int64[n], the index of each value's group,
    non-decreasing from 0. ``initial``: int64, one per element of ``start``. A group of only
    ``NO_TIME`` gives ``NO_TIME``.

    >>> group = np.array([0, 0, 1, 1])
    >>> running_max(np.array([5, 3, 1, 2]), np.array([0, 2]), group, np.array([4, 9])).tolist()
    [5, 5, 9, 9]
    """
    seeded = values.copy()
    seeded[start] = np.maximum(seeded[start], initial)
    known = seeded != NO_TIME
    low = int(seeded.min(where=known, initial=_FAR))
    span = int(seeded.max(where=known, initial=low)) - low + 2
    if span * (int(group[-1]) + 1 if len(group) else 0) < _FAR:
        # Each group has a range of its own, above those before it; 0 there is NO_TIME.
        base = group * span
        lifted = np.maximum.accumulate(base + np.where(known, seeded - low + 1, 0)) - base
        return np.where(lifted == 0, NO_TIME, lifted + (low - 1))
    distinct, rank = np.unique(seeded, return_inverse=True)
    lifted = np.maximum.accumulate(rank + group * len(distinct))
    highest: Ints = distinct[lifted - group * len(distinct)]
    return highest
