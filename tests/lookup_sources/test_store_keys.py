"""Which keys a store's row has, by the store's types: those that the changelog would give it, to
the letter. Keys that no row can have find nothing and are counted.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import dovetail as dt

ODD = "0b1c2d3e-0000-4000-8000-00000000000a"
TEN_UTC = datetime(2024, 7, 1, 10, tzinfo=timezone.utc)
TEN = TEN_UTC.replace(tzinfo=None)
UTC = pa.timestamp("us", "UTC")


@dataclass(frozen=True)
class Case:
    """A column of type ``column`` that holds the SQL literals ``stored``, is declared ``declared``
    and is asked by ``keys``. ``found``: which stored values each key finds, by their numbers;
    ``unfit``: which keys the column could not have.
    """

    column: str
    declared: pa.DataType
    stored: Sequence[str]
    keys: Sequence[Any]
    found: Sequence[Sequence[int]]
    unfit: Sequence[int] = field(default=())


CASES = {
    "a text of fixed length": Case(
        "char(8)",
        pa.string(),
        ["'ann'", "'abcdefgh'"],
        ["ann", "abcdefgh", "ann ", "abcdefghi", "bob"],
        [[0], [1], [], [], []],
        unfit=[2, 3],
    ),
    "a text of bounded length": Case(
        "varchar(3)",
        pa.string(),
        ["'ann'", "'日本語'"],
        ["ann", "anna", "annabel", "日本語"],
        [[0], [], [], [1]],
        unfit=[1, 2],
    ),
    "texts that a collation takes for one": Case(
        "text COLLATE loose",
        pa.string(),
        ["'ann'", "'ANN'"],
        ["ann", "Ann", "ANN"],
        [[0], [], [1]],
    ),
    "texts without case": Case("citext", pa.string(), ["'Ann'"], ["ann", "Ann"], [[], [0]]),
    "a NUL": Case("text", pa.string(), ["'a'"], ["a\0", "a", "\0"], [[], [0], []], unfit=[0, 2]),
    "texts of no word of the enum": Case(
        "mood", pa.string(), ["'good'"], ["good", "bad", "Good", ""], [[0], [], [], []], [2, 3]
    ),
    "a domain of a domain": Case(
        "shorter", pa.string(), ["'ab'"], ["ab", "abc", "abcd"], [[0], [], []], unfit=[1, 2]
    ),
    "texts that are no uuid": Case(
        "uuid",
        pa.string(),
        [f"'{ODD}'"],
        [ODD, ODD.upper(), "no uuid", ODD + "\n", ""],
        [[0], [], [], [], []],
        unfit=[1, 2, 3, 4],
    ),
    "integers out of range": Case(
        "integer",
        pa.int64(),
        ["1", "-2147483648"],
        [1, 2**31, -(2**31), 2**63 - 1],
        [[0], [], [1], []],
        unfit=[1, 3],
    ),
    "decimals for integers": Case(
        "integer",
        pa.decimal128(20, 2),
        ["1", "2"],
        [Decimal("1.00"), Decimal("1.50"), Decimal("99999999999.00")],
        [[0], [], []],
        unfit=[1, 2],
    ),
    "decimals of more digits": Case(
        "numeric(5, 2)",
        pa.decimal128(20, 3),
        ["1.50", "2"],
        [Decimal("1.500"), Decimal("1.501"), Decimal("2.000"), Decimal("1000.000")],
        [[0], [], [1], []],
        unfit=[1, 3],
    ),
    "integers for decimals": Case(
        "numeric(5, 0)", pa.int64(), ["7", "99999"], [7, 99999, 100000], [[0], [1], []], unfit=[2]
    ),
    "negative zero and no number": Case(
        "double precision",
        pa.float64(),
        ["'-0'", "'NaN'", "0.1"],
        [0.0, float("nan"), 0.1],
        [[0], [1], [2]],
    ),
    "fractions of half the digits": Case(
        "real", pa.float64(), ["0.5", "0.1"], [0.5, 0.1, 0.10000000149011612], [[0], [], [1]]
    ),
    "times without a zone as times": Case(
        "timestamp", UTC, ["'2024-07-01 10:00'"], [TEN_UTC, TEN_UTC + timedelta(hours=5)], [[0], []]
    ),
    "times as times without a zone": Case(
        "timestamptz",
        pa.timestamp("us"),
        ["'2024-07-01 10:00+00'"],
        [TEN, TEN - timedelta(hours=4)],
        [[0], []],
    ),
    "times": Case("timestamptz", UTC, ["'2024-07-01 12:00+02'"], [TEN_UTC], [[0]]),
    "times without a zone": Case(
        "timestamp", pa.timestamp("us"), ["'2024-07-01 10:00'"], [TEN], [[0]]
    ),
    "times beyond the years": Case(
        "timestamptz",
        UTC,
        ["'2024-07-01 10:00+00'"],
        pa.array([2**62, -(2**62)]).cast(UTC),
        [[], []],
        unfit=[0, 1],
    ),
    "days": Case("date", pa.date32(), ["'2024-07-01'"], [date(2024, 7, 1)], [[0]]),
    "days beyond the years": Case(
        "date", pa.date32(), [], pa.array([2**30], pa.int32()).cast(pa.date32()), [[]], unfit=[0]
    ),
    "booleans": Case("boolean", pa.bool_(), ["true"], [True, False], [[0], []]),
    "bytes": Case("bytea", pa.binary(), [r"'\x0061'"], [b"\0a", b"a"], [[0], []]),
}


@pytest.fixture
def store(database: str) -> Any:
    psycopg = pytest.importorskip("psycopg")
    with psycopg.connect(database, autocommit=True) as connection:
        name = connection.info.dbname
        connection.execute(f"ALTER DATABASE {name} SET timezone = 'America/New_York'")
        connection.execute(f"ALTER DATABASE {name} SET datestyle = 'SQL, DMY'")
        connection.execute(
            "CREATE COLLATION loose (provider = icu, locale = 'und-u-ks-level2', "
            "deterministic = false)"
        )
        connection.execute("CREATE TYPE mood AS ENUM ('good', 'bad')")
        connection.execute("CREATE DOMAIN short AS varchar(2)")
        connection.execute("CREATE DOMAIN shorter AS short CHECK (VALUE <> 'no')")
        if connection.execute(
            "SELECT 1 FROM pg_available_extensions WHERE name = 'citext'"
        ).fetchone():
            connection.execute("CREATE EXTENSION citext")
        yield connection


def check(reader: Any, case: Case) -> None:
    """Each key finds its rows, whose key reads as the key asked for."""
    keys = pa.table({"k": pa.array(case.keys, case.declared)})
    answer = reader.rows(["k"], keys)
    rows = answer.rows.to_pylist()
    found: list[list[int]] = [[] for _ in case.keys]
    for row, key in zip(rows, answer.key, strict=True):
        asked = keys["k"][int(key)].as_py()
        assert row["k"] == asked or row["k"] != row["k"]
        found[key].append(row["n"])
    assert [sorted(numbers) for numbers in found] == list(case.found)
    assert answer.unfit.nonzero()[0].tolist() == list(case.unfit)


@pytest.mark.parametrize("name", CASES)
def test_a_row_of_postgres_is_found_by_its_own_key_only(
    store: Any, database: str, name: str
) -> None:
    case = CASES[name]
    if (
        case.column == "citext"
        and not store.execute("SELECT 1 FROM pg_type WHERE typname = 'citext'").fetchone()
    ):
        pytest.skip("citext is missing (Debian: apt install postgresql-contrib)")
    store.execute(f"CREATE TABLE kept (n bigint PRIMARY KEY, k {case.column})")
    store.execute("CREATE INDEX ON kept (k)")
    for number, literal in enumerate(case.stored):
        store.execute(f"INSERT INTO kept VALUES ({number}, {literal})")
    schema = pa.schema([("k", case.declared), ("n", pa.int64())])
    source = dt.lookups.postgres(
        database, "kept", key="n", indexes=[dt.lookups.index("k")], retries=0
    )
    check(source.open(schema), case)


@pytest.mark.parametrize("name", [n for n, case in CASES.items() if case.column != "citext"])
def test_the_index_of_a_column_serves_its_keys(store: Any, database: str, name: str) -> None:
    from psycopg import sql

    case = CASES[name]
    store.execute(f"CREATE TABLE kept (n bigint PRIMARY KEY, k {case.column})")
    store.execute("CREATE INDEX by_k ON kept (k)")
    keys = pa.schema([("k", case.declared)])
    reader: Any = dt.lookups.postgres(
        database, "kept", key="n", indexes=[dt.lookups.index("k")]
    ).open(keys)
    reader._connect()
    statement = reader._statement(["k"], reader._store_columns(keys))
    reader._connection.execute("SET enable_seqscan = off; SET enable_bitmapscan = off")
    plan = reader._connection.execute(sql.SQL("EXPLAIN ") + statement, [[]]).fetchall()
    assert any("Index Cond" in line and "k" in line for (line,) in plan), plan


@pytest.mark.parametrize(
    ("column", "declared", "problem"),
    [
        ("inet", pa.string(), "column 'k' is inet there, which is not compared with keys of type"),
        ("jsonb", pa.string(), "column 'k' is jsonb there, which is not compared with keys of"),
        ("text", pa.int64(), "column 'k' is text there, which is not compared with keys of type"),
        ("bigint", pa.string(), "column 'k' is bigint there, which is not compared with keys of"),
        ("timestamp", pa.date32(), "column 'k' is timestamp without time zone there, which is not"),
        ("integer", pa.bool_(), "column 'k' is integer there, which is not compared with keys of"),
        ("float8", pa.float32(), "column 'k' is double precision there, of which type float keeps"),
        ("bigint", pa.float64(), "column 'k' is bigint there, which is not compared with keys of"),
        ("text[]", pa.string(), r"column 'k' is text\[\] there, which is not compared with keys"),
    ],
)
@pytest.mark.parametrize("by", ["k", "n"])
def test_columns_that_cannot_be_compared_are_refused_at_the_first_lookup(
    store: Any, database: str, column: str, declared: pa.DataType, problem: str, by: str
) -> None:
    store.execute(f"CREATE TABLE kept (n bigint, k {column})")
    schema = pa.schema([("k", declared), ("n", pa.int64())])
    reader = dt.lookups.postgres(database, "kept", key=["n", "k"], retries=0).open(schema)
    with pytest.raises(dt.errors.DataError, match=problem):
        reader.rows([by], pa.table({by: pa.nulls(1, schema.field(by).type)}).slice(0, 0))


def test_a_column_of_fractions_is_not_read_with_half_its_digits(store: Any, database: str) -> None:
    store.execute("CREATE TABLE kept (n bigint, v float8)")
    schema = pa.schema([("n", pa.int64()), ("v", pa.float32())])
    with pytest.raises(
        dt.errors.DataError, match=r"column 'v' is double precision there, of which type"
    ):
        dt.lookups.postgres(database, "kept", key="n").open(schema).rows(
            ["n"], pa.table({"n": [1]})
        )


def test_a_column_may_be_widened_while_it_is_asked(store: Any, database: str) -> None:
    store.execute("CREATE TABLE kept (n bigint PRIMARY KEY, k integer)")
    schema = pa.schema([("k", pa.int64()), ("n", pa.int64())])
    reader = dt.lookups.postgres(database, "kept", key="n", retries=0).open(schema)
    case = Case("integer", pa.int64(), [], [5_000_000_000], [[]], unfit=[0])
    check(reader, case)
    store.execute("ALTER TABLE kept ALTER COLUMN k TYPE bigint")
    store.execute("INSERT INTO kept VALUES (0, 5000000000)")
    check(reader, Case("bigint", pa.int64(), [], case.keys, [[0]]))


def test_texts_that_a_store_of_another_encoding_cannot_have(
    store: Any, postgres_server: Any
) -> None:
    import psycopg

    store.execute(
        "CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'"
    )
    latin = postgres_server.dsn("latin")
    with psycopg.connect(latin, autocommit=True, client_encoding="UTF8") as other:
        other.execute("CREATE TABLE kept (n bigint PRIMARY KEY, k text)")
        other.execute("INSERT INTO kept VALUES (0, 'é')")
    schema = pa.schema([("k", pa.string()), ("n", pa.int64())])
    reader = dt.lookups.postgres(latin, "kept", key="n", retries=0).open(schema)
    check(reader, Case("text", pa.string(), [], ["é", "日本"], [[0], []], unfit=[1]))
    reader.close()


@pytest.mark.parametrize(
    ("column", "stored", "keys", "found", "unfit"),
    [
        ("TEXT COLLATE NOCASE", ["ann", "ANN"], ["ann", "Ann", "ANN"], [[0], [], [1]], []),
        ("TEXT COLLATE RTRIM", ["ann "], ["ann", "ann "], [[], [0]], []),
        ("TEXT", ["a\0b"], ["a", "a\0b", "a\0"], [[], [0], []], []),
        ("REAL", [0.0, 0.5], [-0.0, float("nan"), 0.5], [[0], [], [1]], [1]),
        ("INTEGER", [2**40], [2**40, 2**63 - 1], [[0], []], []),
    ],
)
def test_a_row_of_sqlite_is_found_by_its_own_key_only(
    tmp_path: Path, column: str, stored: Any, keys: Any, found: Any, unfit: Any
) -> None:
    path = tmp_path / "store.db"
    with closing(sqlite3.connect(path)) as store:
        store.execute(f"CREATE TABLE kept (n INTEGER PRIMARY KEY, k {column})")
        store.execute("CREATE INDEX by_k ON kept (k)")
        store.executemany("INSERT INTO kept VALUES (?, ?)", enumerate(stored))
        store.commit()
    declared = pa.array(keys).type
    schema = pa.schema([("k", declared), ("n", pa.int64())])
    reader: Any = dt.lookups.sqlite(path, "kept", key="n", retries=0).open(schema)
    check(reader, Case(column, declared, [], keys, found, unfit))
    plan = reader._connect().execute("EXPLAIN QUERY PLAN " + reader._statement(["k"], 1), keys[:1])
    assert any("INDEX by_k" in row[3] for row in plan)


@pytest.mark.parametrize(
    ("stored", "keys", "found", "unfit"),
    [
        (pa.array(["ann", "o'hara", "a\0b"]), ["ann", "Ann", "o'hara", "a\0b"], [0, 1, 2], []),
        (pa.array([1, 2], pa.int32()), [1, 2**40], [0], [1]),
        (pa.array([True]), [True, False], [0], []),
    ],
)
def test_a_row_of_a_delta_table_is_found_by_its_own_key_only(
    tmp_path: Path, stored: Any, keys: Any, found: Any, unfit: Any
) -> None:
    deltalake = pytest.importorskip("deltalake")
    table = pa.table({"k": stored, "n": pa.array(range(len(stored)), pa.int64())})
    deltalake.write_deltalake(str(tmp_path / "kept"), table)
    declared = pa.array(keys).type
    schema = pa.schema([("k", declared), ("n", pa.int64())])
    answer = (
        dt.lookups.delta_files(tmp_path / "kept", key="n")
        .open(schema)
        .rows(["k"], pa.table({"k": keys}))
    )
    got = dict(zip(answer.rows["n"].to_pylist(), answer.key.tolist(), strict=True))
    assert got == {n: keys.index(stored[n].as_py()) for n in found}
    assert answer.unfit.nonzero()[0].tolist() == unfit


@pytest.mark.parametrize(
    ("stored", "declared"),
    [
        (["007"], pa.int64()),
        ([7], pa.string()),
        ([1_700_000_000], UTC),
        ([1], pa.bool_()),
        ([1], pa.date32()),
        ([0.1], pa.float32()),
        ([Decimal("0.1")], pa.float64()),
        (["2024-07-01"], pa.date32()),
        ([["007"]], pa.list_(pa.int64())),
        ([{"a": "007"}], pa.struct([("a", pa.int64())])),
    ],
)
def test_a_delta_table_is_read_as_what_it_has(
    tmp_path: Path, stored: Any, declared: pa.DataType
) -> None:
    deltalake = pytest.importorskip("deltalake")
    deltalake.write_deltalake(str(tmp_path / "kept"), pa.table({"n": [1], "v": pa.array(stored)}))
    schema = pa.schema([("n", pa.int64()), ("v", declared)])
    reader = dt.lookups.delta_files(tmp_path / "kept", key="n", retries=0).open(schema)
    with pytest.raises(dt.errors.DataError, match=r"delta table kept: .*column 'v' is declared"):
        reader.rows(["n"], pa.table({"n": [1]}))


@pytest.mark.parametrize(("stored", "key"), [(["007"], 7), ([7], "007"), ([1.5], 1.5), ([True], 1)])
def test_keys_of_another_type_than_a_delta_tables_are_refused(
    tmp_path: Path, stored: Any, key: Any
) -> None:
    deltalake = pytest.importorskip("deltalake")
    table = pa.table({"n": [1], "k": pa.array(stored)})
    deltalake.write_deltalake(str(tmp_path / "kept"), table)
    keys = pa.table({"k": [key]})
    schema = pa.schema([("n", pa.int64()), ("k", keys.schema.field("k").type)])
    reader = dt.lookups.delta_files(tmp_path / "kept", key="n", retries=0).open(schema)
    with pytest.raises(
        dt.errors.DataError, match=r"column 'k' is \w+ there, which cannot be looked up"
    ):
        reader.rows(["k"], keys)


def test_what_sqlite_writes_as_numbers_and_texts_is_read_by_rule(tmp_path: Path) -> None:
    def read(value: Any, declared: pa.DataType) -> Any:
        path = tmp_path / "store.db"
        path.unlink(missing_ok=True)
        with closing(sqlite3.connect(path)) as store:
            store.execute("CREATE TABLE kept (n INTEGER PRIMARY KEY, v)")
            store.executemany("INSERT INTO kept VALUES (?, ?)", [(1, value), (2, None)])
            store.commit()
        schema = pa.schema([("n", pa.int64()), ("v", declared)])
        reader = dt.lookups.sqlite(path, "kept", key="n", retries=0).open(schema)
        return reader.rows(["n"], pa.table({"n": [1, 2]})).rows["v"][0].as_py()

    seconds = round(TEN_UTC.timestamp())
    assert read(seconds, UTC) == TEN_UTC
    assert read(seconds, pa.timestamp("us")) == TEN
    assert read("2024-07-01T10:00:00Z", UTC) == TEN_UTC
    assert read("2024-07-01", pa.date32()) == date(2024, 7, 1)
    assert read("1.50", pa.decimal128(5, 2)) == Decimal("1.50")
    assert (read(1, pa.bool_()), read(0, pa.bool_())) == (True, False)
    for value, declared in (
        (2, pa.bool_()),
        (seconds * 1_000_000, UTC),
        (float(seconds), UTC),
        (19_905, pa.date32()),
        (7, pa.string()),
        ("007", pa.int64()),
        ("true", pa.bool_()),
    ):
        with pytest.raises(
            dt.errors.DataError, match=r"a row does not fit .* column 'v' is declared"
        ):
            read(value, declared)
