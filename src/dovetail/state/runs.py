"""Sorted runs of a store and the order in which they are merged.

A *run* is a list of segments with disjoint, ascending ranges of the column that orders them. A
batch appends one run of tier 0. When a tier holds ``FANOUT`` runs they are merged into one of the
next tier, each kind of store by its own rule (where that leaves less than half of the bytes, the
result stays in its tier: it holds mostly the same keys again). A merge proceeds in the order of the
rows, a bounded piece in each batch (``state.reading``), and its inputs stand until it is complete;
so the work of a batch is in proportion to what the batch wrote, however large the state has grown.

All values here are immutable; ``run_state`` holds the current ones and does the work.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from dovetail.state.segment import Segment

FANOUT = 8


@dataclass(frozen=True)
class Run:
    """Segments of one tier, in order."""

    tier: int
    segments: tuple[Segment, ...]

    @property
    def rows(self) -> int:
        """How many rows it has."""
        return sum(segment.rows for segment in self.segments)

    @property
    def size_bytes(self) -> int:
        """The size of the local form."""
        return sum(segment.size_bytes for segment in self.segments)

    @property
    def earliest_us(self) -> int:
        """The smallest event time of its rows."""
        return min(segment.earliest_us for segment in self.segments)

    @property
    def latest_us(self) -> int:
        """The largest event time of its rows."""
        return max(segment.latest_us for segment in self.segments)


@dataclass(frozen=True)
class Merge:
    """An unfinished merge of the oldest runs of ``tier``: ``read`` says how many rows of each, the
    oldest first, are merged into ``done``.
    """

    tier: int
    read: tuple[int, ...]
    done: tuple[Segment, ...] = ()


@dataclass(frozen=True)
class Runs:
    """A table's runs, oldest first, so in descending tier, and the merges under way, by tier."""

    runs: tuple[Run, ...] = ()
    merges: tuple[Merge, ...] = field(default=())

    @property
    def segments(self) -> Iterator[Segment]:
        """All segments, those that unfinished merges have written included."""
        for part in self.runs:
            yield from part.segments
        for merge in self.merges:
            yield from merge.done

    def holding(self, ordered: Sequence[int]) -> Runs:
        """Of these runs the segments that may have rows with one of the values, in ascending order,
        in the column that orders them.
        """

        def may(segment: Segment) -> bool:
            return bisect_left(ordered, segment.first) < bisect_right(ordered, segment.last)

        runs = (replace(run, segments=tuple(filter(may, run.segments))) for run in self.runs)
        return Runs(tuple(run for run in runs if run.segments))

    def append(self, segments: tuple[Segment, ...]) -> Runs:
        """These runs and, as the newest, a batch's own."""
        return replace(self, runs=(*self.runs, Run(0, segments)))

    def level(self) -> Runs:
        """All runs in one tier, none of them being merged."""
        return Runs(tuple(replace(run, tier=0) for run in self.runs))

    def of_tier(self, tier: int) -> tuple[Run, ...]:
        """The runs of one tier, oldest first."""
        return tuple(run for run in self.runs if run.tier == tier)

    def tiers(self) -> int:
        """How many tiers there are, empty ones below the highest included."""
        return self.runs[0].tier + 1 if self.runs else 0

    def beside(self, merge: Merge) -> tuple[Run, ...]:
        """The runs that a merge does not read."""
        inputs = self.inputs(merge)
        return tuple(run for run in self.runs if run not in inputs)

    def inputs(self, merge: Merge) -> tuple[Run, ...]:
        """The runs that a merge reads."""
        return self.of_tier(merge.tier)[: len(merge.read)]

    def idle(self) -> tuple[Run, ...]:
        """The runs that are not being merged."""
        merging = [run for merge in self.merges for run in self.inputs(merge)]
        return tuple(run for run in self.runs if run not in merging)

    def without(self, dropped: tuple[Run, ...]) -> Runs:
        """These runs but for some idle ones."""
        return replace(self, runs=tuple(run for run in self.runs if run not in dropped))

    def due(self) -> Runs:
        """These runs with a merge begun in every tier that is full and has none."""
        merging = {merge.tier for merge in self.merges}
        fresh = tuple(
            Merge(tier, (0,) * len(self.of_tier(tier)))
            for tier in range(self.tiers())
            if tier not in merging and len(self.of_tier(tier)) >= FANOUT
        )
        return replace(self, merges=(*self.merges, *fresh))

    def advanced(self, old: Merge, new: Merge) -> Runs:
        """These runs with a merge carried on."""
        return replace(self, merges=tuple(new if m is old else m for m in self.merges))

    def completed(self, merge: Merge) -> Runs:
        """The merge's inputs replaced by its result, older than every run that was not merged."""
        inputs = self.inputs(merge)
        merged = Run(merge.tier, merge.done)
        if 2 * merged.size_bytes >= sum(run.size_bytes for run in inputs):
            merged = replace(merged, tier=merge.tier + 1)
        older = tuple(run for run in self.runs if run.tier > merge.tier)
        newer = tuple(run for run in self.runs if run.tier <= merge.tier and run not in inputs)
        result = (merged,) if merge.done else ()
        return Runs(
            runs=(*older, *result, *newer), merges=tuple(m for m in self.merges if m is not merge)
        )
