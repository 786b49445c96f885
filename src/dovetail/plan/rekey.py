"""A table under another key: its rows by that key, of which one is there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from pyspark.sql import Column
from pyspark.sql import functions as F

from dovetail.columns import quoted
from dovetail.plan.aggregates import collect_list
from dovetail.plan.aggregation import aggregation
from dovetail.plan.nodes import Node
from dovetail.plan.select import session_for
from dovetail.plan.views import Errors, View, keyed_by, selected, with_columns

Duplicates: TypeAlias = Literal["error", "last"]


def rekeyed(
    node: Node,
    columns: Sequence[str],
    named: Mapping[str, str | Column],
    duplicates: Duplicates,
    errors: Errors = "fail",
) -> View:
    """The rows of a table under other columns. Where several have one key, the last one that came
    stands for them, or the query fails.
    """
    name = f"rekey of {node.name}"
    session_for(name, "rekey()")
    view = keyed_by(node, columns, named, call="rekey")
    values = view.values.names
    rows = "rows"
    while rows in view.row.names:
        rows += "_"
    row = F.struct(*(F.col(quoted(column)) for column in values))
    source = with_columns(node, {**named, rows: row}, errors, call="rekey")
    grouped = aggregation(source, view.key.names, {rows: collect_list(rows)}, None, label=name)
    last = F.element_at(F.col(rows), -1)
    if duplicates == "error":
        said = f"{name}: several rows have one key. Use duplicates='last', or a key that tells them"
        last = F.when(F.size(rows) > 1, F.raise_error(F.lit(f"{said} apart."))).otherwise(last)
    return selected(grouped, (), {column: last.getField(column) for column in values})
