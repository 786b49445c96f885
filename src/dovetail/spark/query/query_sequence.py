"""Two of Spark's queries that look like one: when the first has read all input, the second
follows.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any

from dovetail.platform.sessions import ended_by_itself

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery

    _Query = StreamingQuery
else:
    _Query = object


def followed(query: StreamingQuery, follow: Callable[[], StreamingQuery | None]) -> StreamingQuery:
    """Return a query that is ``query`` first, and at its regular end the one that ``follow``
    starts.

    ``follow`` may return None to start none. A query that fails, or is stopped, is not followed.
    """
    kind: Any = type(query)
    sequence: Any = object.__new__(type("Query", (_Followed, kind), {}))
    sequence.__dict__.update(query.__dict__)
    sequence.begin(query, follow)
    return sequence  # type: ignore[no-any-return]


class _Followed(_Query):
    """A query that is the first one, then the second one."""

    def begin(self, first: StreamingQuery, follow: Callable[[], StreamingQuery | None]) -> None:
        """Wait for the first one's end, in a thread of its own."""
        self._first, self._follow = first, follow
        self._over, self._starting, self._stopped = Event(), Lock(), False
        self._failure: BaseException | None = None
        Thread(target=self._run, name="dovetail-query", daemon=True).start()

    def _run(self) -> None:
        """Wait for the first query, start the second, and wait for it; keep any failure."""
        try:
            self._first.awaitTermination()
            last = None
            with self._starting:
                if not self._stopped and ended_by_itself(self._first):
                    last = self._follow()
                if last is not None:
                    self.__dict__.update(last.__dict__)
            if last is not None:
                last.awaitTermination()
        except BaseException as error:
            self._failure = error
        finally:
            self._over.set()

    @property
    def isActive(self) -> bool:  # noqa: N802
        """The state as Spark has it: True until the last query has ended."""
        return not self._over.is_set()

    def awaitTermination(self, timeout: int | None = None) -> bool | None:  # noqa: N802
        """Wait for the end as Spark does; raise the failure of either query."""
        if timeout is not None and timeout <= 0:
            return super().awaitTermination(timeout)  # raises Spark's error for it
        over = self._over.wait(timeout)
        if self._failure is not None:
            raise self._failure
        return None if timeout is None else over

    def processAllAvailable(self) -> None:  # noqa: N802
        """Wait for the end of both queries."""
        self.awaitTermination()

    def stop(self) -> None:
        """Stop the query that runs; the second one does not start any more."""
        with self._starting:
            self._stopped = True
            super().stop()
        self._over.wait()

    def exception(self) -> Any:
        """Return the failure of either query, None if there is none."""
        return self._failure

    @property
    def recentProgress(self) -> list[StreamingQueryProgress]:  # noqa: N802
        """The progress of both queries, in order."""
        latest = super().recentProgress
        return latest if self.runId == self._first.runId else [*self._first.recentProgress, *latest]

    @property
    def lastProgress(self) -> StreamingQueryProgress | None:  # noqa: N802
        """The last progress of either query."""
        return super().lastProgress or self._first.lastProgress
