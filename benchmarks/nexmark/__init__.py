"""Nexmark: auctions and bids in events a second and core, each result checked against DuckDB.

With ``--flink`` Apache Flink runs each query as well, on the same files and in turn. The ratio is
that of whole runs, from the start of a query or job to its end. A first run is not counted.
"""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import dovetail as dt
from benchmarks import harness
from benchmarks.flink.process import flink
from benchmarks.nexmark.check import differences, queried, rows_at_rest
from benchmarks.nexmark.events import TURN, events
from benchmarks.nexmark.flink_queries import FILE_FORMAT, FLINK, TABLES, FlinkQuery
from benchmarks.nexmark.queries import QUERIES, SIDE_ROWS, Inputs, Query

EVENTS, FILES = 2_000_000, 4
KINDS = ("persons", "auctions", "bids")
CORES = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--events", type=int, default=EVENTS, help=f"of all kinds ({EVENTS})")
    parser.add_argument("--rounds", type=int, default=2, help="counted runs of each query (2)")
    parser.add_argument("--queries", nargs="*", default=list(QUERIES), help="by default all")
    parser.add_argument("--flink", action="store_true", help="beside Apache Flink")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    spark = harness.session(CORES)
    figures: dict[str, Any] = {}
    rows = [("query", "", "events/s and core", "rows at rest")]
    with (
        harness.workspace() as directory,
        flink() if arguments.flink else nullcontext() as peer,
    ):
        write(directory, arguments.events)
        if peer is not None:
            rows[0] += ("Flink", "beside Flink")
            for kind, columns in TABLES.items():
                peer.declare(kind, columns, directory / kind, FILE_FORMAT)
        for name in arguments.queries:
            query = QUERIES[name]
            count = check(spark, directory, name, query)
            if peer is not None:
                refuse_other_rows(directory, FLINK[name], peer.rows(FLINK[name].sql), query)
            runs, peer_s = [], []
            for index in range(arguments.rounds + 1):
                runs.append(measured(spark, directory, f"{name}-{index}", query))
                if peer is not None:
                    peer_s.append(peer.seconds(FLINK[name].sql))
                    harness.note(f"    Flink {peer_s[-1]:.1f} s, we {runs[-1].whole_s:.1f} s")
            per_core = events_in(directory) / CORES
            rate = per_core / median(run.batches_s for run in runs[1:])
            figures[f"{name}_events_per_s_and_core"] = round(rate)
            row: tuple[str, ...] = (name, query.title, f"{rate:,.0f}", f"{count:,}")
            if peer is not None:
                over = median(peer_s[1:]) / median(run.whole_s for run in runs[1:])
                figures[f"{name}_over_flink"] = round(over, 2)
                row += (f"{per_core / median(peer_s[1:]):,.0f}", f"{over:.2f}")
            rows.append(row)
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


def refuse_other_rows(directory: Path, flinks: FlinkQuery, rows: pa.Table, query: Query) -> None:
    """Raise ``AssertionError`` if Flink's rows at rest are not those of DuckDB."""
    inputs = {kind: pq.read_table(directory / kind) for kind in TABLES}
    tables = {**inputs, "flink": rows, "expected": rows_at_rest(query, inputs)}
    forms = [queried(sql, tables) for sql in (flinks.form, flinks.form_of_ours)]
    difference = differences(*forms)
    assert not difference, difference


class Run(NamedTuple):
    """The seconds of one run of a query."""

    batches_s: float
    """Those of its micro-batches."""
    whole_s: float
    """Those from its start to its end."""


def measured(spark: SparkSession, directory: Path, name: str, query: Query) -> Run:
    """Run a query into nowhere."""
    begun = perf_counter()
    topology = query.topology(read(spark, directory))
    options: dict[str, Any] = {"emit": "batch"} if isinstance(topology, dt.Table) else {}
    timed = harness.timed(
        lambda path: topology.write_stream(
            harness.Nowhere(), checkpoint=path, trigger={"availableNow": True}, **options
        ),
        directory / "checkpoints" / name,
    )
    run = Run(sum(timed.batch_ms) / 1000, perf_counter() - begun)
    harness.note(f"  {name}: {run.batches_s:.1f} s")
    return run


def events_in(directory: Path) -> int:
    """Return the number of events in the files."""
    paths = (path for kind in KINDS for path in (directory / kind).iterdir())
    return sum(pq.read_metadata(path).num_rows for path in paths)
