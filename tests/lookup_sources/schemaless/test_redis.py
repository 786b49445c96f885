"""Lookups in a Redis or Valkey server that runs: rows as hashes and as JSON texts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from redis_server import running

import dovetail as dt
from dovetail import testing
from dovetail.errors import ConfigurationError, DataError, PlanError

SCHEMA = pa.schema([("id", pa.int64()), ("city", pa.string()), ("size", pa.int64())])


def source(client: Any, pattern: str = "t:{id}", **options: Any) -> Any:
    path = client.connection_pool.connection_kwargs["path"]
    return dt.lookups.redis(f"unix://{path}", pattern, **{"retries": 0} | options)


def rows(source: Any, keys: pa.Table, schema: pa.Schema = SCHEMA) -> list[Any]:
    """The rows that are found, each after the position of its key."""
    with closing(source.open(schema)) as reader:
        found = reader.rows(keys.column_names, keys)
    assert found.rows.schema == schema
    return sorted(zip(found.key.tolist(), found.rows.to_pylist(), strict=True), key=lambda r: r[0])


def ids(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


def test_hashes_are_found_by_the_key_that_names_them(redis_client: Any) -> None:
    redis_client.hset("t:1", mapping={"city": "Oslo", "size": "7", "other": "x"})
    redis_client.hset("t:-2", mapping={"city": "Bærum"})
    redis_client.hset("t:4", mapping={"other": "x"})
    redis_client.hset("u:5", mapping={"city": "Rome"})
    assert rows(source(redis_client), ids(5, -2, 1, 4, 3)) == [
        (1, {"id": -2, "city": "Bærum", "size": None}),
        (2, {"id": 1, "city": "Oslo", "size": 7}),
        (3, {"id": 4, "city": None, "size": None}),
    ]
    assert rows(source(redis_client), ids()) == []
    only = pa.schema([SCHEMA.field("id")])
    assert rows(source(redis_client), ids(3, 4), only) == [(1, {"id": 4})]


def test_json_texts_are_read_as_the_declared_types(redis_client: Any) -> None:
    types = {
        "id": pa.int64(),
        "price": pa.decimal128(10, 3),
        "x": pa.float64(),
        "at": pa.timestamp("us", "UTC"),
        "born": pa.date32(),
        "yes": pa.bool_(),
        "tags": pa.list_(pa.string()),
        "city": pa.string(),
    }
    redis_client.set(
        "t:1",
        '{"price": 0.1, "x": 0.1, "at": "2024-05-01T10:00:00Z", "born": "2024-05-01",'
        ' "yes": true, "tags": ["a", null], "city": "\\u00e9", "other": {}}',
    )
    redis_client.set("t:2", '{"price": 12.5, "x": 2}')
    assert rows(source(redis_client, form="json"), ids(2, 1, 3), pa.schema(types)) == [
        (0, dict.fromkeys(types) | {"id": 2, "price": Decimal("12.500"), "x": 2.0}),
        (
            1,
            {
                "id": 1,
                "price": Decimal("0.100"),
                "x": 0.1,
                "at": datetime(2024, 5, 1, 10, tzinfo=timezone.utc),
                "born": date(2024, 5, 1),
                "yes": True,
                "tags": ["a", None],
                "city": "é",
            },
        ),
    ]


@pytest.mark.parametrize(
    ("text", "type_", "value"),
    [
        (b"-7", pa.int32(), -7),
        (b"1.5", pa.float64(), 1.5),
        (b"1.5", pa.decimal128(9, 2), Decimal("1.50")),
        (b"false", pa.bool_(), False),
        (b"2024-02-29", pa.date32(), date(2024, 2, 29)),
        (
            b"2024-05-01T10:00:00.000001Z",
            pa.timestamp("us", "UTC"),
            datetime(2024, 5, 1, 10, 0, 0, 1, tzinfo=timezone.utc),
        ),
        (b"2024-05-01 10:00:00", pa.timestamp("us"), datetime(2024, 5, 1, 10)),  # noqa: DTZ001
        (b"\xff\x00", pa.binary(), b"\xff\x00"),
        (b"", pa.string(), ""),
    ],
)
def test_the_texts_of_a_hash_are_read_by_rule(
    redis_client: Any, text: bytes, type_: pa.DataType, value: Any
) -> None:
    redis_client.hset("t:1", "v", text)
    schema = pa.schema({"v": type_, "id": pa.int64()})
    assert rows(source(redis_client), ids(1), schema) == [(0, {"v": value, "id": 1})]


@pytest.mark.parametrize(
    ("text", "type_"),
    [
        (b"1.5", pa.int64()),
        (b"300", pa.int8()),
        (b"", pa.int64()),
        (b"1.2345", pa.decimal128(9, 2)),
        (b"yes", pa.bool_()),
        (b"\xff", pa.string()),
        (b"2024-05-01 10:00:00", pa.timestamp("us", "UTC")),
        (b"[]", pa.list_(pa.string())),
    ],
)
def test_a_text_of_another_type_is_an_error(
    redis_client: Any, text: bytes, type_: pa.DataType
) -> None:
    redis_client.hset("t:1", "v", text)
    schema = pa.schema({"id": pa.int64(), "v": type_})
    with pytest.raises(DataError, match=r"redis t:\{id\}: a row does not fit .* column 'v'"):
        rows(source(redis_client), ids(1), schema)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "no JSON text"),
        (b"\xff", "no JSON text"),
        ("[1]", "no JSON object"),
        ("null", "no JSON object"),
        ('{"size": 1.0}', "column 'size'"),
        ('{"size": "1"}', "column 'size'"),
        ('{"city": 1}', "column 'city'"),
    ],
)
def test_a_json_text_that_is_no_row_is_an_error(redis_client: Any, text: Any, problem: str) -> None:
    redis_client.set("t:1", text)
    with pytest.raises(DataError, match=problem):
        rows(source(redis_client, form="json"), ids(1))


@pytest.mark.parametrize("declared", [pa.float64(), pa.float32(), pa.list_(pa.float64())])
def test_a_json_number_beyond_all_doubles_is_an_error(
    redis_client: Any, declared: pa.DataType
) -> None:
    number = "[1e308, -1e400]" if declared.num_fields else "-1e400"
    redis_client.set("t:1", f'{{"v": {number}, "other": 1e999}}')
    schema = pa.schema({"id": pa.int64(), "v": declared})
    with pytest.raises(DataError, match=r"column 'v' is declared .*, and -1E\+400 is too large"):
        rows(source(redis_client, form="json"), ids(1), schema)
    redis_client.set("t:1", '{"v": 1e308, "w": -Infinity, "other": 1e999}')
    schema = pa.schema({"id": pa.int64(), "v": pa.float64(), "w": pa.float64()})
    found = rows(source(redis_client, form="json"), ids(1), schema)
    assert found == [(0, {"id": 1, "v": 1e308, "w": -float("inf")})]


@pytest.mark.parametrize("form", ["hash", "json"])
def test_keys_of_another_form_are_an_error(redis_client: Any, form: Any) -> None:
    redis_client.rpush("t:1", "x")
    with pytest.raises(DataError, match=f"cannot be read: .*WRONGTYPE.*See .* form '{form}'"):
        rows(source(redis_client, form=form), ids(1))


def test_two_primary_keys_never_meet_in_one_key(redis_client: Any) -> None:
    pattern = "t:{a}:{b}:{n}"
    schema = pa.schema({"n": pa.int32(), "b": pa.string(), "a": pa.string(), "v": pa.string()})
    for key in ("t:x:y:z:1", "t:x:y:1", "t:::1", "t:x:%s {}:-1"):
        redis_client.hset(key, "v", key)
    keys = pa.table(
        {
            "a": ["x", "x:y", "x", "", "x"],
            "b": ["y:z", "z", "y", "", "%s {}"],
            "n": pa.array([1, 1, 1, 1, -1], pa.int32()),
        }
    )
    with closing(source(redis_client, pattern).open(schema)) as reader:
        found = reader.rows(["a", "b", "n"], keys)
    assert dict(zip(found.key.tolist(), found.rows.column("v").to_pylist(), strict=True)) == {
        2: "t:x:y:1",
        3: "t:::1",
        4: "t:x:%s {}:-1",
    }
    assert found.unfit.tolist() == [True, True, False, False, False]


def test_a_lookup_by_more_than_the_primary_key(redis_client: Any) -> None:
    redis_client.hset("t:1", mapping={"city": "Oslo", "size": "7"})
    keys = pa.table({"city": ["Rome", "Oslo", "oslo"], "id": pa.array([1, 1, 1], pa.int64())})
    assert rows(source(redis_client), keys) == [(1, {"id": 1, "city": "Oslo", "size": 7})]


def test_a_lookup_sees_one_moment_and_the_next_one_what_has_changed(redis_client: Any) -> None:
    redis_client.hset("t:1", "city", "Oslo")
    with closing(source(redis_client).open(SCHEMA)) as reader:
        assert reader.rows(["id"], ids(1)).rows.column("city").to_pylist() == ["Oslo"]
        redis_client.delete("t:1")
        assert reader.rows(["id"], ids(1)).rows.num_rows == 0
        with redis_client.monitor() as monitor:
            reader.rows(["id"], ids(1, 2))
            asked = [monitor.next_command()["command"].split()[0] for _ in range(6)]
    assert asked == ["MULTI", "EXISTS", "HMGET", "EXISTS", "HMGET", "EXEC"]


def test_keys_of_a_batch(redis_client: Any) -> None:
    pipeline = redis_client.pipeline()
    for number in range(10_000):
        pipeline.hset(f"t:{number}", "size", number)
    pipeline.execute()
    found = rows(source(redis_client), ids(*range(5_000, 15_000)))
    assert [(at, row["id"], row["size"]) for at, row in found] == [
        (at, at + 5_000, at + 5_000) for at in range(5_000)
    ]


def test_a_stream_is_answered(redis_client: Any) -> None:
    redis_client.set("u:ann", json.dumps({"city": "Oslo"}))
    users = source(redis_client, "u:{name}", form="json")
    clicks = testing.stream("clicks", key="id", schema={"id": pa.int64(), "user": pa.string()})
    columns = {"name": pa.string(), "city": pa.string()}
    driver = testing.Driver(clicks.lookup(users, columns=columns, on="user", how="left"))
    records = [{"id": 1, "user": "ann"}, {"id": 2, "user": "Ann"}, {"id": 3, "user": None}]
    assert [str(row) for row in driver.pipe(clicks, records, timestamp=1)] == [
        "<id=1: user='ann', city='Oslo' @1>",
        "<id=2: user='Ann', city=None @1>",
        "<id=3: user=None, city=None @1>",
    ]


def test_a_server_that_does_not_answer(redis_client: Any) -> None:
    gone = dt.lookups.redis("redis://:hush@127.0.0.1:1/0", "t:{id}", retries=1, timeout_s=1)
    with pytest.raises(ConfigurationError, match="no answer after 2 attempts") as caught:
        rows(gone, ids(1))
    assert "hush" not in f"{caught.value!r} {caught.value.__cause__!r} {gone!r}"
    with closing(source(redis_client, timeout_s=0.2).open(SCHEMA)) as reader:
        reader.rows(["id"], ids())
        redis_client.client_pause(400, all=True)
        with pytest.raises(ConfigurationError, match="no answer after 1 attempts: Timeout"):
            reader.rows(["id"], ids(1))


def test_a_server_that_comes_back_is_asked_again() -> None:
    import redis

    with running("--requirepass", "hush") as path:
        wrong = dt.lookups.redis(f"unix://:other@{path}", "t:{id}", retries=0)
        with pytest.raises(ConfigurationError, match=r"no answer .*: .*(invalid|AUTH|WRONGPASS)"):
            rows(wrong, ids(1))
        right = dt.lookups.redis(f"unix://:hush@{path}", "t:{id}", retries=1)
        with (
            closing(right.open(SCHEMA)) as reader,
            redis.Redis(unix_socket_path=path, password="hush") as client,
        ):
            assert reader.rows(["id"], ids(1)).rows.num_rows == 0
            client.hset("t:1", "city", "Oslo")
            client.client_kill_filter(skipme=True)
            assert reader.rows(["id"], ids(1)).rows.column("city").to_pylist() == ["Oslo"]


def test_keys_of_other_types_are_refused(redis_client: Any) -> None:
    schema = pa.schema({"id": pa.float64(), "city": pa.string()})
    with pytest.raises(DataError, match="column 'id' of type double cannot be looked up"):
        rows(source(redis_client), pa.table({"id": [1.5]}), schema)


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("t", "does not name columns"),
        ("t:{}", "does not name columns"),
        ("t:{id!r}", "does not name columns"),
        ("t:{id:x}", "does not name columns"),
        ("t:{id}:{id}", "does not name columns"),
        ("t:{id", "cannot be read"),
        ("{a}{b}", "end of column 'a' cannot be told"),
        ("{a}-{b}", "end of column 'a' cannot be told"),
        ("{a}1:{b}", "end of column 'a' cannot be told"),
    ],
)
def test_a_pattern_names_columns_and_their_ends(pattern: str, problem: str) -> None:
    with pytest.raises(PlanError, match=problem):
        dt.lookups.redis("redis://cache", pattern)


def test_what_a_source_says() -> None:
    found: Sequence[str] = dt.lookups.redis("redis://cache", "{{a}}{b}:{c}").key
    assert found == ("b", "c")
    with pytest.raises(PlanError, match="url= is no URL of Redis"):
        dt.lookups.redis("cache:6379", "t:{id}")
