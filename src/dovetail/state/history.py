"""Stored rows by key and time: the versions of a versioned table, or the records of a stream.

A lookup costs in proportion to what is asked for. It does a binary search over the hashes of each
run, then one over the times of that hash, then compares the keys themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dovetail.arrays.equality import rows_equal
from dovetail.arrays.grouping import by_key
from dovetail.arrays.search import bisect, expand_ranges
from dovetail.base.columns import DELETED, EVENT_TIME, HASH
from dovetail.state.blobs import Blobs
from dovetail.state.merge_extent import Order
from dovetail.state.run_state import Ints, Located, Mask, RunState
from dovetail.state.runs import Merge, Runs
from dovetail.state.segment import SegmentCache, int64_column

_FIRST = int(np.iinfo(np.int64).min)


@dataclass(frozen=True)
class Matches:
    """The stored rows that answer range queries, as pairs of a query and a row."""

    query: Ints
    """The index of the query of each pair: int64[pairs]."""
    row: Ints
    """The index in ``rows`` of each pair: int64[pairs]."""
    rows: pa.Table
    """The rows, each once."""


class HistoryState(RunState):
    """A store with columns ``_hash``, ``_event_time``, others, keys, values.

    Rows are ordered by hash, then time, then arrival. If ``versioned``, a row is a version of its
    key from its time on; of two with one time the newer one counts. A merge drops what ended before
    ``horizon_us``: rows of a stream before it, versions that another replaced at or before it.
    """

    def __init__(
        self,
        schema: pa.Schema,
        keys: range,
        runs: Runs,
        blobs: Blobs,
        cache: SegmentCache,
        *,
        versioned: bool,
        horizon_us: int = _FIRST,
    ) -> None:
        """Open the store. Nothing is read yet.

        ``schema``: the stored columns. Among them are ``_hash`` and ``_event_time``, int64 without
        nulls, the key columns, and ``_deleted`` if ``versioned``. ``keys``: the indices of the key
        columns in it. ``runs``: those that the manifest names. ``blobs``: the bucket's storage of
        segments. ``cache``: the segments that the process has opened.

        ``versioned``: True for versions of a table, False for records of a stream. ``horizon_us``:
        merges drop records before it, exclusive, and versions that another one replaced at or
        before it. By default it is before all times, so nothing is dropped. It may be set later,
        before anything is stored.
        """
        super().__init__(schema, runs, blobs, cache, order=Order((HASH, EVENT_TIME)))
        self._key_columns = keys
        self._versioned = versioned
        self.horizon_us = horizon_us

    @property
    def latest_us(self) -> int | None:
        """The largest event time in the stored runs, tombstones and expired rows included, in
        microseconds; None if nothing is stored.
        """
        return max((run.latest_us for run in self.runs.runs), default=None)

    def find_as_of(self, hash_: Ints, keys: Sequence[pa.Array], time_us: Ints) -> Located:
        """Return the segment and the row in it (``Located``) of the last version of each query's
        key at or before ``time_us``. A tombstone, a version that deletes its key, is found but not
        present. Of two stored versions with one time, the later written counts.

        ``hash_``: int64[n], non-decreasing, the hash of each query's key. ``keys``: the key
        columns, n rows each; null equals null, and floats are compared by their bits. ``time_us``:
        int64[n], in microseconds. A query without such a version gets segment -1, row 0 and the
        smallest int64 as its time, and is not present. One key may be asked for at several times.
        """
        n = len(hash_)
        tables: list[pa.Table] = []
        at_segment, at_row = np.full(n, -1), np.zeros(n, np.int64)
        found_time, present = np.full(n, np.iinfo(np.int64).min), np.zeros(n, np.bool_)
        for table, query, first, end in self._candidate_rows(hash_):
            times = int64_column(table, EVENT_TIME)
            row = bisect(times, first, end, time_us[query], right=True) - 1
            while len(query):
                inside = row >= first
                query, row, first = query[inside], row[inside], first[inside]
                same = self._same_key(table, row, keys, query)
                better = same & (times[row] >= found_time[query])
                at, rows = query[better], row[better]
                at_segment[at], at_row[at], found_time[at] = len(tables), rows, times[rows]
                deleted = table.column(DELETED).chunk(0).take(pa.array(rows))
                present[at] = ~deleted.to_numpy(zero_copy_only=False)
                query, row, first = query[~same], row[~same] - 1, first[~same]
            tables.append(table)
        return Located(self.schema, tuple(tables), at_segment, at_row, found_time, present)

    def find_between(
        self, hash_: Ints, keys: Sequence[pa.Array], low_us: Ints, high_us: Ints
    ) -> Matches:
        """Return all rows of each query's key from ``low_us`` to ``high_us``, both inclusive, as
        pairs of a query and a row. A query may have none.

        ``hash_``: int64[n], non-decreasing, the hash of each query's key. ``keys``: the key
        columns, n rows each; null equals null, and floats are compared by their bits. ``low_us``,
        ``high_us``: int64[n], event times in microseconds. The result has ``query`` and ``row``,
        int64[pairs], the index of each pair's query and that of its row in ``rows``. Pairs lie
        segment by segment, as ``rows`` do, then by query, then by time.

        ``rows``, a table of all stored columns, comes run by run, oldest first, in each run by
        hash, then time. So of two versions of a key with one time, the later row is the newer one.
        Such older versions are among the rows, as are tombstones (rows that delete their key). Rows
        older than the horizon may still be found.
        """
        queries: list[Ints] = []
        rows: list[Ints] = []
        parts: list[pa.Table] = []
        count = 0
        for table, query, first, end in self._candidate_rows(hash_):
            times = int64_column(table, EVENT_TIME)
            low = bisect(times, first, end, low_us[query], right=False)
            high = bisect(times, first, end, high_us[query], right=True)
            which, row = expand_ranges(low, high)
            same = self._same_key(table, row, keys, query[which])
            which, row = which[same], row[same]
            distinct, part_row = np.unique(row, return_inverse=True)
            if len(distinct):
                parts.append(table.take(pa.array(distinct)))
                queries.append(query[which])
                rows.append(part_row + count)
                count += len(distinct)
        none = np.zeros(0, np.int64)
        return Matches(
            np.concatenate([none, *queries]),
            np.concatenate([none, *rows]),
            pa.concat_tables([self.schema.empty_table(), *parts]).combine_chunks(),
        )

    def _candidate_rows(self, hash_: Ints) -> Iterator[tuple[pa.Table, Ints, Ints, Ints]]:
        """Yield for each segment that holds a hash of some queries: (table, query, first, end). The
        segments of the oldest run come first, and those of one run by ascending hash. ``hash_``:
        int64[n], non-decreasing, the hash of each query.

        ``query``, ``first`` and ``end`` are int64[m]. The rows in ``table`` with the hash of query
        ``query[i]`` are those from ``first[i]`` up to ``end[i]``, exclusive. Keys are not compared
        yet. Segments without any of the hashes are left out, so nothing may be yielded.
        """
        for run in self.runs.runs:
            for segment in run.segments:
                low = np.searchsorted(hash_, segment.first)
                high = low + np.searchsorted(hash_[low:], segment.last, side="right")
                if low == high:
                    continue
                table = self._open_segment(segment)
                stored = int64_column(table, HASH)
                first = np.searchsorted(stored, hash_[low:high])
                hit = np.flatnonzero(stored[np.minimum(first, len(stored) - 1)] == hash_[low:high])
                if len(hit):
                    end = np.searchsorted(stored, hash_[low:high][hit], side="right")
                    yield table, low + hit, first[hit], end

    def _same_key(self, table: pa.Table, row: Ints, keys: Sequence[pa.Array], query: Ints) -> Mask:
        """Return the pairs i whose row ``row[i]`` of ``table`` has the key of query ``query[i]``,
        as a mask: bool[pairs]. ``row``, ``query``: int64[pairs]. ``keys``: the key columns, one row
        per query. Null equals null, and floats are compared by their bits.
        """
        stored = [table.column(i).chunk(0).take(pa.array(row)) for i in self._key_columns]
        return rows_equal(stored, [key.take(pa.array(query)) for key in keys])

    def _merge_slices(self, pieces: Sequence[pa.Table], merge: Merge) -> pa.Table:
        """Return the rows that a merge of ``pieces`` keeps, by hash, then time. The table may be
        empty.

        A store of records keeps those that are not older than ``horizon_us``. A versioned store
        drops versions that another one replaced at or before ``horizon_us``, and tombstones that
        hide nothing more (``last_versions``). Of two versions of a key with one time it keeps the
        newer. ``pieces``: the next rows of the merge's inputs, oldest first, one or more.
        ``merge``: the merge that they belong to.
        """
        rows = pa.concat_tables(pieces).combine_chunks()
        if rows.num_rows == 0:
            return rows
        hash_, time = int64_column(rows, HASH), int64_column(rows, EVENT_TIME)
        if not self._versioned:
            retained_row = np.flatnonzero(time >= self.horizon_us)
            return rows.take(
                pa.array(retained_row[np.lexsort((time[retained_row], hash_[retained_row]))])
            )
        # A late version may lie in a newer run than the tombstone that replaced it.
        others = (run.earliest_us for run in self.runs.runs_not_read_by(merge))
        settled_us = min([self.horizon_us, *others])
        begun = merge.done[-1].last if merge.done else None
        return last_versions(rows, self._key_columns, self.horizon_us, settled_us, begun)


# An example with horizon_us = 30 and settled_us = 20; ✗ marks a tombstone:
#
# | row | hash | key | time | kept? |
# |---|---|---|---|---|
# | 0 | 7 | a | 10 | no: replaced at 25, before the horizon |
# | 1 | 7 | a | 25 | no: row 2 has the same time and was written later |
# | 2 | 7 | a | 25 | yes: in force at the horizon |
# | 3 | 7 | a | 40 | yes |
# | 4 | 3 | b | 15 ✗ | no: older than settled_us (yes if begun = 3) |
#
# The result is rows 2 and 3.
def last_versions(
    rows: pa.Table,
    key_columns: Sequence[int],
    horizon_us: int,
    settled_us: int,
    begun: int | None = None,
) -> pa.Table:
    """Return the versions among ``rows`` that anyone can still ask for, ordered by hash, then time.
    A version is a row of its key from its time on; a tombstone is one that deletes its key.

    ``rows``: at least one, with one chunk a column, the oldest written first. ``key_columns``: the
    indices of the key's columns. Dropped are:

    - of two versions of a key with one time, the earlier written;
    - a version that another replaced at or before ``horizon_us``;
    - a tombstone before ``settled_us``, exclusive, since no other version before that time is
      stored.

    ``horizon_us``, ``settled_us``: in microseconds, the latter at most the former. ``begun``: the
    last hash that earlier steps of the same merge have written, None for none. They may have kept
    versions of this hash, which ``rows`` lacks. So all tombstones of this hash stay.
    """
    keys = [rows.column(i).combine_chunks() for i in key_columns]
    hash_, time = int64_column(rows, HASH), int64_column(rows, EVENT_TIME)
    arranged, new_key, _ = by_key(hash_, keys, np.argsort(time, kind="stable"))
    order = np.argsort(time, kind="stable")[arranged]
    group = np.cumsum(new_key)
    same_key_next = np.append(group[1:] == group[:-1], False)
    next_time = np.append(time[order][1:], 0)
    replaced = same_key_next & ((next_time == time[order]) | (next_time <= horizon_us))
    deleted = rows.column(DELETED).chunk(0).to_numpy(zero_copy_only=False)[order]
    settled = deleted & (time[order] < settled_us)
    replaced |= settled if begun is None else settled & (hash_[order] != begun)
    retained_row = np.sort(order[~replaced])
    return rows.take(pa.array(retained_row[np.lexsort((time[retained_row], hash_[retained_row]))]))
