"""Micro-batches that Spark would not run, or not in this way.

They are planned in a checkpoint as if Spark had done so and then been stopped. By default their
offsets are those of the micro-batch before, so they have no rows.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dovetail.platform.files import files_of
from dovetail.platform.sessions import is_remote

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dovetail.spark.query.writer import StartRequest


def is_planned(session: SparkSession, checkpoint: str) -> bool:
    """Return True if the last micro-batch of a checkpoint is planned and not committed; False if
    none is planned. Raises ``ConfigurationError`` on Spark Connect.
    """
    files, root = files_of(session), checkpoint.rstrip("/")
    last = max(files.numbers(f"{root}/offsets"), default=None)
    return last is not None and last not in files.numbers(f"{root}/commits")


def plan_batch(
    session: SparkSession, checkpoint: str, *marks: str, until: Sequence[str | None] | None = None
) -> bool:
    """Write the plan of the next micro-batch into ``checkpoint`` and return True. The query must
    not run. Return False and do nothing if no micro-batch was begun, or if the last one is not
    complete. Also if the last one ended at just the offsets ``until``, compared as text. Raises
    ``ConfigurationError`` on Spark Connect.

    ``marks``: names of settings that the micro-batch gets with the value ``true``. ``until``: the
    offset of each of Spark's sources, in their order, up to which the micro-batch reads; None for a
    source that has brought nothing. Without ``until``, the micro-batch reads nothing new.
    """
    files, root = files_of(session), checkpoint.rstrip("/")
    last = max(files.numbers(f"{root}/offsets"), default=None)
    if last is None or last not in files.numbers(f"{root}/commits"):
        return False
    text = files.text(f"{root}/offsets/{last}")
    assert text is not None
    version, metadata_text, *offsets = text.splitlines()
    if until is not None:
        before, offsets = offsets, [offset or "-" for offset in until]
        if offsets == before:
            return False
    metadata = json.loads(metadata_text)
    metadata["batchTimestampMs"] = max(metadata["batchTimestampMs"], time.time_ns() // 1_000_000)
    metadata["conf"] = {**metadata["conf"], **dict.fromkeys(marks, "true")}
    files.put(f"{root}/offsets/{last + 1}", "\n".join([version, json.dumps(metadata), *offsets]))
    return True


def plan_wake_up(run: StartRequest) -> None:
    """Plan a micro-batch without rows, so that a query that goes on checks the rows that wait.

    Spark runs micro-batches for timers only after one with rows, which may not come. On Spark
    Connect nothing is planned, and the rows wait for input. Nothing is planned, too, while the
    query runs, before the first micro-batch, or if a micro-batch is planned already.
    """
    if not is_remote(run.session) and not run.file.is_running():
        plan_batch(run.session, run.checkpoint)
