"""PostgreSQL's types beside the declared ones: comparable keys, possible keys, and their SQL.

A key is compared as the type in which it travels (``KeyColumnType``). It is cast to the column's
type if the column's index needs that. Keys that a column cannot have are left out before, so no
cast fails or rounds.

Values are read in one form. Times without a zone are UTC. Infinite times and dates are the values
that stand for them (``base.infinity``), in keys too. Texts are the result of PostgreSQL's own
cast: a ``char(n)`` without the blanks that fill it, a ``uuid`` in lower case.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dovetail.arrays.timeline import Mask
from dovetail.base.infinity import (
    FIRST_DAY,
    FIRST_MICROSECOND,
    INFINITE_TEXTS,
    LAST_DAY,
    LAST_MICROSECOND,
)
from dovetail.errors import DataError
from dovetail.lookup_sources.keys import find_all_true, find_calendar_keys, find_whole_keys

# A column of a domain is resolved to the domain's base type, recursively.
COLUMNS_QUERY = """
WITH RECURSIVE c AS (
  SELECT attname, atttypid AS type, atttypmod AS modifier FROM pg_attribute
  WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped
  UNION ALL
  SELECT c.attname, d.typbasetype, greatest(c.modifier, d.typtypmod)
  FROM c JOIN pg_type d ON d.oid = c.type WHERE d.typtype = 'd'
)
SELECT attname, CASE typtype WHEN 'e' THEN 'enum' ELSE typname END, format_type(type, -1), modifier,
  ARRAY(SELECT enumlabel::text FROM pg_enum WHERE enumtypid = type ORDER BY enumsortorder)
FROM c JOIN pg_type t ON t.oid = c.type WHERE typtype <> 'd'
"""
"""A query for a table's columns: name, type, SQL type, modifier, and labels of an enum."""

_INTEGERS = {"int2": 16, "int4": 32, "int8": 64}
_TEXTS = ("text", "varchar", "bpchar", "name", "citext", "uuid", "enum")
_TIMES = ("timestamp", "timestamptz")
_UUID = "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"
_INFINITE_TIMES = {
    "date": tuple(str(np.datetime64(day, "D")) for day in (LAST_DAY, FIRST_DAY)),
    **dict.fromkeys(
        _TIMES, tuple(str(np.datetime64(us, "us")) for us in (LAST_MICROSECOND, FIRST_MICROSECOND))
    ),
}
"""The values that stand for infinity and for minus infinity, by type."""
HEADER = 4
"""The number that PostgreSQL adds to the length or precision in a type modifier."""


@dataclass(frozen=True)
class StoreColumn:
    """A column of a PostgreSQL table, as its catalog describes it."""

    name: str
    type: str
    """The type's name as in ``pg_type``, ``"enum"`` for any enum. For a domain, all is that of its
    base type.
    """
    sql: str
    """The type as SQL writes it."""
    modifier: int
    """The type's length or precision, as PostgreSQL codes it; -1 for none."""
    labels: Sequence[str]
    """The labels of an enum; empty for other types."""


@dataclass(frozen=True)
class KeyColumnType:
    """The type in which the keys of a column travel."""

    sql: str
    """PostgreSQL's name of the type."""
    arrow: pa.DataType | None = None
    """The Arrow type, or None for the type that the keys have."""


_KEY_COLUMN_TYPES = {
    **dict.fromkeys(_INTEGERS, KeyColumnType("int8", pa.int64())),
    **dict.fromkeys(("float4", "float8"), KeyColumnType("float8", pa.float64())),
    **dict.fromkeys(_TEXTS, KeyColumnType("text")),
    "numeric": KeyColumnType("numeric"),
    "bool": KeyColumnType("bool"),
    "bytea": KeyColumnType("bytea"),
    "date": KeyColumnType("date"),
    "timestamp": KeyColumnType("timestamp", pa.timestamp("us")),
    "timestamptz": KeyColumnType("timestamptz", pa.timestamp("us", "UTC")),
}


def key_column_type(column: StoreColumn) -> KeyColumnType:
    """Return the type in which the keys of a column are sent to PostgreSQL: its SQL name, and the
    Arrow type to which keys are cast first (None: as they are).

    Integers are sent as ``int8``, floats as ``float8``, and all kinds of text as ``text``. Others
    are sent as their own type, ``numeric`` without a precision. Raises ``KeyError`` for a column of
    a type by which nothing is looked up, such as ``json``.
    """
    return _KEY_COLUMN_TYPES[column.type]


def refuse_column(title: str, column: StoreColumn, declared: pa.DataType, *, key: bool) -> None:
    """Raise ``DataError`` for a ``double precision`` column that is declared a single float. Other
    types that do not fit pass; they are found when the values are read.

    ``title``: the source in errors. ``declared``: the Arrow type of the column in the schema, or of
    its keys. ``key``: True to refuse also columns whose values are not compared exactly with keys
    of that type, such as texts with whole numbers.
    """
    if key and column.type not in _comparable_types(declared):
        raise DataError(
            title,
            f"column {column.name!r} is {column.sql} there, which is not compared with keys of "
            f"type {declared}",
            "Give the changelog and the store the same type, for instance by a view that casts the "
            "column, with an index on that expression",
        )
    if pa.types.is_float32(declared) and column.type == "float8":
        raise DataError(
            title,
            f"column {column.name!r} is {column.sql} there, of which type {declared} keeps half",
            "Declare it a double",
        )


def _comparable_types(declared: pa.DataType) -> Sequence[str]:
    """Return the names of PostgreSQL's types, as in ``pg_type``, whose values are compared exactly
    with keys of the Arrow type ``declared``. ``enum`` stands for all enums. Empty for types that
    are no keys, such as lists.
    """
    types = pa.types
    if types.is_integer(declared) or types.is_decimal(declared):
        return (*_INTEGERS, "numeric")
    if types.is_floating(declared):
        return ("float4", "float8")
    if types.is_timestamp(declared):
        return _TIMES
    plain = {"bool": types.is_boolean, "bytea": types.is_binary, "date": types.is_date}
    return [name for name, kind in plain.items() if kind(declared)] or (
        _TEXTS if types.is_string(declared) else ()
    )


def select_expression(column: StoreColumn, declared: pa.DataType) -> str:
    """Return the SQL that reads a column as the Arrow type ``declared``, a format with ``{}`` for
    the column. Kinds of text declared as strings and single floats declared as doubles are cast.
    Infinite times and dates become finite ones of the years 9999 and 1 (``base.infinity``). Else
    the SQL is ``{}`` alone.
    """
    if column.type in _INFINITE_TIMES:
        return _replacement("{0}", INFINITE_TEXTS, _INFINITE_TIMES[column.type])
    if column.type in _TEXTS and pa.types.is_string(declared):
        return "{}::text"
    if column.type == "float4" and pa.types.is_float64(declared):
        return "{}::float8"
    return "{}"


def equality_condition(column: StoreColumn) -> str:
    """Return the SQL condition that a column ``{0}`` equals a key ``{1}`` to the letter, in a form
    that uses the column's index.

    ``column``: one whose type can be looked up by. The key has the type that ``key_column_type``
    returns for it. The result is a format for ``psycopg.sql``, so braces and ``%`` in names of
    types are doubled.
    """
    if column.type in _INFINITE_TIMES:
        return "{0} = " + _replacement("{1}", _INFINITE_TIMES[column.type], INFINITE_TEXTS)
    if column.type not in _TEXTS:
        return "{0} = {1}"
    sql_type = column.sql.replace("{", "{{").replace("}", "}}").replace("%", "%%")
    cast = f"::{sql_type}" if column.type in ("bpchar", "citext", "uuid", "enum") else ""
    return f'{{0}} = {{1}}{cast} AND {{0}}::text COLLATE "C" = {{1}}'


def _replacement(value: str, old: Sequence[str], new: Sequence[str]) -> str:
    """Return SQL for ``value``, SQL too, with each of the constants ``old`` replaced by that of
    ``new`` in its place. The constants are texts without quotes, in the form of the value's type.
    """
    cases = " ".join(f"WHEN '{a}' THEN '{b}'" for a, b in zip(old, new, strict=True))
    return f"CASE {value} {cases} ELSE {value} END"


def find_possible_keys(column: StoreColumn, keys: pa.Array, encoding: str) -> Mask:
    """Return a mask of the n ``keys`` that the column could have: bool[n]. ``keys``: values of one
    key column, without nulls.

    ``column``: of a type that is compared exactly with that of ``keys`` (``refuse_column`` with
    ``key=True``). ``encoding``: the connection's encoding, by Python's name; texts that it cannot
    encode do not fit. Floats, booleans and bytes all fit.
    """
    if column.type in _INTEGERS:
        bound = 2 ** (_INTEGERS[column.type] - 1)
        return find_whole_keys(keys, -bound, bound - 1)
    if column.type == "numeric":
        return _find_possible_numbers(column, keys)
    if column.type in _TEXTS:
        return _find_possible_texts(column, keys, encoding)
    if pa.types.is_timestamp(keys.type) or pa.types.is_date(keys.type):
        return find_calendar_keys(keys)
    return np.ones(len(keys), np.bool_)


def digits_of(column: StoreColumn) -> tuple[int, int]:
    """Return the precision and the scale of a ``numeric`` column, in decimal digits. The scale may
    be negative. The column must declare them: its ``modifier`` is not -1.
    """
    coded = column.modifier - HEADER
    return coded >> 16, (coded & 0x7FF ^ 0x400) - 0x400


def _find_possible_numbers(column: StoreColumn, keys: pa.Array) -> Mask:
    """Return a mask of the n ``keys`` that fit a ``numeric`` column's precision and scale, without
    rounding: bool[n]. A column without these fits all. ``keys``: whole numbers or decimals, without
    nulls.
    """
    if column.modifier < 0:
        return np.ones(len(keys), np.bool_)
    precision, scale = digits_of(column)
    digits = keys.type.scale if pa.types.is_decimal(keys.type) else 0
    wide = keys.cast(pa.decimal256(76, digits))
    fine = pc.equal(pc.round(wide, scale), wide)
    whole = precision - scale
    if whole > 76 - digits:
        return find_all_true(fine)
    bound = pa.scalar(Decimal(1).scaleb(max(whole, -digits)), pa.decimal256(76, digits))
    return find_all_true(fine, pc.less(pc.abs(wide), bound))


def _find_possible_texts(column: StoreColumn, keys: pa.Array, encoding: str) -> Mask:
    """Return a mask of the n ``keys`` that a text, UUID or enum column could have: bool[n].
    ``keys``: texts without nulls. ``encoding``: the connection's, by Python's name.

    A UUID or the label of an enum must be written as PostgreSQL writes it. Other texts must have no
    NUL, no more characters than the column, and for ``bpchar`` no blank at the end. They must be
    encodable.
    """
    if column.type == "uuid":
        return find_all_true(pc.match_substring_regex(keys, _UUID))
    if column.type == "enum":
        return find_all_true(pc.is_in(keys, pa.array(column.labels, keys.type)))
    fine = [pc.invert(pc.match_substring(keys, "\0"))]
    if column.type in ("varchar", "bpchar") and column.modifier >= 0:
        fine.append(pc.less_equal(pc.utf8_length(keys), column.modifier - HEADER))
    if column.type == "bpchar":
        fine.append(pc.invert(pc.ends_with(keys, " ")))
    mask = find_all_true(*fine)
    if encoding != "utf-8":
        mask &= np.array([_is_encodable(key, encoding) for key in keys.to_pylist()], np.bool_)
    return mask


def _is_encodable(key: str, encoding: str) -> bool:
    """Return True if the encoding, by Python's name, has all characters of ``key``. Raises
    ``LookupError`` for an encoding that Python lacks.
    """
    try:
        key.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True
