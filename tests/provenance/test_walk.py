"""Explanations of rows, step by step, as text: what a driver's state says of them."""

from __future__ import annotations

import json
import math
from textwrap import dedent
from typing import Any

import pyarrow as pa
import pytest

import dovetail as dt
from dovetail import testing
from dovetail.errors import PlanError
from dovetail.provenance.stored_rows import moment
from dovetail.typing import RowExplanation

INT, TEXT = pa.int64(), pa.string()
ORDERS = {"id": INT, "customer": INT, "amount": INT}


@pytest.fixture
def orders() -> dt.Table:
    return testing.table("orders", key="id", schema=ORDERS)


@pytest.fixture
def payments() -> dt.Table:
    return testing.table("payments", key="id", schema={"id": INT, "paid": INT})


@pytest.fixture
def customers() -> dt.Table:
    return testing.table("customers", key="id", schema={"id": INT, "name": TEXT})


def order(id_: int, customer: int | None, amount: int) -> dict[str, Any]:
    return {"id": id_, "customer": customer, "amount": amount}


def shown(driver: testing.Driver, key: object, **options: Any) -> str:
    return repr(driver.explain_row(key, **options))


def lines(text: str) -> str:
    return dedent(text).strip("\n")


def test_a_row_of_an_input(orders: dt.Table) -> None:
    driver = testing.Driver(orders)
    driver.pipe(orders, order(1, 9, 40), timestamp=3)
    assert shown(driver, 1) == "orders: id 1: customer=9, amount=40 @3"
    assert shown(driver, 2) == "orders: no row with id 2"
    assert driver.explain_row(2).reason == "orders has no row with id 2"
    driver.pipe(orders, {"id": 1}, timestamp=4, deleted=True)
    assert shown(driver, 1) == "orders: no row with id 1"


@pytest.mark.parametrize(
    ("how", "present"), [("inner", [1]), ("left", [1, 2]), ("outer", [1, 2, 3])]
)
def test_a_join_by_key(orders: dt.Table, payments: dt.Table, how: Any, present: list[int]) -> None:
    driver = testing.Driver(orders.join(payments, how=how))
    driver.pipe(orders, [order(1, 9, 40), order(2, 9, 50)], timestamp=[1, 2])
    driver.pipe(payments, [{"id": 1, "paid": 15}, {"id": 3, "paid": 5}], timestamp=[3, 4])
    assert [key for key in (1, 2, 3, 4) if driver.explain_row(key).presence == "row"] == present
    assert shown(driver, 1) == lines(
        f"""
        {how} join by key: id 1: customer=9, amount=40, paid=15 @3
        ├─ orders: id 1: customer=9, amount=40 @1
        └─ payments: id 1: paid=15 @3
        """
    )
    assert [driver.explain_row(key).reason for key in (2, 3, 4)] == {
        "inner": [f"{name} has no row with id {key}" for key, name in NO_PAIR.items()],
        "left": ["", "orders has no row with id 3", "orders has no row with id 4"],
        "outer": ["", "", "orders has no row with id 4"],
    }[how]


NO_PAIR = {2: "payments", 3: "orders", 4: "orders"}


def test_a_join_by_foreign_key(orders: dt.Table, customers: dt.Table) -> None:
    driver = testing.Driver(orders.join(customers, on="customer", select=["amount", "name"]))
    driver.pipe(orders, [order(1, 9, 40), order(2, 8, 50), order(3, None, 60)], timestamp=1)
    driver.pipe(customers, {"id": 9, "name": "ann"}, timestamp=2)
    assert shown(driver, 1) == lines(
        """
        inner join by foreign key customer: id 1: amount=40, name='ann' @2
        ├─ orders: id 1: customer=9, amount=40 @1
        └─ customers: id 9: name='ann' @2
        """
    )
    assert [driver.explain_row(key).reason for key in (2, 3, 4)] == [
        "orders with id 2 refers to customers with id 8, and customers has no row with id 8",
        "orders with id 3 refers to no customers, for its customer is null",
        "orders has no row with id 4",
    ]


def test_a_star_of_foreign_keys(orders: dt.Table, customers: dt.Table) -> None:
    shops = testing.table("shops", key="id", schema={"id": INT, "city": TEXT})
    named = orders.join(customers, on="customer", how="left", name="named")
    driver = testing.Driver(named.join(shops, on="amount", select=["name", "city"]))
    rows = [order(1, 9, 5), order(2, None, 5), order(3, 9, 6)]
    driver.pipe(orders, rows, timestamp=1)
    driver.pipe(customers, {"id": 9, "name": "ann"}, timestamp=2)
    driver.pipe(shops, {"id": 5, "city": "Oslo"}, timestamp=3)
    assert shown(driver, 1) == lines(
        """
        inner join by foreign key amount: id 1: name='ann', city='Oslo' @3
        ├─ named, left join by foreign key customer: id 1: customer=9, amount=5, name='ann' @2
        │  ├─ orders: id 1: customer=9, amount=5 @1
        │  └─ customers: id 9: name='ann' @2
        └─ shops: id 5: city='Oslo' @3
        """
    )
    values = [driver.explain_row(key).values for key in (2, 3)]
    assert values == [{"name": None, "city": "Oslo"}, {}]
    assert driver.explain_row(3).reason == (
        "named with id 3 refers to shops with id 6, and shops has no row with id 6"
    )
    assert driver.explain_row(3, named).values["name"] == "ann"


def test_a_right_row_alone(orders: dt.Table, customers: dt.Table) -> None:
    joined = orders.join(customers, on="customer", how="outer", select=["amount", "name"])
    driver = testing.Driver(joined)
    driver.pipe(orders, [order(1, 9, 40), order(2, 8, 50)], timestamp=1)
    driver.pipe(customers, [{"id": 9, "name": "ann"}, {"id": 7, "name": "bob"}], timestamp=2)
    assert shown(driver, (None, 7)) == lines(
        """
        outer join by foreign key customer: id null, right_id 7: amount=null, name='bob' @2
        └─ customers: id 7: name='bob' @2
        """
    )
    assert driver.explain_row((None, 9)).reason == (
        "orders with id 1 refers to it, so it is joined"
    )
    assert driver.explain_row((2, None)).values == {"amount": 50, "name": None}


def test_an_aggregate_names_the_rows_of_its_group(orders: dt.Table) -> None:
    totals = orders.group_by("customer").agg(total=dt.sum("amount"))
    driver = testing.Driver(totals)
    driver.pipe(orders, [order(n, n % 2, 10 * n) for n in range(1, 6)], timestamp=1)
    assert shown(driver, 0) == lines(
        """
        aggregate by customer: customer 0: total=60 @1
        ├─ orders: id 2: customer=0, amount=20 @1
        └─ orders: id 4: customer=0, amount=40 @1
        """
    )
    explanation = driver.explain_row(1, members=2)
    assert [row.key for row in explanation.inputs] == [{"id": 1}, {"id": 3}]
    assert explanation.reason == "1 more rows are not named"
    assert driver.explain_row(7).reason == "orders has no row with customer 7"


def test_a_condition_leaves_a_row_out() -> None:
    schema = {"id": INT, "amount": INT, "open": pa.bool_()}
    orders = testing.table("orders", key="id", schema=schema)
    payments = testing.table("payments", key="id", schema={"id": INT, "paid": INT})
    joined = orders.join(payments)
    driver = testing.Driver(joined.where("open"), spark=None)
    rows = [{"id": n, "amount": 10, "open": n == 1} for n in (1, 2)]
    driver.pipe(orders, rows, timestamp=1)
    driver.pipe(payments, [{"id": n, "paid": 5} for n in (1, 2)], timestamp=2)
    assert shown(driver, 1) == lines(
        """
        where open: id 1: amount=10, open=True, paid=5 @2
        └─ inner join by key: id 1: amount=10, open=True, paid=5 @2
           ├─ orders: id 1: amount=10, open=True @1
           └─ payments: id 1: paid=5 @2
        """
    )
    assert driver.explain_row(2).reason == "dropped by the condition `open`"
    assert driver.explain_row(2).inputs[0].presence == "row"
    assert driver.explain_row(3).reason == "orders has no row with id 3"


def test_a_union_names_the_table(orders: dt.Table) -> None:
    others = testing.table("others", key="id", schema=ORDERS)
    union = orders.union(others, source="shop").materialize()
    driver = testing.Driver(union)
    driver.pipe(orders, order(1, 9, 40), timestamp=1)
    driver.pipe(others, order(1, 8, 50), timestamp=2)
    assert shown(driver, (1, "others")) == lines(
        """
        materialized: id 1, shop 'others': customer=8, amount=50 @2
        └─ union: id 1, shop 'others': customer=8, amount=50 @2
           └─ key by id, others: id 1, shop 'others': customer=8, amount=50 @2
              └─ others: id 1: customer=8, amount=50 @2
        """
    )
    assert driver.explain_row((2, "orders")).presence == "none"


def test_a_record_of_a_union_of_streams_is_named_without_its_stream() -> None:
    clicks, taps = (testing.stream(n, key="id", schema={"id": INT, "n": INT}) for n in ("c", "t"))
    driver = testing.Driver(clicks.union(taps).key_by("n"))
    driver.pipe(clicks, {"id": 1, "n": 5}, timestamp=1)
    (change,) = driver.pipe(taps, {"id": 1, "n": 6}, timestamp=2)
    assert str(driver.explain_change(change)) == dedent(
        """
        key by n: n 6: id=1 @2
        ← t: id 1: n=6 @2
        └─ union: id 1: n=6 @2; the state does not tell which of c, t had the record
        """
    ).strip("\n")


def test_another_key(orders: dt.Table) -> None:
    driver = testing.Driver(orders.key_by("customer", duplicates="last"))
    driver.pipe(orders, [order(1, 9, 40), order(2, 9, 50)], timestamp=[1, 2])
    explanation = driver.explain_row(9)
    assert explanation.values == {"id": 2, "amount": 50}
    assert [row.key for row in explanation.input_rows] == [{"id": 1}, {"id": 2}]


def test_an_element_of_an_array() -> None:
    schema = {"id": INT, "items": pa.list_(TEXT)}
    orders = testing.table("orders", key="id", schema=schema)
    driver = testing.Driver(orders.explode("items", position="n"))
    driver.pipe(orders, {"id": 1, "items": ["pen", "ink"]}, timestamp=1)
    assert shown(driver, (1, 1)) == lines(
        """
        explode items by n: id 1, n 1: items='ink' @1
        └─ orders: id 1: items=['pen', 'ink'] @1
        """
    )
    assert driver.explain_row((1, 2)).reason == "items of this row has no element with n 2"


def test_an_element_that_is_no_number() -> None:
    sizes = testing.table("sizes", key="id", schema={"id": INT, "size": pa.list_(pa.float64())})
    driver = testing.Driver(sizes.explode("size"))
    driver.pipe(sizes, {"id": 1, "size": [math.nan, -0.0, None]}, timestamp=1)
    for element, presence in (math.nan, "row"), (0.0, "row"), (1.0, "none"):
        assert driver.explain_row((1, element)).presence == presence
    key = json.loads(driver.explain_row((1, math.nan)).to_json())["key"]
    assert key == {"id": 1, "size": "NaN"}


def test_a_versioned_table_has_its_last_version() -> None:
    prices = testing.table("prices", key="id", schema={"id": INT, "price": INT}, versioned="1 day")
    driver = testing.Driver(prices)
    driver.pipe(prices, [{"id": 1, "price": 5}, {"id": 1, "price": 4}], timestamp=[9, 3])
    assert shown(driver, 1) == "prices: id 1: price=5 @9"
    driver.pipe(prices, {"id": 1}, timestamp=12, deleted=True)
    assert driver.explain_row(1).presence == "none"


def test_a_row_that_has_expired(orders: dt.Table) -> None:
    driver = testing.Driver(orders.expire(after="10 seconds"))
    driver.pipe(orders, order(1, 9, 40), timestamp=0)
    assert driver.explain_row(1).presence == "row"
    driver.pipe(orders, order(2, 9, 40), timestamp=20_000_000)
    assert driver.explain_row(1).reason == "orders has no row with id 1, or it has expired"


def test_records_of_a_stream_are_known_to_the_driver_that_was_fed() -> None:
    views = testing.stream("views", key="user", schema={"user": TEXT, "page": TEXT})
    counts = views.group_by("page").agg(n=dt.count())
    driver = testing.Driver(counts)
    driver.pipe(views, [{"user": user, "page": "home"} for user in ("ann", "bob")], timestamp=1)
    assert shown(driver, "home") == lines(
        """
        aggregate by page: page 'home': n=2 @1
        ├─ views: user 'ann': page='home' @1
        └─ views: user 'bob': page='home' @1
        """
    )
    assert driver.explain_row("home", members=1).reason == "1 more records are not named"
    assert driver.explain_row("help").reason == "views had no record with page 'help'"
    restored = testing.Driver.restore(counts, driver.snapshot())
    assert shown(restored, "home") == (
        "aggregate by page: page 'home': n=2 @1; the records of views are not stored, "
        "only what they come to"
    )
    assert restored.explain_row("help").reason == "views had no record with page 'help'"


def test_records_of_a_window_are_known_after_it_has_closed() -> None:
    views = testing.stream("views", key="user", schema={"user": TEXT, "home": pa.bool_()})
    homes = views.where("home").group_by("user").window(dt.windows.tumbling("10 us"))
    driver = testing.Driver(homes.agg(n=dt.count()).to_table())
    for time_us, home in ((1, True), (2, False), (9, True), (30, True), (3, True)):
        driver.pipe(views, {"user": "ann", "home": home}, timestamp=time_us)
    key = {"user": "ann", "window_start": moment(0), "window_end": moment(10)}
    explanation = driver.explain_row(key)
    assert explanation.presence == "row"
    assert [row.time for row in explanation.input_rows] == [moment(1), moment(9)]
    late = "a record arrived 20 us after its window had closed"
    assert explanation.reason == f"what they come to is not stored; {late}"
    driver.pipe(views, {"user": "bob", "home": True}, timestamp=3)
    missing = driver.explain_row({**key, "user": "bob"})
    assert (missing.presence, missing.reason) == ("none", late)
    driver.pipe(views, {"user": "bob", "home": True}, timestamp=4)
    assert driver.explain_row({**key, "user": "bob"}).reason == (
        "2 records arrived after their window had closed, the last one 20 us after"
    )


def test_dropped_records_are_in_no_group() -> None:
    views = testing.stream("views", key="id", schema={"id": INT, "page": TEXT})
    by_page = views.group_by("page")
    windowed = by_page.window(dt.windows.tumbling("10 us")).agg(n=dt.count()).to_table()
    window = {"window_start": moment(0), "window_end": moment(10)}
    for counts, key in ((by_page.agg(n=dt.count()), {}), (windowed, window)):
        driver = testing.Driver(counts)
        driver.pipe(views, {"id": 1, "page": "home"}, timestamp=1)
        # Neither of these advances stream time, so the window stays open.
        driver.pipe(views, {"id": 2, "page": "home"}, timestamp=50, deleted=True)
        driver.pipe(views, [{"id": 3}, {"id": None}], timestamp=[50, None])
        driver.pipe(views, {"id": 5, "page": "home"}, timestamp=2)
        assert driver.dropped == 3
        explanation = driver.explain_row({"page": "home", **key})
        assert (explanation.values, explanation.reason) == ({"n": 2}, "")
        assert [row.key for row in explanation.input_rows] == [{"id": 1}, {"id": 5}]


@pytest.mark.parametrize("condition", [None, "home"])
def test_a_stream_that_was_fed_nothing_had_no_record(condition: str | None) -> None:
    views = testing.stream("views", key="user", schema={"user": TEXT, "home": pa.bool_()})
    shown_views = views if condition is None else views.where(condition)
    counts = shown_views.group_by("user").window(dt.windows.tumbling("10 us")).agg(n=dt.count())
    driver = testing.Driver(counts.to_table())
    driver.advance_stream_time(30)
    key = {"user": "ann", "window_start": moment(0), "window_end": moment(10)}
    explanation = driver.explain_row(key)
    assert explanation.presence == "none"
    assert "had no record with user 'ann', window_start 0, window_end 10" in explanation.reason


def test_a_session_has_its_records_and_a_former_one_is_gone() -> None:
    views = testing.stream("views", key="user", schema={"user": TEXT})
    sessions = views.group_by("user").window(dt.windows.session("10 us", grace="1 hour"))
    driver = testing.Driver(sessions.agg(n=dt.count()).to_table())
    driver.pipe(views, [{"user": "ann"}, {"user": "ann"}, {"user": "ann"}], timestamp=[5, 40, 9])
    spans = [{"window_start": moment(5), "window_end": moment(end)} for end in (9, 5)]
    session, former = (driver.explain_row({"user": "ann", **span}) for span in spans)
    assert session.values == {"n": 2}
    assert [row.time for row in session.input_rows] == [moment(5), moment(9)]
    assert former.presence == "none"
    assert former.reason == "views has no session with user 'ann', window_start 5, window_end 5"


def test_a_window_closes_by_the_time_of_its_own_input() -> None:
    views = testing.stream("views", key="user", schema={"user": TEXT})
    names = testing.table("names", key="user", schema={"user": TEXT, "name": TEXT})
    counts = views.group_by("user").window(dt.windows.tumbling("10 us")).agg(n=dt.count())
    named = counts.join(names, select=["n", "name"]).to_table()
    driver = testing.Driver(named)
    driver.pipe(names, {"user": "ann", "name": "Ann"}, timestamp=0)
    driver.pipe(views, [{"user": "ann"}, {"user": "ann"}], timestamp=[5, 25])
    restored = testing.Driver.restore(named, driver.snapshot())
    windows = [{"window_start": moment(us), "window_end": moment(us + 10)} for us in (0, 20)]
    closed, last = (restored.explain_row({"user": "ann", **window}) for window in windows)
    assert (closed.presence, closed.reason) == (
        "unknown",
        "its window closed at 10 and may be gone",
    )
    assert last.values == {"n": 1, "name": "Ann"}
    assert [row.values for row in last.input_rows] == [{"name": "Ann"}]


@pytest.mark.parametrize(
    ("how", "options", "presences"),
    [
        ("inner", {}, ["unknown", "unknown", "row"]),
        ("left", {"unmatched": "on_close"}, ["unknown", "row", "row"]),
        ("left", {"unmatched": "eager"}, ["row", "row", "row"]),
        ("outer", {"unmatched": "retract"}, ["row", "row", "row"]),
    ],
)
def test_a_join_of_streams_has_a_row_once_a_record_has_come_out(
    how: Any, options: Any, presences: list[str]
) -> None:
    clicks = testing.stream("clicks", key="user", schema={"user": TEXT, "page": TEXT})
    buys = testing.stream("buys", key="user", schema={"user": TEXT, "amount": INT})
    within = dt.within(before="5 us", after="5 us")
    driver = testing.Driver(clicks.join(buys, within=within, how=how, **options))
    driver.pipe(clicks, {"user": "ann", "page": "home"}, timestamp=1)
    explanations = [driver.explain_row("ann")]
    driver.pipe(buys, {"user": "bob", "amount": 5}, timestamp=8)
    explanations.append(driver.explain_row("ann"))
    driver.pipe(clicks, {"user": "ann", "page": "help"}, timestamp=9)
    driver.pipe(buys, {"user": "ann", "amount": 5}, timestamp=10)
    explanations.append(driver.explain_row("ann"))
    assert [explanation.presence for explanation in explanations] == presences
    assert {(explanation.presence, explanation.reason) for explanation in explanations} <= {
        ("unknown", "of the records that are kept, none matches another or has come out alone"),
        ("row", "of the records that are kept"),
    }
    assert [row.name for row in explanations[0].inputs] == ["clicks"]


def test_a_part_of_the_topology(orders: dt.Table, payments: dt.Table, customers: dt.Table) -> None:
    paid = orders.join(payments)
    driver = testing.Driver(paid.join(customers, on="customer"))
    driver.pipe(orders, order(1, 9, 40), timestamp=1)
    driver.pipe(payments, {"id": 1, "paid": 15}, timestamp=2)
    assert driver.explain_row(1).presence == "none"
    assert driver.explain_row(1, paid).values == {"customer": 9, "amount": 40, "paid": 15}
    assert driver.explain_row(1, orders).presence == "row"


def test_its_forms() -> None:
    named = testing.table("<b>", key="id", schema={"id": INT, "at": pa.timestamp("us", "UTC")})
    driver = testing.Driver(named)
    driver.pipe(named, {"id": 1, "at": 10**15}, timestamp=10**15)
    explanation = driver.explain_row(1)
    assert explanation.to_dict() == {
        "name": "<b>",
        "step": "table",
        "key": {"id": 1},
        "presence": "row",
        "values": {"at": "2001-09-09T01:46:40+00:00"},
        "time": "2001-09-09T01:46:40+00:00",
        "reason": "",
        "is_input": True,
        "inputs": [],
        "cause": None,
    }
    assert explanation._repr_html_() == (
        "<strong>&lt;b&gt;</strong>: id 1: at=2001-09-09T01:46:40Z @2001-09-09T01:46:40Z"
    )
    assert isinstance(explanation, RowExplanation)


@pytest.mark.parametrize(
    ("key", "problem"),
    [
        ("x", "key= has 'x' for id, of type int64"),
        ((1, 2), "key= has (1, 2) for id"),
        (None, "key= is None, and no key has a null"),
        ({"no": 1}, "key= is {'no': 1}, the key of orders is id"),
    ],
)
def test_another_key_is_refused(orders: dt.Table, key: Any, problem: str) -> None:
    with pytest.raises(PlanError) as error:
        testing.Driver(orders).explain_row(key)
    assert problem in str(error.value)


def test_another_table_is_refused(orders: dt.Table, payments: dt.Table) -> None:
    with pytest.raises(PlanError, match="not a part of the topology"):
        testing.Driver(orders).explain_row(1, payments)
    with pytest.raises(PlanError, match="result= is missing"):
        testing.Driver(orders, payments).explain_row(1)
