"""Delta joins as text: what they look up, and how a join stands to their limitations."""

from __future__ import annotations

from pyspark.sql.types import StructType

from dovetail.lookup.source import covering
from dovetail.plan.checks import signature
from dovetail.plan.looked_up import has_fixed_key, lookup_of, needed_columns
from dovetail.plan.nodes import DeltaJoin, JoinNode


def on_of(node: DeltaJoin) -> list[str]:
    """The columns that are equal."""
    return [left if left == right else f"{left} = {right}" for left, right in node.on]


def stage_of(node: DeltaJoin) -> list[str]:
    """The lines of a delta join's stage."""
    lines = []
    left = {f.name: f for f in (*node.left.key, *node.left.values)}
    key = signature(StructType([left[pair[0]] for pair in node.on]))
    if not has_fixed_key(node.left, [pair[0] for pair in node.on]):
        lines.append(f"  shuffle  {node.left.name} by key: the last change of each")
    lines.append(f"  shuffle  by {key} into buckets; 2 inputs, packed as columns")
    lines.append("  state    none")
    for number, side in enumerate((node.left, node.right)):
        columns = [pair[number] for pair in node.on]
        source, needed = lookup_of(side), needed_columns(node)[number]
        assert source is not None
        index = covering(source, columns)
        assert index is not None
        read = [n for n in (*side.key.names, *side.values.names) if n in needed]
        kept = f"{node.cache[number]:,} rows a task" if has_fixed_key(side, columns) else "none"
        first = "  look-up  " if number == 0 else "           "
        lines.append(f"{first}{source.title} by {index.summary}: {', '.join(read)}; cache {kept}")
    return lines


def verdicts_of(join: JoinNode) -> list[str]:
    """Which join was chosen, and each limitation: met, or broken and why."""
    chosen = "chosen" if isinstance(join, DeltaJoin) else "not chosen"
    lines = [f"Delta join: {chosen} for {join.name}"]
    for verdict in join.verdicts:
        how = f"met, {verdict.how}" if verdict.broken is None else f"BROKEN, {verdict.broken}"
        lines.append(f"  {verdict.limit}: {how}")
    return lines
