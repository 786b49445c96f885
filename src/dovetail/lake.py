"""Delta tables by PySpark's own means: Delta Lake's jar is needed, its Python package is not."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from operator import and_
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DecimalType, IntegralType, StringType, StructField

from dovetail.columns import CHANGE, key_name, quoted, value_name
from dovetail.errors import ConfigurationError, DovetailWarning, PlanError, TargetError
from dovetail.files import files_of
from dovetail.refusals import make_folder, reaching, reason
from dovetail.sessions import cores, has_source, is_remote

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row

JAR = "io.delta:delta-spark_4.2_2.13:4.4.0"
EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"

_CONFLICTS = ("[DELTA_CONCURRENT", "[DELTA_METADATA_CHANGED", "[DELTA_PROTOCOL_CHANGED")
"""What Delta says where another writer has committed what a commit would have had to see."""
_ABSENT = ("PATH_NOT_FOUND", "DELTA_TABLE_NOT_FOUND", "TABLE_OR_VIEW_NOT_FOUND")
FEED = "delta.enableChangeDataFeed"
"""The property of a table that keeps its changes for readers."""
APPEND_ONLY = "delta.appendOnly"
"""The property of a table whose rows stay as they are."""
RETENTION = "delta.deletedFileRetentionDuration"
"""The property of a table that says how long its log knows files that are no part of it."""
LOG_RETENTION = "delta.logRetentionDuration"
"""The property of a table that says how long its log knows commits, and so its past versions."""
_MAPPING = "delta.columnMapping.mode"
_VECTORS = "delta.enableDeletionVectors"
_LOG_PARTITIONS, _LOG_PARTITIONS_DEFAULT = "spark.databricks.delta.snapshotPartitions", 50

_SETTINGS = {
    # What is merged is kept already.
    "spark.databricks.delta.merge.materializeSource": "none",
    # What replaces rows by their keys has these keys.
    "spark.databricks.delta.replaceWhere.constraintCheck.enabled": "false",
    # The table's files stand in its log; a second list of them, beside each commit, would be
    # checked against it each time where the session's time zone is not UTC.
    "spark.databricks.delta.allFilesInCrc.enabled": "false",
    # Keys are written into conditions as they are.
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.variable.substitute": "false",
}

_SMALL_FILES = {"spark.databricks.delta.optimize.minFileSize": str(32 << 20)}
"""What compaction puts together; by default files below 1 GB, so that it would write a table of
less than that anew each time.
"""

Range = tuple[Any, Any]
"""The smallest and the largest value of a column."""


def refuse_without_delta(session: SparkSession, operator: str) -> None:
    """The session must know Delta Lake."""
    if "DeltaSparkSessionExtension" not in str(session.conf.get("spark.sql.extensions", "")):
        raise ConfigurationError(
            operator,
            "the session does not know Delta Lake",
            f"Build it with spark.jars.packages={JAR}, spark.sql.extensions={EXTENSION} and "
            f"spark.sql.catalog.spark_catalog={CATALOG}",
        )
    if not has_source(session, "delta"):
        raise ConfigurationError(
            operator,
            "the session has Delta Lake's settings and not its jar",
            f"Build it with spark.jars.packages={JAR}",
        )


def strict(session: SparkSession) -> None:
    """Settings of a session of one's own in which a missing or broken file is an error, as it must
    be where all rows count.
    """
    for ignored in ("Missing", "Corrupt"):
        session.conf.set(f"spark.sql.files.ignore{ignored}Files", "false")


def tune(session: SparkSession) -> None:
    """Settings of a session of one's own under which small merges are fast."""
    for name, value in _SETTINGS.items():
        if session.conf.get(name, None) != value:  # Spark warns of some of them
            session.conf.set(name, value)
    if session.conf.get(_LOG_PARTITIONS, None) is None:
        partitions = min(cores(session), _LOG_PARTITIONS_DEFAULT)
        session.conf.set(_LOG_PARTITIONS, str(partitions))


@contextmanager
def setting(session: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Settings that hold for a while. A query that starts meanwhile keeps a copy of them."""
    before = {name: session.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in reversed(before.items()):
            if old is None:
                session.conf.unset(name)
            else:
                session.conf.set(name, old)


def once(application: str, version: int) -> dict[str, str]:
    """Settings under which a commit is made once: the table's log has the version under the
    application's name, so that a later commit of the same version, or a smaller one, changes
    nothing.
    """
    transaction = "spark.databricks.delta.write.txn"
    return {f"{transaction}AppId": application, f"{transaction}Version": str(version)}


def path_of(session: SparkSession, operator: str, argument: str, path: str | PathLike[str]) -> str:
    """A path as Spark takes it: in full, a relative one from the JVM's working directory."""
    with reaching(operator, argument, path):
        return files_of(session).qualified(fspath(path))


def folder_of(
    session: SparkSession, operator: str, argument: str, path: str | PathLike[str]
) -> str:
    """The path of a folder that is made if it is not there."""
    full = path_of(session, operator, argument, path)
    make_folder(session, operator, argument, full)
    return full


def refuse_but_one(operator: str, path: str | PathLike[str] | None, table: str | None) -> None:
    """A table is given by its path or by its name."""
    if (path is None) == (table is None):
        raise PlanError(operator, "it needs a path or table=", "Give one of them")


def called(
    session: SparkSession,
    operator: str,
    argument: str,
    path: str | PathLike[str] | None,
    table: str | None,
) -> str:
    """A table, given by its path or by its name in a catalog, as SQL calls it."""
    return (table or "") if path is None else named(path_of(session, operator, argument, path))


def details(session: SparkSession, table: str) -> Row:
    """What Delta says of a table: ``location``, ``sizeInBytes``, ``properties`` and more. Its log
    is read for it, and kept for what comes next.
    """
    (row,) = session.sql(f"DESCRIBE DETAIL {table}").collect()
    return row


def location(session: SparkSession, table: str) -> str:
    """The path of a table."""
    return str(details(session, table)["location"])


def named(path: str) -> str:
    """The table at a path as SQL calls it."""
    return f"delta.{quoted(path)}"


def read(session: SparkSession, table: str) -> DataFrame:
    """The rows of a table, which is named as in SQL."""
    return session.table(table)


def exists(session: SparkSession, table: str) -> bool:
    """Whether there is such a table."""
    try:
        _ = read(session, table).schema
    except AnalysisException as error:
        if error.getCondition() in _ABSENT:
            return False
        raise
    return True


def create(
    rows: DataFrame,
    table: str,
    properties: Mapping[str, str],
    *,
    replace: bool,
    partition_by: Sequence[str] = (),
) -> None:
    """A table of these rows in one commit; ``replace``: in place of the one that is there."""
    writer = rows.writeTo(table).using("delta")
    if partition_by:
        writer = writer.partitionedBy(*(F.col(quoted(name)) for name in partition_by))
    for name, value in {_VECTORS: "true", **properties}.items():
        writer = writer.tableProperty(name, value)
    if replace:
        writer.replace()
    else:
        writer.create()


def overwrite(rows: DataFrame, table: str) -> None:
    """Put these rows and columns in place of a table's, in one commit; its properties stay."""
    writer = rows.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
    writer.saveAsTable(table)


def replace(rows: DataFrame, table: str, where: str) -> None:
    """Put rows in place of those that fulfil a condition, in one commit."""
    writer = rows.write.format("delta").mode("overwrite").option("replaceWhere", where)
    writer.saveAsTable(table)


def property_of(session: SparkSession, table: str, name: str) -> str | None:
    """A property of the table."""
    value: str | None = details(session, table)["properties"].get(name)
    return value


def records_changes(properties: Mapping[str, str]) -> bool:
    """Whether a table of these properties has a change feed."""
    return properties.get(FEED, "").lower() == "true"


def maps_columns(session: SparkSession, table: str) -> bool:
    """Whether a table has column mapping, or would have if it were made."""
    if exists(session, table):
        mode = property_of(session, table, _MAPPING)
    else:
        mode = session.conf.get(f"spark.databricks.delta.properties.defaults.{_MAPPING[6:]}", None)
    return mode in ("name", "id")


def set_property(session: SparkSession, table: str, name: str, value: str) -> None:
    """Set a property of the table: a commit without rows."""
    literal = value.replace("\\", "\\\\").replace("'", "\\'")
    session.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('{name}' = '{literal}')")


def add_columns(session: SparkSession, table: str, fields: Sequence[StructField]) -> None:
    """Add columns to the table, null in all its rows: a commit without rows."""
    added = ", ".join(f"{quoted(field.name)} {field.dataType.simpleString()}" for field in fields)
    session.sql(f"ALTER TABLE {table} ADD COLUMNS ({added})")


def compact(session: SparkSession, table: str) -> None:
    """Put small files together; larger ones only where many of their rows are deleted. Where
    another writer is faster, they stay until the next time.
    """
    try:
        with setting(session, _SMALL_FILES):
            session.sql(f"OPTIMIZE {table}").collect()
    except (Py4JError, PySparkException) as error:
        if not is_conflict(error):
            raise


def is_conflict(error: BaseException) -> bool:
    """Whether a commit has failed because another writer was faster."""
    return any(sign in str(error) for sign in _CONFLICTS)


def twice(commit: Callable[[], None]) -> None:
    """Make a commit, and where another writer was faster make it once more."""
    try:
        commit()
    except (Py4JError, PySparkException) as error:
        if not is_conflict(error):
            raise
        commit()


@contextmanager
def conflicts_named(title: str) -> Iterator[None]:
    """A conflict with another writer as a ``TargetError``."""
    try:
        yield
    except (Py4JError, PySparkException) as error:
        if not is_conflict(error):
            raise
        raise TargetError(
            title,
            "another writer changes the table at the same time, also when the micro-batch is "
            f"tried again: {reason(error)}",
            "Start the query again, which loses and doubles nothing, and let other writers of the "
            "table wait, or leave it to this query",
        ) from error


def clean_log(session: SparkSession, location: str) -> None:
    """Remove commits that are older than the table's property says, to the minute. Delta does so by
    whole days, and each commit lists all that are there. On Spark Connect nothing is done. What
    cannot be removed stays, with a ``DovetailWarning``.
    """
    if is_remote(session):
        return
    jvm: Any = session._jvm  # noqa: SLF001 -- no SQL cleans a log
    delta = jvm.org.apache.spark.sql.delta
    try:
        log = delta.DeltaLog.forTable(session._jsparkSession, location)  # noqa: SLF001
        none = jvm.scala.Option.empty()
        minute = delta.TruncationGranularity.MINUTE()
        log.cleanUpExpiredLogs(log.unsafeVolatileSnapshot(), none, none, minute)
    except (Py4JError, TypeError) as error:  # TypeError: another Delta Lake has no such class
        message = f"old commits of {location} stay, which makes new ones slow: {reason(error)}"
        warnings.warn(message, DovetailWarning, stacklevel=2)


def history(session: SparkSession, table: str, limit: int | None) -> list[Row]:
    """The commits of the table, the last one first; at most ``limit``."""
    most = "" if limit is None else f" LIMIT {limit}"
    rows = session.sql(f"DESCRIBE HISTORY {table}{most}")
    wanted = rows.select("version", "operation", "userMetadata").collect()
    return sorted(wanted, key=lambda row: -row["version"])


def merge(
    changes: DataFrame,
    table: str,
    *,
    key: Mapping[str, Column],
    values: Mapping[str, Column],
    gone: Column,
    where: Sequence[Column] = (),
    nulls: bool = True,
) -> None:
    """One MERGE: each row of ``changes`` replaces the table's row of its key, or deletes it where
    ``gone`` says so.

    ``key``, ``values``: the table's columns and what they become, expressions over ``changes``;
    ``where``: further conditions on the table's rows that all those of these keys fulfil;
    ``nulls``: a null in a key equals a null. The source's own columns have reserved names, so that
    no column of the table is taken for one of them.
    """
    columns = {**key, **values}
    places = {name: key_name(i) for i, name in enumerate(key)}
    places |= {name: value_name(0, i) for i, name in enumerate(values)}
    source = changes.select(
        *(column.alias(places[name]) for name, column in columns.items()), gone.alias(CHANGE)
    )
    pairs = [(F.col(quoted(name)), F.col(places[name])) for name in key]
    same = [a.eqNullSafe(b) if nulls else a == b for a, b in pairs]
    assigned = {quoted(name): F.col(place) for name, place in places.items()}
    (
        source.mergeInto(table, reduce(and_, [*same, *where]))
        .whenMatched(F.col(CHANGE))
        .delete()
        .whenMatched()
        .update(assigned)
        .whenNotMatched(~F.col(CHANGE))
        .insert(assigned)
        .merge()
    )


def bounds(name: str, type_: DataType) -> list[Column]:
    """What an aggregate asks of a column for ``range_of``; nothing where it has no range."""
    if not has_range(type_):
        return []
    asked = {"count": F.count, "min": F.min, "max": F.max}
    return [of(name).alias(f"{name} {part}") for part, of in asked.items()]


def range_of(row: Row, name: str) -> Range | None:
    """The range of a column without nulls, from a row of ``bounds`` and ``count``."""
    given = row.asDict()
    if not 0 < given["count"] == given.get(f"{name} count"):
        return None
    return given[f"{name} min"], given[f"{name} max"]


def within(columns: Sequence[Column], ranges: Sequence[Range | None]) -> list[Column]:
    """Conditions by which files are skipped: each column within its range."""
    return [
        (column >= F.lit(ends[0])) & (column <= F.lit(ends[1]))
        for column, ends in zip(columns, ranges, strict=True)
        if ends is not None
    ]


def has_range(type_: DataType) -> bool:
    """Types whose values come to Python and back as they are, and by which files are skipped."""
    plain_text = isinstance(type_, StringType) and type_.isUTF8BinaryCollation()
    return plain_text or isinstance(type_, (IntegralType, DecimalType))
