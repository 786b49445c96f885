"""Local files that hold copies: written whole or not at all, and readable by their user alone.

A copy may be missing at any time. So a problem with a file or its directory is never an error: a
file that cannot be written just does not exist.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

_OWNER_ONLY = 0o700


def write_file(path: Path, fill: Callable[[IO[bytes]], None]) -> bool:
    """Write a file at ``path`` by ``fill``, which gets the open file. Return True if the file is
    written, False on any ``OSError``. Other errors of ``fill`` pass. The file's directory is
    created if missing, and made private to the user (``make_private_directory``). False is also
    returned if another user owns it.

    The file appears under its name only once it is complete. After an error, nothing is left of the
    new file, and a former one stays.
    """
    partial = None
    try:
        make_private_directory(path.parent)
        handle, name = tempfile.mkstemp(dir=path.parent)
        partial = Path(name)
        with os.fdopen(handle, "wb") as file:
            fill(file)
        partial.replace(path)
    except BaseException as error:
        if partial is not None:
            remove_file(partial)
        if not isinstance(error, OSError):
            raise
        return False
    return True


def remove_file(path: Path) -> None:
    """Remove the file at ``path``, if it exists. A directory, or a file that cannot be removed,
    stays without an error.
    """
    with suppress(OSError):
        path.unlink()


def remove_older(directory: Path, than_s: float) -> None:
    """Remove the files in ``directory`` whose time of modification is before ``than_s``, exclusive,
    in epoch seconds. Files that cannot be removed stay, and so do folders; a missing directory has
    none.
    """
    try:
        paths = list(directory.iterdir())
    except OSError:
        return
    for path in paths:
        with suppress(OSError):
            if path.stat().st_mtime < than_s:
                path.unlink()


def make_private_directory(directory: Path) -> None:
    """Create ``directory`` and its missing parents, and let only the user access the directory
    (mode 700). An existing directory gets this mode if others have any access.

    Raises ``PermissionError`` if another user owns it, and ``OSError`` if it cannot be created.
    """
    directory.mkdir(mode=_OWNER_ONLY, parents=True, exist_ok=True)
    status = directory.stat()
    if hasattr(os, "geteuid") and status.st_uid != os.geteuid():
        raise PermissionError(f"{directory} belongs to another user")
    if status.st_mode & 0o077:
        directory.chmod(_OWNER_ONLY)
