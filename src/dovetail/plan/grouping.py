"""From the arguments of ``group_by(…).agg(…)`` to a node; and from a windowed table's to what it is
read as.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, TypeAlias

from pyspark.sql import Column
from pyspark.sql.types import StructField, StructType

from dovetail.arguments import Rule
from dovetail.errors import PlanError
from dovetail.plan.aggregates import AggregateCall, resolve
from dovetail.plan.checks import refuse_duplicates, refuse_key_type, refuse_names
from dovetail.plan.joins import as_entry, refuse_corrected
from dovetail.plan.nodes import (
    WINDOW_FIELDS,
    Aggregated,
    Aggregation,
    Derived,
    Node,
    Unwindowed,
    WindowJoin,
    base_key,
    is_stream,
)
from dovetail.plan.select import computed_field
from dovetail.plan.windows import Windows

WindowMode: TypeAlias = Annotated[
    Literal["on_change", "on_close"], Rule("'on_change' or 'on_close': once a window is closed")
]


def aggregation(
    node: Node,
    by: Sequence[str],
    calls: Mapping[str, AggregateCall],
    windows: Windows | None,
    label: str | None = None,
) -> Aggregation:
    """The rows of ``node`` grouped by the columns ``by``, and by windows where there are any."""
    name = label or f"aggregate of {node.name} by {', '.join(by)}"
    refuse_corrected(name, node)
    known = {f.name: f for f in (*node.key, *node.values)}
    if not by:
        raise PlanError(name, "group_by() names no column", "Name at least one")
    refuse_duplicates(name, by, "Name it once in group_by()")
    for column in by:
        if column not in known:
            raise PlanError(
                name,
                f"group_by() names an unknown column {column!r}",
                f"Known in {node.name} are {', '.join(known)}",
            )
        refuse_key_type(name, known[column])
    if not calls:
        raise PlanError(name, "agg() has no aggregate", "Give one, for instance n=dt.count()")
    refuse_names(name, list(calls), "Use another")
    schema = StructType(list(known.values()))
    columns = []
    for result, call in calls.items():
        field, kernel = resolve(name, result, call, schema, retracts=not is_stream(node))
        columns.append(Aggregated(result, call.columns, kernel, field.dataType))
    taken = [*by, *(f.name for f in WINDOW_FIELDS if windows is not None)]
    refuse_duplicates(name, [*taken, *calls], "Give the aggregate another name")
    return Aggregation(
        input=as_entry(name, node),
        by=tuple(by),
        columns=tuple(columns),
        windows=windows,
        label=label,
    )


def as_table(node: Node, windows: WindowMode) -> Unwindowed:
    """A windowed table as a table by key and window."""
    names = (*node.key.names, *node.values.names)
    return Unwindowed(
        input=Derived(_windowed(node)),
        key=node.key,
        values=node.values,
        columns=names,
        stream=False,
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
    columns = [*node.key.fields, *node.values.fields]
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
    keys = base_key(node).names if key is None else [key] if isinstance(key, str) else [*key]
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
        input=Derived(_windowed(node)),
        key=StructType([fields[n] for n in keys]),
        values=StructType([fields[n] for n in values]),
        columns=tuple(made[n] for n in (*keys, *values)),
        stream=True,
        final=windows == "on_close",
    )


def _windowed(node: Node) -> Aggregation | WindowJoin:
    assert isinstance(node, (Aggregation, WindowJoin))
    return node


def _name_of(operator: str, columns: Sequence[StructField], item: str | Column) -> str:
    if isinstance(item, str):
        return item
    return _resolved(operator, columns, item).name


def _field(operator: str, columns: Sequence[StructField], name: str, item: object) -> StructField:
    if isinstance(item, Column):
        return StructField(name, _resolved(operator, columns, item).dataType, True)
    known = {f.name: f for f in columns}
    if not isinstance(item, str) or item not in known:
        raise PlanError(
            operator, f"select= names an unknown column {item!r}", f"Known are {', '.join(known)}"
        )
    return StructField(name, known[item].dataType, True)


def _resolved(operator: str, columns: Sequence[StructField], item: Column) -> StructField:
    remedy = f"Its columns are {', '.join(f.name for f in columns)}"
    return computed_field(operator, "select=", StructType(list(columns)), item, remedy)
