"""A query into a topic whose processes are killed as it writes: in the end the latest record of
each key is what an unbroken query leaves.

Run as a script, this module is the driver. Its executor is a process of its own, of which there is
a new one each time it is killed.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import drivers
import psutil
import pytest
import small_session
from bench.parameters import slow_after
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

import dovetail as dt

KEYS, RECORDS = 40, 3000
EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"


class Topic:
    """A topic on the broker."""

    def __init__(self, spark: SparkSession, servers: str, name: str, partitions: int) -> None:
        self.name = name
        self._spark = spark
        self._options = {"kafka.bootstrap.servers": servers}
        self._jvm: Any = spark._jvm
        decoder = "org.apache.kafka.common.serialization.ByteArrayDeserializer"
        self._consumer = self._jvm.org.apache.kafka.clients.consumer.KafkaConsumer(
            {
                "bootstrap.servers": servers,
                "key.deserializer": decoder,
                "value.deserializer": decoder,
            }
        )
        part = self._jvm.org.apache.kafka.common.TopicPartition
        self._partitions = [part(name, number) for number in range(partitions)]

    def records(self) -> int:
        """How many have been written."""
        return sum(self._consumer.endOffsets(self._partitions).values())

    def append(self, rows: Sequence[tuple[str, str | None]]) -> None:
        frame = self._spark.createDataFrame(list(rows), "key string, value string").coalesce(1)
        frame.write.format("kafka").options(topic=self.name, **self._options).save()

    def latest(self) -> dict[str, str | None]:
        """The last record of each key, which are all in one partition."""
        read = self._spark.read.format("kafka").options(subscribe=self.name, **self._options).load()
        last = read.groupBy("key").agg(F.max_by(F.struct("value"), "offset").alias("last"))
        rows = last.selectExpr("string(key)", "string(last.value)").collect()
        return dict(map(tuple, rows))


def start(
    spark: SparkSession, arguments: Sequence[str], max_per_trigger: int | None = None
) -> StreamingQuery:
    """The query: two topics joined into a third."""
    servers, users, cities, target, checkpoint = arguments
    left, right = (
        dt.Table.from_topic(
            spark,
            topic,
            servers=servers,
            value="string",
            name=name,
            max_per_trigger=max_per_trigger,
        )
        for name, topic in (("users", users), ("cities", cities))
    )
    pair = F.concat_ws("+", F.col("left.value"), F.col("right.value"))
    return left.join(right, how="left", select={"pair": pair}).write_stream(
        dt.to_topic(target, servers=servers, key="string", value="string"),
        checkpoint=checkpoint,
        trigger={"availableNow": True},
        buckets=2,
    )


@pytest.mark.parametrize("executors_killed", slow_after(0, [1, 2]))
def test_the_latest_record_of_each_key_is_exact_whatever_is_killed(
    kafka_spark: SparkSession,
    kafka_servers: str,
    new_topic: Callable[[int], str],
    tmp_path: Path,
    executors_killed: int,
) -> None:
    """Executors in the midst of writing, again and again, then their driver with them."""
    rng = random.Random()
    users, cities, target = (
        Topic(kafka_spark, kafka_servers, new_topic(count), count) for count in (2, 3, 3)
    )
    tables: list[dict[str, str]] = []
    for topic in (users, cities):
        rows = [
            (f"k{rng.randrange(KEYS)}", None if rng.random() < 0.3 else f"{topic.name[-4:]}{n}")
            for n in range(RECORDS)
        ]
        topic.append(rows)
        tables.append({key: value for key, value in dict(rows).items() if value is not None})
    arguments = [
        kafka_servers, users.name, cities.name, target.name, str(tmp_path / "checkpoint")
    ]  # fmt: skip
    jars = kafka_spark.conf.get("spark.jars") or ""
    with drivers.running(__file__, jars, *arguments, folder=tmp_path) as driver:
        for kill in range(executors_killed + 1):
            await_more(target, driver)
            time.sleep(rng.uniform(0, 0.6))
            if kill < executors_killed:
                running = executors(driver.pid)
                assert running
                for executor in running:  # one, and maybe one that is about to start
                    os.kill(executor, signal.SIGKILL)
        assert driver.poll() is None, "the query was done before its driver was killed"
    start(kafka_spark, arguments).awaitTermination()
    latest = target.latest()
    assert {key: value for key, value in latest.items() if value is not None} == {
        key: f"{value}+{tables[1][key]}" if key in tables[1] else value
        for key, value in tables[0].items()
    }
    assert target.records() >= RECORDS


def await_more(topic: Topic, driver: drivers.Driver) -> None:
    """Wait until there are more records than now."""
    before = topic.records()
    drivers.wait_until(lambda: topic.records() > before, driver, "more records")


def executors(driver: int) -> list[int]:
    """The executors among the processes below a driver."""
    below = {process.pid for process in psutil.Process(driver).children(recursive=True)}
    running = psutil.process_iter(["cmdline"])
    return [p.pid for p in running if p.pid in below and EXECUTOR in (p.info["cmdline"] or [])]


def main(jars: str, *arguments: str) -> None:
    spark = small_session.cluster(jars).getOrCreate()
    start(spark, arguments, 30).awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
