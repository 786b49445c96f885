"""Delta joins beside the stateful join: throughput, state, restart, as the stored rows grow.

Orders name one of so many customers; both tables are stored in a SQLite file with an index, as a
store that is kept in step with its changelog. The stateful join first reads all stored rows into
its state. Then both read the same micro-batches, orders that change beside some customers that do,
in turn, and the query is started once more with nothing but one small batch to read.

``--rows`` names the numbers of stored orders; ``cost_10m_over_100k`` compares the delta join at the
largest with that at the smallest.
The part ``strong`` is ``./dev bench snapshot-join``, the form that is exact at every commit.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import dovetail as dt
from benchmarks import harness
from benchmarks.table_table import PAD, joined

ROWS = (100_000, 10_000_000)
BATCH_RECORDS, BATCHES, WARM_UP = 10_000, 8, 2
ORDERS_A_CUSTOMER = 10
HOT = 0.8
LOAD_ROWS = 1_000_000
STRATEGIES = ("force", "none")
PARTS = ("eventual", "strong")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    shown = ",".join(map(str, ROWS))
    parser.add_argument("--rows", default=shown, help=f"stored orders, several by commas ({shown})")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {','.join(PARTS)} (all)")
    parser.add_argument("--records", type=int, default=BATCH_RECORDS, help="records a micro-batch")


@dataclass(frozen=True)
class Measured:
    """One way to join at one size: seconds a batch, bytes of state, seconds to start again, and
    which part of its lookups the caches answered.
    """

    batch_s: float
    state_bytes: int
    restart_s: float
    hit_rate: float


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    parts = arguments.parts.split(",")
    figures: dict[str, Any] = {}
    if "eventual" in parts:
        spark = harness.session()
        figures |= eventual(spark, arguments)
        spark.stop()
    if "strong" in parts:
        figures |= strong()
    return figures


def strong() -> dict[str, Any]:
    """The part over snapshots, in a process of its own: its session has Delta's extension."""
    command = [sys.executable, "-m", "benchmarks", "snapshot-join", "--json"]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    table, _, figures = printed.rstrip().rpartition("\n")
    print(table)
    return json.loads(figures)


def eventual(spark: SparkSession, arguments: argparse.Namespace) -> dict[str, Any]:
    """By lookups, beside the stateful join."""
    sizes = sorted(int(size) for size in arguments.rows.split(","))
    measured: dict[tuple[int, str], Measured] = {}
    with harness.workspace() as directory:
        for rows in sizes:
            data = directory / str(rows)
            write(data, rows, arguments.records)
            for strategy in STRATEGIES:
                harness.note(f"  {rows:,} stored orders: {NAMES[strategy]}")
                measured[rows, strategy] = measure(spark, data, strategy)
            shutil.rmtree(data)
    show(measured, sizes, arguments.records)
    last, first = measured[sizes[-1], "force"], measured[sizes[0], "force"]
    stateful = measured[sizes[-1], "none"]
    return {
        "rows": sizes,
        "state_bytes": last.state_bytes,
        "state_bytes_stateful": stateful.state_bytes,
        "throughput_over_stateful": round(stateful.batch_s / last.batch_s, 3),
        "cost_10m_over_100k": round(last.batch_s / first.batch_s, 3),
        "restart_over_stateful": round(last.restart_s / stateful.restart_s, 3),
        "cache_hit_rate": round(last.hit_rate, 3),
    }


NAMES = {"force": "delta join", "none": "stateful join"}


def show(measured: dict[tuple[int, str], Measured], sizes: list[int], records: int) -> None:
    shown = [("stored orders", "", "records/s", "state bytes", "start again s", "cache hits")]
    for rows in sizes:
        for strategy in STRATEGIES:
            of = measured[rows, strategy]
            shown.append(
                (
                    f"{rows:,}",
                    NAMES[strategy],
                    f"{records / of.batch_s:,.0f}",
                    f"{of.state_bytes:,}",
                    f"{of.restart_s:.1f}",
                    f"{of.hit_rate:.0%}" if strategy == "force" else "",
                )
            )
    harness.show(
        f"micro-batches of {records:,} records, values of 100 bytes, {HOT:.0%} of them for a "
        "hundredth of the customers; the median",
        shown,
    )


def write(data: Path, rows: int, records: int) -> None:
    """The store with all rows, loads of the stored rows, and the changes that follow."""
    customers = max(rows // ORDERS_A_CUSTOMER, 100)
    rng = np.random.default_rng(42)
    data.mkdir(parents=True)
    with closing(sqlite3.connect(data / "store.db")) as store:
        store.execute("PRAGMA journal_mode = WAL")
        store.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, customer INTEGER, note TEXT)")
        store.execute("CREATE TABLE customers (id INTEGER PRIMARY KEY, city TEXT)")
        for first in range(0, rows, LOAD_ROWS):
            ids = np.arange(first, min(first + LOAD_ROWS, rows))
            save(data, store, "orders", f"load{first:012d}", orders(ids, ids % customers, first))
        save(data, store, "customers", "load", cities(np.arange(customers), 0))
        store.execute("CREATE INDEX orders_by_customer ON orders (customer)")
        for number in range(BATCHES + 1):
            count = records * 9 // 10
            ids = rng.permutation(rows)[:count] if count <= rows else np.arange(rows)
            hot = rng.integers(0, max(customers // 100, 1), len(ids))
            chosen = np.where(rng.random(len(ids)) < HOT, hot, rng.integers(0, customers, len(ids)))
            # An order may change its customer, which is the harder case.
            first = rows + number * records
            save(data, store, "orders", f"then{number:03d}", orders(ids, chosen, first))
            changed = np.unique(rng.integers(0, customers, records // 10))
            save(data, store, "customers", f"then{number:03d}", cities(changed, first))


def orders(ids: Any, customers: Any, first: int) -> pa.Table:
    note = pc.utf8_slice_codeunits(joined("note", first + np.arange(len(ids)), PAD), 0, 100)
    return pa.table({"id": ids, "customer": customers, "note": note, "at": times(len(ids), first)})


def cities(ids: Any, first: int) -> pa.Table:
    city = pc.utf8_slice_codeunits(joined("city", first + ids, PAD), 0, 100)
    return pa.table({"id": ids, "city": city, "at": times(len(ids), first)})


def times(count: int, first: int) -> pa.Array:
    stamps = 1_600_000_000_000_000 + 1000 * (first + np.arange(count))
    return pa.array(stamps, pa.timestamp("us", "UTC"))


def save(data: Path, store: sqlite3.Connection, name: str, file: str, rows: pa.Table) -> None:
    """Rows into the store, then into the changelog."""
    values = rows.drop_columns(["at"])
    marks = ", ".join("?" * values.num_columns)
    lists = [column.to_pylist() for column in values.columns]
    store.executemany(f"INSERT OR REPLACE INTO {name} VALUES ({marks})", zip(*lists, strict=True))
    store.commit()
    (data / name).mkdir(exist_ok=True)
    pq.write_table(rows, data / name / f"{file}.parquet")


SCHEMAS = {
    "orders": "id long, customer long, note string, at timestamp",
    "customers": "id long, city string, at timestamp",
}


def tables(spark: SparkSession, data: Path, files: str) -> list[dt.Table]:
    made = []
    for name, indexes in (("orders", [dt.lookups.index("customer")]), ("customers", [])):
        frame = (
            spark.readStream.schema(SCHEMAS[name])
            .option("maxFilesPerTrigger", 1)
            .option("pathGlobFilter", files)
            .parquet(str(data / name))
        )
        table = dt.Table.from_changelog(frame, key="id", timestamp="at", name=name)
        source = dt.lookups.sqlite(data / "store.db", name, key="id", indexes=indexes)
        made.append(table.with_lookup(source))
    return made


def measure(spark: SparkSession, data: Path, strategy: str) -> Measured:
    """The stateful join reads the load first, which the delta join leaves to the store."""
    checkpoint = data / f"checkpoint-{strategy}"

    def start(files: str) -> Callable[[str], StreamingQuery]:
        left, right = tables(spark, data, files)
        table = left.join(
            right,
            on="customer",
            select=["customer", "note", "city"],
            delta_join=dt.delta_join(strategy=strategy),
        )
        return lambda c: table.write_stream(
            harness.Nowhere(), checkpoint=c, trigger={"availableNow": True}
        )

    if strategy == "none":
        harness.timed(start("load*"), checkpoint)
    hits, misses, batches = 0, 0, []
    query = start("then00[1-9]*")(str(checkpoint))
    query.awaitTermination()
    for progress in query.recentProgress:
        batches.append(progress["durationMs"]["triggerExecution"] / 1000)
        for name, row in progress.observedMetrics.items():
            if name.endswith(".lookups"):
                hits += row.left_hits + row.right_hits
                misses += row.left_misses + row.right_misses
    started = time.monotonic()
    harness.timed(start("then000*"), checkpoint)
    return Measured(
        batch_s=median(batches[WARM_UP:]),
        state_bytes=stored(checkpoint),
        restart_s=time.monotonic() - started,
        hit_rate=hits / max(hits + misses, 1),
    )


def stored(checkpoint: Path) -> int:
    """The bytes of state in a checkpoint: all but what says how far the sources are read."""
    state = checkpoint / "state"
    return sum(path.stat().st_size for path in state.rglob("*") if path.is_file())
