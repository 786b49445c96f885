"""The names that a user's columns may not have."""

from __future__ import annotations

import pytest

from dovetail.base.columns import is_reserved


@pytest.mark.parametrize("name", ["_k0", "_K0", "_Foreign_Key_1", "_k", "k0", "_k0x"])
def test_case_does_not_count(name: str) -> None:
    """Spark takes names that differ in case only as one name."""
    assert is_reserved(name) == (name in ("_k0", "_K0", "_Foreign_Key_1"))
