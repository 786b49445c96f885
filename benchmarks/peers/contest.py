"""One topology in a process of its own, so that its first query is the first one of a new JVM.

``python -m benchmarks.peers.contest TOPOLOGY ORDERS RUNS CHECKED`` prints a line of JSON: the
seconds of each system's runs, the first one included.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter

import pyarrow as pa
from pyarrow import csv
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import dovetail as dt
from benchmarks import harness
from benchmarks.flink.process import Flink, flink
from benchmarks.nexmark.check import differences, queried
from benchmarks.peers import data
from benchmarks.peers.topologies import TOPOLOGIES, Topology

PYTHON = "DOVETAIL_PATHWAY"
"""The environment variable with the Python that has Pathway; ``./dev bench`` sets it."""


def in_turn(
    directory: Path, name: str, topology: Topology, run_count: int
) -> Mapping[str, list[float]]:
    """Return the seconds of each system's runs, the first one included. A new session and a new
    Flink are started for it.
    """
    spark = harness.session(data.CORES)
    with flink() as peer:
        declare(peer, directory)
        runs = {
            "dovetail": lambda: ours_s(spark, directory, topology),
            "flink": lambda: peer.seconds(topology.sql),
            "pathway": lambda: pathway(directory, name),
        }
        seconds = take_turns(name, runs, run_count)
    if topology.spark is not None:  # last, as the memory of its states stays taken in the session
        runs = {"spark": lambda: sparks_s(spark, directory, topology)}
        seconds |= take_turns(name, runs, run_count)
    spark.stop()
    return seconds


def take_turns(
    name: str, runs: Mapping[str, Callable[[], float]], run_count: int
) -> dict[str, list[float]]:
    """Run each system ``run_count`` times in turn. Return the seconds of its runs."""
    seconds: dict[str, list[float]] = {system: [] for system in runs}
    for index in range(run_count):
        for system, timed in runs.items():
            seconds[system].append(timed())
        spent = ", ".join(f"{system} {seconds[system][-1]:.1f} s" for system in runs)
        harness.note(f"  {name}, run {index + 1}: {spent}")
    return seconds


def declare(peer: Flink, directory: Path) -> None:
    """Declare the inputs in Flink, whose format has no headers: such a line is a row of nulls.

    A key is never null to Flink's planner, so another column is asked.
    """
    for name, columns in data.COLUMNS.items():
        listed = ", ".join(f"{column} BIGINT" for column in columns)
        key = f", PRIMARY KEY ({columns[0]}) NOT ENFORCED"
        options = {"format": "csv", "csv.ignore-parse-errors": "true"}
        peer.declare(f"{name}_lines", listed + key, directory / name, options)
        peer.do(f"CREATE VIEW {name} AS SELECT * FROM {name}_lines WHERE {columns[-1]} IS NOT NULL")


def frame(spark: SparkSession, directory: Path, name: str) -> DataFrame:
    """Return the files of an input as a streaming frame, all in one micro-batch."""
    schema = ", ".join(f"{column} long" for column in data.COLUMNS[name])
    return spark.readStream.schema(schema).option("header", "true").csv(str(directory / name))


def tables(spark: SparkSession, directory: Path, topology: Topology) -> Mapping[str, dt.Table]:
    """Return the inputs of a topology as tables."""
    return {
        name: dt.Table.from_changelog(
            frame(spark, directory, name),
            key=data.COLUMNS[name][0],
            timestamp=F.timestamp_seconds(data.COLUMNS[name][-1]),
            name=name,
        )
        for name in topology.inputs
    }


def ours_s(spark: SparkSession, directory: Path, topology: Topology) -> float:
    """Run a topology into nowhere. Return the seconds that it took."""
    with tempfile.TemporaryDirectory(prefix="dovetail-bench-") as checkpoint:
        begun = perf_counter()
        query = topology.ours(tables(spark, directory, topology)).write_stream(
            harness.Nowhere(), checkpoint=checkpoint, trigger={"availableNow": True}, emit="batch"
        )
        query.awaitTermination()
        return perf_counter() - begun


def sparks_s(spark: SparkSession, directory: Path, topology: Topology) -> float:
    """Run Spark's own query into nowhere. Return the seconds that it took."""
    assert topology.spark is not None
    with tempfile.TemporaryDirectory(prefix="dovetail-bench-") as checkpoint:
        begun = perf_counter()
        frames = {name: frame(spark, directory, name) for name in topology.inputs}
        writer = topology.spark(frames).writeStream.format("noop").outputMode(topology.spark_mode)
        writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
        writer.start().awaitTermination()
        return perf_counter() - begun


def pathway(directory: Path, name: str, target: Path | None = None) -> float:
    """Run a topology in Pathway, into nowhere or a CSV file. Return the seconds that it took."""
    script = Path(__file__).with_name("pathway_run.py")
    arguments = [os.environ[PYTHON], str(script), str(directory), name]
    kept = {n: os.environ[n] for n in ("PATH", "HOME") if n in os.environ}
    done = subprocess.run(
        arguments if target is None else [*arguments, str(target)],
        check=True,
        capture_output=True,
        text=True,
        env=kept | {"PATHWAY_THREADS": str(data.CORES)},
    )
    return float(json.loads(done.stdout.strip().splitlines()[-1])["seconds"])


def refuse_other_rows(directory: Path, name: str, topology: Topology) -> None:
    """Raise ``AssertionError`` if a system's rows at rest are not those of DuckDB."""
    inputs = {kind: in_memory(directory / kind) for kind in data.COLUMNS}
    expected = queried(topology.sql, inputs)
    spark = harness.session(data.CORES)
    parts = {"dovetail": ours_rows(spark, directory, topology)}
    parts["pathway"] = pathways_rows(directory, name)
    with flink() as peer:
        declare(peer, directory)
        parts["flink"] = peer.rows(topology.sql)
    if topology.spark is not None:
        frames = {
            kind: spark.read.schema(frame(spark, directory, kind).schema)
            .option("header", "true")
            .csv(str(directory / kind))
            for kind in topology.inputs
        }
        parts["spark"] = topology.spark(frames).toArrow()
    spark.stop()
    for system, rows in parts.items():
        difference = differences(rows, expected)
        assert not difference, f"{name}, {system}: {difference}"


def in_memory(folder: Path) -> pa.Table:
    """Return the rows of an input."""
    return pa.concat_tables([csv.read_csv(path) for path in sorted(folder.iterdir())])


def ours_rows(spark: SparkSession, directory: Path, topology: Topology) -> pa.Table:
    """Return the rows at rest of our topology."""
    target = directory / "out"
    query = topology.ours(tables(spark, directory, topology)).write_stream(
        dt.to_parquet(str(target / "rows")),
        checkpoint=str(target / "checkpoint"),
        trigger={"availableNow": True},
        emit="batch",
    )
    query.awaitTermination()
    rows = dt.read_current(spark, str(target / "rows")).toArrow()
    shutil.rmtree(target)
    return rows


def pathways_rows(directory: Path, name: str) -> pa.Table:
    """Return the rows that the changes of Pathway's result leave."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "rows.csv"
        pathway(directory, name, target)
        changes = csv.read_csv(target)
    names = ", ".join(column for column in changes.column_names if column not in ("time", "diff"))
    left = f"SELECT {names}, SUM(diff)::BIGINT AS n FROM changes GROUP BY {names} HAVING n <> 0"
    # A row that is there n times stands n times.
    sql = f"SELECT {names} FROM (SELECT *, UNNEST(range(n)) FROM ({left}))"
    return queried(sql, {"changes": changes})


def main() -> None:
    name, orders, run_count, checked = sys.argv[1], *map(int, sys.argv[2:])
    topology = TOPOLOGIES[name]
    with harness.workspace() as directory:
        data.write(directory, orders)
        seconds = in_turn(directory, name, topology, run_count)
    with harness.workspace() as directory:
        data.write(directory, checked)
        refuse_other_rows(directory, name, topology)
    print(json.dumps(seconds), flush=True)


if __name__ == "__main__":
    main()
