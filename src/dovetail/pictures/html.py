"""A topology as a page of HTML, and a table's columns as a notebook shows them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from dovetail.base.text_cells import escaped
from dovetail.physical.topology_graph import TopologyGraph
from dovetail.pictures.svg import svg
from dovetail.plan.nodes import Node

_STYLE: Final = """
:root { color-scheme: light dark; }
body { font-family: system-ui, sans-serif; margin: 1.5rem; }
table { border-collapse: collapse; margin-top: 1.5rem; font-size: 0.85rem; }
th, td { border: 1px solid #8a949f; padding: 0.3rem 0.6rem; text-align: left; }
td { vertical-align: top; }
"""


def html(graph: TopologyGraph) -> str:
    """Return a page that needs no other file: the picture, then a table of all nodes.

    Raises ``ConfigurationError`` without grandalf.
    """
    rows = (
        (node.kind, node.title, str(node.stage or ""), "\n".join(node.details))
        for node in graph.nodes
    )
    return "\n".join(
        [
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f"<title>Topology</title>\n<style>{_STYLE}</style>\n</head>\n<body>",
            svg(graph),
            table(("kind", "name", "stage", "details"), rows),
            "</body>\n</html>",
        ]
    )


def columns_table(title: str, node: Node) -> str:
    """Return a title and a table of the node's columns: names, types and membership in the key."""
    keys = len(node.key)
    rows = (
        (field.name, field.dataType.simpleString(), "key" if index < keys else "")
        for index, field in enumerate(node.row)
    )
    return f"<strong>{escaped(title)}</strong>\n{table(('column', 'type', ''), rows)}"


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table with these titles above its columns."""
    lines = [_row("th", titles), *(_row("td", row) for row in rows)]
    return "\n".join(["<table>", *lines, "</table>"])


def _row(cell: str, texts: Sequence[str]) -> str:
    """Return one row of a table. Lines of a cell stay apart."""
    cells = (f"<{cell}>{escaped(text).replace(chr(10), '<br>')}</{cell}>" for text in texts)
    return f"<tr>{''.join(cells)}</tr>"
