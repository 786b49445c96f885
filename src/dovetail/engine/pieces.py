"""How rows reach a bucket: pieces, and the batch of a source that they make up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dovetail.arrays.search import bisect
from dovetail.arrays.timeline import NO_TIME, Ints
from dovetail.columns import (
    CLOCK,
    FILE,
    FILE_BLOCK,
    FILE_PATH,
    FILE_TIME,
    FIRST,
    HIGH,
    LAST,
    LOG_PARTITION,
    ORDER,
    POSITION,
    SEQUENCE,
    STREAM_TIME,
    TIE,
)
from dovetail.engine.stock import Stored
from dovetail.laws.arrival import NEVER, LogRuns, Stairs, clocks, order_by_log, order_by_run
from dovetail.operators.job import END_OF_TIME, Batch
from dovetail.physical.source import SourceSpec

RUNS = pa.schema(
    [
        *((name, pa.int64()) for name in (LOG_PARTITION, FIRST, LAST, HIGH, FILE_TIME, FILE_BLOCK)),
        (FILE_PATH, pa.string()),
    ]
)
"""Runs: their log and its positions, or their file; their largest timestamps."""
STAIRS = pa.schema([(POSITION, pa.int64()), (STREAM_TIME, pa.int64())])


@dataclass(frozen=True)
class Piece:
    """Some rows of one source and input partition for one bucket, in order; ``number`` orders the
    pieces of a partition. A piece without rows is a heartbeat: it brings only the time.
    ``heard_us``: where a stage says of itself since when nothing has come to it (``engine.idle``).

    ``high_time_us``: the largest timestamp of the piece in all buckets, ``NO_TIME`` for none;
    ``runs``: the piece's runs (``RUNS``) where it is not one; ``stairs``: how the source's stream
    time rises in it (``STAIRS``), where another source asks. All buckets hear these.
    """

    source: int
    partition: int
    number: int
    high_time_us: int
    rows: Stored | None
    runs: pa.Table | None = None
    stairs: pa.Table | None = None
    heard_us: int = NO_TIME

    @classmethod
    def ends(cls, sources: int) -> list[Piece]:
        """That so many sources have ended."""
        return [cls.beat(number, END_OF_TIME) for number in range(sources)]

    @classmethod
    def beat(cls, source: int, time_us: int, *, heard_us: int = NO_TIME) -> Piece:
        """A heartbeat of no input partition."""
        return cls(source, -1, 0, time_us, None, heard_us=heard_us)


def batch_of(source: SourceSpec, pieces: Sequence[Piece], number: int) -> Batch:
    """The rows of one source in the order they were read, each column in one piece, for rows are
    picked from them again and again.
    """
    heard = sorted(
        (piece for piece in pieces if piece.source == number),
        key=lambda piece: (piece.partition, piece.number),
    )
    own = [piece for piece in heard if piece.rows is not None]
    rows = pa.concat_tables([piece.rows for piece in own] or [source.wire_schema.empty_table()])
    rows = rows.combine_chunks()
    stairs = _stairs(heard) if source.stairs else None
    if not source.clocked:
        return _brought(source, rows, stairs)
    if source.ordered:
        clock_us = rows.column(CLOCK).to_numpy()
        if stairs is not None:
            clock_us = stairs.at(rows.column(SEQUENCE).to_numpy(), inclusive=True)
        return Batch(rows, clock_us, clock_us, stairs=stairs)
    return _in_runs(source, rows, heard, stairs)


def _brought(source: SourceSpec, rows: pa.Table, stairs: Stairs | None) -> Batch:
    """Rows of another stage, which have what they need."""
    found = {n: rows.column(n).to_numpy() for n in source.carries}
    clock_us = found.get(CLOCK, np.zeros(len(rows), np.int64))
    stream_us = found.get(STREAM_TIME, clock_us)
    return Batch(rows, clock_us, stream_us, found.get(ORDER), found.get(TIE), stairs)


def _in_runs(
    source: SourceSpec, rows: pa.Table, heard: Sequence[Piece], stairs: Stairs | None
) -> Batch:
    """Rows that were read from logs in runs, in the order of the logs."""
    runs, first = _runs(source, heard)
    counts = np.array([0 if p.rows is None else p.rows.num_rows for p in heard], np.int64)
    # Of files the positions are the ranks of their runs; other runs come in their order.
    rank = runs.first if source.files else np.arange(len(runs.log))
    if source.log_partition:
        log, position = (rows.column(name).to_numpy() for name in (LOG_PARTITION, SEQUENCE))
        piece = np.repeat(np.arange(len(heard)), np.diff(np.append(first, len(runs.log))))
        run = _run_of_rows(runs, piece, counts, log, position)
        row = np.lexsort((position, log))
    else:
        run = np.repeat(first, counts)
        if source.files:
            run = run + rows.column(FILE).to_numpy()
        log, position = runs.log[run], runs.first[run]
        row = np.argsort(rank[run], kind="stable")
    clock_us = clocks(runs, run, rows.column(CLOCK).to_numpy(), log, position)
    order = None
    if source.numbered:
        if source.log_partition:
            logs, number = np.unique(runs.log, return_inverse=True)
            begins = np.full(len(logs), NEVER)
            np.minimum.at(begins, number, runs.first)
            of = np.searchsorted(logs, log)
            order = order_by_log(source.origin, of, position - begins[of])
        else:
            order = order_by_run(source.origin, rank[run], rows.column(ORDER).to_numpy())
    if np.any(row[1:] < row[:-1]):
        rows, clock_us = rows.take(pa.array(row)).combine_chunks(), clock_us[row]
        order = None if order is None else order[row]
    return Batch(rows, clock_us, clock_us, order, stairs=stairs)


def _runs(source: SourceSpec, heard: Sequence[Piece]) -> tuple[LogRuns, Ints]:
    """The runs of all pieces, and which of them is each piece's first."""
    if not (source.files or source.log_partition):
        # Each piece is a run, each input partition a log.
        partition, number, high_us = (
            np.array([getattr(piece, name) for piece in heard], np.int64)
            for name in ("partition", "number", "high_time_us")
        )
        return LogRuns(partition, number, number, high_us), np.arange(len(heard))
    tables = [RUNS.empty_table() if piece.runs is None else piece.runs for piece in heard]
    first = np.cumsum([0, *(len(runs) for runs in tables)])[:-1]
    table = pa.concat_tables([RUNS.empty_table(), *tables]).combine_chunks()
    high_us = table.column(HIGH).to_numpy()
    if not source.files:
        log, begins, ends = (table.column(n).to_numpy() for n in (LOG_PARTITION, FIRST, LAST))
        return LogRuns(log, begins, ends, high_us), first
    # All files are one log, by age, then by name; of one file, by its blocks.
    keys = table.select([FILE_TIME, FILE_PATH, FILE_BLOCK])
    keys = keys.append_column(FIRST, pa.array(np.arange(len(keys))))
    place = np.empty(len(keys), np.int64)
    sorted_ = pc.sort_indices(keys, [(name, "ascending") for name in keys.schema.names])
    place[sorted_.to_numpy()] = np.arange(len(keys))
    return LogRuns(np.zeros(len(keys), np.int64), place, place, high_us), first


def _run_of_rows(runs: LogRuns, piece: Ints, counts: Ints, log: Ints, position: Ints) -> Ints:
    """The run of each row. Both lie by piece, log and position; ``piece``: that of each run;
    ``counts``: how many rows each piece has.
    """
    end = np.cumsum(counts)[piece]
    start = end - counts[piece]
    low = bisect(log, start, end, runs.log, right=False)
    high = bisect(log, start, end, runs.log, right=True)
    begins = bisect(position, low, high, runs.first, right=False)
    found: Ints = np.searchsorted(begins, np.arange(len(log)), side="right") - 1
    return found


def _stairs(heard: Sequence[Piece]) -> Stairs:
    tables = [piece.stairs for piece in heard if piece.stairs is not None]
    if not tables:
        none = np.zeros(0, np.int64)
        return Stairs(none, none)
    table = pa.concat_tables(tables)
    return Stairs.of(*(table.column(name).to_numpy() for name in (POSITION, STREAM_TIME)))


def high_time_us(pieces: Sequence[Piece]) -> int:
    """The largest time that a bucket has heard of in a batch; that the input has ended is none."""
    times = (piece.high_time_us for piece in pieces)
    return max((time for time in times if time != END_OF_TIME), default=NO_TIME)
