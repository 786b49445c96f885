"""A query with several results whose process is killed as its sinks write: in the end each sink
has what an unbroken query leaves, and nothing twice.

Run as a script, this module is the driver.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import drivers
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import small_session
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

import dovetail as dt
from dovetail import testing

BATCHES = 3
KILLS = {"merge": 0, "parquet": 1}
"""In which micro-batch the process is killed, once a sink has written it."""


class Dying:
    """A sink that ``ends`` after it has written a micro-batch for the first time."""

    def __init__(self, sink: Any, name: str, batch: int | None, folder: Path, ends: Any) -> None:
        self.title = sink.title
        self.writer = sink.writer
        self._sink, self._name, self._batch, self._ends = sink, name, batch, ends
        self._mark = folder / f"killed in {name}"

    def batches(self, session: SparkSession, node: Any, checkpoint: str) -> Any:
        write = self._sink.batches(session, node, checkpoint)

        def dying(batch: DataFrame, number: int) -> None:
            write(batch, number)
            if number == self._batch and not self._mark.exists():
                self._mark.touch()
                self._ends()

        return dying


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fail() -> None:
    raise RuntimeError("the sink fails once")


def records(batch: int) -> dict[str, list[dict[str, Any]]]:
    """What the inputs have of a micro-batch: some users, who move, and their clicks."""
    users = [{"user": f"u{n}", "city": f"c{(n + batch) % 4}"} for n in range(batch, batch + 6)]
    clicks = [{"id": 10 * batch + n, "user": f"u{n}"} for n in range(8)]
    return {"users": users, "clicks": clicks}


def write(folder: Path) -> None:
    for batch in range(BATCHES):
        for table, rows in records(batch).items():
            (folder / table).mkdir(exist_ok=True)
            # In one order: users of a micro-batch come before its clicks.
            start = 100 * batch + (50 if table == "clicks" else 0)
            placed = [{**row, "seq": start + n} for n, row in enumerate(rows)]
            path = folder / table / f"{batch}.parquet"
            pq.write_table(pa.Table.from_pylist(placed), path)
            os.utime(path, (batch, batch))


def start(
    spark: SparkSession, folder: Path, servers: str, topic: str, dies: dict[str, int], ends: Any
) -> StreamingQuery:
    """Two results: the users of each city, and clicks with what was known of the user's city."""

    def source(kind: Any, name: str, key: str, columns: str) -> Any:
        reader = spark.readStream.schema(f"{columns}, seq long").option("maxFilesPerTrigger", 1)
        frame = reader.parquet(str(folder / name))
        time = F.timestamp_seconds("seq")
        frame = frame.withColumn("t", time)
        return kind.from_changelog(
            frame, key=key, timestamp="t", sequence="seq", shared_log=True, name=name
        )

    users = source(dt.Table, "users", "user", "user string, city string")
    clicks = source(dt.Stream, "clicks", "id", "id long, user string")
    cities = users.group_by("city").agg(users=dt.count())
    clicked = clicks.join(users, on="user", how="left")

    def sink(name: str, one: Any) -> Any:
        return Dying(one, name, dies.get(name), folder, ends)

    return dt.run(
        {
            cities: [
                sink("merge", dt.to_delta(folder / "cities")),
                sink("topic", dt.to_topic(topic, servers=servers)),
            ],
            clicked: [
                sink("append", dt.to_delta(folder / "clicked")),
                sink("parquet", dt.to_parquet(folder / "files")),
            ],
        },
        checkpoint=folder / "checkpoint",
        trigger={"availableNow": True},
        buckets=2,
    )


@pytest.mark.slow
def test_each_sink_is_exact_whatever_is_killed(
    kafka_spark: SparkSession,
    kafka_servers: str,
    new_topic: Callable[[int], str],
    tmp_path: Path,
) -> None:
    for spark in small_session.with_delta(kafka_spark, {}):
        topic = new_topic(1)
        write(tmp_path)
        jars = str(spark.conf.get("spark.jars"))
        for name in KILLS:
            arguments = (jars, str(tmp_path), kafka_servers, topic)
            with drivers.running(__file__, *arguments, folder=tmp_path) as driver:
                driver.wait(timeout=300)
            assert (tmp_path / f"killed in {name}").exists()
        dies = {"topic": 2}
        with pytest.raises(StreamingQueryException, match=r"to_topic\(.*the sink fails once"):
            start(spark, tmp_path, kafka_servers, topic, dies, fail).awaitTermination()
        start(spark, tmp_path, kafka_servers, topic, {}, fail).awaitTermination()

        table, emitted = expected()
        delta = spark.read.format("delta")
        cities = delta.load(str(tmp_path / "cities")).collect()
        assert sorted((row["city"], row["users"]) for row in cities) == table
        for kept in (
            delta.load(str(tmp_path / "clicked")),
            spark.read.parquet(str(tmp_path / "files")),
        ):
            assert (
                sorted((row["id"], row["user"], row["city"]) for row in kept.collect()) == emitted
            )
        assert latest(spark, kafka_servers, topic) == table


def expected() -> tuple[list[Any], list[Any]]:
    """The rows of the table, and all records of the stream, as the driver says."""
    users = testing.table("users", key="user", schema={"user": pa.string(), "city": pa.string()})
    clicks = testing.stream("clicks", key="id", schema={"id": pa.int64(), "user": pa.string()})
    cities = users.group_by("city").agg(users=dt.count())
    clicked = clicks.join(users, on="user", how="left")
    driver = testing.Driver(cities, clicked)
    for batch in range(BATCHES):
        rows = records(batch)
        driver.pipe(users, rows["users"], timestamp=batch)
        driver.pipe(clicks, rows["clicks"], timestamp=batch)
    emitted = sorted((*c.key.values(), *c.values.values()) for c in driver.read(clicked))
    return sorted((city, row["users"]) for city, row in driver.table(cities).items()), emitted


def latest(spark: SparkSession, servers: str, topic: str) -> list[Any]:
    """The topic's last record of each key."""
    options = {"kafka.bootstrap.servers": servers, "subscribe": topic}
    read = spark.read.format("kafka").options(**options).load()
    last = read.groupBy("key").agg(F.max_by(F.struct("value"), "offset").alias("last"))
    rows = last.where("last.value IS NOT NULL").selectExpr(
        "get_json_object(string(key), '$.city') AS city",
        "int(get_json_object(string(last.value), '$.users')) AS users",
    )
    return sorted(map(tuple, rows.collect()))


def main(jars: str, folder: str, servers: str, topic: str) -> None:
    spark = (
        small_session.builder()
        .config("spark.jars", jars)
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config(
            "spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog"
        )
        .getOrCreate()
    )
    start(spark, Path(folder), servers, topic, KILLS, kill).awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
