"""The start of a query of seven stages with state: from the call to the end of its first
micro-batch, in a session as Spark makes it and in one of ``dt.configure``.

Each contender is a process of its own, which starts the query with a new checkpoint several times:
the first time workers and the JVM are cold. Spark starts a Python process on the driver for each
stage with state while it plans the first micro-batch; that is ``planning``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

import dovetail as dt
from benchmarks import harness
from dovetail.physical.planner import plan_of

ROWS = 1_000
CONTENDERS = ("plain", "configured")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=4, help="starts in a session (4)")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for name in CONTENDERS:
        command = [sys.executable, "-m", "benchmarks.start", name, str(arguments.rounds)]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
        figures[name] = json.loads(done.stdout.splitlines()[-1])
    stages = figures["plain"]["stages"]
    figures["planning_s_per_stage"] = round(figures["configured"]["again_planning_s"] / stages, 3)
    figures["plain_over_configured"] = round(
        figures["plain"]["first_s"] / figures["configured"]["first_s"], 2
    )
    rows = [("", *CONTENDERS)]
    rows += [
        (title, *(f"{figures[name][figure]:.2f} s" for name in CONTENDERS))
        for title, figure in (
            ("first start", "first_s"),
            ("of it planning", "first_planning_s"),
            ("each further start", "again_s"),
            ("of it planning", "again_planning_s"),
        )
    ]
    harness.show(f"start of a query of {stages} stages with state", rows)
    return figures


def topology(spark: SparkSession, directory: Path) -> dt.Table:
    """Orders and their customers, their totals by city, and those by region."""
    schemas = {
        "orders": "id long, customer long, amount long, at timestamp",
        "customers": "name long, city long, at timestamp",
        "cities": "number long, region long, at timestamp",
    }
    orders, customers, cities = (
        dt.Table.from_changelog(
            spark.readStream.schema(columns).parquet(str(directory / name)),
            key=columns.split()[0],
            timestamp="at",
            name=name,
        )
        for name, columns in schemas.items()
    )
    placed = orders.join(customers, on="customer", select=["amount", "city"])
    totals = placed.group_by("city").agg(amount=dt.sum("amount"))
    located = totals.join(cities, on={"city": "number"}, select=["amount", "region"])
    return located.group_by("region").agg(amount=dt.sum("amount"))


def feed(directory: Path) -> None:
    """A file for each table."""
    numbers = pa.array(range(ROWS), pa.int64())
    at = pa.array([1_700_000_000_000_000 + n for n in range(ROWS)], pa.timestamp("us", "UTC"))
    few = pa.array([n % 10 for n in range(ROWS)], pa.int64())
    tables = {
        "orders": {"id": numbers, "customer": numbers, "amount": few, "at": at},
        "customers": {"name": numbers, "city": few, "at": at},
        "cities": {"number": numbers, "region": few, "at": at},
    }
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


def measure(name: str, rounds: int) -> dict[str, Any]:
    """The seconds of a contender's starts."""
    spark, took, planning = session(name), [], []

    def drop(changes: DataFrame, _: int) -> None:
        changes.write.format("noop").mode("overwrite").save()

    with harness.workspace() as directory:
        feed(directory)
        table = topology(spark, directory)
        stages = plan_of([table.plan], buckets=8, emit="change").stages
        for number in range(rounds):
            begun = time.monotonic()
            query = table.write_stream(
                dt.to_foreach_batch(drop),
                checkpoint=directory / f"checkpoint-{number}",
                trigger={"availableNow": True},
            )
            query.awaitTermination()
            took.append(time.monotonic() - begun)
            (first,) = (p for p in query.recentProgress if p["numInputRows"])
            planning.append(first["durationMs"]["queryPlanning"] / 1000)
    spark.stop()
    return {
        "stages": sum(stage.fragment.stateful for stage in stages),
        "first_s": round(took[0], 2),
        "first_planning_s": round(planning[0], 2),
        "again_s": round(median(took[1:]), 2),
        "again_planning_s": round(median(planning[1:]), 2),
    }


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]))))
