"""A line at the terminal or in a notebook that shows long work: its time, and Spark's tasks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from dovetail.platform.sessions import is_remote

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

ASKED = "DOVETAIL_PROGRESS"
"""The environment variable that turns the line on (``1``) or off (``0``) everywhere."""
_EVERY_S = 0.5
"""The seconds between two drawings."""


@contextmanager
def progress_bar(
    session: SparkSession, title: str, console: Console | None = None
) -> Iterator[None]:
    """Show a line while the block runs: ``title``, the time, and the tasks of Spark's present
    stages. It is gone afterwards. If Spark draws bars of its own, print only ``title`` instead,
    which stays.

    Without a terminal or a notebook nothing is shown. The environment variable
    ``DOVETAIL_PROGRESS`` overrides that: with ``0`` nothing is ever shown, with any other value
    always. ``console``: where to draw, None for standard error.
    """
    from rich.console import Console

    console = console or Console(stderr=True)
    asked = os.environ.get(ASKED)
    if asked == "0" or (asked is None and not (console.is_terminal or console.is_jupyter)):
        yield
        return
    if _draws_itself(session):
        console.print(f"dovetail: {title}", markup=False, highlight=False)
        yield
        return
    with _bar(console) as bar:
        task, done = bar.add_task(title, total=None), Event()
        drawing = Thread(target=_draw, args=(session, bar, task, done), daemon=True)
        drawing.start()
        try:
            yield
        finally:
            done.set()
            drawing.join()


def tasks(session: SparkSession) -> tuple[int, int]:
    """Return the count of finished tasks of the stages that run now, then the count of all their
    tasks. Both are 0 without such stages, and on Spark Connect, which does not tell.
    """
    if is_remote(session):
        return 0, 0
    tracker = session.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    known = [stage for stage in stages if stage is not None]
    return sum(s.numCompletedTasks for s in known), sum(s.numTasks for s in known)


def _bar(console: Console) -> Progress:
    """Return a progress bar for ``console`` without a task, not started. It shows nothing yet, and
    its lines are removed at its end.
    """
    from rich import progress

    return progress.Progress(
        progress.TextColumn("dovetail: {task.description}", markup=False),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TextColumn("tasks"),
        progress.TimeElapsedColumn(),
        console=console,
        transient=True,
    )


def _draw(session: SparkSession, bar: Progress, task: TaskID, done: Event) -> None:
    """Put the session's present tasks on ``bar`` every half a second until ``done`` is set.
    ``task``: the line of ``bar`` that shows them; it has no total while no stage runs.
    """
    while not done.wait(_EVERY_S):
        completed, total = tasks(session)
        bar.update(task, completed=completed, total=total or None)


def _draws_itself(session: SparkSession) -> bool:
    """Return True if Spark draws progress bars at the terminal already; False on Spark Connect."""
    if is_remote(session):
        return False
    conf = session.sparkContext.getConf()
    return conf.get("spark.ui.showConsoleProgress", "false") == "true"
