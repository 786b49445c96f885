"""The rows of a bucket's store, read back from its segments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

import numpy as np
import pyarrow as pa

from dovetail.arrays.timeline import NO_TIME
from dovetail.columns import CHANGE, DELETE, DELETED, DUE, EVENT_TIME, ROW, TIMESTAMP, UPSERT
from dovetail.physical.law import Kind, Store
from dovetail.state.blobs import Blobs
from dovetail.state.history import HistoryState
from dovetail.state.manifest import Manifest
from dovetail.state.queue import QueueState
from dovetail.state.run_state import RunState
from dovetail.state.runs import Runs
from dovetail.state.segment import Ints, Segment, SegmentCache, numbers
from dovetail.state.table_state import TableState

TIME = pa.timestamp("us", "UTC")
KINDS = get_args(Kind)


def schema_of(store: Store) -> pa.Schema:
    """The columns that ``rows`` gives: the input's own; ``_timestamp``; of versions ``_change``, of
    records that wait ``_due``.
    """
    fields = [*store.fields, pa.field(TIMESTAMP, TIME)]
    if store.kind == "versions":
        fields.append(pa.field(CHANGE, pa.string()))
    if store.kind == "queue":
        fields.append(pa.field(DUE, TIME))
    return pa.schema(fields)


def horizon_us(store: Store, manifest: Manifest) -> int:
    """The time behind which a bucket's rows of a store are no longer of use, or have been taken."""
    times = [manifest.stream_time_us[clock] for clock in store.clocks]
    known = [time for time in times if time is not None]
    if store.span_us is None or not known:
        return NO_TIME
    latest = max(known) if store.kind in ("records", "queue") else min(known)
    return latest - store.span_us


def rows(
    store: Store,
    runs: Runs,
    horizon_us: int,
    blobs: Blobs,
    cache: SegmentCache,
    without: Runs | None = None,
) -> Iterator[pa.Table]:
    """A store's rows (``schema_of``), some at a time: of each key the last one; its versions; the
    records that are kept, or that wait. ``without``: what ``Store.without`` consists of.
    """
    segment = next(runs.segments, None)
    if segment is None:
        return
    gone = [_numbers(part, blobs, cache) for part in (without or Runs()).segments]
    schema = cache.open(segment, blobs.get).schema
    for table in _opened(store, schema, runs, horizon_us, blobs, cache).contents():
        if gone:
            table = table.filter(~np.isin(table.column(ROW).to_numpy(), np.concatenate(gone)))
        columns = [table.column(field.name) for field in store.fields]
        columns.append(table.column(EVENT_TIME).cast(TIME))
        if store.kind == "versions":
            columns.append(_changes(table.column(DELETED)))
        if store.kind == "queue":
            columns.append(table.column(DUE).cast(TIME))
        yield pa.table(columns, schema=schema_of(store))


def _numbers(segment: Segment, blobs: Blobs, cache: SegmentCache) -> Ints:
    return numbers(cache.open(segment, blobs.get), ROW)


def _opened(
    store: Store,
    schema: pa.Schema,
    runs: Runs,
    horizon_us: int,
    blobs: Blobs,
    cache: SegmentCache,
) -> RunState:
    """The store, as its operator opens it."""
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


def _changes(deleted: pa.ChunkedArray) -> pa.ChunkedArray:
    return pa.chunked_array(
        [pa.array([UPSERT, DELETE]).take(chunk.cast(pa.int8())) for chunk in deleted.chunks],
        pa.string(),
    )
