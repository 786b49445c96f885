"""The sink of topics that get each micro-batch exactly once, in transactions.

Records are shuffled by their keys to a fixed number of tasks, so a repeated micro-batch gives each
task the same records. Each task writes them in one transaction (``producers``).
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from dovetail import errors
from dovetail.base.columns import POSITION
from dovetail.errors import CheckpointError, ConfigurationError, DovetailError, PlanError
from dovetail.io.sinks.kafka.client import (
    ANSWER_SECONDS_MAX,
    SILENT_LOGGER,
    client_for,
    client_settings,
    connection_settings,
    permanent_error,
    refuse_settings,
    text_of_error,
)
from dovetail.io.sinks.kafka.producers import (
    REPORT_SCHEMA,
    TOPIC_COLUMN,
    BatchWrite,
    Marker,
    PermanentError,
    commit_records,
    write_task_records,
)
from dovetail.io.sinks.kafka.topic import TopicSink
from dovetail.io.sinks.ownership import Owner
from dovetail.io.sinks.spark_sinks import WriteBatch, WriteBatches
from dovetail.plan.nodes import Node
from dovetail.plan.types.arrow import spark_schema
from dovetail.platform.arrow_batches import map_in_arrow
from dovetail.platform.files import files_of
from dovetail.platform.sessions import batch_writer, is_remote

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter

FILE_NAME: Final = "dovetail_transactions.json"
"""The file of a checkpoint with the count of transactions of its micro-batches, by cluster."""
_RETENTION_SETTING: Final = "offsets.retention.minutes"
"""The brokers' setting for the time for which they keep the offsets of a group."""
_DAY_MS: Final = 24 * 60 * 60 * 1000
_ORDER_COLUMN: Final = "order"
_RAISED_LINE: Final = re.compile(r"^dovetail\.errors\.\w+: (.*)$", re.MULTILINE)
"""A pattern of the line in a worker's traceback that has the message of an error of this library.
"""


@dataclass(frozen=True)
class TransactionalSink(TopicSink):
    """A topic that gets each micro-batch once, in transactions."""

    transactions: int = 1
    """The count of transactions of a micro-batch, at least 1, each in a task of its own."""

    @property
    def settings(self) -> dict[str, str]:
        """The settings of a producer, by the names of librdkafka. Raises ``PlanError`` for options
        that the sink does not take.
        """
        return client_settings(self.title, self.servers, self.options)

    @property
    def connection(self) -> dict[str, str]:
        """The settings of a consumer or an admin client, by the names of librdkafka. Raises
        ``PlanError`` for options that the sink does not take.
        """
        return connection_settings(self.settings)

    def database(self, session: SparkSession) -> Hashable:
        """Return the identity of the brokers' cluster, its id, by asking the brokers. Sinks with
        the same are committed together. On Spark Connect it is ``servers`` if this process cannot
        reach the brokers.

        Raises ``ConfigurationError`` for settings that the client does not know, and without
        Spark Connect for brokers that cannot be reached.
        """
        return _Cluster.from_brokers(self, may_fail=is_remote(session)).identity

    def writer(self, changes: DataFrame, node: Node, checkpoint: str) -> DataStreamWriter:
        """Return Spark's writer of the query's ``changes`` into the topic, configured but not
        started. ``node``: the result that changes. ``checkpoint``: the query's folder, into which
        the count of transactions is written.

        Raises ``PlanError`` for columns or options that do not suit, and for a join of streams with
        ``unmatched="retract"``. Raises ``ConfigurationError`` for settings that the client does not
        know, and for brokers that cannot be reached or lack the topic. Raises ``CheckpointError``
        for another count of transactions than the checkpoint's.
        """
        return batch_writer(changes, self.batches(changes.sparkSession, node, checkpoint))

    def batches(self, session: SparkSession, node: Node, checkpoint: str) -> WriteBatch:
        """Return a function that writes a micro-batch's changes, given the changes and the
        micro-batch's id; a repeated micro-batch is written once. ``node``: the result that changes.
        ``checkpoint``: the query's folder, into which the count of transactions is written.

        Raises ``PlanError`` for columns or options that do not suit, and for a join of streams with
        ``unmatched="retract"``. Raises ``ConfigurationError`` for settings that the client does not
        know, and for brokers that cannot be reached or lack the topic. Raises ``CheckpointError``
        for another count of transactions than the checkpoint's.
        """
        write = self.joint(session, [(self, node)], checkpoint)
        return lambda batch, batch_id: write([batch], batch_id)

    @staticmethod
    def joint(
        session: SparkSession, sinks: Sequence[tuple[TransactionalSink, Node]], checkpoint: str
    ) -> WriteBatches:
        """Return the function that writes a micro-batch to the topics of several sinks, all of one
        cluster. Each transaction has its share of the records of all topics. ``checkpoint``: the
        query's folder, in which the count of transactions is recorded.

        ``sinks``: at least one, each with its result. Raises ``PlanError`` for sinks that differ in
        their options or transactions, and for a topic that is given twice. Also for columns that do
        not suit their formats, and for a join of streams with ``unmatched="retract"``. Raises
        ``ConfigurationError`` for settings that the client does not know, and for brokers that
        cannot be reached or lack a topic. On Spark Connect brokers need not be reached. Raises
        ``CheckpointError`` for another count of transactions than the checkpoint's.
        """
        first = sinks[0][0]
        title = ", ".join(sink.title for sink, _ in sinks)
        topics = [sink.topic for sink, _ in sinks]
        for sink, _ in sinks:
            if topics.count(sink.topic) > 1:
                raise PlanError(
                    "run", f"{sink.title} is a topic of two results", "Give each its own"
                )
        for sink, node in sinks:
            sink.refuse_unfit(session, node)
            if (sink.options, sink.transactions) != (first.options, first.transactions):
                raise PlanError(
                    title,
                    "topics that are committed together differ in options= or transactions=",
                    "Give all exactly_once= topics of a query the same",
                )
        cluster = _Cluster.from_brokers(first, may_fail=is_remote(session))
        if cluster.topics is not None:
            for sink, _ in sinks:
                cluster.refuse_missing(sink)
        identity = str(cluster.identity)
        _record_transactions(session, title, checkpoint, identity, first.transactions)
        return TransactionalBatches(
            title, [*sinks], Owner(checkpoint), checkpoint, cluster.retention_ms
        ).write


@dataclass
class TransactionalBatches:
    """Topics that a query writes together, in a fixed number of transactions per micro-batch."""

    title: str
    """The names of the sinks in errors."""
    sinks: Sequence[tuple[TransactionalSink, Node]]
    """The sinks with their results, all of one cluster and with the same options."""
    owner: Owner
    """The query that writes, by its checkpoint."""
    checkpoint: str
    """The folder of the query, in which its micro-batches are planned."""
    retention_ms: int
    """The time in milliseconds for which the brokers keep a marker."""

    def write(self, batches: Sequence[DataFrame], batch_id: int) -> None:
        """Write micro-batch ``batch_id`` to all topics. Writing it again writes nothing twice. The
        checkpoint must have planned it. ``batches``: the changes of each sink, in the order of
        ``sinks``.

        Tasks with many records write their own; the driver writes those of the others. Raises the
        first failure of a transaction, ``TargetError`` or ``ConfigurationError``. Other
        transactions may then be committed.
        """
        session = batches[0].sparkSession
        plan, planned_ms = _planned_batch(session, self.checkpoint, batch_id)
        order = BatchWrite(
            self.title,
            self.sinks[0][0].settings,
            self.owner.query_id(session),
            Marker(batch_id, plan),
            time.time_ns() // 1_000_000 - planned_ms > self.retention_ms,
            [sink.topic for sink, _ in self.sinks],
        )
        records = self._records(batches)
        try:
            reports = map_in_arrow(
                records, partial(write_task_records, order), spark_schema(REPORT_SCHEMA)
            ).collect()
        except PySparkException as error:
            raised = _RAISED_LINE.findall(str(error))
            if not raised:
                raise
            problem = raised[-1].removeprefix(f"{self.title}: ").removesuffix(".")
            raise errors.TargetError(self.title, problem, "Then start the query again") from error
        for report in reports:
            if report["kind"] is not None:
                error_type: type[DovetailError] = getattr(errors, report["kind"])
                raise error_type(self.title, report["problem"], report["remedy"])
        for report in reports:
            if report["few_records"] is not None:
                try:
                    commit_records(order, report["task"], pa.ipc.open_stream(report["few_records"]))
                except PermanentError as error:
                    raise error.failure from error

    def _records(self, batches: Sequence[DataFrame]) -> DataFrame:
        """Return the records of all topics in one frame: ``key`` and ``value`` (binary),
        ``headers``, and ``topic``, the index of the record's sink. There are as many tasks as
        transactions. The records of a key are in one task, in order. ``batches``: the changes of
        each sink, in the order of ``sinks``.
        """
        frames = [
            # By position, then as they come.
            sink.records(batch, node, [POSITION])
            # Some formats make texts, others bytes.
            .withColumns({part: F.col(part).cast("binary") for part in ("key", "value")})
            .withColumn(TOPIC_COLUMN, F.lit(index))
            .withColumn(_ORDER_COLUMN, F.monotonically_increasing_id())
            for index, (batch, (sink, node)) in enumerate(zip(batches, self.sinks, strict=True))
        ]
        count = self.sinks[0][0].transactions
        union = reduce(DataFrame.union, frames)
        shuffled = union.repartition(1) if count == 1 else union.repartition(count, "key")
        ordered = shuffled.sortWithinPartitions(POSITION, _ORDER_COLUMN)
        return ordered.drop(POSITION, _ORDER_COLUMN)


@dataclass(frozen=True)
class _Cluster:
    """The properties of a cluster, as its brokers tell them."""

    identity: Hashable
    """The cluster's id; the addresses of brokers that could not be reached."""
    topics: frozenset[str] | None
    """The topics that this user sees; None if the brokers could not be reached."""
    retention_ms: int
    """The time in milliseconds for which they keep the offsets of groups; if they do not say, a
    day.
    """

    @staticmethod
    def from_brokers(sink: TransactionalSink, *, may_fail: bool = False) -> _Cluster:
        """Return the cluster of ``sink``, as its brokers tell it. If they cannot be reached, raise
        ``ConfigurationError`` or, with ``may_fail``, return a cluster whose topics are not known.
        Raises ``ConfigurationError`` for settings that the client does not know.
        """
        refuse_settings(sink.title, sink.settings)
        client = client_for(sink.title)
        admin = client.admin.AdminClient(sink.connection, logger=SILENT_LOGGER)
        try:
            seen = admin.list_topics(timeout=ANSWER_SECONDS_MAX)
        except client.KafkaException as error:
            if may_fail:
                return _Cluster(sink.servers, None, _DAY_MS)
            raise permanent_error(sink.title, error) or ConfigurationError(
                sink.title,
                f"the brokers {sink.servers} give no answer: {text_of_error(error)}",
                "See that they run and can be reached from the driver and the workers",
            ) from error
        resource = client.admin.ConfigResource(
            client.admin.ConfigResource.Type.BROKER, str(next(iter(seen.brokers)))
        )
        (answer,) = admin.describe_configs([resource], request_timeout=ANSWER_SECONDS_MAX).values()
        try:
            retention_ms = int(answer.result()[_RETENTION_SETTING].value) * 60_000
        except (client.KafkaException, KeyError):
            retention_ms = _DAY_MS
        return _Cluster(seen.cluster_id, frozenset(seen.topics), retention_ms)

    def refuse_missing(self, sink: TransactionalSink) -> None:
        """Raise ``ConfigurationError`` if the topic of ``sink`` does not exist or this user may not
        see it. Do nothing if the topics are not known.
        """
        if self.topics is not None and sink.topic not in self.topics:
            raise ConfigurationError(
                sink.title,
                f"the brokers {sink.servers} have no topic {sink.topic} that this user may see",
                "Create it, and grant the user DESCRIBE, READ and WRITE on it",
            )


def _record_transactions(
    session: SparkSession, title: str, checkpoint: str, cluster: str, count: int
) -> None:
    """Write ``count``, how many transactions a micro-batch has in a cluster of brokers, into a file
    of the checkpoint, ``dovetail_transactions.json``. It overwrites the cluster's former count.

    If the file exists and a micro-batch has been planned, leave the file. Then raise
    ``CheckpointError`` if it has another count for the cluster. Any cluster that the file does not
    name counts as having the count that was written last.

    ``title``: the sinks' names in errors. ``cluster``: the cluster's identity.
    """
    files, path = files_of(session), f"{checkpoint.rstrip('/')}/{FILE_NAME}"
    text = files.text(path)
    recorded = json.loads(text or "{}")
    by_cluster = recorded.get("clusters", {})
    if text is not None and files.has_files(f"{checkpoint}/offsets"):
        before = by_cluster.get(cluster, recorded["transactions"])
        if before != count:
            raise CheckpointError(
                title,
                f"the checkpoint's micro-batches have {before} transactions, and transactions= "
                f"asks for {count}",
                f"Use transactions={before}, or start with a new checkpoint",
            )
        return
    clusters = {**by_cluster, cluster: count}
    files.put(path, json.dumps({"transactions": count, "clusters": clusters}))


def _planned_batch(session: SparkSession, checkpoint: str, batch_id: int) -> tuple[str, int]:
    """Return the identity of the plan of micro-batch ``batch_id`` and the time at which it was
    planned, in milliseconds since 1970. The identity is 16 hexadecimal digits, a hash of the plan's
    file in the folder ``checkpoint``. The micro-batch must have been planned.
    """
    text = files_of(session).text(f"{checkpoint.rstrip('/')}/offsets/{batch_id}")
    assert text is not None, batch_id
    identity = hashlib.sha256(text.strip().encode()).hexdigest()[:16]
    return identity, int(json.loads(text.splitlines()[1])["batchTimestampMs"])
