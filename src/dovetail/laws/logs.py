"""Rows of one key in several logs, such as the partitions of a topic that got more of them.

Within a log a later row replaces an earlier one, whatever their times are. Between logs time
decides, for nothing else orders them: a row counts as old as the latest row of its key that its log
has had by then, its *age*. So all rows of a key are in one order, by age, then log, then place, and
a row has no effect if one that is behind it in this order came before it.

It suffices to know of each key the age and the log of the row that is there. Of another log nothing
need be known: what it had of the key is before that row, so a row of it that is behind the row that
is there is also behind all that its own log had.
"""

from __future__ import annotations

import numpy as np

from dovetail.arrays.timeline import Ints, Mask
from dovetail.laws.arrival import running_clock


def replacing(group: Ints, log: Ints, place: Ints, time_us: Ints) -> tuple[Mask, Ints, Ints]:
    """Which rows have an effect: bool[n]; each row's age: int64[n]; and of each group the row that
    is there in the end: int64[groups].

    ``group``: the key of each row, ascending from 0; within a group rows are in the order in which
    they came; ``log``, ``place``: where it lies. A row that was there before is the first of its
    group, with its age as its time and a place before all others of its log.

    Of partition 0 the old row comes late, and then a new one:

    >>> log, time = np.array([3, 0, 0]), np.array([101, 100, 102])
    >>> effect, _, last = replacing(np.zeros(3, int), log, np.array([0, 7, 8]), time)
    >>> effect.tolist(), last.tolist()
    ([True, False, True], [2])
    """
    by_log = np.lexsort((place, log, group))
    begins = np.diff(group[by_log]) != 0
    begins |= np.diff(log[by_log]) != 0
    segment = np.cumsum(np.append(0, begins))[: len(group)]
    age_us = np.empty(len(group), np.int64)
    age_us[by_log] = running_clock(segment, time_us[by_log])
    rank = np.empty(len(group), np.int64)
    rank[np.lexsort((place, log, age_us, group))] = np.arange(len(group))
    # Groups ascend, and so do the ranks of their rows.
    highest = np.maximum.accumulate(rank)
    ends = np.flatnonzero(np.append(np.diff(group) != 0, True)[: len(group)])
    row_of_rank = np.empty(len(group), np.int64)
    row_of_rank[rank] = np.arange(len(group))
    return rank == highest, age_us, row_of_rank[highest[ends]]
