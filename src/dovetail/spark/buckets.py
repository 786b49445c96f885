"""A stage's buckets in a streaming query: their state lies in Spark's state store, which commits it
with the micro-batch; its exactly-once promise is the stage's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from dovetail.arrays.hashing import spark_preimage
from dovetail.engine.fragment import SLICE_BYTES, process
from dovetail.engine.pack import unpack_piece
from dovetail.engine.pieces import Piece, high_time_us
from dovetail.engine.spool import Spool
from dovetail.physical.fragment import Fragment
from dovetail.spark import task
from dovetail.spark.emission import Emission
from dovetail.state.segment import SegmentCache

if TYPE_CHECKING:
    import pandas as pd


def bucket_labels(buckets: int) -> list[int]:
    """The number under which each bucket is shuffled and its state is kept: the one whose hash is
    the bucket's own number.

    So bucket b goes to partition ``b % partitions``, as evenly as can be for any number of
    partitions, and a bucket's state is found again whatever the session says of them.
    """
    return [spark_preimage(bucket) for bucket in range(buckets)]


@cache
def _number_of(buckets: int) -> dict[int, int]:
    """The bucket of each label; once in a worker."""
    return {label: bucket for bucket, label in enumerate(bucket_labels(buckets))}


class BucketProcessor(StatefulProcessor):
    """Runs a stage for each bucket of a partition; its one state variable holds the blobs."""

    def __init__(self, fragment: Fragment, emission: Emission, *, timers: bool) -> None:
        self._fragment = fragment
        self._emission = emission
        self._timers = timers

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state variable."""
        self._handle = handle
        self._blobs = StoreBlobs(
            handle.getMapState(
                "blobs",
                StructType([StructField("name", StringType())]),
                StructType([StructField("blob", BinaryType())]),
            )
        )

    def handleInputRows(  # noqa: N802
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: Any,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        """One micro-batch of one bucket."""
        spool, now_us = Spool(task.directory("dovetail-spool"), SLICE_BYTES), 0
        for frame in rows:
            for row in frame.itertuples(index=False):
                spool.add(unpack_piece(row), row.payload)
                now_us = 0 if self._fragment.align_us is None else row.now_us
        yield from self._run(key, spool.pieces, now_us)

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,
        timerValues: Any,  # noqa: N803
        expiredTimerInfo: Any,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        """Rows have waited for another source as long as they may."""
        yield from self._run(key, [], 1000 * timerValues.getCurrentProcessingTimeInMs())

    def _run(self, key: Any, pieces: Sequence[Piece], now_us: int) -> Iterator[pd.DataFrame]:
        bucket = _number_of(self._fragment.buckets)[key[0]]
        done = process(self._fragment, pieces, self._blobs, segment_cache(), now_us, bucket)
        if self._timers and done.waiting:
            assert self._fragment.align_us is not None
            self._handle.registerTimer((now_us + self._fragment.align_us) // 1000 + 1)
        yield from self._emission.frames(done, key[0], high_time_us(pieces))

    def close(self) -> None:
        """Nothing to release: what is open belongs to the worker process."""
        task.freeze_imports()


class StoreBlobs:
    """A bucket's blobs in Spark's state store."""

    def __init__(self, state: Any) -> None:
        self._state = state

    def get(self, name: str) -> bytes | None:
        """The blob, or None where there is none."""
        found = self._state.getValue((name,))
        return None if found is None else bytes(found[0])

    def put(self, name: str, blob: bytes) -> None:
        """Store or replace a blob."""
        self._state.updateValue((name,), (blob,))

    def delete(self, name: str) -> None:
        """Remove a blob."""
        self._state.removeKey((name,))


_CACHES: dict[Path, SegmentCache] = {}


def segment_cache() -> SegmentCache:
    """This worker process's open segments."""
    directory = task.directory("dovetail-segments")
    if directory not in _CACHES:
        _CACHES[directory] = SegmentCache(directory)
    return _CACHES[directory]
