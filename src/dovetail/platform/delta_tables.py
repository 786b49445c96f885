"""Delta tables by PySpark's own means: Delta Lake's jar is needed, its Python package is not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from operator import and_, or_
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DecimalType, IntegralType, StringType

from dovetail.base.columns import CHANGE, key_name, quoted, value_name
from dovetail.errors import ConfigurationError, PlanError
from dovetail.platform.files import files_of
from dovetail.platform.sessions import cores, has_source
from dovetail.platform.spark_errors import convert_folder_errors, make_folder

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

BAD_FILES = ("spark.sql.files.ignoreMissingFiles", "spark.sql.files.ignoreCorruptFiles")
"""Spark's settings by which a reader skips the rows of a file that it cannot read."""

Range = tuple[Any, Any]
"""The smallest and the largest value of a column."""


def refuse_without_delta(session: SparkSession, operator: str) -> None:
    """Raise ``ConfigurationError`` if the session lacks Delta Lake's SQL extension or its jar.
    Spark is asked for the source ``delta``, so this works on Spark Connect, too. ``operator``: the
    user's call that needs them, for the error.
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


def fail_on_bad_files(session: SparkSession) -> None:
    """Set ``BAD_FILES`` to false, so that the session fails at a missing or corrupt file instead of
    skipping its rows. The session must be the caller's own.
    """
    for name in BAD_FILES:
        session.conf.set(name, "false")


def tune(session: SparkSession) -> None:
    """Set a session's settings so that small commits to Delta tables are fast, and so that SQL
    conditions may have any text as a constant.

    - A MERGE does not store its source.
    - ``replace`` does not check that the new rows fulfil its condition.
    - Commits do not write a list of all files.
    - Backslashes in constants are escapes, and ``${...}`` in them is not substituted.

    The session must be the caller's own; other values are overwritten. Only the count of partitions
    for reading logs stays if it is set. If not, it becomes the count of cores, at most 50.
    """
    for name, value in _SETTINGS.items():
        if session.conf.get(name, None) != value:  # Spark warns of some settings
            session.conf.set(name, value)
    if session.conf.get(_LOG_PARTITIONS, None) is None:
        partitions = min(cores(session), _LOG_PARTITIONS_DEFAULT)
        session.conf.set(_LOG_PARTITIONS, str(partitions))


@contextmanager
def temporary_settings(session: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Apply ``settings``, values by Spark's names, to the session within the block. Afterwards
    restore the former ones, and unset those that were not set, also on an error. A query that
    starts meanwhile keeps a copy of them.
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


def commit_once_settings(application: str, version: int) -> dict[str, str]:
    """Return two Spark settings under which a commit of a Delta table is made once.
    ``application``: the name of the writer. ``version``: an integer that rises with each of its
    commits.

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
    with convert_folder_errors(operator, argument, path):
        return files_of(session).qualified(fspath(path))


def folder_of(
    session: SparkSession, operator: str, argument: str, path: str | PathLike[str]
) -> str:
    """Return the full path of a folder, with its scheme. The folder is created if it is missing.

    ``operator``, ``argument``: the user's call and the argument that has the path, such as
    ``path=``, for errors. Raises ``ConfigurationError`` if its file system cannot be reached, or if
    the path is a file or cannot be created.
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


def target_sql_name(
    session: SparkSession,
    operator: str,
    argument: str,
    path: str | PathLike[str] | None,
    table: str | None,
) -> str:
    """Return the name in SQL of a Delta table that a user gives as a folder or by name: that of the
    folder ``path`` (``sql_name``) or, without a path, ``table``. Exactly one of both must be given
    (``refuse_but_one``).

    ``operator``, ``argument``: the user's call and the argument that has the path, for errors.
    Raises ``ConfigurationError`` if the path's file system cannot be reached.
    """
    return (table or "") if path is None else sql_name(path_of(session, operator, argument, path))


def details(session: SparkSession, table: str) -> Row:
    """Return Delta's description of a table, the row of ``DESCRIBE DETAIL``. Among its fields are
    ``location``, ``sizeInBytes``, ``properties`` and ``partitionColumns``. ``table``: its name in
    SQL; Spark raises an error if it does not exist.

    This reads the table's log, which Delta keeps in memory for later calls.
    """
    (row,) = session.sql(f"DESCRIBE DETAIL {table}").collect()
    return row


def location(session: SparkSession, table: str) -> str:
    """Return the full path, with its scheme, of the folder of a Delta table. ``table``: its name in
    SQL; Spark raises an error if it does not exist.
    """
    return str(details(session, table)["location"])


def local_path(location: str) -> str | None:
    """Return the path on this machine's disks of a location with the scheme ``file`` and without a
    host, None for any other. ``location``: as Delta writes it (``location``), a URI in which no
    character is escaped.

    >>> local_path("file:/data/50%25 #1"), local_path("s3a://shop/orders")
    ('/data/50%25 #1', None)
    """
    scheme, _, path = location.partition(":")
    if path.startswith("//"):
        host, slash, path = path[2:].partition("/")
        path = "" if host else slash + path
    return path if scheme == "file" and path else None


def sql_name(path: str) -> str:
    """Return the name in SQL of the Delta table in the folder ``path``, a full path: ``delta``, a
    dot and the path in backticks. Backticks in the path are doubled.
    """
    return f"delta.{quoted(path)}"


def read(session: SparkSession, table: str) -> DataFrame:
    """Return a frame of all rows of a table, at its present version. ``table``: its name in SQL.
    Spark raises an error if it does not exist.
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
    """Create a Delta table with the columns and rows of ``rows`` in one commit. With ``replace`` it
    takes the place of one that must exist; without it there must be none. Else Spark raises an
    error.

    ``table``: its name in SQL. ``properties``: the table's properties; it has deletion vectors
    unless they say otherwise. ``partition_by``: the columns that partition its files.
    """
    writer = rows.writeTo(table).using("delta")
    if partition_by:
        # Spark takes the name out of its backticks and parses it again, unless it has a dot.
        twice = (name if "." in name else quoted(name) for name in partition_by)
        writer = writer.partitionedBy(*(F.col(quoted(name)) for name in twice))
    for name, value in {_VECTORS: "true", **properties}.items():
        writer = writer.tableProperty(name, value)
    if replace:
        writer.replace()
    else:
        writer.create()


def overwrite(rows: DataFrame, table: str) -> None:
    """Put these rows and columns in place of all rows and the columns of a Delta table, in one
    commit. The table's properties stay. So does its clustering, if the columns are the same.
    ``table``: the name in SQL of a table that exists.
    """
    if read(rows.sparkSession, table).schema.toNullable() == rows.schema.toNullable():
        replace(rows, table, "true")  # another overwrite would end the clustering
        return
    writer = rows.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
    writer.saveAsTable(table)


def replace(rows: DataFrame, table: str, where: str) -> None:
    """Replace the rows of a Delta table that fulfil the SQL condition ``where`` by ``rows``, in one
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
    """Return True if a table with these properties records its changes: ``FEED``, the property of
    the change data feed, is ``true``. False if it is missing.
    """
    return properties.get(FEED, "").lower() == "true"


def set_property(session: SparkSession, table: str, name: str, value: str) -> None:
    """Set the property ``name`` of a Delta table to ``value``, in one commit without rows.
    ``table``: the table's name in SQL; Spark raises an error if it does not exist. ``name`` must
    have no quotes in it; ``value`` may.
    """
    literal = value.replace("\\", "\\\\").replace("'", "\\'")
    session.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('{name}' = '{literal}')")


def history(session: SparkSession, table: str, limit: int | None) -> list[Row]:
    """Return a Delta table's commits, the latest first: rows of ``version``, ``operation`` and
    ``userMetadata``, which is None without one.

    ``table``: its name in SQL. ``limit``: the most commits to return, None for all that its log
    still has.
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
    filled: bool = False,
) -> None:
    """Merge changes into a Delta table in one MERGE: each row replaces the table's row of its key,
    or deletes it if ``gone``. Rows of keys that the table lacks are inserted, unless they are
    ``gone``.

    ``changes``: at most one row per key; Delta raises an error for two that meet one row.
    ``table``: its name in SQL. ``key``, ``values``: by column of the table, expressions over
    ``changes``; at least one for the key. The table's other columns stay as they are, and are null
    in an inserted row. ``gone``: a column over ``changes``, true or false, never null.

    ``where``: further conditions that all rows of these keys fulfil, by which files are skipped.
    They name the table's columns without a prefix, and no columns of ``changes``. ``nulls``: True
    if a null in a key equals a null. Otherwise it equals nothing, so a row with one is inserted
    anew, or left out if ``gone``.

    ``filled``: True if no row of the table has only nulls in these columns. A null key that is
    ``gone`` may then be one that the table lacks; else it must be in the table (``is_there``).
    """
    columns = {**key, **values}
    # The names are reserved, so no column of the table is mistaken for one of the source.
    source_names = internal_names(list(key), list(columns))
    source = changes.select(
        *(column.alias(source_names[name]) for name, column in columns.items()), gone.alias(CHANGE)
    )
    pairs = [(F.col(quoted(name)), F.col(source_names[name])) for name in key]
    same = [a.eqNullSafe(b) if nulls else a == b for a, b in pairs]
    if nulls and filled:
        same.append(~F.col(CHANGE) | is_there(list(columns)))
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


def is_there(columns: Sequence[str]) -> Column:
    """Return a condition of a MERGE with null keys: one of these columns of the table is not null.

    Rows of the source that are neither matched nor inserted must require it. For Delta joins a row
    without a match with nulls, which then equal the nulls of its key. Such a row would be matched,
    and fail the MERGE. A row of the table that has only nulls is not found either.
    """
    return reduce(or_, [F.col(quoted(name)).isNotNull() for name in columns])


def internal_names(keys: Sequence[str], columns: Sequence[str]) -> dict[str, str]:
    """Return a reserved name for each column, by column: ``_k0``, ``_k1`` … for those in ``keys``,
    then ``_0_0``, ``_0_1`` … for the other ``columns``, in order.

    >>> internal_names(["id"], ["id", "v", "w"])
    {'id': '_k0', 'v': '_0_0', 'w': '_0_1'}
    """
    names = {name: key_name(i) for i, name in enumerate(keys)}
    values = [name for name in columns if name not in keys]
    return names | {name: value_name(0, i) for i, name in enumerate(values)}


def file_skipping_conditions(rows: DataFrame, keys: Mapping[str, str]) -> list[Column]:
    """Return conditions on a Delta table by which a merge of ``rows`` skips files, for the argument
    ``where`` of ``merge``. Each says that a key column of the table, named without a prefix, lies
    within the range of its values in ``rows``. Both ends are included.

    A key column gives no condition if it has nulls in ``rows``, or if its type has no range
    (``has_range``). Without rows the list is empty. ``keys``: the name in ``rows`` of each key
    column of the table. Runs a job.
    """
    types = {name: rows.schema[name].dataType for name in keys.values()}
    asked = [part for name, type_ in types.items() for part in range_aggregates(name, type_)]
    row = rows.agg(F.count("*").alias("count"), *asked).first()
    assert row is not None
    ranges = [range_of(row, name) for name in types]
    return range_conditions([F.col(quoted(name)) for name in keys], ranges)


def range_aggregates(name: str, type_: DataType) -> list[Column]:
    """Return the aggregates of the column ``name``, of type ``type_``, that ``range_of`` needs: its
    count of values that are not null, its smallest and its largest one. Their names are ``<name>
    count``, ``<name> min`` and ``<name> max``. Empty for a type without a range (``has_range``).
    """
    if not has_range(type_):
        return []
    asked = {"count": F.count, "min": F.min, "max": F.max}
    return [of(quoted(name)).alias(f"{name} {part}") for part, of in asked.items()]


def range_of(row: Row, name: str) -> Range | None:
    """Return the smallest and the largest value of the column ``name``, as a pair of Python values.
    ``row``: the results of ``range_aggregates`` for it, and in ``count`` the count of all rows.

    None if the column has nulls, there are no rows, or the type has no range.
    """
    statistics = row.asDict()
    if not 0 < statistics["count"] == statistics.get(f"{name} count"):
        return None
    return statistics[f"{name} min"], statistics[f"{name} max"]


def range_conditions(columns: Sequence[Column], ranges: Sequence[Range | None]) -> list[Column]:
    """Return conditions by which files are skipped: each column lies within its range, both ends
    included. ``ranges``: one for each column, its smallest and largest value; None gives no
    condition. The two sequences must be equally long.
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
