"""The law of the delta join on random histories: when the input rests, the result table is the join
of both tables, whatever came when, wherever tasks ran, however far the stores were ahead.
"""

from __future__ import annotations

import os
import random

import pyarrow as pa
import pytest
from bench.delta_worlds import (
    HOWS,
    SHAPES,
    TYPES,
    MemoryLookup,
    TableOf,
    Tasks,
    World,
    expected,
    joined,
    left,
    plan_of,
    play,
    right,
    shown,
)
from bench.parameters import slow_after

import dovetail as dt
from dovetail import testing
from dovetail.operators.joins import delta_join

FORCED = dt.delta_join(strategy="force")

HISTORIES = -(-int(os.environ.get("DOVETAIL_CASES", "200")) // 100)
CASES = [(name, how) for name, shape in SHAPES.items() for how in shape.hows]


@pytest.mark.parametrize("cache", slow_after(2, [10_000, 4, 0]), ids=lambda size: f"cache {size}")
@pytest.mark.parametrize(("name", "how"), CASES, ids=lambda case: case)
def test_at_rest_the_result_is_the_join(name: str, how: str, cache: int) -> None:
    shape = SHAPES[name]
    for seed in range(HISTORIES):
        rng = random.Random(f"{name} {how} {cache} {seed}")
        world = World(shape.left(), shape.right())
        table = world.table("left").join(
            world.table("right"),
            on=dict(shape.on),
            how=how,  # type: ignore[arg-type]
            delta_join=dt.delta_join(strategy="force", left_cache=cache, right_cache=cache),
        )
        assert plan_of(table).form == shape.form
        tasks = Tasks(table, rng)
        play(world, tasks, rng)
        assert tasks.table == expected(world, shape, how), seed
        rest(world, tasks)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["inner", "left"])
def test_rows_may_move_between_the_lookups_of_a_batch(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_join, "_KEYS_A_QUERY", 1)
    shape = SHAPES["a foreign key that changes"]
    for seed in range(25 * HISTORIES):
        rng = random.Random(f"{how} {seed}")
        world = World(shape.left(), shape.right())
        table = world.table("left").join(
            world.table("right"), on=dict(shape.on), how=how, delta_join=FORCED
        )  # type: ignore[arg-type]
        tasks = Tasks(table, rng, tasks=1)
        play(world, tasks, rng, writes=8)
        assert tasks.table == expected(world, shape, how), seed


def test_a_row_that_two_lookups_find_has_its_last_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta_join, "_KEYS_A_QUERY", 1)
    world = World(left(["i"], "all")(), right(["y"], "all")())
    table = world.table("left").join(world.table("right"), on={"x": "y"}, delta_join=FORCED)
    row = {"i": 1, "x": 0, "a": "a"}
    world.write("left", row)
    for y in (1, 2):
        world.write("right", {"y": y, "j": y, "b": f"b{y}"})
    published = world.publish("right")
    found = []
    for order in ((1, 2), (2, 1)):
        moves = iter(order)
        world.asked = lambda _, moves=moves: row.update(x=next(moves))  # type: ignore[misc]
        changes = Tasks(table, random.Random(1), tasks=1).run({"right": published})
        found += [(change["b"], order[1]) for change in changes]
    # Which key is asked first is not said, so one of the orders lets both lookups find the row.
    assert found in ([("b1", 1)], [("b2", 2)])


def rest(world: World, tasks: Tasks) -> None:
    """An empty batch changes nothing."""
    assert tasks.run({}) == []


def test_the_cases_cover_every_form_and_kind() -> None:
    covered = {(SHAPES[name].form, how) for name, how in CASES}
    assert covered == {(form, how) for form in ("pair", "left", "key") for how in HOWS}


def test_a_delta_join_reads_nothing_of_the_tables_but_by_key() -> None:
    world = World(SHAPES["by key"].left(), SHAPES["by key"].right())
    table = world.table("left").join(
        world.table("right"), on={"x": "y"}, how="outer", delta_join=FORCED
    )
    tasks = Tasks(table, random.Random(1), amnesia=1.0)
    for number in range(50):
        world.write("right", {"j": 1, "y": number, "b": "b"})
    tasks.run({"right": world.publish("right")})
    world.looked_up = 0
    world.write("left", {"i": 1, "x": 7, "a": "a"})
    (change,) = tasks.run({"left": world.publish("left")})
    assert world.looked_up == 1
    assert (change["x"], change["a"], change["b"]) == (7, "a", "b")


def three() -> World:
    return World(
        TableOf("orders", {"o": "long", "c": "long", "n": "string"}, ["o"], "all", [["c"]]),
        TableOf("customers", {"c": "long", "city": "string"}, ["c"], "all", [["city"]]),
        TableOf("cities", {"city": "string", "land": "string"}, ["city"], "all"),
    )


@pytest.mark.parametrize("inner", ["inner", "left"])
@pytest.mark.parametrize("outer", ["inner", "left"])
def test_three_tables_by_foreign_keys(inner: str, outer: str) -> None:
    for seed in range(2 * HISTORIES):
        rng = random.Random(f"{inner} {outer} {seed}")
        world = three()
        placed = world.table("orders").join(
            world.table("customers"),
            on="c",
            how=inner,  # type: ignore[arg-type]
            delta_join=FORCED,
        )
        table = placed.join(
            world.table("cities"),
            on="city",
            how=outer,  # type: ignore[arg-type]
            delta_join=FORCED,
        )
        tasks = Tasks(table, rng)
        play(world, tasks, rng)
        rows = {name: list(t.rows.values()) for name, t in world.tables.items()}
        both = joined(rows["orders"], rows["customers"], {"c": "c"}, inner)
        both = [{"city": None} | row for row in both]
        all_ = joined(both, rows["cities"], {"city": "city"}, outer)
        names = ("o", "c", "n", "city", "land")
        assert tasks.table == sorted(({n: r.get(n) for n in names} for r in all_), key=shown), seed


@pytest.mark.parametrize("how", HOWS)
def test_three_tables_whose_pairs_stay(how: str) -> None:
    for seed in range(2 * HISTORIES):
        rng = random.Random(f"{how} {seed}")
        world = World(
            TableOf("a", {"i": "long", "x": "long", "p": "long"}, ["i"], "insert", [["x"], ["p"]]),
            TableOf("b", {"j": "long", "x": "long", "q": "long"}, ["j"], "insert", [["x"], ["q"]]),
            TableOf("c", {"k": "long", "q": "long", "z": "string"}, ["k"], "insert", [["q"]]),
        )
        pairs = world.table("a").join(world.table("b"), on={"x": "x"}, delta_join=FORCED)
        table = pairs.join(world.table("c"), on={"q": "q"}, how=how, delta_join=FORCED)  # type: ignore[arg-type]
        tasks = Tasks(table, rng)
        play(world, tasks, rng)
        rows = {name: list(t.rows.values()) for name, t in world.tables.items()}
        named = [r | {"right_j": r["j"]} for r in joined(rows["a"], rows["b"], {"x": "x"}, "inner")]
        all_ = [
            row | {"right_k": row.get("k")} for row in joined(named, rows["c"], {"q": "q"}, how)
        ]
        names = ("i", "right_j", "right_k", "x", "p", "q", "z")
        for row in all_:
            if row.get("i") is None:
                row["q"] = None  # the join key is the left side's
        assert tasks.table == sorted(({n: r.get(n) for n in names} for r in all_), key=shown), seed


def test_the_limit_to_one_deleting_side_is_needed() -> None:
    """Without it, of a pair whose rows are both gone neither tombstone finds the other."""
    world = World(left(["x", "i"], "all")(), right(["y", "j"], "upsert")())
    table = world.table("left").join(world.table("right"), on={"x": "y"}, delta_join=FORCED)
    tasks = Tasks(table, random.Random(1), tasks=1, amnesia=1.0)
    object.__setattr__(tasks.law.sides[1], "deletes", True)
    for name, key in (("left", ("x", "i")), ("right", ("y", "j"))):
        world.write(name, dict.fromkeys(key, 1) | {"a": "a", "b": "b"})
    tasks.run({name: world.publish(name) for name in world.tables})
    world.write("left", {"x": 1, "i": 1}, deleted=True)
    world.write("right", {"y": 1, "j": 1}, deleted=True)
    tasks.run({"left": world.publish("left")})
    tasks.run({"right": world.publish("right")})
    assert len(tasks.table) == 1
    assert not world.tables["left"].rows


def test_two_rows_under_one_unique_index_fail_the_batch() -> None:
    world = World(left(["x"], "upsert")(), right(["j"], "insert")())
    schema = {"j": pa.int64(), "y": pa.int64(), "b": pa.string()}
    unique = MemoryLookup(world, "right", ("j",), (dt.lookups.index("y", unique=True),))
    many = testing.table("right", key="j", schema=schema).with_lookup(unique, changes="insert")
    tasks = Tasks(
        world.table("left").join(many, on={"x": "y"}, delta_join=FORCED), random.Random(1)
    )
    world.write("right", {"j": 1, "y": 1, "b": "a"})
    world.write("left", {"x": 1, "i": 1, "a": "a"})
    assert len(tasks.run({"left": world.publish("left")})) == 1
    world.write("right", {"j": 2, "y": 2, "b": "a"})
    world.write("right", {"j": 3, "y": 2, "b": "b"})
    world.write("left", {"x": 2, "i": 1, "a": "a"})
    with pytest.raises(
        dt.errors.DataError, match="right: a lookup found two rows that are one by a uni"
    ):
        tasks.run({"left": world.publish("left")})


def test_a_negative_zero_of_a_store_is_the_zero_of_the_changelog() -> None:
    world = World(
        TableOf("left", {"i": "long", "x": "double"}, ["i", "x"], "upsert"),
        TableOf("right", {"j": "double", "y": "double", "b": "string"}, ["j", "y"], "upsert"),
    )
    indexes = {"left": (dt.lookups.index("x"),), "right": (dt.lookups.index("y"),)}
    sides = [
        testing.table(
            name, key=list(t.key), schema={c: TYPES[k] for c, k in t.columns.items()}
        ).with_lookup(MemoryLookup(world, name, tuple(t.key), indexes[name]))
        for name, t in world.tables.items()
    ]
    tasks = Tasks(
        sides[0].join(sides[1], on={"x": "y"}, delta_join=FORCED), random.Random(1), amnesia=0.0
    )
    world.write("right", {"j": -0.0, "y": -0.0, "b": "a"})
    world.publish("right")
    for number in (1, 2):
        world.write("left", {"i": number, "x": 0.0})
        tasks.run({"left": world.publish("left")})
        world.write("right", {"j": -0.0, "y": 0.0, "b": f"b{number}"})
        tasks.run({"right": world.publish("right")})
    assert [(row["i"], row["b"]) for row in tasks.table] == [(1, "b2"), (2, "b2")]


@pytest.mark.parametrize(("size", "most"), [(10_000, 0), (4, 4), (0, 12)])
def test_what_the_cache_holds_is_not_looked_up(size: int, most: int) -> None:
    world = World(left(["x", "i"], "all")(), right(["y"], "all")())
    table = world.table("left").join(
        world.table("right"),
        on={"x": "y"},
        delta_join=dt.delta_join(strategy="force", left_cache=size, right_cache=size),
    )
    tasks = Tasks(table, random.Random(1), amnesia=0.0)
    for y in (1, 2, 3):
        world.write("right", {"y": y, "j": 1, "b": "b"})
    tasks.run({"right": world.publish("right")})
    before = tasks.counts[1][1]
    for i in range(4):
        for x in (1, 2, 3):
            world.write("left", {"x": x, "i": i, "a": "a"})
        tasks.run({"left": world.publish("left")})
        assert all(len(cache) <= size for caches in tasks.caches for cache in caches)
    assert tasks.counts[1][1] - before <= most
    assert tasks.counts[1][0] + tasks.counts[1][1] - before == 12
    assert len(tasks.table) == 12
