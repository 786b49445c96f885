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
    """Return the sum of each group's summands up to each update, that update included: int64[n].

    ``summands``: int64[n]. ``initial``: int64[groups], added to each sum of the group. One
    cumulative sum over all groups may overflow; the differences that are returned do not.
    """
    total = np.zeros(len(summands) + 1, dtype=np.int64)
    np.cumsum(summands, out=total[1:])
    base = initial - total[updates.bounds[:-1]]
    return total[1:] + base[updates.group]


def final_sum(updates: GroupUpdates, summands: Ints, initial: Ints) -> Ints:
    """Return the sum of each group's summands and its ``initial``: int64[groups]. A group without
    updates has ``initial``.
    """
    total = np.zeros(len(summands) + 1, dtype=np.int64)
    np.cumsum(summands, out=total[1:])
    at_bounds = total[updates.bounds]
    return initial + at_bounds[1:] - at_bounds[:-1]


def any_so_far(updates: GroupUpdates, flags: Mask, initial: Mask) -> Mask:
    """Return for each update whether a flag was set in its group so far, that update included, or
    ``initial`` is: bool[n].

    ``flags``: bool[n], one per update. ``initial``: bool[groups], a flag of each group from before.
    """
    update = np.arange(len(flags))
    latest = np.maximum.accumulate(np.where(flags, update, -1)) if len(flags) else update
    return (latest >= updates.bounds[updates.group]) | initial[updates.group]


def segmented_scan(operation: np.ufunc, start: Ints, values: Ints) -> Ints:
    """Accumulate the binary ``operation`` within each segment: int64[n], the result up to each
    element.

    ``values``: int64[n]. ``start``: the first index of each segment, ascending from 0. Segments of
    up to 64 elements advance together, one element a step. Each longer one is accumulated by
    itself. So there are at most 64 steps and n/64 calls.

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
    """Return the smallest value of the ranges ``first[i]`` to ``end[i]`` that cover each place:
    int64[places]. A place without a range gets ``nothing``, which no value exceeds.

    Ends are exclusive, and an empty range covers no place. A range is covered by two overlapping
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
    """Find the first ``n`` ranges ``first[i]`` to ``end[i]`` that cover each place: pairs (place,
    i). Places are ascending, and i is ascending within a place. No range may be empty. ``n``: at
    least 1; a place with fewer ranges has fewer pairs.

    The places are the leaves of a tree, as in ``fold_over``: O(n log n) for each of the ``n``.

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
    """Return the accumulator of each place over the rows whose range ``first[i]`` to ``end[i]``
    covers it: ``places`` rows. The accumulator is null where no range covers the place. ``values``:
    the aggregate's columns, one row per range. ``kernel`` must commute, because rows are taken in
    any order. Raises ``AggregateError`` if the kernel fails.

    The places are the leaves of a tree. A row is added to the topmost nodes within its range, at
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
        updates = GroupUpdates(node, nodes, np.zeros(len(node), np.bool_))
        row_index = pa.array(row)
        state = kernel.fold(updates, state, [column.take(row_index) for column in values])
    return [column.slice(0, places) for column in state]


# A node of a level covers 2**level places. The range 1 to 7 of eight places has these::
#
#     level 2   .               .            none: neither 0-4 nor 4-8 lies within 1-7
#     level 1   .       2-4     4-6     .    two
#     level 0   . 1 . . . . 6 .              two
def _topmost_nodes(first: Ints, end: Ints, level: int) -> tuple[Ints, Ints]:
    """Find the nodes of a level that are topmost within the range ``first[i]`` to the exclusive
    ``end[i]``, at most two: (node, i), by node, then i.

    Node k of level l stands for the places from ``k * 2**l`` to before ``(k + 1) * 2**l``.
    """
    low, high = (first + (1 << level) - 1) >> level, end >> level
    left = np.flatnonzero((low < high) & (low % 2 == 1))
    right = np.flatnonzero((low < high) & (high % 2 == 1))
    node, row = np.append(low[left], high[right] - 1), np.append(left, right)
    order = np.lexsort((row, node))
    return node[order], row[order]


def merged_over(kernel: Aggregate, state: Columns, first: Ints, end: Ints) -> Columns:
    """Merge the rows of ``state`` from each ``first[i]`` to a larger, exclusive ``end[i]``, in
    order: one row per range. ``state``: accumulators of ``kernel``. Raises ``AggregateError`` if
    the kernel fails.

    A tree of accumulators gives at most two of a level for each range: O(n log n).
    """
    many = np.flatnonzero(end - first > 1)
    alone, first, end = _take_rows(state, first), first[many], end[many]
    left: Columns = null_accumulators(kernel.state, len(many))
    right: Columns = left
    while (first < end).any():
        at = np.flatnonzero((first < end) & (first % 2 == 1))
        left = replaced(left, at, kernel.merged(_take_rows(left, at), _take_rows(state, first[at])))
        at = np.flatnonzero((first < end) & (end % 2 == 1))
        right = replaced(
            right, at, kernel.merged(_take_rows(state, end[at] - 1), _take_rows(right, at))
        )
        first, end = (first + 1) >> 1, end >> 1
        even = np.arange(0, len(state[0]) - 1, 2)
        state = kernel.merged(_take_rows(state, even), _take_rows(state, even + 1))
    return replaced(alone, many, kernel.merged(left, right)) if len(many) else alone


def _take_rows(state: Columns, row: Ints) -> list[pa.Array]:
    """Return the accumulators of ``state`` at the indices ``row``, in that order."""
    index = pa.array(row)
    return [column.take(index) for column in state]


def replaced(state: Columns, row: Ints, replacements: Columns) -> Columns:
    """Return the accumulators ``state`` with those in the rows ``row`` replaced by the rows of
    ``replacements``, one for each. Rows in ``row`` are distinct. The given columns are not changed.
    """
    if len(row) == 0:
        return state
    index = np.arange(len(state[0]))
    index[row] = len(index) + np.arange(len(row))
    pairs = zip(state, replacements, strict=True)
    return _take_rows([pa.concat_arrays(columns) for columns in pairs], index)
