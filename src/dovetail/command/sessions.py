"""What commands work on: a Spark session, and the stores of a checkpoint."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from dovetail.errors import CheckpointError
from dovetail.spark.checkpoints.changelog_files import UnreadableFile
from dovetail.spark.checkpoints.local_state import local_files
from dovetail.spark.checkpoints.stage_layout import BINDING_FILE
from dovetail.spark.checkpoints.stores import CheckpointStores

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def session() -> Iterator[SparkSession]:
    """Yield the active Spark session of this process, which stays open. If there is none, yield a
    new local one, which is stopped after the block. What Spark then writes to standard error goes
    to a temporary file, which is printed only if no session can be made.

    Raises Spark's own error then, and ``ConfigurationError`` where ``SPARK_REMOTE`` is set.
    """
    from pyspark.sql import SparkSession

    from dovetail.spark.session import configure

    running = SparkSession.getActiveSession()
    if running is not None:
        yield running
        return
    builder = configure(SparkSession.builder.master("local[*]").appName("dovetail"))
    builder = builder.config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    with tempfile.TemporaryFile() as log:
        stderr_fd = os.dup(2)
        os.dup2(log.fileno(), 2)
        try:
            spark = builder.getOrCreate()
        except Exception:
            log.seek(0)
            os.write(stderr_fd, log.read())
            raise
        finally:
            os.dup2(stderr_fd, 2)
            os.close(stderr_fd)
        try:
            yield spark
        finally:
            spark.stop()


@contextmanager
def open_stores(caller: str, checkpoint: str, batch: int | None) -> Iterator[CheckpointStores]:
    """Yield the stores of a checkpoint after the micro-batch ``batch``, None for the last one.
    ``caller``: the command, for errors. The stores come from the checkpoint's files if they are on
    a local disk, else through a session.

    Raises ``CheckpointError`` for a folder that is no checkpoint or lacks the micro-batch, and if
    files go while they are read. Raises ``ConfigurationError`` if Spark cannot read them.
    """
    stored = local_stores(caller, checkpoint, batch)
    if stored is None:
        with session() as spark:
            yield CheckpointStores.read_with_spark(caller, spark, checkpoint, batch)
        return
    with refuse_deleted_files(caller, checkpoint):
        yield stored


@contextmanager
def refuse_deleted_files(caller: str, checkpoint: str) -> Iterator[None]:
    """Raise ``CheckpointError`` in place of ``UnreadableFile`` in the block: files of a local
    checkpoint were deleted while it read them. ``caller``: the command, for the error.
    """
    try:
        yield
    except UnreadableFile as error:
        raise CheckpointError(
            caller,
            f"files of {checkpoint} went while they were read ({error})",
            "Call again: the query has deleted an old micro-batch",
        ) from error


def local_stores(caller: str, checkpoint: str, batch: int | None) -> CheckpointStores | None:
    """Return the stores of a checkpoint on a local disk after the micro-batch ``batch``, None for
    the last one. Return None if Spark is needed to read them: for no local folder, without the
    package rocksdict, or if a file cannot be read. ``caller``: the command, for errors.

    Raises ``CheckpointError`` for a folder that is no checkpoint or lacks the micro-batch. Reading
    rows of the stores may raise ``UnreadableFile`` later.
    """
    files = local_files(checkpoint)
    if files is None:
        refuse_other_folder(caller, checkpoint)
        return None
    with suppress(UnreadableFile):
        return CheckpointStores.read(caller, files, batch)
    return None


def refuse_other_folder(caller: str, checkpoint: str) -> None:
    """Raise ``CheckpointError`` for a local folder without ``dovetail.json`` (``BINDING_FILE``),
    the file that each checkpoint of a query has. Do nothing for a path that is no local folder: it
    may be on another file system, or be missing.

    ``caller``: the command, for the error.
    """
    folder = Path(checkpoint)
    if folder.is_dir() and not (folder / BINDING_FILE).is_file():
        raise CheckpointError(
            caller,
            f"{checkpoint} has no {BINDING_FILE}",
            "Give the checkpoint= of a query that was started with write_stream",
        )
