"""Merges of each key's last change into a Delta table of current rows."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, StructType

from dovetail.base.columns import (
    CHANGE,
    DELETE,
    DELETED,
    POSITION,
    ROW,
    key_name,
    quoted,
    value_name,
)
from dovetail.io.sinks.delta.conflicts import twice
from dovetail.platform import delta_tables, delta_upsert
from dovetail.platform.sessions import keep, moved, release


def current_rows(changes: DataFrame, schema: StructType, keys: list[str]) -> DataFrame:
    """Return the rows of a new table with this schema: the current rows after these changes."""
    places = _places(keys, schema.names)
    last = _last_changes(changes, keys).where(~F.col(DELETED))
    return last.select(*(F.col(places[name]).alias(name) for name in schema.names))


def _last_changes(changes: DataFrame, keys: list[str]) -> DataFrame:
    """Return the last change of each key: the key as ``_k0`` …, the values as ``_0_0`` …, and
    ``_deleted``.
    """
    places = _places(keys, changes.columns)
    values = [name for name in places if name not in keys]
    grouped = changes.groupBy(*(F.col(quoted(name)).alias(places[name]) for name in keys))
    last = grouped.agg(
        F.max_by(F.struct(*map(quoted, values), CHANGE), POSITION).alias("last"),
    )
    return last.select(
        *(F.col(places[name]) for name in keys),
        *(F.col(f"last.{quoted(name)}").alias(places[name]) for name in values),
        (F.col(f"last.{CHANGE}") == DELETE).alias(DELETED),
    )


def merge_changes(
    session: SparkSession,
    changes: DataFrame,
    table: str,
    keys: list[str],
    *,
    nulls: bool = False,
    details: Row | None = None,
) -> None:
    """Bring a table to the state after ``changes``; merging them again changes nothing.

    ``session``: a session for this sink alone, whose settings are changed. ``nulls``: keys may have
    nulls in them. ``details``: the table's details if just read.
    """
    stored_changes = keep(changes)
    try:
        count, few = delta_upsert.measure(stored_changes)
        if count == 0:
            return
        if few and not delta_upsert.has_floats(stored_changes.schema, keys):
            rows = _last_rows(stored_changes.toArrow(), keys)
            schema = StructType([f for f in stored_changes.schema if f.name in rows.column_names])
            schema = schema.add(DELETED, BooleanType())
            upsert_rows = rows.select(schema.names)
            twice(
                delta_upsert.upsert,
                session,
                table,
                upsert_rows,
                schema,
                keys,
                nulls=nulls,
                details=details,
            )
        else:
            settings = delta_upsert.for_few(session, table, details)
            with settings if few else delta_upsert.for_many(session):
                twice(_merge_many, session, stored_changes, table, keys, nulls=nulls)
    finally:
        release(stored_changes)


def _last_rows(changes: pa.Table, keys: list[str]) -> pa.Table:
    """Return the last change of each key, with ``_deleted`` in place of ``_change`` and
    ``_position``.
    """
    changes = changes.sort_by(POSITION)
    numbered = changes.select(keys).append_column(ROW, pa.array(range(len(changes))))
    last = numbered.group_by(keys, use_threads=False).aggregate([(ROW, "max")])[f"{ROW}_max"]
    rows = changes.take(last)
    gone = pc.equal(rows[CHANGE], DELETE)
    return rows.drop_columns([CHANGE, POSITION]).append_column(DELETED, gone)


def _merge_many(
    session: SparkSession, changes: DataFrame, table: str, keys: list[str], *, nulls: bool
) -> None:
    """Merge many changes by Spark, without collecting them."""
    places = _places(keys, changes.columns)
    last_changes = keep(_last_changes(changes, keys))
    try:
        asked = [
            part
            for name in keys
            for part in delta_tables.bounds(
                places[name], last_changes.schema[places[name]].dataType
            )
        ]
        bounds = last_changes.agg(F.count("*").alias("count"), *asked).first()
        assert bounds is not None
        columns = [F.col(quoted(name)) for name in keys]
        with moved(last_changes, session) as source:
            delta_tables.merge(
                source,
                table,
                key={name: F.col(places[name]) for name in keys},
                values={n: F.col(internal) for n, internal in places.items() if n not in keys},
                gone=F.col(DELETED),
                where=delta_tables.within(
                    columns, [delta_tables.range_of(bounds, places[name]) for name in keys]
                ),
                nulls=nulls,
            )
    finally:
        release(last_changes)


def _places(keys: list[str], columns: list[str]) -> dict[str, str]:
    """Return the internal name of each column of the table, by its name."""
    values = [name for name in columns if name not in (*keys, CHANGE, POSITION)]
    places = {name: key_name(i) for i, name in enumerate(keys)}
    return places | {name: value_name(0, i) for i, name in enumerate(values)}
