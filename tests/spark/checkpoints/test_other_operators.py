"""Checkpoints of queries whose sources have operators of Spark's own with state."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest
from parquet_rows import rows_of
from pyspark.sql import DataFrame, SparkSession
from timed_files import timed_file

import dovetail as dt
from dovetail.spark.checkpoint_doctor import checkpoint_report
from dovetail.spark.checkpoints.local_state import LocalFiles
from dovetail.spark.checkpoints.spark_files import SparkFiles

COLUMNS = "id int, n int, at timestamp"


Read: TypeAlias = Callable[[], DataFrame]


def joined(read: Read) -> DataFrame:
    left, right = (read().withWatermark("at", "1 hour") for _ in range(2))
    return left.join(right, ["id", "n", "at"])


CASES: dict[str, tuple[str, Callable[[Read], DataFrame], Callable[[Read], DataFrame]]] = {
    "dedupe": ("Deduplicate", lambda read: read().dropDuplicates(["id", "n"]), lambda read: read()),
    "symmetricHashJoin": ("Join", joined, lambda read: read().union(read().where("false"))),
}
"""By Spark's name of an operator with state: its step in a plan, a frame with it, and one without
it that reads as many sources."""


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_their_state_is_passed_over(spark: SparkSession, tmp_path: Path, name: str) -> None:
    step, source, without = CASES[name]
    pytest.importorskip("rocksdict")
    checkpoint = str(tmp_path / "checkpoint")

    def read() -> DataFrame:
        stream = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1)
        return stream.json(str(tmp_path / "orders"))

    def write(number: int, *orders: tuple[int, int]) -> None:
        rows = [{"id": i, "n": n, "at": f"2026-01-01T00:0{number}:00Z"} for i, n in orders]
        with timed_file(tmp_path / "orders" / f"{number}.json", number) as path:
            path.write_text("\n".join(map(json.dumps, rows)))

    def table_of(frame: DataFrame) -> dt.Table:
        return dt.Table.from_changelog(frame, key="id", timestamp="at", name="orders")

    def table() -> dt.Table:
        return table_of(source(read)).materialize()

    def run(checkpoint: str, topology: dt.Table, out: str) -> list[tuple[int, int | None]]:
        topology.write_stream(
            dt.to_parquet(tmp_path / out),
            checkpoint=checkpoint,
            trigger={"availableNow": True},
            buckets=2,
        ).awaitTermination()
        return [(row["id"], row["n"]) for row in rows_of(tmp_path / out, "_timestamp", "id")]

    write(0, (1, 5), (2, 6))
    run(checkpoint, table(), "old")
    write(1, (1, 7))
    run(checkpoint, table(), "old")
    by_spark = SparkFiles(spark, checkpoint).committed_batches("test")
    assert by_spark == LocalFiles(Path(checkpoint)).committed_batches("test")
    assert by_spark is not None
    assert ([o.number for o in by_spark.operators], by_spark.others) == ([0], (name,))
    assert checkpoint_report(checkpoint).missing == ()
    rows = dt.checkpoints.read_state(spark, checkpoint, "orders").select("id", "n").collect()
    assert sorted(map(tuple, rows)) == [(1, 7), (2, 6)]
    found = dt.checkpoints.lookup_state(checkpoint, "orders", keys=[1])
    assert found.select(["id", "n"]).to_pylist() == [{"id": 1, "n": 7}]
    new = str(tmp_path / "new")
    for dry_run in (True, False):
        with pytest.raises(dt.errors.PlanError, match=rf"state of Spark's own \({step}\)"):
            dt.checkpoints.upgrade(spark, checkpoint, new, table(), dry_run=dry_run)
    few = table_of(without(read)).where("n > 6").materialize()
    with pytest.warns(dt.errors.DovetailWarning, match=rf"state of Spark's own \({name}\)"):
        steps = dt.checkpoints.upgrade(spark, checkpoint, new, few).collect()
    assert [tuple(row) for row in steps] == [(1, "orders", "with the rows of orders")]
    write(2, (2, 8), (3, 4))
    assert run(new, few, "few") == [(2, 8)]
    run(checkpoint, table(), "old")
    dt.checkpoints.rewind(spark, checkpoint, batch=by_spark.last)
    rows = dt.checkpoints.read_state(spark, checkpoint, "orders").select("id", "n").collect()
    assert sorted(map(tuple, rows)) == [(1, 7), (2, 6)]
    assert run(checkpoint, table(), "again") == [(2, 8), (3, 4)]
