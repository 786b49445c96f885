"""A copy of a running query's checkpoint, as it was after one micro-batch.

A query never writes a file of its checkpoint twice. It only removes the files of old micro-batches.
So the files of the last micro-batch are copied one by one while the query goes on:

::

    state/0/1   10.zip  11.changelog  12.changelog │ 13.changelog   the query goes on
                └──── copied after micro-batch 11 ──┘

If the query has kept that micro-batch meanwhile, it has kept all these files, and the copy is
whole. Otherwise it is made again, of a later micro-batch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from uuid import uuid4

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from dovetail.errors import CheckpointError
from dovetail.platform.files import Files, files_of
from dovetail.spark.checkpoints.stage_layout import BINDING_FILE
from dovetail.spark.migration.state_versions import (
    SNAPSHOT_SUFFIXES,
    files_by_version,
    operator_folders,
    partition_folders,
)

TRIES = 5


def copy_checkpoint(operator: str, session: SparkSession, checkpoint: str, folder: str) -> None:
    """Copy the checkpoint of a running query, as it is after its last micro-batch, to ``folder``,
    whose former files are removed. The copy gets another query id.

    The query must have committed a micro-batch, else ``ValueError`` is raised. ``operator``: the
    call, for errors. Raises ``CheckpointError`` if five times (``TRIES``) the query has removed the
    micro-batch before all is copied.
    """
    files, root = files_of(session), checkpoint.rstrip("/")
    for _ in range(TRIES):
        files.clear(folder)
        batch = max(files.numbers(f"{root}/commits"))
        for path in _paths_to_copy(files, root, batch):
            _copy_file(files, f"{root}/{path}", f"{folder}/{path}")
        if files.exists(f"{root}/commits/{batch}"):
            # Another id, so the copy is not taken for the query that runs.
            files.put(f"{folder}/metadata", json.dumps({"id": str(uuid4())}))
            return
    raise CheckpointError(
        operator,
        f"the query of {root} removes its micro-batches before they are copied",
        "Start it with a larger spark.sql.streaming.minBatchesToRetain, or stop it first",
    )


def copy_sources(
    operator: str,
    session: SparkSession,
    checkpoint: str,
    new_checkpoint: str,
    pairs: Sequence[tuple[int, int]],
) -> None:
    """Copy what the running query of ``checkpoint`` has noted of its sources to ``new_checkpoint``,
    whose folder ``sources`` is cleared first.

    ``pairs``: (index of a source's folder in the old checkpoint, in the new one) of the sources to
    copy. ``operator``: the call, for errors. Raises ``CheckpointError`` if five times (``TRIES``)
    the query has removed files before all are copied.
    """
    files, root, target = files_of(session), checkpoint.rstrip("/"), new_checkpoint.rstrip("/")
    for _ in range(TRIES):
        files.clear(f"{target}/sources")
        copied = list[str]()
        for before, now in pairs:
            folder = f"sources/{before}"
            for path in _paths_below(files, root, folder):
                _copy_file(
                    files, f"{root}/{path}", f"{target}/sources/{now}{path.removeprefix(folder)}"
                )
                copied.append(path)
        if all(files.exists(f"{root}/{path}") for path in copied):
            return
    raise CheckpointError(
        operator,
        f"the query of {root} removes what it has noted of its sources before it is copied",
        "Stop it first",
    )


def _paths_to_copy(files: Files, root: str, batch: int) -> Iterator[str]:
    """Yield the paths, relative to the checkpoint ``root``, of all files that a query needs to go
    on after micro-batch ``batch``. State files go back to the last whole snapshot of each
    partition. Files below ``sources`` and ``SSTs`` may be of later micro-batches, too.
    """
    yield from (BINDING_FILE, f"offsets/{batch}", f"commits/{batch}")
    yield from _paths_below(files, root, "sources")
    for operator in operator_folders(files, root):
        for folder in ("_metadata", "_stateSchema"):
            yield from _paths_below(files, root, f"{operator.removeprefix(f'{root}/')}/{folder}")
    for partition in partition_folders(files, root):
        folder = partition.removeprefix(f"{root}/")
        named = files_by_version(files, partition)
        whole = (
            v for v, names in named.items() if any(n.endswith(SNAPSHOT_SUFFIXES) for n in names)
        )
        first = max((version for version in whole if version <= batch + 1), default=0)
        for version, names in named.items():
            if first <= version <= batch + 1:
                yield from (f"{folder}/{name}" for name in names)
        yield from _paths_below(files, root, f"{folder}/SSTs")


def _paths_below(files: Files, root: str, folder: str) -> Iterator[str]:
    """Yield the paths, relative to ``root``, of all files in ``folder`` at any depth. Files whose
    names begin with a dot are not yet complete and are left out. A missing folder yields none.
    """
    for name in files.names(f"{root}/{folder}"):
        if name.startswith("."):
            continue
        path = f"{folder}/{name}"
        if files.is_folder(f"{root}/{path}"):
            yield from _paths_below(files, root, path)
        else:
            yield path


def _copy_file(files: Files, path: str, new_path: str) -> None:
    """Copy the file ``path`` to ``new_path``; do nothing if ``path`` is gone. Raises Spark's error
    if it is there and cannot be copied.
    """
    try:
        files.copy(path, new_path)
    except (Py4JError, PySparkException):
        if files.exists(path):
            raise
