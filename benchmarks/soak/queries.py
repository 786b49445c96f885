"""The process that is watched and killed: one session with all queries.

``load`` fills the topics and lets each query read what is there first; ``run`` starts the queries,
micro-batch after micro-batch, and says what each took, as lines of JSON; ``read`` writes what has
come out.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import LongType, StructType

import dovetail as dt
from benchmarks import harness
from benchmarks.soak import feed
from dovetail.io.kafka import read_topic, to_records

TOTALS = "totals"
PARTITIONS = {"orders": 2, "customers": 1, TOTALS: 1}
OUTPUTS = ("delta", "topic", "parquet")
"""The queries; the first is the one by which a run is measured."""
POLL_S = 0.5
MEMORY = "2g"


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


def outputs(
    spark: SparkSession, place: Path, servers: str, size: feed.Size | None = None, every: str = ""
) -> dict[str, Callable[[], StreamingQuery]]:
    """What starts each query: with micro-batches of ``size``, one ``every`` so long, so that all
    queries keep step; or, without, one with all there is.
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
    results = {
        "delta": (joined, dt.to_delta(place / "delta")),
        "topic": (totals, dt.to_topic(TOTALS, servers=servers)),
        "parquet": (joined, dt.to_parquet(place / "parquet")),
    }

    def start(name: str) -> StreamingQuery:
        result, sink = results[name]
        checkpoint = place / "checkpoints" / name
        if size is None:
            return result.write_stream(sink, checkpoint=checkpoint, availableNow=True, name=name)
        return result.write_stream(sink, checkpoint=checkpoint, processingTime=every, name=name)

    return {name: partial(start, name) for name in OUTPUTS}


def load(spark: SparkSession, place: Path, servers: str, size: feed.Size, batches: int) -> None:
    """Make the topics, let the queries read the tables as they begin, then write what changes."""
    kafka: Any = spark._jvm.org.apache.kafka.clients.admin  # type: ignore[union-attr]  # noqa: SLF001
    admin = kafka.Admin.create({"bootstrap.servers": servers})
    topics = [kafka.NewTopic(name, count, 1) for name, count in PARTITIONS.items()]
    compacted = {"cleanup.policy": "compact", "segment.ms": "60000"}
    topics[-1].configs(compacted)
    admin.createTopics(topics).all().get()
    admin.close()
    for topic, rows in feed.beginning(size).items():
        write(spark, servers, topic, rows)
    for start in outputs(spark, place, servers).values():
        query = start()
        while query.isActive or is_late(query):
            query = query if query.isActive else start()
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
    spark: SparkSession, place: Path, servers: str, size: feed.Size, every: str, heap_every: int
) -> Iterator[dict[str, Any]]:
    """Each query's micro-batches as they end, and now and then the heap after a collection; until
    all of them have read all there is. One starts after the other.
    """
    starts = outputs(spark, place, servers, size, every)
    queries: dict[str, StreamingQuery] = {}
    seen = dict.fromkeys(OUTPUTS, -1)
    collected = 0
    while True:
        begun = all(query.lastProgress is not None for query in queries.values())
        ended = begun and len(queries) == len(starts) and all(map(has_read_all, queries.values()))
        for name, query in queries.items():
            for progress in query.recentProgress:
                number = progress["batchId"]
                if number > seen[name] and "addBatch" in progress["durationMs"]:
                    seen[name] = number
                    took = progress["durationMs"]["triggerExecution"]
                    yield {"query": name, "batch": number, "ms": took}
            if is_late(query):
                queries[name] = starts[name]()
        if seen[OUTPUTS[0]] >= collected + heap_every:
            collected = seen[OUTPUTS[0]]
            yield {"batch": collected, "heap_mb": heap_mb(spark)}
        if ended:
            break
        if begun and len(queries) < len(starts):
            name = OUTPUTS[len(queries)]
            queries[name] = starts[name]()
        time.sleep(POLL_S)
    for query in queries.values():
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
    harness.note(f"{query.name} found no Python worker in time")
    return True


def heap_mb(spark: SparkSession) -> int:
    """What the JVM's heap holds once it is collected."""
    jvm: Any = spark._jvm  # noqa: SLF001
    jvm.java.lang.System.gc()
    memory = jvm.java.lang.management.ManagementFactory.getMemoryMXBean().getHeapMemoryUsage()
    return int(memory.getUsed()) >> 20


def read(spark: SparkSession, place: Path, servers: str) -> None:
    """Each output as one file: the table, the topic's records, the changes."""
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


def main() -> None:
    task, folder, servers, sizes, batches, every = sys.argv[1:7]
    place, size = Path(folder), feed.Size(**json.loads(sizes))
    spark = session(place)
    if task == "load":
        load(spark, place, servers, size, int(batches))
    elif task == "read":
        read(spark, place, servers)
    else:
        for line in run(spark, place, servers, size, every, max(int(batches) // 24, 1)):
            print(json.dumps(line), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
