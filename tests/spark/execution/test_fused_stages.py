"""Stages of one bucket, which share Spark's operators: results, state, figures and moves."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from pathlib import Path
from shutil import copytree
from time import monotonic, sleep
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bench.parameters import slow_after
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from timed_files import timed_file

import dovetail as dt
from dovetail.spark.checkpoints.local_rows import local_rows
from dovetail.spark.checkpoints.local_state import LocalFiles, local_files
from dovetail.spark.checkpoints.state_lookup import Lookups
from dovetail.spark.checkpoints.stores import CheckpointStores

AT = datetime(2026, 1, 1, tzinfo=timezone.utc)
COLUMNS = {
    "orders": {"id": "long", "customer": "string", "sku": "string", "amount": "long"},
    "customers": {"name": "string", "city": "string"},
    "products": {"sku": "string", "price": "long"},
}
ARROW = {"long": pa.int64(), "string": pa.string()}
TRIGGER: Any = {"availableNow": True}


def feed(folder: Path, number: int) -> None:
    """Write a file for each table, the same in each call with this ``number``."""
    choose = random.Random(number)
    for name, columns in COLUMNS.items():
        changes = []
        for place in range(15):
            customer, sku = (
                choose.choice(["ann", "bob", "cid", None]),
                choose.choice(["pen", "ink"]),
            )
            row = {
                "orders": {"id": choose.randrange(6), "customer": customer, "sku": sku},
                "customers": {"name": customer, "city": choose.choice(["Oslo", "Rome"])},
                "products": {"sku": sku, "price": choose.randrange(9)},
            }[name]
            row |= {"amount": choose.randrange(50)} if name == "orders" else {}
            at = AT + timedelta(minutes=20 * number + place)
            changes.append(row | {"at": at, "gone": choose.random() < 0.25})
        schema = {column: ARROW[type_] for column, type_ in columns.items()}
        schema |= {"at": pa.timestamp("us", "UTC"), "gone": pa.bool_()}
        with timed_file(folder / name / f"{number}.parquet", number + 1) as path:
            pq.write_table(pa.Table.from_pylist(changes, pa.schema(schema)), path)


def results(spark: SparkSession, folder: Path) -> dict[str, dt.Table]:
    """A join by foreign key, its totals, and a star: eleven stages with state, some of which read
    what passes through others.
    """
    tables = {}
    for name, columns in COLUMNS.items():
        schema = ", ".join(f"{column} {type_}" for column, type_ in columns.items())
        frame = spark.readStream.schema(f"{schema}, at timestamp, gone boolean")
        frame = frame.option("maxFilesPerTrigger", 1).parquet(str(folder / name))
        tables[name] = dt.Table.from_changelog(
            frame, key=next(iter(columns)), timestamp="at", deleted="gone", name=name
        )
    orders, customers, products = tables.values()
    placed = orders.join(customers, on="customer", how="left", select=["customer", "sku", "city"])
    priced = orders.join(products, on="sku", select={"sku": "left.sku", "price": "right.price"})
    return {
        "placed": placed,
        "cities": placed.group_by("city").agg(orders=dt.count()),
        "prices": priced.group_by("sku").agg(price=dt.sum("price"), last=dt.max("id")),
        "star": orders.join(customers, on="customer", select=["sku", "amount", "city"]).join(
            products, on="sku", select=["city", "amount", "price"]
        ),
    }


class Collected:
    """The changes of results, in order by key. Positions of a key grow over all micro-batches."""

    def __init__(self) -> None:
        self.changes: dict[str, dict[Any, list[Any]]] = defaultdict(lambda: defaultdict(list))
        self.latest: dict[tuple[str, Any], int] = {}

    def sinks(self, tables: dict[str, dt.Table]) -> dict[dt.Table, Any]:
        return {table: dt.to_foreach_batch(self.sink(name)) for name, table in tables.items()}

    def sink(self, name: str) -> Any:
        def keep(rows: DataFrame, batch: int) -> None:
            found = sorted(rows.collect(), key=lambda row: row["_position"])
            for row in found:
                values = [value for column, value in row.asDict().items() if column != "_position"]
                self.changes[name][values[0]].append((batch, *values[1:]))
                key = name, values[0]
                assert row["_position"] > self.latest.get(key, -1)
                self.latest[key] = row["_position"]

        return keep


@pytest.mark.long
@pytest.mark.parametrize("emit", slow_after(1, ["batch", "change"]))
def test_results_do_not_depend_on_fusing(spark: SparkSession, tmp_path: Path, emit: Any) -> None:
    feed(tmp_path, 0)
    feed(tmp_path, 1)
    collected = {}
    for buckets in (1, 3):
        tables, kept = results(spark, tmp_path), Collected()
        query = dt.run(
            kept.sinks(tables),
            checkpoint=tmp_path / f"{buckets}",
            trigger=TRIGGER,
            buckets=buckets,
            emit=emit,
        )
        query.awaitTermination()
        collected[buckets] = kept.changes
        assert len(query.recentProgress[-1]["stateOperators"]) == (1 if buckets == 1 else 11)
    assert collected[1] == collected[3]
    assert collected[1].keys() == {"placed", "cities", "prices", "star"}


def run_to_end(
    table: dt.Table, folder: Path, buckets: int
) -> tuple[dict[Any, list[Any]], StreamingQuery]:
    """Run a query to the end of its input. Return the changes by key, and the query."""
    kept = Collected()
    query = table.write_stream(
        dt.to_foreach_batch(kept.sink("result")),
        checkpoint=folder / f"{buckets}",
        trigger=TRIGGER,
        buckets=buckets,
    )
    query.awaitTermination()
    return kept.changes["result"], query


@pytest.mark.long
def test_what_spark_computes_between_stages_ends_an_operator(
    spark: SparkSession, tmp_path: Path
) -> None:
    feed(tmp_path, 0)
    feed(tmp_path, 1)
    orders = dt.Table.from_changelog(
        spark.readStream.schema("id long, customer string, amount long, at timestamp, gone boolean")
        .option("maxFilesPerTrigger", 1)
        .parquet(str(tmp_path / "orders")),
        key="id",
        timestamp="at",
        deleted="gone",
        name="orders",
    )
    amounts = orders.group_by("customer").agg(amount=dt.sum("amount"))
    large = amounts.where(F.col("amount") > 40)
    tables = {
        "the view, then a join": (large.join(amounts, select={"both": "left.amount"}), 2),
        "an expression of the result": (
            amounts.join(amounts, select={"twice": F.col("left.amount") * 2}),
            1,
        ),
        "an expression before a stage": (
            amounts.join(amounts, select={"twice": F.col("left.amount") * 2})
            .group_by("twice")
            .agg(customers=dt.count()),
            2,
        ),
    }
    for name, (table, operators) in tables.items():
        found = {n: run_to_end(table, tmp_path / name, n) for n in (1, 3)}
        assert found[1][0] == found[3][0], name
        assert found[1][0], name
        assert len(found[1][1].recentProgress[-1]["stateOperators"]) == operators, name


@pytest.mark.parametrize("buckets", [1, 3])
def test_stages_are_reported_though_later_ones_have_nothing_to_do(
    spark: SparkSession, tmp_path: Path, buckets: int
) -> None:
    feed(tmp_path, 0)
    (tmp_path / "products/0.parquet").unlink()
    orders = tmp_path / "orders/0.parquet"
    rows = [
        row | {"id": number, "gone": False}
        for number, row in enumerate(pq.read_table(orders).to_pylist())
    ]
    pq.write_table(pa.Table.from_pylist(rows), orders)
    changes, query = run_to_end(results(spark, tmp_path)["prices"], tmp_path, buckets)
    progress = dt.progress(query)
    assert changes == {}
    assert [(stage.number, stage.rows, stage.changes) for stage in progress.stages] == [
        (1, {"orders": 15}, 15),
        (2, {"orders": 15, "products": 0}, 0),
        (4, {}, 0),
        (5, {}, 0),
    ]


@pytest.mark.parametrize("operators", [1, 2])
def test_time_goes_on_in_fused_stages(spark: SparkSession, tmp_path: Path, operators: int) -> None:
    """A closed window reaches the last of four stages, though no record comes. With two operators
    a view lies between them.
    """
    visits = [{"id": n, "user": "ann", "at": AT + timedelta(milliseconds=n)} for n in range(3)]
    users = [{"user": "ann", "city": "Oslo", "at": AT - timedelta(seconds=1)}]
    schemas = {"visits": "id long, user string, at timestamp"}
    schemas["users"] = "user string, city string, at timestamp"
    for name, rows in {"visits": visits, "users": users}.items():
        with timed_file(tmp_path / name / "0.parquet", 1) as path:
            pq.write_table(pa.Table.from_pylist(rows), path)
    frames = {
        name: spark.readStream.schema(schema).parquet(str(tmp_path / name))
        for name, schema in schemas.items()
    }
    located = dt.Stream.from_changelog(frames["visits"], key="id", timestamp="at").join(
        dt.Table.from_changelog(frames["users"], key="user", timestamp="at"), on="user", how="left"
    )
    minutely = located.group_by("city").window(dt.windows.tumbling("1 s")).agg(n=dt.count())
    closed = minutely.to_table(windows="on_close")
    closed = closed if operators == 1 else closed.where(F.col("n") > 0)
    total = closed.group_by("city").agg(n=dt.sum("n"))
    kept = Collected()
    query = total.write_stream(
        dt.to_foreach_batch(kept.sink("total")),
        checkpoint=tmp_path / "checkpoint",
        trigger={"processingTime": "1 second"},
        idle="1 s",
        buckets=1,
    )
    try:
        deadline = monotonic() + 60
        while not kept.changes["total"] and monotonic() < deadline:
            assert query.exception() is None
            sleep(0.1)
    finally:
        query.stop()
    ((city, changes),) = kept.changes["total"].items()
    assert city == "Oslo"
    assert [change[1] for change in changes] == [3]
    assert len(query.recentProgress[-1]["stateOperators"]) == operators


class Begun:
    """A query with one bucket after two micro-batches: totals of a join by foreign key."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder, self.checkpoint = spark, folder, folder / "one"
        feed(folder, 0)
        feed(folder, 1)
        self.progress = self.run(self.checkpoint, buckets=1)[1]

    @property
    def totals(self) -> dt.Table:
        return results(self.spark, self.folder)["cities"]

    def run(self, checkpoint: Path, **options: Any) -> tuple[dict[Any, list[Any]], Any]:
        """Run to the end of the input. Return the changes and the last micro-batch's figures."""
        kept = Collected()
        query = self.totals.write_stream(
            dt.to_foreach_batch(kept.sink("cities")),
            checkpoint=checkpoint,
            trigger=TRIGGER,
            **options,
        )
        query.awaitTermination()
        return kept.changes["cities"], dt.progress(query)

    def run_twice(self) -> None:
        """Run two more micro-batches, unless they have been run."""
        feed(self.folder, 2)
        feed(self.folder, 3)
        self.run(self.checkpoint)

    def customers(self, batches: int) -> dict[str, str]:
        """The city of each customer after the first micro-batches."""
        cities = {}
        for number in range(batches):
            for row in pq.read_table(self.folder / f"customers/{number}.parquet").to_pylist():
                cities.pop(row["name"], None)
                if row["name"] is not None and not row["gone"]:
                    cities[row["name"]] = row["city"]
        return cities


@pytest.fixture(scope="module")
def begun(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Begun:
    return Begun(spark, tmp_path_factory.mktemp("fused"))


def test_stages_have_their_own_figures(begun: Begun) -> None:
    progress = begun.progress
    assert [stage.number for stage in progress.stages] == [1, 2, 4, 5]
    first, second, leaving, groups = progress.stages
    assert first.rows == {"orders": 15}
    assert second.rows["customers"] == 15 - progress.unused["customers.dropped"].rows
    assert second.matched["orders"] > 0
    assert leaving.changes == sum(groups.rows.values()) > 0
    # The last stage of an operator has the figures of its state.
    assert [stage.memory_bytes > 0 for stage in progress.stages] == [False, False, False, True]


def test_state_is_read_and_followed(begun: Begun, monkeypatch: pytest.MonkeyPatch) -> None:
    """By Spark, from the local disk, and by keys. What a micro-batch has written is read once,
    whatever the number of stages in it.
    """
    spark, checkpoint = begun.spark, begun.checkpoint
    assert json.loads((checkpoint / "dovetail.json").read_text())["operators"] == [[0, 1, 3, 4]]
    state = dt.checkpoints.read_state(spark, str(checkpoint)).collect()
    assert {row["stage"] for row in state} == {1, 2, 4, 5}
    by_spark = dt.checkpoints.read_state(spark, str(checkpoint), "customers").collect()
    assert {row["name"]: row["city"] for row in by_spark} == begun.customers(2)
    files = local_files(str(checkpoint))
    assert files is not None
    local = CheckpointStores.read("test", files, None)
    tables = local_rows(local, local.store_of("customers"))
    rows = [row for table in tables for row in table.to_pylist()]
    assert {row["name"]: row["city"] for row in rows} == begun.customers(2)
    begun.run_twice()
    found = dt.checkpoints.lookup_state(checkpoint, "customers", keys=["ann", "bob", "cid"])
    names, cities = (found[name].to_pylist() for name in ("name", "city"))
    assert dict(zip(names, cities, strict=True)) == begun.customers(4)
    read, paths = LocalFiles.read, list[str]()
    monkeypatch.setattr(LocalFiles, "read", lambda *of: paths.append(of[1]) or read(*of))
    before, after = (CheckpointStores.read("test", files, batch) for batch in (2, 3))
    paths.clear()
    followed = Lookups(files)._next_stores(before)
    assert [path for path in paths if path.endswith(".changelog")] == ["state/0/0/4.changelog"]
    assert manifests_of(followed) == manifests_of(after) != manifests_of(before)


def manifests_of(stored: CheckpointStores) -> dict[Any, dict[str, bytes]]:
    return {
        (operator, label): dict(blobs.blobs)
        for operator, buckets in stored.operators.items()
        for label, blobs in buckets.items()
    }


@pytest.mark.long
def test_a_checkpoint_moves_between_one_bucket_and_several(begun: Begun, tmp_path: Path) -> None:
    """Each goes on as a query does that has run with its buckets from the beginning."""
    begun.run_twice()
    folders = [begun.checkpoint, tmp_path / "three", tmp_path / "again"]
    for buckets, (before, after) in zip((3, 1), pairwise(folders), strict=True):
        dt.checkpoints.upgrade(begun.spark, before, after, begun.totals, buckets=buckets)
    feed(begun.folder, 4)
    ends = [begun.run(folder)[0] for folder in folders]
    changes = [{city: [row[1:] for row in rows] for city, rows in end.items()} for end in ends]
    assert changes[0] == changes[1] == changes[2]
    assert changes[0]


def test_a_checkpoint_without_fused_stages_is_refused(begun: Begun, tmp_path: Path) -> None:
    """A checkpoint of an earlier version, which gave each stage an operator of its own."""
    checkpoint = tmp_path / "former"
    copytree(begun.checkpoint, checkpoint)
    (checkpoint / ".dovetail.json.crc").unlink()
    bound = json.loads((checkpoint / "dovetail.json").read_text())
    del bound["operators"]
    (checkpoint / "dovetail.json").write_text(json.dumps(bound))
    with pytest.raises(dt.errors.CheckpointError, match="in operators of their own"):
        begun.run(checkpoint)
