"""A session for small Delta tables."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession
from small_session import SMALL_TABLES, with_delta


@pytest.fixture(scope="module")
def delta_spark(spark: SparkSession) -> Iterator[SparkSession]:
    """The session, which must have been started with Delta Lake."""
    yield from with_delta(spark, SMALL_TABLES)
