"""Vectorised searches over sorted and unsorted int64 columns.

A range ``first[i]`` to ``end[i]`` includes its first index and excludes its end.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


def bisect(values: Ints, first: Ints, end: Ints, sought: Ints, *, right: bool) -> Ints:
    """Find the index at which to insert each ``sought[i]`` in its sorted range
    ``values[first[i]:end[i]]``: int64[n], an index into ``values`` from ``first[i]`` to ``end[i]``,
    both possible. It lies after equal values if ``right``, else before them. An empty range gives
    ``first[i]``.

    >>> values = np.array([1, 3, 5, 2, 4])
    >>> first, end = np.array([0, 3]), np.array([3, 5])
    >>> bisect(values, first, end, np.array([3, 9]), right=True).tolist()
    [2, 5]
    """
    low, high = first.copy(), end.copy()
    last = len(values) - 1
    while True:
        open_ = low < high
        if not open_.any():
            return low  # type: ignore[no-any-return]
        middle = (low + high) >> 1
        value = values[np.minimum(middle, last)]
        beyond = open_ & ((value <= sought) if right else (value < sought))
        high = np.where(open_ & ~beyond, middle, high)
        low = np.where(beyond, middle + 1, low)


def expand_ranges(first: Ints, end: Ints) -> tuple[Ints, Ints]:
    """List all members of the ranges ``first[i]`` to the exclusive ``end[i]``: two arrays (i,
    member), int64 each, range by range, members ascending. A range whose end is not above its first
    has no members.

    >>> which, member = expand_ranges(np.array([5, 2, 7]), np.array([7, 2, 8]))
    >>> which.tolist(), member.tolist()
    ([0, 0, 2], [5, 6, 7])
    """
    count = np.maximum(end - first, 0)
    which = np.repeat(np.arange(len(count)), count)
    return which, np.arange(len(which)) - np.repeat(np.cumsum(count) - count - first, count)


# A node of level l covers 2**l values and holds their least. The first loop climbs: it tries the
# nodes that end where the range does, from small to large, until one holds a value below the bound.
# The second descends from there, to the right child where that has such a value, else the left::
#
#     level 2   1                      range 0 to 4, bound 5:
#     level 1   1        6             climb to the root (1 < 5), go left (6 is not below 5),
#     level 0   4   1    8   6         then right (1 < 5): index 1
def last_below(values: Ints, first: Ints, end: Ints, bound: Ints) -> Ints:
    """Find the last index into ``values`` in each range whose value is below ``bound[i]``:
    int64[ranges], -1 if there is none or the range is empty. Range i goes from ``first[i]``,
    inclusive, to ``end[i]``, exclusive. The values have no order.

    The search uses a tree of minima and takes log2(len(values)) steps for all ranges together.

    >>> last_below(np.array([4, 1, 8, 6]), np.array([0, 2]), np.array([4, 4]), np.array([5, 5]))
    array([ 1, -1])
    """
    top = np.iinfo(np.int64).max
    levels = [values]
    while len(levels[-1]) > 1:
        padded = np.append(levels[-1], top) if len(levels[-1]) % 2 else levels[-1]
        levels.append(np.minimum(padded[0::2], padded[1::2]))
    position = end.copy()
    node, height = np.full(len(end), -1), np.full(len(end), -1)
    for level, minima in enumerate(levels):
        at = np.flatnonzero((node < 0) & (position % 2 == 1))
        at = at[minima[position[at] - 1] < bound[at]]
        node[at], height[at] = position[at] - 1, level
        position >>= 1
    for level in range(len(levels) - 1, 0, -1):
        at = np.flatnonzero(height >= level)
        minima = levels[level - 1]
        upper = 2 * node[at] + 1
        inside = upper < len(minima)
        inside[inside] = minima[upper[inside]] < bound[at][inside]
        node[at] = np.where(inside, upper, upper - 1)
    return np.where(node >= first, node, -1)


def first_below(values: Ints, first: Ints, end: Ints, bound: Ints) -> Ints:
    """Find the first index into ``values`` in each range whose value is below ``bound[i]``:
    int64[ranges], -1 if there is none or the range is empty. Range i goes from ``first[i]``,
    inclusive, to ``end[i]``, exclusive. The values have no order.

    >>> first_below(np.array([4, 1, 8, 6]), np.array([0, 2]), np.array([4, 4]), np.array([5, 7]))
    array([0, 3])
    """
    n = len(values)
    mirrored_index = last_below(values[::-1], n - end, n - first, bound)
    return np.where(mirrored_index < 0, -1, n - 1 - mirrored_index)


# Level l holds the least of every 2**l neighbours. A range of length 5 is the union of two
# overlapping ranges of length 4, so two entries of level 2 answer it::
#
#     values    4   1   8   6   7      range 0 to 5:
#     level 1   1   1   6   6          min(level 2 at 0, level 2 at 5 - 4)
#     level 2   1   1                  = min(1, 1)
def least_in_ranges(values: Ints, low: Ints, high: Ints) -> Ints:
    """Return the least of the ``values`` in each range, from index ``low[i]`` to the exclusive
    ``high[i]``: int64[ranges]. An empty range gives the largest int64. The values have no order.
    """
    levels = [values]
    while 2 ** len(levels) <= len(values):
        half = 2 ** (len(levels) - 1)
        levels.append(np.minimum(levels[-1][:-half], levels[-1][half:]))
    least = np.full(len(low), np.iinfo(np.int64).max)
    length = high - low
    for exponent, level in enumerate(levels):
        ranges = np.flatnonzero((length >= 2**exponent) & (length < 2 ** (exponent + 1)))
        if len(ranges):
            least[ranges] = np.minimum(level[low[ranges]], level[high[ranges] - 2**exponent])
    return least


def cut_by_count(count: Ints, limit: int) -> Iterator[tuple[int, int]]:
    """Cut the indices of ``count`` into consecutive ranges whose counts sum to at most ``limit``,
    each as long as it can be. Yield (first index, exclusive end) of each; nothing if ``count`` is
    empty. A single count above ``limit`` is a range of its own.

    ``count``: int64[n], none negative. ``limit``: from 0.

    >>> list(cut_by_count(np.array([3, 1, 9, 2, 2]), 4))
    [(0, 2), (2, 3), (3, 5)]
    """
    total = np.append(0, np.cumsum(count))
    start = 0
    while start < len(count):
        stop = int(np.searchsorted(total, total[start] + limit, side="right")) - 1
        yield start, max(stop, start + 1)
        start = max(stop, start + 1)
