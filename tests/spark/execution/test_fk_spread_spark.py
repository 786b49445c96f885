"""A join by foreign key on Spark whose rows are spread over buckets, beside the same one without.

Its changes after several micro-batches and a restart, its figures, its state by each call that
reads it, a batch run, and upgrades to other numbers of buckets.
"""

from __future__ import annotations

import random
from collections import defaultdict
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from changing_tables import Rows, read_changes, write_changes
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import dovetail as dt

AT = datetime(2026, 1, 1, tzinfo=timezone.utc)
COLUMNS = {
    "orders": {"id": pa.int64(), "customer": pa.string(), "n": pa.int64()},
    "customers": {"name": pa.string(), "city": pa.string()},
}
Batches = list[dict[Any, list[tuple[Any, ...]]]]


def drawn(choose: random.Random, name: str) -> dict[str, Any]:
    customer = choose.choice(["Ann", "ann", "ANN", "bob", None])
    if name == "orders":
        return {"id": choose.randrange(20), "customer": customer, "n": choose.randrange(9)}
    return {"name": (customer or "cid").lower(), "city": choose.choice(["Oslo", "Rome"])}


def feed(folder: Path, number: int, choose: random.Random, tables: dict[str, Rows]) -> None:
    """Write a file for each table, and keep its rows."""
    begin = AT + timedelta(minutes=40 * number)
    for name, columns in COLUMNS.items():
        count = 30 if name == "orders" else 4
        changes = [(drawn(choose, name), choose.random() < 0.2) for _ in range(count)]
        write_changes(folder / name, number, columns, changes, begin, tables[name])


def joined(orders: dt.Table, customers: dt.Table, spread: int | None) -> dt.Table:
    select = ["customer", "n", "city"]
    on = F.lower("customer")
    return orders.join(customers, on=on, how="left", select=select, name="placed", spread=spread)


def run(topology: dt.Table, checkpoint: Path, **options: Any) -> tuple[Batches, Any]:
    """What each micro-batch emits, by key; and the query."""
    batches: Batches = []

    def take(changes: Any, _: int) -> None:
        found = defaultdict(list)
        for row in sorted(changes.collect(), key=lambda row: row["_position"]):
            values = (row["_change"], row["_timestamp"], row["customer"], row["n"], row["city"])
            found[row["id"]].append(values)
        batches.append(found)

    query = topology.write_stream(
        dt.to_foreach_batch(take),
        checkpoint=checkpoint,
        trigger={"availableNow": True},
        **options,
    )
    query.awaitTermination()
    return batches, query


def static(tables: dict[str, Rows]) -> Rows:
    customers = tables["customers"]
    return {
        key: row | {"city": customers.get((row["customer"] or "").lower(), {"city": None})["city"]}
        for key, row in tables["orders"].items()
    }


def by_key(rows: Any, key: str, names: list[str]) -> Rows:
    found = {row[key]: {name: row[name] for name in names} for row in rows}
    assert len(found) == len(rows)
    return found


@pytest.mark.long
def test_a_spread_join_and_its_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    choose, tables = random.Random(5), {name: Rows() for name in COLUMNS}
    for number in range(3):
        feed(tmp_path, number, choose, tables)
    orders, customers = (read_changes(spark, tmp_path / name, COLUMNS[name]) for name in COLUMNS)
    plain, spread = joined(orders, customers, None), joined(orders, customers, 4)
    places = {None: tmp_path / "plain", 4: tmp_path / "spread"}
    for number in (3, 4):
        expected, alone = run(plain, places[None], buckets=5)
        found, query = run(spread, places[4], buckets=5)
        assert found == expected
        assert len(found) == (3 if number == 3 else 1)
        for one, other in zip(dt.metrics.recent(query), dt.metrics.recent(alone), strict=True):
            figures, others = (
                [(s.rows, s.tombstones, s.matched, s.changes) for s in of.stages]
                for of in (one, other)
            )
            assert figures == others
        if number == 3:
            feed(tmp_path, number, choose, tables)

    result, names = static(tables), list(spread.plan.row.names)
    for name, columns in COLUMNS.items():
        rows = dt.checkpoints.read_state(spark, places[4], name).collect()
        key = next(iter(columns))
        assert by_key(rows, key, [*columns]) == tables[name]
        keys: list[Any] = [*range(30)] if name == "orders" else ["ann", "bob", "cid", "dan"]
        looked_up = dt.checkpoints.lookup_state(places[4], name, keys=keys).to_pylist()
        assert by_key(looked_up, key, [*columns]) == tables[name]
        asked = dt.checkpoints.read_state(spark, places[4], name, keys=keys).collect()
        assert by_key(asked, key, [*columns]) == tables[name]
    stored = dt.checkpoints.read_state(spark, places[4], topology=spread).collect()
    assert by_key(stored, "id", names) == result
    for key in range(5):
        explained = dt.checkpoints.explain_row(places[4], spread, key)
        other = dt.checkpoints.explain_row(places[None], plain, key)
        assert str(explained) == str(other)

    for count in (1, 5):
        changes = joined(
            *(
                dt.Table.from_changelog(
                    spark.read.parquet(str(tmp_path / name)),
                    key=next(iter(COLUMNS[name])),
                    timestamp="at",
                    deleted="gone",
                    name=name,
                )
                for name in COLUMNS
            ),
            4,
        ).changelog(emit="batch", buckets=count)
        kept = [row for row in changes.collect() if row["_change"] == "upsert"]
        assert by_key(kept, "id", names) == result

    with pytest.raises(dt.errors.CheckpointError, match=r"topology: .*spread"):
        run(joined(orders, customers, 2), places[4])
    other = joined(orders, customers, 3)
    dt.checkpoints.upgrade(spark, places[4], tmp_path / "other", other, buckets=3)
    dt.checkpoints.upgrade(spark, tmp_path / "other", tmp_path / "none", plain, buckets=3)
    feed(tmp_path, 4, choose, tables)
    expected, _ = run(plain, places[None])
    for topology, name in ((other, "other"), (plain, "none")):
        found, _ = run(topology, tmp_path / name)
        assert found == expected
