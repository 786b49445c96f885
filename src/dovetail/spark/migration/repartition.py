"""Changes the number of partitions of a checkpoint's state."""

from __future__ import annotations

from os import fspath
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from dovetail.base.validation import Path, Positive, validated
from dovetail.errors import CheckpointError, ConfigurationError
from dovetail.plan.changelog_source import Session
from dovetail.platform.progress_bar import progress_bar
from dovetail.platform.sessions import is_remote
from dovetail.platform.spark_errors import convert_spark_errors
from dovetail.spark.checkpoints.checkpoint import REPARTITIONING, CheckpointFile
from dovetail.spark.query.writer import refuse_idle

_DONE, _REFUSED = "SHUFFLE_PARTITIONS_ALREADY_MATCH", "STATE_REPARTITION_INVALID_CHECKPOINT"
_REMEDY = "Start the query, let it finish its last micro-batch, stop it, and call again"


@validated
def repartition(spark: Session, checkpoint: Path, *, partitions: Positive) -> None:
    """Deal the buckets of a stopped query to another number of partitions.

    A bucket is a part of the key space, and a partition is a task of every stage with
    state. More partitions suit a cluster that has grown, fewer one that has shrunk.

    Parameters
    ----------
    spark : SparkSession
        The session that writes the state anew.
    checkpoint : str or path
        The checkpoint of the query.
    partitions : int
        The new number of partitions, at least 1 and at most the number of buckets. The
        present number changes nothing.

    Raises
    ------
    PlanError
        If there are more partitions than buckets.
    CheckpointError
        If the folder is no checkpoint of a query, or if the query runs in this
        application. A query that runs in another one is not noticed: stop it first. Also
        if another call, with another number, was killed.
    ConfigurationError
        If Spark refuses, for instance after a micro-batch that is not complete. Also on
        Spark Connect, which does not offer it.

    See Also
    --------
    upgrade : Change the number of buckets.
    rewind : Set a query back to an earlier micro-batch.

    Notes
    -----
    Started again, the query goes on as if it had always had as many partitions. Its output
    and its stored rows do not change, since buckets stay as they are.

    Spark writes the whole state anew, as a micro-batch without input. ``rewind`` does not
    go back behind it. A call that is killed is repeated; until then the query does not
    start.

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
    ...     sink, checkpoint=checkpoint, trigger={"availableNow": True}, buckets=4, partitions=1
    ... )
    >>> query.awaitTermination()
    >>> dt.checkpoints.repartition(spark, checkpoint, partitions=2)
    """
    if is_remote(spark):
        raise ConfigurationError(
            "repartition",
            "Spark Connect does not offer it",
            "Call it in a classic session, or run: dovetail repartition",
        )
    root = fspath(checkpoint).rstrip("/")
    file = CheckpointFile(spark, root)
    bound = file.binding_at_rest("repartition")
    refuse_idle("repartition", partitions, bound["buckets"])
    before, begun = bound["partitions"], bound.pop(REPARTITIONING, None)
    if begun not in (None, partitions):
        raise CheckpointError(
            "repartition",
            f"a call with partitions={begun} was killed",
            "Repeat that one first",
        )
    if before == partitions:
        return
    file.write({**bound, REPARTITIONING: partitions})
    manager: Any = spark._streamingCheckpointManager  # noqa: SLF001 -- its documented place
    with (
        progress_bar(spark, f"{root} is repartitioned"),
        convert_spark_errors("repartition", f"Spark does not repartition {root}", _REMEDY),
    ):
        try:
            manager.repartition(root, partitions)
        except (Py4JError, PySparkException) as error:
            done, refused_at_once = (sign in str(error) for sign in (_DONE, _REFUSED))
            if not done:
                if refused_at_once:
                    file.write(bound)
                raise
    file.write({**bound, "partitions": partitions})
