"""What a failing query says first: operator, table and key; Spark's trace comes behind."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bench.parameters import slow_after
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

import dovetail as dt
from dovetail import testing
from dovetail.spark.query.failures import cause_of

AT = datetime(2024, 5, 1, tzinfo=timezone.utc)
ORDERS = pa.schema(
    [("id", pa.int64()), ("who", pa.string()), ("n", pa.int64()), ("at", pa.timestamp("us", "UTC"))]
)
MANY = [{"id": i, "who": f"w{i % 7}", "n": 1, "at": AT} for i in range(40)]
HUGE = {"who": "eve", "n": 2**62, "at": AT}


class World:
    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder

    def live(self, name: str, rows: list[dict[str, Any]], schema: pa.Schema = ORDERS) -> DataFrame:
        """A streaming frame that says it has the columns of ``ORDERS``."""
        (self.folder / name).mkdir()
        pq.write_table(pa.Table.from_pylist(rows, schema), self.folder / name / "0.parquet")
        declared = "id long, who string, n long, at timestamp"
        return self.spark.readStream.schema(declared).parquet(str(self.folder / name))

    def orders(self, *more: dict[str, Any]) -> dt.Table:
        frame = self.live("orders", [*MANY, *more])
        return dt.Table.from_changelog(frame, key="id", timestamp="at", name="orders")

    def clicks(self, *more: dict[str, Any]) -> dt.Stream:
        frame = self.live("clicks", [*MANY, *more])
        return dt.Stream.from_changelog(frame, key="id", timestamp="at", name="clicks")

    def people(self) -> dt.Table:
        frame = self.live("people", MANY[:3]).select("who", F.col("n").alias("age"), "at")
        return dt.Table.from_changelog(frame, key="who", timestamp="at", name="people")

    def looked_up(self) -> dt.Table:
        """A join of tables one of which has another type in its store."""
        path = str(self.folder / "store.db")
        with sqlite3.connect(path) as store:
            store.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, who TEXT, n INTEGER)")
            store.execute("CREATE TABLE people (who TEXT PRIMARY KEY, age TEXT)")
            store.execute("INSERT INTO people VALUES ('w5', 'old')")
        orders = self.orders().with_lookup(
            dt.lookups.sqlite(path, "orders", key="id", indexes=[dt.lookups.index("who")])
        )
        people = self.people().with_lookup(dt.lookups.sqlite(path, "people", key="who"))
        return orders.join(people, on="who", how="left", delta_join=dt.delta_join(strategy="force"))


def returning(value: Callable[[pa.Array], Any]) -> Any:
    """An aggregate of one's own whose ``add`` does so."""
    return dt.aggregate(
        init=lambda n: {"a": pa.array([0] * n, pa.int64())},
        add=lambda _, n: {"a": value(n)},
        merge=lambda a, _: a,
        retract=lambda a, _: a,
        state={"a": "bigint"},
        returns="bigint",
    )


@F.udf(StringType())
def checked(who: str) -> str:
    if who == "eve":
        raise KeyError(who)
    return who


FAILURES: dict[str, tuple[Callable[[World], dt.Table], list[str]]] = {
    "an overflow": (
        lambda w: w.orders(HUGE | {"id": 91}, HUGE | {"id": 92}).group_by("who").agg(s=dt.sum("n")),
        [
            r"aggregate of orders by who: s: a sum does not fit its type int64. Cast the column",
            r"  table orders; key who='eve'; bucket \d of 2",
        ],
    ),
    "an overflow in windows of time": (
        lambda w: (
            w.clicks(HUGE | {"id": 91}, HUGE | {"id": 91})
            .group_by("id")
            .window(dt.windows.session("1 hour"))
            .agg(s=dt.sum("n"))
            .to_table()
        ),
        [r"aggregate of clicks by id: s: ", r"  stream clicks; key id=91; bucket \d of 2"],
    ),
    "an aggregate of one's own that raises": (
        lambda w: (
            w.clicks(HUGE | {"id": 91, "n": 0})
            .group_by("who")
            .agg(p=returning(lambda n: pa.array([1 // one.as_py() for one in n]))("n"))
        ),
        [
            (
                r"aggregate of clicks by who: p: add of a user-defined aggregate raised "
                r"ZeroDivisionError: .*by zero. Correct the function"
            ),
            r"  stream clicks; key who='eve'; bucket \d of 2",
        ],
    ),
    "an aggregate of one's own of a wrong type": (
        lambda w: w.clicks().group_by("who").agg(p=returning(lambda n: n.cast(pa.string()))("n")),
        [
            (
                r"aggregate of clicks by who: p: add of a user-defined aggregate returned "
                r"string\[\d+\] for column 'a'. Return an Arrow array of type int64"
            ),
            r"  stream clicks; key who='w\d'; bucket \d of 2",
        ],
    ),
    "a lookup": (
        World.looked_up,
        [
            r"sqlite people: a row does not fit the table's schema: column 'age' is declared int64",
            r"  in left join of orders and people, of table orders and table people",
        ],
    ),
    "a foreign key by a Python function": (
        lambda w: w.orders(HUGE | {"id": 91}).join(w.people(), on=checked("who"), how="left"),
        [r"left join of orders and people: a micro-batch fails with KeyError: 'eve'"],
    ),
    "a column of another type than it is said to have": (
        lambda w: dt.Table.from_changelog(
            w.live(
                "texts",
                [{"id": "x", "at": AT}],
                pa.schema([("id", pa.string()), ORDERS.field("at")]),
            ),
            key="id",
            timestamp="at",
            name="texts",
        ),
        [
            (
                r"texts: a micro-batch fails with \[FAILED_READ_FILE.*texts/0.parquet.*Expected "
                r"Spark type bigint, actual Parquet type BINARY"
            ),
        ],
    ),
    "no time": (
        lambda w: w.orders({"id": 91, "at": None}),
        [
            r"table orders: 1 rows have a null timestamp, .* first of key id=91. Filter",
            r"  input partition \d",
        ],
    ),
}


@pytest.mark.parametrize("failure", slow_after(4, FAILURES))
def test_a_failure_comes_first(failure: str, spark: SparkSession, tmp_path: Path) -> None:
    make, lines = FAILURES[failure]
    query = make(World(spark, tmp_path)).write_stream(
        dt.to_parquet(tmp_path / "out"),
        checkpoint=tmp_path / "checkpoint",
        trigger={"availableNow": True},
        buckets=2,
    )
    with pytest.raises(StreamingQueryException) as raised:
        query.awaitTermination()
    for error in (raised.value, query.exception()):
        printed = str(error).splitlines()[: len(lines) + 2]
        for pattern, line in zip([*lines, "$", "."], printed, strict=True):
            assert re.match(pattern, line), printed


def test_what_a_function_raises_comes_first(spark: SparkSession, tmp_path: Path) -> None:
    def fail(batch: DataFrame, number: int) -> None:
        raise RuntimeError(f"the sink fails at {number}")

    orders = World(spark, tmp_path).orders()
    query = orders.write_stream(dt.to_foreach_batch(fail), checkpoint=tmp_path / "checkpoint")
    with pytest.raises(StreamingQueryException) as raised:
        query.processAllAvailable()
    first = str(raised.value).splitlines()[0]
    assert first == "orders: a micro-batch fails with RuntimeError: the sink fails at 0"


@pytest.mark.parametrize(
    ("java", "cause"),
    [
        ("org.apache.spark.SparkException: [FAILED_READ_FILE.A] No a.parquet.", "[FAILED"),
        ("java.io.IOException: No space left", "java.io.IOException: No space left"),
    ],
)
def test_an_error_of_the_jvm_in_a_function_says_what_it_is(java: str, cause: str) -> None:
    text = (
        "[STREAM_FAILED] Query terminated\nTraceback (most recent call last):\n"
        '  File "sink.py", line 1, in write\n    rows.collect()\n'
        f"py4j.protocol.Py4JJavaError: An error occurred while calling o1.collect.\n: {java}\n"
        "\tat org.apache.spark.Job"
    )
    assert cause_of(RuntimeError(text)).startswith(cause)


def _read_none(batch: DataFrame, number: int) -> None:
    pass


def _read_some(batch: DataFrame, number: int) -> None:
    batch.limit(1).collect()


@pytest.mark.parametrize("function", [_read_none, _read_some])
def test_a_function_that_leaves_changes_unread_is_named(
    spark: SparkSession, tmp_path: Path, function: Callable[[DataFrame, int], None]
) -> None:
    orders = World(spark, tmp_path).orders().materialize()
    query = orders.write_stream(
        dt.to_foreach_batch(function), checkpoint=tmp_path / "checkpoint", buckets=2
    )
    with pytest.raises(StreamingQueryException) as raised:
        query.processAllAvailable()
    for error in (raised.value, query.exception()):
        first = str(error).splitlines()[0]
        assert first.startswith(f"to_foreach_batch({function.__name__}): not all changes of a mic")
        assert first.endswith("where nothing is written, as changes.count() does.")


def test_a_failing_driver_says_where() -> None:
    """In process, too, and a batch that failed has changed nothing."""
    orders = testing.stream("orders", key="id", schema={"id": pa.int64(), "n": pa.int64()})
    driver = testing.Driver(orders.group_by("id").agg(s=dt.sum("n")))
    driver.pipe(orders, {"id": 1, "n": 2**62}, timestamp=1)
    before = driver.snapshot()
    with pytest.raises(dt.errors.DataError) as raised:
        driver.pipe(orders, [{"id": i, "n": 2**62 if i == 1 else 0} for i in range(9)], timestamp=2)
    assert raised.value.where == "stream orders; key id=1; bucket 0 of 1"
    assert driver.snapshot() == before
