"""Kafka topics as sources of a topology, and as sinks of a changelog."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from pyspark.sql import functions as F

from dovetail.arguments import validated
from dovetail.columns import DELETED, TIMESTAMP
from dovetail.errors import PlanError
from dovetail.io.kafka import (
    MALFORMED,
    NEEDS_JAR,
    OFFSET,
    PARTITION,
    ReadFormat,
    Servers,
    Topic,
    WriteFormat,
    read_topic,
    write_topic,
)
from dovetail.plan.nodes import Node, Source, StreamJoin
from dovetail.plan.reading import source_of
from dovetail.plan.spans import Span
from dovetail.refusals import refused

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

Malformed: TypeAlias = Literal["fail", "drop"]
"""What a record that cannot be read does: ``"fail"`` stops the query with an error that says where
it lies, ``"drop"`` leaves it out and counts it, as observed metric ``<name>.malformed``."""


def topic_source(
    spark: SparkSession,
    topic: str,
    *,
    servers: str,
    key: ReadFormat,
    value: ReadFormat,
    name: str | None,
    starting: str,
    max_per_trigger: int | None,
    malformed: Malformed,
    streaming: bool,
    options: Mapping[str, str] | None,
    stream: bool = False,
    versioned: Span | None = None,
) -> Source:
    """A topic's records as a stream or as the changes of a table: a null value is a tombstone, the
    offset orders the records of a partition, the event time is the record's timestamp.
    """
    kind = "stream" if stream else "table"
    label = name or topic
    frame = read_topic(
        spark,
        topic,
        servers=servers,
        key=key,
        value=value,
        starting=starting,
        max_per_trigger=max_per_trigger,
        streaming=streaming,
        options=options,
    )
    readable = F.col(MALFORMED).isNull()
    if malformed == "drop":
        frame = frame.observe(f"{label}.malformed", F.count_if(~readable).alias("records"))
        frame = frame.where(readable)
    else:
        where = F.format_string(
            f"{kind} {label}: the record of topic {topic} at partition %d, offset %d cannot be "
            "read. Correct the declared key and value, or pass malformed='drop'.",
            PARTITION,
            OFFSET,
        )
        frame = frame.where(F.when(readable, True).otherwise(F.raise_error(where).cast("boolean")))
    frame = frame.drop(MALFORMED)
    metadata = (DELETED, TIMESTAMP, PARTITION, OFFSET)
    keys = frame.columns[: _width(key)]
    assert not set(keys) & set(metadata)
    return source_of(
        frame,
        key=keys,
        timestamp=TIMESTAMP,
        deleted=DELETED,
        sequence=OFFSET,
        log_partition=PARTITION,
        name=label,
        stream=stream,
        versioned=versioned,
    )


def _width(declared: ReadFormat) -> int:
    return 1 if isinstance(declared, str) else len(declared)


@dataclass(frozen=True)
class TopicSink:
    """Writes upserts and tombstones, keyed, each key's changes in order."""

    topic: str
    servers: str
    key: WriteFormat = "json"
    value: WriteFormat = "json"
    options: Mapping[str, str] = field(default_factory=dict)

    def writer(self, changes: DataFrame, node: Node, checkpoint: str) -> DataStreamWriter:
        """The configured writer."""
        if isinstance(node, StreamJoin) and node.unmatched == "retract":
            raise PlanError(
                node.name,
                "unmatched='retract' withdraws single rows, a record of a topic cannot say which",
                "Use unmatched='on_close', or write to files or Delta, which keep the rows",
            )
        session = changes.sparkSession
        jvm: Any = session._jvm  # noqa: SLF001 -- Spark looks for the connector when it starts
        with refused("to_topic", f"topic {self.topic} cannot be written", NEEDS_JAR):
            jvm.org.apache.spark.sql.execution.datasources.DataSource.lookupDataSource(
                "kafka",
                session._jsparkSession.sessionState().conf(),  # noqa: SLF001
            )
        return write_topic(
            changes,
            key_columns=node.key.names,
            value_columns=node.values.names,
            topic=self.topic,
            servers=self.servers,
            key=self.key,
            value=self.value,
            options=self.options,
        )


@validated
def to_topic(
    topic: Topic,
    *,
    servers: Servers,
    key: WriteFormat = "json",
    value: WriteFormat = "json",
    options: Mapping[str, str] | None = None,
) -> TopicSink:
    """The changelog as a Kafka topic, best a compacted one: an upsert is a record with the key and
    the values, a delete a record with the key and a null value.

    The changes of a key are in order. Kafka's sink is at least once: after a failure a batch is
    written again, whole and in order, so the topic's latest record per key is exact.
    ``key``, ``value``: ``"json"`` objects, or ``"string"`` or ``"bytes"`` where there is one
    column. The event time travels in the header ``dovetail.timestamp_us``.
    """
    return TopicSink(topic, servers, key, value, dict(options or {}))
