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
from dovetail.aggregates.top_values import Top
from dovetail.aggregates.user_defined import Functions, State, UserDefined
from dovetail.base.validation import Positive, Rule, Text, validated, validated_fields
from dovetail.errors import PlanError
from dovetail.plan.types.aggregate_types import (
    FLOATS,
    INTEGERS,
    Type,
    arrow_type,
    given_arrow_type,
    given_spark_type,
    has_no_equality,
    is_ordered,
    is_sortable,
)
from dovetail.plan.types.checks import known_field, refuse_duplicates

_Column: TypeAlias = Annotated[
    str,
    Rule("the name of a column; compute an expression in the frame first, with withColumn"),
]


@dataclass(frozen=True)
class TopRows:
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
    """One aggregate of a group's rows, before the types of its columns are known.

    Calls such as ``dovetail.sum`` make it, and users do not construct it. ``agg`` of a
    grouped table or stream takes it under the name of a result column. As text it reads
    like the call.

    See Also
    --------
    GroupedTable.agg : Aggregate the groups of a table.
    GroupedStream.agg : Aggregate the groups of a stream.
    aggregate : Define an aggregate by functions of your own.

    Examples
    --------
    >>> import dovetail as dt
    >>> call = dt.top(3, ["id", "amount"], by="amount")
    >>> print(call)
    top(3, id, amount, by=amount)
    >>> call.function, call.columns
    ('top', ('amount', 'id', 'amount'))
    """

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
    taken: TopRows | None = None
    """The rows that ``top`` takes, or None for other aggregates."""

    def __str__(self) -> str:
        """Return the text of the call: its name and columns, as in ``sum(amount)`` or ``top(3, id,
        by=amount)``. Options such as ``ignore_nulls`` are left out.
        """
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
    """Count the rows of a group or, given a column, its values that are not null.

    The result is a long. It is 0 for a group whose values are all null.

    Parameters
    ----------
    column : str, optional
        The column whose values are counted. Without it, all rows are counted.

    Returns
    -------
    AggregateCall
        An argument of ``agg`` of a grouped table or stream.

    Raises
    ------
    PlanError
        If ``column`` is not a text. ``agg`` raises it for an unknown column.

    See Also
    --------
    count_distinct : Count the distinct values of a column exactly.
    sum : Sum the values of a column.

    Notes
    -----
    A group of a table whose last row leaves is deleted by a tombstone, so no group has 0
    rows. Source: spec/aggregate.

    Examples
    --------
    >>> import pyarrow as pa
    >>> import dovetail as dt
    >>> from dovetail import testing
    >>> schema = {"id": pa.int64(), "city": pa.string(), "amount": pa.int64()}
    >>> orders = testing.table("orders", key="id", schema=schema)
    >>> counts = orders.group_by("city").agg(orders=dt.count(), priced=dt.count("amount"))
    >>> driver = testing.Driver(counts)
    >>> rows = [{"id": 1, "city": "Oslo", "amount": 40}, {"id": 2, "city": "Oslo"}]
    >>> driver.pipe(orders, rows, timestamp=1)
    [<city='Oslo': orders=1, priced=1 @1>, <city='Oslo': orders=2, priced=1 @1>]
    """
    return AggregateCall("count", () if column is None else (column,))


@validated
def sum(column: _Column) -> AggregateCall:  # noqa: A001
    """Sum the values of a column; the result is null if all of them are null.

    Parameters
    ----------
    column : str
        The column, of a numeric type. Its nulls are left out.

    Returns
    -------
    AggregateCall
        An argument of ``agg`` of a grouped table or stream.

    Raises
    ------
    PlanError
        If ``column`` is not a text. ``agg`` raises it for an unknown column or one that is
        not a number.
    DataError
        In a batch, if a sum of integers or decimals does not fit the result type.

    See Also
    --------
    mean : Average the values of a column.
    count : Count rows or values.

    Notes
    -----
    - Integers give a long.
    - Floats give a double.
    - Decimals give a decimal with ten more digits, at most 38.

    The sum of floats is the double nearest to the exact sum, so it does not depend on the
    order of rows. It is infinite if the exact sum is beyond the largest double. NaNs, or
    infinities of both signs, make it NaN as long as the group has them. Source:
    spec/aggregate; Spark's ANSI mode for overflow.

    Examples
    --------
    >>> import pyarrow as pa
    >>> import dovetail as dt
    >>> from dovetail import testing
    >>> schema = {"id": pa.int64(), "city": pa.string(), "amount": pa.int64()}
    >>> orders = testing.table("orders", key="id", schema=schema)
    >>> totals = orders.group_by("city").agg(total=dt.sum("amount"))
    >>> driver = testing.Driver(totals)
    >>> rows = [{"id": 1, "city": "Oslo", "amount": 40}, {"id": 2, "city": "Oslo", "amount": 2}]
    >>> driver.pipe(orders, rows, timestamp=1)
    [<city='Oslo': total=40 @1>, <city='Oslo': total=42 @1>]
    >>> driver.pipe(orders, {"id": 1}, timestamp=2, deleted=True)
    [<city='Oslo': total=2 @2>]
    """
    return AggregateCall("sum", (column,))


@validated
def mean(column: _Column) -> AggregateCall:
    """Average the values of a column; the result is null if all of them are null.

    Parameters
    ----------
    column : str
        The column, of a numeric type. Its nulls count neither as values nor as zeros.

    Returns
    -------
    AggregateCall
        An argument of ``agg`` of a grouped table or stream.

    Raises
    ------
    PlanError
        If ``column`` is not a text. ``agg`` raises it for an unknown column or one that is
        not a number.
    DataError
        In a batch, if a mean of decimals does not fit the result type.

    See Also
    --------
    sum : Sum the values of a column.

    Notes
    -----
    Decimals give a decimal with four more digits, rounded half away from zero. Other
    numbers give a double, the one nearest to the exact mean. NaNs and infinities count as
    in ``sum``. Source: spec/aggregate.

    Examples
    --------
    >>> import pyarrow as pa
    >>> import dovetail as dt
    >>> from dovetail import testing
    >>> schema = {"id": pa.int64(), "city": pa.string(), "amount": pa.int64()}
    >>> orders = testing.table("orders", key="id", schema=schema)
    >>> driver = testing.Driver(orders.group_by("city").agg(mean=dt.mean("amount")))
    >>> rows = [{"id": 1, "city": "Oslo", "amount": 40}, {"id": 2, "city": "Oslo"}]
    >>> driver.pipe(orders, rows, timestamp=1)
    [<city='Oslo': mean=40.0 @1>, <city='Oslo': mean=40.0 @1>]
    >>> driver.pipe(orders, {"id": 2, "city": "Oslo", "amount": 3}, timestamp=2)
    [<city='Oslo': mean=21.5 @2>]
    """
    return AggregateCall("mean", (column,))


@validated
def min(column: _Column) -> AggregateCall:  # noqa: A001
    """Find the smallest value of a column; the result is null if all values are null.

    The result has the type of the column.

    Parameters
    ----------
    column : str
        The column, of a type with an order: numbers, texts without a collation, bytes,
        booleans, dates, times or durations. Its nulls are left out.

    Returns
    -------
    AggregateCall
        An argument of ``agg`` of a grouped table or stream.

    Raises
    ------
    PlanError
        If ``column`` is not a text. ``agg`` raises it for an unknown column or a type
        without an order, such as an array.

    See Also
    --------
    max : Find the largest value of a column.
    top : Take columns of the rows with the highest or lowest values.

    Notes
    -----
    NaN is larger than any number, and -0.0 is smaller than 0.0. Texts are compared by their
    bytes in UTF-8. When the row with the smallest value leaves a table, the next value takes
    its place. Source: spec/aggregate.

    Examples
    --------
    >>> import pyarrow as pa
    >>> import dovetail as dt
    >>> from dovetail import testing
    >>> schema = {"id": pa.int64(), "city": pa.string(), "amount": pa.int64()}
    >>> orders = testing.table("orders", key="id", schema=schema)
    >>> driver = testing.Driver(orders.group_by("city").agg(found=dt.min("amount")))
    >>> rows = [{"id": 1, "city": "Oslo", "amount": 40}, {"id": 2, "city": "Oslo", "amount": 2}]
    >>> driver.pipe(orders, rows, timestamp=1)
    [<city='Oslo': found=40 @1>, <city='Oslo': found=2 @1>]
    >>> driver.pipe(orders, {"id": 2}, timestamp=2, deleted=True)
    [<city='Oslo': found=40 @2>]
    """
    return AggregateCall("min", (column,))


@validated
def max(column: _Column) -> AggregateCall:  # noqa: A001
    """Find the largest value of a column; the result is null if all values are null.

    The result has the type of the column.

    Parameters
    ----------
    column : str
        The column, of a type with an order: numbers, texts without a collation, bytes,
        booleans, dates, times or durations. Its nulls are left out.

    Returns
    -------
    AggregateCall
        An argument of ``agg`` of a grouped table or stream.

    Raises
    ------
    PlanError
        If ``column`` is not a text. ``agg`` raises it for an unknown column or a type
        without an order, such as an array.

    See Also
    --------
    min : Find the smallest value of a column.
    top : Take columns of the rows with the highest or lowest values.

    Notes
    -----
    NaN is larger than any number, and -0.0 is smaller than 0.0. Texts are compared by their
    bytes in UTF-8. When the row with the largest value leaves a table, the next value takes
    its place. Source: spec/aggregate.

    Examples
    --------
    >>> import pyarrow as pa
    >>> import dovetail as dt
    >>> from dovetail import testing
    >>> schema = {"id": pa.int64(), "city": pa.string(), "amount": pa.int64()}
    >>> orders = testing.table("orders", key="id", schema=schema)
    >>> driver = testing.Driver(orders.group_by("city").agg(found=dt.max("amount")))
    >>> rows = [{"id": 1, "city": "Oslo", "amount": 40}, {"id": 2, "city": "Oslo", "amount": 2}]
    >>> driver.pipe(orders, rows, timestamp=1)
    [<city='Oslo': found=40 @1>, <city='Oslo': found=40 @1>]
    >>> driver.pipe(orders, {"id": 1}, timestamp=2, deleted=True)
    [<city='Oslo': found=2 @2>]
    """
    return AggregateCall("max", (column,))


@validated
def top(
    n: Positive,
    column: _Column | Sequence[_Column],
    *,
    by: _Column,
    descending: bool = True,
) -> AggregateCall:
    """Take columns of the ``n`` rows of a group that have the highest values of the column ``by``.

    The result is an array. It is empty if ``by`` is null in all rows of the group.

    Parameters
    ----------
    n : int
        The largest number of rows to take, at least 1.
    column : str or list of str
        The column to take. A list of columns gives an array of structs with these fields.
    by : str
        The column that ranks the rows. Rows in which it is null are left out.
    descending : bool, default True
        True to take the highest values, the highest first. False to take the lowest values,
        the lowest first.

    Returns
    -------
    AggregateCall
        An argument of ``agg`` of a grouped table or stream.

    Raises
    ------
    PlanError
        If ``n`` is below 1, or if ``column`` is empty or names a column twice. ``agg``
        raises it for an unknown column and for a type without an order, such as an array or
        a map. A struct of types with an order can be taken, but not rank rows.

    See Also
    --------
    max : Find the largest value of a column.
    collect_list : Collect all values of a column.

    Notes
    -----
    - Equal rows count each.
    - NaN is higher than any number, and -0.0 is 0.0.
    - Rows with the same value of ``by`` are in ascending order of ``column``, nulls first.
      Of several columns, the first one decides first.
    - The result depends only on the rows that the group has, not on their order of arrival.

    Source: spec/aggregate (``top``); Spark's ``ORDER BY``.

    Examples
    --------
    >>> import pyarrow as pa
    >>> import dovetail as dt
    >>> from dovetail import testing
    >>> schema = {"id": pa.int64(), "city": pa.string(), "amount": pa.int64()}
    >>> orders = testing.table("orders", key="id", schema=schema)
    >>> largest = orders.group_by("city").agg(largest=dt.top(2, "id", by="amount"))
    >>> driver = testing.Driver(largest)
    >>> for id, amount in (1, 40), (2, 60), (3, 50):
    ...     change = driver.pipe(orders, {"id": id, "city": "Oslo", "amount": amount}, timestamp=1)
    >>> change
    [<city='Oslo': largest=[2, 3] @1>]
    >>> driver.pipe(orders, {"id": 2}, timestamp=2, deleted=True)
    [<city='Oslo': largest=[3, 1] @2>]
    """
    single = isinstance(column, str)
    columns = (column,) if isinstance(column, str) else tuple(column)
    if not columns:
        raise PlanError(
            "top", "column= names no column", 'Name at least one, as in top(3, "id", …)'
        )
    refuse_duplicates("top", columns, "Name it once in column=")
    return AggregateCall("top", (by, *columns), taken=TopRows(n, descending, single))


@validated
def first(column: _Column, *, ignore_nulls: bool = False) -> AggregateCall:
    """Take the value of a column in the first row that arrived; for streams only.

    The result has the type of the column, and is null if that value is null.

    Parameters
    ----------
    column : str
        The column, of any type.
    ignore_nulls : bool, default False
        True to take the first value that is not null. The result is null while all values
        are null.

    Returns
    -------
    AggregateCall
        An argument of ``agg`` of a grouped stream.

    Raises
    ------
    PlanError
        If ``column`` is not a text. ``agg`` raises it for an unknown column, and for the
        groups of a table.

    See Also
    --------
    last : Take the value in the last row that arrived.
    top : Take values by the order of another column; also for tables.

    Notes
    -----
    Order is the order of arrival, not that of timestamps. If sessions merge, the rows of the
    earlier session count as the first, and the record that merges them as the last. A
    table's rows may leave their groups, and the aggregate could not tell the first row among
    those that remain. Source: spec/aggregate.

    Examples
    --------
    >>> import pyarrow as pa
    >>> import dovetail as dt
    >>> from dovetail import testing
    >>> schema = {"id": pa.int64(), "city": pa.string(), "amount": pa.int64()}
    >>> sales = testing.stream("sales", key="id", schema=schema)
    >>> groups = sales.group_by("city")
    >>> named = groups.agg(plain=dt.first("amount"), known=dt.first("amount", ignore_nulls=True))
    >>> driver = testing.Driver(named)
    >>> rows = [{"id": 1, "city": "Oslo"}, {"id": 2, "city": "Oslo", "amount": 40}]
    >>> for change in driver.pipe(sales, rows, timestamp=1):
    ...     print(change)
    <city='Oslo': plain=None, known=None @1>
    <city='Oslo': plain=None, known=40 @1>
    """
    return AggregateCall("first", (column,), ignore_nulls)


@validated
def last(column: _Column, *, ignore_nulls: bool = False) -> AggregateCall:
    """Take the value of a column in the last row that arrived; for streams only.

    The result has the type of the column, and is null if that value is null.

    Parameters
    ----------
    column : str
        The column, of any type.
    ignore_nulls : bool, default False
        True to take the last value that is not null. The result is null while all values
        are null.

    Returns
    -------
    AggregateCall
        An argument of ``agg`` of a grouped stream.

    Raises
    ------
    PlanError
        If ``column`` is not a text. ``agg`` raises it for an unknown column, and for the
        groups of a table.

    See Also
    --------
    first : Take the value in the first row that arrived.
    top : Take values by the order of another column; also for tables.

    Notes
    -----
    Order is the order of arrival, not that of timestamps. If sessions merge, the rows of the
    earlier session count as the first, and the record that merges them as the last. A
    table's rows may leave their groups, and the aggregate could not tell the last row among
    those that remain. Source: spec/aggregate.

    Examples
    --------
    >>> import pyarrow as pa
    >>> import dovetail as dt
    >>> from dovetail import testing
    >>> schema = {"id": pa.int64(), "city": pa.string(), "amount": pa.int64()}
    >>> sales = testing.stream("sales", key="id", schema=schema)
    >>> groups = sales.group_by("city")
    >>> named = groups.agg(plain=dt.last("amount"), known=dt.last("amount", ignore_nulls=True))
    >>> driver = testing.Driver(named)
    >>> rows = [{"id": 1, "city": "Oslo", "amount": 40}, {"id": 2, "city": "Oslo"}]
    >>> for change in driver.pipe(sales, rows, timestamp=1):
    ...     print(change)
    <city='Oslo': plain=40, known=40 @1>
    <city='Oslo': plain=None, known=40 @1>
    """
    return AggregateCall("last", (column,), ignore_nulls)


@validated
def collect_list(column: _Column) -> AggregateCall:
    """Collect the values of a column that are not null into an array, in order of arrival.

    The array is empty if all values are null.

    Parameters
    ----------
    column : str
        The column. For a table, its type must not be a map, a variant or a collated text.

    Returns
    -------
    AggregateCall
        An argument of ``agg`` of a grouped table or stream.

    Raises
    ------
    PlanError
        If ``column`` is not a text. ``agg`` raises it for an unknown column, and for such a
        type in the groups of a table.

    See Also
    --------
    collect_set : Collect distinct values only.
    top : Collect the values of a limited number of rows.

    Notes
    -----
    A row that a table deletes or replaces removes the first value that equals its former
    value. A row that replaces another adds its value at the end, even an equal one. If
    sessions merge, the values of the earlier session come first, and that of the record
    that merges them last. The array is as large as the group. Source: spec/aggregate.

    Examples
    --------
    >>> import pyarrow as pa
    >>> import dovetail as dt
    >>> from dovetail import testing
    >>> schema = {"id": pa.int64(), "city": pa.string(), "amount": pa.int64()}
    >>> orders = testing.table("orders", key="id", schema=schema)
    >>> driver = testing.Driver(orders.group_by("city").agg(amounts=dt.collect_list("amount")))
    >>> rows = [{"id": n, "city": "Oslo", "amount": n % 2} for n in (1, 2, 3)]
    >>> driver.pipe(orders, rows, timestamp=1)[-1]
    <city='Oslo': amounts=[1, 0, 1] @1>
    >>> driver.pipe(orders, {"id": 3}, timestamp=2, deleted=True)
    [<city='Oslo': amounts=[0, 1] @2>]
    """
    return AggregateCall("collect_list", (column,))


@validated
def collect_set(column: _Column) -> AggregateCall:
    """Collect the distinct values of a column that are not null into an array, in ascending order.

    The array is empty if all values are null. Values of a type without an order, such as an
    array, are in order of arrival.

    Parameters
    ----------
    column : str
        The column. Its type must not be a map, a variant or a collated text.

    Returns
    -------
    AggregateCall
        An argument of ``agg`` of a grouped table or stream.

    Raises
    ------
    PlanError
        If ``column`` is not a text. ``agg`` raises it for an unknown column or for such a
        type.

    See Also
    --------
    count_distinct : Count distinct values without keeping them in the result.
    collect_list : Collect all values in order of arrival.

    Notes
    -----
    A value stays in the set while any row of the group has it. All NaNs are one value, the
    last in order. -0.0 and 0.0 are two. Source: spec/aggregate.

    Examples
    --------
    >>> import pyarrow as pa
    >>> import dovetail as dt
    >>> from dovetail import testing
    >>> schema = {"id": pa.int64(), "city": pa.string(), "amount": pa.int64()}
    >>> orders = testing.table("orders", key="id", schema=schema)
    >>> driver = testing.Driver(orders.group_by("city").agg(amounts=dt.collect_set("amount")))
    >>> rows = [{"id": n, "city": "Oslo", "amount": n % 2} for n in (1, 2, 3)]
    >>> driver.pipe(orders, rows, timestamp=1)[-1]
    <city='Oslo': amounts=[0, 1] @1>
    >>> driver.pipe(orders, {"id": 3}, timestamp=2, deleted=True)
    [<city='Oslo': amounts=[0, 1] @2>]
    """
    return AggregateCall("collect_set", (column,))


@validated
def count_distinct(column: _Column) -> AggregateCall:
    """Count the distinct values of a column that are not null, exactly.

    The result is a long. It is 0 if all values are null.

    Parameters
    ----------
    column : str
        The column. Its type must not be a map, a variant or a collated text.

    Returns
    -------
    AggregateCall
        An argument of ``agg`` of a grouped table or stream.

    Raises
    ------
    PlanError
        If ``column`` is not a text. ``agg`` raises it for an unknown column or for such a
        type.

    See Also
    --------
    approx_count_distinct : Estimate the number in little memory; for streams only.
    collect_set : Collect the distinct values themselves.

    Notes
    -----
    -0.0 and 0.0 are one value, and all NaNs are one value. Source: spec/aggregate
    (``distinct``).

    Examples
    --------
    >>> import pyarrow as pa
    >>> import dovetail as dt
    >>> from dovetail import testing
    >>> schema = {"id": pa.int64(), "city": pa.string(), "amount": pa.int64()}
    >>> orders = testing.table("orders", key="id", schema=schema)
    >>> driver = testing.Driver(orders.group_by("city").agg(amounts=dt.count_distinct("amount")))
    >>> rows = [{"id": n, "city": "Oslo", "amount": n % 2} for n in (1, 2, 3)]
    >>> driver.pipe(orders, rows, timestamp=1)[-1]
    <city='Oslo': amounts=2 @1>
    >>> driver.pipe(orders, {"id": 2}, timestamp=2, deleted=True)
    [<city='Oslo': amounts=1 @2>]
    """
    return AggregateCall("count_distinct", (column,))


@validated
def approx_count_distinct(column: _Column) -> AggregateCall:
    """Estimate the number of distinct values of a column that are not null; for streams only.

    The result is a long with a standard error of 5 %. It is 0 if all values are null.

    Parameters
    ----------
    column : str
        The column. Its type must not be a map, a variant or a collated text.

    Returns
    -------
    AggregateCall
        An argument of ``agg`` of a grouped stream.

    Raises
    ------
    PlanError
        If ``column`` is not a text. ``agg`` raises it for an unknown column, for such a
        type, and for the groups of a table.

    See Also
    --------
    count_distinct : Count distinct values exactly; also for tables.

    Notes
    -----
    The estimate is that of HyperLogLog. -0.0 and 0.0 are one value, and all NaNs are one. A
    table's rows may leave their groups, and HyperLogLog cannot forget a value. Source:
    Spark's ``approx_count_distinct``.

    Examples
    --------
    >>> import pyarrow as pa
    >>> import dovetail as dt
    >>> from dovetail import testing
    >>> schema = {"id": pa.int64(), "city": pa.string(), "amount": pa.int64()}
    >>> sales = testing.stream("sales", key="id", schema=schema)
    >>> counts = sales.group_by("city").agg(amounts=dt.approx_count_distinct("amount"))
    >>> driver = testing.Driver(counts)
    >>> rows = [{"id": n, "city": "Oslo", "amount": n % 2} for n in (1, 2, 3)]
    >>> driver.pipe(sales, rows, timestamp=1)[-1]
    <city='Oslo': amounts=2 @1>
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
    """Define an aggregate by functions over Arrow columns, and call the result with column names.

    An *accumulator* is the state of some rows of a group. It has the columns of ``state``,
    by name and type. Each function works on many accumulators at once: a mapping of the
    names to Arrow arrays of one length.

    Parameters
    ----------
    init : function of int
        ``init(n)`` returns n accumulators of no rows.
    add : function of a mapping and arrays
        ``add(state, *values)`` returns each accumulator with one more row, the i-th with
        row i. ``values`` are the columns of the rows, nulls included.
    merge : function of two mappings
        ``merge(a, b)`` combines accumulators, the rows of ``a`` before those of ``b``. It
        must be associative. Each row is first added to an accumulator of its own.
    state : mapping of str to type
        The names and types of an accumulator's columns. A type is an Arrow type or a Spark
        type. A Spark type may be a text such as ``"double"``, which needs a Spark session.
    returns : type
        The type of the result, given in the same forms.
    retract : function of two mappings, optional
        ``retract(a, b)`` removes the rows of ``b``, which may be any of those of ``a``.
        An aggregate of a table needs it, since a table's rows may leave their groups.
    finish : function of a mapping, optional
        ``finish(state)`` returns the results, an array of type ``returns``. Without it,
        ``state`` must have one column of that type, which is the result.

    Returns
    -------
    function of str
        It takes the names of the columns to aggregate and returns an ``AggregateCall``.

    Raises
    ------
    PlanError
        If ``state`` is empty or a type is unknown. Without ``finish``, also if ``state`` is
        not one column of type ``returns``. ``agg`` raises it for a table if ``retract`` is
        left out.
    DataError
        In a batch, if a function raises or returns arrays of another length or type.

    See Also
    --------
    AggregateCall : The argument of ``agg`` that the result returns.
    sum : Sum the values of a column.

    Notes
    -----
    The result does not depend on the batches in which rows come if the functions obey these
    laws:

    - ``merge`` is associative.
    - ``add`` equals ``merge`` with an accumulator of the new row alone.
    - Removing ``c`` from ``merge(a, b)`` equals merging ``b`` to ``a`` without ``c``.
    - Removing ``b`` and then ``c`` equals removing ``merge(b, c)``.

    Kafka Streams has the same parts in ``aggregate``: initializer, adder, merger and
    subtractor.

    Examples
    --------
    >>> import pyarrow as pa
    >>> import pyarrow.compute as pc
    >>> import dovetail as dt
    >>> product = dt.aggregate(
    ...     init=lambda n: {"product": pa.array([1.0] * n)},
    ...     add=lambda state, x: {"product": pc.multiply(state["product"], pc.fill_null(x, 1.0))},
    ...     merge=lambda a, b: {"product": pc.multiply(a["product"], b["product"])},
    ...     retract=lambda a, b: {"product": pc.divide(a["product"], b["product"])},
    ...     state={"product": pa.float64()},
    ...     returns=pa.float64(),
    ... )
    >>> print(product("rate"))
    aggregate(rate)

    >>> from dovetail import testing
    >>> schema = {"id": pa.int64(), "pair": pa.string(), "rate": pa.float64()}
    >>> rates = testing.table("rates", key="id", schema=schema)
    >>> driver = testing.Driver(rates.group_by("pair").agg(rate=product("rate")))
    >>> rows = [{"id": 1, "pair": "x", "rate": 2.0}, {"id": 2, "pair": "x", "rate": 0.25}]
    >>> driver.pipe(rates, rows, timestamp=1)
    [<pair='x': rate=2.0 @1>, <pair='x': rate=0.5 @1>]
    """
    if not state:
        raise PlanError(
            "aggregate", "state= names no columns", 'Give names and types, as in {"total": "long"}'
        )
    columns = {name: given_arrow_type(f"state= {name!r}", type_) for name, type_ in state.items()}
    spark = given_spark_type("returns=", returns)
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
        """Return a call of the aggregate over the columns ``names``, which ``add`` gets in order.
        There may be none, and a name may come twice. Raises ``PlanError`` for a name that is no
        string. ``agg`` checks that the columns exist. Nothing checks their count: if it is wrong
        for ``add``, the batch fails.
        """
        return AggregateCall("aggregate", names, functions=functions, returns=spark)

    return call


def resolve_aggregate(
    operator: str, name: str, call: AggregateCall, schema: StructType, *, retracts: bool
) -> tuple[StructField, Aggregate]:
    """Return the result column ``name`` of the aggregate ``call`` over rows of ``schema``,
    nullable, and its kernel, which computes the results.

    ``operator``: the aggregation in errors. ``retracts``: True if rows may leave their groups, as
    those of a table do. Raises ``PlanError`` for an unknown column, and for a type that the
    aggregate does not take. With ``retracts`` it also refuses an aggregate that cannot take rows
    back.
    """
    columns = [_column_field(operator, name, call, column, schema) for column in call.columns]
    context = _Context(operator, name, call, tuple(columns), retracts)
    type_, aggregate = _FUNCTIONS[call.function](context)
    return StructField(name, type_, True), aggregate


def _column_field(
    operator: str, name: str, call: AggregateCall, column: str, schema: StructType
) -> StructField:
    """Return the field of the column ``column`` that an aggregate reads. Raises ``PlanError`` if
    ``schema``, the row to be aggregated, lacks it.

    ``operator``, ``name``, ``call``: the aggregation, the result column and the aggregate in
    errors.
    """
    hint = "; compute an expression in the frame first"
    return known_field(operator, f"{name}={call}", column, schema, hint=hint)


@dataclass(frozen=True)
class _Context:
    """The data from which the type and the kernel of one aggregate call follow."""

    operator: str
    """The aggregation in errors."""
    name: str
    """The name of the result column."""
    call: AggregateCall
    fields: tuple[StructField, ...]
    """The fields of the columns that the call reads, in its order."""
    retracts: bool
    """True if rows may leave their groups."""

    @property
    def spark_type(self) -> DataType:
        """The Spark type of the first column of the call. A call without columns raises
        ``IndexError``.
        """
        return self.fields[0].dataType

    @property
    def arrow_type(self) -> pa.DataType:
        """The Arrow type of the first column of the call. A call without columns raises
        ``IndexError``.
        """
        return arrow_type(self.spark_type)

    @property
    def number_type(self) -> pa.DataType:
        """The Arrow type of the first column of the call. Raises ``PlanError`` unless it is an
        integer or a decimal.
        """
        if not isinstance(self.spark_type, (*INTEGERS, DecimalType)):
            raise self.type_error("a number", "Cast it in the frame first")
        return self.arrow_type

    def call_error(self, problem: str, remedy: str) -> PlanError:
        """Return a ``PlanError`` of the operator, to be raised. Its problem is the result column
        and the call, as in ``total=sum(amount):``, then ``problem``. Its advice is ``remedy``.
        """
        return PlanError(self.operator, f"{self.name}={self.call}: {problem}", remedy)

    def type_error(self, needs: str, remedy: str, column: int = 0) -> PlanError:
        """Return a ``PlanError`` for a column of an unsuitable type, to be raised.

        ``needs``: the type that is needed, in words. ``remedy``: the advice. ``column``: the index
        of the column in the call, from 0.
        """
        field = self.fields[column]
        type_ = field.dataType.simpleString()
        return self.call_error(f"column {field.name!r} is of type {type_}, not {needs}", remedy)

    def refuse_to_retract(self, instead: str) -> None:
        """Raise ``PlanError`` if rows may leave their groups (``retracts``). ``instead``: what to
        use then, in words for the remedy.
        """
        if self.retracts:
            raise self.call_error(
                "a table's rows change and leave their groups, and "
                f"{self.call.function} cannot take them back",
                f"Use {instead}, or aggregate a stream",
            )

    def refuse_without_order(self) -> None:
        """Raise ``PlanError`` if values of the first column have no order (``is_ordered``): arrays,
        maps, structs, variants and collated texts.
        """
        if not is_ordered(self.spark_type):
            raise self.type_error(
                "one with an order by value or bytes",
                "Compute a column of a plain type in the frame",
            )

    def refuse_without_equality(self) -> None:
        """Raise ``PlanError`` if equal values of the first column may differ in their bytes
        (``has_no_equality``): maps, variants, collated texts, and types with these in them.
        """
        if has_no_equality(self.spark_type):
            raise self.type_error(
                "one whose values can be compared by their bytes",
                "Compute a column of a plain type in the frame, for instance map_entries of a map "
                "or lower of a text",
            )


_Resolved: TypeAlias = tuple[DataType, Aggregate]
"""The Spark type of an aggregate's result, and its kernel."""


def _resolve_count(_: _Context) -> _Resolved:
    """Return the result type of ``count``, a long, and its kernel, which computes the result. The
    column may be of any type or missing.
    """
    return LongType(), Count()


def _resolve_sum(context: _Context) -> _Resolved:
    """Return the result type of ``sum`` and its kernel, which computes the result. The type is a
    double for floats, a long for integers, and a decimal with ten more digits (at most 38) for
    decimals. Raises ``PlanError`` unless the column is a number.
    """
    if isinstance(context.spark_type, FLOATS):
        return DoubleType(), FloatSum()
    return _resolve_exact(context, ExactSum(context.number_type), LongType())


def _resolve_mean(context: _Context) -> _Resolved:
    """Return the result type of ``mean`` and its kernel, which computes the result. The type is a
    double for floats and integers, and a decimal with four more digits for decimals. Raises
    ``PlanError`` unless the column is a number.
    """
    if isinstance(context.spark_type, FLOATS):
        return DoubleType(), FloatMean()
    return _resolve_exact(context, ExactMean(context.number_type), DoubleType())


def _resolve_exact(
    context: _Context, aggregate: ExactSum | ExactMean, of_integers: DataType
) -> _Resolved:
    """Return the Spark type of the result of ``aggregate``, an exact sum or mean, and ``aggregate``
    itself.

    Of a decimal column, the call's first, the result is a decimal with the precision and scale that
    ``aggregate`` gives it. Of integers it is of type ``of_integers``.
    """
    if isinstance(context.spark_type, DecimalType):
        return DecimalType(aggregate.result.precision, aggregate.result.scale), aggregate
    return of_integers, aggregate


def _resolve_extreme(context: _Context) -> _Resolved:
    """Return the result type of ``min`` or ``max``, that of the column, and its kernel, which
    computes the result. If rows may leave their groups (``context.retracts``), it is a kernel that
    can take rows back. Raises ``PlanError`` for a column whose values have no order.
    """
    context.refuse_without_order()
    kernel = ChangingExtreme if context.retracts else Extreme
    return context.spark_type, kernel(context.arrow_type, context.call.function == "max")


def _resolve_top(context: _Context) -> _Resolved:
    """Return the result type of ``top`` and its kernel, which computes the result. The type is an
    array of values, which may be null, or of structs, which may not.

    Raises ``PlanError`` if the ranking column, the call's first, has no order. So it does if a
    column that is shown has none, since these columns order rows of one rank.
    """
    context.refuse_without_order()
    taken, (_, *shown) = context.call.taken, context.fields
    assert taken is not None
    for column_index, field in enumerate(shown, start=1):
        if not is_sortable(field.dataType):
            raise context.type_error(
                "one with an order by value or bytes, which decides between rows whose "
                f"{context.fields[0].name!r} is the same",
                "Compute a column of a plain type in the frame, for instance to_json of an array, "
                "or take the primary key and join the result with the table",
                column_index,
            )
    row = shown[0].dataType
    if not taken.single:
        row = StructType([StructField(field.name, field.dataType, True) for field in shown])
    kernel = Top(
        n=taken.n,
        by=context.arrow_type,
        row=arrow_type(row),
        single=taken.single,
        descending=taken.descending,
        retractable=context.retracts,
    )
    return ArrayType(row, taken.single), kernel


def _resolve_first_or_last(context: _Context) -> _Resolved:
    """Return the result type of ``first`` or ``last``, that of the column, and its kernel, which
    computes the result. Raises ``PlanError`` if rows may leave their groups (``context.retracts``).
    """
    context.refuse_to_retract("min, max or collect_list")
    call = context.call
    return context.spark_type, End(context.arrow_type, call.function == "last", call.ignore_nulls)


def _resolve_collect_list(context: _Context) -> _Resolved:
    """Return the result type of ``collect_list``, an array without nulls, and its kernel, which
    computes the result. Raises ``PlanError`` if rows may leave their groups (``context.retracts``)
    and equal values may differ in their bytes, as those of maps do.
    """
    if context.retracts:
        context.refuse_without_equality()
    return ArrayType(context.spark_type, False), CollectList(context.arrow_type)


def _resolve_last_row(context: _Context) -> _Resolved:
    """Return the result type of ``last_row``, the values of a group's last row, and its kernel,
    which computes the result. The type is a struct of all columns of the call, a ``LastRowCall``.
    Raises ``PlanError`` for a column whose equal values may differ in their bytes, such as a map.
    """
    for column_index, field in enumerate(context.fields):
        if has_no_equality(field.dataType):
            raise context.type_error(
                "one whose values can be compared by their bytes",
                "Leave it out with drop(), or compute a plain type, such as map_entries of a map",
                column_index,
            )
    call = context.call
    assert isinstance(call, LastRowCall)
    row = StructType([StructField(field.name, field.dataType, True) for field in context.fields])
    return row, LastRow(arrow_type(row), call.unique, call.key)


def _resolve_collect_set(context: _Context) -> _Resolved:
    """Return the result type of ``collect_set``, an array without nulls, and its kernel, which
    computes the result. Raises ``PlanError`` for a column whose equal values may differ in their
    bytes, such as a map.
    """
    context.refuse_without_equality()
    return ArrayType(context.spark_type, False), CollectSet(context.arrow_type, context.retracts)


def _resolve_count_distinct(context: _Context) -> _Resolved:
    """Return the result type of ``count_distinct``, a long, and its kernel, which computes the
    result. Raises ``PlanError`` for a column whose equal values may differ in their bytes, such as
    a map.
    """
    context.refuse_without_equality()
    return LongType(), CountDistinct(context.arrow_type, context.retracts)


def _resolve_approx_count_distinct(context: _Context) -> _Resolved:
    """Return the result type of ``approx_count_distinct``, a long, and its kernel, which computes
    the result.

    Raises ``PlanError`` if rows may leave their groups (``context.retracts``). So it does for a
    column whose equal values may differ in their bytes, such as a map.
    """
    context.refuse_to_retract("count_distinct")
    context.refuse_without_equality()
    return LongType(), ApproxCountDistinct()


def _resolve_user_defined(context: _Context) -> _Resolved:
    """Return the result type that the user declared for an aggregate, and its kernel, which
    computes the result by the user's functions. Raises ``PlanError`` if rows may leave their groups
    (``context.retracts``) and the aggregate has no ``retract``.
    """
    functions, returns = context.call.functions, context.call.returns
    assert functions is not None
    assert returns is not None
    if functions.retract is None:
        context.refuse_to_retract("retract=, a function that takes rows back")
    return returns, UserDefined(functions)


_FUNCTIONS: dict[str, Callable[[_Context], _Resolved]] = {
    "count": _resolve_count,
    "sum": _resolve_sum,
    "mean": _resolve_mean,
    "min": _resolve_extreme,
    "max": _resolve_extreme,
    "top": _resolve_top,
    "first": _resolve_first_or_last,
    "last": _resolve_first_or_last,
    "collect_list": _resolve_collect_list,
    "collect_set": _resolve_collect_set,
    "last_row": _resolve_last_row,
    "count_distinct": _resolve_count_distinct,
    "approx_count_distinct": _resolve_approx_count_distinct,
    "aggregate": _resolve_user_defined,
}
