"""The changes of a table, each with the row before it and the row after it, on one bucket
(``ToChangesLaw``). The store holds each key's last row.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from dovetail.arrays.equality import rows_equal
from dovetail.arrays.timeline import ABSENT
from dovetail.laws.to_changes import before_and_after_rows
from dovetail.operators.job import Job, OperatorOutcome, output_table
from dovetail.operators.row_changes import RowChanges, take_old_or_new
from dovetail.physical.specs.by_key import ToChangesLaw


def run(job: Job, law: ToChangesLaw) -> OperatorOutcome:
    """Emit the row before and the row after each change that makes a difference, in the order of
    the records; neither is a tombstone. A last column has the kind of each as text (``law.kinds``).

    Each key's last row is stored. A change to an equal row, or a tombstone for a key without a row,
    emits nothing. Without rows in the batch, emit nothing and leave the store as it is. Return the
    emitted rows as ``output``, with the store and the counts.
    """
    store = job.table_store(0)
    if not job.any_rows:
        return OperatorOutcome(None, job.stores)
    changes = RowChanges.read_batch(job, store)
    refs, columns = (changes.old, changes.new), job.sources[0].shape.value_columns
    former, present = (changes.pool.columns_at(side_refs, columns) for side_refs in refs)
    same = rows_equal(former, present) if columns else np.ones(len(changes.event), np.bool_)
    emissions = before_and_after_rows(changes.old != ABSENT, changes.new != ABSENT, same)
    change, is_new = changes.rows_in_order(emissions.before, emissions.after)
    kind = np.where(is_new, emissions.kind_after[change], emissions.kind_before[change])
    event = changes.event[change]
    group = pa.array(changes.events.group[event])
    values = take_old_or_new(former, present, change, is_new) if columns else []
    table = output_table(
        job.operator,
        [key.take(group) for key in changes.events.keys],
        [[*values, pa.array(law.kinds, pa.string()).take(pa.array(kind))]],
        [change],
        deleted=np.zeros(len(event), np.bool_),
        event_time_us=changes.events.event_time_us[event],
        position=job.manifest.position,
        cause=job.event_causes(changes.events).take(event),
    )
    ignored = changes.store_rows(job, store)
    stores = {job.operator.names[0]: store.runs}
    return OperatorOutcome(table if len(event) else None, stores, counts=ignored)
