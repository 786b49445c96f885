"""The events of Maxwell and of Canal, as their documentation shows them."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import dovetail as dt
from dovetail.errors import PlanError

NO_TIME = ", which is not ISO 8601, nor of an encoding that encodings= names"
SCHEMA = "id long, m decimal(10,2), c timestamp, comment string"
OPTIONS: dict[str, Any] = {"key_columns": "id", "name": "t", "malformed": "dead_letter"}


def maxwell(type_: str, data: Any, old: Any = None, **more: Any) -> dict[str, Any]:
    event = {"database": "test", "table": "m", "type": type_, "ts": 1449786310, "xid": 940752}
    return {**event, "commit": True, "data": data, **({} if old is None else {"old": old}), **more}


def canal(type_: str, data: Any, old: Any = None, **more: Any) -> dict[str, Any]:
    event = {"database": "test", "table": "m", "type": type_, "es": 1449786310000, "ts": 1, "id": 3}
    named = {"pkNames": ["id"], "isDdl": False, "sql": "", "mysqlType": {"id": "bigint"}}
    return {**event, **named, "data": data, "old": old, **more}


def table_of(spark: SparkSession, values: list[Any], format_: Any, **options: Any) -> dt.Table:
    rows = [
        (v if v is None else json.dumps(v), "t", 0, n, datetime(2024, 5, 1, tzinfo=timezone.utc))
        for n, v in enumerate(values)
    ]
    columns = "value string, topic string, partition int, offset long, timestamp timestamp"
    frame = spark.createDataFrame(rows, columns).coalesce(1)
    return dt.Table.from_records(frame, value=format_, **{**OPTIONS, **options})


def changes(table: dt.Table) -> list[tuple[Any, ...]]:
    found = table.plan.frame.select(
        "_offset", "_deleted", "id", F.col("m").cast("string"), "comment"
    )
    return [tuple(row) for row in found.collect()]


def problems(table: dt.Table) -> list[str]:
    return [letter["_problem"].split("value: ", 1)[1] for letter in table.dead_letters().collect()]


def test_maxwell(spark: SparkSession) -> None:
    row = {"id": 1, "m": 4.23, "c": "2015-12-10 22:25:10", "comment": "a"}
    table = table_of(
        spark,
        [
            maxwell("insert", row),
            maxwell(
                "update", {**row, "m": 5.5, "c": None}, {"m": 4.23, "c": "2015-12-10 22:25:10"}
            ),
            maxwell("update", {**row, "id": 2}, {"id": 1}),
            maxwell("delete", {**row, "id": 2}),
            maxwell("bootstrap-start", {}),
            maxwell("bootstrap-insert", {**row, "id": 3}),
            maxwell("table-alter", None),
            None,
            maxwell("insert", {**row, "c": "yesterday"}),
            maxwell("table-drop", None),
            {"id": 1},
        ],
        dt.formats.maxwell(SCHEMA),
    )
    assert changes(table) == [
        (0, False, 1, "4.23", "a"),
        (1, False, 1, "5.50", "a"),
        (2, True, 1, None, None),
        (2, False, 2, "4.23", "a"),
        (3, True, 2, "4.23", "a"),
        (5, False, 3, "4.23", "a"),
    ]
    assert problems(table) == [
        f"column data.c is no timestamp: yesterday{NO_TIME}",
        "no change of a row: its type is table-drop",
        "no change of a row: its type is null",
    ]
    time = table.plan.frame.select(F.unix_seconds("_timestamp")).first()
    assert time is not None
    assert time[0] == 1449786310
    (left,) = table.changelog(emit="batch").collect()
    assert (left.id, left.c) == (3, datetime(2015, 12, 10, 22, 25, 10, tzinfo=left.c.tzinfo))


def test_canal(spark: SparkSession) -> None:
    row = {"id": "1", "m": "4.23", "c": "2015-12-10 22:25:10", "comment": "a"}
    two = {**row, "id": "2"}
    table = table_of(
        spark,
        [
            canal("INSERT", [row, two]),
            canal(
                "UPDATE", [{**row, "m": "5.5"}, {**two, "id": "7"}], [{"m": "4.23"}, {"id": "2"}]
            ),
            canal("DELETE", [{**row, "m": "5.5"}]),
            canal("ALTER", None, isDdl=True),
            canal("TRUNCATE", None, isDdl=True),
            canal("INSERT", [row, {**two, "m": "much"}]),
            canal("INSERT", []),
            {"type": "TIDB_WATERMARK", "isDdl": False, "es": 1, "data": None, "_tidb": {}},
            canal("INSERT", [{"id": "8"}], _tidb={"commitTs": 2**59, "onlyHandleKey": True}),
            canal("UPDATE", [{"id": "8"}], [{}], _tidb={"claimCheckLocation": "s3://b/a.json"}),
            canal("DELETE", [{"id": "8"}], _tidb={"commitTs": 2**59, "onlyHandleKey": True}),
        ],
        dt.formats.canal(SCHEMA),
    )
    assert changes(table) == [
        (0, False, 1, "4.23", "a"),
        (0, False, 2, "4.23", "a"),
        (1, False, 1, "5.50", "a"),
        (1, True, 2, None, None),
        (1, False, 7, "4.23", "a"),
        (2, True, 1, "5.50", "a"),
        (10, True, 8, None, None),
    ]
    too_large = (
        "it has the key of a row that was too large for a message: raise max-message-bytes of "
        "TiCDC, or compress by large-message-handle-compression"
    )
    assert problems(table) == [
        "no change of a row: its type is TRUNCATE",
        "column m is no decimal(10,2): much",
        "it has no data",
        too_large,
        too_large,
    ]
    assert [row.id for row in table.changelog(emit="batch").collect()] == [7]


@pytest.mark.parametrize("listed", [False, True])
def test_a_former_key_with_a_null_deletes_no_row(spark: SparkSession, listed: bool) -> None:
    """The row was not in the table; the one with the new value in place of the null was."""
    moves: list[tuple[dict[str, Any], dict[str, Any] | None]] = [
        ({"id": 1, "m": 5, "comment": "stays"}, None),
        ({"id": 2, "m": 5, "comment": "a"}, {"id": 1, "m": None}),
        ({"id": 2, "m": 7, "comment": "a"}, {"m": 5, "comment": None}),
        ({"id": 3, "m": 7, "comment": "a"}, {"id": 2, "comment": "b"}),
        ({"id": 3, "m": None, "comment": "a"}, {"m": 7}),
    ]

    def texts(row: dict[str, Any] | None) -> list[dict[str, Any]] | None:
        return row and [{name: None if v is None else str(v) for name, v in row.items()}]

    events = [
        canal("UPDATE" if old else "INSERT", texts(row), texts(old))
        if listed
        else maxwell("update" if old else "insert", row, old)
        for row, old in moves
    ]
    format_ = dt.formats.canal(SCHEMA) if listed else dt.formats.maxwell(SCHEMA)
    table = table_of(spark, events, format_, key_columns=["id", "m"])
    assert changes(table) == [
        (0, False, 1, "5.00", "stays"),
        (1, False, 2, "5.00", "a"),
        (2, True, 2, "5.00", None),
        (2, False, 2, "7.00", "a"),
        (3, True, 2, "7.00", None),
        (3, False, 3, "7.00", "a"),
        (4, True, 3, "7.00", None),
        (4, False, 3, None, "a"),
    ]
    left = table.changelog(emit="batch").collect()
    assert [(row.id, int(row.m), row.comment) for row in left] == [(1, 5, "stays")]


def test_a_former_key_that_does_not_fit_its_type_cannot_be_read(spark: SparkSession) -> None:
    event = canal("UPDATE", [{"id": "2"}], [{"id": "0x1"}])
    table = table_of(spark, [event], dt.formats.canal(SCHEMA))
    assert changes(table) == []
    assert problems(table) == ["column old.id is no bigint: 0x1"]


@pytest.mark.parametrize("listed", [False, True])
def test_a_row_without_its_key_column_cannot_be_read(spark: SparkSession, listed: bool) -> None:
    """As where its name has another case. A key column that is null is no such row."""
    rows = [{"ID": 1, "m": 5}, {"id": None, "m": 5}, {"id": 3, "m": 5}]
    texts = [{name: None if v is None else str(v) for name, v in row.items()} for row in rows]
    events = [
        canal("INSERT", [text]) if listed else maxwell("insert", row)
        for row, text in zip(rows, texts, strict=True)
    ]
    format_ = dt.formats.canal(SCHEMA) if listed else dt.formats.maxwell(SCHEMA)
    table = table_of(spark, events, format_)
    assert problems(table) == ["data has no column id, which key_columns= names: it has ID, m"]
    assert changes(table) == [(1, False, None, "5.00", None), (2, False, 3, "5.00", None)]


def test_what_cannot_serve_is_refused(spark: SparkSession) -> None:
    unfit = r"column 'x' of type array<int>, which cannot be made of a text\. Declare it as string"
    with pytest.raises(PlanError, match=unfit):
        dt.formats.canal("id long, x array<int>")
    with pytest.raises(PlanError, match="unknown column 'no'"):
        table_of(spark, [], dt.formats.maxwell(SCHEMA), key_columns="no")
    key = {"key": dt.formats.canal(SCHEMA), "key_columns": None}
    with pytest.raises(PlanError, match="key= is a change event, which only a value is"):
        dt.Table.from_records(
            spark.createDataFrame([], "key string, value string, timestamp timestamp"), **key
        )


def test_numbers_out_of_range_cannot_be_read(spark: SparkSession) -> None:
    """A time in microseconds where seconds belong, which is one letter for an update of the key,
    too, and a number that no double is.
    """
    late = maxwell("update", {"id": 1}, {"id": 0}, ts=2**53)
    table = table_of(spark, [late, maxwell("insert", {"id": 2})], dt.formats.maxwell("id long"))
    (letter,) = table.dead_letters().collect()
    assert letter["_problem"] == "topic t, partition 0, offset 0: it has no event time"
    events = [canal("INSERT", [{"id": str(n), "x": x}]) for n, x in enumerate(("1e400", "-1e39"))]
    table = table_of(spark, events, dt.formats.canal("id long, x float"))
    assert problems(table) == ["column x is no float: 1e400", "column x is no float: -1e39"]
