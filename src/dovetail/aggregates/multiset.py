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
from dovetail.arrays.grouping import by_key, stable_argsort, start_mask
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
        """True if the values of each stored list are in the ascending order that ``keys`` gives
        them. If False, they are in the order of arrival, new values last.
        """

    @property
    @abstractmethod
    def reads(self) -> Reads:
        """The part of the stored lists that a result needs beside the updated values: ``"all"``,
        the ``"first"`` or ``"last"`` elements (as many as ``reach``), or ``"none"``.
        """

    @property
    def reach(self) -> int:
        """The count of values that a result needs at the end of the lists that ``reads`` names: 1
        by default. It counts only if ``reads`` is ``"first"`` or ``"last"``.
        """
        return 1

    @abstractmethod
    def traced(
        self, updates: GroupUpdates, initial: Columns, values: Columns
    ) -> TracedAccumulators:
        """Return the accumulators after each group's last update, one row per group, with the
        origin of each element of their lists (``TracedAccumulators``): the stored element or value
        of the batch that it comes from.

        ``updates``: rows added to groups or retracted from them, by group, then time. ``initial``:
        the columns of the stored accumulators, one row per group, null for none. ``values``: the
        input columns, one row per update. A group without updates keeps its list; null becomes an
        empty list. Raises ``AggregateError`` if the lists have too many elements for an Arrow
        column.
        """

    def after(self, updates: GroupUpdates, initial: Columns, values: Columns) -> list[pa.Array]:
        """Return the columns of the accumulators after each group's last update, one row per group.
        A group without updates keeps its list; null becomes an empty list.

        ``updates``: rows added to groups or retracted from them, by group, then time. ``initial``:
        the columns of the stored accumulators, one row per group, null for none. ``values``: the
        input columns, one row per update. Raises ``AggregateError`` if the lists have too many
        elements for an Arrow column.
        """
        return self.traced(updates, initial, values).columns

    def listed(self, values: Columns) -> pa.Array:
        """Return the value that each row adds to its group's list, one per row of ``values``, null
        for none: by default the first of the input columns ``values``.
        """
        return values[0]

    def keys(self, values: Sequence[pa.Array]) -> list[Ints]:
        """Convert listed values to sort keys: int64[n] for each array of n values. Keys compare as
        the values do, also between the arrays. ``values``: arrays as ``listed`` returns them, at
        least one. Only for aggregates whose lists are ``ordered``. A null has an arbitrary key.
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
        """Return new ``Spans`` of the selected spans, which are ranges of updates: those at the
        indices ``selected``, in that order, or where the mask, bool[m], is true. ``pool`` stays
        whole.
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
    time). A span is a range of updates during which a group has a value a certain count of times.
    Each stored value begins a span, and so does each update that is not null. So a span may be
    empty, and its count may be 0.

    ``updates``: n rows of the batch, added to groups or retracted from them. If a value is
    retracted more often than added, its count is below 0; this is not checked. ``stored``:
    multisets that are added up, one row per group each: a column of lists of values, perhaps one of
    lists of counts. Without counts each value counts once. ``values``: the value of each update, n
    rows, null for none.

    ``numbering(pool, group)``: returns an int64 id per value, from 0, the same for equal values of
    a group and ascending in their order. Values of a group with the same id are one value. ``pool``
    has the stored values, multiset by multiset, then those of the batch that are not null;
    ``group`` has the group of each. All NaNs in a ``pool`` of floats have the same bits. None:
    ``value_numbers`` of all values.
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
    """Return the multisets after the last update, and the origins of each element
    (``TracedAccumulators``): stored or new values, which are indices in ``value_spans.pool``. The
    multisets are two columns of lists, the distinct values and their counts, at least 1. They have
    one row per group, with empty lists for a group without values.

    The values of a list ascend if ``value_spans.ordered``, as for all types with an order. Else
    they are in the order of arrival: that since which the value has been in the group without a
    break.

    ``value_spans``: the ranges of updates during which a group has a value, as ``multiset_spans``
    returns them: all of the batch, by (group, value, time). ``groups``: the count of groups. Raises
    ``AggregateError`` if the lists have too many elements for an Arrow column.
    """
    present = value_spans.where(value_spans.last & (value_spans.count > 0))
    if not value_spans.ordered:
        present = present.where(np.lexsort((present.since, present.group)))
    size = np.bincount(present.group, minlength=groups)
    values = value_spans.pool.take(pa.array(present.row))
    columns = [lists_of(size, values), lists_of(size, pa.array(present.count))]
    return TracedAccumulators(columns, present.since, present.row)


def value_numbers(values: pa.Array) -> Ints:
    """Return an id per value, equal for equal values, from 0 without gaps: int64[n]. Ids ascend
    with the values if their type has an order, else they have no order. In a column of floats all
    NaNs are equal, and -0.0 is below 0.0; nested floats are compared by their bits. ``values``:
    without nulls.
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
    """Return all elements of a column of lists, list by list: the index of each element's list,
    int64[elements], and the elements as an array. An empty or null list has none; an element may be
    null.
    """
    return np.repeat(np.arange(len(lists)), list_sizes(lists)), lists.flatten()


def list_sizes(lists: pa.Array) -> Ints:
    """Return the length of each list of a column of n lists: int64[n], 0 for null."""
    return int64_values(pc.list_value_length(lists))


def list_ends(lists: pa.Array, *, last: bool) -> pa.Array:
    """Return the last element of each list of a column or, without ``last``, the first: one row per
    list, null for an empty list or for null.
    """
    size = list_sizes(lists)
    end = np.cumsum(size)
    return lists.flatten().take(pa.array(end - 1 if last else end - size, mask=size == 0))


def list_of(element: pa.DataType) -> pa.DataType:
    """Return the type of a list whose elements have the type ``element``. The field of the elements
    is named ``element``, as Spark names it.
    """
    return pa.list_(pa.field("element", element))


def lists_of(size: Ints, values: pa.Array) -> pa.Array:
    """Build a column of lists, none of them null, from consecutive elements of ``values``.
    ``size``: int64[n], the length of each list; together they are as many as ``values``. Raises
    ``AggregateError`` for more than 2**31 - 1 elements.
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
    """Return two arrays for n changes to counts of values. The first, bool[n], is true for the
    first change of each group's value. The second, int64[n], is the sum of the value's changes up
    to each one, itself included.

    ``group_value``: int64[n], non-decreasing, an id of the group and value that each change belongs
    to. ``change``: int64[n], added to the count of the value.
    """
    new = start_mask(group_value)
    start = np.flatnonzero(new)
    total = np.append(0, np.cumsum(change))
    return new, total[1:] - np.repeat(total[start], np.diff(start, append=len(group_value)))
