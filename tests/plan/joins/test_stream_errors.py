"""Mistakes in joins of streams and of versioned tables are named when the plan is made."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

import dovetail as dt
from dovetail import testing
from dovetail.testing import Driver

SCHEMA = {"id": pa.int64(), "user": pa.string(), "tags": pa.map_(pa.string(), pa.int64())}
clicks = testing.stream("clicks", key="id", schema=SCHEMA)
views = testing.stream("views", key="id", schema={"id": pa.int64(), "page": pa.string()})
users = testing.table("users", key="user", schema={"user": pa.string(), "name": pa.string()})
prices = testing.table(
    "prices", key="id", schema={"id": pa.int64(), "price": pa.int64()}, versioned="1 hour"
)
stocks = testing.table("stocks", key="id", schema={"id": pa.int64(), "stock": pa.int64()})
WITHIN = dt.within(before="5 min", after="1 min")

MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "outer with a table": (
        lambda: clicks.join(prices, how="outer"),
        r"outer join of clicks and prices: how='outer' is not a join of a stream with a table",
    ),
    "right": (
        lambda: clicks.join(views, how="right", within=WITHIN),  # type: ignore[arg-type]
        r"how='right' is not a join of streams. .*swap the sides",
    ),
    "no window": (
        lambda: clicks.join(views),
        r"a join of two streams needs a window. Give one, for instance within=dt.within",
    ),
    "window with a table": (
        lambda: clicks.join(prices, within=WITHIN),
        r"^join: within= is for joins of two streams. Leave it out",
    ),
    "on between streams": (
        lambda: clicks.join(views, within=WITHIN, on={"user": "id"}),
        r"clicks.user is string, views.id is bigint. Cast one so that both have the same type",
    ),
    "unknown column": (
        lambda: clicks.join(users, on="usr"),
        r"on= names an unknown column 'usr'. Known in clicks are id, user, tags",
    ),
    "column of another type": (
        lambda: clicks.join(prices, on="user"),
        r"clicks.user is string, prices.id is bigint. Cast one so that both have the same type",
    ),
    "column of a type without equality": (
        lambda: clicks.join(users, on="tags"),
        r"key column 'tags' of type map<string,bigint> cannot be a key",
    ),
    "differing keys": (
        lambda: clicks.join(users),
        r"without on= the key of clicks is \(id bigint\), of users \(user string\). Name in on=",
    ),
    "grace without a history": (
        lambda: clicks.join(stocks, grace="1 min"),
        r"grace= lets records wait, and stocks forgets .* versioned=",
    ),
    "grace beyond the history": (
        lambda: clicks.join(prices, grace="2 hours"),
        r"grace='2 hours' is longer than the history of prices",
    ),
    "not a span": (
        lambda: clicks.join(prices, grace="soon"),
        r"grace='soon' is not a span of time. Write it as",
    ),
    "negative span": (
        lambda: clicks.join(prices, align=timedelta(seconds=-1)),
        r"align=.* is negative. Use zero or more",
    ),
    "empty window": (
        lambda: dt.within(before="-5 min", after="1 min"),
        r"within: the window from before='-5 min' to after='1 min' is empty",
    ),
    "history of a table without one": (
        lambda: prices.join(stocks, late="history"),
        r"late='history' needs the history of stocks, which it does not keep. Read both",
    ),
    "history with itself": (
        lambda: prices.join(prices, late="history", select=["left.price"]),
        r"late='history' joins a table with itself",
    ),
    "both have the column": (
        lambda: clicks.join(clicks, within=WITHIN),
        r"both sides have a value column 'user'. Choose and rename with select=",
    ),
    "rows that are withdrawn, joined again": (
        lambda: clicks.join(views, within=WITHIN, how="left", unmatched="retract").join(prices),
        r"left join of clicks and views withdraws rows .* Use unmatched='on_close' or 'eager'",
    ),
    "a stream alone": (
        lambda: Driver(clicks),
        r"stream clicks: nothing is joined with it",
    ),
    "last change of a stream": (
        lambda: Driver(clicks.join(prices), emit="batch"),
        r"emit='batch' keeps a key's last change, which only a table's",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named(mistake: str) -> None:
    make, message = MISTAKES[mistake]
    with pytest.raises(dt.errors.PlanError, match=message):
        make()


def test_a_checkpoint_of_another_window_is_refused() -> None:
    one = clicks.join(views, within=WITHIN)
    other = clicks.join(views, within=dt.within(before="5 min", after="2 min"))
    driver = Driver(one)
    driver.pipe(clicks, {"id": 1}, timestamp=1)
    with pytest.raises(dt.errors.CheckpointError, match="topology"):
        Driver.restore(other, driver.snapshot())


def test_what_no_join_can_use_is_counted() -> None:
    driver = Driver(clicks.join(prices, how="inner"))
    driver.pipe(clicks, {"id": None, "user": "a"}, timestamp=1)
    driver.pipe(clicks, {"id": 1}, timestamp=1, deleted=True)
    driver.pipe(prices, {"id": None, "price": 1}, timestamp=1)
    assert driver.dropped == 3
    left = Driver(clicks.join(prices, how="left"))
    assert len(left.pipe(clicks, {"id": None, "user": "a"}, timestamp=1)) == 1
    assert left.dropped == 0


def test_a_stream_finds_a_table_by_any_of_its_columns() -> None:
    driver = Driver(clicks.join(users, how="left", on="user", select=["user", "name"]))
    driver.pipe(users, {"user": "ann", "name": "Ann"}, timestamp=1)
    rows = [{"id": 1, "user": "ann"}, {"id": None, "user": "bob"}, {"id": 3, "user": None}]
    found = driver.pipe(clicks, rows, timestamp=2)
    assert [(c.key, c.values) for c in found] == [
        ({"id": 1}, {"user": "ann", "name": "Ann"}),
        ({"id": None}, {"user": "bob", "name": None}),
        ({"id": 3}, {"user": None, "name": None}),
    ]


def test_a_chain_of_tables_is_one_stage() -> None:
    driver = Driver(clicks.join(prices, select=["user", "price"]).join(stocks, how="left"))
    driver.pipe(prices, {"id": 1, "price": 5}, timestamp=1)
    (found,) = driver.pipe(clicks, {"id": 1, "user": "ann"}, timestamp=2)
    assert found.values == {"user": "ann", "price": 5, "stock": None}
    driver.pipe(stocks, {"id": 1, "stock": 7}, timestamp=9)
    (found,) = driver.pipe(clicks, {"id": 1, "user": "bob"}, timestamp=3)
    assert found.values == {"user": "bob", "price": 5, "stock": 7}
    assert found.timestamp_us == 3


def test_a_stream_looks_into_a_join_of_tables_as_of_its_time() -> None:
    costs = testing.table(
        "costs", key="id", schema={"id": pa.int64(), "cost": pa.int64()}, versioned="1 hour"
    )
    driver = Driver(clicks.join(prices.join(costs, how="left"), select=["price", "cost"]))
    for number, (price, cost) in enumerate([(5, 3), (6, 4)]):
        driver.pipe(prices, {"id": 1, "price": price}, timestamp=10 * number)
        driver.pipe(costs, {"id": 1, "cost": cost}, timestamp=10 * number + 5)
    asked = [driver.pipe(clicks, {"id": 1}, timestamp=t) for t in (0, 5, 12, 15)]
    assert [change.values for (change,) in asked] == [
        {"price": 5, "cost": None},
        {"price": 5, "cost": 3},
        {"price": 6, "cost": 3},
        {"price": 6, "cost": 4},
    ]
