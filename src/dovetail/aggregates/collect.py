"""collect_list, collect_set, and the last row of a group."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pyarrow as pa

from dovetail.aggregates.aggregate import (
    Columns,
    GroupUpdates,
    Ints,
    Mask,
    TracedAccumulators,
    not_null_mask,
)
from dovetail.aggregates.multiset import (
    Listing,
    Spans,
    list_elements,
    list_ends,
    list_of,
    list_sizes,
    lists_of,
    multiset_spans,
    stored_lists,
    value_numbers,
)
from dovetail.aggregates.running_aggregates import running_sum
from dovetail.arrays.grouping import stable_argsort
from dovetail.arrays.ordering import is_ordered, with_one_nan
from dovetail.arrays.search import expand_ranges


@dataclass(frozen=True)
class CollectList(Listing):
    """The values that are not null, in the order of arrival; an empty list if there are none. A
    retracted row removes the first value that equals its own, which must be there.

    The accumulator is the list. ``scan`` builds a list for each update, so its output grows with
    the square of a group's updates.
    """

    values: pa.DataType
    """The type of the column."""

    ordered = False

    @property
    def state(self) -> tuple[pa.DataType, ...]:
        """The type of the accumulator's only column, the list."""
        return (list_of(self.values),)

    @property
    def reads(self) -> Literal["all"]:
        """The part of the list that a result needs: all of it."""
        return "all"

    @property
    def result(self) -> pa.DataType:
        """The type of a list of the column's values."""
        return list_of(self.values)

    def scan(self, updates: GroupUpdates, initial: Columns, values: Columns) -> pa.Array:
        """Return the list after each update, one row per update: the group's values in the order of
        arrival, an empty list without values.

        ``updates``: rows added to groups or retracted from them, by group, then time. A retracted
        value removes its first equal in the list; asserts that there is one. In a column of floats
        all NaNs are equal, and 0.0 and -0.0 are not; nested floats are compared by their bits.
        ``initial``: one column, the stored list of each group, null for none. ``values``: one
        column, one row per update; nulls are left out. Raises ``AggregateError`` if the lists of
        all updates have too many elements for an Arrow column.
        """
        listed = self.listed(values)
        entries = _held_elements(updates, initial[0], listed)
        if updates.retracted.any():
            entry, update = expand_ranges(entries.first, entries.end)
            entry = entry[stable_argsort(update)]
            size = np.bincount(update, minlength=len(updates))
        else:
            added = not_null_mask(listed).astype(np.int64)
            size = running_sum(updates, added, list_sizes(initial[0]))
            start = np.searchsorted(entries.group, np.arange(updates.groups))[updates.group]
            entry = expand_ranges(start, start + size)[1]
        return lists_of(size, entries.pool.take(pa.array(entries.row[entry])))

    def traced(
        self, updates: GroupUpdates, initial: Columns, values: Columns
    ) -> TracedAccumulators:
        """Return each group's list after its last update, a column with one row per group, with the
        origin of each element (``TracedAccumulators``): the stored element or value of the batch
        that it comes from. A group without updates keeps its list; null becomes an empty list.

        ``updates``: rows added to groups or retracted from them, by group, then time. A retracted
        value removes its first equal, as in ``scan``; asserts that there is one. ``initial``: one
        column, the stored list of each group, null for none. ``values``: one column, one row per
        update; nulls are left out. Raises ``AggregateError`` if the lists have too many elements
        for an Arrow column.
        """
        entries = _held_elements(updates, initial[0], self.listed(values))
        size = np.bincount(entries.group[entries.stays], minlength=updates.groups)
        row = entries.row[entries.stays]
        return TracedAccumulators([lists_of(size, entries.pool.take(pa.array(row)))], row, row)

    def merged(self, left: Columns, right: Columns) -> list[pa.Array]:
        """Return one column of lists, never null: row by row, the list of ``left``, then that of
        ``right``, null counting as empty. Both are one column of as many lists.

        The values are those of one accumulator over the rows of both sides. With retracted rows
        their order may differ: one accumulator removes the first equal value, even one of the left.
        Raises ``AggregateError`` if the lists have too many elements for an Arrow column.
        """
        group, added = list_elements(right[0])
        updates = GroupUpdates.added(group, len(left[0]))
        return self.after(updates, left, [added])

    def results(self, state: Columns) -> pa.Array:
        """Return the lists in the only column of ``state``, an empty list for null."""
        return _empty_for_null(state[0])


@dataclass(frozen=True)
class LastRow(CollectList):
    """The last of a group's rows in the order of updates, as a struct; null if there is none."""

    unique: bool
    """True if a batch leaves at most one row in a group; within the batch there may be more."""
    key: tuple[str, ...]
    """The names of the columns by which rows are grouped."""

    @property
    def result(self) -> pa.DataType:
        """The struct type of a row."""
        return self.values

    def listed(self, values: Columns) -> pa.Array:
        """Return the rows as one column of structs, one per row, never null. ``values``: the
        columns of the rows, in the order of the fields of the struct.
        """
        return pa.StructArray.from_arrays(list(values), fields=list(self.values))

    def scan(self, updates: GroupUpdates, initial: Columns, values: Columns) -> pa.Array:
        """Return the last row of the group after each update, as a struct: one row per update, null
        while the group has none. The last row is the latest in the order of ``updates`` that has
        not been retracted.

        ``updates``: rows added to groups or retracted from them, by group, then time. A retracted
        row removes the group's first row with equal values, where null equals null and floats are
        compared by their bits. Asserts that there is one. ``initial``: one column, the list of
        stored rows (structs) of each group, null for none. ``values``: the columns of the rows, one
        row per update. Raises ``AggregateError`` if the lists of all updates have too many elements
        for an Arrow column.
        """
        return list_ends(super().scan(updates, initial, values), last=True)

    def results(self, state: Columns) -> pa.Array:
        """Return the last struct of each list in the only column of ``state``, null for an empty
        list or for null.
        """
        return list_ends(state[0], last=True)


@dataclass(frozen=True)
class _HeldElements:
    """The m elements of all lists, by (group, time). The list of an update holds the elements whose
    span covers it.

    | update | row       | span of the row's element | list after the update |
    |--------|-----------|---------------------------|-----------------------|
    | 0      | x         | 0 to 3                    | x                     |
    | 1      | y         | 1 to 4                    | x, y                  |
    | 2      | x         | 2 to 4                    | x, y, x               |
    | 3      | retract x | none                      | y, x                  |
    """

    pool: pa.Array
    """The values of the elements, and of retracted rows."""
    row: Ints
    """int64[m]: the element's index in ``pool``."""
    group: Ints
    """int64[m]: the group of each element."""
    first: Ints
    """int64[m]: the first update whose list has the element."""
    end: Ints
    """int64[m]: the exclusive end of these updates."""
    stays: Mask
    """bool[m]: the element is there after the last update."""


def _held_elements(updates: GroupUpdates, stored: pa.Array, values: pa.Array) -> _HeldElements:
    """Return the elements of the ``stored`` lists and of a batch's ``values``, each with the range
    of updates after which its list has it. Elements are by group, then arrival; nulls in ``values``
    are left out.

    A range has indices among all updates, from ``first`` to the exclusive ``end``. It begins with
    the group's first update for a stored element. It ends with the group's last update for one that
    stays. ``updates``: rows added to groups or retracted from them, by group, then time.
    ``stored``: a column with the list of each group, null for none. ``values``: one per update. A
    retracted value ends the first element of its group that equals it. Asserts that there is one.
    Floats are compared by their bits, but all NaNs of a column of floats are equal.
    """
    old_group, old = list_elements(stored)
    update = np.flatnonzero(not_null_mask(values))
    pool = pa.concat_arrays([old, values.take(pa.array(update))])
    group = np.concatenate([old_group, updates.group[update]])
    first = np.concatenate([updates.bounds[old_group], update])
    end = updates.bounds[group + 1]
    gone = np.append(np.zeros(len(old), dtype=np.bool_), updates.retracted[update])
    stays = ~gone
    if gone.any():
        value = value_numbers(with_one_nan(pool))
        group_value = group * (int(value.max(initial=0)) + 1) + value
        added, taken = _pair_going_with_come(group_value, gone)
        end[added] = first[taken]
        stays[added] = False
    row = np.flatnonzero(~gone)
    row = row[stable_argsort(group[row])]
    return _HeldElements(pool, row, group[row], first[row], end[row], stays[row])


def _pair_going_with_come(group_value: Ints, gone: Mask) -> tuple[Ints, Ints]:
    """Pair the k-th retracted row of each group and value with the k-th added row of it: (added,
    retracted), indices into the rows, int64[retracted rows] each. Rows count in the order given.
    Pairs lie by ``group_value``, then by row.

    ``group_value``: int64[rows], an id of the row's group and value. ``gone``: bool[rows], the row
    is retracted. Asserts that each value has at least as many added rows as retracted ones.
    """
    added, taken = np.flatnonzero(~gone), np.flatnonzero(gone)
    added = added[stable_argsort(group_value[added])]
    taken = taken[stable_argsort(group_value[taken])]
    sought = group_value[taken]
    ordinal = np.arange(len(taken)) - np.searchsorted(sought, sought)
    index = np.searchsorted(group_value[added], sought) + ordinal
    assert np.all(index < np.searchsorted(group_value[added], sought, side="right")), (
        "not in the group"
    )
    return added[index], taken


@dataclass(frozen=True)
class CollectSet(Listing):
    """The distinct values that are not null. They are in ascending order if their type has one
    (``arrays.ordering``). Otherwise they are in the order in which they arrived; one that has left
    and come back counts from its return.

    Values are equal if their bits are; all NaNs are one value. The accumulator is the values and,
    if rows may leave, their counts (``aggregates.multiset``). ``scan`` builds a list for each
    update, so its output grows with the square of a group's updates.
    """

    values: pa.DataType
    """The type of the column."""
    retractable: bool
    """True if rows may leave a group."""

    @property
    def state(self) -> tuple[pa.DataType, ...]:
        """The types of the list of values and, if ``retractable``, of the list of counts."""
        return (list_of(self.values), *[list_of(pa.int64())] * self.retractable)

    @property
    def ordered(self) -> bool:
        """True if the list is in the order of its values, because their type has one."""
        return is_ordered(self.values)

    @property
    def reads(self) -> Literal["all"]:
        """The part of the list that a result needs: all of it."""
        return "all"

    @property
    def result(self) -> pa.DataType:
        """The type of a list of the column's values."""
        return list_of(self.values)

    @property
    def retracts(self) -> bool:
        """True if rows can be retracted: if ``retractable``, since counts are stored then."""
        return self.retractable

    @property
    def commutes(self) -> bool:
        """True if the accumulator does not depend on the order of rows, because the type of the
        values has an order. False for nested types, which have none.
        """
        return is_ordered(self.values)

    def scan(self, updates: GroupUpdates, initial: Columns, values: Columns) -> pa.Array:
        """Return the distinct values in the group after each update as a list, one row per update;
        empty without values. A list is in the order of its values. If their type has none, it is in
        the order of arrival: that since which the value has been in the group without a break. In a
        column of floats all NaNs are one value, the last; -0.0 and 0.0 are two. Nested floats are
        compared by their bits.

        ``updates``: rows added to groups or, only if ``retractable``, retracted from them. A
        retracted value must have been added before; this is not checked. ``initial``: the stored
        lists of each group (values and, if ``retractable``, counts), null for none. ``values``: one
        column, one row per update; nulls are left out. Raises ``AggregateError`` if the lists of
        all updates have too many elements for an Arrow column.
        """
        value_spans = multiset_spans(updates, [initial], values[0])
        value_spans = value_spans.where(
            (value_spans.count > 0) & (value_spans.first < value_spans.end)
        )
        if not self.ordered:
            value_spans = value_spans.where(np.argsort(value_spans.since, kind="stable"))
        span, update = expand_ranges(value_spans.first, value_spans.end)
        span = span[stable_argsort(update)]
        size = np.bincount(update, minlength=len(updates))
        return lists_of(size, value_spans.pool.take(pa.array(value_spans.row[span])))

    def traced(
        self, updates: GroupUpdates, initial: Columns, values: Columns
    ) -> TracedAccumulators:
        """Return each group's lists after its last update, one row per group, distinct values and,
        if ``retractable``, their counts. They come with the origin of each element
        (``TracedAccumulators``): the stored element or value of the batch that it comes from. A
        group without updates keeps its lists; null becomes an empty list.

        ``updates``: rows added to groups or retracted from them, by group, then time. ``initial``:
        the stored lists of each group, null for none. ``values``: one column, one row per update;
        nulls are left out. Raises ``AggregateError`` if the lists have too many elements for an
        Arrow column.
        """
        return self._traced_accumulators(
            multiset_spans(updates, [initial], values[0]), updates.groups
        )

    def merged(self, left: Columns, right: Columns) -> list[pa.Array]:
        """Return the lists of the distinct values of ``left`` and ``right`` together, row by row
        and, if ``retractable``, the lists of their added counts. Null counts as empty, and no
        returned list is null. Values ascend; if the type has no order, those of ``left`` come
        first. Raises ``AggregateError`` if the lists have too many elements for an Arrow column.
        """
        rows = len(left[0])
        none = GroupUpdates.added(np.zeros(0, np.int64), rows)
        return self._traced_accumulators(
            multiset_spans(none, [left, right], pa.nulls(0, self.values)), rows
        ).columns

    def results(self, state: Columns) -> pa.Array:
        """Return the lists of values, the first column of ``state``, an empty list for null."""
        return _empty_for_null(state[0])

    def _traced_accumulators(self, value_spans: Spans, groups: int) -> TracedAccumulators:
        """Return the accumulators after the last update with the origin of each element
        (``TracedAccumulators``): the stored or new value that it comes from. They are a column of
        lists of values and, if ``retractable``, one of lists of counts, one row per group.

        ``value_spans``: the ranges of updates during which a group has a value, all of the batch,
        by (group, value, time). ``groups``: the count of groups. Raises ``AggregateError`` if the
        lists have too many elements for an Arrow column.
        """
        traced = stored_lists(value_spans, groups)
        return replace(traced, columns=traced.columns[: len(self.state)])


def _empty_for_null(lists: pa.Array) -> pa.Array:
    """Return a column of lists with an empty list in place of each null."""
    return lists_of(list_sizes(lists), lists.flatten()) if lists.null_count else lists
