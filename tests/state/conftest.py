"""All segments have local copies here, however small."""

from __future__ import annotations

import pytest

from dovetail.state import segment


@pytest.fixture(autouse=True)
def copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment, "_UNCOPIED_BYTES_MAX", 0)
