"""What a checkpoint holds is found again, belongs to one topology, and is bound to it at once."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

import dovetail as dt

ROWS = pa.schema(
    [("k", pa.int64()), ("v", pa.string()), ("n", pa.int64()), ("t", pa.timestamp("us", "UTC"))]
)


def write(folder: Path, number: int, rows: Sequence[tuple[Any, ...]]) -> None:
    """A file of rows, the ``number``-th to be read."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{number:04}.parquet"
    columns = [list(column) for column in zip(*rows, strict=True)]
    pq.write_table(pa.table(columns, schema=ROWS), path)
    os.utime(path, (number + 1, number + 1))


def read(spark: SparkSession, folder: Path) -> DataFrame:
    folder.mkdir(parents=True, exist_ok=True)
    return spark.readStream.schema("k long, v string, n long, t timestamp").parquet(str(folder))


@pytest.fixture
def session(spark: SparkSession) -> Iterator[SparkSession]:
    """The session, whose settings are its own again afterwards."""
    before = dict(spark.conf.getAll)
    yield spark
    for name in dt.settings(partitions=1):
        spark.conf.set(name, before[name]) if name in before else spark.conf.unset(name)


@pytest.mark.parametrize(("first", "then"), [(2, 4), (4, 2), (8, 200)])
def test_state_is_found_again_under_other_shuffle_partitions(
    session: SparkSession, tmp_path: Path, first: int, then: int
) -> None:
    """Spark keeps a checkpoint's number of partitions, whatever the session says later."""
    users = dt.Table.from_changelog(
        read(session, tmp_path / "users"), key="k", timestamp="t", name="users"
    )
    clicks = dt.Stream.from_df(
        read(session, tmp_path / "clicks"), key="k", timestamp="t", name="clicks"
    )
    found = clicks.join(users, how="left", select={"v": "right.v"})

    def run(partitions: int) -> None:
        for name, value in dt.settings(partitions=partitions).items():
            session.conf.set(name, value)
        writer = found.changelog().writeStream.format("parquet").outputMode("append")
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start(str(tmp_path / "out")).awaitTermination()

    write(tmp_path / "users", 0, [(k, f"user {k}", 0, 0) for k in range(40)])
    write(tmp_path / "clicks", 0, [(99, "", 0, 0)])
    run(first)
    write(tmp_path / "clicks", 1, [(k, "", 0, 1) for k in range(40)])
    run(then)
    rows = session.read.parquet(str(tmp_path / "out")).orderBy("k").select("k", "v").collect()
    assert [tuple(row) for row in rows] == [*((k, f"user {k}") for k in range(40)), (99, None)]


def bound(folder: Path, topology: dt.Table | dt.Stream, **options: Any) -> None:
    """Run all there is, with the checkpoint of the folder."""
    sink = options.pop("sink", dt.to_parquet(str(folder / "out")))
    options = {"trigger": "available now", "buckets": 2} | options
    checkpoint = str(folder / "checkpoint")
    topology.write_stream(sink, checkpoint=checkpoint, **options).awaitTermination()


def tables(spark: SparkSession, folder: Path, *names: str | None) -> list[dt.Table]:
    """Tables over a folder each, with the columns of ``ROWS``."""
    return [
        dt.Table.from_changelog(
            read(spark, folder / f"table{number}"), key="k", timestamp="t", name=name
        )
        for number, name in enumerate(names)
    ]


def test_another_expression_under_an_aggregate_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Its total would be of rows by the one and rows by the other."""
    write(tmp_path / "table0", 0, [(1, "a", 100, 0)])
    write(tmp_path / "table1", 0, [(1, "x", 0, 0)])

    def total(net: Column) -> dt.Table:
        orders, items = tables(spark, tmp_path, "orders", "items")
        joined = orders.join(items, select={"net": net, "kind": "right.v"})
        return joined.group_by("kind").agg(total=dt.sum("net"))

    bound(tmp_path, total(F.col("left.n") * 1.25))
    write(tmp_path / "table0", 1, [(1, "a", 200, 1)])
    message = r"plan.of.result.select was .* \* 1.25D\).* and is .* \* 2.0D\)"
    with pytest.raises(dt.CheckpointError, match=message):
        bound(tmp_path, total(F.col("left.n") * 2.0))
    bound(tmp_path, total(F.col("left.n") * 1.25))
    rows = spark.read.parquet(str(tmp_path / "out")).orderBy("_timestamp", "_position")
    assert [row["total"] for row in rows.collect()][-1] == 250.0


def test_another_last_selection_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    """Rows that were written before stay as they are; all that is stored is still there."""
    write(tmp_path / "table0", 0, [(1, "a", 100, 0), (2, "b", 200, 0)])
    write(tmp_path / "table1", 0, [(1, "x", 1, 0), (2, "y", 2, 0)])

    def told(select: Any) -> list[tuple[Any, ...]]:
        orders, items = tables(spark, tmp_path, "orders", "items")
        rows: list[tuple[Any, ...]] = []
        sink = dt.to_function(lambda batch, _: rows.extend(map(tuple, batch.collect())))
        bound(tmp_path, orders.join(items, select=select), sink=sink)
        return sorted(row[: -len(("_change", "_timestamp", "_position"))] for row in rows)

    assert told({"v": "left.v"}) == [(1, "a"), (2, "b")]
    write(tmp_path / "table1", 1, [(1, "xx", 3, 1)])
    assert told({"sum": F.col("left.n") + F.col("right.n"), "v": "left.v"}) == [(1, 103, "a")]
    write(tmp_path / "table0", 1, [(2, "bb", 300, 1)])
    assert told(["right.v"]) == [(2, "y")]


def test_sides_that_change_places_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    chosen = {"x": "left.v", "y": "right.v"}
    write(tmp_path / "table0", 0, [(1, "a", 0, 0)])
    a, b = tables(spark, tmp_path, "a", "b")
    bound(tmp_path, a.join(b, how="outer", select=chosen))
    with pytest.raises(dt.CheckpointError, match=r'left.table was "a" and is "b"; .*right.table'):
        bound(tmp_path, b.join(a, how="outer", select=chosen))
    unnamed, other = tables(spark, tmp_path, None, None)
    joined = unnamed.join(other, how="outer", select=chosen)
    with pytest.raises(dt.PlanError, match=r"tell them apart. Give each a name of its own"):
        bound(tmp_path / "unnamed", joined)
    with pytest.raises(dt.PlanError, match=r"table table\[k\]: another one has the same name"):
        joined.changelog()
