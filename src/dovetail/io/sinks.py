"""Sinks for a changelog: what ``Table.write_stream`` takes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from os import fspath
from typing import TYPE_CHECKING, Annotated, TypeAlias

from pyspark.sql import DataFrame, SparkSession

from dovetail.arguments import Path, Rule, takes, validated
from dovetail.errors import TargetError
from dovetail.hadoop import entries, located
from dovetail.plan.nodes import Node
from dovetail.plan.spans import Span, microseconds
from dovetail.refusals import make_folder

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter


ViewName: TypeAlias = Annotated[
    str, Rule("a name of letters, digits and _", re.compile(r"[A-Za-z_]\w*", re.ASCII).fullmatch)
]
OfBatches: TypeAlias = Annotated[
    Callable[[DataFrame, int], None],
    Rule("a function of a micro-batch's changes and its number", partial(takes, 2)),
]


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
    retention_ms: int | None = None

    def writer(self, changes: DataFrame, node: Node, checkpoint: str) -> DataStreamWriter:
        """The configured writer."""
        session = changes.sparkSession
        begun = _has_files(session, checkpoint, "offsets")
        make_folder(session, "to_parquet", "path=", self.path)
        if not begun and _has_files(session, self.path, "_spark_metadata"):
            raise TargetError(
                f"to_parquet({self.path!r})",
                "the folder has the changes of a query with another checkpoint, so Spark would "
                "leave out as many of this one's micro-batches",
                "Choose another folder, or move this one away",
            )
        writer = changes.writeStream.format("parquet").outputMode("append")
        if self.retention_ms is not None:
            writer = writer.option("retention", f"{self.retention_ms}ms")
        return writer.option("path", self.path)


@dataclass(frozen=True)
class FunctionSink:
    """Hands each micro-batch's changes to a function."""

    function: OfBatches

    def writer(self, changes: DataFrame, node: Node, checkpoint: str) -> DataStreamWriter:
        """The configured writer."""
        return changes.writeStream.foreachBatch(self.function)


@validated
def to_parquet(path: Path, *, retention: Span | None = None) -> ParquetSink:
    """The changelog as Parquet files: every change is appended, exactly once.

    The folder's ``_spark_metadata`` lists the files that count, and every tenth micro-batch writes
    the whole list again. ``retention``: files leave it when they are so old, so that it does not
    grow for good. Spark then no longer reads them; they lie there until you delete them.

    Raises ``TargetError`` at the start of a query with a new checkpoint where the folder has
    another's changes.
    """
    if retention is None:
        return ParquetSink(fspath(path))
    retention_us = microseconds("to_parquet", "retention=", retention)
    return ParquetSink(fspath(path), max(retention_us // 1000, 1))


@validated
def to_memory(name: ViewName) -> FormatSink:
    """The changelog as an in-memory table ``name`` of the session; for notebooks and tests."""
    return FormatSink("memory", (("queryName", name),))


@validated
def to_foreach_batch(function: OfBatches) -> FunctionSink:
    """Calls ``function(changes, batch_id)`` for each micro-batch; again after a failure."""
    return FunctionSink(function)


def _has_files(session: SparkSession, folder: str, log: str) -> bool:
    """Whether one of Spark's logs in a folder has any entry."""
    path, files = located(session, folder, log)
    return any(True for _ in entries(files, path))
