"""The stored rows of one table in one bucket, the newest of each key.

A look-up costs by the keys asked for: a binary search over each run's hash column, newest first,
then a comparison of the keys themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from dovetail.columns import DELETED, EVENT_TIME, HASH
from dovetail.kernels.equality import rows_equal
from dovetail.state.blobs import Blobs
from dovetail.state.run_state import Ints, Located, RunState
from dovetail.state.runs import Merge, Runs
from dovetail.state.segment import Segment, SegmentCache, numbers


class TableState(RunState):
    """One table: columns ``_hash``, ``_event_time``, ``_deleted``, keys, values, in hash order.

    Within a run a key occurs once; a newer run's row replaces an older one's. A merge drops a
    tombstone once nothing older lies below it.
    """

    def __init__(
        self, schema: pa.Schema, keys: int, runs: Runs, blobs: Blobs, cache: SegmentCache
    ) -> None:
        """``schema``: the stored columns; ``keys``: how many of them, after the first three, make
        the key.
        """
        super().__init__(schema, runs, blobs, cache)
        self._key_columns = range(3, 3 + keys)

    def _merged(self, pieces: Sequence[pa.Table], merge: Merge) -> pa.Table:
        merged = newest_of_key(pieces, self._key_columns)
        oldest = self.runs.runs[0].tier == merge.tier
        return merged.filter(pa.compute.invert(merged.column(DELETED))) if oldest else merged

    def locate(self, hash_: Ints, keys: Sequence[pa.Array]) -> Located:
        """The current row of each key. ``hash_`` is non-decreasing; the keys are distinct."""
        n = len(hash_)
        segments: list[Segment] = []
        found = Located(
            (), np.full(n, -1), np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(n, np.bool_)
        )
        for run in reversed(self.runs.runs):
            for segment in run.segments:
                first, last = np.searchsorted(hash_, (segment.first, segment.last))
                last += np.searchsorted(hash_[last:], segment.last, side="right")
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
        stored_hash = numbers(table, HASH)
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
