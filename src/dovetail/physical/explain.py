"""The topology as text: nodes as trees, the stages that run them, and the checks of delta joins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from dovetail.physical.topology_graph import GraphStage, columns_of, topology_graph
from dovetail.plan.nodes import Derived, Node


def explain(
    *nodes: Node,
    reasons: bool = False,
    sinks: Mapping[Node, Sequence[str]] = MappingProxyType({}),
) -> str:
    """Return the topology of these nodes as text: each as a tree, then the stages in the order in
    which they run.

    For each stage: what is shuffled and by which key, what is stored under which name, and what is
    looked up. With several results, a stage that computes one also names it. With ``reasons``, why
    rows are shuffled and stored. Then come, in any case, the limitations that were checked for each
    delta join, even for one that was not chosen.

    ``sinks``: for each result the titles of its targets, which make the last lines. Without targets
    these are left out. Without nodes and targets the text is empty. Raises ``PlanError`` for nodes
    that cannot be planned together.

    A tree of joins on one key is one stage: each input is shuffled once and stored once. A join by
    foreign key is three stages. Parts that several results share are described once.
    """
    shown: set[Node] | None = set() if len(nodes) > 1 else None
    lines = [
        line for node in nodes for line in ("", "Topology", *_tree_lines(node, "", "", shown))
    ][1:]
    for stage in topology_graph(*nodes).stages:
        lines += ["", *_stage_lines(stage, reasons=reasons)]
    for part in dict.fromkeys(part for node in nodes for part in node.walk()):
        if part.verdicts:
            lines += ["", *_verdict_lines(part)]
    targets = [f"{node.name} → {title}" for node, titles in sinks.items() for title in titles]
    if targets:
        lines += ["", "Sinks", *(f"  {line}" for line in targets)]
    return "\n".join(lines)


def _stage_lines(stage: GraphStage, *, reasons: bool) -> Iterator[str]:
    """Yield the lines of one stage: its index from 1, then what it shuffles, stores and looks up,
    and its result. Stages without stores have ``none`` as their state; other empty parts have no
    line. ``reasons``: True to add why rows are shuffled and stored.
    """
    yield f"Stage {stage.number}"
    yield f"  shuffle  {', '.join(stage.reads)} by {stage.by}"
    for title, lines in (
        ("reason", stage.reasons if reasons else ()),
        ("state", stage.state or ("none",)),
        ("lookup", stage.lookups),
    ):
        for line_index, line in enumerate(lines):
            yield f"  {'' if line_index else title:<9}{line}"
    if stage.result is not None:
        yield f"  result   {stage.result}"


def _tree_lines(node: Node, first: str, indent: str, shown: set[Node] | None) -> Iterator[str]:
    """Yield the lines of a node and of its inputs, as a tree. The result of another stage is drawn
    as the node that the stage computes.

    ``first``: the text before the node's own line. ``indent``: the text before the lines of its
    inputs. ``shown``: the nodes drawn so far, to which this adds; one of them gets the line ``… as
    above``, without its inputs. None draws all anew.
    """
    if isinstance(node, Derived):
        yield from _tree_lines(node.node, first, indent, shown)
        return
    line = f"{first}{node.summary}  ({'; '.join(columns_of(node))})"
    if shown is not None and node.inputs:
        if node in shown:
            yield f"{line}, as above"
            return
        shown.add(node)
    yield line
    for child_number, child in enumerate(node.inputs, start=1):
        last = child_number == len(node.inputs)
        own, below = ("└─ ", "   ") if last else ("├─ ", "│  ")
        yield from _tree_lines(child, indent + own, indent + below, shown)


def _verdict_lines(join: Node) -> Iterator[str]:
    """Yield a line with the outcome, ``chosen`` or ``not chosen``. Then yield a line for each
    limitation of delta joins: ``met`` and by what, or ``BROKEN`` and why. ``join``: a node with
    verdicts.
    """
    yield f"Delta join: {'chosen' if join.eventual else 'not chosen'} for {join.name}"
    for verdict in join.verdicts:
        how = f"met, {verdict.how}" if verdict.broken is None else f"BROKEN, {verdict.broken}"
        yield f"  {verdict.limit}: {how}"
