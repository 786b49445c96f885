"""The topology as text: joins as a tree, then the stages that run them."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql.types import StructType

from dovetail.plan.nodes import (
    JoinNode,
    Node,
    Source,
    StreamJoin,
    StreamTableJoin,
    TableJoin,
    distinct_sources,
    signature,
)
from dovetail.plan.spans import written
from dovetail.plan.stages import Input, looked_up


def explain(node: Node) -> str:
    """The joins, the stage, its shuffle and its state.

    A tree of joins on one key is one stage; its inputs are shuffled once, by key, and each input's
    rows are stored once.
    """
    inputs = distinct_sources(node)
    on = looked_up(node)
    key = signature(StructType(Input(inputs[0], on or tuple(node.key.names)).key_fields))
    by = key if on and on != tuple(node.key.names) else f"key {key}"
    lines = [
        "Topology",
        *_tree(node, "", ""),
        "",
        "Stage 1",
        f"  shuffle  by {by} into buckets; {len(inputs)} inputs, packed as columns",
        "  state    " + "\n           ".join(f"{s.name}: {_state(node, s)}" for s in inputs),
        "  keeps    no join results" if not isinstance(node, Source) else "  joins    none",
    ]
    return "\n".join(lines)


def _tree(node: Node, first: str, rest: str) -> Iterator[str]:
    if isinstance(node, Source):
        yield f"{first}{node.name}  ({_columns(node)})"
        return
    yield f"{first}{node.how} join {_kind(node)}  ({_columns(node)})"
    yield from _tree(node.left, rest + "├─ ", rest + "│  ")
    yield from _tree(node.right, rest + "└─ ", rest + "   ")


def _kind(node: JoinNode) -> str:
    align = "" if node.align_us is None else f", aligned up to {written(node.align_us)}"
    if isinstance(node, StreamJoin):
        window = f"before {written(node.before_us)}, after {written(node.after_us)}"
        alone = "" if node.how == "inner" else f", unmatched {node.unmatched}"
        return f"of streams, {window}, grace {written(node.grace_us)}{alone}{align}"
    if isinstance(node, StreamTableJoin):
        grace = "" if node.grace_us is None else f", grace {written(node.grace_us)}"
        return f"of a stream with a table on {', '.join(node.on)}{grace}{align}"
    late = ", late records correct the history" if _histories(node) else ""
    return f"by key{late}{align}"


def _histories(node: Node) -> bool:
    return isinstance(node, TableJoin) and node.late == "history"


def _state(node: Node, source: Source) -> str:
    """What a stage stores of an input."""
    ahead = "" if isinstance(node, Source) or node.align_us is None else ", and what is ahead"
    return _rows(node, source) + ahead


def _rows(node: Node, source: Source) -> str:
    if not source.stream:
        if source.versioned_us is None:
            return "last row per key"
        return f"every version per key for {written(source.versioned_us)}"
    if isinstance(node, StreamJoin):
        kept = written(node.before_us + node.after_us + node.grace_us)
        alone = node.how != "inner" and node.unmatched == "on_close"
        return f"records of the last {kept}{', those without a match twice' if alone else ''}"
    if isinstance(node, StreamTableJoin) and node.grace_us is not None:
        return f"records that wait, for {written(node.grace_us)}"
    return "nothing"


def _columns(node: Node) -> str:
    return f"key {', '.join(node.key.names)}; {', '.join(node.values.names) or 'no values'}"
