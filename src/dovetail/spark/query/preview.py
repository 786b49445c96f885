"""The first rows of a node, computed as a batch over the first rows of its streaming inputs.

A streaming query of its own reads each input, with a temporary checkpoint. Nothing of the user's
queries is touched.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import pyarrow as pa
from pyspark import InheritableThread
from pyspark.sql import functions as F

from dovetail.base.columns import (
    CHANGE,
    DELETE,
    DELETED,
    FILE_METADATA,
    LOG_PARTITION,
    POSITION,
    SEQUENCE,
    TIMESTAMP,
    UPSERT,
    quoted,
)
from dovetail.errors import ConfigurationError
from dovetail.plan.nodes import Entry, Node, Source
from dovetail.plan.spark_sources import spark_sources_of
from dovetail.plan.views import views_of
from dovetail.platform.sessions import is_remote
from dovetail.platform.spark_errors import convert_spark_errors
from dovetail.spark.execution import static_frames
from dovetail.spark.execution.frames import session_of
from dovetail.spark.execution.wire import rows_of_input
from dovetail.spark.log_lines import quieten
from dovetail.spark.query.failures import cause_of
from dovetail.spark.query.options import BUCKETS_DEFAULT, TRIGGER_ALL

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_ENDLESS: Final = frozenset({"rate", "socket"})
"""Formats that have no rows at the moment when a query starts, only later."""
_POLL_S: Final = 0.1
_STOP_S: Final = 5.0
"""The longest wait for the end of a query that reads."""
_FILE: Final = ("file_modification_time", "file_path", "file_block_start")
_REMEDY: Final = "See that its source can be reached, or give more time by timeout_s="


@dataclass(frozen=True)
class ReadRows:
    """The count of rows that were read of a streaming input."""

    name: str
    """The input's name."""
    rows: int
    cut: bool
    """True if the input has, or may have, more rows."""


@dataclass(frozen=True)
class FirstRows:
    """The first rows of a node."""

    rows: pa.Table
    """The rows, with columns of a changelog."""
    more: bool
    """True if there are more rows than these."""
    read: Sequence[ReadRows]
    """The rows that were read of each streaming input; empty over static inputs."""


def first_rows(
    node: Node, *, limit: int, changes: bool, input_rows: int, timeout_s: float
) -> FirstRows:
    """Return at most ``limit`` rows of a node as an Arrow table (``rows``), and True if there are
    more (``more``). Current rows of a table are sorted by key before they are limited. Changes, and
    records that a stage emits, are sorted by ``_position``. Records of an input come as they are
    read.

    ``read`` has three things for each streaming input, in the order of ``node.origins``. They are
    its name, the count of rows read, and True if it may have more.

    ``changes``: True for a table's changes in place of its current rows. ``input_rows``: the most
    rows that are read of each streaming input. ``timeout_s``: the limit for reading, and again for
    computing. Queries with temporary checkpoints read, and are stopped.

    Raises ``ConfigurationError`` if an input cannot be read or the rows cannot be computed in time,
    and for a streaming input on Spark Connect. A job that fails raises its own error.
    """
    session = session_of(node)
    quieten(session)
    live = [s for s in node.origins if s.frame is not None and s.frame.isStreaming]
    if live and is_remote(session):
        raise ConfigurationError(
            "preview",
            "a streaming input is not read on Spark Connect",
            "Read the same source by spark.read, or write to dt.to_memory",
        )
    inputs = _read_first_rows(live, input_rows, timeout_s)
    frame = _rows_of_node(
        node,
        {reading.source: reading.as_static_source(session) for reading in inputs},
        changes=changes,
    )
    rows = _collect_rows(session, frame.limit(limit + 1), node.name, timeout_s)
    read = [ReadRows(reading.source.name, reading.count, reading.cut) for reading in inputs]
    return FirstRows(rows.slice(0, limit), rows.num_rows > limit, read)


def _rows_of_node(node: Node, sources: Mapping[Entry, Source], *, changes: bool) -> DataFrame:
    """Return the rows of a node over these static ``sources``, each by the streaming source for
    which it stands in. A table's current rows are in the order of the key. Changes, and records
    that a stage emits, are in that of ``_position``. Records of an input come as they are read.

    ``changes``: True for the changes of a table. Current rows of a table have neither ``_change``
    nor ``_position``, and records of an input have no ``_position``. A table that corrects the past
    is always shown by its changes.
    """
    if isinstance(node, Entry) and isinstance(node.base, Source) and node.stream:
        return _records_of_stream(node, sources)
    buckets = BUCKETS_DEFAULT if sources else None
    if node.stream or changes or not node.current:
        frame = static_frames.changelog(node, emit="change", buckets=buckets, sources=sources)
        return frame.orderBy(POSITION, *map(quoted, node.key.names))
    frame = static_frames.changelog(node, emit="batch", buckets=buckets, sources=sources)
    rows = frame.where(F.col(CHANGE) == UPSERT).drop(CHANGE, POSITION)
    return rows.orderBy(*map(quoted, node.key.names))


def _records_of_stream(entry: Entry, sources: Mapping[Entry, Source]) -> DataFrame:
    """Return the records of the stream ``entry``, a source or a view of one. Its columns are
    followed by ``_change`` (``delete`` for a record without a value) and ``_timestamp``.
    ``sources``: the static sources in place of streaming ones.
    """
    static_entry = static_frames.Static([0], 1, sources=sources).source_in_place(entry)
    # Dead letters and counts are of no use here, so the views leave such rows out.
    read = rows_of_input(static_entry, None, reported=len(views_of(entry)))
    deleted = F.lit(False) if read.deleted is None else read.deleted
    return read.frame.select(
        *(F.col(quoted(name)) for name in entry.row.names),
        F.when(deleted, F.lit(DELETE)).otherwise(F.lit(UPSERT)).alias(CHANGE),
        read.timestamp.alias(TIMESTAMP),
    )


@dataclass
class _PreviewInput:
    """A streaming input of a preview, whose first rows a query reads."""

    source: Source
    """The source whose rows are read."""
    limit: int
    """The largest number of rows that are wanted."""
    batches: list[pa.Table] = field(default_factory=list)
    """The rows that were read, by micro-batch; perhaps one more than wanted."""
    ended: Event = field(default_factory=Event)
    """Set when there are enough rows."""
    query: StreamingQuery | None = None
    """The query that reads the source; None before ``start``."""
    endless: bool = False
    """True if the source has rows only some time after its start. The first ones are enough."""
    cut: bool = False
    """True if there are, or may be, more rows than were read."""

    @property
    def count(self) -> int:
        """The count of rows that were read, at most ``limit``."""
        return min(self.limit, sum(int(batch.num_rows) for batch in self.batches))

    @property
    def columns(self) -> DataFrame:
        """The frame that is read: the row's columns, then those of the source's roles (time,
        delete, order) under names of their own. A source that is read by files has the row's file
        as the last column.
        """
        source = self.source
        assert source.frame is not None
        assert source.timestamp is not None
        roles = {
            TIMESTAMP: source.timestamp,
            DELETED: source.deleted,
            SEQUENCE: source.order.sequence,
            LOG_PARTITION: source.order.log_partition,
        }
        named = [column.alias(name) for name, column in roles.items() if column is not None]
        if source.order.by_files:
            file = F.col(FILE_METADATA)
            named.append(F.struct(*(file[part].alias(part) for part in _FILE)).alias(FILE_METADATA))
        return source.frame.select(*(F.col(quoted(n)) for n in source.row.names), *named)

    def start(self, folder: str) -> None:
        """Start the query that reads the source, with a checkpoint of its own below ``folder``. A
        source without an end is read until ``stop``, any other until all its rows are read. Sets
        ``query`` and ``endless``. Raises ``ConfigurationError`` if it cannot be read.
        """
        frame = self.columns
        self.endless = any(leaf.format in _ENDLESS for leaf in spark_sources_of(frame))
        trigger: Mapping[str, Any] = (
            {"processingTime": "0 seconds"} if self.endless else TRIGGER_ALL
        )
        writer = frame.writeStream.foreachBatch(self._keep_rows).trigger(**trigger)
        place = Path(folder, uuid4().hex).as_uri()
        with convert_spark_errors("preview", f"{self.source.title} cannot be read", _REMEDY):
            self.query = writer.option("checkpointLocation", place).start()

    def _keep_rows(self, batch: DataFrame, _: int) -> None:
        """Append the rows of a micro-batch that are still wanted to ``batches``, and one more,
        which shows that there are more. Set ``ended`` once there are more than ``limit``. A source
        without an end is not waited for so long: any row is enough. Once ``ended`` is set, append
        nothing.
        """
        if not self.ended.is_set():
            wanted = self.limit + 1 - sum(rows.num_rows for rows in self.batches)
            self.batches.append(batch.limit(wanted).toArrow())
        rows_read = sum(rows.num_rows for rows in self.batches)
        if rows_read > self.limit or (self.endless and rows_read):
            self.ended.set()

    def wait(self, until: float, timeout_s: float) -> None:
        """Wait until enough rows are there, all are read or the time is over. Set ``cut`` to True
        if there may be more rows, else to False.

        ``until``: the end in seconds of ``time.monotonic``; ``timeout_s``: the whole limit, for
        errors. The query must be started. Raises ``ConfigurationError`` if the query fails, or if
        it still runs and has read no micro-batch.
        """
        query = self.query
        assert query is not None
        while query.isActive and time.monotonic() < until and not self.ended.wait(_POLL_S):
            pass
        error = query.exception()
        if error is not None:
            problem = f"{self.source.title} cannot be read: {cause_of(error).rstrip('.')}"
            raise ConfigurationError("preview", problem, _REMEDY) from error
        self.cut = self.ended.is_set() or query.isActive
        if query.isActive and not self.batches:
            raise _timeout_error(f"{self.source.title} gave no row", timeout_s)

    def stop(self) -> None:
        """Stop the query, if it was started. Wait at most ``_STOP_S`` (5) seconds for its end. A
        source that does not answer may take long to stop, and goes on stopping in a thread.
        """
        if self.query is not None:
            stopping = Thread(target=self.query.stop, name="dovetail-preview-stop", daemon=True)
            stopping.start()
            stopping.join(_STOP_S)

    def as_static_source(self, session: SparkSession) -> Source:
        """Return the source over a static frame of the first rows that were read, at most
        ``limit``; without rows the frame is empty.
        """
        schema, source = self.columns.schema, self.source
        rows = pa.concat_tables(self.batches).slice(0, self.limit) if self.batches else []
        order = replace(
            source.order,
            sequence=_role_column(SEQUENCE, source.order.sequence),
            log_partition=_role_column(LOG_PARTITION, source.order.log_partition),
        )
        return replace(
            source,
            frame=session.createDataFrame(rows, schema).coalesce(1),
            timestamp=F.col(TIMESTAMP),
            deleted=_role_column(DELETED, source.deleted),
            order=order,
            with_unread=None,
        )


def _role_column(name: str, role: Column | None) -> Column | None:
    """Return the column ``name`` in which a role's column was read; None if ``role`` is None."""
    return None if role is None else F.col(name)


def _read_first_rows(
    sources: Sequence[Source], limit: int, timeout_s: float
) -> list[_PreviewInput]:
    """Read the first rows of streaming ``sources`` at the same time, for at most ``timeout_s``
    seconds. Return an input for each, in the same order, with its rows. ``limit``: the most rows of
    each. Raises ``ConfigurationError`` for a source that cannot be read, or that is still read and
    has had no micro-batch at the end of the time. A source that ends without rows has none.
    """
    inputs = [_PreviewInput(source, limit) for source in sources]
    until = time.monotonic() + timeout_s
    with TemporaryDirectory(prefix="dovetail-preview-", ignore_cleanup_errors=True) as folder:
        try:
            for reading in inputs:
                reading.start(folder)
            for reading in inputs:
                reading.wait(until, timeout_s)
        finally:
            for reading in inputs:
                reading.stop()
    return inputs


def _collect_rows(session: SparkSession, frame: DataFrame, name: str, timeout_s: float) -> pa.Table:
    """Return the rows of a static frame as an Arrow table. Raises ``ConfigurationError`` that names
    ``name`` after ``timeout_s`` seconds, and cancels the job. A job that fails raises its own
    error.
    """
    tag, outcome = f"dovetail-preview-{uuid4().hex}", list[Any]()

    def collect() -> None:
        """Append the rows to ``outcome``, or the error with which the job failed."""
        session.addTag(tag)
        try:
            outcome.append(frame.toArrow())
        except Exception as error:
            outcome.append(error)
        finally:
            session.removeTag(tag)

    # A thread of Spark Connect has nothing to inherit, and a classic one its local properties.
    kind = Thread if is_remote(session) else InheritableThread
    job = kind(target=collect, name="dovetail-preview", daemon=True)
    job.start()
    try:
        job.join(timeout_s)
    finally:
        if job.is_alive():
            session.interruptTag(tag)
    if not outcome:
        raise _timeout_error(f"{name} was not computed", timeout_s)
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return outcome[0]


def _timeout_error(problem: str, timeout_s: float) -> ConfigurationError:
    """Return, without raising it, the error of a preview that takes longer than ``timeout_s``
    seconds. ``problem``: the part that did not come in time, without the time.
    """
    return ConfigurationError("preview", f"{problem} within {timeout_s:g} s", _REMEDY)
