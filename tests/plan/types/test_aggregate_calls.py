"""Aggregates as users write them: against Spark's own on the same rows, and what is refused."""

from __future__ import annotations

import datetime as dt
import math
import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from bench.models.aggregates import bits
from pyspark import cloudpickle
from pyspark.sql import Column, SparkSession, Window
from pyspark.sql import functions as F
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
    VariantType,
)
from small_session import SMALL_TABLES, applied

from dovetail.aggregates.aggregate import AggregateOverflowError, GroupUpdates, null_accumulators
from dovetail.api.tables import Table
from dovetail.errors import PlanError
from dovetail.plan.types import aggregates as agg

UTC = dt.timezone.utc
NAN, INF = math.nan, math.inf
DAY = dt.date(2020, 2, 28)
TIME = dt.datetime(2020, 2, 28, 12, 30, 1, 5)  # noqa: DTZ001

COLUMNS: dict[str, tuple[DataType, list[list[Any]]]] = {
    "byte": (ByteType(), [[1, -128, None], [None], [127, 127]]),
    "short": (ShortType(), [[1, -32768], [None, None], [7]]),
    "int": (IntegerType(), [[1, 2**31 - 1, 1], [None], [-5]]),
    "long": (LongType(), [[2**62, 2**62 - 1], [None, 3], [-(2**63)]]),
    "float": (FloatType(), [[0.1, 0.2, NAN], [INF, 1.0], [-1.5, None]]),
    "double": (DoubleType(), [[0.5, 0.25, -3.0, 2.0**40, 1e16], [INF, -INF], [None, 2.5, NAN]]),
    "decimal": (DecimalType(9, 2), [["1.00", "-2.35", "0.01"], [None], ["9999999.99", "0.02"]]),
    "thirds": (DecimalType(20, 4), [["1", "1", "0"], ["2", "0", "0"], ["-1", "-1", "0.0001"]]),
    "wide": (DecimalType(38, 10), [["1", "2"], ["-7.0000000005", "0", "0"], [None]]),
    "boolean": (BooleanType(), [[True, False], [None, True], [False]]),
    "string": (StringType(), [["b", "a", "", None], ["é", "z", "e"], [None]]),
    "binary": (BinaryType(), [[b"\xff", b"", b"a"], [b"a", b"aa"], [None]]),
    "date": (DateType(), [[DAY, dt.date(1900, 1, 1)], [None], [DAY]]),
    "timestamp": (TimestampType(), [[TIME, None], [TIME.replace(year=1900)], [TIME]]),
    "ntz": (TimestampNTZType(), [[TIME, None], [TIME.replace(year=1900)], [TIME]]),
    "struct": (
        StructType([StructField("a", LongType()), StructField("b", StringType())]),
        [[(1, "x"), (1, None), (1, "x")], [None], [(None, None)]],
    ),
    "array": (ArrayType(LongType()), [[[1, None], [], [1, None]], [None], [[2]]]),
    "map": (MapType(StringType(), LongType()), [[{"a": 1}, None], [{}], [{"b": None}]]),
}
NUMBERS = ["byte", "short", "int", "long", "float", "double", "decimal", "thirds", "wide"]
ORDERED = [*NUMBERS, "boolean", "string", "binary", "date", "timestamp", "ntz"]
COMPARED = [*ORDERED, "struct", "array"]
CASES: dict[str, tuple[Callable[[str], agg.AggregateCall], Callable[[str], Column], list[str]]] = {
    "count": (agg.count, F.count, list(COLUMNS)),
    "sum": (agg.sum, F.sum, NUMBERS),
    "mean": (agg.mean, F.mean, NUMBERS),
    "min": (agg.min, F.min, ORDERED),
    "max": (agg.max, F.max, ORDERED),
    "first": (agg.first, F.first, list(COLUMNS)),
    "last": (agg.last, F.last, list(COLUMNS)),
    "first known": (
        lambda c: agg.first(c, ignore_nulls=True),
        lambda c: F.first(c, ignorenulls=True),
        list(COLUMNS),
    ),
    "last known": (
        lambda c: agg.last(c, ignore_nulls=True),
        lambda c: F.last(c, ignorenulls=True),
        list(COLUMNS),
    ),
    "collect_list": (agg.collect_list, F.collect_list, list(COLUMNS)),
    "collect_set": (agg.collect_set, F.collect_set, COMPARED),
    "count_distinct": (agg.count_distinct, F.count_distinct, COMPARED),
    "approx_count_distinct": (agg.approx_count_distinct, F.approx_count_distinct, COMPARED),
}
GRID = [(function, column) for function, (*_, columns) in CASES.items() for column in columns]


def value_of(name: str, value: Any) -> Any:
    return Decimal(value) if isinstance(COLUMNS[name][0], DecimalType) and value else value


@pytest.fixture(scope="module")
def answers(spark: SparkSession) -> dict[str, tuple[pa.Table, dict[str, Any], StructType]]:
    """Per column the rows in Arrow, and Spark's own aggregates of its groups."""
    with applied(spark, SMALL_TABLES):
        return _answers(spark)


def _answers(spark: SparkSession) -> dict[str, tuple[pa.Table, dict[str, Any], StructType]]:
    found = {}
    for name, (type_, groups) in COLUMNS.items():
        schema = StructType([StructField("group", LongType()), StructField(name, type_)])
        rows = [
            (number, value_of(name, value))
            for number, group in enumerate(groups)
            for value in group
        ]
        frame = spark.createDataFrame(rows, schema).coalesce(1)
        functions = [function for function, (*_, columns) in CASES.items() if name in columns]
        asked = {function: CASES[function][1](name).alias(function) for function in functions}
        # Apart: rows come in another order where Spark counts distinct values.
        distinct = [asked.pop("count_distinct")] if "count_distinct" in asked else [F.count("*")]
        answered = frame.groupBy("group").agg(*asked.values())
        answered = answered.join(frame.groupBy("group").agg(*distinct), "group").orderBy("group")
        found[name] = (frame.toArrow(), answered.toArrow(), answered.schema)
    return found


@pytest.mark.parametrize(("function", "name"), GRID)
def test_as_spark_aggregates(answers: dict[str, Any], function: str, name: str) -> None:
    """The same type and the same values as Spark's function, whether or not rows may leave. (The
    order of a set is not Spark's, which has none; and Spark rounds each addition of doubles, which
    makes no difference to these.)
    """
    rows, expected, types = answers[name]
    schema = StructType([StructField("group", LongType()), StructField(name, COLUMNS[name][0])])
    group = rows.column("group").to_numpy()
    updates = GroupUpdates(group, 3, np.zeros(len(group), np.bool_))
    values = [rows.column(name).combine_chunks()]
    for retracts in (False, True):
        try:
            field, kernel = agg.resolve_aggregate(
                "agg", "x", CASES[function][0](name), schema, retracts=retracts
            )
        except PlanError:
            assert retracts
            assert function.split(maxsplit=1)[0] in {
                "first",
                "last",
                "approx_count_distinct",
                "collect_list",
            }
            continue
        assert field.dataType == types[function].dataType
        found = kernel.results(
            kernel.fold(updates, null_accumulators(kernel.state, 3), values)
        ).to_pylist()
        spark = expected.column(function).to_pylist()
        if function == "collect_set":
            found, spark = (
                [sorted(map(repr, map(bits, row))) for row in rows] for rows in (found, spark)
            )
        assert bits(found) == bits(spark)


BY = {
    "text": (StringType(), ["", "a", "B", "b", "é", "z", "\U0001f600", "\uffee"]),
    "decimal": (DecimalType(12, 2), [Decimal(n).scaleb(-2) for n in range(-4, 5)]),
    "timestamp": (TimestampType(), [TIME.replace(hour=n) for n in range(9)]),
    "double": (DoubleType(), [0.0, -0.0, NAN, INF, -INF, 1e308, -2.5]),
    "float": (FloatType(), [0.0, -0.0, NAN, INF, -INF, 0.5, -2.5]),
}


def test_top_as_spark_ranks(spark: SparkSession) -> None:
    """Of a static frame: the rows that Spark numbers by a window in order of the column, then of
    the key; the values that its ``max_by`` and ``min_by`` show; its distinct counts.
    """
    random_ = random.Random(3)
    schema = StructType([StructField("id", LongType()), StructField("g", LongType())])
    for name, (type_, _) in BY.items():
        schema = schema.add(name, type_)
    rows = [
        (n, n % 7, *(random_.choice([None, *values]) for _, values in BY.values()))
        for n in random_.sample(range(200), 150)
    ]
    frame = spark.createDataFrame(rows, schema)
    calls: dict[str, agg.AggregateCall] = {}
    asked: dict[str, Column] = {}
    ranked = frame
    for name in BY:
        calls[f"{name} n"] = agg.count_distinct(name)
        asked[f"{name} n"] = F.count_distinct(name)
        for descending in (True, False):
            own, n = f"{name} {descending}", random_.choice([1, 3, 6])
            order = F.col(name).desc_nulls_last() if descending else F.col(name).asc_nulls_last()
            window = Window.partitionBy("g").orderBy(order, "id")
            ranked = ranked.withColumn(own, F.row_number().over(window))
            first = F.when((F.col(own) <= n) & F.col(name).isNotNull(), F.struct(own, "id"))
            calls[own] = agg.top(n, "id", by=name, descending=descending)
            asked[own] = F.array_sort(F.collect_list(first))["id"]
            by_values = F.max_by if descending else F.min_by
            calls[f"{own} values"] = agg.top(n, name, by=name, descending=descending)
            asked[f"{own} values"] = by_values(name, name, n)
    table = Table.from_static(frame, key="id", name="rows")
    found = table.group_by("g").agg(**calls).changelog(emit="batch").orderBy("g").collect()
    expected = ranked.groupBy("g").agg(*(c.alias(n) for n, c in asked.items())).orderBy("g")
    for own, other in zip(found, expected.collect(), strict=True):
        for name in ("g", *calls):
            assert zeros_alike(own[name]) == zeros_alike(other[name]), name


def zeros_alike(value: Any) -> Any:
    """Of rows with zeros ``max_by`` shows any first."""
    if isinstance(value, list):
        return [zeros_alike(element) for element in value]
    return bits(value + 0.0 if isinstance(value, float) else value)


@pytest.mark.parametrize("function", ["sum", "mean"])
def test_decimals_round_as_in_spark(spark: SparkSession, function: str) -> None:
    """Random ones of many types; half of a last digit is rounded away from zero."""
    random = np.random.default_rng(5)
    for precision, scale in [(3, 0), (10, 2), (18, 9), (19, 4), (30, 12), (34, 6), (38, 4)]:
        type_ = DecimalType(precision, scale)
        digits = random.integers(1, max(precision - 5, 2), 300)
        numbers = [int(random.integers(-(10**9), 10**9)) ** 4 % 10**d for d in digits.tolist()]
        rows = [(at // 7, Decimal(n).scaleb(-scale)) for at, n in enumerate(numbers)]
        schema = StructType([StructField("group", LongType()), StructField("x", type_)])
        frame = spark.createDataFrame(rows, schema).coalesce(1)
        expected = frame.groupBy("group").agg(getattr(F, function)("x").alias("x")).orderBy("group")
        table = frame.toArrow()
        group = table.column("group").to_numpy()
        groups = int(group.max()) + 1
        _, kernel = agg.resolve_aggregate(
            "agg", "x", getattr(agg, function)("x"), schema, retracts=False
        )
        updates = GroupUpdates(group, groups, np.zeros(len(group), np.bool_))
        state = kernel.fold(
            updates, null_accumulators(kernel.state, groups), [table.column("x").combine_chunks()]
        )
        assert kernel.results(state).to_pylist() == expected.toArrow().column("x").to_pylist()


SCHEMA = StructType([StructField(name, type_) for name, (type_, _) in COLUMNS.items()]).add(
    "variant", VariantType()
)
SCHEMA = SCHEMA.add("lower", StringType("UTF8_LCASE"))


@pytest.mark.parametrize(
    ("call", "retracts", "message"),
    [
        (agg.sum("nothing"), False, "x=sum(nothing) names an unknown column 'nothing'"),
        (agg.sum("string"), False, "column 'string' is of type string, not a number"),
        (agg.mean("date"), False, "column 'date' is of type date, not a number"),
        (
            agg.min("map"),
            False,
            "column 'map' is of type map<string,bigint>, not one with an order",
        ),
        (agg.max("struct"), True, "not one with an order"),
        (agg.min("lower"), False, "not one with an order"),
        (agg.first("long"), True, "first cannot take them back"),
        (agg.last("long"), True, "last cannot take them back"),
        (agg.approx_count_distinct("long"), True, "approx_count_distinct cannot take them back"),
        (agg.approx_count_distinct("map"), False, "not one whose values can be compared"),
        (
            agg.top(2, "long", by="map"),
            True,
            "'map' is of type map<string,bigint>, not one with an",
        ),
        (agg.top(2, "array", by="long"), False, "not one with an order by value or bytes, which"),
        (agg.top(2, ["long", "lower"], by="date"), True, "x=top(2, long, lower, by=date): column"),
        (agg.top(2, ["long", "no"], by="date"), True, "names an unknown column 'no'"),
        (agg.top(2, "long", by="no"), True, "names an unknown column 'no'"),
        (agg.count_distinct("map"), True, "not one whose values can be compared"),
        (agg.count_distinct("lower"), False, "not one whose values can be compared"),
        (agg.collect_list("map"), True, "not one whose values can be compared"),
        (agg.collect_set("map"), False, "not one whose values can be compared"),
        (agg.collect_set("variant"), False, "not one whose values can be compared"),
        (agg.collect_set("lower"), False, "not one whose values can be compared"),
    ],
    ids=str,
)
def test_refused(call: agg.AggregateCall, retracts: bool, message: str) -> None:
    with pytest.raises(PlanError) as raised:
        agg.resolve_aggregate("orders.group_by(region)", "x", call, SCHEMA, retracts=retracts)
    assert raised.value.operator == "orders.group_by(region)"
    assert message in raised.value.problem
    assert len(raised.value.remedy) > 20


def test_columns_are_names() -> None:
    with pytest.raises(PlanError, match="withColumn"):
        agg.sum(5)  # type: ignore[arg-type]


def own(**changes: Any) -> Callable[..., agg.AggregateCall]:
    given: dict[str, Any] = {
        "init": lambda n: {"total": pa.array([0.0] * n)},
        "add": lambda state, x: {"total": pc.add(state["total"], x)},
        "merge": lambda a, b: {"total": pc.add(a["total"], b["total"])},
        "state": {"total": DoubleType()},
        "returns": "double",
    }
    return agg.aggregate(**{**given, **changes})


@pytest.mark.usefixtures("spark")
def test_own_aggregates() -> None:
    """Types as text, of Spark or of Arrow; the kernel travels by cloudpickle."""
    for types in (
        {},
        {"returns": DoubleType(), "state": {"total": pa.float64()}},
        {"returns": pa.float64(), "state": {"total": "double"}},
    ):
        field, kernel = agg.resolve_aggregate(
            "agg", "x", own(**types)("double"), SCHEMA, retracts=False
        )
        assert field == StructField("x", DoubleType(), True)
        kernel = cloudpickle.loads(cloudpickle.dumps(kernel))
        updates = GroupUpdates(np.zeros(2, np.int64), 1, np.zeros(2, np.bool_))
        emitted = kernel.scan(updates, null_accumulators(kernel.state, 1), [pa.array([1.5, 2.0])])
        assert emitted.to_pylist() == [1.5, 3.5]


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"merge": None}, "merge= is None"),
        ({"retract": 3}, "retract= is 3"),
        ({"state": {}}, "state= names no columns"),
        ({"state": {"total": "money"}}, "state= 'total' 'money' is not read as a type"),
        ({"state": {"total": 5}}, "state= has 5 for 'total'"),
        (
            {"returns": "bigint"},
            "without finish= the state must be one column, of the type of returns=, int64",
        ),
    ],
)
def test_own_aggregates_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError) as raised:
        own(**changes)
    assert message in raised.value.problem
    assert ".." not in str(raised.value)


@pytest.mark.usefixtures("spark")
def test_an_own_aggregate_without_retract_is_for_streams() -> None:
    with pytest.raises(PlanError, match="retract=, a function that takes rows back"):
        agg.resolve_aggregate("agg", "x", own()("double"), SCHEMA, retracts=True)
    taking = own(retract=lambda a, b: {"total": pc.subtract(a["total"], b["total"])})
    _, kernel = agg.resolve_aggregate("agg", "x", taking("double"), SCHEMA, retracts=True)
    assert kernel.retracts


def test_every_kernel_of_a_table_retracts() -> None:
    for function, (call, _, columns) in CASES.items():
        for name in columns:
            try:
                _, kernel = agg.resolve_aggregate(
                    "agg", function, call(name), SCHEMA, retracts=True
                )
            except PlanError:
                continue
            assert kernel.retracts


def test_overflow_says_what_to_cast_to() -> None:
    for name, values, message in (
        ("long", [2**63 - 1, 1], r"decimal\(20,0\)"),
        ("wide", [Decimal(10**28 - 1), Decimal(1)], "decimal"),
    ):
        _, kernel = agg.resolve_aggregate("agg", "x", agg.sum(name), SCHEMA, retracts=False)
        updates = GroupUpdates(np.zeros(2, np.int64), 1, np.zeros(2, np.bool_))
        column = pa.array(values, pa.int64() if name == "long" else pa.decimal128(38, 10))
        with pytest.raises(AggregateOverflowError, match=message):
            kernel.scan(updates, null_accumulators(kernel.state, 1), [column])
