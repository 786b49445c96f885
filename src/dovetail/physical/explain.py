"""The topology as text: nodes as trees, the stages that run them, and the checks of delta joins."""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.physical.planner import plan_of
from dovetail.physical.specs.look_up import look_ups, store_look_up
from dovetail.physical.stage import Stage
from dovetail.plan.fingerprint import in_one_order
from dovetail.plan.nodes import Derived, Node
from dovetail.plan.transforms.unwindow import as_table


def explain(*nodes: Node) -> str:
    """Describe the nodes, then the stages in the order in which they run.

    For each stage: what is shuffled and by which key, what is stored under which name, and what is
    looked up. With several results, a stage that computes one also names it. Then come the
    limitations that were checked for each delta join.

    A tree of joins on one key is one stage: each input is shuffled once and stored once. A join by
    foreign key is three stages. Stages that several results share are listed once.
    """
    lines = [line for node in nodes for line in ("", "Topology", *_tree(node, "", ""))][1:]
    run = [node for node in nodes if not (node.stream and node in node.origins)]
    if run:
        read = [as_table(node, "on_change") if node.windows else node for node in run]
        read = in_one_order(read) if len(read) > 1 else read
        plan = plan_of(read, buckets=1, emit="change")
        for stage_number, stage in enumerate(plan.stages, start=1):
            lines += ["", f"Stage {stage_number}", *_stage(stage)]
            if len(read) > 1 and any(stage is result.stage for result in plan.results):
                lines.append(f"  result   {stage.node.name}")
    for part in dict.fromkeys(part for node in nodes for part in node.walk()):
        if part.verdicts:
            lines += ["", *_verdicts(part)]
    return "\n".join(lines)


def _stage(stage: Stage) -> Iterator[str]:
    """Yield the lines of one stage."""
    fragment = stage.fragment
    names = dict.fromkeys(port.source.name for port in stage.ports)
    yield f"  shuffle  {', '.join(names)} by {stage.by}"
    stored = [f"{name}: {store.holds}" for name, store in fragment.stores.items()]
    looked_up = [
        line for operator in fragment.operators for line in operator.law.looks_up(operator.sources)
    ]
    looked_up += [store_look_up(view).summary for view in look_ups(stage)]
    for title, lines in (("state", stored or ["none"]), ("look-up", looked_up)):
        for line_index, line in enumerate(lines):
            yield f"  {'' if line_index else title:<9}{line}"


def _tree(node: Node, first: str, indent: str) -> Iterator[str]:
    """Yield the lines of a node and of its inputs, as a tree.

    ``first`` precedes the node's own line, ``indent`` the lines of its inputs.
    """
    if isinstance(node, Derived):
        yield from _tree(node.node, first, indent)
        return
    columns = f"key {', '.join(node.key.names)}; {', '.join(node.values.names) or 'no values'}"
    yield f"{first}{node.summary}  ({columns})"
    for child_number, child in enumerate(node.inputs, start=1):
        last = child_number == len(node.inputs)
        yield from _tree(
            child, indent + ("└─ " if last else "├─ "), indent + ("   " if last else "│  ")
        )


def _verdicts(join: Node) -> Iterator[str]:
    """Yield the chosen kind of join, then each limitation: met, or broken and why."""
    yield f"Delta join: {'chosen' if join.eventual else 'not chosen'} for {join.name}"
    for verdict in join.verdicts:
        how = f"met, {verdict.how}" if verdict.broken is None else f"BROKEN, {verdict.broken}"
        yield f"  {verdict.limit}: {how}"
