"""Change events as Debezium's documentation shows them, and random ones against a decoder of their
own: each becomes the row, the delete or the problem that it is. Nothing here needs a broker.
"""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta, timezone
from decimal import Context, Decimal
from typing import Any

import pytest
from bench.parameters import slow_after
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DecimalType

import dovetail as dt
from dovetail.errors import PlanError

CONTEXT = Context(prec=60)
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
TIME, DATA, CONNECT = "io.debezium.time.", "io.debezium.data.", "org.apache.kafka.connect.data."
RECORDS = "key string, value string, topic string, partition int, offset long, timestamp timestamp"

POSTGRES = {
    "version": "3.2.0.Final", "connector": "postgresql", "name": "PostgreSQL_server",
    "ts_ms": 1559033904863, "ts_us": 1559033904863123, "ts_ns": 1559033904863123000,
    "snapshot": False, "db": "postgres", "sequence": '["24023119","24023128"]',
    "schema": "public", "table": "customers", "txId": 555, "lsn": 24023128, "xmin": None,
}  # fmt: skip
MYSQL = {
    "version": "3.2.0.Final", "connector": "mysql", "name": "mysql-server-1", "ts_ms": 0,
    "ts_us": 0, "ts_ns": 0, "snapshot": False, "db": "inventory", "table": "customers",
    "server_id": 0, "gtid": None, "file": "mysql-bin.000003", "pos": 154, "row": 0, "thread": 7,
    "query": "INSERT INTO customers (first_name) VALUES ('Anne')",
}  # fmt: skip
ANNE = {"id": 1, "first_name": "Anne", "last_name": "Kretchmar", "email": "annek@noanswer.org"}
MARIE = {**ANNE, "first_name": "Anne Marie"}
CUSTOMERS = "id int, first_name string, last_name string, email string"


def event(op: str, before: Any, after: Any, source: Any = POSTGRES, **more: Any) -> dict[str, Any]:
    """An envelope without its schema."""
    times = {"ts_ms": 1559033904961, "ts_us": 1559033904961654, "ts_ns": 1559033904961654789}
    return {"before": before, "after": after, "source": source, "op": op, **times, **more}


def with_schema(payload: Any, columns: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """An event with the schema that Kafka Connect's JSON puts beside it."""
    of_source = [{"type": "string", "optional": False, "field": name} for name in POSTGRES]
    rows = [
        {"type": "struct", "fields": columns, "optional": True, "name": "s.t.Value", "field": side}
        for side in ("before", "after")
    ]
    source = {"type": "struct", "fields": of_source, "optional": False, "field": "source"}
    op = {"type": "string", "optional": False, "field": "op"}
    schema = {"type": "struct", "fields": [*rows, source, op], "optional": False, "name": "s.t.E"}
    return {"schema": schema, "payload": payload}


def column(name: str, type_: str, semantic: str | None = None, **more: Any) -> dict[str, Any]:
    """A column's schema in Kafka Connect's JSON."""
    named = {} if semantic is None else {"name": semantic, "version": 1}
    return {"type": type_, "optional": True, **named, "field": name, **more}


def records(spark: SparkSession, values: Sequence[Any], keys: Sequence[Any] = ()) -> DataFrame:
    """A partition of a topic with these values; texts are as they are, others JSON."""
    texts = [v if v is None or isinstance(v, str) else json.dumps(v) for v in values]
    of_keys = [k if k is None or isinstance(k, str) else json.dumps(k) for k in keys]
    of_keys = of_keys or [None] * len(texts)
    stamped = EPOCH + timedelta(seconds=1)
    rows = [(k, v, "t", 0, n, stamped) for n, (k, v) in enumerate(zip(of_keys, texts, strict=True))]
    return spark.createDataFrame(rows, RECORDS).coalesce(1)


def read(frame: DataFrame, value: Any, **options: Any) -> list[tuple[Any, ...]]:
    """The offset of each row, whether it is deleted, and its columns."""
    table = dt.Table.from_records(frame, value=value, name="customers", **options)
    source = table.plan.frame
    columns = [c for c in source.columns if not c.startswith("_")]
    return [tuple(row) for row in source.select("_offset", "_deleted", *columns).collect()]


def problems(frame: DataFrame, value: Any, **options: Any) -> dict[int, str]:
    """The problem of each record that cannot be read, by its offset."""
    table = dt.Table.from_records(
        frame, value=value, name="customers", malformed="dead_letter", **options
    )
    letters = table.dead_letters().collect()
    assert all(letter["_operator"] == "table customers" for letter in letters)
    found = {}
    for letter in letters:
        place, _, problem = letter["_problem"].partition(": ")
        offset = json.loads(letter["row"])["offset"]
        assert place == f"topic t, partition 0, offset {offset}"
        assert offset not in found
        found[offset] = problem
    return found


def test_a_customer_of_postgres_and_one_of_mysql(spark: SparkSession) -> None:
    columns = [column("id", "int32"), column("first_name", "string")]
    truncate = {k: v for k, v in event("t", None, None).items() if k not in ("before", "after")}
    values = [
        with_schema(event("r", None, ANNE, {**POSTGRES, "snapshot": "first"}), columns),
        with_schema(event("u", {"id": 1}, MARIE), columns),
        event("u", None, ANNE),
        event("d", {"id": 1}, None),
        None,
        event("c", None, {**ANNE, "id": 1004}, MYSQL),
        event("u", {**ANNE, "id": 1004}, {**MARIE, "id": 1004}, {**MYSQL, "pos": 484}),
        event("d", {**MARIE, "id": 1004}, None, {**MYSQL, "pos": 805}),
        None,
        truncate,
    ]
    expected = [
        (0, False, *ANNE.values(), "first", 24023128, None),
        (1, False, *MARIE.values(), "false", 24023128, None),
        (2, False, *ANNE.values(), "false", 24023128, None),
        (3, True, 1, None, None, None, "false", 24023128, None),
        (5, False, 1004, *list(ANNE.values())[1:], "false", None, 154),
        (6, False, 1004, *list(MARIE.values())[1:], "false", None, 484),
        (7, True, 1004, None, None, None, "false", None, 805),
    ]
    metadata = {"snapshot": "source.snapshot", "lsn": "source.lsn", "pos": "source.pos"}
    format_ = dt.formats.debezium(CUSTOMERS, metadata=metadata, truncate="ignore")
    frame = records(spark, values)
    assert read(frame, format_, key_columns="id") == expected
    failing = problems(frame, dt.formats.debezium(CUSTOMERS), key_columns="id")
    assert failing.keys() == {9}
    assert failing[9].startswith("value: a TRUNCATE, which does not say which rows are gone")


def test_the_time_of_a_change_is_that_of_the_database(spark: SparkSession) -> None:
    whole = event("c", None, {"id": 1})
    millis = {**POSTGRES, "ts_us": None}
    unknown = event("c", None, {"id": 1}, MYSQL)
    values = [whole, event("c", None, {"id": 1}, millis), unknown]
    table = dt.Table.from_records(
        records(spark, values), key_columns="id", value=dt.formats.debezium("id int"), name="t"
    )
    times = table.plan.frame.select(F.unix_micros("_timestamp")).collect()
    assert [row[0] for row in times] == [1559033904863123, 1559033904863000, 1559033904961654]
    named = dt.Table.from_records(
        records(spark, ['{"id": 1, "at": "1970-01-01T00:00:05Z"}', '{"id": 2}', None], [1, 2, 3]),
        value=dt.formats.json("id int, at timestamp"),
        timestamp="at",
        malformed="dead_letter",
    )
    assert named.plan.values.names == ["id"]
    found = named.plan.frame.select("id", "_deleted", F.unix_micros("_timestamp")).collect()
    assert [tuple(row) for row in found] == [(1, False, 5_000_000), (None, True, 1_000_000)]
    (letter,) = named.dead_letters().collect()
    assert letter["_problem"] == "topic t, partition 0, offset 1: it has no event time"


def test_the_key_is_that_of_the_record(spark: SparkSession) -> None:
    values = [event("c", None, {"id": 1, "n": 5}), event("d", {"id": 1}, None), None]
    wrapped = {
        "schema": {"type": "struct", "fields": [column("id", "int32"), column("part", "string")]},
        "payload": {"id": 1, "part": "east"},
    }
    frame = records(spark, values, [{"id": 1, "part": "east"}, wrapped, wrapped])
    key = {field.name: field.dataType for field in spark.sql("select 1 id, 'x' part").schema}
    assert read(frame, dt.formats.debezium("n int"), key=key) == [
        (0, False, 1, "east", 5),
        (1, True, 1, "east", None),
    ]
    assert read(frame, dt.formats.debezium("n int", tombstones="delete"), key=key) == [
        (0, False, 1, "east", 5),
        (1, True, 1, "east", None),
        (2, True, 1, "east", None),
    ]


def test_a_key_without_a_column_cannot_be_read(spark: SparkSession) -> None:
    """As where its name has another case. A null in the key is no such key, nor is a null key."""
    described = {"type": "struct", "fields": [column("id", "int32")]}
    keys = [
        {"ID": 1},
        {"schema": described, "payload": {"Id": 1, "part": "east"}},
        {"id": None},
        {"schema": described, "payload": None},
        {"id": 5},
    ]
    frame = records(spark, [event("c", None, {"n": 5})] * len(keys), keys)
    key, value = dt.formats.json("id int"), dt.formats.debezium("n int")
    assert problems(frame, value, key=key) == {
        0: "key: it has no column id, which key= names: it has ID",
        1: "key: it has no column id, which key= names: it has Id, part",
    }
    assert read(frame, value, key=key, malformed="drop") == [
        (2, False, None, 5),
        (3, False, None, 5),
        (4, False, 5, 5),
    ]


def test_a_key_of_an_unknown_encoding_says_so(spark: SparkSession) -> None:
    """A number may be any kind of time. Only Kafka Connect's schema says which."""
    fields = [column("id", "int32"), column("at", "int64", "io.debezium.time.MicroTimestamp")]
    key = {"id": 1, "at": 5}
    keys = [key, {"schema": {"type": "struct", "fields": fields}, "payload": key}, "no JSON"]
    frame = records(spark, [event("c", None, {"n": 5})] * len(keys), keys)
    found = problems(
        frame, dt.formats.debezium("n int"), key=dt.formats.json("id int, at timestamp")
    )
    unfit = "key: not one JSON object whose fields fit the schema"
    assert [*found] == [0, 2]
    assert found[0].startswith(f"{unfit}; without Kafka Connect's schema it does not say how at is")
    assert found[2] == unfit


def test_a_versioned_table_takes_tombstones_by_the_time_of_records(spark: SparkSession) -> None:
    """A key that is deleted and inserted at once: the tombstone is written after both."""
    at = [{**POSTGRES, "ts_us": second * 10**6} for second in (1, 2, 2)]
    values = [event("c", None, {"n": 1}, at[0]), event("d", {"id": 1}, None, at[1]), None]
    values.append(event("c", None, {"n": 2}, at[2]))
    frame = records(spark, values, [{"id": 1}] * 4)
    frame = frame.withColumn("timestamp", F.timestamp_seconds(F.lit(3) + F.col("offset")))
    options = {"key": dt.formats.json("id int"), "versioned": "1 day", "name": "customers"}
    deleting = dt.formats.debezium("n int", tombstones="delete")
    refused = "tombstone has the time of its record.*timestamp='written'"
    with pytest.raises(PlanError, match=refused):
        dt.Table.from_records(frame, value=deleting, **options)
    written = {"metadata": {"written": "timestamp"}, "timestamp": "written"}
    tables = [
        dt.Table.from_records(frame, value=dt.formats.debezium("n int"), **options),
        dt.Table.from_records(frame, value=deleting, **options, **written),
    ]
    for table in tables:
        left = table.materialize().changelog(emit="batch").collect()
        assert [(row.id, row.n) for row in left] == [(1, 2)]


def test_a_row_without_columns_has_the_metadata_alone(spark: SparkSession) -> None:
    values = [event("c", None, {"id": 1}), event("d", {"id": 1}, None), event("u", None, None)]
    frame = records(spark, values, ["a", "b", "c"])
    value = dt.formats.debezium({}, metadata={"op": "op"})
    assert read(frame, value, key="string", malformed="drop") == [
        (0, False, "a", "c"),
        (1, True, "b", "d"),
    ]
    assert problems(frame, value, key="string") == {
        2: "value: no row after the change, whose op is u"
    }


def test_an_update_of_the_key_deletes_the_former_row(spark: SparkSession) -> None:
    values = [
        event("u", {"id": 1}, {"id": 2, "n": 5}),
        event("u", {"id": 2, "n": 5}, {"id": 2, "n": 6}),
        event("u", None, {"id": 3, "n": 7}),
        event("u", {"id": None, "n": 6}, {"id": 3, "n": 7}),
    ]
    assert read(records(spark, values), dt.formats.debezium("id int, n int"), key_columns="id") == [
        (0, True, 1, None),
        (0, False, 2, 5),
        (1, False, 2, 6),
        (2, False, 3, 7),
        (3, False, 3, 7),
    ]


PLACEHOLDER = "__debezium_unavailable_value"
UNREAD = {
    "x": "not one JSON object with the fields of a change event",
    "[]": "not one JSON object with the fields of a change event",
    '{"op":"c","after":{"id":"one"}}': "column after.id is no int: one",
    "{}": "no change of a row: its op is null",
    '{"op":"m","message":{}}': "no change of a row: its op is m",
    '{"op":"c","ts_ms":1,"after":{"ID":1,"n":2}}': "after has no column id, which key_columns= "
    "names: it has ID, n",
    '{"payload":{"op":"d","ts_ms":1,"before":{"ID":1}}}': "before has no column id, which key_col",
    '{"op":"c","after":null}': "no row after the change, whose op is c",
    '{"op":"d","before":null}': "a delete without the row before it",
    '{"op":"u","before":{"id":1},"after":{"id":2}}': "it has no event time",
    '{"op":"c","ts_ms":1,"after":{"id":1,"at":"5"}}': "column `at` is no timestamp: "
    '{"at":"5"}, encoded as its record does not say; name it in encodings=',
    '{"op":"c","ts_ms":1,"after":{"id":1,"price":"AQ=="}}': "column `price` is no decimal(5,2): ",
    '{"op":"c","ts_ms":1,"after":{"id":1,"at":"2024-05-01T00:00:00"}}': "column `at` is no time",
    f'{{"op":"c","ts_ms":1,"after":{{"id":1,"text":"{PLACEHOLDER}"}}}}': "column `text` was not "
    "sent, since it is large and has not changed: set the table's REPLICA IDENTITY to FULL",
    '{"op":"c","ts_ms":1,"after":{"id":1,"blob":"X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="}}':
    "column `blob` was not sent",
    '{"op":"c","ts_ms":1,"after":{"id":1,"blob":"=A"}}': "column after.blob is no binary",
    '{"op":"c","ts_ms":1,"after":{"id":1,"blob":true}}': "column after.blob is no binary",
}  # fmt: skip


def test_what_is_no_change_says_why(spark: SparkSession) -> None:
    schema = "id int, at timestamp, price decimal(5,2), text string, blob binary"
    frame = records(spark, list(UNREAD))
    found = problems(frame, dt.formats.debezium(schema), key_columns="id")
    for offset, (text, problem) in enumerate(UNREAD.items()):
        timeless = problem == "it has no event time"
        assert problem in found[offset], (text, found[offset])
        assert found[offset].startswith("value: ") or timeless
    stopped = dt.Table.from_records(
        frame, value=dt.formats.debezium(schema), key_columns="id", name="x"
    )
    with pytest.raises(Exception, match="table x: the record of topic t, partition 0, offset 0"):
        stopped.plan.frame.collect()


def unscaled(number: int) -> str:
    """A whole number as Java's BigInteger has it, in base64."""
    length = max(1, (number + (number < 0)).bit_length() // 8 + 1)
    return base64.b64encode(number.to_bytes(length, "big", signed=True)).decode()


DECLARED = {
    "days": "date",
    "iso_days": "date",
    "millis": "timestamp",
    "micros": "timestamp",
    "nanos": "timestamp_ntz",
    "connect": "timestamp_ntz",
    "zoned": "timestamp",
    "iso": "timestamp_ntz",
    "time": "interval day to second",
    "micro_time": "interval day to second",
    "nano_time": "interval day to second",
    "zoned_time": "interval day to second",
    "raw_time": "long",
    "precise": "decimal(38,10)",
    "whole": "decimal(38,0)",
    "variable": "decimal(20,4)",
    "plain": "decimal(12,3)",
    "double": "decimal(12,3)",
    "blob": "binary",
    "uuid": "string",
    "flag": "boolean",
    "wide": "double",
    "dates": "array<date>",
    "stamps": "array<timestamp>",
    "prices": "array<decimal(8,2)>",
    "texts": "array<string>",
    "tags": "map<string,string>",
    "point": "struct<x: double, y: double, wkb: binary, srid: int>",
}
ENCODED = {
    "days": column("days", "int32", f"{TIME}Date"),
    "iso_days": column("iso_days", "string", f"{TIME}IsoDate"),
    "millis": column("millis", "int64", f"{TIME}Timestamp"),
    "micros": column("micros", "int64", f"{TIME}MicroTimestamp"),
    "nanos": column("nanos", "int64", f"{TIME}NanoTimestamp"),
    "connect": column("connect", "int64", f"{CONNECT}Timestamp"),
    "zoned": column("zoned", "string", f"{TIME}ZonedTimestamp"),
    "iso": column("iso", "string", f"{TIME}IsoTimestamp"),
    "time": column("time", "int32", f"{TIME}Time"),
    "micro_time": column("micro_time", "int64", f"{TIME}MicroTime"),
    "nano_time": column("nano_time", "int64", f"{TIME}NanoTime"),
    "zoned_time": column("zoned_time", "string", f"{TIME}ZonedTime"),
    "raw_time": column("raw_time", "int64", f"{TIME}MicroTime"),
    "precise": column("precise", "bytes", f"{CONNECT}Decimal",
                      parameters={"scale": "10", "connect.decimal.precision": "38"}),
    "whole": column("whole", "bytes", f"{CONNECT}Decimal", parameters={"scale": "0"}),
    "variable": column("variable", "struct", f"{DATA}VariableScaleDecimal"),
    "plain": column("plain", "string"),
    "double": column("double", "double"),
    "blob": column("blob", "bytes"),
    "uuid": column("uuid", "string", f"{DATA}Uuid"),
    "flag": column("flag", "boolean"),
    "wide": column("wide", "double"),
    "dates": column("dates", "array", items={"type": "int32", "name": f"{TIME}Date"}),
    "stamps": column("stamps", "array", items={"type": "string", "name": f"{TIME}ZonedTimestamp"}),
    "prices": column("prices", "array", items={"type": "bytes", "name": f"{CONNECT}Decimal",
                                               "parameters": {"scale": "2"}}),
    "texts": column("texts", "array", items={"type": "string"}),
    "tags": column("tags", "map"),
    "point": column("point", "struct", "io.debezium.data.geometry.Point"),
}  # fmt: skip
ENCODINGS = {
    "millis": "Timestamp", "micros": "MicroTimestamp", "nanos": "NanoTimestamp",
    "connect": "Timestamp", "time": "Time", "micro_time": "MicroTime", "nano_time": "NanoTime",
    "precise": "Decimal", "whole": "Decimal", "variable": "VariableScaleDecimal",
    "plain": "string", "double": "double", "prices": "Decimal",
}  # fmt: skip


def drawn(rng: random.Random) -> tuple[dict[str, Any], dict[str, Any]]:
    """A row as a database has it, and as Debezium encodes it, nulls among them."""
    day = date(1583, 1, 1) + timedelta(days=rng.randrange(3_000_000))
    micros = rng.randrange(-(10**16), 10**16)
    stamp = EPOCH + timedelta(microseconds=micros)
    wall = stamp.replace(tzinfo=None)
    nanos = rng.randrange(-(2**63), 2**63)
    near = EPOCH + timedelta(microseconds=nanos // 1000)
    time_us = rng.randrange(86_400_000_000)
    clock = (EPOCH + timedelta(microseconds=time_us)).time()
    precise = rng.randrange(-(10**38) + 1, 10**38)
    whole = rng.choice((0, -1, 1, 127, 128, -128, -129, 2**63, -(2**63), 2**64, precise))
    variable = rng.randrange(-(10**9), 10**9)
    scale = rng.randrange(5)
    cents = rng.randrange(-(10**10), 10**10)
    blob = rng.randbytes(rng.randrange(6))
    point = {"x": rng.random(), "y": -rng.random(), "wkb": blob, "srid": None}
    coded = base64.b64encode(blob).decode()
    with_zone = stamp.isoformat(timespec="microseconds").replace("+00:00", "Z")
    row = {
        "days": (day, (day - date(1970, 1, 1)).days),
        "iso_days": (day, f"{day.isoformat()}Z"),
        "millis": (stamp.replace(microsecond=0), (micros // 10**6) * 1000),
        "micros": (stamp, micros),
        "nanos": (near.replace(tzinfo=None), nanos),
        "connect": (wall.replace(microsecond=0), (micros // 10**6) * 1000),
        "zoned": (stamp, with_zone),
        "iso": (wall, with_zone),
        "time": (timedelta(seconds=time_us // 10**6), time_us // 10**6 * 1000),
        "micro_time": (timedelta(microseconds=time_us), time_us),
        "nano_time": (timedelta(microseconds=time_us), time_us * 1000 + 999),
        "zoned_time": (timedelta(microseconds=time_us), f"{clock.isoformat()}Z"),
        "raw_time": (time_us, time_us),
        "precise": (Decimal(precise).scaleb(-10, CONTEXT), unscaled(precise)),
        "whole": (Decimal(whole), unscaled(whole)),
        "variable": (
            Decimal(variable).scaleb(-scale), {"scale": scale, "value": unscaled(variable)}
        ),
        "plain": (Decimal(variable).scaleb(-3), str(Decimal(variable).scaleb(-3))),
        "double": (Decimal(variable).scaleb(-2), variable / 100),
        "blob": (bytearray(blob), coded),
        "uuid": ("é\n", "é\n"),
        "flag": (True, True),
        "wide": (cents / 7, cents / 7),
        "dates": ([day, None], [(day - date(1970, 1, 1)).days, None]),
        "stamps": ([stamp], [with_zone]),
        "prices": ([Decimal(variable % 10**8).scaleb(-2)], [unscaled(variable % 10**8)]),
        "texts": (["1", None, ""], ["1", None, ""]),
        "tags": ({"a": "b"}, {"a": "b"}),
        "point": (point, {**point, "wkb": coded}),
    }  # fmt: skip
    for name in row:
        if rng.random() < 0.2:
            row[name] = (None, None)
    return {n: v for n, (v, _) in row.items()}, {n: e for n, (_, e) in row.items()}


@pytest.fixture(scope="module")
def rows() -> list[tuple[dict[str, Any], dict[str, Any]]]:
    rng = random.Random(7)
    return [drawn(rng) for _ in range(60)]


def rows_of(frame: DataFrame) -> Iterator[dict[str, Any]]:
    for row in frame.toArrow().to_pylist():
        yield {name: of_arrow(value) for name, value in row.items()}


def of_arrow(value: Any) -> Any:
    if isinstance(value, list):
        pairs = value and all(isinstance(one, tuple) for one in value)
        return dict(value) if pairs else [of_arrow(one) for one in value]
    return value


@pytest.mark.long
@pytest.mark.parametrize("says", slow_after(1, ["by their schema", "by encodings="]))
def test_values_are_decoded(
    spark: SparkSession, rows: list[tuple[dict[str, Any], dict[str, Any]]], says: str
) -> None:
    """Sixty random rows in every encoding, read in a time zone that is not UTC."""
    by_schema = says == "by their schema"
    values = [event("c", None, {"id": n, **encoded}) for n, (_, encoded) in enumerate(rows)]
    if by_schema:
        columns = [column("id", "int32"), *ENCODED.values()]
        values = [with_schema(value, columns) for value in values]
    schema = ", ".join(f"{name} {type_}" for name, type_ in {"id": "int", **DECLARED}.items())
    format_ = dt.formats.debezium(schema, encodings=None if by_schema else ENCODINGS)
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        table = dt.Table.from_records(records(spark, values), key_columns="id", value=format_)
        read_back = list(rows_of(table.plan.frame.select("id", *DECLARED)))
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
    assert len(read_back) == len(rows)
    for n, (row, encoded) in enumerate(rows):
        for name, value in {"id": n, **row}.items():
            assert read_back[n][name] == value, (name, encoded.get(name))


def test_decimals_may_be_numbers(spark: SparkSession) -> None:
    """As ``decimal.format=NUMERIC`` writes them. A whole one could be base64, and is not."""
    digits = "12345678901234567890.123456789012345678"
    whole = column("whole", "bytes", f"{CONNECT}Decimal", parameters={"scale": "0"})
    fine = {**whole, "field": "fine", "parameters": {"scale": "18"}}
    listed = column("listed", "array", items={k: of for k, of in fine.items() if k != "field"})
    double, text = column("double", "double"), column("text", "string")
    columns = [column("id", "int32"), whole, fine, listed, double, text]
    schema = json.dumps(with_schema(None, columns)["schema"])
    numbers = (1234, 12, -1, 0)
    payloads = [
        f'{{"op": "c", "ts_ms": 1, "after": {{"id": {n}, "whole": {number}, "fine": {digits}, '
        f'"listed": ["AQ==", {number}, null], "double": {digits}, "text": {digits}}}}}'
        for n, number in enumerate(numbers)
    ]
    wrapped = [f'{{"schema": {schema}, "payload": {payload}}}' for payload in payloads]
    exact = "decimal(38,18)"
    types = f"id int, whole decimal(20,0), fine {exact}, listed array<{exact}>"
    declared = dict.fromkeys(("whole", "fine", "listed"), "Decimal")
    declared |= {"double": "double", "text": "string"}
    for values, encodings in ((wrapped, {}), (payloads, declared)):
        format_ = dt.formats.debezium(f"{types}, double {exact}, text {exact}", encodings=encodings)
        assert read(records(spark, values), format_, key_columns="id") == [
            (n, False, n, number, Decimal(digits), [Decimal(1).scaleb(-18), number, None],
             Decimal(digits), Decimal(digits))
            for n, number in enumerate(numbers)
        ]  # fmt: skip


def test_decimals_may_be_floats(spark: SparkSession) -> None:
    """PostgreSQL's ``real`` and MySQL's ``FLOAT`` are ``float`` in Kafka Connect's JSON."""
    many = column("many", "array", items={"type": "float"})
    columns = [column("id", "int32"), column("x", "float"), many]
    value = with_schema(event("c", None, {"id": 1, "x": 1.1, "many": [0.5, None]}), columns)
    format_ = dt.formats.debezium("id int, x decimal(10,2), many array<decimal(10,2)>")
    assert read(records(spark, [value]), format_, key_columns="id") == [
        (0, False, 1, Decimal("1.10"), [Decimal("0.50"), None])
    ]


def test_decimals_keep_the_digits_of_numbers(spark: SparkSession) -> None:
    """Kafka Connect writes small numbers with exponents, and MySQL has more than 38 digits."""
    numbers = {
        "123456789.123456789012345678000000000000": "123456789.123456789012345678",
        "1.00000001234567890123456789E-8": "0.000000010000000123",
        "12345678901234567890E+0": "12345678901234567890",
        "-1E-7": "-1E-7",
    }
    after = (f'{{"x": {number}, "many": [null, {number}]}}' for number in numbers)
    payloads = [f'{{"op": "c", "ts_ms": 1, "after": {row}}}' for row in after]
    columns = "x decimal(38,18), many array<decimal(38,18)>"
    format_ = dt.formats.debezium(columns, encodings=dict.fromkeys(("x", "many"), "Decimal"))
    expected = [Decimal(text) for text in numbers.values()]
    both = [*payloads, *(f'{{"payload": {payload}}}' for payload in payloads)]
    assert read(records(spark, both), format_, key_columns="x") == [
        (n, False, x, [None, x]) for n, x in enumerate([*expected, *expected])
    ]
    scaled = column("x", "bytes", f"{CONNECT}Decimal", parameters={"scale": "18"})
    whole = {**scaled, "field": "whole", "parameters": {"scale": "0"}}
    schema = json.dumps({"type": "struct", "fields": [scaled, whole]})
    keys = [
        f'{{"schema": {schema}, "payload": {{"x": {number}, "whole": 1234}}}}' for number in numbers
    ]
    frame = records(spark, [event("c", None, {"n": 5})] * len(keys), keys)
    of_key = {"x": DecimalType(38, 18), "whole": DecimalType(20, 0)}
    assert read(frame, dt.formats.debezium("n int"), key=of_key) == [
        (n, False, x, 1234, 5) for n, x in enumerate(expected)
    ]


def test_what_is_no_decimal(spark: SparkSession) -> None:
    """Beyond the digits of its type, and base64 without its padding."""
    many = '{"op": "c", "ts_ms": 1, "after": {"id": 0, "x": 1E+40, "many": [1E-7, "AQ=="]}}'
    texts = ("AQ", "12", "A===", "AQ==")
    values = [event("c", None, {"id": n, "x": x}) for n, x in enumerate(texts, start=1)]
    columns = "id int, x decimal(38,18), many array<decimal(38,18)>"
    format_ = dt.formats.debezium(columns, encodings=dict.fromkeys(("x", "many"), "Decimal"))
    found = problems(records(spark, [many, *values]), format_, key_columns="id")
    assert found.keys() == {0, 1, 2, 3}
    assert found[0] == (
        'value: column `x` is no decimal(38,18): {"x":"1.0E40…"}, encoded as '
        "org.apache.kafka.connect.data.Decimal"
    )


def test_numbers_out_of_range_do_not_stop_the_query(spark: SparkSession) -> None:
    """A time in nanoseconds where milliseconds belong, and the least nanoseconds."""
    late = {**POSTGRES, "ts_us": None, "ts_ms": 2**62}
    low = -(2**63) + 8
    values = [
        {"op": "c", "after": {"id": 0}, "ts_ms": 2**62},
        event("c", None, {"id": 1, "at": low}, late),
        event("c", None, {"id": 2, "at": low + 192}),
    ]
    frame = records(spark, values)
    format_ = dt.formats.debezium("id int, at timestamp_ntz", encodings={"at": "NanoTimestamp"})
    assert problems(frame, format_, key_columns="id") == {0: "it has no event time"}
    table = dt.Table.from_records(frame, value=format_, key_columns="id", malformed="drop")
    found = table.plan.frame.select("id", F.unix_micros("_timestamp"), F.col("at").cast("string"))
    assert [tuple(row) for row in found.collect()] == [
        (1, 1559033904961654, "1677-09-21 00:12:43.145224"),
        (2, 1559033904863123, "1677-09-21 00:12:43.145224"),
    ]
