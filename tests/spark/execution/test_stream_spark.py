"""Joins of streams on Spark, with what the truth tables leave out: computed selections, other
columns than the key, nested values, several buckets, restarts.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from bench.parameters import slow_after
from parquet_rows import add_file
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

import dovetail as dt

CLICKS = "id long, user string, where struct<page: string, tags: array<string>>, at timestamp"
USERS = "user string, name string, at timestamp"
VIEWS = "id long, page string, at timestamp"


def moment(second: int) -> str:
    return f"2024-01-01 00:00:{second:02}"


def write(path: Path, schema: str, rows: Sequence[tuple[Any, ...]]) -> None:
    """One file, read as one micro-batch of its source."""
    add_file(path, [(*row[:-1], datetime.fromisoformat(row[-1])) for row in rows], schema)


def read(session: SparkSession, path: Path, schema: str) -> DataFrame:
    path.mkdir(parents=True, exist_ok=True)
    return session.readStream.schema(schema).parquet(str(path))


def run(topology: dt.Stream, folder: Path, buckets: int = 3) -> None:
    query = topology.write_stream(
        dt.to_parquet(str(folder / "out")),
        checkpoint=str(folder / "checkpoint"),
        trigger={"availableNow": True},
        buckets=buckets,
    )
    query.awaitTermination()


def result(session: SparkSession, topology: dt.Stream, folder: Path) -> list[Row]:
    frame = session.read.schema(topology.schema).parquet(str(folder / "out"))
    return frame.orderBy("_timestamp", "_position", "id").drop("_position", "_timestamp").collect()


def test_a_table_found_by_a_value(spark: SparkSession, tmp_path: Path) -> None:
    clicks = dt.Stream.from_changelog(
        read(spark, tmp_path / "clicks", CLICKS), key="id", timestamp="at", name="clicks"
    )
    users = dt.Table.from_changelog(
        read(spark, tmp_path / "users", USERS), key="user", timestamp="at", name="users"
    )
    joined = clicks.join(
        users,
        how="left",
        on="user",
        select={
            "where": "left.where",
            "label": F.concat_ws("/", "left.where.page", F.coalesce("right.name", F.lit("?"))),
            "known": "right.user",
        },
    )
    write(tmp_path / "users", USERS, [("ann", "Ann", moment(1)), ("bob", "Bob", moment(1))])
    rows = [
        (1, "ann", ("home", ["a", None]), moment(2)),
        (2, None, ("home", None), moment(3)),
        (None, "bob", (None, []), moment(4)),
        (4, "eve", None, moment(5)),
    ]
    write(tmp_path / "clicks", CLICKS, rows)
    run(joined, tmp_path)
    write(tmp_path / "users", USERS, [("ann", "Anna", moment(6))])
    write(tmp_path / "clicks", CLICKS, [(5, "ann", ("b", []), moment(7))])
    run(joined, tmp_path)
    assert [tuple(row) for row in result(spark, joined, tmp_path)] == [
        (1, Row(page="home", tags=["a", None]), "home/Ann", "ann", "upsert"),
        (2, Row(page="home", tags=None), "home/?", None, "upsert"),
        (None, Row(page=None, tags=[]), "Bob", "bob", "upsert"),
        (4, None, "?", None, "upsert"),
        (5, Row(page="b", tags=[]), "b/Anna", "ann", "upsert"),
    ]


def test_an_idle_bucket_closes_its_windows(spark: SparkSession, tmp_path: Path) -> None:
    """Records of one key move the time of all buckets, and a restart lies in between."""
    clicks = dt.Stream.from_changelog(
        read(spark, tmp_path / "clicks", CLICKS), key="id", timestamp="at", name="clicks"
    )
    views = dt.Stream.from_changelog(
        read(spark, tmp_path / "views", VIEWS), key="id", timestamp="at", name="views"
    )
    joined = clicks.join(
        views,
        how="outer",
        within=dt.within(before="2 s", after="2 s", grace="1 s"),
        select={"user": "left.user", "page": "right.page"},
    )
    write(tmp_path / "clicks", CLICKS, [(n, "u", None, moment(1)) for n in range(20)])
    write(tmp_path / "views", VIEWS, [(7, "p", moment(3)), (8, "q", moment(4))])
    run(joined, tmp_path, buckets=8)
    write(tmp_path / "views", VIEWS, [(99, "z", moment(10))])
    run(joined, tmp_path, buckets=8)
    found = [tuple(row)[:3] for row in result(spark, joined, tmp_path)]
    alone = {(n, "u", None) for n in range(20) if n != 7}
    assert set(found) == alone | {(7, "u", "p"), (8, None, "q")}
    assert len(found) == len(set(found))


@pytest.mark.parametrize("rows", slow_after(1, [0, 1]))
def test_a_stream_without_records(rows: int, spark: SparkSession, tmp_path: Path) -> None:
    views = dt.Stream.from_changelog(read(spark, tmp_path / "v", VIEWS), key="id", timestamp="at")
    users = dt.Table.from_changelog(
        read(spark, tmp_path / "u", VIEWS), key="id", timestamp="at", versioned="1 day"
    )
    joined = views.join(users, how="left", grace="1 s", select=["left.page"])
    write(tmp_path / "u", VIEWS, [(1, "a", moment(1))])
    write(tmp_path / "v", VIEWS, [(1, "b", moment(2))][:rows])
    run(joined, tmp_path)
    assert result(spark, joined, tmp_path) == []
