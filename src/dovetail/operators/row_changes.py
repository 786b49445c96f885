"""What a batch changes of one table's rows, for the stages that send it on under other keys
(``Retract``, ``Subscribe``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dovetail.arrays.timeline import Ints, Mask, Timeline, timeline, versions
from dovetail.laws.versioning import newest
from dovetail.operators.counts import Counts
from dovetail.operators.job import Job
from dovetail.operators.table_join import (
    Pool,
    TableStore,
    count_ignored,
    counts,
    keep,
    latest,
    time_of,
)


@dataclass(frozen=True)
class RowChanges:
    """The changes of the only source's rows, by the ``event`` of each; ``old``, ``new``: the row
    before and after in ``pool``, ABSENT for none. Of a versioned table only those of the latest
    version, ``current``, are changes; ``counted``: the events that it takes.
    """

    events: Timeline
    event: Ints
    old: Ints
    new: Ints
    pool: Pool
    counted: Mask
    current: Mask | None

    @classmethod
    def of(cls, job: Job, store: TableStore) -> RowChanges:
        """Those of a batch, ``store`` holding the rows before it."""
        events = timeline([job.rows(0)])
        located = latest(store, events)
        counted = counts(job, events, 0)
        current = None
        if job.sources[0].versioned_us is not None:
            current = newest(events, counted, time_of(located))
        before, after = versions(events, 0, located.present, current)
        event = np.arange(len(events.row)) if current is None else np.flatnonzero(current)
        pool = Pool(job.batches[0].rows, located, events.groups)
        return cls(events, event, before[event], after[event], pool, counted, current)

    def in_order(self, of_old: Mask, of_new: Mask) -> tuple[Ints, Mask]:
        """What is emitted of old rows and of new ones, in the order of the records, of the old row
        first: the number of the change, and whether it is the new row.
        """
        change = np.concatenate((np.flatnonzero(of_old), np.flatnonzero(of_new)))
        is_new = np.arange(len(change)) >= np.count_nonzero(of_old)
        order = np.argsort(2 * self.events.arrival[self.event[change]] + is_new)
        return change[order], is_new[order]

    def keep(self, job: Job, store: TableStore) -> Counts:
        """Store the rows after the batch; what is counted of those that change nothing."""
        keep(job, 0, store, self.events, self.counted)
        ignored = Counts()
        count_ignored(ignored, job, 0, self.events, self.counted, self.current)
        return ignored


def emitted(
    old: Sequence[pa.Array], new: Sequence[pa.Array], change: Ints, is_new: Mask
) -> list[pa.Array]:
    """Of columns that hold each change's old and new values, those that are emitted."""
    index = pa.array(change + np.where(is_new, len(old[0]), 0))
    return [pa.concat_arrays([was, is_]).take(index) for was, is_ in zip(old, new, strict=True)]
