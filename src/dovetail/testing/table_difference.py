"""Two tables compared as sets of rows, with a difference that can be read."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

import pandas as pd
import pyarrow as pa

from dovetail.base.validation import ColumnNames, Positive, Rule, validated
from dovetail.errors import PlanError
from dovetail.testing.changes import columns_shown
from dovetail.testing.inputs import Row

SomeTable: TypeAlias = Annotated[
    Any,
    Rule(
        "a list of rows, what driver.table() returns, or a frame of Spark, pandas, Arrow or polars",
        lambda table: _is_frame(table) or _are_rows(table),
    ),
]
Tolerance: TypeAlias = Annotated[
    float, Rule("a number from 0", lambda tolerance: 0 <= tolerance < math.inf)
]
Equal: TypeAlias = Callable[[Any, Any], bool]
"""A function that returns True if two values, or two rows, count as equal."""

_KEY = "key"
"""The name of the key column of two mappings that are compared without ``key=``."""


@validated
def assert_table_equal(
    actual: SomeTable,
    expected: SomeTable,
    *,
    key: ColumnNames | None = None,
    ordered: bool = False,
    rel_tol: Tolerance = 0.0,
    abs_tol: Tolerance = 0.0,
    max_lines: Positive = 20,
) -> None:
    """Assert that two tables have the same columns and the same rows, in any order.

    A row that occurs twice in one table must occur twice in the other.

    Parameters
    ----------
    actual : list of mappings, mapping, or frame
        The table that a test has computed. It may be a list of rows, the result of
        ``Driver.table``, or a frame of Spark, pandas, pyarrow or polars. A column that a row
        of a list leaves out is null.
    expected : list of mappings, mapping, or frame
        The table that it should be, in any of these forms.
    key : str or list of str, optional
        The columns by which rows are told apart. Rows of the same key are then compared
        column by column. It also names the key of what ``Driver.table`` returns. Two
        mappings are compared by their keys without it, too.
    ordered : bool, default False
        True if the order of the rows counts. Rows are then compared by their positions, not
        by ``key``.
    rel_tol, abs_tol : float, default 0.0
        The relative and the absolute tolerance of floats, as in ``math.isclose``. A NaN
        equals a NaN.
    max_lines : int, default 20
        The largest number of differences in the message.

    Raises
    ------
    AssertionError
        If the tables differ, or have other columns. The message has ``-`` before rows that
        are missing, ``+`` before rows that should not be there, and ``~`` before rows with
        other values. The last are rows that match by key or, if ``ordered``, by position.
        An empty list of rows has the columns of the other table.
    PlanError
        If a column of ``key`` is not in the tables. Also if ``key`` has too many or too few
        columns for a mapping's keys, or is left out for a mapping beside another form. Also
        for a streaming frame.

    See Also
    --------
    Driver.table : Return the rows of a table.
    Driver.assert_changes : Compare changes instead of rows.

    Notes
    -----
    The order of columns does not count, nor do their types: 1 equals 1.0, but not True. A
    null equals a null. A NaN in a frame of pandas counts as null.

    With a tolerance, each row is matched with the first one that is near enough. The columns
    of ``key`` must be equal without one.

    Examples
    --------
    >>> from dovetail import testing
    >>> actual = [{"id": 2, "amount": 7}, {"id": 1, "amount": 41}]
    >>> testing.assert_table_equal(actual, actual[::-1])
    >>> expected = [{"id": 1, "amount": 40}, {"id": 3, "amount": 9}]
    >>> testing.assert_table_equal(actual, expected, key="id")
    Traceback (most recent call last):
    AssertionError: the tables differ: 1 row changed (~), 1 row missing (-), 1 row too many (+)
    ~ id=1: amount is 41, expected 40
    - id=3, amount=9
    + id=2, amount=7
    """
    names = [key] if isinstance(key, str) else [*(key or [])]
    both_keyed = isinstance(actual, Mapping) and isinstance(expected, Mapping)
    named = names or ([_KEY] if both_keyed else [])
    actual_rows, expected_rows = _load_table(actual, named), _load_table(expected, named)
    _compare_columns(actual_rows, expected_rows)
    columns = actual_rows.columns or expected_rows.columns
    if unknown := [name for name in names if columns and name not in columns]:
        raise PlanError(
            "assert_table_equal",
            f"key= names {', '.join(unknown)}, which is no column",
            f"The columns are {', '.join(columns)}",
        )
    equal = _make_equal(rel_tol, abs_tol)
    if ordered:
        difference = _compare_by_position(actual_rows.rows, expected_rows.rows, equal)
    else:
        difference = _compare_by_key(
            actual_rows.rows, expected_rows.rows, named, equal, max(rel_tol, abs_tol) > 0
        )
    if lines := [*difference.lines(named)]:
        left_out = len(lines) - max_lines
        shown = lines if left_out <= 0 else [*lines[:max_lines], f"... and {left_out} more"]
        raise AssertionError("\n".join([f"the tables differ: {difference.summary()}", *shown]))


@dataclass(frozen=True)
class LoadedTable:
    """A table in memory."""

    columns: list[str]
    """The names of all columns; empty for a list or a mapping without rows."""
    rows: list[dict[str, Any]]
    """The rows, each with all columns."""


@dataclass(frozen=True)
class TableDifference:
    """The rows in which two tables differ."""

    changed: list[tuple[str, Row, Row]]
    """For each row: a text that says which row it is, then its actual and its expected values, in
    the columns that differ alone.
    """
    missing: list[Row]
    """Rows that are expected only."""
    surplus: list[Row]
    """Rows that are actual only."""

    def summary(self) -> str:
        """Return the counts of changed, missing and surplus rows in words. Kinds without rows are
        left out, so the text is empty for equal tables.
        """
        kinds: dict[str, Sequence[object]] = {
            "changed (~)": self.changed,
            "missing (-)": self.missing,
            "too many (+)": self.surplus,
        }
        return ", ".join(
            f"{len(rows)} row{'' if len(rows) == 1 else 's'} {kind}"
            for kind, rows in kinds.items()
            if rows
        )

    def lines(self, key: Sequence[str]) -> Iterator[str]:
        """Yield a line for each difference; nothing for equal tables. Changed rows come first: they
        begin with ``~`` and name the columns that differ. Missing rows begin with ``-``, surplus
        rows with ``+``.

        ``key``: names of columns, which come first in missing and surplus rows. Raises ``KeyError``
        for a row without one of them.
        """
        for where, actual, expected in self.changed:
            differing = (
                f"{name} is {value!r}, expected {expected[name]!r}"
                for name, value in actual.items()
            )
            yield f"~ {where}: {'; '.join(differing)}"
        for sign, rows in (("-", self.missing), ("+", self.surplus)):
            for row in rows:
                first = {name: row[name] for name in key}
                yield f"{sign} {columns_shown({**first, **row})}"


def _is_frame(table: Any) -> bool:
    """Return True for a frame of Spark, pandas, Arrow, polars or any library with Arrow's stream
    interface; False for anything else, and for a streaming frame of Spark.

    The type of ``table`` is asked, since a Spark column has any attribute.
    """
    if hasattr(type(table), "toArrow"):
        return not table.isStreaming
    return isinstance(table, pd.DataFrame) or hasattr(type(table), "__arrow_c_stream__")


def _are_rows(table: Any) -> bool:
    """Return True for a sequence of mappings, and for a mapping with mappings as its values, also
    if they are empty. Return False for anything else, such as a single row.
    """
    listed = isinstance(table, Sequence) and not isinstance(table, (str, bytes))
    rows = table.values() if isinstance(table, Mapping) else table if listed else [table]
    return all(isinstance(row, Mapping) for row in rows)


def _load_table(table: Any, key: Sequence[str]) -> LoadedTable:
    """Return the columns and rows of a table, in their order. A column that a row of a list lacks
    is None. A frame of Spark is collected.

    ``table``: a frame, a mapping from keys to values, or a list of mappings. A frame is one of
    pandas (without its index, NaN as None), Spark, Arrow or any library with Arrow's stream
    interface. ``key``: the names for the columns of a mapping's keys; without effect for other
    forms. Raises ``PlanError`` if a mapping's key has more or fewer columns.
    """
    if isinstance(table, pd.DataFrame):
        table = pa.Table.from_pandas(table, preserve_index=False)
    elif hasattr(type(table), "toArrow"):
        table = table.toArrow()
    elif hasattr(type(table), "__arrow_c_stream__"):
        table = pa.table(table)
    if isinstance(table, pa.Table):
        return LoadedTable(table.column_names, table.to_pylist())
    if isinstance(table, Mapping):
        table = [{**_key_columns(part, key), **values} for part, values in table.items()]
    columns = [*dict.fromkeys(name for row in table for name in row)]
    return LoadedTable(columns, [{name: row.get(name) for name in columns} for row in table])


def _key_columns(part: Any, key: Sequence[str]) -> dict[str, Any]:
    """Return the key of a mapping's row as a dict with the names ``key``.

    ``part``: a tuple of several values, or a value. If the only name is ``"key"``, a tuple counts
    as one value. Raises ``PlanError`` if there are more or fewer values than names.
    """
    parts = part if isinstance(part, tuple) and list(key) != [_KEY] else (part,)
    if len(parts) != len(key):
        raise PlanError(
            "assert_table_equal",
            f"a mapping has the key {part!r}, key= has {len(key)} columns",
            "Name the columns of its key in key=",
        )
    return dict(zip(key, parts, strict=True))


def _compare_columns(actual: LoadedTable, expected: LoadedTable) -> None:
    """Raise ``AssertionError`` if the tables have different columns; their order does not matter. A
    table without columns, such as an empty list, fits any other.
    """
    if not actual.columns or not expected.columns:
        return
    missing = [name for name in expected.columns if name not in actual.columns]
    surplus = [name for name in actual.columns if name not in expected.columns]
    if missing or surplus:
        lines = [f"- {name}" for name in missing] + [f"+ {name}" for name in surplus]
        raise AssertionError(
            "\n".join(["the tables have other columns, missing (-) or too many (+)", *lines])
        )


def _compare_by_position(
    actual: Sequence[Row], expected: Sequence[Row], equal: Equal
) -> TableDifference:
    """Return the difference of rows that are compared one by one, in their order. Changed rows are
    named by their index from 0. Further expected rows are missing, further actual ones are surplus.
    All rows must have the same columns. ``equal``: the comparison of two values.
    """
    pairs = enumerate(zip(actual, expected, strict=False))
    changed = [(f"row {index}", *_differing_columns(a, e, equal)) for index, (a, e) in pairs]
    changed = [pair for pair in changed if pair[1]]
    return TableDifference(changed, [*expected[len(actual) :]], [*actual[len(expected) :]])


def _compare_by_key(
    actual: Sequence[Row], expected: Sequence[Row], key: Sequence[str], equal: Equal, near: bool
) -> TableDifference:
    """Return the difference of rows whose order does not matter. Rows of one ``key`` (names of
    columns) are paired: equal ones first, then the others in their order. The rest is missing or
    surplus. Without a key, a row is equal to one of the other table, missing or surplus.

    ``actual``, ``expected``: rows that have all columns of ``key``, whose values are compared
    exactly. ``equal``: the comparison of two values or rows. ``near``: True if ``equal`` has a
    tolerance; with a key it changes nothing.
    """
    sides: dict[Hashable, tuple[list[Row], list[Row]]] = defaultdict(lambda: ([], []))
    for side, rows in enumerate((actual, expected)):
        for row in rows:
            # Without a key, equal rows meet under their own values.
            sides[hashable_form([row[name] for name in key] if key else row)][side].append(row)
    left = [_unmatched_rows(*rows, equal) for rows in sides.values()]
    if not key:
        surplus, missing = ([row for rows in left for row in rows[side]] for side in (0, 1))
        if near:
            surplus, missing = _unmatched_rows(surplus, missing, equal)
        return TableDifference([], missing, surplus)
    changed = [
        (columns_shown({name: a[name] for name in key}), *_differing_columns(a, e, equal))
        for rows in left
        for a, e in zip(*rows, strict=False)
    ]
    return TableDifference(
        changed,
        [row for a, e in left for row in e[len(a) :]],
        [row for a, e in left for row in a[len(e) :]],
    )


def _differing_columns(actual: Row, expected: Row, equal: Equal) -> tuple[Row, Row]:
    """Return the values of the actual and of the expected row in the columns in which they differ,
    as two dicts; both empty if the rows are equal. Both rows must have the same columns.
    """
    names = [name for name, value in actual.items() if not equal(value, expected[name])]
    return {name: actual[name] for name in names}, {name: expected[name] for name in names}


def _unmatched_rows(
    actual: Sequence[Row], expected: Sequence[Row], equal: Equal
) -> tuple[list[Row], list[Row]]:
    """Return the rows of ``actual`` that match no row of ``expected``, then the other way round,
    both in their order. A row matches the first equal row that is left, and at most one.
    """
    waiting, surplus = [*expected], []
    for row in actual:
        match = next((i for i, other in enumerate(waiting) if equal(row, other)), None)
        if match is None:
            surplus.append(row)
        else:
            del waiting[match]
    return surplus, waiting


def _make_equal(rel_tol: float, abs_tol: float) -> Equal:
    """Return the function that compares two values, or two rows, with these tolerances.

    Two numbers of which one is a float are equal within either tolerance, as in ``math.isclose``. A
    NaN equals a NaN, a null a null; True does not equal 1. Nested values are compared likewise, and
    a list equals a tuple.
    """

    def equal(actual: Any, expected: Any) -> bool:
        """Return True if two values are equal within the tolerances, at any depth."""
        if isinstance(actual, Mapping) and isinstance(expected, Mapping):
            same = actual.keys() == expected.keys()
            return same and all(equal(actual[name], expected[name]) for name in actual)
        if isinstance(actual, (list, tuple)) and isinstance(expected, (list, tuple)):
            same = len(actual) == len(expected)
            return same and all(map(equal, actual, expected))
        if isinstance(actual, float) and isinstance(expected, (int, float)):
            if math.isnan(actual) or isinstance(expected, bool):
                return hashable_form(actual) == hashable_form(expected)
            return math.isclose(actual, expected, rel_tol=rel_tol, abs_tol=abs_tol)
        if isinstance(expected, float) and isinstance(actual, int):
            return equal(expected, actual)
        return hashable_form(actual) == hashable_form(expected)

    return equal


def hashable_form(value: Any) -> Hashable:
    """Return a hashable value that is equal for equal values only, and exact. A NaN equals a NaN, 1
    equals 1.0 and True is not 1. Lists equal tuples, a ``bytearray`` equals its bytes, and mappings
    do not depend on their order.
    """
    if hasattr(type(value), "tolist"):  # numpy's
        value = value.tolist()
    if isinstance(value, Mapping):
        return "mapping", frozenset((name, hashable_form(part)) for name, part in value.items())
    if isinstance(value, (list, tuple)):
        return "list", tuple(map(hashable_form, value))
    if isinstance(value, float) and math.isnan(value):
        return ("nan",)
    if isinstance(value, bytearray):
        return bytes(value)
    return ("boolean", value) if isinstance(value, bool) else value
