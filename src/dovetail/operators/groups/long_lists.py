"""Long lists of accumulators, stored in parts (``Parts``): a batch reads and writes only the parts
that it updates.

An accumulator that lists its group's values (``aggregates.multiset.Listing``) lies in the group's
row while it is short. For a longer list that row holds null. The list then lies in parts, each a
row of a store of its own, and another store is their index.

A batch that updates few values of a group reads the parts that hold them, and those that the result
needs. It writes the parts that have changed. A batch that updates many values reads the whole list
and cuts it anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from dovetail.aggregates.aggregate import Columns, GroupUpdates, TracedAccumulators, not_null_mask
from dovetail.aggregates.list_parts import PartLayout, cut_into_parts, is_long
from dovetail.aggregates.multiset import Listing, list_sizes, lists_of
from dovetail.aggregates.running_aggregates import replace_rows
from dovetail.arrays.hashing import combine_hashes, combined_hash_range
from dovetail.arrays.timeline import ABSENT, Ints, Mask, Timeline
from dovetail.base.columns import DELETED, EVENT_TIME, HASH
from dovetail.operators.job import Job, combine_chunks
from dovetail.physical.specs.groups import AggregationLaw
from dovetail.state.blobs import Blobs
from dovetail.state.runs import Runs
from dovetail.state.segment import SegmentCache
from dovetail.state.table_state import TableState

_PART, _SIZE, _FIRST = "_part", "_size", "_first"


@dataclass(frozen=True)
class ListsRead:
    """The lists of one column as a batch has read them."""

    initial: Columns
    """The accumulators, a row per group. Of groups ``updated_by_part`` they hold only some parts.
    """
    updated_by_part: Mask
    """bool[groups]: the batch updates single parts of the group's list, not the whole list."""
    layout: PartLayout
    """All p parts of the groups that have any."""
    number: Ints
    """int64[p]: the id of each part within its group."""
    read: Mask
    """bool[p]: the part is in ``initial``."""
    part_of_element: Ints
    """int64: the part of each stored element, then of each value of the batch that is not null. It
    is ABSENT in groups that are not ``updated_by_part``.
    """


class Groups(Protocol):
    """Groups, by hash in non-decreasing order, and their keys."""

    @property
    def hash(self) -> Ints:
        """The hash of each group's key: int64[groups], non-decreasing."""

    @property
    def keys(self) -> Sequence[pa.Array]:
        """The key columns, one row per group."""


class Parts:
    """The long lists of one column, in two stores.

    ``index`` holds the size of each part and, if values are ordered, its first value. ``lists``
    holds the parts. Both are ordered by the upper half of the group's hash, then the part's id
    within the group. Their keys are the group's key and that id.
    """

    def __init__(
        self,
        column: int,
        kernel: Listing,
        key: Sequence[pa.Field],
        runs: Mapping[str, Runs],
        blobs: Blobs,
        cache: SegmentCache,
    ) -> None:
        """Open both stores as they were before the batch.

        ``column``: the index of the result column in the law. ``kernel``: its aggregate. ``key``:
        the group's key columns. ``runs``: the sorted runs of both stores by name: exactly two, the
        index first. ``blobs``, ``cache``: the bucket's blobs, and the segments already open.
        """
        key_fields = [(HASH, pa.int64()), (EVENT_TIME, pa.int64()), (DELETED, pa.bool_()), *key]
        key_fields.append((_PART, pa.int64()))
        first = [(_FIRST, kernel.state[0].value_type)] * kernel.ordered
        lists = [type_ for type_ in kernel.state if pa.types.is_list(type_)]
        state = [(f"_a{list_index}", type_) for list_index, type_ in enumerate(lists)]
        self.column, self.kernel = column, kernel
        self._names = tuple(runs)
        value_fields = ([(_SIZE, pa.int64()), *first], state)
        self.index, self.lists = (
            TableState(pa.schema([*key_fields, *values]), len(key) + 1, store_runs, blobs, cache)
            for store_runs, values in zip(runs.values(), value_fields, strict=True)
        )

    @property
    def runs(self) -> dict[str, Runs]:
        """The sorted runs of the index store and of the parts store, by the stores' names. They
        change as parts are stored.
        """
        return dict(zip(self._names, (self.index.runs, self.lists.runs), strict=True))

    def join_parts(self, groups: Groups, stored: Columns) -> Columns:
        """Return the accumulators of stored groups with all parts of long lists joined in, a row
        per group. The parts are read; nothing is written.

        ``groups``: the groups' hashes and keys. ``stored``: the accumulator columns in the groups'
        rows of the store of accumulators, null for a long list. If no list is long, ``stored`` is
        returned.
        """
        large = np.flatnonzero(~not_null_mask(stored[0]))
        if not len(large):
            return stored
        group, rows = self._look_up_parts(groups, large)
        part_number, size = (rows.column(name).to_numpy() for name in (_PART, _SIZE))
        order_key = part_number
        if self.kernel.ordered:
            (order_key,) = self.kernel.keys([combine_chunks(rows.column(_FIRST))])
        order = np.lexsort((order_key, group))
        layout = PartLayout.from_parts(group[order], size[order], len(groups.hash))
        lists = self._fetch_lists(groups, layout.group, part_number[order])
        return _splice_lists(stored, large, layout, np.arange(len(order)), lists)

    def _look_up_parts(self, groups: Groups, large: Ints) -> tuple[Ints, pa.Table]:
        """Look up in the index all parts of the groups with the indices ``large``, whose lists are
        stored in parts.

        Return the group of each part, int64[parts], and a table. That has the part's id, its size
        and, if the kernel is ``ordered``, its first value. Parts come in no particular order; a
        group without parts has none.
        """
        low, high = combined_hash_range(groups.hash[large])
        asked = pa.array(large)
        scan = self.index.scan(low, high, [key.take(asked) for key in groups.keys])
        columns = [self.index.key_columns[-1], *self.index.value_columns]
        return large[scan.query], scan.located.fetch(np.arange(len(scan.query)), columns)

    def read_parts(
        self,
        events: Timeline,
        is_stored: Mask,
        stored: Columns,
        updates: GroupUpdates,
        values: Columns,
    ) -> ListsRead:
        """Read the parts of long lists that the batch's updates need. Return the accumulators
        before the batch, and the layout of the parts.

        - ``events``: the batch's events by group. ``is_stored``: bool[groups], the store has a row
          of the group; a tombstone does not count.
        - ``stored``: the accumulator columns in the groups' rows of the store of accumulators, null
          for a long list. Short lists are returned as they are.
        - ``updates``: those of the batch, by group. ``values``: the aggregated columns, a row per
          update.

        Of a group with fewer updates than parts, only the parts are read to which the values
        belong, and those that the result needs. Other groups are read as a whole. So are those
        whose parts would hold fewer than 64 values on average without the values that leave.
        """
        large = np.flatnonzero(is_stored & ~not_null_mask(stored[0]))
        if not len(large):
            none = np.zeros(0, np.int64)
            layout = PartLayout.from_parts(none, none, updates.groups)
            nowhere = np.zeros(updates.groups, np.bool_)
            return ListsRead(stored, nowhere, layout, none, nowhere[:0], none)
        group, part_rows = self._look_up_parts(events, large)
        part_number, size = (part_rows.column(name).to_numpy() for name in (_PART, _SIZE))
        order = np.lexsort((part_number, group))
        layout = PartLayout.from_parts(group[order], size[order], updates.groups)
        taken = np.bincount(updates.group[updates.retracted], minlength=updates.groups)
        updated_by_part = layout.groups_updated_by_part(np.diff(updates.bounds), taken)
        listed = self.kernel.listed(values)
        update = np.flatnonzero(not_null_mask(listed))
        sought = np.flatnonzero(updated_by_part[updates.group[update]])
        asking = updates.group[update[sought]]
        if self.kernel.ordered:
            first, sought_key = self.kernel.keys(
                [combine_chunks(part_rows.column(_FIRST)), listed.take(pa.array(update[sought]))]
            )
            order = np.lexsort((first, group))
            layout = PartLayout.from_parts(group[order], size[order], updates.groups)
            sought_part = layout.part_of_values(first[order], asking, sought_key)
        else:
            sought_part = layout.last_parts(asking)

        read = np.ones(len(order), np.bool_)
        if self.kernel.reads != "all":
            read = ~updated_by_part[layout.group]
            if self.kernel.reads != "none":
                read |= layout.parts_at_end(self.kernel.reads, taken + self.kernel.reach)
            read[sought_part] = True
        part = np.flatnonzero(read)
        lists = self._fetch_lists(events, layout.group[part], part_number[order[part]])
        initial = _splice_lists(stored, large, layout, part, lists)
        part_of_update = np.full(len(update), ABSENT)
        part_of_update[sought] = sought_part
        part_of_stored = _parts_of_stored_elements(initial[0], layout, updated_by_part, part)
        return ListsRead(
            initial,
            updated_by_part,
            layout,
            part_number[order],
            read,
            np.append(part_of_stored, part_of_update),
        )

    def _fetch_lists(self, groups: Groups, group: Ints, part_number: Ints) -> Columns:
        """Return the lists of some parts: list columns with one row per part, in the given order.

        ``groups``: the groups' hashes and keys. ``group``: int64[parts], the index of each part's
        group. ``part_number``: int64[parts], the part's id. A part that is not stored raises
        ``AssertionError``.
        """
        hash_ = combine_hashes(groups.hash[group], part_number)
        order = np.argsort(hash_)
        owner = pa.array(group[order])
        keys = [*(key.take(owner) for key in groups.keys), pa.array(part_number[order])]
        located = self.lists.locate(hash_[order], keys)
        assert located.present.all(), "a part is in the index but not in the store"
        sorted_index = np.empty(len(order), np.int64)
        sorted_index[order] = np.arange(len(order))
        parts = located.fetch(sorted_index, self.lists.value_columns)
        return [combine_chunks(column) for column in parts.columns]

    def store_parts(
        self, read: ListsRead, events: Timeline, traced: TracedAccumulators, time_us: Ints
    ) -> Columns:
        """Store the changed parts of long lists, and delete the parts that a list no longer has.
        Return the accumulators for the groups' rows in the store of accumulators, a row per group;
        long lists are null. Call it once a batch.

        ``read``: the parts that were read; ``traced``: all lists after the batch. ``events``: those
        of the batch, by group. ``time_us``: int64[groups], the event time under which each group's
        parts are stored.

        An example: a list has the parts 0 and 1, and the batch works on parts. Part 0 is unchanged
        and not written; part 1 has grown to 1025 values, so it is cut:

        | piece | values | id of the part                  |
        |-------|--------|---------------------------------|
        | 0     | 341    | 1, that of the part it replaces |
        | 1     | 342    | 3, new                          |
        | 2     | 342    | 4, new                          |

        New ids are above the group's highest, and may have gaps.
        """
        size = list_sizes(traced.columns[0])
        large = read.updated_by_part | is_long(size)
        if not len(read.number) and not large.any():
            return traced.columns
        layout, parts, groups = read.layout, len(read.number), np.arange(len(size))

        # A run is cut as a whole: one part or, of a group not updated by part, the whole list.
        run = np.repeat(parts + groups, size)
        by_part = np.repeat(read.updated_by_part, size)
        run[by_part] = read.part_of_element[traced.since[by_part]]
        changed = read.read & ~_unchanged_parts(read, traced, run)
        replaced = ~read.updated_by_part[layout.group] | changed
        written = np.append(
            replaced & read.updated_by_part[layout.group], large & ~read.updated_by_part
        )
        element = np.flatnonzero(written[run])
        run = run[element]
        begin = np.flatnonzero(np.diff(run, prepend=-1))
        of, ordinal, length = cut_into_parts(np.diff(begin, append=len(run)))
        run = run[begin][of]

        # A part takes the number of a part that it replaces, while there are any.
        is_part = run < parts
        group = run - parts
        group[is_part] = layout.group[run[is_part]]
        former = np.where(is_part, run, layout.start[group]) + ordinal
        again = ordinal < np.where(is_part, 1, layout.parts[group])
        part_number = _new_part_ids(read, group)
        part_number[again] = read.number[former[again]]
        gone = replaced
        gone[former[again]] = False
        self._write_parts(
            events,
            np.append(group, layout.group[gone]),
            np.append(part_number, read.number[gone]),
            length,
            [
                column.flatten().take(pa.array(element))
                for column in self._list_columns(traced.columns)
            ],
            time_us,
        )
        small_group = pa.array(groups, mask=large)
        lists = self._list_columns(traced.columns)
        return [*(column.take(small_group) for column in lists), *traced.columns[len(lists) :]]

    def _write_parts(
        self,
        events: Timeline,
        group: Ints,
        part_number: Ints,
        size: Ints,
        lists: Columns,
        time_us: Ints,
    ) -> None:
        """Write parts to both stores: n parts with their lists, then m tombstones.

        - ``events``: those of the batch, by group.
        - ``group``, ``part_number``: int64[n + m], the index of the group and the id of each part.
        - ``size``: int64[n], the count of values in each part.
        - ``lists``: per list column the values of the n parts, one after the other.
        - ``time_us``: int64[groups], the event time under which parts are stored.
        """
        hash_ = combine_hashes(events.hash[group], part_number)
        order = np.argsort(hash_)
        there = order < len(size)
        row, owner = pa.array(order, mask=~there), pa.array(group[order])
        shared_columns = [
            pa.array(hash_[order]),
            pa.array(time_us[group[order]]),
            pa.array(~there),
            *(key.take(owner) for key in events.keys),
            pa.array(part_number[order]),
        ]
        index = [pa.array(size)]
        if self.kernel.ordered:
            index.append(lists[0].take(pa.array(np.cumsum(size) - size)))
        parts = [lists_of(size, column) for column in lists]
        for store, columns in ((self.index, index), (self.lists, parts)):
            rows = [*shared_columns, *(column.take(row) for column in columns)]
            store.store(pa.table(rows, schema=store.schema))

    def _list_columns(self, accumulators: Columns) -> Columns:
        """Return the columns of ``accumulators`` that are lists: the first ones, in order."""
        return accumulators[: len(self.lists.value_columns)]


def open_parts(job: Job, law: AggregationLaw) -> list[Parts]:
    """Open the two stores of parts of each result column in ``law.long_list_columns``, as they were
    before the batch. Return one ``Parts`` per such column, in that order; an empty list if there
    are none.
    """
    parts = []
    for column in law.long_list_columns:
        kernel = law.columns[column].kernel
        assert isinstance(kernel, Listing)
        runs = {name: job.stored_runs(name) for name in law.list_store_names(column)}
        parts.append(Parts(column, kernel, job.operator.key, runs, job.blobs, job.cache))
    return parts


def _splice_lists(
    stored: Columns, large: Ints, layout: PartLayout, part: Ints, lists: Columns
) -> list[pa.Array]:
    """Return the ``stored`` accumulator columns, a row per group, with the lists of ``large``
    groups filled in from their parts. Lists of other groups stay.

    ``large``: int64, the indices of the groups whose lists are stored in parts. ``layout``: all
    their parts. ``part``: int64, the parts that were read, by group, as indices into ``layout``.
    ``lists``: per list column, the list of each such part. A group's parts are joined in their
    order.
    """
    size = np.zeros(len(stored[0]), np.int64)
    np.add.at(size, layout.group[part], layout.size[part])
    joined = [lists_of(size[large], column.flatten()) for column in lists]
    return [*replace_rows(stored[: len(lists)], large, joined), *stored[len(lists) :]]


def _parts_of_stored_elements(
    lists: pa.Array, layout: PartLayout, updated_by_part: Mask, part: Ints
) -> Ints:
    """Return the part of each element of ``lists``, as an index into ``layout``: int64[elements],
    in their order. It is ABSENT in a group that is not updated part by part.

    ``lists``: one list per group; null counts as empty. ``updated_by_part``: bool[groups], true for
    groups updated part by part. ``part``: int64, the parts that were read, as indices into
    ``layout``, ascending. The sizes of those in such groups add up to these groups' lists.
    """
    part_of_element = np.full(len(lists.flatten()), ABSENT)
    part = part[updated_by_part[layout.group[part]]]
    in_part = np.repeat(updated_by_part, list_sizes(lists))
    part_of_element[in_part] = np.repeat(part, layout.size[part])
    return part_of_element


def _unchanged_parts(read: ListsRead, traced: TracedAccumulators, part_of_element: Ints) -> Mask:
    """Return a mask of the p parts in ``read`` that hold exactly the elements that they held before
    the batch: bool[p]. p counts all parts of the groups. One that was not read (``read.read`` is
    false) is false here, too. The order of elements does not count.

    ``traced``: the lists after the batch. ``part_of_element``: int64, for each element after the
    batch the index of the part to which it belongs; an index from p on is no part.
    """
    parts, old = len(read.number), len(read.initial[0].flatten())
    stood = traced.latest < old
    part_pairs = (part_of_element, part_of_element[stood])
    now, same = (np.bincount(which, minlength=parts)[:parts] for which in part_pairs)
    unchanged: Mask = (now == read.layout.size) & (same == now)
    return unchanged


def _new_part_ids(read: ListsRead, group: Ints) -> Ints:
    """Return a new part id for each element of ``group``, above all ids that this group has in
    ``read``: int64, one per element.

    ``group``: int64, non-decreasing indices of groups. The new ids of one group ascend by 1, from 0
    for a group without parts.
    """
    highest = np.full(len(read.layout.parts), -1)
    np.maximum.at(highest, read.layout.group, read.number)
    ordinal = np.arange(len(group)) - np.searchsorted(group, group)
    fresh: Ints = highest[group] + 1 + ordinal
    return fresh
