"""The plan: frozen nodes that say what a topology means, not how it runs.

A node knows its key columns and its value columns with their types, so every mistake in names and
types is found when the node is built. ``physical.planner`` says how nodes are run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from pyspark.sql.types import (
    DataType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from dovetail.aggregates.aggregate import Aggregate
from dovetail.columns import CHANGE, POSITION, TIMESTAMP, WINDOW_END, WINDOW_START
from dovetail.errors import PlanError
from dovetail.laws.delta_join import Form
from dovetail.laws.stream_join import Unmatched
from dovetail.laws.table_join import How, preserved
from dovetail.lookup.source import LookupSource
from dovetail.plan.checks import (
    Verdict,
    refuse_duplicates,
    refuse_key_type,
    refuse_names,
    refuse_value_type,
)
from dovetail.plan.windows import Windows

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


Late: TypeAlias = Literal["ignore", "history"]
ChangeKinds: TypeAlias = Literal["insert", "upsert", "all"]
"""Which changes a table may have: ``"insert"``, each key's row comes once and stays; ``"upsert"``,
rows are replaced, too; ``"all"``, they are deleted, too."""


@dataclass(frozen=True, eq=False)
class Source:
    """A table read from a changelog, where one row of ``frame`` is one upsert or tombstone of a
    key; or a ``stream``, where it is one record.

    ``key`` and ``values``: the columns, in order. ``timestamp``: the event time. ``deleted``: null
    or false for an upsert. ``sequence`` with ``log_partition``: the row's place in its log;
    ``sequence`` alone: its place in one log that all sources share. ``frame`` is None for a table
    that only the test driver feeds. ``lookup``: a store of the same rows, for delta joins;
    ``changes``: which changes the table is said to have, None where nothing is said; ``files``:
    whether its rows are read from files, by which they are ordered where nothing else says how.
    """

    name: str
    key: StructType
    values: StructType
    frame: DataFrame | None = None
    timestamp: Column | None = None
    deleted: Column | None = None
    sequence: Column | None = None
    log_partition: Column | None = None
    stream: bool = False
    versioned_us: int | None = None
    lookup: LookupSource | None = None
    changes: ChangeKinds | None = None
    files: bool = False

    @property
    def title(self) -> str:
        """What errors call it."""
        return f"{'stream' if self.stream else 'table'} {self.name}"

    @property
    def ordered(self) -> bool:
        """Whether its rows have a place in a log that all inputs share."""
        return self.sequence is not None and self.log_partition is None

    def __post_init__(self) -> None:
        operator = self.title
        if not self.key.fields:
            raise PlanError(operator, "no key column is given", "Name at least one in key=")
        names = [*self.key.names, *self.values.names]
        refuse_names(operator, names, "Rename it with withColumnRenamed before from_changelog")
        refuse_duplicates(operator, names, "Rename one of them before from_changelog")
        for key_field in self.key:
            refuse_key_type(operator, key_field)
        for value_field in self.values:
            refuse_value_type(operator, value_field)


@dataclass(frozen=True)
class Derived:
    """A node's result as another stage reads it: the input that a join has in place of a node which
    does not run in its own stage.
    """

    node: Computed

    @property
    def name(self) -> str:
        """What errors call it."""
        return self.node.name

    @property
    def title(self) -> str:
        """What errors call it, with its kind."""
        return f"{'stream' if self.stream else 'table'} {self.name}"

    @property
    def key(self) -> StructType:
        """The key columns."""
        return self.node.key

    @property
    def values(self) -> StructType:
        """The value columns."""
        return self.node.values

    @property
    def stream(self) -> bool:
        """Whether its records stand for themselves."""
        return is_stream(self.node)

    @property
    def versioned_us(self) -> None:
        """A result has no history."""
        return None

    @property
    def ordered(self) -> bool:
        """Whether its rows have a place in a log that all inputs share."""
        looked_up = any(isinstance(join, DeltaJoin) for join in joins(self.node))
        return not looked_up and all(source.ordered for source in origins(self.node))


@dataclass(frozen=True)
class Selected:
    """One value column of a join's result: ``ref`` names a column of a side as ``left.x``, or
    ``column`` is a Spark expression over the joined row.
    """

    name: str
    ref: tuple[str, str] | None
    column: Column | None = field(default=None, compare=False)


@dataclass(frozen=True, eq=False, kw_only=True)
class _Join:
    """What all joins have: two sides, the value columns that are selected from the joined row, and
    ``align_us``, how long a side waits for the other that is behind it. ``verdicts``: where a delta
    join was tried, how the join stands to each of its limitations.
    """

    left: Node
    right: Node
    how: How
    select: tuple[Selected, ...]
    values: StructType
    align_us: int | None = None
    label: str | None = None
    verdicts: tuple[Verdict, ...] = ()

    @property
    def name(self) -> str:
        """What errors call it: its label, or what it joins."""
        return self.label or f"{self.how} join of {self.left.name} and {self.right.name}"

    @property
    def key(self) -> StructType:
        """The key columns: the left side's."""
        return self.left.key


@dataclass(frozen=True, eq=False, kw_only=True)
class TableJoin(_Join):
    """A primary-key join of two tables."""

    late: Late = "ignore"


@dataclass(frozen=True, eq=False, kw_only=True)
class ForeignKeyJoin(_Join):
    """Rows of the left table, each with the right row whose key is the left row's foreign key:
    ``on``, columns of the left row or expressions over it.

    A right row that no left row refers to has a result of its own where the right side is
    preserved. Then the key is the pair of both keys, and of each result one of them is null.
    """

    left: Entry
    right: Entry
    on: tuple[str | Column, ...]

    @property
    def fallible(self) -> bool:
        """Whether the foreign key may fail on a row: an expression can, a column cannot."""
        return any(not isinstance(item, str) for item in self.on)

    @property
    def key(self) -> StructType:
        """The left side's key and, where right rows appear alone, theirs."""
        if not preserved(self.how)[1]:
            return self.left.key
        theirs = (StructField(right_key(f.name), f.dataType, True) for f in self.right.key)
        return StructType([*self.left.key.fields, *theirs])


@dataclass(frozen=True, eq=False, kw_only=True)
class StreamTableJoin(_Join):
    """A stream, the left side, joined with a table. ``on``: the left columns that are looked up;
    the result keeps the left side's key. ``grace_us``: how long, in stream time, a record waits.
    """

    on: tuple[str, ...]
    grace_us: int | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class StreamJoin(_Join):
    """Two streams, or one with itself, joined where L.ts - before <= R.ts <= L.ts + after."""

    before_us: int
    after_us: int
    grace_us: int
    unmatched: Unmatched


@dataclass(frozen=True, eq=False, kw_only=True)
class DeltaJoin(_Join):
    """Two tables joined without state, each looked up where the other changes. ``on``: the left and
    the right column of each part of the join key; ``form``: what the result's key is; ``cache``:
    how many rows of each side a task keeps between batches.
    """

    left: Entry
    right: Entry
    on: tuple[tuple[str, str], ...]
    form: Form
    cache: tuple[int, int]

    @property
    def key(self) -> StructType:
        """The left side's key and, where it does not tell the results apart, the right side's."""
        if not self.has_right_key:
            return self.left.key
        theirs = (StructField(right_key(f.name), f.dataType, True) for f in self.right.key)
        return StructType([*self.left.key.fields, *theirs])

    @property
    def has_right_key(self) -> bool:
        """Whether the right side's key is part of the result's."""
        return self.form == "pair" or (self.form == "left" and preserved(self.how)[1])


@dataclass(frozen=True, eq=False)
class Materialized:
    """A table with its rows kept in a stage of its own: only what changes a row passes."""

    table: Entry

    @property
    def name(self) -> str:
        """What errors call it."""
        return self.table.name

    @property
    def key(self) -> StructType:
        """The key columns."""
        return self.table.key

    @property
    def values(self) -> StructType:
        """The value columns."""
        return self.table.values


@dataclass(frozen=True)
class Aggregated:
    """One column of an aggregate: what the kernel makes of the ``columns`` of each row."""

    name: str
    columns: tuple[str, ...]
    kernel: Aggregate
    type: DataType


@dataclass(frozen=True, eq=False, kw_only=True)
class Aggregation:
    """A table: the rows of a table, or the records of a stream, grouped by the columns ``by``; of
    a stream also by ``windows`` of time, each a row of its own.
    """

    input: Entry
    by: tuple[str, ...]
    columns: tuple[Aggregated, ...]
    windows: Windows | None = None
    label: str | None = None

    @property
    def name(self) -> str:
        """What errors call it: its label, or what it aggregates."""
        return self.label or f"aggregate of {self.input.name} by {', '.join(self.by)}"

    @property
    def key(self) -> StructType:
        """The columns it is grouped by, then, where there are windows, their start and end."""
        known = {f.name: f for f in (*self.input.key, *self.input.values)}
        own = [known[name] for name in self.by]
        return StructType([*own, *(WINDOW_FIELDS if self.windows is not None else ())])

    @property
    def values(self) -> StructType:
        """The aggregates."""
        return StructType([StructField(c.name, c.type, True) for c in self.columns])


@dataclass(frozen=True, eq=False, kw_only=True)
class WindowJoin(_Join):
    """A join in which at least one side has windows, in the stage of the key alone.

    Both have: rows of the same window meet, the right one's begins ``shift_us`` later. One has: a
    windowed left side's rows meet the row of their key; a left side without windows says with
    ``window_of`` where the window begins in which it looks.
    """

    left: Entry
    right: Entry
    shift_us: int = 0
    window_of: str | Column | None = None

    @property
    def windows(self) -> Windows | None:
        """The result's windows: closed when those of both sides are."""
        left, right = windows_of(self.left), windows_of(self.right)
        if left is None or right is None:
            return left
        return replace(
            left,
            grace_us=max(left.grace_us, right.grace_us + self.shift_us),
            retention_us=min(left.retention_us, right.retention_us - self.shift_us),
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class Unwindowed:
    """What a windowed table is read as: its changes, or with ``final`` each window's last row once
    it is closed, under the columns ``key`` and ``values``, each made of the columns that
    ``columns`` names or computes.
    """

    input: Derived
    key: StructType
    values: StructType
    columns: tuple[str | Column, ...]
    stream: bool
    final: bool

    @property
    def name(self) -> str:
        """What errors call it."""
        return self.input.name


JoinNode: TypeAlias = (
    TableJoin | ForeignKeyJoin | DeltaJoin | StreamTableJoin | StreamJoin | WindowJoin
)
Computed: TypeAlias = JoinNode | Materialized | Aggregation | Unwindowed
Entry: TypeAlias = Source | Derived
Node: TypeAlias = Entry | Computed

WINDOW_FIELDS = (
    StructField(WINDOW_START, TimestampType(), False),
    StructField(WINDOW_END, TimestampType(), False),
)


def windows_of(node: Node) -> Windows | None:
    """A windowed table's windows, None for what has none."""
    if isinstance(node, Derived):
        return windows_of(node.node)
    return node.windows if isinstance(node, (Aggregation, WindowJoin)) else None


def base_key(node: Node) -> StructType:
    """The key without its window: what a windowed table's rows are partitioned by."""
    fields = node.key.fields
    return StructType(fields[: -len(WINDOW_FIELDS)] if windows_of(node) else fields)


def single_input(node: Node) -> Entry | None:
    """The input of a node that has one and is not one itself."""
    if isinstance(node, Materialized):
        return node.table
    return node.input if isinstance(node, (Aggregation, Unwindowed)) else None


def right_key(name: str) -> str:
    """The name that a right key column has in the key of a join's result."""
    return f"right_{name}"


def is_stream(node: Node) -> bool:
    """Whether a node's records stand for themselves."""
    if isinstance(node, (Source, Derived, Unwindowed)):
        return node.stream
    if isinstance(node, WindowJoin):
        return is_stream(node.left)
    return isinstance(node, (StreamTableJoin, StreamJoin))


def is_current(node: Node) -> bool:
    """Whether a node is a table of which each key's last change is its row."""
    return not is_stream(node) and not (isinstance(node, TableJoin) and node.late == "history")


def has_null_keys(node: Node) -> bool:
    """Whether a row's key may have nulls: where right rows of a foreign key appear alone."""
    if isinstance(node, Source):
        return False
    if isinstance(node, Derived):
        return has_null_keys(node.node)
    if isinstance(node, ForeignKeyJoin):
        return preserved(node.how)[1] or has_null_keys(node.left)
    if isinstance(node, DeltaJoin):
        alone = node.how != "inner" and node.has_right_key
        return alone or has_null_keys(node.left) or has_null_keys(node.right)
    if isinstance(node, JoinNode):
        return has_null_keys(node.left) or has_null_keys(node.right)
    return isinstance(node, Materialized) and has_null_keys(node.table)


def joins(node: Node) -> Iterator[JoinNode]:
    """All joins from which a node is computed, through all stages, itself the last."""
    only = node.node if isinstance(node, Derived) else single_input(node)
    if only is not None:
        yield from joins(only)
    elif isinstance(node, JoinNode):
        yield from joins(node.left)
        yield from joins(node.right)
        yield node


def entries(node: Node) -> Iterator[Entry]:
    """What a node's own stage reads, from left to right; what is used twice comes twice."""
    only = node if isinstance(node, Entry) else single_input(node)
    if only is not None:
        yield only
    else:
        assert isinstance(node, JoinNode)
        yield from entries(node.left)
        yield from entries(node.right)


def width(node: Node) -> int:
    """How many inputs a node's stage reads, counting one that is used twice twice."""
    return sum(1 for _ in entries(node))


def distinct_entries(node: Node) -> list[Entry]:
    """What a node's own stage reads, each once, in the order of first use."""
    return list(dict.fromkeys(entries(node)))


def origins(node: Node) -> list[Source]:
    """The sources from which a node is computed through all stages, in the order of first use."""
    found: dict[Source, None] = {}
    for entry in entries(node):
        found |= dict.fromkeys(origins(entry.node) if isinstance(entry, Derived) else [entry])
    return list(found)


def changelog_schema(node: Node) -> StructType:
    """The columns of a changelog: key, values, ``_change``, ``_timestamp``, ``_position``."""
    return StructType(
        [
            *node.key.fields,
            *(StructField(f.name, f.dataType, True) for f in node.values),
            StructField(CHANGE, StringType(), False),
            StructField(TIMESTAMP, TimestampType(), False),
            StructField(POSITION, LongType(), False),
        ]
    )
