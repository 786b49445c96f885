"""What an aggregate over changing groups is.

A group is updated by rows, one after the other: a row is added to it or, where it was there before
and is replaced or deleted, taken out again (retracted). An aggregate keeps an *accumulator* per
group, some Arrow columns, from which its result is read; the accumulator alone crosses batches.

The law of all aggregates: the answer does not depend on how the updates are cut into batches, bit
for bit, nor on rows that have left again. So all sums are exact, those of floats too
(``exact_floats``), and rounded only when a result is read.

The kinds: ``sums`` (count, sum, mean), ``min_max``, ``top``, ``first_last``, ``collect``
(collect_list, collect_set), ``distinct`` (count_distinct), ``hyperloglog``
(approx_count_distinct), ``user_defined``.
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
    """What an aggregate cannot compute: ``problem``, and the ``remedy``. The operator that raises
    it to its user adds its own name and the aggregate's.
    """

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(problem, remedy)
        self.problem = problem
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.problem}. {self.remedy}."


class AggregateOverflowError(AggregateError, ArithmeticError):
    """A result that its type cannot hold, as Spark raises it in ANSI mode."""


@dataclass(frozen=True)
class Updates:
    """n updates of groups, side by side by group and in each in the order in which they happen: a
    row is added to its group or, where ``retracted``, taken out of it, having been added before.

    ``group``: int64[n], non-decreasing, 0..groups-1 (a group may have none); ``retracted``:
    bool[n].
    """

    group: Ints
    groups: int
    retracted: Mask

    def __len__(self) -> int:
        return len(self.group)

    @cached_property
    def bounds(self) -> Ints:
        """int64[groups + 1]: where each group's updates begin, and the end."""
        bounds = np.zeros(self.groups + 1, dtype=np.int64)
        np.cumsum(np.bincount(self.group, minlength=self.groups), out=bounds[1:])
        return bounds

    @cached_property
    def updated(self) -> Ints:
        """The groups that have updates, ascending."""
        return np.flatnonzero(np.diff(self.bounds))

    @cached_property
    def last(self) -> Ints:
        """The last update of each group that has one."""
        return self.bounds[self.updated + 1] - 1

    @cached_property
    def sign(self) -> Ints:
        """int64[n]: 1 for a row that is added, -1 for one that is retracted."""
        return 1 - 2 * self.retracted.astype(np.int64)

    def where(self, kept: Mask) -> Updates:
        """Some of the updates, of the same groups."""
        return Updates(self.group[kept], self.groups, self.retracted[kept])


@dataclass(frozen=True)
class Traced:
    """Accumulators and, where they list values (``multiset.Listing``), of each element of all lists
    where it is from.

    ``since``, ``latest``: int64[m], what brought the element into its group to stay, and what
    updated it last: a place among the stored elements of all groups or, from their number on, among
    the batch's values that are not null.
    """

    columns: list[pa.Array]
    since: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    latest: Ints = field(default_factory=lambda: np.zeros(0, np.int64))


class Aggregate(ABC):
    """One aggregate, as an operator runs it: a frozen dataclass that can be pickled.

    ``state``: the types of the accumulator's columns; ``result``: the type of its result;
    ``retracts``: whether rows can be taken out again (otherwise no update is retracted). ``values``
    are the aggregate's columns, a row per update; ``initial`` is the stored accumulator per group,
    null in all columns where the group is new.
    """

    @property
    @abstractmethod
    def state(self) -> tuple[pa.DataType, ...]:
        """The types of the accumulator's columns."""

    @property
    @abstractmethod
    def result(self) -> pa.DataType:
        """The type of the result."""

    @property
    def retracts(self) -> bool:
        """Whether rows can be retracted."""
        return True

    @property
    def commutes(self) -> bool:
        """Whether the accumulator is the same whatever the order of the rows, bit for bit."""
        return False

    @abstractmethod
    def scan(self, updates: Updates, initial: Columns, values: Columns) -> pa.Array:
        """The result after each update: n rows.

        Equals ``results`` of the accumulators after each update. (Those are not made: of a
        collection there would be one for each update, each as large as its group.)
        """

    @abstractmethod
    def after(self, updates: Updates, initial: Columns, values: Columns) -> list[pa.Array]:
        """The accumulators after the last update: one row per group, any where it has none."""

    @abstractmethod
    def merged(self, left: Columns, right: Columns) -> list[pa.Array]:
        """Row by row the accumulators of both's rows, ``left``'s before ``right``'s."""

    @abstractmethod
    def results(self, state: Columns) -> pa.Array:
        """The result of each accumulator; ``AggregateOverflowError`` where one does not fit."""

    def fold(self, updates: Updates, initial: Columns, values: Columns) -> list[pa.Array]:
        """The accumulators after each group's last update, ``initial`` where it has none: a row per
        group. Their ``results`` are what ``scan`` gives at these updates.
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

    def traced(self, updates: Updates, initial: Columns, values: Columns) -> Traced:
        """The accumulators after the last update; each group has one."""
        return Traced(self.fold(updates, initial, values))


class Accumulating(Aggregate):
    """An aggregate whose accumulators are small, so that they can be made for each update."""

    @abstractmethod
    def accumulated(self, updates: Updates, initial: Columns, values: Columns) -> list[pa.Array]:
        """The accumulators after each update: n rows."""

    def scan(self, updates: Updates, initial: Columns, values: Columns) -> pa.Array:
        """The results of the accumulators after each update."""
        return self.results(self.accumulated(updates, initial, values))

    def after(self, updates: Updates, initial: Columns, values: Columns) -> list[pa.Array]:
        """The accumulators at the last updates."""
        index = np.zeros(updates.groups, dtype=np.int64)
        index[updates.updated] = updates.last
        if len(updates) == 0:
            return list(initial)
        last = pa.array(index)
        return [c.take(last) for c in self.accumulated(updates, initial, values)]


def nulls(types: Sequence[pa.DataType], rows: int) -> list[pa.Array]:
    """The accumulators of ``rows`` new groups."""
    return [pa.nulls(rows, type_) for type_ in types]


def valid(array: pa.Array) -> Mask:
    """Which elements are not null: bool[n]."""
    if array.null_count == 0:
        return np.ones(len(array), dtype=np.bool_)
    return array.is_valid().to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def numbers(column: pa.Array) -> Ints:
    """An integer column as int64[n], 0 for null."""
    filled = column.fill_null(0) if column.null_count else column
    return filled.to_numpy(zero_copy_only=False).astype(np.int64)  # type: ignore[no-any-return]
