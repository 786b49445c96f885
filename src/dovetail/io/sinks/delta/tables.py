"""The table of a Delta sink: its columns and properties, and its upkeep."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructField

from dovetail.base.columns import quoted
from dovetail.errors import DovetailWarning
from dovetail.io.sinks.delta.conflicts import is_conflict
from dovetail.platform import delta_tables, jvm
from dovetail.platform.sessions import is_remote
from dovetail.platform.spark_errors import reason

RETENTION = "delta.deletedFileRetentionDuration"
"""The property with the time for which a table's log keeps entries of removed files."""
LOG_RETENTION = "delta.logRetentionDuration"
"""The property with the time for which a table's log keeps commits, and so past versions."""

_MAPPING = "delta.columnMapping.mode"
_SMALL_FILES = {"spark.databricks.delta.optimize.minFileSize": str(32 << 20)}
"""The size below which compaction rewrites files. By default it is 1 GB, so a smaller table would
be written anew each time."""


def maps_columns(session: SparkSession, table: str) -> bool:
    """Say whether a table has column mapping, or a new one would have it by default."""
    if delta_tables.exists(session, table):
        mode = delta_tables.property_of(session, table, _MAPPING)
    else:
        mode = session.conf.get(f"spark.databricks.delta.properties.defaults.{_MAPPING[6:]}", None)
    return mode in ("name", "id")


def add_columns(session: SparkSession, table: str, fields: Sequence[StructField]) -> None:
    """Add columns to the table, null in all its rows: a commit without rows."""
    added = ", ".join(f"{quoted(field.name)} {field.dataType.simpleString()}" for field in fields)
    session.sql(f"ALTER TABLE {table} ADD COLUMNS ({added})")


def compact(session: SparkSession, table: str) -> None:
    """Put small files together; larger ones only if many of their rows are deleted.

    If another writer is faster, the files stay until the next time.
    """
    try:
        with delta_tables.setting(session, _SMALL_FILES):
            session.sql(f"OPTIMIZE {table}").collect()
    except (Py4JError, PySparkException) as error:
        if not is_conflict(error):
            raise


def clean_log(session: SparkSession, location: str) -> None:
    """Remove commits that are older than the table's property allows, to the minute.

    Delta itself does so by whole days, and each commit lists all that are there. On Spark Connect
    nothing is done. Commits that cannot be removed stay, with a ``DovetailWarning``.
    """
    if is_remote(session):
        return
    try:
        jvm.clean_delta_log(session, location)
    except (Py4JError, TypeError) as error:  # TypeError: another Delta Lake lacks the class
        message = f"old commits of {location} stay, which makes new ones slow: {reason(error)}"
        warnings.warn(message, DovetailWarning, stacklevel=2)
