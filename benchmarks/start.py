"""The start of a query in a new session: from the call to the end of its first micro-batch.

Each contender is a process of its own, which starts the query with a new checkpoint several times:
the first time workers and the JVM are cold. Spark starts a Python process on the driver for each
stage with state while it plans the first micro-batch; that is ``planning``. ``join`` is Spark's own
stateful join of streams, in a session as Spark makes it; ``plain`` is ``stages13`` in such a one.
``stages13_one_bucket`` has one bucket, where stages share operators.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import dovetail as dt
from benchmarks import harness, latency
from benchmarks.latency import DIMENSIONS
from dovetail.physical.planner import plan_of

RATIOS = {
    "first_table_table_over_join": ("table_table", "join"),
    "first_foreign_key_over_join": ("foreign_key", "join"),
    "first_foreign_key_aggregate_over_join": ("foreign_key_aggregate", "join"),
    "first_star_over_join": ("star", "join"),
    "stages13_over_one": ("stages13", "table_table"),
    "stages13_one_bucket_over_one": ("stages13_one_bucket", "table_table"),
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


def of_many(spark: SparkSession, directory: Path) -> list[dt.Table]:
    """Four results of 13 stages with state: joined rows, and sums that are joined further."""
    columns = [f"c{n}" for n in range(DIMENSIONS)]
    orders = latency.table(spark, directory, "orders", *columns, "amount")
    dimensions = [latency.table(spark, directory, f"d{n}") for n in range(DIMENSIONS)]
    placed = orders.join(dimensions[0], on="c0")
    totals = placed.group_by("v0").agg(amount=dt.sum("amount"))
    located = totals.join(dimensions[1], on={"v0": "id"}, select=["amount", "v1"])
    by_place = located.group_by("v1").agg(amount=dt.sum("amount"))
    priced = placed.join(dimensions[2], on="c2")
    by_price = priced.group_by("v2").agg(amount=dt.sum("amount"))
    sold = by_price.join(dimensions[3], on={"v2": "id"}, select=["amount", "v3"])
    return [located, by_place, sold, priced.join(dimensions[3])]


MANY = ("stages13", latency.one_bucket("stages13"), "plain")
CONTENDERS = ("join", *latency.JOINS, *MANY)


def measure(name: str, starts: int) -> dict[str, Any]:
    """The seconds of a contender's starts."""
    spark = latency.session("plain" if name in ("join", "plain") else "configured")
    spark.conf.set("spark.sql.shuffle.partitions", "2")  # for the join; other queries set it, too
    took, planning, stages = [], [], 0
    with harness.workspace() as directory:
        latency.feed(directory, batches=1)
        tables = of_many(spark, directory) if name in MANY else []
        if name in latency.JOINS:
            tables = [latency.JOINS[name](spark, directory)]
        if tables:
            plan = plan_of([table.plan for table in tables], buckets=4, emit="change")
            stages = sum(stage.fragment.stateful for stage in plan.stages)
        for number in range(starts):
            begun = time.monotonic()
            buckets = 1 if name == latency.one_bucket("stages13") else None
            query = started(spark, directory, tables, directory / f"checkpoint-{number}", buckets)
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
    spark: SparkSession,
    directory: Path,
    tables: Sequence[dt.Table],
    checkpoint: Path,
    buckets: int | None,
) -> StreamingQuery:
    """The query of these results, which reads all that is there; Spark's own join for none."""
    if tables:
        sinks = {table: dt.to_foreach_batch(drop) for table in tables}
        return dt.run(sinks, checkpoint=checkpoint, trigger={"availableNow": True}, buckets=buckets)
    orders, dimension = (latency.frame(spark, directory, name) for name in ("orders", "d0"))
    joined = orders.join(dimension.drop("at"), "id")
    writer = joined.writeStream.format("noop").outputMode("append").trigger(availableNow=True)
    return writer.option("checkpointLocation", str(checkpoint)).start()


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]))))
