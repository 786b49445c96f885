"""Schemas of Avro as JSON data: their parts, named types in full, and logical types that a writer
and a reader understand in different ways.

Avro resolves a record's fields by name and by their plain types. It passes over logical types. So
the bytes of ``decimal(10,2)`` would be read as those of ``decimal(12,4)``, and milliseconds as
microseconds.

| writer | reader | read as |
|---|---|---|
| decimal of scale 2 | decimal of scale 4 | the writer's, then cast |
| timestamp-millis | timestamp-micros | the writer's |
| decimal of scale 4 | decimal of scale 2 | unreadable |
| date | timestamp-millis | unreadable |
"""

from __future__ import annotations

import json
from typing import Any, TypeAlias

from pyspark.sql.types import ArrayType, DataType, DecimalType, MapType, StructType

Avro: TypeAlias = Any
"""A schema of Avro as JSON data. Named types stand in full in place of references to them."""
_LOCAL = "local-"
"""The first part of the logical types of timestamps without a zone."""


def without_null(schema: Avro) -> Avro:
    """Return the only type besides null of a union. A union of several other types, or of none,
    stays as it is, null included. So does a schema that is no union.
    """
    branches = [branch for branch in union_types(schema) if branch != "null"]
    return branches[0] if len(branches) == 1 else schema


def as_nullable(schema: Avro, type_: Avro) -> Avro:
    """Return ``type_`` in place of the only type besides null of ``schema``, so nullable if that
    is. A ``schema`` that is no union gives ``type_``.
    """
    return [of if of == "null" else type_ for of in schema] if isinstance(schema, list) else type_


def union_types(schema: Avro) -> list[Avro]:
    """Return the types of a union, null included; a list of ``schema`` alone if it is no union."""
    return schema if isinstance(schema, list) else [schema]


def avro_type_name(schema: Avro) -> str:
    """Return the name of a schema's type in Avro, such as ``"record"`` or ``"long"``; ``"union"``
    for a union, so also for a nullable type.
    """
    if isinstance(schema, list):
        return "union"
    return str(schema["type"] if isinstance(schema, dict) else schema)


def fields_by_name(schema: Avro) -> dict[str, Avro]:
    """Return the fields of ``schema``, a record or a nullable record, by name in order; empty for
    other types. A field is JSON data with ``name`` and ``type``.
    """
    value_schema = without_null(schema)
    fields = value_schema.get("fields", []) if isinstance(value_schema, dict) else []
    return {field["name"]: field for field in fields}


def _has_other_unit(writer: Avro, reader: Avro) -> bool:
    """Return True if both schemas have a logical type, and the two differ: in the logical type,
    time zones left out, or in a decimal's scale. The same number or bytes then stand for different
    values. ``writer``, ``reader``: without their null.
    """
    meanings = [_logical_type_and_scale(schema) for schema in (writer, reader)]
    return None not in meanings and meanings[0] != meanings[1]


def _logical_type_and_scale(schema: Avro) -> tuple[str, int] | None:
    """Return (logical type, scale) of a schema; None if it has no logical type. A prefix ``local-``
    of the logical type is left out. The scale is 0 for types other than decimals, and for decimals
    without one.
    """
    logical = schema.get("logicalType") if isinstance(schema, dict) else None
    if logical is None:
        return None
    return logical.removeprefix(_LOCAL), schema.get("scale", 0) if logical == "decimal" else 0


def with_units_of_writer(writer: Avro, reader: Avro) -> Avro:
    """Return the reader's schema with the writer's logical types where both have one and the two
    differ. They differ by the kind or by a decimal's scale, at any depth. So do a decimal and a
    text. A timestamp keeps the reader's choice of a zone. The types of unions are matched by their
    plain types.

    ``writer``, ``reader``: with named types in full, as ``resolve_references`` makes them; neither
    is changed. Fields are matched by name, else by an alias of the reader's field. Where a type
    refers to itself, nothing is replaced.
    """
    written, wanted = without_null(writer), without_null(reader)
    if isinstance(wanted, list):
        return [with_units_of_writer(_branch_of_writer(written, of), of) for of in wanted]
    written = _branch_of_writer(written, wanted)
    kind = avro_type_name(wanted)
    read = wanted
    if _is_decimal_and_text(written, wanted) or _is_decimal_and_text(wanted, written):
        read = written
    elif _has_other_unit(written, wanted):
        read = written
        if wanted["logicalType"].startswith(_LOCAL) and not _is_local(written):
            read = {**written, "logicalType": f"{_LOCAL}{written['logicalType']}"}
        elif _is_local(written) and not _is_local(wanted):
            read = {**written, "logicalType": written["logicalType"].removeprefix(_LOCAL)}
    elif kind == avro_type_name(written) == "record":
        of_writer = fields_by_name(written)
        read = {
            **wanted,
            "fields": [_field_with_units_of_writer(of_writer, f) for f in wanted["fields"]],
        }
    elif kind == avro_type_name(written) and kind in ("array", "map"):
        inner = "items" if kind == "array" else "values"
        read = {**wanted, inner: with_units_of_writer(written[inner], wanted[inner])}
    return read if wanted is reader else as_nullable(reader, read)


def widens(narrow: DataType, wide: DataType, *, whole: bool = True) -> bool:
    """Return True if each value of the type ``narrow`` is a value of ``wide``. The types must be
    equal but for decimals, which have at least as many digits in ``wide`` before the point and
    after it. Struct fields must have the same names, case included, in the same order. Nullability
    and map keys do not count.

    ``whole``: False to ignore the digits before the point. Decimals in values of maps are compared
    on both sides of the point nevertheless. Raises ``ValueError`` for structs whose counts of
    fields differ.
    """
    if isinstance(narrow, DecimalType) and isinstance(wide, DecimalType):
        has_whole = wide.precision - wide.scale >= narrow.precision - narrow.scale
        return wide.scale >= narrow.scale and (has_whole or not whole)
    if isinstance(narrow, StructType) and isinstance(wide, StructType):
        return all(
            a.name == b.name and widens(a.dataType, b.dataType, whole=whole)
            for a, b in zip(narrow, wide, strict=True)
        )
    if isinstance(narrow, ArrayType) and isinstance(wide, ArrayType):
        return widens(narrow.elementType, wide.elementType, whole=whole)
    if isinstance(narrow, MapType) and isinstance(wide, MapType):
        return widens(narrow.valueType, wide.valueType)
    return narrow.simpleString() == wide.simpleString()


def _branch_of_writer(writer: Avro, reader: Avro) -> Avro:
    """Return the type among those of ``writer``, a union or another type, that ``reader`` reads:
    the one of its name, else of its Avro type, else an ``int`` for a ``long``. If there is none,
    return ``reader`` for a union, else ``writer``. ``reader``: no union.
    """
    if not isinstance(writer, list):
        return writer
    kind = avro_type_name(reader)
    alike = [of for of in writer if avro_type_name(of) == kind]
    named = [of for of in alike if kind in _NAMED_TYPES and of["name"] == reader["name"]]
    ints = [of for of in writer if kind == "long" and avro_type_name(of) == "int"]
    return next(iter((*named, *alike, *ints)), reader)


def _is_decimal_and_text(decimal: Avro, text: Avro) -> bool:
    """Return True if the first schema is a decimal and the second one a plain text. Avro would take
    the bytes of one for the other. Both are without their null.
    """
    is_decimal = isinstance(decimal, dict) and decimal.get("logicalType") == "decimal"
    return is_decimal and avro_type_name(text) == "string"


def _is_local(schema: Avro) -> bool:
    """Return True if the logical type of ``schema``, which must have one, is that of a timestamp
    without a zone.
    """
    return str(schema["logicalType"]).startswith(_LOCAL)


def _field_with_units_of_writer(writer: dict[str, Avro], field: Avro) -> Avro:
    """Return a field of the reader's schema with the writer's logical types where both have one and
    the two differ, at any depth. A changed field loses its default. A field that the writer lacks
    is returned unchanged.

    ``writer``: the fields of the writer's record by name, which may be an alias of ``field``.
    """
    names = [field["name"], *field.get("aliases", ())]
    written = next((writer[name] for name in names if name in writer), None)
    if written is None:
        return field
    type_ = with_units_of_writer(written["type"], field["type"])
    if type_ == field["type"]:
        return field
    return {name: of for name, of in field.items() if name != "default"} | {"type": type_}


_NAMED_TYPES = ("record", "enum", "fixed")


def resolve_references(
    schema: Avro, names: dict[str, Avro] | None = None, namespace: str = ""
) -> Avro:
    """Return the schema with named types in place of references to them, each with its full name. A
    name that is not known, such as that of a plain type, stays as it is. Types that refer to
    themselves keep that reference as it is written. If a name is defined twice, a reference means
    the last definition before it.

    ``names``: the named types so far by full name, to which new ones are added; None for none.
    ``namespace``: that of the enclosing type, empty for none. ``schema`` is not changed.
    """
    names = {} if names is None else names
    if isinstance(schema, str):
        return names.get(_full_name(schema, namespace), names.get(schema, schema))
    if isinstance(schema, list):
        return [resolve_references(branch, names, namespace) for branch in schema]
    resolved = dict(schema)
    kind = resolved["type"]
    if isinstance(kind, list):
        return resolve_references(kind, names, namespace)
    if isinstance(kind, dict) or (
        kind not in _NAMED_TYPES and _full_name(kind, namespace) in names
    ):
        inner = resolve_references(kind, names, namespace)
        beside = {name: of for name, of in resolved.items() if name != "type"}
        return {**inner, **beside} if isinstance(inner, dict) and "name" not in inner else inner
    if kind in _NAMED_TYPES:
        resolved["name"] = _full_name(
            resolved["name"], resolved.pop("namespace", None) or namespace
        )
        namespace = resolved["name"].rpartition(".")[0]
    for inner in ("items", "values"):
        if inner in resolved:
            resolved[inner] = resolve_references(resolved[inner], names, namespace)
    if kind == "record":
        resolved["fields"] = [
            {**f, "type": resolve_references(f["type"], names, namespace)}
            for f in resolved["fields"]
        ]
    if kind in _NAMED_TYPES:
        names[resolved["name"]] = resolved
    return resolved


def _full_name(name: str, namespace: str) -> str:
    """Return ``name`` with the namespace and a dot in front. A name that has a dot stays as it is,
    and so does any name if the namespace is empty.
    """
    return name if "." in name or not namespace else f"{namespace}.{name}"


def schema_text(schema: Avro) -> str:
    """Return a schema as JSON text, in which repeated named types are references. ``schema``: with
    named types in full, as ``resolve_references`` makes it.
    """
    return json.dumps(_with_references(schema, {}))


def _with_references(schema: Avro, seen: dict[str, Avro]) -> Avro:
    """Return the schema with each named type defined where it occurs first, and named where it is
    used again. Different types of one name get different names: ``other.`` is put in front of the
    full name as a namespace, once more for each further type.

    ``seen``: the types so far by full name, to which new ones are added. ``schema`` is not changed.
    """
    if isinstance(schema, list):
        return [_with_references(branch, seen) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    written = dict(schema)
    if written["type"] in _NAMED_TYPES:
        while seen.get(written["name"], schema) != schema:
            # Avro does not match records by namespace.
            written["name"] = f"other.{written['name']}"
        if written["name"] in seen:
            return written["name"]
        seen[written["name"]] = schema
    for inner in ("items", "values"):
        if inner in written:
            written[inner] = _with_references(written[inner], seen)
    if "fields" in written:
        written["fields"] = [
            {**f, "type": _with_references(f["type"], seen)} for f in written["fields"]
        ]
    return written
