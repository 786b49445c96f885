"""A Spark session for a few rows: what the tests and the processes they start share."""

from __future__ import annotations

from pyspark.sql import SparkSession


def builder() -> SparkSession.Builder:
    """Two cores; no plan is worth compiling."""
    return (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
    )
