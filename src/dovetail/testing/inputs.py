"""Inputs that a driver feeds by hand, and their rows in the form that stages take."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import fields, replace
from datetime import datetime
from typing import Annotated, Any, TypeAlias

import numpy as np
import pyarrow as pa
from pyspark.sql.types import StructType

from dovetail.api.tables import Stream, Table
from dovetail.base.columns import DELETED, EVENT_TIME, SEQUENCE
from dovetail.base.text_cells import microseconds_of
from dovetail.base.validation import ColumnNames, Rule, Text, validated
from dovetail.errors import DataError
from dovetail.plan.nodes import Node, RowOrder, Source
from dovetail.plan.types.arrow import arrow_schema
from dovetail.plan.types.checks import split_key_and_values
from dovetail.plan.types.schemas import schema_of
from dovetail.plan.types.spans import Span, microseconds
from dovetail.testing.changes import Change

Schema: TypeAlias = Annotated[
    pa.Schema | StructType | Mapping[str, pa.DataType],
    Rule("a pyarrow schema, a Spark StructType, or a mapping of names to pyarrow types"),
]
Row: TypeAlias = Mapping[str, Any]
Rows: TypeAlias = Annotated[
    Row | Sequence[Row] | Sequence[Change] | str,
    Rule("a row, a mapping of columns to values, or a list of rows, or a table in text"),
]
Timestamp: TypeAlias = Annotated[
    datetime | int,
    Rule(
        "a datetime or microseconds since 1970",
        lambda moment: isinstance(moment, datetime) or abs(moment) < 1 << 63,
    ),
]


@validated
def table(name: Text, *, key: ColumnNames, schema: Schema, versioned: Span | None = None) -> Table:
    """Return a table without a source, which a ``Driver`` feeds.

    A table has at any time one row per key: a row that is piped in replaces the row of its
    key. This one joins, and is grouped and selected from, like a table that Spark reads.

    Parameters
    ----------
    name : str
        The name in errors, metrics and ``explain``.
    key : str or list of str
        The columns of the key, which ``schema`` has, too.
    schema : pyarrow.Schema, StructType or mapping of str to pyarrow.DataType
        The names and types of all columns, the key's included.
    versioned : str or timedelta, optional
        The time for which the table keeps its history, in stream time (the highest event
        time seen so far). A stream then joins the version of its record's time. Without it,
        no history is kept.

    Returns
    -------
    Table
        An input for ``Driver.pipe``.

    Raises
    ------
    PlanError
        If ``schema`` has a type that Spark does not have. Also if a column of ``key`` is not
        in it or occurs twice. Also if values of a key column's type cannot be compared by
        their bytes, such as maps, or if a column has a reserved name. Also if ``key`` is
        empty, or ``versioned`` is not a span such as ``"7 days"``.

    See Also
    --------
    stream : Return a stream without a source.
    Table.from_changelog : Read a table from a Spark frame.
    Driver : Run a topology that reads the table.

    Notes
    -----
    The key decides what a row replaces, whatever the time. A versioned table instead
    ignores a row older than its history. Source: Kafka Streams join design, "KTable";
    KIP-914.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from dovetail import testing
    >>> schema = {"item": pa.string(), "price": pa.int64()}
    >>> prices = testing.table("prices", key="item", schema=schema, versioned="7 days")
    >>> schema = {"id": pa.int64(), "item": pa.string()}
    >>> sales = testing.stream("sales", key="id", schema=schema)
    >>> driver = testing.Driver(sales.join(prices, how="left", on="item"))
    >>> rows = [{"item": "pen", "price": 2}, {"item": "pen", "price": 3}]
    >>> driver.pipe(prices, rows, timestamp=[10, 20])
    []
    >>> driver.pipe(sales, {"id": 1, "item": "pen"}, timestamp=15)
    [<id=1: item='pen', price=2 @15>]
    """
    return Table(_source(name, key, schema, versioned=versioned))


@validated
def stream(name: Text, *, key: ColumnNames, schema: Schema) -> Stream:
    """Return a stream without a source, which a ``Driver`` feeds.

    A stream is a sequence of keyed records in time. A record does not replace the one
    before it.

    Parameters
    ----------
    name : str
        The name in errors, metrics and ``explain``.
    key : str or list of str
        The columns of the key, which ``schema`` has, too.
    schema : pyarrow.Schema, StructType or mapping of str to pyarrow.DataType
        The names and types of all columns, the key's included.

    Returns
    -------
    Stream
        An input for ``Driver.pipe``.

    Raises
    ------
    PlanError
        If ``schema`` has a type that Spark does not have. Also if a column of ``key`` is not
        in it or occurs twice. Also if values of a key column's type cannot be compared by
        their bytes, such as maps, or if a column has a reserved name. Also if ``key`` is
        empty.

    See Also
    --------
    table : Return a table without a source.
    Stream.from_changelog : Read a stream from a Spark frame.
    Driver : Run a topology that reads the stream.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from dovetail import testing
    >>> schema = {"user": pa.string(), "page": pa.string()}
    >>> views = testing.stream("views", key="user", schema=schema)
    >>> driver = testing.Driver(views.to_table())
    >>> rows = [{"user": "ann", "page": page} for page in ("home", "help")]
    >>> driver.pipe(views, rows, timestamp=1)
    [<user='ann': page='home' @1>, <user='ann': page='help' @1>]
    """
    return Stream(_source(name, key, schema, stream=True))


def _source(
    name: str,
    key: str | Sequence[str],
    schema: Schema,
    *,
    stream: bool = False,
    versioned: Span | None = None,
) -> Source:
    """Return the source, without a frame, of a table or a stream.

    ``name``: the name in errors, metrics and ``explain``. ``key``: one name or more among the
    columns of ``schema``. ``stream``: True for a stream. ``versioned``: the length of a table's
    history, None for none.

    Raises ``PlanError`` for an empty, unknown or repeated key column, and for a key whose values
    cannot be compared by their bytes. Also for a type that Spark does not have, a reserved name,
    and a wrong span.
    """
    operator = f"{'stream' if stream else 'table'} {name}"
    key_fields, values = split_key_and_values(operator, key, schema_of(operator, "schema=", schema))
    return Source(
        name=name,
        key=key_fields,
        values=values,
        stream=stream,
        versioned_us=None if versioned is None else microseconds(operator, "versioned=", versioned),
    )


def without_frames(node: Node, replacements: dict[Node, Node]) -> Node:
    """Return ``node`` with each source below it replaced by one without a frame, whose rows are
    given as values. Such a source has no columns for the time, deletes and the order: rows bring
    the first two, and come in the order in which they are fed. A node whose sources all have no
    frame is returned as it is.

    ``replacements``: the replacement of each node so far, from earlier calls. This adds those of
    ``node`` and all nodes below it, so that shared nodes stay shared.
    """
    if node not in replacements:
        if isinstance(node, Source):
            fed = RowOrder(limited=node.order.limited, by_commit=node.order.by_commit)
            new: dict[str, Any] = {"frame": None, "timestamp": None, "deleted": None, "order": fed}
            same = node.frame is None
        else:
            old = {field.name: getattr(node, field.name) for field in fields(node)}
            new = {name: _field_without_frames(part, replacements) for name, part in old.items()}
            same = all(new[name] is part for name, part in old.items())
        replacements[node] = node if same else replace(node, **new)
    return replacements[node]


def _field_without_frames(part: Any, replacements: dict[Node, Node]) -> Any:
    """Return the value of a node's field with the nodes in it replaced by ``without_frames``: by
    nodes whose sources have no Spark frame, because a test gives their rows as values.

    ``part``: the value, a node or a tuple of nodes. Any other value is returned as it is. So is a
    node or a tuple whose sources have no frame already. ``replacements``: the replacement of each
    node so far, to which this adds.
    """
    if isinstance(part, Node):
        return without_frames(part, replacements)
    if isinstance(part, tuple) and any(isinstance(item, Node) for item in part):
        items = tuple(without_frames(item, replacements) for item in part)
        return part if items == part else items
    return part


def columns_of(source: Source) -> pa.Schema:
    """Return the Arrow schema of a source's rows: the key, then the values."""
    return arrow_schema(source.row)


def arrow_rows(
    source: Source,
    schema: pa.Schema,
    rows: Sequence[Row],
    times: Sequence[Timestamp | None],
    deleted: Sequence[bool],
    sequence: int,
) -> pa.Table:
    """Return rows as the inputs of stages take them, in order. A column that a row lacks is null.
    After the columns of ``schema`` come ``_event_time`` (microseconds, null without a time),
    ``_deleted`` and ``_sequence``.

    ``schema``: the result of ``columns_of``. ``times``, ``deleted``: one element for each row. A
    time is a datetime, without a zone in UTC, or microseconds since 1970. ``sequence``: the
    position of the first row among all that were fed; the others follow. Raises ``DataError`` for
    unknown columns, missing key columns and values of other types.
    """
    _check_columns(source, rows)
    columns = {field.name: _array(source, field.name, rows, field.type) for field in schema}
    time = [None if moment is None else microseconds_of(moment) for moment in times]
    columns[EVENT_TIME] = pa.array(time, pa.int64())
    columns[DELETED] = pa.array(deleted, pa.bool_())
    columns[SEQUENCE] = pa.array(np.arange(sequence, sequence + len(rows)))
    return pa.table(columns)


def _check_columns(source: Source, rows: Sequence[Row]) -> None:
    """Raise ``DataError`` if a row has a column that ``source`` does not have, or lacks a key
    column. A null in a key column is allowed, and so is a missing value column.
    """
    column_names = {*source.key.names, *source.values.names}
    for row in rows:
        unknown = sorted(row.keys() - column_names)
        missing = [name for name in source.key.names if name not in row]
        if unknown or missing:
            what = f"unknown columns {', '.join(unknown)}" if unknown else "no key column"
            raise DataError(
                source.title,
                f"a row has {what}{'' if unknown else ' ' + ', '.join(missing)}",
                f"Its columns are {', '.join([*source.key.names, *source.values.names])}",
            )


def _array(source: Source, name: str, rows: Sequence[Row], type_: pa.DataType) -> pa.Array:
    """Return the column ``name`` of the rows, null where a row lacks it. Raises ``DataError`` for a
    value that is not of the type.
    """
    try:
        return pa.array([row.get(name) for row in rows], type_)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise DataError(
            source.title,
            f"column {name!r} is of type {type_}: {error}",
            "Give a value of that type",
        ) from error


def hashable(part: Any) -> Hashable:
    """Return a value, such as one column of a key, in a form that can be a dictionary's key. Arrays
    become tuples, structs tuples of their values, at any depth. All NaN become one object. Other
    values stay as they are. A map, which no key has, need not become hashable.
    """
    if isinstance(part, (list, dict)):
        return tuple(map(hashable, part.values() if isinstance(part, dict) else part))
    return math.nan if isinstance(part, float) and math.isnan(part) else part


def title_of(part: object) -> str:
    """Return the first line of an object's ``repr``. Of a table or stream it is the class, the name
    and the key columns, such as ``Table[orders; key id]``; the lines with all columns follow it.
    """
    return repr(part).partition("\n")[0]
