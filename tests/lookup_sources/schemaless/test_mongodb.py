"""Lookups over MongoDB's protocol, in mongo-java-server, which is not MongoDB."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import dovetail as dt
from dovetail import testing
from dovetail.errors import ConfigurationError, DataError, PlanError
from dovetail.lookup_sources.schemaless import mongodb as lookup_mongodb

bson = pytest.importorskip("bson", reason="pymongo is missing: pip install pymongo")
SCHEMA = pa.schema([("_id", pa.int64()), ("customer", pa.string()), ("amount", pa.int64())])
ODD = uuid.UUID("0b1c2d3e-0000-4000-8000-00000000000a")
OBJECT = "65f000000000000000000abc"
UTC = pa.timestamp("us", "UTC")


@pytest.fixture
def orders(mongodb_database: Any) -> Any:
    mongodb_database.orders.insert_many(
        [
            {"_id": 1, "customer": "ann", "amount": 5},
            {"_id": 2, "customer": "bob", "amount": 6, "other": "x"},
            {"_id": 3, "customer": "ann", "amount": 7},
            {"_id": 4, "customer": None, "amount": 8},
            {"_id": 5, "customer": "Ann"},
            {"_id": bson.Int64(1 << 40), "customer": "eve", "amount": bson.Int64(-1)},
        ]
    )
    return mongodb_database.orders


def source(collection: Any, **options: Any) -> Any:
    host, port = collection.database.client.address
    options = {"key": "_id", "indexes": [dt.lookups.index("customer")], "retries": 0} | options
    return dt.lookups.mongodb(f"mongodb://{host}:{port}", collection.full_name, **options)


def rows(source: Any, keys: pa.Table, schema: pa.Schema = SCHEMA) -> list[Any]:
    """The rows that are found, each after the position of its key, in the order of their ids."""
    with closing(source.open(schema)) as reader:
        found = reader.rows(keys.column_names, keys)
    assert found.rows.schema == schema
    pairs = zip(found.key.tolist(), found.rows.to_pylist(), strict=True)
    return sorted(pairs, key=lambda pair: (pair[0], pair[1]["_id"]))


def ids(source: Any, *customers: str) -> list[Any]:
    """The position of the key and the id of each row that is found."""
    found = rows(source, pa.table({"customer": pa.array(customers, pa.string())}))
    return [(at, row["_id"]) for at, row in found]


def test_documents_are_found_by_their_fields_to_the_letter(orders: Any) -> None:
    assert ids(source(orders), "bob", "ann", "ANN", "$ann", "Ann", "") == [
        *((0, 2), (1, 1), (1, 3), (4, 5))
    ]
    assert ids(source(orders)) == []
    keys = pa.table({"_id": pa.array([5, 1 << 40, 9], pa.int64())})
    assert rows(source(orders), keys) == [
        (0, {"_id": 5, "customer": "Ann", "amount": None}),
        (1, {"_id": 1 << 40, "customer": "eve", "amount": -1}),
    ]
    without_id = pa.schema([SCHEMA.field("amount"), SCHEMA.field("customer")])
    with closing(source(orders, key="customer").open(without_id)) as reader:
        found = reader.rows(["customer"], pa.table({"customer": ["bob"]}))
    assert found.rows.to_pylist() == [{"amount": 6, "customer": "bob"}]


@pytest.mark.parametrize("bound", [1, 2, 1000])
def test_keys_of_several_fields_and_many_queries(
    orders: Any, monkeypatch: pytest.MonkeyPatch, bound: int
) -> None:
    monkeypatch.setattr(lookup_mongodb, "_KEYS_MAX", bound)
    monkeypatch.setattr(lookup_mongodb, "_PAIRS_MAX", bound)
    keys = pa.table({"customer": ["ann", "ann", "bob", "bob"], "amount": [5, 6, 6, 5]})
    found = rows(source(orders, indexes=[dt.lookups.index("customer", "amount")]), keys)
    assert [(at, row["_id"]) for at, row in found] == [(0, 1), (2, 2)]
    assert ids(source(orders), "ann", "nobody", "bob") == [(0, 1), (0, 3), (2, 2)]


@pytest.mark.parametrize("bound", [1, 2])
def test_a_document_comes_once_though_several_queries_find_it(
    orders: Any, monkeypatch: pytest.MonkeyPatch, bound: int
) -> None:
    """As in a collection whose collation ignores case, which the test's server does not have."""
    monkeypatch.setattr(lookup_mongodb, "_KEYS_MAX", bound)

    def loosely(by: Sequence[str], keys: pa.Table) -> dict[str, Any]:
        texts = keys.column(0).to_pylist()
        return {by[0]: {"$in": [way(text) for text in texts for way in (str.lower, str.title)]}}

    monkeypatch.setattr(lookup_mongodb, "_key_condition", loosely)
    assert ids(source(orders), "ANN", "ann", "Ann", "bob") == [(1, 1), (1, 3), (2, 5), (3, 2)]


def test_long_keys_are_sent_in_several_queries(
    orders: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup_mongodb, "_BYTES_MAX", 100)
    long = [f"{number:0>90}" for number in range(5)]
    orders.insert_many([{"_id": 100 + at, "customer": text} for at, text in enumerate(long)])
    assert ids(source(orders), *long) == [(at, 100 + at) for at in range(5)]


@pytest.mark.parametrize(
    ("where", "found"),
    [
        ({"amount": [5, 6]}, [(0, 1), (1, 2)]),
        ({"amount": None}, [(2, 5)]),
        ({"amount": [None, 7]}, [(0, 3), (2, 5)]),
        ({"other": "x"}, [(1, 2)]),
        ({"customer": "bob", "amount": 6}, [(1, 2)]),
        ({"tags": "a"}, []),
    ],
)
def test_constants_restrict_the_table(orders: Any, where: Any, found: Any) -> None:
    orders.update_one({"_id": 1}, {"$set": {"tags": ["a"]}})
    assert ids(source(orders, where=where), "ann", "bob", "Ann") == found


@pytest.mark.parametrize(
    ("stored", "declared", "key"),
    [
        ("é", pa.string(), "é"),
        (7, pa.int32(), 7),
        (bson.Int64(1 << 62), pa.int64(), 1 << 62),
        (bson.Decimal128("1.50"), pa.decimal128(9, 3), Decimal("1.500")),
        (7, pa.decimal128(38, 0), Decimal(7)),
        (True, pa.bool_(), True),
        (b"\x00a", pa.binary(), b"\x00a"),
        (datetime(2024, 2, 29), pa.date32(), date(2024, 2, 29)),  # noqa: DTZ001
        (
            datetime(2024, 5, 1, 10, 0, 0, 1000),  # noqa: DTZ001
            UTC,
            datetime(2024, 5, 1, 10, 0, 0, 1000, tzinfo=timezone.utc),
        ),
        (
            datetime(2024, 5, 1, 10),  # noqa: DTZ001
            pa.timestamp("us"),
            datetime(2024, 5, 1, 10),  # noqa: DTZ001
        ),
        (bson.ObjectId(OBJECT), pa.string(), OBJECT),
        (OBJECT, pa.string(), OBJECT),
        (bson.Binary.from_uuid(ODD), pa.string(), str(ODD)),
        (str(ODD), pa.string(), str(ODD)),
    ],
)
def test_a_value_is_found_by_its_key_and_read_as_declared(
    mongodb_database: Any, stored: Any, declared: pa.DataType, key: Any
) -> None:
    mongodb_database.t.insert_many([{"_id": 1, "k": stored, "n": 2}, {"_id": 2}])
    schema = pa.schema({"k": declared, "_id": pa.int64()})
    of_t = source(mongodb_database.t, indexes=[dt.lookups.index("k"), dt.lookups.index("k", "n")])
    keys = pa.table({"k": pa.array([key], declared)})
    assert rows(of_t, keys, schema) == [(0, {"k": key, "_id": 1})]
    both = keys.append_column("n", pa.array([2], pa.int64()))
    wide = schema.append(pa.field("n", pa.int64()))
    assert rows(of_t, both, wide) == [(0, {"k": key, "_id": 1, "n": 2})]


def test_nested_values_and_doubles_are_read(mongodb_database: Any) -> None:
    day = datetime(2024, 2, 29)  # noqa: DTZ001
    nested = {"o": bson.ObjectId(OBJECT), "l": [bson.Decimal128("0.1")], "days": [{"on": day}]}
    decimals = [bson.Decimal128("0.1"), 2]
    mongodb_database.t.insert_many(
        {"_id": at, "n": nested, "x": 0.1, "y": 1, "d": decimals[at]} for at in range(2)
    )
    types: Mapping[str, pa.DataType] = {
        "_id": pa.int64(),
        "n": pa.struct(
            {
                "o": pa.string(),
                "l": pa.list_(pa.decimal128(3, 2)),
                "days": pa.list_(pa.struct({"on": pa.date32()})),
            }
        ),
        "x": pa.float64(),
        "y": pa.float64(),
        "d": pa.decimal128(3, 2),
    }
    keys = pa.table({"_id": [0, 1]})
    days = [{"on": date(2024, 2, 29)}]
    row = {"n": {"o": OBJECT, "l": [Decimal("0.10")], "days": days}, "x": 0.1, "y": 1.0}
    assert rows(source(mongodb_database.t), keys, pa.schema(types)) == [
        (0, {"_id": 0} | row | {"d": Decimal("0.10")}),
        (1, {"_id": 1} | row | {"d": Decimal("2.00")}),
    ]


@pytest.mark.parametrize(
    ("stored", "declared"),
    [
        (2.0, pa.int64()),
        ("1", pa.int64()),
        (1, pa.string()),
        (["a"], pa.string()),
        (300, pa.int8()),
        (bson.Decimal128("1.234"), pa.decimal128(9, 2)),
        (bson.Decimal128("NaN"), pa.decimal128(9, 2)),
        (datetime(2024, 5, 1, 10), pa.date32()),  # noqa: DTZ001
        (bson.Regex("a"), pa.string()),
        (1, pa.bool_()),
    ],
)
def test_a_value_of_another_type_is_an_error(
    mongodb_database: Any, stored: Any, declared: pa.DataType
) -> None:
    mongodb_database.t.insert_one({"_id": 1, "v": stored})
    schema = pa.schema({"_id": pa.int64(), "v": declared})
    with pytest.raises(DataError, match=r"mongodb .*\.t: a row does not fit .* column 'v'"):
        rows(source(mongodb_database.t), pa.table({"_id": [1]}), schema)


@pytest.mark.parametrize(
    ("declared", "keys", "unfit"),
    [
        (
            UTC,
            [datetime(2024, 5, 1, 10, 0, 0, us, timezone.utc) for us in (1000, 1)],
            [False, True],
        ),
        (pa.decimal128(38, 0), [Decimal(10**37), Decimal(10**37 + 1)], [False, True]),
        (pa.int64(), [1 << 62], [False]),
    ],
)
def test_keys_that_no_field_has_are_not_asked_for_and_counted(
    mongodb_database: Any, declared: pa.DataType, keys: Sequence[Any], unfit: Sequence[bool]
) -> None:
    mongodb_database.t.insert_one({"_id": 1})
    schema = pa.schema({"_id": pa.int64(), "k": declared})
    with closing(source(mongodb_database.t).open(schema)) as reader:
        found = reader.rows(["k"], pa.table({"k": pa.array(keys, declared)}))
    assert (found.rows.num_rows, found.unfit.tolist()) == (0, unfit)


def test_dates_beyond_the_calendar_are_not_asked_for(mongodb_database: Any) -> None:
    mongodb_database.t.insert_one({"_id": 1})
    keys = pa.table({"k": pa.array([3_000_000, 0], pa.int32()).cast(pa.date32())})
    with closing(source(mongodb_database.t, key="k").open(pa.schema({"k": pa.date32()}))) as reader:
        assert reader.rows(["k"], keys).unfit.tolist() == [True, False]


def test_two_documents_of_one_key_are_an_error(mongodb_database: Any) -> None:
    mongodb_database.t.insert_many([{"k": 1}, {"k": 1}, {"k": 2}])
    schema = pa.schema({"k": pa.int64()})
    of_t = source(mongodb_database.t, key="k")
    with pytest.raises(ConfigurationError, match="two documents have one key"):
        rows(of_t, pa.table({"k": [1]}), schema)
    with closing(of_t.open(schema)) as reader:
        assert reader.rows(["k"], pa.table({"k": [2]})).rows.to_pylist() == [{"k": 2}]


def test_a_key_that_is_missing_and_a_collection_that_does_not_exist(mongodb_database: Any) -> None:
    mongodb_database.t.insert_one({"k": 1})
    schema = pa.schema({"k": pa.int64(), "customer": pa.string()})
    with pytest.raises(DataError, match="key column 'customer' is null"):
        rows(source(mongodb_database.t, key="customer"), pa.table({"k": [1]}), schema)
    with pytest.raises(DataError, match="there is no collection 'gone'"):
        ids(source(mongodb_database.gone), "ann")
    with closing(source(mongodb_database.gone).open(SCHEMA)) as reader:
        for names in ([], ["ann"], ["ann"]):
            keys = pa.table({"customer": pa.array(names, pa.string())})
            with pytest.raises(DataError, match="there is no collection 'gone'"):
                reader.rows(["customer"], keys)
        mongodb_database.gone.insert_one({"_id": 1, "customer": "ann"})
        assert len(reader.rows(["customer"], keys).rows) == 1


def test_each_lookup_sees_what_was_written_last(orders: Any) -> None:
    with closing(source(orders).open(SCHEMA)) as reader:
        keys = pa.table({"customer": ["ann"]})
        assert sorted(reader.rows(["customer"], keys).rows["_id"].to_pylist()) == [1, 3]
        orders.update_one({"_id": 1}, {"$set": {"customer": "bob"}})
        assert reader.rows(["customer"], keys).rows["_id"].to_pylist() == [3]


def test_a_server_that_does_not_answer_shows_no_secrets() -> None:
    gone = dt.lookups.mongodb(
        "mongodb://app:hush@127.0.0.1:1/", "shop.orders", key="_id", retries=1, timeout_s=0.2
    )
    with pytest.raises(ConfigurationError, match="no answer after 2 attempts") as caught:
        ids(gone, "ann")
    assert "hush" not in f"{caught.value!r} {caught.value.__cause__!r} {gone!r}"


def test_a_server_that_was_restarted_is_asked_again(mongodb_server: Any, orders: Any) -> None:
    import pymongo

    keys = pa.table({"customer": ["bob"]})
    with closing(source(orders, retries=3).open(SCHEMA)) as reader:
        assert reader.rows(["customer"], keys).rows["_id"].to_pylist() == [2]
        mongodb_server.restart()
        with pymongo.MongoClient(mongodb_server.uri) as client:
            client[orders.database.name].orders.insert_one({"_id": 7, "customer": "bob"})
        assert reader.rows(["customer"], keys).rows["_id"].to_pylist() == [7]


def test_a_stream_is_answered_in_the_order_of_the_primary_key(orders: Any) -> None:
    clicks = testing.stream("clicks", key="id", schema={"id": pa.int64(), "user": pa.string()})
    columns = dict(zip(SCHEMA.names, SCHEMA.types, strict=True))
    found = clicks.lookup(source(orders), columns=columns, on={"user": "customer"})
    driver = testing.Driver(found)
    records = [{"id": 1, "user": "ann"}, {"id": 2, "user": "nobody"}]
    assert [str(row) for row in driver.pipe(clicks, records, timestamp=1)] == [
        "<id=1: user='ann', _id=1, amount=5 @1>",
        "<id=1: user='ann', _id=3, amount=7 @1>",
    ]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"uri": "localhost"}, "no connection string"),
        ({"collection": "orders"}, "names no database"),
        ({"collection": "shop."}, "names no database"),
        ({"key": "a.b"}, "column 'a.b' is no field"),
        ({"key": ["a", "$b"]}, "column '\\$b' is no field"),
        ({"indexes": [dt.lookups.index("a.b")]}, "column 'a.b' is no field"),
        ({"where": {"a.b": 1}}, "column 'a.b' is no field"),
        ({"key": []}, "no key column"),
    ],
)
def test_a_source_that_cannot_be_is_refused(arguments: Any, problem: str) -> None:
    fine = {"uri": "mongodb://db", "collection": "shop.orders", "key": "_id"}
    with pytest.raises(PlanError, match=problem):
        dt.lookups.mongodb(**fine | arguments)
    with pytest.raises(PlanError, match=r"column 'a\.b' is no field"):
        dt.lookups.mongodb(**fine).open(pa.schema({"a.b": pa.int64()}))
