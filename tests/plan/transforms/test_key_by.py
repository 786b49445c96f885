"""Tables under another key."""

from __future__ import annotations

from typing import Any, Literal

import pyarrow as pa
import pytest

import dovetail as dt
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


SCHEMA = {"id": pa.int64(), "city": pa.string()}


@pytest.mark.parametrize(
    ("named", "values"),
    [
        ({"id": "id"}, ["city"]),
        ({"city": "city"}, ["id"]),
        ({"town": "city", "id": "id"}, []),
        ({"id": "id", "town": "city"}, []),
    ],
)
def test_a_key_may_be_named_as_its_column(named: dict[str, str], values: list[str]) -> None:
    cities = testing.table("cities", key="id", schema=SCHEMA)
    keyed = cities.key_by(**named)
    assert (keyed.plan.key.names, keyed.plan.values.names) == ([*named], values)
    row = {"id": 1, "city": "Oslo"}
    (change,) = testing.Driver(keyed).pipe(cities, row, timestamp=1)
    assert {**change.key, **change.values} == {
        **{name: row[column] for name, column in named.items()},
        **{name: row[name] for name in values},
    }


@pytest.mark.parametrize("named", [{"id": "city", "city": "id"}, {"town": "city", "ID": "id"}])
def test_a_key_with_the_name_of_another_key_column_is_refused(named: dict[str, str]) -> None:
    cities = testing.table("cities", key="id", schema=SCHEMA)
    new = next(name for name in named if name.lower() == "id")
    with pytest.raises(dt.errors.PlanError) as refused:
        cities.key_by(**named)
    assert str(refused.value) == (
        f"key_by of cities: {new}= has the name of a former key column. Give it another name here, "
        f"and {new!r} by rename() behind key_by()."
    )
