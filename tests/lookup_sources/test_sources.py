"""Lookups in SQLite files and Delta tables; conversions; retries; the cache's own rules."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from datetime import date, datetime, timezone
from decimal import Decimal
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import delta_rows
import iceberg_tables
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dovetail as dt
from dovetail.iceberg.changed_rows import RowReader
from dovetail.lookup_sources import sqlite as lookup_sqlite
from dovetail.lookup_sources.conversion import (
    cast_table,
    rows_as_table,
    texts_as_table,
    typed_constants,
)
from dovetail.lookup_sources.retry import call_with_retries
from dovetail.lookup_sources.source import index_for
from dovetail.operators.joins.lookup_cache import CacheFile, SideCache
from dovetail.plan.types.arrow import spark_schema

SCHEMA = pa.schema([("customer", pa.string()), ("id", pa.int64()), ("amount", pa.int64())])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "store.db"
    with closing(sqlite3.connect(path)) as store:
        store.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, customer TEXT, amount INTEGER)")
        store.execute("CREATE INDEX by_customer ON orders (customer)")
        store.executemany(
            "INSERT INTO orders VALUES (?, ?, ?)",
            [(1, "ann", 5), (2, "bob", 6), (3, "ann", 7), (4, None, 8)],
        )
        store.commit()
    return path


def orders(path: Path, **options: Any) -> Any:
    options = {"key": "id", "indexes": [dt.lookups.index("customer")], "retries": 1} | options
    return dt.lookups.sqlite(path, "orders", **options)


def ids(reader: Any, *names: str) -> list[int]:
    found = reader.rows(["customer"], pa.table({"customer": list(names)})).rows
    return sorted(found.column("id").to_pylist())


def test_sqlite_finds_all_rows_of_a_batch_of_keys(path: Path) -> None:
    reader = orders(path).open(SCHEMA)
    assert ids(reader, "ann", "eve", "bob") == [1, 2, 3]
    assert reader.rows(["customer"], pa.table({"customer": ["bob"]})).rows.to_pylist() == [
        {"customer": "bob", "id": 2, "amount": 6}
    ]


def test_sqlite_takes_more_keys_than_parameters_and_uses_the_index(path: Path) -> None:
    with closing(sqlite3.connect(path)) as store:
        store.executemany(
            "INSERT INTO orders VALUES (?, ?, 1)", ((n, f"c{n}") for n in range(10, 70_000))
        )
        store.commit()
    reader = orders(path).open(SCHEMA)
    assert len(ids(reader, *(f"c{n}" for n in range(69_000)))) == 68_990
    steps = reader._connect().execute(
        "EXPLAIN QUERY PLAN " + reader._statement(["customer"], 2), ["a", "b"]
    )
    assert any("USING INDEX by_customer" in row[3] for row in steps)


def test_sqlite_restricts_by_constants(path: Path) -> None:
    assert ids(orders(path, where={"amount": [5, 6]}).open(SCHEMA), "ann", "bob") == [1, 2]
    assert ids(orders(path, where={"amount": None}).open(SCHEMA), "ann") == []
    assert ids(orders(path, where={"amount": [None, 7]}).open(SCHEMA), "ann") == [3]


def test_sqlite_sees_what_was_committed_last(path: Path) -> None:
    reader = orders(path).open(SCHEMA)
    assert ids(reader, "ann") == [1, 3]
    with closing(sqlite3.connect(path)) as store:
        store.execute("DELETE FROM orders WHERE id = 1")
        store.commit()
    assert ids(reader, "ann") == [3]


def test_the_queries_of_a_sqlite_lookup_see_one_moment(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup_sqlite, "_PARAMETERS_MAX", 1)
    reader = orders(path).open(SCHEMA)
    query = reader._query_chunk
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("PRAGMA journal_mode = WAL")

        def move(*given: Any) -> Any:
            found = query(*given)
            writer.execute("UPDATE orders SET customer = 'bob' WHERE customer = 'ann'")
            return found

        monkeypatch.setattr(reader, "_query_chunk", move)
        assert ids(reader, "ann", "bob") == [1, 2, 3]


def test_a_sqlite_file_that_is_replaced_is_read_anew(path: Path) -> None:
    reader = orders(path).open(SCHEMA)
    assert ids(reader, "ann") == [1, 3]
    other = path.with_name("other.db")
    other.write_bytes(path.read_bytes())
    with closing(sqlite3.connect(other)) as store:
        store.execute("DELETE FROM orders WHERE id = 3")
        store.commit()
    other.replace(path)
    assert ids(reader, "ann") == [1]


def test_sqlite_waits_for_a_writer(path: Path) -> None:
    reader = orders(path, timeout_s=5.0).open(SCHEMA)
    writer = sqlite3.connect(path, check_same_thread=False)
    writer.execute("BEGIN EXCLUSIVE")
    writer.execute("UPDATE orders SET customer = 'bob' WHERE id = 1")
    timer = threading.Timer(0.5, writer.commit)
    timer.start()
    assert ids(reader, "bob") == [1, 2]
    timer.join()
    writer.close()


def test_sqlite_stops_a_slow_query(path: Path) -> None:
    with closing(sqlite3.connect(path)) as store:
        endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT * FROM n"
        store.execute(
            "CREATE VIEW late AS "
            f"SELECT i AS id, 'x' || i AS customer, 1 AS amount FROM ({endless})"
        )
        store.commit()
    reader = dt.lookups.sqlite(path, "late", key="id", timeout_s=0.2, retries=1).open(SCHEMA)
    started = time.monotonic()
    with pytest.raises(
        dt.errors.ConfigurationError, match="sqlite late: no answer after 2 attempts: inter"
    ):
        ids(reader, "ann")
    assert time.monotonic() - started < 5


def test_a_sqlite_file_that_is_missing_is_an_error_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(
        dt.errors.ConfigurationError, match=r"no answer after 2 attempts: unable to open"
    ):
        ids(orders(tmp_path / "no.db").open(SCHEMA), "ann")
    assert not (tmp_path / "no.db").exists()


@pytest.mark.parametrize("names", [["ann"], []])
def test_a_file_that_is_no_sqlite_database_is_an_error(tmp_path: Path, names: list[str]) -> None:
    """Also without keys, as a query asks when it starts."""
    keys = pa.table({"customer": pa.array(names, pa.string())})
    (tmp_path / "text.db").write_text("no database " * 100)
    with pytest.raises(
        dt.errors.ConfigurationError, match="sqlite orders: no answer after 2 attempts: file is not"
    ):
        orders(tmp_path / "text.db").open(SCHEMA).rows(["customer"], keys)
    (tmp_path / "empty.db").touch()
    with pytest.raises(dt.errors.DataError, match=r"sqlite orders: .* no such table: orders"):
        orders(tmp_path / "empty.db").open(SCHEMA).rows(["customer"], keys)


def test_sqlite_finds_nothing_without_keys(path: Path) -> None:
    reader = orders(path, where={"amount": 5}).open(SCHEMA)
    keys = pa.table({"customer": pa.array([], pa.string()), "id": pa.array([], pa.int64())})
    assert len(reader.rows(["customer", "id"], keys).rows) == 0


@pytest.mark.parametrize(
    "change",
    ["ALTER TABLE orders DROP COLUMN amount", "ALTER TABLE orders RENAME TO sold"],
)
def test_a_sqlite_table_that_changes_its_columns_is_an_error(path: Path, change: str) -> None:
    reader = orders(path).open(SCHEMA)
    ids(reader, "ann")
    with closing(sqlite3.connect(path)) as store:
        store.execute(change)
        store.commit()
    with pytest.raises(
        dt.errors.DataError, match=r"sqlite orders: its columns are not those of the table"
    ):
        ids(reader, "ann")


def test_sqlite_does_not_lookup_by_times(path: Path) -> None:
    reader = orders(path).open(SCHEMA)
    with pytest.raises(
        dt.errors.DataError, match=r"column 'at' of type date32.* cannot be looked up"
    ):
        reader.rows(["at"], pa.table({"at": [date(2024, 1, 1)]}))


def test_values_are_read_as_the_declared_types() -> None:
    schema = pa.schema(
        [
            ("t", pa.timestamp("us", "UTC")),
            ("d", pa.date32()),
            ("n", pa.decimal128(6, 2)),
            ("b", pa.bool_()),
            ("f", pa.float64()),
        ]
    )
    rows = [("2024-05-01T10:00:00Z", "2024-05-01", "1.50", 1, Decimal("2.5")), (None,) * 5]
    assert rows_as_table("s", rows, schema, (), typeless=True).to_pylist()[0] == {
        "t": datetime(2024, 5, 1, 10, tzinfo=timezone.utc),
        "d": date(2024, 5, 1),
        "n": Decimal("1.50"),
        "b": True,
        "f": 2.5,
    }


def test_whole_numbers_beside_texts_keep_all_digits() -> None:
    schema = pa.schema([("n", pa.decimal128(20, 1))])
    rows = [(2**53 + 1,), ("1.5",), (Decimal("2.5"),), (None,)]
    numbers = [Decimal(2**53 + 1), Decimal("1.5"), Decimal("2.5"), None]
    assert rows_as_table("s", rows, schema, (), typeless=True)["n"].to_pylist() == numbers


@pytest.mark.parametrize("text", [b"0x10", b"0XFF"])
def test_hexadecimal_digits_are_no_whole_number(text: bytes) -> None:
    schema = pa.schema([("x", pa.int8())])
    assert texts_as_table("s", [[b"-7", None]], schema)["x"].to_pylist() == [-7, None]
    with pytest.raises(dt.errors.DataError, match="column 'x' is declared int8"):
        texts_as_table("s", [[b"-7", None, text]], schema)


@pytest.mark.parametrize(("bits", "text"), [(32, b"-1e39"), (64, b"1e400")])
def test_a_number_that_is_too_large_is_not_infinity(bits: int, text: bytes) -> None:
    schema = pa.schema([("x", {32: pa.float32(), 64: pa.float64()}[bits])])
    infinite = [float("inf"), float("-inf"), None, 1.5]
    texts = [b"inf", b"-Infinity", None, b"1.5"]
    assert texts_as_table("s", [texts], schema)["x"].to_pylist() == infinite
    assert rows_as_table("s", [(x,) for x in infinite], schema, ())["x"].to_pylist() == infinite
    with pytest.raises(dt.errors.DataError, match=r"'x' is declared .* a number is too large for"):
        texts_as_table("s", [[None, text]], schema)


def test_decimals_may_be_texts_and_numbers_in_one_column() -> None:
    """As SQLite has them in a column without a type, and JSON in Redis."""
    schema = pa.schema([("x", pa.decimal128(9, 2))])
    rows = [("1.50",), (2,), (None,), (Decimal("1E+2"),), (Decimal("-0.25"),)]
    read = rows_as_table("s", rows, schema, (), typeless=True)["x"].to_pylist()
    assert read == [Decimal("1.50"), 2, None, 100, Decimal("-0.25")]
    for unfit, typeless in ((True, True), (2.5, True), (2, False), ("1.505", True)):
        with pytest.raises(dt.errors.DataError, match="'x' is declared decimal"):
            rows_as_table("s", [*rows[:1], (unfit,)], schema, (), typeless=typeless)


@pytest.mark.parametrize("bits", [32, 64])
def test_a_decimal_becomes_the_nearest_float(bits: int) -> None:
    type_ = {32: pa.float32(), 64: pa.float64()}[bits]
    texts = ("0.3", "-0.7", "19.99", "1E+300" if bits == 64 else "1E+30", "NaN", "123456789.123")
    rows = [*((Decimal(text),) for text in texts), (7,), (None,)]
    expected = pa.array([*map(float, texts), 7.0, None], pa.float64()).cast(type_)
    assert repr(rows_as_table("s", rows, pa.schema([("x", type_)]), ())["x"].to_pylist()) == repr(
        expected.to_pylist()
    )
    nested = pa.list_(pa.struct([("y", type_), ("z", pa.string())]))
    within = [([{"y": Decimal("0.3"), "z": "a"}, None, {"y": None, "z": None}],), (None,)]
    third = pa.scalar(0.3, pa.float64()).cast(type_).as_py()
    read = rows_as_table("s", within, pa.schema([("x", nested)]), ())["x"].to_pylist()
    assert read == [[{"y": third, "z": "a"}, None, {"y": None, "z": None}], None]


def test_a_struct_goes_by_the_names_of_its_fields() -> None:
    place = pa.struct([("city", pa.string()), ("zip", pa.string())])
    schema = pa.schema([("places", pa.list_(place))])
    stored = [{"zip": "0150", "city": "Oslo"}, {"city": "Rome"}, {}, None]
    for row in ([stored], [stored[1:2]], [stored[2:3]]):
        read = rows_as_table("s", [row], schema, ())["places"].to_pylist()
        fields = [p if p is None else {"city": p.get("city"), "zip": p.get("zip")} for p in row[0]]
        assert read == [fields]
    other = [[{"city": "Oslo", "post code": "0150"}]]
    with pytest.raises(dt.errors.DataError, match=r"'places' is declared list<.*post code"):
        rows_as_table("s", [other], schema, ())
    with pytest.raises(dt.errors.DataError, match="'places' is declared list<"):
        rows_as_table("s", [[stored[1:2]]], schema, (), counted=True)
    for names in (["city", "post code"], ["CITY", "ZIP"]):
        table = pa.table([[[dict.fromkeys(names, "Oslo")]]], ["places"])
        with pytest.raises(dt.errors.DataError, match="'places' is declared list<"):
            cast_table("s", table, schema)


@pytest.mark.parametrize(
    ("value", "type_"),
    [
        ("many", pa.int64()),
        ("12", pa.int64()),
        (2**40, pa.int32()),
        (1.5, pa.int64()),
        (7, pa.string()),
        (Decimal("1E+400"), pa.float64()),
        (1e39, pa.float32()),
    ],
)
def test_a_value_of_another_type_is_an_error(value: Any, type_: pa.DataType) -> None:
    with pytest.raises(
        dt.errors.DataError, match=r"s: a row does not fit .* column 'x' is declared"
    ):
        rows_as_table("s", [(value,)], pa.schema([("x", type_)]), ())


def test_delta_files_find_the_rows_of_the_latest_version(tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    place = tmp_path / "orders"
    rows = pa.table({"id": [1, 2, 3], "customer": ["ann", "bob", "ann"], "amount": [5, 6, 7]})
    deltalake.write_deltalake(str(place), rows)
    source = dt.lookups.delta_files(
        place, key="id", indexes=[dt.lookups.index("customer")], retries=1
    )
    reader = source.open(SCHEMA)
    assert ids(reader, "ann", "eve") == [1, 3]
    assert len(reader.rows(["id"], pa.table({"id": pa.array([], pa.int64())})).rows) == 0
    deltalake.DeltaTable(str(place)).delete("id = 1")
    more = pa.table({"id": [4], "customer": ["ann"], "amount": [8]})
    deltalake.write_deltalake(str(place), more, mode="append")
    assert ids(reader, "ann") == [3, 4]
    restricted = dt.lookups.delta_files(place, key="id", where={"amount": [8, 6]})
    assert ids(restricted.open(SCHEMA), "ann", "bob") == [2, 4]
    wrong = pa.schema([("customer", pa.string()), ("id", pa.int64()), ("price", pa.int64())])
    with pytest.raises(
        dt.errors.DataError, match=r"delta table orders: its columns are not .* 'price'"
    ):
        ids(source.open(wrong), "ann")
    with pytest.raises(
        dt.errors.ConfigurationError, match="delta table none: no answer after 1 attempts"
    ):
        ids(dt.lookups.delta_files(tmp_path / "none", key="id", retries=0).open(SCHEMA), "ann")


def test_delta_files_have_the_times_of_all_years(tmp_path: Path) -> None:
    """Spark writes times as nanoseconds and days, of which nanoseconds alone lack most years."""
    pytest.importorskip("deltalake")
    times = [datetime(year, 1, 2, 3, 4, 5, 6, timezone.utc) for year in (1, 1677, 2024, 9999)]
    schema = pa.schema([*SCHEMA.remove(2), pa.field("at", pa.timestamp("us", "UTC"))])
    delta_rows.create(tmp_path, spark_schema(schema))
    rows = pa.table([["ann"] * 4, [*range(4)], times], schema=schema)
    file = tmp_path / "spark.parquet"
    pq.write_table(rows, file, use_deprecated_int96_timestamps=True, store_schema=False)
    added = {"size": file.stat().st_size, "partitionValues": {}}
    added |= {"path": file.name, "modificationTime": 0, "dataChange": True}
    (tmp_path / "_delta_log" / f"{1:020}.json").write_text(json.dumps({"add": added}))
    reader = dt.lookups.delta_files(tmp_path, key="id", retries=0).open(schema)
    found = reader.rows(["id"], pa.table({"id": [3, 1, 0, 2]}))
    assert sorted(found.rows["at"].to_pylist()) == times


WRONG = [
    ({"customer": 5}, "where= has [5] for column 'customer', which is"),
    ({"amount": "five"}, "where= has ['five'] for column 'amount', which is int64 there"),
    ({"amount": True}, "where= has [True] for column 'amount', which is int64 there"),
    ({"amount": [None, 1.5]}, "where= has [None, 1.5] for column 'amount', which is int64 there"),
    ({"region": "EU"}, "there is no column 'region'"),
]


def refused_constants(declare: Callable[[Any], Any], where: Any, problem: str) -> None:
    """With and without keys, so at the start of a query, too."""
    for names in (["ann"], []):
        keys = pa.table({"customer": pa.array(names, pa.string())})
        with pytest.raises(dt.errors.DataError, match=re.escape(problem)):
            declare(where).open(SCHEMA).rows(["customer"], keys)
    with pytest.raises(dt.errors.PlanError, match="where= has constants for 'amount' that no col"):
        declare({"amount": [1, "Oslo"]})
    with pytest.raises(dt.errors.PlanError, match="that no column has together"):
        declare({"amount": 2**70})


@pytest.mark.parametrize(("where", "problem"), WRONG)
def test_delta_files_refuse_constants_of_another_type(
    tmp_path: Path, where: Any, problem: str
) -> None:
    deltalake = pytest.importorskip("deltalake")
    rows = pa.table({"id": [1], "customer": ["ann"], "amount": [5]})
    deltalake.write_deltalake(tmp_path, rows)

    def declare(where: Any) -> Any:
        return dt.lookups.delta_files(tmp_path, key="id", where=where, retries=0)

    assert ids(declare({"amount": [5.0, None], "customer": "ann"}).open(SCHEMA), "ann") == [1]
    refused_constants(declare, where, problem)


def test_delta_files_that_are_gone_are_an_error(tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    deltalake.write_deltalake(tmp_path, pa.table({"id": [1], "customer": ["ann"], "amount": [5]}))
    for file in tmp_path.glob("*.parquet"):
        file.unlink()
    source = dt.lookups.delta_files(tmp_path, key="id", retries=0)
    with pytest.raises(dt.errors.ConfigurationError, match="no answer after 1 attempts"):
        ids(source.open(SCHEMA), "ann")
    features = {"minReaderVersion": 3, "minWriterVersion": 7}
    for kind in ("readerFeatures", "writerFeatures"):
        features[kind] = ["typeWidening"]
    log = tmp_path / "_delta_log" / "00000000000000000001.json"
    log.write_text(json.dumps({"protocol": features}))
    lacking = r"deltalake cannot read the table: .*TypeWidening\]\. ALTER TABLE … DROP FEATURE"
    with pytest.raises(dt.errors.ConfigurationError, match=lacking):
        ids(source.open(SCHEMA), "ann")


def test_iceberg_tables_find_the_rows_of_the_latest_snapshot(tmp_path: Path) -> None:
    catalog = iceberg_tables.properties(tmp_path)
    rows = pa.table({"id": [1, 2, 3], "customer": ["ann", "bob", "ann"], "amount": [5, 6, None]})
    table = iceberg_tables.opened(catalog).create_table("shop.orders", rows.schema)
    table.append(rows)
    given: Any = {"catalog": catalog, "key": "id", "retries": 0}
    source = dt.lookups.iceberg("shop.orders", **given, indexes=[dt.lookups.index("customer")])
    reader = source.open(SCHEMA)
    assert ids(reader, "ann", "eve") == [1, 3]
    table.delete("id = 1")
    table.append(pa.table({"id": [4], "customer": ["ann"], "amount": [8]}))
    assert ids(reader, "ann") == [3, 4]
    snapshot = table.refresh().current_snapshot()
    (file, *_) = (
        entry.data_file
        for manifest in snapshot.manifests(table.io)
        for entry in manifest.fetch_manifest_entry(table.io)
    )
    gone = pa.table({"id": [2]})
    iceberg_tables.row_delta(table, [iceberg_tables.values(table, ["id"], gone, file)])
    assert ids(reader, "ann", "bob") == [3, 4]
    restricted = dt.lookups.iceberg("shop.orders", **given, where={"amount": [8, None]})
    assert ids(restricted.open(SCHEMA), "ann", "bob") == [3, 4]
    wrong = pa.schema([("customer", pa.string()), ("id", pa.int64()), ("price", pa.int64())])
    with pytest.raises(
        dt.errors.DataError, match=r"iceberg table shop.orders: its columns are not .* 'price'"
    ):
        ids(source.open(wrong), "ann")
    with pytest.raises(
        dt.errors.ConfigurationError, match=r"iceberg table shop\.none: no answer after 1 attempts"
    ):
        ids(dt.lookups.iceberg("shop.none", **given).open(SCHEMA), "ann")
    assert "catalog.db" not in repr(source) + source.title


def test_an_iceberg_table_needs_pyiceberg_where_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = dt.lookups.iceberg("shop.orders", catalog={"type": "sql"}, key="id")
    monkeypatch.setitem(sys.modules, "pyiceberg.catalog", None)
    with pytest.raises(dt.errors.ConfigurationError, match="pyiceberg is not installed where it"):
        source.open(SCHEMA)


def test_iceberg_tables_are_not_read_without_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = iceberg_tables.properties(tmp_path)
    rows = pa.table({"id": [1], "customer": ["ann"], "amount": [5]})
    iceberg_tables.opened(catalog).create_table("shop.orders", rows.schema).append(rows)
    read: list[str] = []
    whole = RowReader.rows

    def reading(reader: RowReader, file: Any, schema: Any) -> Any:
        read.append(file.file_path)
        return whole(reader, file, schema)

    monkeypatch.setattr(RowReader, "rows", reading)
    reader = dt.lookups.iceberg("shop.orders", catalog=catalog, key="id").open(SCHEMA)
    found = reader.rows(["id"], pa.table({"id": pa.array([], pa.int64())}))
    assert found.rows.schema == SCHEMA
    assert len(found.rows) == len(found.unfit) == len(read) == 0
    assert ids(reader, "ann") == [1]
    assert len(read) == 2  # its keys, then its rows


@pytest.mark.parametrize(("where", "problem"), WRONG)
def test_iceberg_tables_refuse_constants_of_another_type(
    tmp_path: Path, where: Any, problem: str
) -> None:
    catalog = iceberg_tables.properties(tmp_path)
    rows = pa.table({"id": [1], "customer": ["ann"], "amount": [5]})
    iceberg_tables.opened(catalog).create_table("shop.orders", rows.schema).append(rows)

    def declare(where: Any) -> Any:
        return dt.lookups.iceberg("shop.orders", catalog=catalog, key="id", where=where, retries=0)

    assert ids(declare({"amount": [5.0, None], "customer": "ann"}).open(SCHEMA), "ann") == [1]
    refused_constants(declare, where, problem)


def test_a_whole_number_is_a_constant_of_a_narrow_decimal() -> None:
    price = pa.decimal128(5, 2)
    stored = pa.schema([("price", price)])
    filters = (("price", (5, None, 999)),)
    expected = pa.array([Decimal(5), None, Decimal(999)], price)
    assert typed_constants("t", filters, stored)["price"].equals(expected)
    with pytest.raises(dt.errors.DataError, match=r"where= has \[1000\] for column 'price'"):
        typed_constants("t", (("price", (1000,)),), stored)


@pytest.mark.parametrize("store", ["delta", "iceberg"])
def test_floats_are_constants_as_in_sql(tmp_path: Path, store: str) -> None:
    nan, infinity = float("nan"), float("inf")
    floats = [0.1, nan, infinity, 0.0, -0.0, None]
    columns = {"f": pa.array(floats, pa.float32()), "d": pa.array(floats)}
    rows = pa.table({"id": [1, 2, 3, 4, 5, 6], "customer": ["ann"] * 6, **columns})
    declare: Callable[..., Any]
    if store == "delta":
        pytest.importorskip("deltalake").write_deltalake(tmp_path, rows)
        declare = partial(dt.lookups.delta_files, tmp_path, key="id", retries=0)
    else:
        catalog = iceberg_tables.properties(tmp_path)
        iceberg_tables.opened(catalog).create_table("shop.orders", rows.schema).append(rows)
        declare = partial(dt.lookups.iceberg, "shop.orders", catalog=catalog, key="id", retries=0)
    for where, expected in (
        ({"f": 0.1}, []),  # which a single float is not
        ({"f": pa.scalar(0.1, pa.float32()).as_py()}, [1]),
        ({"d": 0.1}, [1]),
        ({"f": nan, "d": [nan, 0]}, [2]),
        ({"f": [infinity, nan]}, [2, 3]),
        ({"f": [0, 7.5]}, [4, 5]),
        ({"d": [-0.0, None]}, [4, 5, 6]),
    ):
        reader = declare(where=where).open(SCHEMA.remove(2))
        assert (where, ids(reader, "ann")) == (where, expected)


def test_a_nan_is_no_constant_beside_equal_floats(tmp_path: Path) -> None:
    """The bounds of a file leave NaN out, and deltalake takes equal ones for all its values."""
    deltalake = pytest.importorskip("deltalake")
    floats = {"f": [float("nan"), 0.5, 0.5], "d": [Decimal("0.10"), None, Decimal("0.20")]}
    rows = pa.table({"id": [1, 2, 3], "customer": ["ann"] * 3, **floats, "amount": [1, 2, 3]})
    deltalake.write_deltalake(tmp_path, rows)
    for where, expected in (
        ({"f": 0.5}, [2, 3]),
        ({"f": [0.5, None, 7.0]}, [2, 3]),
        ({"f": 0.5, "amount": [1, 2]}, [2]),
        ({"d": [0.1, None]}, [1, 2]),
    ):
        source = dt.lookups.delta_files(tmp_path, key="id", where=where, retries=0)
        assert ids(source.open(SCHEMA), "ann") == expected


def test_a_list_without_constants_is_refused() -> None:
    declare: list[Any] = [
        lambda **given: dt.lookups.sqlite("s.db", "t", **given),
        lambda **given: dt.lookups.dbapi("sqlite3", "t", connect={}, **given),
        lambda **given: dt.lookups.delta_files("t", **given),
        lambda **given: dt.lookups.iceberg("shop.t", **given),
        lambda **given: dt.lookups.postgres("postgresql://db/shop", "t", **given),
        lambda **given: dt.lookups.mongodb("mongodb://db", "shop.t", **given),
    ]
    for source in declare:
        assert source(key="id", where={"v": None}).filters == (("v", (None,)),)
        with pytest.raises(dt.errors.PlanError, match="where= has no constant for 'v', so"):
            source(key="id", where={"u": 1, "v": []})


def test_an_index_covers_a_lookup_that_includes_it() -> None:
    source = dt.lookups.sqlite(
        "s.db",
        "t",
        key=["a", "b"],
        indexes=[dt.lookups.index("c"), dt.lookups.index("c", "d", unique=True)],
    )

    def name(*columns: str) -> str | None:
        index = index_for(source, columns)
        return None if index is None else index.name

    assert name("a", "b") == "PRIMARY KEY"
    assert name("a") is None
    assert name("c") == "INDEX_c"
    assert name("d", "c") == "INDEX_c_d"
    assert name("c", "x") == "INDEX_c"
    assert dt.lookups.index("a", name="mine").summary == "INDEX mine (a)"
    assert [index.summary for index in source.indexes] == [
        "INDEX INDEX_c (c)",
        "UNIQUE INDEX INDEX_c_d (c, d)",
    ]


def test_attempts_wait_twice_as_long_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    answers = iter([OSError("a"), OSError("b"), OSError("c"), 7])

    def action() -> int:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    store = SimpleNamespace(title="s", retries=3, wait_s=0.1)
    assert call_with_retries(store, action) == 7
    assert waits == [0.1, 0.2, 0.4]
    with pytest.raises(KeyError):
        call_with_retries(store, lambda: {}["x"])
    assert len(waits) == 3


CACHED = pa.schema([("k", pa.int64()), ("v", pa.int64())])


def entries(rows: dict[int, list[int]], used: int) -> SideCache:
    pairs = [(k, v, n) for n, (k, values) in enumerate(rows.items()) for v in values]
    return SideCache(
        keys=pa.table({"k": pa.array(list(rows), pa.int64())}),
        used=np.full(len(rows), used),
        rows=pa.table([[k for k, _, _ in pairs], [v for _, v, _ in pairs]], schema=CACHED),
        entry=np.array([n for _, _, n in pairs], np.int64),
    )


def content(cache: SideCache) -> dict[int, list[int]]:
    made: dict[int, list[int]] = {k: [] for k in cache.keys.column("k").to_pylist()}
    for row, entry in zip(cache.rows.to_pylist(), cache.entry, strict=True):
        assert list(made)[entry] == row["k"]
        made[row["k"]].append(row["v"])
    return made


def test_a_cache_keeps_what_was_used_last_within_its_bound() -> None:
    cache = SideCache.empty(CACHED, 1)
    nothing = np.zeros(0, np.bool_)
    cache = cache.keep_entries(nothing, entries({1: [10, 11], 2: []}, used=1), 5)
    cache = cache.keep_entries(np.ones(2, np.bool_), entries({3: [30], 4: [40]}, used=2), 5)
    assert content(cache) == {1: [10, 11], 2: [], 3: [30], 4: [40]}
    assert len(cache) == 5
    # Entry 2 is used again, so 1, used longest ago, has to go for 5.
    again = cache.keep_entries(
        np.array([True, False, True, True]), entries({2: [], 5: [50]}, used=3), 5
    )
    assert content(again) == {3: [30], 4: [40], 2: [], 5: [50]}
    huge = again.keep_entries(np.ones(4, np.bool_), entries({6: list(range(9))}, used=4), 5)
    assert content(huge) == content(again)
    assert len(again.keep_entries(np.ones(4, np.bool_), SideCache.empty(CACHED, 1), 0)) == 0


def test_a_batch_reads_the_cache_of_the_batch_before_and_no_other(tmp_path: Path) -> None:
    file = CacheFile(tmp_path / "caches", "task")
    caches = [entries({1: [10], 2: []}, used=4), SideCache.empty(CACHED, 1)]
    file.write(4, caches)
    read = file.read(5)
    assert read is not None
    assert [content(cache) for cache in read] == [{1: [10], 2: []}, {}]
    assert read[0].used.tolist() == [4, 4]
    assert file.read(4) is None  # the batch itself, run again, has not seen its own
    assert file.read(6) is None  # batch 5 ran elsewhere
    file.write(5, caches)
    file.write(6, caches)
    assert sorted(p.name for p in (tmp_path / "caches").iterdir()) == [
        "task-5.arrow",
        "task-6.arrow",
    ]


def test_a_cache_is_its_users_alone(tmp_path: Path) -> None:
    caches = tmp_path / "caches"
    before = os.umask(0)
    try:
        CacheFile(caches, "task").write(1, [SideCache.empty(CACHED, 1)] * 2)
    finally:
        os.umask(before)
    assert caches.stat().st_mode & 0o777 == 0o700
    assert [path.stat().st_mode & 0o777 for path in caches.iterdir()] == [0o600]
