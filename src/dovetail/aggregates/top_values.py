"""top: the rows of a group with the highest or the lowest values of a column."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dovetail.aggregates.aggregate import (
    Columns,
    GroupUpdates,
    Ints,
    Mask,
    TracedAccumulators,
    not_null_mask,
)
from dovetail.aggregates.multiset import (
    Listing,
    Reads,
    Spans,
    list_of,
    list_sizes,
    lists_of,
    multiset_spans,
    stored_lists,
)
from dovetail.aggregates.running_aggregates import first_over
from dovetail.arrays import equality, ordering
from dovetail.arrays.grouping import stable_argsort
from dovetail.arrays.search import expand_ranges


@dataclass(frozen=True)
class Top(Listing):
    """The shown columns of the ``n`` rows with the highest (``descending``) or lowest values of the
    first column.

    The rows come in that order; there are fewer if the group has fewer. Rows with a null in the
    first column are left out. Zeros of either sign are one value; all NaNs are one value, the
    highest. Rows with equal values are in ascending order of the shown columns, field by field,
    null first.

    The accumulator is the distinct rows in this order and their counts. If rows never leave, only
    the first ``n`` are kept.
    """

    n: int
    """The most rows in a result."""
    by: pa.DataType
    """The type of the first column, an ordered one (``arrays.ordering``)."""
    row: pa.DataType
    """The type of the shown columns, ordered at any depth of structs."""
    single: bool
    """True if the shown columns are one column, not a struct."""
    descending: bool
    """True for the rows with the highest values, False for the lowest."""
    retractable: bool
    """True if rows may leave a group."""

    ordered = True
    commutes = True

    @property
    def listing(self) -> pa.DataType:
        """The type of a listed row: a struct of the ordering value and the shown columns."""
        return pa.struct([pa.field("by", self.by, nullable=False), pa.field("row", self.row)])

    @property
    def state(self) -> tuple[pa.DataType, ...]:
        """The types of the accumulator's columns: the list of distinct rows (``listing``) in the
        order of the result, then the list of their counts.
        """
        return (list_of(self.listing), list_of(pa.int64()))

    @property
    def reads(self) -> Reads:
        """The end of the stored lists that a result needs: ``"first"``."""
        return "first"

    @property
    def reach(self) -> int:
        """The count of rows at the beginning of the lists that a result needs, ``n``."""
        return self.n

    @property
    def result(self) -> pa.DataType:
        """The type of a list of shown columns (``row``)."""
        return list_of(self.row)

    @property
    def retracts(self) -> bool:
        """True if rows can be retracted: if ``retractable``, since all rows are kept then."""
        return self.retractable

    def listed(self, values: Columns) -> pa.Array:
        """Return each row as a struct (``listing``) of the ordering value and the shown columns,
        null if the ordering value is null. ``values``: the ordering column, then the shown columns.
        NaNs become one NaN, except in lists. In the ordering column -0.0 becomes 0.0; in a shown
        column it stays, and makes another row than 0.0.
        """
        by, *shown = values
        row = shown[0] if self.single else pa.StructArray.from_arrays(shown, fields=list(self.row))
        return pa.StructArray.from_arrays(
            [equality.canonical_key(by), _one_nan(row)],
            fields=list(self.listing),
            mask=by.is_null(),
        )

    def keys(self, values: Sequence[pa.Array]) -> list[Ints]:
        """Return the rank of each row among the rows of all arrays, from 0, in the order of the
        result: int64[n] for an array of n rows. Equal rows have one rank. The order is by ``by``,
        falling if ``descending``, then ascending by the shown columns, field by field, null first.
        NaN is above all other floats, and a shown -0.0 below 0.0. ``values``: arrays of rows as
        ``listed`` returns them, none null, at least one array.
        """
        cuts = np.cumsum([len(array) for array in values])[:-1]
        rows = pa.concat_arrays(list(values))
        return np.split(self._row_numbers(rows, np.zeros(len(rows), np.int64)), cuts)

    def scan(self, updates: GroupUpdates, initial: Columns, values: Columns) -> pa.Array:
        """Return the first ``n`` rows of the group after each update as a list of shown columns,
        one list per update. It has fewer rows if the group has, and may be empty. The order is by
        the ordering column, falling if ``descending``. Ties go by the shown columns, ascending
        field by field, null first. NaN is above all other floats. A row that is there twice comes
        twice.

        ``updates``: rows added to groups or retracted from them, by group, then time. ``initial``:
        two columns of lists, the stored rows of each group and their counts, null for none.
        ``values``: the ordering column, then the shown columns, one row per update; rows with a
        null in the ordering column are left out. Raises ``AggregateError`` if the lists of all
        updates have too many elements for an Arrow column.
        """
        value_spans = self._row_spans(updates, [initial], self.listed(values))
        value_spans = value_spans.where(
            (value_spans.count > 0) & (value_spans.first < value_spans.end)
        )
        value_spans = value_spans.where(self._in_reach(updates, value_spans))
        update, span = _first_covering_spans(updates, value_spans, self.n)
        copies = self._copies_among_first(update, value_spans.count[span])
        return self._shown_lists(
            np.bincount(update, copies, len(updates)).astype(np.int64),
            value_spans.pool,
            np.repeat(value_spans.row[span], copies),
        )

    def traced(
        self, updates: GroupUpdates, initial: Columns, values: Columns
    ) -> TracedAccumulators:
        """Return each group's lists of distinct rows and of their counts after its last update,
        with the origin of each element (``TracedAccumulators``): the stored element or value of the
        batch that it comes from. A group without updates keeps its lists. If rows never leave, only
        the first ``n`` rows are kept, without origins. Equal rows count one by one, so the last
        count may be cut.

        ``updates``: rows added to groups or retracted from them, by group, then time. ``initial``:
        the two stored columns of lists, one row per group, null for none. ``values``: the ordering
        column, then the shown columns, one row per update. Raises ``AggregateError`` if the lists
        have too many elements for an Arrow column.
        """
        value_spans = self._row_spans(updates, [initial], self.listed(values))
        return self._traced_accumulators(value_spans, updates.groups)

    def merged(self, left: Columns, right: Columns) -> list[pa.Array]:
        """Return two columns of lists, distinct rows and their counts: those of ``left`` and
        ``right`` added up, row by row. A list is in the order of the result. If rows never leave,
        only the first ``n`` rows are kept. Equal rows count one by one, so the last count may be
        cut.

        Null counts as empty. Raises ``AggregateError`` if the lists have too many elements for an
        Arrow column.
        """
        rows = len(left[0])
        none = GroupUpdates.added(np.zeros(0, np.int64), rows)
        value_spans = self._row_spans(none, [left, right], pa.nulls(0, self.listing))
        return self._traced_accumulators(value_spans, rows).columns

    def results(self, state: Columns) -> pa.Array:
        """Return the first ``n`` rows of each group as a list of shown columns, equal rows repeated
        by their counts; an empty list for null. ``state``: two columns of lists, distinct rows in
        order and their counts. Raises ``AggregateError`` if the lists have too many elements for an
        Arrow column.
        """
        group, index, copies = self._first_elements(state)
        size = np.bincount(group, copies, len(state[0])).astype(np.int64)
        return self._shown_lists(size, state[0].flatten(), np.repeat(index, copies))

    def _row_spans(self, updates: GroupUpdates, stored: list[Columns], values: pa.Array) -> Spans:
        """Return the spans, ranges of updates during which a group has a distinct row, by group,
        row (in the order of the result) and time. ``updates``: rows added to groups or retracted
        from them, by group, then time. ``stored``: accumulators that are added up, two columns of
        lists each. ``values``: a listed row per update; null adds no row.
        """
        return multiset_spans(updates, stored, values, self._row_numbers)

    def _traced_accumulators(self, value_spans: Spans, groups: int) -> TracedAccumulators:
        """Return the accumulators after the last update, one row for each of ``groups`` groups. If
        ``retractable``, all rows are kept, with the origin of each element
        (``TracedAccumulators``). Else only the first ``n`` rows are kept, without origins; equal
        rows count one by one. ``value_spans``: the ranges of updates during which a group has a
        row, all of the batch, by (group, row, time).
        """
        traced = stored_lists(value_spans, groups)
        if self.retractable:
            return traced
        group, index, copies = self._first_elements(traced.columns)
        chosen = np.flatnonzero(copies)
        size = np.bincount(group[chosen], minlength=groups)
        values = traced.columns[0].flatten().take(pa.array(index[chosen]))
        return TracedAccumulators(
            [lists_of(size, values), lists_of(size, pa.array(copies[chosen]))]
        )

    def _first_elements(self, state: Columns) -> tuple[Ints, Ints, Ints]:
        """Return three int64 arrays for at most ``n`` first elements of each list, in order: the
        index of the list, the index among the elements of all lists, and the copies. An empty or
        null list gives none.

        Copies: how many of the element's equal rows are among the list's first ``n`` rows, possibly
        0. ``state``: two columns of lists, distinct elements and their counts.
        """
        size = list_sizes(state[0])
        start = np.cumsum(size) - size
        group, index = expand_ranges(start, start + np.minimum(size, self.n))
        counts = state[1].flatten().to_numpy()
        return group, index, self._copies_among_first(group, counts[index])

    def _copies_among_first(self, group: Ints, count: Ints) -> Ints:
        """Return how many of each element's equal rows are among the first ``n`` rows of its group,
        from 0: int64[elements].

        ``group``: int64, the group of each element, non-decreasing. ``count``: int64, the count of
        equal rows that each element stands for. Elements of a group are in the order of the result.
        """
        total = np.append(0, np.cumsum(count))
        before = total[:-1] - total[np.searchsorted(group, group)]
        copies: Ints = np.clip(self.n - before, 0, count)
        return copies

    def _in_reach(self, updates: GroupUpdates, value_spans: Spans) -> Mask:
        """Find the spans whose row may be among the first ``n`` rows after an update: bool[m], one
        for each of ``value_spans``. A span is a range of updates during which a group has a row. A
        span is left out if at least ``n`` spans before it in its group last for the whole batch.
        Each of these has at least one row, so they fill the result at every update.
        ``value_spans``: by (group, row, time), each with a count above 0.
        """
        group = value_spans.group
        whole = value_spans.first == updates.bounds[group]
        whole &= value_spans.end == updates.bounds[group + 1]
        total = np.append(0, np.cumsum(whole))
        in_reach: Mask = total[:-1] - total[np.searchsorted(group, group)] < self.n
        return in_reach

    def _shown_lists(self, size: Ints, pool: pa.Array, row: Ints) -> pa.Array:
        """Return a column of lists of shown columns, one for each element of ``size``, the lengths.
        Lists take their rows from ``pool`` by the indices ``row``, one list after the other.

        ``pool``: structs of the ordering value and the shown columns. Raises ``AggregateError`` if
        the lists have too many elements for an Arrow column.
        """
        shown = pc.struct_field(pool.take(pa.array(row)), 1)
        return lists_of(size, shown)

    def _row_numbers(self, rows: pa.Array, group: Ints) -> Ints:
        """Return an id per row, from 0 without gaps, that ascends by group, then in the order of
        the result: int64[n]. Only equal rows of one group share an id. ``rows``: structs as
        ``listed`` returns them, none null. ``group``: int64[n], the group of each row.
        """
        by, shown = rows.flatten()
        (key,) = ordering.to_ordered_keys([by]).keys
        return _number_key_combinations(
            [group, ~key if self.descending else key, *_row_keys(shown)]
        )


def _row_keys(values: pa.Array) -> Iterator[Ints]:
    """Yield sort keys of n values, the most significant first: int64[n] each. Values compare as
    their keys do, one key after the other: null first, structs field by field. NaN is above all
    other floats, and -0.0 below 0.0. ``values``: of an ordered type (``arrays.ordering``), or
    structs of these at any depth. A column or field with nulls gives one key more than one without.
    """
    has = not_null_mask(values)
    if not has.all():
        yield has.astype(np.int64)
    if pa.types.is_struct(values.type):
        for part in values.flatten():
            yield from _row_keys(part)
    else:
        (key,) = ordering.to_ordered_keys([values]).keys
        yield np.where(has, key, 0)


def _number_key_combinations(keys: Iterable[Ints]) -> Ints:
    """Return an id per row for its combination of keys, from 0 without gaps, ascending in the order
    of the keys: int64[n]. ``keys``: at least one, int64[n] each, the most significant first. A key
    is read only for rows that tie on all keys before it.

    >>> _number_key_combinations([np.array([7, 5, 7, 7]), np.array([2, 9, 1, 2])]).tolist()
    [2, 0, 1, 2]
    """
    first, *others = keys
    rank = _rank_among_distinct(first)
    for key in others:
        tied = np.flatnonzero(np.bincount(rank)[rank] > 1)
        if len(tied) == 0:
            break
        minor = _rank_among_distinct(key[tied])
        combined = rank[tied] * (int(minor.max()) + 1) + minor
        distinct, among = np.unique(combined, return_inverse=True)
        major = distinct // (int(minor.max()) + 1)
        many = np.ones(int(rank.max()) + 1, np.int64)
        many[major] = np.bincount(major, minlength=len(many))[major]
        begin = np.cumsum(many) - many
        ordinal = np.arange(len(distinct)) - np.searchsorted(major, major)
        rank = begin[rank]
        rank[tied] += ordinal[among]
    return rank


def _rank_among_distinct(keys: Ints) -> Ints:
    """Return the rank of each key among the distinct keys, from 0: int64[n]."""
    rank: Ints = np.unique(keys, return_inverse=True)[1]
    return rank


def _one_nan(values: pa.Array) -> pa.Array:
    """Return the values with one bit pattern for every NaN, at any depth of structs; a NaN in a
    list stays.
    """
    if not pa.types.is_struct(values.type):
        return ordering.with_one_nan(values)
    parts = [_one_nan(part) for part in values.flatten()]
    return pa.StructArray.from_arrays(parts, fields=list(values.type), mask=values.is_null())


def _first_covering_spans(updates: GroupUpdates, value_spans: Spans, n: int) -> tuple[Ints, Ints]:
    """Find the first ``n`` of ``value_spans`` that cover each of ``updates``, or all if there are
    fewer: two arrays (index of the update, index of the span), by update, then span. A span is a
    range of updates during which a group has a row.

    ``value_spans``: by group, then in the order of the result. Groups with about as many spans are
    worked on together.
    """
    span_counts = np.bincount(value_spans.group, minlength=updates.groups)
    width = np.minimum(span_counts, n)
    width_class = np.frexp(width.astype(np.float64))[1]
    pairs = [(np.zeros(0, np.int64),) * 2]
    for class_number in np.unique(width_class[width > 0]).tolist():
        in_class = width_class == class_number
        update = np.flatnonzero(in_class[updates.group])
        span = np.flatnonzero(in_class[value_spans.group])
        index_in_class = np.append(0, np.cumsum(in_class[updates.group]))
        first, end = index_in_class[value_spans.first[span]], index_in_class[value_spans.end[span]]
        update_index, span_index = first_over(first, end, len(update), int(width[in_class].max()))
        pairs.append((update[update_index], span[span_index]))
    update, span = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
    order = stable_argsort(update)
    return update[order], span[order]
