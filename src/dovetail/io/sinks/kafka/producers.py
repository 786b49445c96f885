"""Producers of tasks: each writes its share of a micro-batch in one transaction.

A transaction holds the records and a *marker*, the micro-batch's id. The marker is the offset that
a consumer group has committed for partition 0 of the topic. The group and the transactional id
share one name, made of the query's id and the task's index.

1. ``init_transactions`` fences every other producer of this name, and ends its transaction.
2. Read the marker: the last micro-batch that this name has committed. If it is this one, stop.
3. Begin a transaction, and send the marker of this micro-batch in it, then the records.
4. Commit. That fails if another producer of this name was initialized meanwhile.

So between the reading of a marker and a commit no other commit can be. A micro-batch is committed
once per task, also if processes are killed. A process keeps its producer for the next micro-batch.
While that is not fenced, nobody else has written, and its marker is known.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dovetail.errors import DovetailError, TargetError
from dovetail.io.sinks.kafka.client import (
    ANSWER_SECONDS_MAX,
    FENCED_ERRORS,
    ID_PREFIX,
    SILENT_LOGGER,
    client_for,
    connection_settings,
    passing_error,
    permanent_error,
    producer_of,
    refuse_fenced,
    retry_request,
)

TOPIC_COLUMN: Final = "topic"
"""The column with the index of a record's topic."""
REPORT_SCHEMA: Final = pa.schema(
    [
        ("task", pa.int32()),
        ("records", pa.int64()),
        ("few_records", pa.binary()),
        *((name, pa.string()) for name in ("kind", "problem", "remedy")),
    ]
)
"""The result of a task: the count of records that it has committed, or its records themselves in
Arrow's IPC format; and a failure that another attempt would meet again."""
ROWS_MAX, BYTES_MAX = 2_000, 1 << 20
"""The limits of rows and bytes below which a task's records go through the driver."""
_Record: TypeAlias = "tuple[bytes | None, bytes | None, list[tuple[str, bytes]]]"
"""A record's value, key and headers."""
_PRODUCERS_MAX: Final = 16
"""The most producers that a process keeps between micro-batches."""
_ABORT_S: Final = 5.0
"""The seconds to wait for the end of a transaction that is aborted."""
_WAIT_S: Final = 0.05
"""The seconds to wait, again and again, while a producer's buffer is full."""
_PRODUCERS: dict[tuple[str, tuple[tuple[str, str], ...]], _Producer] = {}
"""The producers of this process that are not in a transaction, by name and settings, the least
recently used first."""


@dataclass(frozen=True)
class Marker:
    """The last micro-batch of a task that a topic has."""

    batch_id: int
    """The id of the micro-batch."""
    plan: str
    """The identity of the micro-batch's plan: a hash of the offsets that it reads, and its time."""


@dataclass(frozen=True)
class BatchWrite:
    """The order to write one micro-batch, for all its tasks."""

    title: str
    """The names of the sinks in errors, without secrets."""
    settings: Mapping[str, str] = field(repr=False)
    """The settings of a producer, by the names of librdkafka. They may be secret."""
    query: str
    """The query's id."""
    marker: Marker
    """The marker of the micro-batch to be written."""
    expired: bool
    """True if the micro-batch was planned so long ago that the brokers may have dropped its
    markers.
    """
    topics: Sequence[str]
    """The topics, in the order of the indices in the column ``TOPIC_COLUMN`` of records."""

    def producer_name(self, task: int) -> str:
        """Return the transactional id of the producer of the task with the index ``task``; its
        consumer group has the same name.
        """
        return f"{ID_PREFIX}{self.query}-{task}"

    @property
    def timeout_ms(self) -> int:
        """The milliseconds after which the brokers abort a transaction that has not ended: the
        setting ``transaction.timeout.ms``, by default 60000.
        """
        return int(self.settings["transaction.timeout.ms"])

    def topics_to_write(self, name: str, markers: Mapping[str, Marker]) -> list[str]:
        """Return those of ``topics`` that lack the micro-batch, in their order; empty if all have
        it. ``markers``: the last micro-batch of each topic that has one, by the topic's name.
        ``name``: the producer's name, for errors.

        Raises ``TargetError`` if a topic has a later micro-batch, or one of this id by another
        plan. Also if a topic has no marker and ``expired`` is true: the micro-batch was planned
        longer ago than the brokers keep markers, so nothing says whether the topic has it.
        """
        for topic, marker in markers.items():
            if marker.batch_id > self.marker.batch_id or (
                marker.batch_id == self.marker.batch_id and marker.plan != self.marker.plan
            ):
                raise TargetError(
                    self.title,
                    f"topic {topic} has micro-batch {marker.batch_id} of this query by another "
                    f"run, and the next one is {self.marker.batch_id}: the checkpoint is an older "
                    "copy, or a copy of it runs",
                    "Go on with the newest checkpoint. To go on from this one, call "
                    "dt.checkpoints.rewind, which gives the query a new id: what the topic has "
                    "stays, and is written again",
                )
        lacking = [topic for topic in self.topics if markers.get(topic) != self.marker]
        unknown = [topic for topic in lacking if topic not in markers]
        if self.expired and unknown:
            raise TargetError(
                self.title,
                f"micro-batch {self.marker.batch_id} was begun longer ago than the brokers keep "
                f"offsets, and nothing says whether {', '.join(unknown)} has it ({name})",
                "Start the query once without exactly_once=, which writes the micro-batch, maybe "
                "again; or raise offsets.retention.minutes and begin in a new checkpoint",
            )
        return lacking


def write_task_records(
    order: BatchWrite, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Write the records of this task in one transaction, commit it, and yield one row of
    ``REPORT_SCHEMA``. A topic that already has the micro-batch gets none of its records, so a task
    that runs again writes nothing twice.

    The row has ``task`` and ``records``, the count written. A failure is in ``kind``, ``problem``
    and ``remedy``, null for none. A task without records yields nothing. A task with at most 2,000
    records and at most 1 MiB writes nothing: the driver does. The row then has 0 ``records``, and
    them in ``few_records``, bytes in Arrow's IPC format, else null.

    ``order``: the micro-batch and its topics. ``batches``: the task's records (``key``, ``value``,
    ``headers``, and ``topic``, an index in ``order.topics``), in the order to write. The task is
    the index of Spark's partition, 0 outside of a task.

    A failure that every attempt would meet is in the row. Raises ``TargetError`` for one that
    another attempt of the task may not meet, ``ConfigurationError`` without the client.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    task = 0 if context is None else context.partitionId()
    filled = (batch for batch in batches if batch.num_rows)
    first = list(_read_until_many(filled))
    if not first:
        return
    if not _is_many(first):
        yield task_report(task, few_records=serialize_records(first))
        return
    try:
        records = commit_records(order, task, chain(first, filled))
    except PermanentError as error:
        yield task_report(task, failure=error.failure)
    else:
        yield task_report(task, records=records)


def _is_many(batches: Sequence[pa.RecordBatch]) -> bool:
    """Return True if record batches together have more than 2,000 rows (``ROWS_MAX``) or more than
    1 MiB (``BYTES_MAX``); False for none. The task then writes them, not the driver.
    """
    rows: int = sum(batch.num_rows for batch in batches)
    size: int = sum(batch.nbytes for batch in batches)
    return rows > ROWS_MAX or size > BYTES_MAX


def _read_until_many(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the first batches: up to and including the one by which ``_is_many`` is true for those
    so far, or all if none does that. The rest can still be read from ``batches``.
    """
    taken: list[pa.RecordBatch] = []
    for batch in batches:
        taken.append(batch)
        yield batch
        if _is_many(taken):
            return


def task_report(
    task: int,
    *,
    records: int = 0,
    few_records: bytes | None = None,
    failure: DovetailError | None = None,
) -> pa.RecordBatch:
    """Return a row of ``REPORT_SCHEMA`` for the task with the index ``task``: ``task``,
    ``records``, ``few_records``, and the failure's class as ``kind``, ``problem`` and ``remedy``.
    ``records``: how many records it has written. ``few_records``: its few records as bytes for the
    driver, None for none. ``failure``: the task's failure, None for none.
    """
    kind = None if failure is None else type(failure).__name__
    problem, remedy = (None, None) if failure is None else (failure.problem, failure.remedy)
    values = (task, records, few_records, kind, problem, remedy)
    return pa.RecordBatch.from_pylist(
        [dict(zip(REPORT_SCHEMA.names, values, strict=True))], REPORT_SCHEMA
    )


def serialize_records(batches: Sequence[pa.RecordBatch]) -> bytes:
    """Return record batches, at least one and all of one schema, as the bytes of a stream in
    Arrow's IPC format.
    """
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as stream:
        for batch in batches:
            stream.write_batch(batch)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


class PermanentError(Exception):
    """An error around a ``DovetailError`` that every attempt of a task would raise."""

    def __init__(self, failure: DovetailError) -> None:
        """Take the error ``failure``, which is raised to the user in the end."""
        super().__init__(failure)
        self.failure = failure


def commit_records(order: BatchWrite, task: int, batches: Iterable[pa.RecordBatch]) -> int:
    """Write the records of a task in one transaction, and return their count, 0 if all topics have
    the micro-batch. A topic that has it gets none of its records.

    ``order``: the micro-batch and its topics. ``task``: the task's index, by which its producer is
    named. ``batches``: the records (``key``, ``value``, ``headers``, and ``topic``, an index in
    ``order.topics``), in the order to write.

    Raises ``PermanentError`` for a failure that every attempt would meet, else ``TargetError``.
    Raises ``ConfigurationError`` without the client. This process keeps the producer for later.
    """
    client = client_for(order.title)
    try:
        return _commit_by_client(client, order, task, batches)
    except client.KafkaException as error:
        failure = permanent_error(order.title, error)
        if failure is not None:
            raise PermanentError(failure) from error
        raise passing_error(order.title, error) from error


def _commit_by_client(
    client: Any, order: BatchWrite, task: int, batches: Iterable[pa.RecordBatch]
) -> int:
    """Write the records of a task in one transaction, and return their count, 0 if all topics have
    the micro-batch. ``client``: the package ``confluent_kafka``. ``order``: the micro-batch and its
    topics. ``task``: the task's index. ``batches``: its records, in the order to write.

    It uses this process's producer for the task, or makes one if there is none or the old one
    cannot begin a transaction. Of the producers it keeps 16, and closes those used least recently.
    Raises ``PermanentError``, ``TargetError`` and the client's errors.
    """
    name = order.producer_name(task)
    producer_key = (name, tuple(sorted(order.settings.items())))
    producer, topics = _PRODUCERS.pop(producer_key, None), None
    if producer is not None:
        with suppress(client.KafkaException):  # fenced or broken since: begin anew
            topics = producer.begin_transaction(order)
    if producer is None or topics is None:
        producer = _Producer(order, name)
        topics = producer.begin_transaction(order)
    records = producer.commit(order, topics, batches) if topics else 0
    _PRODUCERS[producer_key] = producer
    while len(_PRODUCERS) > _PRODUCERS_MAX:
        _PRODUCERS.pop(next(iter(_PRODUCERS))).close()
    return records


class _Producer:
    """A producer of one name, with what it knows of the markers of topics. It writes one
    transaction at a time.
    """

    def __init__(self, order: BatchWrite, name: str) -> None:
        """Connect to the brokers of ``order``, and fence the other producers of this ``name``, the
        transactional id. Then read the markers of the topics. Raises the client's error if the
        brokers do not answer.
        """
        self._client: Any = client_for(order.title)
        self._name = name
        self._producer = producer_of(self._client, order.settings, name)
        retry_request(self._client, lambda: self._producer.init_transactions(ANSWER_SECONDS_MAX))
        self._markers: dict[str, Marker] = {}
        self._group: Any = None
        self._read_markers(order)

    def _read_markers(self, order: BatchWrite) -> None:
        """Read the markers of the topics of ``order``, as committed, and the metadata of the
        consumer group that keeps them. A marker is the last micro-batch that a topic has of this
        producer's name. If the brokers have none for a topic, this producer keeps the one that it
        knows of an earlier call or of its own commit. Raises the client's error.
        """
        group = {"group.id": self._name, "isolation.level": "read_committed"}
        settings = {**connection_settings(order.settings), **group}
        consumer = self._client.Consumer(settings, logger=SILENT_LOGGER)
        partitions = [self._client.TopicPartition(topic, 0) for topic in order.topics]
        try:
            self._group = consumer.consumer_group_metadata()
            positions = retry_request(
                self._client, lambda: consumer.committed(partitions, ANSWER_SECONDS_MAX)
            )
        finally:
            consumer.close()
        for position in positions:
            if position.error is not None:
                raise self._client.KafkaException(position.error)
            if position.offset >= 0:
                self._markers[position.topic] = Marker(position.offset, position.metadata or "")

    def begin_transaction(self, order: BatchWrite) -> list[str]:
        """Begin a transaction with the markers of the topics that lack the micro-batch of
        ``order``, and return these topics. If no topic lacks it, begin none and return an empty
        list.

        The producer must not be in a transaction. Raises ``PermanentError`` if a topic has a later
        micro-batch or another plan's, or has no marker although the micro-batch is ``expired``.
        Raises the client's error, for instance if the producer was fenced.
        """
        if {*order.topics} - {*self._markers}:
            self._read_markers(order)
        try:
            due = order.topics_to_write(self._name, self._markers)
        except DovetailError as error:
            raise PermanentError(error) from error
        if due:
            self._producer.begin_transaction()
            self._began = time.monotonic()
            marker = order.marker
            positions = [
                self._client.TopicPartition(topic, 0, marker.batch_id, metadata=marker.plan)
                for topic in due
            ]
            # Before any record: a producer that was fenced fails here.
            retry_request(
                self._client,
                lambda: self._producer.send_offsets_to_transaction(
                    positions, self._group, ANSWER_SECONDS_MAX
                ),
            )
        return due

    def commit(
        self, order: BatchWrite, topics: Sequence[str], batches: Iterable[pa.RecordBatch]
    ) -> int:
        """Send the records in ``batches`` that belong to ``topics``, commit, and return their
        count. After a failure the transaction is aborted, so that readers need not wait for its
        end.

        ``topics``: the result of ``begin_transaction``, not empty. Raises ``TargetError`` if the
        producer was fenced, else the error that occurred. After an error the producer must not be
        used again.
        """
        try:
            records = sum(self._send(order, topics, batch) for batch in batches)
            retry_request(self._client, self._producer.commit_transaction)
        except BaseException as error:
            with suppress(self._client.KafkaException):
                self._producer.abort_transaction(_ABORT_S)
            if (
                isinstance(error, self._client.KafkaException)
                and error.args[0].name() in FENCED_ERRORS
            ):
                seconds = time.monotonic() - self._began
                refuse_fenced(order.title, self._name, seconds, order.timeout_ms)
            raise
        self._markers |= dict.fromkeys(topics, order.marker)
        return records

    def _send(self, order: BatchWrite, topics: Sequence[str], batch: pa.RecordBatch) -> int:
        """Send the records of ``batch`` that belong to ``topics``, and return their count. Records
        of other topics of ``order`` are left out, because these topics have them. Raises the
        client's error.
        """
        topic_index = batch.column(TOPIC_COLUMN).to_numpy()
        sent = 0
        for topic in topics:
            rows = np.flatnonzero(topic_index == order.topics.index(topic))
            part = batch if len(rows) == len(batch) else batch.take(pa.array(rows))
            self._produce(topic, part)
            sent += len(rows)
        return sent

    def _produce(self, topic: str, records: pa.RecordBatch) -> None:
        """Hand all ``records`` for ``topic`` to the client, one by one, because it has no call for
        many with headers. While the client's buffer is full, wait, without a limit. Raises the
        client's error.
        """
        keys, values = (records.column(part).to_pylist() for part in ("key", "value"))
        left = zip(values, keys, headers_of(records), strict=True)
        refused = self._produce_until_full(topic, left)
        while refused is not None:
            self._producer.poll(_WAIT_S)
            refused = self._produce_until_full(topic, chain([refused], left))

    def _produce_until_full(self, topic: str, records: Iterable[_Record]) -> _Record | None:
        """Hand records for ``topic`` to the client until its buffer is full. Return the record that
        it did not take, None if it took all. An iterator ``records`` then goes on behind that
        record. Raises the client's error.
        """
        produce = self._producer.produce
        try:
            for record in records:
                value, key, headers = record
                produce(topic, value, key, headers=headers)
        except BufferError:
            return record
        return None

    def close(self) -> None:
        """Close the producer's connections to the brokers. It must not be in a transaction."""
        self._producer.close()


def headers_of(records: pa.RecordBatch) -> Iterator[list[tuple[str, bytes]]]:
    """Yield the headers of each record in order, a list of (name, value); empty for a record
    without headers. ``records``: with a column ``headers``, lists of structs of name and bytes.
    Under a null list there must be no values.
    """
    column = records.column("headers")
    names, values = column.flatten().flatten()
    headers = zip(names.to_pylist(), values.to_pylist(), strict=True)
    counts = pc.list_value_length(column).to_pylist()
    return (list(islice(headers, count)) for count in counts)
