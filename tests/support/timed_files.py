"""Files that streaming queries read while a test writes them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def timed_file(path: Path, time_s: float) -> Iterator[Path]:
    """Yield a hidden path to write to; then give that file its time and its name.

    A file source lists its folder at any moment and reads the oldest file first. A file that it
    lists before ``os.utime`` seems new, and files a week older than that are ignored for ever.
    The folder is made if it does not exist. ``time_s`` counts seconds since 1970.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden = path.with_name(f".{path.name}")
    yield hidden
    os.utime(hidden, (time_s, time_s))
    hidden.rename(path)
