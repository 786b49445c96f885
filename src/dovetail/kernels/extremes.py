"""min and max of groups that only grow. (Those of changing groups: ``kernels.changing``.)"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dovetail.kernels.aggregates import (
    Accumulating,
    Columns,
    Ints,
    Touches,
    valid,
)
from dovetail.kernels.ordering import keyed
from dovetail.kernels.scans import any_so_far, scan_in_order


@dataclass(frozen=True)
class Extreme(Accumulating):
    """The smallest (or ``largest``) value that is not null, null where there is none.

    ``values``: the type of the column, an ordered one (``kernels.ordering``). Accumulator: the
    value. Rows cannot be retracted.
    """

    values: pa.DataType
    largest: bool

    @property
    def state(self) -> tuple[pa.DataType, ...]:
        """The value."""
        return (self.values,)

    @property
    def result(self) -> pa.DataType:
        """The column's type."""
        return self.values

    @property
    def retracts(self) -> bool:
        """The next smallest value is not kept."""
        return False

    def accumulated(self, touches: Touches, initial: Columns, values: Columns) -> list[pa.Array]:
        """The extreme after each touch."""
        both = keyed([initial[0], values[0]])
        had, has = valid(initial[0]), valid(values[0])
        neutral = np.iinfo(np.int64).min if self.largest else np.iinfo(np.int64).max
        before, now = (
            np.where(present, keys, neutral)
            for keys, present in zip(both.keys, (had, has), strict=True)
        )
        present = any_so_far(touches, has, had)
        return [both.values(self._scan(touches, before, now), present)]

    def merged(self, left: Columns, right: Columns) -> list[pa.Array]:
        """The extremes of both."""
        row = np.arange(len(left[0]))
        return self.accumulated(Touches(row, len(row), np.zeros(len(row), np.bool_)), left, right)

    def results(self, state: Columns) -> pa.Array:
        """The extremes."""
        return state[0]

    def _scan(self, touches: Touches, before: Ints, now: Ints) -> Ints:
        operation = np.maximum if self.largest else np.minimum
        first = touches.bounds[touches.touched]
        now[first] = operation(now[first], before[touches.touched])
        return scan_in_order(operation, first, now)  # type: ignore[return-value]
