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
    value_name,
)
from dovetail.kernels.table_join import Tree, leaves

Emit: TypeAlias = Literal["change", "batch"]


@dataclass(frozen=True)
class SourceSpec:
    """An input table of a stage: its name, and the columns ``_hash``, ``_event_time``,
    ``_deleted``, keys, values, which are also what is stored; then, in a batch, ``_sequence`` and
    ``_log_partition`` where the source names them.
    """

    name: str
    schema: pa.Schema
    sequence: bool = False
    log_partition: bool = False

    @property
    def wire_schema(self) -> pa.Schema:
        """The columns of a batch's rows."""
        schema = self.schema
        for name, carried in ((SEQUENCE, self.sequence), (LOG_PARTITION, self.log_partition)):
            if carried:
                schema = schema.append(pa.field(name, pa.int64()))
        return schema


@dataclass(frozen=True)
class StageSpec:
    """A stage. ``topology``: the fingerprint that its state is bound to; ``buckets``: how many
    share the key space; ``keys``: the number of key columns, which every source has in the same
    order and types; ``tree``: the joins over ``sources``; ``visible``: whether the output has the
    column
    ``_visible``.
    """

    topology: str
    buckets: int
    sources: tuple[SourceSpec, ...]
    keys: int
    tree: Tree
    emit: Emit
    visible: bool = True

    def value_fields(self, source: int) -> range:
        """The numbers of a source's value columns in its schema."""
        return range(3 + self.keys, len(self.sources[source].schema))

    @property
    def output_schema(self) -> pa.Schema:
        """Keys; per leaf its values as ``_<leaf>_<number>``; then ``_deleted``, ``_event_time``,
        ``_position`` and ``_visible``, a bit per leaf whether it contributes a row.
        """
        first = self.sources[0].schema
        fields = [first.field(i) for i in range(3, 3 + self.keys)]
        for leaf, source in enumerate(leaves(self.tree)):
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
