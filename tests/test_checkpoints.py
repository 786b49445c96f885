"""What a checkpoint holds is found again, belongs to one topology, and is bound to it at once."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

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
