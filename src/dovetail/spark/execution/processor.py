"""The processor of a stage with state that Spark gets.

It travels by value, its work as bytes. When a query starts, Spark starts a new Python process for
each such stage. That process only asks for the state variables, and so imports nothing of the
library.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark import cloudpickle
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from dovetail.spark.driver_workers import DRIVER_WORKER

if TYPE_CHECKING:
    import pandas as pd

    from dovetail.spark.execution.buckets import StageWork


class BucketProcessor(StatefulProcessor):
    """Runs a stage for each bucket of a partition; its one state variable holds the blobs."""

    def __init__(self, work: StageWork) -> None:
        """Pickle ``work``, the work of the stage, to travel as bytes."""
        self._work = cloudpickle.dumps(work)  # type: ignore[no-untyped-call]

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Set the attributes from ``state``, as pickle does. In a driver worker (``DRIVER_WORKER``
        is the main module), which only asks for the state variables, also discard the process's
        standard output.

        Spark's prints there would reach the user's console. A first line is printed before and
        cannot be stopped.
        """
        self.__dict__ = state
        main = getattr(sys.modules["__main__"], "__spec__", None)
        if main is not None and main.name == DRIVER_WORKER:
            with open(os.devnull, "wb") as nowhere:  # noqa: PTH123 -- imports nothing
                os.dup2(nowhere.fileno(), 1)

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state variable ``blobs``, a map from a blob's name to its bytes, and keep
        ``handle``. Spark calls it once per task.
        """
        name = StructType([StructField("name", StringType())])
        blob = StructType([StructField("blob", BinaryType())])
        self._handle, self._blobs = handle, handle.getMapState("blobs", name, blob)

    def handleInitialState(  # noqa: N802
        self,
        key: Any,
        initialState: pd.DataFrame,  # noqa: N803
        timerValues: Any,  # noqa: N803
    ) -> None:
        """Store some of the blobs with which the bucket ``key`` begins, in place of blobs of the
        same names. ``initialState``: a row per blob, with its ``name`` and its bytes (``blob``).
        ``timerValues`` is not used.
        """
        for name, blob in zip(initialState["name"], initialState["blob"], strict=True):
            self._blobs.updateValue((name,), (blob,))

    def handleInputRows(  # noqa: N802
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: Any,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        """Process one micro-batch of the bucket whose label is ``key[0]``. Yield the rows that the
        stage emits, in frames with the columns of its emission.

        ``rows``: the packed rows of the bucket, in columns of ``PACKED`` and perhaps ``now_us``.
        ``timerValues`` is not used. The bucket's blobs in the state store are changed, and a timer
        may be registered.
        """
        from dovetail.spark.execution import buckets

        work = buckets.unpickle_work(self._work)
        yield from work.rows(key[0], rows, self._blobs, self._handle)

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,
        timerValues: Any,  # noqa: N803
        expiredTimerInfo: Any,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        """Process the bucket whose label is ``key[0]`` without input, because its timer has
        expired. Yield the frames that it emits, which may be none. Its blobs are changed, and a
        timer may be registered.

        The wall-clock time is that of ``timerValues``; ``expiredTimerInfo`` is not used.
        """
        from dovetail.spark.execution import buckets

        now_us = 1000 * timerValues.getCurrentProcessingTimeInMs()
        work = buckets.unpickle_work(self._work)
        yield from work.expired_rows(key[0], now_us, self._blobs, self._handle)

    def close(self) -> None:
        """Freeze the imports, if ``dovetail.spark.task`` is imported, which is so once a bucket has
        run. Nothing is released: open files belong to the worker process. A driver worker calls
        this, too.
        """
        task = sys.modules.get("dovetail.spark.task")
        if task is not None:
            task.freeze_imports()


cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
