"""The arrival of rows as pack sees it: their clocks, and the facts that all buckets hear of them.

A *clock* is the largest timestamp that a row's log has had by then in the micro-batch. A *run* is a
sequence of rows of one log that one task has read one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dovetail.arrays.timeline import NO_TIME, Ints, Mask
from dovetail.base.columns import (
    CLOCK,
    EVENT_TIME,
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
    TRAIL,
)
from dovetail.engine.batches.pieces import RUNS, STAIRS
from dovetail.laws.arrival import NEVER, Stairs, clocks_with_left_out, running_clock, trailing_times
from dovetail.physical.source import RowArrival, SourceSpec

_GAPS_MAX = 64
"""The most gaps, the widest first, at which the rows of a log are cut into runs."""


@dataclass(frozen=True)
class ArrivalFacts:
    """The facts on some rows that all buckets hear."""

    high_us: int
    """The largest stream time of the rows; ``NO_TIME`` if none advances it."""
    runs: pa.Table | None = None
    """See ``pieces.Piece.runs``."""
    stairs: pa.Table | None = None
    """See ``pieces.Piece.stairs``."""


def rows_with_places(arrival: RowArrival, rows: pa.Table, used: Mask) -> tuple[pa.Table, Mask]:
    """Return those ``rows`` that have a place in their log, without nulls in ``_event_time``, and
    ``used`` of them. Null times become ``NO_TIME``.

    ``used``: bool[rows], the rows that are packed, which have a place and a time. Others may be
    records that cannot be read, without either.
    """
    if arrival.by_own_logs:
        places = (rows.column(name).is_valid() for name in (LOG_PARTITION, SEQUENCE))
        placed = pc.and_(*places).to_numpy()
        rows, used = rows.filter(pa.array(placed)), used[placed]
    time = rows.column(EVENT_TIME).fill_null(NO_TIME)
    return rows.set_column(rows.schema.get_field_index(EVENT_TIME), EVENT_TIME, time), used


# Rows that are not used have a place, so that the others have one number for all readers. An
# example of a stream that is read for its join, and for an aggregate which leaves row 0 out. The
# aggregate's change that row 1 causes comes after row 1 itself:
#
# | row | number for the join | for the aggregate, with row 0 | without it |
# |---|---|---|---|
# | 0 | 0 | | |
# | 1 | 1 | 1 | 0, so before row 1 |
def arrange_rows(
    source: SourceSpec,
    rows: pa.Table,
    counted: Mask | None,
    left_out: Mask | None,
    used: Mask | None,
) -> tuple[pa.Table, ArrivalFacts]:
    """Return an input partition's rows with the columns of ``source.wire_schema``, but without
    ``_copy``. Also return the facts on them that all buckets hear: largest time (``high_us``), log
    ``runs``, and ``stairs``, the steps of stream time.

    ``rows``: at least one row of ``source.travel_schema``, in the order of reading. ``counted``:
    bool[rows], the rows that advance stream time, None for all. ``left_out``: bool[rows], the rows
    that a condition leaves out, None for none. They stay in the result. ``used``: bool[rows], the
    rows of the result, None for all. Others only count for places in logs and, with
    ``full_clock``, for clocks. Then stream time may be behind the clock, and is a column of its own
    if results depend on it (``separate_time``).

    Rows with positions in logs are sorted by log and position. Those of another stage are returned
    as they are, since they bring all columns of ``source.wire_schema``. ``runs`` is None unless the
    source is read by file, has logs of its own, orders left-out rows (``orders_left_out``), or has
    ``separate_time``. ``stairs`` is None unless another source asks.
    """
    arrival = source.arrival
    if not arrival.clocked:
        return rows, _brought_facts(arrival, rows, counted)
    if used is not None:
        counted = used if counted is None else counted & used
        left_out = ~used if left_out is None else left_out | ~used
    if arrival.by_shared_log or arrival.by_own_logs:
        order = _log_order(arrival, rows)
        if order is not None:
            rows = rows.take(pa.array(order))
            counted, left_out, used = (
                None if mask is None else mask[order] for mask in (counted, left_out, used)
            )
    log, first = _split_into_runs(arrival, rows)
    clock_us = stream_us = running_clock(log, _times_that_count(arrival, rows, counted))
    if arrival.separate_time and counted is not None:
        clock_us = running_clock(log, rows.column(EVENT_TIME).to_numpy())
    last = np.append(first[1:], len(rows)) - 1
    runs = None
    if arrival.by_file or arrival.by_own_logs or arrival.orders_left_out or arrival.separate_time:
        runs = _runs_table(arrival, rows, first, last, clock_us[last], stream_us[last])
    if arrival.orders_left_out:
        assert runs is not None
        left_out = np.zeros(len(rows), np.bool_) if left_out is None else left_out
        event_us = rows.column(EVENT_TIME).to_numpy()
        trail_us = trailing_times(
            log, event_us if used is None else np.where(used, event_us, NO_TIME), left_out
        )
        clock_us = clocks_with_left_out(log, stream_us, trail_us, left_out)
        low_us = np.minimum.reduceat(np.where(left_out, NEVER, stream_us), first)
        runs = _with_left_out_times(runs, low_us, trail_us[last])
    columns = {CLOCK: clock_us, STREAM_TIME: stream_us, ORDER: np.arange(len(rows)), FILE: log}
    stairs = _stairs_table(arrival, rows, clock_us, stream_us) if arrival.stairs else None
    if arrival.by_file:
        rows = rows.drop_columns([FILE_TIME, FILE_PATH, FILE_BLOCK])
    for name in arrival.added_columns:
        rows = rows.append_column(name, pa.array(columns[name]))
    facts = ArrivalFacts(int(stream_us[last].max()), runs, stairs)
    return rows if used is None else rows.filter(pa.array(used)), facts


def _times_that_count(arrival: RowArrival, rows: pa.Table, counted: Mask | None) -> Ints:
    """Return the timestamps of ``rows`` that advance stream time: int64[rows], microseconds. It is
    ``NO_TIME`` for a row that is not ``counted``. With ``full_clock``, but without
    ``separate_time``, nothing depends on stream time, and all rows count.

    ``counted``: bool[rows], None for all.
    """
    time_us: Ints = rows.column(EVENT_TIME).to_numpy()
    if counted is None or (arrival.full_clock and not arrival.separate_time):
        return time_us
    return np.where(counted, time_us, NO_TIME)


def _brought_facts(arrival: RowArrival, rows: pa.Table, counted: Mask | None) -> ArrivalFacts:
    """Return the facts on rows of another stage: their largest stream time (``high_us``) and, if
    another source asks and the rows carry ``_stream_time``, its steps (``stairs``). There are no
    log runs (``runs`` is None).

    Stream time is the column ``_stream_time`` if the rows carry one, else their event time.
    ``arrival``: the columns on order that the rows bring. ``counted``: bool[rows], the rows that
    advance stream time, None for all. ``rows``: at least one.
    """
    has_stream_time = STREAM_TIME in arrival.carries
    time_us = rows.column(STREAM_TIME if has_stream_time else EVENT_TIME).to_numpy()
    if counted is not None:
        time_us = np.where(counted, time_us, NO_TIME)
    stairs = None
    if arrival.stairs and has_stream_time:
        clock_us = time_us if arrival.by_shared_log else rows.column(CLOCK).to_numpy()
        stairs = _stairs_table(arrival, rows, clock_us, time_us)
    return ArrivalFacts(int(time_us.max()), None, stairs)


def stairs_of(changes: pa.Table) -> pa.Table | None:
    """Return the steps of stream time over the changes of a stage as a table of ``STAIRS``
    (position, stream time), ascending, or None.

    ``changes``: a stage's output table, its rows in any order; without rows there are no steps. The
    result is None unless it has both ``_sequence``, the position in a log that all inputs share,
    and ``_stream_time``.
    """
    if not {SEQUENCE, STREAM_TIME} <= {*changes.schema.names}:
        return None
    stairs = Stairs.build(*(changes.column(name).to_numpy() for name in (SEQUENCE, STREAM_TIME)))
    return pa.table({POSITION: stairs.position, STREAM_TIME: stairs.time_us}, schema=STAIRS)


def _log_order(arrival: RowArrival, rows: pa.Table) -> Ints | None:
    """Return the order of ``rows`` by their positions in logs, as row indices: int64[rows]. Rows of
    one position stay in the order given. The result is None if all rows lie in that order already,
    as most sources bring them, and for no rows.

    If the source has logs of its own (``arrival.by_own_logs``), rows go by ``_log_partition``, then
    by ``_sequence``; else by ``_sequence`` alone. The columns are int64, without nulls.
    """
    position = rows.column(SEQUENCE).to_numpy()
    log = rows.column(LOG_PARTITION).to_numpy() if arrival.by_own_logs else np.zeros_like(position)
    falls = log[1:] < log[:-1]
    falls |= (log[1:] == log[:-1]) & (position[1:] < position[:-1])
    if not falls.any():
        return None
    return np.lexsort((position, log))


# An example of a source with ``_log_partition``. Positions 7 and 8 of log 0 are missing here:
#
# | row | log | position | run |
# |---|---|---|---|
# | 0 | 0 | 5 | 0, begins |
# | 1 | 0 | 6 | 0 |
# | 2 | 0 | 9 | 1, begins after a gap |
# | 3 | 1 | 2 | 2, begins with another log |
# | 4 | 1 | 3 | 2 |
def _split_into_runs(arrival: RowArrival, rows: pa.Table) -> tuple[Ints, Ints]:
    """Return the index of each row's run, int64[rows], and the index of the first row of each run,
    int64[runs]. ``rows``: at least one, in the order of their logs. ``arrival``: the kind of
    position that orders them.

    A run begins where the file or its block (``by_file``) or the log (``by_own_logs``) changes.
    With own logs, it also begins after a gap, where ``_sequence`` rises by more than 1. Only the
    ``_GAPS_MAX`` (64) widest gaps of all ``rows`` count. Other sources have one run.
    """
    begins = np.zeros(len(rows), np.bool_)
    begins[0] = True
    names = (FILE_PATH, FILE_BLOCK) if arrival.by_file else (LOG_PARTITION,)
    if arrival.by_file or arrival.by_own_logs:
        for name in names:
            column = rows.column(name).combine_chunks()
            differs = pc.not_equal(column[1:], column[:-1]).fill_null(True)
            begins[1:] |= differs.to_numpy(zero_copy_only=False).astype(np.bool_)
    if arrival.by_own_logs:
        # Another task may have read the rows between two rows of a log, such as a file that Spark
        # has not put beside its neighbours.
        gap = np.diff(rows.column(SEQUENCE).to_numpy())
        gap[begins[1:]] = 0
        wide = np.flatnonzero(gap > 1)
        begins[1 + wide[np.argsort(-gap[wide], kind="stable")[:_GAPS_MAX]]] = True
    return np.cumsum(begins) - 1, np.flatnonzero(begins)


def _runs_table(
    arrival: RowArrival, rows: pa.Table, first: Ints, last: Ints, high_us: Ints, stream_us: Ints
) -> pa.Table:
    """Return a table of ``RUNS``, a row per log run in order, with ``_high`` and ``_stream_time``
    for all. Rows by file also have ``_file_time``, ``_file_path`` and ``_file_block``. Own logs
    have ``_log_partition``, ``_first`` and ``_last``, the positions of both ends. Other int columns
    are 0, other paths null.

    ``rows``: the input partition's rows in order of their logs. ``first``, ``last``: int64[runs],
    the first and the last row of each run, inclusive. ``high_us``, ``stream_us``: int64[runs], the
    largest clock and the largest stream time in each run.
    """
    none = pa.array(np.zeros(len(first), np.int64))
    columns = dict.fromkeys(RUNS.names, none) | {FILE_PATH: pa.nulls(len(first), pa.string())}
    columns[HIGH], columns[STREAM_TIME] = pa.array(high_us), pa.array(stream_us)
    names: tuple[str, ...] = (LOG_PARTITION,) if arrival.by_own_logs else ()
    if arrival.by_file:
        names = (FILE_TIME, FILE_PATH, FILE_BLOCK)
    for name in names:
        columns[name] = rows.column(name).take(pa.array(first)).combine_chunks()
    if arrival.by_own_logs:
        for name, at in ((FIRST, first), (LAST, last)):
            columns[name] = rows.column(SEQUENCE).take(pa.array(at)).combine_chunks()
    return pa.table(columns, schema=RUNS)


def _with_left_out_times(runs: pa.Table, low_us: Ints, trail_us: Ints) -> pa.Table:
    """Return ``runs``, a table of ``RUNS``, with the columns ``_low`` and ``_trail`` replaced.

    ``low_us``: int64[runs], the stream time of the run's first row that no condition leaves out,
    ``NEVER`` for none. ``trail_us``: int64[runs], the largest timestamp of the rows left out after
    the run's last other row, ``NO_TIME`` for none.
    """
    for name, time_us in ((LOW, low_us), (TRAIL, trail_us)):
        runs = runs.set_column(RUNS.names.index(name), name, pa.array(time_us))
    return runs


def _stairs_table(arrival: RowArrival, rows: pa.Table, clock_us: Ints, time_us: Ints) -> pa.Table:
    """Return the steps at which stream time rises over the rows of a source as a table of
    ``STAIRS`` (position, stream time), ascending.

    ``clock_us``: int64[rows], the clock of each row. ``time_us``: int64[rows], its stream time.
    Steps are at positions in the shared log, or at clocks if there is none. With a period
    (``stair_period``), other steps than those that reach one are left out.
    """
    position = rows.column(SEQUENCE).to_numpy() if arrival.by_shared_log else clock_us
    stairs = Stairs.build(position, time_us)
    if arrival.stair_period is not None:
        stairs = stairs.at_period(*arrival.stair_period)
    return pa.table({POSITION: stairs.position, STREAM_TIME: stairs.time_us}, schema=STAIRS)
