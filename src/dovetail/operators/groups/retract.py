"""The stage before a table is grouped by other columns, on one bucket of its own keys
(``RetractLaw``). A changed row becomes two messages: the old row leaves its group, and the new one
enters its own.

The store holds each key's last row: its group and the aggregated columns.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from dovetail.arrays.equality import rows_equal
from dovetail.arrays.grouping import any_null
from dovetail.arrays.timeline import ABSENT
from dovetail.base.columns import DELETED, EVENT_TIME, HASH, INSTRUCTION
from dovetail.laws.retract import SILENT, retract_messages
from dovetail.operators.job import Job, OperatorOutcome
from dovetail.operators.row_changes import RowChanges, take_old_or_new
from dovetail.physical.specs.groups import RetractLaw
from dovetail.plan.metrics import metric_name


def run(job: Job, _: RetractLaw) -> OperatorOutcome:
    """Emit the messages by which rows leave and enter groups, in the order of the records. For each
    record, the key's former row leaves its group, as a tombstone with the old values. Then the new
    row, if the record has one, enters its group.

    Both messages are sent even if the row stays as it was. If both go to one group, the tombstone
    is marked silent (``_instruction``): only the second one emits a result. Of a versioned table,
    only records that are the latest version of their key send messages.

    Of each key's last row, its group and the aggregated columns are stored. Of a versioned table
    these are stored of each version. Rows with a null in the group's columns enter no group, and
    are counted as ``null_group``. Without rows in the batch, emit nothing and leave the store as it
    is. Return the messages as ``output``, None for none, with the store and the counts.
    """
    source = job.sources[0]
    shape = source.shape
    store = job.table_store(0)
    if not job.any_rows:
        return OperatorOutcome(None, job.stores)
    changes = RowChanges.read_batch(job, store)
    row_columns = range(shape.foreign_columns.start, len(shape.schema))
    former = changes.pool.columns_at(changes.old, row_columns)
    present = changes.pool.columns_at(changes.new, row_columns)
    group = slice(1, 1 + shape.foreign)
    nowhere = any_null(present[group], len(changes.event))
    group_moves = retract_messages(
        changes.old != ABSENT,
        changes.new != ABSENT,
        any_null(former[group], len(changes.event)),
        nowhere,
        rows_equal(former[group], present[group]),
    )
    change, enters = changes.rows_in_order(group_moves.leaves, group_moves.enters)
    event = changes.event[change]
    hash_, *columns = take_old_or_new(former, present, change, enters)
    names = [field.name for field in shape.fields(row_columns)][1:]
    rows: dict[str, pa.Array] = {
        HASH: hash_,
        EVENT_TIME: pa.array(changes.events.event_time_us[event]),
        DELETED: pa.array(~enters),
        **dict(zip(names, columns, strict=True)),
        INSTRUCTION: pa.array(np.where(group_moves.silent[change] & ~enters, SILENT, 0)),
    }
    rows |= job.event_causes(changes.events).take(event).arrays
    counts = changes.store_rows(job, store)
    lost = changes.event[(changes.new != ABSENT) & nowhere]
    rows_lost = changes.events.row[lost]
    counts.add_rows(metric_name(source.name, "null_group"), source, job.batches[0].rows, rows_lost)
    stores = {job.operator.names[0]: store.runs}
    return OperatorOutcome(pa.table(rows) if len(event) else None, stores, counts=counts)
