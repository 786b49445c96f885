"""Records with a key and a value of bytes, as Kafka has them, read as rows; what becomes of those
that cannot be read.

The columns of a frame of records are called as Spark's Kafka source calls them: ``value``, and
where there are any ``key``, ``topic``, ``partition``, ``offset``, ``timestamp`` and ``headers``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructType, TimestampType

from dovetail.columns import (
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
from dovetail.errors import PlanError
from dovetail.io.formats import Format, Part, Place, kept
from dovetail.plan.checks import refuse_duplicates
from dovetail.plan.expressions import field_of

Malformed: TypeAlias = Literal["fail", "drop", "dead_letter"]
"""What a record that cannot be read does: ``"fail"`` stops the query with an error that says where
it lies and what is wrong, ``"drop"`` leaves it out and counts it, as observed metric
``<name>.malformed``, ``"dead_letter"`` does so and keeps it for ``dead_letters()``."""

TIMESTAMP_HEADER: Final = "dovetail.timestamp_us"
PARTITION, OFFSET, MALFORMED = "_partition", "_offset", "_malformed"
METADATA: Final = (DELETED, TIMESTAMP, PARTITION, OFFSET, MALFORMED, PROBLEM)


@dataclass(frozen=True)
class Records:
    """A frame of records and how it is read.

    ``key``: the format of the record's key, None where it is not read; ``keys``: the columns of the
    value that are the key instead; ``timestamp``: the event time, a column of the rows or an
    expression over them, in place of the records' own.
    """

    operator: str
    frame: DataFrame
    key: Format | None
    value: Format
    keys: Sequence[str] = ()
    timestamp: str | Column | None = None
    topic: str | None = None

    def has(self, name: str) -> bool:
        """Whether the records have such a column."""
        return name in self.frame.columns

    @property
    def ordered(self) -> bool:
        """Whether the records say where they lie in a log."""
        return self.has("partition") and self.has("offset")

    def rows(self) -> tuple[list[str], DataFrame]:
        """The key's columns, and the records as rows: these columns and the value's, ``_deleted``,
        ``_timestamp``, ``_problem`` (why the record cannot be read, null where it can), where they
        are ``ordered`` ``_partition`` and ``_offset``, and the records themselves as ``_record``.
        """
        frame = self._bytes("value", self.frame)
        parts: dict[Part, StructType] = {}
        if self.key is not None:
            frame = self._bytes("key", frame)
            key = self.value.of_key(self.key).reading(self._place("key"))
            frame, parts["key"] = key.of(frame, "key"), key.fields
        value = self.value.reading(self._place("value"))
        frame, parts["value"] = value.of(frame, "value"), value.fields
        if not value.is_of_changes:
            frame = frame.withColumn(DELETED, F.col("value").isNull()).withColumn(
                TIMESTAMP, self._own_time()
            )
        names = {part: fields.names for part, fields in parts.items()}
        self._refuse_names(names)
        places = {"partition": PARTITION, "offset": OFFSET} if self.ordered else {}
        rows = frame.select(
            *(F.col(f"{part}_row")[name].alias(name) for part in names for name in names[part]),
            *(DELETED, TIMESTAMP),
            *(F.col(name).alias(own) for name, own in places.items()),
            F.coalesce(*(F.col(f"{part}_problem") for part in names)).alias(PROBLEM),
            F.struct(*(F.col(quoted(name)) for name in self.frame.columns)).alias("_record"),
        )
        return list(self.keys or names["key"]), self._timed(rows)

    def text_of(self, part: Part) -> Column:
        """The bytes of a row's key or value as text; what is not UTF-8 is replaced."""
        return F.make_valid_utf8(F.col(f"_record.{part}").cast("string"))

    def place(self) -> Column:
        """Where a row's record lies, as text; empty where nothing says it."""
        if self.ordered:
            topic = F.col("_record.topic") if self.has("topic") else F.lit(self.topic or "")
            where = "topic %s, partition %d, offset %d"
            return F.format_string(where, topic, "_record.partition", "_record.offset")
        return (
            F.format_string("file %s", f"{FILE_METADATA}.file_path") if self.in_files else F.lit("")
        )

    @property
    def in_files(self) -> bool:
        """Whether Spark can say from which file each record was read."""
        try:
            self.frame.select(f"{FILE_METADATA}.file_path")
        except AnalysisException:
            return False
        return True

    def _bytes(self, part: Part, frame: DataFrame) -> DataFrame:
        """The frame with its key or value as bytes."""
        if part not in frame.columns:
            raise PlanError(
                self.operator,
                f"the frame has no column {part!r}, among {', '.join(frame.columns)}",
                "Select what holds it under that name"
                + ("" if part == "value" else ", or name the value's key columns in key_columns="),
            )
        found = frame.schema[part].dataType
        if found.typeName() not in ("binary", "string"):
            raise PlanError(
                self.operator,
                f"column {part!r} is of type {found.simpleString()}, not binary or string",
                "Read records of columns with from_changelog",
            )
        return frame.withColumn(part, F.col(part).cast("binary"))

    def _place(self, part: Part) -> Place:
        splits = self.ordered or not self.in_files
        return Place(self.operator, part, self.topic, tuple(self.keys), splits)

    def _refuse_names(self, names: dict[Part, list[str]]) -> None:
        refuse_duplicates(
            self.operator,
            [*METADATA, *(name for of_part in names.values() for name in of_part)],
            "Leave a field that key and value share out of value=, and rename one that is named as "
            f"the record's own columns are ({', '.join(METADATA)})",
        )
        for name in self.keys:
            if name not in names["value"]:
                raise PlanError(
                    self.operator,
                    f"key_columns= names an unknown column {name!r}",
                    f"Known in the value are {', '.join(names['value'])}",
                )

    def _own_time(self) -> Column:
        """What the timestamp header says, else the record's own timestamp."""
        stamped = F.col("timestamp") if self.has("timestamp") else F.lit(None).cast("timestamp")
        if not self.has("headers"):
            return stamped
        place = F.nullif(F.array_position("headers.key", TIMESTAMP_HEADER), F.lit(0)).cast("int")
        micros = F.try_element_at(F.col("headers.value"), place).cast("string").try_cast("long")
        return F.coalesce(F.timestamp_micros(micros), stamped)

    def _timed(self, rows: DataFrame) -> DataFrame:
        """The rows with the event time that is asked for; a row without one cannot be placed."""
        time = F.col(TIMESTAMP)
        if self.timestamp is not None:
            given = (
                F.col(quoted(self.timestamp)) if isinstance(self.timestamp, str) else self.timestamp
            )
            known = f"Known columns are {', '.join(rows.columns)}"
            found = field_of(self.operator, "timestamp=", rows, given, known).dataType
            if not isinstance(found, TimestampType):
                raise PlanError(
                    self.operator,
                    f"timestamp= is of type {found.simpleString()}, not timestamp",
                    "Cast it, for instance with .cast('timestamp')",
                )
            if self.timestamp in self.keys:
                raise PlanError(
                    self.operator,
                    f"timestamp= names {self.timestamp!r}, a column of key_columns=",
                    "Give an expression: F.col(...)",
                )
            # A record without a value has none of the columns.
            time = F.when(F.col(DELETED), F.coalesce(given, time)).otherwise(given)
        rows = rows.withColumn(TIMESTAMP, time)
        if isinstance(self.timestamp, str):
            rows = rows.drop(self.timestamp)
        untimed = F.when(F.col(TIMESTAMP).isNull(), F.lit("it has no event time"))
        return rows.withColumn(PROBLEM, F.coalesce(PROBLEM, untimed))


def readable(
    records: Records, rows: DataFrame, name: str, malformed: Malformed
) -> tuple[DataFrame, DataFrame | None]:
    """The rows of records that can be read, and with ``"dead_letter"`` all rows, with the dead
    letter of those that cannot be read as ``_unread``; ``name``: the source's.
    """
    fits, where = F.col(PROBLEM).isNull(), records.place()
    if malformed == "fail":
        error = F.concat(
            F.lit(f"{records.operator}: the record "),
            F.when(where != "", F.concat(F.lit("of "), where, F.lit(", "))).otherwise(F.lit("")),
            F.lit("cannot be read: "),
            F.col(PROBLEM),
            F.lit(". Correct it, or pass malformed='drop' or 'dead_letter'."),
        )
        checked = F.when(fits, F.lit(True)).otherwise(F.raise_error(error).cast("boolean"))
        return kept(rows, checked), None
    counted = rows.observe(f"{name}.malformed", F.count_if(~fits).alias("records"))
    with_unread = None
    if malformed == "dead_letter":
        letter = F.struct(
            F.lit(records.operator).alias(OPERATOR),
            F.concat_ws(": ", F.nullif(where, F.lit("")), PROBLEM).alias(PROBLEM),
            F.to_json(F.struct(*_as_sent(records))).alias(LETTER),
            F.unix_micros(F.coalesce(_stamped(records), TIMESTAMP)).alias(EVENT_TIME),
        )
        with_unread = counted.withColumn(UNREAD, F.when(~fits, letter))
    return kept(counted, fits), with_unread


def _stamped(records: Records) -> Column:
    own = F.col("_record.timestamp") if records.has("timestamp") else F.lit(None)
    return own.cast("timestamp")


def _as_sent(records: Records) -> list[Column]:
    """A record for a dead letter: where it lies, its key and its value, as text, or where they are
    none as ``key_base64`` and ``value_base64``.
    """
    columns = [
        F.col(f"_record.{name}").alias(name)
        for name in ("topic", "partition", "offset")
        if records.has(name)
    ]
    for part in ("key", "value"):
        if records.has(part):
            text = F.col(f"_record.{part}").cast(StringType())
            whole = F.is_valid_utf8(text)
            columns.append(F.when(whole, text).alias(part))
            coded = F.base64(F.col(f"_record.{part}").cast("binary"))
            columns.append(F.when(~whole, coded).alias(f"{part}_base64"))
    return columns
