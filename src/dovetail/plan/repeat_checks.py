"""Checks for micro-batches that run again after a failure between a sink's commit and Spark's
commit.

A repeated micro-batch must make the same rows, in state and in the keys of sinks.
"""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.plan.nodes import Entry, Node, Source
from dovetail.plan.types.expressions import refuse_random
from dovetail.plan.views import split_result_views, views_of


def refuse_random_state(result: Node) -> None:
    """Raise ``PlanError`` for the first column with random values, such as ``rand()``, in state or
    in the key of ``result``, a topology's result.

    Values computed after all state, by the last selection or the views behind it, may be random. A
    repeated micro-batch would write them anew under the same key.
    """
    computed, views = split_result_views(result)
    last = set(_nodes_after_state(computed))
    for node in dict.fromkeys(computed.walk()):
        for field in () if node in last else node.values:
            refuse_random(node.name, f"column {field.name!r}", field)
    for view in views:
        for field in view.key:
            refuse_random(view.name, f"key column {field.name!r}", field)


def _nodes_after_state(node: Node) -> Iterator[Node]:
    """Yield the nodes of the stage that computes ``node`` whose values state does not store:
    ``node`` and the nodes below it in the stage. A node may come twice.

    The stage's inputs are left out, but for one kind: of an input that is a stream and no stage's
    result, its views are yielded. The source below these views is not.
    """
    if not isinstance(node, Entry):
        yield node
        for part in node.inputs:
            yield from _nodes_after_state(part)
    elif node.stream and isinstance(node.base, Source):
        yield from views_of(node)
