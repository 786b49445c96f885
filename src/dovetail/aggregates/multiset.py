"""Which values a group has, and how often: what min, max, top, collect_set and count_distinct need
to take rows back.

A multiset is stored as a list of distinct values and a list of their counts. Within a batch each
update of a value begins a span of updates during which the group has it so many times; nothing is
made for the values that a update leaves alone.
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
    Ints,
    Mask,
    Traced,
    Updates,
    numbers,
    valid,
)
from dovetail.arrays.grouping import by_key, stable_argsort
from dovetail.arrays.hashing import stable_hash
from dovetail.arrays.ordering import canonical, is_ordered, keyed

_LIST_END_MAX = int(np.iinfo(np.int32).max)

Reads: TypeAlias = Literal["first", "last", "all", "none"]


class Listing(Aggregate):
    """An aggregate whose accumulator lists its group's values, so that it grows with the group.

    Those columns of the accumulator that are lists come first, each as long as the first, which has
    the values. ``ordered``: whether they are listed in their own order, otherwise in that of
    arrival: what comes is then last; ``reads``: what of the lists a result is made from, of an end
    so many values as ``reach`` says. What is made of some part of a list is the same as of all,
    where the part has the values that are updated and, at that end, ``reach`` values more than
    updates take away.
    """

    @property
    @abstractmethod
    def ordered(self) -> bool:
        """Whether values are listed in their own order."""

    @property
    @abstractmethod
    def reads(self) -> Reads:
        """What of the lists a result is made from."""

    @property
    def reach(self) -> int:
        """How many values of an end."""
        return 1

    @abstractmethod
    def traced(self, updates: Updates, initial: Columns, values: Columns) -> Traced:
        """The lists after the last update, and where their elements are from."""

    def after(self, updates: Updates, initial: Columns, values: Columns) -> list[pa.Array]:
        """The lists after the last update."""
        return self.traced(updates, initial, values).columns

    def listed(self, values: Columns) -> pa.Array:
        """What is listed of each row, null for nothing."""
        return values[0]

    def keys(self, values: Sequence[pa.Array]) -> list[Ints]:
        """Some listed values as int64 keys, which compare as they do."""
        return keyed(values).keys


@dataclass(frozen=True)
class Spans:
    """m spans of updates in each of which a group has a value ``count`` times, by (group, value,
    time).

    ``pool``: the values, those stored before those of the batch; ``row``, ``since``: int64[m], a
    span's value in the pool, and where it is that it came into the group to stay until then;
    ``value``: int64[m], a number per distinct value, or per group and value, in their order where
    they are ``ordered``; ``first``, ``end``: int64[m], the updates; ``count``: int64[m]; ``came``,
    ``went``, ``last``: bool[m], whether the value comes into its group with this span, whether it
    goes with it, whether the span is the last one of its value there.
    """

    pool: pa.Array
    row: Ints
    since: Ints
    group: Ints
    value: Ints
    first: Ints
    end: Ints
    count: Ints
    came: Mask
    went: Mask
    last: Mask
    ordered: bool

    def where(self, kept: Mask | Ints) -> Spans:
        """Some of the spans."""
        return Spans(
            self.pool,
            self.row[kept],
            self.since[kept],
            self.group[kept],
            self.value[kept],
            self.first[kept],
            self.end[kept],
            self.count[kept],
            self.came[kept],
            self.went[kept],
            self.last[kept],
            self.ordered,
        )


def spans(
    updates: Updates,
    stored: Sequence[Columns],
    values: pa.Array,
    number: Callable[[pa.Array, Ints], Ints] | None = None,
) -> Spans:
    """The spans of the stored values and of those of a batch. Nulls are no values.

    ``stored``: multisets, one row per group each, which are added up; without counts each value
    counts once. ``values``: one per update; ``number``: of values and their groups a number per
    group and distinct one, from 0, in their order, where that is not the one of the type.
    """
    members = [elements(lists[0]) for lists in stored]
    update = np.flatnonzero(valid(values))
    pool = canonical(
        pa.concat_arrays([*(member for _, member in members), values.take(pa.array(update))])
    )
    group = np.concatenate([*(group for group, _ in members), updates.group[update]])
    counts = [
        numbers(elements(lists[1])[1]) if len(lists) > 1 else np.ones(len(member), np.int64)
        for lists, (_, member) in zip(stored, members, strict=True)
    ]
    change = np.concatenate([*counts, updates.sign[update]])
    old = len(group) - len(update)
    first = np.concatenate([updates.bounds[group[:old]], update])
    value = classes(pool) if number is None else number(pool, group)
    place = group * (int(value.max(initial=0)) + 1) + value
    order = stable_argsort(place)
    group, value, first = group[order], value[order], first[order]
    new, count = _counts(place[order], change[order])
    last = np.append(new[1:], True)[: len(new)]
    end = np.where(last, updates.bounds[group + 1], np.append(first[1:], 0)[: len(first)])
    had = ~new & (np.append(0, count)[:-1] > 0)
    came, went = (count > 0) & ~had, (count <= 0) & had
    at = np.where(came, np.arange(len(order)), 0)
    since = order[np.maximum.accumulate(at)] if len(at) else order
    ordered = number is not None or is_ordered(pool.type)
    return Spans(pool, order, since, group, value, first, end, count, came, went, last, ordered)


def stored_lists(found: Spans, groups: int) -> Traced:
    """The multisets after the last update, values in the order of the type or else of arrival."""
    kept = found.where(found.last & (found.count > 0))
    if not found.ordered:
        kept = kept.where(np.lexsort((kept.since, kept.group)))
    size = np.bincount(kept.group, minlength=groups)
    values = found.pool.take(pa.array(kept.row))
    columns = [lists_of(size, values), lists_of(size, pa.array(kept.count))]
    return Traced(columns, kept.since, kept.row)


def classes(values: pa.Array) -> Ints:
    """A number per distinct value, from 0, in their order where their type has one."""
    if len(values) == 0:
        return np.zeros(0, dtype=np.int64)
    if is_ordered(values.type):
        keys = keyed([values])
        if keys.distinct is not None:
            return keys.keys[0]
        return np.unique(keys.keys[0], return_inverse=True)[1]
    order, new, _ = by_key(stable_hash([values]), [values], np.arange(len(values)))
    number = np.empty(len(order), dtype=np.int64)
    number[order] = np.cumsum(new) - 1
    return number


def elements(lists: pa.Array) -> tuple[Ints, pa.Array]:
    """All elements of a column of lists: which row each is in, and the elements."""
    return np.repeat(np.arange(len(lists)), sizes(lists)), lists.flatten()


def sizes(lists: pa.Array) -> Ints:
    """How many elements each list has, 0 for null."""
    return numbers(pc.list_value_length(lists))


def list_of(element: pa.DataType) -> pa.DataType:
    """The type of a list of values, with its elements named as Spark names them."""
    return pa.list_(pa.field("element", element))


def lists_of(size: Ints, values: pa.Array) -> pa.Array:
    """Build lists of these sizes from elements that lie one after the other."""
    end = np.cumsum(size)
    if len(end) and end[-1] > _LIST_END_MAX:
        raise AggregateError(
            f"the collections of a batch have {end[-1]} elements, more than an Arrow column holds",
            "Emit once per batch instead of every change, or read fewer rows at a time",
        )
    offsets = np.append(0, end).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), values, type=list_of(values.type))


def _counts(place: Ints, change: Ints) -> tuple[Mask, Ints]:
    """Where a new place begins, and the sum of its changes so far."""
    new = np.ones(len(place), dtype=np.bool_)
    new[1:] = place[1:] != place[:-1]
    start = np.flatnonzero(new)
    total = np.append(0, np.cumsum(change))
    return new, total[1:] - np.repeat(total[start], np.diff(start, append=len(place)))
