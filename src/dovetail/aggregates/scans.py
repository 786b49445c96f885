"""Running sums, minima and maxima within segments of an array."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from dovetail.aggregates.aggregate import Aggregate, Columns, Ints, Mask, Updates, nulls

_SHORT = 64
"""Segments up to this length are scanned together, longer ones each for itself."""


def running_sum(updates: Updates, summands: Ints, initial: Ints) -> Ints:
    """The sum of each group's summands up to each update, over its ``initial``: int64[n].

    One cumulative sum over all: it may wrap round, the differences do not.
    """
    total = np.zeros(len(summands) + 1, dtype=np.int64)
    np.cumsum(summands, out=total[1:])
    base = initial - total[updates.bounds[:-1]]
    return total[1:] + base[updates.group]


def any_so_far(updates: Updates, flags: Mask, initial: Mask) -> Mask:
    """Whether a flag was set in the group up to each update, or ``initial`` is: bool[n]."""
    update = np.arange(len(flags))
    latest = np.maximum.accumulate(np.where(flags, update, -1)) if len(flags) else update
    return (latest >= updates.bounds[updates.group]) | initial[updates.group]


def scan(operation: np.ufunc, start: Ints, values: Ints) -> Ints:
    """``operation`` accumulated within each segment.

    ``start``: where segments begin, ascending, the first at 0. Segments of up to 64 elements
    advance together, one element a step, and each longer one is accumulated for itself. So there
    are at most 64 steps and n/64 calls.

    >>> scan(np.maximum, np.array([0, 2]), np.array([2, 1, 3, 4])).tolist()
    [2, 2, 3, 4]
    """
    scanned: Ints = values.copy()
    length = np.diff(start, append=len(values))
    for segment in np.flatnonzero(length > _SHORT):
        own = slice(start[segment], start[segment] + length[segment])
        operation.accumulate(values[own], out=scanned[own])
    by_length = np.flatnonzero(length <= _SHORT)
    by_length = by_length[np.argsort(-length[by_length], kind="stable")]
    first, length = start[by_length], length[by_length]
    for step in range(1, int(length[0]) if len(length) else 0):
        at = first[: np.searchsorted(-length, -step)] + step
        scanned[at] = operation(scanned[at - 1], scanned[at])
    return scanned


def lowest_over(first: Ints, end: Ints, values: Ints, places: int, nothing: int) -> Ints:
    """The smallest value of the ranges ``first[i]`` up to ``end[i]`` that cover each place, or
    ``nothing``, which no value exceeds: int64[places].

    A range is covered by two overlapping ones of the largest power of two that fits. The powers are
    gone through from the longest down, each handing what it has to the two halves: O(n log n).

    >>> lowest_over(np.array([0, 2]), np.array([4, 3]), np.array([7, 5]), 5, 9).tolist()
    [7, 7, 5, 7, 9]
    """
    level = np.frexp((end - first).astype(np.float64))[1] - 1
    by_level = np.argsort(level, kind="stable")
    cut = np.searchsorted(level[by_level], np.arange(int(level.max(initial=-1)) + 2))
    lowest = np.full(places, nothing, dtype=np.int64)
    for power in range(len(cut) - 2, -1, -1):
        at = by_level[cut[power] : cut[power + 1]]
        np.minimum.at(lowest, first[at], values[at])
        np.minimum.at(lowest, end[at] - (1 << power), values[at])
        half = (1 << power) >> 1
        if half:
            halved = lowest.copy()
            np.minimum(halved[half:], lowest[:-half], out=halved[half:])
            lowest = halved
    return lowest


def first_over(first: Ints, end: Ints, places: int, n: int) -> tuple[Ints, Ints]:
    """The first ``n`` of the ranges ``first[i]`` up to ``end[i]``, none empty, that cover each
    place, in pairs: the place, ascending, and i, ascending at each.

    The places are the leaves of a tree, as in ``fold_over``: O(n log n) for each of the ``n``.

    >>> place, which = first_over(np.array([0, 2, 0]), np.array([4, 3, 4]), 4, 2)
    >>> place.tolist(), which.tolist()
    ([0, 0, 1, 1, 2, 2, 3, 3], [0, 2, 0, 2, 0, 1, 0, 2])
    """
    nothing = len(first)
    levels = int((end - first).max(initial=1)).bit_length()
    found = np.full(((places >> levels) + 1, n), nothing, dtype=np.int64)
    for level in reversed(range(levels)):
        found = found[np.arange((places >> level) + 1) >> 1]
        node, own = _topmost(first, end, level)
        ordinal = np.arange(len(node)) - np.searchsorted(node, node)
        node, own, ordinal = (column[ordinal < n] for column in (node, own, ordinal))
        at, row = np.unique(node, return_inverse=True)
        added = np.full((len(at), n), nothing, dtype=np.int64)
        added[row, ordinal] = own
        found[at] = np.sort(np.append(found[at], added, axis=1), axis=1)[:, :n]
    place, slot = np.nonzero(found[:places] < nothing)
    return place, found[place, slot]


def fold_over(
    kernel: Aggregate, first: Ints, end: Ints, values: Columns, places: int
) -> list[pa.Array]:
    """The accumulators of the rows whose ranges ``first[i]`` up to ``end[i]`` cover each place, in
    whatever order: ``places`` rows. ``kernel`` must not mind (``commutes``).

    The places are the leaves of a tree. A row is added to the topmost nodes within its range, two a
    level at most, and each node hands what it has down: O(n log n), a level at a time.
    """
    assert kernel.commutes, "the order of the rows matters"
    levels = int((end - first).max(initial=1)).bit_length()
    state: Columns = nulls(kernel.state, (places >> levels) + 1)
    for level in reversed(range(levels)):
        nodes = (places >> level) + 1
        parent = pa.array(np.arange(nodes) >> 1)
        state = [column.take(parent) for column in state]
        node, row = _topmost(first, end, level)
        updates = Updates(node, nodes, np.zeros(len(node), np.bool_))
        own = pa.array(row)
        state = kernel.fold(updates, state, [column.take(own) for column in values])
    return [column.slice(0, places) for column in state]


def _topmost(first: Ints, end: Ints, level: int) -> tuple[Ints, Ints]:
    """The nodes of a level that are topmost ones within the range ``first[i]`` up to ``end[i]``,
    two at most: the node, ascending, and i.
    """
    low, high = (first + (1 << level) - 1) >> level, end >> level
    left = np.flatnonzero((low < high) & (low % 2 == 1))
    right = np.flatnonzero((low < high) & (high % 2 == 1))
    node, row = np.append(low[left], high[right] - 1), np.append(left, right)
    order = np.lexsort((row, node))
    return node[order], row[order]


def merged_over(kernel: Aggregate, state: Columns, first: Ints, end: Ints) -> Columns:
    """The accumulators from each ``first[i]`` up to a larger ``end[i]`` merged, in order.

    A tree of accumulators, two of a level at most for each range: O(n log n).
    """
    many = np.flatnonzero(end - first > 1)
    alone, first, end = _rows(state, first), first[many], end[many]
    left: Columns = nulls(kernel.state, len(many))
    right: Columns = left
    while (first < end).any():
        at = np.flatnonzero((first < end) & (first % 2 == 1))
        left = replaced(left, at, kernel.merged(_rows(left, at), _rows(state, first[at])))
        at = np.flatnonzero((first < end) & (end % 2 == 1))
        right = replaced(right, at, kernel.merged(_rows(state, end[at] - 1), _rows(right, at)))
        first, end = (first + 1) >> 1, end >> 1
        even = np.arange(0, len(state[0]) - 1, 2)
        state = kernel.merged(_rows(state, even), _rows(state, even + 1))
    return replaced(alone, many, kernel.merged(left, right)) if len(many) else alone


def _rows(state: Columns, row: Ints) -> list[pa.Array]:
    index = pa.array(row)
    return [column.take(index) for column in state]


def replaced(state: Columns, at: Ints, others: Columns) -> Columns:
    """Accumulators with others in the place of some."""
    if len(at) == 0:
        return state
    index = np.arange(len(state[0]))
    index[at] = len(index) + np.arange(len(at))
    both = zip(state, others, strict=True)
    return _rows([pa.concat_arrays(columns) for columns in both], index)
