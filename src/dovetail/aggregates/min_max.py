"""min and max: of groups that only grow the value is kept, of changing ones the multiset."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa

from dovetail.aggregates.aggregate import Accumulating, Columns, Ints, Traced, Updates, valid
from dovetail.aggregates.multiset import Listing, list_of, sizes, spans, stored_lists
from dovetail.aggregates.scans import any_so_far, lowest_over, scan
from dovetail.arrays.ordering import keyed


@dataclass(frozen=True)
class Extreme(Accumulating):
    """The smallest (or ``largest``) value that is not null, null where there is none.

    ``values``: the type of the column, an ordered one (``arrays.ordering``). Accumulator: the
    value. Rows cannot be retracted.
    """

    values: pa.DataType
    largest: bool

    retracts = False
    commutes = True

    @property
    def state(self) -> tuple[pa.DataType, ...]:
        """The value."""
        return (self.values,)

    @property
    def result(self) -> pa.DataType:
        """The column's type."""
        return self.values

    def accumulated(self, updates: Updates, initial: Columns, values: Columns) -> list[pa.Array]:
        """The extreme after each update."""
        both = keyed([initial[0], values[0]])
        had, has = valid(initial[0]), valid(values[0])
        neutral = np.iinfo(np.int64).min if self.largest else np.iinfo(np.int64).max
        before, now = (
            np.where(present, keys, neutral)
            for keys, present in zip(both.keys, (had, has), strict=True)
        )
        present = any_so_far(updates, has, had)
        return [both.values(self._scan(updates, before, now), present)]

    def merged(self, left: Columns, right: Columns) -> list[pa.Array]:
        """The extremes of both."""
        row = np.arange(len(left[0]))
        return self.accumulated(Updates(row, len(row), np.zeros(len(row), np.bool_)), left, right)

    def results(self, state: Columns) -> pa.Array:
        """The extremes."""
        return state[0]

    def _scan(self, updates: Updates, before: Ints, now: Ints) -> Ints:
        operation = np.maximum if self.largest else np.minimum
        first = updates.bounds[updates.updated]
        now[first] = operation(now[first], before[updates.updated])
        return scan(operation, first, now)


@dataclass(frozen=True)
class ChangingExtreme(Listing):
    """The smallest (or ``largest``) value that is not null of a group whose rows may leave, null
    where there is none.

    ``values``: the type of the column, an ordered one (``arrays.ordering``). Accumulator: the
    distinct values, ascending, and their counts (``aggregates.multiset``).
    """

    values: pa.DataType
    largest: bool

    ordered = True

    @property
    def state(self) -> tuple[pa.DataType, ...]:
        """Two lists."""
        return (list_of(self.values), list_of(pa.int64()))

    @property
    def reads(self) -> Literal["first", "last"]:
        """One end."""
        return "last" if self.largest else "first"

    @property
    def result(self) -> pa.DataType:
        """The column's type."""
        return self.values

    def scan(self, updates: Updates, initial: Columns, values: Columns) -> pa.Array:
        """The extreme after each update: the lowest of the values whose spans hold it."""
        found = spans(updates, [initial], values[0])
        found = found.where((found.count > 0) & (found.first < found.end))
        nothing = np.iinfo(np.int64).max
        rank = -found.value if self.largest else found.value
        lowest = lowest_over(found.first, found.end, rank, len(updates), nothing)
        absent = lowest == nothing
        row = np.zeros(int(found.value.max(initial=0)) + 1, dtype=np.int64)
        row[found.value] = found.row
        lowest[absent] = 0
        return found.pool.take(pa.array(row[-lowest if self.largest else lowest], mask=absent))

    def traced(self, updates: Updates, initial: Columns, values: Columns) -> Traced:
        """The multisets after the last updates."""
        return stored_lists(spans(updates, [initial], values[0]), updates.groups)

    def merged(self, left: Columns, right: Columns) -> list[pa.Array]:
        """The multisets added."""
        rows = len(left[0])
        none = Updates(np.zeros(0, np.int64), rows, np.zeros(0, np.bool_))
        return stored_lists(spans(none, [left, right], pa.nulls(0, self.values)), rows).columns

    def results(self, state: Columns) -> pa.Array:
        """The first or last value of each."""
        size = sizes(state[0])
        end = np.cumsum(size)
        index = end - 1 if self.largest else end - size
        return state[0].flatten().take(pa.array(index, mask=size == 0))
