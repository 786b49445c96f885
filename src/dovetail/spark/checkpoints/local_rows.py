"""The parts of a store that are read for some keys and columns, and its rows from a local disk."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path as LocalPath
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dovetail.arrays.bucket_labels import bucket_number
from dovetail.arrays.grouping import bucket_of
from dovetail.arrays.spark_hash import spark_hash
from dovetail.base.columns import POSITION
from dovetail.engine import store_contents
from dovetail.errors import ConfigurationError
from dovetail.physical.specs.law import Store
from dovetail.spark.checkpoints.lookup_keys import key_columns
from dovetail.spark.checkpoints.stores import CheckpointStores, StageStore, runs_of
from dovetail.state.blobs import MemoryBlobs
from dovetail.state.runs import Runs
from dovetail.state.segment import Segment, SegmentCache, decode


class BucketRuns(NamedTuple):
    """The parts of a bucket that are read for a store."""

    runs: Runs
    """The store's own sorted runs."""
    beside: Mapping[str, Runs]
    """The runs of the stores that are needed to read this one (``Store.companion_stores``), by
    name: ids of rows that no longer count, and parts of long lists.
    """
    horizon_us: int
    """The time before which rows are of no use, in microseconds (``store_contents.horizon_us``)."""

    @property
    def segments(self) -> list[Segment]:
        """The segments of the bucket that are read: those in ``runs``, the oldest run first, then
        those in ``beside``, store by store.
        """
        return [s for runs in (self.runs, *self.beside.values()) for s in runs.segments]


class Selection(NamedTuple):
    """The parts of a store that are read for some keys and columns."""

    store: Store
    """The store, with the columns that are read."""
    asked: Sequence[pa.Array] | None
    """The key columns, one row per key; None for all keys."""
    buckets: Mapping[int, BucketRuns]
    """The parts of each bucket, by label. One that cannot hold the keys has no runs of the store
    itself."""
    unread: Collection[str]
    """The stored columns that are left out."""


def local_rows(
    stored: CheckpointStores,
    stage_store: StageStore,
    *,
    keys: Sequence[Any] | None = None,
    columns: Sequence[str] | None = None,
) -> Iterator[pa.Table]:
    """Yield the rows of a store as Arrow tables, read in this process without Spark. A bucket may
    yield several tables, also empty ones. A bucket without segments of the store yields none. Rows
    are in no order of keys. They are the last row of each key, all versions with deletes, the kept
    records, or the waiting records, by ``Store.kind``.

    Columns are those of ``store_contents.schema_of``, in the store's order. ``columns``: the
    columns that are read, besides those of the key and the time; None for all. ``keys``: only the
    rows of these keys (values, tuples or mappings), each once. None stands for all, an empty list
    for no rows.

    ``stored.batch`` must not be None, else ``AssertionError``. Raises ``ConfigurationError`` for
    unknown columns, and ``PlanError`` for a value that is no key. Raises ``StateError`` for
    segments of another version. Errors of files are those of ``StateFiles.segments``. Nothing is
    read or raised before the first table is taken.
    """
    store, asked, buckets, unread = select_parts(stored, stage_store, keys, columns)
    assert stored.batch is not None
    for label, bucket in buckets.items():
        segments = {segment.id: segment for segment in bucket.segments}
        if not segments:
            continue
        labels = dict.fromkeys(segments, label)
        with tempfile.TemporaryDirectory(prefix="dovetail-read-") as directory:
            cache = SegmentCache(LocalPath(directory))
            for name, blob in stored.files.segments(
                stored.caller, stage_store.operator, stored.batch, stored.buckets, labels
            ):
                cache.add(segments[name], decode(blob, unread))
            for table in store_contents.read_rows(store, *bucket, MemoryBlobs(), cache):
                yield table if asked is None else _rows_with_keys(table, store, asked)


def select_parts(
    stored: CheckpointStores,
    stage_store: StageStore,
    keys: Sequence[Any] | None,
    columns: Sequence[str] | None,
) -> Selection:
    """Return the parts of a store that must be read for these keys and columns, without reading
    them: segments of sorted runs, by bucket. Segments whose range of key hashes has none of the
    keys are left out, but each bucket with state is in the result. If rows are not ordered by the
    hash of their key (``Store.hashed``), or wait for a time, all segments are taken.

    The store in the result has only the columns ``columns``, its key and its time. A store of
    aggregates' accumulators keeps all. ``keys``: values, tuples or mappings; ``columns``: names;
    None for all of either. Raises ``ConfigurationError`` for unknown columns, ``PlanError`` for a
    value that is no key.
    """
    store = stage_store.store
    if columns is not None:
        column_names = store_contents.schema_of(store).names
        for name in columns:
            if name not in column_names:
                raise ConfigurationError(
                    stored.caller,
                    f"{store.of or stage_store.name} has no column {name!r}",
                    f"It has {', '.join(column_names)}",
                )
        store = store.with_columns(columns)
    asked = None if keys is None else key_columns(stored.caller, store, keys)
    # Records that wait lie by the time at which they are due.
    by_hash = store.hashed and store.kind != "queue"
    hashes = spark_hash(asked) if asked is not None and by_hash else None
    buckets = {}
    for label, manifest in stage_store.buckets.items():
        runs = stage_store.runs(label)
        if hashes is not None:
            bucket_part = bucket_of(hashes, manifest.buckets) == bucket_number(
                label, manifest.buckets
            )
            runs = runs.with_segments_around(np.sort(hashes[bucket_part]).tolist())
        buckets[label] = _parts_of_bucket(stage_store, label, runs)
    unread = {*stage_store.store.stored_columns}.difference(store.stored_columns)
    return Selection(store, asked, buckets, unread)


def _rows_with_keys(table: pa.Table, store: Store, asked: Sequence[pa.Array]) -> pa.Table:
    """Return the rows of ``table`` with one of the keys ``asked``, each once, in the order of
    ``table``. Rows with a null in the key are left out. ``asked``: the key columns of ``store`` as
    ``key_columns`` makes them, one row per key, in any order, perhaps with duplicates.
    """
    names = [field.name for field in store.own_key]
    if len(names) == 1:  # a join imports much
        return table.filter(pc.is_in(table.column(names[0]), asked[0]))
    keys = pa.table(list(asked), names=names)
    at = pa.array(range(len(table)), pa.int64())
    placed = table.select(names).append_column(POSITION, at)
    rows_asked = placed.join(keys, names, join_type="left semi").column(POSITION)
    return table.take(rows_asked.combine_chunks().sort())


def _parts_of_bucket(stage_store: StageStore, label: int, runs: Runs) -> BucketRuns:
    """Return the parts that are read of a store in the bucket ``label``. ``runs``: the store's own
    runs that are read there. Added are the runs of the stores that are needed beside it, and the
    time before which the bucket's rows are of no use. The bucket must have state.
    """
    manifest = stage_store.buckets[label]
    beside = {name: runs_of(manifest, name) for name in stage_store.store.companion_stores}
    return BucketRuns(runs, beside, store_contents.horizon_us(stage_store.store, manifest))
