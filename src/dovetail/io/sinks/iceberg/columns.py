"""The columns and partitions that an Iceberg table stores."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from dovetail.errors import DataError, PlanError
from dovetail.plan.types.checks import known_field, refuse_duplicates

_PLAIN_TYPES = (
    *(BinaryType, BooleanType, DateType, DecimalType, DoubleType, FloatType, IntegerType),
    *(LongType, StringType, TimestampNTZType, TimestampType),
)
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
_FIRST_US, _LAST_US = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The days and the microseconds of the years 1 to 9999, which Python's dates and times have."""
_SMALL_INTEGERS = (ByteType, ShortType)
"""Types that become integers."""
_TRANSFORM = re.compile(r"(year|month|day|hour)\((.+)\)|(bucket|truncate)\((\d+), *(.+)\)")
"""A call of a transform: a time's part of a column, or ``bucket`` and ``truncate`` with a number.
"""


def stored_schema(title: str, schema: StructType) -> StructType:
    """Return the columns of ``schema`` as Iceberg stores them, in order: all nullable, and
    ``tinyint`` and ``smallint`` as int, at any depth. Metadata is dropped. ``title``: the sink's
    name in errors.

    Raises ``PlanError`` for a type that Iceberg does not store, such as ``char`` and intervals.
    """
    return StructType([_stored_field(title, field.name, field) for field in schema])


def _stored_field(title: str, path: str, field: StructField) -> StructField:
    """Return ``field`` as Iceberg stores it: nullable, and ``tinyint`` and ``smallint`` as int, at
    any depth. Metadata is dropped. ``path``: the dotted path of the field. ``title``: the sink's
    name. Both are for errors.

    Raises ``PlanError`` for a type that Iceberg lacks, such as ``char`` and intervals.
    """
    return StructField(field.name, _stored_type(title, path, field.dataType))


def _stored_type(title: str, path: str, type_: DataType) -> DataType:
    """Return the type in which Iceberg stores values of ``type_``, at any depth: ``tinyint`` and
    ``smallint`` become int, and all parts nullable. ``path``: the dotted path of their column, for
    errors. Raises ``PlanError`` for a type that Iceberg lacks, such as ``char`` and intervals.
    """
    if isinstance(type_, StructType):
        return StructType([_stored_field(title, f"{path}.{f.name}", f) for f in type_])
    if isinstance(type_, ArrayType):
        return ArrayType(_stored_type(title, path, type_.elementType))
    if isinstance(type_, MapType):
        key, value = (_stored_type(title, path, part) for part in (type_.keyType, type_.valueType))
        return MapType(key, value)
    if isinstance(type_, _SMALL_INTEGERS):
        return IntegerType()
    if not isinstance(type_, _PLAIN_TYPES):
        raise PlanError(
            title,
            f"column {path!r} is of type {type_.simpleString()}, which Iceberg does not store",
            "Leave it out, or cast it, for instance to a string, or an interval to seconds",
        )
    return type_


def partition_fields(
    title: str, schema: StructType, partition_by: Sequence[str]
) -> list[tuple[str, str]]:
    """Return the column and the transform of each partition field, in order, such as ``("id",
    "bucket[16]")``; an empty list for no fields. ``schema``: the columns of the table.
    ``partition_by``: for each field a column's name, or a transform of one, such as ``day(at)``.
    ``title``: the sink's name in errors.

    Raises ``PlanError`` for a column that is unknown (case counts), nested or of floats. Also for
    the same text twice, in any case. A transform that does not suit its column passes.
    """
    refuse_duplicates(title, partition_by, "Name it once in partition_by=")
    return [_partition_field(title, schema, text) for text in partition_by]


def _partition_field(title: str, schema: StructType, text: str) -> tuple[str, str]:
    """Return the column and the transform of one partition field, as pyiceberg names transforms:
    ``("at", "day")``, ``("id", "bucket[16]")``, ``("id", "identity")``.

    ``schema``: the columns of the table. ``text``: a column's name, or a transform of one, such as
    ``day(at)``. A column that has the whole text as its name comes first. ``title``: the sink's
    name. Raises ``PlanError`` for an unknown column, also for a transform that is unknown, and for
    a column of structs, arrays, maps or floats.
    """
    match = _TRANSFORM.fullmatch(text)
    if text in schema.names or match is None:
        column, transform = text, "identity"
    elif match[1]:
        column, transform = match[2], match[1]
    else:
        column, transform = match[5], f"{match[3]}[{match[4]}]"
    type_ = known_field(title, "partition_by=", column, schema).dataType
    if isinstance(type_, (ArrayType, MapType, StructType)):
        raise PlanError(
            title,
            f"partition_by= names {column!r}, which is of type {type_.simpleString()}",
            "Name columns of plain types, such as a field of it in a column of its own",
        )
    if isinstance(type_, (FloatType, DoubleType)):
        raise PlanError(
            title,
            f"partition_by= names {column!r} of type {type_.simpleString()}, by which pyiceberg "
            "does not part zeros of two signs and NaN",
            "Name other columns, or one of whole numbers or decimals that is made of it",
        )
    return column, transform


def refuse_nested_keys(title: str, schema: StructType, keys: Sequence[str]) -> None:
    """Raise ``PlanError`` for a key column of structs, arrays or maps, by which Iceberg finds no
    rows. ``title``: the sink's name in errors. ``schema``: the columns, among them ``keys``.
    """
    for name in keys:
        type_ = schema[name].dataType
        if isinstance(type_, (ArrayType, MapType, StructType)):
            raise PlanError(
                title,
                f"the key {name!r} is of type {type_.simpleString()}, by which no rows are found",
                "Take its fields as keys, by key_by()",
            )


def refuse_far_times(title: str, rows: pa.Table) -> None:
    """Raise ``DataError`` if ``rows`` have a date or a timestamp outside the years 1 to 9999, at
    any depth. Pyiceberg cannot write the bounds of a file with such a value. ``title``: the sink's
    name in errors. Times without a zone count as UTC.
    """
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        for part in _parts_of(column.combine_chunks()):
            if not pa.types.is_temporal(part.type) or not len(part):
                continue
            days = part.type == pa.date32()
            ends = pc.min_max(part.cast(pa.int32() if days else pa.int64()))
            first, last = (_FIRST_DAY, _LAST_DAY) if days else (_FIRST_US, _LAST_US)
            least, most = ends["min"].as_py(), ends["max"].as_py()
            if least is not None and not first <= least <= most <= last:
                raise DataError(
                    title,
                    f"a row has a value of column {name!r} outside the years 1 to 9999, which "
                    "pyiceberg cannot write",
                    "Replace it by with_columns(), or leave the row out by where()",
                )


def _parts_of(values: pa.Array) -> Iterator[pa.Array]:
    """Yield ``values`` if they are of a plain type, else the values within them at any depth."""
    if pa.types.is_struct(values.type):
        for part in values.flatten():
            yield from _parts_of(part)
    elif pa.types.is_map(values.type):
        yield from _parts_of(values.keys)
        yield from _parts_of(values.items)
    elif pa.types.is_list(values.type) or pa.types.is_large_list(values.type):
        yield from _parts_of(values.flatten())
    else:
        yield values
