"""The figures of micro-batches that the page shows."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from threading import Lock
from typing import Protocol

from dovetail.base.error_text import first_line
from dovetail.spark.metrics.history import progress_as_json, recorded_after
from dovetail.spark.metrics.progress import ProgressFollower
from dovetail.spark.query.topology_query import TopologyQuery

_BATCHES_MAX = 500
"""The number of micro-batches that the page shows at most."""


class Figures(Protocol):
    """The figures of a query's micro-batches, shared by all who look at the page."""

    def batches_after(self, batch_number: int) -> tuple[int, list[str]]:
        """Return the ordinal of the latest micro-batch, and the figures of those after
        ``batch_number`` as JSON texts, in order.

        Ordinals count micro-batches from 1, and are not Spark's batch ids. ``batch_number``:
        exclusive, an ordinal that a former call has returned; 0 for all. Without new micro-batches
        the list is empty. Of more than 500, only the latest are returned.
        """

    def state(self) -> str:
        """Return a JSON text with ``words`` (the query's state), ``active`` and ``failure``.

        ``active`` is true if the query runs, and null if that is not known. ``failure`` is the
        first line of its error, null without one.
        """


class LiveFigures:
    """The figures of a running query's micro-batches, shared by all who look at the page."""

    def __init__(self, query: TopologyQuery) -> None:
        self._query, self._lock, self._follower = query, Lock(), ProgressFollower(query)
        self._batches: deque[tuple[int, str]] = deque(maxlen=_BATCHES_MAX)
        self._count = 0

    def batches_after(self, batch_number: int) -> tuple[int, list[str]]:
        """Return the ordinal of the latest micro-batch, and the figures of those after
        ``batch_number`` as JSON texts, in order.

        Ordinals count from 1, the first micro-batch that Spark still had at the first call; 0 is
        returned before any. ``batch_number``: exclusive; 0 for all. The list is empty without new
        micro-batches, and has at most the latest 500. New figures are taken from the query and
        kept; several threads may call. Micro-batches that Spark drops between two calls are
        missing, without an error or a gap in the ordinals.
        """
        with self._lock:
            for progress in self._follower.new_batches():
                self._count += 1
                self._batches.append((self._count, json.dumps(progress_as_json(progress))))
            return self._count, [text for at, text in self._batches if at > batch_number]

    def state(self) -> str:
        """Return a JSON text with ``words`` (``running``, ``ended`` or ``failed``), ``active``
        (true or false) and ``failure``. The failure is the first line of the query's error, or the
        error's class if it has no message; null without an error.
        """
        failure, active = self._query.exception(), bool(self._query.isActive)
        first = None if failure is None else first_line(failure)
        words = "running" if active else "ended" if failure is None else "failed"
        return json.dumps({"words": words, "active": active, "failure": first})


class RecordedFigures:
    """The figures in a file of ``dt.metrics.record`` beside the commits of a checkpoint.

    The query may run elsewhere, or have ended. ``path``: the file, None for none. ``last_batch``:
    returns Spark's id of the last committed micro-batch, None for none.
    """

    def __init__(self, path: str | None, last_batch: Callable[[], int | None]) -> None:
        self._path, self._last_batch = path, last_batch

    def batches_after(self, batch_number: int) -> tuple[int, list[str]]:
        """Return the ordinal of the latest micro-batch in the file, and the figures of those after
        ``batch_number`` as JSON texts, in order. Of more than 500, only the latest are returned.

        ``batch_number``: exclusive, a micro-batch's ordinal in the file, from 1; 0 for all. Return
        ``batch_number`` and an empty list without new micro-batches, and always if ``path`` is
        None. Raises ``ConfigurationError`` if ``path`` is given and there is no file now, or one
        that is no such record.
        """
        if self._path is None:
            return batch_number, []
        batches = recorded_after("serve", self._path, batch_number, _BATCHES_MAX)
        return batches[-1][0] if batches else batch_number, [text for _, text in batches]

    def state(self) -> str:
        """Return a JSON text with ``words``: the last micro-batch that the checkpoint has
        committed, or that there is none. ``active`` and ``failure`` are null, since they are not
        known. Errors of ``last_batch`` pass.
        """
        batch = self._last_batch()
        words = "no micro-batch is committed" if batch is None else f"after micro-batch {batch}"
        return json.dumps({"words": words, "active": None, "failure": None})
