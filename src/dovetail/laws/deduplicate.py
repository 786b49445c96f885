"""Which records of a stream come out, where those that repeat another do not.

Of a key's records, in the order of their arrival, one is left out if its time is no further than
``within`` from that of one that came out. So the times of those that come out lie further apart
than that, and each that is left out lies near one that arrived before it.
"""

from __future__ import annotations

import numpy as np

from dovetail.arrays.search import bisect
from dovetail.arrays.timeline import Ints, Mask


def near(group: Ints, time_us: Ints, to_group: Ints, to_us: Ints, within_us: int) -> Mask:
    """Which records have one of their group among others no further than ``within_us`` from them.

    >>> near(np.array([0, 0, 1]), np.array([5, 9, 5]), np.array([0]), np.array([3]), 2).tolist()
    [True, False, False]
    """
    order = np.lexsort((to_us, to_group))
    to_group, to_us = to_group[order], to_us[order]
    first, end = (np.searchsorted(to_group, group, side=side) for side in ("left", "right"))
    low = bisect(to_us, first, end, time_us - within_us, right=False)
    found = np.flatnonzero(low < end)
    made = np.zeros(len(group), np.bool_)
    made[found] = to_us[low[found]] <= time_us[found] + within_us
    return made


def first_of_each(group: Ints, time_us: Ints, within_us: int) -> Mask:
    """Which records come out, of some in the order of (group, arrival), none of which is near one
    that came out before.

    Where a group's times do not fall, the next that comes out is the first beyond ``within_us``:
    all of these are found in as many steps as their number has bits. Of other groups a step finds
    one, so they take as many as the most that come out of one.

    >>> first_of_each(np.array([0, 0, 0, 0]), np.array([1, 3, 4, 7]), 2).tolist()
    [True, False, True, True]
    >>> first_of_each(np.array([0, 0, 0, 1]), np.array([5, 8, 7, 1]), 2).tolist()
    [True, True, False, True]
    """
    made = np.zeros(len(group), np.bool_)
    falls = (group[1:] == group[:-1]) & (time_us[1:] < time_us[:-1])
    apart = np.isin(group, group[1:][falls])
    orderly = np.flatnonzero(~apart)
    made[orderly] = _chained(group[orderly], time_us[orderly], within_us)
    left = np.flatnonzero(apart)
    while len(left):
        new = np.append(True, group[left[1:]] != group[left[:-1]])
        first = left[new]
        made[first] = True
        distance = np.abs(time_us[left] - time_us[first][np.cumsum(new) - 1])
        left = left[distance > within_us]
    return made


def _chained(group: Ints, time_us: Ints, within_us: int) -> Mask:
    """As ``first_of_each``, where the times of no group fall."""
    count = len(group)
    reached = np.zeros(count + 1, np.bool_)
    if not count:
        return reached[:count]
    own = np.arange(count)
    end = np.searchsorted(group, group, side="right")
    following = bisect(time_us, own, end, time_us + within_us, right=True)
    after = np.append(np.where(following < end, following, count), count)
    reached[np.flatnonzero(np.append(True, group[1:] != group[:-1]))] = True
    known = 0
    while known < (known := int(np.count_nonzero(reached[:count]))):
        reached[after[np.flatnonzero(reached)]] = True
        after = after[after]
    return reached[:count]
