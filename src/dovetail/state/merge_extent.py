"""The extent of one step of a merge: how far it reads each of its inputs.

A step reads the next rows in the common order of all inputs, up to a number of bytes. The limit
holds however rows are spread over the inputs and over the column that orders them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dovetail.state.runs import SortedRun
from dovetail.state.segment import Segment, int64_column

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Order:
    """The int64 columns that order the rows of a run.

    Rows that are equal in all of them are in the order of the runs, oldest first.
    """

    columns: tuple[str, ...]
    """The names of the columns, most significant first."""
    whole: bool = False
    """True if rows that are equal in all columns must be read in one step."""


@dataclass(frozen=True)
class MergeInput:
    """A sorted run that is being merged. Its rows are counted from 0 through all its segments."""

    run: SortedRun
    open: Callable[[Segment], pa.Table]
    """The function that returns the rows of a segment."""
    rows: Ints = field(init=False)
    """The count of rows before each segment, then that of all rows: int64[segments + 1]."""
    size_bytes: Ints = field(init=False)
    """The count of bytes before each segment, then that of all: int64[segments + 1]."""

    def __post_init__(self) -> None:
        """Set ``rows`` and ``size_bytes`` from the segments of ``run``."""
        segments = self.run.segments
        object.__setattr__(self, "rows", np.cumsum([0, *(s.rows for s in segments)]))
        object.__setattr__(self, "size_bytes", np.cumsum([0, *(s.size_bytes for s in segments)]))

    def bytes_before(self, row: int) -> float:
        """Return about how many bytes the first ``row`` rows, perhaps none or all, have, by the
        mean size in their segments.
        """
        return float(np.interp(row, self.rows, self.size_bytes))

    def row_after_bytes(self, row: int, size_bytes: float) -> int:
        """Return the exclusive end of about ``size_bytes`` of rows from row ``row`` on: at least
        one row. The end is in the same segment as ``row``, so the rows may have far fewer bytes.
        ``row``: an index from 0 through all segments of the input, which must have this row.
        """
        end = np.interp(self.bytes_before(row) + size_bytes, self.size_bytes, self.rows)
        return min(max(int(end), row + 1), int(self.rows[self._segment_of_row(row) + 1]))

    def order_values(self, row: int, order: Order) -> tuple[int, ...]:
        """Return the values of the columns of ``order`` in row ``row``, most significant first.
        ``row``: an index from 0 through all segments of the input; its segment is opened.
        """
        segment_index = self._segment_of_row(row)
        table = self.open(self.run.segments[segment_index])
        return tuple(
            int(int64_column(table, name)[row - self.rows[segment_index]]) for name in order.columns
        )

    def first_row_not_below(
        self, row: int, values: Sequence[int], order: Order, *, after: bool
    ) -> int:
        """Return the index of the first row, from ``row`` on, whose columns of ``order`` are not
        below ``values``. With ``after``, they must be above them. ``values``: one for each column
        of ``order``.

        Rows are counted from 0 through all segments. If there is no such row, the count of all rows
        is returned.
        """
        for segment_index in range(self._segment_of_row(row), len(self.run.segments)):
            first = int(self.rows[segment_index])
            table = self.open(self.run.segments[segment_index])
            low, high = max(row - first, 0), len(table)
            for name, value in zip(order.columns, values, strict=True):
                column = int64_column(table, name)[low:high]
                high = low + int(np.searchsorted(column, value, side="right"))
                low += int(np.searchsorted(column, value))
            end = high if after else low
            if end < len(table):
                return first + end
        return int(self.rows[-1])

    def slice_rows(self, start: int, end: int) -> list[pa.Table]:
        """Return the rows from index ``start``, inclusive, up to ``end``, exclusive, a table for
        each segment, in order. Rows are counted from 0 through all segments. There are no tables if
        ``start`` is ``end``.
        """
        parts = []
        while start < end:
            segment_index = self._segment_of_row(start)
            first, stop = int(self.rows[segment_index]), min(end, int(self.rows[segment_index + 1]))
            parts.append(
                self.open(self.run.segments[segment_index]).slice(start - first, stop - start)
            )
            start = stop
        return parts

    def _segment_of_row(self, row: int) -> int:
        """Return the index of the segment that has row ``row``, counted from 0 through all
        segments. For the count of all rows it is that after the last segment.
        """
        return int(np.searchsorted(self.rows, row, side="right") - 1)


# An example with size_bytes = 8, rows of one byte and one order column. The slash is the end of the
# step. It comes after the seventh byte, once three quarters of the limit are exceeded:
#
# | input | values |
# |---|---|
# | 0, older | 1 3 4 4 / 8 9 |
# | 1, newer | 2 4 5 / 6 7 9 |
#
# The result is (4, 3). Of equal values those of the older input come first.
def step_end(
    inputs: Sequence[MergeInput], read: Sequence[int], size_bytes: int, order: Order
) -> tuple[int, ...]:
    """Return for each input of a merge, oldest first, the count of its rows read after the next
    step, those of earlier steps included.

    The step reads the next rows in order: between three quarters of ``size_bytes`` and all of it,
    as long as single rows are not larger. If no more than ``size_bytes`` are unread, it reads all
    of them. With the flag ``order.whole``, rows that are equal in all columns of ``order`` are read
    together, even if they have more bytes. With several order columns it ends where a value of the
    first one begins, unless it would then read nothing.

    ``inputs``: sorted runs. ``read``: the count of rows of each input read before. ``order``: the
    order of rows in all inputs.
    """
    ends = [int(i.rows[-1]) for i in inputs]
    now = list(read)
    begun = _estimate_bytes(inputs, now)
    if _estimate_bytes(inputs, ends) - begun <= size_bytes:
        return tuple(ends)
    share = size_bytes / (4 * len(inputs))
    while now != ends and _estimate_bytes(inputs, now) - begun <= size_bytes * 3 / 4:
        now = _advance_rows(inputs, now, ends, share, order)
    begins = _cut_before_last_value(inputs, read, now, ends, order)
    return tuple(now if begins == list(read) else begins)


def _cut_before_last_value(
    inputs: Sequence[MergeInput], read: Sequence[int], now: list[int], ends: list[int], order: Order
) -> list[int]:
    """Return the ends ``now``, moved back so that rows with one value of the leading column are
    read together. That value is the smallest one of the unread rows of all inputs. Each input ends
    before its first row with this value or a larger one.

    ``read``, ``now``, ``ends``: for each input, the counts of rows read before the step, of those
    read by now, and of all. An end of the result may be at its ``read``. With one order column, or
    if nothing is unread, the ends stay.
    """
    unread = [
        i.order_values(row, order)
        for i, row, end in zip(inputs, now, ends, strict=True)
        if row < end
    ]
    if len(order.columns) == 1 or not unread:
        return now
    first, value = Order(order.columns[:1]), min(unread)[:1]
    return [
        i.first_row_not_below(row, value, first, after=False)
        for i, row in zip(inputs, read, strict=True)
    ]


def _estimate_bytes(inputs: Sequence[MergeInput], rows: Sequence[int]) -> float:
    """Return about how many bytes the first ``rows[i]`` rows of ``inputs[i]`` have, summed over all
    inputs. ``rows``: a count for each input.
    """
    return sum(i.bytes_before(row) for i, row in zip(inputs, rows, strict=True))


# The steps of the example above ``step_end``. A share is 8 / (4 * 2), one byte, so one row. Each
# step goes to the nearest of the values that the shares reach:
#
# | rows read | reach of input 0 | reach of input 1 | nearest | rows read after |
# |-----------|------------------|------------------|---------|-----------------|
# | 0, 0      | 1                | 2                | 1       | 1, 0            |
# | 1, 0      | 3                | 2                | 2       | 1, 1            |
# | 1, 1      | 3                | 4                | 3       | 2, 1            |
# | 2, 1      | 4                | 4                | 4 of 0  | 3, 1            |
# | 3, 1      | 4                | 4                | 4 of 0  | 4, 1            |
# | 4, 1      | 8                | 4                | 4 of 1  | 4, 2            |
# | 4, 2      | 8                | 5                | 5       | 4, 3            |
def _advance_rows(
    inputs: Sequence[MergeInput], now: list[int], ends: list[int], share: float, order: Order
) -> list[int]:
    """Return the count of rows of each input read after another bit of a step.

    Each unfinished input could be read by about ``share`` bytes. The input whose share ends first
    in ``order`` is read so far. The others are read up to the last row of that share. Of rows equal
    to it, older inputs have theirs read and newer ones do not, unless ``order.whole`` has them read
    in all inputs.

    So no input is read further than its share, unless ``order.whole`` adds rows that are equal to
    the last one. ``now``, ``ends``: for each input, the counts of rows read so far and of all; at
    least one input is unfinished.
    """
    reach = {
        input_index: input_.row_after_bytes(now[input_index], share)
        for input_index, input_ in enumerate(inputs)
        if now[input_index] < ends[input_index]
    }
    values, nearest = min(
        (inputs[input_index].order_values(row - 1, order), input_index)
        for input_index, row in reach.items()
    )
    moved = list(now)
    for input_index, row in reach.items():
        if input_index == nearest and not order.whole:
            moved[input_index] = row
        else:
            after = order.whole or input_index < nearest
            moved[input_index] = inputs[input_index].first_row_not_below(
                now[input_index], values, order, after=after
            )
    return moved
