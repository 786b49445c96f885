"""What a worker knows of the Spark task that it runs, outside of Spark of none, and what it does at
its end.
"""

from __future__ import annotations

import gc
import re
import tempfile
from collections.abc import Callable, Iterator
from functools import cache, wraps
from pathlib import Path

import pyarrow as pa

from dovetail.sessions import BATCH_TAG

_TAG = re.compile(rf"{BATCH_TAG}(\d+)-(\w+)")

BatchFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""A function for ``mapInArrow``."""


def partition() -> int:
    """The number of the task's partition."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return 0 if context is None else context.partitionId()


def micro_batch() -> int:
    """The number of the streaming query's micro-batch."""
    tagged = _tagged()
    return int(_local_property("streaming.sql.batchId") or (tagged[1] if tagged else 0))


def run() -> str:
    """What names this run of the streaming query."""
    tagged = _tagged()
    return tagged[2] if tagged else _local_property("spark.jobGroup.id") or ""


def directory(name: str) -> Path:
    """A directory of this name among the application's temporary files on this machine."""
    from pyspark import SparkFiles

    return Path(SparkFiles.getRootDirectory() or tempfile.gettempdir()) / name


def mapping(function: BatchFunction) -> BatchFunction:
    """A decorator of functions for ``mapInArrow``: what their tasks do at their end."""

    @wraps(function)
    def batches(given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from function(given)
        freeze_imports()

    return batches


@cache
def freeze_imports() -> None:
    """At the end of this worker process's first task: take all objects that it has by now out of
    the garbage collector's sight.

    Spark's workers collect garbage after each task, and would go through every imported library
    each time.
    """
    gc.freeze()


def _tagged() -> re.Match[str] | None:
    """What a job that ``foreachBatch`` starts on Spark Connect knows of its micro-batch."""
    return _TAG.search(_local_property("spark.job.tags") or "")


def _local_property(name: str) -> str | None:
    from pyspark import TaskContext

    context = TaskContext.get()
    return None if context is None else context.getLocalProperty(name)
