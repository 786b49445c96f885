"""Tables that are read to their present end before the records of a stream flow (``load="first"``).

A query of the same stages runs first. It reads all inputs but the streams that wait, up to the end
that they had when it began: Spark's trigger ``availableNow`` notes these ends. In the place of a
waiting stream it reads an empty folder, so the checkpoint has no offset of it. Then the real query
goes on with the checkpoint, and begins the streams where their readers say.

::

    loading     tables           micro-batch 0 ─▶ … ─▶ n        streams wait
    real query  tables, streams                   n + 1 ─▶ …    everything flows

``LOADING`` stands in ``dovetail.json`` until the first query has read all. So a start after a kill
reads the rest first. Then ``LOADED`` has the number ``n``, before which ``rewind`` does not go.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession

from dovetail.errors import CheckpointError, ConfigurationError
from dovetail.plan.fingerprint import sources_of
from dovetail.plan.joins.stream_table_join import sources_that_wait
from dovetail.plan.nodes import Entry, Node, Source
from dovetail.plan.spark_sources import refuse_frames_with_state
from dovetail.platform.files import files_of
from dovetail.platform.jvm import streaming_leaves
from dovetail.platform.sessions import is_remote
from dovetail.spark.checkpoints.checkpoint import LOADED, LOADING

if TYPE_CHECKING:
    from dovetail.spark.query.writer import StartRequest

_FOLDER = "waiting"


def loading_entry(nodes: Sequence[Node]) -> dict[str, Any]:
    """Return ``{LOADING: True}``, an entry of a new checkpoint's binding which says that tables are
    to be loaded first. Return an empty dict unless a stream waits and another source that is not
    static is read.

    ``nodes``: the results of the query. Raises ``PlanError`` if a stream that waits also feeds a
    table that is loaded first, or if it has state of Spark's own.
    """
    held = sources_that_wait(*nodes)
    read = [source for source in sources_of(nodes) if not source.static and source not in held]
    if not held or not read:
        return {}
    because = "which Spark refuses after the query of load='first', in which it waits"
    refuse_frames_with_state("load='first'", held, because)
    return {LOADING: True}


def refuse_remote(operator: str, session: SparkSession) -> None:
    """Raise ``ConfigurationError`` on Spark Connect, where a query that has read all cannot be told
    from one that was stopped. ``operator``: the call, for the error.
    """
    if is_remote(session):
        raise ConfigurationError(
            operator,
            "Spark Connect does not tell a query that has read all from one that was stopped, as "
            "load='first' needs it",
            "Leave it out, or start the query in a classic session for the first time; it may go "
            "on here",
        )


def refuse_loading(bound: Mapping[str, Any], checkpoint: str, by: str) -> None:
    """Raise ``CheckpointError`` for a checkpoint whose tables are not yet read to their end.
    ``bound``: its binding, the content of ``dovetail.json``. ``by``: the title of the query that
    the error names.
    """
    if LOADING in bound:
        raise CheckpointError(
            by,
            f"the query of {checkpoint} has not read its tables to their end, by load='first'",
            "Start it once more until it has",
        )


def held_back_sources(
    session: SparkSession, checkpoint: str, nodes: Sequence[Node]
) -> dict[Entry, Source]:
    """Return for each stream that waits a source without rows, which is read in its place; empty if
    none waits. In any case, write the empty folder that these sources read, ``waiting`` in the
    checkpoint. ``nodes``: the results of the query. Raises ``PlanError`` if such a stream also
    feeds a table that is loaded first.
    """
    path = f"{checkpoint.rstrip('/')}/{_FOLDER}"
    # Spark reads no file whose name begins with an underscore, but wants the folder to be there.
    files_of(session).put(f"{path}/_empty", "")
    return {
        source: _source_without_rows(session, path, source) for source in sources_that_wait(*nodes)
    }


def _source_without_rows(session: SparkSession, path: str, source: Source) -> Source:
    """Return a copy of ``source`` over frames without rows, which have the same columns and as many
    of Spark's streaming sources as the frame had. ``path``: an empty folder.
    """
    assert source.frame is not None
    leaves = streaming_leaves(source.frame)

    def empty_frame(frame: DataFrame) -> DataFrame:
        """Return a streaming frame without rows that has the columns of ``frame``."""
        parts = [session.readStream.schema(frame.schema).parquet(path) for _ in range(leaves)]
        return reduce(DataFrame.union, parts)

    unread = source.with_unread
    return replace(
        source,
        frame=empty_frame(source.frame),
        with_unread=None if unread is None else empty_frame(unread),
    )


def describe_held_sources(nodes: Sequence[Node]) -> str:
    """Return a clause for the log, such as ``it reads prices to the present end, while orders
    wait``: the sources that do not wait, static ones among them, then the streams that wait.
    ``nodes``: the results of the query. At least one stream must wait.
    """
    held = sources_that_wait(*nodes)
    read = [source.name for source in sources_of(nodes) if source not in held]
    held_names = ", ".join(source.name for source in held)
    return f"it reads {', '.join(read)} to the present end, while {held_names} wait"


def note_loaded(run: StartRequest) -> dict[str, Any] | None:
    """Put ``LOADED`` in the place of ``LOADING`` in the file ``dovetail.json`` of the query
    ``run``, since all tables are loaded. Return the binding that is written; None, and write
    nothing, if the checkpoint has not begun. Raises ``CheckpointError`` for a binding that cannot
    be read.
    """
    bound = run.file.read(run.title)
    if bound is None:  # Spark has read nothing, and written nothing
        return None
    binding = {name: value for name, value in bound.items() if name != LOADING}
    batches = files_of(run.session).numbers(f"{run.checkpoint.rstrip('/')}/commits")
    if batches:
        binding[LOADED] = max(batches)
    run.file.write(binding)
    return binding
