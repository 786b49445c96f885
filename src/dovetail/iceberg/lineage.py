"""The snapshots of an Iceberg table from one to another, along the line of their parents."""

from __future__ import annotations

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot

from dovetail.errors import ConfigurationError, TargetError

_FORMAT_MIN = 2
"""The first version of the format in which commits are numbered."""
_NEW_CHECKPOINT = "Read the table into a new checkpoint, which begins with its content"


def refuse_unnumbered(operator: str, metadata: TableMetadata) -> None:
    """Raise ``ConfigurationError`` for a table of format version 1, whose commits have no sequence
    numbers. ``operator``: the subject of the error.
    """
    if metadata.format_version < _FORMAT_MIN:
        raise ConfigurationError(
            operator,
            "it has Iceberg's format version 1, which does not number commits",
            "Upgrade it: set its property 'format-version' to 2, which rewrites no data",
        )


def snapshots_after(
    operator: str,
    metadata: TableMetadata,
    start: int | None,
    end: int,
    remedy: str | None = None,
) -> list[Snapshot]:
    """Return the snapshots after ``start``, exclusive, up to ``end``, inclusive, the oldest first;
    empty if both are the same.

    ``operator``: the subject of errors. ``metadata``: the table's, with its snapshots. ``start``,
    ``end``: ids of snapshots; ``start`` None for all from the table's first one. ``remedy``: the
    advice of errors, None for that to read the table into a new checkpoint.

    Raises ``TargetError`` if the metadata lacks ``start``, even if ``end`` is the same. So it does
    without ``end`` or a snapshot between them, or, without ``start``, any one before ``end``. Also
    if ``start`` does not precede ``end``.
    """
    if start is not None and metadata.snapshot_by_id(start) is None:
        raise _expired_error(operator, start, remedy)
    line: list[Snapshot] = []
    id_: int | None = end
    while id_ is not None and id_ != start:
        snapshot = metadata.snapshot_by_id(id_)
        if snapshot is None:
            raise _expired_error(operator, id_, remedy)
        line.append(snapshot)
        id_ = snapshot.parent_snapshot_id
    if id_ != start:
        raise TargetError(
            operator,
            f"the table was rolled back or replaced: snapshot {start}, which has been read, does "
            f"not precede its present one, {end}",
            remedy or _NEW_CHECKPOINT,
        )
    return line[::-1]


def changes_rows(snapshot: Snapshot) -> bool:
    """Return True if a snapshot may change rows. False only if its operation is ``replace``, as of
    compaction: it has the rows of its parent. A snapshot without a summary counts as changing rows.
    """
    return snapshot.summary is None or snapshot.summary.operation != Operation.REPLACE


def lost_snapshots_error(operator: str, done: str, remedy: str | None = None) -> TargetError:
    """Return, not raise, the error for a table without snapshots that had one. ``operator``: its
    subject. ``done``: what was done with a snapshot, such as ``snapshot 7 has been read``.
    ``remedy``: the advice, None for that to read the table into a new checkpoint.
    """
    return TargetError(
        operator,
        f"the table was rolled back or replaced: it has no snapshot, and {done}",
        remedy or _NEW_CHECKPOINT,
    )


def _expired_error(operator: str, id_: int, remedy: str | None) -> TargetError:
    """Return, not raise, the error for an expired snapshot. ``operator``: its subject. ``id_``: the
    snapshot's id. ``remedy``: the advice. None stands for that to read the table into a new
    checkpoint, and to let snapshots live longer.
    """
    return TargetError(
        operator,
        f"snapshot {id_} has expired, so its changes cannot be read",
        remedy
        or f"{_NEW_CHECKPOINT}, and let snapshots live longer than a query stands still "
        "(history.expire.max-snapshot-age-ms)",
    )
