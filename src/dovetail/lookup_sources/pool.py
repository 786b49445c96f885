"""The open readers of this process. Each source is connected once, and all later tasks use it."""

from __future__ import annotations

import os

import pyarrow as pa

from dovetail.lookup_sources.source import LookupSource, Reader

_OPEN_READERS: dict[tuple[int, LookupSource, str], Reader] = {}
"""The readers by process id, source and schema. A forked process must not share a connection."""


def open_reader(source: LookupSource, schema: pa.Schema) -> Reader:
    """Return this process's reader of a source for the columns ``schema``, opened on first use.

    The reader is kept for later tasks until the process ends, so do not close it. Equal sources
    with equal schemas share a reader, so sources must be hashable. A forked process opens a reader
    of its own. Raises ``ConfigurationError`` if the package of the store's driver is missing, and
    other errors of ``source.open``; nothing is kept then.
    """
    reader_key = (os.getpid(), source, schema.to_string())
    if reader_key not in _OPEN_READERS:
        _OPEN_READERS[reader_key] = source.open(schema)
    return _OPEN_READERS[reader_key]
