"""The present rows of any table of a topology, and batches that fail."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import dovetail as dt
from dovetail.errors import PlanError
from dovetail.testing import Driver, stream, table

ORDERS = {"id": pa.int64(), "customer": pa.string(), "amount": pa.int64()}


@pytest.fixture
def orders() -> dt.Table:
    return table("orders", key="id", schema=ORDERS)


@pytest.fixture
def customers() -> dt.Table:
    return table("customers", key="name", schema={"name": pa.string(), "city": pa.string()})


@pytest.mark.parametrize("emit", ["change", "batch"])
@pytest.mark.parametrize("buckets", [1, 3])
def test_every_table_of_a_topology_has_its_rows(
    orders: dt.Table, customers: dt.Table, emit: Any, buckets: int
) -> None:
    placed = orders.join(customers, on="customer", how="left")
    totals = placed.group_by("city").agg(total=dt.sum("amount"))
    driver = Driver(totals, emit=emit, buckets=buckets)
    tables = [orders, customers, placed, totals]
    assert [driver.table(one) for one in tables] == [{}, {}, {}, {}]
    driver.pipe(
        orders,
        """
        time | id | customer | amount | change
        1    | 1  | ann      | 5      |
        9    | 2  | ann      | 6      |
        3    | 2  | ann      | 7      |
        4    | 3  | bob      | 8      |
        5    | 3  |          |        | delete
        6    |    | cid      | 9      |
        """,
    )
    assert driver.table(totals) == {}
    driver.pipe(customers, {"name": "ann", "city": "Oslo"}, timestamp=7)
    assert driver.table(orders) == {
        1: {"customer": "ann", "amount": 5},
        2: {"customer": "ann", "amount": 7},  # a late row of an unversioned table replaces, too
    }
    assert driver.table(customers) == {"ann": {"city": "Oslo"}}
    assert driver.table(placed) == {
        1: {"customer": "ann", "amount": 5, "city": "Oslo"},
        2: {"customer": "ann", "amount": 7, "city": "Oslo"},
    }
    assert driver.table(totals) == {"Oslo": {"total": 12}}
    driver.pipe(customers, {"name": "ann"}, timestamp=8, deleted=True)
    assert driver.table(totals) == driver.table(customers) == {}
    assert driver.table(placed)[2] == {"customer": "ann", "amount": 7, "city": None}


def test_a_versioned_table_has_its_latest_versions() -> None:
    prices = table(
        "prices",
        key="item",
        schema={"item": pa.string(), "price": pa.int64()},
        versioned="10 microseconds",
    )
    sales = stream("sales", key="id", schema={"id": pa.int64(), "item": pa.string()})
    joined = sales.join(prices, on="item")
    driver = Driver(joined)
    driver.pipe(
        prices, "time | item | price\n20 | pen | 2\n15 | pen | 1\n20 | ink | 5\n20 | ink | 6"
    )
    driver.pipe(prices, "time | item | price\n9 | old | 1")  # past the history
    assert driver.table(prices) == {"pen": {"price": 2}, "ink": {"price": 6}}
    driver.pipe(prices, "time | item | change\n19 | pen | delete\n20 | ink | delete")
    assert driver.table(prices) == {"pen": {"price": 2}}
    for asked, message in (
        (sales, "a stream"),
        (joined, "a stream"),
        (sales.to_table(), "not a part"),
    ):
        with pytest.raises(PlanError, match=f"table= is .*, {message}"):
            driver.table(asked)


def test_a_history_has_each_keys_latest_row() -> None:
    schema = {"id": pa.int64(), "v": pa.string()}
    left = table("left", key="id", schema=schema, versioned="1 day")
    right = table("right", key="id", schema=schema, versioned="1 day")
    joined = left.join(right, late="history", select={"a": "left.v", "b": "right.v"})
    driver = Driver(joined)
    driver.pipe(left, "time | id | v\n10 | 1 | A\n10 | 2 | A")
    driver.pipe(right, "time | id | v | change\n20 | 1 | a |\n20 | 2 | a |\n30 | 2 | | delete")
    driver.pipe(right, "time | id | v\n15 | 1 | late\n15 | 2 | late")
    assert [change.timestamp_us for change in driver.read()][-2:] == [15, 15]
    assert driver.table(joined) == {1: {"a": "A", "b": "a"}}


def test_a_windowed_table_has_the_rows_of_its_windows() -> None:
    clicks = stream("clicks", key="id", schema={"id": pa.int64(), "page": pa.string()})
    pages = table("pages", key="page", schema={"page": pa.string(), "title": pa.string()})
    counts = clicks.group_by("page").window(dt.windows.tumbling("1 second")).agg(n=dt.count())
    joined = counts.join(pages, how="left")
    result = joined.to_table(windows="on_close")
    driver = Driver(result)
    driver.pipe(clicks, "time | id | page\n1 | 1 | a\n2 | 2 | a\n1000000 | 3 | a")
    driver.pipe(pages, "time | page | title\n1 | a | A")
    rows = {
        (page, start.second, end.second): row for (page, start, end), row in _rows(driver, counts)
    }
    assert rows == {("a", 0, 1): {"n": 2}, ("a", 1, 2): {"n": 1}}
    assert [row for _, row in _rows(driver, joined)] == [
        {"n": 2, "title": "A"},
        {"n": 1, "title": "A"},
    ]
    assert [row for _, row in _rows(driver, result)] == [{"n": 2, "title": None}]
    driver.advance_stream_time(5_000_000)
    assert [row for _, row in _rows(driver, result)] == [
        {"n": 2, "title": None},
        {"n": 1, "title": "A"},
    ]


def _rows(driver: Driver, asked: Any) -> Any:
    return driver.table(asked).items()


def test_keys_of_any_type() -> None:
    struct = pa.struct([("a", pa.list_(pa.int64())), ("b", pa.float64())])
    nested = table("nested", key="k", schema={"k": struct, "v": pa.int64()})
    driver = Driver(nested)
    for value in (1, 2):
        driver.pipe(nested, {"k": {"a": [1, None], "b": float("nan")}, "v": value}, timestamp=1)
    ((key, row),) = driver.table(nested).items()
    assert key[0] == (1, None)
    assert key[1] != key[1]
    assert row == {"v": 2}
    pairs = table("pairs", key=["a", "b"], schema={"a": pa.int64(), "b": pa.string()})
    driver = Driver(pairs)
    driver.pipe(pairs, {"a": 1, "b": "x"}, timestamp=1)
    assert driver.table(pairs) == {(1, "x"): {}}


def test_rows_that_wait_are_not_there_yet(orders: dt.Table) -> None:
    paid = table("paid", key="id", schema={"id": pa.int64(), "paid": pa.int64()})
    joined = orders.join(paid, align="1 second")
    driver = Driver(joined)
    driver.pipe(orders, "time | id | amount\n5 | 1 | 5")
    driver.pipe(paid, "time | id | paid\n3 | 1 | 4")
    assert driver.table(orders) == {1: {"customer": None, "amount": 5}}
    assert driver.table(joined) == {}
    driver.advance_wall_clock("2 seconds")
    assert driver.table(joined) == {1: {"customer": None, "amount": 5, "paid": 4}}


def test_a_restored_driver_knows_no_rows(orders: dt.Table, customers: dt.Table) -> None:
    topology = orders.join(customers, on="customer")
    driver = Driver(topology)
    driver.pipe(orders, {"id": 1}, timestamp=1)
    with pytest.raises(PlanError, match="a restored driver, which knows no rows from before"):
        Driver.restore(topology, driver.snapshot()).table(orders)
    with pytest.raises(PlanError, match="not a part of the topology"):
        driver.table(table("orders", key="id", schema=ORDERS))


@pytest.mark.parametrize("batched", [False, True])
def test_a_batch_that_fails_has_changed_nothing(batched: bool) -> None:
    """Neither in the stages and buckets that had done their work nor in what is counted."""
    schema = {"id": pa.int64(), "g": pa.string(), "n": pa.int64()}
    rows = table("rows", key="id", schema=schema)
    topology = rows.group_by("g").agg(total=dt.sum("n"))
    driver = Driver(topology, buckets=4)
    driver.pipe(rows, {"id": 0, "g": "a", "n": 2**62}, timestamp=1)
    before, read = driver.snapshot(), driver.read()
    counts = driver.counts
    bad = [{"id": i, "g": f"{i}", "n": 0} for i in range(1, 9)]
    bad += [{"id": None}, {"id": 9}, {"id": 10, "g": "a", "n": 2**62}]
    with pytest.raises(dt.errors.DataError):  # noqa: PT012
        if batched:
            with driver.batch():
                driver.pipe(rows, bad, timestamp=2)
        else:
            driver.pipe(rows, bad, timestamp=2)
    assert driver.snapshot() == before
    assert (driver.dropped, driver.counts, driver.read()) == (0, counts, [])
    assert driver.table(topology) == {"a": {"total": 2**62}}
    assert len(read) == 1
    driver.pipe(rows, {"id": 0, "g": "b", "n": 1}, timestamp=3)
    driver.assert_changes("time | g | total | change\n3 | a | | delete\n3 | b | 1 |")
