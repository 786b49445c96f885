"""The datasets that the inputs of a query read."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

import dovetail as dt
from dovetail.base.datasets import Dataset
from dovetail.plan.spark_sources import SparkSource
from dovetail.spark.lineage import datasets
from dovetail.spark.lineage.datasets import datasets_of
from dovetail.spark.query.results import Outcome


@pytest.mark.parametrize(
    ("options", "topics"),
    [
        ({"subscribe": "orders"}, ["orders"]),
        ({"subscribe": "orders, payments,"}, ["orders", "payments"]),
        ({"subscribepattern": "orders-[a-z]{1,3}"}, ["orders-[a-z]{1,3}"]),
        ({"assign": '{"orders": [0, 1], "payments": [2]}'}, ["orders", "payments"]),
    ],
)
def test_the_topics_of_an_input(
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, str],
    topics: list[str],
) -> None:
    leaf = SparkSource("relation", "kafka", {"kafka.bootstrap.servers": "a:1,b:1", **options})
    monkeypatch.setattr(datasets, "spark_sources_of", lambda _: [leaf])
    frame = spark.readStream.format("rate").load()
    table = dt.Table.from_changelog(frame, key="value", timestamp="timestamp", name="orders")
    (read,) = datasets_of([Outcome(table.plan, ())], "shop").inputs
    assert read.datasets == tuple(Dataset("kafka://a:1", name) for name in topics)
