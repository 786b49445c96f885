"""The server of the live page, in a thread of its own."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Sequence
from contextlib import suppress
from ipaddress import ip_address
from pathlib import PurePath
from threading import Event, Thread

from pyspark.sql import SparkSession

from dovetail.base.validation import Text, validated
from dovetail.page.content import Shown, page_html
from dovetail.page.figures import LiveFigures, RecordedFigures
from dovetail.page.search import RowReasons, StateSearch
from dovetail.plan.fingerprint import in_checkpoint_order, refuse_other
from dovetail.plan.nodes import Node
from dovetail.spark.checkpoints.state_lookup import with_latest_state
from dovetail.spark.checkpoints.stores import CheckpointStores
from dovetail.spark.execution.frames import session_of
from dovetail.spark.metrics.history import recorded_after
from dovetail.spark.metrics.progress import AQuery
from dovetail.spark.metrics.serving import Port, address_errors, import_optional

_EXTRAS = "page,pictures"


class Page:
    """A live page of a query, from ``dt.serve``.

    Attributes
    ----------
    url : str
        The address of the page, with its token if it has one.

    See Also
    --------
    serve : Start a page.

    Examples
    --------
    >>> from dovetail.typing import Page
    >>> callable(Page.stop)
    True
    """

    url: str

    def __init__(self, shown: Shown, host: str, port: int, token: str | None) -> None:
        import_optional("serve", "starlette", _EXTRAS)
        uvicorn = import_optional("serve", "uvicorn", _EXTRAS)
        from dovetail.page.application import application_of

        self._stopping = Event()
        application = application_of(shown, self._stopping, token)
        listening = socket.create_server((host, port), family=_address_family(host))
        suffix = "" if token is None else f"?token={token}"
        address = f"[{host}]" if ":" in host else host
        self.url = f"http://{address}:{listening.getsockname()[1]}/{suffix}"
        configuration = uvicorn.Config(
            application, log_level="warning", lifespan="off", timeout_graceful_shutdown=1
        )
        self._server = uvicorn.Server(configuration)
        self._serving = Thread(
            target=self._server.run,
            kwargs={"sockets": [listening]},
            name="dovetail-page",
            daemon=True,
        )
        self._serving.start()

    def stop(self) -> None:
        """Stop serving the page, and wait until it has ended.

        The query goes on. A second call does nothing.

        See Also
        --------
        serve : Start a page.

        Examples
        --------
        >>> from dovetail.typing import Page
        >>> Page.stop.__name__
        'stop'
        """
        self._stopping.set()
        self._server.should_exit = True
        self._serving.join()


@validated
def serve(
    query: AQuery, *, port: Port = 4050, host: Text = "127.0.0.1", token: Text | None = None
) -> Page:
    """Serve a live page of a query: its topology, its figures, and what it leaves out.

    The page needs nothing but a browser. It shows the last 500 micro-batches. It stays when the
    query has ended, until ``stop()`` is called or the process ends.

    Parameters
    ----------
    query : StreamingQuery
        A query that ``write_stream`` or ``dt.run`` has started.
    port : int, default 4050
        The port; 0 for any free one.
    host : str, default "127.0.0.1"
        The address to bind to. By default only this machine reaches the page.
    token : str, optional
        A secret that each request must have. Where others reach the page, a random one is made
        unless you give one. ``url`` has it.

    Returns
    -------
    Page
        The page, with its ``url``. Call ``stop()`` to end it.

    Raises
    ------
    PlanError
        If ``query`` is no query of dovetail's, or an argument does not fit.
    ConfigurationError
        If ``starlette``, ``uvicorn`` or ``grandalf`` is not installed
        (``pip install dovetail[page,pictures]``), or the port is in use.

    See Also
    --------
    progress : Return the figures as a value.
    metrics.prometheus : Serve the figures for Prometheus.

    Examples
    --------
    >>> import dovetail as dt
    >>> dt.serve("orders")
    Traceback (most recent call last):
        ...
    dovetail.errors.PlanError: serve: query= is 'orders'. Give what write_stream ...
    """
    results = query.parts.results
    session = session_of(results[0])
    shown = Shown(
        page_html(
            query.name or str(query.id),
            results,
            letters=query.parts.letters is not None,
            sinks=query.parts.sinks,
        ),
        LiveFigures(query),
        StateSearch(query.checkpoint, session),
        RowReasons(query.checkpoint, session, results),
        query.parts.letters,
    )
    return page_of(shown, host, port, token)


def serve_checkpoint(
    checkpoint: str,
    results: Sequence[Node],
    *,
    record: str | None,
    session: SparkSession | None,
    port: int,
    host: str,
    token: str | None,
) -> Page:
    """Serve the page of a query that runs elsewhere or has ended, from its checkpoint, at ``host``
    and ``port`` (0 for any free one). Return the page, whose server runs in a thread of its own.

    - ``results``: the results of its topology; empty if it is not known.
    - ``record``: a file that ``dt.metrics.record`` wrote of its figures; None shows none.
    - ``session``: the session that reads a checkpoint which is not on a local disk; None for the
      active one. It also evaluates the topology's expressions, so that the page can show why a
      result has a row. Without ``session`` or ``results`` it does not.
    - ``token``: the secret of each request, not empty. None for a random one if others than this
      machine reach the page, else for no secret.

    Raises ``CheckpointError`` if the folder is no checkpoint, and for results of another query.
    Raises ``ConfigurationError`` for a file that is no record, if a package is not installed, or if
    the address cannot be bound.
    """

    def latest_stores() -> CheckpointStores:
        """Read the checkpoint anew, and return its stores at its last committed micro-batch."""
        return with_latest_state("serve", checkpoint, lambda _, stored: stored, session)

    stored = latest_stores()
    if results:
        title = " and ".join(node.name for node in results)
        refuse_other(in_checkpoint_order(results), title, *stored.topology)
    stages = sorted(stored.stages.values(), key=lambda stage: stage.number)
    if record is not None:
        recorded_after("serve", record, 0, 1)
    name = PurePath(checkpoint).name
    shown = Shown(
        page_html(
            name, results, stages=[stage.title for stage in stages], figures=record is not None
        ),
        RecordedFigures(record, lambda: latest_stores().batch),
        StateSearch(checkpoint, session),
        RowReasons(checkpoint, session, results) if session and results else None,
    )
    return page_of(shown, host, port, token)


def page_of(shown: Shown, host: str, port: int, token: str | None) -> Page:
    """Start the server of the page ``shown`` at ``host`` and ``port``, in a thread of its own, and
    return the page. The port 0 takes any free one. Its ``url`` has the port and the token.

    ``token``: the secret of each request. None gives a random one if others than this machine reach
    ``host``, else none. Raises ``ConfigurationError`` if starlette or uvicorn is not installed, or
    if the address cannot be bound.
    """
    if token is None and not _is_loopback(host):
        token = secrets.token_urlsafe(16)
    with address_errors("serve", host, port):
        return Page(shown, host, port, token)


def _is_loopback(host: str) -> bool:
    """Return True if ``host`` is an address or name that only this machine reaches. Other names
    than ``localhost`` count as reached by others.
    """
    if host == "localhost":
        return True
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return False


def _address_family(host: str) -> socket.AddressFamily:
    """Return the family of the address ``host``: IPv6 if it has colons, else IPv4. Names count as
    IPv4.
    """
    return socket.AF_INET6 if ":" in host else socket.AF_INET
