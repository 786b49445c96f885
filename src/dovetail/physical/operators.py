"""What each join's operator does: its law's parameters, as plain data that travels to the workers.
``dispatch.law_of`` makes it of the node that it runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import pyarrow as pa

from dovetail.laws.stream_join import Unmatched, Window
from dovetail.laws.table_join import How, Tree, leaves, preserved
from dovetail.physical.law import Law, Sources, Store, not_latest, table_of, too_old
from dovetail.plan.metrics import metric
from dovetail.plan.nodes import Entry
from dovetail.plan.spans import written


@dataclass(frozen=True)
class TableJoin(Law):
    """Joins of tables by key; every table's records are answered. ``distinct``: of a single table,
    with what changes its rows.
    """

    tree: Tree
    distinct: bool = False

    nets: ClassVar[bool] = True
    room = "table_join"

    @property
    def leaves(self) -> tuple[int, ...]:
        """The source of each leaf."""
        return tuple(leaves(self.tree))

    def counts(self, sources: Sources) -> list[str]:
        """The records that change no latest version."""
        return not_latest(sources)


@dataclass(frozen=True)
class StreamTableJoin(Law):
    """A stream, the first leaf, joined with tables; only the stream's records are answered, after
    ``grace_us`` of stream time where it is given. The stream's store has the records that wait.
    """

    tree: Tree
    grace_us: int | None = None

    waits: ClassVar[bool] = True
    room = "stream_table_join"

    @property
    def leaves(self) -> tuple[int, ...]:
        """The source of each leaf."""
        return tuple(leaves(self.tree))

    @property
    def holds_us(self) -> int:
        """The grace period."""
        return self.grace_us or 0

    def stores(self, sources: Sources) -> Mapping[str, Store]:
        """The tables and, with a grace period, the records that wait."""
        kept = dict(super().stores(sources))
        stream = list(kept)[self.leaves[0]]
        if self.grace_us is None:
            del kept[stream]
        else:
            holds = f"records that wait, for {written(self.grace_us)}"
            kept[stream] = replace(kept[stream], holds=holds, kind="queue", span_us=0)
        return kept

    def counts(self, sources: Sources) -> list[str]:
        """The tables' records that histories have gone past, and the stream's that look there."""
        old = too_old(sources)
        return [metric(sources[self.leaves[0]].name, "too_old"), *old] if old else []

    def goes_by(self, entry: Entry) -> bool:
        """By the stream's, where its records wait; by that of versioned tables."""
        return self.grace_us is not None if entry.stream else super().goes_by(entry)


@dataclass(frozen=True)
class StreamJoin(Law):
    """Two streams, or one with itself, joined where L.ts - before <= R.ts <= L.ts + after;
    ``sides``: the source of each.
    """

    sides: tuple[int, int]
    how: How
    window: Window
    unmatched: Unmatched

    keeps_time: ClassVar[bool] = True
    waits: ClassVar[bool] = True
    room = "stream_join"

    @property
    def leaves(self) -> tuple[int, ...]:
        """The sides."""
        return self.sides

    @property
    def holds_us(self) -> int:
        """How long after its time an unmatched record may come."""
        if self.unmatched != "on_close":
            return 0
        kept = preserved(self.how)
        return max((self.window.reach_us(side) for side in (0, 1) if kept[side]), default=0)

    def stores(self, sources: Sources) -> Mapping[str, Store]:
        """The records; per preserved side, unless unmatched records come at once and stay, those
        that wait for their window to close, and the marks of those that have been joined.
        """
        span_us, clocks = self.window.retention_us, tuple(range(len(sources)))
        holds = f"records of the last {written(span_us)}"
        kept = {
            name: replace(store, holds=holds, kind="records", clocks=clocks, span_us=span_us)
            for name, store in super().stores(sources).items()
        }
        for side in (0, 1) if self.unmatched != "eager" else ():
            if preserved(self.how)[side]:
                if self.unmatched == "on_close":
                    holds = "records without a match, until their window closes"
                    queue = replace(table_of(sources, self.sides[side]), holds=holds)
                    kept[waiting(side)] = replace(
                        queue, kind="queue", clocks=clocks, span_us=1, without=marks(side)
                    )
                kept[marks(side)] = Store("which of its records have found a match")
        return kept

    def goes_by(self, entry: Entry) -> bool:
        """Where both sides' records wait, which of those that are due comes first."""
        return self.how == "outer" and self.unmatched == "on_close"

    @property
    def lossy(self) -> list[int]:
        """The sources whose records, when they come late, may reach no result."""
        kept = {
            source for source, keeps in zip(self.sides, preserved(self.how), strict=True) if keeps
        }
        return sorted({*self.sides} - kept)

    def too_late(self, sources: Sources) -> str | None:
        """The metric of pairs that are not made, since one of the rows has been emitted without a
        match.
        """
        if self.how == "inner" or self.unmatched != "on_close":
            return None
        left, right = (sources[side].name for side in self.sides)
        return metric(f"{left}-{right}", "too_late")

    def counts(self, sources: Sources) -> list[str]:
        """The late records, and the pairs that are not made."""
        late = [metric(sources[source].name, "late") for source in self.lossy]
        pairs = self.too_late(sources)
        return late if pairs is None else [*late, pairs]


def waiting(side: int) -> str:
    """The store of a side's records that wait for their window to close."""
    return f"{('left', 'right')[side]}: waiting"


def marks(side: int) -> str:
    """The store that says which of a side's records have been joined in a later batch."""
    return f"{('left', 'right')[side]}: joined"


@dataclass(frozen=True)
class HistoryJoin(Law):
    """Two versioned tables joined over all of their history."""

    sides: tuple[int, int]
    how: How

    room = "history_join"

    @property
    def leaves(self) -> tuple[int, ...]:
        """The sides."""
        return self.sides

    def counts(self, sources: Sources) -> list[str]:
        """The records that the tables' histories have gone past."""
        return too_old(sources)


@dataclass(frozen=True)
class Subscribe(Law):
    """A table by primary key with a foreign key: each record becomes what it says to the former and
    to the present foreign key. Kept is each row's foreign key.
    """

    how: How

    whole_keys = True
    room = "subscribe"

    def stores(self, sources: Sources) -> Mapping[str, Store]:
        """Each row's foreign key."""
        (source,) = sources
        kept = replace(
            table_of(sources, 0),
            holds="foreign key per key",
            of="",
            fields=tuple(source.fields(source.key_columns) + source.fields(source.foreign_columns)),
        )
        return dict.fromkeys(super().stores(sources), kept)

    def counts(self, sources: Sources) -> list[str]:
        """The records that change no latest version."""
        return not_latest(sources)


@dataclass(frozen=True)
class ForeignKeyJoin(Law):
    """Subscriptions by foreign key, whose values begin with the ``primary`` columns of the primary
    key, and the table that they refer to.
    """

    primary: int
    how: How

    whole_keys = True
    room = "foreign_key_join"
    SUBSCRIPTIONS: ClassVar[str] = "subscriptions"
    RIGHT: ClassVar[str] = "right"
    REFERENCES: ClassVar[str] = "references"

    @property
    def leaves(self) -> tuple[int, ...]:
        """The left row, then the right one."""
        return (0, 1)

    def primary_columns(self, sources: Sources) -> range:
        """The numbers of the primary key's columns among the subscriptions'."""
        first = sources[0].value_columns.start
        return range(first, first + self.primary)

    def held(self, sources: Sources, leaf: int) -> range:
        """The numbers of a leaf's columns in its source. The right row's own key is a value here,
        for the row may be missing.
        """
        if leaf == 1:
            return sources[1].user_columns
        return range(self.primary_columns(sources).stop, sources[0].value_columns.stop)

    def key(self, sources: Sources) -> list[pa.Field]:
        """The primary key and, where right rows appear alone, theirs."""
        primary = sources[0].fields(self.primary_columns(sources))
        theirs = sources[1].fields(sources[1].key_columns)
        return primary + (theirs if preserved(self.how)[1] else [])

    def values(self, sources: Sources, leaf: int) -> list[pa.DataType]:
        """The types of a leaf's values in a change."""
        return [field.type for field in sources[leaf].fields(self.held(sources, leaf))]

    def stores(self, sources: Sources) -> Mapping[str, Store]:
        """The subscriptions with their rows; the right table; where right rows appear alone, how
        many left rows refer to each.
        """
        left, right = sources
        rows = table_of(sources, 0, key=left.keys + self.primary)
        theirs = table_of(sources, 1)
        kept = {
            self.SUBSCRIPTIONS: replace(
                rows,
                holds=f"{left.name}, last row per foreign key and key",
                through=left.name,
                whole=preserved(self.how)[0],
            ),
            self.RIGHT: replace(theirs, holds=f"{right.name}, {theirs.holds}"),
        }
        if preserved(self.how)[1]:
            kept[self.REFERENCES] = Store(f"how many rows of {left.name} refer to each")
        return kept

    def counts(self, sources: Sources) -> list[str]:
        """The right records that change no latest version."""
        return not_latest(sources[1:])


@dataclass(frozen=True)
class InOrder(Law):
    """The results of a join by foreign key, each primary key's in their order. ``keys``: the key
    columns of the results; ``types``: of the values of both leaves; ``net``: of each key that has
    moved between buckets only the last result.
    """

    keys: tuple[pa.Field, ...]
    types: tuple[tuple[pa.DataType, ...], tuple[pa.DataType, ...]]
    net: bool

    stateful: ClassVar[bool] = False
    room = "in_order"

    @property
    def leaves(self) -> tuple[int, ...]:
        """The left row, then the right one."""
        return (0, 1)

    def key(self, sources: Sources) -> list[pa.Field]:
        """That of the results."""
        return list(self.keys)

    def values(self, sources: Sources, leaf: int) -> list[pa.DataType]:
        """Those of the results."""
        return list(self.types[leaf])


@dataclass(frozen=True)
class Union(Law):
    """Streams or tables with the same columns, read as one: each row as it comes."""

    valueless: ClassVar[bool] = True
    room = "union"

    def stores(self, sources: Sources) -> Mapping[str, Store]:
        """None."""
        return {}


@dataclass(frozen=True)
class Deduplicate(Law):
    """A stream without the records that lie no further than ``within_us`` from one of their key
    that came out before. Kept are the keys and times of those that came out.
    """

    within_us: int

    room = "deduplicate"

    def stores(self, sources: Sources) -> Mapping[str, Store]:
        """Keys and times, as long as one that is not late may be near."""
        (source,), span_us = sources, 2 * self.within_us
        kept = replace(
            table_of(sources, 0),
            holds=f"keys and times of records of the last {written(span_us)}",
            kind="records",
            fields=tuple(source.fields(source.key_columns)),
            span_us=span_us,
        )
        return dict.fromkeys(super().stores(sources), kept)

    def counts(self, sources: Sources) -> list[str]:
        """The records that are late, and those that repeat another."""
        return [metric(sources[0].name, "late"), metric(sources[0].name, "repeated")]


@dataclass(frozen=True)
class Expire(Law):
    """A table of which each row stays until stream time is more than ``after_us`` past its time."""

    after_us: int

    nets: ClassVar[bool] = True
    room = "expire"

    def stores(self, sources: Sources) -> Mapping[str, Store]:
        """The rows, and their keys by the time at which they are looked after."""
        (name,) = super().stores(sources)
        holds = f"last row per key, for {written(self.after_us)}"
        rows = replace(table_of(sources, 0), holds=holds, span_us=self.after_us, whole=False)
        return {name: rows, expiry(name): Store("when each row expires")}

    def goes_by(self, entry: Entry) -> bool:
        """By that of its table, in every bucket."""
        return True

    def counts(self, sources: Sources) -> list[str]:
        """The rows that had expired as they came."""
        return [metric(sources[0].name, "late")]


@dataclass(frozen=True)
class ToChanges(Law):
    """The rows before and after each change of a table; ``kinds``: what says which it is."""

    kinds: tuple[str, ...]

    names_columns: ClassVar[bool] = True
    room = "to_changes"

    def values(self, sources: Sources, leaf: int) -> list[pa.DataType]:
        """A row's, and which it is."""
        return [*super().values(sources, leaf), pa.string()]

    def counts(self, sources: Sources) -> list[str]:
        """The records that change no latest version."""
        return not_latest(sources)


@dataclass(frozen=True)
class Explode(Law):
    """A table with a row for each element of an array, the value column number ``column``;
    ``element``: the type of the elements; ``position``: whether rows are known by the element's
    position, not by the element.
    """

    column: int
    element: pa.DataType
    position: bool

    nets: ClassVar[bool] = True
    names_columns: ClassVar[bool] = True
    room = "explode"

    def key(self, sources: Sources) -> list[pa.Field]:
        """The table's, and the position or the element."""
        own = pa.field("element", pa.int32() if self.position else self.element)
        return [*super().key(sources), own]

    def values(self, sources: Sources, leaf: int) -> list[pa.DataType]:
        """The table's, the element in the array's place or, where it is in the key, nowhere."""
        types = super().values(sources, leaf)
        types[self.column : self.column + 1] = [self.element] if self.position else []
        return types

    def counts(self, sources: Sources) -> list[str]:
        """The elements that cannot be known by themselves: nulls, and those that come again."""
        if self.position:
            return not_latest(sources)
        return [
            *not_latest(sources),
            *[metric(sources[0].name, "null_element"), metric(sources[0].name, "repeated")],
        ]


@dataclass(frozen=True)
class Fill(Law):
    """A table in whose rows the values that are not sent are those of the row before. ``name``:
    what errors call it; ``names``: the value columns, of which the one number ``column`` names
    those that a record leaves out; ``fails``: whether it is an error if there is no row before.
    """

    name: str
    names: tuple[str, ...]
    column: int
    fails: bool

    nets: ClassVar[bool] = True
    names_columns: ClassVar[bool] = True
    room = "fill"

    def values(self, sources: Sources, leaf: int) -> list[pa.DataType]:
        """The table's, but for the names."""
        types = super().values(sources, leaf)
        del types[self.column]
        return types

    def counts(self, sources: Sources) -> list[str]:
        """The values that were not sent and that no row before has."""
        return [metric(sources[0].name, "unsent")]


def expiry(name: str) -> str:
    """The store that says when the rows of a table expire."""
    return f"{name}: expiry"
