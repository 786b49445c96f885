"""Export of a query's figures through OpenTelemetry."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated, Any
from weakref import WeakKeyDictionary

from dovetail.base.validation import Rule, validated
from dovetail.spark.metrics.figures import COUNTERS, GAUGES, MetricValues
from dovetail.spark.metrics.progress import AQuery
from dovetail.spark.metrics.serving import import_optional
from dovetail.spark.query.topology_query import TopologyQuery

MeterProvider = Annotated[
    Any, Rule("a meter provider", lambda p: callable(getattr(p, "get_meter", None)))
]
_EXPORTED: WeakKeyDictionary[Any, list[MetricValues]] = WeakKeyDictionary()
"""The queries that each meter provider exports. They share its instruments, which exist once."""


class Instruments:
    """The instruments of a query's figures, from ``dt.metrics.opentelemetry``.

    See Also
    --------
    metrics.opentelemetry : Export a query's figures.

    Examples
    --------
    >>> from dovetail.metrics import Instruments
    >>> callable(Instruments.stop)
    True
    """

    def __init__(self, query: TopologyQuery, provider: Any) -> None:
        """Start the thread that adds up figures, and have ``provider``, or the global one for None,
        export them. The thread ends with the query, or by ``stop``. Instruments are made once per
        provider and process, and shared by all queries that it exports. Raises
        ``ConfigurationError`` without ``opentelemetry-api``.
        """
        api = import_optional("opentelemetry", "opentelemetry.metrics", "opentelemetry")
        provider = api.get_meter_provider() if provider is None else provider
        self._figures = MetricValues(query)
        if provider not in _EXPORTED:
            _EXPORTED[provider] = []
            _declare_instruments(provider.get_meter("dovetail"), _EXPORTED[provider])
        self._exported = _EXPORTED[provider]
        self._exported.append(self._figures)

    def stop(self) -> None:
        """End the export. The query goes on. A second call does nothing.

        See Also
        --------
        metrics.opentelemetry : Export a query's figures.

        Examples
        --------
        >>> from dovetail.metrics import Instruments
        >>> Instruments.stop.__name__
        'stop'
        """
        if self._figures in self._exported:
            self._exported.remove(self._figures)
            self._figures.stop()


def _declare_instruments(meter: Any, exported: list[MetricValues]) -> None:
    """Make an instrument of ``meter``, named ``dovetail.<metric>``, for each counter and gauge.
    Each instrument observes all queries in ``exported``, also those added later.
    """
    kinds = {
        **dict.fromkeys(COUNTERS, meter.create_observable_counter),
        **dict.fromkeys(GAUGES, meter.create_observable_gauge),
    }
    for name, kind in {**COUNTERS, **GAUGES}.items():
        observe: Callable[[Any], Iterator[Any]] = partial(
            _observations_of, exported, name, kind.labels
        )
        kinds[name](f"dovetail.{name}", [observe], unit=kind.unit, description=kind.text)


def _observations_of(
    exported: list[MetricValues], name: str, labels: tuple[str, ...], *_: Any
) -> Iterator[Any]:
    """Yield an observation of the metric ``name`` for each query in ``exported`` and each
    combination of label values. The attributes are ``query``, the query's title, and its labels by
    name.

    ``labels``: the names of the metric's labels. OpenTelemetry's options, the last argument, change
    nothing.
    """
    from opentelemetry.metrics import Observation

    for figures in [*exported]:
        for values, value in figures.values()[name].items():
            attributes = {"query": figures.title, **dict(zip(labels, values, strict=True))}
            yield Observation(value, attributes)


@validated
def opentelemetry(query: AQuery, *, provider: MeterProvider | None = None) -> Instruments:
    """Export a query's figures through OpenTelemetry, as observable counters and gauges.

    The names are those of ``metrics.prometheus`` with a dot after ``dovetail`` and without
    ``_total``, such as ``dovetail.rows``. Labels become attributes of the same names. Totals begin
    with the micro-batches that Spark still has: the last 100. After the query's end its last
    figures are exported, until ``stop()``. The meter provider's readers say where the figures go.

    Parameters
    ----------
    query : StreamingQuery
        A query that ``write_stream`` or ``dt.run`` has started.
    provider : MeterProvider, optional
        The meter provider; by default the global one.

    Returns
    -------
    Instruments
        The export. Call ``stop()`` to end it.

    Raises
    ------
    PlanError
        If ``query`` is no query of dovetail's, or ``provider`` no meter provider.
    ConfigurationError
        If ``opentelemetry-api`` is not installed (``pip install dovetail[opentelemetry]``).

    See Also
    --------
    metrics.prometheus : Serve the figures for Prometheus.

    Examples
    --------
    >>> import dovetail as dt
    >>> dt.metrics.opentelemetry("orders")
    Traceback (most recent call last):
        ...
    dovetail.errors.PlanError: opentelemetry: query= is 'orders'. Give what write_stream ...
    """
    return Instruments(query, provider)
