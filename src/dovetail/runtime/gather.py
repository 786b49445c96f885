"""Rows gathered by key, and by window of time, on one bucket (``Gather``).

Stored is each group's accumulators, never its rows. A record that comes for a window when it is
closed is late: it is left out of that window.

Source: Kafka Streams join design, "KTable Aggregate", "Windowed Aggregate"; spec/windowed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa

from dovetail.columns import DELETED, EVENT_TIME, HASH, INSTRUCTION
from dovetail.errors import DataError
from dovetail.kernels.aggregates import AggregateError, Touches, Traced
from dovetail.kernels.equality import rows_equal
from dovetail.kernels.hashing import stable_hash
from dovetail.kernels.regroup import SILENT
from dovetail.kernels.timeline import (
    ABSENT,
    NO_TIME,
    Ints,
    Mask,
    Rows,
    Timeline,
    arrival_order,
    last_of_source,
    timeline,
)
from dovetail.kernels.windows import assign, open_windows, running_max
from dovetail.plan.spec import WINDOW_TYPE, Gather
from dovetail.runtime.job import Done, Job, minus, output, picked
from dovetail.runtime.parts import Parts, Read, parts_of
from dovetail.runtime.tables import Pool
from dovetail.state.table_state import TableState

Columns: TypeAlias = Sequence[pa.Array]

_TIME, _COUNT = "_time", "_count"


def gather(job: Job, operator: Gather) -> Done:
    """Every record's own result, or with ``emit="batch"`` each group's last one."""
    store, parts = state_store(job, operator), parts_of(job, operator)
    if not job.any_rows:
        return Done(None, job.manifest.stores)
    touched = _touched(job, operator)
    groups = Groups.of(job, operator, touched, store, parts)
    results = groups.net() if job.spec.emit == "batch" else groups.each()
    groups.keep(store)
    runs = (store.runs, *(runs for part in parts for runs in part.runs))
    return Done(results, runs, counts=Counter(late=touched.late))


@dataclass(frozen=True)
class Touched:
    """What a batch touches: ``events``, a row's touch of a group each; ``row``: the row of each in
    ``rows``; ``told``: the touches after which a result is told, in the order in which they are
    told; ``cause``: the batch's row for which; ``late``: how many windows were closed when a record
    came for them.
    """

    events: Timeline
    rows: pa.Table
    row: Ints
    told: Ints
    cause: Ints
    late: int = 0


def _touched(job: Job, operator: Gather) -> Touched:
    rows, table = job.rows(0), job.batches[0].rows
    if operator.windows is None:
        events = timeline([rows])
        tells = np.ones(len(events.row), np.bool_)
        if operator.retracts:
            said = table.column(INSTRUCTION).to_numpy()[events.row]
            tells = (said & SILENT) == 0
        return _each_told(events, table, events.row, tells)
    windows = operator.windows
    order = arrival_order([rows])
    time = rows.event_time_us[order]
    clock_us = job.clock_of(0, 0)[order]
    record, start = assign(time, windows.size_us, windows.advance_us)
    open_ = open_windows(start + windows.size_us, clock_us[record], windows.grace_us)
    late = len(open_) - int(np.count_nonzero(open_))
    record, start = record[open_], start[open_]
    row = order[record]
    events = timeline_of_windows(
        [key.take(pa.array(row)) for key in rows.keys],
        rows.hash[row],
        (start, start + windows.size_us),
        rows.event_time_us[row],
        np.arange(len(row)),
    )
    return _each_told(events, table, row[events.row], np.ones(len(row), np.bool_), late)


def timeline_of_windows(
    keys: Sequence[pa.Array],
    hash_: Ints,
    window: tuple[Ints, Ints],
    event_time_us: Ints,
    sequence: Ints,
) -> Timeline:
    """Rows of keys that each touch one window, given from start to end, in this ``sequence``."""
    rows = Rows(
        keys=[*keys, *bounds(*window)],
        hash=stable_hash([pa.array(hash_), pa.array(window[0])]),
        event_time_us=event_time_us,
        deleted=np.zeros(len(hash_), np.bool_),
        clock_us=sequence,
        sequence=sequence,
    )
    return timeline([rows])


def bounds(start: Ints, end: Ints) -> list[pa.Array]:
    """The key columns of windows."""
    return [pa.array(at, pa.int64()).cast(WINDOW_TYPE) for at in (start, end)]


def _each_told(events: Timeline, rows: pa.Table, row: Ints, tells: Mask, late: int = 0) -> Touched:
    """Every touch that ``tells``, as it happens."""
    told = np.flatnonzero(tells)
    told = told[np.argsort(events.arrival[told])]
    return Touched(events, rows, row, told, row[told], late)


@dataclass(frozen=True)
class Groups:
    """The groups that a batch touches, by their number in ``events``.

    ``values``: per column what the touches bring; ``stored``, ``made``: its accumulators before
    and after the batch, of those in ``parts`` what the batch needs (``reads``); ``known``: which
    groups are stored; ``stored_us``: their times;
    ``time_us``, ``count``: after each touch, the group's time and how many rows it has; ``last``:
    each group's last touch.
    """

    job: Job
    operator: Gather
    touched: Touched
    touches: Touches
    values: Sequence[Columns]
    known: Mask
    stored: Sequence[Columns]
    parts: Sequence[Parts]
    reads: Sequence[Read]
    made: Sequence[Traced]
    stored_us: Ints
    time_us: Ints
    count: Ints
    last: Ints

    @classmethod
    def of(
        cls,
        job: Job,
        operator: Gather,
        touched: Touched,
        store: TableState,
        parts: Sequence[Parts] = (),
    ) -> Groups:
        """The groups before and after the batch."""
        events = touched.events
        located = store.locate(events.hash, events.keys)
        held = Pool(store.schema.empty_table(), located, events.groups)
        refs = np.where(located.present, np.arange(events.groups), ABSENT)
        columns = iter(held.values(refs, range(3 + len(events.keys), len(store.schema))))
        time = next(columns).fill_null(NO_TIME).to_numpy()
        count = next(columns).fill_null(0).to_numpy()
        stored = [[next(columns) for _ in column.kernel.state] for column in operator.columns]
        total = np.cumsum(np.where(events.deleted & operator.retracts, -1, 1))
        touches = Touches(events.group, events.groups, events.deleted & operator.retracts)
        total += (count - np.append(0, total)[events.start])[events.group]
        values = values_of(job, operator, touched.rows, touched.row)
        reads = []
        for part in parts:
            own, came = stored[part.column], values[part.column][0]
            reads.append(part.read(events, located.present, own, touches, came))
            stored[part.column] = list(reads[-1].initial)
        made = aggregated(operator, "traced", touches, stored, values)
        return cls(
            job=job,
            operator=operator,
            touched=touched,
            touches=touches,
            values=values,
            known=located.present,
            stored=stored,
            parts=parts,
            reads=reads,
            made=made,
            stored_us=time,
            time_us=_times(events, time, total, touched.told),
            count=total,
            last=last_of_source(events, 0),
        )

    def each(self) -> pa.Table | None:
        """The result after each touch that tells."""
        told = self.touched.told
        refs = np.where(self.count[told] > 0, told, ABSENT)
        results = aggregated(self.operator, "running", self.touches, self.stored, self.values)
        return self._output(told, picked(results, refs), self.touched.cause)

    def net(self) -> pa.Table | None:
        """Each group's result where it differs from the one before the batch, in the order in which
        they are last told.
        """
        groups = np.arange(len(self.last))
        present = self.count[self.last] > 0
        now = self._results([made.columns for made in self.made])
        then = self._results(self.stored)
        both = np.flatnonzero(present & self.known)
        differs = present | self.known
        differs[both] = ~rows_equal(
            *([column.take(pa.array(both)) for column in columns] for columns in (now, then))
        )
        if self.operator.timed:
            differs[both] |= self.time_us[self.last[both]] != self.stored_us[both]
        group = groups[differs]
        place = np.full(len(groups), -1)
        place[self.touched.events.group[self.touched.told]] = np.arange(len(self.touched.told))
        group = group[np.argsort(place[group])]
        refs = np.where(present[group], group, ABSENT)
        return self._output(self.last[group], picked(now, refs), self.touched.cause[place[group]])

    def keep(self, store: TableState) -> None:
        """Store each group's accumulators."""
        events, last = self.touched.events, self.last
        state: list[Columns] = [made.columns for made in self.made]
        for part, read in zip(self.parts, self.reads, strict=True):
            made = self.made[part.column]
            state[part.column] = part.keep(read, events, made, self.time_us[last])
        time_us = self.time_us[last]
        expiry = time_us
        if self.operator.windows is not None:
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

    def _results(self, state: Sequence[Columns]) -> list[pa.Array]:
        columns = zip(self.operator.columns, state, strict=True)
        return [column.kernel.results(held) for column, held in columns]

    def _output(self, touch: Ints, values: Sequence[pa.Array], cause: Ints) -> pa.Table | None:
        if len(touch) == 0:
            return None
        events, spec = self.touched.events, self.job.spec
        group = pa.array(events.group[touch])
        present = self.count[touch] > 0
        return output(
            spec,
            [key.take(group) for key in events.keys],
            [values],
            [np.where(present, touch, ABSENT)],
            deleted=~present,
            event_time_us=self.time_us[touch],
            position=self.job.manifest.position,
            cause=self.job.causes_of_rows(cause),
        )


def _times(events: Timeline, stored_us: Ints, count: Ints, told: Ints) -> Ints:
    """Each group's time after each touch: the largest since it came to be. One without rows is
    forgotten once that is told.
    """
    ends = np.zeros(len(count), np.bool_)
    ends[told] = count[told] == 0
    begins = np.append(True, ends[:-1])[: len(ends)]
    begins[events.start] = True
    start = np.flatnonzero(begins)
    initial = np.full(len(start), NO_TIME)
    initial[np.searchsorted(start, events.start)] = stored_us
    return running_max(events.event_time_us, start, np.cumsum(begins) - 1, initial)


def values_of(job: Job, operator: Gather, rows: pa.Table, row: Ints) -> list[Columns]:
    """Per column the values that it gathers, of the rows number ``row``."""
    first = job.spec.key_columns.stop
    return [
        picked([rows.column(first + number) for number in column.values], row)
        for column in operator.columns
    ]


def aggregated(
    operator: Gather,
    what: Literal["running", "final", "traced"],
    touches: Touches,
    initial: Sequence[Columns],
    values: Sequence[Columns],
) -> list[Any]:
    """Per column what its kernel makes of touches by ``values``: their results, or the accumulators
    after them.
    """
    name = ""
    try:
        made = []
        for column, stored, own in zip(operator.columns, initial, values, strict=True):
            name = column.name
            made.append(getattr(column.kernel, what)(touches, stored, own))
    except AggregateError as error:
        raise DataError(operator.name, f"{name}: {error.problem}", error.remedy) from error
    return made


def state_store(job: Job, operator: Gather) -> TableState:
    """The store of accumulators: ``_hash``; ``_event_time``, of a window its end; ``_deleted``; the
    key; the group's time and how many rows it has; the accumulators.
    """
    spec, windows = job.spec, operator.windows
    horizon_us = NO_TIME if windows is None else minus(job.final_us[0], windows.wait_us)
    key = spec.told_key
    schema = pa.schema(
        [
            (HASH, pa.int64()),
            (EVENT_TIME, pa.int64()),
            (DELETED, pa.bool_()),
            *key,
            (_TIME, pa.int64()),
            (_COUNT, pa.int64()),
            *(
                (f"_a{number}_{part}", type_)
                for number, column in enumerate(operator.columns)
                for part, type_ in enumerate(column.kernel.state)
            ),
        ]
    )
    return TableState(
        schema, len(key), job.manifest.stores[0], job.blobs, job.cache, horizon_us=horizon_us
    )
