"""Lookups in a real PostgreSQL: what they read, what they survive, and what they refuse."""

from __future__ import annotations

import contextlib
import decimal
import os
import signal
import threading
import time
from datetime import date, datetime, timezone
from typing import Any

import pyarrow as pa
import pytest
from postgres_server import everything

import dovetail as dt
from dovetail.base.infinity import FIRST_DAY, FIRST_MICROSECOND, LAST_DAY, LAST_MICROSECOND
from dovetail.lookup_sources.postgres_connection import connect, deadline

psycopg = pytest.importorskip("psycopg")

SCHEMA = pa.schema([("customer", pa.string()), ("id", pa.int64()), ("amount", pa.int32())])


@pytest.fixture
def store(database: str) -> Any:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA sales")
        connection.execute(
            "CREATE TABLE sales.orders (id bigint PRIMARY KEY, customer varchar, amount int, "
            "note text, secret text)"
        )
        connection.execute("CREATE INDEX ON sales.orders (customer)")
        connection.execute(
            "INSERT INTO sales.orders VALUES (1, 'ann', 5), (2, 'bob', 6), (3, 'ann', 7), "
            "(4, NULL, 8)"
        )
        yield connection


def source(dsn: str, table: str = "sales.orders", **options: Any) -> Any:
    options = {"key": "id", "indexes": [dt.lookups.index("customer")], "retries": 2} | options
    return dt.lookups.postgres(dsn, table, **options)


def found(reader: Any, *names: str) -> list[dict[str, Any]]:
    rows = reader.rows(["customer"], pa.table({"customer": list(names)})).rows.to_pylist()
    return sorted(rows, key=lambda row: row["id"])


def test_a_batch_of_keys_finds_all_their_rows_in_the_columns_asked_for(
    database: str, store: Any
) -> None:
    reader = source(database).open(SCHEMA)
    rows = found(reader, "ann", "eve", "bob")
    assert rows == [
        {"customer": "ann", "id": 1, "amount": 5},
        {"customer": "bob", "id": 2, "amount": 6},
        {"customer": "ann", "id": 3, "amount": 7},
    ]


def test_one_query_serves_a_batch_and_uses_the_index(database: str, store: Any) -> None:
    store.execute("INSERT INTO sales.orders SELECT g, 'c' || g, 1 FROM generate_series(10, 9000) g")
    store.execute("ANALYZE sales.orders")
    reader = source(database).open(SCHEMA)
    sent: list[Any] = []
    reader._connect()
    columns = reader._store_columns(pa.schema([("customer", pa.string())]))
    query_of = reader._statement(["customer"], columns)
    plan = reader._connection.execute(
        psycopg.sql.SQL("EXPLAIN ") + query_of, [["ann", "c77"]]
    ).fetchall()
    assert any("orders_customer_idx" in line for (line,) in plan), plan
    query = reader._find_rows
    reader._find_rows = lambda *given: sent.append(given) or query(*given)
    assert len(found(reader, *(f"c{n}" for n in range(5000)))) == 4990
    assert len(sent) == 1


def test_columns_that_are_not_asked_for_are_not_read(database: str, store: Any) -> None:
    store.execute("CREATE ROLE reader LOGIN")
    store.execute("GRANT USAGE ON SCHEMA sales TO reader")
    store.execute("GRANT SELECT (id, customer, amount) ON sales.orders TO reader")
    reader = source(database.replace("user=dovetail", "user=reader")).open(SCHEMA)
    assert len(found(reader, "ann")) == 2


def test_constants_restrict_what_is_found(database: str, store: Any) -> None:
    def ids(where: Any) -> list[int]:
        schema = pa.schema([*SCHEMA, ("note", pa.string())])
        return [
            row["id"] for row in found(source(database, where=where).open(schema), "ann", "bob")
        ]

    store.execute("UPDATE sales.orders SET note = 'x' WHERE id = 3")
    assert ids({"amount": [5, 6]}) == [1, 2]
    assert ids({"note": None}) == [1, 2]
    assert ids({"note": [None, "x"], "amount": 7}) == [3]
    assert ids({"note": "'; DROP TABLE sales.orders; --"}) == []
    assert ids({"amount": [None, 5, 6.0, 6.5]}) == [1, 2]
    assert ids({"id": [2**70, 3]}) == [3]


@pytest.mark.parametrize("constants", [[5, "5"], [True, 1], [True, 0.5], [2**60 + 1, 0.5]])
def test_constants_that_no_column_has_together_are_refused(constants: list[Any]) -> None:
    with pytest.raises(dt.errors.PlanError) as refused:
        source("postgresql://me@host/db", where={"id": [None, *constants]})
    assert str(refused.value) == (
        "postgres sales.orders: where= has constants for 'id' that no column has together: "
        f"{[None, *constants]}. Give constants of the column's type."
    )


def test_several_columns_and_types_are_looked_up_together(database: str, store: Any) -> None:
    store.execute(
        'CREATE TABLE "odd ""names""" (u uuid, d date, "n.1" numeric(10, 2), t timestamptz, '
        "PRIMARY KEY (u, d))"
    )
    key = "0b1c2d3e-0000-4000-8000-000000000001"
    store.execute(
        'INSERT INTO "odd ""names""" VALUES (%s, %s, %s, %s), (%s, %s, %s, %s)',
        [key, "2024-05-01", "1.50", "2024-05-01T10:00:00+02", key, "2024-05-02", "2.50", None],
    )
    schema = pa.schema(
        [
            ("d", pa.date32()),
            ("n.1", pa.decimal128(10, 2)),
            ("t", pa.timestamp("us", "UTC")),
        ]
    )
    reader = dt.lookups.postgres(database, 'odd "names"', key=["u", "d"]).open(schema)
    keys = pa.table({"u": [key], "d": [date(2024, 5, 1)]})
    (row,) = reader.rows(["u", "d"], keys).rows.to_pylist()
    assert row["n.1"] == decimal.Decimal("1.50")
    assert row["t"] == datetime(2024, 5, 1, 8, tzinfo=timezone.utc)


def test_infinite_times_are_the_values_that_stand_for_them(database: str, store: Any) -> None:
    store.execute("CREATE TABLE terms (n int PRIMARY KEY, d date, t timestamp, z timestamptz)")
    store.execute(
        "INSERT INTO terms SELECT n, x::date, x::timestamp, x::timestamptz FROM (VALUES "
        "(1, 'infinity'), (2, '-infinity'), (3, '9999-12-31'), (4, NULL)) AS v(n, x)"
    )
    stored = {
        "d": pa.array([LAST_DAY, FIRST_DAY, 2932896, None], pa.int32()).cast(pa.date32()),
        "t": pa.array([LAST_MICROSECOND, FIRST_MICROSECOND, 2932896 * 86_400_000_000, None]),
    }
    stored["z"] = stored["t"].cast(pa.timestamp("us", "UTC"))
    expected = pa.table({"n": pa.array([1, 2, 3, 4], pa.int32()), **stored})
    expected = expected.set_column(2, "t", stored["t"].cast(pa.timestamp("us")))
    reader = dt.lookups.postgres(database, "terms", key="n").open(expected.schema)
    found = reader.rows(["n"], expected.select(["n"]))
    assert found.rows.sort_by("n").equals(expected)
    for name in ("d", "t", "z"):
        answer = reader.rows([name], expected.select([name]).slice(0, 3))
        pairs = zip(answer.rows["n"].to_pylist(), answer.key.tolist(), strict=True)
        assert sorted(pairs) == [(1, 0), (2, 1), (3, 2)]


def test_each_lookup_sees_what_was_committed_last(database: str, store: Any) -> None:
    reader = source(database).open(SCHEMA)
    assert len(found(reader, "ann")) == 2
    store.execute("UPDATE sales.orders SET amount = 50 WHERE id = 1")
    store.execute("DELETE FROM sales.orders WHERE id = 3")
    assert [row["amount"] for row in found(reader, "ann")] == [50]


def test_a_dropped_connection_is_made_again(database: str, store: Any) -> None:
    reader = source(database).open(SCHEMA)
    found(reader, "ann")
    (pid,) = reader._connection.execute("SELECT pg_backend_pid()").fetchone()
    store.execute("SELECT pg_terminate_backend(%s)", [pid])
    assert len(found(reader, "ann")) == 2
    assert reader._connection.execute("SELECT pg_backend_pid()").fetchone() != (pid,)


def test_a_server_that_comes_back_delays_a_lookup(
    database: str, store: Any, postgres_server: Any
) -> None:
    reader = source(database, retries=8).open(SCHEMA)
    found(reader, "ann")
    postgres_server.stop()
    timer = threading.Timer(1.0, postgres_server.start)
    timer.start()
    started = time.monotonic()
    try:
        assert len(found(reader, "ann")) == 2
        assert time.monotonic() - started > 0.5
    finally:
        timer.join()


def test_a_server_that_stays_away_is_an_error(database: str, store: Any) -> None:
    reader = source(database.replace("port=", "port=1"), retries=1).open(SCHEMA)
    with pytest.raises(dt.errors.ConfigurationError) as error:
        found(reader, "ann")
    assert str(error.value).startswith(
        "postgres sales.orders: no answer after 2 attempts: connection failed"
    ) or "no answer after 2 attempts" in str(error.value)
    assert "start the query again" in str(error.value)


def test_a_pooler_lends_connections_without_what_others_have_set(pooled: str, store: Any) -> None:
    with psycopg.connect(pooled, autocommit=True, prepare_threshold=None) as other:
        settings = ("TimeZone", "DateStyle", "statement_timeout", "default_transaction_read_only")

        def session() -> list[Any]:
            return [other.execute(f"SHOW {name}").fetchone() for name in settings]

        other.execute("SET TimeZone = 'Asia/Tokyo'")
        other.execute("SET DateStyle = 'SQL, DMY'")
        other.execute("SET statement_timeout = '7s'")
        before = session()
        reader = source(pooled).open(SCHEMA)
        for _ in range(3):
            assert len(found(reader, "ann")) == 2
            assert session() == before
            other.execute("UPDATE sales.orders SET amount = amount + 1")
        assert reader._connection.info.backend_pid != other.info.backend_pid
        pids = {
            c.execute("SELECT pg_backend_pid()").fetchone() for c in (other, reader._connection)
        }
        assert len(pids) == 1


def test_a_backend_behind_a_pooler_that_stands_still_is_left(pooled: str, store: Any) -> None:
    reader = source(pooled, timeout_s=0.5, retries=0).open(SCHEMA)
    found(reader, "ann")
    (pid,) = reader._connection.execute("SELECT pg_backend_pid()").fetchone()
    os.kill(pid, signal.SIGSTOP)
    started = time.monotonic()
    try:
        with pytest.raises(dt.errors.ConfigurationError, match=r"no answer within timeout_s=0\.5"):
            found(reader, "ann")
    finally:
        os.kill(pid, signal.SIGCONT)
    assert time.monotonic() - started < 4
    assert len(found(reader, "ann")) == 2


def test_a_slow_query_is_stopped_and_tried_again(database: str, store: Any) -> None:
    store.execute(
        "CREATE FUNCTION slow(x bigint) RETURNS bigint LANGUAGE plpgsql IMMUTABLE AS "
        "$$ BEGIN PERFORM pg_sleep(5); RETURN x; END $$"
    )
    store.execute("CREATE VIEW late AS SELECT slow(id) AS id, customer, amount FROM sales.orders")
    reader = source(database, "late", timeout_s=0.3, retries=1).open(SCHEMA)
    started = time.monotonic()
    with pytest.raises(
        dt.errors.ConfigurationError, match=r"postgres late: no answer after 2 .*timeout"
    ):
        found(reader, "ann")
    assert 0.6 < time.monotonic() - started < 4


def test_a_backend_that_stands_still_is_left_for_another(database: str, store: Any) -> None:
    reader = source(database, timeout_s=0.5).open(SCHEMA)
    found(reader, "ann")
    pid = reader._connection.info.backend_pid
    os.kill(pid, signal.SIGSTOP)
    started = time.monotonic()
    try:
        assert len(found(reader, "ann")) == 2
    finally:
        os.kill(pid, signal.SIGCONT)
    assert 1.4 < time.monotonic() - started < 5
    assert reader._connection.info.backend_pid != pid


def test_a_server_that_stands_still_is_an_error(
    database: str, store: Any, postgres_server: Any
) -> None:
    reader = source(database, timeout_s=0.5, retries=1).open(SCHEMA)
    found(reader, "ann")
    postmaster = int((postgres_server.data / "postmaster.pid").read_text().splitlines()[0])
    stopped = [postmaster, reader._connection.info.backend_pid]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    started = time.monotonic()
    try:
        with pytest.raises(
            dt.errors.ConfigurationError, match=r"no answer after 2 attempts: .*timeout"
        ):
            found(reader, "ann")
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    assert time.monotonic() - started < 8
    assert len(found(reader, "ann")) == 2


def test_a_query_that_is_given_up_ends_on_the_server(database: str, store: Any) -> None:
    connection = connect(database, 0.2)
    pid = connection.info.backend_pid
    with (
        pytest.raises(psycopg.OperationalError, match=r"no answer within timeout_s=0\.2"),
        deadline(connection, 0.2),
    ):
        connection.execute("SELECT pg_sleep(60)")
    running = "SELECT count(*) FROM pg_stat_activity WHERE pid = %s"
    for _ in range(50):
        if store.execute(running, [pid]).fetchone() == (0,):
            return
        time.sleep(0.1)
    pytest.fail("the query still runs")


def test_a_lost_connection_is_noticed_unless_the_dsn_says_otherwise(
    database: str, store: Any
) -> None:
    def options(dsn: str) -> dict[str, str]:
        return connect(dsn, 3.0).info.get_parameters()  # type: ignore[no-any-return]

    of = options(database)
    assert (of["keepalives_idle"], of["tcp_user_timeout"]) == ("3", "3000")
    of = options(f"{database} keepalives_idle=60 tcp_user_timeout=1000")
    assert (of["keepalives_idle"], of["tcp_user_timeout"]) == ("60", "1000")


def test_waiting_for_a_lock_delays_a_lookup(database: str, store: Any) -> None:
    reader = source(database, timeout_s=0.5, retries=8).open(SCHEMA)
    with psycopg.connect(database) as writer:
        writer.execute("LOCK TABLE sales.orders IN ACCESS EXCLUSIVE MODE")
        writer.execute("UPDATE sales.orders SET amount = 99 WHERE id = 1")
        timer = threading.Timer(0.8, writer.commit)
        timer.start()
        assert [row["amount"] for row in found(reader, "ann")] == [99, 7]
        timer.join()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("ALTER TABLE sales.orders DROP COLUMN amount", "column amount does not exist"),
        ("ALTER TABLE sales.orders RENAME COLUMN customer TO client", "customer does not exist"),
        ("DROP TABLE sales.orders", 'relation "sales.orders" does not exist'),
    ],
)
def test_a_store_that_changes_its_columns_is_an_error(
    database: str, store: Any, change: str, problem: str
) -> None:
    reader = source(database).open(SCHEMA)
    found(reader, "ann")
    store.execute(change)
    with pytest.raises(
        dt.errors.DataError, match=r"postgres sales.orders: its columns are not"
    ) as error:
        found(reader, "ann")
    assert problem in str(error.value)


def test_a_column_that_changes_its_type_is_an_error(database: str, store: Any) -> None:
    reader = source(database).open(SCHEMA)
    found(reader, "ann")
    store.execute("ALTER TABLE sales.orders ALTER COLUMN amount TYPE text USING 'many'")
    with pytest.raises(dt.errors.DataError, match=r"does not fit .* 'amount' is declared int32"):
        found(reader, "ann")


def test_a_value_that_the_declared_type_does_not_hold_is_an_error(
    database: str, store: Any
) -> None:
    store.execute("ALTER TABLE sales.orders ALTER COLUMN amount TYPE bigint")
    store.execute("UPDATE sales.orders SET amount = 5000000000 WHERE id = 1")
    with pytest.raises(dt.errors.DataError, match=r"'amount' is declared int32"):
        found(source(database).open(SCHEMA), "ann")
    assert len(found(source(database).open(SCHEMA), "bob")) == 1


def test_a_declared_key_that_is_null_is_an_error(database: str, store: Any) -> None:
    store.execute(
        "CREATE VIEW half AS SELECT NULL::bigint AS id, customer, amount FROM sales.orders"
    )
    with pytest.raises(dt.errors.DataError, match=r"key column 'id' is null"):
        found(source(database, "half").open(SCHEMA), "ann")


def test_a_lookup_cannot_write(database: str, store: Any) -> None:
    store.execute(
        "CREATE FUNCTION taken(x bigint) RETURNS bigint LANGUAGE plpgsql AS "
        "$$ BEGIN DELETE FROM sales.orders; RETURN x; END $$"
    )
    store.execute("CREATE VIEW eager AS SELECT taken(id) AS id, customer, amount FROM sales.orders")
    with pytest.raises(
        dt.errors.DataError, match=r"cannot execute DELETE in a read-only transaction"
    ):
        found(source(database, "eager").open(SCHEMA), "ann")


def test_what_is_shown_of_a_source_has_no_secrets() -> None:
    made = source(
        "postgresql://me:secret@host/db", indexes=[dt.lookups.index("customer", unique=True)]
    )
    assert made.title == "postgres sales.orders"
    assert [index.summary for index in made.indexes] == ["UNIQUE INDEX INDEX_customer (customer)"]
    assert "secret" not in repr(made)


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://me:s3cret",
        "postgresql://me:s3cret@[host/db",
        "postgresql://me:%s3cret@host/db",
        "postgresql://me@host/db?s3cret",
        "postgresql://me@host/db?password=a=s3cret",
        "host=h password='s3cret",
        "host=h password s3cret",
        "postgresql://me:s3cret@host:port@db/x",
        "postgresql://me:pa@s3cret@localhost:1/db",
        "postgresql://me:pa/s3cret@localhost:1/db",
        "postgresql://me:pa#s3cret@localhost:1/db",
        "host=127.0.0.1 port=1 user=me sslmode=s3cret",
        "host=s3cret user=me",
        "host=127.0.0.1 port=s3cret",
    ],
)
def test_no_error_shows_the_dsn(dsn: str) -> None:
    with pytest.raises((dt.errors.PlanError, dt.errors.ConfigurationError)) as error:
        found(source(dsn, retries=0).open(SCHEMA), "ann")
    assert "s3cret" not in everything(error.value)


@pytest.mark.parametrize("said", ["user=s3cret", "dbname=s3cret", "options=-cs3cret=1"])
def test_no_answer_of_the_server_shows_the_dsn(
    database: str, store: Any, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(
        dt.errors.ConfigurationError, match=r"no answer after 1 attempts: .*…"
    ) as error:
        found(source(f"{database} {said}", retries=0).open(SCHEMA), "ann")
    assert "s3cret" not in everything(error.value) + caplog.text


@pytest.mark.parametrize(
    "change",
    ["DROP TABLE sales.orders", "REVOKE SELECT ON sales.orders FROM asker", "kill", "freeze"],
)
def test_no_failure_of_a_lookup_shows_the_dsn(
    database: str, store: Any, change: str, caplog: pytest.LogCaptureFixture
) -> None:
    store.execute("CREATE ROLE asker LOGIN")
    store.execute("GRANT USAGE ON SCHEMA sales TO asker")
    store.execute("GRANT SELECT ON sales.orders TO asker")
    dsn = f"{database.replace('user=dovetail', 'user=asker')} password=s3cret"
    reader = source(dsn, timeout_s=0.2, retries=0).open(SCHEMA)
    found(reader, "ann")
    pid = reader._connection.info.backend_pid
    if change == "freeze":
        os.kill(pid, signal.SIGSTOP)
    else:
        store.execute(f"SELECT pg_terminate_backend({pid})" if change == "kill" else change)
    try:
        with pytest.raises(dt.errors.DovetailError) as error:
            found(reader, "ann")
    finally:
        if change == "freeze":
            os.kill(pid, signal.SIGCONT)
        store.execute("DROP OWNED BY asker")
        store.execute("DROP ROLE asker")
    shown = everything(error.value) + caplog.text
    assert "s3cret" not in shown
    assert "127.0.0.1" not in shown
    assert "pgconn" not in shown


def test_psycopg_missing_is_one_line_that_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(dt.errors.ConfigurationError) as error:
        source("")
    assert str(error.value) == (
        "postgres sales.orders: psycopg is not installed where it is needed. "
        "Install dovetail[postgres] for the driver and the workers."
    )


def test_a_reader_closes_its_connection(database: str, store: Any) -> None:
    reader = source(database).open(SCHEMA)
    found(reader, "ann")
    reader.close()
    with contextlib.suppress(psycopg.Error):
        reader.close()
    assert len(found(reader, "ann")) == 2
