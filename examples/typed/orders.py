"""A topology as an application has it, typed: ``./dev versions`` checks it with mypy and pyright
against the installed package.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

import dovetail as dt
from dovetail import testing


def enriched(orders: dt.Table, customers: dt.Table) -> dt.Table:
    """Orders with their customers, those that cost something."""
    joined = orders.join(customers, on="customer", how="left", select=["amount", "city"])
    return joined.where(F.col("amount") > 0)


def by_city(orders: dt.Table) -> dt.Table:
    """How many orders each city has, and what they amount to."""
    return orders.group_by("city").agg(orders=dt.count(), amount=dt.sum("amount"))


def seen(clicks: dt.Stream, customers: dt.Table) -> dt.Stream:
    """Clicks with who clicked, as it was at the time."""
    return clicks.join(customers, how="left", on="customer", name="seen")


def paid(orders: dt.Table, payments: dt.Table) -> dt.Table:
    """Orders beside their payments, by the key that both have."""
    return orders.join(payments, how="outer", align="1 min")


def answered(requests: dt.Stream, replies: dt.Stream) -> dt.Stream:
    """Requests beside their replies, and those that had none within ten seconds."""
    within = dt.within(after="10 s", grace="2 s")
    return requests.join(replies, how="left", within=within, unmatched="eager")


def trend(clicks: dt.Stream, pages: dt.Table) -> dt.WindowedTable:
    """The clicks of each page and hour, those of a week before, and the page."""
    hours = dt.windows.tumbling("1 hour", retention="8 days")
    clicked = clicks.group_by("page").window(hours).agg(clicks=dt.count())
    select = {"clicks": "left.clicks", "before": "right.clicks"}
    return clicked.join(clicked, shift="-7 days", select=select).join(pages)


def visited(visits: dt.Table, clicked: dt.WindowedTable) -> dt.Table:
    """Visits beside the clicks of their hour."""
    return visits.join(clicked, window_of=F.date_trunc("hour", "at"))


def start(spark: SparkSession, orders: Path, customers: Path, out: Path) -> StreamingQuery:
    """Both tables kept by one query."""

    def table(name: str, folder: Path, key: str, columns: str) -> dt.Table:
        frame = spark.readStream.schema(f"{columns}, at timestamp").json(str(folder))
        return dt.Table.from_changelog(frame, key=key, timestamp="at", name=name)

    joined = enriched(
        table("orders", orders, "id", "id long, customer string, amount long"),
        table("customers", customers, "name", "name string, city string"),
    )
    totals = by_city(joined.materialize())
    return dt.run(
        {joined: dt.to_parquet(out / "joined"), totals: [dt.to_memory("totals")]},
        checkpoint=out / "checkpoint",
        trigger={"availableNow": True},
    )


def tried() -> Sequence[Mapping[str, object]]:
    """The same topology in process."""
    orders = testing.table(
        "orders", key="id", schema={"id": pa.int64(), "customer": pa.string(), "amount": pa.int64()}
    )
    customers = testing.table(
        "customers", key="name", schema={"name": pa.string(), "city": pa.string()}
    )
    joined = orders.join(customers, on="customer", how="left", select=["amount", "city"])
    driver = testing.Driver(by_city(joined))
    driver.pipe(customers, {"name": "ann", "city": "Oslo"}, timestamp=1)
    driver.pipe(orders, {"id": 1, "customer": "ann", "amount": 40}, timestamp=2)
    return [{**change.key, **(change.values or {})} for change in driver.read()]
