"""The first stage of a star, on one bucket of the fact's keys (``StarSubscribe``). Each change of a
row becomes messages to the dimensions whose foreign key moves.

The store holds the foreign keys of each row. A null foreign key is a key like others: its dimension
answers that there is no row.
"""

from __future__ import annotations

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
from dovetail.laws.joins.foreign_key_join import MOVED, messages
from dovetail.operators.job import Done, Job
from dovetail.operators.row_changes import RowChanges, old_or_new
from dovetail.physical.specs.star import StarSubscribe

DIMENSION_SHIFT = 3
"""The bits of an instruction below the number of its dimension."""


def run(job: Job, law: StarSubscribe) -> Done:
    """Emit the messages of each change, by dimension and then in the order of the records. Store
    the foreign keys.
    """
    store = job.table_store(0)
    if not job.any_rows:
        return Done(None, job.stores)
    changes = RowChanges.of(job, store)
    first = job.sources[0].shape.value_columns.start
    tables = []
    for dimension_number, width in enumerate(law.widths):
        columns = range(first, first + 1 + width)
        tables.append(_messages(job, law, changes, dimension_number, columns))
        first = columns.stop
    rows = pa.concat_tables(tables).combine_chunks()
    ignored = changes.keep(job, store)
    stores = {job.operator.names[0]: store.runs}
    return Done(rows if len(rows) else None, stores, counts=ignored)


# Order 1 moves from Ann to Bob and keeps its product; order 2 is new:
#
# | change  | dimension | message to | deleted |
# |---------|-----------|------------|---------|
# | order 1 | customers | Ann        | yes     |
# | order 1 | customers | Bob        | no      |
# | order 2 | customers | Ann        | no      |
# | order 2 | products  | pen        | no      |
#
# Epochs count the messages to each dimension. They order the answers to one record.
def _messages(
    job: Job, law: StarSubscribe, changes: RowChanges, dimension_number: int, columns: range
) -> pa.Table:
    """Return the messages to one dimension, numbered from 0, as the second stage reads them.

    ``columns``: the hash of the foreign key and its columns, as numbers in the input.
    """
    former = changes.pool.values(changes.old, columns)
    present = changes.pool.values(changes.new, columns)
    count = len(changes.event)
    sent = messages(
        changes.old != ABSENT,
        changes.new != ABSENT,
        any_null(former[1:], count),
        any_null(present[1:], count),
        rows_equal(former[1:], present[1:]),
        left_preserved=True,
    )
    change, begun = changes.in_order(sent.ends, sent.fresh)
    events, event = changes.events, changes.event[change]
    group = events.group[event]
    hash_, *foreign = old_or_new(former, present, change, begun)
    place_hash = events.hash[group]
    null = any_null(foreign, len(event))
    shape = job.sources[0].shape
    column_of = dict(enumerate(foreign, start=sum(law.widths[:dimension_number])))
    positions = np.arange(len(event)) + 1 + job.manifest.position
    table = {
        HASH: pa.array(np.where(null, place_hash, hash_.fill_null(0).to_numpy())),
        EVENT_TIME: pa.array(events.event_time_us[event]),
        DELETED: pa.array(~begun),
    }
    for index, type_ in enumerate(_foreign_types(shape.schema, shape.value_columns, law.widths)):
        column = column_of.get(index)
        table[foreign_name(index)] = pa.nulls(len(event), type_) if column is None else column
    primary = [field.name for field in shape.key_fields]
    table |= zip(primary, (key.take(pa.array(group)) for key in events.keys), strict=True)
    table[PLACE] = pa.array(place_hash)
    table[EPOCH] = pa.array(positions)
    instruction = MOVED | (dimension_number << DIMENSION_SHIFT)
    table[INSTRUCTION] = pa.array(np.full(len(event), instruction))
    table |= job.causes(events).of(event).arrays
    return pa.table(table)


def _foreign_types(schema: pa.Schema, values: range, widths: tuple[int, ...]) -> list[pa.DataType]:
    """Return the types of all columns of foreign keys, without those of their hashes."""
    types: list[pa.DataType] = []
    first = values.start
    for width in widths:
        types += [schema.field(n).type for n in range(first + 1, first + 1 + width)]
        first += 1 + width
    return types
