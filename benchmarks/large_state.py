"""A small micro-batch beside a small state and beside a large one, and the memory of it.

Each size is a process of its own: a query loads two tables of half the rows each, and then reads
micro-batches of a few rows with random keys. ``tables`` joins them by their keys, ``foreign_key``
by a column of the first one. The last figures of a size are the peaks of resident memory, added up
over all processes. They count files of the state that are mapped into memory.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import harness
from benchmarks.latency import table

SIZES = (100_000, 30_000_000)
JOINS = ("tables", "foreign_key")
FILE_ROWS = 500_000
WARM = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--rows", type=int, nargs=2, default=SIZES, help="in state (100000 30000000)"
    )
    parser.add_argument("--changed", type=int, default=2_000, help="rows of a micro-batch (2000)")
    parser.add_argument("--batches", type=int, default=60, help="measured micro-batches (60)")
    parser.add_argument("--memory-limit", default="8g", help="of dt.configure (8g)")
    parser.add_argument("--joins", nargs="+", choices=JOINS, default=JOINS)


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for join in arguments.joins:
        small, large = (
            apart(join, arguments.memory_limit, rows, arguments.changed, arguments.batches)
            for rows in arguments.rows
        )
        figures[join] = {"small": small, "large": large}
        figures[f"{join}_large_over_small"] = round(large["median_ms"] / small["median_ms"], 2)
        figures[f"{join}_slowest_over_median"] = round(large["slowest_ms"] / large["median_ms"], 2)
        rows = [("", *(f"{count:,} rows" for count in arguments.rows))]
        rows += [(name, f"{small[name]:,}", f"{large[name]:,}") for name in small]
        harness.show(f"{join}: micro-batches of {arguments.changed:,} rows", rows)
    return figures


def apart(join: str, memory_limit: str, *counts: int) -> dict[str, Any]:
    """The figures of a size, measured in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.large_state", join, memory_limit]
    command += map(str, counts)
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    harness.note(f"  {join}, {counts[0]:,} rows: {figures}")
    return figures


def feed(directory: Path, rows: int, changed: int, batches: int) -> int:
    """A file per micro-batch for each input; return the number of those that load the tables."""
    random, keys = np.random.default_rng(3), rows // 2
    parts = np.array_split(np.arange(keys), -(-keys // FILE_ROWS))
    for name in ("left", "right"):
        (directory / name).mkdir()
        for number in range(len(parts) + batches):
            loads = number < len(parts)
            ids = parts[number] if loads else random.integers(0, keys, changed // 2)
            at = pa.array(number * 1_000_000 + np.arange(len(ids)), pa.timestamp("us", "UTC"))
            columns = {
                "id": ids,
                "other": random.integers(0, keys, len(ids)),
                f"{name}_amount": random.integers(0, 1_000_000, len(ids)),
                "at": at,
            }
            pq.write_table(pa.table(columns), directory / name / f"{number:05}.parquet")
    return len(parts)


def measure(join: str, memory_limit: str, rows: int, changed: int, batches: int) -> dict[str, Any]:
    """The figures of a query with so many rows in state."""
    spark = harness.session(memory_limit=memory_limit)
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", "100000")
    with harness.workspace() as directory:
        loading = feed(directory, rows, changed, WARM + batches)
        left = table(spark, directory, "left", "other", "left_amount")
        right = table(spark, directory, "right", "right_amount")
        query = left.join(right, on="other" if join == "foreign_key" else None).write_stream(
            harness.Nowhere(), checkpoint=directory / "checkpoint", trigger={"availableNow": True}
        )
        query.awaitTermination()
        progress = [p for p in query.recentProgress if p["numInputRows"]]
        taken = [p["durationMs"]["triggerExecution"] for p in progress]
        assert len(taken) == loading + WARM + batches, len(taken)
        loaded_s, last = sum(taken[:loading]) / 1000, taken[loading + WARM :]
        files = sum(p.stat().st_size for p in directory.rglob("checkpoint/**/*") if p.is_file())
        figures = {
            "loaded_rows_per_s": round(rows / loaded_s),
            "median_ms": round(median(last)),
            "slowest_ms": max(last),
            "checkpoint_mb": round(files / 1e6),
            "memory_mb": harness.peak_memory_mb(),
            "workers_mb": harness.peak_memory_mb(workers=True),
        }
    spark.stop()
    return figures


if __name__ == "__main__":
    print(json.dumps(measure(*sys.argv[1:3], *map(int, sys.argv[3:]))))
