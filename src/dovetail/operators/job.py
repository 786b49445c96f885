"""One micro-batch of one bucket, as the operators see it, and what they give back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from dovetail.arrays.timeline import ABSENT, NO_TIME, Ints, Mask, Rows, Timeline
from dovetail.columns import CLOCK, DELETED, EVENT_TIME, HASH, ORDER, SEQUENCE, STREAM_TIME, TIE
from dovetail.laws.arrival import Stairs, before_all
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
"""As a stream time: the input has ended, nothing is waited for any longer."""


@dataclass(frozen=True)
class Batch:
    """The rows of one source in the order they were read.

    ``clock_us``, ``order``, ``tie``: as in ``timeline.Rows``; ``stream_us``: int64[n], the source's
    stream time once each row has come, as far as this batch shows; ``stairs``: how it rises in the
    whole batch, None where no other source asks, or where all sources wait for each other.
    """

    rows: pa.Table
    clock_us: Ints
    stream_us: Ints
    order: Ints | None = None
    tie: Ints | None = None
    stairs: Stairs | None = None

    @classmethod
    def in_sequence(cls, rows: pa.Table, stream_us: Ints) -> Batch:
        """Rows that their sequence puts in order."""
        return cls(rows, stream_us, stream_us)

    def of(self, which: Ints, rows: pa.Table) -> Batch:
        """Some of the rows, which are ``rows``."""
        return Batch(
            rows,
            self.clock_us[which],
            self.stream_us[which],
            None if self.order is None else self.order[which],
            None if self.tie is None else self.tie[which],
            self.stairs,
        )


@dataclass(frozen=True, kw_only=True)
class Work:
    """A bucket's rows of a micro-batch. ``batches``: per source; ``manifest``: the bucket before
    the batch; ``final_us``: per source its stream time at the end of the batch, ``NO_TIME`` before
    the first record.
    """

    sources: Sequence[SourceSpec]
    batches: Sequence[Batch]
    manifest: Manifest
    final_us: Sequence[int]
    blobs: Blobs
    cache: SegmentCache

    @property
    def initial_us(self) -> Sequence[int]:
        """Per source its stream time before the batch."""
        return [NO_TIME if t is None else t for t in self.manifest.stream_time_us]

    @property
    def any_rows(self) -> bool:
        """Whether the batch has any rows."""
        return any(batch.rows.num_rows for batch in self.batches)

    def rows(self, source: int, *, keyed: bool = True) -> Rows:
        """What the laws know of a source's rows; without the keys if not ``keyed``."""
        spec, batch = self.sources[source], self.batches[source]
        table = batch.rows
        return Rows(
            keys=[whole(table.column(i)) for i in spec.key_columns if keyed],
            hash=table.column(HASH).to_numpy(),
            event_time_us=table.column(EVENT_TIME).to_numpy(),
            deleted=whole(table.column(DELETED)).to_numpy(zero_copy_only=False),
            clock_us=batch.clock_us,
            order=batch.order,
            tie=batch.tie,
            sequence=self.sequence(source) if spec.ordered else None,
        )

    def sequence(self, source: int) -> Ints:
        """The places of a source's rows in the log that all inputs share."""
        sequence: Ints = self.batches[source].rows.column(SEQUENCE).to_numpy()
        return sequence

    def position(self, source: int) -> Ints:
        """What puts a source's rows in order among those of all sources."""
        batch = self.batches[source]
        return self.sequence(source) if self.sources[source].ordered else batch.clock_us

    def clock_of(self, source: int, asking: int) -> Ints:
        """A source's stream time as each row of the ``asking`` source comes, that row included:
        int64[rows]. It does not depend on which rows this bucket has.
        """
        batch = self.batches[source]
        if source == asking:
            found = batch.stream_us
        elif batch.stairs is None:
            found = self.position(asking)
        else:
            found = batch.stairs.at(self.position(asking), inclusive=source < asking)
        return np.maximum(found, self.initial_us[source])

    def said(self, name: str, source: int) -> Ints:
        """What ``Fragment.feeds`` says of each row of a source, but for stream time."""
        batch = self.batches[source]
        if name == SEQUENCE:
            return self.sequence(source)
        if name == TIE:
            return batch.rows.column(HASH).to_numpy()  # type: ignore[no-any-return]
        if name == CLOCK:
            return batch.clock_us
        if batch.order is None:
            assert self.sources[source].ordered
            return np.zeros(len(batch.rows), np.int64)
        return batch.order


@dataclass(frozen=True, kw_only=True)
class Share(Work):
    """What a fragment's inputs have for one bucket."""

    fragment: Fragment


@dataclass(frozen=True, kw_only=True)
class Job(Work):
    """What an operator's sources have for one bucket. ``stores``: what it keeps, by name;
    ``clock_us``: where it is one of several, stream time as each record of the batch comes, by its
    number.
    """

    operator: Operator
    stores: Mapping[str, Runs]
    clock_us: Ints = field(default_factory=lambda: np.zeros(0, np.int64))

    def runs(self, store: str) -> Runs:
        """What a store consists of; nothing before its first batch."""
        return self.stores.get(store, Runs())

    def clocks_of(self, source: int, events: Timeline) -> Ints:
        """As ``clock_of``, for each event."""
        clock_us = np.empty(len(events.row), np.int64)
        for asking in range(len(self.batches)):
            own = events.source == asking
            clock_us[own] = self.clock_of(source, asking)[events.row[own]]
        return clock_us

    def stream_us(self, events: Timeline) -> Ints:
        """The largest timestamp of all streams, or of all sources where none is a stream, as each
        event comes: int64[events].
        """
        streams = [n for n, source in enumerate(self.sources) if source.stream]
        clocks = [self.clocks_of(n, events) for n in streams or range(len(self.sources))]
        highest: Ints = np.maximum.reduce(clocks)
        return highest

    def causes(self, events: Timeline) -> Cause:
        """What ``Operator.feeds`` says of each event, as of the record that causes it."""
        found: dict[str, Ints] = {}
        for name in self.operator.feeds:
            if name == STREAM_TIME:
                found[name] = minus_each(self.stream_us(events), self.operator.law.holds_us)
                continue
            column = np.empty(len(events.row), np.int64)
            for source in range(len(self.batches)):
                own = events.source == source
                column[own] = self.said(name, source)[events.row[own]]
            found[name] = column
        return Cause(found)

    def causes_of_rows(self, row: Ints) -> Cause:
        """As ``causes``, of these rows of the only source."""
        found = {}
        for name in self.operator.feeds:
            if name == STREAM_TIME:
                found[name] = minus_each(self.clock_of(0, 0)[row], self.operator.law.holds_us)
            else:
                found[name] = self.said(name, 0)[row]
        return Cause(found)

    def horizon_us(self, source: int) -> int:
        """What is older of a windowed source's rows is no longer asked for; ``NO_TIME`` of
        others.
        """
        retention_us = self.sources[source].retention_us
        return NO_TIME if retention_us is None else minus(self.final_us[source], retention_us)

    def expiry(self, source: int) -> str:
        """The column by which a source's rows expire: a row's own time may be older than its
        window, as a table's record may be that gave it.
        """
        spec = self.sources[source]
        return EVENT_TIME if spec.retention_us is None else spec.window

    def table_store(
        self, source: int, name: str | None = None, *, schema: pa.Schema | None = None
    ) -> TableState | HistoryState:
        """The store of a table, its last rows or, of a versioned one, its history. ``name``: by
        default the source's; ``schema``: where not all of the table's columns are stored.
        """
        spec, runs = self.sources[source], self.runs(name or self.operator.names[source])
        schema = schema or spec.schema
        if spec.versioned_us is None:
            return TableState(
                schema,
                spec.keys,
                runs,
                self.blobs,
                self.cache,
                horizon_us=self.horizon_us(source),
                expiry=self.expiry(source),
            )
        return HistoryState(
            schema,
            spec.key_columns,
            runs,
            self.blobs,
            self.cache,
            versioned=True,
            horizon_us=minus(self.final_us[source], spec.versioned_us),
        )


@dataclass(frozen=True)
class Cause:
    """Which record causes each of n results: the columns ``Operator.feeds``, int64[n] each."""

    columns: Mapping[str, Ints]

    @property
    def arrays(self) -> dict[str, pa.Array]:
        """The columns in Arrow."""
        return {name: pa.array(column) for name, column in self.columns.items()}

    def tied(self, tie: Ints) -> Cause:
        """The results of one record in another order."""
        return Cause({n: tie if n == TIE else column for n, column in self.columns.items()})

    def of(self, which: Ints) -> Cause:
        """Those of some results."""
        return Cause({name: column[which] for name, column in self.columns.items()})

    def due(self, which: Mask, due_us: Ints, hash_: Ints, holds_us: int) -> Cause:
        """Some of the results come not by a record of their own key but as stream time reaches
        ``due_us``: before all records of that clock, in the order of their keys' hashes.
        """
        early = {
            CLOCK: due_us,
            ORDER: before_all(hash_),
            TIE: hash_,
            STREAM_TIME: minus_each(due_us, holds_us),
        }
        return Cause(
            {
                name: np.where(which, early.get(name, column), column)
                for name, column in self.columns.items()
            }
        )


@dataclass(frozen=True)
class Done:
    """What an operator leaves: its changes (``Operator.output_schema``, None for none), its
    stores, and how many stream rows the bucket has numbered.

    ``chunks``: more changes, made only when they are asked for, so that they need not all be in
    memory at a time; ``later``: how many of them have positions, which go on from those of
    ``output``; ``counts``: of rows that had no use, by metric.
    """

    output: pa.Table | None
    stores: Mapping[str, Runs]
    rows: int = 0
    chunks: Iterable[pa.Table] = ()
    later: int = 0
    counts: Counts = field(default_factory=Counts)


def minus_each(time_us: Ints, span_us: int) -> Ints:
    """Times less a span; no time stays none."""
    return np.where(time_us == NO_TIME, NO_TIME, time_us - span_us)


def minus(time_us: int, span_us: int) -> int:
    """A time less a span; no time stays none."""
    return time_us if time_us == NO_TIME else time_us - span_us


def output(
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
    """The changes of a stage as one table: key columns, each leaf's value columns, then the rest;
    ``references`` say where a leaf contributes a row; ``cause``: which record each is due to.
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


def picked(columns: Sequence[Column], refs: Ints) -> list[pa.Array]:
    """The rows of some columns that ``refs`` name, null where ABSENT."""
    index = pa.array(refs, mask=refs == ABSENT)
    return [whole(column.take(index)) for column in columns]


def whole(column: Column) -> pa.Array:
    """A column in one piece."""
    if isinstance(column, pa.Array):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
