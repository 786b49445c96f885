"""Records in Avro, alone or in a schema registry's framing, read by Spark's own functions.

A framed record begins with a zero byte and the id of the schema that wrote it. The registry's
schemas are read when a query is built, because Spark's functions take schemas as constants.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Annotated, Any, Final, TypeAlias

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro, to_avro
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from dovetail.base.columns import quoted
from dovetail.base.validation import Rule, Text, validated
from dovetail.errors import ConfigurationError, PlanError
from dovetail.io.formats.avro_schemas import (
    Avro,
    resolve_references,
    schema_text,
    widens,
    with_units_of_writer,
)
from dovetail.io.formats.plain import FRAME_LENGTH, Decoding, Format, FormatContext
from dovetail.io.formats.registry import Registry
from dovetail.plan.types.checks import refuse_duplicates, types_within
from dovetail.platform.spark_errors import reason

_NEEDS_JAR: Final = (
    "Start the session with Spark's Avro functions: dt.configure(..., avro=True), or "
    "spark.jars.packages=org.apache.spark:spark-avro_2.13:<Spark's version>"
)
_NOT_LOADED: Final = "AVRO_NOT_LOADED_SQL_FUNCTIONS_UNUSABLE"
_WIDE_ID_BYTES: Final = 8
"""The length of a schema's id in bytes, in the framing that Apicurio's serializers write by
default."""
_READ: Final = "_read"
"""The name of a marker field with the default true. It is null exactly where Spark could not read
the record. More ``_`` stand in front if the record has such a field."""
_REST: Final = "_rest"
"""The name of a field with one byte more than a value has."""
_FRAMING_MARKS: Final = (b"\0", b"\xc3\x01", b"\x03\x00", b"\x03\x05")
"""The first bytes of a registry's framing, of Avro's encoding of single objects, and of AWS Glue's
framing, without compression and with it."""
_OTHER_UNITS: Final = (
    "its schema, number %d, has a date, a time or a decimal that is of another kind in the schema "
    "to read by, or of fewer digits there: give one that takes both to dt.formats.avro"
)
"""The problem of a record whose schema has other units than the schema to read by."""
_AVRO_NAME: Final = re.compile("[A-Za-z_][A-Za-z0-9_]*")
_PRIMITIVES: Final = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
"""The names that no record may have, because Avro's plain types do."""
_PLAIN_TYPES: Final[Mapping[type[DataType], Any]] = {
    BooleanType: "boolean",
    ByteType: "int",
    ShortType: "int",
    IntegerType: "int",
    LongType: "long",
    FloatType: "float",
    DoubleType: "double",
    StringType: "string",
    BinaryType: "bytes",
    DateType: {"type": "int", "logicalType": "date"},
    TimestampType: {"type": "long", "logicalType": "timestamp-micros"},
    TimestampNTZType: {"type": "long", "logicalType": "local-timestamp-micros"},
}


def _is_schema(text: str) -> bool:
    """Return True if ``text`` is JSON of an object or of a string, the two forms of an Avro schema
    that ``dt.formats.avro`` takes. Its content is not checked. A bare word without quotes, such as
    ``long``, is no JSON. A union, which is a JSON list, gives False: it has no columns.
    """
    return _is_json(text) and isinstance(json.loads(text), (dict, str))


def _is_json(text: str) -> bool:
    """Return True if a text is JSON."""
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


AvroSchema: TypeAlias = Annotated[
    str | Registry, Rule("a schema of Avro as JSON, or dt.formats.registry(...)", bool)
]


@dataclass(frozen=True)
class AvroFormat(Format):
    """Avro of one schema, or of a registry's subject."""

    schema: str | None
    """The declared schema as JSON; None to use the subject's latest version."""
    registry: Registry | None
    """The registry whose framing the records have; None for records without a framing."""
    subject: str | None
    """The registry's subject; None for ``<topic>-key`` and ``<topic>-value``."""

    def decoding(self, context: FormatContext) -> Decoding:
        """Return the steps that read a record's fields, or a plain value as one column named
        ``key`` or ``value``, by ``context.part``. A record is decoded by the schema that wrote it,
        into the declared schema or the subject's latest. Times and decimals keep the unit and the
        scale of the writer.

        Raises ``PlanError`` for a schema that is a union as a whole, such as ``["null", "long"]``.
        Also for a schema that Spark refuses, field names that differ in case alone, and a registry
        without a subject or topic. Raises ``ConfigurationError`` for an unknown subject, a registry
        that does not answer, and a session without Avro functions.
        """
        writers = self.writers(context)
        reader = json.loads(self.schema or list(writers.values())[-1])
        is_record = isinstance(reader, dict) and reader.get("type") == "record"
        if isinstance(reader, list):
            raise context.refuse("is a union in Avro", "Give the schema of a record")
        type_ = spark_type_of_schema(context, json.dumps(reader))
        fields = (
            type_
            if isinstance(type_, StructType)
            else StructType([StructField(context.part, type_)])
        )
        refuse_same_names(context, fields)
        marked = _READ
        while marked in fields.names:
            marked = f"_{marked}"
        if is_record:
            marker = {"name": marked, "type": "boolean", "default": True}
            reader = {**reader, "fields": [*reader["fields"], marker]}
        value, schema_id = self.body_and_schema_id(context)
        read_type = (
            StructType([*fields, StructField(marked, BooleanType())]) if is_record else type_
        )
        rows, unfit = list[Column](), list[int | None]()
        for id_, text in writers.items():
            read = _decode_into(context, value, text, reader, read_type)
            if read is None:
                unfit.append(id_)
            else:
                rows.append(F.when(F.lit(True) if id_ is None else schema_id == id_, read))
        framed = F.lit(False) if self.registry else _seems_framed(value, writers[None])
        decoded = F.coalesce(*rows) if rows else F.lit(None).cast(read_type)
        parsed = F.struct(schema_id.alias("number"), decoded.alias("row"), framed.alias("framed"))

        def row(parsed: Column) -> Column:
            """Return the columns as a struct from the column ``parsed``; null if unreadable. A
            value that is no record is one column, named ``key`` or ``value``.

            ``parsed``: a struct. Its ``number`` is the schema's id (a long or null), ``row`` the
            record or value in the reader's schema. ``framed`` is true if the bytes seem to have a
            framing that is not expected; the result is then null.
            """
            if not is_record:
                is_read, columns = parsed["row"].isNotNull(), [parsed["row"].alias(context.part)]
            else:
                is_read = parsed["row"][marked]
                columns = [parsed["row"][name].alias(name) for name in fields.names]
            return F.when(is_read & ~parsed["framed"], F.struct(*columns))

        of_record = self.problem_function(context, list(writers))

        def problem(parsed: Column) -> Column:
            """Return a text why the record ``parsed`` is unreadable, never null. ``parsed``: a
            struct whose field ``number`` is the id of the schema that wrote the record, a long or
            null.
            """
            other = F.format_string(_OTHER_UNITS, parsed["number"])
            is_other = parsed["number"].isin(unfit) if unfit else F.lit(False)
            return F.when(is_other, other).otherwise(of_record(parsed))

        return Decoding(fields, parsed, row, problem)

    @property
    def grows(self) -> bool:
        """True if the columns are those of the subject's latest version, because no schema is
        declared. A rebuilt query may then have more columns.
        """
        return self.schema is None

    def encode(self, context: FormatContext, columns: StructType) -> Column:
        """Return the columns encoded as a record or, if the schema is no record, the only column
        encoded as a value. The result is bytes; it is null only where such an only column is null.
        The query fails for a null in a field that the schema does not make nullable.

        With a registry, register the schema if it is new, and put the framing before the bytes: a
        zero byte and the four bytes of the schema's id. Raises ``PlanError`` for columns that do
        not fit the schema, and for types and names that Avro lacks. Raises ``ConfigurationError``
        for a registry that does not answer or take the schema, and a session without Avro
        functions.
        """
        schema = self.schema or json.dumps(schema_of(context, columns))
        _refuse_columns(context, schema, columns)
        value = F.struct(*(F.col(quoted(name)) for name in columns.names))
        if not isinstance(spark_type_of_schema(context, schema), StructType):
            value = F.col(quoted(columns.names[0]))
        written = to_avro(value, schema)
        if self.registry is None:
            return written
        schema_id = self.registry.id_of(self._subject(context), schema, "AVRO")
        return F.concat(F.lit(bytes(1) + schema_id.to_bytes(4, "big")), written)

    def writers(self, context: FormatContext) -> dict[int | None, str]:
        """Return the schemas, as JSON, that may have written records, by id. They are those of all
        versions of the subject, in the order of ``Registry.versions``: the latest is the last.
        Without a registry, the only one is the declared schema, by None.

        Raises ``PlanError`` if neither a subject nor a topic is known, or if a version's schema is
        no JSON, as of Protobuf. Raises ``ConfigurationError`` if the registry does not have the
        subject or does not answer.
        """
        if self.registry is None:
            assert self.schema is not None
            return {None: self.schema}
        versions = self.registry.versions(self._subject(context))
        for version in versions:
            if not _is_json(version.schema):
                raise context.refuse(
                    f"is Avro, and version {version.version} of {self._subject(context)!r} is not",
                    "Name another subject in subject=, or read it with dt.formats.protobuf",
                )
        return {version.id: version.schema for version in versions}

    def body_and_schema_id(self, context: FormatContext) -> tuple[Column, Column]:
        """Return two columns over the bytes of a record's key or value: the Avro bytes behind the
        framing, and the id of the schema, a long. The id is null where the record has no framing,
        whose bytes then mean nothing. Without a registry, the bytes are the whole record, and the
        id is null. Where the key or value is null, so are both columns.
        """
        value = F.col(context.part)
        if self.registry is None:
            return value, F.lit(None).cast("long")
        return F.substring(value, FRAME_LENGTH + 1, (1 << 31) - 1), _schema_id(value)

    def _subject(self, context: FormatContext) -> str:
        """Return the name of the registry's subject: ``subject``, else ``<topic>-<part>``. Raises
        ``PlanError`` if neither ``subject`` nor the topic is known.
        """
        if self.subject is None and context.topic is None:
            raise context.refuse(
                "is of a registry, and the records are of no known topic",
                "Name the subject in subject=",
            )
        return self.subject or f"{context.topic}-{context.part}"

    def problem_function(
        self, context: FormatContext, schema_ids: list[int | None]
    ) -> Callable[[Column], Column]:
        """Return a function that makes a column of texts why a record is unreadable, never null. It
        is for unreadable records alone. Its argument is a struct with the field ``number``, the id
        of the record's schema or null.

        ``schema_ids``: the ids of the schemas that the subject had when the query was built. Raises
        ``PlanError`` with a registry if neither a subject nor a topic is known.
        """
        value, problem_text = F.col(context.part), "not a record of its Avro schema"
        if self.registry is None:
            hint = (
                f"{problem_text}; if it is in a schema registry's framing, as its first byte is, "
                "give it"
            )
            framed = F.startswith(value, F.lit(b"\0"))
            return lambda _: F.when(framed, f"{hint} in registry=").otherwise(problem_text)
        subject = self._subject(context)

        def problem(parsed: Column) -> Column:
            """Return the problem by the framing and the schema's id, ``parsed["number"]``, of an
            unreadable record.
            """
            schema_id = parsed["number"]
            unknown = F.format_string(
                f"its schema, number %d, is none that subject {subject} had in the registry when "
                "the query started; if it is newer, start the query again",
                schema_id,
            )
            wide = F.conv(F.hex(F.substring(value, 2, _WIDE_ID_BYTES)), 16, 10)
            others = F.format_string(
                "not in the framing of a schema registry, which has four bytes for the schema's "
                "number: it has eight bytes, for number %s, as Apicurio's own serializers write; "
                "have them write four (apicurio.registry.use-id, id-handler)",
                wide,
            )
            is_wide = (
                (schema_id == 0) & ~schema_id.isin(schema_ids) & (F.length(value) > _WIDE_ID_BYTES)
            )
            return (
                F.when(
                    schema_id.isNull(),
                    F.when(
                        F.startswith(value, F.lit(b"{")),
                        "JSON, not Avro in the framing of a schema registry",
                    ).otherwise("not in the framing of a schema registry"),
                )
                .when(is_wide, others)
                .when(~schema_id.isin(schema_ids), unknown)
                .otherwise(F.format_string("not a record of its schema, number %d", schema_id))
            )

        return problem


@validated
def avro(
    schema: AvroSchema | None = None,
    *,
    registry: Registry | None = None,
    subject: Text | None = None,
) -> AvroFormat:
    """Describe records in Avro, as the format of a key or value.

    A record's fields become columns, by the rules of Spark's Avro functions. The session
    needs these functions: ``dt.configure(..., avro=True)``.

    Parameters
    ----------
    schema : str or Registry, optional
        The schema as JSON. Records are read and written by it. A registry in this place is
        ``registry=``, without a schema.
    registry : Registry, optional
        The schema registry, made by ``dt.formats.registry``. Each record then begins with the
        registry's framing: a zero byte and the four bytes of its schema's id.
    subject : str, optional
        The registry's name for the versions of the schema. By default ``<topic>-key`` for a
        key, and ``<topic>-value`` for a value.

    Returns
    -------
    AvroFormat
        The format, for ``key=`` and ``value=``. The registry is not asked yet.

    Raises
    ------
    PlanError
        If neither a schema nor a registry is given, a registry is given twice, or a subject
        comes without a registry. A reader or a sink raises it for a schema or columns that
        do not fit.
    ConfigurationError
        In a reader or a sink, if the registry does not answer, or the session lacks Spark's
        Avro functions.

    See Also
    --------
    registry : Connect to a schema registry.
    json : Records that are one JSON object.
    debezium : Debezium's change events, in Avro with ``avro=``.

    Notes
    -----
    With a registry, each record is read by the schema that wrote it, which is a version of
    the subject. Avro's rules turn its fields into those of the reading schema. That is
    ``schema``, or without it the subject's latest version. Missing fields have their
    defaults, and types widen. Times and decimals are read in the unit and the scale that
    they were written in.

    The versions are read while a query is built. A record of a newer version cannot be read
    until the query is started again.

    Without ``schema``, records are written with a schema made of the columns, every field
    nullable. The written schema is registered, unless the registry has it.

    Examples
    --------
    >>> import dovetail as dt
    >>> schema = '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}'
    >>> dt.formats.avro(schema).registry is None
    True
    >>> dt.formats.avro(dt.formats.registry("schemas.json"), subject="orders")
    AvroFormat(schema=None, registry=FileRegistry(path='schemas.json'), subject='orders')
    """
    if isinstance(schema, Registry):
        if registry is not None:
            raise PlanError("avro", "a registry is given twice", "Give it once")
        schema, registry = None, schema
    if schema is None and registry is None:
        raise PlanError("avro", "neither a schema nor a registry is given", "Give one of them")
    if schema is not None and not _is_schema(schema):
        raise PlanError(
            "avro", "schema= is not the JSON of a schema", "Give its text, as it stands in an .avsc"
        )
    if subject is not None and registry is None:
        raise PlanError("avro", "subject= is given without a registry", "Give registry=, too")
    return AvroFormat(schema, registry, subject)


def decode_avro(value: Column, writer: str, reader: str) -> Column:
    """Return the bytes ``value``, which the schema ``writer`` wrote, decoded into the shape of the
    schema ``reader``. Both schemas are JSON. Bytes that do not fit give null or, if ``reader`` is a
    record, a struct of nulls. Null gives null, and bytes behind the value are ignored.

    Fields are matched by name at every depth, with defaults and promotions, as Avro resolves them.
    If Avro cannot resolve the two schemas, no bytes fit; nothing is raised.
    """
    return from_avro(value, writer, {"mode": "PERMISSIVE", "avroSchema": reader})


def _decode_into(
    context: FormatContext, value: Column, writer: str, reader: Avro, type_: DataType
) -> Column | None:
    """Return Avro bytes decoded from the schema ``writer`` into ``type_``, with times and decimals
    read in the writer's units and then cast. Bytes that do not fit give null or, for a record, a
    struct of nulls. A record with a decimal that has too many digits for ``type_`` is null as a
    whole.

    Return None if no record of this writer can be read:

    - A logical type of the writer stands for another kind of value in the reader.
    - A decimal of ``type_`` has a smaller scale than the writer's.
    - A decimal of ``type_`` has fewer digits before the point, and a map is anywhere in the type.

    ``value``: the bytes. ``writer``: the schema as JSON. ``reader``: the schema to read by, as JSON
    data. ``type_``: Spark's type of ``reader``. Raises ``PlanError`` for a schema that Spark
    refuses.
    """
    wanted = resolve_references(reader)
    read = with_units_of_writer(resolve_references(json.loads(writer)), wanted)
    if read == wanted:
        return decode_avro(value, writer, json.dumps(reader))
    text = schema_text(read)
    decoded, written_type = decode_avro(value, writer, text), spark_type_of_schema(context, text)
    # Casts by their texts, because all parts may be null.
    if widens(written_type, type_):
        return decoded.cast(type_.simpleString())
    # Spark does not compare maps.
    if not widens(written_type, type_, whole=False) or _has_maps(written_type):
        return None

    def fitted_row(row: Column) -> Column:
        """Return the row in the reader's type; null if a decimal in it has too many digits."""
        fitted = row.try_cast(type_.simpleString())
        return F.when(fitted.try_cast(written_type.simpleString()).eqNullSafe(row), fitted)

    # Within a transform of a list it is decoded once.
    return F.transform(F.array(decoded), fitted_row)[0]


def _has_maps(type_: DataType) -> bool:
    """Return True if ``type_`` is a map or contains one, at any depth."""
    return any(isinstance(part, MapType) for part in types_within(type_))


def refuse_same_names(context: FormatContext, columns: StructType) -> None:
    """Raise ``PlanError`` if two fields of one struct have names that differ in case alone, at any
    depth. ``columns``: the fields of an Avro record.
    """
    for type_ in types_within(columns):
        if isinstance(type_, StructType):
            refuse_duplicates(
                context.operator,
                type_.names,
                "Declare one of them in the schema to read by: Spark ignores case in names",
            )


def _seems_framed(value: Column, schema: str) -> Column:
    """Return a boolean column, never null: the bytes ``value`` seem to be in a framing, though none
    is expected. They begin as the framing of a registry, of Avro's single objects or of AWS Glue
    does. A value of ``schema``, which is JSON, can also be read from them, and at least one byte is
    left behind it. It is false for null, and for bytes from which no value can be read.
    """
    # Spark's functions ignore bytes behind a value. So they would take a framing for the value,
    # such as its first zero for the number 0.
    rest = {"name": _REST, "type": {"type": "fixed", "name": f"{_REST}_byte", "size": 1}}
    fields = [{"name": "value", "type": json.loads(schema)}, rest]
    longer = json.dumps({"type": "record", "name": f"{_REST}_of", "fields": fields})
    is_marked = reduce(or_, (F.startswith(value, F.lit(mark)) for mark in _FRAMING_MARKS))
    goes_on = decode_avro(value, longer, longer)[_REST].isNotNull()
    return F.coalesce(F.when(is_marked, goes_on), F.lit(False))


def schema_of(context: FormatContext, columns: StructType) -> dict[str, Any]:
    """Return the Avro schema, as JSON data, of a record with these columns, all nullable with the
    default null. The record is named ``Key`` or ``Value``. Raises ``PlanError`` for a type or a
    name that Avro lacks.
    """
    name = context.part.capitalize()
    names = {name, *_PRIMITIVES}
    return {
        "type": "record",
        "name": name,
        "fields": [
            {
                "name": _checked_name(context, f.name),
                "type": ["null", _avro_type(context, f, names)],
                "default": None,
            }
            for f in columns
        ],
    }


def _avro_type(context: FormatContext, field: StructField, names: set[str], path: str = "") -> Any:
    """Return the Avro schema of the type of ``field``, as JSON data, not nullable; the parts within
    are. A record is named by ``path`` and the field, with ``_`` behind it as often as that name is
    taken. ``names``: the names of records so far, to which new ones are added. ``path``: the names
    of the enclosing fields, each followed by ``_``.

    Raises ``PlanError`` for a type or a name that Avro lacks.
    """
    type_, name = field.dataType, f"{path}{field.name}"
    if type(type_) in _PLAIN_TYPES:
        return _PLAIN_TYPES[type(type_)]
    if isinstance(type_, DecimalType):
        digits = {"precision": type_.precision, "scale": type_.scale}
        return {"type": "bytes", "logicalType": "decimal", **digits}
    if isinstance(type_, ArrayType):
        inner = StructField("element", type_.elementType)
        return {"type": "array", "items": ["null", _avro_type(context, inner, names, f"{name}_")]}
    if isinstance(type_, MapType) and isinstance(type_.keyType, StringType):
        inner = StructField("value", type_.valueType)
        return {"type": "map", "values": ["null", _avro_type(context, inner, names, f"{name}_")]}
    if isinstance(type_, StructType):
        record_name = _checked_name(context, name)
        while record_name in names:
            record_name += "_"
        names.add(record_name)
        fields = [
            {
                "name": _checked_name(context, f.name),
                "type": ["null", _avro_type(context, f, names, f"{name}_")],
            }
            for f in type_
        ]
        return {"type": "record", "name": record_name, "fields": fields}
    raise context.refuse(
        f"is Avro, and column {field.name!r} of type {type_.simpleString()} has no type there",
        "Convert it, for instance to text",
    )


def _checked_name(context: FormatContext, name: str) -> str:
    """Return the name unchanged. Raise ``PlanError`` if Avro does not allow it. A name has ASCII
    letters, digits and ``_``, at least one of them, and no digit first.
    """
    if not _AVRO_NAME.fullmatch(name):
        raise context.refuse(
            f"is Avro, where {name!r} is no name",
            "Rename the column: letters, digits and _, no digit first",
        )
    return name


def _refuse_columns(context: FormatContext, schema: str, columns: StructType) -> None:
    """Raise ``PlanError`` for one of ``columns`` that the schema lacks or has in another type. Also
    for a field without a column that is not nullable, even if it has a default. The case of names
    counts; the order and the nullability of columns do not. If the schema is no record, there must
    be one column of its type. ``schema``: as JSON.

    Raises ``PlanError`` for a schema that Spark refuses, too, and ``ConfigurationError`` if the
    session lacks Avro functions.
    """
    avro_type = spark_type_of_schema(context, schema)
    if not isinstance(avro_type, StructType):
        if len(columns) == 1 and _fits_avro_type(avro_type, columns[0].dataType):
            return
        shown_columns = ", ".join(f"{f.name} {f.dataType.simpleString()}" for f in columns)
        raise context.refuse(
            f"is {avro_type.simpleString()} in Avro, and the columns are {shown_columns}",
            "Give the schema of a record",
        )
    for field in columns:
        if field.name not in avro_type.names:
            raise context.refuse(
                f"has no field {field.name!r} in its Avro schema",
                f"Select what it has: {', '.join(avro_type.names)}",
            )
        field_type = avro_type[field.name].dataType
        if not _fits_avro_type(field_type, field.dataType):
            raise context.refuse(
                f"has column {field.name!r} of type {field.dataType.simpleString()}, which is "
                f"{field_type.simpleString()} in its Avro schema",
                "Cast it, or give another schema",
            )
    for field in avro_type:
        if field.name not in columns.names and not field.nullable:
            raise context.refuse(
                f"lacks the column {field.name!r}, which its Avro schema requires",
                "Select it, or give another schema",
            )


def _fits_avro_type(avro: DataType, column: DataType) -> bool:
    """Return True if a column of type ``column`` can be written as ``avro``, Spark's type for the
    schema. The two must be equal, with struct fields in the same order and case; nullability does
    not count. A ``tinyint`` or ``smallint`` column fits Avro's int, but not within structs, arrays
    and maps.
    """
    small = isinstance(avro, IntegerType) and isinstance(column, (ByteType, ShortType))
    return small or avro.simpleString() == column.simpleString()


def spark_type_of_schema(context: FormatContext, schema: str) -> DataType:
    """Return the type in which Spark reads Avro of ``schema``, given as JSON. There must be an
    active session. Raises ``PlanError`` for a schema that Spark refuses, ``ConfigurationError`` if
    the session lacks Avro functions.
    """
    decoded = from_avro(F.lit(None).cast("binary"), schema)
    try:
        with explain_missing_functions(context):
            # Spark Connect reads the schema, and misses the functions, as types are asked for.
            columns = SparkSession.active().range(0).select(decoded.alias("made")).schema
    except (Py4JError, PySparkException) as error:
        raise context.refuse(
            f"has an Avro schema that Spark does not take: {reason(error)}", "Give another"
        ) from error
    return columns["made"].dataType


def _schema_id(value: Column) -> Column:
    """Return the schema's id in the framing of a record's bytes, as a long. It is null where
    ``value`` is null, shorter than a framing (5 bytes), or begins with another byte than zero.
    """
    framed = (F.length(value) >= FRAME_LENGTH) & (F.hex(F.substring(value, 1, 1)) == "00")
    return F.when(framed, F.conv(F.hex(F.substring(value, 2, 4)), 16, 10).cast("long"))


@contextmanager
def explain_missing_functions(context: FormatContext) -> Iterator[None]:
    """Replace Spark's error about missing Avro functions in the block by a ``ConfigurationError``
    that names the jar. Other errors pass unchanged.
    """
    try:
        yield
    except PySparkException as error:
        if error.getCondition() != _NOT_LOADED:
            raise
        raise ConfigurationError(
            context.operator,
            f"{context.part}= is Avro, which the session does not know",
            _NEEDS_JAR,
        ) from error
