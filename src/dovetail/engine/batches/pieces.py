"""The route of rows to a bucket: pieces, and the batch of a source that they make up.

A source is read from *logs*, and pack cuts a log into *runs* (``laws.arrival``). The *clock* of a
row is the largest timestamp that its log has had by then in the micro-batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dovetail.arrays.search import bisect
from dovetail.arrays.timeline import NO_TIME, Ints
from dovetail.base.columns import (
    CLOCK,
    FILE,
    FILE_BLOCK,
    FILE_PATH,
    FILE_TIME,
    FIRST,
    HIGH,
    LAST,
    LOG_PARTITION,
    LOW,
    ORDER,
    POSITION,
    SEQUENCE,
    STREAM_TIME,
    TIE,
    TRAIL,
)
from dovetail.engine.batches.pack_time import UNKNOWN, PackTime
from dovetail.engine.batches.row_store import Stored
from dovetail.laws.arrival import NEVER, LogRuns, Stairs, order_by_log, order_by_run, record_clocks
from dovetail.operators.job import END_OF_TIME, Batch
from dovetail.physical.source import RowArrival, SourceSpec

RUNS = pa.schema(
    [
        *((name, pa.int64()) for name in (LOG_PARTITION, FIRST, LAST, HIGH, FILE_TIME, FILE_BLOCK)),
        (FILE_PATH, pa.string()),
        (LOW, pa.int64()),
        (TRAIL, pa.int64()),
        (STREAM_TIME, pa.int64()),
    ]
)
"""Runs: their log and their ends there, or their file. ``_high``, ``_low`` and ``_trail`` are times
of ``LogRuns``. The last two are set only under ``RowArrival.orders_left_out``. ``_stream_time`` is
the run's largest stream time, and is ``_high`` but for ``RowArrival.separate_time``.
"""
STAIRS = pa.schema([(POSITION, pa.int64()), (STREAM_TIME, pa.int64())])
"""The steps of a source's stream time: from a position on it is ``_stream_time``."""


@dataclass(frozen=True)
class Piece:
    """Some rows of one source and input partition for one bucket, in order.

    A piece without rows is a heartbeat: it brings only the time.
    """

    source: int
    """The index of the source among the inputs of the stage."""
    partition: int
    """The index of the input partition; -1 for a heartbeat of none."""
    number: int
    """The index of the piece among those of the partition, from 0."""
    high_time_us: int
    """The largest timestamp of the piece in all buckets; ``NO_TIME`` for none, ``END_OF_TIME`` if
    the source has ended.
    """
    rows: Stored | None
    """The rows, in memory or on disk; None for a heartbeat."""
    runs: pa.Table | None = None
    """The piece's runs (``RUNS``); None if the piece is one run. All buckets hear them."""
    stairs: pa.Table | None = None
    """The steps of the source's stream time (``STAIRS``), if another source asks.

    All buckets hear them.
    """
    heard_us: int = NO_TIME
    """In a stage's heartbeat, the time since which nothing has come to it (``engine.idle``)."""
    time: PackTime = UNKNOWN
    """The times that reading and packing the rows took."""

    @classmethod
    def end_heartbeats(cls, sources: int) -> list[Piece]:
        """Return heartbeats (pieces without rows) that say that the sources with the indices 0 to
        ``sources`` - 1 have ended: one each, with the time ``END_OF_TIME``.
        """
        return [cls.source_heartbeat(source, END_OF_TIME) for source in range(sources)]

    @classmethod
    def source_heartbeat(cls, source: int, time_us: int, *, heard_us: int = NO_TIME) -> Piece:
        """Return a heartbeat, a piece without rows, that belongs to no input partition.

        ``source``: the index of the source among the inputs of the stage. ``time_us``: the stream
        time that it brings, in microseconds. ``heard_us``: the wall-clock time since which nothing
        has come to the stage that sends it, ``NO_TIME`` for none.
        """
        return cls(source, -1, 0, time_us, None, heard_us=heard_us)


def batch_of(source: SourceSpec, pieces: Sequence[Piece], source_index: int) -> Batch:
    """Return the rows that ``pieces`` bring of the source with index ``source_index``, with their
    clocks, stream times and order. Rows lie by input partition, then as they were packed. Those of
    a source with logs of its own lie by log and position, those of files by age, path and block.
    Without rows, the batch is empty.

    ``source``: that source, whose ``wire_schema`` the rows have. ``pieces``: those of all sources,
    in any order, with their rows in memory. Heartbeats among them count for clocks and steps of
    stream time.

    Each column is in one chunk, because rows are taken from it again and again.
    """
    heard = sorted(
        (piece for piece in pieces if piece.source == source_index),
        key=lambda piece: (piece.partition, piece.number),
    )
    with_rows = [piece for piece in heard if piece.rows is not None]
    arrival = source.arrival
    rows = pa.concat_tables(
        [piece.rows for piece in with_rows] or [source.wire_schema.empty_table()]
    )
    rows = rows.combine_chunks()
    stairs = _stairs_of_pieces(heard) if arrival.stairs else None
    if not arrival.clocked:
        return _batch_of_stage_rows(arrival, rows, stairs)
    if arrival.by_shared_log:
        clock_us = rows.column(CLOCK).to_numpy()
        if stairs is not None:
            clock_us = stairs.time_at(rows.column(SEQUENCE).to_numpy(), inclusive=True)
        return Batch(rows, clock_us, clock_us, stairs=stairs)
    return _batch_of_log_rows(arrival, rows, heard, stairs)


def _batch_of_stage_rows(arrival: RowArrival, rows: pa.Table, stairs: Stairs | None) -> Batch:
    """Return a batch of rows of another stage, in the given order. Clock, stream time, order and
    tie are the columns that the rows bring, as far as ``arrival.carries`` names them. A missing
    clock is 0, and a missing stream time is the clock. A missing order or tie is None.

    ``stairs``: the steps of stream time in the whole batch, None if no other source asks for them.
    They only go into the batch.
    """
    columns = {n: rows.column(n).to_numpy() for n in arrival.carries}
    clock_us = columns.get(CLOCK, np.zeros(len(rows), np.int64))
    stream_us = columns.get(STREAM_TIME, clock_us)
    return Batch(rows, clock_us, stream_us, columns.get(ORDER), columns.get(TIE), stairs)


def _batch_of_log_rows(
    arrival: RowArrival, rows: pa.Table, heard: Sequence[Piece], stairs: Stairs | None
) -> Batch:
    """Return a batch of rows that were read from logs in runs, in the order of the logs. Their
    clocks follow from all runs of the micro-batch.

    ``heard``: the pieces of the source, by partition and index, heartbeats included. ``rows``:
    their rows, piece by piece, whose ``_clock`` knows only their own run. ``stairs``: the steps of
    stream time in the whole batch, None if no other source asks for them. They go into the batch
    and, with ``arrival.orders_left_out``, give its stream times. With ``arrival.separate_time``
    these follow from the rows' own ``_stream_time``. Otherwise they are the clocks.
    """
    runs, first = _runs_of_pieces(arrival, heard)
    counts = np.array([0 if p.rows is None else p.rows.num_rows for p in heard], np.int64)
    # Positions of files are the ranks of their runs. Other runs come in their order.
    rank = runs.first if arrival.by_file else np.arange(len(runs.log))
    if arrival.by_own_logs:
        log, position = (rows.column(name).to_numpy() for name in (LOG_PARTITION, SEQUENCE))
        piece = np.repeat(np.arange(len(heard)), np.diff(np.append(first, len(runs.log))))
        run = _run_of_rows(runs, piece, counts, log, position)
        row = np.lexsort((position, log))
    else:
        run = np.repeat(first, counts)
        if arrival.by_file:
            run = run + rows.column(FILE).to_numpy()
        log, position = runs.log[run], runs.first[run]
        row = np.argsort(rank[run], kind="stable")
    clock_us = record_clocks(runs, run, rows.column(CLOCK).to_numpy(), log, position)
    order = None
    if arrival.numbered:
        if arrival.by_own_logs:
            logs, log_of_run = np.unique(runs.log, return_inverse=True)
            begins = np.full(len(logs), NEVER)
            np.minimum.at(begins, log_of_run, runs.first)
            log_of_row = np.searchsorted(logs, log)
            order = order_by_log(arrival.origin, log_of_row, position - begins[log_of_row])
        else:
            order = order_by_run(arrival.origin, rank[run], rows.column(ORDER).to_numpy())
    stream_us = clock_us
    if arrival.separate_time:
        assert runs.stream_us is not None
        timed = replace(runs, high_us=runs.stream_us)
        stream_us = record_clocks(timed, run, rows.column(STREAM_TIME).to_numpy(), log, position)
    if np.any(row[1:] < row[:-1]):
        rows, clock_us = rows.take(pa.array(row)).combine_chunks(), clock_us[row]
        stream_us, order = stream_us[row], None if order is None else order[row]
    if arrival.orders_left_out and stairs is not None:
        stream_us = stairs.time_at(clock_us, inclusive=True)
    return Batch(rows, clock_us, stream_us, order, stairs=stairs)


def _runs_of_pieces(arrival: RowArrival, heard: Sequence[Piece]) -> tuple[LogRuns, Ints]:
    """Return the log runs of the pieces ``heard``, piece by piece, and the index of each piece's
    first run: int64[pieces]. For a piece without runs, that is the index of the next piece's first.
    A run has its log, its first and last position there, and its largest timestamp.

    ``arrival``: the order of the source's rows. By file, all files are one log, by age, path and
    block. By own logs, runs are those in the pieces. Else each piece is a run, and each input
    partition a log.
    """
    if not (arrival.by_file or arrival.by_own_logs):
        # Each piece is a run, each input partition a log.
        partition = np.array([piece.partition for piece in heard], np.int64)
        number = np.array([piece.number for piece in heard], np.int64)
        high_us = np.array([piece.high_time_us for piece in heard], np.int64)
        low_us = trail_us = stream_us = None
        if arrival.orders_left_out:
            ends = [
                (NEVER, NO_TIME)
                if piece.runs is None
                else tuple(piece.runs.column(name)[0].as_py() for name in (LOW, TRAIL))
                for piece in heard
            ]
            low_us, trail_us = np.array(ends, np.int64).reshape(-1, 2).T
        if arrival.separate_time:
            stream_us = high_us
            highs = [NO_TIME if p.runs is None else p.runs.column(HIGH)[0].as_py() for p in heard]
            high_us = np.array(highs, np.int64)
        runs = LogRuns(partition, number, number, high_us, low_us, trail_us, stream_us)
        return runs, np.arange(len(heard))
    tables = [RUNS.empty_table() if piece.runs is None else piece.runs for piece in heard]
    first = np.cumsum([0, *(len(runs) for runs in tables)])[:-1]
    table = pa.concat_tables([RUNS.empty_table(), *tables]).combine_chunks()
    high_us = table.column(HIGH).to_numpy()
    stream_us = table.column(STREAM_TIME).to_numpy() if arrival.separate_time else None
    low_us, trail_us = (
        table.column(name).to_numpy() if arrival.orders_left_out else None for name in (LOW, TRAIL)
    )
    times = high_us, low_us, trail_us, stream_us
    if not arrival.by_file:
        log, begins, ends = (table.column(n).to_numpy() for n in (LOG_PARTITION, FIRST, LAST))
        return LogRuns(log, begins, ends, *times), first
    # All files are one log, ordered by age, then by name, then by block.
    one_log = np.zeros(len(table), np.int64)
    if len(table) <= 1:
        return LogRuns(one_log, one_log, one_log, *times), first
    keys = table.select([FILE_TIME, FILE_PATH, FILE_BLOCK])
    keys = keys.append_column(FIRST, pa.array(np.arange(len(keys))))
    rank = np.empty(len(keys), np.int64)
    sorted_ = pc.sort_indices(keys, [(name, "ascending") for name in keys.schema.names])
    rank[sorted_.to_numpy()] = np.arange(len(keys))
    return LogRuns(one_log, rank, rank, *times), first


# An example with two pieces of one log, cut into three runs that begin at positions 5, 9 and 7:
#
# | row | piece | position | run |
# |---|---|---|---|
# | 0 | 0 | 5 | 0 |
# | 1 | 0 | 6 | 0 |
# | 2 | 0 | 9 | 1 |
# | 3 | 1 | 7 | 2 |
# | 4 | 1 | 8 | 2 |
#
# The runs begin at rows [0, 2, 3], so the last run that begins at or before a row is its own.
def _run_of_rows(runs: LogRuns, piece: Ints, counts: Ints, log: Ints, position: Ints) -> Ints:
    """Return the run of each row, an index into ``runs``: int64[rows]. Rows and runs lie by piece,
    log and position. A run is a stretch of a log that begins at the position ``runs.first``.

    ``piece``: int64[runs], the index of each run's piece. ``counts``: int64[pieces], the rows of
    each piece. ``log``, ``position``: int64[rows], each row's log and its position there.
    """
    end = np.cumsum(counts)[piece]
    start = end - counts[piece]
    low = bisect(log, start, end, runs.log, right=False)
    high = bisect(log, start, end, runs.log, right=True)
    begins = bisect(position, low, high, runs.first, right=False)
    run: Ints = np.searchsorted(begins, np.arange(len(log)), side="right") - 1
    return run


def _stairs_of_pieces(heard: Sequence[Piece]) -> Stairs:
    """Return the steps of stream time over the pieces ``heard``, by ascending position; ``Stairs``
    without steps if no piece has any.
    """
    tables = [piece.stairs for piece in heard if piece.stairs is not None]
    if not tables:
        none = np.zeros(0, np.int64)
        return Stairs(none, none)
    table = pa.concat_tables(tables)
    return Stairs.build(*(table.column(name).to_numpy() for name in (POSITION, STREAM_TIME)))


def high_time_us(pieces: Sequence[Piece]) -> int:
    """Return the largest time (``high_time_us``) that ``pieces``, of any sources, bring, in
    microseconds. It is ``NO_TIME`` for none. Pieces that bring the end of an input,
    ``END_OF_TIME``, do not count.
    """
    times = (piece.high_time_us for piece in pieces)
    return max((time for time in times if time != END_OF_TIME), default=NO_TIME)
