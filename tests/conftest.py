"""The Spark session that all tests share."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One session for the process, with the jars that ``tools/jars/fetch`` has fetched."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    cache = Path(os.environ.get("DOVETAIL_CACHE", Path.home() / ".cache" / "dovetail"))
    kafka, delta = (sorted((cache / "jars" / group).glob("*.jar")) for group in ("kafka", "delta"))
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("dovetail tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.sql.shuffle.partitions", "2")
        # No plan is worth compiling for so few rows.
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        .config(
            "spark.sql.streaming.stateStore.providerClass",
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        )
        .config("spark.jars", ",".join(str(jar) for jar in (*kafka, *delta)))
    )
    if delta:
        builder = builder.config(
            "spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension"
        ).config(
            "spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog"
        )
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
