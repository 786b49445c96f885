"""A windowed table read as a plain table, or as a stream of its changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

from pyspark.sql import Column
from pyspark.sql.types import StructField, StructType

from dovetail.base.validation import Rule
from dovetail.errors import PlanError
from dovetail.plan.nodes import Derived, Describe, Node
from dovetail.plan.select import computed_field
from dovetail.plan.types.checks import known_field, refuse_duplicates, refuse_key_type, refuse_names
from dovetail.plan.types.expressions import refuse_random

WindowMode: TypeAlias = Annotated[
    Literal["on_change", "on_close"], Rule("'on_change' or 'on_close': once a window is closed")
]


@dataclass(frozen=True, eq=False, kw_only=True)
class Unwindowed(Node):
    """The rows of a windowed table under other columns, as a table or a stream."""

    null_keys = False

    input: Derived
    """The windowed table."""
    key: StructType
    """The key columns of the result."""
    values: StructType
    """The value columns of the result."""
    columns: tuple[str | Column, ...]
    """The origin of each key column and then of each value column."""
    stream: bool = False
    """True for a stream, False for a table."""
    final: bool
    """True for only the last row of each window, once it is closed. False for each change."""

    @property
    def name(self) -> str:
        """The name of the windowed table."""
        return self.input.name

    @property
    def summary(self) -> str:
        """The line of text that describes the node in ``explain``: ``windows as a table`` or
        ``windows as a stream``. If only closed windows are emitted, it says so.
        """
        final = ", each window once, when it is closed" if self.final else ""
        return f"windows as a {'stream' if self.stream else 'table'}{final}"

    @property
    def closes(self) -> bool:
        """True if only closed windows are emitted."""
        return self.final

    @property
    def inputs(self) -> tuple[Node, ...]:
        """The windowed table, as the only element."""
        return (self.input,)

    def state_properties(self, describe: Describe, *, whole: bool) -> Mapping[str, Any]:
        """Return, as JSON data for a topology's fingerprint (a hash), the parts on which the state
        depends.

        - ``windows``: the windowed table, as ``describe`` returns it;
        - ``as``: ``a stream`` or ``a table``;
        - ``final``: True if windows are emitted once they are closed;
        - ``columns``: the origins of the result's columns as text, only with ``whole``.
        """
        described: dict[str, Any] = {
            "windows": describe(self.input.node, whole=whole or self.final),
            "as": "a stream" if self.stream else "a table",
            "final": self.final,
        }
        if whole:
            row = self.input.row
            described["columns"] = [describe.text(self, item, row) for item in self.columns]
        return described


def windows_as_table(node: Node, windows: WindowMode) -> Unwindowed:
    """Return the windowed table ``node`` as a table with the same columns, whose key includes the
    start and the end of the window.

    ``windows``: ``"on_change"`` emits every change, ``"on_close"`` only a window's last row, once
    the window is closed. A window whose row is deleted by then emits nothing.
    """
    names = (*node.key.names, *node.values.names)
    return Unwindowed(
        input=Derived(node),
        key=node.key,
        values=node.values,
        columns=names,
        final=windows == "on_close",
    )


def windows_as_stream(
    node: Node,
    windows: WindowMode,
    key: str | Sequence[str] | None,
    select: Sequence[str | Column] | Mapping[str, str | Column] | None,
) -> Unwindowed:
    """Return the changes of the windowed table ``node`` as a stream. A deletion becomes a record
    without a value.

    ``windows``: ``"on_change"`` emits every change, ``"on_close"`` only a window's last row, once
    the window is closed. A window whose row is deleted by then emits nothing. ``key``: the new key,
    columns of ``select``; by default the table's key without its window. Its values are not checked
    for nulls. ``select``: names or expressions, or these by result name; by default all columns.
    Columns that are no key are values.

    Raises ``PlanError`` for unknown, duplicate and reserved names, for no key column, and for keys
    that are random or of an unsuitable type. Expressions must resolve, which needs a Spark session.
    """
    name = f"to_stream of {node.name}"
    columns = node.row
    items: dict[str, str | Column] = {f.name: f.name for f in columns}
    if isinstance(select, Mapping):
        items = dict(select)
    elif select is not None:
        refuse_duplicates(
            name,
            [_item_name(name, columns, item) for item in select],
            "Name each once, or give them names in a mapping",
        )
        items = {_item_name(name, columns, item): item for item in select}
    fields = {n: _selected_field(name, columns, n, item) for n, item in items.items()}
    keys = node.base_key.names if key is None else [key] if isinstance(key, str) else [*key]
    for column in keys:
        if column not in fields:
            raise PlanError(
                name,
                f"key= names {column!r}, which select= leaves out",
                f"Known are {', '.join(fields)}",
            )
        refuse_key_type(name, fields[column])
        refuse_random(name, f"key column {column!r}", fields[column])
    if not keys:
        raise PlanError(name, "key= names no column", "Name at least one, or leave it out")
    refuse_duplicates(name, keys, "Name it once in key=")
    refuse_duplicates(name, list(fields), "Give each its own name in select=")
    values = [n for n in fields if n not in keys]
    refuse_names(name, [*keys, *values], "Give it another name in select=")
    return Unwindowed(
        input=Derived(node),
        key=StructType([fields[n] for n in keys]),
        values=StructType([fields[n] for n in values]),
        columns=tuple(items[n] for n in (*keys, *values)),
        stream=True,
        final=windows == "on_close",
    )


def _item_name(operator: str, columns: StructType, item: str | Column) -> str:
    """Return the name of a selected column: ``item`` if it is a name, known or not, else the name
    that Spark gives the expression. Raises ``PlanError`` if Spark cannot resolve the expression.

    ``operator``: the node in errors. ``columns``: the schema of the windowed table's row.
    """
    if isinstance(item, str):
        return item
    return _expression_field(operator, columns, item).name


def _selected_field(operator: str, columns: StructType, name: str, item: object) -> StructField:
    """Return the field of a selected column, nullable, under the name ``name``. Its metadata marks
    random values.

    ``operator``: the node in errors. ``columns``: the schema of the windowed table's row. ``item``:
    a column's name or an expression. Raises ``PlanError`` for an unknown name, and for an
    expression that Spark cannot resolve.
    """
    if isinstance(item, Column):
        field = _expression_field(operator, columns, item)
    else:
        field = known_field(operator, "select=", item, columns)
    return StructField(name, field.dataType, True, field.metadata)


def _expression_field(operator: str, columns: StructType, item: Column) -> StructField:
    """Return the field of an expression over a row of ``columns``, as Spark resolves it. Raises
    ``PlanError`` if Spark cannot, or if there is no Spark session. ``operator``: the node in
    errors.
    """
    remedy = f"Its columns are {', '.join(columns.names)}"
    return computed_field(operator, "select=", columns, item, remedy)
