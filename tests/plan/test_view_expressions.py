"""Views with expressions: what they see, what is refused, other keys."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from timed_files import timed_file

import dovetail as dt
from dovetail import testing
from dovetail.physical.explain import explain

ORDERS = {"id": pa.int64(), "city": pa.string(), "amount": pa.int64()}


def orders() -> dt.Table:
    return testing.table("orders", key="id", schema=ORDERS)


def drawn(seed: int) -> list[tuple[dict[str, Any], int, bool]]:
    random_ = random.Random(seed)
    return [
        (
            {
                "id": random_.randint(1, 4),
                "city": random_.choice(["Oslo", "Bergen", None]),
                "amount": random_.choice([None, 1, 5, 20]),
            },
            random_.randint(0, 20),
            random_.random() < 0.2,
        )
        for _ in range(40)
    ]


@pytest.mark.slow
def test_the_view_of_a_changelog_is_the_changelog_of_the_view(spark: SparkSession) -> None:
    """Chained, with expressions, at every micro-batch."""
    table = orders()
    view = (
        table.with_columns(amount=F.coalesce("amount", F.lit(0)), hour=F.minute("_timestamp"))
        .where((F.col("amount") > 1) & F.col("city").isNotNull())
        .select("id", place=F.upper("city"), twice=F.col("amount") * 2)
        .rename({"id": "number"})
    )
    driver = testing.Driver(view, spark=spark)
    rows: dict[int, Any] = {}
    made: dict[int, Any] = {}
    ops = drawn(1)
    for start in range(0, len(ops), 10):
        with driver.batch() as changes:
            for row, time, deleted in ops[start : start + 10]:
                driver.pipe(table, row, timestamp=time, deleted=deleted)
                rows[row["id"]] = None if deleted else row
        for change in changes:
            made[change.key["number"]] = change.values
        expected = {
            key: {"place": row["city"].upper(), "twice": (row["amount"] or 0) * 2}
            for key, row in rows.items()
            if row and (row["amount"] or 0) > 1 and row["city"]
        }
        assert {key: row for key, row in made.items() if row} == expected


def test_a_tombstone_is_not_computed_with(spark: SparkSession) -> None:
    """Nor is a row that does not meet the condition: neither fails."""
    table = orders()
    view = table.where("amount > 0").select(share=F.lit(100) / F.col("amount"))
    driver = testing.Driver(view, spark=spark)
    driver.pipe(table, {"id": 1, "amount": 50}, timestamp=1)
    driver.pipe(table, {"id": 1, "amount": 0}, timestamp=2)
    driver.pipe(table, {"id": 1, "amount": 0}, timestamp=3, deleted=True)
    assert [c.values for c in driver.read()] == [{"share": 2.0}, None]


def last_by_key(rows: dict[int, tuple[int, Any]]) -> dict[Any, Any]:
    """Of the rows of each city the one that came last."""
    found: dict[Any, Any] = {}
    for _, row in sorted(rows.values(), key=lambda one: one[0]):
        if row["city"] is not None:
            found[row["city"]] = {"id": row["id"], "amount": row["amount"]}
    return found


def test_a_table_under_another_key(spark: SparkSession) -> None:
    """Of several rows the last one that came stands for all, as they come and go."""
    table = orders()
    driver = testing.Driver(table.key_by("city", duplicates="last"), spark=spark)
    rows: dict[int, tuple[int, Any]] = {}
    made: dict[Any, Any] = {}
    for place, (row, time, deleted) in enumerate(drawn(2)):
        for change in driver.pipe(table, row, timestamp=time, deleted=deleted):
            made[change.key["city"]] = change.values
        rows.pop(row["id"], None)
        if not deleted:
            rows[row["id"]] = (place, row)
        assert {key: row for key, row in made.items() if row} == last_by_key(rows)


def test_deletes_under_another_key(spark: SparkSession) -> None:
    """A deleted row is a record without a value, also where the former key is among the values."""
    table = orders()
    records = table.to_stream().key_by(place=F.upper("city"), errors="dead_letter")
    assert "key by upper(city)" in explain(records.plan)
    driver = testing.Driver(records, spark=spark)
    driver.pipe(table, {"id": 1, "city": "Oslo", "amount": 5}, timestamp=1)
    driver.pipe(table, {"id": 1}, timestamp=2, deleted=True)
    driver.pipe(table, {"id": None, "city": "Oslo", "amount": 5}, timestamp=3)
    found = [(change.change, change.key, change.timestamp_us) for change in driver.read()]
    assert found == [("upsert", {"place": "OSLO"}, 1), ("delete", {"place": None}, 2)]
    assert driver.dropped == 1


def test_rows_under_one_key_fail(spark: SparkSession) -> None:
    table = orders()
    driver = testing.Driver(table.key_by(place=F.lower("city")), spark=spark)
    driver.pipe(table, {"id": 1, "city": "Oslo", "amount": 1}, timestamp=1)
    driver.pipe(table, {"id": 1, "city": "OSLO", "amount": 2}, timestamp=2)
    assert [(c.key, c.values) for c in driver.read()] == [
        ({"place": "oslo"}, {"id": 1, "city": "Oslo", "amount": 1}),
        ({"place": "oslo"}, {"id": 1, "city": "OSLO", "amount": 2}),
    ]
    problem = "key_by of orders: several rows have the key place='oslo'"
    with pytest.raises(dt.errors.DataError, match=problem):
        driver.pipe(table, {"id": 2, "city": "oslo", "amount": 1}, timestamp=3)


def test_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    """Views before and after a join and an aggregate, with expressions; a restart in between."""
    (tmp_path / "in").mkdir()
    schema = "id long, city string, amount long, at timestamp, op string"
    frame = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
    table = dt.Table.from_changelog(
        frame.json(str(tmp_path / "in")),
        key="id",
        timestamp="at",
        deleted=F.col("op") == "d",
        name="orders",
    )
    large = table.where("amount >= 10").with_columns(place=F.lower("city"))
    totals = large.group_by("place").agg(total=dt.sum("amount")).where("total > 20")
    answers: list[tuple[Any, ...]] = []

    def collect(changes: Any, _: int) -> None:
        rows = changes.orderBy("_position").collect()
        answers.extend((r["place"], r["total"], r["half"], r["_change"]) for r in rows)

    batches = [
        ['{"id": 1, "city": "Oslo", "amount": 15, "at": "2024-05-01T10:00:00Z", "op": "c"}'],
        [
            '{"id": 2, "city": "OSLO", "amount": 10, "at": "2024-05-01T10:01:00Z", "op": "c"}',
            '{"id": 3, "city": "Oslo", "amount": 5, "at": "2024-05-01T10:02:00Z", "op": "c"}',
        ],
        ['{"id": 1, "city": "Oslo", "amount": 9, "at": "2024-05-01T10:03:00Z", "op": "u"}'],
    ]
    for number, lines in enumerate(batches):
        with timed_file(tmp_path / "in" / f"{number}.json", number) as file:
            file.write_text("\n".join(lines))
        if number == 0:
            continue
        totals.select("total", half=F.col("total") / 2).write_stream(
            dt.to_foreach_batch(collect),
            checkpoint=tmp_path / "checkpoint",
            trigger={"availableNow": True},
        ).awaitTermination()
    assert answers == [("oslo", 25, 12.5, "upsert"), ("oslo", None, None, "delete")]


def test_what_is_refused(spark: SparkSession) -> None:
    table = orders()
    assert isinstance(spark, SparkSession)
    with pytest.raises(dt.errors.PlanError, match="condition= is of type bigint, not boolean"):
        table.where("amount")
    with pytest.raises(dt.errors.PlanError, match="does not resolve"):
        table.where("amount >")
    with pytest.raises(dt.errors.PlanError, match="a key column"):
        table.drop("id")
    with pytest.raises(dt.errors.PlanError, match="would replace a key column"):
        table.with_columns(id=F.lit(1))
    with pytest.raises(dt.errors.PlanError, match="no session to evaluate it"):
        testing.Driver(table.where("amount > 1"))
    stream = testing.stream("s", key="id", schema=ORDERS)
    other = testing.stream("o", key="id", schema={"id": pa.int64(), "city": pa.string()})
    with pytest.raises(dt.errors.PlanError, match="one of streams, o, has key"):
        stream.union(other)


def _timed(spark: SparkSession, rows: list[tuple[int, int, int]]) -> Any:
    frame = spark.createDataFrame(rows, "id long, amount long, at long").coalesce(1)
    return frame.selectExpr("id", "amount", "timestamp_seconds(at) AS at")


@pytest.mark.parametrize("windowed", [False, True])
def test_a_row_that_is_left_out_goes_by_its_own_time(windowed: bool, spark: SparkSession) -> None:
    """A stream's record finds the row that the table had before, in the same micro-batch."""
    options: dict[str, Any] = {"key": "id", "timestamp": "at"}
    table = dt.Table.from_changelog(_timed(spark, [(1, 5, 10), (1, 0, 20)]), name="t", **options)
    stream = dt.Stream.from_changelog(_timed(spark, [(1, 0, 15), (1, 0, 25)]), name="s", **options)
    joined = stream.join(table.where("amount > 0"), how="left", select={"found": "right.amount"})
    if windowed:
        counts = joined.group_by("found").window(dt.windows.tumbling("1 s")).agg(n=dt.count())
        changes = counts.to_table().changelog(emit="batch", buckets=1)
        rows = changes.orderBy("window_start").collect()
    else:
        rows = joined.changelog(buckets=1).orderBy("_timestamp").collect()
    assert [row.found for row in rows] == ([5] if windowed else [5, None])  # no group is null


_FAR_US = 32_503_680_000  # the year 3000, in seconds


@pytest.mark.parametrize("timed", [False, True])
def test_a_row_that_is_left_out_leaves_a_group_at_its_own_time(
    timed: bool, spark: SparkSession
) -> None:
    """A row far ahead of the others does not hold up those behind it, whether anything goes by
    stream time or not.
    """
    options: dict[str, Any] = {"timestamp": "at"}
    rows = [(1, 5, 10), (2, 0, _FAR_US), (1, 0, 20), (3, 7, 21)]
    table = dt.Table.from_changelog(_timed(spark, rows), name="t", key="id", **options)
    groups = table.where("amount > 0").with_columns(g=F.expr("id % 2"))
    asks = [(1, 0, 5), (1, 0, 15), (1, 0, 25)]
    stream = dt.Stream.from_changelog(_timed(spark, asks), name="s", key="id", **options)
    counts = groups.group_by("g").agg(n=dt.count())
    joined = stream.join(counts, on="id", how="left", select={"n": "right.n"})
    if timed:
        windows = joined.with_columns(g=F.lit(1)).group_by("g").window(dt.windows.tumbling("10 s"))
        made = windows.agg(total=dt.sum("n")).to_table()
        found = made.changelog(emit="batch", buckets=1).orderBy("window_start").collect()
        assert [row.total or 0 for row in found] == [0, 1, 1]
        return
    found = joined.changelog(buckets=2).orderBy("_timestamp").collect()
    assert [row.n or 0 for row in found] == [0, 1, 1]


@pytest.mark.parametrize("align", [None, "1 min"])
def test_a_row_that_is_left_out_and_far_ahead_holds_up_nothing(
    align: str | None, spark: SparkSession
) -> None:
    rows = [(2, 1, 8), (1, 5, 10), (2, 0, _FAR_US), (1, 6, 20), (1, 0, 30), (3, 1, 50)]
    options: dict[str, Any] = {"key": "id", "timestamp": "at"}
    table = dt.Table.from_changelog(_timed(spark, rows), name="t", **options)
    asks = [(1, 0, 15), (2, 0, 16), (1, 0, 25), (1, 0, 35), (2, 0, 45)]
    stream = dt.Stream.from_changelog(_timed(spark, asks), name="s", **options)
    where = table.where("amount > 0")
    joined = stream.join(where, how="left", select={"found": "right.amount"}, align=align)
    found = joined.changelog(buckets=2).orderBy("_timestamp").collect()
    assert [row.found for row in found] == [5, 1, 6, None, None]
