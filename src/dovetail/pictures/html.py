"""A topology as a page of HTML."""

from __future__ import annotations

from typing import Final

from dovetail.base.text_cells import html_table
from dovetail.physical.topology_graph import TopologyGraph
from dovetail.pictures.svg import svg

_STYLE: Final = """
:root { color-scheme: light dark; }
body { font-family: system-ui, sans-serif; margin: 1.5rem; }
table { border-collapse: collapse; margin-top: 1.5rem; font-size: 0.85rem; }
th, td { border: 1px solid #8a949f; padding: 0.3rem 0.6rem; text-align: left; }
td { vertical-align: top; }
"""


def html(graph: TopologyGraph) -> str:
    """Return a whole HTML page of a topology that needs no other file: the picture, a table of all
    nodes, and one of the stages with the reasons why they shuffle and store rows.

    Raises ``ConfigurationError`` without the package grandalf, which places the picture's boxes.
    """
    rows = (
        (node.kind, node.title, str(node.stage or ""), "\n".join(node.details))
        for node in graph.nodes
    )
    stages = ((stage.title, "\n".join(stage.reasons)) for stage in graph.stages)
    return "\n".join(
        [
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f"<title>Topology</title>\n<style>{_STYLE}</style>\n</head>\n<body>",
            svg(graph),
            html_table(("kind", "name", "stage", "details"), rows),
            html_table(("stage", "why rows are shuffled and stored"), stages),
            "</body>\n</html>",
        ]
    )
