"""A Delta table as a source: its content, then every commit, whatever commits do to a key."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from small_session import RECORDING_CHANGES, with_delta

import dovetail as dt


@pytest.fixture(scope="module")
def delta_spark(spark: SparkSession) -> Iterator[SparkSession]:
    yield from with_delta(spark, RECORDING_CHANGES)


def rows(table: dt.Table) -> list[tuple[Any, ...]]:
    """The position, whether it is a delete, the key and the value of each change."""
    frame = table.plan.frame.select("_commit_position", "_deleted", "id", "v")
    return sorted(tuple(row) for row in frame.collect())


def test_content_then_changes(delta_spark: SparkSession, tmp_path: Path) -> None:
    """A query over its restarts has the table at each commit; so has a batch of the changes."""
    spark, path = delta_spark, str(tmp_path / "t")
    spark.createDataFrame([(1, "a"), (2, "b")], "id long, v string").writeTo(
        f"delta.`{path}`"
    ).using("delta").create()
    held: dict[int, str] = {}

    def run() -> None:
        table = dt.Table.from_delta(spark, path, key="id")
        table.materialize().write_stream(
            dt.to_delta(tmp_path / "out"), checkpoint=tmp_path / "checkpoint", availableNow=True
        ).awaitTermination()
        found = spark.read.format("delta").load(str(tmp_path / "out"))
        held.clear()
        held.update((row["id"], row["v"]) for row in found.collect())
        assert len(held) == found.count()

    run()
    assert held == {1: "a", 2: "b"}
    spark.sql(f"UPDATE delta.`{path}` SET v = 'c' WHERE id = 1")
    spark.sql(f"UPDATE delta.`{path}` SET id = 3 WHERE id = 2")
    spark.sql(f"DELETE FROM delta.`{path}` WHERE id = 1")
    spark.sql(f"INSERT INTO delta.`{path}` VALUES (1, 'd')")
    run()
    assert held == {1: "d", 3: "b"}

    changes = dt.Table.from_delta(spark, path, key="id", version=1, streaming=False)
    assert rows(changes) == [
        (2, True, 1, "a"),
        (3, False, 1, "c"),
        (4, True, 2, "b"),
        (5, False, 3, "b"),
        (6, True, 1, "c"),
        (9, False, 1, "d"),
    ]
    fixed = dt.Table.from_delta(
        spark, path, key="id", version=1, streaming=False, key_updates=False
    )
    former = {(2, True, 1, "a"), (4, True, 2, "b")}
    assert rows(fixed) == [row for row in rows(changes) if row not in former]
    content = dt.Table.from_delta(spark, path, key="id", streaming=False)
    assert rows(content) == [(9, False, 1, "d"), (9, False, 3, "b")]
    (first,) = {row["_timestamp"] for row in content.plan.frame.collect()}
    assert first.year == datetime.now(timezone.utc).year
    assert content.plan.name == "t"


def test_what_cannot_be_read_is_refused(delta_spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "plain")
    delta_spark.range(1).writeTo(f"delta.`{path}`").using("delta").tableProperty(
        "delta.enableChangeDataFeed", "false"
    ).create()
    with pytest.raises(dt.ConfigurationError, match="table plain: its change data feed is not"):
        dt.Table.from_delta(delta_spark, path, key="id")
    assert dt.Table.from_delta(delta_spark, path, key="id", streaming=False).plan.name == "plain"
    with pytest.raises(dt.PlanError, match="key= names an unknown column 'no'"):
        dt.Table.from_delta(delta_spark, path, key="no", streaming=False)
    with pytest.raises(dt.ConfigurationError, match="cannot be read"):
        dt.Table.from_delta(delta_spark, tmp_path / "none", key="id")
