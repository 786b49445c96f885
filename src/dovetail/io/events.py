"""Change events, read from their envelopes: the row after a change, the key before it, the kind of
the change and its time.

An envelope comes as a struct with the fields that it has in JSON or Avro; its rows' columns are in
the types of that encoding. What is common to both is here, and is Spark expressions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from dovetail.columns import DELETED, TIMESTAMP, quoted
from dovetail.io.connect import ColumnEncoding, Raw, raw_type
from dovetail.io.formats import Part, Reading, kept
from dovetail.io.unsent import UNSENT, Placeholder

_STRING, _LONG = StringType(), LongType()
METADATA: Final[Mapping[str, DataType]] = {
    "op": _STRING,
    "ts_ms": _LONG,
    "ts_us": _LONG,
    "source.version": _STRING,
    "source.connector": _STRING,
    "source.name": _STRING,
    "source.ts_ms": _LONG,
    "source.ts_us": _LONG,
    "source.snapshot": _STRING,
    "source.db": _STRING,
    "source.schema": _STRING,
    "source.table": _STRING,
    "source.sequence": _STRING,
    "source.txId": _LONG,
    "source.lsn": _LONG,
    "source.xmin": _LONG,
    "source.server_id": _LONG,
    "source.gtid": _STRING,
    "source.file": _STRING,
    "source.pos": _LONG,
    "source.row": IntegerType(),
    "source.thread": _LONG,
    "transaction.id": _STRING,
    "transaction.total_order": _LONG,
    "transaction.data_collection_order": _LONG,
}
"""What of an envelope, besides its rows, can be read, by its path."""
_TIMES: Final = ("source.ts_us", "source.ts_ms", "ts_us", "ts_ms")
"""Where the time of a change is found, in microseconds or milliseconds; 0 says nothing."""


@dataclass(frozen=True)
class Wanted:
    """What is read of an envelope: the rows' ``columns``, those of them that are ``keys`` (none
    where the record's key is), and ``metadata`` by the column that each becomes.
    """

    columns: StructType
    keys: tuple[str, ...]
    metadata: Mapping[str, str]
    declared: bool = True
    """Whether the user says what the columns are, not the records' schemas."""
    placeholder: Placeholder = field(default_factory=Placeholder)
    """What stands for a value that was not sent."""
    keeps: bool = False
    """Whether values that were not sent are no problem, but named."""

    @property
    def paths(self) -> tuple[str, ...]:
        """What is needed of ``METADATA``."""
        return tuple(dict.fromkeys(("op", *_TIMES, *self.metadata.values())))

    @property
    def before(self) -> StructType:
        """What is needed of the row before a change."""
        return StructType([self.columns[name] for name in self.keys])

    def typed(
        self,
        frame: DataFrame,
        raw: Column,
        encodings: Mapping[str, ColumnEncoding],
        into: str,
        *,
        coded: bool,
    ) -> DataFrame:
        """The frame with the event that an envelope is, null where ``raw`` is: its ``op``, the
        ``time`` in microseconds, the rows ``after`` and ``before``, ``metadata``, and ``problem``,
        why it is none.

        ``encodings``: of the columns; ``coded``: as in ``connect.Raw``.
        """
        sides = {"after": self.columns, "before": self.before}
        rows = [
            F.when(
                raw[side].isNotNull(),
                F.struct(
                    *(
                        Raw(raw[side][f.name], encodings[f.name], coded)
                        .to(f.dataType)
                        .alias(f.name)
                        for f in columns
                    )
                ),
            ).alias(side)
            for side, columns in sides.items()
            if columns.fields
        ]
        frame = frame.withColumn(into, F.when(raw.isNotNull(), F.struct(*rows)))
        made = F.col(into)
        problems, unsent = list[Column](), list[Column]()
        for side, columns in sides.items():
            for f in columns:
                given = Raw(raw[side][f.name], encodings[f.name], coded)
                missing = self.placeholder.within(
                    given.column, given.encoding.natural or raw_type(f.dataType)
                )
                unfit = _unfit(f, given, made[side][f.name])
                if missing is None:
                    problems.append(unfit)
                elif self.keeps and side == "after" and f.name not in self.keys:
                    unsent.append(F.when(missing, f.name))
                    problems.append(F.when(~F.coalesce(missing, F.lit(False)), unfit))
                else:
                    problems += [F.when(missing, _unsent(f)), unfit]
        event = F.struct(
            raw["op"].alias("op"),
            F.coalesce(*(_time(_at(raw, path), path) for path in _TIMES)).alias("time"),
            *(made[side].alias(side) for side, columns in sides.items() if columns.fields),
            F.struct(
                F.lit(True).alias("_"),
                *(_at(raw, path).alias(name) for name, path in self.metadata.items()),
            ).alias("metadata"),
            F.coalesce(F.lit(None).cast("string"), *problems).alias("problem"),
            F.filter(F.array(*unsent), lambda name: name.isNotNull())
            .cast("array<string>")
            .alias("unsent"),
        )
        return frame.withColumn(into, F.when(raw.isNotNull(), event))


@dataclass(frozen=True)
class Changes(Reading):
    """How records become changes of rows.

    ``wanted``: what is read; ``events``: the frame with the column ``_event`` that
    ``Wanted.typed`` makes, null where a record is no envelope, and where bytes may say that there
    is no value, ``_absent``; ``truncates``, ``tombstones``: whether those records are kept;
    ``splits``: whether a record may become two rows.
    """

    wanted: Wanted
    events: Callable[[DataFrame], DataFrame]
    truncates: bool
    tombstones: bool
    splits: bool

    is_of_changes: ClassVar[bool] = True

    def of(self, records: DataFrame, part: Part) -> DataFrame:
        """Also ``_deleted`` and ``_timestamp``."""
        event = F.col("_event")
        there = F.col("value").isNotNull()
        frame = self.events(records if self.tombstones else records.where(there))
        if "_absent" in frame.columns:
            there = ~F.col("_absent")
            frame = frame if self.tombstones else kept(frame, there)
        if not self.truncates:
            frame = kept(frame, ~F.coalesce(event["op"] == "t", F.lit(False)))
        frame = frame.withColumn(
            "value_problem",
            F.when(there, F.concat(F.lit("value: "), F.coalesce(*self._problems(event)))),
        )
        deletes = ~there | (event["op"] == "d")
        change = self._row(deletes)
        if self.splits and self.wanted.keys:
            moves = F.col("value_problem").isNull() & self._moves(event)
            both = F.when(moves, F.array(self._row(F.lit(True)), change))
            frame = frame.withColumn("_row", F.explode(F.coalesce(both, F.array(change))))
        else:
            frame = frame.withColumn("_row", change)
        time = F.timestamp_micros(event["time"])
        if "timestamp" in records.columns:
            time = F.when(there, time).otherwise(F.col("timestamp"))
        return frame.select(
            "*",
            F.col("_row.row").alias("value_row"),
            F.col("_row.deleted").alias(DELETED),
            time.alias(TIMESTAMP),
        )

    def _problems(self, event: Column) -> list[Column]:
        op, deletes = event["op"], event["op"] == "d"
        lacks_after = ~deletes & event["after"].isNull()
        problems = [
            F.when(event.isNull(), self.problem(F.col("value"))),
            F.when(
                op == "t",
                F.lit(
                    "a TRUNCATE, which does not say which rows are gone: take a new snapshot and "
                    "start with a new checkpoint, or pass truncate='ignore'"
                ),
            ),
            F.when(
                ~F.coalesce(op.isin("c", "u", "r", "d"), F.lit(False)),
                F.concat(F.lit("no change of a row: its op is "), F.coalesce(op, F.lit("null"))),
            ),
            F.when(lacks_after, F.concat(F.lit("no row after the change, whose op is "), op)),
            event["problem"],
        ]
        if self.wanted.keys:
            gone = F.lit("a delete without the row before it: set the table's REPLICA IDENTITY")
            problems.append(F.when(deletes & event["before"].isNull(), gone))
            if not self.splits:
                moved = F.lit("an update of the key, which takes a frame with offsets")
                problems.append(F.when(self._moves(event), moved))
        return problems

    def _moves(self, event: Column) -> Column:
        """Whether an update changes the key; not where the event lacks the former one."""
        moves, known = F.lit(False), event["op"] == "u"
        for name in self.wanted.keys:
            before, after = event["before"][name], event["after"][name]
            moves, known = moves | ~before.eqNullSafe(after), known & before.isNotNull()
        return known & moves

    def _row(self, deleted: Column) -> Column:
        """A row of a record: the one after the change, or of a delete the key's columns."""
        event, wanted = F.col("_event"), self.wanted
        columns = [event["after"][name].alias(name) for name in wanted.columns.names]
        columns += [event["metadata"][name].alias(name) for name in wanted.metadata]
        if wanted.keeps:
            columns.append(event["unsent"].alias(UNSENT))
        gone = [
            (event["before"][f.name] if f.name in wanted.keys else F.lit(None))
            .cast(f.dataType)
            .alias(f.name)
            for f in wanted.columns
        ]
        gone += [event["metadata"][name].alias(name) for name in wanted.metadata]
        if wanted.keeps:
            gone.append(F.lit(None).cast("array<string>").alias(UNSENT))
        row = F.when(deleted, F.struct(*gone)).otherwise(F.struct(*columns))
        readable = F.when(F.col("value_problem").isNull(), row)
        return F.struct(readable.alias("row"), deleted.alias("deleted"))


def _at(raw: Column, path: str) -> Column:
    for name in path.split("."):
        raw = raw[name]
    return raw.cast(METADATA[path])


def _time(found: Column, path: str) -> Column:
    micros = found if path.endswith("_us") else found * 1000
    return F.nullif(micros, F.lit(0))


def _unfit(column: StructField, given: Raw, value: Column) -> Column:
    """Why a column has no value, though there is a raw one."""
    type_, named = column.dataType, f"column {quoted(column.name)}"
    raw, encoding = given.column, given.encoding
    unfit = F.concat(
        F.lit(f"{named} is no {type_.simpleString()}: "),
        F.substring(F.to_json(F.struct(raw.alias(column.name))), 1, 200),
        F.lit(", encoded as "),
        F.coalesce(encoding.name, F.lit("its record does not say; name it in encodings=")),
    )
    return F.when(given.lost(value, type_), unfit)


def _unsent(column: StructField) -> Column:
    """Why a column has no value, where it was not sent."""
    return F.lit(
        f"column {quoted(column.name)} was not sent, since it is large and has not changed: set "
        "the table's REPLICA IDENTITY to FULL, pass unsent='keep', or leave the column out"
    )
