"""A stream joined with a small table: the shuffled join, and what one without a shuffle can reach.

Micro-batches of one million records with values of 100 bytes, from Parquet files to nowhere, and a
table of 100,000 rows. The measure is Spark's join with a static table, which it broadcasts:

- ``stage``: ``stream.join(table)``, which shuffles the stream by key;
- ``task``: a bound, not a join. Each task looks its records up in a sorted copy of the table, by a
  hash that the JVM computes. The table does not change, nothing is ordered or counted;
- ``passing``: a bound of every way through Python. Each task returns its records as they are.

``benchmarks/NOTES.md`` says why there is no such join.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks import harness
from benchmarks.stream_table import RECORDS, WARM_UP, stage, static, to_nowhere, write
from benchmarks.table_table import read_side

TABLE_ROWS = 100_000
TITLES = {
    "static": "Spark's broadcast join",
    "stage": "stream.join(table)",
    "task": "looked up in the task",
    "passing": "passed through Python",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=2, help="counted rounds (2)")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    spark = harness.session()
    with harness.workspace() as data:
        write(data, TABLE_ROWS)
        contenders = {
            "static": partial(static, spark, data),
            "stage": partial(stage, spark, data),
            "task": partial(in_task, spark, data),
            "passing": partial(passing, spark, data),
        }
        rates = harness.in_turn(contenders, data, rounds=arguments.rounds, warm_up=WARM_UP)
    spark.stop()
    rows = [("", "records/s", "of the broadcast join")]
    rows += [
        (TITLES[name], f"{rate:,.0f}", f"{rate / rates['static']:.2f}")
        for name, rate in rates.items()
    ]
    harness.show(f"micro-batches of {RECORDS:,} records, a table of {TABLE_ROWS:,} rows", rows)
    return {
        f"{name}_over_broadcast": round(rate / rates["static"], 3)
        for name, rate in rates.items()
        if name != "static"
    }


def in_task(spark: SparkSession, data: Path, checkpoint: str) -> StreamingQuery:
    """Start the lookups in each task."""
    table = spark.read.parquet(str(data / "right")).drop("ts")
    there = table.withColumn("hash", F.xxhash64("k")).orderBy("hash").toArrow()
    hashes, keys = there["hash"].to_numpy(), there["k"].combine_chunks()
    values = there["right"].combine_chunks()

    def joined(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            at = np.searchsorted(hashes, batch.column(3).to_numpy())
            places = pa.array(np.minimum(at, len(hashes) - 1))
            met = pc.equal(keys.take(places), batch.column(0))
            columns = [*batch.columns[:3], values.take(places)]
            names = ["k", "left", "ts", "right"]
            yield pa.RecordBatch.from_arrays(columns, names=names).filter(met)

    records = read_side(spark, data, "left").withColumn("hash", F.xxhash64("k"))
    schema = "k string, left string, ts timestamp, right string"
    return to_nowhere(records.mapInArrow(joined, schema), checkpoint)


def passing(spark: SparkSession, data: Path, checkpoint: str) -> StreamingQuery:
    """Start the query that returns its records as they are."""

    def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    records = read_side(spark, data, "left")
    return to_nowhere(records.mapInArrow(same, records.schema), checkpoint)
