"""Deduplication of a stream: the records that are emitted.

A key's records are taken in the order of arrival. A record is dropped if its time is no further
than ``within`` from that of an emitted record. So emitted records lie further apart than
``within``, and each dropped record lies near one that arrived before it.
"""

from __future__ import annotations

import numpy as np

from dovetail.arrays.grouping import start_mask
from dovetail.arrays.search import bisect
from dovetail.arrays.timeline import Ints, Mask


def find_near(group: Ints, time_us: Ints, to_group: Ints, to_us: Ints, within_us: int) -> Mask:
    """Return a mask of the records with another one of their group at most ``within_us`` before or
    after, inclusive: bool[n].

    ``group``, ``time_us``: int64[n], the records. ``to_group``, ``to_us``: int64[m], the group and
    the time of the others, in any order.

    >>> group, time_us = np.array([0, 0, 1]), np.array([5, 9, 5])
    >>> find_near(group, time_us, np.array([0]), np.array([3]), 2).tolist()
    [True, False, False]
    """
    order = np.lexsort((to_us, to_group))
    to_group, to_us = to_group[order], to_us[order]
    first, end = (np.searchsorted(to_group, group, side=side) for side in ("left", "right"))
    low = bisect(to_us, first, end, time_us - within_us, right=False)
    candidate = np.flatnonzero(low < end)
    is_near = np.zeros(len(group), np.bool_)
    is_near[candidate] = to_us[low[candidate]] <= time_us[candidate] + within_us
    return is_near


def find_first_records(group: Ints, time_us: Ints, within_us: int) -> Mask:
    """Return a mask of the records that are emitted, those more than ``within_us`` away from each
    emitted record of their group before them: bool[n].

    ``group``, ``time_us``: int64[n], records by (group, arrival). None is near a record emitted
    before this call.

    If a group's times never fall, its next emitted record is the first beyond ``within_us``. All
    these groups take log2(n) steps together. In other groups a step finds one record each, so they
    take as many steps as one group emits records.

    >>> find_first_records(np.array([0, 0, 0, 0]), np.array([1, 3, 4, 7]), 2).tolist()
    [True, False, True, True]
    >>> find_first_records(np.array([0, 0, 0, 1]), np.array([5, 8, 7, 1]), 2).tolist()
    [True, True, False, True]
    """
    is_emitted = np.zeros(len(group), np.bool_)
    falls = (group[1:] == group[:-1]) & (time_us[1:] < time_us[:-1])
    apart = np.isin(group, group[1:][falls])
    orderly = np.flatnonzero(~apart)
    is_emitted[orderly] = _find_emitted(group[orderly], time_us[orderly], within_us)
    pending = np.flatnonzero(apart)
    while len(pending):
        new = start_mask(group[pending])
        first = pending[new]
        is_emitted[first] = True
        distance = np.abs(time_us[pending] - time_us[first][np.cumsum(new) - 1])
        pending = pending[distance > within_us]
    return is_emitted


# ``after`` holds each record's next one if it were emitted, and doubles its stride every step.
# With ``within_us`` 2::
#
#     time            1   3   4   7   9
#     after, step 1   4   7   7   -   -    reached: 1, 4
#     after, step 2   7   -   -   -   -    reached: 1, 4, 7
#     emitted         yes     yes yes
def _find_emitted(group: Ints, time_us: Ints, within_us: int) -> Mask:
    """Return a mask of the records that are emitted, among records by (group, time): bool[n].

    Each group's first record is emitted, then each first one more than ``within_us`` later than the
    last emitted. ``group``: int64[n], non-decreasing. ``time_us``: int64[n], non-decreasing within
    a group.
    """
    count = len(group)
    reached = np.zeros(count + 1, np.bool_)
    if not count:
        return reached[:count]
    record = np.arange(count)
    end = np.searchsorted(group, group, side="right")
    following = bisect(time_us, record, end, time_us + within_us, right=True)
    after = np.append(np.where(following < end, following, count), count)
    reached[:count] = start_mask(group)
    reached_count = 0
    while reached_count < (reached_count := int(np.count_nonzero(reached[:count]))):
        reached[after[np.flatnonzero(reached)]] = True
        after = after[after]
    return reached[:count]
