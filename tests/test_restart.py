"""What a kill may not do: lose a change, double one, or make a state that no input gave.

The unbroken run is the reference; the output is a Parquet changelog, written exactly once.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import SparkFiles
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import dovetail as dt

FILES, ROWS, KEYS = 8, 60, 12
SCHEMA = "k string, {side} long, at timestamp, gone boolean, position long"


def write_history(directory: Path, seed: int) -> None:
    """Three tables' changes in one shared log, cut into files."""
    rng = random.Random(seed)
    position = 0
    for number in range(FILES):
        for side in ("a", "b", "c"):
            rows: dict[str, list[Any]] = defaultdict(list)
            for _ in range(ROWS):
                rows["k"].append(f"k{rng.randrange(KEYS)}")
                rows[side].append(rng.randrange(1000))
                rows["at"].append(rng.randrange(10_000_000))
                rows["gone"].append(rng.random() < 0.25)
                rows["position"].append(position)
                position += 1
            table = pa.table(dict(rows)).set_column(
                2, "at", pa.array(rows["at"], pa.timestamp("us", "UTC"))
            )
            path = directory / side / f"{number:02d}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(table, path)
            moment = 1_700_000_000 + number
            os.utime(path, (moment, moment))


def topology(spark: SparkSession, directory: Path) -> dt.Table:
    """``(a outer b) left c``: one stage."""
    a, b, c = (
        dt.Table.from_changelog(
            spark.readStream.schema(SCHEMA.format(side=side))
            .option("maxFilesPerTrigger", 1)
            .parquet(str(directory / side)),
            key="k",
            timestamp="at",
            deleted="gone",
            sequence="position",
            name=side,
        )
        for side in ("a", "b", "c")
    )
    return a.join(b, how="outer").join(c, how="left")


def run(spark: SparkSession, history: Path, out: Path) -> None:
    """Run the topology to its end, whatever was done before."""
    query = topology(spark, history).write_stream(
        dt.to_parquet(str(out / "changes")),
        checkpoint=str(out / "checkpoint"),
        trigger="available now",
        buckets=3,
    )
    query.awaitTermination()


def changes(spark: SparkSession, out: Path) -> list[tuple[Any, ...]]:
    """Everything written, per key in order, each row whole."""
    frame = spark.read.parquet(str(out / "changes"))
    return sorted(tuple(row) for row in frame.select("k", "_position", "*").collect())


def joined(history: Path, files: int) -> dict[str, tuple[Any, ...]]:
    """The slow definition: fold each table's first ``files`` files, then join by hand."""
    folded: dict[str, dict[str, int]] = {}
    for side in ("a", "b", "c"):
        rows = [
            row
            for number in range(files)
            for row in pq.read_table(history / side / f"{number:02d}.parquet").to_pylist()
        ]
        table: dict[str, int] = {}
        for row in sorted(rows, key=lambda row: row["position"]):
            if row["gone"]:
                table.pop(row["k"], None)
            else:
                table[row["k"]] = row[side]
        folded[side] = table
    keys = folded["a"].keys() | folded["b"].keys()
    return {k: tuple(folded[side].get(k) for side in ("a", "b", "c")) for k in keys}


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("history")
    write_history(directory, seed=3)
    return directory


@pytest.fixture(scope="module")
def unbroken(
    spark: SparkSession, history: Path, tmp_path_factory: pytest.TempPathFactory
) -> list[tuple[Any, ...]]:
    out = tmp_path_factory.mktemp("unbroken")
    run(spark, history, out)
    return changes(spark, out)


def test_after_every_micro_batch_the_output_is_the_join_of_all_input_so_far(
    spark: SparkSession, history: Path, tmp_path: Path
) -> None:
    table: dict[str, tuple[Any, ...]] = {}
    seen: list[dict[str, tuple[Any, ...]]] = []

    def fold(batch: DataFrame, number: int) -> None:
        for row in batch.orderBy("_position").collect():
            if row["_change"] == "delete":
                del table[row.k]
            else:
                table[row.k] = (row.a, row.b, row.c)
        seen.append(dict(table))
        segments = Path(SparkFiles.getRootDirectory()) / "dovetail-segments"
        assert list(segments.iterdir()), "local copies are kept here"
        if number % 2:
            shutil.rmtree(segments)
            segments.mkdir()

    query = topology(spark, history).write_stream(
        dt.to_function(fold),
        checkpoint=str(tmp_path / "checkpoint"),
        trigger="available now",
        emit="batch",
    )
    query.awaitTermination()
    assert seen == [joined(history, files) for files in range(1, FILES + 1)]


def test_a_sink_that_fails_loses_and_doubles_nothing(
    spark: SparkSession, history: Path, tmp_path: Path
) -> None:
    """Each batch fails once, after its changes were taken: the retry gives the same ones."""
    taken: dict[int, list[list[tuple[Any, ...]]]] = defaultdict(list)

    def once(batch: DataFrame, number: int) -> None:
        rows = [tuple(row) for row in batch.collect()]
        taken[number].append(sorted(rows, key=lambda row: (row[0], row[-1])))
        if len(taken[number]) == 1 and number in (1, 4):
            raise RuntimeError("the sink fails")

    def go_on() -> None:
        topology(spark, history).write_stream(
            dt.to_function(once), checkpoint=str(tmp_path / "checkpoint"), trigger="available now"
        ).awaitTermination()

    for _ in range(2):
        with pytest.raises(StreamingQueryException, match="the sink fails"):
            go_on()
    go_on()
    assert sorted(taken) == list(range(FILES))
    assert [len(attempts) for _, attempts in sorted(taken.items())].count(2) == 2
    for attempts in taken.values():
        assert all(attempt == attempts[0] for attempt in attempts)


def test_killed_at_any_moment_the_changelog_is_that_of_an_unbroken_run(
    spark: SparkSession, history: Path, tmp_path: Path, unbroken: list[tuple[Any, ...]]
) -> None:
    rng = random.Random(11)
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, __file__, str(history), str(tmp_path)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        deadline = time.monotonic() + 60
        while not (tmp_path / "checkpoint" / "offsets" / "0").exists():
            assert process.poll() is None, "the query ended before it began"
            assert time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(rng.uniform(0, 6))
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    run(spark, history, tmp_path)
    assert changes(spark, tmp_path) == unbroken
    last = {row[0]: row for row in unbroken}
    final = {k: row[3:6] for k, row in last.items() if row[6] == "upsert"}
    assert final == joined(history, FILES)


if __name__ == "__main__":
    own = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    run(own, Path(sys.argv[1]), Path(sys.argv[2]))
