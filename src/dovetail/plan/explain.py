"""The topology as text: joins as a tree, then the stages that run them."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql.types import StructType

from dovetail.kernels.table_join import preserved
from dovetail.plan.explain_delta import on_of, stage_of, told
from dovetail.plan.nodes import (
    DeltaJoin,
    Derived,
    Entry,
    ForeignKeyJoin,
    JoinNode,
    Materialized,
    Node,
    Source,
    StreamJoin,
    StreamTableJoin,
    TableJoin,
    distinct_entries,
    joins,
    signature,
)
from dovetail.plan.spans import written
from dovetail.plan.stages import Input, looked_up


def explain(node: Node) -> str:
    """The joins, then the stages in the order in which they run, their shuffles and their state.

    A tree of joins on one key is one stage; its inputs are shuffled once, by key, and each input's
    rows are stored once. A join by foreign key is two.
    """
    lines = ["Topology", *_tree(node, "", "")]
    for number, stage in enumerate(_stages(node), start=1):
        lines += ["", f"Stage {number}", *stage]
    for join in joins(node):
        if join.verdicts:
            lines += ["", *told(join)]
    return "\n".join(lines)


def _stages(node: Node) -> Iterator[list[str]]:
    """Each stage's lines, after those of the stages that it reads."""
    for entry in distinct_entries(node):
        if isinstance(entry, Derived):
            yield from _stages(entry.node)
    if isinstance(node, ForeignKeyJoin):
        yield from _foreign_key_stages(node)
        return
    if isinstance(node, DeltaJoin):
        yield stage_of(node)
        return
    inputs = distinct_entries(node)
    on = looked_up(node)
    key = signature(StructType(Input(inputs[0], on or tuple(node.key.names)).key_fields))
    by = key if on and on != tuple(node.key.names) else f"key {key}"
    yield [
        f"  shuffle  by {by} into buckets; {_inputs(len(inputs))}, packed as columns",
        "  state    " + "\n           ".join(f"{s.name}: {_state(node, s)}" for s in inputs),
        "  joins    none"
        if isinstance(node, (Source, Materialized))
        else "  keeps    no join results",
    ]


def _inputs(count: int) -> str:
    return "1 input" if count == 1 else f"{count} inputs"


def _foreign_key_stages(node: ForeignKeyJoin) -> Iterator[list[str]]:
    left, right = node.left, node.right
    history = "" if right.versioned_us is None else f" for {written(right.versioned_us)}"
    yield [
        f"  shuffle  by key {signature(left.key)} into buckets; {left.name}, packed as columns",
        f"  state    {left.name}: foreign key per key",
    ]
    lines = [
        f"  shuffle  by foreign key {signature(right.key)} into buckets; {left.name}, {right.name}",
        f"  state    {left.name}: last row per foreign key and key",
        f"           {right.name}: {'every version' if history else 'last row'} per key{history}",
    ]
    if preserved(node.how)[1]:
        lines.append(f"           how many rows of {left.name} refer to each")
    yield [
        *lines,
        "  keeps    no join results",
        f"  shuffle  by key {signature(left.key)}: each key's changes in order",
    ]


def _tree(node: Node, first: str, rest: str) -> Iterator[str]:
    if isinstance(node, Derived):
        yield from _tree(node.node, first, rest)
        return
    if isinstance(node, Materialized):
        yield f"{first}materialized  ({_columns(node)})"
        yield from _tree(node.table, rest + "└─ ", rest + "   ")
        return
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
    if isinstance(node, DeltaJoin):
        return f"by look-ups on {', '.join(on_of(node))}"
    if isinstance(node, ForeignKeyJoin):
        on = (item if isinstance(item, str) else "an expression" for item in node.on)
        return f"by foreign key {', '.join(on)}{align}"
    late = ", late records correct the history" if _histories(node) else ""
    return f"by key{late}{align}"


def _histories(node: Node) -> bool:
    return isinstance(node, TableJoin) and node.late == "history"


def _state(node: Node, source: Entry) -> str:
    """What a stage stores of an input."""
    ahead = "" if not isinstance(node, JoinNode) or node.align_us is None else ", and what is ahead"
    return _rows(node, source) + ahead


def _rows(node: Node, source: Entry) -> str:
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
