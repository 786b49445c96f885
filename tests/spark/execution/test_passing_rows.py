"""Rows that pass through a stage on their way to another one."""

from __future__ import annotations

import math

import pandas as pd
import pyarrow as pa

from dovetail.engine.pack import PACKED, PackedRow
from dovetail.spark.execution.buckets import split_passing


def test_a_null_text_passes_as_null_where_pandas_has_nan() -> None:
    """As pandas 3 reads a column of text."""
    frame = pd.DataFrame(
        {
            "bucket": [0, 1, 2],
            "reader": [1, 2, 2],
            "source": [0, 0, 1],
            "partition": [0, 0, 0],
            "number": [0, 0, 0],
            "facts": [b"a", b"b", b"c"],
            "counted": pd.Series([math.nan, math.nan, "[1]"], dtype=object),
            "payload": [b"x", None, b"z"],
        }
    )
    for_stage, others = split_passing(frame, [1])
    assert list(for_stage) == [PackedRow(0, 1, 0, 0, 0, b"a", b"x")]
    passing = [(1, 2, 0, 0, 0, b"b", None, None), (2, 2, 1, 0, 0, b"c", "[1]", b"z")]
    assert others.to_pylist() == [dict(zip(PACKED.names, row, strict=True)) for row in passing]
    assert others.schema.equals(PACKED)
    assert isinstance(others, pa.Table)
