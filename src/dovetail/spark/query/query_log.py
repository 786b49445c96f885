"""The lines that queries write to the logger ``dovetail.query``.

| level | line |
|---|---|
| INFO | a start: the inputs, the sinks, the checkpoint, and what the query begins with |
| INFO | nothing to do, once: a query waits for its inputs, or ends without a micro-batch |
| WARNING | the first rows that a counter of losses counts, once for each counter of a query |
| DEBUG | each micro-batch: its number, the rows that it read, the time that it took |

Progress reaches a classic session only.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from pyspark.sql import SparkSession

from dovetail.base.text_cells import printable
from dovetail.plan.fingerprint import origins_of
from dovetail.platform import jvm
from dovetail.platform.sessions import is_remote
from dovetail.spark.checkpoints.checkpoint import BEGINNING
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
_TITLES: dict[str, str] = {}
"""The titles of running queries, by Spark's id of the query."""
_WARNED: set[tuple[str, str]] = set()
"""Pairs of a query's id and a counter that has been reported."""
_READ: set[str] = set()
"""The ids of running queries that have had a micro-batch."""
_PAUSED: set[str] = set()
"""The ids of running queries of which a pause has been reported."""
_LISTENING: WeakSet[SparkSession] = WeakSet()


def beginning(bound: Mapping[str, Any] | None) -> str:
    """Return what a query begins with, in words. ``bound``: the binding of its checkpoint, None for
    a new one.
    """
    if bound is None:
        return "it begins anew"
    if BEGINNING not in bound:
        return "it goes on where it stopped"
    carried = CarriedOver.of_json(bound[BEGINNING])
    if carried.checkpoint is None:
        return "it begins with initial rows"
    stages = ", ".join(str(index + 1) for index in carried.stages) or "none"
    after = f"{carried.checkpoint} after micro-batch {carried.batch}"
    return f"it goes on from {after}, with the state of stages: {stages}"


def started(run: StartRequest, query: StreamingQuery, begins: str) -> None:
    """Log the start of a query, and see to the lines of its progress."""
    sinks = [sink for outcome in run.outcomes for sink in outcome.sinks]
    LOG.info(
        "%s: query %s started. Inputs: %s. Sinks: %s. Checkpoint: %s; %s.",
        printable(run.title),
        query.id,
        printable(", ".join(source.name for source in origins_of(run.nodes))),
        printable(", ".join(getattr(sink, "title", type(sink).__name__) for sink in sinks)),
        printable(run.checkpoint),
        begins,
    )
    _TITLES[str(query.id)] = printable(run.title)
    if not is_remote(run.session) and run.session not in _LISTENING:
        _LISTENING.add(run.session)
        jvm.listen(run.session, _log_progress, _log_pause, _log_end)


def _log_progress(text: str) -> None:
    """Log the progress of a query of this library. ``text``: Spark's JSON."""
    progress = json.loads(text)
    query_id = progress["id"]
    title = _TITLES.get(query_id)
    if title is None:
        return
    LOG.debug(
        "%s: micro-batch %d read %d rows in %.2f s",
        title,
        progress["batchId"],
        progress["numInputRows"],
        progress["batchDuration"] / 1000,
    )
    _READ.add(query_id)
    for name, (lost, _) in unused_rows(progress.get("observedMetrics", {})).items():
        full = name.partition("#")[0]
        if full.rpartition(".")[2] in _LOSSES and (query_id, full) not in _WARNED:
            _WARNED.add((query_id, full))
            LOG.warning(
                "%s: %s counts %d in micro-batch %d. The query's progress has an example.",
                title,
                printable(full),
                lost,
                progress["batchId"],
            )


def _log_pause(query_id: str) -> None:
    """Log the first time that a query has nothing to do."""
    if query_id in _TITLES and query_id not in _PAUSED:
        _PAUSED.add(query_id)
        LOG.info("%s: nothing new to read. It waits for its inputs.", _TITLES[query_id])


def _log_end(query_id: str, failed: bool) -> None:
    """Log that a query has ended without a micro-batch, and forget it. Started again, it reports
    its counters again.
    """
    title = _TITLES.pop(query_id, None)
    if title is not None and not failed and not {query_id} & (_READ | _PAUSED):
        LOG.info("%s: it ended without a micro-batch: its inputs have nothing new.", title)
    _READ.discard(query_id)
    _PAUSED.discard(query_id)
    _WARNED.difference_update([pair for pair in _WARNED if pair[0] == query_id])
