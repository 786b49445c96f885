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
        """The types of the accumulator's columns: a flag (bool) that the group has begun, then the
        user's columns.
        """
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

        ``updates``: rows added to groups or retracted from them, by group, then time. ``initial``:
        the columns of the stored accumulators, one row per group, null for a new one. ``values``:
        the input columns, one row per update, nulls included. Raises ``AggregateError`` if a
        function of the user fails or returns other columns.
        """
        return self._finish_accumulators(
            self._accumulators_at(updates, initial, values, np.arange(len(updates)))
        )

    def after(self, updates: GroupUpdates, initial: Columns, values: Columns) -> list[pa.Array]:
        """Return the columns of the accumulators after each group's last update, one row per group.
        A group without updates has a false flag and null columns, even if ``initial`` has its
        accumulator.

        ``updates``: rows added to groups or retracted from them, by group, then time. ``initial``:
        the columns of the stored accumulators, one row per group, null for a new one. ``values``:
        the input columns, one row per update. Raises ``AggregateError`` if a function of the user
        fails or returns other columns.
        """
        state = self._accumulators_at(updates, initial, values, updates.last)
        row = np.zeros(updates.groups, dtype=np.int64)
        row[updates.updated] = np.arange(len(updates.updated))
        absent = np.ones(updates.groups, dtype=np.bool_)
        absent[updates.updated] = False
        columns = [column.take(pa.array(row, mask=absent)) for column in state]
        return [pa.array(~absent), *columns]

    def merged(self, left: Columns, right: Columns) -> list[pa.Array]:
        """Merge accumulators row by row, the rows of ``left`` before those of ``right``. If only
        one side has begun, return that one; if neither has, the result has not begun. Both have a
        flag column (null for false), then the user's. Raises ``AggregateError`` if the user's
        ``merge`` fails.
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
        """Return the result of each accumulator in ``state``, one row each. An accumulator whose
        flag is false or null gives the result of no rows, that of ``init``. Raises
        ``AggregateError`` if a function of the user fails.
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
        """Return the user's columns of the accumulators after each of the ``wanted`` updates, one
        row each. A group that has had no rows so far has the accumulator of ``init``.

        ``initial``: the stored flag and user's columns, one row per group. ``values``: the input
        columns, one row per update. ``wanted``: the indices of all updates, or of the last one of
        each updated group. Raises ``AggregateError`` if a function of the user fails.
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
        """Return the user's columns of the accumulator of a group's ``included`` rows up to each of
        them, without stored ones: one row per included update.

        ``updates``, ``values``: all updates and their input columns. ``included``: bool[updates],
        the updates that add a row, or those that retract one; either kind is merged in this way.
        If ``every`` is false, only the row of each group's last included update is right, and the
        others are partial. The order of merging is the same in both cases. Raises
        ``AggregateError`` if a function of the user fails.

        Step k merges the accumulator of each row with that of the k-th row before it; k doubles.
        Of a group of five rows, a to e, each column shows the rows in the accumulator of one. The
        lines are at first, and after the steps 1, 2 and 4::

            0   a   b    c     d      e
            1   a   ab   bc    cd     de
            2   a   ab   abc   abcd   bcde
            4   a   ab   abc   abcd   abcde
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
        """Return the user's columns of ``rows`` accumulators, each of one row alone. ``values``:
        the input columns, ``rows`` rows each, or no columns. Raises ``AggregateError`` if ``init``
        or ``add`` fails or returns other columns. Without rows, neither is called.
        """
        if rows == 0:
            return self._no_accumulators()
        state = self._call_function(
            "add", self._by_user_name(self._empty_accumulators(rows)), *values
        )
        return self._checked_columns("add", state, rows)

    def _empty_accumulators(self, rows: int) -> list[pa.Array]:
        """Return the user's columns of ``rows`` accumulators of no rows, as the user's ``init``
        makes them. Raises ``AggregateError`` if ``init`` fails or returns other columns.
        """
        return self._checked_columns("init", self._call_function("init", rows), rows)

    def _combine_accumulators(self, name: str, left: Columns, right: Columns) -> list[pa.Array]:
        """Return the user's columns that ``merge`` or ``retract`` makes of ``left`` and ``right``,
        row by row. Without rows, the function is not called. ``name``: that function's name.
        ``left``, ``right``: the user's columns of as many accumulators. Raises ``AggregateError``
        if the function fails or returns other columns.
        """
        rows = len(left[0])
        if rows == 0:
            return self._no_accumulators()
        returned = self._call_function(name, self._by_user_name(left), self._by_user_name(right))
        return self._checked_columns(name, returned, rows)

    def _finish_accumulators(self, state: Columns) -> pa.Array:
        """Return the result of each accumulator: what the user's ``finish`` makes of them, or the
        first column without such a function. Without rows, ``finish`` is not called. ``state``: the
        user's columns of the accumulators. Those of no rows must be as ``init`` makes them. Raises
        ``AggregateError`` if ``finish`` fails or returns another type or length.
        """
        if self.functions.finish is None:
            return state[0]
        if len(state[0]) == 0:
            return pa.nulls(0, self.result)
        finished = self._call_function("finish", self._by_user_name(state))
        return _checked_array("finish", "its result", finished, self.result, len(state[0]))

    def _call_function(self, function: str, *arguments: Any) -> Any:
        """Call a function of the user, and return its result unchecked. ``function``: its name,
        such as ``add``. ``arguments``: its positional arguments. Raises ``AggregateError``, with
        the message of the cause, if the function raises an ``Exception``.
        """
        try:
            return getattr(self.functions, function)(*arguments)
        except Exception as error:
            raise AggregateError(
                f"{function} of a user-defined aggregate raised {line_of(error)}",
                "Correct the function, or keep the rows from it on which it fails",
            ) from error

    def _by_user_name(self, columns: Columns) -> State:
        """Return the columns of accumulators in a dict by the names that the user gave them.
        ``columns``: in the declared order, as many as there are names, or a ``ValueError`` is
        raised.
        """
        names = (name for name, _ in self.functions.columns)
        return dict(zip(names, columns, strict=True))

    def _no_accumulators(self) -> list[pa.Array]:
        """Return the user's columns of no accumulators: an empty array of each declared type."""
        return [pa.nulls(0, type_) for _, type_ in self.functions.columns]

    def _checked_columns(self, function: str, state: Any, rows: int) -> list[pa.Array]:
        """Return the arrays that the user's function named ``function`` returned as ``state``, in
        their declared order. Raises ``AggregateError`` unless it is a mapping with exactly the
        declared names, to arrays of their types and of ``rows`` elements.
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
    """Return ``returned``, an array that a user's function gave, cast to ``type_`` if nested fields
    differ in nullability. Chunks are joined.

    ``function``, ``what``: the name of the function and the part of its result, for errors. Raises
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
    """Return the type with all fields of its structs nullable, at every depth of structs and lists.
    Other types are returned as they are.
    """
    if pa.types.is_struct(type_):
        fields = [
            field.with_type(_nullable_type(field.type)).with_nullable(True) for field in type_
        ]
        return pa.struct(fields)
    return pa.list_(_nullable_type(type_.value_type)) if pa.types.is_list(type_) else type_


def _begun_mask(state: Columns) -> Mask:
    """Return for each group whether it has begun: bool[groups]. ``state``: the columns of
    accumulators, the flag first, where null means that it has not.
    """
    return int64_values(state[0].cast(pa.int8())) > 0


def _take_of_parts(parts: list[Columns], index: Ints) -> list[pa.Array]:
    """Return columns of the rows ``index`` of the concatenation of ``parts``, one row per index.
    ``parts``: at least one, each a list of the same columns. Indices go on from one part to the
    next.
    """
    chosen = pa.array(index)
    return [
        (columns[0] if len(columns) == 1 else pa.concat_arrays(columns)).take(chosen)
        for columns in zip(*parts, strict=True)
    ]


def _latest_included(updates: GroupUpdates, included: Mask, wanted: Ints) -> Ints:
    """Return for each wanted update the latest included update of its group up to it, itself
    possible: int64[wanted]. The result is its index among the included updates alone, or -1 if the
    group has none so far.

    ``updates``: the groups of n updates. ``included``: bool[n]. ``wanted``: indices of updates.
    """
    upto = np.cumsum(included)
    before = np.append(0, upto)[updates.bounds[updates.group[wanted]]]
    return np.where(upto[wanted] > before, upto[wanted] - 1, -1)
