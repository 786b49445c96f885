"""The error of a failed batch: it names the operator, the tables, the bucket and perhaps the key.

The key is found by trial. The operator runs again on half of the keys at a time, until one key is
left on which it fails in the same way. Trials write to blobs that are thrown away. They cost about
one more batch, and only after a failure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pyarrow as pa

from dovetail.arrays.timeline import Ints
from dovetail.base.columns import HASH
from dovetail.errors import BatchError, DovetailError, line_of
from dovetail.operators.counts import first_row_as_text
from dovetail.operators.job import OperatorOutcome, Share
from dovetail.physical.fragment import Fragment
from dovetail.state.blobs import Blobs
from dovetail.state.segment import SegmentCache


@contextmanager
def locate_errors(operator: str, describe_place: Callable[[Exception], str]) -> Iterator[None]:
    """Return a context manager that raises any ``Exception`` of its block as a ``DovetailError``
    with a text in ``where``, the place of the failure.

    A ``DovetailError`` stays and gets the text, unless it has one. Any other becomes the cause of a
    ``BatchError`` of ``operator``. ``describe_place``: returns the text for an exception; it is
    called only on failure.
    """
    try:
        yield
    except DovetailError as error:
        error.where = error.where or describe_place(error)
        raise
    except Exception as error:
        failed = BatchError(
            operator,
            f"a batch fails with {line_of(error)}",
            "Its cause stands in the trace; the batch is run again when the query is started again",
        )
        failed.where = describe_place(error)
        raise failed from error


def place_of_failure(fragment: Fragment, bucket: int, share: Share | None = None) -> str:
    """Return a text that names the tables, the key if it is known, and the bucket of a failure in
    ``fragment``, with semicolons between.

    ``bucket``: the index of the bucket. ``share``: the rows of the one key on which the fragment
    fails, at least one; only tables with rows are named then. None if the key is not known; then
    all tables are named.
    """
    read = [
        source.title
        for source_index, source in enumerate(fragment.sources)
        if share is None or share.batches[source_index].rows.num_rows
    ]
    parts = [", ".join(dict.fromkeys(read)), f"bucket {bucket} of {fragment.buckets}"]
    if share is not None:
        rows = next(batch.rows for batch in share.batches if batch.rows.num_rows)
        parts.insert(1, f"key {first_row_as_text(rows, fragment.key_columns, fragment.key_names)}")
    return "; ".join(parts)


def failing_key(
    share: Share, run: Callable[[Share], OperatorOutcome], error: Exception
) -> Share | None:
    """Return the share of one key, by its hash, on which ``run`` fails with exactly the type of
    ``error``. It is found by halving the keys of ``share``.

    Return None if no single key fails so, or if the share fails without any rows. Trials write to
    memory only, and their own errors do not come out. ``run`` is called about once for each
    halving, and its ``chunks`` are read to the end.
    """

    def fails_alike(part: Share) -> bool:
        """Return True if ``run`` fails on ``part`` with exactly the type of ``error``, perhaps only
        as the chunks are read.
        """
        try:
            deque(
                run(replace(part, blobs=_TrialBlobs(share.blobs), cache=SegmentCache())).chunks, 0
            )
        except Exception as again:
            return type(again) is type(error)
        return False

    keys = _key_hashes(share)
    if len(keys) == 0 or fails_alike(_rows_of_keys(share, keys[:0])):
        return None
    while len(keys) > 1:
        half = _rows_of_keys(share, keys[: len(keys) // 2])
        share = half if fails_alike(half) else _rows_of_keys(share, keys[len(keys) // 2 :])
        keys = _key_hashes(share)
    return share if fails_alike(share) else None


def _key_hashes(share: Share) -> Ints:
    """Return the distinct hashes of the keys of a share's rows, ascending: int64[keys]."""
    hashes: Ints = np.unique(
        np.concatenate([b.rows.column(HASH).to_numpy() for b in share.batches])
    )
    return hashes


def _rows_of_keys(share: Share, keys: Ints) -> Share:
    """Return ``share`` with only the rows whose key hash is among ``keys``, in their order; sources
    may then be without rows. ``keys``: int64, hashes in any order.
    """
    batches = []
    for batch in share.batches:
        row = np.flatnonzero(np.isin(batch.rows.column(HASH).to_numpy(), keys))
        batches.append(batch.take(row, batch.rows.take(pa.array(row)).combine_chunks()))
    return replace(share, batches=batches)


class _TrialBlobs:
    """Blobs that read from others and write to memory only."""

    def __init__(self, stored: Blobs) -> None:
        """Begin a trial on ``stored``: reads fall back to it, writes never reach it."""
        self._stored = stored
        self._own: dict[str, bytes | None] = {}

    def get(self, name: str) -> bytes | None:
        """Return the blob named ``name`` as the trial has left it, None if it is missing or
        deleted.
        """
        return self._own[name] if name in self._own else self._stored.get(name)

    def put(self, name: str, blob: bytes) -> None:
        """Keep ``blob`` under ``name`` in memory for this trial alone, in place of any former
        one.
        """
        self._own[name] = blob

    def delete(self, name: str) -> None:
        """Treat the blob named ``name`` as deleted, for this trial alone. It need not exist."""
        self._own[name] = None
