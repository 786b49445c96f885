"""The rows of a checkpoint's stores: as frames, where one task reads each bucket, or in this
process, from a local disk.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from functools import reduce
from pathlib import Path as LocalPath
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from dovetail.arrays.grouping import bucket_of
from dovetail.arrays.hashing import spark_hash
from dovetail.base.columns import CHANGE, POSITION, TIMESTAMP, UPSERT, key_name, quoted
from dovetail.engine import store_contents
from dovetail.errors import ConfigurationError
from dovetail.physical.specs.law import Store
from dovetail.plan.types.arrow import spark_schema
from dovetail.spark.checkpoints.lookup_keys import columns_of
from dovetail.spark.checkpoints.state_files import MANIFESTS
from dovetail.spark.checkpoints.stores import CheckpointStores, Kept, runs_of
from dovetail.spark.execution.buckets import bucket_number
from dovetail.spark.task import BatchFunction, mapping
from dovetail.state.blobs import MemoryBlobs
from dovetail.state.runs import Runs
from dovetail.state.segment import Segment, SegmentCache, decode

_NAMES_MAX = 10_000


class _Bucket(NamedTuple):
    """The parts of a bucket that are read for a store."""

    runs: Runs
    """The store's own sorted runs."""
    beside: Mapping[str, Runs]
    """The runs of the stores that are read beside it, by name."""
    horizon_us: int
    """The begin of its history."""

    @property
    def segments(self) -> list[Segment]:
        """All segments that are read."""
        return [s for runs in (self.runs, *self.beside.values()) for s in runs.segments]


class _Selection(NamedTuple):
    """The parts of a store that are read for some keys and columns."""

    store: Store
    """The store, with the columns that are read."""
    asked: Sequence[pa.Array] | None
    """The key columns, one row per key; None for all keys."""
    buckets: Mapping[int, _Bucket]
    """The parts of each bucket, by label."""
    unread: Collection[str]
    """The stored columns that are left out."""


def rows(
    stored: CheckpointStores,
    stage_store: Kept,
    *,
    keys: Sequence[Any] | None = None,
    columns: Sequence[str] | None = None,
) -> DataFrame:
    """Return the rows of a store as a frame. Its columns are those of ``store_contents.schema_of``.

    ``columns``: at least these are read; None for all. ``keys``: only the rows of these keys; None
    for all. Raises ``ConfigurationError`` for unknown columns.
    """
    selection = _selected(stored, stage_store, keys, columns)
    store, buckets = selection.store, selection.buckets
    names = [segment.id for bucket_part in buckets.values() for segment in bucket_part.segments]
    blobs = stored.blobs(stage_store.operator)
    blobs = blobs.where(
        F.col("name").isin(names) if len(names) <= _NAMES_MAX else f"NOT ({MANIFESTS})"
    )
    schema = spark_schema(store_contents.schema_of(store))
    frame = blobs.mapInArrow(_reading(store, buckets, selection.unread), schema)
    return frame if selection.asked is None else _of_keys(frame, store, selection.asked)


def local_rows(
    stored: CheckpointStores,
    stage_store: Kept,
    *,
    keys: Sequence[Any] | None = None,
    columns: Sequence[str] | None = None,
) -> Iterator[pa.Table]:
    """Yield the rows of a store in this process, some at a time, as ``rows`` has them."""
    store, asked, buckets, unread = _selected(stored, stage_store, keys, columns)
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
            for table in store_contents.rows(store, *bucket, MemoryBlobs(), cache):
                yield table if asked is None else _of_keys_here(table, store, asked)


def _selected(
    stored: CheckpointStores,
    stage_store: Kept,
    keys: Sequence[Any] | None,
    columns: Sequence[str] | None,
) -> _Selection:
    """Return what ``rows`` reads."""
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
        store = store.only(columns)
    asked = None if keys is None else columns_of(stored.caller, store, keys)
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
            runs = runs.holding(np.sort(hashes[bucket_part]).tolist())
        buckets[label] = _bucket(stage_store, label, runs)
    unread = {*stage_store.store.stored}.difference(store.stored)
    return _Selection(store, asked, buckets, unread)


def _of_keys_here(table: pa.Table, store: Store, asked: Sequence[pa.Array]) -> pa.Table:
    """Return the rows of ``table`` with one of the keys ``asked``."""
    names = [field.name for field in store.own_key]
    keys = pa.table(list(asked), names=names)
    at = pa.array(range(len(table)), pa.int64())
    placed = table.select(names).append_column(POSITION, at)
    rows_asked = placed.join(keys, names, join_type="left semi").column(POSITION)
    return table.take(rows_asked.combine_chunks().sort())


def _bucket(stage_store: Kept, label: int, runs: Runs) -> _Bucket:
    """Return the parts of a bucket that are read for these runs of a store."""
    manifest = stage_store.buckets[label]
    beside = {name: runs_of(manifest, name) for name in stage_store.store.beside}
    return _Bucket(runs, beside, store_contents.horizon_us(stage_store.store, manifest))


def _of_keys(frame: DataFrame, store: Store, asked: Sequence[pa.Array]) -> DataFrame:
    """Return the rows of ``frame`` with one of the keys ``asked``, each once. ``asked``: the key
    columns, one row per key.
    """
    names = [key_name(index) for index in range(len(asked))]
    keys = frame.sparkSession.createDataFrame(pa.table(list(asked), names=names))
    same = (
        F.col(quoted(field.name)) == F.col(name)
        for field, name in zip(store.own_key, names, strict=True)
    )
    return frame.join(F.broadcast(keys), reduce(Column.__and__, same), "left_semi")


def _reading(
    store: Store, buckets: Mapping[int, _Bucket], unread: Collection[str]
) -> BatchFunction:
    """Return the ``mapInArrow`` function from the segments of buckets to a store's rows.

    Segments go to disk as they come, without the columns ``unread``, and are merged from there.
    """

    @mapping
    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        segments_by_bucket = {
            label: {segment.id: segment for segment in bucket.segments}
            for label, bucket in buckets.items()
        }
        with tempfile.TemporaryDirectory(prefix="dovetail-read-") as directory:
            cache, present = SegmentCache(LocalPath(directory)), dict[int, None]()
            for batch in batches:
                for label, name, blob in zip(*map(pa.Array.to_pylist, batch.columns), strict=True):
                    segment = segments_by_bucket[label].get(name)
                    if segment is not None:
                        present[label] = None
                        cache.add(segment, decode(blob, unread))
            for label in present:
                runs, beside, horizon_us = buckets[label]
                none = MemoryBlobs()
                for table in store_contents.rows(store, runs, beside, horizon_us, none, cache):
                    yield from table.combine_chunks().to_batches()

    return read


def last_versions(frame: DataFrame, stage_store: Kept, as_of: datetime | None = None) -> DataFrame:
    """Return each key's last version of a versioned table, or the one at the time ``as_of``.

    Keys whose version is a delete are left out.
    """
    window = Window.partitionBy(*map(quoted, stage_store.store.key)).orderBy(F.desc(TIMESTAMP))
    visible = frame if as_of is None else frame.where(F.col(TIMESTAMP) <= F.lit(as_of))
    last = visible.withColumn("_n", F.row_number().over(window))
    return last.where((F.col("_n") == 1) & (F.col(CHANGE) == UPSERT)).drop("_n", CHANGE)
