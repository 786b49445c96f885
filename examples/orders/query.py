"""The query: three topics of Debezium's events, joined, into Delta, a compacted topic and
PostgreSQL. It runs in a process of its own, which the demo kills and starts again.
"""

from __future__ import annotations

import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import dovetail as dt
from examples.orders.shop import TABLES

CACHE = Path(os.environ.get("DOVETAIL_CACHE", Path.home() / ".cache" / "dovetail"))
COLUMNS = {
    "customers": "customer_id long, name string, city string",
    "products": "product_id long, title string, price decimal(10,2)",
    "orders": "order_id long, customer_id long, product_id long, quantity int, placed_at timestamp",
}
ENCODINGS = {"products": {"price": "Decimal"}}
"""How Debezium encodes what JSON has no type for; its records come without their schemas."""
ENRICHED = "orders_enriched"
"""The table that is kept, and the topic."""


@dataclass(frozen=True)
class Place:
    """Where everything is."""

    directory: str
    servers: str
    dsn: str

    @property
    def delta(self) -> str:
        """The Delta table."""
        return f"{self.directory}/{ENRICHED}"

    @property
    def letters(self) -> str:
        """The records that cannot be read, as Parquet."""
        return f"{self.directory}/letters"

    @property
    def finished(self) -> Path:
        """A file that says that nothing more comes."""
        return Path(self.directory) / "finished"


def topic_of(table: str) -> str:
    """The topic to which Debezium sends the changes of a table of the shop."""
    return f"pg.shop.{table}"


def read(spark: SparkSession, place: Place, table: str) -> dt.Table:
    """A table of the shop, from its change events."""
    return dt.Table.from_topic(
        spark,
        topic_of(table),
        name=table,
        servers=place.servers,
        key_columns=TABLES[table],
        value=dt.formats.debezium(COLUMNS[table], encodings=ENCODINGS.get(table)),
        malformed="dead_letter",
    )


def enriched(spark: SparkSession, place: Place) -> dt.Table:
    """Each order with its customer and its product, whichever of them changes."""
    orders, customers, products = (
        read(spark, place, table) for table in ("orders", "customers", "products")
    )
    joined = orders.join(customers, on="customer_id", how="left").join(
        products, on="product_id", how="left"
    )
    return joined.with_columns(amount=F.expr("CAST(price * quantity AS decimal(12,2))"))


def run(spark: SparkSession, place: Place) -> None:
    """Keep the three targets, and what cannot be read, until nothing more comes."""
    table = enriched(spark, place)
    query = dt.run(
        {
            table: [
                dt.to_delta(place.delta),
                dt.to_topic(ENRICHED, servers=place.servers),
                dt.to_postgres(place.dsn, f"reports.{ENRICHED}"),
            ],
            dt.dead_letters: dt.to_parquet(place.letters),
        },
        checkpoint=f"{place.directory}/checkpoint",
        trigger={"processingTime": "1 second"},
        buckets=2,
    )
    while not place.finished.exists():
        query.awaitTermination(0.2)
    query.processAllAvailable()
    query.stop()


def session(name: str, scratch: Path) -> SparkSession:
    """A local session with Kafka's and Delta's jars."""
    builder = dt.configure(
        SparkSession.builder.master("local[2]").appName(name),
        delta=True,
        jars=[CACHE / "jars" / group for group in ("kafka", "delta")],
        memory="2g",
    )
    spark = (
        builder.config("spark.local.dir", str(scratch))
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def command(place: Place) -> list[str]:
    """What starts the query in a process of its own."""
    return [sys.executable, "-m", "examples.orders.query", *asdict(place).values()]


if __name__ == "__main__":
    where = Place(*sys.argv[1:])
    run(session("dovetail orders", Path(where.directory) / "scratch"), where)
