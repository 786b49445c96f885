"""What the examples of docstrings find under their names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import small_session


@pytest.fixture(autouse=True)
def _names(request: pytest.FixtureRequest, doctest_namespace: dict[str, Any]) -> Iterator[None]:
    """The session of the tests as ``spark``, for examples that use it.

    Examples that write Delta tables are skipped in a session without Delta Lake.
    """
    example = getattr(request.node, "dtest", None)
    text = "" if example is None else "".join(one.source for one in example.examples)
    if "spark" in text:
        doctest_namespace["spark"] = small_session.session()
    if 'format("delta")' in text or "USING delta" in text:
        settings = small_session.RECORDING_CHANGES
        for _ in small_session.with_delta(doctest_namespace["spark"], settings):
            yield
    else:
        yield
