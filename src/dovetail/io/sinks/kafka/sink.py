"""The call that makes the sink of a Kafka topic."""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.base.validation import Positive, validated
from dovetail.errors import PlanError
from dovetail.io.formats.plain import WriteFormat
from dovetail.io.sinks.kafka.client import client_for
from dovetail.io.sinks.kafka.topic import TopicSink
from dovetail.io.sinks.kafka.transactional import TransactionalSink
from dovetail.io.sources.kafka import Headers, Servers, Topic

_TRANSACTIONAL_ID = "kafka.transactional.id"


@validated
def to_topic(
    topic: Topic,
    *,
    servers: Servers,
    key: WriteFormat = "json",
    value: WriteFormat = "json",
    headers: Headers | None = None,
    options: Mapping[str, str] | None = None,
    exactly_once: bool = False,
    transactions: Positive = 1,
) -> TopicSink:
    """Write the changelog to a Kafka topic, best a compacted one.

    An upsert is a record with the key and the values. A delete is a tombstone: a record
    with the key and a null value. The session needs the jar of Spark's Kafka connector, unless
    ``exactly_once`` is set.

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
        ``dt.formats.protobuf(...)`` are formats, too. Streams and histories have key
        columns, too.
    value : {"json", "string", "bytes"} or format, default "json"
        The format of the value columns, in the same forms. Without value columns
        ``"json"`` writes ``{}``. With ``"string"`` and ``"bytes"``, an upsert of null fails
        the query, because it would read as a delete.
    headers : mapping of str to str or Column, optional
        Further headers by their names, each a column of the changelog or a Spark expression
        over it: ``{"tenant": "tenant", "source": F.lit("shop")}``. A null header is left
        out.
    options : mapping of str to str, optional
        Further options of Spark's Kafka sink. They overrule the arguments and the defaults.
        With ``exactly_once`` they are settings of librdkafka, each with the prefix
        ``kafka.``.
    exactly_once : bool, default False
        True to write each micro-batch in transactions. Readers with
        ``isolation.level=read_committed`` then see each record once and in order. It needs the
        package confluent-kafka on the driver and the workers: ``pip install
        'dovetail[kafka]'``.
    transactions : int, default 1
        The number of transactions of a micro-batch, with ``exactly_once``. Each is written
        by a task of its own. With 1 a micro-batch becomes visible as a whole. More are
        faster with many records. A checkpoint keeps the number that it began with.

    Returns
    -------
    Sink
        The sink, for ``write_stream`` and ``dt.run``.

    Raises
    ------
    PlanError
        If ``topic`` is not the name of one topic, or a header's name begins with
        ``dovetail.``. Also if ``transactions``, or ``kafka.transactional.id`` in ``options``,
        is given without ``exactly_once``. The start of a query raises it for columns that do
        not suit their formats, and for a join with ``unmatched="retract"``.
    ConfigurationError
        If confluent-kafka is missing for ``exactly_once``. At the start of a query, if the
        session lacks Spark's Kafka connector; with ``exactly_once``, if the brokers cannot
        be reached or lack the topic.
    CheckpointError
        At the start of a query, if its checkpoint has another number of ``transactions``.
    TargetError
        In a query with ``exactly_once``, if another one on a copy of its checkpoint writes,
        or a transaction took too long.

    See Also
    --------
    Table.from_topic : Read a topic as a table.
    json : Records that are one JSON object.
    avro : Records in Avro.
    Table.write_stream : Start a query that keeps a sink up to date.

    Notes
    -----
    *Order and repetition.* The changes of a key are in order. Without ``exactly_once`` the
    sink is at least once: after a failure a batch is written again, whole and in order. So
    the topic's latest record per key is exact, and a stream's records may come twice.

    *Exactly once.* A transaction holds the records of a task and the number of the
    micro-batch, as the offset of a consumer group. So a batch that is repeated after a
    failure is written where it lacks, and nowhere else. Names of transactional ids and
    groups are ``dovetail-<query's id>-<task>``. Topics of one query and cluster are
    committed together.

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
    arguments = (topic, servers, key, value, dict(headers or {}), dict(options or {}))
    if exactly_once:
        sink = TransactionalSink(*arguments, transactions)
        _ = client_for(sink.title), sink.settings
        return sink
    if transactions != 1:
        raise PlanError(
            "to_topic",
            "transactions= is given without exactly_once=True",
            "Give both, or leave it out",
        )
    if _TRANSACTIONAL_ID in map(str.lower, arguments[-1]):
        raise PlanError(
            "to_topic",
            f"options= has {_TRANSACTIONAL_ID}, but Spark's sink begins no transaction",
            "Give exactly_once=True, which names its transactions itself",
        )
    return TopicSink(*arguments)
