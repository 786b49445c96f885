"""The origins of a view's columns: columns of the node, expressions, constants, fields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column
from pyspark.sql import functions as F

from dovetail.base.columns import quoted


@dataclass(frozen=True)
class Constant:
    """The origin of a view's column that has one text in each row."""

    value: str

    def column(self) -> Column:
        """Return the text as a Spark expression of type string."""
        return F.lit(self.value)

    def array(self, rows: pa.Table) -> pa.Array:
        """Return an array of strings that has the text once for each row of ``rows``."""
        return pa.array([self.value] * len(rows), pa.string())


@dataclass(frozen=True)
class FieldOf:
    """The origin of a view's column that is a field of a struct column."""

    struct: str
    field: str

    def column(self) -> Column:
        """Return the field as a Spark expression over a row with the struct column; null where the
        struct is null.
        """
        return F.col(quoted(self.struct)).getField(self.field)

    def array(self, rows: pa.Table) -> pa.Array:
        """Return the field's value in each row of ``rows``, in order; null where the struct is
        null. ``rows`` must have the struct column.
        """
        return pc.struct_field(rows.column(self.struct).combine_chunks(), [self.field])


ColumnItem: TypeAlias = str | Column | Constant | FieldOf
"""The origin of a view's column: a column by name, an expression over the row, or an object that
needs no Spark session.
"""


def column_of(item: ColumnItem) -> Column:
    """Return a Spark expression for the origin of a view's column: a name becomes a reference, an
    expression stays as it is, a constant and a struct's field are built. Nothing is resolved yet.
    """
    if isinstance(item, str):
        return F.col(quoted(item))
    return item if isinstance(item, Column) else item.column()


def array_of(rows: pa.Table, item: ColumnItem) -> pa.ChunkedArray | pa.Array:
    """Return the values of ``item``, the origin of a view's column, one for each row of ``rows`` in
    order: a column by name, a constant, or a field of a struct. ``item`` must not be an expression
    (an assertion), so no Spark session is needed.
    """
    assert not isinstance(item, Column), "an expression"
    return rows.column(item) if isinstance(item, str) else item.array(rows)


def item_as_text(item: ColumnItem) -> str:
    """Return the origin of a view's column in words, for ``explain``: a name or a constant's text
    as it is, an expression or a struct's field as Spark shows it.
    """
    if isinstance(item, Constant):
        return item.value
    return item if isinstance(item, str) else str(column_of(item))[len("Column<'") : -len("'>")]
