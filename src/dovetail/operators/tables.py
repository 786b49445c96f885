"""The tables of a bucket: what their stores hold, and what a micro-batch makes of them.

Every operator that reads a table works on references (``arrays.timeline``) and looks values up at
the end. So this module has three parts: it locates stored rows, it gathers the values that
references name, and it stores the rows that a batch leaves.

- A group has at most one located row. It is the last one that earlier batches stored.
- A store is written once a batch, after all reads, in the order of its column.
- Only tables whose history is kept (``versioned_us``) refuse rows. Such a row is too old.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dovetail.arrays.grouping import by_group_and_time, stable_argsort
from dovetail.arrays.timeline import (
    ABSENT,
    NO_TIME,
    Ints,
    Mask,
    SourceRows,
    Timeline,
    last_of_source,
)
from dovetail.base.columns import DUE, EVENT_TIME, HASH
from dovetail.laws.versioning import LATEST, batch_versions, records_within_retention
from dovetail.operators.counts import Counts
from dovetail.operators.job import Job, combine_chunks, take_rows
from dovetail.plan.metrics import metric_name
from dovetail.state.history import HistoryState
from dovetail.state.queue import QueueState
from dovetail.state.run_state import Located
from dovetail.state.table_state import TableState

TableStore = TableState | HistoryState


def locate_last_rows(store: TableStore, events: Timeline) -> Located:
    """Return where the last stored row of the key of each group of ``events`` lies (``Located``):
    one element per group, not present without a stored row or for a stored tombstone.

    ``store``: the table's rows, which are read. In a store of versions the last row is the version
    of the latest time, not the last to arrive. ``events``: the batch's records by key (group) and
    arrival; rows of the batch do not count.
    """
    return locate_last_rows_of_keys(store, events.hash, events.keys)


def locate_last_rows_of_keys(store: TableStore, hash_: Ints, keys: Sequence[pa.Array]) -> Located:
    """Return where the last row of each key lies in ``store`` (``Located``): one element per key,
    not present without a stored row or for a stored tombstone.

    ``hash_``: int64[n], the hashes of the keys, non-decreasing. ``keys``: the key columns, n
    distinct keys; null equals null, and floats are compared by their bits. In a store of versions
    the last row is the version of the latest time, not the last to arrive.
    """
    if isinstance(store, TableState):
        return store.locate(hash_, keys)
    return store.find_as_of(hash_, keys, np.full(len(hash_), LATEST))


def queued_keys(waiting: pa.Table, *, numbered: bool = False) -> SourceRows:
    """Return the keys that were taken from a queue as rows without values, all with time and clock
    0 and not deleted.

    ``waiting``: rows of the queue, perhaps none, with ``_due``, ``_event_time`` and ``_hash``
    first, then the key columns. ``numbered``: True if the batch's own rows have a ``sequence``;
    these rows then have the sequence 0.
    """
    zeros = np.zeros(len(waiting), np.int64)
    return SourceRows(
        keys=[combine_chunks(column) for column in waiting.columns[3:]],
        hash=waiting.column(HASH).to_numpy(),
        event_time_us=zeros,
        deleted=zeros.astype(np.bool_),
        clock_us=zeros,
        sequence=zeros if numbered else None,
    )


def open_key_queue(job: Job, name: str) -> QueueState:
    """Open the queue ``name`` of keys of the job's first source, as it was before the batch. Keys
    due by the stream time before this batch have already left it.
    """
    system_fields = [(column, pa.int64()) for column in (DUE, EVENT_TIME, HASH)]
    schema = pa.schema([*system_fields, *job.sources[0].shape.key_fields])
    runs, taken_us = job.stored_runs(name), job.initial_us[0]
    return QueueState(schema, runs, job.blobs, job.cache, taken_us=taken_us)


def queue_keys(queue: QueueState, events: Timeline, group: Ints, due_us: Ints) -> None:
    """Put the keys of some groups of ``events`` into ``queue``. ``group``: int64, the indices of
    these groups. ``due_us``: int64[groups], the time in microseconds until which each key waits.
    """
    group = group[np.argsort(due_us[group], kind="stable")]
    columns = [due_us[group], due_us[group], events.hash[group]]
    keys = [key.take(pa.array(group)) for key in events.keys]
    queue.store(pa.table([*map(pa.array, columns), *keys], schema=queue.schema))


def located_times(located: Located) -> Ints:
    """Return the event time in microseconds of each row in ``located``, stored tombstones included:
    int64[keys]. It is ``NO_TIME`` for a key without a stored row.
    """
    return np.where(located.segment >= 0, located.event_time_us, NO_TIME)


@dataclass(frozen=True)
class Pool:
    """The rows that a source's references name: below ``base`` the stored row of the key with that
    index, from ``base`` on the rows of the batch.
    """

    rows: pa.Table
    """The source's rows of the batch."""
    located: Located
    """The stored rows, one key per reference below ``base``."""
    base: int
    """The reference to the first row of the batch."""

    def columns_at(self, refs: Ints, columns: Sequence[int]) -> list[pa.Array]:
        """Return the columns with the indices ``columns`` at the references ``refs``, int64[m]: m
        elements each, null for ABSENT (-1).

        Three keys, of which 0 and 2 have stored rows "y1" and "x0", and two rows of the batch:

        | reference | row                     | value |
        |-----------|-------------------------|-------|
        | 4         | row 1 of the batch      | n1    |
        | 0         | the stored one of key 0 | y1    |
        | ABSENT    | none                    | null  |
        | 2         | the stored one of key 2 | x0    |
        | 3         | row 0 of the batch      | n0    |

        A stored row is read once, however often it is named. The indices are the same in the store
        and in the batch. A key that is named must have a stored row.
        """
        old = refs < self.base
        used = np.zeros(self.base + 1, dtype=np.bool_)
        used[refs[old]] = True
        stored = np.flatnonzero(used[: self.base])
        rows = self.rows.select(columns)
        index = refs - self.base
        if len(stored):
            stored_rows, gathered_row = self.located.fetch_by_segment(stored, columns)
            index[~old] += len(stored_rows)
            index[old] = np.append(gathered_row, ABSENT)[(np.cumsum(used) - 1)[refs[old]]]
            rows = pa.concat_tables([stored_rows, rows])
        index[refs == ABSENT] = ABSENT
        return take_rows(rows.columns, index)


def find_accepted_events(job: Job, events: Timeline, source: int) -> Mask:
    """Return a mask of the events of the source with index ``source`` that its table takes:
    bool[events]. ``events``: the batch's records of all sources, by key and arrival.

    Only a versioned table refuses any: records further behind its stream time, their own time
    included, than its history retention. A source that is ``in_order``, whose times never go back,
    refuses none. A record exactly as old as the retention is taken.
    """
    retention_us = job.sources[source].meaning.versioned_us
    if retention_us is None or job.sources[source].meaning.in_order:
        return events.source == source  # type: ignore[no-any-return]
    return records_within_retention(
        events, source, job.clock_at_events(source, events), retention_us
    )


def count_ignored(
    counts: Counts,
    job: Job,
    source: int,
    events: Timeline,
    taken: Mask,
    current: Mask | None = None,
) -> None:
    """Add to ``counts`` the records of the source with index ``source`` that change nothing. Do
    nothing unless it is a versioned table. ``events``: the batch's records of all sources, by key
    and arrival.

    - As ``too_old``: records that are not ``taken``, bool[events], since they are older than the
      history.
    - As ``late``: taken records that are not ``current``, bool[events], so not the latest version.
      None counts none of these.

    If the source may have spurious tombstones (``loose``), its tombstones are not counted.
    """
    spec, rows = job.sources[source], job.batches[source].rows
    if spec.meaning.versioned_us is None:
        return
    of_table = events.source == source
    if spec.meaning.loose:
        of_table &= ~events.deleted
    counts.add_rows(metric_name(spec.name, "too_old"), spec, rows, events.row[of_table & ~taken])
    if current is not None:
        counts.add_rows(
            metric_name(spec.name, "late"), spec, rows, events.row[of_table & taken & ~current]
        )


def store_rows(job: Job, source: int, store: TableStore, events: Timeline, counted: Mask) -> None:
    """Write the batch's rows of the source with index ``source`` to its ``store``: the last event
    per key, tombstones included, or each version if the table is versioned. Call it once a batch,
    after all reads.

    ``store``: its columns are the first of the source's. ``events``: the batch's records of all
    sources, by key and arrival. ``counted``: bool[events], the events that become versions; it is
    used for a versioned table only.
    """
    rows = job.batches[source].rows
    if isinstance(store, TableState):
        stored_event = last_of_source(events, source)
    else:
        stored_event = batch_versions(events, counted).event
    hash_ = rows.column(HASH).to_numpy()[events.row[stored_event]]
    order = stable_argsort(hash_)
    stored_event, hash_ = stored_event[order], hash_[order]
    if not isinstance(store, TableState):
        stored_event = stored_event[by_group_and_time(hash_, events.event_time_us[stored_event])]
    rows = rows.select(range(len(store.schema)))
    store.store(rows.take(pa.array(events.row[stored_event])))
