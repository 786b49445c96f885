"""Queries that go on with the state of others."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from typing import Any

import pytest
from bench.parameters import slow_after
from fuzz import upgraded
from parquet_rows import rows_of
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructField, StructType
from shops import CUSTOMERS, ORDERS, TOPOLOGY, KilledError, Shop
from typer.testing import CliRunner

import dovetail as dt
from dovetail import cli
from dovetail.spark.checkpoints.checkpoint import CheckpointFile
from dovetail.spark.migration import row_files
from dovetail.spark.migration.wider_types import cast_to_wider, widens
from dovetail.spark.query import first_batch

DRAWN = int(os.environ.get("DOVETAIL_CASES", "100")) // 25
SEED = int(os.environ.get("DOVETAIL_SEED", "78"))


@pytest.mark.parametrize("number", slow_after(1, range(DRAWN)))
def test_an_upgraded_query_goes_on_as_one_that_ran_from_the_beginning(
    spark: SparkSession, number: int
) -> None:
    """``DOVETAIL_CASES`` says how many, ``DOVETAIL_SEED`` draws others."""
    difference = upgraded.difference(*upgraded.drawn(SEED, number))
    assert difference is None or difference.startswith("refused: has not what"), difference


@pytest.mark.slow
def test_columns_come_go_and_become_wider_at_every_depth(shop: Shop) -> None:
    was, is_ = "array<struct<n: int, gone: int>>", "array<struct<note: string, n: long>>"
    shop.write("orders", {"id": 4, "customer": "b", "amount": 4, "lines": [{"n": 1, "gone": 2}]})
    former = shop.orders(f"{ORDERS}, lines {was}")
    shop.run(former.join(shop.customers(), on="customer", how="left"), "old")
    before = shop.files_of("old")
    wider = ORDERS.replace("amount int", "amount long, note string")
    orders = shop.orders(f"{wider}, lines {is_}")
    customers = shop.customers(CUSTOMERS.replace("city string, ", ""))
    columns = ["amount", "note", "lines"]
    another = orders.join(customers, on="customer", how="inner", select=columns)
    assert shop.run(another, "new", initial=shop.folder / "old", emit_initial=True) == [
        (1, 1, None, None, "upsert"),
        (3, 3, None, None, "upsert"),
        (4, 4, None, [(None, 1)], "upsert"),
    ]
    lines = [{"note": "a", "n": 2**40}]
    shop.write("orders", {"id": 1, "customer": "a", "amount": 2**40, "note": "x", "lines": lines})
    shop.write("customers", {"name": "c"})
    assert shop.run(another, "new") == [
        (1, 2**40, "x", [("a", 2**40)], "upsert"),
        (2, 2, None, None, "upsert"),
        (5, 5, None, None, "upsert"),
    ]
    assert shop.files_of("old") == before


def _drawn_wider(rng: random.Random, depth: int = 3) -> tuple[str, str, Any, Any]:
    """A type, one that is wider, a value of the one, and the same in the other."""
    kind = rng.choice(["number", "struct", "array", "map"]) if depth else "number"
    if rng.random() < 0.1:
        return (*_drawn_wider(rng, depth)[:2], None, None)
    if kind == "number":
        was, is_ = rng.choice(
            [("int", "long"), ("float", "double"), ("int", "int"), ("string", "string"),
             ("decimal(4,1)", "decimal(9,3)"), ("short", "decimal(5,0)")]
        )  # fmt: skip
        number: Any = str(rng.randrange(9)) if was == "string" else rng.randrange(9)
        return was, is_, number, number
    if kind == "array":
        was, is_, value, wider = _drawn_wider(rng, depth - 1)
        return f"array<{was}>", f"array<{is_}>", [value], [wider]
    if kind == "map":
        was, is_, value, wider = _drawn_wider(rng, depth - 1)
        return f"map<string, {was}>", f"map<string, {is_}>", {"k": value}, {"k": wider}
    a, b = _drawn_wider(rng, depth - 1), _drawn_wider(rng, depth - 1)
    was, is_ = f"struct<gone: int, a: {a[0]}, b: {b[0]}>", f"struct<b: {b[1]}, new: int, a: {a[1]}>"
    return was, is_, {"gone": 1, "a": a[2], "b": b[2]}, {"b": b[3], "new": None, "a": a[3]}


def test_a_value_is_the_same_in_a_wider_type(spark: SparkSession) -> None:
    rng = random.Random(SEED)
    cases = [_drawn_wider(rng) for _ in range(40)]
    types = [[StructField("c", DataType.fromDDL(t)).dataType for t in case[:2]] for case in cases]
    columns = []
    for (was, is_), (*_, value, _) in zip(types, cases, strict=True):
        assert widens(was, is_)
        own = F.from_json(F.lit(json.dumps({"c": value})), StructType([StructField("c", was)]))["c"]
        made = cast_to_wider(own, was, is_)
        columns.append(F.to_json(F.struct(made.alias("c")), {"ignoreNullFields": "false"}))
    (row,) = spark.range(1).select(*columns).collect()
    for found, (_, is_), (*_, expected) in zip(row, types, cases, strict=True):
        assert json.loads(found)["c"] == expected, is_
    narrower = [DataType.fromDDL(t) for t in ("array<struct<n: long>>", "array<struct<n: int>>")]
    assert not widens(*narrower)
    assert not widens(*map(DataType.fromDDL, ("struct<a: int>", "struct<b: int>")))


@pytest.mark.slow
def test_more_buckets_another_table_and_what_was_made_of_both(shop: Shop) -> None:
    totals = shop.joined().group_by("city").agg(total=dt.sum("amount"))
    shop.run(totals, "old", buckets=1)
    steps = dt.checkpoints.upgrade(shop.spark, shop.folder / "old", shop.folder / "same", totals)
    assert {row["begins"] for row in steps.collect()} == {"carried over"}
    steps = dt.checkpoints.upgrade(
        shop.spark, shop.folder / "old", shop.folder / "more", totals, buckets=3
    )
    assert [tuple(row) for row in steps.collect()][:2] == [
        (1, "left join of orders and customers", "with the rows of orders"),
        (2, "left join of orders and customers", "with the rows of orders, customers"),
    ]
    # Of these the join is carried over, and its rows are read by a stage that is new.
    orders, customers = shop.orders(), shop.customers()
    joined = orders.join(customers, on="customer", how="left", select=["amount", "city"])
    inner = orders.join(customers, on="customer", select=["amount", "city"])
    again = joined.join(inner, how="left", select=["left.amount", "left.city"])
    by_city = again.group_by("city").agg(total=dt.sum("amount"), n=dt.count())
    dt.checkpoints.upgrade(shop.spark, shop.folder / "old", shop.folder / "other", by_city)
    recent = shop.joined(how="inner").expire(after="1 hour")
    shop.run(recent, "recent")
    steps = dt.checkpoints.upgrade(
        shop.spark, shop.folder / "recent", shop.folder / "shared", recent, buckets=7
    )
    assert "carried over" not in {row["begins"] for row in steps.collect()}
    shop.write("orders", {"id": 9, "customer": "b", "amount": 100})
    assert shop.run(recent, "shared", buckets=None) == [(9, 100, "Rome", "upsert")]
    assert shop.run(totals, "same", buckets=None) == [("Rome", 105, "upsert")]
    assert shop.run(totals, "more", buckets=None) == [("Rome", 105, "upsert")]
    assert shop.run(by_city, "other", buckets=None) == [("Rome", 105, 3, "upsert")]


@pytest.mark.slow
def test_histories_and_filtered_tables_go_on(shop: Shop) -> None:
    """A stream looks up what was true then; a view's rows are stored, not those that it leaves
    out.
    """
    customers = shop.customers(versioned="7 days")
    shop.write("customers", {"name": "a", "city": "Bergen"})
    paid = shop.payments().join(customers, on="customer", how="left", select=["amount", "city"])
    assert len(shop.run(paid, "old", emit="change")) == 5
    wider = shop.payments().join(
        customers.with_columns(where=F.concat("city", F.lit("!"))),
        on="customer",
        how="left",
        select=["amount", "where"],
    )
    steps = dt.checkpoints.upgrade(
        shop.spark, shop.folder / "old", shop.folder / "new", wider, buckets=5
    )
    assert [row["begins"] for row in steps.collect()] == ["with the rows of customers"]
    early = {"customer": "a", "amount": 1, "at": "2024-05-01T10:00:02.5Z"}
    shop.write("orders", {"id": 10, **early}, {"id": 11, **early, "at": "2024-05-01T10:00:04Z"})
    assert shop.run(wider, "new", buckets=None, emit="change") == [
        (10, 1, "Oslo!", "upsert"),
        (11, 1, "Bergen!", "upsert"),
    ]
    orders = shop.orders()
    large = orders.where("amount > 2")
    sums = large.group_by("customer").agg(total=dt.sum("amount"))
    shop.run(sums, "sums")
    counts = large.join(shop.customers(), on="customer", how="left", select=["amount", "city"])
    steps = dt.checkpoints.upgrade(shop.spark, shop.folder / "sums", shop.folder / "silent", counts)
    assert [row["begins"] for row in steps.collect()] == ["with the rows of orders"] * 3
    emitted = shop.run(counts, "counts", initial=shop.folder / "sums", emit_initial=True)
    # Then the customers, which the query before did not read, from their beginning.
    assert [row[0] for row in emitted] == [3, 4, 5, 3, 4]


@pytest.mark.slow
def test_what_the_checkpoint_does_not_have_is_refused(shop: Shop) -> None:
    old, new = shop.folder / "old", shop.folder / "new"
    large = shop.orders().where("amount > 2")
    shop.run(large.group_by("customer").agg(n=dt.count()), "old")
    hours = (
        shop.payments().group_by("customer").window(dt.windows.tumbling("1 hour")).agg(n=dt.count())
    )
    with pytest.raises(dt.errors.CheckpointError, match="has no rows of orders"):
        dt.checkpoints.upgrade(shop.spark, old, new, shop.orders().materialize())
    shop.run(hours.to_table(), "hours")
    with pytest.raises(
        dt.errors.CheckpointError, match=r"has not what .* keeps of the stream payments"
    ):
        dt.checkpoints.upgrade(shop.spark, shop.folder / "hours", new, hours.to_table(), buckets=4)
    shop.run(shop.joined(how="inner"), "inner")
    narrow = shop.customers(CUSTOMERS.replace("city string", "city int")).materialize()
    for topology, problem in (
        (shop.joined(how="left"), "has only orders, last row per foreign key"),
        (narrow, "has customers.city as string, not as int"),
    ):
        with pytest.raises(dt.errors.CheckpointError, match=problem):
            dt.checkpoints.upgrade(shop.spark, shop.folder / "inner", new, topology)
    texts = shop.orders(ORDERS.replace("id long", "id string"))
    aligned = texts.join(shop.customers(), on={"id": "name"}, how="left", align="1 hour")
    shop.write("orders", {"id": 9, "customer": "b", "amount": 100})
    shop.run(aligned, "aligned", emit="change")
    with pytest.raises(
        dt.errors.CheckpointError, match="has rows of orders that wait for another input"
    ):
        dt.checkpoints.upgrade(shop.spark, shop.folder / "aligned", new, aligned, buckets=5)
    with pytest.raises(dt.errors.CheckpointError, match="no_such has no micro-batch"):
        dt.checkpoints.upgrade(shop.spark, shop.folder / "no_such", new, shop.joined())
    with pytest.raises(dt.errors.CheckpointError, match="old has begun"):
        dt.checkpoints.upgrade(shop.spark, shop.folder / "inner", old, shop.joined(how="inner"))
    with pytest.raises(dt.errors.PlanError, match="emit_initial= is given without initial="):
        shop.run(shop.joined(), "new", emit_initial=True)
    assert not new.exists()


@pytest.mark.slow
def test_positions_go_on_in_a_stage_that_stores_nothing(shop: Shop) -> None:
    def run(checkpoint: str) -> list[int]:
        other = dt.Stream.from_changelog(
            shop.read("orders", ORDERS), key="id", timestamp="at", name="others"
        )
        emitted: list[int] = []
        shop.payments().union(other).write_stream(
            dt.to_foreach_batch(
                lambda changes, _: emitted.extend(row["_position"] for row in changes.collect())
            ),
            checkpoint=shop.folder / checkpoint,
            buckets=1,
            trigger={"availableNow": True},
            **({} if checkpoint == "old" else {"initial": shop.folder / "old"}),
        ).awaitTermination()
        return emitted

    before = run("old")
    shop.write("orders", {"id": 9, "customer": "b", "amount": 100})
    after = run("new")
    assert len(after) == 2
    assert min(after) > max(before)


@pytest.mark.slow
@pytest.mark.parametrize(
    "step", slow_after(1, ["clear", "read_sources", "write_files", "_rewrite_offsets"])
)
def test_a_call_that_is_killed_is_repeated(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    shop.run(shop.joined(), "old")
    outer = shop.joined(how="outer")
    if step == "clear":
        owner, name = CheckpointFile, "write"
        calls = iter([False, True])
    else:
        owner, name = (first_batch if step == "_rewrite_offsets" else row_files), step  # type: ignore[assignment]
        calls = iter([True])
    real: Callable[..., Any] = getattr(owner, name)

    def killed(*arguments: Any, **named: Any) -> Any:
        if next(calls, False):
            raise KilledError
        return real(*arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, killed)
        with pytest.raises(KilledError):
            shop.run(outer, "new", initial=shop.folder / "old", emit_initial=True)
    emitted = shop.run(outer, "new", initial=shop.folder / "old", emit_initial=True)
    if step in ("write_files", "read_sources"):
        assert [row[0] for row in emitted] == [1, 2, 3, 4, 5]
    shop.write("orders", {"id": 9, "customer": "b", "amount": 100})
    assert shop.run(outer, "new") == [(9, None, 100, "Rome", "upsert")]
    assert not (shop.folder / "new/initial").exists()


@pytest.mark.slow
def test_a_sink_that_fails_at_first_gets_the_same_again(shop: Shop) -> None:
    shop.run(shop.joined(), "old")

    def refuse(changes: DataFrame, number: int) -> None:
        raise ValueError("the target is not there")

    options = {"initial": shop.folder / "old", "emit_initial": True}
    with pytest.raises(Exception, match="the target is not there"):
        shop.joined(how="outer").write_stream(
            dt.to_foreach_batch(refuse),
            checkpoint=shop.folder / "new",
            trigger={"availableNow": True},
            **options,
        ).awaitTermination()
    # What it begins with is at hand: the other checkpoint may go on.
    shop.write("orders", {"id": 9, "customer": "b", "amount": 100})
    shop.run(shop.joined(), "old")
    emitted = shop.run(shop.joined(how="outer"), "new", buckets=None)
    assert [row[0] for row in emitted] == [1, 2, 3, 4, 5, 9]


@pytest.mark.long
def test_several_results_and_one_more(shop: Shop) -> None:
    def start(checkpoint: str, *, more: bool, **options: Any) -> dict[str, list[Any]]:
        orders = shop.orders()
        joined = orders.join(shop.customers(), on="customer", how="left", select=["amount", "city"])
        emitted: dict[str, list[Any]] = {}

        def kept(name: str) -> Any:
            def collect(changes: DataFrame, number: int) -> None:
                rows = changes.drop("_timestamp", "_position").collect()
                emitted.setdefault(name, []).extend(sorted(map(tuple, rows), key=str))

            return dt.to_foreach_batch(collect)

        results = {joined: kept("joined"), orders.materialize(): kept("orders")}
        if more:
            results[joined.group_by("city").agg(n=dt.count())] = kept("cities")
        dt.run(
            results,  # type: ignore[arg-type]
            checkpoint=shop.folder / checkpoint,
            trigger={"availableNow": True},
            emit="batch",
            buckets=1,
            **options,
        ).awaitTermination()
        return emitted

    first = start("old", more=False)
    found = start("new", more=True, initial=shop.folder / "old", emit_initial=True)
    assert found == first | {"cities": [("Oslo", 1, "upsert"), ("Rome", 2, "upsert")]}
    shop.write("customers", {"name": "c", "city": "Rome"})
    assert start("new", more=True) == {
        "joined": [(2, 2, "Rome", "upsert"), (5, 5, "Rome", "upsert")],
        "orders": [],
        "cities": [("Rome", 4, "upsert")],
    }


def test_the_command_line(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.run(shop.orders().materialize(), "old")
    (shop.folder / "shopping.py").write_text(TOPOLOGY)
    monkeypatch.chdir(shop.folder)
    folders = [str(shop.folder / name) for name in ("old", "new")]
    arguments = ["upgrade", *folders, "shopping:totals", "--buckets", "3"]
    made = CliRunner().invoke(cli.app, arguments, catch_exceptions=False)
    assert made.exit_code == 0, made.output
    assert "with the rows of orders" in made.output
    found = dt.checkpoints.read_state(
        shop.spark, shop.folder / "new", "aggregate of orders by customer"
    )
    assert sorted((row["customer"], row["total"]) for row in found.collect()) == [
        ("a", 3),
        ("b", 5),
        ("c", 7),
    ]


@pytest.mark.parametrize("several", [False, True])
def test_the_files_of_the_former_query_are_not_overwritten(shop: Shop, several: bool) -> None:
    """Their numbers are taken, so micro-batches of the upgraded query would be lost."""
    for name in ("shared", "own"):
        (shop.folder / name).mkdir()

    def run(checkpoint: str, folder: str) -> None:
        sinks = [dt.to_parquet(shop.folder / folder)]
        if several:
            sinks.append(dt.to_memory(f"changes_{checkpoint}"))
        dt.run(
            {shop.orders(): sinks},
            checkpoint=shop.folder / checkpoint,
            buckets=2,
            trigger={"availableNow": True},
        ).awaitTermination()

    run("old", "shared")
    shop.write("orders", {"id": 9, "customer": "c", "amount": 9})
    run("old", "shared")
    old, new = (shop.folder / name for name in ("old", "new"))
    dt.checkpoints.upgrade(shop.spark, old, new, shop.orders())
    shop.write("orders", {"id": 10, "customer": "c", "amount": 10})
    with pytest.raises(dt.errors.TargetError, match="micro-batches of this one would be lost"):
        run("new", "shared")
    run("new", "own")
    rows = rows_of(shop.folder / "own")
    assert [row["id"] for row in rows if row["_change"] == "upsert"] == [10]
