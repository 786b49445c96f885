"""What all of a plan's builders refuse: names that occur twice, types that cannot serve."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from pyspark.sql.types import (
    ArrayType,
    CalendarIntervalType,
    DataType,
    MapType,
    StringType,
    StructField,
    StructType,
    VariantType,
    YearMonthIntervalType,
)

from dovetail.columns import is_reserved
from dovetail.errors import PlanError


@dataclass(frozen=True)
class Verdict:
    """One limitation of delta joins and how a join stands to it: ``limit``, what it is about;
    ``broken``, what is wrong, None where it is met; ``remedy`` for what is wrong, or else ``how``
    it is met.
    """

    limit: str
    broken: str | None
    remedy: str = ""
    how: str = ""


class Keyed(Protocol):
    """What has a name, for errors, a key and values."""

    @property
    def name(self) -> str:
        """What errors call it."""

    @property
    def key(self) -> StructType:
        """The key columns."""

    @property
    def values(self) -> StructType:
        """The value columns."""


def refuse_duplicates(operator: str, names: Sequence[str], remedy: str) -> None:
    """Spark compares column names without case, so ``ID`` and ``id`` are one name."""
    seen: set[str] = set()
    for name in names:
        if name.lower() in seen:
            raise PlanError(operator, f"column {name!r} occurs twice", remedy)
        seen.add(name.lower())


def refuse_names(operator: str, names: Sequence[str], remedy: str) -> None:
    """A column needs a name, and none that changelogs or stages use themselves."""
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
    of: str | None = None,
    hint: str = "",
) -> StructField:
    """Return the column of this name.

    Raises ``PlanError`` for an unknown name, which says ``where`` it is named, which columns are
    known, ``of`` which input, and the nearest of them.
    """
    if not isinstance(name, str) or name not in schema.names:
        raise PlanError(
            operator,
            f"{where} names an unknown column {name!r}",
            f"Known{f' in {of}' if of else ''} are {', '.join(schema.names)}{hint}"
            f"{meant(where, name, schema.names)}",
        )
    return schema[name]


_TAKES_EXPRESSIONS = ("timestamp=", "select=", "deleted=", "sequence=", "window_of=")


def meant(where: str, name: object, names: Sequence[str]) -> str:
    """Return what an unknown name may mean: the nearest known one, or an expression."""
    if not isinstance(name, str):
        return ""
    if not name.replace("_", "a").replace(".", "a").isalnum():
        computed = f'F.expr("{name}")'
        if where in _TAKES_EXPRESSIONS:
            return f"; for an expression write {computed}"
        return f"; make a column of an expression first: with_columns(name={computed})"
    lower = {known.lower(): known for known in names}
    close = difflib.get_close_matches(name.lower(), lower, n=1)
    if close:
        return f"; the nearest is {lower[close[0]]!r}"
    return ""


def keyed(
    operator: str, key: str | Sequence[str], schema: StructType
) -> tuple[StructType, StructType]:
    """A row's columns as key and values."""
    keys = [key] if isinstance(key, str) else list(key)
    own = StructType([known_field(operator, "key=", column, schema) for column in keys])
    refuse_duplicates(operator, keys, "Name it once in key=")
    return own, StructType([field for field in schema if field.name not in keys])


def refuse_key_type(operator: str, key: StructField) -> None:
    """Keys are equal where their bytes are: no maps, variants, intervals of months or collations,
    at any depth.
    """
    offending = next((t for t in _within(key.dataType) if _is_no_key(t)), None)
    if offending is not None:
        raise PlanError(
            operator,
            f"key column {key.name!r} of type {key.dataType.simpleString()} cannot be a key, "
            f"{offending.simpleString()} is not compared by its bytes",
            "Key the table by columns of plain types, for instance by the map's own entries or "
            "by F.lower of a text",
        )


def refuse_value_type(operator: str, value: StructField) -> None:
    """Values travel as Arrow columns, which have no calendar intervals."""
    offending = next((t for t in _within(value.dataType) if isinstance(t, _CALENDAR)), None)
    if offending is not None:
        raise PlanError(
            operator,
            f"column {value.name!r} of type {value.dataType.simpleString()} cannot be carried, "
            f"Spark has no Arrow form of {offending.simpleString()}",
            "Convert it, for instance to a number of months",
        )


def refuse_given(operator: str, problem: str, remedy: str, **given: object) -> None:
    """Refuse arguments that do not go with the others: all but those that are None."""
    for argument, value in given.items():
        if value is not None:
            raise PlanError(operator, f"{argument}= {problem}", remedy)


def signature(key: StructType) -> str:
    """Columns with their types, as errors show them."""
    return "(" + ", ".join(f"{f.name} {f.dataType.simpleString()}" for f in key) + ")"


_CALENDAR = (CalendarIntervalType, YearMonthIntervalType)


def _is_no_key(type_: DataType) -> bool:
    collated = isinstance(type_, StringType) and not type_.isUTF8BinaryCollation()
    return collated or isinstance(type_, (MapType, VariantType, *_CALENDAR))


def _within(type_: DataType) -> Iterator[DataType]:
    """A type and all types nested in it."""
    yield type_
    if isinstance(type_, ArrayType):
        yield from _within(type_.elementType)
    elif isinstance(type_, MapType):
        yield from _within(type_.keyType)
        yield from _within(type_.valueType)
    elif isinstance(type_, StructType):
        for inner in type_:
            yield from _within(inner.dataType)
