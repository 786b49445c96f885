"""The Spark session that all tests share."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import small_session
from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One session for the process, with the jars that ``tools/jars/fetch`` has fetched."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    cache = Path(os.environ.get("DOVETAIL_CACHE", Path.home() / ".cache" / "dovetail"))
    kafka, delta = (sorted((cache / "jars" / group).glob("*.jar")) for group in ("kafka", "delta"))
    builder = (
        small_session.builder()
        .appName("dovetail tests")
        .config("spark.sql.shuffle.partitions", "2")
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
