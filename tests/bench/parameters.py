"""Parameters of tests, of which some are more of the same."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def first(usual: int, values: Iterable[Any]) -> list[Any]:
    """The values; those after the first ``usual`` ones are slow."""
    return [
        value if place < usual else pytest.param(value, marks=pytest.mark.slow)
        for place, value in enumerate(values)
    ]
