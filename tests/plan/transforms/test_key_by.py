"""Tables under another key."""

from __future__ import annotations

from typing import Any, Literal

import pyarrow as pa
import pytest

from dovetail import testing


@pytest.mark.parametrize("duplicates", ["last", "fail"])
@pytest.mark.parametrize("emit", ["change", "batch"])
def test_all_columns_may_be_the_key(
    duplicates: Literal["last", "fail"], emit: Literal["change", "batch"]
) -> None:
    cities = testing.table("cities", key="id", schema={"id": pa.int64(), "city": pa.string()})
    pairs = cities.key_by("city", number="id", duplicates=duplicates)
    assert pairs.plan.values.names == []
    driver = testing.Driver(pairs, emit=emit)
    feed: list[tuple[dict[str, Any], bool]] = [
        ({"id": 1, "city": "Oslo"}, False),
        ({"id": 2, "city": "Oslo"}, False),
        ({"id": 1, "city": "Rome"}, False),
        ({"id": 2}, True),
    ]
    for time, (row, deleted) in enumerate(feed):
        driver.pipe(cities, row, timestamp=time, deleted=deleted)
    assert [(*change.key.values(), change.change) for change in driver.read()] == [
        ("Oslo", 1, "upsert"),
        ("Oslo", 2, "upsert"),
        ("Oslo", 1, "delete"),
        ("Rome", 1, "upsert"),
        ("Oslo", 2, "delete"),
    ]
