"""Changes the number of partitions of a checkpoint's state."""

from __future__ import annotations

from os import fspath
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from dovetail.base.validation import Path, Positive, validated
from dovetail.errors import CheckpointError, ConfigurationError
from dovetail.plan.changelog_source import Session
from dovetail.platform.sessions import is_remote
from dovetail.platform.spark_errors import refused
from dovetail.spark.checkpoints.checkpoint import REPARTITIONING, CheckpointFile
from dovetail.spark.query.writer import refuse_idle

_DONE, _REFUSED = "SHUFFLE_PARTITIONS_ALREADY_MATCH", "STATE_REPARTITION_INVALID_CHECKPOINT"
_REMEDY = "Start the query, let it finish its last micro-batch, stop it, and call again"


@validated
def repartition(spark: Session, checkpoint: Path, *, partitions: Positive) -> None:
    """Deal the buckets of a stopped query to another number of partitions.

    A partition is a task of every stage with state. More of them suit a cluster that has grown,
    fewer one that has shrunk.

    Started again, the query goes on as if it had always had as many. Its output and its stored rows
    do not change: buckets stay as they are, and there are at least as many of them. Spark writes
    the whole state anew, as a micro-batch of its own without input; ``rewind`` does not go back
    behind it. A call that is killed is repeated; until then the query does not start.

    Raises ``CheckpointError`` where the folder is no checkpoint of a query, or belongs to a query
    that runs in this session. Raises ``PlanError`` for more partitions than buckets. Raises
    ``ConfigurationError`` where Spark refuses, as after a micro-batch that is not complete, and on
    Spark Connect, which does not offer it.
    """
    if is_remote(spark):
        raise ConfigurationError(
            "repartition",
            "Spark Connect does not offer it",
            "Call it in a classic session, or run: dovetail repartition",
        )
    root = fspath(checkpoint).rstrip("/")
    file = CheckpointFile(spark, root)
    bound = file.at_rest("repartition")
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
    with refused("repartition", f"Spark does not repartition {root}", _REMEDY):
        try:
            manager.repartition(root, partitions)
        except (Py4JError, PySparkException) as error:
            done, refused_at_once = (sign in str(error) for sign in (_DONE, _REFUSED))
            if not done:
                if refused_at_once:
                    file.write(bound)
                raise
    file.write({**bound, "partitions": partitions})
