"""The first stage of a star, on one bucket of the fact's keys (``StarSubscribeLaw``). Each change
of a row becomes messages to the dimensions whose foreign key moves.

The store holds the foreign keys of each row. A null foreign key is a key like others: its dimension
answers that there is no row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from dovetail.arrays.equality import rows_equal
from dovetail.arrays.grouping import any_null
from dovetail.arrays.timeline import ABSENT
from dovetail.base.columns import (
    DELETED,
    EPOCH,
    EVENT_TIME,
    HASH,
    INSTRUCTION,
    PLACE,
    foreign_name,
)
from dovetail.laws.joins.foreign_key_join import MOVED, messages_of_changes
from dovetail.operators.job import Job, OperatorOutcome
from dovetail.operators.row_changes import RowChanges, take_old_or_new
from dovetail.physical.specs.star import StarSubscribeLaw


def run(job: Job, law: StarSubscribeLaw) -> OperatorOutcome:
    """Emit messages to the dimensions whose foreign key a record of the fact changes, by dimension,
    then in the order of the records. The fact is the table that a star joins to several dimensions
    by foreign keys.

    A new row sends one message to every dimension, a deleted row a tombstone. A changed key sends a
    tombstone to the former one first; an unchanged key sends nothing. A null is a key like others.
    Each row's foreign keys are stored. Without rows in the batch, emit nothing and leave the store
    as it is. Return the messages as ``output``, with the store and the counts.
    """
    store = job.table_store(0)
    if not job.any_rows:
        return OperatorOutcome(None, job.stores)
    changes = RowChanges.read_batch(job, store)
    rows = _message_table(job, law, changes)
    ignored = changes.store_rows(job, store)
    stores = {job.operator.names[0]: store.runs}
    return OperatorOutcome(rows if len(rows) else None, stores, counts=ignored)


# Order 1 moves from Ann to Bob and keeps its product; order 2 is new:
#
# | change  | dimension | message to | deleted |
# |---------|-----------|------------|---------|
# | order 1 | customers | Ann        | yes     |
# | order 1 | customers | Bob        | no      |
# | order 2 | customers | Ann        | no      |
# | order 2 | products  | pen        | no      |
#
# Epochs count the messages. They order the answers to one record.
def _message_table(job: Job, law: StarSubscribeLaw, changes: RowChanges) -> pa.Table:
    """Return the messages of ``changes`` to all dimensions, the input of the star's second stage:
    by dimension, then in the order of the records. A change has up to two messages to a dimension,
    first a tombstone to the former key.

    The fact is the table joined to the dimensions. Columns are the routing ``_hash``, time and
    ``_deleted``, the dimension's index and its foreign key, the fact's primary key and its hash.
    ``_epoch``, ``_instruction`` and the columns ``Operator.feeds`` follow. ``_epoch`` counts the
    messages of this bucket from 1, across batches. ``_instruction`` is always ``MOVED``: the
    answers to one key come from several buckets, so they must be put in order by ``_epoch``.

    A null foreign key is routed by the primary key's hash. No change gives no rows.
    """
    values = job.sources[0].shape.value_columns
    count, dimensions = len(changes.event), len(law.places)
    former, present = (
        _split_by_dimension(changes.pool.columns_at(refs, values), law.places)
        for refs in (changes.old, changes.new)
    )
    was_null, is_null = (
        np.concatenate([any_null(columns, count) for _, *columns in foreign])
        for foreign in (former, present)
    )
    sent = messages_of_changes(
        np.tile(changes.old != ABSENT, dimensions),
        np.tile(changes.new != ABSENT, dimensions),
        was_null,
        is_null,
        np.concatenate(
            [rows_equal(old[1:], new[1:]) for old, new in zip(former, present, strict=True)]
        ),
        left_preserved=True,
    )
    change, begun = changes.rows_in_order(sent.ends, sent.fresh)
    dimension, row_change = np.divmod(change, max(count, 1))
    events, event = changes.events, changes.event[row_change]
    group = events.group[event]
    hash_, *foreign = take_old_or_new(
        _stack_foreign_keys(former, law.places),
        _stack_foreign_keys(present, law.places),
        change,
        begun,
    )
    place_hash = events.hash[group]
    null = np.where(begun, is_null[change], was_null[change])
    table = {
        HASH: pa.array(np.where(null, place_hash, hash_.fill_null(0).to_numpy())),
        EVENT_TIME: pa.array(events.event_time_us[event]),
        DELETED: pa.array(~begun),
    }
    keyed = [pa.array(dimension.astype(np.int16)), *foreign]
    table |= {foreign_name(index): column for index, column in enumerate(keyed)}
    primary = [field.name for field in job.sources[0].shape.key_fields]
    table |= zip(primary, (key.take(pa.array(group)) for key in events.keys), strict=True)
    table[PLACE] = pa.array(place_hash)
    table[EPOCH] = pa.array(np.arange(len(event)) + 1 + job.manifest.position)
    table[INSTRUCTION] = pa.array(np.full(len(event), MOVED))
    table |= job.event_causes(events).take(event).arrays
    return pa.table(table)


def _split_by_dimension(
    columns: Sequence[pa.Array], places: Sequence[Sequence[int]]
) -> list[Sequence[pa.Array]]:
    """Split ``columns`` by dimension: for each a list of the hash of its foreign key, then the
    key's columns. They lie one dimension after the other.

    ``places``: for each dimension one element per key column; only the counts are used.
    """
    ends = np.cumsum([1 + len(of_key) for of_key in places])
    return [columns[end - 1 - len(of_key) : end] for end, of_key in zip(ends, places, strict=True)]


def _stack_foreign_keys(
    foreign: Sequence[Sequence[pa.Array]], places: Sequence[Sequence[int]]
) -> list[pa.Array]:
    """Return the hashes of all dimensions' foreign keys as one column, then the key columns that
    dimensions share. All have the rows of the first dimension, then those of the second, and so on.

    ``foreign``: for each dimension the hash and the key's columns, equally long. ``places``: for
    each dimension the index of the shared column that each key column takes, from 0. A shared
    column that a dimension does not use is null in its rows.
    """
    shared = [pa.concat_arrays([hash_ for hash_, *_ in foreign])]
    by_place = [
        dict(zip(of_key, columns, strict=True))
        for of_key, (_, *columns) in zip(places, foreign, strict=True)
    ]
    for place in range(1 + max(map(max, places))):
        type_ = next(columns[place].type for columns in by_place if place in columns)
        shared.append(
            pa.concat_arrays(
                columns[place] if place in columns else pa.nulls(len(hash_), type_)
                for columns, (hash_, *_) in zip(by_place, foreign, strict=True)
            )
        )
    return shared
