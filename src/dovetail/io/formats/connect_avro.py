"""Change events in Avro, as Kafka Connect writes them: their columns, and the encodings that their
schemas name.

A record is decoded from its writer's schema into the reader's schema (``avro.AvroFormat``): fields
by name at every depth, with defaults and promotions. Connect's own types are the exception. They
are numbers and bytes whose meaning the schema names in ``connect.name``. Two versions of a subject
may encode one column in different ways. So each version's records keep the encoding that wrote
them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from dovetail.io.formats.avro import refuse_same_names, spark_type_of_schema
from dovetail.io.formats.avro_schemas import (
    Avro,
    as_nullable,
    avro_type_name,
    fields_by_name,
    resolve_references,
    schema_text,
    union_types,
    without_null,
)
from dovetail.io.formats.connect import (
    CONNECT,
    DECIMAL,
    ENCODINGS,
    TIME,
    ColumnEncoding,
)
from dovetail.io.formats.events import METADATA, WantedParts
from dovetail.io.formats.plain import FormatContext
from dovetail.plan.types.decimals import DIGITS_MAX


@dataclass(frozen=True)
class Envelope:
    """The schema of Debezium's envelope, and of the row in it."""

    schema: Avro
    """The schema of the envelope, with named types in full."""
    row: Avro
    """The schema of the row after a change: a record, not nullable."""

    @staticmethod
    def from_schema(context: FormatContext, text: str) -> Envelope:
        """Return the envelope that ``text`` describes, an Avro schema as JSON. Raises ``PlanError``
        if the schema is of no change event: it lacks ``op``, or ``after`` is no record with fields.
        """
        schema = resolve_references(json.loads(text))
        after = fields_by_name(schema).get("after")
        row = None if after is None else without_null(after["type"])
        if not fields_by_name(row) or "op" not in fields_by_name(schema):
            raise context.refuse(
                "has an Avro schema that is of no change event",
                "Read it with dt.formats.avro, or name Debezium's subject in subject=",
            )
        return Envelope(schema, row)

    def has(self, path: str) -> bool:
        """Return True if the envelope's schema has the field at a dotted path, such as
        ``source.lsn``.
        """
        return _has_field(self.schema, path)

    def types(self, context: FormatContext) -> StructType:
        """Return the row's columns, in order, with the types in which they are read if the user
        declares none. A type is that of the column's encoding, else the one in which Spark reads
        its Avro schema.

        Raises ``PlanError`` for a decimal without a scale or with one above 38. Also for names that
        differ in case alone, and for a schema that Spark refuses. Raises ``ConfigurationError`` if
        the session lacks Spark's Avro functions.
        """
        natural = _spark_type(context, _without_logical(self.row, every=False))
        refuse_same_names(context, natural)
        return StructType(
            [
                StructField(name, _default_type(context, name, of["type"], natural[name].dataType))
                for name, of in fields_by_name(self.row).items()
            ]
        )


@dataclass(frozen=True)
class SchemaReader:
    """The means to read records that one schema has written, the writer's schema."""

    text: str
    """The reader's schema as JSON."""
    paths: frozenset[str]
    """The wanted paths of ``METADATA`` that the writer's schema has."""
    columns: Mapping[str, ColumnEncoding]
    """The encodings of the wanted columns that one of the envelopes has, by column name. A column
    that the records lack and that has no default is null in them.
    """

    @staticmethod
    def for_writer(
        context: FormatContext, writer: Envelope, envelopes: Sequence[Envelope], wanted: WantedParts
    ) -> SchemaReader:
        """Return the reader for records of ``writer``. Its schema has the ``wanted`` parts of the
        envelope that the writer's schema has. Values that Connect encodes keep the encoding of the
        writer.

        ``envelopes``: the envelopes that define the columns, at least one; the first that has a
        column defines it. A schema that the user gives comes first, then all versions of the
        subject, the latest first. Raises ``PlanError`` for a column whose type cannot be made of
        its encoding, and for a schema that Spark refuses. Raises ``ConfigurationError`` if the
        session lacks Spark's Avro functions.
        """
        writer_fields = fields_by_name(writer.schema)
        paths = [path for path in wanted.paths if _has_field(writer.schema, path)]
        parts: dict[str, Any] = {path.partition(".")[0]: [] for path in paths}
        for path in paths:
            parts[path.partition(".")[0]].append(path.partition(".")[2])
        fields = [
            {"name": name, "type": _with_fields(writer_fields[name]["type"], inner)}
            for name, inner in parts.items()
        ]
        row = _reader_row(writer.row, envelopes, wanted)
        for side, columns in wanted.sides.items():
            of_side = {**row, "fields": [f for f in row["fields"] if f["name"] in columns.names]}
            fields.append({"name": side, "type": ["null", of_side], "default": None})
        reader = {**writer.schema, "fields": fields}
        natural = _spark_type(context, _without_logical(row))
        encodings = {
            name: _encoding_of_schema(of["type"], natural[name].dataType)
            for name, of in fields_by_name(row).items()
        }
        for field in wanted.columns:
            if field.name in encodings:
                _refuse_unfit(context, field, encodings[field.name])
        return SchemaReader(schema_text(_without_logical(reader)), frozenset(paths), encodings)

    def encodings(self, columns: StructType) -> dict[str, ColumnEncoding]:
        """Return the encoding of each of ``columns``, by name. For a column that no envelope has,
        the name of the encoding is null, and the raw values, all null, are of the column's type.
        """
        absent = ColumnEncoding.from_declaration(None)
        return {
            f.name: self.columns.get(f.name, replace(absent, natural=f.dataType)) for f in columns
        }

    def raw_parts(self, parsed: Column, wanted: WantedParts) -> Column:
        """Return the wanted parts of the decoded envelope ``parsed`` as a struct, with null for a
        part that the writer's schema lacks. Its fields are ``after``, ``before`` (only with key
        columns), and those at the wanted paths, nested: the path ``source.lsn`` is the field
        ``lsn`` of a struct ``source``. Values of rows are raw, as they are encoded.

        ``parsed``: decoded into the schema ``text``. ``wanted``: as given to ``for_writer``. The
        whole struct is null if the envelope has no ``op``, or could not be decoded.
        """

        def part_at(path: str) -> Column:
            """Return the envelope's field at ``path``, a key of ``METADATA``, cast to the type that
            ``METADATA`` has for it. Null if the writer's schema lacks the field, or if the cast
            fails.
            """
            if path not in self.paths:
                return F.lit(None).cast(METADATA[path])
            return _part_at(parsed, path).try_cast(METADATA[path])

        def row(side: str, columns: StructType) -> Column:
            """Return the row ``side``, ``"after"`` or ``"before"``, as a struct of ``columns``. It
            is null for a null row. A column that no envelope has is null.
            """
            parts = (
                (
                    parsed[side][f.name] if f.name in self.columns else F.lit(None).cast(f.dataType)
                ).alias(f.name)
                for f in columns
            )
            return F.when(parsed[side].isNotNull(), F.struct(*parts)).alias(side)

        nested: dict[str, list[Column]] = {}
        for path in wanted.paths:
            of, _, name = path.rpartition(".")
            nested.setdefault(of, []).append(part_at(path).alias(name))
        columns = [row("after", wanted.columns)]
        if wanted.keys:
            columns.append(row("before", wanted.before))
        for of, parts in nested.items():
            columns += [F.struct(*parts).alias(of)] if of else parts
        return F.when(parsed["op"].isNotNull(), F.struct(*columns))

    def problem(self, parsed: Column) -> Column:
        """Return a text why a part of the envelope at one of ``paths`` cannot be cast to its type
        in ``METADATA`` (long or integer): ``<path> is no <type>: <value>``. A text of digits can be
        cast, an integer out of range cannot. Parts of type string are not tested.

        The text is null if all parts can be cast; a null part can. Of several that cannot, the
        first in the alphabetical order of paths is named. ``parsed``: the envelope, decoded into
        the schema ``text``.
        """
        problems = [F.lit(None).cast("string")]
        for path in sorted(self.paths):
            part, type_ = _part_at(parsed, path), METADATA[path]
            if not isinstance(type_, StringType):
                shown = F.concat(
                    F.lit(f"{path} is no {type_.simpleString()}: "), part.cast("string")
                )
                problems.append(F.when(part.isNotNull() & part.try_cast(type_).isNull(), shown))
        return F.coalesce(*problems)


def refuse_absent_columns(
    context: FormatContext, envelopes: Sequence[Envelope], wanted: WantedParts
) -> None:
    """Raise ``PlanError`` for some wanted columns that no envelope has, in which all rows would be
    null. They are key columns, and those whose name an envelope has in another case. Other columns
    may be absent, because they may come with a later version of the schema.
    """
    names = [name for envelope in envelopes for name in fields_by_name(envelope.row)]
    by_lower_case = {name.lower(): name for name in names}
    for name in wanted.columns.names:
        if name in names:
            continue
        other = by_lower_case.get(name.lower())
        if other is not None:
            raise context.refuse(
                f"has the column {other!r} in its Avro schema, not {name!r}",
                "Declare it in the case of the schema",
            )
        if name in wanted.keys:
            raise context.refuse(
                f"has no column {name!r} in its Avro schema, which key_columns= names",
                f"Known are {', '.join(dict.fromkeys(names))}",
            )


def _part_at(parsed: Column, path: str) -> Column:
    """Return the part of the decoded envelope ``parsed`` at a dotted path, such as ``source.lsn``.
    The envelope's schema must have it. It is null if a record on the path is null.
    """
    for name in path.split("."):
        parsed = parsed[name]
    return parsed


def _reader_row(writer: Avro, envelopes: Sequence[Envelope], wanted: WantedParts) -> Avro:
    """Return the reader's schema of a row: the wanted columns, in their order. A column is defined
    by the first of ``envelopes`` that has it, and left out if none has.

    ``writer``: the schema of the row that the records have. ``envelopes``: at least one; the first
    one's row gives the record its name.
    """
    fields = []
    for column in wanted.columns:
        definitions = (fields_by_name(of.row).get(column.name) for of in envelopes)
        field = next((definition for definition in definitions if definition is not None), None)
        if field is not None:
            declared = column.dataType if wanted.declared else None
            fields.append(_reader_field(fields_by_name(writer), field, declared))
    return {**envelopes[0].row, "fields": fields}


def _reader_field(writer: Mapping[str, Avro], field: Avro, declared: DataType | None) -> Avro:
    """Return the field of the reader's schema for ``field``, as an envelope defines it. ``writer``:
    the fields that the records have, by name. ``declared``: the wanted type, None for none.

    A field that the records have, perhaps under an alias, loses its default, and is nullable where
    theirs is: a column may become ``NOT NULL``. One that they lack becomes nullable with the
    default null, unless it has a default: a column that is ``NOT NULL`` may be new.
    """
    names = [field["name"], *field.get("aliases", ())]
    written = next((writer[name] for name in names if name in writer), None)
    if written is not None:
        type_ = _reader_schema(written["type"], field["type"], declared)
        if "null" in union_types(written["type"]) and "null" not in union_types(type_):
            type_ = ["null", *union_types(type_)]
        read = {**field, "type": type_}
        read.pop("default", None)
        return read
    if "default" in field:
        return field
    branches = [branch for branch in union_types(field["type"]) if branch != "null"]
    return {**field, "type": ["null", *branches], "default": None}


def _reader_schema(writer: Avro, reader: Avro, declared: DataType | None) -> Avro:
    """Return the schema into which a value is decoded: ``reader``, or ``writer`` in one of two
    cases. In these, a union of null and another type counts as that type.

    - The writer's type is one of Connect's or Debezium's, or has a logical type for one of these.
    - The reader's type is such a one, and the two are different Avro types.

    In records, arrays and maps of both, each part is chosen by these rules. A union of several
    types gives ``reader``, unless one of the rules gives ``writer``. Fields of a record are made by
    ``_reader_field``. One that the records have loses its default. One that they lack becomes
    nullable with the default null, unless it has a default. ``declared``: the wanted type, None for
    none. Fields of a record that it lacks are left out, and those that only the records have are
    added.
    """
    written, wanted = without_null(writer), without_null(reader)
    kind = avro_type_name(wanted)
    if _is_encoded(written) or (_is_encoded(wanted) and kind != avro_type_name(written)):
        return writer
    if kind != avro_type_name(written) or kind not in ("record", "array", "map"):
        return reader
    read = dict(wanted)
    if kind == "record":
        type_ = declared if isinstance(declared, StructType) else None
        defined = (
            fields_by_name(wanted)
            if type_ is None
            else fields_by_name(written) | fields_by_name(wanted)
        )
        fields = [f for f in defined.values() if type_ is None or f["name"] in type_.names]
        read["fields"] = [
            _reader_field(
                fields_by_name(written), f, None if type_ is None else type_[f["name"]].dataType
            )
            for f in fields
        ]
    elif kind == "array":
        inner = declared.elementType if isinstance(declared, ArrayType) else None
        read["items"] = _reader_schema(written["items"], wanted["items"], inner)
    else:
        inner = declared.valueType if isinstance(declared, MapType) else None
        read["values"] = _reader_schema(written["values"], wanted["values"], inner)
    return as_nullable(reader, read)


def _encoding_of_schema(schema: Avro, natural: DataType) -> ColumnEncoding:
    """Return the encoding of a value with the Avro schema ``schema``, with those of its parts: by
    field name, or by ``""`` for elements and map values. ``natural``: the type in which Spark reads
    the value, logical types left out.
    """
    value_schema = without_null(schema)
    within: dict[str, ColumnEncoding] = {}
    if avro_type_name(value_schema) == "record" and isinstance(natural, StructType):
        within = {
            name: _encoding_of_schema(of["type"], natural[name].dataType)
            for name, of in fields_by_name(value_schema).items()
        }
    elif avro_type_name(value_schema) == "array" and isinstance(natural, ArrayType):
        within = {"": _encoding_of_schema(value_schema["items"], natural.elementType)}
    elif avro_type_name(value_schema) == "map" and isinstance(natural, MapType):
        within = {"": _encoding_of_schema(value_schema["values"], natural.valueType)}
    name, scale = _encoding_name(value_schema), _decimal_scale(value_schema)
    return ColumnEncoding(F.lit(name), F.lit(scale).cast("int"), name, scale, within, natural)


def _is_coded(name: str) -> bool:
    """Return True if ``name`` is the full name of an encoding of Kafka Connect or Debezium in
    ``ENCODINGS``. False for a plain type such as ``"long"``.
    """
    return name in _CODES


def _is_convertible(type_: DataType, encoding: str) -> bool:
    """Return True if whole values in an encoding can become values of ``type_``. Texts take any
    encoding; arrays, maps and structs take none. ``encoding``: the full name, or that of a plain
    type such as ``long``.
    """
    encodings = ENCODINGS.get(type(type_))
    return encodings is None or encoding in encodings


def _type_of_encoding(encoding: str, precision: int, scale: int | None) -> DataType | None:
    """Return the type of a column in this encoding for which no type is declared. None for a plain
    type, for an encoding that is read as it is, and for a decimal whose scale varies or is above
    38.

    ``encoding``: the full name. ``precision``, of which at most 38 counts, and ``scale`` are used
    for decimals alone. PostgreSQL has decimals of a negative scale, and of a scale above the
    precision.
    """
    if encoding == DECIMAL and scale is not None and scale <= DIGITS_MAX:
        digits = max(precision, scale) - min(scale, 0)
        return DecimalType(min(digits, DIGITS_MAX), max(scale, 0))
    if encoding == f"{TIME}ZonedTimestamp":
        return TimestampType()
    for type_ in (DateType, DayTimeIntervalType, TimestampNTZType):
        if encoding in ENCODINGS[type_]:
            return type_()
    return None


def _refuse_unfit(context: FormatContext, field: StructField, encoding: ColumnEncoding) -> None:
    """Raise ``PlanError`` if the wanted column ``field`` has a type, at any depth, that cannot be
    made of its encoding.
    """
    unfit = next(_unfit_parts(field.dataType, encoding), None)
    if unfit is not None:
        name, type_ = unfit
        raise context.refuse(
            f"has the column {field.name!r} encoded as {name}, which is no {type_}",
            "Declare a type that it has in schema=, or leave the column out",
        )


def _unfit_parts(type_: DataType, encoding: ColumnEncoding) -> Iterator[tuple[str, str]]:
    """Yield (encoding, wanted type) in words for each part of a value that cannot be made of its
    encoding; nothing if all can. ``type_``: the wanted type of the value. Fields of a struct that
    the encoding lacks are passed over.
    """
    within = encoding.within
    if isinstance(type_, StructType) and isinstance(encoding.natural, StructType):
        for field in type_:
            if field.name in within:
                yield from _unfit_parts(field.dataType, within[field.name])
    elif isinstance(type_, ArrayType) and isinstance(encoding.natural, ArrayType):
        yield from _unfit_parts(type_.elementType, within[""])
    elif isinstance(type_, MapType) and isinstance(encoding.natural, MapType):
        yield from _unfit_parts(type_.valueType, within[""])
    elif not encoding.is_of_type(type_):
        assert encoding.known is not None  # of a schema
        if not _is_convertible(type_, encoding.known):
            yield encoding.known, type_.simpleString()


def _default_type(context: FormatContext, name: str, schema: Avro, natural: DataType) -> DataType:
    """Return the type in which a value of the Avro schema ``schema`` is read if the user declares
    none: that of its encoding, at any depth, else ``natural``, the type in which Spark reads it.
    Times of Avro's own logical types are intervals.

    ``name``: the column, for errors. A decimal without a precision has 38 digits. Raises
    ``PlanError`` for a decimal without a scale, or with one above 38.
    """
    value_schema = without_null(schema)
    if _is_connect_type(value_schema):
        precision = value_schema.get("connect.parameters", {}).get("connect.decimal.precision", 38)
        scale = _decimal_scale(value_schema)
        type_ = _type_of_encoding(_encoding_name(value_schema), int(precision), scale)
        if type_ is None and _encoding_name(value_schema) == DECIMAL:
            unfit = "without its scale" if scale is None else f"of scale {scale}, above Spark's 38"
            raise context.refuse(
                f"has the column {name!r} encoded as {DECIMAL}, {unfit}",
                "Declare the columns with their types in schema=",
            )
        return type_ or natural
    if isinstance(value_schema, dict) and value_schema.get("logicalType") in _LOGICAL_DEFAULTS:
        return _LOGICAL_DEFAULTS[value_schema["logicalType"]]
    if avro_type_name(value_schema) == "record" and isinstance(natural, StructType):
        fields = fields_by_name(value_schema)
        return StructType(
            [
                StructField(
                    f.name, _default_type(context, name, fields[f.name]["type"], f.dataType)
                )
                for f in natural
            ]
        )
    if avro_type_name(value_schema) == "array" and isinstance(natural, ArrayType):
        return ArrayType(_default_type(context, name, value_schema["items"], natural.elementType))
    if avro_type_name(value_schema) == "map" and isinstance(natural, MapType):
        return MapType(
            natural.keyType, _default_type(context, name, value_schema["values"], natural.valueType)
        )
    return natural


def _spark_type(context: FormatContext, record: Avro) -> StructType:
    """Return the struct in which Spark reads ``record``, the schema of a record with named types in
    full. Raises ``PlanError`` for a schema that Spark refuses, ``ConfigurationError`` if the
    session lacks Avro functions.
    """
    type_ = spark_type_of_schema(context, schema_text(record))
    assert isinstance(type_, StructType)
    return type_


_CODES: Final = frozenset(name for names in ENCODINGS.values() for name in names if "." in name)
_LOGICAL_ENCODINGS: Mapping[str, str] = {
    "date": f"{CONNECT}Date",
    "decimal": DECIMAL,
    "time-millis": f"{CONNECT}Time",
    "time-micros": f"{TIME}MicroTime",
    "timestamp-millis": f"{CONNECT}Timestamp",
    "timestamp-micros": f"{TIME}MicroTimestamp",
    "timestamp-nanos": f"{TIME}NanoTimestamp",
    "local-timestamp-millis": f"{CONNECT}Timestamp",
    "local-timestamp-micros": f"{TIME}MicroTimestamp",
    "local-timestamp-nanos": f"{TIME}NanoTimestamp",
}
"""The equivalent encodings of Avro's own logical types."""
_LOGICAL_DEFAULTS: Final[Mapping[str, DataType]] = {
    "time-millis": DayTimeIntervalType(),
    "time-micros": DayTimeIntervalType(),
    "timestamp-nanos": TimestampType(),
    "local-timestamp-nanos": TimestampNTZType(),
}
"""The types of Avro's logical types that Spark reads as numbers, or in a type without casts."""


def _is_connect_type(schema: Avro) -> bool:
    """Return True if a type is one of Connect's or Debezium's, whose values mean nothing without
    their encoding. ``schema``: without its null; a union gives False.
    """
    return isinstance(schema, dict) and _is_coded(schema.get("connect.name", ""))


def _is_encoded(schema: Avro) -> bool:
    """Return True if values of a type mean nothing without their encoding: it is one of Connect's
    or Debezium's, or has a logical type for one. ``schema``: as for ``_is_connect_type``.
    """
    return _is_coded(_encoding_name(schema))


def _encoding_name(schema: Avro) -> str:
    """Return the name of the encoding of ``schema``: Connect's, else Connect's equivalent of Avro's
    logical type, else the plain type's name. A union is ``"union"``. ``schema``: without its null.
    """
    if not isinstance(schema, dict):
        return avro_type_name(schema)
    return str(
        schema.get("connect.name")
        or _LOGICAL_ENCODINGS.get(schema.get("logicalType", ""))
        or schema["type"]
    )


def _decimal_scale(schema: Avro) -> int | None:
    """Return the scale in a schema, by Connect's parameters or Avro's ``scale``. It is 0 for Avro's
    logical decimal without a scale; None if there is none.
    """
    if not isinstance(schema, dict):
        return None
    scale = schema.get("connect.parameters", {}).get("scale", schema.get("scale"))
    if scale is None and schema.get("logicalType") == "decimal":
        return 0
    return None if scale is None else int(scale)


def _has_field(schema: Avro, path: str) -> bool:
    """Return True if a record's schema has the field at a dotted path, also within nullable
    records.
    """
    name, _, inner_path = path.partition(".")
    field = fields_by_name(schema).get(name)
    return field is not None and (not inner_path or _has_field(field["type"], inner_path))


def _with_fields(schema: Avro, names: Sequence[str]) -> Avro:
    """Return a record's schema with only the fields in ``names``, nullable if ``schema`` is. They
    have the order of the record and no defaults; names that it lacks are ignored. A schema of
    another type stays as it is.
    """
    branch = without_null(schema)
    if avro_type_name(branch) != "record":
        return schema
    fields = [
        {"name": name, "type": of["type"]}
        for name, of in fields_by_name(branch).items()
        if name in names
    ]
    return as_nullable(schema, {**branch, "fields": fields})


def _without_logical(schema: Avro, *, every: bool = True) -> Avro:
    """Return a copy of ``schema`` without Avro's logical types, at every depth. With
    ``every=False`` only types that Connect or Debezium encode lose theirs.

    ``schema``: with named types in full in place of references to them; it is not changed.
    """
    # Spark refuses some logical decimals; and one place for decoding the encodings is enough.
    if isinstance(schema, list):
        return [_without_logical(branch, every=every) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    drops = every or _is_connect_type(schema)
    stripped = {name: of for name, of in schema.items() if name != "logicalType" or not drops}
    for inner in ("items", "values"):
        if inner in stripped:
            stripped[inner] = _without_logical(stripped[inner], every=every)
    if "fields" in stripped:
        stripped["fields"] = [
            {**f, "type": _without_logical(f["type"], every=every)} for f in stripped["fields"]
        ]
    return stripped
