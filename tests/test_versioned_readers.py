"""Whatever reads a versioned table sees what ``materialize()`` of it would give."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import dovetail as dt
from dovetail import testing

COLUMNS = {"id": pa.int64(), "v": pa.string(), "n": pa.int64(), "is": pa.bool_()}

Step = Callable[[dt.Table, dt.Table], dt.Table]
Last = Callable[[dt.Table], Any]

STEPS: list[Step] = [
    lambda t, _: t.select("v", "n", "is"),
    lambda t, _: t.where("is"),
    lambda t, _: t.to_stream().to_table(),
    lambda t, other: t.join(other, how="left", select=["left.v", "left.n", "left.is"]),
    lambda t, other: t.union(other, source="part") if t.plan.key.names == ["id"] else t,
    lambda t, _: t.materialize(),
]
LAST: list[Last] = [
    lambda t: t,
    lambda t: t.to_stream(),
    lambda t: t.to_changes(column="kind"),
    lambda t: t.to_stream().group_by("v").agg(n=dt.count()),
    lambda t: t.group_by("v").agg(n=dt.count(), most=dt.max("n"), all=dt.collect_set("n")),
    lambda t: t.rekey("v", duplicates="last"),
    lambda t: t.materialize().expire(after="1 h"),
    lambda t: t.join(names(), on="v", how="left", select=["n", "long"]),
]


def table(name: str, versioned: str | None = None) -> dt.Table:
    return testing.table(name, key="id", schema=COLUMNS, versioned=versioned)


def names() -> dt.Table:
    return testing.table("names", key="word", schema={"word": pa.string(), "long": pa.string()})


def drawn(random_: random.Random, rows: int) -> list[tuple[str, dict[str, Any], int, bool]]:
    """Rows of both tables, of which many are late, none equal to another one."""
    return [
        (
            random_.choice("aaab"),
            {
                "id": random_.randrange(3),
                "v": random_.choice("xyz"),
                "n": number,
                "is": random_.random() < 0.7,
            },
            random_.randrange(1, 30),
            random_.random() < 0.25,
        )
        for number in range(rows)
    ]


@pytest.mark.parametrize("seed", range(21))
def test_readers_see_the_rows_that_are_kept(seed: int) -> None:
    random_ = random.Random(seed)
    steps = random_.choices(STEPS, k=random_.randrange(4))
    last = LAST[seed % len(LAST)]
    rows = drawn(random_, 40)
    emit: Any = random_.choice(["change", "batch"]) if _is_table(last) else "change"
    found = []
    for materialized in (False, True):
        tables = {"a": table("a", "1 h"), "b": table("b", "1 h")}
        read = [t.materialize() if materialized else t for t in tables.values()]
        made = read[0]
        for step in steps:
            made = step(made, read[1])
        result = last(made)
        driver = testing.Driver(result, emit=emit)
        for start in range(0, len(rows), 8):
            with driver.batch():
                for name, row, time, deleted in rows[start : start + 8]:
                    if tables[name].plan in result.plan.origins:
                        driver.pipe(tables[name], row, timestamp=time, deleted=deleted)
        found.append(last_records(driver) if result.plan.stream else driver.table(result))
        assert result.plan.stream or driver.read()
    assert found[0] == found[1]


def last_records(driver: testing.Driver) -> dict[Any, Any]:
    """Each key's last record, if it has values."""
    last = {(*c.key.values(),): {**(c.values or {})} for c in driver.read()}
    return {key: row for key, row in last.items() if row.get("n") is not None}


def _is_table(last: Last) -> bool:
    return not last(table("t")).plan.stream


def test_a_late_row_of_a_table_that_is_written_as_it_is_emits_nothing() -> None:
    versions = table("a", "1 h")
    driver = testing.Driver(versions)
    rows = [("first", 10, False), ("newest", 30, False), ("late", 20, False), ("", 15, True)]
    for value, time, deleted in rows:
        driver.pipe(versions, {"id": 1, "v": value}, timestamp=time, deleted=deleted)
    assert [c.values and c.values["v"] for c in driver.read()] == ["first", "newest"]
