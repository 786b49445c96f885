"""A stage's buckets in a streaming query: their state lies in Spark's state store, which commits it
with the micro-batch; its exactly-once promise is the stage's.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.arrays.hashing import spark_preimage
from dovetail.engine.fragment import SLICE_BYTES, process
from dovetail.engine.idle import Idle
from dovetail.engine.pack import PACKED, beat, unpack_piece
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


def bucket_number(label: int, buckets: int) -> int:
    """The bucket of a label."""
    return _numbers(buckets)[label]


@cache
def _numbers(buckets: int) -> dict[int, int]:
    """The bucket of each label; once in a worker."""
    return {label: bucket for bucket, label in enumerate(bucket_labels(buckets))}


@dataclass(frozen=True)
class Work:
    """What a stage does. ``number``: its own; ``passes``: whether rows for others come by;
    ``timers``: whether a bucket that is to be looked after though nothing comes asks for it;
    ``idle``: what it does then; ``beats``: the stages to which it sends heartbeats, by their
    numbers and their inputs'.
    """

    fragment: Fragment
    emission: Emission
    number: int
    passes: bool
    timers: bool
    idle: Idle | None = None
    beats: tuple[tuple[int, int], ...] = ()

    def rows(
        self, label: int, rows: Iterator[pd.DataFrame], state: Any, handle: Any
    ) -> Iterator[pd.DataFrame]:
        """One micro-batch of one bucket, from its packed rows; those for others pass."""
        spool, now_us = Spool(task.directory("dovetail-spool"), SLICE_BYTES), 0
        for frame in rows:
            own = frame
            if self.passes:
                own, others = parted(frame, self.number)
                yield others
            for row in own.itertuples(index=False):
                spool.add(unpack_piece(row), row.payload)
                now_us = getattr(row, "now_us", 0)
        if spool.pieces:
            yield from self.batch(label, spool.pieces, now_us, state, handle)

    def batch(
        self, label: int, pieces: Sequence[Piece], now_us: int, state: Any, handle: Any
    ) -> Iterator[pd.DataFrame]:
        """One micro-batch of one bucket, known by its label, with Spark's ``state`` of it."""
        bucket, blobs = bucket_number(label, self.fragment.buckets), StoreBlobs(state)
        done = process(self.fragment, pieces, blobs, segment_cache(), now_us, bucket, self.idle)
        if self.timers and done.again_us is not None:
            _call_again(handle, now_us // 1000, done.again_us // 1000 + 1)
        yield from self.emission.frames(done, label, high_time_us(pieces))
        if done.time is not None:
            for reader, number in self.beats:
                heard = Piece.beat(number, done.time.stream_us, heard_us=done.time.heard_us)
                yield beat(reader, label, heard).to_pandas()


def _call_again(handle: Any, now_ms: int, at_ms: int) -> None:
    """Have a timer by then; one that comes earlier will do, for it asks again."""
    if not any(now_ms < timer <= at_ms for timer in handle.listTimers()):
        handle.registerTimer(at_ms)


def parted(frame: pd.DataFrame, number: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The rows of ``PACKED`` for a stage, and those for others."""
    own = frame["reader"] == number
    return frame[own], frame.loc[~own, PACKED.names]


@lru_cache(maxsize=64)
def work_of(pickled: bytes) -> Work:
    """A stage's work; its buckets in one worker share it."""
    work: Work = pickle.loads(pickled)  # noqa: S301 -- Spark's own, from the driver
    return work


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
