"""Failures of queries that begin with their cause. Spark's own message begins with a trace."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.errors import StreamingQueryException

_LIBRARY_ERROR = re.compile(r"^dovetail\.errors\.\w+: (.*(?:\n  \S.*)*)", re.MULTILINE)
_PYTHON_ERROR = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n|\n)*(\S.*)")
_JAVA_ERROR = re.compile(r"^py4j\.protocol\.Py4JJavaError: .*\n: (.*)", re.MULTILINE)
"""An error of the JVM in a traceback: its second line says more than ``An error occurred``."""
_UNCOMMITTED = "[STATE_STORE_COMMIT_VALIDATION_FAILED"
"""The start of Spark's condition for a micro-batch whose tasks have not all run to their end."""
_ERROR_CONDITION = re.compile(r"\[(?!STREAM_FAILED|PYTHON_EXCEPTION)[A-Z_.0-9]+\] .*")


def with_cause(
    error: StreamingQueryException, title: str, sinks: Sequence[str]
) -> StreamingQueryException:
    """Return ``error`` with its cause, and an empty line, in front of its message. The error itself
    is changed, so a second call puts the cause there twice.

    The cause is the last error of the library in the message. Without one, if Spark says that not
    all tasks have run to their end, it is that one of ``sinks`` has not read all rows. Else it is
    ``title`` and the text of ``cause_of``. ``title``: the names of the query's results. ``sinks``:
    the titles of its sinks; ``title`` stands for none.
    """
    errors, cause = _LIBRARY_ERROR.findall(str(error)), cause_of(error)
    if not errors and _UNCOMMITTED in cause:
        errors.append(
            f"{', '.join(sinks) or title}: not all changes of a micro-batch have been read, so its "
            "state is not stored. Read all of them, also where nothing is written, as "
            "changes.count() does."
        )
    first = errors[-1] if errors else f"{title}: a micro-batch fails with {cause}"
    captured: Any = error
    # A classic session's error shows its description, not its message.
    part = "_desc" if hasattr(error, "_desc") else "_message"
    setattr(captured, part, f"{first}\n\n{getattr(captured, part)}")
    return error


def cause_of(error: BaseException | None) -> str:
    """Return the cause of an error in one line. It is the last exception of a Python traceback in
    its text. Without a traceback it begins with Spark's error condition, such as
    ``[PATH_NOT_FOUND] ...``: that of the outermost cause that has one. ``STREAM_FAILED`` and
    ``PYTHON_EXCEPTION`` do not count. Without a condition it is the first line of the innermost
    cause. ``error`` must not be None.

    An exception of the JVM that PySpark does not know stands for the first line of the JVM's error,
    from its condition on.
    """
    python = _PYTHON_ERROR.findall(str(error))
    if python and python[-1].startswith("py4j.protocol.Py4JJavaError"):
        python += [_from_condition(line) for line in _JAVA_ERROR.findall(str(error))]
    lines = []
    while error is not None:
        lines.append(str(error).strip().partition("\n")[0])
        error = getattr(error, "_cause", None)
    conditions = [match[0] for line in lines if (match := _ERROR_CONDITION.search(line))]
    return str([*python[-1:], *conditions, lines[-1]][0])


def _from_condition(line: str) -> str:
    """Return the part of a line from Spark's error condition on; without one the whole line."""
    condition = _ERROR_CONDITION.search(line)
    return line if condition is None else condition[0]
