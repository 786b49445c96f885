"""Sets a checkpoint back to its state after an earlier micro-batch."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import datetime
from os import fspath
from uuid import uuid4

from dovetail.base.validation import Natural, Path, validated
from dovetail.errors import CheckpointError
from dovetail.plan.changelog_source import Session
from dovetail.platform.files import Files, files_of
from dovetail.spark.checkpoints.checkpoint import CLOSING, CheckpointFile

_OF_VERSION = re.compile(r"(\d+)(_[^.]*)?\.(changelog|zip|delta|snapshot)")
"""The name of a file of a partition's state; the first group is the number of micro-batches before
it."""


@validated
def rewind(spark: Session, checkpoint: Path, *, batch: Natural) -> datetime:
    """Set a stopped query back to its state after micro-batch ``batch``, one that Spark has kept.

    Returns the time at which that micro-batch was committed. A table that the query writes should
    be brought back to that time, too.

    Started again, the query reads its sources from there on, with the state it had then. The
    checkpoint has nothing of later micro-batches. Its next micro-batch has the number ``batch`` + 1
    and may have other rows than before. So to its sinks it is another query: its id is new.
    ``docs/state.md`` describes what to do with each kind of target.

    A call that is killed may be repeated, and does the rest. Until then the query is as it was,
    fails when it is started, or goes on from a micro-batch whose state is there.

    Raises ``CheckpointError`` where the folder is no checkpoint of a query, has no such
    micro-batch, or belongs to a query that runs in this session. Raises ``ConfigurationError`` on
    Spark Connect, which cannot delete the files.
    """
    root = fspath(checkpoint).rstrip("/")
    file = CheckpointFile(spark, root)
    bound = file.at_rest("rewind")
    files = files_of(spark)
    numbers = files.numbers(f"{root}/commits")
    if batch not in numbers:
        kept = f"{min(numbers)} to {max(numbers)}" if numbers else "none"
        raise CheckpointError(
            "rewind", f"{root} has no micro-batch {batch}", f"Spark has kept {kept}"
        )
    partitions = {folder: _versions(files, folder) for folder in _partitions(files, root)}
    for folder, versions in partitions.items():
        if batch + 1 not in versions:
            problem = f"{folder} has no state after micro-batch {batch}"
            raise CheckpointError("rewind", problem, "Name a later one")
    committed = files.modified(f"{root}/commits/{batch}")
    # Delete the last state first: without it the query cannot start until the rest is done.
    doomed = [
        (version, f"{folder}/{name}")
        for folder, versions in partitions.items()
        for version, names in versions.items()
        for name in names
        if version > batch + 1
    ]
    for _, path in sorted(doomed, reverse=True):
        files.remove(path)
    files.put(f"{root}/metadata", json.dumps({"id": str(uuid4())}))
    for folder in (*_descriptions(files, root), f"{root}/commits", f"{root}/offsets"):
        for number in sorted(files.numbers(folder), reverse=True):
            if number > batch:
                files.remove(f"{folder}/{number}")
    if CLOSING in bound:
        file.write({name: value for name, value in bound.items() if name != CLOSING})
    return committed


def _operators(files: Files, root: str) -> Iterator[str]:
    """Yield the folder of each stage's state."""
    for number in files.numbers(f"{root}/state"):
        yield f"{root}/state/{number}"


def _partitions(files: Files, root: str) -> Iterator[str]:
    """Yield the folder of each partition of each stage's state."""
    for operator in _operators(files, root):
        for number in files.numbers(operator):
            yield f"{operator}/{number}"


def _descriptions(files: Files, root: str) -> Iterator[str]:
    """Yield the folders with Spark's description of each stage's state, by micro-batch."""
    for operator in _operators(files, root):
        yield f"{operator}/_metadata/v2"


def _versions(files: Files, folder: str) -> dict[int, list[str]]:
    """Return the files of a partition's state, by the number of micro-batches before them."""
    found: dict[int, list[str]] = {}
    for name in files.names(folder):
        matched = _OF_VERSION.fullmatch(name)
        if matched is not None:
            found.setdefault(int(matched[1]), []).append(name)
    return found
