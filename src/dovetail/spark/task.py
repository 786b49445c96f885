"""The Spark task that a worker runs, and the action at its end. Outside of Spark there is no
task.
"""

from __future__ import annotations

import gc
import re
import tempfile
from collections.abc import Callable, Iterator
from functools import cache, wraps
from pathlib import Path

import pyarrow as pa

from dovetail.platform.sessions import BATCH_TAG

MAPPED_BYTES_MAX = "DOVETAIL_MAPPED_BYTES_MAX"
"""The variable of a worker's environment with the most bytes of state that it keeps mapped."""
_TAG = re.compile(rf"{BATCH_TAG}(\d+)-(\w+)")

BatchFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""A function for ``mapInArrow``."""


def partition() -> int:
    """Return the number of the Spark task's partition, from 0; 0 outside of Spark."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return 0 if context is None else context.partitionId()


def micro_batch() -> int:
    """Return the number of the streaming query's micro-batch; 0 outside of one."""
    tagged = _job_tag()
    return int(_local_property("streaming.sql.batchId") or (tagged[1] if tagged else 0))


def run_id() -> str:
    """Return the identifier of this start of the streaming query; empty outside of one."""
    tagged = _job_tag()
    return tagged[2] if tagged else _local_property("spark.jobGroup.id") or ""


def temporary_directory(name: str) -> Path:
    """Return the path of the directory ``name`` among the application's temporary files, outside of
    Spark among those of the machine. The directory is not made here.
    """
    from pyspark import SparkFiles

    return _cached_path(SparkFiles.getRootDirectory() or tempfile.gettempdir(), name)


@cache
def _cached_path(root: str, name: str) -> Path:
    """Return a folder's path, the same object each time: it is asked for by each bucket."""
    return Path(root) / name


def freezing_imports(function: BatchFunction) -> BatchFunction:
    """Return a function for ``mapInArrow`` that does what ``function`` does. Its task freezes the
    imports at its end (``freeze_imports``).
    """

    @wraps(function)
    def run(input_batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield what ``function`` yields, then freeze the imports."""
        yield from function(input_batches)
        freeze_imports()

    return run


@cache
def freeze_imports() -> None:
    """Take all present objects out of the garbage collector's sight, once in a worker process.

    Spark's workers collect garbage after each task, and would go through every imported library
    each time.
    """
    gc.freeze()


def _job_tag() -> re.Match[str] | None:
    """Return the match of the tag that jobs of ``foreachBatch`` have on Spark Connect. Group 1 is
    the micro-batch's number, group 2 the run of the query. None for a job without the tag, and
    outside of Spark.
    """
    return _TAG.search(_local_property("spark.job.tags") or "")


def _local_property(name: str) -> str | None:
    """Return the local property ``name`` of the task's job; None if it is not set, and outside of
    Spark.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    return None if context is None else context.getLocalProperty(name)
