"""The session of Spark that cases need, if any."""

from __future__ import annotations

import os
from functools import cache

import small_session
from pyspark.sql import SparkSession


@cache
def session() -> SparkSession:
    """The session; what its processes say on the way goes nowhere."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        return _made()
    finally:
        os.dup2(kept, 2)


def _made() -> SparkSession:
    session = (
        small_session.builder()
        .appName("dovetail fuzz")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.python.authenticate.socketTimeout", "120s")  # a busy machine
        .config("spark.sql.files.openCostInBytes", "1")
        .config(
            "spark.sql.streaming.stateStore.providerClass",
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        )
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    return session
