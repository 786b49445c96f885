"""Tables as bytes: Arrow IPC streams, compressed with LZ4.

They lie in the state and travel through the JVM, which copies them many times.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from itertools import pairwise

import numpy as np
import pyarrow as pa

from dovetail.arrays.grouping import bucket_of

# Without threads: in such small tables handing a column over takes longer than encoding it, and
# Spark shares out the cores.
COMPRESSED = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
_ANY_ROWS = sys.maxsize
ONE_THREAD = pa.ipc.IpcReadOptions(use_threads=False)


def to_ipc(table: pa.Table) -> bytes:
    """Return a table as the bytes of one Arrow IPC stream, compressed with LZ4. A table without
    rows keeps its schema.
    """
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=COMPRESSED) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def from_ipc(stream: pa.Buffer | bytes, without: Collection[str] = ()) -> pa.Table:
    """Return the table in the Arrow IPC stream ``stream``, without the columns named in
    ``without``, which are not unpacked. Names that it has no column of are ignored. If all columns
    are named, the result has rows alone. Raises ``pa.ArrowInvalid`` for other bytes.
    """
    reader = pa.ipc.open_stream(stream, options=ONE_THREAD)
    if not without:
        return reader.read_all()
    field_indices = [n for n, name in enumerate(reader.schema.names) if name not in without]
    options = pa.ipc.IpcReadOptions(use_threads=False, included_fields=field_indices)
    table = pa.ipc.open_stream(stream, options=options).read_all()
    # Arrow takes an empty list of fields for all fields.
    return table if field_indices else table.select([])


def parts_of(table: pa.Table, size_bytes: int, rows: int = _ANY_ROWS) -> Iterator[pa.Table]:
    """Yield ``table`` in consecutive parts of at most ``size_bytes`` uncompressed and at most
    ``rows`` rows, by default of any count.

    A part has at least one row, even if that row alone is larger. An empty table is one part.
    """
    parts = max(-(-len(table) // rows), -(-table.nbytes // size_bytes))
    if parts <= 1 or len(table) <= 1:
        yield table
        return
    length = -(-len(table) // parts)
    for start in range(0, len(table), length):
        yield from parts_of(table.slice(start, length), size_bytes, rows)


# An example with three buckets; the middle one gets no rows:
#
# | bucket of each row | 0 0 2 |
# |---|---|
# | edges | 0 2 2 3 |
# | streams | rows 0 and 1, null, row 2 |
def split_by_bucket(table: pa.Table, buckets: int, by: str) -> pa.BinaryArray:
    """Return for each bucket its rows of ``table`` as an Arrow IPC stream, null if it gets none:
    binary[buckets]. Rows keep their order within a bucket, and the column ``by`` stays.

    ``buckets``: the count of buckets. ``by``: an int64 column without nulls. Its value modulo
    ``buckets``, never negative, is the row's bucket. All streams together must take less than 2
    GiB, else numpy 2 raises ``OverflowError``.
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
