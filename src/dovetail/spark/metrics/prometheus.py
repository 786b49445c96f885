"""Export of a query's figures for Prometheus, over HTTP."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING

from dovetail.base.validation import Text, validated
from dovetail.spark.metrics.progress import AQuery, Progress, ProgressFollower, StageProgress
from dovetail.spark.metrics.serving import Port, binding, optional
from dovetail.spark.query.topology_query import TopologyQuery

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

_EVERY_S = 2.0
"""The time between two looks at a query's progress, without scrapes."""
COUNTERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "dovetail_batches": ("Micro-batches that have ended.", ()),
    "dovetail_rows": ("Rows read.", ("input",)),
    "dovetail_stage_rows": ("Rows that came to a stage.", ("stage", "input")),
    "dovetail_changes": ("Changes that a stage emitted, deletes among them.", ("stage",)),
    "dovetail_deletes": ("Deletes that a stage emitted.", ("stage",)),
    "dovetail_work_seconds": ("Time of a stage's operators in all buckets.", ("stage",)),
    "dovetail_state_seconds": ("Of it, time of calls of the state store.", ("stage",)),
    "dovetail_phase_seconds": ("Time of each phase of micro-batches.", ("phase",)),
    "dovetail_unused_rows": ("Rows without use, by counter.", ("counter",)),
    "dovetail_lookups": ("Requests of delta joins and lookups.", ("counter", "kind")),
}
"""The counters, each with its description and its labels. Prometheus appends ``_total``."""
GAUGES: dict[str, tuple[str, tuple[str, ...]]] = {
    "dovetail_active": ("1 while the query runs, else 0.", ()),
    "dovetail_batch_seconds": ("Duration of the last micro-batch.", ()),
    "dovetail_behind": ("How far a source is behind, by its own measure.", ("input", "measure")),
    "dovetail_stream_time_seconds": ("Stream time since 1970.", ("stage", "input")),
    "dovetail_slowest_bucket_seconds": ("Time of a stage's slowest bucket.", ("stage",)),
    "dovetail_state_bytes": ("Size of the state's files.", ("stage",)),
    "dovetail_memory_bytes": ("Memory that the state store uses.", ("stage",)),
}
"""The gauges, each with its description and its labels."""
_Labels = tuple[str, ...]


class Exporter:
    """A server of a query's figures, from ``dt.metrics.prometheus``.

    Attributes
    ----------
    url : str
        The address that Prometheus scrapes.

    See Also
    --------
    metrics.prometheus : Start an exporter.

    Examples
    --------
    >>> from dovetail.metrics import Exporter
    >>> callable(Exporter.stop)
    True
    """

    url: str

    def __init__(self, query: TopologyQuery, host: str, port: int, title: str) -> None:
        client = optional("prometheus", "prometheus_client", "prometheus")
        self._query, self._stopping, self._figures = query, Event(), _Figures(query)
        registry = client.CollectorRegistry()
        registry.register(_Collector(self._figures, title))
        self._server, self._serving = client.start_http_server(port, host, registry)
        self.url = f"http://{host}:{self._server.server_port}/metrics"
        self._watching = Thread(target=self._watch, name="dovetail-metrics", daemon=True)
        self._watching.start()

    def stop(self) -> None:
        """Stop to serve. The query goes on.

        See Also
        --------
        metrics.prometheus : Start an exporter.

        Examples
        --------
        >>> from dovetail.metrics import Exporter
        >>> Exporter.stop.__name__
        'stop'
        """
        self._stopping.set()
        self._watching.join()
        self._server.shutdown()
        self._server.server_close()
        self._serving.join()

    def _watch(self) -> None:
        """Look at the progress from time to time, so that no micro-batch is missed between scrapes
        that are far apart.
        """
        while not self._stopping.wait(_EVERY_S) and self._query.isActive:
            self._figures.update()


class _Figures:
    """The totals of a query since the exporter's start, and its last figures."""

    def __init__(self, query: TopologyQuery) -> None:
        self._query, self._lock, self._follower = query, Lock(), ProgressFollower(query)
        self.totals = {name: defaultdict[_Labels, float](float) for name in COUNTERS}
        self.last: Progress | None = None

    def update(self) -> None:
        """Add all micro-batches that have ended since the last call."""
        with self._lock:
            for progress in self._follower.new():
                self.last = progress
                self._add(progress)

    def active(self) -> bool:
        """Say whether the query runs."""
        return bool(self._query.isActive)

    def _add(self, progress: Progress) -> None:
        """Add the figures of a micro-batch."""
        for name, labels, number in _counted(progress):
            self.totals[name][labels] += number


def _counted(progress: Progress) -> Iterator[tuple[str, _Labels, float]]:
    """Yield a counter, its labels and what a micro-batch adds to it."""
    yield "dovetail_batches", (), 1
    for phase, ms in progress.phases_ms.items():
        yield "dovetail_phase_seconds", (phase,), ms / 1000
    for input_ in progress.inputs:
        yield "dovetail_rows", (input_.name or input_.source,), input_.rows
    for stage in progress.stages:
        for name, rows in stage.rows.items():
            yield "dovetail_stage_rows", (_label(stage), name), rows
        yield "dovetail_changes", (_label(stage),), stage.changes
        yield "dovetail_deletes", (_label(stage),), stage.deletes
        yield "dovetail_work_seconds", (_label(stage),), stage.work_ms / 1000
        yield "dovetail_state_seconds", (_label(stage),), stage.state_ms / 1000
    for counter, unused in progress.unused.items():
        yield "dovetail_unused_rows", (counter,), unused.rows
    for counter, kinds in progress.lookups.items():
        for kind, number in kinds.items():
            yield "dovetail_lookups", (counter, kind), number


def _measured(progress: Progress) -> Iterator[tuple[str, _Labels, float]]:
    """Yield a gauge, its labels and its value after a micro-batch."""
    yield "dovetail_batch_seconds", (), progress.total_ms / 1000
    for input_ in progress.inputs:
        for measure, number in input_.behind.items():
            yield "dovetail_behind", (input_.name or input_.source, measure), number
    for stage in progress.stages:
        for name, time in stage.stream_time.items():
            yield "dovetail_stream_time_seconds", (_label(stage), name), time.timestamp()
        yield "dovetail_slowest_bucket_seconds", (_label(stage),), stage.slowest_ms / 1000
        yield "dovetail_state_bytes", (_label(stage),), stage.state_bytes
        yield "dovetail_memory_bytes", (_label(stage),), stage.memory_bytes


def _label(stage: StageProgress) -> str:
    """Return a stage's number and title; several stages may have the same title."""
    return f"{stage.number}. {stage.title}"


class _Collector:
    """The source that Prometheus's client reads at each scrape."""

    def __init__(self, figures: _Figures, title: str) -> None:
        self._figures, self._title = figures, title

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics, each with the label ``query`` before its own."""
        from prometheus_client import metrics_core as core

        self._figures.update()
        for name, (text, labels) in COUNTERS.items():
            counter = core.CounterMetricFamily(name, text, labels=["query", *labels])
            for values, total in self._figures.totals[name].items():
                counter.add_metric([self._title, *values], total)
            yield counter
        gauges = {
            name: core.GaugeMetricFamily(name, text, labels=["query", *labels])
            for name, (text, labels) in GAUGES.items()
        }
        gauges["dovetail_active"].add_metric([self._title], float(self._figures.active()))
        for name, values, number in _measured(self._figures.last) if self._figures.last else ():
            gauges[name].add_metric([self._title, *values], number)
        yield from gauges.values()


@validated
def prometheus(query: AQuery, *, port: Port = 9464, host: Text = "127.0.0.1") -> Exporter:
    """Serve a query's figures over HTTP, in the format of Prometheus.

    Totals begin with the micro-batches that Spark still has: the last 100. The query is only read,
    from a thread of its own.

    Parameters
    ----------
    query : StreamingQuery
        A query that ``write_stream`` or ``dt.run`` has started.
    port : int, default 9464
        The port; 0 for any free one.
    host : str, default "127.0.0.1"
        The address to bind to. By default only this machine reaches the server.

    Returns
    -------
    Exporter
        The server, with its ``url``. Call ``stop()`` to end it.

    Raises
    ------
    PlanError
        If ``query`` is no query of dovetail's, or an argument does not fit.
    ConfigurationError
        If ``prometheus-client`` is not installed (``pip install dovetail[prometheus]``), or the
        port is in use.

    See Also
    --------
    progress : Return the figures as a value.

    Examples
    --------
    >>> import dovetail as dt
    >>> dt.metrics.prometheus("orders")
    Traceback (most recent call last):
        ...
    dovetail.errors.PlanError: prometheus: query= is 'orders'. Give what write_stream ...
    """
    with binding("prometheus", host, port):
        return Exporter(query, host, port, query.name or str(query.id))
