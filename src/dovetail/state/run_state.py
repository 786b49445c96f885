"""What all stores of a bucket share: append a batch's rows as segments, merge, expire, fetch.

A store is a list of sorted runs (``state.runs``). Its kinds differ in the column that orders the
rows, in how they look rows up, and in what a merge keeps: ``TableState``, ``HistoryState`` and
``QueueState``. ``compact`` spends a budget in bytes that the caller derives from what the batch
wrote.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dovetail.columns import EVENT_TIME, HASH
from dovetail.state.blobs import Blobs
from dovetail.state.runs import Merge, Run, Runs
from dovetail.state.segment import Segment, SegmentCache, describe, encode, numbers

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

SEGMENT_BYTES_MAX = 4 << 20
_COMPACTION_BYTES_MIN = 256 << 10
_FIRST = int(np.iinfo(np.int64).min)
_LAST = int(np.iinfo(np.int64).max)


@dataclass(frozen=True)
class Located:
    """Where the stored rows that answer n queries lie: ``segment`` (an index into ``tables``, the
    opened segments, -1 for none) and ``row``: int64[n]; ``event_time_us``: int64[n]; ``present``:
    bool[n], false where there is no row or a tombstone.
    """

    schema: pa.Schema
    tables: tuple[pa.Table, ...]
    segment: Ints
    row: Ints
    event_time_us: Ints
    present: Mask

    def of(self, which: Ints) -> Located:
        """The answers to some of the queries."""
        return replace(
            self,
            segment=self.segment[which],
            row=self.row[which],
            event_time_us=self.event_time_us[which],
            present=self.present[which],
        )

    def beside(self, other: Located) -> Located:
        """These answers, then another's."""
        shifted = np.where(other.segment < 0, -1, other.segment + len(self.tables))
        return Located(
            self.schema,
            (*self.tables, *other.tables),
            np.append(self.segment, shifted),
            np.append(self.row, other.row),
            np.append(self.event_time_us, other.event_time_us),
            np.append(self.present, other.present),
        )

    def fetch(self, which: Ints, columns: Sequence[int]) -> pa.Table:
        """Some columns of the rows of the queries ``which``, in that order."""
        rows, place = self.gathered(which, columns)
        return rows.combine_chunks().take(pa.array(place))

    def gathered(self, which: Ints, columns: Sequence[int]) -> tuple[pa.Table, Ints]:
        """Some columns of the rows of the queries ``which``, segment by segment, and where among
        them each query's is.
        """
        parts, order = [self.schema.empty_table().select(columns)], [np.zeros(0, np.int64)]
        segment = self.segment[which]
        for number in np.unique(segment):
            at = np.flatnonzero(segment == number)
            rows = pa.array(self.row[which[at]])
            parts.append(self.tables[number].select(columns).take(rows))
            order.append(at)
        place = np.empty(len(which), dtype=np.int64)
        place[np.concatenate(order)] = np.arange(len(which))
        return pa.concat_tables(parts), place


class RunState(ABC):
    """One store of one bucket. ``runs`` is what the manifest records after a batch."""

    def __init__(
        self,
        schema: pa.Schema,
        runs: Runs,
        blobs: Blobs,
        cache: SegmentCache,
        *,
        order: str = HASH,
        expiry: str = EVENT_TIME,
    ) -> None:
        """``schema``: the stored columns; ``order``: the int64 column that orders them; ``expiry``:
        the column of times by which they expire.
        """
        self.runs = runs
        self.schema = schema
        self._order = order
        self._expiry = expiry
        self._blobs = blobs
        self._cache = cache

    @abstractmethod
    def _merged(self, pieces: Sequence[pa.Table], merge: Merge) -> pa.Table:
        """The rows that a merge keeps of a slice of its inputs, oldest first, in order."""

    def store(self, rows: pa.Table) -> None:
        """Append a batch's rows, in the store's order, and let compaction keep pace with them."""
        written = self.append(rows)
        if written:
            self.compact(2 * self.runs.tiers() * written + _COMPACTION_BYTES_MIN)

    def expire(self, before_us: int) -> None:
        """Drop the runs whose rows are all older than a time."""
        self._drop(tuple(run for run in self.runs.idle() if run.latest_us < before_us))

    def _drop(self, dropped: tuple[Run, ...]) -> None:
        self.runs = self.runs.without(dropped)
        for run in dropped:
            self._delete(run)

    def append(self, rows: pa.Table) -> int:
        """Store a batch's rows, in the store's order; returns the bytes written."""
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
        self.runs = self.runs.due(_FIRST)
        size_bytes = min(budget_bytes, SEGMENT_BYTES_MAX)
        for merge in self.runs.merges:
            while budget_bytes > 0 and merge.next < _LAST:
                step, read_bytes = self._step(merge, size_bytes)
                self.runs = self.runs.advanced(merge, step)
                merge, budget_bytes = step, budget_bytes - read_bytes
            if merge.next == _LAST:
                inputs = self.runs.inputs(merge)
                self.runs = self.runs.completed(merge)
                for run in inputs:
                    self._delete(run)

    def _step(self, merge: Merge, size_bytes: int) -> tuple[Merge, int]:
        """Merge the next slice, one that holds about ``size_bytes`` of input."""
        inputs = self.runs.inputs(merge)
        upper = self._slice_end(inputs, merge.next, size_bytes)
        pieces = [self._slice(run, merge.next, upper) for run in inputs]
        read_bytes = sum(piece.nbytes for piece in pieces)
        merged = self._merged(pieces, merge)
        done = merge.done
        if merged.num_rows:
            done = (*done, self._write(merged))
        return replace(merge, next=upper, done=done), max(read_bytes, 1)

    def _slice_end(self, inputs: Sequence[Run], start: int, size_bytes: int) -> int:
        """An exclusive upper end such that the slice from ``start`` holds about ``size_bytes``.

        The share of the remaining bytes is taken for the share of the remaining range, as if it
        were evenly filled.
        """
        segments = [s for run in inputs for s in run.segments if s.last >= start]
        left = sum(_bytes_above(segment, start) for segment in segments)
        if left <= 2 * size_bytes:
            return _LAST
        low = max(start, min(segment.first for segment in segments))
        high = max(segment.last for segment in segments)
        end = low + int((high - low) * (size_bytes / left)) + 1
        return end if end <= high else _LAST

    def _slice(self, run: Run, start: int, end: int) -> pa.Table:
        last = end == _LAST
        parts = [self.schema.empty_table()]
        for segment in run.segments:
            if segment.last < start or (segment.first >= end and not last):
                continue
            table = self._open(segment)
            first = np.searchsorted(numbers(table, self._order), start)
            stop = len(table) if last else np.searchsorted(numbers(table, self._order), end)
            parts.append(table.slice(first, stop - first))
        return pa.concat_tables(parts)

    def _open(self, segment: Segment) -> pa.Table:
        return self._cache.open(segment, self._blobs.get)

    def _write(self, table: pa.Table) -> Segment:
        table = table.combine_chunks()
        segment = describe(table, self._order, self._expiry)
        self._blobs.put(segment.id, encode(table))
        self._cache.add(segment, table)
        return segment

    def _delete(self, run: Run) -> None:
        for segment in run.segments:
            self._blobs.delete(segment.id)
            self._cache.drop(segment)


def _bytes_above(segment: Segment, start: int) -> float:
    """About how many bytes of a segment lie at ``start`` or above."""
    if segment.last < start:
        return 0.0
    share = (segment.last - start + 1) / (segment.last - segment.first + 1)
    return segment.size_bytes * min(1.0, share)
