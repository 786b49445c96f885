"""Stages in this process: one after the other, their buckets' blobs in memory.

What runs is what Spark's workers run, on the same bytes; only the way between the stages is short.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Annotated, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dovetail.arguments import Rule, takes
from dovetail.arrays.equality import canonical
from dovetail.columns import (
    DELETED,
    EVENT_TIME,
    FOREIGN,
    HASH,
    aggregated_name,
    foreign_name,
)
from dovetail.engine import flow
from dovetail.engine.flow import Flow
from dovetail.engine.fragment import process
from dovetail.engine.pack import Packer, Tag, packed, unpack_piece
from dovetail.engine.pieces import Piece
from dovetail.errors import PlanError
from dovetail.operators.in_order import merge
from dovetail.physical.fragment import Fragment
from dovetail.physical.inputs import Input
from dovetail.physical.operators import DeltaJoin, InOrder
from dovetail.physical.output import held_columns
from dovetail.physical.stage import Port, Stage, stages
from dovetail.plan.nodes import ForeignKeyJoin, Source
from dovetail.state.blobs import MemoryBlobs
from dovetail.state.segment import SegmentCache

Hash: TypeAlias = Annotated[
    Callable[[Sequence[pa.Array]], npt.NDArray[np.int64]],
    Rule("a function of a key's columns", partial(takes, 1)),
]
Pieces: TypeAlias = "list[tuple[int, Piece]]"
Tables: TypeAlias = "Iterator[pa.Table]"
Packed: TypeAlias = "Iterable[tuple[int, Piece]]"


class Buckets:
    """A fragment's work on all its buckets."""

    def __init__(self, fragment: Fragment) -> None:
        self.fragment = fragment
        self.blobs = [MemoryBlobs() for _ in range(fragment.buckets)]
        self.counts: Counter[str] = Counter()
        self._cache = SegmentCache()

    def process(self, pieces: Pieces, now_us: int) -> Iterator[tuple[int, pa.Table]]:
        """One micro-batch: the changes, each table with its bucket."""
        for number, blobs in enumerate(self.blobs):
            own = [piece for bucket, piece in pieces if bucket == number]
            if own or self.fragment.align_us is not None:
                done = process(self.fragment, own, blobs, self._cache, now_us, number)
                for table in done.changes:
                    yield number, table
                self.counts += done.counts


class Local:
    """A stage and all that feed it.

    Rows come as tables of their source's columns with ``_event_time``, ``_deleted``,
    ``_sequence`` and ``_log_partition``. ``key_hash``: the function that places keys.
    """

    def __init__(self, stage: Stage, key_hash: Hash) -> None:
        self.stage, self.hash = stage, key_hash
        self.by_stage: dict[Stage, Buckets] = {}
        self.given: dict[Port, Pieces] = {}
        for one in stages(stage):
            _refuse_expressions(one)
            self.given |= {port: [] for port in one.ports}
            if one.fragment.stateful:
                self.by_stage[one] = Buckets(one.fragment)

    @property
    def buckets(self) -> list[Buckets]:
        """The buckets of all stages that have state, in the order in which these run."""
        return list(self.by_stage.values())

    def accept(self, source: Source, rows: pa.Table, partition: int = 0) -> int:
        """Take rows of a source, of an input partition, for the next micro-batch; returns how many
        are of no use.

        Raises ``DataError`` for rows that cannot be placed in time, and takes none.
        """
        offers = list(self._offers(source, rows, partition))
        for held, pieces, _ in offers:
            # Pieces of one input come in the order of their numbers.
            first = len(held)
            held += [(b, replace(piece, number=first + piece.number)) for b, piece in pieces]
        return sum(dropped for _, _, dropped in offers)

    def _offers(
        self, source: Source, rows: pa.Table, partition: int
    ) -> Iterator[tuple[Pieces, Pieces, int]]:
        """Per port that the source reaches: what it holds, what these rows add to it, and how many
        of them are of no use.
        """
        for stage in stages(self.stage):
            for number, port in enumerate(stage.ports):
                if port.origin is source:
                    yield self.given[port], *self.pieces(stage, number, port, [rows], partition)

    def forget(self) -> None:
        """Leave what was accepted."""
        self.given = {port: [] for port in self.given}

    def run(self, batch: int, now_us: int, beat_us: int | None = None) -> list[pa.Table]:
        """All ``results`` of a micro-batch that are not empty."""
        return [table for table in self.results(batch, now_us, beat_us) if len(table)]

    def results(self, batch: int, now_us: int, beat_us: int | None = None) -> Tables:
        """One micro-batch of what was accepted: the changes (``Fragment.output_schema``), in
        pieces that are made as they are asked for.

        ``batch``: its number; ``beat_us``: a time up to which all inputs are read.
        """
        given, self.given = self.given, {port: [] for port in self.given}
        return flow.changes(self.stage, _MicroBatch(self, given, batch, now_us, beat_us))

    def pieces(
        self,
        stage: Stage,
        number: int,
        port: Port,
        tables: Sequence[pa.Table],
        partition: int = 0,
    ) -> tuple[Pieces, int]:
        """What every bucket gets of an input's rows, through the bytes that Spark would move, and
        how many rows were dropped.
        """
        assert port.input is not None
        schema = port.source.travel_schema
        batches = [
            batch
            for table in tables
            for batch in _wire_rows(port.input, table, schema, self.hash).to_batches()
        ]
        packer = Packer(number, port.source, range(stage.fragment.buckets), port.by)
        rows = [row for told in packer(iter(batches), partition) for row in told.to_pylist()]
        return [_piece(row) for row in rows], sum(row["dropped"] for row in rows)


class _MicroBatch(Flow[Tables, Packed]):
    """Stages on what was ``given`` to their ports."""

    def __init__(
        self,
        local: Local,
        given: Mapping[Port, Pieces],
        batch: int,
        now_us: int,
        beat_us: int | None,
    ) -> None:
        self._local, self._given = local, given
        self._batch, self._now_us, self._beat_us = batch, now_us, beat_us

    def packed(self, stage: Stage, number: int, port: Port, rows: Tables | None) -> Packed:
        """What was accepted of a source, or what another stage has made."""
        if rows is None:
            return self._given[port]
        assert isinstance(port.origin, Stage)
        held = held_columns(port.origin)
        carried = [EVENT_TIME, DELETED, *port.origin.fragment.feeds]
        tables = [
            pa.table(
                [
                    *(table.column(column) for column in held.values()),
                    *(table.column(name) for name in carried),
                ],
                names=[*held, *carried],
            )
            for table in rows
            if len(table)
        ]
        return self._local.pieces(stage, number, port, tables)[0]

    def partitioned(self, stage: Stage, inputs: list[Packed], by: str, number: int) -> Packed:
        """The changes of all buckets, each as a piece for every bucket, as they are asked for."""
        labels = range(stage.fragment.buckets)
        for piece, (bucket, table) in enumerate(self._processed(stage, inputs)):
            tag = Tag(number, bucket, piece, pc.max(table.column(EVENT_TIME)).as_py())
            yield from map(_piece, packed(table, labels, tag, by=by).to_pylist())

    def changes(self, stage: Stage, inputs: list[Packed]) -> Tables:
        """The changes, bucket by bucket."""
        last = stage.fragment.last
        if not stage.fragment.stateful:
            assert isinstance(last.law, InOrder)
            (pieces,) = inputs
            tables = (piece.rows for _, piece in pieces if piece.rows is not None)
            return merge(tables, last.law, last.output_schema.names, self._batch)
        return (table for _, table in self._processed(stage, inputs))

    def _processed(self, stage: Stage, inputs: list[Packed]) -> Iterator[tuple[int, pa.Table]]:
        pieces: Pieces = []
        if self._beat_us is not None:
            beats = [Piece.beat(number, self._beat_us) for number in range(len(inputs))]
            pieces = [(b, beat) for b in range(stage.fragment.buckets) for beat in beats]
        pieces += (piece for own in inputs for piece in own)
        return self._local.by_stage[stage].process(pieces, self._now_us)


def _refuse_expressions(stage: Stage) -> None:
    if isinstance(stage.fragment.last.law, DeltaJoin):
        raise PlanError(
            stage.node.name,
            "a delta join asks stores that the test driver does not have",
            "Run the topology with write_stream(), or with delta=dt.delta(strategy='none')",
        )
    computes = any(source.fallible for source in stage.fragment.sources)
    if computes or stage.fragment.last.visible:
        argument = "select="
        if computes:
            argument = "on=" if isinstance(stage.node, ForeignKeyJoin) else "window_of="
        raise PlanError(
            stage.node.name,
            f"{argument} has a Spark expression, so it needs Spark",
            "Run the topology with changelog() or write_stream(), or name columns only",
        )


def _piece(row: Mapping[str, Any]) -> tuple[int, Piece]:
    return row["bucket"], unpack_piece(SimpleNamespace(**row))


def _wire_rows(input_: Input, rows: pa.Table, schema: pa.Schema, key_hash: Hash) -> pa.Table:
    """An input's rows in the columns in which they travel (``spark.wire`` on Spark)."""
    columns = {name: rows.column(name).combine_chunks() for name in rows.schema.names}
    columns |= {name: canonical(columns[name]) for name in input_.source.key.names}
    keys = [canonical(columns[name]) for name in input_.key]
    if input_.foreign:
        foreign = [canonical(columns[str(item)]) for item, _ in input_.foreign]
        columns |= {foreign_name(number): column for number, column in enumerate(foreign)}
        columns[FOREIGN] = pa.array(key_hash(foreign), pa.int64())
    if input_.used is not None:
        columns |= {aggregated_name(number): columns[n] for number, n in enumerate(input_.used)}
    columns |= zip(input_.key, keys, strict=True)
    columns[HASH] = pa.array(key_hash(keys), pa.int64())
    return pa.table([columns[name] for name in schema.names], schema=schema)
