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
    """Return ``changes`` as a table of ``Operator.output_schema``, or None if there are none. Their
    keys are those of their events. They keep their order; positions go on from the manifest's.

    ``leaves``: per leaf of the operator, its value columns, one row per change.
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
    """Return a change for each of the events ``event`` of a single table, in that order: the event
    puts its row in place, or deletes the key's row. The reference is the event's number, ABSENT for
    a tombstone.
    """
    deleted = events.deleted[event]
    reference = np.where(deleted, ABSENT, event)
    return Changes(event, ~deleted, events.event_time_us[event], (reference,))
