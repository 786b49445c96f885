"""The law of each plan node that is one operator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import singledispatch

from pyspark.sql.types import StructType

from dovetail.laws.joins.stream_join import Window
from dovetail.laws.joins.table_join import Tree, TreeJoin, TreeLeaf
from dovetail.physical.specs.by_key import (
    DeduplicateLaw,
    ExpireLaw,
    ExplodeLaw,
    FillLaw,
    HistoryJoinLaw,
    StreamJoinLaw,
    StreamTableJoinLaw,
    TableJoinLaw,
    ToChangesLaw,
    TransactLaw,
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
    """Return the law of a plan node that is one operator: by default a join of tables by key.

    ``entries``: the inputs of the stage, each once, with all that the node reads. The law refers to
    inputs by their indices in ``entries``, from 0. Joins below the node in its stage are part of
    its law, as a tree. An input that is read twice has the same index twice. If ``entries`` lacks
    one that the law refers to, ``StopIteration`` is raised.
    """
    return TableJoinLaw(_join_tree(node, entries))


@law_of.register
def _law_of_history_join(node: table_join.HistoryJoin, entries: Sequence[Entry]) -> Law:
    """Return the law of a join of versioned tables over their history. ``entries``: the inputs of
    the stage, each once, by whose indices the law refers to both sides. A side that is missing
    raises ``StopIteration``.
    """
    return HistoryJoinLaw(_side_indices(node, entries), node.how)


@law_of.register
def _law_of_materialized(node: join_call.Materialized, entries: Sequence[Entry]) -> Law:
    """Return the law of a table of which only changes of its rows are emitted, not records that
    leave a row as it is. ``entries``: the inputs of the stage, each once, with those of the node.
    The law has the joins below the node as a tree.
    """
    return TableJoinLaw(_join_tree(node.node, entries), distinct=True)


@law_of.register
def _law_of_view(node: View, entries: Sequence[Entry]) -> Law:
    """Return the law of a view that has a stage to itself: a union of one input for a stream, else
    a join of one table. ``entries``: the inputs of the stage; for a table it must contain ``node``.
    """
    return UnionLaw() if node.stream else TableJoinLaw(_join_tree(node, entries))


@law_of.register(union.Union)
def _law_of_union(*_: object) -> Law:
    """Return the law of a union, the same for all. The arguments, a node and its inputs, do not
    matter.
    """
    return UnionLaw()


@law_of.register
def _law_of_deduplicated(node: Deduplicated, _: Sequence[Entry]) -> Law:
    """Return the law of a stream without repetitions within ``node.within_us`` microseconds. The
    inputs of the stage do not matter.
    """
    return DeduplicateLaw(node.within_us)


@law_of.register
def _law_of_expired(node: Expired, _: Sequence[Entry]) -> Law:
    """Return the law of a table whose rows expire ``node.after_us`` microseconds after their time.
    The inputs of the stage do not matter.
    """
    return ExpireLaw(node.after_us)


@law_of.register
def _law_of_exploded(node: Exploded, _: Sequence[Entry]) -> Law:
    """Return the law of a table with a row for each element of the array column ``node.column``.
    The inputs of the stage do not matter.

    ``node.position`` decides about the key: if it is not None, the element's position is part of
    it, else the element itself.
    """
    (element,) = arrow_schema(StructType([node.element]))
    column_index = node.node.values.names.index(node.column)
    return ExplodeLaw(column_index, element.type, node.position is not None)


@law_of.register
def _law_of_filled(node: Filled, _: Sequence[Entry]) -> Law:
    """Return the law of a table that fills omitted values with those of the key's former row. The
    inputs of the stage do not matter.

    ``node.unsent``: the column with the names of the columns that a record omits. If it is None, a
    null in one of the columns ``node.nulls`` is an omitted value. With that column, and
    ``node.missing`` ``"fail"``, an omitted value of a key without a former row is an error. Else it
    is null.
    """
    names = tuple(node.node.values.names)
    if node.unsent is None:
        nulls = tuple(names.index(name) for name in node.nulls)
        return FillLaw(-1, f"ignore_null_updates of {node.name}", names, False, nulls)
    return FillLaw(
        names.index(node.unsent), f"keep_former of {node.name}", names, node.missing == "fail"
    )


@law_of.register
def _law_of_transacted(node: Transacted, _: Sequence[Entry]) -> Law:
    """Return the law of a table of a database's events, without deletes of a row whose key has
    another row by then. Events that were sent before are left out, too.

    ``node.transaction``: the struct column with an event's kind, its transaction and its position
    there. The inputs of the stage do not matter.
    """
    return TransactLaw(node.node.values.names.index(node.transaction))


@law_of.register
def _law_of_to_changes(node: to_changes.ToChanges, _: Sequence[Entry]) -> Law:
    """Return the law of the rows before and after each change of a table, of the kinds
    ``node.kinds``. The inputs of the stage do not matter.
    """
    return ToChangesLaw(node.kinds)


@law_of.register
def _law_of_stream_table_join(
    node: stream_table_join.StreamTableJoin, entries: Sequence[Entry]
) -> Law:
    """Return the law of a stream joined with tables. ``entries``: the inputs of the stage, each
    once, whose indices are the leaves of the law's tree. An input that is missing raises
    ``StopIteration``.
    """
    return StreamTableJoinLaw(_join_tree(node, entries), node.grace_us)


@law_of.register
def _law_of_stream_join(node: stream_join.StreamJoin, entries: Sequence[Entry]) -> Law:
    """Return the law of a join of two streams within a window. ``entries``: the inputs of the
    stage, each once, by whose indices the law refers to both sides. A side that is missing raises
    ``StopIteration``.
    """
    window = Window(**asdict(node.within))
    return StreamJoinLaw(_side_indices(node, entries), node.how, window, node.unmatched)


def _side_indices(node: nodes.JoinNode, entries: Sequence[Entry]) -> tuple[int, int]:
    """Return the indices (from 0) of a join's left and right side among ``entries``, the inputs of
    the stage: for each the first that equals it. They are equal for a join of an input with itself.
    A side that is missing raises ``StopIteration``.
    """
    return _entry_index(node.left, entries), _entry_index(node.right, entries)


def _join_tree(node: Node, entries: Sequence[Entry]) -> Tree:
    """Return the joins below a node as a tree, whose leaves have the indices (from 0) of inputs
    among ``entries``. A node that is no join is a single leaf. An input that is not among
    ``entries`` raises ``StopIteration``.
    """
    if not isinstance(node, nodes.JoinNode):
        return TreeLeaf(_entry_index(node, entries))
    return TreeJoin(_join_tree(node.left, entries), _join_tree(node.right, entries), node.how)


def _entry_index(node: Node, entries: Sequence[Entry]) -> int:
    """Return the index of the first of ``entries``, inputs of a stage, that equals ``node``. It
    must contain one, else ``StopIteration`` is raised.
    """
    return next(source_index for source_index, entry in enumerate(entries) if entry == node)
