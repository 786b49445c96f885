"""A stream joined with a table: the stage beside a Spark stream joined with a static table.

Micro-batches of one million stream records with values of 100 bytes, from Parquet files to nowhere,
against a table of a million rows that the stage keeps in state and Spark reads from a file. The
static join cannot take a change of the table; it is the measure because it does the same lookups.
A second line has a table of 100 k rows, which Spark broadcasts instead of shuffling it.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import dovetail as dt
from benchmarks import harness
from benchmarks.table_table import read_side, write_side

RECORDS = 1_000_000
TABLE_ROWS = (1_000_000, 100_000)
WARM_UP, COUNTED = 3, 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=2, help="counted rounds (2)")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    spark = harness.session()
    shown = [("table of", "static join, records/s", "stage, records/s", "stage is")]
    figures: dict[str, Any] = {}
    with harness.workspace() as directory:
        for rows in TABLE_ROWS:
            rates = compare(spark, directory / str(rows), rows, arguments.rounds)
            over = rates["stage"] / rates["static"]
            static, stage = (f"{rates[name]:,.0f}" for name in ("static", "stage"))
            shown.append((f"{rows:,} rows", static, stage, f"{over:.2f} x"))
            name = "stage_over_static_join" if rows == TABLE_ROWS[0] else "stage_over_broadcast"
            figures[name] = round(over, 3)
    harness.show(
        f"micro-batches of {RECORDS:,} stream records, values of 100 bytes; the median, "
        f"{WARM_UP} first not counted",
        shown,
    )
    spark.stop()
    return figures


def compare(spark: SparkSession, data: Path, rows: int, rounds: int) -> dict[str, float]:
    """The rates of both joins with a table of so many rows."""
    write(data, rows)
    contenders = {"static": partial(static, spark, data), "stage": partial(stage, spark, data)}
    return harness.in_turn(contenders, data, rounds=rounds, warm_up=WARM_UP)


def write(data: Path, rows: int) -> None:
    """Write a table of so many rows, and the stream's records, a file a micro-batch."""
    rng = np.random.default_rng(42)
    write_side(data / "right" / "0.parquet", "right", rng.permutation(rows), 0, 1)
    for number in range(WARM_UP + COUNTED):
        keys, first = rng.integers(0, rows, RECORDS), rows + number * RECORDS
        write_side(data / "left" / f"{number}.parquet", "left", keys, first, 1)


def stage(spark: SparkSession, data: Path, checkpoint: str) -> StreamingQuery:
    """Start the join of the stream with the table."""
    left, right = (read_side(spark, data, side) for side in ("left", "right"))
    stream = dt.Stream.from_changelog(left, key="k", timestamp="ts", name="left")
    table = dt.Table.from_changelog(right, key="k", timestamp="ts", name="right")
    return stream.join(table).write_stream(
        harness.Nowhere(), checkpoint=checkpoint, trigger={"availableNow": True}
    )


def static(spark: SparkSession, data: Path, checkpoint: str) -> StreamingQuery:
    """Start Spark's join of the stream with a static table."""
    table = spark.read.parquet(str(data / "right")).drop("ts")
    return to_nowhere(read_side(spark, data, "left").join(table, "k"), checkpoint)


def to_nowhere(frame: DataFrame, checkpoint: str) -> StreamingQuery:
    """Start a query of Spark's own into nowhere."""
    writer = frame.writeStream.format("noop").outputMode("append")
    return writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
