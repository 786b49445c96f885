"""The forms in which ``explain`` describes a topology."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

from dovetail.base.text_cells import html_columns, printable
from dovetail.physical.explain import explain
from dovetail.physical.topology_graph import TopologyGraph, topology_graph
from dovetail.pictures.html import html
from dovetail.pictures.mermaid import mermaid
from dovetail.pictures.svg import svg
from dovetail.plan.nodes import Node

PictureFormat: TypeAlias = Literal["mermaid", "svg", "html"]
ExplainFormat: TypeAlias = Literal["text", "mermaid", "svg", "html"]

_PICTURES: Final[Mapping[str, Callable[[TopologyGraph], str]]] = {
    "mermaid": mermaid,
    "svg": svg,
    "html": html,
}


def print_or_draw(
    nodes: Sequence[Node],
    form: ExplainFormat,
    *,
    reasons: bool = False,
    sinks: Mapping[Node, Sequence[str]] = MappingProxyType({}),
) -> str | None:
    """Print the description of a topology with the results ``nodes`` and return None, or return its
    picture as text. The ``form`` ``"text"`` prints; ``"mermaid"``, ``"svg"`` and ``"html"`` return.

    ``reasons``: True to say also why each stage shuffles and stores rows; for ``"text"`` only.
    ``sinks``: by each result, the texts that name its targets. Raises ``PlanError`` for results
    that cannot be planned together. Raises ``ConfigurationError`` for ``"svg"`` and ``"html"`` if
    grandalf is not installed.
    """
    if form == "text":
        text = explain(*nodes, reasons=reasons, sinks=sinks)
        print("\n".join(map(printable, text.split("\n"))))
        return None
    return _PICTURES[form](topology_graph(*nodes, sinks=sinks))


def picture_of(*nodes: Node, sinks: Mapping[Node, Sequence[str]] = MappingProxyType({})) -> str:
    """Return the picture of a topology with the results ``nodes`` as SVG. Return an empty text if
    it cannot be drawn, for any error. ``sinks``: by each result, the texts that name its targets.
    """
    with suppress(Exception):
        return svg(topology_graph(*nodes, sinks=sinks))
    return ""


def notebook_forms(title: str, node: Node) -> dict[str, str]:
    """Return the texts that a notebook shows of a node, by media type: ``text/html`` with its
    columns and the picture, and the picture alone as ``text/vnd.mermaid`` and ``image/svg+xml``.

    ``title``: the text above the columns. Pictures that cannot be made are left out: without
    grandalf the SVG, for a topology that cannot be planned all of them. Nothing is raised for that.
    """
    columns = [(field.name, field.dataType.simpleString()) for field in node.row]
    html_parts, pictures = [html_columns(title, columns, len(node.key))], dict[str, str]()
    # A cell that shows a value must not fail: neither without grandalf nor for a topology that
    # cannot be planned.
    with suppress(Exception):
        graph = topology_graph(node)
        pictures["text/vnd.mermaid"] = mermaid(graph)
        pictures["image/svg+xml"] = svg(graph)
        html_parts.append(pictures["image/svg+xml"])
    return {"text/html": "\n".join(html_parts), **pictures}
