"""The driver's own promises: what it takes, what it gives back, what it refuses."""

from __future__ import annotations

import doctest
import subprocess
import sys
from dataclasses import replace
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import types as st

import dovetail.testing
from dovetail import Table
from dovetail.arrays.hashing import stable_hash
from dovetail.errors import CheckpointError, DataError, PlanError
from dovetail.plan.nodes import Selected
from dovetail.testing import Change, Driver, stream, table

ORDER = {"id": pa.int64(), "amount": pa.int64()}
PAYMENT = {"id": pa.int64(), "paid": pa.bool_()}


@pytest.fixture
def orders() -> Table:
    return table("orders", key="id", schema=ORDER)


@pytest.fixture
def payments() -> Table:
    return table("payments", key="id", schema=PAYMENT)


def test_doctests() -> None:
    assert doctest.testmod(dovetail.testing).failed == 0


def test_importing_starts_no_java() -> None:
    code = "import dovetail.testing, pyspark; assert pyspark.SparkContext._gateway is None"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    "schema",
    [
        ORDER,
        pa.schema(list(ORDER.items())),
        st.StructType([st.StructField(n, st.LongType()) for n in ORDER]),
    ],
    ids=["mapping", "pyarrow", "spark"],
)
def test_a_table_from_each_kind_of_schema(schema: dovetail.testing.Schema) -> None:
    assert table("orders", key="id", schema=schema).schema.simpleString() == (
        "struct<id:bigint,amount:bigint,_change:string,_timestamp:timestamp,_position:bigint>"
    )


def test_a_table_is_checked_when_it_is_made() -> None:
    with pytest.raises(PlanError, match="table orders: key= names an unknown column 'nr'"):
        table("orders", key="nr", schema=ORDER)
    with pytest.raises(PlanError, match="a type that Spark does not have"):
        table("orders", key="id", schema={"id": pa.month_day_nano_interval(), "x": pa.uint64()})
    with pytest.raises(PlanError, match="'_change' has a name that changelogs use"):
        table("orders", key="id", schema={"id": pa.int64(), "_change": pa.string()})


def test_a_change_says_all_it_is(orders: Table, payments: Table) -> None:
    driver = Driver(orders.join(payments, how="left"))
    (upsert,) = driver.pipe(orders, {"id": 1, "amount": 0}, timestamp=5)
    assert upsert == Change({"id": 1}, {"amount": 0, "paid": None}, 5, "upsert", 0)
    (delete,) = driver.pipe(orders, {"id": 1}, timestamp=6, deleted=True)
    assert delete == Change({"id": 1}, None, 6, "delete", 1)
    assert repr([upsert, delete]) == "[<id=1: amount=0, paid=None @5>, <id=1: deleted @6>]"


def test_timestamps_are_microseconds_or_datetimes(orders: Table) -> None:
    driver = Driver(orders)
    aware = datetime(2024, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))
    rows = [{"id": i} for i in range(3)]
    utc = datetime(2024, 1, 1)  # noqa: DTZ001
    changes = driver.pipe(orders, rows, timestamp=[aware, utc, 1_704_067_200_000_000])
    assert {c.timestamp_us for c in changes} == {1_704_067_200_000_000}
    assert changes[0].timestamp == aware
    with pytest.raises(DataError, match="3 rows come with 2 timestamps"):
        driver.pipe(orders, rows, timestamp=[1, 2])


def test_a_bad_row_is_refused_and_nothing_has_happened(orders: Table, payments: Table) -> None:
    driver = Driver(orders.join(payments))
    driver.pipe(orders, {"id": 1, "amount": 5}, timestamp=1)
    before = driver.snapshot()
    with pytest.raises(DataError, match="table orders: a row of pipe has no time"):
        driver.pipe(orders, [{"id": 2}, {"id": 1}], timestamp=[5, None])
    with pytest.raises(DataError, match=r"unknown columns amuont.*Its columns are id, amount"):
        driver.pipe(orders, {"id": 1, "amuont": 5}, timestamp=1)
    with pytest.raises(DataError, match="no key column id"):
        driver.pipe(orders, {"amount": 5}, timestamp=1)
    with pytest.raises(DataError, match="column 'amount' is of type int64"):
        driver.pipe(orders, {"id": 1, "amount": "five"}, timestamp=1)
    assert driver.snapshot() == before
    assert driver.pipe(payments, {"id": 1, "paid": True}, timestamp=0)[0].timestamp_us == 1


def test_only_the_topologys_tables_are_fed(orders: Table, payments: Table) -> None:
    joined = orders.join(payments)
    for stranger in (table("orders", key="id", schema=ORDER), joined):
        with pytest.raises(PlanError, match=r"not an input .* Its inputs are orders, payments"):
            Driver(joined).pipe(stranger, {"id": 1}, timestamp=1)


def test_null_keys_are_dropped_and_counted(orders: Table, payments: Table) -> None:
    driver = Driver(orders.join(payments, how="outer"))
    changes = driver.pipe(orders, [{"id": None}, {"id": 1}, {"id": None}], timestamp=[None, 2, 3])
    assert [c.key for c in changes] == [{"id": 1}]
    assert driver.dropped == 2
    assert driver.pipe(orders, {"id": None}, timestamp=9) == []
    assert driver.dropped == 3


def test_any_null_in_a_compound_key_drops_the_row() -> None:
    flights = table("flights", key=["a", "b"], schema={"a": pa.string(), "b": pa.int32()})
    driver = Driver(flights)
    rows = [{"a": "x", "b": None}, {"a": None, "b": 1}, {"a": "", "b": 0}]
    assert [c.key for c in driver.pipe(flights, rows, timestamp=1)] == [{"a": "", "b": 0}]
    assert driver.dropped == 2


def test_a_null_key_finds_no_row_whose_key_has_nulls() -> None:
    """A right row alone has a null for the left key; a null equals nothing."""
    left = table("left", key="id", schema={"id": pa.int64(), "name": pa.string()})
    right = table("right", key="name", schema={"name": pa.string(), "city": pa.string()})
    joined = left.join(right, on="name", how="outer")
    schema = {"id": pa.int64(), "right_name": pa.string()}
    asking = stream("asking", key=["id", "right_name"], schema=schema)
    driver = Driver(asking.join(joined, how="left"))
    driver.pipe(right, {"name": "ann", "city": "Oslo"}, timestamp=1)
    (found,) = driver.pipe(asking, {"id": None, "right_name": "ann"}, timestamp=2)
    assert found.values["city"] is None
    driver.pipe(left, {"id": 1, "name": "ann"}, timestamp=3)
    (found,) = driver.pipe(asking, {"id": 1, "right_name": None}, timestamp=4)
    assert found.values["city"] is None


def test_read_gives_each_change_once(orders: Table) -> None:
    driver = Driver(orders)
    one = driver.pipe(orders, {"id": 1}, timestamp=1)
    two = driver.pipe(orders, {"id": 2}, timestamp=2)
    assert driver.read() == one + two
    assert driver.read() == []


def test_a_batch_groups_pipes(orders: Table, payments: Table) -> None:
    driver = Driver(orders.join(payments, how="outer"), emit="batch")
    with driver.batch() as changes:
        assert driver.pipe(payments, {"id": 1, "paid": False}, timestamp=9) == []
        driver.pipe(orders, [{"id": 1, "amount": 5}, {"id": 2}], timestamp=4)
        driver.pipe(orders, {"id": 2}, timestamp=4, deleted=True)
        assert changes == driver.read() == []
    assert repr(changes) == "[<id=1: amount=5, paid=False @9>]"
    assert driver.read() == changes


def test_within_a_batch_rows_arrive_in_the_order_piped(orders: Table, payments: Table) -> None:
    driver = Driver(orders.join(payments, how="outer"))
    with driver.batch() as changes:
        driver.pipe(payments, {"id": 1, "paid": False}, timestamp=9)
        driver.pipe(orders, {"id": 1, "amount": 5}, timestamp=4)
        driver.pipe(payments, {"id": 1}, timestamp=2, deleted=True)
    assert [c.values for c in changes] == [
        {"amount": None, "paid": False},
        {"amount": 5, "paid": False},
        {"amount": 5, "paid": None},
    ]
    assert [c.timestamp_us for c in changes] == [9, 9, 4]


def test_a_batch_that_raises_leaves_everything_as_it_was(orders: Table) -> None:
    driver = Driver(orders)
    before = driver.snapshot()
    with pytest.raises(KeyError), driver.batch():  # noqa: PT012
        driver.pipe(orders, {"id": 1}, timestamp=1)
        raise KeyError
    assert driver.snapshot() == before
    assert driver.read() == []
    with driver.batch():
        for call in (
            driver.snapshot,
            lambda: driver.advance_stream_time(5),
            lambda: driver.batch().__enter__(),
        ):
            with pytest.raises(PlanError, match="a batch is open"):
                call()


@pytest.mark.parametrize("buckets", [1, 3])
def test_a_cut_driver_goes_on(orders: Table, payments: Table, buckets: int) -> None:
    whole = Driver(orders.join(payments, how="outer"), buckets=buckets)
    driver = Driver(orders.join(payments, how="outer"), buckets=buckets)
    for step in range(60):
        fed = (orders, payments)[step % 2]
        row = {"id": step % 7}
        expected = whole.pipe(fed, row, timestamp=step, deleted=step % 5 == 3)
        orders2 = table("orders", key="id", schema=ORDER)
        payments2 = table("payments", key="id", schema=PAYMENT)
        topology = orders2.join(payments2, how="outer")
        driver = Driver.restore(topology, driver.snapshot())
        fed = (orders2, payments2)[step % 2]
        assert driver.pipe(fed, row, timestamp=step, deleted=step % 5 == 3) == expected


def test_a_snapshot_of_another_topology_is_refused(orders: Table, payments: Table) -> None:
    driver = Driver(orders.join(payments))
    with pytest.raises(CheckpointError, match=r'plan.join was "inner" and is "left". Start'):
        Driver.restore(orders.join(payments, how="left"), driver.snapshot())
    with pytest.raises(CheckpointError, match="not one of this version's"):
        Driver.restore(orders.join(payments), b"")


def test_dead_letters_have_any_place_among_restored_results(orders: Table) -> None:
    letters = dovetail.dead_letters
    snapshot = Driver(orders, letters).snapshot()
    for results in ([orders, letters], [letters, orders]):
        driver = Driver.restore(results, snapshot)
        changes = driver.pipe(orders, {"id": 1}, timestamp=1)
        assert driver.read(orders) == changes != []
        assert driver.read(letters) == []
    for nothing in ([], [letters]):
        with pytest.raises(PlanError, match="restore: topology= has no table and no stream"):
            Driver.restore(nothing, snapshot)


def test_which_tables_are_one_table_is_part_of_the_topology(orders: Table) -> None:
    """State of ``A join A`` is not that of ``A join B``, though all types agree."""
    other = table("other", key="id", schema=ORDER)
    chosen = {"a": "left.amount", "b": "right.amount"}
    driver = Driver(orders.join(orders, select=chosen))
    with pytest.raises(CheckpointError, match=r'right.table was "orders" and is "other"; .*input'):
        Driver.restore(orders.join(other, select=chosen), driver.snapshot())


def test_a_driver_that_was_never_fed_can_be_cut(orders: Table) -> None:
    driver = Driver.restore(orders, Driver(orders, buckets=2).snapshot())
    assert len(driver.pipe(orders, [{"id": i} for i in range(9)], timestamp=1)) == 9


def test_advance_moves_stream_time(orders: Table, payments: Table) -> None:
    driver = Driver(orders.join(payments), buckets=2)
    before = driver.snapshot()
    assert driver.advance_stream_time(datetime(2024, 1, 1, tzinfo=timezone.utc)) == []
    assert driver.snapshot() != before
    later = driver.snapshot()
    driver.advance_stream_time(0)
    assert driver.snapshot() == later


def test_buckets_change_only_the_order_between_keys(orders: Table, payments: Table) -> None:
    def run(buckets: int, **options: object) -> dict[int, list[object]]:
        driver = Driver(orders.join(payments, how="left"), buckets=buckets, **options)
        with driver.batch():
            for i in range(200):
                driver.pipe((orders, payments)[i % 2], {"id": i % 11}, timestamp=i * 7 % 50)
        by_key: dict[int, list[object]] = {}
        for change in driver.read():
            by_key.setdefault(change.key["id"], []).append((change.values, change.timestamp_us))
        return by_key

    assert run(1) == run(4) == run(3, key_hash=lambda keys: np.full(len(keys[0]), -7))


def test_selections_of_names_run(orders: Table, payments: Table) -> None:
    renamed = table("stock", key="nr", schema={"nr": pa.int64(), "amount": pa.int64()})
    both = orders.join(renamed, on="id", select={"mine": "left.amount", "theirs": "right.amount"})
    chain = both.join(payments, how="left", select={"paid": "paid", "n": "theirs", "m": "mine"})
    driver = Driver(chain)
    driver.pipe(orders, {"id": 1, "amount": 5}, timestamp=1)
    driver.pipe(renamed, {"nr": 1, "amount": 6}, timestamp=2)
    (change,) = driver.pipe(payments, {"id": 1, "paid": True}, timestamp=3)
    assert repr(change) == "<id=1: paid=True, n=6, m=5 @3>"


def test_the_key_of_a_side_that_is_always_there_can_be_selected(
    orders: Table, payments: Table
) -> None:
    driver = Driver(orders.join(payments, select={"r": "right.id", "amount": "amount"}))
    driver.pipe(payments, {"id": 1}, timestamp=1)
    (change,) = driver.pipe(orders, {"id": 1, "amount": 5}, timestamp=1)
    assert change.values == {"r": 1, "amount": 5}
    with pytest.raises(PlanError, match="Spark expression"):
        Driver(orders.join(payments, how="outer", select={"r": "right.id", "amount": "amount"}))


def test_every_type_comes_back_as_it_went_in() -> None:
    utc = timezone.utc
    row = {
        "k": {"a": [1, None], "b": "é"},
        "string": "",
        "binary": b"\x00",
        "decimal": Decimal("12345678901234567890.12"),
        "date": date(2024, 2, 29),
        "instant": datetime(2024, 2, 29, 1, 2, 3, 4, tzinfo=utc),
        "wall": datetime(2024, 2, 29, 1, 2, 3, 4),  # noqa: DTZ001
        "duration": timedelta(days=-1, microseconds=1),
        "list": [[0.0, None], []],
        "map": [("a", {"x": 1}), ("b", None)],
        "none": None,
    }
    struct = pa.struct([("a", pa.list_(pa.int16())), ("b", pa.string())])
    types = {
        "k": struct,
        "string": pa.string(),
        "binary": pa.binary(),
        "decimal": pa.decimal128(38, 2),
        "date": pa.date32(),
        "instant": pa.timestamp("us", "UTC"),
        "wall": pa.timestamp("us"),
        "duration": pa.duration("us"),
        "list": pa.list_(pa.list_(pa.float64())),
        "map": pa.map_(pa.string(), pa.struct([("x", pa.int8())])),
        "none": pa.float32(),
    }
    everything = table("everything", key="k", schema=types)
    driver = Driver(everything)
    (change,) = driver.pipe(everything, row, timestamp=1)
    assert change.key | (change.values or {}) == row


def test_a_selection_that_computes_needs_spark(orders: Table, payments: Table) -> None:
    node = orders.join(payments).plan
    total = Selected("total", None, object())  # what a Spark expression becomes
    computing = Table(replace(node, select=(total,), values=st.StructType().add("total", "long")))
    with pytest.raises(PlanError, match=r"Spark expression.* Give it one with spark="):
        Driver(computing)


def test_a_table_joined_with_itself(orders: Table) -> None:
    twice = orders.join(orders, select={"a": "left.amount", "b": "right.amount"})
    driver = Driver(twice)
    upserts = driver.pipe(orders, {"id": 1, "amount": 5}, timestamp=1)
    assert repr(upserts) == "[<id=1: a=5, b=5 @1>, <id=1: a=5, b=5 @1>]"
    deletes = driver.pipe(orders, {"id": 1}, timestamp=2, deleted=True)
    assert repr(deletes) == "[<id=1: deleted @2>, <id=1: deleted @2>]"


KEYS = [
    pa.array([0, 1, -1, 2**31 - 1, 7], pa.int32()),
    pa.array([0, 1, -1, 2**62, 7], pa.int64()),
    pa.array([True, False, True, True, False]),
    pa.array([0.0, 1.5, float("nan"), float("inf"), -1.0]),
    pa.array(["", "a", "aa", "é", "b" * 999]),
    pa.array([b"", b"\0", b"\0\0", b"a", b"aa"]),
    pa.array([Decimal("0.1"), Decimal(-1), Decimal(3), Decimal(4), Decimal(5)]),
    pa.array([[], [0], [0, 0], [None], [1, 2]], pa.list_(pa.int64())),
    pa.array([["a", "b"], ["ab"], [""], ["", ""], [None, "ab"]]),
    pa.array([{"a": 1, "b": None}, {"a": None, "b": 1}, {"a": 1, "b": 1}, {}, {"a": 0, "b": 0}]),
]


@pytest.mark.parametrize("keys", KEYS, ids=lambda keys: str(keys.type))
def test_the_hash_depends_on_a_rows_own_key_only(keys: pa.Array) -> None:
    hashed = stable_hash([keys])
    assert len(set(hashed.tolist())) == len(set(map(str, keys.to_pylist())))
    for i in range(len(keys)):
        assert stable_hash([keys.slice(i, 1)]) == hashed[i]
        assert stable_hash([keys.slice(i)])[0] == hashed[i]
    nulled = pa.concat_arrays([pa.nulls(1, keys.type), keys])
    assert (stable_hash([nulled])[1:] == hashed).all()


def test_the_hash_never_changes() -> None:
    """State is stored by it and read by later releases, so these numbers stand."""
    keys = [pa.array([1, 2]), pa.array(["a", None]), pa.array([[1.5], []], pa.list_(pa.float64()))]
    assert stable_hash(keys).tolist() == [8_702_479_954_979_001_782, -2_847_042_326_287_245_447]


def test_the_hash_spreads() -> None:
    for keys in (pa.array(range(10_000)), pa.array([f"key {i}" for i in range(10_000)])):
        counts = np.bincount(np.mod(stable_hash([keys]), 8), minlength=8)
        assert counts.min() > 1_100


def test_negative_zero_and_nan_are_one_key_each() -> None:
    floats = table("floats", key="x", schema={"x": pa.float64(), "v": pa.int64()})
    other = table("other", key="x", schema={"x": pa.float64()})
    driver = Driver(floats.join(other))
    joined = driver.pipe(floats, [{"x": 0.0}, {"x": float("nan")}], timestamp=1)
    assert joined == []
    changes = driver.pipe(other, [{"x": -0.0}, {"x": float("nan")}], timestamp=1)
    assert len(changes) == 2


@pytest.mark.parametrize(
    ("type_", "of"),
    [
        (pa.float64(), lambda x: x),
        (pa.struct([("x", pa.float32())]), lambda x: {"x": x}),
        (pa.list_(pa.struct([("x", pa.float64())])), lambda x: [{"x": 1.0}, {"x": x}]),
    ],
    ids=["float", "struct", "list"],
)
def test_zeros_are_one_key_at_any_depth(type_: pa.DataType, of: Any) -> None:
    left = dovetail.testing.table("left", key="k", schema={"k": type_, "v": pa.int64()})
    right = dovetail.testing.table("right", key="k", schema={"k": type_, "w": pa.int64()})
    driver = dovetail.testing.Driver(left.join(right))
    driver.pipe(left, [{"k": of(-0.0), "v": 1}, {"k": of(2.0), "v": 3}], timestamp=1)
    changes = driver.pipe(right, {"k": of(0.0), "w": 2}, timestamp=2)
    assert [change.values for change in changes] == [{"v": 1, "w": 2}]


def test_a_time_that_python_lacks_is_an_error() -> None:
    times = table("t", key="id", schema={"id": pa.int64(), "at": pa.timestamp("us")})
    with pytest.raises(DataError, match="t: a value of its result is none of Python's"):
        Driver(times).pipe(times, {"id": 1, "at": 253402300800000000}, timestamp=1)
