"""What each operator does: its law's parameters, as plain data that travels to the workers.

An operator says for itself what it keeps (its stores, by name), what it puts out (key and values)
and what it counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import pyarrow as pa

from dovetail.aggregates.aggregate import Aggregate
from dovetail.aggregates.multiset import Listing
from dovetail.columns import WINDOW_END, WINDOW_START
from dovetail.laws.delta_join import Form
from dovetail.laws.stream_join import Unmatched, Window
from dovetail.laws.table_join import How, Tree, leaves, preserved
from dovetail.lookup.source import LookupSource
from dovetail.physical.source import SourceSpec, unique
from dovetail.plan.windows import Windows

WINDOW_TYPE = pa.timestamp("us", "UTC")

Sources: TypeAlias = Sequence[SourceSpec]


@dataclass(frozen=True)
class Law:
    """What all operators answer for themselves, given their ``sources``."""

    stateful: ClassVar[bool] = True

    @property
    def leaves(self) -> tuple[int, ...]:
        """The source of each leaf: of each group of value columns in the output."""
        return (0,)

    @property
    def holds_us(self) -> int:
        """The longest, in stream time, that a result is held back."""
        return 0

    def key(self, sources: Sources) -> list[pa.Field]:
        """The key columns of a change."""
        return sources[0].fields(sources[0].key_columns)

    def values(self, sources: Sources, leaf: int) -> list[pa.DataType]:
        """The types of a leaf's values in a change."""
        source = sources[self.leaves[leaf]]
        return [field.type for field in source.fields(source.value_columns)]

    def stores(self, sources: Sources) -> list[str]:
        """What a bucket keeps, by name: by default rows of each source."""
        return unique([source.name for source in sources]) if self.stateful else []

    def counts(self, sources: Sources) -> list[str]:
        """The metrics of rows that had no use."""
        return []


@dataclass(frozen=True)
class TableJoin(Law):
    """Joins of tables by key; every table's records are answered. ``distinct``: of a single table,
    with what changes its rows.
    """

    tree: Tree
    distinct: bool = False

    @property
    def leaves(self) -> tuple[int, ...]:
        """The source of each leaf."""
        return tuple(leaves(self.tree))


@dataclass(frozen=True)
class StreamTableJoin(Law):
    """A stream, the first leaf, joined with tables; only the stream's records are answered, after
    ``grace_us`` of stream time where it is given. The stream's store has the records that wait.
    """

    tree: Tree
    grace_us: int | None = None

    @property
    def leaves(self) -> tuple[int, ...]:
        """The source of each leaf."""
        return tuple(leaves(self.tree))

    @property
    def holds_us(self) -> int:
        """The grace period."""
        return self.grace_us or 0

    def stores(self, sources: Sources) -> list[str]:
        """The tables and, with a grace period, the records that wait."""
        names = super().stores(sources)
        stream = self.leaves[0]
        return names if self.grace_us is not None else names[:stream] + names[stream + 1 :]


@dataclass(frozen=True)
class StreamJoin(Law):
    """Two streams, or one with itself, joined where L.ts - before <= R.ts <= L.ts + after;
    ``sides``: the source of each.
    """

    sides: tuple[int, int]
    how: How
    before_us: int
    after_us: int
    grace_us: int
    unmatched: Unmatched

    @property
    def leaves(self) -> tuple[int, ...]:
        """The sides."""
        return self.sides

    @property
    def window(self) -> Window:
        """Where records meet."""
        return Window(self.before_us, self.after_us, self.grace_us)

    @property
    def holds_us(self) -> int:
        """How long after its time an unmatched record may come."""
        if self.unmatched != "on_close":
            return 0
        kept = preserved(self.how)
        return max((self.window.reach_us(side) for side in (0, 1) if kept[side]), default=0)

    def stores(self, sources: Sources) -> list[str]:
        """The records; per side those that wait for their window to close, and the marks of those
        that have been joined.
        """
        return [*super().stores(sources), *map(waiting, (0, 1)), *map(marks, (0, 1))]

    def counts(self, sources: Sources) -> list[str]:
        """The pairs that are not made, since one of the rows has been emitted without a match."""
        if self.how == "inner" or self.unmatched != "on_close":
            return []
        left, right = (sources[side].name for side in self.sides)
        return [f"{left}-{right}.too_late"]


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

    @property
    def leaves(self) -> tuple[int, ...]:
        """The sides."""
        return self.sides


@dataclass(frozen=True)
class Subscribe(Law):
    """A table by primary key with a foreign key: each record becomes what it says to the former and
    to the present foreign key. Kept is each row's foreign key.
    """

    how: How


@dataclass(frozen=True)
class ForeignKeyJoin(Law):
    """Subscriptions by foreign key, whose values begin with the ``primary`` columns of the primary
    key, and the table that they refer to.
    """

    primary: int
    how: How

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

    def stores(self, sources: Sources) -> list[str]:
        """The subscriptions with their rows; the right table; where right rows appear alone, how
        many left rows refer to each.
        """
        counted = [self.REFERENCES] if preserved(self.how)[1] else []
        return [self.SUBSCRIPTIONS, self.RIGHT, *counted]


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
class LookedUp:
    """One side of a delta join: ``lookup``, where its rows are found; ``key``: the numbers of its
    primary key's columns among its source's user columns; ``values``: of those that its leaf has as
    values; ``unique``: whether the join key tells its rows apart; ``one_row``: whether an index
    says so; ``deletes``: whether it may have tombstones; ``cache``: how many rows of it a task
    keeps.
    """

    lookup: LookupSource
    key: tuple[int, ...]
    values: tuple[int, ...]
    unique: bool
    one_row: bool
    deletes: bool
    cache: int


@dataclass(frozen=True)
class Settle(Law):
    """The last change of each primary key, whose columns have the numbers ``primary`` among the
    user columns: before a delta join whose left rows may change their join key. ``columns``: what
    the join reads.
    """

    primary: tuple[int, ...]
    columns: tuple[str, ...]

    stateful: ClassVar[bool] = False


@dataclass(frozen=True)
class DeltaJoin(Law):
    """A delta join. ``name``: what its metric is called; ``right_key``: whether the right primary
    key is part of the result's; ``moving``: whether a left row may change its join key.
    """

    name: str
    how: How
    form: Form
    right_key: bool
    moving: bool
    sides: tuple[LookedUp, LookedUp]

    stateful: ClassVar[bool] = False

    @property
    def leaves(self) -> tuple[int, ...]:
        """The left row, then the right one."""
        return (0, 1)

    def key(self, sources: Sources) -> list[pa.Field]:
        """The left side's primary key and, where it does not tell results apart, the right's."""
        sides = self.sides if self.right_key else self.sides[:1]
        return [
            source.fields(source.user_columns)[column]
            for source, side in zip(sources, sides, strict=False)
            for column in side.key
        ]

    def values(self, sources: Sources, leaf: int) -> list[pa.DataType]:
        """The types of the columns that the result needs."""
        held = sources[leaf].fields(sources[leaf].user_columns)
        return [held[column].type for column in self.sides[leaf].values]


@dataclass(frozen=True)
class Retract(Law):
    """A table by primary key, grouped by other columns of it: each record becomes the old row,
    which leaves its group, and the new one, which enters its own.
    """

    def counts(self, sources: Sources) -> list[str]:
        """The rows with a null among the columns that they are grouped by."""
        return [f"{sources[0].name}.null_group"]


@dataclass(frozen=True)
class Column:
    """A result column: its name, the numbers of the value columns that ``kernel`` makes it of."""

    name: str
    values: tuple[int, ...]
    kernel: Aggregate


@dataclass(frozen=True)
class Aggregation(Law):
    """Rows aggregated by key and, where there are ``windows``, by window. ``name``: what errors
    call it; ``retracts``: rows that are ``_deleted`` leave their group; ``timed``: a group has
    changed in a batch where only its time has.
    """

    name: str
    columns: tuple[Column, ...]
    windows: Windows | None = None
    retracts: bool = False
    timed: bool = False

    GROUPS: ClassVar[str] = "groups"
    RECORDS: ClassVar[str] = "records"

    def key(self, sources: Sources) -> list[pa.Field]:
        """What is grouped by, then the bounds of the window."""
        own = super().key(sources)
        if self.windows is None:
            return own
        return own + [pa.field(name, WINDOW_TYPE) for name in (WINDOW_START, WINDOW_END)]

    def values(self, sources: Sources, leaf: int) -> list[pa.DataType]:
        """The types of the aggregates."""
        return [column.kernel.result for column in self.columns]

    @property
    def listed(self) -> list[int]:
        """The columns whose lists may lie in parts: of groups whose rows may leave."""
        columns = enumerate(self.columns) if self.retracts else ()
        return [number for number, column in columns if isinstance(column.kernel, Listing)]

    def lists(self, column: int) -> tuple[str, str]:
        """The stores of a column's long lists: their index, and their parts."""
        name = self.columns[column].name
        return f"{name}: index", f"{name}: parts"

    def stores(self, sources: Sources) -> list[str]:
        """The accumulators; the parts of long lists; of sliding windows the records, too."""
        slides = self.windows is not None and self.windows.kind == "sliding"
        lists = [name for column in self.listed for name in self.lists(column)]
        return [self.GROUPS, *lists, *([self.RECORDS] if slides else [])]

    def counts(self, sources: Sources) -> list[str]:
        """The records that came for a window when it was closed."""
        return [] if self.windows is None else [f"{sources[0].name}.late"]


@dataclass(frozen=True)
class Final(Law):
    """Rows by window: each window's last one, once stream time has reached its end + ``wait_us``;
    ``after``: once it is past that.
    """

    wait_us: int
    after: bool

    OPEN: ClassVar[str] = "open"
    CLOSING: ClassVar[str] = "closing"

    @property
    def due_us(self) -> int:
        """How long after its end a window is emitted."""
        return self.wait_us + self.after

    def stores(self, sources: Sources) -> list[str]:
        """The rows of windows that are open, and these by the time at which they close."""
        return [self.OPEN, self.CLOSING]
