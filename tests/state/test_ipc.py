"""Tables as bytes, read back with some of their columns."""

from __future__ import annotations

import pyarrow as pa
import pytest

from dovetail.state.ipc import from_ipc, to_ipc

TABLE = pa.table({"a": [1, 2], "b": ["x", None], "c": [True, False]})


@pytest.mark.parametrize("without", [(), ("b",), ("a", "c"), ("a", "b", "c"), ("other",)])
def test_columns_are_left_out(without: tuple[str, ...]) -> None:
    kept = [name for name in TABLE.column_names if name not in without]
    read = from_ipc(to_ipc(TABLE), without)
    assert (read.column_names, len(read)) == (kept, 2)
    assert read.equals(TABLE.select(kept))
