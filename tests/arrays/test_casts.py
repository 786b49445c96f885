"""Rows in the types of a schema."""

from __future__ import annotations

import pyarrow as pa
import pytest

from dovetail.arrays.casts import cast_rows

VARIANT = pa.struct(
    [
        pa.field("value", pa.binary(), nullable=False),
        pa.field("metadata", pa.binary(), nullable=False, metadata={"variant": "true"}),
    ]
)
"""The form in which Spark sends a variant."""


@pytest.mark.parametrize("kind", [pa.Table, pa.RecordBatch])
def test_a_null_of_a_variant_is_cast_with_its_row(
    kind: type[pa.Table | pa.RecordBatch],
) -> None:
    """Each field of the null is null itself, as in what Spark sends, and in what ``take`` makes."""
    values = [{"value": b"1", "metadata": b""}, None]
    columns = [pa.array([1, 2], pa.int32()), pa.array(values, VARIANT).take(pa.array([0, None]))]
    rows = kind.from_arrays(columns, names=["id", "any"])
    schema = pa.schema([("id", pa.int64()), ("any", VARIANT)])
    with pytest.raises(pa.ArrowInvalid, match="nulls in input"):
        rows.cast(schema)
    cast = cast_rows(rows, schema)
    assert type(cast) is kind
    assert cast.schema == schema
    assert cast.to_pylist() == [{"id": 1, "any": values[0]}, {"id": 2, "any": None}]
