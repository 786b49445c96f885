"""The stored rows of one table in one bucket: look up by key, append a batch's changes, compact.

A look-up costs by the keys asked for: a binary search over each run's hash column, newest first,
then a comparison of the keys themselves. Appending writes one segment. ``compact`` spends a budget
in bytes that the caller derives from what the batch wrote (``state.runs`` has the policy).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dovetail.columns import DELETED, EVENT_TIME, HASH
from dovetail.kernels.equality import rows_equal
from dovetail.state.blobs import Blobs
from dovetail.state.runs import Merge, Run, Runs
from dovetail.state.segment import (
    Segment,
    SegmentCache,
    describe,
    encode,
    hashes,
)

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

SEGMENT_BYTES_MAX = 4 << 20
_LAST_HASH = np.iinfo(np.int64).max
_FIRST_HASH = np.iinfo(np.int64).min


@dataclass(frozen=True)
class Located:
    """Where the current rows of n keys lie: ``segment`` (an index into ``segments``, -1 for none)
    and
    ``row``: int64[n]; ``event_time_us``: int64[n]; ``present``: bool[n], false where there is no
    row or a tombstone.
    """

    segments: tuple[Segment, ...]
    segment: Ints
    row: Ints
    event_time_us: Ints
    present: Mask


class TableState:
    """One table of one bucket. ``runs`` is what the manifest records after a batch."""

    def __init__(
        self, schema: pa.Schema, keys: int, runs: Runs, blobs: Blobs, cache: SegmentCache
    ) -> None:
        """``schema``: the stored columns; ``keys``: how many of them, after the three of the
        segment itself, make the key.
        """
        self.runs = runs
        self._schema = schema
        self._key_columns = range(3, 3 + keys)
        self._blobs = blobs
        self._cache = cache

    def locate(self, hash_: Ints, keys: Sequence[pa.Array]) -> Located:
        """The current row of each key. ``hash_`` is non-decreasing; the keys are distinct."""
        n = len(hash_)
        segments: list[Segment] = []
        found = Located(
            (), np.full(n, -1), np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(n, np.bool_)
        )
        for run in reversed(self.runs.runs):
            for segment in run.segments:
                first, last = np.searchsorted(hash_, (segment.first_hash, segment.last_hash))
                last += np.searchsorted(hash_[last:], segment.last_hash, side="right")
                wanted = first + np.flatnonzero(found.segment[first:last] < 0)
                if len(wanted) == 0:
                    continue
                self._search(segment, len(segments), wanted, hash_, keys, found)
                segments.append(segment)
        return replace(found, segments=tuple(segments))

    def _search(
        self,
        segment: Segment,
        number: int,
        wanted: Ints,
        hash_: Ints,
        keys: Sequence[pa.Array],
        found: Located,
    ) -> None:
        """Enter into ``found`` those of the ``wanted`` keys that the segment holds."""
        table = self._open(segment)
        stored_hash = hashes(table)
        first = np.searchsorted(stored_hash, hash_[wanted])
        hit = stored_hash[np.minimum(first, len(stored_hash) - 1)] == hash_[wanted]
        query, row = wanted[hit], first[hit]
        while len(query):
            stored_keys = [table.column(i).chunk(0).take(pa.array(row)) for i in self._key_columns]
            same = rows_equal(stored_keys, [key.take(pa.array(query)) for key in keys])
            at, rows = query[same], row[same]
            found.segment[at] = number
            found.row[at] = rows
            found.event_time_us[at] = table.column(EVENT_TIME).chunk(0).to_numpy()[rows]
            deleted = table.column(DELETED).chunk(0).take(pa.array(rows))
            found.present[at] = ~deleted.to_numpy(zero_copy_only=False)
            query, row = query[~same], row[~same] + 1
            more = row < len(stored_hash)
            query, row = query[more], row[more]
            collides = stored_hash[row] == hash_[query]
            query, row = query[collides], row[collides]

    def fetch(self, located: Located, which: Ints) -> pa.Table:
        """The stored rows of the located keys ``which``, in that order."""
        parts, order = [], []
        segment = located.segment[which]
        for number in np.unique(segment):
            at = np.flatnonzero(segment == number)
            rows = pa.array(located.row[which[at]])
            parts.append(self._open(located.segments[number]).take(rows))
            order.append(at)
        if not parts:
            return self._schema.empty_table()
        place = np.empty(len(which), dtype=np.int64)
        place[np.concatenate(order)] = np.arange(len(which))
        return pa.concat_tables(parts).combine_chunks().take(pa.array(place))

    def append(self, rows: pa.Table) -> int:
        """Store a batch's last row per key, in hash order; returns the bytes written."""
        if rows.num_rows == 0:
            return 0
        pieces = -(-rows.nbytes // SEGMENT_BYTES_MAX)
        length = -(-rows.num_rows // pieces)
        segments = tuple(
            self._write(rows.slice(start, length)) for start in range(0, rows.num_rows, length)
        )
        self.runs = self.runs.append(segments)
        return sum(segment.size_bytes for segment in segments)

    def compact(self, budget_bytes: int) -> None:
        """Carry merges on until about ``budget_bytes`` of input are read; one step is at least made
        for each merge that the budget reaches.
        """
        self.runs = self.runs.due(_FIRST_HASH)
        size_bytes = min(budget_bytes, SEGMENT_BYTES_MAX)
        for merge in self.runs.merges:
            while budget_bytes > 0 and merge.next_hash < _LAST_HASH:
                step, read_bytes = self._step(merge, size_bytes)
                self.runs = self.runs.advanced(merge, step)
                merge, budget_bytes = step, budget_bytes - read_bytes
            if merge.next_hash == _LAST_HASH:
                inputs = self.runs.inputs(merge)
                self.runs = self.runs.completed(merge)
                for run in inputs:
                    self._delete(run)

    def _step(self, merge: Merge, size_bytes: int) -> tuple[Merge, int]:
        """Merge the next slice of the hash space that holds about ``size_bytes`` of input."""
        inputs = self.runs.inputs(merge)
        upper = self._slice_end(inputs, merge.next_hash, size_bytes)
        pieces = [self._slice(run, merge.next_hash, upper) for run in inputs]
        read_bytes = sum(piece.nbytes for piece in pieces)
        merged = newest_of_key(pieces, self._key_columns)
        if self.runs.is_oldest(merge):
            merged = merged.filter(pa.compute.invert(merged.column(DELETED)))
        done = merge.done
        if merged.num_rows:
            done = (*done, self._write(merged))
        return replace(merge, next_hash=upper, done=done), max(read_bytes, 1)

    def _slice_end(self, inputs: Sequence[Run], start: int, size_bytes: int) -> int:
        """An exclusive upper hash such that the slice from ``start`` holds about ``size_bytes``.

        Hashes are uniform, so the share of the remaining rows is the share of the hash space.
        """
        left = sum(_bytes_above(segment, start) for run in inputs for segment in run.segments)
        if left <= 2 * size_bytes:
            return int(_LAST_HASH)
        return min(
            int(_LAST_HASH), start + int((int(_LAST_HASH) - start) * (size_bytes / left)) + 1
        )

    def _slice(self, run: Run, start: int, end: int) -> pa.Table:
        last = end == _LAST_HASH
        parts = [self._schema.empty_table()]
        for segment in run.segments:
            if segment.last_hash < start or (segment.first_hash >= end and not last):
                continue
            table = self._open(segment)
            first = np.searchsorted(hashes(table), start)
            stop = len(table) if last else np.searchsorted(hashes(table), end)
            parts.append(table.slice(first, stop - first))
        return pa.concat_tables(parts)

    def _open(self, segment: Segment) -> pa.Table:
        return self._cache.open(segment, self._blobs.get)

    def _write(self, table: pa.Table) -> Segment:
        table = table.combine_chunks()
        segment = describe(table)
        self._blobs.put(segment.id, encode(table))
        self._cache.add(segment, table)
        return segment

    def _delete(self, run: Run) -> None:
        for segment in run.segments:
            self._blobs.delete(segment.id)
            self._cache.drop(segment)


def _bytes_above(segment: Segment, start: int) -> float:
    """About how many bytes of a segment lie at ``start`` or above."""
    if segment.last_hash < start:
        return 0.0
    share = (segment.last_hash - start + 1) / (segment.last_hash - segment.first_hash + 1)
    return segment.size_bytes * min(1.0, share)


def newest_of_key(pieces: Sequence[pa.Table], key_columns: Sequence[int]) -> pa.Table:
    """The rows of ``pieces`` (oldest first) in hash order, each key's newest only."""
    rows = pa.concat_tables(pieces).combine_chunks()
    age = np.repeat(np.arange(len(pieces)), [len(piece) for piece in pieces])
    if rows.num_rows == 0:
        return rows
    hash_ = rows.column(HASH).chunk(0).to_numpy()
    order = np.lexsort((-age, hash_))
    ordered = hash_[order]
    rows = rows.take(pa.array(order))
    keys = [rows.column(i).chunk(0) for i in key_columns]
    keep = np.ones(len(ordered), dtype=np.bool_)
    distance = 1
    while True:
        later = np.flatnonzero(ordered[distance:] == ordered[:-distance]) + distance
        if len(later) == 0:
            return rows.filter(pa.array(keep))
        newer = pa.array(later - distance)
        same = rows_equal([k.take(pa.array(later)) for k in keys], [k.take(newer) for k in keys])
        keep[later[same]] = False
        distance += 1
