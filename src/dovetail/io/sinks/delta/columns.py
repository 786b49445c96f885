"""The columns of a Delta table: names and types that it can store, and those that it has."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    MapType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from dovetail.base.columns import CHANGE, UPSERT, quoted
from dovetail.errors import PlanError
from dovetail.plan.types.checks import known_field, refuse_duplicates

_MAPPED_CHARACTERS = " ,;{}()\n\t="
"""The characters that Parquet reserves. A column's name may have them only with column mapping."""
_PLAIN_TYPES = (
    *(BinaryType, BooleanType, DateType, NumericType, StringType),
    *(TimestampNTZType, TimestampType, VariantType),
)
_NESTED_TYPES = (ArrayType, MapType, StructType, VariantType)
_NO_PARTITIONS = (*_NESTED_TYPES, BinaryType)
"""The types of columns that cannot partition a table. Delta would store bytes as a text, in which
those that are no UTF-8 are lost."""
_NULL_TEXTS = {
    "": "an empty text",
    "__HIVE_DEFAULT_PARTITION__": "the text '__HIVE_DEFAULT_PARTITION__'",
}
"""The texts for which Delta stores null in a partition column, and their descriptions."""
_ESCAPED_IN_FOLDERS = r"[\x01-\x1f\x7f\"#%'*/:=?\\{\[\]^]"
"""A pattern of the characters that Spark writes as ``%00`` in the name of a partition's folder."""
_STEADY_ZONE = re.compile(
    r"Z|(Etc/)?(GMT|UCT|UT|UTC|Zulu|Greenwich)|(Etc/)?(GMT|UT|UTC)?[+-]\d{1,2}(:\d\d){0,2}"
)
"""The names of time zones whose clocks are never set back."""


def refuse_unstorable(
    title: str, schema: StructType, partition_by: Sequence[str], *, mapped: bool
) -> None:
    """Raise ``PlanError`` for a column of ``schema`` that Delta cannot store. Also for two names in
    the table or in one struct that are equal or differ in case alone. Also for columns in
    ``partition_by`` that are unknown, named twice, of a nested type or of bytes, or all columns.

    ``title``: the sink's name in errors. ``mapped``: True if the table has column mapping, which
    allows any name of a column.
    """
    for path, field in _fields_within(schema):
        _refuse_name(title, path, field.name, mapped=mapped)
        _refuse_type(title, path, field.dataType)
    for path, struct in _structs_within("", schema):
        inside = f"struct {path!r}" if path else "the table"
        refuse_duplicates(f"{title}, {inside}", struct.names, "Give each field a name of its own")
    refuse_duplicates(title, partition_by, "Name it once in partition_by=")
    for name in partition_by:
        type_ = known_field(title, "partition_by=", name, schema).dataType
        if isinstance(type_, _NO_PARTITIONS):
            raise PlanError(
                title,
                f"partition_by= names {name!r}, which is of type {type_.simpleString()}",
                "Name columns of plain types, such as a field of it, or its hex(), in a column of "
                "its own",
            )
    if partition_by and len(partition_by) == len(schema):
        raise PlanError(title, "partition_by= names all columns", "Leave one out at least")


def refuse_repeated_hours(
    title: str, zone: str, schema: StructType, partition_columns: Sequence[str]
) -> None:
    """Raise ``PlanError`` for a timestamp among ``partition_columns`` if clocks of the time zone
    ``zone`` may be set back. A table with the columns ``schema`` is laid out by them.

    Delta writes the value as a text without a zone in the session's zone, and reads it back. So of
    two hours that are one on the clock, it reads the first in place of both. ``title``: the sink's
    name in errors.
    """
    if _STEADY_ZONE.fullmatch(zone):
        return
    names = {name.lower() for name in partition_columns}
    for field in schema:
        if field.name.lower() in names and isinstance(field.dataType, TimestampType):
            raise PlanError(
                title,
                f"the table is partitioned by the timestamp {field.name!r}, of which Delta would "
                f"mistake an hour whenever clocks are set back in {zone}, the session's time zone",
                "Set spark.sql.session.timeZone to UTC, or partition by a date",
            )


def fail_on_unfit_partitions(
    title: str,
    changes: DataFrame,
    partition_columns: Sequence[str],
    *,
    deletes: bool,
    name_bytes_max: int | None = None,
) -> DataFrame:
    """Return the changes such that the query fails at an upsert with a value in a partition column
    in whose place Delta stores another one: an empty text, ``__HIVE_DEFAULT_PARTITION__``, a text
    that is no UTF-8, or a timestamp before the year 1. A row with such a key would never be found.
    With ``name_bytes_max`` it also fails at a text of which no folder can be named. Deletes pass
    unless ``deletes``.

    ``changes``: a changelog, whose ``_change`` is ``upsert`` or ``delete``. ``title``: the sink's
    name in errors. ``partition_columns``: the columns that partition the table; their case does not
    count. ``deletes``: True if the table stores deletes as rows. ``name_bytes_max``: the most bytes
    of a folder's name; None if values are in no such name. All rows and their order stay.
    """
    partitions = {name.lower() for name in partition_columns}
    for field in changes.schema:
        if field.name.lower() not in partitions:
            continue
        name, column = field.name, F.col(quoted(field.name))
        checked = column
        for unfit, shown, reason in _unfit_values(field, name_bytes_max):
            problem = (
                f"{title}: a row has {shown} in column {name!r}, by which the table is laid out, "
                f"and {reason}. Put another value there by with_columns(), or lay the table out by "
                "other columns."
            )
            refused = F.raise_error(F.lit(problem)).cast(field.dataType)
            is_unfit = unfit if deletes else unfit & (F.col(CHANGE) == UPSERT)
            checked = F.when(is_unfit, refused).otherwise(checked)
        changes = changes.withColumn(name, checked)
    return changes


def _unfit_values(
    field: StructField, name_bytes_max: int | None
) -> Iterator[tuple[Column, str, str]]:
    """Yield a condition on the partition column ``field`` for each kind of values that Delta cannot
    store there; such values in words; and what becomes of them. ``name_bytes_max``: the most bytes
    of a folder's name, None if values are in no such name.
    """
    name, column = field.name, F.col(quoted(field.name))
    if isinstance(field.dataType, TimestampType):
        # Delta writes the year of the session's zone without its era.
        yield F.year(column) < 1, "a time before the year 1", "Delta stores another in its place"
    if not isinstance(field.dataType, StringType):
        return
    for text, shown in _NULL_TEXTS.items():
        yield column == text, shown, "Delta stores null in its place"
    yield ~F.is_valid_utf8(column), "a text that is no UTF-8", "Delta stores another in its place"
    if name_bytes_max is not None:
        yield column.contains("\0"), "a text with a NUL character", "no folder has it in its name"
        prefix = len(re.sub(_ESCAPED_IN_FOLDERS, "%00", name).encode()) + len("=")
        escaped = F.octet_length(F.regexp_replace(column, _ESCAPED_IN_FOLDERS, "%00"))
        yield (
            escaped + prefix > name_bytes_max,
            "a text that is too long",
            f"a folder's name, {name}= and the text, has at most {name_bytes_max} bytes",
        )


def _refuse_name(title: str, path: str, name: str, *, mapped: bool) -> None:
    """Raise ``PlanError`` for a name with characters that Delta takes only with column mapping,
    unless the table is ``mapped``. ``path``: the dotted path of the column, for the error.
    """
    refused = [character for character in _MAPPED_CHARACTERS if character in name]
    if refused and not mapped:
        raise PlanError(
            title,
            f"column {path!r} has {refused[0]!r} in its name, which Delta takes only with column "
            "mapping",
            "Rename it, by rename() or in select=, or make the table beforehand with the property "
            "'delta.columnMapping.mode' = 'name'",
        )


def _refuse_type(title: str, path: str, type_: DataType) -> None:
    """Raise ``PlanError`` if ``type_``, or a type of its elements, keys or values, is one that
    Delta does not store. The fields of structs are not examined. ``path``: the dotted path of the
    column, for the error.
    """
    for part in _types_within(type_):
        if not isinstance(part, (*_PLAIN_TYPES, *_NESTED_TYPES)):
            raise PlanError(
                title,
                f"column {path!r} is of type {type_.simpleString()}, and Delta does not store "
                f"{part.simpleString()}",
                "Leave it out, or cast it, for instance to a string, or an interval to seconds",
            )


def _types_within(type_: DataType) -> Iterator[DataType]:
    """Yield ``type_`` and the types of its elements, keys and values at any depth, outer ones
    first. A struct is yielded, but not the types of its fields.
    """
    yield type_
    if isinstance(type_, ArrayType):
        yield from _types_within(type_.elementType)
    elif isinstance(type_, MapType):
        yield from _types_within(type_.keyType)
        yield from _types_within(type_.valueType)


def _structs_within(path: str, type_: DataType) -> Iterator[tuple[str, StructType]]:
    """Yield (dotted path, struct) of each struct in ``type_`` at any depth, outer ones first;
    nothing if there are none. ``path``: the path of ``type_`` itself, empty for the table. A struct
    in elements, keys or values of a column has the column's path.
    """
    for part in _types_within(type_):
        if isinstance(part, StructType):
            yield path, part
            for field in part:
                yield from _structs_within(
                    f"{path}.{field.name}" if path else field.name, field.dataType
                )


def _fields_within(schema: StructType) -> Iterator[tuple[str, StructField]]:
    """Yield (dotted path, field) of all fields of ``schema`` at any depth, those of outer structs
    first. The fields of a struct in elements, keys or values have the path of that column in front.
    """
    for path, struct in _structs_within("", schema):
        for field in struct:
            yield f"{path}.{field.name}" if path else field.name, field
