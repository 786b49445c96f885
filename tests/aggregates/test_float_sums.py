"""Sums and means of floats over tables whose rows come and go, in the driver: exact at any time,
whatever the buckets, the cuts and ``emit``.
"""

from __future__ import annotations

import math
import random

import pyarrow as pa
import pytest

import dovetail as dt
from dovetail import testing
from dovetail.physical.fragment import Emit

SCHEMA = {"id": pa.int64(), "city": pa.string(), "amount": pa.float64()}


def totals(emit: Emit = "change", buckets: int = 1) -> tuple[testing.Driver, dt.Table]:
    rows = testing.table("rows", key="id", schema=SCHEMA)
    summed = rows.group_by("city").agg(total=dt.sum("amount"), mean=dt.mean("amount"))
    return testing.Driver(summed, emit=emit, buckets=buckets), rows


@pytest.mark.parametrize("emit", ["change", "batch"])
@pytest.mark.parametrize(
    ("large", "small"), [(1e17, 1.0), (1e308, 1e308), (math.inf, 0.1), (math.nan, 0.1)]
)
def test_a_row_that_is_deleted_leaves_nothing_behind(
    large: float, small: float, emit: Emit
) -> None:
    driver, rows = totals(emit)
    for number, amount in enumerate([large, small]):
        driver.pipe(rows, {"id": number, "city": "Oslo", "amount": amount}, timestamp=number)
    (change,) = driver.pipe(rows, {"id": 0}, timestamp=2, deleted=True)
    assert change.values == {"total": small, "mean": small}


def test_five_hundred_rows_that_come_and_go_change_nothing() -> None:
    driver, rows = totals()
    driver.pipe(rows, {"id": 0, "city": "Oslo", "amount": 0.1}, timestamp=0)
    for _ in range(10):
        with driver.batch() as changes:
            for _ in range(50):
                driver.pipe(rows, {"id": 1, "city": "Oslo", "amount": 0.2}, timestamp=0)
                driver.pipe(rows, {"id": 1}, timestamp=0, deleted=True)
        there, gone = 0.1 + 0.2, 0.1
        assert [change.values["total"] for change in changes if change.values] == [there, gone] * 50


@pytest.mark.parametrize("buckets", [1, 8])
@pytest.mark.parametrize("size", [1, 8, 120])
def test_sums_do_not_depend_on_cuts_and_buckets(size: int, buckets: int) -> None:
    """Each row's own result is what ``math.fsum`` gives of the rows that are there."""
    rng = random.Random(4)
    driver, rows = totals(buckets=buckets)
    there: dict[int, tuple[str, float]] = {}
    batch: list[dict[str, object]] = []
    expected: list[tuple[str, float]] = []
    for _ in range(120):
        number, city = rng.randrange(12), rng.choice(["Oslo", "Rome", "Lima"])
        amount = rng.gauss(0, 1) * 10.0 ** rng.randrange(-12, 12)
        before = there.get(number, (city, 0.0))[0]
        there[number] = (city, amount)
        groups = [before, city] if before != city else [city]
        for group in groups:
            left = [held for place, held in there.values() if place == group]
            expected.append((group, math.fsum(left) if left else math.nan))
        batch.append({"id": number, "city": city, "amount": amount})
        if len(batch) == size:
            driver.pipe(rows, batch, timestamp=0)
            batch = []
    found = [
        (change.key["city"], change.values["total"] if change.values else math.nan)
        for change in driver.read()
    ]
    for city in ("Oslo", "Rome", "Lima"):
        assert [total for place, total in found if place == city] == pytest.approx(
            [total for place, total in expected if place == city], rel=0, abs=0, nan_ok=True
        )
