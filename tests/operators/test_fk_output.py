"""What leaves a join by foreign key: chunks, rows that fail, results that are kept."""

from __future__ import annotations

import random
from collections.abc import Iterable
from datetime import datetime, timezone
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from bench.models.foreign_keys import ForeignKeyJoin, accumulate, each_record
from bench.parameters import slow_after
from bench.records import Record
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import dovetail as dt
from dovetail import testing
from dovetail.arrays.hashing import stable_hash
from dovetail.base.columns import DELETED, EVENT_TIME, SEQUENCE
from dovetail.engine.local import LocalRun
from dovetail.operators.joins import foreign_key_join as foreign_key
from dovetail.physical.inputs import Arrival
from dovetail.physical.planner import plan_of
from dovetail.plan.joins.foreign_key_join import ForeignKeyJoin as ForeignKeyJoinNode
from dovetail.plan.joins.table_join import TableJoin
from dovetail.plan.nodes import Source
from dovetail.testing import Change, Driver

LEFT = {"k": pa.string(), "fk": pa.string(), "v": pa.string()}
RIGHT = {"rk": pa.string(), "w": pa.string()}


def tables() -> tuple[dt.Table, dt.Table]:
    """Orders and the customers they name."""
    return testing.table("orders", key="k", schema=LEFT), testing.table(
        "customers", key="rk", schema=RIGHT
    )


def feed(driver: Driver, sides: tuple[dt.Table, dt.Table], record: Record) -> list[Change]:
    """One record of the model, given to the driver."""
    if record.table == "L":
        fk, v = (None, None) if record.deleted else record.value
        row = {"k": record.key, "fk": fk, "v": v}
    else:
        row = {"rk": record.key, "w": record.value}
    table = sides[record.table == "R"]
    return driver.pipe(table, row, timestamp=1000 * record.time, deleted=record.deleted)


def history(seed: int, count: int) -> list[Record]:
    """Few keys, many tombstones and rows as they were."""
    random_ = random.Random(seed)
    records = []
    for number in range(count):
        side = random_.choice("LR")
        key = random_.choice("abc" if side == "L" else "xy")
        value: Any = random_.choice("12")
        deleted = random_.random() < 0.3
        if side == "L":
            value = (random_.choice(["x", "y", "z", None]), value)
        records.append(Record(side, key, number, None if deleted else value, deleted))
    return records


@pytest.mark.parametrize("how", ["inner", "left", "outer"])
@pytest.mark.parametrize("seed", slow_after(1, range(4)))
def test_a_materialized_result_emits_real_changes_only(how: Any, seed: int) -> None:
    sides = tables()
    driver = Driver(sides[0].join(sides[1], on="fk", how=how).materialize())
    records = history(seed, 150 if seed else 80)
    rows: dict[Any, Any] = {}
    for record, changes in zip(records, each_record(ForeignKeyJoin(how), records), strict=True):
        wanted = []
        for change in changes:
            if rows.get(change.key) != change.cells:
                wanted.append((change.key, change.cells and _flat(change.cells), change.time))
                accumulate(rows, [change])
        emitted = feed(driver, sides, record)
        # What one record changes of several keys goes on in an order of the keys alone.
        assert _by_key(
            (
                (c.key["k"], c.key.get("right_rk")),
                c.values and tuple(c.values.values()),
                c.timestamp_us // 1000,
            )
            for c in emitted
        ) == _by_key(wanted)


def _by_key(emitted: Iterable[tuple[Any, ...]]) -> dict[Any, list[Any]]:
    """Each key's changes in order."""
    found: dict[Any, list[Any]] = {}
    for key, *change in emitted:
        found.setdefault(key, []).append(change)
    return found


def _flat(cells: Any) -> tuple[Any, ...]:
    left, right = cells
    return (*(left[0] if left else (None, None)), right[0] if right else None)


@pytest.mark.parametrize("emit", ["change", "batch"])
@pytest.mark.parametrize("how", ["inner", "left", "right", "outer"])
def test_where_output_is_cut_does_not_matter_to_a_key(
    monkeypatch: pytest.MonkeyPatch, how: Any, emit: Any
) -> None:
    def run(rows_max: int) -> list[str]:
        monkeypatch.setattr(foreign_key, "_ROWS_MAX", rows_max)
        sides = tables()
        driver = Driver(sides[0].join(sides[1], on="fk", how=how), emit=emit, buckets=2)
        records = history(7, 100)
        for start in range(0, len(records), 20):
            with driver.batch():
                for record in records[start : start + 20]:
                    feed(driver, sides, record)
        changes = sorted(driver.read(), key=lambda change: (str(change.key), change.position))
        return [f"{change}{change.values}" for change in changes]

    assert run(3) == run(10_000) != []


def test_a_wide_fan_out_is_emitted_in_bounded_memory() -> None:
    """One right row that 200,000 left rows of half a kilobyte name: 100 MB of results."""
    count = 200_000
    left, right = tables()
    assert isinstance(left.plan, Source)
    assert isinstance(right.plan, Source)
    node = left.join(right, on="fk").plan
    arrival = Arrival.of(node, one_log=True)
    local = LocalRun(plan_of([node], buckets=1, emit="change", arrival=arrival), stable_hash)

    def rows(names: list[str], columns: list[Any], sequence: int) -> pa.Table:
        n = len(columns[0])
        internal = [np.full(n, 1), np.zeros(n, np.bool_), np.arange(sequence, sequence + n)]
        return pa.table([*columns, *internal], names=[*names, EVENT_TIME, DELETED, SEQUENCE])

    value = "v" * 500
    keys = np.char.add("k", np.arange(count).astype(str))
    for start in range(0, count, 20_000):
        part = pa.array(keys[start : start + 20_000])
        columns = [part, pa.array(["x"] * len(part)), pa.array([value] * len(part))]
        local.accept_rows(left.plan, rows(["k", "fk", "v"], columns, start))
        assert local.run_batch(0, 0) == []
    one = rows(["rk", "w"], [pa.array(["x"]), pa.array(["w"])], count)
    local.accept_rows(right.plan, one)
    found, held = 0, pa.total_allocated_bytes()
    most = 0
    for _, table in local.run_batch_lazily(0, 0):
        found += len(table)
        most = max(most, pa.total_allocated_bytes() - held)
    assert found == count
    assert most < 100 << 20, f"{most >> 20} MB for {count} results"


def test_explain_tells_of_all_stages(capsys: pytest.CaptureFixture[str]) -> None:
    sides = tables()
    regions = testing.table("regions", key="w", schema={"w": pa.string(), "r": pa.string()})
    named = sides[0].join(sides[1], on="fk", how="left", name="named").materialize()
    named.join(regions, on="w", how="outer").explain()
    assert capsys.readouterr().out.splitlines() == [
        "Topology",
        "outer join by foreign key w  (key k, right_w; fk, v, w, r)",
        "├─ materialized  (key k; fk, v, w)",
        "│  └─ left join by foreign key fk  (key k; fk, v, w)",
        "│     ├─ orders  (key k; fk, v)",
        "│     └─ customers  (key rk; w)",
        "└─ regions  (key w; r)",
        "",
        "Stage 1",
        "  shuffle  orders by key (k string)",
        "  state    orders: foreign key per key",
        "",
        "Stage 2",
        "  shuffle  orders, customers by foreign key (rk string)",
        "  state    subscriptions: orders, last row per foreign key and key",
        "           right: customers, last row per key",
        "",
        "Stage 3",
        "  shuffle  named by key (k string), each key's changes in order",
        "  state    none",
        "",
        "Stage 4",
        "  shuffle  named by key (k string)",
        "  state    named: last row per key",
        "",
        "Stage 5",
        "  shuffle  named by key (k string)",
        "  state    named: foreign key per key",
        "",
        "Stage 6",
        "  shuffle  named, regions by foreign key (w string)",
        "  state    subscriptions: named, last row per foreign key and key",
        "           right: regions, last row per key",
        "           references: how many rows of named refer to each",
        "",
        "Stage 7",
        "  shuffle  outer join of named and regions by key (k string), each key's changes in order",
        "  state    none",
    ]


@pytest.fixture
def orders(spark: SparkSession) -> dt.Table:
    """Orders whose customer is a text; one of them is no number."""
    moment = datetime(2024, 1, 1, tzinfo=timezone.utc)
    rows = [("a", "1", False), ("b", "x", False), ("c", None, False), ("d", "y", True)]
    frame = spark.createDataFrame(
        [(k, c, d, moment) for k, c, d in rows],
        "id string, customer string, gone boolean, t timestamp",
    )
    return dt.Table.from_changelog(frame, key="id", timestamp="t", deleted="gone", name="orders")


@pytest.fixture
def customers(spark: SparkSession) -> dt.Table:
    """One customer."""
    moment = datetime(2024, 1, 1, tzinfo=timezone.utc)
    frame = spark.createDataFrame(
        [(1, "Ada", moment)], "customer_id long, name string, t timestamp"
    )
    return dt.Table.from_changelog(frame, key="customer_id", timestamp="t", name="customers")


def test_a_row_whose_foreign_key_fails_is_a_dead_letter(
    orders: dt.Table, customers: dt.Table
) -> None:
    number = F.col("customer").cast("long")
    joined = orders.join(customers, on=number, how="left", name="with names")
    rows = joined.changelog(emit="batch", buckets=2).orderBy("id").collect()
    assert [(r.id, r.customer, r.name) for r in rows] == [("a", "1", "Ada"), ("c", None, None)]
    (letter,) = joined.dead_letters().collect()
    assert letter["_operator"] == "with names"
    assert letter["_problem"] == "on= fails on a row of orders"
    assert letter["row"] == '{"id":"b","customer":"x"}'
    hours = dt.windows.tumbling("1 hour")
    hourly = orders.to_stream().group_by("id").window(hours).agg(n=dt.count())
    looked = orders.join(hourly, window_of=F.timestamp_seconds(number), name="by the hour")
    (letter,) = looked.dead_letters().collect()
    assert letter["_operator"] == "by the hour"
    assert letter["_problem"] == "window_of= fails on a row of orders"
    assert letter["row"] == '{"id":"b","customer":"x"}'


def test_where_nothing_can_fail_there_are_no_dead_letters(customers: dt.Table) -> None:
    with pytest.raises(dt.errors.PlanError, match="no join has an expression in on="):
        customers.dead_letters()


def test_on_that_names_the_key_is_the_join_by_key() -> None:
    schema = {"a": pa.string(), "b": pa.int64(), "v": pa.string()}
    left = testing.table("left", key=["a", "b"], schema=schema)
    right = testing.table("right", key=["x", "y"], schema={"x": pa.string(), "y": pa.int64()})
    assert isinstance(left.join(right, on=["a", "b"]).plan, TableJoin)
    assert isinstance(left.join(right, on=["v", "b"]).plan, ForeignKeyJoinNode)
