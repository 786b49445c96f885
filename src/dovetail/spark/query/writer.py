"""A topology's results as a streaming query: its settings, its output, and the writer to its
sinks.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from threading import Lock
from typing import TYPE_CHECKING
from weakref import WeakSet

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from dovetail.base.columns import TIMESTAMP
from dovetail.base.validation import Positive, validated
from dovetail.engine import flow
from dovetail.errors import DovetailWarning, PlanError
from dovetail.physical.fragment import Emit
from dovetail.physical.planner import plan_of
from dovetail.physical.routing import Plan
from dovetail.plan.dead_letters import DeadLetters
from dovetail.plan.nodes import Node
from dovetail.plan.types.spans import Span
from dovetail.platform.arrow_batches import ARROW_SETTINGS, BYTES_LIMIT
from dovetail.platform.delta_tables import BAD_FILES
from dovetail.platform.sessions import cores, without_call_sites
from dovetail.spark.checkpoints.checkpoint import CheckpointFile
from dovetail.spark.execution import projection
from dovetail.spark.execution.frames import session_of
from dovetail.spark.execution.streaming_frames import Streaming
from dovetail.spark.query.options import BUCKETS_DEFAULT, CORES_MANY, PARTITIONS_DEFAULT
from dovetail.spark.query.results import Outcome
from dovetail.spark.query.results import writer_of_results as fan_out
from dovetail.spark.workers import TRACEBACK

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
PARTITIONS = "spark.sql.shuffle.partitions"
SNAPSHOT_ON_LAG = "spark.sql.streaming.stateStore.forceSnapshotUploadOnLag"
"""The setting by which a micro-batch itself writes a snapshot of the whole state, if the last one
is 50 micro-batches old. Spark's maintenance writes one a minute, and no micro-batch waits for it.
"""

SETTINGS_TO_END = {"spark.sql.streaming.noDataMicroBatches.enabled": "false"}
"""Further settings of a query with timers that is to end by itself. Without them Spark would run
micro-batches without end. (The stages have timers all the same: Spark refuses state that is read
with timers at one time and without at another.)"""
START_LOCK = Lock()
"""Held while a query starts: its session has the query's settings meanwhile."""
_BEFORE_SOURCES = ("Initializing StreamExecution", "Initializing sources")
"""Spark's messages of the state of a query whose sources do not exist yet."""
_SOURCES_WITHIN_S = 5.0
_WARNED_SESSIONS: WeakSet[SparkSession] = WeakSet()
"""The sessions that have been warned of Spark's leak."""


@validated
def settings(partitions: Positive) -> dict[str, str]:
    """Return the Spark SQL settings under which a query runs.

    ``write_stream`` and ``run`` make these settings for their query. ``changelog()``
    returns a frame, so the session that runs its query must have them.

    Parameters
    ----------
    partitions : int
        The number of tasks of each stage, at least 1.

    Returns
    -------
    dict of str to str
        The settings by their names.

    Raises
    ------
    PlanError
        If ``partitions`` is below 1.

    See Also
    --------
    Table.changelog : Return a changelog as a streaming frame.
    configure : Configure a session before it is built.

    Examples
    --------
    >>> import dovetail as dt
    >>> settings = dt.checkpoints.settings(4)
    >>> settings["spark.sql.shuffle.partitions"]
    '4'
    >>> settings["spark.sql.streaming.stateStore.providerClass"].rpartition(".")[2]
    'RocksDBStateStoreProvider'
    """
    return {
        PROVIDER: ROCKSDB,
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        SNAPSHOT_ON_LAG: "false",
        **ARROW_SETTINGS,
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        TRACEBACK: "false",
        **dict.fromkeys(BAD_FILES, "false"),
        PARTITIONS: str(partitions),
    }


def query_settings(session: SparkSession, partitions: int) -> dict[str, str]:
    """Return ``settings(partitions)``. The limit of an Arrow batch's bytes is left out if the
    session has one of its own, which the query keeps.
    """
    used = settings(partitions)
    if session.conf.get(BYTES_LIMIT, None) is not None:
        del used[BYTES_LIMIT]
    return used


def start_with_sources(writer: DataStreamWriter) -> StreamingQuery:
    """Start the query of ``writer``, and return it once its sources exist, once it has ended, or
    after ``_SOURCES_WITHIN_S`` (5) seconds. Spark's error passes if it does not start.

    A query copies the session's settings as it starts. A source of files does not use the copy: it
    reads the session's own settings when it is made, shortly after.
    """
    query = writer.start()
    deadline = time.monotonic() + _SOURCES_WITHIN_S
    while (
        query.isActive
        and query.status["message"] in _BEFORE_SOURCES
        and time.monotonic() < deadline
    ):
        time.sleep(0.005)
    return query


def has_timers(plan: Plan, *, timed: bool) -> bool:
    """Return True if any stage of ``plan`` has timers. With ``timed`` all have them, else only
    those whose rows may wait for a source (``align=``).
    """
    return timed or any(stage.fragment.align_us is not None for stage in plan.stages)


@dataclass(frozen=True)
class StartRequest:
    """The request of a call that starts a query."""

    operator: str
    """The name of the call, for errors."""
    nodes: Sequence[Node]
    """The results, in the order of a checkpoint."""
    outcomes: Sequence[Outcome]
    """The results with their sinks; empty if there are none."""
    checkpoint: str
    """The folder of the checkpoint."""
    emit: Emit
    """``"change"`` to emit each change, ``"batch"`` for the last change of each key in a
    micro-batch.
    """
    buckets: int | None
    """The number of buckets; None for the default."""
    partitions: int | None
    """The number of partitions; None for the default."""
    idle: Span | None = None
    """The time without input after which stream time goes on; None for never."""

    @property
    def title(self) -> str:
        """The names of all results in errors, with ``and`` between them."""
        return " and ".join(node.name for node in self.nodes)

    @cached_property
    def session(self) -> SparkSession:
        """The Spark session of the inputs' frames. Raises ``ConfigurationError`` if it was
        stopped.
        """
        return session_of(self.nodes[0])

    @cached_property
    def file(self) -> CheckpointFile:
        """The checkpoint's file ``dovetail.json``, which binds it to this query."""
        return CheckpointFile(self.session, self.checkpoint)

    def bucket_and_partition_counts(self, buckets: int | None = None) -> tuple[int, int]:
        """Return the counts of buckets and of partitions for a new checkpoint: those asked for,
        else the defaults. By default there are 4 buckets, or as many as partitions if these are
        more, and 2 partitions, but at most as many as buckets.

        ``buckets``: the count in the checkpoint that the query goes on from, None for none; it goes
        before the default. Raises ``PlanError`` for more partitions than buckets. Gives a
        ``DovetailWarning`` for the default of partitions, if that is below the buckets, on
        ``CORES_MANY`` (8) cores or more.
        """
        asked = buckets if self.buckets is None else self.buckets
        partitions = self.partitions
        count = max(BUCKETS_DEFAULT, partitions or 0) if asked is None else asked
        if partitions is None:
            partitions = min(count, PARTITIONS_DEFAULT)
            if partitions < count:
                self._warn_of_cores(partitions)
        refuse_idle(self.operator, partitions, count)
        return count, partitions

    def _warn_of_cores(self, partitions: int) -> None:
        """Give a ``DovetailWarning`` if the session has ``CORES_MANY`` cores or more, of which most
        would be idle with ``partitions`` tasks a stage.
        """
        there = cores(self.session)
        if there >= CORES_MANY:
            warnings.warn(
                f"{self.title}: each stage runs in {partitions} tasks by default, and the session "
                f"has {there} cores. Give partitions=, which the checkpoint keeps",
                DovetailWarning,
                stacklevel=5,
            )

    def plan(self, buckets: int) -> Plan:
        """Return the physical plan of all results with ``buckets`` buckets for each stage. Dead
        letters are a result of it if they are among ``outcomes``. Raises ``PlanError`` for a node
        that cannot be computed or emitted so.
        """
        letters = any(isinstance(outcome.node, DeadLetters) for outcome in self.outcomes)
        return plan_of(self.nodes, buckets=buckets, emit=self.emit, dead_letters=letters)


def refuse_idle(operator: str, partitions: int, buckets: int) -> None:
    """Raise ``PlanError`` if there are more ``partitions`` than ``buckets``, so some partitions
    would have no bucket. ``operator``: the user's call, to begin the error.
    """
    if partitions > buckets:
        raise PlanError(
            operator,
            f"partitions={partitions} is more than the {buckets} buckets, of which each is in one",
            "Give buckets= as many, or a multiple",
        )


def writer_of(
    outcomes: Sequence[Outcome], plan: Plan, streaming: Streaming, folder: str
) -> DataStreamWriter:
    """Return the writer of a plan's results to their sinks in ``outcomes``. Without any it runs all
    stages and writes nothing. The writer has the checkpoint ``folder``, and no trigger and no name
    yet.

    ``streaming``: the stages as Spark runs them, which are built here. Sinks raise their errors:
    ``PlanError`` if a result does not suit the target, ``TargetError`` if the target cannot take
    it.
    """
    session = session_of(plan.results[0].stage.node)
    packed = not outcomes or has_several_sinks(outcomes)
    with without_call_sites():
        rows = rows_of_plan(plan, session, streaming, packed=packed)
    if not outcomes:
        writer = rows.writeStream.format("noop")
    elif packed:
        writer = fan_out(rows, plan, outcomes, folder)
    else:
        writer = outcomes[0].sinks[0].writer(rows, outcomes[0].node, folder)
    return writer.option("checkpointLocation", folder)


def has_several_sinks(outcomes: Sequence[Outcome]) -> bool:
    """Return True if all ``outcomes`` together have several sinks. There must be an outcome.
    Spark's own way of writing has one sink.
    """
    return len(outcomes) > 1 or len(outcomes[0].sinks) > 1


def rows_of_plan(
    plan: Plan, session: SparkSession, streaming: Streaming, *, packed: bool
) -> DataFrame:
    """Return the changelog of a plan's single result or, if ``packed``, rows of ``PACKED`` for all
    its results and dead letters. Without ``packed``, the plan must have one result.

    ``streaming``: the stages as Spark runs them, which are built here; take a new one for each
    call. If it is ``silent``, only dead letters come out, and without ``packed`` no rows, with the
    same columns. Gives a ``DovetailWarning``, once a session, if its Spark leaks sockets.
    """
    if packed:
        rows = reduce(DataFrame.union, flow.run_results(plan, streaming))
        column = "reader"
    else:
        (result,) = plan.results
        rows = reduce(
            projection.changelog_of_view, result.views, flow.run_single_result(plan, streaming)
        )
        column = TIMESTAMP
    if streaming.silent:
        # Not a constant condition: Spark would optimize the stages away.
        condition = F.col(column).isNull()
        if plan.dead_letters:
            condition |= F.col(column) == plan.addresses[-1]
        rows = rows.where(condition)
    _warn_of_socket_leak(session, streaming.stateful * streaming.partitions)
    return rows


def spark_version(session: SparkSession) -> str:
    """Return the version of the Spark that runs the session, such as ``"4.1.0"``. The version of
    the installed Python package may differ.
    """
    return session.version


def leaks_sockets(session: SparkSession) -> bool:
    """Return True if the session's Spark never closes a socket of each task with state
    (SPARK-58932): its version is 4.2.0, or a text that begins so, such as ``4.2.0-rc1``. Later
    versions do not.
    """
    return spark_version(session).startswith("4.2.0")


def _warn_of_socket_leak(session: SparkSession, tasks: int) -> None:
    """Give a ``DovetailWarning``, once per session, if its Spark leaks sockets. ``tasks``: the
    count of sockets that each micro-batch leaves open; 0 warns of nothing.
    """
    if session in _WARNED_SESSIONS or tasks == 0 or not leaks_sockets(session):
        return
    _WARNED_SESSIONS.add(session)
    warnings.warn(
        f"Spark 4.2.0 never closes a socket of each task with state: {tasks} per micro-batch of "
        "this query, until the process may open no more. Run it on Spark 4.2.1 or later",
        DovetailWarning,
        stacklevel=6,
    )
