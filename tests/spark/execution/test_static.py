"""Tables that never change, beside inputs that do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import dovetail as dt

ORDERS = "id long, customer string, amount long, at timestamp"
COMES = "2024-05-01T10:00:00Z"


def came(folder: Path, number: int, *orders: tuple[int, str, int]) -> None:
    (folder / "orders").mkdir(exist_ok=True)
    named = [{"id": i, "customer": c, "amount": a, "at": COMES} for i, c, a in orders]
    text = "".join(f"{json.dumps(order)}\n" for order in named)
    (folder / "orders" / f"{number}.json").write_text(text)


def customers(spark: SparkSession, *rows: tuple[str, str]) -> dt.Table:
    frame = spark.createDataFrame([*rows], "name string, city string")
    return dt.Table.from_static(frame, key="name", name="customers")


def orders_of(spark: SparkSession, folder: Path, kind: type[Any]) -> Any:
    frame = spark.readStream.schema(ORDERS).json(str(folder / "orders"))
    return kind.from_changelog(frame, key="id", timestamp="at", name="orders")


class Emitted:
    """What a sink gets, by micro-batch."""

    def __init__(self, *columns: str) -> None:
        self.columns, self.batches = columns, list[list[tuple[Any, ...]]]()

    def run(self, topology: Any, folder: Path, **options: Any) -> list[list[tuple[Any, ...]]]:
        """The changes of each micro-batch of one more run that has any."""
        self.batches.clear()
        topology.write_stream(
            dt.to_foreach_batch(self.keep),
            checkpoint=folder,
            trigger={"availableNow": True},
            **options,
        ).awaitTermination()
        return [batch for batch in self.batches if batch]

    def keep(self, changes: DataFrame, _: int) -> None:
        rows = changes.orderBy("_position").select(*self.columns).collect()
        self.batches.append([tuple(row) for row in rows])


def test_a_stream_meets_rows_that_are_kept(spark: SparkSession, tmp_path: Path) -> None:
    """They are read once: what the frame has later, or is later, a query that has begun does not
    see. Tables with other columns lie beside each other.
    """
    lands = spark.createDataFrame([("Oslo", "Norway", 1)], "city string, land string, n int")
    countries = dt.Table.from_static(lands, key="city", name="countries")

    def joined(*rows: tuple[str, str]) -> dt.Stream:
        cities = customers(spark, *rows).where(F.col("city") != "Rome")
        orders = orders_of(spark, tmp_path, dt.Stream)
        stream: dt.Stream = orders.join(cities, on="customer", how="left", select=["city"])
        return stream.join(countries, on="city", how="left", select=["city", "land"])

    emitted, checkpoint = Emitted("id", "city", "land"), tmp_path / "checkpoint"
    came(tmp_path, 1, (1, "ann", 1), (2, "bob", 2), (3, "cat", 3))
    first = joined(("ann", "Oslo"), ("bob", "Rome"))
    assert emitted.run(first, checkpoint, buckets=1) == [
        [(1, "Oslo", "Norway"), (2, None, None), (3, None, None)]
    ]
    came(tmp_path, 2, (4, "ann", 1), (5, "cat", 2))
    assert emitted.run(joined(("cat", "Bern")), checkpoint) == [
        [(4, "Oslo", "Norway"), (5, None, None)]
    ]
    found = dt.checkpoints.read_state(spark, checkpoint, "customers").select("name", "city")
    assert found.collect() == [("ann", "Oslo")]


@pytest.mark.slow
def test_rows_come_out_that_need_nothing_else(spark: SparkSession, tmp_path: Path) -> None:
    """As a first micro-batch, where they do; then a query is as one of a batch."""

    def totals(people: dt.Table, orders: dt.Table) -> dt.Table:
        per_name = orders.group_by("customer").agg(total=dt.sum("amount"))
        return people.join(per_name, on={"name": "customer"}, how="left")

    emitted = Emitted("name", "city", "total", "_change")
    people = customers(spark, ("ann", "Oslo"), ("bob", "Rome"))
    came(tmp_path, 1, (1, "ann", 10), (2, "eve", 1))
    topology = totals(people, orders_of(spark, tmp_path, dt.Table))
    begun = [("ann", "Oslo", None, "upsert"), ("bob", "Rome", None, "upsert")]
    first, second = emitted.run(topology, tmp_path / "checkpoint", buckets=1)
    assert sorted(first) == begun
    assert second == [("ann", "Oslo", 10, "upsert")]
    came(tmp_path, 2, (1, "bob", 7))
    third = emitted.run(topology, tmp_path / "checkpoint")
    assert [sorted(batch) for batch in third] == [
        [("ann", "Oslo", None, "upsert"), ("bob", "Rome", 7, "upsert")]
    ]

    frame = spark.read.schema(ORDERS).json(str(tmp_path / "orders"))
    at_rest = dt.Table.from_changelog(frame, key="id", timestamp="at", name="orders")
    rows = totals(people, at_rest).changelog(emit="batch").select("name", "city", "total")
    assert sorted(rows.collect()) == [("ann", "Oslo", None), ("bob", "Rome", 7)]

    silent = {
        "orders": spark.createDataFrame([(9, "bob", 5, None)], ORDERS).withColumn(
            "at", F.timestamp_micros(F.lit(1))
        )
    }
    for emits, expected in ((True, 3), (False, 0)):
        checkpoint = tmp_path / f"emits_{emits}"
        batches = emitted.run(topology, checkpoint, initial=silent, emit_initial=emits, buckets=1)
        assert [len(batch) for batch in batches[:-1]] == ([expected] if expected else [])
        assert ("bob", "Rome", 12, "upsert") in batches[-1]


def test_a_row_that_fails_is_a_dead_letter(spark: SparkSession, tmp_path: Path) -> None:
    people = customers(spark, ("ann", "1"), ("bob", "Rome"))
    numbered = people.with_columns(number=F.col("city").cast("int"), errors="dead_letter")
    came(tmp_path, 1, (1, "ann", 1), (2, "bob", 2))
    orders = orders_of(spark, tmp_path, dt.Stream)
    joined = orders.join(numbered, on="customer", how="left", select=["number"])
    emitted, letters = Emitted("id", "number"), Emitted("row")
    dt.run(
        {
            joined: dt.to_foreach_batch(emitted.keep),
            dt.dead_letters: dt.to_foreach_batch(letters.keep),
        },
        checkpoint=tmp_path / "checkpoint",
        trigger={"availableNow": True},
        buckets=1,
    ).awaitTermination()
    assert [batch for batch in emitted.batches if batch] == [[(1, 1), (2, None)]]
    found = [json.loads(row) for batch in letters.batches for (row,) in batch]
    assert found == [{"name": "bob", "city": "Rome"}]


def test_a_row_that_a_query_begins_with_may_be_a_dead_letter(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Though no result is emitted; and only once."""
    came(tmp_path, 1, (3, "7", 1), (4, "bob", 1))
    orders = orders_of(spark, tmp_path, dt.Table)
    numbers = orders.with_columns(number=F.col("customer").cast("int"), errors="dead_letter")
    counts = numbers.group_by("number").agg(total=dt.sum("amount"))
    begun = spark.createDataFrame([(1, "7", 5, None), (2, "ann", 5, None)], ORDERS)
    begun = begun.withColumn("at", F.timestamp_micros(F.lit(1)))
    emitted, letters = Emitted("number", "total"), Emitted("row")

    def run() -> None:
        dt.run(
            {
                counts: dt.to_foreach_batch(emitted.keep),
                dt.dead_letters: dt.to_foreach_batch(letters.keep),
            },
            checkpoint=tmp_path / "checkpoint",
            initial={"orders": begun},
            trigger={"availableNow": True},
            buckets=1,
        ).awaitTermination()

    run()
    assert [batch for batch in emitted.batches if batch] == [[(7, 6)]]
    found = [json.loads(row) for batch in letters.batches for (row,) in batch]
    assert [row["customer"] for row in found] == ["ann", "bob"]
    came(tmp_path, 2, (2, "7", 1))
    run()
    assert emitted.batches[-1] == [(7, 7)]
    assert sum(map(len, letters.batches)) == 2


@pytest.mark.slow
def test_a_table_becomes_static_and_changes_again(spark: SparkSession, tmp_path: Path) -> None:
    """A query that goes on with another one's state has its rows; only of what was not there the
    frame is read.
    """

    def joined(people: dt.Table) -> dt.Stream:
        orders = orders_of(spark, tmp_path, dt.Stream)
        stream: dt.Stream = orders.join(people, on="customer", select=["city"])
        return stream

    emitted = Emitted("id", "city")
    came(tmp_path, 1, (1, "ann", 1))
    orders = orders_of(spark, tmp_path, dt.Stream)
    alone = orders.select("customer").to_table().group_by("customer").agg(n=dt.count())
    Emitted("customer").run(alone, tmp_path / "alone", buckets=2)
    with_people = joined(customers(spark, ("ann", "Oslo")))
    steps = dt.checkpoints.upgrade(spark, tmp_path / "alone", tmp_path / "static", with_people)
    assert [row["begins"] for row in steps.collect()] == ["with the rows of customers"]
    came(tmp_path, 2, (2, "ann", 1))
    assert emitted.run(with_people, tmp_path / "static") == [[(2, "Oslo")]]

    (tmp_path / "people").mkdir()
    (tmp_path / "people" / "1.json").write_text(
        json.dumps({"name": "bob", "city": "Rome", "at": COMES})
    )
    frame = spark.readStream.schema("name string, city string, at timestamp")
    changing = dt.Table.from_changelog(
        frame.json(str(tmp_path / "people")), key="name", timestamp="at", name="customers"
    )
    again = joined(changing)
    dt.checkpoints.upgrade(spark, tmp_path / "static", tmp_path / "again", again)
    came(tmp_path, 3, (3, "ann", 1))
    assert emitted.run(again, tmp_path / "again") == [[(3, "Oslo")]]
    came(tmp_path, 4, (4, "bob", 1))
    assert emitted.run(again, tmp_path / "again") == [[(4, "Rome")]]


def test_what_cannot_be_static_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    came(tmp_path, 1)
    people, orders = customers(spark, ("ann", "Oslo")), orders_of(spark, tmp_path, dt.Table)
    stream = orders_of(spark, tmp_path, dt.Stream)
    frame = spark.readStream.format("rate").load()
    with pytest.raises(dt.errors.PlanError, match="table n: its frame is a streaming one"):
        dt.Table.from_static(frame, key="value", name="n")
    sink, checkpoint = dt.to_memory("none"), tmp_path / "checkpoint"
    with pytest.raises(dt.errors.PlanError, match="its frame is not a streaming one"):
        people.write_stream(sink, checkpoint=checkpoint)
    joined = stream.join(people, on="customer")
    failing = joined.where(F.col("city").cast("int") > 0, errors="dead_letter")
    for frame_of in (joined.changelog, failing.dead_letters):
        with pytest.raises(
            dt.errors.PlanError, match="customers is static, so its rows must be kept"
        ):
            frame_of()
    named = {"customers": spark.createDataFrame([("ann", "Oslo")], "name string, city string")}
    with pytest.raises(dt.errors.PlanError, match="names 'customers', which is no table of"):
        joined.write_stream(sink, checkpoint=checkpoint, initial=named)
    lookups = [
        table.with_lookup(dt.lookups.sqlite("none.db", table.plan.name, key=key, indexes=indexes))
        for table, key, indexes in (
            (orders, "id", [dt.lookups.index("customer")]),
            (people, "name", []),
        )
    ]
    eventual = lookups[0].join(lookups[1], on="customer")
    with pytest.raises(
        dt.errors.PlanError, match="initial= and from_static are for tables that are kept"
    ):
        eventual.write_stream(sink, checkpoint=checkpoint)
    assert not checkpoint.exists()
    assert "customers, static  (key name; city)" in dt.physical.explain.explain(joined.plan)
