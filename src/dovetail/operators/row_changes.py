"""A batch's changes of one table's rows, for stages that send them on under other keys
(``RetractLaw``, ``SubscribeLaw``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dovetail.arrays.grouping import argsort_distinct
from dovetail.arrays.timeline import Ints, Mask, Timeline, timeline, versions_around
from dovetail.laws.versioning import find_latest_versions
from dovetail.operators.counts import Counts
from dovetail.operators.job import Job
from dovetail.operators.tables import (
    Pool,
    TableStore,
    count_ignored,
    find_accepted_events,
    locate_last_rows,
    located_times,
    store_rows,
)


@dataclass(frozen=True)
class RowChanges:
    """The changes that records make to the rows of an operator's only source."""

    events: Timeline
    """The records of the only source, by key and then by arrival."""
    event: Ints
    """int64[changes]: the index in ``events`` of each change's event."""
    old: Ints
    """The row before each change, a reference into ``pool``; ABSENT for none."""
    new: Ints
    """The row after each change, a reference into ``pool``; ABSENT for none."""
    pool: Pool
    """The stored row of each key, then the rows of the batch."""
    counted: Mask
    """The events that the table takes."""
    current: Mask | None
    """The events that are the latest version of their key. Of a versioned table only these are
    changes; None for other tables.
    """

    @classmethod
    def read_batch(cls, job: Job, store: TableStore) -> RowChanges:
        """Return one change per record of the only source, by (key, arrival). For a versioned
        source, only records that are the latest version of their key are changes. Nothing is
        stored.

        ``store``: the rows before the batch, from which the old row of each key is read. A
        tombstone for a key without a row is a change, too, ABSENT before and after. So is a row
        equal to the one before it.
        """
        events = timeline([job.source_rows(0)])
        located = locate_last_rows(store, events)
        counted = find_accepted_events(job, events, 0)
        current = None
        if job.sources[0].meaning.versioned_us is not None:
            current = find_latest_versions(events, counted, located_times(located))
        before, after = versions_around(events, 0, located.present, current)
        event = np.arange(len(events.row)) if current is None else np.flatnonzero(current)
        pool = Pool(job.batches[0].rows, located, events.groups)
        return cls(events, event, before[event], after[event], pool, counted, current)

    def rows_in_order(self, of_old: Mask, of_new: Mask) -> tuple[Ints, Mask]:
        """Put the old rows that ``of_old`` marks and the new rows that ``of_new`` marks in the
        order of the records. A record's old row comes before its new one. Return the index of each
        row's change, int64, and a mask, true if the row is the change's new one.

        The masks are bool[changes], or bool[k * changes] with the flags of all changes for one
        reader after another. Then rows come reader by reader, those of each in this order. The
        index of a change is then ``reader * changes + change``, with readers from 0.
        """
        change = np.concatenate((np.flatnonzero(of_old), np.flatnonzero(of_new)))
        is_new = np.arange(len(change)) >= np.count_nonzero(of_old)
        arrival, count = self.events.arrival, max(len(self.event), 1)
        repetition, row_change = np.divmod(change, count)
        place = repetition * len(arrival) + arrival[self.event[row_change]]
        order = argsort_distinct(2 * place + is_new, 2 * len(arrival) * (len(of_old) // count))
        return change[order], is_new[order]

    def store_rows(self, job: Job, store: TableStore) -> Counts:
        """Store the last row of each key or, for a versioned table, each version in ``store``, the
        one given to ``read_batch``. Return the counts of records that change nothing, too old or
        late; only a versioned table has any.
        """
        store_rows(job, 0, store, self.events, self.counted)
        ignored = Counts()
        count_ignored(ignored, job, 0, self.events, self.counted, self.current)
        return ignored


def take_old_or_new(
    old: Sequence[pa.Array], new: Sequence[pa.Array], change: Ints, is_new: Mask
) -> list[pa.Array]:
    """Return for each element of ``change`` the new value if ``is_new`` is true, else the old one,
    column by column.

    ``old``, ``new``: at least one column each, equally many, one element per change of the batch.
    ``change``: int64[m], indices of changes. ``is_new``: bool[m].
    """
    index = pa.array(change + np.where(is_new, len(old[0]), 0))
    return [pa.concat_arrays([was, is_]).take(index) for was, is_ in zip(old, new, strict=True)]
