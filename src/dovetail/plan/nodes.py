"""The plan: frozen nodes that say what a topology means, not how it runs.

A node knows the names and types of its key and value columns. Mistakes in names and types are
therefore found when the node is built. This module has the base class of all nodes, the inputs, and
the base class of joins. Each other kind of node has a module of its own. ``physical.planner``
decides how nodes run.

Terms: an *upsert* sets a key's row, and a *tombstone* deletes it. *Stream time* is the highest
event time seen so far. The nodes that run as one step form a *stage*.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from operator import and_
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeAlias

from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from dovetail.base.columns import CHANGE, POSITION, TIMESTAMP, WINDOW_END, WINDOW_START
from dovetail.errors import PlanError
from dovetail.laws.joins.table_join import How, sides_preserved
from dovetail.lookup_sources.source import LookupSource
from dovetail.plan.types.checks import (
    Verdict,
    refuse_duplicates,
    refuse_key_type,
    refuse_names,
    refuse_value_type,
)
from dovetail.plan.types.spans import span_as_text
from dovetail.plan.types.windows import Windows

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

Late: TypeAlias = Literal["ignore", "history"]
"""Treatment of late records by a join of tables: ``"ignore"`` leaves past results as they are,
``"history"`` corrects them.
"""
ChangeKinds: TypeAlias = Literal["insert", "upsert", "all"]
"""The changes a table may have. ``"insert"``: each key's row comes once and stays. ``"upsert"``:
rows are also replaced. ``"all"``: rows are also deleted.
"""
Text: TypeAlias = Callable[["str | Column", StructType], str]
"""A function from a column name or an expression, and the schema of its row, to its text."""

WINDOW_FIELDS = (
    StructField(WINDOW_START, TimestampType(), False),
    StructField(WINDOW_END, TimestampType(), False),
)
"""The two key columns of a windowed table: start and end of the window."""


@dataclass(frozen=True, eq=False)
class Node:
    """Base class of all nodes. The defaults describe a table whose current row is each key's last
    change.
    """

    if TYPE_CHECKING:

        @property
        def name(self) -> str:
            """The name of the node in errors and ``explain``; it need not be unique."""

        @property
        def key(self) -> StructType:
            """The key columns, in order; at least one."""

        @property
        def values(self) -> StructType:
            """The value columns, in order; there may be none."""

    by_key: ClassVar[bool] = False
    """True if a join by the same key runs this node in the join's own stage."""
    corrects: ClassVar[bool] = False
    """True for a join of histories (``late="history"``), which emits corrections of past rows. A
    key's last change need not be its current row then.
    """
    eventual: ClassVar[bool] = False
    """True if results may be ahead of the records that caused them."""
    expires: ClassVar[bool] = False
    """True if rows leave the table as stream time passes."""
    patches: ClassVar[bool] = False
    """True if records may be parts of rows, so that the last record of a key is not its row."""
    has_own_key: ClassVar[bool] = False
    """True if the stage emits this node's own key, not the key of its first input."""

    @property
    def emits_spurious_tombstones(self) -> bool:
        """True for a table whose computation may add tombstones of keys that had no row. This base
        class returns False.
        """
        return False

    @property
    def title(self) -> str:
        """The name after the word ``stream`` or ``table``, for errors: ``table orders``."""
        return f"{'stream' if self.stream else 'table'} {self.name}"

    @property
    def summary(self) -> str:
        """The line of text that describes the node in ``explain``, by default its name."""
        return self.name

    @property
    def inputs(self) -> tuple[Node, ...]:
        """The nodes that this node is computed from, from left to right; empty for a source."""
        return ()

    @property
    def fields(self) -> dict[str, StructField]:
        """The fields of the key and value columns by their names, key columns first."""
        return {f.name: f for f in (*self.key, *self.values)}

    @property
    def row(self) -> StructType:
        """The schema of the node's rows: the key columns, then the value columns."""
        return StructType([*self.key.fields, *self.values.fields])

    @property
    def stream(self) -> bool:
        """True for a stream, in which each record stands for itself and replaces none. This base
        class returns False: a table.
        """
        return False

    @property
    def current(self) -> bool:
        """True for a table in which each key's last change is its current row. False for a stream,
        and for a join of histories (``corrects``), which also emits corrections of past rows.
        """
        return not self.stream and not self.corrects

    @property
    def withdraws(self) -> bool:
        """True for a stream that may withdraw records it has emitted by later ones (retractions): a
        join of streams with ``unmatched="retract"``. This base class returns False.
        """
        return False

    @property
    def closes(self) -> bool:
        """True if results come as stream time closes windows. This base class returns False."""
        return False

    @property
    def versioned_us(self) -> int | None:
        """The length of the node's history in microseconds behind stream time, for a versioned
        table. None without a history, as in this base class.
        """
        return None

    @property
    def in_order(self) -> bool:
        """True if the node has a history and the changes of a key take effect in the order in which
        they arrive. A change with an older time than the key's latest version then takes effect at
        that version's time. This base class returns False.
        """
        return False

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """The verdict on each limitation of a delta join (a join by lookups, without state), in the
        order of the checks. Each has the limitation's name (``limit``) and the problem
        (``broken``), None if the limitation is met. Empty if no delta join was tried, and for all
        nodes but joins.
        """
        return ()

    @property
    def windows(self) -> Windows | None:
        """The kind and the spans of a windowed table's windows (size, advance, grace period,
        retention). None without windows, as in this base class.
        """
        return None

    @property
    def base_key(self) -> StructType:
        """The key without its two last columns, ``window_start`` and ``window_end``; without
        windows, the whole key. Rows are partitioned by this key.
        """
        return StructType(self.key.fields[: -len(WINDOW_FIELDS)]) if self.windows else self.key

    @property
    def null_keys(self) -> bool:
        """True if a row's key may contain nulls. By default, this is so if the key of an input may;
        False for a source.
        """
        return any(node.null_keys for node in self.inputs)

    @property
    def timed(self) -> bool:
        """True if the results of this node, or of any node below it, depend on stream time. By
        default, those of windowed tables do.
        """
        return self.windows is not None or any(node.timed for node in self.inputs)

    @property
    def may_start_with_rows(self) -> bool:
        """True if static tables alone may give the node rows, before any other input arrives. By
        default, static rows of any one input suffice.
        """
        return any(node.may_start_with_rows for node in self.inputs)

    @property
    def longest_align_us(self) -> int | None:
        """The longest ``align=`` among the joins of the node's stage, in microseconds: the time for
        which inputs wait for each other. None without one, as in this base class.
        """
        return None

    @property
    def selects_expressions(self) -> bool:
        """True if a join of the node's stage selects Spark expressions, whose value may depend on
        which sides are present. This base class returns False.
        """
        return False

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The inputs of the stage that runs the node, from left to right. An input used twice comes
        twice.
        """
        return tuple(entry for node in self.inputs for entry in node.entries)

    @property
    def origins(self) -> list[Source]:
        """The sources below this node, through all stages, each once, in the order of first use;
        the node itself if it is a source.
        """
        return list(dict.fromkeys(node for node in self.walk() if isinstance(node, Source)))

    def walk(self) -> Iterator[Node]:
        """Yield all nodes below this one, through all stages, inputs first and this node last. A
        node used twice comes twice.
        """
        for node in self.inputs:
            yield from node.walk()
        yield self

    def walk_stage(self) -> Iterator[Node]:
        """Yield this node first, then the nodes below it in the same stage, at any depth, down to
        the stage's inputs (``entries``). A node used twice comes twice.
        """
        yield self
        for node in self.inputs:
            yield from node.walk_stage()

    def read_by(self, entry: Entry) -> tuple[str, ...]:
        """Return the names of the columns by which the node's stage partitions the rows of
        ``entry``, one of ``entries``, in order. By default, these are all of its key columns.
        """
        return tuple(entry.key.names)

    def keeps_unmatched(self, entry: Entry) -> bool:
        """Return True if records of ``entry``, one of ``entries``, appear in the result even if
        nothing matches them. By default True, as a node that is no join matches nothing.
        """
        return True

    def state_properties(self, describe: Describe, *, whole: bool) -> Mapping[str, Any]:
        """Return, as JSON data, the properties of the node, and of all nodes below it, that stored
        state depends on. A checkpoint recognizes its topology by a hash of this data, the
        fingerprint.

        ``describe``: returns such data of a node below, and the text of an expression. ``whole``:
        True to include the columns that the node makes. State does not depend on them if the node
        is a topology's last one. Raises ``NotImplementedError`` unless the kind of node overrides
        it.
        """
        raise NotImplementedError


class Describe(Protocol):
    """Callback that describes the nodes of one plan. ``plan.fingerprint`` implements it."""

    def __call__(
        self, node: Node, *, whole: bool = False, needed: Collection[str] | None = None
    ) -> Mapping[str, Any]:
        """Return, as JSON data, all that stored state depends on in ``node`` and the nodes below.

        ``whole``: True to include the columns that selections make. ``needed``: for a view or a
        source, the names of the columns that are read, None for all; the others may be left out.
        """

    def text(self, node: Node, item: str | Column, row: StructType) -> str:
        """Return the text of ``item``: a column name, or an expression of ``node`` over a row of
        schema ``row``. The text is the same in every process.
        """


@dataclass(frozen=True, eq=False)
class Entry(Node):
    """An input of a stage: a source, another stage's result, or a view of either."""

    by_key = True

    @property
    def base(self) -> Source | Derived:
        """The source, or the result of another stage (``Derived``), below all views of this input.
        For an input without views it is the input itself.
        """
        raise NotImplementedError

    @property
    def ordered(self) -> bool:
        """True if each row has a position in one log that all inputs of the topology share."""
        raise NotImplementedError

    def walk_stage(self) -> Iterator[Node]:
        """Yield this input alone: its rows come from outside the stage."""
        yield self

    @property
    def entries(self) -> tuple[Entry, ...]:
        """This input, as the only element."""
        return (self,)


@dataclass(frozen=True, eq=False)
class RowOrder:
    """The order in which the rows of a source are read. By default it is that of arrival."""

    sequence: Column | None = None
    """The position of a row in its log. Without ``log_partition``, it is the position in one log
    that all sources share.
    """
    log_partition: Column | None = None
    """The log in which ``sequence`` is a position."""
    by_files: bool = False
    """True if rows are read from files, and file and offset order them. There is no ``sequence``
    then.
    """
    partitioned: bool = False
    """True if the user named the column of the log partition."""
    limited: bool = False
    """True if a micro-batch may read one log further in time than another (``is_limited``)."""
    by_commit: bool = False
    """True if a key's rows take effect in the order in which they arrive, not in that of their
    event times.
    """

    @property
    def by_shared_log(self) -> bool:
        """True if each row has a position in one log that all inputs share: there is a ``sequence``
        and no ``log_partition``.
        """
        return self.sequence is not None and self.log_partition is None

    @property
    def positions(self) -> dict[str, Column]:
        """The columns of the sequence and the log partition, by the reader's argument:
        ``sequence=`` and ``log_partition=``. A column that is None is left out.
        """
        columns = {"sequence=": self.sequence, "log_partition=": self.log_partition}
        return {argument: column for argument, column in columns.items() if column is not None}


@dataclass(frozen=True, eq=False)
class Source(Entry):
    """A table read from a changelog, or a stream.

    One row of ``frame`` is one upsert or tombstone of a key, or one record of a stream.
    """

    name: str
    key: StructType
    """The key columns, in order."""
    values: StructType
    """The value columns, in order."""
    frame: DataFrame | None = None
    """The rows, or None for a table that only the test driver feeds."""
    timestamp: Column | None = None
    """The event time of a row."""
    deleted: Column | None = None
    """True for a tombstone; null or false for an upsert."""
    order: RowOrder = field(default_factory=RowOrder)
    """The order of the rows."""
    stream: bool = False
    """True for a stream, False for a table."""
    static: bool = False
    """True if all rows are present when a query begins and never change."""
    versioned_us: int | None = None
    """The length of the table's history in microseconds, or None without a history."""
    lookup: LookupSource | None = None
    """A store that has the same rows, for delta joins."""
    changes: ChangeKinds | None = None
    """The changes that the user declared the table to have, or None if undeclared."""
    time_text: str | None = None
    """The text that stands for ``timestamp`` in fingerprints, if the reader
    computed that column.
    """
    with_unread: DataFrame | None = None
    """The rows of ``frame``, and also the records that cannot be read. Column ``_unread`` has the
    dead letter of such a record. None if unreadable records are not kept.
    """
    replays: str | None = None
    """The folder of mended dead letters, whose rows are among those of ``frame``; None without."""
    grows: bool = False
    """True if the columns come from the latest schema of a registry. A later start of the program
    may then see more columns.
    """

    @property
    def base(self) -> Source:
        """This source, since a source has no views below it."""
        return self

    @property
    def summary(self) -> str:
        """The line of text that describes the source in ``explain``: its name, and ``static`` if it
        is.
        """
        return f"{self.name}, static" if self.static else self.name

    @property
    def may_start_with_rows(self) -> bool:
        """True if the source is static: its rows are there when a query begins."""
        return self.static

    @property
    def ordered(self) -> bool:
        """True if each row has a position in one log that all inputs of the topology share."""
        return self.order.by_shared_log

    @property
    def in_order(self) -> bool:
        """True if the source has a history and is declared to be in the order of arrival
        (``RowOrder.by_commit``). Delta and Iceberg tables are. A row with an older time than its
        key's latest version then takes effect at that version's time.
        """
        return self.versioned_us is not None and self.order.by_commit

    @property
    def timed(self) -> bool:
        """True if the source has a history. Stream time determines where a history ends."""
        return self.versioned_us is not None

    def __post_init__(self) -> None:
        """Raise ``PlanError`` without a key column, for names that are empty, reserved or occur
        twice, and for unsuitable types. Names that differ only in case count as one. Unsuitable
        are, at any depth, calendar and year-month intervals. In keys, so are maps, variants and
        collated strings.
        """
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
class RowsNode(Node):
    """Base class of nodes that have the columns of another node, ``node``, unless overridden."""

    node: Node

    @property
    def name(self) -> str:
        """The name of the node below."""
        return self.node.name

    @property
    def key(self) -> StructType:
        """The key columns of the node below, in order."""
        return self.node.key

    @property
    def values(self) -> StructType:
        """The value columns of the node below, in order."""
        return self.node.values

    @property
    def inputs(self) -> tuple[Node, ...]:
        """The node below, as the only element."""
        return (self.node,)


@dataclass(frozen=True)
class Derived(RowsNode, Entry):
    """The result of a stage, as another stage reads it.

    A join has this input in place of a node that does not run in the join's own stage. A derived
    table has no history. Two are equal if they are of the same node.
    """

    @property
    def base(self) -> Derived:
        """This node, since a stage's result has no views below it."""
        return self

    @property
    def stream(self) -> bool:
        """True if the stage's result is a stream."""
        return self.node.stream

    @property
    def windows(self) -> Windows | None:
        """The windows of the stage's result; None without windows."""
        return self.node.windows

    @property
    def ordered(self) -> bool:
        """True if each row has a position in one log that all sources below share, through all
        stages. False if a delta join is among the nodes below: its results may be ahead of that
        log.
        """
        nodes = list(self.walk())
        return not any(n.eventual for n in nodes) and all(n.ordered for n in self.origins)


@dataclass(frozen=True)
class Selected:
    """One value column of a join's result: a column of a side, or an expression."""

    name: str
    ref: tuple[str, str] | None
    """The side, ``"left"`` or ``"right"``, and the name of its column. None for an expression."""
    column: Column | None = field(default=None, compare=False)
    """A Spark expression over the joined row, or None for a plain column."""


@dataclass(frozen=True, eq=False, kw_only=True)
class JoinNode(Node):
    """Base class of joins: two sides, and the value columns selected from the joined row."""

    kind: ClassVar[str]
    """A description of the two sides, for fingerprints."""

    left: Node
    right: Node
    how: How
    """The kind of join: which sides' rows appear without a match."""
    select: tuple[Selected, ...]
    """The value columns of the result, in order."""
    values: StructType
    """The fields of ``select``, in the same order."""
    align_us: int | None = None
    """The time in microseconds that a side waits for the other side to catch up, or None for no
    wait.
    """
    label: str | None = None
    """The user's name for the join, or None."""
    verdicts: tuple[Verdict, ...] = ()
    """The verdict on each limitation of a delta join; empty if no delta join was tried."""

    @property
    def name(self) -> str:
        """The user's name for the join or, without one, its kind and its sides: ``left join of a
        and b``.
        """
        return self.label or join_name(self.how, self.left, self.right)

    @property
    def summary(self) -> str:
        """The line of text that describes the join in ``explain``: kind, manner and, if there is
        one, the time of ``align=``. For instance ``left join by key, aligned up to 5 s``.
        """
        align = "" if self.align_us is None else f", aligned up to {span_as_text(self.align_us)}"
        return f"{self.how} join {self.manner}{align}"

    @property
    def manner(self) -> str:
        """A few words for ``explain`` on how rows of both sides match, such as ``by key``. Each
        kind of join has its own.
        """
        raise NotImplementedError

    @property
    def key(self) -> StructType:
        """The key columns, by default those of the left side."""
        return self.left.key

    @property
    def inputs(self) -> tuple[Node, ...]:
        """The left side, then the right side."""
        return (self.left, self.right)

    @property
    def may_start_with_rows(self) -> bool:
        """True if static tables alone may give the join rows, before any other input arrives. Both
        sides must have such rows, or one side whose rows appear without a match.
        """
        begin = [node.may_start_with_rows for node in self.inputs]
        return all(begin) or any(map(and_, sides_preserved(self.how), begin))

    @property
    def longest_align_us(self) -> int | None:
        """The longest ``align=`` of this join and of its sides within the stage, in microseconds;
        None without one.
        """
        spans = (self.align_us, *(node.longest_align_us for node in self.inputs))
        return max((span for span in spans if span is not None), default=None)

    @property
    def selects_expressions(self) -> bool:
        """True if this join, or a join of its sides within the stage, selects Spark expressions.
        Their value may depend on which sides are present.
        """
        computed_here = any(s.column is not None for s in self.select)
        return computed_here or any(node.selects_expressions for node in self.inputs)

    def keeps_unmatched(self, entry: Entry) -> bool:
        """Return True if records of the input ``entry`` appear in the result even if nothing
        matches them. Each join between the input and the result must preserve the input's side.
        False for an input of another stage.
        """
        return any(
            is_preserved and entry in side.entries and side.keeps_unmatched(entry)
            for is_preserved, side in zip(sides_preserved(self.how), self.inputs, strict=True)
        )

    def options(self, text: Text) -> Mapping[str, Any]:
        """Return, as JSON data by name, the properties of this kind of join that stored state
        depends on, such as ``on``. ``plan.fingerprint`` adds those of all joins: the sides,
        ``how``, ``align`` and the selection.

        ``text``: returns the text of a column or an expression, given that and the schema of its
        row. Each kind of join overrides this method, which only raises ``NotImplementedError``.
        """
        raise NotImplementedError


def join_name(how: How, left: Node, right: Node) -> str:
    """Return the name in errors of a join to which the user gave none, such as ``left join of a
    and b``. ``left``, ``right``: its sides.
    """
    return f"{how} join of {left.name} and {right.name}"


def right_key_name(name: str) -> str:
    """Return the name that the right key column ``name`` has in the key of a join's result that has
    both keys: ``right_`` and the name.
    """
    return f"right_{name}"


def with_right_key(left: StructType, right: StructType) -> StructType:
    """Return the key of a join's result that has both keys: the columns of ``left``, then those of
    ``right`` with ``right_`` before their names. The right columns are nullable. Repeated names are
    not checked.
    """
    theirs = (StructField(right_key_name(f.name), f.dataType, True) for f in right)
    return StructType([*left.fields, *theirs])


def changelog_schema(node: Node) -> StructType:
    """Return the columns of a node's changelog: key, values, ``_change``, ``_timestamp``,
    ``_position``. Values may be null, for a delete; the last three may not.

    ``_change`` is the text ``upsert`` or ``delete``. ``_timestamp`` is the event time of the
    change, and ``_position`` a bigint that orders the changes of one key.
    """
    return StructType(
        [
            *node.key.fields,
            *(StructField(f.name, f.dataType, True) for f in node.values),
            StructField(CHANGE, StringType(), False),
            StructField(TIMESTAMP, TimestampType(), False),
            StructField(POSITION, LongType(), False),
        ]
    )
