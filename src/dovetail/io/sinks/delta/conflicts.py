"""Commits that conflict with those of other writers of a Delta table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from dovetail.errors import TargetError
from dovetail.platform.spark_errors import reason

P = ParamSpec("P")
_CONFLICTS = ("[DELTA_CONCURRENT", "[DELTA_METADATA_CHANGED", "[DELTA_PROTOCOL_CHANGED")
"""The errors of a commit that conflicts with another writer's."""


@contextmanager
def conflicts_named(title: str) -> Iterator[None]:
    """Raise a conflict with another writer in the block as a ``TargetError``; other errors stay as
    they are. Nothing is repeated.
    """
    try:
        yield
    except (Py4JError, PySparkException) as error:
        if not is_conflict(error):
            raise
        raise conflict(title, reason(error)) from error


def conflict(title: str, problem: str) -> TargetError:
    """Return, not raise, the error of a commit that has conflicted twice. ``problem``: what Delta
    says.
    """
    return TargetError(
        title,
        "another writer changes the table at the same time, also when the micro-batch is "
        f"tried again: {problem}",
        "Start the query again, which loses and doubles nothing, and let other writers of the "
        "table wait, or leave it to this query",
    )


def twice(commit: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
    """Make a commit. If another writer was faster, make it once more, and raise if it fails again.
    Other errors are raised at once. All are Spark's own errors, for ``conflicts_named``.

    ``commit`` must read the table anew each time that it is called.
    """
    try:
        commit(*args, **kwargs)
    except (Py4JError, PySparkException) as error:
        if not is_conflict(error):
            raise
        commit(*args, **kwargs)


def is_conflict(error: BaseException) -> bool:
    """Return True if an error of Spark means that another writer's commit was faster. It goes by
    the error's text.
    """
    return any(sign in str(error) for sign in _CONFLICTS)
