"""A Kafka broker for the tests, and topics on it."""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession

BROKER = Path(__file__).parents[2] / "tools" / "broker"
MAVEN_MISSING = 3


@pytest.fixture(scope="session")
def kafka_servers() -> Iterator[str]:
    """The address of a broker of this process's own, gone with its data when the tests end."""
    environment = os.environ | {"DOVETAIL_KAFKA_PORT": str(_free_port())}
    started = subprocess.run(
        [BROKER, "start"], env=environment, capture_output=True, text=True, check=False
    )
    if started.returncode == MAVEN_MISSING:
        pytest.skip(started.stderr.strip())
    if started.returncode != 0:
        pytest.fail(started.stderr)
    yield started.stdout.split()[0]
    subprocess.run([BROKER, "wipe"], env=environment, check=True)


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


def _free_port() -> int:
    """A port that nothing listens on, nor on the next, which the controller takes."""
    while True:
        port = random.randrange(20000, 30000)
        with socket.socket() as broker, socket.socket() as controller:
            try:
                broker.bind(("127.0.0.1", port))
                controller.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
        return port
