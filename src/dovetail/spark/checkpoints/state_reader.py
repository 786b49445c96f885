"""The content of a checkpoint, as frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from os import fspath
from typing import Annotated, Any, Protocol, TypeAlias

from pyspark.sql import DataFrame
from pyspark.sql.types import (
    ArrayType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from dovetail.base.columns import quoted
from dovetail.base.validation import ColumnNames, Natural, Path, Rule, Text, validated
from dovetail.errors import ConfigurationError
from dovetail.plan.changelog_source import Session
from dovetail.plan.nodes import Node
from dovetail.spark.checkpoints.lookup_keys import Keys
from dovetail.spark.checkpoints.state_results import find_result, rows_of_result
from dovetail.spark.checkpoints.store_rows import last_versions, rows_of_store
from dovetail.spark.checkpoints.stores import CheckpointStores, list_stores, refuse_other_times

Moment: TypeAlias = Annotated[
    datetime, Rule("a datetime with its time zone", lambda t: t.tzinfo is not None)
]


class _HasPlan(Protocol):
    """An object with a plan: a table or a stream."""

    plan: Node


ATopology: TypeAlias = Annotated[
    _HasPlan,
    Rule("a Table or a Stream", lambda value: isinstance(getattr(value, "plan", None), Node)),
]

Topologies: TypeAlias = Annotated[
    ATopology | Sequence[ATopology],
    Rule("a Table or a Stream, or a list of them", lambda value: value not in ([], ())),
]

_LISTING = StructType(
    [
        StructField("stage", LongType(), False),
        StructField("operator", StringType(), False),
        StructField("store", StringType(), False),
        StructField("table", StringType()),
        StructField("holds", StringType(), False),
        StructField("rows", LongType(), False),
        StructField("bytes", LongType(), False),
        StructField("segments", LongType(), False),
        StructField("buckets", LongType(), False),
        StructField("stream_time", TimestampType()),
        StructField("batch", LongType(), False),
        StructField("offsets", ArrayType(StringType()), False),
    ]
)


@validated
def read_state(
    spark: Session,
    checkpoint: Path,
    table: Text | None = None,
    *,
    batch: Natural | None = None,
    as_of: Moment | None = None,
    keys: Keys | None = None,
    columns: ColumnNames | None = None,
    topology: Topologies | None = None,
) -> DataFrame:
    """Read what a query's checkpoint holds after a micro-batch, as a frame.

    The query may run meanwhile. Without ``table`` and ``topology``, the frame lists the
    stores of the checkpoint. A store holds rows of one kind in one stage.

    Parameters
    ----------
    spark : SparkSession
        The session that reads.
    checkpoint : str or path
        The checkpoint of the query.
    table : str, optional
        The name of an input, an aggregate or a store, whose rows are returned. With
        ``topology``, it may be the ``name=`` of a join of tables.
    batch : int, optional
        The number of a micro-batch that Spark has kept. By default it is the last one that
        is committed at the time of the call.
    as_of : datetime, optional
        For a versioned table, the time whose rows are returned, with a time zone: of each key
        the last version at or before it, unless that is a delete.
    keys : list, optional
        The keys whose rows are returned, each a value, or a tuple or mapping of the key's
        columns. Pieces of the store that cannot hold these keys are not unpacked. An empty
        list gives no rows.
    columns : str or list of str, optional
        The columns to return, in this order. Other value columns are not unpacked.
    topology : Table, Stream or list of these, optional
        The table that the query keeps, one of the results of ``run``, or the list of all.
        The result is then computed from the stored rows, and takes neither ``keys`` nor
        ``as_of``. ``table`` may name a join within it. With a list, ``table`` names the
        result.

    Returns
    -------
    DataFrame
        The rows. Until the frame is used, only the manifests of all buckets are read.

    Raises
    ------
    CheckpointError
        If the folder is no checkpoint of a query or has no such micro-batch. Also if
        ``topology`` is another one than that of the checkpoint.
    ConfigurationError
        If the checkpoint does not hold ``table``, or not as of that time. Also for unknown
        columns, and for arguments that need ``table``. Also for a result that needs more
        than the stored rows, such as one of windows, or if Spark cannot read the checkpoint.
    PlanError
        If a key is null, has another type or other columns.
    StateError
        If the state is in the format of another version.

    See Also
    --------
    lookup_state : Return the rows of some keys within milliseconds.
    rewind : Set a query back to an earlier micro-batch.

    Notes
    -----
    Without ``table``, the frame has a row for each store:

    - ``stage``: the number in ``explain()``;
    - ``operator``: the stage in words;
    - ``store``: the name of the store;
    - ``table``: the table whose rows it has, null if it only helps another store;
    - ``holds``: its content in words;
    - ``rows``: the number of stored rows, including rows that newer ones replace;
    - ``bytes``: the size before compression;
    - ``segments``: the number of pieces;
    - ``buckets``: the number of buckets that have any rows;
    - ``stream_time``: the latest event time of its inputs;
    - ``batch``: the number of the micro-batch;
    - ``offsets``: the end of that micro-batch in each source, in Spark's form.

    With ``table``, the frame has the columns of the key, the values and ``_timestamp``. Its
    rows are:

    - of a table, the last row of each key;
    - of a versioned table, all versions that it still has, with ``_change`` (``upsert`` or
      ``delete``). With ``as_of``, they are the rows of that time;
    - of a stream, the records that a window still needs;
    - of records that wait, these records, with ``_due``, the stream time up to which they
      wait;
    - of an aggregate, the result of each group, and of windows until they are closed.

    A table that several stages store is the same in all of them. With ``topology``,
    ``_timestamp`` is the latest of the rows that make a row.

    Examples
    --------
    >>> import tempfile
    >>> import dovetail as dt
    >>> rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 3).load()
    >>> rows = rows.selectExpr("value AS id", "10 * value AS amount", "timestamp AS at")
    >>> orders = dt.Table.from_changelog(rows, key="id", timestamp="at", name="orders")
    >>> folder = tempfile.TemporaryDirectory()
    >>> checkpoint = f"{folder.name}/checkpoint"
    >>> sink = dt.to_parquet(f"{folder.name}/orders")
    >>> query = orders.write_stream(
    ...     sink, checkpoint=checkpoint, trigger={"availableNow": True}, buckets=1
    ... )
    >>> query.awaitTermination()
    >>> dt.checkpoints.read_state(spark, checkpoint).select("stage", "store", "rows").collect()
    [Row(stage=1, store='orders', rows=3)]
    >>> columns = ["id", "amount"]
    >>> dt.checkpoints.read_state(spark, checkpoint, "orders", keys=[1], columns=columns).collect()
    [Row(id=1, amount=10)]
    """
    stored = CheckpointStores.read_with_spark("read_state", spark, fspath(checkpoint), batch)
    names = [columns] if isinstance(columns, str) else columns
    if topology is not None:
        topologies = topology if isinstance(topology, Sequence) else [topology]
        meant = find_result(stored, [planned.plan for planned in topologies], table)
        if meant is not None:
            node, whole = meant
            _refuse_arguments("a stored table", {"as_of": as_of, "keys": keys})
            return _select_columns(rows_of_result(stored, whole, node), names)
    if table is None:
        _refuse_arguments("a table", {"as_of": as_of, "keys": keys, "columns": columns})
        return spark.createDataFrame([tuple(row.values()) for row in list_stores(stored)], _LISTING)
    stage_store = stored.store_of(table)
    if as_of is not None:
        refuse_other_times("read_state", table, stage_store, as_of)
    frame = rows_of_store(stored, stage_store, keys=keys, columns=names)
    return _select_columns(
        frame if as_of is None else last_versions(frame, stage_store, as_of), names
    )


def _select_columns(frame: DataFrame, columns: Sequence[str] | None) -> DataFrame:
    """Return ``columns`` of a frame, in the order given; the frame itself for None. Raises
    ``ConfigurationError`` for names that the frame does not have.
    """
    if columns is None:
        return frame
    unknown = [name for name in columns if name not in frame.columns]
    if unknown:
        problem = f"there is no column {unknown[0]!r}"
        raise ConfigurationError("read_state", problem, f"There are {', '.join(frame.columns)}")
    return frame.select([quoted(name) for name in columns])


def _refuse_arguments(what: str, arguments: Mapping[str, Any]) -> None:
    """Raise ``ConfigurationError`` if one of ``arguments`` (values by name) is not None, since such
    an argument needs ``what``: a noun for the error.
    """
    for name, value in arguments.items():
        if value is not None:
            raise ConfigurationError("read_state", f"{name}= goes with {what}", "Name one")
