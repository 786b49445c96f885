"""Packing: rows that a stage cannot use are counted, each once, and a left-out row is none."""

from __future__ import annotations

import pyarrow as pa
import pytest

from dovetail.engine.pack import Packer, pack_partition
from dovetail.physical.source import RowShape, SourceSpec

INT = pa.int64()
SCHEMA = pa.schema(
    {"_hash": INT, "_event_time": INT, "_deleted": pa.bool_(), "customer": INT, "id": INT}
)


@pytest.mark.parametrize("others", [False, True], ids=["alone", "beside unusable rows"])
def test_a_row_that_a_condition_leaves_out_needs_no_primary_key(others: bool) -> None:
    """A null in ``_deleted`` is a row that a condition leaves out, so its nulls are no mistake."""
    source = SourceSpec("orders", RowShape(SCHEMA, keys=1, primary=("id",)))
    rows = [(7, 1, None, 5, None)]
    rows += [(8, 2, False, 5, None), (9, 3, True, 5, None), (10, 4, False, 5, 6)] if others else []
    batch = pa.RecordBatch.from_pylist(
        [dict(zip(SCHEMA.names, row, strict=True)) for row in rows], schema=SCHEMA
    )
    packed = pa.Table.from_batches(
        pack_partition([Packer(0, 0, source, [0])], [batch], partition=0)
    ).to_pylist()
    kept = [pa.ipc.open_stream(row["payload"]).read_all() for row in packed]
    hashes = [table.column("_hash").to_pylist() for table in kept]
    # Of the others, the one with values and a null is counted; the deleted one has no values.
    assert hashes == [[7, 9, 10] if others else [7]]
    example = '[[1, "customer=5 at 1970-01-01T00:00:00.000002Z"]]'
    assert [row["counted"] for row in packed] == ["[[0, null]]" if not others else example]
