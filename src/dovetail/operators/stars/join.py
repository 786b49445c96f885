"""The third stage of a star, on one bucket of the fact's keys (``StarJoinLaw``): the joined rows.

The store holds each row of the fact beside the rows that it refers to, one in each dimension, with
their times. Within a micro-batch each key passes through *moments* (``laws.joins.star``): a record
of the fact with the answers to it, or one answer to a change of a dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa

from dovetail.arrays.equality import canonical_key, rows_equal
from dovetail.arrays.grouping import any_null, last_of_each, lexsort, start_mask
from dovetail.arrays.timeline import (
    ABSENT,
    Ints,
    Mask,
    Timeline,
    arrival_keys,
    timeline,
    versions_around,
)
from dovetail.base.columns import EPOCH, EVENT_TIME, INSTRUCTION
from dovetail.laws.joins.star import Reference, row_before, star_results
from dovetail.laws.joins.table_join import Changes, sides_preserved
from dovetail.operators.counts import Counts
from dovetail.operators.emission import event_output_table
from dovetail.operators.job import Job, OperatorOutcome, combine_chunks, take_rows
from dovetail.physical.specs.star import StarJoinLaw
from dovetail.state.run_state import Located
from dovetail.state.table_state import TableState


def run(job: Job, law: StarJoinLaw) -> OperatorOutcome:
    """Emit the joined row, or a tombstone if it is gone, after each *moment* that changes it. With
    ``emit="batch"``, emit the last one of each key, if its values differ from those before the
    batch. Store each key's rows.

    A moment is a record that changes the fact (the table joined to the dimensions) or a dimension,
    together with the answers that it causes. Upserts of the fact are counted as matched if every
    dimension has their row. Without rows in the batch, emit and store nothing. Return the changes
    as ``output``, with the store and the counts.
    """
    fact = job.sources[0].shape
    schema = _stored_schema(job)
    name = job.operator.names[0]
    store = TableState(schema, fact.keys, job.stored_runs(name), job.blobs, job.cache)
    if not job.any_rows:
        return OperatorOutcome(None, job.stores)
    star, counts = _Star.build(job, law, store), Counts()
    counts.add_matches(job.sources[0], star.matched_upserts(net=job.operator.emit == "batch"))
    changes = star.changes
    if job.operator.emit == "batch":
        changes = star.net_changes(changes)
    result = event_output_table(job, star.events, *star.output_columns(changes))
    store.store(star.rows_to_store(schema))
    return OperatorOutcome(result, {name: store.runs}, counts=counts)


def _stored_schema(job: Job) -> pa.Schema:
    """Return the stored columns: all of a row of the fact, the table joined to the dimensions. Then
    follow, for each dimension, the time and the values of its row, null without one.
    """
    fact, answers = job.sources[0].shape, job.sources[1].shape
    return pa.schema([*fact.schema, *answers.value_fields])


@dataclass(frozen=True)
class _Moments:
    """The m moments of a batch, by key and then in order: int64[m] each."""

    first: Ints
    """The first event of each moment."""
    last: Ints
    """The last event of each moment, inclusive."""
    origin: Ints
    """0 for a record of the fact, n for a change of dimension n."""


# Order 1 comes with customer ann and product pen, then ann moves:
#
# | event | row                            | cause | origin | moment |
# |-------|--------------------------------|-------|--------|--------|
# | 0     | order 1                        | 7     | 0      | 0      |
# | 1     | answer of customers to order 1 | 7     | 0      | 0      |
# | 2     | answer of products to order 1  | 7     | 0      | 0      |
# | 3     | answer of customers to ann     | 9     | 1      | 1      |
def _build_timeline(job: Job) -> tuple[Timeline, Ints, _Moments]:
    """Return the events of the fact and of the answers, the dimension of each event, and the
    moments. The fact is the table joined to the dimensions; an answer is a dimension's row for one
    of its keys, or that there is none. All lie by key and then in order of arrival.

    The dimension is int64[events]: 0 for the fact, from 1 for an answer. Events of one cause begin
    with the fact's row and the answers to it. Then come the answers to changes of the first
    dimension, of the second, and so on. A moment is one record of the fact with its answers, or one
    answer to a change of a dimension.
    """
    rows = [job.source_rows(0), job.source_rows(1)]
    facts = len(rows[0])
    instruction = job.batches[1].rows.column(INSTRUCTION).to_numpy()
    dimension = np.append(np.zeros(facts, np.int64), instruction >> 1)
    origin = np.append(np.zeros(facts, np.int64), np.where(instruction & 1, instruction >> 1, 0))
    epoch = np.append(np.full(facts, ABSENT), job.batches[1].rows.column(EPOCH).to_numpy())
    cause_keys = arrival_keys([replace(part, tie=None) for part in rows])
    hash_ = np.concatenate([part.hash for part in rows])
    order = lexsort([epoch, hash_, origin, *cause_keys])
    cause = np.cumsum(start_mask(*(key[order] for key in cause_keys)))
    events = timeline(rows, order)
    at = order[events.arrival]
    begins = np.ones(len(at), np.bool_)
    begins[1:] = (
        (events.group[1:] != events.group[:-1])
        | (cause[events.arrival[1:]] != cause[events.arrival[:-1]])
        | (origin[at[1:]] != 0)
        | (origin[at[:-1]] != 0)
    )
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(at)) - 1
    return events, dimension[at], _Moments(first, last, origin[at[first]])


@dataclass(frozen=True)
class _Part:
    """The rows of the fact, or of one dimension, and the row that each moment finds."""

    columns: Sequence[pa.Array]
    """The columns of its rows: first the stored ones, then those of the batch."""
    time_us: Ints
    """The time of each row; any value for a stored row that is missing."""
    row: Ints
    """The row of each reference. The last element is for ABSENT."""
    before: Ints
    """The reference before each moment."""
    after: Ints
    """The reference after each moment."""
    final: Ints
    """int64[groups]: the reference at the end of the batch."""

    def columns_at(self, refs: Ints, columns: Sequence[int]) -> list[pa.Array]:
        """Return the columns with the indices ``columns`` in this part at the references ``refs``:
        one element per reference, null for ABSENT.

        ``refs``: int64; below the count of groups a stored row, from there on a row of the batch,
        or ABSENT (-1).
        """
        return take_rows([self.columns[column] for column in columns], self.row[refs])

    def times_at(self, refs: Ints) -> Ints:
        """Return the times in microseconds of the rows at the references ``refs``: int64, 0 for
        ABSENT (-1). A reference to a missing stored row may have any time.

        ``refs``: int64; below the count of groups a stored row, from there on a row of the batch.
        """
        return np.append(self.time_us, 0)[self.row[refs]]


@dataclass(frozen=True)
class _StoredRows:
    """The stored rows of a batch's keys, read once."""

    rows: pa.Table
    stored_row: Ints
    """int64[groups]: the row of each key, ABSENT for none."""

    @classmethod
    def fetch_located(cls, located: Located) -> _StoredRows:
        """Read all stored columns of the located rows. Return them with the index of each key's
        row, ABSENT for a key without a stored row. ``located``: one element per key of the batch.
        """
        present = np.flatnonzero(located.present)
        stored_row = np.full(len(located.present), ABSENT)
        stored_row[present] = np.arange(len(present))
        return cls(located.fetch(present, range(len(located.schema))), stored_row)

    def build_part(
        self,
        events: Timeline,
        moments: _Moments,
        is_version: Mask,
        batch: pa.Table,
        columns: Sequence[int],
        names: Sequence[str],
    ) -> _Part:
        """Return the part of the fact or of one dimension: the stored rows, then those of
        ``batch``, and references to the key's row before and after each of ``moments``. The fact is
        the table joined to the dimensions. A moment is one of its records with the answers to it,
        or one answer to a change of a dimension.

        - ``events``: those of the batch. ``is_version``: bool[events], the events that bring such a
          row or its tombstone.
        - ``batch``: the batch's rows of the source that brings this part.
        - ``columns``: the indices of the columns in the store. The first has the time, null in a
          row without this part.
        - ``names``: the same columns in ``batch``, as many.
        """
        stored = [combine_chunks(self.rows.column(column)) for column in columns]
        time, *values = (
            pa.concat_arrays([column, combine_chunks(batch.column(name))])
            for column, name in zip(stored, names, strict=True)
        )
        there = np.append(stored[0].is_valid().to_numpy(zero_copy_only=False), False)[
            self.stored_row
        ]
        before, after = versions_around(events, 0, there, is_version)
        return _Part(
            values,
            time.fill_null(0).to_numpy(),
            np.concatenate((self.stored_row, len(self.rows) + np.arange(len(batch)), [ABSENT])),
            before[moments.first],
            after[moments.last],
            after[events.last],
        )


@dataclass(frozen=True)
class _Star:
    """The moments of a batch, with the rows of all parts."""

    law: StarJoinLaw
    events: Timeline
    moments: _Moments
    parts: Sequence[_Part]
    """The fact, then the dimensions. The fact has all columns of its input, a dimension its own."""
    keys: int
    """The count of columns before the fact's values."""

    @classmethod
    def build(cls, job: Job, law: StarJoinLaw, store: TableState) -> _Star:
        """Return the moments of the job's rows, with the rows of the fact and of each dimension
        before and after each. The fact is the table joined to the dimensions. A moment is one of
        its records with the answers to it, or one answer to a change of a dimension.

        ``law``: the star's dimensions. ``store``: the rows before the batch, which are read.
        """
        events, dimension, moments = _build_timeline(job)
        stored = _StoredRows.fetch_located(store.locate(events.hash, events.keys))
        facts, answers = (batch.rows for batch in job.batches)
        fact, shape = job.sources[0].shape.schema, job.sources[1].shape
        time = fact.get_field_index(EVENT_TIME)
        parts = [
            stored.build_part(
                events,
                moments,
                dimension == 0,
                facts,
                [time, *range(len(fact))],
                [EVENT_TIME, *fact.names],
            )
        ]
        shift = len(fact) - shape.value_columns.start
        for dimension_number in range(1, len(law.hows) + 1):
            columns = law.answer_columns(job.sources, dimension_number)
            parts.append(
                stored.build_part(
                    events,
                    moments,
                    dimension == dimension_number,
                    answers,
                    [column + shift for column in columns],
                    [shape.schema.field(column).name for column in columns],
                )
            )
        return cls(law, events, moments, parts, job.sources[0].shape.value_columns.start)

    @cached_property
    def references(self) -> list[Reference]:
        """One ``Reference`` per dimension, the input of the law. It says before and after each
        moment: has the fact a foreign key, has the dimension a row, and the row's time.

        Foreign keys are compared only for joins that drop unmatched rows of the fact; for others
        all keys count as there, and none as moved.
        """
        fact = self.parts[0]
        references = []
        for how, columns, part in zip(self.law.hows, self.law.foreign, self.parts[1:], strict=True):
            keeps = sides_preserved(how)[0]
            count = len(self.moments.first)
            was_null, is_null = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
            moved = was_null
            if not keeps:
                former = fact.columns_at(fact.before, columns)
                present = fact.columns_at(fact.after, columns)
                was_null, is_null = any_null(former, count), any_null(present, count)
                # The fact has its values as they came. Messages have canonical keys.
                moved = ~rows_equal(
                    *([canonical_key(key) for key in keys] for keys in (former, present))
                )
            references.append(
                Reference(
                    keeps,
                    ~was_null,
                    ~is_null,
                    moved,
                    part.before != ABSENT,
                    part.after != ABSENT,
                    part.times_at(part.before),
                    part.times_at(part.after),
                )
            )
        return references

    @property
    def changes(self) -> Changes:
        """The results of the moments that have one, in the order of arrival, as ``Changes`` whose
        reference is the index of the moment.

        A moment is one record of the fact with the answers to it, or one answer to a change of a
        dimension. A result may be a tombstone for a key that had no joined row before.
        """
        fact, moments = self.parts[0], self.moments
        results = star_results(
            fact.before != ABSENT,
            fact.after != ABSENT,
            self.events.event_time_us[moments.first],
            moments.origin,
            self.references,
        )
        order = self.events.by_arrival(moments.first)
        everything = Changes(
            moments.first, results.present, results.time_us, (np.arange(len(moments.first)),)
        )
        return everything.select(order[results.emits[order]])

    def matched_upserts(self, *, net: bool) -> Mask:
        """Return a mask of the upserts of the fact (the table joined to the dimensions), true if
        every dimension has a row for it: bool, one per upsert, in the order of the moments.

        ``net``: True if only the last answers to each key are there. Then there is one element per
        key with a record of the fact, if its row exists at the end of the batch.
        """
        record = np.flatnonzero(self.moments.origin == 0)
        if net:
            group = np.unique(self.events.group[self.moments.first[record]])
            fact, *dimensions = (part.final[group] != ABSENT for part in self.parts)
        else:
            fact, *dimensions = (part.after[record] != ABSENT for part in self.parts)
        matched: Mask = np.logical_and.reduce(dimensions)[fact]
        return matched

    def net_changes(self, changes: Changes) -> Changes:
        """Return the last change of each key, if it differs from the row before the batch, in the
        order of ``changes``. Only values count, not times.

        ``changes``: in the order of arrival; each reference is the index of a moment. A moment is
        one record of the fact with the answers to it, or one answer to a change of a dimension. A
        tombstone of a key that had no joined row before the batch is left out.
        """
        changes = changes.select(last_of_each(self.events.group[changes.event]))
        group, (moment,) = self.events.group[changes.event], changes.reference
        starts = np.searchsorted(self.moments.first, self.events.start[group])
        before = row_before(self.parts[0].before != ABSENT, self.references)[starts]
        same = ~changes.present & ~before
        compared = np.flatnonzero(changes.present & before)
        if len(compared):
            now = self._result_columns(moment[compared], after=True)
            then = self._result_columns(starts[compared], after=False)
            same[compared] = _equal_rows(now, then, len(compared))
        return changes.select(~same)

    def output_columns(self, changes: Changes) -> tuple[Changes, list[list[pa.Array]]]:
        """Return the changes with references to rows in place of moments, and the value columns of
        their two sides.

        ``changes``: each reference is the index of a moment. A moment is one record of the fact
        with the answers to it, or one answer to a change of a dimension. The returned changes refer
        to the rows of the fact and of the last dimension, ABSENT for a tombstone. The columns are
        two lists: those of the left side of the last join, and those of its right side. They have a
        row per change, null for a tombstone.
        """
        (moment,) = changes.reference
        columns = self._result_columns(moment, after=True, present=changes.present)
        width = len(self.law.left)
        refs = tuple(
            np.where(changes.present, part.after[moment], ABSENT)
            for part in (self.parts[0], self.parts[-1])
        )
        return replace(changes, reference=refs), [columns[:width], columns[width:]]

    def _result_columns(
        self, moment: Ints, *, after: bool, present: Mask | None = None
    ) -> list[pa.Array]:
        """Return the result's value columns after some moments, one row each; before the moments if
        ``after`` is False. First come the columns of the last join's left side, then those of the
        last dimension.

        ``moment``: int64[m], indices of moments. A moment is one record of the fact with the
        answers to it, or one answer to a change of a dimension. ``present``: bool[m], false gives
        nulls; None is true everywhere. Columns are null where the fact or a dimension has no row.
        """
        refs = []
        for part in self.parts:
            of_part = (part.after if after else part.before)[moment]
            refs.append(of_part if present is None else np.where(present, of_part, ABSENT))
        last = len(self.parts) - 1
        wanted = [*self.law.left, *((last, n) for n in range(len(self.parts[-1].columns)))]
        return [self.parts[n].columns_at(refs[n], [column])[0] for n, column in wanted]

    def rows_to_store(self, schema: pa.Schema) -> pa.Table:
        """Return the row of each key after the batch, with the stored columns ``schema``, in hash
        order: the columns of the fact (the table joined to the dimensions), then for each dimension
        the time and its columns.

        A key without a row of the fact has a tombstone. The columns of a dimension without a row
        are null.
        """
        fact, events = self.parts[0], self.events
        deleted = fact.final == ABSENT
        time_us = np.where(deleted, events.event_time_us[events.last], fact.times_at(fact.final))
        columns = [pa.array(events.hash), pa.array(time_us), pa.array(deleted), *events.keys]
        columns += fact.columns_at(fact.final, range(self.keys, len(fact.columns)))
        for part in self.parts[1:]:
            refs = np.where(deleted, ABSENT, part.final)
            columns.append(pa.array(part.times_at(refs), mask=refs == ABSENT))
            columns += part.columns_at(refs, range(len(part.columns)))
        return pa.table(columns, schema=schema)


def _equal_rows(now: Sequence[pa.Array], then: Sequence[pa.Array], count: int) -> Mask:
    """Return a mask of the rows in which the columns ``now`` and ``then`` have equal values:
    bool[count]. Null equals null. Without columns all rows are equal. ``count``: the length of each
    column.
    """
    if not now:
        return np.ones(count, np.bool_)
    return rows_equal(list(now), list(then))
