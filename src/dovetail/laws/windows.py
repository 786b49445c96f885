"""Windows of time: in which of them a record is, and when they close.

Fixed windows are ``[n * advance, n * advance + size)``. Kafka Streams has none that begins before
the epoch; here such ones hold only records that are themselves before it.

Source: Kafka Streams join design, "Windowed Aggregate"; spec/windowed.
"""

from __future__ import annotations

import numpy as np

from dovetail.arrays.search import expand
from dovetail.arrays.timeline import Ints, Mask


def assign(event_time_us: Ints, size_us: int, advance_us: int) -> tuple[Ints, Ints]:
    """The windows of n records, each record's in the order of time: (record, start), int64[m].

    >>> record, start = assign(np.array([5, 13]), 10, 4)
    >>> record.tolist(), start.tolist()
    ([0, 0, 1, 1, 1], [0, 4, 4, 8, 12])
    """
    last = event_time_us // advance_us
    first = (event_time_us - size_us) // advance_us + 1
    first = np.where(event_time_us >= 0, np.maximum(first, 0), first)
    record, number = expand(first, last + 1)
    return record, number * advance_us


def open_windows(end_us: Ints, clock_us: Ints, grace_us: int) -> Mask:
    """Whether windows still take records at these stream times."""
    return end_us > clock_us - grace_us


def running_max(values: Ints, start: Ints, group: Ints, initial: Ints) -> Ints:
    """The largest value so far in each group, ``initial`` included: int64[n].

    ``start``: where each group begins; ``group``: int64[n], non-decreasing; ``initial``: per group.

    >>> group = np.array([0, 0, 1, 1])
    >>> running_max(np.array([5, 3, 1, 2]), np.array([0, 2]), group, np.array([4, 9])).tolist()
    [5, 5, 9, 9]
    """
    seeded = values.copy()
    seeded[start] = np.maximum(seeded[start], initial)
    distinct, rank = np.unique(seeded, return_inverse=True)
    lifted = np.maximum.accumulate(rank + group * len(distinct))
    return distinct[lifted - group * len(distinct)]
