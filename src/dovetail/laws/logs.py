"""Rows of one key in several logs, for example after a topic has been given more partitions.

Within a log a later row replaces an earlier one, whatever their times are. Between logs only time
decides. A row's *age* is the time of the latest row of its key in its log so far. All rows of a key
are ordered by age, then log, then place. A row has no effect if a row that is later in this order
arrived before it.

The state needs only the age and the log of each key's present row. Other logs need not be known,
for their rows of the key precede the present row in this order. If a new row of such a log follows
the present row, it also follows its log's rows. So its age is its time.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from dovetail.arrays.timeline import Ints, Mask
from dovetail.laws.arrival import running_clock

REPLAY_LOG: Final = 2**31 - 1
"""The id of the log of replayed records, which no partition of a topic has. Its rows take effect as
they arrive, whatever the times of other logs are.
"""


def find_effective_rows(
    group: Ints, log: Ints, position: Ints, time_us: Ints
) -> tuple[Mask, Ints, Ints]:
    """Return three arrays: ``effect``, ``age`` and ``last``.

    - ``effect``: bool[n], true for rows that have an effect. A row has none if one of its group
      from another log arrived before it, and is later by age, then log, then position.
    - ``age``: int64[n], the largest time of the row's log in its group up to the row.
    - ``last``: int64[groups], the index of the row that each group has in the end.

    ``group``: int64[n], the key of each row, ascending from 0 without gaps; rows of a group lie in
    the order of arrival. ``log``, ``position``: int64[n], the log of each row and its position
    there. ``time_us``: int64[n], the row's time. A stored row is the first of its group, with its
    age as its time and a position before all others of its log.

    In this example an old row of log 0 comes late, and then a new one:

    >>> log, time = np.array([3, 0, 0]), np.array([101, 100, 102])
    >>> effect, _, last = find_effective_rows(np.zeros(3, int), log, np.array([0, 7, 8]), time)
    >>> effect.tolist(), last.tolist()
    ([True, False, True], [2])
    """
    by_log = np.lexsort((position, log, group))
    begins = np.diff(group[by_log]) != 0
    begins |= np.diff(log[by_log]) != 0
    segment = np.cumsum(np.append(0, begins))[: len(group)]
    age_us = np.empty(len(group), np.int64)
    age_us[by_log] = running_clock(segment, time_us[by_log])
    rank = np.empty(len(group), np.int64)
    rank[np.lexsort((position, log, age_us, group))] = np.arange(len(group))
    # Groups ascend, and so do the ranks of their rows.
    highest = np.maximum.accumulate(rank)
    ends = np.flatnonzero(np.append(np.diff(group) != 0, True)[: len(group)])
    row_of_rank = np.empty(len(group), np.int64)
    row_of_rank[rank] = np.arange(len(group))
    return rank == highest, age_us, row_of_rank[highest[ends]]
