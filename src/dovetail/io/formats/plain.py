"""Formats: the conversion of a record's key or value from bytes to columns and back. Text, bytes,
JSON.

A format is a value: the same one is given to ``from_topic`` and ``to_topic``. It works by Spark
expressions, or by functions over Arrow columns.

JSON is exact. Integers and decimals are JSON numbers of any length. Timestamps are ISO 8601 in UTC
with microseconds, binary is base64, and null fields are written as null. Nothing depends on the
session's time zone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Annotated, ClassVar, Final, Literal, TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BinaryType,
    CharType,
    DataType,
    IntegralType,
    MapType,
    StringType,
    StructField,
    StructType,
    VarcharType,
)

from dovetail.base.columns import quoted
from dovetail.base.json_options import ALL_VALUES
from dovetail.base.validation import Rule, validated
from dovetail.errors import PlanError
from dovetail.io.formats.json_objects import JsonObject, is_json_null, is_json_wrapped
from dovetail.io.formats.json_values import JsonEncoding, refuse_unfit_encodings
from dovetail.plan.types.checks import map_without_text_keys, refuse_duplicates, types_within
from dovetail.plan.types.schemas import parse_columns

Part: TypeAlias = Literal["key", "value"]

Schema: TypeAlias = Annotated[
    StructType | Mapping[str, DataType] | str,
    Rule("a schema: a StructType, a mapping of types, or its text as in SQL"),
]

FRAME_LENGTH: Final = 5
"""The length in bytes of a schema registry's framing: a zero, then the id of the record's
schema."""

_WRAPPED_PROBLEM: Final = (
    "its fields lie in payload, beside their schema, as Kafka Connect writes them: set "
    "schemas.enable=false in the connector's converter, or select payload as the record"
)
"""The problem of a JSON object of ``is_json_wrapped``."""


@dataclass(frozen=True)
class FormatContext:
    """The place where a format is used: a call, and a part of its records."""

    operator: str
    """The name of the call, for errors."""
    part: Part
    """The part of a record that the format reads or writes."""
    topic: str | None = None
    """The topic of the records; None if it is unknown or there are several."""
    keys: tuple[str, ...] = ()
    """The columns of the value that are the key, or a part of it; empty if the record's own key is.
    """
    splits: bool = True
    """True if a record may become more than one row; if False, a record of several changes is
    unreadable.
    """

    def refuse(self, problem: str, remedy: str) -> PlanError:
        """Return, not raise, the ``PlanError`` for a format that cannot be used for this part.
        ``problem``: the rest of a sentence that begins with ``key=`` or ``value=``. ``remedy``:
        what the user can do.
        """
        return PlanError(self.operator, f"{self.part}= {problem}", remedy)


@dataclass(frozen=True)
class Decoding:
    """The steps that turn a column of bytes into columns, as functions on columns."""

    fields: StructType
    """The resulting columns."""
    parsed: Column
    """The first step, an expression over the column of bytes, which is computed once."""
    row: Callable[[Column], Column]
    """A function from ``parsed`` to the columns as a struct, null where the bytes are null or
    unreadable.
    """
    problem: Callable[[Column], Column]
    """A function from ``parsed`` to a text why the bytes are unreadable. Its result counts only for
    unreadable bytes.
    """
    absent: Callable[[Column], Column] | None = field(default=None, kw_only=True)
    """A function from ``parsed`` to a boolean: the bytes say that there is no value. Its result
    counts only where the row is null. None if only null bytes say so.
    """

    is_of_changes: ClassVar[bool] = False
    """True if ``decode`` also makes ``_deleted``, ``_timestamp`` and ``_change_index``. It may then
    add or leave out rows, and need not add ``<part>_absent``.
    """

    def decode(self, records: DataFrame, part: Part) -> DataFrame:
        """Return the records with three more columns, where ``<part>`` is ``key`` or ``value``.
        ``<part>_row`` is a struct of ``fields``, null if absent or unreadable. The boolean
        ``<part>_absent`` is true for null bytes, and for bytes that mean no value by ``absent``.
        ``<part>_problem`` is a text for an unreadable value, else null.

        ``records`` must have the column of ``part``, in bytes.
        """
        parsed, row, absent = (f"{part}_{name}" for name in ("parsed", "row", "absent"))
        frame = records.withColumn(parsed, self.parsed)
        frame = frame.withColumn(row, self.row(F.col(parsed)))
        is_absent = F.col(part).isNull()
        if self.absent is not None:
            is_absent = is_absent | (F.col(row).isNull() & self.absent(F.col(parsed)))
        frame = frame.withColumn(absent, is_absent)
        unread = ~F.col(absent) & F.col(row).isNull()
        problem = F.concat(F.lit(f"{part}: "), self.problem(F.col(parsed)))
        return frame.withColumn(f"{part}_problem", F.when(unread, problem)).drop(parsed)


def keep_rows(frame: DataFrame, condition: Column) -> DataFrame:
    """Return the rows of ``frame`` for which ``condition`` is true, in order; null counts as false.
    Use it for a condition on the result of reading records, which Spark must not push below the
    reading.
    """
    # Spark would push the condition below the reading, and so read each record once more for each
    # step on the way. It does not push a condition that depends on the partition.
    return frame.where(F.when(F.spark_partition_id() >= 0, condition))


CHANGE_INDEX: Final = "_change_index"
"""The column with the index of a change among those of its record, from 0."""

Unsent: TypeAlias = Literal["fail", "keep", "keep_or_null"]


class Format(ABC):
    """A conversion from bytes to columns, and from columns to bytes."""

    @abstractmethod
    def decoding(self, context: FormatContext) -> Decoding:
        """Return the steps that read the column named by ``context.part``. Nothing of the records
        is read yet, but a registry is asked.

        Raises ``PlanError`` if the format cannot read it, ``ConfigurationError`` for a registry
        that does not answer or functions that the session lacks.
        """

    @abstractmethod
    def encode(self, context: FormatContext, columns: StructType) -> Column:
        """Return one column of text or bytes in which ``columns`` of a frame are encoded. It is
        null only where the format writes a single column as a plain value, and that is null. A
        schema may be registered.

        Raises ``PlanError`` for columns that do not suit the format, and for a format that is only
        read. Raises ``ConfigurationError`` for a registry that does not answer or functions that
        the session lacks.
        """

    def key_format(self, key: Format) -> Format:
        """Return the format by which a record's key is read if the record's value has this format.
        ``key``: the format that the user gave. It is returned unchanged unless a subclass changes
        it.
        """
        return key

    @property
    def grows(self) -> bool:
        """True if the format may have more columns when a query is built again, for it takes them
        from the latest schema.
        """
        return False

    @property
    def unsent(self) -> Unsent:
        """The treatment of a change that leaves out columns: ``"fail"`` makes it unreadable, with
        ``"keep"`` the row keeps its former values. With ``"keep_or_null"`` it does, too, and
        without a row the values are null.
        """
        return "fail"

    @property
    def keeps(self) -> bool:
        """True if columns that a change leaves out keep their former values.

        The names of the columns that a change leaves out are then in its column ``_unsent``.
        """
        return self.unsent != "fail"

    @property
    def transacts(self) -> bool:
        """True if the rows of a key are counted within a transaction, so that a delete finds the
        row that it means.

        The part of each change in its transaction is then in a column ``_transaction``.
        """
        return False

    @property
    def mixes_clocks(self) -> bool:
        """True if some deletes have the time of their record where other changes have their own.
        The record's is later: the time at which it was written.
        """
        return False


ReadFormat: TypeAlias = Annotated[
    Literal["string", "bytes"] | StructType | Mapping[str, DataType] | Format,
    Rule(
        "'string', 'bytes', the schema of a JSON object, or a format such as dt.formats.avro(...)"
    ),
]
"""The ways to read bytes. ``"string"`` and ``"bytes"`` give one column, named ``key`` or ``value``.
A schema gives its fields, read from a JSON object as ``dt.formats.json`` does."""

WriteFormat: TypeAlias = Annotated[
    Literal["string", "bytes", "json"] | Format,
    Rule("'string', 'bytes', 'json' or a format such as dt.formats.avro(...)"),
]
"""The ways to write bytes. ``"string"`` takes one column of text or integers, ``"bytes"`` one of
binary. ``"json"`` takes any number of columns of any type, the fields of an object."""


def format_of(shorthand: ReadFormat | WriteFormat) -> Format:
    """Return the format that a shorthand stands for. A format stands for itself.

    - ``"string"``, ``"bytes"``: one column of text or of bytes.
    - ``"json"``: JSON objects, for writing only; its ``decoding`` raises ``PlanError``.
    - A schema, as a ``StructType`` or a mapping of names to Spark's types: JSON objects with these
      fields.

    Raises ``KeyError`` for another text, which the arguments' check refuses before. Raises
    ``PlanError`` for a schema with types that JSON is not read in, or with names that differ in
    case alone, at any depth.
    """
    if isinstance(shorthand, Format):
        return shorthand
    if isinstance(shorthand, str):
        return {"string": _TEXT, "bytes": _BYTES, "json": JsonFormat(None)}[shorthand]
    return JsonFormat(struct_of("value", shorthand))


def struct_of(operator: str, schema: Schema) -> StructType:
    """Return a schema as a ``StructType``. It may be one already, a mapping of types by name, or a
    text as in SQL. ``operator``: the name of the call in errors.

    Raises ``PlanError`` for a text that is no schema, or without a session. Also for types that
    JSON is not read in, and for names that differ in case alone, at any depth.
    """
    if isinstance(schema, StructType):
        columns = schema
    elif isinstance(schema, Mapping):
        columns = StructType([StructField(name, kind) for name, kind in schema.items()])
    else:
        columns = parse_columns(operator, "schema=", schema)
    for column in columns:
        for type_ in types_within(column.dataType):
            _refuse_type(operator, column.name, type_)
    for type_ in types_within(columns):
        if isinstance(type_, StructType):
            refuse_duplicates(operator, type_.names, "Declare one of them: Spark ignores case")
    return columns


def _refuse_type(operator: str, name: str, type_: DataType) -> None:
    """Raise ``PlanError`` for a type in which JSON is not read: a map with other keys than strings,
    ``char`` and ``varchar``. Parts of ``type_`` are not checked. ``operator``: the name of the call
    in errors. ``name``: the column that has the type.
    """
    shown = type_.simpleString()
    if isinstance(type_, MapType) and type(type_.keyType) is not StringType:
        raise PlanError(
            operator,
            f"schema= has column {name!r} with a {shown}, and the names in JSON are texts",
            "Declare the map's keys as string",
        )
    if isinstance(type_, (CharType, VarcharType)):
        raise PlanError(
            operator, f"schema= has column {name!r} with a {shown}", "Declare it as string"
        )


@dataclass(frozen=True)
class _SingleColumn(Format):
    """The format of one column as it is: text in UTF-8, or bytes."""

    name: Literal["string", "bytes"]
    """The shorthand of the format: text or bytes."""
    writable_types: tuple[type[DataType], ...]
    """The types of columns that can be written."""

    def decoding(self, context: FormatContext) -> Decoding:
        """Return the steps that read one column, named ``key`` or ``value`` by ``context.part``.
        Nothing else of ``context`` is used. The column is a string or, for the format ``bytes``,
        binary, which is never unreadable. Text that is not UTF-8 is unreadable.

        Only null is no value; empty bytes and texts are values.
        """
        text = self.name == "string"
        value = F.col(context.part).cast("string") if text else F.col(context.part)
        fits = F.is_valid_utf8(value) if text else F.col(context.part).isNotNull()
        return Decoding(
            StructType([StructField(context.part, StringType() if text else BinaryType())]),
            F.when(fits, value),
            lambda parsed: F.when(parsed.isNotNull(), F.struct(parsed.alias(context.part))),
            lambda _: F.lit("not text in UTF-8"),
        )

    def encode(self, context: FormatContext, columns: StructType) -> Column:
        """Return the only column as string or, for the format ``bytes``, as binary; null stays
        null. Raises ``PlanError`` for no or several columns, and for a type that is not in
        ``writable_types``.
        """
        kinds = [field.dataType for field in columns]
        if len(kinds) != 1 or not isinstance(kinds[0], self.writable_types):
            shown_columns = ", ".join(f"{f.name} {f.dataType.simpleString()}" for f in columns)
            raise PlanError(
                context.operator,
                f'{context.part}="{self.name}" does not suit the columns {shown_columns}',
                f'Write them with {context.part}="json"',
            )
        return F.col(quoted(columns.names[0])).cast("string" if self.name == "string" else "binary")


_TEXT: Final = _SingleColumn("string", (StringType, IntegralType))
_BYTES: Final = _SingleColumn("bytes", (BinaryType,))


@dataclass(frozen=True)
class JsonFormat(Format):
    """One JSON object."""

    schema: StructType | None
    """The object's fields; None if the format is only for writing."""
    framed: bool = False
    """True if the object follows the five bytes of a schema registry."""
    encodings: Mapping[str, JsonEncoding] = field(default_factory=dict)
    """The encodings of dates and timestamps by the dotted path of their field."""

    def decoding(self, context: FormatContext) -> Decoding:
        """Return the steps that read the object's fields. A JSON null is a record without a value.

        Unless the schema has a field ``schema`` or ``payload``, Kafka Connect's wrapped objects are
        told apart. An object with a null ``payload`` and no other field but perhaps ``schema`` is a
        record without a value. One of ``schema`` and a ``payload`` that is not null is unreadable.
        The case of field names counts.

        Raises ``PlanError`` if the format has no schema.
        """
        if self.schema is None:
            raise context.refuse(
                "is JSON of no declared schema",
                "Declare its fields: dt.formats.json('id long, name string')",
            )
        text = json_text(F.col(context.part), framed=self.framed)
        object_ = JsonObject(text, self.schema, self.encodings)
        problem_text = "not one JSON object whose fields fit the schema"
        if self.framed:
            problem_text += ", after the five bytes of a schema registry"
        bare = {"schema", "payload"}.isdisjoint(self.schema.names)

        def row(parsed: Column) -> Column:
            """Return the object as a struct of the schema's fields; null if it is unreadable,
            JSON's null or wrapped in ``payload``. ``parsed``: the column of ``JsonObject.parsed``,
            a struct of ``object`` and ``_malformed``.
            """
            object_row = object_.row(parsed)
            if not bare or not object_.schema.fields:
                return object_row
            nulls = (parsed["object"][name].isNull() for name in object_.schema.names)
            empty = reduce(Column.__and__, nulls)
            outside = is_json_null(text) | is_json_wrapped(text)
            return F.when(~F.when(empty, outside).otherwise(F.lit(False)), object_row)

        return Decoding(
            self.schema,
            object_.parsed,
            row,
            lambda parsed: F.coalesce(
                object_.problem(parsed),
                F.when(is_json_wrapped(text), F.lit(_WRAPPED_PROBLEM)) if bare else F.lit(None),
                with_framing_hint(F.col(context.part), problem_text, framed=self.framed),
            ),
            absent=lambda _: is_json_null(text, wrapped=bare),
        )

    def encode(self, context: FormatContext, columns: StructType) -> Column:
        """Return the columns as the text of a JSON object, null fields included. ``self.schema``
        does not count. Raises ``PlanError`` for ``framed`` and ``encodings``, which are for reading
        only, and for maps whose keys have no text in JSON.
        """
        for argument, value in (("framed", self.framed), ("encodings", self.encodings)):
            if value:
                raise context.refuse(
                    f"is JSON with {argument}=, which is for reading", f"Leave {argument}= out"
                )
        for column in columns:
            unwritten = map_without_text_keys(column.dataType)
            if unwritten is not None:
                raise context.refuse(
                    f"is JSON, which has no text for the keys of {unwritten.simpleString()} in "
                    f"column {column.name!r}",
                    "Make texts of the keys by F.transform_keys()",
                )
        return F.to_json(F.struct(*(F.col(quoted(name)) for name in columns.names)), ALL_VALUES)


@validated
def json(
    schema: Schema | None = None,
    *,
    framed: bool = False,
    encodings: Mapping[str, JsonEncoding] | None = None,
) -> JsonFormat:
    """Describe records that are one JSON object, as the format of a key or value.

    ``from_topic``, ``from_records`` and ``read_topic`` read the format, and ``to_topic``
    writes it. A schema alone is a shorthand for ``json(schema)``, and ``"json"`` for
    ``json()`` in ``to_topic``.

    Parameters
    ----------
    schema : str, StructType or mapping, optional
        The fields that become columns: a text as in SQL (``"id long, city string"``), or a
        mapping of names to Spark's types. Reading needs it. A text needs a Spark session.
    framed : bool, default False
        True if the object follows the five bytes of a schema registry (JSON Schema). They
        are skipped. It is for reading only.
    encodings : mapping of str to str, optional
        The encodings of dates and timestamps that are numbers: ``{"at": "epoch_millis"}``.
        It is for reading only. By default they are texts.

    Returns
    -------
    JsonFormat
        The format, for ``key=`` and ``value=``.

    Raises
    ------
    PlanError
        If ``schema`` is no schema, or an encoding does not fit it: an unknown field,
        another type, or no schema at all. A sink raises it for ``framed`` and
        ``encodings``.

    See Also
    --------
    avro : Records in Avro.
    protobuf : Messages of Protobuf.
    debezium : Debezium's change events.
    Table.from_records : Read a table from a frame of records.

    Notes
    -----
    Absent fields are null, and unknown ones are ignored. The case of names counts. The JSON
    ``null`` is a record without a value, and so is ``{"payload": null}``. A record with a
    field that does not fit its type cannot be read. The reader's option ``malformed=`` says
    what becomes of it.

    Dates and timestamps are texts in ISO 8601, ``"2024-05-01T10:00:00Z"``. A text without a
    zone is in UTC. An encoding counts from 1970 in UTC:

    - a timestamp ``"epoch_seconds"``, ``"epoch_millis"``, ``"epoch_micros"`` or
      ``"epoch_nanos"``;
    - a date ``"epoch_days"``.

    Digits finer than microseconds are cut off. A field of a struct is named with a dot,
    ``"order.at"``, also within arrays and maps.

    Examples
    --------
    >>> import dovetail as dt
    >>> from pyspark.sql import functions as F
    >>> records = spark.createDataFrame([('{"id": 7, "at": 1714557600000}',)], "value string")
    >>> orders = dt.Table.from_records(
    ...     records,
    ...     key_columns="id",
    ...     value=dt.formats.json(
    ...         "id long, at timestamp, city string", encodings={"at": "epoch_millis"}
    ...     ),
    ...     timestamp=F.col("at"),
    ...     name="orders",
    ... )
    >>> orders.changelog().select("id", F.unix_seconds("at").alias("at"), "city").collect()
    [Row(id=7, at=1714557600, city=None)]
    """
    encoding_by_column = dict(encodings or {})
    columns = None if schema is None else struct_of("json", schema)
    if encoding_by_column and columns is None:
        raise PlanError("json", "encodings= is given without schema=", "Declare the fields")
    if columns is not None:
        refuse_unfit_encodings("json", encoding_by_column, columns)
    return JsonFormat(columns, framed, encoding_by_column)


def with_framing_hint(column: Column, problem_text: str, *, framed: bool) -> Column:
    """Return a column with the text ``problem_text`` for unreadable bytes. If ``framed`` is False
    and the bytes are JSON behind a registry's framing, a hint at ``framed=True`` follows.
    ``column``: the bytes.
    """
    if framed:
        return F.lit(problem_text)
    frame = F.hex(F.substring(column, 1, 1)) == "00"
    object_ = F.substring(column, FRAME_LENGTH + 1, 1).cast("string") == "{"
    hint = f"{problem_text}: it is in a schema registry's framing, which framed=True passes over"
    return F.when(frame & object_, hint).otherwise(problem_text)


def json_text(column: Column, *, framed: bool) -> Column:
    """Return the column of bytes as text, null for null. With ``framed`` it is the text behind a
    registry's five bytes, null if the first byte is not zero, and empty if nothing follows. Bytes
    that are no UTF-8 give an invalid text, not null.
    """
    if framed:
        frame = F.hex(F.substring(column, 1, 1)) == "00"
        column = F.when(frame, F.substring(column, FRAME_LENGTH + 1, 1 << 30))
    return column.cast("string")
