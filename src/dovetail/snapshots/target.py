"""The target: a Delta table whose commits say which versions of the sources they cover.

A commit's user metadata is a JSON object: ``dovetail``, the format's number; ``tables``, the name,
id and covered version of each source; ``join``, what the plan was; ``base``, the target's version
that the commit was made from. Rows and metadata are one commit, so there is nothing else to
recover from.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from dovetail import lake, upsert
from dovetail.columns import DELETED, quoted
from dovetail.errors import TargetError
from dovetail.snapshots.delta_rules import AFTER
from dovetail.snapshots.plan import SnapshotNode, describe, differences, tables
from dovetail.snapshots.reading import REBUILD, Keys, Versions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMAT = 1
METADATA = "spark.databricks.delta.commitInfo.userMetadata"
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
"""Operations of others that leave a table's rows and columns as they are."""


@dataclass(frozen=True)
class Commit:
    """A commit of a target: its ``version``, and by name the version of each source that it covers.

    ``changed``: how many rows of the target the commit changed; None where it was read back.
    """

    version: int
    covered: Mapping[str, int]
    changed: int | None = None


@dataclass(frozen=True)
class Standing:
    """Where a target is: its present version and the sources' versions it covers, by table id."""

    version: int
    covered: Versions


class Target:
    """The table that a plan is kept in, named as in SQL. ``operator``: what errors call it;
    ``session`` is this target's own: the metadata of a commit is a setting of the session.
    """

    def __init__(
        self, session: SparkSession, operator: str, table: str, root: SnapshotNode
    ) -> None:
        self._session = session
        self._operator = operator
        self._table = table
        self._root = root

    def exists(self) -> bool:
        """Whether there is such a table."""
        return lake.exists(self._session, self._table)

    def standing(self) -> Standing:
        """What the target covers. Raises ``TargetError`` where it is not this plan's or not as the
        last commit of this plan left it.
        """
        newer: list[Any] = []
        for row in self._commits():
            recorded = _recorded(row["userMetadata"])
            if recorded is None:
                newer.append(row)
                continue
            self._refuse_other_plan(recorded)
            self._refuse_changed([*newer, *self._since(recorded["base"], row["version"])])
            covered = {one["id"]: one["version"] for one in recorded["tables"]}
            return Standing((newer or [row])[0]["version"], covered)
        raise TargetError(
            self._operator,
            "its history has no commit of a join over snapshots",
            "Choose another one; or, where it was one whose log has been cleaned since, remove it "
            "and let it be made anew",
        )

    def belongs(self) -> bool:
        """Whether any commit in the table's history is of a join over snapshots."""
        return any(_recorded(row["userMetadata"]) is not None for row in self._commits())

    def create(self, rows: DataFrame, versions: Versions, *, replace: bool) -> Commit:
        """Write all rows as one commit. ``replace``: in place of what the target holds."""
        base = self._version() if replace else -1
        with lake.setting(self._session, {METADATA: self._metadata(versions, base)}):
            if replace:
                lake.overwrite(rows, self._table)
            else:
                lake.create(rows, self._table, {}, replace=False)
        return Commit(self._version(), self._named(versions))

    def merge(
        self, changes: DataFrame, keys: Keys, count: int, versions: Versions, base: int
    ) -> Commit:
        """Bring the target to the new versions in one commit.

        ``changes``: ``law.pair`` of the root; ``keys``: its keys, by whose ranges files are
        skipped. The transaction's number is refused by Delta where another writer has come first.
        """
        names, values = self._root.key.names, self._root.values.names
        rows = changes.select(
            *map(quoted, names),
            *(F.col(f"{AFTER}.{quoted(name)}").alias(name) for name in values),
            F.col(AFTER).isNull().alias(DELETED),
        )
        few = count <= upsert.ROWS_MAX and upsert.measure(rows)[1]
        with self._committing(versions, base):
            if few and not upsert.has_floats(rows.schema, names):
                upsert.upsert(
                    self._session, self._table, rows.toArrow(), rows.schema, names, nulls=True
                )
                return self._committed(count, base)
            lake.merge(
                changes,
                self._table,
                key={name: F.col(quoted(name)) for name in names},
                values={name: F.col(f"{AFTER}.{quoted(name)}") for name in values},
                gone=F.col(AFTER).isNull(),
                where=lake.within([F.col(quoted(name)) for name in names], keys.ranges),
            )
        return self._committed(count, base)

    def advance(self, versions: Versions, base: int) -> Commit:
        """Cover new versions where no row of the target changes: a commit of a table property."""
        recorded = json.dumps(self._named(versions), sort_keys=True)
        with self._committing(versions, base):
            lake.set_property(self._session, self._table, "dovetail.unchanged_until", recorded)
        return self._committed(0, base)

    def commits(self) -> Iterator[Commit]:
        """The commits of joins over snapshots in the table's history, the last one first."""
        for row in self._commits():
            recorded = _recorded(row["userMetadata"])
            if recorded is not None:
                yield Commit(row["version"], _covered(recorded))

    def _version(self) -> int:
        return int(next(iter(self._commits()))["version"])

    def _commits(self) -> Iterator[Any]:
        """The history from the present backwards; as a rule the first few commits say enough."""
        seen = 0
        for limit in (5, 100, None):
            rows = lake.history(self._session, self._table, limit)
            yield from rows[seen:]
            if limit is None or len(rows) < limit:
                return
            seen = len(rows)

    def _since(self, base: int, version: int) -> list[Any]:
        """The commits between a commit of this plan and the version it was made from."""
        if base + 1 >= version:
            return []
        return [row for row in self._commits() if base < row["version"] < version]

    def _refuse_changed(self, rows: list[Any]) -> None:
        for row in rows:
            if row["operation"] not in HARMLESS:
                raise TargetError(
                    self._operator,
                    f"version {row['version']} is a {row['operation']} of somebody else",
                    "Keep other writers away and " + REBUILD[0].lower() + REBUILD[1:],
                )

    def _refuse_other_plan(self, recorded: Mapping[str, Any]) -> None:
        if recorded["dovetail"] != FORMAT:
            raise TargetError(
                self._operator,
                f"it has format {recorded['dovetail']}, this version reads {FORMAT}",
                "Run the version that wrote it, or " + REBUILD[0].lower() + REBUILD[1:],
            )
        apart = list(differences(recorded["join"], describe(self._root)))
        if apart:
            raise TargetError(
                self._operator,
                "it holds another join, or a source's schema has changed: " + "; ".join(apart),
                "Choose another table, or " + REBUILD[0].lower() + REBUILD[1:],
            )

    def _named(self, versions: Versions) -> dict[str, int]:
        return {one.name: versions[key] for key, one in tables(self._root).items()}

    def _metadata(self, versions: Versions, base: int) -> str:
        recorded = [
            {"name": one.name, "id": key, "version": versions[key]}
            for key, one in tables(self._root).items()
        ]
        return json.dumps(
            {"dovetail": FORMAT, "tables": recorded, "base": base, "join": describe(self._root)}
        )

    def _committing(self, versions: Versions, base: int) -> AbstractContextManager[None]:
        """What a commit that goes on from ``base`` says of itself."""
        return lake.setting(
            self._session,
            {METADATA: self._metadata(versions, base), **lake.once("dovetail", base + 1)},
        )

    def _committed(self, count: int, base: int) -> Commit:
        """The commit that was made; where there is none, somebody else was faster."""
        for row in self._commits():
            if row["version"] <= base:
                break
            recorded = _recorded(row["userMetadata"])
            if recorded is not None and recorded["base"] == base:
                return Commit(row["version"], _covered(recorded), count)
        raise TargetError(
            self._operator,
            "another writer has committed meanwhile",
            "Let one process at a time keep it, and run again",
        )


def _covered(recorded: Mapping[str, Any]) -> dict[str, int]:
    """The versions of the sources that a commit says it covers, by name."""
    return {one["name"]: one["version"] for one in recorded["tables"]}


def _recorded(metadata: str | None) -> dict[str, Any] | None:
    """A commit's metadata where it is of a join over snapshots."""
    try:
        recorded = json.loads(metadata or "null")
    except ValueError:
        return None
    return recorded if isinstance(recorded, dict) and "dovetail" in recorded else None
