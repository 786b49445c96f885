"""The physical plan, run: from stage to stage, in whatever way rows travel.

One walk for all that run a topology. What differs is a ``Flow``: DataFrames of a streaming query or
of a batch run (``spark.frames``), or tables in this process (``engine.local``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from dovetail.physical.line import Plan, Relay, Step
from dovetail.physical.stage import Stage

R = TypeVar("R")
P = TypeVar("P")


class Flow(ABC, Generic[R, P]):
    """How rows travel: ``R``, the changes of a stage as flat rows; ``P``, rows that are packed, on
    their way to the buckets of stages, or to where results leave. What a step passes on comes out
    of it with its own.
    """

    @abstractmethod
    def read(self, step: Step) -> P:
        """The rows of a source, packed by key for each stage that reads them."""

    @abstractmethod
    def packed(self, step: Step, rows: R) -> P:
        """The changes of a stage, or of a relay, packed by key for each stage that reads them; as
        they are for relays, and as a result if they are one.
        """

    @abstractmethod
    def partitioned(self, step: Step, inputs: list[P]) -> P:
        """What a stage makes of its inputs, packed and partitioned by a hash that its rows name,
        for the one stage that reads them.
        """

    @abstractmethod
    def emitted(self, step: Step, inputs: list[P]) -> P:
        """What a stage makes of its inputs, as a result that no stage reads."""

    @abstractmethod
    def changes(self, step: Step, inputs: list[P]) -> R:
        """What a stage makes of its inputs, as the changelog of its node."""

    @abstractmethod
    def relayed(self, step: Step, inputs: list[P]) -> R:
        """What comes for a relay, as the changelog of its stage's node."""


def changes(plan: Plan, flow: Flow[R, P]) -> R:
    """The changelog of the stage of a plan's single result, through all stages that feed it."""
    assert plan.single
    (last,) = plan.ends
    return flow.changes(last, _inputs(last, flow))


def results(plan: Plan, flow: Flow[R, P]) -> list[P]:
    """All results of a plan, packed, through all stages that feed them."""
    return [_leaving(end, flow) for end in plan.ends]


def _inputs(step: Step, flow: Flow[R, P]) -> list[P]:
    return [_leaving(one, flow) for one in step.before]


def _leaving(step: Step, flow: Flow[R, P]) -> P:
    if not isinstance(step.origin, Stage | Relay):
        return flow.read(step)
    if isinstance(step.origin, Relay):
        return flow.packed(step, flow.relayed(step, _inputs(step, flow)))
    inputs = _inputs(step, flow)
    if step.moves is not None:
        return flow.partitioned(step, inputs)
    if not step.is_read:
        return flow.emitted(step, inputs)
    return flow.packed(step, flow.changes(step, inputs))
