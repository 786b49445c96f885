"""The groups that a micro-batch updates, with their accumulators: read, updated and stored.

Aggregations by key and by windows share it. They differ in how they assign rows to groups, and in
the updates after which a result is emitted (``BatchUpdates``).

- The stores hold each group's accumulators, never its rows.
- A group is stored with its time and its count of rows. It is present while that is not 0.
- All groups of a batch are updated at once, by ``aggregates``: results of single updates are
  computed only if they are emitted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa

from dovetail.aggregates.aggregate import (
    Aggregate,
    AggregateError,
    GroupUpdates,
    TracedAccumulators,
)
from dovetail.aggregates.collect import LastRow
from dovetail.aggregates.multiset import list_sizes
from dovetail.arrays.equality import rows_equal
from dovetail.arrays.hashing import stable_hash
from dovetail.arrays.timeline import (
    ABSENT,
    NO_TIME,
    Ints,
    Mask,
    SourceRows,
    Timeline,
    timeline,
)
from dovetail.base.columns import DELETED, EVENT_TIME, HASH
from dovetail.errors import DataError
from dovetail.laws.windows.fixed import running_max
from dovetail.operators.counts import Counts
from dovetail.operators.groups.long_lists import ListsRead, Parts
from dovetail.operators.job import Job, output_table, subtract_span, take_rows
from dovetail.operators.tables import Pool
from dovetail.physical.specs.groups import WINDOW_TYPE, AggregationLaw
from dovetail.plan.metrics import metric_name
from dovetail.state.table_state import TableState

Columns: TypeAlias = Sequence[pa.Array]


GROUP_TIME, _COUNT = "_time", "_count"


def accumulator_name(column: int, part: int) -> str:
    """Return the name of a stored accumulator column, ``_a<column>_<part>``.

    ``column``: the index of the result column in the law, from 0. ``part``: the index of the
    accumulator's column in ``kernel.state``, from 0.
    """
    return f"_a{column}_{part}"


def open_accumulator_store(job: Job, law: AggregationLaw) -> TableState:
    """Open the store of the law's accumulators, a row per group, as it was before the batch. A
    group is a key, or a key and its window.

    Its columns are ``_hash``, ``_event_time``, ``_deleted``, the key, ``_time``, ``_count`` and the
    accumulators. ``_time`` is the group's time, ``_count`` its count of rows. With windows, the key
    ends with the window's start and end, and ``_event_time`` is the end. Then the store drops rows
    whose window ended more than ``wait_us`` before the final stream time.
    """
    windows = law.windows
    horizon_us = NO_TIME if windows is None else subtract_span(job.final_us[0], windows.wait_us)
    key = job.operator.key
    schema = pa.schema(
        [
            (HASH, pa.int64()),
            (EVENT_TIME, pa.int64()),
            (DELETED, pa.bool_()),
            *key,
            (GROUP_TIME, pa.int64()),
            (_COUNT, pa.int64()),
            *(
                (accumulator_name(column_index, part), type_)
                for column_index, column in enumerate(law.columns)
                for part, type_ in enumerate(column.kernel.state)
            ),
        ]
    )
    return TableState(
        schema, len(key), job.stored_runs(law.GROUPS), job.blobs, job.cache, horizon_us=horizon_us
    )


@dataclass(frozen=True)
class BatchUpdates:
    """The updates of groups in a batch."""

    events: Timeline
    """The updates, one row's update of one group each, by group and then by arrival."""
    values: Sequence[Columns]
    """Per column, the values that the updates bring."""
    emitted: Ints
    """The updates after which a result is emitted, in the order of the results."""
    cause: Ints
    """int64, one per element of ``emitted``: the batch's row that causes the result."""
    late: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """The batch's rows that came for closed windows, once for each such window."""


def aggregated_values(job: Job, law: AggregationLaw, rows: pa.Table, row: Ints) -> list[Columns]:
    """Return the columns that each aggregate of ``law`` takes: for each result column a list of
    value columns, one element per row; an empty list for an aggregate of none, such as a count.

    ``rows``: the batch's rows, or stored ones with the same columns. ``row``: int64[m], the indices
    of the rows to take, in order.
    """
    first = job.sources[0].shape.value_columns.start
    return [
        take_rows([rows.column(first + value_index) for value_index in column.values], row)
        for column in law.columns
    ]


def timeline_of_windows(
    keys: Sequence[pa.Array],
    hash_: Ints,
    window: tuple[Ints, Ints],
    event_time_us: Ints,
    sequence: Ints,
) -> Timeline:
    """Build a timeline whose groups are pairs of a key and a window. Its events are updates of
    windows, ordered by ``sequence`` within a group. The group's keys end with the window's start
    and end.

    - ``keys``: the key columns, a row per update, in any order, perhaps none.
    - ``hash_``: int64[updates], the hash of the key alone.
    - ``window``: starts and exclusive ends in microseconds, int64[updates] each. Windows of one key
      and start have one end.
    - ``event_time_us``: int64[updates], the times of the rows that update.
    - ``sequence``: int64[updates], the order of processing.
    """
    rows = SourceRows(
        keys=[*keys, pa.array(window[0])],
        hash=stable_hash([pa.array(hash_), pa.array(window[0])]),
        event_time_us=event_time_us,
        deleted=np.zeros(len(hash_), np.bool_),
        clock_us=sequence,
        sequence=sequence,
    )
    events = timeline([rows])
    first = events.row[events.start]
    return replace(events, keys=[*events.keys[:-1], *window_bounds(*(at[first] for at in window))])


def window_bounds(start: Ints, end: Ints) -> list[pa.Array]:
    """Return the two key columns of n windows, start and end, as UTC timestamps of microseconds.
    ``start``, ``end``: int64[n], microseconds.
    """
    return [pa.array(at, pa.int64()).cast(WINDOW_TYPE) for at in (start, end)]


@dataclass(frozen=True)
class UpdatedGroups:
    """The groups that a batch updates, in the order of the groups of ``updated.events``."""

    job: Job
    law: AggregationLaw
    updated: BatchUpdates
    before: GroupsBefore
    state: Sequence[Columns]
    """Per column, the accumulators after the batch."""
    time_us: Ints
    """int64[updates]: the group's time after each update, arbitrary after one that is neither
    its last nor emitted.
    """
    count: Ints
    """int64[updates]: the count of rows in the group after each update; arbitrary like
    ``time_us``.
    """
    last: Ints
    """int64[groups]: the index of each group's last update."""
    lists: Sequence[tuple[Parts, ListsRead, TracedAccumulators]] = ()
    """The columns whose lists may lie in parts: the column's parts, what was read, and what became
    of it.
    """

    @classmethod
    def aggregate_batch(
        cls,
        job: Job,
        law: AggregationLaw,
        updated: BatchUpdates,
        store: TableState,
        parts: Sequence[Parts],
    ) -> UpdatedGroups:
        """Aggregate the batch's updates over the groups in ``store``, and return the groups with
        their accumulators, times and counts of rows. Nothing is stored.

        ``updated``: the batch's updates by group, with their values. ``store``: the accumulators
        before the batch. ``parts``: one for each column whose long lists are stored in parts.

        Raises ``DataError`` if an aggregate fails, such as by an overflow, or if a key that must be
        unique has several rows after the batch.
        """
        events, values = updated.events, updated.values
        updates = GroupUpdates(events.group, events.groups, events.deleted & law.retracts)
        before = GroupsBefore.read_stored(law, events, store)
        initial, reads = list(before.state), []
        for part in parts:
            stored, part_values = initial[part.column], values[part.column]
            read = part.read_parts(events, before.known, stored, updates, part_values)
            initial[part.column] = read.initial
            reads.append(read)
        accumulators: list[TracedAccumulators] = run_kernels(
            law, "traced", updates, initial, values
        )
        _refuse_several(law, events, accumulators)
        last = events.last
        if law.retracts or job.operator.emit == "change":
            total = np.cumsum(np.where(events.deleted & law.retracts, -1, 1))
            total += (before.count - np.append(0, total)[events.start])[events.group]
            time_us = _group_times(events, before.time_us, total, updated.emitted)
        else:
            time_us, total = _final_times_and_counts(events, before, last)
        return cls(
            job=job,
            law=law,
            updated=updated,
            before=replace(before, state=initial),
            state=[traced.columns for traced in accumulators],
            time_us=time_us,
            count=total,
            last=last,
            lists=[
                (part, read, accumulators[part.column])
                for part, read in zip(parts, reads, strict=True)
            ],
        )

    def each_result(self) -> pa.Table | None:
        """Return the result after each update in ``updated.emitted``, in that order, as a table of
        ``Operator.output_schema``; None if there are none.

        The result of a group without rows is a tombstone. Raises ``DataError`` if an aggregate
        fails.
        """
        events, values, emitted = self.updated.events, self.updated.values, self.updated.emitted
        updates = GroupUpdates(events.group, events.groups, events.deleted & self.law.retracts)
        results = run_kernels(self.law, "scan", updates, self.before.state, values)
        refs = np.where(self.count[emitted] > 0, emitted, ABSENT)
        return self._output_table(emitted, take_rows(results, refs), self.updated.cause)

    def net_results(self) -> pa.Table | None:
        """Return each group's result after the batch, if it differs from the result before the
        batch, as a table of ``Operator.output_schema``; None if none does.

        A group that has lost all rows gives a tombstone; one without rows before and after gives
        nothing. Results are compared by value, null equal to null and floats by their bits. The
        time counts as part of a result if ``law.timed``. Groups come in the order of their last
        updates in ``updated.emitted``. Raises ``DataError`` if an aggregate fails.
        """
        groups = np.arange(len(self.last))
        present = self.count[self.last] > 0
        was_present = self.before.known
        now, then = (self._result_columns(state) for state in (self.state, self.before.state))
        compared = np.flatnonzero(present & was_present)
        differs = present | was_present
        differs[compared] = ~rows_equal(
            *([column.take(pa.array(compared)) for column in columns] for columns in (now, then))
        )
        if self.law.timed:
            differs[compared] |= self.time_us[self.last[compared]] != self.before.time_us[compared]
        group = groups[differs]
        emission_index = np.full(len(groups), -1)
        emission_index[self.updated.events.group[self.updated.emitted]] = np.arange(
            len(self.updated.emitted)
        )
        group = group[np.argsort(emission_index[group])]
        refs = np.where(present[group], group, ABSENT)
        return self._output_table(
            self.last[group], take_rows(now, refs), self.updated.cause[emission_index[group]]
        )

    def store_groups(self, store: TableState) -> None:
        """Put each updated group's accumulators, time and row count into ``store``, and the parts
        of its long lists into the stores of ``lists``. A group is a key, or a key and its window.

        A group without rows is stored as a tombstone. Call it once, after the results. The stores'
        ``runs`` change.
        """
        events, last, state = self.updated.events, self.last, list(self.state)
        time_us = self.time_us[last]
        for part, read, traced in self.lists:
            state[part.column] = part.store_parts(read, events, traced, time_us)
        expiry = time_us
        if self.law.windows is not None:
            expiry = events.keys[-1].cast(pa.int64()).to_numpy()
        columns = [
            pa.array(events.hash),
            pa.array(expiry),
            pa.array(self.count[last] == 0),
            *events.keys,
            pa.array(time_us),
            pa.array(self.count[last]),
            *(column for columns in state for column in columns),
        ]
        store.store(pa.table(columns, schema=store.schema))

    def _result_columns(self, state: Sequence[Columns]) -> list[pa.Array]:
        """Return one array of results for each aggregate of the law, one element per group.

        ``state``: for each aggregate its accumulator columns, one row per group. Raises
        ``DataError`` if an aggregate fails.
        """
        return call_each_kernel(
            self.law, lambda kernel, column_index: kernel.results(state[column_index])
        )

    def _output_table(
        self, update: Ints, values: Sequence[pa.Array], cause: Ints
    ) -> pa.Table | None:
        """Return results as changes, a table of ``Operator.output_schema`` in the given order, or
        None if there are none.

        ``update``: int64[m], the index of the update after which each result holds. ``values``: for
        each aggregate m results. ``cause``: int64[m], the batch's row that causes each. A group
        without rows after its update gives a tombstone.
        """
        if len(update) == 0:
            return None
        events, operator = self.updated.events, self.job.operator
        group = pa.array(events.group[update])
        present = self.count[update] > 0
        return output_table(
            operator,
            [key.take(group) for key in events.keys],
            [values],
            [np.where(present, update, ABSENT)],
            deleted=~present,
            event_time_us=self.time_us[update],
            position=self.job.manifest.position,
            cause=self.job.causes_of_rows(cause),
        )


@dataclass(frozen=True)
class GroupsBefore:
    """The stored state of some groups before the batch. Times are ``NO_TIME`` and counts 0 for new
    groups.
    """

    known: Mask
    """bool[groups]: the group is stored."""
    state: Sequence[Columns]
    """Per column, the accumulators; of long lists only the parts that the batch needs."""
    time_us: Ints
    """int64[groups]: the group's time."""
    count: Ints
    """int64[groups]: the count of rows in the group."""

    @classmethod
    def read_stored(cls, law: AggregationLaw, events: Timeline, store: TableState) -> GroupsBefore:
        """Read the stored state of the groups of ``events`` from ``store``, one row each in the
        order of groups. New groups have null accumulators, the time ``NO_TIME`` and no rows.

        ``law``: the aggregates, whose accumulators are read. ``events``: the batch's updates by
        group (a key, or a key and its window). Nothing is changed.
        """
        located = store.locate(events.hash, events.keys)
        pool = Pool(store.schema.empty_table(), located, events.groups)
        refs = np.where(located.present, np.arange(events.groups), ABSENT)
        columns = iter(pool.columns_at(refs, store.value_columns))
        time = next(columns).fill_null(NO_TIME).to_numpy()
        count = next(columns).fill_null(0).to_numpy()
        state = [[next(columns) for _ in column.kernel.state] for column in law.columns]
        return cls(located.present, state, time, count)


def _refuse_several(
    law: AggregationLaw, events: Timeline, accumulators: Sequence[TracedAccumulators]
) -> None:
    """Raise ``DataError`` if a group that may have only one row has several after the batch: a
    group of a ``LastRow`` kernel that is ``unique``. Else do nothing.

    ``events``: the updates, whose keys the error names. ``accumulators``: for each column of the
    law those after the batch. Several rows between two updates of the batch are allowed.
    """
    for column, traced in zip(law.columns, accumulators, strict=True):
        kernel, lists = column.kernel, traced.columns[0]
        if not (isinstance(kernel, LastRow) and kernel.unique):
            continue
        several = np.flatnonzero(list_sizes(lists) > 1)
        if len(several):
            group = int(several[0])
            key = (part[group].as_py() for part in events.keys)
            shown = ", ".join(f"{n}={v!r}" for n, v in zip(kernel.key, key, strict=True))
            first, second, *_ = lists[group].as_py()
            raise DataError(
                law.name,
                f"several rows have the key {shown}, among them {first} and {second}",
                "Use duplicates='last', or a key that tells them apart",
            )


def _group_times(events: Timeline, stored_us: Ints, count: Ints, emitted: Ints) -> Ints:
    """Return each group's time after each update, int64[updates] in microseconds: the largest event
    time since the group began.

    A group ends with the emission of its tombstone; its next update begins it anew. ``events``: the
    updates by group. ``stored_us``: int64[groups], the time before the batch, ``NO_TIME`` for new
    groups. ``count``: int64[updates], the group's rows after each update. ``emitted``: indices of
    the updates whose results are emitted.
    """
    ends = np.zeros(len(count), np.bool_)
    ends[emitted] = count[emitted] == 0
    begins = np.append(True, ends[:-1])[: len(ends)]
    begins[events.start] = True
    start = np.flatnonzero(begins)
    initial = np.full(len(start), NO_TIME)
    initial[np.searchsorted(start, events.start)] = stored_us
    return running_max(events.event_time_us, start, np.cumsum(begins) - 1, initial)


def _final_times_and_counts(
    events: Timeline, before: GroupsBefore, last: Ints
) -> tuple[Ints, Ints]:
    """Return each group's time in microseconds and its count of rows after its last update, if no
    update retracts: int64[updates] each, 0 after other updates.

    The time is the largest event time of all the group's updates, stored ones included. ``events``:
    the updates by group. ``before``: the stored state of the groups. ``last``: int64[groups], the
    index of each group's last update.
    """
    time_us, count = np.zeros(len(events.row), np.int64), np.zeros(len(events.row), np.int64)
    if events.groups:
        latest_us = np.maximum.reduceat(events.event_time_us, events.start)
        time_us[last] = np.maximum(before.time_us, latest_us)
        count[last] = before.count + last - events.start + 1
    return time_us, count


def run_kernels(
    law: AggregationLaw,
    method: Literal["scan", "fold", "traced"],
    updates: GroupUpdates,
    initial: Sequence[Columns],
    values: Sequence[Columns],
) -> list[Any]:
    """Call ``method`` of each aggregate of ``law`` on the updates. Return one element per result
    column:

    - ``scan``: the result after each update, an array.
    - ``fold``: the accumulator columns, each with a row per group, after its last update.
    - ``traced``: the same as ``TracedAccumulators``.

    ``updates``: the added and retracted rows, by group. ``initial``: for each result column the
    groups' accumulators before. ``values``: for each result column the aggregated columns, a row
    per update. Raises ``DataError`` that names the column if an aggregate fails.
    """

    def run(kernel: Aggregate, column_index: int) -> Any:
        """Call ``method`` of the aggregate ``kernel`` on the updates, with the accumulators and the
        values of the result column ``column_index``. Return its answer.
        """
        return getattr(kernel, method)(updates, initial[column_index], values[column_index])

    return call_each_kernel(law, run)


def call_each_kernel(law: AggregationLaw, run: Callable[[Aggregate, int], Any]) -> list[Any]:
    """Call ``run`` with the aggregate (kernel) and the index of each column of ``law``, in order,
    and return the list of its answers.

    An ``AggregateError`` becomes a ``DataError`` that names the column, and later columns are not
    run. Other errors are raised as they are.
    """
    name = ""
    try:
        results = []
        for column_index, column in enumerate(law.columns):
            name = column.name
            results.append(run(column.kernel, column_index))
    except AggregateError as error:
        raise DataError(law.name, f"{name}: {error.problem}", error.remedy) from error
    return results


def count_late(job: Job, law: AggregationLaw, late: Ints) -> Counts:
    """Return counts with the batch's rows that came for closed windows, under the source's metric
    ``late``. Without windows in ``law`` nothing is counted.

    ``late``: int64, indices of the batch's rows, one for every closed window.
    """
    counts, source = Counts(), job.sources[0]
    if law.windows is not None:
        counts.add_rows(metric_name(source.name, "late"), source, job.batches[0].rows, late)
    return counts
