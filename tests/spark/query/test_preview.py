"""The first rows of tables and streams, over static frames and over streaming ones."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import dovetail as dt

ORDERS = "id long, customer string, amount long, at timestamp, gone boolean"
SECOND = "2024-05-01T10:00:{:02d}Z"


def static(spark: SparkSession, *rows: tuple[int, str, int, int]) -> DataFrame:
    frame = spark.createDataFrame([*rows], "id long, customer string, amount long, n long")
    return frame.selectExpr("id", "customer", "amount", "timestamp_micros(n) AS at")


def live(spark: SparkSession, folder: Path, *files: list[tuple[int, str, int]]) -> DataFrame:
    """Files of orders, a second apart, and the stream that reads them."""
    (folder / "orders").mkdir()
    second = 0
    for number, rows in enumerate(files):
        lines = []
        for row in rows:
            second += 1
            order = dict(zip(("id", "customer", "amount"), row, strict=True))
            lines.append(json.dumps({**order, "at": SECOND.format(second), "gone": row[2] < 0}))
        (folder / "orders" / f"{number}.json").write_text("\n".join(lines))
    return spark.readStream.schema(ORDERS).json(str(folder / "orders"))


def table(frame: DataFrame, **options: Any) -> dt.Table:
    return dt.Table.from_changelog(frame, key="id", timestamp="at", name="orders", **options)


def test_a_table_shows_its_current_rows_by_key(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    orders = table(static(spark, (2, "bob", 7, 1), (1, "ann", 40, 2), (2, "bob", 9, 3)))
    orders.show()
    assert capsys.readouterr().out == (
        "time | id | customer | amount\n"
        "2    | 1  | ann      | 40\n"
        "3    | 2  | bob      | 9\n"
        "2 rows of orders\n"
    )
    orders.where("amount > 100").show()
    assert capsys.readouterr().out.splitlines()[1:] == ["no rows of orders"]


def test_a_join_and_an_aggregate_show_theirs(spark: SparkSession) -> None:
    orders = table(static(spark, (1, "ann", 40, 1), (2, "bob", 7, 2), (3, "ann", 2, 3)))
    totals = orders.group_by("customer").agg(total=dt.sum("amount"))
    assert [(r["customer"], r["total"]) for r in totals.preview()] == [("ann", 42), ("bob", 7)]
    joined = orders.join(totals, on="customer", select=["amount", "total"])
    first = joined.preview(2)
    assert len(first) == 2
    assert first.to_pandas()[["id", "amount", "total"]].values.tolist() == [[1, 40, 42], [2, 7, 7]]
    assert repr(first).endswith(
        "the first 2 rows of inner join of orders and "
        "aggregate of orders by customer; there are more"
    )


def test_streams_and_windows_show_rows_with_time(spark: SparkSession) -> None:
    frame = static(spark, (1, "ann", 40, 1), (2, "bob", 7, 2), (3, "ann", 2, 3))
    clicks = dt.Stream.from_changelog(frame, key="id", timestamp="at", name="clicks")
    assert repr(clicks.where("amount > 5").preview()).splitlines()[:3] == [
        "time | id | customer | amount",
        "1    | 1  | ann      | 40",
        "2    | 2  | bob      | 7",
    ]
    whole = clicks.select("amount", tenth=F.expr("40 / (amount - 7)"), errors="dead_letter")
    kept = whole.expect("amount > 5", on_fail="dead_letter")
    assert [(row["id"], row["amount"]) for row in whole.preview()] == [(1, 40), (3, 2)]
    assert [(row["id"], row["amount"]) for row in kept.preview()] == [(1, 40)]
    window = dt.windows.tumbling("1 hour")
    hours = clicks.group_by("customer").window(window).agg(n=dt.count())
    assert [(row["customer"], row["n"]) for row in hours.preview()] == [("ann", 2), ("bob", 1)]


def test_first_rows_of_files_are_read_in_their_order(spark: SparkSession, tmp_path: Path) -> None:
    files = [(1, "ann", 40), (2, "bob", 7)], [(1, "ann", 55)], [(2, "bob", -1), (3, "cat", 1)]
    orders = table(live(spark, tmp_path, *files), deleted="gone")
    assert repr(orders.preview()) == (
        "time                 | id | customer | amount\n"
        "2024-05-01T10:00:03Z | 1  | ann      | 55\n"
        "2024-05-01T10:00:05Z | 3  | cat      | 1\n"
        "2 rows of orders\n"
        "read: all 5 rows of orders"
    )
    changes = orders.preview(3, changes=True, input_rows=4)
    assert [row["_change"] for row in changes] == ["upsert"] * 3
    assert repr(changes).splitlines()[-2:] == [
        "the first 3 changes of orders; there are more",
        "read: the first 4 rows of orders",
    ]
    totals = orders.group_by("customer").agg(total=dt.sum("amount")).preview()
    assert [(row["customer"], row["total"]) for row in totals] == [("ann", 55), ("cat", 1)]


def test_a_live_table_joins_a_static_one(spark: SparkSession, tmp_path: Path) -> None:
    orders = table(live(spark, tmp_path, [(1, "ann", 40)], [(2, "bob", 7)]).drop("gone"))
    cities = dt.Table.from_static(
        spark.createDataFrame([("ann", "Oslo")], "name string, city string"), key="name"
    )
    joined = orders.join(cities, on="customer", how="left", select=["amount", "city"])
    assert [(row["id"], row["city"]) for row in joined.preview()] == [(1, "Oslo"), (2, None)]


def test_nothing_of_a_users_checkpoint_is_touched(spark: SparkSession, tmp_path: Path) -> None:
    orders = table(live(spark, tmp_path, [(1, "ann", 40)]).drop("gone"))
    name = "spark.sql.streaming.checkpointLocation"
    spark.conf.set(name, str(tmp_path / "checkpoints"))
    try:
        assert len(orders.preview()) == 1
    finally:
        spark.conf.unset(name)
    assert not (tmp_path / "checkpoints").exists()
    assert not spark.streams.active


def test_an_empty_input_is_told(spark: SparkSession, tmp_path: Path) -> None:
    orders = table(live(spark, tmp_path).drop("gone"))
    assert repr(orders.preview()).splitlines() == [
        "time | id | customer | amount",
        "no rows of orders",
        "read: no row of orders, it has none now",
    ]


def test_of_an_endless_source_the_first_rows_are_enough(spark: SparkSession) -> None:
    frame = spark.readStream.format("rate").option("rowsPerSecond", 100).load()
    ticks = dt.Stream.from_changelog(frame, key="value", timestamp="timestamp", name="ticks")
    first = ticks.preview(2)
    assert len(first) == 2
    assert first.notes[1].startswith("read: the first ")


def test_what_fails_is_named(spark: SparkSession, tmp_path: Path) -> None:
    frame = live(spark, tmp_path, [(1, "ann", 40)])
    broken = frame.withColumn("amount", F.raise_error(F.lit("no such amount")).cast("long"))
    with pytest.raises(dt.errors.ConfigurationError) as caught:
        table(broken).preview()
    assert str(caught.value).startswith("preview: table orders cannot be read: ")
    assert "no such amount" in str(caught.value)
    assert not spark.streams.active


def test_a_result_that_takes_long_is_given_up(spark: SparkSession) -> None:
    @F.udf("long")
    def slow(amount: int) -> int:
        time.sleep(60)
        return amount

    clicks = dt.Stream.from_changelog(
        static(spark, (1, "ann", 40, 1)), key="id", timestamp="at", name="clicks"
    )
    started = time.monotonic()
    with pytest.raises(dt.errors.ConfigurationError) as caught:
        clicks.select(amount=slow("amount")).preview(timeout_s=1)
    assert time.monotonic() - started < 20
    assert str(caught.value) == (
        "preview: clicks was not computed within 1 s. See that its source can be "
        "reached, or give more time by timeout_s=."
    )


def test_a_broker_out_of_reach_is_named(spark: SparkSession) -> None:
    orders = dt.Table.from_topic(spark, "orders", servers="localhost:1", value="string")
    started = time.monotonic()
    with pytest.raises(dt.errors.ConfigurationError) as caught:
        orders.preview(timeout_s=1)
    assert time.monotonic() - started < 20
    assert str(caught.value).startswith("preview: table orders gave no row within 1 s. ")


def test_what_a_query_has_written_is_shown(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = live(spark, tmp_path, [(1, "ann", 40), (1, "ann", 41)], [(1, "ann", -1)])
    query = table(frame, deleted="gone").write_stream(
        dt.to_memory("looked_at"), checkpoint=tmp_path / "checkpoint", buckets=1
    )
    query.processAllAvailable()
    lines = ["Query[orders; running]", f"  id {query.id}", "  micro-batch 0: 3 rows read"]
    assert repr(query).splitlines() == lines
    query.stop()
    assert repr(query).startswith("Query[orders; ended]")
    assert query._repr_html_().startswith(  # type: ignore[attr-defined]
        f"<strong>Query[orders; ended]</strong>\n<div>id {query.id}</div>"
    )
    assert query._repr_html_().count('<g class="dt-node dt-sink">') == 1  # type: ignore[attr-defined]
    dt.explain(query)
    assert capsys.readouterr().out.endswith("\nSinks\n  orders → to_memory('looked_at')\n")
    with pytest.raises(dt.errors.PlanError, match="a query is given with other arguments"):
        dt.explain(query, table(frame))
    assert repr(dt.preview(spark.table("looked_at"), 2)) == (
        "time                 | id | customer | amount | change\n"
        "2024-05-01T10:00:01Z | 1  | ann      | 40     | upsert\n"
        "2024-05-01T10:00:02Z | 1  | ann      | 41     | upsert\n"
        "the first 2 changes; there are more"
    )
    assert dt.preview(spark.table("looked_at")).rows[2]["_change"] == "delete"


def test_html_escapes_what_it_shows(spark: SparkSession) -> None:
    rows = spark.createDataFrame([(1, "<b>\x1b[31m", 2)], "id long, `a<i>` string, n long")
    rows = rows.selectExpr("id", "`a<i>`", "timestamp_micros(n) AS at")
    orders = dt.Table.from_changelog(rows, key="id", timestamp="at", name="o<p>")
    shown = orders.preview()._repr_html_()
    assert "<th>a&lt;i&gt;</th>" in shown
    assert "<td>&quot;&lt;b&gt;\\u001b[31m&quot;</td>" in shown
    assert "<div>1 row of o&lt;p&gt;</div>" in shown
