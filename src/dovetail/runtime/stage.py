"""One stage on one bucket: decode a batch's rows, run the kernels over state, emit, store.

No Spark here: the same code runs under ``transformWithState`` (``runtime.spark``), in a batch run
(``runtime.batch``) and in the test driver (``dovetail.testing``); what differs is where the blobs
lie. A stage joins tables that share a key. Each table's rows are stored once, however many joins
of the stage read them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from dovetail.columns import DELETED, EVENT_TIME, HASH, LOG_PARTITION, SEQUENCE
from dovetail.kernels.equality import rows_equal
from dovetail.kernels.table_join import Changes, Stored, join_tables, leaves, net_changes
from dovetail.kernels.timeline import ABSENT, Ints, Rows, Timeline, last_of_source, timeline
from dovetail.plan.spec import SourceSpec, StageSpec
from dovetail.state import manifest as manifests
from dovetail.state.blobs import Blobs
from dovetail.state.segment import SegmentCache
from dovetail.state.table_state import Located, TableState

NO_TIME = int(np.iinfo(np.int64).min)
"""The high time of a partition that has read no record with a key."""

_COMPACTION_BYTES_MIN = 256 << 10


@dataclass(frozen=True)
class Piece:
    """Some rows of one source and input partition for one bucket, in order; ``number`` orders the
    pieces of a partition. A piece without rows is a heartbeat: it brings only the time.

    ``high_time_us``: the largest timestamp the partition has read in this batch, of any bucket.
    """

    source: int
    partition: int
    number: int
    high_time_us: int
    rows: pa.Table | None


def process(
    spec: StageSpec, pieces: Sequence[Piece], blobs: Blobs, cache: SegmentCache
) -> pa.Table | None:
    """Run one micro-batch of one bucket: state in ``blobs`` advances, the changes are returned.

    The changes (``spec.output_schema``) come in arrival order; None when there are none.
    """
    manifest = manifests.load(blobs, spec.topology, spec.buckets, len(spec.sources))
    states = [
        TableState(source.schema, spec.keys, runs, blobs, cache)
        for source, runs in zip(spec.sources, manifest.tables, strict=True)
    ]
    batches = [_rows_of(source, pieces, number) for number, source in enumerate(spec.sources)]
    output = None
    position = manifest.position
    if any(batch.num_rows for batch, _ in batches):
        output = _join(spec, batches, states, position)
        position += 0 if output is None else output.num_rows
    manifests.save(
        blobs,
        replace(
            manifest,
            stream_time_us=_advance(manifest.stream_time_us, pieces),
            position=position,
            tables=tuple(state.runs for state in states),
        ),
    )
    return output


def _rows_of(source: SourceSpec, pieces: Sequence[Piece], number: int) -> tuple[pa.Table, Ints]:
    """The rows of one source in the order they were read, and the input partition of each."""
    own = sorted(
        (piece for piece in pieces if piece.source == number and piece.rows is not None),
        key=lambda piece: (piece.partition, piece.number),
    )
    rows = pa.concat_tables([piece.rows for piece in own] or [source.wire_schema.empty_table()])
    lengths = [piece.rows.num_rows for piece in own if piece.rows is not None]
    partition = np.repeat(np.array([piece.partition for piece in own], np.int64), lengths)
    if source.log_partition:
        partition = rows.column(LOG_PARTITION).to_numpy()
        order = np.lexsort((rows.column(SEQUENCE).to_numpy(), partition))
        return rows.take(pa.array(order)), partition[order]
    return rows, partition


def _join(
    spec: StageSpec,
    batches: Sequence[tuple[pa.Table, Ints]],
    states: Sequence[TableState],
    position: int,
) -> pa.Table | None:
    tables = [table for table, _ in batches]
    events = timeline(
        [
            Rows(
                keys=[_whole(table.column(i)) for i in range(3, 3 + spec.keys)],
                hash=table.column(HASH).to_numpy(),
                event_time_us=table.column(EVENT_TIME).to_numpy(),
                deleted=_whole(table.column(DELETED)).to_numpy(zero_copy_only=False),
                partition=partition,
                sequence=table.column(SEQUENCE).to_numpy()
                if source.sequence and not source.log_partition
                else None,
            )
            for source, (table, partition) in zip(spec.sources, batches, strict=True)
        ]
    )
    located = [state.locate(events.hash, events.keys) for state in states]
    stored = {
        source: Stored(found.present, found.event_time_us) for source, found in enumerate(located)
    }
    times = {i: table.column(EVENT_TIME).to_numpy() for i, table in enumerate(tables)}
    changes = join_tables(spec.tree, events, stored, times)
    gather = _Gather(spec, tables, states, located, events)
    if spec.emit == "batch":
        changes, before = net_changes(spec.tree, events, stored, changes)
        changes = _differing(gather, changes, before)
    output = gather.output(changes, position) if len(changes.event) else None
    _store(spec, events, tables, states)
    return output


def _store(
    spec: StageSpec, events: Timeline, tables: Sequence[pa.Table], states: Sequence[TableState]
) -> None:
    """Append each table's last row per key and let compaction keep pace with what was written."""
    for source, (table, state) in enumerate(zip(tables, states, strict=True)):
        rows = pa.array(events.row[last_of_source(events, source)])
        kept = table.select(range(len(spec.sources[source].schema))).take(rows)
        written = state.append(kept)
        if written:
            state.compact(2 * state.runs.tiers() * written + _COMPACTION_BYTES_MIN)


def _advance(
    stream_time_us: tuple[int | None, ...], pieces: Sequence[Piece]
) -> tuple[int | None, ...]:
    highest: list[int | None] = list(stream_time_us)
    for piece in pieces:
        if piece.high_time_us == NO_TIME:
            continue
        known = highest[piece.source]
        highest[piece.source] = (
            piece.high_time_us if known is None else max(known, piece.high_time_us)
        )
    return tuple(highest)


def _differing(gather: _Gather, changes: Changes, before: Changes) -> Changes:
    """The changes whose row differs from the one before, in presence or in any value."""
    equal = changes.present & before.present
    at = np.flatnonzero(equal)
    for leaf in range(len(changes.reference)):
        now, then = changes.reference[leaf][at], before.reference[leaf][at]
        equal[at] &= (now == ABSENT) == (then == ABSENT)
        equal[at] &= rows_equal(gather.values(leaf, now), gather.values(leaf, then))
    keep = ~equal
    return Changes(
        changes.event[keep],
        changes.present[keep],
        changes.event_time_us[keep],
        tuple(refs[keep] for refs in changes.reference),
    )


@dataclass(frozen=True)
class _Gather:
    """Turns references into values, once, by Arrow's ``take``."""

    spec: StageSpec
    tables: Sequence[pa.Table]
    states: Sequence[TableState]
    located: Sequence[Located]
    events: Timeline

    def output(self, changes: Changes, position: int) -> pa.Table:
        columns = [key.take(pa.array(self.events.group[changes.event])) for key in self.events.keys]
        visible = np.zeros(len(changes.event), dtype=np.int64)
        for leaf, refs in enumerate(changes.reference):
            columns += self.values(leaf, refs)
            visible |= (refs != ABSENT).astype(np.int64) << leaf
        columns += [
            pa.array(~changes.present),
            pa.array(changes.event_time_us),
            pa.array(np.arange(position, position + len(changes.event))),
        ]
        if self.spec.visible:
            columns.append(pa.array(visible))
        return pa.table(columns, schema=self.spec.output_schema)

    def values(self, leaf: int, refs: Ints) -> list[pa.Array]:
        """The value columns of a leaf for these references, null where ABSENT."""
        source = list(leaves(self.spec.tree))[leaf]
        values = self.spec.value_fields(source)
        groups = self.events.groups
        rows = self.tables[source].select(values)
        old = refs < groups
        used = np.zeros(groups + 1, dtype=np.bool_)
        used[refs[old]] = True
        stored = np.flatnonzero(used[:groups])
        if len(stored):
            fetched = self.states[source].fetch(self.located[source], stored).select(values)
            rows = pa.concat_tables([fetched, rows])
        index = refs - groups + len(stored)
        index[old] = (np.cumsum(used) - 1)[refs[old]]
        picked = pa.array(index, mask=refs == ABSENT)
        return [_whole(column.take(picked)) for column in rows.columns]


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
