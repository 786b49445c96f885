"""The driver: a topology in this process that is fed row by row."""

from __future__ import annotations

import difflib
import json
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql import SparkSession

from dovetail.api.results import AResult
from dovetail.api.tables import Table
from dovetail.api.topology import ATopology, AWindowedTable, Topology
from dovetail.arrays.hashing import stable_hash
from dovetail.base.columns import DELETED, EVENT_TIME, POSITION
from dovetail.base.hints import HintedDriver
from dovetail.base.validation import validated
from dovetail.engine.idle import Idle, idle_us
from dovetail.engine.local import Hash, Local
from dovetail.errors import CheckpointError, DataError, PlanError
from dovetail.operators.job import END_OF_TIME
from dovetail.physical.fragment import Buckets, Emit
from dovetail.physical.inputs import Arrival
from dovetail.physical.planner import plan_of
from dovetail.plan.dead_letters import DeadLetters
from dovetail.plan.fingerprint import describe, fingerprint, origins_of, refuse_alike, refuse_other
from dovetail.plan.nodes import Node, Source
from dovetail.plan.transforms.unwindow import as_table
from dovetail.plan.types.spans import Span, microseconds
from dovetail.spark.execution.expressions import Evaluator
from dovetail.state.ipc import from_ipc, to_ipc
from dovetail.testing.changes import Change, TextTable, microseconds_of
from dovetail.testing.inputs import Rows, Timestamp, arrow_rows, by_hand, columns_of, hashable

Fed: TypeAlias = "tuple[list[tuple[Source, pa.Table]], int, int | None]"
"""The content of a micro-batch, its time by the wall clock, and the stream time to which it
moved."""

_SNAPSHOT = pa.schema(
    [("stage", pa.int32()), ("bucket", pa.int32()), ("name", pa.string()), ("blob", pa.binary())]
)
_SNAPSHOT_VERSION = 4


class Driver(HintedDriver):
    """One topology, fed by hand: each ``pipe`` is a micro-batch.

    With several results, and with ``dt.dead_letters``, all changes are returned, one result's after
    the other's; ``read`` returns those of one.

    Rows are read in the order given. If a join aligns its sides, they are read in the order of
    time, as far as the join lets them through.

    ``emit``: as in ``Table.write_stream``. ``buckets``: the number of parts of the key space. The
    changes of a micro-batch come bucket by bucket. With one bucket, the default, they come in the
    order of the records that cause them. ``key_hash``: the function from key columns to int64 that
    places keys; tests give a constant one to make all keys collide. ``spark``: the session that
    evaluates the topology's Spark expressions, if it has any. ``idle``: as in
    ``Table.write_stream``, by the clock of ``advance_wall_clock``.

    Tables and streams that are read from frames are fed by hand, too, with their key and value
    columns. Their frames are not read. ``timestamp=``, ``deleted=`` and ``sequence=`` of their
    readers do not apply.

    ``dropped`` counts the rows that no join can use. ``counts`` counts all others that reach no
    result, by the metric of docs/operations.md, and ``examples`` has the first of each.
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
        plans = _in_order([topology, *others])
        self._results = {plan: by_hand(plan, self._nodes) for plan in plans}
        nodes = _computed(self._results.values())
        self._node = nodes[0]
        # Rows come in the order given, as from one log, unless a join orders them by time.
        waits = (one.longest_align_us for node in nodes for one in node.walk())
        plan = plan_of(
            nodes,
            buckets=buckets,
            emit=emit,
            arrival=Arrival.of(*nodes, one_log=all(wait is None for wait in waits)),
            dead_letters=len(nodes) < len(plans),
        )
        self._sources = {source: columns_of(source) for source in origins_of(nodes)}
        evaluator = None if spark is None else Evaluator(spark)
        self._root = Local(plan, stable_hash if key_hash is None else key_hash, evaluator)
        if idle is not None:
            self._root.go_on(Idle(((0, idle_us("Driver", idle, plan)),)))
        self._spark = spark
        self._fed: list[tuple[Source, pa.Table]] = []
        self._log: list[Fed] | None = []
        self._views: dict[Node, _View] = {}
        self._unread: list[list[Change]] = [[] for _ in plans]
        self._inside_batch = self._ended = False
        self._sequence = self._now_us = self._batches = 0

    @property
    def counts(self) -> dict[str, int]:
        """The number of rows without use, by metric; metrics without rows are absent."""
        return {name: number for name, number in self._root.counted.number.items() if number}

    @property
    def examples(self) -> dict[str, str]:
        """The first row that each metric counts, in words."""
        return self._root.counted.examples

    @property
    def dropped(self) -> int:
        """The number of rows that no join can use, of all tables and streams together."""
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
        """Feed rows of one table or stream and return the changes they cause.

        Inside ``batch`` no changes are returned yet.

        ``rows``: one row or several, which make one micro-batch; a value column that a row leaves
        out is null. ``timestamp``: a datetime (naive ones are UTC) or microseconds, one for all
        rows or one each. ``deleted``: the rows are tombstones and need no more than their key; a
        stream's are records without a value.

        ``rows`` may be a table in text, with times and deletes of its own. Its columns are those
        that ``as_text`` prints; columns of values and ``change`` may be left out:

            time | id | amount | change
            1    | 1  | 5      | upsert
            3    | 1  |        | delete

        Raises ``PlanError`` for an input that the topology does not read. Raises ``DataError`` for
        a null timestamp, an unknown column or a value of the wrong type. Then nothing has happened.
        """
        if not self._inside_batch:
            with self.batch() as changes:
                self.pipe(table, rows, timestamp=timestamp, deleted=deleted)
            return changes
        source = self._source(table)
        if isinstance(rows, str):
            if timestamp is not None or deleted:
                raise PlanError(
                    "pipe",
                    "rows= is a text, which has its own times and deletes",
                    "Leave timestamp= and deleted= out",
                )
            read = TextTable(source).read(rows)
            given: Sequence[Mapping[str, Any]] = [{**c.key, **(c.values or {})} for c in read]
            times: list[Timestamp | None] = [change.timestamp_us for change in read]
            gone = [change.change == "delete" for change in read]
        else:
            given = [rows] if isinstance(rows, Mapping) else list(rows)
            times = [*timestamp] if isinstance(timestamp, Sequence) else [timestamp] * len(given)
            gone = [deleted] * len(given)
        if len(times) != len(given):
            raise DataError(
                source.title,
                f"{len(given)} rows come with {len(times)} timestamps",
                "Give one timestamp for all rows, or one each",
            )
        for row, time in zip(given, times, strict=True):
            if time is None and all(row.get(name) is not None for name in source.key.names):
                raise DataError(
                    source.title,
                    f"a row of pipe has no time: {dict(row)}",
                    "Give pipe(..., timestamp=...), one for all rows or one each",
                )
        taken = arrow_rows(source, self._sources[source], given, times, gone, self._sequence)
        self._root.accept(source, taken)
        self._fed.append((source, taken))
        self._sequence += len(given)
        return []

    def batch(self) -> AbstractContextManager[list[Change]]:
        """Group the rows that are piped in the block into one micro-batch, run when the block ends.

        Yields a list that then holds the changes. A block that raises leaves everything as it was.
        """
        self._refuse_inside("batch()")
        return self._batch()

    @contextmanager
    def _batch(self, beat_us: int | None = None) -> Iterator[list[Change]]:
        """Run the block's rows as one micro-batch; ``beat_us``: the stream time to move to."""
        changes: list[Change] = []
        self._inside_batch = True
        try:
            with self._root.whole():
                yield changes
                changes += self._run(beat_us)
        except BaseException:
            self._fed = []
            raise
        finally:
            self._inside_batch = False

    @validated
    def advance_stream_time(self, timestamp: Timestamp) -> list[Change]:
        """Move the stream time of all inputs to ``timestamp`` by a batch without rows; return the
        changes.

        Stream time is the largest event time so far.
        """
        self._refuse_inside("advance_stream_time()")
        with self._batch(microseconds_of(timestamp)) as changes:
            pass
        return changes

    @validated
    def advance_wall_clock(self, span: Span) -> list[Change]:
        """Let ``span`` pass by the wall clock, then run a batch without rows, for ``align=`` and
        ``idle=``.
        """
        self._refuse_inside("advance_wall_clock()")
        self._now_us += microseconds("advance_wall_clock", "span=", span)
        with self.batch() as changes:
            pass
        return changes

    def end_input(self) -> list[Change]:
        """End all inputs and return the changes.

        It is the end of a batch run, or of a query with ``close_at_end=True``: windows close, grace
        periods are over. Nothing can be piped in after that.
        """
        self._refuse_inside("end_input()")
        with self._batch(END_OF_TIME) as changes:
            pass
        self._ended = True
        return changes

    @validated
    def read(self, result: AResult | None = None) -> list[Change]:
        """Return all changes since the last ``read``; ``result``: which of several results."""
        number, _ = self._result("read", result)
        changes, self._unread[number] = self._unread[number], []
        return changes

    def _result(self, call: str, result: AResult | None) -> tuple[int, Node]:
        """Return the number of a result, and its node; raise ``PlanError`` for another one."""
        if result is None and len(self._results) == 1:
            return 0, self._node
        if result is None or result.plan not in self._results:
            names = ", ".join(node.name for node in self._results.values())
            what = "is missing" if result is None else f"is {result!r}, which is not a result"
            raise PlanError(call, f"result= {what}", f"The results are {names}")
        return [*self._results].index(result.plan), self._results[result.plan]

    @validated
    def as_text(self, changes: Sequence[Change], result: AResult | None = None) -> str:
        """Return changes of the topology's result as a table in text, aligned, as ``pipe``
        reads it:

            time | id | amount | paid | change
            3    | 1  | 5      | true | upsert

        An empty cell is null, an empty text ``""``. Times within the first day of 1970 are
        microseconds, others as in ``2024-05-01T10:00:00Z``. Arrays, structs, maps (as lists of
        pairs) and texts with bars, quotes or blanks at an end are JSON. Lines that begin with ``#``
        are not read.
        """
        _, node = self._result("as_text", result)
        return "\n".join(TextTable(node).lines(changes)[0])

    @validated
    def assert_changes(self, text: str, result: AResult | None = None) -> None:
        """Assert that the changes since the last ``read`` equal a table in text, in order, with no
        others.

        The changes count as read. ``result``: which of several results.

        Raises ``AssertionError`` with the lines in which both tables differ, ``DataError`` for a
        text that is not such a table.
        """
        _, node = self._result("assert_changes", result)
        form = TextTable(node)
        expected, came = form.lines(form.read(text), self.read(result))
        if expected != came:
            lines = len(expected) + len(came)
            _, _, _, *differing = difflib.unified_diff(expected, came, n=lines, lineterm="")
            raise AssertionError("\n".join(["not the changes that are expected (-):", *differing]))

    @validated
    def table(self, table: ATopology | AWindowedTable) -> dict[Any, dict[str, Any]]:
        """Return the rows of any table of the topology after the last micro-batch: the values by
        the key.

        A key of several columns is a tuple.

        The rows are made by the table's own changes. Rows that its law leaves out (null keys, late
        rows of a versioned table) are absent. ``align=`` of joins above it does not hold it back.
        A windowed table has the rows of ``to_table()``, with windows past their retention among
        them. A ``late="history"`` join has each key's latest.

        Raises ``PlanError`` for a stream, and for a table that the topology does not read. It is
        also raised on a restored driver, which does not know former rows.
        """
        node = self._nodes.get(table.plan)
        if node is None or node.stream:
            what = "not a part of the topology" if node is None else "a stream, which has no rows"
            raise PlanError(
                "table", f"table= is {table!r}, {what}", "Give the result, an input or a join of it"
            )
        if self._log is None:
            raise PlanError(
                "table",
                "table= is asked of a restored driver, which knows no rows from before",
                "Ask before snapshot(), or feed a new driver from the start",
            )
        if node not in self._views:
            plan = as_table(node, "on_change") if node.windows else node
            topology, hash_ = Table(plan), self._root.hash
            self._views[node] = _View(topology, key_hash=hash_, spark=self._spark)
        return self._views[node].rows(self._log, self._root.idle)

    def snapshot(self) -> bytes:
        """Return the stored state after the last micro-batch, as a query's checkpoint would hold
        it.
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
            "topology": fingerprint(*self._computed),
            "plan": describe(*self._computed),
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
        """Return a driver that goes on from a snapshot as a restarted query does, in any process.

        ``topology``, or the list of several results, may be built anew from tables of the same
        names and columns. Its last ``select=`` may be another. Other differences raise
        ``CheckpointError``, which names them. Unread changes, ``dropped`` and the rows for
        ``table`` are not in a snapshot.
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
        results = [topology] if isinstance(topology, Topology) else topology
        if not results:
            raise PlanError("restore", "topology= is an empty list", "Give the results, as before")
        known: dict[Node, Node] = {}
        nodes = _computed(by_hand(result.plan, known) for result in results)
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
            driver._root.go_on(Idle(((driver._now_us, span_us),)))
        stages = driver._root.buckets
        for row in stored.to_pylist():
            stages[row["stage"]].blobs[row["bucket"]].put(row["name"], row["blob"])
        return driver

    def _source(self, table: Topology) -> Source:
        """Return the input of a table that is fed; raise ``PlanError`` for another one."""
        source = self._nodes.get(table.plan)
        if isinstance(source, Source):
            return source
        raise PlanError(
            "pipe",
            f"table= is {table!r}, which is not an input of the topology",
            f"Its inputs are {', '.join(source.name for source in self._sources)}",
        )

    def _run(self, beat_us: int | None = None) -> list[Change]:
        """Run one micro-batch and return its changes, one result's after the other's."""
        made = self._root.run(self._batches, self._now_us, beat_us)
        self._batches += bool(made)
        if self._log is not None:
            self._log.append((self._fed, self._now_us, beat_us))
        self._fed = []
        by_result: list[list[Change]] = [[] for _ in self._results]
        nodes = [*self._results.values()]
        for number, rows in made:
            changed = _letters if isinstance(nodes[number], DeadLetters) else _changes
            by_result[number] += changed(nodes[number], rows)
        for unread, changes in zip(self._unread, by_result, strict=True):
            unread += changes
        return [change for changes in by_result for change in changes]

    @property
    def _computed(self) -> list[Node]:
        """The results without dead letters."""
        return _computed(self._results.values())

    def _refuse_inside(self, call: str) -> None:
        """Raise ``PlanError`` inside a batch, and after the end of the input."""
        if self._inside_batch:
            raise PlanError(call, "a batch is open", "Call it after the with block")
        if self._ended:
            raise PlanError(call, "the input has ended", "Call it before end_input()")


def _in_order(results: Sequence[AResult]) -> list[Node]:
    """Return the plans of results without duplicates, the dead letters last."""
    plans = [result.plan for result in results]
    return sorted(dict.fromkeys(plans), key=lambda plan: isinstance(plan, DeadLetters))


def _computed(nodes: Iterable[Node]) -> list[Node]:
    """Return the nodes without dead letters."""
    return [node for node in nodes if not isinstance(node, DeadLetters)]


def _changes(node: Node, rows: pa.Table) -> Iterator[Change]:
    """Yield the rows of a result as changes."""
    for row in rows.to_pylist():
        deleted = row[DELETED]
        held = {name: row[name] for name in node.values.names}
        yield Change(
            key={name: row[name] for name in node.key.names},
            values=None if deleted and not node.stream else held,
            timestamp_us=row[EVENT_TIME],
            change="delete" if deleted else "upsert",
            position=row[POSITION],
        )


def _letters(node: Node, rows: pa.Table) -> Iterator[Change]:
    """Yield dead letters as changes: all upserts, in order."""
    none = pa.array([False] * len(rows))
    numbers = pa.array(range(len(rows)))
    yield from _changes(node, rows.append_column(DELETED, none).append_column(POSITION, numbers))


class _View(Driver):
    """A table of a driver's topology as a topology of its own, which is fed the same rows."""

    _log: list[Fed]

    def rows(self, log: Sequence[Fed], idle: Idle | None) -> dict[Any, dict[str, Any]]:
        """Return the values by the key after all micro-batches in the driver's log."""
        if idle is not None and self._root.idle is None:
            self._root.go_on(idle)
        for fed, now_us, beat_us in log[len(self._log) :]:
            self._fed, self._now_us = fed, now_us
            for source, rows in fed:
                self._root.accept(source, rows)
            self._run(beat_us)
        last: dict[Hashable, Change] = {}
        for change in self._unread[0]:
            parts = tuple(map(hashable, change.key.values()))
            key = parts if len(parts) > 1 else parts[0]
            # A history keeps the change with the latest time.
            late = change.timestamp_us < last.get(key, change).timestamp_us
            if self._node.current or not late:
                last[key] = change
        return {k: {**c.values} for k, c in last.items() if c.values is not None}
