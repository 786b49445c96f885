"""Several steps on the rows of one bucket, one after the other, without a shuffle (``Steps``).

All rows of the inputs are put in order once; each carries its number on through the steps, so that
every step orders what it reads by the records that caused it, as one topology in one task does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dovetail.columns import DELETED, EVENT_TIME, HASH, POSITION, SEQUENCE
from dovetail.kernels.hashing import stable_hash
from dovetail.kernels.timeline import NO_TIME, Ints, Mask, arrival_order, stream_time
from dovetail.plan.spec import Feed, ForeignKey, SourceSpec, Step, Steps, Subscribe
from dovetail.plan.windows import Windows
from dovetail.runtime.job import Batch, Done, Job, whole
from dovetail.runtime.merge import merge
from dovetail.runtime.operators import operate, store_count
from dovetail.state.runs import Runs


def run(job: Job, operator: Steps) -> Done:
    """What the last step makes of the batch."""
    sources = [job.rows(number) for number in range(len(job.spec.sources))]
    order = arrival_order(sources)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    bounds = np.cumsum([0, *(len(rows) for rows in sources)])
    ranks = [rank[start:end] for start, end in pairwise(bounds)]
    inputs = [_numbered(batch.rows, own) for batch, own in zip(job.batches, ranks, strict=True)]
    clocks = [
        _clock(rows.event_time_us, own, len(order), job.initial_us[number])
        for number, (rows, own) in enumerate(zip(sources, ranks, strict=True))
    ]
    made: list[pa.Table | None] = []
    stores: list[Runs] = []
    counts: Counter[str] = Counter()
    left = iter(job.manifest.stores)
    for step in operator.steps:
        clock = _Clock(
            min((job.initial_us[n] for n in step.clocks), default=NO_TIME),
            np.minimum.reduce([clocks[n] for n in step.clocks]),
            min((job.final_us[n] for n in step.clocks), default=NO_TIME),
        )
        own = tuple(next(left) for _ in range(store_count(step.spec)))
        done = operate(_inner(job, step, inputs, made, clock, own, counts))
        made.append(_whole_output(step, done))
        stores += done.stores
        counts += done.counts
    told = made[-1]
    assert told is not None
    if not len(told):
        return Done(None, tuple(stores), job.manifest.rows + len(order), counts=counts)
    position = np.arange(job.manifest.position, job.manifest.position + len(told))
    told = told.set_column(told.schema.get_field_index(POSITION), POSITION, pa.array(position))
    if job.spec.feeds:
        places = np.concatenate([b.rows.column(SEQUENCE).to_numpy() for b in job.batches])[order]
        at = told.column(SEQUENCE).to_numpy()
        own_places = places[at] if len(places) else np.zeros(len(at), np.int64)
        told = told.set_column(
            told.schema.get_field_index(SEQUENCE), SEQUENCE, pa.array(own_places)
        )
    return Done(told, tuple(stores), job.manifest.rows + len(order), counts=counts)


@dataclass(frozen=True)
class _Clock:
    """The stream time by which a step's windows close: before the batch, after each of its
    records, and at its end.
    """

    initial_us: int
    at_us: Ints
    final_us: int


def _clock(event_time_us: Ints, rank: Ints, count: int, initial_us: int) -> Ints:
    """An input's stream time after each record of the batch, of whichever input."""
    time = np.full(count, initial_us)
    time[rank] = event_time_us
    return stream_time(time, initial_us)


def _numbered(rows: pa.Table, rank: Ints) -> pa.Table:
    """An input's rows in their order, each with its number among those of all inputs."""
    arranged = np.argsort(rank)
    if SEQUENCE in rows.schema.names:
        rows = rows.drop_columns([SEQUENCE])
    if not np.all(arranged[1:] > arranged[:-1]):
        rows = rows.take(pa.array(arranged))
    return rows.append_column(SEQUENCE, pa.array(rank[arranged]))


def _inner(
    job: Job,
    step: Step,
    inputs: Sequence[pa.Table],
    made: Sequence[pa.Table | None],
    clock: _Clock,
    stores: tuple[Runs, ...],
    counts: Counter[str],
) -> Job:
    """The job of one step."""
    batches = []
    for feed, source in zip(step.feeds, step.spec.sources, strict=True):
        rows = made[feed.number] if feed.step else inputs[feed.number]
        table = _fed(rows, feed, source, step.spec.keys, clock, counts)
        batches.append(Batch(table, np.zeros(len(table), np.int64)))
    sources = len(batches)
    times = (None if clock.initial_us == NO_TIME else clock.initial_us,) * sources
    return Job(
        spec=step.spec,
        batches=batches,
        manifest=replace(job.manifest, stores=stores, stream_time_us=times),
        final_us=[clock.final_us] * sources,
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
