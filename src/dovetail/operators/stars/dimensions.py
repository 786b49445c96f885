"""The second stage of a star, on one bucket of foreign keys (``StarLookupLaw``).

All dimensions are one join by foreign key (``operators.joins.foreign_key_join``), whose foreign key
begins with the index of the dimension. Its left rows are keys of the fact, without values, and all
of them are preserved. The results are answers to those keys: the dimension's row, or that there is
none.

Subscriptions to all dimensions lie in one store, the rows of each dimension in a store of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from dovetail.arrays.grouping import last_of_each, stable_argsort
from dovetail.arrays.hashing import separate_key_spaces
from dovetail.arrays.timeline import (
    ABSENT,
    Ints,
    Mask,
    SourceRows,
    Timeline,
    timeline,
    versions_around,
)
from dovetail.base.columns import (
    DELETED,
    EPOCH,
    EVENT_TIME,
    HASH,
    INSTRUCTION,
    PLACE,
    foreign_name,
    value_name,
)
from dovetail.laws.versioning import find_latest_versions
from dovetail.operators.counts import Counts
from dovetail.operators.job import Cause, Job, OperatorOutcome
from dovetail.operators.joins.foreign_key_join import (
    ForeignResults,
    answer_messages,
    fan_out_right_rows,
)
from dovetail.operators.joins.subscriptions import (
    RightRows,
    Subscriptions,
    find_subscriptions,
    store_subscriptions,
)
from dovetail.operators.tables import (
    Pool,
    TableStore,
    count_ignored,
    find_accepted_events,
    locate_last_rows_of_keys,
    located_times,
    store_rows,
)
from dovetail.physical.specs.foreign_key import ForeignKeyJoinLaw
from dovetail.physical.specs.star import (
    StarLookupLaw,
    left_input_of_dimensions,
    subscription_store_name,
)
from dovetail.state.runs import Runs
from dovetail.state.table_state import TableState

_ROWS_MAX = 50_000
"""The most answers in one table. It bounds memory, however many rows refer to one."""


def run(job: Job, law: StarLookupLaw) -> OperatorOutcome:
    """Emit the answers of all dimensions to keys of the fact, in the order of the records, as
    ``chunks``. The fact is the table that a star joins to several dimensions by foreign keys. An
    answer is the dimension's row, or a tombstone if there is none. With ``emit="batch"``, emit only
    the last answer to each key and foreign key.

    Source 0 brings subscriptions (messages) of the fact's keys, the other sources the rows of
    dimensions. Both are stored. Without rows in the batch, emit nothing and leave the stores as
    they are. Return the answers with the stores and the counts.
    """
    if not job.any_rows:
        return OperatorOutcome(None, job.stores)
    join, hashes = ForeignKeyJoinLaw(law.primary, "left"), _source_hashes(job)
    job = _foreign_key_job(job, law)
    shape, name = job.sources[0].shape, subscription_store_name(job.sources[0].name)
    subscribed = TableState(
        shape.schema, shape.keys + law.primary, job.stored_runs(name), job.blobs, job.cache
    )
    events = timeline(_rows_of_sources(job, law))
    dimensions = _Dimensions.locate_rows(job, law, events, hashes)
    merged, table = dimensions.merged, dimensions.table
    subscriptions = find_subscriptions(job, join, subscribed, merged, table)
    to_messages = answer_messages(job, join, merged, table, subscriptions)
    to_changes = fan_out_right_rows(join, merged, table, subscriptions)
    results = ForeignResults.concatenate([to_messages, to_changes])
    by_change = np.repeat([False, True], [len(to_messages.event), len(to_changes.event)])
    order = stable_argsort((events.arrival[results.event] << 32) + results.rank)
    if job.operator.emit == "batch":
        order = order[last_of_each(subscriptions.pair[results.subscription[order]])]
    answers = _Answers(job, dimensions, subscriptions, results.select(order), by_change[order])
    store_subscriptions(subscribed, subscriptions)
    counts = dimensions.store_rows(job, events)
    stores = {name: subscribed.runs, **dimensions.runs(job)}
    return OperatorOutcome(
        None, stores, chunks=answers.answer_tables(job.event_causes(events)), counts=counts
    )


def _foreign_key_job(job: Job, law: StarLookupLaw) -> Job:
    """Return ``job`` with its messages, the first source, as the left rows of a join by foreign
    key. A message subscribes a key of the fact, the table joined to the dimensions, to a row of a
    dimension, or ends that.

    Their key hashes lie in a range of their own for each dimension, so equal keys of two dimensions
    differ. ``law``: the star's dimensions.
    """
    messages, batch = left_input_of_dimensions(job.sources[0]), job.batches[0]
    columns = {name: batch.rows.column(name) for name in batch.rows.schema.names}
    dimension = columns[foreign_name(0)].to_numpy()
    columns[HASH] = pa.array(
        separate_key_spaces(columns[HASH].to_numpy(), dimension, len(law.places))
    )
    columns[value_name(0, 0)] = columns[PLACE]
    rows = pa.table({name: columns[name] for name in messages.wire_schema.names})
    return replace(
        job,
        sources=(messages, *job.sources[1:]),
        batches=(replace(batch, rows=rows), *job.batches[1:]),
    )


def _rows_of_sources(job: Job, law: StarLookupLaw) -> list[SourceRows]:
    """Return the rows of each source, first messages of rows that refer to a dimension. All are
    under the keys of messages: the index of the dimension, from 0, then the columns that the keys
    of all dimensions share.

    A shared column is null in the rows of a dimension whose key does not use it. Hashes are in the
    range of the row's dimension. ``job``: the one that ``_foreign_key_job`` returns.
    """
    messages = job.source_rows(0)
    rows = [messages]
    for dimension_index, places in enumerate(law.places):
        of_dimension = job.source_rows(dimension_index + 1)
        count = len(of_dimension)
        dimension = np.full(count, dimension_index, np.int16)
        keys = [pa.array(dimension), *(pa.nulls(count, key.type) for key in messages.keys[1:])]
        for place, key in zip(places, of_dimension.keys, strict=True):
            keys[1 + place] = key
        hash_ = separate_key_spaces(of_dimension.hash, dimension, len(law.places))
        rows.append(replace(of_dimension, keys=keys, hash=hash_))
    return rows


# Customers have a row in state (group 0) and one in the batch, products two rows in the batch:
#
# | reference | row                     | dimension | in its pool |
# |-----------|-------------------------|-----------|-------------|
# | 0         | stored, group 0         | customers | 0           |
# | 1         | none stored, group 1    | products  | 0           |
# | 2         | row 0 of customers      | customers | 1           |
# | 3         | row 0 of products       | products  | 1           |
# | 4         | row 1 of products       | products  | 2           |
@dataclass(frozen=True)
class _Dimensions:
    """The rows of all dimensions, as if they were one table: their rows of the batch lie one after
    the other.
    """

    merged: Timeline
    """The events, with all dimensions as source 1."""
    table: RightRows
    """The rows of all dimensions along ``merged``."""
    current: Mask
    """The events that change a dimension."""
    dimension: Ints
    """int64[groups]: the dimension of each key, from 0."""
    place: Ints
    """int64[groups]: the index of each key among those of its dimension."""
    first_row: Ints
    """The first row of each dimension among those of the batch."""
    stores: Sequence[TableStore]
    """The store of each dimension."""
    pools: Sequence[Pool]
    """The rows of each dimension."""

    @classmethod
    def locate_rows(
        cls, job: Job, law: StarLookupLaw, events: Timeline, hashes: Sequence[Ints]
    ) -> _Dimensions:
        """Locate the stored rows of all keys in ``events``, dimension by dimension, and return them
        with the batch's rows. A key may have no stored row. The stores are opened, nothing is
        written.

        ``events``: the batch, each dimension a source of its own, from 1. ``hashes``: for each
        source int64[rows], the hash of each row's key within its own dimension, by which rows are
        stored.
        """
        batches = [batch.rows for batch in job.batches[1:]]
        rows = np.array([len(batch) for batch in batches])
        first_row = np.cumsum(rows) - rows
        dimension = events.keys[0].to_numpy().astype(np.int64)
        hash_ = _first_value_of_groups(events, hashes)
        place, stored = np.zeros(events.groups, np.int64), np.zeros(events.groups, np.bool_)
        time_us, stored_us = np.zeros(events.groups, np.int64), np.zeros(events.groups, np.int64)
        stores, pools = [], []
        for dimension_index, places in enumerate(law.places):
            group = np.flatnonzero(dimension == dimension_index)
            group = group[stable_argsort(hash_[group])]
            store = job.table_store(dimension_index + 1)
            keys = [events.keys[1 + n].take(pa.array(group)) for n in places]
            located = locate_last_rows_of_keys(store, hash_[group], keys)
            place[group], stored[group] = np.arange(len(group)), located.present
            time_us[group], stored_us[group] = located.event_time_us, located_times(located)
            stores.append(store)
            pools.append(Pool(batches[dimension_index], located, len(group)))
        counted, current = _accepted_events(job, events, stored_us)
        merged = replace(
            events,
            source=np.minimum(events.source, 1),
            row=events.row + np.append(0, first_row)[events.source],
        )
        before, after = versions_around(merged, 1, stored, current)
        times = [time_us, *(batch.column(EVENT_TIME).to_numpy() for batch in batches)]
        table = RightRows(
            counted, np.flatnonzero(current), before, after, np.concatenate(times), stored
        )
        return cls(merged, table, current, dimension, place, first_row, stores, pools)

    def row_columns(self, job: Job, dimension_index: int, refs: Ints) -> list[pa.Array]:
        """Return the time, then the key and value columns, of rows of one dimension: one element
        per reference, null for ABSENT.

        ``dimension_index``: the index of the dimension, from 0. ``refs``: int64, references into
        the rows of all dimensions; each must name a row of that dimension or be ABSENT.
        """
        pool, groups = self.pools[dimension_index], len(self.place)
        absent = refs == ABSENT
        stored = np.append(self.place, 0)[np.minimum(refs, groups)]
        in_batch = pool.base + refs - groups - self.first_row[dimension_index]
        in_pool = np.where(refs < groups, stored, in_batch)
        in_pool[absent] = ABSENT
        columns = job.sources[dimension_index + 1].shape.user_columns
        time_us = np.append(self.table.time_us, 0)[refs]
        return [pa.array(time_us, mask=absent), *pool.columns_at(in_pool, columns)]

    def store_rows(self, job: Job, events: Timeline) -> Counts:
        """Put the batch's rows of all dimensions into their stores. Return the counts of records
        that change nothing, too old or late; only versioned dimensions have any. ``events``: the
        batch, each dimension a source of its own, from 1.
        """
        counts, counted = Counts(), self.table.counted
        for source, store in enumerate(self.stores, start=1):
            store_rows(job, source, store, events, counted & (events.source == source))
            count_ignored(counts, job, source, events, counted, self.current)
        return counts

    def runs(self, job: Job) -> dict[str, Runs]:
        """Return the sorted runs of each dimension's store, by the store's name. After
        ``store_rows`` they include the batch.
        """
        names = job.operator.names[1:]
        return {name: store.runs for name, store in zip(names, self.stores, strict=True)}


def _source_hashes(job: Job) -> list[Ints]:
    """Return for each source the column ``_hash`` of its rows: int64[rows]. That of source 0,
    messages of rows that refer to a dimension, is the hash of the foreign key.
    """
    return [batch.rows.column(HASH).to_numpy() for batch in job.batches]


def _first_value_of_groups(events: Timeline, columns: Sequence[Ints]) -> Ints:
    """Return the value of the first event of each group in ``events``: int64[groups]. ``columns``:
    for each source int64[rows], the value of each row.
    """
    lengths = np.array([len(column) for column in columns])
    row = (np.cumsum(lengths) - lengths)[events.source] + events.row
    of_groups: Ints = np.concatenate(columns)[row[events.start]]
    return of_groups


def _accepted_events(job: Job, events: Timeline, stored_us: Ints) -> tuple[Mask, Mask]:
    """Return two masks, bool[events] each: the events that the dimensions' tables take, and those
    of them that change a table.

    ``events``: the batch, each dimension a source of its own, from 1. ``stored_us``: int64[groups],
    the time of each stored row, ``NO_TIME`` for none. A versioned dimension does not take rows
    older than its history, and only its latest versions change it. Messages, source 0, are in
    neither mask.
    """
    counted, current = np.zeros((2, len(events.row)), np.bool_)
    for source in range(1, len(job.sources)):
        of_source = find_accepted_events(job, events, source)
        counted |= of_source
        if job.sources[source].meaning.versioned_us is not None:
            of_source = find_latest_versions(events, of_source, stored_us)
        current |= of_source
    return counted, current


@dataclass(frozen=True)
class _Answers:
    """The answers of a batch, in order."""

    job: Job
    dimensions: _Dimensions
    subscriptions: Subscriptions
    results: ForeignResults
    by_change: Mask
    """The answers that changes of a dimension cause."""

    def answer_tables(self, causes: Cause) -> Iterator[pa.Table]:
        """Yield the answers, in order, in tables of at most ``_ROWS_MAX`` (50,000) rows with the
        columns that the star's third stage reads. Answers go to keys of the fact, the table joined
        to the dimensions. An answer is a dimension's row for the key, or that there is none.
        ``causes``: the causing record of each event of the batch. Without answers, yield nothing.
        """
        for start in range(0, len(self.results.event), _ROWS_MAX):
            part = slice(start, start + _ROWS_MAX)
            yield self._answer_table(self.results.select(part), self.by_change[part], causes)

    def _answer_table(self, results: ForeignResults, by_change: Mask, causes: Cause) -> pa.Table:
        """Return ``results`` as one table of answers, one row each in the same order, with the
        columns that the star's third stage reads.

        These are the fact's key, time and ``_deleted``, for each dimension its row (null but for
        the answering one), ``_epoch``, and ``_instruction``. ``_epoch`` is that of the message that
        subscribed, by which answers to one key are put in order. It is 0 or less for a subscription
        of an earlier batch. ``_instruction`` is twice the dimension, from 1, plus 1 if the
        dimension's row has changed.

        ``by_change``: bool[results], the dimension's row has changed; false for the answer to a
        message. ``causes``: the causing record of each event of the batch.
        """
        subscriptions, shape = self.subscriptions, self.job.sources[0].shape
        left = subscriptions.reference[results.subscription]
        *primary, key_hash = subscriptions.pool.columns_at(left, shape.value_columns)
        place_hash = key_hash.to_numpy()
        group = self.dimensions.merged.group[results.event]
        dimension = self.dimensions.dimension[group]
        columns = {
            HASH: key_hash,
            EVENT_TIME: pa.array(self.dimensions.merged.event_time_us[results.event]),
            DELETED: pa.array(results.right == ABSENT),
        }
        columns |= zip((field.name for field in shape.value_fields[:-1]), primary, strict=True)
        for dimension_index in range(len(self.dimensions.stores)):
            refs = np.where(dimension == dimension_index, results.right, ABSENT)
            values = self.dimensions.row_columns(self.job, dimension_index, refs)
            columns |= {
                value_name(dimension_index + 1, column_index): column
                for column_index, column in enumerate(values)
            }
        columns[EPOCH] = pa.array(results.epoch)
        columns[INSTRUCTION] = pa.array(2 * (dimension + 1) + by_change.astype(np.int64))
        columns |= causes.take(results.event).with_tie(place_hash).arrays
        return pa.table(columns)
