"""A stream without repeated records, on one bucket (``DeduplicateLaw``).

The store holds keys and times of emitted records. They are kept for twice ``within`` behind stream
time, as long as a record that is not late may lie near them. A record is *late* if it is further
than ``within`` behind stream time. A late record is dropped, because it is no longer known whether
it repeats another. A record with a null in its key repeats none.

Source: spec/view.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from dovetail.arrays.grouping import any_null, by_group_and_time, start_mask
from dovetail.arrays.timeline import Ints, Timeline, timeline
from dovetail.base.columns import EVENT_TIME, HASH
from dovetail.laws.deduplicate import find_first_records, find_near
from dovetail.laws.joins.table_join import Changes
from dovetail.operators.counts import Counts
from dovetail.operators.emission import event_output_table
from dovetail.operators.job import Job, OperatorOutcome, subtract_span, take_rows
from dovetail.physical.specs.by_key import DeduplicateLaw
from dovetail.plan.metrics import MetricKind, metric_name
from dovetail.state.history import HistoryState


def run(job: Job, law: DeduplicateLaw) -> OperatorOutcome:
    """Emit the records that are not late and repeat no emitted one, in the order of arrival. A
    record repeats another of its key if their times are at most ``law.within_us`` apart.

    A record more than ``law.within_us`` behind stream time, its own time included, is late. One
    with a null in its key repeats none and is never late; it is emitted and not stored. Keys and
    times of other emitted records are stored. A record that is not emitted is counted as ``late``
    or, if it is not late, as ``repeated``. Without rows in the batch, emit and store nothing.
    Return the changes as ``output``, with the store and the counts.
    """
    (name,) = job.operator.names
    store = _open_store(job, name, law)
    if not job.any_rows:
        return OperatorOutcome(None, job.stores)
    events = timeline([job.source_rows(0)])
    group, time_us = events.group, events.event_time_us
    null = any_null(events.keys, events.groups)[group]
    late = ~null & (time_us < job.clock_at_events(0, events) - law.within_us)
    asked = np.flatnonzero(~null & ~late)
    known_group, known_us = _nearby_records(store, events, asked, law.within_us)
    repeated = find_near(group[asked], time_us[asked], known_group, known_us, law.within_us)
    fresh = asked[~repeated]
    event = fresh[find_first_records(group[fresh], time_us[fresh], law.within_us)]
    counts, source, rows = Counts(), job.sources[0], job.batches[0].rows
    comes_out = np.isin(asked, event, assume_unique=True)
    left_out: dict[MetricKind, Ints] = {"late": np.flatnonzero(late), "repeated": asked[~comes_out]}
    for kind, which in left_out.items():
        counts.add_rows(metric_name(source.name, kind), source, rows, events.row[which])
    _store_records(store, events, event)
    event = np.append(event, np.flatnonzero(null))
    event = event[events.by_arrival(event)]
    row = events.row[event]
    changes = Changes(
        event=event,
        present=np.ones(len(event), np.bool_),
        reference=(row,),
        event_time_us=time_us[event],
    )
    values = job.batches[0].rows.select(job.sources[0].shape.value_columns).columns
    return OperatorOutcome(
        event_output_table(job, events, changes, [take_rows(values, row)]),
        {name: store.runs},
        counts=counts,
    )


def _open_store(job: Job, name: str, law: DeduplicateLaw) -> HistoryState:
    """Open the store named ``name`` of emitted records, as it was before the batch: ``_hash``,
    ``_event_time``, then the key columns. Records more than twice ``law.within_us`` behind the
    final stream time are of no use.
    """
    source = job.sources[0]
    system_fields = [(column, pa.int64()) for column in (HASH, EVENT_TIME)]
    schema = pa.schema([*system_fields, *source.shape.key_fields])
    keys = range(len(system_fields), len(schema))
    horizon_us = subtract_span(job.final_us[0], 2 * law.within_us)
    return HistoryState(
        schema,
        keys,
        job.stored_runs(name),
        job.blobs,
        job.cache,
        versioned=False,
        horizon_us=horizon_us,
    )


def _nearby_records(
    store: HistoryState, events: Timeline, asked: Ints, within_us: int
) -> tuple[Ints, Ints]:
    """Return the group and the time in microseconds of stored records that lie near the ``asked``
    events: int64[m] each, in no particular order.

    ``store``: the emitted records. ``events``: the batch's records by key (group) and arrival.
    ``asked``: int64, ascending indices of events. For each of their groups, stored records are
    returned from ``within_us`` before its first asked time to ``within_us`` after its last. Both
    ends are included.
    """
    group, time_us = events.group[asked], events.event_time_us[asked]
    start = np.flatnonzero(start_mask(group))
    low, high = (
        bound.reduceat(time_us, start) if len(start) else start
        for bound in (np.minimum, np.maximum)
    )
    groups = group[start]
    keys = [key.take(pa.array(groups)) for key in events.keys]
    matches = store.find_between(events.hash[groups], keys, low - within_us, high + within_us)
    return groups[matches.query], matches.rows.column(EVENT_TIME).to_numpy()[matches.row]


def _store_records(store: HistoryState, events: Timeline, event: Ints) -> None:
    """Put hash, time and key of the events with the indices ``event`` into ``store``, as emitted
    records. Drop sorted runs whose records are all older than the store's horizon, also without
    events.
    """
    hash_, time_us = events.hash[events.group[event]], events.event_time_us[event]
    order = by_group_and_time(hash_, time_us)
    group = pa.array(events.group[event][order])
    columns = [pa.array(hash_[order]), pa.array(time_us[order])]
    columns += [key.take(group) for key in events.keys]
    store.store(pa.table(columns, schema=store.schema))
    store.expire(store.horizon_us)
