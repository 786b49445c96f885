"""Change events in Avro, as Kafka Connect writes them: which of their columns are read, and what
their schemas say of how these are encoded.

A record is read by the schema with which it was written, as the reader's schema says
(``avro.AvroFormat``): fields by their names at every depth, with defaults and promotions. Connect's
own types are the exception. They are numbers and bytes whose meaning the schema names in
``connect.name``, and two versions of a subject may encode a column in different ways. So each
version's records keep the encoding with which they were written.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from dovetail.io.avro import type_of
from dovetail.io.connect import (
    CONNECT,
    DECIMAL,
    TIME,
    ColumnEncoding,
    default_type,
    is_coded,
    taken,
)
from dovetail.io.events import METADATA, Wanted
from dovetail.io.formats import Place

Avro: TypeAlias = Any
"""A schema of Avro, as JSON's data, with named types in place of their names."""


@dataclass(frozen=True)
class Envelope:
    """The schema of an envelope, and of the rows in it."""

    schema: Avro
    row: Avro

    @staticmethod
    def of(place: Place, text: str) -> Envelope:
        """That of a schema's text; ``PlanError`` where it is of no envelope."""
        schema = _resolved(json.loads(text), {}, "")
        after = _fields(schema).get("after")
        row = None if after is None else _value(after["type"])
        if not _fields(row) or "op" not in _fields(schema):
            raise place.refuse(
                "has an Avro schema that is of no change event",
                "Read it with dt.avro, or name Debezium's subject in subject=",
            )
        return Envelope(schema, row)

    def types(self, place: Place) -> StructType:
        """The columns with the types in which they are read if none are declared."""
        natural = _spark_type(place, _without_logical(self.row, every=False))
        return StructType(
            [
                StructField(name, _default(place, name, of["type"], natural[name].dataType))
                for name, of in _fields(self.row).items()
            ]
        )


@dataclass(frozen=True)
class Read:
    """How records of one schema are read.

    ``text``: the reader's schema; ``paths``: what of ``METADATA`` they have; ``columns``: the
    encodings of the columns that they have, or that have a default.
    """

    text: str
    paths: frozenset[str]
    columns: Mapping[str, ColumnEncoding]

    @staticmethod
    def of(place: Place, writer: Envelope, known: Sequence[Envelope], wanted: Wanted) -> Read:
        """``known``: the envelopes that say of a column what it is, the reader's first.

        Raises ``PlanError`` for a column of a type that is not made of its encoding.
        """
        own = _fields(writer.schema)
        paths = [path for path in wanted.paths if _has(writer.schema, path)]
        parts: dict[str, Any] = {path.partition(".")[0]: [] for path in paths}
        for path in paths:
            parts[path.partition(".")[0]].append(path.partition(".")[2])
        fields = [
            {"name": name, "type": _part(own[name]["type"], inner)} for name, inner in parts.items()
        ]
        row = _row(writer.row, known, wanted)
        for side, names in (("after", wanted.columns.names), ("before", wanted.keys)):
            if side in own and names:
                of_side = {**row, "fields": [f for f in row["fields"] if f["name"] in names]}
                fields.append({"name": side, "type": ["null", of_side], "default": None})
        reader = {**writer.schema, "fields": fields}
        natural = _spark_type(place, _without_logical(row))
        encodings = {
            name: _encoding(of["type"], natural[name].dataType) for name, of in _fields(row).items()
        }
        for field in wanted.columns:
            if field.name in encodings:
                _refuse_unfit(place, field, encodings[field.name])
        return Read(_text(_without_logical(reader)), frozenset(paths), encodings)

    def encodings(self, columns: StructType) -> dict[str, ColumnEncoding]:
        """How columns are encoded."""
        return {f.name: self.columns.get(f.name, ColumnEncoding.declared(None)) for f in columns}

    def raw(self, parsed: Column, wanted: Wanted) -> Column:
        """What is wanted of an envelope, null in place of what its schema does not have."""

        def found(path: str) -> Column:
            if path not in self.paths:
                return F.lit(None).cast(METADATA[path])
            column = parsed
            for name in path.split("."):
                column = column[name]
            return column.cast(METADATA[path])

        def row(side: str, columns: StructType) -> Column:
            made = (
                (
                    parsed[side][f.name] if f.name in self.columns else F.lit(None).cast(f.dataType)
                ).alias(f.name)
                for f in columns
            )
            return F.when(parsed[side].isNotNull(), F.struct(*made)).alias(side)

        nested: dict[str, list[Column]] = {}
        for path in wanted.paths:
            of, _, name = path.rpartition(".")
            nested.setdefault(of, []).append(found(path).alias(name))
        columns = [row("after", wanted.columns)]
        if wanted.keys:
            columns.append(row("before", wanted.before))
        for of, made in nested.items():
            columns += [F.struct(*made).alias(of)] if of else made
        return F.when(parsed["op"].isNotNull(), F.struct(*columns))


def _row(writer: Avro, known: Sequence[Envelope], wanted: Wanted) -> Avro:
    """The reader's schema of a row: of each column as the first of the envelopes says that has
    it.
    """
    fields = []
    for column in wanted.columns:
        found = (_fields(of.row).get(column.name) for of in known)
        field = next((one for one in found if one is not None), None)
        if field is not None:
            declared = column.dataType if wanted.declared else None
            fields.append(_field_read(_fields(writer), field, declared))
    return {**known[0].row, "fields": fields}


def _field_read(writer: Mapping[str, Avro], field: Avro, declared: DataType | None) -> Avro:
    """A field of the reader's schema for a record that was written with these fields."""
    names = [field["name"], *field.get("aliases", ())]
    own = next((writer[name] for name in names if name in writer), None)
    if own is not None:
        made = {**field, "type": _read(own["type"], field["type"], declared)}
        made.pop("default", None)
        return made
    if "default" in field or declared is None:
        return field
    branches = [one for one in _branches(field["type"]) if one != "null"]
    return {**field, "type": ["null", *branches], "default": None}


def _read(writer: Avro, reader: Avro, declared: DataType | None) -> Avro:
    """The reader's schema of a value that was written so: the writer's where one of both is
    encoded. ``declared``: the type that is wanted, of whose fields those that are absent are null.
    """
    own, wanted = _value(writer), _value(reader)
    kind = _kind(wanted)
    if _is_connects(own) or (_is_connects(wanted) and kind != _kind(own)):
        return writer
    if kind != _kind(own) or kind not in ("record", "array", "map"):
        return reader
    made = dict(wanted)
    if kind == "record":
        type_ = declared if isinstance(declared, StructType) else None
        fields = [f for f in wanted["fields"] if type_ is None or f["name"] in type_.names]
        made["fields"] = [
            _field_read(_fields(own), f, None if type_ is None else type_[f["name"]].dataType)
            for f in fields
        ]
    elif kind == "array":
        inner = declared.elementType if isinstance(declared, ArrayType) else None
        made["items"] = _read(own["items"], wanted["items"], inner)
    else:
        inner = declared.valueType if isinstance(declared, MapType) else None
        made["values"] = _read(own["values"], wanted["values"], inner)
    return [one if one == "null" else made for one in reader] if isinstance(reader, list) else made


def _encoding(schema: Avro, natural: DataType) -> ColumnEncoding:
    """How a value is encoded, which Spark reads as ``natural``."""
    one = _value(schema)
    within: dict[str, ColumnEncoding] = {}
    if _kind(one) == "record" and isinstance(natural, StructType):
        within = {
            name: _encoding(of["type"], natural[name].dataType) for name, of in _fields(one).items()
        }
    elif _kind(one) == "array" and isinstance(natural, ArrayType):
        within = {"": _encoding(one["items"], natural.elementType)}
    elif _kind(one) == "map" and isinstance(natural, MapType):
        within = {"": _encoding(one["values"], natural.valueType)}
    name, scale = _name(one), _scale(one)
    return ColumnEncoding(F.lit(name), F.lit(scale).cast("int"), name, scale, within, natural)


def _refuse_unfit(place: Place, field: StructField, encoding: ColumnEncoding) -> None:
    """Refuse a column of a type that is not made of its encoding, at any depth."""
    unfit = next(_unfit(field.dataType, encoding), None)
    if unfit is not None:
        name, type_ = unfit
        raise place.refuse(
            f"has the column {field.name!r} encoded as {name}, which is no {type_}",
            "Declare a type that it has in schema=, or leave the column out",
        )


def _unfit(type_: DataType, encoding: ColumnEncoding) -> Iterator[tuple[str, str]]:
    within = encoding.within
    if isinstance(type_, StructType) and isinstance(encoding.natural, StructType):
        for field in type_:
            if field.name in within:
                yield from _unfit(field.dataType, within[field.name])
    elif isinstance(type_, ArrayType) and isinstance(encoding.natural, ArrayType):
        yield from _unfit(type_.elementType, within[""])
    elif isinstance(type_, MapType) and isinstance(encoding.natural, MapType):
        yield from _unfit(type_.valueType, within[""])
    elif not encoding.reads(type_) and not taken(type_, encoding.known or ""):
        yield encoding.known or "a union", type_.simpleString()


def _default(place: Place, name: str, schema: Avro, natural: DataType) -> DataType:
    """The type in which a value is read that Spark reads as ``natural``, if none is declared."""
    one = _value(schema)
    if _is_connects(one):
        precision = one.get("connect.parameters", {}).get("connect.decimal.precision", 38)
        made = default_type(_name(one), int(precision), _scale(one))
        if made is None and _name(one) == DECIMAL:
            raise place.refuse(
                f"has the column {name!r} encoded as {DECIMAL}, without its scale",
                "Declare the columns with their types in schema=",
            )
        return made or natural
    if _kind(one) == "record" and isinstance(natural, StructType):
        fields = _fields(one)
        return StructType(
            [
                StructField(f.name, _default(place, name, fields[f.name]["type"], f.dataType))
                for f in natural
            ]
        )
    if _kind(one) == "array" and isinstance(natural, ArrayType):
        return ArrayType(_default(place, name, one["items"], natural.elementType))
    if _kind(one) == "map" and isinstance(natural, MapType):
        return MapType(natural.keyType, _default(place, name, one["values"], natural.valueType))
    return natural


def _spark_type(place: Place, record: Avro) -> StructType:
    found = type_of(place, _text(record))
    assert isinstance(found, StructType)
    return found


def _value(schema: Avro) -> Avro:
    """A schema that may be null, without null; a union of several others as it is."""
    branches = [one for one in _branches(schema) if one != "null"]
    return branches[0] if len(branches) == 1 else schema


def _branches(schema: Avro) -> list[Avro]:
    return schema if isinstance(schema, list) else [schema]


def _kind(schema: Avro) -> str:
    """The name of a type, as Avro has it."""
    if isinstance(schema, list):
        return "union"
    return str(schema["type"] if isinstance(schema, dict) else schema)


def _fields(schema: Avro) -> dict[str, Avro]:
    """The fields of a record, which may be null, by their names."""
    one = _value(schema)
    fields = one.get("fields", []) if isinstance(one, dict) else []
    return {field["name"]: field for field in fields}


_LOGICAL: Mapping[str, str] = {
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
"""The encodings that Avro's own logical types are."""


def _is_connects(one: Avro) -> bool:
    """Whether a type is one of Connect's or Debezium's, which Avro's types do not tell."""
    return isinstance(one, dict) and is_coded(one.get("connect.name", ""))


def _name(one: Avro) -> str:
    """The name of an encoding, or a plain type."""
    if not isinstance(one, dict):
        return _kind(one)
    return str(one.get("connect.name") or _LOGICAL.get(one.get("logicalType", "")) or one["type"])


def _scale(one: Avro) -> int | None:
    """The scale of a decimal."""
    if not isinstance(one, dict):
        return None
    scale = one.get("connect.parameters", {}).get("scale", one.get("scale"))
    if scale is None and one.get("logicalType") == "decimal":
        return 0
    return None if scale is None else int(scale)


def _has(schema: Avro, path: str) -> bool:
    """Whether a record has a field, or one of a field's, and so on."""
    name, _, rest = path.partition(".")
    field = _fields(schema).get(name)
    return field is not None and (not rest or _has(field["type"], rest))


def _part(schema: Avro, names: Sequence[str]) -> Avro:
    """A record with these of its fields alone; what is no record as it is."""
    one = _value(schema)
    if _kind(one) != "record":
        return schema
    fields = [
        {"name": name, "type": of["type"]} for name, of in _fields(one).items() if name in names
    ]
    made = {**one, "fields": fields}
    return [one if one == "null" else made for one in schema] if isinstance(schema, list) else made


def _without_logical(schema: Avro, *, every: bool = True) -> Avro:
    """A schema without Avro's logical types, or without those of Connect's types alone: Spark does
    not take all of their decimals, and one reading of encodings is enough.
    """
    if isinstance(schema, list):
        return [_without_logical(one, every=every) for one in schema]
    if not isinstance(schema, dict):
        return schema
    drops = every or _is_connects(schema)
    made = {name: of for name, of in schema.items() if name != "logicalType" or not drops}
    for inner in ("items", "values"):
        if inner in made:
            made[inner] = _without_logical(made[inner], every=every)
    if "fields" in made:
        made["fields"] = [
            {**f, "type": _without_logical(f["type"], every=every)} for f in made["fields"]
        ]
    return made


_NAMED = ("record", "enum", "fixed")


def _resolved(schema: Avro, names: dict[str, Avro], namespace: str) -> Avro:
    """The schema with named types, by their full names, in place of their names."""
    if isinstance(schema, str):
        return names.get(_full(schema, namespace), names.get(schema, schema))
    if isinstance(schema, list):
        return [_resolved(one, names, namespace) for one in schema]
    made = dict(schema)
    kind = made["type"]
    if isinstance(kind, list):
        return _resolved(kind, names, namespace)
    if isinstance(kind, dict) or (kind not in _NAMED and _full(kind, namespace) in names):
        inner = _resolved(kind, names, namespace)
        beside = {name: of for name, of in made.items() if name != "type"}
        return {**inner, **beside} if isinstance(inner, dict) and "name" not in inner else inner
    if kind in _NAMED:
        made["name"] = _full(made["name"], made.pop("namespace", None) or namespace)
        namespace = made["name"].rpartition(".")[0]
    for inner in ("items", "values"):
        if inner in made:
            made[inner] = _resolved(made[inner], names, namespace)
    if kind == "record":
        made["fields"] = [
            {**f, "type": _resolved(f["type"], names, namespace)} for f in made["fields"]
        ]
    if kind in _NAMED:
        names[made["name"]] = made
    return made


def _full(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _text(schema: Avro) -> str:
    """The JSON of a schema in which named types stand in place of their names."""
    return json.dumps(_written(schema, {}))


def _written(schema: Avro, seen: dict[str, Avro]) -> Avro:
    """The schema with each named type once. Two of one name that differ are told apart by their
    namespaces, which records are not matched by.
    """
    if isinstance(schema, list):
        return [_written(one, seen) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = dict(schema)
    if made["type"] in _NAMED:
        while seen.get(made["name"], schema) != schema:
            made["name"] = f"other.{made['name']}"
        if made["name"] in seen:
            return made["name"]
        seen[made["name"]] = schema
    for inner in ("items", "values"):
        if inner in made:
            made[inner] = _written(made[inner], seen)
    if "fields" in made:
        made["fields"] = [{**f, "type": _written(f["type"], seen)} for f in made["fields"]]
    return made
