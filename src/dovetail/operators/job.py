"""One micro-batch of one bucket: the input of an operator, and its output.

An operator emits *changes*. A change is a new row of a key, which replaces the former one, or a
tombstone, which deletes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from dovetail.arrays.timeline import ABSENT, NO_TIME, Ints, Mask, SourceRows, Timeline
from dovetail.base.columns import (
    CLOCK,
    DELETED,
    EVENT_TIME,
    HASH,
    ORDER,
    SEQUENCE,
    STREAM_TIME,
    TIE,
)
from dovetail.laws.arrival import Stairs, order_by_due_time
from dovetail.operators.counts import Counts
from dovetail.physical.fragment import Fragment, Operator
from dovetail.physical.source import SourceSpec
from dovetail.state.blobs import Blobs
from dovetail.state.history import HistoryState
from dovetail.state.manifest import Manifest
from dovetail.state.runs import Runs
from dovetail.state.segment import SegmentCache
from dovetail.state.table_state import TableState

Column: TypeAlias = pa.Array | pa.ChunkedArray

END_OF_TIME = 2**62
"""As a stream time: the input has ended, and nothing waits any longer."""


@dataclass(frozen=True)
class Batch:
    """The n rows of one source in a micro-batch, in the order they were read.

    All arrays are int64[n].
    """

    rows: pa.Table
    """The rows, with the columns of ``SourceSpec.wire_schema``. Of rows on disk only the columns
    that order them.
    """
    clock_us: Ints
    """The largest timestamp in each row's log so far in the micro-batch."""
    stream_us: Ints
    """The source's stream time when each row has arrived, as far as this batch shows."""
    order: Ints | None = None
    """The order of rows with equal clocks; None for the order in which they were read."""
    tie: Ints | None = None
    """The order of rows that one record of another stage caused; None if there are none."""
    stairs: Stairs | None = None
    """The steps of stream time in the whole batch. None if no source asks for them, or if all
    sources wait for each other.
    """

    @classmethod
    def in_sequence(cls, rows: pa.Table, stream_us: Ints) -> Batch:
        """Return a batch of ``rows``, which lie in the order of their position in a log that all
        sources share.

        ``stream_us``: int64[rows], the stream time in microseconds when each row has arrived. It
        serves as each row's clock, too. The batch has no order, tie or stairs.
        """
        return cls(rows, stream_us, stream_us)

    def take(self, which: Ints, rows: pa.Table) -> Batch:
        """Return a batch of the rows with the indices ``which``, in that order.

        ``which``: int64[m], indices of this batch's rows. ``rows``: the m rows of the table,
        already taken by the caller. Clocks and the other arrays are taken here. The stairs (steps
        of stream time) stay those of the whole batch.
        """
        return Batch(
            rows,
            self.clock_us[which],
            self.stream_us[which],
            None if self.order is None else self.order[which],
            None if self.tie is None else self.tie[which],
            self.stairs,
        )


@dataclass(frozen=True, kw_only=True)
class BucketBatch:
    """The rows that a micro-batch brings to one bucket, and the bucket's state before it."""

    sources: Sequence[SourceSpec]
    """The operator's or the fragment's inputs."""
    batches: Sequence[Batch]
    """One per source."""
    manifest: Manifest
    """The bucket's manifest before the batch."""
    final_us: Sequence[int]
    """Per source, its stream time at the end of the batch, ``NO_TIME`` before the first record."""
    blobs: Blobs
    """The bucket's blobs, in which its stores lie."""
    cache: SegmentCache
    """The opened segments of this process."""

    @property
    def initial_us(self) -> Sequence[int]:
        """The stream time of each source before the batch, in microseconds: one int per source,
        ``NO_TIME`` before the source's first record.
        """
        return [NO_TIME if t is None else t for t in self.manifest.stream_time_us]

    @property
    def any_rows(self) -> bool:
        """True if any source has a row in the batch."""
        return any(batch.rows.num_rows for batch in self.batches)

    def source_rows(self, source: int, *, keyed: bool = True) -> SourceRows:
        """Return the keys, hashes, times and tombstone flags of a source's rows for the laws, in
        the order read; no values.

        ``source``: the index of the source. ``keyed``: False to leave the key columns out; the
        result's ``keys`` is then empty. Positions (``sequence``) are set only if all inputs share a
        log.
        """
        spec, batch = self.sources[source], self.batches[source]
        table = batch.rows
        return SourceRows(
            keys=[combine_chunks(table.column(i)) for i in spec.shape.key_columns if keyed],
            hash=table.column(HASH).to_numpy(),
            event_time_us=table.column(EVENT_TIME).to_numpy(),
            deleted=combine_chunks(table.column(DELETED)).to_numpy(zero_copy_only=False),
            clock_us=batch.clock_us,
            order=batch.order,
            tie=batch.tie,
            sequence=self.shared_log_positions(source) if spec.arrival.by_shared_log else None,
        )

    def shared_log_positions(self, source: int) -> Ints:
        """Return ``_sequence`` of each row of the source with index ``source``, its position in the
        log that all inputs share: int64[rows].

        A source without that column (not ``RowArrival.by_shared_log``) raises ``KeyError``; one
        with logs of its own has other positions there.
        """
        sequence: Ints = self.batches[source].rows.column(SEQUENCE).to_numpy()
        return sequence

    def arrival_positions(self, source: int) -> Ints:
        """Return an int64 per row of the source with index ``source`` that orders the row among
        those of all sources. These are positions in the shared log or, if there is none, clocks in
        microseconds.
        """
        batch = self.batches[source]
        by_log = self.sources[source].arrival.by_shared_log
        return self.shared_log_positions(source) if by_log else batch.clock_us

    def clock_at_rows(self, source: int, asking: int) -> Ints:
        """Return the stream time of ``source`` when each row of ``asking`` arrives, in
        microseconds: int64[rows of ``asking``]. ``source``, ``asking``: indices of sources, perhaps
        the same.

        The asking row itself counts, and so do records of other buckets. At equal positions, rows
        of an earlier source precede those of a later one. A time is at least that before the batch,
        so ``NO_TIME`` only before the first record of ``source``.
        """
        batch = self.batches[source]
        if source == asking:
            clock_us = batch.stream_us
        elif batch.stairs is None:
            # All sources wait for each other. Only one that has been silent may be behind.
            clock_us = np.minimum(self.arrival_positions(asking), self.final_us[source])
        else:
            clock_us = batch.stairs.time_at(
                self.arrival_positions(asking), inclusive=source < asking
            )
        return np.maximum(clock_us, self.initial_us[source])

    def cause_column(self, name: str, source: int) -> Ints:
        """Return the column ``name`` for each row of the source with index ``source``, to tell
        later stages which record caused a change: int64[rows].

        ``name``: ``_sequence``, ``_tie`` (the key's hash), ``_clock`` (microseconds) or ``_order``,
        which any other name gives, too. Rows without an order have 0; they must be in a log that
        all sources share, else ``AssertionError`` is raised.
        """
        batch = self.batches[source]
        if name == SEQUENCE:
            return self.shared_log_positions(source)
        if name == TIE:
            return batch.rows.column(HASH).to_numpy()  # type: ignore[no-any-return]
        if name == CLOCK:
            return batch.clock_us
        if batch.order is None:
            assert self.sources[source].arrival.by_shared_log
            return np.zeros(len(batch.rows), np.int64)
        return batch.order


@dataclass(frozen=True, kw_only=True)
class Share(BucketBatch):
    """The rows of a fragment's inputs for one bucket."""

    fragment: Fragment


@dataclass(frozen=True, kw_only=True)
class Job(BucketBatch):
    """The rows of an operator's sources for one bucket."""

    operator: Operator
    stores: Mapping[str, Runs]
    """The runs of each store of the operator, by name."""
    clock_us: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """Stream time at each record of the batch, by the record's index, if the operator is one of
    several.
    """

    def stored_runs(self, store: str) -> Runs:
        """Return the sorted runs of the operator's store named ``store``, as they were before the
        batch; empty ``Runs`` before the store's first batch.
        """
        return self.stores.get(store, Runs())

    def clock_at_events(self, source: int, events: Timeline) -> Ints:
        """Return the stream time of a source when each of ``events`` arrives, that event included:
        int64[events], microseconds. It is ``NO_TIME`` before the source's first record.

        ``source``: the index of the source. ``events``: events of any source of this batch.
        """
        clock_us = np.empty(len(events.row), np.int64)
        for asking in range(len(self.batches)):
            of_source = events.source == asking
            clock_us[of_source] = self.clock_at_rows(source, asking)[events.row[of_source]]
        return clock_us

    def highest_clock_at_events(self, events: Timeline) -> Ints:
        """Return the largest timestamp of all streams when each of ``events`` arrives, that event
        included: int64[events], microseconds. If no source is a stream, all sources count. It is
        ``NO_TIME`` before the first record.
        """
        streams = [n for n, source in enumerate(self.sources) if source.meaning.stream]
        clocks = [self.clock_at_events(n, events) for n in streams or range(len(self.sources))]
        highest: Ints = np.maximum.reduce(clocks)
        return highest

    def event_causes(self, events: Timeline) -> Cause:
        """Return the columns named by ``Operator.feeds`` for the record behind each of ``events``:
        int64[events] each; no columns if nothing is fed. They tell later stages which record caused
        a change.

        Names are among ``_sequence``, ``_clock``, ``_order``, ``_tie`` and ``_stream_time``.
        ``_order`` is 0 for rows in a shared log that have no order. ``_stream_time`` is the largest
        stream time of all streams at the event, minus the law's ``holds_us``. Without streams it is
        that of all sources. It is ``NO_TIME`` before their first record.
        """
        columns: dict[str, Ints] = {}
        for name in self.operator.feeds:
            if name == STREAM_TIME:
                columns[name] = subtract_span_each(
                    self.highest_clock_at_events(events), self.operator.law.holds_us
                )
                continue
            column = np.empty(len(events.row), np.int64)
            for source in range(len(self.batches)):
                of_source = events.source == source
                column[of_source] = self.cause_column(name, source)[events.row[of_source]]
            columns[name] = column
        return Cause(columns)

    def causes_of_rows(self, row: Ints) -> Cause:
        """Return the columns named by ``Operator.feeds`` for rows of source 0: int64[m] each; no
        columns if nothing is fed. They tell later stages which record caused a change.

        ``row``: int64[m], indices of the rows in the batch, in any order, perhaps repeated.
        ``_stream_time`` is that of source 0 at the row, minus the law's ``holds_us``. ``_order`` is
        0 for rows in a shared log that have no order.
        """
        columns = {}
        for name in self.operator.feeds:
            if name == STREAM_TIME:
                columns[name] = subtract_span_each(
                    self.clock_at_rows(0, 0)[row], self.operator.law.holds_us
                )
            else:
                columns[name] = self.cause_column(name, 0)[row]
        return Cause(columns)

    def horizon_us(self, source: int) -> int:
        """Return the time in microseconds before which stored rows of a windowed source are no
        longer needed: its stream time after the batch, minus its retention. A row's time is that in
        ``expiry_column``; a row exactly at the horizon is kept.

        ``source``: the index of the source. The time is ``NO_TIME`` for a source without windows,
        and before its first record.
        """
        retention_us = self.sources[source].meaning.retention_us
        return (
            NO_TIME if retention_us is None else subtract_span(self.final_us[source], retention_us)
        )

    def expiry_column(self, source: int) -> str:
        """Return the name of the column by whose time stored rows of the source with index
        ``source`` expire. It is ``_event_time`` for a source without windows, ``window_end`` for
        session windows, and ``window_start`` for other windows.

        The event time of a window's row may be older than the window.
        """
        spec = self.sources[source]
        return EVENT_TIME if spec.meaning.retention_us is None else spec.shape.window

    def table_store(
        self, source: int, name: str | None = None, *, schema: pa.Schema | None = None
    ) -> TableState | HistoryState:
        """Open the store of a table source as it was before the batch. It has the last row per key
        or, if the source is versioned, all versions within the history retention.

        ``source``: the index of the source. ``name``: the store, by default that named after the
        source. ``schema``: the stored columns, by default all of the source's; they begin with
        ``ROW_COLUMNS``, then the key.

        Of a windowed source, rows behind the retention may be gone. Each call opens the store anew.
        Rows added to it are kept only if its ``runs`` are returned in ``OperatorOutcome.stores``.
        """
        spec, runs = self.sources[source], self.stored_runs(name or self.operator.names[source])
        schema = schema or spec.shape.schema
        if spec.meaning.versioned_us is None:
            return TableState(
                schema,
                spec.shape.keys,
                runs,
                self.blobs,
                self.cache,
                horizon_us=self.horizon_us(source),
                expiry=self.expiry_column(source),
            )
        return HistoryState(
            schema,
            spec.shape.key_columns,
            runs,
            self.blobs,
            self.cache,
            versioned=True,
            horizon_us=subtract_span(self.final_us[source], spec.meaning.versioned_us),
        )


@dataclass(frozen=True)
class Cause:
    """The record that causes each of n results: the columns ``Operator.feeds``, int64[n] each."""

    columns: Mapping[str, Ints]

    @property
    def arrays(self) -> dict[str, pa.Array]:
        """The columns as Arrow arrays of int64, by name, in the order of ``columns``."""
        return {name: pa.array(column) for name, column in self.columns.items()}

    def with_tie(self, tie: Ints) -> Cause:
        """Return the causes with the column ``_tie`` replaced by ``tie``: int64[n], the order of
        results of one record. If they have no such column, return equal causes.
        """
        return Cause({n: tie if n == TIE else column for n, column in self.columns.items()})

    def take(self, which: Ints) -> Cause:
        """Return the causes of the results with the indices ``which``, in that order. ``which``:
        int64[m]; an index may be repeated. The columns of the new ``Cause`` have m elements.
        """
        return Cause({name: column[which] for name, column in self.columns.items()})

    # An example of two windows that one record closes. Its clock is 45:
    #
    # | result | due | clock | order | stream time |
    # |---|---|---|---|---|
    # | window until 10 | 10 | 45 | before all records, first | 10 |
    # | window until 20 | 20 | 45 | before all records, second | 20 |
    def closed_at(
        self, which: Mask, moves: Ints, due_us: Ints, hash_: Ints, holds_us: int
    ) -> Cause:
        """Return the causes with some records replaced by those that move stream time to
        ``due_us``.

        ``which``: bool[n], true for the results to change. ``moves``: int64[n], the position of the
        record that does so: in the log that all inputs share or, without one, its clock; ``NEVER``
        for none in this batch. ``due_us``: int64[n], microseconds. ``hash_``: int64[n], the hashes
        of the results' keys. ``holds_us``: the span by which the stream time of the results lies
        behind ``due_us``.

        The results precede all records of that clock, by due time, then by hash. A column that the
        causes do not have is left out.
        """
        early = {
            SEQUENCE: moves,
            CLOCK: moves,
            ORDER: order_by_due_time(due_us),
            TIE: hash_,
            STREAM_TIME: subtract_span_each(due_us, holds_us),
        }
        return Cause(
            {
                name: np.where(which, early.get(name, column), column)
                for name, column in self.columns.items()
            }
        )


@dataclass(frozen=True)
class OperatorOutcome:
    """The outcome of an operator on one bucket: its changes, and its stores after the batch."""

    output: pa.Table | None
    """The changes (``Operator.output_schema``), None for none."""
    stores: Mapping[str, Runs]
    """The runs of each store after the batch, by the operator's name for it. Stores that are not
    named are gone.
    """
    rows: int = 0
    """The count of stream rows that the bucket has numbered so far. It replaces that of the
    manifest, unless the operator is one of a chain, which numbers all rows itself.
    """
    chunks: Iterable[pa.Table] = ()
    """More changes, built on demand, so they need not all be in memory."""
    later: int = 0
    """The count of changes in ``chunks`` that have positions, which follow those of ``output``."""
    counts: Counts = field(default_factory=Counts)
    """Counts of unused rows, by metric, complete before ``chunks`` are read."""


def subtract_span_each(time_us: Ints, span_us: int) -> Ints:
    """Return ``time_us - span_us`` for each time, int64[n], all in microseconds. ``NO_TIME`` stays
    ``NO_TIME``.
    """
    return np.where(time_us == NO_TIME, NO_TIME, time_us - span_us)


def subtract_span(time_us: int, span_us: int) -> int:
    """Return ``time_us - span_us``, both in microseconds. ``NO_TIME`` stays ``NO_TIME``."""
    return time_us if time_us == NO_TIME else time_us - span_us


def output_table(
    operator: Operator,
    keys: Sequence[pa.Array],
    leaves: Sequence[Sequence[pa.Array]],
    references: Sequence[Ints],
    *,
    deleted: Mask,
    event_time_us: Ints,
    position: int,
    cause: Cause,
) -> pa.Table:
    """Return n changes as a table of ``operator.output_schema``, in the order given. Without
    changes, the table is empty.

    - ``keys``: the key columns, n rows each.
    - ``leaves``: for each leaf (a side of the operator whose values changes show) its value
      columns, n rows each, null where there is no value.
    - ``references``: for each leaf int64[n], the index of the row that a change shows, ``ABSENT``
      (-1) for none. Only if the operator is ``visible``, they become bits of ``_visible``.
    - ``deleted``: bool[n], true for a tombstone. ``event_time_us``: int64[n], microseconds.
    - ``position``: the position of the first change; each other one is larger by 1.
    - ``cause``: the record that causes each change. A column of ``operator.feeds`` that it lacks
      raises ``KeyError``.
    """
    count = len(event_time_us)
    columns = [*keys, *(column for values in leaves for column in values)]
    columns += [
        pa.array(deleted),
        pa.array(event_time_us),
        pa.array(np.arange(position, position + count)),
    ]
    if operator.visible:
        visible = np.zeros(count, dtype=np.int64)
        for leaf, refs in enumerate(references):
            visible |= (refs != ABSENT).astype(np.int64) << leaf
        columns.append(pa.array(visible))
    columns += [pa.array(cause.columns[name]) for name in operator.feeds]
    return pa.table(columns, schema=operator.output_schema)


def take_rows(columns: Sequence[Column], refs: Ints) -> list[pa.Array]:
    """Return each column at the row indices ``refs``: arrays of one element per reference, null for
    ``ABSENT`` (-1).

    If ``refs`` are all rows in order, the columns themselves are returned, each as one chunk.
    """
    if all(len(refs) == len(column) for column in columns) and _is_range(refs):
        return [combine_chunks(column) for column in columns]
    absent = refs == ABSENT
    index = pa.array(refs, mask=absent if absent.any() else None)
    return [combine_chunks(column.take(index)) for column in columns]


def _is_range(refs: Ints) -> bool:
    """Return True if ``refs`` are 0, 1, 2 and so on without a gap, or empty."""
    return len(refs) == 0 or (
        refs[0] == 0 and refs[-1] == len(refs) - 1 and bool(np.all(refs[1:] - refs[:-1] == 1))
    )


def combine_chunks(column: Column) -> pa.Array:
    """Return a column of any chunk count as one array. An array is returned as it is, and a single
    chunk without a copy.
    """
    if isinstance(column, pa.Array):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
