"""The files of a checkpoint's state, by the micro-batches that they are of."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dovetail.platform.files import Files

_VERSION_FILE = re.compile(r"(\d+)(_[^.]*)?\.(changelog|zip|delta|snapshot)")
"""The name of a file of a partition's state; the first group is the number of micro-batches before
it."""
SNAPSHOT_SUFFIXES = (".zip", ".snapshot")
"""The endings of files with all of a partition's state. Other files have what a micro-batch has
changed."""


def operator_folders(files: Files, root: str) -> Iterator[str]:
    """Yield the path of the folder of each stage's state below ``root``, the folder of a
    checkpoint.
    """
    for operator_id in files.numbers(f"{root}/state"):
        yield f"{root}/state/{operator_id}"


def partition_folders(files: Files, root: str) -> Iterator[str]:
    """Yield the path of the folder of each partition of each stage's state below ``root``, the
    folder of a checkpoint.
    """
    for operator in operator_folders(files, root):
        for partition in files.numbers(operator):
            yield f"{operator}/{partition}"


def description_folders(files: Files, root: str) -> Iterator[str]:
    """Yield the folder with Spark's description of each stage's state below ``root``, the folder of
    a checkpoint. Files in it are named by the number of their micro-batch.
    """
    for operator in operator_folders(files, root):
        yield f"{operator}/_metadata/v2"


def files_by_version(files: Files, folder: str) -> dict[int, list[str]]:
    """Return the names of the files in ``folder``, the state of a partition, by version. A version
    is the number of micro-batches up to and including the one that wrote the file. Other files are
    left out. A missing folder gives an empty mapping.
    """
    names_by_version: dict[int, list[str]] = {}
    for name in files.names(folder):
        matched = _VERSION_FILE.fullmatch(name)
        if matched is not None:
            names_by_version.setdefault(int(matched[1]), []).append(name)
    return names_by_version
