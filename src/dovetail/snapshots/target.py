"""A target in Delta: a table whose commits have their records as user metadata."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from functools import cached_property
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from dovetail.base.columns import quoted
from dovetail.platform import delta_tables, delta_upsert
from dovetail.platform.delta_log import HARMLESS, DeltaLog
from dovetail.platform.sessions import is_remote
from dovetail.snapshots.commit_records import (
    Commit,
    CommitRecords,
    TargetState,
    commit_of,
    covered_by_id,
    record_of,
    step_of,
)
from dovetail.snapshots.costs import RefreshStep, TimedStep
from dovetail.snapshots.delta_reader import Versions
from dovetail.snapshots.delta_rules import changes_after
from dovetail.snapshots.deltas import TargetChanges
from dovetail.snapshots.plan import AFTER, SnapshotNode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COMMITS_MAX = 20
"""The most commits, from the present one backwards, whose times count."""
METADATA = "spark.databricks.delta.commitInfo.userMetadata"
"""The setting of a session that has the user metadata of its next commits."""


class SnapshotTarget:
    """The Delta table that a plan is kept in. The table need not exist.

    ``session``: belongs to this target alone, since the metadata of a commit is one of its
    settings. ``operator``: the subject of errors. ``table``: the name of the table in SQL.
    ``root``: the last node of the plan. ``path``: the table's folder, or None if it is given by its
    name.
    """

    def __init__(
        self,
        session: SparkSession,
        operator: str,
        table: str,
        root: SnapshotNode,
        path: str | None,
    ) -> None:
        self._path = path
        self._session = session
        self._records = CommitRecords(operator, root)
        self._table = table
        self._root = root

    def exists(self) -> bool:
        """Return True if there is a table at the target's path, or a table or view of its name, of
        Delta or not. Spark's error passes if it cannot be read.
        """
        return delta_tables.exists(self._session, self._table)

    def present_state(self) -> TargetState:
        """Return the target's present version and the version of each source that it covers, as the
        last recorded commit says. The table must exist.

        Raises ``TargetError`` if the target holds another plan, or if another writer has changed it
        since the version that this commit was made from. Raises it, too, if the commit's record has
        another format, or if no commit in the history has a record.
        """
        newer: list[Mapping[str, Any]] = []
        for row in self._commits():
            recorded = record_of(row["userMetadata"])
            if recorded is None:
                newer.append(row)
                continue
            self._records.refuse_other_plan(recorded)
            self._refuse_changed([*newer, *self._commits_between(recorded["base"], row["version"])])
            return TargetState((newer or [row])[0]["version"], covered_by_id(recorded))
        raise self._records.unrecorded_error

    def is_of_snapshot_join(self) -> bool:
        """Return True if any commit in the table's history is of a join over snapshots, of this
        plan or another. The table must exist.
        """
        return any(record_of(row["userMetadata"]) is not None for row in self._commits())

    def create(self, rows: DataFrame, versions: Versions, step: RefreshStep) -> Commit:
        """Create the target with these rows in one commit. Return the commit without its ``way``
        and ``reason``.

        ``rows``: the columns of the plan. ``versions``: the version of each source, by table id,
        that the commit covers. ``step``: recorded with the commit. Spark raises an error if the
        table exists.
        """
        text = self._records.record_as_json(versions, -1, step)
        with delta_tables.temporary_settings(self._session, {METADATA: text}):
            delta_tables.create(rows, self._table, {}, replace=False)
        return Commit(self._present_version(), self._records.versions_by_name(versions))

    def replace(
        self, rows: DataFrame, versions: Versions, base: int | None, step: RefreshStep
    ) -> Commit:
        """Overwrite all rows of the target by ``rows`` in one commit. Return the commit without its
        ``way`` and ``reason``.

        ``versions``: the version of each source, by table id, that the commit covers. ``base``: the
        target version to continue from; None for the present one. ``step``: recorded with the
        commit. Raises ``TargetError``, or Delta's own error, if another writer was faster.
        """
        base = self._present_version() if base is None else base
        with self._commit_metadata(versions, base, step):
            delta_tables.overwrite(rows, self._table)
        return self._present_commit(None, versions, base)

    def merge(
        self, changes: TargetChanges, versions: Versions, base: int, step: RefreshStep
    ) -> Commit:
        """Merge changes into the target in one commit. Return the commit with the count of changed
        keys, and without its ``way`` and ``reason``.

        ``changes``: at least one changed row. ``versions``: the version of each source, by table
        id, that the commit covers. ``base``: the target version to continue from. ``step``:
        recorded with the commit. Raises ``TargetError``, or Delta's own error, if another writer
        was faster.
        """
        assert changes.frame is not None
        names, values = self._root.key.names, self._root.values.names
        rows = changes_after(changes.frame, names, values)
        with self._commit_metadata(versions, base, step):
            if changes.few and not delta_upsert.has_floats(rows.schema, names):
                delta_upsert.upsert(
                    self._session,
                    self._table,
                    rows.toArrow(),
                    rows.schema,
                    names,
                    nulls=True,
                    details=self._details(),
                )
            else:
                delta_tables.merge(
                    changes.frame,
                    self._table,
                    key={name: F.col(quoted(name)) for name in names},
                    values={name: F.col(f"{AFTER}.{quoted(name)}") for name in values},
                    gone=F.col(AFTER).isNull(),
                    where=delta_tables.file_skipping_conditions(
                        changes.frame, {name: name for name in names}
                    ),
                )
        return self._present_commit(changes.rows, versions, base)

    def advance_versions(self, versions: Versions, base: int) -> Commit:
        """Record that the target covers new versions without a change of rows, and return that
        commit.

        The commit sets a table property. ``versions``: the version of each source, by table id.
        ``base``: the target version before. Raises ``TargetError``, or Delta's own error, if
        another writer was faster.
        """
        recorded = json.dumps(self._records.versions_by_name(versions), sort_keys=True)
        with self._commit_metadata(versions, base, None):
            delta_tables.set_property(
                self._session, self._table, "dovetail.unchanged_until", recorded
            )
        return self._present_commit(0, versions, base)

    def commits(self) -> Iterator[Commit]:
        """Yield the commits of joins over snapshots in the table's history, the latest first: of
        this plan and of others. Commits of other writers are left out. Spark raises an error if the
        table does not exist.
        """
        for row in self._commits():
            recorded = record_of(row["userMetadata"])
            if recorded is not None:
                yield commit_of(row["version"], recorded)

    def earlier_steps(self) -> list[TimedStep]:
        """Return the steps of the last ``COMMITS_MAX`` (20) commits with the seconds that each took
        until its commit, the latest first.

        Commits without a recorded step are left out, and those that the log no longer has. The list
        is empty on Spark Connect, which has no access to the log. The table must exist.
        """
        if is_remote(self._session):
            return []
        took = []
        for row in islice(self._commits(), COMMITS_MAX):
            step = step_of(record_of(row["userMetadata"]) or {})
            committed_ms = row.get("timestamp")  # a moment in Spark's own history
            if step is not None and isinstance(committed_ms, int):
                took.append(TimedStep(step, (committed_ms - step.started_ms) / 1e3))
        return took

    @property
    def objection(self) -> str | None:
        """The reason, in words, why a refresh overwrites the target only with ``way="all"``; None
        if there is none. The table must exist.
        """
        if delta_tables.records_changes(self._details()["properties"]):
            return "the target has a change data feed, in which an overwrite shows every row"
        return None

    def _present_version(self) -> int:
        """Return the target's present Delta version, from 0. The table must exist."""
        return int(next(iter(self._commits()))["version"])

    def _commits(self) -> Iterator[Mapping[str, Any]]:
        """Yield the commits of the table's history, the latest first.

        Each mapping has at least ``version``, ``operation`` and ``userMetadata``, None without
        metadata. Spark raises an error if the table does not exist.
        """
        log = self._log()
        if log is None or log.version < 0:  # Spark has the error for a table that does not exist
            yield from self._history_of_spark(None)
            return
        for version in range(log.version, -1, -1):
            commit = log.commit(version)
            if commit is None:
                yield from self._history_of_spark(version)
                return
            yield {"userMetadata": None, **commit, "version": version}

    def _history_of_spark(self, newest: int | None) -> Iterator[Mapping[str, Any]]:
        """Yield the commits in Spark's history of the table, the latest first, each with
        ``version``, ``operation`` and ``userMetadata``.

        ``newest``: the version to begin with, inclusive; None for the present one. The first few
        usually suffice, so Spark is asked for 5 commits, then for 100, then for all.
        """
        seen = 0
        for limit in (5, 100, None):
            rows = delta_tables.history(self._session, self._table, limit)
            for row in rows[seen:]:
                if newest is None or row["version"] <= newest:
                    yield row.asDict()
            if limit is None or len(rows) < limit:
                return
            seen = len(rows)

    def _log(self) -> DeltaLog | None:
        """Return the target's Delta log at its present version; None on Spark Connect. The version
        is -1 if the folder has no table. Spark raises an error for a table given by its name that
        does not exist.
        """
        if is_remote(self._session):
            return None
        return DeltaLog.of(self._session, self._location)

    def _details(self) -> Mapping[str, Any]:
        """Return ``sizeInBytes``, the bytes of the target's data files, and ``properties``, its
        table properties by name. The target must exist. Of the properties only that of the change
        data feed is there for sure, if it is set. Other details may be there, too.
        """
        log = self._log()
        if log is None:
            return delta_tables.details(self._session, self._table).asDict()
        return {"sizeInBytes": log.size, "properties": log.properties}

    @cached_property
    def _location(self) -> str:
        """The folder of the target's table. The table must exist if it is given by its name."""
        return self._path or delta_tables.location(self._session, self._table)

    def _commits_between(self, base: int, version: int) -> list[Mapping[str, Any]]:
        """Return the commits after version ``base`` and before ``version``, both exclusive, the
        latest first. Each has ``version``, ``operation`` and ``userMetadata``. Commits that the
        history no longer has are missing.
        """
        if base + 1 >= version:
            return []
        later = takewhile(lambda row: row["version"] > base, self._commits())
        return [row for row in later if row["version"] < version]

    def _refuse_changed(self, rows: list[Mapping[str, Any]]) -> None:
        """Raise ``TargetError`` at the first commit whose operation may change rows or columns: one
        that is not in ``HARMLESS``.

        ``rows``: commits of other writers, each with ``version`` and ``operation``.
        """
        for row in rows:
            if row["operation"] not in HARMLESS:
                change = f"version {row['version']} is a {row['operation']}"
                raise self._records.foreign_change_error(change)

    def _commit_metadata(
        self, versions: Versions, base: int, step: RefreshStep | None
    ) -> AbstractContextManager[None]:
        """Return a context in which commits of the session have the record of this plan as user
        metadata. It changes settings of the session, for all its threads. They are restored at the
        end, also on an error.

        The commits also have a name of the writer, ``dovetail``, and a version, ``base + 1``
        (``delta_tables.commit_once_settings``). Delta ignores a later commit of the same or a
        smaller version, without an error. So the caller must look for its own.

        ``versions``: the version of each source, by table id. ``base``: the target version to
        continue from. ``step``: None leaves it out of the record.
        """
        return delta_tables.temporary_settings(
            self._session,
            {
                METADATA: self._records.record_as_json(versions, base, step),
                **delta_tables.commit_once_settings("dovetail", base + 1),
            },
        )

    def _present_commit(self, count: int | None, versions: Versions, base: int) -> Commit:
        """Return the commit after version ``base`` that has just been made with the record of these
        arguments. Another process may have made it: by its own way, to the same rows.

        ``count``: the count of changed rows to put into it, None if all were written. ``versions``:
        the version of each source, by table id. Raises ``TargetError`` if there is no such commit:
        another writer was faster, and Delta made no second one.
        """
        record = record_of(self._records.record_as_json(versions, base, None))
        for row in self._commits():
            if row["version"] <= base:
                break
            found = record_of(row["userMetadata"]) or {}
            if {name: part for name, part in found.items() if name != "step"} == record:
                return Commit(row["version"], self._records.versions_by_name(versions), count)
        raise self._records.overtaken_error
