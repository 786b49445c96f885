"""Long lists in parts: the parts that a batch needs, and the cutting of lists.

The parts of a group's list, one after the other, are the list. A part holds at most ``PART_MAX``
values, usually about half of that or more. Parts from which values leave become shorter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from dovetail.aggregates.aggregate import Ints, Mask
from dovetail.arrays.search import bisect, expand_ranges

PART_MAX = 1024
"""The length up to which a list is not cut."""
_SPARSE = 16
"""The factor for sparse lists: parts are joined if they are on average shorter than ``PART_MAX`` by
it.
"""


@dataclass(frozen=True)
class PartLayout:
    """The p parts of some groups' long lists, by (group, place in the list). A part is a stretch of
    at most ``PART_MAX`` values; all parts of a group, in order, are its list.
    """

    group: Ints
    """int64[p]: the group of each part, non-decreasing."""
    size: Ints
    """int64[p]: the number of values in each part."""
    start: Ints
    """int64[groups + 1]: the first part of each group, and p."""

    @classmethod
    def from_parts(cls, group: Ints, size: Ints, groups: int) -> PartLayout:
        """Build the layout of p parts of lists, by group, then by their place in the list.
        ``group``: int64[p], the group of each part, from 0, non-decreasing. ``size``: int64[p], the
        count of values in each. ``groups``: the count of groups, some of which may have no parts.
        """
        return cls(group, size, np.searchsorted(group, np.arange(groups + 1)))

    @property
    def parts(self) -> Ints:
        """The count of parts into which each group's list is cut: int64[groups]."""
        return np.diff(self.start)

    def groups_updated_by_part(self, updates: Ints, taken: Ints) -> Mask:
        """Find the groups in which a batch updates so few values that it works on the parts of the
        list, not on the whole list: bool[groups].

        Their updates are fewer than their parts, and the parts stay at least ``PART_MAX / _SPARSE``
        (64) values long on average. This average counts the values that go, but not those that
        come. ``updates``: int64[groups], the count of rows that come or go in each group.
        ``taken``: int64[groups], the count of those that go. A group without parts is false.
        """
        rows = np.append(0, np.cumsum(self.size))
        total = rows[self.start[1:]] - rows[self.start[:-1]]
        few, dense = updates < self.parts, (total - taken) * _SPARSE >= self.parts * PART_MAX
        by_part: Mask = few & dense
        return by_part

    def part_of_values(self, first: Ints, group: Ints, value: Ints) -> Ints:
        """Return the index, among all p parts of lists, of the part to which each value belongs:
        int64[values]. Values of a list ascend from part to part.

        A value belongs to the last part of its group whose first value is not larger, or to the
        group's first part. ``first``: int64[p], the sort key of each part's first value. ``group``,
        ``value``: int64[values], the group and the sort key of each value. Each of these groups
        must have a part.
        """
        start = self.start[group]
        part = bisect(first, start, self.start[group + 1], value, right=True) - 1
        return np.maximum(part, start)

    def last_parts(self, group: Ints) -> Ints:
        """Return the index, among all p parts, of the last part of each group in ``group``: int64,
        one per element of ``group``. Each of these groups must have a part.
        """
        last: Ints = self.start[group + 1] - 1
        return last

    def parts_at_end(self, end: Literal["first", "last"], wanted: Ints) -> Mask:
        """Find the fewest parts at one end of each group's list that together hold at least
        ``wanted`` values, or all its parts: bool[p], true for each of these parts.

        ``end``: the end of the list. ``wanted``: int64[groups], a count of values; 0 finds no part.
        """
        rows = np.append(0, np.cumsum(self.size))
        if end == "first":
            between = rows[:-1] - rows[self.start[self.group]]
        else:
            between = rows[self.start[self.group + 1]] - rows[1:]
        needed: Mask = between < wanted[self.group]
        return needed


def is_long(size: Ints) -> Mask:
    """Find the lists that are cut into parts, those of more than ``PART_MAX`` (1024) elements:
    bool[n]. ``size``: int64[n], the length of each list.
    """
    long: Mask = size > PART_MAX
    return long


def cut_into_parts(size: Ints) -> tuple[Ints, Ints, Ints]:
    """Cut runs of consecutive values into parts: (index of the run, ordinal within the run from 0,
    size) of each part, int64[parts] each, run by run. ``size``: int64[runs], the count of values in
    each run, which is a list or a stretch of one.

    Sizes of one run's parts differ by at most one. A run of up to ``PART_MAX`` (1024) values is one
    part, even an empty one. A longer one has parts of at most half of that.

    >>> [column.tolist() for column in cut_into_parts(np.array([3, 2048 + 1]))]
    [[0, 1, 1, 1, 1, 1], [0, 0, 1, 2, 3, 4], [3, 409, 410, 410, 410, 410]]
    """
    parts = np.where(is_long(size), -(-size // (PART_MAX // 2)), 1)
    run, ordinal = expand_ranges(np.zeros(len(size), np.int64), parts)
    end = (ordinal + 1) * size[run] // parts[run]
    return run, ordinal, end - ordinal * size[run] // parts[run]
