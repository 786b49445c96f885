"""count, sum and mean.

Longs and decimals are summed exactly. Floats are added strictly in order, the finite ones apart
from infinities and NaNs, which are counted, so that these can be taken out again. A finite sum
starts anew at 0.0 when the last finite value is gone, so what rounding leaves behind does not
outlive the rows that it came from.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dovetail.kernels.aggregates import (
    Accumulating,
    AggregateOverflowError,
    Columns,
    Ints,
    Mask,
    Touches,
    numbers,
    valid,
)
from dovetail.kernels.exact import (
    limb_count,
    limbs_of,
    normal,
    quotients,
    to_decimals,
    to_doubles,
    to_longs,
)
from dovetail.kernels.scans import Floats, running_sum, scan_in_order

_LONG = pa.int64()
_DOUBLE = pa.float64()


@dataclass(frozen=True)
class Count(Accumulating):
    """How many rows there are or, with a column of values, how many are not null. Never null.

    Accumulator: the count.
    """

    @property
    def state(self) -> tuple[pa.DataType, ...]:
        """One long."""
        return (_LONG,)

    @property
    def result(self) -> pa.DataType:
        """A long."""
        return _LONG

    def accumulated(self, touches: Touches, initial: Columns, values: Columns) -> list[pa.Array]:
        """The count after each touch."""
        counted = touches.sign * valid(values[0]) if values else touches.sign
        return [pa.array(running_sum(touches, counted, numbers(initial[0])))]

    def merged(self, left: Columns, right: Columns) -> list[pa.Array]:
        """The counts added."""
        return [pa.array(numbers(left[0]) + numbers(right[0]))]

    def results(self, state: Columns) -> pa.Array:
        """The counts."""
        return pa.array(numbers(state[0]))


class _Exact(Accumulating):
    """What is read from an exact sum of integers or decimals, null where no value is not null.

    Accumulator: the count of values, then the limbs of their sum (``kernels.exact``).
    """

    values: pa.DataType

    @property
    def state(self) -> tuple[pa.DataType, ...]:
        """The count and the limbs."""
        return (_LONG,) * (1 + limb_count(self.values))

    def accumulated(self, touches: Touches, initial: Columns, values: Columns) -> list[pa.Array]:
        """Counts and sums after each touch."""
        summands = [touches.sign * valid(values[0])]
        summands += [touches.sign * limb for limb in limbs_of(values[0])]
        sums = [
            running_sum(touches, summand, numbers(start))
            for summand, start in zip(summands, initial, strict=True)
        ]
        return _stored(sums)

    def merged(self, left: Columns, right: Columns) -> list[pa.Array]:
        """Counts and sums added."""
        return _stored([numbers(a) + numbers(b) for a, b in zip(left, right, strict=True)])

    def results(self, state: Columns) -> pa.Array:
        """The results; raises ``AggregateOverflowError`` where one does not fit."""
        count, *limbs = [numbers(column) for column in state]
        result, fits = self._read(count, limbs)
        if not np.all(fits | (count == 0)):
            raise AggregateOverflowError(
                f"a {self._title} does not fit its type {self.result}", self._remedy
            )
        return result

    @property
    def _remedy(self) -> str:
        if pa.types.is_decimal(self.values):
            return "Cast the column to a decimal of more digits before the point"
        return "Cast the column to decimal(20,0) or another wider decimal"

    @property
    @abstractmethod
    def _title(self) -> str:
        """The aggregate's name."""

    @abstractmethod
    def _read(self, count: Ints, limbs: list[Ints]) -> tuple[pa.Array, Mask]:
        """The results, null where the count is 0, and which fit."""


@dataclass(frozen=True)
class ExactSum(_Exact):
    """The sum of an integer column as a long, or of decimals with ten more digits.

    ``values``: the type of the column.
    """

    values: pa.DataType

    @property
    def result(self) -> pa.DataType:
        """A long, or a decimal with up to ten more digits."""
        if pa.types.is_decimal(self.values):
            return pa.decimal128(min(38, self.values.precision + 10), self.values.scale)
        return _LONG

    @property
    def _title(self) -> str:
        return "sum"

    def _read(self, count: Ints, limbs: list[Ints]) -> tuple[pa.Array, Mask]:
        if pa.types.is_decimal(self.values):
            return to_decimals(limbs, self.result, count != 0)
        longs, fits = to_longs(limbs)
        return pa.array(longs, mask=count == 0), fits


@dataclass(frozen=True)
class ExactMean(_Exact):
    """The mean of an integer column as a double, or of decimals with four more digits, rounded
    half away from zero. It is the quotient of the exact sum, even where a sum would not fit.

    ``values``: the type of the column.
    """

    values: pa.DataType

    @property
    def result(self) -> pa.DataType:
        """A double, or a decimal with up to four more digits, all after the point."""
        if pa.types.is_decimal(self.values):
            precision, scale = self.values.precision, self.values.scale
            return pa.decimal128(min(38, precision + 4), min(38, scale + 4))
        return _DOUBLE

    @property
    def _title(self) -> str:
        return "mean"

    def _read(self, count: Ints, limbs: list[Ints]) -> tuple[pa.Array, Mask]:
        divisor = np.where(count == 0, 1, count)
        if pa.types.is_decimal(self.values):
            factor = 10 ** (self.result.scale - self.values.scale)
            return to_decimals(quotients(limbs, factor, divisor), self.result, count != 0)
        mean = to_doubles(limbs) / divisor
        return pa.array(mean, mask=count == 0), np.ones(len(mean), dtype=np.bool_)


class _Float(Accumulating):
    """What is read from a sum of floats or doubles, null where no value is not null.

    Accumulator: the count of values; the sum of the finite ones; how many are NaN, infinite, and
    minus infinite. A sum of finite values that grows beyond the largest double is infinite, and
    stays so until the last of them is gone.
    """

    @property
    def state(self) -> tuple[pa.DataType, ...]:
        """The count, the finite sum, three counts."""
        return (_LONG, _DOUBLE, _LONG, _LONG, _LONG)

    @property
    def result(self) -> pa.DataType:
        """A double."""
        return _DOUBLE

    def accumulated(self, touches: Touches, initial: Columns, values: Columns) -> list[pa.Array]:
        """Counts and sums after each touch."""
        column = values[0].cast(_DOUBLE).fill_null(0.0).to_numpy(zero_copy_only=False)
        finite = np.isfinite(column)
        counted = [valid(values[0]), np.isnan(column), column == np.inf, column == -np.inf]
        starts = [numbers(initial[i]) for i in (0, 2, 3, 4)]
        n, *others = [
            running_sum(touches, touches.sign * c, s) if c.any() else s[touches.group]
            for c, s in zip(counted, starts, strict=True)
        ]
        exhausted = n == sum(others)
        added: Floats = np.where(finite, column, 0.0) * touches.sign.astype(np.float64)
        total = _in_order(touches, added, _floats(initial[1]), exhausted)
        return [pa.array(c) for c in (n, total, *others)]

    def merged(self, left: Columns, right: Columns) -> list[pa.Array]:
        """Counts and sums added."""
        counts = [numbers(left[i]) + numbers(right[i]) for i in (0, 2, 3, 4)]
        with np.errstate(over="ignore"):
            total = _floats(left[1]) + _floats(right[1])
        return [pa.array(c) for c in (counts[0], total, *counts[1:])]

    def results(self, state: Columns) -> pa.Array:
        """The results: infinities and NaN as if all values were added up."""
        n, nan, above, below = [numbers(state[i]) for i in (0, 2, 3, 4)]
        total = _floats(state[1])
        total = np.where(above > 0, np.inf, np.where(below > 0, -np.inf, total))
        total = np.where((nan > 0) | ((above > 0) & (below > 0)), np.nan, total)
        return pa.array(self._read(total, np.where(n == 0, 1, n)), mask=n == 0)

    @abstractmethod
    def _read(self, total: Floats, count: Ints) -> Floats:
        """The results from sums and counts of 1 or more."""


@dataclass(frozen=True)
class FloatSum(_Float):
    """The sum of floats or doubles as a double."""

    def _read(self, total: Floats, count: Ints) -> Floats:
        return total


@dataclass(frozen=True)
class FloatMean(_Float):
    """The mean of floats or doubles as a double."""

    def _read(self, total: Floats, count: Ints) -> Floats:
        return total / count


def _stored(sums: list[Ints]) -> list[pa.Array]:
    """A count and the limbs of a sum as the accumulator has them."""
    return [pa.array(column) for column in (sums[0], *normal(sums[1:]))]


def _in_order(touches: Touches, added: Floats, initial: Floats, exhausted: Mask) -> Floats:
    """The running sums of each group, over ``initial``, 0.0 again after an ``exhausted`` touch.

    No sum is -0.0, as none begins with it, so adding a 0.0 in place of what is not summed changes
    nothing.
    """
    if len(added) == 0:
        return added
    begins = np.zeros(len(added), dtype=np.bool_)
    begins[1:] = exhausted[:-1]
    first = touches.bounds[touches.touched]
    begins[first] = True
    added = added + 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        added[first] += initial[touches.touched]
        total = scan_in_order(np.add, np.flatnonzero(begins), added)
    total[exhausted] = 0.0
    return total


def _floats(column: pa.Array) -> Floats:
    """A column of doubles, 0.0 for null."""
    return column.fill_null(0.0).to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]
