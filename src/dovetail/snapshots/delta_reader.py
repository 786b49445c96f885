"""Reading tables: their versions, their change feeds, and a snapshot's rows of some keys. Those of
Iceberg tables come from ``iceberg_reader``.

A join's rows of some keys are found without computing the whole join. The keys restrict the side
that has their columns, and that side's rows restrict the other side. Keys are never null. A side is
therefore present if a compared column would be null without it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any

import numpy as np
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructField, StructType

from dovetail.base.columns import foreign_name, quoted
from dovetail.errors import ConfigurationError, DataError, TargetError
from dovetail.platform import delta_tables, delta_upsert, jvm
from dovetail.platform.delta_log import DeltaLog
from dovetail.platform.sessions import is_remote, keep, release
from dovetail.snapshots import delta_rules
from dovetail.snapshots.few_rows import FewRows, ranges_of
from dovetail.snapshots.iceberg_reader import SnapshotReader
from dovetail.snapshots.plan import (
    COUNT,
    REBUILD,
    SIGN,
    WRITE_ANEW,
    SnapshotAggregate,
    SnapshotJoin,
    SnapshotNode,
    SnapshotSource,
    used_columns,
)

if TYPE_CHECKING:
    import pyarrow as pa

BROADCAST_ROWS_MAX = 500_000
"""The most keys or changed rows that are sent to all executors. No table is
shuffled then.
"""

LISTED_KEYS_MAX = 2_000
"""The most keys that a condition lists. Then no job sends them to executors."""

HASHED_BYTES_MAX = 256 << 20
"""The bytes of data files up to which the hashes of all keys, of eight bytes each, are compared in
this process.
"""

Versions = Mapping[str, int]
"""The version of each table, by its id."""


@dataclass
class StoredFrames:
    """The stored frames of one step, released together."""

    frames: list[DataFrame] = field(default_factory=list)
    """The stored frames, in the order of ``keep``."""

    def keep(self, frame: DataFrame) -> DataFrame:
        """Return a frame with the same rows that is computed once and stored on the executors, by
        the first job that reads all of it. ``release`` frees its storage; this runs no job.

        The plan that made the frame is dropped. Each delta is used several times, so plans would
        otherwise grow by a factor with every join of a cascade.
        """
        self.frames.append(keep(frame))
        return self.frames[-1]

    def release(self) -> None:
        """Free the storage of all frames kept so far, the latest first. A second call does
        nothing.
        """
        while self.frames:
            release(self.frames.pop())


@dataclass(frozen=True)
class DistinctKeys:
    """Distinct values of some columns, as a frame and, if they are few, in this process."""

    frame: DataFrame
    """The keys, one per row, as columns ``_f0``, ``_f1`` …."""
    count: int
    """The count of keys, which may be 0."""
    ranges: tuple[delta_tables.Range | None, ...]
    """The smallest and the largest value of each column, both inclusive, by which files can be
    skipped. None for columns without a usable range.
    """
    few: FewRows | None = None
    """The same keys in this process; None if they are many."""

    def rows_with_keys(
        self, frame: DataFrame, columns: Sequence[str], *, nulls: bool = False
    ) -> DataFrame:
        """Return the rows of ``frame`` whose ``columns`` equal one of the keys, with their columns
        unchanged, in undefined order. Without keys no row stays.

        ``columns``: columns of ``frame``, one for each key column, in order. ``nulls``: True if a
        null equals a null; by default it equals nothing, and the keys must have no nulls. Floats
        are equal as in Spark: NaN equals NaN, and -0.0 equals 0.0.
        """
        if self.few is None or len(columns) > 1 or self.count > LISTED_KEYS_MAX:
            return delta_rules.rows_at_keys(frame, columns, self.frame, nulls=nulls)
        (field,), (column,) = self.few.schema, columns
        if delta_upsert.has_floats(self.few.schema, [field.name]):
            return delta_rules.rows_at_keys(frame, columns, self.frame, nulls=nulls)
        if not self.count:
            return frame.where(F.lit(False))
        listed = {column: (self.few.table[field.name], field.dataType)}
        return frame.where(F.expr(delta_upsert.having_keys(listed)))


def few_keys(session: SparkSession, keys: pa.Table, types: Sequence[DataType]) -> DistinctKeys:
    """Return keys of this process as ``DistinctKeys`` with a frame that is marked for broadcast,
    and the keys themselves as ``few``. There may be none. Its ``ranges`` are the smallest and the
    largest value of each column. A range is None without keys, if the column has nulls, and for
    types other than integers, decimals and texts without a collation.

    ``keys``: columns ``_f0``, ``_f1`` … without duplicates, perhaps with nulls. ``types``: their
    Spark types, in order, which ``delta_upsert.is_plain`` must allow.
    """
    fields = [StructField(name, t) for name, t in zip(keys.column_names, types, strict=True)]
    few = FewRows(keys, StructType(fields))
    return DistinctKeys(F.broadcast(few.frame(session)), keys.num_rows, ranges_of(few), few)


def keys_of(scratch: StoredFrames, frame: DataFrame, columns: Sequence[str]) -> DistinctKeys:
    """Return the distinct values of a frame's ``columns``, as columns ``_f0``, ``_f1`` … in this
    order. Values that contain a null are left out.

    The result has their count, and as ``ranges`` the smallest and the largest value of each column.
    A range is None without keys, and for types other than integers, decimals and texts without a
    collation. The keys are not collected to this process, so ``few`` is None. Runs a job, and
    stores the keys in ``scratch`` until that is released.
    """
    keys = scratch.keep(delta_rules.keys_of(frame, columns))
    return count_keys(keys)


def count_keys(keys: DataFrame) -> DistinctKeys:
    """Return keys as ``DistinctKeys``, with their count, and as ``ranges`` the smallest and the
    largest value of each column. A range is None without keys, if the column has nulls, and for
    types other than integers, decimals and texts without a collation. The keys are not collected to
    this process, so ``few`` is None. Runs a job.

    ``keys``: distinct values as columns ``_f0``, ``_f1`` …, stored by ``StoredFrames.keep``. They
    are marked for broadcast if they are at most ``BROADCAST_ROWS_MAX`` (500,000).
    """
    parts = [
        part for f in keys.schema for part in delta_tables.range_aggregates(f.name, f.dataType)
    ]
    row = keys.agg(F.count("*").alias("count"), *parts).first()
    assert row is not None
    ranges = tuple(delta_tables.range_of(row, name) for name in keys.columns)
    return DistinctKeys(broadcast_if_small(keys, row["count"]), row["count"], ranges)


def broadcast_if_small(frame: DataFrame, rows: int) -> DataFrame:
    """Return the frame, marked for broadcast if ``rows``, the count of its rows, is at most
    ``BROADCAST_ROWS_MAX`` (500,000); else unchanged. Runs no job.
    """
    return F.broadcast(frame) if rows <= BROADCAST_ROWS_MAX else frame


@dataclass(frozen=True)
class VersionReader:
    """A reader of the rows and changes of a plan's nodes, at given versions of the sources."""

    session: SparkSession
    root: SnapshotNode
    """The last node of the plan."""
    scratch: StoredFrames
    """The frames that the reader stores, which the caller releases."""
    _snapshots: dict[tuple[str, int], DataFrame] = field(
        default_factory=dict, init=False, repr=False
    )

    @cached_property
    def iceberg(self) -> SnapshotReader:
        """The reader of the sources that are Iceberg tables. It opens each table once, and sees no
        later snapshots.
        """
        return SnapshotReader(self.session)

    def columns(self, source: SnapshotSource) -> list[str]:
        """Return the names of the source's columns that the plan uses, key columns first, then
        values in the order of the table. Key columns are always among them. Raises ``KeyError`` for
        a source that is not in the plan.
        """
        used = used_columns(self.root)[source]
        return [name for name in source.columns if name in used]

    def rows(
        self,
        node: SnapshotNode,
        versions: Versions,
        columns: Sequence[str] = (),
        keys: DistinctKeys | None = None,
    ) -> DataFrame:
        """Return a plan node's rows at these versions as a frame, in undefined order: the key
        columns first, then the values.

        ``versions``: the version of each source by table id. ``keys``: only rows whose ``columns``
        equal one of these keys are returned, keys without nulls; None for all rows. ``columns``:
        columns of the node, one for each key column, in order. With keys, a join may run jobs.
        Columns of a source that the plan does not use are left out; a join's columns that come from
        them are null.

        Raises ``ConfigurationError`` for a snapshot that an Iceberg table does not have. Spark
        raises an error for a version that a Delta table does not have.
        """
        if isinstance(node, SnapshotSource):
            if keys is None:
                return self._rows_of_source(node, versions)
            return keys.rows_with_keys(self._rows_in_ranges(node, versions, columns, keys), columns)
        if isinstance(node, SnapshotAggregate):
            return self._rows_of_aggregate(node, versions, columns, keys)
        if keys is None:
            sides = [self.rows(side, versions) for side in node.sides]
            return delta_rules.joined_rows(node, sides[0], sides[1], node.how)
        return keys.rows_with_keys(
            self._rows_of_narrowed_join(node, versions, columns, keys), columns
        )

    def _rows_of_aggregate(
        self,
        node: SnapshotAggregate,
        versions: Versions,
        columns: Sequence[str],
        keys: DistinctKeys | None,
    ) -> DataFrame:
        """Return the aggregate's rows at these versions, the group columns first. If ``keys`` is
        None return all rows, else those whose ``columns`` have the values of one of the keys.

        If all ``columns`` are group columns, the keys restrict the rows that are read. Otherwise
        all groups are computed first.
        """
        if keys is None or not set(columns) <= set(node.key.names):
            rows = delta_rules.aggregated_rows(node, self.rows(node.input, versions))
            return rows if keys is None else keys.rows_with_keys(rows, columns)
        return delta_rules.aggregated_rows(node, self.rows(node.input, versions, columns, keys))

    def source_rows_with_keys(
        self, source: SnapshotSource, versions: Versions, keys: DistinctKeys
    ) -> DataFrame:
        """Return the source's rows at its version whose key is one of ``keys``, with the columns
        that the plan uses. A null equals a null.

        ``versions``: by table id. ``keys``: one column for each key column of the source, in order.
        Errors are those of ``rows``.
        """
        names = source.key.names
        return keys.rows_with_keys(
            self._rows_in_ranges(source, versions, names, keys), names, nulls=True
        )

    def _rows_in_ranges(
        self, source: SnapshotSource, versions: Versions, columns: Sequence[str], keys: DistinctKeys
    ) -> DataFrame:
        """Return the source's rows within the ranges of the keys in ``columns``, from files that
        may have such rows. Rows that equal none of the keys may be among them. All rows are
        returned if no key column has a range.

        ``versions``: by table id. ``columns``: columns of the source, one for each column of
        ``keys``, in order.
        """
        if source.iceberg is None:
            frame = self._rows_of_source(source, versions)
        else:
            ranges = dict(zip(columns, keys.ranges, strict=True))
            version = versions[source.table_id]
            frame = self.iceberg.rows(source, self.columns(source), version, ranges)
        for condition in delta_tables.range_conditions(
            [F.col(quoted(n)) for n in columns], keys.ranges
        ):
            frame = frame.where(condition)
        return frame

    def _rows_of_narrowed_join(
        self, node: SnapshotJoin, versions: Versions, columns: Sequence[str], keys: DistinctKeys
    ) -> DataFrame:
        """Return the join's rows whose ``columns`` equal one of the keys, and possibly more rows.
        The result has all columns of the join.

        Only a part of either side is read, if possible. Sides that have all of ``columns`` are
        restricted by the keys. If only one has, its rows then restrict the other side, by jobs. If
        none has, ``_rows_by_one_side`` answers. ``versions``: by table id. ``columns``: columns of
        the join, one for each column of ``keys``, in order.
        """
        origins = [node.origins[name] for name in columns]
        on_both_sides = all(None not in origin for origin in origins)
        sides = [side for side in (0, 1) if all(o[side] is not None for o in origins)]
        if not sides:
            partial_sides = [side for side in (0, 1) if any(o[side] is not None for o in origins)]
            return self._rows_by_one_side(node, versions, columns, keys, partial_sides)
        restricted = {
            side: self.rows(node.sides[side], versions, [o[side] or "" for o in origins], keys)
            for side in sides
        }
        if on_both_sides:
            return delta_rules.joined_rows(node, restricted[0], restricted[1], node.how)
        (side,) = sides
        return self._join_with_other_side(node, versions, side, restricted[side])

    def _join_with_other_side(
        self, node: SnapshotJoin, versions: Versions, side: int, rows: DataFrame
    ) -> DataFrame:
        """Return the join of some rows of a side with their matches of the other side, at these
        versions. The columns are those of the join: key, then values. Runs jobs.

        ``side``: 0 if ``rows`` are of the left side, 1 for the right. Of ``rows``, those without a
        match at these versions stay only if the join keeps unmatched rows of this side. Unmatched
        rows of the other side are left out.
        """
        rows = self.scratch.keep(rows)
        other = 1 - side
        compared = keys_of(self.scratch, rows, node.on_columns(side))
        matching = self.rows(node.sides[other], versions, node.on_columns(other), compared)
        frames = (rows, matching) if side == 0 else (matching, rows)
        how = ("left", "right")[side] if node.preserves(side) else "inner"
        return delta_rules.joined_rows(node, *frames, how)

    def _rows_by_one_side(
        self,
        node: SnapshotJoin,
        versions: Versions,
        columns: Sequence[str],
        keys: DistinctKeys,
        partial_sides: list[int],
    ) -> DataFrame:
        """Return the join's rows if neither side has all ``columns`` of the keys, and possibly more
        rows. The result has all columns of the join.

        ``columns``: columns of the join, one for each column of ``keys``. ``partial_sides``: the
        sides that have some of these columns, 0 for the left and 1 for the right. The first of
        these cases applies:

        - no side has any: all rows of the join are returned, without a job;
        - a side has a column that comes from it alone: the keys' values of its columns restrict
          that side, by jobs, and its rows restrict the other side (the left side goes first);
        - all columns of a side come from both sides: their values restrict both sides, by a job.

        Columns of ``keys`` that come from no restricted side are ignored.
        """
        if not partial_sides:
            return self.rows(node, versions)
        origins = [node.origins[name] for name in columns]
        # A row with a value in a column of one side alone has that side.
        own = [s for s in partial_sides if any(o[s] and not o[1 - s] for o in origins)]
        side = (own or partial_sides)[0]
        parts = [i for i, origin in enumerate(origins) if origin[side] is not None]
        part = keys_of(self.scratch, keys.frame, [foreign_name(i) for i in parts])
        restricted = {
            s: self.rows(node.sides[s], versions, [origins[i][s] or "" for i in parts], part)
            for s in own[:1] or partial_sides
        }
        if not own:
            return delta_rules.joined_rows(node, restricted[0], restricted[1], node.how)
        return self._join_with_other_side(node, versions, side, restricted[side])

    def _rows_of_source(self, source: SnapshotSource, versions: Versions) -> DataFrame:
        """Return all rows of a source at its version, with the columns that the plan uses, key
        columns first. The opened Delta frame of a version is remembered; rows of an Iceberg table
        come from ``iceberg`` and are not.

        ``versions``: by table id; a missing one raises ``KeyError``. Raises ``ConfigurationError``
        for a snapshot that an Iceberg table does not have. Spark raises an error for a version that
        a Delta table does not have.
        """
        version = versions[source.table_id]
        if source.iceberg is not None:
            return self.iceberg.rows(source, self.columns(source), version, {})
        table_version = source.table_id, version
        if table_version not in self._snapshots:
            reader = self.session.read.format("delta").option("versionAsOf", version)
            self._snapshots[table_version] = reader.load(source.path)
        return self._snapshots[table_version].select(*map(quoted, self.columns(source)))

    def change_feed(self, source: SnapshotSource, old: Versions, new: Versions) -> DataFrame:
        """Return a source's changes after its old version, exclusive, up to its new one, inclusive,
        in undefined order.

        ``old``, ``new``: versions by table id; those of the source must differ. The columns are
        those that the plan uses, then ``_sign``, an int: -1 for a row that goes, +1 for one that
        comes; an update is one of each. The last is ``_commit_version``, a bigint that rises from
        commit to commit: the version of a Delta table, the snapshot's sequence number of an
        Iceberg table.

        Raises ``TargetError`` if a used column of a Delta table is not the same one in both
        versions. Raises ``ConfigurationError`` if Spark Connect does not show that.
        """
        if source.iceberg is not None:
            ends = (versions[source.table_id] for versions in (old, new))
            return self.iceberg.changes(source, self.columns(source), *ends)
        first, last = old[source.table_id] + 1, new[source.table_id]
        self._refuse_other_columns(source, first - 1, last)
        frame = (
            self.session.read.format("delta")
            .option("readChangeFeed", "true")
            .option("startingVersion", first)
            .option("endingVersion", last)
            .load(source.path)
        )
        added = F.col("_change_type").isin("insert", "update_postimage")
        return frame.select(
            *map(quoted, self.columns(source)),
            F.when(added, 1).otherwise(-1).alias(SIGN),
            F.col("_commit_version").alias(delta_rules.FEED_VERSION),
        )

    def _refuse_other_columns(self, source: SnapshotSource, old: int, new: int) -> None:
        """Raise ``TargetError`` if a used column is not the same one in the versions ``old`` and
        ``new`` of a Delta table.

        The column may have been dropped and added again, or renamed to another column's name. The
        change feed does not show that. Raises ``ConfigurationError`` on Spark Connect for a table
        with column mapping.
        """
        before, after = (stored_columns(self.session, source.path, at) for at in (old, new))
        for name in self.columns(source):
            if before.get(name) != after.get(name):
                raise TargetError(
                    f"snapshot {source.name}",
                    f"column {name!r} is not the one that version {old} has, which is covered",
                    REBUILD,
                )


def refuse_duplicates(
    reader: VersionReader, sources: Sequence[SnapshotSource], versions: Versions, size: int | None
) -> None:
    """Raise ``DataError`` if a key of a source occurs twice at its version, or if all columns of a
    key are null. Of several such sources the first one is reported. Nothing is checked without
    sources.

    ``sources``: two may read one table by different keys. ``versions``: by table id. ``size``: the
    bytes of the sources' data files, None if they are not known. Up to ``HASHED_BYTES_MAX`` (256
    MiB), one job brings the hashes of all keys to this process. Otherwise, and if these hashes do
    not decide, a job a source groups its keys.
    """
    small = size is not None and size <= HASHED_BYTES_MAX
    if not small or not sources or not _have_different_hashes(reader, sources, versions):
        for source in sources:
            _refuse_grouped_duplicates(reader, source, versions)


def _have_different_hashes(
    reader: VersionReader, sources: Sequence[SnapshotSource], versions: Versions
) -> bool:
    """Return True if the keys of all sources have different hashes, so no key occurs twice, and no
    key is null in all its columns. Runs a job that brings the hashes here.

    ``sources``: at least one. ``versions``: by table id. False means that this is not known. Then
    there is a key of nulls only, or two hashes are equal, or a key's type is a float or none that
    ``delta_upsert.is_plain`` allows.
    """
    hashes = []
    for index, source in enumerate(sources):
        types = [field.dataType for field in source.key]
        if not all(map(delta_upsert.is_plain, types)) or delta_upsert.has_floats(
            source.key, source.key.names
        ):
            return False
        key = [F.col(quoted(name)) for name in source.key.names]
        nulls = delta_rules.all_of(column.isNull() for column in key)
        digest = F.when(~nulls, F.xxhash64(F.lit(index), *key))
        hashes.append(reader.rows(source, versions).select(digest.alias("hash")))
    column = reduce(DataFrame.unionAll, hashes).toArrow()["hash"]
    values = np.sort(column.to_numpy())
    return column.null_count == 0 and not bool(np.any(values[1:] == values[:-1]))


def _refuse_grouped_duplicates(
    reader: VersionReader, source: SnapshotSource, versions: Versions
) -> None:
    """Raise ``DataError`` if a key of a source occurs twice at its version, or if all columns of a
    key are null. Runs a job that groups the keys. ``versions``: by table id.
    """
    key = [F.col(quoted(name)) for name in source.key.names]
    rows = reader.rows(source, versions)
    nulls = delta_rules.all_of(column.isNull() for column in key)
    counts = (
        rows.groupBy(*key)
        .agg(F.count("*").alias(COUNT))
        .agg(
            F.sum(F.when(nulls, F.col(COUNT))).alias("nulls"),
            F.count(F.when((F.col(COUNT) > 1) & ~nulls, True)).alias("twice"),
        )
    )
    row = counts.first()
    assert row is not None
    refuse_keys(source, versions, row["twice"], row["nulls"] or 0)


def refuse_keys(source: SnapshotSource, versions: Versions, twice: int, nulls: int) -> None:
    """Raise ``DataError`` for a source unless both counts are 0. The error names the source's
    version in ``versions``, by table id.

    ``twice``: the count of keys that occur more than once. ``nulls``: the count of rows whose key
    columns are all null. If neither is 0, only ``twice`` is reported.
    """
    for count, problem in ((twice, "keys occur more than once"), (nulls, "rows have a null key")):
        if count:
            raise DataError(
                f"snapshot {source.name}",
                f"{count:,} {problem} ({', '.join(source.key.names)}) in version "
                f"{versions[source.table_id]} or between it and the last one covered",
                "Remove them and let the target be made anew with rebuild=True, or name in key= "
                "what tells the rows apart",
            )


@dataclass(frozen=True)
class DeltaState:
    """The present state of a Delta table."""

    version: int
    """The latest version, 0 for the first one; -1 in a classic session if there is no table."""
    table_id: str
    """The id that Delta gives the table; a table made anew has another one."""
    has_feed: bool
    """True if the change data feed is enabled."""
    log: DeltaLog | None
    """The Delta log at this version; None on Spark Connect."""

    @classmethod
    def read(cls, session: SparkSession, path: str) -> DeltaState:
        """Return the present version, id, change feed and log of the Delta table at the folder
        ``path``, from its log. Without a table, the version is -1 in a classic session, and the id
        is of no use.

        On Spark Connect it takes several SQL jobs, and Spark raises an error if there is no table.
        """
        if is_remote(session):
            table = delta_tables.sql_name(path)
            version = delta_tables.history(session, table, 1)[0]["version"]
            detail = delta_tables.details(session, table)
            feed = delta_tables.records_changes(detail["properties"])
            return cls(version, detail["id"], feed, None)
        log = DeltaLog.of(session, path)
        feed = delta_tables.records_changes(log.properties)
        return cls(log.version, log.table_id, feed, log)


def present_version(reader: VersionReader, source: SnapshotSource) -> int:
    """Return the latest version of a source. It is that of a Delta table, counted from 0, or the id
    of an Iceberg table's present snapshot, 0 if it has none.

    Raises ``TargetError`` if the table was replaced, or if a Delta table is gone; the latter raises
    Spark's own error on Spark Connect. Raises ``ConfigurationError`` for an Iceberg table that
    cannot be read.
    """
    if source.iceberg is not None:
        return reader.iceberg.latest_snapshot(source, ())
    return _same_table(reader, source).version


def _same_table(reader: VersionReader, source: SnapshotSource) -> DeltaState:
    """Return the present state of a source that is a Delta table. Raises ``TargetError`` if the
    table was replaced or is gone. On Spark Connect, one that is gone raises Spark's own error.
    """
    now = DeltaState.read(reader.session, source.path)
    if now.table_id != source.table_id:
        raise TargetError(
            f"snapshot {source.name}", f"the table at {source.path} has been replaced", WRITE_ANEW
        )
    return now


def stored_columns(session: SparkSession, path: str, version: int) -> dict[str, Any]:
    """Return a description of each column of a Delta table at a version as its files store it, by
    the column's name. Equal descriptions mean the same column; they are JSON data. ``path``: the
    table's folder.

    A table with column mapping renames and drops columns without changing its files. Spark Connect
    does not show the names in the files, so such a table raises ``ConfigurationError`` there.
    Spark's or Delta's error passes if the version is gone.
    """
    if is_remote(session):
        mode = delta_tables.property_of(
            session, delta_tables.sql_name(path), "delta.columnMapping.mode"
        )
        if mode not in (None, "none"):
            raise ConfigurationError(
                f"the table at {path}",
                "it has column mapping, and Spark Connect does not show under which names its "
                "files have the columns",
                "Refresh the target from a classic session, or give the table no column mapping",
            )
        rows = session.read.format("delta").option("versionAsOf", version).load(path)
        return {
            field["name"]: _schema_as_stored(field) for field in rows.schema.jsonValue()["fields"]
        }
    schema = jvm.delta_snapshot_at(session, path, version).metadata().schemaString()
    return {field["name"]: _schema_as_stored(field) for field in json.loads(schema)["fields"]}


def _schema_as_stored(part: Any) -> Any:
    """Return a schema as JSON data with the column names of the files, without metadata and
    nullability, at any depth.

    ``part``: a schema of Spark as JSON data, or a part of it. Texts and numbers stay as they are.
    """
    if isinstance(part, list):
        return [_schema_as_stored(inner) for inner in part]
    if not isinstance(part, dict):
        return part
    named = {
        key: _schema_as_stored(inner)
        for key, inner in part.items()
        if key not in _LEFT_OUT_OF_SCHEMA
    }
    if "metadata" in part:
        named["name"] = part["metadata"].get("delta.columnMapping.physicalName", part["name"])
    return named


_LEFT_OUT_OF_SCHEMA = ("metadata", "nullable")
"""The properties of a schema's field that files do not store."""


def state_that_fits(reader: VersionReader, source: SnapshotSource) -> DeltaState:
    """Return the present state of a source that is a Delta table. It must still fit the plan.

    Raises ``TargetError`` if the table was replaced or is gone, or if a used column is gone or has
    another type. The order of columns does not matter, nor if they may be null. Raises
    ``ConfigurationError`` without a change data feed. On Spark Connect, a table that is gone raises
    Spark's own error.
    """
    operator, now = f"snapshot {source.name}", _same_table(reader, source)
    if not now.has_feed:
        raise ConfigurationError(
            operator,
            "its change data feed is not enabled",
            f"Run ALTER TABLE {delta_tables.sql_name(source.path)} SET TBLPROPERTIES "
            f"({delta_tables.FEED} = true)",
        )
    schema = delta_tables.read(reader.session, delta_tables.sql_name(source.path)).schema
    for name in reader.columns(source):
        planned = (source.key if name in source.key.names else source.values)[name].dataType
        present = schema[name].dataType if name in schema.names else None
        if present != planned:
            present_state = "is missing" if present is None else f"is {present.simpleString()}"
            raise TargetError(
                operator,
                f"column {name!r} was {planned.simpleString()} when the join was written and "
                f"now {present_state}",
                WRITE_ANEW,
            )
    return now


def says_version_is_gone(error: Exception) -> bool:
    """Return True if an error's text says that a table no longer has a version, its files or its
    changes. The texts are those of Delta, Spark and pyiceberg.
    """
    text = str(error)
    return any(sign in text for sign in _ERRORS_OF_GONE_VERSIONS)


_ERRORS_OF_GONE_VERSIONS = (
    "DELTA_MISSING_CHANGE_DATA",
    "DELTA_VERSION_NOT_FOUND",
    "DELTA_VERSIONS_NOT_CONTIGUOUS",
    "DELTA_CDC_START_VERSION",
    "DELTA_CHANGE_DATA_FILE_NOT_FOUND",
    "DELTA_TRUNCATED_TRANSACTION_LOG",
    "DELTA_LOG_FILE_NOT_FOUND",
    "FAILED_READ_FILE.FILE_NOT_EXIST",
    "VersionNotFoundException",
    "FileNotFoundException",
    "FileNotFoundError",
)
"""Words in the errors of Delta, Spark and pyiceberg about missing versions, files or changes."""
