"""What leaves a stage: the changelog itself, or the columns that a projection makes it of.

Where all selections only name columns, the stage's rows are the changelog's rows, and nothing is
left for Spark to project. Where one computes, the stage emits its own columns
(``Fragment.output_schema``) and ``spark.project`` does the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.types import BooleanType, LongType, StructField, StructType

from dovetail.columns import (
    CHANGE,
    DELETE,
    DELETED,
    EVENT_TIME,
    POSITION,
    TIMESTAMP,
    UPSERT,
    VISIBLE,
    key_name,
    value_name,
)
from dovetail.physical.stage import Stage
from dovetail.plan.arrow import arrow_schema
from dovetail.plan.nodes import Join, Node, changelog_schema
from dovetail.plan.select import SIDES
from dovetail.plan.unwindowed import Unwindowed


@dataclass(frozen=True)
class Output:
    """The rows a stage sends out. ``held``: where they are the changelog's, the stage column behind
    each key and value column; None where a projection follows.
    """

    columns: StructType
    held: Mapping[str, str] | None

    @property
    def schema(self) -> pa.Schema:
        """The columns in Arrow, in UTC."""
        return arrow_schema(self.columns)

    def rows(self, changes: pa.Table) -> pa.Table:
        """The rows of ``schema`` from a stage's changes (``Fragment.output_schema``)."""
        if self.held is None:
            return changes
        change = pa.array([UPSERT, DELETE]).take(changes.column(DELETED).cast(pa.int8()))
        columns = {name: changes.column(held) for name, held in self.held.items()}
        columns[CHANGE] = change
        columns[TIMESTAMP] = changes.column(EVENT_TIME).cast(pa.timestamp("us", "UTC"))
        columns |= {name: changes.column(name) for name in self.columns.names[len(columns) :]}
        return pa.table(list(columns.values()), schema=self.schema)


def changelog_columns(stage: Stage) -> StructType:
    """The changelog of a stage's node, with what feeds other stages."""
    cause = [StructField(name, LongType()) for name in stage.fragment.feeds]
    return StructType([*changelog_schema(stage.node), *cause])


def output_of(stage: Stage) -> Output:
    """What a stage sends out."""
    if not stage.fragment.last.visible:
        return Output(changelog_columns(stage), held_columns(stage))
    keys = stage.node.key.fields if stage.node.has_own_key else stage.leaves[0].key_fields
    fields = [
        StructField(key_name(number), field.dataType, True) for number, field in enumerate(keys)
    ]
    for leaf, input_ in enumerate(stage.leaves):
        for number, value in enumerate(input_.value_fields):
            fields.append(StructField(value_name(leaf, number), value.dataType, True))
    fields += [
        StructField(DELETED, BooleanType()),
        StructField(EVENT_TIME, LongType()),
        StructField(POSITION, LongType()),
        StructField(VISIBLE, LongType()),
        *(StructField(name, LongType()) for name in stage.fragment.feeds),
    ]
    return Output(StructType(fields), None)


def held_columns(stage: Stage) -> dict[str, str]:
    """The stage column behind each key and value column of a node whose selections only name
    columns, in the changelog's order.
    """
    node = stage.node
    names = (*node.key.names, *node.values.names)
    if isinstance(node, Unwindowed):
        held = _held(windowed(node), 0, stage)
        columns = zip(names, node.columns, strict=True)
        return {name: held[column] for name, column in columns if isinstance(column, str)}
    held = _held(node, 0, stage)
    return {name: held[name] for name in names}


def windowed(node: Unwindowed) -> Node:
    """The node whose columns the stage of a windowed table's reader puts out."""
    return node.input if node.final else node.input.node


def leaf_columns(stage: Stage, leaf: int) -> dict[str, str]:
    """The stage column that holds each column of a leaf."""
    input_ = stage.leaves[leaf]
    keys = {field.name: key_name(number) for number, field in enumerate(input_.key_fields)}
    values = enumerate(input_.value_fields)
    return keys | {field.name: value_name(leaf, number) for number, field in values}


def held_key(node: Join, left: Mapping[str, str]) -> dict[str, str]:
    """The stage column behind each key column of a join; ``left``: of its left side's columns."""
    if node.has_own_key:
        return {name: key_name(number) for number, name in enumerate(node.key.names)}
    return {name: left[name] for name in node.key.names}


def _held(node: Node, first_leaf: int, stage: Stage) -> dict[str, str]:
    if not isinstance(node, Join):
        return leaf_columns(stage, first_leaf)
    middle = first_leaf + len(node.left.entries)
    sides = {
        side: _held(child, leaf, stage)
        for side, child, leaf in zip(
            SIDES, (node.left, node.right), (first_leaf, middle), strict=True
        )
    }
    held = held_key(node, sides["left"])
    for selected in node.select:
        assert selected.ref is not None, "a selection computes"
        side, name = selected.ref
        held[selected.name] = sides[side][name]
    return held
