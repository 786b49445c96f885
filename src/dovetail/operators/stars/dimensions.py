"""The second stage of a star, on one bucket of foreign keys (``StarLookup``).

Each dimension is a join by foreign key of its own (``operators.joins.foreign_key_join``). Its left
rows are keys of the fact, without values, and all of them are preserved. The results are answers to
those keys: the dimension's row, or that there is none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

import numpy as np
import pyarrow as pa

from dovetail.arrays.grouping import last_of_each, stable_argsort
from dovetail.arrays.timeline import ABSENT, Mask, Timeline, timeline
from dovetail.base.columns import (
    DELETED,
    EPOCH,
    EVENT_TIME,
    HASH,
    INSTRUCTION,
    PLACE,
    value_name,
)
from dovetail.operators.counts import Counts
from dovetail.operators.job import Cause, Done, Job
from dovetail.operators.joins.foreign_key_join import ForeignResults, answered, fanned_out
from dovetail.operators.joins.subscriptions import (
    Right,
    Subscriptions,
    SubscriptionStores,
    right_of,
    subscriptions_of,
)
from dovetail.operators.stars.subscribe import DIMENSION_SHIFT
from dovetail.operators.tables import count_ignored
from dovetail.physical.fragment import Operator
from dovetail.physical.specs.by_key import ForeignKeyJoinLaw
from dovetail.physical.specs.star import StarLookup, dimension_messages
from dovetail.physical.specs.star import subscriptions_of as store_of
from dovetail.state.runs import Runs

_ROWS_MAX = 50_000
"""The most answers in one table. It bounds memory, however many rows refer to one."""


def run(job: Job, law: StarLookup) -> Done:
    """Emit the answers of all dimensions, one dimension after the other, in chunks. With
    ``emit="batch"``, emit only the last answer to each key and foreign key.
    """
    if not job.any_rows:
        return Done(None, job.stores)
    stores: dict[str, Runs] = dict(job.stores)
    counts, chunks = Counts(), []
    for dimension_number in range(len(law.widths)):
        part = _part(job, law, dimension_number)
        if part.any_rows:
            answers, runs = _answers(job, part, dimension_number, counts)
            chunks.append(answers)
            stores |= _named(job, dimension_number, runs)
    return Done(None, stores, chunks=chain.from_iterable(chunks), counts=counts)


def _part(job: Job, law: StarLookup, dimension_number: int) -> Job:
    """Return the job of dimension ``dimension_number``, from 0, as a join by foreign key."""
    fact, dimension = job.sources[0], job.sources[dimension_number + 1]
    messages = dimension_messages(fact, law.widths, dimension_number)
    batch = job.batches[0]
    instruction = batch.rows.column(INSTRUCTION).to_numpy()
    which = np.flatnonzero(instruction >> DIMENSION_SHIFT == dimension_number)
    rows = batch.rows.take(pa.array(which)).combine_chunks()
    columns = {name: rows.column(name) for name in rows.schema.names}
    columns[value_name(0, 0)] = rows.column(PLACE)
    table = pa.table({name: columns[name] for name in messages.wire_schema.names})
    names = {
        ForeignKeyJoinLaw.SUBSCRIPTIONS: store_of(job.operator.names[dimension_number + 1]),
        ForeignKeyJoinLaw.RIGHT: job.operator.names[dimension_number + 1],
    }
    times = job.manifest.stream_time_us
    return replace(
        job,
        operator=Operator(
            law=ForeignKeyJoinLaw(law.primary, "left"),
            sources=(messages, dimension),
            feeds=job.operator.feeds,
            buckets=job.operator.buckets,
        ),
        sources=(messages, dimension),
        batches=(batch.of(which, table), job.batches[dimension_number + 1]),
        manifest=replace(job.manifest, stream_time_us=(times[0], times[dimension_number + 1])),
        final_us=(job.final_us[0], job.final_us[dimension_number + 1]),
        stores={name: job.stores[store] for name, store in names.items() if store in job.stores},
    )


def _named(job: Job, dimension_number: int, runs: dict[str, Runs]) -> dict[str, Runs]:
    """Return the stores of dimension ``dimension_number`` under their names in the star."""
    name = job.operator.names[dimension_number + 1]
    return {
        store_of(name): runs[ForeignKeyJoinLaw.SUBSCRIPTIONS],
        name: runs[ForeignKeyJoinLaw.RIGHT],
    }


def _answers(
    job: Job, part: Job, dimension_number: int, counts: Counts
) -> tuple[Iterator[pa.Table], dict[str, Runs]]:
    """Return the answers of a dimension as tables, made on demand, and its stores after the batch.
    Unused rows are added to ``counts``.
    """
    join = part.operator.law
    assert isinstance(join, ForeignKeyJoinLaw)
    stores = SubscriptionStores.of(part, join)
    events = timeline([part.rows(0), part.rows(1)])
    table = right_of(part, stores.right, events)
    subscriptions = subscriptions_of(part, join, stores.subscribed, events, table)
    to_messages = answered(part, join, events, table, subscriptions)
    to_changes = fanned_out(join, events, table, subscriptions)
    results = ForeignResults.joined([to_messages, to_changes])
    by_change = np.repeat([False, True], [len(to_messages.event), len(to_changes.event)])
    order = stable_argsort((events.arrival[results.event] << 32) + results.rank)
    if job.operator.emit == "batch":
        order = order[last_of_each(subscriptions.pair[results.subscription[order]])]
    tables = _tables(
        job,
        part,
        dimension_number,
        events,
        table,
        subscriptions,
        results.of(order),
        by_change[order],
    )
    stores.keep(part, events, table.counted, subscriptions, None)
    current = np.zeros(len(events.row), np.bool_)
    current[table.changes] = True
    count_ignored(counts, part, 1, events, table.counted, current)
    return tables, stores.runs


def _tables(
    job: Job,
    part: Job,
    dimension_number: int,
    events: Timeline,
    table: Right,
    subscriptions: Subscriptions,
    results: ForeignResults,
    by_change: Mask,
) -> Iterator[pa.Table]:
    """Yield answers in tables of at most ``_ROWS_MAX`` rows, as the third stage reads them
    (``physical.stars.star_answers``).

    ``by_change``: the answers that changes of the dimension cause.
    """
    causes = part.causes(events)
    for start in range(0, len(results.event), _ROWS_MAX):
        which = slice(start, start + _ROWS_MAX)
        yield _table(
            job,
            dimension_number,
            causes,
            events,
            table,
            subscriptions,
            results.of(which),
            by_change[which],
        )


def _table(
    job: Job,
    dimension_number: int,
    causes: Cause,
    events: Timeline,
    table: Right,
    subscriptions: Subscriptions,
    results: ForeignResults,
    by_change: Mask,
) -> pa.Table:
    """Return some answers of dimension ``dimension_number``, from 0, as one table."""
    count = len(results.event)
    left = subscriptions.reference[results.subscription]
    *primary, key_hash = subscriptions.pool.values(
        left, [*subscriptions.primary, *subscriptions.values]
    )
    place_hash = key_hash.to_numpy()
    columns = {
        HASH: key_hash,
        EVENT_TIME: pa.array(events.event_time_us[results.event]),
        DELETED: pa.array(results.right == ABSENT),
    }
    names = job.sources[0].shape.fields(job.sources[0].shape.value_columns)
    columns |= zip((field.name for field in names), primary, strict=True)
    for index, dimension in enumerate(job.sources[1:]):
        fields = dimension.shape.user_fields
        if index == dimension_number:
            time_us = np.append(table.time_us, 0)[results.right]
            values = [
                pa.array(time_us, mask=results.right == ABSENT),
                *table.pool.values(results.right, table.columns),
            ]
        else:
            values = [pa.nulls(count, type_) for type_ in (pa.int64(), *(f.type for f in fields))]
        columns |= {value_name(index + 1, n): column for n, column in enumerate(values)}
    columns[EPOCH] = pa.array(results.epoch)
    columns[INSTRUCTION] = pa.array(2 * (dimension_number + 1) + by_change.astype(np.int64))
    columns |= causes.of(results.event).tied(place_hash).arrays
    return pa.table(columns)
