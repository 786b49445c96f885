"""Elements of a table's arrays as rows: nulls beside values that sort like them."""

from __future__ import annotations

from datetime import date
from typing import Any

import pyarrow as pa
import pytest

from dovetail import testing


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (pa.int64(), 0),
        (pa.bool_(), False),
        (pa.date32(), date(1970, 1, 1)),
        (pa.float64(), 0.0),
        (pa.string(), "a"),
        (pa.list_(pa.int64()), [1]),
    ],
    ids=str,
)
def test_a_null_is_no_element_and_hides_none(type_: pa.DataType, value: Any) -> None:
    schema = {"id": pa.int64(), "tags": pa.list_(type_)}
    table = testing.table("t", key="id", schema=schema)
    driver = testing.Driver(table.explode("tags"))
    changes = []
    for time, tags in enumerate([[None, value], [value, None, value], [None]]):
        changes += driver.pipe(table, {"id": 1, "tags": tags}, timestamp=time)
    assert [(change.change, change.timestamp_us) for change in changes] == [
        *(("upsert", 0), ("upsert", 1), ("delete", 2)),
    ]
    assert all(change.key == {"id": 1, "tags": value} for change in changes)
    assert driver.counts == {"t.null_element": 3, "t.repeated": 1}
