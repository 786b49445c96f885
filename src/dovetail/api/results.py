"""Several results in one query, and the upgrade of a checkpoint to another topology."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import fspath
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from dovetail.api.topology import ATopology, Planned, Topology
from dovetail.base.validation import Path, Rule, Text, validated
from dovetail.errors import CheckpointError, PlanError
from dovetail.io.sinks.spark_sinks import FunctionSink
from dovetail.physical import explain as text
from dovetail.physical.fragment import Buckets, Emit
from dovetail.plan.changelog_source import Session
from dovetail.plan.dead_letters import DeadLetters
from dovetail.plan.fingerprint import in_one_order
from dovetail.plan.types.spans import Span
from dovetail.spark.checkpoints.checkpoint import BEGINNING
from dovetail.spark.migration import first_batch
from dovetail.spark.migration.initial_rows import Initial
from dovetail.spark.query import start
from dovetail.spark.query.results import BatchSink, Outcome
from dovetail.spark.query.start import A_SINK
from dovetail.spark.query.writer import Run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery


class _DeadLetters:
    """The result ``dt.dead_letters``: the rows that a query leaves out because something fails on
    them.
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
Topologies: TypeAlias = Annotated[
    ATopology | Sequence[ATopology],
    Rule("a Table or a Stream, or a list of them", lambda given: given not in ([], ())),
]
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
    emit_initial: bool = False,
    close_at_end: bool = False,
    idle: Span | None = None,
) -> StreamingQuery:
    """Start one query that keeps the sinks of several results up to date.

    Common parts of the results run once and are stored once: each stage that ``explain`` shows, and
    each source, which a micro-batch reads once. Each result's changelog is that of a query of its
    own. All results of a micro-batch are of the same input, and each sink has the promises that it
    has alone. After a failure a micro-batch is written again, to all of them, and doubles nothing
    where a sink takes it once.

    ``results``: each table's or stream's sink, or a list of them. ``dt.dead_letters`` stands for
    the rows that are left out because an expression fails on them (of a foreign key, or with
    ``errors="dead_letter"``). It also has the records that sources with
    ``malformed="dead_letter"`` cannot read. It is a stream with the columns of every changelog and:

    - ``_operator``, which left the row out, and ``_problem``;
    - ``row``, as JSON.

    Its ``_timestamp`` is the row's own, or the micro-batch's where it has none.

    Sinks are written at the same time. The other arguments are those of ``write_stream``. A
    checkpoint belongs to its set of results, in any order; sinks, and the dead letters, may be
    others when the query is started again.

    Raises ``PlanError`` where dead letters alone are asked for, where two results have one target,
    and as ``write_stream`` does. Raises ``CheckpointError`` where the checkpoint is of other
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
    return start.start(
        "run",
        outcomes,
        checkpoint=checkpoint,
        trigger=start.trigger_of("run", processingTime, availableNow),
        emit=emit,
        buckets=buckets,
        partitions=partitions,
        name=name,
        initial=initial,
        emit_initial=emit_initial,
        close_at_end=close_at_end,
        idle=idle,
    )


def _listed(sinks: Any) -> tuple[Any, ...]:
    """Return one sink, or a list of them, as a tuple."""
    return tuple(sinks) if isinstance(sinks, Sequence) else (sinks,)


@validated
def upgrade(
    spark: Session,
    old: Path,
    new: Path,
    topology: Topologies,
    *,
    buckets: Buckets | None = None,
    partitions: Buckets | None = None,
) -> DataFrame:
    """Turn the checkpoint ``old`` into a checkpoint ``new`` for another topology, or other
    ``buckets``.

    The query of ``old`` must stand still. ``old`` stays as it is.

    Law: a query of ``topology`` that is started with ``new`` emits what it would have emitted from
    there on, had it run from the beginning. It reads the sources from where the old one stopped;
    sources that the old one did not read from their beginning. A table's history reaches back as
    far as the old one kept it.

    ``topology``: what ``write_stream`` will be called on; of ``dt.run`` all results. ``buckets``,
    ``partitions``: as for ``write_stream``; by default as many buckets as ``old`` has. Nothing is
    written to sinks: ``write_stream(initial=old, emit_initial=True)`` does the same and begins its
    sink with the rows that there are.

    Returns a row for each stage: ``stage``, its number in ``explain``; ``computes``; ``begins``,
    "carried over" or "with the rows of ...". A call that is killed is repeated.

    Raises ``CheckpointError`` where a stage needs what ``old`` does not have, where ``new`` has
    begun, where one of them is being written; ``ConfigurationError`` on Spark Connect.
    """
    nodes = [one.plan for one in (topology if isinstance(topology, Sequence) else [topology])]
    nodes = in_one_order(nodes)
    start.streaming_session(*nodes)
    run = Run("upgrade", nodes, (), fspath(new), "change", buckets, partitions)
    bound = run.file.read("upgrade")
    if bound is not None and BEGINNING not in bound:
        raise CheckpointError("upgrade", f"{new} has begun", "Name a folder that is not there yet")
    if bound is None:
        bound = first_batch.prepared(run, old, emits=False)
    steps = first_batch.steps(run, bound)
    first_batch.finished(run, bound)
    return spark.createDataFrame(steps, "stage int, computes string, begins string")


@validated
def explain(*results: Planned) -> None:
    """Print the topology of several results: as ``Table.explain``, with the results of each stage.

    Raises ``PlanError`` where none is given.
    """
    if not results:
        raise PlanError("explain", "no result is given", "Give tables and streams: explain(table)")
    print(text.explain(*(result.plan for result in results)))
