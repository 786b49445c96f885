"""The inputs and stages of a query, in the order in which Spark's progress lists them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pyspark.sql import DataFrame

from dovetail.physical.routing import Plan, RouteStep
from dovetail.physical.stage import Stage
from dovetail.plan.dead_letters import DeadLetters
from dovetail.plan.nodes import Node
from dovetail.platform.jvm import streaming_leaves
from dovetail.platform.sessions import is_remote
from dovetail.spark.execution.frames import Frames
from dovetail.spark.query.results import Outcome


@dataclass(frozen=True)
class StagePart:
    """A stage with state, as Spark's progress reports it."""

    number: int
    """Its number as ``explain`` shows it, from 1."""
    title: str
    """The stage as ``explain`` and errors name it."""
    inputs: tuple[str, ...]
    """The names of its inputs."""
    report: str
    """The observed metric that has the reports of its buckets."""
    pairs: tuple[str, ...] = ()
    """The inputs whose records are counted by whether they match."""
    waits: tuple[str, ...] = ()
    """The names of the numbers of rows that wait."""
    fused: bool = False
    """True if a later stage, one before it in ``QueryParts.stages``, runs in the same operator of
    Spark's, and has that one's figures."""


@dataclass(frozen=True)
class QueryParts:
    """The parts of a query that its progress has figures for."""

    inputs: tuple[str, ...] = ()
    """The input's name for each source of Spark's progress, in its order."""
    stages: tuple[StagePart, ...] = ()
    """The stages of its operators with state, in its order. Of several stages of an operator, the
    last to run comes first."""
    results: tuple[Node, ...] = ()
    """The results of its topology."""
    outcomes: tuple[Outcome, ...] = ()
    """The results with their sinks, and the dead letters with theirs."""
    title: str = ""
    """The name of its results in errors."""

    @property
    def sinks(self) -> dict[Node, list[str]]:
        """The titles of the sinks of each result, and of the dead letters, by their nodes
        (``Outcome.titles``).
        """
        return {outcome.node: outcome.titles for outcome in self.outcomes}

    @property
    def letters(self) -> str | None:
        """The first folder of Parquet files to which the query's dead letters (rows left out
        because of an error) are written; None if there is no such folder.
        """
        outcomes = (o for o in self.outcomes if isinstance(o.node, DeadLetters))
        folders = (getattr(sink, "parquet_folder", None) for o in outcomes for sink in o.sinks)
        return next((folder for folder in folders if folder), None)


def parts_of(
    plan: Plan, frames: Frames, results: Iterable[Node], outcomes: Iterable[Outcome], title: str
) -> QueryParts:
    """Return the parts of a plan, once its frames have been built: its inputs and stages in the
    order in which Spark's progress lists them. Inputs are in the order in which their frames were
    read, one item for each of Spark's sources. An input that is read twice is there twice. On Spark
    Connect, which does not tell its sources, there is one item for each time that it is read. Only
    stages with reports of their buckets, those with state, are there.

    ``frames``: the frames of this ``plan``, with the sources that they read and the metrics of
    their stages. ``results``: the results of the topology. ``outcomes``: the same with their sinks,
    and the dead letters. ``title``: the name of the results in later errors; none is raised here.
    """
    inputs = [
        base.name
        for base in frames.bases
        if base.frame is not None
        for _ in range(_source_count(base.frame))
    ]
    # The last stage of an operator has the figures of its state.
    shared = {stage.step.number for stages in plan.operators for stage in stages[:-1]}
    stages = [
        StagePart(
            plan.stages.index(step.stage) + 1,
            step.stage.fragment.title,
            tuple(source.name for source in step.stage.fragment.sources),
            frames.observations.reports[step.number],
            tuple(step.stage.fragment.match_counted_inputs),
            tuple(wait.metric for wait in step.stage.fragment.waits),
            step.number in shared,
        )
        for end in plan.last_steps
        for step in _steps_from_sink(end)
        if step.number in frames.observations.reports and isinstance(step.origin, Stage)
    ]
    return QueryParts(tuple(inputs), tuple(stages), tuple(results), tuple(outcomes), title)


def _source_count(frame: DataFrame) -> int:
    """Return the count of Spark's streaming sources that a frame reads; 0 for a static frame. A
    source that is read twice counts twice. On Spark Connect, which does not tell its sources, the
    count is always 1.
    """
    return 1 if is_remote(frame.sparkSession) else streaming_leaves(frame)


def _steps_from_sink(step: RouteStep) -> Iterator[RouteStep]:
    """Yield a step of a plan's route, then each step that sends rows to it, followed by the senders
    of that one in turn. A step is a source, a stage or a relay (which applies a view). A step that
    sends to several comes several times.
    """
    yield step
    for earlier in step.before:
        yield from _steps_from_sink(earlier)
