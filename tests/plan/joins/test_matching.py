"""``on=`` means the same in every join: columns of the left side that equal the right side's key,
or pairs; left out, both keys, of the same names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructType

import dovetail as dt
from dovetail import testing
from dovetail.plan.joins.foreign_key_join import ForeignKeyJoin
from dovetail.plan.joins.table_join import TableJoin
from dovetail.plan.nodes import Source
from dovetail.snapshots import plan as snapshots
from dovetail.testing import Driver

INTS, WITHIN = pa.int64(), dt.within(after="1 min")


def struct(*names: str) -> StructType:
    made = StructType()
    for name in names:
        made = made.add(name, StringType() if name == "text" else LongType())
    return made


def table(name: str, *key: str, values: tuple[str, ...] = ()) -> dt.Table:
    return dt.Table(Source(name, struct(*key), struct(*values or (f"of_{name}",))))


def stream(name: str, *key: str, values: tuple[str, ...] = ()) -> dt.Stream:
    made = Source(name, struct(*key), struct(*values or (f"of_{name}",)), stream=True)
    return dt.Stream(made)


def hours(name: str, *key: str) -> dt.WindowedTable:
    counted = stream(f"of_{name}", *key).group_by(*key).window(dt.windows.tumbling("1 hour"))
    return counted.agg(**{name: dt.count()})


def snapshot(name: str, *key: str) -> snapshots.SnapshotSource:
    return snapshots.SnapshotSource(name, f"/{name}", name, struct(*key), struct(f"of_{name}"))


def join_snapshots(left: Any, right: Any, on: Any) -> Any:
    return snapshots.join(left, right, on=on, how="inner", select=None, name=None)


JOINS: dict[str, tuple[Any, Any, Callable[[Any, Any, Any], Any]]] = {
    "tables": (table, table, lambda a, b, on: a.join(b, on=on)),
    "lookups": (
        table,
        table,
        lambda a, b, on: a.join(b, on=on, delta_join=dt.delta_join(strategy="force")),
    ),
    "a stream and a table": (stream, table, lambda a, b, on: a.join(b, on=on)),
    "streams": (stream, stream, lambda a, b, on: a.join(b, on=on, within=WITHIN)),
    "windows": (hours, hours, lambda a, b, on: a.join(b, on=on)),
    "windows and a table": (hours, table, lambda a, b, on: a.join(b, on=on, how="left")),
    "snapshots": (snapshot, snapshot, join_snapshots),
}
BY_KEYS = ("streams", "windows", "windows and a table")


@pytest.mark.parametrize("kind", JOINS)
def test_keys_of_other_names_are_to_be_paired(kind: str) -> None:
    left, right, join = JOINS[kind]
    with pytest.raises(
        dt.errors.PlanError,
        match=r"without on= the key of .* is \(a bigint, b bigint\), of .* \(x bigint, y bigint\). "
        r"Say which columns are equal, if these are: on=\{'a': 'x', 'b': 'y'\}\.$",
    ):
        join(left("l", "a", "b"), right("r", "x", "y"), None)


@pytest.mark.parametrize("kind", JOINS)
def test_keys_in_another_order_are_to_be_paired(kind: str) -> None:
    left, right, join = JOINS[kind]
    with pytest.raises(dt.errors.PlanError, match=r"on=\{'b': 'b', 'a': 'a'\}\.$"):
        join(left("l", "a", "b"), right("r", "b", "a"), None)


@pytest.mark.parametrize("kind", JOINS)
def test_what_on_names_is_checked(kind: str) -> None:
    left, right, join = JOINS[kind]
    sides = left("l", "a", "b"), right("r", "x", "y")
    for on, message in (
        (["a"], r"on= has 1 parts, the key of .* is \(x bigint, y bigint\). Give as many, in the"),
        (["a", "c"], r"on= names an unknown column 'c'. Known in .* are a, b"),
        ({"a": "x", "b": "c"}, r"on= names an unknown column 'c'. Known in .* are x, y"),
        ({}, r"on= names no column. Name the columns that are equal"),
    ):
        with pytest.raises(dt.errors.PlanError, match=message):
            join(*sides, on)
    other = right("r", "x", "text")
    for on in (["a", "b"], {"a": "x", "b": "text"}):
        with pytest.raises(
            dt.errors.PlanError, match=r"\.b is bigint, .*\.text is string. Cast one so that both"
        ):
            join(sides[0], other, on)


@pytest.mark.parametrize("kind", [kind for kind in JOINS if kind not in ("lookups", "snapshots")])
def test_pairs_are_of_the_whole_right_key(kind: str) -> None:
    left, right, join = JOINS[kind]
    sides = left("l", "a", "b"), right("r", "x", "y")
    for on in ({"a": "x"}, {"a": "x", "b": "x"}):
        named = ", ".join(on.values())
        with pytest.raises(
            dt.errors.PlanError,
            match=rf"on= names {named} of .*, whose key is \(x bigint, y bigint\)",
        ):
            join(*sides, on)


@pytest.mark.parametrize("kind", BY_KEYS)
def test_sides_that_meet_by_their_keys_pair_these(kind: str) -> None:
    left, right, join = JOINS[kind]
    crossed = {"a": "y", "b": "x"}
    for key, on in ((("x", "y"), crossed), (("x",), "a")):
        with pytest.raises(
            dt.errors.PlanError, match=r"its sides meet by their whole keys, in the same"
        ):
            join(left("l", "a", "b"), right("r", *key), on)
    for on in (["a", "b"], {"b": "y", "a": "x"}):
        made = join(left("l", "a", "b"), right("r", "x", "y"), on)
        assert made.plan.key.names[:2] == ["a", "b"]


def test_pairs_of_tables_are_a_join_by_key_or_by_foreign_key() -> None:
    left, right = table("l", "a", "b"), table("r", "x", "y")
    for on in (["a", "b"], {"a": "x", "b": "y"}, {"b": "y", "a": "x"}):
        assert isinstance(left.join(right, on=on).plan, TableJoin)
    for on, columns in (({"a": "y", "b": "x"}, ("b", "a")), (["b", "of_l"], ("b", "of_l"))):
        made = left.join(right, on=on).plan
        assert isinstance(made, ForeignKeyJoin)
        assert made.on == columns
    assert clicked({"a": "x", "of_s": "y"}).on == clicked(["a", "of_s"]).on == ("a", "of_s")


def clicked(on: Any) -> Any:
    return stream("s", "a").join(table("r", "x", "y"), on=on).plan


def test_a_mapping_joins_what_it_pairs() -> None:
    orders = testing.table("orders", key="id", schema=dict.fromkeys(("id", "a", "b"), INTS))
    parts = testing.table("parts", key=["x", "y"], schema=dict.fromkeys(("x", "y", "p"), INTS))
    driver = Driver(orders.join(parts, on={"b": "x", "a": "y"}))
    driver.pipe(parts, [{"x": 1, "y": 2, "p": 7}, {"x": 2, "y": 1, "p": 8}], timestamp=1)
    driver.pipe(orders, {"id": 1, "a": 1, "b": 2}, timestamp=2)
    assert [change.values for change in driver.read()] == [{"a": 1, "b": 2, "p": 8}]
    asks = testing.stream("asks", key="ask", schema=dict.fromkeys(("ask", "n"), INTS))
    tells = testing.stream("tells", key="told", schema=dict.fromkeys(("told", "m"), INTS))
    driver = Driver(asks.join(tells, on={"ask": "told"}, within=WITHIN, name="talk"))
    driver.pipe(asks, {"ask": 1, "n": 2}, timestamp=1)
    driver.pipe(tells, [{"told": 1, "m": 3}, {"told": 2, "m": 4}], timestamp=2)
    assert [(c.key, c.values) for c in driver.read()] == [({"ask": 1}, {"n": 2, "m": 3})]
    counts = asks.group_by("ask").window(dt.windows.tumbling("1 s")).agg(count=dt.count())
    sums = tells.group_by("told").window(dt.windows.tumbling("1 s")).agg(total=dt.sum("m"))
    driver = Driver(counts.join(sums, on={"ask": "told"}).to_table())
    driver.pipe(asks, {"ask": 1, "n": 2}, timestamp=1)
    driver.pipe(tells, [{"told": 1, "m": 3}, {"told": 2, "m": 4}], timestamp=2)
    assert [change.values for change in driver.read()] == [{"count": 1, "total": 3}]


def test_joins_of_streams_have_names() -> None:
    asks, users = stream("asks", "id"), table("users", "id")
    tells = stream("tells", "id")
    assert asks.join(users, name="known").plan.name == "known"
    assert asks.join(tells, within=WITHIN, name="talk").plan.name == "talk"
    with pytest.raises(
        dt.errors.PlanError, match=r"^known: how='right' is not a join of a stream with"
    ):
        asks.join(users, how="right", name="known")
    with pytest.raises(dt.errors.PlanError, match=r"^talk: grace= is for joins with a table"):
        asks.join(tells, within=WITHIN, grace="1 s", name="talk")
    with pytest.raises(dt.errors.PlanError, match=r"^known: within= is for joins of two streams"):
        asks.join(users, within=WITHIN, name="known")


@pytest.mark.parametrize("select", [["right.id", "name"], {"id": "right.id", "name": "name"}])
def test_the_key_of_a_looked_up_table_is_no_key_of_the_stream(select: Any) -> None:
    orders = stream("orders", "id", values=("customer",))
    customers = table("customers", "id", values=("name",))
    with pytest.raises(dt.errors.PlanError, match="column 'id' occurs twice"):
        orders.join(customers, how="inner", on="customer", select=select)


def test_a_looked_up_key_that_is_the_key_of_the_stream_is_not_repeated() -> None:
    lines = stream("lines", "line", "order", values=("item",))
    orders = table("orders", "id", values=("total",))
    select = {"order": "right.id", "total": "total"}
    joined = lines.join(orders, how="inner", on="order", select=select)
    assert joined.plan.row.names == ["line", "order", "total"]
