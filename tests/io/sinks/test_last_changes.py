"""The last change of each key of a micro-batch, found by Arrow."""

from __future__ import annotations

import pyarrow as pa
import pytest

from dovetail.io.sinks.last_changes import last_rows


@pytest.mark.parametrize("key", ["k", "a.b", ".a", "[id]", "_row_max", "a b"])
def test_a_key_may_have_any_name(key: str) -> None:
    changes = pa.table(
        {
            key: [1, None, 1, None],
            "v": [5, 6, 7, 8],
            "_change": ["upsert", "upsert", "delete", "upsert"],
            "_position": [0, 3, 2, 1],
        }
    )
    found = sorted(last_rows(changes, [key]).to_pylist(), key=repr)
    assert found == [{key: 1, "v": 7, "_deleted": True}, {key: None, "v": 6, "_deleted": False}]
