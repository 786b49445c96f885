"""first and last of groups whose rows never leave."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dovetail.aggregates.aggregate import (
    Accumulating,
    Columns,
    GroupUpdates,
    Ints,
    Mask,
    not_null_mask,
)
from dovetail.aggregates.running_aggregates import any_so_far, lowest_over


@dataclass(frozen=True)
class End(Accumulating):
    """The value of the first (or ``last``) row; null if there is no such row. Rows cannot be
    retracted. The accumulator is the value and a flag that it exists.
    """

    values: pa.DataType
    """The type of the column."""
    last: bool
    """True for the value of the last row, False for that of the first."""
    ignore_nulls: bool
    """True if rows whose value is null do not count."""

    retracts = False

    @property
    def state(self) -> tuple[pa.DataType, ...]:
        """The types of the accumulator's columns: the value, and a flag (bool) that there is a
        row that counts. Its value may be null, unless ``ignore_nulls``.
        """
        return (self.values, pa.bool_())

    @property
    def result(self) -> pa.DataType:
        """The type of results, which is that of the values."""
        return self.values

    def accumulated(
        self, updates: GroupUpdates, initial: Columns, values: Columns
    ) -> list[pa.Array]:
        """Return two columns, one row per update: the first value (or, if ``last``, the last) of
        the group up to that update, and a flag that there is one. If ``ignore_nulls``, nulls do not
        count; else a null counts as a value, with a true flag.

        ``updates``: rows added to groups, by group, then time; none may be retracted. ``initial``:
        two columns, the stored value and flag of each group, null for none. ``values``: one column,
        one row per update.
        """
        eligible = (
            not_null_mask(values[0]) if self.ignore_nulls else np.ones(len(updates), np.bool_)
        )
        return self._choose_values(updates, initial, values[0], eligible)

    def merged(self, left: Columns, right: Columns) -> list[pa.Array]:
        """Return two columns, value and flag: row by row those of ``left`` or, if ``last``, of
        ``right``. If only one side's flag is true, return that side, even if its value is null. If
        neither is, return null with a false flag.
        """
        row = np.arange(len(left[0]))
        updates = GroupUpdates.added(row, len(row))
        return self._choose_values(updates, left, right[0], _flag_mask(right[1]))

    def results(self, state: Columns) -> pa.Array:
        """Return the value of each accumulator, the first of the two columns of ``state``; null for
        a group without one.
        """
        return state[0]

    def fold_over(
        self, first: Ints, end: Ints, order: Ints, values: Columns, places: int
    ) -> list[pa.Array]:
        """Return the accumulator of each position from 0 to ``places - 1``, over the rows that
        cover the position: two columns, value and flag. Without a covering row the value is null
        and the flag false.

        Row i covers the positions from ``first[i]`` to before ``end[i]``, within 0 to ``places``,
        or none. ``values``: one column, one value per row. ``order``: int64, the sort key of each
        row. The covering row of the lowest key counts or, if ``last``, that of the highest. Of
        equal keys the row of the lowest index counts or, if ``last``, of the highest. If
        ``ignore_nulls``, rows with a null do not count. Takes O(n log n).
        """
        eligible = not_null_mask(values[0]) if self.ignore_nulls else np.ones(len(order), np.bool_)
        row = np.flatnonzero(eligible)
        row = row[np.argsort(order[row], kind="stable")]
        rank = np.arange(len(row))[:: -1 if self.last else 1]
        nothing = len(row)
        lowest_rank = lowest_over(first[row], end[row], rank, places, nothing)
        present = lowest_rank != nothing
        index = np.append(row[:: -1 if self.last else 1], 0)[lowest_rank]
        return [values[0].take(pa.array(index, mask=~present)), pa.array(present)]

    def _choose_values(
        self, updates: GroupUpdates, initial: Columns, values: pa.Array, eligible: Mask
    ) -> list[pa.Array]:
        """Return two columns, value and flag, one row per update: the stored value, or that of the
        first (if ``last``, the last) ``eligible`` update so far. Without either it is null with a
        false flag. For the first value the stored one wins, for the last one an update.

        ``initial``: two columns, the stored value and flag of each group; with a false or null flag
        there is no stored value. ``values``: one value per update. ``eligible``: bool[updates], the
        updates that count.
        """
        stored = _flag_mask(initial[1])
        present = any_so_far(updates, eligible, stored)
        chosen_update = (
            _latest_eligible(eligible) if self.last else _first_eligible(updates, eligible)
        )
        use_stored = ~any_so_far(updates, eligible, np.zeros_like(stored))
        if not self.last:
            use_stored |= stored[updates.group]
        index = np.where(use_stored, updates.group, chosen_update + updates.groups)
        candidates = pa.concat_arrays([initial[0], values])
        return [candidates.take(pa.array(index, mask=~present)), pa.array(present)]


def _latest_eligible(eligible: Mask) -> Ints:
    """Return for each update the index of the last eligible update up to it, itself included, of
    any group: int64[n], -1 for none. It is of the update's own group if that has one so far.
    ``eligible``: bool[n], by group, then time.
    """
    update = np.where(eligible, np.arange(len(eligible)), -1)
    return np.maximum.accumulate(update) if len(update) else update


def _first_eligible(updates: GroupUpdates, eligible: Mask) -> Ints:
    """Return for each update the index of the first eligible update of its group: int64[n]. It may
    come after the update itself, and is 0 if the group has none. ``eligible``: bool[n].
    """
    eligible_update = np.flatnonzero(eligible)
    first = np.zeros(updates.groups, dtype=np.int64)
    first[updates.group[eligible_update][::-1]] = eligible_update[::-1]
    return first[updates.group]


def _flag_mask(column: pa.Array) -> Mask:
    """Return a boolean column as bool[n], false for null."""
    return column.fill_null(False).to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]
