"""Joins between tables that share a key: the result of each record.

A tree of joins over the tables of one stage is evaluated as a whole, so a chain keeps no
intermediate result. The stored state of a join is a function of the state of its tables.

The law of one join follows KIP-77 and Kafka Streams. A record is an upsert, which puts a row in the
place of its key's former one, or a *tombstone*, which deletes it. The record changes the row of one
side from ``old`` to ``new`` while the ``other`` side stands, each a presence bit:

- A side is *preserved* when its rows appear without a match: the left side in a left join, the
  right one in a right join, both in an outer join.
- A result is emitted if ``other``, or if the record's side is preserved and ``new or old``. If the
  record's table is on both sides, ``other`` before the record counts, too, so a row that goes takes
  the result with it.
- The result is a row if both sides are present or a preserved one is. Otherwise it is a tombstone.
- Its timestamp is the larger of the record's and, if present, the other side's.

| record        | inner        | left         | outer        |
|---------------|--------------|--------------|--------------|
| left A at 3   | nothing      | A + null @ 3 | A + null @ 3 |
| right a at 4  | A + a @ 4    | A + a @ 4    | A + a @ 4    |
| left ∅ at 5   | ∅ @ 5        | ∅ @ 5        | null + a @ 5 |
| right ∅ at 6  | nothing      | nothing      | ∅ @ 6        |

``∅`` is a tombstone. Source: KIP-77 "KTable-KTable"; spec/table_table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from dovetail.arrays.grouping import argsort_distinct, last_of_each
from dovetail.arrays.timeline import ABSENT, NO_TIME, Ints, Mask, Timeline, versions_around

How: TypeAlias = Literal["inner", "left", "right", "outer"]


@dataclass(frozen=True)
class TreeLeaf:
    """One table of the stage, by the index of its source."""

    source: int


@dataclass(frozen=True)
class TreeJoin:
    """Two sides joined on the stage's key."""

    left: Tree
    right: Tree
    how: How


Tree: TypeAlias = TreeLeaf | TreeJoin


@dataclass(frozen=True)
class StoredRows:
    """The rows of one source from earlier batches: presence and time of each group's row."""

    present: Mask
    """bool[groups]: the group has a row."""
    event_time_us: Ints
    """int64[groups]: the time of the row; any value for none."""


@dataclass(frozen=True)
class Changes:
    """The m results in order: the record that caused each, and the row it makes or deletes."""

    event: Ints
    """int64[m]: the event's index in the timeline."""
    present: Mask
    """bool[m]: false for a tombstone."""
    event_time_us: Ints
    """int64[m]: the time of the result, in microseconds."""
    reference: tuple[Ints, ...]
    """int64[m] per leaf, from left to right: the row version in the result, ABSENT for nulls."""

    def select(self, selected: Ints | Mask) -> Changes:
        """Return the selected changes, with all their columns: those at the indices ``selected``,
        in that order, or those for which the mask is true.
        """
        return Changes(
            self.event[selected],
            self.present[selected],
            self.event_time_us[selected],
            tuple(refs[selected] for refs in self.reference),
        )


@dataclass(frozen=True)
class _Subtree:
    """One subtree's row at some events: its presence, its time, and the versions that it consists
    of.
    """

    present: Mask
    event_time_us: Ints
    """The time of the row; of no meaning where there is none."""
    reference: tuple[Ints, ...]
    """The row version of each leaf, from left to right, ABSENT for none."""


def tree_sources(tree: Tree) -> Iterator[int]:
    """Yield the sources of a tree, by their indices in the stage, from left to right, at least one.
    A source that is used twice comes twice.
    """
    if isinstance(tree, TreeLeaf):
        yield tree.source
    else:
        yield from tree_sources(tree.left)
        yield from tree_sources(tree.right)


def sides_preserved(how: How) -> tuple[bool, bool]:
    """Return for the left and the right side True if its rows appear without a match: the left's in
    a left and an outer join, the right's in a right and an outer join.
    """
    return how in ("left", "outer"), how in ("right", "outer")


def join_tables(
    tree: Tree,
    timeline: Timeline,
    stored: Mapping[int, StoredRows],
    row_time_us: Mapping[int, Ints],
    current: Mapping[int, Mask],
) -> Changes:
    """Return the result of every record, in arrival order (``emit="change"``): its event, time, and
    the row of each leaf of the tree; it is a tombstone if not ``present``. A record for which the
    tree emits nothing has no result. A join emits if the other side has a row, or if the record's
    side is preserved and has or had one. It passes on the larger time of the record and of the
    other side's row.

    - ``tree``: the joins of the stage's tables. ``timeline``: the batch's events.
    - ``stored``: by source index, the presence and time of each group's stored row.
    - ``row_time_us``: by source index, int64[rows], the time of each of the batch's rows.
    - ``current``: by the index of a versioned source, bool[n], the events that are the latest
      version of their key when they arrive. Its other events change nothing. A source that is
      missing here counts all of its events.

    A record of a table that occurs twice in the tree gives a result through each occurrence, from
    left to right. Both see the table as the record leaves it.
    """
    after = {
        source: versions_around(timeline, source, stored[source].present, current.get(source))
        for source in set(tree_sources(tree))
    }
    times = {
        source: np.concatenate((stored[source].event_time_us, row_time_us[source]))
        for source in after
    }
    parts = []
    for occurrence, source in enumerate(tree_sources(tree)):
        events = np.flatnonzero(current.get(source, timeline.source == source))
        before_refs, _ = after[source]
        now = {s: refs[1][events] for s, refs in after.items()}
        trail = _Trail(
            events=events,
            event_time_us=timeline.event_time_us[events],
            source=source,
            before={**now, source: before_refs[events]},
            now=now,
            times=times,
        )
        emitted, side, _ = trail.climb(tree, occurrence)
        changes = Changes(events, side.present, side.event_time_us, side.reference)
        parts.append(changes.select(emitted))
    return _in_arrival_order(parts, timeline)


def join_stream(
    tree: Tree, timeline: Timeline, events: Ints, reference: Mapping[int, Ints]
) -> Changes:
    """Return the results of a stream's records, in arrival order, all rows with the record's time.
    A record that lacks the right row of an inner join has no result.

    ``tree``: the join, with the stream as its first leaf; of a join only the stream's side may be
    preserved. ``timeline``: the batch's events. ``events``: int64[m], the indices of the records'
    events. ``reference``: for each source of the tree, the stream included, int64[m]: the row that
    each record finds there, ABSENT for none.
    """
    emitted, refs = _find_leaf_rows(tree, reference)
    everything = Changes(
        events, np.ones(len(events), np.bool_), timeline.event_time_us[events], refs
    )
    order = timeline.by_arrival(events)
    return everything.select(order[emitted[order]])


def _find_leaf_rows(tree: Tree, reference: Mapping[int, Ints]) -> tuple[Mask, tuple[Ints, ...]]:
    """Return a mask of the records that are emitted, bool[m], and the rows that they find. These
    are int64[m] for each leaf of ``tree``, from left to right.

    ``reference``: for each source of the tree int64[m], the row that each record finds, ABSENT for
    none. A record is not emitted if an inner join of ``tree`` has no right row for it.
    """
    if isinstance(tree, TreeLeaf):
        refs = reference[tree.source]
        return np.ones(len(refs), dtype=np.bool_), (refs,)
    emitted, left = _find_leaf_rows(tree.left, reference)
    right = _subtree_rows(tree.right, reference, None)
    return emitted & (right.present | sides_preserved(tree.how)[0]), (*left, *right.reference)


def net_changes(
    tree: Tree,
    timeline: Timeline,
    stored: Mapping[int, StoredRows],
    changes: Changes,
) -> tuple[Changes, Changes]:
    """Return each key's last change in the batch, and its result before the batch
    (``emit="batch"``). Both are ``Changes`` with the same keys row by row.

    Keys lie in the order of their last changes in ``changes``. Keys that have a row neither before
    nor after the batch are left out. The caller removes the rows whose values turn out equal.

    ``tree``: the joins. ``timeline``: the batch's events. ``stored``: by source index, the stored
    row of each group. ``changes``: all changes of the batch, each key's by arrival.
    """
    group = timeline.group[changes.event]
    last = last_of_each(group)
    final = changes.select(last)
    touched = group[last]
    times = {source: stored[source].event_time_us for source in stored}
    references = {
        source: np.where(stored[source].present[touched], touched, ABSENT) for source in stored
    }
    side = _subtree_rows(tree, references, times)
    before = Changes(final.event, side.present, side.event_time_us, side.reference)
    visible = final.present | before.present
    return final.select(visible), before.select(visible)


@dataclass(frozen=True)
class _Trail:
    """The path of one source's events from a leaf up to the root of the tree."""

    events: Ints
    event_time_us: Ints
    source: int
    before: Mapping[int, Ints]
    """Per source, the reference to the row before each event; only that of ``source`` differs from
    ``now``.
    """
    now: Mapping[int, Ints]
    """Per source, the reference to the row after each event."""
    times: Mapping[int, Ints]
    """Per source, the time of each row by reference."""

    def climb(self, tree: Tree, occurrence: int) -> tuple[Mask, _Subtree, Mask]:
        """Return three values for ``tree`` at each event of the trail. The first is a mask of the
        events at which it emits a result. Its row after the event follows: presence, time and the
        row of each leaf. The last is a mask of the events before which it had a row.

        ``occurrence``: the index of the leaf of ``tree`` that the events change, from 0, from left
        to right.
        """
        if isinstance(tree, TreeLeaf):
            side = _subtree_rows(tree, self.now, self.times)
            old = self.before[tree.source] != ABSENT
            everything = np.ones(len(self.events), dtype=np.bool_)
            return everything, _Subtree(side.present, self.event_time_us, side.reference), old
        width = sum(1 for _ in tree_sources(tree.left))
        from_right = occurrence >= width
        changed_tree, other_tree = (
            (tree.right, tree.left) if from_right else (tree.left, tree.right)
        )
        emitted, changed, old = self.climb(
            changed_tree, occurrence - width if from_right else occurrence
        )
        other = _subtree_rows(other_tree, self.now, self.times)
        other_old = other.present
        if self.source in tree_sources(other_tree):
            other_old = _subtree_rows(other_tree, self.before, self.times).present
        keeps = sides_preserved(tree.how)
        emitted = emitted & (
            other.present | other_old | (keeps[from_right] & (changed.present | old))
        )
        row = _join_rows(other, changed, keeps) if from_right else _join_rows(changed, other, keeps)
        had_row = (
            (old & other_old) | (old & keeps[from_right]) | (other_old & keeps[not from_right])
        )
        return emitted, row, had_row


def _subtree_rows(
    tree: Tree, reference: Mapping[int, Ints], times: Mapping[int, Ints] | None
) -> _Subtree:
    """Return the row of a subtree for n combinations of its tables' rows: its presence, its time,
    and the row of each leaf.

    ``reference``: by source index, int64[n], the row of that table, ABSENT for none. ``times``: by
    source index, the time of each row by its reference; None if times are not needed. The result's
    time is ``NO_TIME`` if there is no row, or if ``times`` is None.
    """
    if isinstance(tree, TreeLeaf):
        refs = reference[tree.source]
        present = refs != ABSENT
        if times is None:
            return _Subtree(present, np.full(len(refs), NO_TIME), (refs,))
        time = np.append(times[tree.source], NO_TIME)[refs]
        return _Subtree(present, time, (refs,))
    left, right = (
        _subtree_rows(tree.left, reference, times),
        _subtree_rows(tree.right, reference, times),
    )
    side = _join_rows(left, right, sides_preserved(tree.how))
    return _Subtree(
        side.present, np.where(side.present, side.event_time_us, NO_TIME), side.reference
    )


def _join_rows(left: _Subtree, right: _Subtree, keeps: tuple[bool, bool]) -> _Subtree:
    """Return the joined row of two sides at each event, with the larger time of both. The leaves of
    a missing side are ABSENT, and so are all leaves if there is no row; its time then means
    nothing.

    ``keeps``: for the left and the right side, True if its rows appear without a match.
    """
    present = (
        (left.present & right.present) | (left.present & keeps[0]) | (right.present & keeps[1])
    )
    reference = tuple(
        np.where(present & side.present, refs, ABSENT)
        for side in (left, right)
        for refs in side.reference
    )
    return _Subtree(present, np.maximum(left.event_time_us, right.event_time_us), reference)


def _in_arrival_order(parts: list[Changes], timeline: Timeline) -> Changes:
    """Concatenate the changes in ``parts``, at least one, and return them by arrival; those of one
    event are in the order of ``parts``.

    The events of each part must be distinct. All parts have as many references.
    """
    event = np.concatenate([part.event for part in parts])
    part_of = np.repeat(np.arange(len(parts)), [len(part.event) for part in parts])
    moment = timeline.arrival[event] * len(parts) + part_of
    merged = Changes(
        event,
        np.concatenate([part.present for part in parts]),
        np.concatenate([part.event_time_us for part in parts]),
        tuple(np.concatenate(refs) for refs in zip(*(p.reference for p in parts), strict=True)),
    )
    return merged.select(argsort_distinct(moment, len(timeline.arrival) * len(parts)))
