"""Casts of whole rows to the types of a schema."""

from __future__ import annotations

from typing import TypeVar

import pyarrow as pa

Rows = TypeVar("Rows", pa.Table, pa.RecordBatch)
"""Rows as a table or as a record batch."""


def cast_rows(rows: Rows, schema: pa.Schema) -> Rows:
    """Return ``rows`` with the columns of ``schema``, which has their names in their order. Raises
    ``pa.ArrowInvalid`` if a value does not fit its type.

    Columns that have their type already are not cast. Spark's variant is a struct whose fields are
    never null. Arrow cannot cast a null of such a type, not even to the same type.
    """
    assert rows.schema.names == schema.names
    columns = [
        column if column.type.equals(field.type) else column.cast(field.type)
        for column, field in zip(rows.columns, schema, strict=True)
    ]
    return type(rows).from_arrays(columns, schema=schema)
