"""Segments: immutable pieces of a bucket's state, rows in ascending order of one int64 column.

Their columns are the store's: each kind of store (``table_state``, ``history``, ``queue``) says
which they are and which of them, the key hash or a time, orders the rows.

Stored form: one version byte, then an Arrow IPC stream compressed with LZ4. Local form: an
uncompressed Arrow IPC file named by the segment's id, memory-mapped, so that a look-up reads only
the pages it touches. Ids are never reused, so a local file can be missing but not stale.
"""

from __future__ import annotations

import os
import tempfile
import uuid
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dovetail.columns import EVENT_TIME
from dovetail.errors import StateError
from dovetail.state.ipc import ONE_THREAD, from_ipc, to_ipc

Ints = npt.NDArray[np.int64]

FORMAT_VERSION = 1

_OPEN_SEGMENTS_MAX = 4096


@dataclass(frozen=True)
class Segment:
    """A segment's entry in the manifest.

    ``size_bytes`` is that of the local, uncompressed form; ``first`` and ``last`` are the ends of
    the column that orders the rows; ``earliest_us`` and ``latest_us`` are those of the column of
    times by which rows expire.
    """

    id: str
    rows: int
    size_bytes: int
    first: int
    last: int
    earliest_us: int
    latest_us: int


def describe(table: pa.Table, order: str, expiry: str = EVENT_TIME) -> Segment:
    """A new segment, under a new id, for rows that are already in the order of column ``order``;
    ``expiry``: the column of times by which they expire.
    """
    ordering, time = table.column(order), table.column(expiry).cast(pa.int64()).to_numpy()
    return Segment(
        id=uuid.uuid4().hex,
        rows=table.num_rows,
        size_bytes=table.nbytes,
        first=ordering[0].as_py(),
        last=ordering[-1].as_py(),
        earliest_us=int(time.min()),
        latest_us=int(time.max()),
    )


def encode(table: pa.Table) -> bytes:
    """The stored form of a segment."""
    return bytes([FORMAT_VERSION]) + to_ipc(table)


def decode(blob: bytes) -> pa.Table:
    """The rows of a stored segment."""
    if blob[0] != FORMAT_VERSION:
        raise StateError(
            "state segment",
            f"format version {blob[0]}, this version of dovetail reads {FORMAT_VERSION}",
            "Run the version that wrote the checkpoint, or start from a new checkpoint",
        )
    return from_ipc(pa.py_buffer(blob)[1:])


class SegmentCache:
    """Opened segments of this process, and their local copies where a directory is given.

    Without a directory the rows stay in memory for as long as the cache keeps them. Either way a
    segment that is not here is read again from the blobs.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = directory
        self._open: OrderedDict[str, pa.Table] = OrderedDict()
        if directory is not None:
            directory.mkdir(parents=True, exist_ok=True)

    def open(self, segment: Segment, fetch: Callable[[str], bytes | None]) -> pa.Table:
        """The segment's rows; ``fetch`` is asked for the stored form only where no copy exists."""
        table = self._open.get(segment.id)
        if table is None:
            table = self._map(segment.id)
        if table is None:
            blob = fetch(segment.id)
            assert blob is not None, f"segment {segment.id} is in the manifest but not in the store"
            return self.add(segment, decode(blob))
        return self._keep(segment.id, table)

    def add(self, segment: Segment, table: pa.Table) -> pa.Table:
        """Keep a copy of a segment whose rows, one chunk a column, are at hand."""
        if self._directory is None:
            return self._keep(segment.id, table)
        handle, name = tempfile.mkstemp(dir=self._directory)
        with os.fdopen(handle, "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
        Path(name).replace(self._directory / segment.id)
        mapped = self._map(segment.id)
        return self._keep(segment.id, table if mapped is None else mapped)

    def drop(self, segment: Segment) -> None:
        """Forget a segment and delete its local copy."""
        self._open.pop(segment.id, None)
        if self._directory is not None:
            (self._directory / segment.id).unlink(missing_ok=True)

    def _map(self, name: str) -> pa.Table | None:
        if self._directory is None:
            return None
        try:
            file = pa.memory_map(str(self._directory / name))
            return pa.ipc.open_file(file, options=ONE_THREAD).read_all()
        except FileNotFoundError:
            return None

    def _keep(self, name: str, table: pa.Table) -> pa.Table:
        self._open[name] = table
        self._open.move_to_end(name)
        if len(self._open) > _OPEN_SEGMENTS_MAX:
            self._open.popitem(last=False)
        return table


def numbers(table: pa.Table, column: str) -> Ints:
    """An int64 column of an opened segment, without a copy."""
    return table.column(column).chunk(0).to_numpy()  # type: ignore[no-any-return]
