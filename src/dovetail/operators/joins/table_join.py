"""Tables joined by key, on one bucket: the law over the stored last rows (``TableJoinLaw``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from dovetail.arrays.equality import rows_equal
from dovetail.arrays.grouping import by_group_and_time
from dovetail.arrays.timeline import (
    ABSENT,
    NO_TIME,
    Ints,
    Mask,
    Timeline,
    last_of_source,
    timeline,
    versions,
)
from dovetail.base.columns import EVENT_TIME
from dovetail.laws.joins.table_join import Changes, StoredRows, join_tables, net_changes
from dovetail.laws.versioning import LATEST, batch_versions, newest, within_retention
from dovetail.operators.counts import Counts
from dovetail.operators.job import Done, Job, output, picked
from dovetail.physical.fragment import Operator
from dovetail.physical.specs.by_key import TableJoinLaw
from dovetail.plan.metrics import metric
from dovetail.state.history import HistoryState
from dovetail.state.run_state import Located
from dovetail.state.table_state import TableState

TableStore = TableState | HistoryState


def run(job: Job, law: TableJoinLaw) -> Done:
    """Emit every record's own result or, with ``emit="batch"``, each key's last one."""
    operator = job.operator
    sources = range(len(job.sources))
    stores = [job.table_store(source) for source in sources]
    if not job.any_rows:
        return Done(None, job.stores)
    events = timeline([job.rows(source) for source in sources])
    located = [latest(store, events) for store in stores]
    counted = {source: counts(job, events, source) for source in sources}
    current = {
        source: newest(events, counted[source], time_of(located[source]))
        for source in sources
        if job.sources[source].versioned_us is not None
    }
    stored = {
        source: StoredRows(table_rows.present, table_rows.event_time_us)
        for source, table_rows in enumerate(located)
    }
    times = {i: batch.rows.column(EVENT_TIME).to_numpy() for i, batch in enumerate(job.batches)}
    changes = join_tables(law.tree, events, stored, times, current)
    for source in sources:
        if job.sources[source].loose:
            has_effect = ~_says_nothing(events, source, stored[source], current.get(source))
            changes = changes.where(has_effect[changes.event])
    pools = [Pool(job.batches[source].rows, located[source], events.groups) for source in sources]
    if operator.emit == "batch":
        changes, before = net_changes(law.tree, events, stored, changes)
        changes = _differing(operator, law, pools, changes, before)
    elif law.distinct:
        changes, before = _with_previous(events, stored[0], changes, current.get(0))
        changes = _differing(operator, law, pools, changes, before)
    leaves = [
        pools[source].values(refs, job.sources[source].value_columns)
        for source, refs in zip(law.leaves, changes.reference, strict=True)
    ]
    result = emitted(job, events, changes, leaves)
    ignored = Counts()
    for source in sources:
        keep(job, source, stores[source], events, counted[source])
        count_ignored(ignored, job, source, events, counted[source], current.get(source))
    stored_runs = {n: s.runs for n, s in zip(operator.names, stores, strict=True)}
    return Done(result, stored_runs, counts=ignored)


def latest(store: TableStore, events: Timeline) -> Located:
    """Return the stored last row of each group."""
    if isinstance(store, TableState):
        return store.locate(events.hash, events.keys)
    return store.as_of(events.hash, events.keys, np.full(events.groups, LATEST))


def counts(job: Job, events: Timeline, source: int) -> Mask:
    """Find the events that are records of ``source`` and that its table takes: bool[events]."""
    retention_us = job.sources[source].versioned_us
    if retention_us is None or job.sources[source].in_order:
        return events.source == source  # type: ignore[no-any-return]
    return within_retention(events, source, job.clocks_of(source, events), retention_us)


def count_ignored(
    counts: Counts,
    job: Job,
    source: int,
    events: Timeline,
    taken: Mask,
    current: Mask | None = None,
) -> None:
    """Count the records of a versioned table that change nothing. They are not ``taken``, because
    they are older than its history; or they are not ``current``, if only each key's latest version
    is of use.

    Rows that a condition leaves out travel as tombstones, so tombstones of such a view are not
    counted.
    """
    spec, rows = job.sources[source], job.batches[source].rows
    if spec.versioned_us is None:
        return
    of_table = events.source == source
    if spec.loose:
        of_table &= ~events.deleted
    counts.add_rows(metric(spec.name, "too_old"), spec, rows, events.row[of_table & ~taken])
    if current is not None:
        counts.add_rows(
            metric(spec.name, "late"), spec, rows, events.row[of_table & taken & ~current]
        )


def keep(job: Job, source: int, store: TableStore, events: Timeline, counted: Mask) -> None:
    """Store a table's last row per key or, if it is versioned, each version."""
    if isinstance(store, TableState):
        stored_event = last_of_source(events, source)
    else:
        stored_event = batch_versions(events, counted).event
        hash_ = events.hash[events.group[stored_event]]
        stored_event = stored_event[by_group_and_time(hash_, events.event_time_us[stored_event])]
    rows = job.batches[source].rows.select(range(len(store.schema)))
    store.store(rows.take(pa.array(events.row[stored_event])))


@dataclass(frozen=True)
class Pool:
    """The rows that a source's references name: below ``base`` the located row of that query, from
    ``base`` on the rows of the batch.
    """

    rows: pa.Table
    located: Located
    base: int

    def values(self, refs: Ints, columns: Sequence[int]) -> list[pa.Array]:
        """Return columns at these references, null for ABSENT."""
        old = refs < self.base
        used = np.zeros(self.base + 1, dtype=np.bool_)
        used[refs[old]] = True
        stored = np.flatnonzero(used[: self.base])
        rows = self.rows.select(columns)
        index = refs - self.base
        if len(stored):
            stored_rows, gathered_row = self.located.gathered(stored, columns)
            index[~old] += len(stored_rows)
            index[old] = np.append(gathered_row, ABSENT)[(np.cumsum(used) - 1)[refs[old]]]
            rows = pa.concat_tables([stored_rows, rows])
        index[refs == ABSENT] = ABSENT
        return picked(rows.columns, index)


def time_of(located: Located) -> Ints:
    """Return the event time of each located row, a stored tombstone included; ``NO_TIME`` for
    none.
    """
    return np.where(located.segment >= 0, located.event_time_us, NO_TIME)


def changes_of(events: Timeline, event: Ints) -> Changes:
    """Return a change for each of some events of one table: it makes its own row, or deletes it."""
    deleted = events.deleted[event]
    reference = np.where(deleted, ABSENT, event)
    return Changes(event, ~deleted, events.event_time_us[event], (reference,))


def emitted(
    job: Job, events: Timeline, changes: Changes, leaves: Sequence[Sequence[pa.Array]]
) -> pa.Table | None:
    """Return the changes of a join by key as a table, None for none. ``leaves``: the values of each
    leaf.
    """
    if not len(changes.event):
        return None
    group = pa.array(events.group[changes.event])
    return output(
        job.operator,
        [key.take(group) for key in events.keys],
        leaves,
        changes.reference,
        deleted=~changes.present,
        event_time_us=changes.event_time_us,
        position=job.manifest.position,
        cause=job.causes(events).of(changes.event),
    )


def _says_nothing(events: Timeline, source: int, stored: StoredRows, current: Mask | None) -> Mask:
    """Find the events that are tombstones of keys without a row: bool[events]."""
    previous = versions(events, source, stored.present, current)[0]
    nothing: Mask = (events.source == source) & events.deleted & (previous == ABSENT)
    return nothing


def _with_previous(
    events: Timeline, stored: StoredRows, changes: Changes, current: Mask | None
) -> tuple[Changes, Changes]:
    """Return a single table's changes and the rows that they replace, if there is either."""
    previous = versions(events, 0, stored.present, current)[0][changes.event]
    before = replace(changes, present=previous != ABSENT, reference=(previous,))
    visible = changes.present | before.present
    return changes.where(visible), before.where(visible)


def _differing(
    operator: Operator, law: TableJoinLaw, pools: Sequence[Pool], changes: Changes, before: Changes
) -> Changes:
    """Keep the changes whose row differs from the one before, in presence or in any value."""
    equal = changes.present & before.present
    at = np.flatnonzero(equal)
    for leaf, source in enumerate(law.leaves):
        now, then = changes.reference[leaf][at], before.reference[leaf][at]
        equal[at] &= (now == ABSENT) == (then == ABSENT)
        values = operator.sources[source].value_columns
        if values:
            equal[at] &= rows_equal(
                pools[source].values(now, values), pools[source].values(then, values)
            )
    return changes.where(~equal)
