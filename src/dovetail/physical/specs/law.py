"""The interface of a law: what an operator stores, emits and counts.

A law is plain data that travels to the workers. ``sources`` are always those of its operator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

import pyarrow as pa

from dovetail.aggregates.aggregate import Aggregate
from dovetail.base.columns import EVENT_TIME, is_reserved
from dovetail.physical.source import SourceSpec, number_repeated_names
from dovetail.plan.metrics import metric_name

if TYPE_CHECKING:
    # Readers of a checkpoint need stores without plans, and so without pyspark.
    from dovetail.plan.nodes import Entry, Node

Sources: TypeAlias = Sequence[SourceSpec]
"""The inputs of an operator, in order."""
Kind: TypeAlias = Literal["rows", "versions", "records", "queue"]
"""The way a store is read back.

| kind | rows that a reader gets |
|---|---|
| ``rows`` | the last row of each key |
| ``versions`` | all rows of each key by time, tombstones (rows that delete their key) included |
| ``records`` | all records |
| ``queue`` | the records that still wait |
"""


@dataclass(frozen=True)
class AccumulatedColumn:
    """A result column that is computed from stored accumulators."""

    kernel: Aggregate
    """The aggregate function that turns accumulators into results."""
    lists: tuple[str, ...] = ()
    """For long lists, the names of their index store and of their parts store; else empty."""


@dataclass(frozen=True)
class Store:
    """The description of one store: what a bucket keeps under one name, and how to read it back."""

    holds: str
    """The content in words, for ``explain`` and the state reader."""
    kind: Kind | None = None
    """The way its rows are read back; None for bookkeeping that is of no use to a reader."""
    of: str = ""
    """The name of the input whose rows it has; empty if it has no input's rows."""
    key: tuple[str, ...] = ()
    """The stored columns that identify a row."""
    fields: tuple[pa.Field, ...] = ()
    """The columns that a reader gets, under the input's own names."""
    columns: tuple[str, ...] = ()
    """The stored columns behind ``fields``, in their order; empty if they have the same names."""
    clocks: tuple[int, ...] = ()
    """The indices (from 0) of the inputs by whose stream time (the largest timestamp so far) rows
    expire.
    """
    span_us: int | None = None
    """The longest that a row is kept behind stream time; None for no limit."""
    time: str = EVENT_TIME
    """The column of times by which rows expire."""
    without: str = ""
    """The name of the store that lists the rows that no longer count, by their ``_row`` ids; or
    empty.
    """
    results: tuple[AccumulatedColumn, ...] = ()
    """For accumulators, the result columns; they are the last of ``fields``."""
    hashed: bool = False
    """True if a row lies in the bucket of Spark's hash of its key."""
    through: str = ""
    """If rows lie by another key: the store of the stage before that maps each row to that key."""
    whole: bool = True
    """True if the store has all rows of the input that still count, as they came."""
    only: str = ""
    """Which rows or values it has, in words that tell them apart, if it is not ``whole`` and
    ``holds`` does not say it.
    """

    @property
    def stored_columns(self) -> tuple[str, ...]:
        """The names of the stored columns behind ``fields``, in their order. They are ``columns``,
        or if that is empty, the names of ``fields`` themselves.
        """
        return self.columns or tuple(field.name for field in self.fields)

    @property
    def own_key(self) -> tuple[pa.Field, ...]:
        """The key columns that are among ``fields``, in their order; empty if there are none.
        Columns with dovetail's own names, such as ``_hash``, are not among ``fields``. In a store
        of accumulators the key columns are the first of ``fields``, as many as ``key`` has, a
        window's two among them. They have the names that ``with_key`` has given them, if it was
        called.
        """
        if self.results:
            return self.fields[: len(self.key)]
        return tuple(field for field in self.fields if field.name in self.key)

    def with_columns(self, columns: Sequence[str]) -> Store:
        """Return the description of the same store, read without the value columns whose names in
        ``fields`` are not in ``columns``.

        Key and time columns stay. A store of accumulators is returned unchanged. Unknown names in
        ``columns`` are ignored.
        """
        needed = {*columns, *self.key, self.time}
        if self.results:
            return self
        indices = [index for index, field in enumerate(self.fields) if field.name in needed]
        return replace(
            self,
            fields=tuple(self.fields[index] for index in indices),
            columns=tuple(self.stored_columns[index] for index in indices),
        )

    def with_key(self, names: Sequence[str]) -> Store:
        """Return the description of a store of accumulators with its first ``fields`` renamed to
        ``names``, in order.

        ``names``: the users' names of the key columns, without those of a window, whose fields keep
        their names. Stores of other kinds are returned unchanged.
        """
        if not self.results:
            return self
        named = (field.with_name(name) for field, name in zip(self.fields, names, strict=False))
        return replace(self, fields=(*named, *self.fields[len(names) :]))

    @property
    def companion_stores(self) -> tuple[str, ...]:
        """The names of the stores that must be read together with this one. First comes ``without``
        (the list of rows that no longer count), if there is one. Then come the index store and the
        parts store of each result column with long lists. Empty for none.
        """
        lists = (name for result in self.results for name in result.lists)
        return (*((self.without,) if self.without else ()), *lists)


@dataclass(frozen=True)
class Wait:
    """A store with rows that wait for a time."""

    name: str
    metric: str
    """The name of the metric that counts these rows: ``<input>.<reason>``."""
    store: Store
    """Its description, by which the time is known until which rows have left it."""


def too_old_metrics(sources: Sequence[SourceSpec]) -> list[str]:
    """Return the name of the metric ``<table>.too_old`` of each versioned table among ``sources``,
    the inputs of an operator, in order. It counts records that are older than the table's history.
    Empty without versioned tables.
    """
    return [metric_name(s.name, "too_old") for s in sources if s.meaning.versioned_us is not None]


def not_latest_metrics(sources: Sequence[SourceSpec]) -> list[str]:
    """Return the names of the metrics of records of versioned tables that do not change the latest
    version. ``sources``: the inputs of an operator.

    First comes ``<table>.too_old`` of each versioned table, for records older than its history.
    Then comes ``<table>.late`` of each, for records older than their key's latest version. Empty
    without versioned tables.
    """
    late = [metric_name(s.name, "late") for s in sources if s.meaning.versioned_us is not None]
    return [*too_old_metrics(sources), *late]


def table_store(sources: Sources, source_index: int, *, key: int | None = None) -> Store:
    """Return the description of the store of one table: the last row of each key, or all versions
    if the table is versioned. A versioned table's rows are kept for its history, those of a
    windowed table for its retention, others for ever.

    ``sources``: the inputs of an operator. ``source_index``: the index of the table among them,
    from 0. ``key``: None for the input's own key. If rows are stored by a longer one, the count of
    its columns, the first user columns. A store with ``key`` has last rows only.
    """
    source = sources[source_index]
    versioned, windowed = source.meaning.versioned_us, source.meaning.retention_us
    user_fields = source.shape.user_fields
    keys = source.shape.keys if key is None else key
    return Store(
        source.meaning.stored_rows_text,
        "rows" if versioned is None or key is not None else "versions",
        of=source.name,
        key=tuple(field.name for field in user_fields[:keys]),
        fields=tuple(field for field in user_fields if not is_reserved(field.name)),
        clocks=(source_index,),
        span_us=windowed if key is not None or versioned is None else versioned,
        time=EVENT_TIME if windowed is None else source.shape.window,
        hashed=key is None and windowed is None,
        whole=windowed is None,
    )


@dataclass(frozen=True)
class Law:
    """The base of all laws: the questions that each operator answers about itself."""

    stateful: ClassVar[bool] = True
    """True if the operator keeps a state in each bucket: a manifest, and its stores. A union keeps
    a manifest alone.
    """
    keeps_time: ClassVar[bool] = False
    """True if records that it cannot use still advance its stream time."""
    valueless: ClassVar[bool] = False
    """True if it can use stream records without a value."""
    nets: ClassVar[bool] = False
    """True if it can emit only the last change of each key in a batch."""
    names_columns: ClassVar[bool] = False
    """True if its output has the columns of its node, not those of its inputs."""
    waits: ClassVar[bool] = False
    """True if results wait for stream time."""
    REASON: ClassVar[str]
    """The need that its shuffle and its stores meet, in words."""

    @property
    def reason(self) -> str:
        """The need that the operator's shuffle and stores meet, in words for ``explain``. By
        default it is the class's ``REASON``.
        """
        return self.REASON

    @property
    def whole_keys(self) -> bool:
        """True if the operator must see all rows of a key in a micro-batch at once. By default
        False: the rows may come in several slices.
        """
        return False

    @property
    def leaves(self) -> tuple[int, ...]:
        """The index of the operator's input (from 0) behind each leaf, from left to right; by
        default ``(0,)``. A leaf is one group of value columns in the output.
        """
        return (0,)

    @property
    def holds_us(self) -> int:
        """The longest time, in microseconds of stream time, for which a result is held back; by
        default 0, as none is.
        """
        return 0

    def key_fields(self, sources: Sources) -> list[pa.Field]:
        """Return the key columns of the operator's changes, in order. By default they are those of
        the first input. ``sources``: the inputs of the operator, at least one.
        """
        return sources[0].shape.key_fields

    def value_types(self, sources: Sources, leaf: int) -> list[pa.DataType]:
        """Return the types of the value columns of one leaf in the operator's changes, in order. By
        default they are those of the input behind the leaf; empty without values.

        A leaf is one group of value columns in the output, such as those of a join's left side.
        ``sources``: the inputs of the operator. ``leaf``: an index into ``leaves``, from 0.
        """
        source = sources[self.leaves[leaf]]
        return [field.type for field in source.shape.value_fields]

    def stores(self, sources: Sources) -> Mapping[str, Store]:
        """Return the descriptions of a bucket's stores by name, in a fixed order. ``sources``: the
        inputs of the operator.

        By default each input has one, with its rows, under its name. Repeated names get ``#2``,
        ``#3`` and so on. Operators that are not ``stateful`` have none.
        """
        names = number_repeated_names([source.name for source in sources]) if self.stateful else []
        return {name: table_store(sources, source_index) for source_index, name in enumerate(names)}

    def lookup_texts(self, sources: Sources) -> list[str]:
        """Return the lookups that the operator makes in external stores, in words, one line of text
        for each side that it looks up. Empty by default. ``sources``: the inputs of the operator.
        """
        return []

    def depends_on_time_of(self, entry: Entry, node: Node, feeds: Sequence[str]) -> bool:
        """Return True if all buckets must hear how the stream time of ``entry`` rises, an input of
        the operator's stage. By default this is so if it is versioned and the leaves read several
        inputs: records of the others depend on it.

        ``node``: the node of the stage. ``feeds``: the columns that tell a reader which record
        caused a change; empty without one.
        """
        return entry.versioned_us is not None and len(set(self.leaves)) > 1

    def metric_names(self, sources: Sources) -> list[str]:
        """Return the names of the metrics of rows without use, in a fixed order; by default none.
        ``sources``: the inputs of the operator.
        """
        return []

    def match_counted_inputs(self, sources: Sources) -> list[str]:
        """Return the names of the inputs whose records are counted by whether they find rows on all
        other sides; by default none. ``sources``: the inputs of the operator.
        """
        return []

    def waiting_stores(self, sources: Sources) -> list[Wait]:
        """Return the stores with rows that wait for a time, each with the metric that counts them;
        by default none. ``sources``: the inputs of the operator.
        """
        return []
