"""Initial rows of tables: as files, in the order of their times, and as one micro-batch of the
stages that store them.

So the stored state is the same as if a first micro-batch had brought these rows, through all
stages. The files are in the folder ``initial`` of the query's checkpoint. ``rows`` has the rows.
``checkpoint`` belongs to a query of these rows alone, whose state the real query takes over, unless
it runs that micro-batch itself (``spark.query.first_batch``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from typing import Annotated, TypeAlias

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType, TimestampType

from dovetail.base.columns import (
    CHANGE,
    CLOCK,
    DELETE,
    FILE_METADATA,
    LOG_PARTITION,
    ORDER,
    POSITION,
    SEQUENCE,
    STREAM_TIME,
    TIE,
    TIMESTAMP,
    UNREAD,
    UPSERT,
    quoted,
)
from dovetail.base.validation import Rule
from dovetail.errors import PlanError
from dovetail.physical.output import output_of
from dovetail.physical.routing import RouteStep
from dovetail.physical.stage import Stage
from dovetail.plan.fingerprint import origins_of
from dovetail.plan.nodes import Entry, Node, Source
from dovetail.plan.types.arrow import nullable
from dovetail.platform.files import files_of
from dovetail.spark.checkpoints.stores import CheckpointStores
from dovetail.spark.execution.frames import Streaming

Initial: TypeAlias = Annotated[
    Mapping[str, Annotated[DataFrame, Rule("a DataFrame")]] | str | PathLike[str],
    Rule("a mapping of tables' names to frames, or the path of a checkpoint", bool),
]
FOLDER, STATIC = "initial", "static"
SETTINGS = {"spark.sql.files.openCostInBytes": str(1 << 40)}
"""Lets each file be read by a task of its own. The rows of a file are in the order of their times,
those of two files are not. A versioned table takes no rows that are older than its history."""


def folder_of(checkpoint: str) -> str:
    """Return the folder of the separate query's checkpoint within a query's checkpoint."""
    return f"{checkpoint.rstrip('/')}/{FOLDER}/checkpoint"


def rows_of(
    operator: str, nodes: Sequence[Node], initial: Mapping[str, DataFrame]
) -> dict[Source, DataFrame]:
    """Return the initial rows by table, static ones included: key, values and ``_timestamp``.

    ``operator``: the call. Raises ``PlanError`` for frames that do not fit the tables, and for
    unknown names.
    """
    for node in nodes:
        if any(part.eventual for part in node.walk()):
            raise PlanError(
                node.name,
                "initial= and from_static are for tables that are kept, a join by look-ups keeps "
                "none",
                "Leave them out, or join them in state with delta=dt.delta(strategy='none')",
            )
    inputs = origins_of(nodes)
    tables = {source.name: source for source in inputs if not (source.stream or source.static)}
    for name in initial:
        if name not in tables:
            raise PlanError(
                operator,
                f"initial= names {name!r}, which is no table of {nodes[0].name}",
                f"Its tables are {', '.join(tables) or 'none'}",
            )
    named_rows = {tables[name]: _rows(tables[name], frame) for name, frame in initial.items()}
    return static_rows(inputs) | named_rows


def static_rows(sources: Sequence[Source]) -> dict[Source, DataFrame]:
    """Return the rows of the static sources."""
    frames = [(source, source.frame) for source in sources if source.static]
    return {source: _rows(source, frame) for source, frame in frames if frame is not None}


def unchanging(
    session: SparkSession, checkpoint: str, sources: Sequence[Source]
) -> dict[Entry, Source]:
    """Return by static table the source that a begun query reads: a folder of one empty file."""
    static = [source for source in sources if source.static]
    if not static:
        return {}
    path = f"{checkpoint.rstrip('/')}/{STATIC}"
    nothing = empty(session, static[0]).select(TIMESTAMP)
    nothing.coalesce(1).write.mode("ignore").parquet(path)
    schemas = [empty(session, source).schema for source in static]
    frames = [session.readStream.schema(schema).parquet(path) for schema in schemas]
    return {
        source: replace(source, frame=frame, timestamp=F.col(TIMESTAMP))
        for source, frame in zip(static, frames, strict=True)
    }


def _rows(source: Source, frame: DataFrame) -> DataFrame:
    """Return the frame's rows with a source's columns and ``_timestamp``; ``PlanError`` if they do
    not fit.
    """
    if frame.isStreaming:
        raise PlanError(
            source.title, "its frame of initial= is a streaming one", "Read it with spark.read"
        )
    for column in source.row:
        matches = [candidate for candidate in frame.schema if candidate.name == column.name]
        if len(matches) != 1 or nullable(matches[0].dataType) != column.dataType:
            has = f"is {matches[0].dataType.simpleString()}" if matches else "is missing"
            raise PlanError(
                source.title,
                f"in its frame of initial= column {column.name!r} {has}",
                f"Give it once, as {column.dataType.simpleString()}",
            )
    assert source.timestamp is not None
    time = F.col(TIMESTAMP) if TIMESTAMP in frame.columns else source.timestamp
    columns = [F.col(quoted(name)) for name in source.row.names]
    try:
        rows = frame.select(*columns, time.alias(TIMESTAMP))
    except AnalysisException as error:
        raise PlanError(
            source.title,
            "its frame of initial= has no time",
            f"Give it a column {TIMESTAMP}, or what timestamp= reads",
        ) from error
    if rows.schema[TIMESTAMP].dataType != TimestampType():
        raise PlanError(
            source.title, f"{TIMESTAMP} of its frame of initial= is no timestamp", "Cast it"
        )
    return rows


def write(session: SparkSession, checkpoint: str, rows: Sequence[DataFrame]) -> None:
    """Write the initial rows of entries to files, each by its number, in place of former files.

    Rows have ``_timestamp``, and ``_change`` if some are deletes.
    """
    remove(session, checkpoint)
    for frame_index, frame in enumerate(rows):
        changes = frame if CHANGE in frame.columns else frame.withColumn(CHANGE, F.lit(UPSERT))
        changes = changes.orderBy(TIMESTAMP).withColumns(
            {LOG_PARTITION: F.spark_partition_id(), SEQUENCE: F.monotonically_increasing_id()}
        )
        changes.write.parquet(_rows_of(checkpoint, frame_index))


def read(session: SparkSession, checkpoint: str, entries: Sequence[Entry]) -> dict[Entry, Source]:
    """Return by entry the source of its initial rows, from the files of its number."""
    frames = (read_rows(session, checkpoint, frame_index) for frame_index in range(len(entries)))
    return dict(zip(entries, map(_begun, entries, frames), strict=True))


def read_rows(session: SparkSession, checkpoint: str, frame_index: int) -> DataFrame:
    """Return the rows in the files of a number, as a stream."""
    path = _rows_of(checkpoint, frame_index)
    return session.readStream.schema(session.read.parquet(path).schema).parquet(path)


def _rows_of(checkpoint: str, frame_index: int) -> str:
    """Return the path of the files of a number."""
    return f"{checkpoint.rstrip('/')}/{FOLDER}/rows/{frame_index}"


def _begun(entry: Entry, frame: DataFrame) -> Source:
    """Return a source, or a view of one, that reads its initial rows from files, ordered by
    time.
    """
    base = entry.base
    assert isinstance(base, Source)
    if base.files:
        # Order files by path, because their modification times mean nothing.
        metadata, never = F.col(FILE_METADATA), F.timestamp_micros(F.lit(0))
        parts = (metadata["file_path"], metadata["file_block_start"])
        named = zip(("file_path", "file_block_start"), parts, strict=True)
        file = F.struct(never.alias("file_modification_time"), *(p.alias(n) for n, p in named))
        frame = frame.select("*", file.alias(FILE_METADATA))
    unread = base.with_unread
    # In a shared log, the rows of several frames are ordered by time.
    sequence = F.unix_micros(TIMESTAMP) if base.ordered else F.col(SEQUENCE)
    return Source(
        name=entry.name,
        key=entry.key,
        values=entry.values,
        frame=frame,
        timestamp=F.col(TIMESTAMP),
        deleted=F.col(CHANGE) == DELETE,
        sequence=None if base.sequence is None else sequence,
        log_partition=None if base.log_partition is None else F.col(LOG_PARTITION),
        stream=entry.stream,
        files=base.files,
        with_unread=None if unread is None else _nothing_unread(frame, unread.schema[UNREAD]),
    )


def _nothing_unread(frame: DataFrame, column: StructField) -> DataFrame:
    """Return rows with an empty column of dead letters."""
    return frame.withColumn(UNREAD, F.lit(None).cast(column.dataType))


def empty(session: SparkSession, entry: Entry) -> DataFrame:
    """Return an empty frame with an entry's columns, as ``write`` takes them."""
    fields = [*entry.row.fields, StructField(TIMESTAMP, TimestampType())]
    return session.createDataFrame([], StructType(fields))


@dataclass
class Seeding(Streaming):
    """The stages of a query on the initial rows of their inputs, in ``sources``."""

    carried: Collection[Stage] = ()
    """The stages that take over their state (``initial``). They take no rows."""
    results: Mapping[Stage, DataFrame] = field(default_factory=dict)
    """The rows that carried stages have made, for the stages that read them."""

    def read(self, step: RouteStep) -> DataFrame:
        """Return rows of ``PACKED`` as ``Streaming`` does, without those for carried stages."""
        packed = super().read(step)
        begun = {reading.reader for reading in step.readings if reading.stage in self.carried}
        return packed.where(~F.col("reader").isin(begun)) if begun else packed

    def changes(self, step: RouteStep, inputs: list[DataFrame]) -> DataFrame:
        """Return the changelog, with the rows of a carried stage."""
        changelog = super().changes(step, inputs)
        if step.stage not in self.results:
            return changelog
        return changelog.unionByName(self._result(step.stage), allowMissingColumns=True)

    def emitted(self, step: RouteStep, inputs: list[DataFrame]) -> DataFrame:
        """Return rows of ``PACKED``, with those of a carried stage."""
        packed = super().emitted(step, inputs)
        if step.stage not in self.results:
            return packed
        names = output_of(step.stage).columns.names
        rows = self._result(step.stage).select(*map(quoted, names))
        return packed.union(self._carrying(step, rows, passes=False))

    def _result(self, stage: Stage) -> DataFrame:
        """Return a stage's rows as changes before all others, each caused by a record of its
        own.
        """
        rows, sequence = self.results[stage], F.col(SEQUENCE)
        time = F.unix_micros(TIMESTAMP)
        caused = {SEQUENCE: time, CLOCK: time, STREAM_TIME: time, ORDER: sequence}
        caused[TIE] = F.lit(0).cast("long")
        return rows.select(
            *map(quoted, stage.node.row.names),
            CHANGE,
            TIMESTAMP,
            (sequence - (1 << 62)).alias(POSITION),
            *(caused[name].alias(name) for name in stage.fragment.feeds),
        )


def blobs_of(operator: str, session: SparkSession, checkpoint: str) -> dict[str, DataFrame]:
    """Return the blobs of buckets by a stage's fingerprint: ``bucket``, ``name``, ``blob``."""
    return CheckpointStores.of(operator, session, folder_of(checkpoint), None).states()


def remove(session: SparkSession, checkpoint: str) -> None:
    """Remove the files of the initial rows, if there are any."""
    files_of(session).clear(f"{checkpoint.rstrip('/')}/{FOLDER}")
