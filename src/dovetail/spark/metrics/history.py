"""A query's figures in a local file, for plots after the fact."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from datetime import datetime
from os import fspath
from pathlib import Path as FilePath
from threading import Event, Thread
from typing import Any

from dovetail.base.validation import Path, Positive, validated
from dovetail.errors import ConfigurationError
from dovetail.spark.metrics.progress import (
    AQuery,
    InputProgress,
    Progress,
    ProgressFollower,
    StageProgress,
    Unused,
)
from dovetail.spark.query.topology_query import TopologyQuery

_LOG = logging.getLogger("dovetail.metrics")
_EVERY_S = 2.0
_VERSION = 1
"""The version of the file, as SQLite's ``user_version``."""
_TABLE = "CREATE TABLE IF NOT EXISTS progress (id INTEGER PRIMARY KEY, figures TEXT NOT NULL)"


class Recorder:
    """A thread that records a query's figures, from ``dt.metrics.record``.

    Attributes
    ----------
    path : str
        The file.

    See Also
    --------
    metrics.record : Start a recorder.

    Examples
    --------
    >>> from dovetail.metrics import Recorder
    >>> callable(Recorder.stop)
    True
    """

    path: str

    def __init__(self, query: TopologyQuery, path: str, keep: int) -> None:
        """Make the file if it is missing, and start the thread. The first micro-batches recorded
        are those that Spark still has. ``keep``: the largest count of micro-batches in the file.
        Raises ``ConfigurationError`` if the file cannot be written.
        """
        self.path, self._keep = path, keep
        self._query, self._follower, self._stopping = query, ProgressFollower(query), Event()
        self._write([])
        self._recording = Thread(target=self._record, name="dovetail-record", daemon=True)
        self._recording.start()

    def stop(self) -> None:
        """Record what is left, and stop. The query goes on. A second call does nothing.

        See Also
        --------
        metrics.recorded : Read the file.

        Examples
        --------
        >>> from dovetail.metrics import Recorder
        >>> Recorder.stop.__name__
        'stop'
        """
        self._stopping.set()
        self._recording.join()

    def _record(self) -> None:
        """Record micro-batches every ``_EVERY_S`` (2) seconds until the recorder is stopped or the
        query ends, and then those that are left.

        A file that cannot be written is logged, and tried again with the next micro-batches. At
        most the last ``_keep`` of them wait for it. If it fails at the end, they are lost.
        """
        last, batches, failing = False, list[Progress](), False
        while not last:
            last = self._stopping.wait(_EVERY_S) or not self._query.isActive
            batches = [*batches, *self._follower.new_batches()][-self._keep :]
            if not batches:
                continue
            try:
                self._write(batches)
            except ConfigurationError as error:
                if last:
                    _LOG.error("%s %d micro-batches are not recorded.", error, len(batches))
                elif not failing:
                    _LOG.warning("%s The recorder tries it again.", error)
                failing = True
            else:
                batches, failing = [], False

    def _write(self, batches: Sequence[Progress]) -> None:
        """Add micro-batches to the file, which is made if it is missing. Delete the oldest until at
        most ``_keep`` are left.

        Raises ``ConfigurationError`` if the file cannot be written; then nothing is added.
        """
        with _open_database("record", self.path) as file:
            file.execute(_TABLE)
            file.execute(f"PRAGMA user_version = {_VERSION}")
            rows = [(json.dumps(progress_as_json(batch)),) for batch in batches]
            file.executemany("INSERT INTO progress (figures) VALUES (?)", rows)
            file.execute(
                "DELETE FROM progress WHERE id <= (SELECT max(id) FROM progress) - ?",
                (self._keep,),
            )


@validated
def record(query: AQuery, path: Path, *, keep: Positive = 10_000) -> Recorder:
    """Record a query's figures in a local file, an SQLite database.

    The micro-batches that Spark still has from before the call are recorded, too. The recorder ends
    with the query. Other queries may use the same file, later or at the same time. A micro-batch
    that two recorders of one query see is there twice.

    Parameters
    ----------
    query : StreamingQuery
        A query that ``write_stream`` or ``dt.run`` has started.
    path : str or PathLike
        The file, on a local disk. It is made if it is missing.
    keep : int, default 10_000
        The number of micro-batches that the file keeps, of all its queries together. Older
        ones are removed.

    Returns
    -------
    Recorder
        The recorder. Call ``stop()`` to end it earlier.

    Raises
    ------
    PlanError
        If an argument does not fit.
    ConfigurationError
        If the file cannot be opened, or is no such file.

    See Also
    --------
    metrics.recorded : Read the file.

    Examples
    --------
    >>> import dovetail as dt
    >>> dt.metrics.record("orders", "figures.sqlite")
    Traceback (most recent call last):
        ...
    dovetail.errors.PlanError: record: query= is 'orders'. Give what write_stream ...
    """
    return Recorder(query, fspath(path), keep)


@validated
def recorded(path: Path) -> list[Progress]:
    """Return the figures in a file that ``dt.metrics.record`` has written, the oldest first.

    Figures of several queries come in the order in which they were recorded.

    Parameters
    ----------
    path : str or PathLike
        The file.

    Returns
    -------
    list of Progress
        One item per micro-batch.

    Raises
    ------
    ConfigurationError
        If there is no file, or it is another one.

    See Also
    --------
    metrics.record : Write the file.

    Examples
    --------
    >>> import dovetail as dt
    >>> dt.metrics.recorded("/nowhere")
    Traceback (most recent call last):
        ...
    dovetail.errors.ConfigurationError: recorded: /nowhere is not there...
    """
    batches = recorded_after("recorded", fspath(path), 0, None)
    return [progress_of_json(json.loads(text)) for _, text in batches]


def recorded_after(caller: str, path: str, number: int, limit: int | None) -> list[tuple[int, str]]:
    """Return the micro-batches that the file ``path`` has after the row with the id ``number``,
    exclusive. They come the oldest first, as pairs of the row's id, from 1, and figures as JSON
    text (``progress_as_json``). The list is empty if there are none.

    ``caller``: the user's call, to begin errors. ``limit``: of more micro-batches return only the
    last ones, so those right after ``number`` are skipped; None for all. Raises
    ``ConfigurationError`` for a missing or another file.
    """
    if not FilePath(path).is_file():
        raise ConfigurationError(caller, f"{path} is not there", "Give a file of record()")
    with _open_database(caller, path) as file:
        last = "SELECT id, figures FROM progress WHERE id > ? ORDER BY id DESC LIMIT ?"
        rows = file.execute(last, (number, -1 if limit is None else limit)).fetchall()
    return rows[::-1]


@contextmanager
def _open_database(caller: str, path: str) -> Iterator[sqlite3.Connection]:
    """Return a context with a connection to the SQLite file ``path``. A missing file is created; a
    caller that only reads must check before. The end of the block commits and closes. An error in
    the block rolls back.

    ``caller``: the user's call, to begin errors. Raises ``ConfigurationError`` for a database that
    no recorder of this version made, and for any failure of SQLite in the block.
    """
    try:
        with closing(sqlite3.connect(path, timeout=30)) as file, file:
            (version,) = file.execute("PRAGMA user_version").fetchone()
            (tables,) = file.execute("SELECT count(*) FROM sqlite_schema").fetchone()
            if version != _VERSION and (version or tables):
                raise sqlite3.DatabaseError(f"it is another database (version {version})")
            yield file
    except sqlite3.Error as error:
        problem = f"{path} cannot be used: {error}"
        remedy = "Give a file of record()" + (", or a new one" if caller == "record" else "")
        raise ConfigurationError(caller, problem, remedy) from error


def progress_as_json(progress: Progress) -> dict[str, Any]:
    """Return a micro-batch's figures as JSON data, by the fields of ``Progress``; inputs, stages
    and unused rows become dicts by their fields. Times are texts in ISO 8601.
    """
    figures = asdict(progress)
    figures["started"] = progress.started.isoformat()
    for stage in figures["stages"]:
        times = stage["stream_time"].items()
        stage["stream_time"] = {name: time.isoformat() for name, time in times}
    return figures


def progress_of_json(figures: Mapping[str, Any]) -> Progress:
    """Return the ``Progress`` from which ``progress_as_json`` made ``figures``."""
    stages = []
    for stage in figures["stages"]:
        times = stage["stream_time"].items()
        stream_time = {name: datetime.fromisoformat(text) for name, text in times}
        stages.append(StageProgress(**{**stage, "stream_time": stream_time}))
    unused = {name: Unused(**counted) for name, counted in figures["unused"].items()}
    return Progress(
        **{
            **figures,
            "started": datetime.fromisoformat(figures["started"]),
            "inputs": tuple(InputProgress(**input_) for input_ in figures["inputs"]),
            "stages": tuple(stages),
            "unused": unused,
        }
    )
