"""collect_list, collect_set and the last row of a group."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pyarrow as pa

from dovetail.aggregates.aggregate import Columns, Ints, Mask, Traced, Updates, valid
from dovetail.aggregates.multiset import (
    Listing,
    Spans,
    classes,
    elements,
    list_of,
    lists_of,
    sizes,
    spans,
    stored_lists,
)
from dovetail.aggregates.scans import running_sum
from dovetail.arrays.grouping import stable_argsort
from dovetail.arrays.ordering import canonical, is_ordered
from dovetail.arrays.search import expand


@dataclass(frozen=True)
class CollectList(Listing):
    """The values that are not null, in the order in which they came; empty where there are none.
    A row that is retracted takes the first value with it that is equal to its own.

    ``values``: the type of the column. Accumulator: the list. ``scan`` makes a list for each
    update, so what it returns grows with the square of a group's updates.
    """

    values: pa.DataType

    ordered = False

    @property
    def state(self) -> tuple[pa.DataType, ...]:
        """The list."""
        return (list_of(self.values),)

    @property
    def reads(self) -> Literal["all"]:
        """All."""
        return "all"

    @property
    def result(self) -> pa.DataType:
        """A list of the column's type."""
        return list_of(self.values)

    def scan(self, updates: Updates, initial: Columns, values: Columns) -> pa.Array:
        """The list after each update."""
        listed = self.listed(values)
        held = _held(updates, initial[0], listed)
        if updates.retracted.any():
            which, update = expand(held.first, held.end)
            which = which[stable_argsort(update)]
            size = np.bincount(update, minlength=len(updates))
        else:
            added = valid(listed).astype(np.int64)
            size = running_sum(updates, added, sizes(initial[0]))
            start = np.searchsorted(held.group, np.arange(updates.groups))[updates.group]
            which = expand(start, start + size)[1]
        return lists_of(size, held.pool.take(pa.array(held.row[which])))

    def traced(self, updates: Updates, initial: Columns, values: Columns) -> Traced:
        """The lists after the last updates."""
        held = _held(updates, initial[0], self.listed(values))
        size = np.bincount(held.group[held.stays], minlength=updates.groups)
        row = held.row[held.stays]
        return Traced([lists_of(size, held.pool.take(pa.array(row)))], row, row)

    def merged(self, left: Columns, right: Columns) -> list[pa.Array]:
        """The left's list, then the right's. (Where rows have left the right side, an equal value
        of the left's would have gone in their place: the values are the same, the order is not.)
        """
        group, added = elements(right[0])
        updates = Updates(group, len(left[0]), np.zeros(len(group), dtype=np.bool_))
        return self.after(updates, left, [added])

    def results(self, state: Columns) -> pa.Array:
        """The lists."""
        return _no_nulls(state[0])


@dataclass(frozen=True)
class LastRow(CollectList):
    """Of the rows of a group the one that came last, as a struct (``values``); null where there is
    none. ``unique``: a batch may leave one at most, of a group whose columns have the names
    ``key``; in between there may be more.
    """

    unique: bool
    key: tuple[str, ...]

    @property
    def result(self) -> pa.DataType:
        """A row."""
        return self.values

    def listed(self, values: Columns) -> pa.Array:
        """The rows."""
        return pa.StructArray.from_arrays(list(values), fields=list(self.values))

    def scan(self, updates: Updates, initial: Columns, values: Columns) -> pa.Array:
        """The last row after each update."""
        return _last(super().scan(updates, initial, values))

    def results(self, state: Columns) -> pa.Array:
        """The last row of each list."""
        return _last(state[0])


def _last(lists: pa.Array) -> pa.Array:
    """The last element of each list, null where it has none."""
    size = sizes(lists)
    end = np.cumsum(size)
    return lists.flatten().take(pa.array(end - 1, mask=size == 0))


@dataclass(frozen=True)
class _Held:
    """The elements of all lists, by (group, time): ``row``: int64[m], the element in ``pool``;
    ``first``, ``end``: int64[m], the updates during which its list has it; ``stays``: bool[m],
    whether it is there after the last one.
    """

    pool: pa.Array
    row: Ints
    group: Ints
    first: Ints
    end: Ints
    stays: Mask


def _held(updates: Updates, stored: pa.Array, values: pa.Array) -> _Held:
    old_group, old = elements(stored)
    update = np.flatnonzero(valid(values))
    pool = pa.concat_arrays([old, values.take(pa.array(update))])
    group = np.concatenate([old_group, updates.group[update]])
    first = np.concatenate([updates.bounds[old_group], update])
    end = updates.bounds[group + 1]
    gone = np.append(np.zeros(len(old), dtype=np.bool_), updates.retracted[update])
    stays = ~gone
    if gone.any():
        value = classes(canonical(pool))
        place = group * (int(value.max(initial=0)) + 1) + value
        added, taken = _pairs(place, gone)
        end[added] = first[taken]
        stays[added] = False
    row = np.flatnonzero(~gone)
    row = row[stable_argsort(group[row])]
    return _Held(pool, row, group[row], first[row], end[row], stays[row])


def _pairs(place: Ints, gone: Mask) -> tuple[Ints, Ints]:
    """The k-th row that is added at a place, with the k-th one that is taken from there."""
    added, taken = np.flatnonzero(~gone), np.flatnonzero(gone)
    added = added[stable_argsort(place[added])]
    taken = taken[stable_argsort(place[taken])]
    sought = place[taken]
    ordinal = np.arange(len(taken)) - np.searchsorted(sought, sought)
    index = np.searchsorted(place[added], sought) + ordinal
    assert np.all(index < np.searchsorted(place[added], sought, side="right")), "not in the group"
    return added[index], taken


@dataclass(frozen=True)
class CollectSet(Listing):
    """The distinct values that are not null, in ascending order where their type has one
    (``arrays.ordering``), otherwise in the order in which they came to stay. Values are equal
    where their bits are; all NaNs are one.

    ``values``: the type of the column; ``retractable``: whether rows may leave. Accumulator: the
    values and, where rows may leave, their counts (``aggregates.multiset``). ``scan`` makes a
    list for each update, so what it returns grows with the square of a group's updates.
    """

    values: pa.DataType
    retractable: bool

    @property
    def state(self) -> tuple[pa.DataType, ...]:
        """One list or two."""
        return (list_of(self.values), *[list_of(pa.int64())] * self.retractable)

    @property
    def ordered(self) -> bool:
        """By value where its type has an order."""
        return is_ordered(self.values)

    @property
    def reads(self) -> Literal["all"]:
        """All."""
        return "all"

    @property
    def result(self) -> pa.DataType:
        """A list of the column's type."""
        return list_of(self.values)

    @property
    def retracts(self) -> bool:
        """Where the counts are kept."""
        return self.retractable

    @property
    def commutes(self) -> bool:
        """Where the values are in their own order."""
        return is_ordered(self.values)

    def scan(self, updates: Updates, initial: Columns, values: Columns) -> pa.Array:
        """The set after each update: the values whose spans hold it."""
        found = spans(updates, [initial], values[0])
        found = found.where((found.count > 0) & (found.first < found.end))
        if not self.ordered:
            found = found.where(np.argsort(found.since, kind="stable"))
        which, update = expand(found.first, found.end)
        which = which[stable_argsort(update)]
        size = np.bincount(update, minlength=len(updates))
        return lists_of(size, found.pool.take(pa.array(found.row[which])))

    def traced(self, updates: Updates, initial: Columns, values: Columns) -> Traced:
        """The sets after the last updates."""
        return self._stored(spans(updates, [initial], values[0]), updates.groups)

    def merged(self, left: Columns, right: Columns) -> list[pa.Array]:
        """The values of both, the left's first."""
        rows = len(left[0])
        none = Updates(np.zeros(0, np.int64), rows, np.zeros(0, np.bool_))
        return self._stored(spans(none, [left, right], pa.nulls(0, self.values)), rows).columns

    def results(self, state: Columns) -> pa.Array:
        """The sets."""
        return _no_nulls(state[0])

    def _stored(self, found: Spans, groups: int) -> Traced:
        traced = stored_lists(found, groups)
        return replace(traced, columns=traced.columns[: len(self.state)])


def _no_nulls(lists: pa.Array) -> pa.Array:
    """The same lists, empty for null."""
    return lists_of(sizes(lists), lists.flatten()) if lists.null_count else lists
