"""What a stage computes, as plain data that travels to the workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

import pyarrow as pa

from dovetail.arguments import Rule
from dovetail.columns import (
    CLOCK,
    DELETED,
    EPOCH,
    EVENT_TIME,
    FILE,
    FILE_BLOCK,
    FILE_PATH,
    FILE_TIME,
    INSTRUCTION,
    LOG_PARTITION,
    ORDER,
    PLACE,
    POSITION,
    SEQUENCE,
    VISIBLE,
    WINDOW_END,
    WINDOW_START,
    key_name,
    value_name,
)
from dovetail.kernels.aggregates import Aggregate
from dovetail.kernels.delta_join import Form
from dovetail.kernels.interval_join import Unmatched
from dovetail.kernels.table_join import How, Tree, leaves, preserved
from dovetail.lookup.source import LookupSource
from dovetail.plan.windows import Windows

Emit: TypeAlias = Annotated[
    Literal["change", "batch"],
    Rule("'change' or 'batch' ('final' is an argument of a windowed table's to_table())"),
]
Buckets: TypeAlias = Annotated[
    int, Rule("a whole number from 1 to 65536", lambda n: 1 <= n <= 1 << 16)
]
WINDOW_TYPE = pa.timestamp("us", "UTC")


@dataclass(frozen=True)
class SourceSpec:
    """An input of a stage: its name, and the columns ``_hash``, ``_event_time``, ``_deleted``,
    keys, values; then, in a batch, ``_sequence`` and ``_log_partition`` where the source names
    them.

    ``stream``: whether it is a stream, whose records without a value are dropped but where
    ``valueless``; ``null_keys``: whether records with a null in the key travel; ``keeps_time``:
    whether even those that no join can use do, because they move stream time; ``versioned_us``: the
    history retention of a versioned table; ``retention_us``: how far behind stream time the windows
    may be whose rows are kept, by their column ``window``, None where rows have no windows;
    ``subscribed``: whether its rows
    are subscriptions by foreign key, which have ``_place``, ``_epoch`` and ``_instruction``, too;
    ``regrouped``: whether they are a table's rows as they enter and leave groups, which have
    ``_instruction``; ``fallible``: whether its foreign key may fail on a row, which a last column
    says until the row is packed; ``primary``: columns that may not be null besides the key.

    Arrival: ``files``: whether its rows are ordered by the files that they are read from;
    ``origin``: its number among the topology's sources; ``clocked``: whether pack gives its rows
    their clocks, and where ``numbered`` their places; ``carries``: the columns that rows of another
    stage bring instead; ``stairs``: whether all buckets hear how its stream time rises.
    """

    name: str
    schema: pa.Schema
    sequence: bool = False
    log_partition: bool = False
    stream: bool = False
    valueless: bool = False
    null_keys: bool = False
    keeps_time: bool = False
    versioned_us: int | None = None
    retention_us: int | None = None
    window: str = WINDOW_START
    subscribed: bool = False
    regrouped: bool = False
    fallible: bool = False
    primary: tuple[str, ...] = ()
    files: bool = False
    origin: int = 0
    clocked: bool = False
    numbered: bool = False
    carries: tuple[str, ...] = ()
    stairs: bool = False

    @property
    def title(self) -> str:
        """What errors call it."""
        return f"{'stream' if self.stream else 'table'} {self.name}"

    @property
    def wire_schema(self) -> pa.Schema:
        """The columns of a batch's rows."""
        given = (
            (CLOCK, self.clocked),
            (ORDER, self.numbered and not self.log_partition),
            (FILE, self.files),
        )
        return self.schema_with([*self._brought, *(name for name, has in given if has)])

    @property
    def travel_schema(self) -> pa.Schema:
        """The columns of rows on their way to pack."""
        schema = self.schema_with(self._brought)
        if not self.files:
            return schema
        places = [(FILE_TIME, pa.int64()), (FILE_PATH, pa.string()), (FILE_BLOCK, pa.int64())]
        return pa.schema([*schema, *(pa.field(*place) for place in places)])

    @property
    def _brought(self) -> list[str]:
        """The numbers that rows come with."""
        brought = (
            (PLACE, self.subscribed),
            (EPOCH, self.subscribed),
            (INSTRUCTION, self.subscribed or self.regrouped),
            (SEQUENCE, self.sequence),
            (LOG_PARTITION, self.log_partition),
        )
        return [*(name for name, has in brought if has), *self.carries]

    def schema_with(self, numbers: Sequence[str]) -> pa.Schema:
        """The stored columns and, after them, these of int64."""
        return pa.schema([*self.schema, *(pa.field(name, pa.int64()) for name in numbers)])

    @property
    def ordered(self) -> bool:
        """Whether its rows have a place in a log that all inputs share."""
        return self.sequence and not self.log_partition


@dataclass(frozen=True)
class TableTree:
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
class Lookup:
    """A stream, the first leaf, joined with tables; only the stream's records are answered, after
    ``grace_us`` of stream time where it is given.
    """

    tree: Tree
    grace_us: int | None = None

    @property
    def leaves(self) -> tuple[int, ...]:
        """The source of each leaf."""
        return tuple(leaves(self.tree))


@dataclass(frozen=True)
class Interval:
    """Two streams, or one with itself, joined where L.ts - before <= R.ts <= L.ts + after."""

    leaves: tuple[int, int]
    how: How
    before_us: int
    after_us: int
    grace_us: int
    unmatched: Unmatched


@dataclass(frozen=True)
class Histories:
    """Two versioned tables joined over all of their history."""

    leaves: tuple[int, int]
    how: How


@dataclass(frozen=True)
class Subscribe:
    """A table by primary key, whose values begin with the foreign key's hash and its ``foreign``
    columns: each record becomes what it says to the former and to the present foreign key.
    """

    foreign: int
    how: How

    leaves: tuple[int, ...] = (0,)


@dataclass(frozen=True)
class ForeignKey:
    """Subscriptions by foreign key, whose values begin with the ``primary`` columns of the primary
    key, and the table that they refer to.
    """

    primary: int
    how: How

    leaves: tuple[int, ...] = (0, 1)


@dataclass(frozen=True)
class LookedUp:
    """One side of a delta join: ``lookup``, where its rows are found; ``key``: the numbers of its
    primary key's columns in its source's schema; ``values``: of the columns that its leaf has as
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
class Eventual:
    """A delta join. ``name``: what its metric is called; ``right_key``: whether the right primary
    key is part of the result's; ``moving``: whether a left row may change its join key, so that
    its changes first meet by primary key.
    """

    name: str
    how: How
    form: Form
    right_key: bool
    moving: bool
    sides: tuple[LookedUp, LookedUp]

    leaves: tuple[int, ...] = (0, 1)


@dataclass(frozen=True)
class Regroup:
    """A table by primary key, whose values begin with the hash of the columns that it is grouped by
    and those ``foreign`` columns: each record becomes the old row, which leaves its group, and the
    new one, which enters its own.
    """

    foreign: int

    leaves: tuple[int, ...] = (0,)


@dataclass(frozen=True)
class Column:
    """A result column: its name, the numbers of the value columns that ``kernel`` makes it of."""

    name: str
    values: tuple[int, ...]
    kernel: Aggregate


@dataclass(frozen=True)
class Gather:
    """Rows gathered by key and, where there are ``windows``, by window. ``name``: what errors call
    it; ``retracts``: rows that are ``_deleted`` leave their group; ``timed``: a group has changed
    in a batch where only its time has.
    """

    name: str
    columns: tuple[Column, ...]
    windows: Windows | None = None
    retracts: bool = False
    timed: bool = False

    leaves: tuple[int, ...] = (0,)


@dataclass(frozen=True)
class Final:
    """Rows by window: each window's last one, once stream time has reached its end + ``wait_us``;
    ``after``: once it is past that.
    """

    wait_us: int
    after: bool

    leaves: tuple[int, ...] = (0,)


@dataclass(frozen=True)
class Feed:
    """How the rows of a step's source are made: those of input ``number``, or of an earlier
    ``step``. ``columns``: per column after the first three and ``_foreign`` its name there, and how
    many microseconds are added to it; ``rehashed``: the hash is that of the source's own key;
    ``foreign``: after the key come ``_foreign`` and so many columns of which it is the hash;
    ``looks``: the last key columns name one of these windows, null where they do not or it is no
    longer kept.
    """

    number: int
    step: bool
    columns: tuple[tuple[str, int], ...]
    rehashed: bool = True
    foreign: int = 0
    looks: Windows | None = None


@dataclass(frozen=True)
class Step:
    """A stage within a stage. ``feeds``: per source of ``spec``; ``clocks``: the inputs by whose
    time its windows close, the slowest of them.
    """

    spec: StageSpec
    feeds: tuple[Feed, ...]
    clocks: tuple[int, ...]


@dataclass(frozen=True)
class Steps:
    """Several steps on the rows of one bucket, without a shuffle between them."""

    steps: tuple[Step, ...]

    leaves: tuple[int, ...] = ()


Operator: TypeAlias = (
    TableTree
    | Lookup
    | Interval
    | Histories
    | Subscribe
    | ForeignKey
    | Eventual
    | Regroup
    | Gather
    | Final
    | Steps
)


@dataclass(frozen=True)
class StageSpec:
    """A stage. ``topology``: the fingerprint that its state is bound to; ``buckets``: how many
    share the key space; ``keys``: the number of key columns, which every source has in the same
    order and types; ``operator``: what it does with ``sources``; ``align_us``: how long, by the
    wall clock, a source waits for another that is behind it; ``visible``: whether the output has
    the column ``_visible``; ``feeds``: for the stage that reads it, the columns that say of each
    row which record caused it: ``_sequence``, its place in the shared log; or ``_clock`` and
    ``_order``; and ``_stream_time``, less ``holds_us``, the longest that a result is held back.
    ``title`` and ``key_names``: what errors call it and its key.
    """

    topology: str
    buckets: int
    sources: tuple[SourceSpec, ...]
    keys: int
    operator: Operator
    emit: Emit
    visible: bool = True
    align_us: int | None = None
    feeds: tuple[str, ...] = ()
    holds_us: int = 0
    title: str = "stage"
    key_names: tuple[str, ...] = ()

    @property
    def key_columns(self) -> range:
        """The numbers of the key columns in every source's schema."""
        return range(3, 3 + self.keys)

    def value_fields(self, source: int) -> range:
        """The numbers of a source's value columns in its schema."""
        return range(3 + self.keys, len(self.sources[source].schema))

    @property
    def told_key(self) -> list[pa.Field]:
        """The key columns of a change."""
        own = [self.sources[0].schema.field(column) for column in self.key_columns]
        if isinstance(self.operator, Gather) and self.operator.windows is not None:
            return own + [pa.field(name, WINDOW_TYPE) for name in (WINDOW_START, WINDOW_END)]
        if isinstance(self.operator, Eventual):
            sides = self.operator.sides if self.operator.right_key else self.operator.sides[:1]
            return [
                self.sources[number].schema.field(column)
                for number, side in enumerate(sides)
                for column in side.key
            ]
        if not isinstance(self.operator, ForeignKey):
            return own
        values = self.value_fields(0)
        primary = [self.sources[0].schema.field(n) for n in values[: self.operator.primary]]
        theirs = [self.sources[1].schema.field(column) for column in self.key_columns]
        return primary + (theirs if preserved(self.operator.how)[1] else [])

    def told_values(self, leaf: int) -> list[pa.DataType]:
        """The types of a leaf's values in a change."""
        if isinstance(self.operator, Gather):
            return [column.kernel.result for column in self.operator.columns]
        if isinstance(self.operator, Eventual):
            held = self.sources[leaf].schema
            return [held.field(column).type for column in self.operator.sides[leaf].values]
        source = self.operator.leaves[leaf]
        values = self.value_fields(source)
        if isinstance(self.operator, ForeignKey):
            # The right row's own key is a value here, for the row may be missing.
            values = values[self.operator.primary :] if leaf == 0 else range(3, values.stop)
        return [self.sources[source].schema.field(column).type for column in values]

    @property
    def output_schema(self) -> pa.Schema:
        """Keys as ``_k<number>``; per leaf its values as ``_<leaf>_<number>``; then ``_deleted``,
        ``_event_time``, ``_position`` and, where there are any, ``_visible``, a bit per leaf
        whether it contributes a row, and ``_sequence``.
        """
        if isinstance(self.operator, Steps):
            return self.operator.steps[-1].spec.output_schema
        fields = [field.with_name(key_name(n)) for n, field in enumerate(self.told_key)]
        for leaf in range(len(self.operator.leaves)):
            for number, type_ in enumerate(self.told_values(leaf)):
                fields.append(pa.field(value_name(leaf, number), type_))
        fields += [
            pa.field(DELETED, pa.bool_()),
            pa.field(EVENT_TIME, pa.int64()),
            pa.field(POSITION, pa.int64()),
        ]
        if self.visible:
            fields.append(pa.field(VISIBLE, pa.int64()))
        fields += [pa.field(name, pa.int64()) for name in self.feeds]
        return pa.schema(fields)
