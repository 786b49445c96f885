"""Sinks for a changelog, the arguments of ``Table.write_stream``."""

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

from dovetail.base import datasets
from dovetail.base.columns import quoted
from dovetail.base.text_cells import changes_text, printable
from dovetail.base.validation import Path, Positive, Rule, accepts_argument_count, validated
from dovetail.errors import PlanError, TargetError
from dovetail.plan.nodes import Node, changelog_schema
from dovetail.plan.types.spans import Span, microseconds
from dovetail.platform.files import Files, files_of
from dovetail.platform.sessions import batch_writer, is_remote, keep, release
from dovetail.platform.spark_errors import make_folder

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter


_LIST_FOLDER, _BATCH_COLUMN = "_spark_metadata", "_batch"
"""The folder of Spark's list of valid files, and the column of micro-batches' folders."""
KEY_METADATA = "dovetail.key"
"""The metadata of a key column in the files' schema."""
_OTHERS_PROBLEM = (
    "the folder has the changes of a query with another checkpoint, or of this one before it was "
    "set back, so micro-batches of this one would be lost"
)
"""The problem of a folder that has micro-batches of the same ids."""
_INTERVAL_SETTING = "spark.sql.streaming.fileSink.log.compactInterval"
"""Spark's setting for the count of micro-batches from one full list of its files to the next."""

WriteBatch: TypeAlias = Callable[[DataFrame, int], None]
"""A function that writes a micro-batch's changes, given the changes and its id."""
WriteBatches: TypeAlias = Callable[[Sequence[DataFrame], int], None]
"""A function that writes the changes of several results, given one frame per result and the id of
their micro-batch.
"""
ViewName: TypeAlias = Annotated[
    str, Rule("a name of letters, digits and _", re.compile(r"[A-Za-z_]\w*", re.ASCII).fullmatch)
]
BatchFunction: TypeAlias = Annotated[
    Callable[[DataFrame, int], None],
    Rule(
        "a function of a micro-batch's changes and its number", partial(accepts_argument_count, 2)
    ),
]


@dataclass(frozen=True)
class MemorySink:
    """A table in memory with every change, under a name in the session."""

    name: str
    """The name of the table, a temporary view."""

    @property
    def title(self) -> str:
        """The call as written: ``to_memory('name')``."""
        return f"to_memory({self.name!r})"

    def writer(self, changes: DataFrame, node: Node, checkpoint: str) -> DataStreamWriter:
        """Return Spark's writer of the query's ``changes`` into the table, configured but not
        started. ``node``: the result that changes. ``checkpoint``: the query's folder.

        If the checkpoint has begun, Spark's memory sink cannot go on. The writer then calls the
        function of ``batches``, and the table begins anew.
        """
        session = changes.sparkSession
        if files_of(session).has_files(f"{checkpoint}/offsets"):
            return batch_writer(changes, self.batches(session, node, checkpoint))
        memory = changes.writeStream.format("memory").outputMode("append")
        return memory.option("queryName", self.name)

    def batches(self, session: SparkSession, node: Node, checkpoint: str) -> WriteBatch:
        """Return a function of a micro-batch's changes and id. It replaces the table by the changes
        of all micro-batches since this call; a repeated micro-batch counts once. A table without
        rows is made at once. ``node``: the result that changes. ``checkpoint`` is not used.
        """
        return self.batches_kept_in(session, node, {})

    def batches_kept_in(
        self, session: SparkSession, node: Node, written: dict[int, pa.Table]
    ) -> WriteBatch:
        """Return a function of a micro-batch's changes and id. It puts the changes into ``written``
        and replaces the table, a temporary view, by all changes there. ``node``: the result that
        changes, whose changelog has the table's columns.

        ``written``: the changes by the micro-batch's id, changed in place; a repeated one replaces
        its value. If it is empty, a table without rows is made at once.
        """
        schema = changelog_schema(node)

        def write(batch: DataFrame, batch_id: int) -> None:
            """Put the changes into ``written`` under ``batch_id``, and replace the table."""
            written[batch_id] = batch.toArrow()
            rows = pa.concat_tables(written.values())
            session.createDataFrame(rows, schema).createOrReplaceTempView(self.name)

        if not written:
            session.createDataFrame([], schema).createOrReplaceTempView(self.name)
        return write

    def across_runs(self) -> MemorySink:
        """Return a sink of the same table that keeps the changes of earlier starts, in this
        process. A query that is started again with it goes on with the table.
        """
        return _KeptMemorySink(self.name)


@dataclass(frozen=True)
class _KeptMemorySink(MemorySink):
    """A memory sink that keeps its changes when the query is started again."""

    written: dict[int, pa.Table] = field(default_factory=dict, compare=False)
    """The changes of all starts so far, by micro-batch."""

    def writer(self, changes: DataFrame, node: Node, checkpoint: str) -> DataStreamWriter:
        """Return Spark's writer of the query's ``changes`` into the table, configured but not
        started. It calls the function of ``batches``, also for a new checkpoint. ``node``: the
        result that changes. ``checkpoint`` is not used.
        """
        return batch_writer(changes, self.batches(changes.sparkSession, node, checkpoint))

    def batches(self, session: SparkSession, node: Node, checkpoint: str) -> WriteBatch:
        """Return a function of a micro-batch's changes and id. It replaces the table by the changes
        of all micro-batches, those of earlier starts with this sink included. A repeated one counts
        once. Before the first micro-batch, a table without rows is made at once. ``node``: the
        result that changes. ``checkpoint`` is not used.
        """
        return self.batches_kept_in(session, node, self.written)


@dataclass(frozen=True)
class ParquetSink:
    """Parquet files with every change.

    For a query with one result Spark keeps a list of valid files in the folder, by micro-batch. It
    takes a listed id for a micro-batch that is repeated, and leaves it out. So a new checkpoint
    cannot go on with another one's folder.

    For a query with several results each micro-batch is a folder, ``_batch=<id>``. It is
    written under a hidden name, then renamed; a repeated one takes its place.
    """

    path: str
    """The folder of the files."""
    retention_ms: int | None = None
    """The age at which files leave Spark's list, in milliseconds; None for never."""

    @property
    def dataset(self) -> datasets.Dataset:
        """The namespace and the name of the folder in lineage events, such as ``s3a://lake`` and
        ``orders``, or ``file`` and the absolute path.
        """
        return datasets.folder(self.path)

    @property
    def target(self) -> datasets.Dataset:
        """The identity of the folder: ``dataset``, its path without ``.``, ``..`` and needless
        slashes. Two sinks of one folder have equal ones, unless a link leads to it.
        """
        return datasets.normal_folder(self.path)

    @property
    def title(self) -> str:
        """The call as written: ``to_parquet('folder')``."""
        return f"to_parquet({self.path!r})"

    @property
    def parquet_folder(self) -> str:
        """The folder of the files. A query's page asks sinks for it, to find the dead letters in
        it.
        """
        return self.path

    def is_gone(self, session: SparkSession, node: Node, *, alone: bool) -> bool:
        """Return True if the files that a query has written are missing. With ``alone`` and outside
        of Spark Connect, Spark's list of files must be there; else the folder alone.

        ``alone``: True if this is the query's only sink, so that Spark keeps a list. With several
        results, old micro-batches may be deleted. A client of Spark Connect cannot see hidden
        files, such as Spark's list. ``node`` is not used.
        """
        files, listed = files_of(session), alone and not is_remote(session)
        return not (
            files.has_files(f"{self.path}/{_LIST_FOLDER}") if listed else files.exists(self.path)
        )

    def writer(self, changes: DataFrame, node: Node, checkpoint: str) -> DataStreamWriter:
        """Return Spark's writer of the query's ``changes`` into the folder, configured but not
        started. Make the folder if it is missing, and fill gaps in Spark's list of files. ``node``:
        the result that changes. ``checkpoint``: the query's folder.

        Raises ``PlanError`` for a column ``_batch``. Raises ``TargetError`` if the folder has
        another query's changes, those of a query with several results, or later micro-batches than
        this checkpoint. Raises ``ConfigurationError`` if the folder cannot be made.
        """
        self._refuse_name(node)
        session = changes.sparkSession
        files = files_of(session)
        begun = files.has_files(f"{checkpoint}/offsets")
        make_folder(session, "to_parquet", "path=", self.path)
        listed = f"{self.path}/{_LIST_FOLDER}"
        if not begun and files.has_files(listed):
            self._refuse(_OTHERS_PROBLEM)
        if begun and not is_remote(session):
            numbers = [n for end in ("", ".compact") for n in files.numbers(listed, suffix=end)]
            self._refuse_ahead(files, checkpoint, numbers)
        if files.has_named(self.path, f"{_BATCH_COLUMN}="):
            self._refuse("the folder has the changes of a query with several results")
        if begun and not is_remote(session):
            interval = session.conf.get(_INTERVAL_SETTING, "10")
            self._complete_list(files, checkpoint, int(str(interval)))
        writer = (
            _with_key_metadata(changes, node).writeStream.format("parquet").outputMode("append")
        )
        if self.retention_ms is not None:
            writer = writer.option("retention", f"{self.retention_ms}ms")
        return writer.option("path", self.path)

    def refuse_others(self, session: SparkSession) -> None:
        """Raise ``TargetError`` if the folder has the changes of any query: Spark's list of files
        (``_spark_metadata``) or a folder ``_batch=…``. A missing or empty folder passes, and so
        does one with other files.
        """
        files = files_of(session)
        if files.has_files(f"{self.path}/{_LIST_FOLDER}") or files.has_named(
            self.path, f"{_BATCH_COLUMN}="
        ):
            self._refuse(_OTHERS_PROBLEM)

    def _complete_list(self, files: Files, checkpoint: str, interval: int) -> None:
        """Add files to Spark's list of files for micro-batches that wrote nothing here. Spark
        cannot compact or read a list with gaps. Do nothing if it has no gap. Raises
        ``ConfigurationError`` on Spark Connect.

        In such a micro-batch the state was repartitioned, or the query did not have this folder
        yet. ``checkpoint``: the query's folder, whose commits are the micro-batches. ``interval``:
        Spark writes the whole list as one file, ``.compact``, every ``interval`` micro-batches.

        Micro-batches count that follow the last ``.compact`` or, without one, the first listed one.
        Each gets an empty file or, where a ``.compact`` is due, the whole list so far. A folder
        without a list begins with an empty ``.compact``, the last one that was due.
        """
        folder = f"{self.path}/{_LIST_FOLDER}"
        listed = {*files.numbers(folder)}
        whole = {*files.numbers(folder, suffix=".compact")}
        committed = {*files.numbers(f"{checkpoint}/commits")}
        complete_until = max(whole or {min(listed, default=-1)})
        if committed and not (listed or whole):
            complete_until = (max(committed) + 1) // interval * interval - 1
            if complete_until >= 0:
                files.put(f"{folder}/{complete_until}.compact", "v1")
        for batch_id in sorted(committed - listed - whole):
            if batch_id <= complete_until:
                continue
            if (batch_id + 1) % interval:
                files.put(f"{folder}/{batch_id}", "v1")
                continue
            first = f"{complete_until}.compact" if complete_until in whole else str(complete_until)
            names = [first, *map(str, range(complete_until + 1, batch_id))]
            texts = (files.text(f"{folder}/{name}") or "" for name in names)
            entries = (line for text in texts for line in text.splitlines()[1:])
            files.put(f"{folder}/{batch_id}.compact", "\n".join(["v1", *entries]))
            whole.add(batch_id)
            complete_until = batch_id

    def batches(self, session: SparkSession, node: Node, checkpoint: str) -> WriteBatch:
        """Return a function of a micro-batch's changes and id, which writes a folder for each
        micro-batch, ``_batch=<id>``. A repeated micro-batch replaces its folder. Make the folder of
        the sink if it is missing. ``node``: the result that changes. ``checkpoint``: the query's
        folder.

        Raises ``PlanError`` for ``retention=`` and for a column ``_batch``. Raises ``TargetError``
        if the folder has another query's changes, those of a query with one result, or later
        micro-batches than this checkpoint. Raises ``ConfigurationError`` if the folder cannot be
        made. The function raises ``TargetError`` if files cannot be renamed.
        """
        if self.retention_ms is not None:
            raise PlanError(
                self.title,
                "retention= is for the list of files of a query with one result",
                "Leave it out; of several results old folders of micro-batches may be deleted",
            )
        self._refuse_name(node)
        files = files_of(session)
        begun = files.has_files(f"{checkpoint}/offsets")
        make_folder(session, "to_parquet", "path=", self.path)
        if files.has_files(f"{self.path}/{_LIST_FOLDER}"):
            self._refuse("the folder has the changes of a query with one result")
        if not begun and files.has_named(self.path, f"{_BATCH_COLUMN}="):
            self._refuse(_OTHERS_PROBLEM)
        if begun and not is_remote(session):
            names = (name.removeprefix(f"{_BATCH_COLUMN}=") for name in files.names(self.path))
            self._refuse_ahead(files, checkpoint, [int(n) for n in names if n.isdigit()])
        return partial(self._write, node)

    def _write(self, node: Node, batch: DataFrame, batch_id: int) -> None:
        """Write micro-batch ``batch_id`` of ``node`` to its folder ``_batch=<id>``, in place of a
        former attempt. Without rows, the folder has a Parquet file without rows. Key columns of
        ``node`` are marked in the files' metadata. Raises ``TargetError`` if the written files
        cannot be renamed into place; the former folder is gone then.
        """
        batch = _with_key_metadata(batch, node)
        if not files_of(batch.sparkSession).publish(batch, self.path, _BATCH_COLUMN, batch_id):
            raise TargetError(
                self.title,
                f"the files of micro-batch {batch_id} cannot be renamed "
                f"to {_BATCH_COLUMN}={batch_id}",
                "See what else writes the folder, and start the query again",
            )

    def _refuse_name(self, node: Node) -> None:
        """Raise ``PlanError`` if a key or value column of ``node`` has the name ``_batch``, in any
        case. Readers of the folder would have the id of a micro-batch in its place.
        """
        for name in (*node.key.names, *node.values.names):
            if name.lower() == _BATCH_COLUMN:
                raise PlanError(
                    self.title,
                    f"column {name!r} has a name that to_parquet gives to the number of a "
                    "micro-batch",
                    "Rename it in select=, or by rename(...)",
                )

    def _refuse_ahead(self, files: Files, checkpoint: str, numbers: Sequence[int]) -> None:
        """Raise ``TargetError`` if one of ``numbers`` is larger than the id of the last micro-batch
        that the checkpoint has planned.

        ``files``: the session's file systems. ``checkpoint``: the query's folder. ``numbers``: ids
        of micro-batches in the sink's folder, perhaps none. The checkpoint must have begun. If it
        was made by an upgrade, or set back, its next micro-batches would have ids that are taken.
        """
        planned = max(files.numbers(f"{checkpoint}/offsets"))
        if max(numbers, default=-1) > planned:
            self._refuse(_OTHERS_PROBLEM)

    def _refuse(self, problem: str) -> NoReturn:
        """Raise ``TargetError`` for the folder. ``problem``: the reason in words, after which a
        remedy follows.
        """
        raise TargetError(self.title, problem, "Choose another folder, or move this one away")


def _with_key_metadata(changes: DataFrame, node: Node) -> DataFrame:
    """Return the changes with the metadata ``KEY_METADATA`` at the key columns, for the files'
    schema. If ``node`` is a stream or a history, its changes stay as they are.
    """
    if not node.current:
        return changes
    key_columns = {
        name: F.col(quoted(name)).alias(name, metadata={KEY_METADATA: True})
        for name in node.key.names
    }
    return changes.select(*(key_columns.get(name, F.col(quoted(name))) for name in changes.columns))


@dataclass(frozen=True)
class ConsoleSink:
    """The standard output, with the first changes of each micro-batch."""

    rows: int
    """The most changes that are printed of a micro-batch, at least 1."""
    title: ClassVar[str] = "to_console()"

    def writer(self, changes: DataFrame, node: Node, checkpoint: str) -> DataStreamWriter:
        """Return Spark's writer that prints the first of the query's ``changes`` in each
        micro-batch, configured but not started. ``node``: the result that changes. ``checkpoint``
        is not used.
        """
        return batch_writer(changes, self.batches(changes.sparkSession, node, checkpoint))

    def batches(self, session: SparkSession, node: Node, checkpoint: str) -> WriteBatch:
        """Return a function that prints a micro-batch, given its changes and its id. For a
        micro-batch without changes it prints nothing. For others it prints their count, the first
        ``rows`` of them as a text table, and a line that says if some are left out. ``node``: the
        result that changes, whose name is printed. ``session`` and ``checkpoint`` are not used.
        """
        title, most = printable(node.name), self.rows

        def write(batch: DataFrame, batch_id: int) -> None:
            """Print one micro-batch's changes. Spark stores them meanwhile."""
            stored_changes = keep(batch)  # limit() alone would run only a part of the stages
            try:
                count = stored_changes.count()
                if count:
                    print(f"micro-batch {batch_id} of {title}: {count:,} changes")
                    print(changes_text(stored_changes.limit(most).toArrow()))
                    if count > most:
                        print(f"the first {most:,} of {count:,} changes")
            finally:
                release(stored_changes)

        return write


@dataclass(frozen=True)
class FunctionSink:
    """A function that is called with each micro-batch's changes."""

    function: BatchFunction
    """The function of a micro-batch's changes and its id."""

    @property
    def title(self) -> str:
        """The call as written, ``to_foreach_batch(function)``; ``...`` stands for a function
        without a name.
        """
        return f"to_foreach_batch({getattr(self.function, '__name__', '...')})"

    def writer(self, changes: DataFrame, node: Node, checkpoint: str) -> DataStreamWriter:
        """Return Spark's writer that calls the function with each micro-batch of ``changes``,
        configured but not started. ``node`` and ``checkpoint`` are not used.
        """
        return batch_writer(changes, self.function)

    def batches(self, session: SparkSession, node: Node, checkpoint: str) -> WriteBatch:
        """Return the user's function of a micro-batch's changes and id, unchanged. The
        arguments are not used.
        """
        return self.function


@validated
def to_parquet(path: Path, *, retention: Span | None = None) -> ParquetSink:
    """Write the changelog as Parquet files: every change is appended, exactly once.

    A folder belongs to one checkpoint.

    Parameters
    ----------
    path : str or Path
        The folder. It lies neither in the checkpoint nor in a folder that the query reads.
    retention : str or timedelta, optional
        The age at which files leave the folder's list of valid files: ``"30 days"``. It is
        for queries with one result. By default files never leave it.

    Returns
    -------
    Sink
        The sink, for ``write_stream`` and ``dt.run``.

    Raises
    ------
    PlanError
        If ``retention`` is no span of time. The start of a query raises it if the folder
        lies in the checkpoint or a source, and with several results for any ``retention``.
    ConfigurationError
        At the start of a query, if the folder cannot be made.
    TargetError
        At the start of a query, if the folder has another query's changes, or later ones
        than its checkpoint.

    See Also
    --------
    read_current : Read the current rows of such a folder.
    to_delta : Keep a Delta table equal to the query's table.
    Table.write_stream : Start a query that keeps a sink up to date.
    run : Start one query with several results.

    Notes
    -----
    *One result.* ``_spark_metadata`` in the folder lists the valid files. Every tenth
    micro-batch writes the whole list again, so ``retention`` keeps it from growing for
    good. Spark no longer reads files that have left the list. They stay in the folder until
    you delete them.

    *Several results* (``dt.run``). A micro-batch is a folder, ``_batch=<number>``. Rows are
    read with its number as the column ``_batch``. The rows of one number, from all results,
    are of the same input. Readers see a micro-batch wholly or not at all, if the file
    system renames a folder at once. HDFS and local disks do, S3 does not.

    Examples
    --------
    >>> import dovetail as dt
    >>> dt.to_parquet("out/orders", retention="30 days")
    ParquetSink(path='out/orders', retention_ms=2592000000)
    """
    if retention is None:
        return ParquetSink(fspath(path))
    retention_us = microseconds("to_parquet", "retention=", retention)
    return ParquetSink(fspath(path), max(retention_us // 1000, 1))


@validated
def to_memory(name: ViewName) -> MemorySink:
    """Write the changelog to an in-memory table of the session, for notebooks and tests.

    Parameters
    ----------
    name : str
        The table's name: letters, digits and ``_``, no digit first. A temporary view of
        this name is replaced.

    Returns
    -------
    Sink
        The sink, for ``write_stream`` and ``dt.run``.

    Raises
    ------
    PlanError
        If ``name`` has other characters.

    See Also
    --------
    to_console : Print the changelog.
    preview : Look at the table's first changes.
    Driver : Run a topology without Spark, for tests.
    Table.write_stream : Start a query that keeps a sink up to date.

    Notes
    -----
    A query that is started again begins the table anew, with the changes that come from
    then on.

    Examples
    --------
    >>> import tempfile
    >>> import dovetail as dt
    >>> from pyspark.sql import functions as F
    >>> folder = tempfile.TemporaryDirectory()
    >>> rows = spark.createDataFrame([(1, 40)], "id long, amount long")
    >>> rows.write.parquet(f"{folder.name}/in")
    >>> changes = spark.readStream.schema(rows.schema).parquet(f"{folder.name}/in")
    >>> orders = dt.Table.from_changelog(
    ...     changes, key="id", timestamp=F.timestamp_seconds(F.lit(1)), name="orders"
    ... )
    >>> query = orders.write_stream(
    ...     dt.to_memory("orders_now"),
    ...     checkpoint=f"{folder.name}/checkpoint",
    ...     trigger={"availableNow": True},
    ... )
    >>> query.awaitTermination()
    >>> spark.table("orders_now").select("id", "amount", "_change").collect()
    [Row(id=1, amount=40, _change='upsert')]
    """
    return MemorySink(name)


@validated
def to_console(*, rows: Positive = 20) -> ConsoleSink:
    """Print the changelog, for a first look.

    Each micro-batch with changes prints their number, and the first of them as a table
    with time and change. On Spark Connect the server prints them.

    Parameters
    ----------
    rows : int, default 20
        The number of changes that a micro-batch prints at most.

    Returns
    -------
    Sink
        The sink, for ``write_stream`` and ``dt.run``.

    Raises
    ------
    PlanError
        If ``rows`` is not a whole number above zero.

    See Also
    --------
    to_memory : Write the changelog to an in-memory table.
    to_foreach_batch : Call a function for each micro-batch.
    Table.write_stream : Start a query that keeps a sink up to date.

    Examples
    --------
    >>> import dovetail as dt
    >>> dt.to_console(rows=5)
    ConsoleSink(rows=5)
    """
    return ConsoleSink(rows)


@validated
def to_foreach_batch(function: BatchFunction) -> FunctionSink:
    """Call a function with the changes of each micro-batch.

    It serves targets for which there is no sink here. After a failure, the function is
    called again for the same micro-batch, with the same number.

    Parameters
    ----------
    function : callable
        A function of two arguments: the changes, a static frame with the columns of the
        changelog, and the number of the micro-batch. The numbers begin at 0.
        ``dt.checkpoints.repartition`` takes a number, for which there is no call.

    Returns
    -------
    Sink
        The sink, for ``write_stream`` and ``dt.run``.

    Raises
    ------
    PlanError
        If ``function`` cannot be called with two arguments.

    See Also
    --------
    Sink : The interface of sinks, to write one.
    to_delta : Keep a Delta table equal to the query's table.
    to_postgres : Keep a PostgreSQL table equal to the query's table.
    Table.write_stream : Start a query that keeps a sink up to date.

    Notes
    -----
    A repeated call must leave the target as if there had been one call. Store the number
    with the changes to recognize it, or write rows by their key.

    A function that is the only sink of a query must read all changes of each micro-batch,
    as a write or ``changes.count()`` does. What it reads computes the state, too. If it reads
    none or only some, as by ``changes.limit(1)``, the query fails, and nothing of the
    micro-batch is stored.

    Examples
    --------
    >>> import dovetail as dt
    >>> def append(changes, batch_id):
    ...     changes.write.mode("append").saveAsTable("orders_log")
    >>> dt.to_foreach_batch(append).title
    'to_foreach_batch(append)'
    """
    return FunctionSink(function)
