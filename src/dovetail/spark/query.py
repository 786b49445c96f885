"""Starting a topology as a streaming query: settings, the checkpoint's binding, the sink."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import reduce
from os import fspath
from threading import Lock
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias
from weakref import WeakSet

from pyspark.sql import DataFrame, SparkSession

from dovetail import lake
from dovetail.arguments import Path, Positive, Rule, validated
from dovetail.engine import flow
from dovetail.errors import ConfigurationError, DovetailWarning, PlanError
from dovetail.physical.fragment import Emit
from dovetail.physical.line import Plan
from dovetail.physical.planner import plan_of
from dovetail.plan.dead_letters import DeadLetters
from dovetail.plan.fingerprint import in_one_order, origins_of, refuse_alike
from dovetail.plan.nodes import Node, Source
from dovetail.plan.spans import Span, microseconds
from dovetail.refusals import reaching, refused
from dovetail.sessions import cores
from dovetail.spark import project, seed, static
from dovetail.spark.buckets import bucket_labels
from dovetail.spark.checkpoint import (
    CheckpointFile,
    binding_of,
    refuse_other_stages,
    refuse_repartitioning,
    refuse_unfit,
)
from dovetail.spark.failures import explaining
from dovetail.spark.frames import Streaming, session_of
from dovetail.spark.outcomes import Outcome, Sink
from dovetail.spark.outcomes import writer as fan_out
from dovetail.spark.session import refuse_strange_workers

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

BUCKETS_DEFAULT = 8

_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_PARTITIONS = "spark.sql.shuffle.partitions"

_STARTING = Lock()
"""Held while a query starts: its session has the query's settings meanwhile."""
_WARNED: WeakSet[SparkSession] = WeakSet()
"""The sessions that have been warned of Spark's leak."""


A_SINK = "what dt.to_parquet(...), dt.to_delta(...) or another of dovetail's sinks returns"
ASink: TypeAlias = Annotated[Sink, Rule(A_SINK)]


@validated
def settings(partitions: Positive) -> dict[str, str]:
    """The Spark SQL settings a query runs under."""
    return {
        _PROVIDER: _ROCKSDB,
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
        "spark.sql.execution.arrow.maxBytesPerBatch": str(64 << 20),
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        _PARTITIONS: str(partitions),
    }


def changelog(node: Node, *, emit: Emit, buckets: int | None) -> DataFrame:
    """The node's changelog: of streaming frames under the session's own settings, or of static ones
    as one batch.
    """
    frames = [source.frame for source in node.origins]
    if all(frame is not None and not frame.isStreaming for frame in frames):
        return static.changelog(node, emit=emit, buckets=buckets)
    session = streaming_session(node)
    if session.conf.get(_PROVIDER) != _ROCKSDB:
        raise ConfigurationError(
            node.name,
            "the session's state store is not RocksDB, which the stage needs",
            f"Set {_PROVIDER} to {_ROCKSDB}, or use write_stream, which does it for its query",
        )
    partitions = int(str(session.conf.get(_PARTITIONS)))
    count = BUCKETS_DEFAULT if buckets is None else buckets
    plan = plan_of([node], buckets=count, emit=emit)
    streaming = Streaming(bucket_labels(count), partitions, timers=False)
    return _rows(plan, session, streaming, packed=False)


def start(
    operator: str,
    outcomes: Sequence[Outcome],
    *,
    checkpoint: Path,
    trigger: Mapping[str, Any],
    emit: Emit,
    buckets: int | None,
    partitions: int | None,
    name: str | None,
    initial: Mapping[str, DataFrame] | None = None,
) -> StreamingQuery:
    """Start the query of these results, bound to its checkpoint; ``operator``: the call;
    ``trigger``: as ``trigger_of`` gives it; ``initial``: by name the rows that tables begin with,
    where the checkpoint has not begun.
    """
    outcomes = _in_one_order(outcomes)
    nodes = [one.node for one in outcomes if not isinstance(one.node, DeadLetters)]
    title = " and ".join(node.name for node in nodes)
    session = streaming_session(*nodes)
    refuse_strange_workers(session)
    folder = fspath(checkpoint)
    if initial is not None:
        _seed(operator, nodes, folder, seed.rows_of(operator, nodes, initial), emit, buckets)
    with _STARTING:
        _refuse_running(operator, session, name)
        with reaching(operator, "checkpoint=", folder):
            file = CheckpointFile(session, folder)
            bound = file.read(title)
        if bound is not None:
            refuse_repartitioning(bound, title)
            refuse_unfit(bound, nodes, title, {"buckets": buckets, "partitions": partitions})
            buckets, partitions = bound["buckets"], bound["partitions"]
        count = BUCKETS_DEFAULT if buckets is None else buckets
        if partitions is None:
            partitions = min(count, cores(session))
        refuse_idle(operator, partitions, count)
        letters = len(nodes) < len(outcomes)
        plan = plan_of(nodes, buckets=count, emit=emit, dead_letters=letters)
        if bound is not None:
            refuse_other_stages(bound, plan, title)
        with lake.setting(session, settings(partitions) | file.settings()):
            blobs: Mapping[str, DataFrame] = {}
            seeded = initial is not None if bound is None else bound.get("seeded", False)
            if seeded and file.has_committed():
                seed.remove(session, folder)
            elif seeded:
                blobs = seed.blobs_of(operator, session, folder)
            streaming = Streaming(
                bucket_labels(count), partitions, "availableNow" not in trigger, initial=blobs
            )
            rows = _rows(plan, session, streaming, packed=_fan_out(outcomes))
            if _fan_out(outcomes):
                writer = fan_out(rows, plan, outcomes, folder)
            else:
                writer = outcomes[0].sinks[0].writer(rows, nodes[0], folder)
            writer = writer.option("checkpointLocation", folder)
            if name is not None:
                writer = writer.queryName(name)
            writer = writer.trigger(**trigger)
            if bound is None:
                # Before Spark writes anything there, so that nothing is ever stored unbound.
                with reaching(operator, "checkpoint=", folder):
                    file.write(binding_of(nodes, plan, partitions=partitions, seeded=seeded))
            with refused(title, "Spark does not start its query", "Mend what it names"):
                return explaining(writer.start(), title)


def _seed(
    operator: str,
    nodes: Sequence[Node],
    folder: str,
    rows: Mapping[Source, DataFrame],
    emit: Emit,
    buckets: int | None,
) -> None:
    """Store the rows that tables begin with, unless the query has begun."""
    session, title = session_of(nodes[0]), " and ".join(node.name for node in nodes)
    with reaching(operator, "checkpoint=", folder):
        if CheckpointFile(session, folder).read(title) is not None:
            return
    with refused(title, "the frames of initial= cannot be stored", "Mend what it names"):
        sources = seed.written(session, folder, nodes, rows)
    count = BUCKETS_DEFAULT if buckets is None else buckets
    plan = plan_of(nodes, buckets=count, emit=emit)
    partitions = min(count, cores(session))
    file = CheckpointFile(session, seed.folder_of(folder))
    with _STARTING, lake.setting(session, settings(partitions) | file.settings()):
        seeding = seed.Seeding(bucket_labels(count), partitions, timers=False, sources=sources)
        writer = seed.writer_of(plan, seeding, folder)
        file.write(binding_of(nodes, plan, partitions=partitions))
        with refused(title, "Spark does not start its query", "Mend what it names"):
            query = explaining(writer.start(), title)
    query.awaitTermination()


def _in_one_order(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The outcomes in the order of their results in a checkpoint, the dead letters last."""
    letters = [one for one in outcomes if isinstance(one.node, DeadLetters)]
    by_node = {one.node: one for one in outcomes if one not in letters}
    return [*(by_node[node] for node in in_one_order([*by_node])), *letters]


def _fan_out(outcomes: Sequence[Outcome]) -> bool:
    """Whether rows must go to several sinks, which Spark's own way does not do."""
    return len(outcomes) > 1 or len(outcomes[0].sinks) > 1


def refuse_idle(operator: str, partitions: int, buckets: int) -> None:
    """Refuse partitions that would have no bucket."""
    if partitions > buckets:
        raise PlanError(
            operator,
            f"partitions={partitions} is more than the {buckets} buckets, of which each is in one",
            "Give buckets= as many, or a multiple",
        )


def _refuse_running(operator: str, session: SparkSession, name: str | None) -> None:
    if name is not None and any(query.name == name for query in session.streams.active):
        raise PlanError(
            operator,
            f"name={name!r} is that of a query that runs",
            "Stop that one, or give this one another name",
        )


def streaming_session(*nodes: Node) -> SparkSession:
    """The session of nodes whose inputs are all streaming frames that can be told apart."""
    for source in origins_of(nodes):
        if source.frame is None or not source.frame.isStreaming:
            raise PlanError(
                source.title,
                "its frame is not a streaming one",
                "Read it with spark.readStream; over frames that all are static, use changelog()",
            )
    refuse_alike(*nodes)
    return session_of(nodes[0])


def trigger_of(operator: str, processing_time: Span | None, available_now: bool) -> dict[str, Any]:
    """The arguments of Spark's ``trigger``."""
    if available_now:
        if processing_time is not None:
            raise PlanError(
                operator,
                "processingTime= and availableNow= are both given",
                "Give one, or neither to run as fast as data comes",
            )
        return {"availableNow": True}
    interval = "0 s" if processing_time is None else processing_time
    interval_us = microseconds(operator, "processingTime=", interval)
    return {"processingTime": f"{interval_us // 1000} milliseconds"}


def _rows(plan: Plan, session: SparkSession, streaming: Streaming, *, packed: bool) -> DataFrame:
    """The changelog of a plan's single result; or all its results, ``packed``."""
    if packed:
        rows = reduce(DataFrame.union, flow.results(plan, streaming))
    else:
        (result,) = plan.results
        rows = reduce(project.viewed, result.views, flow.changes(plan, streaming))
    _warn_of_leak(session, streaming.stateful * streaming.partitions)
    return rows


def spark_version(session: SparkSession) -> str:
    """The version of the session's JVM; that of the installed package may be another."""
    return session.version


def leaks_sockets(session: SparkSession) -> bool:
    """Whether the session's Spark never closes a socket of each task with state (SPARK-58932)."""
    return spark_version(session).startswith("4.2.0")


def _warn_of_leak(session: SparkSession, tasks: int) -> None:
    """Say once per session that its Spark leaks sockets, where it does: one per ``tasks`` of a
    micro-batch that have state.
    """
    if session in _WARNED or tasks == 0 or not leaks_sockets(session):
        return
    _WARNED.add(session)
    warnings.warn(
        f"Spark 4.2.0 never closes a socket of each task with state: {tasks} per micro-batch of "
        "this query, until the process may open no more. Run it on Spark 4.2.1 or later",
        DovetailWarning,
        stacklevel=6,
    )
