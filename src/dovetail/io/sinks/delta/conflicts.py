"""Commits that conflict with those of other writers of a Delta table, or that the table refuses."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeAlias

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Row

from dovetail.errors import TargetError
from dovetail.platform.spark_errors import reason

P = ParamSpec("P")
"""The parameters of a function that makes a commit."""
ReadDetails: TypeAlias = Callable[[], Row]
"""A function that returns Delta's details of a query's table. It raises ``TargetError`` if another
query has become the owner.
"""
_RULE_ERRORS = re.compile(
    r"\[DELTA_(?:VIOLATE_CONSTRAINT\w*|NOT_NULL_CONSTRAINT_VIOLATED|EXCEED_CHAR_VARCHAR_LIMIT)\] "
    r"(.*(?:\n - .*)*)"
)
"""The errors of rows that a rule of the table forbids. Spark may put another error before them."""
_CONFLICT_ERRORS = ("[DELTA_CONCURRENT", "[DELTA_METADATA_CHANGED", "[DELTA_PROTOCOL_CHANGED")
"""The errors of a commit that conflicts with another writer's."""


@contextmanager
def translate_conflicts(title: str) -> Iterator[None]:
    """Raise a ``TargetError`` in place of two of Spark's errors in the block: a conflict with
    another writer, and a row that a rule of the table forbids. Other errors pass. The block is not
    repeated. ``title``: the sink's name in errors.
    """
    try:
        yield
    except (Py4JError, PySparkException) as error:
        if is_conflict(error):
            raise conflict_error(title, reason(error)) from error
        refused = _RULE_ERRORS.search(f"{error}\n{getattr(error, '_stackTrace', '')}")
        if refused is None:
            raise
        raise TargetError(
            title,
            f"the table refuses a row: {' '.join(refused[1].split()).rstrip('.')}",
            "ALTER the table so that it takes the rows, or change them by with_columns() or "
            "where(), and start the query again",
        ) from error


def conflict_error(title: str, problem: str) -> TargetError:
    """Return, not raise, the error of a commit that has conflicted twice. ``title``: the sink's
    name. ``problem``: the message of Delta.
    """
    return TargetError(
        title,
        "another writer changes the table at the same time, also when the micro-batch is "
        f"tried again: {problem}",
        "Start the query again, which loses and doubles nothing, and let other writers of the "
        "table wait, or leave it to this query",
    )


def commit_with_retry(
    check: Callable[[], object] | None,
    commit: Callable[P, None],
    *args: P.args,
    **kwargs: P.kwargs,
) -> None:
    """Call ``commit``, which makes a commit. If another writer was faster, call ``check`` and then
    ``commit`` once more, and raise the error if that fails again. Other errors are raised at once.
    All are Spark's own errors, for ``translate_conflicts``.

    ``check``: raises an error if the query may no longer write the table; None for no check. The
    other writer may have taken it. ``commit`` must read the table anew in each call.
    """
    try:
        commit(*args, **kwargs)
    except (Py4JError, PySparkException) as error:
        if not is_conflict(error):
            raise
        if check is not None:
            check()
        commit(*args, **kwargs)


def is_conflict(error: BaseException) -> bool:
    """Return True if an error of Spark means that another writer's commit was faster, by the text
    of the error.
    """
    return any(sign in str(error) for sign in _CONFLICT_ERRORS)
