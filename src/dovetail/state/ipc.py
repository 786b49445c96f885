"""Tables as bytes, in the state and on their way through the JVM, which copies them many times:
Arrow IPC streams, compressed with LZ4.
"""

from __future__ import annotations

import pyarrow as pa

COMPRESSED = pa.ipc.IpcWriteOptions(compression="lz4")


def to_ipc(table: pa.Table) -> bytes:
    """The table as one stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=COMPRESSED) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]
