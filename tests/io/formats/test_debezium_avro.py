"""Change events in Avro, with the schemas that Kafka Connect's converter registers for them."""

from __future__ import annotations

import base64
import io
import json
import random
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import (
    BinaryType,
    DataType,
    DecimalType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)
from test_avro import avro_spark, encoded, records
from test_debezium import (
    CONNECT,
    DECLARED,
    ENCODED,
    MYSQL,
    POSTGRES,
    TIME,
    column,
    drawn,
    event,
    rows_of,
)

import dovetail as dt
from dovetail.io.formats.connect import ColumnEncoding
from dovetail.io.formats.connect_avro import (
    Envelope,
    _default_type,
    _reader_row,
    _unfit_parts,
    refuse_absent_columns,
)
from dovetail.io.formats.events import WantedParts
from dovetail.io.formats.plain import FormatContext

__all__ = ["avro_spark"]

KINDS = {"int32": "int", "int64": "long", "int16": "int"}


def avro_of(described: dict[str, Any], number: int) -> Any:
    """A column's schema, as Connect's converter makes it of the one in JSON."""
    kind = described["type"]
    made: dict[str, Any] = {"type": KINDS.get(kind, kind)}
    if kind == "array":
        made["items"] = ["null", avro_of(described["items"], number)]
    elif kind == "map":
        made["values"] = ["null", "string"]
    elif described.get("name", "").endswith("VariableScaleDecimal"):
        fields = [{"name": "scale", "type": "int"}, {"name": "value", "type": "bytes"}]
        made |= {"type": "record", "name": f"V{number}", "fields": fields}
    elif kind == "struct":
        types = {"x": "double", "y": "double", "wkb": ["null", "bytes"], "srid": ["null", "int"]}
        fields = [{"name": name, "type": type_} for name, type_ in types.items()]
        made |= {"type": "record", "name": f"P{number}", "fields": fields}
    if "name" in described:
        made |= {"connect.version": 1, "connect.name": described["name"]}
    if "parameters" in described:
        scale = int(described["parameters"]["scale"])
        made |= {"connect.parameters": described["parameters"], "scale": scale, "precision": 64}
        made["logicalType"] = "decimal"
    return made


def envelope(columns: list[dict[str, Any]]) -> dict[str, Any]:
    """An envelope's schema: the second row is of the type that the first one names."""
    nullable = [
        {"name": c["field"], "type": ["null", avro_of(c, n)], "default": None}
        for n, c in enumerate(columns)
    ]
    row = {"type": "record", "name": "Value", "fields": nullable, "connect.name": "s.t.Value"}
    source = {"type": "record", "name": "Source", "namespace": "io.debezium", "fields": [
        {"name": "ts_ms", "type": "long"},
        {"name": "lsn", "type": ["null", "long"], "default": None},
        {"name": "snapshot", "type": [{"type": "string", "connect.default": "false"}, "null"],
         "default": "false"},
    ]}  # fmt: skip
    fields = [
        {"name": "before", "type": ["null", row], "default": None},
        {"name": "after", "type": ["null", "Value"], "default": None},
        {"name": "source", "type": source},
        {"name": "op", "type": "string"},
        {"name": "ts_ms", "type": ["null", "long"], "default": None},
    ]
    return {"type": "record", "name": "Envelope", "namespace": "s.t", "fields": fields}


def binary(described: dict[str, Any], value: Any) -> Any:
    """A value of JSON's as Avro has it: bytes in place of base64."""
    if value is None or described["type"] == "map":
        return value
    if described["type"] == "array":
        return [binary(described["items"], one) for one in value]
    if described["type"] == "bytes":
        return base64.b64decode(value)
    if described["type"] == "struct":
        coded = "value" if "value" in value else "wkb"
        return {**value, coded: base64.b64decode(value[coded])}
    return value


def avro_event(op: str, before: Any, after: Any, source: Any = POSTGRES) -> dict[str, Any]:
    rows = [
        row and {n: binary(ENCODED.get(n) or column(n, "int32"), v) for n, v in row.items()}
        for row in (before, after)
    ]
    made = event(op, *rows, source)
    return made | {"source": {**made["source"], "snapshot": "false"}}


def test_events_of_a_registry(avro_spark: SparkSession, tmp_path: Path) -> None:
    """Random rows, an event of each kind, and a column whose encoding has changed."""
    rng = random.Random(3)
    rows = [drawn(rng) for _ in range(30)]
    latest = envelope([column("id", "int32"), *ENCODED.values()])
    seconds = {**ENCODED, "micros": column("micros", "int64", ENCODED["millis"]["name"])}
    former = envelope([column("id", "int32"), *seconds.values(), column("gone", "int32")])
    schemas = {4: former, 9: latest}
    path = tmp_path / "schemas.json"
    path.write_text(json.dumps([
        {"subject": "orders-value", "version": id_, "id": id_, "schema": json.dumps(schema)}
        for id_, schema in schemas.items()
    ]))  # fmt: skip
    values: list[bytes | None] = [
        encoded(latest, avro_event("c", None, {"id": n, **row}), 9)
        for n, (_, row) in enumerate(rows)
    ]
    old = {"id": 100, "micros": 5}
    values += [
        encoded(former, avro_event("r", None, old), 4),
        encoded(latest, avro_event("u", {"id": 100}, {"id": 101}), 9),
        encoded(latest, avro_event("d", {"id": 101}, None, MYSQL), 9),
        None,
        encoded(latest, avro_event("u", None, {"id": 1}), 5),
    ]
    schema = ", ".join(f"{name} {type_}" for name, type_ in {"id": "int", **DECLARED}.items())
    registry = dt.formats.avro(dt.formats.registry(path), subject="orders-value")
    format_ = dt.formats.debezium(
        schema, avro=registry, metadata={"lsn": "source.lsn", "pos": "source.pos"}
    )
    table = dt.Table.from_records(
        records(avro_spark, values), value=format_, key_columns="id", name="orders",
        malformed="dead_letter",
    )  # fmt: skip
    read = list(rows_of(table.plan.frame.select("_deleted", "lsn", "pos", "id", *DECLARED)))
    lsn = POSTGRES["lsn"]
    for n, (row, encoded_row) in enumerate(rows):
        for name, value in {"_deleted": False, "lsn": lsn, "pos": None, "id": n, **row}.items():
            assert read[n][name] == value, (name, encoded_row.get(name))
    rest = [(r["_deleted"], r["id"], r["lsn"], r["micros"]) for r in read[len(rows) :]]
    milliseconds_5 = rows[0][0]["micros"].__class__.fromisoformat("1970-01-01T00:00:00.005+00:00")
    assert rest == [
        (False, 100, lsn, milliseconds_5),
        (True, 100, 24023128, None),
        (False, 101, lsn, None),
        (True, 101, None, None),
    ]
    (letter,) = table.dead_letters().collect()
    assert "its schema, number 5, is none that subject orders-value had" in letter["_problem"]


def test_an_empty_schema_declares_no_columns(avro_spark: SparkSession) -> None:
    schema = envelope([column("id", "int32")])
    events = [avro_event("c", None, {"id": 1}), avro_event("d", {"id": 1}, None)]
    frame = records(avro_spark, [encoded(schema, event) for event in events])
    value = dt.formats.debezium(
        {}, avro=dt.formats.avro(json.dumps(schema)), metadata={"kind": "op"}
    )
    table = dt.Table.from_records(frame, value=value, key="string", name="orders")
    assert table.schema.names == ["key", "kind", "_change", "_timestamp", "_position"]
    rows = table.plan.frame.select("key", "_deleted", "kind").collect()
    assert [tuple(row) for row in rows] == [("k0", False, "c"), ("k1", True, "d")]


def test_the_units_of_plain_avro_are_those_of_the_writer(
    avro_spark: SparkSession, tmp_path: Path
) -> None:
    """Avro's own logical types, without a name of Connect's, whose scale and unit have changed."""

    def version(scale: int, unit: str) -> dict[str, Any]:
        schema = envelope([column("id", "int32")])
        (row,) = (f["type"][1] for f in schema["fields"] if f["name"] == "before")
        price = {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": scale}
        at = {"type": "long", "logicalType": f"timestamp-{unit}"}
        row["fields"] += [{"name": "price", "type": ["null", price]}, {"name": "at", "type": at}]
        return schema

    schemas = {1: version(2, "millis"), 2: version(4, "micros")}
    path = tmp_path / "schemas.json"
    path.write_text(json.dumps([
        {"subject": "orders-value", "version": id_, "id": id_, "schema": json.dumps(schema)}
        for id_, schema in schemas.items()
    ]))  # fmt: skip
    at = datetime(2024, 5, 1, 10, tzinfo=timezone.utc)
    values: list[bytes | None] = []
    for id_, schema in schemas.items():
        change = avro_event("c", None, {"id": id_})
        change["after"] |= {"price": Decimal("12.34"), "at": at}
        values.append(encoded(schema, change, id_))
    registry = dt.formats.avro(dt.formats.registry(path), subject="orders-value")
    table = dt.Table.from_records(
        records(avro_spark, values),
        value=dt.formats.debezium("id int, price decimal(12,4), at timestamp", avro=registry),
        key_columns="id",
        name="orders",
    )
    rows = table.plan.frame.select("id", "price", "at").toArrow().to_pylist()
    assert rows == [{"id": id_, "price": Decimal("12.3400"), "at": at} for id_ in schemas]


def registered(path: Path, *schemas: dict[str, Any]) -> Any:
    """The Avro format of a subject with these versions, whose ids are 1, 2, …"""
    path.write_text(json.dumps([
        {"subject": "orders-value", "version": id_, "id": id_, "schema": json.dumps(schema)}
        for id_, schema in enumerate(schemas, start=1)
    ]))  # fmt: skip
    return dt.formats.avro(dt.formats.registry(path), subject="orders-value")


def with_columns(**types: Any) -> dict[str, Any]:
    """An envelope of a row with an id and nullable columns of these Avro types."""
    schema = envelope([column("id", "int32")])
    row = schema["fields"][0]["type"][1]
    row["fields"] += [{"name": n, "type": ["null", t], "default": None} for n, t in types.items()]
    return schema


def test_a_column_keeps_its_encoding_whether_connect_names_it_or_avro(
    avro_spark: SparkSession, tmp_path: Path
) -> None:
    """A converter may leave Connect's names out, and a connector may write decimals as texts."""
    nanos = {"type": "long", "connect.name": f"{TIME}NanoTimestamp"}
    cents = {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}
    fine = {"type": "bytes", "connect.name": f"{CONNECT}Decimal"}
    fine["connect.parameters"] = {"scale": "5"}  # type: ignore[assignment]
    millis = {"type": "long", "logicalType": "timestamp-millis"}
    schemas = [
        with_columns(at=millis, price=cents, text="string", bytes=cents),
        with_columns(at=nanos, price=fine, text=cents, bytes="string"),
    ]
    avro = registered(tmp_path / "schemas.json", *schemas)
    at, price = datetime(2024, 5, 1, 10, tzinfo=timezone.utc), Decimal("12.34")
    rows = [
        {"at": at, "price": price, "text": "12.34", "bytes": price},
        {"at": int(at.timestamp()) * 10**9, "price": (1234000).to_bytes(3, "big"), "text": price,
         "bytes": "12.34"},
    ]  # fmt: skip
    values: list[bytes | None] = []
    for id_, (schema, row) in enumerate(zip(schemas, rows, strict=True), start=1):
        change = avro_event("c", None, {"id": id_})
        change["after"] |= row
        values.append(encoded(schema, change, id_))
    value = dt.formats.debezium(
        "id int, at timestamp, price decimal(12,4), text decimal(12,4), bytes string", avro=avro
    )
    table = dt.Table.from_records(
        records(avro_spark, values), value=value, key_columns="id", name="orders"
    )
    found = table.plan.frame.select("id", "at", "price", "text", "bytes").toArrow().to_pylist()
    assert found == [
        {"id": id_, "at": at, "price": price, "text": price, "bytes": "12.34"} for id_ in (1, 2)
    ]


def test_a_column_that_no_version_has_is_null_in_every_type(avro_spark: SparkSession) -> None:
    types = {
        **DECLARED, "days_of": "array<array<date>>", "nested": "struct<x: struct<y: boolean>>",
        "times": "map<string, interval day to second>",
    }  # fmt: skip
    schema = with_columns()
    values = [encoded(schema, avro_event("c", None, {"id": 1}))]
    columns = ", ".join(f"{name} {type_}" for name, type_ in types.items())
    value = dt.formats.debezium(f"id int, {columns}", avro=dt.formats.avro(json.dumps(schema)))
    table = dt.Table.from_records(
        records(avro_spark, values), value=value, key_columns="id", name="orders"
    )
    (row,) = table.plan.frame.select(*types).collect()
    assert row.asDict() == dict.fromkeys(types)


def test_a_declared_field_is_read_of_the_versions_that_have_it(
    avro_spark: SparkSession, tmp_path: Path
) -> None:
    """As a column is. ``z`` is of no version, and ``lone`` has none of its fields there."""

    def version(**fields: Any) -> dict[str, Any]:
        typed = [{"name": n, "type": ["null", t], "default": None} for n, t in fields.items()]
        lone = {"type": "record", "name": "Lone", "fields": [{"name": "no", "type": "int"}]}
        return with_columns(at={"type": "record", "name": "At", "fields": typed}, lone=lone)

    day = {"type": "int", "connect.name": f"{TIME}Date"}
    schemas = [version(x=day, y="string"), version(y="string")]
    avro = registered(tmp_path / "schemas.json", *schemas)
    values: list[bytes | None] = []
    for id_, at in ((1, {"x": 19844, "y": "a"}), (2, {"y": "b"})):
        change = avro_event("c", None, {"id": id_})
        change["after"] |= {"at": at, "lone": {"no": 5}}
        values.append(encoded(schemas[id_ - 1], change, id_))
    value = dt.formats.debezium(
        "id int, at struct<x: date, y: string, z: boolean>, lone struct<a: date>", avro=avro
    )
    table = dt.Table.from_records(
        records(avro_spark, values), value=value, key_columns="id", name="orders"
    )
    found = table.plan.frame.select("at", "lone").toArrow().to_pylist()
    assert found == [
        {"at": {"x": x, "y": y, "z": None}, "lone": {"a": None}}
        for x, y in ((date(2024, 5, 1), "a"), (None, "b"))
    ]


def test_times_and_nanoseconds_of_plain_avro_have_types(
    avro_spark: SparkSession, tmp_path: Path
) -> None:
    """Also where a former version has other units."""

    def version(**kinds: str) -> dict[str, Any]:
        ints = ("time-millis",)
        types = {
            name: {"type": "int" if kind in ints else "long", "logicalType": kind}
            for name, kind in kinds.items()
        }
        return with_columns(**types, times={"type": "array", "items": types["a"]})

    schemas = [
        version(a="time-micros", b="time-millis", c="timestamp-micros", d="local-timestamp-millis"),
        version(
            a="time-millis", b="time-micros", c="timestamp-nanos", d="local-timestamp-nanos"
        ),
    ]  # fmt: skip
    avro = registered(tmp_path / "schemas.json", *schemas)
    at, clock = datetime(2024, 5, 1, 10, 0, 1, tzinfo=timezone.utc), time(0, 0, 1)
    wall, nanos = at.replace(tzinfo=None), int(at.timestamp()) * 10**9
    values: list[bytes | None] = []
    for id_, moments in ((1, (at, wall)), (2, (nanos, nanos))):
        change = avro_event("c", None, {"id": id_})
        change["after"] |= {"a": clock, "b": clock, "c": moments[0], "d": moments[1]}
        change["after"]["times"] = [clock]
        values.append(encoded(schemas[id_ - 1], change, id_))
    table = dt.Table.from_records(
        records(avro_spark, values), value=dt.formats.debezium(avro=avro), key_columns="id",
        name="orders",
    )  # fmt: skip
    found = table.plan.frame.select("a", "b", "c", "d", "times").toArrow().to_pylist()
    second = timedelta(seconds=1)
    assert found == [{"a": second, "b": second, "c": at, "d": wall, "times": [second]}] * 2


def test_types_follow_the_schema(avro_spark: SparkSession) -> None:
    schema = json.dumps(envelope([column("id", "int32"), *ENCODED.values()]))
    frame = records(avro_spark, [])

    def table(value: Any) -> dt.Table:
        return dt.Table.from_records(frame, key_columns="id", value=value, name="t")

    plan = table(dt.formats.debezium(avro=dt.formats.avro(schema))).plan
    found = {f.name: f.dataType for f in (*plan.key, *plan.values)}
    others = {
        "millis": "timestamp_ntz",
        "micros": "timestamp_ntz",
        "raw_time": DECLARED["time"],
        "variable": "struct<scale: int, value: binary>",
        "plain": "string",
        "double": "double",
        "prices": "array<decimal(38,2)>",
    }
    expected = {"id": "int", **DECLARED, **others}
    assert found == {name: DataType.fromDDL(type_) for name, type_ in expected.items()}
    wrong = dt.formats.debezium("id int, days timestamp", avro=dt.formats.avro(schema))
    with pytest.raises(
        dt.errors.PlanError, match=r"'days' encoded as .*Date, which is no timestamp"
    ):
        table(wrong)
    other = dt.formats.debezium(avro=dt.formats.avro('{"type":"record","name":"R","fields":[]}'))
    with pytest.raises(dt.errors.PlanError, match="Avro schema that is of no change event"):
        table(other)


@pytest.mark.parametrize("name", [f"{TIME}Date", f"{CONNECT}Date", f"{TIME}Year"])
def test_a_number_of_days_or_years_may_be_a_long(name: str) -> None:
    described: Any = None  # no column is made here, so none needs Spark
    encoding = ColumnEncoding(described, described, name, natural=IntegerType())
    assert list(_unfit_parts(LongType(), encoding)) == []
    assert list(_unfit_parts(TimestampType(), encoding)) == [(name, "timestamp")]


def test_a_decimal_may_have_a_scale_beyond_its_digits() -> None:
    """As ``numeric(3,5)`` and ``numeric(5,-2)`` of PostgreSQL 15."""

    def type_of(precision: int, scale: int) -> DataType:
        parameters = {"scale": str(scale), "connect.decimal.precision": str(precision)}
        schema = {"type": "bytes", "connect.name": f"{CONNECT}Decimal"}
        schema |= {"connect.parameters": parameters}
        return _default_type(FormatContext("t", "value"), "x", schema, BinaryType())

    sizes = {(3, 5): (5, 5), (5, -2): (7, 0), (10, 2): (10, 2), (65, 30): (38, 30)}
    for given, expected in sizes.items():
        assert type_of(*given) == DecimalType(*expected)
    with pytest.raises(dt.errors.PlanError, match="of scale 40, above Spark's 38"):
        type_of(50, 40)


@pytest.mark.parametrize(
    ("described", "type_", "problem"),
    [
        (column("v", "string"), "array<string>", "string, which is no array<string>"),
        (column("v", "string"), "struct<x: string>", "string, which is no struct<x:string>"),
        (column("v", "string"), "map<string,string>", "string, which is no map<string,string>"),
        (column("v", "int64"), "array<long>", "long, which is no array<bigint>"),
        (column("v", "int32", f"{TIME}Date"), "array<date>", "Date, which is no array<date>"),
        (column("v", "struct"), "map<string,double>", "record, which is no map<string,double>"),
        (column("v", "map"), "struct<x: string>", "map, which is no struct<x:string>"),
        (
            column("v", "array", items=column("", "string")),
            "array<array<string>>",
            "string, which is no array<string>",
        ),
    ],
)
def test_nested_columns_of_other_types_are_refused(
    avro_spark: SparkSession, described: dict[str, Any], type_: str, problem: str
) -> None:
    schema = json.dumps(envelope([column("id", "int64"), described]))
    value = dt.formats.debezium(f"id long, v {type_}", avro=dt.formats.avro(schema))
    frame = records(avro_spark, [b""])
    with pytest.raises(dt.errors.PlanError, match=f"has the column 'v' encoded as .*{problem}"):
        dt.Table.from_records(frame, value=value, key_columns="id", name="t")


def test_a_null_of_before_a_column_was_not_null_is_one() -> None:
    def version(note: Any, size: Any) -> Envelope:
        schema = envelope([column("id", "int32")])
        (row,) = (f["type"][1] for f in schema["fields"] if f["name"] == "before")
        point = {"type": "record", "name": "Point", "fields": [{"name": "size", "type": size}]}
        row["fields"] += [{"name": "note", "type": note}, {"name": "at", "type": point}]
        return Envelope.from_schema(FormatContext("t", "value"), json.dumps(schema))

    former = version(["null", "string"], ["int", "null"])
    latest = version("string", "long")
    names = ("id", "note", "at")
    columns = StructType([StructField(name, StringType()) for name in names])
    wanted = WantedParts(columns, ("id",), {}, declared=False)
    for writer in (former, latest):
        read_by = _reader_row(writer.row, [latest, former], wanted)
        for note, size in ((None, None), ("x", 7)) if writer is former else (("x", 7),):
            row = {"id": 1, "note": note, "at": {"size": size}}
            written = io.BytesIO(encoded(writer.row, row))
            assert fastavro.schemaless_reader(written, writer.row, read_by) == row


@pytest.mark.parametrize("declared", [False, True])
def test_a_new_column_that_is_not_null_is_null_in_former_records(declared: bool) -> None:
    def version(*sizes: str) -> Envelope:
        schema = envelope([column("id", "int32")])
        (row,) = (f["type"][1] for f in schema["fields"] if f["name"] == "before")
        fields = [{"name": name, "type": "int"} for name in ("x", *sizes)]
        row["fields"].append(
            {"name": "at", "type": {"type": "record", "name": "P", "fields": fields}}
        )
        if sizes:
            row["fields"].append({"name": "note", "type": "string"})
            row["fields"].append({"name": "size", "type": "int", "default": 3})
        return Envelope.from_schema(FormatContext("t", "value"), json.dumps(schema))

    former, latest = version(), version("y")
    at = StructType([StructField("x", LongType()), StructField("y", LongType())])
    columns = StructType([StructField("id", LongType()), StructField("at", at)])
    columns = columns.add("note", StringType()).add("size", LongType())
    wanted = WantedParts(columns, ("id",), {}, declared=declared)
    read_by = _reader_row(former.row, [latest, former], wanted)
    row = {"id": 1, "at": {"x": 5}}
    written = io.BytesIO(encoded(former.row, row))
    read = fastavro.schemaless_reader(written, former.row, read_by)
    assert read == {"id": 1, "at": {"x": 5, "y": None}, "note": None, "size": 3}


def test_a_column_that_no_schema_has_is_refused_as_a_key_and_in_another_case() -> None:
    """All of its values would be null. As Oracle's names, which have capital letters."""
    context = FormatContext("t", "value")
    schema = envelope([column("ID", "int32"), column("note", "string")])
    envelopes = [Envelope.from_schema(context, json.dumps(schema))]

    def check(*names: str, key: str) -> None:
        columns = StructType([StructField(name, StringType()) for name in names])
        refuse_absent_columns(context, envelopes, WantedParts(columns, (key,), {}))

    check("ID", "note", "later", key="ID")
    for name, problem in (
        ("id", "value= has the column 'ID' in its Avro schema, not 'id'"),
        ("key", "value= has no column 'key' in its Avro schema, which key_columns= names"),
    ):
        with pytest.raises(dt.errors.PlanError, match=problem):
            check(name, "note", key=name)


def test_what_is_not_of_its_type_says_why(avro_spark: SparkSession) -> None:
    """The transaction of Oracle is a text, and bytes need not be one."""
    schema = envelope([column("id", "int32"), column("raw", "bytes")])
    text = {"name": "txId", "type": ["null", "string"], "default": None}
    schema["fields"][2]["type"]["fields"].append(text)
    events = [
        {**avro_event("c", None, {"id": n}), "after": {"id": n, "raw": raw}}
        for n, raw in enumerate((b"\xc3\xa9", b"\xff", None, b"x"))
    ]
    for sent, id_ in zip(events, ("1", "2", None, "5.6.641"), strict=True):
        sent["source"] = {**sent["source"], "txId": id_}
    table = dt.Table.from_records(
        records(avro_spark, [encoded(schema, sent) for sent in events]),
        key_columns="id", name="t", malformed="dead_letter",
        value=dt.formats.debezium(
            "id int, raw string", avro=dt.formats.avro(json.dumps(schema)),
            metadata={"transaction": "source.txId"},
        ),
    )  # fmt: skip
    found = table.plan.frame.select("id", "raw", "transaction").collect()
    assert [tuple(row) for row in found] == [(0, "é", 1), (2, None, None)]
    letters = [
        letter["_problem"].partition(": value: ")[2] for letter in table.dead_letters().collect()
    ]
    assert letters[0].startswith("column `raw` is no string: ")
    assert letters[1] == "source.txId is no bigint: 5.6.641"


def test_a_decimal_is_a_text_of_digits_if_its_schema_has_a_scale(avro_spark: SparkSession) -> None:
    """The bytes of one without a scale are no text, even if they could be read as one."""
    name, bytes_ = f"{CONNECT}Decimal", b"\x01\xf4"
    forms = {
        "cents": column("cents", "bytes", name, parameters={"scale": "2"}),
        "hundreds": column("hundreds", "bytes", name, parameters={"scale": "-2"}),
        "bare": column("bare", "bytes", name),
    }
    schema = envelope([column("id", "int32"), *forms.values()])
    for form in schema["fields"][0]["type"][1]["fields"]:
        form["type"][1].pop("logicalType", None)  # Avro has none of a negative scale
    rows = [
        {"id": n, "cents": bytes_, "hundreds": bytes_, "bare": bare}
        for n, bare in enumerate((None, bytes_, b"12"))
    ]
    events = [{**avro_event("c", None, {}), "after": row} for row in rows]
    table = dt.Table.from_records(
        records(avro_spark, [encoded(schema, sent) for sent in events]),
        key_columns="id", name="t", malformed="dead_letter",
        value=dt.formats.debezium(
            "id int, cents string, hundreds string, bare string",
            avro=dt.formats.avro(json.dumps(schema)),
        ),
    )  # fmt: skip
    found = table.plan.frame.select("id", *forms).collect()
    assert [tuple(row) for row in found] == [(0, "5.00", "50000", None)]
    letters = table.dead_letters().collect()
    assert [letter["_problem"].partition(": value: ")[2] for letter in letters] == [
        f'column `bare` is no string: {{"bare":"{raw}"}}, encoded as {name}'
        for raw in ("AfQ=", "MTI=")
    ]


def test_a_decimal_with_more_digits_than_spark_has_is_a_text(avro_spark: SparkSession) -> None:
    """Of PostgreSQL's ``numeric(50,40)``."""
    name = f"{CONNECT}Decimal"
    schema = envelope(
        [column("id", "int32"), column("fine", "bytes", name, parameters={"scale": "40"})]
    )
    (fine,) = (f for f in schema["fields"][0]["type"][1]["fields"] if f["name"] == "fine")
    fine["type"][1].pop("logicalType")
    numbers = (0, 1, -1, 10**37, -(10**38) + 1, 10**38)
    events = [
        {
            **avro_event("c", None, {}),
            "after": {"id": n, "fine": number.to_bytes(17, "big", signed=True)},
        }
        for n, number in enumerate(numbers)
    ]
    table = dt.Table.from_records(
        records(avro_spark, [encoded(schema, sent) for sent in events]),
        key_columns="id", name="t", malformed="dead_letter",
        value=dt.formats.debezium("id int, fine string", avro=dt.formats.avro(json.dumps(schema))),
    )  # fmt: skip
    assert [row.fine for row in table.plan.frame.select("fine").collect()] == [
        f"0.{'0' * 40}",
        f"0.{'0' * 39}1",
        f"-0.{'0' * 39}1",
        f"0.001{'0' * 37}",
        f"-0.00{'9' * 38}",
    ]
    (letter,) = table.dead_letters().collect()
    assert "column `fine` is no string" in letter["_problem"]


def test_records_arrays_and_maps_are_texts_of_json(avro_spark: SparkSession) -> None:
    """With bytes in base64, as in the events in JSON."""
    columns = [
        column("id", "int32"),
        *(ENCODED[name] for name in ("variable", "point", "dates", "tags")),
    ]
    schema = envelope(columns)
    rows = [
        {"id": 1, "variable": {"scale": 2, "value": "AfQ="},
         "point": {"x": 0.5, "y": -1.0, "wkb": "/wA=", "srid": None}, "dates": [19844, None],
         "tags": {"a": "b"}},
        dict.fromkeys(["id", "variable", "point", "dates", "tags"]) | {"id": 2},
    ]  # fmt: skip
    events = [avro_event("c", None, row) for row in rows]
    types = "id int, variable string, point string, dates string, tags string"
    table = dt.Table.from_records(
        records(avro_spark, [encoded(schema, sent) for sent in events]),
        key_columns="id", name="t",
        value=dt.formats.debezium(types, avro=dt.formats.avro(json.dumps(schema))),
    )  # fmt: skip
    texts = [
        tuple(value and json.loads(value) for value in row)
        for row in table.plan.frame.select("variable", "point", "dates", "tags").collect()
    ]
    assert texts == [
        tuple(row[name] for name in ("variable", "point", "dates", "tags")) for row in rows
    ]


def test_an_envelope_without_the_row_before_a_change(avro_spark: SparkSession) -> None:
    schema = envelope([column("id", "int32")])
    before, after, *rest = schema["fields"]
    schema["fields"] = [{**after, "type": before["type"]}, *rest]
    events = [avro_event("u", None, {"id": 1}), avro_event("d", None, None)]
    table = dt.Table.from_records(
        records(avro_spark, [encoded(schema, sent) for sent in events]),
        key_columns="id", name="t", malformed="dead_letter",
        value=dt.formats.debezium(avro=dt.formats.avro(json.dumps(schema))),
    )  # fmt: skip
    assert [tuple(row) for row in table.plan.frame.select("_deleted", "id").collect()] == [
        (False, 1)
    ]
    (letter,) = table.dead_letters().collect()
    assert "value: a delete without the row before it" in letter["_problem"]
