"""Aggregates as users write them, and their checks against the columns that they read.

A *retraction* takes a row out of its group: a table's row was deleted, replaced, or moved.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, TypeAlias

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DecimalType,
    DoubleType,
    LongType,
    StructField,
    StructType,
)

from dovetail.aggregates.aggregate import Aggregate
from dovetail.aggregates.collect import CollectList, CollectSet, LastRow
from dovetail.aggregates.distinct import CountDistinct
from dovetail.aggregates.first_last import End
from dovetail.aggregates.hyperloglog import ApproxCountDistinct
from dovetail.aggregates.min_max import ChangingExtreme, Extreme
from dovetail.aggregates.sums import Count, ExactMean, ExactSum, FloatMean, FloatSum
from dovetail.aggregates.top import Top
from dovetail.aggregates.user_defined import Functions, State, UserDefined
from dovetail.base.validation import Positive, Rule, Text, validated, validated_fields
from dovetail.errors import PlanError
from dovetail.plan.types.aggregate_types import (
    FLOATS,
    INTEGERS,
    Type,
    arrow_of,
    arrow_type,
    has_no_equality,
    is_ordered,
    is_sortable,
    spark_of,
)
from dovetail.plan.types.checks import known_field, refuse_duplicates

_Column: TypeAlias = Annotated[
    str,
    Rule("the name of a column; compute an expression in the frame first, with withColumn"),
]


@dataclass(frozen=True)
class Taken:
    """The rows that ``top`` takes of a group."""

    n: int
    """The number of rows at most."""
    descending: bool
    """True to take the highest values first."""
    single: bool
    """True if the result has plain values of one column, False if it has structs of several
    columns.
    """


@validated_fields
@dataclass(frozen=True)
class AggregateCall:
    """One aggregate of a group's rows, before its columns are known."""

    function: Text
    """The name of the aggregate, such as ``"sum"``."""
    columns: tuple[_Column, ...]
    """The columns that the aggregate reads. ``top`` orders by the first one and
    shows the others.
    """
    ignore_nulls: bool = False
    """True if ``first`` and ``last`` skip nulls."""
    functions: Functions | None = None
    """The functions of a user-defined aggregate, or None."""
    returns: DataType | None = None
    """The result type of a user-defined aggregate, or None."""
    taken: Taken | None = None
    """The rows that ``top`` takes, or None for other aggregates."""

    def __str__(self) -> str:
        if self.taken is None:
            return f"{self.function}({', '.join(self.columns)})"
        by, *shown = self.columns
        return f"{self.function}({self.taken.n}, {', '.join(shown)}, by={by})"


@dataclass(frozen=True, kw_only=True)
class LastRowCall(AggregateCall):
    """The values of ``columns`` in the last row of a group that arrived, as a struct."""

    function: Text = "last_row"
    key: tuple[str, ...]
    """The columns that rows are grouped by."""
    unique: bool
    """True if a group must not have more than one row."""


AnAggregate: TypeAlias = Annotated[AggregateCall, Rule('an aggregate, such as dt.sum("amount")')]


@validated
def count(column: _Column | None = None) -> AggregateCall:
    """Count the rows of a group or, given a column, its values that are not null."""
    return AggregateCall("count", () if column is None else (column,))


@validated
def sum(column: _Column) -> AggregateCall:  # noqa: A001
    """Sum a column's values; null if it has none.

    Integers give a long, floats a double, decimals a decimal with ten more digits. The sum of
    floats is the double nearest to the exact sum, infinite beyond the largest double. Another sum
    that does not fit its type is an error.
    """
    return AggregateCall("sum", (column,))


@validated
def mean(column: _Column) -> AggregateCall:
    """Average a column's values; null if it has none.

    Decimals give a decimal with four more digits, other numbers a double. The mean of floats is the
    double nearest to the exact mean.
    """
    return AggregateCall("mean", (column,))


@validated
def min(column: _Column) -> AggregateCall:  # noqa: A001
    """Find the smallest of a column's values; null if it has none. NaN is larger
    than any number.
    """
    return AggregateCall("min", (column,))


@validated
def max(column: _Column) -> AggregateCall:  # noqa: A001
    """Find the largest of a column's values; null if it has none. NaN is larger than any number."""
    return AggregateCall("max", (column,))


@validated
def top(
    n: Positive,
    column: _Column | Sequence[_Column],
    *,
    by: _Column,
    descending: bool = True,
) -> AggregateCall:
    """Take ``column`` of the ``n`` rows of a group with the highest values of the column ``by``.

    The result is an array: of the column's values or, for several columns, of structs. With
    ``descending=False`` it has the lowest values, the lowest first. Rows in which ``by`` is null
    are left out. Equal rows count each. NaN is higher than any number, and -0.0 is 0.0.

    Rows with the same value of ``by`` are in ascending order of ``column``, nulls first; of several
    columns, the first one decides first. If the first of these columns is the primary key, ties are
    in its order. The result depends only on the group's present rows, not on their order of
    arrival.
    """
    single = isinstance(column, str)
    columns = (column,) if isinstance(column, str) else tuple(column)
    if not columns:
        raise PlanError(
            "top", "column= names no column", 'Name at least one, as in top(3, "id", …)'
        )
    refuse_duplicates("top", columns, "Name it once in column=")
    return AggregateCall("top", (by, *columns), taken=Taken(n, descending, single))


@validated
def first(column: _Column, *, ignore_nulls: bool = False) -> AggregateCall:
    """Take a column's value in the first row that arrived.

    With ``ignore_nulls``, take its first value that is not null. The aggregate is for streams only,
    since a table's rows may leave their groups.
    """
    return AggregateCall("first", (column,), ignore_nulls)


@validated
def last(column: _Column, *, ignore_nulls: bool = False) -> AggregateCall:
    """Take a column's value in the last row that arrived.

    With ``ignore_nulls``, take its last value that is not null. The aggregate is for streams only,
    since a table's rows may leave their groups.
    """
    return AggregateCall("last", (column,), ignore_nulls)


@validated
def collect_list(column: _Column) -> AggregateCall:
    """Collect a column's values that are not null into an array, in order of arrival.

    A row of a table that is deleted or replaced removes the first value equal to its own.
    """
    return AggregateCall("collect_list", (column,))


@validated
def collect_set(column: _Column) -> AggregateCall:
    """Collect a column's distinct values that are not null into an array, in ascending order.

    Values of a type without an order are in order of arrival.
    """
    return AggregateCall("collect_set", (column,))


@validated
def count_distinct(column: _Column) -> AggregateCall:
    """Count a column's distinct values that are not null, exactly. -0.0 is 0.0, and all NaNs are
    one value.
    """
    return AggregateCall("count_distinct", (column,))


@validated
def approx_count_distinct(column: _Column) -> AggregateCall:
    """Estimate the number of a column's distinct values that are not null. The standard error is 5
    %.

    The aggregate is for streams only, since a table's rows may leave their groups.
    """
    return AggregateCall("approx_count_distinct", (column,))


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
    """Define an aggregate by functions over Arrow columns. Call the result with column names.

    An *accumulator* is the state of some rows. It has the columns of ``state``, by name and type.
    Each function works on many accumulators at once: a mapping of the names to Arrow arrays of one
    length.

    - ``init(n)``: return n accumulators of no rows.
    - ``add(state, *values)``: add a row to each accumulator. ``values`` are its columns, nulls too.
    - ``merge(a, b)``: combine accumulators, ``a``'s rows before ``b``'s. Must be associative.
    - ``retract(a, b)``: remove ``b``'s rows from ``a``. An aggregate of a table needs it.
    - ``finish(state)``: return the results, an array of type ``returns``. Without this function,
      ``state`` must have one column, which is the result.

    Types are Spark types, as objects or as text, or Arrow types. Raises ``PlanError`` for types and
    functions that do not fit together.

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
    columns = {name: arrow_of(f"state= {name!r}", type_) for name, type_ in state.items()}
    spark = spark_of("returns=", returns)
    result = arrow_type(spark)
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
    """Return the result column ``name`` of an aggregate over rows of ``schema``, and its kernel.

    ``retracts``: True if rows may leave their groups, as those of a table do. Raises ``PlanError``
    for an unknown column, for a type that the aggregate does not take, and for an aggregate that
    needs rows to stay.
    """
    columns = [_column(operator, name, call, column, schema) for column in call.columns]
    context = _Context(operator, name, call, tuple(columns), retracts)
    type_, aggregate = _FUNCTIONS[call.function](context)
    return StructField(name, type_, True), aggregate


def _column(
    operator: str, name: str, call: AggregateCall, column: str, schema: StructType
) -> StructField:
    """Return the field of a column that an aggregate reads."""
    hint = "; compute an expression in the frame first"
    return known_field(operator, f"{name}={call}", column, schema, hint=hint)


@dataclass(frozen=True)
class _Context:
    """The operator, the result's name, the call and its columns, for one call that is resolved."""

    operator: str
    name: str
    call: AggregateCall
    fields: tuple[StructField, ...]
    retracts: bool
    """True if rows may leave their groups."""

    @property
    def spark(self) -> DataType:
        """The Spark type of the first column."""
        return self.fields[0].dataType

    @property
    def arrow(self) -> pa.DataType:
        """The Arrow type of the first column."""
        return arrow_type(self.spark)

    @property
    def number(self) -> pa.DataType:
        """The Arrow type of the first column. Raises ``PlanError`` unless it is an integer or a
        decimal.
        """
        if not isinstance(self.spark, (*INTEGERS, DecimalType)):
            raise self.unfit("a number", "Cast it in the frame first")
        return self.arrow

    def refused(self, problem: str, remedy: str) -> PlanError:
        """Return an error about this call."""
        return PlanError(self.operator, f"{self.name}={self.call}: {problem}", remedy)

    def unfit(self, needs: str, remedy: str, column: int = 0) -> PlanError:
        """Return an error about a column's type, by default that of the first column."""
        field = self.fields[column]
        type_ = field.dataType.simpleString()
        return self.refused(f"column {field.name!r} is of type {type_}, not {needs}", remedy)

    def refuse_to_retract(self, instead: str) -> None:
        """Refuse the call if rows may leave their groups. ``instead``: what to use then."""
        if self.retracts:
            raise self.refused(
                "a table's rows change and leave their groups, and "
                f"{self.call.function} cannot take them back",
                f"Use {instead}, or aggregate a stream",
            )

    def refuse_without_order(self) -> None:
        """Refuse the call if values of the first column have no order."""
        if not is_ordered(self.spark):
            raise self.unfit(
                "one with an order by value or bytes",
                "Compute a column of a plain type in the frame",
            )

    def refuse_without_equality(self) -> None:
        """Refuse the call if equal values of the first column may differ in their bytes."""
        if has_no_equality(self.spark):
            raise self.unfit(
                "one whose values can be compared by their bytes",
                "Compute a column of a plain type in the frame, for instance map_entries of a map "
                "or lower of a text",
            )


_Resolved: TypeAlias = tuple[DataType, Aggregate]


def _count(_: _Context) -> _Resolved:
    return LongType(), Count()


def _sum(context: _Context) -> _Resolved:
    if isinstance(context.spark, FLOATS):
        return DoubleType(), FloatSum()
    return _exact(context, ExactSum(context.number), LongType())


def _mean(context: _Context) -> _Resolved:
    if isinstance(context.spark, FLOATS):
        return DoubleType(), FloatMean()
    return _exact(context, ExactMean(context.number), DoubleType())


def _exact(context: _Context, aggregate: ExactSum | ExactMean, of_integers: DataType) -> _Resolved:
    """Return the kernel of a sum or a mean, with a result type wide enough for it."""
    if isinstance(context.spark, DecimalType):
        return DecimalType(aggregate.result.precision, aggregate.result.scale), aggregate
    return of_integers, aggregate


def _extreme(context: _Context) -> _Resolved:
    context.refuse_without_order()
    kernel = ChangingExtreme if context.retracts else Extreme
    return context.spark, kernel(context.arrow, context.call.function == "max")


def _top(context: _Context) -> _Resolved:
    """Return the type and the kernel of ``top``. The columns shown need an order, which breaks
    ties.
    """
    context.refuse_without_order()
    taken, (_, *shown) = context.call.taken, context.fields
    assert taken is not None
    for number, field in enumerate(shown, start=1):
        if not is_sortable(field.dataType):
            raise context.unfit(
                "one with an order by value or bytes, which decides between rows whose "
                f"{context.fields[0].name!r} is the same",
                "Compute a column of a plain type in the frame, for instance to_json of an array, "
                "or take the primary key and join the result with the table",
                number,
            )
    row = shown[0].dataType
    if not taken.single:
        row = StructType([StructField(field.name, field.dataType, True) for field in shown])
    kernel = Top(
        n=taken.n,
        by=context.arrow,
        row=arrow_type(row),
        single=taken.single,
        descending=taken.descending,
        retractable=context.retracts,
    )
    return ArrayType(row, taken.single), kernel


def _end(context: _Context) -> _Resolved:
    context.refuse_to_retract("min, max or collect_list")
    call = context.call
    return context.spark, End(context.arrow, call.function == "last", call.ignore_nulls)


def _collect_list(context: _Context) -> _Resolved:
    if context.retracts:
        context.refuse_without_equality()
    return ArrayType(context.spark, False), CollectList(context.arrow)


def _last_row(context: _Context) -> _Resolved:
    """Return the type and the kernel of ``last_row``. The columns need exact equality."""
    for number, field in enumerate(context.fields):
        if has_no_equality(field.dataType):
            raise context.unfit(
                "one whose values can be compared by their bytes",
                "Leave it out with drop(), or compute a plain type, such as map_entries of a map",
                number,
            )
    call = context.call
    assert isinstance(call, LastRowCall)
    row = StructType([StructField(field.name, field.dataType, True) for field in context.fields])
    return row, LastRow(arrow_type(row), call.unique, call.key)


def _collect_set(context: _Context) -> _Resolved:
    context.refuse_without_equality()
    return ArrayType(context.spark, False), CollectSet(context.arrow, context.retracts)


def _count_distinct(context: _Context) -> _Resolved:
    context.refuse_without_equality()
    return LongType(), CountDistinct(context.arrow, context.retracts)


def _approximate(context: _Context) -> _Resolved:
    context.refuse_to_retract("count_distinct")
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
    "top": _top,
    "first": _end,
    "last": _end,
    "collect_list": _collect_list,
    "collect_set": _collect_set,
    "last_row": _last_row,
    "count_distinct": _count_distinct,
    "approx_count_distinct": _approximate,
    "aggregate": _user_defined,
}
