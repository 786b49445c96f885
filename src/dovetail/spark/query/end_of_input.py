"""The end of a query's input (``close_at_end=True``): a last micro-batch in which all inputs have
ended, so nothing waits any longer.

The micro-batch has no rows, so it is planned in the checkpoint (``planned_batches``), with a mark.
By the mark every later start knows that the input ends here, or has ended. The query that runs the
micro-batch tells every stage that its inputs have ended (``execution.streaming_frames.Streaming``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dovetail.errors import CheckpointError, ConfigurationError
from dovetail.platform.files import files_of
from dovetail.platform.sessions import is_remote
from dovetail.spark.checkpoints.checkpoint import CLOSING
from dovetail.spark.query.planned_batches import plan_batch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dovetail.spark.query.writer import StartRequest

CLOSING_MARK = "dovetail.closing"
"""The setting that marks the last micro-batch in Spark's plan of it."""


def refuse_remote(operator: str, session: SparkSession) -> None:
    """Raise ``ConfigurationError`` on Spark Connect, which cannot write the end of the input into a
    checkpoint. ``operator``: the call, for the error.
    """
    if is_remote(session):
        raise ConfigurationError(
            operator,
            "Spark Connect cannot write files into a checkpoint, as close_at_end= needs it",
            "Leave it out, or run the query in a classic session",
        )


def refuse_ended(session: SparkSession, checkpoint: str, bound: Mapping[str, Any], by: str) -> None:
    """Raise ``CheckpointError`` if the micro-batch that ends the input of ``checkpoint`` is
    committed, so its query has ended for good.

    ``bound``: the content of the checkpoint's ``dovetail.json``. If it has ``CLOSING``, raise
    ``ConfigurationError`` on Spark Connect. ``by``: the title of the query that the error names.
    """
    last = closing_batch(session, checkpoint, bound)
    if last is not None and _is_done(session, checkpoint, last):
        raise CheckpointError(
            by,
            f"the query of {checkpoint} has ended, by close_at_end=True",
            "Start with a new checkpoint, or go back to before its end: "
            f"dt.checkpoints.rewind(spark, checkpoint, batch={last - 1})",
        )


def is_closing(run: StartRequest, bound: Mapping[str, Any], *, asked: bool) -> bool:
    """Return True if the micro-batch that ends the input of ``run`` is planned and not committed.
    Return False if none is planned, also with ``asked``.

    ``bound``: the content of the checkpoint's ``dovetail.json``. ``asked``: True if the call has
    ``close_at_end=True``. Raises ``CheckpointError`` for a planned end that is not asked for, and
    for one that is committed. Raises ``ConfigurationError`` on Spark Connect if ``bound`` has
    ``CLOSING``.
    """
    refuse_ended(run.session, run.checkpoint, bound, run.title)
    planned = closing_batch(run.session, run.checkpoint, bound) is not None
    if planned and not asked:
        raise CheckpointError(
            run.title,
            f"the query of {run.checkpoint} was stopped while close_at_end=True ended it",
            "Start it once more with trigger={'availableNow': True}, close_at_end=True, which does "
            "the rest",
        )
    return planned


def plan_end(run: StartRequest) -> bool:
    """Write the entry ``CLOSING`` to ``dovetail.json``, unless the checkpoint has not begun. Then
    plan the last micro-batch, without rows, and return True. Return False if there was no
    micro-batch before, so nothing waits, or if the last one is not complete. The entry is written
    in that case, too.
    """
    bound = run.file.read(run.title)
    if bound is not None and CLOSING not in bound:
        run.file.write({**bound, CLOSING: True})
    return plan_batch(run.session, run.checkpoint, CLOSING_MARK)


def closing_batch(session: SparkSession, checkpoint: str, bound: Mapping[str, Any]) -> int | None:
    """Return the id of the micro-batch that ends the input of a ``checkpoint``, if it is the last
    planned one; else None. ``bound``: the content of the checkpoint's ``dovetail.json``. If it has
    ``CLOSING``, raises ``ConfigurationError`` on Spark Connect.
    """
    if CLOSING not in bound:
        return None
    files, root = files_of(session), checkpoint.rstrip("/")
    last = max(files.numbers(f"{root}/offsets"), default=None)
    text = None if last is None else files.text(f"{root}/offsets/{last}")
    marked = text is not None and CLOSING_MARK in json.loads(text.splitlines()[1])["conf"]
    return last if marked else None


def _is_done(session: SparkSession, checkpoint: str, batch: int) -> bool:
    """Return True if the micro-batch with the id ``batch`` is committed in the checkpoint. False
    without a checkpoint, and if Spark has removed its commit. Raises ``ConfigurationError`` on
    Spark Connect.
    """
    return batch in files_of(session).numbers(f"{checkpoint.rstrip('/')}/commits")
