"""The query that users get: Spark's own, which another may follow and whose failures say why.

To users' code it is one of Spark's queries, with each of their attributes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any, TypeAlias

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery as ClassicQuery

from dovetail.base.error_text import first_line
from dovetail.base.text_cells import escaped, printable
from dovetail.pictures.formats import picture_of
from dovetail.platform.jvm import has_read_all, newest_reports
from dovetail.platform.progress_bar import progress_bar
from dovetail.provenance.explanation import RowExplanation
from dovetail.spark.checkpoints.row_explanations import explain_stored_row as explained_row
from dovetail.spark.execution.frames import session_of
from dovetail.spark.query.failures import with_cause

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from dovetail.spark.metrics.query_parts import QueryParts

    _SparkQuery = StreamingQuery
else:
    _SparkQuery = object

StartNext: TypeAlias = "Callable[[], StreamingQuery | None]"
"""A function that starts the next query, or returns None if there is nothing to do."""


class TopologyQuery(_SparkQuery):
    """The query of a topology: one of Spark's queries, or several of them in turn that look like
    one.

    Call ``of`` to make one. Attributes and methods that are not here are those of Spark's class,
    for the query that was started last.
    """

    parts: QueryParts
    """The inputs and stages that the progress has figures for."""
    checkpoint: str
    """The checkpoint."""
    _queries: tuple[StreamingQuery, ...]
    """Spark's queries that have started, in order."""
    _thread: Thread | None
    """The thread that waits for each query and starts the next; None if none follows."""
    _last_begun: Event
    """Set once the last query has started, or once none will."""
    _closes: bool
    """True if the last query only closes the end of the input."""
    _loads: bool
    """True if the first query only loads tables."""
    _failure: BaseException | None = None
    """The error with which ``_thread`` has ended."""
    _stopped = False
    """True once the user has stopped the query, so that no other starts."""
    _rest: StartNext | None = None
    """A function that starts a query of the micro-batch that was stopped within, if there is
    one."""

    @classmethod
    def of(
        cls,
        query: StreamingQuery,
        title: str,
        parts: QueryParts,
        checkpoint: str,
        follow: Sequence[StartNext] = (),
        *,
        closes: bool = False,
        loads: bool = False,
        rest: StartNext | None = None,
    ) -> StreamingQuery:
        """Return ``query``, which has started, as a query whose failures begin with their cause and
        which further queries may follow.

        ``title``: the names of the results, for failures that do not name an operator. ``parts``:
        the inputs and stages that its progress has figures for. ``checkpoint``: its folder.

        ``follow``: functions, called in order at the regular end of the query before, in a thread
        of their own. Each starts another query, or returns None to end here. A query that fails or
        is stopped is not followed. ``closes``: True if the last query only closes the end of the
        input. ``loads``: True if ``query`` only loads tables, which a progress bar shows.

        ``rest``: starts a query of the micro-batch that a stopped query has not completed, and
        returns None without one.
        """
        spark_class: Any = type(query)
        class_ = _class_for(spark_class)
        topology_query = class_(query, title, parts, checkpoint, follow, closes=closes, loads=loads)
        topology_query._rest = rest  # noqa: SLF001 -- its own class
        return topology_query  # type: ignore[no-any-return]

    def __init__(
        self,
        query: StreamingQuery,
        title: str,
        parts: QueryParts,
        checkpoint: str,
        follow: Sequence[StartNext],
        *,
        closes: bool,
        loads: bool,
    ) -> None:
        # Spark's constructor takes other arguments in each kind of session. What it sets is copied.
        """Take over the state of ``query``, which has started. If ``follow`` has functions, start a
        thread that calls them in order. Each starts the next query at the end of the one before.

        ``title``: the names of the results, for errors. ``parts``: the inputs and stages that the
        progress has figures for. ``checkpoint``: its folder. ``closes``: True if the last query
        only closes the end of the input. ``loads``: True if ``query`` only loads tables.
        """
        self._title, self._queries, self._thread, self._starting = title, (), None, Lock()
        self.parts, self.checkpoint = parts, checkpoint
        self._closes, self._loads, self._last_begun = closes, loads, Event()
        self._adopt(query)
        if follow:
            self._thread = Thread(
                target=self._start_followers, args=(follow,), name="dovetail-query", daemon=True
            )
            self._thread.start()

    def _adopt(self, query: StreamingQuery) -> None:
        """Make ``query``, which has started, the one whose state Spark's methods of this object
        return. Add it to ``_queries``.
        """
        vars(self).update(vars(query), _queries=(*self._queries, query))

    def _start_followers(self, follow: Sequence[StartNext]) -> None:
        """Wait for each query's end, and start the next by the next function in ``follow`` if the
        query has read all its input. Then wait for the end of the last one. Stop early if the user
        has stopped the query, or if a function returns None.

        Set ``_last_begun`` once no further query will start. Put any error in ``_failure`` instead
        of raising it.
        """
        try:
            for start in follow:
                with self._loading_bar():
                    self._await_last()
                with self._starting:
                    follower = None
                    if not self._stopped and has_read_all(self._queries[-1]):
                        follower = start()
                    if follower is None:
                        return
                    self._adopt(follower)
            self._last_begun.set()
            self._await_last()
        except BaseException as error:
            self._failure = error
        finally:
            self._last_begun.set()

    @contextmanager
    def _loading_bar(self) -> Iterator[None]:
        """Return a context that shows a progress bar while the first query loads tables. It shows
        nothing if the first query loads none, or if another one has started.
        """
        if not self._loads or len(self._queries) > 1:
            yield
            return
        session = session_of(self.parts.results[0])
        with progress_bar(session, f"{self._title}: tables are loaded"):
            yield

    def _await_last(self, timeout: int | None = None) -> bool | None:
        """Wait for the end of the query started last. With ``timeout``, wait so many seconds at
        most, and return True if it has ended, else False. Without it, return None. Raises its
        failure, a ``StreamingQueryException``, with the cause in front.
        """
        with self._raise_with_cause():
            return super().awaitTermination(timeout)

    @contextmanager
    def _raise_with_cause(self) -> Iterator[None]:
        """Return a context that raises a ``StreamingQueryException`` of its block again, with the
        cause as the first line. Other errors pass.
        """
        try:
            yield
        except StreamingQueryException as error:
            raise self._with_cause(error)  # noqa: B904 -- the same error

    def _with_cause(self, error: StreamingQueryException) -> StreamingQueryException:
        """Return the same error, changed: its cause is in front of its message
        (``failures.with_cause``).
        """
        sinks = [title for titles in self.parts.sinks.values() for title in titles]
        return with_cause(error, self._title, sinks)

    def explain_row(
        self, key: Any, result: str | None = None, *, members: int = 20
    ) -> RowExplanation:
        """Explain a row of the query's result: the rows of inputs that make it, or why there is no
        such row. Equivalent to ``dt.checkpoints.explain_row`` with the query's checkpoint and
        topology. The state after the last committed micro-batch is read.

        ``key``: a value or, of several columns, a tuple or a mapping. ``result``: the name of a
        result, or of a join, aggregate or view within; needed with several results. ``members``:
        the most rows of a group that are named; the reason has the count of the others.

        Raises ``PlanError`` for a key of other columns or types, and for a null unless keys of the
        result may have nulls. Raises ``ConfigurationError`` for an unknown ``result``.
        """
        session = session_of(self.parts.results[0])
        arguments = key, result, members
        return explained_row(
            "explain_row", session, self.checkpoint, self.parts.results, *arguments
        )

    @property
    def isActive(self) -> bool:  # noqa: N802
        """True until the last of the queries has ended. Between two of them it stays True."""
        return super().isActive if self._thread is None else self._thread.is_alive()

    def awaitTermination(self, timeout: int | None = None) -> bool | None:  # noqa: N802
        """Wait for the end of all queries. Return True if they ended within ``timeout`` seconds,
        False if not, None without a ``timeout``.

        Raises the failure of any of them, and the error with which a following query could not be
        started. A ``timeout`` must be above 0, else Spark's error is raised.
        """
        if self._thread is None or (timeout is not None and timeout <= 0):
            return self._await_last(timeout)  # raises Spark's error for such a timeout
        self._thread.join(timeout)
        if self._failure is not None:
            raise self._failure
        return None if timeout is None else not self._thread.is_alive()

    def processAllAvailable(self) -> None:  # noqa: N802
        """Wait until the last query has processed all available data, also for its start. If that
        query closes the end of the input, wait for its end. Raises the failure of any of the
        queries, and the error with which a following query could not be started.
        """
        if self._closes:
            self.awaitTermination()
            return
        if self._thread is not None:
            self._last_begun.wait()
            if self._failure is not None:
                raise self._failure
        with self._raise_with_cause():
            super().processAllAvailable()

    def stop(self) -> None:
        """Stop the query that runs, and start no other one. Wait for its end."""
        if self._thread is None:
            super().stop()
            return
        with self._starting:
            self._stopped = True
            super().stop()
        self._thread.join()

    def stop_after_batch(self) -> None:
        """Stop the query, and complete the micro-batch that it was stopped within, by a query of
        its own. Wait for its end. Do nothing more if all are complete, or without ``rest``
        (argument of ``of``). If the query has ended before, even by a failure, its planned
        micro-batch is completed as well.

        Raises the failure of that micro-batch, and ``ConfigurationError`` if its query does not
        start. With ``rest``, raises ``ConfigurationError`` on Spark Connect once the query has
        stopped.
        """
        self.stop()
        rest = None if self._rest is None else self._rest()
        if rest is not None:
            with self._raise_with_cause():
                rest.awaitTermination()

    def exception(self) -> Any:
        """Return the failure of any of the started queries, with its cause in front. It may be the
        error with which a following query could not be started. Return None if there is none so
        far.
        """
        if self._thread is not None:
            return self._failure
        error = super().exception()
        return None if error is None else self._with_cause(error)

    def __repr__(self) -> str:
        state, lines = self._state_and_lines()
        return "\n  ".join([printable(f"Query[{self._title}; {state}]"), *lines])

    def _repr_html_(self) -> str:
        state, lines = self._state_and_lines()
        title = f"<strong>{escaped(f'Query[{self._title}; {state}]')}</strong>"
        parts = [title, *(f"<div>{escaped(line)}</div>" for line in lines)]
        if self.parts.results:
            parts.append(picture_of(*self.parts.results, sinks=self.parts.sinks))
        return "\n".join(parts)

    def _state_and_lines(self) -> tuple[str, list[str]]:
        """Return the state in words and lines on the query. The state is ``running``, ``ended`` or
        ``failed``. The lines are the query's id, and its failure or last micro-batch.

        If Spark does not answer, the state is ``unknown, its session is gone``, without lines.
        """
        try:
            failure, progress = self.exception(), self.lastProgress
            state = "running" if self.isActive else "ended" if failure is None else "failed"
            lines = [f"id {self.id}"]
            if failure is not None:
                lines.append(printable(first_line(failure)))
            elif progress is not None:
                lines.append(f"micro-batch {progress.batchId}: {progress.numInputRows:,} rows read")
        except (Py4JError, PySparkException, OSError):
            return "unknown, its session is gone", []
        return state, lines

    @property
    def recentProgress(self) -> list[StreamingQueryProgress]:  # noqa: N802
        """The latest progress reports of all started queries, in the order in which they were
        started.
        """
        return [progress for query in self._queries for progress in query.recentProgress]

    def progress_since(self, timestamp: str) -> list[StreamingQueryProgress]:
        """Return the progress reports of all started queries after the report with this
        ``timestamp`` (Spark's text), the oldest first. Reports that Spark has dropped are missing.
        If none has that timestamp, as for an empty text, return all that Spark still has. Of
        reports with an equal timestamp, the newest counts.
        """
        return [*self._newest_until(timestamp)][::-1]

    def _newest_until(self, timestamp: str) -> Iterator[StreamingQueryProgress]:
        """Yield the progress reports of all started queries, the newest first, up to the one with
        this ``timestamp``, exclusive. Without such a report, yield all. In a classic session, older
        reports stay in the JVM.
        """
        for query in reversed(self._queries):
            if isinstance(query, ClassicQuery):
                for report in newest_reports(query):
                    if report.timestamp() == timestamp:
                        return
                    yield StreamingQueryProgress.fromJson(json.loads(report.json()))
                continue
            for progress in reversed(query.recentProgress):
                if progress.timestamp == timestamp:
                    return
                yield progress

    @property
    def lastProgress(self) -> StreamingQueryProgress | None:  # noqa: N802
        """The last progress report of the query started last; of an earlier one if it has none yet,
        None before the first.
        """
        latest = (query.lastProgress for query in reversed(self._queries))
        return next((progress for progress in latest if progress is not None), None)


@cache
def _class_for(spark_class: type) -> Any:
    """Return a subclass of ``TopologyQuery`` and of ``spark_class``, the class of queries in one
    kind of session. Each kind has one such class, which is cached.

    So ``isinstance(query, StreamingQuery)`` holds with the class that a user of the session knows.
    That of Spark Connect needs packages that others lack, so it is not imported here.
    """
    return type("TopologyQuery", (TopologyQuery, spark_class), {})
