"""Tumbling counts and sums by key: the stage beside Spark's own windowed aggregation.

Micro-batches of one million records of 10 k keys that span an hour each, in windows of ten minutes,
from Parquet files to nowhere. Spark's runs in update mode, so each batch gives the groups that it
changes, once; the stage's ``emit="batch"`` does the same and is the like for like. Further lines:
every record's own result (``emit="change"``), each window once (``final``), and the windows beside
those of the hour before.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

import dovetail as dt
from benchmarks import harness

RECORDS, KEYS = 1_000_000, 10_000
HOUR_US = 3_600_000_000
WARM_UP, COUNTED = 3, 3
SCHEMA = "k long, v long, ts timestamp"
CONTENDERS = {
    "native": "Spark, update mode",
    "batch": "stage, emit='batch'",
    "change": "stage, every record's result",
    "final": "stage, each window once",
    "joined": "stage, beside the hour before, emit='batch'",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=2, help="counted rounds (2)")
    parser.add_argument("--records", type=int, default=RECORDS, help="a micro-batch (1000000)")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    spark = harness.session()
    with harness.workspace() as directory:
        write(directory / "in", arguments.records)
        contenders = {
            name: lambda checkpoint, name=name: start(spark, directory / "in", name, checkpoint)
            for name in CONTENDERS
        }
        rates = harness.in_turn(contenders, directory, rounds=arguments.rounds, warm_up=WARM_UP)
    shown = [("", "records/s", "of Spark's")]
    over = {name: rate / rates["native"] for name, rate in rates.items()}
    shown += [(CONTENDERS[n], f"{rate:,.0f}", f"{over[n]:.2f} x") for n, rate in rates.items()]
    harness.show(
        f"micro-batches of {arguments.records:,} records, {KEYS:,} keys, 6 windows each; the "
        f"median, {WARM_UP} first not counted",
        shown,
    )
    spark.stop()
    return {
        "stage_over_native": round(over["batch"], 3),
        "change_over_native": round(over["change"], 3),
        "final_over_native": round(over["final"], 3),
        "joined_over_native": round(over["joined"], 3),
    }


def write(directory: Path, records: int) -> None:
    """A file per micro-batch, its records in order of time but for some minutes."""
    directory.mkdir(parents=True)
    rng = np.random.default_rng(7)
    for number in range(WARM_UP + COUNTED):
        time = np.linspace(number * HOUR_US, (number + 1) * HOUR_US, records, endpoint=False)
        time = np.maximum(time + rng.normal(0, 60_000_000, records), 0).astype(np.int64)
        columns = {
            "k": rng.integers(0, KEYS, records),
            "v": rng.integers(0, 1000, records),
            "ts": pa.array(time).cast(pa.timestamp("us", "UTC")),
        }
        pq.write_table(pa.table(columns), directory / f"{number}.parquet")


def start(spark: SparkSession, data: Path, name: str, checkpoint: str) -> StreamingQuery:
    """One contender's query over all files."""
    frame = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(data))
    if name == "native":
        writer = native(frame).writeStream.format("noop").outputMode("update")
        return writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    stream = dt.Stream.from_changelog(frame, key="k", timestamp="ts", name="records")
    windows = dt.windows.tumbling("10 min", grace="10 min", retention="2 hours")
    totals = stream.group_by("k").window(windows).agg(n=dt.count(), total=dt.sum("v"))
    if name == "joined":
        beside = {"n": "left.n", "total": "left.total", "before": "right.n"}
        totals = totals.join(totals, how="left", shift="-1 hour", select=beside)
    table = totals.to_table(windows="on_close" if name == "final" else "on_change")
    return table.write_stream(
        harness.Nowhere(),
        checkpoint=checkpoint,
        trigger={"availableNow": True},
        emit="batch" if name in ("batch", "joined") else "change",
    )


def native(frame: DataFrame) -> DataFrame:
    """Spark's own windowed aggregation."""
    windows = frame.withWatermark("ts", "10 minutes").groupBy(F.window("ts", "10 minutes"), "k")
    return windows.agg(F.count("*").alias("n"), F.sum("v").alias("total"))
