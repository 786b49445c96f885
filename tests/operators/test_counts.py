"""Nothing disappears uncounted, and what a condition leaves out of a table moves no clock.

Law: records in = records that had an effect + records counted. A record has an effect if it makes
what its topology emits another one, now or for what comes later.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pyarrow as pa
import pytest
from bench.parameters import slow_after
from fuzz import judges
from fuzz.counted import (
    BOTH,
    FUTURE,
    GUARDED,
    Inputs,
    Row,
    counted,
    fed,
    guarded,
    inputs,
    referring,
    rows_of,
)

import dovetail as dt
from dovetail import testing
from dovetail.operators.groups import sliding
from dovetail.plan.metrics import MetricKind
from dovetail.testing import Driver

NUMBERS = {"n": dt.count(), "last": dt.last("v")}


def run(make: Callable[[Inputs], Any], *rows: Row, size: int = 1) -> tuple[list[Any], Driver]:
    given = inputs()
    driver = Driver(make(given))
    made = [fed(driver, given, rows[n : n + size]) for n in range(0, len(rows), size)]
    return [change for part in made for change in part], driver


# A stream's records without a value.


@pytest.mark.parametrize(
    "make",
    [
        lambda i: i["s"].group_by("id").agg(**NUMBERS),
        lambda i: (
            i["s"].group_by("id").window(dt.windows.tumbling("1 min")).agg(**NUMBERS).to_table()
        ),
        lambda i: i["s"].union(i["u"]).group_by("id").agg(**NUMBERS),
        lambda i: i["t"].to_stream().group_by("id").agg(**NUMBERS),
    ],
    ids=["key", "tumbling", "union", "table"],
)
def test_an_aggregate_has_no_records_without_a_value(make: Callable[[Inputs], Any]) -> None:
    name = "t" if make(inputs()).plan.origins[0].name == "t" else "s"
    rows = Row(name, 1, 1), Row(name, 1, 2, deleted=True), Row(name, 1, 3)
    changes, driver = run(make, *rows)
    assert [change[-2] for change in changes] == [{"n": 1, "last": "v1"}, {"n": 2, "last": "v3"}]
    assert driver.dropped == 1
    alone, driver = run(make, Row(name, 1, 2, deleted=True))
    assert (alone, driver.dropped) == ([], 1)


# A table's rows with a null in the key.


@pytest.mark.parametrize(
    "make",
    [
        lambda t: t,
        lambda t: t.to_stream(),
        lambda t: t.select("v").to_stream().key_by("v"),
        lambda t: t.to_stream().rename({"id": "k"}),
        lambda t: t.to_stream().to_table(),
        lambda t: t.to_changes(),
    ],
    ids=["table", "stream", "key_by", "renamed", "stored", "changes"],
)
def test_a_table_has_no_row_with_a_null_in_its_key(make: Callable[[Any], Any]) -> None:
    changes, driver = run(lambda i: make(i["t"]), Row("t", None, 1), Row("t", 1, 2))
    assert len(changes) == 1
    assert driver.dropped == 1


# What versioned tables and joins of streams ignore.

LATEST = {
    "itself": lambda i: i["h"],
    "join": lambda i: i["h"].join(i["t"], how="left", select=BOTH),
    "referring": lambda i: referring(i["h"], i["r"], how="left"),
    "changes": lambda i: i["h"].to_changes(),
    "groups": lambda i: i["h"].group_by("ok").agg(n=dt.count()),
    "stored": lambda i: i["h"].materialize().join(i["t"], how="left", select=BOTH),
}


@pytest.mark.parametrize("make", LATEST.values(), ids=LATEST)
def test_rows_that_a_history_ignores_are_counted(make: Callable[[Inputs], Any]) -> None:
    """One is older than the history, another one than its key's latest row."""
    rows = Row("h", 1, 100), Row("h", 1, 95), Row("h", 1, 90), Row("h", 2, 89), Row("h", 1, 80)
    for size in (1, 2, len(rows)):
        changes, driver = run(make, *rows, size=size)
        assert counted(driver) == {"h.late": 2, "h.too_old": 2}
        assert driver.examples == {
            "h.late": "id=1 at 1970-01-01T00:00:00.000095Z",
            "h.too_old": "id=2 at 1970-01-01T00:00:00.000089Z",
        }
        assert len(changes) == 1


def test_a_referenced_history_counts_what_it_ignores() -> None:
    def make(i: Inputs) -> Any:
        return referring(i["t"], i["h"])

    _, driver = run(make, Row("t", 1, 1), Row("h", 1, 100), Row("h", 1, 95), Row("h", 1, 80))
    assert counted(driver) == {"h.late": 1, "h.too_old": 1}


def test_a_row_that_is_late_but_within_the_history_is_of_use_to_those_that_ask_for_it() -> None:
    asking = [Row("h", 1, 100), Row("h", 1, 95), Row("h", 1, 80), Row("s", 1, 97)]
    changes, driver = run(lambda i: i["s"].join(i["h"], select={"v": "right.v"}), *asking)
    assert [change[-2] for change in changes] == [{"v": "v95"}]
    assert counted(driver) == {"h.too_old": 1}
    _, driver = run(lambda i: i["h"].join(i["g"], late="history", select=BOTH), *asking[:3])
    assert counted(driver) == {"h.too_old": 1}


def test_a_record_older_than_the_history_that_it_looks_into_is_counted() -> None:
    """It reaches no result; with ``how="left"`` it does, and is not counted."""
    rows = Row("h", 1, 50), Row("h", 1, FUTURE), Row("s", 1, 60), Row("s", 2, 70), Row("s", 1, 49)
    changes, driver = run(lambda i: i["s"].join(i["h"], select=BOTH), *rows)
    assert (changes, counted(driver)) == ([], {"s.too_old": 3})
    changes, driver = run(lambda i: i["s"].join(i["h"], how="left", select=BOTH), *rows)
    assert (len(changes), counted(driver)) == (3, {})


@pytest.mark.parametrize("how", ["inner", "left", "outer"])
def test_late_records_of_two_streams_are_counted_where_they_reach_no_result(how: Any) -> None:
    window = dt.within(before="2 us", after="2 us", grace="1 us")
    rows = Row("s", 9, 100), Row("s", 1, 94), Row("u", 1, 94), Row("u", 1, 95), Row("s", 1, 96)
    for size in (1, 2, len(rows)):
        _, driver = run(
            lambda i: i["s"].join(i["u"], how=how, within=window, select=BOTH), *rows, size=size
        )
        late = {
            "inner": {"s.late": 1, "u.late": 1},
            "left": {"u.late": 1},
            "outer": {"s-u.too_late": 1},
        }[how]
        assert counted(driver) == late


def test_a_late_record_of_a_stream_with_itself_is_counted_once() -> None:
    window = dt.within(before="-1 us", after="5 us")
    _, driver = run(
        lambda i: i["s"].join(i["s"], within=window, select=BOTH), Row("s", 1, 9), Row("s", 1, 3)
    )
    assert counted(driver) == {"s.late": 1}


def test_what_is_dropped_between_two_stages_is_counted() -> None:
    def make(i: Inputs) -> Any:
        joined = i["s"].join(i["t"], how="left", select={"k": "right.v"})
        return joined.group_by("k").agg(n=dt.count())

    changes, driver = run(make, Row("s", 1, 1))
    assert (changes, driver.dropped) == ([], 1)


def test_a_record_of_a_row_without_a_left_side_needs_a_group() -> None:
    """Its own key is null, which is allowed; the columns of its group may not be."""
    kinds = {"id": pa.int64(), "user": pa.string()}
    orders = testing.table("o", key="id", schema=kinds)
    users = testing.table("u", key="user", schema={"user": pa.string(), "city": pa.string()})
    joined = orders.join(users, on="user", how="outer")
    driver = Driver(joined.to_changes().group_by("city").agg(n=dt.count()))
    assert driver.pipe(orders, {"id": 1, "user": "ann"}, timestamp=1) == []
    assert driver.dropped == 1
    (change,) = driver.pipe(users, {"user": "bob", "city": "Oslo"}, timestamp=2)
    assert (change.key, change.values) == ({"city": "Oslo"}, {"n": 1})


def test_a_batch_that_fails_counts_nothing() -> None:
    given = inputs()
    driver = Driver(given["h"])
    fed(driver, given, [Row("h", 1, 100)])
    with pytest.raises(dt.errors.DataError), driver.batch():
        driver.pipe(given["h"], [{"id": None}, {"id": 1}], timestamp=[1, None])
    assert (counted(driver), driver.examples) == ({}, {})


# Random cases of the laws (fuzz.counted).


@pytest.mark.parametrize("seed", slow_after(6, range(12)))
def test_records_in_are_results_and_records_counted(seed: int) -> None:
    assert judges.difference(judges.drawn(seed, 0, only="counted")) is None


@pytest.mark.parametrize("versioned", [False, True], ids=["last", "versioned"])
@pytest.mark.parametrize("seed", slow_after(2, range(4)))
def test_upserts_of_a_table_are_changes_or_counted(seed: int, versioned: bool) -> None:
    random_ = random.Random(seed)
    of = "h" if versioned else "t"
    rows = [*rows_of(random_, of, 40, deletes=0)]
    for make in (lambda i: i[of], lambda i: i[of].join(i["r"], how="left", select=BOTH)):
        for size in (1, 9):
            changes, driver = run(make, *rows, size=size)
            assert len(rows) == len(changes) + sum(counted(driver).values())


# Rows that a condition leaves out of a table.


@pytest.mark.parametrize("seed", slow_after(1, range(3)))
@pytest.mark.parametrize(("name", "of"), GUARDED)
def test_behind_where_all_is_as_if_rows_left_out_had_never_been(
    name: str, of: str, seed: int
) -> None:
    """With every reader of a table."""
    assert judges.difference(guarded(random.Random(f"{name} {of} {seed}"), name, of)) is None


def test_a_row_that_ceases_to_meet_a_condition_goes_without_moving_the_clock() -> None:
    def make(i: Inputs) -> Any:
        return i["t"].where("ok").expire(after="5 us")

    rows = [Row("t", 1, 10), Row("t", 2, 10), Row("t", 1, FUTURE, ok=False), Row("t", 3, 12)]
    changes, driver = run(make, *rows)
    assert [change[:2] for change in changes] == [
        ("upsert", 1),
        ("upsert", 2),
        ("delete", 1),
        ("upsert", 3),
    ]
    assert counted(driver) == {}

    def as_of(i: Inputs) -> Any:
        return i["s"].join(i["h"].where("ok"), how="left", select={"v": "right.v"})

    asked = [Row("s", 1, 30), Row("s", 1, FUTURE + 1)]
    changes, _ = run(as_of, Row("h", 1, 10), Row("h", 1, FUTURE, ok=False), *asked)
    assert [change[-2] for change in changes] == [{"v": "v10"}, {"v": None}]


def test_a_row_that_ceases_to_meet_a_condition_is_let_through_by_align() -> None:
    def make(i: Inputs) -> Any:
        return i["t"].where("ok").join(i["r"], how="left", align="1 min", select={"v": "left.v"})

    given = inputs()
    driver = Driver(make(given))
    assert fed(driver, given, [Row("t", 1, 10), Row("t", 1, FUTURE, ok=False)]) == []
    assert [c.change for c in driver.advance_wall_clock("1 min")] == ["upsert", "delete"]


def test_rows_left_out_do_not_end_a_silence() -> None:
    def make(i: Inputs) -> Any:
        return i["t"].where("ok").expire(after="5 s")

    given = inputs()
    driver = Driver(make(given), idle="10 s")
    fed(driver, given, [Row("t", 1, 10)])
    driver.advance_wall_clock("9 s")
    fed(driver, given, [Row("t", 2, FUTURE, ok=False)])
    assert [c.change for c in driver.advance_wall_clock("1 s")] == ["delete"]


def test_where_moves_no_clock_on_spark(spark: Any) -> None:
    """A guard against timestamps of the far future, with a condition in SQL."""

    def at(hour: int, year: int = 2024) -> datetime:
        return datetime(year, 5, 1, hour, tzinfo=timezone.utc)

    def joined(*prices: tuple[int, str, datetime]) -> list[Any]:
        columns = "id long, v string, at timestamp"
        table = dt.Table.from_changelog(
            spark.createDataFrame([*prices], columns).coalesce(1),
            key="id",
            timestamp="at",
            name="t",
            versioned="7 days",
        )
        sales = spark.createDataFrame([(1, "x", at(13)), (2, "y", at(13))], columns).coalesce(1)
        asking = dt.Stream.from_changelog(sales, key="id", timestamp="at", name="s")
        made = asking.join(
            table.where("_timestamp < timestamp'2030-01-01'"), how="left", select={"v": "right.v"}
        )
        return sorted((row.id, row.v) for row in made.changelog().collect())

    honest = (1, "old", at(9)), (1, "new", at(11)), (2, "two", at(12))
    assert joined(honest[0], (9, "z", at(0, 2099)), *honest[1:]) == [(1, "new"), (2, "two")]


# The documentation.


def test_the_documentation_has_each_counter() -> None:
    """The table of docs/operations.md is complete, and has nothing that is not counted."""
    page = (Path(__file__).parents[2] / "docs/operations.md").read_text(encoding="utf-8")
    section = page.split("\n## Counters\n")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    named = [row.split("`")[1].rpartition(".")[2] for row in rows]
    assert sorted({*named}) == sorted(get_args(MetricKind))


def test_names_of_counters_are_made_in_one_place() -> None:
    """No module makes the name of a metric by itself, so the list above is of all."""
    sources = Path(dt.__file__).parent.rglob("*.py")
    kinds = tuple(f'.{kind}"' for kind in get_args(MetricKind))
    for path in sources:
        for line in path.read_text(encoding="utf-8").splitlines():
            made = 'f"' in line and any(kind in line for kind in kinds)
            assert not made or path.name == "metrics.py", f"{path.name}: {line.strip()}"
            assert ".observe(f" not in line, f"{path.name}: {line.strip()}"


def test_sliding_windows_number_rows_on_after_a_batch_without_any() -> None:
    job: Any = SimpleNamespace(any_rows=False, stores={}, manifest=SimpleNamespace(rows=7))
    law: Any = None
    assert sliding.run(job, law).rows == 7


def test_what_is_emitted_at_once_is_not_late_further_on() -> None:
    """The windows of the left records end before the records come, so nothing is held back."""
    left, right = (
        testing.stream(name, key="id", schema={"id": pa.int64(), name: pa.int64()})
        for name in ("l", "r")
    )
    joined = left.join(right, how="left", within=dt.within(before="20 s", after="-10 s"))
    totals = joined.group_by("id").window(dt.windows.tumbling("5 s")).agg(n=dt.count())
    driver = Driver(totals.to_table(windows="on_close"))
    for second in range(100, 105):
        row = {"id": 1, "l": second}
        assert driver.pipe(left, row, timestamp=second * 1_000_000) == []
    assert [change.values for change in driver.end_input()] == [{"n": 5}]
    assert driver.counts == {}
