"""The walk through a physical plan from stage to stage, whatever way rows travel.

Everything that runs a topology shares this walk and differs in its ``Flow``. A flow has the
DataFrames of a streaming query or of a batch run (``spark.execution.frames``), or tables in this
process (``engine.local``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from dovetail.physical.routing import Plan, Relay, RouteStep
from dovetail.physical.stage import Stage

R = TypeVar("R")
P = TypeVar("P")


class Flow(ABC, Generic[R, P]):
    """The way in which rows travel, with two kinds of rows.

    ``R`` are the changes of a stage as flat rows. ``P`` are packed rows, on their way to the
    buckets of stages or to where results leave. The rows that pass a step come out of it together
    with its own.
    """

    @abstractmethod
    def read_source(self, step: RouteStep) -> P:
        """Return the rows of the source that ``step`` reads, packed by key for each stage that
        reads them.
        """

    @abstractmethod
    def pack_rows(self, step: RouteStep, rows: R) -> P:
        """Return ``rows``, the changes of the stage or relay of ``step``, packed by key for each
        stage that reads them.

        For relays, and as a result, they are packed whole, as they are.
        """

    @abstractmethod
    def run_partitioned(self, step: RouteStep, inputs: list[P]) -> P:
        """Run the stage of ``step`` on its packed ``inputs``, and return its changes packed and
        partitioned by a hash column in them.

        Exactly one stage reads the changes.
        """

    @abstractmethod
    def run_to_result(self, step: RouteStep, inputs: list[P]) -> P:
        """Run the stage of ``step`` on its packed ``inputs``, and return its changes as a result
        that no stage reads.
        """

    @abstractmethod
    def run_to_changelog(self, step: RouteStep, inputs: list[P]) -> R:
        """Run the stage of ``step`` on its packed ``inputs``, and return the changelog of the
        stage's node, as flat rows.
        """

    @abstractmethod
    def relayed_rows(self, step: RouteStep, inputs: list[P]) -> R:
        """Return the rows among ``inputs`` that are for the relay of ``step``, as the changelog of
        the relayed stage's node.
        """


def run_single_result(plan: Plan, flow: Flow[R, P]) -> R:
    """Run a plan with a single result (``Plan.has_one_result``), and return the changelog of that
    result's stage.
    """
    assert plan.has_one_result
    (last,) = plan.last_steps
    return flow.run_to_changelog(last, _run_inputs(last, flow))


def run_results(plan: Plan, flow: Flow[R, P]) -> list[P]:
    """Run a plan and return all results, packed: one item for each of ``Plan.last_steps``, the
    steps after which nothing reads rows.
    """
    return [_run_step(end, flow) for end in plan.last_steps]


def _run_inputs(step: RouteStep, flow: Flow[R, P]) -> list[P]:
    """Run all steps before ``step`` and return the rows that each sends, in the order of
    ``step.before``. A step before several others is run for each.
    """
    return [_run_step(earlier, flow) for earlier in step.before]


def _run_step(step: RouteStep, flow: Flow[R, P]) -> P:
    """Run a step by ``flow``, and everything before it. Return the packed rows that leave it, with
    those that pass it.
    """
    if not isinstance(step.origin, Stage | Relay):
        return flow.read_source(step)
    if isinstance(step.origin, Relay):
        return flow.pack_rows(step, flow.relayed_rows(step, _run_inputs(step, flow)))
    inputs = _run_inputs(step, flow)
    if step.hash_column_edge is not None:
        return flow.run_partitioned(step, inputs)
    if not step.is_read:
        return flow.run_to_result(step, inputs)
    return flow.pack_rows(step, flow.run_to_changelog(step, inputs))
