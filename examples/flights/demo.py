"""The demo itself: write the history, run every query over it, report, check."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import polars as pl
from polars import selectors

import dovetail as dt
from examples.flights import check, joins, page, report
from examples.flights.history import ZONE, write_history

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from examples.flights.joins import Query


def run(
    spark: SparkSession,
    directory: Path,
    *,
    rows: int | None = None,
    slices: int = 12,
    page_path: Path | None = None,
) -> bool:
    """Run the demo on the first ``rows`` flights, in ``slices`` slices of time: does it check?

    ``page_path``: where the report is written as a page; None for nowhere.
    """
    started = time.monotonic()
    counts = write_history(directory / "history", rows, slices)
    print(f"{sum(counts.values()):,} records of {len(counts)} tables and streams:")
    print("  " + ", ".join(f"{name} {count:,}" for name, count in counts.items()))
    runs = [stream(spark, directory, query, counts) for query in joins.QUERIES]
    report.print_runs(runs)
    show_changes(spark, directory)
    equal = check_all(spark, directory)
    print(f"{time.monotonic() - started:.0f} s in all")
    if page_path is not None:
        write_page(spark, directory, runs, page_path)
    return equal


def stream(
    spark: SparkSession, directory: Path, query: Query, counts: Mapping[str, int]
) -> report.Run:
    """Run one query from its logs to Parquet files, until it has read all there is."""
    history = directory / "history"
    inputs = [joins.read(spark, history, log, query.files) for log in query.reads]
    rows = sum(counts[log.name] for log in query.reads)
    checkpoint = directory / "checkpoints" / query.name
    started = time.monotonic()
    running = query.topology(*inputs).write_stream(
        dt.to_parquet(str(directory / query.name)),
        checkpoint=str(checkpoint),
        trigger={"availableNow": True},
        emit=query.emit,
        query_name=query.name,
    )
    batches = report.follow(running, rows)
    return report.Run(
        name=query.name,
        rows_in=rows,
        changes_out=changes(spark, directory, query.name).height,
        batches=batches,
        seconds=time.monotonic() - started,
        progress=[batch for batch in dt.metrics.recent(running) if batch.rows],
        state_bytes=sum(f.stat().st_size for f in (checkpoint / "state").rglob("*") if f.is_file()),
    )


def write_page(
    spark: SparkSession, directory: Path, runs: Sequence[report.Run], path: Path
) -> None:
    """Write the report as a page: the topology of all flights, charts, and a flight's life."""
    (query,) = [query for query in joins.QUERIES if query.name == "network"]
    inputs = [joins.read(spark, directory / "history", log, query.files) for log in query.reads]
    topology = query.topology(*inputs)
    picture = topology.explain(format="svg")
    found = {name: changes(spark, directory, name) for name in ("weather", "network")}
    flight, _ = page.life_of_a_flight(found["network"])
    checkpoint = directory / "checkpoints" / query.name
    reasons = dt.checkpoints.explain_row(checkpoint, topology, flight)._repr_html_()
    html = page.page_html(runs, {"network": picture or ""}, **found, reasons=reasons)
    page.write(path, html)


def changes(spark: SparkSession, directory: Path, query: str) -> pl.DataFrame:
    """The changelog that a query has written, in the files that Spark has committed."""
    files = spark.read.parquet(str(directory / query)).inputFiles()
    # Spark writes instants without their zone, which is UTC, and in nanoseconds.
    instants = selectors.datetime().dt.replace_time_zone("UTC").dt.cast_time_unit("us")
    return pl.read_parquet(files).with_columns(instants)


def show_changes(spark: SparkSession, directory: Path) -> None:
    """Print what became of some flights and airlines, on which planes and in which weather."""
    flights = changes(spark, directory, "flights")
    local = pl.col("_timestamp").dt.convert_time_zone(ZONE)
    report.print_flights(flights.with_columns(local))
    network = changes(spark, directory, "network")
    report.print_growing_row(network.with_columns(local))
    report.print_makers(check.streamed(network, ["flight_id"]))
    report.print_carriers(check.streamed(changes(spark, directory, "carriers"), ["carrier"]))
    departures = pl.read_parquet(directory / "history" / "departures" / "*.parquet").height
    report.print_weather(changes(spark, directory, "weather"), departures)
    report.print_trips(changes(spark, directory, "trips"), departures)
    hours = check.streamed(changes(spark, directory, "hours"), ["carrier", "window_start"])
    start = pl.col("window_start").dt.convert_time_zone(ZONE)
    report.print_hours(hours.with_columns(start))


def check_all(spark: SparkSession, directory: Path) -> bool:
    """Compare what every query has streamed with what its inputs, read as a whole, give."""
    rows = 0
    equal = True
    for query in joins.QUERIES:
        expected = check.expected(directory / "history", query.name)
        streamed = check.streamed(changes(spark, directory, query.name), query.key)
        differing = check.differences(streamed, expected)
        rows += expected.height
        if differing.height:
            equal = False
            report.print_table(f"{query.name}: the first differing rows", differing.head(10))
    print(f"\ncheck: {'equal' if equal else 'NOT equal'} ({rows:,} rows)")
    return equal
