"""Sinks for a changelog: what ``Table.write_stream`` takes."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from os import fspath
from typing import TYPE_CHECKING, Annotated, ClassVar, NoReturn, TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from dovetail.arguments import Path, Positive, Rule, takes, validated
from dovetail.columns import quoted
from dovetail.errors import PlanError, TargetError
from dovetail.files import Files, files_of
from dovetail.plan.nodes import Node, changelog_schema
from dovetail.plan.spans import Span, microseconds
from dovetail.refusals import make_folder
from dovetail.sessions import is_remote, keep, numbered, release

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter


_LIST, _BATCH = "_spark_metadata", "_batch"
KEY = "dovetail.key"
"""What is said of a column of the key in the files' schema."""
_INTERVAL = "spark.sql.streaming.fileSink.log.compactInterval"
"""Spark's list of files that count; the folders of micro-batches."""

WriteBatch: TypeAlias = Callable[[DataFrame, int], None]
WriteBatches: TypeAlias = Callable[[Sequence[DataFrame], int], None]
ViewName: TypeAlias = Annotated[
    str, Rule("a name of letters, digits and _", re.compile(r"[A-Za-z_]\w*", re.ASCII).fullmatch)
]
OfBatches: TypeAlias = Annotated[
    Callable[[DataFrame, int], None],
    Rule("a function of a micro-batch's changes and its number", partial(takes, 2)),
]


@dataclass(frozen=True)
class MemorySink:
    """Appends every change to a table in memory."""

    name: str

    @property
    def title(self) -> str:
        """``to_memory('name')``, as it is written."""
        return f"to_memory({self.name!r})"

    def writer(self, changes: DataFrame, node: Node, checkpoint: str) -> DataStreamWriter:
        """The configured writer. Spark's own table does not outlast a run of the query."""
        session = changes.sparkSession
        if files_of(session).has_files(f"{checkpoint}/offsets"):
            write = self.batches(session, node, checkpoint)
            return changes.writeStream.foreachBatch(numbered(session, write))
        memory = changes.writeStream.format("memory").outputMode("append")
        return memory.option("queryName", self.name)

    def batches(self, session: SparkSession, node: Node, checkpoint: str) -> WriteBatch:
        """A view of all micro-batches, in this process."""
        return self.kept(session, node, {})

    def kept(self, session: SparkSession, node: Node, written: dict[int, pa.Table]) -> WriteBatch:
        """A view of what is ``written``, by its micro-batch, and of what will be."""
        schema = changelog_schema(node)

        def write(batch: DataFrame, number: int) -> None:
            written[number] = batch.toArrow()
            rows = pa.concat_tables(written.values())
            session.createDataFrame(rows, schema).createOrReplaceTempView(self.name)

        if not written:
            session.createDataFrame([], schema).createOrReplaceTempView(self.name)
        return write

    def across_runs(self) -> MemorySink:
        """For two runs of a query: Spark's own table does not outlast the first."""
        return _LastingMemorySink(self.name)


@dataclass(frozen=True)
class _LastingMemorySink(MemorySink):
    written: dict[int, pa.Table] = field(default_factory=dict, compare=False)

    def writer(self, changes: DataFrame, node: Node, checkpoint: str) -> DataStreamWriter:
        """The configured writer."""
        session = changes.sparkSession
        write = self.batches(session, node, checkpoint)
        return changes.writeStream.foreachBatch(numbered(session, write))

    def batches(self, session: SparkSession, node: Node, checkpoint: str) -> WriteBatch:
        """The view, with what an earlier run has written."""
        return self.kept(session, node, self.written)


@dataclass(frozen=True)
class ParquetSink:
    """Appends every change as Parquet files.

    Of a query with one result Spark keeps a list in the folder, by micro-batch, of its files that
    count. It takes a number that is listed for a micro-batch that is run again, and leaves it out.
    So a checkpoint that has not begun cannot go on with another one's folder.

    Of a query with several each micro-batch is a folder, ``_batch=<number>``. It is written under a
    name that readers do not see, then renamed; one that is run again takes its place.
    """

    path: str
    retention_ms: int | None = None

    @property
    def title(self) -> str:
        """``to_parquet('folder')``, as it is written."""
        return f"to_parquet({self.path!r})"

    def is_gone(self, session: SparkSession, node: Node, *, alone: bool) -> bool:
        """Whether what a query has written is no longer there; ``alone``: whether this is its only
        sink. Of several results old micro-batches may be deleted. A client of Spark Connect sees no
        hidden files, such as Spark's list.
        """
        files, listed = files_of(session), alone and not is_remote(session)
        return not (files.has_files(f"{self.path}/{_LIST}") if listed else files.exists(self.path))

    def writer(self, changes: DataFrame, node: Node, checkpoint: str) -> DataStreamWriter:
        """The configured writer."""
        session = changes.sparkSession
        files = files_of(session)
        begun = files.has_files(f"{checkpoint}/offsets")
        make_folder(session, "to_parquet", "path=", self.path)
        if not begun and files.has_files(f"{self.path}/{_LIST}"):
            self._refuse(
                "the folder has the changes of a query with another checkpoint, so Spark would "
                "leave out as many of this one's micro-batches"
            )
        if files.has_named(self.path, f"{_BATCH}="):
            self._refuse("the folder has the changes of a query with several results")
        if begun and not is_remote(session):
            interval = session.conf.get(_INTERVAL, "10")
            self._complete_list(files, checkpoint, int(str(interval)))
        writer = _with_key(changes, node).writeStream.format("parquet").outputMode("append")
        if self.retention_ms is not None:
            writer = writer.option("retention", f"{self.retention_ms}ms")
        return writer.option("path", self.path)

    def _complete_list(self, files: Files, checkpoint: str, interval: int) -> None:
        """List nothing for micro-batches that wrote nothing here: in which the query's state was
        repartitioned, or before the query had this folder. Spark does not put a list together that
        lacks one; every ``interval`` of them are in one file, ``.compact``.
        """
        listed = {*files.numbers(f"{self.path}/{_LIST}")}
        whole = files.numbers(f"{self.path}/{_LIST}", suffix=".compact")
        committed = {*files.numbers(f"{checkpoint}/commits")}
        missing = {number: str(number) for number in committed - listed.union(whole)}
        if not (listed or whole) and missing:
            whole = [(max(committed) + 1) // interval * interval - 1]
            if whole != [-1]:
                missing[whole[0]] = f"{whole[0]}.compact"
        known = max(whole) if whole else min(listed, default=-1)
        for number, name in missing.items():
            if number > known or name.endswith(".compact"):
                files.put(f"{self.path}/{_LIST}/{name}", "v1")

    def batches(self, session: SparkSession, node: Node, checkpoint: str) -> WriteBatch:
        """A folder for each micro-batch. Raises ``PlanError`` for ``retention=``."""
        if self.retention_ms is not None:
            raise PlanError(
                self.title,
                "retention= is for the list of files of a query with one result",
                "Leave it out; of several results old folders of micro-batches may be deleted",
            )
        files = files_of(session)
        begun = files.has_files(f"{checkpoint}/offsets")
        make_folder(session, "to_parquet", "path=", self.path)
        if files.has_files(f"{self.path}/{_LIST}"):
            self._refuse("the folder has the changes of a query with one result")
        if not begun and files.has_named(self.path, f"{_BATCH}="):
            self._refuse("the folder has the changes of a query with another checkpoint")
        return partial(self._write, node)

    def _write(self, node: Node, batch: DataFrame, number: int) -> None:
        batch = _with_key(batch, node)
        if not files_of(batch.sparkSession).publish(batch, self.path, _BATCH, number):
            raise TargetError(
                self.title,
                f"the files of micro-batch {number} cannot be renamed to {_BATCH}={number}",
                "See what else writes the folder, and start the query again",
            )

    def _refuse(self, problem: str) -> NoReturn:
        raise TargetError(self.title, problem, "Choose another folder, or move this one away")


def _with_key(changes: DataFrame, node: Node) -> DataFrame:
    """The changes, which say in their files which columns are a table's key."""
    if not node.current:
        return changes
    own = {name: F.col(quoted(name)).alias(name, metadata={KEY: True}) for name in node.key.names}
    return changes.select(*(own.get(name, F.col(quoted(name))) for name in changes.columns))


@dataclass(frozen=True)
class ConsoleSink:
    """Prints the first of each micro-batch's changes."""

    rows: int
    title: ClassVar[str] = "to_console()"

    def writer(self, changes: DataFrame, node: Node, checkpoint: str) -> DataStreamWriter:
        """The configured writer."""
        session = changes.sparkSession
        write = self.batches(session, node, checkpoint)
        return changes.writeStream.foreachBatch(numbered(session, write))

    def batches(self, session: SparkSession, node: Node, checkpoint: str) -> WriteBatch:
        """A table in text, none for a micro-batch without changes."""
        title, most = node.name, self.rows

        def write(batch: DataFrame, number: int) -> None:
            kept = keep(batch)  # a few rows alone would run a part of the stages
            try:
                count = kept.count()
                if count:
                    print(f"micro-batch {number} of {title}: {count:,} changes")
                    kept.show(most, truncate=False)
            finally:
                release(kept)

        return write


@dataclass(frozen=True)
class FunctionSink:
    """Hands each micro-batch's changes to a function."""

    function: OfBatches

    @property
    def title(self) -> str:
        """``to_foreach_batch(function)``, as it is written."""
        return f"to_foreach_batch({getattr(self.function, '__name__', '...')})"

    def writer(self, changes: DataFrame, node: Node, checkpoint: str) -> DataStreamWriter:
        """The configured writer."""
        return changes.writeStream.foreachBatch(numbered(changes.sparkSession, self.function))

    def batches(self, session: SparkSession, node: Node, checkpoint: str) -> WriteBatch:
        """The function."""
        return self.function


@validated
def to_parquet(path: Path, *, retention: Span | None = None) -> ParquetSink:
    """The changelog as Parquet files: every change is appended, exactly once.

    Of a query with one result ``_spark_metadata`` in the folder lists the files that count, and
    every tenth micro-batch writes the whole list again. ``retention``: files leave it when they are
    so old, so that it does not grow for good. Spark then no longer reads them; they lie there until
    you delete them.

    Of a query with several results (``dt.run``) a micro-batch is a folder of its own,
    ``_batch=<number>``, and rows are read with its number as column ``_batch``: the rows of one
    number, from all results, are of the same input. Readers see a micro-batch wholly or not at
    all where the file system renames a folder at once, as HDFS and local disks do and S3 does not.

    Raises ``TargetError`` at the start of a query with a new checkpoint where the folder has
    another's changes.
    """
    if retention is None:
        return ParquetSink(fspath(path))
    retention_us = microseconds("to_parquet", "retention=", retention)
    return ParquetSink(fspath(path), max(retention_us // 1000, 1))


@validated
def to_memory(name: ViewName) -> MemorySink:
    """The changelog as an in-memory table ``name`` of the session; for notebooks and tests.

    A query that is started again begins the table anew, with the changes that come from then on.
    """
    return MemorySink(name)


@validated
def to_console(*, rows: Positive = 20) -> ConsoleSink:
    """Prints the changelog, for a first look: of each micro-batch how many changes it has, and the
    first ``rows`` of them. On Spark Connect it is printed by the server.
    """
    return ConsoleSink(rows)


@validated
def to_foreach_batch(function: OfBatches) -> FunctionSink:
    """Calls ``function(changes, batch_id)`` for each micro-batch; again after a failure."""
    return FunctionSink(function)
