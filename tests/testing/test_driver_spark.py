"""Topologies with Spark expressions and of real frames in the driver: what it emits is what the
same topology emits over static frames.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from bench.parameters import slow_after
from bench.records import WHOLE, cut
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructType
from small_session import applied

import dovetail as dt
from dovetail import testing
from dovetail.api.topology import Topology
from dovetail.base.columns import DELETED, quoted
from dovetail.physical.inputs import Input
from dovetail.plan.nodes import Source
from dovetail.spark.execution.expressions import Evaluator

UTC = timezone.utc
HOURS = dt.windows.tumbling("1 hour", retention="1 day")


def frame_of(spark: SparkSession, columns: str, rows: Sequence[Mapping[str, Any]]) -> DataFrame:
    """Rows with their time and whether they are tombstones, in one partition."""
    frame = spark.createDataFrame(
        [tuple(row.values()) for row in rows], f"{columns}, at timestamp, gone boolean"
    )
    return frame.coalesce(1)


def rows_of(columns: Sequence[str], given: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
    """Per row its columns, then its time in seconds and, where it is one, whether a tombstone."""
    rows = []
    for one in given:
        values = dict(zip(columns, one, strict=False))
        at = datetime.fromtimestamp(one[len(columns)], UTC)
        rows.append({**values, "at": at, "gone": len(one) > len(columns) + 1})
    return rows


ORDERS_OF_ONE = rows_of(["id", "customer"], [[number, 1, number] for number in range(12)])
MOVES = rows_of(["id", "city"], [[1, city, at] for city, at in (("a", 5), ("b", 15), ("c", 16))])


def agree(
    spark: SparkSession, topology: Topology, given: Mapping[Topology, Sequence[Mapping[str, Any]]]
) -> list[testing.Change]:
    """What the driver emits, three records at a time and as one micro-batch: per key what a run
    over the static frames emits.
    """
    names = [f.name for f in topology.plan.key], [f.name for f in topology.plan.values]
    key, values = ([F.col(quoted(name)) for name in part] for part in names)
    frame = topology.changelog(buckets=2).select(
        F.struct(*key).alias("k"),
        F.struct(*values, F.lit(0)).alias("v"),
        "_change",
        F.unix_micros("_timestamp").alias("t"),
        "_position",
    )
    expected: dict[str, list[Any]] = {}
    for row in sorted(frame.collect(), key=lambda row: row["_position"]):
        value = {name: _plain(one) for name, one in zip(names[1], row["v"], strict=False)}
        emitted = expected.setdefault(repr([*map(_plain, row["k"])]), [])
        emitted.append((value, row["_change"], row["t"]))
    log = [(table, row) for table, rows in given.items() for row in rows]
    log.sort(key=lambda record: record[1]["at"])
    changes: list[testing.Change] = []
    for size, buckets in ((3, 1), (WHOLE, 2)):
        driver = testing.Driver(topology, spark=spark, buckets=buckets)
        for part in cut(log, size):
            with driver.batch():
                pipe(driver, part)
        driver.advance_stream_time(datetime(2100, 1, 1, tzinfo=UTC))
        changes = driver.read()
        found: dict[str, list[Any]] = {}
        for change in changes:
            value = dict.fromkeys(names[1]) if change.values is None else change.values
            emitted = found.setdefault(repr([*map(_plain, change.key.values())]), [])
            value = {name: _plain(one) for name, one in value.items()}
            emitted.append((value, change.change, change.timestamp_us))
        assert repr(found) == repr({key: expected[key] for key in found})
        assert found.keys() == expected.keys()
    return changes


def pipe(driver: testing.Driver, log: Sequence[tuple[Topology, Mapping[str, Any]]]) -> None:
    for table, row in log:
        values = {name: one for name, one in row.items() if name not in ("at", "gone")}
        driver.pipe(table, values, timestamp=row["at"], deleted=row["gone"])


def _plain(value: Any) -> Any:
    """Rows, maps and instants of Spark as the driver has them."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if hasattr(value, "asDict"):
        value = value.asDict()
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], tuple):
        return {name: _plain(one) for name, one in value if not hasattr(one, "asDict")}
    return [_plain(one) for one in value] if isinstance(value, list) else value


@pytest.fixture
def orders(spark: SparkSession) -> tuple[dt.Table, list[dict[str, Any]]]:
    given = [
        (1, 40, "ann", 1),
        (2, None, "bob", 2),
        (1, 50, "ann", 4),
        (3, 7, None, 5),
        (2, None, None, 8, True),
    ]
    rows = rows_of(["id", "amount", "customer"], given)
    frame = frame_of(spark, "id long, amount long, customer string", rows)
    table = dt.Table.from_changelog(frame, key="id", timestamp="at", deleted="gone", name="orders")
    return table, rows


@pytest.fixture
def payments(spark: SparkSession) -> tuple[dt.Table, list[dict[str, Any]]]:
    given = [(1, 15, 3), (4, 9, 6), (1, None, 7, True), (3, 7, 9)]
    rows = rows_of(["id", "paid"], given)
    frame = frame_of(spark, "id long, paid long", rows)
    table = dt.Table.from_changelog(
        frame, key="id", timestamp="at", deleted="gone", name="payments"
    )
    return table, rows


def test_the_readmes_topology(spark: SparkSession, tmp_path: Path) -> None:
    """As it stands there, over streams of files of which nothing is read."""
    for name in ("orders", "payments"):
        (tmp_path / name).mkdir()
    orders = dt.Table.from_changelog(
        spark.readStream.schema("id long, amount long, at timestamp, op string").json(
            f"{tmp_path}/orders"
        ),
        key="id",
        timestamp="at",
        deleted=F.col("op") == "d",
        name="orders",
    )
    payments = dt.Table.from_changelog(
        spark.readStream.schema("id long, paid long, at timestamp").json(f"{tmp_path}/payments"),
        key="id",
        timestamp="at",
        name="payments",
    )
    open_orders = orders.join(
        payments,
        how="left",
        select=["amount", (F.col("amount") - F.coalesce("paid", F.lit(0))).alias("due")],
    )
    driver = testing.Driver(open_orders, spark=spark)
    driver.pipe(orders, "time | id | amount | op\n1 | 1 | 40 | c\n2 | 2 | 7 |")
    driver.pipe(payments, "time | id | paid\n3 | 1 | 15")
    driver.pipe(orders, {"id": 2}, timestamp=4, deleted=True)
    driver.assert_changes(
        """
        time | id | amount | due | change
        1    | 1  | 40     | 40  | upsert
        2    | 2  | 7      | 7   | upsert
        3    | 1  | 40     | 25  | upsert
        4    | 2  |        |     | delete
        """
    )
    assert driver.table(open_orders) == {1: {"amount": 40, "due": 25}}
    assert driver.table(orders) == {1: {"amount": 40, "op": "c"}}
    assert driver.table(payments) == {1: {"paid": 15}}
    restored = testing.Driver.restore(open_orders, driver.snapshot(), spark=spark)
    restored.pipe(payments, {"id": 1}, timestamp=5, deleted=True)
    restored.assert_changes("time | id | amount | due\n5 | 1 | 40 | 40")


def test_without_a_session_an_expression_is_refused(orders: Any, payments: Any) -> None:
    joined = orders[0].join(payments[0], select=[(F.col("amount") + 1).alias("more")])
    with pytest.raises(
        dt.errors.PlanError, match=r"select= has a Spark expression.* Give it one with spark="
    ):
        testing.Driver(joined)
    keyed = orders[0].join(payments[0], on=F.col("amount"))
    with pytest.raises(dt.errors.PlanError, match=r"on= has a Spark expression.* spark="):
        testing.Driver(keyed)


@pytest.mark.parametrize("how", slow_after(1, ["outer", "left", "inner"]))
def test_selections_that_compute(spark: SparkSession, orders: Any, payments: Any, how: Any) -> None:
    joined = orders[0].join(
        payments[0],
        how=how,
        select={
            "customer": "customer",
            "due": F.col("amount") - F.coalesce("paid", F.lit(0)),
            "alone": F.col("left").isNull() | F.col("right").isNull(),
            "twice": F.col("right.id") * 2,
        },
    )
    changes = agree(spark, joined, dict([orders, payments]))
    assert any(change.values and change.values["due"] == 35 for change in changes)


def test_a_selection_that_others_read(spark: SparkSession, orders: Any, payments: Any) -> None:
    """A stage's changes are computed before another groups them, and so are its rows."""
    due = orders[0].join(
        payments[0],
        how="left",
        select={
            "who": F.upper("customer"),
            "due": F.col("amount") - F.coalesce("paid", F.lit(0)),
        },
    )
    totals = due.group_by("who").agg(n=dt.count(), due=dt.sum("due"))
    changes = agree(spark, totals, dict([orders, payments]))
    assert {change.key["who"] for change in changes} == {"ANN", "BOB"}
    driver = testing.Driver(totals, spark=spark)
    log = [(orders[0], row) for row in orders[1]] + [(payments[0], row) for row in payments[1]]
    pipe(driver, log)
    assert driver.table(due) == {
        1: {"who": "ANN", "due": 50},
        3: {"who": None, "due": 0},
    }
    assert driver.table(totals) == {"ANN": {"n": 1, "due": 50}}


@pytest.mark.parametrize("how", slow_after(1, ["outer", "left", "inner"]))
def test_foreign_keys_that_are_computed(
    spark: SparkSession, orders: Any, payments: Any, how: Any
) -> None:
    """A row on which the expression fails is left out and counted, as in a query."""
    joined = orders[0].join(
        payments[0],
        on=F.expr("if(amount = 7, cast('x' as long), amount - 39)"),
        how=how,
        select={"paid": "paid", "sum": F.col("amount") + F.col("paid")},
    )
    changes = agree(spark, joined, dict([orders, payments]))
    assert all(change.key["id"] != 3 for change in changes)
    driver = testing.Driver(joined, spark=spark)
    pipe(driver, [(orders[0], row) for row in orders[1]])
    assert driver.counts == {"orders.failed": 1}


def test_a_foreign_key_of_a_computed_column(
    spark: SparkSession, orders: Any, payments: Any
) -> None:
    more = orders[0].join(payments[0], how="left", select={"n": F.col("amount") - 40}, name="more")
    joined = more.join(payments[0], on=F.col("n") + 1, how="left")
    agree(spark, joined, dict([orders, payments]))


def test_windows(spark: SparkSession) -> None:
    given = [(1, "a", 1), (2, "a", 2), (3, "b", 3700), (4, "a", 3701), (5, "c", 9000)]
    clicks_rows = rows_of(["id", "page"], given)
    clicks = dt.Stream.from_changelog(
        frame_of(spark, "id long, page string", clicks_rows),
        key="id",
        timestamp="at",
        deleted="gone",
        name="clicks",
    )
    asked_rows = rows_of(["page", "n"], [("a", 5, 10), ("b", 6, 4000), ("a", 7, 5000)])
    asked = dt.Stream.from_changelog(
        frame_of(spark, "page string, n long", asked_rows),
        key="page",
        timestamp="at",
        deleted="gone",
        name="asked",
    )
    counts = clicks.group_by("page").window(HOURS).agg(n=dt.count())
    start = F.date_trunc("hour", F.timestamp_seconds(F.col("n") * 0))
    joined = asked.join(
        counts, how="left", window_of=start, select={"asked": "left.n", "found": "right.n"}
    )
    with pytest.raises(dt.errors.PlanError, match=r"window_of= has a Spark expression.* spark="):
        testing.Driver(joined)
    changes = agree(spark, joined, {clicks: clicks_rows, asked: asked_rows})
    found = {change.values["asked"]: change.values["found"] for change in changes if change.values}
    assert found == {5: 2, 6: None, 7: 2}
    assert len(changes) == 3
    latest = asked.to_table().join(
        counts,
        how="left",
        window_of=start,
        select={"twice": F.col("left.n") * 2, "found": "right.n"},
    )
    changes = agree(spark, latest, {clicks: clicks_rows, asked: asked_rows})
    assert {change.values["twice"] for change in changes if change.values} >= {12, 14}
    hours = counts.to_stream(
        key="hour",
        select={"hour": F.hour("window_start"), "text": F.concat_ws(":", "page", "n")},
    )
    totals = hours.group_by("hour").agg(last=dt.last("text"), n=dt.count())
    agree(spark, totals, {clicks: clicks_rows})


VALUES: dict[str, tuple[str, Any]] = {
    "string": ("string", "é"),
    "binary": ("binary", b"\x00"),
    "decimal": ("decimal(20,2)", Decimal("5.25")),
    "day": ("date", date(2024, 2, 29)),
    "instant": ("timestamp", datetime(2024, 2, 29, 1, 2, 3, 4, tzinfo=UTC)),
    "wall": ("timestamp_ntz", datetime(2024, 2, 29, 1, 2, 3, 4)),  # noqa: DTZ001
    "double": ("double", float("nan")),
    "floats": ("array<float>", [0.5, None]),
    "entries": ("map<string,int>", {"a": 1}),
    "a.b": (
        "struct<x: array<int>, y: timestamp>",
        {"x": [1], "y": datetime(2024, 1, 1, tzinfo=UTC)},
    ),
}


def test_changes_of_one_record_come_in_the_order_of_a_query(spark: SparkSession) -> None:
    """A customer's city is the key of all its orders, so the last one of them has the row."""
    orders, customers = (
        dt.Table.from_changelog(
            frame_of(spark, columns, rows), key="id", timestamp="at", deleted="gone", name=name
        )
        for columns, rows, name in (
            ("id long, customer long", ORDERS_OF_ONE, "orders"),
            ("id long, city string", MOVES, "customers"),
        )
    )
    joined = orders.join(customers, on="customer", select=["city"])
    moved = joined.key_by("city", duplicates="last")
    changes = agree(spark, moved, {orders: ORDERS_OF_ONE, customers: MOVES})
    assert {change.key["city"] for change in changes} == {"a", "b", "c"}


@pytest.mark.parametrize("of_table", [True, False])
def test_tombstones_have_no_values_for_a_new_key(spark: SparkSession, of_table: bool) -> None:
    """Their frame has some. The former key is there."""
    rows = rows_of(["id", "city"], [[1, "a", 1], [2, "b", 2], [1, "c", 3, True], [3, "d", 4, True]])
    frame, read = frame_of(spark, "id long, city string", rows), {"key": "id", "timestamp": "at"}
    kind = dt.Table if of_table else dt.Stream
    places: Any = kind.from_changelog(frame, **read, deleted="gone", name="places")
    stream = places.to_stream() if of_table else places
    for keyed in (
        stream.key_by("city"),
        stream.key_by("city", number="id"),
        stream.key_by(place=F.concat("city", F.col("id").cast("string"))),
        stream.key_by(half=F.col("id") / 2),
    ):
        changes = agree(spark, keyed, {places: rows})
        gone = {(*change.key.values(),) for change in changes if change.change == "delete"}
        assert gone in ({(None,)}, {(None, 1), (None, 3)}, {(0.5,), (1.5,)})


def test_a_session_that_is_withdrawn_keeps_its_bounds(spark: SparkSession) -> None:
    rows = rows_of(["id", "x"], [[1, 5, 1], [1, 6, 2], [2, 7, 3], [1, 8, 4]])
    frame = frame_of(spark, "id long, x long", rows).drop("gone")
    clicks = dt.Stream.from_changelog(frame, key="id", timestamp="at", name="clicks")
    sessions = clicks.group_by("id").window(dt.windows.session("5 seconds")).agg(n=dt.count())
    named = sessions.to_stream(windows="on_change").rename({"window_end": "until"})
    for topology in (
        named,
        named.select("n", "until", twice=F.col("n") * 2),
        named.key_by("until"),
    ):
        changes = agree(spark, topology, {clicks: rows})
        gone = [{**c.key, **(c.values or {})} for c in changes if c.change == "delete"]
        assert sorted(row["until"].second for row in gone) == [1, 2]
        assert {row.get("twice") for row in gone} == {None}


def test_values_of_every_type(spark: SparkSession, orders: Any) -> None:
    """They reach the expression and come back as they were, whatever the session's time zone."""
    columns = ", ".join(f"{quoted(name)} {type_}" for name, (type_, _) in VALUES.items())
    values = [value for _, value in VALUES.values()]
    rows = rows_of(["id", *VALUES], [[1, *values, 2], [2, *(None for _ in values), 3]])
    table = dt.Table.from_changelog(
        frame_of(spark, f"id long, {columns}", rows),
        key="id",
        timestamp="at",
        deleted="gone",
        name="everything",
    )
    same: dict[str, Any] = {
        f"{name}_{n}": F.col(f"right.{quoted(name)}") for n, name in enumerate(VALUES)
    }
    with applied(spark, {"spark.sql.session.timeZone": "America/New_York"}):
        joined = orders[0].join(
            table, select={**same, "text": F.col("right.instant").cast("string")}
        )
        changes = agree(spark, joined, {**dict([orders]), table: rows})
    assert [change.key["id"] for change in changes] == [1, 1, 2, 2]
    row = changes[0].values
    assert row is not None
    del row["text"]
    expected = {**{name: value for name, (_, value) in VALUES.items()}, "entries": [("a", 1)]}
    assert repr([*map(_plain, row.values())]) == repr([*map(_plain, expected.values())])


def test_slices_of_nested_columns_reach_spark(spark: SparkSession) -> None:
    nested = pa.table({"id": [0, 1, 2], "v": pa.array([[[0]], None, [[2], None]])})
    schema = spark.createDataFrame([], "id long, v array<array<long>>").schema
    rows = nested.append_column(DELETED, pa.array([False] * 3)).slice(1)
    source = Source(name="t", key=StructType([schema["id"]]), values=StructType([schema["v"]]))
    column = F.col("v")[0][0] + F.col("id")
    input_ = Input(source, ("id",), ((column, LongType()),))
    key, fails = Evaluator(spark).foreign_key(input_, rows)
    assert (key.to_pylist(), fails.to_pylist()) == ([None, 4], [None, None])


def test_order_is_that_of_the_records(spark: SparkSession) -> None:
    """However many rows a micro-batch has."""
    schema = {"id": pa.int64(), "n": pa.int64()}
    left, right = (testing.table(name, key="id", schema=schema) for name in ("left", "right"))
    joined = left.join(right, how="left", select={"n": F.col("left.n") * 2})
    driver = testing.Driver(joined, spark=spark)
    rows = [{"id": n * 7919 % 1000, "n": n} for n in range(25_000)]
    changes = driver.pipe(left, rows, timestamp=1)
    assert [change.values for change in changes] == [{"n": 2 * row["n"]} for row in rows]
    assert [change.position for change in changes] == [*range(25_000)]


def test_an_expression_that_fails_leaves_all_as_it_was(spark: SparkSession) -> None:
    schema = {"id": pa.int64(), "text": pa.string()}
    left, right = (testing.table(name, key="id", schema=schema) for name in ("left", "right"))
    joined = left.join(right, how="left", select={"n": F.col("left.text").cast("long")})
    driver = testing.Driver(joined, spark=spark)
    driver.pipe(left, {"id": 1, "text": "7"}, timestamp=1)
    before = driver.snapshot()
    with pytest.raises(PySparkException, match="CAST_INVALID_INPUT"):
        driver.pipe(left, [{"id": 2, "text": "8"}, {"id": 1, "text": "seven"}], timestamp=2)
    assert driver.snapshot() == before
    driver.pipe(right, {"id": 1}, timestamp=3)
    driver.assert_changes("time | id | n\n1 | 1 | 7\n3 | 1 | 7")


def test_frames_that_are_ordered_otherwise_come_as_they_are_fed(spark: SparkSession) -> None:
    """A log's positions and files' order do not count, with ``align=`` either."""
    frame = spark.createDataFrame(
        [], "id long, v long, at timestamp, place long, part int, gone boolean"
    )
    options: dict[str, Any] = {"key": "id", "timestamp": "at", "deleted": "gone"}
    for order in (
        {},
        {"sequence": "place"},
        {"sequence": "place", "log_partition": "part"},
    ):
        left, right = (
            dt.Table.from_changelog(frame, **options, **order, name=name)
            for name in ("left", "right")
        )
        chosen = {"a": "left.v", "b": "right.v"}
        driver = testing.Driver(left.join(right, select=chosen))
        driver.pipe(left, "time | id | v\n5 | 1 | 1\n3 | 1 | 2")
        driver.pipe(right, "time | id | v\n1 | 1 | 3")
        driver.assert_changes("time | id | a | b\n3 | 1 | 2 | 3")
        aligned = testing.Driver(left.join(right, select=chosen, align="1 minute"))
        aligned.pipe(left, "time | id | v\n5 | 1 | 1")
        aligned.pipe(right, "time | id | v\n4 | 1 | 3\n6 | 1 | 4")
        aligned.pipe(left, "time | id | v\n7 | 1 | 2")
        aligned.assert_changes("time | id | a | b\n5 | 1 | 1 | 3\n6 | 1 | 1 | 4")
