"""The files of initial rows, in the order of their times, and the folder that holds them.

They are in the folder ``initial`` of the query's checkpoint. ``rows`` has the rows. ``checkpoint``
belongs to a query of these rows alone, unless the real query reads them itself
(``spark.query.first_batch``). ``former`` is the copy of a running query's checkpoint, if the rows
are those of one. The folder is removed when its rows are stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType, TimestampType

from dovetail.base.columns import (
    CHANGE,
    DELETE,
    FILE_METADATA,
    LOG_PARTITION,
    SEQUENCE,
    TIMESTAMP,
    UNREAD,
    UPSERT,
)
from dovetail.plan.nodes import Entry, RowOrder, Source
from dovetail.platform.files import files_of
from dovetail.spark.checkpoints.stores import CheckpointStores

FOLDER, STATIC = "initial", "static"
SETTINGS = {"spark.sql.files.openCostInBytes": str(1 << 40)}
"""Lets each file be read by a task of its own. The rows of a file are in the order of their times,
those of two files are not. A versioned table takes no rows that are older than its history."""


def folder_of_separate_query(checkpoint: str) -> str:
    """Return the path of the checkpoint of the separate query that reads the initial rows, a folder
    below ``checkpoint``. Nothing is created.
    """
    return f"{checkpoint.rstrip('/')}/{FOLDER}/checkpoint"


def folder_of_copy(checkpoint: str) -> str:
    """Return the path of the copy of a running query's checkpoint, a folder below ``checkpoint``.
    Nothing is created.
    """
    return f"{checkpoint.rstrip('/')}/{FOLDER}/former"


def write_files(session: SparkSession, checkpoint: str, rows: Sequence[DataFrame]) -> None:
    """Write each frame of ``rows`` as Parquet to a folder of its own below ``checkpoint``, named by
    its index from 0. Former files, and the checkpoint of the separate query, are removed first.

    Rows have ``_timestamp``, by which they are ordered; equal times are in any order. They have
    ``_change`` (``upsert`` or ``delete``) if some are deletes; else it is added with ``upsert``.
    The files also have each row's ``_log_partition``, the index of the task that wrote it, and
    ``_sequence``. That is a long, distinct in the frame, which grows with the time but has gaps.
    Spark's own errors pass.
    """
    for folder in (f"{checkpoint.rstrip('/')}/{FOLDER}/rows", folder_of_separate_query(checkpoint)):
        files_of(session).clear(folder)
    for frame_index, frame in enumerate(rows):
        changes = frame if CHANGE in frame.columns else frame.withColumn(CHANGE, F.lit(UPSERT))
        changes = changes.orderBy(TIMESTAMP).withColumns(
            {LOG_PARTITION: F.spark_partition_id(), SEQUENCE: F.monotonically_increasing_id()}
        )
        changes.write.parquet(_folder_of_rows(checkpoint, frame_index))


def read_sources(
    session: SparkSession, checkpoint: str, entries: Sequence[Entry]
) -> dict[Entry, Source]:
    """Return for each of ``entries``, sources or views, a source that streams its initial rows.
    They are read from the files that have its index among ``entries``, which are in the order of
    ``InitialRows.inputs_of``. The files must be there.
    """
    frames = (read_rows(session, checkpoint, frame_index) for frame_index in range(len(entries)))
    return dict(zip(entries, map(_source_of_files, entries, frames), strict=True))


def read_rows(session: SparkSession, checkpoint: str, frame_index: int) -> DataFrame:
    """Return a streaming frame of the initial rows that ``write_files`` has written for the frame
    with index ``frame_index``, from 0. It has all columns of the files, whose schema is read here.
    """
    path = _folder_of_rows(checkpoint, frame_index)
    return session.readStream.schema(session.read.parquet(path).schema).parquet(path)


def _folder_of_rows(checkpoint: str, frame_index: int) -> str:
    """Return the folder, within ``checkpoint``, of the files of the initial rows' frame with index
    ``frame_index``, from 0.
    """
    return f"{checkpoint.rstrip('/')}/{FOLDER}/rows/{frame_index}"


def _source_of_files(entry: Entry, frame: DataFrame) -> Source:
    """Return a source that reads the initial rows of ``entry``, a source or view, in the order of
    time. ``frame``: a streaming frame of their files. The source has the name and the columns of
    ``entry``, so it stands for a view, too.
    """
    base = entry.base
    assert isinstance(base, Source)
    if base.order.by_files:
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
        order=RowOrder(
            sequence=None if base.order.sequence is None else sequence,
            log_partition=None if base.order.log_partition is None else F.col(LOG_PARTITION),
            by_files=base.order.by_files,
        ),
        stream=entry.stream,
        with_unread=None if unread is None else _with_null_letters(frame, unread.schema[UNREAD]),
    )


def _with_null_letters(frame: DataFrame, column: StructField) -> DataFrame:
    """Return the frame with a column ``_unread`` that is null in all rows: none is a dead letter.
    Its type is that of the field ``column``.
    """
    return frame.withColumn(UNREAD, F.lit(None).cast(column.dataType))


def empty_frame(session: SparkSession, entry: Entry) -> DataFrame:
    """Return a static frame without rows that has the columns of ``entry``, a source or view, and
    ``_timestamp``.
    """
    fields = [*entry.row.fields, StructField(TIMESTAMP, TimestampType())]
    return session.createDataFrame([], StructType(fields))


def stored_static_sources(
    session: SparkSession, checkpoint: str, sources: Sequence[Source]
) -> dict[Entry, Source]:
    """Return for each static table in ``sources`` the source that a query reads once the table's
    rows are in its state. It streams a folder ``static`` below ``checkpoint`` of one empty file,
    written here if it is missing. Without static tables return an empty dict, and write nothing.
    """
    static = [source for source in sources if source.static]
    if not static:
        return {}
    path = f"{checkpoint.rstrip('/')}/{STATIC}"
    nothing = empty_frame(session, static[0]).select(TIMESTAMP)
    nothing.coalesce(1).write.mode("ignore").parquet(path)
    schemas = [empty_frame(session, source).schema for source in static]
    frames = [session.readStream.schema(schema).parquet(path) for schema in schemas]
    return {
        source: replace(source, frame=frame, timestamp=F.col(TIMESTAMP))
        for source, frame in zip(static, frames, strict=True)
    }


def blobs_of(operator: str, session: SparkSession, checkpoint: str) -> dict[str, DataFrame]:
    """Return the stored state of the separate query that has read the initial rows, by the
    fingerprint of a stage: a frame of the blobs of its buckets. It has the columns ``bucket`` (the
    label of a bucket), ``name`` and ``blob`` (the name and the bytes of a stored blob). That query
    must be complete. Its stages, and so their fingerprints, are those of the real query.

    ``checkpoint``: that of the real query. ``operator``: the call, for errors. Raises
    ``CheckpointError`` if the separate query's checkpoint is gone, and ``ConfigurationError`` if
    Spark cannot read it.
    """
    folder = folder_of_separate_query(checkpoint)
    return CheckpointStores.read_with_spark(operator, session, folder, None).blobs_by_stage()


def remove_files(session: SparkSession, checkpoint: str) -> None:
    """Remove the folder ``initial`` from ``checkpoint``, if there is one. It has the initial rows,
    the copy of a running query's checkpoint, and the checkpoint of the separate query. On Spark
    Connect the folder has one empty file afterwards, also if it was missing.
    """
    files_of(session).clear(f"{checkpoint.rstrip('/')}/{FOLDER}")
