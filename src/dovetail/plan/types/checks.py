"""Checks that all builders of plans share: duplicate names, unknown names, unsuitable types.

Each function named ``refuse_…`` raises ``PlanError`` and otherwise returns None. ``operator`` is
the subject of the error, ``remedy`` its advice.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    CalendarIntervalType,
    DataType,
    MapType,
    NumericType,
    StringType,
    StructField,
    StructType,
    VariantType,
    YearMonthIntervalType,
)

from dovetail.base.columns import is_reserved
from dovetail.errors import PlanError


@dataclass(frozen=True)
class Verdict:
    """One limitation of delta joins, and whether a join meets it."""

    limit: str
    """The name of the limitation."""
    broken: str | None
    """The problem, or None if the limitation is met."""
    remedy: str = ""
    """Advice on the problem; empty if the limitation is met."""
    how: str = ""
    """The reason why the limitation is met; empty if it is broken."""


class KeyedNode(Protocol):
    """Anything with a name for errors, a key and values."""

    @property
    def name(self) -> str:
        """The name in errors."""

    @property
    def key(self) -> StructType:
        """The key columns with their types, in order."""

    @property
    def values(self) -> StructType:
        """The value columns with their types, in order; empty without values."""


def refuse_duplicates(operator: str, names: Sequence[str], remedy: str) -> None:
    """Raise ``PlanError`` if one of ``names`` occurs twice. Case is ignored, as Spark does: ``ID``
    and ``id`` are one name. ``operator``, ``remedy``: the error's subject and advice.
    """
    earlier: set[str] = set()
    for name in names:
        if name.lower() in earlier:
            raise PlanError(operator, f"column {name!r} occurs twice", remedy)
        earlier.add(name.lower())


def refuse_names(operator: str, names: Sequence[str], remedy: str) -> None:
    """Raise ``PlanError`` for the first of ``names`` that is empty, or reserved for changelogs and
    stages (``base.columns.is_reserved``). ``operator``, ``remedy``: the error's subject and advice.
    """
    for name in names:
        if not name or is_reserved(name):
            why = "has a name that changelogs use themselves" if name else "has no name"
            raise PlanError(operator, f"column {name!r} {why}", remedy)


def known_field(
    operator: str,
    where: str,
    name: object,
    schema: StructType,
    *,
    input_name: str | None = None,
    hint: str = "",
) -> StructField:
    """Return the column ``name`` of ``schema``.

    Raises ``PlanError`` for an unknown name; case counts. The error says ``where`` the name was
    given, such as ``key=``. It lists the columns of ``schema``, as those of ``input_name`` if that
    is given, and names a similar one. ``hint`` is added to the list. ``operator``: the error's
    subject.
    """
    if not isinstance(name, str) or name not in schema.names:
        raise PlanError(
            operator,
            f"{where} names an unknown column {name!r}",
            f"Known{f' in {input_name}' if input_name else ''} are {', '.join(schema.names)}{hint}"
            f"{unknown_name_advice(where, name, schema.names)}",
        )
    return schema[name]


_EXPRESSION_ARGUMENTS = ("timestamp=", "select=", "deleted=", "sequence=", "window_of=")


def unknown_name_advice(where: str, name: object, names: Sequence[str]) -> str:
    """Return advice on an unknown name: how to write an expression if ``name`` looks like one, else
    the most similar of the known ``names``.

    A text looks like an expression if it has signs other than letters, digits, ``_`` and ``.``, or
    is empty. The advice begins with ``;``. It is empty if no name is similar, and for a ``name``
    that is no text. ``where``: the argument with the name, such as ``select=``.
    """
    if not isinstance(name, str):
        return ""
    if not name.replace("_", "a").replace(".", "a").isalnum():
        computed = f'F.expr("{name}")'
        if where in _EXPRESSION_ARGUMENTS:
            return f"; for an expression write {computed}"
        return f"; make a column of an expression first: with_columns(name={computed})"
    lower = {candidate.lower(): candidate for candidate in names}
    close = difflib.get_close_matches(name.lower(), lower, n=1)
    if close:
        return f"; the nearest is {lower[close[0]]!r}"
    return ""


def split_key_and_values(
    operator: str, key: str | Sequence[str], schema: StructType
) -> tuple[StructType, StructType]:
    """Split a schema into key columns, in the order of ``key``, and value columns, in that of
    ``schema``.

    ``operator``: the subject of errors. ``key``: one column or several; none leave all columns as
    values. Raises ``PlanError`` for an unknown key column, and for one named twice.
    """
    keys = [key] if isinstance(key, str) else list(key)
    key_fields = StructType([known_field(operator, "key=", column, schema) for column in keys])
    refuse_duplicates(operator, keys, "Name it once in key=")
    return key_fields, StructType([field for field in schema if field.name not in keys])


def refuse_key_type(operator: str, key: StructField) -> None:
    """Raise ``PlanError`` if a key column has a type whose equality differs from equality of bytes.

    Such types are maps, variants, calendar and year-month intervals, and collated strings, at any
    depth. Floats pass, since -0.0 and NaNs in keys are made canonical. ``operator``: the error's
    subject.
    """
    offending = next((t for t in types_within(key.dataType) if _cannot_be_key(t)), None)
    if offending is not None:
        raise PlanError(
            operator,
            f"key column {key.name!r} of type {key.dataType.simpleString()} cannot be a key, "
            f"{offending.simpleString()} is not compared by its bytes",
            "Key the table by columns of plain types, for instance by the map's own entries or "
            "by F.lower of a text",
        )


def refuse_value_type(operator: str, value: StructField) -> None:
    """Raise ``PlanError`` if the column ``value`` has calendar or year-month intervals at any
    depth. Values travel as Arrow columns, for which Spark has no form of these types. ``operator``:
    the error's subject.
    """
    offending = next(
        (t for t in types_within(value.dataType) if isinstance(t, _CALENDAR_TYPES)), None
    )
    if offending is not None:
        raise PlanError(
            operator,
            f"column {value.name!r} of type {value.dataType.simpleString()} cannot be carried, "
            f"Spark has no Arrow form of {offending.simpleString()}",
            "Convert it, for instance to a number of months",
        )


def map_without_text_keys(type_: DataType) -> MapType | None:
    """Return the first map in a type, at any depth, whose keys are no strings, numbers or booleans;
    None if there is none.

    Spark does not write such keys as their text in JSON: dates become numbers, and bytes and arrays
    the names of Java objects.
    """
    maps = (part for part in types_within(type_) if isinstance(part, MapType))
    return next((part for part in maps if not isinstance(part.keyType, _TEXT_KEYS)), None)


def refuse_given(operator: str, problem: str, remedy: str, **arguments: object) -> None:
    """Raise ``PlanError`` for the first of ``arguments`` that is not None; raise nothing if all are
    None. ``problem``: the words that follow the argument's name, such as ``is for streams``.
    ``operator``, ``remedy``: the error's subject and advice.
    """
    for argument, value in arguments.items():
        if value is not None:
            raise PlanError(operator, f"{argument}= {problem}", remedy)


def columns_as_text(key: StructType) -> str:
    """Return columns with their types as errors show them, such as ``(id bigint, name string)``."""
    return "(" + ", ".join(f"{f.name} {f.dataType.simpleString()}" for f in key) + ")"


_TEXT_KEYS = (StringType, NumericType, BooleanType)
_CALENDAR_TYPES = (CalendarIntervalType, YearMonthIntervalType)


def _cannot_be_key(type_: DataType) -> bool:
    """Return True if values of a type cannot be keys: maps, variants, calendar and year-month
    intervals, and collated strings. Types nested in ``type_`` are not looked at.
    """
    collated = isinstance(type_, StringType) and not type_.isUTF8BinaryCollation()
    return collated or isinstance(type_, (MapType, VariantType, *_CALENDAR_TYPES))


def types_within(type_: DataType) -> Iterator[DataType]:
    """Yield a type and all types nested in it, outer ones first: elements, keys before values, and
    fields in order. A plain type yields itself alone.
    """
    yield type_
    if isinstance(type_, ArrayType):
        yield from types_within(type_.elementType)
    elif isinstance(type_, MapType):
        yield from types_within(type_.keyType)
        yield from types_within(type_.valueType)
    elif isinstance(type_, StructType):
        for inner in type_:
            yield from types_within(inner.dataType)
