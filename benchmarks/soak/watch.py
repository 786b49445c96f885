"""What processes and folders hold while queries run."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

KINDS = ("JVM", "driver", "workers")


@dataclass(frozen=True)
class Sample:
    """At one moment: of all processes together, and what lies in the folders.

    ``cpu_s``: used since the start, by those that have ended, too.
    """

    batch: int
    rss_mb: Mapping[str, int]
    processes: int
    open_files: int
    threads: int
    cpu_s: float
    checkpoint_files: int
    checkpoint_bytes: int
    temporary_files: int
    temporary_bytes: int
    lines_logged: int


def sample(batch: int, driver: psutil.Process, place: Path, log: Path) -> Sample:
    """What is held now, below the process of the driver."""
    rss_mb = dict.fromkeys(KINDS, 0)
    open_files = threads = processes = 0
    cpu_s = 0.0
    for process in (driver, *driver.children(recursive=True)):
        with suppress(psutil.Error), process.oneshot():
            memory = process.memory_info().rss >> 20
            name = "driver" if process.pid == driver.pid else "workers"
            rss_mb["JVM" if process.name() == "java" else name] += memory
            open_files += process.num_fds()
            threads += process.num_threads()
            times = process.cpu_times()
            cpu_s += times.user + times.system + times.children_user + times.children_system
            processes += 1
    checkpoint, temporary = _lies_in(place / "checkpoint"), _lies_in(place / "temporary")
    with log.open("rb") as lines:
        logged = sum(1 for _ in lines)
    return Sample(
        batch, rss_mb, processes, open_files, threads, cpu_s, *checkpoint, *temporary, logged
    )


def _lies_in(folder: Path) -> tuple[int, int]:
    """How many files there are below a folder, and their bytes."""
    sizes = [*_sizes(folder)]
    return len(sizes), sum(sizes)


def _sizes(folder: Path) -> Iterable[int]:
    for where, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # it has just been deleted
                yield (Path(where) / name).stat().st_size
