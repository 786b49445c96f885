"""A query into two topics exactly once whose processes and broker are killed as they write: in the
end readers of committed records see what an unbroken query leaves, each record once and in order.

``DOVETAIL_KILLS=60 ./dev test -m slow tests/io/sinks/kafka/test_exactly_once_kills.py`` is a
campaign. Run as a script, this module is the driver. Its executor is a process of its own, of which
there is a new one each time it is killed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import drivers
import psutil
import pytest
import small_session
from committed_topics import by_key
from kafka_broker import BROKER, free_port
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

import dovetail as dt
from dovetail.io.sinks.kafka.client import ID_PREFIX

KEYS, TRANSACTIONS = 7, 2
EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
OPEN = ("Ongoing", "PrepareCommit", "PrepareAbort")
KILLS = int(os.environ.get("DOVETAIL_KILLS", "6"))
KINDS = ("executor", "worker", "broker", "driver")


def start(spark: SparkSession, arguments: Sequence[str], most: int | None) -> StreamingQuery:
    """The latest record of each key of a topic into one, and their number into another: each record
    has its own result. The query ends once it has read all, but without end where ``most`` limits
    its micro-batches.
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
    trigger = {"availableNow": True} if most is None else None
    return dt.run(sinks, checkpoint=checkpoint, trigger=trigger, buckets=2)


def feed(spark: SparkSession, servers: str, topic: str, numbers: range) -> None:
    rows = spark.range(numbers.start, numbers.stop, numPartitions=1).selectExpr(
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


class Broker:
    """A broker of a test's own, which is killed and started again with its data."""

    def __init__(self) -> None:
        self._environment = os.environ | {"DOVETAIL_KAFKA_PORT": str(free_port())}
        self.address = self._start()

    def _start(self) -> str:
        address, _, pid = self._run("start").partition(" (pid ")
        self._pid = int(pid.strip(" )\n"))
        return address

    def _run(self, command: str) -> str:
        return subprocess.run(
            [BROKER, command], env=self._environment, capture_output=True, text=True, check=True
        ).stdout

    def kill(self, absent_s: float) -> None:
        os.kill(self._pid, signal.SIGKILL)
        time.sleep(absent_s)
        self._start()

    def wipe(self) -> None:
        self._run("wipe")


@contextmanager
def broker(spark: SparkSession, partitions: dict[str, int]) -> Iterator[tuple[Broker, Any]]:
    """A broker with these topics, and Java's client of its administration."""
    started, kafka = Broker(), spark._jvm.org.apache.kafka.clients.admin  # type: ignore[union-attr]
    admin: Any = kafka.Admin.create({"bootstrap.servers": started.address})
    try:
        topics = [kafka.NewTopic(name, count, 1) for name, count in partitions.items()]
        admin.createTopics(topics).all().get()
        yield started, admin
    finally:
        admin.close()
        started.wipe()


def in_transaction(admin: Any, checkpoint: Path) -> bool:
    """Whether a transaction of the query is begun and not yet ended."""
    metadata = checkpoint / "metadata"
    if not metadata.exists():
        return False
    with suppress(ValueError, Py4JJavaError):  # half of the file is written; the broker starts
        query = json.loads(metadata.read_text())["id"]
        listed = admin.listTransactions().all().get()
        return any(
            listing.transactionalId().startswith(f"{ID_PREFIX}{query}")
            and listing.state().toString() in OPEN
            for listing in listed
        )
    return False


@pytest.mark.slow
@pytest.mark.parametrize("most", [40, 6_000])
def test_committed_records_are_exact_whatever_is_killed(
    kafka_spark: SparkSession, tmp_path: Path, most: int
) -> None:
    """Few records are written by the driver, many by tasks. Half of the kills come within a
    transaction, the others at any moment.
    """
    rng, checkpoint = random.Random(), tmp_path / "checkpoint"
    jars = kafka_spark.conf.get("spark.jars") or ""
    killed: Counter[str] = Counter()
    records = within = 0
    victims = [rng.choice(KINDS) for _ in range(KILLS - len(KINDS))] + [*KINDS]
    rng.shuffle(victims)
    with broker(kafka_spark, {"in": 2, "echo": 3, "counts": 1}) as (kafka, admin):
        arguments = [kafka.address, "in", "echo", "counts", str(checkpoint)]
        while victims:
            with drivers.running(__file__, jars, str(most), *arguments, folder=tmp_path) as driver:
                may_end = False
                while victims and driver.poll() is None:
                    feed(kafka_spark, kafka.address, "in", range(records, records + 4 * most))
                    records += 4 * most
                    wait_for_moment(rng, driver, admin, checkpoint)
                    victim, open_now = victims[-1], in_transaction(admin, checkpoint)
                    if victim == "broker":
                        kafka.kill(rng.uniform(0, 3))
                        may_end = True  # as a query does whose source gives no answer
                    elif victim != "driver" and not kill(VICTIMS[victim](driver.pid)):
                        continue  # the executor is about to start
                    killed[victims.pop()] += 1
                    within += open_now
                    if victim == "driver":
                        break
                if not may_end:
                    driver.refuse_ended()
        start(kafka_spark, arguments, None).awaitTermination()
        assert_exact(kafka.address, "echo", "counts", records)
    print(f"{records} records; kills: {dict(killed)}, {within} of them in an open transaction")


def wait_for_moment(
    rng: random.Random, driver: drivers.Driver, admin: Any, checkpoint: Path
) -> None:
    """Wait for an open transaction or, half of the time, for some seconds."""
    if rng.random() < 0.5:
        time.sleep(rng.uniform(0, 5))
        return
    deadline = time.monotonic() + 240
    while driver.poll() is None and not in_transaction(admin, checkpoint):
        assert time.monotonic() < deadline, "not in time: an open transaction"
        time.sleep(0.005)
    time.sleep(rng.choice([0, rng.uniform(0, 0.05), rng.uniform(0, 0.5)]))


def kill(processes: Sequence[int]) -> bool:
    """Kill processes; say whether there were any."""
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    return bool(processes)


def executors(driver: int) -> list[int]:
    """The executors among the processes below a driver."""
    return [p.pid for p in below(driver) if EXECUTOR in p.cmdline()]


def workers(driver: int) -> list[int]:
    """The Python workers of executors among the processes below a driver."""
    with suppress(psutil.NoSuchProcess):  # one of them is about to end
        return [
            worker.pid
            for executor in below(driver)
            if EXECUTOR in executor.cmdline()
            for daemon in executor.children()
            for worker in daemon.children()
        ]
    return []


def below(driver: int) -> Iterator[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        for process in psutil.Process(driver).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                process.cmdline()
                yield process


VICTIMS = {"executor": executors, "worker": workers}


def main(jars: str, most: str, *arguments: str) -> None:
    spark = small_session.cluster(jars).getOrCreate()
    start(spark, arguments, int(most)).awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
