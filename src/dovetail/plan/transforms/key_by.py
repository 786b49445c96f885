"""A table under another key, with one row for each new key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from pyspark.sql import Column

from dovetail.errors import PlanError
from dovetail.plan.nodes import Node
from dovetail.plan.transforms.aggregation import aggregation
from dovetail.plan.types.aggregates import LastRowCall
from dovetail.plan.views import Errors, View, rows_under_key, struct_fields, with_columns

Duplicates: TypeAlias = Literal["fail", "last"]
"""Treatment of several rows with one new key: ``"fail"`` fails the query, ``"last"`` keeps the
last one that arrived.
"""


def table_under_key(
    node: Node,
    columns: Sequence[str],
    named: Mapping[str, str | Column],
    duplicates: Duplicates,
    errors: Errors = "fail",
) -> View:
    """Return the rows of the table ``node`` under other key columns, one row for each new key. Rows
    with a null in the new key are left out. Columns of the former key that the new one does not use
    become values, before the other values. A column that the new key takes by name is no value.

    ``columns``: existing columns of the new key. ``named``: new key columns, computed or renamed,
    behind these. ``errors``: the effect of a row on which an expression of ``named`` fails.
    ``"fail"`` stops the query, ``"dead_letter"`` leaves the row out as a dead letter.

    ``duplicates``: of several rows with one new key, ``"last"`` keeps the last that arrived. The
    order is that in which changes are processed, not that of their times. ``"fail"`` fails the
    query with ``DataError``. Only the rows at the end of each micro-batch count for it, not those
    in between.

    Raises ``PlanError`` if no column is named or one twice, for unknown columns, and for a table
    joined with ``late="history"``. It also refuses key columns that are random or of an unsuitable
    type. So it does value columns whose equal values may differ in their bytes, such as maps. A
    name in ``named`` may be that of a key column of ``node`` only for this column. It must not be
    that of a column that stays a value.
    """
    name = f"key_by of {node.name}"
    view = rows_under_key(node, columns, named)
    values = tuple(view.values.names)
    row = "row"
    while row in map(str.lower, view.row.names):
        row += "_"
    former = {column.lower() for column in node.key.names}
    computed = dict[str, str | Column]()
    for new, item in named.items():
        if new.lower() not in former:
            computed[new] = item
        elif not (isinstance(item, str) and item == new):
            raise PlanError(
                name,
                f"{new}= has the name of a former key column",
                f"Give it another name here, and {new!r} by rename() behind key_by()",
            )
    source = with_columns(node, computed, errors) if computed else node
    keys = tuple(view.key.names)
    # A struct has at least one field.
    last = LastRowCall(columns=values or keys[:1], key=keys, unique=duplicates == "fail")
    grouped = aggregation(source, keys, {row: last}, None, label=name)
    return struct_fields(name, grouped, row, values)
