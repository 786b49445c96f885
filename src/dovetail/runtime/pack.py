"""Pack: rows of one input partition become one columnar blob per bucket.

The shuffle then moves a few large blobs instead of rows. Every bucket also hears the partition's
largest timestamp (a heartbeat where it gets no rows), so that no bucket's stream time falls behind.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dovetail.columns import DELETED, EVENT_TIME, HASH, PLACE
from dovetail.errors import DataError
from dovetail.kernels.grouping import bucket_of
from dovetail.kernels.hashing import stable_hash
from dovetail.kernels.timeline import NO_TIME
from dovetail.plan.spec import SourceSpec
from dovetail.runtime import task
from dovetail.runtime.stage import Piece
from dovetail.state.ipc import COMPRESSED, from_ipc

PACKED = (
    "bucket int, source int, partition int, number int, high_time_us long, dropped long, "
    "failed long, payload binary"
)

_PACKED_NAMES = [column.split()[0] for column in PACKED.split(", ")]
_FLUSH_BYTES = 32 << 20


@dataclass(frozen=True)
class Packer:
    """Packs one source. ``labels[b]`` is the number under which bucket b is shuffled; ``keys`` the
    number of key columns.

    What no join can use is counted in ``dropped`` and, unless it keeps time, dropped: rows with a
    null in the key, but for streams whose records appear without a match, and a stream's records
    without a value, but where they are gathered. Rows whose foreign key fails are counted in
    ``failed``, and dropped. ``by``: columns that deal the rows out to the buckets, by default the
    key.
    """

    number: int
    source: SourceSpec
    keys: int
    labels: Sequence[int]
    by: tuple[str, ...] = ()

    def __call__(
        self, batches: Iterator[pa.RecordBatch], partition: int
    ) -> Iterator[pa.RecordBatch]:
        """Rows of ``source.wire_schema`` in, ``_deleted`` left out where no row is, whether the
        foreign key fails added where it may; rows of ``PACKED`` out, one per bucket and about
        ``_FLUSH_BYTES`` of input.
        """
        held: list[pa.RecordBatch] = []
        held_bytes = dropped = failed = number = 0
        high_time_us = NO_TIME
        for batch in batches:
            sound = self._without_failed(batch)
            failed += batch.num_rows - sound.num_rows
            taken = self._named(sound)
            usable = self._usable(taken)
            if usable is not None:
                dropped += len(usable) - usable.true_count
                taken = taken if self.source.keeps_time else taken.filter(usable)
            if taken.num_rows:
                high_time_us = max(high_time_us, self._high_time_us(taken))
                held.append(taken)
                held_bytes += taken.nbytes
            if held_bytes >= _FLUSH_BYTES:
                yield self._pack(held, (partition, number, high_time_us, dropped, failed))
                held, held_bytes, dropped, failed, number = [], 0, 0, 0, number + 1
        if held or dropped or failed:
            yield self._pack(held, (partition, number, high_time_us, dropped, failed))

    def _without_failed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows whose foreign key did not fail, without the column that says so."""
        if not self.source.fallible:
            return batch
        fails = batch.column(batch.num_columns - 1)
        sound = batch.select(range(batch.num_columns - 1))
        return sound.filter(pc.invert(fails)) if fails.true_count else sound

    def _named(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch under its own names; it travels under others (``runtime.wire``)."""
        names = self.source.wire_schema.names
        if batch.num_columns < len(names):
            names = [name for name in names if name != DELETED]
        return batch.rename_columns(names)

    def _usable(self, batch: pa.RecordBatch) -> pa.Array | None:
        """Which rows a join can use, None for all of them."""
        usable = []
        needs_value = self.source.stream and not self.source.valueless
        if needs_value and DELETED in batch.schema.names:
            usable.append(pc.invert(batch.column(DELETED)))
        needed = self.source.primary if self.source.null_keys else self._key_names
        keys = (batch.column(name) for name in needed)
        usable += [key.is_valid() for key in keys if key.null_count]
        return reduce(pc.and_, usable) if usable else None

    def _high_time_us(self, batch: pa.RecordBatch) -> int:
        """The largest timestamp; a record without a key counts only where it keeps time."""
        time = batch.column(EVENT_TIME)
        if time.null_count:
            raise DataError(
                self.source.title,
                f"{time.null_count} rows have a null timestamp, so no place in event time",
                "Filter them out or give them a time with F.coalesce before from_changelog",
            )
        keys = [batch.column(name) for name in self._key_names]
        if not self.source.keeps_time and any(key.null_count for key in keys):
            time = time.filter(reduce(pc.and_, (key.is_valid() for key in keys)))
        return int(time.to_numpy().max()) if len(time) else NO_TIME

    @property
    def _key_names(self) -> list[str]:
        return self.source.schema.names[3 : 3 + self.keys]  # type: ignore[no-any-return]

    def _pack(
        self, held: Sequence[pa.RecordBatch], tag: tuple[int, int, int, int, int]
    ) -> pa.RecordBatch:
        if not held:
            return packed(None, self.labels, self.number, *tag)
        schema = self.source.wire_schema
        table = pa.Table.from_batches(held)
        if DELETED not in table.schema.names:
            none = pa.array(np.zeros(len(table), dtype=np.bool_))
            table = table.add_column(schema.get_field_index(DELETED), DELETED, none)
        if not table.schema.equals(schema):
            table = table.cast(schema)
        if not self.by:
            return packed(table, self.labels, self.number, *tag)
        place = stable_hash([table.column(name).combine_chunks() for name in self.by])
        table = table.append_column(PLACE, pa.array(place))
        return packed(table, self.labels, self.number, *tag, by=PLACE)


def packed(
    table: pa.Table | None,
    labels: Sequence[int],
    source: int,
    partition: int,
    number: int,
    high_time_us: int,
    dropped: int = 0,
    failed: int = 0,
    *,
    by: str = HASH,
) -> pa.RecordBatch:
    """Rows of ``PACKED``, one per bucket: those of ``table``, dealt out by the hash in column
    ``by``.
    """
    buckets = len(labels)
    return pa.record_batch(
        [
            pa.array(labels, pa.int32()),
            pa.array([source] * buckets, pa.int32()),
            pa.array([partition] * buckets, pa.int32()),
            pa.array([number] * buckets, pa.int32()),
            pa.array([high_time_us] * buckets, pa.int64()),
            pa.array([dropped] + [0] * (buckets - 1), pa.int64()),
            pa.array([failed] + [0] * (buckets - 1), pa.int64()),
            pa.nulls(buckets, pa.binary()) if table is None else split(table, buckets, by),
        ],
        names=_PACKED_NAMES,
    )


def split(table: pa.Table, buckets: int, by: str = HASH) -> pa.BinaryArray:
    """One Arrow IPC stream per bucket, null where the bucket gets no rows; rows keep their
    order.
    """
    schema = table.schema
    bucket = bucket_of(table.column(by).to_numpy(), buckets)
    if np.any(bucket[1:] < bucket[:-1]):
        order = np.argsort(bucket, kind="stable")
        table, bucket = table.take(pa.array(order)), bucket[order]
    edges = np.searchsorted(bucket, np.arange(buckets + 1))
    sink = pa.BufferOutputStream()
    ends = []
    for start, end in pairwise(edges):
        if end > start:
            with pa.ipc.new_stream(sink, schema, options=COMPRESSED) as writer:
                writer.write_table(table.slice(start, end - start))
        ends.append(sink.tell())
    offsets = pa.py_buffer(np.array([0, *ends], dtype=np.int32))
    present = pa.array(edges[1:] > edges[:-1]).buffers()[1]
    return pa.Array.from_buffers(pa.binary(), buckets, [present, offsets, sink.getvalue()])


def unpack_piece(
    source: int, partition: int, number: int, high_time_us: int, payload: bytes | None
) -> Piece:
    """A packed row as the stage reads it."""
    rows = None if payload is None else from_ipc(payload)
    return Piece(source, partition, number, high_time_us, rows)


def packing(packer: Packer) -> task.BatchFunction:
    """The function for ``mapInArrow``."""

    @task.mapping
    def pack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return packer(batches, task.partition())

    return pack
