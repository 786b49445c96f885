"""State from outside: a table that is streamed in, seeded from a frame, read back, looked up by
single keys, and upgraded to twice the buckets.

Orders of some 100 bytes in Parquet files. A lookup is of one key that is chosen at random, in the
process that has asked before. The checkpoint is compared with the Parquet files of its rows; and
for each kind of store, after one micro-batch, with what is stored, before compression.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import dovetail as dt
from benchmarks import harness

COLUMNS = "id long, customer string, amount long, note string, at timestamp"
LOOKUPS, BUCKETS, FILES, KIND_ROWS = 400, 8, 8, 100_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--rows", type=int, nargs="+", default=[100_000, 1_000_000], help="(100000 1000000)"
    )


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    spark = harness.session()
    measured(spark, 2_000)  # starts what is cold
    found = {rows: measured(spark, rows) for rows in arguments.rows}
    kinds = kinds_of_stores(spark)
    spark.stop()
    titles = {
        "stream_s": "streamed in, s",
        "seed_s": "seeded from a frame, s",
        "seed_over_stream": "rate of seeding over streaming",
        "read_s": "all rows read back and counted, s",
        "first_lookup_s": "the first lookup, s",
        "lookup_p50_ms": "a lookup, median, ms",
        "lookup_p99_ms": "a lookup, 99 of 100, ms",
        "upgrade_s": "upgraded to twice the buckets, s",
        "upgrade_rows_per_s": "rows upgraded a second",
        "checkpoint_over_parquet": "checkpoint over Parquet",
    }
    rows = [("rows", *(f"{count:,}" for count in found))]
    rows += [(said, *(f"{one[name]:,}" for one in found.values())) for name, said in titles.items()]
    harness.show("state from outside", rows)
    shown = [("", "stored, bytes a row", "checkpoint over stored")]
    shown += [(kind, f"{own:.0f}", f"{over:.2f}") for kind, (own, over) in kinds.items()]
    harness.show(f"kinds of stores, {KIND_ROWS:,} rows of each input", shown)
    last = {name: [*found.values()][-1][name] for name in titles}
    return {"rows": found, "kinds": kinds, **last}


def kinds_of_stores(spark: SparkSession) -> dict[str, tuple[float, float]]:
    """Of each kind the bytes that it stores of a row of its inputs, and the checkpoint's over
    these.
    """
    with harness.workspace() as directory:
        feed(directory / "orders", KIND_ROWS)
        frame = spark.readStream.schema(COLUMNS).parquet(str(directory / "orders"))
        table, history, left, right = (
            kind.from_changelog(frame, key="id", timestamp="at", name=name, **options)
            for name, kind, options in (
                ("table", dt.Table, {}),
                ("history", dt.Table, {"versioned": "30 days"}),
                ("left", dt.Stream, {}),
                ("right", dt.Stream, {}),
            )
        )
        within = dt.within(before="1 day", after="1 day")
        referred = table.rename({"id": "other", "note": "text"})
        topologies = {
            "a table": (1, table.materialize()),
            "a history": (1, left.join(history, select={"n": "right.amount"})),
            "two streams": (2, left.join(right, within=within, select={"n": "right.amount"})),
            "a foreign key": (2, table.join(referred, on="amount", select={"n": "right.text"})),
            "groups of a table": (1, table.group_by("customer").agg(n=dt.sum("amount"))),
            "groups of a stream": (1, left.group_by("note").agg(n=dt.sum("amount"))),
        }
        found = {}
        for number, (kind, (inputs, topology)) in enumerate(topologies.items()):
            checkpoint = directory / f"checkpoint-{number}"
            topology.write_stream(
                harness.Nowhere(),
                checkpoint=checkpoint,
                trigger={"availableNow": True},
                buckets=BUCKETS,
            ).awaitTermination()
            stored = sum(
                row["bytes"] for row in dt.checkpoints.read_state(spark, checkpoint).collect()
            )
            own = stored / KIND_ROWS / inputs
            found[kind] = round(own, 1), round(size(checkpoint) / stored, 2)
    return found


def measured(spark: SparkSession, rows: int) -> dict[str, Any]:
    """The figures of a table of so many rows."""
    with harness.workspace() as directory:
        feed(directory / "orders", rows)
        (directory / "nothing").mkdir()
        parquet = size(directory / "orders")

        def orders(folder: str) -> dt.Table:
            frame = spark.readStream.schema(COLUMNS).parquet(str(directory / folder))
            read = dt.Table.from_changelog(frame, key="id", timestamp="at", name="orders")
            return read.materialize()

        def store(folder: str, checkpoint: str, **options: Any) -> None:
            query = orders(folder).write_stream(
                harness.Nowhere(),
                checkpoint=directory / checkpoint,
                trigger={"availableNow": True},
                buckets=BUCKETS,
                **options,
            )
            query.awaitTermination()

        streamed = took(lambda: store("orders", "streamed"))
        begun = {"orders": spark.read.schema(COLUMNS).parquet(str(directory / "orders"))}
        seeded = took(lambda: store("nothing", "seeded", initial=begun))
        stored = size(directory / "streamed")
        checkpoint = directory / "streamed"
        read = took(lambda: check(spark, checkpoint, rows))
        first = took(lambda: lookup(checkpoint, 0))
        for number in range(0, rows, max(1, rows // 64)):  # of each bucket some
            lookup(checkpoint, number)
        keys = random.Random(1).sample(range(rows), min(rows, LOOKUPS))
        each = [1000 * took(lambda key=key: lookup(checkpoint, key)) for key in keys]
        upgraded = took(
            lambda: dt.checkpoints.upgrade(
                spark, checkpoint, directory / "upgraded", orders("orders"), buckets=2 * BUCKETS
            )
        )
        check(spark, directory / "upgraded", rows)
    return {
        "stream_s": round(streamed, 1),
        "seed_s": round(seeded, 1),
        "seed_over_stream": round(streamed / seeded, 2),
        "read_s": round(read, 1),
        "first_lookup_s": round(first, 2),
        "lookup_p50_ms": round(float(np.percentile(each, 50)), 1),
        "lookup_p99_ms": round(float(np.percentile(each, 99)), 1),
        "upgrade_s": round(upgraded, 1),
        "upgrade_rows_per_s": round(rows / upgraded),
        "checkpoint_over_parquet": round(stored / parquet, 2),
    }


def feed(folder: Path, rows: int) -> None:
    """The orders, in files."""
    folder.mkdir()
    made = np.random.default_rng(1)
    for part in np.array_split(np.arange(rows), FILES):
        letters = made.integers(97, 123, (len(part), 60), dtype=np.uint8).view("S60").ravel()
        columns = {
            "id": pa.array(part),
            "customer": pa.array([f"customer {n}" for n in made.integers(0, 10_000, len(part))]),
            "amount": pa.array(made.integers(0, 100_000, len(part))),
            "note": pa.array(letters.astype("U60")),
            "at": pa.array(part + 1_700_000_000_000_000, pa.timestamp("us", "UTC")),
        }
        pq.write_table(pa.table(columns), folder / f"{part[0] if len(part) else 0}.parquet")


def check(spark: SparkSession, checkpoint: Path, rows: int) -> None:
    found = dt.checkpoints.read_state(spark, checkpoint, "orders").count()
    assert found == rows, (found, rows)


def lookup(checkpoint: Path, key: int) -> None:
    found = dt.checkpoints.lookup_state(checkpoint, "orders", keys=[key])
    assert found.column("id").to_pylist() == [key]


def took(work: Callable[[], Any]) -> float:
    begun = time.monotonic()
    work()
    return time.monotonic() - begun


def size(folder: Path) -> int:
    """The bytes of its files."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
