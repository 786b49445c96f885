"""Alignment (``align=``): rows that are ahead of another input wait until it has caught up.

Kafka Streams does this by not reading a partition while another is behind (task idling). Here it is
done across micro-batches, in state. A *clock* is the largest timestamp read so far. Of each input
only rows up to the smallest clock of the other inputs are let through.

If an input is read from several logs, such as the partitions of a topic, its slowest log counts. An
input or a log is not waited for if it has brought nothing for the given wall-clock time. Stream
time is that of the rows that were let through.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from dovetail.arrays.casts import cast_rows
from dovetail.arrays.timeline import NO_TIME, Ints, Mask
from dovetail.base.columns import DUE, EVENT_TIME, HASH, HIGH, LOG_PARTITION, SEQUENCE
from dovetail.engine.batches.pieces import Piece
from dovetail.laws.arrival import order_before_records, running_clock
from dovetail.operators.job import Batch
from dovetail.physical.fragment import Fragment, alignment_store_name
from dovetail.physical.source import SourceSpec, number_repeated_names
from dovetail.state.blobs import Blobs
from dovetail.state.manifest import Logs, Manifest
from dovetail.state.queue import QueueState
from dovetail.state.runs import Runs
from dovetail.state.segment import SegmentCache


@dataclass(frozen=True)
class AlignedRows:
    """The rows that a bucket works on after inputs have waited for each other, and those that still
    wait.
    """

    batches: Sequence[Batch]
    """For each source the rows that were let through."""
    manifest: Manifest
    """The bucket's manifest, with the times of the rows that were read and of those let through."""
    stores: Mapping[str, Runs]
    """The stores of the rows that wait, by name."""


# An example, two inputs in three micro-batches; the numbers are timestamps in order of reading:
#
# | batch | left reads | right reads | clocks | left lets through | right lets through |
# |---|---|---|---|---|---|
# | 1 | 10, 40 | 20 | 40, 20 | 10 (40 waits) | 20 |
# | 2 | | 30 | 40, 30 | | 30 |
# | 3 | | 50 | 40, 50 | 40 | (50 waits) |
def align_inputs(
    fragment: Fragment,
    incoming: Sequence[Batch],
    pieces: Sequence[Piece],
    manifest: Manifest,
    before: Manifest,
    now_us: int,
    blobs: Blobs,
    cache: SegmentCache,
) -> AlignedRows:
    """Let through the rows that need not wait, stored ones and those of the batch, and store the
    others. Segments are written as blobs; the manifest is not.

    Return the rows let through (``batches``) and a copy of ``manifest`` with new times. Also return
    the ``stores`` of the waiting rows, by their names in the manifest. The new ``stream_time_us``
    of a source is the time up to which its rows were let through. The new ``logs`` has the times of
    its logs.

    - ``fragment``: one with ``align_us``, the wall-clock time for which inputs wait at most.
    - ``incoming``: for each source the batch's rows; ``pieces``: the pieces that they came in.
    - ``before``: the manifest before the batch.
    - ``manifest``: the same with the largest timestamps read by any bucket, and the wall-clock
      times at which sources last brought something.
    - ``now_us``: the batch's wall-clock time in microseconds.
    - ``blobs``, ``cache``: the bucket's stored segments, and those already open.

    Of each source, rows are let through up to the smallest time, inclusive, that it and the other
    sources have reached. That time never goes back. A source with logs of its own has reached the
    time of its slowest log. A source or log that has brought nothing for ``align_us`` or longer is
    not waited for. A log counts from its first row on, so no source with logs of its own is waited
    for before. Any other source is waited for from the bucket's first batch on. If no other source
    is waited for, only the source's own time counts.
    """
    assert fragment.align_us is not None
    span_us = max(fragment.align_us, 1)
    read_us = [NO_TIME if time is None else time for time in manifest.read_us]
    logs_before = before.logs or ({},) * len(incoming)
    logs = tuple(
        _advance_logs(of, pieces, source_index, now_us) if source.arrival.by_own_logs else {}
        for source_index, (source, of) in enumerate(zip(fragment.sources, logs_before, strict=True))
    )
    reached = [
        _slowest_clock_us(of, now_us, span_us)
        if source.arrival.by_own_logs
        else None
        if quiet
        else time
        for source, of, quiet, time in zip(
            fragment.sources,
            logs,
            (last is not None and now_us - last >= span_us for last in manifest.heard_us),
            read_us,
            strict=True,
        )
    ]
    batches, passed_us, stores = [], [], {}
    names = number_repeated_names([source.name for source in fragment.sources])
    for source_index, (source, name, batch) in enumerate(
        zip(fragment.sources, names, incoming, strict=True)
    ):
        passed = before.stream_time_us[source_index]
        before_us = NO_TIME if passed is None else passed
        slowest_us = reached[source_index]
        own_us = (
            slowest_us
            if source.arrival.by_own_logs and slowest_us is not None
            else read_us[source_index]
        )
        others = [time for o, time in enumerate(reached) if o != source_index and time is not None]
        upto_us = max(before_us, min([*others, own_us]))
        schema = source.wire_schema.append(pa.field(DUE, pa.int64()))
        store = alignment_store_name(name)
        runs = before.stores.get(store, Runs())
        queue = QueueState(schema, runs, blobs, cache, taken_us=before_us)
        waited = queue.take_due(upto_us)
        due_us = _wait_until_us(
            source, batch, logs_before[source_index], before.read_us[source_index]
        )
        if source.meaning.loose:
            # The time of a row that is left out may be one that nothing else reaches.
            high_us = _log_times_us(source, batch, logs[source_index], read_us[source_index])
            due_us = np.minimum(due_us, high_us)
        passes = due_us <= upto_us
        ahead = np.flatnonzero(~passes)
        ahead = ahead[np.argsort(due_us[ahead], kind="stable")]
        waiting = batch.rows.take(pa.array(ahead))
        queue.store(cast_rows(waiting.append_column(DUE, pa.array(due_us[ahead])), schema))
        batches.append(_let_through(source, waited, batch, passes, due_us))
        stores[store] = queue.runs
        passed_us.append(None if upto_us == NO_TIME else upto_us)
    return AlignedRows(
        batches,
        replace(manifest, stream_time_us=tuple(passed_us), logs=logs),
        stores,
    )


def _advance_logs(
    logs_before: Logs, pieces: Sequence[Piece], source_index: int, now_us: int
) -> Logs:
    """Return two times for each log of a source, by the log's id, this batch included. They are the
    largest timestamp read, and the wall-clock time when the log last brought something.

    ``logs_before``: the same before the batch; logs of which nothing came stay as they are.
    ``pieces``: those of all sources in the batch; those without log runs are skipped.
    ``source_index``: the index of the source. ``now_us``: the batch's wall-clock time in
    microseconds.
    """
    logs = dict(logs_before)
    for piece in pieces:
        if piece.source != source_index or piece.runs is None:
            continue
        log_ids, high_us = (piece.runs.column(name).to_pylist() for name in (LOG_PARTITION, HIGH))
        for log_id, high in zip(log_ids, high_us, strict=True):
            logs[log_id] = max(high, logs.get(log_id, (NO_TIME, 0))[0]), now_us
    return logs


def _slowest_clock_us(logs: Logs, now_us: int, span_us: int) -> int | None:
    """Return the smallest of the largest timestamps of the ``logs`` that are waited for, or None if
    none is.

    ``logs``: by a log's id, its largest timestamp and the wall-clock time when it last brought
    something. A log is waited for if that is less than ``span_us`` before ``now_us``.
    """
    waited_for = (high for high, heard in logs.values() if now_us - heard < span_us)
    return min(waited_for, default=None)


def _wait_until_us(source: SourceSpec, batch: Batch, logs: Logs, read_us: int | None) -> Ints:
    """Return the time for which each row of ``batch`` waits: int64[rows], microseconds. The row is
    let through once all other inputs have reached that time.

    It is the row's clock: the largest timestamp that its log has had by then, earlier batches
    included. So rows of a log keep their order. A row of another stage waits for its own event
    time.

    ``logs``: by a log's id, its largest timestamp before the batch and when it last brought
    something. ``read_us``: the largest timestamp of the source before the batch, None for none.
    """
    if source.arrival.carries:
        return batch.rows.column(EVENT_TIME).to_numpy()  # type: ignore[no-any-return]
    read_us = NO_TIME if read_us is None else read_us
    return np.maximum(batch.clock_us, _log_times_us(source, batch, logs, read_us))


def _log_times_us(source: SourceSpec, batch: Batch, logs: Logs, read_us: int) -> Ints | int:
    """Return for each row of ``batch`` the largest timestamp of its log: int64[rows], ``NO_TIME``
    for a log that is not in ``logs``. If the source has no logs of its own, return ``read_us``
    alone, an int.

    ``logs``: by a log's id, its largest timestamp and the wall-clock time when it last brought
    something. They are those before the batch or with it, as the caller needs. ``read_us``: the
    largest timestamp of the source, likewise.
    """
    if not source.arrival.by_own_logs:
        return read_us
    log_ids, which = np.unique(batch.rows.column(LOG_PARTITION).to_numpy(), return_inverse=True)
    high_us = np.array([logs.get(log_id, (NO_TIME, 0))[0] for log_id in log_ids.tolist()], np.int64)
    return high_us[which]


def _let_through(
    source: SourceSpec, waited: pa.Table, incoming: Batch, passing: Mask, due_us: Ints
) -> Batch:
    """Return a batch of the rows ``waited``, which lie by due time, then the passing rows of
    ``incoming``. Rows of a source with logs of its own lie by log and position instead.

    ``waited``: rows from the queue, the source's columns and ``_due``. ``passing``: bool[rows of
    ``incoming``]. ``due_us``: int64[rows of ``incoming``], the time for which each row waits.

    A row's clock is the time for which it waited or would have waited. With own logs, it is the
    largest such time of the log so far.
    """
    clock_us = np.append(waited.column(DUE).to_numpy(), due_us[passing])
    waited = waited.drop_columns(DUE)
    rows = pa.concat_tables([waited, incoming.rows.filter(pa.array(passing))]).combine_chunks()
    if source.arrival.by_own_logs:
        log, position = (rows.column(name).to_numpy() for name in (LOG_PARTITION, SEQUENCE))
        row = np.lexsort((position, log))
        rows = rows.take(pa.array(row)).combine_chunks()
        clock_us = running_clock(log[row], clock_us[row])
        return Batch(rows, clock_us, clock_us)
    order, hash_ = None, waited.column(HASH).to_numpy()
    if incoming.order is not None:
        order = np.append(order_before_records(hash_), incoming.order[passing])
    tie = None if incoming.tie is None else np.append(hash_, incoming.tie[passing])
    return Batch(rows, clock_us, clock_us, order, tie)
