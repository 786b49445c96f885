"""The part of a driver that explains rows and emitted changes."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeAlias

import pyarrow as pa
from pyspark.sql import SparkSession

from dovetail.api.results import AResult
from dovetail.api.topology import ATopology, AWindowedTable
from dovetail.base.columns import DELETED, EVENT_TIME, SEQUENCE
from dovetail.base.validation import Positive, Rule, validated
from dovetail.engine.local import LocalRun
from dovetail.errors import PlanError
from dovetail.plan.nodes import Node, Source
from dovetail.provenance.explanation import RowExplanation
from dovetail.provenance.key import KeyValue, key_of
from dovetail.provenance.local_state import LocalState
from dovetail.provenance.stored_rows import moment
from dovetail.provenance.walk import Walk
from dovetail.spark.execution.expressions import Evaluator
from dovetail.testing.changes import Change
from dovetail.testing.driver_records import merge_batches
from dovetail.testing.table_difference import hashable_form


@dataclass(frozen=True)
class MicroBatch:
    """A micro-batch that a test driver has run."""

    fed: list[tuple[Source, pa.Table]]
    """The inputs with their rows, a table for each call of ``pipe``, in the order of these calls.
    """
    now_us: int
    """The wall-clock time, in microseconds since the driver, or the one that it was restored from,
    was made.
    """
    beat_us: int | None
    """The stream time to which it moved without rows, in microseconds since 1970, or None."""
    changes: dict[Node, list[Change]]
    """The changes of each result, in order, by its node."""


AChange: TypeAlias = Annotated[Change, Rule("a change that the driver has emitted")]


class Replay(Protocol):
    """A driver of one result to which rows are fed again."""

    @property
    def local(self) -> LocalRun:
        """The run of the driver's plan in this process. It is always the same object, whose state
        ``feed_again`` advances; access runs nothing.
        """

    def feed_again(
        self, fed: list[tuple[Source, pa.Table]], now_us: int, beat_us: int | None
    ) -> list[Change]:
        """Run a micro-batch on rows that were fed before, and return its changes. The state
        advances.

        ``fed``: tables of rows (``arrow_rows``) with their sources. ``now_us``: the wall-clock time
        of the micro-batch, in microseconds since the driver was made. ``beat_us``: the stream time
        to move to without rows, in microseconds since 1970, None for none.
        """


class ExplainingDriver:
    """The calls of a driver that explain rows and changes."""

    _root: LocalRun
    _spark: SparkSession | None
    _log: list[Any] | None
    micro_batches: list[MicroBatch]

    if TYPE_CHECKING:

        def _result(self, call: str, result: AResult | None) -> tuple[int, Node]:
            """Return the index of ``result`` among the driver's results, from 0, and its node;
            those of the only one if ``result`` is None.

            Raises ``PlanError`` for None with several results, and for a result of another driver.
            ``call``: the user's call, for the error.
            """

        def _node_in_topology(self, call: str, table: ATopology | AWindowedTable) -> Node:
            """Return the node of a table or stream within the topology: a result, an input, or a
            node between. Raises ``PlanError`` for any other. ``call``: the user's call, for the
            error.
            """

        def _replay(self, node: Node) -> Replay:
            """Return a new driver of the one result ``node``, to which the same rows can be fed
            again. ``node``: a node of this driver's topology.
            """

    @validated
    def explain_row(
        self, key: KeyValue, table: ATopology | None = None, *, members: Positive = 20
    ) -> RowExplanation:
        """Explain a row after the last micro-batch: the rows that make it, or why there is none.

        It reads the state, as ``dt.checkpoints.explain_row`` reads that of a query. Beyond that, it
        knows the records that the driver was fed, and so those of a group.

        Parameters
        ----------
        key : value, tuple or dict
            The key of the row: a value or, of several columns, a tuple or a mapping.
        table : Table or Stream, optional
            A result, an input, or a join or an aggregate on the way. It may be left out if the
            driver has only one result.
        members : int, default 20
            The largest number of rows of a group that are named.

        Returns
        -------
        RowExplanation
            A tree, which prints as text. Its leaves are rows of inputs.

        Raises
        ------
        PlanError
            If ``table`` is not in the topology, or is left out of a driver with several results.
            Also for a key of other columns or types, or with a null that the table's keys cannot
            have.

        See Also
        --------
        Driver.table : Return all rows of a table.
        explain_row : Explain a row of a query's result.

        Notes
        -----
        Records of streams are not stored once they are emitted or aggregated. So a driver that was
        restored, and a group of another stream than an input's, has a group's result alone.

        Examples
        --------
        >>> import pyarrow as pa
        >>> from dovetail import testing
        >>> schema = {"id": pa.int64(), "user": pa.string()}
        >>> orders = testing.table("orders", key="id", schema=schema)
        >>> schema = {"user": pa.string(), "city": pa.string()}
        >>> users = testing.table("users", key="user", schema=schema)
        >>> driver = testing.Driver(orders.join(users, on="user", how="left"))
        >>> changes = driver.pipe(orders, {"id": 1, "user": "ann"}, timestamp=1)
        >>> changes = driver.pipe(users, {"user": "ann", "city": "Oslo"}, timestamp=2)
        >>> driver.explain_row(1)
        left join by foreign key user: id 1: user='ann', city='Oslo' @2
        ├─ orders: id 1: user='ann' @1
        └─ users: user 'ann': city='Oslo' @2
        """
        if table is None:
            _, node = self._result("explain_row", None)
        else:
            node = self._node_in_topology("explain_row", table)
        columns = key_of("explain_row", node, key)
        walk = self._walk(self._root, members)
        if self._log is not None:
            walk = replace(walk, records=merge_batches(batch.fed for batch in self.micro_batches))
        return walk.row(node, columns)

    @validated
    def explain_change(
        self, change: AChange, result: ATopology | None = None, *, members: Positive = 20
    ) -> RowExplanation:
        """Explain an emitted change: the record that caused it, and the rows that made it.

        The records are fed once more, one by one, to a driver of their own.

        Parameters
        ----------
        change : Change
            A change that this driver has emitted. If it is an equal copy, as of another driver, the
            first equal change with its position is explained.
        result : Table or Stream, optional
            The result that the change is of. It may be left out if the driver has only one.
        members : int, default 20
            The largest number of rows of a group that are named.

        Returns
        -------
        RowExplanation
            The row after the change. Its ``cause`` is the record. It is None if stream time
            caused the change, or rows that had waited together (``align=``).

        Raises
        ------
        PlanError
            If the driver has not emitted the change, is restored, or has several results and
            ``result`` is left out.

        See Also
        --------
        Driver.explain_row : Explain a row after the last micro-batch.

        Examples
        --------
        >>> import pyarrow as pa
        >>> from dovetail import testing
        >>> schema = {"id": pa.int64(), "item": pa.string()}
        >>> sales = testing.stream("sales", key="id", schema=schema)
        >>> schema = {"item": pa.string(), "price": pa.int64()}
        >>> prices = testing.table("prices", key="item", schema=schema)
        >>> driver = testing.Driver(sales.join(prices, on="item"))
        >>> changes = driver.pipe(prices, {"item": "pen", "price": 2}, timestamp=1)
        >>> changes = driver.pipe(sales, {"id": 7, "item": "pen"}, timestamp=3)
        >>> changes += driver.pipe(prices, {"item": "pen", "price": 4}, timestamp=5)
        >>> driver.explain_change(changes[0])
        inner join of a stream with a table on item: id 7: item='pen', price=2 @3
        ← sales: id 7: item='pen' @3
        ├─ sales: id 7: item='pen' @3
        └─ prices: item 'pen': price=2 @1
        """
        _, node = self._result("explain_change", result)
        batches = [] if self._log is None else self.micro_batches
        emitted = [(n, c) for n, batch in enumerate(batches) for c in batch.changes[node]]
        batch_numbers = [n for n, c in emitted if c is change] or [
            n for n, c in emitted if are_alike(c, change) and c.position == change.position
        ]
        if not batch_numbers:
            raise PlanError(
                "explain_change",
                f"change= is {change}, which this driver has not emitted",
                "Give one that pipe() or read() has returned, before any restore()",
            )
        alike = [c for n, c in emitted if n == batch_numbers[0] and are_alike(c, change)]
        nth = next((n for n, c in enumerate(alike) if c is change), 0)
        batches = batches[: batch_numbers[0] + 1]
        return self._explain_nth(self._replay(node), batches, node, change, nth, members)

    def _explain_nth(
        self,
        replay: Replay,
        batches: Sequence[MicroBatch],
        node: Node,
        change: Change,
        nth: int,
        members: int,
    ) -> RowExplanation:
        """Run ``batches`` again on ``replay``, all but the last as they were and the last one row
        by row. Return the explanation of a change of the last one that equals ``change`` but for
        its position.

        Of several it is the one with the index ``nth``, from 0, or the last one if there are fewer.
        Without any, an ``AssertionError`` is raised. If a join waits with ``align=``, the last
        micro-batch runs table by table instead.

        ``replay``: a driver of the result ``node`` that has run nothing. ``members``: the largest
        number of rows of a group that are named.
        """
        if self._root.idle is not None:
            replay.local.let_time_go_on(self._root.idle)
        *before, last = batches
        for batch in before:
            replay.feed_again(batch.fed, batch.now_us, batch.beat_us)
        walk = self._walk(replay.local, members)
        explanations: list[RowExplanation] = []
        waits = any(inner.longest_align_us is not None for inner in node.walk())
        steps = [last.fed] if waits else [[step] for step in split_rows(last.fed)]
        for step in [*steps, []]:
            # A stream's record may replace the row that it has met, in a table made of the stream.
            stored = LocalState(replay.local).copy() if node.stream else None
            former = None if stored is None else replace(walk, reader=stored)
            emitted = replay.feed_again(step, last.now_us, last.beat_us if not step else None)
            for emitted_change in emitted:
                if are_alike(emitted_change, change) and len(explanations) <= nth:
                    alone = len(step) == 1 and len(step[0][1]) == 1
                    cause = record_of(*step[0]) if alone else None
                    explanations.append(change_explanation(walk, node, change, cause, former))
        assert explanations, "a change that does not come again"
        return explanations[-1]

    def _walk(self, run: LocalRun, members: int) -> Walk:
        """Return a ``Walk``, which explains rows from the state of ``run``, stage by stage. It
        reads the state that ``run`` has when it is asked. ``members``: the largest number of rows
        of a group that are named.
        """
        expressions = None if self._spark is None else Evaluator(self._spark)
        return Walk(run.plan.stages, LocalState(run), expressions, members)


def split_rows(fed: Sequence[tuple[Source, pa.Table]]) -> Iterator[tuple[Source, pa.Table]]:
    """Yield (source, table of one row) for each row of a micro-batch, in the order in which the
    rows were fed. ``fed``: tables of rows with their sources. The order is that of their column
    ``_sequence``.
    """
    rows = [
        (table.column(SEQUENCE)[row].as_py(), source, table.slice(row, 1))
        for source, table in fed
        for row in range(len(table))
    ]
    yield from ((source, row) for _, source, row in sorted(rows, key=lambda placed: placed[0]))


def are_alike(change: Change, other: Change) -> bool:
    """Return True if two changes are equal in all but their positions. NaN equals NaN."""
    return _comparable_change(change) == _comparable_change(other)


def _comparable_change(change: Change) -> tuple[Change, Hashable, Hashable]:
    """Return three values that equal those of a change that is alike: the change without position,
    key and values; its key; and its values. NaN equals NaN in the last two, at any depth.
    """
    rest = replace(change, key={}, values=None, position=0)
    return rest, hashable_form(change.key), hashable_form(change.values)


def record_of(source: Source, row: pa.Table) -> RowExplanation:
    """Return a fed row of ``source`` as an input of an explanation. ``row``: a table of one row,
    with the source's columns, ``_deleted`` and ``_event_time`` in microseconds. A tombstone has the
    presence ``"none"``, no values, and a reason.
    """
    (columns,) = row.to_pylist()
    deleted, values = columns[DELETED], {name: columns[name] for name in source.values.names}
    return RowExplanation(
        name=source.name,
        step="stream" if source.stream else "table",
        key={name: columns[name] for name in source.key.names},
        presence="none" if deleted else "row",
        values={} if deleted else values,
        time=moment(columns[EVENT_TIME]),
        reason="the record deletes it" if deleted else "",
        is_input=True,
    )


def change_explanation(
    walk: Walk,
    node: Node,
    change: Change,
    cause: RowExplanation | None,
    former: Walk | None = None,
) -> RowExplanation:
    """Return the explanation of ``change``, which was just emitted, by the present state, which
    ``walk`` reads. Row and time are those of the change. If the state shows another row, no inputs
    are named, and the reason says so.

    ``node``: the result that has changed. ``cause``: the record that caused the change; None if no
    single record did. ``former``: reads the state before that record, which explains a stream's
    result that the present state does not show; None to read the present state alone.
    """
    key: dict[str, Any] = {**change.key}
    walks = [walk]
    if node.stream:
        at_us = walk.at_us
        if cause is not None:
            key = {**cause.key, **cause.values, **key}
            at_us = None if cause.time is None else change.timestamp_us
            walks += [] if former is None else [former]
        walks = [replace(one, at_us=at_us, emitted=change.values) for one in walks]
    explanations = [one.row(node, key) for one in walks]
    explained = next((e for e in explanations if _shows(e, change)), explanations[0])
    is_row = change.change == "upsert"
    if not _shows(explained, change):
        reason = "what is stored after the record does not show this row"
        explained = replace(explained, inputs=(), reason=reason)
    return replace(
        explained,
        key=change.key,
        presence="row" if is_row else "none",
        values=dict(change.values or {}) if is_row else {},
        time=moment(change.timestamp_us),
        cause=cause,
    )


def _shows(explained: RowExplanation, change: Change) -> bool:
    """Return True if ``explained`` may describe the row after ``change``. After an upsert it must
    have a row, and each value that both have must be equal. After a delete it must have no row. If
    it does not know the row, it may describe any.
    """
    if explained.presence == "unknown":
        return True
    emitted = change.values or {}
    pairs = ((emitted.get(n, v), v) for n, v in explained.values.items())
    shown = all(hashable_form(now) == hashable_form(then) for now, then in pairs)
    is_row = change.change == "upsert"
    return (explained.presence == "row") == is_row and (shown or not is_row)
