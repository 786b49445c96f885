"""The buckets of a stage in this process, with their state in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import pyarrow as pa

from dovetail.engine.batches.pieces import Piece
from dovetail.engine.fragment import Heartbeat, process_batch
from dovetail.engine.idle import IdleRules
from dovetail.operators.counts import Counts
from dovetail.physical.fragment import Fragment
from dovetail.state.blobs import MemoryBlobs
from dovetail.state.segment import SegmentCache

Pieces: TypeAlias = "list[tuple[int, Piece]]"
"""Some of one stage's input, each piece with its bucket."""


class LocalBuckets:
    """The state and the work of a fragment on all its buckets."""

    def __init__(self, fragment: Fragment) -> None:
        """Begin with empty state in all buckets of ``fragment``, in memory, and with no counts."""
        self.fragment = fragment
        self.blobs = [MemoryBlobs() for _ in range(fragment.buckets)]
        self.counts: Counts = Counts()
        self._cache = SegmentCache()

    def process(
        self, pieces: Pieces, now_us: int, idle: IdleRules | None
    ) -> Iterator[tuple[int, pa.Table | Heartbeat]]:
        """Run one micro-batch of all buckets in turn, as the iterator is read. Yield (bucket index,
        table of changes); the last item of a bucket is its heartbeat, if it sends one.

        ``pieces``: (bucket index, piece) pairs, the stage's input, those of a bucket in order.
        ``now_us``: the wall-clock time of the micro-batch in microseconds. ``idle``: the rules of
        heartbeats in a pause, None for none.

        State and counts advance. A bucket without pieces does nothing, unless ``idle`` or
        ``align=`` let it run on its own. Raises ``DataError`` for a row that an operator cannot
        take. State that is not this fragment's raises ``CheckpointError`` or ``StateError``, any
        other failure ``BatchError``.
        """
        for bucket, blobs in enumerate(self.blobs):
            bucket_pieces = [piece for target, piece in pieces if target == bucket]
            if bucket_pieces or idle is not None or self.fragment.align_us is not None:
                done = process_batch(
                    self.fragment, bucket_pieces, blobs, self._cache, now_us, bucket, idle
                )
                for table in done.changes:
                    yield bucket, table
                self.counts.update(done.counts)
                if done.time is not None:
                    yield bucket, done.time

    def restore(self, counts: Counts, blobs: Sequence[dict[str, bytes]]) -> None:
        """Set the counts and the state of all buckets to former ones, and forget cached segments.

        ``blobs``: one mapping per bucket, from a blob's name to its bytes. The mappings and
        ``counts`` are used, not copied.
        """
        self.blobs, self.counts = [MemoryBlobs(bucket_blobs) for bucket_blobs in blobs], counts
        self._cache = SegmentCache()
