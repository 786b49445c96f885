"""The current rows of a changelog in Parquet files."""

from __future__ import annotations

import random
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from parquet_rows import add_file
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import dovetail as dt

START = datetime(2024, 1, 1, tzinfo=timezone.utc)


def test_a_changelog_is_read_as_its_table(spark: SparkSession, tmp_path: Path) -> None:
    """Several micro-batches, of which each changes and deletes rows of the ones before."""
    draw, rows, number = random.Random(1), {}, 0
    columns = "word string, `a.b` int, v int, at timestamp"
    for part in range(3):
        changes = []
        for _ in range(30):
            number += 1
            key = (draw.choice("ab"), draw.randrange(6))
            value = None if draw.random() < 0.3 else number
            changes.append((*key, value, START + timedelta(seconds=number)))
            rows[key] = value
        add_file(tmp_path / "in" / str(part), changes, columns)
    reader = spark.readStream.schema(columns).option("maxFilesPerTrigger", 1)
    table = dt.Table.from_changelog(
        reader.parquet(str(tmp_path / "in" / "*")),
        key=["word", "a.b"],
        timestamp="at",
        deleted=F.col("v").isNull(),
        name="t",
    )
    out = str(tmp_path / "out")
    query = table.write_stream(
        dt.to_parquet(out),
        checkpoint=str(tmp_path / "checkpoint"),
        buckets=3,
        trigger={"availableNow": True},
    )
    query.awaitTermination()
    current = dt.read_current(spark, out)
    assert current.columns == ["word", "a.b", "v", "_timestamp"]
    found = {(row["word"], row["a.b"]): row["v"] for row in current.collect()}
    assert found == {key: value for key, value in rows.items() if value is not None}
    assert dt.read_current(spark, out, key=["word", "a.b"]).count() == len(found)


def test_a_column_with_the_name_of_micro_batches_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    reader = spark.readStream.schema("id int, _Batch int, at timestamp")
    changes = reader.parquet(str(tmp_path / "in"))
    table = dt.Table.from_changelog(changes, key="id", timestamp="at", name="t")
    written: list[Any] = [dt.to_parquet(tmp_path / "out")]
    for sinks in (written, [*written, dt.to_console()]):
        with pytest.raises(dt.errors.PlanError, match=r"column '_Batch' has a name that to_parq"):
            dt.run({table: sinks}, checkpoint=tmp_path / "checkpoint")


def test_what_is_no_changelog_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(3).write.parquet(str(tmp_path / "plain"))
    with pytest.raises(
        dt.errors.PlanError, match="has no changelog, its files have no column '_change'"
    ):
        dt.read_current(spark, str(tmp_path / "plain"))
    with pytest.raises(dt.errors.DovetailError, match=r"path=.*none' cannot be read.*to_parquet"):
        dt.read_current(spark, str(tmp_path / "none"))
