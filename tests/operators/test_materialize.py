"""``Table.materialize``: of any table only what changes a row comes out."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bench.parameters import slow_after
from pyspark.sql import SparkSession

import dovetail as dt
from dovetail import testing
from dovetail.testing import Driver

KEYED = {"k": pa.int64(), "v": pa.int64()}


def real_changes(emitted: list[Any]) -> list[Any]:
    """Of a table's changes those that change a row."""
    rows: dict[Any, Any] = {}
    kept = []
    for change in emitted:
        key = tuple(change.key.values())
        if rows.get(key) != change.values:
            kept.append((key, change.values, change.timestamp_us))
        rows[key] = change.values
    return kept


def seen(emitted: list[Any]) -> list[Any]:
    return [(tuple(c.key.values()), c.values, c.timestamp_us) for c in emitted]


def by_key(emitted: list[Any]) -> list[Any]:
    """Each key's changes in order."""
    return sorted(emitted, key=lambda change: change[0])


def histories(seed: int) -> list[list[dict[str, Any]]]:
    """Micro-batches of records of few keys and values, out of order in time."""
    random_ = random.Random(seed)
    return [
        [
            {
                "rows": {"k": random_.randrange(3), "v": random_.randrange(2)},
                "timestamp": random_.randrange(40) * 1_000_000,
                "deleted": random_.random() < 0.3,
            }
            for _ in range(random_.randrange(1, 9))
        ]
        for _ in range(12)
    ]


@pytest.mark.parametrize("seed", slow_after(3, range(6)))
@pytest.mark.parametrize("kind", ["table", "versioned", "aggregate", "windows"])
def test_only_what_changes_a_row_comes_out(kind: str, seed: int) -> None:
    made: dict[str, Any] = {
        "table": lambda t: t,
        "versioned": lambda t: t,
        "aggregate": lambda t: t.group_by("v").agg(least=dt.min("k")),
        "windows": lambda t: (
            t.group_by("k")
            .window(dt.windows.tumbling("10 s", grace="1 min"))
            .agg(m=dt.max("v"))
            .to_table()
        ),
    }
    if kind == "windows":
        source: Any = testing.stream("s", key="k", schema=KEYED)
    else:
        versioned = "20 s" if kind == "versioned" else None
        source = testing.table("s", key="k", schema=KEYED, versioned=versioned)
    table = made[kind](source)
    plain, kept = Driver(table), Driver(table.materialize())
    every, real = [], []
    for batch in histories(seed):
        every += fed(plain, source, batch)
        real += fed(kept, source, batch)
        kept = Driver.restore(table.materialize(), kept.snapshot())
    assert by_key(seen(real)) == by_key(real_changes(every))
    assert len(real) < len(every)


def fed(driver: Driver, source: Any, batch: list[dict[str, Any]]) -> list[Any]:
    with driver.batch() as changes:
        for record in batch:
            driver.pipe(source, **record)
    return changes


def test_a_materialized_table_joins_on() -> None:
    left, right = (testing.table(n, key="k", schema={"k": pa.int64(), n: pa.int64()}) for n in "ab")
    driver = Driver(left.materialize().join(right, how="left"))
    driver.pipe(left, {"k": 1, "a": 5}, timestamp=1)
    driver.pipe(left, {"k": 1, "a": 5}, timestamp=2)
    driver.pipe(right, {"k": 1, "b": 7}, timestamp=3)
    driver.pipe(left, {"k": 2}, deleted=True, timestamp=4)
    assert seen(driver.read()) == [((1,), {"a": 5, "b": None}, 1), ((1,), {"a": 5, "b": 7}, 3)]


def test_a_history_is_not_materialized() -> None:
    sides = (
        testing.table(n, key="k", schema={"k": pa.int64(), n: pa.int64()}, versioned="1 day")
        for n in "ab"
    )
    joined = next(sides).join(next(sides), late="history")
    with pytest.raises(
        dt.errors.PlanError, match=r"inner join of a and b: .* emits corrections of its"
    ):
        joined.materialize()


@pytest.mark.parametrize("looked_up", slow_after(1, [True, False]))
def test_on_spark(spark: SparkSession, tmp_path: Path, looked_up: bool) -> None:
    """Of a source, and of a delta join, which repeats rows by itself."""
    rows = {
        0: [(1, 10, 1, False), (2, 20, 1, False)],
        1: [(1, 10, 2, False), (3, 30, 2, True)],
        2: [(1, 11, 3, False), (2, 20, 3, True)],
    }
    names = ["k", "v", "at", "gone"]
    schema = pa.schema(
        [("k", pa.int64()), ("v", pa.int64()), ("at", pa.int64()), ("gone", pa.bool_())]
    )
    (tmp_path / "in").mkdir()
    emitted: dict[int, Any] = {}
    reader = spark.readStream.schema("k long, v long, at long, gone boolean")
    frame = reader.parquet(str(tmp_path / "in")).selectExpr(
        "k", "v", "timestamp_seconds(at) at", "gone"
    )
    table = dt.Table.from_changelog(frame, key="k", timestamp="at", deleted="gone", name="t")
    if looked_up:
        database = str(tmp_path / "store.db")
        with closing(sqlite3.connect(database)) as store:
            for name, column in (("t", "v"), ("u", "w")):
                store.execute(f"CREATE TABLE {name} (k INTEGER PRIMARY KEY, {column} INTEGER)")
            store.commit()
        (tmp_path / "other").mkdir()
        other = spark.readStream.schema("k long, w long, at timestamp").parquet(
            str(tmp_path / "other")
        )
        second = dt.Table.from_changelog(other, key="k", timestamp="at", name="u")
        table = table.with_lookup(dt.lookups.sqlite(database, "t", key="k")).join(
            second.with_lookup(dt.lookups.sqlite(database, "u", key="k")),
            how="left",
            select=["v"],
            delta_join=dt.delta_join(strategy="force"),
        )

    def collect(changes: Any, batch: int) -> None:
        emitted[batch] = sorted(tuple(row)[:3] for row in changes.collect())

    for number, batch in rows.items():
        columns = [dict(zip(names, row, strict=True)) for row in batch]
        pq.write_table(
            pa.Table.from_pylist(columns, schema=schema), tmp_path / "in" / f"{number}.parquet"
        )
        table.materialize().write_stream(
            dt.to_foreach_batch(collect),
            checkpoint=tmp_path / "checkpoint",
            trigger={"availableNow": True},
            buckets=2,
        ).awaitTermination()
    assert list(emitted.values()) == [
        [(1, 10, "upsert"), (2, 20, "upsert")],
        [],
        [(1, 11, "upsert"), (2, None, "delete")],
    ]


def test_a_table_may_have_a_key_alone() -> None:
    """Whether a row is as it was is then whether it is there."""
    a, b = (testing.table(name, key="id", schema={"id": pa.int64()}) for name in "ab")
    for made, inputs, emit in (
        (a.materialize(), [a], "change"),
        (a.materialize(), [a], "batch"),
        (a.join(b), [a, b], "batch"),
    ):
        driver = Driver(made, emit=emit)  # type: ignore[arg-type]
        for _ in range(2):
            with driver.batch():
                for table in inputs:
                    driver.pipe(table, {"id": 1}, timestamp=1)
        driver.pipe(a, {"id": 1}, timestamp=2, deleted=True)
        assert [change.change for change in driver.read()] == ["upsert", "delete"]
