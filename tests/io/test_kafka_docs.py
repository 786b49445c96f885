"""The example of docs/kafka.md, run against a real broker."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

PAGE = Path(__file__).parent.parent.parent / "docs" / "kafka.md"


def test_the_kafka_example_runs(
    kafka_spark: SparkSession, kafka_servers: str, tmp_path: Path
) -> None:
    (block,) = [part.split("```")[0] for part in PAGE.read_text().split("```python\n")[1:]]
    for topic, rows in (
        ("users", [("1", "Ada"), ("2", "Bo"), ("2", None)]),
        ("cities", [("1", "Turin")]),
    ):
        frame = kafka_spark.createDataFrame(rows, "key string, value string").coalesce(1)
        frame.write.format("kafka").option("kafka.bootstrap.servers", kafka_servers).option(
            "topic", topic
        ).save()
    names = {"spark": kafka_spark, "checkpoint": str(tmp_path / "checkpoint")}
    exec(block.replace("localhost:9092", kafka_servers), names)
    written = (
        kafka_spark.read.format("kafka")
        .option("kafka.bootstrap.servers", kafka_servers)
        .option("subscribe", "located")
        .load()
        .selectExpr("cast(key as string)", "cast(value as string)", "offset", "partition")
        .orderBy("partition", "offset")
        .collect()
    )
    latest = {row.key: row.value for row in written}
    assert latest == {"1": '{"user":"Ada","city":"Turin"}', "2": None}
