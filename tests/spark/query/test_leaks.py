"""What a query holds does not grow with its micro-batches: it may run for months.

Run as a script, this module is the process that a test watches.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import small_session
from drivers import reported
from pyspark.sql import SparkSession

import dovetail as dt

AT = datetime(2026, 1, 1, tzinfo=timezone.utc)


BATCHES, SETTLED, WATCHED, BUCKETS = 100, 40, 20, 2
"""A query is watched for some micro-batches early, once it has settled, and for the last ones."""


class Held(NamedTuple):
    """What the JVM and the Python workers below it hold at one time."""

    open_files: int
    sockets: int
    threads: int
    processes: int
    temporary_files: int


def held(spark: SparkSession) -> Held:
    # Spark removes the files of a shuffle once its plan is garbage, else half an hour later.
    gc.collect()
    spark.sparkContext._jvm.System.gc()  # type: ignore[union-attr]
    java = next(process for process in psutil.Process().children() if process.name() == "java")
    workers = java.children(recursive=True)
    context: Any = spark.sparkContext
    disk = context._jsc.sc().env().blockManager().diskBlockManager()
    roots = [*disk.localDirsString(), Path(context._temp_dir).parent]
    return Held(
        java.num_fds() + sum(fds_of(worker) for worker in workers),
        len(java.net_connections()),
        java.num_threads(),
        len(workers),
        sum(len(files) for root in roots for _, _, files in os.walk(root)),
    )


def fds_of(process: psutil.Process) -> int:
    try:
        return process.num_fds()
    except psutil.Error:  # it has just ended
        return 0


def topology(spark: SparkSession, folder: Path) -> dt.Table:
    """Two stateful operators for the foreign key, two for the aggregate."""

    def table(name: str, key: str, columns: str) -> dt.Table:
        frames = spark.readStream.schema(f"{columns}, at timestamp")
        frame = frames.option("maxFilesPerTrigger", 1).parquet(str(folder / name))
        return dt.Table.from_changelog(frame, key=key, timestamp="at", name=name)

    orders = table("orders", "id", "id long, customer long, amount long")
    customers = table("customers", "name", "name long, city long")
    joined = orders.join(customers, on={"customer": "name"}, select=["amount", "city"])
    return joined.group_by("city").agg(orders=dt.count(), amount=dt.sum("amount"))


def write(folder: Path, batches: int) -> None:
    """A few rows a micro-batch, new ones and replaced ones."""
    for name in ("orders", "customers"):
        (folder / name).mkdir()
    for batch in range(batches):
        at = AT + timedelta(minutes=batch)
        rows = [{"id": (7 * batch + n) % 400, "customer": n, "amount": batch} for n in range(20)]
        some = [{"name": n, "city": (n + batch) % 5} for n in range(batch % 20, 20)]
        for name, own in (("orders", rows), ("customers", some)):
            dated = pa.Table.from_pylist([{**row, "at": at} for row in own])
            pq.write_table(dated, folder / name / f"{batch:04}.parquet")


def samples(query: Any, spark: SparkSession) -> Iterator[tuple[int, Held]]:
    """What is held after some of the micro-batches, each with its number."""
    seen = -1
    while query.isActive:
        progress = query.lastProgress
        batch = -1 if progress is None else progress["batchId"]
        if batch > seen and not SETTLED < batch < BATCHES - WATCHED:
            seen = batch
            yield batch, held(spark)
        time.sleep(0.2)
    query.awaitTermination()


def main(folder: Path) -> None:
    """Run the query in a process of its own, and print what it holds early and late."""
    builder = small_session.builder().config("spark.sql.shuffle.partitions", "1")
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    write(folder, BATCHES)
    sink, checkpoint = dt.to_parquet(str(folder / "out")), str(folder / "checkpoint")
    started = topology(spark, folder)
    query = started.write_stream(
        sink, checkpoint=checkpoint, buckets=BUCKETS, trigger={"availableNow": True}
    )
    found = list(samples(query, spark))
    early = [own for batch, own in found if SETTLED - WATCHED <= batch <= SETTLED]
    late = [own for batch, own in found if batch >= BATCHES - WATCHED]
    print(json.dumps({"ended": query.lastProgress["batchId"], "early": early, "late": late}))


@pytest.mark.slow
def test_micro_batches_leave_nothing_behind(tmp_path: Path) -> None:
    """What is held rises and falls; a leak raises its floor above what was its ceiling."""
    found = reported(__file__, tmp_path)
    assert found["ended"] == BATCHES - 1
    assert min(len(found["early"]), len(found["late"])) > 3
    most = [max(values) for values in zip(*found["early"], strict=True)]
    least = [min(values) for values in zip(*found["late"], strict=True)]
    for what, before, after in zip(Held._fields, most, least, strict=True):
        assert after <= before, f"{what}: at most {before} early, at least {after} late"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
