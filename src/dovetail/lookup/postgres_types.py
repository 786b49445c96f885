"""PostgreSQL's types beside the declared ones: which columns can be looked up by which keys, which
keys a column could have, and how both are written in SQL.

A key is compared as the type in which it travels (``Carrier``), or cast to the column's where the
column's index needs it. Keys that a column cannot have are left out before, so no cast fails or
rounds. What is read has one form: times without a zone are UTC, and a text is what PostgreSQL's own
cast makes of it: a ``char(n)`` without the blanks that fill it, a ``uuid`` in lower case.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dovetail.arrays.timeline import Mask
from dovetail.errors import DataError
from dovetail.lookup.keys import mask_of, within

# A column of a domain is one of the type beneath it.
COLUMNS = """
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

_INTEGERS = {"int2": 16, "int4": 32, "int8": 64}
_TEXTS = ("text", "varchar", "bpchar", "name", "citext", "uuid", "enum")
_TIMES = ("timestamp", "timestamptz")
_UUID = "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"
_DAY_US = 86_400_000_000
_FIRST_DAY, _LAST_DAY = pa.array([date.min, date.max]).cast(pa.int32()).to_pylist()
"""What Python has of PostgreSQL's days."""
_HEADER = 4
"""What PostgreSQL adds to the length or precision in a type modifier."""


@dataclass(frozen=True)
class StoreColumn:
    """A column of the store: ``type``, the type's name, ``"enum"`` for any enum; ``sql``, the type
    as SQL has it; ``modifier``: its length or precision, coded, -1 for none; an enum's ``labels``.
    """

    name: str
    type: str
    sql: str
    modifier: int
    labels: Sequence[str]


@dataclass(frozen=True)
class Carrier:
    """In which type keys of a column travel: PostgreSQL's, and Arrow's, None for the one they
    have.
    """

    sql: str
    arrow: pa.DataType | None = None


_CARRIERS = {
    **dict.fromkeys(_INTEGERS, Carrier("int8", pa.int64())),
    **dict.fromkeys(("float4", "float8"), Carrier("float8", pa.float64())),
    **dict.fromkeys(_TEXTS, Carrier("text")),
    "numeric": Carrier("numeric"),
    "bool": Carrier("bool"),
    "bytea": Carrier("bytea"),
    "date": Carrier("date"),
    "timestamp": Carrier("timestamp", pa.timestamp("us")),
    "timestamptz": Carrier("timestamptz", pa.timestamp("us", "UTC")),
}


def carrier(column: StoreColumn) -> Carrier:
    """How keys of a column travel that is not refused."""
    return _CARRIERS[column.type]


def refuse_column(title: str, column: StoreColumn, declared: pa.DataType, *, key: bool) -> None:
    """``DataError`` for a column that is not read as the declared type without loss; for one of a
    ``key``, also where their values are not compared exactly.
    """
    if key and column.type not in _comparable(declared):
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


def _comparable(declared: pa.DataType) -> Sequence[str]:
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


def selected(column: StoreColumn, declared: pa.DataType) -> str:
    """What is read of a column, with ``{}`` for it."""
    if column.type in _TEXTS and pa.types.is_string(declared):
        return "{}::text"
    if column.type == "float4" and pa.types.is_float64(declared):
        return "{}::float8"
    return "{}"


def equal(column: StoreColumn) -> str:
    """That a column, for which the first ``{}`` stands, has a key, the second one, to the letter;
    in a way that its index serves.
    """
    if column.type not in _TEXTS:
        return "{0} = {1}"
    own = column.sql.replace("{", "{{").replace("}", "}}").replace("%", "%%")
    cast = f"::{own}" if column.type in ("bpchar", "citext", "uuid", "enum") else ""
    return f'{{0}} = {{1}}{cast} AND {{0}}::text COLLATE "C" = {{1}}'


def fits(column: StoreColumn, keys: pa.Array, encoding: str) -> Mask:
    """Which keys the column could have: bool[n]. ``encoding``: the store's, as Python calls it."""
    types = pa.types
    if column.type in _INTEGERS:
        bound = 2 ** (_INTEGERS[column.type] - 1)
        return within(keys, -bound, bound - 1)
    if column.type == "numeric":
        return _fits_numeric(column, keys)
    if column.type in _TEXTS:
        return _fits_text(column, keys, encoding)
    if types.is_timestamp(keys.type):
        return within(keys.cast(pa.int64()), _FIRST_DAY * _DAY_US, (_LAST_DAY + 1) * _DAY_US - 1)
    if types.is_date(keys.type):
        return within(keys.cast(pa.int32()), _FIRST_DAY, _LAST_DAY)
    return np.ones(len(keys), np.bool_)


def digits_of(column: StoreColumn) -> tuple[int, int]:
    """The precision and the scale of a ``numeric`` that has them."""
    coded = column.modifier - _HEADER
    return coded >> 16, (coded & 0x7FF ^ 0x400) - 0x400


def _fits_numeric(column: StoreColumn, keys: pa.Array) -> Mask:
    if column.modifier < 0:
        return np.ones(len(keys), np.bool_)
    precision, scale = digits_of(column)
    digits = keys.type.scale if pa.types.is_decimal(keys.type) else 0
    wide = keys.cast(pa.decimal256(76, digits))
    fine = pc.equal(pc.round(wide, scale), wide)
    whole = precision - scale
    if whole > 76 - digits:
        return mask_of(fine)
    bound = pa.scalar(Decimal(1).scaleb(max(whole, -digits)), pa.decimal256(76, digits))
    return mask_of(fine, pc.less(pc.abs(wide), bound))


def _fits_text(column: StoreColumn, keys: pa.Array, encoding: str) -> Mask:
    if column.type == "uuid":
        return mask_of(pc.match_substring_regex(keys, _UUID))
    if column.type == "enum":
        return mask_of(pc.is_in(keys, pa.array(column.labels, keys.type)))
    fine = [pc.invert(pc.match_substring(keys, "\0"))]
    if column.type in ("varchar", "bpchar") and column.modifier >= 0:
        fine.append(pc.less_equal(pc.utf8_length(keys), column.modifier - _HEADER))
    if column.type == "bpchar":
        fine.append(pc.invert(pc.ends_with(keys, " ")))
    mask = mask_of(*fine)
    if encoding != "utf-8":
        mask &= np.array([_encodes(key, encoding) for key in keys.to_pylist()], np.bool_)
    return mask


def _encodes(key: str, encoding: str) -> bool:
    try:
        key.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True
