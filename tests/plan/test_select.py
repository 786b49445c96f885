"""What a selection means, on Spark; and a topology explained."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import dovetail as dt
from dovetail import testing
from dovetail.arrays.bucket_labels import bucket_labels


@pytest.fixture
def sides(spark: SparkSession) -> tuple[dt.Table, dt.Table]:
    left = spark.createDataFrame([(1, "a"), (2, "b")], "id long, x string")
    right = spark.createDataFrame([(2, "B"), (3, "C")], "code long, y string")
    return (
        dt.Table.from_changelog(
            left.withColumn("at", F.timestamp_seconds("id")), key="id", timestamp="at", name="left"
        ),
        dt.Table.from_changelog(
            right.withColumn("at", F.timestamp_seconds("code")),
            key="code",
            timestamp="at",
            name="right",
        ),
    )


def test_the_key_of_a_missing_side_is_null(sides: tuple[dt.Table, dt.Table]) -> None:
    left, right = sides
    joined = left.join(
        right,
        on="id",
        how="outer",
        select={"known": "left.id", "code": "right.code", "x": "x", "both": F.expr("x || y")},
    )
    rows = {row.id: row for row in joined.changelog(emit="batch").collect()}
    assert {k: (r.known, r.code, r.x, r.both) for k, r in rows.items()} == {
        1: (1, None, "a", None),
        2: (2, 2, "b", "bB"),
        3: (None, 3, None, None),
    }


def test_the_key_of_a_side_that_is_always_there_costs_no_expression(
    sides: tuple[dt.Table, dt.Table],
) -> None:
    left, right = sides
    joined = left.join(right, on="id", how="left", select={"copy": "left.id", "y": "y"})
    assert all(selected.column is None for selected in joined.plan.select)
    rows = {row.id: (row.copy, row.y) for row in joined.changelog(emit="batch").collect()}
    assert rows == {1: (1, None), 2: (2, "B")}


def test_a_selection_of_a_selection_is_one_projection_at_the_end(
    sides: tuple[dt.Table, dt.Table],
) -> None:
    left, right = sides
    once = left.join(right, on="id", how="left", select=[F.upper("x").alias("up"), "y"])
    twice = once.join(left, how="outer", select={"text": F.concat_ws("-", "up", "y", "right.x")})
    rows = {row.id: row.text for row in twice.changelog(emit="batch").collect()}
    assert rows == {1: "A-a", 2: "B-B-b"}


def test_names_may_have_dots_and_backticks(spark: SparkSession) -> None:
    def table(value: str) -> dt.Table:
        frame = spark.createDataFrame([(1, value, 0)], ["the.key", f"{value}.`value`", "at"])
        frame = frame.withColumn("at", F.timestamp_seconds("at"))
        return dt.Table.from_changelog(frame, key="the.key", timestamp="at", name=value)

    (row,) = table("a").join(table("b")).changelog().collect()
    assert (row["the.key"], row["a.`value`"], row["b.`value`"]) == (1, "a", "b")


def test_a_topology_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    a, b, c = (
        testing.table(name, key="id", schema={"id": pa.int64(), value: pa.string()})
        for name, value in (("a", "x"), ("b", "y"), ("c", "z"))
    )
    a.join(b, how="outer").join(c.join(a, select=["z"]), how="left").explain()
    assert (
        capsys.readouterr().out
        == """\
Topology
left join by key  (key id; x, y, z)
├─ outer join by key  (key id; x, y)
│  ├─ a  (key id; x)
│  └─ b  (key id; y)
└─ inner join by key  (key id; z)
   ├─ c  (key id; z)
   └─ a  (key id; x)

Stage 1
  shuffle  a, b, c by key (id bigint)
  state    a: last row per key
           b: last row per key
           c: last row per key
"""
    )


@pytest.mark.parametrize("partitions", [1, 2, 3, 5, 12, 200])
def test_buckets_are_spread_evenly(spark: SparkSession, partitions: int) -> None:
    """By labels that say nothing of partitions, so that state is found again under others."""
    labels = bucket_labels(300)
    labelled = spark.createDataFrame([(n,) for n in labels], "bucket int")
    placed = labelled.select(F.pmod(F.hash("bucket"), F.lit(partitions))).collect()
    assert [row[0] for row in placed] == [bucket % partitions for bucket in range(300)]


def test_windows_are_explained(capsys: pytest.CaptureFixture[str]) -> None:
    views = testing.stream("views", key="user", schema={"user": pa.int64(), "page": pa.string()})
    pages = testing.table("pages", key="page", schema={"page": pa.string(), "title": pa.string()})
    hours = views.group_by("page").window(dt.windows.tumbling("1 hour", retention="8 days"))
    counts = hours.agg(n=dt.count())
    before = {"n": "left.n", "before": "right.n"}
    trend = counts.join(counts, how="left", shift="-7 days", select=before, name="trend")
    trend.join(pages, how="left", name="named").to_table(windows="on_close").explain()
    assert (
        capsys.readouterr().out
        == """\
Topology
windows as a table, each window once, when it is closed  (key page, window_start, window_end; n, \
before, title)
└─ left join of windows with their key's row  (key page, window_start, window_end; n, before, title)
   ├─ left join of windows with those 7 days earlier  (key page, window_start, window_end; n, \
before)
   │  ├─ aggregate by page, windows tumbling, 1 hour, grace 0 s  (key page, window_start, \
window_end; n)
   │  │  └─ views  (key user; page)
   │  └─ aggregate by page, windows tumbling, 1 hour, grace 0 s  (key page, window_start, \
window_end; n)
   │     └─ views  (key user; page)
   └─ pages  (key page; title)

Stage 1
  shuffle  views, pages by (page string)
  state    1. groups: accumulators per key and window, until it is closed
           2. aggregate of views by page: foreign key per key
           3. subscriptions: aggregate of views by page, last row per foreign key and key
           3. right: aggregate of views by page, rows per key and window, for 8 days
           5. trend: foreign key per key
           6. subscriptions: trend, last row per foreign key and key
           6. right: pages, last row per key
           8. open: last row per key and window, until it is closed
           8. closing: when each window closes
"""
    )


def test_a_grouped_table_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    pages = testing.table("pages", key="page", schema={"page": pa.string(), "title": pa.string()})
    pages.group_by("title").agg(n=dt.count()).explain()
    assert (
        capsys.readouterr().out
        == """\
Topology
aggregate by title  (key title; n)
└─ pages  (key page; title)

Stage 1
  shuffle  pages by key (page string)
  state    pages: last row per key, of it what is aggregated

Stage 2
  shuffle  pages by group (title string)
  state    groups: accumulators per key
"""
    )
