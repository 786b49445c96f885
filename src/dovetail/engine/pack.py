"""Pack: rows of one input partition become one columnar blob per bucket.

The shuffle then moves a few large blobs instead of rows. Every bucket also hears the partition's
largest timestamp (a heartbeat where it gets no rows), so that no bucket's stream time falls behind.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dovetail.arrays.grouping import bucket_of
from dovetail.arrays.hashing import stable_hash
from dovetail.arrays.timeline import NO_TIME, Mask
from dovetail.columns import DELETED, EVENT_TIME, HASH, PLACE
from dovetail.engine.arranged import arranged
from dovetail.engine.blame import shown
from dovetail.engine.pieces import Piece
from dovetail.errors import DataError
from dovetail.physical.source import SourceSpec
from dovetail.state.ipc import COMPRESSED, from_ipc, to_ipc

PACKED = (
    "bucket int, source int, partition int, number int, high_time_us long, dropped long, "
    "failed long, runs binary, stairs binary, payload binary"
)

_PACKED_NAMES = [column.split()[0] for column in PACKED.split(", ")]
_FLUSH_BYTES = 32 << 20


@dataclass(frozen=True)
class Packer:
    """Packs one source. ``labels[b]`` is the number under which bucket b is shuffled.

    What no join can use is counted in ``dropped`` and, unless it keeps time, dropped: rows with a
    null in the key, but for streams whose records appear without a match, and a stream's records
    without a value, but where they are aggregated. Rows whose foreign key fails are counted in
    ``failed``, and dropped. ``by``: the columns that rows are partitioned by, by default the
    key.
    """

    number: int
    source: SourceSpec
    labels: Sequence[int]
    by: tuple[str, ...] = ()

    def __call__(
        self, batches: Iterator[pa.RecordBatch], partition: int
    ) -> Iterator[pa.RecordBatch]:
        """Rows of ``source.travel_schema`` in, ``_deleted`` left out where no row is, whether the
        foreign key fails added where it may; rows of ``PACKED`` out, one per bucket and about
        ``_FLUSH_BYTES`` of input.
        """
        held: list[pa.RecordBatch] = []
        held_bytes = dropped = failed = number = 0
        for batch in batches:
            sound = self._without_failed(batch)
            failed += batch.num_rows - sound.num_rows
            taken = self._named(sound)
            usable = self._usable(taken)
            if usable is not None:
                dropped += len(usable) - usable.true_count
                taken = taken if self.source.keeps_time else taken.filter(usable)
            if taken.num_rows:
                self._refuse_timeless(taken)
                held.append(taken)
                held_bytes += taken.nbytes
            if held_bytes >= _FLUSH_BYTES:
                yield self._pack(held, partition, number, dropped, failed)
                held, held_bytes, dropped, failed, number = [], 0, 0, 0, number + 1
        if held or dropped or failed:
            yield self._pack(held, partition, number, dropped, failed)

    def _without_failed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows whose foreign key did not fail, without the column that says so."""
        if not self.source.fallible:
            return batch
        fails = batch.column(batch.num_columns - 1)
        sound = batch.select(range(batch.num_columns - 1))
        return sound.filter(pc.invert(fails)) if fails.true_count else sound

    def _named(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch under its own names; it travels under others (``spark.wire``)."""
        names = self.source.travel_schema.names
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

    def _refuse_timeless(self, batch: pa.RecordBatch) -> None:
        time = batch.column(EVENT_TIME)
        if time.null_count:
            first = pa.Table.from_batches([batch.filter(time.is_null())])
            keys = range(first.schema.get_field_index(self._key_names[0]), first.num_columns)
            raise DataError(
                self.source.title,
                f"{time.null_count} rows have a null timestamp, so no place in event time, the "
                f"first of key {shown(first, keys[: self.source.keys], ())}",
                "Filter them out or give them a time with F.coalesce before from_changelog",
            )

    @property
    def _key_names(self) -> list[str]:
        return [field.name for field in self.source.fields(self.source.key_columns)]

    def _pack(
        self,
        held: Sequence[pa.RecordBatch],
        partition: int,
        number: int,
        dropped: int,
        failed: int,
    ) -> pa.RecordBatch:
        tag = Tag(self.number, partition, number, NO_TIME, dropped, failed)
        if not held:
            return packed(None, self.labels, tag)
        schema = self.source.travel_schema
        table = pa.Table.from_batches(held)
        if DELETED not in table.schema.names:
            none = pa.array(np.zeros(len(table), dtype=np.bool_))
            table = table.add_column(schema.get_field_index(DELETED), DELETED, none)
        if not table.schema.equals(schema):
            table = table.cast(schema)
        table, arrived = arranged(self.source, table, self._counted(table))
        tag = replace(tag, high_time_us=arrived.high_us, runs=arrived.runs, stairs=arrived.stairs)
        if not self.by:
            return packed(table, self.labels, tag)
        place = stable_hash([table.column(name).combine_chunks() for name in self.by])
        table = table.append_column(PLACE, pa.array(place))
        return packed(table, self.labels, tag, by=PLACE)

    def _counted(self, table: pa.Table) -> Mask | None:
        """Which rows move stream time, None for all: one without a key does only where it keeps
        time.
        """
        keys = [table.column(name) for name in self._key_names]
        if self.source.keeps_time or not any(key.null_count for key in keys):
            return None
        valid = reduce(pc.and_, (key.is_valid() for key in keys))
        return valid.to_numpy()  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Tag:
    """What every bucket hears of some packed rows (``pieces.Piece``), and how many were ``dropped``
    and ``failed``.
    """

    source: int
    partition: int
    number: int
    high_time_us: int
    dropped: int = 0
    failed: int = 0
    runs: pa.Table | None = None
    stairs: pa.Table | None = None


def packed(
    table: pa.Table | None, labels: Sequence[int], tag: Tag, *, by: str = HASH
) -> pa.RecordBatch:
    """Rows of ``PACKED``, one per bucket: those of ``table``, partitioned by the hash in column
    ``by``.
    """
    buckets = len(labels)
    return pa.record_batch(
        [
            pa.array(labels, pa.int32()),
            pa.array([tag.source] * buckets, pa.int32()),
            pa.array([tag.partition] * buckets, pa.int32()),
            pa.array([tag.number] * buckets, pa.int32()),
            pa.array([tag.high_time_us] * buckets, pa.int64()),
            pa.array([tag.dropped] + [0] * (buckets - 1), pa.int64()),
            pa.array([tag.failed] + [0] * (buckets - 1), pa.int64()),
            *(_to_all(said, buckets) for said in (tag.runs, tag.stairs)),
            pa.nulls(buckets, pa.binary()) if table is None else split(table, buckets, by),
        ],
        names=_PACKED_NAMES,
    )


def _to_all(said: pa.Table | None, buckets: int) -> pa.Array:
    return pa.array([None if said is None else to_ipc(said)] * buckets, pa.binary())


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


def unpack_piece(row: Any) -> Piece:
    """A row of ``PACKED`` as the stage reads it."""
    tables = (row.payload, row.runs, row.stairs)
    rows, runs, stairs = (None if blob is None else from_ipc(blob) for blob in tables)
    return Piece(row.source, row.partition, row.number, row.high_time_us, rows, runs, stairs)
