"""Records with a key and a value of bytes, as Kafka has them, read as rows; and the treatment of
unreadable ones.

The columns of a frame of records have the names of Spark's Kafka source. ``value`` is required;
``key``, ``topic``, ``partition``, ``offset``, ``timestamp`` and ``headers`` are optional.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Final, Literal, TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    IntegralType,
    StringType,
    StructType,
    TimestampType,
)

from dovetail.base.columns import (
    DELETED,
    EVENT_TIME,
    FILE_METADATA,
    LETTER,
    OPERATOR,
    PROBLEM,
    TIMESTAMP,
    UNREAD,
    quoted,
)
from dovetail.base.validation import Rule
from dovetail.errors import PlanError
from dovetail.io.formats.plain import CHANGE_INDEX, Format, FormatContext, Part, keep_rows
from dovetail.plan.dead_letters import row_as_json
from dovetail.plan.metrics import metric_name
from dovetail.plan.nodes import Source
from dovetail.plan.types.analysis import file_metadata
from dovetail.plan.types.checks import refuse_duplicates
from dovetail.plan.types.expressions import field_of
from dovetail.plan.types.spans import Span, microseconds

Malformed: TypeAlias = Literal["fail", "drop", "dead_letter"]
"""The treatment of a record that cannot be read. ``"fail"`` stops the query with an error that
names its place and the problem. ``"drop"`` leaves the record out and counts it as observed metric
``<name>.malformed``. ``"dead_letter"`` does so and keeps the record for ``dead_letters()``."""

_HEADER_PREFIX: Final = "headers."
_METADATA_PATH: Final = re.compile(
    rf"topic|partition|offset|timestamp|{re.escape(_HEADER_PREFIX)}.+", re.DOTALL
)
RecordMetadata: TypeAlias = Mapping[
    str,
    Annotated[
        str,
        Rule(
            "'topic', 'partition', 'offset', 'timestamp' or 'headers.<name>'",
            _METADATA_PATH.fullmatch,
        ),
    ],
]
"""Columns made of a record's parts besides key and value: the part by column name."""

TIMESTAMP_HEADER: Final = "dovetail.timestamp_us"
"""The name of the header with a record's event time: microseconds since 1970 in UTC, as decimal
text.
"""
_UNPLACED_COLUMN: Final = "_unplaced"
"""The column with the reason why a row has no place in time or in its log."""
_RECORD_COLUMN: Final = "_record"
"""The column with the record itself."""
_FURTHER: Final = "_further"
"""Its field that is true for a further change of a record, with the problem of the first one."""
PARTITION, OFFSET, MALFORMED = "_partition", "_offset", "_malformed"
"""The columns with a row's log, its offset in the log, and the text of an unreadable key or value.
"""
_PARTITION_BITS = 24
"""The bits of a partition in the id of a log, if a frame has several topics."""
_PLACE_COLUMNS: Final[Mapping[str, tuple[type[DataType], str]]] = {
    "topic": (StringType, "string"),
    "partition": (IntegralType, "a whole number"),
    "offset": (IntegralType, "a whole number"),
    "timestamp": (TimestampType, "timestamp"),
    "headers": (ArrayType, "array<struct<key:string,value:binary>>"),
}
"""The types of a record's columns besides key and value, and these in words."""
_READ_COLUMNS: Final = ("key", "value", *_PLACE_COLUMNS, FILE_METADATA)
"""The columns of a frame that reading uses, as far as the frame has them."""
METADATA_COLUMNS: Final = (DELETED, TIMESTAMP, PARTITION, OFFSET, MALFORMED, PROBLEM)
"""The names of the columns that reading adds to those of key and value."""


@dataclass(frozen=True)
class RecordFrame:
    """A frame of records and the way to read it."""

    operator: str
    """The name of the reader's call in errors."""
    frame: DataFrame
    """The records, in the columns that the module's docstring names; others are ignored."""
    key: Format | None
    """The format of the record's key; None where it is not read, which needs ``keys``."""

    value: Format
    """The format of the record's value."""
    keys: Sequence[str] = ()
    """The names of the key columns among those of key, value and metadata; empty if all columns of
    the record's key are the key.
    """

    timestamp: str | Column | None = None
    """The event time in place of the records' own: the name of a column of the rows, or an
    expression over them. None for the records' own.
    """

    topic: str | None = None
    """The only topic of the records; None if it is unknown or there are several."""
    deleted: str | Column | None = None
    """The condition by which a record with a value deletes its key's row: the name of a boolean
    column of the rows, or an expression over them. None for no such deletes.
    """

    metadata: Mapping[str, str] = field(default_factory=dict)
    """The columns made of the record's metadata: the part (see ``RecordMetadata``) by column name.
    """

    max_ahead: Span | None = None
    """The largest distance of an event time into the future, from the time of reading; None for no
    limit."""

    stream: bool = False
    """True if the records become a stream, whose records without a value need no key."""

    def has_column(self, name: str) -> bool:
        """Return True if the records have a column of this name; its case counts."""
        return name in self.frame.columns

    @property
    def ordered(self) -> bool:
        """True if the records have the columns ``partition`` and ``offset``, a place in a log."""
        return self.has_column("partition") and self.has_column("offset")

    def rows(self) -> tuple[list[str], DataFrame]:
        """Return the names of the key's columns, and the records as rows. A record may become no
        row or several, as its value's format says.

        | columns of a row | content |
        |---|---|
        | key, value, metadata | those of the formats and of ``metadata``, by their names |
        | ``_deleted`` | boolean, true for a row that deletes its key's row |
        | ``_timestamp`` | the event time |
        | ``_partition``, ``_offset`` | integers: the log, the offset in it; only if ``ordered`` |
        | ``_problem`` | the reason why the record cannot be read, else null |
        | ``_record`` | the record itself, a struct of those columns that reading uses |

        ``_record`` also has ``_further``, true for a change after the record's first one with the
        same problem. Columns that ``timestamp`` or ``deleted`` name are dropped. Of an unreadable
        record, columns are null unless they could be read.

        Raises ``PlanError`` for missing or unsuitable columns, for columns of one name, and for
        what the formats refuse. Raises ``ConfigurationError`` for a registry that does not answer,
        and for missing functions or packages of a format.
        """
        self._refuse_types()
        # Another column of the frame could have the name of one that a step below adds.
        columns = [F.col(quoted(name)) for name in _READ_COLUMNS if self.has_column(name)]
        frame = self._with_bytes("value", self.frame.select(*columns))
        parts: dict[Part, StructType] = {}
        if self.key is not None:
            frame = self._with_bytes("key", frame)
            key = self.value.key_format(self.key).decoding(self._format_context("key"))
            frame, parts["key"] = key.decode(frame, "key"), key.fields
        beside = {*self.metadata, *(name for fields in parts.values() for name in fields.names)}
        value = self.value.decoding(
            self._format_context("value", *(k for k in self.keys if k not in beside))
        )
        frame, parts["value"] = value.decode(frame, "value"), value.fields
        problems = [F.col(f"{part}_problem") for part in parts]
        names = {part: fields.names for part, fields in parts.items()}
        self._refuse_names(names)
        if not value.is_of_changes:
            frame = frame.withColumn(DELETED, F.col("value_absent")).withColumn(
                TIMESTAMP, self._record_time()
            )
            lacking = [name for name in self.keys if name in names["value"]]
            if lacking and not self.stream:
                problems.append(F.when(F.col("value_absent"), F.lit(_missing_key_problem(lacking))))
        metadata = {name: self._metadata_column(path) for name, path in self.metadata.items()}
        problems += [problem for _, problem in metadata.values() if problem is not None]
        places = {PARTITION: self._log_id(), OFFSET: F.col("offset")} if self.ordered else {}
        if places:
            unplaced = F.col("partition").isNull() | F.col("offset").isNull()
            problems.append(F.when(unplaced, F.lit("it has no partition or no offset")))
        # Without timestamp= all changes of a record have its time, and so the same problem with it.
        shared = F.lit(True) if self.timestamp is None else F.coalesce(*problems).isNotNull()
        further = F.col(CHANGE_INDEX) > 0 if value.is_of_changes else F.lit(False)
        rows = frame.select(
            *(F.col(f"{part}_row")[name].alias(name) for part in names for name in names[part]),
            *(column.alias(name) for name, (column, _) in metadata.items()),
            *(DELETED, TIMESTAMP),
            *(column.alias(name) for name, column in places.items()),
            F.coalesce(*problems).alias(PROBLEM),
            F.struct(*columns, (further & shared).alias(_FURTHER)).alias(_RECORD_COLUMN),
        )
        return list(self.keys or names["key"]), self._with_event_time(self._with_deletes(rows))

    def _log_id(self) -> Column:
        """Return an integer column with the id of a record's log, within which offsets order
        records. The records must be ``ordered``. It is null for a null partition.

        If the topic is known, or if there is no column ``topic``, it is the partition, in its own
        integer type. Otherwise it is a long that tells partitions of several topics apart, never
        negative. Its lower 24 bits are the partition, which must fit. The 39 bits above are a hash
        of the topic; topics of equal hashes are not told apart.
        """
        partition = F.col("partition")
        if self.topic is not None or not self.has_column("topic"):
            return partition
        topic = F.shiftleft(F.xxhash64("topic"), _PARTITION_BITS)
        return topic.bitwiseOR(partition.cast("long")).bitwiseAND(F.lit(2**63 - 1))

    def text_of(self, part: Part) -> Column:
        """Return the bytes of a row's ``part``, key or value, as text; null for null. Bytes that
        are not UTF-8 are replaced. The column is an expression over ``rows``, whose records must
        have that part.
        """
        return F.make_valid_utf8(F.col(f"_record.{part}").cast("string"))

    def place_text(self) -> Column:
        """Return where a row's record comes from, as text: topic, partition and offset, else the
        file; empty if neither is known. The column is an expression over ``rows``.
        """
        if self.ordered:
            topic = F.col("_record.topic") if self.has_column("topic") else F.lit(self.topic or "")
            where = "topic %s, partition %d, offset %d"
            return F.format_string(where, topic, "_record.partition", "_record.offset")
        return (
            F.format_string("file %s", f"{FILE_METADATA}.file_path") if self.in_files else F.lit("")
        )

    @property
    def in_files(self) -> bool:
        """True if Spark can name the file from which each record was read, as for a frame that
        reads files.
        """
        return file_metadata(self.frame, "file_path") is not None

    def _with_bytes(self, part: Part, frame: DataFrame) -> DataFrame:
        """Return the frame with its column named ``part`` (``"key"`` or ``"value"``) cast to
        binary. Raises ``PlanError`` if the column is missing or neither binary nor string.
        """
        if part not in frame.columns:
            raise PlanError(
                self.operator,
                f"the frame has no column {part!r}, among {', '.join(frame.columns)}",
                "Select what holds it under that name"
                + ("" if part == "value" else ", or name the value's key columns in key_columns="),
            )
        type_ = frame.schema[part].dataType
        if type_.typeName() not in ("binary", "string"):
            raise PlanError(
                self.operator,
                f"column {part!r} is of type {type_.simpleString()}, not binary or string",
                "Read records of columns with from_changelog",
            )
        return frame.withColumn(part, F.col(part).cast("binary"))

    def _refuse_types(self) -> None:
        """Raise ``PlanError`` if one of the records' columns has another type than Spark's Kafka
        source gives it: ``topic`` a string, ``timestamp`` a timestamp, ``headers`` an array of
        structs of ``key`` and ``value``. ``partition`` and ``offset`` may be of any integer type,
        and are checked only if both are there.
        """
        for name, (kind, shown) in _PLACE_COLUMNS.items():
            if not self.has_column(name) or (name in ("partition", "offset") and not self.ordered):
                continue
            type_ = self.frame.schema[name].dataType
            if not isinstance(type_, kind) or (name == "headers" and type_.simpleString() != shown):
                raise PlanError(
                    self.operator,
                    f"column {name!r} is of type {type_.simpleString()}, not {shown}",
                    "Cast it as Spark's Kafka source has it, or give it another name",
                )

    def _format_context(self, part: Part, *keys: str) -> FormatContext:
        """Return the context in which a format reads ``part`` of the records. ``keys``: the names
        of the key columns among the value's. A record may become several rows, unless the records
        are read from files and have no offsets.
        """
        splits = self.ordered or not self.in_files
        return FormatContext(self.operator, part, self.topic, keys, splits)

    def _refuse_names(self, names: dict[Part, list[str]]) -> None:
        """Raise ``PlanError`` if two columns have one name, in any case, and for a name in
        ``self.keys`` that no column has. The columns that reading adds count, too. ``names``: the
        columns' names of key and value.
        """
        column_names = [*(name for of_part in names.values() for name in of_part), *self.metadata]
        refuse_duplicates(
            self.operator,
            [*METADATA_COLUMNS, _RECORD_COLUMN, *column_names],
            "Leave a field that key and value share out of value=, and rename one that is named as "
            f"the record's own columns are ({', '.join((*METADATA_COLUMNS, _RECORD_COLUMN))})",
        )
        for name in self.keys:
            if name not in column_names:
                raise PlanError(
                    self.operator,
                    f"key_columns= names an unknown column {name!r}",
                    f"Known are {', '.join(column_names)}",
                )

    def _metadata_column(self, path: str) -> tuple[Column, Column | None]:
        """Return the column of a record's metadata at ``path``, and a text column with its problem,
        null where it can be read. The problem is None if the metadata can always be read.

        ``path``: ``topic``, ``partition``, ``offset``, ``timestamp`` or ``headers.<name>``. A
        header is a text; one that is not UTF-8 is a problem. A header that occurs several times has
        its last value, a missing one null. Raises ``PlanError`` if the frame lacks the column.
        """
        name = path.partition(".")[0]
        if not self.has_column(name):
            raise PlanError(
                self.operator,
                f"metadata= names {path!r}, and the frame has no column {name!r}, among "
                f"{', '.join(self.frame.columns)}",
                "Select what holds it under that name, or leave it out",
            )
        if name != "headers":
            return F.col(name), None
        header = path.removeprefix(_HEADER_PREFIX)
        last = F.filter("headers", lambda entry: entry["key"] == header)
        value = F.try_element_at(last, F.lit(-1))["value"].cast("string")
        unfit = F.when(~F.is_valid_utf8(value), F.lit(f"header {header!r} is no text in UTF-8"))
        return value, unfit

    def _record_time(self) -> Column:
        """Return a timestamp column: the time in the header ``dovetail.timestamp_us``, microseconds
        since 1970 as decimal text, else the record's own timestamp, else null. The first such
        header counts; if it is no whole number, the record's own timestamp does.
        """
        stamped = (
            F.col("timestamp") if self.has_column("timestamp") else F.lit(None).cast("timestamp")
        )
        if not self.has_column("headers"):
            return stamped
        header_position = F.nullif(
            F.array_position("headers.key", TIMESTAMP_HEADER), F.lit(0)
        ).cast("int")
        micros = (
            F.try_element_at(F.col("headers.value"), header_position)
            .cast("string")
            .try_cast("long")
        )
        return F.coalesce(F.timestamp_micros(micros), stamped)

    def _with_deletes(self, rows: DataFrame) -> DataFrame:
        """Return the rows with ``_deleted`` true also where ``deleted`` is true; null counts as
        false. A column that ``deleted`` names is dropped, unless ``timestamp`` names it as well.
        Raises ``PlanError`` if that column is unknown, a key column or no boolean.
        """
        if self.deleted is None:
            return rows
        is_deleted = self._argument_column("deleted=", self.deleted, rows, BooleanType)
        rows = rows.withColumn(DELETED, F.col(DELETED) | F.coalesce(is_deleted, F.lit(False)))
        used = isinstance(self.deleted, str) and self.deleted != self.timestamp
        return rows.drop(self.deleted) if used else rows

    def _with_event_time(self, rows: DataFrame) -> DataFrame:
        """Return the rows with ``timestamp`` as their event time. A delete for which it is null
        keeps the record's time. A row without an event time, or too far ahead, gets a ``_problem``
        unless it has one. A column that ``timestamp`` names is dropped.

        Raises ``PlanError`` if ``timestamp`` is unknown, a key column or no timestamp, and for a
        ``max_ahead`` that is no span.
        """
        time = F.col(TIMESTAMP)
        if self.timestamp is not None:
            event_time = self._argument_column("timestamp=", self.timestamp, rows, TimestampType)
            # A record without a value has no value columns, so its expression may be null.
            time = F.when(F.col(DELETED), F.coalesce(event_time, time)).otherwise(event_time)
        rows = rows.withColumn(TIMESTAMP, time)
        if isinstance(self.timestamp, str):
            rows = rows.drop(self.timestamp)
        unplaced = time_problem(self.operator, F.col(TIMESTAMP), self.max_ahead)
        return rows.withColumn(PROBLEM, F.coalesce(PROBLEM, unplaced))

    def _argument_column(
        self, argument: str, column_or_name: str | Column, rows: DataFrame, kind: type[DataType]
    ) -> Column:
        """Return the column of ``rows`` for ``column_or_name``, a name or an expression.
        ``argument``: the argument that has it, with ``=``, for errors. ``kind``: the type that the
        column must have.

        Raises ``PlanError`` for the name of a key column, for an unknown column, and for another
        type. Also for an expression that is an aggregate, a window or several columns.
        """
        if isinstance(column_or_name, str) and column_or_name in self.keys:
            raise PlanError(
                self.operator,
                f"{argument} names {column_or_name!r}, a column of key_columns=",
                "Give an expression: F.col(...)",
            )
        column = (
            F.col(quoted(column_or_name)) if isinstance(column_or_name, str) else column_or_name
        )
        hint = f"Known columns are {', '.join(rows.columns)}"
        type_ = field_of(self.operator, argument, rows, column, hint).dataType
        if not isinstance(type_, kind):
            raise PlanError(
                self.operator,
                f"{argument} is of type {type_.simpleString()}, not {kind.typeName()}",
                f"Cast it, for instance with .cast('{kind.typeName()}')"
                if kind is TimestampType
                else "Give a condition, for instance F.col('op') == 'd'",
            )
        return column


def time_problem(operator: str, time: Column, max_ahead: Span | None) -> Column:
    """Return a text why a row has no usable event time, null where it has one. A row has none if
    ``time`` is null, or too far ahead of the time of reading.

    ``max_ahead``: the largest distance ahead, inclusive; None for no limit. Spark fixes the time of
    reading with each micro-batch, so a repeated micro-batch leaves out the same rows. ``operator``:
    the call in errors. Raises ``PlanError`` for a ``max_ahead`` that is no span.
    """
    untimed = F.when(time.isNull(), F.lit("it has no event time"))
    if max_ahead is None:
        return untimed
    ahead_us = microseconds(operator, "max_ahead=", max_ahead)
    limit = F.unix_micros(F.current_timestamp()) + ahead_us
    shown = F.date_format(
        F.to_utc_timestamp(time, F.current_timezone()), "yyyy-MM-dd'T'HH:mm:ss'Z'"
    )
    limit_text = f", is further ahead of the time of reading than max_ahead={max_ahead!r} allows"
    return untimed.when(
        F.unix_micros(time) > limit, F.concat(F.lit("its event time, "), shown, F.lit(limit_text))
    )


def _missing_key_problem(names: Sequence[str]) -> str:
    """Return the problem of a record without a value, for which the key columns ``names`` would
    come from the value.
    """
    shown = ", ".join(names)
    return (
        f"a null value is a tombstone, and key_columns= takes {shown} from the value, so it does "
        "not say which row it deletes: give the key's fields in key= and leave them out of value="
    )


def readable_rows(
    records: RecordFrame, rows: DataFrame, name: str, malformed: Malformed
) -> tuple[DataFrame, DataFrame | None]:
    """Return the rows of readable records, and all rows if ``malformed`` is ``"dead_letter"``, else
    None. Both have the columns of ``rows``. The second also has ``_unread``, null for readable
    rows, else the dead letter: a struct of ``_operator``, ``_problem``, ``row`` (JSON text of the
    record) and ``_event_time``. That is the record's own timestamp, else the row's event time, in
    microseconds; null if both are null.

    ``rows``: those of ``records.rows()``, whose ``_problem`` says why a record is unreadable.
    ``name``: the source's, for the metric ``<name>.malformed`` that counts unreadable rows. With
    ``malformed="fail"`` nothing is counted: a row of an unreadable record raises as it is read.
    """
    time = F.coalesce(_record_timestamp(records), TIMESTAMP)
    further = F.col(f"{_RECORD_COLUMN}.{_FURTHER}")
    sent = RowOrigin(
        "record", records.place_text(), _record_columns(records), time, further=further
    )
    return _rows_without_problems(records.operator, rows, sent, name, malformed)


def source_without_unplaced(source: Source, malformed: Malformed, max_ahead: Span | None) -> Source:
    """Return the source of a changelog without the rows that have no event time, no position, or a
    time more than ``max_ahead`` ahead. ``source`` must have a frame and a timestamp.

    | ``malformed`` | such rows |
    |---|---|
    | ``"drop"`` | are left out, and counted as a metric |
    | ``"dead_letter"`` | so, and they are in ``with_unread`` of the result |
    | ``"fail"`` | raise as they are read, if they are too far ahead |

    With ``"fail"`` and no limit the source is returned unchanged. Rows without a time or a position
    are then refused as a stage reads them. Raises ``PlanError`` for a ``max_ahead`` that is no
    span.
    """
    if malformed == "fail" and max_ahead is None:
        return source
    frame, time = source.frame, source.timestamp
    assert frame is not None
    assert time is not None
    unplaced = time_problem(source.title, time, max_ahead)
    if malformed == "fail":
        unplaced = F.when(time.isNotNull(), unplaced)
    else:
        for argument, position in source.order.positions.items():
            unplaced = F.coalesce(unplaced, F.when(position.isNull(), F.lit(f"{argument} is null")))
    where = F.lit("")
    if source.order.by_files:
        where = F.format_string("file %s", f"{FILE_METADATA}.file_path")
    columns = [F.col(quoted(name)).alias(name) for name in frame.columns]
    sent = RowOrigin("row", where, columns, time, _UNPLACED_COLUMN)
    rows = frame.withColumn(_UNPLACED_COLUMN, unplaced)
    sound, with_unread = _rows_without_problems(source.title, rows, sent, source.name, malformed)
    if with_unread is not None:
        with_unread = with_unread.drop(_UNPLACED_COLUMN)
    return replace(source, frame=sound.drop(_UNPLACED_COLUMN), with_unread=with_unread)


@dataclass(frozen=True)
class RowOrigin:
    """The record or row that a source has sent, for messages about it. The columns are expressions
    over the rows that are checked.
    """

    noun: str
    """The noun for it in an error, ``"record"`` or ``"row"``."""
    where: Column
    """Its place as text, such as that of a file; empty if unknown."""
    columns: Sequence[Column]
    """Its columns with their names, for a dead letter."""
    time: Column
    """Its time, for a dead letter."""
    problem: str = PROBLEM
    """The name of the column that says why it cannot be read, null where it can."""
    further: Column | None = None
    """True for a further row of a record, whose problem the first row has, too. None if each record
    is one row.
    """


def _rows_without_problems(
    operator: str, rows: DataFrame, sent: RowOrigin, name: str, malformed: Malformed
) -> tuple[DataFrame, DataFrame | None]:
    """Return the rows without a problem; and all rows, with dead letters in ``_unread``, if
    ``malformed`` is ``"dead_letter"``, else None. The order of rows is kept.

    ``operator``: the source in errors and letters. ``sent``: the origin of each row, with the
    column of its problem. With ``malformed="fail"``, a row with a problem raises as it is read.
    Otherwise such rows are counted as the metric ``<name>.malformed``, without further rows of a
    record. A dead letter is a struct of ``_operator``, ``_problem``, ``row`` (JSON text) and
    ``_event_time`` (microseconds); ``_unread`` is null for a row without a problem.
    """
    problem, where = F.col(sent.problem), sent.where
    fits = problem.isNull()
    if malformed == "fail":
        error = F.concat(
            F.lit(f"{operator}: the {sent.noun} "),
            F.when(where != "", F.concat(F.lit("of "), where, F.lit(", "))).otherwise(F.lit("")),
            F.lit("cannot be read: "),
            problem,
            F.lit(". Correct it, or pass malformed='drop' or 'dead_letter'."),
        )
        checked = F.when(fits, F.lit(True)).otherwise(F.raise_error(error).cast("boolean"))
        return keep_rows(rows, checked), None
    unread = ~fits if sent.further is None else ~fits & ~sent.further
    counted = rows.observe(metric_name(name, "malformed"), F.count_if(unread).alias("records"))
    with_unread = None
    if malformed == "dead_letter":
        letter = F.struct(
            F.lit(operator).alias(OPERATOR),
            F.concat_ws(": ", F.nullif(where, F.lit("")), problem).alias(PROBLEM),
            row_as_json(sent.columns).alias(LETTER),
            F.unix_micros(sent.time).alias(EVENT_TIME),
        )
        with_unread = keep_rows(counted, fits | unread).withColumn(UNREAD, F.when(~fits, letter))
    return keep_rows(counted, fits), with_unread


def _record_timestamp(records: RecordFrame) -> Column:
    """Return an expression for a record's own timestamp, of type timestamp: the field ``timestamp``
    of the struct ``_record``, a column of ``RecordFrame.rows``. It is null if the records have no
    such field.
    """
    timestamp = F.col("_record.timestamp") if records.has_column("timestamp") else F.lit(None)
    return timestamp.cast("timestamp")


def _record_columns(records: RecordFrame) -> list[Column]:
    """Return the columns of a record for its dead letter, as far as the records have them:
    ``topic``, ``partition``, ``offset``, ``key``, ``value``, over the struct ``_record``.

    Key and value are text. Bytes that are no UTF-8 are in ``key_base64`` and ``value_base64``
    instead.
    """
    columns = [
        F.col(f"_record.{name}").alias(name)
        for name in ("topic", "partition", "offset")
        if records.has_column(name)
    ]
    for part in ("key", "value"):
        if records.has_column(part):
            text = F.col(f"_record.{part}").cast(StringType())
            whole = F.is_valid_utf8(text)
            columns.append(F.when(whole, text).alias(part))
            coded = F.base64(F.col(f"_record.{part}").cast("binary"))
            columns.append(F.when(~whole, coded).alias(f"{part}_base64"))
    return columns
