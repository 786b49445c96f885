"""Stages in this process: one after the other, their buckets' blobs in memory.

What runs is what Spark's workers run, on the same bytes; only the way between the stages is short.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Annotated, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dovetail.arguments import Rule, takes
from dovetail.columns import (
    DELETED,
    EVENT_TIME,
    FOREIGN,
    HASH,
    PLACE,
    foreign_name,
    gathered_name,
)
from dovetail.errors import PlanError
from dovetail.kernels.equality import canonical
from dovetail.plan.inputs import Input
from dovetail.plan.nodes import ForeignKeyJoin, Source
from dovetail.plan.output import held_columns
from dovetail.plan.spec import Eventual, StageSpec
from dovetail.plan.stages import Stage
from dovetail.runtime.merge import merge
from dovetail.runtime.pack import Packer, Tag, packed, unpack_piece
from dovetail.runtime.stage import Piece, process
from dovetail.state.blobs import MemoryBlobs
from dovetail.state.segment import SegmentCache

Hash: TypeAlias = Annotated[
    Callable[[Sequence[pa.Array]], npt.NDArray[np.int64]],
    Rule("a function of a key's columns", partial(takes, 1)),
]
Pieces: TypeAlias = "list[tuple[int, Piece]]"


class Buckets:
    """A stage's work on all its buckets."""

    def __init__(self, spec: StageSpec) -> None:
        self.spec = spec
        self.blobs = [MemoryBlobs() for _ in range(spec.buckets)]
        self.counts: Counter[str] = Counter()
        self._cache = SegmentCache()

    def process(self, pieces: Pieces, now_us: int) -> Iterator[tuple[int, pa.Table]]:
        """One micro-batch: the changes, each table with its bucket."""
        for number, blobs in enumerate(self.blobs):
            own = [piece for bucket, piece in pieces if bucket == number]
            if own or self.spec.align_us is not None:
                done = process(self.spec, own, blobs, self._cache, now_us, number)
                for table in done.changes:
                    yield number, table
                self.counts += done.counts


class LocalStage:
    """A stage and those that feed it.

    Rows come as tables of their source's columns with ``_event_time``, ``_deleted`` and
    ``_sequence``. ``key_hash``: the function that places keys.
    """

    def __init__(self, stage: Stage, key_hash: Hash) -> None:
        _refuse_expressions(stage)
        self.stage = stage
        self._hash = key_hash
        self._own = Buckets(stage.spec)
        self._first = None if stage.first is None else Buckets(stage.first)
        self._upstream = {n: LocalStage(made, key_hash) for n, made in stage.upstream}
        self._given: list[Pieces] = [[] for _ in stage.inputs]
        self._held = held_columns(stage)

    @property
    def buckets(self) -> list[Buckets]:
        """The buckets of this stage and of all that feed it, in an order of their own."""
        own = [self._own] if self._first is None else [self._first, self._own]
        return [*own, *(b for stage in self._upstream.values() for b in stage.buckets)]

    def accept(self, source: Source, rows: pa.Table, partition: int = 0) -> int:
        """Take rows of a source, of an input partition, for the next micro-batch; returns how many
        are of no use.

        Raises ``DataError`` for rows that cannot be placed in time, and takes none.
        """
        offers = list(self.offers(source, rows, partition))
        for held, pieces, _ in offers:
            # Pieces of one input come in the order of their numbers.
            first = len(held)
            held += [(b, replace(piece, number=first + piece.number)) for b, piece in pieces]
        return sum(dropped for _, _, dropped in offers)

    def offers(
        self, source: Source, rows: pa.Table, partition: int
    ) -> Iterator[tuple[Pieces, Pieces, int]]:
        """Per input of all stages that is the source: what it holds, what these rows add to it, and
        how many of them are of no use.
        """
        for stage in self._upstream.values():
            yield from stage.offers(source, rows, partition)
        for number, input_ in enumerate(self.stage.inputs):
            if input_.source is source:
                yield self._given[number], *self._packed(number, [rows], partition)

    def forget(self) -> None:
        """Leave what was accepted."""
        for stage in self._upstream.values():
            stage.forget()
        self._given = [[] for _ in self._given]

    def run(self, batch: int, now_us: int, beat_us: int | None = None) -> list[pa.Table]:
        """All ``results`` of a micro-batch that are not empty."""
        return [table for table in self.results(batch, now_us, beat_us) if len(table)]

    def results(self, batch: int, now_us: int, beat_us: int | None = None) -> Iterator[pa.Table]:
        """One micro-batch of what was accepted: the changes (``StageSpec.output_schema``), in
        pieces that are made as they are asked for.

        ``batch``: its number; ``beat_us``: a time up to which all inputs are read.
        """
        given = self._given
        self._given = [[] for _ in given]
        for number, stage in self._upstream.items():
            made = stage.run(batch, now_us, beat_us)
            given[number], _ = self._packed(number, [stage.as_rows(table) for table in made])
        if self._first is not None:
            subscribing = given[0] + self._beats([0], beat_us)
            given[0] = self._routed(self._first.process(subscribing, now_us), HASH)
        pieces = self._beats(range(len(given)), beat_us)
        pieces += (piece for own in given for piece in own)
        changes = self._own.process(pieces, now_us)
        if not self.stage.merges:
            yield from (table for _, table in changes)
        else:
            yield from merge(self._by_place(changes), self.stage.spec, batch)

    def as_rows(self, changes: pa.Table) -> pa.Table:
        """Changes as rows for another stage."""
        carried = [EVENT_TIME, DELETED, *self.stage.spec.feeds]
        columns = [changes.column(held) for held in self._held.values()]
        return pa.table(
            [*columns, *(changes.column(name) for name in carried)], names=[*self._held, *carried]
        )

    def _packed(
        self, number: int, tables: Sequence[pa.Table], partition: int = 0
    ) -> tuple[Pieces, int]:
        """What every bucket gets of an input's rows, through the bytes that Spark would move, and
        how many rows were dropped.
        """
        input_, spec = self.stage.inputs[number], self.stage.spec
        source, keys = spec.sources[number], spec.keys
        if self.stage.first is not None and number == 0:
            source, keys = self.stage.first.sources[0], self.stage.first.keys
        schema = source.travel_schema
        batches = [
            batch
            for table in tables
            for batch in _wire_rows(input_, table, schema, self._hash).to_batches()
        ]
        packer = Packer(number, source, keys, range(spec.buckets))
        rows = [row for told in packer(iter(batches), partition) for row in told.to_pylist()]
        return [_piece(row) for row in rows], sum(row["dropped"] for row in rows)

    def _routed(self, changes: Iterator[tuple[int, pa.Table]], by: str) -> Pieces:
        """Changes as the pieces of the next step's first input."""
        labels = range(self.stage.spec.buckets)
        return [
            _piece(row)
            for number, (bucket, table) in enumerate(changes)
            for row in packed(
                table,
                labels,
                Tag(0, bucket, number, pc.max(table.column(EVENT_TIME)).as_py()),
                by=by,
            ).to_pylist()
        ]

    def _by_place(self, changes: Iterator[tuple[int, pa.Table]]) -> Iterator[pa.Table]:
        """Changes as the merging step reads them."""
        for change in changes:
            for _, piece in self._routed(iter([change]), PLACE):
                if piece.rows is not None:
                    yield piece.rows

    def _beats(self, inputs: Sequence[int], time_us: int | None) -> Pieces:
        if time_us is None:
            return []
        beats = [Piece.beat(number, time_us) for number in inputs]
        return [(bucket, beat) for bucket in range(self.stage.spec.buckets) for beat in beats]


def _refuse_expressions(stage: Stage) -> None:
    if isinstance(stage.spec.operator, Eventual):
        raise PlanError(
            stage.node.name,
            "a delta join asks stores that the test driver does not have",
            "Run the topology with write_stream(), or with strategy='none'",
        )
    computes = any(not isinstance(part, str) for i in stage.inputs for part, _ in i.foreign)
    if computes or stage.spec.visible:
        argument = "select="
        if computes:
            argument = "on=" if isinstance(stage.node, ForeignKeyJoin) else "window_of="
        raise PlanError(
            stage.node.name,
            f"{argument} has a Spark expression, so it needs Spark",
            "Run the topology with to_batch() or write_stream(), or name columns only",
        )


def _piece(row: Mapping[str, Any]) -> tuple[int, Piece]:
    return row["bucket"], unpack_piece(SimpleNamespace(**row))


def _wire_rows(input_: Input, rows: pa.Table, schema: pa.Schema, key_hash: Hash) -> pa.Table:
    """An input's rows in the columns in which they travel (``runtime.wire`` on Spark)."""
    columns = {name: rows.column(name).combine_chunks() for name in rows.schema.names}
    columns |= {name: canonical(columns[name]) for name in input_.source.key.names}
    keys = [canonical(columns[name]) for name in input_.key]
    if input_.foreign:
        foreign = [canonical(columns[str(item)]) for item, _ in input_.foreign]
        columns |= {foreign_name(number): column for number, column in enumerate(foreign)}
        columns[FOREIGN] = pa.array(key_hash(foreign), pa.int64())
    if input_.used is not None:
        columns |= {gathered_name(number): columns[n] for number, n in enumerate(input_.used)}
    columns |= zip(input_.key, keys, strict=True)
    columns[HASH] = pa.array(key_hash(keys), pa.int64())
    return pa.table([columns[name] for name in schema.names], schema=schema)
