"""The page's answers to requests.

New figures reach the page as server-sent events. Figures and rows are read in threads of their own,
so the page never slows or stops the query.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from threading import Event
from typing import Any

import anyio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route

from dovetail.page.content import Shown
from dovetail.page.figures import Figures
from dovetail.page.search import error_in_words, latest_letters

_EVERY_S = 1.0
_ANSWERS_MAX = 2
"""The number of searches at the same time; others wait."""


def application_of(shown: Shown, stopping: Event, token: str | None) -> Starlette:
    """Return the web application that answers requests for the page ``shown``: its HTML at ``/``,
    its figures at ``/events``, and its searches at ``/tables``, ``/rows``, ``/why`` and
    ``/letters``. All but the first two answer with JSON.

    ``shown``: the HTML text, the figures, the searches and the folder of dead letters that are
    shown. ``stopping``: once it is set, streams of events end. ``token``: the secret that each
    request must have as its parameter ``token``, else the answer is 403; None allows all. At most
    two searches run at a time, and further ones wait for them. Nothing is served yet.
    """
    searching = anyio.CapacityLimiter(_ANSWERS_MAX)

    async def page(_request: Request) -> Response:
        """Answer a request for ``/`` with the page's HTML."""
        return HTMLResponse(shown.html)

    async def events(request: Request) -> Response:
        """Answer with the stream of the query's figures and states, as server-sent events."""
        headers = {"Cache-Control": "no-store"}
        lines = _events(shown.figures, request, stopping)
        return StreamingResponse(lines, media_type="text/event-stream", headers=headers)

    async def answer(read: Callable[..., dict[str, Any]], *arguments: Any) -> Response:
        """Answer with the result of ``read`` for the arguments, as JSON, read in a thread. An
        exception becomes the JSON field ``error``, a line of text, and is not raised. The status is
        200 in both cases.
        """
        try:
            content = await anyio.to_thread.run_sync(read, *arguments, limiter=searching)
        except Exception as error:
            # People who look at the page cannot read a log: each failure is said there.
            content = {"error": error_in_words(error)}
        return JSONResponse(content, headers={"Cache-Control": "no-store"})

    async def tables(_request: Request) -> Response:
        """Answer with the tables that can be searched, as JSON: under ``tables`` a list with
        ``name``, ``key`` (names of columns) and ``holds`` (content in words) of each. An error
        becomes the JSON field ``error``.
        """
        return await answer(shown.search.tables)

    async def rows(request: Request) -> Response:
        """Answer with the rows of one key, as JSON: ``header``, ``rows``, ``count`` and ``batch``
        (``StateSearch.rows``). The request's parameter ``table`` is a table's name; ``key`` comes
        once for each key column, in order, each a text. A missing or unknown table, and a key of
        another length, give the JSON field ``error``.
        """
        asked = request.query_params
        return await answer(shown.search.rows, asked.get("table", ""), asked.getlist("key"))

    async def why(request: Request) -> Response:
        """Answer with the explanation of one row, as JSON: the tree of ``RowReasons.why``. Its
        ``presence`` tells if the key has a row. The request's parameter ``result`` is a result's
        name; ``key`` comes once for each key column, in order, each a text. If the topology or the
        result is not known, the answer has the JSON field ``error`` instead.
        """
        if shown.reasons is None:
            return JSONResponse({"error": "A reason needs the topology."})
        asked = request.query_params
        return await answer(shown.reasons.why, asked.get("result", ""), asked.getlist("key"))

    async def letters(_request: Request) -> Response:
        """Answer with the latest dead letters, at most 20, as JSON: ``header`` and ``rows``, each a
        list of texts. Both are empty if the query has no folder of dead letters. An error becomes
        the JSON field ``error``.
        """
        return await answer(latest_letters, shown.letters)

    routes = {
        "/": page,
        "/events": events,
        "/tables": tables,
        "/rows": rows,
        "/why": why,
        "/letters": letters,
    }
    return Starlette(
        routes=[
            Route(path, _with_token_check(endpoint, token)) for path, endpoint in routes.items()
        ]
    )


def _with_token_check(
    endpoint: Callable[[Request], Awaitable[Response]], token: str | None
) -> Callable[[Request], Awaitable[Response]]:
    """Return an endpoint that answers as ``endpoint`` if a request has ``token`` as its query
    parameter ``token``, else with status 403. If ``token`` is None, all requests are answered.
    """

    async def answer_with_token(request: Request) -> Response:
        """Answer as ``endpoint`` if the request has the right token, else with status 403. The time
        of the comparison tells nothing about the token.
        """
        token_given = request.query_params.get("token", "")
        if token is None or secrets.compare_digest(token_given.encode(), token.encode()):
            return await endpoint(request)
        return PlainTextResponse("The token is missing or wrong.", status_code=403)

    return answer_with_token


async def _events(figures: Figures, request: Request, stopping: Event) -> AsyncIterator[str]:
    """Yield server-sent events as texts: the figures of all micro-batches that ``figures`` has and
    the query's state, then new figures and changes of the state, looked for once a second.

    A micro-batch is an event ``batch``, a state an event ``state``, each with JSON as data. Figures
    are read in a thread; an error of theirs ends the events. They also end when ``stopping`` is set
    or the browser has gone.
    """
    last_number, state = 0, ""
    while not stopping.is_set() and not await request.is_disconnected():
        last_number, batches = await anyio.to_thread.run_sync(figures.batches_after, last_number)
        for text in batches:
            yield f"event: batch\ndata: {text}\n\n"
        latest = await anyio.to_thread.run_sync(figures.state)
        if latest != state:
            state = latest
            yield f"event: state\ndata: {state}\n\n"
        await anyio.sleep(_EVERY_S)
