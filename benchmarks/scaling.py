"""One worker and two: the rate of a join by foreign key on a standalone cluster, and what moves.

Orders and their customers from Parquet files: a first micro-batch loads both, each further one
changes some orders. Workers have a core each, and the driver shares the machine with them: on two
cores two workers cannot be twice as fast as one. Beside it, the bytes of a micro-batch of a single
changed row, by the number of buckets: what partitions tell buckets costs as much without rows.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from pyspark.sql import SparkSession

import dovetail as dt
from benchmarks import harness
from benchmarks.delta_sink import feed, topology
from benchmarks.standalone import SETTINGS, cluster

WORKERS = (1, 2)
BUCKETS, MANY_BUCKETS = 8, 64
EVENTS = "events"
_VERSION = re.compile(r"(\d+)[^/]*\.(?:changelog|delta)$")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=600_000, help="orders (600000)")
    parser.add_argument("--changed", type=int, default=100_000, help="of them each time (100000)")
    parser.add_argument("--batches", type=int, default=6, help="micro-batches of changes (6)")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    size = (arguments.rows, arguments.changed, arguments.batches)
    found = {count: measured(count, BUCKETS, *size) for count in WORKERS}
    single = {count: measured(2, count, 1000, 1, 4) for count in (BUCKETS, MANY_BUCKETS)}
    harness.show(
        f"{arguments.changed:,} of {arguments.rows:,} orders change in a micro-batch",
        [
            ("workers", *map(str, found)),
            *(
                (title, *(f"{one[name]:,}" for one in found.values()))
                for title, name in (
                    ("orders/s, loading", "load_rate"),
                    ("orders/s, changing", "rate"),
                    ("bytes shuffled an order", "shuffled_per_row"),
                    ("bytes of state written an order", "state_per_row"),
                    ("MB of state in the end", "stored_mb"),
                    ("MB of the checkpoint in the end", "checkpoint_mb"),
                )
            ),
        ],
    )
    kilobytes = {count: round(one["shuffled_per_row"] / 1000, 1) for count, one in single.items()}
    harness.show(
        "a single changed row",
        [("buckets", *map(str, kilobytes)), ("kB shuffled", *map(str, kilobytes.values()))],
    )
    return {
        "rows": arguments.rows,
        "changed": arguments.changed,
        "two_over_one": round(found[2]["rate"] / found[1]["rate"], 2),
        "two_over_one_loading": round(found[2]["load_rate"] / found[1]["load_rate"], 2),
        "workers": found,
        "single_row_kb": kilobytes,
    }


def measured(workers: int, buckets: int, *size: int) -> dict[str, Any]:
    """What a driver of its own says of a cluster of so many workers."""
    with harness.workspace() as directory:
        feed(directory, *size)
        with cluster(directory / "cluster", workers=workers) as machines:
            command = [machines.url, str(directory), str(workers), str(buckets)]
            done = subprocess.run(
                [sys.executable, "-m", "benchmarks.scaling", *command],
                stdout=subprocess.PIPE,
                check=True,
                text=True,
            )
    made: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    harness.note(f"  {workers} workers, {buckets} buckets: {made}")
    return made


def drive(master: str, directory: Path, workers: int, buckets: int) -> dict[str, Any]:
    """The join, as the driver of a cluster."""
    (directory / EVENTS).mkdir()
    spark = session(master, directory / EVENTS)
    checkpoint = directory / "checkpoint"
    query = topology(spark, directory).write_stream(
        dt.to_parquet(directory / "out"),
        checkpoint=checkpoint,
        trigger={"availableNow": True},
        buckets=buckets,
        partitions=workers,
    )
    query.awaitTermination()
    progress = [p for p in query.recentProgress if p["numInputRows"]]
    rows = {p["batchId"]: p["numInputRows"] for p in progress}
    ms = {p["batchId"]: p["durationMs"]["triggerExecution"] for p in progress}
    stored = sum(row["bytes"] for row in dt.checkpoints.read_state(spark, checkpoint).collect())
    spark.stop()
    shuffled, written = shuffled_bytes(directory / EVENTS), state_bytes(checkpoint)
    later = [number for number in rows if number > 1]  # the second one's workers are cold as well
    files = (path for path in checkpoint.rglob("*") if path.is_file())
    return {
        "load_rate": round(1000 * rows[0] / ms[0]),
        "rate": round(median(1000 * rows[number] / ms[number] for number in later)),
        "shuffled_per_row": round(median(shuffled[number] / rows[number] for number in later)),
        "state_per_row": round(median(written[number + 1] / rows[number] for number in later)),
        "stored_mb": round(stored / 1e6, 1),
        "checkpoint_mb": round(sum(path.stat().st_size for path in files) / 1e6, 1),
    }


def session(master: str, events: Path) -> SparkSession:
    builder = dt.configure(SparkSession.builder.master(master).appName("dovetail benchmarks"))
    settings = {
        **SETTINGS,
        "spark.executor.cores": "1",
        "spark.executor.memory": "900m",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false",
        "spark.sql.streaming.numRecentProgressUpdates": "1000",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def shuffled_bytes(events: Path) -> Counter[int]:
    """What the tasks of each micro-batch have written for others."""
    batch_of: dict[int, int] = {}
    shuffled: Counter[int] = Counter()
    for event in _events(events):
        if event["Event"] == "SparkListenerJobStart":
            number = event["Properties"].get("streaming.sql.batchId")
            if number is not None:
                batch_of |= dict.fromkeys(event["Stage IDs"], int(number))
        elif event["Event"] == "SparkListenerTaskEnd" and event["Stage ID"] in batch_of:
            written = event["Task Metrics"]["Shuffle Write Metrics"]["Shuffle Bytes Written"]
            shuffled[batch_of[event["Stage ID"]]] += written
    return shuffled


def _events(folder: Path) -> Iterator[dict[str, Any]]:
    wanted = ('{"Event":"SparkListenerJobStart"', '{"Event":"SparkListenerTaskEnd"')
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        for line in path.read_text().splitlines():
            if line.startswith(wanted):
                yield json.loads(line)


def state_bytes(checkpoint: Path) -> Counter[int]:
    """What each version of the state has added to the checkpoint, without snapshots."""
    written: Counter[int] = Counter()
    for path in (checkpoint / "state").rglob("*"):
        found = _VERSION.search(path.name)
        if found is not None:
            written[int(found[1])] += path.stat().st_size
    return written


if __name__ == "__main__":
    url, folder, *counts = sys.argv[1:]
    print(json.dumps(drive(url, Path(folder), *map(int, counts))))
