"""Sets a checkpoint back to its state after an earlier micro-batch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from os import fspath
from uuid import uuid4

from dovetail.base.validation import Natural, Path, validated
from dovetail.errors import CheckpointError
from dovetail.plan.changelog_source import Session
from dovetail.platform.files import files_of
from dovetail.spark.checkpoints.checkpoint import CLOSING, LOADED, CheckpointFile
from dovetail.spark.migration.state_versions import (
    description_folders,
    files_by_version,
    partition_folders,
    partition_index,
)
from dovetail.spark.query.end_of_input import closing_batch


@validated
def rewind(spark: Session, checkpoint: Path, *, batch: Natural) -> datetime:
    """Set a stopped query back to its state after an earlier micro-batch.

    Started again, the query reads its sources from there on, with the state that it had
    then. The checkpoint is changed in place and has nothing of later micro-batches.

    Parameters
    ----------
    spark : SparkSession
        The session that changes the files.
    checkpoint : str or path
        The checkpoint of the query.
    batch : int
        The number of the micro-batch, one that Spark has kept. Spark keeps 100 by default. The
        last one may be named, too: then the query only gets a new id.

    Returns
    -------
    datetime
        The time at which that micro-batch was committed, aware and in UTC. Bring tables that
        the query writes back to that time, too.

    Raises
    ------
    CheckpointError
        If the folder is no checkpoint of a query or has no such micro-batch. Also if the
        query runs in this application. A query that runs in another one is not noticed: stop
        it first. Also for a micro-batch before tables were read to their end (``load="first"``),
        before a call of ``repartition``, or whose state is missing.
    ConfigurationError
        On Spark Connect, which cannot delete the files.

    See Also
    --------
    read_state : Read the state after an earlier micro-batch, without going back.
    upgrade : Turn a checkpoint into one for another topology.

    Notes
    -----
    The next micro-batch has the number ``batch + 1`` and may have other rows than before.
    So the query gets a new id, and is another query to its sinks. docs/state.md says what
    to do with each kind of target.

    A call that is killed may be repeated, and does the rest. Until then, the query is in
    one of three states: as it was, failing when it is started, or going on from a
    micro-batch whose state is there.

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
    >>> committed = dt.checkpoints.rewind(spark, checkpoint, batch=0)
    >>> type(committed).__name__
    'datetime'
    """
    root = fspath(checkpoint).rstrip("/")
    file = CheckpointFile(spark, root)
    bound = file.binding_at_rest("rewind")
    files = files_of(spark)
    batch_ids = files.numbers(f"{root}/commits")
    if batch not in batch_ids:
        available = f"{min(batch_ids)} to {max(batch_ids)}" if batch_ids else "none"
        raise CheckpointError(
            "rewind", f"{root} has no micro-batch {batch}", f"Spark has kept {available}"
        )
    loaded = bound.get(LOADED, batch)
    if batch < loaded:
        raise CheckpointError(
            "rewind",
            f"after micro-batch {batch} tables were not yet read to their end, by load='first', "
            "and streams would meet a part of them",
            f"Name micro-batch {loaded} or a later one, or start with a new checkpoint",
        )
    names_by_version = {
        folder: files_by_version(files, folder) for folder in partition_folders(files, root)
    }
    refuse_missing_state(names_by_version, bound["partitions"], batch)
    committed = files.modified(f"{root}/commits/{batch}")
    # Delete the last state first: without it the query cannot start until the rest is done.
    doomed = [
        (version, f"{folder}/{name}")
        for folder, stored in names_by_version.items()
        for version, names in stored.items()
        for name in names
        if version > batch + 1
    ]
    for _, path in sorted(doomed, reverse=True):
        files.remove(path)
    files.put(f"{root}/metadata", json.dumps({"id": str(uuid4())}))
    for folder in (*description_folders(files, root), f"{root}/commits", f"{root}/offsets"):
        for batch_id in sorted(files.numbers(folder), reverse=True):
            if batch_id > batch:
                files.remove(f"{folder}/{batch_id}")
    # The micro-batch that ends the input has ended all clocks in the state.
    if CLOSING in bound and closing_batch(spark, root, bound) is None:
        file.write({name: value for name, value in bound.items() if name != CLOSING})
    return committed


def refuse_missing_state(
    names_by_version: Mapping[str, Mapping[int, object]], partitions: int, batch: int
) -> None:
    """Raise ``CheckpointError`` unless each partition has the state after micro-batch ``batch``.

    ``names_by_version``: by the folder of a partition, its files by version. The version of the
    state after a micro-batch is ``batch + 1``. ``partitions``: the present count of partitions.

    Spark leaves the folders of partitions that ``repartition`` has given up, with higher indices.
    They have no versions after its call. If one has a version from ``batch + 1`` on, ``batch`` had
    more partitions, and the error is raised, too.
    """
    for folder, stored in names_by_version.items():
        if partition_index(folder) < partitions:
            if batch + 1 not in stored:
                problem = f"{folder} has no state after micro-batch {batch}"
                raise CheckpointError("rewind", problem, "Name a later one")
        elif batch + 1 <= max(stored, default=0):
            problem = f"the state was repartitioned after micro-batch {batch}"
            raise CheckpointError("rewind", problem, "Name a later one")
