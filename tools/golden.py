"""Write the checkpoints that every later version must be able to read, with what they hold.

    PYTHONPATH=tests/support .venv/bin/python tools/golden.py tests/golden/<version>

Each has small tables, some of which have been merged; ``expected.json`` beside them has the rows of
every table as read_state gives them, after some micro-batches. Written once for each version of a
stored format, never again.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import small_session
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import dovetail as dt

AT = datetime(2026, 1, 1, tzinfo=timezone.utc)
COLUMNS = "kind string, id long, other long, name string, at timestamp, gone boolean"
HOME, METADATA = "file:/golden", "state/*/_metadata/v2/*"
BATCHES = {"tables": 9, "history": 3, "streams": 3}
"""How many micro-batches each has: the first so many that runs are merged."""


def log(number: int) -> pa.Table:
    """One micro-batch."""
    rows = [
        ("order", number % 4, number % 3, f"o{number}", number == 7),
        ("order", 10 + number, 1, f"o{number}", False),
        ("customer", number % 3, None, f"c{number % 2}", number == 5),
        ("payment", number, number % 4, f"p{number}", False),
        ("refund", number // 2, number % 4, f"r{number}", False),
    ]
    times = [AT + timedelta(minutes=10 * number + place) for place in range(len(rows))]
    names = ["kind", "id", "other", "name", "gone"]
    made = pa.table([pa.array(column) for column in zip(*rows, strict=True)], names=names)
    return made.append_column("at", pa.array(times, pa.timestamp("us", "UTC")))


def topologies(frame: DataFrame) -> dict[str, Any]:
    """By the name of the checkpoint."""

    def own(kind: str, *columns: str) -> DataFrame:
        return frame.where(f"kind = '{kind}'").select(*columns, "at", "gone")

    read = {"timestamp": "at", "deleted": "gone"}
    orders = own("order", "id", "other", "name").withColumnRenamed("other", "customer")
    customers = own("customer", "id", "name").withColumnRenamed("name", "city")
    payments = own("payment", "id", "other", "name").drop("gone")
    refunds = own("refund", "id", "name").drop("gone")
    order = dt.Table.from_changelog(orders, key="id", name="orders", **read)
    past = dt.Table.from_changelog(orders, key="id", name="orders", versioned="1 hour", **read)
    customer = dt.Table.from_changelog(customers, key="id", name="customers", **read)
    payment = dt.Stream.from_changelog(payments, key="id", timestamp="at", name="payments")
    refund = dt.Stream.from_changelog(refunds, key="id", timestamp="at", name="refunds")
    enriched = order.join(
        customer,
        on="customer",
        how="left",
        select={"name": "left.name", "city": "right.city"},
        name="enriched orders",
    )
    within = dt.within(before="1 hour", after="1 hour", grace="10 min")
    return {
        "tables": enriched.group_by("city").agg(n=dt.count(), names=dt.collect_list("name")),
        "history": payment.join(past, on="other", how="left", grace="30 min", select=["other"]),
        "streams": payment.join(refund, within=within, how="left", select=["other"]),
    }


def tables_of(spark: SparkSession, checkpoint: Path, last: int) -> Iterator[tuple[str, int]]:
    """What can be read of a checkpoint, and after which micro-batches."""
    stores = dt.checkpoints.read_state(spark, checkpoint).collect()
    for name in dict.fromkeys(row["store"] for row in stores if row["table"]):
        yield name, last
    yield name, 1


def rows(frame: DataFrame) -> list[str]:
    """A frame's rows as text, in order."""
    return sorted(row[0] for row in frame.select(F.to_json(F.struct("*"))).collect())


def _moved(checkpoint: Path) -> None:
    """Spark writes down where the checkpoint is: as if in ``HOME``."""
    for file in checkpoint.glob(METADATA):
        home = checkpoint.parents[1]
        file.write_text(file.read_text().replace(f"file:{home}", HOME))
        (file.parent / f".{file.name}.crc").unlink(missing_ok=True)


def main() -> None:
    """Write them all."""
    root = Path(sys.argv[1]).resolve()
    builder = small_session.builder().config("spark.sql.session.timeZone", "UTC")
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    with tempfile.TemporaryDirectory() as folder:
        for name, count in BATCHES.items():
            (Path(folder) / name).mkdir()
            for number in range(count):
                path = Path(folder) / name / f"{number}.parquet"
                pq.write_table(log(number), path)
                os.utime(path, (number, number))
            reader = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1)
            topology = topologies(reader.parquet(f"{folder}/{name}"))[name]
            query = topology.write_stream(
                dt.to_memory(name),
                checkpoint=root / name,
                trigger={"availableNow": True},
                buckets=1,
            )
            query.awaitTermination()
            expected = {
                f"{table} @{batch}": rows(
                    dt.checkpoints.read_state(spark, root / name, table, batch=batch)
                )
                for table, batch in tables_of(spark, root / name, count - 1)
            }
            _moved(root / name)
            text = json.dumps(expected, indent=1, ensure_ascii=False)
            (root / f"{name}.json").write_text(f"{text}\n")
    spark.stop()


if __name__ == "__main__":
    main()
