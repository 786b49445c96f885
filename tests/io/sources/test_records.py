"""Records of any format: what is beside key and value, what deletes, what has no place in time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

import dovetail as dt
from dovetail.errors import PlanError

START = datetime(2024, 5, 1, tzinfo=timezone.utc)
RECORDS = (
    "key string, value string, topic string, partition int, offset long, timestamp timestamp, "
    "headers array<struct<key string, value binary>>"
)
NULL_PAYLOADS = (
    "null",
    " null ",
    '{"schema": null, "payload": null}',
    '{"payload": null}',
    '{"schema": {"type": "struct", "fields": [], "optional": true}, "payload": null}',
)


def records(
    spark: SparkSession,
    values: Sequence[Any],
    *,
    keys: Sequence[Any] = (),
    topics: Sequence[str] = (),
    headers: Sequence[Any] = (),
) -> DataFrame:
    """Records of partition 0, one a second; what is no text is written as JSON."""

    def texts(given: Sequence[Any]) -> list[Any]:
        return [v if v is None or isinstance(v, str) else json.dumps(v) for v in given]

    rows = [
        (key, value, topic, 0, n, START + timedelta(seconds=n), of)
        for n, (key, value, topic, of) in enumerate(
            zip(
                texts(keys) or [None] * len(values),
                texts(values),
                topics or ["t"] * len(values),
                headers or [None] * len(values),
                strict=True,
            )
        )
    ]
    return spark.createDataFrame(rows, RECORDS).coalesce(1)


def rows(frame: DataFrame, *, of: type = dt.Table, **options: Any) -> list[tuple[Any, ...]]:
    """What each record that can be read becomes: whether it deletes, and its columns."""
    source = of.from_records(frame, name="t", malformed="drop", **options).plan
    names = [*source.key.names, *source.values.names]
    return [tuple(row) for row in source.frame.select("_deleted", *names).collect()]


def problems(frame: DataFrame, **options: Any) -> dict[int, str]:
    """Why records cannot be read, by their offsets."""
    table = dt.Table.from_records(frame, name="t", malformed="dead_letter", **options)
    letters: list[Row] = table.dead_letters().collect()
    return {
        json.loads(letter["row"])["offset"]: letter["_problem"].split(": ", 1)[1]
        for letter in letters
    }


def test_a_tombstone_whose_key_is_in_its_value_cannot_be_read(spark: SparkSession) -> None:
    frame = records(spark, [{"id": 1, "v": "a"}, None, "null"], keys=[{"id": 1}] * 3)
    whole = dt.formats.json("id long, v string")
    found = problems(frame, key_columns="id", value=whole)
    assert found.keys() == {1, 2}
    assert all(
        "a null value" in said and "key_columns= takes id" in said for said in found.values()
    )
    assert rows(frame, key=dt.formats.json("id long"), value=dt.formats.json("v string")) == [
        (False, 1, "a"),
        (True, 1, None),
        (True, 1, None),
    ]
    stream = dt.Stream.from_records(frame, key_columns="id", value=whole, name="s")
    assert stream.plan.frame.count() == 3  # a stream drops and counts them


@pytest.mark.slow
@pytest.mark.parametrize("envelope", [True, False])
def test_null_payloads_are_tombstones(spark: SparkSession, envelope: bool) -> None:
    value = {"op": "c", "after": {"v": "a"}, "ts_ms": 1} if envelope else {"v": "a"}
    values = [value, *NULL_PAYLOADS, {"payload": None, "v": "b"}]
    frame = records(spark, values, keys=[{"id": 1}] * len(values))
    deletes = [(True, 1, None)] * len(NULL_PAYLOADS)
    key = dt.formats.json("id long")
    if envelope:
        format_ = dt.formats.debezium("v string", tombstones="delete")
        assert rows(frame, key=key, value=format_) == [(False, 1, "a"), *deletes]
        assert rows(frame, key=key, value=dt.formats.debezium("v string")) == [(False, 1, "a")]
    else:
        found = rows(frame, key=key, value=dt.formats.json("v string"))
        assert found == [(False, 1, "a"), *deletes, (False, 1, "b")]
        declared = rows(frame, key=key, value=dt.formats.json("v string, payload string"))
        assert [deleted for deleted, *_ in declared] == [False, True, True, *[False] * 4]


def test_what_is_beside_key_and_value_becomes_columns(spark: SparkSession) -> None:
    op = [Row(key="__op", value=b"c"), Row(key="__op", value=b"d")]
    frame = records(
        spark,
        [{"id": 7}] * 4,
        topics=["east", "west", "east", "west"],
        headers=[op[:1], [], op, [Row(key="__op", value=b"\xff")]],
    )
    options: dict[str, Any] = {
        "key_columns": ["shard", "id"],
        "value": dt.formats.json("id long"),
        "metadata": {"shard": "topic", "op": "headers.__op", "place": "offset", "at": "timestamp"},
        "timestamp": "at",
    }
    assert rows(frame, deleted=F.col("op") == "d", **options) == [
        (False, "east", 7, "c", 0),
        (False, "west", 7, None, 1),
        (True, "east", 7, "d", 2),
    ]
    assert problems(frame, **options) == {3: "header '__op' is no text in UTF-8"}
    table = dt.Table.from_records(frame.limit(3), deleted=F.col("op") == "d", name="t", **options)
    assert [(r.shard, r.id) for r in table.changelog(emit="batch").collect()] == [("west", 7)]


def test_other_columns_of_the_frame_are_ignored(spark: SparkSession) -> None:
    """Also those with the names of columns that reading adds."""
    frame = records(spark, [{"id": 7, "v": "a"}])
    names = ("_timestamp", "_deleted", "value_row", "VALUE_PARSED", "_record", "_event", "other")
    frame = frame.selectExpr("*", *(f"5 AS {name}" for name in names), "6 AS other")
    assert rows(frame, key_columns="id", value=dt.formats.json("id long, v string")) == [
        (False, 7, "a")
    ]


def test_a_key_of_the_record_and_its_topic_is_that_of_tombstones_too(spark: SparkSession) -> None:
    frame = records(spark, [{"v": 1}, None], keys=[{"id": 7}] * 2, topics=["east", "west"])
    found = rows(
        frame,
        key=dt.formats.json("id long"),
        key_columns=["shard", "id"],
        value=dt.formats.json("v int"),
        metadata={"shard": "topic"},
    )
    assert found == [(False, "east", 7, 1), (True, "west", 7, None)]


def test_columns_of_an_envelope_are_key_columns(spark: SparkSession) -> None:
    def event(op: str, before: Any, after: Any, shard: str) -> dict[str, Any]:
        return {"op": op, "before": before, "after": after, "source": {"table": shard, "lsn": 5}}

    frame = records(
        spark,
        [
            event("c", None, {"id": 7}, "east"),
            event("d", {"id": 7}, None, "west"),
            event("u", {"id": 7}, {"id": 8}, "east"),
        ],
    )
    format_ = dt.formats.debezium(
        "id long", metadata={"shard": "source.table", "lsn": "source.lsn"}
    )
    options = {"value": format_, "timestamp": F.current_timestamp()}
    assert rows(frame, key_columns=["shard", "id"], **options) == [
        (False, "east", 7, 5),
        (True, "west", 7, 5),
        (True, "east", 7, 5),
        (False, "east", 8, 5),
    ]
    with pytest.raises(PlanError, match=r"unknown column 'of'. Known are id, shard, lsn"):
        rows(frame, key_columns=["of", "id"], **options)


@pytest.mark.parametrize("of", [dt.Table, dt.Stream])
def test_an_expression_is_the_time_beside_key_columns(spark: SparkSession, of: type) -> None:
    frame = records(spark, [{"id": 1, "ms": 1714557600000}])
    source = of.from_records(
        frame,
        key_columns=["id"],
        value=dt.formats.json("id long, ms long"),
        timestamp=F.timestamp_millis("ms"),
        name="t",
    )
    (row,) = source.plan.frame.select(F.unix_millis("_timestamp")).collect()
    assert row[0] == 1714557600000


def test_a_column_or_a_condition_says_what_deletes(spark: SparkSession) -> None:
    frame = records(
        spark,
        [{"id": 1, "gone": True}, {"id": 2, "gone": False}, {"id": 3}],
    )
    options: dict[str, Any] = {
        "key_columns": "id",
        "value": dt.formats.json("id long, gone boolean"),
    }
    assert rows(frame, deleted="gone", **options) == [(True, 1), (False, 2), (False, 3)]
    assert rows(frame, deleted=F.col("id") == 3, **options) == [
        (False, 1, True),
        (False, 2, False),
        (True, 3, None),
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metadata": {"x": "source.lsn"}}, "metadata= has 'source.lsn' for 'x'"),
        ({"metadata": {"id": "topic"}}, "column 'id' occurs twice"),
        ({"metadata": {"h": "headers.op"}}, "the frame has no column 'headers'"),
        ({"deleted": "id"}, "deleted= names 'id', a column of key_columns="),
        ({"deleted": "v"}, "deleted= is of type string, not boolean. Give a condition"),
        ({"deleted": "op"}, "deleted= does not resolve"),
        ({"key_columns": ["id", "shard"]}, "unknown column 'shard'. Known are id, v"),
        ({"max_ahead": "soon"}, "max_ahead="),
    ],
)
def test_what_cannot_serve_is_refused(
    spark: SparkSession, options: dict[str, Any], message: str
) -> None:
    frame = records(spark, []).drop("headers")
    whole = {"key_columns": "id", "value": dt.formats.json("id long, v string"), **options}
    with pytest.raises(PlanError) as raised:
        dt.Table.from_records(frame, **whole)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("cast(1 AS long) AS timestamp", "'timestamp' is of type bigint, not timestamp. Cast it"),
        ("'5' AS offset", "column 'offset' is of type string, not a whole number"),
        ("map('a', 'b') AS headers", "not array<struct<key:string,value:binary>>"),
    ],
)
def test_columns_that_do_not_place_records_are_refused(
    spark: SparkSession, column: str, message: str
) -> None:
    name = column.rpartition(" ")[2]
    frame = records(spark, []).drop(name).selectExpr("*", column)
    with pytest.raises(PlanError) as raised:
        dt.Table.from_records(frame, key_columns="id", value=dt.formats.json("id long"))
    assert message in str(raised.value)
    if name == "offset":
        ignored = frame.drop("partition")
        dt.Table.from_records(ignored, key_columns="id", value=dt.formats.json("id long"))


def test_a_field_called_as_the_record_itself_is_refused(spark: SparkSession) -> None:
    with pytest.raises(PlanError, match="column '_record' occurs twice"):
        dt.Table.from_records(
            records(spark, []), key_columns="id", value=dt.formats.json("id long, _record long")
        )


def test_a_record_without_an_offset_cannot_be_read(spark: SparkSession) -> None:
    frame = records(spark, [{"id": 1}, {"id": 2}])
    frame = frame.withColumn("offset", F.expr("nullif(offset, 1)"))
    options: dict[str, Any] = {"key_columns": "id", "value": dt.formats.json("id long")}
    table = dt.Table.from_records(frame, name="t", malformed="dead_letter", **options)
    assert [row.id for row in table.changelog(emit="batch").collect()] == [1]
    (letter,) = table.dead_letters().collect()
    assert letter["_problem"].endswith(": it has no partition or no offset")


def test_rows_without_a_position_in_their_log_are_refused(spark: SparkSession) -> None:
    """A row without a position would come behind all others."""
    rows = [(1, "a", 2**60 + 1, 1), (1, "b", None, 1), (1, "c", 2**60 + 2, 1), (2, "d", 5, None)]
    frame = spark.createDataFrame(rows, "id long, v string, lsn long, part long").coalesce(1)
    frame = frame.withColumn("at", F.timestamp_seconds(F.lit(1)))
    options: dict[str, Any] = {"key": "id", "timestamp": "at", "sequence": "lsn", "name": "t"}
    for more in ({}, {"shared_log": True}, {"log_partition": "part"}):
        table = dt.Table.from_changelog(frame, **options, **more)
        with pytest.raises(Exception, match="table t: a row has a null in sequence=, so no place"):
            table.changelog(emit="batch").collect()
    problem_of = {"b": "sequence= is null", "d": "log_partition= is null"}
    for malformed in ("drop", "dead_letter"):
        table = dt.Table.from_changelog(frame, malformed=malformed, log_partition="part", **options)
        assert [row.v for row in table.changelog(emit="batch").collect()] == ["c"]
    letters = table.dead_letters().collect()
    assert {json.loads(one["row"])["v"]: one["_problem"] for one in letters} == problem_of


def test_records_of_the_future_are_left_out(spark: SparkSession) -> None:
    now = datetime.now(tz=timezone.utc)
    times = [now + timedelta(hours=hours) for hours in (-48, 23, 25)] + [
        datetime(2099, 1, 1, tzinfo=timezone.utc)
    ]
    frame = records(
        spark, [{"id": n, "at": f"{t:%Y-%m-%dT%H:%M:%SZ}"} for n, t in enumerate(times)]
    )
    options: dict[str, Any] = {
        "key_columns": "id",
        "value": dt.formats.json("id long, at timestamp"),
        "timestamp": "at",
    }
    assert len(rows(frame, **options)) == 4
    assert rows(frame, max_ahead="1 day", **options) == [(False, 0), (False, 1)]
    found = problems(frame, max_ahead="1 day", **options)
    assert found.keys() == {2, 3}
    assert found[3] == (
        "its event time, 2099-01-01T00:00:00Z, is further ahead of the time of reading than "
        "max_ahead='1 day' allows"
    )
    with pytest.raises(Exception, match="its event time, 2099-01-01"):
        dt.Table.from_records(
            frame.where("offset = 3"), name="t", max_ahead="1 day", **options
        ).plan.frame.collect()


@pytest.mark.parametrize("first", ["a", "b"])
def test_each_topic_has_logs_of_its_own(first: str, spark: SparkSession) -> None:
    """Offsets of two topics do not say which record is newer: their times do."""
    at = {"a": START + timedelta(seconds=9), "b": START}
    later = "b" if first == "a" else "a"
    offsets = {first: 3, later: 5}
    log = [("k", f'{{"v": "{t}"}}', t, 0, offsets[t], at[t], None) for t in (first, later)]
    frame = spark.createDataFrame(log, RECORDS).coalesce(1)
    table = dt.Table.from_records(frame, key="string", value=dt.formats.json("v string"), name="t")
    changes = table.materialize().changelog(emit="batch", buckets=1).collect()
    assert [(row.v, row._timestamp) for row in changes] == [("a", at["a"].replace(tzinfo=None))]
    options: dict[str, Any] = {"key": "string", "value": dt.formats.json("v string")}
    for log, values in (("shard", ["v"]), (F.col("shard") + 1, ["v", "shard"])):
        own = dt.Table.from_records(
            frame, metadata={"shard": "partition"}, log_partition=log, **options
        )
        positions = own.plan.order.positions
        assert "_offset" in str(positions["sequence="])
        assert "shard" in str(positions["log_partition="])
        assert own.plan.values.names == values


def test_rows_of_the_future_and_without_a_time_are_left_out(spark: SparkSession) -> None:
    frame = spark.createDataFrame(
        [
            (1, datetime(2024, 1, 1, tzinfo=timezone.utc)),
            (2, datetime(2099, 1, 1, 0, 0, 0, 123456, tzinfo=timezone.utc)),
            (3, None),
        ],
        "id long, at timestamp",
    )
    options: dict[str, Any] = {"key": "id", "timestamp": "at", "name": "t", "max_ahead": "1 day"}
    for malformed in ("drop", "dead_letter"):
        table = dt.Table.from_changelog(frame, malformed=malformed, **options)
        assert [row.id for row in table.changelog(emit="batch").collect()] == [1]
    letters = table.dead_letters().collect()
    problem = {json.loads(letter["row"])["id"]: letter["_problem"] for letter in letters}
    times = [json.loads(letter["row"]).get("at") for letter in letters]
    assert times == ["2099-01-01T00:00:00.123456Z", None]
    assert problem.keys() == {2, 3}
    assert problem[3] == "it has no event time"
    with pytest.raises(Exception, match="table t: the row cannot be read: its event time, 2099"):
        dt.Table.from_changelog(frame.where("id = 2"), **options).plan.frame.collect()


def test_deletes_without_a_time_are_not_to_be_filtered_out(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(1, True, None)], "id long, gone boolean, at timestamp")
    table = dt.Table.from_changelog(frame, key="id", timestamp="at", deleted="gone", name="t")
    with pytest.raises(Exception, match="null timestamp") as raised:
        table.changelog(emit="batch").collect()
    assert "1 rows have a null timestamp, so no place in event time, 1 of them deletes" in str(
        raised.value
    )
    assert "Filter them out" not in str(raised.value)
