"""Server of the live page: the topology's picture, and the figures of each micro-batch.

The page is one file without links to elsewhere. New figures reach it as server-sent events. The
server reads the query's progress from threads of its own, so it never slows or stops the query.
"""

from __future__ import annotations

import json
import secrets
import socket
from collections import deque
from collections.abc import AsyncIterator
from contextlib import suppress
from html import escape
from importlib.resources import files
from ipaddress import ip_address
from threading import Event, Lock, Thread
from typing import Any

from dovetail.base.validation import Text, validated
from dovetail.physical.topology_graph import topology_graph
from dovetail.pictures.svg import svg
from dovetail.spark.metrics.history import as_json
from dovetail.spark.metrics.progress import AQuery, ProgressFollower
from dovetail.spark.metrics.serving import Port, binding, optional
from dovetail.spark.query.topology_query import TopologyQuery

_EXTRAS = "page,pictures"
_BATCHES_MAX = 500
"""The number of micro-batches that the page shows at most."""
_EVERY_S = 1.0


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

    def __init__(self, query: TopologyQuery, host: str, port: int, token: str | None) -> None:
        optional("serve", "starlette", _EXTRAS)
        uvicorn = optional("serve", "uvicorn", _EXTRAS)
        self._figures, self._stopping = _Batches(query), Event()
        application = _application(query, self._figures, self._stopping, token)
        listening = socket.create_server((host, port), family=_family(host))
        suffix = "" if token is None else f"?token={token}"
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{listening.getsockname()[1]}/{suffix}"
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
        """Stop to serve the page. The query goes on.

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


class _Batches:
    """The figures of a query's micro-batches, shared by all who look at the page."""

    def __init__(self, query: TopologyQuery) -> None:
        self._query, self._lock, self._follower = query, Lock(), ProgressFollower(query)
        self._batches: deque[tuple[int, str]] = deque(maxlen=_BATCHES_MAX)
        self._count = 0

    def after(self, number: int) -> tuple[int, list[str]]:
        """Return the number of the latest micro-batch, and as JSON those after ``number``, a number
        that a former call has returned; 0 for all.
        """
        with self._lock:
            for progress in self._follower.new():
                self._count += 1
                self._batches.append((self._count, json.dumps(as_json(progress))))
            return self._count, [text for at, text in self._batches if at > number]

    def state(self) -> str:
        """Return in JSON whether the query runs, and the first line of its failure."""
        failure = self._query.exception()
        first = None if failure is None else str(failure).strip().splitlines()[0]
        return json.dumps({"active": bool(self._query.isActive), "failure": first})


@validated
def serve(
    query: AQuery, *, port: Port = 4050, host: Text = "127.0.0.1", token: Text | None = None
) -> Page:
    """Serve a live page of a query: its topology, its figures, and what it leaves out.

    The page needs nothing but a browser. It shows the last 500 micro-batches.

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
    if token is None and not _is_loopback(host):
        token = secrets.token_urlsafe(16)
    with binding("serve", host, port):
        return Page(query, host, port, token)


def _is_loopback(host: str) -> bool:
    """Say whether only this machine reaches an address."""
    if host == "localhost":
        return True
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return False


def _family(host: str) -> socket.AddressFamily:
    """Return the kind of an address: IPv6 if it has colons."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _application(
    query: TopologyQuery, figures: _Batches, stopping: Event, token: str | None
) -> Any:
    """Return the application with the page and its events. Requests without the token are refused
    if there is one.
    """
    import anyio
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
    from starlette.routing import Route

    content = _content(query)

    def refused(request: Request) -> Response | None:
        given = request.query_params.get("token", "")
        if token is None or secrets.compare_digest(given.encode(), token.encode()):
            return None
        return PlainTextResponse("The token is missing or wrong.", status_code=403)

    async def page(request: Request) -> Response:
        return refused(request) or HTMLResponse(content)

    async def changes(request: Request) -> AsyncIterator[str]:
        number, state = 0, ""
        while not stopping.is_set() and not await request.is_disconnected():
            number, batches = await anyio.to_thread.run_sync(figures.after, number)
            for text in batches:
                yield f"event: batch\ndata: {text}\n\n"
            latest = await anyio.to_thread.run_sync(figures.state)
            if latest != state:
                state = latest
                yield f"event: state\ndata: {state}\n\n"
            await anyio.sleep(_EVERY_S)

    async def events(request: Request) -> Response:
        headers = {"Cache-Control": "no-store"}
        return refused(request) or StreamingResponse(
            changes(request), media_type="text/event-stream", headers=headers
        )

    return Starlette(routes=[Route("/", page), Route("/events", events)])


def _content(query: TopologyQuery) -> str:
    """Return the page's HTML, with the query's name and the picture of its topology."""
    template = files("dovetail.page").joinpath("page.html").read_text("utf-8")
    name = escape(query.name or str(query.id))
    picture = svg(topology_graph(*query.parts.results))
    return template.replace("{{name}}", name).replace("{{picture}}", picture)
