"""The change events of Maxwell and Canal as the format of a value.

Both are JSON objects with a ``type`` and the row in ``data``: after the change, or for a delete the
deleted row. ``old`` has the former values of the columns that an update changes. Canal's ``data``
and ``old`` are lists of rows, whose values are texts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import ClassVar, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    FractionalType,
    IntegralType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from dovetail.base.columns import DELETED, TIMESTAMP
from dovetail.base.validation import validated
from dovetail.errors import PlanError
from dovetail.io.formats.json_objects import JsonObject, is_json_null, lack_of_keys
from dovetail.io.formats.json_values import NUMBER, JsonValues, is_infinite, misfit_text
from dovetail.io.formats.plain import (
    CHANGE_INDEX,
    Decoding,
    Format,
    FormatContext,
    Part,
    Schema,
    keep_rows,
    struct_of,
)
from dovetail.plan.types.checks import known_field


@dataclass(frozen=True)
class Dialect:
    """The field names and event types of a tool that writes change events in JSON."""

    name: str
    """The name of the tool, as that of its function in ``dt.formats``."""
    upserts: tuple[str, ...]
    """The values of ``type`` of events with the row after a change."""
    deletes: tuple[str, ...]
    """The values of ``type`` of events with a deleted row."""
    nothing: tuple[str, ...]
    """The values of ``type`` of events that change no row, which are left out."""

    time: str
    """The name of the field with the time of a change."""

    time_us: int
    """The unit of the time, in microseconds."""

    listed: bool
    """True if rows come in lists, with texts as values."""


_MAXWELL: Final = Dialect(
    "maxwell",
    ("insert", "update", "bootstrap-insert"),
    ("delete",),
    (
        *("bootstrap-start", "bootstrap-complete", "database-create", "database-alter"),
        *("table-create", "table-alter"),
    ),
    "ts",
    1_000_000,
    False,
)
_CANAL: Final = Dialect(
    "canal",
    ("INSERT", "UPDATE"),
    ("DELETE",),
    # The last one is the heartbeat of TiDB, which writes the events of Canal, too.
    ("CREATE", "ALTER", "QUERY", "CINDEX", "DINDEX", "RENAME", "TIDB_WATERMARK"),
    "es",
    1000,
    True,
)


_TICDC: Final = "_tidb"
"""The field of TiCDC's events that Canal's do not have."""
_TICDC_TYPE: Final = StructType(
    [
        StructField("onlyHandleKey", BooleanType()),
        StructField("claimCheckLocation", StringType()),
    ]
)
_SHORT_ROW: Final = (
    "value: it has the key of a row that was too large for a message: raise max-message-bytes of "
    "TiCDC, or compress by large-message-handle-compression"
)
"""The problem of an event that does not have the whole row."""


@validated
def maxwell(schema: Schema) -> DialectFormat:
    """Describe Maxwell's change events, as the format of a value.

    Maxwell reads the changes of a MySQL or MariaDB database, and writes each as a JSON
    object. The row after an ``insert``, an ``update`` or a ``bootstrap-insert`` replaces
    its key's row. A ``delete`` deletes it.

    Parameters
    ----------
    schema : str, StructType or mapping
        The table's columns: a text as in SQL (``"id long, city string"``), or a mapping of
        names to Spark's types. They are read by the rules of ``json``.

    Returns
    -------
    DialectFormat
        The format, for ``value=`` of a reader. It cannot be written.

    Raises
    ------
    PlanError
        If ``schema`` is no schema. A reader raises it for the format of a key.

    See Also
    --------
    canal : Canal's change events.
    debezium : Debezium's change events.
    json : Records that are one JSON object.
    Table.from_records : Read a table from a frame of records.

    Notes
    -----
    The event time is ``ts``, in seconds. An event without it cannot be read, unless the
    reader's ``timestamp=`` gives a time. With ``key_columns=``, an update of the key
    deletes the former key's row.

    Events that only concern the schema, and records without a value, are left out. The drop
    of a table cannot be read, because it names no rows. Neither can an event of a type that
    is not named here. The reader's ``malformed=`` says what becomes of such a record.

    Examples
    --------
    >>> import dovetail as dt
    >>> events = [
    ...     ("t", 0, 0, '{"type": "insert", "ts": 1, "data": {"id": 1, "city": "Oslo"}}'),
    ...     ("t", 0, 1, '{"type": "update", "ts": 2, "data": {"id": 1, "city": "Rome"}}'),
    ... ]
    >>> columns = "topic string, partition int, offset long, value string"
    >>> rows = dt.Table.from_records(
    ...     spark.createDataFrame(events, columns),
    ...     key_columns="id",
    ...     value=dt.formats.maxwell("id long, city string"),
    ...     name="cities",
    ... )
    >>> rows.changelog(emit="batch").select("id", "city").collect()
    [Row(id=1, city='Rome')]
    """
    return DialectFormat(struct_of("maxwell", schema), _MAXWELL)


@validated
def canal(schema: Schema) -> DialectFormat:
    """Describe Canal's change events in JSON (``flatMessage``), as the format of a value.

    Canal reads the changes of a MySQL database, and writes them as JSON objects with lists
    of rows. TiDB's TiCDC writes the same (``canal-json``). Each row of an ``INSERT`` or an
    ``UPDATE`` replaces its key's row. Each row of a ``DELETE`` deletes it.

    Parameters
    ----------
    schema : str, StructType or mapping
        The table's columns: a text as in SQL (``"id long, city string"``), or a mapping of
        names to Spark's types. Their values are texts in the events.

    Returns
    -------
    DialectFormat
        The format, for ``value=`` of a reader. It cannot be written.

    Raises
    ------
    PlanError
        If ``schema`` is no schema. Also if a column is of a type that cannot be made of a
        text, such as binary, an array or a struct. A reader raises it for the format of a
        key.

    See Also
    --------
    maxwell : Maxwell's change events.
    debezium : Debezium's change events.
    Table.from_records : Read a table from a frame of records.

    Notes
    -----
    Dates and timestamps are in ISO 8601. A text without a zone is in UTC. The event time is
    ``es``, in milliseconds. An event without it cannot be read, unless the reader's
    ``timestamp=`` gives a time. With ``key_columns=``, an update of the key deletes the
    former key's row.

    Events that only concern the schema, watermarks, and records without a value are left out. A
    ``TRUNCATE`` or ``ERASE`` cannot be read, because it names no rows. Neither can an insert
    or update of TiCDC that only has the key of a large row. The reader's ``malformed=`` says
    what becomes of such a record.

    Examples
    --------
    >>> import dovetail as dt
    >>> from pyspark.sql import functions as F
    >>> event = '{"type": "INSERT", "es": 1000, "data": [{"id": "1", "city": "Oslo"}]}'
    >>> rows = dt.Table.from_records(
    ...     spark.createDataFrame([(event,)], "value string"),
    ...     key_columns="id",
    ...     value=dt.formats.canal("id long, city string"),
    ...     name="cities",
    ... )
    >>> rows.changelog().select("id", "city", F.unix_millis("_timestamp").alias("ms")).collect()
    [Row(id=1, city='Oslo', ms=1000)]
    """
    columns = struct_of("canal", schema)
    for column in columns:
        if not isinstance(column.dataType, _TYPES_OF_TEXTS):
            raise PlanError(
                "canal",
                f"schema= has column {column.name!r} of type {column.dataType.simpleString()}, "
                "which cannot be made of a text",
                "Declare it as string",
            )
    return DialectFormat(columns, _CANAL)


_TYPES_OF_TEXTS: Final = (
    *(StringType, BooleanType, IntegralType, FractionalType, DecimalType),
    *(DateType, TimestampType, TimestampNTZType),
)


@dataclass(frozen=True)
class DialectFormat(Format):
    """The format of a value that is an event of Maxwell or Canal."""

    schema: StructType
    """The table's columns."""
    dialect: Dialect
    """The tool that writes the events."""

    def decoding(self, context: FormatContext) -> Decoding:
        """Return the steps that read the row after a change; for a delete, the deleted row. A row
        has the columns of ``schema``. A record may become several rows, or none. Raises
        ``PlanError`` if the context's part is the key, and for key columns that the schema lacks.
        """
        if context.part != "value":
            raise context.refuse(
                "is a change event, which only a value is", "Give the key's fields"
            )
        for name in context.keys:
            known_field(context.operator, "key_columns=", name, self.schema)
        data: DataType = self.schema
        old: DataType = StructType([self.schema[name] for name in context.keys])
        if self.dialect.listed:
            data = ArrayType(_text_columns(self.schema))
            old = ArrayType(MapType(StringType(), StringType()))
        envelope = StructType([StructField("type", StringType())])
        envelope.add(self.dialect.time, "long").add("data", data)
        if self.dialect.listed:
            envelope.add(_TICDC, _TICDC_TYPE)
        if context.keys:
            envelope.add("old", old)
        text = F.col("value").cast("string")
        object_ = JsonObject(text, envelope)
        problem_text = F.lit(
            f"not one JSON object with the fields of an event of {self.dialect.name}"
        )
        return _DialectEvents(
            self.schema,
            object_.parsed,
            object_.row,
            lambda parsed: F.coalesce(object_.problem(parsed), problem_text),
            absent=lambda _: is_json_null(text, wrapped=False),
            dialect=self.dialect,
            keys=context.keys,
            splits=context.splits,
        )

    def encode(self, context: FormatContext, columns: StructType) -> Column:
        """Raise ``PlanError``, because only the tool writes its events. ``columns`` is not used."""
        raise context.refuse(
            f"is dt.{self.dialect.name}, which is only read", "Write JSON, Avro or Protobuf"
        )


@dataclass(frozen=True, kw_only=True)
class _DialectEvents(Decoding):
    """The steps that turn events of a dialect into changes of rows."""

    dialect: Dialect
    """The tool that writes the events."""
    keys: tuple[str, ...]
    """The key columns in the row. If one changes, the former key's row is deleted. Empty if the
    record's own key counts.
    """
    splits: bool
    """True if an event may become several rows; if not, an event of several is unreadable."""

    is_of_changes: ClassVar[bool] = True

    def decode(self, records: DataFrame, part: Part) -> DataFrame:
        """Return the records as rows, one for each change, with ``value_row``, ``value_problem``,
        ``_deleted``, ``_timestamp`` and ``_change_index`` besides. Events that change no row by
        their type, and records without a value, are left out. The changes of a record stay in
        order. ``part`` is always ``"value"``.

        An unreadable event is one row, with a text in ``value_problem``, a null ``value_row`` and
        no delete. So is an event of an unknown type, and a change without data. The time is null
        if the event has none.
        """
        frame = super().decode(records, part)
        event, dialect = F.col("value_row"), self.dialect
        is_change = event["type"].isin(*dialect.upserts, *dialect.deletes)
        nothing = F.coalesce(event["type"].isin(*dialect.nothing), F.lit(False))
        frame = keep_rows(frame, ~(F.col("value_absent") | nothing))
        changes = F.when(is_change, self._changes(event))
        frame = frame.withColumn("_changes", changes)
        problems = [
            F.col("value_problem"),
            F.when(
                ~F.coalesce(is_change, F.lit(False)),
                F.concat(
                    F.lit("value: no change of a row: its type is "),
                    F.coalesce(event["type"], F.lit("null")),
                ),
            ),
            F.when(F.coalesce(F.size("_changes"), F.lit(0)) < 1, F.lit("value: it has no data")),
            self._lack_of_columns(event),
            self._lack_of_keys(F.col("_changes")),
            F.try_element_at(
                F.filter(
                    F.transform("_changes", lambda change: change["problem"]), Column.isNotNull
                ),
                F.lit(1),
            ),
        ]
        if not self.splits:
            problem_text = "value: an event of several rows, which takes a frame with offsets"
            problems.append(F.when(F.size("_changes") > 1, F.lit(problem_text)))
        frame = frame.withColumn("value_problem", F.coalesce(*problems))
        no_change = F.array(F.lit(None).cast(frame.schema["_changes"].dataType.elementType))  # type: ignore[attr-defined]
        sound = F.when(F.col("value_problem").isNull(), F.col("_changes")).otherwise(no_change)
        time = F.timestamp_micros(F.try_multiply(event[dialect.time], F.lit(dialect.time_us)))
        return (
            frame.withColumn(TIMESTAMP, time)
            .select("*", F.posexplode(sound).alias(CHANGE_INDEX, "_change"))
            .withColumn("value_row", F.col("_change.row"))
            .withColumn(DELETED, F.coalesce(F.col("_change.deleted"), F.lit(False)))
            .drop("_changes", "_change")
        )

    def _lack_of_columns(self, event: Column) -> Column:
        """Return a text why an upsert of TiCDC does not have the whole row, null for all other
        events. A row that is too large for a message comes with its key alone, or lies in a file.
        """
        if not self.dialect.listed:
            return F.lit(None).cast("string")
        extension, upserts = event[_TICDC], event["type"].isin(*self.dialect.upserts)
        is_short = extension["onlyHandleKey"] | extension["claimCheckLocation"].isNotNull()
        return F.when(upserts & is_short, F.lit(_SHORT_ROW))

    def _lack_of_keys(self, changes: Column) -> Column:
        """Return a text why an event's row lacks a key column. It is null where the row has all of
        them, be they null, and if the record's own key counts. Of several rows the first one
        counts. ``changes``: as ``_changes`` returns them.
        """
        if not self.keys:
            return F.lit(None).cast("string")
        unknown = F.exists(
            changes,
            lambda change: reduce(or_, (change["row"][name].isNull() for name in self.keys)),
        )
        path = "$.data[0]" if self.dialect.listed else "$.data"
        names = F.json_object_keys(F.get_json_object(F.col("value").cast("string"), path))
        return F.when(unknown, lack_of_keys("value: data", self.keys, names))

    def _changes(self, event: Column) -> Column:
        """Return an event's changes in order: an array of structs of ``row`` (a struct of the
        columns in their types), ``deleted`` (boolean) and ``problem`` (a text or null). It is null
        if the event has no data, and empty if its list of rows is. ``event``: a struct of ``type``,
        ``data`` and perhaps ``old``, whose ``type`` is among ``upserts`` or ``deletes``.
        """
        deletes = event["type"].isin(*self.dialect.deletes)
        if not self.dialect.listed:
            old = event["old"] if self.keys else None
            return F.when(
                event["data"].isNotNull(), self._changes_of_row(event["data"], old, deletes)
            )
        if not self.keys:
            each = F.transform(event["data"], lambda row: self._changes_of_row(row, None, deletes))
        else:
            old_rows = F.coalesce(event["old"], F.array())
            each = F.zip_with(
                event["data"], old_rows, lambda a, b: self._changes_of_row(a, b, deletes)
            )
        return F.flatten(each)

    def _changes_of_row(self, row: Column, old: Column | None, deletes: Column) -> Column:
        """Return the changes of one row as an array of one or two structs of ``row``, ``deleted``
        and ``problem``. An update of the key is two: first the delete of the former key, with nulls
        for all columns but the key's. A value that does not fit its type is null, and gives the
        change a text in ``problem``, which is null otherwise.

        ``row``: a struct of the columns as the event has them. ``old``: the changed columns before,
        a struct or, for ``listed`` rows, a map of texts; null for none. It is None if there is no
        key to compare. ``deletes``: a boolean column, true if the event deletes the row.
        """
        values, problems = [], [F.lit(None).cast("string")]

        def value_of(raw: Column, field: StructField, path: str) -> Column:
            """Return the value of ``raw``, of which a misfit is added to ``problems``."""
            value = self._value(raw, field.dataType)
            shown = misfit_text(F.lit(path), field.dataType, raw.cast("string"))
            lost = raw.isNotNull() & value.isNull()
            problems.append(F.when(lost, F.concat(F.lit("value: "), shown)))
            return value

        former, moves = [], F.lit(False)
        for f in self.fields:
            value = value_of(row[f.name], f, f.name)
            values.append(value.alias(f.name))
            former_value = F.lit(None).cast(f.dataType)
            if old is not None and f.name in self.keys:
                before = value_of(self._former(old, f.name), f, f"old.{f.name}")
                moves = moves | (before.isNotNull() & ~before.eqNullSafe(value))
                former_value = F.coalesce(before, value)
            former.append(former_value.alias(f.name))
        change = _change_struct(F.struct(*values), deletes, F.coalesce(*problems))
        if old is None:
            return F.array(change)
        gone = _change_struct(F.struct(*former), F.lit(True), F.lit(None).cast("string"))
        # A row with a null in its key has not been in the table.
        was_there = moves & ~deletes & ~self._had_null_in_key(old)
        return F.when(was_there, F.array(gone, change)).otherwise(F.array(change))

    def _former(self, old: Column, name: str) -> Column:
        """Return the former value of the column ``name``, as the event has it; null if it was null
        or has not changed. ``old``: as ``_changes_of_row`` takes it.
        """
        return F.try_element_at(old, F.lit(name)) if self.dialect.listed else old[name]

    def _had_null_in_key(self, old: Column) -> Column:
        """Return a boolean column: a changed column of the key was null before. It is false for a
        null ``old`` and for a key of one column. ``old``: as ``_changes_of_row`` takes it.
        """
        if len(self.keys) == 1:
            return F.lit(False)
        changed = (
            F.map_keys(old)
            if self.dialect.listed
            else F.json_object_keys(F.get_json_object(F.col("value").cast("string"), "$.old"))
        )
        nulls = (
            F.array_contains(changed, name) & self._former(old, name).isNull() for name in self.keys
        )
        return F.coalesce(reduce(or_, nulls), F.lit(False))

    def _value(self, raw: Column, type_: DataType) -> Column:
        """Return a value in ``type_``, null where it does not fit. ``raw``: for Canal a text; for
        Maxwell a JSON value, which has the type already.
        """
        return _value_of_text(raw, type_) if self.dialect.listed else raw


def _change_struct(row: Column, deleted: Column, problem: Column) -> Column:
    """Return the struct of one change, with the fields ``row`` (a struct of the columns),
    ``deleted`` (boolean) and ``problem`` (a text, null for none).
    """
    return F.struct(row.alias("row"), deleted.alias("deleted"), problem.alias("problem"))


def _text_columns(columns: StructType) -> StructType:
    """Return the columns with string in place of their types, in order."""
    return StructType([StructField(f.name, StringType()) for f in columns])


def _value_of_text(text: Column, type_: DataType) -> Column:
    """Return the value of a text in ``type_``, null where the text is null or does not fit. Numbers
    are in decimal digits, perhaps with an exponent, booleans ``1``, ``0``, ``true`` or ``false``,
    dates and timestamps in ISO 8601. Digits beyond a decimal's scale are rounded. ``type_``: one of
    ``_TYPES_OF_TEXTS``.
    """
    if isinstance(type_, StringType):
        return text
    if isinstance(type_, BooleanType):
        return F.when(text.isin("1", "true"), F.lit(True)).when(
            text.isin("0", "false"), F.lit(False)
        )
    if isinstance(type_, IntegralType):
        return F.when(text.rlike(r"^[+-]?\d+$"), text.try_cast(type_))
    if isinstance(type_, (FractionalType, DecimalType)):
        number = F.when(text.rlike(NUMBER), text.try_cast(type_))
        too_large = is_infinite(number, type_)
        return number if too_large is None else F.when(~too_large, number)
    return JsonValues({}).convert(text, type_)
