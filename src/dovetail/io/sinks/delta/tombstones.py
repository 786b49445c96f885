"""A Delta table of current rows that keeps deleted rows, each with a mark.

The law. A row has the values of its key's last upsert. ``_deleted`` says whether the key's last
change is a delete, and ``_timestamp`` has the time of that change. A delete of a key without a row
leaves none.

| change            | row of ``k`` after it       |
|-------------------|-----------------------------|
| 10 upsert k: a    | a, at 10                    |
| 20 delete k       | a, at 20, deleted           |
| 30 upsert k: b    | b, at 30                    |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import and_

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, StructField, StructType

from dovetail.base.columns import CHANGE, DELETE, DELETED, POSITION, ROW, TIMESTAMP, UPSERT, quoted
from dovetail.io.sinks.delta.conflicts import ReadDetails, commit_with_retry
from dovetail.platform import delta_tables, delta_upsert
from dovetail.platform.sessions import frame_in_session, stored_frame

MARK_FIELD = StructField(DELETED, BooleanType(), True)
"""The column that marks deleted rows."""


def marked_rows(changes: DataFrame, schema: StructType, keys: Sequence[str]) -> DataFrame:
    """Return the rows of a new table after ``changes``, in no particular order: one per key that
    was upserted. A key that is deleted by now has the values of its last upsert, true in
    ``_deleted`` and the time of the delete.

    ``changes``: a changelog with ``_change`` (``upsert`` or ``delete``), ``_timestamp`` and
    ``_position``, which orders a key's changes. ``schema``: the columns of the table, key, values,
    ``_timestamp`` and ``_deleted``. ``keys``: the key columns, in which a null equals a null.
    """
    internal_names = _internal_names(schema, keys)
    last = _last_changes(changes, internal_names, keys).where(F.col(ROW))
    columns = {name: F.col(internal) for name, internal in internal_names.items()} | {
        DELETED: F.col(CHANGE)
    }
    return last.select(*(columns[name].alias(name) for name in schema.names))


def mark_changes(
    session: SparkSession,
    changes: DataFrame,
    table: str,
    schema: StructType,
    keys: Sequence[str],
    *,
    nulls: bool,
    read_details: ReadDetails | None = None,
) -> None:
    """Bring a table that marks deleted rows to the state after ``changes``, in one commit; make
    none without changes. Merging the same changes again changes no row.

    ``session``: a session for this sink alone, whose settings are changed. ``changes``: a changelog
    with ``_change`` (``upsert`` or ``delete``), ``_timestamp`` and ``_position``, which orders a
    key's changes. ``table``: the table's name in SQL. ``schema``: its columns, ``_timestamp`` and
    ``_deleted`` among them. ``keys``: its key columns. ``nulls``: True if keys may have nulls in
    them. ``read_details``: called once the changes are computed, and before a second attempt; None
    for a table whose owner does not count. Raises its errors, and Spark's error if another writer
    conflicts twice (``commit_with_retry``).
    """
    internal_names = _internal_names(schema, keys)
    with stored_frame(changes) as stored_changes:
        count, few = delta_upsert.measure(stored_changes)
        if count == 0:
            return
        details = None if read_details is None else read_details()
        settings = delta_upsert.settings_for_few_rows(session, table, details)
        with (
            stored_frame(_last_changes(stored_changes, internal_names, keys)) as last_changes,
            frame_in_session(last_changes, session) as source,
            settings if few else delta_upsert.settings_for_many_rows(session),
        ):
            commit_with_retry(
                read_details, _merge, source, table, internal_names, keys, nulls=nulls
            )


def _internal_names(schema: StructType, keys: Sequence[str]) -> dict[str, str]:
    """Return the internal name of each column of ``schema`` but ``_deleted``, by the column's name:
    ``_k0``, ``_k1`` … of the key columns ``keys``, then ``_0_0``, ``_0_1`` … of the others in
    order, ``_timestamp`` among them. No column of a user has such a name.
    """
    return delta_tables.internal_names(keys, [name for name in schema.names if name != DELETED])


def _last_changes(
    changes: DataFrame, internal_names: Mapping[str, str], keys: Sequence[str]
) -> DataFrame:
    """Return one row for each key of ``changes``: the values of its last upsert and the time of its
    last change, under internal names. A null in a key equals a null. ``changes``: a changelog with
    ``_change`` (``upsert`` or ``delete``), ``_timestamp`` and ``_position``, which orders a key's
    changes.

    Two columns are added. ``_change``, here a boolean, is true if the last change is a delete.
    ``_row`` is true if there is an upsert; if not, the values are null. ``internal_names``: the
    result of ``_internal_names``; the time has the internal name of ``_timestamp``. ``keys``: the
    key columns.
    """
    values = [name for name in internal_names if name not in (*keys, TIMESTAMP)]
    upserted = F.when(
        F.col(CHANGE) == UPSERT, F.struct(F.lit(True).alias(ROW), *map(quoted, values))
    )
    upsert_position = F.when(F.col(CHANGE) == UPSERT, F.col(POSITION))
    last = changes.groupBy(*(F.col(quoted(name)).alias(internal_names[name]) for name in keys)).agg(
        F.max_by(upserted, upsert_position).alias("row"),
        F.max_by(F.struct(TIMESTAMP, CHANGE), POSITION).alias("last"),
    )
    return last.select(
        *(internal_names[name] for name in keys),
        *(F.col(f"row.{quoted(name)}").alias(internal_names[name]) for name in values),
        F.col(f"last.{TIMESTAMP}").alias(internal_names[TIMESTAMP]),
        (F.col(f"last.{CHANGE}") == DELETE).alias(CHANGE),
        F.coalesce(f"row.{ROW}", F.lit(False)).alias(ROW),
    )


def _merge(
    source: DataFrame,
    table: str,
    internal_names: Mapping[str, str],
    keys: Sequence[str],
    *,
    nulls: bool,
) -> None:
    """Merge the rows of ``source`` into a table by one MERGE. Spark's errors pass.

    A delete marks the table's row and keeps its values. If an upsert came before it in the
    micro-batch, the marked row has the values of that upsert, and is inserted if it is missing. A
    delete alone of a key without a row does nothing.

    ``source``: the result of ``_last_changes``, one row per key. ``table``: the table's name in
    SQL. ``internal_names``: the internal name by column of the table, without ``_deleted``.
    ``keys``: the key columns. ``nulls``: True if keys may have nulls in them.
    """
    key_names = {name: internal_names[name] for name in keys}
    skipping = delta_tables.file_skipping_conditions(source, key_names)
    pairs = [(F.col(quoted(name)), F.col(internal)) for name, internal in key_names.items()]
    same = [a.eqNullSafe(b) if nulls else a == b for a, b in pairs]
    if nulls:
        same.append(F.col(ROW) | delta_tables.is_there([*internal_names, DELETED]))
    changed = {DELETED: F.col(CHANGE), TIMESTAMP: F.col(internal_names[TIMESTAMP])}
    values = {quoted(name): F.col(p) for name, p in internal_names.items() if name != TIMESTAMP}
    row = values | changed
    (
        source.mergeInto(table, reduce(and_, [*same, *skipping]))
        .whenMatched(~F.col(ROW))
        .update(changed)
        .whenMatched()
        .update(row)
        .whenNotMatched(F.col(ROW))
        .insert(row)
        .merge()
    )
