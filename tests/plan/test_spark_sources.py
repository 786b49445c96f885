"""What Spark sources of a frame say of the order in which its logs are read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dovetail.plan import spark_sources
from dovetail.plan.spark_sources import SparkSource, is_limited


@pytest.mark.parametrize(
    ("options", "limited"),
    [
        ([{"subscribe": "a"}], False),
        ([{"assign": '{"a": [0, 1]}'}], False),
        ([{}], False),
        ([{"subscribe": "a", "maxoffsetspertrigger": "5"}], True),
        ([{"subscribe": "a,b"}], True),
        ([{"subscribepattern": "shop.*"}], True),
        ([{"assign": '{"a": [0], "b": [0]}'}], True),
        ([{"subscribe": "a"}, {"subscribe": "b"}], True),
    ],
)
def test_writers_of_several_topics_do_not_wait_for_each_other(
    monkeypatch: pytest.MonkeyPatch, options: list[dict[str, str]], limited: bool
) -> None:
    """So a newer row of one topic may come before an older row of another."""
    leaves = [SparkSource(f"relation {n}", "kafka", given) for n, given in enumerate(options)]
    monkeypatch.setattr(spark_sources, "spark_sources_of", lambda _: [*leaves, leaves[0]])
    frame: Any = SimpleNamespace(isStreaming=True)
    assert is_limited(frame) == limited
