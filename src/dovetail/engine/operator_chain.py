"""The operators of a fragment on one bucket, run one after the other without an exchange between.

If there are several, all rows of the inputs are put in order once. Each row carries its rank from
operator to operator. So every operator orders its input by the records that caused it, as one
topology in one task does. An operator that is alone reads the rows as they come.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dovetail.arrays.hashing import stable_hash
from dovetail.arrays.timeline import NO_TIME, Ints, Mask, arrival_order
from dovetail.base.columns import (
    CLOCK,
    DELETED,
    EVENT_TIME,
    FILE,
    HASH,
    LOG_PARTITION,
    ORDER,
    POSITION,
    SEQUENCE,
    STREAM_TIME,
    TIE,
    key_name,
)
from dovetail.operators.counts import Counts
from dovetail.operators.job import (
    Batch,
    Cause,
    Job,
    OperatorOutcome,
    Share,
    combine_chunks,
    subtract_span_each,
)
from dovetail.operators.registry import run_job
from dovetail.physical.fragment import Feed, no_window_metric
from dovetail.physical.source import SourceSpec
from dovetail.physical.specs.groups import FinalLaw
from dovetail.plan.types.windows import Windows
from dovetail.state.runs import Runs

_BROUGHT = (SEQUENCE, LOG_PARTITION, CLOCK, ORDER, TIE, STREAM_TIME, FILE)


def run_operators(share: Share) -> OperatorOutcome:
    """Run the operators of a fragment on one bucket. Return the last operator's changes, and the
    stores of all operators under their names in the manifest.

    ``share``: the fragment, with the bucket's rows of a micro-batch, its manifest before, and its
    blobs. Segments are written as blobs; the manifest is not written. Stores that are not named in
    the result are gone. Raises ``DataError`` for a row that an operator cannot take, perhaps only
    as ``chunks`` are read.
    """
    fragment = share.fragment
    if not fragment.last.reads:
        done = run_job(
            Job(
                operator=fragment.last,
                sources=share.sources,
                batches=share.batches,
                manifest=share.manifest,
                final_us=share.final_us,
                blobs=share.blobs,
                cache=share.cache,
                stores=_stores_before(share, 0),
            )
        )
        return replace(done, stores=_stores_after(share, 0, done))
    return _run_chain(share)


def _stores_before(share: Share, operator_index: int) -> dict[str, Runs]:
    """Return the sorted runs of the stores of one operator before the batch, by the operator's own
    names for them. A store without rows is missing.

    ``share``: the fragment, with the bucket's manifest. ``operator_index``: the index of the
    operator in the fragment, from 0.
    """
    stores_by_name = share.manifest.stores
    names = {
        local_name: share.fragment.manifest_name(operator_index, local_name)
        for local_name in share.fragment.operators[operator_index].stores
    }
    return {
        local_name: stores_by_name[name]
        for local_name, name in names.items()
        if name in stores_by_name
    }


def _stores_after(share: Share, operator_index: int, done: OperatorOutcome) -> dict[str, Runs]:
    """Return the sorted runs in ``done.stores`` under the manifest's names. ``done``: the outcome
    of the operator with index ``operator_index``, from 0, in the fragment of ``share``.

    The second operator's ``left`` becomes ``2. left``; the names of a lone operator's stores stay.
    """
    return {
        share.fragment.manifest_name(operator_index, local_name): runs
        for local_name, runs in done.stores.items()
    }


# An example with two inputs of two rows each, ordered by clock; on a tie input 0 comes first:
#
# | row of all | input | clock | rank |
# |---|---|---|---|
# | 0 | 0 | 10 | 1 |
# | 1 | 0 | 10 | 2 |
# | 2 | 1 | 7 | 0 |
# | 3 | 1 | 10 | 3 |
#
# ``order`` is [2, 0, 1, 3], the rows by rank, and ``ranks`` is [1, 2] and [0, 3].
def _run_chain(share: Share) -> OperatorOutcome:
    """Run the several operators of a fragment in turn, on the rows of all inputs in order of
    arrival. Return the last operator's changes, and the stores of all under the manifest's names.

    ``share``: the fragment, with the bucket's rows of a micro-batch, its manifest before, and its
    blobs. Each operator must have ``clocks``, the inputs by whose stream time its windows close.

    Changes have positions that go on from the manifest's, and the columns ``Fragment.feeds``, facts
    on the record that caused them. The outcome's ``rows``, the count of rows that the bucket has
    numbered so far, is the manifest's plus all rows of the batch.
    """
    operators = share.fragment.operators
    sources = [share.source_rows(index) for index in range(len(share.sources))]
    order = arrival_order(sources)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    bounds = np.cumsum([0, *(len(rows) for rows in sources)])
    ranks = [rank[start:end] for start, end in pairwise(bounds)]
    inputs = [
        _with_ranks(batch.rows, input_rank)
        for batch, input_rank in zip(share.batches, ranks, strict=True)
    ]
    clocks = {
        index: np.concatenate(
            [share.clock_at_rows(index, asking) for asking in range(len(sources))]
        )
        for index in {index for operator in operators for index in operator.clocks}
    }
    outputs: list[pa.Table | None] = []
    stores: dict[str, Runs] = {}
    counts: Counts = Counts()
    for index, operator in enumerate(operators):
        clock = _Clock(
            min(share.initial_us[n] for n in operator.clocks),
            np.minimum.reduce([clocks[n] for n in operator.clocks])[order],
            min(share.final_us[n] for n in operator.clocks),
        )
        fed = [
            _operator_input(
                share,
                feed,
                source,
                outputs[feed.number] if feed.operator else inputs[feed.number],
                clock,
                counts,
            )
            for feed, source in zip(operator.reads, operator.sources, strict=True)
        ]
        done = run_job(_build_job(share, index, fed, ranks, clock))
        stores |= _stores_after(share, index, done)
        counts.update(done.counts)
        if operator is not operators[-1]:
            outputs.append(_whole_output(done))
    tables = chain([] if done.output is None else [done.output], done.chunks)
    emitted = _renumber_changes(share, tables, order, clock)
    return OperatorOutcome(
        next(emitted, None),
        stores,
        share.manifest.rows + len(order),
        chunks=emitted,
        later=done.later,
        counts=counts,
    )


def _renumber_changes(
    share: Share, tables: Iterable[pa.Table], order: Ints, clock: _Clock
) -> Iterator[pa.Table]:
    """Yield ``tables``, the last operator's changes, with positions that go on from the manifest's,
    and with the columns ``Fragment.feeds`` in place of ``_sequence``. Empty tables are left out.
    The manifest stays as it is: the caller adds the count of changes.

    ``share``: the fragment, with the bucket's rows and its manifest. ``order``: int64[rows], the
    rows of all inputs, concatenated, in order of arrival. ``clock``: the stream time of the last
    operator at each of them. ``_sequence`` is an index into both: the rank, from 0, of the row that
    caused the change.
    """
    position = share.manifest.position
    for emitted in tables:
        if len(emitted):
            positions = pa.array(np.arange(position, position + len(emitted)))
            position += len(emitted)
            emitted = emitted.set_column(
                emitted.schema.get_field_index(POSITION), POSITION, positions
            )
            yield _with_cause_columns(share, emitted, order, clock)


@dataclass(frozen=True)
class _Clock:
    """The stream time by which an operator's windows close, or that of a versioned table. A
    record's rank is its index among the records of all inputs in order of arrival.
    """

    initial_us: int
    """The stream time before the batch; ``NO_TIME`` before the first record."""
    at_us: Ints
    """The stream time as each record of the batch comes, by its rank: int64[records]."""
    final_us: int
    """The stream time at the end of the batch."""

    @classmethod
    def of_input(cls, share: Share, source_index: int, rank: Ints, count: int) -> _Clock:
        """Return the clock of the input with index ``source_index``: its stream time as each of its
        rows arrives, that row included.

        ``rank``: int64[rows], the index of each of the input's rows among the records of all inputs
        in order of arrival. ``count``: the count of all these records. At records of other inputs
        the clock has ``NO_TIME``.
        """
        at_us = np.full(count, NO_TIME)
        at_us[rank] = share.clock_at_rows(source_index, source_index)
        return cls(share.initial_us[source_index], at_us, share.final_us[source_index])


def _with_cause_columns(share: Share, emitted: pa.Table, order: Ints, clock: _Clock) -> pa.Table:
    """Return the changes ``emitted`` with the columns ``Fragment.feeds`` in place of ``_sequence``:
    facts on the record that caused each change. Without feeds, ``_sequence`` is only removed.

    ``order``: int64[rows], the rows of all inputs, concatenated, in order of arrival. ``clock``:
    the stream time of the last operator at each of them. If the last operator emits closed windows,
    the record that closes the window causes a change, of whichever bucket it is. Other columns are
    0 in a batch without rows.
    """
    fragment, last, rank = share.fragment, share.fragment.last, emitted.column(SEQUENCE).to_numpy()
    emitted = emitted.drop_columns([SEQUENCE])
    if not fragment.feeds:
        return emitted
    columns = dict.fromkeys(fragment.feeds, np.zeros(len(rank), np.int64))
    at = np.minimum(rank, len(order) - 1)
    for name in columns if len(order) else ():
        if name == STREAM_TIME:
            columns[name] = subtract_span_each(clock.at_us[at], fragment.holds_us)
        else:
            columns[name] = np.concatenate(
                [share.cause_column(name, source) for source in range(len(share.sources))]
            )[order][at]
    cause = Cause(columns)
    if isinstance(last.law, FinalLaw):
        end = emitted.column(key_name(last.keys - 1)).cast(pa.int64()).to_numpy()
        key = [combine_chunks(emitted.column(key_name(n))) for n in range(last.keys)]
        every, due_us = np.ones(len(rank), np.bool_), end + last.law.due_us
        moves = _positions_reaching(share, due_us)
        cause = cause.closed_at(every, moves, due_us, stable_hash(key), fragment.holds_us)
    for name, column in cause.arrays.items():
        emitted = emitted.append_column(name, column)
    return emitted


def _positions_reaching(share: Share, time_us: Ints) -> Ints:
    """Return for each time, in microseconds, the position of the record with which the stream time
    of the last operator reaches it: int64[times]. That is the smallest one of its inputs.

    A position is ``_sequence`` in the log that all inputs share. Without such a log it is the
    record's clock. Records of all buckets count. It is ``NO_TIME`` if stream time was there before
    the batch, and ``NEVER`` if no record of the batch does so.
    """
    positions = []
    for number in share.fragment.last.clocks:
        stairs = share.batches[number].stairs
        assert stairs is not None
        reached = time_us <= share.initial_us[number]
        positions.append(np.where(reached, NO_TIME, stairs.first_position_at(time_us)))
    return np.maximum.reduce(positions)  # type: ignore[no-any-return]


def _with_ranks(rows: pa.Table, rank: Ints) -> pa.Table:
    """Return an input's rows in order of arrival, with their ranks as the last column,
    ``_sequence``. All columns of arrival that the rows brought are left out.

    ``rank``: int64[rows], the index of each row among the rows of all inputs in order of arrival.
    """
    arranged = np.argsort(rank)
    brought = [name for name in _BROUGHT if name in rows.schema.names]
    rows = rows.drop_columns(brought)
    if not np.all(arranged[1:] > arranged[:-1]):
        rows = rows.take(pa.array(arranged))
    return rows.append_column(SEQUENCE, pa.array(rank[arranged]))


def _build_job(
    share: Share, operator_index: int, fed: Sequence[pa.Table], ranks: Sequence[Ints], clock: _Clock
) -> Job:
    """Return the job of the operator with index ``operator_index``: the input with which it runs.
    ``share``: the fragment, with the bucket's rows, its manifest and its blobs.

    ``fed``: the rows of each of its sources, in order of arrival, with their ranks as
    ``_sequence``. ``ranks``: for each input of the fragment the ranks of its rows, int64[rows]:
    indices among all records in order of arrival. ``clock``: the stream time at each rank, by which
    the operator's windows close. A versioned source has the clock of its own input instead.
    """
    operator = share.fragment.operators[operator_index]
    batches, clocks = [], []
    for table, feed, source in zip(fed, operator.reads, operator.sources, strict=True):
        source_clock = clock
        if source.meaning.versioned_us is not None:
            source_clock = _Clock.of_input(share, feed.number, ranks[feed.number], len(clock.at_us))
        batches.append(
            Batch.in_sequence(table, source_clock.at_us[table.column(SEQUENCE).to_numpy()])
        )
        clocks.append(source_clock)
    times = tuple(
        None if source_clock.initial_us == NO_TIME else source_clock.initial_us
        for source_clock in clocks
    )
    return Job(
        operator=operator,
        sources=operator.sources,
        batches=batches,
        manifest=replace(share.manifest, stream_time_us=times),
        final_us=[source_clock.final_us for source_clock in clocks],
        blobs=share.blobs,
        cache=share.cache,
        stores=_stores_before(share, operator_index),
        clock_us=clock.at_us,
    )


def _operator_input(
    share: Share,
    feed: Feed,
    source: SourceSpec,
    rows: pa.Table | None,
    clock: _Clock,
    counts: Counts,
) -> pa.Table:
    """Return the rows of an operator's ``source`` (``SourceSpec.wire_schema``), made of ``rows``,
    one each in the same order; an empty table if ``rows`` is None.

    ``feed``: the route of the rows; by it times are shifted and hashes computed anew. A feed
    without ``columns`` only selects the source's columns. ``clock``: the stream time at each
    record, by which windows are kept.

    A row that names no window, or one no longer kept, gets nulls for the window. Unless it is a
    tombstone, it is added to ``counts`` as ``<input>.no_window``, by the name of the share's
    source.
    """
    if rows is None:
        return source.wire_schema.empty_table()
    if feed.columns is None:
        return rows.select(source.wire_schema.names)
    columns = [
        _shift_times(combine_chunks(rows.column(name)), by_us) for name, by_us in feed.columns
    ]
    keys, foreign = source.shape.keys, source.shape.foreign
    others = keys + foreign
    if feed.looks is not None:
        at_us = clock.at_us[rows.column(SEQUENCE).to_numpy()]
        lost = _find_without_window(columns[others - 2], at_us, feed.looks)
        there = pc.invert(rows.column(DELETED)).to_numpy(zero_copy_only=False)
        feeding_source = share.sources[feed.number]
        counts.add_rows(
            no_window_metric(feeding_source), feeding_source, rows, np.flatnonzero(lost & there)
        )
        for column_index in (others - 2, others - 1):
            columns[column_index] = pc.if_else(pa.array(~lost), columns[column_index], None)
    hash_ = pa.array(stable_hash(columns[:keys])) if feed.rehashed else rows.column(HASH)
    if foreign:
        columns[keys:keys] = [pa.array(stable_hash(columns[keys:others]))]
    wire_columns = [
        hash_,
        rows.column(EVENT_TIME),
        rows.column(DELETED),
        *columns,
        rows.column(SEQUENCE),
    ]
    return pa.table(wire_columns, schema=source.wire_schema)


def _find_without_window(start: pa.Array, clock_us: Ints, windows: Windows) -> Mask:
    """Return a mask of the elements of ``start`` that are null, begin no window of ``windows``, or
    begin one no longer kept: bool[n].

    ``start``: n window starts as timestamps. ``clock_us``: int64[n], the stream time as each row
    arrives; with ``NO_TIME`` every window is kept. A start exactly as old as the retention is kept.
    """
    start_us = start.cast(pa.int64()).fill_null(0).to_numpy()
    retained = np.where(clock_us == NO_TIME, True, start_us >= clock_us - windows.retention_us)
    there = start.is_valid().to_numpy(zero_copy_only=False)
    lost: Mask = ~there | (start_us % windows.advance_us != 0) | ~retained
    return lost


def _shift_times(column: pa.Array, by_us: int) -> pa.Array:
    """Return ``column``, timestamps in microseconds, with ``by_us`` microseconds added to each;
    nulls and the type stay. If ``by_us`` is 0, a column of any type is returned as it is.
    """
    if by_us == 0:
        return column
    return pc.add(column.cast(pa.int64()), by_us).cast(column.type)


def _whole_output(done: OperatorOutcome) -> pa.Table | None:
    """Return all changes in ``done``, in order, as one table of at most one chunk per column. It is
    None if there is no table, and has no rows if none of the tables has. This uses up the
    ``chunks`` of ``done``; errors that they raise pass.
    """
    tables = [] if done.output is None else [done.output]
    tables += done.chunks
    return pa.concat_tables(tables).combine_chunks() if tables else None
