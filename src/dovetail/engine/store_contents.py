"""The rows of a bucket's store, read back from its segments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dovetail.aggregates.multiset import Listing
from dovetail.arrays.timeline import NO_TIME
from dovetail.base.columns import (
    CHANGE,
    DELETE,
    DELETED,
    DUE,
    EVENT_TIME,
    HASH,
    ROW,
    TIMESTAMP,
    UPSERT,
)
from dovetail.operators.groups.accumulators import GROUP_TIME, accumulator_name
from dovetail.operators.groups.long_lists import Parts
from dovetail.operators.job import END_OF_TIME, combine_chunks
from dovetail.physical.specs.law import Store
from dovetail.state.blobs import Blobs
from dovetail.state.history import HistoryState
from dovetail.state.manifest import Manifest
from dovetail.state.queue import QueueState
from dovetail.state.run_state import RunState
from dovetail.state.runs import Runs
from dovetail.state.segment import Ints, Segment, SegmentCache, int64_column
from dovetail.state.table_state import TableState

TIME = pa.timestamp("us", "UTC")


def schema_of(store: Store) -> pa.Schema:
    """Return the schema of the rows that ``read_rows`` and ``look_up_rows`` give of ``store``:
    ``Store.fields``, then ``_timestamp`` (UTC, microseconds).

    A store of versions also has ``_change``, ``"upsert"`` or ``"delete"``. A queue, whose rows wait
    for a time, has that time as ``_due``.
    """
    fields = [*store.fields, pa.field(TIMESTAMP, TIME)]
    if store.kind == "versions":
        fields.append(pa.field(CHANGE, pa.string()))
    if store.kind == "queue":
        fields.append(pa.field(DUE, TIME))
    return pa.schema(fields)


def horizon_us(store: Store, manifest: Manifest) -> int:
    """Return the time before which a bucket's rows of ``store`` are of no use, in microseconds.
    Rows of a queue have left it if they are due by that time.

    The time is the store's span behind stream time: the largest of the sources ``store.clocks`` for
    records and queues, the smallest for other kinds. It is ``NO_TIME`` if the store keeps rows for
    good, or before the first record: for other kinds as long as one of the sources has had none.
    ``manifest``: the bucket's, with its stream times.
    """
    if store.span_us is None or not store.clocks:
        return NO_TIME
    times = [manifest.stream_time_us[clock] for clock in store.clocks]
    # As an operator has it: before the first record of an input its time is the earliest.
    known_us = [NO_TIME if time is None else time for time in times]
    latest = max(known_us) if store.kind in ("records", "queue") else min(known_us)
    return NO_TIME if latest == NO_TIME else latest - store.span_us


def read_rows(
    store: Store,
    runs: Runs,
    companions: Mapping[str, Runs],
    horizon_us: int,
    blobs: Blobs,
    cache: SegmentCache,
) -> Iterator[pa.Table]:
    """Yield the rows of ``store`` as tables of ``schema_of(store)``; nothing for a store without
    segments. They are the last row of each key that is not deleted, its versions, the kept records,
    or the waiting rows, by the store's kind. A version may be a delete (``_change``). Rows come by
    the hash of their key, versions and records then by time, and waiting rows by ``_due``.

    - ``runs``: the store's sorted runs in the manifest.
    - ``companions``: the runs of the other stores that are needed to read this one, by name
      (``Store.companion_stores``). They have the ids of rows that are gone, or parts of long lists.
    - ``horizon_us``: the time in microseconds before which rows are of no use; ``NO_TIME`` for
      none.
    - ``blobs``, ``cache``: the source of segments, and those already open.

    Raises ``StateError`` for a segment of another format, and ``AggregateError`` if a result does
    not fit its type.
    """
    segment = next(runs.segments, None)
    if segment is None:
        return
    without = companions[store.without].segments if store.without else ()
    marked = [_row_ids(part, blobs, cache) for part in without]
    gone = np.concatenate(marked) if marked else None
    lists = _open_list_stores(store, companions, blobs, cache)
    schema = cache.open(segment, blobs.get).schema
    for table in _open_store(store, schema, runs, horizon_us, blobs, cache).contents():
        if gone is not None:
            table = table.filter(~np.isin(table.column(ROW).to_numpy(), gone))
        yield _displayed_rows(store, table, lists)


def look_up_rows(
    store: Store,
    runs: Runs,
    companions: Mapping[str, Runs],
    horizon_us: int,
    blobs: Blobs,
    cache: SegmentCache,
    asked: AskedKeys,
) -> pa.Table:
    """Return the rows of the keys in ``asked`` as a table of ``schema_of(store)``. A key without
    any gives none. Rows lie by hash, not in the order asked; those of ``records`` come run by run,
    the oldest first, each by hash, then time. The store must not be a queue. Null equals null in
    keys, and floats are compared by their bits.

    ``runs``: the store's sorted runs in the manifest. ``companions``: those of the stores with
    parts of its long lists, by name (``Store.companion_stores``). ``horizon_us``: the time in
    microseconds before which rows are of no use, ``NO_TIME`` for none. ``blobs``, ``cache``: the
    source of segments, and those already open. Raises ``StateError`` for a segment of another
    format, and ``AggregateError`` if a result does not fit its type.

    | store | rows of a key |
    |---|---|
    | ``rows`` | its row, if there is one and it has not expired |
    | ``versions`` | its version at the time asked for; none if that is a delete |
    | ``records`` | all its records that are kept |
    """
    segment = next(runs.segments, None)
    if segment is None:
        return schema_of(store).empty_table()
    schema = cache.open(segment, blobs.get).schema
    state = _open_store(store, schema, runs, horizon_us, blobs, cache)
    order = np.argsort(asked.hash, kind="stable")
    hash_, keys = asked.hash[order], [key.take(pa.array(order)) for key in asked.keys]
    if isinstance(state, TableState):
        located = state.locate(hash_, keys)
    else:
        assert isinstance(state, HistoryState)
        if store.kind == "records":
            low_us, high_us = (np.full(len(hash_), time) for time in (horizon_us, END_OF_TIME))
            table = state.find_between(hash_, keys, low_us, high_us).rows
            return _displayed_rows(store, table, {})
        located = state.find_as_of(hash_, keys, np.full(len(hash_), asked.time_us))
    table = located.fetch(np.flatnonzero(located.present), range(len(schema)))
    if store.kind == "rows" and horizon_us != NO_TIME:
        table = table.filter(
            pc.greater_equal(table.column(store.time).cast(pa.int64()), horizon_us)
        )
    return _displayed_rows(store, table, _open_list_stores(store, companions, blobs, cache))


@dataclass(frozen=True)
class AskedKeys:
    """Distinct keys to look up in a store, with their hashes."""

    hash: Ints
    """The hash of each key, by which stored rows are ordered: int64[n]."""
    keys: Sequence[pa.Array]
    """The key columns, n rows each."""
    time_us: int = END_OF_TIME
    """The time for which versions are asked; the end of time by default."""


def _displayed_rows(store: Store, table: pa.Table, lists: Mapping[int, Parts]) -> pa.Table:
    """Return the stored rows ``table`` as readers see them (``schema_of``), one each in the same
    order. Accumulators become results; internal columns are left out.

    ``lists``: the open stores of long lists, by the index of their result column. Raises
    ``AggregateError`` if a result does not fit its type.
    """
    if store.results:
        columns = [*map(table.column, store.key), *_result_columns(store, table, lists)]
    else:
        columns = [table.column(name) for name in store.stored_columns]
    columns.append(table.column(GROUP_TIME if store.results else EVENT_TIME).cast(TIME))
    if store.kind == "versions":
        columns.append(_change_kinds(table.column(DELETED)))
    if store.kind == "queue":
        columns.append(table.column(DUE).cast(TIME))
    return pa.table(columns, schema=schema_of(store))


class _Groups(NamedTuple):
    """Groups by hash and key, in the form that ``Parts`` takes."""

    hash: Ints
    keys: Sequence[pa.Array]


def _open_list_stores(
    store: Store, companions: Mapping[str, Runs], blobs: Blobs, cache: SegmentCache
) -> dict[int, Parts]:
    """Open the stores of long lists, and return them by the index of their result column. The dict
    is empty if no result of ``store`` may have long lists.

    ``companions``: the runs of the stores that are read with ``store``, by name; a missing name
    raises ``KeyError``. ``blobs`` and ``cache``: the source of segments, and those already open.
    """
    key = [f.with_name(n) for f, n in zip(store.fields, store.key, strict=False)]
    lists = {}
    for result_index, result in enumerate(store.results):
        if result.lists:
            assert isinstance(result.kernel, Listing)
            runs = {name: companions[name] for name in result.lists}
            lists[result_index] = Parts(result_index, result.kernel, key, runs, blobs, cache)
    return lists


def _result_columns(
    store: Store, table: pa.Table, lists: Mapping[int, Parts]
) -> Iterator[pa.Array]:
    """Yield one array per result column of ``store``, in order, computed from the accumulators in
    ``table``, a row per group.

    ``lists``: the open stores of long lists, by the index of their result column; the lists are
    read. Raises ``AggregateError`` if a result does not fit its type.
    """
    groups = _Groups(
        int64_column(table, HASH), [combine_chunks(table.column(name)) for name in store.key]
    )
    for result_index, result in enumerate(store.results):
        parts = range(len(result.kernel.state))
        state = [
            combine_chunks(table.column(accumulator_name(result_index, part))) for part in parts
        ]
        if result_index in lists:
            state = [*lists[result_index].join_parts(groups, state)]
        yield result.kernel.results(state)


def _row_ids(segment: Segment, blobs: Blobs, cache: SegmentCache) -> Ints:
    """Return the column ``_row`` of ``segment``: int64[rows]. Such a segment lists the ids of rows
    of another store that no longer count. ``blobs``, ``cache``: the source of segments, and those
    already open.
    """
    return int64_column(cache.open(segment, blobs.get), ROW)


def _open_store(
    store: Store,
    schema: pa.Schema,
    runs: Runs,
    horizon_us: int,
    blobs: Blobs,
    cache: SegmentCache,
) -> RunState:
    """Open the store by its kind, as its operator does, and return it: ``TableState``,
    ``QueueState`` or ``HistoryState``.

    ``schema``: the stored columns. ``runs``: the store's sorted runs in the manifest.
    ``horizon_us``: the time before which rows have expired; of a queue, the time up to which rows
    have been taken. ``blobs``, ``cache``: the source of segments, and those already open.
    """
    if store.kind == "rows":
        keys, expiry = len(store.key), store.time
        return TableState(schema, keys, runs, blobs, cache, horizon_us=horizon_us, expiry=expiry)
    if store.kind == "queue":
        return QueueState(schema, runs, blobs, cache, taken_us=horizon_us)
    first = schema.get_field_index(store.key[0])
    return HistoryState(
        schema,
        range(first, first + len(store.key)),
        runs,
        blobs,
        cache,
        versioned=store.kind == "versions",
        horizon_us=horizon_us,
    )


def _change_kinds(deleted: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the kind of change of each row as text, in as many chunks: ``"delete"`` where
    ``deleted``, bool without nulls, is true, else ``"upsert"``.
    """
    return pa.chunked_array(
        [pa.array([UPSERT, DELETE]).take(chunk.cast(pa.int8())) for chunk in deleted.chunks],
        pa.string(),
    )
