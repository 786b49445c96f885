"""The topology as text: joins as a tree, then the stages that run them."""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.plan.nodes import Node, Source, distinct_sources


def explain(node: Node) -> str:
    """The joins, the stage, its shuffle and its state.

    A tree of joins on one key is one stage; its inputs are shuffled once, by key, and each table's
    rows are stored once.
    """
    lines = ["Topology", *_tree(node, "", "")]
    inputs = distinct_sources(node)
    key = ", ".join(f"{f.name} {f.dataType.simpleString()}" for f in node.key)
    lines += [
        "",
        "Stage 1",
        f"  shuffle  by key ({key}) into buckets; {len(inputs)} inputs, packed as columns",
        "  state    " + "\n           ".join(f"{s.name}: last row per key" for s in inputs),
        "  keeps    no join results" if not isinstance(node, Source) else "  joins    none",
    ]
    return "\n".join(lines)


def _tree(node: Node, first: str, rest: str) -> Iterator[str]:
    if isinstance(node, Source):
        yield f"{first}{node.name}  ({_columns(node)})"
        return
    yield f"{first}{node.how} join by key  ({_columns(node)})"
    yield from _tree(node.left, rest + "├─ ", rest + "│  ")
    yield from _tree(node.right, rest + "└─ ", rest + "   ")


def _columns(node: Node) -> str:
    return f"key {', '.join(node.key.names)}; {', '.join(node.values.names) or 'no values'}"
