"""Mistakes are named: the operator, the column or type, and what to do about it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from parquet_rows import add_file
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import dovetail as dt

Start = Callable[[], Any]


@pytest.fixture(scope="module")
def frame(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(
        [],
        "id long, name string, at timestamp, gone boolean, n int, tags map<string,int>, "
        "boxed struct<m: map<string,int>>, interval interval year to month",
    )


def table(frame: DataFrame, *columns: Any, name: str = "users", **options: Any) -> dt.Table:
    options = {"key": "id", "timestamp": "at"} | options
    return dt.Table.from_changelog(
        frame.select(*columns or ("id", "name", "at")), name=name, **options
    )


SOURCE_MISTAKES: dict[str, tuple[Callable[[DataFrame], Any], str]] = {
    "unknown key": (
        lambda f: table(f, key="uid"),
        r"table users: key= names an unknown column 'uid'. Known are id, name, at",
    ),
    "unknown timestamp": (
        lambda f: table(f, timestamp="time"),
        r"table users: timestamp= names an unknown column 'time'. Known are",
    ),
    "no key": (lambda f: table(f, key=[]), r"no key column is given. Name at least one"),
    "duplicate column": (
        lambda f: table(f, "id", F.lit(1).alias("ID"), "name", "at", key="name"),
        r"table users: column 'ID' occurs twice. Rename one",
    ),
    "reserved name": (
        lambda f: table(f.withColumnRenamed("name", "_change"), "id", "_change", "at"),
        r"table users: column '_change' has a name that changelogs use themselves. Rename it",
    ),
    "reserved name of a foreign key": (
        lambda f: table(
            f.select("*", F.lit(1).alias("_foreign_key_1")), "id", "_foreign_key_1", "at"
        ),
        r"table users: column '_foreign_key_1' has a name that changelogs use themselves",
    ),
    "key of map type": (
        lambda f: table(f, "tags", "at", key="tags"),
        r"key column 'tags' of type map<string,int> cannot be a key, .*Key the table by",
    ),
    "map inside a key": (
        lambda f: table(f, "boxed", "at", key="boxed"),
        r"key column 'boxed' of type struct<m:map<string,int>> cannot be a key",
    ),
    "key that is compared by a collation": (
        lambda f: table(f, F.expr("name collate UNICODE_CI as name"), "at", key="name"),
        r"key column 'name' of type string collate UNICODE_CI cannot be a key, .*F.lower",
    ),
    "key of variant type": (
        lambda f: table(f, F.expr("array(parse_json(name)) as list"), "at", key="list"),
        r"key column 'list' of type array<variant> cannot be a key, variant is not compared",
    ),
    "value without an Arrow form": (
        lambda f: table(f, "id", "interval", "at"),
        r"column 'interval' of type interval year to month cannot be carried.*Convert it",
    ),
    "timestamp of another type": (
        lambda f: table(f, "id", "n", timestamp="n"),
        r"table users: timestamp= n is of type int, not timestamp. Cast it",
    ),
    "deleted of another type": (
        lambda f: table(f, "id", "n", "at", deleted="n"),
        r"table users: deleted= n is of type int, not boolean. Cast it",
    ),
    "expression that does not resolve": (
        lambda f: table(f, deleted=F.col("op") == "d"),
        r"table users: deleted= does not resolve: .*`op`.*Known columns are id, name, at",
    ),
    "key with another role": (
        lambda f: table(f, "at", "name", key="at"),
        r"timestamp= names 'at', a column of key=. Copy it with withColumn",
    ),
    "partition of a log without position": (
        lambda f: table(f, "id", "n", "at", log_partition="n"),
        r"log_partition= is given without sequence=. Name the column that orders",
    ),
    "shared log without position": (
        lambda f: table(f, shared_log=True),
        r"table users: shared_log= is given without sequence=. Name the column that orders",
    ),
    "shared log and partitions": (
        lambda f: table(f, sequence="n", log_partition="n", shared_log=True),
        r"table users: log_partition= and shared_log= are both given. Leave log_partition= out",
    ),
    "history of a stream": (
        lambda f: dt.Stream.from_changelog(f, key="id", timestamp="at", versioned="1 day"),
        r"stream stream\[id\]: versioned= is for tables, a stream's records replace none. Leave it",
    ),
}


@pytest.mark.parametrize("mistake", SOURCE_MISTAKES)
def test_a_table_that_cannot_be_read_so(mistake: str, frame: DataFrame) -> None:
    make, message = SOURCE_MISTAKES[mistake]
    with pytest.raises(dt.errors.PlanError, match=message):
        make(frame)


def test_keys_that_differ_only_in_whether_nulls_are_declared(frame: DataFrame) -> None:
    declared, strict = "array(id) as id", "array(1L) as id"
    keys = [frame.select(F.expr(key), "at") for key in (declared, strict)]
    assert keys[0].schema["id"].dataType != keys[1].schema["id"].dataType
    left, right = (dt.Table.from_changelog(key, key="id", timestamp="at") for key in keys)
    assert left.join(right).schema["id"] == left.schema["id"]


def cities(frame: DataFrame, **options: Any) -> dt.Table:
    return table(
        frame.withColumnRenamed("name", "city"), "id", "city", "at", name="cities", **options
    )


JOIN_MISTAKES: dict[str, tuple[Callable[[DataFrame], Any], str]] = {
    "differing key types": (
        lambda f: table(f).join(table(f, "n", "at", key="n", name="numbers")),
        r"numbers: without on= the key of users is \(id bigint\), of numbers \(n int\). Name in",
    ),
    "differing numbers of key columns": (
        lambda f: table(f).join(table(f, "id", "n", "at", key=["id", "n"], name="pairs")),
        r"the key of users is \(id bigint\), of pairs \(id bigint, n int\)",
    ),
    "same value on both sides": (
        lambda f: table(f).join(table(f, name="others")),
        r"inner join of users and others: both sides have a value column 'name'. .*select=",
    ),
    "unknown kind of join": (
        lambda f: table(f).join(cities(f), how="right"),
        r"how='right' is not a join of tables by key. .*swap the sides",
    ),
    "unknown selection": (
        lambda f: table(f).join(cities(f), select=["left.town"]),
        r"select= names an unknown column 'left.town'. Known are left.id, left.name",
    ),
    "ambiguous selection": (
        lambda f: table(f).join(table(f, name="others"), select=["name"]),
        r"column 'name' in select= is on both sides. Write 'left.name' or 'right.name'",
    ),
    "selection that does not resolve": (
        lambda f: table(f).join(cities(f), select=[F.upper("town")]),
        r"an expression in select= does not resolve: .*`town`.*Columns of the joined row are",
    ),
    "a selection of all columns": (
        lambda f: table(f).join(cities(f), select=[F.col("left.*")]),
        r"an expression in select= makes 2 columns, not one. Name columns one by one",
    ),
    "one name twice": (
        lambda f: table(f).join(cities(f), select=["name", F.col("city").alias("name")]),
        r"column 'name' occurs twice. Give each its own name",
    ),
    "a shared log that not all share": (
        lambda f: (
            table(f, "id", "name", "at", "n", sequence="n", shared_log=True)
            .join(cities(f))
            .changelog()
        ),
        r"shared_log= orders the rows of all inputs, but only users has it. Give every input its",
    ),
    "a static frame in a query": (
        lambda f: table(f).join(cities(f)).write_stream(dt.to_memory("never"), checkpoint="/never"),
        r"table users: its frame is not a streaming one. Read it with spark.readStream",
    ),
}


@pytest.mark.parametrize("mistake", JOIN_MISTAKES)
def test_a_join_that_means_nothing(mistake: str, frame: DataFrame) -> None:
    make, message = JOIN_MISTAKES[mistake]
    with pytest.raises(dt.errors.PlanError, match=message):
        make(frame)


def streamed(
    spark: SparkSession, directory: Path, name: str, rows: list[Any], **options: Any
) -> Any:
    """A table from a directory with one file of rows: id, value, seconds."""
    path = str(directory / name)
    schema = f"id long, part string, {name} string, at timestamp"
    data = [
        (i, part, value, None if at is None else datetime.fromtimestamp(at, timezone.utc))
        for i, part, value, at in rows
    ]
    add_file(directory / name, data, schema)
    stream = spark.readStream.schema(schema).parquet(path)
    return dt.Table.from_changelog(stream, key=["id", "part"], timestamp="at", name=name, **options)


def test_a_query_that_cannot_start_and_rows_that_cannot_be_placed(
    spark: SparkSession, tmp_path: Path
) -> None:
    users = streamed(
        spark, tmp_path, "user", [(1, "x", "a", 1.0), (None, "x", "b", 2.0), (2, None, "c", 3.0)]
    )
    jobs = streamed(spark, tmp_path, "job", [(1, "x", "A", 1.0)])
    timeless = streamed(spark, tmp_path, "timeless", [(1, "x", "A", None)])
    checkpoint = str(tmp_path / "checkpoint")

    def start(topology: dt.Table, checkpoint: str = checkpoint, **options: Any) -> Any:
        options = {"trigger": {"availableNow": True}, "buckets": 2} | options
        rows = dt.to_foreach_batch(lambda batch, _: batch.collect())
        query = topology.write_stream(rows, checkpoint=checkpoint, **options)
        query.awaitTermination()
        return query

    joined = users.join(jobs)
    with pytest.raises(
        dt.errors.PlanError,
        match=r"^write_stream: trigger= is {'processingTime': '1 s', 'availableNow': True}. Give {",
    ):
        start(joined, trigger={"processingTime": "1 s", "availableNow": True})
    static = dt.Table.from_changelog(
        spark.createDataFrame([(1, "x", "A")], "id long, part string, city string").withColumn(
            "at", F.timestamp_seconds(F.lit(1))
        ),
        key=["id", "part"],
        timestamp="at",
        name="city",
    )
    with pytest.raises(dt.errors.PlanError, match=r"table city: its frame is not a streaming one"):
        users.join(static).changelog()

    progress = [p for p in start(joined).recentProgress if p["numInputRows"]]
    dropped = [p["observedMetrics"]["user.dropped"]["records"] for p in progress]
    assert sum(dropped) == 2
    assert sum(p["observedMetrics"]["job.dropped"]["records"] for p in progress) == 0

    with pytest.raises(
        dt.errors.CheckpointError, match=r"has 2 buckets, the query asks for 3. Use buckets=2"
    ):
        start(joined, buckets=3)
    other = users.join(jobs, how="left")
    with pytest.raises(
        dt.errors.CheckpointError,
        match=r"another topology: plan.join was \"inner\" and is \"left\". Start",
    ):
        start(other)
    # changelog() knows nothing of the file that binds the checkpoint: the state itself refuses.
    path = tmp_path / "user"
    spark.createDataFrame([(9, "x", "z")], "id long, part string, user string").withColumn(
        "at", F.timestamp_seconds(F.lit(9))
    ).coalesce(1).write.mode("append").parquet(str(path))
    with pytest.raises(
        StreamingQueryException, match=r"the checkpoint holds topology \w+ in 2 buckets"
    ):
        other.changelog(buckets=2).writeStream.format("noop").option(
            "checkpointLocation", checkpoint
        ).trigger(availableNow=True).start().awaitTermination()

    with pytest.raises(
        StreamingQueryException,
        match=r"table timeless: 1 rows have a null timestamp, so no place in event time",
    ):
        start(timeless, checkpoint=str(tmp_path / "timeless-checkpoint"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"trigger": {"processingTime": "10 bananas"}},
            "trigger='10 bananas' is not a span of time",
        ),
        ({"trigger": {"once": True}}, "trigger= is 'once'. Give {'availableNow': True}"),
        ({"emit": "all"}, r"emit= is 'all'. Give 'change' or 'batch'"),
        ({"buckets": 0}, r"buckets= is 0. Give a whole number from 1 to"),
    ],
)
def test_a_refused_query_leaves_its_checkpoint_unbound(
    spark: SparkSession, tmp_path: Path, arguments: dict[str, Any], message: str
) -> None:
    (tmp_path / "in").mkdir()
    stream = spark.readStream.schema("id long, at timestamp").parquet(str(tmp_path / "in"))
    users = dt.Table.from_changelog(stream, key="id", timestamp="at", name="user")
    sink = dt.to_foreach_batch(lambda batch, _: None)
    with pytest.raises(dt.errors.PlanError, match=message):
        users.write_stream(sink, checkpoint=str(tmp_path / "checkpoint"), **arguments)
    assert not (tmp_path / "checkpoint").exists()


def test_a_changelog_needs_the_state_store(spark: SparkSession, tmp_path: Path) -> None:
    users = streamed(spark, tmp_path, "user", [(1, "x", "a", 1.0)])
    provider = "spark.sql.streaming.stateStore.providerClass"
    before = spark.conf.get(provider)
    spark.conf.unset(provider)
    try:
        if "RocksDB" in str(spark.conf.get(provider)):
            spark.conf.set(
                provider,
                "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider",
            )
        with pytest.raises(
            dt.errors.ConfigurationError, match=r"state store is not RocksDB.*write_stream"
        ):
            users.changelog()
    finally:
        spark.conf.set(provider, str(before))
    assert users.changelog().isStreaming


def test_a_frame_that_is_of_no_files_logs_no_error(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(1, 2)], "id long, v long").withColumn("at", F.now())
    logger, records = PySparkLogger.getLogger("DataFrameQueryContextLogger"), list[Any]()
    heard = logging.Handler()
    heard.emit = records.append  # type: ignore[method-assign]
    logger.addHandler(heard)
    try:
        table = dt.Table.from_changelog(frame, name="t", key="id", timestamp="at")
        with pytest.raises(AnalysisException):
            frame.select("_metadata.file_path").schema  # noqa: B018 -- what would be logged
    finally:
        logger.removeHandler(heard)
    assert not table.plan.order.by_files  # type: ignore[attr-defined]
    assert len(records) == 1
