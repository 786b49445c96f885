"""The inputs of a stage that are read by key, and the columns in which their rows travel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import chain, pairwise

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql.types import BooleanType, DataType, LongType, StructField, StructType

from dovetail.base.columns import (
    CLOCK,
    DELETED,
    EVENT_TIME,
    FOREIGN,
    HASH,
    ORDER,
    SEQUENCE,
    STREAM_TIME,
    TIE,
    aggregated_name,
    foreign_name,
    value_name,
)
from dovetail.errors import PlanError
from dovetail.physical.source import (
    OrderedBy,
    RowArrival,
    RowMeaning,
    RowShape,
    SourceSpec,
    number_repeated_names,
)
from dovetail.plan.nodes import Derived, Entry, Node, Source
from dovetail.plan.types.arrow import arrow_schema
from dovetail.plan.types.checks import columns_as_text
from dovetail.plan.types.windows import Windows
from dovetail.plan.views import View


@dataclass(frozen=True, eq=False)
class Input:
    """A source, or the result of another stage, as a stage reads it.

    All columns that are not in ``key`` are values, including columns of the source's own key.
    """

    source: Entry
    key: tuple[str, ...]
    """The columns by which rows are found."""
    foreign: tuple[tuple[str | Column, DataType], ...] = ()
    """For subscriptions, the columns or expressions that make the foreign key, with their types."""
    used: tuple[str, ...] | None = None
    """For an aggregation, the only columns that travel as values, under internal names."""
    only: frozenset[str] | None = None
    """The value columns that are of use; None for all."""
    references: tuple[tuple[tuple[str, DataType], ...], ...] = ()
    """For a star, each foreign key: its columns, with the types of the key that they refer to. They
    travel as the only values, each foreign key behind its hash.
    """

    @property
    def key_fields(self) -> list[StructField]:
        """The columns by which the stage finds rows, with the source's names and types, in the
        order of ``key``.
        """
        return [self.source.fields[name] for name in self.key]

    @property
    def key_text(self) -> str:
        """The columns by which the stage finds rows, with their types, such as ``(id bigint)``. The
        text begins with ``key`` if they are the source's own key.
        """
        is_own_key = self.key == tuple(self.source.key.names)
        return ("key " if is_own_key else "") + columns_as_text(StructType(self.key_fields))

    @property
    def foreign_fields(self) -> list[StructField]:
        """The foreign key under internal names: its hash ``_foreign``, a long, then its columns
        ``_f0``, ``_f1`` and so on. Empty without a foreign key.
        """
        if not self.foreign:
            return []
        key = [
            StructField(foreign_name(key_index), type_)
            for key_index, (_, type_) in enumerate(self.foreign)
        ]
        return [StructField(FOREIGN, LongType()), *key]

    @property
    def value_fields(self) -> list[StructField]:
        """The columns that travel as values, in order.

        | input | columns |
        |---|---|
        | with ``references`` (for a star) | the foreign keys alone, each behind its hash |
        | with ``used`` (for an aggregation) | those in ``used``, under the source's names |
        | else | all columns of the source that are not in ``key``, its own key columns first |

        In the last case ``only`` restricts the source's value columns, but not its key columns.
        """
        if self.references:
            return [
                field
                for number in range(len(self.references))
                for field in self.star_key_fields(number)
            ]
        if self.used is not None:
            return [self.source.fields[name] for name in self.used]
        values = (f for f in self.source.values if self.only is None or f.name in self.only)
        return [f for f in (*self.source.key, *values) if f.name not in self.key]

    def star_key_fields(self, number: int) -> list[StructField]:
        """Return the columns of one foreign key of a star, under internal names: its hash, a long,
        then each column of the key. ``number``: the index of the foreign key in ``references``,
        from 0.
        """
        key = (
            StructField(value_name(number, part_index), type_)
            for part_index, (_, type_) in enumerate(self.references[number], start=1)
        )
        return [StructField(value_name(number, 0), LongType()), *key]

    @property
    def aggregated_fields(self) -> list[StructField]:
        """The columns ``value_fields``, in order and with their types, under the internal names in
        which an aggregation reads them: ``_v0``, ``_v1`` and so on.
        """
        return [
            StructField(aggregated_name(value_index), f.dataType)
            for value_index, f in enumerate(self.value_fields)
        ]


@dataclass(frozen=True)
class Arrival:
    """The order in which the rows of a topology arrive."""

    origins: tuple[Source, ...]
    """The sources of the topology. Their order decides ties."""
    timed: bool
    """True if anything in the topology depends on stream time."""
    moves: bool = False
    """True if stream time alone may cause results: rows of tables expire, or windows close."""
    streams: bool = False
    """True if any node is a stream. Its records may be the results of tables."""
    one_log: bool = False
    """True if all sources are read from one log, whatever they say themselves."""
    left_out: bool = False
    """True if conditions may leave rows of tables out. Their clocks may be ahead of stream time."""
    branching: frozenset[Source] = frozenset()
    """The sources that stages read several times. Each reader may leave other rows out."""

    @classmethod
    def of(cls, *nodes: Node, one_log: bool = False) -> Arrival:
        """Return the arrival of a topology with the results ``nodes``. ``one_log``: True if one log
        orders all its inputs, whatever the sources say.

        The sources are those of all results, each once, in an order that agrees with each result's
        own order. If these contradict each other, the order of first use counts.
        """
        timed = any(node.timed for node in nodes)
        computed = [part for node in nodes for part in node.walk() if not isinstance(part, Source)]
        return cls(
            _merge_orders([node.origins for node in nodes]),
            timed,
            moves=any(part.expires or part.closes for part in computed),
            streams=any(part.stream for part in computed),
            one_log=one_log,
            left_out=any(part.emits_spurious_tombstones for part in computed),
            branching=_read_several_times(computed),
        )

    def has_shared_log(self, source: Entry) -> bool:
        """Return True if the rows of the input ``source`` have a position in one log that all
        inputs share. This is so for every input with ``one_log``.
        """
        return self.one_log or source.ordered

    def carried_columns(self, source: Entry) -> tuple[str, ...]:
        """Return the names of the columns on order that rows of another stage bring, without
        ``_sequence``. ``source``: the input through which they are read. Empty if it reads a source
        of the topology or a delta join, whose results are put in order anew.

        | column | the record that caused the row | if |
        |---|---|---|
        | ``_clock`` | the largest timestamp of its log so far | inputs share no log |
        | ``_order`` | its place among records of one clock | no shared log, or ``moves`` |
        | ``_tie`` | the hash of the changed key, for changes of one record | always |
        | ``_stream_time`` | the stream time of the stage that made it | the topology needs it |
        """
        base = source.base
        if isinstance(base, Source) or base.node.eventual:
            return ()
        return (*self._order_columns(source), TIE, *self._time_columns)

    @property
    def _time_columns(self) -> tuple[str, ...]:
        """The column ``_stream_time`` (the stream time of the stage that made a row), as the only
        element. Empty if nothing in the topology needs it.
        """
        ahead = self.left_out or bool(self.branching)
        needed = self.moves or self.streams or (self.timed and ahead)
        return (STREAM_TIME,) if needed else ()

    def _order_columns(self, source: Entry) -> tuple[str, ...]:
        """Return the names of the columns that order an input's changes, without ``_sequence``:
        ``_clock`` and ``_order``, or none in a shared log.

        In a shared log it is ``_order`` if rows expire or windows close: such results come before
        the record that causes them. ``source``: the input.
        """
        if self.has_shared_log(source):
            return (ORDER,) if self.moves else ()
        return (CLOCK, ORDER)

    def cause_columns(self, node: Node) -> tuple[str, ...]:
        """Return the names of the columns by which readers of ``node``'s stage know the record that
        caused a change. ``_sequence`` is the first if all inputs share a log. Then come ``_clock``
        and ``_order`` without such a log (with one, ``_order`` if rows expire or windows close).
        ``_tie`` always follows, and ``_stream_time`` if the topology needs it.

        A source, a view of one and a delta join have at most ``_sequence``.
        """
        entry = node if isinstance(node, Entry) else Derived(node)
        return (*((SEQUENCE,) if self.has_shared_log(entry) else ()), *self.carried_columns(entry))

    def first_cause_columns(self, source: Entry) -> tuple[str, ...]:
        """Return the names of the columns by which the second of two stages of one node knows the
        record that caused a row. ``source``: the input of the first stage.

        In a shared log they begin with ``_sequence``, and ``_order`` if rows expire or windows
        close. Without one they begin with ``_clock`` and ``_order``. ``_tie`` always follows, and
        ``_stream_time`` if the topology needs it.
        """
        position = (SEQUENCE,) if self.has_shared_log(source) else ()
        return (*position, *self._order_columns(source), TIE, *self._time_columns)


def _read_several_times(nodes: Iterable[Node]) -> frozenset[Source]:
    """Return the sources that are an input of several of ``nodes``, or several inputs of one, each
    perhaps through views. A node that comes twice counts once.
    """
    entries = chain.from_iterable(
        node.inputs
        for node in {id(node): node for node in nodes}.values()
        if not isinstance(node, Entry)
    )
    reads = Counter(entry.base for entry in entries if isinstance(entry, Entry))
    return frozenset(
        base for base, count in reads.items() if isinstance(base, Source) and count > 1
    )


def _merge_orders(orders: Sequence[Sequence[Source]]) -> tuple[Source, ...]:
    """Return all sources in ``orders``, each once, in an order that agrees with each list. If lists
    disagree, return the sources by first use. No lists give an empty tuple.
    """
    first_use = dict.fromkeys(chain.from_iterable(orders))
    sorter: TopologicalSorter[Source] = TopologicalSorter(dict.fromkeys(first_use, ()))
    for before, after in chain.from_iterable(map(pairwise, orders)):
        sorter.add(after, before)
    try:
        return tuple(sorter.static_order())
    except CycleError:
        return tuple(first_use)


def source_spec(
    input_: Input,
    name: str,
    arrival: Arrival,
    *,
    numbered: bool = False,
    alone: bool = False,
    valueless: bool = False,
    keeps_time: bool = False,
    stairs: bool = False,
    stair_period: tuple[int, int] | None = None,
    aligned: bool = False,
) -> SourceSpec:
    """Return the layout of an input's rows, from the properties of its source and of ``arrival``.

    ``name``: the name of the input in its stage, which no other input of it has. ``arrival``: that
    of a topology with all sources of the input. The flags are what a stage asks for:

    | flag | if true |
    |---|---|
    | ``numbered`` | rows clocked by pack get ``_order``, their place among equal clocks |
    | ``alone`` | records of a stream are emitted even if nothing matches them, so null keys stay |
    | ``valueless`` | records of a stream without a value are kept |
    | ``keeps_time`` | records that no join can use travel, too, as they advance stream time |
    | ``stairs`` | all buckets hear how the input's stream time rises |
    | ``aligned`` | the inputs wait for each other, so fewer of them need ``stairs`` |

    Rows in a shared log get no ``_order``. All buckets may hear of stream time without ``stairs``,
    if results of the topology depend on it. Else ``stair_period`` says which steps they need.
    """
    source, base = input_.source, input_.source.base
    ordered_by = _order_kind(source, arrival)
    shared_log = ordered_by == "shared log"
    carries = arrival.carried_columns(source)
    clocked = not carries
    null_keys = alone or source.null_keys
    full_clock = clocked and not (shared_log or aligned)
    full_clock &= base in arrival.branching or (source.stream and null_keys)
    loose = source.emits_spurious_tombstones
    orders_left_out = clocked and loose and not (shared_log or full_clock)
    goes_by_time = arrival.timed and (shared_log or (orders_left_out and not aligned))
    schema = wire_schema(input_)
    return SourceSpec(
        name,
        RowShape(
            schema=schema,
            keys=len(input_.key),
            foreign=len(input_.foreign),
            fallible=any(not isinstance(item, str) for item, _ in input_.foreign),
            primary=tuple(column for column in table_key(source) if column in schema.names),
        ),
        RowMeaning(
            stream=source.stream,
            valueless=valueless,
            null_keys=null_keys,
            keeps_time=keeps_time,
            loose=loose,
            versioned_us=source.versioned_us,
            in_order=source.in_order,
        ),
        RowArrival(
            origin=arrival.origins.index(source.origins[0]),
            ordered_by=ordered_by,
            clocked=clocked,
            numbered=numbered and clocked and not shared_log,
            carries=carries,
            stairs=stairs or goes_by_time,
            stair_period=None if goes_by_time else stair_period,
            logs=ordered_by == "own logs" and _has_logs(input_),
            limited=isinstance(base, Source) and base.order.limited,
            orders_left_out=orders_left_out,
            full_clock=full_clock,
            separate_time=full_clock and arrival.timed,
        ),
    )


def closing_period(windows: Windows | None) -> tuple[int, int] | None:
    """Return the times at which windows close as a span and an offset in microseconds: all times
    ``offset + k * span``. None without windows, and for windows that the records determine.
    """
    if windows is None or not windows.fixed:
        return None
    return windows.advance_us, (windows.size_us + windows.wait_us) % windows.advance_us


def _order_kind(source: Entry, arrival: Arrival) -> OrderedBy | None:
    """Return the kind of position that orders the rows of the input ``source``: ``"shared log"``,
    ``"own logs"`` or ``"file"``, the first that applies. Return None for rows that come as tasks
    read them, and for those of another stage without a shared log, which bring their order.
    """
    if arrival.has_shared_log(source):
        return "shared log"
    base = source.base
    if isinstance(base, Source) and base.order.log_partition is not None:
        return "own logs"
    return "file" if isinstance(base, Source) and base.order.by_files else None


def table_key(node: Node) -> tuple[str, ...]:
    """Return the names of the columns in which no row of ``node`` may have a null, because they are
    the key of a table.

    A table has its own key, or none if that may have nulls. A view of a stream has the key of the
    table whose changes the stream has, under the view's names. Key columns that the view computes
    or leaves out are missing. Other streams have none.
    """
    if not node.stream:
        return () if node.null_keys else tuple(node.key.names)
    if not isinstance(node, View):
        return ()
    key = table_key(node.node)
    items = node.columns or node.key.names  # a lookup leaves the key as it is
    columns = zip(node.row.names, items, strict=False)
    return tuple(name for name, item in columns if isinstance(item, str) and item in key)


def _has_logs(input_: Input) -> bool:
    """Return True if rows of one key of a table may come from several logs, of which the newest
    counts. The user must have named the log, and the stage must read by the table's own key. False
    for streams, and for versioned tables, where event time decides instead.

    ``input_``: one with a source below it; another stage's result raises ``AssertionError``.
    """
    source, base = input_.source, input_.source.base
    assert isinstance(base, Source)
    by_log = not source.stream and source.versioned_us is None
    return by_log and base.order.partitioned and input_.key == tuple(source.key.names)


def is_numbered(inputs: Sequence[Input], arrival: Arrival, feeds: Sequence[str]) -> bool:
    """Return True if the rows of a stage need ``_order``, their place among rows with equal clocks.

    They do if ``_order`` is among ``feeds``, the columns that the stage gives to its readers. They
    also do if the rows of one of its ``inputs`` bring ``_order``, or if one reads a source that is
    read several times.
    """
    return ORDER in feeds or any(
        ORDER in arrival.carried_columns(i.source) or i.source.base in arrival.branching
        for i in inputs
    )


def refuse_partly_ordered(node: Node, inputs: Sequence[Input], *, aligned: bool) -> None:
    """Raise ``PlanError`` if some of ``inputs``, but not all, have their position in a shared log.
    With ``aligned`` (inputs wait for each other by ``align=``), raise it if any has. Else return
    None.

    ``node``: the node that the error names.
    """
    logs = [i.source.name for i in inputs if i.source.ordered]
    if logs and aligned:
        raise PlanError(
            node.name,
            f"align= orders rows by time, shared_log= of {', '.join(logs)} by their place in it",
            "Leave one of them out",
        )
    if logs and len(logs) < len(inputs):
        raise PlanError(
            node.name,
            f"shared_log= orders the rows of all inputs, but only {', '.join(logs)} has it",
            "Give every input its position in the shared log, or leave shared_log= out",
        )


def unique_names(inputs: Sequence[Input]) -> list[str]:
    """Return the names of the inputs' sources, in order. Repeated names get ``#2``, ``#3`` and so
    on: ``a, a#2``.
    """
    return number_repeated_names([input_.source.name for input_ in inputs])


def wire_schema(input_: Input) -> pa.Schema:
    """Return the Arrow columns in which an input's rows travel: ``ROW_COLUMNS``, the key, the
    foreign key behind its hash, and the values. Those of an aggregation are named ``_v0``, ``_v1``
    and so on. All are nullable, timestamps are in UTC.
    """
    values = input_.value_fields if input_.used is None else input_.aggregated_fields
    return carried_schema(StructType([*input_.key_fields, *input_.foreign_fields, *values]))


def carried_schema(columns: StructType) -> pa.Schema:
    """Return the Arrow schema of rows in a fragment: ``_hash`` and ``_event_time`` (int64),
    ``_deleted`` (bool), then ``columns``. All are nullable, timestamps are in UTC.
    """
    internal = [
        StructField(HASH, LongType()),
        StructField(EVENT_TIME, LongType()),
        StructField(DELETED, BooleanType()),
    ]
    return arrow_schema(StructType([*internal, *columns]))
