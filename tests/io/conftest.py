"""Topics on the tests' broker."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def kafka_spark(spark: SparkSession) -> SparkSession:
    """The session, which must have been started with Spark's Kafka connector."""
    if "spark-sql-kafka" not in (spark.conf.get("spark.jars", "") or ""):
        missing = pytest.fail if os.environ.get("CI") and shutil.which("mvn") else pytest.skip
        missing("Spark runs without its Kafka connector: tools/jars/fetch kafka")
    return spark


@pytest.fixture(scope="session")
def new_topic(kafka_spark: SparkSession, kafka_servers: str) -> Iterator[Callable[[int], str]]:
    """Creates a topic of so many partitions and gives its name."""
    jvm = kafka_spark._jvm
    assert jvm is not None
    admin = jvm.org.apache.kafka.clients.admin.Admin.create({"bootstrap.servers": kafka_servers})

    def create(partitions: int) -> str:
        topic = f"topic-{uuid4().hex}"
        declared = jvm.org.apache.kafka.clients.admin.NewTopic(topic, partitions, 1)
        admin.createTopics([declared]).all().get()
        return topic

    yield create
    admin.close()
