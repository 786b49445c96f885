"""The process that is watched and killed: a session with one query of three outputs.

``load`` fills the topics and lets the query read what is there first; ``run`` starts it again,
micro-batch after micro-batch, and says what each took, as lines of JSON; ``read`` writes what has
come out, and says how much is stored.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import LongType, StructType

import dovetail as dt
from benchmarks import harness
from benchmarks.soak import feed
from dovetail.io.sources.kafka import read_topic, to_records

TOTALS = "totals"
PARTITIONS = {"orders": 2, "customers": 1, TOTALS: 1}
POLL_S = 0.5
CHECKPOINT = "checkpoint"
MEMORY = "2g"
PAST = "10 minutes"
"""How far back the Delta table's log goes: a part of the run."""


def session(place: Path) -> SparkSession:
    """A session as users have it, whose temporary files can be counted."""
    temporary = place / "temporary"
    temporary.mkdir(exist_ok=True)
    builder = SparkSession.builder.master("local[2]").appName("dovetail soak")
    builder = builder.config("spark.driver.extraJavaOptions", f"-Djava.io.tmpdir={temporary}")
    jars = [harness.CACHE / "jars" / name for name in ("kafka", "delta")]
    builder = dt.configure(builder, delta=True, jars=jars, memory=MEMORY)
    builder = builder.config("spark.local.dir", str(temporary)).config("spark.ui.enabled", "false")
    return builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()


def start(
    spark: SparkSession, place: Path, servers: str, size: feed.Size | None = None
) -> StreamingQuery:
    """The query, with micro-batches of ``size``, one after the other; or, without, with one of all
    there is.
    """

    def table(topic: str, most: int | None) -> dt.Table:
        key, values = feed.COLUMNS[topic]
        return dt.Table.from_topic(
            spark,
            topic,
            servers=servers,
            key={key: LongType()},
            value={name: LongType() for name in values},
            max_per_trigger=most,
        )

    # Spark rounds the share of a partition down.
    orders = table("orders", None if size is None else size.changed_orders + PARTITIONS["orders"])
    customers = table("customers", None if size is None else size.changed_customers)
    joined = orders.join(customers, on={"customer": "name"}, select=["amount", "city"])
    totals = joined.group_by("city").agg(orders=dt.count(), amount=dt.sum("amount"))
    kept = dt.to_delta(place / "delta", retention=PAST, log_retention=PAST)
    results = {
        joined: [kept, dt.to_parquet(place / "parquet")],
        totals: dt.to_topic(TOTALS, servers=servers),
    }
    return dt.run(
        results,
        checkpoint=place / CHECKPOINT,
        trigger={"availableNow": True} if size is None else None,
    )


def load(spark: SparkSession, place: Path, servers: str, size: feed.Size, batches: int) -> None:
    """Make the topics, let the query read the tables as they begin, then write what changes."""
    kafka: Any = spark._jvm.org.apache.kafka.clients.admin  # type: ignore[union-attr]  # noqa: SLF001
    admin = kafka.Admin.create({"bootstrap.servers": servers})
    topics = [kafka.NewTopic(name, count, 1) for name, count in PARTITIONS.items()]
    compacted = {"cleanup.policy": "compact", "segment.ms": "60000"}
    topics[-1].configs(compacted)
    admin.createTopics(topics).all().get()
    admin.close()
    for topic, rows in feed.beginning(size).items():
        write(spark, servers, topic, rows)
    query = start(spark, place, servers)
    while query.isActive or is_late(query):
        query = query if query.isActive else start(spark, place, servers)
        time.sleep(POLL_S)
    for topic, rows in feed.changes(size, batches).items():
        write(spark, servers, topic, rows)


def write(spark: SparkSession, servers: str, topic: str, rows: pa.Table) -> None:
    """Append rows to a topic, in their order."""
    key, values = feed.COLUMNS[topic]
    frame = spark.createDataFrame(rows).coalesce(1)
    records = to_records(frame, key_columns=[key], value_columns=values)
    options = {"kafka.bootstrap.servers": servers, "topic": topic}
    records.write.format("kafka").options(**options).save()


def run(
    spark: SparkSession, place: Path, servers: str, size: feed.Size, heap_every: int
) -> Iterator[dict[str, Any]]:
    """The query's micro-batches as they end, and now and then the heap after a collection; until it
    has read all there is.
    """
    query = start(spark, place, servers, size)
    seen, collected = -1, 0
    while True:
        ended = has_read_all(query)
        for progress in query.recentProgress:
            if progress["batchId"] > seen and "addBatch" in progress["durationMs"]:
                seen = progress["batchId"]
                took = progress["durationMs"]["triggerExecution"]
                yield {"batch": seen, "ms": took}
        if is_late(query):
            query = start(spark, place, servers, size)
        if seen >= collected + heap_every:
            collected = seen
            yield {"batch": seen, "heap_mb": heap_mb(spark)}
        if ended:
            break
        time.sleep(POLL_S)
    query.stop()
    yield {"ended": True}


def has_read_all(query: StreamingQuery) -> bool:
    """Whether a query has come to the end of its topics."""
    progress = query.lastProgress
    return progress is not None and all(
        json.loads(source["endOffset"]) == json.loads(source["latestOffset"])
        for source in progress["sources"]
    )


def is_late(query: StreamingQuery) -> bool:
    """Whether a query has failed since its Python processes did not start in the ten seconds that
    Spark gives each, which are too few on a busy machine; it is started again, as a supervisor
    would. Raises what else it has failed with.
    """
    if query.isActive or query.exception() is None:
        return False
    if "failed to connect back" not in str(query.exception()):
        query.awaitTermination()
    harness.note("the query found no Python worker in time")
    return True


def heap_mb(spark: SparkSession) -> int:
    """What the JVM's heap holds once it is collected."""
    jvm: Any = spark._jvm  # noqa: SLF001
    jvm.java.lang.System.gc()
    memory = jvm.java.lang.management.ManagementFactory.getMemoryMXBean().getHeapMemoryUsage()
    return int(memory.getUsed()) >> 20


def read(spark: SparkSession, place: Path, servers: str) -> Iterator[dict[str, Any]]:
    """Each output as one file: the table, the topic's records, the changes. Then how much the state
    holds.
    """
    city = StructType().add("city", LongType())
    totals = StructType().add("orders", LongType()).add("amount", LongType())
    frames = {
        "delta": spark.read.format("delta").load(str(place / "delta")),
        "topic": read_topic(
            spark, TOTALS, servers=servers, key=city, value=totals, streaming=False
        ),
        "parquet": spark.read.parquet(str(place / "parquet")),
    }
    for name, frame in frames.items():
        pq.write_table(frame.toArrow(), place / f"{name}.parquet")
    state = (
        dt.checkpoints.read_state(spark, place / CHECKPOINT)
        .agg(F.sum("bytes").alias("bytes"))
        .first()
    )
    assert state is not None
    yield {"stored_bytes": state["bytes"]}


def main() -> None:
    task, folder, servers, sizes, batches = sys.argv[1:6]
    place, size = Path(folder), feed.Size(**json.loads(sizes))
    spark = session(place)
    if task == "load":
        load(spark, place, servers, size, int(batches))
    else:
        lines = run(spark, place, servers, size, max(int(batches) // 24, 1))
        for line in read(spark, place, servers) if task == "read" else lines:
            print(json.dumps(line), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
