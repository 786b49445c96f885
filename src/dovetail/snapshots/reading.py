"""Reading Delta tables: their versions, their change feeds, and a snapshot's rows of some keys.

A join's rows of some keys are found without computing the join: the keys restrict the side whose
columns they are, and that side's rows restrict the other. Keys are never null, so a side without
which a compared column would be null is there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from dovetail import lake
from dovetail.columns import foreign_name, quoted
from dovetail.errors import ConfigurationError, DataError, TargetError
from dovetail.sessions import is_remote, keep, release
from dovetail.snapshots import delta_rules
from dovetail.snapshots.plan import SIGN, SnapshotJoin, SnapshotNode, SnapshotSource, used_columns

BROADCAST_ROWS_MAX = 500_000
"""Up to so many keys or changed rows are sent to all executors, so that no table is shuffled."""

Versions = Mapping[str, int]
"""The version of each table, by its id."""

REBUILD = "Let it be made anew with rebuild=True"


@dataclass
class Scratch:
    """Frames that are kept while a step runs."""

    frames: list[DataFrame] = field(default_factory=list)

    def keep(self, frame: DataFrame) -> DataFrame:
        """The frame, computed once, by the first job that reads all of it.

        Nothing remains of the plan that made it. Each delta is used in several places, so plans
        would grow by a factor with every join of a cascade, and with them the time for planning.
        """
        self.frames.append(keep(frame))
        return self.frames[-1]

    def release(self) -> None:
        """Forget all of them."""
        while self.frames:
            release(self.frames.pop())


@dataclass(frozen=True)
class Keys:
    """Distinct values of some columns (``delta_rules.keys_of``), counted, with the range of each
    column that has no nulls and by which files can be skipped.
    """

    frame: DataFrame
    count: int
    ranges: tuple[lake.Range | None, ...]


def keys_of(scratch: Scratch, frame: DataFrame, columns: Sequence[str]) -> Keys:
    """The keys of a frame; runs a job."""
    keys = scratch.keep(delta_rules.keys_of(frame, columns))
    return counted(keys)


def counted(keys: DataFrame) -> Keys:
    """Kept keys, counted; runs a job."""
    parts = [part for f in keys.schema for part in lake.bounds(f.name, f.dataType)]
    row = keys.agg(F.count("*").alias("count"), *parts).first()
    assert row is not None
    ranges = tuple(lake.range_of(row, name) for name in keys.columns)
    return Keys(small(keys, row["count"]), row["count"], ranges)


def small(frame: DataFrame, rows: int) -> DataFrame:
    """The frame, sent to all executors where it is not too large."""
    return F.broadcast(frame) if rows <= BROADCAST_ROWS_MAX else frame


@dataclass(frozen=True)
class Reader:
    """Reads what the nodes of one plan need."""

    session: SparkSession
    root: SnapshotNode
    scratch: Scratch
    _snapshots: dict[tuple[str, int], DataFrame] = field(
        default_factory=dict, init=False, repr=False
    )

    def columns(self, source: SnapshotSource) -> list[str]:
        """The source's columns that the plan uses, in the table's order of roles."""
        used = used_columns(self.root)[source]
        return [name for name in source.columns if name in used]

    def rows(
        self,
        node: SnapshotNode,
        versions: Versions,
        columns: Sequence[str] = (),
        keys: Keys | None = None,
    ) -> DataFrame:
        """The node's rows at these versions: all, or those whose columns are among the keys."""
        if isinstance(node, SnapshotSource):
            frame = self._snapshot(node, versions)
            if keys is None:
                return frame
            for condition in lake.within([F.col(quoted(n)) for n in columns], keys.ranges):
                frame = frame.where(condition)
            return delta_rules.at_keys(frame, columns, keys.frame)
        if keys is None:
            sides = [self.rows(side, versions) for side in node.sides]
            return delta_rules.joined(node, sides[0], sides[1], node.how)
        return delta_rules.at_keys(
            self._narrowed(node, versions, columns, keys), columns, keys.frame
        )

    def having_keys(self, source: SnapshotSource, versions: Versions, keys: Keys) -> DataFrame:
        """The source's rows whose own key is among the keys, which may have nulls in them."""
        frame, names = self._snapshot(source, versions), source.key.names
        for condition in lake.within([F.col(quoted(n)) for n in names], keys.ranges):
            frame = frame.where(condition)
        return delta_rules.at_keys(frame, names, keys.frame, nulls=True)

    def _narrowed(
        self, node: SnapshotJoin, versions: Versions, columns: Sequence[str], keys: Keys
    ) -> DataFrame:
        """The join restricted as far as is known from its inputs."""
        origins = [node.origins[name] for name in columns]
        both = all(None not in origin for origin in origins)
        sides = [side for side in (0, 1) if all(o[side] is not None for o in origins)]
        if not sides:
            known = [side for side in (0, 1) if any(o[side] is not None for o in origins)]
            return self._partly(node, versions, columns, keys, known)
        restricted = {
            side: self.rows(node.sides[side], versions, [o[side] or "" for o in origins], keys)
            for side in sides
        }
        if both:
            return delta_rules.joined(node, restricted[0], restricted[1], node.how)
        (side,) = sides
        return self._with_other(node, versions, side, restricted[side])

    def _with_other(
        self, node: SnapshotJoin, versions: Versions, side: int, rows: DataFrame
    ) -> DataFrame:
        """Some rows of a side with what they match; where they have no match, as they stand."""
        rows = self.scratch.keep(rows)
        other = 1 - side
        compared = keys_of(self.scratch, rows, node.on_columns(side))
        matching = self.rows(node.sides[other], versions, node.on_columns(other), compared)
        frames = (rows, matching) if side == 0 else (matching, rows)
        kept = ("left", "right")[side] if node.preserves(side) else "inner"
        return delta_rules.joined(node, *frames, kept)

    def _partly(
        self,
        node: SnapshotJoin,
        versions: Versions,
        columns: Sequence[str],
        keys: Keys,
        known: list[int],
    ) -> DataFrame:
        """Keys of which no side has all columns: one side's part of them restricts it."""
        if not known:
            return self.rows(node, versions)
        side = known[0]
        parts = [i for i, name in enumerate(columns) if node.origins[name][side] is not None]
        part = keys_of(self.scratch, keys.frame, [foreign_name(i) for i in parts])
        names = [node.origins[columns[i]][side] or "" for i in parts]
        rows = self.rows(node.sides[side], versions, names, part)
        return self._with_other(node, versions, side, rows)

    def _snapshot(self, source: SnapshotSource, versions: Versions) -> DataFrame:
        version = versions[source.table_id]
        known = source.table_id, version
        if known not in self._snapshots:
            reader = self.session.read.format("delta").option("versionAsOf", version)
            self._snapshots[known] = reader.load(source.path)
        return self._snapshots[known].select(*map(quoted, self.columns(source)))

    def feed(self, source: SnapshotSource, old: Versions, new: Versions) -> DataFrame:
        """The source's changes after its old version up to its new one (``delta_rules.images``)."""
        first, last = old[source.table_id] + 1, new[source.table_id]
        self._refuse_other_columns(source, first - 1, last)
        frame = (
            self.session.read.format("delta")
            .option("readChangeFeed", "true")
            .option("startingVersion", first)
            .option("endingVersion", last)
            .load(source.path)
        )
        comes = F.col("_change_type").isin("insert", "update_postimage")
        return frame.select(
            *map(quoted, self.columns(source)),
            F.when(comes, 1).otherwise(-1).alias(SIGN),
            F.col("_commit_version").alias(delta_rules.FEED_VERSION),
        )

    def _refuse_other_columns(self, source: SnapshotSource, old: int, new: int) -> None:
        """A column that is used must be the same one in both versions: of one that was dropped and
        added again, or renamed to another's name, the change feed says nothing.
        """
        before, after = (stored_columns(self.session, source.path, at) for at in (old, new))
        for name in self.columns(source):
            if before.get(name) != after.get(name):
                raise TargetError(
                    f"snapshot {source.name}",
                    f"column {name!r} is not the one that version {old} has, which is covered",
                    REBUILD,
                )


def refuse_duplicates(reader: Reader, source: SnapshotSource, versions: Versions) -> None:
    """All of a snapshot's keys are there once, and have a column that is not null."""
    key = [F.col(quoted(name)) for name in source.key.names]
    rows = reader.rows(source, versions)
    nulls = delta_rules.all_of(column.isNull() for column in key)
    found = (
        rows.groupBy(*key)
        .count()
        .agg(
            F.sum(F.when(nulls, F.col("count"))).alias("nulls"),
            F.count(F.when((F.col("count") > 1) & ~nulls, True)).alias("twice"),
        )
    )
    row = found.first()
    assert row is not None
    refuse_keys(source, versions, row["twice"], row["nulls"] or 0)


def refuse_keys(source: SnapshotSource, versions: Versions, twice: int, nulls: int) -> None:
    """Raise ``DataError`` where keys occur twice or are null."""
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
class Present:
    """What a table is now: its ``version``, its id, and whether it has a change feed."""

    version: int
    table_id: str
    has_feed: bool

    @classmethod
    def of(cls, session: SparkSession, path: str) -> Present:
        """Read from the table's log; on Spark Connect by SQL, which takes several jobs."""
        if is_remote(session):
            table = lake.named(path)
            version = lake.history(session, table, 1)[0]["version"]
            detail = lake.details(session, table)
            return cls(version, detail["id"], lake.records_changes(detail["properties"]))
        logs: Any = session._jvm.org.apache.spark.sql.delta.DeltaLog  # type: ignore[union-attr]  # noqa: SLF001 -- only the JVM knows logs
        snapshot = logs.forTableWithSnapshot(session._jsparkSession, path)._2()  # noqa: SLF001
        feed = snapshot.metadata().configuration().get(lake.FEED)
        has_feed = feed.isDefined() and feed.get().lower() == "true"
        return cls(snapshot.version(), snapshot.metadata().id(), has_feed)


def stored_columns(session: SparkSession, path: str, version: int) -> dict[str, Any]:
    """The columns of a table at a version: their types, with the names under which its files have
    them and their fields. A table with column mapping renames and drops columns, and leaves the
    files as they are; on Spark Connect these names are not shown, so it is refused.
    """
    if is_remote(session):
        mode = lake.property_of(session, lake.named(path), "delta.columnMapping.mode")
        if mode not in (None, "none"):
            raise ConfigurationError(
                f"the table at {path}",
                "it has column mapping, and Spark Connect does not show under which names its "
                "files have the columns",
                "Refresh the target from a classic session, or give the table no column mapping",
            )
        rows = session.read.format("delta").option("versionAsOf", version).load(path)
        return {field["name"]: _as_stored(field) for field in rows.schema.jsonValue()["fields"]}
    jvm: Any = session._jvm  # noqa: SLF001 -- only the JVM knows logs
    log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(session._jsparkSession, path)  # noqa: SLF001
    none = jvm.scala.Option.empty()
    schema = log.getSnapshotAt(version, none, none, False).metadata().schemaString()
    return {field["name"]: _as_stored(field) for field in json.loads(schema)["fields"]}


def _as_stored(part: Any) -> Any:
    """A part of a schema with the names of the files."""
    if isinstance(part, list):
        return [_as_stored(one) for one in part]
    if not isinstance(part, dict):
        return part
    named = {key: _as_stored(one) for key, one in part.items() if key not in _OF_NO_FILE}
    if "metadata" in part:
        named["name"] = part["metadata"].get("delta.columnMapping.physicalName", part["name"])
    return named


_OF_NO_FILE = ("metadata", "nullable")


def fit_version(reader: Reader, source: SnapshotSource) -> int:
    """The present version of a table, which must be the one that was planned with, in the columns
    used, and have a change feed.
    """
    operator = f"snapshot {source.name}"
    now = Present.of(reader.session, source.path)
    if now.table_id != source.table_id:
        raise TargetError(operator, f"the table at {source.path} has been replaced", REBUILD)
    if not now.has_feed:
        raise ConfigurationError(
            operator,
            "its change data feed is not enabled",
            f"Run ALTER TABLE {lake.named(source.path)} SET TBLPROPERTIES ({lake.FEED} = true)",
        )
    schema = lake.read(reader.session, lake.named(source.path)).schema
    for name in reader.columns(source):
        planned = (source.key if name in source.key.names else source.values)[name].dataType
        present = schema[name].dataType if name in schema.names else None
        if present != planned:
            found = "is missing" if present is None else f"is {present.simpleString()}"
            raise TargetError(
                operator,
                f"column {name!r} was {planned.simpleString()} when the join was written and "
                f"now {found}",
                "Write the join anew from the present table, then "
                + REBUILD[0].lower()
                + REBUILD[1:],
            )
    return now.version


def unreachable(error: Exception) -> bool:
    """Whether an error says that a table no longer has a version, its files or its changes."""
    text = str(error)
    return any(sign in text for sign in _GONE)


_GONE = (
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
)
