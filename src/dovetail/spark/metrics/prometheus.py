"""Export of a query's figures for Prometheus, over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dovetail.base.validation import Text, validated
from dovetail.spark.metrics.figures import COUNTERS, GAUGES, MetricValues
from dovetail.spark.metrics.progress import AQuery
from dovetail.spark.metrics.serving import Port, address_errors, import_optional
from dovetail.spark.query.topology_query import TopologyQuery

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric


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

    def __init__(self, query: TopologyQuery, host: str, port: int) -> None:
        """Start the server on ``host`` and ``port``, 0 for any free one, and the thread that adds
        up figures. ``url`` has the port that is used. ``stop`` ends both. The thread that adds up
        also ends with the query, or if the server cannot start.

        Raises ``ConfigurationError`` without ``prometheus-client``, and ``OSError`` if ``host`` and
        ``port`` cannot be bound.
        """
        client = import_optional("prometheus", "prometheus_client", "prometheus")
        registry = client.CollectorRegistry()
        self._figures = MetricValues(query)
        registry.register(_Collector(self._figures))
        try:
            self._server, self._serving = client.start_http_server(port, host, registry)
        except OSError:
            self._figures.stop()
            raise
        self.url = f"http://{host}:{self._server.server_port}/metrics"

    def stop(self) -> None:
        """Stop serving the figures. The query goes on. A second call does nothing.

        See Also
        --------
        metrics.prometheus : Start an exporter.

        Examples
        --------
        >>> from dovetail.metrics import Exporter
        >>> Exporter.stop.__name__
        'stop'
        """
        self._figures.stop()
        self._server.shutdown()
        self._server.server_close()
        self._serving.join()


class _Collector:
    """The source that Prometheus's client reads at each scrape."""

    def __init__(self, figures: MetricValues) -> None:
        """Take the values of one query's metrics."""
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics, counters first, named ``dovetail_<metric>``, each with the label
        ``query`` before its own labels. A metric without values yet is yielded without any.
        """
        from prometheus_client import metrics_core as core

        values, query = self._figures.values(), self._figures.title
        families = {
            **dict.fromkeys(COUNTERS, core.CounterMetricFamily),
            **dict.fromkeys(GAUGES, core.GaugeMetricFamily),
        }
        for name, kind in {**COUNTERS, **GAUGES}.items():
            labels = ["query", *kind.labels]
            metric = families[name](f"dovetail_{name}", kind.text, labels=labels)
            for label_values, value in values[name].items():
                metric.add_metric([query, *label_values], value)
            yield metric


@validated
def prometheus(query: AQuery, *, port: Port = 9464, host: Text = "127.0.0.1") -> Exporter:
    """Serve a query's figures over HTTP, in the format of Prometheus.

    Totals begin with the micro-batches that Spark still has: the last 100. The query is only read,
    from a thread of its own. After its end its last figures are served, until ``stop()``.

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
        port is in use, as by another query's exporter.

    See Also
    --------
    progress : Return the figures as a value.

    Notes
    -----
    Each metric has the label ``query``, its name or else its id. Further labels are in brackets.

    - Totals, which end in ``_total``: ``dovetail_batches``, ``dovetail_rows`` (``input``),
      ``dovetail_phase_seconds`` (``phase``), ``dovetail_step_seconds`` (``step``);
    - totals of what was left out or looked up: ``dovetail_unused_rows`` (``counter``),
      ``dovetail_lookups`` (``counter``, ``kind``);
    - totals of a stage (``stage``): ``dovetail_changes``, ``dovetail_deletes``,
      ``dovetail_work_seconds``, ``dovetail_state_seconds``;
    - totals of an input of a stage (``stage``, ``input``): ``dovetail_stage_rows``,
      ``dovetail_tombstones``, ``dovetail_matched``, ``dovetail_unmatched``;
    - 1 while the query runs, else 0: ``dovetail_active``;
    - of the last micro-batch: ``dovetail_batch_seconds``, ``dovetail_lag_seconds`` (``input``),
      ``dovetail_behind`` (``input``, ``measure``);
    - of its stages: ``dovetail_stream_time_seconds`` (``stage``, ``input``),
      ``dovetail_waiting_rows`` (``stage``, ``reason``);
    - of it for a stage (``stage``): ``dovetail_slowest_bucket_seconds``, ``dovetail_stored_rows``,
      ``dovetail_stored_bytes``, ``dovetail_state_bytes``, ``dovetail_memory_bytes``.

    Examples
    --------
    >>> import dovetail as dt
    >>> dt.metrics.prometheus("orders")
    Traceback (most recent call last):
        ...
    dovetail.errors.PlanError: prometheus: query= is 'orders'. Give what write_stream ...
    """
    with address_errors("prometheus", host, port):
        return Exporter(query, host, port)
