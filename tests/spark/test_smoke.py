"""Each kind of topology once, as a query that stops and goes on: what a version of Spark must run.

``./dev versions`` runs this, on other versions than those of all tests, where it is slow: each kind
has tests of its own.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

import dovetail as dt

AT = datetime(2024, 5, 1, tzinfo=timezone.utc)
COLUMNS = "id long, who string, n long, at timestamp, gone boolean"
FILES = pa.schema(
    [
        ("id", pa.int64()),
        ("who", pa.string()),
        ("n", pa.int64()),
        ("at", pa.timestamp("us", "UTC")),
        ("gone", pa.bool_()),
    ]
)
Row = tuple[int, str | None, int | None, int]
Rows = dict[str, list[Row]]
"""By input its rows: id, who, n, and minutes; a row without n is deleted."""


class World:
    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder

    def frame(self, name: str) -> DataFrame:
        (self.folder / name).mkdir()
        return self.spark.readStream.schema(COLUMNS).parquet(str(self.folder / name))

    def table(self, name: str, key: str = "id", **options: Any) -> dt.Table:
        frame = self.frame(name).withColumnRenamed("n", name)
        if key == "who":
            frame = frame.drop("id")
        return dt.Table.from_changelog(
            frame, key=key, timestamp="at", deleted="gone", name=name, **options
        )

    def stream(self, name: str) -> dt.Stream:
        frame = self.frame(name).withColumnRenamed("n", name)
        return dt.Stream.from_changelog(frame, key="id", timestamp="at", name=name)

    def stored(self, name: str, key: str) -> dt.Table:
        """A table without rows whose store has all of them."""
        path = str(self.folder / "store.db")
        with sqlite3.connect(path) as store:
            store.execute(f"CREATE TABLE {name} (id INTEGER, who TEXT, {name} INTEGER)")
            store.execute(f"INSERT INTO {name} VALUES (1, 'ann', 10), (2, 'bob', 20)")
        made = self.table(name, key)
        return made.with_lookup(
            dt.lookups.sqlite(path, name, key=key, indexes=[dt.lookups.index("who")])
        )

    def write(self, rows: Rows, number: int) -> None:
        for name, own in rows.items():
            times = [AT + timedelta(minutes=minutes) for *_, minutes in own]
            columns = [[row[place] for row in own] for place in range(3)]
            gone = [n is None for n in columns[2]]
            table = pa.table([*columns, times, gone], schema=FILES)
            pq.write_table(table, self.folder / name / f"{number}.parquet")


def keyed(world: World) -> dt.Table:
    return world.table("left").join(world.table("right"), how="left", select=["left", "right"])


def looked_up(world: World) -> dt.Stream:
    return world.stream("left").join(world.table("right"), how="left", select=["left", "right"])


def looked_up_once_loaded(world: World) -> dt.Stream:
    select = ["left", "right"]
    return world.stream("left").join(world.table("right"), how="left", load="first", select=select)


def expected_rows(world: World) -> dt.Table:
    positive = world.table("left").expect("left > 0", on_fail="drop")
    return positive.with_columns(right="who")


def between_streams(world: World) -> dt.Stream:
    left, right = world.stream("left"), world.stream("right")
    return left.join(right, within=dt.within(after="5 min"), select=["left", "right"])


def by_foreign_key(world: World) -> dt.Table:
    right = world.table("right", "who")
    return world.table("left").join(right, on="who", how="left", select=["left", "right"])


def star(world: World) -> dt.Table:
    """The same table twice, by one foreign key, as a star of two."""
    right = world.table("right", "who")
    once = world.table("left").join(
        right, on="who", how="left", select={"who": "left.who", "left": "left.left"}
    )
    both = {"left": "left.left", "right": "right.right"}
    return once.join(right, on="who", how="left", select=both)


def aggregated(world: World) -> dt.Table:
    return world.table("left").group_by("who").agg(left=dt.sum("left"), right=dt.count())


def windowed(world: World) -> dt.Table:
    hours = world.stream("left").group_by("id").window(dt.windows.tumbling("1 hour"))
    return hours.agg(left=dt.sum("left"), right=dt.count()).to_table()


def as_of(world: World) -> dt.Stream:
    history = world.table("right", versioned="1 day")
    return world.stream("left").join(history, how="left", select=["left", "right"])


def by_lookups(world: World) -> dt.Table:
    left, right = world.stored("left", "id"), world.stored("right", "who")
    return left.join(
        right,
        on="who",
        how="left",
        select=["left", "right"],
        delta_join=dt.delta_join(strategy="force"),
    )


LEFT, RIGHT = [(1, "ann", 1, 0)], [(1, "ann", 7, 1)]
KINDS: dict[str, tuple[Callable[[World], Any], Rows, Rows, list[tuple[Any, ...]]]] = {
    "table-table": (
        keyed,
        {"left": LEFT},
        {"right": RIGHT, "left": [(1, "ann", None, 2)]},
        [(1, 1, None), (1, 1, 7), (1, None, None)],
    ),
    "stream-table": (
        looked_up,
        {"left": LEFT},
        {"right": RIGHT, "left": [(1, "ann", 2, 2)]},
        [(1, 1, None), (1, 2, 7)],
    ),
    "loaded first": (
        looked_up_once_loaded,
        {"left": LEFT, "right": RIGHT},
        {"right": [(1, "ann", 8, 2)], "left": [(1, "ann", 2, 3)]},
        [(1, 1, 7), (1, 2, 8)],
    ),
    "expectation": (
        expected_rows,
        {"left": [*LEFT, (2, "bob", -1, 0)]},
        {"left": [(1, "ann", -2, 1), (1, "ann", None, 2)]},
        [(1, 1, "ann"), (1, None, None)],
    ),
    "stream-stream": (between_streams, {"left": LEFT}, {"right": RIGHT}, [(1, 1, 7)]),
    "foreign key": (by_foreign_key, {"left": LEFT}, {"right": RIGHT}, [(1, 1, None), (1, 1, 7)]),
    "star": (
        star,
        {"left": LEFT, "right": [(1, "bob", 9, 0)]},
        {"right": RIGHT, "left": [(1, "bob", 2, 2)]},
        [(1, 1, None), (1, 1, None), (1, 1, 7), (1, 2, 9)],
    ),
    "aggregate": (
        aggregated,
        {"left": [*LEFT, (2, "ann", 5, 0)]},
        {"left": [(1, "ann", None, 1)]},
        [("ann", 1, 1), ("ann", 6, 2), ("ann", 5, 1)],
    ),
    "windowed": (
        windowed,
        {"left": LEFT},
        {"left": [(1, "ann", 4, 5), (1, "ann", 8, 61)]},
        [(1, 1, 1), (1, 5, 2), (1, 8, 1)],
    ),
    "versioned": (
        as_of,
        {"right": [(1, "ann", 6, 0), (1, "ann", 7, 10)]},
        {"left": [(1, "ann", 1, 5), (1, "ann", 2, 15)]},
        [(1, 1, 6), (1, 2, 7)],
    ),
    "delta join": (
        by_lookups,
        {"left": [(1, "ann", 3, 0)]},
        {"right": [(1, "ann", 11, 1)]},
        [(1, 3, 10), (1, 10, 11)],
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_runs_and_goes_on(kind: str, spark: SparkSession, tmp_path: Path) -> None:
    """On its checkpoint, and on another one that has its state, and there in other partitions."""
    make, first, then, expected = KINDS[kind]
    world = World(spark, tmp_path)
    topology = make(world)
    columns = [topology.schema.names[0], "left", "right"]

    def run(name: str) -> list[tuple[Any, ...]]:
        """All that the query of this name has written."""
        query = topology.write_stream(
            dt.to_parquet(tmp_path / f"out of {name}"),
            checkpoint=tmp_path / name,
            trigger={"availableNow": True},
        )
        query.awaitTermination()
        found = spark.read.parquet(str(tmp_path / f"out of {name}"))
        return sorted((tuple(row) for row in found.select(*columns).collect()), key=str)

    world.write(first, 0)
    before = run("checkpoint")
    of_tables = not any(source.stream for source in topology.plan.origins)
    buckets = 3 if of_tables else None
    dt.checkpoints.upgrade(
        spark, tmp_path / "checkpoint", tmp_path / "other", topology, buckets=buckets
    )
    if kind in ("foreign key", "star"):
        dt.checkpoints.repartition(spark, tmp_path / "other", partitions=3)
    world.write(then, 1)
    emitted = run("checkpoint")
    assert emitted == sorted(expected, key=str)
    assert sorted([*before, *run("other")], key=str) == emitted
    stores = (
        dt.checkpoints.read_state(spark, tmp_path / "checkpoint")
        .where("table IS NOT NULL")
        .collect()
    )
    assert bool(stores) == (kind != "delta join")
    for store in stores[:1]:
        rows = dt.checkpoints.read_state(spark, tmp_path / "checkpoint", store["table"])
        assert rows.count() <= store["rows"]
