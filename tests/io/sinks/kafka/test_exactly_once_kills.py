"""A query into two topics exactly once whose processes are killed as they write: in the end readers
of committed records see what an unbroken query leaves, each record once and in order.

Run as a script, this module is the driver. Its executor is a process of its own, of which there is
a new one each time it is killed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import drivers
import psutil
import pytest
import small_session
from bench.parameters import slow_after
from committed_topics import by_key
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

import dovetail as dt
from dovetail.io.sinks.kafka.client import PREFIX

KEYS, TRANSACTIONS = 7, 2
EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
OPEN = ("Ongoing", "PrepareCommit", "PrepareAbort")


def start(spark: SparkSession, arguments: Sequence[str], most: int | None) -> StreamingQuery:
    """The latest record of each key of a topic into one, and their number into another: each record
    has its own result.
    """
    servers, source, echo, counts, checkpoint = arguments
    records = dt.Stream.from_topic(
        spark, source, servers=servers, value="string", name="records", max_per_trigger=most
    )
    keyed = records.select(number=F.col("value").cast("long")).group_by("key")
    latest, counted = (
        keyed.agg(**{name: aggregate}).select(F.col(name).cast("string").alias(name))
        for name, aggregate in (("number", dt.max("number")), ("n", dt.count()))
    )
    sinks: dict[Any, Any] = {
        result: dt.to_topic(
            topic,
            servers=servers,
            key="string",
            value="string",
            exactly_once=True,
            transactions=TRANSACTIONS,
        )
        for result, topic in (
            (latest, echo),
            (counted, counts),
        )
    }
    return dt.run(sinks, checkpoint=checkpoint, trigger={"availableNow": True}, buckets=2)


def feed(spark: SparkSession, servers: str, topic: str, records: int) -> None:
    rows = spark.range(records, numPartitions=1).selectExpr(
        f"string(id % {KEYS}) AS key", "string(id) AS value"
    )
    options = {"kafka.bootstrap.servers": servers, "topic": topic}
    rows.write.format("kafka").options(**options).save()


def assert_exact(servers: str, echo: str, counts: str, records: int) -> None:
    numbers = {b"%d" % key: range(key, records, KEYS) for key in range(KEYS)}
    assert by_key(servers, echo) == {k: [b"%d" % n for n in ns] for k, ns in numbers.items()}
    assert by_key(servers, counts) == {
        key: [b"%d" % n for n in range(1, len(ns) + 1)] for key, ns in numbers.items()
    }


class Transactions:
    """The transactions of the query on the broker."""

    def __init__(self, spark: SparkSession, servers: str) -> None:
        jvm: Any = spark._jvm
        self._admin = jvm.org.apache.kafka.clients.admin.Admin.create(
            {"bootstrap.servers": servers}
        )

    def are_open(self, checkpoint: Path) -> bool:
        """Whether one is begun and not yet ended."""
        metadata = checkpoint / "metadata"
        if not metadata.exists():
            return False
        with suppress(ValueError):
            query = json.loads(metadata.read_text())["id"]
            listed = self._admin.listTransactions().all().get()
            return any(
                one.transactionalId().startswith(f"{PREFIX}{query}")
                and one.state().toString() in OPEN
                for one in listed
            )
        return False


@pytest.mark.parametrize(
    ("records", "most", "drivers_killed", "others_killed"),
    slow_after(0, [(800, 40, 1, 0)]),
)
def test_committed_records_are_exact_whatever_is_killed(
    kafka_spark: SparkSession,
    kafka_servers: str,
    new_topic: Callable[[int], str],
    tmp_path: Path,
    records: int,
    most: int,
    drivers_killed: int,
    others_killed: int,
) -> None:
    """Executors and their Python workers, again and again, then the driver with them; few records
    are written by the driver, many by tasks.
    """
    rng = random.Random()
    source, echo, counts = new_topic(2), new_topic(3), new_topic(1)
    feed(kafka_spark, kafka_servers, source, records)
    checkpoint = tmp_path / "checkpoint"
    arguments = [kafka_servers, source, echo, counts, str(checkpoint)]
    jars = kafka_spark.conf.get("spark.jars") or ""
    transactions = Transactions(kafka_spark, kafka_servers)
    killed = in_transaction = 0
    for _ in range(drivers_killed):
        script = (__file__, jars, str(most), *arguments)
        with drivers.running(*script, folder=tmp_path) as driver:
            for kill in range(others_killed + 1):
                drivers.wait_until(
                    lambda: transactions.are_open(checkpoint), driver, "an open transaction"
                )
                time.sleep(rng.choice([0, rng.uniform(0, 0.05), rng.uniform(0, 0.5)]))
                in_transaction += transactions.are_open(checkpoint)
                if kill < others_killed:
                    for process in rng.choice([executors, workers])(driver.pid):
                        with suppress(ProcessLookupError):
                            os.kill(process, signal.SIGKILL)
                    time.sleep(0.2)
                killed += 1
            assert driver.poll() is None, "the query was done before its driver was killed"
    start(kafka_spark, arguments, None).awaitTermination()
    assert_exact(kafka_servers, echo, counts, records)
    print(f"{killed} kills, {in_transaction} of them in an open transaction")


def executors(driver: int) -> list[int]:
    """The executors among the processes below a driver."""
    return [p.pid for p in below(driver) if EXECUTOR in p.cmdline()]


def workers(driver: int) -> list[int]:
    """The Python workers of executors among the processes below a driver."""
    return [
        worker.pid
        for executor in below(driver)
        if EXECUTOR in executor.cmdline()
        for daemon in executor.children()
        for worker in daemon.children()
    ]


def below(driver: int) -> Iterator[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        for process in psutil.Process(driver).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                process.cmdline()
                yield process


def main(jars: str, most: str, *arguments: str) -> None:
    spark = small_session.cluster(jars).getOrCreate()
    start(spark, arguments, int(most)).awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
