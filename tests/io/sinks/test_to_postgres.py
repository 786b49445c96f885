"""A table in a real PostgreSQL that equals a query's result: contents, restarts, kills, ownership,
types, and what is refused.

Run as a script, this module is a driver that is killed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from datetime import date, datetime, timezone
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import drivers
import pytest
import small_session
from bench.parameters import slow_after
from parquet_rows import add_file, arrow_table
from postgres_server import everything
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import dovetail as dt
from dovetail.io.sinks.postgres import batch as sink_module
from dovetail.io.sinks.postgres.sink import PostgresSink
from dovetail.plan.nodes import changelog_schema

psycopg = pytest.importorskip("psycopg")

START = datetime(2024, 1, 1, tzinfo=timezone.utc)
CHANGES = "id long, v string, at timestamp"
ORDERS = "id long, name string, zone long, v string, at timestamp"

Rows = list[tuple[Any, ...]]


class Place:
    """Files of a table, checkpoints, and a database."""

    def __init__(self, spark: SparkSession, directory: Path, dsn: str) -> None:
        self.spark, self.directory, self.dsn = spark, directory, dsn
        self._files = 0
        (directory / "in" / "none").mkdir(parents=True, exist_ok=True)

    def come(self, *rows: tuple[Any, ...], schema: str = CHANGES, folder: str = "in") -> None:
        """A file of changes, a micro-batch of its own; a row without a value is a tombstone."""
        place = self.directory / folder / f"{self._files}"
        self._placed(add_file(place, [(*row, START) for row in rows], schema))

    def write(self, frame: DataFrame, folder: str = "in") -> None:
        written = self.directory / folder / f"{self._files}"
        frame.coalesce(1).write.parquet(str(written))
        (file,) = written.glob("*.parquet")
        self._placed(file)

    def _placed(self, file: Path) -> None:
        os.utime(file, (self._files, self._files))
        self._files += 1

    def table(self, schema: str = CHANGES, folder: str = "in", **options: Any) -> dt.Table:
        reader = self.spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
        options = {"key": "id", "deleted": F.col("v").isNull(), "name": "t"} | options
        frame = reader.parquet(str(self.directory / folder / "*"))
        return dt.Table.from_changelog(frame, timestamp="at", **options)

    def stream(self) -> dt.Stream:
        """The changes as records."""
        return self.table(deleted=None, name="s").to_stream()

    def writer(
        self, of: Any = None, query: str = "q", name: str = "t", **options: Any
    ) -> Callable[[DataFrame, int], None]:
        """What writes the micro-batches of a query, without the query; the table is checked."""
        sink = dt.to_postgres(self.dsn, name, **{"retries": 0, **options})
        plan = (self.table() if of is None else of).plan
        return sink.batches(self.spark, plan, str(self.directory / f"of {query}"))

    def hand_over(
        self,
        number: int,
        changes: DataFrame | Sequence[tuple[Any, ...]],
        of: Any = None,
        query: str = "q",
        **options: Any,
    ) -> None:
        """Write a micro-batch, as a query of this id hands it over. A table's row without a value
        is a delete.
        """
        of = self.table() if of is None else of
        write = self.writer(of, query, **options)
        checkpoint = self.directory / f"of {query}"
        (checkpoint / "commits").mkdir(parents=True, exist_ok=True)
        (checkpoint / "metadata").write_text(json.dumps({"id": query}))
        if not isinstance(changes, DataFrame):
            changes = self.changes(changes, of)
        write(changes, number)
        (checkpoint / "commits" / str(number)).touch()

    def changes(self, rows: Sequence[tuple[Any, ...]], of: Any = None) -> DataFrame:
        """The changes of a micro-batch. A table's row without a value is a delete."""
        of = self.table() if of is None else of
        schema, deletes = changelog_schema(of.plan), isinstance(of, dt.Table)
        changes = [
            (*row, "delete" if deletes and row[-1] is None else "upsert", START, position)
            for position, row in enumerate(rows)
        ]
        return self.spark.createDataFrame(arrow_table(changes, schema), schema)

    def run(
        self, topology: Any = None, checkpoint: str = "checkpoint", name: str = "t", **options: Any
    ) -> None:
        topology = self.table() if topology is None else topology
        topology.write_stream(
            dt.to_postgres(self.dsn, name, **{"retries": 0, **options}),
            checkpoint=str(self.directory / checkpoint),
            trigger={"availableNow": True},
            buckets=2,
        ).awaitTermination()

    def sql(self, text: str) -> Rows:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            cursor = connection.execute(text)
            return cursor.fetchall() if cursor.description else []

    def rows(self, table: str = "t", columns: str = "id, v") -> Rows:
        return self.sql(f"SELECT {columns} FROM {table} ORDER BY {columns}")

    def batch(self, table: str = "t") -> Rows:
        return self.sql(f"SELECT batch_id FROM dovetail_queries WHERE table_name = '{table}'")

    def columns(self, table: str = "t") -> dict[str, str]:
        return dict(
            self.sql(
                "SELECT attname::text, format_type(atttypid, atttypmod) FROM pg_attribute "
                f"WHERE attrelid = '{table}'::regclass AND attnum > 0 ORDER BY attnum"
            )
        )

    def left_over(self) -> Rows:
        """Tables that nobody needs any more."""
        return self.sql("SELECT relname FROM pg_class WHERE relname LIKE 'dovetail_changes%'")


@pytest.fixture
def place(spark: SparkSession, tmp_path: Path, database: str) -> Place:
    return Place(spark, tmp_path, database)


WAYS = ["driver", "tasks"]
both_ways = pytest.mark.parametrize("way", WAYS, indirect=True)


@pytest.fixture(params=slow_after(1, WAYS))
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Rows come through the driver, or from tasks."""
    if request.param == "tasks":
        monkeypatch.setattr(sink_module, "ROWS_MAX", 0)
    return str(request.param)


def refused(
    place: Place,
    *parts: str,
    error: type[dt.errors.DovetailError] = dt.errors.TargetError,
    **options: Any,
) -> None:
    """When the sink of a query is made, before it starts."""
    with pytest.raises(error) as raised:
        place.writer(**options)
    for part in parts:
        assert part in str(raised.value), raised.value


def failed(place: Place, *parts: str, **options: Any) -> None:
    """While the query runs."""
    with pytest.raises(StreamingQueryException) as raised:
        place.run(**options)
    first = str(raised.value).partition("\n\n")[0]
    for part in parts:
        assert part in first, first


# Contents.


def test_the_table_is_what_the_changelog_says(place: Place, way: str) -> None:
    place.come((1, "a"), (2, "b"), (1, "c"), (3, None))
    place.come((2, None), (4, "d"), (4, None), (5, "e"), (5, None), (5, "f"))
    place.run()
    assert place.rows() == [(1, "c"), (5, "f")]
    assert place.columns() == {
        "id": "bigint",
        "v": "text",
        "_timestamp": "timestamp with time zone",
    }
    assert place.rows(columns="id, _timestamp") == [(1, START), (5, START)]
    assert place.batch() == [(1,)]
    place.come((1, None), (6, "g"))
    place.run()
    assert place.rows() == [(5, "f"), (6, "g")]
    assert place.batch() == [(2,)]
    assert place.left_over() == []


def test_many_rows_are_copied_by_several_tasks(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks: list[dict[int, int]] = []
    copied = sink_module.PostgresTable.run_copy_tasks

    def noted(self: Any, kept: DataFrame, staging: str) -> dict[int, int]:
        tasks.append(copied(self, kept, staging))
        return tasks[-1]

    monkeypatch.setattr(sink_module.PostgresTable, "run_copy_tasks", noted)
    # Each key changes three times, in several tasks; every tenth is deleted at last.
    number = F.col("n")
    changes = place.spark.range(0, 60_000, 1, 3).select(F.col("id").alias("n"))
    last = number >= 40_000
    changes = changes.select(
        (number % 20_000).alias("id"),
        F.concat(F.lit("v"), number).alias("v"),
        F.when(last & (number % 10 == 0), "delete").otherwise("upsert").alias("_change"),
        F.lit(START).alias("_timestamp"),
        number.alias("_position"),
    )
    place.hand_over(0, changes)
    place.hand_over(1, changes.where("id = 3").limit(1))
    assert [sorted(one.values()) for one in tasks] == [[20_000] * 3]
    assert place.rows()[:4] == [(1, "v40001"), (2, "v40002"), (3, "v3"), (4, "v40004")]
    assert place.sql("SELECT count(*), count(*) FILTER (WHERE v = 'v' || id + 40000) FROM t") == [
        (18_000, 17_999)
    ]
    assert place.left_over() == []


def test_floats_that_spark_takes_for_equal_are_one_key(place: Place, way: str) -> None:
    schema = "id double, v string, at timestamp"
    nan = float("nan")
    place.come((0.0, "a"), (nan, "b"), (1.5, "c"), schema=schema)
    place.come((-0.0, "d"), (nan, None), (float("inf"), "e"), schema=schema)
    place.run(place.table(schema))
    assert place.rows() == [(0.0, "d"), (1.5, "c"), (float("inf"), "e")]


@pytest.mark.slow
@both_ways
def test_nulls_are_keys(place: Place, way: str) -> None:
    customers = "name string, zone long, v string, at timestamp"
    place.come((1, "ann", 1, "a"), (2, "bob", 2, "b"), (3, None, None, "c"), schema=ORDERS)
    place.come(("ann", 1, "x"), ("eve", 1, "y"), ("eve", 2, "z"), schema=customers, folder="right")
    orders = place.table(ORDERS)
    joined = orders.join(
        place.table(customers, "right", key=["name", "zone"], name="customers"),
        on=["name", "zone"],
        how="outer",
        select={"v": "left.v", "w": "right.v"},
    )
    place.run(joined)
    key = "id, right_name, right_zone"
    assert [*place.columns()] == ["id", "right_name", "right_zone", "v", "w", "_timestamp"]
    ann, bob = (1, None, None, "a", "x"), (2, None, None, "b", None)
    none = (3, None, None, "c", None)
    eve = [(None, "eve", 1, None, "y"), (None, "eve", 2, None, "z")]
    assert place.rows(columns=f"{key}, v, w") == [ann, bob, none, *eve]
    place.come((1, None, None, None), (3, None, None, None), schema=ORDERS)
    place.come(("eve", 2, None), schema=customers, folder="right")
    place.run(joined)
    assert place.rows(columns=f"{key}, v, w") == [bob, (None, "ann", 1, None, "x"), eve[0]]
    assert place.sql("SELECT indnullsnotdistinct FROM pg_index WHERE indrelid = 't'::regclass") == [
        (True,)
    ]


def test_records_are_appended_once(place: Place, way: str) -> None:
    stream = place.stream()
    for number in (0, 1, 1):
        place.hand_over(number, [[(1, "a"), (1, "a")], [(2, None)]][number], stream)
    changes = [(1, "a", "upsert"), (1, "a", "upsert"), (2, None, "upsert")]
    assert place.rows(columns="id, v, _change") == changes
    # Another query's go beside them.
    place.hand_over(0, [(1, "a")], stream, query="another")
    assert place.rows(columns="id, v, _change") == [changes[0], *changes]
    assert sorted(place.batch()) == [(0,), (1,)]
    refused(
        place, "existing= is for tables", error=dt.errors.PlanError, of=stream, existing="adopt"
    )


@both_ways
def test_all_types_are_kept_as_they_are(place: Place, way: str) -> None:
    nested = "struct<a: double, b: timestamp, c: string>"
    columns = {
        "byte": ("tinyint", "smallint", [-128, 127, None]),
        "short": ("smallint", "smallint", [-32768, 32767, None]),
        "int": ("int", "integer", [-(2**31), 2**31 - 1, None]),
        "long": ("bigint", "bigint", [-(2**63), 2**63 - 1, None]),
        "float": ("float", "real", [0.1, float("-inf"), None]),
        "double": ("double", "double precision", [-0.0, float("nan"), None]),
        "large": ("double", "double precision", [1.7976931348623157e308, 5e-324, None]),
        "bool": ("boolean", "boolean", [True, False, None]),
        "text": ("string", "text", ['a,"b"\n\\\t\r☃\U0001f600', "", None]),
        "bytes": ("binary", "bytea", [b"\x00\xff\\", b"", None]),
        "price": (
            "decimal(38,18)",
            "numeric(38,18)",
            [Decimal("-1.5" + 17 * "0"), Decimal("1" + 19 * "0" + "." + 18 * "0"), None],
        ),
        "day": ("date", "date", [date(1, 1, 1), date(9999, 12, 31), None]),
        "instant": (
            "timestamp",
            "timestamp with time zone",
            [datetime(1, 1, 4, tzinfo=timezone.utc), START.replace(microsecond=1), None],
        ),
        "local": (
            "timestamp_ntz",
            "timestamp without time zone",
            [datetime.min, datetime.max, None],  # noqa: DTZ901
        ),
        "texts": ("array<string>", "text[]", [['"', "\\", None, "NULL", "", "{,}"], [], None]),
        "days": ("array<date>", "date[]", [[date(2024, 2, 29), None], [], None]),
        "blobs": ("array<binary>", "bytea[]", [[b"\x00", b""], [], None]),
        "flags": ("array<boolean>", "boolean[]", [[True, False], [None], None]),
        'odd "name" % {x}': (
            nested,
            "jsonb",
            [(0.5, START, 'q"'), (float("nan"), None, "\\u0000"), None],
        ),
        "map": ("map<string, array<int>>", "jsonb", [{"a": [1, None]}, {}, None]),
        "rows": ("array<array<int>>", "jsonb", [[[1], [2, 3]], [], None]),
    }
    declared = ", ".join(f"`{name}` {type_}" for name, (type_, _, _) in columns.items())
    table = place.table(f"id long, {declared}, at timestamp", deleted=None)
    rows = [(n, *(v[n] for _, _, v in columns.values()), "upsert", START, n) for n in range(3)]
    schema = changelog_schema(table.plan)
    place.hand_over(0, place.spark.createDataFrame(rows, schema).coalesce(1), table)
    stored = place.columns()
    assert [*stored] == ["id", *columns, "_timestamp"]
    json_values = {
        'odd "name" % {x}': [
            {"a": 0.5, "b": "2024-01-01T00:00:00.000000Z", "c": 'q"'},
            {"a": "NaN", "b": None, "c": "\\u0000"},
            None,
        ],
    }
    for name, (_, type_, values) in columns.items():
        assert stored[name] == type_, name
        quoted = name.replace('"', '""')
        kept = [value for (value,) in place.sql(f'SELECT "{quoted}" FROM t ORDER BY id')]
        if name == "instant":
            kept = [instant and instant.astimezone(timezone.utc) for instant in kept]
        assert repr(kept) == repr(json_values.get(name, values)), name


@pytest.mark.slow
def test_a_value_that_a_column_does_not_have_is_an_error(place: Place, way: str) -> None:
    place.sql("CREATE TYPE mood AS ENUM ('sad', 'ok')")
    made = "_timestamp timestamptz"
    for type_, value, shown in [
        ("text", "a\0b", "column v of text does not have the value 'a\\x00b', of key id=7"),
        ("uuid", "0B1C2D3E-0000-4000-8000-000000000001", "column v of uuid does not have"),
        ("varchar(2)", "ab ", "column v of character varying(2) does not have the value 'ab '"),
        ("mood", "glad", "column v of mood does not have the value 'glad'"),
    ]:
        place.come((7, value), folder=type_)
        place.sql(
            f"DROP TABLE IF EXISTS t; CREATE TABLE t (id bigint PRIMARY KEY, v {type_}, {made})"
        )
        table = place.table(folder=type_)
        failed(place, f"to_postgres('t'): {shown}", topology=table, checkpoint=f"of {type_}")
        assert place.rows() == []
    schema = "id long, v array<string>, at timestamp"
    place.sql("DROP TABLE t")
    place.write(place.spark.createDataFrame([(8, ["b", "\0"], START)], schema), "arrays")
    failed(
        place, "column v of text[] does not", topology=place.table(schema, "arrays"), checkpoint="a"
    )
    long_ago = place.spark.range(1).select(
        F.lit(9).cast("long").alias("id"),
        F.expr("date'2024-01-01' + 3000000").alias("v"),
        F.lit(START).alias("at"),
    )
    place.sql("DROP TABLE t")
    place.write(long_ago, "days")
    schema = "id long, v date, at timestamp"
    failed(
        place,
        "column v of date does not have",
        topology=place.table(schema, "days"),
        checkpoint="d",
    )
    assert place.left_over() == []


def test_what_the_table_refuses_is_an_error(place: Place, way: str) -> None:
    place.sql(
        "CREATE TABLE t (id bigint PRIMARY KEY, v text, _timestamp timestamptz, CHECK (id < 9))"
    )
    place.hand_over(0, [(1, "a")])
    refusal = "PostgreSQL refuses what is written: new row for relation .* check constraint"
    with pytest.raises(dt.errors.TargetError, match=refusal):
        place.hand_over(1, [(9, "b"), (2, "b")])
    assert place.rows() == [(1, "a")]
    assert place.batch() == [(0,)]
    place.sql("ALTER TABLE t DROP CONSTRAINT t_id_check")
    place.hand_over(1, [(9, "b"), (2, "b")])
    assert place.rows() == [(1, "a"), (2, "b"), (9, "b")]


# Restarts.


def test_a_batch_is_taken_once_and_in_order(place: Place, way: str) -> None:
    place.hand_over(0, [(1, "a")])
    place.hand_over(0, [(1, "b"), (2, "b")])
    assert place.rows() == [(1, "a")]
    place.hand_over(1, [(1, None)])
    assert place.rows() == []
    place.sql("INSERT INTO t VALUES (5, 'x', now())")
    for number, last in [(0, 1), (3, 1)]:
        with pytest.raises(
            dt.errors.TargetError, match=f"up to {last}, and the next one is {number}: "
        ):
            place.hand_over(number, [(1, "c")])
    assert place.rows() == [(5, "x")]
    assert place.batch() == [(1,)]


def test_a_repartition_is_no_micro_batch_of_the_table(place: Place) -> None:
    """It takes a number of Spark's micro-batches, and writes to no sink."""
    place.come((1, "a"))
    place.run()
    for partitions in (1, 2):
        dt.checkpoints.repartition(
            place.spark, place.directory / "checkpoint", partitions=partitions
        )
    place.come((1, "b"))
    place.run()
    assert place.rows() == [(1, "b")]
    assert place.batch() == [(3,)]
    place.sql("UPDATE dovetail_queries SET batch_id = 0")
    place.come((1, "c"))
    failed(place, "up to 0, and the next one is 4")


@pytest.mark.parametrize(("kind", "few"), slow_after(0, [("table", "few"), ("stream", "many")]))
def test_a_kill_loses_and_doubles_nothing(place: Place, kind: str, few: str) -> None:
    for batch in range(3):
        place.come(*((n, f"{batch}") for n in range(batch, batch + 4)), (batch, None))
    for moment, last in [("within", []), ("after", [(1,)])]:
        arguments = (str(place.directory), place.dsn, kind, few, moment)
        with drivers.running(__file__, *arguments, folder=place.directory) as driver:
            assert driver.wait(timeout=300) == -signal.SIGKILL
        assert place.batch() == last
    place.run(getattr(place, kind)())
    assert place.batch() == [(2,)]
    assert place.left_over() == []
    changes = [(n, f"{batch}") for batch in range(3) for n in range(batch, batch + 4)]
    if kind == "table":
        assert place.rows() == [(n, f"{min(n, 2)}") for n in range(3, 6)]
    else:
        assert place.rows() == sorted([*changes, *((batch, None) for batch in range(3))], key=str)


def kill(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die(directory: str, dsn: str, kind: str, few: str, moment: str) -> None:
    """Run the query until it is killed in its first transaction, or after its second."""
    session = small_session.builder().config("spark.sql.shuffle.partitions", "2").getOrCreate()
    place = Place(session, Path(directory), dsn)
    if few == "many":
        sink_module.ROWS_MAX = 0
    take = sink_module.PostgresTables.write

    def dying(self: Any, batch: DataFrame, number: int) -> None:
        take(self, batch, number)
        if number == 1:
            kill()

    if moment == "within":
        sink_module.TargetTable.record_batch = kill  # type: ignore[method-assign]
    else:
        sink_module.PostgresTables.write = dying  # type: ignore[method-assign]
    place.run(getattr(place, kind)())


def test_a_transaction_whose_end_is_not_heard_is_not_repeated(
    place: Place, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = sink_module.TargetTable.record_batch
    lost = []

    def losing(self: Any, cursor: Any, query: str, batch: int) -> None:
        ends(self, cursor, query, batch)
        if not lost:
            lost.append(cursor.connection.info.backend_pid)
            cursor.execute("COMMIT")
            place.sql(f"SELECT pg_terminate_backend({lost[0]}, 5000)")

    monkeypatch.setattr(sink_module.TargetTable, "record_batch", losing)
    place.hand_over(0, [(1, "a")], place.stream(), retries=1)
    assert lost
    assert place.rows() == [(1, "a")]


def test_a_server_that_comes_back_delays_a_batch(
    place: Place, way: str, postgres_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep, timers = sink_module.keep, []

    def stopping(frame: DataFrame) -> DataFrame:
        if not timers:
            postgres_server.stop()
            timers.append(threading.Timer(1.0, postgres_server.start))
            timers[0].start()
        return keep(frame)

    monkeypatch.setattr(sink_module, "keep", stopping)
    try:
        place.hand_over(0, [(1, "a")], retries=10)
    finally:
        timers[0].join()
    assert place.rows() == [(1, "a")]


def test_rows_that_the_server_loses_on_their_way_are_copied_again(
    place: Place, postgres_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_module, "ROWS_MAX", 0)
    lock, attempts = sink_module.TargetTable.lock, []

    def crashing(self: Any, cursor: Any, query: str) -> None:
        lock(self, cursor, query)
        attempts.append(place.left_over())
        if len(attempts) == 1:
            # What is not logged is empty after a crash.
            place.sql(f'TRUNCATE "{attempts[0][0][0]}"')

    monkeypatch.setattr(sink_module.TargetTable, "lock", crashing)
    place.hand_over(0, [(n, "a") for n in range(5)], retries=1)
    assert [len(one) for one in attempts] == [1, 1]
    assert place.rows() == [(n, "a") for n in range(5)]


# What is there already.


def test_rows_that_are_there_are_refused_replaced_or_adopted(place: Place, way: str) -> None:
    place.sql(
        "CREATE TABLE t (id bigint PRIMARY KEY, v text, _timestamp timestamptz);"
        "INSERT INTO t VALUES (2, 'x', now()), (9, 'y', now())"
    )
    refused(place, "has rows that this query has not written", "existing='replace'")
    place.hand_over(0, [(1, "a"), (2, "b")], existing="adopt")
    assert place.rows() == [(1, "a"), (2, "b"), (9, "y")]
    place.hand_over(1, [(1, None)])
    assert place.rows() == [(2, "b"), (9, "y")]
    refused(place, "has rows", query="another")
    place.hand_over(0, [(2, "b")], query="another", existing="replace")
    assert place.rows() == [(2, "b")]
    refused(place, "it is not the table that this checkpoint has kept")
    place.hand_over(1, [(3, "c")], query="another", existing="replace")
    assert place.rows() == [(2, "b"), (3, "c")]
    place.sql("DROP TABLE t")
    refused(place, "the table that this checkpoint has kept is gone", query="another")


AGAIN = "DROP TABLE t; CREATE TABLE t (id bigint PRIMARY KEY, v text, _timestamp timestamptz)"


@pytest.mark.parametrize(
    ("made", "emptied"),
    slow_after(1, [("PARTITION BY HASH (id)", "TRUNCATE t"), (None, AGAIN)]),
)
def test_rows_that_are_lost_are_noticed(place: Place, made: str | None, emptied: str) -> None:
    """At a start, at its first micro-batch, and at a later one."""
    if made is not None:
        place.sql(
            f"{AGAIN.removeprefix('DROP TABLE t; ')} {made};"
            "CREATE TABLE t0 PARTITION OF t FOR VALUES WITH (MODULUS 1, REMAINDER 0)"
        )
    lost = "the table is empty, and was truncated, created anew or altered after"
    changes = place.changes([(1, "a")])
    place.hand_over(0, changes)
    place.sql("VACUUM FULL t")
    write = place.writer()
    write(changes, 1)
    place.sql(emptied)
    refused(place, lost, "existing='adopt'")
    with pytest.raises(dt.errors.TargetError, match=lost):
        write(changes, 2)
    place.hand_over(2, changes, existing="adopt")
    write = place.writer()
    place.sql(emptied)
    with pytest.raises(dt.errors.TargetError, match=lost):
        write(changes, 3)
    assert place.rows() == []
    assert place.batch() == [(2,)]


@pytest.mark.slow
def test_a_table_that_another_query_takes_over_is_left_to_it(place: Place) -> None:
    place.come((1, "a"))
    table = place.table()
    running = table.write_stream(
        dt.to_postgres(place.dsn, "t"), checkpoint=str(place.directory / "one"), buckets=2
    )
    running.processAllAvailable()
    place.run(checkpoint="two", existing="replace")
    place.come((2, "b"))
    with pytest.raises(StreamingQueryException, match="another query has taken the table over"):
        running.processAllAvailable()
    assert place.rows() == [(1, "a")]


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ("id bigint PRIMARY KEY, _timestamp timestamptz", "v is missing"),
        ("id bigint PRIMARY KEY, v text, w int, _timestamp timestamptz", "w is not among the"),
        (
            "id integer PRIMARY KEY, v bytea, _timestamp timestamp",
            "id is integer and comes as bigint, v is bytea and comes as text, _timestamp is",
        ),
        (
            "id bigint PRIMARY KEY, v text, _timestamp timestamptz(3)",
            "_timestamp is timestamp(3) with time zone and comes as timestamp with time zone",
        ),
        ("id bigint, v text, _timestamp timestamptz", "is not unique by its key (id)"),
        ("id bigint, v text UNIQUE, _timestamp timestamptz, UNIQUE (id, v)", "is not unique by"),
        ("id bigint UNIQUE DEFERRABLE, v text, _timestamp timestamptz", "is not unique by its"),
        (
            "id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY, v text, _timestamp timestamptz",
            'itself fills the column id, and takes no values. ALTER TABLE … ALTER "id" SET',
        ),
    ],
)
def test_a_table_that_does_not_fit_is_refused(place: Place, columns: str, problem: str) -> None:
    place.sql(f"CREATE TABLE t ({columns})")
    for existing in ("fail", "replace", "adopt"):
        refused(place, "to_postgres('t'): ", problem, existing=existing)


def test_a_column_that_is_altered_while_the_query_runs_is_refused(place: Place) -> None:
    changes = place.changes([(1, "a")])
    place.hand_over(0, changes)
    write = place.writer()
    place.sql("ALTER TABLE t ALTER v TYPE varchar(9), ADD w int")
    write(changes, 1)
    place.sql("ALTER TABLE t ALTER _timestamp TYPE timestamptz(0)")
    shown = "_timestamp is timestamp.0. with time zone and comes as timestamp with time zone"
    with pytest.raises(dt.errors.TargetError, match=f"has other columns: {shown}"):
        write(changes, 2)
    assert place.batch() == [(1,)]


def test_a_table_with_wider_columns_of_a_schema_is_kept(place: Place, way: str) -> None:
    place.sql(
        'CREATE SCHEMA "s %"; CREATE TABLE "s %".t '
        "(v varchar(9), _timestamp timestamptz, id numeric(20) UNIQUE NOT NULL) "
        "PARTITION BY HASH (id);"
        'CREATE TABLE "s %".t0 PARTITION OF "s %".t FOR VALUES WITH (MODULUS 1, REMAINDER 0)'
    )
    place.hand_over(0, [(1, "a"), (2, "b")], name="s %.t")
    place.hand_over(1, [(1, None), (2, "c")], name="s %.t")
    assert place.rows('"s %".t') == [(2, "c")]
    assert place.sql('SELECT table_name, batch_id FROM "s %".dovetail_queries') == [("t", 1)]


def test_what_is_no_table_or_loses_its_rows_is_refused(place: Place) -> None:
    place.sql("CREATE VIEW t AS SELECT 1::bigint AS id, 'v' AS v, now() AS _timestamp")
    refused(place, "it is no table")
    place.sql("CREATE UNLOGGED TABLE u (id bigint PRIMARY KEY, v text, _timestamp timestamptz)")
    refused(place, "the table is unlogged", name="u")
    refused(place, 'schema "nope" does not exist', name="nope.t")


def test_types_that_postgresql_or_json_lacks_are_refused(place: Place) -> None:
    table, odd = place.table(), partial(refused, place, error=dt.errors.PlanError)
    for column in ("interval 1 hour", "array(array(interval 1 hour))"):
        of = table.with_columns(w=F.expr(column))
        odd("column 'w' of type", "PostgreSQL has no type for it", of=of)
    for keys in ("date", "timestamp", "binary", "array<int>"):
        of = table.with_columns(w=F.lit(None).cast(f"array<map<{keys}, int>>"))
        odd(f"JSON has no text for the keys of map<{keys},int>", of=of)


@both_ways
def test_a_name_with_a_backtick_is_a_name(place: Place, way: str) -> None:
    table = place.table("`a.``b` long, v string, at timestamp", key="a.`b")
    place.hand_over(0, [(1, "a"), (2, None)], table)
    assert place.rows(columns='"a.`b", v') == [(1, "a")]


def test_names_and_keys_that_postgresql_lacks_are_refused(place: Place) -> None:
    long = place.table().rename({"v": "v" * 64})
    refused(place, "its name is longer than 63 bytes", error=dt.errors.PlanError, of=long)
    of = place.table("id struct<a: long>, v string, at timestamp")
    refused(place, "a key needs plain values", error=dt.errors.PlanError, of=of)


# Servers and secrets.


def test_a_server_that_is_gone_is_named_without_secrets(place: Place) -> None:
    place.come((1, "a"))
    place.dsn = "host=127.0.0.1 port=1 user=me password=s3cret dbname=d"
    with pytest.raises(dt.errors.ConfigurationError) as raised:
        place.run()
    assert str(raised.value).startswith("to_postgres('t'): no answer after 1 attempts: ")
    assert "See that it runs and can be reached" in str(raised.value)
    assert "s3cret" not in everything(raised.value)
    assert "s3cret" not in repr(dt.to_postgres(place.dsn, "t"))


def test_a_server_that_goes_fails_the_query_without_secrets(
    place: Place, way: str, postgres_server: Any
) -> None:
    place.come((1, "a"))
    place.dsn += " password=s3cret"
    table = place.table()
    running = table.write_stream(
        dt.to_postgres(place.dsn, "t", retries=0),
        checkpoint=str(place.directory / "checkpoint"),
        buckets=2,
    )
    running.processAllAvailable()
    postgres_server.stop()
    try:
        place.come((2, "b"))
        with pytest.raises(
            StreamingQueryException, match=r"to_postgres\('t'\): no answer"
        ) as raised:
            running.processAllAvailable()
    finally:
        postgres_server.start()
    shown = everything(raised.value)
    assert "s3cret" not in shown
    assert "127.0.0.1" not in shown
    place.run()
    assert place.rows() == [(1, "a"), (2, "b")]


def test_a_user_who_may_not_write_is_told_what_is_needed(place: Place) -> None:
    place.come((1, "a"))
    place.sql("CREATE ROLE onlooker LOGIN")
    denied = "does not let this user write: permission denied.* GRANT it USAGE and"
    owner, place.dsn = place.dsn, place.dsn.replace("user=dovetail", "user=onlooker")
    try:
        with pytest.raises(dt.errors.TargetError, match=denied):
            place.run()
        assert not place.spark.streams.active
    finally:
        place.dsn = owner
        place.sql("DROP ROLE onlooker")


def test_a_pooler_serves(place: Place, way: str, pooled: str) -> None:
    place.dsn = pooled
    place.come((1, "a"))
    place.come((1, "b"))
    place.run()
    assert place.rows() == [(1, "b")]


# Several sinks.


def test_several_sinks_of_one_query(place: Place, way: str) -> None:
    """Rows of one table refer to those of the other, so each micro-batch is one transaction."""
    place.sql(
        "CREATE TABLE t (id bigint PRIMARY KEY, v text UNIQUE, _timestamp timestamptz);"
        "CREATE TABLE other (id bigint PRIMARY KEY REFERENCES t ON DELETE RESTRICT, v text, "
        "_timestamp timestamptz)"
    )
    place.come((1, "a"), (2, "b"))
    place.come((1, "c"), (2, None))
    table, stream = place.table(), place.stream()

    def run() -> None:
        dt.run(
            {
                table: [dt.to_postgres(place.dsn, "t"), dt.to_postgres(place.dsn, "other")],
                stream: dt.to_postgres(place.dsn, "s"),
            },
            checkpoint=place.directory / "checkpoint",
            trigger={"availableNow": True},
            buckets=2,
        ).awaitTermination()

    run()
    assert place.rows() == place.rows("other") == [(1, "c")]
    assert place.rows("s") == [(1, "a"), (1, "c"), (2, "b"), (2, None)]
    place.sql("ALTER TABLE other ADD CHECK (id < 3)")
    place.come((3, "d"))
    with pytest.raises(
        StreamingQueryException, match=r"to_postgres\('other'\): PostgreSQL refuses"
    ):
        run()
    place.sql("ALTER TABLE other DROP CONSTRAINT other_id_check")
    run()
    assert place.rows() == place.rows("other") == [(1, "c"), (3, "d")]
    assert len(place.rows("s")) == 5
    with pytest.raises(dt.errors.PlanError, match=r"results= has to_postgres\('t'\) twice"):
        dt.run(
            {table: [dt.to_postgres(place.dsn, "t"), dt.to_postgres(place.dsn, "t", retries=1)]},
            checkpoint=place.directory / "other",
        )


def test_foreign_keys_between_users_are_looked_for_after_an_outage(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = [OSError("the connection is lost")]
    look = sink_module.PostgresTable.refuse_reference

    def once(*arguments: Any) -> None:
        if failing:
            raise failing.pop()
        look(*arguments)

    monkeypatch.setattr(sink_module.PostgresTable, "refuse_reference", once)
    place.sql("CREATE ROLE second LOGIN SUPERUSER")
    second = place.dsn.replace("user=dovetail", "user=second")
    node, checkpoint = place.table().plan, str(place.directory / "checkpoint")

    def joint() -> None:
        sinks = [dt.to_postgres(place.dsn, "t", retries=1), dt.to_postgres(second, "u", retries=1)]
        PostgresSink.joint(place.spark, [(sink, node) for sink in sinks], checkpoint)

    try:
        joint()
        assert not failing
        place.sql("ALTER TABLE u ADD FOREIGN KEY (id) REFERENCES t")
        with pytest.raises(dt.errors.TargetError, match=r"foreign key .* two users write the two"):
            joint()
        failing += [OSError("and again"), OSError("it is lost")]
        with pytest.raises(dt.errors.ConfigurationError, match="no answer after 2 attempts: and"):
            joint()
    finally:
        place.sql("DROP OWNED BY second; DROP ROLE second")


if __name__ == "__main__":
    die(*sys.argv[1:])
