"""Queries whose failures begin with the cause. Spark's own message begins with a trace."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

if TYPE_CHECKING:
    _Query = StreamingQuery
else:
    _Query = object

_OWN = re.compile(r"^dovetail\.errors\.\w+: (.*(?:\n  \S.*)*)", re.MULTILINE)
_PYTHON = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n|\n)*(\S.*)")
_CONDITION = re.compile(r"\[(?!STREAM_FAILED|PYTHON_EXCEPTION)[A-Z_.0-9]+\] .*")


def explaining(query: StreamingQuery, title: str) -> StreamingQuery:
    """Return the query with better failures, for the node called ``title``.

    Its exceptions begin with the library's error, or else with the title and the first cause.
    Spark's message follows.
    """
    kind: Any = type(query)
    wrapped: Any = object.__new__(_kind_of(kind))
    wrapped.__dict__.update(query.__dict__, _title=title)
    return wrapped  # type: ignore[no-any-return]


@cache
def _kind_of(kind: type) -> type:
    """Return a subclass of a session kind's query class; each kind of session has its own."""
    return type("Query", (_Explaining, kind), {})


class _Explaining(_Query):
    """A query whose exceptions are explained."""

    _title: str

    def awaitTermination(self, timeout: int | None = None) -> bool | None:  # noqa: N802
        """Wait for the end as Spark does."""
        with self._explained():
            return super().awaitTermination(timeout)

    def processAllAvailable(self) -> None:  # noqa: N802
        """Wait for the available data as Spark does."""
        with self._explained():
            super().processAllAvailable()

    def exception(self) -> StreamingQueryException | None:
        """Return the failure as Spark does; None if there is none."""
        error = super().exception()
        return None if error is None else explained(error, self._title)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Explain the query's failure that is raised in the block."""
        try:
            yield
        except StreamingQueryException as error:
            raise explained(error, self._title)  # noqa: B904 -- the same error


def explained(error: StreamingQueryException, title: str) -> StreamingQueryException:
    """Return the same error with the cause in front of its message."""
    errors = _OWN.findall(str(error))
    first = errors[-1] if errors else f"{title}: a micro-batch fails with {_cause(error)}"
    captured: Any = error
    # A classic session's error shows its description, not its message.
    part = "_desc" if hasattr(error, "_desc") else "_message"
    setattr(captured, part, f"{first}\n\n{getattr(captured, part)}")
    return error


def _cause(error: BaseException | None) -> str:
    """Return the cause in one line.

    It is the exception that Python raised, else the first cause with a condition of Spark's, else
    the innermost cause.
    """
    python = _PYTHON.findall(str(error))
    lines = []
    while error is not None:
        lines.append(str(error).strip().partition("\n")[0])
        error = getattr(error, "_cause", None)
    conditions = [match[0] for line in lines if (match := _CONDITION.search(line))]
    return str([*python[-1:], *conditions, lines[-1]][0])
