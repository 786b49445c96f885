"""Projections from a stage's output to a changelog: the joins' selections in Spark.

A selection is a function of a row. So it runs once at the end, in the JVM, however deep its join is
in the tree. A tombstone (the change that deletes a row) carries the key and nulls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from dovetail.base.columns import (
    CHANGE,
    DELETE,
    DELETED,
    EVENT_TIME,
    POSITION,
    TIMESTAMP,
    UPSERT,
    VISIBLE,
    quoted,
)
from dovetail.physical.output import held_key, leaf_columns, windowed_node
from dovetail.physical.stage import Stage
from dovetail.plan.nodes import JoinNode, Node
from dovetail.plan.select import SIDES, joined_row_columns
from dovetail.plan.transforms.unwindow import Unwindowed
from dovetail.plan.views import View
from dovetail.spark.execution import view_rows


def changelog(changes: DataFrame, stage: Stage, beside: Sequence[str] = ()) -> DataFrame:
    """Return the changelog of a stage's node from the stage's output ``changes``, a row for each.
    Its columns are key, values, ``_change``, ``_timestamp`` and ``_position``
    (``plan.nodes.changelog_schema``). Selections that compute are computed here, and are null where
    the node has no row, as in a tombstone.

    Then come the columns of ``Fragment.feeds``, longs that tell which record caused a change. The
    columns of ``changes`` with the names ``beside`` are the last, and stay as they are. ``changes``
    has the stage's own columns (``Fragment.output_schema``).
    """
    node = stage.node
    if isinstance(node, Unwindowed):
        frame, output_columns = _windowed_columns(changes, stage, node, beside)
    else:
        frame, columns = _project(changes, stage, node, first_leaf=0)
        output_columns = [F.col(quoted(columns[n])) for n in node.row.names]
    names = node.row.names
    return frame.select(
        *(column.alias(name) for name, column in zip(names, output_columns, strict=True)),
        F.when(F.col(DELETED), DELETE).otherwise(UPSERT).alias(CHANGE),
        F.timestamp_micros(F.col(EVENT_TIME)).alias(TIMESTAMP),
        F.col(POSITION),
        *map(F.col, (*stage.fragment.feeds, *beside)),
    )


def changelog_of_view(changes: DataFrame, view: View) -> DataFrame:
    """Return the changelog of a view from ``changes``, the changelog of its node
    (``plan.nodes.changelog_schema``). Rows that the view leaves out are absent from a stream, and
    are deletes of a table. Further columns are dropped. Nothing is counted or becomes a dead
    letter.
    """
    read = view_rows.rows_of_view(
        view,
        view_rows.InputRows(changes, F.col(TIMESTAMP), F.col(CHANGE) == DELETE, [F.col(POSITION)]),
    )
    (position,) = read.positions
    return read.frame.select(
        *(F.col(quoted(name)) for name in view.row.names),
        F.when(F.col(DELETED), DELETE).otherwise(UPSERT).alias(CHANGE),
        read.timestamp.alias(TIMESTAMP),
        position.alias(POSITION),
    )


def _windowed_columns(
    changes: DataFrame, stage: Stage, node: Unwindowed, beside: Sequence[str]
) -> tuple[DataFrame, list[Column]]:
    """Return two values. The first is the changes with a windowed table's columns by name: key, the
    window's start and end, values. The second has for each column of ``node``, keys first, its
    expression over that frame. Values are null in deleted rows.

    ``node``: the table or stream that a windowed table is read as, under other columns.
    ``changes``: the stage's output. The frame also has ``_deleted``, ``_event_time``,
    ``_position``, the columns of ``Fragment.feeds`` and those in ``beside``.
    """
    inner = windowed_node(node)
    frame, columns = _project(changes, stage, inner, first_leaf=0)
    names = inner.row.names
    carried = [DELETED, EVENT_TIME, POSITION, *stage.fragment.feeds, *beside]
    frame = frame.select(
        *(F.col(quoted(columns[name])).alias(name) for name in names),
        *(F.col(name) for name in carried),
    )
    computed = [
        F.col(quoted(c)) if isinstance(c, str) else view_rows.cast_to_plan_type(c, field.dataType)
        for c, field in zip(node.columns, node.row, strict=True)
    ]
    keys = len(node.key)
    return frame, [*computed[:keys], *(F.when(~F.col(DELETED), c) for c in computed[keys:])]


def _project(
    frame: DataFrame, stage: Stage, node: Node, first_leaf: int
) -> tuple[DataFrame, dict[str, str]]:
    """Return the frame with all columns that the node's columns are made of. Also return the name
    of the frame's column behind each key and value column of the node, by name. A join's key is its
    left side's, unless it has a key of its own.

    Selections that compute become new columns, null where the node has no row. ``frame``: the
    stage's output. ``first_leaf``: the index of the node's first input in ``stage.leaves``.
    """
    if not isinstance(node, JoinNode):
        return frame, leaf_columns(stage, first_leaf)
    middle = first_leaf + len(node.left.entries)
    sides: dict[str, dict[str, str]] = {}
    for side, child, leaf in zip(SIDES, (node.left, node.right), (first_leaf, middle), strict=True):
        frame, sides[side] = _project(frame, stage, child, leaf)
    columns = held_key(node, sides["left"])
    columns |= {s.name: sides[s.ref[0]][s.ref[1]] for s in node.select if s.ref is not None}
    computed = [s for s in node.select if s.column is not None]
    if computed:
        frame_columns = frame.columns
        row = _joined_row(frame, node, first_leaf, middle, sides)
        present = F.col(VISIBLE).bitwiseAND(_mask(first_leaf, len(node.entries))) != 0
        names = {s.name: f"_{first_leaf}_{middle}_{s.name}" for s in computed}
        frame = row.select(
            *(F.col(quoted(name)) for name in frame_columns),
            *(
                F.when(
                    present, view_rows.cast_to_plan_type(s.column, node.fields[s.name].dataType)
                ).alias(names[s.name])
                for s in computed
                if s.column is not None
            ),
        )
        columns |= names
    return frame, columns


def _joined_row(
    frame: DataFrame,
    node: JoinNode,
    first_leaf: int,
    middle: int,
    sides: Mapping[str, Mapping[str, str]],
) -> DataFrame:
    """Return the frame with the joined row as a user's expressions see it, after its own columns.
    These are the left key by name, the structs ``left`` and ``right``, and the value columns that
    only one side has (``joined_row_columns``). The struct of a side without a row is null.

    ``first_leaf``, ``middle``: the index in ``stage.leaves`` of the first input of the left and of
    the right side. ``sides``: under ``"left"`` and ``"right"``, the frame's column behind each
    column of that side.
    """
    added: dict[str, Column] = {}
    for name in node.left.key.names:
        added[name] = F.col(quoted(sides["left"][name]))
    for side, child, leaf in zip(SIDES, (node.left, node.right), (first_leaf, middle), strict=True):
        names = child.row.names
        fields = [F.col(quoted(sides[side][name])).alias(name) for name in names]
        here = F.col(VISIBLE).bitwiseAND(_mask(leaf, len(child.entries))) != 0
        added[side] = F.when(here, F.struct(*fields))
    for name, (side, column) in joined_row_columns(node.left, node.right)[1].items():
        added[name] = F.col(quoted(sides[side][column]))
    return frame.select("*", *(column.alias(name) for name, column in added.items()))


def _mask(first_leaf: int, width: int) -> int:
    """Return an int with the bits that stand for ``width`` leaves (inputs of a join tree), from
    index ``first_leaf`` on, in the column ``_visible``. Bit i is that of leaf i.
    """
    return ((1 << width) - 1) << first_leaf
