"""Aggregates as users write them, checked against the columns that they read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
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

from dovetail.aggregates.aggregate import Aggregate
from dovetail.aggregates.collect import CollectList, CollectSet
from dovetail.aggregates.first_last import End
from dovetail.aggregates.hyperloglog import ApproxCountDistinct
from dovetail.aggregates.min_max import ChangingExtreme, Extreme
from dovetail.aggregates.sums import Count, ExactMean, ExactSum, FloatMean, FloatSum
from dovetail.aggregates.user_defined import Functions, State, UserDefined
from dovetail.arguments import Rule, Text, validated, validated_fields
from dovetail.errors import PlanError
from dovetail.plan.arrow import arrow_schema
from dovetail.plan.checks import known_field

_Column: TypeAlias = Annotated[
    str,
    Rule("the name of a column; compute an expression in the frame first, with withColumn"),
]


@validated_fields
@dataclass(frozen=True)
class AggregateCall:
    """An aggregate of a group's rows: a ``function`` of some ``columns``, by their names; one that
    a user defines has ``functions`` and the Spark type that it ``returns``.
    """

    function: Text
    columns: tuple[_Column, ...]
    ignore_nulls: bool = False
    functions: Functions | None = None
    returns: DataType | None = None

    def __str__(self) -> str:
        return f"{self.function}({', '.join(self.columns)})"


AnAggregate: TypeAlias = Annotated[AggregateCall, Rule('an aggregate, such as dt.sum("amount")')]


@validated
def count(column: _Column | None = None) -> AggregateCall:
    """How many rows a group has or, of a column, how many values that are not null."""
    return AggregateCall("count", () if column is None else (column,))


@validated
def sum(column: _Column) -> AggregateCall:  # noqa: A001
    """The sum of a column's values, null where it has none: of integers a long, of floats a
    double, of decimals one with ten more digits. It is exact; of floats the double nearest to the
    exact sum, infinite beyond the largest. Otherwise one that does not fit its type is an error.
    """
    return AggregateCall("sum", (column,))


@validated
def mean(column: _Column) -> AggregateCall:
    """The mean of a column's values, null where it has none: of decimals one with four more
    digits, otherwise a double; of floats the one nearest to the exact mean.
    """
    return AggregateCall("mean", (column,))


@validated
def min(column: _Column) -> AggregateCall:  # noqa: A001
    """The smallest of a column's values, null where it has none. NaN is larger than any number."""
    return AggregateCall("min", (column,))


@validated
def max(column: _Column) -> AggregateCall:  # noqa: A001
    """The largest of a column's values, null where it has none. NaN is larger than any number."""
    return AggregateCall("max", (column,))


@validated
def first(column: _Column, *, ignore_nulls: bool = False) -> AggregateCall:
    """The column's value in the first row, in order of arrival, or in the first where it is not
    null. Only of groups that only grow, as a stream's do.
    """
    return AggregateCall("first", (column,), ignore_nulls)


@validated
def last(column: _Column, *, ignore_nulls: bool = False) -> AggregateCall:
    """The column's value in the last row, in order of arrival, or in the last where it is not
    null. Only of groups that only grow, as a stream's do.
    """
    return AggregateCall("last", (column,), ignore_nulls)


@validated
def collect_list(column: _Column) -> AggregateCall:
    """The column's values that are not null, in order of arrival. A row of a table that is deleted
    or replaced takes the first value with it that is equal to its own.
    """
    return AggregateCall("collect_list", (column,))


@validated
def collect_set(column: _Column) -> AggregateCall:
    """The column's distinct values that are not null, in ascending order; values whose type has no
    order in the order in which they came.
    """
    return AggregateCall("collect_set", (column,))


@validated
def approx_count_distinct(column: _Column) -> AggregateCall:
    """About how many distinct values that are not null the column has, with a standard error of
    5 %. Only of groups that only grow, as a stream's do.
    """
    return AggregateCall("approx_count_distinct", (column,))


Type: TypeAlias = Annotated[
    Text | DataType | pa.DataType,
    Rule("a Spark type such as LongType(), its text such as 'bigint', or an Arrow type"),
]


@validated
def aggregate(
    *,
    init: Callable[[int], State],
    add: Callable[..., State],
    merge: Callable[[State, State], State],
    state: Mapping[str, Type],
    returns: Type,
    retract: Callable[[State, State], State] | None = None,
    finish: Callable[[State], pa.Array] | None = None,
) -> Callable[..., AggregateCall]:
    """An aggregate of one's own, by functions over Arrow columns; call it with column names.

    An accumulator has the columns of ``state``, by name and type. Each function works on many
    accumulators at once, row by row: a mapping from the names to Arrow arrays of one length.

    - ``init(n)``: n accumulators of no rows.
    - ``add(state, *values)``: each with one more row, whose columns are ``values``, nulls too.
    - ``merge(a, b)``: the accumulators of both's rows, ``a``'s before ``b``'s. Must be associative.
    - ``retract(a, b)``: those of ``a``'s rows without ``b``'s. A table's aggregate needs it.
    - ``finish(state)``: the results, an array of type ``returns``; may be left out where ``state``
      has one column, which is the result then.

    Types are Spark's, as objects or as text, or Arrow's.

    >>> import pyarrow.compute as pc
    >>> product = aggregate(
    ...     init=lambda n: {"product": pa.array([1.0] * n)},
    ...     add=lambda state, x: {"product": pc.multiply(state["product"], pc.fill_null(x, 1.0))},
    ...     merge=lambda a, b: {"product": pc.multiply(a["product"], b["product"])},
    ...     retract=lambda a, b: {"product": pc.divide(a["product"], b["product"])},
    ...     state={"product": DoubleType()},
    ...     returns=DoubleType(),
    ... )
    >>> print(product("price"))
    aggregate(price)
    """
    if not state:
        raise PlanError(
            "aggregate", "state= names no columns", 'Give names and types, as in {"total": "long"}'
        )
    columns = {name: _arrow_of(f"state= {name!r}", type_) for name, type_ in state.items()}
    spark = _spark_of("returns=", returns)
    result = _arrow(spark)
    if finish is None and list(columns.values()) != [result]:
        raise PlanError(
            "aggregate",
            f"without finish= the state must be one column, of the type of returns=, {result}",
            "Give finish=, a function from the state to an array of results",
        )
    functions = Functions(init, add, merge, retract, finish, tuple(columns.items()), result)

    @validated
    def call(*names: _Column) -> AggregateCall:
        return AggregateCall("aggregate", names, functions=functions, returns=spark)

    return call


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
    hint = "; compute an expression in the frame first"
    return known_field(operator, f"{name}={call}", column, schema, hint=hint)


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

    def refuse_to_retract(self, instead: str) -> None:
        """An error where rows leave their groups."""
        if self.retracts:
            raise self.refused(
                "a table's rows change and leave their groups, and "
                f"{self.call.function} cannot take them back",
                f"Use {instead}, or aggregate a stream",
            )

    def refuse_without_equality(self) -> None:
        """An error where values of its one column are not equal where their bytes are."""
        if _has_no_equality(self.spark):
            raise self.unfit(
                "one whose values can be compared by their bytes",
                "Compute a column of a plain type in the frame, for instance map_entries of a map "
                "or lower of a text",
            )


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
            "one with an order by value or bytes", "Compute a column of a plain type in the frame"
        )
    kernel = ChangingExtreme if context.retracts else Extreme
    return context.spark, kernel(context.arrow, context.call.function == "max")


def _end(context: _Context) -> _Resolved:
    context.refuse_to_retract("min, max or collect_list")
    call = context.call
    return context.spark, End(context.arrow, call.function == "last", call.ignore_nulls)


def _collect_list(context: _Context) -> _Resolved:
    if context.retracts:
        context.refuse_without_equality()
    return ArrayType(context.spark, False), CollectList(context.arrow)


def _collect_set(context: _Context) -> _Resolved:
    context.refuse_without_equality()
    return ArrayType(context.spark, False), CollectSet(context.arrow, context.retracts)


def _approximate(context: _Context) -> _Resolved:
    context.refuse_to_retract("collect_set and its size")
    context.refuse_without_equality()
    return LongType(), ApproxCountDistinct()


def _user_defined(context: _Context) -> _Resolved:
    functions, returns = context.call.functions, context.call.returns
    assert functions is not None
    assert returns is not None
    if functions.retract is None:
        context.refuse_to_retract("retract=, a function that takes rows back")
    return returns, UserDefined(functions)


_FUNCTIONS: dict[str, Callable[[_Context], _Resolved]] = {
    "count": _count,
    "sum": _sum,
    "mean": _mean,
    "min": _extreme,
    "max": _extreme,
    "first": _end,
    "last": _end,
    "collect_list": _collect_list,
    "collect_set": _collect_set,
    "approx_count_distinct": _approximate,
    "aggregate": _user_defined,
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


def _has_no_equality(type_: DataType) -> bool:
    if isinstance(type_, StringType):
        return not type_.isUTF8BinaryCollation()
    if isinstance(type_, ArrayType):
        return _has_no_equality(type_.elementType)
    if isinstance(type_, StructType):
        return any(_has_no_equality(field.dataType) for field in type_)
    return isinstance(type_, (MapType, VariantType))


def _spark_of(argument: str, type_: Type) -> DataType:
    """A type that a user gave, as Spark's."""
    if isinstance(type_, DataType):
        return type_
    remedy = "Give a Spark type such as LongType(), its text such as 'bigint', or an Arrow type"
    try:
        if isinstance(type_, pa.DataType):
            return from_arrow_type(type_)
        if isinstance(type_, str):
            return DataType.fromDDL(type_)
    except PySparkException as error:
        problem = f"{argument} {type_!r} is not read as a type: {str(error).splitlines()[0]}"
        raise PlanError("aggregate", problem, f"{remedy}; a text needs a Spark session") from error
    raise PlanError("aggregate", f"{argument} is {type_!r}", remedy)


def _arrow_of(argument: str, type_: Type) -> pa.DataType:
    """A type that a user gave, as Arrow's."""
    return type_ if isinstance(type_, pa.DataType) else _arrow(_spark_of(argument, type_))


def _arrow(type_: DataType) -> pa.DataType:
    return arrow_schema(StructType([StructField("value", type_, True)])).field(0).type
