"""What a batch fails with, said first and in a few lines: the operator, the tables, the bucket and,
where it can be found, the key.

The key is found by trial: the operator is run again on half of the keys at a time, on blobs that
are thrown away, until one key is left on which it fails in the same way. So it costs about one more
batch, and only where one has failed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pyarrow as pa

from dovetail.arrays.timeline import Ints
from dovetail.columns import HASH
from dovetail.errors import BatchError, DovetailError, line_of
from dovetail.operators.counts import shown
from dovetail.operators.job import Done, Share
from dovetail.physical.fragment import Fragment
from dovetail.state.blobs import Blobs
from dovetail.state.segment import SegmentCache


@contextmanager
def blamed(operator: str, place: Callable[[Exception], str]) -> Iterator[None]:
    """What fails in the block as a library's error that says where; ``place``: the tables and what
    else is known, asked only where something fails.
    """
    try:
        yield
    except DovetailError as error:
        error.where = error.where or place(error)
        raise
    except Exception as error:
        failed = BatchError(
            operator,
            f"a batch fails with {line_of(error)}",
            "Its cause stands in the trace; the batch is run again when the query is started again",
        )
        failed.where = place(error)
        raise failed from error


def place_of(fragment: Fragment, bucket: int, share: Share | None = None) -> str:
    """Where a fragment has failed, as errors say it; ``share``: the rows of one key, if known."""
    read = [
        source.title
        for number, source in enumerate(fragment.sources)
        if share is None or share.batches[number].rows.num_rows
    ]
    parts = [", ".join(dict.fromkeys(read)), f"bucket {bucket} of {fragment.buckets}"]
    if share is not None:
        rows = next(batch.rows for batch in share.batches if batch.rows.num_rows)
        parts.insert(1, f"key {shown(rows, fragment.key_columns, fragment.key_names)}")
    return "; ".join(parts)


def culprit(share: Share, run: Callable[[Share], Done], error: Exception) -> Share | None:
    """The share with the rows of the one key on which it fails so; None where no key does alone, or
    where it fails without any rows.
    """

    def fails(part: Share) -> bool:
        try:
            deque(run(replace(part, blobs=_Trial(share.blobs), cache=SegmentCache())).chunks, 0)
        except Exception as again:
            return type(again) is type(error)
        return False

    keys = _keys(share)
    if len(keys) == 0 or fails(_part(share, keys[:0])):
        return None
    while len(keys) > 1:
        half = _part(share, keys[: len(keys) // 2])
        share = half if fails(half) else _part(share, keys[len(keys) // 2 :])
        keys = _keys(share)
    return share if fails(share) else None


def _keys(share: Share) -> Ints:
    """The hashes of the keys of a share's rows."""
    found: Ints = np.unique(np.concatenate([b.rows.column(HASH).to_numpy() for b in share.batches]))
    return found


def _part(share: Share, keys: Ints) -> Share:
    """The share with the rows of these keys alone."""
    batches = []
    for batch in share.batches:
        row = np.flatnonzero(np.isin(batch.rows.column(HASH).to_numpy(), keys))
        batches.append(batch.of(row, batch.rows.take(pa.array(row)).combine_chunks()))
    return replace(share, batches=batches)


class _Trial:
    """Blobs of which nothing is written."""

    def __init__(self, stored: Blobs) -> None:
        self._stored = stored
        self._own: dict[str, bytes | None] = {}

    def get(self, name: str) -> bytes | None:
        """The blob, or None where there is none."""
        return self._own[name] if name in self._own else self._stored.get(name)

    def put(self, name: str, blob: bytes) -> None:
        """Keep a blob for as long as the trial lasts."""
        self._own[name] = blob

    def delete(self, name: str) -> None:
        """Take a blob for gone as long as the trial lasts."""
        self._own[name] = None
