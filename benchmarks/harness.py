"""What benchmarks share: a session, timed queries, the memory of all their processes, tables."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

import dovetail as dt
from dovetail.plan.nodes import Node

CACHE = Path(os.environ.get("DOVETAIL_CACHE", Path.home() / ".cache" / "dovetail"))


class Nowhere:
    """A sink that computes every row and keeps none."""

    def writer(self, changes: DataFrame, node: Node, checkpoint: str) -> DataStreamWriter:
        return changes.writeStream.format("noop").outputMode("append")


@dataclass(frozen=True)
class Timed:
    """A finished query: rows and milliseconds of each micro-batch that read anything, and where
    each of its sources then stood, in the source's own terms. ``start_ms``: the first one's
    planning, in which Spark starts a Python process for each stage.
    """

    rows: tuple[int, ...]
    batch_ms: tuple[int, ...]
    start_ms: int
    ends: tuple[tuple[Any, ...], ...] = ()

    @property
    def rate(self) -> float:
        """The whole query's records a second."""
        return 1000 * sum(self.rows) / sum(self.batch_ms)

    @property
    def running_rate(self) -> float:
        """The whole query's records a second, once it is started."""
        return 1000 * sum(self.rows) / (sum(self.batch_ms) - self.start_ms)

    @property
    def rates(self) -> list[float]:
        """Each micro-batch's records a second, its planning and commit included."""
        return [1000 * n / ms for n, ms in zip(self.rows, self.batch_ms, strict=True)]


def session(
    cores: int = 2, *, packages: Sequence[str] = (), memory_limit: str | None = None
) -> SparkSession:
    """A session as users have it, with Kafka's jars where they are, and packages from Maven. The
    JVM has 6 GB, or what ``memory_limit`` leaves for it.
    """
    kafka = CACHE / "jars" / "kafka"
    builder = SparkSession.builder.master(f"local[{cores}]").appName("dovetail benchmarks")
    builder = dt.configure(
        builder,
        jars=[kafka] if kafka.is_dir() else [],
        memory="6g" if memory_limit is None else None,
        memory_limit=memory_limit,
    )
    for key, value in dt.checkpoints.settings(partitions=cores).items():
        builder = builder.config(key, value)
    if packages:
        builder = builder.config("spark.jars.packages", ",".join(packages))
    builder = (
        builder.config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
    )
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def on_delta(
    name: str,
    measure: Callable[[SparkSession, Path, argparse.Namespace], dict[str, Any]],
    arguments: argparse.Namespace,
) -> dict[str, Any]:
    """What is measured in a session with Delta Lake, of two cores; nothing where it is not here."""
    jars = CACHE / "jars" / "delta"
    if not list(jars.glob("*.jar")):
        note(f"{name}: skipped, Delta's jars are not here (tools/jars/fetch delta)")
        return {}
    builder = SparkSession.builder.master("local[2]").appName("dovetail benchmarks")
    builder = dt.configure(builder, delta=True, jars=jars, memory="4g")
    spark = (
        builder.config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.databricks.delta.snapshotPartitions", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    with workspace() as directory:
        figures = measure(spark, directory, arguments)
    spark.stop()
    return figures


@contextmanager
def workspace() -> Iterator[Path]:
    """A directory that is gone afterwards."""
    directory = Path(tempfile.mkdtemp(prefix="dovetail-bench-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def timed(start: Callable[[str], StreamingQuery], checkpoint: Path) -> Timed:
    """Run a query that stops by itself, by the clock of its own progress reports."""
    query = start(str(checkpoint))
    query.awaitTermination()
    progress = [p for p in query.recentProgress if p["numInputRows"]]
    return Timed(
        tuple(p["numInputRows"] for p in progress),
        tuple(p["durationMs"]["triggerExecution"] for p in progress),
        progress[0]["durationMs"].get("queryPlanning", 0),
        tuple(tuple(json.loads(s["endOffset"]) for s in p["sources"]) for p in progress),
    )


def in_turn(
    contenders: Mapping[str, Callable[[str], StreamingQuery]],
    directory: Path,
    *,
    rounds: int,
    warm_up: int = 0,
) -> dict[str, float]:
    """The median rate of each contender's micro-batches, all contenders in each round.

    A first round, and the first ``warm_up`` micro-batches of each query, are not counted.
    """
    measured = queries_in_turn(contenders, directory, rounds=rounds)
    return {
        name: median(rate for query in queries for rate in query.rates[warm_up:])
        for name, queries in measured.items()
    }


def queries_in_turn(
    contenders: Mapping[str, Callable[[str], StreamingQuery]], directory: Path, *, rounds: int
) -> dict[str, list[Timed]]:
    """Each contender's queries but for a first one that is not counted; all contenders in each
    round. The checkpoint of a round's query ends in ``-<round>``.
    """
    measured: dict[str, list[Timed]] = {name: [] for name in contenders}
    for number in range(rounds + 1):
        for name, start in contenders.items():
            checkpoint = directory / f"{name.replace(' ', '-')}-{number}"
            query = timed(start, checkpoint)
            shutil.rmtree(checkpoint, ignore_errors=True)
            label = f"round {number}" if number else "warm-up"
            note(f"  {label}: {name} {', '.join(f'{rate:,.0f}' for rate in query.rates)} /s")
            if number:
                measured[name].append(query)
    return measured


def forget_peaks() -> None:
    """Let the peaks of memory begin anew, of this process and all below it; Linux only."""
    for number in _processes():
        with suppress(OSError):
            Path(f"/proc/{number}/clear_refs").write_text("5")


def peak_memory_mb(*, workers: bool = False) -> int:
    """The peak resident memory of this process and all below it, added up; Linux only.

    ``workers``: of Spark's Python workers alone, without the JVM and this process.
    """
    return (
        sum(
            peak_kb
            for number, (name, peak_kb) in _processes().items()
            if not workers or (name.startswith("python") and number != os.getpid())
        )
        // 1024
    )


def _processes() -> dict[int, tuple[str, int]]:
    """This process and all below it: its name and its peak memory in kB."""
    own, peaks = psutil.Process(), {}
    for process in (own, *own.children(recursive=True)):
        with suppress(OSError):
            status = Path(f"/proc/{process.pid}/status").read_text().splitlines()
            fields = dict(line.split(":", 1) for line in status)
            peak_kb = int(fields.get("VmHWM", "0 kB").split()[0])
            peaks[process.pid] = (fields["Name"].strip(), peak_kb)
    return peaks


def note(text: str) -> None:
    """Progress, apart from the results."""
    print(text, file=sys.stderr, flush=True)


def show(title: str, rows: Sequence[tuple[str, ...]]) -> None:
    """A small table."""
    print(f"\n{title}")
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        print("  " + "  ".join(cells).rstrip())
