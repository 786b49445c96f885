"""A stream's records looked up in a store: what each is answered by, wherever it runs."""

from __future__ import annotations

import json
import os
import random
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType

import dovetail as dt
from dovetail import testing
from dovetail.errors import ConfigurationError, DataError, PlanError
from dovetail.lookup_sources.sqlite import SqliteLookup, SqliteReader
from dovetail.operators.joins.lookup import Caches, TaskLookups
from dovetail.physical.specs.lookup import store_lookup
from dovetail.plan.fingerprint import fingerprint
from dovetail.spark.execution.wire import rows_of_input

Row = dict[str, Any]
USERS = [
    (1, "ann", "Oslo", 7),
    (2, "bob", "Bonn", None),
    (3, "Ann", "Rome", 9),
    (4, "ann", "Bern", 7),
    (5, None, "Kiel", 8),
]
COLUMNS = {"id": pa.int64(), "name": pa.string(), "city": pa.string(), "code": pa.int64()}
NEW_YEAR = "2024-01-02T00:00:00Z"
SEVEN = "if(right.code is null, raise_error('no code'), right.code)"
CLICK = {"click": pa.int64(), "user": pa.string(), "who": pa.int64()}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "users.db"
    with closing(sqlite3.connect(path)) as store:
        store.execute("CREATE TABLE users (id INTEGER PRIMARY KEY, name TEXT, city TEXT, code INT)")
        store.execute("CREATE INDEX by_name ON users (name)")
        store.executemany("INSERT INTO users VALUES (?, ?, ?, ?)", USERS)
        store.commit()
    return path


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[list[Row]]]:
    """The keys of each lookup that reaches a store."""
    asked: list[list[Row]] = []
    rows = SqliteReader.rows

    def asking(reader: SqliteReader, by: Sequence[str], keys: pa.Table) -> Any:
        asked.append(keys.to_pylist())
        return rows(reader, by, keys)

    monkeypatch.setattr(SqliteReader, "rows", asking)
    return asked


def users(path: Path, **options: Any) -> Any:
    options = {"key": "id", "indexes": [dt.lookups.index("name")]} | options
    return dt.lookups.sqlite(path, "users", **options)


def clicks() -> dt.Stream:
    return testing.stream("clicks", key="click", schema=CLICK)


def change(store: Path, statement: str) -> None:
    with closing(sqlite3.connect(store)) as connection:
        connection.execute(statement)
        connection.commit()


def test_a_record_is_answered_by_the_row_of_its_key_or_alone(path: Path) -> None:
    stream = clicks()
    rows = [{"click": 7, "who": 2}, {"click": 8, "who": 9}, {"click": 7, "who": 1}, {"click": 9}]
    found = stream.lookup(users(path), columns=COLUMNS, on="who", how="left")
    driver = testing.Driver(found)
    driver.pipe(stream, rows, timestamp=[5, 3, 4, 6])
    driver.assert_changes("""
        time | click | user | who | name | city | code | change
        5    | 7     |      | 2   | bob  | Bonn |      | upsert
        3    | 8     |      | 9   |      |      |      | upsert
        4    | 7     |      | 1   | ann  | Oslo | 7    | upsert
        6    | 9     |      |     |      |      |      | upsert
    """)
    assert driver.counts == {}
    inner = stream.lookup(users(path), columns=COLUMNS, on="who", select=["city"], name="known")
    driver = testing.Driver(inner)
    driver.pipe(stream, rows, timestamp=[5, 3, 4, 6])
    driver.pipe(stream, {"click": 1, "who": 1}, timestamp=7, deleted=True)
    driver.assert_changes("""
        time | click | city | change
        5    | 7     | Bonn | upsert
        4    | 7     | Oslo | upsert
    """)
    assert driver.counts == {"known.dropped": 2}


def test_rows_that_an_index_finds_come_in_the_order_of_the_primary_key(path: Path) -> None:
    """And are those whose column is the record's to the letter."""
    change(path, "CREATE TABLE nocase (id INTEGER PRIMARY KEY, name TEXT COLLATE NOCASE)")
    change(path, "INSERT INTO nocase SELECT 10 - id, name FROM users")
    stream = clicks()
    source = dt.lookups.sqlite(path, "nocase", key="id", indexes=[dt.lookups.index("name")])
    columns = {"name": pa.string(), "id": pa.int64()}
    found = stream.lookup(source, columns=columns, on={"user": "name"}, select=["user", "id"])
    driver = testing.Driver(found)
    names = ["Ann", "eve", "ann", None, "ann"]
    driver.pipe(stream, [{"click": n, "user": name} for n, name in enumerate(names)], timestamp=1)
    driver.assert_changes("""
        time | click | user | id | change
        1    | 0     | Ann  | 7  | upsert
        1    | 2     | ann  | 6  | upsert
        1    | 2     | ann  | 9  | upsert
        1    | 4     | ann  | 6  | upsert
        1    | 4     | ann  | 9  | upsert
    """)


@pytest.mark.parametrize("how", ["inner", "left"])
@pytest.mark.parametrize("cached", [None, dt.lookups.cache(max_age="1 hour", rows=3)])
def test_however_a_stream_is_cut_its_records_are_answered_alike(
    path: Path, how: Any, cached: Any
) -> None:
    """A plain model, a dictionary of rows, says how, while the store rests."""
    rng = random.Random(f"{how} {cached}")
    by: dict[str | None, list[tuple[Any, ...]]] = {}
    for row in USERS:
        by.setdefault(row[1], []).append(row)
    given = [
        {"click": rng.randrange(3), "user": rng.choice(["ann", "bob", "Ann", "eve", "", None])}
        for _ in range(40)
    ]
    expected = []
    for row in given:
        met = [] if row["user"] is None else by.get(row["user"], [])
        alone = [(None, None, None, None)] if how == "left" else []
        expected += [(row["click"], row["user"], one[0], one[2]) for one in met or alone]
    stream = clicks()
    found = stream.lookup(
        users(path),
        columns=COLUMNS,
        on={"user": "name"},
        how=how,
        select=["user", "id", "city"],
        cache=cached,
    )
    for most in (1, 5, 40):
        driver, left, came = testing.Driver(found), list(given), []
        while left:
            size = rng.randint(1, most)
            batch, left = left[:size], left[size:]
            came += driver.pipe(stream, batch, timestamp=1)
        assert [(c.key["click"], *c.values.values()) for c in came] == expected


def test_what_the_store_has_when_a_micro_batch_runs_answers_it(
    path: Path, asked: list[list[Row]]
) -> None:
    """Each key is asked for once in a micro-batch, and nothing comes when the store changes."""
    stream = clicks()
    found = stream.lookup(users(path), columns=COLUMNS, on="who", select=["city"])
    driver = testing.Driver(found)
    rows = [{"click": n, "who": who} for n, who in enumerate([1, 2, 1, 1])]
    assert [c.values["city"] for c in driver.pipe(stream, rows, timestamp=1)] == [
        *("Oslo", "Bonn", "Oslo", "Oslo")
    ]
    assert sorted(key["id"] for key in asked.pop()) == [1, 2]
    change(path, "UPDATE users SET city = 'Graz' WHERE id = 1")
    assert driver.pipe(stream, {"click": 1, "who": 1}, timestamp=2)[0].values == {"city": "Graz"}
    assert asked == [[{"id": 1}]]


def answering(path: Path, now: list[int], caches: Caches, **options: Any) -> TaskLookups:
    found = clicks().lookup(
        users(path), columns=COLUMNS, on="who", how="left", select=["city"], **options
    )
    return TaskLookups(store_lookup(found.plan), caches, lambda: now[0])  # type: ignore[arg-type]


def cities(task: TaskLookups, *keys: int | None) -> list[Any]:
    records = pa.table({"click": pa.array(keys, pa.int64()), "who": pa.array(keys, pa.int64())})
    live = np.ones(len(keys), np.bool_)
    return [city for _, (found,) in task.join_records(records, live) for city in found.to_pylist()]


def test_what_is_cached_is_never_older_than_its_age(path: Path, asked: list[list[Row]]) -> None:
    """By the time before the store was asked; also that a key has no rows."""
    now, caches = [0], {}  # type: ignore[var-annotated]
    options = {"cache": dt.lookups.cache(max_age="1 min")}
    task = answering(path, now, caches, **options)
    assert cities(task, 1, 9, 1) == ["Oslo", None, "Oslo"]
    change(path, "UPDATE users SET city = 'Graz' WHERE id = 1")
    change(path, "INSERT INTO users VALUES (9, 'eve', 'Lund', 1)")
    now[0] = 59_999_999
    later = answering(path, now, caches, **options)
    assert cities(later, 9, 2, 1) == [None, "Bonn", "Oslo"]
    assert (later.hits, later.misses) == (2, 1)
    now[0] = 60_000_000
    assert cities(answering(path, now, caches, **options), 1, 9, 2) == ["Graz", "Lund", "Bonn"]
    now[0] = 1  # the clock was set back: of what was asked later nothing is believed
    assert cities(answering(path, now, caches, **options), 2) == ["Bonn"]
    assert [[key["id"] for key in keys] for keys in map(_in_order, asked)] == [
        *([1, 9], [2], [1, 9], [2])
    ]


def _in_order(keys: list[Row]) -> list[Row]:
    return sorted(keys, key=lambda key: key["id"])


def test_a_cache_keeps_the_rows_that_were_used_last(path: Path, asked: list[list[Row]]) -> None:
    now, caches = [0], {}  # type: ignore[var-annotated]
    for key, reached in ((1, True), (2, True), (1, False), (3, True), (1, False), (2, True)):
        now[0] += 1
        task = answering(path, now, caches, cache=dt.lookups.cache(max_age="1 min", rows=2))
        assert cities(task, key) == [USERS[key - 1][2]]
        assert [[key["id"]] for (key,) in asked] == ([[key]] if reached else [])
        asked.clear()


def test_without_a_cache_a_task_remembers_and_the_next_one_does_not(
    path: Path, asked: list[list[Row]]
) -> None:
    now, caches = [0], {}  # type: ignore[var-annotated]
    task = answering(path, now, caches)
    assert cities(task, 1, None, 2) == ["Oslo", None, "Bonn"]
    assert cities(task, 2, 3) == ["Bonn", "Rome"]
    assert task.counts == [1, 3, 0, 0]
    assert cities(answering(path, now, caches), 2) == ["Bonn"]
    assert [len(keys) for keys in asked] == [2, 1, 1]
    assert not caches


def test_lookups_chain_with_views_joins_and_aggregates(path: Path) -> None:
    """Two lookups, a join with a table and an aggregate, in one topology."""
    change(path, "CREATE TABLE cities (city TEXT PRIMARY KEY, land TEXT)")
    change(path, "INSERT INTO cities VALUES ('Oslo', 'Norway'), ('Bonn', 'Germany')")
    stream = clicks()
    plans = testing.table("plans", key="who", schema={"who": pa.int64(), "plan": pa.string()})
    land = {"city": pa.string(), "land": pa.string()}
    located = (
        stream.join(plans, on="who", how="left")
        .lookup(users(path), columns=COLUMNS, on="who", select=["plan", "city"])
        .lookup(dt.lookups.sqlite(path, "cities", key="city"), columns=land, on="city", how="left")
    )
    lands = located.group_by("land").agg(clicks=dt.count())
    driver = testing.Driver(located, lands)
    driver.pipe(plans, {"who": 2, "plan": "free"}, timestamp=1)
    driver.pipe(stream, [{"click": n, "who": n} for n in (1, 2, 3, 9)], timestamp=2)
    driver.assert_changes(
        """
        time | click | plan | city | land    | change
        2    | 1     |      | Oslo | Norway  | upsert
        2    | 2     | free | Bonn | Germany | upsert
        2    | 3     |      | Rome |         | upsert
        """,
        located,
    )
    driver.assert_changes(
        """
        time | land    | clicks | change
        2    | Norway  | 1      | upsert
        2    | Germany | 1      | upsert
        """,
        lands,
    )


def test_explain_shows_where_by_what_and_what_is_kept(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clicks().lookup(
        users(path),
        columns=COLUMNS,
        on={"user": "name"},
        select=["user", "city"],
        cache=dt.lookups.cache(max_age="10 min"),
    ).explain()
    assert capsys.readouterr().out == (
        "Topology\n"
        "inner lookup in sqlite users on user = name  (key click; user, city)\n"
        "└─ clicks  (key click; user, who)\n"
        "\n"
        "Stage 1\n"
        "  shuffle  clicks by key (click bigint)\n"
        "  state    none\n"
        "  lookup   sqlite users by INDEX INDEX_name (name): name, id, city; "
        "cache 10,000 rows a process, for 10 min\n"
    )


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"on": "who", "columns": {"name": pa.string()}}, "columns= lacks 'id'"),
        ({"on": {"user": "city"}}, "no index of sqlite users is in on= city"),
        ({"on": {"user": "town"}}, "unknown column 'town'"),
        ({"on": {"who": "id", "click": "id"}}, "occurs twice"),
        ({"on": "user"}, "clicks.user is string, sqlite users.id is bigint"),
        ({}, "without on= the key of clicks is (click bigint)"),
        ({"on": "who", "columns": COLUMNS | {"user": pa.string()}}, "have a value column 'user'"),
        ({"on": "who", "columns": COLUMNS | {"_key": pa.int8(), "_k0": pa.int8()}}, "'_k0'"),
        ({"on": "who", "select": ["nope"]}, "select= names an unknown column 'nope'"),
        ({"on": "who", "select": {"click": "right.id"}}, "column 'click' occurs twice"),
    ],
)
def test_a_lookup_that_cannot_be_is_refused(path: Path, arguments: Any, problem: str) -> None:
    with pytest.raises(PlanError, match="lookup of clicks: ") as caught:
        clicks().lookup(users(path), **({"columns": COLUMNS} | arguments))
    assert problem in str(caught.value)


def test_a_store_that_does_not_keep_its_promise_fails_the_batch(path: Path) -> None:
    stream = clicks()
    source = users(path, key="code", indexes=[dt.lookups.index("name", unique=True)])
    by_code = stream.lookup(source, columns=COLUMNS, on={"who": "code"}, how="left")
    with pytest.raises(DataError, match="two rows that are one by its primary key"):
        testing.Driver(by_code).pipe(stream, {"click": 1, "who": 7}, timestamp=1)
    source = users(path, indexes=[dt.lookups.index("name", unique=True)])
    by_name = stream.lookup(source, columns=COLUMNS, on={"user": "name"}, how="left")
    driver = testing.Driver(by_name)
    with pytest.raises(DataError, match="two rows that are one by a unique index"):
        driver.pipe(stream, {"click": 1, "user": "ann"}, timestamp=1)
    assert driver.pipe(stream, {"click": 1, "user": "bob"}, timestamp=1)[0].values["city"] == "Bonn"
    wrong = stream.lookup(users(path), columns=COLUMNS | {"city": pa.int64()}, on="who")
    with pytest.raises(DataError, match="column 'city' is declared int64"):
        testing.Driver(wrong).pipe(stream, {"click": 1, "who": 1}, timestamp=1)


def test_a_query_asks_the_store_in_each_micro_batch(
    spark: SparkSession, path: Path, tmp_path: Path
) -> None:
    """Expressions over the joined row, dead letters, and what is counted."""
    given = tmp_path / "clicks"
    given.mkdir()

    def put(name: str, *rows: Row) -> None:
        lines = [json.dumps({"at": "2024-05-01T10:00:00Z", **row}) for row in rows]
        (given / name).write_text("\n".join(lines))
        time = int(name[0]) * 1000  # files are read in the order of their times
        os.utime(given / name, (time, time))

    columns = "click long, `the.user` string, at timestamp, tags array<string>, gone boolean"
    live = spark.readStream.schema(columns).option("maxFilesPerTrigger", 1).json(str(given))
    stream = dt.Stream.from_changelog(
        live, key="click", timestamp="at", deleted="gone", name="clicks"
    )
    doubled = F.when(F.col("right").isNotNull(), 2 * F.coalesce("code", F.raise_error("no code")))

    def found(source: Any) -> dt.Stream:
        return stream.lookup(
            source,
            columns="id long, name string, city string, code long",
            on={"the.user": "name"},
            how="left",
            select={"t": "tags", "home": "city", "n": doubled, "user": "left.the.user"},
            errors="dead_letter",
            name="located",
        )

    located: list[list[Row]] = []

    def take(batch: DataFrame, _: int) -> None:
        located.append([row.asDict() for row in batch.collect()])
        change(path, "UPDATE users SET city = 'Graz' WHERE id = 1")

    put("1.json", *({"click": 1, "the.user": who, "tags": ["a"]} for who in ("ann", "bob", "eve")))
    put("2.json", {"click": 2, "gone": True}, {"click": 2, "the.user": "ann"}, {"click": 3})
    query = found(users(path)).write_stream(
        dt.to_foreach_batch(take),
        checkpoint=tmp_path / "checkpoint",
        trigger={"availableNow": True},
        buckets=1,
        partitions=1,
    )
    query.awaitTermination()
    assert [
        [(row["click"], row["user"], row["t"], row["home"], row["n"]) for row in batch]
        for batch in located
    ] == [
        [
            (1, "ann", ["a"], "Oslo", 14),
            (1, "ann", ["a"], "Bern", 14),
            (1, "eve", ["a"], None, None),
        ],
        [(2, "ann", None, "Graz", 14), (2, "ann", None, "Bern", 14), (3, None, None, None, None)],
    ]
    counts = [p.observedMetrics for p in query.recentProgress]
    assert [count["located.lookups"].asDict() for count in counts] == [
        {"hits": 0, "misses": 3, "unfit": 0, "dropped": 0},
        {"hits": 0, "misses": 1, "unfit": 0, "dropped": 1},
    ]
    assert [count["clicks.failed"].records for count in counts] == [1, 0]
    gone = found(users(tmp_path / "nowhere", retries=0))
    with pytest.raises(ConfigurationError, match="sqlite users: no answer after 1 attempts"):
        gone.write_stream(
            dt.to_memory("gone"), checkpoint=tmp_path / "gone", trigger={"availableNow": True}
        )

    class Lacking(SqliteLookup):
        def open(self, schema: pa.Schema) -> Any:
            raise ConfigurationError(
                self.title, f"its driver is missing in {schema.names}", "Add it"
            )

    lacking = found(Lacking(path="", table="u", key=("id",), indexes=users(path).indexes))
    with pytest.raises(ConfigurationError, match=r"sqlite u: its driver is missing in .*code"):
        lacking.write_stream(
            dt.to_memory("lacking"), checkpoint=tmp_path / "gone", trigger={"availableNow": True}
        )


def test_a_query_looks_up_in_delta_files(spark: SparkSession, tmp_path: Path) -> None:
    """Its start asks the table for no key, to see that a worker can read it."""
    deltalake = pytest.importorskip("deltalake")
    deltalake.write_deltalake(
        tmp_path / "users", pa.table({"id": [1, 2], "city": ["Oslo", "Rome"]})
    )
    (tmp_path / "in").mkdir()
    (tmp_path / "in/1.json").write_text('{"click": 7, "who": 2, "at": "2024-05-01T10:00:00Z"}')
    live = spark.readStream.schema("click long, who long, at timestamp").json(f"{tmp_path}/in")
    stream = dt.Stream.from_changelog(live, key="click", timestamp="at", name="clicks")
    located: list[Any] = []

    def start(columns: str) -> None:
        source = dt.lookups.delta_files(tmp_path / "users", key="id", retries=0)
        found = stream.lookup(source, columns=columns, on="who", select=[columns.split()[2]])
        found.write_stream(
            dt.to_foreach_batch(lambda batch, _: located.extend(batch.collect())),
            checkpoint=tmp_path / "checkpoint",
            trigger={"availableNow": True},
            buckets=1,
            partitions=1,
        ).awaitTermination()

    with pytest.raises(ConfigurationError, match=r"delta table users: .* no column 'town'"):
        start("id long, town string")
    with pytest.raises(ConfigurationError, match="column 'city' is declared int64"):
        start("id long, city long")
    start("id long, city string")
    assert [(row["click"], row["city"]) for row in located] == [(7, "Rome")]


def test_over_static_frames_the_store_is_asked_too(spark: SparkSession, path: Path) -> None:
    """Of what a stage makes, too; times are the same moments in any zone."""
    change(path, "ALTER TABLE users ADD COLUMN since TEXT")
    change(path, "UPDATE users SET since = '2024-01-0' || id || 'T10:00:00Z'")
    visits = [(2, "2024-05-01 10:00:00"), (1, "2024-05-01 11:00:00"), (9, "2024-05-01 12:00:00")]
    frame = spark.createDataFrame(visits, "who long, at string")
    stream = dt.Stream.from_changelog(
        frame.withColumn("at", F.col("at").cast("timestamp")),
        key="who",
        timestamp="at",
        name="visits",
    )
    known = stream.deduplicate(within="1 s").lookup(
        users(path, where={"city": ["Oslo", "Rome", "Bonn"]}),
        columns="id long, since timestamp, code long",
        on="who",
        select={
            "since": "since",
            "before": F.col("since") < "2024-01-02T00:00:00Z",
            "n": F.expr(SEVEN),
        },
        errors="dead_letter",
    )
    (row,) = known.changelog(buckets=1).collect()
    assert (row.who, row.before, row.n) == (1, True, 7)
    assert row.since.astimezone(timezone.utc) == datetime(2024, 1, 1, 10, tzinfo=timezone.utc)
    (letter,) = known.dead_letters().collect()
    assert json.loads(letter.row)["right"]["id"] == 2


def test_records_that_cannot_be_read_pass_a_lookup(spark: SparkSession, path: Path) -> None:
    given = [("a", '{"who": 1}'), ("b", '{"who": nix}'), ("c", '{"who": 9}'), ("d", None)]
    stream = dt.Stream.from_records(
        spark.createDataFrame(given, "key string, value string").withColumn(
            "timestamp", F.lit("2024-05-01T10:00:00Z").cast("timestamp")
        ),
        value=StructType([StructField("who", LongType())]),
        malformed="dead_letter",
    )
    found = stream.lookup(users(path), columns="id long, city string", on="who")
    rows = rows_of_input(found.plan, None, unread=True).frame.collect()  # type: ignore[arg-type]
    assert [(row.city, row._unread is None) for row in rows] == [("Oslo", True), (None, False)]


def test_constants_restrict_a_table_whose_unread_records_are_dead_letters(
    spark: SparkSession, path: Path
) -> None:
    cities = enumerate(['"Oslo"', '"Rome"', "nix"])
    given = [(f'{{"id": {n}}}', f'{{"city": {city}}}') for n, city in cities]
    table = dt.Table.from_records(
        spark.createDataFrame(given, "key string, value string").withColumn(
            "timestamp", F.lit("2024-05-01T10:00:00Z").cast("timestamp")
        ),
        value=StructType([StructField("city", StringType())]),
        key=StructType([StructField("id", LongType())]),
        malformed="dead_letter",
    )
    source = dt.lookups.sqlite(path, "users", key="id", where={"city": "Oslo"})
    restricted = table.with_lookup(source, changes="insert")
    node: Any = restricted.plan
    for unread, expected in ((False, ["Oslo"]), (True, ["Oslo", None])):
        rows = rows_of_input(node, None, unread=unread).frame.collect()
        assert [row.city for row in rows] == expected


def test_postgres_answers_in_the_order_of_its_primary_key(database: str) -> None:
    """A text that its column cannot have meets nothing."""
    psycopg = pytest.importorskip("psycopg")
    with psycopg.connect(database, autocommit=True) as store:
        store.execute("CREATE TABLE plans (name varchar(3), since date, PRIMARY KEY (since, name))")
        store.execute("INSERT INTO plans VALUES ('ann', '2024-02-01'), ('ann', '2024-01-01')")
        store.execute("INSERT INTO plans VALUES ('Ann', '2024-03-01')")
    source = dt.lookups.postgres(
        database, "plans", key=["since", "name"], indexes=[dt.lookups.index("name")]
    )
    stream = clicks()
    columns = {"name": pa.string(), "since": pa.date32()}
    driver = testing.Driver(
        stream.lookup(source, columns=columns, on={"user": "name"}, how="left", select=["since"])
    )
    names = ["ann", "annabel", None]
    driver.pipe(stream, [{"click": n, "user": name} for n, name in enumerate(names)], timestamp=1)
    driver.assert_changes("""
        time | click | since      | change
        1    | 0     | 2024-01-01 | upsert
        1    | 0     | 2024-02-01 | upsert
        1    | 1     |            | upsert
        1    | 2     |            | upsert
    """)


def test_what_is_stored_behind_a_lookup_does_not_depend_on_where_it_asks(path: Path) -> None:
    stream = clicks()

    def stored(source: Any, **options: Any) -> str:
        options = {"columns": COLUMNS, "on": "who", "select": ["city"]} | options
        return fingerprint(stream.lookup(source, **options).group_by("city").agg(n=dt.count()).plan)

    same = stored(users(path))
    assert stored(dt.lookups.sqlite("other.db", "people", key="id"), name="x") == same
    assert stored(users(path), cache=dt.lookups.cache(max_age="1 s")) == same
    assert stored(users(path), how="left") != same
    assert stored(users(path), select={"city": "name"}) != same
