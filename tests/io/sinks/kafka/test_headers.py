"""The headers of a topic's records, and what Kafka's producer promises them by default."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from committed_topics import committed
from parquet_rows import add_file
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import dovetail as dt

NewTopic = Callable[[int], str]
START = datetime(2024, 1, 1, tzinfo=timezone.utc)
TIME = ("dovetail.timestamp_us", b"1704067200000000")
UPSERT, DELETE = ("dovetail.change", b"upsert"), ("dovetail.change", b"delete")
COLUMNS = "id long, tenant string, n int, `a.b` binary, at timestamp, gone boolean"
ROWS: list[tuple[Any, ...]] = [
    (1, "x", 4, b"\xff\x00", START, False),
    (1, None, None, None, START, False),
    (1, None, None, None, START, True),
]


def table(spark: SparkSession, folder: Path) -> dt.Table:
    """A row that is set, set to nulls, and deleted."""
    add_file(folder / "in", ROWS, COLUMNS)
    frame = spark.readStream.schema(COLUMNS).parquet(str(folder / "in"))
    return dt.Table.from_changelog(frame, key="id", timestamp="at", deleted="gone", name="rows")


def test_headers_are_columns_and_expressions_and_nulls_are_none(
    kafka_spark: SparkSession, kafka_servers: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    """By a query of one result and by one of several, whose sinks are other code."""
    rows, topics = table(kafka_spark, tmp_path), [new_topic(1), new_topic(1)]
    sinks = [
        dt.to_topic(
            topic,
            servers=kafka_servers,
            headers={
                "tenant": "tenant",
                "raw": "a.b",
                "more": F.col("n") + 1,
                "of": F.lit("shop"),
                "id": F.col("id"),
            },
        )
        for topic in topics
    ]
    rows.write_stream(
        sinks[0], checkpoint=tmp_path / "one", trigger={"availableNow": True}, buckets=1
    ).awaitTermination()
    dt.run(
        {rows: [sinks[1], dt.to_parquet(tmp_path / "out")]},
        checkpoint=tmp_path / "several",
        trigger={"availableNow": True},
        buckets=1,
    ).awaitTermination()
    always = [("of", b"shop"), ("id", b"1")]
    for topic in topics:
        (written,) = committed(kafka_servers, topic)
        assert [message.headers() for message in written] == [
            [TIME, UPSERT, ("tenant", b"x"), ("raw", b"\xff\x00"), ("more", b"5"), *always],
            [TIME, UPSERT, *always],
            [TIME, DELETE, *always],
        ]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"h": "nope"}, "headers= names an unknown column 'nope'. Known are id, tenant"),
        ({"h": F.max}, r"headers\['h'\] is not of one row"),
        ({"h": F.col}, r"headers\['h'\] does not resolve.*Known are id, tenant"),
    ],
)
def test_a_header_that_makes_no_sense_is_refused(
    kafka_spark: SparkSession, tmp_path: Path, given: dict[str, Any], message: str
) -> None:
    """Before the query starts, so without a broker."""
    columns = {
        n: c if isinstance(c, str) else c("n" if c is F.max else "m") for n, c in given.items()
    }
    sink = dt.to_topic("t", servers="nowhere:1", headers=columns)
    with pytest.raises(dt.errors.PlanError, match=f"write_topic: {message}"):
        table(kafka_spark, tmp_path).write_stream(sink, checkpoint=tmp_path / "checkpoint")
    with pytest.raises(dt.errors.PlanError, match=r"headers= has 'dovetail\.change'"):
        dt.to_topic("t", servers="nowhere:1", headers={"dovetail.change": "tenant"})


def test_the_producer_is_idempotent_and_in_no_transaction(
    kafka_spark: SparkSession, kafka_servers: str
) -> None:
    """What docs/kafka.md says: Spark leaves Kafka's defaults as they are. It begins no transaction,
    so none can be asked for.
    """
    jvm: Any = kafka_spark._jvm
    options = jvm.PythonUtils.toScalaMap({"kafka.bootstrap.servers": kafka_servers})
    maps = getattr(jvm.org.apache.spark.sql.catalyst.util, "CaseInsensitiveMap$")
    options = getattr(maps, "MODULE$").apply(options)
    provider = getattr(jvm.org.apache.spark.sql.kafka010, "KafkaSourceProvider$")
    given = dict(getattr(provider, "MODULE$").kafkaParamsForProducer(options))
    assert {*given} == {"bootstrap.servers", "key.serializer", "value.serializer"}
    defaults = jvm.org.apache.kafka.clients.producer.ProducerConfig.configDef().defaultValues()
    assert (defaults.get("enable.idempotence"), defaults.get("acks")) == (True, "all")
    assert defaults.get("transactional.id") is None
    for name in ("kafka.transactional.id", "Kafka.Transactional.Id"):
        with pytest.raises(dt.errors.PlanError, match=r"to_topic: .* Spark's sink begins no trans"):
            dt.to_topic("t", servers=kafka_servers, options={name: "one"})
