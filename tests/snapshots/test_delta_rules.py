"""The law on random histories: old result and delta are the new result, for every join of every
tree. Many worlds are joined at once, so each case is some hundred.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from bench.parameters import slow_after
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType
from snapshot_model import Histories, Memory, applied, counted, naive

from dovetail.snapshots import plan
from dovetail.snapshots.delta_reader import StoredFrames, keys_of
from dovetail.snapshots.deltas import Deltas
from dovetail.snapshots.plan import (
    SnapshotAggregate,
    SnapshotJoin,
    SnapshotNode,
    SnapshotSource,
)

HOWS = ("inner", "left", "right", "outer")
WORLDS = 80
ONS = ({"a": "b"}, {"b": "b"}, {"a": "x"}, {"x": "x"})
"""By both keys, by the right key, by the left key, by neither: many to many."""


def all_pairs(ones: Sequence[Any], others: Sequence[Any], *usual: tuple[Any, Any]) -> list[Any]:
    """All pairs; those that are not usual are slow."""
    return [
        pytest.param(
            one, other, id=f"{one}-{other}", marks=[] if (one, other) in usual else pytest.mark.slow
        )
        for one in ones
        for other in others
    ]


@pytest.fixture(scope="module")
def histories() -> Histories:
    found = Histories(random.Random(11), WORLDS)
    found.table("a", {"b": 3, "x": 2})
    found.table("b", {"c": 3, "x": 2})
    found.table("c", {"x": 2})
    for name in ("a", "b", "c"):
        for _ in range(3):
            found.step(name)
    return found


@pytest.fixture(scope="module")
def small_spark(spark: SparkSession) -> SparkSession:
    """A session of its own that does not adapt plans for so few rows."""
    session = spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", "1")
    session.conf.set("spark.sql.adaptive.enabled", "false")
    return session


def table(histories: Histories, name: str) -> SnapshotSource:
    schema = StructType.fromDDL(histories.schema(name))
    return plan.source(path=name, table_id=name, schema=schema, key=["world", name], name=name)


def check(
    spark: SparkSession,
    histories: Histories,
    node: SnapshotNode,
    old: dict[str, int],
    new: dict[str, int],
    *,
    few: bool = True,
) -> int:
    """The delta between the versions makes the old result the new one; how many rows it changes.
    ``few``: the changes of the sources are held in this process.
    """
    then, now = (
        naive(node, {name: histories.rows(name, version) for name, version in versions.items()})
        for versions in (old, new)
    )
    scratch = StoredFrames()
    try:
        reader = Memory(spark, node, scratch, histories)
        delta = Deltas(reader, old, new, few=few).changes(node)
        rows = then if delta.frame is None else applied(then, delta.frame, node.key.names)
        assert counted(rows, node.columns) == counted(now, node.columns)
        whole = [row.asDict() for row in reader.rows(node, new).collect()]
        assert counted(whole, node.columns) == counted(now, node.columns)
        return delta.rows
    finally:
        scratch.release()


def join(left: SnapshotNode, right: SnapshotNode, on: dict[str, str], how: str) -> SnapshotJoin:
    """A join within each world; of columns on both sides the right one gets a new name."""
    taken = {*left.columns, *left.key.names}
    select = {name: f"left.{name}" for name in left.values.names}
    select |= {f"{n}_2" if n in taken else n: f"right.{n}" for n in right.values.names}
    pairs = {"world": "world", **on}
    return plan.join(left, right, on=pairs, how=how, select=select, name=None)


@pytest.mark.parametrize("few", slow_after(1, [True, False]))
@pytest.mark.parametrize(("how", "on"), all_pairs(HOWS, ONS, *zip(HOWS, ONS, strict=True)))
def test_two_tables(
    small_spark: SparkSession, histories: Histories, how: str, on: dict[str, str], few: bool
) -> None:
    node = join(table(histories, "a"), table(histories, "b"), on, how)
    old, new = {"a": 1, "b": 1}, {"a": 3, "b": 2}
    assert check(small_spark, histories, node, old, new, few=few) > WORLDS / 3


@pytest.mark.slow
@pytest.mark.parametrize(("lower", "upper"), all_pairs(HOWS, HOWS, ("inner", "outer")))
def test_a_cascade_whose_upper_join_names_a_column_of_the_middle_table(
    small_spark: SparkSession, histories: Histories, lower: str, upper: str
) -> None:
    below = join(table(histories, "a"), table(histories, "b"), {"b": "b"}, lower)
    node = join(below, table(histories, "c"), {"c": "c"}, upper)
    check(small_spark, histories, node, {"a": 1, "b": 1, "c": 1}, {"a": 2, "b": 3, "c": 2})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lower", "upper"),
    all_pairs(HOWS, HOWS, ("left", "inner"), ("outer", "right")),
)
def test_a_cascade_on_the_right_and_many_to_many(
    small_spark: SparkSession, histories: Histories, lower: str, upper: str
) -> None:
    below = join(table(histories, "b"), table(histories, "c"), {"x": "x"}, lower)
    node = join(table(histories, "a"), below, {"x": "x_2" if lower == "right" else "x"}, upper)
    check(small_spark, histories, node, {"a": 1, "b": 1, "c": 1}, {"a": 2, "b": 2, "c": 3})


@pytest.mark.slow
def test_keys_that_are_spread_over_both_sides_of_a_cascade(
    small_spark: SparkSession, histories: Histories
) -> None:
    below = join(table(histories, "a"), table(histories, "b"), {"b": "b"}, "left")
    node = join(below, table(histories, "c"), {"x": "x", "c": "c"}, "outer")
    check(small_spark, histories, node, {"a": 1, "b": 1, "c": 1}, {"a": 2, "b": 2, "c": 3})


def test_nothing_new_changes_nothing(small_spark: SparkSession, histories: Histories) -> None:
    node = join(table(histories, "a"), table(histories, "b"), {"x": "x"}, "outer")
    same = {"a": 3, "b": 3}
    assert check(small_spark, histories, node, same, same) == 0


@pytest.mark.parametrize("how", slow_after(1, ["outer", "inner"]))
def test_a_table_joined_with_itself(
    small_spark: SparkSession, histories: Histories, how: str
) -> None:
    one = table(histories, "a")
    select = {"value": "left.a_value", "other": "right.a_value"}
    on = {"world": "world", "b": "a"}
    node = plan.join(one, one, on=on, how=how, select=select, name=None)
    assert check(small_spark, histories, node, {"a": 1}, {"a": 3}, few=False) > 0


@pytest.mark.slow
def test_four_tables(small_spark: SparkSession, histories: Histories) -> None:
    a, b, c = (table(histories, name) for name in "abc")
    left = join(a, b, {"b": "b"}, "outer")
    right = plan.join(
        c, b, on={"world": "world", "x": "x"}, how="left",
        select={"x3": "left.x", "c3": "left.c_value", "b3": "right.b_value"}, name=None,
    )  # fmt: skip
    node = join(left, right, {"c": "c"}, "outer")
    check(small_spark, histories, node, {"a": 1, "b": 1, "c": 1}, {"a": 2, "b": 2, "c": 2})


def aggregate(node: SnapshotNode, by: Sequence[str], column: str) -> SnapshotAggregate:
    """The groups of a node with three aggregates, of which the last ones are of one column."""
    count = F.count("*").cast("int")
    aggregates = {"n": count, f"sum_{column}": F.sum(column), f"max_{column}": F.max(column)}
    return plan.aggregate(node, by, aggregates)


@pytest.mark.parametrize("few", slow_after(1, [True, False]))
@pytest.mark.parametrize("by", slow_after(1, [["world", "x"], ["x"], ["world", "a"]]))
def test_an_aggregate_of_a_table(
    small_spark: SparkSession, histories: Histories, by: list[str], few: bool
) -> None:
    """By columns that may be null, over all worlds, and by the table's own key."""
    node = aggregate(table(histories, "a"), by, "a_value")
    changed = check(small_spark, histories, node, {"a": 1}, {"a": 3}, few=few)
    assert changed > (WORLDS / 3 if "world" in by else 1)
    assert check(small_spark, histories, node, {"a": 2}, {"a": 2}) == 0


@pytest.mark.parametrize("how", slow_after(1, ["outer", "inner"]))
@pytest.mark.parametrize("few", slow_after(1, [False, True]))
@pytest.mark.parametrize("on", slow_after(1, [{"n": "x"}, {"c": "c"}, None]))
def test_what_is_made_of_an_aggregate_of_a_join(
    small_spark: SparkSession, histories: Histories, how: str, few: bool, on: dict[str, str] | None
) -> None:
    """Groups from both sides, beside a table by the aggregate, by the group; and their groups."""
    joined = join(table(histories, "a"), table(histories, "b"), {"b": "b"}, how)
    groups = aggregate(joined, ["world", "c"], "b_value")
    if on is None:
        node: SnapshotNode = aggregate(groups, ["max_b_value"], "n")
    else:
        node = join(groups, table(histories, "c"), on, how)
    old, new = {"a": 1, "b": 1, "c": 1}, {"a": 3, "b": 2, "c": 2}
    changed = check(small_spark, histories, node, old, new, few=few)
    assert changed > (0 if on is None else WORLDS / 3)


@pytest.mark.parametrize("how", slow_after(2, ["outer", "right", "left"]))
def test_rows_of_one_side_are_found_by_a_shared_key_and_an_expression(
    small_spark: SparkSession, histories: Histories, how: str
) -> None:
    """Neither side has all columns of the keys, and a row may lack the side that is first."""
    left, right = table(histories, "b"), table(histories, "c")
    pairs = {"world": "world", "b": "c"}
    both = [F.coalesce("left.x", "right.x").alias("some_x")]
    node = plan.join(left, right, on=pairs, how=how, select=both, name=None)
    columns, versions = [*node.key.names, "some_x"], {"b": 2, "c": 2}
    scratch = StoredFrames()
    try:
        reader = Memory(small_spark, node, scratch, histories)
        whole = reader.rows(node, versions)
        found = reader.rows(node, versions, columns, keys_of(scratch, whole, columns)).collect()
        expected = [row.asDict() for row in whole.dropna().collect()]
        assert len(expected) > WORLDS / 3
        assert counted([row.asDict() for row in found], columns) == counted(expected, columns)
    finally:
        scratch.release()
