"""A target in Iceberg: a table whose snapshots have their records in their summaries.

A commit that changes no row is a snapshot, too. The driver makes all commits, by the means of
``to_iceberg``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from dovetail.errors import TargetError
from dovetail.iceberg.catalogs import TableAddress
from dovetail.io.sinks.iceberg.batch import merged_rows
from dovetail.io.sinks.iceberg.columns import refuse_nested_keys, stored_schema
from dovetail.io.sinks.iceberg.tables import IcebergTarget
from dovetail.plan.types.arrow import arrow_schema, spark_schema
from dovetail.snapshots.commit_records import (
    Commit,
    CommitRecords,
    TargetState,
    commit_of,
    covered_by_id,
    record_of,
)
from dovetail.snapshots.costs import RefreshStep, TimedStep
from dovetail.snapshots.delta_reader import Versions
from dovetail.snapshots.delta_rules import changes_after
from dovetail.snapshots.deltas import TargetChanges
from dovetail.snapshots.iceberg_reader import NO_SNAPSHOT
from dovetail.snapshots.plan import SnapshotNode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

RECORD = "dovetail.join"
"""The entry of a snapshot's summary that has the record of the commit."""


class IcebergSnapshotTarget:
    """The Iceberg table that a plan is kept in. The table need not exist.

    ``operator``: the subject of errors. ``root``: the last node of the plan. Raises ``PlanError``
    for types that Iceberg does not store, and for nested keys.
    """

    def __init__(self, operator: str, address: TableAddress, root: SnapshotNode) -> None:
        columns = StructType([*root.key.fields, *root.values.fields])
        refuse_nested_keys(operator, columns, root.key.names)
        schema = stored_schema(operator, columns)
        self._target = IcebergTarget(operator, address, schema, "fail", (), evolve=False)
        self._schema = arrow_schema(schema)
        self._records = CommitRecords(operator, root)
        self._root = root

    def exists(self) -> bool:
        """Return True if the Iceberg table exists and has a snapshot. A table without one may be
        taken over. Raises ``ConfigurationError`` if the catalog cannot be reached.
        """
        return self._has_table() and self._open_table().current_snapshot() is not None

    def present_state(self) -> TargetState:
        """Return the id of the target's present snapshot and the version of each source that it
        covers.

        Raises ``TargetError`` if the target holds another plan or other columns. So it does if its
        last record has another format, or if no snapshot in the history has a record. Raises it,
        too, if another writer has changed rows since the snapshot ``base`` of the last record, from
        which the recorded snapshot was made. The table must exist; ``ConfigurationError`` says that
        it cannot be read.
        """
        table = self._open_table()
        newer: list[Snapshot] = []
        for snapshot, record in _snapshots_with_records(table):
            if record is None:
                newer.append(snapshot)
                continue
            self._records.refuse_other_plan(record)
            self._refuse_columns(table)
            self._refuse_changed([*newer, *_snapshots_between(table, record["base"], snapshot)])
            return TargetState((newer or [snapshot])[0].snapshot_id, covered_by_id(record))
        raise self._records.unrecorded_error

    def is_of_snapshot_join(self) -> bool:
        """Return True if any snapshot in the table's history is of a join over snapshots, of any
        plan. The table must exist.
        """
        return any(record is not None for _, record in _snapshots_with_records(self._open_table()))

    def create(self, rows: DataFrame, versions: Versions, step: RefreshStep) -> Commit:
        """Create the table, or take an empty one over, with these rows in one commit. Return the
        commit without its ``way`` and ``reason``.

        ``rows``: the columns of the plan. ``versions``: the version of each source, by table id,
        that the commit covers. ``step``: recorded with the commit. Raises ``TargetError`` if a
        table that exists has other columns, or if another writer was faster.
        """
        if not self._has_table():
            self._target.create()
        return self.replace(rows, versions, None, step)

    def replace(
        self, rows: DataFrame, versions: Versions, base: int | None, step: RefreshStep
    ) -> Commit:
        """Overwrite all rows of the target by ``rows`` in one commit. Return the commit without its
        ``way`` and ``reason``.

        ``versions``: the version of each source, by table id, that the commit covers. ``base``: the
        id of the snapshot to continue from, 0 for none; None for the present one. ``step``:
        recorded with the commit. This process holds all rows. Raises ``TargetError`` if the table
        has other columns, or if another writer was faster.
        """
        from dovetail.iceberg.replacement import all_files

        table = self._open_table()
        self._refuse_columns(table)
        base = _present_snapshot_id(table) if base is None else base
        if _present_snapshot_id(table) != base:
            raise self._records.overtaken_error
        arrow_rows = rows.toArrow().cast(self._schema)
        self._make_snapshot(table, arrow_rows, all_files(table), versions, base, step)
        return Commit(_present_snapshot_id(table), self._records.versions_by_name(versions))

    def merge(
        self, changes: TargetChanges, versions: Versions, base: int, step: RefreshStep
    ) -> Commit:
        """Merge changes into the target in one commit. Return the commit with the count of changed
        keys, and without its ``way`` and ``reason``.

        ``changes``: at least one changed row. ``versions``: the version of each source, by table
        id, that the commit covers. ``base``: the id of the snapshot to continue from. ``step``:
        recorded with the commit. This process holds the changed rows, and all rows of the files
        that have one. Raises ``TargetError`` if another writer was faster.
        """
        assert changes.frame is not None
        names, values = self._root.key.names, self._root.values.names
        rows = changes_after(changes.frame, names, values).toArrow()
        table = self._open_table()
        removed, coming = merged_rows(table, rows, self._schema, names)
        return self._commit_rows(table, coming, removed, versions, base, changes.rows, step)

    def advance_versions(self, versions: Versions, base: int) -> Commit:
        """Record that the target covers new versions without a change of rows, and return that
        commit.

        The commit is a snapshot with the same rows. ``versions``: the version of each source, by
        table id. ``base``: the id of the snapshot to continue from. Raises ``TargetError`` if
        another writer was faster.
        """
        empty = self._schema.empty_table()
        return self._commit_rows(self._open_table(), empty, [], versions, base, 0, None)

    def commits(self) -> Iterator[Commit]:
        """Yield the commits of joins over snapshots in the table's history, the latest first: of
        this plan and of others. Snapshots of other writers are left out. Raises
        ``ConfigurationError`` if the table does not exist.
        """
        for snapshot, record in _snapshots_with_records(self._open_table()):
            if record is not None:
                yield commit_of(snapshot.snapshot_id, record)

    def earlier_steps(self) -> list[TimedStep]:
        """Return an empty list: an ``objection`` decides the way of each step, so no times are
        needed.
        """
        return []

    @property
    def objection(self) -> str:
        """The reason, in words, why a refresh overwrites the target only with ``way="all"``."""
        return "this process would hold all rows of an Iceberg target to overwrite it"

    def _commit_rows(
        self,
        table: Table,
        rows: pa.Table,
        removed: Sequence[DataFile],
        versions: Versions,
        base: int,
        count: int,
        step: RefreshStep | None,
    ) -> Commit:
        """Commit rows in place of files, and return the commit.

        ``rows``: the rows to add, of the target's Arrow schema. ``removed``: the data files to
        remove. ``versions``: the version of each source, by table id. ``base``: the id of the
        snapshot to continue from. ``count``: the count of changed rows for the result. ``step``:
        None leaves it out of the record.

        Raises ``TargetError`` if another writer was faster.
        """
        if _present_snapshot_id(table) != base:
            raise self._records.overtaken_error
        self._make_snapshot(table, rows, removed, versions, base, step)
        return Commit(_present_snapshot_id(table), self._records.versions_by_name(versions), count)

    def _make_snapshot(
        self,
        table: Table,
        rows: pa.Table,
        removed: Sequence[DataFile],
        versions: Versions,
        base: int,
        step: RefreshStep | None,
    ) -> None:
        """Make one snapshot that has the record of this plan, even if no row is added or removed.

        ``rows``: the rows to add, of the target's Arrow schema. ``removed``: the data files to
        remove. ``versions``: the version of each source, by table id. ``base``: the id of the
        snapshot to continue from. ``step``: None leaves it out of the record. Raises
        ``TargetError`` if another writer was faster.
        """
        from dovetail.iceberg.replacement import CONFLICTS, commit

        summary = {RECORD: self._records.record_as_json(versions, base, step)}
        try:
            commit(table, rows, removed, summary=summary, properties={}, always=True)
        except CONFLICTS as error:
            raise self._records.overtaken_error from error
        snapshot = table.current_snapshot()
        if snapshot is None or (snapshot.parent_snapshot_id or NO_SNAPSHOT) != base:
            raise self._records.overtaken_error

    def _refuse_changed(self, snapshots: Sequence[Snapshot]) -> None:
        """Raise ``TargetError`` at the first of ``snapshots``, those of other writers, that may
        change rows; do nothing if none may. Snapshots that only replace files are allowed.
        """
        from dovetail.iceberg.lineage import changes_rows

        for snapshot in snapshots:
            if changes_rows(snapshot):
                raise self._records.foreign_change_error(f"snapshot {snapshot.snapshot_id} is")

    def _refuse_columns(self, table: Table) -> None:
        """Raise ``TargetError`` if the columns of ``table``, the opened target, have other names or
        types than the plan's, or if pyiceberg cannot write it. Their order does not matter.
        """
        from dovetail.iceberg.columns import arrow_schema as columns_in_arrow

        self._target.refuse_unwritable(table)
        title, schema = self._target.title, self._target.schema
        present = spark_schema(columns_in_arrow(title, table.schema().fields))
        if _types_by_name(present) != _types_by_name(schema):
            raise TargetError(
                title,
                f"the table has the columns {present.simpleString()}, and the join has "
                f"{schema.simpleString()}",
                "Drop it, or choose another table",
            )

    def _has_table(self) -> bool:
        """Return True if the catalog has a table of the target's name, even without a snapshot.
        Raises ``ConfigurationError`` if the catalog cannot be reached.
        """
        address = self._target.address
        return address.open_catalog(self._target.title).table_exists(address.table)

    def _open_table(self) -> Table:
        """Return the target's table as the catalog has it now. Raises ``ConfigurationError`` if it
        does not exist or cannot be read.
        """
        return self._target.open()


def _snapshots_with_records(table: Table) -> Iterator[tuple[Snapshot, dict[str, Any] | None]]:
    """Yield the snapshots of a table from the present one backwards, each with its record; None for
    a snapshot of another writer.

    Nothing is yielded for a table without snapshots. The last one is a snapshot without a parent,
    or whose parent has expired.
    """
    snapshot = table.current_snapshot()
    while snapshot is not None:
        summary = snapshot.summary
        yield snapshot, None if summary is None else record_of(summary.get(RECORD))
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else table.snapshot_by_id(parent)


def _snapshots_between(table: Table, base: int, end: Snapshot) -> Iterator[Snapshot]:
    """Yield the snapshots after ``base`` and before ``end``, both exclusive, from the latest
    backwards. ``base``: the id of a snapshot, 0 for all before ``end``. At an expired snapshot
    nothing more is yielded.
    """
    parent = end.parent_snapshot_id
    while parent is not None and parent != base:
        snapshot = table.snapshot_by_id(parent)
        if snapshot is None:
            return
        yield snapshot
        parent = snapshot.parent_snapshot_id


def _types_by_name(columns: StructType) -> dict[str, str]:
    """Return the type of each column in Spark's words, by the column's name."""
    return {field.name: field.dataType.simpleString() for field in columns}


def _present_snapshot_id(table: Table) -> int:
    """Return the id of a table's present snapshot, 0 for none."""
    snapshot = table.current_snapshot()
    return NO_SNAPSHOT if snapshot is None else snapshot.snapshot_id
