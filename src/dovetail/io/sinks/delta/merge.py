"""Merges of each key's last change into a Delta table of current rows: one commit.

Few changes come into this process, where their last ones are found. Many changes stay in Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, StructType

from dovetail.base.columns import CHANGE, DELETE, DELETED, POSITION, quoted
from dovetail.io.sinks.delta.conflicts import ReadDetails, commit_with_retry
from dovetail.io.sinks.last_changes import last_rows
from dovetail.platform import delta_tables, delta_upsert
from dovetail.platform.sessions import frame_in_session, stored_frame


def current_rows(changes: DataFrame, schema: StructType, keys: Sequence[str]) -> DataFrame:
    """Return the rows of a new table of current rows after ``changes``: the last change of each
    key, without deletes. They have the columns of ``schema`` and no particular order.

    ``changes``: a changelog with ``_change`` (``upsert`` or ``delete``) and ``_position``, which
    orders a key's changes. ``schema``: the columns of the table, all of them columns of the
    changelog. ``keys``: the key columns, in which a null equals a null.
    """
    names = delta_tables.internal_names(keys, schema.names)
    last = _last_changes(changes, names, keys).where(~F.col(DELETED))
    return last.select(*(F.col(names[name]).alias(name) for name in schema.names))


def merge_changes(
    session: SparkSession,
    changes: DataFrame,
    table: str,
    keys: Sequence[str],
    *,
    nulls: bool = False,
    read_details: ReadDetails | None = None,
    rewrite: Callable[[pa.Table], bool] | None = None,
) -> None:
    """Bring a table of current rows to the state after ``changes``, in one commit; make none
    without changes. Merging the same changes again changes no row.

    ``session``: a session for this sink alone, whose settings are changed. ``changes``: the columns
    of the table, with ``_change`` (``upsert`` or ``delete``) and ``_position``, which orders a
    key's changes. ``table``: the table's name in SQL. ``keys``: its key columns. ``nulls``: True if
    keys may have nulls in them. ``read_details``: called once the changes are computed, and before
    a second attempt; None for a table whose owner does not count.

    ``rewrite``: merges few rows and returns True, or returns False to leave them to Spark; None for
    Spark alone. Its argument has one row per key: the columns of ``changes`` without ``_change``
    and ``_position``, then ``_deleted``. It is asked for at most 10,000 changes and 16 MiB of texts
    and bytes. All columns are then of plain types, and no key column is a float.

    Raises Spark's error if another writer conflicts twice (``commit_with_retry``), and the errors
    of ``read_details`` and ``rewrite``.
    """
    with stored_frame(changes) as stored_changes:
        count, few = delta_upsert.measure(stored_changes)
        if count == 0:
            return
        if few and not delta_upsert.has_floats(stored_changes.schema, keys):
            rows = last_rows(stored_changes.toArrow(), keys)
            schema = StructType([f for f in stored_changes.schema if f.name in rows.column_names])
            schema = schema.add(DELETED, BooleanType())
            rows = rows.select(schema.names)
            if rewrite is not None and rewrite(rows):
                return

            def put_rows() -> None:
                """Put ``rows``, the last change of each key, in place of the table's rows of these
                keys, in one commit. Call ``read_details`` before, whose errors pass.
                """
                details = None if read_details is None else read_details()
                delta_upsert.upsert(
                    session, table, rows, schema, keys, nulls=nulls, filled=True, details=details
                )

            commit_with_retry(None, put_rows)
            return
        details = None if read_details is None else read_details()
        settings = delta_upsert.settings_for_few_rows(session, table, details)
        with settings if few else delta_upsert.settings_for_many_rows(session):
            commit_with_retry(
                read_details, _merge_many, session, stored_changes, table, keys, nulls=nulls
            )


def _merge_many(
    session: SparkSession, changes: DataFrame, table: str, keys: Sequence[str], *, nulls: bool
) -> None:
    """Merge many changes in one commit by Spark, without collecting them. ``changes``: the columns
    of the table, ``_change`` (``upsert`` or ``delete``) and ``_position``, which orders a key's
    changes. ``table``: the table's name in SQL. ``keys``: its key columns. ``nulls``: True if keys
    may have nulls in them. Spark's errors pass.
    """
    columns = [name for name in changes.columns if name not in (CHANGE, POSITION)]
    names = delta_tables.internal_names(keys, columns)
    key_names = {name: names[name] for name in keys}
    with stored_frame(_last_changes(changes, names, keys)) as last_changes:
        skipping = delta_tables.file_skipping_conditions(last_changes, key_names)
        with frame_in_session(last_changes, session) as source:
            delta_tables.merge(
                source,
                table,
                key={name: F.col(internal) for name, internal in key_names.items()},
                values={n: F.col(internal) for n, internal in names.items() if n not in keys},
                gone=F.col(DELETED),
                where=skipping,
                nulls=nulls,
                filled=True,  # by _timestamp
            )


def _last_changes(changes: DataFrame, names: Mapping[str, str], keys: Sequence[str]) -> DataFrame:
    """Return the last change of each key in ``changes``, one row per key: keys, values, then
    ``_deleted``. A null in a key equals a null. Values of a delete are those of its change.

    ``changes``: the columns in ``names``, ``_change`` (``upsert`` or ``delete``) and ``_position``,
    which orders a key's changes. ``names``: the internal name by column, under which keys and
    values are returned: ``_k0`` … of the keys, ``_0_0`` … of the others. ``keys``: the key columns.
    """
    values = [name for name in names if name not in keys]
    grouped = changes.groupBy(*(F.col(quoted(name)).alias(names[name]) for name in keys))
    last = grouped.agg(
        F.max_by(F.struct(*map(quoted, values), CHANGE), POSITION).alias("last"),
    )
    return last.select(
        *(F.col(names[name]) for name in keys),
        *(F.col(f"last.{quoted(name)}").alias(names[name]) for name in values),
        (F.col(f"last.{CHANGE}") == DELETE).alias(DELETED),
    )
