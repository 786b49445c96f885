"""Reports of a running query's lineage, by a thread of their own."""

from __future__ import annotations

import logging
from collections import Counter
from importlib.metadata import version
from threading import Event, Thread
from time import monotonic
from typing import Annotated, Any

from dovetail.base.validation import Rule, Seconds, Text, validated
from dovetail.spark.lineage.datasets import datasets_of
from dovetail.spark.lineage.events import PRODUCER, RunOfQuery, State
from dovetail.spark.metrics.progress import AQuery, ProgressFollower
from dovetail.spark.metrics.serving import import_optional
from dovetail.spark.query.topology_query import TopologyQuery

AClient = Annotated[
    object, Rule("an OpenLineageClient", lambda c: callable(getattr(c, "emit", None)))
]
_POLL_S = 1.0
"""The time between two looks at the query."""
_LOG = logging.getLogger("dovetail.lineage")


class Lineage:
    """The reports of a query's lineage, from ``dt.lineage``.

    See Also
    --------
    lineage : Report a query's lineage.

    Examples
    --------
    >>> from dovetail.typing import Lineage
    >>> callable(Lineage.stop)
    True
    """

    def __init__(
        self, query: TopologyQuery, client: Any, namespace: str, job: str | None, every: float
    ) -> None:
        """Send ``START``, and start the thread that sends the other events. ``every``: the least
        time between two events ``RUNNING``, in seconds. ``job``: the name of the job. None stands
        for the query's name or, without one, the names of its results.

        ``client``: the client that sends events, None for one by OpenLineage's settings. Raises
        ``ConfigurationError`` if ``openlineage-python`` is not installed.
        """
        package = import_optional("lineage", "openlineage.client", "lineage")
        import_optional("lineage", "openlineage.client.facet_v2", "lineage").set_producer(PRODUCER)
        self._client = package.OpenLineageClient() if client is None else client
        self._query, self._every, self._stopping = query, every, Event()
        self._follower, self._rows = ProgressFollower(query), Counter[str]()
        self._run = RunOfQuery(
            str(query.runId),
            job or query.name or query.parts.title,
            namespace,
            datasets_of(query.parts.outcomes, namespace),
            version("dovetail"),
        )
        self._emit_event("START")
        self._reporting = Thread(target=self._report, name="dovetail-lineage", daemon=True)
        self._reporting.start()

    def stop(self) -> None:
        """End the reports, and wait for the thread that sends them. The query goes on.

        While the query runs, no further event is sent, and the run stays open. If it has ended, its
        ``COMPLETE`` or ``FAIL`` is sent before. A second call does nothing.

        See Also
        --------
        lineage : Report a query's lineage.

        Examples
        --------
        >>> from dovetail.typing import Lineage
        >>> Lineage.stop.__name__
        'stop'
        """
        self._stopping.set()
        self._reporting.join()

    def _report(self) -> None:
        """Send ``RUNNING`` while the query runs, if rows have been read since the last event. It is
        sent at most every ``_every`` seconds, first that long after ``START``. Then send
        ``COMPLETE``, also for a query that a user has stopped, or ``FAIL`` with the error of one
        that has failed. These have the rows read since the last event.

        If the reporter is stopped while the query runs, nothing more is reported, not even rows
        read since. An event that cannot be sent is logged and lost.
        """
        reported_s = monotonic()
        while self._query.isActive:
            if self._stopping.wait(_POLL_S):
                if self._query.isActive:
                    return
                break
            self._count_rows()
            if self._rows.total() and monotonic() - reported_s >= self._every:
                reported_s = monotonic()
                self._emit_event("RUNNING")
        self._count_rows()
        failure = self._query.exception()
        self._emit_event("COMPLETE" if failure is None else "FAIL", failure)

    def _count_rows(self) -> None:
        """Add the rows that new micro-batches have read to ``_rows``, by input. Counts of an input
        with several of Spark's sources are added up. Micro-batches that Spark has dropped since the
        last call are missing.
        """
        for progress in self._follower.new_batches():
            for input_ in progress.inputs:
                self._rows[input_.name] += input_.rows

    def _emit_event(self, state: State, failure: BaseException | None = None) -> None:
        """Send an event of this state, with the rows read since the last one, and reset these to 0.

        ``failure``: the query's, None for none. An event that the client cannot send is logged and
        lost, rows included.
        """
        message = None if failure is None else str(failure).strip()
        event = self._run.event(state, self._rows, message)
        self._rows = Counter()
        try:
            self._client.emit(event)
        except Exception:
            _LOG.exception("%s: the event %s of its lineage is lost", self._run.job, state)


@validated
def lineage(
    query: AQuery,
    *,
    client: AClient | None = None,
    namespace: Text = "dovetail",
    job: Text | None = None,
    every: Seconds = 60.0,
) -> Lineage:
    """Report a query's lineage as events of OpenLineage, from now until its end.

    ``START`` comes at once, ``RUNNING`` now and then with the rows read since, at the end
    ``COMPLETE``, or ``FAIL`` with the error. Each has the inputs, the outputs, their columns, and
    for each output column the input columns that it is made of. The first counts of rows include
    the micro-batches before the call that Spark still has. For a query that has ended, ``START``
    and its end are sent.

    Parameters
    ----------
    query : StreamingQuery
        A query that ``write_stream`` or ``dt.run`` has started.
    client : OpenLineageClient, optional
        The client that sends events; by default one as OpenLineage's own settings say.
    namespace : str, default "dovetail"
        The namespace of the job, and of inputs and sinks that have none by OpenLineage's rules.
    job : str, optional
        The name of the job; by default the query's name or, without one, those of its results.
    every : float, default 60.0
        The least time between two events ``RUNNING``, in seconds. None is sent while no rows are
        read.

    Returns
    -------
    Lineage
        The reports. Call ``stop()`` to end them earlier.

    Raises
    ------
    PlanError
        If an argument does not fit.
    ConfigurationError
        If ``openlineage-python`` is not installed (``pip install dovetail[lineage]``).

    See Also
    --------
    progress : Return the figures of a query.

    Notes
    -----
    Columns that an expression uses are found by the names in its text, so an expression may seem to
    use a column more.

    Examples
    --------
    >>> import dovetail as dt
    >>> dt.lineage("orders")
    Traceback (most recent call last):
        ...
    dovetail.errors.PlanError: lineage: query= is 'orders'. Give what write_stream ...
    """
    return Lineage(query, client, namespace, job, every)
