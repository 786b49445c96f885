"""Sorted runs of a table's state and the order in which they are merged.

A *run* is a list of segments with disjoint, ascending hash ranges. A batch appends one run of tier
0. When a tier holds ``FANOUT`` runs they are merged into one of the next tier, the newest row of a
key winning (where that leaves less than half of them, the result stays in its tier: it holds
mostly the same keys again). A tombstone is dropped once nothing older can lie below it. A merge
proceeds by slices of the hash space, a bounded piece in each batch, and its inputs stand until it
is complete; so the work of a batch is in proportion to what the batch wrote, however large the
state has grown.

All values here are immutable; ``table_state`` holds the current ones and does the work.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from dovetail.state.segment import Segment

FANOUT = 8


@dataclass(frozen=True)
class Run:
    """Segments of one tier in hash order; together they hold a key at most once."""

    tier: int
    segments: tuple[Segment, ...]

    @property
    def size_bytes(self) -> int:
        """The size of the local form."""
        return sum(segment.size_bytes for segment in self.segments)


@dataclass(frozen=True)
class Merge:
    """An unfinished merge: the oldest ``inputs`` runs of ``tier``; hashes below ``next_hash`` are
    merged into ``done``.
    """

    tier: int
    inputs: int
    next_hash: int
    done: tuple[Segment, ...] = ()


@dataclass(frozen=True)
class Runs:
    """A table's runs, oldest first, so in descending tier, and the merges under way, by tier."""

    runs: tuple[Run, ...] = ()
    merges: tuple[Merge, ...] = field(default=())

    def append(self, segments: tuple[Segment, ...]) -> Runs:
        """These runs and, as the newest, a batch's own."""
        return replace(self, runs=(*self.runs, Run(0, segments)))

    def of_tier(self, tier: int) -> tuple[Run, ...]:
        """The runs of one tier, oldest first."""
        return tuple(run for run in self.runs if run.tier == tier)

    def tiers(self) -> int:
        """How many tiers there are, empty ones below the highest included."""
        return self.runs[0].tier + 1 if self.runs else 0

    def is_oldest(self, merge: Merge) -> bool:
        """Whether no run is older than the merge's inputs."""
        return self.runs[0].tier == merge.tier

    def inputs(self, merge: Merge) -> tuple[Run, ...]:
        """The runs that a merge reads."""
        return self.of_tier(merge.tier)[: merge.inputs]

    def due(self, first_hash: int) -> Runs:
        """These runs with a merge begun in every tier that is full and has none."""
        merging = {merge.tier for merge in self.merges}
        fresh = tuple(
            Merge(tier, len(self.of_tier(tier)), first_hash)
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
