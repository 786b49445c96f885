"""The start of a query in a new session: from the call to the end of its first micro-batch.

Each contender is a process of its own, which starts the query with a new checkpoint several times:
the first time workers and the JVM are cold. Spark starts a Python process on the driver for each
stage with state while it plans the first micro-batch; that is ``planning``. ``join`` is Spark's own
stateful join of streams, in a session as Spark makes it; ``plain`` is ``stages13`` in such a one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import dovetail as dt
from benchmarks import harness
from dovetail.physical.planner import plan_of

ROWS = 1_000
DIMENSIONS = 4
RATIOS = {
    "first_table_table_over_join": ("table_table", "join"),
    "first_foreign_key_over_join": ("foreign_key", "join"),
    "first_foreign_key_aggregate_over_join": ("foreign_key_aggregate", "join"),
    "first_star_over_join": ("star", "join"),
    "stages13_over_one": ("stages13", "table_table"),
    "plain_over_configured": ("plain", "stages13"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=2, help="processes of each contender (2)")
    parser.add_argument("--starts", type=int, default=3, help="starts in a session (3)")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in CONTENDERS}
    for _ in range(arguments.rounds):
        for name, rounds in taken.items():
            command = [sys.executable, "-m", "benchmarks.start", name, str(arguments.starts)]
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
            rounds.append(json.loads(done.stdout.splitlines()[-1]))
    figures: dict[str, Any] = {
        name: {figure: round(median(one[figure] for one in rounds), 2) for figure in rounds[0]}
        for name, rounds in taken.items()
    }
    for ratio, (above, below) in RATIOS.items():
        figures[ratio] = round(figures[above]["first_s"] / figures[below]["first_s"], 2)
    rows = [("s", "stages", "first", "planning", "again", "planning")]
    shown = ("first_s", "first_planning_s", "again_s", "again_planning_s")
    rows += [
        (name, f"{figures[name]['stages']:.0f}", *(f"{figures[name][key]:.2f}" for key in shown))
        for name in CONTENDERS
    ]
    harness.show("start of a query, to the end of its first micro-batch", rows)
    return figures


def of_tables(spark: SparkSession, directory: Path) -> list[dt.Table]:
    """One result: orders and what is known by the same key."""
    return [table(spark, directory, "orders").join(table(spark, directory, "d0"))]


def of_star(dimensions: int) -> Callable[[SparkSession, Path], list[dt.Table]]:
    """Return a function for one result: orders and the rows of dimensions that they refer to."""

    def star(spark: SparkSession, directory: Path) -> list[dt.Table]:
        joined = table(spark, directory, "orders")
        for n in range(dimensions):
            joined = joined.join(table(spark, directory, f"d{n}"), on=f"c{n}")
        return [joined]

    return star


def of_totals(spark: SparkSession, directory: Path) -> list[dt.Table]:
    """One result: the amounts of orders by a column of what they refer to."""
    (joined,) = of_star(1)(spark, directory)
    return [joined.group_by("v0").agg(amount=dt.sum("amount"))]


def of_many(spark: SparkSession, directory: Path) -> list[dt.Table]:
    """Four results of 13 stages with state: joined rows, and sums that are joined further."""
    orders = table(spark, directory, "orders")
    dimensions = [table(spark, directory, f"d{n}") for n in range(DIMENSIONS)]
    placed = orders.join(dimensions[0], on="c0")
    totals = placed.group_by("v0").agg(amount=dt.sum("amount"))
    located = totals.join(dimensions[1], on={"v0": "id"}, select=["amount", "v1"])
    by_place = located.group_by("v1").agg(amount=dt.sum("amount"))
    priced = placed.join(dimensions[2], on="c2")
    by_price = priced.group_by("v2").agg(amount=dt.sum("amount"))
    sold = by_price.join(dimensions[3], on={"v2": "id"}, select=["amount", "v3"])
    return [located, by_place, sold, priced.join(dimensions[3])]


def table(spark: SparkSession, directory: Path, name: str) -> dt.Table:
    return dt.Table.from_changelog(
        frame(spark, directory, name), key="id", timestamp="at", name=name
    )


def frame(spark: SparkSession, directory: Path, name: str) -> DataFrame:
    """A folder as a stream."""
    schema = spark.read.parquet(str(directory / name)).schema
    return spark.readStream.schema(schema).parquet(str(directory / name))


JOINS: Mapping[str, Callable[[SparkSession, Path], list[dt.Table]]] = {
    "table_table": of_tables,
    "foreign_key": of_star(1),
    "foreign_key_aggregate": of_totals,
    "star": of_star(DIMENSIONS),
    "stages13": of_many,
    "plain": of_many,
}
CONTENDERS = ("join", *JOINS)


def feed(directory: Path) -> None:
    """A file for each table."""
    numbers = pa.array(range(ROWS), pa.int64())
    at = pa.array([1_700_000_000_000_000 + n for n in range(ROWS)], pa.timestamp("us", "UTC"))
    few = pa.array([n % 10 for n in range(ROWS)], pa.int64())
    references = {f"c{n}": numbers for n in range(DIMENSIONS)}
    tables = {"orders": {"id": numbers, **references, "amount": few, "at": at}}
    tables |= {f"d{n}": {"id": numbers, f"v{n}": few, "at": at} for n in range(DIMENSIONS)}
    for name, columns in tables.items():
        (directory / name).mkdir()
        pq.write_table(pa.table(columns), directory / name / "0.parquet")


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


def measure(name: str, starts: int) -> dict[str, Any]:
    """The seconds of a contender's starts."""
    spark = session("plain" if name in ("join", "plain") else "configured")
    spark.conf.set("spark.sql.shuffle.partitions", "2")  # for the join; other queries set it, too
    took, planning, stages = [], [], 0
    with harness.workspace() as directory:
        feed(directory)
        tables = JOINS[name](spark, directory) if name in JOINS else []
        if tables:
            plan = plan_of([table.plan for table in tables], buckets=4, emit="change")
            stages = sum(stage.fragment.stateful for stage in plan.stages)
        for number in range(starts):
            begun = time.monotonic()
            query = started(spark, directory, tables, directory / f"checkpoint-{number}")
            query.awaitTermination()
            took.append(time.monotonic() - begun)
            (first,) = (p for p in query.recentProgress if p["numInputRows"])
            planning.append(first["durationMs"]["queryPlanning"] / 1000)
    spark.stop()
    return {
        "stages": stages,
        "first_s": round(took[0], 2),
        "first_planning_s": round(planning[0], 2),
        "again_s": round(median(took[1:]), 2),
        "again_planning_s": round(median(planning[1:]), 2),
    }


def drop(changes: DataFrame, _: int) -> None:
    """Compute all rows of a micro-batch."""
    changes.write.format("noop").mode("overwrite").save()


def started(
    spark: SparkSession, directory: Path, tables: Sequence[dt.Table], checkpoint: Path
) -> StreamingQuery:
    """The query of these results, which reads all that is there; Spark's own join for none."""
    if tables:
        sinks = {table: dt.to_foreach_batch(drop) for table in tables}
        return dt.run(sinks, checkpoint=checkpoint, trigger={"availableNow": True})
    orders, dimension = (frame(spark, directory, name) for name in ("orders", "d0"))
    joined = orders.join(dimension.drop("at"), "id")
    writer = joined.writeStream.format("noop").outputMode("append").trigger(availableNow=True)
    return writer.option("checkpointLocation", str(checkpoint)).start()


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]))))
