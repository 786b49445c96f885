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
    """Raise ``PlanError`` for the first column with random values, such as ``rand()``, that state
    stores, or that is a key of ``result``.

    Values computed after all state may be random, since each emission of a row writes them anew.
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
    """Yield the nodes of the stage that computes ``node`` whose values are computed after all
    state.

    These are the nodes of the stage without its inputs. Of an input that is a stream of a source,
    they are also its views, as the stage does not store them.
    """
    if not isinstance(node, Entry):
        yield node
        for part in node.inputs:
            yield from _nodes_after_state(part)
    elif node.stream and isinstance(node.base, Source):
        yield from views_of(node)
