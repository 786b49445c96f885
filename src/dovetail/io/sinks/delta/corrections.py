"""A Delta table with all versions of each row, in which late changes correct the past.

The law. A *point* is the last change of a key at one event time, by the order of the changelog. An
upsert's version begins at its point's time and ends at the key's next point. So the table depends
on the changes that have come. Their order matters among changes of one time only:

| change, in order | versions after it                                       |
|------------------|---------------------------------------------------------|
| 10 Oslo          | Oslo, from 10                                           |
| 30 Rome          | Oslo, 10 to 30; Rome, from 30                           |
| 20 Bonn          | Oslo, 10 to 20; Bonn, 20 to 30; Rome, from 30           |
| 25 delete        | Oslo, 10 to 20; Bonn, 20 to 25; Rome, from 30           |

The table stores the points. A version's begin is an upsert. Its end is a delete, if no version
begins there. A delete that ends no version is a row of no length, with nulls as values: an upsert
may still come that it ends. The row goes when one does. No moment lies in a row of no length.

A micro-batch reads the versions of its keys that end at its earliest time or later. Others keep
their begin and their end. Merging a micro-batch again changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import and_

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType
from pyspark.sql.window import Window

from dovetail.base.columns import CHANGE, DELETE, POSITION, TIMESTAMP, UPSERT, quoted
from dovetail.io.sinks.delta.conflicts import ReadDetails, commit_with_retry
from dovetail.io.sinks.delta.versions import (
    CURRENT,
    VALID_FROM,
    VALID_TO,
    VERSION_NAMES,
    changes_under_names,
    versions_under_names,
)
from dovetail.platform import delta_tables, delta_upsert
from dovetail.platform.sessions import frame_in_session, stored_frame

_INSERT, _UPDATE, _END_ANEW, _DROP = "insert", "update", "end anew", "drop"
"""The actions on a row of the table: ``_END_ANEW`` gives it another end."""
_END, _BEGIN, _NEW = 0, 1, 2
"""The ranks of a point at one time: the end of a stored row, the begin of one, a new change."""


def corrected_versions(changes: DataFrame, schema: StructType, keys: Sequence[str]) -> DataFrame:
    """Return the rows of a new table of versions, in no particular order. A version lasts from its
    upsert's event time to that of the key's next change in time. Of changes of a key at one event
    time only the last by position counts. A delete that ends no version is a row of no length with
    null values: its ``_valid_from`` equals its ``_valid_to``.

    ``changes``: a changelog with ``_change`` (``upsert`` or ``delete``), ``_timestamp`` and
    ``_position``. ``schema``: the columns of the table: key, values, ``_valid_from``, ``_valid_to``
    and ``_current``. ``keys``: the key columns, in which a null equals a null.
    """
    internal_names = delta_tables.internal_names(keys, schema.names)
    rows = _row_actions(_new_points(changes, internal_names), internal_names, keys)
    return rows.select(*(F.col(internal).alias(name) for name, internal in internal_names.items()))


def merge_corrections(
    session: SparkSession,
    changes: DataFrame,
    table: str,
    schema: StructType,
    keys: Sequence[str],
    *,
    nulls: bool,
    read_details: ReadDetails | None = None,
) -> None:
    """Bring a table of versions to the state after ``changes``, in one commit; make none without
    changes. A late change goes to its event time and cuts the version there. Merging the same
    changes again changes no row.

    ``session``: a session for this sink alone, whose settings are changed. ``changes``: a changelog
    with ``_change`` (``upsert`` or ``delete``), ``_timestamp`` and ``_position``. ``table``: the
    table's name in SQL. ``schema``: its columns: key, values, ``_valid_from``, ``_valid_to`` and
    ``_current``. ``keys``: its key columns. ``nulls``: True if keys may have nulls in them.
    ``read_details``: called once the changes are computed, and before a second attempt; None for a
    table whose owner does not count. Raises its errors, and Spark's error if another writer
    conflicts twice (``commit_with_retry``).
    """
    internal_names = delta_tables.internal_names(keys, schema.names)
    with stored_frame(changes) as stored_changes:
        count, few = delta_upsert.measure(stored_changes)
        if count == 0:
            return
        details = None if read_details is None else read_details()
        settings = (
            delta_upsert.settings_for_few_rows(session, table, details)
            if few
            else delta_upsert.settings_for_many_rows(session)
        )
        with frame_in_session(stored_changes, session) as source, settings:
            commit_with_retry(
                read_details,
                _merge,
                _new_points(source, internal_names),
                table,
                internal_names,
                keys,
                nulls=nulls,
            )


def _merge(
    points: DataFrame,
    table: str,
    internal_names: Mapping[str, str],
    keys: Sequence[str],
    *,
    nulls: bool,
) -> None:
    """Merge new changes into a table of versions by one MERGE, and correct the stored versions that
    they touch. Spark's errors pass.

    ``points``: the changes as ``_new_points`` returns them, at least one row: key and values under
    internal names, ``_change``, ``_timestamp``, ``_position`` and ``rank``. ``table``: the table's
    name in SQL. ``internal_names``: the internal name by column of the table. ``keys``: the key
    columns. ``nulls``: True if keys may have nulls in them.
    """
    key_names = {name: internal_names[name] for name in keys}
    pairs = [(F.col(quoted(name)), F.col(internal)) for name, internal in key_names.items()]
    same = reduce(and_, [a.eqNullSafe(b) if nulls else a == b for a, b in pairs])
    touched = [*delta_tables.file_skipping_conditions(points, key_names), _condition_since(points)]

    stored = reduce(DataFrame.where, touched, points.sparkSession.table(table))
    stored = stored.join(points.select(*key_names.values()).distinct(), same, "left_semi")
    every = points.unionByName(
        _stored_points(versions_under_names(stored, internal_names), internal_names, keys),
        allowMissingColumns=True,
    )
    with stored_frame(_row_actions(every, internal_names, keys)) as actions:
        begun = F.col(VALID_FROM) == F.col(internal_names[VALID_FROM])
        (
            actions.mergeInto(table, reduce(and_, [same, begun, *touched]))
            .whenMatched(F.col(CHANGE) == _DROP)
            .delete()
            .whenMatched(F.col(CHANGE) == _END_ANEW)  # another writer may have changed values
            .update({name: F.col(internal_names[name]) for name in (VALID_TO, CURRENT)})
            .whenMatched()
            .update({quoted(n): F.col(at) for n, at in internal_names.items() if n not in keys})
            .whenNotMatched(F.col(CHANGE) == _INSERT)
            .insert({quoted(name): F.col(internal) for name, internal in internal_names.items()})
            .merge()
        )


def _condition_since(points: DataFrame) -> Column:
    """Return the condition that a row of the table of versions is current or ends late enough to be
    touched: at the least ``_timestamp`` of ``points`` or later. There must be a point. It runs a
    job.
    """
    row = points.agg(F.unix_micros(F.min(TIMESTAMP)).alias("first_us")).first()
    assert row is not None
    first = F.timestamp_micros(F.lit(row["first_us"]))
    return F.col(VALID_TO).isNull() | (F.col(VALID_TO) >= first)


def _new_points(changes: DataFrame, internal_names: Mapping[str, str]) -> DataFrame:
    """Return the rows of ``changes``, a changelog, as points: changes of a key at a time, one for
    each row. They have the columns of the table under internal names, ``_change`` (``upsert`` or
    ``delete``), ``_timestamp``, ``_position``, and ``rank``. The rank is 2 (``_NEW``), so a new
    point counts in place of stored ones of its time.

    ``internal_names``: the internal name of each column of the table, by its name: ``_k0`` … of the
    keys, ``_0_0`` … of the others. The columns ``_valid_from``, ``_valid_to`` and ``_current`` are
    left out.
    """
    return changes_under_names(changes, internal_names).withColumn("rank", F.lit(_NEW))


def _stored_points(
    stored: DataFrame, internal_names: Mapping[str, str], keys: Sequence[str]
) -> DataFrame:
    """Return the changes, called points, that stored versions stand for: the begin of each row, and
    its end if that is later. A current row, whose end is null, is one point. A row whose end equals
    its begin is one point, a delete.

    A point has the key, ``_change`` (``upsert`` for a begin, ``delete`` for an end), its time in
    ``_timestamp``, and ``rank``: 0 for an end, 1 for a begin. There is no ``_position``. The begin
    of a row also has the row's values, its end in ``until``, and true in ``has_row``; these are
    null for an end. ``stored``: rows of the table under internal names. ``internal_names``: these
    names by column. ``keys``: the key columns.
    """
    begin, end = F.col(internal_names[VALID_FROM]), F.col(internal_names[VALID_TO])
    is_delete = F.coalesce(begin == end, F.lit(False))
    added = [internal_names[name] for name in VERSION_NAMES]
    begins = stored.select(
        "*",
        F.when(is_delete, DELETE).otherwise(UPSERT).alias(CHANGE),
        begin.alias(TIMESTAMP),
        F.lit(_BEGIN).alias("rank"),
        end.alias("until"),
        F.lit(True).alias("has_row"),
    ).drop(*added)
    ends = stored.where(begin < end).select(
        *(internal_names[name] for name in keys),
        F.lit(DELETE).alias(CHANGE),
        end.alias(TIMESTAMP),
        F.lit(_END).alias("rank"),
    )
    return begins.unionByName(ends, allowMissingColumns=True)


def _row_actions(
    every: DataFrame, internal_names: Mapping[str, str], keys: Sequence[str]
) -> DataFrame:
    """Return the actions on rows of the table, one for each row that is not to stay as it is. A row
    is found by its key and ``_valid_from``. The result has all columns of the table under
    ``internal_names``, their internal names, with the row as it is to be. ``_change`` is one of
    ``insert``, ``update``, ``end anew`` and ``drop``. ``end anew`` is of a row that gets another
    end alone. For ``drop`` only key and ``_valid_from`` count.

    ``every``: the new points and the stored ones of their keys, in the columns of ``_new_points``
    and ``_stored_points``. The stored ones must be complete from the time of the first new point
    on. ``keys``: the key columns.
    """
    for name, type_ in (("until", "timestamp"), ("has_row", "boolean")):
        if name not in every.columns:
            every = every.withColumn(name, F.lit(None).cast(type_))
    values = [at for name, at in internal_names.items() if name not in (*keys, *VERSION_NAMES)]
    key_columns = [internal_names[name] for name in keys]
    points = every.groupBy(*key_columns, TIMESTAMP).agg(
        F.max_by(F.struct(*values, CHANGE, "rank"), F.struct("rank", POSITION)).alias("last"),
        F.max("until").alias("until"),
        F.coalesce(F.bool_or("has_row"), F.lit(False)).alias("has_row"),
    )
    points = points.select(*key_columns, TIMESTAMP, "until", "has_row", "last.*")

    ordered = Window.partitionBy(*key_columns).orderBy(TIMESTAMP)
    is_upsert = F.col(CHANGE) == UPSERT
    follows_upsert = F.coalesce(F.lag(is_upsert).over(ordered), F.lit(False))
    end = F.when(is_upsert, F.lead(TIMESTAMP).over(ordered)).otherwise(F.col(TIMESTAMP))
    rows = points.select("*", end.alias("end"), (is_upsert | ~follows_upsert).alias("stays"))
    action = (
        F.when(F.col("stays") & ~F.col("has_row"), _INSERT)
        .when(F.col("stays") & (F.col("rank") == _NEW), _UPDATE)
        .when(F.col("stays") & ~F.col("until").eqNullSafe(F.col("end")), _END_ANEW)
        .when(~F.col("stays") & F.col("has_row"), _DROP)
    )
    version_columns = {
        VALID_FROM: F.col(TIMESTAMP),
        VALID_TO: F.col("end"),
        CURRENT: F.col("end").isNull(),
    }
    columns = [
        version_columns.get(
            name, F.col(at) if name in keys else F.when(is_upsert, F.col(at))
        ).alias(at)
        for name, at in internal_names.items()
    ]
    return rows.select(*columns, action.alias(CHANGE)).where(F.col(CHANGE).isNotNull())
