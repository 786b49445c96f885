"""The examples of the pages that name a broker, run against a real one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from committed_topics import by_key
from confluent_kafka.admin import AdminClient, NewTopic
from doc_examples import BROKER, ROOT, blocks, promised, with_broker
from pyspark.sql import SparkSession
from small_session import SMALL_TABLES, applied

PAGE = ROOT / "docs" / "kafka.md"
INTO_DELTA = [ROOT / "docs" / "quickstart.md", ROOT / "docs" / "recipes" / "cdc_to_delta.md"]
DELTA = "DeltaSparkSessionExtension"


def test_the_kafka_examples_run(
    kafka_spark: SparkSession, kafka_servers: str, tmp_path: Path
) -> None:
    block, exactly, headers = blocks(PAGE)
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

    admin = AdminClient({"bootstrap.servers": kafka_servers})
    admin.create_topics([NewTopic("counted", 1, 1)])["counted"].result()
    exec(exactly, names)
    assert by_key(kafka_servers, "counted") == {
        b'{"value":"Ada"}': [b'{"users":1}'],
        b'{"value":"Bo"}': [b'{"users":1}', None],
    }

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


@pytest.mark.long
@pytest.mark.parametrize("page", INTO_DELTA, ids=lambda page: page.name)
def test_examples_from_kafka_into_delta_print_what_they_say(
    page: Path, kafka_spark: SparkSession, kafka_servers: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if DELTA not in (kafka_spark.conf.get("spark.sql.extensions", "") or ""):
        pytest.skip("Spark runs without Delta Lake: tools/jars/fetch delta")
    names: dict[str, Any] = {}
    with applied(kafka_spark, SMALL_TABLES):
        for block in with_broker(page):
            capsys.readouterr()
            exec(block.replace(BROKER, kafka_servers), names)
            assert capsys.readouterr().out.rstrip("\n").splitlines() == promised(block)


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
