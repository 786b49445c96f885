"""Requirements of aggregates on column types, and conversion of the types that users write."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DayTimeIntervalType,
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
    VariantType,
)

from dovetail.base.validation import Rule, Text
from dovetail.errors import PlanError
from dovetail.plan.types.arrow import arrow_schema
from dovetail.platform.spark_errors import reason

Type: TypeAlias = Annotated[
    Text | DataType | pa.DataType,
    Rule("a Spark type such as LongType(), its text such as 'bigint', or an Arrow type"),
]
INTEGERS = (ByteType, ShortType, IntegerType, LongType)
FLOATS = (FloatType, DoubleType)
_ORDERED = (
    *INTEGERS,
    *FLOATS,
    DecimalType,
    BooleanType,
    BinaryType,
    DateType,
    TimestampType,
    TimestampNTZType,
    DayTimeIntervalType,
)


def is_ordered(type_: DataType) -> bool:
    """Return True if values of a type have an order (``arrays.ordering``). These are numbers,
    booleans, bytes, texts without a collation, dates, times, timestamps and day-time intervals. No
    other type has one, such as arrays and structs.
    """
    if isinstance(type_, StringType):
        return type_.isUTF8BinaryCollation()
    return isinstance(type_, _ORDERED) or type_.typeName() == "time"


def is_sortable(type_: DataType) -> bool:
    """Return True if ``top`` can show a column of this type: an ordered type, or a struct of such
    types at any depth. Rows of one rank are then shown in one order.
    """
    if isinstance(type_, StructType):
        return all(is_sortable(field.dataType) for field in type_)
    return is_ordered(type_)


def has_no_equality(type_: DataType) -> bool:
    """Return True if equal values of a type may differ in their bytes: maps, variants, texts with a
    collation, and arrays and structs with these in them. Floats give False, since they count as
    equal by their bits.
    """
    if isinstance(type_, StringType):
        return not type_.isUTF8BinaryCollation()
    if isinstance(type_, ArrayType):
        return has_no_equality(type_.elementType)
    if isinstance(type_, StructType):
        return any(has_no_equality(field.dataType) for field in type_)
    return isinstance(type_, (MapType, VariantType))


def given_spark_type(argument: str, type_: Type) -> DataType:
    """Return the Spark type of a type that a user has given to ``aggregate``.

    ``type_``: a Spark type, an Arrow type, or a text such as ``"bigint"``, which needs a Spark
    session. ``argument``: the argument in errors. Raises ``PlanError`` for anything else and for a
    type that Spark does not have.
    """
    if isinstance(type_, DataType):
        return type_
    remedy = "Give a Spark type such as LongType(), its text such as 'bigint', or an Arrow type"
    try:
        if isinstance(type_, pa.DataType):
            return from_arrow_type(type_)
        if isinstance(type_, str):
            return DataType.fromDDL(type_)
    except PySparkException as error:
        problem = f"{argument} {type_!r} is not read as a type: {reason(error)}"
        raise PlanError("aggregate", problem, f"{remedy}; a text needs a Spark session") from error
    raise PlanError("aggregate", f"{argument} is {type_!r}", remedy)


def given_arrow_type(argument: str, type_: Type) -> pa.DataType:
    """Return the Arrow type of a type that a user has given to ``aggregate``: a Spark type, an
    Arrow type, or a text, which needs a Spark session.

    An Arrow type is returned as it is, even if Spark does not have it. ``argument``: the argument
    in errors. Raises ``PlanError`` for anything else. Spark's own error passes for a Spark type
    without an Arrow form.
    """
    if isinstance(type_, pa.DataType):
        return type_
    return arrow_type(given_spark_type(argument, type_))


def arrow_type(type_: DataType) -> pa.DataType:
    """Return a Spark type as an Arrow type. Spark's own error passes for a type that has none, such
    as calendar intervals.
    """
    return arrow_schema(StructType([StructField("value", type_, True)])).field(0).type
