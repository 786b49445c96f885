"""What a windowed table is read as: a table, or a stream of its changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

from pyspark.sql import Column
from pyspark.sql.types import StructField, StructType

from dovetail.arguments import Rule
from dovetail.errors import PlanError
from dovetail.plan.checks import known_field, refuse_duplicates, refuse_key_type, refuse_names
from dovetail.plan.nodes import Derived, Describe, Node
from dovetail.plan.select import computed_field

WindowMode: TypeAlias = Annotated[
    Literal["on_change", "on_close"], Rule("'on_change' or 'on_close': once a window is closed")
]


@dataclass(frozen=True, eq=False, kw_only=True)
class Unwindowed(Node):
    """What a windowed table is read as: its changes, or with ``final`` each window's last row once
    it is closed, under the columns ``key`` and ``values``, each made of the columns that
    ``columns`` names or computes.
    """

    null_keys = False

    input: Derived
    key: StructType
    values: StructType
    columns: tuple[str | Column, ...]
    stream: bool = False
    final: bool

    @property
    def name(self) -> str:
        """The name of the windowed table."""
        return self.input.name

    @property
    def summary(self) -> str:
        """What ``explain`` calls it."""
        final = ", each window once, when it is closed" if self.final else ""
        return f"windows as a {'stream' if self.stream else 'table'}{final}"

    @property
    def inputs(self) -> tuple[Node, ...]:
        """The windowed table."""
        return (self.input,)

    def described(self, describe: Describe, *, whole: bool) -> Mapping[str, Any]:
        """The windowed table, when its windows come, and the columns made of them."""
        described: dict[str, Any] = {
            "windows": describe(self.input.node, whole=whole or self.final),
            "as": "a stream" if self.stream else "a table",
            "final": self.final,
        }
        if whole:
            row = self.input.row
            described["columns"] = [describe.text(self, item, row) for item in self.columns]
        return described


def as_table(node: Node, windows: WindowMode) -> Unwindowed:
    """A windowed table as a table by key and window."""
    names = (*node.key.names, *node.values.names)
    return Unwindowed(
        input=Derived(node),
        key=node.key,
        values=node.values,
        columns=names,
        final=windows == "on_close",
    )


def as_stream(
    node: Node,
    windows: WindowMode,
    key: str | Sequence[str] | None,
    select: Sequence[str | Column] | Mapping[str, str | Column] | None,
) -> Unwindowed:
    """A windowed table's changes as a stream, by its key without the window or another one."""
    name = f"to_stream of {node.name}"
    columns = node.row
    made: dict[str, str | Column] = {f.name: f.name for f in columns}
    if isinstance(select, Mapping):
        made = dict(select)
    elif select is not None:
        refuse_duplicates(
            name,
            [_name_of(name, columns, item) for item in select],
            "Name each once, or give them names in a mapping",
        )
        made = {_name_of(name, columns, item): item for item in select}
    fields = {n: _field(name, columns, n, item) for n, item in made.items()}
    keys = node.base_key.names if key is None else [key] if isinstance(key, str) else [*key]
    for column in keys:
        if column not in fields:
            raise PlanError(
                name,
                f"key= names {column!r}, which select= leaves out",
                f"Known are {', '.join(fields)}",
            )
        refuse_key_type(name, fields[column])
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
        columns=tuple(made[n] for n in (*keys, *values)),
        stream=True,
        final=windows == "on_close",
    )


def _name_of(operator: str, columns: StructType, item: str | Column) -> str:
    if isinstance(item, str):
        return item
    return _resolved(operator, columns, item).name


def _field(operator: str, columns: StructType, name: str, item: object) -> StructField:
    if isinstance(item, Column):
        found = _resolved(operator, columns, item)
        return StructField(name, found.dataType, True, found.metadata)
    return StructField(name, known_field(operator, "select=", item, columns).dataType, True)


def _resolved(operator: str, columns: StructType, item: Column) -> StructField:
    remedy = f"Its columns are {', '.join(columns.names)}"
    return computed_field(operator, "select=", columns, item, remedy)
