"""A fragment on one bucket: errors name their place, whenever they come."""

from __future__ import annotations

from itertools import count

import pyarrow as pa
import pytest
from bench.forced import forced

import dovetail as dt
from dovetail import testing
from dovetail.arrays.timeline import Ints
from dovetail.engine.batches.row_store import Stock


@pytest.mark.parametrize("slice_index", [0, 1])
def test_an_unreadable_slice_is_an_error_that_names_its_place(
    slice_index: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = testing.table("orders", key="id", schema={"id": pa.int64()})
    payments = testing.table("payments", key="id", schema={"id": pa.int64()})
    driver = testing.Driver(orders.join(payments, how="left"))
    fetch, calls = Stock.fetch, count()

    def fail_once(stock: Stock, row: Ints, schema: pa.Schema) -> pa.Table:
        if len(row) and next(calls) == slice_index:
            raise OSError("the disk is gone")
        return fetch(stock, row, schema)

    monkeypatch.setattr(Stock, "fetch", fail_once)
    with forced("own", {"slice_bytes": 1}), pytest.raises(dt.errors.BatchError) as raised:
        driver.pipe(orders, [{"id": 1}, {"id": 2}], timestamp=1)
    assert "a batch fails with OSError: the disk is gone" in str(raised.value)
    assert raised.value.where == "table orders, table payments; bucket 0 of 1"
