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
    """The p parts of some groups' lists, by (group, place in the list)."""

    group: Ints
    """int64[p]: the group of each part, non-decreasing."""
    size: Ints
    """int64[p]: the number of values in each part."""
    start: Ints
    """int64[groups + 1]: the first part of each group, and p."""

    @classmethod
    def of(cls, group: Ints, size: Ints, groups: int) -> PartLayout:
        """Build the layout of parts that lie by group, then by place in the list. ``group``:
        int64[parts], non-decreasing. ``size``: int64[parts], the number of elements. ``groups``:
        the number of groups.
        """
        return cls(group, size, np.searchsorted(group, np.arange(groups + 1)))

    @property
    def parts(self) -> Ints:
        """The number of parts of each group: int64[groups]."""
        return np.diff(self.start)

    def apart(self, updates: Ints, taken: Ints) -> Mask:
        """Find the groups in which a batch updates so few values that it works on their parts:
        bool[groups]. Their updates are fewer than their parts, and the parts stay at least
        ``PART_MAX / _SPARSE`` values long on average.

        ``updates``: int64[groups], the rows that come or go. ``taken``: int64[groups], the rows
        that go. A group without parts is never apart.
        """
        rows = np.append(0, np.cumsum(self.size))
        total = rows[self.start[1:]] - rows[self.start[:-1]]
        few, dense = updates < self.parts, (total - taken) * _SPARSE >= self.parts * PART_MAX
        apart: Mask = few & dense
        return apart

    def homes(self, first: Ints, group: Ints, value: Ints) -> Ints:
        """Return the index of the part to which each value belongs: int64[values]. Values of a list
        ascend from part to part.

        A value belongs to the last part of its group that begins with no larger value, or to the
        group's first part. ``first``: int64[parts], the value with which each part begins, as a key
        that compares like it. ``group``, ``value``: int64[values], the group and the key of each
        value. Each group must have a part.
        """
        start = self.start[group]
        home = bisect(first, start, self.start[group + 1], value, right=True) - 1
        return np.maximum(home, start)

    def last(self, group: Ints) -> Ints:
        """Return the index of the last part of each of the groups ``group``: int64, one per group.
        Each must have a part.
        """
        last: Ints = self.start[group + 1] - 1
        return last

    def at_end(self, end: Literal["first", "last"], wanted: Ints) -> Mask:
        """Find the parts at one end of their list that together hold ``wanted`` values, or the
        whole list: bool[p]. ``wanted``: int64[groups]; 0 finds no part.
        """
        rows = np.append(0, np.cumsum(self.size))
        if end == "first":
            between = rows[:-1] - rows[self.start[self.group]]
        else:
            between = rows[self.start[self.group + 1]] - rows[1:]
        needed: Mask = between < wanted[self.group]
        return needed


def is_long(size: Ints) -> Mask:
    """Find the lists that are cut into parts, those of more than ``PART_MAX`` elements: bool[n].
    ``size``: the length of each list.
    """
    long: Mask = size > PART_MAX
    return long


def cut_into_parts(size: Ints) -> tuple[Ints, Ints, Ints]:
    """Cut runs of values into parts: the run of each part, its ordinal within the run from 0, and
    its size, int64[parts] each. ``size``: the number of values in each run, which is a list or a
    stretch of one.

    Parts of one run differ by at most one value. A run that is not long (``is_long``) is one part,
    even an empty one.

    >>> [column.tolist() for column in cut_into_parts(np.array([3, 2048 + 1]))]
    [[0, 1, 1, 1, 1, 1], [0, 0, 1, 2, 3, 4], [3, 409, 410, 410, 410, 410]]
    """
    parts = np.where(is_long(size), -(-size // (PART_MAX // 2)), 1)
    run, ordinal = expand_ranges(np.zeros(len(size), np.int64), parts)
    end = (ordinal + 1) * size[run] // parts[run]
    return run, ordinal, end - ordinal * size[run] // parts[run]
