"""The output of a query with several results or sinks.

Each micro-batch is computed once and kept while all sinks write their results at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from pyspark import InheritableThread
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from dovetail.base.columns import CHANGE, EVENT_TIME, POSITION, TIMESTAMP, UPSERT, quoted
from dovetail.engine.pack import DEAD_LETTERS
from dovetail.errors import DovetailError, PlanError, TargetError, line_of
from dovetail.physical.output import Output, output_of
from dovetail.physical.routing import Plan, walk_steps
from dovetail.physical.stage import Stage
from dovetail.plan.dead_letters import DeadLetters
from dovetail.plan.nodes import Node, changelog_schema
from dovetail.plan.types.arrow import spark_schema
from dovetail.plan.views import View
from dovetail.platform.sessions import batch_writer, keep, release
from dovetail.spark.execution import projection
from dovetail.spark.execution.frames import unpack_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

WriteBatch: TypeAlias = "Callable[[DataFrame, int], None]"
"""Writes a micro-batch's rows of a result, given with its number. It is called again after a
failure; the target is then as if it had been called once."""
WriteBatches: TypeAlias = "Callable[[Sequence[DataFrame], int], None]"
"""Writes a micro-batch's rows of several results, in the same way."""


class Sink(Protocol):
    """A target of a changelog: the interface of all sinks of ``write_stream``.

    ``dt.to_delta`` and the other functions named ``to_…`` make one. A class of your own
    serves as well, if it has this method.

    See Also
    --------
    BatchSink : A sink that can be one of several of a query.
    to_foreach_batch : A sink that calls a function.
    Table.write_stream : Start a query that keeps a sink up to date.

    Examples
    --------
    >>> import tempfile
    >>> import dovetail as dt
    >>> from pyspark.sql import functions as F
    >>> class Counted:
    ...     def writer(self, changes, node, checkpoint):
    ...         def count(batch, number):
    ...             print(f"{node.name}, micro-batch {number}: {batch.count()} changes")
    ...         return changes.writeStream.foreachBatch(count)
    >>> folder = tempfile.TemporaryDirectory()
    >>> rows = spark.createDataFrame([(1, 40), (2, 7)], "id long, amount long")
    >>> rows.write.parquet(f"{folder.name}/in")
    >>> changes = spark.readStream.schema(rows.schema).parquet(f"{folder.name}/in")
    >>> orders = dt.Table.from_changelog(
    ...     changes, key="id", timestamp=F.timestamp_seconds(F.lit(1)), name="orders"
    ... )
    >>> query = orders.write_stream(
    ...     Counted(), checkpoint=f"{folder.name}/checkpoint", trigger={"availableNow": True}
    ... )
    >>> query.awaitTermination()
    orders, micro-batch 0: 2 changes
    """

    def writer(self, changes: DataFrame, node: Node, checkpoint: str) -> DataStreamWriter:
        """Return the configured writer of a query with one result and this sink alone.

        The query adds the checkpoint, the trigger and the name, and starts it.

        Parameters
        ----------
        changes : DataFrame
            The changelog as a streaming frame: the key, the values, ``_change``,
            ``_timestamp`` and ``_position``, which orders the changes of a key. A delete
            has null values.
        node : Node
            The result's plan. ``node.name`` is its name, ``node.key.names`` are its key
            columns, and ``node.values.names`` its value columns. ``node.current`` is true
            for a table whose last changes are its current rows.
        checkpoint : str
            The folder of the query's checkpoint.

        Returns
        -------
        DataStreamWriter
            The writer, without a checkpoint, a trigger and a name.

        Raises
        ------
        PlanError
            If the result does not suit the target.
        TargetError
            If the target cannot take the result, such as a table with other columns.

        See Also
        --------
        BatchSink.batches : Return the function that writes micro-batches of several results.

        Examples
        --------
        >>> class Printed:
        ...     def writer(self, changes, node, checkpoint):
        ...         return changes.writeStream.foreachBatch(self.show)
        ...
        ...     def show(self, batch, number):
        ...         print(number, batch.count())
        >>> changes = spark.readStream.format("rate").load()
        >>> type(Printed().writer(changes, None, "out/checkpoint")).__name__
        'DataStreamWriter'
        """


class BatchSink(Sink, Protocol):
    """A sink that can be one of several of a query: the interface of sinks for ``dt.run``.

    The sinks that the functions named ``to_…`` make are such sinks. A class of your own
    needs ``writer``, ``title`` and ``batches``.

    See Also
    --------
    Sink : The interface of all sinks.
    run : Start one query with several results.

    Examples
    --------
    >>> class Printed:
    ...     title = "printed"
    ...
    ...     def writer(self, changes, node, checkpoint):
    ...         write = self.batches(changes.sparkSession, node, checkpoint)
    ...         return changes.writeStream.foreachBatch(write)
    ...
    ...     def batches(self, session, node, checkpoint):
    ...         return lambda batch, number: print(number, batch.count())
    >>> write = Printed().batches(spark, None, "out/checkpoint")
    >>> write(spark.createDataFrame([(1,), (2,)], "id long"), 0)
    0 2
    """

    @property
    def title(self) -> str:
        """The sink's name in errors, without secrets.

        See Also
        --------
        BatchSink.batches : Return the function that writes micro-batches.

        Examples
        --------
        >>> import dovetail as dt
        >>> dt.to_postgres("postgresql://app:secret@db/shop", "orders").title
        "to_postgres('orders')"
        """

    def batches(self, session: SparkSession, node: Node, checkpoint: str) -> WriteBatch:
        """Return the function that writes the micro-batches of a query with several results.

        It is called once, before the query starts. A table or folder of the sink can be
        created or checked here.

        Parameters
        ----------
        session : SparkSession
            The session of the query.
        node : Node
            The result's plan. ``node.name`` is its name, ``node.key.names`` are its key
            columns, and ``node.values.names`` its value columns. ``node.current`` is true
            for a table whose last changes are its current rows.
        checkpoint : str
            The folder of the query's checkpoint.

        Returns
        -------
        callable
            A function of a static frame and the micro-batch's number. The frame has the
            columns of the changelog: the key, the values, ``_change``, ``_timestamp`` and
            ``_position``, which orders the changes of a key. A delete has null values.

        Raises
        ------
        PlanError
            If the result does not suit the target.
        TargetError
            If the target cannot take the result, such as a table with other columns.

        See Also
        --------
        Sink.writer : Return the writer of a query with one result and one sink.
        run : Start one query with several results.

        Notes
        -----
        The function is called again after a failure, with the same number. The target must
        then be as if it had been called once. An error that it raises fails the query as a
        ``TargetError``.

        Examples
        --------
        >>> import dovetail as dt
        >>> def show(batch, number):
        ...     print(number, batch.count())
        >>> write = dt.to_foreach_batch(show).batches(spark, None, "out/checkpoint")
        >>> write(spark.createDataFrame([(1,), (2,)], "id long"), 0)
        0 2
        """


class JointSink(BatchSink, Protocol):
    """A sink that is written together with others of its database."""

    def database(self, session: SparkSession) -> Hashable:
        """Return the identity of the database in which the micro-batches are committed; sinks with
        an equal one are written together. ``session``: that of the query. Errors are those of
        ``joint``.
        """

    def joint(
        self, session: SparkSession, sinks: Sequence[tuple[JointSink, Node]], checkpoint: str
    ) -> WriteBatches:
        """Return the function that writes a micro-batch to several sinks of one database, each with
        its result, in one transaction. That function takes the sinks' frames, in the order of
        ``sinks``, and the id of the micro-batch.

        This method is called once, before the query starts. ``sinks``: this sink and the others
        with its ``database``, at least two, each with the node of its result. ``checkpoint``: the
        folder of the query's checkpoint. Errors are those of ``batches`` of the sinks.
        """


@dataclass(frozen=True)
class Outcome:
    """A result and its sinks. If there are several, each must be a ``BatchSink``."""

    node: Node
    sinks: tuple[Any, ...]

    @property
    def titles(self) -> list[str]:
        """The titles of the sinks, in order; of one without a title, the name of its class."""
        return [getattr(sink, "title", type(sink).__name__) for sink in self.sinks]

    def across_runs(self) -> Outcome:
        """Return a copy with sinks that go on in a second Spark query as in the first. A table in
        memory, for example, keeps its rows. Sinks without the method ``across_runs`` stay as they
        are.
        """
        sinks = (s.across_runs() if hasattr(s, "across_runs") else s for s in self.sinks)
        return replace(self, sinks=tuple(sinks))


def outcomes_for_both_runs(
    outcomes: Sequence[Outcome], name: str | None, *, closes: bool
) -> Sequence[Outcome]:
    """Return the outcomes with sinks that serve two Spark queries in turn (``Outcome.across_runs``)
    if the query ``closes``, or has a ``name``. Else return them unchanged.

    ``closes``: True if a second query closes the end of the input. ``name``: the query's, None for
    none. Spark's own memory sink calls its table by the query's name, so a name would rename the
    table. Sinks by ``across_runs`` write the table themselves.
    """
    if closes or name is not None:
        return [outcome.across_runs() for outcome in outcomes]
    return outcomes


@dataclass(frozen=True)
class _Result:
    """One result of a query with several results. Its rows are those of the query's packed rows
    (``PACKED``) that have its address as ``reader``.
    """

    number: int
    """The result's address: the value of the column ``reader``."""
    node: Node
    output: Output
    """The columns of its unpacked rows."""
    stage: Stage | None
    """The stage whose changelog must still be computed from the rows; None if they are the
    changelog."""
    views: tuple[View, ...] = ()
    """The views that are applied last, the innermost first."""

    def rows(self, batch_rows: DataFrame, batch_id: int) -> DataFrame:
        """Return the result's changelog of the micro-batch with the id ``batch_id``, with a key's
        changes in order. Its columns are those of ``changelog_schema``. Without changes of the
        result it has no rows.

        ``batch_rows``: the packed rows of all results, with ``reader``, ``partition``, ``number``,
        ``facts`` and ``payload``. A dead letter without an event time gets the present time.
        """
        result_rows = batch_rows.where(F.col("reader") == self.number)
        rows = unpack_rows(result_rows.sortWithinPartitions("partition", "number"), self.output)
        names = changelog_schema(self.node).names
        if isinstance(self.node, DeadLetters):
            time = F.coalesce(F.timestamp_micros(EVENT_TIME), F.current_timestamp())
            position = F.lit(batch_id).cast("long") * (1 << 32) + F.monotonically_increasing_id()
            rows = (
                rows.coalesce(1)
                .withColumn(CHANGE, F.lit(UPSERT))
                .withColumn(TIMESTAMP, time)
                .withColumn(POSITION, position)
            )
        elif self.stage is not None:
            rows = projection.changelog(rows, self.stage)
        rows = reduce(projection.changelog_of_view, self.views, rows)
        return rows.select(*map(F.col, map(quoted, names)))


def _results_of(plan: Plan, nodes: Sequence[Node]) -> list[_Result]:
    """Return the results of a plan in their order. The n-th has the n-th of ``plan.addresses`` as
    its address, the value of ``reader`` in its packed rows. ``nodes``: the nodes of its results in
    the same order, and then the dead letters if they are a result.
    """
    raw = {step.result for step in walk_steps(plan.last_steps) if not step.is_read}
    results = []
    for index, node in enumerate(nodes):
        address = plan.addresses[index]
        if isinstance(node, DeadLetters):
            output = Output(spark_schema(DEAD_LETTERS), {})
            results.append(_Result(address, node, output, None))
            continue
        stage, views = plan.results[index].stage, plan.results[index].views
        output = output_of(stage)
        computes = stage if output.held is None else None
        if address not in raw:
            output, computes = Output(_nullable(changelog_schema(stage.node)), {}), None
        results.append(_Result(address, node, output, computes, views))
    return results


def writer_of_results(
    rows: DataFrame, plan: Plan, outcomes: Sequence[Outcome], checkpoint: str
) -> DataStreamWriter:
    """Return the writer of a query that emits ``rows`` (of ``PACKED``), the union of all results of
    ``plan``. The query computes each micro-batch fully, and keeps it, before any sink writes. All
    sinks then write at the same time.

    ``outcomes``: each result with its sinks, all ``BatchSink``, in the plan's order.
    ``checkpoint``: the query's folder. Errors are those of ``batches`` of the sinks, which is
    called here.
    """
    session = rows.sparkSession
    results = _results_of(plan, [outcome.node for outcome in outcomes])
    pairs = [(r, sink) for r, o in zip(results, outcomes, strict=True) for sink in o.sinks]
    groups = _group_by_database(session, pairs)
    writes = [_sink_group(session, group, checkpoint) for group in groups]
    _refuse_shared_folders(session, [sink for _, sink in pairs])

    def write(batch: DataFrame, batch_id: int) -> None:
        """Compute the micro-batch with the id ``batch_id`` and write it to all sinks. Its rows are
        cached until then.
        """
        result_rows = batch.where(F.col("payload").isNotNull())
        batch_rows = keep(result_rows.select("reader", "partition", "number", "facts", "payload"))
        try:
            # Compute everything here, so that any later failure is a sink's.
            batch_rows.select("reader").collect()
            _write_all(writes, batch_rows, batch_id)
        finally:
            release(batch_rows)

    return batch_writer(rows, write)


def _refuse_shared_folders(session: SparkSession, sinks: Sequence[Any]) -> None:
    """Raise ``PlanError`` if two of the ``sinks`` write a table of one folder, as if one names the
    table and the other its path. Sinks without the method ``location`` do not count. The tables
    must exist.
    """
    located = [sink for sink in sinks if hasattr(sink, "location")]
    if len(located) < 2:
        return
    title_by_folder: dict[str, str] = {}
    for sink in located:
        folder = sink.location(session)
        if folder in title_by_folder:
            both = f"{title_by_folder[folder]} and {sink.title}"
            raise PlanError(
                "run", f"results= has one table twice, as {both}", "Give each one of its own"
            )
        title_by_folder[folder] = sink.title


def _group_by_database(
    session: SparkSession, pairs: Sequence[tuple[_Result, Any]]
) -> list[list[tuple[_Result, Any]]]:
    """Return ``pairs`` of a result and a sink in groups that are written together. Sinks with the
    method ``joint`` and an equal ``database`` share a group, every other sink has its own. Groups
    keep the order of their first pair. Errors of ``database`` pass.
    """
    joint = [hasattr(sink, "joint") for _, sink in pairs]
    if sum(joint) < 2:
        return [[pair] for pair in pairs]
    groups: dict[Hashable, list[tuple[_Result, Any]]] = {}
    for pair_index, (pair, is_joint) in enumerate(zip(pairs, joint, strict=True)):
        database = pair[1].database(session) if is_joint else pair_index
        groups.setdefault(database, []).append(pair)
    return [*groups.values()]


def _sink_group(
    session: SparkSession, pairs: Sequence[tuple[_Result, Any]], checkpoint: str
) -> _SinkGroup:
    """Return the group that writes ``pairs`` of a result and a sink: one pair, or several of one
    database, which it writes in one transaction. ``checkpoint``: the query's folder. The sinks'
    ``joint`` or ``batches`` is called, and its errors pass.
    """
    results, sinks = [result for result, _ in pairs], [sink for _, sink in pairs]
    title = ", ".join(sink.title for sink in sinks)
    if len(pairs) > 1:
        joint = [(sink, result.node) for result, sink in pairs]
        return _SinkGroup(results, title, sinks[0].joint(session, joint, checkpoint))
    alone = sinks[0].batches(session, results[0].node, checkpoint)
    return _SinkGroup(results, title, lambda batches, batch_id: alone(batches[0], batch_id))


@dataclass(frozen=True)
class _SinkGroup:
    """Some sinks of a query that are written together, and the function that writes them."""

    results: Sequence[_Result]
    """The results of the sinks."""
    title: str
    """The sinks' titles in errors, separated by commas."""
    write: WriteBatches
    """Writes a frame for each of ``results``, in order."""

    def __call__(self, batch_rows: DataFrame, batch_id: int) -> None:
        """Write the results of the micro-batch with the id ``batch_id`` to all sinks.
        ``batch_rows``: the packed rows of all results. Raises the library's errors as they are, and
        any other as a ``TargetError`` that names the results.
        """
        try:
            self.write([result.rows(batch_rows, batch_id) for result in self.results], batch_id)
        except DovetailError:
            raise
        except Exception as error:
            names = ", ".join(result.node.name for result in self.results)
            raise TargetError(
                self.title,
                f"micro-batch {batch_id} of {names} cannot be written: {line_of(error)}",
                "Mend what it names and start the query again",
            ) from error


def _write_all(writes: Sequence[_SinkGroup], batch_rows: DataFrame, batch_id: int) -> None:
    """Run all ``writes`` on a micro-batch at the same time, each but the first in a thread of its
    own. There is at least one. When all are done, raise the failure that came first, if any: a
    ``DovetailError``. Further failures are dropped.
    """
    failed: list[Exception] = []

    def attempt(write: _SinkGroup) -> None:
        """Write to one group of sinks, and put an error in ``failed`` instead of raising it."""
        try:
            write(batch_rows, batch_id)
        except Exception as error:
            failed.append(error)

    threads = [
        InheritableThread(target=attempt, args=(write,), session=batch_rows.sparkSession)
        for write in writes[1:]
    ]
    for thread in threads:
        thread.start()
    attempt(writes[0])
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


def _nullable(columns: StructType) -> StructType:
    """Return the columns with the types of Arrow blobs: all nullable, also within nested types. The
    columns lose their metadata, texts their collation, and a day-time interval is ``interval day to
    second``.
    """
    return spark_schema(Output(columns, {}).schema)
