"""Nexmark: auctions and bids in events a second and core, each result checked against DuckDB."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import dovetail as dt
from benchmarks import harness
from benchmarks.nexmark.check import differences, rows_at_rest
from benchmarks.nexmark.events import TURN, events
from benchmarks.nexmark.queries import QUERIES, SIDE_ROWS, Inputs, Query

EVENTS, FILES = 2_000_000, 4
CORES = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--events", type=int, default=EVENTS, help=f"of all kinds ({EVENTS})")
    parser.add_argument("--rounds", type=int, default=2, help="counted runs of each query (2)")
    parser.add_argument("--queries", nargs="*", default=list(QUERIES), help="by default all")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    spark = harness.session(CORES)
    figures: dict[str, Any] = {}
    rows = [("query", "", "events/s and core", "rows at rest")]
    with harness.workspace() as directory:
        write(directory, arguments.events)
        for name in arguments.queries:
            query = QUERIES[name]
            count = check(spark, directory, name, query)
            rate = median(measured(spark, directory, name, query, arguments.rounds)) / CORES
            figures[f"{name}_events_per_s_and_core"] = round(rate)
            rows.append((name, query.title, f"{rate:,.0f}", f"{count:,}"))
    spark.stop()
    harness.show(f"Nexmark, {arguments.events:,} events in {FILES} micro-batches", rows)
    return figures


def write(directory: Path, count: int) -> None:
    """Write ``count`` events as ``FILES`` Parquet files of each kind, and the table of query 13."""
    step = count // FILES // TURN * TURN
    for index in range(FILES):
        for name, table in events(index * step, step).items():
            (directory / name).mkdir(exist_ok=True)
            pq.write_table(table, directory / name / f"{index}.parquet")
    side = np.arange(SIDE_ROWS)
    (directory / "side").mkdir()
    pq.write_table(pa.table({"side": side, "value": side * 2}), directory / "side" / "0.parquet")


def read(spark: SparkSession, directory: Path) -> Inputs:
    """Return the files of ``write`` as inputs, one file of each kind a micro-batch."""

    def frame(name: str) -> DataFrame:
        path = str(directory / name)
        reader = spark.readStream.schema(spark.read.parquet(path).schema)
        return reader.option("maxFilesPerTrigger", 1).parquet(path)

    def table(name: str, key: str, called: str) -> dt.Table:
        return dt.Table.from_changelog(frame(name), key=key, timestamp=F.col("time"), name=called)

    side = spark.read.parquet(str(directory / "side"))
    return Inputs(
        dt.Table.from_static(side, key="side", name="side"),
        table("persons", "id", "persons"),
        table("auctions", "id", "auctions"),
        dt.Stream.from_changelog(frame("bids"), key="bid", timestamp=F.col("time"), name="bids"),
        table("bids", "bid", "bid_rows"),
    )


def check(spark: SparkSession, directory: Path, name: str, query: Query) -> int:
    """Run a query to Parquet, compare its rows at rest with DuckDB's, and return their number.

    Raises ``AssertionError`` with the first differences.
    """
    target = directory / "out" / name
    topology = query.topology(read(spark, directory))
    dt.run(
        {topology: dt.to_parquet(str(target))},
        checkpoint=str(directory / "checkpoints" / name),
        trigger={"availableNow": True},
        emit="batch" if isinstance(topology, dt.Table) else "change",
    ).awaitTermination()
    rows = (
        dt.read_current(spark, str(target))
        if isinstance(topology, dt.Table)
        else spark.read.parquet(str(target))
    ).toArrow()
    inputs = {
        path: pq.read_table(directory / path) for path in ("persons", "auctions", "bids", "side")
    }
    expected = rows_at_rest(query, inputs)
    difference = differences(rows, expected)
    assert not difference, f"{name}: {difference}"
    return len(expected)


def measured(
    spark: SparkSession, directory: Path, name: str, query: Query, rounds: int
) -> Iterator[float]:
    """Yield the events a second of each counted run: all events over the time of its micro-batches.
    A first run is not counted.
    """
    total = sum(
        pq.read_metadata(path).num_rows
        for kind in ("persons", "auctions", "bids")
        for path in (directory / kind).iterdir()
    )
    for index in range(rounds + 1):
        topology = query.topology(read(spark, directory))
        checkpoint = directory / "checkpoints" / f"{name}-{index}"
        options = {"emit": "batch"} if isinstance(topology, dt.Table) else {}
        timed = harness.timed(
            lambda path, topology=topology, options=options: topology.write_stream(  # type: ignore[misc]
                harness.Nowhere(), checkpoint=path, trigger={"availableNow": True}, **options
            ),
            checkpoint,
        )
        rate = 1000 * total / sum(timed.batch_ms)
        harness.note(f"  {'run ' + str(index) if index else 'warm-up'}: {name} {rate:,.0f} /s")
        if index:
            yield rate
