"""Mistakes in joins by foreign key are named when the plan is made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

import dovetail as dt
from dovetail import testing
from dovetail.testing import Driver

NUMBER, TEXT = pa.int64(), pa.string()
orders = testing.table(
    "orders", key="id", schema={"id": NUMBER, "item": TEXT, "amount": NUMBER, "site": NUMBER}
)
items = testing.table("items", key="sku", schema={"sku": TEXT, "title": TEXT})
stock = testing.table(
    "stock", key=["sku", "site"], schema={"sku": TEXT, "site": NUMBER, "left": NUMBER}
)
returns = testing.table("returns", key="right_sku", schema={"right_sku": TEXT, "item": TEXT})
labels = testing.table("labels", key="id", schema={"id": NUMBER, "right_sku": TEXT, "item": TEXT})
prices = testing.table("prices", key="code", schema={"code": TEXT, "amount": NUMBER})
tagged = testing.table("tagged", key="id", schema={"id": NUMBER, "tags": pa.map_(TEXT, NUMBER)})
clicks = testing.stream("clicks", key="id", schema={"id": NUMBER, "item": TEXT})
views = testing.stream("views", key="id", schema={"id": NUMBER, "page": TEXT})
old, new = (
    testing.table(name, key="id", schema={"id": NUMBER, name: TEXT}, versioned="1 hour")
    for name in ("old", "new")
)
retracting = clicks.join(
    views, within=dt.within(before="1 min"), how="left", unmatched="retract", select=["item"]
)
histories = old.join(new, late="history")

MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "another type": (
        lambda: orders.join(items, on="amount"),
        r"orders and items: orders.amount is bigint, items.sku is string. Cast one so",
    ),
    "another order": (
        lambda: orders.join(stock, on=["site", "item"]),
        r"orders.site is bigint, stock.sku is string. Cast one so that both have the same type",
    ),
    "too few columns": (
        lambda: orders.join(stock, on="item"),
        r"on= has 1 parts, the key of stock is \(sku string, site bigint\). Give as many",
    ),
    "too many columns": (
        lambda: orders.join(items, on=["item", "site"]),
        r"on= has 2 parts, the key of items is \(sku string\). Give as many",
    ),
    "no column": (
        lambda: orders.join(items, on=[]),
        r"on= has 0 parts, the key of items is \(sku string\). Give as many",
    ),
    "another column under the key's name": (
        lambda: orders.join(items, on="item", select={"id": "left.item"}),
        r"column 'id' occurs twice. Give each its own name in select=",
    ),
    "a type that is no key": (
        lambda: tagged.join(items, on="tags"),
        r"key column 'tags' of type map<string,bigint> cannot be a key",
    ),
    "unknown column": (
        lambda: orders.join(items, on="itm"),
        r"on= names an unknown column 'itm'. Known in orders are id, item, amount, site",
    ),
    "a column of the right side": (
        lambda: orders.join(items, on="sku"),
        r"on= names an unknown column 'sku'. Known in orders are",
    ),
    "right by key": (
        lambda: orders.join(tagged, how="right"),
        r"how='right' is not a join of tables by key. Use .* swap the sides",
    ),
    "late": (
        lambda: orders.join(items, on="item", late="history"),
        r"late= is for joins by key. Leave it or on= out",
    ),
    "align": (
        lambda: orders.join(items, on="item", align="1 min", name="bought"),
        r"bought: align= is for joins by key. Leave it or on= out",
    ),
    "spread over none": (
        lambda: orders.join(items, on="item", spread=0),
        r"join: spread= is 0. Give a whole number from 1 to 2147483647 or None",
    ),
    "spread over a part": (
        lambda: orders.join(items, on="item", spread=2.5),  # type: ignore[call-overload]
        r"join: spread= is 2.5. Give a whole number from 1",
    ),
    "spread by key": (
        lambda: orders.join(tagged, spread=4, name="both"),  # type: ignore[call-overload]
        r"both: spread= is for joins by foreign key. Leave it out: each left row has a key of its",
    ),
    "spread by lookups": (
        lambda: orders.join(  # type: ignore[call-overload]
            items, on="item", spread=4, delta_join=dt.delta_join(strategy="force")
        ),
        r"broken: .*spread= keeps rows in state.*Leave it out",
    ),
    "spread of a join that keeps right rows": (
        lambda: orders.join(items, on="item", how="outer", spread=4),
        r"orders and items: spread= and how='outer' exclude each other: .* Use how='inner' or",
    ),
    "spread with a stream": (
        lambda: clicks.join(items, on="item", spread=4),  # type: ignore[call-overload]
        r"join: there is no argument spread=. spread= is for two tables that join by foreign key",
    ),
    "spread with a windowed table": (
        lambda: orders.join(  # type: ignore[call-overload]
            clicks.group_by("id").window(dt.windows.tumbling("1 min")).agg(n=dt.count()),
            spread=4,
            window_of="amount",
        ),
        r"spread= does not apply to a windowed table. Leave it out",
    ),
    "both have the column": (
        lambda: orders.join(prices, on="item"),
        r"both sides have a value column 'amount'. Choose and rename with select=",
    ),
    "unknown column selected": (
        lambda: orders.join(items, on="item", select=["titel"]),
        r"select= names an unknown column 'titel'. Known are item, amount, site, title",
    ),
    "a value named as the right key is": (
        lambda: labels.join(items, on="item", how="outer"),
        r"outer join of labels and items: column 'right_sku' occurs twice. .* with select=",
    ),
    "a selected value named as the right key is": (
        lambda: orders.join(items, on="item", how="right", select={"Right_SKU": "left.item"}),
        r"column 'Right_SKU' occurs twice. .* with select=",
    ),
    "a left key named as the right key is": (
        lambda: returns.join(items, on="item", how="right"),
        r"right join of returns and items: column 'right_sku' occurs twice",
    ),
    "a stream that withdraws rows": (
        lambda: retracting.join(items, on="item"),
        r"withdraws rows \(unmatched='retract'\), which a stream's reader cannot. Use",
    ),
    "corrections on the left": (
        lambda: histories.join(items, on="old"),
        r"inner join of old and new emits corrections of its past \(late='history'\)",
    ),
    "corrections on the left, by key": (
        lambda: histories.join(tagged),
        r"inner join of old and new emits corrections of its past \(late='history'\)",
    ),
    "corrections on the right, by key": (
        lambda: tagged.join(histories, how="left"),
        r"inner join of old and new emits corrections of its past \(late='history'\)",
    ),
    "corrections on the right": (
        lambda: orders.join(histories, on="amount"),
        r"inner join of old and new emits corrections of its past \(late='history'\)",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named(mistake: str) -> None:
    make, message = MISTAKES[mistake]
    with pytest.raises(dt.errors.PlanError, match=message):
        make()


EXPRESSIONS: dict[str, tuple[Callable[[], Any], str]] = {
    "another type": (
        lambda: orders.join(items, on=F.col("amount") + 1),
        r"an expression in on= is bigint, items.sku is string. Cast one so",
    ),
    "one of several": (
        lambda: orders.join(stock, on=["item", F.lower("item")]),
        r"an expression in on= is string, stock.site is bigint. Cast one so that both have",
    ),
    "unknown column": (
        lambda: orders.join(items, on=F.upper("itm")),
        r"an expression in on= does not resolve: .*`itm`.* of orders: id, item, amount, site",
    ),
    "a column of the right side": (
        lambda: orders.join(items, on=F.col("title")),
        r"an expression in on= does not resolve: .*`title`",
    ),
    "a column of the joined row": (
        lambda: orders.join(items, on=F.col("left.item")),
        r"an expression in on= does not resolve: .*`left`.`item`",
    ),
    "in the driver": (
        lambda: Driver(orders.join(items, on=F.upper("item"))),
        r"orders and items: on= has a Spark expression, and the driver has no session",
    ),
    "in the driver, within another join": (
        lambda: Driver(orders.join(items, on=F.upper("item")).join(tagged)),
        r"orders and items: on= has a Spark expression, and the driver has no session",
    ),
}


@pytest.mark.parametrize("mistake", EXPRESSIONS)
def test_a_mistake_in_an_expression_is_named(mistake: str, spark: Any) -> None:
    make, message = EXPRESSIONS[mistake]
    with pytest.raises(dt.errors.PlanError, match=message):
        make()


def test_a_name_that_is_taken_only_in_a_key_of_two_is_free_elsewhere() -> None:
    """Inner and left have no right key's columns."""
    joined = labels.join(items, on="item", how="left")
    assert joined.schema.names[:4] == ["id", "right_sku", "item", "title"]
    outer = labels.join(items, on="item", how="outer", select={"label": "left.right_sku"})
    assert outer.schema.names[:3] == ["id", "right_sku", "label"]


@pytest.mark.parametrize(
    "other",
    [
        orders.join(items, on="item", how="left"),
        testing.table("o", key="id", schema={"id": NUMBER, "item": TEXT}).join(items, on="item"),
        orders.join(
            testing.table("items", key="sku", schema={"sku": TEXT, "title": TEXT}, versioned="1 s"),
            on="item",
        ),
    ],
    ids=["another join", "other columns", "a history"],
)
def test_a_checkpoint_of_another_join_is_refused(other: dt.Table) -> None:
    driver = Driver(orders.join(items, on="item"))
    driver.pipe(orders, {"id": 1, "item": "a"}, timestamp=1)
    with pytest.raises(dt.errors.CheckpointError, match="topology"):
        Driver.restore(other, driver.snapshot())


def test_a_checkpoint_of_a_join_by_another_column_is_refused() -> None:
    returned = testing.table("r", key="id", schema={"id": NUMBER, "sku": TEXT, "instead": TEXT})
    driver = Driver(returned.join(items, on="sku"))
    driver.pipe(returned, {"id": 1, "sku": "a", "instead": "b"}, timestamp=1)
    with pytest.raises(dt.errors.CheckpointError, match="topology"):
        Driver.restore(returned.join(items, on="instead"), driver.snapshot())


def test_what_the_join_cannot_use_is_counted() -> None:
    """A null in a primary key; a null foreign key is none, which is no mistake."""
    driver = Driver(orders.join(items, on="item"))
    driver.pipe(orders, {"id": None, "item": "a"}, timestamp=1)
    driver.pipe(items, {"sku": None, "title": "A"}, timestamp=1)
    driver.pipe(orders, {"id": 1, "item": None}, timestamp=1)
    assert driver.dropped == 2
