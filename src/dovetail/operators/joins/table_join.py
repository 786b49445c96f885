"""Tables joined by key, on one bucket: the law over the stored last rows (``TableJoinLaw``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dovetail.arrays.equality import rows_equal
from dovetail.arrays.timeline import ABSENT, Mask, Timeline, timeline, versions_around
from dovetail.base.columns import EVENT_TIME
from dovetail.laws.joins.table_join import Changes, StoredRows, join_tables, net_changes
from dovetail.laws.versioning import find_latest_versions
from dovetail.operators.counts import Counts
from dovetail.operators.emission import event_output_table
from dovetail.operators.job import Job, OperatorOutcome
from dovetail.operators.tables import (
    Pool,
    count_ignored,
    find_accepted_events,
    locate_last_rows,
    located_times,
    store_rows,
)
from dovetail.physical.fragment import Operator
from dovetail.physical.specs.by_key import TableJoinLaw


def run(job: Job, law: TableJoinLaw) -> OperatorOutcome:
    """Emit the result after every record or, with ``emit="batch"``, each key's last result if its
    values differ from those before the batch. With ``law.distinct``, a result equal to the row that
    it replaces is left out. An input that may have spurious tombstones (``loose``) emits nothing
    for a tombstone of a key without a row. Store the rows of all tables, and count records without
    use and with a match.

    Without rows in the batch, emit nothing and leave the stores as they are. Return the changes as
    ``output``, with the stores and the counts.
    """
    operator = job.operator
    sources = range(len(job.sources))
    stores = [job.table_store(source) for source in sources]
    if not job.any_rows:
        return OperatorOutcome(None, job.stores)
    events = timeline([job.source_rows(source) for source in sources])
    located = [locate_last_rows(store, events) for store in stores]
    counted = {source: find_accepted_events(job, events, source) for source in sources}
    current = {
        source: find_latest_versions(events, counted[source], located_times(located[source]))
        for source in sources
        if job.sources[source].meaning.versioned_us is not None
    }
    stored = {
        source: StoredRows(table_rows.present, table_rows.event_time_us)
        for source, table_rows in enumerate(located)
    }
    times = {i: batch.rows.column(EVENT_TIME).to_numpy() for i, batch in enumerate(job.batches)}
    changes = join_tables(law.tree, events, stored, times, current)
    matched = _matched_events(events, changes)
    for source in sources:
        if job.sources[source].meaning.loose:
            has_effect = ~_empty_tombstones(events, source, stored[source], current.get(source))
            changes = changes.select(has_effect[changes.event])
    pools = [Pool(job.batches[source].rows, located[source], events.groups) for source in sources]
    if operator.emit == "batch":
        changes, before = net_changes(law.tree, events, stored, changes)
        changes = _differing_changes(operator, law, pools, changes, before)
    elif law.distinct:
        changes, before = _pair_with_previous(events, stored[0], changes, current.get(0))
        changes = _differing_changes(operator, law, pools, changes, before)
    leaves = [
        pools[source].columns_at(refs, job.sources[source].shape.value_columns)
        for source, refs in zip(law.leaves, changes.reference, strict=True)
    ]
    result = event_output_table(job, events, changes, leaves)
    ignored = Counts()
    for source in sources:
        if len(law.leaves) > 1:
            joins = (events.source == source) & ~events.deleted & current.get(source, True)
            ignored.add_matches(job.sources[source], matched[joins])
        store_rows(job, source, stores[source], events, counted[source])
        count_ignored(ignored, job, source, events, counted[source], current.get(source))
    stored_runs = {n: s.runs for n, s in zip(operator.names, stores, strict=True)}
    return OperatorOutcome(result, stored_runs, counts=ignored)


def _matched_events(events: Timeline, changes: Changes) -> Mask:
    """Find the events that have, among ``changes``, a result with a row of every table:
    bool[events].
    """
    whole = np.logical_and.reduce([refs != ABSENT for refs in changes.reference])
    matched = np.zeros(len(events.row), np.bool_)
    matched[changes.event[whole]] = True
    return matched


def _empty_tombstones(
    events: Timeline, source: int, stored: StoredRows, current: Mask | None
) -> Mask:
    """Find the events of the source with index ``source`` that are tombstones of keys without a
    row: bool[events]. Earlier events of the batch count, too: after a new row a tombstone is none
    of these.

    ``stored``: the table's rows before the batch, one per group (key of the batch). ``current``:
    bool[events], the events that change the current row of a versioned table; None for a table
    without versions, where all of the source do.
    """
    previous = versions_around(events, source, stored.present, current)[0]
    nothing: Mask = (events.source == source) & events.deleted & (previous == ABSENT)
    return nothing


def _pair_with_previous(
    events: Timeline, stored: StoredRows, changes: Changes, current: Mask | None
) -> tuple[Changes, Changes]:
    """Return ``changes`` of a single table, and the rows that they replace as changes of their own,
    one for each in the same order. Changes with neither a row after nor a row before are left out.

    ``current``: bool[events], the events that change the current row of a versioned table; None for
    a table without versions. ``stored``: the table's rows before the batch, one per group (key of
    the batch).
    """
    previous = versions_around(events, 0, stored.present, current)[0][changes.event]
    before = replace(changes, present=previous != ABSENT, reference=(previous,))
    visible = changes.present | before.present
    return changes.select(visible), before.select(visible)


def _differing_changes(
    operator: Operator, law: TableJoinLaw, pools: Sequence[Pool], changes: Changes, before: Changes
) -> Changes:
    """Return the changes whose row differs from that in ``before``, in presence or in any value, in
    their order. Null equals null, floats are compared by their bits, and times do not count. Two
    tombstones count as different. ``before`` has an element for each change. ``pools``: by source,
    the rows that the changes refer to.
    """
    equal = changes.present & before.present
    at = np.flatnonzero(equal)
    for leaf, source in enumerate(law.leaves):
        now, then = changes.reference[leaf][at], before.reference[leaf][at]
        equal[at] &= (now == ABSENT) == (then == ABSENT)
        values = operator.sources[source].shape.value_columns
        if values:
            equal[at] &= rows_equal(
                pools[source].columns_at(now, values), pools[source].columns_at(then, values)
            )
    return changes.select(~equal)
