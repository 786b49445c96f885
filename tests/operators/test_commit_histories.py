"""Histories of tables whose rows come in the order in which they hold, whatever their times."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

import dovetail as dt
from dovetail import testing
from dovetail.plan.nodes import RowOrder, Source

KEYS = 3
SPAN = 15


def of_commits(versioned: str = "1 hour") -> dt.Table:
    """A table as ``from_delta`` makes it, fed by hand."""
    schema = {"id": pa.int64(), "v": pa.int64(), "ok": pa.bool_()}
    table = testing.table("t", key="id", schema=schema, versioned=versioned)
    assert isinstance(table.plan, Source)
    return dt.Table(replace(table.plan, order=RowOrder(by_commit=True)))


def standing(changes: list[tuple[int, int, int | None]], key: int, time: int) -> int | None:
    """The row at a time, when each change takes effect no earlier than those before it."""
    end, found = -1, None
    for own, at, value in changes:
        if own == key:
            end = max(end, at)
            found = value if end <= time else found
    return found


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("shape", ["of table", "of view", "foreign key"])
def test_each_time_has_the_row_that_stood(shape: str, seed: int) -> None:
    draw = random.Random(seed)
    table = of_commits()
    asked = testing.stream("s", key="k", schema={"k": pa.int64(), "id": pa.int64()})
    seen = table.where("ok") if shape == "of view" else table
    if shape == "foreign key":
        rows = testing.table("r", key="k", schema={"k": pa.int64(), "id": pa.int64()})
        topology: Any = rows.join(seen, on="id", how="left", select=["v"])
    else:
        topology = asked.join(seen, on="id", how="left", select=["v"])
    driver = testing.Driver(topology, buckets=2)
    if shape == "foreign key":
        for key in range(KEYS):
            driver.pipe(rows, {"k": key, "id": key}, timestamp=0)
    changes: list[tuple[int, int, int | None]] = []
    last: dict[int, Any] = {}
    for _ in range(30):
        key, at = draw.randrange(KEYS), draw.randrange(SPAN)
        value = None if draw.random() < 0.3 else draw.randrange(20)
        changes.append((key, at, value))
        row = {"id": key} if value is None else {"id": key, "v": value, "ok": value % 7 != 0}
        driver.pipe(table, row, timestamp=at, deleted=value is None)
        if draw.random() < 0.3:
            last.update({change.key["k"]: change.values["v"] for change in driver.read()})
    if shape == "foreign key":
        last.update({change.key["k"]: change.values["v"] for change in driver.read()})
        assert last == {key: standing(changes, key, SPAN) for key in range(KEYS)}
        return
    driver.read()
    questions = [(key, at) for key in range(KEYS) for at in range(SPAN)]
    for number, (key, at) in enumerate(questions):
        driver.pipe(asked, {"k": number, "id": key}, timestamp=at)
    found = {change.key["k"]: change.values["v"] for change in driver.read()}
    for number, (key, at) in enumerate(questions):
        row = standing(changes, key, at)
        if shape == "of view" and row is not None and row % 7 == 0:
            row = None
        assert found[number] == row, (key, at, changes)


def test_the_last_row_is_kept_however_old_it_is() -> None:
    table = of_commits("10 us")
    driver = testing.Driver(table.materialize())
    driver.pipe(table, {"id": 1, "v": 1}, timestamp=1000)
    driver.pipe(table, {"id": 2, "v": 2}, timestamp=5)
    driver.pipe(table, {"id": 1, "v": 3}, timestamp=7)
    driver.pipe(table, {"id": 1}, timestamp=8, deleted=True)
    found = [(c.key["id"], c.values and c.values["v"], c.timestamp_us) for c in driver.read()]
    assert found == [(1, 1, 1000), (2, 2, 5), (1, 3, 1000), (1, None, 1000)]
