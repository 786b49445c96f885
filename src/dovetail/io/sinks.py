"""Sinks for a changelog: what ``Table.write_stream`` takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dovetail.plan.nodes import Node

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
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
class FunctionSink:
    """Hands each micro-batch's changes to a function."""

    function: Callable[[DataFrame, int], None]

    def writer(self, changes: DataFrame, node: Node, checkpoint: str) -> DataStreamWriter:
        """The configured writer."""
        return changes.writeStream.foreachBatch(self.function)


def to_parquet(path: str) -> FormatSink:
    """The changelog as Parquet files: every change is appended, exactly once."""
    return FormatSink("parquet", (("path", path),))


def to_memory(name: str) -> FormatSink:
    """The changelog as an in-memory table ``name`` of the session; for notebooks and tests."""
    return FormatSink("memory", (("queryName", name),))


def to_function(function: Callable[[DataFrame, int], None]) -> FunctionSink:
    """Calls ``function(changes, batch_id)`` for each micro-batch; again after a failure."""
    return FunctionSink(function)
