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
        found = pa.array(values)
        if not _becomes(found.type, field.type):
            raise pa.ArrowInvalid(f"the store has {found.type}")
        return found.cast(field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise DataError(
            title,
            f"a row does not fit the table's schema: column {field.name!r} is declared "
            f"{field.type}, and {error}",
            "Give the changelog and the look-up source the same types",
        ) from error


def _becomes(found: pa.DataType, declared: pa.DataType) -> bool:
    """Whether values of a type may be of the declared one; whether all of them can, the cast says.

    Stores write times and decimals as texts, and booleans and times as numbers, where they have no
    types for them.
    """
    types = pa.types
    if types.is_null(found) or found.id == declared.id:
        return True
    from_number = types.is_floating(declared) or types.is_decimal(declared)
    if types.is_integer(found):
        other = types.is_boolean(declared) or types.is_temporal(declared)
        return bool(types.is_integer(declared) or from_number or other)
    if types.is_decimal(found):
        return bool(types.is_integer(declared) or from_number)
    if types.is_string(found):
        texts = types.is_large_string(declared)
        return bool(texts or types.is_temporal(declared) or types.is_decimal(declared))
    kinds = (types.is_floating, types.is_temporal, types.is_nested, types.is_binary)
    return any(kind(found) and kind(declared) for kind in kinds)


def changed(title: str, problem: object) -> DataError:
    """A store that no longer has the columns it was declared with."""
    return DataError(
        title,
        f"its columns are not those of the table: {str(problem).strip().splitlines()[0]}",
        "Bring the store's schema and the changelog's together, then start the query again",
    )
