"""What a stage computes, as plain data that travels to the workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import pyarrow as pa

from dovetail.columns import (
    DELETED,
    EVENT_TIME,
    LOG_PARTITION,
    POSITION,
    SEQUENCE,
    VISIBLE,
    key_name,
    value_name,
)
from dovetail.kernels.interval_join import Unmatched
from dovetail.kernels.table_join import How, Tree, leaves

Emit: TypeAlias = Literal["change", "batch"]


@dataclass(frozen=True)
class SourceSpec:
    """An input of a stage: its name, and the columns ``_hash``, ``_event_time``, ``_deleted``,
    keys, values; then, in a batch, ``_sequence`` and ``_log_partition`` where the source names
    them.

    ``stream``: whether it is a stream, whose records without a value are dropped; ``null_keys``:
    whether records with a null in the key travel; ``keeps_time``: whether even those that no join
    can use do, because they move stream time; ``versioned_us``: the history retention of a
    versioned table.
    """

    name: str
    schema: pa.Schema
    sequence: bool = False
    log_partition: bool = False
    stream: bool = False
    null_keys: bool = False
    keeps_time: bool = False
    versioned_us: int | None = None

    @property
    def title(self) -> str:
        """What errors call it."""
        return f"{'stream' if self.stream else 'table'} {self.name}"

    @property
    def wire_schema(self) -> pa.Schema:
        """The columns of a batch's rows."""
        schema = self.schema
        for name, carried in ((SEQUENCE, self.sequence), (LOG_PARTITION, self.log_partition)):
            if carried:
                schema = schema.append(pa.field(name, pa.int64()))
        return schema


@dataclass(frozen=True)
class TableTree:
    """Joins of tables by key; every table's records are answered."""

    tree: Tree

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


Operator: TypeAlias = TableTree | Lookup | Interval | Histories


@dataclass(frozen=True)
class StageSpec:
    """A stage. ``topology``: the fingerprint that its state is bound to; ``buckets``: how many
    share the key space; ``keys``: the number of key columns, which every source has in the same
    order and types; ``operator``: what it does with ``sources``; ``align_us``: how long, by the
    wall clock, a source waits for another that is behind it; ``visible``: whether the output has
    the column ``_visible``.
    """

    topology: str
    buckets: int
    sources: tuple[SourceSpec, ...]
    keys: int
    operator: Operator
    emit: Emit
    visible: bool = True
    align_us: int | None = None

    @property
    def key_columns(self) -> range:
        """The numbers of the key columns in every source's schema."""
        return range(3, 3 + self.keys)

    def value_fields(self, source: int) -> range:
        """The numbers of a source's value columns in its schema."""
        return range(3 + self.keys, len(self.sources[source].schema))

    @property
    def output_schema(self) -> pa.Schema:
        """Keys as ``_k<number>``; per leaf its values as ``_<leaf>_<number>``; then ``_deleted``,
        ``_event_time``, ``_position`` and ``_visible``, a bit per leaf whether it contributes a
        row.
        """
        first = self.sources[0].schema
        fields = [
            first.field(column).with_name(key_name(number))
            for number, column in enumerate(self.key_columns)
        ]
        for leaf, source in enumerate(self.operator.leaves):
            schema = self.sources[source].schema
            for number, column in enumerate(self.value_fields(source)):
                fields.append(pa.field(value_name(leaf, number), schema.field(column).type))
        fields += [
            pa.field(DELETED, pa.bool_()),
            pa.field(EVENT_TIME, pa.int64()),
            pa.field(POSITION, pa.int64()),
        ]
        if self.visible:
            fields.append(pa.field(VISIBLE, pa.int64()))
        return pa.schema(fields)
