"""The driver: a topology in this process that is fed row by row."""

from __future__ import annotations

import difflib
import json
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeAlias, TypeGuard, cast

import pyarrow as pa
from pyspark.sql import SparkSession

from dovetail.api.results import AResult
from dovetail.api.tables import Table
from dovetail.api.topology import ATopology, AWindowedTable, Topology
from dovetail.arrays.spark_hash import spark_hash
from dovetail.base.columns import DELETED, POSITION
from dovetail.base.hints import HintedDriver
from dovetail.base.text_cells import microseconds_of
from dovetail.base.validation import validated
from dovetail.engine.idle import IdleRules, idle_us
from dovetail.engine.local import Hash, LocalRun
from dovetail.errors import CheckpointError, DataError, PlanError
from dovetail.operators.job import END_OF_TIME
from dovetail.physical.fragment import Buckets, Emit
from dovetail.physical.inputs import Arrival
from dovetail.physical.planner import plan_of
from dovetail.plan.dead_letters import DeadLetters
from dovetail.plan.fingerprint import describe, fingerprint, refuse_alike, refuse_other, sources_of
from dovetail.plan.nodes import Node, Source
from dovetail.plan.transforms.unwindow import windows_as_table
from dovetail.plan.types.spans import Span, microseconds
from dovetail.spark.execution.expressions import Evaluator
from dovetail.state.ipc import from_ipc, to_ipc
from dovetail.testing.changes import Change, TextTable, changes_of_rows
from dovetail.testing.driver_explanations import ExplainingDriver, MicroBatch, Replay
from dovetail.testing.inputs import (
    Row,
    Rows,
    Timestamp,
    arrow_rows,
    columns_of,
    hashable,
    title_of,
    without_frames,
)

Fed: TypeAlias = "tuple[list[tuple[Source, pa.Table]], int, int | None]"
"""The content of a micro-batch: rows of inputs, the time by the wall clock in microseconds, and the
stream time to which it moved without rows, None for none.
"""


_SNAPSHOT = pa.schema(
    [("stage", pa.int32()), ("bucket", pa.int32()), ("name", pa.string()), ("blob", pa.binary())]
)
_SNAPSHOT_VERSION = 5
"""The first byte of a snapshot."""


class Driver(ExplainingDriver, HintedDriver):
    """A topology that runs in this process and is fed by hand, each ``pipe`` a micro-batch.

    It runs the code that Spark's workers run, without a query and without files, and treats
    a record as a query would.

    Parameters
    ----------
    topology : Table or Stream
        The result to compute, with all joins and aggregates behind it.
    *others : Table, Stream or dt.dead_letters
        Further results. Calls then return all changes, one result's after the other's, and
        ``read`` returns those of one.
    emit : {"change", "batch"}, default "change"
        ``"change"`` emits each change. ``"batch"`` emits the last change of each key in a
        micro-batch, and none for a row that is as before.
    buckets : int, default 1
        The number of parts of the key space, 1 to 65536. The changes of a micro-batch come
        bucket by bucket. With one bucket, they come in the order of the records that cause
        them.
    key_hash : function, optional
        The function that assigns keys to buckets. It gets the key columns, a list of Arrow
        arrays, and returns a NumPy array of int64, one per row. A constant one makes all
        keys collide. The default is Spark's, as in a query. So changes of one record that
        concern several keys come in the order of a query with one bucket.
    spark : SparkSession, optional
        The session that evaluates the topology's Spark expressions, if it has any.
    idle : str or timedelta, optional
        The time without input after which stream time goes on with the clock of
        ``advance_wall_clock``. Stream time is the highest event time seen so far. Without
        ``idle`` it never goes on by itself.

    Raises
    ------
    PlanError
        If the topology has Spark expressions and ``spark`` is left out, or has delta joins.
        Also if a result is an input stream itself, and for ``emit="batch"`` of a stream. Also
        if ``idle`` is given and nothing in the topology waits for stream time.

    See Also
    --------
    table : Return a table that a driver feeds.
    stream : Return a stream that a driver feeds.
    Table.write_stream : Run the same topology as a query.

    Notes
    -----
    Rows are read in the order given. If a join has ``align=``, they are read in the order
    of time, as far as the join lets them through.

    Tables and streams that are read from frames are fed by hand, too, with their key and
    value columns. Their frames are not read. ``timestamp=``, ``deleted=`` and ``sequence=``
    of their readers do not apply.

    ``dropped`` counts the rows that are dropped, such as those with a null in their key.
    ``counts`` counts all others that reach no result, by metric.

    Equivalent to Kafka Streams' ``TopologyTestDriver``.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from dovetail import testing
    >>> schema = {"id": pa.int64(), "amount": pa.int64()}
    >>> orders = testing.table("orders", key="id", schema=schema)
    >>> schema = {"id": pa.int64(), "paid": pa.int64()}
    >>> payments = testing.table("payments", key="id", schema=schema)
    >>> driver = testing.Driver(orders.join(payments, how="left"))
    >>> driver.pipe(orders, {"id": 1, "amount": 40}, timestamp=1)
    [<id=1: amount=40, paid=None @1>]
    >>> driver.pipe(payments, {"id": 1, "paid": 15}, timestamp=2)
    [<id=1: amount=40, paid=15 @2>]
    """

    @validated
    def __init__(
        self,
        topology: ATopology,
        *others: AResult,
        emit: Emit = "change",
        buckets: Buckets = 1,
        key_hash: Hash | None = None,
        spark: SparkSession | None = None,
        idle: Span | None = None,
    ) -> None:
        self._nodes: dict[Node, Node] = {}
        plans = _order_plans([topology, *others])
        self._results = {plan: without_frames(plan, self._nodes) for plan in plans}
        nodes = _computed_nodes(self._results.values())
        self._node = nodes[0]
        # Rows come in the order given, as from one log, unless a join orders them by time.
        waits = (inner.longest_align_us for node in nodes for inner in node.walk())
        plan = plan_of(
            nodes,
            buckets=buckets,
            emit=emit,
            arrival=Arrival.of(*nodes, one_log=all(wait is None for wait in waits)),
            dead_letters=len(nodes) < len(plans),
        )
        self._sources = {source: columns_of(source) for source in sources_of(nodes)}
        evaluator = None if spark is None else Evaluator(spark)
        self._root = LocalRun(plan, spark_hash if key_hash is None else key_hash, evaluator)
        if idle is not None:
            self._root.let_time_go_on(IdleRules(((0, idle_us("Driver", idle, plan)),)))
        self._spark = spark
        self._fed: list[tuple[Source, pa.Table]] = []
        self._log: list[Fed] | None = []
        self._views: dict[Node, _View] = {}
        self.results: list[Node] = [*self._results.values()]
        """The nodes of the results, as they run in this process."""
        self.micro_batches: list[MicroBatch] = []
        """The micro-batches so far; of a restored driver, those since then."""
        self._unread: list[list[Change]] = [[] for _ in plans]
        self._inside_batch = self._ended = False
        self._sequence = self._now_us = self._batches = 0

    @property
    def counts(self) -> dict[str, int]:
        """The number of rows that reach no result, by metric.

        A metric without rows is absent. Dropped rows are in ``dropped`` instead.

        See Also
        --------
        Driver.dropped : The number of dropped rows.
        Driver.examples : The first row that each metric counts.

        Notes
        -----
        The metrics are those of a query, such as ``<stream>.late``. docs/operations.md
        lists them. A few count rows that come out all the same, such as those that an
        ``expect`` with ``on_fail="warn"`` keeps.

        Examples
        --------
        >>> import pyarrow as pa
        >>> import dovetail as dt
        >>> from dovetail import testing
        >>> schema = {"user": pa.string(), "page": pa.string()}
        >>> views = testing.stream("views", key="user", schema=schema)
        >>> groups = views.group_by("page").window(dt.windows.tumbling("1 hour"))
        >>> counts = groups.agg(views=dt.count()).to_table(windows="on_close")
        >>> driver = testing.Driver(counts)
        >>> hour = 3_600_000_000
        >>> rows = [{"user": "ann", "page": "home"}, {"user": "bob", "page": "home"}]
        >>> changes = driver.pipe(views, rows, timestamp=[hour, 0])  # the second one is late
        >>> driver.counts
        {'views.late': 1}
        """
        return {name: count for name, count in self._root.total_counts.number.items() if count}

    @property
    def examples(self) -> dict[str, str]:
        """The first row that each metric counts, in words, by metric.

        The metrics are those of ``counts``, and ``<name>.dropped`` for dropped rows.

        See Also
        --------
        Driver.counts : The number of rows that reach no result.
        Driver.dropped : The number of dropped rows.

        Examples
        --------
        >>> import pyarrow as pa
        >>> from dovetail import testing
        >>> schema = {"id": pa.int64(), "amount": pa.int64()}
        >>> orders = testing.table("orders", key="id", schema=schema)
        >>> driver = testing.Driver(orders)
        >>> driver.pipe(orders, {"id": None, "amount": 40}, timestamp=1)
        []
        >>> driver.examples
        {'orders.dropped': 'id=None at 1970-01-01T00:00:00.000001Z'}
        """
        return self._root.total_counts.examples

    @property
    def dropped(self) -> int:
        """The number of rows that are dropped as unusable, of all tables and streams together.

        They are rows with a null in their key, unless a join emits them without a match.
        They are also records of a stream without a value, and records with a null among the
        columns that they are grouped by.

        See Also
        --------
        Driver.counts : The number of other rows that reach no result.
        Driver.examples : The first row that each metric counts.

        Examples
        --------
        >>> import pyarrow as pa
        >>> from dovetail import testing
        >>> schema = {"id": pa.int64(), "amount": pa.int64()}
        >>> orders = testing.table("orders", key="id", schema=schema)
        >>> driver = testing.Driver(orders)
        >>> driver.pipe(orders, {"id": None, "amount": 40}, timestamp=1)
        []
        >>> driver.dropped
        1
        """
        return self._root.dropped

    @validated
    def pipe(
        self,
        table: ATopology,
        rows: Rows,
        *,
        timestamp: Timestamp | Sequence[Timestamp | None] | None = None,
        deleted: bool = False,
    ) -> list[Change]:
        """Feed rows of an input as one micro-batch, and return the changes that they cause.

        Inside ``batch`` the rows wait for the end of the block, and the list that is
        returned is empty.

        Parameters
        ----------
        table : Table or Stream
            The input that gets the rows.
        rows : mapping, list of mappings, list of Change, or str
            One row or several, each a mapping of columns to values. A value column that a
            row leaves out is null. Or a table in text, with times and deletes in it, as
            ``as_text`` prints it. In the text, value columns and ``change`` may be left
            out. A list of changes has its own times and deletes, too.
        timestamp : datetime, int or list of these, optional
            The event time, one for all rows or one each. An int is in microseconds since
            1970, and a datetime without a zone is in UTC. Rows with a null in their key,
            which are dropped, need none.
        deleted : bool, default False
            True if the rows are tombstones: they delete the rows of their keys and need no
            more than the key. In a stream they are records without a value.

        Returns
        -------
        list of Change
            The changes of all results, one result's after the other's.

        Raises
        ------
        PlanError
            If the topology does not read ``table``. Also if ``rows`` is a text or changes and
            ``timestamp`` or ``deleted`` is given, or if the input has ended.
        DataError
            If a row has no timestamp, an unknown column, no key column or a value of the
            wrong type. Also if ``timestamp`` has more or fewer times than there are rows, and
            for a text that is not such a table. Then the driver is as it was before the call.

        See Also
        --------
        Driver.batch : Feed rows of several inputs as one micro-batch.
        Driver.read : Return the changes since the last call.
        Driver.assert_changes : Compare changes with a table in text.

        Examples
        --------
        >>> import pyarrow as pa
        >>> from dovetail import testing
        >>> schema = {"id": pa.int64(), "amount": pa.int64()}
        >>> orders = testing.table("orders", key="id", schema=schema)
        >>> driver = testing.Driver(orders)
        >>> rows = [{"id": 1, "amount": 40}, {"id": 2}]
        >>> driver.pipe(orders, rows, timestamp=[1, 2])
        [<id=1: amount=40 @1>, <id=2: amount=None @2>]
        >>> driver.pipe(
        ...     orders,
        ...     '''
        ...     time | id | amount | change
        ...     3    | 1  | 50     | upsert
        ...     4    | 2  |        | delete
        ...     ''',
        ... )
        [<id=1: amount=50 @3>, <id=2: deleted @4>]
        """
        if not self._inside_batch:
            with self.batch() as changes:
                self.pipe(table, rows, timestamp=timestamp, deleted=deleted)
            return changes
        source = self._source(table)
        if isinstance(rows, str) or _are_changes(rows):
            if timestamp is not None or deleted:
                kind = (
                    "a text, which has its"
                    if isinstance(rows, str)
                    else "changes, which have their"
                )
                raise PlanError(
                    "pipe",
                    f"rows= is {kind} own times and deletes",
                    "Leave timestamp= and deleted= out",
                )
            read = TextTable(source).read(rows) if isinstance(rows, str) else rows
            new_rows: Sequence[Mapping[str, Any]] = [{**c.key, **(c.values or {})} for c in read]
            times: list[Timestamp | None] = [change.timestamp_us for change in read]
            gone = [change.change == "delete" for change in read]
        else:
            new_rows = [rows] if isinstance(rows, Mapping) else cast(Sequence[Row], rows)
            times = [*timestamp] if isinstance(timestamp, Sequence) else [timestamp] * len(new_rows)
            gone = [deleted] * len(new_rows)
        if len(times) != len(new_rows):
            raise DataError(
                source.title,
                f"{len(new_rows)} rows come with {len(times)} timestamps",
                "Give one timestamp for all rows, or one each",
            )
        for row, time in zip(new_rows, times, strict=True):
            if time is None and all(row.get(name) is not None for name in source.key.names):
                raise DataError(
                    source.title,
                    f"a row of pipe has no time: {dict(row)}",
                    "Give pipe(..., timestamp=...), one for all rows or one each",
                )
        taken = arrow_rows(source, self._sources[source], new_rows, times, gone, self._sequence)
        self._root.accept_rows(source, taken)
        self._fed.append((source, taken))
        self._sequence += len(new_rows)
        return []

    def batch(self) -> AbstractContextManager[list[Change]]:
        """Return a context in which rows that are piped in make one micro-batch.

        The micro-batch runs when the block ends. If the block raises, the driver is as it
        was before.

        Returns
        -------
        context manager of list of Change
            Its value is a list, empty in the block, that has the changes after it.

        Raises
        ------
        PlanError
            If another batch is open, or if the input has ended.

        See Also
        --------
        Driver.pipe : Feed rows of one input.

        Examples
        --------
        >>> import pyarrow as pa
        >>> from dovetail import testing
        >>> schema = {"id": pa.int64(), "amount": pa.int64()}
        >>> orders = testing.table("orders", key="id", schema=schema)
        >>> schema = {"id": pa.int64(), "paid": pa.int64()}
        >>> payments = testing.table("payments", key="id", schema=schema)
        >>> driver = testing.Driver(orders.join(payments), emit="batch")
        >>> with driver.batch() as changes:
        ...     driver.pipe(orders, {"id": 1, "amount": 40}, timestamp=1)
        ...     driver.pipe(payments, {"id": 1, "paid": 15}, timestamp=2)
        []
        []
        >>> changes
        [<id=1: amount=40, paid=15 @2>]
        """
        self._refuse_inside("batch()")
        return self._batch()

    @contextmanager
    def _batch(self, beat_us: int | None = None) -> Iterator[list[Change]]:
        """Run the block's rows as one micro-batch. Yield an empty list, which has the micro-batch's
        changes after the block. If the block or the micro-batch fails, the state is as before and
        the rows are forgotten, and the error goes on.

        ``beat_us``: the stream time to move to without rows, in microseconds since 1970, None for
        none.
        """
        changes: list[Change] = []
        self._inside_batch = True
        try:
            with self._root.all_or_nothing():
                yield changes
                changes += self._run(beat_us)
        except BaseException:
            self._fed = []
            raise
        finally:
            self._inside_batch = False

    @validated
    def advance_stream_time(self, timestamp: Timestamp) -> list[Change]:
        """Move the stream time of all inputs on without rows, and return the changes.

        *Stream time* is the highest event time so far. Windows close with it, and grace
        periods end.

        Parameters
        ----------
        timestamp : datetime or int
            The new stream time. An int is in microseconds since 1970, and a datetime
            without a zone is in UTC. A time before the present stream time changes nothing.

        Returns
        -------
        list of Change
            The changes of all results.

        Raises
        ------
        PlanError
            If ``timestamp`` is no time, if a batch is open, or if the input has ended.

        See Also
        --------
        Driver.advance_wall_clock : Let time pass by the clock.
        Driver.end_input : End all waiting.

        Examples
        --------
        >>> import pyarrow as pa
        >>> import dovetail as dt
        >>> from dovetail import testing
        >>> schema = {"user": pa.string(), "page": pa.string()}
        >>> views = testing.stream("views", key="user", schema=schema)
        >>> groups = views.group_by("page").window(dt.windows.tumbling("1 hour"))
        >>> counts = groups.agg(views=dt.count()).to_table(windows="on_close")
        >>> driver = testing.Driver(counts)
        >>> driver.pipe(views, {"user": "ann", "page": "home"}, timestamp=0)
        []
        >>> for change in driver.advance_stream_time(3_600_000_000):
        ...     print(change.key["page"], change.values)
        home {'views': 1}
        """
        self._refuse_inside("advance_stream_time()")
        with self._batch(microseconds_of(timestamp)) as changes:
            pass
        return changes

    @validated
    def advance_wall_clock(self, span: Span) -> list[Change]:
        """Let a span of time pass by the wall clock, without rows, and return the changes.

        A driver does not look at the real clock. Only joins with ``align=`` and the
        driver's ``idle=`` go by the wall clock.

        Parameters
        ----------
        span : str or timedelta
            The time that passes, such as ``"5 seconds"``.

        Returns
        -------
        list of Change
            The changes of all results.

        Raises
        ------
        PlanError
            If ``span`` is no span or is negative, if a batch is open, or if the input has
            ended.

        See Also
        --------
        Driver.advance_stream_time : Move stream time, the highest event time so far.
        Table.join : Describes ``align``.

        Examples
        --------
        >>> import pyarrow as pa
        >>> from dovetail import testing
        >>> schema = {"id": pa.int64(), "amount": pa.int64()}
        >>> orders = testing.table("orders", key="id", schema=schema)
        >>> schema = {"id": pa.int64(), "paid": pa.int64()}
        >>> payments = testing.table("payments", key="id", schema=schema)
        >>> driver = testing.Driver(orders.join(payments, how="left", align="5 s"))
        >>> driver.pipe(orders, {"id": 1, "amount": 40}, timestamp=1)  # waits for payments
        []
        >>> driver.advance_wall_clock("5 s")
        [<id=1: amount=40, paid=None @1>]
        """
        self._refuse_inside("advance_wall_clock()")
        self._now_us += microseconds("advance_wall_clock", "span=", span)
        with self.batch() as changes:
            pass
        return changes

    def end_input(self) -> list[Change]:
        """End all inputs and return the changes.

        Windows close and grace periods are over, as at the end of a batch run or of a query
        with ``close_at_end=True``. After that, nothing can be piped in.

        Returns
        -------
        list of Change
            The changes of all results.

        Raises
        ------
        PlanError
            If a batch is open, or if the input has ended before.

        See Also
        --------
        Driver.advance_stream_time : Close windows up to a time.
        Table.write_stream : Describes ``close_at_end``.

        Examples
        --------
        >>> import pyarrow as pa
        >>> import dovetail as dt
        >>> from dovetail import testing
        >>> schema = {"user": pa.string(), "page": pa.string()}
        >>> views = testing.stream("views", key="user", schema=schema)
        >>> groups = views.group_by("page").window(dt.windows.tumbling("1 hour"))
        >>> counts = groups.agg(views=dt.count()).to_table(windows="on_close")
        >>> driver = testing.Driver(counts)
        >>> driver.pipe(views, {"user": "ann", "page": "home"}, timestamp=0)
        []
        >>> for change in driver.end_input():
        ...     print(change.key["page"], change.values)
        home {'views': 1}
        """
        self._refuse_inside("end_input()")
        with self._batch(END_OF_TIME) as changes:
            pass
        self._ended = True
        return changes

    @validated
    def read(self, result: AResult | None = None) -> list[Change]:
        """Return all changes of a result since the last ``read`` or ``assert_changes``.

        Parameters
        ----------
        result : Table, Stream or dt.dead_letters, optional
            The result. It may be left out if the driver has only one.

        Returns
        -------
        list of Change
            The changes in order. They count as read.

        Raises
        ------
        PlanError
            If ``result`` is not a result of the driver, or is left out of a driver with
            several.

        See Also
        --------
        Driver.pipe : Feed rows and return the changes that they cause.
        Driver.table : Return the rows of a table.

        Examples
        --------
        >>> import pyarrow as pa
        >>> from dovetail import testing
        >>> schema = {"id": pa.int64(), "amount": pa.int64()}
        >>> orders = testing.table("orders", key="id", schema=schema)
        >>> driver = testing.Driver(orders)
        >>> changes = driver.pipe(orders, {"id": 1, "amount": 40}, timestamp=1)
        >>> changes = driver.pipe(orders, {"id": 1}, timestamp=2, deleted=True)
        >>> driver.read()
        [<id=1: amount=40 @1>, <id=1: deleted @2>]
        >>> driver.read()
        []
        """
        result_index, _ = self._result("read", result)
        changes, self._unread[result_index] = self._unread[result_index], []
        return changes

    def _result(self, call: str, result: AResult | None) -> tuple[int, Node]:
        """Return the index of ``result`` among the driver's results, from 0, and its node as it
        runs here. None means the only result.

        Raises ``PlanError`` for None with several results, and for a result of another driver.
        ``call``: the user's call, for the error.
        """
        if result is None and len(self._results) == 1:
            return 0, self._node
        if result is None or result.plan not in self._results:
            names = ", ".join(node.name for node in self._results.values())
            what = (
                "is missing" if result is None else f"is {title_of(result)}, which is not a result"
            )
            raise PlanError(call, f"result= {what}", f"The results are {names}")
        return [*self._results].index(result.plan), self._results[result.plan]

    @validated
    def as_text(self, changes: Sequence[Change], result: AResult | None = None) -> str:
        """Return changes of a result as a table in text, which ``pipe`` can read back.

        Parameters
        ----------
        changes : list of Change
            The changes to print. An empty list gives the header alone.
        result : Table, Stream or dt.dead_letters, optional
            The result that the changes are of. It may be left out if the driver has only
            one.

        Returns
        -------
        str
            The header and a line for each change, aligned. The columns are ``time``, the
            key, the values and ``change``.

        Raises
        ------
        PlanError
            If ``result`` is not a result of the driver, or is left out of a driver with
            several.

        See Also
        --------
        Driver.pipe : Read such a text.
        Driver.assert_changes : Compare changes with such a text.

        Notes
        -----
        - An empty cell is null, and an empty text is ``""``.
        - Times within the first day of 1970 are microseconds. Others are as in
          ``2024-05-01T10:00:00Z``.
        - Arrays, structs and maps (as lists of pairs) are JSON. So are texts with bars,
          with quotes, or with blanks at an end.
        - Lines that begin with ``#`` are not read.

        Examples
        --------
        >>> import pyarrow as pa
        >>> from dovetail import testing
        >>> schema = {"id": pa.int64(), "amount": pa.int64()}
        >>> orders = testing.table("orders", key="id", schema=schema)
        >>> driver = testing.Driver(orders)
        >>> changes = driver.pipe(orders, [{"id": 1, "amount": 40}, {"id": 2}], timestamp=3)
        >>> print(driver.as_text(changes))
        time | id | amount | change
        3    | 1  | 40     | upsert
        3    | 2  |        | upsert
        """
        _, node = self._result("as_text", result)
        return "\n".join(TextTable(node).lines(changes)[0])

    @validated
    def assert_changes(self, text: str, result: AResult | None = None) -> None:
        """Assert that the changes since the last ``read`` equal a table in text.

        All changes are compared, in their order. They count as read.

        Parameters
        ----------
        text : str
            The expected changes, in the form that ``as_text`` prints. Value columns and
            ``change`` may be left out: a value is then null, and ``change`` is ``upsert``.
            A header alone expects no changes.
        result : Table, Stream or dt.dead_letters, optional
            The result. It may be left out if the driver has only one.

        Raises
        ------
        AssertionError
            If the changes differ. The message has ``-`` before lines that are missing, and
            ``+`` before lines that came instead. The changes count as read, too.
        DataError
            If ``text`` is not such a table. The changes do not count as read then.
        PlanError
            If ``result`` is not a result of the driver, or is left out of a driver with
            several.

        See Also
        --------
        Driver.as_text : Print changes in this form.
        Driver.read : Return the changes as objects.

        Examples
        --------
        >>> import pyarrow as pa
        >>> from dovetail import testing
        >>> schema = {"id": pa.int64(), "amount": pa.int64()}
        >>> orders = testing.table("orders", key="id", schema=schema)
        >>> driver = testing.Driver(orders)
        >>> changes = driver.pipe(orders, {"id": 1, "amount": 40}, timestamp=3)
        >>> driver.assert_changes(
        ...     '''
        ...     time | id | amount
        ...     3    | 1  | 40
        ...     '''
        ... )
        >>> driver.assert_changes("time | id | amount")  # no changes since then
        """
        _, node = self._result("assert_changes", result)
        form = TextTable(node)
        expected, actual = form.lines(form.read(text), self.read(result))
        if expected != actual:
            lines = len(expected) + len(actual)
            _, _, _, *differing = difflib.unified_diff(expected, actual, n=lines, lineterm="")
            raise AssertionError("\n".join(["not the changes that are expected (-):", *differing]))

    @validated
    def table(self, table: ATopology | AWindowedTable) -> dict[Any, dict[str, Any]]:
        """Return the rows of a table of the topology after the last micro-batch.

        The table may be a result, an input, or a join or an aggregate on the way.

        Parameters
        ----------
        table : Table or WindowedTable
            The table. A windowed table has the rows of its ``to_table()``, including
            windows that are past their retention.

        Returns
        -------
        dict
            The values of each row, a mapping of columns, by the row's key. A key of several
            columns is a tuple. That of a windowed table ends with the start and the end of the
            window, as datetimes in UTC.

        Raises
        ------
        PlanError
            If ``table`` is a stream or is not in the topology. Also on a restored driver,
            which does not know former rows.

        See Also
        --------
        Driver.read : Return changes instead of rows.
        read_state : Read the rows that a query has stored.

        Notes
        -----
        - The rows are made by the changes of the table itself. ``align=`` of a join that
          reads the table does not hold them back.
        - Rows that a table does not take are absent: rows with a null in their key, and
          rows of a versioned table that are older than their key's latest.
        - A join with ``late="history"`` has the latest row of each key.

        Examples
        --------
        >>> import pyarrow as pa
        >>> from dovetail import testing
        >>> schema = {"id": pa.int64(), "amount": pa.int64()}
        >>> orders = testing.table("orders", key="id", schema=schema)
        >>> schema = {"id": pa.int64(), "paid": pa.int64()}
        >>> payments = testing.table("payments", key="id", schema=schema)
        >>> joined = orders.join(payments, how="left")
        >>> driver = testing.Driver(joined)
        >>> changes = driver.pipe(orders, {"id": 1, "amount": 40}, timestamp=1)
        >>> driver.table(joined)
        {1: {'amount': 40, 'paid': None}}
        >>> driver.table(payments)
        {}
        """
        node = self._node_in_topology("table", table)
        if node.stream:
            raise PlanError(
                "table",
                f"table= is {title_of(table)}, a stream, which has no rows",
                "Give the result, an input or a join of it",
            )
        if self._log is None:
            raise PlanError(
                "table",
                "table= is asked of a restored driver, which knows no rows from before",
                "Ask before snapshot(), or feed a new driver from the start",
            )
        if node not in self._views:
            plan = windows_as_table(node, "on_change") if node.windows else node
            topology, hash_ = Table(plan), self._root.hash
            self._views[node] = _View(topology, key_hash=hash_, spark=self._spark)
        return self._views[node].rows(self._log, self._root.idle)

    def snapshot(self) -> bytes:
        """Return the state after the last micro-batch, as a query's checkpoint would hold it.

        Returns
        -------
        bytes
            The argument of ``restore``. Its content is not meant to be read.

        Raises
        ------
        PlanError
            If a batch is open, or if the input has ended.

        See Also
        --------
        Driver.restore : Go on from a snapshot.

        Examples
        --------
        >>> import pyarrow as pa
        >>> from dovetail import testing
        >>> schema = {"id": pa.int64(), "amount": pa.int64()}
        >>> orders = testing.table("orders", key="id", schema=schema)
        >>> schema = {"id": pa.int64(), "paid": pa.int64()}
        >>> payments = testing.table("payments", key="id", schema=schema)
        >>> joined = orders.join(payments)
        >>> driver = testing.Driver(joined)
        >>> driver.pipe(orders, {"id": 1, "amount": 40}, timestamp=1)
        []
        >>> restored = testing.Driver.restore(joined, driver.snapshot())
        >>> restored.pipe(payments, {"id": 1, "paid": 15}, timestamp=2)
        [<id=1: amount=40, paid=15 @2>]
        """
        self._refuse_inside("snapshot()")
        rows = [
            (stage, bucket, name, blob)
            for stage, buckets in enumerate(self._root.buckets)
            for bucket, blobs in enumerate(buckets.blobs)
            for name, blob in sorted(blobs.blobs.items())
        ]
        stored = pa.Table.from_pylist(
            [dict(zip(_SNAPSHOT.names, row, strict=True)) for row in rows], schema=_SNAPSHOT
        )
        header = {
            "buckets": self._root.plan.buckets,
            "batches": self._batches,
            "now_us": self._now_us,
            "topology": fingerprint(*self._computed_results),
            "plan": describe(*self._computed_results),
        }
        stored = stored.replace_schema_metadata({"driver": json.dumps(header)})
        return bytes([_SNAPSHOT_VERSION]) + to_ipc(stored)

    @classmethod
    @validated
    def restore(
        cls,
        topology: ATopology | Sequence[AResult],
        snapshot: bytes,
        *,
        emit: Emit = "change",
        key_hash: Hash | None = None,
        spark: SparkSession | None = None,
        idle: Span | None = None,
    ) -> Driver:
        """Return a driver that goes on from a snapshot, as a restarted query does, in any process.

        Parameters
        ----------
        topology : Table, Stream or list of results
            The result, or the list of all results in order, of the driver that made the
            snapshot. ``dt.dead_letters`` may have any place in the list. The topology may be
            built anew from tables of the same names and columns. Its last ``select=`` may be
            another.
        snapshot : bytes
            The result of ``snapshot``.
        emit : {"change", "batch"}, default "change"
            The changes to emit: each one, or the last of each key in a micro-batch. Give
            that of the first driver, since a union stores more for ``"batch"``.
        key_hash : function, optional
            The function from key columns to int64 that assigns keys to buckets. It must be
            that of the first driver.
        spark : SparkSession, optional
            The session that evaluates the topology's Spark expressions, if it has any.
        idle : str or timedelta, optional
            The time without input after which stream time goes on with the clock of
            ``advance_wall_clock``.

        Returns
        -------
        Driver
            A driver with the snapshot's state and number of buckets. Unread changes,
            ``dropped``, ``counts``, ``examples`` and the rows for ``table`` are not in a
            snapshot.

        Raises
        ------
        CheckpointError
            If ``snapshot`` is not one of this version, or if the topology differs. The
            message names the differences.
        PlanError
            If ``topology`` has no table and no stream, or as for ``Driver``. Also if two inputs
            have the same name and columns.

        See Also
        --------
        Driver.snapshot : Return the state of a driver.

        Examples
        --------
        >>> import pyarrow as pa
        >>> import dovetail as dt
        >>> from dovetail import testing
        >>> schema = {"id": pa.int64(), "amount": pa.int64()}
        >>> orders = testing.table("orders", key="id", schema=schema)
        >>> totals = orders.group_by("amount").agg(orders=dt.count())
        >>> driver = testing.Driver(totals)
        >>> driver.pipe(orders, {"id": 1, "amount": 40}, timestamp=1)
        [<amount=40: orders=1 @1>]
        >>> restored = testing.Driver.restore(totals, driver.snapshot())
        >>> restored.pipe(orders, {"id": 2, "amount": 40}, timestamp=2)
        [<amount=40: orders=2 @2>]
        """
        try:
            if snapshot[:1] != bytes([_SNAPSHOT_VERSION]):
                raise ValueError
            stored = from_ipc(pa.py_buffer(snapshot)[1:])
        except ValueError as error:
            raise CheckpointError(
                "driver snapshot",
                "snapshot= is not one of this version's",
                "Give restore() what snapshot() returned",
            ) from error
        header = json.loads(stored.schema.metadata[b"driver"])
        given = [topology] if isinstance(topology, Topology) else topology
        # Dead letters are read last.
        results = sorted(given, key=lambda result: not isinstance(result, Topology))
        replacements: dict[Node, Node] = {}
        nodes = _computed_nodes(without_frames(result.plan, replacements) for result in results)
        if not nodes:
            problem = "topology= has no table and no stream"
            raise PlanError("restore", problem, "Give the results, as before")
        refuse_alike(*nodes)
        title = " and ".join(node.name for node in nodes)
        refuse_other(nodes, title, header["topology"], header["plan"])
        buckets = header["buckets"]
        first, *others = results
        assert isinstance(first, Topology)
        driver = cls(
            first,
            *others,
            emit=emit,
            buckets=buckets,
            key_hash=key_hash,
            spark=spark,
            idle=idle,
        )
        driver._batches, driver._now_us, driver._log = header["batches"], header["now_us"], None
        if driver._root.idle is not None:
            ((_, span_us),) = driver._root.idle.runs
            driver._root.let_time_go_on(IdleRules(((driver._now_us, span_us),)))
        stages = driver._root.buckets
        for row in stored.to_pylist():
            stages[row["stage"]].blobs[row["bucket"]].put(row["name"], row["blob"])
        return driver

    def _node_in_topology(self, call: str, table: ATopology | AWindowedTable) -> Node:
        """Return the node of a table or stream within the topology, as it runs here: a result, an
        input, or a node between. Raises ``PlanError`` for any other. ``call``: the user's call, for
        the error.
        """
        node = self._nodes.get(table.plan)
        if node is None:
            raise PlanError(
                call,
                f"table= is {title_of(table)}, not a part of the topology",
                "Give the result, an input or a join of it",
            )
        return node

    def _replay(self, node: Node) -> Replay:
        """Return a new driver with the one result ``node`` and no rows, to which the same rows can
        be fed again. It hashes keys as this one does. ``node``: a node of this driver's topology.
        """
        return _View(Table(node), key_hash=self._root.hash, spark=self._spark)

    def _source(self, table: Topology) -> Source:
        """Return the source without a frame that stands for ``table``, an input of the topology.
        Raises ``PlanError`` for a table or stream that is no input.
        """
        source = self._nodes.get(table.plan)
        if isinstance(source, Source):
            return source
        raise PlanError(
            "pipe",
            f"table= is {title_of(table)}, which is not an input of the topology",
            f"Its inputs are {', '.join(source.name for source in self._sources)}",
        )

    def _run(self, beat_us: int | None) -> list[Change]:
        """Run one micro-batch on the rows fed so far, which may be none. Return its changes, one
        result's after the other's. They are also added to those that ``read`` returns, and to
        ``micro_batches``. The fed rows are moved to the log, unless the driver was restored.

        ``beat_us``: the stream time to move to, in microseconds since 1970, None for none.
        """
        result_rows = self._root.run_batch(self._batches, self._now_us, beat_us)
        self._batches += bool(result_rows)
        fed, self._fed = self._fed, []
        if self._log is not None:
            self._log.append((fed, self._now_us, beat_us))
        by_result: list[list[Change]] = [[] for _ in self._results]
        nodes = self.results
        for result_index, rows in result_rows:
            node = nodes[result_index]
            is_letters = isinstance(node, DeadLetters)
            changed = _dead_letter_changes if is_letters else changes_of_rows
            by_result[result_index] += changed(node, rows)
        for unread, changes in zip(self._unread, by_result, strict=True):
            unread += changes
        changes_by_result = dict(zip(nodes, by_result, strict=True))
        self.micro_batches.append(MicroBatch(fed, self._now_us, beat_us, changes_by_result))
        return [change for changes in by_result for change in changes]

    @property
    def _computed_results(self) -> list[Node]:
        """The nodes of the results except dead letters, in order."""
        return _computed_nodes(self._results.values())

    def _refuse_inside(self, call: str) -> None:
        """Raise ``PlanError`` if a batch is open, or if the input has ended. ``call``: the user's
        call, for the error.
        """
        if self._inside_batch:
            raise PlanError(call, "a batch is open", "Call it after the with block")
        if self._ended:
            raise PlanError(call, "the input has ended", "Call it before end_input()")


def _order_plans(results: Sequence[AResult]) -> list[Node]:
    """Return the plan of each result in the order of ``results``, without duplicates, with dead
    letters last.
    """
    plans = [result.plan for result in results]
    return sorted(dict.fromkeys(plans), key=lambda plan: isinstance(plan, DeadLetters))


def _are_changes(rows: Rows) -> TypeGuard[Sequence[Change]]:
    """Return True if rows are a list with a ``Change`` in it; False for a text, a mapping, an empty
    list or a list of mappings.
    """
    return not isinstance(rows, (str, Mapping)) and any(isinstance(row, Change) for row in rows)


def _computed_nodes(nodes: Iterable[Node]) -> list[Node]:
    """Return the nodes that are not dead letters, in order, perhaps none."""
    return [node for node in nodes if not isinstance(node, DeadLetters)]


def _dead_letter_changes(node: Node, rows: pa.Table) -> Iterator[Change]:
    """Yield dead letters as changes, in order. All are upserts, with positions from 0 in each call.

    ``rows``: the key and value columns of the node, and ``_event_time`` in microseconds.
    """
    none = pa.array([False] * len(rows))
    numbers = pa.array(range(len(rows)))
    rows = rows.append_column(DELETED, none).append_column(POSITION, numbers)
    yield from changes_of_rows(node, rows)


class _View(Driver):
    """A table of a driver's topology as a topology of its own, which is fed the same rows."""

    _log: list[Fed]

    def rows(self, log: Sequence[Fed], idle: IdleRules | None) -> dict[Any, dict[str, Any]]:
        """Return the values of each present row, as a dict by column, by its key. They are those
        after all micro-batches in ``log``, of which those that this view has run already are
        skipped.

        ``log``: all micro-batches of the driver, of which the first ones are this view's own log.
        ``idle``: the rules of the driver's ``idle=``, None for none.
        """
        if idle is not None and self._root.idle is None:
            self._root.let_time_go_on(idle)
        for fed, now_us, beat_us in log[len(self._log) :]:
            self.feed_again(fed, now_us, beat_us)
        return self._last_rows()

    @property
    def local(self) -> LocalRun:
        """The run of the view's plan in this process. It is always the same object, whose state
        ``feed_again`` advances; access runs nothing.
        """
        return self._root

    def feed_again(
        self, fed: list[tuple[Source, pa.Table]], now_us: int, beat_us: int | None
    ) -> list[Change]:
        """Run a micro-batch on rows that the driver was fed before, and return its changes. This
        view's state and log advance.

        ``fed``: tables of rows (``arrow_rows``) with their sources. ``now_us``: the wall-clock time
        of the micro-batch, in microseconds since the driver was made. ``beat_us``: the stream time
        to move to without rows, in microseconds since 1970, None for none.
        """
        self._fed, self._now_us = fed, now_us
        for source, rows in fed:
            self._root.accept_rows(source, rows)
        return self._run(beat_us)

    def _last_rows(self) -> dict[Any, dict[str, Any]]:
        """Return the values of each present row, as a dict by column, by its key, after all changes
        so far. A key of several columns is a tuple. Deleted rows are absent.

        If late changes may correct the past, the change with the latest time counts, of equal ones
        the last. Otherwise the last change of a key counts.
        """
        last: dict[Hashable, Change] = {}
        for change in self._unread[0]:
            parts = tuple(map(hashable, change.key.values()))
            key = parts if len(parts) > 1 else parts[0]
            # A history keeps the change with the latest time.
            late = change.timestamp_us < last.get(key, change).timestamp_us
            if self._node.current or not late:
                last[key] = change
        return {k: {**c.values} for k, c in last.items() if c.values is not None}
