"""Multisets: the distinct values of a group and their counts. min, max, top, collect_set and
count_distinct need them to retract rows.

A stored multiset is a list of distinct values and a list of their counts. Within a batch each
update of a value begins a *span*: the updates during which the group has the value that many times.
Values without updates cost nothing per update.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dovetail.aggregates.aggregate import (
    Aggregate,
    AggregateError,
    Columns,
    GroupUpdates,
    Ints,
    Mask,
    TracedAccumulators,
    int64_values,
    not_null_mask,
)
from dovetail.arrays.grouping import by_key, stable_argsort
from dovetail.arrays.hashing import stable_hash
from dovetail.arrays.ordering import is_ordered, to_ordered_keys, with_one_nan

_LIST_END_MAX = int(np.iinfo(np.int32).max)

Reads: TypeAlias = Literal["first", "last", "all", "none"]


class Listing(Aggregate):
    """An aggregate whose accumulator lists its group's values, so it grows with the group.

    The accumulator's list columns come first. All are as long as the first, which has the values. A
    part of a list gives the same result as the whole if it holds enough values. The part must hold
    the updated values and, at the end that is read, ``reach`` values more than updates remove.
    """

    @property
    @abstractmethod
    def ordered(self) -> bool:
        """True if the lists are in the order of their values; else they are in that of arrival, new
        values last.
        """

    @property
    @abstractmethod
    def reads(self) -> Reads:
        """The part of the accumulator's lists that a result needs beside the updated values: all,
        the first or last elements (``reach``), or none.
        """

    @property
    def reach(self) -> int:
        """The number of values that a result needs of the end of the lists in ``reads``."""
        return 1

    @abstractmethod
    def traced(
        self, updates: GroupUpdates, initial: Columns, values: Columns
    ) -> TracedAccumulators:
        """Return the lists after the last update, with the origins of their elements.

        ``initial``: the stored lists, one row per group, null for none. ``values``: one row per
        update. A group without updates keeps its list. Raises ``AggregateError`` if the lists have
        too many elements for an Arrow column.
        """

    def after(self, updates: GroupUpdates, initial: Columns, values: Columns) -> list[pa.Array]:
        """Return the lists after the last update, one row per group.

        ``initial``: the stored lists, one row per group, null for none. ``values``: one row per
        update. Raises ``AggregateError`` as ``traced`` does.
        """
        return self.traced(updates, initial, values).columns

    def listed(self, values: Columns) -> pa.Array:
        """Return the value that each row adds to the list, one per row of ``values``, null for
        none.
        """
        return values[0]

    def keys(self, values: Sequence[pa.Array]) -> list[Ints]:
        """Convert listed values to int64 keys that compare as the values do: an array of keys for
        each array of values. Keys of all arrays can be compared. ``values``: as ``listed`` returns
        them. Only for lists that are ``ordered``.
        """
        return to_ordered_keys(values).keys


@dataclass(frozen=True)
class Spans:
    """The m spans of updates, by (group, value, time). During a span a group has a value ``count``
    times.

    One group with a stored value a, and four updates:

    | update    | span begun | count | flags      |
    |-----------|------------|-------|------------|
    | (stored)  | a, 0 to 0  | 1     | came       |
    | 0: add a  | a, 0 to 2  | 2     |            |
    | 1: add b  | b, 1 to 4  | 1     | came, last |
    | 2: take a | a, 2 to 3  | 1     |            |
    | 3: take a | a, 3 to 4  | 0     | went, last |
    """

    pool: pa.Array
    """The values: the stored ones, then those of the batch."""
    row: Ints
    """int64[m]: the index of the span's value in ``pool``."""
    since: Ints
    """int64[m]: the index in ``pool`` with which the value came into the group to stay until the
    span.
    """
    group: Ints
    """int64[m]: the group of the span."""
    value: Ints
    """int64[m]: a number per distinct value, or per group and value, ascending with the values if
    ``ordered``.
    """
    first: Ints
    """int64[m]: the first update of the span."""
    end: Ints
    """int64[m]: the exclusive end of the span."""
    count: Ints
    """int64[m]: how often the group has the value during the span; 0 if it has left."""
    came: Mask
    """bool[m]: the value comes into its group with this span."""
    went: Mask
    """bool[m]: the value leaves its group with this span."""
    last: Mask
    """bool[m]: the span is the last one of its value in the group."""
    ordered: bool
    """True if ``value`` ascends with the values."""

    def where(self, selected: Mask | Ints) -> Spans:
        """Return the selected spans: those at the indices ``selected``, in that order, or where the
        mask is true. The pool of values stays whole.
        """
        return Spans(
            self.pool,
            self.row[selected],
            self.since[selected],
            self.group[selected],
            self.value[selected],
            self.first[selected],
            self.end[selected],
            self.count[selected],
            self.came[selected],
            self.went[selected],
            self.last[selected],
            self.ordered,
        )


def multiset_spans(
    updates: GroupUpdates,
    stored: Sequence[Columns],
    values: pa.Array,
    numbering: Callable[[pa.Array, Ints], Ints] | None = None,
) -> Spans:
    """Return the spans of the values of ``stored`` multisets and of a batch, by (group, value,
    time). Null is no value. ``updates``: those of the batch.

    ``stored``: multisets, one row per group each, which are added up: a list of values, then
    perhaps one of counts. Without counts each value counts once. ``values``: one per update; a
    retracted one counts -1. ``numbering``: computes a number per group and distinct value, from 0
    and in their order; None for the order of the type.
    """
    members = [list_elements(lists[0]) for lists in stored]
    update = np.flatnonzero(not_null_mask(values))
    pool = with_one_nan(
        pa.concat_arrays([*(member for _, member in members), values.take(pa.array(update))])
    )
    group = np.concatenate([*(group for group, _ in members), updates.group[update]])
    counts = [
        int64_values(list_elements(lists[1])[1])
        if len(lists) > 1
        else np.ones(len(member), np.int64)
        for lists, (_, member) in zip(stored, members, strict=True)
    ]
    change = np.concatenate([*counts, updates.sign[update]])
    stored_count = len(group) - len(update)
    first = np.concatenate([updates.bounds[group[:stored_count]], update])
    value = value_numbers(pool) if numbering is None else numbering(pool, group)
    group_value = group * (int(value.max(initial=0)) + 1) + value
    order = stable_argsort(group_value)
    group, value, first = group[order], value[order], first[order]
    new, count = _running_value_counts(group_value[order], change[order])
    last = np.append(new[1:], True)[: len(new)]
    end = np.where(last, updates.bounds[group + 1], np.append(first[1:], 0)[: len(first)])
    had = ~new & (np.append(0, count)[:-1] > 0)
    enters, leaves = (count > 0) & ~had, (count <= 0) & had
    entered_at = np.where(enters, np.arange(len(order)), 0)
    since = order[np.maximum.accumulate(entered_at)] if len(entered_at) else order
    ordered = numbering is not None or is_ordered(pool.type)
    return Spans(pool, order, since, group, value, first, end, count, enters, leaves, last, ordered)


def stored_lists(value_spans: Spans, groups: int) -> TracedAccumulators:
    """Return the multisets after the last update, and the origins of their elements. The multisets
    are two columns, the lists of values and of counts: one row per group, empty for a group without
    values.

    Values are in the order of their type or, if it has none, by the update that brought each to
    stay. ``groups``: the number of groups. ``value_spans``: by (group, value, time), as
    ``multiset_spans`` returns them. Raises ``AggregateError`` if the lists have too many elements
    for an Arrow column.
    """
    present = value_spans.where(value_spans.last & (value_spans.count > 0))
    if not value_spans.ordered:
        present = present.where(np.lexsort((present.since, present.group)))
    size = np.bincount(present.group, minlength=groups)
    values = value_spans.pool.take(pa.array(present.row))
    columns = [lists_of(size, values), lists_of(size, pa.array(present.count))]
    return TracedAccumulators(columns, present.since, present.row)


def value_numbers(values: pa.Array) -> Ints:
    """Return a number per distinct value, from 0: int64[n]. Numbers ascend with the values if their
    type has an order.
    """
    if len(values) == 0:
        return np.zeros(0, dtype=np.int64)
    if is_ordered(values.type):
        keys = to_ordered_keys([values])
        if keys.distinct is not None:
            return keys.keys[0]
        return np.unique(keys.keys[0], return_inverse=True)[1]
    order, new, _ = by_key(stable_hash([values]), [values], np.arange(len(values)))
    class_index = np.empty(len(order), dtype=np.int64)
    class_index[order] = np.cumsum(new) - 1
    return class_index


def list_elements(lists: pa.Array) -> tuple[Ints, pa.Array]:
    """Return all elements of a column of lists, in order: the row of each, int64[elements], and the
    elements. A null list has none, an element may be null.
    """
    return np.repeat(np.arange(len(lists)), list_sizes(lists)), lists.flatten()


def list_sizes(lists: pa.Array) -> Ints:
    """Return the length of each list, int64[n], 0 for null."""
    return int64_values(pc.list_value_length(lists))


def list_of(element: pa.DataType) -> pa.DataType:
    """Return the type of a list whose elements have the type ``element``, named as Spark names
    them.
    """
    return pa.list_(pa.field("element", element))


def lists_of(size: Ints, values: pa.Array) -> pa.Array:
    """Build a column of lists of the sizes ``size`` from consecutive elements of ``values``, which
    are as many as all sizes together. Raises ``AggregateError`` for more elements than an Arrow
    column holds.
    """
    end = np.cumsum(size)
    if len(end) and end[-1] > _LIST_END_MAX:
        raise AggregateError(
            f"the collections of a batch have {end[-1]} elements, more than an Arrow column holds",
            "Emit once per batch instead of every change, or read fewer rows at a time",
        )
    offsets = np.append(0, end).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), values, type=list_of(values.type))


def _running_value_counts(group_value: Ints, change: Ints) -> tuple[Mask, Ints]:
    """Mark the first entry of each group's value, and return the sum of the value's changes up to
    each entry: bool[n], int64[n].

    ``group_value``: int64[n], non-decreasing, a number per group and value. ``change``: int64[n],
    added to the count of the value by each entry.
    """
    new = np.ones(len(group_value), dtype=np.bool_)
    new[1:] = group_value[1:] != group_value[:-1]
    start = np.flatnonzero(new)
    total = np.append(0, np.cumsum(change))
    return new, total[1:] - np.repeat(total[start], np.diff(start, append=len(group_value)))
