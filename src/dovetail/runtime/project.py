"""From a stage's output to a changelog: the joins' selections, as Spark projections.

A selection is a function of a row, so it runs once at the end, in the JVM, however deep its join is
in the tree. Tombstones carry the key and nulls.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from dovetail.columns import (
    CHANGE,
    DELETE,
    DELETED,
    EVENT_TIME,
    POSITION,
    TIMESTAMP,
    UPSERT,
    VISIBLE,
    value_name,
)
from dovetail.plan.nodes import Node, Source, TableJoin, sources
from dovetail.plan.select import SIDES, row_columns


def changelog(changes: DataFrame, node: Node) -> DataFrame:
    """The changelog of a node from its stage's output (``plan.nodes.changelog_schema``)."""
    names = next(sources(node)).key.names
    keys = {key: f"`{held}`" for key, held in zip(node.key.names, names, strict=True)}
    frame, columns = _project(changes, node, first_leaf=0, keys=keys)
    return frame.select(
        *(F.col(held).alias(key) for key, held in keys.items()),
        *(F.col(columns[name]).alias(name) for name in node.values.names),
        F.when(F.col(DELETED), DELETE).otherwise(UPSERT).alias(CHANGE),
        F.timestamp_micros(F.col(EVENT_TIME)).alias(TIMESTAMP),
        F.col(POSITION),
    )


def _project(
    frame: DataFrame, node: Node, first_leaf: int, keys: Mapping[str, str]
) -> tuple[DataFrame, dict[str, str]]:
    """The frame with what the node's values need, and the column that holds each of them."""
    if isinstance(node, Source):
        return frame, {
            name: value_name(first_leaf, number) for number, name in enumerate(node.values.names)
        }
    middle = first_leaf + _width(node.left)
    sides: dict[str, dict[str, str]] = {}
    for side, child, leaf in zip(SIDES, (node.left, node.right), (first_leaf, middle), strict=True):
        frame, sides[side] = _project(frame, child, leaf, keys)
        held = zip(child.key.names, keys.values(), strict=True)
        sides[side] |= dict(held)
    columns = {s.name: sides[s.ref[0]][s.ref[1]] for s in node.select if s.ref is not None}
    computed = [s for s in node.select if s.column is not None]
    if computed:
        kept = frame.columns
        row = _joined_row(frame, node, first_leaf, middle, sides, keys)
        present = F.col(VISIBLE).bitwiseAND(_mask(first_leaf, _width(node))) != 0
        names = {s.name: f"_{first_leaf}_{middle}_{s.name}" for s in computed}
        frame = row.select(
            *(F.col(f"`{name}`") for name in kept),
            *(
                F.when(present, s.column).alias(names[s.name])
                for s in computed
                if s.column is not None
            ),
        )
        columns |= {name: f"`{held}`" for name, held in names.items()}
    return frame, columns


def _joined_row(
    frame: DataFrame,
    node: TableJoin,
    first_leaf: int,
    middle: int,
    sides: Mapping[str, Mapping[str, str]],
    keys: Mapping[str, str],
) -> DataFrame:
    """The frame with the joined row as expressions see it (``plan.select.row_columns``)."""
    added: dict[str, Column] = {}
    held_keys = list(keys.values())
    for name, held in zip(node.key.names, held_keys, strict=True):
        if f"`{name}`" != held:
            added[name] = F.col(held)
    for side, child, leaf in zip(SIDES, (node.left, node.right), (first_leaf, middle), strict=True):
        fields = [F.col(sides[side][f]).alias(f) for f in (*child.key.names, *child.values.names)]
        here = F.col(VISIBLE).bitwiseAND(_mask(leaf, _width(child))) != 0
        added[side] = F.when(here, F.struct(*fields))
    for name, (side, column) in row_columns(node.left, node.right)[1].items():
        added[name] = F.col(sides[side][column])
    return frame.select("*", *(column.alias(name) for name, column in added.items()))


def _width(node: Node) -> int:
    return sum(1 for _ in sources(node))


def _mask(first_leaf: int, width: int) -> int:
    return ((1 << width) - 1) << first_leaf
