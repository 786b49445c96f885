"""Stored rows that wait for a time: appended on arrival, taken once the time has come."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from dovetail.base.columns import DUE
from dovetail.state.blobs import Blobs
from dovetail.state.merge_extent import Order
from dovetail.state.run_state import RunState
from dovetail.state.runs import Merge, Runs
from dovetail.state.segment import Segment, SegmentCache, int64_column


class QueueState(RunState):
    """A store with columns ``_due``, ``_event_time`` and others, by due time, then arrival.

    A row due at or before ``taken_us`` counts as taken and gone. No such row may be appended.
    """

    def __init__(
        self, schema: pa.Schema, runs: Runs, blobs: Blobs, cache: SegmentCache, *, taken_us: int
    ) -> None:
        """Open the queue. Nothing is read yet.

        ``schema``: the stored columns. Among them are ``_due``, int64, the time in microseconds
        until which a row waits, and ``_event_time``. Arrival has no column: it is the order in
        which rows were stored. ``runs``: those that the manifest names. ``blobs``: the bucket's
        storage of segments. ``cache``: the segments that the process has opened. ``taken_us``: the
        time in microseconds up to which, inclusive, rows have been taken.
        """
        super().__init__(schema, runs, blobs, cache, order=Order((DUE,)))
        self._taken_us = taken_us

    def take_due(self, upto_us: int) -> pa.Table:
        """Return the rows whose ``_due`` is after the last time taken and at or before ``upto_us``,
        in microseconds, by ``_due``, then arrival. They count as taken from now on.

        The table is empty if there are none, as it is if ``upto_us`` is not after that time.
        ``upto_us`` becomes the last time taken if it is later. Runs of which every row has been
        taken are deleted now, others by a later merge. The caller keeps the time, and writes
        ``runs`` to the manifest.
        """
        parts = [self.schema.empty_table()]
        for run in self.runs.runs:
            for segment in run.segments:
                if segment.first <= upto_us and segment.last > self._taken_us:
                    table = self._open_segment(segment)
                    due = int64_column(table, DUE)
                    start, end = np.searchsorted(due, (self._taken_us, upto_us), side="right")
                    parts.append(table.slice(start, end - start))
        rows = pa.concat_tables(parts).combine_chunks()
        self._taken_us = max(self._taken_us, upto_us)
        self.expire_due()
        return rows.take(pa.array(np.argsort(rows.column(DUE).to_numpy(), kind="stable")))

    def expire_due(self) -> None:
        """Drop the runs of which every row is due at or before the last time taken, and delete
        their segments. Runs that a merge reads stay.
        """
        dropped = tuple(
            run
            for run in self.runs.unmerged_runs()
            if all(segment.last <= self._taken_us for segment in run.segments)
        )
        self._drop_runs(dropped)

    def _merge_slices(self, pieces: Sequence[pa.Table], merge: Merge) -> pa.Table:
        """Return the rows of ``pieces`` whose ``_due`` is after the last time taken, by ``_due``,
        then arrival. The table may be empty.

        ``pieces``: the slice of each input, oldest first, one or more. So of two rows with one
        ``_due``, the first in ``pieces`` arrived first. ``merge`` is not used.
        """
        rows = pa.concat_tables(pieces).combine_chunks()
        due = rows.column(DUE).to_numpy()
        waiting_row = np.flatnonzero(due > self._taken_us)
        return rows.take(pa.array(waiting_row[np.argsort(due[waiting_row], kind="stable")]))


def count_waiting_rows(
    runs: Runs, taken_us: int, open_segment: Callable[[Segment], pa.Table]
) -> int:
    """Return the count of rows in the ``runs`` of a queue that are due after ``taken_us``,
    exclusive, in microseconds. Merges are not looked at.

    ``open_segment``: returns the rows of a segment. It is called only for segments with rows on
    both sides of that time.
    """
    count = 0
    for run in runs.runs:
        for segment in run.segments:
            if segment.first > taken_us:
                count += segment.rows
            elif segment.last > taken_us:
                due = int64_column(open_segment(segment), DUE)
                count += segment.rows - int(np.searchsorted(due, taken_us, side="right"))
    return count
