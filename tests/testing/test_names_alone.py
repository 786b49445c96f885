"""Topologies of names alone, in process and without a session: keys and unions."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

import dovetail as dt
from dovetail import testing


def table(name: str) -> dt.Table:
    return testing.table(name, key="id", schema={"id": pa.int64(), "city": pa.string()})


def changes(driver: testing.Driver) -> list[tuple[Any, ...]]:
    return [(c.change, *c.key.values(), *(c.values or {}).values()) for c in driver.read()]


@pytest.mark.parametrize("duplicates", ["fail", "last"])
def test_a_table_under_another_key(duplicates: Any) -> None:
    towns = table("towns")
    driver = testing.Driver(towns.key_by("city", duplicates=duplicates))
    driver.pipe(towns, {"id": 1, "city": "Oslo"}, timestamp=1)
    driver.pipe(towns, {"id": 1}, deleted=True, timestamp=2)
    assert changes(driver) == [("upsert", "Oslo", 1), ("delete", "Oslo")]


def test_a_key_may_be_called_row_in_capitals() -> None:
    seats = testing.table("seats", key="id", schema={"id": pa.int64(), "ROW": pa.string()})
    driver = testing.Driver(seats.key_by("ROW"))
    driver.pipe(seats, {"id": 1, "ROW": "a"}, timestamp=1)
    assert changes(driver) == [("upsert", "a", 1)]


def test_a_union_says_whose_a_row_is() -> None:
    a, b = table("a"), table("b")
    driver = testing.Driver(a.union(b, source="of"))
    driver.pipe(a, {"id": 1, "city": "Oslo"}, timestamp=1)
    driver.pipe(b, {"id": 1, "city": "Rome"}, timestamp=2)
    driver.pipe(a, {"id": 1}, deleted=True, timestamp=3)
    upserts = [("upsert", 1, "a", "Oslo"), ("upsert", 1, "b", "Rome")]
    assert changes(driver) == [*upserts, ("delete", 1, "a")]


@pytest.mark.parametrize("buckets", [1, 3])
def test_keys_move_within_a_micro_batch(buckets: int) -> None:
    """As random permutations of unique values, in any order."""
    random_ = random.Random(5)
    towns = table("towns")
    driver = testing.Driver(towns.key_by("city"), buckets=buckets)
    cities = [*"vwxyz"]
    for time in range(1, 8):
        random_.shuffle(cities)
        rows = [{"id": number, "city": city} for number, city in enumerate(cities)]
        driver.pipe(towns, random_.sample(rows, len(rows)), timestamp=time)
    last: dict[Any, Any] = {}
    for change in driver.read():
        last[change.key["city"]] = change.values
    assert last == {city: {"id": number} for number, city in enumerate(cities)}


def test_two_rows_that_a_micro_batch_leaves_under_a_key() -> None:
    towns = table("towns")
    driver = testing.Driver(towns.key_by("city"))
    driver.pipe(towns, [{"id": 71, "city": "Oslo"}, {"id": 72, "city": "Rome"}], timestamp=1)
    with pytest.raises(
        dt.errors.DataError, match=r"key_by of towns: .*'Oslo'.*71.*72.*duplicates='last'"
    ):
        driver.pipe(towns, {"id": 72, "city": "Oslo"}, timestamp=2)


@pytest.mark.parametrize("above", ["union", "materialized", "grouped", "rekeyed", "chosen"])
def test_the_last_changes_of_a_union(above: str) -> None:
    """Per key and micro-batch one, and none where nothing has changed: as of every table."""
    random_ = random.Random(above)
    a, b = table("a"), table("b")
    union = a.union(b, source="of")
    made: Any = {
        "union": union,
        "materialized": union.materialize(),
        "grouped": union.group_by("city").agg(n=dt.count()),
        "rekeyed": union.key_by("city", duplicates="last"),
        "chosen": union.rename({"of": "whose"}),
    }[above]
    driver, each = testing.Driver(made, emit="batch"), testing.Driver(made)
    known: dict[Any, Any] = {}
    for time in range(1, 25):
        with driver.batch(), each.batch():
            for _ in range(3):
                row = {"id": random_.randrange(2), "city": random_.choice("xy")}
                of, gone = random_.choice([a, b]), random_.random() < 0.3
                for one in (driver, each):
                    one.pipe(of, row, timestamp=time, deleted=gone)
        then, now = dict(known), known
        for change in each.read():
            now[tuple(change.key.values())] = change.values
        expected = {key: row for key, row in now.items() if row != then.get(key)}
        came = [(tuple(change.key.values()), change.values) for change in driver.read()]
        assert len(came) == len(dict(came))
        assert dict(came) == expected


def test_streams_join_within_a_bound() -> None:
    for bounds in ({}, {"grace": "1 min"}):
        with pytest.raises(dt.errors.PlanError, match="neither before= nor after= is given"):
            dt.within(**bounds)
    assert dt.within(before="0 s") == dt.within(after="0 s") == dt.typing.Within(0, 0, 0)
    assert dt.within(after="1 s") == dt.typing.Within(0, 1_000_000, 0)


def test_a_table_and_a_union_with_it_are_results_of_one_query() -> None:
    a, b = table("a"), table("b")
    joined = a.join(table("c"), how="left", select=["left.city"], name="joined")
    results = [joined, joined.union(b, source="of"), joined.group_by("city").agg(n=dt.count())]
    driver = testing.Driver(*results, emit="batch")
    rows = [{"id": 1, "city": "Oslo"}, {"id": 1, "city": "Rome"}]
    driver.pipe(a, rows, timestamp=1)
    found = [[(*c.key.values(), *c.values.values()) for c in driver.read(r)] for r in results]
    assert found == [[(1, "Rome")], [(1, "joined", "Rome")], [("Rome", 1)]]
