"""The first stage of a join by foreign key, on one bucket of primary keys (``SubscribeLaw``). Each
change of a left row becomes messages to its former and its present foreign key.

The store holds each primary key's foreign key, not its row: rows lie with the subscriptions.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from dovetail.arrays.equality import rows_equal
from dovetail.arrays.grouping import any_null
from dovetail.arrays.timeline import ABSENT, Ints, Mask
from dovetail.base.columns import DELETED, EPOCH, EVENT_TIME, HASH, INSTRUCTION, PLACE, foreign_name
from dovetail.laws.joins.foreign_key_join import EMIT, FRESH, MOVED, Messages, messages_of_changes
from dovetail.laws.joins.table_join import sides_preserved
from dovetail.operators.job import Job, OperatorOutcome, take_rows
from dovetail.operators.row_changes import RowChanges, take_old_or_new
from dovetail.physical.specs.foreign_key import SubscribeLaw


def run(job: Job, law: SubscribeLaw) -> OperatorOutcome:
    """Emit messages to the foreign keys of each changed left row, in the order of the records. A
    row whose foreign key changed sends two: first to the former foreign key, a tombstone, then to
    the present one. A row that keeps its foreign key or is new sends the latter only, a deleted row
    the former. Foreign keys are equal if their bits are; null equals null. Without preserved left
    rows, no message goes to a foreign key with a null.

    Store each primary key's foreign key, and count the records without use. Without rows in the
    batch, emit nothing and leave the store as it is. Return the messages as ``output``, with the
    store and the counts.
    """
    shape = job.sources[0].shape
    foreign = shape.foreign_columns
    store = job.table_store(0, schema=pa.schema(list(shape.schema)[: foreign.stop]))
    if not job.any_rows:
        return OperatorOutcome(None, job.stores)
    changes = RowChanges.read_batch(job, store)
    former = changes.pool.columns_at(changes.old, foreign)
    present = changes.pool.columns_at(changes.new, foreign)
    sent = messages_of_changes(
        changes.old != ABSENT,
        changes.new != ABSENT,
        any_null(former[1:], len(changes.event)),
        any_null(present[1:], len(changes.event)),
        rows_equal(former[1:], present[1:]),
        left_preserved=sides_preserved(law.how)[0],
    )
    rows = _message_table(job, changes, sent, (former, present))
    ignored = changes.store_rows(job, store)
    stores = {job.operator.names[0]: store.runs}
    return OperatorOutcome(rows if len(rows) else None, stores, counts=ignored)


# Order 2 is new and Ann's; order 1 moves from Ann to Bob. With ``emit="batch"``:
#
# | change  | message to | deleted | value | instruction      | epoch |
# |---------|------------|---------|-------|------------------|-------|
# | order 2 | Ann        | no      | Ann   | FRESH            | 2     |
# | order 1 | Ann        | yes     | null  | MOVED            | 3     |
# | order 1 | Bob        | no      | Bob   | EMIT FRESH MOVED | 4     |
#
# The epoch counts all messages of the primary keys' bucket. Here one was sent in earlier batches.
# With ``emit="change"`` order 1 is ``MOVED`` only if Ann and Bob are in different buckets. Within
# one bucket the order of the messages is that of their results.
def _message_table(
    job: Job,
    changes: RowChanges,
    sent: Messages,
    keys: tuple[list[pa.Array], list[pa.Array]],
) -> pa.Table:
    """Return the messages of ``changes`` to foreign keys as a table, in the order of the records. A
    message tells a foreign key of a left row that refers to it, or that no longer does. Of one
    record, the message to the former foreign key comes before that to the present one.

    The columns are those of the second stage. They are ``_hash``, ``_event_time``, ``_deleted``,
    the foreign key (``_f0`` and so on), the primary key and the values. Then come ``_place``,
    ``_epoch``, ``_instruction`` and ``Operator.feeds``. ``_hash`` is that of the foreign key, or of
    the primary key if the foreign key has a null. ``_place`` is always that of the primary key. A
    message to a former foreign key is a tombstone, with null values.

    ``sent``: the messages of each of ``changes``; only these are in the table. ``keys``: the former
    and the present foreign key columns of each change, the hash first.
    """
    operator, shape, events = job.operator, job.sources[0].shape, changes.events
    change, begun = changes.rows_in_order(sent.ends, sent.begins)
    event = changes.event[change]
    group = events.group[event]
    hash_, *foreign = take_old_or_new(*keys, change, begun)
    place_hash = events.hash[group]
    null = any_null(foreign, len(event))
    route = np.where(null, place_hash, hash_.fill_null(0).to_numpy())
    rows = job.batches[0].rows
    values = [field.name for field in shape.value_fields]
    value_columns = take_rows(
        rows.select(values).columns, np.where(begun, events.row[event], ABSENT)
    )
    columns: dict[str, pa.Array] = {
        HASH: pa.array(route),
        EVENT_TIME: pa.array(events.event_time_us[event]),
        DELETED: pa.array(~begun),
        **{foreign_name(foreign_index): column for foreign_index, column in enumerate(foreign)},
    }
    primary = [field.name for field in shape.key_fields]
    columns |= zip(primary, (key.take(pa.array(group)) for key in events.keys), strict=True)
    columns |= zip(values, value_columns, strict=True)
    columns[PLACE] = pa.array(place_hash)
    columns[EPOCH] = pa.array(1 + job.manifest.position + np.arange(len(event)))
    instruction = np.where(begun, sent.begin_emits[change], sent.end_emits[change]) * EMIT
    instruction |= np.where(begun & sent.fresh[change], FRESH, 0)
    if operator.emit == "batch":
        moves = _ending_among_several(~begun, group)
    else:
        moves = _sent_to_several_buckets(route % operator.buckets, group)
    columns[INSTRUCTION] = pa.array(instruction | np.where(moves, MOVED, 0))
    columns |= job.event_causes(events).take(event).arrays
    return pa.table(columns)


def _sent_to_several_buckets(bucket: Ints, group: Ints) -> Mask:
    """Find the messages, from left rows to foreign keys, whose primary key has messages to several
    buckets: bool[messages].

    ``bucket``: int64[messages], the bucket that each goes to. ``group``: int64[messages], the index
    of its primary key among the batch's keys, from 0.
    """
    seen = np.full(int(group.max(initial=-1)) + 1, -1)
    seen[group] = bucket
    differs = np.zeros(len(seen), np.bool_)
    differs[group[seen[group] != bucket]] = True
    return differs[group]


def _ending_among_several(ends: Mask, group: Ints) -> Mask:
    """Find the messages, from left rows to foreign keys, of primary keys with more than one, of
    which at least one ends a subscription: bool[messages]. Only then may a primary key have results
    of several foreign keys.

    ``ends``: bool[messages], the message ends a subscription. ``group``: int64[messages], the index
    of its primary key among the batch's keys, from 0.
    """
    count = np.bincount(group)
    ended = np.zeros(len(count), np.bool_)
    ended[group[ends]] = True
    return (ended & (count > 1))[group]
