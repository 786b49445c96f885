"""The interface of aggregates over changing groups.

A group is updated by rows, one after the other. A row is added, or a row that was added before is
*retracted*, taken out again, because it is replaced or deleted. An aggregate keeps an *accumulator*
per group: some Arrow columns from which its result is computed. Only the accumulator crosses
batches.

The law of all aggregates: the result depends neither on how updates are cut into batches, bit for
bit, nor on rows that have left again. So all sums are exact, even those of floats
(``exact_floats``), and are rounded only when a result is computed.

| module             | aggregates                |
|--------------------|---------------------------|
| ``sums``           | count, sum, mean          |
| ``min_max``        | min, max                  |
| ``top``            | top                       |
| ``first_last``     | first, last               |
| ``collect``        | collect_list, collect_set |
| ``distinct``       | count_distinct            |
| ``hyperloglog``    | approx_count_distinct     |
| ``user_defined``   | functions of the user     |
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Columns: TypeAlias = Sequence[pa.Array]


class AggregateError(ValueError):
    """An aggregate cannot be computed: ``problem`` says why, ``remedy`` what to do. The operator
    that raises it adds its own name and the aggregate's.
    """

    def __init__(self, problem: str, remedy: str) -> None:
        """Hold ``problem``, which says why the aggregate fails, and ``remedy``, which says what to
        do. Both are sentences without a full stop.
        """
        super().__init__(problem, remedy)
        self.problem = problem
        self.remedy = remedy

    def __str__(self) -> str:
        """Return the problem and the remedy as two sentences."""
        return f"{self.problem}. {self.remedy}."


class AggregateOverflowError(AggregateError, ArithmeticError):
    """A result does not fit its type. Spark raises it, too, in ANSI mode."""


@dataclass(frozen=True)
class GroupUpdates:
    """The n updates of some groups, by (group, time): each row is added to its group or retracted
    from it.
    """

    group: Ints
    """int64[n], non-decreasing, 0 to ``groups - 1``. A group may have no updates."""
    groups: int
    """The number of groups."""
    retracted: Mask
    """bool[n]: the row is taken out; it was added before."""

    @classmethod
    def added(cls, group: Ints, groups: int) -> GroupUpdates:
        """Return the updates of rows that are all added, possibly none. ``group``, ``groups``: as
        the fields.
        """
        return cls(group, groups, np.zeros(len(group), np.bool_))

    def __len__(self) -> int:
        """Return the count of updates."""
        return len(self.group)

    @cached_property
    def bounds(self) -> Ints:
        """The index of each group's first update, in the order of groups, then n: int64[groups +
        1]. A group without updates has the index at which its updates would begin. Computed once.
        """
        bounds = np.zeros(self.groups + 1, dtype=np.int64)
        np.cumsum(np.bincount(self.group, minlength=self.groups), out=bounds[1:])
        return bounds

    @cached_property
    def updated(self) -> Ints:
        """The indices, from 0, of the groups that have updates, ascending: int64[updated groups].
        Computed once.
        """
        return np.flatnonzero(np.diff(self.bounds))

    @cached_property
    def last(self) -> Ints:
        """The index, among the n updates, of the last update of each group in ``updated``, in the
        same order: int64[updated groups]. Computed once.
        """
        return self.bounds[self.updated + 1] - 1

    @cached_property
    def sign(self) -> Ints:
        """The sign of each update: int64[n], 1 for a row that is added, -1 for one that is
        retracted. Computed once.
        """
        return 1 - 2 * self.retracted.astype(np.int64)

    def where(self, selected: Mask) -> GroupUpdates:
        """Return new ``GroupUpdates`` of the updates whose element of ``selected``, bool[n], is
        true, in their order. ``groups`` and the indices of groups stay the same, so a group may
        have no updates left.
        """
        return GroupUpdates(self.group[selected], self.groups, self.retracted[selected])


@dataclass(frozen=True)
class TracedAccumulators:
    """Accumulators and the origin of each element of their lists (``multiset.Listing``).

    Origins count the stored elements of all groups, k of them, from 0, group by group. An origin
    from k on, less k, is an index into the batch's values that are not null. There are no origins
    if the accumulators have no lists.
    """

    columns: list[pa.Array]
    """The accumulators, one row per group."""
    since: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """int64[m]: the origin that brought each element into its group to stay."""
    latest: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """int64[m]: the origin that updated each element last."""


class Aggregate(ABC):
    """One aggregate, as an operator runs it: a frozen dataclass that can be pickled.

    In all methods ``values`` are the aggregate's columns, a row per update. ``initial`` is the
    stored accumulator per group, null in all columns for a new group. A method raises
    ``AggregateError`` if a list is too long for an Arrow column, or if a function of the user
    fails.
    """

    @property
    @abstractmethod
    def state(self) -> tuple[pa.DataType, ...]:
        """The Arrow types of the accumulator's columns, in order."""

    @property
    @abstractmethod
    def result(self) -> pa.DataType:
        """The Arrow type of the result."""

    @property
    def retracts(self) -> bool:
        """True, the default, if rows can be taken out of a group again. If False, no update may be
        a retracted one.
        """
        return True

    @property
    def commutes(self) -> bool:
        """True if the accumulator does not depend on the order of rows, bit for bit; False by
        default.
        """
        return False

    # The accumulators after each update are not built: a collection would need one as large as its
    # group for each update.
    @abstractmethod
    def scan(self, updates: GroupUpdates, initial: Columns, values: Columns) -> pa.Array:
        """Return the result after each update: n rows, in the order of the updates. They equal
        ``results`` of the accumulators after each update.

        ``updates``: n rows that are added to groups or retracted from them, by group, then time. A
        retracted row must have been added before. ``initial``: the columns of the stored
        accumulators, one row per group, null in all for a new group. ``values``: the aggregate's
        input columns, one row per update. Raises ``AggregateOverflowError`` if a result does not
        fit its type.
        """

    @abstractmethod
    def after(self, updates: GroupUpdates, initial: Columns, values: Columns) -> list[pa.Array]:
        """Return the columns of the accumulators after each group's last update: one row per group,
        arbitrary for a group without updates (``fold`` corrects these).

        ``updates``: rows that are added to groups or retracted from them, by group, then time. A
        retracted row must have been added before. ``initial``: the columns of the stored
        accumulators, one row per group, null in all for a new group. ``values``: the aggregate's
        input columns, one row per update.
        """

    @abstractmethod
    def merged(self, left: Columns, right: Columns) -> list[pa.Array]:
        """Merge n pairs of accumulators: row i of the result is the accumulator of the rows behind
        row i of ``left``, then those behind row i of ``right``. ``left``, ``right``: the columns of
        n accumulators each. Null in all columns stands for no rows. Two such rows give an
        accumulator of no rows, which need not be null. Raises ``AggregateError`` if a list is too
        long for an Arrow column, or if a function of the user fails.
        """

    @abstractmethod
    def results(self, state: Columns) -> pa.Array:
        """Return the result of each accumulator, one row each, of the type ``result``. ``state``:
        the columns of the accumulators; null in all columns stands for no rows. No rows give 0 as a
        count, an empty list as a collection, else null; a user's aggregate decides itself.

        Raises ``AggregateOverflowError`` if a result does not fit its type.
        """

    def fold(self, updates: GroupUpdates, initial: Columns, values: Columns) -> list[pa.Array]:
        """Return the columns of the accumulators after each group's last update: one row per group,
        that of ``initial`` for a group without updates. Their ``results`` equal ``scan`` at the
        last updates.

        ``updates``: rows that are added to groups or retracted from them, by group, then time.
        Asserts that none is retracted unless the aggregate ``retracts``. ``initial``: the columns
        of the stored accumulators, one row per group, null in all for a new group. ``values``: the
        aggregate's input columns, one row per update. A result that does not fit its type is no
        error here, only in ``results`` and ``scan``.
        """
        assert self.retracts or not updates.retracted.any(), "a row cannot be retracted"
        computed = self.after(updates, initial, values)
        if len(updates.updated) == updates.groups:
            return computed
        index = np.arange(updates.groups)
        index[updates.updated] += updates.groups
        chosen = pa.array(index)
        return [
            pa.concat_arrays([old, new]).take(chosen)
            for old, new in zip(initial, computed, strict=True)
        ]

    def traced(
        self, updates: GroupUpdates, initial: Columns, values: Columns
    ) -> TracedAccumulators:
        """Return the accumulators after each group's last update, with the origins of their lists'
        elements (``TracedAccumulators``). An origin says which value an element comes from. Origins
        from 0 to k - 1 are the k elements of the stored lists, group by group. From k on, less k,
        they are indices into the batch's values that are not null. This default is for accumulators
        without lists: it returns ``fold`` with empty arrays of origins.

        ``updates``: rows added to groups or retracted from them, by group, then time. ``initial``:
        the columns of the stored accumulators, one row per group, null for a new one. ``values``:
        the input columns, one row per update.
        """
        return TracedAccumulators(self.fold(updates, initial, values))


class Accumulating(Aggregate):
    """An aggregate with accumulators so small that one can be built for each update."""

    @abstractmethod
    def accumulated(
        self, updates: GroupUpdates, initial: Columns, values: Columns
    ) -> list[pa.Array]:
        """Return the columns of the accumulators after each update: n rows, in the order of the
        updates.

        ``updates``: n rows that are added to groups or retracted from them, by group, then time.
        ``initial``: the columns of the stored accumulators, one row per group, null for a new
        group. ``values``: the input columns, one row per update.
        """

    def scan(self, updates: GroupUpdates, initial: Columns, values: Columns) -> pa.Array:
        """Return the result after each of the n ``updates``, in their order, as one array. Raises
        ``AggregateOverflowError`` if a result does not fit its type. ``initial``: the columns of
        the stored accumulators, one row per group, null for a new group. ``values``: the input
        columns, one row per update.
        """
        return self.results(self.accumulated(updates, initial, values))

    def after(self, updates: GroupUpdates, initial: Columns, values: Columns) -> list[pa.Array]:
        """Return the columns of the accumulators after each group's last update: one row per group,
        arbitrary for a group without updates. If there are no updates at all, return ``initial``.

        ``updates``: rows added to groups or retracted from them, by group, then time. ``initial``:
        the columns of the stored accumulators, one row per group, null for a new group. ``values``:
        the input columns, one row per update.
        """
        index = np.zeros(updates.groups, dtype=np.int64)
        index[updates.updated] = updates.last
        if len(updates) == 0:
            return list(initial)
        last = pa.array(index)
        return [c.take(last) for c in self.accumulated(updates, initial, values)]


def null_accumulators(types: Sequence[pa.DataType], rows: int) -> list[pa.Array]:
    """Return the columns of ``rows`` accumulators of groups without rows: for each of ``types`` a
    column of ``rows`` nulls.
    """
    return [pa.nulls(rows, type_) for type_ in types]


def not_null_mask(array: pa.Array) -> Mask:
    """Return the mask of an array's elements that are not null: bool[n]."""
    if array.null_count == 0:
        return np.ones(len(array), dtype=np.bool_)
    return array.is_valid().to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def int64_values(column: pa.Array) -> Ints:
    """Return an Arrow column of integers as a new int64[n], 0 for null."""
    filled = column.fill_null(0) if column.null_count else column
    return filled.to_numpy(zero_copy_only=False).astype(np.int64)  # type: ignore[no-any-return]
