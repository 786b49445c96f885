"""Change events, read from their envelopes: the row after a change, the key before it, the kind of
the change and its time.

An envelope is a struct with the fields of its JSON or Avro form. Its rows' columns have the types
of that encoding. This module has the part that both share, as Spark expressions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    DataType,
    DecimalType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from dovetail.base.columns import DELETED, TIMESTAMP, quoted
from dovetail.io.formats.connect import ColumnEncoding, RawValue, raw_type
from dovetail.io.formats.plain import CHANGE_INDEX, Decoding, Part, keep_rows
from dovetail.io.formats.transactions import TRANSACTION, TRANSACTION_PATHS, transaction_of
from dovetail.io.formats.unsent_values import UNSENT, Placeholder

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
"""The readable fields of an envelope besides its rows: types by path."""
_TIME_PATHS: Final = ("source.ts_us", "source.ts_ms", "ts_us", "ts_ms")
"""The paths of a change's time, the best first, in microseconds or milliseconds; 0 means
unknown."""


@dataclass(frozen=True)
class WantedParts:
    """The parts of a change event's envelope that a query reads."""

    columns: StructType
    """The columns of a row, in their order, with the types that they are to have."""
    keys: tuple[str, ...]
    """The columns that are the key, without those of ``metadata``; empty if the record's own key
    is.
    """
    metadata: Mapping[str, str]
    """The further columns: the path in the envelope, a key of ``METADATA``, by column name."""
    declared: bool = True
    """True if the user declares the columns, not the records' schemas."""
    placeholder: Placeholder = field(default_factory=Placeholder)
    """The placeholder of a value that was not sent."""
    keeps: bool = False
    """True if values that were not sent are listed by name in ``unsent``; False if they make their
    event unreadable.
    """
    transacts: bool = False
    """True if the event's part in its transaction is read, for counting the rows of a key."""

    @property
    def paths(self) -> tuple[str, ...]:
        """The dotted paths in the envelope that are read, keys of ``METADATA``, each once: ``op``,
        the times, those of the transaction (with ``transacts``), those of ``metadata``.
        """
        transaction_paths = TRANSACTION_PATHS if self.transacts else ()
        return tuple(
            dict.fromkeys(("op", *_TIME_PATHS, *transaction_paths, *self.metadata.values()))
        )

    @property
    def before(self) -> StructType:
        """The columns needed of the row before a change: those of ``keys``."""
        return StructType([self.columns[name] for name in self.keys])

    @property
    def sides(self) -> Mapping[str, StructType]:
        """The columns of the row ``"after"`` a change and, only with key columns, of the row
        ``"before"`` it.
        """
        return {"after": self.columns} | ({"before": self.before} if self.keys else {})

    def add_event(
        self,
        frame: DataFrame,
        raw: Column,
        encodings: Mapping[str, ColumnEncoding],
        into: str,
        *,
        coded: bool,
        problem: Column | None = None,
    ) -> DataFrame:
        """Return ``frame`` with one more column, ``into``: the event of the envelope ``raw``, null
        where that is null.

        | field of an event | meaning |
        |---|---|
        | ``op`` | the kind of the change, as in the envelope |
        | ``time`` | the change's time in microseconds, null if unknown |
        | ``after``, ``before`` | the rows in their types; ``before`` only with key columns |
        | ``metadata`` | a struct of the columns in ``metadata`` |
        | ``problem`` | the first reason why the event is unreadable, else null |
        | ``unsent`` | the names of the columns that were not sent, if ``keeps``; else empty |
        | ``transaction`` | the event's part in its transaction; only with ``transacts`` |

        ``raw``: the wanted parts of an envelope, with raw values in its rows. ``encodings``: by
        column name, for all columns. ``coded``: True for raw values of JSON, False for those of
        Avro. ``problem``: a text why the envelope as a whole is unreadable, or null; None for no
        check.
        """
        sides = self.sides
        rows = [
            F.when(
                raw[side].isNotNull(),
                F.struct(
                    *(
                        RawValue(raw[side][f.name], encodings[f.name], coded)
                        .as_type(f.dataType)
                        .alias(f.name)
                        for f in columns
                    )
                ),
            ).alias(side)
            for side, columns in sides.items()
        ]
        frame = frame.withColumn(into, F.when(raw.isNotNull(), F.struct(*rows)))
        typed_rows = F.col(into)
        problems = list[Column]() if problem is None else [problem]
        unsent = list[Column]()
        for side, columns in sides.items():
            for f in columns:
                raw_value = RawValue(raw[side][f.name], encodings[f.name], coded)
                missing = self.placeholder.is_unsent(
                    raw_value.column, raw_value.encoding.natural or raw_type(f.dataType)
                )
                unfit = _unfit_problem(f, raw_value, typed_rows[side][f.name])
                if missing is None:
                    problems.append(unfit)
                elif self.keeps and side == "after" and f.name not in self.keys:
                    unsent.append(F.when(missing, f.name))
                    problems.append(F.when(~F.coalesce(missing, F.lit(False)), unfit))
                else:
                    problems += [F.when(missing, _unsent_problem(f)), unfit]
        event = F.struct(
            raw["op"].alias("op"),
            F.coalesce(*(_time_us(_metadata_at(raw, path), path) for path in _TIME_PATHS)).alias(
                "time"
            ),
            *(typed_rows[side].alias(side) for side in sides),
            F.struct(
                F.lit(True).alias("_"),
                *(_metadata_at(raw, path).alias(name) for name, path in self.metadata.items()),
            ).alias("metadata"),
            F.coalesce(F.lit(None).cast("string"), *problems).alias("problem"),
            F.filter(F.array(*unsent), lambda name: name.isNotNull())
            .cast("array<string>")
            .alias("unsent"),
            *(
                [
                    transaction_of(raw["op"], lambda path: _metadata_at(raw, path)).alias(
                        "transaction"
                    )
                ]
                if self.transacts
                else []
            ),
        )
        return frame.withColumn(into, F.when(raw.isNotNull(), event))


@dataclass(frozen=True)
class ChangeEvents(Decoding):
    """The steps that turn records with change events into changes of rows."""

    wanted: WantedParts
    """The parts of an envelope that are read."""
    events: Callable[[DataFrame], DataFrame]
    """A function that adds ``_event`` (see ``WantedParts.add_event``), null where a record is no
    envelope. It may also add the boolean ``_absent``, true where the bytes say that there is no
    value.
    """
    truncates: bool
    """True if TRUNCATE events are kept, as records that cannot be read."""
    tombstones: bool
    """True if records without a value are kept, as deletes."""
    splits: bool
    """True if a record may become two rows; if False, an update of the key is unreadable."""

    is_of_changes: ClassVar[bool] = True

    def decode(self, records: DataFrame, part: Part) -> DataFrame:
        """Return the records as rows, one for each change, with ``value_row``, ``value_problem``,
        ``_deleted``, ``_timestamp`` and ``_change_index`` besides. The time is the event's, null if
        that is unknown, or, without a value, the record's. ``part`` is always ``"value"``.
        ``records``: with a column ``value``, and perhaps ``timestamp``, the record's time, which is
        null without it.

        Records without a value are left out unless ``tombstones`` is true: then each is a delete,
        whose ``value_row`` is a struct of nulls. Truncations are left out unless ``truncates`` is
        true: then each is an unreadable record. With ``splits``, an update of the key is two rows,
        the delete of the former key first; else it is unreadable. So is an event whose ``op`` is
        none of ``c``, ``u``, ``r``, ``d`` and ``t``. An unreadable record is one row, with a text
        in ``value_problem`` and a null ``value_row``.
        """
        event = F.col("_event")
        has_value = F.col("value").isNotNull()
        frame = self.events(records if self.tombstones else records.where(has_value))
        if "_absent" in frame.columns:
            has_value = ~F.col("_absent")
            frame = frame if self.tombstones else keep_rows(frame, has_value)
        if not self.truncates:
            frame = keep_rows(frame, ~F.coalesce(event["op"] == "t", F.lit(False)))
        frame = frame.withColumn(
            "value_problem",
            F.when(has_value, F.concat(F.lit("value: "), F.coalesce(*self._problems(event)))),
        )
        deletes = ~has_value | (event["op"] == "d")
        change = self._row(deletes)
        if self.splits and self.wanted.keys:
            moves = F.col("value_problem").isNull() & self._changes_key(event)
            delete_and_change = F.when(moves, F.array(self._row(F.lit(True)), change))
            changes = F.coalesce(delete_and_change, F.array(change))
            frame = frame.select("*", F.posexplode(changes).alias(CHANGE_INDEX, "_row"))
        else:
            frame = frame.withColumn(CHANGE_INDEX, F.lit(0)).withColumn("_row", change)
        time = F.timestamp_micros(event["time"])
        if "timestamp" in records.columns:
            time = F.when(has_value, time).otherwise(F.col("timestamp"))
        return frame.select(
            "*",
            F.col("_row.row").alias("value_row"),
            F.col("_row.deleted").alias(DELETED),
            time.alias(TIMESTAMP),
        )

    def _problems(self, event: Column) -> list[Column]:
        """Return the reasons why ``event`` may be unreadable, the most important first. Each is a
        text column, null where the reason does not apply.
        """
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
                problems.append(F.when(self._changes_key(event), moved))
        if self.wanted.keeps:
            comes = (op == "c") | self._changes_key(event)
            foreign = F.concat(
                F.lit("the row comes under another key without its "),
                F.array_join(event["unsent"], ", "),
                F.lit(", which was not sent: set the table's REPLICA IDENTITY to FULL"),
            )
            problems.append(F.when(comes & (F.size(event["unsent"]) > 0), foreign))
        return problems

    def _changes_key(self, event: Column) -> Column:
        """Return a boolean column: ``event`` is an update after which a key column has another
        value. It is false if a former key column is null, and without ``wanted.keys``. It is null
        at most if the event has no ``op``.
        """
        moves, comparable = F.lit(False), event["op"] == "u"
        for name in self.wanted.keys:
            before, after = event["before"][name], event["after"][name]
            moves, comparable = moves | ~before.eqNullSafe(after), comparable & before.isNotNull()
        return comparable & moves

    def _row(self, deleted: Column) -> Column:
        """Return a struct of ``row`` and ``deleted`` for the event in ``_event``.

        ``row`` is the row after the change. Where ``deleted`` is true, it has the key's columns as
        before the change and nulls for the others. Metadata, the names of unsent columns and the
        transaction follow. ``row`` is null for an unreadable event.
        """
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
        if wanted.transacts:
            transaction = event["transaction"]
            op = F.when(self._changes_key(event), F.lit("c")).otherwise(event["op"])
            columns.append(transaction.withField("op", op).alias(TRANSACTION))
            gone.append(transaction.withField("op", F.lit("d")).alias(TRANSACTION))
        row = F.when(deleted, F.struct(*gone)).otherwise(F.struct(*columns))
        readable = F.when(F.col("value_problem").isNull(), row)
        return F.struct(readable.alias("row"), deleted.alias("deleted"))


def _metadata_at(raw: Column, path: str) -> Column:
    """Return the field of the envelope ``raw`` at ``path``, a dotted key of ``METADATA``, cast to
    its type there: string, long or integer. Null if a struct on the path is null.
    """
    for name in path.split("."):
        raw = raw[name]
    return raw.cast(METADATA[path])


def _time_us(time: Column, path: str) -> Column:
    """Return ``time``, one of an envelope, in microseconds. It is null for null, for 0, which means
    unknown, and for a time too large for microseconds. ``path``: the dotted path of the time;
    unless it ends in ``_us``, the time is in milliseconds.
    """
    micros = time if path.endswith("_us") else F.try_multiply(time, F.lit(1000))
    return F.nullif(micros, F.lit(0))


def _unfit_problem(column: StructField, raw_value: RawValue, value: Column) -> Column:
    """Return a text why ``column`` has no value, or lost a part of it, although ``raw_value`` is
    not null; else null. ``value``: the raw value as it was converted to the column's type.
    """
    type_, named = column.dataType, f"column {quoted(column.name)}"
    raw, encoding = raw_value.column, raw_value.encoding
    raw = F.ltrim(raw) if isinstance(type_, DecimalType) and raw_value.coded else raw
    unfit = F.concat(
        F.lit(f"{named} is no {type_.simpleString()}: "),
        F.substring(F.to_json(F.struct(raw.alias(column.name))), 1, 200),
        F.lit(", encoded as "),
        F.coalesce(encoding.name, F.lit("its record does not say; name it in encodings=")),
    )
    return F.when(raw_value.is_lost(value, type_), unfit)


def _unsent_problem(column: StructField) -> Column:
    """Return the problem of ``column`` where its value was not sent, a constant text."""
    return F.lit(
        f"column {quoted(column.name)} was not sent, since it is large and has not changed: set "
        "the table's REPLICA IDENTITY to FULL, pass unsent='keep', or leave the column out"
    )
