"""Change events in Avro, as Kafka Connect writes them: what their schemas say of the columns.

Connect keeps the names of its own types in ``connect.name``. Avro's logical types beside them are
left aside: Spark does not take all of Connect's decimals, and one reading of encodings is enough.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from dovetail.io.connect import ColumnEncoding, default_type, taken
from dovetail.io.events import METADATA, Wanted
from dovetail.io.formats import Place

Avro: TypeAlias = Any
"""A schema of Avro, as JSON's data."""

_PLAIN: Mapping[str, DataType] = {
    "boolean": BooleanType(),
    "int": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "bytes": BinaryType(),
    "string": StringType(),
}


@dataclass(frozen=True)
class Envelope:
    """The schema of an envelope, without Avro's logical types."""

    text: str
    fields: Mapping[str, Avro]
    columns: Mapping[str, Avro]

    @staticmethod
    def of(place: Place, text: str) -> Envelope:
        """That of a schema's text; ``PlanError`` where it is of no envelope."""
        names: dict[str, Avro] = {}
        plain = _without_logical(_resolved(json.loads(text), names))
        fields = _fields(plain)
        after = _fields(fields.get("after"))
        if not after or "op" not in fields:
            raise place.refuse(
                "has an Avro schema that is of no change event",
                "Read it with dt.avro, or name Debezium's subject in subject=",
            )
        return Envelope(json.dumps(_without_logical(json.loads(text))), fields, after)

    def types(self, place: Place) -> StructType:
        """The columns with the types in which they are read if none are declared."""
        return StructType(
            [StructField(name, _default(place, name, one)) for name, one in self.columns.items()]
        )

    def encodings(self, place: Place, columns: StructType) -> dict[str, ColumnEncoding]:
        """How columns are encoded; ``PlanError`` where that is not of their types."""
        return {f.name: self._encoded(place, f) for f in columns}

    def raw(self, parsed: Column, wanted: Wanted) -> Column:
        """What is wanted of an envelope, null in place of what its schema does not have."""

        def found(path: str) -> Column:
            fields, column = self.fields, parsed
            for name in path.split("."):
                if name not in fields:
                    return F.lit(None).cast(METADATA[path])
                fields, column = _fields(fields[name]), column[name]
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

    def _encoded(self, place: Place, field: StructField) -> ColumnEncoding:
        if field.name not in self.columns:
            return ColumnEncoding.declared(None)
        name, scale = _encoding(self.columns[field.name])
        if not taken(field.dataType, name):
            raise place.refuse(
                f"has the column {field.name!r} encoded as {name}, which is no "
                f"{field.dataType.simpleString()}",
                "Declare a type that it has in schema=, or leave the column out",
            )
        return ColumnEncoding(F.lit(name), F.lit(scale).cast("int"), name)


def _default(place: Place, name: str, schema: Avro) -> DataType:
    one = _value(schema)
    if isinstance(one, dict) and one["type"] == "array":
        return ArrayType(_default(place, name, one["items"]))
    encoding, scale = _encoding(one)
    precision = _parameters(one).get("connect.decimal.precision", 38)
    made = default_type(encoding, int(precision), scale)
    if made is None:
        made = _natural(one)
    if made is None:
        raise place.refuse(
            f"has the column {name!r} encoded as {encoding}, which has no type of its own",
            "Declare the columns with their types in schema=",
        )
    return made


def _natural(one: Avro) -> DataType | None:
    """The type of what has no encoding of Connect's."""
    kind = one["type"] if isinstance(one, dict) else one
    if kind == "map":
        value = _natural(_value(one["values"]))
        return None if value is None else MapType(StringType(), value)
    if kind == "record":
        fields = {name: _natural(_value(of)) for name, of in _fields(one).items()}
        if any(of is None for of in fields.values()):
            return None
        return StructType([StructField(name, of) for name, of in fields.items() if of is not None])
    return StringType() if kind == "enum" else _PLAIN.get(kind)


def _encoding(schema: Avro) -> tuple[str, int | None]:
    """The name of a column's encoding, or its plain type, and the scale of decimals; of an array
    those of its elements.
    """
    one = _value(schema)
    if not isinstance(one, dict):
        return str(one), None
    if one["type"] == "array":
        return _encoding(one["items"])
    scale = _parameters(one).get("scale", one.get("scale"))
    return str(one.get("connect.name", one["type"])), None if scale is None else int(scale)


def _parameters(one: Avro) -> Mapping[str, Any]:
    return one.get("connect.parameters", {}) if isinstance(one, dict) else {}


def _value(schema: Avro) -> Avro:
    """A schema that may be null, without null."""
    if isinstance(schema, list):
        (one,) = [of for of in schema if of != "null"] or [schema]
        return one
    return schema


def _fields(schema: Avro) -> dict[str, Avro]:
    one = _value(schema)
    fields = one.get("fields", []) if isinstance(one, dict) else []
    return {field["name"]: field["type"] for field in fields}


def _resolved(schema: Avro, names: dict[str, Avro]) -> Avro:
    """The schema with named types in place of their names."""
    if isinstance(schema, str):
        return names.get(schema, schema)
    if isinstance(schema, list):
        return [_resolved(one, names) for one in schema]
    made = dict(schema)
    for inner in ("items", "values"):
        if inner in made:
            made[inner] = _resolved(made[inner], names)
    if isinstance(made.get("type"), (dict, list)):
        return _resolved(made["type"], names)
    if "fields" in made:
        made["fields"] = [{**f, "type": _resolved(f["type"], names)} for f in made["fields"]]
    if "name" in made:
        full = f"{made['namespace']}.{made['name']}" if made.get("namespace") else made["name"]
        names[made["name"]] = names[full] = made
    return made


def _without_logical(schema: Avro) -> Avro:
    if isinstance(schema, list):
        return [_without_logical(one) for one in schema]
    if isinstance(schema, dict):
        return {k: _without_logical(v) for k, v in schema.items() if k != "logicalType"}
    return schema
