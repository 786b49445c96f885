"""The lines of Spark's log that read like faults of a query and are none.

``configure`` asks for a session without them. All other lines stay, also of the same loggers.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from dovetail.platform import jvm
from dovetail.platform.sessions import is_remote, started_with

QUIET: Final = "spark.dovetail.quiet"
"""The setting of a session that is to be without these lines."""
HARMLESS: Final[Mapping[str, str]] = {
    r"spark\.sql\.adaptive\.enabled is not supported in streaming": (
        "Spark turns adaptive execution off by itself, for the query alone."
    ),
    r"Disabling AQE since AQE is not supported in stateful workloads": "The same, once more.",
    r"Map state \w+ doesn't contain key": "A bucket that has no rows yet is asked for them.",
    r"No more data to read from the socket": "A worker has ended as it should.",
    r"Failed to cancel job group [-\w]+\. Cannot find active jobs for it": (
        "A query is stopped between two jobs."
    ),
    r"'spark\.sql\.parser\.escapedStringLiterals' has been deprecated": (
        "dovetail sets it where it computes with SQL for Delta Lake."
    ),
    r"Truncated the string representation of a plan": "The plan is shortened in the log alone.",
}
"""Regular expressions of the lines, each with the reason why it is harmless."""
_QUIET_APPLICATIONS: set[str] = set()
"""The applications of Spark whose log has the filter."""


def quieten(session: SparkSession) -> None:
    """Leave lines that read like faults and are none (``HARMLESS``) out of Spark's log from now on.
    Do so only if ``configure`` has set ``QUIET`` for the session. Do nothing for any other session,
    on Spark Connect, and in a second call for the same Spark application.

    Spark's log is that of the whole process. A log that is not Log4j's stays as it is.
    """
    if is_remote(session) or started_with(session, QUIET) != "true":
        return
    application = str(session.sparkContext.applicationId)
    if application not in _QUIET_APPLICATIONS:
        _QUIET_APPLICATIONS.add(application)
        with suppress(Py4JError, TypeError):
            jvm.deny_log_lines(session, f".*({'|'.join(HARMLESS)}).*")
