"""A topic written exactly once, in transactions, beside one that is written at least once.

Two topics are joined by key into a third, in turn by ``dt.to_topic`` as it is, with
``exactly_once=True``, and with two transactions a micro-batch. There are two inputs: all records in
one micro-batch, and many small micro-batches. In the end each topic is read as ``read_committed``
and compared with the one that was written at least once, key by key.
"""

from __future__ import annotations

import argparse
import os
import subprocess
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

import dovetail as dt
from benchmarks import harness
from benchmarks.table_table import PAD, joined

PORT = 19094
BROKER = Path(__file__).resolve().parent.parent / "tools" / "broker"
PARTITIONS = 4
SINKS: Mapping[str, Mapping[str, Any]] = {
    "at-least-once": {},
    "exactly-once": {"exactly_once": True},
    "two-transactions": {"exactly_once": True, "transactions": 2},
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--records", type=int, default=300_000, help="of both topics (300000)")
    parser.add_argument("--changed", type=int, default=600, help="of a small micro-batch (600)")
    parser.add_argument("--batches", type=int, default=8, help="small micro-batches (8)")
    parser.add_argument("--rounds", type=int, default=2, help="counted rounds (2)")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    if not (harness.CACHE / "jars" / "kafka").exists():
        harness.note("kafka-exactly-once: skipped, Kafka's jars are not here")
        return {}
    environment = os.environ | {"DOVETAIL_KAFKA_PORT": str(PORT)}
    started = subprocess.run(
        [BROKER, "start"], env=environment, check=True, capture_output=True, text=True
    )
    try:
        with harness.workspace() as directory:
            spark = harness.session()
            figures = measure(spark, directory, started.stdout.split()[0], arguments)
            spark.stop()
    finally:
        subprocess.run([BROKER, "wipe"], env=environment, check=False, capture_output=True)
    return figures


def measure(
    spark: SparkSession, directory: Path, servers: str, arguments: argparse.Namespace
) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    small = arguments.changed * arguments.batches
    for kind, records, most in (
        ("large", arguments.records, None),
        ("small", small, arguments.changed // 2),
    ):
        rounds = arguments.rounds
        outputs = [f"{kind}-{name}-{number}" for name in SINKS for number in range(rounds + 1)]
        create_topics(spark, servers, [f"{kind}-left", f"{kind}-right", *outputs])
        feed(spark, servers, kind, records // 2)
        contenders = {
            name: partial(join, spark, servers, kind, sink, most) for name, sink in SINKS.items()
        }
        queries = harness.queries_in_turn(contenders, directory, rounds=rounds)
        took = {
            name: [ms for query in queries[name] for ms in query.batch_ms[most is not None :]]
            for name in SINKS
        }
        rates = {name: median(query.rate for query in queries[name]) for name in SINKS}
        expected = content(spark, servers, f"{kind}-at-least-once-{rounds}")
        same = all(content(spark, servers, f"{kind}-{name}-{rounds}") == expected for name in SINKS)
        title = "in one micro-batch" if most is None else f"in micro-batches of {2 * most:,}"
        harness.show(
            f"{records:,} records {title}, {sum(map(len, expected.values())):,} results",
            [
                ("", "records/s", "median micro-batch ms", "its rate over at least once"),
                *(
                    (
                        name,
                        f"{rates[name]:,.0f}",
                        f"{median(took[name]):,.0f}",
                        f"{median(took['at-least-once']) / median(took[name]):.2f}",
                    )
                    for name in SINKS
                ),
            ],
        )
        for name in SINKS:
            label = name.replace("-", "_")
            figures[f"{kind}_{label}_records_per_s"] = round(rates[name])
            figures[f"{kind}_{label}_ms"] = round(median(took[name]))
            if name != "at-least-once":
                over = median(took["at-least-once"]) / median(took[name])
                figures[f"{kind}_{label}_over_at_least_once"] = round(over, 2)
        figures[f"{kind}_topics_are_equal"] = same
    return figures


def create_topics(spark: SparkSession, servers: str, names: list[str]) -> None:
    kafka: Any = spark._jvm.org.apache.kafka.clients.admin  # type: ignore[union-attr]  # noqa: SLF001
    admin = kafka.Admin.create({"bootstrap.servers": servers})
    admin.createTopics([kafka.NewTopic(name, PARTITIONS, 1) for name in names]).all().get()
    admin.close()


def feed(spark: SparkSession, servers: str, kind: str, records: int) -> None:
    """Records of two topics, each key ten times, with values of 100 bytes."""
    numbers = np.arange(records)
    for sign in ("left", "right"):
        columns = {
            "key": joined("k", 1_000_000 + numbers % max(records // 10, 1)),
            "value": joined(sign[0], numbers, ":" + PAD),
        }
        rows = spark.createDataFrame(pa.table(columns)).withColumn(
            "value", F.left("value", F.lit(100))
        )
        options = {"kafka.bootstrap.servers": servers, "topic": f"{kind}-{sign}"}
        rows.coalesce(1).write.format("kafka").options(**options).save()


def join(
    spark: SparkSession,
    servers: str,
    kind: str,
    sink: Mapping[str, Any],
    most: int | None,
    checkpoint: str,
) -> StreamingQuery:
    left, right = (
        dt.Table.from_topic(
            spark, f"{kind}-{name}", servers=servers, name=name, max_per_trigger=most
        )
        for name in ("left", "right")
    )
    pair = F.concat_ws("+", "left.value", "right.value")
    topic = f"{kind}-{Path(checkpoint).name}"
    return left.join(right, how="left", select={"value": pair}).write_stream(
        dt.to_topic(topic, servers=servers, key="string", value="string", **sink),
        checkpoint=checkpoint,
        trigger={"availableNow": True},
    )


def content(spark: SparkSession, servers: str, topic: str) -> dict[str, list[str]]:
    """The values of each key, in order, as a reader of committed records sees them."""
    options = {
        "kafka.bootstrap.servers": servers,
        "subscribe": topic,
        "kafka.isolation.level": "read_committed",
    }
    read = spark.read.format("kafka").options(**options).load()
    rows = read.selectExpr("string(key)", "string(value)", "offset").orderBy("offset").toArrow()
    values: dict[str, list[str]] = {}
    for key, value in zip(rows[0].to_pylist(), rows[1].to_pylist(), strict=True):
        values.setdefault(key, []).append(value)
    return values
