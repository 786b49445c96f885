"""Delta joins as streaming queries on Spark, with SQLite and PostgreSQL as stores."""

from __future__ import annotations

import json
import random
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest
from bench.parameters import slow_after
from delta_model import Results, TableOf, World, joined, random_history, run, shown
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import dovetail as dt
from dovetail.physical.planner import plan_of
from dovetail.physical.routing import walk_steps
from dovetail.physical.stage import Stage
from dovetail.plan.fingerprint import fingerprint, in_checkpoint_order
from dovetail.spark.query import start as query

FORCED = dt.delta_join(strategy="force")


def orders() -> TableOf:
    return TableOf(
        "orders", {"id": "long", "customer": "string", "n": "long"}, ["id"], [["customer"]]
    )


def customers() -> TableOf:
    return TableOf("customers", {"name": "string", "city": "string"}, ["name"])


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path, orders(), customers())
    made.put("orders", {"id": 1, "customer": "ann", "n": 5}, {"id": 2, "customer": "bob", "n": 6})
    made.put("customers", {"name": "ann", "city": "Oslo"})
    return made


def naive(world: World, how: str) -> list[dict[str, Any]]:
    """The join under a foreign key's names: the customer's own key is the order's column."""
    left, right = world.tables["orders"], world.tables["customers"]
    rows = joined(left, right, [("customer", "name")], how)
    return sorted(({n: r[n] for n in ("id", "customer", "n", "city")} for r in rows), key=shown)


@pytest.mark.parametrize("how", slow_after(1, ["left", "inner"]))
def test_random_histories_end_in_the_join(spark: SparkSession, tmp_path: Path, how: Any) -> None:
    rng = random.Random(how)
    world = World(tmp_path, orders(), customers())
    sink = Results()
    for _ in range(2):
        for _ in range(4):
            random_history(world, rng, {"orders": "all", "customers": "all"}, keys=3)
        table = world.table(spark, "orders").join(
            world.table(spark, "customers"), on="customer", how=how
        )
        run(table, sink, tmp_path / "checkpoint")
    for name in world.tables:
        world.publish(name)
    run(table, sink, tmp_path / "checkpoint")
    assert sink.table == naive(world, how)
    assert sink.changes


@pytest.mark.slow
def test_rows_for_others_pass_a_delta_join(
    spark: SparkSession, tmp_path: Path, world: World
) -> None:
    """It is a result, what is made of it another; stages behind it read one of its tables."""
    emitted: dict[str, list[Any]] = {"located": [], "cities": [], "most": []}
    for name in world.tables:
        world.publish(name)
    orders = world.table(spark, "orders")
    located = orders.join(
        world.table(spark, "customers"), on="customer", how="left", delta_join=FORCED
    )
    cities = located.group_by("city").agg(orders=dt.count())
    most = [orders.group_by("customer").agg(**{f"most{n}": dt.max("n")}) for n in range(9)]
    # Results run in the order of their fingerprints: one that comes after the join.
    last = max(most, key=lambda table: fingerprint(table.plan))
    results = {"located": located, "cities": cities, "most": last}
    plan = plan_of(
        in_checkpoint_order([table.plan for table in results.values()]), buckets=2, emit="change"
    )
    joins = [
        s
        for s in walk_steps(plan.last_steps)
        if isinstance(s.origin, Stage) and s.stage.node.eventual
    ]
    assert [step.passes for step in joins] == [True, True]
    query = dt.run(
        {
            table: dt.to_foreach_batch(
                lambda batch, _, own=emitted[name]: own.extend(batch.collect())
            )
            for name, table in results.items()
        },
        checkpoint=tmp_path / "several",
        trigger={"availableNow": True},
        buckets=2,
    )
    query.awaitTermination()
    rows = ({n: row[n] for n in ("id", "customer", "n", "city")} for row in emitted["located"])
    assert sorted(rows, key=shown) == naive(world, "left")
    assert [(row["city"], row["orders"]) for row in emitted["cities"]] == [("Oslo", 1)]
    assert sorted((row[0], row[1]) for row in emitted["most"]) == [("ann", 5), ("bob", 6)]
    (progress,) = (p for p in query.recentProgress if p.numInputRows)
    assert progress.numInputRows == 3


@pytest.mark.parametrize("how", slow_after(1, ["outer", "inner", "left", "right"]))
def test_pairs_of_a_history_end_in_the_join(spark: SparkSession, tmp_path: Path, how: Any) -> None:
    rng = random.Random(how)
    left = TableOf("l", {"k": "long", "i": "long", "a": "string"}, ["k", "i"], [["k"]])
    right = TableOf("r", {"k": "long", "j": "long", "b": "string"}, ["k", "j"], [["k"]])
    world, sink = World(tmp_path, left, right), Results()
    for round_ in range(3):
        for _ in range(4):
            random_history(world, rng, {"l": "all", "r": "upsert"}, keys=2)
        if round_ == 2:
            world.publish("l")
            world.publish("r")
        table = world.table(spark, "l").join(
            world.table(spark, "r", changes="upsert"), on={"k": "k"}, how=how, delta_join=FORCED
        )
        run(table, sink, tmp_path / "checkpoint")
    assert sink.table == joined(left, right, [("k", "k")], how)
    assert sink.changes


def test_there_is_no_state(spark: SparkSession, world: World, tmp_path: Path) -> None:
    table = world.table(spark, "orders").join(
        world.table(spark, "customers"), on="customer", delta_join=FORCED
    )
    query = run(table, Results(), tmp_path / "checkpoint")
    assert all(not progress.stateOperators for progress in query.recentProgress)
    assert not (tmp_path / "checkpoint" / "state").exists()


def test_the_result_has_the_schema_of_the_stateful_join(spark: SparkSession, world: World) -> None:
    left, right = world.table(spark, "orders"), world.table(spark, "customers")
    for how in ("inner", "left"):
        of = {
            s: left.join(right, on="customer", how=how, delta_join=dt.delta_join(strategy=s))
            for s in ("auto", "none")
        }  # type: ignore[arg-type]
        assert type(of["auto"].plan) is not type(of["none"].plan)
        assert of["auto"].schema == of["none"].schema
        assert of["auto"].changelog().schema.names == of["none"].changelog().schema.names


def test_static_frames_are_joined_without_a_lookup(
    spark: SparkSession, world: World, tmp_path: Path
) -> None:
    world.put("orders", {"id": 2, "customer": "ann", "n": 7}, {"id": 3, "customer": "eve", "n": 8})
    world.put("orders", {"id": 1}, deleted=True)
    tables = [world.table(spark, name, streaming=False) for name in ("orders", "customers")]
    joins = tables[0].join(tables[1], on="customer", how="left", delta_join=FORCED)
    world.path.unlink()
    rows = [row.asDict() for row in joins.changelog(emit="batch").collect()]
    assert {row["_change"] for row in rows} == {"upsert"}
    found = [{n: r[n] for n in ("id", "customer", "n", "city")} for r in rows]
    assert sorted(found, key=shown) == naive(world, "left")


def test_zeros_are_one_primary_key_though_the_join_key_changes(spark: SparkSession) -> None:
    left, right = (
        dt.Table.from_changelog(
            spark.createDataFrame(rows, columns), key=key, timestamp=F.timestamp_seconds("at")
        ).with_lookup(
            dt.lookups.sqlite("unasked.db", key, key=key, indexes=[dt.lookups.index("customer")])
        )
        for key, columns, rows in (
            ("id", "id double, customer string, at long", [(-0.0, "ann", 1), (0.0, "bob", 2)]),
            ("customer", "customer string, at long", [("ann", 1), ("bob", 1)]),
        )
    )
    joined = left.join(right, on="customer", select=["left.at"], delta_join=FORCED)
    rows = joined.changelog(buckets=16).collect()
    assert [(str(row["id"]), row["at"]) for row in rows] == [("0.0", 2)]


def test_expressions_are_computed_over_the_joined_row(
    spark: SparkSession, world: World, tmp_path: Path
) -> None:
    table = world.table(spark, "orders").join(
        world.table(spark, "customers"),
        on="customer",
        how="left",
        select=[
            F.concat_ws("-", "customer", F.coalesce("right.city", F.lit("?"))).alias("where"),
            F.col("right").isNull().alias("unknown"),
        ],
        delta_join=FORCED,
    )
    sink = Results()
    run(table, sink, tmp_path / "checkpoint")
    assert sink.table == [
        {"id": 1, "where": "ann-Oslo", "unknown": False},
        {"id": 2, "where": "bob-?", "unknown": True},
    ]


def test_rows_without_a_key_are_dropped_and_counted(
    spark: SparkSession, world: World, tmp_path: Path
) -> None:
    with (world.directory / "orders" / "99.json").open("w") as file:
        json.dump({"id": None, "customer": "ann", "_at": "2024-01-01T00:00:00Z", "_n": 0}, file)
    table = world.table(spark, "orders").join(
        world.table(spark, "customers"), on="customer", how="left"
    )
    sink = Results()
    query = run(table, sink, tmp_path / "checkpoint")
    assert sink.table == naive(world, "left")
    dropped = [p.observedMetrics["orders.dropped"].records for p in query.recentProgress]
    assert sum(dropped) == 1


def test_caches_are_used_and_never_stale(spark: SparkSession, tmp_path: Path) -> None:
    left = TableOf("l", {"k": "long", "i": "long", "a": "long"}, ["k", "i"], [["k"]])
    right = TableOf("r", {"k": "long", "b": "long"}, ["k"])
    world, sink = World(tmp_path, left, right), Results()
    for number in range(6):
        world.put("r", *({"k": k, "b": number} for k in (1, 2, 3)))
        world.put("l", *({"k": k, "i": number, "a": number} for k in (1, 2, 3)))

    def table(name: str) -> dt.Table:
        frame = (
            spark.readStream.schema(
                ", ".join(f"{n} long" for n in world.tables[name].columns)
                + ", _at timestamp, _gone boolean"
            )
            .option("maxFilesPerTrigger", 1)
            .json(str(tmp_path / name))
            .withColumnsRenamed({"_at": "at", "_gone": "gone"})
        )
        made = dt.Table.from_changelog(
            frame, key=world.tables[name].key, timestamp="at", deleted="gone", name=name
        )
        return made.with_lookup(world.lookup(name))

    query = run(
        table("l").join(table("r"), on="k", delta_join=FORCED), sink, tmp_path / "checkpoint"
    )
    counts = [p.observedMetrics["l-r.lookups"] for p in query.recentProgress]
    assert len(counts) == 6
    assert [c.left_misses for c in counts] == [3, 0, 0, 0, 0, 0]
    assert [c.left_hits for c in counts] == [0, 3, 3, 3, 3, 3]
    assert sink.table == sorted(
        ({"k": k, "i": i, "a": i, "b": 5} for k in (1, 2, 3) for i in range(6)), key=shown
    )


@pytest.mark.slow
def test_caches_are_not_stale_beside_another_input(spark: SparkSession, tmp_path: Path) -> None:
    """The other table's files have one partition and two by turns, and so the tasks of the delta
    join, which come after them, change their numbers.
    """
    left = TableOf("l", {"k": "long", "a": "long"}, ["k"])
    right = TableOf("r", {"k": "long", "b": "long"}, ["k"])
    beside = TableOf("p", {"k": "long", "c": "string"}, ["k"])
    world, sink = World(tmp_path, left, right, beside), Results()
    keys, rounds = range(40), 6
    for number in range(rounds):
        world.put("r", *({"k": k, "b": number} for k in keys if (k + number) % 3))
        world.put("l", *({"k": k, "a": number} for k in keys if (k + number) % 2))
        text = "x" * (10 if number % 2 else 400)
        world.put("p", *({"k": k, "c": text} for k in keys))

    def table(name: str) -> dt.Table:
        of = world.tables[name]
        columns = ", ".join(f"{n} {type_}" for n, type_ in of.columns.items())
        frame = (
            spark.readStream.schema(f"{columns}, _at timestamp, _gone boolean")
            .option("maxFilesPerTrigger", 1)
            .json(str(tmp_path / name))
            .withColumnsRenamed({"_at": "at", "_gone": "gone"})
        )
        return dt.Table.from_changelog(frame, key=of.key, timestamp="at", deleted="gone", name=name)

    looked_up = table("l").with_lookup(world.lookup("l"))
    placed = looked_up.join(table("r").with_lookup(world.lookup("r")), on="k", delta_join=FORCED)
    spark.conf.set("spark.sql.files.maxPartitionBytes", "12k")
    try:
        query = run(table("p").join(placed), sink, tmp_path / "checkpoint")
    finally:
        spark.conf.unset("spark.sql.files.maxPartitionBytes")
    assert len(query.recentProgress) == rounds
    hits = [p.observedMetrics["l-r.lookups"].left_hits for p in query.recentProgress]
    assert sum(hits) > 0
    expected = [world.tables["l"].rows[k,] | world.tables["r"].rows[k,] for k in keys]
    found = [{name: row[name] for name in ("k", "a", "b")} for row in sink.table]
    assert found == sorted(expected, key=shown)


def test_a_store_that_is_missing_is_refused_at_the_start_or_fails_the_batch(
    spark: SparkSession, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restart goes on."""

    def table() -> dt.Table:
        sides = [
            world.table(spark, name, lookup=world.lookup(name, retries=1))
            for name in ("orders", "customers")
        ]
        return sides[0].join(sides[1], on="customer", how="left")

    sink, away = Results(), world.directory / "away.db"
    world.path.rename(away)
    problem = r"sqlite \w+: no answer after 2 attempts"
    with pytest.raises(dt.errors.ConfigurationError, match=problem):
        run(table(), sink, tmp_path / "checkpoint")
    assert not (tmp_path / "checkpoint").exists()
    with monkeypatch.context() as later:
        later.setattr(query, "refuse_unreachable", lambda *_: None)
        with pytest.raises(StreamingQueryException, match=problem):
            run(table(), sink, tmp_path / "checkpoint")
    assert sink.table == []
    away.rename(world.path)
    run(table(), sink, tmp_path / "checkpoint")
    assert sink.table == naive(world, "left")


def test_a_busy_store_delays_the_batch(spark: SparkSession, world: World, tmp_path: Path) -> None:
    with world.store() as store:
        store.execute("PRAGMA journal_mode = DELETE")
    writer = sqlite3.connect(world.path, check_same_thread=False)
    writer.execute("BEGIN EXCLUSIVE")
    timer = threading.Timer(3, writer.rollback)
    timer.start()
    table = world.table(spark, "orders").join(
        world.table(spark, "customers"), on="customer", how="left"
    )
    sink = Results()
    run(table, sink, tmp_path / "checkpoint")
    timer.join()
    writer.close()
    assert sink.table == naive(world, "left")


def test_a_tombstone_of_a_table_without_deletes_fails_the_batch(
    spark: SparkSession, world: World, tmp_path: Path
) -> None:
    table = world.table(spark, "orders", changes="upsert").join(
        world.table(spark, "customers"), on="customer"
    )
    world.put("orders", {"id": 1}, deleted=True)
    with pytest.raises(StreamingQueryException, match="orders: a tombstone came, and the table is"):
        run(table, Results(), tmp_path / "checkpoint")


def test_a_checkpoint_of_the_stateful_join_is_refused(
    spark: SparkSession, world: World, tmp_path: Path
) -> None:
    left, right = world.table(spark, "orders"), world.table(spark, "customers")
    run(
        left.join(right, on="customer", delta_join=dt.delta_join(strategy="none")),
        Results(),
        tmp_path / "checkpoint",
    )
    with pytest.raises(dt.errors.CheckpointError, match="another topology"):
        run(left.join(right, on="customer"), Results(), tmp_path / "checkpoint")


def test_three_tables_in_one_query(spark: SparkSession, tmp_path: Path) -> None:
    rng = random.Random(3)
    cities = TableOf("cities", {"city": "string", "land": "string"}, ["city"])
    people = TableOf("customers", {"name": "string", "city": "string"}, ["name"], [["city"]])
    world, sink = World(tmp_path, orders(), people, cities), Results()
    kinds = dict.fromkeys(world.tables, "all")
    for round_ in range(3):
        for _ in range(5):
            random_history(world, rng, kinds, keys=3)
        if round_ == 2:
            for name in world.tables:
                world.publish(name)
        tables = {name: world.table(spark, name) for name in world.tables}
        table = (
            tables["orders"]
            .join(tables["customers"], on="customer", how="left")
            .join(tables["cities"], on="city", how="left", delta_join=FORCED)
        )
        run(table, sink, tmp_path / "checkpoint")
    expected = [
        row | {"land": world.tables["cities"].rows.get((row["city"],), {}).get("land")}
        for row in naive(world, "left")
    ]
    assert sink.table == sorted(expected, key=shown)


def test_a_result_goes_on_into_a_stateful_join(
    spark: SparkSession, world: World, tmp_path: Path
) -> None:
    placed = world.table(spark, "orders").join(world.table(spark, "customers"), on="customer")
    cities = TableOf("cities", {"city": "string", "land": "string"}, ["city"])
    (tmp_path / "more").mkdir()
    other = World(tmp_path / "more", cities)
    other.put("cities", {"city": "Oslo", "land": "Norway"})
    plain = dt.Table.from_changelog(
        other.frame(spark, "cities").drop("n_"),
        key="city",
        timestamp="at",
        deleted="gone",
        name="cities",
    )
    sink = Results()
    table = placed.join(plain, on="city", how="left")
    query = run(table, sink, tmp_path / "checkpoint")
    assert query.recentProgress[0].stateOperators
    assert sink.table == [{"id": 1, "customer": "ann", "n": 5, "city": "Oslo", "land": "Norway"}]


def test_emit_batch_is_refused_where_it_cannot_be_kept(
    spark: SparkSession, world: World, tmp_path: Path
) -> None:
    table = world.table(spark, "orders").join(world.table(spark, "customers"), on="customer")
    with pytest.raises(dt.errors.PlanError, match="emit='batch' leaves out what has not changed"):
        run(table, Results(), tmp_path / "checkpoint", emit="batch")


def test_keys_that_the_store_cannot_have_meet_nothing_and_are_counted(
    spark: SparkSession, database: str, tmp_path: Path
) -> None:
    psycopg = pytest.importorskip("psycopg")
    world = World(tmp_path, orders(), customers())
    known = "0b1c2d3e-0000-4000-8000-00000000000a"
    with psycopg.connect(database, autocommit=True) as store:
        store.execute("CREATE TABLE orders (id bigint PRIMARY KEY, customer text, n integer)")
        store.execute("CREATE INDEX ON orders (customer)")
        store.execute("CREATE TABLE customers (name uuid PRIMARY KEY, city char(8))")
        store.execute("INSERT INTO customers VALUES (%s, 'Oslo')", [known])
    names = [known, "no uuid", "", "\0", known.upper(), None]
    world.put("orders", *({"id": i, "customer": name, "n": i} for i, name in enumerate(names)))
    tables = [
        world.table(
            spark,
            name,
            lookup=dt.lookups.postgres(
                database,
                name,
                key=world.tables[name].key,
                indexes=[dt.lookups.index(*index) for index in world.tables[name].indexes],
            ),
        )
        for name in ("orders", "customers")
    ]
    sink = Results()
    query = run(tables[0].join(tables[1], on="customer", how="left"), sink, tmp_path / "checkpoint")
    found = {row["id"]: row["city"] for row in sink.table}
    assert found == {0: "Oslo"} | dict.fromkeys(range(1, len(names)))
    counts = [p.observedMetrics["orders-customers.lookups"] for p in query.recentProgress]
    assert [(c.right_misses, c.right_unfit, c.left_unfit) for c in counts] == [(5, 4, 0)]


def test_rows_change_in_postgres_while_the_query_runs(
    spark: SparkSession, database: str, tmp_path: Path
) -> None:
    psycopg = pytest.importorskip("psycopg")
    world = World(tmp_path, orders(), customers())
    names = ["ann", "bob", "eve", None]

    def lookup(name: str) -> Any:
        indexes = [dt.lookups.index(*index) for index in world.tables[name].indexes]
        return dt.lookups.postgres(database, name, key=world.tables[name].key, indexes=indexes)

    with psycopg.connect(database, autocommit=True) as store:
        store.execute("CREATE TABLE orders (id bigint PRIMARY KEY, customer text, n bigint)")
        store.execute("CREATE TABLE customers (name text PRIMARY KEY, city text)")

        def write(number: int) -> None:
            rng = random.Random(number)
            order = {"id": rng.randrange(6), "customer": rng.choice(names), "n": number}
            customer = {"name": rng.choice(names[:3]), "city": f"city {number}"}
            gone = rng.random() < 0.3
            for name, row, key in (("orders", order, "id"), ("customers", customer, "name")):
                store.execute(f"DELETE FROM {name} WHERE {key} = %s", [row[key]])
                if not gone:
                    marks = ", ".join(["%s"] * len(row))
                    store.execute(f"INSERT INTO {name} VALUES ({marks})", list(row.values()))
                world.put(name, row, deleted=gone)

        tables = [world.table(spark, name, lookup=lookup(name)) for name in ("orders", "customers")]
        table = tables[0].join(tables[1], on="customer", how="left")
        sink = Results()
        query = table.write_stream(sink, checkpoint=str(tmp_path / "checkpoint"), buckets=2)
        try:
            for number in range(60):
                write(number)
                if number % 20 == 10:  # a lost connection in the middle
                    store.execute(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                        "WHERE application_name = 'dovetail lookup'"
                    )
            query.processAllAvailable()
        finally:
            query.stop()
    assert len(sink.batches) > 1
    assert sink.table == naive(world, "left")
