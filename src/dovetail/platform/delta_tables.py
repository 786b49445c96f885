"""Delta tables by PySpark's own means: Delta Lake's jar is needed, its Python package is not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from operator import and_
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DecimalType, IntegralType, StringType

from dovetail.base.columns import CHANGE, key_name, quoted, value_name
from dovetail.errors import ConfigurationError, PlanError
from dovetail.platform.files import files_of
from dovetail.platform.sessions import cores, has_source
from dovetail.platform.spark_errors import make_folder, reaching

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row

JAR = "io.delta:delta-spark_4.2_2.13:4.4.0"
EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"

_ABSENT = ("PATH_NOT_FOUND", "DELTA_TABLE_NOT_FOUND", "TABLE_OR_VIEW_NOT_FOUND")
FEED = "delta.enableChangeDataFeed"
"""The property of a table that enables its change data feed."""
APPEND_ONLY = "delta.appendOnly"
"""The property of a table whose rows can only be added."""
_VECTORS = "delta.enableDeletionVectors"
_LOG_PARTITIONS, _LOG_PARTITIONS_DEFAULT = "spark.databricks.delta.snapshotPartitions", 50

_SETTINGS = {
    # The source of a merge is kept already.
    "spark.databricks.delta.merge.materializeSource": "none",
    # New rows always fulfil the condition: they have the keys of the replaced ones.
    "spark.databricks.delta.replaceWhere.constraintCheck.enabled": "false",
    # The log has the list of files. A second list beside each commit would be compared with it
    # each time, if the session's time zone is not UTC.
    "spark.databricks.delta.allFilesInCrc.enabled": "false",
    # Conditions contain keys literally.
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.variable.substitute": "false",
}

Range = tuple[Any, Any]
"""The smallest and the largest value of a column."""


def refuse_without_delta(session: SparkSession, operator: str) -> None:
    """Raise ``ConfigurationError`` if the session lacks Delta Lake's settings or its jar.
    ``operator``: the call that needs them, for the error.
    """
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
    """Set two Spark settings, so that the session fails at a missing or broken file instead of
    skipping its rows. The session must be the caller's own.
    """
    for ignored in ("Missing", "Corrupt"):
        session.conf.set(f"spark.sql.files.ignore{ignored}Files", "false")


def tune(session: SparkSession) -> None:
    """Set a session's settings for fast small merges, and for conditions that contain keys
    literally.

    The session must be the caller's own; other values are overwritten. Only a number of partitions
    for reading logs stays, if it is set. Without one, it becomes the number of cores, at most 50.
    """
    for name, value in _SETTINGS.items():
        if session.conf.get(name, None) != value:  # Spark warns of some settings
            session.conf.set(name, value)
    if session.conf.get(_LOG_PARTITIONS, None) is None:
        partitions = min(cores(session), _LOG_PARTITIONS_DEFAULT)
        session.conf.set(_LOG_PARTITIONS, str(partitions))


@contextmanager
def setting(session: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Apply ``settings`` to the session within the block, and restore the former ones after the
    block, also on an error. A query that starts meanwhile keeps a copy of them.
    """
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
    """Return Spark settings under which a commit is made once. ``application``: the name of the
    writer. ``version``: a number that rises with each of its commits.

    The table's log stores the version under the application's name. A later commit of the same
    version, or of a smaller one, changes nothing and raises nothing.
    """
    transaction = "spark.databricks.delta.write.txn"
    return {f"{transaction}AppId": application, f"{transaction}Version": str(version)}


def path_of(session: SparkSession, operator: str, argument: str, path: str | PathLike[str]) -> str:
    """Return the full form of a path, with its scheme; a relative one starts at the JVM's working
    directory.

    ``operator``, ``argument``: the user's call and the argument that has the path, such as
    ``path=``, for errors. Raises ``ConfigurationError`` if the path's file system cannot be
    reached.
    """
    with reaching(operator, argument, path):
        return files_of(session).qualified(fspath(path))


def folder_of(
    session: SparkSession, operator: str, argument: str, path: str | PathLike[str]
) -> str:
    """Return the full path of a folder, which is created if it is missing.

    ``operator``, ``argument``: as for ``path_of``. Raises ``ConfigurationError`` if its file system
    cannot be reached, or if the path is a file or cannot be created.
    """
    full = path_of(session, operator, argument, path)
    make_folder(session, operator, argument, full)
    return full


def refuse_but_one(operator: str, path: str | PathLike[str] | None, table: str | None) -> None:
    """Raise ``PlanError`` unless exactly one of ``path`` and ``table`` is given. ``operator``: the
    user's call, for the error.
    """
    if (path is None) == (table is None):
        raise PlanError(operator, "it needs a path or table=", "Give one of them")


def called(
    session: SparkSession,
    operator: str,
    argument: str,
    path: str | PathLike[str] | None,
    table: str | None,
) -> str:
    """Return the name of a table in SQL: that of its path or, without a path, ``table``. Exactly
    one of both must be given (``refuse_but_one``).

    ``operator``, ``argument``: as for ``path_of``. Raises ``ConfigurationError`` if the path's file
    system cannot be reached.
    """
    return (table or "") if path is None else named(path_of(session, operator, argument, path))


def details(session: SparkSession, table: str) -> Row:
    """Return Delta's description of a table, a row with ``location``, ``sizeInBytes``,
    ``properties`` and more. ``table``: its name in SQL; Spark raises an error if it does not exist.

    This reads the table's log, which Delta keeps in memory for later calls.
    """
    (row,) = session.sql(f"DESCRIBE DETAIL {table}").collect()
    return row


def location(session: SparkSession, table: str) -> str:
    """Return the full path, with its scheme, of the folder of an existing table. ``table``: its
    name in SQL.
    """
    return str(details(session, table)["location"])


def partition_columns(session: SparkSession, table: str) -> list[str]:
    """Return the names of the columns that partition an existing table's files, in order; empty for
    none. ``table``: its name in SQL.
    """
    return list(details(session, table)["partitionColumns"])


def local_path(location: str) -> str | None:
    """Return the path of a location with the scheme ``file``, on this machine's disks; None for any
    other.

    >>> local_path("file:/data/my%20orders"), local_path("s3a://shop/orders")
    ('/data/my orders', None)
    """
    parts = urlsplit(location)
    return unquote(parts.path) if parts.scheme == "file" and not parts.netloc else None


def named(path: str) -> str:
    """Return the name in SQL of the Delta table in the folder ``path``, a full path."""
    return f"delta.{quoted(path)}"


def read(session: SparkSession, table: str) -> DataFrame:
    """Return a frame of all rows of a table. ``table``: its name in SQL. Spark raises an error if
    it does not exist.
    """
    return session.table(table)


def exists(session: SparkSession, table: str) -> bool:
    """Return True if there is a table or a view, of Delta or not, with this name in SQL. Spark's
    error passes if it is there and cannot be read.
    """
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
    """Create a table of these rows in one commit. With ``replace`` it takes the place of one that
    must exist; else there must be none. Otherwise Spark raises an error.

    ``table``: its name in SQL. ``properties``: the table's properties; it has deletion vectors
    unless they say otherwise. ``partition_by``: the columns that partition its files.
    """
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
    """Put these rows and columns in place of a table's, in one commit; the table's properties stay.
    ``table``: the name in SQL of a table that exists.
    """
    writer = rows.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
    writer.saveAsTable(table)


def replace(rows: DataFrame, table: str, where: str) -> None:
    """Replace the rows of a table that fulfil the SQL condition ``where`` by ``rows``, in one
    commit. ``table``: the name in SQL of a table that exists.

    ``rows`` must have the table's columns and fulfil the condition, which a session after ``tune``
    does not check.
    """
    writer = rows.write.format("delta").mode("overwrite").option("replaceWhere", where)
    writer.saveAsTable(table)


def property_of(session: SparkSession, table: str, name: str) -> str | None:
    """Return the value of the table property ``name``; None if it is not set. ``table``: the
    table's name in SQL; Spark raises an error if it does not exist.
    """
    value: str | None = details(session, table)["properties"].get(name)
    return value


def records_changes(properties: Mapping[str, str]) -> bool:
    """Return True if a table with these properties records its changes (the change data feed)."""
    return properties.get(FEED, "").lower() == "true"


def set_property(session: SparkSession, table: str, name: str, value: str) -> None:
    """Set the table property ``name`` to ``value``, in one commit without rows. ``table``: the
    table's name in SQL. ``name`` must have no quotes in it; ``value`` may.
    """
    literal = value.replace("\\", "\\\\").replace("'", "\\'")
    session.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('{name}' = '{literal}')")


def history(session: SparkSession, table: str, limit: int | None) -> list[Row]:
    """Return the table's commits, the latest first: rows of ``version``, ``operation`` and
    ``userMetadata``, which is None without one.

    ``table``: its name in SQL. ``limit``: the largest number of commits, None for all.
    """
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
    """Merge changes into a table in one MERGE: each row replaces the table's row of its key, or
    deletes it if ``gone``. Rows of keys that the table lacks are inserted, unless they are
    ``gone``.

    ``changes``: at most one row per key; Delta raises an error for two that meet one row.
    ``table``: its name in SQL. ``key``, ``values``: expressions over ``changes`` by the table's
    column, at least one for the key. ``gone``: true or false, never null. ``where``: further
    conditions that all table rows of these keys fulfil. ``nulls``: True if a null in a key equals a
    null; else a null equals nothing.
    """
    columns = {**key, **values}
    # The names are reserved, so no column of the table is mistaken for one of the source.
    source_names = internal_names(list(key), list(columns))
    source = changes.select(
        *(column.alias(source_names[name]) for name, column in columns.items()), gone.alias(CHANGE)
    )
    pairs = [(F.col(quoted(name)), F.col(source_names[name])) for name in key]
    same = [a.eqNullSafe(b) if nulls else a == b for a, b in pairs]
    assigned = {quoted(name): F.col(source_name) for name, source_name in source_names.items()}
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


def internal_names(keys: Sequence[str], columns: Sequence[str]) -> dict[str, str]:
    """Return the reserved name of each column: ``_k0`` … of the keys, ``_0_0`` … of the others.

    >>> internal_names(["id"], ["id", "v", "w"])
    {'id': '_k0', 'v': '_0_0', 'w': '_0_1'}
    """
    names = {name: key_name(i) for i, name in enumerate(keys)}
    values = [name for name in columns if name not in keys]
    return names | {name: value_name(0, i) for i, name in enumerate(values)}


def near(rows: DataFrame, keys: Mapping[str, str]) -> list[Column]:
    """Return conditions on the table by which a merge of ``rows`` skips files: for each key column
    the range of its values in ``rows``. Key columns without a range (``range_of``) have none; the
    list may be empty.

    ``keys``: the name in ``rows`` of each key column of the table. Runs a job.
    """
    types = {name: rows.schema[name].dataType for name in keys.values()}
    asked = [part for name, type_ in types.items() for part in bounds(name, type_)]
    row = rows.agg(F.count("*").alias("count"), *asked).first()
    assert row is not None
    ranges = [range_of(row, name) for name in types]
    return within([F.col(quoted(name)) for name in keys], ranges)


def bounds(name: str, type_: DataType) -> list[Column]:
    """Return the aggregates of the column ``name`` that ``range_of`` needs, named ``<name> count``,
    ``<name> min`` and ``<name> max``. Empty for a type without a range (``has_range``).
    """
    if not has_range(type_):
        return []
    asked = {"count": F.count, "min": F.min, "max": F.max}
    return [of(name).alias(f"{name} {part}") for part, of in asked.items()]


def range_of(row: Row, name: str) -> Range | None:
    """Return the smallest and the largest value of the column ``name``. ``row``: the results of its
    ``bounds`` and of ``count``, the number of all rows.

    None if the column has nulls, there are no rows, or the type has no range.
    """
    statistics = row.asDict()
    if not 0 < statistics["count"] == statistics.get(f"{name} count"):
        return None
    return statistics[f"{name} min"], statistics[f"{name} max"]


def within(columns: Sequence[Column], ranges: Sequence[Range | None]) -> list[Column]:
    """Return conditions by which files are skipped: each column lies within its range, both ends
    included. ``ranges``: one for each column; None gives no condition.
    """
    return [
        (column >= F.lit(ends[0])) & (column <= F.lit(ends[1]))
        for column, ends in zip(columns, ranges, strict=True)
        if ends is not None
    ]


def has_range(type_: DataType) -> bool:
    """Return True if values of a type come to Python unchanged and Delta skips files by their
    ranges: for integers, decimals, and strings without a collation.
    """
    plain_text = isinstance(type_, StringType) and type_.isUTF8BinaryCollation()
    return plain_text or isinstance(type_, (IntegralType, DecimalType))
