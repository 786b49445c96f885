"""The query that users get, on queries that only pretend to run."""

# ruff: noqa: N802 -- the names are Spark's

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Event
from threading import enumerate as threads
from time import monotonic, sleep
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import PySparkValueError, StreamingQueryException
from pyspark.sql.connect.streaming.query import StreamingQuery as RemoteQuery
from pyspark.sql.streaming.query import StreamingQuery

from dovetail.spark.metrics.query_parts import QueryParts
from dovetail.spark.query.topology_query import TopologyQuery

CAUSE = "orders: a micro-batch fails with OSError: no room"
FAILURE = (
    "[STREAM_FAILED] it failed:\nTraceback (most recent call last):\n  here\nOSError: no room\n"
)


class Running:
    """What Spark has of a query in its JVM, or in these tests: here it ends when it is told to."""

    def __init__(self, name: str) -> None:
        self._name, self._end, self._failure, self._by_itself = name, Event(), "", False

    def finish(self, failure: str = "") -> None:
        self._failure, self._by_itself = failure, True
        self._end.set()

    def stop(self) -> None:
        self._end.set()

    def name(self) -> str:
        return self._name

    def isActive(self) -> bool:
        return not self._end.is_set()

    def awaitTermination(self, milliseconds: int | None = None) -> bool:
        over = self._end.wait(None if milliseconds is None else milliseconds / 1000)
        if self._failure:
            raise StreamingQueryException(self._failure)
        return over

    def processAllAvailable(self) -> None:
        self.awaitTermination()

    def lastProgress(self) -> Any:
        return None

    def recentProgress(self) -> list[Any]:
        return []

    def streamingQuery(self) -> Any:
        return SimpleNamespace(noNewData=lambda: self._by_itself and not self._failure)


def of(
    first: Running, *follow: Callable[[], StreamingQuery | None], closes: bool = True
) -> StreamingQuery:
    return TopologyQuery.of(
        StreamingQuery(first),
        "orders",
        QueryParts(),
        "checkpoint",
        follow,
        closes=closes and bool(follow),
    )


def waiting() -> list[str]:
    return [thread.name for thread in threads() if thread.name == "dovetail-query"]


def wait_for_name(name: str, query: StreamingQuery) -> None:
    until = monotonic() + 60
    while query.name != name:
        assert monotonic() < until
        sleep(0.01)


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    assert waiting() == []


def test_it_is_a_query_of_its_kind_of_session() -> None:
    query = of(Running("a"))
    assert isinstance(query, TopologyQuery)
    assert isinstance(query, StreamingQuery)
    remote_query = RemoteQuery(None, "id", "run", "b")  # type: ignore[arg-type]
    remote = TopologyQuery.of(remote_query, "orders", QueryParts(), "checkpoint")
    assert isinstance(remote, RemoteQuery)
    assert (remote.id, remote.runId, remote.name) == ("id", "run", "b")
    assert type(of(Running("c"))) is type(query)


def test_a_query_without_a_follower_has_no_thread() -> None:
    running = Running("a")
    query = of(running)
    assert waiting() == []
    assert query.isActive
    assert query.awaitTermination(0.01) is False  # type: ignore[arg-type]
    query.stop()
    assert not query.isActive
    assert query.awaitTermination() is True  # what Spark returns
    assert query.recentProgress == []
    assert query.lastProgress is None


def test_a_failure_begins_with_its_cause() -> None:
    running = Running("a")
    running.finish(FAILURE)
    query = of(running)
    for wait in (query.awaitTermination, query.processAllAvailable):
        with pytest.raises(StreamingQueryException) as raised:
            wait()
        assert str(raised.value).startswith(f"{CAUSE}\n\n[STREAM_FAILED]")


def test_another_query_follows_at_the_regular_end() -> None:
    first, second = Running("a"), Running("b")
    query = of(first, lambda: StreamingQuery(second))
    assert waiting() == ["dovetail-query"]
    assert query.name == "a"
    first.finish()
    wait_for_name("b", query)
    assert query.awaitTermination(0.01) is False  # type: ignore[arg-type]
    assert query.isActive
    second.finish()
    assert query.awaitTermination(60) is True
    assert query.awaitTermination() is None
    query.processAllAvailable()
    assert not query.isActive
    assert query.exception() is None


def test_several_queries_follow_in_turn() -> None:
    """To process all that is there is to wait for the last of them, which need not end."""
    queries = [Running(name) for name in "abc"]
    others = [StreamingQuery(running) for running in queries[1:]]
    query = of(queries[0], lambda: others[0], lambda: others[1], closes=False)
    for running, name in zip(queries, "bc", strict=False):
        running.finish()
        wait_for_name(name, query)
    assert query.isActive
    queries[2].finish()
    query.processAllAvailable()
    assert query.awaitTermination(60) is True


def test_a_failure_ends_the_wait_for_what_follows() -> None:
    first = Running("a")
    query = of(first, lambda: pytest.fail("it follows"), closes=False)
    first.finish(FAILURE)
    with pytest.raises(StreamingQueryException):
        query.processAllAvailable()


def test_nothing_follows_if_the_follower_says_so() -> None:
    first = Running("a")
    query = of(first, lambda: None)
    first.finish()
    assert query.awaitTermination(60) is True
    assert query.name == "a"


@pytest.mark.parametrize("by", ["query", "spark"])
def test_a_query_that_is_stopped_is_not_followed(by: str) -> None:
    first = Running("a")
    query = of(first, lambda: pytest.fail("it follows"))
    (query if by == "query" else first).stop()
    assert query.awaitTermination(60) is True
    assert query.exception() is None


def test_stopping_stops_the_follower() -> None:
    first, second = Running("a"), Running("b")
    query = of(first, lambda: StreamingQuery(second))
    first.finish()
    wait_for_name("b", query)
    query.stop()
    assert not second.isActive()
    assert not query.isActive


@pytest.mark.parametrize("failing", [0, 1])
def test_either_query_may_fail(failing: int) -> None:
    both = Running("a"), Running("b")
    query = of(both[0], lambda: StreamingQuery(both[1]))
    for place, running in enumerate(both):
        running.finish(FAILURE if place == failing else "")
    for _ in range(2):
        with pytest.raises(StreamingQueryException) as raised:
            query.awaitTermination(60)
        assert str(raised.value).count(CAUSE) == 1
    assert query.exception() is raised.value


def test_the_start_of_the_follower_may_fail() -> None:
    first, error = Running("a"), OSError("no room")

    def follow() -> StreamingQuery:
        raise error

    query = of(first, follow)
    first.finish()
    with pytest.raises(OSError, match="no room"):
        query.awaitTermination(60)
    assert query.exception() is error


def test_a_wait_of_no_time_is_refused() -> None:
    first = Running("a")
    for query in (of(first), of(first, lambda: None)):
        with pytest.raises(PySparkValueError):
            query.awaitTermination(0)
    first.stop()
    query.awaitTermination(60)
