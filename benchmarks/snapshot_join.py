"""A join over snapshots kept in a Delta table, beside computing it again.

Orders and their customers, of which some change: as a rule 1,000 of 2 million orders and 10 of 100
thousand customers. ``strong``: ``SnapshotTable.refresh``. ``recompute``: the batch join written
over the target. ``full merge``: the batch join merged into the target, without the rows that are
there already as they are. All have a target of their own, with the same content; each round changes
the sources once and runs all three. The first round is not counted.
"""

from __future__ import annotations

import argparse
import time
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
    parser.add_argument("--changed", type=int, default=1_000, help="orders that change (1000)")
    parser.add_argument("--rounds", type=int, default=3, help="counted rounds (3)")
    parser.add_argument("--how", default="left", help="kind of join (left)")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    return harness.on_delta("snapshot-join", measure, arguments)


def measure(spark: SparkSession, directory: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    rows, changed = arguments.rows, arguments.changed
    customers = rows // CUSTOMERS_SHARE
    orders_path, customers_path = str(directory / "orders"), str(directory / "customers")
    write(
        spark.range(0, rows, 1, FILES).select(
            F.col("id"),
            F.pmod(F.xxhash64("id"), F.lit(customers)).alias("customer"),
            F.concat(F.lit(PAD), F.col("id").cast("string")).alias("note"),
        ),
        orders_path,
    )
    write(
        spark.range(0, customers, 1, 2).select(
            F.col("id").alias("cid"), F.concat(F.lit(PAD), "id").alias("name")
        ),
        customers_path,
    )
    joined = dt.SnapshotTable.from_delta(spark, orders_path, key="id").join(
        dt.SnapshotTable.from_delta(spark, customers_path, key="cid"),
        on="customer",
        how=arguments.how,
    )
    paths = {name: str(directory / name) for name in ("strong", "recompute", "merge")}
    joined.refresh(paths["strong"])
    for name in ("recompute", "merge"):
        write(joined.to_batch(), paths[name])
    contenders: dict[str, Callable[[], Any]] = {
        "strong": lambda: joined.refresh(paths["strong"]),
        "recompute": lambda: write(joined.to_batch(), paths["recompute"]),
        "merge": lambda: full_merge(joined, paths["merge"]),
    }
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(arguments.rounds + 1):
        change(spark, orders_path, customers_path, rows, changed, number)
        for name, contender in contenders.items():
            start = time.perf_counter()
            contender()
            took = time.perf_counter() - start
            harness.note(f"  {f'round {number}' if number else 'warm-up'}: {name} {took:.2f} s")
            if number:
                taken[name].append(took)
    same = all(alike(spark, paths["strong"], paths[name]) for name in ("recompute", "merge"))
    seconds = {name: median(times) for name, times in taken.items()}
    harness.show(
        f"{changed:,} of {rows:,} rows change; the median of {arguments.rounds} rounds",
        [
            ("", "seconds", "strong is"),
            ("strong form", f"{seconds['strong']:.2f}", ""),
            *(
                (title, f"{seconds[name]:.2f}", f"{seconds[name] / seconds['strong']:.2f} x")
                for title, name in (
                    ("recompute and overwrite", "recompute"),
                    ("recompute and merge", "merge"),
                )
            ),
        ],
    )
    return {
        "rows": rows,
        "changed": changed,
        "strong_s": round(seconds["strong"], 3),
        "strong_over_recompute": round(seconds["recompute"] / seconds["strong"], 3),
        "strong_over_full_merge": round(seconds["merge"] / seconds["strong"], 3),
        "targets_are_equal": same,
    }


def write(frame: DataFrame, path: str) -> None:
    """A Delta table in place of what is there."""
    writer = frame.write.format("delta").mode("overwrite")
    writer = writer.option("delta.enableChangeDataFeed", "true")
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
    spark.sql(
        f"UPDATE delta.`{customers}` SET name = 'round {number}' "
        f"WHERE cid >= {number * count} AND cid < {(number + 1) * count}"
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
