"""The stored rows of one table in one bucket, the newest of each key.

A lookup costs in proportion to the keys asked for. It does a binary search over the hashes of each
run, newest first, then compares the keys themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dovetail.arrays.equality import rows_equal
from dovetail.arrays.grouping import by_key
from dovetail.arrays.search import expand_ranges
from dovetail.arrays.timeline import NO_TIME
from dovetail.base.columns import DELETED, EVENT_TIME, HASH
from dovetail.state.blobs import Blobs
from dovetail.state.merge_extent import Order
from dovetail.state.run_state import Ints, Located, RunState
from dovetail.state.runs import Merge, Runs
from dovetail.state.segment import SegmentCache, int64_column


@dataclass(frozen=True)
class Scan:
    """The rows of a table's store that answer some queries, perhaps several each."""

    query: Ints
    """The index of the query that each row answers: int64[rows]."""
    located: Located
    """The places of the rows, in the same order."""


class TableState(RunState):
    """A store with columns ``_hash``, ``_event_time``, ``_deleted``, keys, values, in hash order.

    A key occurs once in a run, and its row in a newer run replaces the older one. A merge drops
    rows older than the horizon. It drops a tombstone (a row that deletes its key) once no older run
    could still have a row of that key.
    """

    def __init__(
        self,
        schema: pa.Schema,
        keys: int,
        runs: Runs,
        blobs: Blobs,
        cache: SegmentCache,
        *,
        horizon_us: int = NO_TIME,
        expiry: str = EVENT_TIME,
    ) -> None:
        """Open the store. Nothing is read yet.

        ``schema``: the stored columns: ``_hash``, ``_event_time``, ``_deleted``, then the key, then
        values. ``keys``: the count of key columns. ``runs``: those that the manifest names.
        ``blobs``: the bucket's storage of segments. ``cache``: the segments that the process has
        opened.

        Rows whose time in the column ``expiry`` is before ``horizon_us``, exclusive, are never
        asked for again. By default no row is. They may still be found until a merge drops them.
        """
        super().__init__(
            schema, runs, blobs, cache, order=Order((HASH,), whole=True), expiry=expiry
        )
        self.horizon_us = horizon_us
        self.key_columns = range(3, 3 + keys)

    @property
    def value_columns(self) -> range:
        """The indices in ``schema`` of the columns after the key."""
        return range(self.key_columns.stop, len(self.schema))

    def store(self, rows: pa.Table) -> None:
        """Append a batch's rows as a sorted run, merge some runs, and drop those whose rows are all
        older than ``horizon_us``, exclusive. That is this store's attribute, in microseconds. If it
        is ``NO_TIME``, no run is dropped. A row's time is that in the column ``expiry``. A run that
        is being merged stays.

        ``rows``: the columns of ``schema``, in hash order, one per key. Without rows nothing
        is merged, but runs are dropped all the same.
        """
        super().store(rows)
        self.expire(self.horizon_us)

    def _merge_slices(self, pieces: Sequence[pa.Table], merge: Merge) -> pa.Table:
        """Return the newest row of each key in ``pieces``, without rows older than ``horizon_us``,
        in hash order; perhaps none. ``pieces``: the next rows of the inputs of ``merge``, oldest
        first. If no sorted run is of a higher tier than ``merge``, none is older than its inputs.
        Then tombstones (rows that delete a key) are left out, too.
        """
        merged = newest_of_key(pieces, self.key_columns)
        if self.horizon_us != NO_TIME:
            time = merged.column(self._expiry).cast(pa.int64())
            merged = merged.filter(pc.greater_equal(time, self.horizon_us))
        oldest = self.runs.runs[0].tier == merge.tier
        return merged.filter(pc.invert(merged.column(DELETED))) if oldest else merged

    def locate(self, hash_: Ints, keys: Sequence[pa.Array]) -> Located:
        """Return the segment and the row in it (``Located``) where the current row of each key
        lies: that of the newest sorted run. A row older than ``horizon_us`` may still be found.

        ``hash_``: int64[n], non-decreasing, the hash of each key. ``keys``: the key columns, n
        distinct keys. Null equals null, and floats are compared by their bits. The result has the
        keys' order, and the row's event time. A tombstone, a row that deletes its key, is found,
        with its time, but not present. A key without any row has segment -1, row 0 and time 0.
        """
        n = len(hash_)
        tables: list[pa.Table] = []
        located = Located(
            self.schema,
            (),
            np.full(n, -1),
            np.zeros(n, np.int64),
            np.zeros(n, np.int64),
            np.zeros(n, np.bool_),
        )
        for run in reversed(self.runs.runs):
            for segment in run.segments:
                first, last = np.searchsorted(hash_, (segment.first, segment.last))
                last += np.searchsorted(hash_[last:], segment.last, side="right")
                wanted = first + np.flatnonzero(located.segment[first:last] < 0)
                if len(wanted) == 0:
                    continue
                tables.append(self._open_segment(segment))
                self._search_segment(tables[-1], len(tables) - 1, wanted, hash_, keys, located)
        return replace(located, tables=tuple(tables))

    def scan(self, low: Ints, high: Ints, prefix: Sequence[pa.Array]) -> Scan:
        """Return the current rows whose hash lies in a query's range and whose key begins with the
        query's values. The result has ``query``, int64[rows], the index of each row's query. It has
        ``located``, the segment and the row in it, in the same order.

        Tombstones, rows that delete their key, are left out, so all rows are present. Rows come in
        no particular order. Event times are not read: they are 0.

        ``low``, ``high``: int64[n], each non-decreasing, the ends of each query's range, both
        inclusive. ``prefix``: the queries' values of the first key columns, n rows each, at least
        one column. Null equals null, and floats are compared by their bits. No stored key may
        answer two queries; ranges may overlap if the values differ. A query may have no rows or
        several.
        """
        tables: list[pa.Table] = []
        parts: list[tuple[Ints, Ints, Ints, Ints]] = []
        for run in reversed(self.runs.runs):
            for segment in run.segments:
                begin = np.searchsorted(high, segment.first)
                asked = np.arange(begin, np.searchsorted(low, segment.last, side="right"))
                if len(asked) == 0:
                    continue
                table = self._open_segment(segment)
                order = int64_column(table, HASH)
                which, row = expand_ranges(
                    np.searchsorted(order, low[asked]),
                    np.searchsorted(order, high[asked], side="right"),
                )
                query = asked[which]
                stored = [
                    table.column(3 + i).chunk(0).take(pa.array(row)) for i in range(len(prefix))
                ]
                same = rows_equal(stored, [key.take(pa.array(query)) for key in prefix])
                if same.any():
                    query, row = query[same], row[same]
                    parts.append((query, np.full(len(row), len(tables)), row, order[row]))
                    tables.append(table)
        return self._current_rows(tables, parts)

    def _current_rows(
        self, tables: Sequence[pa.Table], parts: Sequence[tuple[Ints, Ints, Ints, Ints]]
    ) -> Scan:
        """Return the rows of a scan, without those that a newer row of their key replaces and
        without tombstones. ``tables`` become those of the result.

        ``parts``: for each of ``tables``, those of the newest run first, four arrays with one
        element per row: the index of the query, that in ``tables``, that of the row in its table,
        and the row's hash. The tables of one run have no key in common, so their order is free. A
        key may be in ``parts`` for one query only. All event times in the result are 0.
        """
        none = np.zeros(0, np.int64)
        query, segment, row, order = (
            np.concatenate(column) for column in zip((none,) * 4, *parts, strict=True)
        )
        unknown = np.zeros(len(row), np.int64)
        everything = np.ones(len(row), np.bool_)
        located = Located(self.schema, tuple(tables), segment, row, unknown, everything)
        if len(tables) > 1:
            rows = located.fetch(np.arange(len(row)), self.key_columns)
            keys = [column.combine_chunks() for column in rows.columns]
            arranged, new, _ = by_key(order, keys, np.arange(len(row)))
            newest = arranged[new]
            query, located = query[newest], located.take(newest)
        deleted = located.fetch(np.arange(len(query)), [2]).column(0).to_numpy()
        standing = np.flatnonzero(~deleted.astype(np.bool_))
        return Scan(query[standing], located.take(standing))

    def _search_segment(
        self,
        table: pa.Table,
        table_index: int,
        wanted: Ints,
        hash_: Ints,
        keys: Sequence[pa.Array],
        located: Located,
    ) -> None:
        """Enter into ``located`` the keys among ``wanted`` that ``table``, the rows of a segment,
        holds. Arrays of ``located`` are changed in place; keys that ``table`` lacks stay as they
        are.

        ``wanted``: indices of keys not yet found, by ascending hash. ``hash_``, ``keys``: the hash
        and the columns of all keys. ``table_index``: the index of the segment in
        ``located.tables``.
        """
        stored_hash = int64_column(table, HASH)
        first = np.searchsorted(stored_hash, hash_[wanted])
        hit = stored_hash[np.minimum(first, len(stored_hash) - 1)] == hash_[wanted]
        query, row = wanted[hit], first[hit]
        while len(query):
            stored_keys = [table.column(i).chunk(0).take(pa.array(row)) for i in self.key_columns]
            same = rows_equal(stored_keys, [key.take(pa.array(query)) for key in keys])
            at, rows = query[same], row[same]
            located.segment[at] = table_index
            located.row[at] = rows
            located.event_time_us[at] = table.column(EVENT_TIME).chunk(0).to_numpy()[rows]
            deleted = table.column(DELETED).chunk(0).take(pa.array(rows))
            located.present[at] = ~deleted.to_numpy(zero_copy_only=False)
            query, row = query[~same], row[~same] + 1
            more = row < len(stored_hash)
            query, row = query[more], row[more]
            collides = stored_hash[row] == hash_[query]
            query, row = query[collides], row[collides]


# An example with two pieces. Keys a and c have the same hash:
#
# | order | piece | hash | key | kept? |
# |---|---|---|---|---|
# | 0 | 0 | 3 | b | yes |
# | 1 | 1 | 7 | a | yes |
# | 2 | 1 | 7 | c | yes: not equal to row 1 (distance 1) |
# | 3 | 0 | 7 | a | no: equal to row 1 (distance 2), which is newer |
#
# Rows are compared at growing distances, until no two rows that far apart have a common hash.
def newest_of_key(pieces: Sequence[pa.Table], key_columns: Sequence[int]) -> pa.Table:
    """Return the newest row of each key in ``pieces``, in order of the column ``_hash``. Rows of
    one hash lie by piece, the newest first. Tombstones, rows that delete their key, count as rows.
    ``key_columns``: the indices of the key columns. Null equals null in them, and floats are
    compared by their bits.

    ``pieces``: at least one table, oldest first, each in any order. Within a piece a key occurs
    once. Without rows the result is empty.
    """
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
