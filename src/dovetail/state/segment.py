"""Segments: immutable pieces of a bucket's state, rows in ascending order of one int64 column.

Their columns are the store's: each kind of store (``table_state``, ``history``, ``queue``) says
which they are and which of them, the key hash or a time, orders the rows.

Stored form: one version byte, then an Arrow IPC stream compressed with LZ4. Local form: an
uncompressed Arrow IPC file named by the segment's id, memory-mapped, so that a look-up reads only
the pages it touches. Ids are never reused, so a local file can be missing but not stale.
"""

from __future__ import annotations

import os
import uuid
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dovetail.columns import EVENT_TIME
from dovetail.errors import StateError
from dovetail.state import local_files
from dovetail.state.ipc import ONE_THREAD, from_ipc, to_ipc

Ints = npt.NDArray[np.int64]

FORMAT_VERSION = 1

_OPEN_SEGMENTS_MAX = 4096
_MEMORY_BYTES_MAX = 256 << 20
_PAGES_MAX = 4096
_UNUSED_S_MAX = 3600.0
_TOUCH_S = 300.0
_LOOK_S = 1.0
_ID = b"segment"


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


def decode(blob: bytes, without: Collection[str] = ()) -> pa.Table:
    """The rows of a stored segment, but for some columns that are not to be unpacked."""
    if blob[0] != FORMAT_VERSION:
        raise StateError(
            "state segment",
            f"format version {blob[0]}, this version of dovetail reads {FORMAT_VERSION}",
            "Run the version that wrote the checkpoint, or start from a new checkpoint",
        )
    return from_ipc(pa.py_buffer(blob)[1:], without)


class SegmentCache:
    """Opened segments of this process, and their local copies where a directory is given.

    A copy is never needed: where there is none, or one that cannot be read, the segment is read
    from the blobs again; rows of which no copy can be written stay in memory, as without a
    directory, but for ``_MEMORY_BYTES_MAX`` of them in all.

    Other processes may share the directory. What one of them has deleted is closed here, too, and
    copies that no bucket has asked for or kept for ``_UNUSED_S_MAX`` are deleted (``settle``): of
    buckets that have gone to another machine, and what a process left when it was killed.

    ``pages``: parts of manifests that this process has seen last.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = directory
        self.pages: OrderedDict[str, tuple[Segment, ...]] = OrderedDict()
        self._open: OrderedDict[str, pa.Table] = OrderedDict()
        self._in_memory: dict[str, int] = {}
        self._memory_bytes = 0
        self._kept_s: dict[str, float] = {}
        self._looked_s = self._swept_s = -inf

    @property
    def segments(self) -> frozenset[str]:
        """The ids of those that are open."""
        return frozenset(self._open)

    def open(self, segment: Segment, fetch: Callable[[str], bytes | None]) -> pa.Table:
        """The segment's rows; ``fetch`` is asked for the stored form only where no copy exists."""
        table = self._open.get(segment.id)
        if table is not None:
            self._open.move_to_end(segment.id)
            return table
        table = self._map(segment)
        if table is not None:
            return self._keep(segment, table)
        blob = fetch(segment.id)
        assert blob is not None, f"segment {segment.id} is in the manifest but not in the store"
        return self.add(segment, decode(blob))

    def add(self, segment: Segment, table: pa.Table) -> pa.Table:
        """Keep a copy of a segment whose rows, one chunk a column, are at hand."""
        path = self._path(segment.id)
        mapped = None
        if path is not None and local_files.write(path, _named(segment, table)):
            mapped = self._map(segment)
        if mapped is None:
            self._in_memory[segment.id] = table.nbytes
            self._memory_bytes += table.nbytes
        return self._keep(segment, table if mapped is None else mapped)

    def drop(self, segment: Segment) -> None:
        """Forget a segment and delete its local copy."""
        self._close(segment.id)
        path = self._path(segment.id)
        if path is not None:
            local_files.remove(path)

    def see(self, pages: Mapping[str, tuple[Segment, ...]]) -> None:
        """Remember parts of a manifest, which never change."""
        for name, page in pages.items():
            self.pages[name] = page
            self.pages.move_to_end(name)
        while len(self.pages) > _PAGES_MAX:
            self.pages.popitem(last=False)

    def settle(self, kept: Iterable[Segment], now_s: float) -> None:
        """At the end of a bucket's batch: ``kept`` is all that it consists of; ``now_s``: the time
        of the clock by which files are dated.
        """
        if self._directory is None:
            return
        for segment in kept:
            if self._kept_s.get(segment.id, -inf) <= now_s - _TOUCH_S:
                self._kept_s[segment.id] = now_s
                with suppress(OSError):
                    os.utime(self._directory / segment.id, (now_s, now_s))
        if self._looked_s <= now_s - _LOOK_S:
            self._looked_s = now_s
            for name in self._open.keys() - self._in_memory.keys() - self._present():
                self._close(name)
        if self._swept_s <= now_s - _TOUCH_S:
            self._swept_s = now_s
            self._kept_s = {name: s for name, s in self._kept_s.items() if s > now_s - _TOUCH_S}
            local_files.remove_older(self._directory, now_s - _UNUSED_S_MAX)

    def _present(self) -> set[str]:
        assert self._directory is not None
        try:
            return {path.name for path in self._directory.iterdir()}
        except OSError:
            return set()

    def _path(self, name: str) -> Path | None:
        return None if self._directory is None else self._directory / name

    def _map(self, segment: Segment) -> pa.Table | None:
        """The segment's rows from its local copy, None where that is missing or not one."""
        path = self._path(segment.id)
        if path is None:
            return None
        try:
            table = pa.ipc.open_file(pa.memory_map(str(path)), options=ONE_THREAD).read_all()
            table.validate()
        except FileNotFoundError:
            return None
        except (OSError, pa.ArrowException):
            local_files.remove(path)
            return None
        if (table.schema.metadata or {}).get(_ID) != segment.id.encode():
            local_files.remove(path)
            return None
        return table.replace_schema_metadata(None)

    def _keep(self, segment: Segment, table: pa.Table) -> pa.Table:
        self._open[segment.id] = table
        if len(self._open) > _OPEN_SEGMENTS_MAX:
            self._close(next(iter(self._open)))
        while self._memory_bytes > _MEMORY_BYTES_MAX and len(self._in_memory) > 1:
            self._close(next(iter(self._in_memory)))
        return table

    def _close(self, name: str) -> None:
        self._open.pop(name, None)
        self._memory_bytes -= self._in_memory.pop(name, 0)


def _named(segment: Segment, table: pa.Table) -> Callable[[IO[bytes]], None]:
    """Writes a local copy that says of which segment it is."""
    named = table.replace_schema_metadata({_ID: segment.id})

    def fill(file: IO[bytes]) -> None:
        with pa.ipc.new_file(file, named.schema) as writer:
            writer.write_table(named)

    return fill


def numbers(table: pa.Table, column: str) -> Ints:
    """An int64 column of an opened segment, without a copy."""
    return table.column(column).chunk(0).to_numpy()  # type: ignore[no-any-return]
