"""The sink of a Kafka topic by Spark's connector, which writes at least once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dovetail.base import datasets
from dovetail.errors import ConfigurationError, PlanError
from dovetail.io.formats.plain import WriteFormat
from dovetail.io.sinks.spark_sinks import WriteBatch
from dovetail.io.sources.kafka import (
    NEEDS_JAR,
    Headers,
    sink_options,
    to_records,
    write_topic,
)
from dovetail.plan.nodes import Node, changelog_schema
from dovetail.platform.sessions import has_source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter


@dataclass(frozen=True)
class TopicSink:
    """A topic to which Spark's connector writes, with the arguments of ``to_topic`` as fields.

    It gets keyed upserts and tombstones (records with a null value), each key's changes in order.
    """

    topic: str
    """The name of the topic."""
    servers: str
    """The brokers, ``host:port``, separated by commas."""
    key: WriteFormat = "json"
    """The format of the key's columns."""
    value: WriteFormat = "json"
    """The format of the value columns."""
    headers: Headers = field(default_factory=dict)
    """The further headers by name: a column of the changelog or an expression over it."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Further options of the sink, which overrule the arguments and the defaults."""

    @property
    def dataset(self) -> datasets.Dataset:
        """The namespace and the name of the topic in lineage events: ``kafka://host:port`` of the
        first broker in ``servers``, and the topic's name.
        """
        return datasets.topic(self.servers, self.topic)

    @property
    def target(self) -> tuple[str, frozenset[str]]:
        """The identity of the topic: the call and the brokers' addresses, as ``servers`` has them.
        Two sinks of one topic have equal ones if they name the same brokers.
        """
        return self.title, frozenset(server.strip() for server in self.servers.split(","))

    @property
    def title(self) -> str:
        """The call as written: ``to_topic('topic')``."""
        return f"to_topic({self.topic!r})"

    def writer(self, changes: DataFrame, node: Node, checkpoint: str) -> DataStreamWriter:
        """Return Spark's writer of the query's ``changes`` into the topic, configured but not
        started. ``node``: the result that changes. ``checkpoint`` is not used.

        Raises ``PlanError`` for a join of streams with ``unmatched="retract"``, and for columns
        that do not suit their formats. Raises ``ConfigurationError`` without Spark's connector, for
        a registry that does not answer, and for missing functions or packages of a format.
        """
        self._refuse_without_connector(changes.sparkSession, node)
        arguments = self._record_arguments(node)
        return write_topic(changes, **arguments, servers=self.servers, options=self.options)

    def batches(self, session: SparkSession, node: Node, checkpoint: str) -> WriteBatch:
        """Return the function that writes a micro-batch's records, given its changes and its id. A
        repeated micro-batch is written again. ``node``: the result that changes. ``checkpoint`` is
        not used.

        Raises ``PlanError`` for a join of streams with ``unmatched="retract"``, and for columns
        that do not suit their formats. Raises ``ConfigurationError`` without Spark's connector, for
        a registry that does not answer, and for missing functions or packages of a format.
        """
        self._refuse_without_connector(session, node)
        self.refuse_unfit(session, node)
        options = sink_options(self.topic, self.servers, self.options)
        return lambda batch, _: (
            self.records(batch, node).write.format("kafka").options(**options).save()
        )

    def _record_arguments(self, node: Node) -> dict[str, Any]:
        """Return the arguments of ``to_records`` for the changelog of ``node``, by name. They are
        always the names of its key and value columns, and the sink's topic, formats and headers.
        ``further_columns`` is not among them.
        """
        return {
            "key_columns": node.key.names,
            "value_columns": node.values.names,
            "topic": self.topic,
            "key": self.key,
            "value": self.value,
            "headers": self.headers,
        }

    def records(
        self, changes: DataFrame, node: Node, further_columns: Sequence[str] = ()
    ) -> DataFrame:
        """Return the records of ``changes``, a changelog of ``node``, one per change in order:
        ``key``, ``value`` and ``headers`` as Spark's sink takes them. The columns
        ``further_columns`` of the changelog follow. ``changes`` has the key and value columns of
        ``node``, ``_change`` (``upsert`` or ``delete``) and ``_timestamp``. Raises ``PlanError``
        for columns that do not suit their formats. Raises ``ConfigurationError`` for a registry
        that does not answer and for missing functions or packages of a format.
        """
        return to_records(changes, **self._record_arguments(node), further_columns=further_columns)

    def refuse_unfit(self, session: SparkSession, node: Node) -> None:
        """Raise ``PlanError`` if the changelog of ``node`` does not fit the topic. It is that of a
        join of streams with ``unmatched="retract"``, or its columns do not suit their formats. A
        format of a registry may register its schema. Raises ``ConfigurationError`` for a registry
        that does not answer and for missing functions or packages of a format.
        """
        self._refuse_withdrawals(node)
        self.records(session.createDataFrame([], changelog_schema(node)), node)

    def _refuse_withdrawals(self, node: Node) -> None:
        """Raise ``PlanError`` if ``node`` itself is an outer or left join of streams with
        ``unmatched="retract"``. Such a join withdraws single rows, and a record of a topic cannot
        say which row it means.
        """
        if node.withdraws:
            raise PlanError(
                node.name,
                "unmatched='retract' withdraws single rows, a record of a topic cannot say which",
                "Use unmatched='on_close', or write to files or Delta, which keep the rows",
            )

    def _refuse_without_connector(self, session: SparkSession, node: Node) -> None:
        """Raise ``ConfigurationError`` if the session lacks Spark's connector to Kafka. Before
        that, raise ``PlanError`` if ``node`` is a join of streams with ``unmatched="retract"``.
        """
        self._refuse_withdrawals(node)
        if not has_source(session, "kafka"):
            problem = f"topic {self.topic} cannot be written: Spark has no connector to Kafka"
            raise ConfigurationError("to_topic", problem, NEEDS_JAR)
