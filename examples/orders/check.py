"""What the three targets hold beside PostgreSQL's own join."""

from __future__ import annotations

from typing import Any

import psycopg
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from examples.orders.query import ENRICHED, Place
from examples.orders.shop import COLUMNS, JOIN

Rows = list[tuple[Any, ...]]

_NAMES = COLUMNS.split(", ")
_JSON = (
    "order_id long, customer_id long, product_id long, quantity int, placed_at timestamp, "
    "name string, city string, title string, price decimal(10,2), amount decimal(12,2)"
)


def expected(place: Place) -> Rows:
    """What PostgreSQL joins."""
    return _asked(place, JOIN)


def targets(spark: SparkSession, place: Place) -> dict[str, Rows]:
    """What each target holds: a topic the latest record of each key."""
    records = spark.read.format("kafka").option("kafka.bootstrap.servers", place.servers)
    latest = (
        records.option("subscribe", ENRICHED)
        .load()
        .groupBy("key")
        .agg(F.max_by(F.struct("value"), "offset").alias("last"))
        .where("last.value IS NOT NULL")
    )
    value = F.from_json(F.col("last.value").cast("string"), _JSON)
    key = F.from_json(F.col("key").cast("string"), "order_id long")
    topic = latest.select(
        key["order_id"].alias("order_id"), *(value[n].alias(n) for n in _NAMES[1:])
    )
    delta = spark.read.format("delta").load(place.delta)
    return {
        "Delta": _collected(delta),
        "topic": _collected(topic),
        "PostgreSQL": _asked(place, f"SELECT {COLUMNS} FROM reports.{ENRICHED}"),
    }


def differences(found: Rows, wanted: Rows) -> list[str]:
    """The rows that differ."""
    found_counts, wanted_counts = _counted(found), _counted(wanted)
    return [
        *(f"wrong: {row}" for row in found if row not in wanted_counts),
        *(f"missing: {row}" for row in wanted if row not in found_counts),
        *(f"more than once: {row}" for row, count in found_counts.items() if count > 1),
    ]


def _counted(rows: Rows) -> dict[tuple[Any, ...], int]:
    counts: dict[tuple[Any, ...], int] = {}
    for row in rows:
        counts[row] = counts.get(row, 0) + 1
    return counts


def _collected(frame: Any) -> Rows:
    # Instants in microseconds, whatever the time zone of the process.
    columns = [F.unix_micros(n).alias(n) if n == "placed_at" else F.col(n) for n in _NAMES]
    return sorted(map(tuple, frame.select(*columns).collect()))


def _asked(place: Place, query: str) -> Rows:
    columns = COLUMNS.replace(
        "placed_at", "(EXTRACT(epoch FROM placed_at) * 1000000)::bigint AS placed_at"
    )
    with psycopg.connect(place.dsn) as connection:
        return sorted(connection.execute(f"SELECT {columns} FROM ({query}) AS rows").fetchall())
