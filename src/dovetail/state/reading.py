"""How far a step of a merge reads its inputs: the next rows in their common order, about so many
bytes of them, however the rows are spread over the inputs and over the column that orders them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dovetail.state.runs import Run
from dovetail.state.segment import Segment, numbers

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Order:
    """The int64 columns that order the rows of a run, the first one's name first. Rows that are
    equal in all of them are in the order of the runs, oldest first.

    ``whole``: rows that are equal in them are read in one step, however many they are.
    """

    columns: tuple[str, ...]
    whole: bool = False


@dataclass(frozen=True)
class Input:
    """A run that is merged. ``rows``, ``size_bytes``: int64[segments + 1], how many lie before each
    segment, then how many there are in all.
    """

    run: Run
    open: Callable[[Segment], pa.Table]
    rows: Ints = field(init=False)
    size_bytes: Ints = field(init=False)

    def __post_init__(self) -> None:
        segments = self.run.segments
        object.__setattr__(self, "rows", np.cumsum([0, *(s.rows for s in segments)]))
        object.__setattr__(self, "size_bytes", np.cumsum([0, *(s.size_bytes for s in segments)]))

    def bytes_before(self, row: int) -> float:
        """About how many bytes the first ``row`` rows have."""
        return float(np.interp(row, self.rows, self.size_bytes))

    def some(self, row: int, size_bytes: float) -> int:
        """The end of about ``size_bytes`` from a row on, in one segment, of one row at least."""
        end = np.interp(self.bytes_before(row) + size_bytes, self.size_bytes, self.rows)
        return min(max(int(end), row + 1), int(self.rows[self._segment(row) + 1]))

    def values(self, row: int, order: Order) -> tuple[int, ...]:
        """What orders a row."""
        number = self._segment(row)
        table = self.open(self.run.segments[number])
        return tuple(int(numbers(table, name)[row - self.rows[number]]) for name in order.columns)

    def position(self, row: int, values: Sequence[int], order: Order, *, after: bool) -> int:
        """The first row from ``row`` on that comes after these values or, if not ``after``, is
        equal to them.
        """
        for number in range(self._segment(row), len(self.run.segments)):
            first = int(self.rows[number])
            table = self.open(self.run.segments[number])
            low, high = max(row - first, 0), len(table)
            for name, value in zip(order.columns, values, strict=True):
                column = numbers(table, name)[low:high]
                high = low + int(np.searchsorted(column, value, side="right"))
                low += int(np.searchsorted(column, value))
            end = high if after else low
            if end < len(table):
                return first + end
        return int(self.rows[-1])

    def slice(self, start: int, end: int) -> list[pa.Table]:
        """The rows from ``start`` up to an exclusive end."""
        parts = []
        while start < end:
            number = self._segment(start)
            first, stop = int(self.rows[number]), min(end, int(self.rows[number + 1]))
            parts.append(self.open(self.run.segments[number]).slice(start - first, stop - start))
            start = stop
        return parts

    def _segment(self, row: int) -> int:
        return int(np.searchsorted(self.rows, row, side="right") - 1)


def step_end(
    inputs: Sequence[Input], read: Sequence[int], size_bytes: int, order: Order
) -> tuple[int, ...]:
    """Per input, oldest first, how many of its rows are read after the next step, which reads the
    next rows in order: between three quarters of ``size_bytes`` and all of it, where rows are not
    larger.

    ``read``: how many are before the step.
    """
    ends = [int(i.rows[-1]) for i in inputs]
    now = list(read)
    begun = _bytes(inputs, now)
    if _bytes(inputs, ends) - begun <= size_bytes:
        return tuple(ends)
    share = size_bytes / (4 * len(inputs))
    while now != ends and _bytes(inputs, now) - begun <= size_bytes * 3 / 4:
        now = _advanced(inputs, now, ends, share, order)
    begins = _before_last_value(inputs, read, now, ends, order)
    return tuple(now if begins == list(read) else begins)


def _before_last_value(
    inputs: Sequence[Input], read: Sequence[int], now: list[int], ends: list[int], order: Order
) -> list[int]:
    """Where the first unread row's value in the first of several columns begins, so that its rows
    are read together if that is possible.
    """
    unread = [
        i.values(row, order) for i, row, end in zip(inputs, now, ends, strict=True) if row < end
    ]
    if len(order.columns) == 1 or not unread:
        return now
    first, value = Order(order.columns[:1]), min(unread)[:1]
    return [i.position(row, value, first, after=False) for i, row in zip(inputs, read, strict=True)]


def _bytes(inputs: Sequence[Input], rows: Sequence[int]) -> float:
    return sum(i.bytes_before(row) for i, row in zip(inputs, rows, strict=True))


def _advanced(
    inputs: Sequence[Input], now: list[int], ends: list[int], share: float, order: Order
) -> list[int]:
    """About ``share`` bytes further in the input whose share ends first, and in the others up to
    there: so no input is read further than its share.
    """
    reach = {
        number: input_.some(now[number], share)
        for number, input_ in enumerate(inputs)
        if now[number] < ends[number]
    }
    values, nearest = min(
        (inputs[number].values(row - 1, order), number) for number, row in reach.items()
    )
    moved = list(now)
    for number, row in reach.items():
        if number == nearest and not order.whole:
            moved[number] = row
        else:
            after = order.whole or number < nearest
            moved[number] = inputs[number].position(now[number], values, order, after=after)
    return moved
