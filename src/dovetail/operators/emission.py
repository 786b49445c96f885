"""The changes of a bucket's keys as the table that an operator emits.

A law names the rows of its results by references; here they become columns. The key of a change is
that of its event's group, and its cause is that event's record. Operators whose results have other
keys call ``job.output_table`` themselves.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from dovetail.arrays.timeline import ABSENT, Ints, Timeline
from dovetail.laws.joins.table_join import Changes
from dovetail.operators.job import Job, output_table


def event_output_table(
    job: Job, events: Timeline, changes: Changes, leaves: Sequence[Sequence[pa.Array]]
) -> pa.Table | None:
    """Return ``changes`` in their order as a table of ``Operator.output_schema``, or None if there
    are none.

    ``events``: the batch's records by key and arrival. A change has the key of its event, and the
    event's record as cause. Positions go on from the manifest's. ``leaves``: for each leaf of the
    operator (a side whose values show) its value columns, one element per change, null for none.
    """
    if not len(changes.event):
        return None
    group = pa.array(events.group[changes.event])
    return output_table(
        job.operator,
        [key.take(group) for key in events.keys],
        leaves,
        changes.reference,
        deleted=~changes.present,
        event_time_us=changes.event_time_us,
        position=job.manifest.position,
        cause=job.event_causes(events).take(changes.event),
    )


def changes_at_events(events: Timeline, event: Ints) -> Changes:
    """Return one change for each of some events of a single table, in that order: the event puts
    its row in place, or deletes the key's row.

    ``events``: the batch's records by key and arrival. ``event``: int64[m], indices of events. A
    change's reference is the index of its event, ABSENT (-1) for a tombstone. Its time is the
    event's.
    """
    deleted = events.deleted[event]
    reference = np.where(deleted, ABSENT, event)
    return Changes(event, ~deleted, events.event_time_us[event], (reference,))
