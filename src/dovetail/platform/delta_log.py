"""The log of a Delta table in a classic session: its commits, read without Spark's jobs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from dovetail.platform import jvm
from dovetail.platform.delta_tables import FEED
from dovetail.platform.files import Folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HARMLESS = (
    "ANALYZE TABLE",
    "CLUSTER BY",
    "COMPUTE STATS",
    "OPTIMIZE",
    "REORG",
    "REORG TABLE UPGRADE UNIFORM",
    "ROW TRACKING BACKFILL",
    "ROW TRACKING UNBACKFILL",
    "SET TBLPROPERTIES",
    "UNSET TBLPROPERTIES",
    "UPGRADE PROTOCOL",
    "VACUUM END",
    "VACUUM START",
)
"""Operations that leave a table's rows and columns as they are."""
COMMITS_MAX = 100
"""The most commits that are read for their sizes."""

_ROWS = ("numOutputRows", "numUpdatedRows", "numDeletedRows")
_MERGED_ROWS = ("numTargetRowsInserted", "numTargetRowsUpdated", "numTargetRowsDeleted")


@dataclass(frozen=True)
class ChangeSize:
    """The size of some commits' changes, as their metrics say it."""

    rows: int
    """The count of rows inserted, updated and deleted."""
    size: int
    """About how many bytes of data files these rows take."""


@dataclass(frozen=True)
class DeltaLog:
    """The log of a Delta table at one version, the present one when it was read."""

    version: int
    """The table's present version, 0 for the first one; -1 if there is no table."""
    table_id: str
    """Delta's own id of the table."""
    properties: dict[str, str]
    """The table property of the change data feed (``delta_tables.FEED``), if it is set."""
    _snapshot: Any
    """Delta's own snapshot of the table, an object of the JVM."""
    _folder: Folder
    """The folder of the log's files."""

    @classmethod
    def of(cls, session: SparkSession, location: str) -> DeltaLog:
        """Read the present version of the log of the Delta table in the folder ``location``, and
        return it. The object never follows later versions.

        ``location``: the folder's path; without a scheme it is one of Spark's default file system.
        ``session``: a classic one. Without a table, the version is -1.
        """
        snapshot = jvm.delta_snapshot(session, location)
        feed = snapshot.metadata().configuration().get(FEED)
        return cls(
            snapshot.version(),
            snapshot.metadata().id(),
            {FEED: feed.get()} if feed.isDefined() else {},
            snapshot,
            Folder(session, str(snapshot.deltaLog().logPath().toString())),
        )

    @cached_property
    def size(self) -> int:
        """The bytes of the table's data files at this version; 0 without a table. If the log has no
        checksum file of the version, this runs jobs.
        """
        checksum = self._folder.read(f"{self.version:020d}.crc")
        if checksum is None:
            return int(self._snapshot.sizeInBytes())
        return int(json.loads(checksum)["tableSizeBytes"])

    def commit(self, version: int) -> dict[str, Any] | None:
        """Return the record (``commitInfo``) that the commit of version ``version`` has of itself.
        None if the log no longer has its file, or if the file has no such record.

        The record has ``operation``, ``operationMetrics``, ``userMetadata`` and more, as Delta
        writes them.
        """
        return next(_actions(self._commit_lines(version), "commitInfo"), None)

    def changes(self, after: int, until: int) -> ChangeSize | None:
        """Return the count of rows changed after version ``after``, exclusive, up to ``until``,
        inclusive, and the bytes that these rows take. Both are 0 if ``after`` is not below
        ``until``.

        None if the log lacks the file of one of these commits, or if it does not say its size.
        None, too, for more than ``COMMITS_MAX`` (100) commits. Rows that several commits change
        count several times.
        """
        if until - after > COMMITS_MAX:
            return None
        sizes = [self._commit_size(version) for version in range(after + 1, until + 1)]
        known = [size for size in sizes if size is not None]
        if len(known) < len(sizes):
            return None
        return ChangeSize(sum(size.rows for size in known), sum(size.size for size in known))

    def _commit_size(self, version: int) -> ChangeSize | None:
        """Return the count of rows that a commit changes, and the bytes that these rows take. Both
        are 0 if it changes none. ``version``: that of the commit.

        Bytes are estimated by the size of a row in the new file with the most rows. None without
        such a file, so also for a commit that only removes files with rows. None, too, if the
        commit's file is gone or does not say how many rows it changes.
        """
        lines = self._commit_lines(version)
        commit = next(_actions(lines, "commitInfo"), None)
        rows = None if commit is None else _changed_rows(commit)
        if not rows:
            return None if rows is None else ChangeSize(0, 0)
        files = [action for action in _actions(lines, "add") if action.get("stats")]
        sizes = [(json.loads(file["stats"]).get("numRecords") or 0, file["size"]) for file in files]
        in_file, size = max(sizes, default=(0, 0))  # small files are large for their rows
        return ChangeSize(rows, rows * size // in_file) if in_file else None

    def _commit_lines(self, version: int) -> list[bytes]:
        """Return the lines of the log's file of version ``version``, a JSON object each; empty if
        the log no longer has the file.
        """
        text = self._folder.read(f"{version:020d}.json")
        return [] if text is None else text.splitlines()


def _actions(lines: list[bytes], kind: str) -> Iterator[dict[str, Any]]:
    """Yield the content of each action of this kind, such as ``add``, in the order of ``lines``.
    ``lines``: JSON objects with one action each.
    """
    start = b'{"%s"' % kind.encode()
    return (json.loads(line)[kind] for line in lines if line.startswith(start))


def _changed_rows(commit: dict[str, Any]) -> int | None:
    """Return the count of rows that a commit inserts, updates and deletes; 0 for an operation of
    ``HARMLESS``. An updated row counts once. Rows that are only copied to new files do not count.

    ``commit``: the commit's record of itself (``commitInfo``). None if it does not say the count,
    as for an overwrite without a count of deleted rows.
    """
    if commit["operation"] in HARMLESS:
        return 0
    metrics = commit.get("operationMetrics") or {}
    parameters = commit.get("operationParameters") or {}
    overwrites = (
        "REPLACE TABLE" in commit["operation"]
        or parameters.get("mode") == "Overwrite"
        or parameters.get("outputMode") == "Complete"
    )
    if overwrites and "numDeletedRows" not in metrics:
        return None
    counts = [int(metrics[name]) for name in _MERGED_ROWS if name in metrics]
    counts = counts or [int(metrics[name]) for name in _ROWS if name in metrics]
    return sum(counts) if counts else None
