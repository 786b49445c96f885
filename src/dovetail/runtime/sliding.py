"""Rows gathered by key and sliding window, on one bucket (``Gather`` over sliding windows).

Stored are the accumulators of each window and, as the windows of later records may hold them, the
records themselves, as long as a window with them may be open.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa

from dovetail.columns import EVENT_TIME, HASH, ROW
from dovetail.kernels.grouping import by_group_and_time
from dovetail.kernels.sliding import STORED, Windows, changed
from dovetail.kernels.timeline import Ints, Mask, Timeline, timeline
from dovetail.plan.spec import Gather
from dovetail.runtime.gather import Groups, Touched, state_store, timeline_of_windows
from dovetail.runtime.job import Done, Job, minus
from dovetail.state.history import HistoryState


def gather(job: Job, operator: Gather) -> Done:
    """What every record changes of its key's windows or, with ``emit="batch"``, the batch does."""
    if not job.any_rows:
        return Done(None, job.manifest.stores)
    windows = operator.windows
    assert windows is not None
    store, records = state_store(job, operator), _records(job, operator)
    events = timeline([job.rows(0)])
    closing_us = np.empty(len(events.row), np.int64)
    closing_us[events.arrival] = job.clocks_of(0, events) - windows.grace_us
    open_ = events.event_time_us + windows.size_us >= closing_us[events.arrival]
    held = _held(job, records, events, open_, windows.size_us)
    made = changed(held.group, held.time_us, held.arrival, closing_us, windows.size_us)
    touched = _touched(events, held, made, windows.size_us)
    groups = Groups.of(job, operator, touched, store)
    told = groups.net() if job.spec.emit == "batch" else groups.each()
    groups.keep(store)
    _keep(job, records, events, open_)
    late = len(open_) - int(np.count_nonzero(open_))
    return Done(
        told, (store.runs, records.runs), job.manifest.rows + len(open_), counts=Counter(late=late)
    )


class _Held:
    """Records by (group, time): stored ones that may share a window with the batch's, and those;
    ``row``: of each in ``rows``.
    """

    def __init__(self, rows: pa.Table, group: Ints, arrival: Ints, number: Ints) -> None:
        time_us = rows.column(EVENT_TIME).to_numpy()
        order = np.lexsort((number, time_us, group))
        self.rows, self.row = rows, order
        self.group, self.time_us = group[order], time_us[order]
        self.arrival, self.number = arrival[order], number[order]


def _held(job: Job, records: HistoryState, events: Timeline, open_: Mask, size_us: int) -> _Held:
    event = np.flatnonzero(open_)
    group, time = events.group[event], events.event_time_us[event]
    asked, start = np.unique(group, return_index=True)
    low = np.minimum.reduceat(time, start) if len(start) else start
    high = np.maximum.reduceat(time, start) if len(start) else start
    keys = [key.take(pa.array(asked)) for key in events.keys]
    found = records.between(events.hash[asked], keys, low - size_us - 1, high + size_us + 1)
    stored = found.rows.take(pa.array(found.row))
    rows = job.batches[0].rows.take(pa.array(events.row[event]))
    number = job.manifest.rows + events.arrival[event]
    fresh = _stored_rows(rows, number, records.schema)
    return _Held(
        pa.concat_tables([stored, fresh]).combine_chunks(),
        np.append(asked[found.query], group),
        np.append(np.full(len(stored), STORED), events.arrival[event]),
        np.append(stored.column(ROW).to_numpy(), number),
    )


def _touched(events: Timeline, held: _Held, made: Windows, size_us: int) -> Touched:
    """The windows as groups, each record that is added to one a touch."""
    start = made.start_us[made.window]
    owner = made.group[made.window]
    order = np.argsort(held.number[made.record], kind="stable")
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    touches = timeline_of_windows(
        [key.take(pa.array(owner)) for key in events.keys],
        events.hash[owner],
        (start, start + size_us),
        held.time_us[made.record],
        place,
    )
    window, record = made.window[touches.row], made.record[touches.row]
    arrival, since = held.arrival[record], made.since[window]
    told = np.flatnonzero((arrival != STORED) & (arrival >= since))
    moment = arrival[told]
    # A window that is there because of a record that is not in it: its last record before that.
    before = np.flatnonzero(made.apart[window] & (arrival < since))
    last = np.full(len(made.since), -1)
    last[window[before]] = before
    apart = last[last >= 0]
    told, moment = np.append(told, apart), np.append(moment, made.since[window[apart]])
    order = np.lexsort((made.start_us[window[told]], moment))
    row_of = np.empty(len(events.row), np.int64)
    row_of[events.arrival] = events.row
    return Touched(touches, held.rows, held.row[record], told[order], row_of[moment[order]])


def _records(job: Job, operator: Gather) -> HistoryState:
    assert operator.windows is not None
    schema, keys = job.spec.sources[0].schema, job.spec.keys
    own = [(HASH, pa.int64()), (EVENT_TIME, pa.int64()), (ROW, pa.int64())]
    reach_us = operator.windows.grace_us + operator.windows.size_us + 1
    return HistoryState(
        pa.schema([*own, *list(schema)[3:]]),
        range(3, 3 + keys),
        job.manifest.stores[1],
        job.blobs,
        job.cache,
        versioned=False,
        horizon_us=minus(job.final_us[0], reach_us),
    )


def _stored_rows(rows: pa.Table, number: Ints, schema: pa.Schema) -> pa.Table:
    own = [rows.column(HASH), rows.column(EVENT_TIME), pa.array(number)]
    return pa.table([*own, *rows.select(schema.names[3:]).columns], schema=schema)


def _keep(job: Job, records: HistoryState, events: Timeline, open_: Mask) -> None:
    """Store the records that a window may still want, drop those that none does."""
    event = np.flatnonzero(open_ & (events.event_time_us >= records.horizon_us))
    hash_ = events.hash[events.group[event]]
    event = event[by_group_and_time(hash_, events.event_time_us[event])]
    rows = job.batches[0].rows.take(pa.array(events.row[event]))
    number = job.manifest.rows + events.arrival[event]
    records.store(_stored_rows(rows, number, records.schema))
    records.expire(records.horizon_us)
