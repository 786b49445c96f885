"""Kafka topics as frames, and changelogs as Kafka topics.

Functions on DataFrames over Spark's own Kafka connector. A record's key and value are read as text,
as bytes, or as JSON objects of a declared schema, and written in the same three formats: what
``write_topic`` writes, ``read_topic`` reads back unchanged.

JSON is exact: integers and decimals are JSON numbers of any length, timestamps ISO 8601 in UTC
with microseconds, binary is base64, fields that are null are written as null. Nothing depends on
the session's time zone.

Event time travels in a header, ``dovetail.timestamp_us``: microseconds since 1970 in UTC, as
decimal text. A record's own timestamp says when it was written: Spark's Kafka sink cannot set it,
and it could not hold microseconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeAlias

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegralType,
    StringType,
    StructField,
    StructType,
)

from dovetail.arguments import Positive, Rule, validated
from dovetail.columns import CHANGE, DELETE, DELETED, TIMESTAMP, UPSERT, quoted
from dovetail.errors import PlanError
from dovetail.plan.checks import refuse_duplicates
from dovetail.refusals import refused

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter

ReadFormat: TypeAlias = Annotated[
    Literal["string", "bytes"] | StructType | Mapping[str, DataType],
    Rule("'string', 'bytes' or the schema of a JSON object"),
]
"""How bytes become columns: ``"string"`` and ``"bytes"`` give one, named ``key`` or ``value``; a
schema gives its fields, read from a JSON object."""

WriteFormat: TypeAlias = Literal["string", "bytes", "json"]
"""How columns become bytes: ``"string"`` takes one column of text or integers, ``"bytes"`` one of
binary, ``"json"`` any number of any type, the fields of an object."""

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

_Declared: TypeAlias = Literal["string", "bytes"] | StructType

TIMESTAMP_HEADER: Final = "dovetail.timestamp_us"
PARTITION, OFFSET, MALFORMED = "_partition", "_offset", "_malformed"

_SOURCE_DEFAULTS: Final = {
    # Spark asks for records that it knows to be there. At the end of a partition Kafka would hold
    # its next answer back for half a second, and with it the end of the task.
    "kafka.fetch.max.wait.ms": "10",
    # After each poll Spark asks twice more, for the partition's first and last offsets.
    "kafka.max.poll.records": "10000",
}
SINK_DEFAULTS: Final = {
    # A micro-batch writes all it has at once: few large requests cost less, the broker most.
    "kafka.batch.size": str(256 << 10),
    "kafka.linger.ms": "100",
    # A join's results repeat what they are made of: an update of one row, in each row it joins.
    "kafka.compression.type": "lz4",
}
_TAKES: Final[Mapping[str, tuple[type[DataType], ...]]] = {
    "string": (StringType, IntegralType),
    "bytes": (BinaryType,),
}
NEEDS_JAR: Final = (
    "Start the session with Spark's Kafka connector: "
    "spark.jars.packages=org.apache.spark:spark-sql-kafka-0-10_2.13:<Spark's version>"
)
_METADATA: Final = (DELETED, TIMESTAMP, PARTITION, OFFSET, MALFORMED)
_JSON_READ: Final = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": MALFORMED,
    "allowSingleQuotes": "false",
    "timeZone": "UTC",
}
_JSON_WRITTEN: Final = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "timeZone": "UTC",
}


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
    """A topic as a frame: a row for each record, each partition's in the order of their offsets.

    The columns are the key's, the value's, and

    - ``_deleted`` boolean: the record is a tombstone, its value null;
    - ``_timestamp`` timestamp: event time, from the header ``dovetail.timestamp_us``, or where a
      record has none its own timestamp, in milliseconds;
    - ``_partition`` int, ``_offset`` long: where the record lies;
    - ``_malformed`` string: null, or the text of a key or value that cannot be read (the key's,
      where neither can). All columns of that key or value are then null.

    Malformed is text that is not UTF-8, and JSON other than one object whose fields fit the
    schema. Absent fields are null, unknown ones ignored. A timestamp without a zone is in UTC, one
    that is a number counts seconds; digits beyond a decimal's scale are rounded.

    :param servers: the brokers, ``host:port``, separated by commas.
    :param starting: ``earliest``, ``latest`` or offsets as Spark writes them in JSON; a query that
        restarts goes on from its checkpoint instead.
    :param max_per_trigger: how many records a micro-batch takes at most, over all partitions.
    :param streaming: False reads what the topic holds now, for backfills and tests.
    :param options: further options of Spark's Kafka source; they overrule the arguments, and the
        defaults ``kafka.fetch.max.wait.ms`` 10 and ``kafka.max.poll.records`` 10000. Those that
        divide a partition (``minPartitions``, ``maxRecordsPerPartition``) give up its order.
    :raises PlanError: two columns would have the same name, an argument has no meaning, or
        ``topic`` is not the name of one topic.
    """
    formats = {"key": _declared(key), "value": _declared(value)}
    names = {part: _names(part, declared) for part, declared in formats.items()}
    refuse_duplicates(
        "read_topic",
        [*_METADATA, *names["key"], *names["value"]],
        "Leave a field that key and value share out of value=, and rename one that is named as the "
        f"record's own columns are ({', '.join(_METADATA)})",
    )
    if max_per_trigger is not None and not streaming:
        raise PlanError(
            "read_topic",
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
    _refuse_topic("read_topic", source["subscribe"])
    reader = spark.readStream if streaming else spark.read
    with refused("read_topic", f"topic {topic} cannot be read", NEEDS_JAR):
        records = reader.format("kafka").options(**source).load()

    parsed = records.select(
        "*", *(_parsed(*part).alias(f"{part[0]}_json") for part in formats.items())
    )
    rows = parsed.select("*", *(_row(*part).alias(f"{part[0]}_row") for part in formats.items()))
    return rows.select(
        *(F.col(f"{part}_row")[name].alias(name) for part in formats for name in names[part]),
        F.col("value").isNull().alias(DELETED),
        _event_time().alias(TIMESTAMP),
        F.col("partition").alias(PARTITION),
        F.col("offset").alias(OFFSET),
        F.coalesce(*(_malformed(part) for part in formats)).alias(MALFORMED),
    )


def write_topic(
    changes: DataFrame,
    *,
    key_columns: Sequence[str],
    value_columns: Sequence[str],
    topic: str,
    servers: str,
    key: WriteFormat = "json",
    value: WriteFormat = "json",
    options: Mapping[str, str] | None = None,
) -> DataStreamWriter:
    """The writer of a streaming changelog to a topic; it lacks a checkpoint, a trigger, a start.

    Its records are those of ``to_records``. Spark's sink is at-least-once: a task or micro-batch
    that fails is written again from its beginning.

    :param servers: the brokers, ``host:port``, separated by commas.
    :param options: further options of Spark's Kafka sink; they overrule the arguments, and the
        defaults ``kafka.batch.size`` 262144, ``kafka.linger.ms`` 100 and
        ``kafka.compression.type`` lz4.
    :raises PlanError: as ``to_records``, and where ``topic`` is no topic's name.
    """
    records = to_records(
        changes, key_columns=key_columns, value_columns=value_columns, key=key, value=value
    )
    sink = _sink_options(topic, servers, options)
    return records.writeStream.format("kafka").outputMode("append").options(**sink)


def save_to_topic(
    changes: DataFrame,
    *,
    key_columns: Sequence[str],
    value_columns: Sequence[str],
    topic: str,
    servers: str,
    key: WriteFormat = "json",
    value: WriteFormat = "json",
    options: Mapping[str, str] | None = None,
) -> None:
    """Write the changelog of a micro-batch to a topic, as ``write_topic`` does."""
    records = to_records(
        changes, key_columns=key_columns, value_columns=value_columns, key=key, value=value
    )
    records.write.format("kafka").options(**_sink_options(topic, servers, options)).save()


def _sink_options(topic: str, servers: str, options: Mapping[str, str] | None) -> dict[str, str]:
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
) -> DataFrame:
    """A changelog as Kafka records: ``key``, ``value`` and ``headers``, which Spark's sink takes.

    An upsert is a record with its value, a delete a tombstone; rows keep their order and partition.
    ``_timestamp`` becomes the header ``dovetail.timestamp_us``.

    A null key is written as null, in JSON as ``{"k":null}``. Only JSON can tell an upsert of null
    from a delete: with ``"string"`` or ``"bytes"`` such an upsert fails the query.

    :raises PlanError: a column is missing, or does not suit its format.
    """
    _require_columns(changes, (*key_columns, *value_columns, CHANGE, TIMESTAMP))
    upserted = _encoded("value", value, value_columns, changes.schema)
    if value != "json":
        null = f'an upsert of null would read as a delete with value="{value}"'
        upserted = F.coalesce(upserted, _failure(F.lit(f'{null}. Write it with value="json".')))
    change = F.col(CHANGE)
    tombstone = F.lit(None)
    unknown = F.concat(
        F.lit(f"a change is {UPSERT} or {DELETE}, not "), F.coalesce(change, F.lit("null"))
    )
    event_time = F.unix_micros(TIMESTAMP).cast("string").cast("binary")
    header = F.struct(F.lit(TIMESTAMP_HEADER).alias("key"), event_time.alias("value"))
    return changes.select(
        _encoded("key", key, key_columns, changes.schema).alias("key"),
        F.when(change == UPSERT, upserted)
        .when(change == DELETE, tombstone)
        .otherwise(_failure(unknown))
        .alias("value"),
        F.array(header).alias("headers"),
    )


def _declared(declared: ReadFormat) -> _Declared:
    """The format as it was given, a mapping of types as the schema it stands for."""
    if isinstance(declared, Mapping):
        return StructType([StructField(name, kind) for name, kind in declared.items()])
    return declared


def width(declared: ReadFormat) -> int:
    """How many columns a key or value has."""
    return 1 if isinstance(declared, str) else len(declared)


def _refuse_topic(operator: str, topic: str) -> None:
    """Spark takes a name with commas for several topics, whose partitions would be one log."""
    if not _TOPIC.fullmatch(topic):
        raise PlanError(
            operator,
            f"topic={topic!r} is not the name of one topic",
            "Name one, of letters, digits, dots, underscores and hyphens; give each topic a reader "
            "of its own",
        )


def _names(part: str, declared: _Declared) -> list[str]:
    return declared.names if isinstance(declared, StructType) else [part]


def _parsed(part: str, declared: _Declared) -> Column:
    """What ``from_json`` makes of a key or value; null where it is not JSON.

    By itself it would take a list for its first object. As a field of an object it does not.
    """
    if not isinstance(declared, StructType):
        return F.lit(None)
    fields = [StructField("object", declared), StructField(MALFORMED, StringType())]
    text = F.concat(F.lit('{"object":'), F.col(part).cast("string"), F.lit("}"))
    return F.from_json(text, StructType(fields), _JSON_READ)


def _row(part: str, declared: _Declared) -> Column:
    """The columns of a key or value as a struct; null where it is null or cannot be read.

    ``from_json`` ignores what follows an object. So JSON is read twice, as the value of a field and
    as the element of a list. What follows a value would have to go on with ``}`` or a field's name
    in the one, with ``]`` or a value in the other: no text does both, so nothing follows.
    """
    text = F.col(part).cast("string")
    if declared == "bytes":
        return F.struct(F.col(part))
    if declared == "string":
        return F.when(F.is_valid_utf8(text), F.struct(text.alias(part)))
    json = F.col(f"{part}_json")
    listed = F.json_array_length(F.concat(F.lit("["), text, F.lit("]")))
    readable = F.is_valid_utf8(text) & json[MALFORMED].isNull() & listed.isNotNull()
    return F.when(readable, json["object"])


def _malformed(part: str) -> Column:
    unread = F.col(part).isNotNull() & F.col(f"{part}_row").isNull()
    return F.when(unread, F.make_valid_utf8(F.col(part).cast("string")))


def _event_time() -> Column:
    """What the timestamp header says, else the record's own timestamp."""
    place = F.nullif(F.array_position("headers.key", TIMESTAMP_HEADER), F.lit(0)).cast("int")
    micros = F.try_element_at(F.col("headers.value"), place).cast("string").try_cast("long")
    return F.coalesce(F.timestamp_micros(micros), F.col("timestamp"))


def _require_columns(changes: DataFrame, names: Iterable[str]) -> None:
    missing = [name for name in names if name not in changes.columns]
    if missing:
        raise PlanError(
            "write_topic",
            f"no column {', '.join(missing)} among {', '.join(changes.columns)}",
            "Give a changelog, and name its columns",
        )


def _failure(message: Column) -> Column:
    return F.raise_error(F.concat(F.lit("write_topic: "), message))


def _encoded(part: str, form: WriteFormat, names: Sequence[str], schema: StructType) -> Column:
    """The named columns in one; null only where a column of text or bytes is."""
    columns = [F.col(quoted(name)) for name in names]
    if form == "json":
        return F.to_json(F.struct(*columns), _JSON_WRITTEN)
    kinds = [schema[name].dataType for name in names]
    if len(kinds) != 1 or not isinstance(kinds[0], _TAKES[form]):
        given = ", ".join(f"{n} {k.simpleString()}" for n, k in zip(names, kinds, strict=True))
        raise PlanError(
            "write_topic",
            f'{part}="{form}" does not suit the columns {given}',
            f'Write them with {part}="json"',
        )
    return columns[0].cast("string" if form == "string" else "binary")
