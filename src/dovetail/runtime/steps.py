"""Several steps on the rows of one bucket, one after the other, without a shuffle (``Steps``).

All rows of the inputs are put in order once; each carries its number on through the steps, so that
every step orders what it reads by the records that caused it, as one topology in one task does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dovetail.columns import (
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
from dovetail.kernels.hashing import stable_hash
from dovetail.kernels.timeline import NO_TIME, Ints, Mask, arrival_order
from dovetail.plan.spec import Feed, Final, ForeignKey, SourceSpec, Step, Steps, Subscribe
from dovetail.plan.windows import Windows
from dovetail.runtime.job import Batch, Cause, Done, Job, minus_each, whole
from dovetail.runtime.merge import merge
from dovetail.runtime.operators import operate, store_count
from dovetail.state.runs import Runs

_BROUGHT = (SEQUENCE, LOG_PARTITION, CLOCK, ORDER, TIE, STREAM_TIME, FILE)


def run(job: Job, operator: Steps) -> Done:
    """What the last step makes of the batch."""
    sources = [job.rows(number) for number in range(len(job.spec.sources))]
    order = arrival_order(sources)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    bounds = np.cumsum([0, *(len(rows) for rows in sources)])
    ranks = [rank[start:end] for start, end in pairwise(bounds)]
    inputs = [_numbered(batch.rows, own) for batch, own in zip(job.batches, ranks, strict=True)]
    clocks = {
        number: np.concatenate([job.clock_of(number, asking) for asking in range(len(sources))])
        for number in {number for step in operator.steps for number in step.clocks}
    }
    made: list[pa.Table | None] = []
    stores: list[Runs] = []
    counts: Counter[str] = Counter()
    left = iter(job.manifest.stores)
    for step in operator.steps:
        clock = _Clock(
            min((job.initial_us[n] for n in step.clocks), default=NO_TIME),
            np.minimum.reduce([clocks[n] for n in step.clocks])[order],
            min((job.final_us[n] for n in step.clocks), default=NO_TIME),
        )
        own = tuple(next(left) for _ in range(store_count(step.spec)))
        done = operate(_inner(job, step, inputs, made, ranks, clock, own, counts))
        stores += done.stores
        counts += done.counts
        if step is not operator.steps[-1]:
            made.append(_whole_output(step, done))
    tables, later = _told(step, done)
    told = _numbered_on(job, tables, order, clock, step)
    return Done(
        next(told, None),
        tuple(stores),
        job.manifest.rows + len(order),
        chunks=told,
        later=later,
        counts=counts,
    )


def _told(step: Step, done: Done) -> tuple[Iterable[pa.Table], int]:
    """The last step's changes, and how many come after the first table."""
    if isinstance(step.spec.operator, ForeignKey):
        whole = _whole_output(step, done)
        return ([] if whole is None else [whole]), 0
    return chain([] if done.output is None else [done.output], done.chunks), done.later


def _numbered_on(
    job: Job, tables: Iterable[pa.Table], order: Ints, clock: _Clock, step: Step
) -> Iterator[pa.Table]:
    """The last step's changes as the stage's."""
    position = job.manifest.position
    for told in tables:
        if len(told):
            number = pa.array(np.arange(position, position + len(told)))
            position += len(told)
            told = told.set_column(told.schema.get_field_index(POSITION), POSITION, number)
            yield _caused(job, told, order, clock, step)


@dataclass(frozen=True)
class _Clock:
    """The stream time by which a step's windows close, or a versioned table's own: before the
    batch, as each of its records comes, and at its end.
    """

    initial_us: int
    at_us: Ints
    final_us: int

    @classmethod
    def of_table(cls, job: Job, number: int, rank: Ints, count: int) -> _Clock:
        """That of an input, whose rows are of this rank among ``count``; known at its own rows."""
        at_us = np.full(count, NO_TIME)
        at_us[rank] = job.clock_of(number, number)
        return cls(job.initial_us[number], at_us, job.final_us[number])


def _caused(job: Job, told: pa.Table, order: Ints, clock: _Clock, step: Step) -> pa.Table:
    """The last step's changes with what the stage says of the records that caused them."""
    spec, rank = job.spec, told.column(SEQUENCE).to_numpy()
    told = told.drop_columns([SEQUENCE])
    if not spec.feeds:
        return told
    final = isinstance(step.spec.operator, Final)
    columns = dict.fromkeys(spec.feeds, np.zeros(len(rank), np.int64))
    at = np.minimum(rank, len(order) - 1)
    for name in columns if len(order) else ():
        if name == STREAM_TIME:
            columns[name] = minus_each(clock.at_us[at], spec.holds_us)
        else:
            columns[name] = np.concatenate(
                [job.said(name, source) for source in range(len(spec.sources))]
            )[order][at]
    cause = Cause(columns)
    if final:
        assert isinstance(step.spec.operator, Final)
        end = told.column(key_name(step.spec.keys - 1)).cast(pa.int64()).to_numpy()
        due = end + step.spec.operator.wait_us + step.spec.operator.after
        key = [whole(told.column(key_name(n))) for n in range(step.spec.keys)]
        cause = cause.due(np.ones(len(rank), np.bool_), due, stable_hash(key), spec.holds_us)
    for name, column in cause.arrays.items():
        told = told.append_column(name, column)
    return told


def _numbered(rows: pa.Table, rank: Ints) -> pa.Table:
    """An input's rows in their order, each with its number among those of all inputs."""
    arranged = np.argsort(rank)
    brought = [name for name in _BROUGHT if name in rows.schema.names]
    rows = rows.drop_columns(brought)
    if not np.all(arranged[1:] > arranged[:-1]):
        rows = rows.take(pa.array(arranged))
    return rows.append_column(SEQUENCE, pa.array(rank[arranged]))


def _inner(
    job: Job,
    step: Step,
    inputs: Sequence[pa.Table],
    made: Sequence[pa.Table | None],
    ranks: Sequence[Ints],
    clock: _Clock,
    stores: tuple[Runs, ...],
    counts: Counter[str],
) -> Job:
    """The job of one step."""
    batches, clocks = [], []
    for feed, source in zip(step.feeds, step.spec.sources, strict=True):
        rows = made[feed.number] if feed.step else inputs[feed.number]
        table = _fed(rows, feed, source, step.spec.keys, clock, counts)
        own = clock
        if source.versioned_us is not None:
            own = _Clock.of_table(job, feed.number, ranks[feed.number], len(clock.at_us))
        batches.append(Batch.of_step(table, own.at_us[table.column(SEQUENCE).to_numpy()]))
        clocks.append(own)
    times = tuple(None if own.initial_us == NO_TIME else own.initial_us for own in clocks)
    return Job(
        spec=step.spec,
        batches=batches,
        manifest=replace(job.manifest, stores=stores, stream_time_us=times),
        final_us=[own.final_us for own in clocks],
        blobs=job.blobs,
        cache=job.cache,
        clock_us=clock.at_us,
    )


def _fed(
    rows: pa.Table | None,
    feed: Feed,
    source: SourceSpec,
    keys: int,
    clock: _Clock,
    counts: Counter[str],
) -> pa.Table:
    """A step's rows (``SourceSpec.wire_schema``) from those that it is fed."""
    if rows is None:
        return source.wire_schema.empty_table()
    if source.subscribed:
        return rows.select(source.wire_schema.names)
    columns = [_shifted(whole(rows.column(name)), by_us) for name, by_us in feed.columns]
    if feed.looks is not None:
        first = keys + feed.foreign - 2
        at_us = clock.at_us[rows.column(SEQUENCE).to_numpy()]
        astray = _astray(columns[first], at_us, feed.looks)
        there = pc.invert(rows.column(DELETED)).to_numpy(zero_copy_only=False)
        counts["astray"] += int(np.count_nonzero(astray & there))
        for number in (first, first + 1):
            columns[number] = pc.if_else(pa.array(~astray), columns[number], None)
    own, foreign = columns[:keys], columns[keys : keys + feed.foreign]
    hash_ = pa.array(stable_hash(own)) if feed.rehashed else rows.column(HASH)
    if feed.foreign:
        columns[keys:keys] = [pa.array(stable_hash(foreign))]
    made = [hash_, rows.column(EVENT_TIME), rows.column(DELETED), *columns, rows.column(SEQUENCE)]
    return pa.table(made, schema=source.wire_schema)


def _astray(start: pa.Array, clock_us: Ints, windows: Windows) -> Mask:
    """Which of these starts are no window's, or one's that is no longer kept."""
    start_us = start.cast(pa.int64()).fill_null(0).to_numpy()
    kept = np.where(clock_us == NO_TIME, True, start_us >= clock_us - windows.retention_us)
    there = start.is_valid().to_numpy(zero_copy_only=False)
    astray: Mask = ~there | (start_us % windows.advance_us != 0) | ~kept
    return astray


def _shifted(column: pa.Array, by_us: int) -> pa.Array:
    if by_us == 0:
        return column
    return pc.add(column.cast(pa.int64()), by_us).cast(column.type)


def _whole_output(step: Step, done: Done) -> pa.Table | None:
    """All changes of a step, in order; None of subscriptions, where there are none."""
    tables = [] if done.output is None else [done.output]
    tables += done.chunks
    if isinstance(step.spec.operator, ForeignKey):
        tables = list(merge(tables, step.spec, 0))
    if isinstance(step.spec.operator, Subscribe):
        return pa.concat_tables(tables).combine_chunks() if tables else None
    return pa.concat_tables([step.spec.output_schema.empty_table(), *tables]).combine_chunks()
