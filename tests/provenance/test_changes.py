"""Emitted changes, explained: the record that caused each, and the rows that made it."""

from __future__ import annotations

from textwrap import dedent

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import dovetail as dt
from dovetail import testing
from dovetail.errors import PlanError

INT, TEXT = pa.int64(), pa.string()


def lines(text: str) -> str:
    return dedent(text).strip("\n")


def test_each_change_of_a_join_has_its_record() -> None:
    orders = testing.table("orders", key="id", schema={"id": INT, "amount": INT})
    payments = testing.table("payments", key="id", schema={"id": INT, "paid": INT})
    driver = testing.Driver(orders.join(payments, how="left"))
    with driver.batch() as changes:
        driver.pipe(orders, {"id": 1, "amount": 40}, timestamp=1)
        driver.pipe(payments, {"id": 1, "paid": 15}, timestamp=2)
        driver.pipe(orders, {"id": 1}, timestamp=3, deleted=True)
    assert [repr(driver.explain_change(change)) for change in changes] == [
        lines(
            """
            left join by key: id 1: amount=40, paid=None @1
            ← orders: id 1: amount=40 @1
            ├─ orders: id 1: amount=40 @1
            └─ payments: no row with id 1
            """
        ).replace("None", "null"),
        lines(
            """
            left join by key: id 1: amount=40, paid=15 @2
            ← payments: id 1: paid=15 @2
            ├─ orders: id 1: amount=40 @1
            └─ payments: id 1: paid=15 @2
            """
        ),
        lines(
            """
            left join by key: no row with id 1, because orders has no row with id 1
            ← orders: no row with id 1
            ├─ orders: no row with id 1
            └─ payments: id 1: paid=15 @2
            """
        ),
    ]


def test_a_nan_is_the_value_that_is_stored() -> None:
    sensors = testing.table("sensors", key="id", schema={"id": INT, "x": pa.float64()})
    driver = testing.Driver(sensors)
    (change,) = driver.pipe(sensors, {"id": 1, "x": float("nan")}, timestamp=1)
    assert driver.explain_change(change).reason == ""


def test_a_dead_letter_is_not_explained(spark: SparkSession) -> None:
    orders = testing.table("orders", key="id", schema={"id": INT})
    driver = testing.Driver(
        orders.expect("id > 0", on_fail="dead_letter"), dt.dead_letters, spark=spark
    )
    driver.pipe(orders, {"id": 0}, timestamp=1)
    (letter,) = driver.read(dt.dead_letters)
    with pytest.raises(PlanError, match=r"explain_change: result= .* Give a Table or a Stream"):
        driver.explain_change(letter, dt.dead_letters)  # type: ignore[arg-type]


def test_values_within_maps_are_found_again() -> None:
    schema = {
        "id": INT,
        "x": pa.map_(TEXT, pa.float64()),
        "y": pa.map_(TEXT, pa.list_(pa.float64())),
    }
    sensors = testing.table("sensors", key="id", schema=schema)
    driver = testing.Driver(sensors)
    nan = float("nan")
    row = {"id": 1, "x": [("a", nan)], "y": [("b", [1.0, nan])]}
    (change,) = driver.pipe(sensors, row, timestamp=1)
    line = "sensors: id 1: x=[('a', nan)], y=[('b', [1.0, nan])] @1"
    assert repr(driver.explain_change(change)) == f"{line}\n← {line}"


@pytest.mark.parametrize(
    ("us", "time"),
    [
        (1_714_557_600_000 * 1_000_000, "9999-12-31 00:00:00+00:00"),
        (-1_714_557_600_000 * 1_000_000, "0001-01-01 00:00:00+00:00"),
    ],
)
def test_a_change_beyond_the_years_1_to_9999_is_of_the_nearest_day(us: int, time: str) -> None:
    """As of milliseconds that are taken for seconds."""
    orders = testing.table("orders", key="id", schema={"id": INT})
    driver = testing.Driver(orders)
    (change,) = driver.pipe(orders, {"id": 1}, timestamp=us)
    assert str(driver.explain_change(change).time) == time
    assert str(driver.explain_row(1).time) == time


def test_records_with_a_nan_are_found_again() -> None:
    left = testing.stream("left", key="id", schema={"id": INT, "x": pa.float64()})
    right = testing.stream("right", key="id", schema={"id": INT, "y": pa.float64()})
    driver = testing.Driver(left.join(right, within=dt.within(after="1 min")))
    driver.pipe(left, {"id": 1, "x": float("nan")}, timestamp=1)
    (change,) = driver.pipe(right, {"id": 1, "y": float("nan")}, timestamp=2)
    assert [row.name for row in driver.explain_change(change).inputs] == ["left", "right"]


def test_rows_that_wait_together_are_let_through_together() -> None:
    """No single record is the cause of what they emit."""
    orders = testing.table("orders", key="id", schema={"id": INT, "amount": INT})
    payments = testing.table("payments", key="id", schema={"id": INT, "paid": INT})
    driver = testing.Driver(orders.join(payments, how="left", align="5 s"))
    assert driver.pipe(payments, {"id": 1, "paid": 1}, timestamp=1) == []
    rows = [{"id": 1, "amount": 1}, {"id": 2, "amount": 5}]
    changes = driver.pipe(orders, rows, timestamp=[1, 1]) + driver.advance_wall_clock("10 s")
    assert [change.values for change in changes] == [
        {"amount": 1, "paid": None},
        {"amount": 5, "paid": None},
        {"amount": 1, "paid": 1},
    ]
    assert repr(driver.explain_change(changes[2])) == lines(
        """
        left join by key, aligned up to 5 s: id 1: amount=1, paid=1 @1
        ├─ orders: id 1: amount=1 @1
        └─ payments: id 1: paid=1 @1
        """
    )


def test_a_record_meets_the_version_of_its_time() -> None:
    sales = testing.stream("sales", key="id", schema={"id": INT, "item": TEXT})
    schema = {"item": TEXT, "price": INT}
    prices = testing.table("prices", key="item", schema=schema, versioned="1 day")
    driver = testing.Driver(sales.join(prices, on="item", how="left"))
    rows = [{"item": "pen", "price": 2}, {"item": "pen", "price": 3}]
    driver.pipe(prices, rows, timestamp=[10, 20])
    (change,) = driver.pipe(sales, {"id": 1, "item": "pen"}, timestamp=15)
    assert repr(driver.explain_change(change)) == lines(
        """
        left join of a stream with a table on item: id 1: item='pen', price=2 @15
        ← sales: id 1: item='pen' @15
        ├─ sales: id 1: item='pen' @15
        └─ prices: item 'pen': price=2 @10
        """
    )
    met = driver.explain_row({"id": 8, "item": "pen"})
    assert [row.values for row in met.inputs] == [{"item": "pen"}, {"price": 3}]
    assert driver.explain_row(8).reason == "records are not stored; give the record's item"
    (change,) = driver.pipe(sales, {"id": 2, "item": "ink"}, timestamp=16)
    assert driver.explain_change(change).inputs[1].reason == "prices has no row with item 'ink'"


def test_the_step_of_an_input_is_its_kind() -> None:
    sales = testing.stream("sales", key="id", schema={"id": INT, "item": TEXT})
    prices = testing.table("prices", key="item", schema={"item": TEXT, "price": INT})
    driver = testing.Driver(sales.join(prices, on="item", how="left"))
    (change,) = driver.pipe(sales, {"id": 1, "item": "pen"}, timestamp=15)
    explained = driver.explain_change(change)
    assert explained.cause is not None
    rows = (explained.cause, *explained.inputs)
    assert [(row.name, row.step) for row in rows] == [
        ("sales", "stream"),
        ("sales", "stream"),
        ("prices", "table"),
    ]


def test_a_record_meets_the_row_that_it_replaces() -> None:
    visits = testing.stream("visits", key="id", schema={"id": INT, "page": TEXT})
    former = visits.to_table().select(former="page")
    driver = testing.Driver(visits.join(former, how="left", name="paths"))
    with driver.batch() as changes:
        driver.pipe(visits, {"id": 1, "page": "a"}, timestamp=1)
        driver.pipe(visits, {"id": 1, "page": "b"}, timestamp=2)
    assert [repr(driver.explain_change(change)).splitlines()[:4] for change in changes] == [
        [
            "paths, left join of a stream with a table on id: id 1: page='a', former=null @1",
            "← visits: id 1: page='a' @1",
            "├─ visits: id 1: page='a' @1",
            "└─ select: no row with id 1, because visits has no row with id 1",
        ],
        [
            "paths, left join of a stream with a table on id: id 1: page='b', former='a' @2",
            "← visits: id 1: page='b' @2",
            "├─ visits: id 1: page='b' @2",
            "└─ select: id 1: former='a' @1",
        ],
    ]


def test_both_records_of_a_join_of_streams() -> None:
    clicks = testing.stream("clicks", key="user", schema={"user": TEXT, "page": TEXT})
    buys = testing.stream("buys", key="user", schema={"user": TEXT, "amount": INT})
    within = dt.within(before="1 second", after="1 second")
    driver = testing.Driver(clicks.join(buys, within=within))
    pages = [{"user": "ann", "page": page} for page in ("home", "help")]
    driver.pipe(clicks, pages, timestamp=[1, 2])
    _, change = driver.pipe(buys, {"user": "ann", "amount": 5}, timestamp=3)
    assert [(row.name, row.values) for row in driver.explain_change(change).inputs] == [
        ("clicks", {"page": "help"}),
        ("buys", {"amount": 5}),
    ]


def test_a_window_waits_until_it_is_closed() -> None:
    views = testing.stream("views", key="user", schema={"user": TEXT, "page": TEXT})
    hours = views.group_by("page").window(dt.windows.tumbling("1 hour"))
    counts = hours.agg(n=dt.count())
    driver = testing.Driver(counts.to_table(windows="on_close"))
    driver.pipe(views, {"user": "ann", "page": "home"}, timestamp=0)
    hour = 3_600_000_000
    window = {"window_start": pa.scalar(0, pa.timestamp("us", "UTC")).as_py()}
    window["window_end"] = pa.scalar(hour, pa.timestamp("us", "UTC")).as_py()
    explanation = driver.explain_row({"page": "home", **window})
    assert (explanation.presence, explanation.reason) == (
        "none",
        "it waits until stream time passes 3600000000",
    )
    assert explanation.inputs[0].values == {"n": 1}
    assert driver.explain_row({"page": "help", **window}).presence == "none"
    (change,) = driver.advance_stream_time(hour)
    closed = driver.explain_change(change)
    assert (closed.presence, closed.values, closed.cause) == ("row", {"n": 1}, None)


def test_changes_of_others_are_refused() -> None:
    orders = testing.table("orders", key="id", schema={"id": INT, "amount": INT})
    driver = testing.Driver(orders)
    (change,) = driver.pipe(orders, {"id": 1, "amount": 40}, timestamp=1)
    with pytest.raises(PlanError, match="this driver has not emitted"):
        testing.Driver(orders).explain_change(change)
    with pytest.raises(PlanError, match="this driver has not emitted"):
        testing.Driver.restore(orders, driver.snapshot()).explain_change(change)
