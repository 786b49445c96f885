"""Running sums, minima and maxima within segments of an array."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from dovetail.aggregates.aggregate import (
    Aggregate,
    Columns,
    GroupUpdates,
    Ints,
    Mask,
    null_accumulators,
)

_SHORT = 64
"""The length up to which segments are scanned together; each longer one is scanned by itself."""


def running_sum(updates: GroupUpdates, summands: Ints, initial: Ints) -> Ints:
    """Return the sum of a group's summands up to each update, that update included, plus the
    group's ``initial``: int64[n].

    ``updates``: the groups of n updates. ``summands``: int64[n], one per update. ``initial``:
    int64[groups]. The cumulative sum over all groups may overflow; the differences that are
    returned do not.
    """
    total = np.zeros(len(summands) + 1, dtype=np.int64)
    np.cumsum(summands, out=total[1:])
    base = initial - total[updates.bounds[:-1]]
    return total[1:] + base[updates.group]


def final_sum(updates: GroupUpdates, summands: Ints, initial: Ints) -> Ints:
    """Return the sum of all summands of each group plus its ``initial``: int64[groups]. A group
    without updates has ``initial``. ``updates``: the groups of n updates. ``summands``: int64[n],
    one per update. ``initial``: int64[groups].
    """
    total = np.zeros(len(summands) + 1, dtype=np.int64)
    np.cumsum(summands, out=total[1:])
    at_bounds = total[updates.bounds]
    return initial + at_bounds[1:] - at_bounds[:-1]


def any_so_far(updates: GroupUpdates, flags: Mask, initial: Mask) -> Mask:
    """Return for each update whether a flag has been set in its group up to that update, itself
    included: bool[n]. A flag in ``initial`` counts as set before all updates.

    ``updates``: the groups of n updates. ``flags``: bool[n], one per update. ``initial``:
    bool[groups].
    """
    update = np.arange(len(flags))
    latest = np.maximum.accumulate(np.where(flags, update, -1)) if len(flags) else update
    return (latest >= updates.bounds[updates.group]) | initial[updates.group]


def segmented_scan(operation: np.ufunc, start: Ints, values: Ints) -> Ints:
    """Accumulate the binary ``operation`` within each segment of ``values``: a new int64[n], the
    result up to each element, that element included.

    ``values``: int64[n]. ``start``: the index of the first element of each segment, ascending from
    0; a segment ends where the next begins. Segments of up to 64 elements advance together, one
    element a step. Each longer one is accumulated by itself. So there are at most 64 steps and n/64
    calls.

    >>> segmented_scan(np.maximum, np.array([0, 2]), np.array([2, 1, 3, 4])).tolist()
    [2, 2, 3, 4]
    """
    scanned: Ints = values.copy()
    length = np.diff(start, append=len(values))
    for segment in np.flatnonzero(length > _SHORT):
        in_segment = slice(start[segment], start[segment] + length[segment])
        operation.accumulate(values[in_segment], out=scanned[in_segment])
    by_length = np.flatnonzero(length <= _SHORT)
    by_length = by_length[np.argsort(-length[by_length], kind="stable")]
    first, length = start[by_length], length[by_length]
    for step in range(1, int(length[0]) if len(length) else 0):
        index = first[: np.searchsorted(-length, -step)] + step
        scanned[index] = operation(scanned[index - 1], scanned[index])
    return scanned


# Ranges 0 to 4 with value 7 and 2 to 3 with value 5, over five places; ``.`` is ``nothing``::
#
#     power 4   7 . . . .    the entry at i stands for the places i to i + 4
#     power 2   7 . 7 . .    handed to both halves
#     power 1   7 7 5 7 .    handed down again; the range 2 to 3 adds its 5
def lowest_over(first: Ints, end: Ints, values: Ints, places: int, nothing: int) -> Ints:
    """Return the smallest value among the ranges that cover each position from 0 to ``places - 1``:
    int64[places]. A position without a range gets ``nothing``, which must not be less than any
    value.

    Range i goes from ``first[i]`` to the exclusive ``end[i]``, within 0 to ``places``, and has the
    value ``values[i]``. An empty range covers no position. A range is covered by two overlapping
    ranges of the largest power of two that fits. Powers are visited from the longest down; each
    hands its values to its two halves: O(n log n).

    >>> lowest_over(np.array([0, 2]), np.array([4, 3]), np.array([7, 5]), 5, 9).tolist()
    [7, 7, 5, 7, 9]
    """
    level = np.frexp((end - first).astype(np.float64))[1] - 1
    by_level = np.argsort(level, kind="stable")
    cut = np.searchsorted(level[by_level], np.arange(int(level.max(initial=-1)) + 2))
    lowest = np.full(places, nothing, dtype=np.int64)
    for power in range(len(cut) - 2, -1, -1):
        range_index = by_level[cut[power] : cut[power + 1]]
        np.minimum.at(lowest, first[range_index], values[range_index])
        np.minimum.at(lowest, end[range_index] - (1 << power), values[range_index])
        half = (1 << power) >> 1
        if half:
            halved = lowest.copy()
            np.minimum(halved[half:], lowest[:-half], out=halved[half:])
            lowest = halved
    return lowest


def first_over(first: Ints, end: Ints, places: int, n: int) -> tuple[Ints, Ints]:
    """Find the ``n`` ranges of lowest index that cover each position from 0 to ``places - 1``: a
    pair of arrays (position, index of the range), by position, then index. A position that fewer
    ranges cover has fewer elements.

    Range i goes from ``first[i]`` to the exclusive ``end[i]``, within 0 to ``places``; an empty one
    covers no position. ``n``: at least 1. The positions are the leaves of a binary tree; each range
    stands at its topmost nodes: O(n log n) for each of the ``n``.

    >>> place, which = first_over(np.array([0, 2, 0]), np.array([4, 3, 4]), 4, 2)
    >>> place.tolist(), which.tolist()
    ([0, 0, 1, 1, 2, 2, 3, 3], [0, 2, 0, 2, 0, 1, 0, 2])
    """
    nothing = len(first)
    levels = int((end - first).max(initial=1)).bit_length()
    first_ranges = np.full(((places >> levels) + 1, n), nothing, dtype=np.int64)
    for level in reversed(range(levels)):
        first_ranges = first_ranges[np.arange((places >> level) + 1) >> 1]
        node, range_index = _topmost_nodes(first, end, level)
        ordinal = np.arange(len(node)) - np.searchsorted(node, node)
        node, range_index, ordinal = (
            column[ordinal < n] for column in (node, range_index, ordinal)
        )
        touched_node, row = np.unique(node, return_inverse=True)
        added = np.full((len(touched_node), n), nothing, dtype=np.int64)
        added[row, ordinal] = range_index
        first_ranges[touched_node] = np.sort(
            np.append(first_ranges[touched_node], added, axis=1), axis=1
        )[:, :n]
    place_index, slot = np.nonzero(first_ranges[:places] < nothing)
    return place_index, first_ranges[place_index, slot]


def fold_over(
    kernel: Aggregate, first: Ints, end: Ints, values: Columns, places: int
) -> list[pa.Array]:
    """Return the columns of the accumulators of the positions 0 to ``places - 1``, one row each. An
    accumulator is over the rows whose range covers the position; it is null if none does.

    Row i covers the positions from ``first[i]`` to before ``end[i]``, within 0 to ``places``; an
    empty range covers none. ``values``: the input columns of the aggregate ``kernel``, one row per
    range. Asserts that ``kernel.commutes``, because rows are taken in any order. Raises
    ``AggregateError`` if the kernel fails.

    The positions are the leaves of a tree. A row is added to the topmost nodes within its range, at
    most two a level. Each node hands its accumulator down, a level at a time: O(n log n).
    """
    assert kernel.commutes, "the order of the rows matters"
    levels = int((end - first).max(initial=1)).bit_length()
    state: Columns = null_accumulators(kernel.state, (places >> levels) + 1)
    for level in reversed(range(levels)):
        nodes = (places >> level) + 1
        parent = pa.array(np.arange(nodes) >> 1)
        state = [column.take(parent) for column in state]
        node, row = _topmost_nodes(first, end, level)
        updates = GroupUpdates.added(node, nodes)
        row_index = pa.array(row)
        state = kernel.fold(updates, state, [column.take(row_index) for column in values])
    return [column.slice(0, places) for column in state]


# A node of a level covers 2**level places. The range 1 to 7 of eight places has these::
#
#     level 2   .               .            none: neither 0-4 nor 4-8 lies within 1-7
#     level 1   .       2-4     4-6     .    two
#     level 0   . 1 . . . . 6 .              two
def _topmost_nodes(first: Ints, end: Ints, level: int) -> tuple[Ints, Ints]:
    """Find the nodes of the tree's ``level`` that are topmost within each range, at most two a
    range: two arrays (node, index of the range), by node, then index.

    Range i goes from position ``first[i]`` to the exclusive ``end[i]``. Node k of level l, both
    from 0, stands for the positions from ``k * 2**l`` to before ``(k + 1) * 2**l``.
    """
    low, high = (first + (1 << level) - 1) >> level, end >> level
    left = np.flatnonzero((low < high) & (low % 2 == 1))
    right = np.flatnonzero((low < high) & (high % 2 == 1))
    node, row = np.append(low[left], high[right] - 1), np.append(left, right)
    order = np.lexsort((row, node))
    return node[order], row[order]


def merged_over(kernel: Aggregate, state: Columns, first: Ints, end: Ints) -> Columns:
    """Merge the accumulators in the rows ``first[i]`` to ``end[i] - 1`` of ``state``, in order:
    columns with one row per range i. Each range has at least one row. ``state``: the columns of
    accumulators of ``kernel``. Raises ``AggregateError`` if the kernel fails.

    A tree of accumulators gives at most two of a level for each range: O(n log n).
    """
    many = np.flatnonzero(end - first > 1)
    alone, first, end = _take_rows(state, first), first[many], end[many]
    left: Columns = null_accumulators(kernel.state, len(many))
    right: Columns = left
    while (first < end).any():
        at = np.flatnonzero((first < end) & (first % 2 == 1))
        left = replace_rows(
            left, at, kernel.merged(_take_rows(left, at), _take_rows(state, first[at]))
        )
        at = np.flatnonzero((first < end) & (end % 2 == 1))
        right = replace_rows(
            right, at, kernel.merged(_take_rows(state, end[at] - 1), _take_rows(right, at))
        )
        first, end = (first + 1) >> 1, end >> 1
        even = np.arange(0, len(state[0]) - 1, 2)
        state = kernel.merged(_take_rows(state, even), _take_rows(state, even + 1))
    return replace_rows(alone, many, kernel.merged(left, right)) if len(many) else alone


def _take_rows(state: Columns, row: Ints) -> list[pa.Array]:
    """Return the columns of the accumulators in ``state`` at the row indices ``row``, in that
    order.
    """
    index = pa.array(row)
    return [column.take(index) for column in state]


def replace_rows(state: Columns, row: Ints, replacements: Columns) -> Columns:
    """Return the columns of accumulators ``state`` with row ``row[i]`` replaced by row i of
    ``replacements``, for each i. ``row``: int64, distinct indices. Without any, return ``state``
    itself. The given columns are not changed.
    """
    if len(row) == 0:
        return state
    index = np.arange(len(state[0]))
    index[row] = len(index) + np.arange(len(row))
    pairs = zip(state, replacements, strict=True)
    return _take_rows([pa.concat_arrays(columns) for columns in pairs], index)
