"""The lines that queries write to the logger ``dovetail.query``.

| level | line |
|---|---|
| INFO | a start: the inputs, the sinks, the checkpoint, and what the query begins with |
| INFO | nothing to do, once: a query waits for its inputs, or ends without a micro-batch |
| WARNING | the first rows that a counter of losses counts, once for each counter of a query |
| INFO | the micro-batches since the last such line, at most one line in ``EVERY`` seconds |
| DEBUG | each micro-batch: its number, the rows that it read, the time that it took |

Progress reaches a classic session only.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from pyspark.sql import SparkSession

from dovetail.base.text_cells import printable
from dovetail.plan.fingerprint import sources_of
from dovetail.platform import jvm
from dovetail.platform.sessions import is_remote
from dovetail.spark.checkpoints.checkpoint import BEGINNING, FOLLOWS
from dovetail.spark.execution.observations import unused_rows
from dovetail.spark.migration.carried_over import CarriedOver
from dovetail.spark.query.writer import StartRequest

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

LOG: Final = logging.getLogger("dovetail.query")
_LOSSES: Final = frozenset(
    {
        *("dropped", "failed", "late", "malformed", "too_late", "too_old"),
        *("no_window", "null_element", "null_group", "unmet", "unsent"),
    }
)
"""The kinds of metrics that count rows without use. Repeated and replaced rows are no losses."""
EVERY: Final = "DOVETAIL_LOG_EVERY"
"""The environment variable with the seconds between two lines that sum up micro-batches; 0 for
none."""
_EVERY_S: Final = 60.0


@dataclass
class _LoggedQuery:
    """A running query, and the facts that were logged of it."""

    title: str
    warned: set[str] = field(default_factory=set)
    """The counters that have been reported."""
    has_read: bool = False
    """True once there was a micro-batch."""
    has_paused: bool = False
    """True once a pause has been reported."""
    batches: int = 0
    """The count of micro-batches since the last line that sums them up."""
    rows: int = 0
    """The rows that they read."""
    longest_s: float = 0.0
    """The duration of the longest of them."""
    summed_up_s: float = field(default_factory=monotonic)
    """The time of the last such line, or of the start."""

    def sum_up(self, rows: int, duration_s: float) -> None:
        """Count a micro-batch that has read ``rows`` rows and took ``duration_s`` seconds. If the
        interval of such lines (``_every_s``) is over, log the sums since the last line at INFO and
        reset them.
        """
        self.has_read = True
        self.batches, self.rows = self.batches + 1, self.rows + rows
        self.longest_s = max(self.longest_s, duration_s)
        every_s, since_s = _every_s(), monotonic() - self.summed_up_s
        if every_s and since_s >= every_s:
            plural = "" if self.batches == 1 else "es"
            LOG.info(
                "%s: %d micro-batch%s read %d rows in %.0f s; the longest took %.2f s",
                *(self.title, self.batches, plural, self.rows, since_s, self.longest_s),
            )
            self.batches, self.rows, self.longest_s = 0, 0, 0.0
            self.summed_up_s = monotonic()


def _every_s() -> float:
    """Return the seconds between two lines that sum up micro-batches, from the environment variable
    ``DOVETAIL_LOG_EVERY``. 0 stands for no lines, less than 0 for one after each micro-batch. The
    default, 60, stands for no value and for a text that is no number.
    """
    try:
        return float(os.environ[EVERY])
    except (KeyError, ValueError):
        return _EVERY_S


_RUNNING: dict[str, _LoggedQuery] = {}
"""The running queries, by Spark's id of the query as text."""
_LISTENING: WeakSet[SparkSession] = WeakSet()
"""The sessions whose progress is listened to."""


def describe_beginning(bound: Mapping[str, Any] | None) -> str:
    """Return in words the state and rows with which a query begins, such as ``it begins anew``.
    ``bound``: the content of its checkpoint's ``dovetail.json`` before its first micro-batch is
    run, None for a new one.
    """
    if bound is None:
        return "it begins anew"
    if BEGINNING not in bound:
        follows = f"it takes over from {bound[FOLLOWS]['from']}" if FOLLOWS in bound else ""
        return follows or "it goes on where it stopped"
    carried = CarriedOver.of_json(bound[BEGINNING])
    if carried.checkpoint is None:
        return "it begins with initial rows"
    stages = ", ".join(str(index + 1) for index in carried.stages) or "none"
    other = bound[FOLLOWS]["from"] if FOLLOWS in bound else carried.checkpoint
    after = f"{other} after micro-batch {carried.batch}"
    return f"it goes on from {after}, with the state of stages: {stages}"


def log_start(run: StartRequest, query: StreamingQuery, begins: str) -> None:
    """Log the start of ``query`` at INFO, and have its progress logged from now on. On Spark
    Connect only the start is logged. ``begins``: the beginning of the query in words, such as those
    of ``describe_beginning``.
    """
    sinks = [title for outcome in run.outcomes for title in outcome.titles]
    LOG.info(
        "%s: query %s started. Inputs: %s. Sinks: %s. Checkpoint: %s; %s.",
        printable(run.title),
        query.id,
        printable(", ".join(source.name for source in sources_of(run.nodes))),
        printable(", ".join(sinks)),
        printable(run.checkpoint),
        begins,
    )
    if is_remote(run.session):
        return
    logged = _RUNNING[str(query.id)] = _LoggedQuery(printable(run.title))
    if run.session not in _LISTENING:
        _LISTENING.add(run.session)
        jvm.listen(run.session, _log_progress, _log_pause, _log_end)
    if not query.isActive:  # its end may have been reported before
        ran = any("addBatch" in progress["durationMs"] for progress in query.recentProgress)
        logged.has_read = logged.has_read or ran
        _log_end(str(query.id), query.exception() is not None)


def _log_progress(text: str) -> None:
    """Log a micro-batch of a query of this library. Warn of each counter of lost rows
    (``_LOSSES``) the first time that it counts any. Counters whose names differ by a suffix such as
    ``#2`` are one. ``text``: Spark's progress report as JSON. Reports of other queries are ignored.
    The sums of the query's ``_LoggedQuery`` advance.
    """
    progress = json.loads(text)
    query = _RUNNING.get(progress["id"])
    if query is None:
        return
    number, rows = progress["batchId"], progress["numInputRows"]
    duration_s = progress["batchDuration"] / 1000
    LOG.debug("%s: micro-batch %d read %d rows in %.2f s", query.title, number, rows, duration_s)
    query.sum_up(rows, duration_s)
    for name, (lost, _) in unused_rows(progress.get("observedMetrics", {})).items():
        full = name.partition("#")[0]
        if full.rpartition(".")[2] in _LOSSES and full not in query.warned:
            query.warned.add(full)
            LOG.warning(
                "%s: %s counts %d in micro-batch %d. The query's progress has an example.",
                *(query.title, printable(full), lost, number),
            )


def _log_pause(query_id: str) -> None:
    """Log that the query with this id has nothing to do, the first time only. Do nothing for an
    unknown query.
    """
    query = _RUNNING.get(query_id)
    if query is not None and not query.has_paused:
        query.has_paused = True
        LOG.info("%s: nothing new to read. It waits for its inputs.", query.title)


def _log_end(query_id: str, failed: bool) -> None:
    """Forget the query with this id. Log that it ended without a micro-batch, unless it ``failed``,
    has run a micro-batch or has logged a pause. Do nothing for an unknown query.
    """
    query = _RUNNING.pop(query_id, None)
    if query is None or failed or query.has_read or query.has_paused:
        return
    LOG.info("%s: it ended without a micro-batch: its inputs have nothing new.", query.title)
