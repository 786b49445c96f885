"""A Spark session for a few rows: what the tests and the processes they start share."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping

import pytest
from pyspark.sql import SparkSession

RECORDING_CHANGES = {
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.databricks.delta.properties.defaults.enableChangeDataFeed": "true",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
}
"""Settings for small Delta tables that record their changes."""


def builder() -> SparkSession.Builder:
    """Two cores; no plan is worth compiling, none is kept once it has run, and columns do not note
    the line that made them.

    With one compiler alone, Java's code cache is too small for Spark, and is swept without end.
    """
    java = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:+UseSerialGC"
    return (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.retainedJobs", "10")
        .config("spark.ui.retainedStages", "10")
        .config("spark.sql.ui.retainedExecutions", "10")
        .config("spark.driver.memory", "2g")
        .config("spark.python.sql.dataFrameDebugging.enabled", "false")
        .config("spark.driver.extraJavaOptions", java)
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
    )


def with_delta(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[SparkSession]:
    """The session with these settings; it must have been started with Delta Lake."""
    if "DeltaSparkSessionExtension" not in (spark.conf.get("spark.sql.extensions", "") or ""):
        missing = pytest.fail if os.environ.get("CI") and shutil.which("mvn") else pytest.skip
        missing("Spark runs without Delta Lake: tools/jars/fetch delta")
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield spark
    for name, old in before.items():
        spark.conf.unset(name) if old is None else spark.conf.set(name, old)
