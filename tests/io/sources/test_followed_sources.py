"""A query that takes over from a running one goes on in Kafka and Delta Lake where that one
stopped, on the same target.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType
from small_session import RECORDING_CHANGES, with_delta

import dovetail as dt
from dovetail.spark.query import takeover


@pytest.fixture(scope="module")
def delta_spark(kafka_spark: SparkSession) -> Iterator[SparkSession]:
    yield from with_delta(kafka_spark, RECORDING_CHANGES)


@pytest.mark.slow
def test_topics_and_delta_tables_are_gone_on_with(
    delta_spark: SparkSession,
    kafka_servers: str,
    new_topic: Callable[[int], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spark, topic, customers = delta_spark, new_topic(2), str(tmp_path / "customers")
    spark.createDataFrame([("a", "Oslo"), ("b", "Rome")], "name string, city string").writeTo(
        f"delta.`{customers}`"
    ).using("delta").create()

    def order(*ids: int) -> None:
        rows = [(str(i), json.dumps({"id": i, "customer": "ab"[i % 2]})) for i in ids]
        options = {"kafka.bootstrap.servers": kafka_servers, "topic": topic}
        frame = spark.createDataFrame(rows, "key string, value string")
        frame.write.format("kafka").options(**options).save()

    def move(name: str, city: str) -> None:
        spark.sql(f"UPDATE delta.`{customers}` SET city = '{city}' WHERE name = '{name}'")

    def topology() -> dt.Table:
        orders = dt.Table.from_topic(
            spark,
            topic,
            servers=kafka_servers,
            value=StructType().add("id", "long").add("customer", "string"),
            key_columns="id",
            name="orders",
        )
        read = dt.Table.from_delta(spark, customers, key="name", name="customers")
        return orders.join(read, on="customer", how="left", select=["city"])

    def start(checkpoint: str, target: str, **options: Any) -> Any:
        existing = {"existing": "adopt"} if "initial" in options else {}
        return topology().write_stream(
            dt.to_delta(tmp_path / target, **existing), checkpoint=tmp_path / checkpoint, **options
        )

    def content(target: str) -> list[tuple[Any, ...]]:
        frame = spark.read.format("delta").load(str(tmp_path / target))
        return sorted((row["id"], row["city"]) for row in frame.collect())

    order(1, 2, 3)
    old = start("old", "target", buckets=1)
    old.processAllAvailable()
    real, calls = takeover._follow_once, iter(range(1000))

    def come(*arguments: Any) -> int:
        if next(calls) == 0:
            order(4, 5)
            move("a", "Bergen")
            old.processAllAvailable()
        return real(*arguments)

    monkeypatch.setattr(takeover, "_follow_once", come)
    new = start("new", "target", buckets=2, initial=old)
    assert not old.isActive
    batches = spark.sql(f"DESCRIBE HISTORY delta.`{tmp_path / 'target'}`").count()
    order(6)
    move("b", "Pisa")
    new.processAllAvailable()
    new.stop()
    assert content("target") == [
        (1, "Pisa"), (2, "Bergen"), (3, "Pisa"), (4, "Bergen"), (5, "Pisa"), (6, "Bergen")
    ]  # fmt: skip
    assert spark.sql(f"DESCRIBE HISTORY delta.`{tmp_path / 'target'}`").count() > batches
    whole = start("unbroken", "whole", trigger={"availableNow": True})
    whole.awaitTermination()
    assert content("whole") == content("target")
