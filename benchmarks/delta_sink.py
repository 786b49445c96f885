"""A changelog into a Delta table, beside the MERGE that Delta's documentation shows, and nowhere.

Orders and their customers, joined by foreign key: a first micro-batch loads both tables, each
further one changes some orders, all over the table. The contenders run the same join one after the
other, each into a table of its own; the first one also warms the JVM, so to compare them run each
alone (``--only``). Delta's log is read in two partitions by all of them, as ``to_delta`` does by
itself: by Delta's default, 50, the MERGE takes seconds more.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

import dovetail as dt
from benchmarks import harness
from benchmarks.snapshot_join import alike

CUSTOMERS_SHARE = 12
SEED = 7


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=60_000, help="orders (60000)")
    parser.add_argument("--changed", type=int, default=300, help="of them each time (300)")
    parser.add_argument("--batches", type=int, default=40, help="micro-batches (40)")
    parser.add_argument("--only", nargs="*", help="the contenders (all)")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    return harness.on_delta("delta-sink", measure, arguments)


def measure(spark: SparkSession, directory: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    rows, changed, batches = arguments.rows, arguments.changed, arguments.batches
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", batches + 1)
    feed(directory, rows, changed, batches)
    joined = topology(spark, directory)
    sinks: dict[str, Callable[[], Any]] = {
        "to_delta": lambda: dt.to_delta(directory / "to_delta"),
        "deltalake": lambda: dt.to_delta(directory / "deltalake", engine="deltalake"),
        "merge": lambda: dt.to_foreach_batch(merging(spark, directory / "merge")),
        "nowhere": harness.Nowhere,
    }
    taken: dict[str, list[int]] = {}
    for name, sink in sinks.items():
        if arguments.only and name not in arguments.only:
            continue
        start = partial(write, joined, sink())
        taken[name] = list(harness.timed(start, directory / "checkpoints" / name).batch_ms)
        harness.note(f"  {name}: {taken[name]}")
    show = {name: (ms[1:11], ms[-10:]) for name, ms in taken.items()}
    harness.show(
        f"{changed:,} of {rows:,} rows change in each of {batches:,} micro-batches",
        [
            ("median ms of", "micro-batches 1 to 10", "the last 10"),
            *((name, *(f"{median(ms):,.0f}" for ms in both)) for name, both in show.items()),
        ],
    )
    figures: dict[str, Any] = {"rows": rows, "changed": changed, "batches": batches}
    for name, (first, last) in show.items():
        figures |= {f"{name}_first_ms": median(first), f"{name}_last_ms": median(last)}
    if len(taken) == len(sinks):
        figures["merge_over_to_delta"] = round(
            median(show["merge"][1]) / median(show["to_delta"][1]), 2
        )
        figures["merge_over_deltalake"] = round(
            median(show["merge"][1]) / median(show["deltalake"][1]), 2
        )
        figures["tables_are_equal"] = all(
            alike(spark, str(directory / "merge"), str(directory / name))
            for name in ("to_delta", "deltalake")
        )
    return figures


def write(joined: dt.Table, sink: Any, checkpoint: str) -> Any:
    return joined.write_stream(sink, checkpoint=checkpoint, trigger={"availableNow": True})


def feed(directory: Path, rows: int, changed: int, batches: int) -> None:
    """A file for each micro-batch, the first one with all rows."""
    customers = max(rows // CUSTOMERS_SHARE, 1)
    ids = np.arange(customers)
    put(directory / "customers", 0, {"name": ids, "city": ids % 50})
    random = np.random.default_rng(SEED)
    for number in range(batches + 1):
        own = np.arange(rows) if number == 0 else random.choice(rows, changed, replace=False)
        put(
            directory / "orders",
            number,
            {
                "id": own,
                "customer": random.integers(0, customers, len(own)),
                "amount": random.integers(0, 1000, len(own)),
            },
        )


def put(folder: Path, number: int, columns: dict[str, Any]) -> None:
    folder.mkdir(exist_ok=True)
    at = pa.scalar(number * 1_000_000, pa.timestamp("us", "UTC"))
    columns["at"] = pa.repeat(at, len(next(iter(columns.values()))))
    pq.write_table(pa.table(columns), folder / f"{number:05}.parquet")


def topology(spark: SparkSession, directory: Path) -> dt.Table:
    def table(name: str, key: str, columns: str) -> dt.Table:
        reader = spark.readStream.schema(columns).option("maxFilesPerTrigger", 1)
        return dt.Table.from_changelog(
            reader.parquet(str(directory / name)), key=key, timestamp="at", name=name
        )

    orders = table("orders", "id", "id LONG, customer LONG, amount LONG, at TIMESTAMP")
    customers = table("customers", "name", "name LONG, city LONG, at TIMESTAMP")
    return orders.join(customers, on={"customer": "name"}, select=["amount", "city"])


def merging(spark: SparkSession, path: Path) -> Callable[[DataFrame, int], None]:
    """What a user would write: the last change of each key, merged."""
    spark.sql(f"CREATE TABLE delta.`{path}` (id LONG, amount LONG, city LONG) USING delta")

    def merge(batch: DataFrame, _: int) -> None:
        batch.sparkSession.sql(
            f"MERGE INTO delta.`{path}` AS stored USING (SELECT id, last.* FROM (SELECT id, "
            "max_by(struct(amount, city, _change), _position) AS last FROM {batch} GROUP BY id)) "
            "AS made ON stored.id = made.id WHEN MATCHED AND made._change = 'delete' THEN DELETE "
            "WHEN MATCHED THEN UPDATE SET amount = made.amount, city = made.city "
            "WHEN NOT MATCHED AND made._change <> 'delete' "
            "THEN INSERT (id, amount, city) VALUES (made.id, made.amount, made.city)",
            batch=batch,
        )

    return merge
