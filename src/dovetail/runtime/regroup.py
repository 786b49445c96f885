"""Before a table is gathered by other columns, on one bucket of its own keys: each change of a row
becomes the old row, which leaves its group, and the new one, which enters its own (``Regroup``).

Stored is each key's last row: its group and the columns that are gathered.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa

from dovetail.columns import DELETED, EVENT_TIME, HASH, INSTRUCTION, SEQUENCE, foreign_name
from dovetail.kernels.equality import rows_equal
from dovetail.kernels.grouping import any_null
from dovetail.kernels.regroup import SILENT, moves
from dovetail.kernels.timeline import ABSENT, timeline, versions
from dovetail.kernels.versioning import newest
from dovetail.plan.spec import Regroup
from dovetail.runtime import tables
from dovetail.runtime.job import Done, Job
from dovetail.runtime.tables import Pool, keep, latest, time_of


def run(job: Job, operator: Regroup) -> Done:
    """The rows that leave and enter groups, in the order of the records."""
    spec, source = job.spec, job.spec.sources[0]
    store = job.table_store(0)
    if not job.any_rows:
        return Done(None, job.manifest.stores)
    events = timeline([job.rows(0)])
    located = latest(store, events)
    counted = tables.counts(job, events, 0)
    current = None if source.versioned_us is None else newest(events, counted, time_of(located))
    before, after = versions(events, 0, located.present, current)
    event = np.arange(len(events.row)) if current is None else np.flatnonzero(current)
    old, new = before[event], after[event]
    pool = Pool(job.batches[0].rows, located, events.groups)
    held = range(3 + spec.keys, len(source.schema))
    group = slice(1, 1 + operator.foreign)
    former, present = pool.values(old, held), pool.values(new, held)
    said = moves(
        old != ABSENT,
        new != ABSENT,
        any_null(former[group], len(event)),
        any_null(present[group], len(event)),
        rows_equal(former[group], present[group]),
    )
    leaves, enters = np.flatnonzero(said.leaves), np.flatnonzero(said.enters)
    change = np.concatenate((leaves, enters))
    entering = np.arange(len(change)) >= len(leaves)
    # The old row leaves first.
    order = np.argsort(2 * events.arrival[event[change]] + entering)
    told = event[change[order]]
    hash_, *columns = (
        pa.concat_arrays([was.take(pa.array(leaves)), is_.take(pa.array(enters))]).take(
            pa.array(order)
        )
        for was, is_ in zip(former, present, strict=True)
    )
    silent = (said.silent[change] & ~entering)[order]
    names = [foreign_name(number) for number in range(operator.foreign)]
    names += source.schema.names[held.start + 1 + operator.foreign :]
    rows: dict[str, pa.Array] = {
        HASH: hash_,
        EVENT_TIME: pa.array(events.event_time_us[told]),
        DELETED: pa.array(~entering[order]),
        **dict(zip(names, columns, strict=True)),
        INSTRUCTION: pa.array(np.where(silent, SILENT, 0)),
    }
    if spec.feeds:
        rows[SEQUENCE] = pa.array(job.sequences(events)[told])
    keep(job, 0, store, events, counted)
    nowhere = (new != ABSENT) & any_null(present[group], len(event))
    counts = Counter(ungrouped=int(np.count_nonzero(nowhere)))
    return Done(pa.table(rows) if len(told) else None, (store.runs,), counts=counts)
