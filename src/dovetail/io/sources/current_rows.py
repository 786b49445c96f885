"""The current rows of a changelog in Parquet files."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from dovetail.base.columns import CHANGE, DELETE, POSITION, TIMESTAMP, quoted
from dovetail.base.validation import ColumnNames, Path, validated
from dovetail.errors import PlanError
from dovetail.io.sinks.spark_sinks import KEY_METADATA
from dovetail.plan.types.checks import split_key_and_values
from dovetail.platform.spark_errors import convert_spark_errors

_READER = "read_current"
_FOLDER_REMEDY = "Give the folder that to_parquet has written"
_ONE_TYPE = f"{_FOLDER_REMEDY}, in whose files each column has one type"


@validated
def read_current(spark: SparkSession, path: Path, *, key: ColumnNames | None = None) -> DataFrame:
    """Read the rows of the table whose changes ``to_parquet`` has written to a folder.

    The row of a key is its last change, unless that change is a delete. In keys a null
    equals a null.

    Parameters
    ----------
    spark : SparkSession
        The session that reads.
    path : str or Path
        The folder. Its query may be running.
    key : str or list of str, optional
        The table's key columns. The files name them, unless something else than
        ``to_parquet`` wrote them.

    Returns
    -------
    DataFrame
        A static frame with the key, the values, and ``_timestamp``, the event time of the
        row's last change. Its rows have no particular order.

    Raises
    ------
    PlanError
        If the folder has no changelog of a table, or the key is not known.
    ConfigurationError
        If the folder cannot be read, or a column has two types in its files.

    See Also
    --------
    to_parquet : Write the changelog as Parquet files.
    to_delta : Keep a Delta table equal to the query's table.
    read_state : Read the rows that a query stores.

    Notes
    -----
    All files are read, so the cost grows with the changelog. ``to_delta`` keeps the rows
    themselves.

    A query may go on with other columns. The frame then has the columns of all files, null
    in rows that were written without them.

    Files that have left the folder's list (``to_parquet(retention=)``) are not read. Rows
    that have not changed since are therefore missing.

    Examples
    --------
    >>> import tempfile
    >>> import dovetail as dt
    >>> from pyspark.sql import functions as F
    >>> folder = tempfile.TemporaryDirectory()
    >>> changes = spark.createDataFrame(
    ...     [(1, 40, "upsert", 1), (2, 7, "upsert", 2), (2, None, "delete", 3)],
    ...     "id long, amount long, _change string, _position long",
    ... ).withColumn("_timestamp", F.timestamp_seconds("_position"))
    >>> changes.write.parquet(f"{folder.name}/orders")
    >>> dt.read_current(spark, f"{folder.name}/orders", key="id").select("id", "amount").show()
    +---+------+
    | id|amount|
    +---+------+
    |  1|    40|
    +---+------+
    <BLANKLINE>
    """
    problem = f"path={str(path)!r} cannot be read"
    with convert_spark_errors(_READER, problem, _ONE_TYPE):
        # By default Spark takes the columns of one file for those of all.
        changes = spark.read.option("mergeSchema", "true").parquet(str(path))
        column_names = changes.columns  # Spark Connect reads the folder only now.
    missing = [name for name in (CHANGE, TIMESTAMP, POSITION) if name not in column_names]
    if missing:
        problem = f"path={str(path)!r} has no changelog, its files have no column {missing[0]!r}"
        raise PlanError(_READER, problem, _FOLDER_REMEDY)
    keys = _key_columns(changes.schema, key)
    added = (CHANGE, TIMESTAMP, POSITION, _BATCH)
    values = [name for name in changes.columns if name not in (*keys, *added)]
    values.append(TIMESTAMP)
    row = F.struct(*(F.col(quoted(name)) for name in values), CHANGE)
    last = changes.groupBy(*(F.col(quoted(name)) for name in keys)).agg(
        F.max_by(row, POSITION).alias("_last")
    )
    rows = last.where(F.col(f"_last.{CHANGE}") != DELETE)
    columns = (F.col(f"_last.{quoted(name)}").alias(name) for name in values)
    return rows.select(*(F.col(quoted(name)) for name in keys), *columns)


_BATCH = "_batch"


def _key_columns(schema: StructType, key: str | Sequence[str] | None) -> list[str]:
    """Return the names of the key columns: those in ``key`` or, for None, those that the files'
    metadata names. ``schema``: the files' columns.

    Raises ``PlanError`` if there are none, and for a column that the files lack.
    """
    if key is not None:
        key_columns, _ = split_key_and_values(_READER, key, schema)
        if not key_columns.names:
            raise PlanError(_READER, "key= names no column", "Name the table's key columns")
        return key_columns.names
    key_names = [field.name for field in schema if field.metadata.get(KEY_METADATA)]
    if not key_names:
        raise PlanError(
            _READER,
            "path= has files that do not say which columns are the key of a table",
            "Name them in key=; the records of a stream have no current rows",
        )
    return key_names
