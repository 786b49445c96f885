"""Several results in one query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from dovetail.arguments import Path, Rule, Text, validated
from dovetail.errors import PlanError
from dovetail.io.sinks import FunctionSink
from dovetail.physical import explain as text
from dovetail.physical.fragment import Buckets, Emit
from dovetail.plan.dead_letters import DeadLetters
from dovetail.plan.spans import Span
from dovetail.spark import query
from dovetail.spark.outcomes import BatchSink, Outcome
from dovetail.spark.query import A_SINK
from dovetail.spark.seed import Initial
from dovetail.topology import Planned, Topology

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


class _DeadLetters:
    """``dt.dead_letters``: the rows that a query leaves out because something fails on them, as a
    result of it.
    """

    plan = DeadLetters()

    def __repr__(self) -> str:
        return "dead_letters"


dead_letters = _DeadLetters()

AResult: TypeAlias = Annotated[
    Topology | _DeadLetters, Rule("a Table, a Stream or dt.dead_letters")
]
ABatchSink: TypeAlias = Annotated[BatchSink, Rule(A_SINK)]
Sinks: TypeAlias = ABatchSink | Sequence[ABatchSink]
Results: TypeAlias = Annotated[
    Mapping[AResult, Sinks],
    Rule(
        "a mapping of Tables, Streams and dt.dead_letters to sinks, or to lists of sinks",
        lambda given: bool(given) and all(sinks != [] for sinks in given.values()),
    ),
]


@validated
def run(
    results: Results,
    *,
    checkpoint: Path,
    processingTime: Span | None = None,  # noqa: N803 -- as in DataStreamWriter.trigger
    availableNow: bool = False,  # noqa: N803
    emit: Emit = "change",
    buckets: Buckets | None = None,
    partitions: Buckets | None = None,
    name: Text | None = None,
    initial: Initial | None = None,
) -> StreamingQuery:
    """Start one query that keeps the sinks of several results up to date.

    What results have in common runs once and is stored once: each stage that ``explain`` shows, and
    each source, which a micro-batch reads once. Each result's changelog is that of a query of its
    own. All results of a micro-batch are of the same input, and each sink has the promises that it
    has alone: after a failure a micro-batch is written again, to all of them, and doubles nothing
    where a sink takes it once.

    ``results``: each table's or stream's sink, or a list of them. ``dt.dead_letters`` stands for
    the rows that are left out because an expression fails on them (of a foreign key, or with
    ``errors="dead_letter"``), and the records that sources with ``malformed="dead_letter"`` cannot
    read: a stream with the columns ``_operator``, which left it out, ``_problem``, ``row``, as
    JSON, and those of every changelog; ``_timestamp`` is the row's own, or the micro-batch's where
    it has none.

    Sinks are written at the same time. The other arguments are those of ``write_stream``. A
    checkpoint belongs to its set of results, in any order; sinks, and the dead letters, may be
    others when the query is started again.

    Raises ``PlanError`` where nothing else than dead letters is asked for, where two results have
    one target, and as ``write_stream`` does; ``CheckpointError`` where the checkpoint is of other
    results.
    """
    nodes = [result.plan for result in results if isinstance(result, Topology)]
    if not nodes:
        raise PlanError("run", "results= has dead letters only", "Name what they are left out of")
    if len(set(nodes)) < len(nodes):
        raise PlanError("run", "results= has one of them twice", "Give it a list of sinks")
    outcomes = [Outcome(r.plan, _listed(sinks)) for r, sinks in results.items()]
    named = [s for o in outcomes for s in o.sinks if not isinstance(s, FunctionSink)]
    targets = [getattr(sink, "target", sink.title) for sink in named]
    for sink, target in zip(named, targets, strict=True):
        if targets.count(target) > 1:
            raise PlanError("run", f"results= has {sink.title} twice", "Give each one of its own")
    return query.start(
        "run",
        outcomes,
        checkpoint=checkpoint,
        trigger=query.trigger_of("run", processingTime, availableNow),
        emit=emit,
        buckets=buckets,
        partitions=partitions,
        name=name,
        initial=initial,
    )


def _listed(sinks: Any) -> tuple[Any, ...]:
    return tuple(sinks) if isinstance(sinks, Sequence) else (sinks,)


@validated
def explain(*results: Planned) -> None:
    """Print the topology of several results: as ``Table.explain``, and which stages are whose."""
    print(text.explain(*(result.plan for result in results)))
