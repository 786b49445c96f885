"""Going back: a checkpoint as it was after an earlier micro-batch."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import datetime
from os import fspath
from uuid import uuid4

from dovetail.arguments import Natural, Path, validated
from dovetail.errors import CheckpointError
from dovetail.files import Files, files_of
from dovetail.plan.reading import Session
from dovetail.spark.checkpoint import CLOSING, CheckpointFile

_OF_VERSION = re.compile(r"(\d+)(_[^.]*)?\.(changelog|zip|delta|snapshot)")
"""A file of a partition's state, which says after how many micro-batches it is of."""


@validated
def rewind(spark: Session, checkpoint: Path, *, batch: Natural) -> datetime:
    """Set a query that stands still back to what it was after micro-batch ``batch``, of those that
    Spark has kept. Returns when that was committed: a table that it keeps should be as it was then.

    Started again, the query reads its sources from there on, with the state it had then; what came
    after is gone from the checkpoint. Its next micro-batch has the number ``batch`` + 1 and may
    have other rows than the one before had, so to its sinks it is another query: its id is new.
    What is to be done with each kind of target, ``docs/state.md`` says.

    A call that is killed leaves a query that is as it was, fails when it is started, or goes on
    from a micro-batch whose state is there; repeated, the call does the rest.

    Raises ``CheckpointError`` where the folder is no checkpoint of a query, has no such
    micro-batch, or belongs to a query that runs in this session; ``ConfigurationError`` on Spark
    Connect, which cannot delete the files.
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
    # The last state goes first: without it the query does not start before all is done.
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
    for number in files.numbers(f"{root}/state"):
        yield f"{root}/state/{number}"


def _partitions(files: Files, root: str) -> Iterator[str]:
    """The folders with the state of each partition of each stage."""
    for operator in _operators(files, root):
        for number in files.numbers(operator):
            yield f"{operator}/{number}"


def _descriptions(files: Files, root: str) -> Iterator[str]:
    """The folders in which Spark says how each stage's state is read, from which micro-batch on."""
    for operator in _operators(files, root):
        yield f"{operator}/_metadata/v2"


def _versions(files: Files, folder: str) -> dict[int, list[str]]:
    """The files of a partition's state, by after how many micro-batches they are of."""
    found: dict[int, list[str]] = {}
    for name in files.names(folder):
        matched = _OF_VERSION.fullmatch(name)
        if matched is not None:
            found.setdefault(int(matched[1]), []).append(name)
    return found
