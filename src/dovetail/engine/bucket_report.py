"""Report on the work of one bucket in one micro-batch: rows, matches, stream time and duration.

A stage emits one report per bucket beside its changes. Spark collects them as an observed metric.
``spark.metrics.progress`` reads them again, when it is asked.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter_ns

import pyarrow as pa
import pyarrow.compute as pc

from dovetail.base.columns import COPY, DELETED
from dovetail.engine.batches.pack_time import PackTime
from dovetail.operators.counts import Counts
from dovetail.state.runs import Runs

_VERSION = 2


@dataclass
class BucketReport:
    """The work of one bucket. It is complete once all changes have been taken."""

    rows: list[int]
    """The count of rows that came, by input."""
    stream_us: list[int | None]
    """The stream time at the end of the micro-batch, by input; None before its first row."""
    tombstones: list[int]
    """The count of tombstones among ``rows``, by input."""
    matched: list[int] = field(default_factory=list)
    """The count of records that found rows on all other sides, by
    ``Fragment.match_counted_inputs``.
    """
    unmatched: list[int] = field(default_factory=list)
    """The count of records that did not find such rows, by ``Fragment.match_counted_inputs``."""
    waiting: list[int] = field(default_factory=list)
    """The count of stored rows that wait for a time, by ``Fragment.waits``."""
    stored_rows: int = 0
    """The count of rows in the segments of all stores."""
    stored_bytes: int = 0
    """The size of these segments without compression."""
    changes: int = 0
    """The count of emitted changes, deletes among them."""
    deletes: int = 0
    """The count of deletes among ``changes``."""
    read_us: int = 0
    """The time in which tasks waited for the rows that they packed for this bucket and others."""
    pack_us: int = 0
    """The time in which they packed them."""
    packed_us: int = 0
    """The wall-clock time at which the last rows were packed, 0 without any."""
    began_us: int = 0
    """The wall-clock time at which the bucket began."""
    receive_us: int = 0
    """The time in which the worker took in the bucket's packed rows."""
    work_us: int = 0
    """The time that the operators took, the store's among it."""
    state_us: int = 0
    """The time that reads and writes of the state store took."""
    state_calls: int = 0
    """The count of reads and writes of the state store."""
    ended_us: int = 0
    """The wall-clock time at which the bucket was done."""

    @classmethod
    def empty(cls, stream_us: Sequence[int | None]) -> BucketReport:
        """Return the report of a bucket without rows so far. All counts and times are 0; ``rows``
        and ``tombstones`` have a 0 for each input. ``matched``, ``unmatched`` and ``waiting`` are
        empty lists, to be filled later.

        ``stream_us``: the stream time of each input in microseconds, None before its first row. The
        report has a copy.
        """
        none = [0] * len(stream_us)
        return cls(none, [*stream_us], [*none])

    def add_rows(self, tables: Sequence[pa.Table]) -> None:
        """Add the counts of rows and tombstones in each input's table to that input's elements of
        ``rows`` and ``tombstones``. ``tables``: one per input, in order, each with ``_deleted``; a
        table may be empty. A null in ``_deleted`` is no tombstone. Of a row that several buckets
        have (``_copy``), only the first copy counts.
        """
        for source, table in enumerate(tables):
            if COPY in table.schema.names:
                table = table.select([DELETED]).filter(pc.equal(table.column(COPY), 0))
            if count := len(table):
                self.rows[source] += count
                self.tombstones[source] += _count_deletes(table)

    def add_pairs(self, counts: Counts, names: Sequence[str]) -> None:
        """Append one count per input in ``names`` to ``matched`` and ``unmatched``: its records
        with and without a match in ``counts``, 0 for an input without such counts. Call it once; a
        second call would append further elements.
        """
        for name in names:
            matched, unmatched = counts.pairs.get(name, (0, 0))
            self.matched.append(matched)
            self.unmatched.append(unmatched)

    def add_state(self, stores: Mapping[str, Runs]) -> None:
        """Add the rows and uncompressed bytes of all segments in ``stores`` to ``stored_rows`` and
        ``stored_bytes``.

        Rows that newer rows of their key hide count, too. The segments themselves are not read.
        """
        for runs in stores.values():
            for run in runs.runs:
                for segment in run.segments:
                    self.stored_rows += segment.rows
                    self.stored_bytes += segment.size_bytes

    def add_times(self, began_us: int, receive_us: int, packed: Sequence[PackTime]) -> None:
        """Set ``began_us``, ``receive_us`` and the three times of packing. Former values are
        replaced, not added to.

        ``began_us``: the wall-clock time of the begin. ``receive_us``: the microseconds that taking
        in rows took. ``packed``: the times of the packed rows that arrived. ``read_us`` and
        ``pack_us`` become the sums over ``packed``, ``packed_us`` the latest; 0 without any.
        """
        self.began_us, self.receive_us = began_us, receive_us
        self.read_us = sum(time.read_us for time in packed)
        self.pack_us = sum(time.pack_us for time in packed)
        self.packed_us = max((time.packed_us for time in packed), default=0)

    def count_changes(self, changes: Iterable[pa.Table]) -> Iterator[pa.Table]:
        """Yield the tables of ``changes`` unchanged, and add their rows to ``changes`` and their
        deletes to ``deletes``.

        The time until each table is there is added to ``work_us``, without the time in which the
        caller works on it.
        """
        tables = iter(changes)
        while True:
            begun = perf_counter_ns()
            table = next(tables, None)
            self.work_us += (perf_counter_ns() - begun) // 1000
            if table is None:
                return
            self.changes += len(table)
            self.deletes += _count_deletes(table)
            yield table

    def as_text(self) -> str:
        """Return the report as a JSON list: the version (2), then all fields in the order of their
        definition. ``from_text`` reads it back.

        It is short, since Spark keeps one of each bucket for the last 100 micro-batches.
        """
        return json.dumps([_VERSION, *vars(self).values()], separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> BucketReport:
        """Return the report that ``as_text`` wrote as ``text``. A text of another version raises
        ``AssertionError``.
        """
        version, *values = json.loads(text)
        assert version == _VERSION, version
        return cls(*values)


def _count_deletes(table: pa.Table) -> int:
    """Return the count of rows of ``table`` whose ``_deleted`` is true; null does not count."""
    return sum([chunk.true_count for chunk in table.column(DELETED).chunks])
