"""The examples of docs/kafka.md, run against a real broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

PAGE = Path(__file__).parents[3] / "docs" / "kafka.md"


def test_the_kafka_examples_run(
    kafka_spark: SparkSession, kafka_servers: str, tmp_path: Path
) -> None:
    block, headers = [part.split("```")[0] for part in PAGE.read_text().split("```python\n")[1:]]
    for topic, rows in (
        ("users", [("1", "Ada"), ("2", "Bo"), ("2", None)]),
        ("cities", [("1", "Turin")]),
    ):
        frame = kafka_spark.createDataFrame(rows, "key string, value string").coalesce(1)
        frame.write.format("kafka").option("kafka.bootstrap.servers", kafka_servers).option(
            "topic", topic
        ).save()
    names: dict[str, Any] = {"spark": kafka_spark, "checkpoint": str(tmp_path / "checkpoint")}
    exec(block.replace("localhost:9092", kafka_servers), names)
    latest = {row.key: row.value for row in written(kafka_spark, kafka_servers)}
    assert latest == {"1": '{"user":"Ada","city":"Turin"}', "2": None}

    exec(headers, names)
    names["located"].write_stream(
        names["sink"], checkpoint=str(tmp_path / "again"), trigger={"availableNow": True}
    ).awaitTermination()
    headed = {
        row.key: {header.key: header.value.decode() for header in row.headers[2:]}
        for row in written(kafka_spark, kafka_servers)
    }
    always = {"source": "dovetail", "schema": "1"}
    assert headed == {"1": {"city": "Turin", **always}, "2": always}


def written(spark: SparkSession, servers: str) -> list[Any]:
    """The records of the topic, each key's in order."""
    return (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", "located")
        .option("includeHeaders", "true")
        .load()
        .selectExpr("cast(key as string)", "cast(value as string)", "headers")
        .orderBy("partition", "offset")
        .collect()
    )
