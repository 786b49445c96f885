"""Spark sources of a frame: the order in which its logs are read, and state of Spark's own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import dovetail as dt
from dovetail.plan import spark_sources
from dovetail.plan.spark_sources import SparkSource, is_limited, refuse_frames_with_state


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


STEPS: dict[str, tuple[Callable[[DataFrame, DataFrame], DataFrame], str | None]] = {
    "columns": (lambda live, _: live.withColumn("b", F.lit(1)).where("a > 1"), None),
    "a union": (lambda live, _: live.union(live), None),
    "a static side": (lambda live, static: live.join(static.distinct(), "a"), None),
    "two streams": (lambda live, _: live.join(live.select("a"), "a"), "Join"),
    "duplicates": (lambda live, _: live.dropDuplicates(["a"]), "Deduplicate"),
    "distinct rows": (lambda live, _: live.distinct(), "Deduplicate"),
    "duplicates within a watermark": (
        lambda live, _: live.withWatermark("at", "1 hour").dropDuplicatesWithinWatermark(["a"]),
        "DeduplicateWithinWatermark",
    ),
    "groups": (lambda live, _: live.groupBy("a").count().select("a"), "Aggregate"),
    "a limit": (lambda live, _: live.limit(3), "GlobalLimit"),
    "a function": (
        lambda live, _: live.groupBy("a").applyInPandasWithState(
            lambda key, frames, state: frames, "a long", "n long", "append", "NoTimeout"
        ),
        "FlatMapGroupsInPandasWithState",
    ),
}


@pytest.mark.parametrize("case", STEPS)
def test_steps_of_a_frame_with_state_of_sparks_own(spark: SparkSession, case: str) -> None:
    make, step = STEPS[case]
    live = spark.readStream.format("rate").load().selectExpr("value AS a", "timestamp AS at")
    frame = make(live, spark.range(1).select(F.col("id").alias("a")))
    table = dt.Table.from_changelog(
        frame, key="a", timestamp=F.timestamp_micros("a"), name="orders"
    )
    with nullcontext() if step is None else pytest.raises(dt.errors.PlanError) as refused:
        refuse_frames_with_state("run", table.plan.origins, "as said")
    if refused is not None:
        assert str(refused.value) == (
            f"run: table orders is read through a step with state of Spark's own ({step}), as "
            "said. Do it with dovetail, as with Stream.deduplicate, or in a query of its own."
        )
