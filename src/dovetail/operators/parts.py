"""Lists that have grown long, in parts (``Parts``): what a batch reads and writes of them goes by
what it updates.

An accumulator that lists its group's values (``aggregates.multiset.Listing``) lies in the group's
row while it is short. Of a longer list that row has null. The list lies in parts then, each a row
of a store of its own, and another store is their index. A batch that updates few of a group's
values reads the parts that they belong to, and those that the result needs, and writes those that
have changed. One that updates many reads the whole list and cuts it anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from dovetail.aggregates.aggregate import Columns, Traced, Updates, valid
from dovetail.aggregates.multiset import Listing, lists_of, sizes
from dovetail.aggregates.parts import Layout, cut, is_long
from dovetail.aggregates.scans import replaced
from dovetail.arrays.timeline import ABSENT, Ints, Mask, Timeline
from dovetail.columns import DELETED, EVENT_TIME, HASH
from dovetail.laws.foreign_key_join import combined, combined_range
from dovetail.operators.job import Job, whole
from dovetail.physical.groups import Aggregation
from dovetail.state.blobs import Blobs
from dovetail.state.runs import Runs
from dovetail.state.segment import SegmentCache
from dovetail.state.table_state import TableState

_PART, _SIZE, _FIRST = "_part", "_size", "_first"


@dataclass(frozen=True)
class Read:
    """What a batch has of one column's lists.

    ``initial``: the accumulators, a row per group, of those ``apart`` some parts only; ``apart``:
    bool[groups], which are worked on by parts; ``layout``: all parts of the groups that have any;
    ``number``: int64[p], their numbers; ``read``: bool[p], which are in ``initial``; ``home``: the
    part to which each stored element belongs, then each value of the batch that is not null, ABSENT
    in groups that are not apart.
    """

    initial: Columns
    apart: Mask
    layout: Layout
    number: Ints
    read: Mask
    home: Ints


class Groups(Protocol):
    """Groups by their hash, which does not decrease, and their keys."""

    @property
    def hash(self) -> Ints:
        """The hash of each."""

    @property
    def keys(self) -> Sequence[pa.Array]:
        """The key's columns."""


class Parts:
    """The long lists of one column. Both stores are ordered by the upper half of the group's hash,
    then the part's number; their keys are the group's and that number. ``index``: how many values
    each part has and, where they are ordered, the first; ``lists``: the parts.
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
        """``column``: its number; ``key``: the group's columns; ``runs``: by name what both stores
        consist of, the index first.
        """
        own = [(HASH, pa.int64()), (EVENT_TIME, pa.int64()), (DELETED, pa.bool_()), *key]
        own.append((_PART, pa.int64()))
        first = [(_FIRST, kernel.state[0].value_type)] * kernel.ordered
        lists = [type_ for type_ in kernel.state if pa.types.is_list(type_)]
        state = [(f"_a{number}", type_) for number, type_ in enumerate(lists)]
        self.column, self.kernel = column, kernel
        self._names = tuple(runs)
        held = ([(_SIZE, pa.int64()), *first], state)
        self.index, self.lists = (
            TableState(pa.schema([*own, *values]), len(key) + 1, given, blobs, cache)
            for given, values in zip(runs.values(), held, strict=True)
        )

    @property
    def runs(self) -> dict[str, Runs]:
        """What the manifest records of both stores."""
        return dict(zip(self._names, (self.index.runs, self.lists.runs), strict=True))

    def whole(self, groups: Groups, stored: Columns) -> Columns:
        """The whole accumulators of groups that are stored; ``stored``: those in their rows."""
        large = np.flatnonzero(~valid(stored[0]))
        if not len(large):
            return stored
        group, rows = self._parts(groups, large)
        number, size = (rows.column(name).to_numpy() for name in (_PART, _SIZE))
        place = number
        if self.kernel.ordered:
            (place,) = self.kernel.keys([whole(rows.column(_FIRST))])
        order = np.lexsort((place, group))
        layout = Layout.of(group[order], size[order], len(groups.hash))
        lists = self._fetch(groups, layout.group, number[order])
        return _spliced(stored, large, layout, np.arange(len(order)), lists)

    def _parts(self, groups: Groups, large: Ints) -> tuple[Ints, pa.Table]:
        """The parts of the ``large`` ones among the groups: whose each is, and its row of the
        index.
        """
        low, high = combined_range(groups.hash[large])
        asked = pa.array(large)
        found = self.index.scan(low, high, [key.take(asked) for key in groups.keys])
        columns = [self.index.key_columns[-1], *self.index.value_columns]
        return large[found.query], found.located.fetch(np.arange(len(found.query)), columns)

    def read(
        self, events: Timeline, known: Mask, stored: Columns, updates: Updates, values: Columns
    ) -> Read:
        """What the updates by ``values`` need. ``known``: which groups are stored; ``stored``: the
        accumulators in their rows.
        """
        large = np.flatnonzero(known & ~valid(stored[0]))
        if not len(large):
            none = np.zeros(0, np.int64)
            layout = Layout.of(none, none, updates.groups)
            nowhere = np.zeros(updates.groups, np.bool_)
            return Read(stored, nowhere, layout, none, nowhere[:0], none)
        group, part_rows = self._parts(events, large)
        number, size = (part_rows.column(name).to_numpy() for name in (_PART, _SIZE))
        order = np.lexsort((number, group))
        layout = Layout.of(group[order], size[order], updates.groups)
        taken = np.bincount(updates.group[updates.retracted], minlength=updates.groups)
        apart = layout.apart(np.diff(updates.bounds), taken)
        listed = self.kernel.listed(values)
        update = np.flatnonzero(valid(listed))
        sought = np.flatnonzero(apart[updates.group[update]])
        asking = updates.group[update[sought]]
        if self.kernel.ordered:
            first, came = self.kernel.keys(
                [whole(part_rows.column(_FIRST)), listed.take(pa.array(update[sought]))]
            )
            order = np.lexsort((first, group))
            layout = Layout.of(group[order], size[order], updates.groups)
            homes = layout.homes(first[order], asking, came)
        else:
            homes = layout.last(asking)

        read = np.ones(len(order), np.bool_)
        if self.kernel.reads != "all":
            read = ~apart[layout.group]
            if self.kernel.reads != "none":
                read |= layout.at_end(self.kernel.reads, taken + self.kernel.reach)
            read[homes] = True
        part = np.flatnonzero(read)
        lists = self._fetch(events, layout.group[part], number[order[part]])
        initial = _spliced(stored, large, layout, part, lists)
        home = np.full(len(update), ABSENT)
        home[sought] = homes
        of_stored = _homes_of_stored(initial[0], layout, apart, part)
        return Read(initial, apart, layout, number[order], read, np.append(of_stored, home))

    def _fetch(self, groups: Groups, group: Ints, number: Ints) -> Columns:
        """The lists of parts by group and number."""
        hash_ = combined(groups.hash[group], number)
        order = np.argsort(hash_)
        owner = pa.array(group[order])
        keys = [*(key.take(owner) for key in groups.keys), pa.array(number[order])]
        found = self.lists.locate(hash_[order], keys)
        assert found.present.all(), "a part is in the index but not in the store"
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        parts = found.fetch(place, self.lists.value_columns)
        return [whole(column) for column in parts.columns]

    def keep(self, read: Read, events: Timeline, made: Traced, time_us: Ints) -> Columns:
        """Store what has changed in long lists; what stays in the groups' rows, of those with a
        long list null for it. ``time_us``: the groups' times.
        """
        size = sizes(made.columns[0])
        large = read.apart | is_long(size)
        if not len(read.number) and not large.any():
            return made.columns
        layout, parts, groups = read.layout, len(read.number), np.arange(len(size))

        # Runs of elements that are cut together: a part or, of a group that is not apart, all.
        run = np.repeat(parts + groups, size)
        by_part = np.repeat(read.apart, size)
        run[by_part] = read.home[made.since[by_part]]
        replaced = ~read.apart[layout.group] | (read.read & ~_unchanged(read, made, run))
        written = np.append(replaced & read.apart[layout.group], large & ~read.apart)
        element = np.flatnonzero(written[run])
        run = run[element]
        begin = np.flatnonzero(np.diff(run, prepend=-1))
        of, ordinal, length = cut(np.diff(begin, append=len(run)))
        run = run[begin][of]

        # A part takes the number of one that it replaces, as long as there are such.
        is_part = run < parts
        group = run - parts
        group[is_part] = layout.group[run[is_part]]
        former = np.where(is_part, run, layout.start[group]) + ordinal
        again = ordinal < np.where(is_part, 1, layout.parts[group])
        number = _fresh(read, group)
        number[again] = read.number[former[again]]
        gone = replaced
        gone[former[again]] = False
        self._store(
            events,
            np.append(group, layout.group[gone]),
            np.append(number, read.number[gone]),
            length,
            [column.flatten().take(pa.array(element)) for column in self._lists(made.columns)],
            time_us,
        )
        kept = pa.array(groups, mask=large)
        lists = self._lists(made.columns)
        return [*(column.take(kept) for column in lists), *made.columns[len(lists) :]]

    def _store(
        self,
        events: Timeline,
        group: Ints,
        number: Ints,
        size: Ints,
        lists: Columns,
        time_us: Ints,
    ) -> None:
        """Store parts by group and number: those of these sizes, then others that are gone."""
        hash_ = combined(events.hash[group], number)
        order = np.argsort(hash_)
        there = order < len(size)
        row, owner = pa.array(order, mask=~there), pa.array(group[order])
        own = [
            pa.array(hash_[order]),
            pa.array(time_us[group[order]]),
            pa.array(~there),
            *(key.take(owner) for key in events.keys),
            pa.array(number[order]),
        ]
        index = [pa.array(size)]
        if self.kernel.ordered:
            index.append(lists[0].take(pa.array(np.cumsum(size) - size)))
        parts = [lists_of(size, column) for column in lists]
        for store, columns in ((self.index, index), (self.lists, parts)):
            rows = [*own, *(column.take(row) for column in columns)]
            store.store(pa.table(rows, schema=store.schema))

    def _lists(self, accumulators: Columns) -> Columns:
        """Those columns of them that are lists."""
        return accumulators[: len(self.lists.value_columns)]


def parts_of(job: Job, law: Aggregation) -> list[Parts]:
    """Those of all columns that may have them."""
    found = []
    for column in law.listed:
        kernel = law.columns[column].kernel
        assert isinstance(kernel, Listing)
        runs = {name: job.runs(name) for name in law.lists(column)}
        found.append(Parts(column, kernel, job.operator.key, runs, job.blobs, job.cache))
    return found


def _spliced(
    stored: Columns, large: Ints, layout: Layout, part: Ints, lists: Columns
) -> list[pa.Array]:
    """The stored accumulators, the lists of the ``large`` groups put together from these parts."""
    size = np.zeros(len(stored[0]), np.int64)
    np.add.at(size, layout.group[part], layout.size[part])
    joined = [lists_of(size[large], column.flatten()) for column in lists]
    return [*replaced(stored[: len(lists)], large, joined), *stored[len(lists) :]]


def _homes_of_stored(lists: pa.Array, layout: Layout, apart: Mask, part: Ints) -> Ints:
    """The part of each element of all lists, ABSENT where its group is not apart."""
    home = np.full(len(lists.flatten()), ABSENT)
    part = part[apart[layout.group[part]]]
    home[np.repeat(apart, sizes(lists))] = np.repeat(part, layout.size[part])
    return home


def _unchanged(read: Read, made: Traced, run: Ints) -> Mask:
    """Which parts have the elements that they had, untouched: bool[p]."""
    parts, old = len(read.number), len(read.initial[0].flatten())
    stood = made.latest < old
    now, same = (np.bincount(which, minlength=parts)[:parts] for which in (run, run[stood]))
    unchanged: Mask = (now == read.layout.size) & (same == now)
    return unchanged


def _fresh(read: Read, group: Ints) -> Ints:
    """Numbers for new parts of these groups, non-decreasing, above all that they have."""
    highest = np.full(len(read.layout.parts), -1)
    np.maximum.at(highest, read.layout.group, read.number)
    ordinal = np.arange(len(group)) - np.searchsorted(group, group)
    fresh: Ints = highest[group] + 1 + ordinal
    return fresh
