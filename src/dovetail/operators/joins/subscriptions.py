"""The state of a join by foreign key in a bucket of foreign keys.

It consists of the subscriptions that a batch touches, along the timeline; the right table; the
count of left rows that refer to each right row; and their stores.

- Rows are located before any are stored, and a batch appends to each store once. Segments never
  change, so values may be gathered after that.
- A subscription is stored under the combined hash of its foreign and its primary key. So those of
  one foreign key are a range of the store, and a right record reads only that range.
- With ``spread=``, the bucket has copies of other buckets' right rows. They are a store of their
  own, so whoever reads the right table from all buckets has each row once.
- Only stored subscriptions that a change of the right table meets are read. A message answers for
  itself, so its own stored row is needed only for net results (``emit="batch"``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from dovetail.arrays.grouping import any_null, by_key
from dovetail.arrays.hashing import combine_hashes, combined_hash_range, lower_hash_bits
from dovetail.arrays.timeline import Ints, Mask, Timeline, last_of_source, versions_around
from dovetail.base.columns import COPY, EPOCH, EVENT_TIME, HASH, INSTRUCTION, PLACE
from dovetail.laws.joins.foreign_key_join import FRESH, MOVED, SETTLED, count_references
from dovetail.laws.joins.table_join import sides_preserved
from dovetail.laws.versioning import find_latest_versions
from dovetail.operators.job import Job, combine_chunks
from dovetail.operators.tables import (
    Pool,
    TableStore,
    find_accepted_events,
    locate_last_rows,
    located_times,
    store_rows,
)
from dovetail.physical.specs.foreign_key import ForeignKeyJoinLaw
from dovetail.state.run_state import Located
from dovetail.state.runs import Runs
from dovetail.state.table_state import TableState

_COUNT = "_count"
_OTHER_STORE = 2
"""The index of no source."""


@dataclass(frozen=True)
class SubscriptionStores:
    """The stores of the bucket."""

    subscribed: TableState
    """The subscriptions with their left rows, by the combined hash of foreign and primary key."""
    right: RightStores
    """The right table."""
    counts: TableState | None
    """The counts of left rows by right key, if right rows appear alone; else None."""

    @classmethod
    def open_stores(cls, job: Job, law: ForeignKeyJoinLaw) -> SubscriptionStores:
        """Open the stores of the bucket as they were before the batch: the left rows by foreign
        key, the right table, and the counts of left rows by right key. The last is None unless
        right rows without a left row are results: ``law.how`` is right or outer.
        """
        shape = job.sources[0].shape
        subscribed = TableState(
            shape.schema,
            shape.keys + law.primary,
            job.stored_runs(law.SUBSCRIPTIONS),
            job.blobs,
            job.cache,
            horizon_us=job.horizon_us(0),
            expiry=job.expiry_column(0),
        )
        counts = None
        if sides_preserved(law.how)[1]:
            key_fields = list(shape.schema)[: shape.key_columns.stop]
            schema = pa.schema([*key_fields, (_COUNT, pa.int64())])
            runs = job.stored_runs(law.REFERENCES)
            counts = TableState(schema, shape.keys, runs, job.blobs, job.cache)
        return cls(subscribed, RightStores.open_stores(job), counts)

    def count_references(self, job: Job, events: Timeline) -> References | None:
        """Count the left rows that refer to each event's foreign key. Return the stored count of
        each key of the batch, and for each event the counts of its key before and after it: the
        stored one, changed by the batch's messages. A key with a null has no references.

        Return None if right rows never appear alone. ``events``: the timeline by foreign key, with
        messages (changes of left rows) as source 0.
        """
        if self.counts is None:
            return None
        located = self.counts.locate(events.hash, events.keys)
        counted_group = np.flatnonzero(located.present)
        stored = np.zeros(events.groups, np.int64)
        column = located.fetch(counted_group, [len(located.schema) - 1]).column(0)
        stored[counted_group] = column.to_numpy()
        message = np.flatnonzero(events.source == 0)
        message = message[~any_null(events.keys, events.groups)[events.group[message]]]
        instruction = job.batches[0].rows.column(INSTRUCTION).to_numpy()[events.row[message]]
        change = np.zeros(len(events.row), np.int64)
        change[message] = np.where(events.deleted[message], -1, (instruction & FRESH) != 0)
        return References(stored, *count_references(events.group, change, stored))

    def store_batch(
        self,
        job: Job,
        events: Timeline,
        counted: Mask,
        subscriptions: Subscriptions,
        references: References | None,
    ) -> None:
        """Store the last message of each left row and foreign key in the batch, the right rows, and
        the changed counts of ``references``. A count of 0 is stored as a tombstone.

        ``events``: the timeline, with messages (changes of left rows) as source 0 and right rows as
        source 1. ``counted``: bool[events], the events that the right table takes.
        ``subscriptions``: the batch's messages. ``references``: None if right rows never appear
        alone.
        """
        store_subscriptions(self.subscribed, subscriptions)
        self.right.store_rows(job, events, counted)
        if self.counts is None or references is None:
            return
        event = last_of_source(events, 0)
        event = event[~any_null(events.keys, events.groups)[events.group[event]]]
        group = pa.array(events.group[event])
        end = np.append(events.start, len(events.row))[events.group[event] + 1]
        count = references.after[end - 1]
        columns = [
            pa.array(events.hash[events.group[event]]),
            pa.array(events.event_time_us[event]),
            pa.array(count == 0),
            *(key.take(group) for key in events.keys),
            pa.array(count),
        ]
        self.counts.store(pa.table(columns, schema=self.counts.schema))

    @property
    def runs(self) -> dict[str, Runs]:
        """The sorted runs of the stores by the operator's names: ``subscriptions``, those of the
        right table and, if right rows appear alone, ``references``.
        """
        runs = {ForeignKeyJoinLaw.SUBSCRIPTIONS: self.subscribed.runs, **self.right.runs}
        return (
            runs if self.counts is None else runs | {ForeignKeyJoinLaw.REFERENCES: self.counts.runs}
        )


@dataclass(frozen=True)
class RightStores:
    """The stores of the right table in the bucket. A row is in one of them, and no key in both."""

    rows: TableStore
    """The rows that lie in this bucket by their keys."""
    copies: TableStore | None
    """The copies of rows that lie in other buckets, which left rows of this bucket may refer to;
    None if rows have no copies (``engine.batches.spread``).
    """

    @classmethod
    def open_stores(cls, job: Job) -> RightStores:
        """Open the stores of a join by foreign key as they were before the batch."""
        copied = job.sources[1].arrival.copies > 1
        return cls(
            job.table_store(1, ForeignKeyJoinLaw.RIGHT),
            job.table_store(1, ForeignKeyJoinLaw.COPIES) if copied else None,
        )

    def locate_last_rows(self, events: Timeline) -> Located:
        """Return where the last stored right row of the key of each group of ``events`` lies: one
        element per group, as ``tables.locate_last_rows`` does for one store.
        """
        located = locate_last_rows(self.rows, events)
        if self.copies is None:
            return located
        group = np.arange(events.groups)
        in_both = located.concatenate(locate_last_rows(self.copies, events))
        return in_both.take(np.where(located.segment < 0, events.groups + group, group))

    def store_rows(self, job: Job, events: Timeline, counted: Mask) -> None:
        """Write the batch's right rows, each to its store, as ``tables.store_rows`` does for one
        store. ``events``: the timeline, with right rows as source 1. ``counted``: bool[events], the
        events that become versions.
        """
        if self.copies is None:
            store_rows(job, 1, self.rows, events, counted)
            return
        right = np.flatnonzero(events.source == 1)
        copied = np.zeros(len(events.row), np.bool_)
        copied[right] = job.batches[1].rows.column(COPY).to_numpy()[events.row[right]] > 0
        for store, stored in ((self.rows, ~copied), (self.copies, copied)):
            # Rows of the other store count as a source that there is none of.
            of_store = replace(events, source=np.where(stored, events.source, _OTHER_STORE))
            store_rows(job, 1, store, of_store, counted & stored)

    @property
    def runs(self) -> dict[str, Runs]:
        """The sorted runs of the stores by the operator's names: ``right``, and ``copies`` if rows
        have copies.
        """
        runs = {ForeignKeyJoinLaw.RIGHT: self.rows.runs}
        if self.copies is not None:
            runs[ForeignKeyJoinLaw.COPIES] = self.copies.runs
        return runs


def store_subscriptions(store: TableState, subscriptions: Subscriptions) -> None:
    """Store in ``store`` the last message (change of a left row) of each left row and foreign key
    in the batch. A message to a former foreign key is a tombstone. Stored rows without a message
    are not written again.

    Rows are ordered by the combined hash of foreign and primary key, which becomes their ``_hash``.
    The first columns of the messages must be those of the store.
    """
    rows = subscriptions.pool.rows
    last = np.flatnonzero((subscriptions.following < 0) & (subscriptions.event >= 0))
    row = subscriptions.reference[last] - subscriptions.pool.base
    order = combine_hashes(rows.column(HASH).to_numpy()[row], subscriptions.place[last])
    arranged = np.argsort(order)
    stored = rows.select(range(len(store.schema))).take(pa.array(row[arranged]))
    store.store(stored.set_column(0, HASH, pa.array(order[arranged])))


@dataclass(frozen=True)
class References:
    """The counts of left rows that refer to the right rows."""

    stored: Ints
    """int64[groups]: of each key, before the batch."""
    before: Ints
    """int64[events]: of each event's key, before the event."""
    after: Ints
    """int64[events]: of each event's key, after the event."""


@dataclass(frozen=True)
class RightRows:
    """The rows of the right table that stand along the timeline."""

    counted: Mask
    """bool[events]: the events that the table takes."""
    changes: Ints
    """The indices in the timeline of the events that change the table, ascending."""
    before: Ints
    """int64[events]: the reference to the row of the event's key before it, or ABSENT."""
    after: Ints
    """int64[events]: the reference to the row of the event's key after it, or ABSENT."""
    time_us: Ints
    """The event time of each row, by reference; ABSENT has none."""
    stored: Mask
    """bool[groups]: there is a row of the key from earlier batches."""


@dataclass(frozen=True)
class RightTable(RightRows):
    """The right table along the timeline, with its values."""

    pool: Pool
    """The rows that references name."""
    columns: range
    """The indices of the table's key and value columns in the rows of ``pool``."""


def right_table_rows(job: Job, stores: RightStores, events: Timeline) -> RightTable:
    """Return the right table along ``events``: the rows of each event's key before and after it, as
    references, ABSENT for none. With them come the events that the table takes, and those that
    change it. The time of each row and the pool of rows that references name come, too. Of a
    versioned table, only each key's latest version counts as a change.

    ``stores``: the table's rows before the batch. ``events``: the timeline by foreign key, with
    right rows as source 1.
    """
    located = stores.locate_last_rows(events)
    counted = find_accepted_events(job, events, 1)
    versioned = job.sources[1].meaning.versioned_us is not None
    current = (
        find_latest_versions(events, counted, located_times(located)) if versioned else counted
    )
    rows = job.batches[1].rows
    before, after = versions_around(events, 1, located.present, current)
    time = np.concatenate((located.event_time_us, rows.column(EVENT_TIME).to_numpy()))
    pool = Pool(rows, located, events.groups)
    changes = np.flatnonzero(current)
    columns = job.sources[1].shape.user_columns
    return RightTable(counted, changes, before, after, time, located.present, pool, columns)


@dataclass(frozen=True)
class Subscriptions:
    """The stored subscriptions that the batch touches, and the batch's messages. Entries of a left
    row and foreign key lie side by side, in the order in which they replace each other.

    One left row and foreign key, with messages at the events 2 and 7:

    | entry                 | event | following | live |
    |-----------------------|-------|-----------|------|
    | stored                | -1    | 2         | yes  |
    | a new row             | 2     | 7         | yes  |
    | the subscription ends | 7     | -1        | no   |
    """

    group: Ints
    """The foreign key of each entry, as a group of the timeline."""
    event: Ints
    """The index in the timeline of the message's event, -1 for a stored subscription."""
    following: Ints
    """The index of the event whose message replaces or ends the subscription, -1 for none."""
    live: Mask
    """False for a message that ends a subscription."""
    reference: Ints
    """The row in ``pool``."""
    place: Ints
    """The lower half of the primary key's hash."""
    pair: Ints
    """An index for each pair of left row and foreign key, from 0."""
    epoch: Ints
    """The epoch of the left row's change, 0 for a stored subscription. It is ``SETTLED`` if no
    other bucket has messages of the left row.
    """
    pool: Pool
    """The stored subscriptions, then all rows of the batch that bring messages."""
    primary: range
    """The indices of the primary key's columns in the rows of ``pool``."""
    values: range
    """The indices of the value columns in the rows of ``pool``."""


# Order 1 has a stored subscription to Ann. The batch, in the order of its events: order 1
# subscribes to Bob (event 0), order 2 to Ann (1), Ann's row changes (2), order 1 leaves Ann (3),
# Ann's row changes once more (4). Ann's changes meet her stored subscriptions; Bob has none and is
# not read. The result, by foreign and primary key, has one line per subscription and message:
#
# | group | primary key | event      | following | live | pair | reference             |
# |-------|-------------|------------|-----------|------|------|-----------------------|
# | Bob   | 1           | 0          | -1        | yes  | 0    | 3: row 2 of the batch |
# | Ann   | 2           | 1          | -1        | yes  | 1    | 1: row 0 of the batch |
# | Ann   | 1           | -1: stored | 3         | yes  | 2    | 0: the stored row     |
# | Ann   | 1           | 3          | -1        | no   | 2    | 2: row 1 of the batch |
#
# So event 2 meets orders 2 and 1, and event 4 meets order 2. Of each pair the last line is stored.
def find_subscriptions(
    job: Job, law: ForeignKeyJoinLaw, store: TableState, events: Timeline, table: RightRows
) -> Subscriptions:
    """Return the batch's messages (changes of left rows), and the stored subscriptions to foreign
    keys whose right row changes in the batch. With ``emit="batch"``, stored subscriptions that
    messages replace are also included; others are not read.

    A subscription is a left row's interest in its foreign key. Those of one left row and foreign
    key lie side by side: the stored one, then its messages by arrival. These groups lie by the hash
    of both keys. ``store``: the subscriptions before the batch. ``events``: the timeline by foreign
    key, with messages as source 0. ``table``: the right rows along ``events``.
    """
    rows = job.batches[0].rows
    message = np.flatnonzero(events.source == 0)
    row, group = events.row[message], events.group[message]
    primary = law.primary_columns(job.sources)
    place_hash = lower_hash_bits(rows.column(PLACE).to_numpy()[row])
    order = combine_hashes(events.hash[group], place_hash)
    keys = [combine_chunks(rows.column(column)).take(pa.array(row)) for column in primary]
    asked = np.unique(events.group[table.changes])
    scanned = store.scan(
        *combined_hash_range(events.hash[asked]), [key.take(pa.array(asked)) for key in events.keys]
    )
    stored, located = asked[scanned.query], scanned.located
    if job.operator.emit == "batch":
        other = np.flatnonzero(~np.isin(group, asked))
        pair_keys = [key.take(pa.array(group[other])) for key in events.keys]
        pair_keys += [key.take(pa.array(other)) for key in keys]
        arranged, new, distinct = by_key(order[other], pair_keys, np.arange(len(other)))
        first = other[arranged[new]]
        alone = store.locate(order[first], [key.filter(pa.array(new)) for key in distinct])
        stored_pair = np.flatnonzero(alone.present)
        stored = np.concatenate((stored, group[first[stored_pair]]))
        located = located.concatenate(alone.take(stored_pair))
    count = len(stored)
    stored_rows = located.fetch(np.arange(count), [0, *primary])
    stored_order = stored_rows.column(0).to_numpy()
    keys = [
        pa.concat_arrays([combine_chunks(was), is_])
        for was, is_ in zip(stored_rows.columns[1:], keys, strict=True)
    ]
    group = np.concatenate((stored, group))
    everything = np.arange(len(group))
    arranged, new, _ = by_key(
        np.concatenate((stored_order, order)), [*keys, pa.array(group)], everything
    )
    pair = np.cumsum(new) - 1
    event = np.concatenate((np.full(count, -1), message))[arranged]
    following = np.append(np.where(new[1:], -1, event[1:]), -1)[: len(event)]
    instruction = rows.column(INSTRUCTION).to_numpy()[row]
    moved = np.zeros(int(pair.max(initial=-1)) + 1, np.bool_)
    moves = np.concatenate((np.zeros(count, np.bool_), (instruction & MOVED) != 0))[arranged]
    moved[pair[moves]] = True
    epoch = np.concatenate((np.zeros(count, np.int64), rows.column(EPOCH).to_numpy()[row]))
    live = np.concatenate((np.ones(count, np.bool_), ~events.deleted[message]))
    return Subscriptions(
        group=group[arranged],
        event=event,
        following=following,
        live=live[arranged],
        reference=np.concatenate((np.arange(count), count + row))[arranged],
        place=np.concatenate((lower_hash_bits(stored_order), place_hash))[arranged],
        pair=pair,
        epoch=np.where(moved[pair], epoch[arranged], SETTLED),
        pool=Pool(rows, located, count),
        primary=primary,
        values=law.leaf_columns(job.sources, 0),
    )
