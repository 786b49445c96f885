"""Sorted runs of a store, and the order in which they are merged.

A *run* is a list of segments with disjoint, ascending ranges of the column that orders them. A
batch appends one run of tier 0. Once a tier has ``FANOUT`` runs, they are merged into one run of
the next tier, by the rule of the store's kind. If less than half of the bytes are left, the result
stays in its tier, because it mostly holds the same keys again.

A merge proceeds in the order of the rows, a bounded piece in each batch (``state.merge_extent``).
Its inputs stay until it is complete. So the work of a batch is in proportion to the bytes that it
wrote, however large the state is.

All values here are immutable. ``run_state`` holds the current ones and does the work.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from dovetail.state.segment import Segment

FANOUT = 8


@dataclass(frozen=True)
class SortedRun:
    """A sorted run of a store: segments of one tier, in ascending and disjoint ranges."""

    tier: int
    """0 for the rows of one batch. A merge of a tier makes a run of the next tier, or of the same.
    """
    segments: tuple[Segment, ...]

    @property
    def rows(self) -> int:
        """The count of rows in all segments of the run."""
        return sum(segment.rows for segment in self.segments)

    @property
    def size_bytes(self) -> int:
        """The size in bytes of the run's segments, uncompressed."""
        return sum(segment.size_bytes for segment in self.segments)

    @property
    def earliest_us(self) -> int:
        """The smallest time by which a row of the run expires, in microseconds. The run must have a
        segment.
        """
        return min(segment.earliest_us for segment in self.segments)

    @property
    def latest_us(self) -> int:
        """The largest time by which a row of the run expires, in microseconds. The run must have a
        segment.
        """
        return max(segment.latest_us for segment in self.segments)


@dataclass(frozen=True)
class Merge:
    """An unfinished merge of the oldest runs of ``tier``."""

    tier: int
    read: tuple[int, ...]
    """For each input, oldest first, the count of its rows that are merged already."""
    done: tuple[Segment, ...] = ()
    """The segments that the merge has written."""


@dataclass(frozen=True)
class Runs:
    """The sorted runs of one store, and the merges of them that are under way."""

    runs: tuple[SortedRun, ...] = ()
    """The runs, oldest first and so in descending tier."""
    merges: tuple[Merge, ...] = field(default=())
    """The merges under way, at most one for each tier."""

    @property
    def segments(self) -> Iterator[Segment]:
        """All segments that are stored, each once: those of all runs, then those that unfinished
        merges have written.
        """
        for part in self.runs:
            yield from part.segments
        for merge in self.merges:
            yield from merge.done

    def with_segments_around(self, ordered: Sequence[int]) -> Runs:
        """Return the runs, without merges, with only the segments in whose range at least one of
        the values ``ordered`` lies.

        ``ordered``: ascending values of the column that orders rows; without any, no run is left. A
        segment's range is from its first to its last row, both inclusive. Runs without such a
        segment are left out.
        """

        def has_value_in_range(segment: Segment) -> bool:
            """Return True if one of the values lies in the range of ``segment``."""
            return bisect_left(ordered, segment.first) < bisect_right(ordered, segment.last)

        runs = (
            replace(run, segments=tuple(filter(has_value_in_range, run.segments)))
            for run in self.runs
        )
        return Runs(tuple(run for run in runs if run.segments))

    def append(self, segments: tuple[Segment, ...]) -> Runs:
        """Return the runs with the segments of a batch as the newest sorted run, of tier 0. Merges
        stay. ``segments``: at least one, in ascending and disjoint ranges of the column that orders
        rows.
        """
        return replace(self, runs=(*self.runs, SortedRun(0, segments)))

    def on_one_tier(self) -> Runs:
        """Return all sorted runs, in order, as runs of tier 0, so that one merge can read them all:
        a merge reads runs of one tier. Merges under way are left out, with the segments that they
        have written.
        """
        return Runs(tuple(replace(run, tier=0) for run in self.runs))

    def runs_of_tier(self, tier: int) -> tuple[SortedRun, ...]:
        """Return the sorted runs of ``tier``, oldest first; none for a tier without runs. Tier 0
        has the runs of single batches, a higher tier those of merges.
        """
        return tuple(run for run in self.runs if run.tier == tier)

    def count_tiers(self) -> int:
        """Return the count of tiers from 0 to the highest one with a sorted run, empty ones
        included; 0 without runs. Each merge makes a run of a higher tier, or of the same one.
        """
        return self.runs[0].tier + 1 if self.runs else 0

    def runs_not_read_by(self, merge: Merge) -> tuple[SortedRun, ...]:
        """Return the sorted runs of all tiers that ``merge``, one of ``merges``, does not read,
        oldest first.
        """
        inputs = self.runs_read_by(merge)
        return tuple(run for run in self.runs if run not in inputs)

    def runs_read_by(self, merge: Merge) -> tuple[SortedRun, ...]:
        """Return the sorted runs that ``merge`` reads, its inputs, oldest first. They are the
        oldest runs of its tier, as many as ``merge.read`` has counts.
        """
        return self.runs_of_tier(merge.tier)[: len(merge.read)]

    def unmerged_runs(self) -> tuple[SortedRun, ...]:
        """Return the sorted runs that no merge under way reads, oldest first."""
        merging = [run for merge in self.merges for run in self.runs_read_by(merge)]
        return tuple(run for run in self.runs if run not in merging)

    def without_runs(self, dropped: tuple[SortedRun, ...]) -> Runs:
        """Return the runs without those equal to one of ``dropped``, which no merge may read.
        Merges stay, and no blob is deleted.
        """
        return replace(self, runs=tuple(run for run in self.runs if run not in dropped))

    def with_due_merges(self) -> Runs:
        """Return the runs with a new merge in every tier that has ``FANOUT`` (8) sorted runs or
        more and no merge. Tier 0 has the runs of single batches, a higher tier those of merges. A
        new merge reads all present runs of its tier. No row is merged yet. Without such a tier the
        runs stay as they are.
        """
        merging = {merge.tier for merge in self.merges}
        fresh = tuple(
            Merge(tier, (0,) * len(self.runs_of_tier(tier)))
            for tier in range(self.count_tiers())
            if tier not in merging and len(self.runs_of_tier(tier)) >= FANOUT
        )
        return replace(self, merges=(*self.merges, *fresh))

    def replace_merge(self, old: Merge, new: Merge) -> Runs:
        """Return the runs with the merge ``old`` replaced by ``new``. ``old`` must be the object in
        ``merges``; an equal one is not replaced.
        """
        return replace(self, merges=tuple(new if m is old else m for m in self.merges))

    def complete_merge(self, merge: Merge) -> Runs:
        """Return the runs with the merge's inputs replaced by its result, one run, or by nothing if
        no row was kept. The merge is removed.

        The result is in the next tier if it has at least half the bytes of its inputs, else in the
        same tier. Tier 0 has the runs of single batches. The result counts as older than all other
        runs of the inputs' tier and of lower ones. ``merge``: the object in ``merges``, with its
        inputs wholly read.
        """
        inputs = self.runs_read_by(merge)
        merged = SortedRun(merge.tier, merge.done)
        if 2 * merged.size_bytes >= sum(run.size_bytes for run in inputs):
            merged = replace(merged, tier=merge.tier + 1)
        older = tuple(run for run in self.runs if run.tier > merge.tier)
        newer = tuple(run for run in self.runs if run.tier <= merge.tier and run not in inputs)
        result = (merged,) if merge.done else ()
        return Runs(
            runs=(*older, *result, *newer), merges=tuple(m for m in self.merges if m is not merge)
        )
