"""Spark's columns in PostgreSQL: their types there, the columns that can store them, and rows as
the text that ``COPY`` reads.

PostgreSQL has no type for structs, maps, variants, and arrays of those or of arrays. They are JSON
(``jsonb``), made in the JVM before the rows leave it. The text is CSV, written by Arrow: it quotes
every text and leaves nulls empty, and so ``COPY`` tells the two apart.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    StringType,
    StructField,
    StructType,
    VariantType,
)

from dovetail.base.columns import quoted
from dovetail.base.infinity import (
    FIRST_DAY,
    FIRST_MICROSECOND,
    INFINITE_TEXTS,
    LAST_DAY,
    LAST_MICROSECOND,
)
from dovetail.base.json_options import ALL_VALUES
from dovetail.errors import DataError, PlanError
from dovetail.lookup_sources.postgres_types import (
    HEADER,
    StoreColumn,
    digits_of,
    find_possible_keys,
)
from dovetail.plan.types.checks import map_without_text_keys

JSON_TYPE = "jsonb"
NAME_BYTES_MAX = 63
"""The longest name of a column, in bytes. PostgreSQL cuts longer names."""

_TYPES = {
    "byte": "smallint",
    "short": "smallint",
    "integer": "integer",
    "long": "bigint",
    "float": "real",
    "double": "double precision",
    "boolean": "boolean",
    "string": "text",
    "binary": "bytea",
    "date": "date",
    "timestamp": "timestamp with time zone",
    "timestamp_ntz": "timestamp without time zone",
}
_WIDER_TYPES = {
    "smallint": ("integer", "bigint"),
    "integer": ("bigint",),
    "text": ("character varying", "uuid"),
    JSON_TYPE: ("json",),
}
"""By type: other types that store each of its values unchanged, or refuse it."""
_DIGITS = {"smallint": 5, "integer": 10, "bigint": 19}
"""The most digits of a whole number, by type."""
_TIME_DIGITS = 6
"""The digits after the second of Spark's times. PostgreSQL rounds to what a column has."""
_HEX = np.frombuffer("".join(f"{n:02x}" for n in range(256)).encode(), np.uint8).reshape(256, 2)
_NUL_IN_JSON = r"(?:^|[^\\])(?:\\\\)*\\u0000"
"""A pattern of JSON texts with a NUL character, which ``jsonb`` does not take."""
_ENCODING = "utf-8"
"""The encoding of texts. A database with a smaller one refuses the rest by itself."""
_SHOWN_MAX = 60
"""The most characters of a value in an error."""


def postgres_types(title: str, schema: StructType, keys: Sequence[str]) -> dict[str, str]:
    """Return the PostgreSQL types of the columns ``schema``, by name, in their order. ``keys``: the
    key columns. ``title``: the sink's name in errors.

    Raises ``PlanError`` for columns that PostgreSQL cannot store, for names of more than 63 bytes,
    and for keys that are no plain values. Also for maps whose keys have no text in JSON.
    """
    types = {}
    for column in schema:
        if len(column.name.encode()) > NAME_BYTES_MAX:
            _refuse(title, column, "its name is longer than 63 bytes", "Give it a shorter name")
        sql_type = _plain_type(column.dataType)
        unwritten = map_without_text_keys(column.dataType)
        if unwritten is not None:
            problem = f"JSON has no text for the keys of {unwritten.simpleString()}"
            _refuse(title, column, problem, "Make texts of the keys by F.transform_keys()")
        if sql_type is None:
            _refuse(title, column, "PostgreSQL has no type for it", "Cast it, or leave it out")
        if column.name in keys and (sql_type == JSON_TYPE or sql_type.endswith("[]")):
            _refuse(title, column, "a key needs plain values", "Key the table by what is in it")
        types[column.name] = sql_type
    return types


def column_differences(present: Mapping[str, StoreColumn], wanted: Mapping[str, str]) -> list[str]:
    """Return the differences of a table's columns from the wanted ones, as texts. Missing columns
    come first, then further ones, then those that cannot store each value. The list is empty if
    there are none. The order of columns does not count, the case of their names does.

    ``present``: the table's columns by name. ``wanted``: types in PostgreSQL by name.
    """
    return [
        *(f"{name} is missing" for name in wanted if name not in present),
        *(f"{name} is not among the query's" for name in present if name not in wanted),
        *(
            f"{name} is {_type_as_text(present[name])} and comes as {sql_type}"
            for name, sql_type in wanted.items()
            if name in present and not _can_store(present[name], sql_type)
        ),
    ]


def outgoing_columns(schema: StructType) -> list[Column]:
    """Return a column for each field of ``schema``, in order and under its name, in the form in
    which it leaves the JVM. Values that PostgreSQL stores as ``jsonb`` (maps, structs, nested
    arrays, variants) are JSON texts; others are unchanged.
    """
    return [
        F.to_json(quoted(f.name), ALL_VALUES).alias(f.name)
        if _plain_type(f.dataType) == JSON_TYPE
        else F.col(quoted(f.name))
        for f in schema
    ]


def refuse_values(
    title: str,
    rows: pa.Table,
    columns: Mapping[str, StoreColumn],
    keys: Sequence[str],
) -> None:
    """Raise ``DataError`` for the first value that its column cannot store. The error shows the
    row's ``keys``. Columns are examined in their order; nulls pass.

    ``title``: the sink's name in errors. ``rows``: with all of ``columns`` and ``keys``; other
    columns do not count.
    """
    for name, column in columns.items():
        values = rows[name].combine_chunks()
        there = values.is_valid().to_numpy(zero_copy_only=False)
        fine = np.ones(len(values), np.bool_)
        fine[there] = _storable_values(column, values.filter(values.is_valid()))
        if fine.all():
            continue
        row = int(np.argmin(fine))
        key = ", ".join(f"{k}={_value_as_text(rows[k][row])}" for k in keys)
        raise DataError(
            title,
            f"column {name} of {_type_as_text(column)} does not have the value "
            f"{_value_as_text(values[row])}{f', of key {key}' if key else ''}",
            "Texts have no NUL there, and no more characters than their type says. Dates and times "
            "are of the years 1 to 9999. Replace it by with_columns(), or leave the row out by "
            "where()",
        )


def csv_of(rows: pa.Table) -> bytes:
    r"""Return the rows, in order, as the UTF-8 text that ``COPY … (FORMAT csv)`` reads, without a
    header. Times with a zone become those of UTC, without a zone.

    A null is an empty field, and an empty text has quotes. No rows give an empty text.

    >>> rows = pa.table({"a": ["x, 'y'", None, ""], "b": [b"\x00\xff", None, b""]})
    >>> print(csv_of(rows).decode())
    "x, 'y'","\x00ff"
    ,
    "","\x"
    <BLANKLINE>
    >>> csv_of(pa.table({"a": pa.array([["x,", None], None, []], pa.list_(pa.string()))}))
    b'"{""x,"",NULL}"\n\n"{}"\n'
    >>> csv_of(pa.table({"d": pa.array([2932895, -719160, 0], pa.date32())}))
    b'"infinity"\n"-infinity"\n"1970-01-01"\n'
    """
    columns = [_csv_column(column.combine_chunks()) for column in rows.columns]
    text = io.BytesIO()
    options = pyarrow.csv.WriteOptions(include_header=False, quoting_style="needed")
    pyarrow.csv.write_csv(pa.table(columns, rows.column_names), text, options)
    return text.getvalue()


def _plain_type(type_: DataType) -> str | None:
    """Return PostgreSQL's name of the type for ``type_``, one of Spark's: an array or ``jsonb`` for
    nested ones. None if it has none.
    """
    if isinstance(type_, DecimalType):
        return f"numeric({type_.precision},{type_.scale})"
    if isinstance(type_, StringType):
        return "text"
    if isinstance(type_, (ArrayType, MapType, StructType, VariantType)):
        return _nested_type(type_)
    return _TYPES.get(type_.typeName())


def _nested_type(type_: DataType) -> str | None:
    """Return PostgreSQL's type for ``type_``, an array, map, struct or variant; None if it has none
    for a part. An array of a plain type is an array; all others are ``jsonb``.
    """
    if isinstance(type_, ArrayType):
        element = _plain_type(type_.elementType)
        plain = element is not None and element != JSON_TYPE and not element.endswith("[]")
        return f"{element}[]" if plain else element and JSON_TYPE
    if isinstance(type_, MapType):
        return _plain_type(type_.valueType) and JSON_TYPE
    fields = [] if isinstance(type_, VariantType) else type_.fields  # type: ignore[attr-defined]
    return JSON_TYPE if all(_plain_type(field.dataType) for field in fields) else None


def _can_store(column: StoreColumn, wanted: str) -> bool:
    """Return True if a column can store each value of the type ``wanted``, one of
    ``postgres_types``: unchanged, or by refusing it with an error.
    """
    if column.sql.startswith("numeric"):
        return _can_store_numbers(column, wanted)
    if column.type == "enum":
        return wanted == "text"
    if _rounds_times(column):
        return False
    return column.sql in (wanted, *_WIDER_TYPES.get(wanted, ()))


def _rounds_times(column: StoreColumn) -> bool:
    """Return True for a column of timestamps, or of arrays of them, with fewer than six digits
    after the second.
    """
    is_time = column.type.removeprefix("_") in ("timestamp", "timestamptz")
    return is_time and 0 <= column.modifier < _TIME_DIGITS


def _can_store_numbers(column: StoreColumn, wanted: str) -> bool:
    """Return True if a numeric column, or an array of such, stores each number of the type
    ``wanted`` unchanged. False for types that are no integers and no ``numeric``.
    """
    if wanted in _DIGITS:
        precision, scale = _DIGITS[wanted], 0
    elif wanted.startswith("numeric") and wanted.endswith("[]") == column.sql.endswith("[]"):
        inner = wanted.removesuffix("[]").removeprefix("numeric(").removesuffix(")")
        precision, scale = map(int, inner.split(","))
    else:
        return False
    if column.modifier < 0:
        return True
    column_precision, column_scale = digits_of(column)
    return column_scale >= scale and column_precision - column_scale >= precision - scale


def _storable_values(column: StoreColumn, values: pa.Array) -> Any:
    """Return a boolean for each of ``values``, none of them null: True if the column can store the
    value, an array with all its elements. The result is bool[n].
    """
    if column.type in ("json", "jsonb"):
        return ~pc.match_substring_regex(values, _NUL_IN_JSON).to_numpy(zero_copy_only=False)
    if not pa.types.is_list(values.type):
        return find_possible_keys(column, values, _ENCODING)
    element = StoreColumn(
        column.name, column.type.removeprefix("_"), column.sql, column.modifier, []
    )
    parents, flat = pc.list_parent_indices(values), values.flatten()
    parents, flat = parents.filter(flat.is_valid()), flat.filter(flat.is_valid())
    fine = np.ones(len(values), np.bool_)
    fine[parents.to_numpy()[~find_possible_keys(element, flat, _ENCODING)]] = False
    return fine


def _csv_column(column: pa.Array) -> pa.Array:
    """Return the values of a column in a type that Arrow's CSV writes as PostgreSQL reads them;
    nulls stay null.

    Lists, bytes and decimals become texts. So do all dates or timestamps of a column in which one
    stands for infinity. Other timestamps lose their zone, and become those of UTC.
    """
    type_ = column.type
    if pa.types.is_list(type_):
        return _array_texts(column)
    if pa.types.is_binary(type_) or pa.types.is_large_binary(type_):
        return _hex_texts(column)
    if pa.types.is_timestamp(type_):
        times_us = column.cast(pa.int64())
        times = times_us.cast(pa.timestamp("us"))
        return _with_infinity(times, times_us, LAST_MICROSECOND, FIRST_MICROSECOND)
    if pa.types.is_date32(type_):
        return _with_infinity(column, column.cast(pa.int32()), LAST_DAY, FIRST_DAY)
    return column.cast(pa.string()) if pa.types.is_decimal(type_) else column


def _with_infinity(column: pa.Array, since_epoch: pa.Array, last: int, first: int) -> pa.Array:
    """Return the dates or timestamps ``column`` as they are or, if some of them stand for infinity
    (``base.infinity``), all as text: ``infinity``, ``-infinity`` or the time. Nulls stay null.

    ``since_epoch``: the same values as integers, days or microseconds. ``last``, ``first``: the
    integers that stand for infinity and for minus infinity.
    """
    ends = [pc.equal(since_epoch, pa.scalar(end, since_epoch.type)) for end in (last, first)]
    if not any(pc.any(end).as_py() for end in ends):
        return column
    text = column.cast(pa.string())
    for end, name in zip(ends, INFINITE_TEXTS, strict=True):
        text = pc.if_else(end, name, text)
    return text


def _array_texts(column: pa.Array) -> pa.Array:
    """Return each list of ``column`` as the text of a PostgreSQL array constant, such as
    ``{"a",NULL}``; ``{}`` for an empty list, null for a null one. Elements are plain values.
    """
    flat = column.flatten()
    texts = _csv_column(flat).cast(pa.string())
    for sign in ("\\", '"'):
        texts = pc.replace_substring(texts, sign, "\\" + sign)
    texts = pc.fill_null(pc.binary_join_element_wise('"', texts, '"', ""), "NULL")
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    joined = pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets), texts), ",")
    written = pc.binary_join_element_wise("{", joined, "}", "")
    return pc.if_else(column.is_valid(), written, pa.scalar(None, written.type))


def _hex_texts(column: pa.Array) -> pa.Array:
    r"""Return binary values of ``column`` as PostgreSQL writes them: ``\x`` and hexadecimal digits,
    two a byte; null stays null.
    """
    filled = pc.fill_null(column, b"").cast(pa.large_binary())
    _, ends, data = filled.buffers()
    offsets = np.frombuffer(ends, np.int64)[filled.offset : filled.offset + len(filled) + 1]
    raw = np.frombuffer(data or b"", np.uint8)[offsets[0] : offsets[-1]]
    places = pa.py_buffer(np.ascontiguousarray(2 * (offsets - offsets[0])))
    texts = pa.Array.from_buffers(
        pa.large_string(), len(filled), [None, places, pa.py_buffer(_HEX[raw].tobytes())]
    )
    written = pc.binary_join_element_wise("\\x", texts.cast(pa.string()), "")
    return pc.if_else(column.is_valid(), written, pa.scalar(None, written.type))


def _type_as_text(column: StoreColumn) -> str:
    """Return a column's type in PostgreSQL's words, for an error, with digits if it has any, such
    as ``numeric(9,2)`` and ``timestamp(3) with time zone``.
    """
    if column.sql == "numeric" and column.modifier >= 0:
        return f"numeric({','.join(map(str, digits_of(column)))})"
    if _rounds_times(column):
        return column.sql.replace("timestamp", f"timestamp({column.modifier})", 1)
    if column.type == "varchar" and column.modifier >= 0:
        return f"{column.sql}({column.modifier - HEADER})"
    return column.sql


def _value_as_text(value: pa.Scalar) -> str:
    """Return a value as Python's ``repr`` writes it, for an error, cut at 60 characters. A value
    that Python lacks is described in words.
    """
    try:
        text = repr(value.as_py())
    except (OverflowError, ValueError):
        return "that comes, which is out of range"
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…"


def _refuse(title: str, column: StructField, problem: str, remedy: str) -> NoReturn:
    """Raise ``PlanError`` for a column that cannot be written. ``title``: the sink's name.
    ``problem``: the reason in words. ``remedy``: what the user can do.
    """
    shown = f"column {column.name!r} of type {column.dataType.simpleString()}"
    raise PlanError(title, f"{shown} cannot be written, {problem}", remedy)
