"""A check of a checkpoint on a local disk: what a start of its query would meet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from os.path import normpath
from pathlib import Path
from typing import Any

from dovetail.errors import ConfigurationError, DovetailError, line_of
from dovetail.spark.checkpoints.changelog_files import UnreadableFile
from dovetail.spark.checkpoints.checkpoint import (
    BEGINNING,
    CHECKPOINT_PATH,
    FOLLOWS,
    REPARTITIONING,
    SUCCESSOR,
)
from dovetail.spark.checkpoints.local_state import LocalFiles, local_files
from dovetail.spark.checkpoints.stage_layout import BINDING_FILE, binding_of_text
from dovetail.spark.checkpoints.stores import CheckpointStores
from dovetail.spark.doctor import Finding, Report

_CALLER = "doctor"
_SEGMENTS_MAX = 200
"""The segments of one store and bucket that are many: merges should leave fewer."""


def checkpoint_report(checkpoint: str) -> Report:
    """Return a report with a finding for each point that is checked in a checkpoint, with or
    without a problem (``_findings``). The checkpoint is only read. ``checkpoint``: a path or a
    ``file:`` URI.

    Raises ``ConfigurationError`` for a checkpoint that is not on a local disk, for a folder without
    ``dovetail.json``, and if rocksdict is not installed.
    """
    files = local_files(checkpoint)
    if files is None:
        raise ConfigurationError(
            _CALLER,
            f"{checkpoint} is not read: it is not on a local disk, or rocksdict is not installed",
            "Copy it to a local disk, or pip install 'dovetail[state]'",
        )
    return Report(tuple(_findings(files)))


def _findings(files: LocalFiles) -> Iterator[Finding]:
    """Yield a finding for each point that is checked in a checkpoint, with or without a problem. If
    ``dovetail.json`` cannot be read, later points take it for empty. If the state cannot be read,
    or no micro-batch is committed, nothing more is checked.

    The points are ``dovetail.json``, the checkpoint's path, a killed ``repartition``, the first
    micro-batch, takeovers and the state. Then come the last micro-batch and the count of segments.
    """
    bound = _read_binding(files)
    yield Finding(
        BINDING_FILE,
        None if bound else "cannot be read",
        "no query starts from it",
        "restore it from a copy",
    )
    # Hadoop's form of a path: nothing is escaped, and "." and ".." are gone.
    here = f"file:{normpath(Path(files.checkpoint).absolute())}"
    at = bound.get(CHECKPOINT_PATH)
    moved = None if at in (None, here) else f"it was made at {at}"
    yield Finding(
        "place",
        moved,
        "nothing, if the query starts here",
        "start the query here: that mends the path",
    )
    partitions = bound.get(REPARTITIONING)
    yield Finding(
        "partitions",
        None if partitions is None else "a call of repartition was killed",
        "no query starts from it",
        f"dovetail repartition {files.checkpoint} --partitions {partitions}",
    )
    beginning = "its first micro-batch is not finished" if bound.get(BEGINNING) else None
    yield Finding("beginning", beginning, "there is no result yet", "start the query again")
    yield _takeover_finding(bound)
    try:
        stored = CheckpointStores.read(_CALLER, files, None)
    except (UnreadableFile, DovetailError) as error:
        unread = error.problem if isinstance(error, DovetailError) else line_of(error)
        yield Finding(
            "state", unread, "its query may not start", "go back: dovetail rewind --batch"
        )
        return
    yield Finding("state", None)
    if stored.batch is None:
        return
    begun = files.has(f"offsets/{stored.batch + 1}")
    yield Finding(
        "micro-batches",
        f"{stored.batch + 1} is begun and not committed" if begun else None,
        "nothing: it runs, or the next start repeats it",
        "if no query runs, start it",
    )
    yield Finding(
        "segments",
        _most_segments(stored),
        "each micro-batch opens more files",
        "tell the developers: merges have not kept up",
    )


def _takeover_finding(bound: Mapping[str, Any]) -> Finding:
    """Return the finding on takeovers. A query may be built beside another one, which it follows
    until it takes over from it. ``bound``: the content of ``dovetail.json``.

    There is a problem if this query still follows another one, or if another query has taken over
    from it. The latter is none if that other query's checkpoint is gone (``_is_gone``).
    """
    if FOLLOWS in bound:
        return Finding(
            "takeover",
            f"it follows the query of {bound[FOLLOWS]['from']}, and has not taken over",
            "nothing: that query is the true one",
            "let that query complete its micro-batch, stop it, and start this one",
        )
    successor = bound.get(SUCCESSOR)
    if successor is None or _is_gone(successor):
        return Finding("takeover", None)
    return Finding(
        "takeover",
        f"the query of {successor} has taken over from it",
        "no query starts from it",
        "start that query; to go back to this one, remove that folder",
    )


def _is_gone(checkpoint: str) -> bool:
    """Return True if ``checkpoint``, a URI, is on a local disk and its ``dovetail.json`` is gone.
    Other file systems are not asked: the answer is False.
    """
    path = checkpoint.removeprefix("file:")
    return path != checkpoint and not (Path(path) / BINDING_FILE).exists()


def _read_binding(files: LocalFiles) -> dict[str, Any]:
    """Return the content of ``dovetail.json`` in a checkpoint, an empty mapping if it is missing,
    no UTF-8 or no mapping in JSON.
    """
    try:
        return binding_of_text(files.text(_CALLER, BINDING_FILE) or "")
    except ValueError:
        return {}


def _most_segments(stored: CheckpointStores) -> str | None:
    """Return a text on the store with the most segments in one bucket: their count, the store and
    its stage. Of equal counts, the first by stage is taken. Return None if these are at most
    ``_SEGMENTS_MAX`` (200), and without stores.
    """
    counts = {
        (store.stage.number, store.name): sum(1 for _ in store.runs(label).segments)
        for store in stored.stores
        for label in store.buckets
    }
    (number, name), most = max(counts.items(), key=lambda pair: pair[1], default=((0, ""), 0))
    return f"{most} of {name} in stage {number}" if most > _SEGMENTS_MAX else None
