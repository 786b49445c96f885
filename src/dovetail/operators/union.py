"""Streams or tables read as one, on one bucket: all rows in the order of arrival (``UnionLaw``).

It has no store.
"""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import pyarrow as pa

from dovetail.arrays.timeline import ABSENT, timeline
from dovetail.base.columns import value_name
from dovetail.laws.joins.table_join import Changes
from dovetail.operators.emission import event_output_table
from dovetail.operators.job import Job, OperatorOutcome, take_rows
from dovetail.physical.specs.by_key import UnionLaw


def run(job: Job, _: UnionLaw) -> OperatorOutcome:
    """Emit each row of all sources, in the order of arrival; a tombstone stays one. Columns are
    matched by position. Nothing is stored. Return the changes as ``output``, None without rows.
    """
    if not job.any_rows:
        return OperatorOutcome(None, job.stores)
    sources = range(len(job.sources))
    events = timeline([job.source_rows(index) for index in sources])
    event = events.by_arrival()
    parts = [job.batches[n].rows.select(job.sources[n].shape.value_columns) for n in sources]
    first = np.array([0, *accumulate(len(part) for part in parts)])
    row = first[events.source[event]] + events.row[event]
    row = np.where(events.deleted[event], ABSENT, row)
    names = [value_name(0, index) for index in range(parts[0].num_columns)]
    values = pa.concat_tables(part.rename_columns(names) for part in parts).columns
    changes = Changes(
        event=event,
        present=row != ABSENT,
        reference=(row,),
        event_time_us=events.event_time_us[event],
    )
    return OperatorOutcome(
        event_output_table(job, events, changes, [take_rows(values, row)]), job.stores
    )
