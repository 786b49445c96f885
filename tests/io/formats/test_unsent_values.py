"""Placeholders of values that a database has not sent, in each of Debezium's forms and at every
depth; and PostgreSQL's infinity.
"""

from __future__ import annotations

import base64
import hashlib
import json
import uuid
from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from test_avro import avro_spark, encoded
from test_avro import records as avro_records
from test_debezium import column, event, problems, records
from test_debezium_avro import avro_event, envelope

import dovetail as dt
from dovetail.io.sinks.postgres.columns import csv_of

__all__ = ["avro_spark"]

TEXT = "__debezium_unavailable_value"
OCTETS = TEXT.encode()
CODED = base64.b64encode(OCTETS).decode()
UUID = str(uuid.UUID(bytes=hashlib.md5(OCTETS).digest(), version=3))
ONES = [base64.b64encode(bytes([one])).decode() for one in OCTETS]

FORMS: list[tuple[str, Any]] = [
    ("string", TEXT),
    ("string", CODED),
    ("string", OCTETS.hex()),
    ("string", json.dumps({TEXT: TEXT}, separators=(",", ":"))),
    ("binary", CODED),
    ("decimal(9,2)", TEXT),
    ("array<string>", [TEXT]),
    ("array<string>", [UUID]),
    ("array<binary>", [CODED]),
    ("array<smallint>", [*OCTETS]),
    ("array<int>", [*OCTETS]),
    ("array<long>", [*OCTETS]),
    ("array<double>", [float(one) for one in OCTETS]),
    ("array<date>", [*OCTETS]),
    ("array<decimal(9,2)>", ONES),
    ("array<decimal(9,2)>", [{"scale": 0, "value": one} for one in ONES]),
    ("map<string, string>", {TEXT: TEXT}),
    ("struct<a: int, b: string>", {"a": 1, "b": TEXT}),
    ("struct<a: array<string>>", {"a": [TEXT]}),
    ("array<struct<b: string>>", [{"b": "x"}, {"b": TEXT}]),
    ("map<string, array<string>>", {"k": ["x", TEXT]}),
    ("array<map<string, string>>", [{TEXT: TEXT}]),
]
SENT: dict[str, Any] = {
    "string": "a text", "binary": "AA==", "decimal(9,2)": "1.25",
    "array<string>": ["x", None], "array<int>": [95, 95, None], "array<long>": [*OCTETS][:-1],
    "array<boolean>": [True, False], "array<double>": [1.5], "map<string, string>": {"a": "b"},
    "struct<a: int, b: string>": {"a": None, "b": None}, "array<date>": [19000],
}  # fmt: skip


def test_a_placeholder_is_found_in_each_form_and_at_every_depth(spark: SparkSession) -> None:
    forms = [(f"c{n}", type_, value) for n, (type_, value) in enumerate(FORMS)]
    schema = "id long, " + ", ".join(f"{name} {type_}" for name, type_, _ in forms)
    decimals = {name: "string" for name, type_, _ in forms if type_ == "decimal(9,2)"}
    in_bytes = {name: "Decimal" for name, type_, _ in forms if type_ == "array<decimal(9,2)>"}
    of_variable = {forms[[v for _, v in FORMS].index(FORMS[15][1])][0]: "VariableScaleDecimal"}
    value = dt.formats.debezium(schema, encodings={**decimals, **in_bytes, **of_variable})
    events = [event("u", None, {"id": n, name: sent}) for n, (name, _, sent) in enumerate(forms)]
    sent = {name: SENT.get(type_) for name, type_, _ in forms}
    frame = records(spark, [*events, event("u", None, {"id": 99, **sent})])
    found = problems(frame, value, key_columns="id")
    assert [*found] == [*range(len(forms))]
    for n, (name, type_, _) in enumerate(forms):
        assert f"column {name} was not sent" in found[n].replace("`", ""), (type_, found[n])
        assert "REPLICA IDENTITY" in found[n]


def test_another_placeholder_is_named(spark: SparkSession) -> None:
    values = [event("u", None, {"id": n, "note": note}) for n, note in enumerate(("gone", TEXT))]
    frame, schema = records(spark, values), "id long, note string"
    for given in ("gone", "hex:676f6e65"):
        format_ = dt.formats.debezium(schema, placeholder=given)
        assert [*problems(frame, format_, key_columns="id")] == [0]
    with pytest.raises(dt.errors.PlanError, match=r"placeholder=.*hexadecimal"):
        dt.formats.debezium(schema, placeholder="hex:xyz")


def test_a_placeholder_is_found_in_avro(avro_spark: SparkSession) -> None:
    columns = [
        column("id", "int32"),
        column("raw", "bytes"),
        column("ids", "array", items={"type": "string"}),
        column("tags", "map"),
        column("days", "array", items={"type": "int32", "name": "io.debezium.time.Date"}),
    ]
    schema = envelope(columns)
    rows = [
        {"id": 0, "raw": CODED}, {"id": 1, "ids": [UUID]}, {"id": 2, "tags": {TEXT: TEXT}},
        {"id": 3, "days": [*OCTETS]}, {"id": 4, "raw": "AA==", "ids": ["x"], "days": [1]},
    ]  # fmt: skip
    named = {one["field"]: one for one in columns}

    def sent(row: dict[str, Any]) -> dict[str, Any]:
        made = avro_event("u", None, {"id": row["id"]})
        raw = {"raw": base64.b64decode(row["raw"])} if "raw" in row else {}
        return {**made, "after": {**dict.fromkeys(named), **row, **raw}}

    frame = avro_records(avro_spark, [encoded(schema, sent(row)) for row in rows])
    table = dt.Table.from_records(
        frame, key_columns="id", name="t",
        value=dt.formats.debezium(avro=dt.formats.avro(json.dumps(schema))),
        malformed="dead_letter",
    )  # fmt: skip
    letters = [letter["_problem"] for letter in table.dead_letters().collect()]
    assert len(letters) == 4, letters
    for name, letter in zip(("raw", "ids", "tags", "days"), letters, strict=True):
        assert f"column {name} was not sent" in letter.replace("`", "")


LAST = datetime(9999, 12, 30, 23, 59, 59, 999999, timezone.utc)
FIRST = datetime(1, 1, 3, tzinfo=timezone.utc)
PLUS, MINUS = 9223372036825200000, -9223372036832400000
ENDLESS: list[tuple[str, str | None, Any, Any]] = [
    ("timestamp", None, "infinity", "-infinity"),
    ("timestamp", "MicroTimestamp", PLUS, MINUS),
    ("timestamp", "MicroTimestamp", 2**63 - 1, -(2**63)),
    ("timestamp", "Timestamp", PLUS // 1000, MINUS // 1000),
    ("timestamp", "Timestamp", PLUS, MINUS),
    ("timestamp", "NanoTimestamp", 2**63 - 1, -(2**63)),
    ("timestamp", None, "+294247-01-10T04:00:25.2Z", "-290308-12-21T19:59:27.6Z"),
    ("timestamp_ntz", "MicroTimestamp", PLUS, MINUS),
    ("date", None, -2147472692, -2147472691),
    ("date", None, "infinity", "-infinity"),
    ("array<timestamp>", None, ["infinity", None], ["-infinity", None]),
    ("array<timestamp_ntz>", "MicroTimestamp", [PLUS], [MINUS]),
    ("array<date>", None, [-2147472692], [-2147472691]),
]


def test_postgres_gets_infinity_back() -> None:
    ends = pa.array([LAST, FIRST, None, datetime(2024, 5, 1, tzinfo=timezone.utc)])
    table = pa.table({
        "t": ends.cast(pa.timestamp("us", "UTC")),
        "n": ends.cast(pa.timestamp("us")),
        "d": ends.cast(pa.date32()),
        "a": pa.array([[LAST.date(), None], [FIRST.date()], None, []], pa.list_(pa.date32())),
    })  # fmt: skip
    day = "2024-05-01"
    lines = [line.replace('"', "") for line in csv_of(table).decode().splitlines()]
    assert lines == [
        "infinity,infinity,infinity,{infinity,NULL}",
        "-infinity,-infinity,-infinity,{-infinity}",
        ",,,",
        f"{day} 00:00:00.000000,{day} 00:00:00.000000,{day},{{}}",
    ]


def test_infinity_is_a_documented_instant(spark: SparkSession) -> None:
    columns = [(f"c{n}", *one) for n, one in enumerate(ENDLESS)]
    schema = "id long, " + ", ".join(f"{name} {type_}" for name, type_, *_ in columns)
    encodings = {name: encoding for name, _, encoding, *_ in columns if encoding is not None}
    events = [
        event("c", None, {"id": side, **{one[0]: one[3 + side] for one in columns}})
        for side in (0, 1)
    ]
    events.append(event("c", None, {"id": 2, "c1": 253402214399999998}))
    value = dt.formats.debezium(schema, encodings=encodings)
    table = dt.Table.from_records(records(spark, events), value=value, key_columns="id", name="t")
    rows = table.plan.frame.select("id", *(name for name, *_ in columns)).toArrow().to_pylist()
    *ends, near = sorted(rows, key=lambda one: one["id"])
    for row, end in zip(ends, (LAST, FIRST), strict=True):
        for name, type_, *_ in columns:
            expected: Any = end
            if "date" in type_:
                expected = end.date()
            elif "ntz" in type_:
                expected = end.replace(tzinfo=None)
            one = row[name][0] if isinstance(row[name], list) else row[name]
            assert one == expected, (name, type_)
    assert near["c1"] == LAST - timedelta(microseconds=1)


def test_events_that_a_connector_sends_again_may_find_no_former_value(spark: SparkSession) -> None:
    """It has sent the update and the delete of the key before."""
    long = {"id": 1, "note": "long", "city": "Rome"}
    update = event("u", None, {**long, "note": TEXT, "city": "Oslo"})
    delete = event("d", {"id": 1}, None)
    frame = records(spark, [event("c", None, long), update, delete, update, delete])

    def changes(unsent: Any) -> list[tuple[Any, ...]]:
        value = dt.formats.debezium("id long, note string, city string", unsent=unsent)
        table = dt.Table.from_records(frame, value=value, key_columns="id", name="t")
        found = table.changelog(buckets=1).orderBy("_position").collect()
        return [(row.note, row.city, row._change) for row in found]

    with pytest.raises(Exception, match="unsent='keep_or_null'"):
        changes("keep")
    assert changes("keep_or_null") == [
        ("long", "Rome", "upsert"),
        ("long", "Oslo", "upsert"),
        (None, None, "delete"),
        (None, "Oslo", "upsert"),
        (None, None, "delete"),
    ]


def test_what_was_not_sent_keeps_its_former_value(spark: SparkSession) -> None:
    long = {"id": 1, "note": "long", "tags": ["a"], "city": "Rome"}
    events = [
        event("r", None, long),
        event("c", None, {**long, "id": 2}),
        event("u", None, {**long, "note": TEXT, "city": "Oslo"}),
        event("u", None, {**long, "note": "short", "tags": [TEXT], "city": None}),
        event("u", None, {**long, "note": None, "tags": [TEXT]}),
        event("u", None, {**long, "note": TEXT, "tags": None}),
        event("d", {"id": 2}, None),
        event("d", {"id": 1}, None),
    ]
    value = dt.formats.debezium(
        "id long, note string, tags array<string>, city string",
        metadata={"op": "op"}, unsent="keep",
    )  # fmt: skip
    options = {"value": value, "key_columns": "id", "name": "t"}
    frame = records(spark, events)
    table = dt.Table.from_records(frame, malformed="dead_letter", **options)
    assert table.schema.names[:5] == ["id", "note", "tags", "city", "op"]
    found = table.changelog(buckets=1).orderBy("_position").collect()
    assert [tuple(row)[:6] for row in found if row.id == 1] == [
        (1, "long", ["a"], "Rome", "r", "upsert"),
        (1, "long", ["a"], "Oslo", "u", "upsert"),
        (1, "short", ["a"], None, "u", "upsert"),
        (1, None, ["a"], "Rome", "u", "upsert"),
        (1, None, None, "Rome", "u", "upsert"),
        (1, None, None, None, None, "delete"),
    ]
    assert [row._change for row in found if row.id == 2] == ["upsert", "delete"]
    unknown = records(spark, [event("u", None, {**long, "note": TEXT})])
    with pytest.raises(Exception, match="note"):
        dt.Table.from_records(unknown, **options).changelog(buckets=1).collect()
    with pytest.raises(dt.errors.PlanError, match="unsent='keep'"):
        dt.Stream.from_records(frame, **options)
    with pytest.raises(dt.errors.PlanError, match="is versioned"):
        dt.Table.from_records(frame, versioned="1 day", **options)
