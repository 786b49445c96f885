"""The first phase of a query that begins with initial rows: what it carries over.

Only a query that goes on from another checkpoint carries anything over. A stage of both topologies
takes its state along, blob by blob. A source of both is read on from where the other query stopped.
Any other stage begins with rows (``spark.migration.initial_rows``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from dovetail.errors import CheckpointError
from dovetail.physical.routing import Plan
from dovetail.physical.stage import Stage
from dovetail.plan.fingerprint import (
    describe_input,
    described_sources,
    input_identity,
    sources_of,
)
from dovetail.plan.nodes import Node, Source
from dovetail.spark.checkpoints.checkpoint import reads_of
from dovetail.spark.checkpoints.stores import CheckpointStores

START = "Start with a new checkpoint, and read its sources from their beginning"


@dataclass(frozen=True)
class CarriedOver:
    """Phase 1: what a new query takes over from another checkpoint."""

    offsets: Sequence[str | None] = ()
    """The offset at which each of Spark's sources goes on; None to begin at its start."""
    sources: Sequence[Sequence[int]] = ()
    """Pairs of the folder numbers of a source: in the other checkpoint and in the new one."""
    checkpoint: str | None = None
    """The other checkpoint; None if there is none."""
    batch: int | None = None
    """The micro-batch after which its state is taken over."""
    stages: Sequence[int] = ()
    """The indices of the plan's stages whose state is taken over."""

    def as_json(self) -> dict[str, Any]:
        """Return what is carried over as a dict of JSON data, a part of the entry ``BEGINNING`` in
        ``dovetail.json``. It has ``offsets``, for each of Spark's sources the offset at which it
        goes on, None for its start. It has ``sources``, pairs of the index of a source's folder in
        the other checkpoint and in the new one. With another checkpoint also ``from`` (its path),
        ``batch`` and ``carried`` (the indices of stages in the plan, from 0).
        """
        left: dict[str, Any] = {"offsets": self.offsets, "sources": self.sources}
        if self.checkpoint is None:
            return left
        return left | {"from": self.checkpoint, "batch": self.batch, "carried": self.stages}

    @classmethod
    def of_json(cls, left: Mapping[str, Any]) -> CarriedOver:
        """Return the ``CarriedOver`` whose ``as_json`` returned ``left``. Further entries of
        ``left`` have no effect. Without ``from`` there is no other checkpoint. Without ``carried``
        no stage's state is taken over. Raises ``KeyError`` without ``offsets`` or ``sources``.
        """
        offsets, sources, stages = left["offsets"], left["sources"], left.get("carried", ())
        return cls(offsets, sources, left.get("from"), left.get("batch"), stages)

    def stages_of(self, plan: Plan) -> list[Stage]:
        """Return the stages of ``plan`` whose state is taken over, in the order of the plan.
        ``plan``: the one for which ``find_carried_over`` has returned this ``CarriedOver``.
        """
        return [plan.stages[index] for index in self.stages]

    def states(self, operator: str, session: SparkSession, plan: Plan) -> dict[str, DataFrame]:
        """Return the state that is taken over from the other checkpoint, as it was after the
        micro-batch ``batch``.

        The dict has, by the fingerprint of a stage, which is the same in both checkpoints, a frame
        of the blobs of its buckets. A row is a stored blob; rows are in no order. The columns are
        ``bucket`` (the label of the bucket, an int), ``name`` (text) and ``blob`` (bytes). The dict
        is empty without another checkpoint or without stages to take over. A stage that has stored
        nothing yet is absent.

        ``operator``: the user's call, to begin errors. ``plan``: the one for which
        ``find_carried_over`` has returned this ``CarriedOver``. Raises ``CheckpointError`` if the
        other checkpoint no longer has the micro-batch, and ``ConfigurationError`` if Spark cannot
        read it.
        """
        if self.checkpoint is None or not self.stages:
            return {}
        states = CheckpointStores.read_with_spark(
            operator, session, self.checkpoint, self.batch
        ).blobs_by_stage()
        topologies = [stage.fragment.topology for stage in self.stages_of(plan)]
        return {topology: states[topology] for topology in topologies if topology in states}


def find_carried_over(
    stored: CheckpointStores | None, plan: Plan, nodes: Sequence[Node]
) -> CarriedOver:
    """Return what a new query carries over: where its sources go on, and the stages whose state is
    taken over. Without ``stored``, all sources begin anew and no stage is taken over.

    ``stored``: the state of the other query, None without one. ``plan``: that of the new query.
    ``nodes``: the results of the plan. Raises ``CheckpointError`` for sources whose positions
    contradict each other, or of which Spark reads another count now. Also for sources that cannot
    be told apart by name and key, and for an old query of Spark Connect.
    """
    if stored is None:
        leaves, _ = reads_of(plan.source_reads)
        return CarriedOver([None] * sum(count or 0 for count in leaves), [])
    _refuse_ambiguous(stored, nodes)
    offsets, sources = source_positions(stored, plan, nodes)
    stages = [
        index for index, stage in enumerate(plan.stages) if _has_same_state(stored, plan, stage)
    ]
    return CarriedOver(offsets, sources, stored.checkpoint, stored.batch, stages)


def _has_same_state(stored: CheckpointStores, plan: Plan, stage: Stage) -> bool:
    """Return True if the other query's checkpoint has the state of this very stage: it has the same
    fingerprint and count of buckets. A stage without a fingerprint has none.
    """
    topology = stage.fragment.topology
    return plan.buckets == stored.buckets and bool(topology) and topology in stored.stages


def _refuse_ambiguous(stored: CheckpointStores, nodes: Sequence[Node]) -> None:
    """Raise ``CheckpointError`` if one of the two topologies has several sources of the same name
    and key, of which the other topology has one, too. ``nodes``: the results of the new plan.
    """
    then = identities_of_old_sources(stored)
    sources = sources_of(nodes)
    now = [input_identity(describe_input(nodes, source)) for source in sources]
    for source, identity in zip(sources, now, strict=True):
        counts = then.count(identity), now.count(identity)
        if min(counts) > 0 and max(counts) > 1:
            raise migration_error(
                stored,
                f"has {counts[0]} inputs called {source.name} with the key "
                f"{', '.join(source.key.names)}, and the query has {counts[1]}, which it cannot "
                "tell apart",
                "Give each new input a name of its own with name=, or start with a new checkpoint",
            )


def identities_of_old_sources(stored: CheckpointStores) -> list[dict[str, Any]]:
    """Return the identity of each source that the other query has read. One that it has read in
    several places comes once. ``stored``: the state of that query.
    """
    described = {part["input"]: part for part in described_sources(dict(stored.topology[1]))}
    return [input_identity(part) for part in described.values()]


def source_positions(
    stored: CheckpointStores, plan: Plan, nodes: Sequence[Node]
) -> tuple[list[str | None], list[tuple[int, int]]]:
    """Return the offset, a text, at which a plan's query goes on in each of Spark's sources, in
    their order. It is None for a new or a static source, and for one whose first rows the old query
    had not read.

    Also return (index of its folder in the old checkpoint, in the new one) for each source that
    goes on. ``stored``: the state of the old query, which must have planned ``stored.batch``.
    ``nodes``: the results of the plan.

    Raises ``CheckpointError`` for sources whose positions contradict each other, and for an input
    for which Spark has another count of sources now. Also for an old query of Spark Connect.
    """
    old_inputs = _inputs_with_offsets(stored)
    new_offsets, same = list[str | None](), dict[int, tuple[int | None, str | None]]()
    taken: dict[str, int] = {}
    for source, count, numbers in zip(plan.source_reads, *reads_of(plan.source_reads), strict=True):
        source_id = input_identity(describe_input(nodes, source))
        leaves, folders = count or 0, numbers or []
        if source.static:
            new_offsets += [None] * leaves
            continue
        before = [positions for candidate, positions in old_inputs if candidate == source_id]
        occurrence = taken.setdefault(str(source_id), 0)
        taken[str(source_id)] += 1
        if not before:
            new_offsets += [None] * leaves
            for folder in folders:
                _enter_position(stored, source, same, folder, (None, None))
            continue
        alike = (
            len(list(groupby([[offset for _, offset in positions] for positions in before]))) == 1
        )
        again = sum(candidate is source for candidate in plan.source_reads)
        if not alike and len(before) != again:
            raise migration_error(
                stored,
                f"has read {source.name} in {len(before)} places, up to different ones",
                "Start it once more with trigger={'availableNow': True} while nothing comes, then "
                "call again",
            )
        positions = before[0 if alike else occurrence]
        if len(positions) != leaves:
            raise migration_error(
                stored,
                f"has read {source.name} from {len(positions)} sources, and now there are {leaves}",
            )
        for folder, position in zip(folders, positions, strict=True):
            _enter_position(stored, source, same, folder, position)
            new_offsets.append(position[1])
    return new_offsets, [(old, new) for new, (old, _) in same.items() if old is not None]


def _inputs_with_offsets(
    stored: CheckpointStores,
) -> list[tuple[Any, list[tuple[int, str | None]]]]:
    """Return (identity, positions) for each input of the old query, in the order of its reads.
    Positions are (index of the source's folder, offset) of each of Spark's sources; the offset is
    None before the first rows. Raises ``CheckpointError`` for a query of Spark Connect.
    """
    old_offsets = iter(enumerate(stored.offsets()))
    old_inputs: list[tuple[Any, list[tuple[int, str | None]]]] = []
    for source_id, leaves, numbers in stored.reads:
        if leaves is None:
            raise migration_error(
                stored, "was started on Spark Connect, which does not say what it reads"
            )
        positions = list(islice(old_offsets, leaves))
        if numbers is not None:
            positions = [(n, offset) for n, (_, offset) in zip(numbers, positions, strict=True)]
        old_inputs.append((source_id, positions))
    return old_inputs


def _enter_position(
    stored: CheckpointStores,
    source: Source,
    same: dict[int, tuple[int | None, str | None]],
    folder: int,
    position: tuple[int | None, str | None],
) -> None:
    """Enter ``position``, (old folder index, offset), into ``same`` under the index ``folder`` of
    the source's new folder. ``same`` is changed in place. A new source has the position (None,
    None).

    Inputs that share a frame are one source to Spark, which reads on from one position. Raises
    ``CheckpointError``, naming ``source``, if ``same`` has another position for the folder.
    """
    before = same.setdefault(folder, position)
    if (before[0] is None) != (position[0] is None) or before[1] != position[1]:
        raise migration_error(
            stored,
            f"has not read {source.name} as far as another input of the same frame",
            f"Give {source.name} a frame of its own: read it once more with spark.readStream",
        )


def migration_error(stored: CheckpointStores, problem: str, remedy: str = START) -> CheckpointError:
    """Return, not raise, the error for the checkpoint ``stored`` from which a query cannot go on.

    ``problem``: words that follow the checkpoint's path, such as ``has no rows of orders``.
    ``remedy``: a sentence, by default to start with a new checkpoint.
    """
    return CheckpointError(stored.caller, f"the checkpoint {stored.checkpoint} {problem}", remedy)
