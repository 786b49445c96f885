"""Parameters of tests, of which some are more of the same."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def slow_after(usual: int, values: Iterable[Any]) -> list[Any]:
    """The values, or tuples of several parameters' values; those after the first ``usual`` ones are
    slow.
    """
    tuples = (value if isinstance(value, tuple) else (value,) for value in values)
    return [
        pytest.param(*value, marks=[] if place < usual else pytest.mark.slow)
        for place, value in enumerate(tuples)
    ]
