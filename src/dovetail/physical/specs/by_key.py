"""The laws of joins and of other operators by key: parameters, as plain data for the workers.

``dispatch.law_of`` makes a law of the plan node that it runs. *Stream time* is the largest
timestamp of all records so far. A record is *late* when stream time is already past the limit for
its timestamp.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import pyarrow as pa

from dovetail.laws.joins.stream_join import Unmatched, Window
from dovetail.laws.joins.table_join import How, Tree, sides_preserved, tree_sources
from dovetail.physical.source import number_repeated_names
from dovetail.physical.specs.law import (
    Law,
    Sources,
    Store,
    Wait,
    not_latest_metrics,
    table_store,
    too_old_metrics,
)
from dovetail.plan import metrics
from dovetail.plan.metrics import metric_name
from dovetail.plan.nodes import Derived, Entry, Node
from dovetail.plan.types.spans import span_as_text


@dataclass(frozen=True)
class TableJoinLaw(Law):
    """A tree of joins of tables by key. Records of every table produce results."""

    REASON: ClassVar[str] = "a change of any table needs the rows that the others have at its key"

    tree: Tree
    """The joins. Each leaf has the index of an input of the operator, counted from 0."""
    distinct: bool = False
    """True if, of a single table, only changes of its rows are emitted."""

    nets: ClassVar[bool] = True

    @property
    def reason(self) -> str:
        """The text for ``explain`` on why the operator shuffles and stores rows: ``REASON``. If all
        leaves of the tree are one table, it is ``a change needs the row that it replaces``.
        """
        lone = len({*self.leaves}) == 1
        return "a change needs the row that it replaces" if lone else self.REASON

    @property
    def leaves(self) -> tuple[int, ...]:
        """The index of the operator's input (from 0) behind each leaf of the join's tree, from left
        to right. An input that is joined twice comes twice.
        """
        return tuple(tree_sources(self.tree))

    def metric_names(self, sources: Sources) -> list[str]:
        """Return the names of the metrics of records that do not change a table's latest version.
        ``sources``: the inputs of the operator.

        First comes ``<table>.too_old`` of each versioned table (records older than its history),
        then ``<table>.late`` of each (records older than their key's latest version). Without
        versioned tables the list is empty.
        """
        return not_latest_metrics(sources)

    def match_counted_inputs(self, sources: Sources) -> list[str]:
        """Return the names of the inputs whose records are counted by whether they find rows of all
        other tables.

        These are all joined tables, each once, in the order of ``sources``, the inputs of the
        operator. The list is empty if only one table is read.
        """
        used = sorted({*self.leaves})
        return [sources[source].name for source in used] if len(used) > 1 else []


@dataclass(frozen=True)
class StreamTableJoinLaw(Law):
    """A stream, the first leaf, joined with tables. Only the stream's records produce results."""

    REASON: ClassVar[str] = "a record needs the row that each table has at its key"

    tree: Tree
    """The joins. Each leaf has the index of an input of the operator, counted from 0."""
    grace_us: int | None = None
    """The grace period: the microseconds of stream time that each record waits for late table rows.

    None for no waiting. The stream's store has the records that wait.
    """

    waits: ClassVar[bool] = True

    @property
    def leaves(self) -> tuple[int, ...]:
        """The index of the operator's input (from 0) behind each leaf of the join's tree, from left
        to right. The stream is the first, the tables follow; a table that is joined twice comes
        twice.
        """
        return tuple(tree_sources(self.tree))

    @property
    def holds_us(self) -> int:
        """The longest time for which a record waits for table rows: the grace period in
        microseconds of stream time, 0 without one.
        """
        return self.grace_us or 0

    def stores(self, sources: Sources) -> Mapping[str, Store]:
        """Return the descriptions of a bucket's stores by the names of their inputs, in the order
        of ``sources``, the inputs of the operator. Each table has one with its rows.

        Only with a grace period, the stream has one as well: the records that wait, of kind
        ``queue``. Repeated names get ``#2``, ``#3`` and so on.
        """
        stores = dict(super().stores(sources))
        stream = list(stores)[self.leaves[0]]
        if self.grace_us is None:
            del stores[stream]
        else:
            holds = f"records that wait, for {span_as_text(self.grace_us)}"
            stores[stream] = replace(stores[stream], holds=holds, kind="queue", span_us=0)
        return stores

    def metric_names(self, sources: Sources) -> list[str]:
        """Return the names of the metrics of records older than a versioned table's history.
        ``sources``: the inputs of the operator.

        First comes ``<stream>.too_old`` for the stream's records, then ``<table>.too_old`` of each
        versioned table, in order. The list is empty if no table is versioned.
        """
        old = too_old_metrics(sources)
        return [metric_name(sources[self.leaves[0]].name, "too_old"), *old] if old else []

    def match_counted_inputs(self, sources: Sources) -> list[str]:
        """Return the name of the stream, as the only element: its records are counted by whether
        they find rows of all tables. ``sources``: the inputs of the operator.
        """
        return [sources[self.leaves[0]].name]

    def waiting_stores(self, sources: Sources) -> list[Wait]:
        """Return the store of the stream's records that wait for their grace period to pass, as the
        only element. Its rows are counted as ``<stream>.grace``.

        The list is empty without a grace period. ``sources``: the inputs of the operator.
        """
        if self.grace_us is None:
            return []
        stream = self.leaves[0]
        name = number_repeated_names([source.name for source in sources])[stream]
        store = self.stores(sources)[name]
        return [Wait(name, metrics.waiting_metric(sources[stream].name, "grace"), store)]

    def depends_on_time_of(self, entry: Entry, node: Node, feeds: Sequence[str]) -> bool:
        """Return True if records of other inputs depend on the stream time of ``entry``, an input
        of the join. For the stream, this is so if there is a grace period. For a table, it is so if
        it is versioned. ``node`` and ``feeds`` do not matter.
        """
        if entry.stream:
            return self.grace_us is not None
        return super().depends_on_time_of(entry, node, feeds)


@dataclass(frozen=True)
class StreamJoinLaw(Law):
    """Two streams, or one with itself, joined if ``L.ts - before <= R.ts <= L.ts + after``."""

    REASON: ClassVar[str] = "records of one key meet for as long as their window is open"

    sides: tuple[int, int]
    """The indices of the left and the right side among the operator's inputs, from 0."""
    how: How
    window: Window
    unmatched: Unmatched
    """The time at which a record without a match is emitted (``laws.joins.stream_join``)."""

    keeps_time: ClassVar[bool] = True
    waits: ClassVar[bool] = True

    @property
    def leaves(self) -> tuple[int, ...]:
        """The indices of the left and the right side among the operator's inputs: ``(0, 1)``, or
        ``(0, 0)`` for a join of a stream with itself.
        """
        return self.sides

    @property
    def holds_us(self) -> int:
        """The longest time for which an unmatched record is held back, in microseconds of stream
        time. Only records of a preserved side are: those that also come out without a match.

        It is 0 for an inner join, and unless ``unmatched`` is ``"on_close"``. It is 0 as well if
        windows are closed when their records arrive, since they end before the records' own time.
        """
        if self.unmatched != "on_close":
            return 0
        preserved_sides = sides_preserved(self.how)
        reach_us = [self.window.reach_us(side) for side in (0, 1) if preserved_sides[side]]
        return max([0, *reach_us])

    def stores(self, sources: Sources) -> Mapping[str, Store]:
        """Return the descriptions of a bucket's stores by name. ``sources``: the inputs of the
        operator, one for a join of a stream with itself.

        First comes a store with the records of each input, under its name. They are kept for the
        window and its grace. Then each preserved side (whose records also come out without a match)
        may have two more, the left side first.

        - With ``unmatched="on_close"``, ``left: waiting`` or ``right: waiting``: the records that
          wait for their window to close.
        - Unless ``unmatched`` is ``"eager"``, ``left: joined`` or ``right: joined``: marks of the
          records that have found a match.
        """
        span_us, clocks = self.window.retention_us, tuple(range(len(sources)))
        holds = f"records of the last {span_as_text(span_us)}"
        stores = {
            name: replace(store, holds=holds, kind="records", clocks=clocks, span_us=span_us)
            for name, store in super().stores(sources).items()
        }
        for side in (0, 1) if self.unmatched != "eager" else ():
            if sides_preserved(self.how)[side]:
                if self.unmatched == "on_close":
                    holds = "records without a match, until their window closes"
                    queue = replace(table_store(sources, self.sides[side]), holds=holds)
                    stores[waiting_store_name(side)] = replace(
                        queue,
                        kind="queue",
                        clocks=clocks,
                        span_us=1,
                        without=marks_store_name(side),
                    )
                stores[marks_store_name(side)] = Store("which of its records have found a match")
        return stores

    def depends_on_time_of(self, entry: Entry, node: Node, feeds: Sequence[str]) -> bool:
        """Return True if unmatched records wait for their window to close
        (``unmatched="on_close"``), and their order depends on other buckets' records. In an outer
        join records of both sides wait, so stream time decides which come out first. In any join,
        a reader orders them by the record that closes their window. True as well if an input comes
        from another stage, as its stream time may be behind its clock.

        ``entry``, an input of the join, does not matter. ``feeds``: empty if there is no reader.
        """
        behind = any(isinstance(input_.base, Derived) for input_ in node.entries)
        return behind or (node.closes and (self.how == "outer" or bool(feeds)))

    @property
    def lossy_inputs(self) -> list[int]:
        """The indices (from 0) of the operator's inputs of which no side is preserved, ascending. A
        side is preserved if its records also come out without a match. Late records of these inputs
        may reach no result.
        """
        preserved_sources = {
            source
            for source, keeps in zip(self.sides, sides_preserved(self.how), strict=True)
            if keeps
        }
        return sorted({*self.sides} - preserved_sources)

    def too_late_metric(self, sources: Sources) -> str | None:
        """Return the name of the metric of pairs that are not made because one of the rows was
        already emitted alone: ``<left>-<right>.too_late``.

        None for inner joins, and unless ``unmatched`` is ``"on_close"``: such joins lose no pairs.
        ``sources``: the inputs of the operator.
        """
        if self.how == "inner" or self.unmatched != "on_close":
            return None
        left, right = (sources[side].name for side in self.sides)
        return metric_name(f"{left}-{right}", "too_late")

    def metric_names(self, sources: Sources) -> list[str]:
        """Return the names of the metrics of records and pairs without use. ``sources``: the inputs
        of the operator.

        First comes ``<input>.late`` of each input without a preserved side (``lossy_inputs``). It
        counts records that come later than the join keeps rows, and have no match. Then comes
        ``<left>-<right>.too_late`` for an outer, left or right join with ``unmatched="on_close"``:
        pairs not made because a row was emitted alone.
        """
        late = [metric_name(sources[source].name, "late") for source in self.lossy_inputs]
        pairs = self.too_late_metric(sources)
        return late if pairs is None else [*late, pairs]

    def match_counted_inputs(self, sources: Sources) -> list[str]:
        """Return the names of the inputs whose records are counted by whether they find a match:
        both streams, left first. Empty if a stream is joined with itself. ``sources``: the inputs
        of the operator.
        """
        left, right = self.sides
        return [] if left == right else [sources[left].name, sources[right].name]

    def waiting_stores(self, sources: Sources) -> list[Wait]:
        """Return the stores of records that wait until their window closes, the left side's first.
        Their rows are counted as ``<stream>.on_close``, those of both sides of one stream together.

        Only a preserved side (whose records also come out without a match) has one, and only if
        ``unmatched`` is ``"on_close"``. Else the list is empty. ``sources``: the inputs of the
        operator.
        """
        stores = self.stores(sources)
        return [
            Wait(name, metrics.waiting_metric(sources[source].name, "on_close"), stores[name])
            for side, source in enumerate(self.sides)
            if (name := waiting_store_name(side)) in stores
        ]


def waiting_store_name(side: int) -> str:
    """Return the name of the store of a side's records that wait for their window to close: ``left:
    waiting`` or ``right: waiting``. ``side``: 0 for the left, 1 for the right.
    """
    return f"{('left', 'right')[side]}: waiting"


def marks_store_name(side: int) -> str:
    """Return the name of the store that marks the records of a side that found a match in a later
    batch than their own: ``left: joined`` or ``right: joined``. ``side``: 0 for the left, 1 for the
    right.
    """
    return f"{('left', 'right')[side]}: joined"


@dataclass(frozen=True)
class HistoryJoinLaw(Law):
    """Two versioned tables joined over all of their history."""

    REASON: ClassVar[str] = "a late row changes results that came after it, so histories are kept"

    sides: tuple[int, int]
    """The indices of the left and the right side among the operator's inputs, from 0."""
    how: How

    @property
    def leaves(self) -> tuple[int, ...]:
        """The indices of the left and the right side among the operator's inputs: ``(0, 1)``. A
        join of a table with itself is refused when the plan is built.
        """
        return self.sides

    def metric_names(self, sources: Sources) -> list[str]:
        """Return the names of the metrics of records older than their table's history:
        ``<table>.too_old`` of each versioned table in ``sources``, the inputs of the operator, in
        order.
        """
        return too_old_metrics(sources)


@dataclass(frozen=True)
class InOrderLaw(Law):
    """The results of a foreign-key join, with those of each primary key in order."""

    REASON: ClassVar[str] = "changes of a key come from several right rows, and leave in one order"

    keys: tuple[pa.Field, ...]
    """The key columns of the results."""
    types: tuple[tuple[pa.DataType, ...], tuple[pa.DataType, ...]]
    """The types of the values of the left and the right leaf."""
    net: bool
    """True if only the last result is emitted for a key that has moved between buckets."""

    stateful: ClassVar[bool] = False

    @property
    def leaves(self) -> tuple[int, ...]:
        """The leaves of a result, ``(0, 1)``: the values of the left row and those of the right
        row. Both come in the rows of the only input.
        """
        return (0, 1)

    def key_fields(self, sources: Sources) -> list[pa.Field]:
        """Return the key columns of the results, in order: the law's own ``keys``. ``sources`` does
        not matter.
        """
        return list(self.keys)

    def value_types(self, sources: Sources, leaf: int) -> list[pa.DataType]:
        """Return the types of the value columns of one leaf in the results, in order. ``leaf``: 0
        for the left row, 1 for the right; others raise ``IndexError``. ``sources`` does not matter.
        """
        return list(self.types[leaf])


@dataclass(frozen=True)
class UnionLaw(Law):
    """Streams or tables with the same columns, read as one. Each row is emitted as it comes."""

    REASON: ClassVar[str] = "rows of one key from several inputs leave in one order"

    valueless: ClassVar[bool] = True

    def stores(self, sources: Sources) -> Mapping[str, Store]:
        """Return an empty mapping: a union stores no rows. ``sources`` does not matter."""
        return {}


@dataclass(frozen=True)
class DeduplicateLaw(Law):
    """A stream without repetitions.

    A record is dropped if a record of its key, no further than ``within_us`` from it, was emitted
    before. The store has the keys and times of emitted records.
    """

    REASON: ClassVar[str] = "a record is new only if its key has not come before"

    within_us: int
    """The span in microseconds within which a record repeats another one, inclusive."""

    def stores(self, sources: Sources) -> Mapping[str, Store]:
        """Return the description of a bucket's only store, by the name of the stream: the keys and
        times of emitted records. ``sources``: the stream, as the only input.

        A key is kept while its time is no further than twice ``within_us`` behind stream time. Any
        record near it is late by then.
        """
        (source,), span_us = sources, 2 * self.within_us
        store = replace(
            table_store(sources, 0),
            holds=f"keys and times of records of the last {span_as_text(span_us)}",
            kind="records",
            fields=tuple(source.shape.key_fields),
            span_us=span_us,
        )
        return dict.fromkeys(super().stores(sources), store)

    def metric_names(self, sources: Sources) -> list[str]:
        """Return the names of the metrics of dropped records: ``<stream>.late`` for records further
        than ``within_us`` behind stream time, then ``<stream>.repeated``. ``sources``: the stream,
        as the only input.
        """
        return [metric_name(sources[0].name, "late"), metric_name(sources[0].name, "repeated")]


@dataclass(frozen=True)
class ExpireLaw(Law):
    """A table whose rows stay until stream time is more than ``after_us`` past their time."""

    REASON: ClassVar[str] = "a row leaves when stream time is past it, so its time is needed"

    after_us: int
    """The microseconds of stream time, inclusive, for which a row stays after its own time."""

    nets: ClassVar[bool] = True

    def stores(self, sources: Sources) -> Mapping[str, Store]:
        """Return the descriptions of a bucket's two stores by name. ``sources``: the table, as the
        only input.

        The first, under the table's name, has the last row of each key. The second, ``<table>:
        expiry``, has the keys by the time at which their rows may expire.
        """
        (name,) = super().stores(sources)
        holds = f"last row per key, for {span_as_text(self.after_us)}"
        rows = replace(table_store(sources, 0), holds=holds, span_us=self.after_us, whole=False)
        return {name: rows, expiry_store_name(name): Store("when each row expires")}

    def depends_on_time_of(self, entry: Entry, node: Node, feeds: Sequence[str]) -> bool:
        """Return True: rows in every bucket expire by the stream time of ``entry``, the only input.
        ``node`` and ``feeds`` do not matter.
        """
        return True

    def metric_names(self, sources: Sources) -> list[str]:
        """Return the name of the metric of rows that had already expired when they arrived,
        ``<table>.late``, as the only element. ``sources``: the table, as the only input.
        """
        return [metric_name(sources[0].name, "late")]


@dataclass(frozen=True)
class ToChangesLaw(Law):
    """The rows before and after each change of a table."""

    REASON: ClassVar[str] = "a change has the row before it, which is stored"

    kinds: tuple[str, ...]
    """The names of the kinds of change, one of which each row has as an additional value."""

    names_columns: ClassVar[bool] = True

    def value_types(self, sources: Sources, leaf: int) -> list[pa.DataType]:
        """Return the types of the table's value columns, then that of the kind of change, a string.
        ``sources``: the table, as the only input. ``leaf`` is 0: the table is the only leaf.
        """
        return [*super().value_types(sources, leaf), pa.string()]

    def metric_names(self, sources: Sources) -> list[str]:
        """Return the names of the metrics of records that do not change their key's latest version.
        ``sources``: the table, as the only input.

        ``<table>.too_old`` counts records older than the table's history, ``<table>.late`` those
        older than the latest version. The list is empty unless the table is versioned.
        """
        return not_latest_metrics(sources)


@dataclass(frozen=True)
class ExplodeLaw(Law):
    """A table that has a row for each element of an array."""

    REASON: ClassVar[str] = (
        "elements that an array no longer has must be deleted, so the former is needed"
    )

    column: int
    """The index of the array among the value columns, from 0."""
    element: pa.DataType
    """The type of the elements."""
    position: bool
    """True if the element's position is part of the key, False if the element itself is."""

    nets: ClassVar[bool] = True
    names_columns: ClassVar[bool] = True

    def key_fields(self, sources: Sources) -> list[pa.Field]:
        """Return the key columns of a change: the table's key, then a column that is called
        ``element`` here. With ``position``, that is the element's position, an int32; else it is
        the element itself. Changes have their key columns as ``_k0`` and so on, so this name
        reaches no user. ``sources``: the table, as the only input.
        """
        last_field = pa.field("element", pa.int32() if self.position else self.element)
        return [*super().key_fields(sources), last_field]

    def value_types(self, sources: Sources, leaf: int) -> list[pa.DataType]:
        """Return the types of the value columns of a change: those of the table, with ``position``
        the element's type in place of the array's.

        Without ``position`` the element is part of the key, and the array's column is left out.
        ``sources``: the table, as the only input. ``leaf`` is 0: the table is the only leaf.
        """
        types = super().value_types(sources, leaf)
        types[self.column : self.column + 1] = [self.element] if self.position else []
        return types

    def metric_names(self, sources: Sources) -> list[str]:
        """Return the names of the metrics of records and elements without use. ``sources``: the
        table, as the only input.

        For a versioned table, ``<table>.too_old`` and ``<table>.late`` come first: records older
        than the history, and those older than their key's latest version. Unless positions are
        keys, ``<table>.null_element`` and ``<table>.repeated`` follow: null elements, and
        repetitions of an element within its array.
        """
        if self.position:
            return not_latest_metrics(sources)
        return [
            *not_latest_metrics(sources),
            metric_name(sources[0].name, "null_element"),
            metric_name(sources[0].name, "repeated"),
        ]


@dataclass(frozen=True)
class WithoutColumnLaw(Law):
    """A table whose rows come out without one value column, which the operator alone reads."""

    column: int
    """The index of that value column, from 0; negative if there is none, and all columns come out.
    """

    nets: ClassVar[bool] = True
    names_columns: ClassVar[bool] = True

    def value_types(self, sources: Sources, leaf: int) -> list[pa.DataType]:
        """Return the types of the table's value columns, in order, without the one at index
        ``column``. If ``column`` is negative, all are returned.

        ``sources``: the table, as the only input. ``leaf`` is 0: the table is the only leaf.
        """
        types = super().value_types(sources, leaf)
        return [type_ for index, type_ in enumerate(types) if index != self.column]


@dataclass(frozen=True)
class FillLaw(WithoutColumnLaw):
    """A table in which a value that a record does not send is taken from the row before.

    The column lists the names of values that were not sent. Without it, nulls were not sent.
    """

    REASON: ClassVar[str] = "a value that a record does not send is that of the former row"

    name: str
    """The name of the operator in errors."""
    names: tuple[str, ...]
    """The names of the value columns."""
    fails: bool
    """True if it is an error that there is no row before."""
    nulls: tuple[int, ...] = ()
    """The indices (from 0) of the value columns whose nulls were not sent."""

    def stores(self, sources: Sources) -> Mapping[str, Store]:
        """Return the description of a bucket's only store, by the name of the table: the last row
        of each key, completed. ``sources``: the table, as the only input.
        """
        said = (
            f"nulls of {', '.join(sorted(self.names[index] for index in self.nulls))}"
            if self.column < 0
            else f"what {self.names[self.column]} names"
        )
        only = f"with the former values of {said}"
        stores = super().stores(sources).items()
        return {name: replace(store, whole=False, only=only) for name, store in stores}

    def metric_names(self, sources: Sources) -> list[str]:
        """Return the name of the metric of values that neither the record nor a row before it has,
        ``<table>.unsent``, as the only element.

        Empty if nulls stand for values that were not sent (``column`` is negative), since such a
        value is null then. ``sources``: the table, as the only input.
        """
        return [] if self.column < 0 else [metric_name(sources[0].name, "unsent")]


@dataclass(frozen=True)
class TransactLaw(WithoutColumnLaw):
    """A table of a database's events, in which the rows of a key are counted.

    The column says what an event does in its transaction.
    """

    REASON: ClassVar[str] = "each of a key's rows counts once in its transaction"

    def stores(self, sources: Sources) -> Mapping[str, Store]:
        """Return the description of a bucket's only store, by the name of the table: the last
        transaction of each key, and the count of rows that the key has in it. The operator reads
        it, but users who read state do not get its rows. ``sources``: the table, as the only input.
        """
        kept = Store("last transaction per key, and the rows it has in it")
        return dict.fromkeys(super().stores(sources), kept)

    def metric_names(self, sources: Sources) -> list[str]:
        """Return the name of the metric of events that the database's connector sends again,
        ``<table>.repeated``, as the only element. ``sources``: the table, as the only input.
        """
        return [metric_name(sources[0].name, "repeated")]


def expiry_store_name(name: str) -> str:
    """Return the name of the store with the times at which the rows of a table expire: ``<name>:
    expiry``. ``name``: the name of the store of these rows.
    """
    return f"{name}: expiry"
