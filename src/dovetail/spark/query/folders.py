"""The folders that a query reads and writes. They must not lie in each other; they may be gone or
moved.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from fnmatch import fnmatchcase
from glob import glob
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from dovetail.errors import CheckpointError, DovetailWarning, PlanError, TargetError
from dovetail.plan.fingerprint import sources_of
from dovetail.plan.nodes import Node, Source
from dovetail.plan.spark_sources import spark_sources_of_inputs
from dovetail.platform.delta_tables import BAD_FILES
from dovetail.platform.files import files_of
from dovetail.platform.sessions import is_remote
from dovetail.platform.spark_errors import convert_folder_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dovetail.spark.query.writer import StartRequest

WRITTEN = "written"
"""Key of a binding: the targets of its sinks, each with the last micro-batch before it became
one."""

READ = "read"
"""Key of a binding: the folders whose files the query reads."""

_MAX_FILE_AGE = timedelta(days=7)
"""Spark's default for ``maxFileAge``."""
_PATTERN = re.compile(r"[*?\[{]")


def refuse_overlaps(run: StartRequest) -> None:
    """Raise ``PlanError`` if a folder that ``run`` writes overlaps (``is_overlap``) another one. A
    sink's folder is compared with those of sources and the checkpoint, the checkpoint with those of
    sources. Sinks' folders are not compared with each other.

    A query would read what it writes, or a table's clean-up would delete its checkpoint. Raises
    ``ConfigurationError`` for a sink's folder that cannot be reached.
    """
    files = files_of(run.session)
    checkpoint = files.qualified(run.checkpoint)
    sources = [
        (source.title, files.qualified(leaf.folder))
        for source, leaf in spark_sources_of_inputs(sources_of(run.nodes))
        if leaf.folder is not None
    ]
    for title, folder in sources:
        if is_overlap(folder, checkpoint):
            raise PlanError(
                run.operator,
                f"checkpoint={run.checkpoint!r} and the source of {title}, {folder}, are the same "
                "or lie in each other",
                "Choose a checkpoint beside what the query reads",
            )
    for sink, sink_path in _sinks_with_folders(run):
        with convert_folder_errors(sink.title, "path=", sink_path):
            folder = files.qualified(sink_path)
        others = [(f"the source of {title}", path) for title, path in sources]
        for what, path in (*others, ("the query's checkpoint", checkpoint)):
            if is_overlap(path, folder):
                raise PlanError(
                    sink.title,
                    f"its folder {folder} and {what}, {path}, are the same or lie in each other",
                    "Choose a folder beside what the query reads, and beside its checkpoint",
                )


def is_overlap(folder: str, other: str) -> bool:
    """Return True if one of two folders, which may be glob patterns, lies in the other, or both are
    the same. Both must be full paths with equal schemes, or both without one. Slashes at their ends
    do not count.

    Paths are compared name by name. A name matches an equal one, and a pattern any name that it
    describes, taking another pattern as a plain name. A pattern reads no files above its own depth.
    So if one path has fewer names, only its own patterns match.

    Readers of the outer folder skip hidden folders, ``_name`` or ``.name``, and all below them.

    >>> is_overlap("/data/orders", "/data/orders/out"), is_overlap("/data/orders", "/data/orders2")
    (True, False)
    >>> is_overlap("/data/2024-*/in", "/data/2024-05/in/x"), is_overlap("/data/*/in", "/data/out")
    (True, False)
    >>> is_overlap("/data", "/data/*/in"), is_overlap("/data/2024-05", "/data/2024-*/in")
    (True, False)
    >>> is_overlap("/out", "/out/_checkpoint")
    False
    """
    outer, inner = sorted((folder.rstrip("/").split("/"), other.rstrip("/").split("/")), key=len)
    beyond = inner[len(outer) :]
    alike = all(
        _is_match(first, second) or (not beyond and _is_match(second, first))
        for first, second in zip(outer, inner, strict=False)
    )
    return alike and not any(name.startswith(("_", ".")) for name in beyond)


def _is_match(pattern: str, name: str) -> bool:
    """Return True if the folder name ``name`` (no path) equals ``pattern`` or matches it by ``*``,
    ``?`` or ``[...]``. Braces ``{a,b}`` in the pattern count as ``*``. Upper and lower case differ.
    """
    simplified = re.sub(r"\{.*\}", "*", pattern)
    return pattern == name or bool(_PATTERN.search(simplified) and fnmatchcase(name, simplified))


def _sinks_with_folders(run: StartRequest) -> Iterator[tuple[Any, str]]:
    """Yield (sink, path) for each sink of a request that has a folder: a text in its attribute
    ``path``.
    """
    for _, sink in _results_with_sinks(run):
        folder = getattr(sink, "path", None)
        if isinstance(folder, str):
            yield sink, folder


def _results_with_sinks(run: StartRequest) -> Iterator[tuple[Node, Any]]:
    """Yield (result, sink) for all sinks of a request, in order. A result without sinks yields
    nothing.
    """
    for outcome in run.outcomes:
        for sink in outcome.sinks:
            yield outcome.node, sink


def written_targets(
    run: StartRequest, bound: Mapping[str, Any] | None, *, alone: bool
) -> dict[str, int]:
    """Return the targets for the entry ``WRITTEN`` of ``dovetail.json``, by their identity
    (``_identity_of_target``). Each has the id of the last micro-batch before it became a target, -1
    for none. Targets of former sinks are dropped.

    ``bound``: the file's content before, None for a new checkpoint. ``alone``: True if the query
    has one result and one sink, so that Spark itself writes it; sinks are asked with it
    (``is_gone``). Sinks without the method ``is_gone`` are left out. Raises ``TargetError`` for a
    target that was written and is gone.
    """
    earlier: Mapping[str, int] = (bound or {}).get(WRITTEN, {})
    last = _last_batch(run) if bound is not None else -1
    targets = {}
    for node, sink in _results_with_sinks(run):
        if not hasattr(sink, "is_gone"):
            continue
        target = _identity_of_target(run, sink)
        targets[target] = earlier.get(target, last)
        if last > targets[target] and sink.is_gone(run.session, node, alone=alone):
            raise TargetError(
                sink.title,
                f"{target}, which this checkpoint has written, is gone, and with it all changes "
                "up to now",
                "Bring it back, or start with a new checkpoint; another target gets what comes "
                "from now on",
            )
    return targets


def _identity_of_target(run: StartRequest, sink: Any) -> str:
    """Return the identity of a sink's target: the full path of its folder, if it has one, else its
    title.
    """
    folder = getattr(sink, "path", None)
    return files_of(run.session).qualified(folder) if isinstance(folder, str) else str(sink.title)


def _last_batch(run: StartRequest) -> int:
    """Return the id of the last complete micro-batch, -1 before the first. On Spark Connect, 0
    stands for any id.
    """
    if is_remote(run.session):
        return 0 if run.file.has_committed() else -1
    numbers: Sequence[int] = files_of(run.session).numbers(f"{run.checkpoint.rstrip('/')}/commits")
    return max(numbers, default=-1)


def folders_read(run: StartRequest, bound: Mapping[str, Any] | None) -> list[str]:
    """Return the full paths of the folders whose files the query reads, in the order of first use.
    There are none if it reads no files.

    ``bound``: the content of ``dovetail.json`` with the folders read before, None for a new
    checkpoint. Raises ``CheckpointError`` if the query no longer reads one of these and reads a new
    one: Spark cannot go on there.
    """
    folders = _folders_of_inputs(run, sources_of(run.nodes))
    earlier = None if bound is None else bound.get(READ)
    gone = [] if earlier is None else [folder for folder in earlier if folder not in folders]
    for folder in folders if gone else ():
        if folder not in (earlier or ()):
            raise CheckpointError(
                run.title,
                f"{folders[folder]} was read from {gone[0]}, and is read from {folder} now: Spark "
                "knows files by their paths, and cannot go on in another folder",
                f"Move them back, let {gone[0]} be a link to them, or start with a new checkpoint "
                "and a new target",
            )
    return [*folders]


def _folders_of_inputs(run: StartRequest, inputs: Sequence[Source]) -> dict[str, str]:
    """Return the title of an input by the full path of each folder whose files it reads, in the
    order of first use. If several of ``inputs`` read a folder, it is the last one's title.
    """
    files = files_of(run.session)
    return {
        files.qualified(leaf.folder): source.title
        for source, leaf in spark_sources_of_inputs(inputs)
        if leaf.folder is not None and leaf.of_files
    }


def folders_continued(
    run: StartRequest, continued: Sequence[Source], earlier: Sequence[str] | None
) -> list[str]:
    """Return the full paths of the folders whose files the inputs ``continued`` of ``run`` read.
    They are the entry ``READ`` of a checkpoint that goes on where another query stopped.

    ``earlier``: the full paths of all folders whose files that query has read; None if unknown.
    Raises ``CheckpointError`` for the first folder outside of them: Spark cannot go on there.
    """
    folders = _folders_of_inputs(run, continued)
    for folder, title in folders.items():
        if earlier is not None and not any(is_overlap(folder, former) for former in earlier):
            raise CheckpointError(
                run.title,
                f"{title} is read from {folder}, and the former query has read it elsewhere:"
                " Spark knows files by their paths, and cannot go on in another folder",
                "Move them back, let the former folder be a link to them, or start with a new "
                "checkpoint and a new target",
            )
    return [*folders]


def warn_of_files(run: StartRequest) -> None:
    """Give a ``DovetailWarning`` for files that Spark may leave out: one if the session skips
    missing or corrupt files, which the query does not, and those of ``_warn_of_old_files``.
    """
    skipping = [name for name in BAD_FILES if run.session.conf.get(name, "false") != "false"]
    if skipping:
        warnings.warn(
            f"{run.title}: the session has {' and '.join(skipping)}, and the query reads without, "
            "because it would lose changes. To skip files, give the option to that reader",
            DovetailWarning,
            stacklevel=5,
        )
    _warn_of_old_files(run)


def _warn_of_old_files(run: StartRequest) -> None:
    """Give a ``DovetailWarning`` for each source whose oldest and newest file lie more than 7 days
    apart, unless its reader sets ``maxFileAge``.

    Spark never reads a late file that is more than ``maxFileAge`` (7 days) older than the newest
    one. It ignores that for sources that read the latest files first in limited numbers, so these
    pass. There is no warning on Spark Connect.
    """
    if is_remote(run.session):
        return
    for source, leaf in spark_sources_of_inputs(sources_of(run.nodes)):
        if leaf.folder is None or not leaf.of_files or "maxfileage" in leaf.options:
            continue
        if leaf.options.get("latestfirst") == "true" and "maxfilespertrigger" in leaf.options:
            continue  # Spark ignores maxFileAge for such a source
        if _span_of_files(run.session, leaf.folder) > _MAX_FILE_AGE:
            warnings.warn(
                f"{source.title}: the files in {leaf.folder} are of more than 7 days. Spark never "
                "reads one that comes later and is 7 days older than the newest (maxFileAge). Give "
                "its reader .option('maxFileAge', '3650d')",
                DovetailWarning,
                stacklevel=6,
            )


def _span_of_files(session: SparkSession, folder: str) -> timedelta:
    """Return the time between the oldest and the newest file of a folder or pattern, at any depth.
    It is 0 if there are no files, or if they cannot be read. A Spark job lists a folder that is not
    local.
    """
    full = files_of(session).qualified(folder)
    if full.startswith("file:"):
        times = [*_modification_times_s(folder.removeprefix("file:"))]
        return timedelta(seconds=max(times) - min(times)) if times else timedelta(0)
    reader = session.read.format("binaryFile").option("recursiveFileLookup", "true")
    with suppress(PySparkException):
        time = F.unix_micros("modificationTime")
        row = reader.load(folder).agg(F.max(time) - F.min(time)).head()
        return timedelta(microseconds=0 if row is None or row[0] is None else row[0])
    return timedelta(0)


def _modification_times_s(folder: str) -> Iterator[float]:
    """Yield the modification times of a local folder's files at any depth, in epoch seconds. The
    folder may be a pattern; hidden files are left out. A folder that cannot be read yields none.
    """
    for path in chain.from_iterable(map(glob, _alternatives(folder))):
        if Path(path).is_file():
            yield Path(path).stat().st_mtime
        for root, folders, names in os.walk(path):
            folders[:] = [name for name in folders if not name.startswith(("_", "."))]
            shown = (name for name in names if not name.startswith(("_", ".")))
            with suppress(OSError):
                yield from (Path(root, name).stat().st_mtime for name in shown)


def _alternatives(pattern: str) -> Iterator[str]:
    """Yield the patterns without braces that a pattern of Hadoop's stands for, itself without any.
    Braces may lie in each other.

    >>> [*_alternatives("/data/{a,b{1,2}}")]
    ['/data/a', '/data/b1', '/data/a', '/data/b2']
    """
    innermost = re.search(r"\{([^{}]*)\}", pattern)
    if innermost is None:
        yield pattern
        return
    for choice in innermost[1].split(","):
        yield from _alternatives(
            f"{pattern[: innermost.start()]}{choice}{pattern[innermost.end() :]}"
        )
