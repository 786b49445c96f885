"""Vectorised searches over sorted and unsorted int64 columns."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


def bisect(values: Ints, first: Ints, end: Ints, sought: Ints, *, right: bool) -> Ints:
    """Where each ``sought`` belongs in its own sorted range ``values[first:end]``: after equal
    values (``right``) or before them.

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


def expand(first: Ints, end: Ints) -> tuple[Ints, Ints]:
    """All members of the ranges ``first[i]`` up to ``end[i]``: which range, and the member.

    >>> which, member = expand(np.array([5, 2, 7]), np.array([7, 2, 8]))
    >>> which.tolist(), member.tolist()
    ([0, 0, 2], [5, 6, 7])
    """
    count = np.maximum(end - first, 0)
    which = np.repeat(np.arange(len(count)), count)
    return which, np.arange(len(which)) - np.repeat(np.cumsum(count) - count - first, count)


def last_below(values: Ints, first: Ints, end: Ints, bound: Ints) -> Ints:
    """The last index of each range ``first[i]`` up to ``end[i]`` whose value is below ``bound[i]``,
    -1 where there is none. The values have no order.

    A tree of minima: as many steps as ``len(values)`` has bits.

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
    """As ``last_below``, the first index.

    >>> first_below(np.array([4, 1, 8, 6]), np.array([0, 2]), np.array([4, 4]), np.array([5, 7]))
    array([0, 3])
    """
    n = len(values)
    found = last_below(values[::-1], n - end, n - first, bound)
    return np.where(found < 0, -1, n - 1 - found)


def least(values: Ints, low: Ints, high: Ints) -> Ints:
    """The least value in each range ``low[i]`` up to ``high[i]``, a large one where it is empty: by
    two overlapping ranges whose length is a power of two.
    """
    levels = [values]
    while 2 ** len(levels) <= len(values):
        half = 2 ** (len(levels) - 1)
        levels.append(np.minimum(levels[-1][:-half], levels[-1][half:]))
    least = np.full(len(low), np.iinfo(np.int64).max)
    length = high - low
    for number, level in enumerate(levels):
        own = np.flatnonzero((length >= 2**number) & (length < 2 ** (number + 1)))
        if len(own):
            least[own] = np.minimum(level[low[own]], level[high[own] - 2**number])
    return least


def pieces(count: Ints, limit: int) -> Iterator[tuple[int, int]]:
    """Ranges of places whose counts add up to ``limit`` at most, of one place where that has more.

    >>> list(pieces(np.array([3, 1, 9, 2, 2]), 4))
    [(0, 2), (2, 3), (3, 5)]
    """
    total = np.append(0, np.cumsum(count))
    start = 0
    while start < len(count):
        stop = int(np.searchsorted(total, total[start] + limit, side="right")) - 1
        yield start, max(stop, start + 1)
        start = max(stop, start + 1)
