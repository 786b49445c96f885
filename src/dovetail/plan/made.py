"""What a view's columns are made of: columns of the node, expressions, constants, fields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column
from pyspark.sql import functions as F

from dovetail.columns import quoted


@dataclass(frozen=True)
class Constant:
    """A text, the same in each row."""

    value: str

    def column(self) -> Column:
        """It as Spark computes it."""
        return F.lit(self.value)

    def array(self, rows: pa.Table) -> pa.Array:
        """It of some rows."""
        return pa.array([self.value] * len(rows), pa.string())


@dataclass(frozen=True)
class FieldOf:
    """A field of a column that is a struct."""

    struct: str
    field: str

    def column(self) -> Column:
        """It as Spark computes it."""
        return F.col(quoted(self.struct)).getField(self.field)

    def array(self, rows: pa.Table) -> pa.Array:
        """It of some rows."""
        return pc.struct_field(rows.column(self.struct).combine_chunks(), [self.field])


Made: TypeAlias = str | Column | Constant | FieldOf
"""What a column of a view is: a column by its name, an expression over the row, or what needs no
Spark session.
"""


def column_of(item: Made) -> Column:
    """A column as Spark computes it."""
    if isinstance(item, str):
        return F.col(quoted(item))
    return item if isinstance(item, Column) else item.column()


def array_of(rows: pa.Table, item: Made) -> pa.ChunkedArray | pa.Array:
    """A column that needs no Spark session, of some rows."""
    assert not isinstance(item, Column), "an expression"
    return rows.column(item) if isinstance(item, str) else item.array(rows)


def said(item: Made) -> str:
    """A column or an expression in words."""
    return item if isinstance(item, str) else str(column_of(item))[len("Column<'") : -len("'>")]
