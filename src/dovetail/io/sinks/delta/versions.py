"""A Delta table with all versions of each row: a slowly changing dimension of type 2.

The law. The changes of a key are ordered by the changelog, and each has an event time. A version
begins with an upsert and ends with the key's next change. Both happen at the change's event time.
If the key's history already reaches further, they happen at its end: time within a key never goes
back. A version that ends where it begins is left out. So at each moment a key has at most one
version. Its last version is current exactly if the table has a row of the key.

Versions that are left out leave no trace. Take an upsert, its replacements and its delete, none
later than the first: they do not move the time of later changes. So versions do not depend on
micro-batches.

With tracked columns, an upsert that leaves them as they are begins no version. Its values take the
place of the current version's values, and its time has no effect. ``track=["city"]``:

| change              | versions after it                        |
|---------------------|------------------------------------------|
| 10 Oslo, phone 1    | Oslo, phone 1, from 10                   |
| 20 Oslo, phone 2    | Oslo, phone 2, from 10                   |
| 30 Rome, phone 2    | Oslo, phone 2, 10 to 30; Rome, from 30   |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, StructField, StructType, TimestampType
from pyspark.sql.window import Window, WindowSpec

from dovetail.base.columns import CHANGE, DELETE, POSITION, TIMESTAMP, UPSERT, quoted
from dovetail.errors import PlanError
from dovetail.io.sinks.delta.conflicts import ReadDetails, commit_with_retry
from dovetail.plan.types.aggregate_types import has_no_equality
from dovetail.plan.types.checks import known_field, refuse_duplicates
from dovetail.platform import delta_tables, delta_upsert
from dovetail.platform.sessions import frame_in_session, stored_frame

VALID_FROM, VALID_TO, CURRENT = "_valid_from", "_valid_to", "_current"
VERSION_FIELDS = (
    StructField(VALID_FROM, TimestampType(), False),
    StructField(VALID_TO, TimestampType(), True),
    StructField(CURRENT, BooleanType(), False),
)
"""The columns of a version besides the key and the values."""
VERSION_NAMES = tuple(field.name for field in VERSION_FIELDS)

_INSERT, _CLOSE, _DROP = "insert", "close", "drop"
"""The actions on a version: insert a new one; close or drop the table's current one."""


def refuse_names(title: str, names: Sequence[str]) -> None:
    """Raise ``PlanError`` if a column is named ``_valid_from``, ``_valid_to`` or ``_current``, in
    any case. ``title``: the sink's name in errors. ``names``: the columns of key and values.
    """
    for name in names:
        if name.lower() in VERSION_NAMES:
            raise PlanError(
                title,
                f"column {name!r} has a name that history=True gives to a column of its own",
                "Rename it in select=, or by rename(...)",
            )


def refuse_tracked(title: str, track: Sequence[str], values: StructType) -> None:
    """Raise ``PlanError`` if a tracked column is none of ``values``, is named twice, or is of a
    type whose values cannot be compared. ``title``: the sink's name in errors. ``track``: the
    columns' names.
    """
    refuse_duplicates(title, track, "Name it once in track=")
    for name in track:
        type_ = known_field(title, "track=", name, values).dataType
        if has_no_equality(type_):
            raise PlanError(
                title,
                f"track= names {name!r}, which is of type {type_.simpleString()}",
                "Name columns whose values can be compared, such as a field of it in a column of "
                "its own",
            )


def new_versions(
    changes: DataFrame, schema: StructType, keys: Sequence[str], track: Sequence[str] = ()
) -> DataFrame:
    """Return the rows of a new table of versions, in no particular order: all versions that
    ``changes`` make, ended ones included. A version is the row of a key from ``_valid_from``,
    inclusive, to ``_valid_to``, exclusive and null for now. A change that is earlier than its key's
    history takes effect at the end of the history. Versions of no length are left out.

    ``changes``: a changelog with ``_change`` (``upsert`` or ``delete``), ``_timestamp`` and
    ``_position``, which orders a key's changes. ``schema``: the columns of the table: key, values,
    ``_valid_from``, ``_valid_to`` and ``_current``. ``keys``: the key columns, in which a null
    equals a null. ``track``: the columns whose changes make versions, empty if every upsert makes
    one.
    """
    internal_names = delta_tables.internal_names(keys, schema.names)
    versions = _version_actions(
        changes_under_names(changes, internal_names), internal_names, keys, track=track
    )
    return versions.select(
        *(F.col(internal).alias(name) for name, internal in internal_names.items())
    )


def renewed_versions(
    changes: DataFrame, stored: DataFrame, schema: StructType, keys: Sequence[str]
) -> DataFrame:
    """Return the rows that replace the current versions of the changed keys, in no particular
    order. They are these versions, with their end where a change ends them, and the new versions. A
    version is the row of a key from ``_valid_from`` to ``_valid_to``. A change that is earlier than
    its key's history takes effect at the end of the history. Versions of no length are left out.

    ``changes``: a changelog with ``_change`` (``upsert`` or ``delete``), ``_timestamp`` and
    ``_position``, which orders a key's changes. Every upsert makes a version. ``stored``: all
    versions that the table has of these keys, none for new keys. ``schema``: the columns of the
    table: key, values, ``_valid_from``, ``_valid_to`` and ``_current``. ``keys``: the key columns,
    in which a null equals a null.
    """
    internal_names = delta_tables.internal_names(keys, schema.names)
    ends = _history_ends(versions_under_names(stored, internal_names), internal_names, keys)
    actions = _version_actions(
        changes_under_names(changes, internal_names), internal_names, keys, ends=ends
    )
    rows = actions.where(F.col(CHANGE) != _DROP)
    return rows.select(*(F.col(internal).alias(name) for name, internal in internal_names.items()))


def merge_versions(
    session: SparkSession,
    changes: DataFrame,
    table: str,
    schema: StructType,
    keys: Sequence[str],
    *,
    nulls: bool,
    track: Sequence[str] = (),
    read_details: ReadDetails | None = None,
) -> None:
    """Bring a table of versions to the state after ``changes``, in one commit; make none without
    changes. A change that is earlier than its key's history takes effect at the end of the history.
    A second merge of the same changes would be wrong, so the caller must run it under
    ``delta_tables.commit_once_settings``.

    ``session``: a session for this sink alone, whose settings are changed. ``changes``: a changelog
    with ``_change`` (``upsert`` or ``delete``), ``_timestamp`` and ``_position``, which orders a
    key's changes. ``table``: the table's name in SQL. ``schema``: its columns: key, values,
    ``_valid_from``, ``_valid_to`` and ``_current``. ``keys``: its key columns. ``nulls``: True if
    keys may have nulls in them. ``track``: the columns whose changes make versions, empty if every
    upsert makes one. ``read_details``: called once the changes are computed, and before a second
    attempt; None for a table whose owner does not count.

    Raises the errors of ``read_details``, and Spark's error if another writer conflicts twice
    (``commit_with_retry``).
    """
    internal_names = delta_tables.internal_names(keys, schema.names)
    with stored_frame(changes) as stored_changes:
        count, few = delta_upsert.measure(stored_changes)
        if count == 0:
            return
        details = None if read_details is None else read_details()
        with frame_in_session(stored_changes, session) as source:
            merge = _VersionMerge(
                changes_under_names(source, internal_names),
                table,
                internal_names,
                keys,
                nulls,
                track,
            )
            if not few:
                with delta_upsert.settings_for_many_rows(session):
                    commit_with_retry(read_details, merge.merge)
                return
            with delta_upsert.settings_for_few_rows(session, table, details) as properties:
                where = None if delta_upsert.has_floats(schema, keys) else merge.keys_condition()
                if where is None or delta_tables.records_changes(properties):
                    commit_with_retry(read_details, merge.merge)
                else:
                    commit_with_retry(read_details, merge.replace, where)


@dataclass(frozen=True)
class _VersionMerge:
    """A micro-batch's changes, to be merged into a table of versions."""

    changes: DataFrame
    """Changes in the columns of ``changes_under_names``."""
    table: str
    """The table's name in SQL."""
    internal_names: Mapping[str, str]
    """The internal name (``delta_tables.internal_names``) of each column of the table, by its name.
    """
    keys: Sequence[str]
    """The key columns of the table."""
    nulls: bool
    """True if keys may have nulls in them; a null then equals a null."""
    track: Sequence[str]
    """The columns whose changes make versions; empty if every upsert makes one."""

    def keys_condition(self) -> str | None:
        """Return the SQL condition that a row of the table has one of the changed keys; None if it
        is too long (``delta_upsert.CONDITION_CHARS_MAX``). It runs a job that collects the keys.
        Keys must not be floats.
        """
        key_names = [self.internal_names[name] for name in self.keys]
        key_rows = self.changes.select(*key_names).distinct().toArrow()
        types = [self.changes.schema[internal].dataType for internal in key_names]
        columns = zip(map(key_rows.column, key_names), types, strict=True)
        where = delta_upsert.having_keys(dict(zip(self.keys, columns, strict=True)))
        return where if len(where) <= delta_upsert.CONDITION_CHARS_MAX else None

    def replace(self, where: str) -> None:
        """Replace the current versions of the changed keys by their new versions, with one scan and
        one commit. Ended versions are not touched. ``where``: the SQL condition that a row of the
        table has one of the changed keys. The table must have no change feed. Spark's errors pass.
        """
        internal_names = self.internal_names
        stored = self.changes.sparkSession.table(self.table).where(where)
        ends = _history_ends(
            versions_under_names(stored, internal_names), internal_names, self.keys
        )
        # Not stored: the commit itself must read the table. If another writer's commit came after
        # the reading and before this one, rows that it deleted would come back.
        actions = _version_actions(
            self.changes, internal_names, self.keys, ends=ends, track=self.track
        )
        rows = actions.where(F.col(CHANGE) != _DROP)
        columns = [F.col(at).alias(name) for name, at in internal_names.items()]
        delta_tables.replace(rows.select(*columns), self.table, f"{where} AND {CURRENT}")

    def merge(self) -> None:
        """Bring the table to the state after the changes by one MERGE. It works for any number of
        changes and with a change feed. Spark's errors pass.
        """
        changes, internal_names = self.changes, self.internal_names
        key_names = {name: internal_names[name] for name in self.keys}
        skipping = delta_tables.file_skipping_conditions(changes, key_names)
        pairs = [(F.col(quoted(name)), F.col(internal)) for name, internal in key_names.items()]
        same = reduce(and_, [a.eqNullSafe(b) if self.nulls else a == b for a, b in pairs])

        stored = reduce(DataFrame.where, skipping, changes.sparkSession.table(self.table))
        stored = stored.join(changes.select(*key_names.values()).distinct(), same)
        values = [
            F.col(quoted(n)).alias(at) for n, at in internal_names.items() if n not in self.keys
        ]
        ends = _history_ends(stored.select(*key_names.values(), *values), internal_names, self.keys)
        ended = [VALID_TO, CURRENT]
        if self.track:  # the other values of the current version may have changed
            ended += [
                n for n in internal_names if n not in (*self.keys, *self.track, *VERSION_NAMES)
            ]
        with stored_frame(
            _version_actions(changes, internal_names, self.keys, ends=ends, track=self.track)
        ) as actions:
            touched = F.col(CURRENT) & (F.col(CHANGE) != _INSERT)
            (
                actions.mergeInto(self.table, reduce(and_, [same, touched, *skipping]))
                .whenMatched(F.col(CHANGE) == _DROP)
                .delete()
                .whenMatched()
                .update({quoted(n): F.col(internal_names[n]) for n in ended})
                .whenNotMatched(F.col(CHANGE) == _INSERT)
                .insert(
                    {quoted(name): F.col(internal) for name, internal in internal_names.items()}
                )
                .merge()
            )


def changes_under_names(changes: DataFrame, internal_names: Mapping[str, str]) -> DataFrame:
    """Return the rows of ``changes``, a changelog, with the table's columns under internal names,
    and ``_change``, ``_timestamp`` and ``_position``. Columns of the table that the changelog
    lacks, those of versions, are left out.

    ``internal_names``: the internal name of each column of the table, by its name: ``_k0`` … of the
    keys, ``_0_0`` … of the others.
    """
    columns = [
        F.col(quoted(n)).alias(at) for n, at in internal_names.items() if n in changes.columns
    ]
    return changes.select(*columns, CHANGE, TIMESTAMP, POSITION)


def versions_under_names(versions: DataFrame, internal_names: Mapping[str, str]) -> DataFrame:
    """Return the rows of a table of versions with all columns under internal names, in the order of
    ``internal_names``: the internal name of each column of the table, by its name. These are
    ``_k0`` … of the keys, ``_0_0`` … of the others.
    """
    return versions.select(*(F.col(quoted(name)).alias(at) for name, at in internal_names.items()))


def _history_ends(
    stored: DataFrame, internal_names: Mapping[str, str], keys: Sequence[str]
) -> DataFrame:
    """Return the end of each key's stored history, as a change that goes before all new ones: one
    row per key, with ``_change``, ``_timestamp``, values under internal names, ``floor`` and a true
    ``stored``. By ``stored`` it is sorted first; it has no ``_position``.

    The change is an upsert with the current version's values, and its begin as ``_timestamp``. If
    no version is current, it is a delete, whose values and ``_timestamp`` are null. ``floor`` is
    the latest end of a version, null for none. ``stored``: all versions of the keys, under the
    internal names ``internal_names``; keys without any get no row.
    """
    current, began = F.col(internal_names[CURRENT]), F.col(internal_names[VALID_FROM])
    since = F.when(current, began)
    values = [at for name, at in internal_names.items() if name not in (*keys, *VERSION_NAMES)]
    ends = stored.groupBy(*(internal_names[name] for name in keys)).agg(
        F.when(F.max(since).isNotNull(), UPSERT).otherwise(DELETE).alias(CHANGE),
        F.max(since).alias(TIMESTAMP),
        F.max(internal_names[VALID_TO]).alias("floor"),
        *(F.max_by(at, since).alias(at) for at in values),
    )
    return ends.withColumn("stored", F.lit(True))


def _version_actions(
    changes: DataFrame,
    internal_names: Mapping[str, str],
    keys: Sequence[str],
    *,
    ends: DataFrame | None = None,
    track: Sequence[str] = (),
) -> DataFrame:
    """Return the actions on versions of the table: its columns under the internal names
    ``internal_names``, and in ``_change`` one of ``insert``, ``close`` and ``drop``. The last two
    are of the table's current version, found by its key. All columns are filled with the version as
    it is to be. ``close`` sets its end and ``_current`` or, with ``track``, also its untracked
    values. A current version that stays is closed with a null end, so it is the same.

    ``changes``: in the columns of ``changes_under_names``. ``keys``: the key columns. ``ends``: the
    result of ``_history_ends``; None for a new table. ``track``: the columns whose changes make
    versions, empty if every upsert makes one.

    An *episode* is an upsert with all that follows, up to the key's delete. If it has a delete and
    none of its changes is later than its first, it makes no version: a stored one is dropped. It is
    then no part of the key's history.
    """
    every = changes if ends is None else changes.unionByName(ends, allowMissingColumns=True)
    for name, type_ in (("floor", "timestamp"), ("stored", "boolean")):
        column = F.col(name) if name in every.columns else F.lit(None).cast(type_)
        every = every.withColumn(name, column)
    key = Window.partitionBy(*(internal_names[name] for name in keys))
    ordered = key.orderBy(F.col("stored").isNull(), POSITION)
    so_far = ordered.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    opens = F.col(CHANGE) == UPSERT
    opened = F.coalesce(F.lag(opens).over(ordered), F.lit(False))
    rows = every.select("*", opened.alias("opened"), F.max("floor").over(key).alias("start")).where(
        opens | F.col("opened")
    )
    if track:
        rows = _with_tracked_changes(rows, internal_names, keys, track, ordered)

    begun = F.count_if(opens & ~F.col("opened")).over(so_far)
    rows = rows.withColumn("episode", begun)
    episode = Window.partitionBy(*(internal_names[name] for name in keys), "episode")
    first = F.min_by(TIMESTAMP, F.struct(F.col("stored").isNull(), POSITION)).over(episode)
    later = F.max(TIMESTAMP).over(episode) > first
    has_version = later | F.every(opens).over(episode)
    rows = rows.withColumn("kept", has_version).where("kept OR stored")

    time = F.max(F.when(F.col("kept"), F.col(TIMESTAMP))).over(so_far)
    rows = rows.withColumn(VALID_FROM, F.greatest("start", time))
    rows = rows.withColumn(VALID_TO, F.lead(VALID_FROM).over(ordered)).where(opens)
    empty = ~F.col("kept") | F.coalesce(F.col(VALID_FROM) == F.col(VALID_TO), F.lit(False))
    action = F.when(F.col("stored").isNull(), F.when(~empty, _INSERT))
    action = action.when(empty, _DROP).otherwise(_CLOSE)
    version_columns = {
        VALID_FROM: F.col(VALID_FROM),
        VALID_TO: F.col(VALID_TO),
        CURRENT: F.col(VALID_TO).isNull(),
    }
    columns = [
        version_columns.get(name, F.col(internal)).alias(internal)
        for name, internal in internal_names.items()
    ]
    return rows.select(*columns, action.alias(CHANGE)).where(F.col(CHANGE).isNotNull())


def _with_tracked_changes(
    rows: DataFrame,
    internal_names: Mapping[str, str],
    keys: Sequence[str],
    track: Sequence[str],
    ordered: WindowSpec,
) -> DataFrame:
    """Return the rows of changes without the upserts that leave the columns ``track`` as they were;
    null equals null, and NaN equals NaN. Such upserts and the one before them are a *run*. The
    first row of a run stays, with its own ``_timestamp`` and ``_position``. Its untracked columns
    get the values of the run's last row.

    ``rows``: changes with ``opened``, true if the key has a row before the change, and ``stored``.
    ``internal_names``: the internal name by column. ``keys``: the key columns. ``ordered``: a
    window over the changes of a key, in order. Two columns are added: ``again``, false in all rows
    that stay, and ``run``, the index of the run within its key, from 1.
    """
    tracked = F.struct(*(internal_names[name] for name in track))
    again = (
        F.col("opened")
        & (F.col(CHANGE) == UPSERT)
        & tracked.eqNullSafe(F.lag(tracked).over(ordered))
    )
    rows = rows.withColumn("again", again)
    so_far = ordered.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    rows = rows.withColumn("run", F.count_if(~F.col("again")).over(so_far))
    run = Window.partitionBy(*(internal_names[name] for name in keys), "run").orderBy(
        F.col("stored").isNull(), POSITION
    )
    whole = run.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    others = [
        at for name, at in internal_names.items() if name not in (*keys, *track, *VERSION_NAMES)
    ]
    last = {at: F.last(at).over(whole) for at in others}
    return rows.withColumns(last).where(~F.col("again"))
