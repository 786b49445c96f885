"""What the examples of docstrings find under their names."""

from __future__ import annotations

from typing import Any

import pytest
import small_session


@pytest.fixture(autouse=True)
def _names(request: pytest.FixtureRequest, doctest_namespace: dict[str, Any]) -> None:
    """The session of the tests as ``spark``, for examples that use it."""
    example = getattr(request.node, "dtest", None)
    if example is not None and "spark" in example.docstring:
        doctest_namespace["spark"] = small_session.session()
