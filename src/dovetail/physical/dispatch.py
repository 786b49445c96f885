"""The law of each plan node that is one operator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import singledispatch

from pyspark.sql.types import StructType

from dovetail.laws.joins.stream_join import Window
from dovetail.laws.joins.table_join import Tree, TreeJoin, TreeLeaf
from dovetail.physical.specs.by_key import (
    Deduplicate,
    Expire,
    Explode,
    Fill,
    HistoryJoinLaw,
    StreamJoinLaw,
    StreamTableJoinLaw,
    TableJoinLaw,
    ToChangesLaw,
    Transact,
    UnionLaw,
)
from dovetail.physical.specs.law import Law
from dovetail.plan import nodes
from dovetail.plan.joins import join_call, stream_join, stream_table_join, table_join
from dovetail.plan.nodes import Entry, Node
from dovetail.plan.transforms import to_changes, union
from dovetail.plan.transforms.deduplicate import Deduplicated
from dovetail.plan.transforms.expire import Expired
from dovetail.plan.transforms.explode import Exploded
from dovetail.plan.transforms.fill import Filled
from dovetail.plan.transforms.transact import Transacted
from dovetail.plan.types.arrow import arrow_schema
from dovetail.plan.views import View


@singledispatch
def law_of(node: Node, entries: Sequence[Entry]) -> Law:
    """Return the law of ``node``: by default a join of tables by key.

    ``entries``: the inputs of the stage. A source of the law is a position in them.
    """
    return TableJoinLaw(_tree(node, entries))


@law_of.register
def _(node: table_join.HistoryJoin, entries: Sequence[Entry]) -> Law:
    return HistoryJoinLaw(_sides(node, entries), node.how)


@law_of.register
def _(node: join_call.Materialized, entries: Sequence[Entry]) -> Law:
    return TableJoinLaw(_tree(node.node, entries), distinct=True)


@law_of.register
def _(node: View, entries: Sequence[Entry]) -> Law:
    return UnionLaw() if node.stream else TableJoinLaw(_tree(node, entries))


@law_of.register(union.Union)
def _(*_: object) -> Law:
    return UnionLaw()


@law_of.register
def _(node: Deduplicated, _: Sequence[Entry]) -> Law:
    return Deduplicate(node.within_us)


@law_of.register
def _(node: Expired, _: Sequence[Entry]) -> Law:
    return Expire(node.after_us)


@law_of.register
def _(node: Exploded, _: Sequence[Entry]) -> Law:
    (element,) = arrow_schema(StructType([node.element]))
    column_index = node.node.values.names.index(node.column)
    return Explode(column_index, element.type, node.position is not None)


@law_of.register
def _(node: Filled, _: Sequence[Entry]) -> Law:
    names = tuple(node.node.values.names)
    if node.unsent is None:
        nulls = tuple(names.index(name) for name in node.nulls)
        return Fill(-1, f"ignore_null_updates of {node.name}", names, False, nulls)
    return Fill(
        names.index(node.unsent), f"keep_former of {node.name}", names, node.missing == "fail"
    )


@law_of.register
def _(node: Transacted, _: Sequence[Entry]) -> Law:
    return Transact(node.node.values.names.index(node.transaction))


@law_of.register
def _(node: to_changes.ToChanges, _: Sequence[Entry]) -> Law:
    return ToChangesLaw(node.kinds)


@law_of.register
def _(node: stream_table_join.StreamTableJoin, entries: Sequence[Entry]) -> Law:
    return StreamTableJoinLaw(_tree(node, entries), node.grace_us)


@law_of.register
def _(node: stream_join.StreamJoin, entries: Sequence[Entry]) -> Law:
    window = Window(**asdict(node.within))
    return StreamJoinLaw(_sides(node, entries), node.how, window, node.unmatched)


def _sides(node: nodes.JoinNode, entries: Sequence[Entry]) -> tuple[int, int]:
    """Return the positions of a join's left and right input."""
    return _source(node.left, entries), _source(node.right, entries)


def _tree(node: Node, entries: Sequence[Entry]) -> Tree:
    """Return a tree of joins with the positions of its inputs as leaves."""
    if not isinstance(node, nodes.JoinNode):
        return TreeLeaf(_source(node, entries))
    return TreeJoin(_tree(node.left, entries), _tree(node.right, entries), node.how)


def _source(node: Node, entries: Sequence[Entry]) -> int:
    """Return the position of a node among the entries."""
    return next(source_index for source_index, entry in enumerate(entries) if entry == node)
