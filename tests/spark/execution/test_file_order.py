"""Files of one micro-batch count by their age, then by name, whatever partitions Spark packs them
into: on streaming and on static frames, with rows that say otherwise where the user asks for it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from timed_files import timed_file

import dovetail as dt
from dovetail import testing

SCHEMA = "id long, v long, at timestamp"
KEYS = range(20)
MIDNIGHT = "2024-01-01T00:00:00Z"
SIZES = (1, 400, 3, 900, 2, 50)
"""Lines of each file beside those of the keys: Spark packs the largest files first."""

Frames = Callable[[Path], DataFrame]


def written(folder: Path, *, alike: bool = False) -> dict[int, int]:
    """Six hourly files, each with a row of every key, twice; what each key has last.

    ``alike``: all are of one age, so their names count.
    """
    folder.mkdir()
    for hour, size in enumerate(SIZES):
        rows = [(key, 10 * hour + turn) for turn in (0, 1) for key in KEYS]
        rows += [(1000 + size + n, 0) for n in range(size)]
        # All rows have one time: nothing but their places puts them in order.
        at = "2024-01-01T00:00:00Z"
        age = 1_700_000_000 + (0 if alike else 3600 * hour)
        with timed_file(folder / f"{hour if alike else 9 - hour}.json", age) as path:
            path.write_text(
                "".join(json.dumps({"id": k, "v": v, "at": at}) + "\n" for k, v in rows)
            )
    return {key: 10 * (len(SIZES) - 1) + 1 for key in KEYS}


def table(frame: DataFrame, **options: Any) -> dt.Table:
    """The last row of each key, by way of a join, so that rows leave a stage."""
    rows = dt.Table.from_changelog(frame, key="id", timestamp="at", name="rows", **options)
    return rows.join(rows, how="left", select={"v": "left.v"})


def last(rows: list[Any]) -> dict[int, int]:
    """Per key the value of its last change."""
    found: dict[int, tuple[int, int]] = {}
    for row in rows:
        found[row.id] = max(found.get(row.id, (-1, 0)), (row._position, row.v))
    return {key: found[key][1] for key in KEYS}


@pytest.fixture
def small_partitions(spark: SparkSession) -> Any:
    """Files in several partitions, large ones in several blocks."""
    wanted = {
        "spark.sql.files.maxPartitionBytes": "8192",
        "spark.sql.files.openCostInBytes": "1024",
    }
    before = {name: spark.conf.get(name) for name in wanted}
    for name, value in wanted.items():
        spark.conf.set(name, value)
    yield
    for name, value in before.items():
        spark.conf.set(name, str(value))


@pytest.mark.usefixtures("small_partitions")
@pytest.mark.parametrize("alike", [False, True], ids=["by age", "by name"])
def test_a_batch_run_takes_the_newest_file(
    spark: SparkSession, tmp_path: Path, *, alike: bool
) -> None:
    expected = written(tmp_path / "in", alike=alike)
    frame = spark.read.schema(SCHEMA).json(str(tmp_path / "in"))
    assert frame.rdd.getNumPartitions() > len(SIZES)
    assert last(table(frame).changelog(buckets=3).collect()) == expected


@pytest.mark.usefixtures("small_partitions")
@pytest.mark.parametrize("alike", [False, True], ids=["by age", "by name"])
def test_a_query_takes_the_newest_file(spark: SparkSession, tmp_path: Path, *, alike: bool) -> None:
    expected = written(tmp_path / "in", alike=alike)
    frame = spark.readStream.schema(SCHEMA).json(str(tmp_path / "in")).where("v >= 0")
    query = table(frame).write_stream(
        dt.to_parquet(str(tmp_path / "out")),
        checkpoint=str(tmp_path / "checkpoint"),
        trigger={"availableNow": True},
        buckets=3,
    )
    query.awaitTermination()
    assert last(spark.read.parquet(str(tmp_path / "out")).collect()) == expected


@pytest.mark.usefixtures("small_partitions")
def test_the_rows_times_count_where_they_are_the_sequence(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The oldest file has the newest rows."""
    for hour in range(6):
        at = f"2024-01-01T{9 - hour:02}:00:00Z"
        with timed_file(tmp_path / "in" / f"{hour}.json", 1_700_000_000 + hour) as path:
            path.write_text(
                "".join(json.dumps({"id": k, "v": hour, "at": at}) + "\n" for k in KEYS)
            )
    frame = spark.read.schema(SCHEMA).json(str(tmp_path / "in"))
    by_time = table(frame, sequence=F.unix_micros("at"))
    assert last(by_time.changelog(buckets=3).collect()) == dict.fromkeys(KEYS, 0)
    assert last(table(frame).changelog(buckets=3).collect()) == dict.fromkeys(KEYS, 5)


def test_a_sequence_is_of_its_table_or_of_all(spark: SparkSession) -> None:
    """Between logs of their own the older row goes first; a shared one orders both tables."""
    rows = {"left": [(1, 10, 1), (1, 11, 3)], "right": [(1, 20, 2)]}
    for shared, expected in ((False, [(10, 20, 2), (11, 20, 3)]), (True, [(11, 20, 3)])):
        left, right = (
            dt.Table.from_changelog(
                spark.createDataFrame(
                    [(k, v, second, v) for k, v, second in reversed(given)],
                    f"id long, {name} long, second long, n long",
                ).select("id", name, F.timestamp_seconds("second").alias("at"), "n"),
                key="id",
                timestamp="at",
                sequence="n",
                shared_log=shared,
                name=name,
            )
            for name, given in rows.items()
        )
        emitted = (
            left.join(right).changelog(buckets=2).selectExpr("*", "unix_seconds(_timestamp) s")
        )
        ordered = sorted(emitted.collect(), key=lambda row: row["_position"])
        assert [(row.left, row.right, row.s) for row in ordered] == expected
        aligned = left.join(right, align="1 min")
        if shared:
            with pytest.raises(
                dt.errors.PlanError, match=r"align= orders rows by time, shared_log= of"
            ):
                aligned.changelog()
            continue
        driver = testing.Driver(aligned)
        driver.pipe(right, {"id": 1, "right": 20}, timestamp=2)
        emitted = driver.pipe(left, [{"id": 1, "left": v} for v in (10, 11)], timestamp=[1, 3])
        emitted += driver.advance_wall_clock("1 min")
        assert [(c.values, c.timestamp_us) for c in emitted] == [
            ({"left": 10, "right": 20}, 2),
            ({"left": 11, "right": 20}, 3),
        ]


def test_a_log_whose_files_are_read_apart_is_one_log(spark: SparkSession, tmp_path: Path) -> None:
    """Spark puts the two large files into one partition; the one between them has a late row."""
    (tmp_path / "in").mkdir()
    offset = 0
    for number, (size, second) in enumerate([(200, 30), (1, 5), (200, 31)]):
        rows = [
            {"id": 1, "v": offset + n, "at": f"2024-01-01T00:00:{second:02d}Z"} for n in range(size)
        ]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / "in" / f"{number}.json").write_text(text)
        offset += size
    frame = spark.read.schema(SCHEMA).json(str(tmp_path / "in"))
    assert frame.rdd.getNumPartitions() == 2
    rows = dt.Stream.from_changelog(frame, key="id", timestamp="at", sequence="v", name="rows")
    hourly = rows.group_by("id").window(dt.windows.tumbling("10 s")).agg(n=dt.count())
    emitted = hourly.to_table().changelog(emit="batch", buckets=3).collect()
    assert [(row.window_start.second, row.n) for row in emitted] == [(30, 400)]
