"""Debezium's events through a real broker, into a topic in Avro and back; what cannot be read goes
to a query of its own, and mended, it takes effect.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import IntegerType
from registry_server import PASSWORD, USER, served
from test_avro import avro_spark
from test_debezium import event

import dovetail as dt

__all__ = ["avro_spark"]


@pytest.mark.slow
@pytest.mark.usefixtures("avro_spark")
def test_a_database_by_way_of_topics(
    kafka_spark: SparkSession,
    kafka_servers: str,
    new_topic: Callable[[int], str],
    tmp_path: Path,
) -> None:
    source, target = new_topic(2), new_topic(2)
    events = dt.formats.debezium("id int, price decimal(10,2)", encodings={"price": "Decimal"})
    options = {"kafka.bootstrap.servers": kafka_servers, "topic": source}

    def send(*sent: Any) -> None:
        rows = [
            (str(key), value if value is None or isinstance(value, str) else json.dumps(value))
            for key, value in sent
        ]
        frame = kafka_spark.createDataFrame(rows, "key string, value string").coalesce(1)
        frame.write.format("kafka").options(**options).save()

    with served() as server:
        registry = dt.formats.registry(server.url, auth=(USER, PASSWORD))

        def run() -> None:
            prices = dt.Table.from_topic(
                kafka_spark, source, servers=kafka_servers, key_columns="id", value=events,
                name="prices", malformed="dead_letter",
            )  # fmt: skip
            sink = dt.to_topic(target, servers=kafka_servers, value=dt.formats.avro(registry))
            prices.materialize().write_stream(
                sink, checkpoint=tmp_path / "prices", trigger={"availableNow": True}
            ).awaitTermination()
            letters = prices.dead_letters().writeStream.format("parquet")
            letters.option("checkpointLocation", str(tmp_path / "c")).trigger(
                availableNow=True
            ).start(str(tmp_path / "letters")).awaitTermination()

        send(
            (1, event("r", None, {"id": 1, "price": "AfQ="})),
            (2, event("c", None, {"id": 2, "price": "/w=="})),
            (1, event("u", {"id": 1}, {"id": 1, "price": "ZA=="})),
            (2, event("d", {"id": 2}, None)),
            (2, None),
            (3, event("c", None, {"id": 3, "price": "?!"})),
        )
        run()
        (letter,) = kafka_spark.read.parquet(str(tmp_path / "letters")).collect()
        assert letter["_operator"] == "table prices"
        assert f"topic {source}, partition " in letter["_problem"]
        assert 'column `price` is no decimal(10,2): {"price":"?!"}' in letter["_problem"]
        kept = json.loads(letter["row"])
        assert kept["key"] == "3"
        send((3, kept["value"].replace('"?!"', '"yA=="')))
        run()
        assert kafka_spark.read.parquet(str(tmp_path / "letters")).count() == 1

        table = dt.Table.from_topic(
            kafka_spark, target, servers=kafka_servers, key={"id": IntegerType()},
            value=dt.formats.avro(registry), streaming=False,
        )  # fmt: skip
        rows = table.plan.frame.orderBy("_partition", "_offset").collect()
        changes: dict[int, list[Decimal | None]] = {}
        for row in rows:
            changes.setdefault(row["id"], []).append(None if row["_deleted"] else row["price"])
        assert changes == {
            1: [Decimal("5.00"), Decimal("1.00")],
            2: [Decimal("-0.01"), None],
            3: [Decimal("-0.56")],
        }
        assert list(server.subjects) == [f"{target}-value"]
