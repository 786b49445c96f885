"""Starting a topology as a streaming query: settings, the checkpoint's binding, the sink."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from os import fspath
from threading import Lock
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeAlias
from weakref import WeakSet

from dovetail.arguments import Path, Positive, Rule, validated
from dovetail.engine import flow
from dovetail.errors import ConfigurationError, DovetailWarning, PlanError
from dovetail.physical.fragment import Emit
from dovetail.physical.planner import physical_plan
from dovetail.physical.stage import Stage
from dovetail.plan.fingerprint import refuse_alike
from dovetail.plan.nodes import Node
from dovetail.plan.spans import Span, microseconds
from dovetail.refusals import reaching, refused
from dovetail.spark import static
from dovetail.spark.buckets import bucket_labels
from dovetail.spark.checkpoint import CheckpointFile, binding_of, refuse_unfit
from dovetail.spark.failures import Query
from dovetail.spark.frames import Streaming, session_of
from dovetail.spark.session import refuse_strange_workers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

BUCKETS_DEFAULT = 8

_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_PARTITIONS = "spark.sql.shuffle.partitions"

_STARTING = Lock()
"""Held while a query starts: its session has the query's settings meanwhile."""
_WARNED: WeakSet[SparkSession] = WeakSet()
"""The sessions that have been warned of Spark's leak."""


class Sink(Protocol):
    """Where a changelog goes."""

    def writer(self, changes: DataFrame, node: Node, checkpoint: str) -> DataStreamWriter:
        """The configured writer; the query adds checkpoint, trigger and name, and starts it."""


ASink: TypeAlias = Annotated[
    Sink, Rule("what dt.to_parquet(...), dt.to_delta(...) or another of dovetail's sinks returns")
]


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
    stage = physical_plan(node, buckets=count, emit=emit)
    return _changelog(stage, session, partitions, timers=False)


def start(
    node: Node,
    sink: Sink,
    *,
    checkpoint: Path,
    trigger: Mapping[str, Any],
    emit: Emit,
    buckets: int | None,
    name: str | None,
) -> StreamingQuery:
    """Start the query, bound to its checkpoint; ``trigger``: as ``trigger_of`` gives it."""
    session = streaming_session(node)
    refuse_strange_workers(session)
    folder = fspath(checkpoint)
    with _STARTING:
        _refuse_running(session, name)
        with reaching("write_stream", "checkpoint=", folder):
            file = CheckpointFile(session, folder)
            bound = file.read(node)
        if bound is not None:
            refuse_unfit(bound, node, buckets)
            buckets = bound["buckets"]
        count = BUCKETS_DEFAULT if buckets is None else buckets
        stage = physical_plan(node, buckets=count, emit=emit)
        cores = session.sparkContext.defaultParallelism
        partitions = min(count, cores) if bound is None else bound["partitions"]
        with _settings(session, settings(partitions) | file.settings()):
            timers = "availableNow" not in trigger
            changes = _changelog(stage, session, partitions, timers=timers)
            writer = sink.writer(changes, node, folder).option("checkpointLocation", folder)
            if name is not None:
                writer = writer.queryName(name)
            writer = writer.trigger(**trigger)
            if bound is None:
                # Before Spark writes anything there, so that nothing is ever stored unbound.
                with reaching("write_stream", "checkpoint=", folder):
                    file.write(binding_of(node, stage, partitions=partitions))
            with refused(node.name, "Spark does not start its query", "Mend what it names"):
                return Query(writer.start(), node.name)


def _refuse_running(session: SparkSession, name: str | None) -> None:
    if name is not None and any(query.name == name for query in session.streams.active):
        raise PlanError(
            "write_stream",
            f"name={name!r} is that of a query that runs",
            "Stop that one, or give this one another name",
        )


def streaming_session(node: Node) -> SparkSession:
    """The session of a node whose inputs are all streaming frames that can be told apart."""
    for source in node.origins:
        if source.frame is None or not source.frame.isStreaming:
            raise PlanError(
                source.title,
                "its frame is not a streaming one",
                "Read it with spark.readStream; over frames that all are static, use changelog()",
            )
    refuse_alike(node)
    return session_of(node)


def trigger_of(processing_time: Span | None, available_now: bool) -> dict[str, Any]:
    """The arguments of Spark's ``trigger``."""
    if available_now:
        if processing_time is not None:
            raise PlanError(
                "write_stream",
                "processingTime= and availableNow= are both given",
                "Give one, or neither to run as fast as data comes",
            )
        return {"availableNow": True}
    interval = "0 s" if processing_time is None else processing_time
    interval_us = microseconds("write_stream", "processingTime=", interval)
    return {"processingTime": f"{interval_us // 1000} milliseconds"}


def _changelog(stage: Stage, session: SparkSession, partitions: int, *, timers: bool) -> DataFrame:
    streaming = Streaming(bucket_labels(stage.fragment.buckets), partitions, timers)
    changes = flow.changes(stage, streaming)
    _warn_of_leak(session, streaming.stateful * partitions)
    return changes


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


@contextmanager
def _settings(session: SparkSession, wanted: Mapping[str, str]) -> Iterator[None]:
    """Settings that hold while a query starts: it keeps a copy of them, the session does not."""
    before: dict[str, str | None] = {key: session.conf.get(key, None) for key in wanted}
    for key, value in wanted.items():
        session.conf.set(key, value)
    try:
        yield
    finally:
        for key, old in reversed(before.items()):
            if old is None:
                session.conf.unset(key)
            else:
                session.conf.set(key, old)
