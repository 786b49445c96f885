"""Debezium itself, on real databases: whatever happens to a table, what is read of its topic is the
table. Slow: each starts a database and Kafka Connect.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, ClassVar, Protocol

import mariadb_server
import pytest
from pyspark.sql import Row, SparkSession

import dovetail as dt
from tools import debezium, postgres

pytestmark = pytest.mark.slow

DRAIN_S = 60
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
Rows = list[tuple[Any, ...]]


class Database(Protocol):
    """A database with a table ``rows`` and a table ``marks``, and its connector."""

    columns: str
    encodings: Mapping[str, Any]
    prefix: str

    def run(self, *statements: str) -> None:
        """Run statements in one transaction."""

    def rows(self, query: str) -> Rows:
        """Return what a query answers, in the order of its first column."""

    def connector(self, **options: str) -> dict[str, str]:
        """Return the properties of a connector for both tables."""

    def forget(self) -> None:
        """Drop what the database keeps for a connector that does not come back."""

    def topic(self, table: str) -> str:
        """Return the topic of a table."""


@dataclass
class Postgres:
    """PostgreSQL, with a column for each kind of encoding."""

    dsn: str
    prefix: str
    columns = (
        "id long, note string, price decimal(10,2), moment timestamp, wall timestamp_ntz, "
        "day date, flag boolean, ratio double, tags array<string>, data binary, doc string"
    )
    encodings: ClassVar = {"price": "Decimal", "wall": "MicroTimestamp"}
    types = (
        "id bigint PRIMARY KEY, note text DEFAULT 'none', price numeric(10,2) DEFAULT 1, "
        "moment timestamptz, "
        "wall timestamp, day date, flag boolean, ratio double precision, tags text[], "
        "data bytea, doc jsonb"
    )
    shown = "id, note, price, moment, wall, day, flag, ratio, tags, data, doc::text"

    def __post_init__(self) -> None:
        self.run(f"CREATE TABLE rows ({self.types})", "CREATE TABLE marks (id bigint PRIMARY KEY)")

    def run(self, *statements: str) -> None:
        import psycopg

        with psycopg.connect(self.dsn) as connection:
            for statement in statements:
                connection.execute(statement)

    def rows(self, query: str) -> Rows:
        import psycopg

        with psycopg.connect(self.dsn) as connection:
            connection.execute("SET TimeZone = 'UTC'")
            return sorted(connection.execute(query).fetchall(), key=lambda row: row[0])

    def connector(self, **options: str) -> dict[str, str]:
        tables = "public.rows,public.marks"
        return debezium.postgres(
            self.dsn, tables, prefix=self.prefix, slot_name=self.prefix, **options
        )

    def forget(self) -> None:
        import psycopg

        drop = "SELECT pg_drop_replication_slot(%s)"
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            asked = "SELECT count(*) FROM pg_replication_slots WHERE active"
            while connection.execute(asked).fetchone() != (0,):
                pass
            connection.execute(drop, [self.prefix])

    def topic(self, table: str) -> str:
        return f"{self.prefix}.public.{table}"

    def value(self, draw: random.Random) -> str:
        """Return the literals of a row, but for its key."""
        text = draw.choice(["NULL", "''", "'Łódź'", "'a''b'"])
        number = draw.choice(["NULL", "0.01", "-0.01", "99999999.99", "-128.50"])
        moment = draw.choice(["NULL", "'2024-03-31 01:30:00.123456+02'", "'1969-12-31 23:59:59Z'"])
        wall = draw.choice(["NULL", "'2024-03-31 02:30:00.000001'", "'1900-01-01'"])
        tags = draw.choice(["NULL", "'{}'", "'{a,NULL,b}'"])
        data = draw.choice(["NULL", "''", r"'\x00ff80'"])
        doc = draw.choice(["NULL", """'{"a": [1, null]}'""", "'null'"])
        rest = draw.choice(
            ["'2024-02-29', true, 0.5", "'0001-01-01', false, -1e300", "NULL" + ", NULL" * 2]
        )
        return f"{text}, {number}, {moment}, {wall}, {rest}, {tags}, {data}, {doc}"


@dataclass
class MariaDb:
    """MariaDB, with a column for each kind of encoding."""

    socket: str
    port: int
    prefix: str
    servers: str
    columns = (
        "id long, note string, price decimal(10,2), moment timestamp, wall timestamp_ntz, "
        "day date, flag boolean, ratio double, data binary, kind string"
    )
    encodings: ClassVar = {"price": "Decimal", "wall": "MicroTimestamp"}
    types = (
        "id bigint PRIMARY KEY, note text DEFAULT 'none', price decimal(10,2) DEFAULT 1, "
        "moment timestamp(6) NULL, "
        "wall datetime(6), day date, flag boolean, ratio double, data blob, kind enum('x','y')"
    )
    shown = "id, note, price, moment, wall, day, flag, ratio, data, kind"

    def __post_init__(self) -> None:
        import pymysql

        with pymysql.connect(unix_socket=self.socket, user="root") as connection:
            cursor = connection.cursor()
            cursor.execute("CREATE USER debezium@'%' IDENTIFIED BY 'none'")
            cursor.execute("GRANT ALL ON *.* TO debezium@'%'")
            cursor.execute("CREATE DATABASE shop CHARACTER SET utf8mb4")
        self.run(
            f"CREATE TABLE `rows` ({self.types})", "CREATE TABLE marks (id bigint PRIMARY KEY)"
        )

    def _connect(self) -> Any:
        import pymysql

        connection = pymysql.connect(unix_socket=self.socket, user="root", database="shop")
        connection.cursor().execute("SET time_zone = '+00:00'")
        return connection

    def run(self, *statements: str) -> None:
        with self._connect() as connection:
            for statement in statements:
                connection.cursor().execute(statement.replace(" rows", " `rows`"))
            connection.commit()

    def rows(self, query: str) -> Rows:
        with self._connect() as connection, connection.cursor() as cursor:
            cursor.execute(query.replace(" rows", " `rows`"))
            utc = [
                tuple(
                    v.replace(tzinfo=timezone.utc) if names[n] == "moment" and v else v
                    for n, v in enumerate(row)
                )
                for names in [[column[0] for column in cursor.description]]
                for row in cursor.fetchall()
            ]
            return sorted(utc, key=lambda row: row[0])

    def connector(self, **options: str) -> dict[str, str]:
        tables = "shop.rows,shop.marks"
        return debezium.mariadb(self.port, tables, self.servers, prefix=self.prefix, **options)

    def forget(self) -> None:
        """Nothing: the binary log knows of no connector."""

    def topic(self, table: str) -> str:
        return f"{self.prefix}.shop.{table}"

    def value(self, draw: random.Random) -> str:
        """Return the literals of a row, but for its key."""
        text = draw.choice(["NULL", "''", "'Łódź'", "'a''b'"])
        number = draw.choice(["NULL", "0.01", "-0.01", "99999999.99", "-128.50"])
        moment = draw.choice(["NULL", "'2024-03-31 01:30:00.123456'", "'1970-01-01 00:00:01'"])
        wall = draw.choice(["NULL", "'2024-03-31 02:30:00.000001'", "'1900-01-01'"])
        rest = draw.choice(
            ["'2024-02-29', true, 0.5", "'1000-01-01', false, -1e300", "NULL" + ", NULL" * 2]
        )
        data = draw.choice(["NULL, NULL", "'', 'x'", "x'00ff80', 'y'"])
        return f"{text}, {number}, {moment}, {wall}, {rest}, {data}"


@pytest.fixture(scope="module")
def logical() -> Iterator[postgres.Server]:
    """A server that decodes its log."""
    try:
        with postgres.running("-c fsync=off -c wal_level=logical") as server:
            yield server
    except postgres.MissingError as missing:
        pytest.skip(str(missing))


@pytest.fixture
def on_postgres(logical: postgres.Server) -> Callable[[str], Postgres]:
    """Make a database on PostgreSQL; what is given is its prefix."""

    def make(prefix: str) -> Postgres:
        import psycopg

        with psycopg.connect(logical.dsn(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {prefix}")
        return Postgres(logical.dsn(prefix), prefix)

    return make


@pytest.fixture
def on_mariadb(kafka_servers: str) -> Iterator[Callable[[str], MariaDb]]:
    """Make a database on MariaDB; what is given is its prefix."""
    port = postgres.free_port()
    binlog = ("--log-bin=binlog", "--binlog-format=ROW", "--binlog-row-image=FULL", "--server-id=1")
    with mariadb_server.running(f"--port={port}", "--bind-address=127.0.0.1", *binlog) as socket:
        yield lambda prefix: MariaDb(socket, port, prefix, kafka_servers)


class Feed:
    """A database whose connector is started, killed and waited for."""

    def __init__(
        self, spark: SparkSession, servers: str, database: Any, folder: Path, **options: str
    ) -> None:
        self.database, self.servers, self.spark = database, servers, spark
        schemas = options.pop("schemas", "") == "true"
        self.worker = debezium.Worker(folder, servers, database.connector(**options), schemas)
        self.marks = 0

    def drain(self) -> None:
        """Wait until the topics have all that has been committed."""
        deadline = time.monotonic() + DRAIN_S
        for _ in range(2):  # the first mark may overtake records of other topics
            self.marks += 1
            self.database.run(f"INSERT INTO marks VALUES ({self.marks})")
            while self._marked() < self.marks:
                self.worker.refuse_failed()
                assert time.monotonic() < deadline, self.worker.log.read_text()[-3000:]
                time.sleep(0.3)

    def _marked(self) -> int:
        records = self.spark.read.format("kafka").option("kafka.bootstrap.servers", self.servers)
        topic = self.database.topic("marks")
        loaded = records.option("subscribePattern", topic.replace(".", "[.]")).load()
        return loaded.select("key").distinct().count()

    def table(self, columns: str, *, encodings: Any = None, **options: Any) -> dt.Table:
        """The table as its topic says it, now."""
        read = {name: options.pop(name) for name in ("malformed", "streaming") if name in options}
        names = {column.split()[0] for column in columns.split(", ")}
        known = self.database.encodings.items()
        encodings = encodings or {name: one for name, one in known if name in names}
        return dt.Table.from_topic(
            self.spark,
            self.database.topic("rows"),
            servers=self.servers,
            key_columns="id",
            value=dt.formats.debezium(columns, encodings=encodings, **options),
            name="rows",
            **{"streaming": False, **read},
        )

    def rows(self, columns: str, **options: Any) -> Rows:
        """The table's current rows."""
        names = [column.split()[0] for column in columns.split(", ")]
        found = self.table(columns, **options).changelog(emit="batch").collect()
        return sorted((_plain(row, names) for row in found), key=lambda row: row[0])


def _plain(row: Row, names: Sequence[str]) -> tuple[Any, ...]:
    plain = []
    for name in names:
        value = row[name]
        if isinstance(value, datetime) and name == "moment":
            value = value.astimezone(timezone.utc)
        plain.append(bytes(value) if isinstance(value, bytearray) else value)
    return tuple(plain)


@contextmanager
def started(feed: Feed) -> Iterator[Feed]:
    """Start the connector, and kill it at the end."""
    feed.worker.start()
    try:
        yield feed
    finally:
        feed.worker.kill()


def trade(database: Any, draw: random.Random, changes: int, shift: int = 0) -> None:
    """Insert, update, delete and move rows at random, a few in each transaction."""
    for _ in range(changes):
        statements = []
        for _ in range(draw.randint(1, 3)):
            key, other = draw.randrange(12) + shift, draw.randrange(12) + 100 + shift
            again = f"DELETE FROM rows WHERE id = {key}"
            insert = f"INSERT INTO rows VALUES ({key}, {database.value(draw)})"
            price = draw.choice(["NULL", "1.25", "-7.00"])
            statements += draw.choice(
                [
                    [again, insert],
                    [again, insert],
                    [f"UPDATE rows SET price = {price} WHERE id = {key}"],
                    [f"UPDATE rows SET note = 'n{other}' WHERE id >= {key}"],
                    [again],
                    [
                        f"DELETE FROM rows WHERE id = {other}",
                        f"UPDATE rows SET id = {other} WHERE id = {key}",
                    ],
                    [
                        f"DELETE FROM rows WHERE id = {key}",
                        f"UPDATE rows SET id = {key} WHERE id = {other}",
                    ],
                ]
            )
        database.run(*statements)


@pytest.mark.parametrize("schemas", ["false", "true"])
@pytest.mark.parametrize("kind", ["on_postgres", "on_mariadb"])
def test_the_topic_is_the_table(
    kind: str,
    schemas: str,
    request: pytest.FixtureRequest,
    kafka_spark: SparkSession,
    kafka_servers: str,
    tmp_path: Path,
) -> None:
    """Through a snapshot, changes of keys and values, a kill, and a column more."""
    draw = random.Random(7)
    database = request.getfixturevalue(kind)(f"feed{schemas}")
    trade(database, draw, 20)
    feed = Feed(kafka_spark, kafka_servers, database, tmp_path / "connect", schemas=schemas)
    with started(feed):
        feed.drain()  # a snapshot that is broken off leaves rows that go before the next one
        trade(database, draw, 30)
        feed.worker.kill()  # records that it has sent, but not noted, come again
        trade(database, draw, 10)
        feed.worker.start()
        feed.drain()
        assert feed.rows(database.columns) == database.rows(f"SELECT {database.shown} FROM rows")
        database.run("ALTER TABLE rows ADD COLUMN extra int")
        trade_wider(database, draw)
        feed.drain()
        wider = feed.rows(f"{database.columns}, extra int")
        assert wider == database.rows(f"SELECT {database.shown}, extra FROM rows")
        assert any(row[-1] is not None for row in wider)
        assert feed.rows(database.columns) == database.rows(f"SELECT {database.shown} FROM rows")


def trade_wider(database: Any, draw: random.Random) -> None:
    """Change rows of a table that has got one more column."""
    for key in range(200, 205):
        database.run(f"INSERT INTO rows VALUES ({key}, {database.value(draw)}, {key})")
    database.run("UPDATE rows SET extra = 1 WHERE id < 6", "DELETE FROM rows WHERE id = 203")


LARGE = (
    "t text, b bytea, j jsonb, ta text[], ia int[], la bigint[], ua uuid[], da date[], ba bytea[], "
    "h hstore"
)
LARGE_COLUMNS = (
    "id long, n int, t string, b binary, j string, ta array<string>, ia array<int>, "
    "la array<long>, ua array<string>, da array<date>, ba array<binary>, h map<string,string>"
)
LARGE_VALUES = """
    (SELECT string_agg(md5(g::text), '') FROM generate_series(1, 400) g) AS t,
    (SELECT string_agg(sha256(g::text::bytea), '') FROM generate_series(1, 400) g) AS b,
    to_jsonb((SELECT string_agg(md5(g::text), '') FROM generate_series(1, 400) g)) AS j,
    (SELECT array_agg(md5(g::text)) FROM generate_series(1, 400) g) AS ta,
    (SELECT array_agg((random() * 1e9)::int) FROM generate_series(1, 4000)) AS ia,
    (SELECT array_agg((random() * 1e18)::bigint) FROM generate_series(1, 4000)) AS la,
    (SELECT array_agg(md5(g::text)::uuid) FROM generate_series(1, 1000) g) AS ua,
    (SELECT array_agg(current_date + (random() * 9000)::int) FROM generate_series(1, 4000)) AS da,
    (SELECT array_agg(sha256(g::text::bytea)) FROM generate_series(1, 400) g) AS ba,
    hstore('k', (SELECT string_agg(md5(g::text), '') FROM generate_series(1, 400) g)) AS h
"""


def test_large_values_that_have_not_changed(
    on_postgres: Callable[[str], Postgres],
    kafka_spark: SparkSession,
    kafka_servers: str,
    tmp_path: Path,
) -> None:
    """Their placeholders are found in each column; with ``unsent="keep"`` rows are the table's."""
    database = on_postgres("large")
    database.run(
        "CREATE EXTENSION hstore",
        "DROP TABLE rows",
        f"CREATE TABLE rows (id bigint PRIMARY KEY, n int, {LARGE})",
        "INSERT INTO rows SELECT g, 1, large.* FROM generate_series(1, 3) g, "
        f"(SELECT {LARGE_VALUES}) large",
    )
    options = {"hstore_handling_mode": "map"}
    feed = Feed(kafka_spark, kafka_servers, database, tmp_path / "connect", **options)
    with started(feed):
        database.run(
            "UPDATE rows SET n = 2 WHERE id = 1",
            "UPDATE rows SET n = 2, t = 'short', ia = NULL WHERE id = 2",
            "DELETE FROM rows WHERE id = 3",
            "UPDATE rows SET n = 3 WHERE id = 2",
        )
        feed.drain()
    for column in LARGE_COLUMNS.split(", ")[2:]:
        columns = f"id long, n int, {column}"
        letters = feed.table(columns, malformed="dead_letter").dead_letters().collect()
        name = column.split()[0]
        assert letters, column
        assert all(
            name in one["_problem"] and "REPLICA IDENTITY" in one["_problem"] for one in letters
        )
    shown = "id, n, t, b, j::text, ta, ia, la, ua::text[], da, ba, h::text"
    (first, second) = feed.rows(LARGE_COLUMNS, unsent="keep")
    for found, wanted in zip(
        (first, second), database.rows(f"SELECT {shown} FROM rows"), strict=True
    ):
        assert [*found[:10]] == [*wanted[:10]]
        assert [bytes(one) for one in found[10]] == wanted[10]
        assert f'"k"=>"{found[11]["k"]}"' == wanted[11]


MOVING = 8009
MOVES_S = 300


def test_keys_that_move_within_a_transaction(
    on_postgres: Callable[[str], Postgres],
    kafka_spark: SparkSession,
    kafka_servers: str,
    tmp_path: Path,
) -> None:
    """Each transaction changes all rows, then gives them each other's keys. The connector dies
    within it.
    """
    database = on_postgres("moving")
    database.run(
        "DROP TABLE rows",
        "CREATE TABLE rows (id bigint PRIMARY KEY DEFERRABLE, note text)",
        "ALTER TABLE rows REPLICA IDENTITY FULL",
        f"INSERT INTO rows SELECT g, 'row ' || g FROM generate_series(0, {MOVING - 1}) g",
    )
    folder, transactions = tmp_path / "connect", {"provide_transaction_metadata": "true"}
    feed = Feed(kafka_spark, kafka_servers, database, folder, **transactions)

    def sent() -> int:
        records = kafka_spark.read.format("kafka").option("kafka.bootstrap.servers", kafka_servers)
        return records.option("subscribe", database.topic("rows")).load().count()

    with started(feed):
        feed.drain()
        for factor in (7, 5):
            until = sent() + 2 * MOVING
            database.run(
                "UPDATE rows SET note = note || '.'",
                f"UPDATE rows SET id = (id * {factor} + 1) % {MOVING}",
            )
            wait_until(lambda: sent() > until)  # noqa: B023 -- called in the same turn
            feed.worker.kill()
            feed.worker.start()
        database.run(
            f"UPDATE rows SET id = id + {MOVING} WHERE id < 9", "DELETE FROM rows WHERE id = 9"
        )
        wanted = database.rows("SELECT id, note FROM rows")
        columns = "id long, note string"
        wait_until(lambda: feed.rows(columns, transactions=True) == wanted)
        assert feed.rows(columns) != wanted


def wait_until(holds: Callable[[], bool]) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + MOVES_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.3)


INFINITE = (
    "id bigint PRIMARY KEY, moment timestamptz, wall timestamp, milli timestamp(3), day date, "
    "moments timestamptz[], walls timestamp[], days date[]"
)


def test_infinity(
    on_postgres: Callable[[str], Postgres],
    kafka_spark: SparkSession,
    kafka_servers: str,
    tmp_path: Path,
) -> None:
    """It is the same value from a snapshot, from the log, with and without schemas."""
    database = on_postgres("infinite")
    row = (
        "'{0}', '{0}', '{0}', '{0}', '{{infinity,-infinity,2024-05-01}}', "
        "'{{infinity,-infinity,2024-05-01}}', '{{infinity,-infinity,2024-05-01}}'"
    )
    first = [f"INSERT INTO rows VALUES ({n}, {row.format(n * '-' + 'infinity')})" for n in (0, 1)]
    database.run("DROP TABLE rows", f"CREATE TABLE rows ({INFINITE})", *first)
    feed = Feed(kafka_spark, kafka_servers, database, tmp_path / "connect")
    with started(feed):
        database.run(
            "INSERT INTO rows SELECT id + 2, moment, wall, milli, day, moments, walls, days "
            "FROM rows"
        )
        feed.drain()
    columns = (
        "id long, moment timestamp, wall timestamp_ntz, milli timestamp_ntz, day date, "
        "moments array<timestamp>, walls array<timestamp_ntz>, days array<date>"
    )
    stamp = "MicroTimestamp"
    encodings = {"wall": stamp, "milli": "Timestamp", "walls": stamp}
    rows = feed.rows(columns, encodings=encodings)
    last, least = datetime(9999, 12, 30, 23, 59, 59, 999999), datetime(1, 1, 3)  # noqa: DTZ001
    middle = datetime(2024, 5, 1)  # noqa: DTZ001
    for number, found in enumerate(rows):
        end = least if number % 2 else last
        moments = [one.astimezone(timezone.utc).replace(tzinfo=None) for one in found[5]]
        assert found[1].replace(tzinfo=None) == end
        assert found[2:5] == (end, end, end.date())
        assert moments == [last, least, middle]
        assert found[6] == [last, least, middle]
        assert found[7] == [last.date(), least.date(), middle.date()]


def test_a_second_snapshot_lets_rows_leave(
    on_postgres: Callable[[str], Postgres],
    kafka_spark: SparkSession,
    kafka_servers: str,
    tmp_path: Path,
) -> None:
    """A connector that has lost its place reads the tables again; rows deleted since then leave."""
    database = on_postgres("again")
    database.run("DROP TABLE rows", "CREATE TABLE rows (id bigint PRIMARY KEY, note text)")
    database.run("INSERT INTO rows VALUES (1, 'a'), (2, 'b'), (3, 'c'), (4, 'd')")
    columns = "id long, note string"
    feed = Feed(kafka_spark, kafka_servers, database, tmp_path / "first")
    with started(feed):
        database.run("UPDATE rows SET note = 'e' WHERE id = 4")
        feed.drain()
    database.forget()
    database.run("DELETE FROM rows WHERE id IN (2, 4)", "INSERT INTO rows VALUES (5, 'f')")
    feed.worker = debezium.Worker(tmp_path / "second", kafka_servers, database.connector())
    with started(feed):
        database.run("UPDATE rows SET note = 'g' WHERE id = 1")
        feed.drain()
    stays = {row[0] for row in feed.rows(columns)}
    assert stays == {1, 2, 3, 4, 5}
    metadata = {"snapshot": "source.snapshot", "read_ms": "ts_ms"}
    present = feed.table(columns, metadata=metadata).retire(snapshot="snapshot", at="read_ms")
    found = present.changelog(emit="batch").collect()
    assert sorted((row.id, row.note) for row in found) == database.rows("SELECT * FROM rows")
