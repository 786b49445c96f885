"""A long list in parts: which of them a batch needs, and how it is cut.

The parts of a group's list, one after the other, are the list. Most are between half of
``PART_MAX`` and that long; values that leave make them shorter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from dovetail.aggregates.aggregate import Ints, Mask
from dovetail.arrays.search import bisect, expand

PART_MAX = 1024
"""A list up to this length is not cut."""
_SPARSE = 16
"""Parts are put together where they are on average shorter than ``PART_MAX`` by this factor."""


@dataclass(frozen=True)
class Layout:
    """p parts of the lists of some groups, by (group, place in the list).

    ``group``, ``size``: int64[p]; ``start``: int64[groups + 1], where each group's parts begin.
    """

    group: Ints
    size: Ints
    start: Ints

    @classmethod
    def of(cls, group: Ints, size: Ints, groups: int) -> Layout:
        """The layout of parts that lie by group."""
        return cls(group, size, np.searchsorted(group, np.arange(groups + 1)))

    @property
    def parts(self) -> Ints:
        """How many parts each group has: int64[groups]."""
        return np.diff(self.start)

    def apart(self, updates: Ints, taken: Ints) -> Mask:
        """The groups of which a batch updates few values, so that it works on their parts: fewer
        than they have parts, and those do not become sparse.

        ``updates``, ``taken``: int64[groups], how many rows come or go, and how many of them go.
        """
        rows = np.append(0, np.cumsum(self.size))
        total = rows[self.start[1:]] - rows[self.start[:-1]]
        few, dense = updates < self.parts, (total - taken) * _SPARSE >= self.parts * PART_MAX
        apart: Mask = few & dense
        return apart

    def homes(self, first: Ints, group: Ints, value: Ints) -> Ints:
        """The part to which each of some values belongs: the last one that begins with no larger
        one, or the group's first. ``first``: int64[p], what each part begins with.
        """
        start = self.start[group]
        home = bisect(first, start, self.start[group + 1], value, right=True) - 1
        return np.maximum(home, start)

    def last(self, group: Ints) -> Ints:
        """The last part of each of these groups."""
        last: Ints = self.start[group + 1] - 1
        return last

    def at_end(self, end: Literal["first", "last"], wanted: Ints) -> Mask:
        """The parts at one end of their lists that have ``wanted`` values together, or are the
        whole list: bool[p]. ``wanted``: int64[groups].
        """
        rows = np.append(0, np.cumsum(self.size))
        if end == "first":
            between = rows[:-1] - rows[self.start[self.group]]
        else:
            between = rows[self.start[self.group + 1]] - rows[1:]
        found: Mask = between < wanted[self.group]
        return found


def is_long(size: Ints) -> Mask:
    """Which lists are cut."""
    long: Mask = size > PART_MAX
    return long


def cut(size: Ints) -> tuple[Ints, Ints, Ints]:
    """Runs of values as parts: per part which run it is of, the how manieth, and its size.

    >>> [column.tolist() for column in cut(np.array([3, 2048 + 1]))]
    [[0, 1, 1, 1, 1, 1], [0, 0, 1, 2, 3, 4], [3, 409, 410, 410, 410, 410]]
    """
    parts = np.where(is_long(size), -(-size // (PART_MAX // 2)), 1)
    run, ordinal = expand(np.zeros(len(size), np.int64), parts)
    end = (ordinal + 1) * size[run] // parts[run]
    return run, ordinal, end - ordinal * size[run] // parts[run]
