"""The operations that all stores of a bucket share: append, merge, expire, fetch.

A store is a list of sorted runs (``state.runs``). Its kinds are ``TableState``, ``HistoryState``
and ``QueueState``. They differ in the column that orders rows, in lookups, and in the rows that a
merge keeps. ``compact`` spends a budget in bytes, derived from the bytes that the batch wrote.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dovetail.base.columns import EVENT_TIME
from dovetail.state.blobs import Blobs
from dovetail.state.ipc import parts_of
from dovetail.state.merge_extent import MergeInput, Order, step_end
from dovetail.state.runs import Merge, Runs, SortedRun
from dovetail.state.segment import Segment, SegmentCache, describe_segment, encode

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

SEGMENT_BYTES_MAX = 4 << 20
_COMPACTION_BYTES_MIN = 256 << 10


@dataclass(frozen=True)
class Located:
    """The places of the stored rows that answer n queries of a store: for each, a segment and a row
    in it.
    """

    schema: pa.Schema
    """The columns of the rows."""
    tables: tuple[pa.Table, ...]
    """The opened segments."""
    segment: Ints
    """The index in ``tables`` for each query, -1 if no row answers it: int64[n]. A tombstone is a
    row.
    """
    row: Ints
    """The index of the row in that segment, 0 for none: int64[n]."""
    event_time_us: Ints
    """The event time of the row: int64[n]. Each lookup says what it is for none."""
    present: Mask
    """False if there is no row or the row is a tombstone: bool[n]."""

    def take(self, which: Ints) -> Located:
        """Return the answers to the queries with the indices ``which``, int64[m], in that order. An
        index may come several times. ``tables`` stay whole.
        """
        return replace(
            self,
            segment=self.segment[which],
            row=self.row[which],
            event_time_us=self.event_time_us[which],
            present=self.present[which],
        )

    def concatenate(self, other: Located) -> Located:
        """Return these answers followed by those of ``other``, which has the same ``schema``. Query
        i of ``other`` becomes query n + i, with n the count of queries of ``self``.
        """
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
        """Return the ``columns`` of the rows that answer the queries ``which``, one row per query,
        in that order.

        ``which``: indices of queries, int64[m]. ``columns``: indices in ``schema``. Every one of
        these queries must have a row, perhaps a tombstone; this is not checked.
        """
        rows, gathered_row = self.fetch_by_segment(which, columns)
        return rows.combine_chunks().take(pa.array(gathered_row))

    def fetch_by_segment(self, which: Ints, columns: Sequence[int]) -> tuple[pa.Table, Ints]:
        """Return the ``columns`` of the rows that answer the queries ``which``, int64[m], ordered
        by segment. Rows of one segment are in the order of ``which``.

        The second result is int64[m]: the index of each query's row among them, in the order of
        ``which``. For example, queries 4, 1 and 2 have rows in segments 1, 0 and 1:

        | rows | query 1 | query 4 | query 2 |
        |---|---|---|---|
        | segment | 0 | 1 | 1 |
        | gathered row | 0 | 1 | 2 |

        So the rows of queries 4, 1 and 2 are [1, 0, 2].

        ``columns``: indices in ``schema``. Every one of these queries must have a row; this is not
        checked. A row that answers two of the queries comes twice.
        """
        parts, order = [self.schema.empty_table().select(columns)], [np.zeros(0, np.int64)]
        segment = self.segment[which]
        for segment_index in np.unique(segment):
            at = np.flatnonzero(segment == segment_index)
            rows = pa.array(self.row[which[at]])
            parts.append(self.tables[segment_index].select(columns).take(rows))
            order.append(at)
        gathered_row = np.empty(len(which), dtype=np.int64)
        gathered_row[np.concatenate(order)] = np.arange(len(which))
        return pa.concat_tables(parts), gathered_row


class RunState(ABC):
    """One store of one bucket. ``runs`` is what the manifest records after a batch.

    Each method that reads rows raises ``StateError`` if a segment has another format version.
    """

    def __init__(
        self,
        schema: pa.Schema,
        runs: Runs,
        blobs: Blobs,
        cache: SegmentCache,
        *,
        order: Order,
        expiry: str = EVENT_TIME,
    ) -> None:
        """Open the store. Nothing is read yet.

        ``schema``: the stored columns. ``runs``: those that the manifest names. ``blobs``: the
        bucket's storage of segments. ``cache``: the segments that the process has opened.
        ``order``: the columns that order rows, the first one being that of the segments' ranges.
        ``expiry``: the column of times by which rows expire.
        """
        self.runs = runs
        self.schema = schema
        self._order = order
        self._expiry = expiry
        self._blobs = blobs
        self._cache = cache

    @abstractmethod
    def _merge_slices(self, pieces: Sequence[pa.Table], merge: Merge) -> pa.Table:
        """Return, in the store's order, the rows that ``merge`` keeps of one slice of its inputs.

        ``pieces``: the rows of each input of ``merge`` in the slice, oldest input first, each in
        the store's order and perhaps empty. The result may be empty.
        """

    def store(self, rows: pa.Table) -> None:
        """Append a batch's rows as the newest run, and merge in proportion to the bytes written:
        up to twice these bytes for each tier of runs, plus 256 KiB (``compact``). Segments are
        written and deleted, and ``runs`` is replaced, which the caller writes to the manifest. A
        table without rows changes nothing.

        ``rows``: the columns of ``schema``, in the store's order.
        """
        written = self.append(rows)
        if written:
            self.compact(2 * self.runs.count_tiers() * written + _COMPACTION_BYTES_MIN)

    def expire(self, before_us: int) -> None:
        """Drop the sorted runs whose rows all expire before ``before_us``, exclusive, in
        microseconds, by the column ``expiry``. Their segments and local copies are deleted.

        A run with any other row stays whole, and so does a run that is being merged.
        """
        self._drop_runs(
            tuple(run for run in self.runs.unmerged_runs() if run.latest_us < before_us)
        )

    def _drop_runs(self, dropped: tuple[SortedRun, ...]) -> None:
        """Remove the runs ``dropped`` from the store, and delete their segments. No merge may read
        these runs (``Runs.unmerged_runs``).
        """
        self.runs = self.runs.without_runs(dropped)
        for run in dropped:
            self._delete_segments(run)

    def append(self, rows: pa.Table) -> int:
        """Store a batch's ``rows`` as the newest sorted run, of tier 0 (the runs of single
        batches). ``runs`` is replaced, which the caller writes to the manifest. Nothing is merged.
        The rows must have the columns of ``schema`` and be in the store's order, which is not
        checked.

        A segment has at most ``SEGMENT_BYTES_MAX`` (4 MiB), uncompressed, but a row that is larger
        has a segment of its own. Each segment becomes a blob and is put into the cache, too.

        Return the uncompressed bytes of the new segments; 0 for no rows, which make no run.
        """
        if rows.num_rows == 0:
            return 0
        segments = tuple(self._write_segment(part) for part in parts_of(rows, SEGMENT_BYTES_MAX))
        self.runs = self.runs.append(segments)
        return sum(segment.size_bytes for segment in segments)

    def compact(self, budget_bytes: int) -> None:
        """Start a merge in each tier that has ``FANOUT`` (8) sorted runs or more and no merge. Tier
        0 has the runs of single batches; a merge of a tier makes a run of the next one, or of the
        same. Carry merges on, one after the other, until about ``budget_bytes`` of input are read.
        A merge that the budget reaches makes at least one step, so the budget may be exceeded by
        one.

        A complete merge replaces its inputs in ``runs``, and their segments are deleted. An
        incomplete one goes on at the next call.
        """
        self.runs = self.runs.with_due_merges()
        size_bytes = min(budget_bytes, SEGMENT_BYTES_MAX)
        for merge in self.runs.merges:
            inputs = self.runs.runs_read_by(merge)
            whole = tuple(run.rows for run in inputs)
            while budget_bytes > 0 and merge.read != whole:
                step, read_bytes = self._advance_merge(merge, size_bytes)
                self.runs = self.runs.replace_merge(merge, step)
                merge, budget_bytes = step, budget_bytes - read_bytes
            if merge.read == whole:
                self.runs = self.runs.complete_merge(merge)
                for run in inputs:
                    self._delete_segments(run)

    def contents(self) -> Iterator[pa.Table]:
        """Yield, in the store's order and about 4 MiB at a time, all rows that a merge of
        everything would keep; nothing for an empty store. No segment is stored or deleted.

        It is for a store that is only read, because it puts all runs into one tier and forgets
        merges.
        """
        self.runs = self.runs.on_one_tier()
        merge = Merge(0, (0,) * len(self.runs.runs))
        whole = tuple(run.rows for run in self.runs.runs)
        while merge.read != whole:
            order = replace(self._order, whole=True)  # a row is read with its replacement
            read, pieces = self._next_slice(merge, SEGMENT_BYTES_MAX, order)
            merged, merge = self._merge_slices(pieces, merge), replace(merge, read=read)
            if merged.num_rows:
                merge = replace(merge, done=(self._describe_segment(merged),))
                yield merged

    def _advance_merge(self, merge: Merge, size_bytes: int) -> tuple[Merge, int]:
        """Merge the next slice of the inputs of ``merge``, of about ``size_bytes``, into one new
        segment, which is stored. There is none if no row is kept.

        Return the merge as it is after this step, and the bytes read, at least 1. ``runs`` stays:
        the caller puts the new merge there.
        """
        read, pieces = self._next_slice(merge, size_bytes, self._order)
        read_bytes = sum(piece.nbytes for piece in pieces)
        merged = self._merge_slices(pieces, merge)
        done = merge.done
        if merged.num_rows:
            done = (*done, self._write_segment(merged))
        return replace(merge, read=read, done=done), max(read_bytes, 1)

    def _next_slice(
        self, merge: Merge, size_bytes: int, order: Order
    ) -> tuple[tuple[int, ...], list[pa.Table]]:
        """Return for each input of ``merge``, oldest first, the count of its rows read so far, the
        next slice included. Also return the input's rows in that slice, perhaps an empty table.
        Neither ``merge`` nor ``runs`` changes.

        The slice has about ``size_bytes``; it holds all rows that are left if they are no more.
        ``order``: the order in which rows are read.
        """
        inputs = [MergeInput(run, self._open_segment) for run in self.runs.runs_read_by(merge)]
        read = step_end(inputs, merge.read, size_bytes, order)
        pieces = [
            pa.concat_tables([self.schema.empty_table(), *input_.slice_rows(start, end)])
            for input_, start, end in zip(inputs, merge.read, read, strict=True)
        ]
        return read, pieces

    def _open_segment(self, segment: Segment) -> pa.Table:
        """Return the rows of a segment as a table, from memory, a local copy or the stored blob,
        which must exist. Raises ``StateError`` for another format version.
        """
        return self._cache.open(segment, self._blobs.get)

    def _write_segment(self, table: pa.Table) -> Segment:
        """Store ``table``, which has a row and is in the store's order, as a new segment, and add
        it to the cache. Return the segment's description. ``runs`` stays.
        """
        table = table.combine_chunks()
        segment = self._describe_segment(table)
        self._blobs.put(segment.id, encode(table))
        self._cache.add(segment, table)
        return segment

    def _describe_segment(self, table: pa.Table) -> Segment:
        """Return the description of ``table`` as a new segment, under a new id: its counts and
        ranges. The table has a row and is in the store's order. Nothing is stored.
        """
        return describe_segment(table, self._order.columns[0], self._expiry)

    def _delete_segments(self, run: SortedRun) -> None:
        """Delete the blobs and the local copies of all segments of ``run``. ``runs`` stays."""
        for segment in run.segments:
            self._blobs.delete(segment.id)
            self._cache.drop(segment)
