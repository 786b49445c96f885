"""The plan: frozen nodes that say what a topology means, not how it runs.

A node knows its key columns and its value columns with their types, so every mistake in names and
types is found when the node is built. ``plan.stages`` turns nodes into stages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from pyspark.sql.types import (
    ArrayType,
    CalendarIntervalType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VariantType,
    YearMonthIntervalType,
)

from dovetail.columns import CHANGE, POSITION, TIMESTAMP, is_reserved
from dovetail.errors import PlanError
from dovetail.kernels.delta_join import Form
from dovetail.kernels.interval_join import Unmatched
from dovetail.kernels.table_join import How, preserved
from dovetail.lookup.source import LookupSource

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
    or false for an upsert. ``sequence`` with ``log_partition``: the row's place in its input
    partition;
    ``sequence`` alone: its place in one log that all sources share. ``frame`` is None for a table
    that only the test driver feeds. ``lookup``: a store of the same rows, for delta joins;
    ``changes``: which changes the table is said to have, None where nothing is said.
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
        for name in names:
            if is_reserved(name):
                raise PlanError(
                    operator,
                    f"column {name!r} has a name that changelogs use themselves",
                    "Rename it with withColumnRenamed before from_changelog",
                )
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

    node: JoinNode | Materialized

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


@dataclass(frozen=True)
class Verdict:
    """One limitation of delta joins and how a join stands to it: ``limit``, what it is about;
    ``broken``, what is wrong, None where it is met; ``remedy`` for what is wrong, or else ``how``
    it is met.
    """

    limit: str
    broken: str | None
    remedy: str = ""
    how: str = ""


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
    """A join's result with its rows kept in a stage of its own: only what changes a row passes."""

    table: Derived

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


JoinNode: TypeAlias = TableJoin | ForeignKeyJoin | DeltaJoin | StreamTableJoin | StreamJoin
Entry: TypeAlias = Source | Derived
Node: TypeAlias = Entry | JoinNode | Materialized


def right_key(name: str) -> str:
    """The name that a right key column has in the key of a join's result."""
    return f"right_{name}"


def is_stream(node: Node) -> bool:
    """Whether a node's records stand for themselves."""
    if isinstance(node, Entry):
        return node.stream
    return not isinstance(node, (TableJoin, ForeignKeyJoin, DeltaJoin, Materialized))


def is_current(node: Node) -> bool:
    """Whether a node is a table of which each key's last change is its row."""
    return not is_stream(node) and not (isinstance(node, TableJoin) and node.late == "history")


def has_null_keys(node: Node) -> bool:
    """Whether a row's key may have nulls: where right rows of a foreign key appear alone."""
    if isinstance(node, Source):
        return False
    if isinstance(node, Derived):
        return has_null_keys(node.node)
    if isinstance(node, Materialized):
        return has_null_keys(node.table)
    if isinstance(node, ForeignKeyJoin):
        return preserved(node.how)[1] or has_null_keys(node.left)
    if isinstance(node, DeltaJoin):
        alone = node.how != "inner" and node.has_right_key
        return alone or has_null_keys(node.left) or has_null_keys(node.right)
    return has_null_keys(node.left) or has_null_keys(node.right)


def joins(node: Node) -> Iterator[JoinNode]:
    """All joins from which a node is computed, through all stages, itself the last."""
    if isinstance(node, Derived):
        yield from joins(node.node)
    elif isinstance(node, Materialized):
        yield from joins(node.table)
    elif not isinstance(node, Source):
        yield from joins(node.left)
        yield from joins(node.right)
        yield node


def entries(node: Node) -> Iterator[Entry]:
    """What a node's own stage reads, from left to right; what is used twice comes twice."""
    if isinstance(node, Entry):
        yield node
    elif isinstance(node, Materialized):
        yield node.table
    else:
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


def refuse_duplicates(operator: str, names: Sequence[str], remedy: str) -> None:
    """Spark compares column names without case, so ``ID`` and ``id`` are one name."""
    seen: set[str] = set()
    for name in names:
        if name.lower() in seen:
            raise PlanError(operator, f"column {name!r} occurs twice", remedy)
        seen.add(name.lower())


def refuse_key_type(operator: str, key: StructField) -> None:
    """Keys are equal where their bytes are: no maps, variants, intervals of months or collations,
    at any depth.
    """
    offending = next((t for t in _within(key.dataType) if _is_no_key(t)), None)
    if offending is not None:
        raise PlanError(
            operator,
            f"key column {key.name!r} of type {key.dataType.simpleString()} cannot be a key, "
            f"{offending.simpleString()} is not compared by its bytes",
            "Key the table by columns of plain types, for instance by the map's own entries or "
            "by F.lower of a text",
        )


def refuse_value_type(operator: str, value: StructField) -> None:
    """Values travel as Arrow columns, which have no calendar intervals."""
    offending = next((t for t in _within(value.dataType) if isinstance(t, _CALENDAR)), None)
    if offending is not None:
        raise PlanError(
            operator,
            f"column {value.name!r} of type {value.dataType.simpleString()} cannot be carried, "
            f"Spark has no Arrow form of {offending.simpleString()}",
            "Convert it, for instance to a number of months",
        )


def refuse_differing_keys(operator: str, left: Node, right: Node) -> None:
    """Both sides of a join need the same key types, in the same order; names may differ."""
    left_types = [f.dataType for f in left.key]
    right_types = [f.dataType for f in right.key]
    if left_types != right_types:
        raise PlanError(
            operator,
            f"the key of {left.name} is {signature(left.key)}, of {right.name} "
            f"{signature(right.key)}",
            "Cast one side's key columns so that both have the same types in the same order",
        )


def signature(key: StructType) -> str:
    """Columns with their types, as errors show them."""
    return "(" + ", ".join(f"{f.name} {f.dataType.simpleString()}" for f in key) + ")"


_CALENDAR = (CalendarIntervalType, YearMonthIntervalType)


def _is_no_key(type_: DataType) -> bool:
    collated = isinstance(type_, StringType) and not type_.isUTF8BinaryCollation()
    return collated or isinstance(type_, (MapType, VariantType, *_CALENDAR))


def _within(type_: DataType) -> Iterator[DataType]:
    """A type and all types nested in it."""
    yield type_
    if isinstance(type_, ArrayType):
        yield from _within(type_.elementType)
    elif isinstance(type_, MapType):
        yield from _within(type_.keyType)
        yield from _within(type_.valueType)
    elif isinstance(type_, StructType):
        for inner in type_:
            yield from _within(inner.dataType)


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
