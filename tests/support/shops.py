"""Orders and customers in files, and queries over them that are stopped, killed and upgraded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from timed_files import timed_file

import dovetail as dt

ORDERS = "id long, customer string, amount int, at timestamp"
CUSTOMERS = "name string, city string, at timestamp"
TOPOLOGY = """
from pathlib import Path
from pyspark.sql import SparkSession
import dovetail as dt

def totals():
    spark, folder = SparkSession.getActiveSession(), Path(__file__).parent
    read = spark.readStream.schema("id long, customer string, amount int, at timestamp")
    orders = dt.Table.from_changelog(
        read.json(str(folder / "orders")), key="id", timestamp="at", name="orders"
    )
    return orders.group_by("customer").agg(total=dt.sum("amount"))
"""
"""A program's module with a topology, as the command line reads it from a shop's folder."""


class Shop:
    """Orders and customers in a folder, and what queries over them have emitted."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder, self.files = spark, folder, 0
        for name in ("orders", "customers"):
            (folder / name).mkdir()

    def write(self, name: str, *rows: dict[str, Any]) -> None:
        self.files += 1
        at = f"2024-05-01T10:00:{self.files:02}Z"
        with timed_file(self.folder / name / f"{self.files:03}.json", self.files) as path:
            path.write_text("".join(f"{json.dumps({'at': at} | row)}\n" for row in rows))

    def read(self, name: str, columns: str) -> DataFrame:
        return self.spark.readStream.schema(columns).json(str(self.folder / name))

    def orders(self, columns: str = ORDERS, **options: Any) -> dt.Table:
        return dt.Table.from_changelog(
            self.read("orders", columns),
            key="id",
            timestamp="at",
            **{"name": "orders", **options},
        )

    def customers(self, columns: str = CUSTOMERS, **options: Any) -> dt.Table:
        return dt.Table.from_changelog(
            self.read("customers", columns), key="name", timestamp="at", name="customers", **options
        )

    def payments(self) -> dt.Stream:
        return dt.Stream.from_changelog(
            self.read("orders", ORDERS), key="id", timestamp="at", name="payments"
        )

    def joined(self, **options: Any) -> dt.Table:
        return self.orders().join(
            self.customers(), on="customer", select=["amount", "city"], **{"how": "left", **options}
        )

    def run(self, table: Any, checkpoint: str, **options: Any) -> list[tuple[Any, ...]]:
        """The changes of a run, without their times and positions, in the order of keys."""
        emitted: list[tuple[Any, ...]] = []

        def collect(changes: DataFrame, number: int) -> None:
            rows = changes.drop("_timestamp", "_position").collect()
            emitted.extend(sorted(map(tuple, rows), key=str))

        query = table.write_stream(
            dt.to_foreach_batch(collect),
            checkpoint=self.folder / checkpoint,
            trigger={"availableNow": True},
            **{"buckets": 2, "emit": "batch", **options},
        )
        query.awaitTermination()
        return emitted

    def files_of(self, name: str) -> dict[str, bytes]:
        root = self.folder / name
        return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


@pytest.fixture
def shop(spark: SparkSession, tmp_path: Path) -> Shop:
    made = Shop(spark, tmp_path)
    made.write("orders", *({"id": n, "customer": "abc"[n % 3], "amount": n} for n in range(1, 6)))
    made.write("customers", {"name": "a", "city": "Oslo"}, {"name": "b", "city": "Rome"})
    return made


class KilledError(Exception):
    """What ends a call in its middle."""
