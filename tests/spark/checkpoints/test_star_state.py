"""A star on Spark: its result after each micro-batch and a restart, and what its checkpoint holds.

Its tables, its result and its inner join are read from the checkpoint, by Spark and by key.
"""

from __future__ import annotations

import random
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from changing_tables import Rows, read_changes, write_changes
from pyspark.sql import SparkSession

import dovetail as dt
from dovetail import testing
from dovetail.physical.planner import plan_of
from dovetail.spark.checkpoints.state_results import stages_as_stored

AT = datetime(2026, 1, 1, tzinfo=timezone.utc)
COLUMNS = {
    "orders": {"id": pa.int64(), "customer": pa.string(), "sku": pa.string()},
    "customers": {"name": pa.string(), "city": pa.string()},
    "products": {"sku": pa.string(), "price": pa.int64()},
}


def drawn(choose: random.Random, name: str) -> dict[str, Any]:
    customer, sku = choose.choice(["ann", "bob", None]), choose.choice(["pen", "ink"])
    if name == "orders":
        return {"id": choose.randrange(6), "customer": customer, "sku": sku}
    if name == "customers":
        return {"name": customer or "cid", "city": choose.choice(["Oslo", "Rome"])}
    return {"sku": sku, "price": choose.randrange(9)}


def feed(folder: Path, number: int, choose: random.Random, tables: dict[str, Rows]) -> None:
    """Write a file for each table, and keep its rows."""
    begin = AT + timedelta(minutes=20 * number)
    for name, columns in COLUMNS.items():
        changes = [(drawn(choose, name), choose.random() < 0.25) for _ in range(12)]
        write_changes(folder / name, number, columns, changes, begin, tables[name])


def joined(tables: dict[str, Rows], *, prices: bool) -> Rows:
    result = {}
    for key, order in tables["orders"].items():
        customer = tables["customers"].get(order["customer"])
        row = order | {"city": customer and customer["city"]}
        if prices:
            product = tables["products"].get(order["sku"])
            if product is None:
                continue
            row |= {"price": product["price"]}
        result[key] = row
    return result


def by_id(rows: list[Any]) -> Rows:
    found = {row["id"]: {n: v for n, v in row.items() if not n.startswith("_")} for row in rows}
    assert len(found) == len(rows)
    return found


@pytest.mark.long
def test_a_star_and_its_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    choose, tables = random.Random(5), {name: Rows() for name in COLUMNS}
    for number in range(2):
        feed(tmp_path, number, choose, tables)
    made = {
        name: read_changes(spark, tmp_path / name, columns) for name, columns in COLUMNS.items()
    }
    inner = made["orders"].join(made["customers"], on="customer", how="left", name="placed")
    star = inner.join(made["products"], on="sku", how="inner")
    assert "star: left join by foreign key customer; inner" in star.explain(format="mermaid")
    checkpoint, result = tmp_path / "checkpoint", Rows()

    def take(changes: Any, _: int) -> None:
        for row in sorted(changes.collect(), key=lambda row: row["_position"]):
            result.pop(row["id"], None)
            if row["_change"] == "upsert":
                result[row["id"]] = {n: row[n] for n in star.plan.row.names}

    for number in (2, 3):
        query = star.write_stream(
            dt.to_foreach_batch(take),
            checkpoint=checkpoint,
            buckets=3,
            trigger={"availableNow": True},
        )
        query.awaitTermination()
        assert result == joined(tables, prices=True)
        if number == 2:
            feed(tmp_path, number, choose, tables)
    for name, columns in COLUMNS.items():
        rows = dt.checkpoints.read_state(spark, checkpoint, name).collect()
        key = next(iter(columns))
        kept = {row[key]: {n: row[n] for n in columns} for row in rows}
        assert kept == tables[name]
    stored = dt.checkpoints.read_state(spark, checkpoint, topology=star).collect()
    assert by_id([row.asDict() for row in stored]) == result
    placed = dt.checkpoints.read_state(spark, checkpoint, "placed", topology=star).collect()
    assert by_id([row.asDict() for row in placed]) == joined(tables, prices=False)
    found = dt.checkpoints.lookup_state(checkpoint, "orders", keys=[*range(7)])
    assert by_id(found.to_pylist()) == tables["orders"]


def test_joins_of_a_star_that_another_result_reads_have_their_stages() -> None:
    """A query of both results has no star. Each result alone is read by the query's stages."""
    orders, customers, products = (
        testing.table(name, key=next(iter(columns)), schema=columns)
        for name, columns in COLUMNS.items()
    )
    inner = orders.join(customers, on="customer", how="left")
    star = inner.join(products, on="sku").select("city", "price")
    for results in ([star.plan], [inner.plan, star.plan]):
        stages = plan_of(results, buckets=1, emit="change").stages
        stored: Any = SimpleNamespace(stages={s.fragment.topology: s for s in stages}, buckets=1)
        for result in results:
            found = {s.fragment.topology for s in stages_as_stored(stored, result)}
            assert found <= stored.stages.keys()
