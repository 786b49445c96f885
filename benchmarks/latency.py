"""The time of a small micro-batch, by phase: joins beside Spark's aggregation.

Each contender is a process of its own: one query that reads 2,000 rows a micro-batch, half of them
in tables that are looked into. The first ``--warm`` micro-batches are left out: a JVM compiles for
two minutes, so figures of earlier ones are higher. ``spark`` is Spark's aggregation in a session
as Spark makes it, ``aggregation`` the same in one of ``dt.configure``.
``stages`` and ``state`` are the time of the operators and of their calls of the state store, added
up over buckets, so they run beside each other. Each join also runs with one bucket, where stages
need no shuffle between them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import dovetail as dt
from benchmarks import harness

ROWS = 1_000
KEYS = 5_000
DIMENSIONS = 4
PHASES = ("offsets", "planning", "work", "log")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--warm", type=int, default=100, help="first micro-batches, left out (100)")
    parser.add_argument("--batches", type=int, default=50, help="measured micro-batches (50)")
    parser.add_argument("--rounds", type=int, default=1, help="processes of each contender (1)")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in CONTENDERS}
    for _ in range(arguments.rounds):
        for name, rounds in taken.items():
            counts = [str(arguments.warm), str(arguments.batches)]
            command = [sys.executable, "-m", "benchmarks.latency", name, *counts]
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
            rounds.append(json.loads(done.stdout.splitlines()[-1]))
    figures: dict[str, Any] = {
        name: {figure: round(median(one[figure] for one in rounds), 1) for figure in rounds[0]}
        for name, rounds in taken.items()
    }
    of = {name: figures[name]["total"] for name in CONTENDERS}
    joins = [*JOINS, *map(one_bucket, JOINS)]
    ratios = {
        **{f"{name}_over_aggregation": of[name] / of["spark"] for name in joins},
        **{f"{name}_over_equal_aggregation": of[name] / of["aggregation"] for name in joins},
        "star_over_one": of["star"] / of["foreign_key"],
        "star_over_one_one_bucket": of[one_bucket("star")] / of[one_bucket("foreign_key")],
    }
    figures |= {name: round(ratio, 2) for name, ratio in ratios.items()}
    rows = [("ms", "total", *PHASES, "stages", "state", "commit", "over Spark's")]
    rows += [
        (name, *(f"{figures[name][figure]:.0f}" for figure in rows[0][1:-1]), f"{ratio:.2f}")
        for name in CONTENDERS
        for ratio in [of[name] / of["spark"]]
    ]
    harness.show(f"a micro-batch of {2 * ROWS:,} rows, median of {arguments.batches}", rows)
    return figures


def session(name: str) -> SparkSession:
    """``plain``: with nothing set but what keeps its output quiet."""
    builder = SparkSession.builder.master("local[2]").appName("dovetail benchmarks")
    if name == "configured":
        builder = dt.configure(builder)
    spark = (
        builder.config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    return spark


def feed(directory: Path, batches: int) -> None:
    """A file per micro-batch for orders and for each dimension, all with random keys."""
    random = np.random.default_rng(7)
    names = ["orders", *(f"d{n}" for n in range(DIMENSIONS))]
    for name in names:
        (directory / name).mkdir()
    for number in range(batches):
        rows = KEYS if number == 0 else ROWS
        at = pa.array(number * 1_000_000 + np.arange(rows), pa.timestamp("us", "UTC"))
        keys = np.arange(rows) if number == 0 else random.integers(0, KEYS, rows)
        drawn = {f"c{n}": random.integers(0, KEYS, rows) for n in range(DIMENSIONS)}
        orders = {"id": keys, **drawn, "amount": random.integers(0, 100, rows), "at": at}
        pq.write_table(pa.table(orders), directory / "orders" / f"{number:04}.parquet")
        for dimension in range(DIMENSIONS):
            keys = np.arange(rows) if number == 0 else random.integers(0, KEYS, rows)
            values = random.integers(0, 100, rows)
            table = pa.table({"id": keys, f"v{dimension}": values, "at": at})
            pq.write_table(table, directory / f"d{dimension}" / f"{number:04}.parquet")


def frame(spark: SparkSession, directory: Path, name: str) -> Any:
    """A folder as a stream, one file a micro-batch."""
    schema = spark.read.parquet(str(directory / name)).schema
    reader = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
    return reader.parquet(str(directory / name))


def table(spark: SparkSession, directory: Path, name: str, *columns: str) -> dt.Table:
    rows = frame(spark, directory, name)
    if columns:
        rows = rows.select("id", *columns, "at")
    return dt.Table.from_changelog(rows, key="id", timestamp="at", name=name)


def of_tables(spark: SparkSession, directory: Path) -> dt.Table:
    orders = table(spark, directory, "orders", "amount")
    return orders.join(table(spark, directory, "d0"))


def of_star(dimensions: int) -> Callable[[SparkSession, Path], dt.Table]:
    def star(spark: SparkSession, directory: Path) -> dt.Table:
        columns = [f"c{n}" for n in range(dimensions)]
        joined = table(spark, directory, "orders", *columns, "amount")
        for n in range(dimensions):
            joined = joined.join(table(spark, directory, f"d{n}"), on=f"c{n}")
        return joined

    return star


def of_totals(spark: SparkSession, directory: Path) -> dt.Table:
    joined = of_star(1)(spark, directory)
    return joined.group_by("v0").agg(amount=dt.sum("amount"))


JOINS: Mapping[str, Callable[[SparkSession, Path], dt.Table]] = {
    "table_table": of_tables,
    "foreign_key": of_star(1),
    "foreign_key_aggregate": of_totals,
    "star": of_star(DIMENSIONS),
}


def one_bucket(name: str) -> str:
    """The contender that is the join ``name`` with one bucket."""
    return f"{name}_one_bucket"


CONTENDERS = ("spark", "aggregation", *JOINS, *map(one_bucket, JOINS))


def measure(name: str, warm: int, batches: int) -> dict[str, float]:
    """The medians of a contender's micro-batches after the first ``warm``, in milliseconds."""
    spark = session("plain" if name == "spark" else "configured")
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", str(warm + batches))
    with harness.workspace() as directory:
        feed(directory, warm + batches)
        checkpoint = str(directory / "checkpoint")
        join = name.removesuffix(one_bucket(""))
        if join in JOINS:
            query = JOINS[join](spark, directory).write_stream(
                harness.Nowhere(),
                checkpoint=checkpoint,
                trigger={"availableNow": True},
                buckets=None if name == join else 1,
            )
        else:
            spark.conf.set("spark.sql.shuffle.partitions", "2")
            rows = frame(spark, directory, "orders").select("id", "amount", "at")
            counted = rows.groupBy("id").agg(F.sum("amount").alias("amount"))
            writer = counted.writeStream.format("noop").outputMode("update")
            writer = writer.trigger(availableNow=True)
            query = writer.option("checkpointLocation", checkpoint).start()
        query.awaitTermination()
        taken = phases(query)[warm:]
    spark.stop()
    return {figure: median(one[figure] for one in taken) for figure in taken[0]}


def phases(query: Any) -> list[dict[str, float]]:
    """The durations of each micro-batch, in milliseconds."""
    progress = query.recentProgress
    own = dt.metrics.recent(query) if hasattr(query, "parts") else [None] * len(progress)
    taken = []
    for batch, figures in zip(progress, own, strict=True):
        durations, stages = batch["durationMs"], figures.stages if figures else ()
        taken.append(
            {
                "total": durations["triggerExecution"],
                "offsets": durations.get("latestOffset", 0) + durations.get("getBatch", 0),
                "planning": durations["queryPlanning"],
                "work": durations["addBatch"],
                "log": durations["walCommit"] + durations["commitOffsets"],
                "commit": sum(operator["commitTimeMs"] for operator in batch["stateOperators"]),
                "stages": sum(stage.work_ms for stage in stages),
                "state": sum(stage.state_ms for stage in stages),
            }
        )
    return taken


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], *map(int, sys.argv[2:]))))
