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
    """Return the changelog of a stage's node (``plan.nodes.changelog_schema``) from the stage's
    output ``changes``, a row for each. Selections that compute are computed here, and are null for
    deletes.

    The columns of ``Fragment.feeds`` follow, then those of ``changes`` with the names ``beside``,
    which stay as they are.
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
    deletes of a table. Further columns are dropped.
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
    """Return the changes with a windowed table's columns by name, and the expressions of the node's
    columns over that frame. Values are null in deleted rows.

    ``changes``: the stage's output. The frame also has the columns of a change, those of
    ``Fragment.feeds`` and those in ``beside``.
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
    """Return the frame with all columns that the node's columns are made of. Also return the
    frame's column behind each column of the node, by name.

    Selections that compute become new columns, null where the node has no row. ``frame``: the
    stage's output. ``first_leaf``: the number of the node's first input among the leaves of the
    stage.
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
    """Return the frame with the joined row as expressions see it, after its own columns. That row
    is the one of ``plan.select.joined_row_columns``. A side without a row is null.

    ``first_leaf``, ``middle``: the first leaf of each side. ``sides``: the frame's column behind
    each column of a side.
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
    """Return the bits that stand for ``width`` leaves from number ``first_leaf`` on in the column
    ``_visible``.
    """
    return ((1 << width) - 1) << first_leaf
