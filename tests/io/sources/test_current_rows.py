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


@pytest.mark.parametrize("selections", [(["v"], ["v", "w"]), (["v", "w"], ["v"])])
def test_a_query_may_go_on_with_other_columns(
    spark: SparkSession, tmp_path: Path, selections: tuple[list[str], ...]
) -> None:
    """Whichever file Spark would take the columns of."""
    columns = "id int, v string, w long, at timestamp"
    reader = spark.readStream.schema(columns).option("maxFilesPerTrigger", 1)
    out = str(tmp_path / "out")
    for number, selection in enumerate(selections):
        rows = [(id_, f"v{number}", number, START) for id_ in range(number, 9)]
        add_file(tmp_path / "in" / str(number), rows, columns)
        table = dt.Table.from_changelog(
            reader.parquet(str(tmp_path / "in" / "*")), key="id", timestamp="at", name="t"
        )
        other = dt.Table.from_changelog(
            reader.parquet(str(tmp_path / "in" / "*")).withColumnsRenamed({"v": "x", "w": "y"}),
            key="id",
            timestamp="at",
            name="other",
        )
        query = table.join(other, select=selection).write_stream(
            dt.to_parquet(out),
            checkpoint=str(tmp_path / "checkpoint"),
            buckets=2,
            trigger={"availableNow": True},
        )
        query.awaitTermination()
    read = dt.read_current(spark, out)
    assert read.columns == ["id", "v", "w", "_timestamp"]
    written = [selection[-1] == "w" for selection in selections]
    assert sorted(tuple(row) for row in read.select("id", "v", "w").collect()) == [
        (0, "v0", 0 if written[0] else None),
        *((id_, "v1", 1 if written[1] else None) for id_ in range(1, 9)),
    ]


def test_a_column_of_two_types_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    changelog = ("'upsert' AS _change", "now() AS _timestamp", "id AS _position")
    for value in ("'a'", "1"):
        changes = spark.range(1).selectExpr("id", f"{value} AS v", *changelog)
        changes.write.mode("append").parquet(str(tmp_path / "out"))
    with pytest.raises(dt.errors.ConfigurationError, match=r"cannot be read: .*one type\.$"):
        dt.read_current(spark, tmp_path / "out", key="id")


def test_what_is_no_changelog_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(3).write.parquet(str(tmp_path / "plain"))
    with pytest.raises(
        dt.errors.PlanError, match="has no changelog, its files have no column '_change'"
    ):
        dt.read_current(spark, str(tmp_path / "plain"))
    with pytest.raises(dt.errors.DovetailError, match=r"path=.*none' cannot be read.*to_parquet"):
        dt.read_current(spark, str(tmp_path / "none"))
