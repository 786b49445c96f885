"""Columns and their types, in any of the forms in which users write them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, TypeAlias

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.types import DataType, StructField, StructType

from dovetail.base.validation import Rule
from dovetail.errors import PlanError
from dovetail.plan.types.arrow import spark_schema
from dovetail.platform.spark_errors import reason

Columns: TypeAlias = Annotated[
    str | StructType | pa.Schema | Mapping[str, pa.DataType | DataType],
    Rule(
        "columns with their types: a text as in SQL such as 'id long, city string', a StructType, "
        "a pyarrow schema, or a mapping of names to types"
    ),
]


def schema_of(operator: str, argument: str, columns: Columns) -> StructType:
    """Return a user's columns as a ``StructType``, nullable at every depth, in their order.

    ``columns``: a text as in SQL, a ``StructType``, an Arrow schema, or types by name.
    ``operator``, ``argument``: where they were given, for errors. Raises ``PlanError`` for a text
    that is no list of columns, and for types that Spark lacks. A text needs a Spark session. Names
    are not checked: they may be reserved or occur twice.
    """
    if isinstance(columns, str):
        return parse_columns(operator, argument, columns).toNullable()
    if isinstance(columns, StructType):
        return columns.toNullable()
    items = (
        zip(columns.names, columns.types, strict=True) if isinstance(columns, pa.Schema) else None
    )
    fields = [_nullable_field(operator, argument, *item) for item in items or columns.items()]
    return StructType(fields).toNullable()


def parse_columns(operator: str, argument: str, text: str) -> StructType:
    """Return the columns of a text such as ``'id long, name string'``, in their order.

    ``operator``, ``argument``: where the text was given, for errors. Raises ``PlanError`` for a
    text that does not parse, for a single type, and without a Spark session.
    """
    try:
        schema = DataType.fromDDL(text)
    except PySparkException as error:
        raise PlanError(
            operator,
            f"{argument} {text!r} is not one: {reason(error)}",
            "Write columns and types as in SQL, 'id long, name string'; a text needs a session",
        ) from error
    if not isinstance(schema, StructType):
        raise PlanError(
            operator,
            f"{argument} {text!r} is a type, not columns",
            "Name the columns: 'id long, name string'",
        )
    return schema


def _nullable_field(
    operator: str, argument: str, name: str, type_: pa.DataType | DataType
) -> StructField:
    """Return the nullable column ``name`` of a Spark type or an Arrow type. ``operator``,
    ``argument``: for errors. Raises ``PlanError`` if Spark has no type for the Arrow type.
    """
    if isinstance(type_, DataType):
        return StructField(name, type_)
    try:
        return spark_schema(pa.schema([pa.field(name, type_)]))[0]
    except PySparkException as error:
        raise PlanError(
            operator,
            f"{argument} has a type that Spark does not have: {error}",
            "Use a type that a Spark column can have, for instance pa.timestamp('us', 'UTC')",
        ) from error
