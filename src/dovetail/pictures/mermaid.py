"""A topology as a mermaid flowchart, which GitHub, GitLab and many notebooks draw."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Final

from dovetail.base.text_cells import printable
from dovetail.physical.topology_graph import GraphKind, GraphNode, TopologyGraph

_SHAPES: Final[Mapping[GraphKind, tuple[str, str]]] = {
    "input": ("[(", ")]"),
    "view": ("{{", "}}"),
    "operator": ("[", "]"),
    "result": ("([", "])"),
    "sink": ("[(", ")]"),
}
"""The brackets around a text, by the kind of its node."""


def mermaid(graph: TopologyGraph) -> str:
    """Return the text of a mermaid flowchart from top to bottom, with a box around the nodes of
    each stage. A node shows its title and details, in a shape by its kind. A graph without nodes
    gives the header line alone.
    """
    lines = ["flowchart TD"]
    lines += _node_lines((node for node in graph.nodes if node.stage is None), "  ")
    for stage in graph.stages:
        lines.append(f"  subgraph s{stage.number}[{_quoted_text([stage.title])}]")
        lines += _node_lines((node for node in graph.nodes if node.stage == stage.number), "    ")
        lines.append("  end")
    lines += [f"  {source} --> {target}" for source, target in graph.edges]
    return "\n".join(lines)


def _node_lines(nodes: Iterable[GraphNode], indent: str) -> Iterator[str]:
    """Yield a line of mermaid's text for each node, in order: after ``indent`` its id, and its
    title and details in the brackets of its kind.
    """
    for node in nodes:
        opening, closing = _SHAPES[node.kind]
        label = _quoted_text(chain([node.title], node.details))
        yield f"{indent}{node.id}{opening}{label}{closing}"


def _quoted_text(lines: Iterable[str]) -> str:
    """Return lines as one text in double quotes, with codes for all signs that mean something in
    mermaid. Lines are joined by ``<br/>``, white space in a row becomes one space, and other
    unprintable characters become JSON's escapes.
    """
    coded = (re.sub(r'[#"`<>&\\]', lambda sign: f"#{ord(sign[0])};", line) for line in lines)
    return f'"{"<br/>".join(printable(" ".join(line.split())) for line in coded)}"'
