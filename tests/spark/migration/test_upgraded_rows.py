"""The rows with which the stages of an upgraded query begin, where the former one has not stored
all of them, or not as they came.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from shops import CUSTOMERS, Shop

import dovetail as dt

GIFTS = "id long, customer string, giver string, amount int, at timestamp"
Rows = list[tuple[Any, ...]]


@pytest.fixture
def gifts(shop: Shop) -> Shop:
    """Orders that name a customer, a giver or both."""
    for file in (shop.folder / "orders").iterdir():
        file.unlink()
    shop.write(
        "orders",
        {"id": 1, "customer": "a", "amount": 1},
        {"id": 2, "giver": "b", "amount": 2},
        {"id": 3, "customer": "b", "giver": "a", "amount": 3},
    )
    return shop


def ran(shop: Shop, results: Sequence[Any], checkpoint: str, **options: Any) -> list[Rows]:
    """The changes of each result, without their times and positions, in the order of keys."""
    emitted: list[Rows] = [[] for _ in results]

    def sink(rows: Rows) -> Any:
        def collect(changes: DataFrame, _: int) -> None:
            taken = changes.drop("_timestamp", "_position").collect()
            rows.extend(sorted(map(tuple, taken), key=str))

        return dt.to_foreach_batch(collect)

    dt.run(
        {result: sink(rows) for result, rows in zip(results, emitted, strict=True)},
        checkpoint=shop.folder / checkpoint,
        trigger={"availableNow": True},
        **{"buckets": 2, "emit": "batch", **options},
    ).awaitTermination()
    return emitted


def refused(shop: Shop, old: str, results: Sequence[Any], problem: str, **options: Any) -> None:
    with pytest.raises(dt.errors.CheckpointError, match=problem):
        dt.checkpoints.upgrade(
            shop.spark, shop.folder / old, shop.folder / "no", results, dry_run=True, **options
        )


@pytest.mark.long
def test_an_inner_join_begins_with_the_rows_that_have_its_own_foreign_key(gifts: Shop) -> None:
    """Such a join stores no others."""

    def joins(*keys: str) -> list[Any]:
        orders, customers = gifts.orders(GIFTS), gifts.customers()
        return [orders.join(customers, on=key, select=["amount", "city"]) for key in keys]

    ran(gifts, joins("customer"), "one")
    for keys in (("giver",), ("customer", "giver")):
        refused(gifts, "one", joins(*keys), "has only orders, last row per foreign key and key")
    ran(gifts, joins("customer", "giver"), "old")
    begun = {"initial": gifts.folder / "old", "emit_initial": True, "buckets": 3}
    assert ran(gifts, joins("customer", "giver"), "new", **begun) == [
        [(1, 1, "Oslo", "upsert"), (3, 3, "Rome", "upsert")],
        [(2, 2, "Rome", "upsert"), (3, 3, "Oslo", "upsert")],
    ]


@pytest.mark.long
def test_former_values_stay_or_the_upgrade_is_refused(gifts: Shop) -> None:
    gifts.write("orders", {"id": 1, "amount": 7})

    def filled() -> Any:
        return gifts.orders(GIFTS).ignore_null_updates()

    def both() -> list[Any]:
        orders = gifts.orders(GIFTS)
        return [orders.materialize(), orders.ignore_null_updates()]

    def of_join() -> Any:
        joined = gifts.orders(GIFTS).join(gifts.customers(), on="customer", how="left")
        return joined.ignore_null_updates()

    ran(gifts, [filled()], "filled")
    ran(gifts, [both()[0]], "plain")
    ran(gifts, both(), "both")
    ran(gifts, [of_join()], "of_join")
    former = "has not the former values that orders has kept"
    refused(gifts, "plain", [filled()], former)
    refused(gifts, "filled", [both()[0]], "last row per key with the former values of nulls of")
    refused(gifts, "both", both(), former, buckets=3)
    refused(gifts, "of_join", [of_join()], "has not the former values that", buckets=3)
    other = gifts.orders(GIFTS).ignore_null_updates(["amount"])
    refused(gifts, "filled", [other], "with the former values of nulls of amount, customer, giver")
    begun = {"initial": gifts.folder / "filled", "emit_initial": True, "buckets": 3}
    ((first, *_),) = ran(gifts, [filled()], "new", **begun)
    assert first == (1, "a", None, 7, "upsert")


def test_records_that_are_read_as_a_table_are_not_made_again(gifts: Shop) -> None:
    def located(how: str) -> Any:
        payments = gifts.payments().deduplicate(within="1 day").to_table()
        return payments.join(gifts.customers(), on="customer", how=how, select=["amount", "city"])

    def named() -> Any:
        return gifts.payments().join(gifts.customers(), on="customer").to_table()

    ran(gifts, [located("inner")], "old")
    refused(gifts, "old", [located("left")], "has not the records of which payments is made")
    ran(gifts, [named()], "named")
    refused(gifts, "named", [named()], "has not the records of which .* is made", buckets=3)
    # A stream that the former query has not read brings all of its records.
    frames = [gifts.read("orders", GIFTS), gifts.read("customers", CUSTOMERS)]
    others = dt.Stream.from_changelog(frames[0], key="id", timestamp="at", name="others")
    places = dt.Table.from_changelog(frames[1], key="name", timestamp="at", name="places")
    more = others.join(places, on="customer").to_table()
    cities = others.join(gifts.customers(), on="customer", select=["city"])
    windows = cities.group_by("city").window(dt.windows.tumbling("1 hour"))
    hourly = windows.agg(n=dt.count()).to_table()
    old, new = gifts.folder / "named", gifts.folder / "more"
    dt.checkpoints.upgrade(gifts.spark, old, new, [more, cities.to_table(), hourly], dry_run=True)


def test_a_view_begins_with_all_columns_that_it_reads(gifts: Shop) -> None:
    """A stage below it may have stored some of them."""

    def results(*, more: bool) -> list[Any]:
        orders = gifts.orders(GIFTS)
        large = orders.where("amount > 1")
        sums = large.group_by("customer").agg(total=dt.sum("amount"))
        doubled = large.with_columns(double=F.col("amount") * 2).materialize()
        return [orders.materialize(), sums, *([doubled] if more else [])]

    ran(gifts, results(more=False), "old")
    begun = {"initial": gifts.folder / "old", "emit_initial": True, "buckets": 3}
    assert ran(gifts, results(more=True), "new", **begun)[1:] == [
        [("b", 3, "upsert")],
        [(2, None, "b", 2, 4, "upsert"), (3, "b", "a", 3, 6, "upsert")],
    ]


def test_inputs_of_one_name_and_key_are_not_taken_for_each_other(gifts: Shop) -> None:
    gifts.write("paid", {"id": 1, "paid": 5})
    unnamed: Callable[..., Any] = dt.Table.from_changelog
    paid = gifts.read("paid", "id long, paid long, at timestamp")

    def both() -> Any:
        orders = unnamed(gifts.read("orders", GIFTS), key="id", timestamp="at")
        return orders.join(unnamed(paid, key="id", timestamp="at"))

    problem = r"has {} inputs called table\[id\] with the key id, and the query has {}"
    ran(gifts, [unnamed(gifts.read("orders", GIFTS), key="id", timestamp="at")], "one")
    refused(gifts, "one", [both()], problem.format(1, 2))
    ran(gifts, [both()], "two")
    refused(gifts, "two", [both()], problem.format(2, 2), buckets=3)


def test_a_union_whose_rows_are_not_stored_is_refused(gifts: Shop) -> None:
    def union() -> Any:
        amounts = gifts.orders(GIFTS).select("amount")
        return amounts.union(gifts.orders(GIFTS, name="others").select("amount"), source="of")

    def with_sums() -> list[Any]:
        both = union()
        return [both, both.group_by("of").agg(total=dt.sum("amount"))]

    problem = r"union of orders, others is a union, which stores no rows unless .* emit='batch'"
    ran(gifts, [union()], "old", emit="change")
    refused(gifts, "old", with_sums(), f"{problem}.* Start with a new checkpoint")
    begin = {"initial": gifts.folder / "old", "emit_initial": True}
    with pytest.raises(dt.errors.CheckpointError, match=f"{problem}.* Leave out emit_initial="):
        ran(gifts, [union()], "no", emit="change", **begin)
    with pytest.raises(dt.errors.ConfigurationError, match=problem):
        dt.checkpoints.read_state(gifts.spark, gifts.folder / "old", topology=union())


@pytest.mark.long
@pytest.mark.parametrize("buckets", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_what_is_carried_over_takes_no_rows_again(gifts: Shop, buckets: int) -> None:
    """Another stage reads its input from now on, or its input is computed in other stages."""
    customers = gifts.customers()
    columns = ["giver", "amount", "city"]
    joined = gifts.orders(GIFTS).join(customers, on="customer", how="left", select=columns)
    star = joined.join(customers, on="giver", how="left", select=["amount", "left.city"])
    counts = [
        table.to_stream().group_by("city").agg(changes=dt.count()) for table in (joined, star)
    ]
    run = partial(ran, gifts, buckets=buckets)
    assert run(counts[:1], "old") == [[("Oslo", 1, "upsert"), ("Rome", 1, "upsert")]]
    run(counts[1:], "star")
    totals = joined.group_by("city").agg(total=dt.sum("amount"))
    more, apart = [totals, counts[0]], [joined, counts[1]]
    assert run(more, "more", initial=gifts.folder / "old", emit_initial=True) == [
        [("Oslo", 1, "upsert"), ("Rome", 3, "upsert")],
        [("Oslo", 1, "upsert"), ("Rome", 1, "upsert")],
    ]
    run(apart, "apart", initial=gifts.folder / "star")
    gifts.write("orders", {"id": 4, "customer": "a", "amount": 4})
    assert run(more, "more") == [[("Oslo", 5, "upsert")], [("Oslo", 2, "upsert")]]
    alone, changes = run(apart, "apart")
    assert alone == [(4, None, 4, "Oslo", "upsert")]
    assert changes == run(counts[1:], "star")[0] == [("Oslo", 2, "upsert")]
