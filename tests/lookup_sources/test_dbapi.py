"""Lookups by PEP 249 in real databases: DuckDB, SQLite by ADBC, MariaDB where its server is."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import dovetail as dt
from dovetail import testing
from dovetail.errors import ConfigurationError, DataError, PlanError
from dovetail.lookup_sources.dbapi import DbapiReader

SCHEMA = pa.schema([("customer", pa.string()), ("id", pa.int64()), ("amount", pa.int64())])


@dataclass(frozen=True)
class Store:
    """A database: its driver, how it is connected to, and its ways of writing types."""

    driver: str
    connect: dict[str, Any]
    quote: Any
    types: dict[str, str]

    def run(self, *statements: str) -> None:
        module = importlib.import_module(self.driver)
        arguments = {n: v for n, v in self.connect.items() if n != "read_only"}
        with closing(module.connect(**arguments)) as connection:
            for statement in statements:
                connection.cursor().execute(statement.format(**self.types))
            connection.commit() if self.driver != "duckdb" else None

    def source(self, table: str = "orders", **options: Any) -> Any:
        options = {"key": "id", "indexes": [dt.lookups.index("customer")], "retries": 0} | options
        return dt.lookups.dbapi(
            self.driver, table, connect=self.connect, quote=self.quote, **options
        )


@pytest.fixture(params=["duckdb", "mariadb"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "duckdb":
        pytest.importorskip("duckdb")
        connect: dict[str, Any] = {"database": str(tmp_path / "shop.duckdb"), "read_only": True}
        types = {"q": '"', "moment": "TIMESTAMP", "blob": "BLOB", "nocase": "COLLATE NOCASE"}
        yield Store("duckdb", connect, '"', types)
        return
    connect = request.getfixturevalue("mariadb")
    yield Store(
        "pymysql",
        connect,
        "`",
        {"q": "`", "moment": "DATETIME(6)", "blob": "VARBINARY(9)", "nocase": ""},
    )


@pytest.fixture
def shop(store: Store) -> Store:
    store.run(
        "CREATE TABLE orders (id BIGINT PRIMARY KEY, customer VARCHAR(20) {nocase}, amount INT)",
        "CREATE INDEX by_customer ON orders (customer)",
        "INSERT INTO orders VALUES (1, 'ann', 5), (2, 'bob', 6), (3, 'ann', 7), (4, NULL, 8), "
        "(5, 'Ann', 9), (6, 'ann ', 9)",
    )
    return store


def ids(reader: Any, *names: str) -> list[int]:
    found = reader.rows(["customer"], pa.table({"customer": list(names)}))
    assert [names[n] for n in found.key] == found.rows.column("customer").to_pylist()
    return sorted(found.rows.column("id").to_pylist())


def test_all_rows_of_a_batch_of_keys_are_found_to_the_letter(shop: Store) -> None:
    """Though the column's collation takes more for one."""
    with closing(shop.source().open(SCHEMA)) as reader:
        assert ids(reader, "ann", "eve", "bob") == [1, 2, 3]
        assert ids(reader, "ANN", "it's %s ? \\ {}", 'a"`') == []
        assert ids(reader, "Ann") == [5]
        assert reader.rows(["customer"], pa.table({"customer": ["bob"]})).rows.to_pylist() == [
            {"customer": "bob", "id": 2, "amount": 6}
        ]


def test_many_keys_are_asked_for_in_as_many_queries_as_it_takes(shop: Store) -> None:
    names = [f"c{n}" for n in range(1000)]
    rows = ", ".join(f"({n + 10}, '{name}', 1)" for n, name in enumerate(names))
    shop.run(f"INSERT INTO orders VALUES {rows}")
    for most in (7, 1000, 10_000):
        with closing(shop.source(keys_max=most).open(SCHEMA)) as reader:
            assert len(ids(reader, "ann", *names)) == 1002


def test_a_row_comes_once_though_several_queries_find_it(shop: Store) -> None:
    for most in (1, 2, 3):
        with closing(shop.source(keys_max=most).open(SCHEMA)) as reader:
            assert ids(reader, "ANN", "ann", "Ann", "bob", "ann ") == [1, 2, 3, 5, 6]


def test_keys_of_several_columns_and_constants(shop: Store) -> None:
    source = shop.source(indexes=[dt.lookups.index("customer", "amount")])
    keys = pa.table({"customer": ["ann", "ann", "bob"], "amount": [5, 6, 6]})
    with closing(source.open(SCHEMA)) as reader:
        found = reader.rows(["customer", "amount"], keys)
    assert list(zip(found.key, found.rows.column("id").to_pylist(), strict=True)) == [
        *((0, 1), (2, 2))
    ]
    for where, expected in (
        ({"amount": [5, 6]}, [1, 2]),
        ({"amount": None}, []),
        ({"amount": [None, 7]}, [3]),
    ):
        with closing(shop.source(where=where).open(SCHEMA)) as reader:
            assert ids(reader, "ann", "bob") == expected


def test_dates_that_python_lacks_find_no_row(store: Store) -> None:
    """Other keys of the batch find theirs, whatever query asks for them."""
    store.run(
        "CREATE TABLE days (id BIGINT PRIMARY KEY, day DATE)",
        "INSERT INTO days VALUES (1, '2024-05-01'), (2, '9999-12-31')",
    )
    days = pa.array([2932897, 19844, -719163, 2932896], pa.int32()).cast(pa.date32())
    schema = pa.schema([("id", pa.int64()), ("day", pa.date32())])
    for most in (1, 10):
        source = store.source("days", indexes=[dt.lookups.index("day")], keys_max=most)
        with closing(source.open(schema)) as reader:
            found = reader.rows(["day"], pa.table({"day": days}))
        assert dict(zip(found.key, found.rows["id"].to_pylist(), strict=True)) == {1: 1, 3: 2}
        assert found.unfit.tolist() == [True, False, True, False]


def test_each_lookup_sees_what_was_committed_last(shop: Store) -> None:
    """Though the connection is kept, or because it is not."""
    with closing(shop.source(keep_open=shop.driver != "duckdb").open(SCHEMA)) as reader:
        assert ids(reader, "ann") == [1, 3]
        shop.run("DELETE FROM orders WHERE id = 1")
        assert ids(reader, "ann") == [3]


def test_values_come_as_they_are_declared_or_not_at_all(store: Store) -> None:
    store.run(
        "CREATE TABLE {q}t a%b{q} (id INT PRIMARY KEY, {q}a.%s{q} VARCHAR(9), d DECIMAL(9, 2), "
        "yes BOOLEAN, born DATE, since {moment}, raw {blob}, x DOUBLE)",
        "INSERT INTO {q}t a%b{q} VALUES "
        "(1, 'é', 1.50, TRUE, '2024-02-29', '2024-05-01 10:00:00.000001', 'ab', 0.1), "
        "(2, NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
    )
    types = {
        "id": pa.int64(),
        "a.%s": pa.string(),
        "d": pa.decimal128(10, 3),
        "yes": pa.bool_(),
        "born": pa.date32(),
        "since": pa.timestamp("us", "UTC"),
        "raw": pa.binary(),
        "x": pa.float64(),
    }
    row = {
        "id": 1,
        "a.%s": "é",
        "d": Decimal("1.500"),
        "yes": True,
        "born": date(2024, 2, 29),
        "since": datetime(2024, 5, 1, 10, 0, 0, 1, tzinfo=timezone.utc),
        "raw": b"ab",
        "x": 0.1,
    }
    source = store.source("t a%b", indexes=[dt.lookups.index(name) for name in types])
    with closing(source.open(pa.schema(types))) as reader:
        for name in ("id", "a.%s", "d", "yes", "born", "raw"):
            keys = pa.table({name: pa.array([row[name]], types[name])})
            assert reader.rows([name], keys).rows.to_pylist() == [row], name
        both = reader.rows(["id"], pa.table({"id": [1, 2]})).rows.to_pylist()
        assert [dict.fromkeys(types) | {"id": 2}] == [one for one in both if one["id"] == 2]
        with pytest.raises(DataError, match="column 'x' of type double cannot be looked up"):
            reader.rows(["x"], pa.table({"x": [0.1]}))
    for name, declared, found in (("a.%s", pa.int64(), "string"), ("x", pa.int64(), "double")):
        reader = source.open(pa.schema(types | {name: declared}))
        with closing(reader), pytest.raises(DataError, match=f"'{name}' is declared .*{found}"):
            reader.rows(["id"], pa.table({"id": [1]}))


def test_what_is_gone_is_said_without_how_it_is_reached(shop: Store, tmp_path: Path) -> None:
    none = pa.table({"id": pa.array([], pa.int64())})
    with pytest.raises((DataError, ConfigurationError), match="nope"):
        shop.source().open(SCHEMA.append(pa.field("nope", pa.string()))).rows(["id"], none)
    with pytest.raises(DataError, match="its columns are not those of the table"):
        shop.source("nowhere").open(SCHEMA).rows(["id"], none)
    place = {"database": str(tmp_path / "gone")} if shop.driver == "duckdb" else {"port": 1}
    secret = {} if shop.driver == "duckdb" else {"password": "hush", "unix_socket": "/nowhere"}
    gone = Store(shop.driver, shop.connect | place | secret, shop.quote, {}).source()
    with pytest.raises(ConfigurationError, match="no answer after 1 attempts") as caught:
        gone.open(SCHEMA).rows(["id"], none)
    assert "hush" not in f"{caught.value!r} {caught.value.__cause__!r} {gone!r}"


def test_a_connection_that_is_lost_is_made_anew(
    shop: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = shop.source(retries=1)
    with closing(source.open(SCHEMA)) as reader:
        assert ids(reader, "ann") == [1, 3]
        lost = reader._driver.OperationalError("lost")
        query, failures = DbapiReader._query_rows, [lost]

        def failing(self: Any, *given: Any) -> Any:
            if failures:
                raise failures.pop()
            return query(self, *given)

        monkeypatch.setattr(DbapiReader, "_query_rows", failing)
        assert ids(reader, "ann") == [1, 3]
        assert not failures


def test_a_driver_of_adbc_is_one(tmp_path: Path) -> None:
    """Its module for PEP 249, as it is."""
    driver = "adbc_driver_sqlite.dbapi"
    pytest.importorskip(driver)
    store = Store(driver, {"uri": str(tmp_path / "shop.db")}, '"', {})
    store.run(
        "CREATE TABLE orders (id INTEGER PRIMARY KEY, customer TEXT COLLATE NOCASE, amount INT)",
        "INSERT INTO orders VALUES (1, 'ann', 5), (2, 'bob', 6), (3, 'ann', 7), (4, NULL, 8), "
        "(5, 'Ann', NULL)",
    )
    source = store.source(
        keys_max=2, where={"amount": [5, 6, None]}, indexes=[dt.lookups.index("customer", "amount")]
    )
    with closing(source.open(SCHEMA)) as reader:
        assert ids(reader, "ann", "eve", "it's ?", "bob") == [1, 2]
        assert ids(reader, "Ann") == [5]
        keys = pa.table({"customer": ["ann", "bob"], "amount": [7, 6]})
        assert reader.rows(["customer", "amount"], keys).rows.to_pylist() == [
            {"customer": "bob", "id": 2, "amount": 6}
        ]
        store.run("DELETE FROM orders WHERE id = 1")
        assert ids(reader, "ann") == []
    with pytest.raises(DataError, match="its columns are not those of the table"):
        store.source("nowhere").open(SCHEMA).rows(["id"], pa.table({"id": [1]}))


@pytest.mark.parametrize("style", ["qmark", "numeric", "named", "format", "pyformat"])
def test_parameters_are_written_as_the_driver_reads_them(
    style: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    duckdb = pytest.importorskip("duckdb")
    monkeypatch.setattr(duckdb, "paramstyle", style)
    source = dt.lookups.dbapi(
        "duckdb", "s.t", connect={"database": ":memory:"}, key=["a", "b"], where={"c": [1, None]}
    )
    reader = source.open(pa.schema([("a", pa.int64()), ("b%", pa.int64())]))
    query, parameters = reader._statement(["a", "b%"], pa.table({"a": [1, 2], "b%": [3, 4]}))
    marks = {
        "qmark": ["?"] * 5,
        "numeric": [":1", ":2", ":3", ":4", ":5"],
        "named": [":p1", ":p2", ":p3", ":p4", ":p5"],
        "format": ["%s"] * 5,
        "pyformat": ["%(p1)s", "%(p2)s", "%(p3)s", "%(p4)s", "%(p5)s"],
    }[style]
    b = '"b%%"' if style in ("format", "pyformat") else '"b%"'
    assert query == (
        'SELECT "a", {b} FROM "s"."t" WHERE (("a" = {} AND {b} = {}) OR ("a" = {} AND {b} = {})) '
        'AND ("c" IS NULL OR "c" IN ({}))'
    ).format(*marks, b=b)
    values = (1, 3, 2, 4, 1)
    has_names = style in ("named", "pyformat")
    assert parameters == ({f"p{n}": v for n, v in enumerate(values, 1)} if has_names else values)


CITIES = pa.table(
    {
        "city": ["ann's", "bob", "ann's", "%s", "é"],
        "n": pa.array([1, 1, 2, 3, 4], pa.int64()),
        "o]d": pa.array(["x", None, "x", None, "y"]),
    }
)


def written(driver: str, query: str, parameters: Any) -> tuple[str, Any]:
    """The query as the driver sends it, and the parameters that it sends beside."""
    if driver == "pymssql":
        from pymssql import _mssql

        return _mssql.substitute_params(query, parameters).decode(), None
    if driver == "mssql_python":
        from mssql_python.parameter_helper import detect_and_convert_parameters

        return detect_and_convert_parameters(query, parameters)  # type: ignore[no-any-return]
    return query, parameters


@pytest.mark.parametrize(
    ("driver", "dialect", "quote"),
    [("pymssql", "tsql", "["), ("mssql_python", "tsql", "["), ("oracledb", "oracle", '"')],
)
def test_the_sql_for_other_databases_means_what_it_should(
    driver: str, dialect: str, quote: Any
) -> None:
    """By the driver's own way with parameters, by a parser of the database's SQL, and by what
    DuckDB makes of it: there is no server.
    """
    pytest.importorskip(driver, exc_type=ImportError)
    sqlglot, duckdb = pytest.importorskip("sqlglot"), pytest.importorskip("duckdb")
    source = dt.lookups.dbapi(
        driver,
        "main.cities",
        connect={},
        key=["city", "n"],
        quote=quote,
        where={"o]d": ["x", None]},
    )
    reader = source.open(CITIES.schema)
    cases = {
        ("city",): (
            {"city": ["ann's", "%s", "é", "ANN'S"]},
            [("ann's", 1), ("ann's", 2), ("%s", 3)],
        ),
        ("city", "n"): ({"city": ["bob", "ann's"], "n": [1, 2]}, [("bob", 1), ("ann's", 2)]),
        ("n",): ({"n": pa.array([], pa.int64())}, []),
    }
    with duckdb.connect() as database:
        database.register("arrow", CITIES)
        database.execute("CREATE TABLE cities AS FROM arrow")
        for by, (keys, found) in cases.items():
            query, parameters = written(driver, *reader._statement(by, pa.table(keys)))
            (sql,) = sqlglot.transpile(query, read=dialect, write="duckdb")
            rows = database.execute(sql, parameters).fetchall()
            assert sorted(row[:2] for row in rows) == sorted(found)


@pytest.mark.parametrize(("keys_max", "queries"), [(1, 3), (3, 3), (4, 2), (10_000, 1)])
def test_no_query_has_more_parameters_for_keys_than_it_may(
    shop: Store, monkeypatch: pytest.MonkeyPatch, keys_max: int, queries: int
) -> None:
    counts = []
    statement = DbapiReader._statement

    def counted(self: Any, *given: Any) -> Any:
        query, parameters = statement(self, *given)
        counts.append(len(parameters))
        return query, parameters

    monkeypatch.setattr(DbapiReader, "_statement", counted)
    keys = pa.table({"customer": ["ann", "ann", "bob"], "amount": [5, 6, 6]})
    with closing(shop.source(keys_max=keys_max).open(SCHEMA)) as reader:
        assert sorted(reader.rows(["customer", "amount"], keys).rows["id"].to_pylist()) == [1, 2]
    assert len(counts) == queries
    assert max(counts) <= max(2, keys_max)


def test_what_cannot_serve_is_refused_when_the_source_is_made() -> None:
    with pytest.raises(ConfigurationError, match="its driver cannot be imported"):
        dt.lookups.dbapi("nowhere_db", "t", connect={}, key="id")
    with pytest.raises(ConfigurationError, match="json is no driver by PEP 249: it has no connect"):
        dt.lookups.dbapi("json", "t", connect={}, key="id")
    with pytest.raises(PlanError, match="connect= cannot travel to the workers"):
        dt.lookups.dbapi("sqlite3", "t", connect={"factory": lambda: None}, key="id")


def test_a_stream_is_looked_up_there(shop: Store) -> None:
    stream = testing.stream("s", key="n", schema={"n": pa.int64(), "who": pa.string()})
    columns = {field.name: field.type for field in SCHEMA}
    found = stream.lookup(
        shop.source(keep_open=False), columns=columns, on={"who": "customer"}, select=["amount"]
    )
    driver = testing.Driver(found)
    names = ["ann", "eve", "Ann"]
    driver.pipe(stream, [{"n": n, "who": who} for n, who in enumerate(names)], timestamp=1)
    driver.assert_changes("""
        time | n | amount | change
        1    | 0 | 5      | upsert
        1    | 0 | 7      | upsert
        1    | 2 | 9      | upsert
    """)
