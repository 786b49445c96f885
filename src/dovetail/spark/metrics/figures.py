"""The figures of a query under the names of metrics, for all exporters.

Each exporter writes a name in its own way: ``dovetail_rows_total`` in Prometheus is
``dovetail.rows`` in OpenTelemetry.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from threading import Event, Lock, Thread

from dovetail.spark.metrics.progress import Progress, ProgressFollower, StageProgress
from dovetail.spark.query.topology_query import TopologyQuery

_EVERY_S = 2.0
"""The time between two looks at a query's progress, without scrapes."""
Labels = tuple[str, ...]
"""The values of a metric's labels, in the order of ``MetricKind.labels``."""


@dataclass(frozen=True)
class MetricKind:
    """A kind of metric."""

    text: str
    """Its description."""
    labels: Labels = ()
    """The names of its labels, besides the query's."""
    unit: str = "1"
    """Its unit, in the notation of UCUM."""


COUNTERS: Mapping[str, MetricKind] = {
    "batches": MetricKind("Micro-batches that have ended."),
    "rows": MetricKind("Rows read.", ("input",)),
    "stage_rows": MetricKind("Rows that came to a stage.", ("stage", "input")),
    "tombstones": MetricKind("Tombstones among the rows that came to a stage.", ("stage", "input")),
    "matched": MetricKind(
        "Records that found rows on all other sides of a join.", ("stage", "input")
    ),
    "unmatched": MetricKind("Records that did not.", ("stage", "input")),
    "changes": MetricKind("Changes that a stage emitted, deletes among them.", ("stage",)),
    "deletes": MetricKind("Deletes that a stage emitted.", ("stage",)),
    "work_seconds": MetricKind("Time of a stage's operators in all buckets.", ("stage",), "s"),
    "state_seconds": MetricKind("Of it, time of calls of the state store.", ("stage",), "s"),
    "phase_seconds": MetricKind("Time of each phase of micro-batches.", ("phase",), "s"),
    "step_seconds": MetricKind("Time of each step of the phase work.", ("step",), "s"),
    "unused_rows": MetricKind("Rows without use, by counter.", ("counter",)),
    "lookups": MetricKind("Requests of delta joins and lookups.", ("counter", "kind")),
}
"""The metrics that are added up over micro-batches."""
GAUGES: Mapping[str, MetricKind] = {
    "active": MetricKind("1 while the query runs, else 0."),
    "batch_seconds": MetricKind("Duration of the last micro-batch.", (), "s"),
    "behind": MetricKind("How far a source is behind, by its own measure.", ("input", "measure")),
    "lag_seconds": MetricKind("How far an input is behind in event time.", ("input",), "s"),
    "stream_time_seconds": MetricKind("Stream time since 1970.", ("stage", "input"), "s"),
    "slowest_bucket_seconds": MetricKind("Time of a stage's slowest bucket.", ("stage",), "s"),
    "waiting_rows": MetricKind("Stored rows that wait, by input and reason.", ("stage", "reason")),
    "stored_rows": MetricKind("Stored rows.", ("stage",)),
    "stored_bytes": MetricKind("Size of the stored rows in memory.", ("stage",), "By"),
    "state_bytes": MetricKind("Size of the state's files.", ("stage",), "By"),
    "memory_bytes": MetricKind("Memory that the state store uses.", ("stage",), "By"),
}
"""The metrics of the last micro-batch."""


class MetricValues:
    """The values of a query's metrics: totals since the export began, and the figures of its last
    micro-batch.

    Totals include the micro-batches that Spark still had when the export began. A thread adds up
    micro-batches from time to time, so that none is missed between scrapes that are far apart. It
    ends with the query.
    """

    def __init__(self, query: TopologyQuery) -> None:
        """Start the thread that adds up the micro-batches of ``query``. ``title`` is its name, or
        its id without one.
        """
        self.title = query.name or str(query.id)
        self._query, self._lock, self._stopping = query, Lock(), Event()
        self._follower = ProgressFollower(query)
        self._totals = {name: defaultdict[Labels, float](float) for name in COUNTERS}
        self._last: Progress | None = None
        self._watching = Thread(target=self._watch, name="dovetail-metrics", daemon=True)
        self._watching.start()

    def stop(self) -> None:
        """End the thread that adds up micro-batches, and wait for its end. ``values`` works on."""
        self._stopping.set()
        self._watching.join()

    def values(self) -> dict[str, dict[Labels, float]]:
        """Return the value of each metric of ``COUNTERS`` and ``GAUGES``, by its name, then by the
        values of its labels. A metric without values has an empty dict.

        Counters have all micro-batches that Spark had when the export began, and all since. Gauges
        are those of the last micro-batch, and have no value before it, except ``active``. All stay
        after the end of the query. Micro-batches that have ended since are added first.
        """
        with self._lock:
            self._update()
            values = {name: dict(totals) for name, totals in self._totals.items()}
            values |= {name: {} for name in GAUGES}
            values["active"][()] = float(bool(self._query.isActive))
            for name, labels, value in () if self._last is None else _gauge_values(self._last):
                values[name][labels] = value
        return values

    def _watch(self) -> None:
        """Add up micro-batches every ``_EVERY_S`` seconds, until ``stop`` is called or the query
        ends. Those of the end are left to ``values``.
        """
        while not self._stopping.wait(_EVERY_S) and self._query.isActive:
            with self._lock:
                self._update()

    def _update(self) -> None:
        """Add the counts of all micro-batches that have ended since the last call to the totals,
        and keep the last micro-batch for the gauges. The caller holds the lock.
        """
        for progress in self._follower.new_batches():
            self._last = progress
            for name, labels, value in _counter_increments(progress):
                self._totals[name][labels] += value


def _counter_increments(progress: Progress) -> Iterator[tuple[str, Labels, float]]:
    """Yield (metric, labels, increment) for each counter that a micro-batch adds to, perhaps 0.
    Labels are the values of the metric's label names, in their order.
    """
    yield "batches", (), 1
    for phase, ms in progress.phases_ms.items():
        yield "phase_seconds", (phase,), ms / 1000
    for step, step_ms in progress.steps_ms.items():
        yield "step_seconds", (step,), step_ms / 1000
    for input_ in progress.inputs:
        yield "rows", (input_.name or input_.source,), input_.rows
    for stage in progress.stages:
        label = _stage_label(stage)
        by_input = {
            "stage_rows": stage.rows,
            "tombstones": stage.tombstones,
            "matched": stage.matched,
            "unmatched": stage.unmatched,
        }
        for name, rows_by_input in by_input.items():
            for input_name, rows in rows_by_input.items():
                yield name, (label, input_name), rows
        yield "changes", (label,), stage.changes
        yield "deletes", (label,), stage.deletes
        yield "work_seconds", (label,), stage.work_ms / 1000
        yield "state_seconds", (label,), stage.state_ms / 1000
    for counter, unused in progress.unused.items():
        yield "unused_rows", (counter,), unused.rows
    for counter, kinds in progress.lookups.items():
        for kind, requests in kinds.items():
            yield "lookups", (counter, kind), requests


def _gauge_values(progress: Progress) -> Iterator[tuple[str, Labels, float]]:
    """Yield (metric, labels, value) for each gauge after a micro-batch, except ``active``. Labels
    are the values of the metric's label names, in their order. An input without a lag has no
    ``lag_seconds``.
    """
    yield "batch_seconds", (), progress.total_ms / 1000
    for input_ in progress.inputs:
        name = input_.name or input_.source
        for measure, lag in input_.behind.items():
            yield "behind", (name, measure), lag
        if input_.lag_s is not None:
            yield "lag_seconds", (name,), input_.lag_s
    for stage in progress.stages:
        label = _stage_label(stage)
        for input_name, time in stage.stream_time.items():
            yield "stream_time_seconds", (label, input_name), time.timestamp()
        for reason, rows in stage.waiting.items():
            yield "waiting_rows", (label, reason), rows
        yield "slowest_bucket_seconds", (label,), stage.slowest_ms / 1000
        yield "stored_rows", (label,), stage.stored_rows
        yield "stored_bytes", (label,), stage.stored_bytes
        yield "state_bytes", (label,), stage.state_bytes
        yield "memory_bytes", (label,), stage.memory_bytes


def _stage_label(stage: StageProgress) -> str:
    """Return a stage's index from 1 and its title, such as ``1. inner join by key``. The index
    tells stages of one title apart.
    """
    return f"{stage.number}. {stage.title}"
