"""The HTML of the page: one file without links to elsewhere."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from types import MappingProxyType
from typing import Any, NamedTuple

from dovetail.page.figures import Figures
from dovetail.page.search import RowReasons, StateSearch
from dovetail.physical.topology_graph import TopologyGraph, topology_graph
from dovetail.pictures.svg import svg
from dovetail.plan.nodes import Node


class Shown(NamedTuple):
    """All that the page of a query shows: its topology, its figures and its searches."""

    html: str
    """The text of the page."""
    figures: Figures
    search: StateSearch
    reasons: RowReasons | None = None
    """None if the topology is not known."""
    letters: str | None = None
    """The folder with the query's dead letters, None for none."""


_EMPTY = TopologyGraph((), (), ())


def page_html(
    name: str,
    results: Sequence[Node],
    *,
    stages: Sequence[str] = (),
    figures: bool = True,
    letters: bool = False,
    sinks: Mapping[Node, Sequence[str]] = MappingProxyType({}),
) -> str:
    """Return the page of a query as HTML, with its style sheet, script and picture in it. ``name``:
    the query's name. ``results``: the nodes of its results; empty if the topology is not known.

    ``stages``: the titles of its stages, which stand in place of the picture if there are no
    results. ``figures``: True if there are figures of its micro-batches. ``letters``: True if its
    dead letters can be shown. ``sinks``: by each result, the titles of its sinks. Raises
    ``ConfigurationError`` for results if grandalf, which places the picture's boxes, is not
    installed, and ``PlanError`` if they cannot be planned together.
    """
    graph = topology_graph(*results, sinks=sinks) if results else _EMPTY
    picture = svg(graph, rates=figures) if results else _stage_list(stages)
    setup = {
        "flows": _flows(graph),
        "figures": figures,
        "letters": letters,
        "results": [{"name": node.name, "key": node.key.names} for node in results],
    }
    parts = {
        "style": _page_file("style.css"),
        "script": _page_file("script.js"),
        "name": escape(name),
        "picture": picture,
        "setup": json.dumps(setup).replace("<", "\\u003c"),
    }
    # Parts are split off first: what is filled in is never taken for a place to fill.
    pieces = _page_file("page.html").split("{{")
    filled = [pieces[0]]
    for piece in pieces[1:]:
        name, _, rest = piece.partition("}}")
        filled += [parts[name], rest]
    return "".join(filled)


def _stage_list(stages: Sequence[str]) -> str:
    """Return the titles of stages, escaped, as an HTML list, followed by a sentence on why there is
    no picture.
    """
    lines = "".join(f"<li>{escape(title)}</li>" for title in stages)
    return (
        f"<ol>{lines}</ol>"
        '<p class="quiet">The picture needs the topology: '
        "<code>dovetail serve CHECKPOINT --topology module:name</code>.</p>"
    )


def _page_file(name: str) -> str:
    """Return the text of a file of the folder ``dovetail/page``, by its name: ``style.css``."""
    return files("dovetail.page").joinpath(name).read_text("utf-8")


def _flows(graph: TopologyGraph) -> list[dict[str, Any]]:
    """Return JSON data for each edge of the graph whose rows a figure counts, in the order of
    ``graph.flows``. ``stage``, an index from 1, and ``input``, a name, say which figure it is:

    | ``stage`` | ``input`` | the figure counts |
    |---|---|---|
    | None | given | rows that the query reads from the input |
    | given | given | rows of the input that come to the stage |
    | given | None | changes that the stage emits |

    ``source`` is the name of the input at the edge's start, None if no input is there. ``before``
    is the index, from 1, of the stage at the start, None outside of all stages. ``words`` names
    both ends.
    """
    nodes = {node.id: node for node in graph.nodes}
    return [
        {
            "stage": flow.stage,
            "input": flow.input,
            "source": nodes[start].title if nodes[start].kind == "input" else None,
            "before": nodes[start].stage,
            "words": f"{nodes[start].title} to {nodes[end].title}",
        }
        for (start, end), flow in graph.flows.items()
    ]
