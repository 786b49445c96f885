"""Pack: rows of one input partition become one columnar blob per bucket.

The shuffle then moves a few large blobs instead of rows. Every bucket also hears the partition's
largest timestamp (a heartbeat where it gets no rows), so that no bucket's stream time falls behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from dovetail.columns import EVENT_TIME, HASH
from dovetail.errors import DataError
from dovetail.plan.spec import SourceSpec
from dovetail.runtime.stage import Piece

PACKED = "bucket int, source int, partition int, number int, high_time_us long, payload binary"

_FLUSH_BYTES = 256 << 20


@dataclass(frozen=True)
class Packer:
    """Packs one source. ``labels[b]`` is the number under which bucket b is shuffled."""

    number: int
    source: SourceSpec
    labels: Sequence[int]

    def __call__(
        self, batches: Iterator[pa.RecordBatch], partition: int
    ) -> Iterator[pa.RecordBatch]:
        """Rows of ``source.wire_schema`` in, rows of ``PACKED`` out."""
        held: list[pa.RecordBatch] = []
        held_bytes = 0
        flushes = 0
        high_time_us: int | None = None
        for batch in batches:
            if batch.num_rows == 0:
                continue
            time = batch.column(EVENT_TIME)
            if time.null_count:
                raise null_timestamp(self.source.name, time.null_count)
            high = int(time.to_numpy().max())
            high_time_us = high if high_time_us is None else max(high_time_us, high)
            held.append(batch)
            held_bytes += batch.nbytes
            if held_bytes >= _FLUSH_BYTES:
                yield self._flush(held, partition, flushes, high_time_us, heartbeats=False)
                held, held_bytes, flushes = [], 0, flushes + 1
        if high_time_us is not None:
            yield self._flush(held, partition, flushes, high_time_us, heartbeats=True)

    def _flush(
        self,
        held: list[pa.RecordBatch],
        partition: int,
        number: int,
        high_time_us: int,
        *,
        heartbeats: bool,
    ) -> pa.RecordBatch:
        payloads = dict(enumerate(split(held, self.source.wire_schema, len(self.labels))))
        sent = [b for b, payload in payloads.items() if heartbeats or payload is not None]
        return pa.record_batch(
            [
                pa.array([self.labels[bucket] for bucket in sent], pa.int32()),
                pa.array([self.number] * len(sent), pa.int32()),
                pa.array([partition] * len(sent), pa.int32()),
                pa.array([number] * len(sent), pa.int32()),
                pa.array([high_time_us] * len(sent), pa.int64()),
                pa.array([payloads[bucket] for bucket in sent], pa.binary()),
            ],
            names=["bucket", "source", "partition", "number", "high_time_us", "payload"],
        )


def split(
    batches: Sequence[pa.RecordBatch], schema: pa.Schema, buckets: int
) -> Iterator[bytes | None]:
    """One Arrow IPC stream per bucket, or None where the bucket gets no rows; rows keep their
    order.
    """
    table = pa.Table.from_batches(batches, schema=batches[0].schema if batches else schema)
    if not table.schema.equals(schema):
        table = table.cast(schema)
    bucket = np.mod(table.column(HASH).to_numpy(), buckets).astype(np.uint16)
    order = np.argsort(bucket, kind="stable")
    edges = np.searchsorted(bucket[order], np.arange(buckets + 1))
    table = table.take(pa.array(order))
    for start, end in pairwise(edges):
        yield to_ipc(table.slice(start, end - start)) if end > start else None


def to_ipc(table: pa.Table) -> bytes:
    """The table as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def from_ipc(payload: bytes) -> pa.Table:
    """The table of an Arrow IPC stream; its columns point into the payload."""
    return pa.ipc.open_stream(payload).read_all()


def unpack_piece(
    source: int, partition: int, number: int, high_time_us: int, payload: bytes | None
) -> Piece:
    """A packed row as the stage reads it."""
    rows = None if payload is None else from_ipc(payload)
    return Piece(source, partition, number, high_time_us, rows)


def null_timestamp(table: str, count: int) -> DataError:
    """The error for rows without an event time."""
    return DataError(
        f"table {table}",
        f"{count} rows have a null timestamp, so they have no place in event time",
        "Filter them out or give them a time with F.coalesce before from_changelog",
    )


def packing(packer: Packer) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for ``mapInArrow``."""

    def pack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        return packer(batches, context.partitionId() if context is not None else 0)

    return pack
