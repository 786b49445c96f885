"""Aggregates as users write them, checked against the columns that they read."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
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
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from dovetail.errors import PlanError
from dovetail.kernels.aggregates import Aggregate
from dovetail.kernels.extremes import Extreme
from dovetail.kernels.sums import Count, ExactMean, ExactSum, FloatMean, FloatSum


@dataclass(frozen=True)
class AggregateCall:
    """An aggregate of a group's rows: a ``function`` of some ``columns``, by their names."""

    function: str
    columns: tuple[str, ...]
    ignore_nulls: bool = False

    def __post_init__(self) -> None:
        for column in self.columns:
            if not isinstance(column, str):
                raise PlanError(
                    self.function,
                    f"{column!r} is not the name of a column",
                    "Name one; compute an expression in the frame first, with withColumn",
                )

    def __str__(self) -> str:
        return f"{self.function}({', '.join(self.columns)})"


def count(column: str | None = None) -> AggregateCall:
    """How many rows a group has or, of a column, how many values that are not null."""
    return AggregateCall("count", () if column is None else (column,))


def sum(column: str) -> AggregateCall:  # noqa: A001
    """The sum of a column's values, null where it has none: of integers a long, of floats a
    double, of decimals one with ten more digits. A sum that does not fit its type is an error.
    """
    return AggregateCall("sum", (column,))


def mean(column: str) -> AggregateCall:
    """The mean of a column's values, null where it has none: of decimals one with four more
    digits, otherwise a double.
    """
    return AggregateCall("mean", (column,))


def min(column: str) -> AggregateCall:  # noqa: A001
    """The smallest of a column's values, null where it has none. NaN is larger than any number."""
    return AggregateCall("min", (column,))


def max(column: str) -> AggregateCall:  # noqa: A001
    """The largest of a column's values, null where it has none. NaN is larger than any number."""
    return AggregateCall("max", (column,))


def resolve(
    operator: str, name: str, call: AggregateCall, schema: StructType, *, retracts: bool
) -> tuple[StructField, Aggregate]:
    """The result column ``name`` of an aggregate over rows of ``schema``, and its kernel.

    ``retracts``: whether rows leave their groups, as those of a table do. Raises ``PlanError`` for
    a column that is not there or whose type the aggregate does not take, and for an aggregate that
    cannot take rows back.
    """
    columns = [_column(operator, name, call, column, schema) for column in call.columns]
    context = _Context(operator, name, call, tuple(columns), retracts)
    type_, aggregate = _FUNCTIONS[call.function](context)
    return StructField(name, type_, True), aggregate


def _column(
    operator: str, name: str, call: AggregateCall, column: str, schema: StructType
) -> StructField:
    if column not in schema.names:
        raise PlanError(
            operator,
            f"{name}={call} names an unknown column {column!r}",
            f"Known are {', '.join(schema.names)}; compute an expression in the frame first",
        )
    return schema[column]


@dataclass(frozen=True)
class _Context:
    """What a call is resolved against."""

    operator: str
    name: str
    call: AggregateCall
    fields: tuple[StructField, ...]
    retracts: bool

    @property
    def spark(self) -> DataType:
        """The type of its one column."""
        return self.fields[0].dataType

    @property
    def arrow(self) -> pa.DataType:
        """The Arrow type of its one column."""
        return _arrow(self.spark)

    @property
    def number(self) -> pa.DataType:
        """The Arrow type of its one column, an integer or a decimal."""
        if not isinstance(self.spark, (*_INTEGERS, DecimalType)):
            raise self.unfit("a number", "Cast it in the frame first")
        return self.arrow

    def refused(self, problem: str, remedy: str) -> PlanError:
        """The error for this call."""
        return PlanError(self.operator, f"{self.name}={self.call}: {problem}", remedy)

    def unfit(self, needs: str, remedy: str) -> PlanError:
        """The error for the type of its one column."""
        field = self.fields[0]
        type_ = field.dataType.simpleString()
        return self.refused(f"column {field.name!r} is of type {type_}, not {needs}", remedy)


_Resolved: TypeAlias = tuple[DataType, Aggregate]


def _count(_: _Context) -> _Resolved:
    return LongType(), Count()


def _sum(context: _Context) -> _Resolved:
    if isinstance(context.spark, _FLOATS):
        return DoubleType(), FloatSum()
    return _exact(context, ExactSum(context.number), LongType())


def _mean(context: _Context) -> _Resolved:
    if isinstance(context.spark, _FLOATS):
        return DoubleType(), FloatMean()
    return _exact(context, ExactMean(context.number), DoubleType())


def _exact(context: _Context, aggregate: ExactSum | ExactMean, of_integers: DataType) -> _Resolved:
    if isinstance(context.spark, DecimalType):
        return DecimalType(aggregate.result.precision, aggregate.result.scale), aggregate
    return of_integers, aggregate


def _extreme(context: _Context) -> _Resolved:
    if not _is_ordered(context.spark):
        raise context.unfit(
            "one that is ordered by its bytes", "Compute a column of a plain type in the frame"
        )
    if context.retracts:
        raise context.refused("its rows cannot be taken back", "Aggregate a stream")
    return context.spark, Extreme(context.arrow, context.call.function == "max")


_FUNCTIONS: dict[str, Callable[[_Context], _Resolved]] = {
    "count": _count,
    "sum": _sum,
    "mean": _mean,
    "min": _extreme,
    "max": _extreme,
}
_INTEGERS = (ByteType, ShortType, IntegerType, LongType)
_FLOATS = (FloatType, DoubleType)
_ORDERED = (
    *_INTEGERS,
    *_FLOATS,
    DecimalType,
    BooleanType,
    BinaryType,
    DateType,
    TimestampType,
    TimestampNTZType,
    DayTimeIntervalType,
)


def _is_ordered(type_: DataType) -> bool:
    if isinstance(type_, StringType):
        return type_.isUTF8BinaryCollation()
    return isinstance(type_, _ORDERED) or type_.typeName() == "time"


def _arrow(type_: DataType) -> pa.DataType:
    """Spark's Arrow type, timestamps in UTC."""
    schema = StructType([StructField("value", type_, True)])
    # Spark 4.2 asks for the time zone; 4.1 knows only UTC.
    options: dict[str, Any] = (
        {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}
    )
    return to_arrow_schema(schema, **options).field(0).type
