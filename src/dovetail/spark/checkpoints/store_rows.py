"""The rows of a checkpoint's stores as frames, where one task reads each bucket."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from functools import reduce
from pathlib import Path as LocalPath
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from dovetail.base.columns import CHANGE, TIMESTAMP, UPSERT, key_name, quoted
from dovetail.engine import store_contents
from dovetail.physical.specs.law import Store
from dovetail.plan.types.arrow import spark_schema
from dovetail.spark.checkpoints.local_rows import BucketRuns, select_parts
from dovetail.spark.checkpoints.spark_files import MANIFESTS
from dovetail.spark.checkpoints.stores import CheckpointStores, StageStore
from dovetail.spark.task import BatchFunction, freezing_imports
from dovetail.state.blobs import MemoryBlobs
from dovetail.state.segment import SegmentCache, decode

_NAMES_MAX = 10_000


def rows_of_store(
    stored: CheckpointStores,
    stage_store: StageStore,
    *,
    keys: Sequence[Any] | None = None,
    columns: Sequence[str] | None = None,
) -> DataFrame:
    """Return the rows of a store as a frame: the last row of each key, all versions with deletes,
    the kept records, or the waiting records, by ``Store.kind``. Its columns are those of
    ``store_contents.schema_of``, in the store's order. No segment is read before the frame is used.

    ``columns``: the columns that are read, besides those of the key and the time; None for all.
    ``keys``: only the rows of these keys (values, tuples or mappings). None stands for all, an
    empty list for no rows. Spark must read the files (``CheckpointStores.has_frames``).

    Raises ``ConfigurationError`` for unknown columns, and if Spark cannot read the checkpoint.
    Raises ``PlanError`` for a value that is no key.
    """
    selection = select_parts(stored, stage_store, keys, columns)
    store, buckets = selection.store, selection.buckets
    names = [segment.id for bucket_part in buckets.values() for segment in bucket_part.segments]
    blobs = stored.blobs(stage_store.operator)
    blobs = blobs.where(
        F.col("name").isin(names) if len(names) <= _NAMES_MAX else f"NOT ({MANIFESTS})"
    )
    schema = spark_schema(store_contents.schema_of(store))
    frame = blobs.mapInArrow(_segments_reader(store, buckets, selection.unread), schema)
    return frame if selection.asked is None else _rows_with_keys(frame, store, selection.asked)


def _rows_with_keys(frame: DataFrame, store: Store, asked: Sequence[pa.Array]) -> DataFrame:
    """Return the rows of ``frame`` with one of the keys ``asked``, each row once, in no order.
    ``asked``: the key columns of ``store``, one row per key, perhaps with duplicates. Rows with a
    null in the key are left out.
    """
    names = [key_name(index) for index in range(len(asked))]
    keys = frame.sparkSession.createDataFrame(pa.table(list(asked), names=names))
    same = (
        F.col(quoted(field.name)) == F.col(name)
        for field, name in zip(store.own_key, names, strict=True)
    )
    return frame.join(F.broadcast(keys), reduce(Column.__and__, same), "left_semi")


def _segments_reader(
    store: Store, buckets: Mapping[int, BucketRuns], unread: Collection[str]
) -> BatchFunction:
    """Return the ``mapInArrow`` function from the segments of buckets to the rows of ``store``, in
    the columns of ``store_contents.schema_of``. ``buckets``: the parts of each bucket that are
    read, by label. ``unread``: the names of stored columns that the result does not have.

    Its input has the columns ``bucket`` (a label), ``name`` and ``blob``; blobs of other names are
    skipped. The caller must see that one task gets all segments of a bucket. Segments go to disk as
    they come, without the columns ``unread``, and are merged from there. A segment of another
    version fails the task, with ``StateError``.
    """

    @freezing_imports
    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the store in each bucket that has a segment among ``batches``."""
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
                for table in store_contents.read_rows(store, runs, beside, horizon_us, none, cache):
                    yield from table.combine_chunks().to_batches()

    return read


def last_versions(
    frame: DataFrame, stage_store: StageStore, as_of: datetime | None = None
) -> DataFrame:
    """Return each key's last version of a versioned table; with ``as_of``, the last version at or
    before that time. Keys whose version is a delete are left out.

    ``frame``: all versions, with the store's key columns, ``_timestamp`` and ``_change``, which the
    result lacks. ``stage_store``: their store.
    """
    window = Window.partitionBy(*map(quoted, stage_store.store.key)).orderBy(F.desc(TIMESTAMP))
    visible = frame if as_of is None else frame.where(F.col(TIMESTAMP) <= F.lit(as_of))
    last = visible.withColumn("_n", F.row_number().over(window))
    return last.where((F.col("_n") == 1) & (F.col(CHANGE) == UPSERT)).drop("_n", CHANGE)
