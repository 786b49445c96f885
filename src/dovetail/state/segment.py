"""Segments: immutable pieces of a bucket's state, rows in ascending order of one int64 column.

Their columns are those of the store. Each kind of store (``table_state``, ``history``, ``queue``)
defines them, and which of them orders the rows: the key hash or a time.

| form | content |
|---|---|
| stored | one version byte, then an Arrow IPC stream compressed with LZ4 |
| local | an uncompressed Arrow IPC file named by the segment's id, memory-mapped |

A lookup reads only the pages of the local file that it touches. Ids are never reused, so a local
file can be missing but not stale.
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
    """The manifest's description of a segment, an immutable piece of a store."""

    id: str
    """The name of the segment's blob and of its local copy, never used again."""
    rows: int
    """The count of rows, at least 1."""
    size_bytes: int
    """The size of the local, uncompressed form."""
    first: int
    """The smallest value of the column that orders the rows."""
    last: int
    """The largest value of that column, inclusive."""
    earliest_us: int
    """The smallest time by which a row expires, in microseconds."""
    latest_us: int
    """The largest time by which a row expires, in microseconds."""


def describe_segment(table: pa.Table, order: str, expiry: str) -> Segment:
    """Return the description of a new segment, under a new random id, for the rows of ``table``.
    They are already in ascending order of its int64 column ``order``. Nothing is stored.

    ``expiry``: the column of times, in microseconds, by which rows expire. ``table`` has at least
    one row. Neither column has nulls.
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
    """Return the rows of a segment as bytes: a byte with the format's version, then an Arrow IPC
    stream compressed with LZ4.
    """
    return bytes([FORMAT_VERSION]) + to_ipc(table)


def decode(blob: bytes, without: Collection[str] = ()) -> pa.Table:
    """Return the rows of a segment from ``blob``, bytes that ``encode`` made. Columns named in
    ``without`` are left out and stay packed; unknown names are ignored.

    Raises ``StateError`` for another format version.
    """
    if blob[0] != FORMAT_VERSION:
        raise StateError(
            "state segment",
            f"format version {blob[0]}, this version of dovetail reads {FORMAT_VERSION}",
            "Run the version that wrote the checkpoint, or start from a new checkpoint",
        )
    return from_ipc(pa.py_buffer(blob)[1:], without)


class SegmentCache:
    """The opened segments of this process, with local copies if a directory is given.

    A copy is never needed. If it is missing or cannot be read, the segment is read from the blobs
    again. Rows that cannot be written to a copy stay in memory, as without a directory, up to
    ``_MEMORY_BYTES_MAX`` in all.

    Copies are mapped up to ``mapped_bytes_max`` in all, by their size. Above it those used longest
    ago are closed, and mapped again when they are asked for. By default there is no limit.

    Other processes may share the directory. ``clean_up`` closes segments that one of them has
    deleted. It also deletes copies that no bucket has used for ``_UNUSED_S_MAX``: those of buckets
    that have moved to another machine, and of processes that were killed.

    ``pages``: the parts of manifests that this process has seen last.
    """

    def __init__(self, directory: Path | None = None, mapped_bytes_max: float = inf) -> None:
        """Begin without open segments. ``directory``: the folder of local copies, None for no
        copies. ``mapped_bytes_max``: the most bytes of copies that stay mapped, by default
        without a limit.
        """
        self._directory, self._mapped_bytes_max = directory, mapped_bytes_max
        self.pages: OrderedDict[str, tuple[Segment, ...]] = OrderedDict()
        self._open: OrderedDict[str, pa.Table] = OrderedDict()
        self._in_memory: dict[str, int] = {}
        self._mapped: OrderedDict[str, int] = OrderedDict()
        self._memory_bytes = self._mapped_bytes = 0
        self._kept_s: dict[str, float] = {}
        self._looked_s = self._swept_s = -inf

    @property
    def segments(self) -> frozenset[str]:
        """The ids of the segments that are open in this process."""
        return frozenset(self._open)

    def open(self, segment: Segment, fetch: Callable[[str], bytes | None]) -> pa.Table:
        """Return the segment's rows, from memory or its local copy if there is one.

        Else ``fetch`` is asked for the stored form by the segment's id; an ``AssertionError`` is
        raised if it returns None. The rows then stay open, with a new local copy if there is a
        directory. Raises ``StateError`` if the stored form has another format version.
        """
        table = self._open.get(segment.id)
        if table is not None:
            self._open.move_to_end(segment.id)
            if segment.id in self._mapped:
                self._mapped.move_to_end(segment.id)
            return table
        table = self._map_copy(segment)
        if table is not None:
            return self._keep_open(segment, table)
        blob = fetch(segment.id)
        assert blob is not None, f"segment {segment.id} is in the manifest but not in the store"
        return self.add(segment, decode(blob))

    def add(self, segment: Segment, table: pa.Table) -> pa.Table:
        """Write a segment's rows to a local copy, and return the rows mapped from it. Return
        ``table`` itself, and keep it in memory, if there is no directory or the copy cannot be
        written or read.

        ``table``: the segment's rows, with one chunk a column. Above 4096 open segments, or above
        ``mapped_bytes_max``, other segments are closed, those used longest ago first. Above 256 MiB
        in memory, those added longest ago are.
        """
        path = self._copy_path(segment.id)
        mapped = None
        if path is not None and local_files.write_file(path, _copy_writer(segment, table)):
            mapped = self._map_copy(segment)
        if mapped is None:
            self._in_memory[segment.id] = table.nbytes
            self._memory_bytes += table.nbytes
        return self._keep_open(segment, table if mapped is None else mapped)

    def drop(self, segment: Segment) -> None:
        """Close a segment, if it is open, and delete its local copy, if there is one. The stored
        blob stays.
        """
        self._close_segment(segment.id)
        path = self._copy_path(segment.id)
        if path is not None:
            local_files.remove_file(path)

    def remember_pages(self, pages: Mapping[str, tuple[Segment, ...]]) -> None:
        """Remember pages of a manifest by their names. A page is a list of segments that is stored
        apart and never changes. Above ``_PAGES_MAX`` (4096) pages in all, forget those remembered
        longest ago. A page remembered again counts as new.
        """
        for name, page in pages.items():
            self.pages[name] = page
            self.pages.move_to_end(name)
        while len(self.pages) > _PAGES_MAX:
            self.pages.popitem(last=False)

    def clean_up(self, segments: Iterable[Segment], now_s: float) -> None:
        """Clean up at the end of a bucket's batch. Without a directory, do nothing.

        Copies of the bucket's segments get ``now_s`` as their file's time of modification, which
        marks them as used. Copies not marked for ``_UNUSED_S_MAX`` (3600) seconds are deleted,
        those of other processes included. Both are done every 300 s at most. Open segments whose
        copy another process deleted are closed, once a second at most. ``segments``: all segments
        of the bucket. ``now_s``: the wall-clock time in epoch seconds.
        """
        if self._directory is None:
            return
        for segment in segments:
            if self._kept_s.get(segment.id, -inf) <= now_s - _TOUCH_S:
                self._kept_s[segment.id] = now_s
                with suppress(OSError):
                    os.utime(self._directory / segment.id, (now_s, now_s))
        if self._looked_s <= now_s - _LOOK_S:
            self._looked_s = now_s
            for name in self._open.keys() - self._in_memory.keys() - self._file_names():
                self._close_segment(name)
        if self._swept_s <= now_s - _TOUCH_S:
            self._swept_s = now_s
            self._kept_s = {name: s for name, s in self._kept_s.items() if s > now_s - _TOUCH_S}
            local_files.remove_older(self._directory, now_s - _UNUSED_S_MAX)

    def _file_names(self) -> set[str]:
        """Return the names of the files in the cache's directory; none if it cannot be read. There
        must be a directory.
        """
        assert self._directory is not None
        try:
            return {path.name for path in self._directory.iterdir()}
        except OSError:
            return set()

    def _copy_path(self, name: str) -> Path | None:
        """Return the path of the local copy of the segment with the id ``name``, whether it exists
        or not; None without a directory.
        """
        return None if self._directory is None else self._directory / name

    def _map_copy(self, segment: Segment) -> pa.Table | None:
        """Return the segment's rows, mapped from its local copy, or None without a directory or a
        valid copy. An invalid copy is removed.
        """
        path = self._copy_path(segment.id)
        if path is None:
            return None
        try:
            table = pa.ipc.open_file(pa.memory_map(str(path)), options=ONE_THREAD).read_all()
            table.validate()
        except FileNotFoundError:
            return None
        except (OSError, pa.ArrowException):
            local_files.remove_file(path)
            return None
        if (table.schema.metadata or {}).get(_ID) != segment.id.encode():
            local_files.remove_file(path)
            return None
        return table.replace_schema_metadata(None)

    def _keep_open(self, segment: Segment, table: pa.Table) -> pa.Table:
        """Add a segment's rows ``table`` to the open ones, and return them. Above 4096 open
        segments, or above ``mapped_bytes_max``, close those used longest ago. Above 256 MiB in
        memory, close those added longest ago. At least one mapped segment and one in memory stay.
        """
        self._open[segment.id] = table
        if segment.id not in self._in_memory:
            self._mapped_bytes += segment.size_bytes - self._mapped.pop(segment.id, 0)
            self._mapped[segment.id] = segment.size_bytes
        if len(self._open) > _OPEN_SEGMENTS_MAX:
            self._close_segment(next(iter(self._open)))
        while self._mapped_bytes > self._mapped_bytes_max and len(self._mapped) > 1:
            self._close_segment(next(iter(self._mapped)))
        while self._memory_bytes > _MEMORY_BYTES_MAX and len(self._in_memory) > 1:
            self._close_segment(next(iter(self._in_memory)))
        return table

    def _close_segment(self, name: str) -> None:
        """Close the segment with the id ``name``, if it is open, so its memory can be freed. Its
        local copy stays.
        """
        self._open.pop(name, None)
        self._memory_bytes -= self._in_memory.pop(name, 0)
        self._mapped_bytes -= self._mapped.pop(name, 0)


def _copy_writer(segment: Segment, table: pa.Table) -> Callable[[IO[bytes]], None]:
    """Return a function that writes a segment's local copy to a file: the rows ``table``, with the
    segment's id in the metadata.
    """
    named = table.replace_schema_metadata({_ID: segment.id})

    def write_copy(file: IO[bytes]) -> None:
        """Write the rows to ``file`` as an Arrow IPC file."""
        with pa.ipc.new_file(file, named.schema) as writer:
            writer.write_table(named)

    return write_copy


def int64_column(table: pa.Table, column: str) -> Ints:
    """Return the int64 column named ``column`` of an opened segment as an array, without a copy.
    ``table`` has one chunk a column, and the column has no nulls.
    """
    return table.column(column).chunk(0).to_numpy()  # type: ignore[no-any-return]
