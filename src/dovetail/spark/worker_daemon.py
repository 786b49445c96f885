"""Spark's daemon of Python workers, with the imports already made.

Each worker is forked warm, so its first task begins at once, and all workers share the memory of
their imports. Spark runs this module as ``spark.python.daemon.module``, before any file that is
sent to the workers is there. So dovetail must be installed for the Python that they run.
"""

from __future__ import annotations

import gc

import pandas as pd  # noqa: F401
import pyarrow.compute  # noqa: F401
import pyspark.sql.streaming.stateful_processor_api_client
import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import dovetail.operators.joins.delta_join
import dovetail.operators.joins.lookup
import dovetail.operators.registry
import dovetail.plan.types.aggregates
import dovetail.spark.execution.buckets
import dovetail.spark.query.start  # noqa: F401

if __name__ == "__main__":
    gc.freeze()
    manager()
