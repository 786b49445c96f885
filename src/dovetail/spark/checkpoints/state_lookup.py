"""Fast lookups of a checkpoint's rows by key.

Rows that were read stay in this process. Rows that later micro-batches write are read from their
files.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from os import fspath
from pathlib import Path as LocalPath
from threading import Lock
from typing import TypeVar

import numpy as np
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from dovetail.arrays.bucket_labels import bucket_number
from dovetail.arrays.grouping import bucket_of, by_key
from dovetail.arrays.hashing import combine_hashes, lower_hash_bits
from dovetail.arrays.spark_hash import spark_hash
from dovetail.base.columns import CHANGE, FOREIGN, foreign_name
from dovetail.base.validation import Path, Text, validated
from dovetail.engine import store_contents
from dovetail.engine.store_contents import AskedKeys
from dovetail.errors import ConfigurationError, DovetailError
from dovetail.operators.job import END_OF_TIME
from dovetail.spark.checkpoints.changelog_files import UnreadableFile, blob_changes
from dovetail.spark.checkpoints.local_state import local_files
from dovetail.spark.checkpoints.lookup_keys import Keys, key_columns
from dovetail.spark.checkpoints.spark_files import SparkFiles
from dovetail.spark.checkpoints.stage_layout import BINDING_FILE
from dovetail.spark.checkpoints.state_files import (
    StateFiles,
    StatefulOperator,
    split_blob_name,
)
from dovetail.spark.checkpoints.state_reader import Moment
from dovetail.spark.checkpoints.stores import (
    CheckpointStores,
    StageStore,
    microseconds_since_1970,
    refuse_other_times,
    runs_of,
)
from dovetail.state import manifest as manifests
from dovetail.state.blobs import MemoryBlobs
from dovetail.state.segment import Ints, Segment, SegmentCache, decode

T = TypeVar("T")
_CALLER = "lookup_state"
_STEPS_MAX = 32
_OPEN_MAX = 16


@validated
def lookup_state(
    checkpoint: Path, table: Text, *, keys: Keys, as_of: Moment | None = None
) -> pa.Table:
    """Return the rows of some keys in a checkpoint's table, after its last committed micro-batch.

    The query may run meanwhile. A call takes milliseconds once the rows around its keys
    have been read.

    Parameters
    ----------
    checkpoint : str or path
        The checkpoint of the query.
    table : str
        The name of an input or of a store, as ``read_state`` lists them.
    keys : list
        The keys, each a value, or a tuple or mapping of the key's columns. No key may be
        null.
    as_of : datetime, optional
        For a versioned table, the time whose versions are returned, with a time zone: the last
        at or before it. By default the last of all are returned.

    Returns
    -------
    pyarrow.Table
        The columns of ``read_state`` but ``_change``, with a row for each key that has one. Keys
        without a row, or with a delete at that time, are left out. A stream has all records of
        a key that a window still needs. Rows are in no particular order. A key that is named
        twice counts once. An empty list gives no rows.

    Raises
    ------
    CheckpointError
        If the folder is no checkpoint of a query.
    ConfigurationError
        If the checkpoint does not hold the table, or not as of that time. Also if rows
        cannot be found by their key: those of windows, and records that wait. Also if Spark
        cannot read the checkpoint.
    PlanError
        If a key is null, has another type or other columns.
    StateError
        If the state is in the format of another version.

    See Also
    --------
    read_state : Read a table or list all stores, as a frame.

    Notes
    -----
    A checkpoint on a local disk is read without Spark if ``rocksdict`` is installed
    (``pip install dovetail[state]``). Else Spark reads it, in the active session: in the
    first call the manifests of all buckets, and for the first key of a bucket the table's
    rows in that bucket. Rows that were read stay in temporary files of this process. When
    a running query commits micro-batches, only their new rows are read.

    Any number of threads may call. Equivalent to interactive queries of Kafka Streams.

    Examples
    --------
    >>> import tempfile
    >>> import dovetail as dt
    >>> rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 3).load()
    >>> rows = rows.selectExpr("value AS id", "10 * value AS amount", "timestamp AS at")
    >>> orders = dt.Table.from_changelog(rows, key="id", timestamp="at", name="orders")
    >>> folder = tempfile.TemporaryDirectory()
    >>> checkpoint = f"{folder.name}/checkpoint"
    >>> sink = dt.to_parquet(f"{folder.name}/orders")
    >>> query = orders.write_stream(
    ...     sink, checkpoint=checkpoint, trigger={"availableNow": True}, buckets=1
    ... )
    >>> query.awaitTermination()
    >>> found = dt.checkpoints.lookup_state(checkpoint, "orders", keys=[1, 7])
    >>> found.select(["id", "amount"]).to_pylist()
    [{'id': 1, 'amount': 10}]
    """
    return with_latest_state(
        _CALLER,
        fspath(checkpoint),
        lambda lookups, stored: lookups.rows(stored, table, keys, as_of),
    )


def with_latest_state(
    caller: str,
    checkpoint: str,
    read: Callable[[Lookups, CheckpointStores], T],
    spark: SparkSession | None = None,
) -> T:
    """Return the result of ``read(lookups, stores)`` for the checkpoint in the folder
    ``checkpoint``. The stores are those after the last committed micro-batch, and the lookups have
    the rows that this process has read so far.

    A checkpoint on a local disk is read without Spark, if that is possible. Otherwise the session
    ``spark`` reads it, by default the active one. ``caller``: the user's function, to begin errors.

    ``read`` may be called again, with files that Spark reads or with newer stores, so it must have
    no effects. It must not call this function, which holds a lock.

    Raises ``CheckpointError`` if the folder is no checkpoint, ``ConfigurationError`` if Spark
    cannot read it, and ``StateError`` for state of another version. Errors of ``read`` pass
    through.
    """
    here = local_files(checkpoint)
    if here is not None:
        with suppress(UnreadableFile):
            return _cached_lookups(("", checkpoint), lambda: here).with_latest_state(caller, read)
    session = spark or SparkSession.active()
    session_key = str(session.conf.get("spark.app.id")), checkpoint
    lookups = _cached_lookups(session_key, lambda: SparkFiles(session, checkpoint))
    return lookups.with_latest_state(caller, read)


_LOCK = Lock()
_LOOKUPS: dict[tuple[str, str], Lookups] = {}
"""The checkpoints that have been looked up, that of the last call last."""


def _cached_lookups(cache_key: tuple[str, str], files: Callable[[], StateFiles]) -> Lookups:
    """Return the lookups that are cached under ``cache_key``, else new ones of ``files()``, which
    are then cached. At most ``_OPEN_MAX`` (16) stay cached in the process; those used longest ago
    are forgotten.

    ``cache_key``: the id of the Spark application, empty for files read without Spark; then the
    folder.
    """
    with _LOCK:
        lookups = _LOOKUPS.pop(cache_key, None) or Lookups(files())
        _LOOKUPS[cache_key] = lookups
        while len(_LOOKUPS) > _OPEN_MAX:
            del _LOOKUPS[next(iter(_LOOKUPS))]
    return lookups


class Lookups:
    """The stores of one checkpoint, as far as they have been read.

    Threads share it by ``with_latest_state`` alone. Only the function that is given to that method
    may call the other ones.

    ``_followed``: the stores whose new segments are cached, as (index of the stage from 1, name).
    ``_held``: the segments that are cached in this process, by id. ``_query``: the content of the
    file with the query's id when the stores were read.
    """

    def __init__(self, files: StateFiles) -> None:
        """Take the files of the checkpoint and make a temporary directory for cached segments.
        Nothing is read yet.
        """
        self._files, self._lock = files, Lock()
        self._stored: CheckpointStores | None = None
        self._query: bytes | None = None
        self._directory = tempfile.TemporaryDirectory(prefix="dovetail-lookup-")
        self._cache = SegmentCache(LocalPath(self._directory.name))
        self._followed: set[tuple[int, str]] = set()
        self._held: dict[str, Segment] = {}

    def with_latest_state(self, caller: str, read: Callable[[Lookups, CheckpointStores], T]) -> T:
        """Return the result of ``read(self, stores)``, with the stores after the last committed
        micro-batch.

        If Spark has meanwhile deleted the files of that micro-batch, read those of the last one
        anew, and call ``read`` a second time. ``caller``: the user's function, to begin errors.
        Calls of other threads wait.

        Raises ``CheckpointError`` if the folder is no checkpoint, and the files' errors if they
        cannot be read (``StateFiles.committed_batches``). Errors of ``read`` pass through.
        """
        with self._lock:
            stored = self._latest_stores(caller)
            try:
                return read(self, stored)
            except (PySparkException, ConfigurationError, UnreadableFile) as error:
                if isinstance(error, DovetailError) and error.__cause__ is None:
                    raise
                # The files of this micro-batch have been deleted.
                self._stored = None
                return read(self, self._latest_stores(caller))

    def rows(
        self, stored: CheckpointStores, table: str, keys: Sequence[object], as_of: datetime | None
    ) -> pa.Table:
        """Return the rows of ``table`` with these keys as a table of key, values and
        ``_timestamp``. Keys without a row give none; a key that is named twice counts once. Rows
        are in no order. Segments are fetched and cached.

        ``table``: the name of an input or a store. ``keys``: each a value, a tuple or a mapping.
        ``as_of``: the time, with its zone, at or before which the last versions are returned; None
        for the last of all. A version that is a delete gives no row.
        Raises ``PlanError`` for a value that is no key. Raises ``ConfigurationError`` for:

        - a table that the checkpoint does not hold, or whose rows do not lie by their key;
        - a time before the history, or a table without one.
        """
        stage_store = stored.store_of(table)
        if as_of is not None:
            refuse_other_times(_CALLER, table, stage_store, as_of)
        time_us = END_OF_TIME if as_of is None else microseconds_since_1970(as_of)
        columns = _distinct_keys(key_columns(_CALLER, stage_store.store, keys))
        rows = self.rows_of_keys(stored, stage_store, columns, time_us)
        return rows.drop_columns([CHANGE]) if stage_store.store.kind == "versions" else rows

    def rows_of_keys(
        self,
        stored: CheckpointStores,
        stage_store: StageStore,
        columns: Sequence[pa.Array],
        time_us: int = END_OF_TIME,
    ) -> pa.Table:
        """Return the rows of a store with the distinct keys in ``columns``. Keys without a row give
        none, nor do keys whose version is a delete. Rows are in no particular order.

        ``columns``: one array for each column of ``Store.own_key``, as ``key_columns`` makes them,
        without nulls. ``time_us``: the time in microseconds at or before which the last versions
        are returned, by default the last of all. It is ignored unless the store keeps versions. The
        result has the columns of ``store_contents.schema_of``.

        If the rows are stored by another key, that key is looked up in the store that has it
        (``index_of``). Raises ``ConfigurationError`` if no store has it, and for records that wait.
        """
        store = stage_store.store
        if store.hashed and store.kind != "queue":
            hash_ = spark_hash(columns)
            return self._find_rows(stored, stage_store, AskedKeys(hash_, columns, time_us), hash_)
        before = index_of(stored, stage_store)
        if before is None:
            raise ConfigurationError(
                _CALLER,
                f"the rows of {store.of or stage_store.name} do not lie by their key",
                "Read them with read_state(keys=)",
            )
        moved = self.rows_of_keys(stored, before, columns)
        primary = [moved.column(field.name).combine_chunks() for field in before.store.own_key]
        count = len(store.key) - len(primary)
        foreign = [moved.column(foreign_name(n)).combine_chunks() for n in range(count)]
        primary_hash = spark_hash(primary)
        null = np.zeros(len(moved), np.bool_)
        for column in foreign:
            null |= column.is_null().to_numpy(zero_copy_only=False)
        route = moved.column(FOREIGN).fill_null(0).to_numpy()
        route = np.where(null, primary_hash, route)
        asked = AskedKeys(
            combine_hashes(route, lower_hash_bits(primary_hash)), [*foreign, *primary], time_us
        )
        return self._find_rows(stored, stage_store, asked, route)

    def _find_rows(
        self, stored: CheckpointStores, stage_store: StageStore, asked: AskedKeys, route: Ints
    ) -> pa.Table:
        """Return the rows of a store for the keys in ``asked``: at most one per key or, of a
        stream, all records of a key. Keys without a row give none, nor do keys whose version is a
        delete. The columns are those of ``store_contents.schema_of``.

        ``stage_store``: no queue. ``asked``: the n stored keys, their hashes (int64[n]), and the
        time whose versions are returned. ``route``: int64[n], the hash that chooses the bucket of
        each key; rows are sought in that bucket alone. Segments that are not cached are fetched.
        """
        self._followed.add((stage_store.stage.number, stage_store.name))
        tables = [store_contents.schema_of(stage_store.store).empty_table()]
        for label, manifest in stage_store.buckets.items():
            bucket = bucket_number(label, manifest.buckets)
            asked_row = np.flatnonzero(bucket_of(route, manifest.buckets) == bucket)
            if len(asked_row) == 0:
                continue
            bucket_asked = AskedKeys(
                asked.hash[asked_row],
                [k.take(pa.array(asked_row)) for k in asked.keys],
                asked.time_us,
            )
            whole = stage_store.runs(label)
            beside = {name: runs_of(manifest, name) for name in stage_store.store.companion_stores}
            runs = whole.with_segments_around(np.sort(bucket_asked.hash).tolist())
            needed = [s for store_runs in (runs, *beside.values()) for s in store_runs.segments]
            if any(segment.id not in self._held for segment in needed):
                if not self._files.reads_pieces:
                    needed = [s for runs in (whole, *beside.values()) for s in runs.segments]
                self._fetch_segments(stored, stage_store.operator, label, needed)
            horizon_us = store_contents.horizon_us(stage_store.store, manifest)
            none = MemoryBlobs()
            tables.append(
                store_contents.look_up_rows(
                    stage_store.store, runs, beside, horizon_us, none, self._cache, bucket_asked
                )
            )
        return pa.concat_tables(tables)

    def all_rows(self, stored: CheckpointStores, stage_store: StageStore) -> Iterator[pa.Table]:
        """Yield all rows of a store as tables, an empty table first. Segments that are not cached
        are fetched. Columns are those of ``store_contents.schema_of``; versions come with deletes.
        """
        self._followed.add((stage_store.stage.number, stage_store.name))
        yield store_contents.schema_of(stage_store.store).empty_table()
        for label, manifest in stage_store.buckets.items():
            runs = stage_store.runs(label)
            beside = {name: runs_of(manifest, name) for name in stage_store.store.companion_stores}
            needed = [s for store_runs in (runs, *beside.values()) for s in store_runs.segments]
            if any(segment.id not in self._held for segment in needed):
                self._fetch_segments(stored, stage_store.operator, label, needed)
            horizon_us = store_contents.horizon_us(stage_store.store, manifest)
            yield from store_contents.read_rows(
                stage_store.store, runs, beside, horizon_us, MemoryBlobs(), self._cache
            )

    def _fetch_segments(
        self,
        stored: CheckpointStores,
        operator: StatefulOperator,
        label: int,
        segments: Sequence[Segment],
    ) -> None:
        """Read those of ``segments`` that are not cached into the cache. All lie in the bucket with
        this label, and may be of several stores. If all are cached, no blob is read. ``operator``:
        Spark's operator that has the bucket. ``stored`` must have a micro-batch. Errors are those
        of ``StateFiles.segments``.
        """
        assert stored.batch is not None
        missing = {s.id: s for s in segments if s.id not in self._held}
        names = dict.fromkeys(missing, label)
        for name, blob in self._files.segments(
            _CALLER, operator, stored.batch, stored.buckets, names
        ):
            self._cache_segment(missing[name], blob)

    def _cache_segment(self, segment: Segment, blob: bytes) -> None:
        """Decode the bytes ``blob`` of a segment, and cache its columns in this process's temporary
        files. Raises ``StateError`` for another format.
        """
        self._cache.add(segment, decode(blob))
        self._held[segment.id] = segment

    def _latest_stores(self, caller: str) -> CheckpointStores:
        """Return the stores after the last committed micro-batch, and cache them. ``caller``: the
        user's function, to begin errors. Segments of older stores are dropped from the cache.

        They follow from the cached stores by changelog files, up to ``_STEPS_MAX`` (32)
        micro-batches on. Otherwise all manifests are read anew, and errors are those of
        ``CheckpointStores.read``. This is also done if the query has another id, because it was set
        back or begun anew.
        """
        if self._stored is None:
            self._files.text(caller, BINDING_FILE)  # says why nothing can be read
        query = self._files.read("metadata")
        if query != self._query:
            self._stored, self._query = None, query
        stored, steps = self._stored, 0
        if stored is not None and not stored.operators:
            stored = None
        while stored is not None and self._files.has(f"commits/{_next_batch(stored)}"):
            steps += 1
            try:
                stored = self._next_stores(stored) if steps <= _STEPS_MAX else None
            except UnreadableFile:
                stored = None
        if stored is None:
            stored = CheckpointStores.read(caller, self._files, None)
        if stored is not self._stored:
            self._stored = stored
            self._drop_unused_segments(stored)
        return replace(stored, caller=caller)

    def _next_stores(self, stored: CheckpointStores) -> CheckpointStores:
        """Return the stores one micro-batch after ``stored``, from its changelog files. Cache the
        new segments of the stores that a lookup has read so far. ``stored`` stays as it is.

        Raises ``UnreadableFile`` if a changelog file is missing or in another format, and if the
        micro-batch has described the state anew (``_changed_blobs``).
        """
        batch = _next_batch(stored)
        written: dict[str, bytes] = {}
        operators = {
            stage: {label: MemoryBlobs(dict(blobs.blobs)) for label, blobs in before.items()}
            for stage, before in stored.operators.items()
        }
        # The stages of one operator are in the same files.
        for operator in dict.fromkeys(stage._replace(prefix="") for stage in operators):
            for label, full_name, blob in self._changed_blobs(operator, batch):
                prefix, name = split_blob_name(full_name)
                if name != manifests.NAME and not name.startswith(manifests.PAGE):
                    if blob is not None:
                        written[name] = blob
                    continue
                buckets = operators[operator._replace(prefix=prefix)]
                if blob is None:
                    buckets[label].delete(name)
                else:
                    buckets.setdefault(label, MemoryBlobs()).put(name, blob)
        after = replace(stored, batch=batch, operators=operators)
        for segment in self._followed_segments(after):
            if segment.id in written and segment.id not in self._held:
                self._cache_segment(segment, written[segment.id])
        return after

    def _changed_blobs(
        self, operator: StatefulOperator, batch: int
    ) -> Iterator[tuple[int, str, bytes | None]]:
        """Yield (label, full name, bytes) of the blobs that micro-batch ``batch`` has written to an
        operator's buckets, those of all its stages; None for the bytes of a deleted blob. They come
        partition by partition, in the order in which they were written.

        Raises ``UnreadableFile`` if a changelog file is missing or in another format. So it does if
        that micro-batch has described the state anew, as ``repartition`` does for other partitions.
        """
        folder = f"state/{operator.number}"
        if self._files.has(f"{folder}/_metadata/v2/{batch}"):
            raise UnreadableFile("the state may have other partitions")
        for partition in range(operator.partitions):
            file = self._files.read(f"{folder}/{partition}/{batch + 1}.changelog")
            if file is None:
                raise UnreadableFile("no such file")
            yield from blob_changes(file)

    def _followed_segments(self, stored: CheckpointStores) -> list[Segment]:
        """Return the segments, in all buckets of ``stored``, of each store that a lookup has asked
        so far. Those of the stores that are needed to read it (``Store.companion_stores``) are
        among them.
        """
        return [
            segment
            for stage_store in stored.stores
            if (stage_store.stage.number, stage_store.name) in self._followed
            for manifest in stage_store.buckets.values()
            for name in (stage_store.name, *stage_store.store.companion_stores)
            for segment in runs_of(manifest, name).segments
        ]

    def _drop_unused_segments(self, stored: CheckpointStores) -> None:
        """Drop segments from the cache that no asked store has in ``stored``. A store is asked if a
        lookup has read from it, or from a store that needs it to be read.
        """
        live = {segment.id for segment in self._followed_segments(stored)}
        for name in [name for name in self._held if name not in live]:
            self._cache.drop(self._held.pop(name))


def index_of(stored: CheckpointStores, stage_store: StageStore) -> StageStore | None:
    """Return the store that maps a row's own key to the key under which ``stage_store`` has the
    row: the one named ``Store.through`` in an earlier stage. If several earlier stages have it,
    return that of the latest. Return None if there is none, as for an empty ``through``.
    """
    before = [
        other
        for other in stored.stores
        if other.name == stage_store.store.through and other.stage.number < stage_store.stage.number
    ]
    return before[-1] if before else None


def _next_batch(stored: CheckpointStores) -> int:
    """Return the id of the micro-batch after that of ``stored``, one more. ``stored.batch`` must
    not be None, else ``AssertionError``.
    """
    assert stored.batch is not None
    return stored.batch + 1


def _distinct_keys(columns: Sequence[pa.Array]) -> Sequence[pa.Array]:
    """Return the key ``columns``, which must be canonical (equal keys have equal bits), with each
    key once, in the order of hashes. No columns give no columns.
    """
    if not columns:
        return columns
    rows = np.arange(len(columns[0]))
    _, first, arranged = by_key(spark_hash(columns), columns, rows)
    return [column.filter(pa.array(first)) for column in arranged]
