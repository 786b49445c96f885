"""The output of a stage: the changelog itself, or the columns from which a projection makes it.

If all selections only name columns, the stage's rows are the changelog's rows, and Spark has
nothing to project. If a selection computes, the stage emits its own columns
(``Fragment.output_schema``) and ``spark.execution.projection`` does the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
from pyspark.sql.types import BooleanType, LongType, StructField, StructType

from dovetail.base.columns import (
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
from dovetail.plan.nodes import JoinNode, Node, changelog_schema
from dovetail.plan.select import SIDES
from dovetail.plan.transforms.unwindow import Unwindowed
from dovetail.plan.types.arrow import arrow_schema

_CHANGELOG_COLUMNS = (CHANGE, TIMESTAMP, POSITION)
"""The columns of a changelog behind the key and the values."""


@dataclass(frozen=True)
class Output:
    """The form of the rows that a stage emits: their columns, and the stage's columns behind
    them.
    """

    columns: StructType
    held: dict[str, str] | None
    """The stage column behind each key and value column, by name in the changelog's order; None if
    a projection follows.
    """

    @cached_property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the columns: all nullable, timestamps in UTC."""
        return arrow_schema(self.columns)

    def rows_by_name(self, changes: pa.Table) -> pa.Table:
        """Return a stage's changes (``Fragment.output_schema``) under the column names of its node,
        one row for each change, in their order. Then come ``_event_time``, ``_deleted``,
        ``_position`` and the columns ``Fragment.feeds``. No selection may compute.
        """
        assert self.held is not None
        feeds = self.columns.names[len(self.held) + len(_CHANGELOG_COLUMNS) :]
        carried = (EVENT_TIME, DELETED, POSITION, *feeds)
        columns = self.held | dict(zip(carried, carried, strict=True))
        return pa.table([changes.column(column) for column in columns.values()], names=[*columns])

    def rows_of_changes(self, changes: pa.Table) -> pa.Table:
        """Return a stage's changes (``Fragment.output_schema``) as rows of ``schema``, one row for
        each change, in their order. ``_change`` becomes ``upsert`` or ``delete``, and
        ``_timestamp`` the event time in UTC.

        If a projection follows (``held`` is None), return the changes as they are.
        """
        if self.held is None:
            return changes
        change = pa.array([UPSERT, DELETE]).take(changes.column(DELETED).cast(pa.int8()))
        columns = {name: changes.column(stage_column) for name, stage_column in self.held.items()}
        columns[CHANGE] = change
        columns[TIMESTAMP] = changes.column(EVENT_TIME).cast(pa.timestamp("us", "UTC"))
        columns |= {name: changes.column(name) for name in self.columns.names[len(columns) :]}
        return pa.table(list(columns.values()), schema=self.schema)


def changelog_columns(stage: Stage) -> StructType:
    """Return the columns of the changelog of a stage's node: key, values, ``_change``,
    ``_timestamp``, ``_position``. Then come the columns ``Fragment.feeds``, longs that tell other
    stages which record caused a change.
    """
    cause = [StructField(name, LongType()) for name in stage.fragment.feeds]
    return StructType([*changelog_schema(stage.node), *cause])


def output_of(stage: Stage) -> Output:
    """Return the description of the rows that a stage emits: the changelog's rows or, if a
    selection computes, its own internal columns, for a projection. The columns that feed other
    stages follow.

    ``stage``: the last one of its node, since only that has ``leaves``.
    """
    if not stage.fragment.last.visible:
        return Output(changelog_columns(stage), held_columns(stage))
    keys = stage.node.key.fields if stage.node.has_own_key else stage.leaves[0].key_fields
    fields = [
        StructField(key_name(column_index), field.dataType, True)
        for column_index, field in enumerate(keys)
    ]
    for leaf, input_ in enumerate(stage.leaves):
        for column_index, value in enumerate(input_.value_fields):
            fields.append(StructField(value_name(leaf, column_index), value.dataType, True))
    fields += [
        StructField(DELETED, BooleanType()),
        StructField(EVENT_TIME, LongType()),
        StructField(POSITION, LongType()),
        StructField(VISIBLE, LongType()),
        *(StructField(name, LongType()) for name in stage.fragment.feeds),
    ]
    return Output(StructType(fields), None)


def held_columns(stage: Stage) -> dict[str, str]:
    """Return the internal stage column behind each key and value column of the stage's node, by
    name, in the changelog's order.

    ``stage``: the last one of its node. The node's selections may only name columns, else
    ``AssertionError`` is raised. For a windowed table that is read as a table or stream, columns
    that are computed are left out.
    """
    node = stage.node
    names = (*node.key.names, *node.values.names)
    if isinstance(node, Unwindowed):
        stage_columns = _stage_columns(windowed_node(node), 0, stage)
        columns = zip(names, node.columns, strict=True)
        return {name: stage_columns[column] for name, column in columns if isinstance(column, str)}
    stage_columns = _stage_columns(node, 0, stage)
    return {name: stage_columns[name] for name in names}


def windowed_node(node: Unwindowed) -> Node:
    """Return the node whose columns a stage emits for ``node``, a windowed table read as a table or
    stream. If windows are emitted once closed (``node.final``), it is ``node.input``, all of whose
    columns are those of one input of the stage. Else it is ``node.input.node``, the aggregation or
    the join itself. Nothing is searched further down.
    """
    return node.input if node.final else node.input.node


def leaf_columns(stage: Stage, leaf: int) -> dict[str, str]:
    """Return the stage column that holds each key and value column of a leaf's input, by name:
    ``_k0``, ``_k1`` and so on for the key, ``_<leaf>_0`` and so on for the values. ``leaf``: an
    index into ``stage.leaves``, from 0.
    """
    input_ = stage.leaves[leaf]
    keys = {
        field.name: key_name(column_index) for column_index, field in enumerate(input_.key_fields)
    }
    values = enumerate(input_.value_fields)
    return keys | {field.name: value_name(leaf, column_index) for column_index, field in values}


def held_key(node: JoinNode, left: Mapping[str, str]) -> dict[str, str]:
    """Return the stage column behind each key column of a join's result, by name, in order. A join
    with its own key has ``_k0``, ``_k1`` and so on; any other join has the columns of its left
    side.

    ``left``: the stage column behind each column of the left side, by name. Key names that it lacks
    raise ``KeyError``.
    """
    if node.has_own_key:
        return {name: key_name(key_index) for key_index, name in enumerate(node.key.names)}
    return {name: left[name] for name in node.key.names}


def _stage_columns(node: Node, first_leaf: int, stage: Stage) -> dict[str, str]:
    """Return the stage column behind each key and value column of ``node``, by name, through all
    joins below it. A node that is no join is a leaf.

    ``first_leaf``: the index in ``stage.leaves`` of the node's first input, from 0. The joins'
    selections must only name columns, else ``AssertionError`` is raised.
    """
    if not isinstance(node, JoinNode):
        return leaf_columns(stage, first_leaf)
    middle = first_leaf + len(node.left.entries)
    sides = {
        side: _stage_columns(child, leaf, stage)
        for side, child, leaf in zip(
            SIDES, (node.left, node.right), (first_leaf, middle), strict=True
        )
    }
    stage_columns = held_key(node, sides["left"])
    for selected in node.select:
        assert selected.ref is not None, "a selection computes"
        side, name = selected.ref
        stage_columns[selected.name] = sides[side][name]
    return stage_columns
