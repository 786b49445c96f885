"""Open readers of this process: a source is connected once and used by all tasks after."""

from __future__ import annotations

import os

import pyarrow as pa

from dovetail.lookup.source import LookupSource, Reader

_OPEN: dict[tuple[int, LookupSource, str], Reader] = {}


def opened(source: LookupSource, schema: pa.Schema) -> Reader:
    """The process's reader of a source for these columns."""
    known = (os.getpid(), source, schema.to_string())
    if known not in _OPEN:
        _OPEN[known] = source.open(schema)
    return _OPEN[known]
