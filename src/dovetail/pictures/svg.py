"""A topology as an SVG image, readable on light and dark screens without fonts or scripts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from textwrap import shorten, wrap
from typing import Final, TypeAlias

from dovetail.base.text_cells import escaped, printable
from dovetail.physical.topology_graph import GraphKind, GraphNode, GraphStage, TopologyGraph
from dovetail.pictures.layout import PADDING, Box, Layout, Point, box_around, layout

Line: TypeAlias = tuple[str, str]
"""The class of a line of text, and the text."""

_STYLE: Final = """
.dt-topology { background: #ffffff; color: #1b1f24; font-family: system-ui, sans-serif; }
.dt-topology text { fill: #1b1f24; font-size: 11px; }
.dt-topology .dt-name { font-size: 13px; font-weight: 600; }
.dt-topology .dt-detail, .dt-topology .dt-heading { fill: #4a525c; }
.dt-topology .dt-heading { paint-order: stroke; stroke: #f5f6f8; stroke-width: 4px; }
.dt-topology .dt-rate { font-weight: 600; paint-order: stroke; stroke: #f5f6f8;
  stroke-width: 4px; text-anchor: middle; }
.dt-topology .dt-stage { fill: #f5f6f8; stroke: #8a949f; stroke-dasharray: 5 4; }
.dt-topology .dt-edge { fill: none; stroke: #5b6570; stroke-width: 1.4; }
.dt-topology .dt-arrow { fill: #5b6570; }
.dt-topology .dt-shape { stroke-width: 1.5; }
.dt-topology .dt-input .dt-shape { fill: #e2effc; stroke: #1f6fb2; }
.dt-topology .dt-view .dt-shape { fill: #fdf2d3; stroke: #936600; }
.dt-topology .dt-operator .dt-shape { fill: #ece8fb; stroke: #5b45b8; }
.dt-topology .dt-result .dt-shape { fill: #def4e4; stroke: #1d7a3e; }
.dt-topology .dt-sink .dt-shape { fill: #f1f3f5; stroke: #5b6570; }
@media (prefers-color-scheme: dark) {
.dt-topology { background: #14181c; color: #eef1f4; }
.dt-topology text { fill: #eef1f4; }
.dt-topology .dt-detail, .dt-topology .dt-heading { fill: #bcc5ce; }
.dt-topology .dt-heading, .dt-topology .dt-rate { stroke: #1d2227; }
.dt-topology .dt-stage { fill: #1d2227; stroke: #6f7a86; }
.dt-topology .dt-edge { stroke: #98a3ae; }
.dt-topology .dt-arrow { fill: #98a3ae; }
.dt-topology .dt-input .dt-shape { fill: #12304d; stroke: #6db3f2; }
.dt-topology .dt-view .dt-shape { fill: #3b2e0a; stroke: #dfae4c; }
.dt-topology .dt-operator .dt-shape { fill: #2a2350; stroke: #a99bf5; }
.dt-topology .dt-result .dt-shape { fill: #123821; stroke: #62c983; }
.dt-topology .dt-sink .dt-shape { fill: #262c33; stroke: #98a3ae; }
}
"""
_MARGIN: Final = 16.0
_INSET: Final = 14.0
"""The space between the border of a box and its text."""
_LINE: Final = 15.0
"""The height of a line of text."""
_WIDTH_MIN: Final = 90.0
"""The least width of the text in a box."""
_SIGNS_MAX: Final = 40
"""The longest line in a box, in characters."""
_LINES_MAX: Final = 3
"""The most lines that a title or a detail takes. The title of the box has all of it."""
_HEADING_MAX: Final = 60
"""The longest title of a stage, in characters."""
_ARROW: Final = 7.0
_DRUMS: Final = ("input", "sink")
"""The kinds that are drawn as drums: what lies outside."""
_RATE: Final = (84.0, 14.0)
"""The size of the text beside an edge, in pixels."""


def svg(graph: TopologyGraph, *, rates: bool = False) -> str:
    """Return the picture of a topology as an SVG element with its own style sheet, as text. Raises
    ``ConfigurationError`` without the package grandalf, which places the boxes.

    ``rates``: True to add an empty text element (class ``dt-rate``) beside each edge whose rows a
    figure counts, in the order of ``graph.flows``. The live page fills in these texts.
    """
    lines = {node.id: _text_lines(node) for node in graph.nodes}
    headings = {stage.number: _heading_line(stage) for stage in graph.stages}
    sizes = {
        node.id: (
            _box_width([*lines[node.id], *((headings[node.stage],) if node.stage else ())]),
            _LINE * len(lines[node.id]) + _INSET + _cap_height(node.kind),
        )
        for node in graph.nodes
    }
    places = layout(graph, sizes)
    width, height = (length + 2 * _MARGIN for length in places.size)
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" class="dt-topology" role="img"',
        f' width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"',
        ' style="max-width: 100%; height: auto">',
        "<title>Topology</title>",
        f"<style>{_STYLE}</style>",
        f'<g transform="translate({_MARGIN:.0f} {_MARGIN:.0f})">',
        *(_stage_element(stage, places.stages[stage.number]) for stage in graph.stages),
        *(_edge_element(points) for points in places.edges.values()),
        *(
            _text_element(*headings[number], box.x + PADDING, box.y + _LINE + 6)
            for number, box in places.stages.items()
        ),
        *(_node_element(node, lines[node.id], places.nodes[node.id]) for node in graph.nodes),
        *(_rate_element(box) for box in (_rate_boxes(graph, places) if rates else ())),
        "</g>",
        "</svg>",
    ]
    return "\n".join(parts)


def _text_lines(node: GraphNode) -> list[Line]:
    """Return the lines of text in a node's box: the title, then each detail, wrapped to at most
    three lines each and cut. A line is a pair of a class in the style sheet and a text.
    """
    named = [("dt-name", line) for line in _wrap_text(node.title)]
    return named + [("dt-detail", line) for detail in node.details for line in _wrap_text(detail)]


def _wrap_text(text: str) -> list[str]:
    """Return a text in lines that fit into a box: at most three of at most 40 characters. A longer
    text loses its end, and its last line ends with `` …``, which counts. Unprintable characters
    become JSON's escapes, and an empty text has no lines. Words of more than 40 characters are
    broken.
    """
    return wrap(printable(text), _SIGNS_MAX, max_lines=_LINES_MAX, placeholder=" …")


def _box_width(lines: Sequence[Line]) -> float:
    """Return the width in pixels of a box with these lines and their margins, at least 118. Fonts
    differ, so the width of text is estimated from above. ``lines``: pairs of a class in the style
    sheet and a text, at least one.
    """
    signs = (len(line) * (8.0 if name == "dt-name" else 6.5) for name, line in lines)
    return max(_WIDTH_MIN, *signs) + 2 * _INSET


def _cap_height(kind: GraphKind) -> float:
    """Return the extra height in pixels above the text in the shape of a node of this kind: that of
    the rim for inputs and sinks, which are drums, 0 for all others.
    """
    return 8.0 if kind in _DRUMS else 0.0


def _heading_line(stage: GraphStage) -> Line:
    """Return the title of a stage as one line, a pair of a class in the style sheet and a text. The
    text has at most 60 characters. A longer title loses whole words at its end, and `` …`` follows,
    which counts. Unprintable characters become JSON's escapes.
    """
    return "dt-heading", shorten(printable(stage.title), _HEADING_MAX, placeholder=" …")


def _stage_element(stage: GraphStage, box: Box) -> str:
    """Return the SVG element of a stage's frame, a rectangle at ``box``. Its tooltip has the
    stage's title and reasons.
    """
    hint = escaped("\n".join([stage.title, *stage.reasons]))
    return f"<g><title>{hint}</title>{_rect_element('dt-stage', box, 8)}</g>"


def _node_element(node: GraphNode, lines: Sequence[Line], box: Box) -> str:
    """Return the SVG element of a node in ``box``: its shape, its lines of text, and a tooltip with
    the whole text. ``lines``: pairs of a class in the style sheet and a plain text.
    """
    hint = escaped("\n".join([f"{node.kind}: {node.title}", *node.details]))
    x, y = box.x + _INSET, box.y + _cap_height(node.kind) + _LINE + 3
    texts = (
        _text_element(name, line, x, y + _LINE * line_number)
        for line_number, (name, line) in enumerate(lines)
    )
    return (
        f'<g class="dt-node dt-{node.kind}"><title>{hint}</title>'
        f"{_outline_element(node.kind, box)}{''.join(texts)}</g>"
    )


def _text_element(name: str, line: str, x: float, y: float) -> str:
    """Return the SVG element of one line of text at the point (``x``, ``y``) in pixels, where its
    baseline begins. ``name``: its class in the style sheet. ``line``: a plain text, which is
    escaped.
    """
    return f'<text class="{name}" x="{x:.1f}" y="{y:.1f}">{escaped(line)}</text>'


def _rect_element(name: str, box: Box, corner: float) -> str:
    """Return the SVG element of a rectangle at ``box`` with round corners. ``name``: its class in
    the style sheet. ``corner``: the radius of its corners in pixels.
    """
    return (
        f'<rect class="{name}" x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" '
        f'height="{box.height:.1f}" rx="{corner}"/>'
    )


def _outline_element(kind: GraphKind, box: Box) -> str:
    """Return the SVG element of a node's outline in ``box``, by its kind: a drum for an input or a
    sink, a hexagon for a view, a box for an operator, a pill for a result.
    """
    x, y, width, height = box.x, box.y, box.width, box.height
    if kind in _DRUMS:
        rim = _cap_height(kind) / 2
        arc = f"a {width / 2:.1f} {rim:.1f} 0 0"
        outline = (
            f"M {x:.1f} {y + rim:.1f} {arc} 1 {width:.1f} 0 v {height - 2 * rim:.1f} "
            f"{arc} 1 {-width:.1f} 0 z M {x:.1f} {y + rim:.1f} {arc} 0 {width:.1f} 0"
        )
        return f'<path class="dt-shape" d="{outline}"/>'
    if kind == "view":
        half, tip = height / 2, 8.0
        outline = (
            f"M {x:.1f} {y + half:.1f} l {tip} {-half:.1f} h {width - 2 * tip:.1f} "
            f"l {tip} {half:.1f} l {-tip} {half:.1f} h {2 * tip - width:.1f} z"
        )
        return f'<path class="dt-shape" d="{outline}"/>'
    return _rect_element("dt-shape", box, 16 if kind == "result" else 3)


def _edge_element(points: Sequence[Point]) -> str:
    """Return two SVG elements: a curve through the points, upright at each of them, and an arrow at
    its end. ``points``: x and y in pixels, from top to bottom, at least two.
    """
    end_x, end_y = points[-1]
    points = [*points[:-1], (end_x, end_y - _ARROW)]
    curve = f"M {points[0][0]:.1f} {points[0][1]:.1f}"
    for (x, y), (next_x, next_y) in pairwise(points):
        middle = (y + next_y) / 2
        curve += f" C {x:.1f} {middle:.1f} {next_x:.1f} {middle:.1f} {next_x:.1f} {next_y:.1f}"
    arrow = f"M {end_x:.1f} {end_y:.1f} l -4 {-_ARROW} h 8 z"
    return f'<path class="dt-edge" d="{curve}"/><path class="dt-arrow" d="{arrow}"/>'


def _rate_boxes(graph: TopologyGraph, places: Layout) -> Iterator[Box]:
    """Yield a box for the text of each edge with a figure, in the order of ``graph.flows``.
    ``places``: the layout of the graph.

    The box lies on the edge, at the first point tried where it overlaps no node, no stage's title
    and no earlier box. The points are those of ``_points_along``. If none is free, it lies in the
    middle of the edge's tallest part.
    """
    taken = [*places.nodes.values(), *map(_heading_box, graph.stages, places.stages.values())]
    for edge in graph.flows:
        boxes = [box_around(point, _RATE) for point in _points_along(places.edges[edge])]
        free = (box for box in boxes if not any(map(box.overlaps, taken)))
        box = next(free, boxes[0])
        taken.append(box)
        yield box


def _heading_box(stage: GraphStage, box: Box) -> Box:
    """Return the box of a stage's title, within ``box``, the stage's own. Its width is estimated
    from the count of characters.
    """
    return Box(box.x + PADDING, box.y + 6, 6.5 * len(_heading_line(stage)[1]), _LINE)


def _points_along(points: Sequence[Point]) -> Iterator[Point]:
    """Yield three points of each part of an edge, a curve between two of ``points``: first the
    middles of all parts, the tallest first, then their points at 30% and at 70% of the height.
    ``points``: x and y in pixels, from top to bottom, at least two.
    """
    parts = sorted(pairwise(points), key=lambda part: part[0][1] - part[1][1])
    for share in (0.5, 0.3, 0.7):
        for (x, y), (next_x, next_y) in parts:
            # The curve between two points goes upright at both.
            across = share * share * (3 - 2 * share)
            yield x + across * (next_x - x), y + share * (next_y - y)


def _rate_element(box: Box) -> str:
    """Return the empty SVG text element for the rate of rows at an edge, centred in ``box``. The
    live page fills it in.
    """
    return f'<text class="dt-rate" x="{box.entrance[0]:.1f}" y="{box.y + 11:.1f}"></text>'
