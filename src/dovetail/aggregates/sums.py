"""count, sum and mean. All are exact until a result is computed, which rounds once.

Infinities and NaNs are counted apart from the finite values, so they can be retracted.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dovetail.aggregates.aggregate import (
    Accumulating,
    Aggregate,
    AggregateOverflowError,
    Columns,
    GroupUpdates,
    Ints,
    Mask,
    int64_values,
    not_null_mask,
)
from dovetail.aggregates.exact_floats import (
    STORED,
    Floats,
    Limbs,
    add_stored_sums,
    load_stored_sums,
    sums_after_each,
    sums_at_the_end,
    to_nearest,
    to_quotients,
)
from dovetail.aggregates.exact_sums import (
    limb_count,
    limbs_of,
    normalize,
    quotients,
    to_decimals,
    to_doubles,
    to_longs,
)
from dovetail.aggregates.running_aggregates import final_sum, running_sum

_LONG = pa.int64()
_DOUBLE = pa.float64()
_EXACT = 1 << 21
"""The bound of the upper limb of a sum of longs whose double is exact: 2**53."""
_COUNTS = (0, 3, 4, 5)
"""The columns of a float accumulator that are counts: of values, NaNs, and infinities of either
sign.
"""


@dataclass(frozen=True)
class Count(Accumulating):
    """The count of rows or, with an input column, of its values that are not null; never null. The
    accumulator is the count.
    """

    commutes = True

    @property
    def state(self) -> tuple[pa.DataType, ...]:
        """The type of the accumulator's only column, the count: int64."""
        return (_LONG,)

    @property
    def result(self) -> pa.DataType:
        """The type of the result: int64."""
        return _LONG

    def accumulated(
        self, updates: GroupUpdates, initial: Columns, values: Columns
    ) -> list[pa.Array]:
        """Return one column, the count of each update's group after that update: int64, one row per
        update.

        ``updates``: rows added to groups (each counts 1) or retracted from them (each counts -1).
        ``initial``: one column, the stored count of each group, null for 0. ``values``: no column
        to count rows, or one column to count only its values that are not null.
        """
        return [
            pa.array(
                running_sum(updates, _count_summands(updates, values), int64_values(initial[0]))
            )
        ]

    def after(self, updates: GroupUpdates, initial: Columns, values: Columns) -> list[pa.Array]:
        """Return one column, the count after each group's last update: int64, one row per group,
        ``initial`` for a group without updates.

        ``updates``: rows added to groups (each counts 1) or retracted from them (each counts -1).
        ``initial``: one column, the stored count of each group, null for 0. ``values``: no column
        to count rows, or one column to count only its values that are not null.
        """
        return [
            pa.array(final_sum(updates, _count_summands(updates, values), int64_values(initial[0])))
        ]

    def merged(self, left: Columns, right: Columns) -> list[pa.Array]:
        """Return one column, the sums of the counts in ``left`` and ``right``, row by row. Each has
        one column of counts; null counts as 0.
        """
        return [pa.array(int64_values(left[0]) + int64_values(right[0]))]

    def results(self, state: Columns) -> pa.Array:
        """Return the counts, the only column of ``state``, as int64; 0 for null."""
        return pa.array(int64_values(state[0]))


class _Exact(Accumulating):
    """A result of an exact sum of integers or decimals; null if all values are null.

    The accumulator is the count of values, then the limbs of their sum: numbers of 32 bits, the
    lowest first (``aggregates.exact_sums``).
    """

    values: pa.DataType

    commutes = True

    @property
    def state(self) -> tuple[pa.DataType, ...]:
        """The types of the accumulator's columns: int64 for the count of values and for each limb
        of their sum. A limb is a column with 32 bits of the sum; there are two or four
        (``limb_count``).
        """
        return (_LONG,) * (1 + limb_count(self.values))

    def accumulated(
        self, updates: GroupUpdates, initial: Columns, values: Columns
    ) -> list[pa.Array]:
        """Return the columns of the accumulators after each update, one row per update: the count
        of the group's values that are not null, then the normal limbs of their sum, columns of 32
        bits each (``normalize``).

        ``updates``: rows added to groups or retracted from them; a retracted value is subtracted.
        ``initial``: the columns of the stored accumulators, one row per group, null for 0.
        ``values``: one column of integers or decimals, one row per update; nulls do not count.
        """
        return self._add_to_initial(running_sum, updates, initial, values)

    def after(self, updates: GroupUpdates, initial: Columns, values: Columns) -> list[pa.Array]:
        """Return the columns of the accumulators after each group's last update: the count of
        values, then the normal limbs of their sum, columns of 32 bits each (``normalize``). There
        is one row per group, ``initial`` for a group without updates.

        ``updates``: rows added to groups or retracted from them; a retracted value is subtracted.
        ``initial``: the columns of the stored accumulators, one row per group, null for 0.
        ``values``: one column of integers or decimals, one row per update; nulls do not count.
        """
        return self._add_to_initial(final_sum, updates, initial, values)

    def _add_to_initial(
        self,
        sums: Callable[[GroupUpdates, Ints, Ints], Ints],
        updates: GroupUpdates,
        initial: Columns,
        values: Columns,
    ) -> list[pa.Array]:
        """Return the columns of the accumulators with ``values`` added to ``initial``: a count,
        then the normal limbs of a sum, columns of 32 bits each.

        ``sums``: ``running_sum`` for a row per update, or ``final_sum`` for a row per group.
        ``updates``: rows added to groups or retracted from them, by group, then time. ``initial``:
        the columns of the stored accumulators, one row per group, null for 0. ``values``: one
        column, one row per update; nulls do not count.
        """
        summands = [_count_summands(updates, values)]
        summands += [updates.sign * limb for limb in limbs_of(values[0])]
        return _accumulator_columns(
            [
                sums(updates, summand, int64_values(start))
                for summand, start in zip(summands, initial, strict=True)
            ]
        )

    def merged(self, left: Columns, right: Columns) -> list[pa.Array]:
        """Return the columns of accumulators, a count and the limbs of a sum each (columns of 32
        bits), added row by row. The limbs of the result are normal (``normalize``): carries are
        done. ``left``, ``right``: the columns of as many accumulators; null counts as 0.
        """
        return _accumulator_columns(
            [int64_values(a) + int64_values(b) for a, b in zip(left, right, strict=True)]
        )

    def results(self, state: Columns) -> pa.Array:
        """Return the result of each accumulator, one row each, null if its count of values is 0.
        Raises ``AggregateOverflowError`` if a result does not fit its type. ``state``: the count of
        values, then the limbs of their sum, columns of 32 bits each, lowest first, normal.
        """
        count, *limbs = [int64_values(column) for column in state]
        result, fits = self._results_of_sums(count, limbs)
        if not np.all(fits | (count == 0)):
            raise AggregateOverflowError(
                f"a {self._title} does not fit its type {self.result}", self._remedy
            )
        return result

    @property
    def _remedy(self) -> str:
        """The advice in the error for a result that does not fit its type."""
        if pa.types.is_decimal(self.values):
            return "Cast the column to a decimal of more digits before the point"
        return "Cast the column to decimal(20,0) or another wider decimal"

    @property
    @abstractmethod
    def _title(self) -> str:
        """The aggregate's name in errors, such as ``sum``."""

    @abstractmethod
    def _results_of_sums(self, count: Ints, limbs: list[Ints]) -> tuple[pa.Array, Mask]:
        """Return n results, null for a count of 0, and a mask, bool[n], of those that fit their
        type; the others are arbitrary.

        ``count``: int64[n], the count of values in each sum. ``limbs``: the limbs of the n exact
        sums, 32 bits each, the lowest first, normal, int64[n] each.
        """


@dataclass(frozen=True)
class ExactSum(_Exact):
    """The sum of an integer column as a long, or of decimals with ten more digits."""

    values: pa.DataType
    """The type of the column."""

    @property
    def result(self) -> pa.DataType:
        """The type of the sum: int64 for integers. For decimals it is a decimal of the same scale
        with ten more digits, 38 at most.
        """
        if pa.types.is_decimal(self.values):
            return pa.decimal128(min(38, self.values.precision + 10), self.values.scale)
        return _LONG

    @property
    def _title(self) -> str:
        """The aggregate's name in errors, ``sum``."""
        return "sum"

    def _results_of_sums(self, count: Ints, limbs: list[Ints]) -> tuple[pa.Array, Mask]:
        """Return n sums, null for a count of 0, and a mask, bool[n], of those that fit their type;
        the others are arbitrary. ``count``: int64[n], the count of values in each sum. ``limbs``:
        the limbs of the n exact sums, 32 bits each, the lowest first, normal, int64[n] each.
        """
        if pa.types.is_decimal(self.values):
            return to_decimals(limbs, self.result, count != 0)
        longs, fits = to_longs(limbs)
        return pa.array(longs, mask=count == 0), fits


@dataclass(frozen=True)
class ExactMean(_Exact):
    """The mean of an integer column as a double, or of decimals with four more digits.

    The mean is the quotient of the exact sum, even if a sum would not fit its type. It is the
    nearest double; decimals are rounded half away from zero.
    """

    values: pa.DataType
    """The type of the column."""

    @property
    def result(self) -> pa.DataType:
        """The type of the mean: double for integers. For decimals it is a decimal with four more
        digits, all after the point; precision and scale are 38 at most.
        """
        if pa.types.is_decimal(self.values):
            precision, scale = self.values.precision, self.values.scale
            return pa.decimal128(min(38, precision + 4), min(38, scale + 4))
        return _DOUBLE

    @property
    def _title(self) -> str:
        """The aggregate's name in errors, ``mean``."""
        return "mean"

    def _results_of_sums(self, count: Ints, limbs: list[Ints]) -> tuple[pa.Array, Mask]:
        """Return n means, null for a count of 0, and a mask, bool[n], of those that fit their type;
        every double fits. A double is the nearest one; a decimal is rounded half away from zero.
        Decimals that do not fit are arbitrary. ``count``: int64[n], the count of values in each
        sum. ``limbs``: the limbs of the n exact sums, 32 bits each, the lowest first, normal,
        int64[n] each.
        """
        divisor = np.where(count == 0, 1, count)
        if pa.types.is_decimal(self.values):
            factor = 10 ** (self.result.scale - self.values.scale)
            return to_decimals(quotients(limbs, factor, divisor), self.result, count != 0)
        mean = to_doubles(limbs) / divisor
        # Beyond 2**53 the double of a sum is rounded, and its quotient would be once more.
        large = np.flatnonzero((limbs[-1] >= _EXACT) | (limbs[-1] < -_EXACT))
        if len(large):
            mean[large] = to_quotients(Limbs(0, np.array(limbs)[:, large]), divisor[large])
        return pa.array(mean, mask=count == 0), np.ones(len(mean), dtype=np.bool_)


class _Float(Aggregate):
    """A result of the exact sum of floats or doubles; null if all values are null.

    The accumulator is the count of values, the sum of the finite ones
    (``aggregates.exact_floats``), and the counts of NaN, infinity and minus infinity.
    """

    commutes = True

    @property
    def state(self) -> tuple[pa.DataType, ...]:
        """The types of the accumulator's columns: the count of values, the two columns of the
        finite sum (``STORED``), and the counts of NaNs, infinities and minus infinities.
        """
        return (_LONG, *STORED, _LONG, _LONG, _LONG)

    @property
    def result(self) -> pa.DataType:
        """The type double."""
        return _DOUBLE

    def scan(self, updates: GroupUpdates, initial: Columns, values: Columns) -> pa.Array:
        """Return the result after each update as doubles: one row per update, null while the group
        has no value. NaN and infinities among the group's values count as in ``results``.

        ``updates``: rows added to groups or retracted from them, by group, then time. ``initial``:
        the columns of the stored accumulators, one row per group, null for a new group. ``values``:
        one column of floats or doubles, one row per update; nulls do not count.
        """
        summands, *counts = self._summands_by_kind(updates, initial, values)
        sums = sums_after_each(updates, initial[1:3], summands)
        return self._results_of_blocks(sums, counts)

    def after(self, updates: GroupUpdates, initial: Columns, values: Columns) -> list[pa.Array]:
        """Return the columns of the accumulators after each group's last update: one row per group,
        arbitrary for a group without updates. Without any updates, return ``initial``.

        ``updates``: rows added to groups or retracted from them, by group, then time. ``initial``:
        the columns of the stored accumulators, one row per group, null for a new group. ``values``:
        one column of floats or doubles, one row per update; nulls do not count.
        """
        if len(updates) == 0:
            return list(initial)
        summands, *counts = self._summands_by_kind(updates, initial, values)
        n, *others = [pa.array(count[updates.last]) for count in counts]
        state = [n, *sums_at_the_end(updates, initial[1:3], summands), *others]
        if len(updates.updated) == updates.groups:
            return state
        index = np.zeros(updates.groups, dtype=np.int64)
        index[updates.updated] = np.arange(len(updates.updated))
        return [column.take(pa.array(index)) for column in state]

    def merged(self, left: Columns, right: Columns) -> list[pa.Array]:
        """Return the columns of accumulators whose counts and finite sums are added row by row.
        ``left``, ``right``: the columns of as many accumulators; null counts as 0.
        """
        n, *others = [pa.array(int64_values(left[i]) + int64_values(right[i])) for i in _COUNTS]
        return [n, *add_stored_sums(left[1:3], right[1:3]), *others]

    def results(self, state: Columns) -> pa.Array:
        """Return the result of each accumulator as a double, null for one without values. A NaN, or
        infinities of both signs, make it NaN; infinities of one sign make it infinite. ``state``:
        the columns of the accumulators, null for no values.
        """
        return self._results_of_blocks(
            load_stored_sums(state[1:3]), [int64_values(state[i]) for i in _COUNTS]
        )

    def _summands_by_kind(
        self, updates: GroupUpdates, initial: Columns, values: Columns
    ) -> tuple[Floats, Ints, Ints, Ints, Ints]:
        """Return five arrays with an element per update. The first is the amount that the update
        adds to the finite sum: float64, negative if retracted, 0 for null, NaN or infinity. The
        others are running counts of the group after the update: values, NaNs, infinities and minus
        infinities, int64 each.

        ``updates``: rows added to groups or retracted from them, by group, then time. ``initial``:
        the columns of the stored accumulators, one row per group. ``values``: one column of floats,
        one row per update.
        """
        column = values[0].cast(_DOUBLE).fill_null(0.0).to_numpy(zero_copy_only=False)
        n, *others = (int64_values(initial[i]) for i in _COUNTS)
        n = running_sum(updates, updates.sign * not_null_mask(values[0]), n)
        kinds = (np.isnan(column), column == np.inf, column == -np.inf)
        nan, above, below = (
            running_sum(updates, updates.sign * kind, start)
            if kind.any() or start.any()
            else np.zeros(len(column), np.int64)
            for kind, start in zip(kinds, others, strict=True)
        )
        finite = np.where(np.isfinite(column), column, 0.0)
        return finite * updates.sign, n, nan, above, below

    def _results_of_blocks(self, sums: Iterable[Limbs], counts: Sequence[Ints]) -> pa.Array:
        """Return the double of each of n accumulators, null if it has no values. ``sums``: their
        finite sums, in order, cut into blocks of any length. ``counts``: int64[n] each, the counts
        of values, NaNs, infinities and minus infinities. NaNs and infinities win over the finite
        sum.
        """
        n, nan, above, below = counts
        divisor = np.where(n == 0, 1, n)
        total = np.empty(len(n))
        start = 0
        for limbs in sums:
            stop = start + limbs.rows.shape[1]
            total[start:stop] = self._results_of_sums(limbs, divisor[start:stop])
            start = stop
        if any(count.any() for count in (nan, above, below)):
            total[above > 0] = np.inf
            total[below > 0] = -np.inf
            total[(nan > 0) | ((above > 0) & (below > 0))] = np.nan
        return pa.array(total, mask=n == 0)

    @abstractmethod
    def _results_of_sums(self, sums: Limbs, count: Ints) -> Floats:
        """Return the results of n finite sums: float64[n]. A subclass decides if a result is the
        sum itself or the mean.

        ``sums``: n exact sums, without the NaNs and infinities among the values. ``count``:
        int64[n], at least 1, the count of values by which a mean divides. A group without values
        has the count 1. Its result is ignored, and so is that of a group with a NaN or an infinity.
        """


@dataclass(frozen=True)
class FloatSum(_Float):
    """The sum of floats or doubles: the double nearest to the exact sum, infinite beyond the
    largest. Zero is never negative.
    """

    def _results_of_sums(self, sums: Limbs, count: Ints) -> Floats:
        """Return the double nearest to each of the n exact ``sums``, infinite beyond the largest:
        float64[n]. A sum of 0 gives 0.0, never -0.0. ``count`` is not used.
        """
        return to_nearest(sums)


@dataclass(frozen=True)
class FloatMean(_Float):
    """The mean of floats or doubles: the double nearest to the quotient of the exact sum. The sum
    itself may be too large for a double.
    """

    def _results_of_sums(self, sums: Limbs, count: Ints) -> Floats:
        """Return the double nearest to each of the n exact ``sums`` divided by its count of values:
        float64[n]. ``count``: int64[n], at least 1 each.
        """
        return to_quotients(sums, count)


def _count_summands(updates: GroupUpdates, values: Columns) -> Ints:
    """Return the amount that each update adds to its group's count: int64[updates], 1 for a row
    added, -1 for one retracted. If ``values`` has a column, nulls in it add 0.
    """
    if values and values[0].null_count:
        return updates.sign * not_null_mask(values[0])
    return updates.sign


def _accumulator_columns(sums: list[Ints]) -> list[pa.Array]:
    """Return a count and the limbs of a sum as int64 columns of the accumulator, the limbs
    normalised. ``sums``: the count, then the limbs (32 bits of the sum each), lowest first,
    int64[n] each.
    """
    return [pa.array(column) for column in (sums[0], *normalize(sums[1:]))]
