"""Aggregates that users define by functions over Arrow columns.

Each function works on many accumulators at once, row by row. An accumulator is a mapping from
column names to arrays of one length:

- ``init(n)``: return n accumulators of no rows;
- ``add(state, *values)``: return each accumulator with one more row;
- ``merge(a, b)``: return the accumulators of the rows of both, ``a``'s before ``b``'s;
- ``retract(a, b)``: return the accumulators of ``a``'s rows without ``b``'s;
- ``finish(state)``: return the results, one array.

Their laws:

- ``merge`` is associative.
- ``add`` gives the same as ``merge`` with an accumulator of the row alone.
- Taking ``c`` out of ``merge(a, b)`` is the same as merging ``b`` to ``a`` without ``c``.
- Taking out ``b``, then ``c``, is the same as taking out ``merge(b, c)``.

If the functions obey these laws, the result does not depend on how updates are cut into batches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from dovetail.aggregates.aggregate import (
    Aggregate,
    AggregateError,
    Columns,
    GroupUpdates,
    Ints,
    Mask,
    int64_values,
)
from dovetail.errors import line_of

State: TypeAlias = Mapping[str, pa.Array]


@dataclass(frozen=True)
class Functions:
    """The functions and types by which a user defines an aggregate, as the module's docstring lists
    them.
    """

    init: Callable[[int], State]
    """Returns accumulators of no rows, as many as its argument says."""
    add: Callable[..., State]
    merge: Callable[[State, State], State]
    retract: Callable[[State, State], State] | None
    """None if rows cannot be retracted."""
    finish: Callable[[State], pa.Array] | None
    """None if the accumulator's only column is the result."""
    columns: tuple[tuple[str, pa.DataType], ...]
    """The name and type of each column of the accumulator."""
    returns: pa.DataType
    """The type of the result."""


@dataclass(frozen=True)
class UserDefined(Aggregate):
    """An aggregate of any number of columns, nulls included.

    Each row becomes an accumulator of its own. The accumulators of a group are merged by a parallel
    prefix, in log2(group length) calls of ``merge``. Retracted rows are merged apart, and taken out
    at the end. The accumulator is a flag that the group has begun, then the user's columns.
    """

    functions: Functions

    @property
    def state(self) -> tuple[pa.DataType, ...]:
        """The types of the flag that the group has begun, then of the user's columns."""
        return (pa.bool_(), *(type_ for _, type_ in self.functions.columns))

    @property
    def result(self) -> pa.DataType:
        """The type of the result, as the user declared it."""
        return self.functions.returns

    @property
    def retracts(self) -> bool:
        """True if rows can be retracted, since the user gave a function ``retract``."""
        return self.functions.retract is not None

    def scan(self, updates: GroupUpdates, initial: Columns, values: Columns) -> pa.Array:
        """Return the result after each update: one row per update, in their order.

        ``initial``: the stored accumulators, one row per group, null for a new one. ``values``: the
        user's columns, one row per update. Raises ``AggregateError`` if a function fails.
        """
        return self._finish_accumulators(
            self._accumulators_at(updates, initial, values, np.arange(len(updates)))
        )

    def after(self, updates: GroupUpdates, initial: Columns, values: Columns) -> list[pa.Array]:
        """Return the accumulators after each group's last update, one row per group. A group
        without updates has a false flag and null columns, whatever ``initial`` has. ``initial``:
        the stored accumulators, one row per group. ``values``: the user's columns, one row per
        update. Raises ``AggregateError`` if a function fails.
        """
        state = self._accumulators_at(updates, initial, values, updates.last)
        row = np.zeros(updates.groups, dtype=np.int64)
        row[updates.updated] = np.arange(len(updates.updated))
        absent = np.ones(updates.groups, dtype=np.bool_)
        absent[updates.updated] = False
        columns = [column.take(pa.array(row, mask=absent)) for column in state]
        return [pa.array(~absent), *columns]

    def merged(self, left: Columns, right: Columns) -> list[pa.Array]:
        """Return the accumulators of the rows of ``left`` and ``right`` together, row by row. If
        only one side has begun, return that one; if neither has, the result has not begun. Raises
        ``AggregateError`` if a function fails.
        """
        in_left, in_right = _begun_mask(left), _begun_mask(right)
        in_both = pa.array(np.flatnonzero(in_left & in_right))
        merged = self._combine_accumulators(
            "merge", [c.take(in_both) for c in left[1:]], [c.take(in_both) for c in right[1:]]
        )
        n = len(in_left)
        index = np.where(in_left, np.arange(n), np.arange(n) + n)
        index[in_left & in_right] = 2 * n + np.arange(len(in_both))
        chosen = pa.array(index)
        columns = [
            pa.concat_arrays(parts).take(chosen)
            for parts in zip(left[1:], right[1:], merged, strict=True)
        ]
        return [pa.array(in_left | in_right), *columns]

    def results(self, state: Columns) -> pa.Array:
        """Return the result of each accumulator in ``state``. A group that has not begun has the
        result of no rows. Raises ``AggregateError`` if a function fails.
        """
        begun = _begun_mask(state)
        columns = list(state[1:])
        if not begun.all():
            index = np.where(begun, np.arange(len(begun)), len(begun))
            columns = _take_of_parts([columns, self._empty_accumulators(1)], index)
        return self._finish_accumulators(columns)

    def _accumulators_at(
        self, updates: GroupUpdates, initial: Columns, values: Columns, wanted: Ints
    ) -> list[pa.Array]:
        """Return the columns of accumulators after each of the ``wanted`` updates, one row each.
        ``initial``: the stored accumulators, one row per group. ``values``: one row per update.
        ``wanted``: the indices of all updates, or of each group's last one. A group that has had no
        rows so far has the accumulator of ``init``. Raises ``AggregateError`` if a function fails.
        """
        every = len(wanted) == len(updates)
        stored, begun = list(initial[1:]), _begun_mask(initial)
        added = self._prefix_accumulators(updates, values, ~updates.retracted, every=every)
        group = updates.group[wanted]
        upto = _latest_included(updates, ~updates.retracted, wanted)
        at = np.flatnonzero((upto >= 0) & begun[group])
        over = self._combine_accumulators(
            "merge", _take_of_parts([stored], group[at]), _take_of_parts([added], upto[at])
        )
        n, m = updates.groups, updates.groups + len(updates) - int(updates.retracted.sum())
        index = np.where(upto >= 0, n + upto, np.where(begun[group], group, m))
        index[at] = m + 1 + np.arange(len(at))
        state = _take_of_parts([stored, added, self._empty_accumulators(1), over], index)
        if not updates.retracted.any():
            return state
        gone = self._prefix_accumulators(updates, values, updates.retracted, every=every)
        upto = _latest_included(updates, updates.retracted, wanted)
        at = np.flatnonzero(upto >= 0)
        left = self._combine_accumulators(
            "retract", _take_of_parts([state], at), _take_of_parts([gone], upto[at])
        )
        index = np.arange(len(wanted))
        index[at] = len(wanted) + np.arange(len(at))
        return _take_of_parts([state, left], index)

    def _prefix_accumulators(
        self, updates: GroupUpdates, values: Columns, included: Mask, *, every: bool
    ) -> list[pa.Array]:
        """Return the accumulator of a group's ``included`` rows up to each of them, without stored
        ones: one row per included update.

        ``updates``, ``values``: all updates and their rows. ``included``: bool[updates]. If not
        ``every``, only the last of each group is complete. The order of merging is the same in both
        cases. A group of five rows::

            step 1   a   ab   bc    cd     de
            step 2   a   ab   abc   abcd   bcde
            step 4   a   ab   abc   abcd   abcde
        """
        chosen = np.flatnonzero(included)
        group = updates.group[chosen]
        start = np.searchsorted(group, group)
        offset = np.arange(len(group)) - start
        before_end = np.searchsorted(group, group, side="right") - 1 - np.arange(len(group))
        state = self._single_row_accumulators(
            _take_of_parts([values], chosen) if values else [], len(chosen)
        )
        step = 1
        while step <= offset.max(initial=0):
            needed = (offset >= step) & (every | (before_end % (2 * step) == 0))
            at = np.flatnonzero(needed)
            longer = self._combine_accumulators(
                "merge", _take_of_parts([state], at - step), _take_of_parts([state], at)
            )
            index = np.arange(len(group))
            index[at] = len(group) + np.arange(len(at))
            state = _take_of_parts([state, longer], index)
            step *= 2
        return state

    def _single_row_accumulators(self, values: Columns, rows: int) -> list[pa.Array]:
        """Return an accumulator for each of ``rows`` rows alone. ``values``: the user's columns,
        one row each. Raises ``AggregateError`` if ``init`` or ``add`` fails.
        """
        if rows == 0:
            return self._no_accumulators()
        state = self._call_function(
            "add", self._by_user_name(self._empty_accumulators(rows)), *values
        )
        return self._checked_columns("add", state, rows)

    def _empty_accumulators(self, rows: int) -> list[pa.Array]:
        """Return ``rows`` accumulators of no rows, as the user's ``init`` makes them. Raises
        ``AggregateError`` if ``init`` fails or returns other columns.
        """
        return self._checked_columns("init", self._call_function("init", rows), rows)

    def _combine_accumulators(self, name: str, left: Columns, right: Columns) -> list[pa.Array]:
        """Return the columns that the user's ``merge`` or ``retract`` makes of ``left`` and
        ``right``, row by row. Without rows, the function is not called. ``name``: that function's
        name. Raises ``AggregateError`` if it fails or returns other columns.
        """
        rows = len(left[0])
        if rows == 0:
            return self._no_accumulators()
        returned = self._call_function(name, self._by_user_name(left), self._by_user_name(right))
        return self._checked_columns(name, returned, rows)

    def _finish_accumulators(self, state: Columns) -> pa.Array:
        """Return the results of the accumulators ``state``, which all have begun: ``finish`` of
        them, or the first column without such a function. Raises ``AggregateError`` if ``finish``
        fails.
        """
        if self.functions.finish is None:
            return state[0]
        if len(state[0]) == 0:
            return pa.nulls(0, self.result)
        finished = self._call_function("finish", self._by_user_name(state))
        return _checked_array("finish", "its result", finished, self.result, len(state[0]))

    def _call_function(self, function: str, *arguments: Any) -> Any:
        """Return what a function of the user returns. Raises ``AggregateError`` if it raises an
        ``Exception``.

        ``function``: its name, such as ``add``. ``arguments``: as the module's docstring lists
        them.
        """
        try:
            return getattr(self.functions, function)(*arguments)
        except Exception as error:
            raise AggregateError(
                f"{function} of a user-defined aggregate raised {line_of(error)}",
                "Correct the function, or keep the rows from it on which it fails",
            ) from error

    def _by_user_name(self, columns: Columns) -> State:
        """Return the columns of accumulators by the names that the user gave them."""
        names = (name for name, _ in self.functions.columns)
        return dict(zip(names, columns, strict=True))

    def _no_accumulators(self) -> list[pa.Array]:
        """Return the columns of no accumulators: arrays of length 0."""
        return [pa.nulls(0, type_) for _, type_ in self.functions.columns]

    def _checked_columns(self, function: str, state: Any, rows: int) -> list[pa.Array]:
        """Return the columns of ``state``, which the user's function named ``function`` returned,
        in their declared order. Raises ``AggregateError`` for another value, type or number of
        ``rows``.
        """
        names = [name for name, _ in self.functions.columns]
        if not isinstance(state, Mapping) or set(state) != set(names):
            returned = (
                sorted(map(str, state)) if isinstance(state, Mapping) else type(state).__name__
            )
            raise AggregateError(
                f"{function} of a user-defined aggregate returned {returned}",
                f"Return a mapping with an Arrow array for each of {', '.join(names)}",
            )
        return [
            _checked_array(function, f"column {name!r}", state[name], type_, rows)
            for name, type_ in self.functions.columns
        ]


def _checked_array(
    function: str, what: str, returned: Any, type_: pa.DataType, rows: int
) -> pa.Array:
    """Return ``returned``, the array that a user's function gave, cast to ``type_`` if nested
    fields differ in nullability. Chunks are joined.

    ``function``, ``what``: the function and the part of its result, for errors. Raises
    ``AggregateError`` unless it is an Arrow array of ``type_`` with ``rows`` elements.
    """
    if isinstance(returned, pa.ChunkedArray):
        returned = returned.combine_chunks()
    shown = (
        f"{returned.type}[{len(returned)}]"
        if isinstance(returned, pa.Array)
        else type(returned).__name__
    )
    fits = isinstance(returned, pa.Array) and _nullable_type(returned.type) == _nullable_type(type_)
    if not fits or len(returned) != rows:
        raise AggregateError(
            f"{function} of a user-defined aggregate returned {shown} for {what}",
            f"Return an Arrow array of type {type_} with as many elements as it was given, {rows}",
        )
    return returned if returned.type == type_ else returned.cast(type_)


def _nullable_type(type_: pa.DataType) -> pa.DataType:
    """Return the type with nulls allowed in its structs, at every depth."""
    if pa.types.is_struct(type_):
        fields = [
            field.with_type(_nullable_type(field.type)).with_nullable(True) for field in type_
        ]
        return pa.struct(fields)
    return pa.list_(_nullable_type(type_.value_type)) if pa.types.is_list(type_) else type_


def _begun_mask(state: Columns) -> Mask:
    """Return for each group whether it has begun: bool[groups]. ``state``: accumulators, the flag
    first, where null means that it has not.
    """
    return int64_values(state[0].cast(pa.int8())) > 0


def _take_of_parts(parts: list[Columns], index: Ints) -> list[pa.Array]:
    """Return the rows ``index`` of the concatenation of ``parts``, which have the same columns, one
    row per index. There is at least one part.
    """
    chosen = pa.array(index)
    return [
        (columns[0] if len(columns) == 1 else pa.concat_arrays(columns)).take(chosen)
        for columns in zip(*parts, strict=True)
    ]


def _latest_included(updates: GroupUpdates, included: Mask, wanted: Ints) -> Ints:
    """Return for each wanted update the last included one of its group up to it, itself possible:
    int64[wanted]. The result is an index among the included updates, -1 if the group has none so
    far. ``included``: bool[updates]. ``wanted``: indices of updates.
    """
    upto = np.cumsum(included)
    before = np.append(0, upto)[updates.bounds[updates.group[wanted]]]
    return np.where(upto[wanted] > before, upto[wanted] - 1, -1)
