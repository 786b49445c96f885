"""A few rows of a Delta table replaced by their keys, in one commit of few small jobs.

A MERGE joins its source with the table three times: to find the files that it touches, to write new
rows, and to mark deleted ones. If the keys are few and at hand, this is not needed. One scan of the
key columns finds the rows with these keys, which go, and the new rows are written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    IntegralType,
    LongType,
    NumericType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from dovetail.base.columns import DELETED, quoted
from dovetail.errors import DataError
from dovetail.platform import delta_tables

ROWS_MAX = 10_000
BYTES_MAX = 16 << 20
"""The limits of rows and bytes that are collected to this process."""
CONDITION_CHARS_MAX = 1 << 20
"""The longest condition, which is written into the table's log."""

CODE = "spark.sql.codegen.factoryMode"
"""The setting that says whether Spark compiles code for its plans."""
INTERPRETED, COMPILED = "NO_CODEGEN", "FALLBACK"
COMPILED_BYTES_MIN = 8 << 20
"""Smaller tables are read without compiled code. A commit takes some hundred pieces of code, more
than Spark keeps by default. Compiling them takes longer than reading so few rows."""
_SETTINGS = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.autoBroadcastJoinThreshold": str(1 << 40),
    CODE: INTERPRETED,
    "spark.sql.leafNodeDefaultParallelism": "1",
    "spark.sql.shuffle.partitions": "1",
}
"""Settings for few rows: one task a step, no shuffle of the table, no compiled code. More rows get
Spark's defaults, under which it finds the number of tasks by itself."""

_SUFFIXES: Mapping[type[DataType], str] = {
    ByteType: "Y",
    ShortType: "S",
    IntegerType: "",
    LongType: "L",
}


Mask = npt.NDArray[np.bool_]
"""bool[n]: which of n rows or keys are meant."""


def measure(frame: DataFrame) -> tuple[int, bool]:
    """Return the count of a frame's rows; then True if they are few and simple enough to be
    collected to this process. Runs a job.

    They are if they are at most ``ROWS_MAX`` (10,000), and all columns are of plain types
    (``is_plain``). All values of their text and binary columns together must also have at most
    ``BYTES_MAX`` bytes (16 MiB).
    """
    types = {field.name: field.dataType for field in frame.schema}
    long = [name for name, type_ in types.items() if isinstance(type_, (StringType, BinaryType))]
    lengths = [F.coalesce(F.octet_length(quoted(name)), F.lit(0)) for name in long]
    width = F.coalesce(F.sum(reduce(add, lengths, F.lit(0))), F.lit(0))
    size = frame.agg(F.count("*").alias("rows"), width.alias("bytes")).first()
    assert size is not None
    few = size["rows"] <= ROWS_MAX and size["bytes"] <= BYTES_MAX
    return size["rows"], few and all(map(is_plain, types.values()))


def is_plain(type_: DataType) -> bool:
    """Return True if values of a type come to Arrow and back unchanged. Not plain are nested types,
    intervals, timestamps without a time zone, times of day, and strings with a collation.
    """
    if isinstance(type_, StringType):
        return type_.isUTF8BinaryCollation()
    return isinstance(
        type_, (BinaryType, BooleanType, DateType, DecimalType, NumericType, TimestampType)
    )


def has_floats(schema: StructType, keys: Sequence[str]) -> bool:
    """Return True if one of the columns ``keys`` is a float or a double. Spark takes some different
    floats for equal, such as 0.0 and -0.0. Floats within a nested type do not count.
    """
    return any(isinstance(schema[name].dataType, (FloatType, DoubleType)) for name in keys)


def upsert(
    session: SparkSession,
    table: str,
    rows: pa.Table,
    schema: StructType,
    keys: Sequence[str],
    *,
    nulls: bool,
    filled: bool = False,
    details: Row | Mapping[str, Any] | None = None,
) -> None:
    """Put rows of a Delta table in place of those of the same keys, in one commit. The session's
    settings differ while it runs, and are restored afterwards.

    The commit overwrites the rows that fulfil a condition on the keys. It is a MERGE instead if the
    table has a change feed, or if that condition is longer than ``CONDITION_CHARS_MAX``.

    ``session``: the caller's own, after ``delta_tables.tune``. ``table``: the table's name in SQL.
    ``rows``: at least one, and one for each key; two of one key are not refused. ``schema``: that
    of ``rows``: the table's columns and ``_deleted``. ``_deleted`` is true if the table's row of
    this key goes; a key that the table lacks is then left out. All types are plain (``is_plain``),
    keys are no floats. ``keys``: the key columns. ``nulls``: True if keys may have nulls in them; a
    null equals a null. ``filled``: that of ``delta_tables.merge``. ``details``: the result of
    ``delta_tables.details`` if just read, None to read it here.
    """
    columns = [name for name in schema.names if name != DELETED]
    where = having_keys({name: (rows[name], schema[name].dataType) for name in keys})
    short = len(where) <= CONDITION_CHARS_MAX
    with settings_for_few_rows(session, table, details) as properties:
        if short and not delta_tables.records_changes(properties):
            coming = rows.filter(pc.invert(rows[DELETED])).select(columns).combine_chunks()
            frame = session.createDataFrame(coming, StructType([schema[name] for name in columns]))
            delta_tables.replace(frame, table, where)
            return
        # Only a MERGE lets the change feed record an update, not a delete and an insert.
        names = delta_tables.internal_names(keys, columns)
        source = session.createDataFrame(rows.combine_chunks(), schema).withColumnsRenamed(names)
        delta_tables.merge(
            source,
            table,
            key={name: F.col(names[name]) for name in keys},
            values={name: F.col(names[name]) for name in columns if name not in keys},
            gone=F.col(DELETED),
            where=[F.expr(where)] if short else [],
            nulls=nulls,
            filled=filled,
        )


@contextmanager
def settings_for_few_rows(
    session: SparkSession, table: str, details: Row | Mapping[str, Any] | None = None
) -> Iterator[Mapping[str, str]]:
    """Apply settings for a commit of at most some thousand rows within the block, and yield the
    table's properties, by name. The former settings are restored afterwards.

    Spark then runs one task a step and compiles no code. A table of ``COMPILED_BYTES_MIN`` bytes or
    more is read with compiled code. ``session``: the caller's own. ``table``: the table's name in
    SQL. ``details``: the result of ``delta_tables.details`` if just read, None to read it here.
    """
    with delta_tables.temporary_settings(session, _SETTINGS):
        details = details or delta_tables.details(session, table)
        large = details["sizeInBytes"] >= COMPILED_BYTES_MIN
        with settings_for_many_rows(session) if large else nullcontext():
            yield details["properties"]


def settings_for_many_rows(session: SparkSession) -> AbstractContextManager[None]:
    """Return a context that lets Spark compile code for its plans within the block, as many rows
    need, and restores the setting. ``session``: the caller's own.
    """
    return delta_tables.temporary_settings(session, {CODE: COMPILED})


def having_keys(keys: Mapping[str, tuple[pa.ChunkedArray, DataType]]) -> str:
    """Return the SQL condition that a row has one of these keys; a null equals a null.

    ``keys``: the values of each key column and its type, plain and no float; at least one key.
    Repeated keys stay. The ranges of columns without nulls come first, in order, if their type has
    one (``has_range``). Delta Lake skips files by them. Raises ``DataError`` for a text that is no
    UTF-8.

    >>> from pyspark.sql.types import LongType, StringType
    >>> a, b = pa.chunked_array([[1, 2, 2]]), pa.chunked_array([["x", None, "y"]])
    >>> having_keys({"a": (a, LongType())})
    '`a` >= 1L AND `a` <= 2L AND `a` IN (1L, 2L, 2L)'

    A null has a condition of its own.

    >>> having_keys({"a": (a, LongType()), "b": (b, StringType())}).partition(" AND (")[2]
    "((`a`, `b`) IN ((1L, 'x'), (2L, 'y'))) OR (`b` IS NULL AND `a` IN (2L)))"
    """
    names = {name: quoted(name) for name in keys}
    for name, (column, type_) in keys.items():
        if isinstance(type_, StringType):
            _refuse_other_encodings(name, column)
    texts = {name: _literals(column, type_) for name, (column, type_) in keys.items()}
    nulls = [column.is_null().to_numpy() for column, _ in keys.values()]
    pattern = sum(null.astype(np.int64) << i for i, null in enumerate(nulls))
    by_nulls = [
        _keys_condition(
            names, texts, {name for i, name in enumerate(keys) if bits >> i & 1}, pattern == bits
        )
        for bits in np.unique(pattern)
    ]
    ranges = []
    for name, (column, type_) in keys.items():
        if delta_tables.has_range(type_) and column.null_count == 0:
            ends = pc.min_max(column)
            ends_column = pa.chunked_array([pa.array([ends["min"], ends["max"]], column.type)])
            smallest, largest = _literals(ends_column, type_)
            ranges += [f"{names[name]} >= {smallest}", f"{names[name]} <= {largest}"]
    keys_text = by_nulls[0] if len(by_nulls) == 1 else f"(({') OR ('.join(by_nulls)}))"
    return " AND ".join([*ranges, keys_text])


def _refuse_other_encodings(name: str, texts: pa.ChunkedArray) -> None:
    """Raise ``DataError`` for texts of the key column ``name`` that are no UTF-8, as Spark casts
    them of bytes. Delta Lake would not find them by the bounds of its files.
    """
    try:
        texts.cast(pa.binary()).cast(pa.string())
    except pa.ArrowInvalid as error:
        raise DataError(
            "delta table",
            f"key column {name!r} has a text that is no UTF-8",
            "Make a text of it by F.make_valid_utf8(), or keep the bytes as binary",
        ) from error


def _keys_condition(
    names: Mapping[str, str], texts: Mapping[str, npt.NDArray[Any]], null: set[str], rows: Mask
) -> str:
    """Return the SQL condition that a row has one of the keys that ``rows`` selects. These keys,
    one or more, are null in just the columns ``null``.

    ``names``: the quoted name of each key column, by column. ``texts``: the values of all keys as
    SQL constants, by column. ``rows``: bool[keys].
    """
    parts = [f"{names[name]} IS NULL" for name in names if name in null]
    present = [name for name in names if name not in null]
    present_texts = [texts[name][rows] for name in present]
    if len(present) == 1:
        parts.append(f"{names[present[0]]} IN ({', '.join(present_texts[0])})")
    elif present:
        columns = ", ".join(names[name] for name in present)
        values = ", ".join(f"({', '.join(row)})" for row in zip(*present_texts, strict=True))
        parts.append(f"({columns}) IN ({values})")
    return " AND ".join(parts)


def _literals(column: pa.ChunkedArray, type_: DataType) -> npt.NDArray[Any]:
    """Return a column's values as SQL constants of their type ``type_``, in order: object[rows], of
    undefined content for nulls. The type must be plain (``is_plain``) and no float.
    """
    before, after = "", ""
    if isinstance(type_, StringType):
        for sign in ("\\", "'"):
            column = pc.replace_substring(column, sign, "\\" + sign)
        before = after = "'"
    elif isinstance(type_, BinaryType):
        values = [None if value is None else value.hex() for value in column.to_pylist()]
        column = pa.chunked_array([values], pa.string())
        before, after = "X'", "'"
    elif isinstance(type_, DecimalType):
        before, after = "CAST('", f"' AS {type_.simpleString()})"
    elif isinstance(type_, DateType):
        column, before, after = column.cast(pa.int32()), "date_from_unix_date(", ")"
    elif isinstance(type_, TimestampType):
        column, before, after = column.cast(pa.int64()), "timestamp_micros(", ")"
    elif isinstance(type_, IntegralType):
        after = _SUFFIXES[type(type_)]
    texts = pc.binary_join_element_wise(before, column.cast(pa.string()), after, "")
    return np.asarray(texts.to_numpy(), dtype=object)
