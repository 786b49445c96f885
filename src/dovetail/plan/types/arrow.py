"""Conversion between Spark types and Arrow types."""

from __future__ import annotations

import inspect
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import DataType, StructField, StructType


def nullable(type_: DataType) -> DataType:
    """Return the type with nulls allowed at every depth, as elements, values of maps and fields.
    The values of a deleted row are all null.
    """
    return StructType([StructField("value", type_)]).toNullable()[0].dataType


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema of columns: timestamps in UTC, nullable at every depth. The columns
    lose their metadata; fields of structs may keep theirs. Spark's own error passes for a type that
    has no Arrow form.
    """
    plain = StructType([StructField(f.name, nullable(f.dataType), True) for f in schema])
    # Spark 4.2 asks for the time zone; 4.1 knows only UTC.
    options: dict[str, Any] = (
        {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}
    )
    return to_arrow_schema(plain, **options)


def spark_schema(schema: pa.Schema) -> StructType:
    """Return the Spark columns of an Arrow schema, in order. Timestamps without a zone become
    ``timestamp_ntz``. Spark's own error passes for a type that Spark does not have.
    """
    return from_arrow_schema(schema, prefer_timestamp_ntz=True)


def in_timezone(schema: pa.Schema, timezone: str) -> pa.Schema:
    """Return the schema with all zoned timestamps, nested ones too, labelled with ``timezone``.
    Instants stay the same. The columns at the top become nullable and lose their metadata.
    """
    return pa.schema([pa.field(f.name, _type_in_timezone(f.type, timezone)) for f in schema])


def _type_in_timezone(type_: pa.DataType, timezone: str) -> pa.DataType:
    """Return a type with its zoned timestamps, in structs, lists and maps too, labelled with
    ``timezone``. Their instants stay; other types stay as they are.
    """
    if pa.types.is_timestamp(type_) and type_.tz is not None:
        return pa.timestamp(type_.unit, timezone)
    if pa.types.is_struct(type_):
        return pa.struct([_field_in_timezone(field, timezone) for field in type_])
    if pa.types.is_list(type_):
        return pa.list_(_field_in_timezone(type_.value_field, timezone))
    if pa.types.is_map(type_):
        return pa.map_(
            _field_in_timezone(type_.key_field, timezone),
            _field_in_timezone(type_.item_field, timezone),
        )
    return type_


def _field_in_timezone(field: pa.Field, timezone: str) -> pa.Field:
    """Return the field with its type's zoned timestamps, at any depth, labelled with ``timezone``.
    Name, nullability and metadata stay.
    """
    return field.with_type(_type_in_timezone(field.type, timezone))
