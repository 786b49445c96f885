"""count_distinct: a multiset that only its updates are looked up in, and a count beside it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from dovetail.aggregates.aggregate import Columns, Ints, Traced, Updates, numbers
from dovetail.aggregates.multiset import (
    Listing,
    Reads,
    Spans,
    list_of,
    spans,
    stored_lists,
)
from dovetail.aggregates.scans import running_sum
from dovetail.arrays.equality import canonical
from dovetail.arrays.ordering import is_ordered


@dataclass(frozen=True)
class CountDistinct(Listing):
    """How many distinct values that are not null there are. Never null. Values are equal where
    their bits are; at any depth all NaNs are one, and zeros of either sign.

    ``values``: the type of the column; ``retractable``: whether rows may leave. Accumulator: the
    values; where rows may leave, their counts (``aggregates.multiset``); how many values there are.
    """

    values: pa.DataType
    retractable: bool

    @property
    def state(self) -> tuple[pa.DataType, ...]:
        """One list or two, and a number."""
        lists = (list_of(self.values), *[list_of(pa.int64())] * self.retractable)
        return (*lists, pa.int64())

    @property
    def ordered(self) -> bool:
        """By value where its type has an order."""
        return is_ordered(self.values)

    @property
    def reads(self) -> Reads:
        """None of the values but those that are updated; without an order those may be anywhere."""
        return "none" if self.ordered else "all"

    @property
    def result(self) -> pa.DataType:
        """A long."""
        return pa.int64()

    @property
    def retracts(self) -> bool:
        """Where the counts are kept."""
        return self.retractable

    @property
    def commutes(self) -> bool:
        """Where the values are in their own order."""
        return self.ordered

    def listed(self, values: Columns) -> pa.Array:
        """The value, as all that are equal to it are stored."""
        return canonical(values[0])

    def scan(self, updates: Updates, initial: Columns, values: Columns) -> pa.Array:
        """The number after each update."""
        found = self._spans(updates, initial, values)
        return pa.array(_numbers(updates, initial, found))

    def traced(self, updates: Updates, initial: Columns, values: Columns) -> Traced:
        """The values after the last updates, and the last numbers."""
        found = self._spans(updates, initial, values)
        number = numbers(initial[-1])
        number[updates.updated] = _numbers(updates, initial, found)[updates.last]
        return self._stored(found, number)

    def merged(self, left: Columns, right: Columns) -> list[pa.Array]:
        """The values of both."""
        rows = len(left[0])
        none = Updates(np.zeros(0, np.int64), rows, np.zeros(0, np.bool_))
        found = spans(none, [left[:-1], right[:-1]], pa.nulls(0, self.values))
        held = found.last & (found.count > 0)
        return self._stored(found, np.bincount(found.group[held], minlength=rows)).columns

    def results(self, state: Columns) -> pa.Array:
        """The numbers."""
        return state[-1].fill_null(0)

    def _spans(self, updates: Updates, initial: Columns, values: Columns) -> Spans:
        return spans(updates, [initial[:-1]], self.listed(values))

    def _stored(self, found: Spans, number: Ints) -> Traced:
        traced = stored_lists(found, len(number))
        lists = traced.columns[: len(self.state) - 1]
        return replace(traced, columns=[*lists, pa.array(number, pa.int64())])


def _numbers(updates: Updates, initial: Columns, found: Spans) -> Ints:
    """How many values each group has after each update: what a span of the batch begins with."""
    change = np.zeros(len(updates), np.int64)
    own = found.row >= len(initial[0].flatten())
    change[found.first[own & found.came]] = 1
    change[found.first[own & found.went]] = -1
    return running_sum(updates, change, numbers(initial[-1]))
