"""Kafka topics as frames, and changelogs as Kafka topics.

These functions on DataFrames use Spark's own Kafka connector. ``read_topic`` reads back unchanged
what ``write_topic`` writes in the same format of key and value (``io.formats.plain``).

Event time travels in a header, ``dovetail.timestamp_us``: microseconds since 1970 in UTC, as
decimal text. A record's own timestamp is the time of writing: Spark's Kafka sink cannot set it, and
it could not hold microseconds. Another header, ``dovetail.change``, is ``upsert`` or ``delete``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, StructType

from dovetail.base.columns import CHANGE, DELETE, PROBLEM, TIMESTAMP, UPSERT, quoted
from dovetail.base.validation import ColumnName, Positive, Rule, validated
from dovetail.errors import PlanError
from dovetail.io.formats.plain import FormatContext, Part, ReadFormat, WriteFormat, format_of
from dovetail.io.sources.records import MALFORMED, TIMESTAMP_HEADER, RecordFrame
from dovetail.plan.types.checks import known_field
from dovetail.plan.types.expressions import field_of
from dovetail.platform.spark_errors import convert_spark_errors

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_TOPIC: Final = re.compile("[A-Za-z0-9._-]{1,249}")
Topic: TypeAlias = Annotated[
    str,
    Rule(
        "the name of one topic: letters, digits, '.', '_' and '-'",
        _TOPIC.fullmatch,
    ),
]
Servers: TypeAlias = Annotated[
    str,
    Rule(
        "the brokers as host:port, separated by commas",
        re.compile(r"\s*[^\s,]+:\d+\s*(,\s*[^\s,]+:\d+\s*)*").fullmatch,
    ),
]
Starting: TypeAlias = Annotated[
    str,
    Rule(
        "'earliest', 'latest' or Spark's JSON of offsets",
        re.compile(r"earliest|latest|\s*\{.*\}\s*", re.DOTALL).fullmatch,
    ),
]
CHANGE_HEADER: Final = "dovetail.change"
"""The name of the header that says ``upsert`` or ``delete``."""
_RESERVED_PREFIX: Final = "dovetail."
Headers: TypeAlias = Mapping[
    Annotated[
        str,
        Rule(
            f"the name of a header, which does not begin with {_RESERVED_PREFIX!r}",
            lambda name: name != "" and not name.startswith(_RESERVED_PREFIX),
        ),
    ],
    ColumnName | Column,
]
"""The further headers of a record: a column's name or an expression by the header's name."""

_SOURCE_DEFAULTS: Final = {
    # Spark requests only existing records. At the end of a partition Kafka would delay its next
    # answer by half a second, and so the end of the task.
    "kafka.fetch.max.wait.ms": "10",
    # Fewer polls: after each one Spark requests the partition's first and last offsets.
    "kafka.max.poll.records": "10000",
    # Kafka's default also reads records of aborted and open transactions.
    "kafka.isolation.level": "read_committed",
}
SINK_DEFAULTS: Final = {
    # A micro-batch writes all records at once: few large requests cost less, above all the broker.
    "kafka.batch.size": str(256 << 10),
    "kafka.linger.ms": "100",
    # A join's results repeat their inputs (a row in each result it joins), so they compress well.
    "kafka.compression.type": "lz4",
}
NEEDS_JAR: Final = (
    "Start the session with Spark's Kafka connector: "
    "spark.jars.packages=org.apache.spark:spark-sql-kafka-0-10_2.13:<Spark's version>"
)
"""The remedy for a session without Spark's Kafka connector."""


@validated
def read_topic(
    spark: SparkSession,
    topic: Topic,
    *,
    servers: Servers,
    key: ReadFormat,
    value: ReadFormat,
    starting: Starting = "earliest",
    max_per_trigger: Positive | None = None,
    streaming: bool = True,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Read a Kafka topic as a frame: a row for each record, in the order of offsets per partition.

    Use it to look at a topic, or to compute columns before ``Table.from_changelog``. A
    table or a stream is read directly by ``from_topic``. The session needs Spark's Kafka
    connector, ``spark-sql-kafka-0-10``, in its jars.

    Parameters
    ----------
    spark : SparkSession
        The session that reads.
    topic : str
        The name of one topic: letters, digits, ``.``, ``_`` and ``-``.
    servers : str
        The brokers, ``host:port``, separated by commas.
    key : {"string", "bytes"}, StructType, mapping or format
        The format of the record's key. ``"string"`` or ``"bytes"`` gives one column,
        ``key``. A ``StructType`` or a mapping gives the fields of a JSON object. A format
        such as ``dt.formats.json(...)`` or ``dt.formats.avro(...)`` gives a record's fields.
    value : {"string", "bytes"}, StructType, mapping or format
        The format of the record's value, in the same forms. ``"string"`` or ``"bytes"``
        gives one column, ``value``.
    starting : str, default "earliest"
        The first offsets: ``"earliest"``, ``"latest"``, or offsets in JSON as Spark writes
        them. A query that restarts goes on from its checkpoint instead. Spark refuses
        ``"latest"`` with ``streaming=False``, when the frame is read.
    max_per_trigger : int, optional
        The largest number of records in a micro-batch, over all partitions. By default
        there is no limit.
    streaming : bool, default True
        False to read the present content of the topic, for backfills and tests.
    options : mapping of str to str, optional
        Further options of Spark's Kafka source. They overrule the arguments and the
        defaults.

    Returns
    -------
    DataFrame
        The key's columns, the value's columns, and six more:

        - ``_deleted`` boolean: true for a tombstone, a record with a null value or with one
          that its format takes for none, such as JSON's ``null``.
        - ``_timestamp`` timestamp: the event time, from the header
          ``dovetail.timestamp_us``. A record without this header has its own timestamp, in
          milliseconds.
        - ``_partition`` int and ``_offset`` long: the record's place in the topic.
        - ``_malformed`` string: the text of a key or value that cannot be read, else null.
          It is the key's if neither can be read. All columns of that key or value are then
          null. They are null, too, for a null key or value, which is no problem.
        - ``_problem`` string: the reason why the record cannot be read, else null.

    Raises
    ------
    PlanError
        If two columns have the same name, ``topic`` is not the name of one topic, or
        ``max_per_trigger`` is given with ``streaming=False``.
    ConfigurationError
        If the session lacks Spark's Kafka connector.

    See Also
    --------
    Table.from_topic : Read a topic as a table.
    Stream.from_topic : Read a topic as a stream.
    to_topic : Write a changelog to a topic.

    Notes
    -----
    A record cannot be read if it is not of its format: text that is not UTF-8, or JSON
    other than one object whose fields fit the schema. Absent fields are null, and unknown
    ones are ignored. A timestamp without a zone is in UTC. Digits beyond a decimal's scale
    are rounded.

    With a format of change events in ``value=``, such as ``dt.formats.debezium``, a row is
    a change. A record may have several or none. ``_deleted`` and ``_timestamp`` are then
    those of the change, and a change without a time has a ``_problem``.

    The defaults of the options are ``kafka.fetch.max.wait.ms`` 10,
    ``kafka.max.poll.records`` 10000 and ``kafka.isolation.level`` read_committed. Options
    that divide a partition give up its order: ``minPartitions``,
    ``maxRecordsPerPartition``.

    Examples
    --------
    A frame of orders, from a broker:

    >>> import dovetail as dt
    >>> def orders(spark):
    ...     value = dt.formats.json("id long, amount long")
    ...     return dt.read_topic(spark, "orders", servers="db:9092", key="string", value=value)

    One call reads one topic:

    >>> dt.read_topic(  # doctest: +ELLIPSIS
    ...     spark, "orders,refunds", servers="db:9092", key="string", value="string"
    ... )
    Traceback (most recent call last):
    dovetail.errors.PlanError: read_topic: topic= is 'orders,refunds'. Give the name of one topic...
    """
    frame = topic_records(
        "read_topic",
        spark,
        topic,
        servers=servers,
        starting=starting,
        max_per_trigger=max_per_trigger,
        streaming=streaming,
        options=options,
    )
    records = RecordFrame("read_topic", frame, format_of(key), format_of(value), topic=topic)
    _, rows = records.rows()
    unread = F.when(F.col(PROBLEM).startswith("key: "), records.text_of("key"))
    text = unread.when(F.col(PROBLEM).isNotNull(), records.text_of("value"))
    return rows.withColumn(MALFORMED, text).drop("_record")


def topic_records(
    operator: str,
    spark: SparkSession,
    topic: str,
    *,
    servers: str,
    starting: str,
    max_per_trigger: int | None,
    streaming: bool,
    options: Mapping[str, str] | None,
) -> DataFrame:
    """Return a topic's records in the columns of Spark's Kafka source, headers included. Nothing is
    read yet.

    ``operator``: the name of the call in errors. ``servers``: the brokers, ``host:port``, separated
    by commas. ``starting``: ``"earliest"``, ``"latest"``, or offsets as Spark's JSON.
    ``max_per_trigger``: the most records of a micro-batch, None for no limit. ``streaming``: True
    for a streaming frame, False for the records that are there. ``options`` overrule the other
    arguments and the defaults.

    Raises ``PlanError`` for ``max_per_trigger`` without a stream and for other than one topic.
    Raises ``ConfigurationError`` without Spark's connector, and if it refuses the options. Missing
    brokers and topics show as the records are read.
    """
    if max_per_trigger is not None and not streaming:
        raise PlanError(
            operator,
            "max_per_trigger limits a micro-batch, and streaming=False reads everything at once",
            "Give one of the two",
        )
    source = _SOURCE_DEFAULTS | {
        "kafka.bootstrap.servers": servers,
        "subscribe": topic,
        "startingOffsets": starting,
        "includeHeaders": "true",
    }
    if max_per_trigger is not None:
        source["maxOffsetsPerTrigger"] = str(max_per_trigger)
    source |= options or {}
    _refuse_topic(operator, source["subscribe"])
    reader = spark.readStream if streaming else spark.read
    with convert_spark_errors(operator, f"topic {topic} cannot be read", NEEDS_JAR):
        records = reader.format("kafka").options(**source).load()
        _ = records.schema  # Spark Connect looks for the connector only now.
        return records


def write_topic(
    changes: DataFrame,
    *,
    key_columns: Sequence[str],
    value_columns: Sequence[str],
    topic: str,
    servers: str,
    key: WriteFormat = "json",
    value: WriteFormat = "json",
    headers: Headers | None = None,
    options: Mapping[str, str] | None = None,
) -> DataStreamWriter:
    """Return Spark's writer of ``changes``, a streaming changelog, to a topic, without a checkpoint
    and a trigger. It is not started.

    Records are made by ``to_records``: keys of ``key_columns`` in the format ``key``, values of
    ``value_columns`` in the format ``value``, and ``headers``. Spark's sink is at-least-once: a
    task or micro-batch that fails is written again from its beginning.

    ``servers``: the brokers, ``host:port``, separated by commas. ``options``: further options of
    Spark's Kafka sink; they overrule the arguments and ``SINK_DEFAULTS``.

    Raises ``PlanError`` if a column is missing or does not suit its format, and if ``topic`` is no
    topic's name. Raises ``ConfigurationError`` if a format's registry does not answer, or if its
    functions or package are missing.
    """
    records = to_records(
        changes,
        key_columns=key_columns,
        value_columns=value_columns,
        key=key,
        value=value,
        headers=headers,
        topic=topic,
    )
    sink = sink_options(topic, servers, options)
    return records.writeStream.format("kafka").outputMode("append").options(**sink)


def sink_options(topic: str, servers: str, options: Mapping[str, str] | None) -> dict[str, str]:
    """Return the options of Spark's Kafka sink: the defaults, then ``topic`` and ``servers``, then
    ``options``, each overruling those before. Raises ``PlanError`` if the resulting topic is not
    the name of one topic.
    """
    sink = SINK_DEFAULTS | {"kafka.bootstrap.servers": servers, "topic": topic}
    sink |= options or {}
    _refuse_topic("write_topic", sink["topic"])
    return sink


def to_records(
    changes: DataFrame,
    *,
    key_columns: Sequence[str],
    value_columns: Sequence[str],
    key: WriteFormat = "json",
    value: WriteFormat = "json",
    headers: Headers | None = None,
    topic: str | None = None,
    further_columns: Sequence[str] = (),
) -> DataFrame:
    """Return a changelog as Kafka records: ``key``, ``value`` and ``headers``, as Spark's sink
    takes them.

    An upsert is a record with its value, a delete a tombstone (a record without a value). Rows keep
    their order and partition. ``_timestamp`` becomes the header ``dovetail.timestamp_us``, and
    ``_change`` becomes ``dovetail.change``. Another ``_change`` than ``upsert`` and ``delete``
    fails the query.

    A null key is written as null, in JSON as ``{"k":null}``. ``"string"``, ``"bytes"`` and Avro of
    a plain value cannot tell an upsert of null from a delete: such an upsert fails the query.

    ``key_columns``, ``value_columns``: the columns that ``key`` and ``value`` are made of, in their
    formats. Without columns, JSON writes ``{}``; ``"string"`` and ``"bytes"`` need one column.
    ``headers``: further headers, columns of the changelog or expressions over it: bytes as they
    are, all else as text. A null header is left out. ``topic``: the topic, by which a registry
    names its subject; None if it is not known. ``further_columns``: columns of the changelog that
    follow the three.

    Raises ``PlanError`` if a column is missing or does not suit its format. Raises
    ``ConfigurationError`` if a format's registry does not answer, or if its functions or package
    are missing.
    """
    _require_columns(changes, (*key_columns, *value_columns, CHANGE, TIMESTAMP))

    def encoded(part: Part, form: WriteFormat, names: Sequence[str]) -> Column:
        """Return the columns ``names`` encoded as one column in the format ``form``. ``part``: key
        or value. Raises ``PlanError`` for columns that do not suit the format.
        """
        columns = StructType([changes.schema[name] for name in names])
        return format_of(form).encode(FormatContext("write_topic", part, topic), columns)

    null = f"an upsert of a null {', '.join(value_columns)} would read as a delete"
    upserted = F.coalesce(
        encoded("value", value, value_columns),
        _failing_column(F.lit(f'{null}. Write it with value="json".')),
    )
    change = F.col(CHANGE)
    tombstone = F.lit(None)
    unknown = F.concat(
        F.lit(f"a change is {UPSERT} or {DELETE}, not "), F.coalesce(change, F.lit("null"))
    )
    return changes.select(
        encoded("key", key, key_columns).alias("key"),
        F.when(change == UPSERT, upserted)
        .when(change == DELETE, tombstone)
        .otherwise(_failing_column(unknown))
        .alias("value"),
        _header_column(changes, headers or {}).alias("headers"),
        *map(F.col, further_columns),
    )


def _header_column(changes: DataFrame, headers: Headers) -> Column:
    """Return the column of a record's headers, an array of structs of ``key`` (text) and ``value``
    (bytes). The event time and the change come first, then ``headers`` in their order, except null
    ones. ``changes``: the changelog over which headers are expressions. Raises ``PlanError`` for a
    header of an unknown column, or of a type that Spark does not cast to text.
    """

    def headers_of(values: Mapping[str, Column]) -> Column:
        """Return an array of headers, structs of ``key`` (text) and ``value`` (bytes), null values
        included. ``values``: a header's value, text or bytes, by the header's name, in order.
        """
        return F.array(
            *(
                F.struct(F.lit(name).alias("key"), value.cast("binary").alias("value"))
                for name, value in values.items()
            )
        )

    event_time = F.unix_micros(TIMESTAMP).cast("string")
    change_headers = headers_of({TIMESTAMP_HEADER: event_time, CHANGE_HEADER: F.col(CHANGE)})
    if not headers:
        return change_headers
    user_headers = headers_of(
        {name: _header_value(changes, name, item) for name, item in headers.items()}
    )
    return F.concat(
        change_headers, F.filter(user_headers, lambda header: header["value"].isNotNull())
    )


def _header_value(changes: DataFrame, name: str, item: str | Column) -> Column:
    """Return the value of the header ``name`` from ``item``, a column's name or an expression over
    the changelog ``changes``: bytes as they are, all else as text. Raises ``PlanError`` for an
    unknown column, for an aggregate, a window or several columns, and for a type that is not cast
    to text.
    """
    if isinstance(item, str):
        known_field("write_topic", "headers=", item, changes.schema)
        item = F.col(quoted(item))
    argument, remedy = f"headers[{name!r}]", f"Known are {', '.join(changes.columns)}"
    field = field_of("write_topic", argument, changes, item, remedy)
    if isinstance(field.dataType, BinaryType):
        return item
    text = item.cast("string")
    field_of("write_topic", argument, changes, text, "Make a text of it, by F.to_json for instance")
    return text


def _refuse_topic(operator: str, topic: str) -> None:
    """Raise ``PlanError`` unless ``topic`` is the name of one topic, without commas or patterns.
    ``operator``: the name of the call in errors.
    """
    if not _TOPIC.fullmatch(topic):
        raise PlanError(
            operator,
            f"topic={topic!r} is not the name of one topic",
            "Name one, of letters, digits, dots, underscores and hyphens; give each topic a reader "
            "of its own",
        )


def _require_columns(changes: DataFrame, names: Iterable[str]) -> None:
    """Raise ``PlanError`` if ``changes`` lacks one of the columns ``names``. The case of names
    counts.
    """
    missing = [name for name in names if name not in changes.columns]
    if missing:
        raise PlanError(
            "write_topic",
            f"no column {', '.join(missing)} among {', '.join(changes.columns)}",
            "Give a changelog, and name its columns",
        )


def _failing_column(message: Column) -> Column:
    """Return an expression that fails the query, once it is computed for a row, with the text
    ``message``.
    """
    return F.raise_error(F.concat(F.lit("write_topic: "), message))
