"""Tables as bytes, in the state and on their way through the JVM, which copies them many times:
Arrow IPC streams, compressed with LZ4.
"""

from __future__ import annotations

import pyarrow as pa

# Without threads: the columns of such small tables take less time than handing them over, and the
# cores are Spark's to share out.
COMPRESSED = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
ONE_THREAD = pa.ipc.IpcReadOptions(use_threads=False)


def to_ipc(table: pa.Table) -> bytes:
    """The table as one stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=COMPRESSED) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def from_ipc(stream: pa.Buffer | bytes) -> pa.Table:
    """The table that one stream holds."""
    return pa.ipc.open_stream(stream, options=ONE_THREAD).read_all()
