"""A target in Delta: a table whose commits have their records as user metadata."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from dovetail.base.columns import quoted
from dovetail.platform import delta_tables, delta_upsert
from dovetail.snapshots.commit_records import (
    Commit,
    CommitRecords,
    Standing,
    covered_by_id,
    covered_by_name,
    record_of,
)
from dovetail.snapshots.delta_reader import Keys, Versions
from dovetail.snapshots.delta_rules import AFTER, after
from dovetail.snapshots.plan import SnapshotNode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

METADATA = "spark.databricks.delta.commitInfo.userMetadata"
"""The setting of a session that has the user metadata of its next commits."""
HARMLESS = (
    "ANALYZE TABLE",
    "CLUSTER BY",
    "COMPUTE STATS",
    "OPTIMIZE",
    "REORG",
    "REORG TABLE UPGRADE UNIFORM",
    "SET TBLPROPERTIES",
    "UNSET TBLPROPERTIES",
    "UPGRADE PROTOCOL",
    "VACUUM END",
    "VACUUM START",
)
"""Operations of other writers that leave a table's rows and columns as they are."""


class SnapshotTarget:
    """The table that a plan is kept in, named as in SQL.

    ``operator``: the subject of errors. ``session`` must belong to this target alone, since the
    metadata of a commit is a setting of the session.
    """

    def __init__(
        self, session: SparkSession, operator: str, table: str, root: SnapshotNode
    ) -> None:
        self._session = session
        self._records = CommitRecords(operator, root)
        self._table = table
        self._root = root

    def exists(self) -> bool:
        """Say whether the table exists."""
        return delta_tables.exists(self._session, self._table)

    def standing(self) -> Standing:
        """Return the target's present version and the versions that it covers.

        Raises ``TargetError`` if the target belongs to another plan, or if others changed it since.
        """
        newer: list[Any] = []
        for row in self._commits():
            recorded = record_of(row["userMetadata"])
            if recorded is None:
                newer.append(row)
                continue
            self._records.refuse_other_plan(recorded)
            self._refuse_changed([*newer, *self._since(recorded["base"], row["version"])])
            return Standing((newer or [row])[0]["version"], covered_by_id(recorded))
        raise self._records.unrecorded

    def belongs(self) -> bool:
        """Say whether any commit in the table's history is of a join over snapshots."""
        return any(record_of(row["userMetadata"]) is not None for row in self._commits())

    def create(self, rows: DataFrame, versions: Versions, *, replace: bool) -> Commit:
        """Write all rows as one commit, and return it. ``replace``: True to replace a table that
        exists.
        """
        base = self._version() if replace else -1
        with delta_tables.setting(self._session, {METADATA: self._records.text(versions, base)}):
            if replace:
                delta_tables.overwrite(rows, self._table)
            else:
                delta_tables.create(rows, self._table, {}, replace=False)
        return Commit(self._version(), self._records.named(versions))

    def merge(
        self, changes: DataFrame, keys: Keys, count: int, versions: Versions, base: int
    ) -> Commit:
        """Bring the target to the new versions in one commit, and return it.

        ``changes``: ``delta_rules.pair`` of the root. ``keys``: the keys of the changes, whose
        ranges let files be skipped. ``count``: the number of changes. ``base``: the version to
        continue from. Delta refuses the transaction's number if another writer was faster.
        """
        names, values = self._root.key.names, self._root.values.names
        rows = after(changes, names, values)
        few = count <= delta_upsert.ROWS_MAX and delta_upsert.measure(rows)[1]
        with self._committing(versions, base):
            if few and not delta_upsert.has_floats(rows.schema, names):
                delta_upsert.upsert(
                    self._session, self._table, rows.toArrow(), rows.schema, names, nulls=True
                )
                return self._committed(count, base)
            delta_tables.merge(
                changes,
                self._table,
                key={name: F.col(quoted(name)) for name in names},
                values={name: F.col(f"{AFTER}.{quoted(name)}") for name in values},
                gone=F.col(AFTER).isNull(),
                where=delta_tables.within([F.col(quoted(name)) for name in names], keys.ranges),
            )
        return self._committed(count, base)

    def advance(self, versions: Versions, base: int) -> Commit:
        """Record that the target covers new versions if none of its rows change, by setting a table
        property. Return that commit. ``base``: the target's version before.

        Raises ``TargetError`` if another writer was faster.
        """
        recorded = json.dumps(self._records.named(versions), sort_keys=True)
        with self._committing(versions, base):
            delta_tables.set_property(
                self._session, self._table, "dovetail.unchanged_until", recorded
            )
        return self._committed(0, base)

    def commits(self) -> Iterator[Commit]:
        """Yield the commits of joins over snapshots in the table's history, the last one first."""
        for row in self._commits():
            recorded = record_of(row["userMetadata"])
            if recorded is not None:
                yield Commit(row["version"], covered_by_name(recorded))

    def _version(self) -> int:
        """Return the table's present version."""
        return int(next(iter(self._commits()))["version"])

    def _commits(self) -> Iterator[Any]:
        """Yield the rows of the table's history from the present backwards. Usually the first few
        suffice, so few are read at first.
        """
        seen = 0
        for limit in (5, 100, None):
            rows = delta_tables.history(self._session, self._table, limit)
            yield from rows[seen:]
            if limit is None or len(rows) < limit:
                return
            seen = len(rows)

    def _since(self, base: int, version: int) -> list[Any]:
        """Return the commits between a commit of this plan and the version that it
        was made from.
        """
        if base + 1 >= version:
            return []
        return [row for row in self._commits() if base < row["version"] < version]

    def _refuse_changed(self, rows: list[Any]) -> None:
        """Raise ``TargetError`` if commits of other writers, as rows of the history, may have
        changed rows or columns.
        """
        for row in rows:
            if row["operation"] not in HARMLESS:
                change = f"version {row['version']} is a {row['operation']}"
                raise self._records.foreign_change(change)

    def _committing(self, versions: Versions, base: int) -> AbstractContextManager[None]:
        """Set the user metadata and the transaction's number of the commits made in the block."""
        return delta_tables.setting(
            self._session,
            {
                METADATA: self._records.text(versions, base),
                **delta_tables.once("dovetail", base + 1),
            },
        )

    def _committed(self, count: int, base: int) -> Commit:
        """Return the commit made from ``base``. Raises ``TargetError`` if another writer was
        faster.
        """
        for row in self._commits():
            if row["version"] <= base:
                break
            recorded = record_of(row["userMetadata"])
            if recorded is not None and recorded["base"] == base:
                return Commit(row["version"], covered_by_name(recorded), count)
        raise self._records.overtaken
