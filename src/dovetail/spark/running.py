"""A topology's results as a streaming query: the settings that it runs under, what it puts out, and
what writes that to its sinks.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from threading import Lock
from typing import TYPE_CHECKING
from weakref import WeakSet

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from dovetail.arguments import Positive, validated
from dovetail.columns import TIMESTAMP
from dovetail.engine import flow
from dovetail.errors import DovetailWarning, PlanError
from dovetail.physical.fragment import Emit
from dovetail.physical.line import Plan
from dovetail.physical.planner import plan_of
from dovetail.plan.dead_letters import DeadLetters
from dovetail.plan.nodes import Node
from dovetail.plan.spans import Span
from dovetail.sessions import cores
from dovetail.spark import project
from dovetail.spark.checkpoint import CheckpointFile
from dovetail.spark.frames import Streaming, session_of
from dovetail.spark.outcomes import Outcome
from dovetail.spark.outcomes import writer as fan_out

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter

BUCKETS_DEFAULT = 8

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
PARTITIONS = "spark.sql.shuffle.partitions"

TO_END = {"spark.sql.streaming.noDataMicroBatches.enabled": "false"}
"""Further settings of a query that is to end by itself though its stages have timers, for which
Spark would run micro-batches without end. (They have them all the same: Spark refuses state that is
read now with timers and now without.)
"""
STARTING = Lock()
"""Held while a query starts: its session has the query's settings meanwhile."""
_WARNED: WeakSet[SparkSession] = WeakSet()
"""The sessions that have been warned of Spark's leak."""


@validated
def settings(partitions: Positive) -> dict[str, str]:
    """The Spark SQL settings a query runs under."""
    return {
        PROVIDER: ROCKSDB,
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
        "spark.sql.execution.arrow.maxBytesPerBatch": str(64 << 20),
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        PARTITIONS: str(partitions),
    }


def has_timers(plan: Plan, *, timed: bool) -> bool:
    """Whether stages have timers: all of them, ``timed``, or those where rows may wait for another
    source.
    """
    return timed or any(stage.fragment.align_us is not None for stage in plan.stages)


@dataclass(frozen=True)
class Run:
    """What a call asks for: ``nodes``, the results, in the order in which a checkpoint knows them,
    and ``outcomes``, where they go; none where they go nowhere. ``operator``: the call;
    ``checkpoint``: the folder; ``buckets`` and ``partitions``: None where it leaves them open;
    ``idle``: after what time without anything stream time goes on, None for never.
    """

    operator: str
    nodes: Sequence[Node]
    outcomes: Sequence[Outcome]
    checkpoint: str
    emit: Emit
    buckets: int | None
    partitions: int | None
    idle: Span | None = None

    @property
    def title(self) -> str:
        """What errors call the results."""
        return " and ".join(node.name for node in self.nodes)

    @cached_property
    def session(self) -> SparkSession:
        """The session of the inputs."""
        return session_of(self.nodes[0])

    @cached_property
    def file(self) -> CheckpointFile:
        """What binds the checkpoint."""
        return CheckpointFile(self.session, self.checkpoint)

    def numbers(self, buckets: int | None = None) -> tuple[int, int]:
        """How many buckets and partitions it has in a new checkpoint; ``buckets``: of the one that
        it goes on from.
        """
        asked = buckets if self.buckets is None else self.buckets
        count = BUCKETS_DEFAULT if asked is None else asked
        partitions = min(count, cores(self.session)) if self.partitions is None else self.partitions
        refuse_idle(self.operator, partitions, count)
        return count, partitions

    def plan(self, buckets: int) -> Plan:
        """The plan of the results."""
        letters = any(isinstance(one.node, DeadLetters) for one in self.outcomes)
        return plan_of(self.nodes, buckets=buckets, emit=self.emit, dead_letters=letters)


def refuse_idle(operator: str, partitions: int, buckets: int) -> None:
    """Refuse partitions that would have no bucket."""
    if partitions > buckets:
        raise PlanError(
            operator,
            f"partitions={partitions} is more than the {buckets} buckets, of which each is in one",
            "Give buckets= as many, or a multiple",
        )


def writer_of(
    outcomes: Sequence[Outcome], plan: Plan, streaming: Streaming, folder: str
) -> DataStreamWriter:
    """What writes the results of a plan to their sinks; without outcomes nowhere."""
    session = session_of(plan.results[0].stage.node)
    if not outcomes:
        rows = rows_of(plan, session, streaming, packed=True)
        writer = rows.writeStream.format("noop")
    elif several(outcomes):
        rows = rows_of(plan, session, streaming, packed=True)
        writer = fan_out(rows, plan, outcomes, folder)
    else:
        rows = rows_of(plan, session, streaming, packed=False)
        writer = outcomes[0].sinks[0].writer(rows, outcomes[0].node, folder)
    return writer.option("checkpointLocation", folder)


def several(outcomes: Sequence[Outcome]) -> bool:
    """Whether rows must go to several sinks, which Spark's own way does not do."""
    return len(outcomes) > 1 or len(outcomes[0].sinks) > 1


def rows_of(plan: Plan, session: SparkSession, streaming: Streaming, *, packed: bool) -> DataFrame:
    """The changelog of a plan's single result; or all its results, ``packed``."""
    if packed:
        rows = reduce(DataFrame.union, flow.results(plan, streaming))
        place = "reader"
    else:
        (result,) = plan.results
        rows = reduce(project.viewed, result.views, flow.changes(plan, streaming))
        place = TIMESTAMP
    if streaming.silent:
        # Not a constant: without its rows Spark would leave out the stages.
        own = F.col(place).isNull()
        if plan.dead_letters:
            own |= F.col(place) == plan.addresses[-1]
        rows = rows.where(own)
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
