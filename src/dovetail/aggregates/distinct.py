"""count_distinct: a multiset and the number of its values.

Only the values of the updates are looked up in the multiset.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from dovetail.aggregates.aggregate import (
    Columns,
    GroupUpdates,
    Ints,
    TracedAccumulators,
    int64_values,
)
from dovetail.aggregates.multiset import (
    Listing,
    Reads,
    Spans,
    list_of,
    multiset_spans,
    stored_lists,
)
from dovetail.aggregates.running_aggregates import running_sum
from dovetail.arrays.equality import canonical_key
from dovetail.arrays.ordering import is_ordered


@dataclass(frozen=True)
class CountDistinct(Listing):
    """The count of distinct values that are not null; never null. Values are equal if their bits
    are. At any depth all NaNs are one value, and zeros of either sign.

    The accumulator is the list of values; if rows may leave, that of their counts
    (``aggregates.multiset``); and the count of distinct values.
    """

    values: pa.DataType
    """The type of the column."""
    retractable: bool
    """True if rows may leave a group."""

    @property
    def state(self) -> tuple[pa.DataType, ...]:
        """The types of the accumulator's columns: the list of distinct values, the list of their
        counts if ``retractable``, and the count of distinct values (int64).
        """
        lists = (list_of(self.values), *[list_of(pa.int64())] * self.retractable)
        return (*lists, pa.int64())

    @property
    def ordered(self) -> bool:
        """True if the list is in the order of its values, because their type has one."""
        return is_ordered(self.values)

    @property
    def reads(self) -> Reads:
        """The part of the stored list that is needed beside the updated values: ``"none"`` if the
        list is in the order of its values, else ``"all"``, since a value may be anywhere.
        """
        return "none" if self.ordered else "all"

    @property
    def result(self) -> pa.DataType:
        """The type of the result: int64."""
        return pa.int64()

    @property
    def retracts(self) -> bool:
        """True if rows can be retracted: if ``retractable``, since counts are stored then."""
        return self.retractable

    @property
    def commutes(self) -> bool:
        """True if the accumulator does not depend on the order of rows, because the type of the
        values has an order. False for nested types, which have none.
        """
        return self.ordered

    def listed(self, values: Columns) -> pa.Array:
        """Return the only column of ``values`` in the form in which it is stored, with equal bits
        for equal values: one NaN, and 0.0 for -0.0, at any depth. Null stays null.
        """
        return canonical_key(values[0])

    def scan(self, updates: GroupUpdates, initial: Columns, values: Columns) -> pa.Array:
        """Return the count of distinct values in the group after each update: int64, one row per
        update, 0 without values. At any depth all NaNs are one value, and so are 0.0 and -0.0.

        ``updates``: rows added to groups or retracted from them, by group, then time. ``initial``:
        the columns of the stored accumulators (lists, then the count), one row per group, null for
        none. ``values``: one column, one row per update; nulls do not count.
        """
        value_spans = self._value_spans(updates, initial, values)
        return pa.array(_running_distinct_counts(updates, initial, value_spans))

    def traced(
        self, updates: GroupUpdates, initial: Columns, values: Columns
    ) -> TracedAccumulators:
        """Return the accumulators after each group's last update, one row per group, with the
        origin of each value (``TracedAccumulators``): the stored or new value that it comes from.
        They are the list of distinct values, that of their counts if ``retractable``, and the count
        of distinct values. A group without updates keeps its accumulator; null becomes empty lists
        and the count 0.

        ``updates``: rows added to groups or retracted from them, by group, then time. ``initial``:
        the columns of the stored accumulators, one row per group, null for none. ``values``: one
        column, one row per update; nulls do not count. Raises ``AggregateError`` if the lists have
        too many elements for an Arrow column.
        """
        value_spans = self._value_spans(updates, initial, values)
        counts = int64_values(initial[-1])
        counts[updates.updated] = _running_distinct_counts(updates, initial, value_spans)[
            updates.last
        ]
        return self._traced_accumulators(value_spans, counts)

    def merged(self, left: Columns, right: Columns) -> list[pa.Array]:
        """Return the columns of the accumulators of ``left`` and ``right`` together, row by row:
        the list of distinct values, that of the added counts if ``retractable``, and the count of
        distinct values. Values ascend; if the type has no order, those of ``left`` come first. Null
        counts as empty. Raises ``AggregateError`` if the lists have too many elements for an Arrow
        column.
        """
        rows = len(left[0])
        none = GroupUpdates.added(np.zeros(0, np.int64), rows)
        value_spans = multiset_spans(none, [left[:-1], right[:-1]], pa.nulls(0, self.values))
        present = value_spans.last & (value_spans.count > 0)
        return self._traced_accumulators(
            value_spans, np.bincount(value_spans.group[present], minlength=rows)
        ).columns

    def results(self, state: Columns) -> pa.Array:
        """Return the counts of distinct values as int64: the last column of ``state``, 0 for
        null.
        """
        return state[-1].fill_null(0)

    def _value_spans(self, updates: GroupUpdates, initial: Columns, values: Columns) -> Spans:
        """Return the spans, ranges of updates during which a group has a distinct value, by group,
        value and time. ``updates``: rows added to groups or retracted from them, by group, then
        time. ``initial``: the columns of the stored accumulators, one row per group. ``values``:
        one column, one row per update; null adds no value.
        """
        return multiset_spans(updates, [initial[:-1]], self.listed(values))

    def _traced_accumulators(self, value_spans: Spans, counts: Ints) -> TracedAccumulators:
        """Return the accumulators after the last update, with the origin of each value
        (``TracedAccumulators``): the stored or new value that it comes from. They are the lists of
        values and, if ``retractable``, of counts, then ``counts`` as the last column.
        ``value_spans``: the ranges of updates during which a group has a value, all of the batch,
        by (group, value, time). ``counts``: int64[groups], the count of distinct values. Raises
        ``AggregateError`` if the lists have too many elements for an Arrow column.
        """
        traced = stored_lists(value_spans, len(counts))
        lists = traced.columns[: len(self.state) - 1]
        return replace(traced, columns=[*lists, pa.array(counts, pa.int64())])


def _running_distinct_counts(updates: GroupUpdates, initial: Columns, value_spans: Spans) -> Ints:
    """Return the count of distinct values in the group after each of the n updates: int64[n]. It
    changes only with an update that brings a new value or takes the last of one.

    ``updates``: rows added to groups or retracted from them, by group, then time. ``initial``: the
    columns of the stored accumulators, one row per group: the list of values first, the count last;
    null for none. ``value_spans``: the ranges of updates during which a group has a value, all of
    the batch.
    """
    change = np.zeros(len(updates), np.int64)
    in_batch = value_spans.row >= len(initial[0].flatten())
    change[value_spans.first[in_batch & value_spans.came]] = 1
    change[value_spans.first[in_batch & value_spans.went]] = -1
    return running_sum(updates, change, int64_values(initial[-1]))
