"""From what a store returns to Arrow columns of the declared types, or an error; never a guess."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from dovetail.errors import DataError


def fitted(
    title: str, rows: Sequence[Sequence[Any]], schema: pa.Schema, key: Sequence[str]
) -> pa.Table:
    """The rows as a table of ``schema``; ``DataError`` where a value does not fit its column, or
    a key column has nulls.
    """
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    arrays = [_array(title, list(v), f) for v, f in zip(columns, schema, strict=True)]
    return checked(title, pa.table(arrays, schema=schema), key)


def checked(title: str, table: pa.Table, key: Sequence[str]) -> pa.Table:
    """The table, whose key columns must be without nulls."""
    for name in key:
        if name in table.schema.names and table.column(name).null_count:
            raise DataError(
                title,
                f"key column {name!r} is null in a row that was looked up",
                "Declare the columns that are never null as key=",
            )
    return table


def _array(title: str, values: list[Any], field: pa.Field) -> pa.Array:
    try:
        return pa.array(values, field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as first:
        try:
            if _convertible(field.type):
                return pa.array(values).cast(field.type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            pass
        raise DataError(
            title,
            f"a row does not fit the table's schema: column {field.name!r} is declared "
            f"{field.type}, and {first}",
            "Give the changelog and the look-up source the same types",
        ) from first


def _convertible(type_: pa.DataType) -> bool:
    """Types that stores have no form of and write as texts or numbers."""
    kinds = (pa.types.is_temporal, pa.types.is_decimal, pa.types.is_boolean, pa.types.is_floating)
    return any(kind(type_) for kind in kinds)


def changed(title: str, problem: object) -> DataError:
    """A store that no longer has the columns it was declared with."""
    return DataError(
        title,
        f"its columns are not those of the table: {str(problem).strip().splitlines()[0]}",
        "Bring the store's schema and the changelog's together, then start the query again",
    )
