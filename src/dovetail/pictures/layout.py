"""The places of a topology's boxes and lines, computed by the package grandalf.

Each stage is laid out by itself, with a port on its upper border for each input. Then the stages
and all other nodes are laid out, so no box lies in a stage that is not its own. Rows go down.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from types import SimpleNamespace
from typing import Any, Final, TypeAlias

from dovetail.errors import ConfigurationError
from dovetail.physical.topology_graph import TopologyGraph

Point: TypeAlias = tuple[float, float]
Size: TypeAlias = tuple[float, float]

PADDING: Final = 14.0
"""The space between the border of a stage and the boxes in it."""
_GAP: Final = 20.0
"""The space between boxes beside each other."""
_LAYER_GAP: Final = 40.0
"""The space between boxes that follow one another, for lines."""
_PORT_GAP: Final = 28.0
"""The same within a stage. The gap below the ports also has the stage's title."""
_LANE: Final = 14.0
"""The width of a line that passes boxes, and of a port."""


@dataclass(frozen=True)
class Box:
    """A rectangle of a picture by its upper left corner and its size, in pixels."""

    x: float
    """The left border."""
    y: float
    """The upper border."""
    width: float
    height: float

    @property
    def entrance(self) -> Point:
        """The point at which edges enter the box: the middle of the upper border."""
        return self.x + self.width / 2, self.y

    @property
    def exit(self) -> Point:
        """The point at which edges leave the box: the middle of the lower border."""
        return self.x + self.width / 2, self.y + self.height

    def overlaps(self, other: Box) -> bool:
        """Return True if both boxes have a point in common, be it on their borders."""
        beside = self.x > other.x + other.width or other.x > self.x + self.width
        return not (beside or self.y > other.exit[1] or other.y > self.exit[1])

    def shifted(self, x: float, y: float) -> Box:
        """Return a copy of the box, ``x`` pixels further to the right and ``y`` pixels lower."""
        return Box(self.x + x, self.y + y, self.width, self.height)


@dataclass(frozen=True)
class Layout:
    """The places of all parts of a picture, in pixels from its upper left corner."""

    size: Size
    """The width and the height of everything, without a margin."""
    nodes: Mapping[str, Box]
    """The boxes of nodes, by id."""
    stages: Mapping[int, Box]
    """The boxes of stages, by their index from 1."""
    edges: Mapping[tuple[str, str], Sequence[Point]]
    """The points that each edge goes through, the first and the last on the borders of boxes."""


@dataclass(frozen=True)
class _Arranged:
    """Boxes and lines of one level: within a stage, or outside of all stages. Points are in pixels
    from the level's upper left corner.
    """

    size: Size
    """The width and the height of all boxes together."""
    boxes: Mapping[Hashable, Box]
    """The boxes of nodes, stages and ports by their keys: a node's id, a stage's index,
    ``_port_key``.
    """
    lines: Mapping[tuple[Hashable, Hashable], Sequence[Point]]
    """The points between both ends of each line; none if it passes no layer of boxes."""


def layout(graph: TopologyGraph, sizes: Mapping[str, Size]) -> Layout:
    """Return the places of all nodes, stages and edges of a graph, in pixels from the picture's
    upper left corner. ``sizes``: width and height by node id; each node needs them. A graph without
    nodes has the size (0, 0).

    ``graph``: its nodes have an id and perhaps a stage, its edges are pairs of ids. An edge goes
    from the lower border of its first node to the upper border of its second one. Raises
    ``ConfigurationError`` if grandalf is not installed.
    """
    library = grandalf_classes()
    unit: dict[str, Hashable] = {
        node.id: node.id if node.stage is None else node.stage for node in graph.nodes
    }
    within: dict[Hashable, _Arranged] = {
        stage.number: _arrange_stage(library, graph, stage.number, sizes) for stage in graph.stages
    }
    unit_sizes: dict[Hashable, Size] = {n: sizes[n] for n in unit if unit[n] == n}
    unit_sizes |= {
        number: (part.size[0] + 2 * PADDING, part.size[1] + 2 * PADDING)
        for number, part in within.items()
    }
    between = [(unit[s], unit[t]) for s, t in graph.edges if unit[s] != unit[t]]
    outer = _arrange_boxes(library, unit_sizes, between, _LAYER_GAP, low=True)
    boxes: dict[str, Box] = {}
    for node_id, owner in unit.items():
        box = outer.boxes[owner]
        if owner in within:
            box = within[owner].boxes[node_id].shifted(box.x + PADDING, box.y + PADDING)
        boxes[node_id] = box
    edges: dict[tuple[str, str], Sequence[Point]] = {}
    # A line goes straight out of a stage, past other boxes, and straight into a stage.
    for source, target in graph.edges:
        points = [boxes[source].exit]
        leaves, enters = unit[source], unit[target]
        inside = leaves == enters
        if not inside:
            if leaves in within:
                points.append((points[0][0], outer.boxes[leaves].exit[1]))
            points += outer.lines[leaves, enters]
        if enters in within:
            border = outer.boxes[enters]
            lane = within[enters].lines[source if inside else _port_key(source), target]
            passed = [(x + border.x + PADDING, y + border.y + PADDING) for x, y in lane]
            first = passed[0] if passed else boxes[target].entrance
            points += passed if inside else [(first[0], border.y), *passed]
        edges[source, target] = [*points, boxes[target].entrance]
    stages = {stage.number: outer.boxes[stage.number] for stage in graph.stages}
    return Layout(outer.size, boxes, stages, edges)


def grandalf_classes() -> SimpleNamespace:
    """Return a namespace with the classes ``Edge``, ``Graph``, ``Vertex`` and ``SugiyamaLayout`` of
    the package grandalf. Raises ``ConfigurationError`` if it is not installed.
    """
    try:
        from grandalf.graphs import Edge, Graph, Vertex
        from grandalf.layouts import SugiyamaLayout
    except ImportError as error:
        raise ConfigurationError(
            "explain",
            "grandalf, which places boxes, is not installed",
            "Install dovetail[pictures]",
        ) from error
    return SimpleNamespace(Edge=Edge, Graph=Graph, Vertex=Vertex, SugiyamaLayout=SugiyamaLayout)


def _port_key(source: str) -> Hashable:
    """Return the key of a port among the boxes of a stage: the pair ``("port", source)``. A port is
    the point of the stage's upper border at which rows from another node enter. ``source``: the id
    of that node, which lies outside of the stage.
    """
    return "port", source


def _arrange_stage(
    library: SimpleNamespace, graph: TopologyGraph, number: int, sizes: Mapping[str, Size]
) -> _Arranged:
    """Return the places of the nodes of one stage and of the edges that end in it. They are in
    pixels from the upper left corner within the stage's padding. Edges that come from elsewhere
    begin at ports, points of the upper border, which have no height.

    ``library``: grandalf's classes (``grandalf_classes``). ``number``: the stage's index in
    ``graph.stages``, from 1. ``sizes``: width and height in pixels by node id. The result has boxes
    by node id, or by ``("port", id)`` for a port of the node outside. Each box has its upper left
    corner and its size.
    """
    stage_sizes: dict[Hashable, Size] = {
        node.id: sizes[node.id] for node in graph.nodes if node.stage == number
    }
    lines: list[tuple[Hashable, Hashable]] = [
        (source if source in stage_sizes else _port_key(source), target)
        for source, target in graph.edges
        if target in stage_sizes
    ]
    ports: dict[Hashable, Size] = {
        source: (_LANE, 0.0) for source, _ in lines if source not in stage_sizes
    }
    return _arrange_boxes(library, {**ports, **stage_sizes}, lines, _PORT_GAP, low=False)


def _arrange_boxes(
    library: SimpleNamespace,
    sizes: Mapping[Hashable, Size],
    lines: Sequence[tuple[Hashable, Hashable]],
    layer_gap: float,
    *,
    low: bool,
) -> _Arranged:
    """Return the places of boxes in layers, ``layer_gap`` pixels apart, and the points of the lines
    between them. Parts of the graph that no line connects come beside each other.

    The result has the ``size`` of all boxes together. It has ``boxes`` by their keys, each with its
    upper left corner and its size. It has ``lines``: the points within each line by its pair of
    keys, without its ends. There are two of them for each layer that the line passes. All are in
    pixels from the upper left corner of the whole. Boxes of a layer keep the order of ``sizes``
    where that causes no crossing.

    ``library``: grandalf's classes (``grandalf_classes``). ``sizes``: width and height of each box
    by a key of its own. ``lines``: pairs of keys in ``sizes``, from the upper box to the lower one;
    a repeated pair counts once. Without boxes the size is (0, 0). ``low``: True to place each box
    as low as its lines allow, False to place it as high.
    """
    vertices = {key: library.Vertex(key) for key in sizes}
    for key, (width, height) in sizes.items():
        vertices[key].view = SimpleNamespace(w=width, h=height, xy=(0.0, 0.0))
    paths: dict[tuple[Hashable, Hashable], list[Point]] = {}
    edges = []
    for line in dict.fromkeys(lines):
        edge = library.Edge(vertices[line[0]], vertices[line[1]])
        edge.view = SimpleNamespace(setpath=partial(paths.__setitem__, line))
        edges.append(edge)
    boxes: dict[Hashable, Box] = {}
    passed: dict[tuple[Hashable, Hashable], Sequence[Point]] = {}
    width = height = 0.0
    for part in library.Graph(list(vertices.values()), edges).C:
        drawn = library.SugiyamaLayout(part)
        drawn.xspace, drawn.yspace, drawn.dw, drawn.dh = _GAP, layer_gap, _LANE, 0.0
        # The order of the boxes is kept where it causes no crossings.
        first = [v for v in vertices.values() if v in part.sV and not v.e_in()]
        drawn.init_all(roots=first, optimize=low)
        drawn.draw()
        half_heights = _separate_boxes(drawn.layers)
        drawn.draw_edges()
        here = {vertex.data: box_around(vertex.view.xy, sizes[vertex.data]) for vertex in part.sV}
        x = (width + _GAP if boxes else 0.0) - min(box.x for box in here.values())
        y = -min(box.y for box in here.values())
        boxes |= {key: box.shifted(x, y) for key, box in here.items()}
        for line in [line for line in paths if line[0] in here]:
            passed[line] = [
                (px + x, py + y + half)
                for px, py in paths[line][1:-1]
                for half in (-half_heights[py], half_heights[py])
            ]
        width = max(boxes[key].x + boxes[key].width for key in here)
        height = max(height, *(boxes[key].exit[1] for key in here))
    return _Arranged((width, height), boxes, passed)


def _separate_boxes(layers: Sequence[Sequence[Any]]) -> dict[float, float]:
    """Move boxes to the right that are closer than 20 pixels to their left neighbour, or overlap
    it, layer by layer. grandalf's own places of boxes of different widths may overlap.

    Return half of each layer's height by the y of its middle, in pixels. ``layers``: grandalf's
    vertices, at least one in each layer. Their views (``w``, ``h`` and ``xy``, the centre) are
    changed in place.
    """
    half_heights: dict[float, float] = {}
    for vertices in layers:
        half = max(vertex.view.h for vertex in vertices) / 2
        half_heights |= {vertex.view.xy[1]: half for vertex in vertices}
        free = -inf
        for view in sorted((vertex.view for vertex in vertices), key=lambda view: view.xy[0]):
            x = max(view.xy[0], free + view.w / 2)
            view.xy = (x, view.xy[1])
            free = x + view.w / 2 + _GAP
    return half_heights


def box_around(centre: Point, size: Size) -> Box:
    """Return the box of ``size``, a width and a height in pixels, around the point ``centre``."""
    width, height = size
    return Box(centre[0] - width / 2, centre[1] - height / 2, width, height)
