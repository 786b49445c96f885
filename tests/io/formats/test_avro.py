"""Avro, alone and in a registry's framing: what is written is read back, and what another codec
writes; schemas that have changed; what is malformed. Nothing here needs a broker.
"""

from __future__ import annotations

import io
import json
import socket
from collections.abc import Iterator
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from threading import Thread
from typing import Any

import fastavro
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, LongType, StructField, StructType
from registry_server import PASSWORD, USER, Server, served

import dovetail as dt
from dovetail.io.formats.avro import AvroFormat
from dovetail.io.formats.plain import FormatContext
from dovetail.io.sources.kafka import to_records

FIRST = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "int"}, {"name": "who", "type": "string"}],
}
SECOND = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "amount", "type": ["null", {"type": "bytes", "logicalType": "decimal",
                                             "precision": 9, "scale": 2}], "default": None},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]},
         "default": "A"},
        {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []},
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def avro_spark(spark: SparkSession) -> SparkSession:
    if "spark-avro" not in (spark.conf.get("spark.jars", "") or ""):
        pytest.skip("Spark runs without its Avro functions: tools/jars/fetch avro")
    return spark


@pytest.fixture
def server() -> Iterator[Server]:
    with served() as running:
        yield running


def encoded(schema: Any, row: Any, number: int | None = None) -> bytes:
    """A record as fastavro writes it, framed if its schema has a number."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), row)
    return (b"" if number is None else b"\0" + number.to_bytes(4, "big")) + out.getvalue()


def records(spark: SparkSession, values: list[bytes | None]) -> DataFrame:
    stamped = datetime(2024, 5, 1, tzinfo=timezone.utc)
    rows = [(f"k{n}".encode(), v, "orders", 0, n, stamped) for n, v in enumerate(values)]
    schema = (
        "key binary, value binary, topic string, partition int, offset long, timestamp timestamp"
    )
    return spark.createDataFrame(rows, schema).coalesce(1)


def read(frame: DataFrame, value: Any, **options: Any) -> dt.Table:
    return dt.Table.from_records(frame, value=value, name="orders", **options)


def rows(table: dt.Table) -> list[dict[str, Any]]:
    columns = [c for c in table.plan.frame.columns if not c.startswith("_")]
    return table.plan.frame.select(*columns).toArrow().to_pylist()


def problems(table: dt.Table) -> list[str]:
    return [row["_problem"].partition(": value: ")[2] for row in table.dead_letters().collect()]


def test_records_of_several_versions_are_read_as_the_latest(
    avro_spark: SparkSession, server: Server
) -> None:
    first = server.add("orders-value", json.dumps(FIRST))
    server.add("orders-key", '"string"')
    second = server.add("orders-value", json.dumps(SECOND))
    amount = Decimal("-12.34")
    values = [
        encoded(FIRST, {"id": 1, "who": "é"}, first),
        encoded(SECOND, {"id": 2**40, "amount": amount, "kind": "B", "tags": ["x"]}, second),
        None,
        b"\0",
        b"",
        encoded(SECOND, {"id": 5, "amount": None, "kind": "B", "tags": []}),
        encoded(FIRST, {"id": 6, "who": "x"}, 7),
        encoded(FIRST, {"id": 7, "who": "x" * 50}, first)[:-10],
    ]
    registry = dt.formats.registry(server.url, auth=(USER, PASSWORD))
    frame = records(avro_spark, values)
    table = read(frame, dt.formats.avro(registry, subject="orders-value"), malformed="dead_letter")
    assert rows(table) == [
        {"key": "k0", "id": 1, "amount": None, "kind": "A", "tags": []},
        {"key": "k1", "id": 2**40, "amount": amount, "kind": "B", "tags": ["x"]},
        {"key": "k2", "id": None, "amount": None, "kind": None, "tags": None},
    ]
    assert problems(table) == [
        "not in the framing of a schema registry",
        "not in the framing of a schema registry",
        "not in the framing of a schema registry",
        UNKNOWN,
        f"not a record of its schema, number {first}",
    ]
    assert all(request.startswith("GET /subjects/orders-value/") for request in server.asked)
    named = read(
        frame, dt.formats.avro(json.dumps(FIRST), registry=registry, subject="orders-value"),
                 malformed="drop")  # fmt: skip
    assert [row["id"] for row in rows(named)] == [1, None]


def logical(name: str, kind: str = "long", **more: int) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


def decimal(precision: int, scale: int) -> dict[str, Any]:
    return logical("decimal", "bytes", precision=precision, scale=scale)


AT = datetime(2024, 5, 1, 10, 0, 0, 123000, tzinfo=timezone.utc)
WALL = AT.replace(tzinfo=None)


@pytest.mark.parametrize(
    ("written", "read_by", "value", "expected"),
    [
        (decimal(10, 2), ["null", decimal(12, 4)], Decimal("12.34"), Decimal("12.3400")),
        (decimal(10, 2), decimal(12, 2), Decimal("12.34"), Decimal("12.34")),
        (decimal(12, 4), decimal(10, 2), Decimal("12.34"), None),
        (decimal(10, 2), decimal(10, 4), Decimal("12.34"), None),
        (logical("timestamp-millis"), logical("timestamp-micros"), AT, AT),
        (logical("timestamp-micros"), ["null", logical("timestamp-millis")], AT, AT),
        (logical("local-timestamp-millis"), logical("timestamp-micros"), WALL, AT),
        (logical("timestamp-millis"), logical("local-timestamp-micros"), AT, WALL),
        (logical("timestamp-millis"), logical("local-timestamp-millis"), AT, WALL),
        (logical("date", "int"), logical("timestamp-millis"), date(2024, 5, 1), None),
        (logical("timestamp-micros"), "long", AT, 1714557600123000),
        ("long", logical("timestamp-micros"), 1714557600123000, AT),
        (decimal(10, 2), "string", Decimal("12.34"), None),
        ("string", decimal(10, 2), "12.34", None),
        (
            ["null", logical("timestamp-millis"), "string"],
            ["string", "null", logical("timestamp-micros")],
            AT,
            {"member0": None, "member1": AT},
        ),
        (["string", logical("timestamp-millis")], logical("timestamp-micros"), AT, AT),
    ],
)
def test_times_and_decimals_keep_the_unit_of_the_writer(
    avro_spark: SparkSession, tmp_path: Path, written: Any, read_by: Any, value: Any, expected: Any
) -> None:
    """Avro itself would read the number of one unit as that of another. Null: unreadable."""

    def version(type_: Any, name: str, **more: Any) -> Any:
        inner = {"type": "record", "name": "Inner", "fields": [{"name": "x", "type": type_}]}
        fields = [
            {"name": name, "type": type_, **more},
            {"name": "within", "type": {"type": "array", "items": inner}},
            {"name": "of", "type": {"type": "map", "values": "Inner"}},
        ]
        return {"type": "record", "name": "Order", "fields": fields}

    first = version(written, "former")
    second = version(read_by, "x", aliases=["former"])
    path = tmp_path / "schemas.json"
    registered = [
        {"subject": "orders-value", "version": n, "id": n, "schema": json.dumps(schema)}
        for n, schema in ((1, first), (2, second))
    ]
    path.write_text(json.dumps(registered))
    row = {"former": value, "within": [{"x": value}], "of": {"a": {"x": value}}}
    frame = records(avro_spark, [encoded(first, row, 1)])
    format_ = dt.formats.avro(dt.formats.registry(path), subject="orders-value")
    table = read(frame, format_, key="string", malformed="dead_letter")
    if expected is None:
        assert rows(table) == []
        (problem,) = problems(table)
        assert problem.startswith(
            "its schema, number 1, has a date, a time or a decimal that is of"
        )
        return
    assert problems(table) == []
    assert rows(table) == [
        {"key": "k0", "x": expected, "within": [{"x": expected}], "of": [("a", {"x": expected})]}
    ]


def order_on(day: Any) -> dict[str, Any]:
    return {"type": "record", "name": "Order", "fields": [{"name": "d", "type": day}]}


@pytest.mark.parametrize(
    ("written", "read_by", "value"),
    [
        (
            order_on(logical("date", "int")),
            order_on(logical("timestamp-millis")),
            {"d": date(2024, 5, 1)},
        ),
        (logical("date", "int"), logical("timestamp-millis"), date(2024, 5, 1)),
    ],
)
def test_no_version_has_the_units_of_the_declared_schema(
    avro_spark: SparkSession, tmp_path: Path, written: Any, read_by: Any, value: Any
) -> None:
    path = tmp_path / "schemas.json"
    version = {"subject": "orders-value", "version": 1, "id": 1, "schema": json.dumps(written)}
    path.write_text(json.dumps([version]))
    registry = dt.formats.registry(path)
    format_ = dt.formats.avro(json.dumps(read_by), registry=registry, subject="orders-value")
    frame = records(avro_spark, [encoded(written, value, 1), encoded(written, value, 2)])
    table = read(frame, format_, key="string", malformed="dead_letter")
    assert rows(table) == []
    other_units, unknown = problems(table)
    assert other_units.startswith(
        "its schema, number 1, has a date, a time or a decimal that is of"
    )
    assert unknown.startswith("its schema, number 2, is none that subject orders-value had in the")


def test_decimals_of_a_larger_scale_must_fit(avro_spark: SparkSession, tmp_path: Path) -> None:
    first, second = (
        {
            "type": "record",
            "name": "Order",
            "fields": [
                {"name": "price", "type": ["null", type_]},
                {"name": "prices", "type": {"type": "array", "items": ["null", type_]}},
            ],
        }
        for type_ in (decimal(10, 2), decimal(10, 4))
    )
    path = tmp_path / "schemas.json"
    registered = [
        {"subject": "orders-value", "version": n, "id": n, "schema": json.dumps(schema)}
        for n, schema in ((1, first), (2, second))
    ]
    path.write_text(json.dumps(registered))
    small, large = Decimal("-123456.78"), Decimal("1234567.89")
    values = [
        encoded(first, {"price": price, "prices": prices}, 1)
        for price, prices in (
            (small, [None, small]), (None, []), (large, []), (small, [small, large]), (small, [])
        )
    ]  # fmt: skip
    format_ = dt.formats.avro(dt.formats.registry(path), subject="orders-value")
    table = read(records(avro_spark, values), format_, key="string", malformed="dead_letter")
    assert rows(table) == [
        {"key": "k0", "price": small, "prices": [None, small]},
        {"key": "k1", "price": None, "prices": []},
        {"key": "k4", "price": small, "prices": []},
    ]
    assert problems(table) == ["not a record of its schema, number 1"] * 2


def test_a_deleted_version_is_read_and_is_not_the_latest(
    avro_spark: SparkSession, server: Server
) -> None:
    """Of two schemas, the later one was a mistake and is deleted; then the first one is deleted and
    registered again, as version 3 under its old id.
    """
    wrong = {"name": "wrong", "type": "string", "default": ""}
    mistake = {**FIRST, "fields": [*FIRST["fields"], wrong]}
    first = server.add("orders-value", json.dumps(FIRST))
    second = server.add("orders-value", json.dumps(mistake))
    again = {**server.subjects["orders-value"][0], "version": 3}
    values = [
        encoded(FIRST, {"id": 1, "who": "x"}, first),
        encoded(mistake, {"id": 2, "who": "x", "wrong": "y"}, second),
    ]
    registry = dt.formats.registry(server.url, auth=(USER, PASSWORD))
    frame = records(avro_spark, values)
    for deleted, versions in (({2}, [2, 1]), ({1, 2}, [2, 3]), ({1, 2, 3}, [2, 3])):
        server.deleted = {("orders-value", version) for version in deleted}
        if len(deleted) > 1:
            server.subjects["orders-value"][2:] = [again]
        assert [known.version for known in registry.versions("orders-value")] == versions
        table = read(frame, dt.formats.avro(registry, subject="orders-value"))
        assert [row["id"] for row in rows(table)] == [1, 2]
        assert list(rows(table)[0]) == ["key", "id", "who"]


def test_a_framed_record_is_not_taken_for_a_plain_one(avro_spark: SparkSession) -> None:
    """Its first zero is the number 0, too, and Spark ignores what follows."""
    number = {"type": "record", "name": "Number", "fields": [{"name": "id", "type": "long"}]}
    five = encoded(number, {"id": 5})
    framings = (b"\0\0\0\0\7", b"\xc3\x01" + bytes(8), b"\x03\0" + bytes(16))
    values = [encoded(number, {"id": 0}), five, *(framing + five for framing in framings)]
    hint = (
        "not a record of its Avro schema; if it is in a schema registry's framing, as its first "
        "byte is, give it in registry="
    )
    for schema in (json.dumps(number), '"long"'):
        frame = records(avro_spark, values)
        table = read(frame, dt.formats.avro(schema), key="string", malformed="dead_letter")
        assert [list(row.values())[-1] for row in rows(table)] == [0, 5]
        assert problems(table) == [hint, *["not a record of its Avro schema"] * 2]


def test_a_schema_that_cannot_be_read_is_refused(avro_spark: SparkSession) -> None:
    def record(*fields: dict[str, Any]) -> str:
        id_ = {"name": "id", "type": "long"}
        return json.dumps({"type": "record", "name": "R", "fields": [id_, *fields]})

    frame = records(avro_spark, [])
    twice = record({"name": "a", "type": "string"}, {"name": "A", "type": "string"})
    with pytest.raises(dt.errors.PlanError, match="column 'A' occurs twice"):
        read(frame, dt.formats.avro(twice), key_columns="id")
    itself = record({"name": "next", "type": ["null", "R"]})
    with pytest.raises(dt.errors.PlanError, match="has an Avro schema that Spark does not take"):
        read(frame, dt.formats.avro(itself), key_columns="id")


def test_a_subject_of_another_kind_is_refused(avro_spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "schemas.json"
    of_protobuf = {"subject": "orders-value", "version": 3, "id": 1, "schema": 'syntax = "proto3";'}
    path.write_text(json.dumps([of_protobuf]))
    registered = dt.formats.avro(dt.formats.registry(path), subject="orders-value")
    for format_ in (registered, dt.formats.debezium(avro=registered)):
        with pytest.raises(dt.errors.PlanError, match="is Avro, and version 3 of 'orders-value'"):
            read(records(avro_spark, []), format_, key_columns="id")


def test_a_field_may_have_the_name_of_the_marker(avro_spark: SparkSession) -> None:
    fields = [{"name": name, "type": "boolean"} for name in ("_read", "__read")]
    schema = {"type": "record", "name": "R", "fields": fields}
    frame = records(avro_spark, [encoded(schema, {"_read": False, "__read": True}), b""])
    table = read(frame, dt.formats.avro(json.dumps(schema)), key="string", malformed="drop")
    assert table.plan.frame.select("_read", "__read").collect() == [(False, True)]


UNKNOWN = (
    "its schema, number 7, is none that subject orders-value had in the registry when the query "
    "started; if it is newer, start the query again"
)
EVERY = (
    "flag boolean, small byte, short short, int int, long long, float float, double double, "
    "text string, blob binary, day date, at timestamp, wall timestamp_ntz, price decimal(20,4), "
    "list array<struct<n: long, at: timestamp>>, map map<string,decimal(3,1)>, s struct<x: int>"
)


def test_what_is_written_is_read_back(avro_spark: SparkSession, server: Server) -> None:
    at = datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=timezone.utc)
    row = (True, -1, 2, 3, 2**60, 0.5, 0.1, "é", b"\xff", date(1, 1, 1), at,
           at.replace(tzinfo=None), Decimal("-1.2345"),
           [(1, at), None], {"a": Decimal("1.5"), "b": None}, (7,))  # fmt: skip
    frame = avro_spark.createDataFrame([row, (None,) * len(row)], EVERY).coalesce(1)
    registry = dt.formats.registry(server.url, auth=(USER, PASSWORD))
    for format_ in (dt.formats.avro(registry), dt.formats.avro(derived(frame.schema))):
        place = FormatContext("to_topic", "value", "orders")
        written = frame.select(format_.encode(place, frame.schema).alias("value"))
        subject = {"topic": F.lit("orders"), "timestamp": F.lit(at)}
        sent = written.withColumns(subject).withColumn("key", F.lit("k"))
        reading = dt.formats.avro(registry, subject="orders-value") if format_.registry else format_
        made = read(sent, reading).plan.frame.select(*frame.columns)
        back = made.select(F.col("small").cast("byte"), F.col("short").cast("short"), *(
            name for name in frame.columns if name not in ("small", "short")
        )).select(*frame.columns)  # fmt: skip
        assert back.toArrow().to_pylist() == frame.toArrow().to_pylist()
    (version,) = server.subjects["orders-value"]
    payload = bytes(
        frame.select(dt.formats.avro(registry).encode(place, frame.schema).alias("v")).head()["v"]
    )
    assert payload[:5] == b"\0" + version["id"].to_bytes(4, "big")
    schema = fastavro.parse_schema(json.loads(version["schema"]))
    by_itself = fastavro.schemaless_reader(io.BytesIO(payload[5:]), schema, None)
    assert (by_itself["text"], by_itself["price"], by_itself["at"]) == ("é", row[12], at)
    assert len(server.subjects["orders-value"]) == 1


def derived(columns: StructType) -> str:
    from dovetail.io.formats.avro import schema_of

    return json.dumps(schema_of(FormatContext("to_topic", "value"), columns))


def test_an_upsert_of_a_plain_null_fails(avro_spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "schemas.json"
    version = {"subject": "orders-value", "version": 1, "id": 7, "schema": '"string"'}
    path.write_text(json.dumps([version]))
    changes = avro_spark.sql(
        "select 'k' as k, v, _change, current_timestamp() as _timestamp "
        "from values ('upsert', 'a'), ('delete', null), ('upsert', null) as (_change, v)"
    )
    for registry in (None, dt.formats.registry(path)):
        value = dt.formats.avro('"string"', registry=registry)
        frame = b"" if registry is None else b"\0\0\0\0\7"

        def written(condition: str, value: AvroFormat = value) -> list[bytes | None]:
            records = to_records(
                changes.where(condition),
                key_columns=["k"],
                value_columns=["v"],
                value=value,
                topic="orders",
            )
            return [record.value for record in records.collect()]

        assert written("v = 'a'") == [frame + b"\2a"]
        assert written("_change = 'delete'") == [None]
        with pytest.raises(
            PySparkException, match="write_topic: an upsert of a null v would read as a delete"
        ):
            written("_change = 'upsert' AND v IS NULL")


def test_records_within_a_schema_have_names_of_their_own() -> None:
    """Columns whose structs would be named as the whole record, as one within another, and as one
    of Avro's own types.
    """
    of_x = StructType([StructField("x", LongType())])
    outer = StructType([StructField("b", of_x), StructField("c", ArrayType(of_x))])
    types = {"Value": of_x, "a": outer, "a_b": of_x, "a_c_element": of_x, "long": of_x}
    columns = StructType([StructField(name, type_) for name, type_ in types.items()])
    assert '"name": "long_"' in derived(columns)
    schema = fastavro.parse_schema(json.loads(derived(columns)))
    row = {"Value": {"x": 1}, "a": {"b": {"x": 2}, "c": [{"x": 3}]}, "a_b": {"x": 4},
           "a_c_element": {"x": 5}, "long": {"x": 6}}  # fmt: skip
    written = io.BytesIO()
    fastavro.schemaless_writer(written, schema, row)
    assert fastavro.schemaless_reader(io.BytesIO(written.getvalue()), schema, None) == row


def test_a_password_in_an_address_is_sent_and_not_shown() -> None:
    given = dt.formats.registry("https://db", auth=("ann", "a@b:c"))
    assert dt.formats.registry("https://ann:a%40b:c@db") == given
    assert dt.formats.registry("https://x:y@db/v1?z=1", auth="token") == dt.formats.registry(
        "https://db/v1?z=1", auth="token"
    )
    assert str(dt.formats.registry("http://x:y@db:8081")) == "http://db:8081"


def test_a_schema_that_a_file_has_twice_has_the_place_of_the_last(tmp_path: Path) -> None:
    """A deleted schema that was registered again keeps its id, and is the latest one."""
    path = tmp_path / "schemas.json"
    listed = [(1, 7, "one"), (2, 8, "two"), (3, 7, "one")]
    path.write_text(
        json.dumps(
            [{"subject": "s", "version": v, "id": i, "schema": text} for v, i, text in listed]
        )
    )
    versions = dt.formats.registry(path).versions("s")
    assert [(each.id, each.version) for each in versions] == [(8, 2), (7, 3)]


def test_a_schema_in_a_file_may_be_json_itself(tmp_path: Path) -> None:
    path = tmp_path / "schemas.json"
    path.write_text(json.dumps([{"subject": "s", "version": 1, "id": 7, "schema": FIRST}]))
    registry = dt.formats.registry(path)
    (version,) = registry.versions("s")
    assert json.loads(version.schema) == FIRST
    assert registry.id_of("s", json.dumps(FIRST, indent=2), "AVRO") == 7


def test_a_file_of_schemas(avro_spark: SparkSession, tmp_path: Path) -> None:
    listed = [
        {"subject": "orders-value", "version": n + 1, "id": 7 + n, "schema": json.dumps(schema)}
        for n, schema in enumerate((FIRST, SECOND))
    ]
    path = tmp_path / "schemas.json"
    path.write_text(json.dumps(listed))
    registry = dt.formats.registry(path)
    frame = records(avro_spark, [encoded(FIRST, {"id": 1, "who": "x"}, 7)])
    assert rows(read(frame, dt.formats.avro(registry, subject="orders-value")))[0]["kind"] == "A"
    with pytest.raises(dt.errors.ConfigurationError, match="has no subject 'other'"):
        read(frame, dt.formats.avro(registry, subject="other"))
    with pytest.raises(
        dt.errors.ConfigurationError, match="no version of 'orders-value' with the schema"
    ):
        dt.formats.avro(registry).encode(FormatContext("to_topic", "value", "orders"), frame.schema)
    for text, problem in (
        ("{", "JSONDecode"),
        (json.dumps([{"subject": "orders-value", "version": 1, "id": 7}]), "KeyError: 'schema'"),
        (json.dumps([7]), "TypeError"),
    ):
        path.write_text(text)
        with pytest.raises(
            dt.errors.ConfigurationError, match=f"schemas.json: cannot be read: {problem}"
        ):
            read(frame, dt.formats.avro(dt.formats.registry(path), subject="orders-value"))


def test_a_registry_that_refuses_says_why(server: Server) -> None:
    open_ = dt.formats.registry(server.url, auth=(USER, PASSWORD))
    assert open_.id_of("s-value", '"int"', "AVRO") == open_.id_of("s-value", '"int"', "AVRO")
    assert len(server.subjects["s-value"]) == 1
    with pytest.raises(
        dt.errors.ConfigurationError, match="answers 409 to POST /subjects/s-value/versions"
    ):
        open_.id_of("s-value", '"incompatible"', "AVRO")
    with pytest.raises(dt.errors.ConfigurationError, match="has no subject 'a/b'"):
        open_.versions("a/b")
    with pytest.raises(
        dt.errors.ConfigurationError, match=r"answers 401 to GET .* auth= is missing"
    ):
        dt.formats.registry(server.url, auth="wrong").versions("s-value")
    with pytest.raises(
        dt.errors.ConfigurationError, match="does not answer GET /subjects/s/versions"
    ):
        dt.formats.registry("http://127.0.0.1:9", timeout_s=1.0).versions("s")


@pytest.mark.parametrize(
    "answer",
    [b"\0\0\0\7", b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n[1]"],
    ids=["no HTTP", "broken off"],
)
def test_an_answer_that_is_no_whole_one_of_http_is_none(answer: bytes) -> None:
    """Of another server's port, or of a registry that dies as it answers."""

    def serve() -> None:
        connection, _ = listening.accept()
        with connection:
            connection.recv(4096)
            connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        Thread(target=serve, daemon=True).start()
        registry = dt.formats.registry(f"http://127.0.0.1:{listening.getsockname()[1]}")
        with pytest.raises(
            dt.errors.ConfigurationError, match="does not answer GET /subjects/s/versions"
        ):
            registry.versions("s")


@pytest.mark.parametrize(
    ("schema", "columns", "message"),
    [
        (FIRST, "id int", "lacks the column 'who', which its Avro schema requires"),
        (FIRST, "id long, who string", "column 'id' of type bigint, which is int in its Avro"),
        (FIRST, "id int, who string, x int", "has no field 'x' in its Avro schema"),
        ("long", "id string", "is bigint in Avro, and the columns are id string"),
        (None, "`a b` int", "'a b' is no name"),
        (None, "a interval day to second", "type interval day to second has no type there"),
        ({"type": "long", "logicalType": "x"}, "a int", "is bigint in Avro"),
    ],
)
def test_columns_that_do_not_fit_are_refused(
    avro_spark: SparkSession, tmp_path: Path, schema: Any, columns: str, message: str
) -> None:
    given = dt.formats.registry("schemas.json") if schema is None else json.dumps(schema)
    frame = avro_spark.createDataFrame([], columns)
    with pytest.raises(dt.errors.PlanError, match=message):
        dt.formats.avro(given).encode(FormatContext("to_topic", "value", "orders"), frame.schema)
