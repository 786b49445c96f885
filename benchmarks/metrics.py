"""What the figures of a query cost: micro-batches with reports and without, and time to count.

Queries join orders with a dimension, in one session and in turn. ``without``: no report leaves a
bucket, and Spark observes none. ``page``: as ``with``, beside the live page, which another process
reads as a browser does. What buckets count cannot be left out. So it is timed where it happens, in
this process, on such rows, beside the operators.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from subprocess import DEVNULL, Popen
from time import perf_counter_ns
from typing import Any
from unittest.mock import patch

import numpy as np
from pyspark.sql import SparkSession

import dovetail as dt
from benchmarks import harness, latency
from dovetail import testing
from dovetail.engine import fragment
from dovetail.engine.bucket_report import BucketReport
from dovetail.engine.fragment import BatchOutcome
from dovetail.operators.counts import Counts
from dovetail.operators.joins import table_join
from dovetail.spark.execution.emission import Emission, Rows
from dovetail.spark.execution.observations import Observations
from dovetail.spark.execution.streaming_frames import Streaming

WARM = 4
"""The number of micro-batches of each query that are left out."""


class NoReport(BucketReport):
    """A report without text, in place of one."""

    def as_text(self) -> str:
        return "null"


@dataclass
class Silent(Emission):
    """An emission whose reports are empty."""

    emission: Emission

    def __post_init__(self) -> None:
        self.columns = self.emission.columns

    def rows(self, done: BatchOutcome, bucket: int, high_time_us: int) -> Iterator[Rows]:
        if done.report is not None:
            done = replace(done, report=NoReport.empty(()))
        yield from self.emission.rows(done, bucket, high_time_us)


@contextmanager
def without_reports() -> Iterator[None]:
    """Queries that start in the block report nothing."""
    run_on_buckets = Streaming.run_on_buckets

    def run_silently(self: Streaming, packed: Any, step: Any, emission: Emission) -> Any:
        return run_on_buckets(self, packed, step, Silent(emission))

    with (
        patch.object(Streaming, "run_on_buckets", run_silently),
        patch.object(Observations, "_observe_reports", lambda _self, rows, *_: rows),
    ):
        yield


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--batches", type=int, default=28, help="micro-batches of a query (28)")
    parser.add_argument("--rounds", type=int, default=5, help="queries of each contender (5)")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    spark = harness.session()
    with harness.workspace() as directory:
        latency.feed(directory, arguments.batches)
        taken = in_turn(spark, directory, arguments.rounds)
    spark.stop()
    over, page_over = over_percent(taken, "without"), over_percent(taken, "with", of="page")
    share = counting_share(arguments.batches)
    figures = {
        "with_ms": round(median(ms for of in taken["with"] for ms in of), 1),
        "without_ms": round(median(ms for of in taken["without"] for ms in of), 1),
        "page_ms": round(median(ms for of in taken["page"] for ms in of), 1),
        "over_percent": round(median(over), 1),
        "over_percent_of_rounds": [round(one, 1) for one in over],
        "page_over_percent": round(median(page_over), 1),
        "page_over_percent_of_rounds": [round(one, 1) for one in page_over],
        "counting_percent": round(share, 2),
    }
    rows = [("", "value")]
    rows += [(name, str(value)) for name, value in figures.items()]
    harness.show(f"a micro-batch of {2 * latency.ROWS:,} rows, with reports and without", rows)
    return figures


def over_percent(taken: dict[str, list[list[float]]], base: str, of: str = "with") -> list[float]:
    """For each round by how much the median of ``of`` is longer than that of ``base``, in percent
    of ``base``.
    """
    medians = {name: [median(batches) for batches in taken[name]] for name in (of, base)}
    return [100 * (a / b - 1) for a, b in zip(medians[of], medians[base], strict=True)]


def in_turn(spark: SparkSession, directory: Path, rounds: int) -> dict[str, list[list[float]]]:
    """The durations of micro-batches in milliseconds, of each query of each contender. A first
    round is left out, and each round goes the other way.
    """
    taken: dict[str, list[list[float]]] = {"with": [], "without": [], "page": []}
    for number in range(rounds + 1):
        for name in [*taken][:: 1 if number % 2 else -1]:
            start = partial(started, spark, directory, str(directory / f"{name}-{number}"))
            if name != "without":
                durations = start(watched=name == "page")
            else:
                with without_reports():
                    durations = start()
            harness.note(f"  round {number}: {name} {median(durations):.0f} ms")
            if number:
                taken[name].append(durations)
    return taken


def started(
    spark: SparkSession, directory: Path, checkpoint: str, *, watched: bool = False
) -> list[float]:
    """Run a query to its end; the durations of its micro-batches. ``watched``: beside its page."""
    query = latency.of_tables(spark, directory).write_stream(
        harness.Nowhere(), checkpoint=checkpoint, trigger={"availableNow": True}
    )
    with beside_page(query) if watched else nullcontext():
        query.awaitTermination()
    progress = [p for p in query.recentProgress if "addBatch" in p.durationMs]
    return [p.durationMs["triggerExecution"] for p in progress][WARM:]


@contextmanager
def beside_page(query: Any) -> Iterator[None]:
    """Serve the query's page in the block to a process that reads all events."""
    page = dt.serve(query, port=0)
    read = f"import urllib.request as r; r.urlopen({page.url + 'events'!r}).read()"
    reader = Popen([sys.executable, "-c", read], stderr=DEVNULL)
    try:
        yield
    finally:
        reader.kill()
        reader.wait()
        page.stop()


def counting_share(batches: int) -> float:
    """The time in which buckets count, in percent of the time of their work."""
    spent_ns, reports = [0], list[BucketReport]()

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*arguments: Any) -> Any:
            begun = perf_counter_ns()
            result = function(*arguments)
            result = [*result] if isinstance(result, Iterator) else result
            spent_ns[0] += perf_counter_ns() - begun
            return result

        return wrapper

    empty = BucketReport.empty
    with (
        patch.object(BucketReport, "add_rows", timed(BucketReport.add_rows)),
        patch.object(BucketReport, "add_pairs", timed(BucketReport.add_pairs)),
        patch.object(BucketReport, "add_state", timed(BucketReport.add_state)),
        patch.object(fragment, "_count_waiting_rows", timed(vars(fragment)["_count_waiting_rows"])),
        patch.object(table_join, "_matched_events", timed(vars(table_join)["_matched_events"])),
        patch.object(Counts, "add_matches", timed(Counts.add_matches)),
        patch.object(BucketReport, "empty", lambda us: reports.append(empty(us)) or reports[-1]),
    ):
        joined(batches)
        work_us = sum(report.work_us for report in reports)
        text = timed(BucketReport.as_text)
        for report in reports:
            text(report)
    return 100 * spent_ns[0] / 1000 / work_us


def joined(batches: int) -> None:
    """The benchmark's join in this process."""
    import pyarrow as pa

    random = np.random.default_rng(7)
    orders = testing.table("orders", key="id", schema={"id": pa.int64(), "amount": pa.int64()})
    others = testing.table("d0", key="id", schema={"id": pa.int64(), "v0": pa.int64()})
    driver = testing.Driver(orders.join(others), buckets=8)
    for number in range(batches):
        with driver.batch():
            for table, value in ((orders, "amount"), (others, "v0")):
                keys = random.integers(0, latency.KEYS, latency.ROWS)
                rows = [{"id": int(key), value: number} for key in keys]
                driver.pipe(table, rows, timestamp=number + 1)
