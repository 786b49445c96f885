"""Sinks for a changelog: what ``Table.write_stream`` takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

from dovetail.errors import TargetError
from dovetail.plan.nodes import Node

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter


@dataclass(frozen=True)
class FormatSink:
    """Appends every change, by one of Spark's own formats."""

    format: str
    options: tuple[tuple[str, str], ...] = ()

    def writer(self, changes: DataFrame, node: Node, checkpoint: str) -> DataStreamWriter:
        """The configured writer."""
        return (
            changes.writeStream.format(self.format)
            .outputMode("append")
            .options(**dict(self.options))
        )


@dataclass(frozen=True)
class ParquetSink:
    """Appends every change as Parquet files.

    The folder lists, by micro-batch, which of its files count. Spark takes a number that is listed
    for a micro-batch that is run again, and leaves it out. So a checkpoint that has not begun
    cannot go on with another one's folder.
    """

    path: str

    def writer(self, changes: DataFrame, node: Node, checkpoint: str) -> DataStreamWriter:
        """The configured writer."""
        session = changes.sparkSession
        begun = _has_files(session, checkpoint, "offsets")
        if not begun and _has_files(session, self.path, "_spark_metadata"):
            raise TargetError(
                f"to_parquet({self.path!r})",
                "the folder has the changes of a query with another checkpoint, so Spark would "
                "leave out as many of this one's micro-batches",
                "Choose another folder, or move this one away",
            )
        return changes.writeStream.format("parquet").outputMode("append").option("path", self.path)


@dataclass(frozen=True)
class FunctionSink:
    """Hands each micro-batch's changes to a function."""

    function: Callable[[DataFrame, int], None]

    def writer(self, changes: DataFrame, node: Node, checkpoint: str) -> DataStreamWriter:
        """The configured writer."""
        return changes.writeStream.foreachBatch(self.function)


def to_parquet(path: str | PathLike[str]) -> ParquetSink:
    """The changelog as Parquet files: every change is appended, exactly once.

    Raises ``TargetError`` at the start of a query with a new checkpoint where the folder has
    another's changes.
    """
    return ParquetSink(fspath(path))


def to_memory(name: str) -> FormatSink:
    """The changelog as an in-memory table ``name`` of the session; for notebooks and tests."""
    return FormatSink("memory", (("queryName", name),))


def to_function(function: Callable[[DataFrame, int], None]) -> FunctionSink:
    """Calls ``function(changes, batch_id)`` for each micro-batch; again after a failure."""
    return FunctionSink(function)


def _has_files(session: SparkSession, folder: str, log: str) -> bool:
    """Whether one of Spark's logs in a folder has any entry; hidden ones are yet to be renamed."""
    jvm: Any = session._jvm  # noqa: SLF001 -- Hadoop's file systems have no Python face
    path = jvm.org.apache.hadoop.fs.Path(folder, log)
    files = path.getFileSystem(session._jsparkSession.sessionState().newHadoopConf())  # noqa: SLF001
    return bool(files.exists(path)) and any(
        not status.getPath().getName().startswith(".") for status in files.listStatus(path)
    )
