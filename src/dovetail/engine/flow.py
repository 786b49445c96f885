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
    buckets of stages or to where results leave.

    Each step sends all its rows to one other step. So rows for a later step may travel through
    others, which leave them unchanged. They come out of each step together with its own rows.
    """

    @abstractmethod
    def read_source(self, step: RouteStep) -> P:
        """Return the rows of the source that ``step`` reads as packed rows. The one ``P`` has them
        once for each stage input in ``step.readings``, partitioned by that input's key.
        """

    @abstractmethod
    def pack_rows(self, step: RouteStep, rows: R) -> P:
        """Return ``rows``, the flat changes of the stage or relay of ``step``, as packed rows
        (``P``): once for each stage input that reads them, partitioned by its key. A relay applies
        a view to a stage's changes.

        For each relay behind this step, and if the step is a result, all rows are packed once more,
        together and in their order. Rows for other steps, which travel along in ``rows``, are
        returned unchanged, too.
        """

    @abstractmethod
    def run_partitioned(self, step: RouteStep, inputs: list[P]) -> P:
        """Run the stage of ``step`` on its packed ``inputs``, one item per step before it. Return
        its changes as packed rows (``P``), partitioned by a hash column in them. Rows for other
        steps among the ``inputs`` are returned with them, unchanged.

        Only for a step whose changes exactly one stage reads (``step.hash_column_edge``).
        """

    @abstractmethod
    def run_to_result(self, step: RouteStep, inputs: list[P]) -> P:
        """Run the stage of ``step`` on its packed ``inputs``, one item per step before it. Return
        its changes packed as a result that no stage reads. Rows for other steps among the
        ``inputs`` are returned with them, unchanged.
        """

    @abstractmethod
    def run_to_changelog(self, step: RouteStep, inputs: list[P]) -> R:
        """Run the stage of ``step`` on its packed ``inputs``, one item per step before it. Return
        the changelog of the stage's node as flat rows (``R``). Rows for other steps among the
        ``inputs`` travel along in it, unchanged.
        """

    def fused_inputs(self, step: RouteStep, inputs: list[P]) -> P | None:
        """Return the packed rows of all ``inputs`` unchanged if the stage of ``step`` is to run
        together with the one that it sends to. That one then gets them. Return None if the stage
        runs by itself. The flow decides; by default every stage does.
        """
        return None

    @abstractmethod
    def relayed_rows(self, step: RouteStep, inputs: list[P]) -> R:
        """Return the rows among ``inputs`` that are for the relay of ``step``, as flat rows
        (``R``): the changelog of the relayed stage's node. A relay applies a view to a stage's
        changes.

        ``inputs``: packed rows, one item per step before it. Rows for other steps among them travel
        along in the result, unchanged.
        """


def run_single_result(plan: Plan, flow: Flow[R, P]) -> R:
    """Run all steps of a plan with a single result by ``flow``, and return the changelog of that
    result's stage, as flat rows. Views of the result are not applied.

    The plan must have one result and no dead letters (``Plan.has_one_result``), else
    ``AssertionError`` is raised.
    """
    assert plan.has_one_result
    (last,) = plan.last_steps
    return flow.run_to_changelog(last, _run_inputs(last, flow))


def run_results(plan: Plan, flow: Flow[R, P]) -> list[P]:
    """Run all steps of a plan by ``flow`` and return all results, packed: one item for each of
    ``Plan.last_steps``, the steps after which nothing reads rows. An item may have the rows of
    several results. Each step runs once, since it sends all its rows to one other step.
    """
    return [_run_step(end, flow) for end in plan.last_steps]


def _run_inputs(step: RouteStep, flow: Flow[R, P]) -> list[P]:
    """Run all steps before ``step`` by ``flow``. Return the packed rows that each sends, one item
    per step in ``step.before``, in that order.
    """
    return [_run_step(earlier, flow) for earlier in step.before]


def _run_step(step: RouteStep, flow: Flow[R, P]) -> P:
    """Run ``step`` by ``flow``, and everything before it. Return the packed rows that leave it: its
    own, and those for other steps that travel through it.
    """
    if not isinstance(step.origin, Stage | Relay):
        return flow.read_source(step)
    if isinstance(step.origin, Relay):
        return flow.pack_rows(step, flow.relayed_rows(step, _run_inputs(step, flow)))
    inputs = _run_inputs(step, flow)
    fused = flow.fused_inputs(step, inputs)
    if fused is not None:
        return fused
    if step.hash_column_edge is not None:
        return flow.run_partitioned(step, inputs)
    if not step.is_read:
        return flow.run_to_result(step, inputs)
    return flow.pack_rows(step, flow.run_to_changelog(step, inputs))
