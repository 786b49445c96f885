"""The plan: frozen nodes that say what a topology means, not how it runs.

A node knows its key columns and its value columns with their types, so every mistake in names and
types is found when the node is built. This file has what all nodes answer, the inputs, and what
joins share; each kind of node has a file of its own. ``physical.planner`` says how they are run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from operator import and_
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeAlias

from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from dovetail.columns import CHANGE, POSITION, TIMESTAMP, WINDOW_END, WINDOW_START
from dovetail.errors import PlanError
from dovetail.laws.table_join import How, preserved
from dovetail.lookup.source import LookupSource
from dovetail.plan.checks import (
    Verdict,
    refuse_duplicates,
    refuse_key_type,
    refuse_names,
    refuse_value_type,
)
from dovetail.plan.spans import written
from dovetail.plan.windows import Windows

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

Late: TypeAlias = Literal["ignore", "history"]
ChangeKinds: TypeAlias = Literal["insert", "upsert", "all"]
"""Which changes a table may have: ``"insert"``, each key's row comes once and stays; ``"upsert"``,
rows are replaced, too; ``"all"``, they are deleted, too."""
Text: TypeAlias = Callable[["str | Column", StructType], str]
"""The text of a column's name, or of an expression over a row of this schema."""

WINDOW_FIELDS = (
    StructField(WINDOW_START, TimestampType(), False),
    StructField(WINDOW_END, TimestampType(), False),
)


@dataclass(frozen=True, eq=False)
class Node:
    """What all nodes answer. A kind of node overrides what is otherwise with it; by default it is a
    table of which each key's last change is its row.
    """

    if TYPE_CHECKING:

        @property
        def name(self) -> str:
            """What errors call it."""

        @property
        def key(self) -> StructType:
            """The key columns."""

        @property
        def values(self) -> StructType:
            """The value columns."""

    by_key: ClassVar[bool] = False
    """Whether a join by the same key runs it in its own stage."""
    corrects: ClassVar[bool] = False
    """Whether its changes correct a history, so that a key's last one is not its row."""
    eventual: ClassVar[bool] = False
    """Whether its results may be ahead of the records that caused them."""
    expires: ClassVar[bool] = False
    """Whether its rows leave it as stream time passes."""
    has_own_key: ClassVar[bool] = False
    """Whether its stage puts its key out as such, not as its first input's."""

    @property
    def loose(self) -> bool:
        """Whether it is a table with tombstones of keys that may have had no row."""
        return False

    @property
    def title(self) -> str:
        """The name, after ``stream`` or ``table``."""
        return f"{'stream' if self.stream else 'table'} {self.name}"

    @property
    def summary(self) -> str:
        """What ``explain`` calls it."""
        return self.name

    @property
    def inputs(self) -> tuple[Node, ...]:
        """What it is made of, from left to right."""
        return ()

    @property
    def fields(self) -> dict[str, StructField]:
        """The columns, by name."""
        return {f.name: f for f in (*self.key, *self.values)}

    @property
    def row(self) -> StructType:
        """The columns of key and values."""
        return StructType([*self.key.fields, *self.values.fields])

    @property
    def stream(self) -> bool:
        """Whether its records stand for themselves."""
        return False

    @property
    def current(self) -> bool:
        """Whether it is a table of which each key's last change is its row."""
        return not self.stream and not self.corrects

    @property
    def withdraws(self) -> bool:
        """Whether it is a stream that takes records back."""
        return False

    @property
    def versioned_us(self) -> int | None:
        """How far behind stream time it has a history, None for what has none."""
        return None

    @property
    def in_order(self) -> bool:
        """Whether it has a history in which times never go back."""
        return False

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """Where a delta join was tried, how it stands to each of its limitations."""
        return ()

    @property
    def windows(self) -> Windows | None:
        """A windowed table's windows, None for what has none."""
        return None

    @property
    def base_key(self) -> StructType:
        """The key without its window: what a windowed table's rows are partitioned by."""
        return StructType(self.key.fields[: -len(WINDOW_FIELDS)]) if self.windows else self.key

    @property
    def null_keys(self) -> bool:
        """Whether a row's key may have nulls."""
        return any(node.null_keys for node in self.inputs)

    @property
    def timed(self) -> bool:
        """Whether anything in it, through all stages, depends on stream time."""
        return self.windows is not None or any(node.timed for node in self.inputs)

    @property
    def begins(self) -> bool:
        """Whether static tables may give it rows though nothing else comes."""
        return any(node.begins for node in self.inputs)

    @property
    def longest_align_us(self) -> int | None:
        """How long the inputs of its stage wait for each other: the longest that any join says."""
        return None

    @property
    def computes(self) -> bool:
        """Whether a selection of its own stage has expressions, which see which sides are there."""
        return False

    @property
    def entries(self) -> tuple[Entry, ...]:
        """What its own stage reads, from left to right; what is used twice comes twice."""
        return tuple(entry for node in self.inputs for entry in node.entries)

    @property
    def origins(self) -> list[Source]:
        """The sources from which it is computed through all stages, in the order of first use."""
        return list(dict.fromkeys(node for node in self.walk() if isinstance(node, Source)))

    def walk(self) -> Iterator[Node]:
        """All nodes from which it is computed, through all stages, itself the last."""
        for node in self.inputs:
            yield from node.walk()
        yield self

    def read_by(self, entry: Entry) -> tuple[str, ...]:
        """The columns by which its stage reads an entry."""
        return tuple(entry.key.names)

    def keeps(self, entry: Entry) -> bool:
        """Whether an entry's records come out where nothing matches them."""
        return True

    def described(self, describe: Describe, *, whole: bool) -> Mapping[str, Any]:
        """What stored state depends on, as JSON's data; ``whole``: with the columns it makes."""
        raise NotImplementedError


class Describe(Protocol):
    """``plan.fingerprint`` at work on one plan."""

    def __call__(
        self, node: Node, *, whole: bool = False, needed: Collection[str] | None = None
    ) -> Mapping[str, Any]:
        """What a node is made of, described; ``needed``: as in ``View.described``."""

    def text(self, node: Node, item: str | Column, row: StructType) -> str:
        """A name, or the text of an expression over a row."""


@dataclass(frozen=True, eq=False)
class Entry(Node):
    """What a stage reads: a source, another stage's result, or a view of one of them."""

    by_key = True

    @property
    def base(self) -> Source | Derived:
        """The source or the result whose rows it has."""
        raise NotImplementedError

    @property
    def ordered(self) -> bool:
        """Whether its rows have a place in a log that all inputs share."""
        raise NotImplementedError

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Itself."""
        return (self,)


@dataclass(frozen=True, eq=False)
class Source(Entry):
    """A table read from a changelog, where one row of ``frame`` is one upsert or tombstone of a
    key; or a ``stream``, where it is one record.

    ``key`` and ``values``: the columns, in order. ``timestamp``: the event time. ``deleted``: null
    or false for an upsert. ``sequence`` with ``log_partition``: the row's place in its log;
    ``sequence`` alone: its place in one log that all sources share. ``frame`` is None for a table
    that only the test driver feeds; ``static``: whether it is one whose rows are there when a query
    begins, and never change. ``lookup``: a store of the same rows, for delta joins;
    ``changes``: which changes the table is said to have, None where nothing is said;
    ``by_commit``: whether its rows come in the order in which they hold, whatever their times;
    ``time_text``: what ``timestamp`` is by, where the frame has computed it; ``files``:
    whether its rows are read from files, by which they are ordered where nothing else says how;
    ``with_unread``: where it keeps the records that cannot be read, ``frame`` with them as rows,
    whose dead letter is in the column ``_unread``; ``partitioned``: whether it says in which of
    several logs a row lies; ``limited``: whether a micro-batch may leave rows of a log unread;
    ``grows``: whether its columns are those of a registry's latest schema, and may be more when the
    program runs again.
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
    static: bool = False
    versioned_us: int | None = None
    lookup: LookupSource | None = None
    changes: ChangeKinds | None = None
    by_commit: bool = False
    time_text: str | None = None
    files: bool = False
    with_unread: DataFrame | None = None
    partitioned: bool = False
    limited: bool = False
    grows: bool = False

    @property
    def base(self) -> Source:
        """Itself."""
        return self

    @property
    def summary(self) -> str:
        """What ``explain`` calls it."""
        return f"{self.name}, static" if self.static else self.name

    @property
    def begins(self) -> bool:
        """Whether it is static."""
        return self.static

    @property
    def ordered(self) -> bool:
        """Whether its rows have a place in a log that all inputs share."""
        return self.sequence is not None and self.log_partition is None

    @property
    def in_order(self) -> bool:
        """Whether it has a history in which times never go back."""
        return self.versioned_us is not None and self.by_commit

    @property
    def timed(self) -> bool:
        """Whether it has a history, which ends where stream time says."""
        return self.versioned_us is not None

    def __post_init__(self) -> None:
        operator = self.title
        if not self.key.fields:
            raise PlanError(operator, "no key column is given", "Name at least one in key=")
        names = self.row.names
        refuse_names(operator, names, "Rename it with withColumnRenamed before from_changelog")
        refuse_duplicates(operator, names, "Rename one of them before from_changelog")
        for key_field in self.key:
            refuse_key_type(operator, key_field)
        for value_field in self.values:
            refuse_value_type(operator, value_field)


@dataclass(frozen=True, eq=False)
class Rows(Node):
    """What has the rows of another ``node``."""

    node: Node

    @property
    def name(self) -> str:
        """The name of the node."""
        return self.node.name

    @property
    def key(self) -> StructType:
        """The key columns."""
        return self.node.key

    @property
    def values(self) -> StructType:
        """The value columns."""
        return self.node.values

    @property
    def inputs(self) -> tuple[Node, ...]:
        """The node."""
        return (self.node,)


@dataclass(frozen=True)
class Derived(Rows, Entry):
    """A node's result as another stage reads it: the input that a join has in place of a node which
    does not run in its own stage. It has no history.
    """

    @property
    def base(self) -> Derived:
        """Itself."""
        return self

    @property
    def stream(self) -> bool:
        """Whether its records stand for themselves."""
        return self.node.stream

    @property
    def windows(self) -> Windows | None:
        """The node's."""
        return self.node.windows

    @property
    def ordered(self) -> bool:
        """Whether its rows have a place in a log that all inputs share."""
        nodes = list(self.walk())
        return not any(n.eventual for n in nodes) and all(n.ordered for n in self.origins)


@dataclass(frozen=True)
class Selected:
    """One value column of a join's result: ``ref`` names a column of a side as ``left.x``, or
    ``column`` is a Spark expression over the joined row.
    """

    name: str
    ref: tuple[str, str] | None
    column: Column | None = field(default=None, compare=False)


@dataclass(frozen=True, eq=False, kw_only=True)
class Join(Node):
    """What all joins have: two sides, the value columns that are selected from the joined row, and
    ``align_us``, how long a side waits for the other that is behind it. ``verdicts``: where a delta
    join was tried, how the join stands to each of its limitations.
    """

    kind: ClassVar[str]
    """What it joins, for fingerprints."""

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
        """Its label, or what it joins."""
        return self.label or join_name(self.how, self.left, self.right)

    @property
    def summary(self) -> str:
        """What ``explain`` calls it."""
        align = "" if self.align_us is None else f", aligned up to {written(self.align_us)}"
        return f"{self.how} join {self.manner}{align}"

    @property
    def manner(self) -> str:
        """How the sides meet, in words."""
        raise NotImplementedError

    @property
    def key(self) -> StructType:
        """The key columns: the left side's."""
        return self.left.key

    @property
    def inputs(self) -> tuple[Node, ...]:
        """Both sides."""
        return (self.left, self.right)

    @property
    def begins(self) -> bool:
        """Whether static tables may give it rows though nothing else comes."""
        begin = [node.begins for node in self.inputs]
        return all(begin) or any(map(and_, preserved(self.how), begin))

    @property
    def longest_align_us(self) -> int | None:
        """How long the inputs of its stage wait for each other: the longest that any join says."""
        spans = (self.align_us, *(node.longest_align_us for node in self.inputs))
        return max((span for span in spans if span is not None), default=None)

    @property
    def computes(self) -> bool:
        """Whether a selection of its own stage has expressions, which see which sides are there."""
        own = any(s.column is not None for s in self.select)
        return own or any(node.computes for node in self.inputs)

    def keeps(self, entry: Entry) -> bool:
        """Whether an entry's records come out where nothing matches them."""
        return any(
            kept and entry in side.entries and side.keeps(entry)
            for kept, side in zip(preserved(self.how), self.inputs, strict=True)
        )

    def options(self, text: Text) -> Mapping[str, Any]:
        """What stored state depends on besides the sides, as JSON's data."""
        raise NotImplementedError


def join_name(how: How, left: Node, right: Node) -> str:
    """What errors call a join without a label."""
    return f"{how} join of {left.name} and {right.name}"


def right_key(name: str) -> str:
    """The name that a right key column has in the key of a join's result."""
    return f"right_{name}"


def with_right_key(left: StructType, right: StructType) -> StructType:
    """The key of both: the left one's columns, then the right one's under names of their own."""
    theirs = (StructField(right_key(f.name), f.dataType, True) for f in right)
    return StructType([*left.fields, *theirs])


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
