"""Joins between tables that share a key: which result each record gives.

A tree of joins over the tables of one stage is evaluated as a whole, so that a chain keeps no
intermediate result: what a join stores is a function of what its tables store. The law of one join,
for a record that changes the row of one side from ``old`` to ``new`` while the ``other`` side
stands (each a presence bit), as KIP-77's suggested table has it and Kafka Streams does it:

- a side is *preserved* when its rows appear without a match (left join: the left; outer: both);
- a result is emitted when ``other``, or when the record's side is preserved and ``new or old``;
  where the record's table is on both sides, ``other`` before the record counts too, so that a row
  that goes takes the result with it;
- it is a row when both sides are present or one that is preserved is; otherwise a tombstone;
- its timestamp is the record's or, where present, the other side's, whichever is larger.

Source: KIP-77 "KTable-KTable"; spec/table_table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from dovetail.arrays.timeline import ABSENT, NO_TIME, Ints, Mask, Timeline, versions

How: TypeAlias = Literal["inner", "left", "right", "outer"]


@dataclass(frozen=True)
class Leaf:
    """One table of the stage, by the number of its source."""

    source: int


@dataclass(frozen=True)
class Join:
    """Two sides joined on the stage's key."""

    left: Tree
    right: Tree
    how: How


Tree: TypeAlias = Leaf | Join


@dataclass(frozen=True)
class Stored:
    """What one source holds from earlier batches: presence and time of each group's row."""

    present: Mask
    event_time_us: Ints


@dataclass(frozen=True)
class Changes:
    """m results in order: the record that caused each, and the row it makes or deletes.

    ``event``: int64[m], the event's number in the timeline; ``present``: bool[m], false for a
    tombstone; ``event_time_us``: int64[m]; ``reference``: per leaf of the tree, from left to right,
    int64[m], the row version that the result holds, ABSENT where the leaf contributes nulls.
    """

    event: Ints
    present: Mask
    event_time_us: Ints
    reference: tuple[Ints, ...]

    def where(self, kept: Ints | Mask) -> Changes:
        """Some of the changes."""
        return Changes(
            self.event[kept],
            self.present[kept],
            self.event_time_us[kept],
            tuple(refs[kept] for refs in self.reference),
        )


@dataclass(frozen=True)
class _Side:
    """One subtree's row at some events: its presence, its time, and the versions it is made of."""

    present: Mask
    event_time_us: Ints
    reference: tuple[Ints, ...]


def leaves(tree: Tree) -> Iterator[int]:
    """The sources of a tree from left to right; one that is used twice comes twice."""
    if isinstance(tree, Leaf):
        yield tree.source
    else:
        yield from leaves(tree.left)
        yield from leaves(tree.right)


def preserved(how: How) -> tuple[bool, bool]:
    """Whether the left and the right side's rows appear without a match."""
    return how in ("left", "outer"), how in ("right", "outer")


def join_tables(
    tree: Tree,
    timeline: Timeline,
    stored: Mapping[int, Stored],
    row_time_us: Mapping[int, Ints],
    current: Mapping[int, Mask],
) -> Changes:
    """Every record's own result, in arrival order (``emit="change"``).

    ``stored``: per source the groups' rows from earlier batches; ``row_time_us``: per source the
    batch rows' timestamps; ``current``: per versioned source which events are the latest version of
    their key as they arrive: its others change nothing. A record of a table that occurs twice in
    the tree gives a result through each occurrence, from left to right, both on the table as the
    record leaves it.
    """
    after = {
        source: versions(timeline, source, stored[source].present, current.get(source))
        for source in set(leaves(tree))
    }
    times = {
        source: np.concatenate((stored[source].event_time_us, row_time_us[source]))
        for source in after
    }
    parts = []
    for occurrence, source in enumerate(leaves(tree)):
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
        parts.append(changes.where(emitted))
    return _in_arrival_order(parts, timeline)


def look_up(tree: Tree, timeline: Timeline, events: Ints, reference: Mapping[int, Ints]) -> Changes:
    """The results of a stream's records, the first leaf's, in arrival order.

    ``events``: int64[m], theirs in the timeline; ``reference``: per source int64[m], the row that
    each finds there. Only the stream's side of a join may be preserved; the time is the record's.
    """
    emitted, refs = _found(tree, reference)
    everything = Changes(
        events, np.ones(len(events), np.bool_), timeline.event_time_us[events], refs
    )
    order = np.argsort(timeline.arrival[events], kind="stable")
    return everything.where(order[emitted[order]])


def _found(tree: Tree, reference: Mapping[int, Ints]) -> tuple[Mask, tuple[Ints, ...]]:
    if isinstance(tree, Leaf):
        refs = reference[tree.source]
        return np.ones(len(refs), dtype=np.bool_), (refs,)
    emitted, left = _found(tree.left, reference)
    right = _state(tree.right, reference, None)
    return emitted & (right.present | preserved(tree.how)[0]), (*left, *right.reference)


def net_changes(
    tree: Tree,
    timeline: Timeline,
    stored: Mapping[int, Stored],
    changes: Changes,
) -> tuple[Changes, Changes]:
    """Per key the batch's last change, beside the result the key had before (``emit="batch"``).

    Keys without a result before and after are left out. Returns (last, before), row by row the
    same keys; the caller leaves out those whose values turn out equal.
    """
    group = timeline.group[changes.event]
    last = np.full(timeline.groups, -1)
    last[group] = np.arange(len(group))
    last = np.sort(last[last >= 0])
    final = changes.where(last)
    touched = group[last]
    times = {source: stored[source].event_time_us for source in stored}
    references = {
        source: np.where(stored[source].present[touched], touched, ABSENT) for source in stored
    }
    side = _state(tree, references, times)
    before = Changes(final.event, side.present, side.event_time_us, side.reference)
    visible = final.present | before.present
    return final.where(visible), before.where(visible)


@dataclass(frozen=True)
class _Trail:
    """The way of one source's events from a leaf up to the root of the tree."""

    events: Ints
    event_time_us: Ints
    source: int
    before: Mapping[int, Ints]
    now: Mapping[int, Ints]
    times: Mapping[int, Ints]

    def climb(self, tree: Tree, occurrence: int) -> tuple[Mask, _Side, Mask]:
        """What leaf number ``occurrence`` of ``tree`` makes it emit: (emitted, row, had a row)."""
        if isinstance(tree, Leaf):
            side = _state(tree, self.now, self.times)
            old = self.before[tree.source] != ABSENT
            everything = np.ones(len(self.events), dtype=np.bool_)
            return everything, _Side(side.present, self.event_time_us, side.reference), old
        width = sum(1 for _ in leaves(tree.left))
        from_right = occurrence >= width
        own_tree, other_tree = (tree.right, tree.left) if from_right else (tree.left, tree.right)
        emitted, own, old = self.climb(own_tree, occurrence - width if from_right else occurrence)
        other = _state(other_tree, self.now, self.times)
        other_old = other.present
        if self.source in leaves(other_tree):
            other_old = _state(other_tree, self.before, self.times).present
        keeps = preserved(tree.how)
        emitted = emitted & (other.present | other_old | (keeps[from_right] & (own.present | old)))
        row = _combine(other, own, keeps) if from_right else _combine(own, other, keeps)
        had_row = (
            (old & other_old) | (old & keeps[from_right]) | (other_old & keeps[not from_right])
        )
        return emitted, row, had_row


def _state(tree: Tree, reference: Mapping[int, Ints], times: Mapping[int, Ints] | None) -> _Side:
    """The row of a subtree as its tables stand; without a row, or without ``times``, its time is
    ``NO_TIME``.
    """
    if isinstance(tree, Leaf):
        refs = reference[tree.source]
        present = refs != ABSENT
        if times is None:
            return _Side(present, np.full(len(refs), NO_TIME), (refs,))
        time = np.append(times[tree.source], NO_TIME)[refs]
        return _Side(present, time, (refs,))
    left, right = _state(tree.left, reference, times), _state(tree.right, reference, times)
    side = _combine(left, right, preserved(tree.how))
    return _Side(side.present, np.where(side.present, side.event_time_us, NO_TIME), side.reference)


def _combine(left: _Side, right: _Side, keeps: tuple[bool, bool]) -> _Side:
    """The joined row: nulls for a missing side, and nothing of either where there is no row."""
    present = (
        (left.present & right.present) | (left.present & keeps[0]) | (right.present & keeps[1])
    )
    reference = tuple(
        np.where(present & side.present, refs, ABSENT)
        for side in (left, right)
        for refs in side.reference
    )
    return _Side(present, np.maximum(left.event_time_us, right.event_time_us), reference)


def _in_arrival_order(parts: list[Changes], timeline: Timeline) -> Changes:
    event = np.concatenate([part.event for part in parts])
    merged = Changes(
        event,
        np.concatenate([part.present for part in parts]),
        np.concatenate([part.event_time_us for part in parts]),
        tuple(np.concatenate(refs) for refs in zip(*(p.reference for p in parts), strict=True)),
    )
    return merged.where(np.argsort(timeline.arrival[event], kind="stable"))
