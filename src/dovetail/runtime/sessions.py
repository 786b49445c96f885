"""Rows gathered by key and session, on one bucket (``Gather`` over session windows).

Stored are the sessions with their accumulators, those of one key side by side.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from dovetail.kernels.aggregates import Touches
from dovetail.kernels.equality import rows_equal
from dovetail.kernels.foreign_key import combined, combined_range, low_half
from dovetail.kernels.hashing import stable_hash
from dovetail.kernels.sessions import Sessions, Wave, Waves
from dovetail.kernels.timeline import ABSENT, Ints, Mask, Timeline, last_of_source, timeline
from dovetail.plan.spec import Gather
from dovetail.runtime.gather import Columns, aggregated, bounds, state_store, values_of
from dovetail.runtime.job import Done, Job, output, picked, whole
from dovetail.state.table_state import TableState

_Changed: TypeAlias = tuple[Sessions, Sessions, Ints]


def gather(job: Job, operator: Gather) -> Done:
    """What every record makes of its key's sessions or, with ``emit="batch"``, the batch does."""
    if not job.any_rows:
        return Done(None, job.manifest.stores)
    assert operator.windows is not None
    store = state_store(job, operator)
    events = timeline([job.rows(0)])
    closing_us = job.clocks_of(0, events) - operator.windows.wait_us
    waves = Waves(events.group, events.event_time_us, closing_us, operator.windows.size_us)
    stored = _Stored.of(store, events, operator)
    batch = _Batch(job, operator, events, stored, stored.sessions, stored.state)
    while waves.left:
        batch.apply(waves.take(batch.sessions))
    changed = batch.changed()
    told = batch.net(changed) if job.spec.emit == "batch" else batch.each()
    batch.keep(store, changed)
    return Done(told, (store.runs,), counts=Counter(late=waves.late))


@dataclass(frozen=True)
class _Stored:
    """The stored sessions of the batch's keys, ``ref`` their own numbers; per aggregate their
    accumulators; how many records each has.
    """

    sessions: Sessions
    state: Sequence[Columns]
    count: Ints

    @classmethod
    def of(cls, store: TableState, events: Timeline, operator: Gather) -> _Stored:
        """All that are stored, closed ones among them."""
        found = store.scan(*combined_range(events.hash), events.keys)
        first = 3 + len(events.keys)
        held = found.located.fetch(np.arange(len(found.query)), range(first, len(store.schema)))
        columns = [whole(column) for column in held.columns]
        start, end = (column.cast(pa.int64()).to_numpy() for column in columns[:2])
        order = np.lexsort((end, found.query))
        query, start, end = found.query[order], start[order], end[order]
        arranged = iter(column.take(pa.array(order)) for column in columns[3:])
        count = next(arranged).to_numpy()
        state = [[next(arranged) for _ in column.kernel.state] for column in operator.columns]
        return cls(Sessions(query, start, end, np.arange(len(order))), state, count)


@dataclass
class _Batch:
    """A batch's sessions as its waves change them.

    ``state``: per aggregate the accumulators, stored sessions' first, then each wave's segments';
    ``results``: per wave and aggregate the result after each event. Rows are told of ``event``: a
    session from ``start_us`` to ``end_us``, whose result is number ``result`` of all, ABSENT for a
    tombstone.
    """

    job: Job
    operator: Gather
    events: Timeline
    stored: _Stored
    sessions: Sessions
    state: Sequence[Columns]
    count: Ints = field(init=False)
    last: Ints = field(init=False)
    results: list[list[pa.Array]] = field(default_factory=list)
    _told: list[tuple[Ints, Ints, Ints, Ints]] = field(default_factory=list)
    _results: int = 0

    def __post_init__(self) -> None:
        self.count = self.stored.count
        self.last = np.full(len(self.count), ABSENT)

    def apply(self, wave: Wave) -> None:
        """Carry a wave out."""
        segments = len(wave.start_us)
        if segments == 0:
            return
        rows = self.job.batches[0].rows
        group = self.events.group[wave.event]
        touches = Touches(wave.segment, segments, np.zeros(len(group), np.bool_))
        values = values_of(self.job, self.operator, rows, self.events.row[wave.event])
        initial = self._initial(wave)
        each = self.job.spec.emit != "batch"
        if each:
            self.results.append(aggregated(self.operator, "running", touches, initial, values))
        final = aggregated(self.operator, "final", touches, initial, values)
        count = np.bincount(wave.segment, minlength=segments)
        met = np.append(self.sessions.ref, ABSENT)
        known = np.append(self.count, 0)
        for number in range(2):
            at = wave.first + number
            count += known[np.where(at < wave.last, met[np.minimum(at, len(met) - 1)], ABSENT)]
        if each:
            self._tell(wave)
        base = len(self.count)
        self.last = np.append(self.last, wave.event[np.append(wave.begins[1:], len(group)) - 1])
        merged = np.zeros(len(self.sessions.group) + 1, np.bool_)
        for number in range(2):
            at = wave.first + number
            merged[np.where(at < wave.last, at, len(merged) - 1)] = True
        made = Sessions(wave.made.group, wave.made.start_us, wave.made.end_us, wave.made.ref + base)
        self.sessions = self.sessions.where(~merged[:-1]).beside(made)
        self.count = np.append(self.count, count)
        self.state = [
            [pa.concat_arrays([was, is_]) for was, is_ in zip(before, now, strict=True)]
            for before, now in zip(self.state, final, strict=True)
        ]

    def _initial(self, wave: Wave) -> list[Columns]:
        """Per aggregate what each segment begins with: its first session's, merged with its
        second's.
        """
        met = np.append(self.sessions.ref, ABSENT)
        some, both = wave.first < wave.last, wave.first + 1 < wave.last
        left = np.where(some, met[np.minimum(wave.first, len(met) - 1)], ABSENT)
        right = met[np.minimum(wave.first + 1, len(met) - 1)][both]
        initial: list[Columns] = []
        for column, state in zip(self.operator.columns, self.state, strict=True):
            own = picked(state, left)
            if both.any():
                made = column.kernel.merged(picked(state, left[both]), picked(state, right))
                place = np.arange(len(left))
                place[both] = len(left) + np.arange(len(right))
                index = pa.array(place)
                own = [
                    pa.concat_arrays([one, two]).take(index)
                    for one, two in zip(own, made, strict=True)
                ]
            initial.append(own)
        return initial

    def _tell(self, wave: Wave) -> None:
        """The tombstones and rows of a wave."""
        start, end = wave.start_us[wave.segment], wave.end_us
        rows = np.arange(len(wave.event)) + self._results
        self._results += len(wave.event)
        self._told.append((wave.event, start, end, rows))
        moved = np.flatnonzero(wave.moves)
        gone = np.full(len(moved), ABSENT)
        self._told.append((wave.event[moved], start[moved], end[moved - 1], gone))
        begins = wave.begins
        for number in range(2):
            at = wave.first + number
            own = np.flatnonzero(at < wave.last)
            was_start, was_end = self.sessions.start_us[at[own]], self.sessions.end_us[at[own]]
            event = begins[own]
            differs = (was_start != wave.start_us[own]) | (was_end != end[event])
            own, event = own[differs], wave.event[event[differs]]
            gone = np.full(len(own), ABSENT)
            self._told.append((event, was_start[differs], was_end[differs], gone))

    def each(self) -> pa.Table | None:
        """The rows and tombstones of each record, in the order of the records."""
        if not self._told:
            return None
        event, start, end, result = (np.concatenate(c) for c in zip(*self._told, strict=True))
        arrival = self.events.arrival[event]
        order = np.lexsort((start, result != ABSENT, arrival))
        columns = [pa.concat_arrays(list(waves)) for waves in zip(*self.results, strict=True)]
        result = result[order]
        return self._output(event[order], start[order], end[order], picked(columns, result), result)

    def net(self, changed: _Changed) -> pa.Table | None:
        """What the batch changes of the sessions, in the order of each key's last record."""
        gone, now, then = changed
        both = np.flatnonzero(then != ABSENT)
        differs = np.ones(len(now.group), np.bool_)
        made = [
            column.kernel.results(state)
            for column, state in zip(self.operator.columns, self.state, strict=True)
        ]
        differs[both] = ~rows_equal(picked(made, now.ref[both]), picked(made, then[both]))
        now = now.where(differs)
        group = np.append(gone.group, now.group)
        if len(group) == 0:
            return None
        event = last_of_source(self.events, 0)[group]
        event[len(gone.group) :] = self.last[now.ref]
        start = np.append(gone.start_us, now.start_us)
        end = np.append(gone.end_us, now.end_us)
        ref = np.append(np.full(len(gone.group), ABSENT), now.ref)
        order = np.lexsort((start, ref != ABSENT, self.events.arrival[event]))
        ref = ref[order]
        return self._output(event[order], start[order], end[order], picked(made, ref), ref)

    def changed(self) -> _Changed:
        """The stored sessions that are no more; those that are new or changed; and of each of the
        latter the stored one of the same bounds, ABSENT for none.
        """
        stored, now = self.stored.sessions, self.sessions
        fresh = now.where(now.ref >= len(stored.ref))
        everything = [
            np.append(a, b)
            for a, b in (
                (stored.group, now.group),
                (stored.start_us, now.start_us),
                (stored.end_us, now.end_us),
            )
        ]
        order = np.lexsort((np.arange(len(everything[0])), *reversed(everything)))
        same = np.ones(max(len(order) - 1, 0), np.bool_)
        for column in everything:
            same &= column[order[1:]] == column[order[:-1]]
        twin = np.full(len(order), ABSENT)
        twin[order[1:][same]] = order[:-1][same]
        stays = np.zeros(len(stored.ref), np.bool_)
        stays[order[:-1][same]] = True
        then = twin[len(stored.ref) :][now.ref >= len(stored.ref)]
        return stored.where(~stays), fresh, then

    def keep(self, store: TableState, changed: _Changed) -> None:
        """Store what has changed."""
        gone, now, _ = changed
        group = np.append(gone.group, now.group)
        start = np.append(gone.start_us, now.start_us)
        end = np.append(gone.end_us, now.end_us)
        ref = np.append(gone.ref, now.ref)
        place = stable_hash([pa.array(start), pa.array(end)])
        hash_ = combined(self.events.hash[group], low_half(place))
        order = np.argsort(hash_, kind="stable")
        group, start, end, ref = group[order], start[order], end[order], ref[order]
        deleted = (np.arange(len(order)) < len(gone.group))[order]
        columns = [
            pa.array(hash_[order]),
            pa.array(end),
            pa.array(deleted),
            *(key.take(pa.array(group)) for key in self.events.keys),
            *bounds(start, end),
            pa.array(end),
            pa.array(self.count[ref]),
            *(column for state in self.state for column in picked(state, ref)),
        ]
        store.store(pa.table(columns, schema=store.schema))

    def _output(
        self, event: Ints, start: Ints, end: Ints, values: Sequence[pa.Array], result: Ints
    ) -> pa.Table:
        events, spec = self.events, self.job.spec
        group = pa.array(events.group[event])
        gone: Mask = result == ABSENT
        return output(
            spec,
            [*(key.take(group) for key in events.keys), *bounds(start, end)],
            [values],
            [result],
            deleted=gone,
            event_time_us=end,
            position=self.job.manifest.position,
            cause=self.job.causes_of_rows(events.row[event]),
        )
