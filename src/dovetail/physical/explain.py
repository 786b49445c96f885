"""The topology as text: joins as a tree, then the stages that run them."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql.types import StructType

from dovetail.laws.stream_join import Window
from dovetail.laws.table_join import preserved
from dovetail.physical.explain_delta import on_of, stage_of, verdicts_of
from dovetail.physical.inputs import Input
from dovetail.physical.planner import looked_up
from dovetail.plan.checks import signature
from dovetail.plan.nodes import (
    Aggregation,
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
    Unwindowed,
    WindowJoin,
    base_key,
    distinct_entries,
    joins,
    windows_of,
)
from dovetail.plan.spans import written


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
            lines += ["", *verdicts_of(join)]
    return "\n".join(lines)


def _stages(node: Node) -> Iterator[list[str]]:
    """Each stage's lines, after those of the stages that it reads."""
    for entry in _read(node):
        if isinstance(entry, Derived):
            yield from _stages(entry.node)
    if isinstance(node, ForeignKeyJoin):
        yield from _foreign_key_stages(node)
        return
    if isinstance(node, (Unwindowed, WindowJoin)) or windows_of(node) is not None:
        yield _windows_stage(node)
        return
    if isinstance(node, Aggregation):
        yield from _aggregation_stages(node)
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


def _read(node: Node) -> list[Entry]:
    """What a node's stage reads; windowed tables are made in the stage that reads them."""
    found: dict[Entry, None] = {}
    for entry in distinct_entries(node):
        if isinstance(entry, Derived) and windows_of(entry) is not None:
            found |= dict.fromkeys(_read(entry.node))
        else:
            found[entry] = None
    return list(found)


def _aggregation_stages(node: Aggregation) -> Iterator[list[str]]:
    read = node.input
    group = signature(node.key)
    if not read.stream:
        yield [
            f"  shuffle  by key {signature(read.key)} into buckets; {read.name}, packed as columns",
            f"  state    {read.name}: last row per key, of it what is aggregated",
        ]
    yield [
        f"  shuffle  by {group} into buckets; {read.name}, packed as columns",
        "  state    accumulators per group",
    ]


def _windows_stage(node: Node) -> list[str]:
    inputs = _read(node)
    computed = node.input.node if isinstance(node, Unwindowed) else node
    kept = [f"{entry.name}: last row per key" for entry in inputs if not entry.stream]
    made = list(dict.fromkeys(_windowed(computed)))
    kept += [
        f"{one.name}: accumulators per key and window, until it is closed"
        for one in made
        if isinstance(one, Aggregation)
    ]
    for one in made:
        if isinstance(one, WindowJoin):
            spans = (windows_of(side) for side in (one.left, one.right))
            longest = max(windows.retention_us for windows in spans if windows is not None)
            kept.append(f"{one.name}: rows per key and window, for {written(longest)}")
    if isinstance(node, Unwindowed) and node.final:
        kept.append("rows per key and window, until it is closed")
    key = signature(base_key(computed))
    return [
        f"  shuffle  by {key} into buckets; {_inputs(len(inputs))}, packed as columns",
        "  state    " + "\n           ".join(kept),
    ]


def _windowed(node: Node) -> Iterator[Aggregation | WindowJoin]:
    """What is computed in a stage of windows, in the order of its operators."""
    if isinstance(node, WindowJoin):
        for entry in (node.left, node.right):
            if isinstance(entry, Derived) and windows_of(entry) is not None:
                yield from _windowed(entry.node)
    if isinstance(node, (Aggregation, WindowJoin)):
        yield node


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
    if isinstance(node, Aggregation):
        over = "" if node.windows is None else f", windows {node.windows}"
        yield f"{first}aggregate by {', '.join(node.by)}{over}  ({_columns(node)})"
        yield from _tree(node.input, rest + "└─ ", rest + "   ")
        return
    if isinstance(node, Unwindowed):
        final = ", each window once, when it is closed" if node.final else ""
        kind = "stream" if node.stream else "table"
        yield f"{first}windows as a {kind}{final}  ({_columns(node)})"
        yield from _tree(node.input, rest + "└─ ", rest + "   ")
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
    if isinstance(node, WindowJoin):
        return _window_kind(node)
    late = ", late records correct the history" if _histories(node) else ""
    return f"by key{late}{align}"


def _window_kind(node: WindowJoin) -> str:
    if windows_of(node.left) is None:
        looks = node.window_of if isinstance(node.window_of, str) else "an expression"
        return f"of the window that begins at {looks}"
    if windows_of(node.right) is None:
        return "of windows with their key's row"
    if node.shift_us:
        way = "later" if node.shift_us > 0 else "earlier"
        return f"of windows with those {written(abs(node.shift_us))} {way}"
    return "of the same windows"


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
        kept = written(Window(node.before_us, node.after_us, node.grace_us).retention_us)
        alone = node.how != "inner" and node.unmatched == "on_close"
        return f"records of the last {kept}{', those without a match twice' if alone else ''}"
    if isinstance(node, StreamTableJoin) and node.grace_us is not None:
        return f"records that wait, for {written(node.grace_us)}"
    return "nothing"


def _columns(node: Node) -> str:
    return f"key {', '.join(node.key.names)}; {', '.join(node.values.names) or 'no values'}"
