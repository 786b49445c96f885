"""Mended dead letters: sent once, in order, to running queries and to those that start again."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from bench.parameters import slow_after
from parquet_rows import rows_of
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import dovetail as dt
from dovetail import testing
from dovetail.typing import Replayed

COLUMNS = "id long, amount string, at timestamp"
NOON = "2024-05-01T12:00:0"


def orders(spark: SparkSession, folder: Path, kind: type[Any] = dt.Table) -> Any:
    """Records in files, with the mended ones of a folder."""
    (folder / "in").mkdir(exist_ok=True)
    read = kind.from_records(
        spark.readStream.text(str(folder / "in")),
        key_columns="id",
        value=dt.formats.json(COLUMNS),
        timestamp="at",
        malformed="dead_letter",
        name="orders",
    )
    return read.with_replays(folder / "mended")


def write(folder: Path, name: str, *lines: str) -> None:
    (folder / "in").mkdir(exist_ok=True)
    (folder / "in" / name).write_text("".join(f"{line}\n" for line in lines))


def start(spark: SparkSession, folder: Path, kind: type[Any] = dt.Table, **options: Any) -> Any:
    numbers = orders(spark, folder, kind).select(
        amount=F.col("amount").cast("long"), errors="dead_letter"
    )
    return dt.run(
        {
            numbers: dt.to_parquet(folder / "out"),
            dt.dead_letters: dt.to_parquet(folder / "letters"),
        },
        checkpoint=folder / "checkpoint",
        **{"buckets": 2, **options},
    )


def run(spark: SparkSession, folder: Path, kind: type[Any] = dt.Table) -> None:
    start(spark, folder, kind, trigger={"availableNow": True}).awaitTermination()


def letters(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.read.parquet(str(folder / "letters"))


def mended(letters: DataFrame) -> DataFrame:
    """The amount of a row, or of a line that is cut off, in figures."""
    row = F.from_json(F.get_json_object("row", "$.value"), "id long, amount string")
    of_view = F.from_json("row", "id long, amount string")
    return letters.select(
        "*",
        F.coalesce(row["id"], of_view["id"]).alias("id"),
        F.regexp_replace(F.coalesce(row["amount"], of_view["amount"]), "[^0-9]", "").alias(
            "amount"
        ),
    )


def changes(folder: Path) -> list[tuple[Any, ...]]:
    """Of each key in order, with the second of its time."""
    rows = rows_of(folder / "out", "id", "_position")
    return [(row["id"], row["amount"], row["_timestamp"].second, row["_change"]) for row in rows]


@pytest.mark.long
@pytest.mark.parametrize("kind", slow_after(1, [dt.Table, dt.Stream]))
def test_each_letter_is_sent_once_and_in_order(
    spark: SparkSession, tmp_path: Path, kind: type[Any]
) -> None:
    """Those of a view and of a source; those of two micro-batches, the second one with an earlier
    time; a letter that fails again is another one.
    """
    write(tmp_path, "1", f'{{"id": 1, "amount": "4x", "at": "{NOON}3Z"}}')
    run(spark, tmp_path, kind)
    write(
        tmp_path,
        "2",
        f'{{"id": 1, "amount": "5x", "at": "{NOON}2Z"}}',
        f'{{"id": 1, "amount": "6x", "at": "{NOON}1Z"}}',
        f'{{"id": 2, "amount": "7", "at": "{NOON}1Z"}}',
    )
    run(spark, tmp_path, kind)
    read = orders(spark, tmp_path, kind)
    first = letters(spark, tmp_path).where("row LIKE '%4x%'")
    again = first.select("*", F.lit(1).cast("long").alias("id"), F.lit("4y").alias("amount"))
    assert dt.replay(again, into=read) == Replayed(1, 0)
    run(spark, tmp_path, kind)
    assert changes(tmp_path) == [(2, 7, 1, "upsert")]
    assert dt.replay(mended(letters(spark, tmp_path)), into=read) == Replayed(3, 1)
    assert dt.replay(mended(letters(spark, tmp_path)), into=read) == Replayed(0, 4)
    assert dt.replay(mended(first.union(first)), into=read) == Replayed(0, 2)
    run(spark, tmp_path, kind)
    run(spark, tmp_path, kind)
    sent = [(1, 6, 1, "upsert"), (1, 5, 2, "upsert"), (1, 4, 3, "upsert"), (2, 7, 1, "upsert")]
    assert changes(tmp_path) == sent
    assert len(list((tmp_path / "mended").glob("*.parquet"))) == 2


def test_a_running_query_takes_them(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path, "1", '{"id": 1, "amount": "4"', f'{{"id": 2, "amount": "x", "at": "{NOON}2Z"}}')
    query = start(spark, tmp_path)
    query.processAllAvailable()
    read, left_out = orders(spark, tmp_path), letters(spark, tmp_path)
    line = left_out.where("row LIKE '%value%'").select(
        "*", F.lit(1).cast("long").alias("id"), F.lit("4").alias("amount")
    )
    gone = left_out.where("row NOT LIKE '%value%'").select(
        "*",
        F.lit(2).cast("long").alias("id"),
        F.lit("9").alias("amount"),
        F.lit(True).alias("_deleted"),
    )
    assert dt.replay(line, into=read) == Replayed(1, 0)
    assert dt.replay(gone, into=read) == Replayed(1, 0)
    query.processAllAvailable()
    sent = [(1, 4, "upsert"), (2, None, "delete")]
    assert [(i, a, c) for i, a, _, c in changes(tmp_path)] == sent
    write(tmp_path, "2", f'{{"id": 2, "amount": "3", "at": "{NOON}5Z"}}')
    query.processAllAvailable()
    query.stop()
    run(spark, tmp_path)
    assert [row[:2] for row in changes(tmp_path)] == [(1, 4), (2, None), (2, 3)]


def test_senders_at_once_send_each_letter_once(spark: SparkSession, tmp_path: Path) -> None:
    """Of a stream."""
    lines = [f'{{"id": {n}, "amount": "{n}x", "at": "{NOON}1Z"}}' for n in range(20)]
    write(tmp_path, "1", *lines)
    run(spark, tmp_path, dt.Stream)
    read, left_out = orders(spark, tmp_path, dt.Stream), mended(letters(spark, tmp_path))
    shares = [left_out.where(f"id BETWEEN {3 * n} AND {3 * n + 7}") for n in range(5)]
    with ThreadPoolExecutor(5) as pool:
        sent = [*pool.map(lambda share: dt.replay(share, into=read), shares)]
    assert sum(counts.sent for counts in sent) == 20
    run(spark, tmp_path, dt.Stream)
    assert [row[:2] for row in changes(tmp_path)] == [(n, n) for n in range(20)]


def test_rows_of_a_changelog_in_a_log_of_its_own(spark: SparkSession, tmp_path: Path) -> None:
    """A row that has no event time; it has one when it is sent again."""
    (tmp_path / "in").mkdir()
    schema = "id long, amount long, at timestamp, n long, op string"

    def read() -> dt.Table:
        return dt.Table.from_changelog(
            spark.readStream.schema(schema).json(str(tmp_path / "in")),
            key="id",
            timestamp="at",
            deleted=F.col("op") == "d",
            sequence="n",
            malformed="dead_letter",
            name="orders",
        ).with_replays(tmp_path / "mended")

    def run() -> None:
        dt.run(
            {
                read(): dt.to_parquet(tmp_path / "out"),
                dt.dead_letters: dt.to_parquet(tmp_path / "l"),
            },
            checkpoint=tmp_path / "checkpoint",
            trigger={"availableNow": True},
            buckets=1,
        ).awaitTermination()

    write(tmp_path, "1", '{"id": 1, "amount": 3, "n": 1}', f'{{"id": 1, "at": "{NOON}2Z", "n": 2}}')
    run()
    row = F.from_json("row", "id long, amount long, n long, op string")
    letters = spark.read.parquet(str(tmp_path / "l")).select("*", row.alias("sent"))
    left_out = letters.select("*", "sent.*").drop("sent")
    with pytest.raises(dt.errors.DataError, match="1 of the rows have no event time"):
        dt.replay(left_out.withColumn("at", F.lit(None).cast("timestamp")), into=read())
    timed = left_out.withColumn("at", F.timestamp_seconds(F.lit(7)))
    assert dt.replay(timed, into=read()) == Replayed(1, 0)
    run()
    assert [row[:2] for row in changes(tmp_path)] == [(1, None), (1, 3)]


def test_records_of_a_topic(
    kafka_spark: SparkSession,
    kafka_servers: str,
    new_topic: Callable[[int], str],
    tmp_path: Path,
) -> None:
    topic = new_topic(2)

    def produce(*rows: tuple[str, str]) -> None:
        frame = kafka_spark.createDataFrame([*rows], "key string, value string").coalesce(1)
        options = {"kafka.bootstrap.servers": kafka_servers, "topic": topic}
        frame.write.format("kafka").options(**options).save()

    def read() -> dt.Table:
        return dt.Table.from_topic(
            kafka_spark,
            topic,
            servers=kafka_servers,
            key="string",
            value=dt.formats.json("amount long"),
            malformed="dead_letter",
            name="orders",
        ).with_replays(tmp_path / "mended")

    query = dt.run(
        {
            read(): dt.to_parquet(tmp_path / "out"),
            dt.dead_letters: dt.to_parquet(tmp_path / "letters"),
        },
        checkpoint=tmp_path / "checkpoint",
        buckets=2,
    )
    produce(("a", "1"), ("a", '{"amount": 2}'), ("b", "3"))
    query.processAllAvailable()
    row = F.from_json("row", "key string, value string")
    left_out = letters(kafka_spark, tmp_path).select(
        "*", row["key"].alias("key"), row["value"].cast("long").alias("amount")
    )
    assert dt.replay(left_out, into=read()) == Replayed(2, 0)
    query.processAllAvailable()
    produce(("a", '{"amount": 4}'))
    query.processAllAvailable()
    query.stop()
    rows = rows_of(tmp_path / "out", "key", "_position")
    assert [(row["key"], row["amount"]) for row in rows] == [
        ("a", 2),
        ("a", 1),
        ("a", 4),
        ("b", 3),
    ]


def test_what_cannot_be_sent_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    read = orders(spark, tmp_path)
    letter = spark.createDataFrame(
        [("o", "p", "r", 1, "4")],
        "_operator string, _problem string, row string, id long, amount string",
    ).withColumn("_timestamp", F.current_timestamp())
    (tmp_path / "sheet").mkdir()
    sheet = dt.Table.from_changelog(
        spark.readStream.schema("id long, row string, at timestamp").json(str(tmp_path / "sheet")),
        key="id",
        timestamp="at",
        name="sheet",
    ).with_replays(tmp_path / "mended sheet")
    cases: list[tuple[Any, Any, str]] = [
        (
            letter.withColumn("at", F.current_timestamp()),
            sheet,
            "sheet has a column 'row', and so have dead letters",
        ),
        (
            letter.drop("row"),
            read,
            r"replay: mended has no column 'row' of dead letters, among _op",
        ),
        (
            letter.drop("id"),
            read,
            "'id' of type bigint, and mended has no such column. Give mended t",
        ),
        (letter.withColumn("id", F.lit("1")), read, "of type bigint, and mended has string"),
        (spark.readStream.format("rate").load(), read, "mended is a streaming frame"),
        (
            letter,
            read.to_stream().union(orders(spark, tmp_path).to_stream(), name="both"),
            "has 2 sources that read replays",
        ),
    ]
    for frame, into, message in cases:
        with pytest.raises(dt.errors.PlanError, match=message):
            dt.replay(frame, into=into)
    with pytest.raises(dt.errors.PlanError, match=r"it reads replays from .*mended\. Name one"):
        read.with_replays(tmp_path / "other")
    with pytest.raises(dt.errors.PlanError, match="is not what a reader of changes or records has"):
        read.where("id > 1").with_replays(tmp_path / "other")
    fed = testing.table("fed", key="id", schema={"id": pa.int64()})
    with pytest.raises(dt.errors.PlanError, match="is not what a reader"):
        fed.with_replays(tmp_path / "other")
    shared = dt.Table.from_changelog(
        spark.readStream.format("rate").load(),
        key="value",
        timestamp="timestamp",
        sequence=F.col("value"),
        shared_log=True,
    )
    with pytest.raises(dt.errors.PlanError, match="positions in one log that all inputs share"):
        shared.with_replays(tmp_path / "other")
