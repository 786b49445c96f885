"""A join over snapshots kept in a Delta table, beside computing it again.

Orders and their customers, of which some change: as a rule 1,000 of 2 million orders and 10 of 100
thousand customers. ``strong``: ``SnapshotTable.refresh``. ``changes`` and ``all``: the same, with
its ``way=`` given. ``recompute``: the batch join written over the target. ``merge``: the batch join
merged into the target, without the rows that are there already as they are. All have a target of
their own, with the same content; each round changes the sources once and runs all of them, in
another order, since the first one reads their logs for all. The first round is not counted.
"""

from __future__ import annotations

import argparse
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import dovetail as dt
from benchmarks import harness

CUSTOMERS_SHARE, CHANGED_CUSTOMERS_SHARE = 20, 100
FILES = 8
PAD = "abcdefghijklmnopqrstuvwxyz" * 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=2_000_000, help="orders (2000000)")
    parser.add_argument(
        "--changed",
        type=int,
        nargs="+",
        default=[1_000],
        help="orders that change: a number, or several, one after another (1000)",
    )
    parser.add_argument("--rounds", type=int, default=3, help="counted rounds of each number (3)")
    parser.add_argument("--how", default="left", help="kind of join (left)")
    parser.add_argument(
        "--grouped", action="store_true", help="count the join's rows by customer, and their notes"
    )
    parser.add_argument(
        "--contenders",
        nargs="+",
        choices=CONTENDERS,
        default=["strong", "recompute", "merge"],
        help="what runs (strong recompute merge)",
    )


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    return harness.on_delta("snapshot-join", measure, arguments)


def measure(spark: SparkSession, directory: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    rows = arguments.rows
    orders, customers = str(directory / "orders"), str(directory / "customers")
    fill(spark, orders, customers, rows)
    joined = dt.SnapshotTable.from_delta(spark, orders, key="id").join(
        dt.SnapshotTable.from_delta(spark, customers, key="cid"), on="customer", how=arguments.how
    )
    if arguments.grouped:
        notes = F.count_distinct("note")
        joined = joined.group_by("customer").agg(orders=F.count("*"), notes=notes, last=F.max("id"))
    paths = {name: str(directory / name) for name in arguments.contenders}
    for name, path in paths.items():
        if name in ("recompute", "merge"):
            write(joined.to_batch(), path, feed=False)
        else:
            joined.refresh(path)
    figures: dict[str, Any] = {"rows": rows, "changed": arguments.changed}
    number, turn = 0, deque(paths.items())
    for changed in arguments.changed:
        taken: dict[str, list[float]] = {name: [] for name in paths}
        warm_up = number == 0
        for _ in range(arguments.rounds + warm_up):
            change(spark, orders, customers, rows, changed, number)
            turn.rotate(-1)
            for name, path in turn:
                start = time.perf_counter()
                way = CONTENDERS[name](joined, path)
                took = time.perf_counter() - start
                harness.note(f"  {changed:,} rows, round {number}: {name} {took:.2f} s {way}")
                if number or not warm_up:
                    taken[name].append(took)
            number += 1
        seconds = {name: median(times) for name, times in taken.items()}
        show(rows, changed, arguments.rounds, seconds)
        suffix = "" if len(arguments.changed) == 1 else f"_{changed}"
        figures |= {f"{name}{suffix}_s": round(took, 3) for name, took in seconds.items()}
        figures |= {
            f"{first}_over_{FIGURES.get(name, name)}{suffix}": round(took / seconds[first], 3)
            for first in list(seconds)[:1]
            for name, took in list(seconds.items())[1:]
        }
    first, *others = paths.values()
    figures["targets_are_equal"] = all(alike(spark, first, other) for other in others)
    return figures


def show(rows: int, changed: int, rounds: int, seconds: dict[str, float]) -> None:
    """Print a table of the contenders beside the first one."""
    first = next(iter(seconds))
    harness.show(
        f"{changed:,} of {rows:,} rows change; the median of {rounds} rounds",
        [
            ("", "seconds", f"{first} is"),
            *((n, f"{s:.2f}", f"{s / seconds[first]:.2f} x") for n, s in seconds.items()),
        ],
    )


def fill(spark: SparkSession, orders: str, customers: str, rows: int) -> None:
    """The tables before all changes."""
    count = rows // CUSTOMERS_SHARE
    write(
        spark.range(0, rows, 1, FILES).select(
            F.col("id"),
            F.pmod(F.xxhash64("id"), F.lit(count)).alias("customer"),
            F.concat(F.lit(PAD), F.col("id").cast("string")).alias("note"),
        ),
        orders,
    )
    write(
        spark.range(0, count, 1, 2).select(
            F.col("id").alias("cid"), F.concat(F.lit(PAD), "id").alias("name")
        ),
        customers,
    )


def write(frame: DataFrame, path: str, *, feed: bool = True) -> None:
    """A Delta table in place of what is there."""
    writer = frame.write.format("delta").mode("overwrite")
    writer = writer.option("delta.enableChangeDataFeed", str(feed).lower())
    writer.option("delta.enableDeletionVectors", "true").save(path)


def change(
    spark: SparkSession, orders: str, customers: str, rows: int, changed: int, number: int
) -> None:
    """Updates, deletes and inserts of orders all over the table, and updates of some customers."""
    every = max(rows // changed, 1)
    picked = f"id < {rows} AND id % {every} = {number % every}"
    spark.sql(f"DELETE FROM delta.`{orders}` WHERE {picked} AND id % {10 * every} < {every}")
    spark.sql(f"UPDATE delta.`{orders}` SET note = 'round {number}' WHERE {picked}")
    new = spark.range(rows * (number + 2), rows * (number + 2) + changed // 10).select(
        "id", F.col("id").alias("customer"), F.lit("new").alias("note")
    )
    new.write.format("delta").mode("append").save(orders)
    count = max(changed // CHANGED_CUSTOMERS_SHARE, 1)
    first = number * count % (rows // CUSTOMERS_SHARE)
    spark.sql(
        f"UPDATE delta.`{customers}` SET name = 'round {number}' "
        f"WHERE cid >= {first} AND cid < {first + count}"
    )


def full_merge(joined: dt.SnapshotTable, path: str) -> None:
    """The join computed anew, merged into the target where rows differ."""
    keys, values = joined.plan.key.names, joined.plan.values.names
    apart = " OR ".join(f"NOT stored.{name} <=> made.{name}" for name in values)
    same = " AND ".join(f"stored.{name} <=> made.{name}" for name in keys)
    made = joined.to_batch()
    made.sparkSession.sql(
        f"MERGE INTO delta.`{path}` AS stored USING {{made}} AS made ON {same} "
        f"WHEN MATCHED AND ({apart}) THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT * "
        "WHEN NOT MATCHED BY SOURCE THEN DELETE",
        made=made,
    )


def refreshed(joined: dt.SnapshotTable, path: str, **options: Any) -> str:
    """Refresh the target; how that was done, and why."""
    (commit,) = joined.refresh(path, **options)
    return f"by {commit.way}: {commit.reason}"


def alike(spark: SparkSession, path: str, other: str) -> bool:
    """Whether two tables hold the same rows."""
    sides = [spark.read.format("delta").load(one) for one in (path, other)]
    hashes = [
        side.select(F.xxhash64(*sides[0].columns).cast("decimal(38)").alias("h"))
        .agg(F.count("*"), F.sum("h"))
        .first()
        for side in sides
    ]
    return hashes[0] == hashes[1]


CONTENDERS: dict[str, Callable[[dt.SnapshotTable, str], Any]] = {
    "strong": refreshed,
    "changes": lambda joined, path: refreshed(joined, path, way="changes"),
    "all": lambda joined, path: refreshed(joined, path, way="all"),
    "recompute": lambda joined, path: write(joined.to_batch(), path, feed=False),
    "merge": full_merge,
}
"""What runs, by its name; what it says of itself."""
FIGURES = {"merge": "full_merge"}
"""The names of contenders in figures, where they differ."""
