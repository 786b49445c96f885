"""Protobuf, alone and in a registry's framing, against Google's own codec."""

from __future__ import annotations

import importlib
import json
import sys
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import grpc_tools
import pyarrow as pa
import pytest
from grpc_tools import protoc
from pyspark.errors import PythonException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from registry_server import PASSWORD, USER, served
from test_avro import records

import dovetail as dt
from dovetail.io.formats.plain import FormatContext
from dovetail.io.formats.protobuf import _encoder

PROTO = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
message Other { message Inner { int32 x = 1; } int32 x = 1; }
message Order {
  int64 id = 1;
  string who = 2;
  double price = 3;
  google.protobuf.Timestamp at = 4;
  uint64 big = 5;
  uint32 small = 6;
  bytes blob = 7;
  repeated int32 numbers = 8;
  map<string, uint32> counts = 9;
  enum Kind { A = 0; B = 1; }
  Kind kind = 10;
  optional int32 maybe = 11;
  Other other = 12;
  bool flag = 13;
}
message Event {
  repeated Order.Kind kinds = 1;
  map<string, Order.Kind> by_name = 2;
  repeated Order orders = 3;
  oneof place { int32 shelf = 4; string street = 5; }
}
"""
COLUMNS = (
    "id bigint, who string, price double, at timestamp, big decimal(20,0), small bigint, "
    "blob binary, numbers array<int>, counts map<string,bigint>, kind string, maybe int, "
    "other struct<x:int>, flag boolean"
)
KINDS = pa.list_(pa.string())
NAMED = pa.map_(pa.string(), pa.string())
ORDERS = pa.list_(pa.struct([("kind", pa.string())]))
AT = datetime(2024, 5, 1, 1, 2, 3, 456789, tzinfo=timezone.utc)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The module that protoc generates; beside it lies ``shop.desc``."""
    folder = tmp_path_factory.mktemp("proto")
    (folder / "shop.proto").write_text(PROTO)
    includes = [f"-I{folder}", f"-I{Path(grpc_tools.__file__).parent / '_proto'}"]
    outputs = [f"--python_out={folder}", f"--descriptor_set_out={folder / 'shop.desc'}"]
    assert protoc.main(["", *includes, *outputs, "--include_imports", "shop.proto"]) == 0
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module("shop_pb2")
    finally:
        sys.path.remove(str(folder))


def order(shop: Any) -> Any:
    made = shop.Order(id=-5, who="é", price=0.5, big=2**64 - 1, small=2**32 - 1, blob=b"\xff",
                      numbers=[1, 2], counts={"a": 7}, kind="B", maybe=0, flag=True,
                      other={"x": 3})  # fmt: skip
    made.at.FromDatetime(AT)
    return made


ROW = {
    "id": -5, "who": "é", "price": 0.5, "at": AT, "big": Decimal(2**64 - 1), "small": 2**32 - 1,
    "blob": b"\xff", "numbers": [1, 2], "counts": [("a", 7)], "kind": "B", "maybe": 0,
    "other": {"x": 3}, "flag": True,
}  # fmt: skip
EMPTY = {
    "id": 0, "who": "", "price": 0.0, "at": None, "big": Decimal(0), "small": 0, "blob": b"",
    "numbers": [], "counts": [], "kind": "A", "maybe": None, "other": None, "flag": False,
}  # fmt: skip


def test_messages_are_read_and_written(spark: SparkSession, shop: Any) -> None:
    sent = order(shop).SerializeToString(deterministic=True)
    late = b"\x22\x0a\x08" + b"\xff" * 8 + b"\x3f"  # a time of 2**62 seconds
    values = [sent, b"", b"\x12\x05ab", None, sent, b"\xff\xff", b"\x12\x02\xff\xfe", sent, late]
    format_ = dt.formats.protobuf(shop.Order)
    table = dt.Table.from_records(
        records(spark, values), value=format_, name="orders", malformed="dead_letter"
    )
    frame = table.plan.frame
    names = frame.select(*ROW).schema
    assert names.simpleString() == spark.createDataFrame([], COLUMNS).schema.simpleString()
    assert frame.select("_offset", *ROW).toArrow().to_pylist() == [
        {"_offset": 0, **ROW},
        {"_offset": 1, **EMPTY},
        {"_offset": 3, **dict.fromkeys(ROW)},
        {"_offset": 4, **ROW},
        {"_offset": 7, **ROW},
    ]
    problems = [row["_problem"] for row in table.dead_letters().collect()]
    assert problems == [
        f"topic orders, partition 0, offset {n}: value: not a message shop.Order"
        for n in (2, 5, 6, 8)
    ]
    place = FormatContext("to_topic", "value", "orders")
    rows = frame.where("_offset < 2").select(*ROW)
    written = rows.select(format_.encode(place, rows.schema).alias("v")).collect()
    assert [shop.Order.FromString(bytes(row["v"])) for row in written] == [
        order(shop), shop.Order()
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("column", "type_", "value", "problem"),
    [
        ("kinds", KINDS, ["A", "C"], "kinds of a row is 'C', which is no value of enum shop.Order"),
        ("kinds", KINDS, ["A", None], "kinds of a row has a null within"),
        ("by_name", NAMED, [("x", "A"), ("y", "C")], "by_name of a row is 'C', which is no value"),
        ("by_name", NAMED, [("x", None)], "by_name of a row has a null within"),
        ("orders", ORDERS, [{"kind": "a"}], r"orders\.kind of a row is 'a', which is no value"),
        ("orders", ORDERS, [None], "orders of a row has a null within"),
    ],
)
def test_values_that_a_message_lacks_are_refused(
    shop: Any, column: str, type_: pa.DataType, value: Any, problem: str
) -> None:
    """Protobuf would have another value in their place."""
    event = dt.formats.protobuf(shop.Event)
    encode = _encoder("to_topic", event.files, event.message)
    sound = pa.array([{column: []}, None, {column: None}], pa.struct([(column, type_)]))
    assert encode(sound).to_pylist() == [b"", b"", b""]
    wrong = pa.array([{column: []}, {column: value}], sound.type)
    with pytest.raises(dt.errors.DataError, match=f"^to_topic: {problem}"):
        encode(wrong)
    with pytest.raises(dt.errors.DataError, match=f"^to_topic: {problem}"):
        encode(wrong[1:])
    assert encode(wrong[:1]).to_pylist() == [b""]


def test_a_message_has_one_field_of_a_oneof(spark: SparkSession, shop: Any) -> None:
    event = dt.formats.protobuf(shop.Event)
    rows = spark.sql("SELECT 0 AS shelf, string(null) AS street UNION ALL SELECT null, 'x'")
    place = FormatContext("to_topic", "value", "events")
    written = [bytes(row[0]) for row in rows.select(event.encode(place, rows.schema)).collect()]
    assert [shop.Event.FromString(one) for one in written] == [
        shop.Event(shelf=0), shop.Event(street="x")
    ]  # fmt: skip
    both = spark.sql("SELECT 1 AS shelf, 'x' AS street")
    problem = "to_topic: a row has values in several of shelf, street, of which a message has one"
    with pytest.raises(PythonException, match=problem):
        both.select(event.encode(place, both.schema)).collect()


def test_the_framing_of_a_registry(spark: SparkSession, shop: Any, tmp_path: Path) -> None:
    """The first message of a file is named by a zero byte; others by their places, from outside."""
    path = tmp_path / "schemas.json"
    version = {"subject": "orders-value", "version": 1, "id": 9, "schema": PROTO}
    path.write_text(json.dumps([version]))
    head = b"\0\0\0\0\x09"
    other, inner = shop.Other(x=5), shop.Other.Inner(x=6)
    for message, sent, places, also in (
        (shop.Other, other, b"\0", b"\x02\0"),
        (shop.Order, shop.Order(id=5), b"\x02\x02", None),
        (shop.Other.Inner, inner, b"\x04\0\0", None),
    ):
        body = sent.SerializeToString()
        values = [head + places + body, head[:3], b"", head + b"\x06\0\0\0" + body, body]
        values += [] if also is None else [head + also + body]
        format_ = dt.formats.protobuf(message, registry=dt.formats.registry(path))
        table = dt.Table.from_records(
            records(spark, values), value=format_, name="orders", malformed="drop"
        )
        frame = table.plan.frame
        read = [row[0] for row in frame.select("_offset").collect()]
        assert read == ([0] if also is None else [0, 5])
        rows = frame.where("_offset = 0").drop("key", *[c for c in frame.columns if c[0] == "_"])
        written = format_.encode(FormatContext("to_topic", "value", "orders"), rows.schema)
        assert bytes(rows.select(written.alias("v")).head()["v"]) == values[0]


def test_the_id_of_a_deleted_version_is_not_written(spark: SparkSession, shop: Any) -> None:
    rows = spark.range(1).select(F.lit(5).alias("x"))
    with served() as server:
        kept = server.add("orders-value", PROTO)
        server.add("orders-value", PROTO + "// a mistake")
        server.deleted = {("orders-value", 2)}
        registry = dt.formats.registry(server.url, auth=(USER, PASSWORD))
        format_ = dt.formats.protobuf(shop.Other, registry=registry)
        written = format_.encode(FormatContext("to_topic", "value", "orders"), rows.schema)
    message = bytes(rows.select(written.alias("v")).head()["v"])
    assert message == b"\0" + kept.to_bytes(4, "big") + b"\0" + shop.Other(x=5).SerializeToString()


def test_what_does_not_fit_is_refused(spark: SparkSession, shop: Any) -> None:
    place = FormatContext("to_topic", "value", "orders")
    named = Path(shop.__file__).parent / "shop.desc"
    assert dt.formats.protobuf("shop.Order", descriptors=named).message == "shop.Order"
    with pytest.raises(dt.errors.PlanError, match=r"message='shop\.No' is not in the descriptors"):
        dt.formats.protobuf("shop.No", descriptors=named)
    with pytest.raises(
        dt.errors.PlanError, match=r"descriptors= is no set of files .*Give what protoc"
    ):
        dt.formats.protobuf("shop.Order", descriptors=b"\xff\xff")
    with pytest.raises(dt.errors.PlanError, match=r"descriptors= cannot be read: .*No such file"):
        dt.formats.protobuf("shop.Order", descriptors="nowhere.pb")
    with pytest.raises(dt.errors.PlanError, match="is a name, and descriptors= is not given"):
        dt.formats.protobuf("shop.Order")
    wrong = spark.range(1).select(F.lit(1).alias("id"))
    with pytest.raises(dt.errors.PlanError, match="'id' of type int, which is bigint in message"):
        dt.formats.protobuf(shop.Order).encode(place, wrong.schema)
    with pytest.raises(dt.errors.PlanError, match=r"has no field 'no' in message shop\.Order"):
        dt.formats.protobuf(shop.Order).encode(place, wrong.withColumnRenamed("id", "no").schema)
    with pytest.raises(dt.errors.PlanError, match="is framed, and of no registry"):
        dt.formats.protobuf(shop.Order, framed=True).encode(place, spark.range(1).schema)
