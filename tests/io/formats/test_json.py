"""JSON is read as what it says: each value in its type, or the record cannot be read and the reason
names the column and the value.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, timedelta, timezone
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

import dovetail as dt
from dovetail.errors import PlanError
from dovetail.io.formats.json_objects import JsonObject
from dovetail.io.formats.plain import FormatContext

UTC = timezone.utc
TEN = 1714557600000
"""2024-05-01T10:00:00Z in milliseconds."""


def read(
    spark: SparkSession,
    schema: str,
    texts: Sequence[str],
    encodings: Mapping[str, Any] | None = None,
) -> list[tuple[str | None, str | None]]:
    """The object that each text is, as JSON, and why it is none."""
    columns = StructType.fromDDL(schema)
    object_ = JsonObject(F.col("text"), columns, dict(encodings or {}))
    rows = [(n, text) for n, text in enumerate(texts)]
    frame = spark.createDataFrame(rows, "n int, text string").coalesce(1)
    frame = frame.withColumn("parsed", object_.parsed)
    frame = frame.withColumn("row", object_.row(F.col("parsed")))
    why = F.when(F.col("row").isNull(), object_.problem(F.col("parsed")))
    shown = F.to_json(
        "row", {"timeZone": "UTC", "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSX"}
    )
    found = frame.select("n", shown, why).collect()
    return [(row[1], row[2]) for row in sorted(found)]


def one(value: Any) -> str:
    return json.dumps({"x": value})


FITTING: dict[str, list[tuple[Any, str]]] = {
    "timestamp": [
        ("2024-05-01T10:00:00Z", "2024-05-01T10:00:00.000000Z"),
        ("2024-05-01 10:00:00", "2024-05-01T10:00:00.000000Z"),
        ("2024-05-01T10:00Z", "2024-05-01T10:00:00.000000Z"),
        ("2024-05-01T10:00:00.123456789+0130", "2024-05-01T08:30:00.123456Z"),
        ("2024-05-01T10:00:00-02:00", "2024-05-01T12:00:00.000000Z"),
        ("2024-05-01", "2024-05-01T00:00:00.000000Z"),
    ],
    "timestamp_ntz": [("2024-05-01T10:00:00.5", "2024-05-01T10:00:00.500")],
    "date": [
        ("2024-05-01", "2024-05-01"),
        ("2024-05-01T00:00:00.000Z", "2024-05-01"),
    ],
    "tinyint": [(127, 127), (-128, -128)],
    "double": [(1.5, 1.5), (1, 1.0), ("Infinity", "Infinity"), ("NaN", "NaN")],
    "decimal(5,2)": [(1.5, 1.50), ("1.5", 1.50), (1.005, 1.01)],
    "string": [(5, "5"), ({"a": 1}, '{"a":1}')],
    "binary": [("AfQ=", "AfQ=")],
}
UNFIT: dict[str, list[Any]] = {
    "timestamp": [
        *(TEN, TEN * 1000, 1.5, True, "10:30:00", "20240501", "5", "today", "2024", "2024-05"),
        *("2024-13-01", "", {"a": 1}, [1], "2024-05-01T10:00:00 Europe/Paris", " 2024-05-01"),
    ],
    "timestamp_ntz": [TEN, "10:30", "2024-05-01T10:00:00Z", "5"],
    "date": ["731", 731, "20240501", "5", "2024-5-1", "2024-02-30", "2024-05-01T10:00:00Z"],
    "tinyint": [128, 200, -129, 1.5, "5"],
    "smallint": [70000],
    "int": ["573", 3000000000, 1.5, True],
    "bigint": [2**63],
    "boolean": [1, "true"],
    "double": ["1.5", True],
    "decimal(5,2)": [123456, "1,5", True, "abc"],
    "binary": ["??", 5],
    "array<int>": [[1, "kmh"], "no", {"a": 1}],
    "map<string,date>": [{"a": "2024-05-01", "b": "731"}, "no"],
    "struct<y:struct<z:boolean>>": [{"y": {"z": "true"}}, {"y": 5}],
}


@pytest.mark.parametrize("in_", ["x {}", "x struct<x:array<map<string,{}>>>"])
def test_each_value_is_read_as_what_it_says(spark: SparkSession, in_: str) -> None:
    """At the top, and in a map within an array within a struct."""
    nested = "struct" in in_

    def wrapped(value: Any) -> Any:
        return {"x": [None, {"k": None, "x": value}]} if nested else value

    names = [f"c{n}" for n, _ in enumerate(FITTING)]
    schema = ", ".join(
        in_.replace("x", name, 1).format(type_) for name, type_ in zip(names, FITTING, strict=True)
    )
    cases = [
        (name, value, right)
        for name, values in zip(names, FITTING.values(), strict=True)
        for value, right in values
    ]
    found = read(spark, schema, [json.dumps({name: wrapped(value)}) for name, value, _ in cases])
    for (name, _, right), (row, why) in zip(cases, found, strict=True):
        assert why is None
        assert row is not None
        value = json.loads(row)[name]
        assert (value["x"][1]["x"] if nested else value) == right


@pytest.mark.parametrize("nested", [False, True])
def test_the_reason_names_the_column_and_the_value(spark: SparkSession, nested: bool) -> None:
    types = {f"c{n}": type_ for n, type_ in enumerate(UNFIT)}
    cases = [(name, value) for name, type_ in types.items() for value in UNFIT[type_]]
    wrap = "struct<x:array<struct<k:int,x:{}>>>" if nested else "{}"
    schema = ", ".join(f"{name} {wrap.format(type_)}" for name, type_ in types.items())
    texts = [
        json.dumps({"other": 1, name: {"x": [None, {"x": value}]} if nested else value})
        for name, value in cases
    ]
    for (name, value), (row, why) in zip(cases, read(spark, schema, texts), strict=True):
        assert row is None, (name, value)
        assert why is not None, (name, value)
        assert why.startswith(f"column {name}"), why
        while isinstance(value, (dict, list)) and value:
            value = [*value.values()][-1] if isinstance(value, dict) else value[-1]
        assert (value if isinstance(value, str) else json.dumps(value)) in why


def test_numbers_too_large_for_a_double_are_unfit(spark: SparkSession) -> None:
    texts = ['{"x": 1e400}', '{"y": [{"z": -1e39}]}', '{"x": "-INF", "y": [{"z": "NaN"}]}']
    found = read(spark, "x double, y array<struct<z:float>>", texts)
    assert [why for _, why in found] == [
        "column x is no double: too large",
        "column y[].z is no float: -1.0E39",
        None,
    ]


def test_the_reason_names_the_column_of_broken_base64(spark: SparkSession) -> None:
    """Not the first column of the object, which from_json leaves out with it."""
    texts = [
        '{"id": 1, "x": "A"}',
        '{"id": 1, "x": "AQ==", "y": [{"z": "AQIDA"}]}',
        '{"id": "a", "x": "AQ=="}',
        '{"id": 1, "x": "AQ==", "y": [{"z": "AQ=="}]}',
    ]
    found = read(spark, "id int, x binary, y array<struct<z:binary>>", texts)
    assert [why for _, why in found] == [
        "column x is no binary: A",
        'column y is no array<struct<z:binary>>: [{"z":"AQIDA"}]',
        "column id is no int: a",
        None,
    ]


def test_decimals_are_exact(spark: SparkSession) -> None:
    digits = "12345678901234567890.123456789012345678"
    texts = [f'{{"x": {digits}}}', f'{{"x": "{digits}"}}', '{"x": "1,234.5"}', '{"s": "1,5"}']
    found = read(spark, "x decimal(38,18), s string", texts)
    assert [row for row, _ in found[:2]] == [f'{{"x":{digits}}}'] * 2
    assert found[2] == (None, "column x is no decimal(38,18): 1,234.5")
    assert found[3][1] is None


def test_what_is_not_one_object_is_not_blamed_on_a_column(spark: SparkSession) -> None:
    texts = ['{"x": 1', '{"x": 1} 5', "[1]", "5", "", '{"x": 1}, "y": {}']
    assert read(spark, "x int", texts) == [(None, None)] * len(texts)


def micros(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


COUNTS: dict[str, Callable[[datetime], int]] = {
    "epoch_seconds": lambda t: round(t.timestamp()),
    "epoch_millis": lambda t: micros(t) // 1000,
    "epoch_micros": micros,
    "epoch_nanos": lambda t: micros(t) * 1000 + 999,
}


@pytest.mark.parametrize("encoding", COUNTS)
def test_a_declared_encoding_counts(spark: SparkSession, encoding: str) -> None:
    draw = random.Random(encoding)
    moments = [
        datetime(1950, 1, 1, tzinfo=UTC) + timedelta(seconds=draw.randrange(4 * 10**9))
        for _ in range(20)
    ]
    schema = "x timestamp, d date, n struct<l:array<struct<at:timestamp_ntz>>>, m map<string,date>"
    encodings = {"x": encoding, "d": "epoch_days", "n.l.at": encoding, "m": "epoch_days"}
    texts = []
    for moment in moments:
        count, days = COUNTS[encoding](moment), (moment.date() - date(1970, 1, 1)).days
        items = {"l": [{"at": str(count)}]}
        texts.append(json.dumps({"x": count, "d": days, "n": items, "m": {"k": days}}))
    for moment, (row, why) in zip(moments, read(spark, schema, texts, encodings), strict=True):
        assert why is None
        assert row is not None
        found = json.loads(row)
        assert datetime.fromisoformat(found["x"].replace("Z", "+00:00")) == moment
        assert found["d"] == found["m"]["k"] == str(moment.date())
        assert found["n"]["l"][0]["at"].startswith(f"{moment:%Y-%m-%dT%H:%M:%S}")
    unfit = ["2024-05-01T10:00:00Z", 10**30, True, "soon"]
    for value, (row, why) in zip(
        unfit, read(spark, schema, [one(value) for value in unfit], encodings), strict=True
    ):
        assert row is None
        assert why is not None
        assert why.startswith("column x is no timestamp: ")
        assert str(value).lower() in why.lower()


def test_digits_finer_than_microseconds_are_cut_off(spark: SparkSession) -> None:
    """Never rounded: the next microsecond, or the whole day, has not come yet."""
    cases: list[tuple[str, Any, str | None]] = [
        ("s", 0.9999999999, "1970-01-01T00:00:00.999999Z"),
        ("s", "0.99999999999999999999", "1970-01-01T00:00:00.999999Z"),
        ("s", "99.999999999999e-2", "1970-01-01T00:00:00.999999Z"),
        ("s", 1714557600.1234567, "2024-05-01T10:00:00.123456Z"),
        ("s", "+.5", "1970-01-01T00:00:00.500000Z"),
        ("s", "-0.0000000001", "1969-12-31T23:59:59.999999Z"),
        ("s", "1E-9999", "1970-01-01T00:00:00.000000Z"),
        ("s", "1E+9999", None),
        ("n", "999.999999999999", "1970-01-01T00:00:00.000000Z"),
        ("n", 253402300799999999999, "9999-12-31T23:59:59.999999Z"),
        ("n", 253402300800000000000, None),
        ("d", "1.0000000001", None),
        ("d", "-0.00000000001", None),
        ("d", "10.0e-1", "1970-01-02"),
    ]
    found = read(
        spark,
        "s timestamp, n timestamp, d date",
        [json.dumps({name: value}) for name, value, _ in cases],
        {"s": "epoch_seconds", "n": "epoch_nanos", "d": "epoch_days"},
    )
    times = [row and next(iter(json.loads(row).values())) for row, _ in found]
    assert times == [time for _, _, time in cases]


def test_debezium_names_what_does_not_fit(spark: SparkSession) -> None:
    values = [
        {"op": "c", "ts_ms": 1, "after": {"id": 1, "speed": 70000}},
        {"op": "c", "ts_ms": 1, "after": {"id": 2, "small": 200}},
        {"payload": {"op": "c", "ts_ms": 1, "after": {"id": 3, "many": [1, "kmh"]}}},
        {"op": "c", "ts_ms": "soon", "after": {"id": 4}},
        {"op": "c", "ts_ms": 1, "after": {"id": 5, "speed": 7, "small": 100}},
    ]
    rows = [(json.dumps(v), "t", 0, n) for n, v in enumerate(values)]
    rows.append(("\0\0\0\0\7" + json.dumps(values[-1]), "t", 0, 5))
    frame = spark.createDataFrame(rows, "value string, topic string, partition int, offset long")
    columns = "id long, speed smallint, small tinyint, many array<int>"

    def letters(framed: bool) -> dict[int, str]:
        table = dt.Table.from_records(
            frame.coalesce(1),
            key_columns="id",
            value=dt.formats.debezium(columns, framed=framed),
            malformed="dead_letter",
            name="t",
        )
        found = table.dead_letters().collect()
        return {
            json.loads(letter["row"])["offset"]: letter["_problem"].split("value: ")[1]
            for letter in found
        }

    assert letters(framed=False) == {
        0: "column after.speed is no smallint: 70000",
        1: "column after.small is no tinyint: 200",
        2: 'column payload.after.many is no array<int>: ["1","kmh"]',
        3: "column ts_ms is no bigint: soon",
        5: "not one JSON object with the fields of a change event: it is in a schema registry's "
        "framing, which framed=True passes over",
    }
    assert letters(framed=True).keys() == {0, 1, 2, 3, 4}


@pytest.mark.parametrize(
    ("encodings", "message"),
    [
        ({"no": "epoch_millis"}, "date or timestamp of the schema. Those are at, x.d"),
        ({"id": "epoch_millis"}, "names 'id', which is no date"),
        ({"x.d": "epoch_millis"}, "for 'x.d' of type date. Give 'iso', 'epoch_days'"),
        ({"at": "epoch_days"}, "for 'at' of type timestamp. Give 'iso', 'epoch_seconds'"),
        ({"at": "millis"}, "'epoch_millis'"),
    ],
)  # fmt: skip
def test_encodings_that_cannot_serve_are_refused(
    spark: SparkSession, encodings: dict[str, Any], message: str
) -> None:
    with pytest.raises(PlanError) as raised:
        dt.formats.json("id long, at timestamp, x struct<d:date>", encodings=encodings)
    assert message in str(raised.value)


def test_an_object_beside_its_schema_is_not_one_of_nulls(spark: SparkSession) -> None:
    """Kafka Connect's converter writes so by default; so may it a key."""
    wrapped = {"schema": {"type": "struct", "fields": []}, "payload": {"id": 1, "city": "Oslo"}}
    texts = [json.dumps(wrapped), '{"schema": 5, "payload": null}', '{"schema": 5}']
    rows = [(text, text, "t", 0, n) for n, text in enumerate(texts)]
    columns = "key string, value string, topic string, partition int, offset long"
    frame = spark.createDataFrame(rows, columns).coalesce(1)
    options = {"timestamp": F.timestamp_seconds(F.lit(1)), "malformed": "dead_letter"}
    table = dt.Table.from_records(
        frame, key="string", value=dt.formats.json("id long, city string"), **options
    )
    read_rows = table.plan.frame.select("_offset", "_deleted").collect()
    assert [tuple(row) for row in read_rows] == [(1, True), (2, False)]
    problem = "its fields lie in payload, beside their schema, as Kafka Connect writes them"
    (letter,) = table.dead_letters().collect()
    assert letter["_problem"].startswith(f"topic t, partition 0, offset 0: value: {problem}")
    named = dt.Table.from_records(
        frame, key_columns="schema", value=dt.formats.json("schema string"), **options
    )
    assert named.dead_letters().count() == 0
    keyed = dt.Table.from_records(
        frame, key=dt.formats.json("id long"), value=dt.formats.json("payload string"), **options
    )
    assert f"key: {problem}" in keyed.dead_letters().collect()[0]["_problem"]


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("a string, A string", "column 'A' occurs twice. Declare one of them: Spark ignores case"),
        ("id long, x array<struct<a:int, A:int>>", "column 'A' occurs twice"),
        ("id long, x array<map<int,int>>", "column 'x' with a map<int,int>, and the names in JSON"),
        ("id long, x char(3)", "column 'x' with a char(3). Declare it as string"),
    ],
)
def test_schemas_that_cannot_be_read_are_refused(
    spark: SparkSession, schema: str, message: str
) -> None:
    for format_ in (dt.formats.json, dt.formats.debezium, dt.formats.maxwell):
        with pytest.raises(PlanError) as raised:
            format_(schema)
        assert message in str(raised.value)


@pytest.mark.parametrize(
    ("keys", "texts"),
    [("string", True), ("bigint", True), ("decimal(9,2)", True), ("boolean", True)]
    + [(keys, False) for keys in ("date", "timestamp", "binary", "struct<a:int>")],
)
def test_keys_of_maps_are_texts(spark: SparkSession, keys: str, texts: bool) -> None:
    """Spark writes dates as numbers, and bytes by the name of a Java object."""
    columns = StructType.fromDDL(f"id bigint, m array<map<{keys}, int>>")
    place = FormatContext("to_topic", "value")
    if texts:
        assert dt.formats.json().encode(place, columns) is not None
    else:
        with pytest.raises(
            PlanError, match=rf"value= is JSON, .* keys of map<{keys},int> in colum"
        ):
            dt.formats.json().encode(place, columns)
