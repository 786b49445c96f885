"""min and max: the value alone for groups that only grow, a multiset for changing groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa

from dovetail.aggregates.aggregate import (
    Accumulating,
    Columns,
    GroupUpdates,
    Ints,
    TracedAccumulators,
    not_null_mask,
)
from dovetail.aggregates.multiset import Listing, list_ends, list_of, multiset_spans, stored_lists
from dovetail.aggregates.running_aggregates import any_so_far, lowest_over, segmented_scan
from dovetail.arrays.ordering import to_ordered_keys


@dataclass(frozen=True)
class Extreme(Accumulating):
    """The smallest (or ``largest``) value that is not null, or null if there is none. Rows cannot
    be retracted. The accumulator is the value.
    """

    values: pa.DataType
    """The type of the column, an ordered one (``arrays.ordering``)."""
    largest: bool
    """True for the largest value, False for the smallest."""

    retracts = False
    commutes = True

    @property
    def state(self) -> tuple[pa.DataType, ...]:
        """The type of the accumulator's only column, the value."""
        return (self.values,)

    @property
    def result(self) -> pa.DataType:
        """The type of results, which is that of the values."""
        return self.values

    def accumulated(
        self, updates: GroupUpdates, initial: Columns, values: Columns
    ) -> list[pa.Array]:
        """Return one column, the smallest (or, if ``largest``, the largest) value of the group up
        to each update: one row per update. It is null while the group has had no value. NaN is
        above all other values, and -0.0 below 0.0.

        ``updates``: rows added to groups. None may be retracted; here one would count as added.
        ``initial``: one column, the stored extreme of each group, null for none. ``values``: one
        column, one row per update; nulls do not count.
        """
        comparable = to_ordered_keys([initial[0], values[0]])
        had, has = not_null_mask(initial[0]), not_null_mask(values[0])
        neutral = np.iinfo(np.int64).min if self.largest else np.iinfo(np.int64).max
        before, now = (
            np.where(present, keys, neutral)
            for keys, present in zip(comparable.keys, (had, has), strict=True)
        )
        present = any_so_far(updates, has, had)
        return [comparable.values(self._scan(updates, before, now), present)]

    def merged(self, left: Columns, right: Columns) -> list[pa.Array]:
        """Return one column, the more extreme value of ``left`` and ``right``, row by row: null if
        both are null, the other one if one is. NaN is above all other values, and -0.0 below 0.0.
        Both have one column of as many rows.
        """
        row = np.arange(len(left[0]))
        return self.accumulated(GroupUpdates.added(row, len(row)), left, right)

    def results(self, state: Columns) -> pa.Array:
        """Return the extremes, the only column of ``state``, unchanged; null for a group without a
        value.
        """
        return state[0]

    def _scan(self, updates: GroupUpdates, before: Ints, now: Ints) -> Ints:
        """Return the largest or smallest sort key of each update's group up to that update, the
        stored key included: int64[updates].

        ``before``: int64[groups], the stored key of each group. ``now``: int64[updates], the key of
        each update, changed in place. A missing value must have a key that never wins.
        """
        operation = np.maximum if self.largest else np.minimum
        first = updates.bounds[updates.updated]
        now[first] = operation(now[first], before[updates.updated])
        return segmented_scan(operation, first, now)


@dataclass(frozen=True)
class ChangingExtreme(Listing):
    """The smallest (or ``largest``) value that is not null of a group whose rows may leave, or
    null. The accumulator is the distinct values, ascending, and their counts
    (``aggregates.multiset``).
    """

    values: pa.DataType
    """The type of the column, an ordered one (``arrays.ordering``)."""
    largest: bool
    """True for the largest value, False for the smallest."""

    ordered = True

    @property
    def state(self) -> tuple[pa.DataType, ...]:
        """The types of the accumulator: the list of values, then the list of their counts."""
        return (list_of(self.values), list_of(pa.int64()))

    @property
    def reads(self) -> Literal["first", "last"]:
        """The end of the stored list of values that has the extreme: ``"last"`` for the largest,
        else ``"first"``. Only that end is needed for a result.
        """
        return "last" if self.largest else "first"

    @property
    def result(self) -> pa.DataType:
        """The type of results, which is that of the values."""
        return self.values

    def scan(self, updates: GroupUpdates, initial: Columns, values: Columns) -> pa.Array:
        """Return the smallest (or, if ``largest``, the largest) value in the group after each
        update: one row per update, null while the group has no value. NaN is above all other
        values, and -0.0 below 0.0.

        ``updates``: rows added to groups or retracted from them, by group, then time. A retracted
        value must have been added before; this is not checked. ``initial``: two columns of lists,
        the stored values of each group and their counts, null for none. ``values``: one column, the
        value that each update brings or takes; nulls do not count.
        """
        value_spans = multiset_spans(updates, [initial], values[0])
        value_spans = value_spans.where(
            (value_spans.count > 0) & (value_spans.first < value_spans.end)
        )
        nothing = np.iinfo(np.int64).max
        rank = -value_spans.value if self.largest else value_spans.value
        lowest = lowest_over(value_spans.first, value_spans.end, rank, len(updates), nothing)
        absent = lowest == nothing
        row = np.zeros(int(value_spans.value.max(initial=0)) + 1, dtype=np.int64)
        row[value_spans.value] = value_spans.row
        lowest[absent] = 0
        return value_spans.pool.take(
            pa.array(row[-lowest if self.largest else lowest], mask=absent)
        )

    def traced(
        self, updates: GroupUpdates, initial: Columns, values: Columns
    ) -> TracedAccumulators:
        """Return each group's lists of distinct values, ascending, and of their counts after its
        last update, with the origin of each element (``TracedAccumulators``): the stored element or
        value of the batch that it comes from. Lists of a group without updates stay; null becomes
        an empty list.

        ``updates``: rows added to groups or retracted from them, by group, then time. ``initial``:
        the stored two columns of lists, one row per group, null for none. ``values``: one column,
        one row per update; nulls do not count. Raises ``AggregateError`` if the lists have too many
        elements for an Arrow column.
        """
        return stored_lists(multiset_spans(updates, [initial], values[0]), updates.groups)

    def merged(self, left: Columns, right: Columns) -> list[pa.Array]:
        """Return two columns of lists, distinct values, ascending, and their counts: those of
        ``left`` and ``right`` added up, row by row. Both have such columns of as many rows; null
        counts as empty. Raises ``AggregateError`` if the lists have too many elements for an Arrow
        column.
        """
        rows = len(left[0])
        none = GroupUpdates.added(np.zeros(0, np.int64), rows)
        return stored_lists(
            multiset_spans(none, [left, right], pa.nulls(0, self.values)), rows
        ).columns

    def results(self, state: Columns) -> pa.Array:
        """Return the first value of each list or, if ``largest``, the last; null for an empty list
        or for null. ``state``: two columns of lists, values, ascending, and counts; only the first
        is read.
        """
        return list_ends(state[0], last=self.largest)
