"""Kafka topics as sinks of a changelog."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dovetail.base.validation import validated
from dovetail.errors import ConfigurationError, PlanError
from dovetail.io.formats.plain import WriteFormat
from dovetail.io.sinks.spark_sinks import WriteBatch
from dovetail.io.sources.kafka import (
    NEEDS_JAR,
    Headers,
    Servers,
    Topic,
    save_to_topic,
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
    """A topic, with the arguments of ``to_topic`` as fields.

    It gets keyed upserts and tombstones (records with a null value), each key's changes in order.
    """

    topic: str
    servers: str
    key: WriteFormat = "json"
    value: WriteFormat = "json"
    headers: Headers = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """The call as written: ``to_topic('topic')``."""
        return f"to_topic({self.topic!r})"

    def writer(self, changes: DataFrame, node: Node, checkpoint: str) -> DataStreamWriter:
        """Return the configured writer; raise as ``batches`` does."""
        self._refuse_unfit(changes.sparkSession, node)
        return write_topic(changes, **self._records(node))

    def batches(self, session: SparkSession, node: Node, checkpoint: str) -> WriteBatch:
        """Return the function that writes a micro-batch's records; a repeated one writes them
        again.

        Raises ``PlanError`` for columns that do not suit their formats, ``ConfigurationError``
        without Spark's connector.
        """
        self._refuse_unfit(session, node)
        to_records(
            session.createDataFrame([], changelog_schema(node)),
            key_columns=node.key.names,
            value_columns=node.values.names,
            key=self.key,
            value=self.value,
            headers=self.headers,
            topic=self.topic,
        )
        return lambda batch, _: save_to_topic(batch, **self._records(node))

    def _records(self, node: Node) -> dict[str, Any]:
        """Return the arguments of ``write_topic`` and ``save_to_topic`` for the changelog of
        ``node``, by name.
        """
        return {
            "key_columns": node.key.names,
            "value_columns": node.values.names,
            "topic": self.topic,
            "servers": self.servers,
            "key": self.key,
            "value": self.value,
            "headers": self.headers,
            "options": self.options,
        }

    def _refuse_unfit(self, session: SparkSession, node: Node) -> None:
        """Raise ``PlanError`` for results that withdraw single rows, and ``ConfigurationError``
        without Spark's connector.
        """
        if node.withdraws:
            raise PlanError(
                node.name,
                "unmatched='retract' withdraws single rows, a record of a topic cannot say which",
                "Use unmatched='on_close', or write to files or Delta, which keep the rows",
            )
        if not has_source(session, "kafka"):
            problem = f"topic {self.topic} cannot be written: Spark has no connector to Kafka"
            raise ConfigurationError("to_topic", problem, NEEDS_JAR)


@validated
def to_topic(
    topic: Topic,
    *,
    servers: Servers,
    key: WriteFormat = "json",
    value: WriteFormat = "json",
    headers: Headers | None = None,
    options: Mapping[str, str] | None = None,
) -> TopicSink:
    """Write the changelog to a Kafka topic, best a compacted one.

    An upsert is a record with the key and the values. A delete is a tombstone: a record
    with the key and a null value. The session needs the jar of Spark's Kafka connector.

    Parameters
    ----------
    topic : str
        The name of one topic: letters, digits, ``.``, ``_`` and ``-``. Create it
        beforehand.
    servers : str
        The brokers, ``host:port``, separated by commas.
    key : {"json", "string", "bytes"} or format, default "json"
        The format of the key's columns. ``"json"`` writes an object of all of them.
        ``"string"`` and ``"bytes"`` write the only one. ``dt.formats.avro(...)`` and
        ``dt.formats.protobuf(...)`` are formats, too.
    value : {"json", "string", "bytes"} or format, default "json"
        The format of the value columns, in the same forms.
    headers : mapping of str to str or Column, optional
        Further headers by their names, each a column of the changelog or a Spark expression
        over it: ``{"tenant": "tenant", "source": F.lit("shop")}``. A null header is left
        out.
    options : mapping of str to str, optional
        Further options of Spark's Kafka sink. They overrule the arguments and the defaults.

    Returns
    -------
    Sink
        The sink, for ``write_stream`` and ``dt.run``.

    Raises
    ------
    PlanError
        If ``topic`` is not the name of one topic, or a header's name begins with
        ``dovetail.``. The start of a query raises it for columns that do not suit their
        formats, and for a join with ``unmatched="retract"``.
    ConfigurationError
        At the start of a query, if the session lacks Spark's Kafka connector.

    See Also
    --------
    Table.from_topic : Read a topic as a table.
    json : Records that are one JSON object.
    avro : Records in Avro.
    Table.write_stream : Start a query that keeps a sink up to date.

    Notes
    -----
    *Order and repetition.* The changes of a key are in order. Kafka's sink is at least
    once: after a failure a batch is written again, whole and in order. So the topic's
    latest record per key is exact, and a stream's records may come twice.

    *Headers.* ``dovetail.timestamp_us`` has the event time in microseconds since 1970.
    ``dovetail.change`` is ``upsert`` or ``delete``. Further headers are written as they are
    if they are bytes, else as the text that Spark's cast makes. A delete has null values,
    and so no headers of values.

    *Defaults* of the options: ``kafka.batch.size`` 262144, ``kafka.linger.ms`` 100 and
    ``kafka.compression.type`` lz4.

    Examples
    --------
    >>> import dovetail as dt
    >>> sink = dt.to_topic(
    ...     "orders", servers="db1:9092,db2:9092", key="string", headers={"tenant": "tenant"}
    ... )
    >>> sink.title, sink.key, sink.value
    ("to_topic('orders')", 'string', 'json')
    """
    return TopicSink(topic, servers, key, value, dict(headers or {}), dict(options or {}))
