"""Queries into topics exactly once: the content of a micro-batch that is repeated, copies of a
checkpoint, several topics, and what is refused.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from bench.parameters import slow_after
from committed_topics import by_key, committed
from confluent_kafka.admin import AdminClient
from parquet_rows import add_file
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import dovetail as dt
from dovetail.io.sinks.kafka import producers, transactional
from dovetail.io.sinks.kafka.transactional import TransactionalBatches, TransactionalSink
from dovetail.io.sinks.ownership import Owner

NewTopic = Callable[[int], str]
COLUMNS = "id long, n long, seq long, at timestamp, tenant string"
KEYS, RECORDS = 5, 30


def add(folder: Path, batch: int, records: int = RECORDS) -> None:
    """Records of a micro-batch, as one file: some keys, each again and again."""
    rows = [
        (n % KEYS, n, n, datetime.fromtimestamp(n, timezone.utc), None if n % 2 else "x")
        for n in range(batch * records, (batch + 1) * records)
    ]
    add_file(folder / "in", rows, COLUMNS)


def counted(spark: SparkSession, folder: Path) -> tuple[dt.Stream, dt.Table]:
    """A stream, and what its records come to for each key: each record has its own result."""
    (folder / "in").mkdir(exist_ok=True)
    reader = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1)
    frame = reader.parquet(str(folder / "in"))
    stream = dt.Stream.from_changelog(frame, key="id", timestamp="at", sequence="seq", name="rows")
    return stream, stream.group_by("id").agg(count=dt.count(), total=dt.sum("n"))


def run(table: Any, sink: Any, checkpoint: Path) -> None:
    table.write_stream(
        sink, checkpoint=checkpoint, trigger={"availableNow": True}, buckets=2
    ).awaitTermination()


def results(records: int) -> dict[bytes | None, list[bytes | None]]:
    """What each key comes to, record by record."""
    values: dict[bytes | None, list[bytes | None]] = {}
    totals = dict.fromkeys(range(KEYS), 0)
    for number in range(records):
        key = number % KEYS
        totals[key] += number
        row = {"count": number // KEYS + 1, "total": totals[key]}
        text = json.dumps(row, separators=(",", ":")).encode()
        values.setdefault(str(key).encode(), []).append(text)
    return values


def forget(checkpoint: Path, batch: int) -> None:
    """The checkpoint as a driver leaves it that is killed before Spark commits the micro-batch."""
    for path in checkpoint.glob(f"commits/*{batch}*"):
        path.unlink()


def shown(partitions: list[list[Any]]) -> list[list[Any]]:
    return [[(m.key(), m.value(), m.headers()) for m in records] for records in partitions]


@pytest.mark.long
@pytest.mark.parametrize("transactions", slow_after(1, [1, 3]))
def test_records_are_those_of_a_topic_that_is_written_at_least_once(
    kafka_spark: SparkSession,
    kafka_servers: str,
    new_topic: NewTopic,
    tmp_path: Path,
    transactions: int,
) -> None:
    """In the same partitions, in the same order of each key, with the same headers; and once, when
    a micro-batch is written again.
    """
    before, topic = new_topic(3), new_topic(3)
    shared: dict[str, Any] = {
        "servers": kafka_servers, "key": "string", "headers": {"total": "total", "n": F.lit(1)}
    }  # fmt: skip
    exactly = dt.to_topic(topic, **shared, exactly_once=True, transactions=transactions)
    _, table = counted(kafka_spark, tmp_path)
    for batch in range(2):
        add(tmp_path, batch)
    run(table, exactly, tmp_path / "checkpoint")
    run(table, dt.to_topic(before, **shared), tmp_path / "before")
    assert by_key(kafka_servers, topic) == results(2 * RECORDS)
    written = shown(committed(kafka_servers, topic))
    for now, then in zip(written, shown(committed(kafka_servers, before)), strict=True):
        assert sorted(now, key=str) == sorted(then, key=str)
    forget(tmp_path / "checkpoint", 1)
    run(table, exactly, tmp_path / "checkpoint")
    assert shown(committed(kafka_servers, topic)) == written


def test_many_records_are_written_by_tasks(
    kafka_spark: SparkSession, kafka_servers: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    """And those of another micro-batch, which are few, by the driver."""
    topic, few = new_topic(2), producers.ROWS_MAX // 2
    _, table = counted(kafka_spark, tmp_path)
    sink = dt.to_topic(topic, servers=kafka_servers, key="string", exactly_once=True)
    for batch, records in ((1, few), (1, 2 * few), (1, 4 * few), (8, few)):
        add(tmp_path, batch, records)
    run(table, sink, tmp_path / "checkpoint")
    values = by_key(kafka_servers, topic)
    counts = [[json.loads(v or b"")["count"] for v in values[b"%d" % key]] for key in range(KEYS)]
    assert counts == [list(range(1, 8 * few // KEYS + 1))] * KEYS
    forget(tmp_path / "checkpoint", 2)
    forget(tmp_path / "checkpoint", 3)
    (tmp_path / "checkpoint" / "offsets" / "3").unlink()
    with pytest.raises(StreamingQueryException, match=f"topic {topic} has micro-batch 3 of this q"):
        run(table, sink, tmp_path / "checkpoint")
    assert by_key(kafka_servers, topic) == values


def test_topics_of_a_query_are_committed_together(
    kafka_spark: SparkSession, kafka_servers: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    one, two = new_topic(2), new_topic(1)
    stream, table = counted(kafka_spark, tmp_path)
    latest = stream.group_by("id").agg(n=dt.max("n"))
    exactly: dict[str, Any] = {"servers": kafka_servers, "key": "string", "exactly_once": True}

    def both(**more: Any) -> None:
        sinks: dict[Any, Any] = {
            table: [dt.to_topic(one, **exactly, **more), dt.to_parquet(tmp_path / "out")],
            latest: dt.to_topic(two, **exactly),
        }
        dt.run(
            sinks, checkpoint=tmp_path / "checkpoint", trigger={"availableNow": True}, buckets=2
        ).awaitTermination()

    add(tmp_path, 0)
    both()
    forget(tmp_path / "checkpoint", 0)
    add(tmp_path, 1)
    both()
    assert by_key(kafka_servers, one) == results(2 * RECORDS)
    numbers = [json.loads(m.value())["n"] for m in committed(kafka_servers, two)[0]]
    by_number = [[n for n in numbers if n % KEYS == key] for key in range(KEYS)]
    assert by_number == [list(range(key, 2 * RECORDS, KEYS)) for key in range(KEYS)]
    with pytest.raises(dt.errors.PlanError, match="committed together differ in options= or trans"):
        both(transactions=2)


@pytest.mark.parametrize("ansi", ["true", "false"])
def test_topics_may_have_texts_and_bytes(spark: SparkSession, ansi: str) -> None:
    rows = spark.sql("select 1L as id, 'a' as text, X'ff' as bytes, timestamp_seconds(1) as at")
    table = dt.Table.from_changelog(rows, key="id", timestamp="at", name="rows")
    sinks = [
        (TransactionalSink(value, "db:9092", "string", value), table.select(name))
        for value, name in (("string", "text"), ("bytes", "bytes"))
    ]
    batches = TransactionalBatches(
        "run", [(sink, result.plan) for sink, result in sinks], Owner("c"), "c", 0
    )
    changes = rows.selectExpr("*", "'upsert' as _change", "at as _timestamp", "0L as _position")
    before = spark.conf.get("spark.sql.ansi.enabled")
    spark.conf.set("spark.sql.ansi.enabled", ansi)
    try:
        records = batches._records([changes, changes]).collect()
    finally:
        spark.conf.set("spark.sql.ansi.enabled", before)
    found = [(r["topic"], r["key"], r["value"]) for r in records]
    assert sorted(found) == [(0, b"1", b"a"), (1, b"1", b"\xff")]


def test_copies_of_a_checkpoint_are_refused_and_a_rewound_one_writes_again(
    kafka_spark: SparkSession, kafka_servers: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic = new_topic(1)
    _, table = counted(kafka_spark, tmp_path)
    sink = dt.to_topic(topic, servers=kafka_servers, key="string", exactly_once=True)
    add(tmp_path, 0)
    run(table, sink, tmp_path / "checkpoint")
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "copy")
    add(tmp_path, 1)
    run(table, sink, tmp_path / "checkpoint")
    by = "by another run, and the next one is 1: the checkpoint is an older copy, or a copy of it"
    with pytest.raises(StreamingQueryException, match=f"has micro-batch 1 of this query {by}"):
        run(table, sink, tmp_path / "copy")
    written = results(2 * RECORDS)
    assert by_key(kafka_servers, topic) == written
    dt.checkpoints.rewind(kafka_spark, tmp_path / "checkpoint", batch=0)
    run(table, sink, tmp_path / "checkpoint")
    again = {key: values + values[RECORDS // KEYS :] for key, values in written.items()}
    assert by_key(kafka_servers, topic) == again
    more = dt.to_topic(
        topic, servers=kafka_servers, key="string", exactly_once=True, transactions=2
    )
    with pytest.raises(dt.errors.CheckpointError, match="have 1 transactions, and trans"):
        run(table, more, tmp_path / "checkpoint")


def test_a_micro_batch_that_is_older_than_its_marker_may_get_is_refused(
    kafka_spark: SparkSession, kafka_servers: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    """The brokers drop the offsets of a group after a time; here they are deleted."""
    topic, checkpoint = new_topic(1), tmp_path / "checkpoint"
    _, table = counted(kafka_spark, tmp_path)
    sink = dt.to_topic(topic, servers=kafka_servers, key="string", exactly_once=True)
    add(tmp_path, 0)
    run(table, sink, checkpoint)
    forget(checkpoint, 0)
    planned = checkpoint / "offsets" / "0"
    version, metadata, *offsets = planned.read_text().splitlines()
    old = {**json.loads(metadata), "batchTimestampMs": 1}
    planned.write_text("\n".join([version, json.dumps(old), *offsets]))
    (checkpoint / "offsets" / ".0.crc").unlink(missing_ok=True)
    query = json.loads((checkpoint / "metadata").read_text())["id"]
    admin = AdminClient({"bootstrap.servers": kafka_servers})
    for future in admin.delete_consumer_groups([f"dovetail-{query}-0"]).values():
        future.result()
    producers._PRODUCERS.clear()
    with pytest.raises(StreamingQueryException, match="was begun longer ago than the brokers keep"):
        run(table, sink, checkpoint)
    assert by_key(kafka_servers, topic) == results(RECORDS)


def test_what_cannot_be_written_so_is_refused_before_the_query_starts(
    kafka_spark: SparkSession,
    kafka_servers: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    add(tmp_path, 0)
    _, table = counted(kafka_spark, tmp_path)
    monkeypatch.setattr(transactional, "ANSWER_SECONDS_MAX", 3.0)
    cases: list[tuple[str, dict[str, Any], str]] = [
        (kafka_servers, {}, "have no topic nope that this user may see. Create it, and grant the"),
        ("127.0.0.1:1", {}, r"to_topic\('nope'\): the brokers 127.0.0.1:1 give no answer: "),
        (kafka_servers, {"kafka.nope": "1"}, 'refuses its settings: No such .* "nope"'),
    ]
    for servers, options, message in cases:
        sink = dt.to_topic("nope", servers=servers, exactly_once=True, options=options)
        with pytest.raises(dt.errors.ConfigurationError, match=message):
            run(table, sink, tmp_path / "checkpoint")
        beside = dt.to_topic("also", servers=servers, exactly_once=True, options=options)
        with pytest.raises(dt.errors.ConfigurationError, match=message):
            dt.run({table: [sink, beside]}, checkpoint=tmp_path / "checkpoint", buckets=2)
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(dt.errors.ConfigurationError, match=r"Install dovetail\[kafka\] for the"):
        dt.to_topic("nope", servers=kafka_servers, exactly_once=True)
    with pytest.raises(dt.errors.PlanError, match="transactions= is given without exactly_once=Tr"):
        dt.to_topic("nope", servers=kafka_servers, transactions=2)


def test_on_spark_connect_a_client_need_not_reach_the_brokers(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactional, "ANSWER_SECONDS_MAX", 1.0)
    sink = dt.to_topic("orders", servers="127.0.0.1:1", exactly_once=True)
    with pytest.raises(dt.errors.ConfigurationError, match=r"127\.0\.0\.1:1 give no answer"):
        sink.database(spark)
    monkeypatch.setattr(transactional, "is_remote", lambda session: True)
    assert sink.database(spark) == "127.0.0.1:1"
