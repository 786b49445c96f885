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
_JOIN_STORE = re.compile(r"(left|right)-key\w+")
"""The name of a store of Spark's join of streams, which a source may have. It has several stores in
a partition, each in a folder of its own."""


def operator_folders(files: Files, root: str) -> Iterator[str]:
    """Yield the path of the folder of each stage's state, ``root/state/0`` and so on, in no order.
    ``root``: the folder of a checkpoint. Yield nothing without state.
    """
    for operator_id in files.numbers(f"{root}/state"):
        yield f"{root}/state/{operator_id}"


def partition_folders(files: Files, root: str) -> Iterator[str]:
    """Yield the path of the folder of each partition of each stage's state, such as
    ``root/state/0/1``, in no order. A partition of a join of Spark's own has a folder for each of
    its stores instead, such as ``root/state/1/0/left-keyToNumValues``. ``root``: the folder of a
    checkpoint. Yield nothing without state.
    """
    for operator in operator_folders(files, root):
        for partition in files.numbers(operator):
            folder = f"{operator}/{partition}"
            stores = [name for name in files.names(folder) if _JOIN_STORE.fullmatch(name)]
            yield from (f"{folder}/{store}" for store in stores) if stores else (folder,)


def partition_index(folder: str) -> int:
    """Return the index of the partition in ``folder``, a path that ``partition_folders`` yields."""
    *_, index = (name for name in folder.split("/") if name.isdigit())
    return int(index)


def description_folders(files: Files, root: str) -> Iterator[str]:
    """Yield the path of the folder ``_metadata/v2`` of each stage's state, in no order. ``root``:
    the folder of a checkpoint. A folder ``_metadata/v2`` may be missing. Files in it are named by
    the id of their micro-batch.
    """
    for operator in operator_folders(files, root):
        yield f"{operator}/_metadata/v2"


def files_by_version(files: Files, folder: str) -> dict[int, list[str]]:
    """Return the names of the state files in ``folder``, the state of a partition, by version. The
    version of a file is the index of the micro-batch that wrote it plus 1, since micro-batches
    count from 0. Other files are left out. A missing folder gives an empty dict.
    """
    names_by_version: dict[int, list[str]] = {}
    for name in files.names(folder):
        matched = _VERSION_FILE.fullmatch(name)
        if matched is not None:
            names_by_version.setdefault(int(matched[1]), []).append(name)
    return names_by_version
