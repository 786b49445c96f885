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
    """Return the index of the partition that the Spark task computes, from 0; 0 outside of
    Spark.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    return 0 if context is None else context.partitionId()


def micro_batch() -> int:
    """Return the id of the streaming query's micro-batch, from 0, for the job of the task that
    calls this. Return 0 in a job of no streaming query, and outside of a task, so also in
    ``foreachBatch`` on the driver.
    """
    tagged = _job_tag()
    return int(_local_property("streaming.sql.batchId") or (tagged[1] if tagged else 0))


def run_id() -> str:
    """Return the id of this start of the streaming query, as text, for the job of the task that
    calls this. In another job it is the job's group, empty without a group. It is empty outside of
    a task, too. On Spark Connect, jobs of ``foreachBatch`` have a random name of the start.
    """
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
    """Return the path of the folder ``name`` in ``root``, the same object each time: it is asked
    for by each bucket. Nothing is created.
    """
    return Path(root) / name


def freezing_imports(function: BatchFunction) -> BatchFunction:
    """Return a function for ``mapInArrow`` that yields what ``function`` yields. When all of it is
    yielded, the task takes all present objects out of the garbage collector's sight
    (``freeze_imports``).
    """

    @wraps(function)
    def run(input_batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield what ``function`` yields for ``input_batches``, then call ``freeze_imports``."""
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
    the micro-batch's id, group 2 a random name of the query's start. None for a job without the
    tag, and outside of Spark.
    """
    return _TAG.search(_local_property("spark.job.tags") or "")


def _local_property(name: str) -> str | None:
    """Return the local property ``name`` of the task's job; None if it is not set, and outside of
    Spark.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    return None if context is None else context.getLocalProperty(name)
