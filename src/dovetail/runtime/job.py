"""One micro-batch of one bucket, as the operators see it, and what they give back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from dovetail.columns import DELETED, EVENT_TIME, HASH, SEQUENCE
from dovetail.kernels.timeline import ABSENT, NO_TIME, Ints, Mask, Rows, Timeline
from dovetail.plan.spec import StageSpec
from dovetail.state.blobs import Blobs
from dovetail.state.history import HistoryState
from dovetail.state.manifest import Manifest
from dovetail.state.runs import Runs
from dovetail.state.segment import SegmentCache
from dovetail.state.table_state import TableState

Column: TypeAlias = pa.Array | pa.ChunkedArray

COUNTS = ("late", "astray", "ungrouped", "too_late")
"""What operators count: records that came for a window when it was closed; rows that look in a
window that is none, or is no longer kept; rows with a null among the columns that they are grouped
by; pairs that are not made since one of the rows has been emitted without a match.
"""

END_OF_TIME = 2**62
"""As a stream time: the input has ended, nothing is waited for any longer."""


@dataclass(frozen=True)
class Batch:
    """The rows of one source in the order they were read, and the input partition of each."""

    rows: pa.Table
    partition: Ints


@dataclass(frozen=True)
class Job:
    """``batches``: per source; ``manifest``: the bucket before the batch; ``final_us``: per source
    its stream time at the end of the batch, ``NO_TIME`` before the first record; ``clock_us``: in a
    step, stream time after each record of the batch, by its number.
    """

    spec: StageSpec
    batches: Sequence[Batch]
    manifest: Manifest
    final_us: Sequence[int]
    blobs: Blobs
    cache: SegmentCache
    clock_us: Ints = field(default_factory=lambda: np.zeros(0, np.int64))

    @property
    def initial_us(self) -> Sequence[int]:
        """Per source its stream time before the batch."""
        return [NO_TIME if t is None else t for t in self.manifest.stream_time_us]

    @property
    def any_rows(self) -> bool:
        """Whether the batch has any rows."""
        return any(batch.rows.num_rows for batch in self.batches)

    def rows(self, source: int) -> Rows:
        """What the kernels know of a source's rows."""
        spec, batch = self.spec.sources[source], self.batches[source]
        table = batch.rows
        return Rows(
            keys=[whole(table.column(i)) for i in self.spec.key_columns],
            hash=table.column(HASH).to_numpy(),
            event_time_us=table.column(EVENT_TIME).to_numpy(),
            deleted=whole(table.column(DELETED)).to_numpy(zero_copy_only=False),
            partition=batch.partition,
            sequence=table.column(SEQUENCE).to_numpy()
            if spec.sequence and not spec.log_partition
            else None,
        )

    def sequences(self, events: Timeline) -> Ints:
        """Per event the place, in the log that all inputs share, of the record that it is or, where
        a record had waited, of the one that let it through; zeros where no stage asks for it.
        """
        sequence = np.zeros(len(events.row), np.int64)
        if self.spec.feeds:
            for source, batch in enumerate(self.batches):
                own = events.source == source
                places = batch.rows.column(SEQUENCE).to_numpy()
                sequence[events.arrival[own]] = places[events.row[own]]
            sequence = np.maximum.accumulate(sequence)[events.arrival]
        return sequence

    def places(self, row: Ints) -> Ints:
        """The places of the only source's rows in the log that all inputs share; zeros where no
        stage asks for them.
        """
        if not self.spec.feeds:
            return np.zeros(len(row), np.int64)
        places: Ints = self.batches[0].rows.column(SEQUENCE).to_numpy()[row]
        return places

    def horizon_us(self, source: int) -> int:
        """What is older of a windowed source's rows is no longer asked for; ``NO_TIME`` of
        others.
        """
        retention_us = self.spec.sources[source].retention_us
        return NO_TIME if retention_us is None else minus(self.final_us[source], retention_us)

    def expiry(self, source: int) -> str:
        """The column by which a source's rows expire: a row's own time may be older than its
        window, as a table's record may be that gave it.
        """
        spec = self.spec.sources[source]
        return EVENT_TIME if spec.retention_us is None else spec.window

    def table_store(
        self, source: int, schema: pa.Schema | None = None
    ) -> TableState | HistoryState:
        """The store of a table, its last rows or, of a versioned one, its history; ``schema``:
        where not all of the table's columns are stored.
        """
        spec, runs = self.spec.sources[source], self.manifest.stores[source]
        schema = schema or spec.schema
        if spec.versioned_us is None:
            return TableState(
                schema,
                self.spec.keys,
                runs,
                self.blobs,
                self.cache,
                horizon_us=self.horizon_us(source),
                expiry=self.expiry(source),
            )
        return HistoryState(
            schema,
            self.spec.key_columns,
            runs,
            self.blobs,
            self.cache,
            versioned=True,
            horizon_us=minus(self.final_us[source], spec.versioned_us),
        )


@dataclass(frozen=True)
class Done:
    """What an operator leaves: its changes (``StageSpec.output_schema``, None for none), its
    stores, and how many stream rows the bucket has numbered.

    ``chunks``: more changes, made only when they are asked for, so that they need not all be in
    memory at a time; ``counts``: of rows that had no use, by ``COUNTS``.
    """

    output: pa.Table | None
    stores: tuple[Runs, ...]
    rows: int = 0
    chunks: Iterable[pa.Table] = ()
    counts: Counter[str] = field(default_factory=Counter)


def minus(time_us: int, span_us: int) -> int:
    """A time less a span; no time stays none."""
    return time_us if time_us == NO_TIME else time_us - span_us


def output(
    spec: StageSpec,
    keys: Sequence[pa.Array],
    leaves: Sequence[Sequence[pa.Array]],
    references: Sequence[Ints],
    *,
    deleted: Mask,
    event_time_us: Ints,
    position: int,
    sequence: Ints,
) -> pa.Table:
    """The changes of a stage as one table: key columns, each leaf's value columns, then the rest;
    ``references`` say where a leaf contributes a row.
    """
    count = len(event_time_us)
    columns = [*keys, *(column for values in leaves for column in values)]
    columns += [
        pa.array(deleted),
        pa.array(event_time_us),
        pa.array(np.arange(position, position + count)),
    ]
    if spec.visible:
        visible = np.zeros(count, dtype=np.int64)
        for leaf, refs in enumerate(references):
            visible |= (refs != ABSENT).astype(np.int64) << leaf
        columns.append(pa.array(visible))
    if spec.feeds:
        columns.append(pa.array(sequence))
    return pa.table(columns, schema=spec.output_schema)


def picked(columns: Sequence[Column], refs: Ints) -> list[pa.Array]:
    """The rows of some columns that ``refs`` name, null where ABSENT."""
    index = pa.array(refs, mask=refs == ABSENT)
    return [whole(column.take(index)) for column in columns]


def whole(column: Column) -> pa.Array:
    """A column in one piece."""
    if isinstance(column, pa.Array):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
