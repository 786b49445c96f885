"""A session for small Delta tables that record their changes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession
from small_session import with_delta

SETTINGS = {
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.databricks.delta.properties.defaults.enableChangeDataFeed": "true",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
}


@pytest.fixture(scope="module")
def delta_spark(spark: SparkSession) -> Iterator[SparkSession]:
    """The session, which must have been started with Delta Lake."""
    yield from with_delta(spark, SETTINGS)
