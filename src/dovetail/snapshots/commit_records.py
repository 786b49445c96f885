"""What the commits of a target record: the versions of the sources that they cover, as JSON.

- ``dovetail``: the version of the format
- ``tables``: name, id and covered version of each source
- ``join``: the description of the plan
- ``base``: the target's version that the commit was made from
- ``step``: how the commit was made, and when that began (``costs.RefreshStep``); missing in
  commits of earlier versions, and in those without changed rows

Rows and record are one commit, so nothing else is needed for recovery.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from dovetail.errors import TargetError
from dovetail.snapshots.costs import RefreshStep, Way
from dovetail.snapshots.delta_reader import Versions
from dovetail.snapshots.plan import (
    THEN_REBUILD,
    SnapshotNode,
    describe,
    differences,
    distinct_sources,
)

FORMAT = 2


@dataclass(frozen=True)
class Commit:
    """A commit of a target that a join over snapshots has made."""

    version: int
    """The version of the target that the commit made; the snapshot's id of an Iceberg table."""
    covered: Mapping[str, int]
    """The version of each source that the commit covers, by the source's name."""
    changed: int | None = None
    """The count of the target's rows that the commit changed.

    None if the commit was read from the history. None, too, for a commit that wrote the whole
    table: the first one, and each one with ``way="all"``.
    """
    way: Way | None = None
    """How the commit was made: ``"changes"`` if changed rows were merged, ``"all"`` if the whole
    table was written.

    None for a commit without changed rows, or of an earlier version of dovetail.
    """
    reason: str | None = None
    """Why it was made in this way. None if the commit was read from the history."""


@dataclass(frozen=True)
class TargetState:
    """The present version of a target, and the versions of the sources that it covers."""

    version: int
    """The target's present version: that of a Delta table, or the id of an Iceberg snapshot."""
    covered: Versions
    """The covered version of each source, by table id."""


@dataclass(frozen=True)
class CommitRecords:
    """The writer and reader of the records in the commits of one plan's target."""

    operator: str
    """The target's name in errors."""
    root: SnapshotNode
    """The last node of the plan."""

    def record_as_json(self, versions: Versions, base: int, step: RefreshStep | None) -> str:
        """Return the record of a commit as the JSON text of an object:

        - ``dovetail``: the version of the format, 2
        - ``tables``: a list of objects with ``name``, ``id`` and ``version``, one for each source
        - ``base``: the argument
        - ``step``: the fields of the argument; missing if it is None
        - ``join``: the description of the plan (``plan.describe``)

        ``versions``: the version of each source of the plan, by table id. ``base``: the target
        version that the commit continues; for none, -1 of a Delta target and 0 of an Iceberg one.
        """
        recorded = [
            {"name": name, "id": table_id, "version": versions[table_id]}
            for name, table_id in self._table_ids.items()
        ]
        record: dict[str, Any] = {"dovetail": FORMAT, "tables": recorded, "base": base}
        if step is not None:
            record["step"] = asdict(step)
        return json.dumps({**record, "join": describe(self.root)})

    def versions_by_name(self, versions: Versions) -> dict[str, int]:
        """Return the version of each source by the source's name. ``versions``: the same by table
        id. Raises ``KeyError`` if a source of the plan is missing.
        """
        return {name: versions[table_id] for name, table_id in self._table_ids.items()}

    @property
    def _table_ids(self) -> dict[str, str]:
        """The table id of each source by its name. Names of one table have the same id."""
        return {source.name: source.table_id for source in distinct_sources(self.root)}

    def refuse_other_plan(self, record: Mapping[str, Any]) -> None:
        """Raise ``TargetError`` if a commit's record has another format, or describes another plan
        than this one. The message names the parts that differ. ``record``: a result of
        ``record_of``.
        """
        if record["dovetail"] != FORMAT:
            raise TargetError(
                self.operator,
                f"it has format {record['dovetail']}, this version reads {FORMAT}",
                "Run the version that wrote it, or " + THEN_REBUILD,
            )
        apart = list(differences(record["join"], describe(self.root)))
        if apart:
            raise TargetError(
                self.operator,
                "it holds another join, or a source's schema has changed: " + "; ".join(apart),
                "Choose another table, or " + THEN_REBUILD,
            )

    def foreign_change_error(self, change: str) -> TargetError:
        """Return the error for a commit of another writer, not raised. ``change``: the beginning of
        its message, such as ``version 3 is a DELETE``.
        """
        return TargetError(
            self.operator,
            f"{change} of somebody else",
            "Keep other writers away and " + THEN_REBUILD,
        )

    @property
    def overtaken_error(self) -> TargetError:
        """The error, not raised, for a commit that another writer has overtaken."""
        return TargetError(
            self.operator,
            "another writer has committed meanwhile",
            "Let one process at a time keep it, and run again",
        )

    @property
    def unrecorded_error(self) -> TargetError:
        """The error, not raised, for a history without a commit of a join over snapshots."""
        return TargetError(
            self.operator,
            "its history has no commit of a join over snapshots",
            "Choose another one; or, where it was one whose log has been cleaned since, remove it "
            "and let it be made anew",
        )


def commit_of(version: int, record: Mapping[str, Any]) -> Commit:
    """Return a commit read from a target's history. ``version``: the target's version that the
    commit made. ``record``: its parsed record. ``changed`` and ``reason`` are None, and so is
    ``way`` if the record has no step.
    """
    step = step_of(record)
    return Commit(version, covered_by_name(record), way=None if step is None else step.way)


def step_of(record: Mapping[str, Any]) -> RefreshStep | None:
    """Return the step in a commit's parsed record. None if the record has none, or is of another
    format than ``FORMAT``; an empty record has none.
    """
    if record.get("dovetail") != FORMAT or "step" not in record:
        return None
    return RefreshStep(**record["step"])


def covered_by_name(record: Mapping[str, Any]) -> dict[str, int]:
    """Return the version of each source that a commit covers, by the source's name. ``record``: the
    commit's parsed record. Raises ``KeyError`` if that is of another format and has no ``tables``.
    """
    return {table["name"]: table["version"] for table in record["tables"]}


def covered_by_id(record: Mapping[str, Any]) -> dict[str, int]:
    """Return the version of each source that a commit covers, by the source's table id; two sources
    of one table have one entry. ``record``: the commit's parsed record. Raises ``KeyError`` if that
    is of another format and has no ``tables``.
    """
    return {table["id"]: table["version"] for table in record["tables"]}


def record_of(text: str | None) -> dict[str, Any] | None:
    """Return the parsed record in a commit's metadata, of any plan and format. None for None or no
    text, text that is not JSON, and JSON of another writer.
    """
    try:
        record = json.loads(text or "null")
    except ValueError:
        return None
    return record if isinstance(record, dict) and "dovetail" in record else None
