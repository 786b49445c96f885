"""Histories whose times never go back: a key's rows arrive in the order in which they hold.

Such a table (``SourceSpec.in_order``) takes a change at the change's own time. If its key's history
ends later, the change takes effect at that end. So the row that arrived last is always the latest
version.

| row   | own time | takes effect |
|-------|----------|--------------|
| a     | 10       | 10           |
| gone  | 30       | 30           |
| b     | 20       | 30           |
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from dovetail.arrays.timeline import timeline
from dovetail.base.columns import EVENT_TIME
from dovetail.laws.windows.fixed import running_max
from dovetail.operators.job import Batch, Job
from dovetail.operators.joins.subscriptions import RightStores
from dovetail.operators.tables import locate_last_rows, located_times
from dovetail.physical.specs.foreign_key import ForeignKeyJoinLaw


def with_times_in_order(job: Job) -> Job:
    """Return the job with event times raised in its sources that are ``in_order``, whose histories
    never go back in time. A row's time becomes the latest time of its key up to that row, its own
    included, in microseconds. Deletes count, and so do stored rows and stored deletes. Rows keep
    their order.

    Stores are only read, and ``job`` is not changed. Other sources, and sources without rows, stay
    as they are.
    """
    batches = [
        _batch_in_order(job, source) if spec.meaning.in_order and len(batch.rows) else batch
        for source, (spec, batch) in enumerate(zip(job.sources, job.batches, strict=True))
    ]
    return replace(job, batches=batches)


def _batch_in_order(job: Job, source: int) -> Batch:
    """Return the batch of the source with index ``source`` with event times raised. A row's time
    becomes the latest time of its key up to that row, in microseconds. Deletes count, and so do
    stored rows and stored deletes. For a key without any, only the batch counts. Rows keep their
    order and their other columns. The batch must have a row.

    The store of the source's table is only read. In a join by foreign key the source must be the
    right side, which has that store. ``job`` is not changed.
    """
    events = timeline([job.source_rows(source)])
    if isinstance(job.operator.law, ForeignKeyJoinLaw):
        located = RightStores.open_stores(job).locate_last_rows(events)
    else:
        located = locate_last_rows(job.table_store(source), events)
    stored_us = located_times(located)
    time_us = np.empty(len(events.row), np.int64)
    time_us[events.row] = running_max(events.event_time_us, events.start, events.group, stored_us)
    batch = job.batches[source]
    time_column = batch.rows.schema.get_field_index(EVENT_TIME)
    return replace(batch, rows=batch.rows.set_column(time_column, EVENT_TIME, pa.array(time_us)))
