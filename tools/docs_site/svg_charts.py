"""Charts as pictures for light and dark screens, without fonts, scripts or other files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

TEXT_WIDTH = 30
"""Characters of the longest bar."""
SVG_WIDTH = 430
"""Units of the picture, of which the longest bar takes all but the room for its value."""
VALUE_ROOM = 126
BAR_STEP = 42
TOP = 34
STYLE = """
    text { fill: #263238; }
    .title { fill: #546e7a; font-weight: 600; }
    .bar { fill: #b2dfdb; stroke: #00897b; }
    .even { stroke: #263238; stroke-width: 2; }
    @media (prefers-color-scheme: dark) {
      text { fill: #eceff1; }
      .title { fill: #b0bec5; }
      .bar { fill: #00504a; stroke: #4db6ac; }
      .even { stroke: #eceff1; }
    }
"""
PLOT_WIDTH, PLOT_HEIGHT = 640, 200
LEGEND_COLUMNS = 4
LINES_STYLE = """
    .axis { stroke: #90a4ae; stroke-width: 0.6; fill: none; }
    .tick { text-anchor: end; font-size: 11px; }
    .low { text-anchor: middle; }
    .line { fill: none; stroke-width: 2; }
    .l0 { stroke: #00796b; }
    .l1 { stroke: #a04b00; }
    .l2 { stroke: #3b5bdb; }
    .l3 { stroke: #9c36b5; }
    .l4 { stroke: #5c7300; }
    .l5 { stroke: #c2255c; }
    .l6 { stroke: #37474f; }
    .l7 { stroke: #b3261e; }
    @media (prefers-color-scheme: dark) {
      .l0 { stroke: #4db6ac; }
      .l1 { stroke: #ffb066; }
      .l2 { stroke: #91a7ff; }
      .l3 { stroke: #e599f7; }
      .l4 { stroke: #c0d850; }
      .l5 { stroke: #faa2c1; }
      .l6 { stroke: #b0bec5; }
      .l7 { stroke: #f2958f; }
    }
"""


@dataclass(frozen=True)
class Chart:
    """Bars with a title."""

    title: str
    unit: str
    """What stands behind a value."""
    even: float | None
    """The value at which two things are equal, marked on each bar."""
    bars: list[tuple[str, float]]
    """Labels and values, none of them negative."""

    def value(self, number: float) -> str:
        """Return a value with its unit."""
        return f"{number:g} {self.unit}"


def text_of(chart: Chart) -> str:
    """Return a chart as lines of text."""
    width = max(len(label) for label, _ in chart.bars)
    most = max(value for _, value in chart.bars)
    lines = [
        f"{label:{width}}  {'#' * max(1, round(TEXT_WIDTH * value / most))} {chart.value(value)}"
        for label, value in chart.bars
    ]
    return "\n".join([chart.title, "", *lines])


def sentence_of(chart: Chart) -> str:
    """Return a chart as the text in place of its picture."""
    return f"{chart.title}: {'; '.join(f'{k} {chart.value(v)}' for k, v in chart.bars)}."


def svg_of(chart: Chart) -> str:
    """Return a chart as a picture for light and dark screens."""
    height = TOP + BAR_STEP * len(chart.bars) + 8
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {SVG_WIDTH} {height}"'
        f' width="{SVG_WIDTH}" height="{height}" role="img"'
        ' font-family="ui-sans-serif, system-ui, sans-serif" font-size="13">'
    )
    title = f"<title>{escape(sentence_of(chart))}</title>"
    return "\n".join([head, title, f"<style>{STYLE}</style>", *_shapes(chart), "</svg>\n"])


def _shapes(chart: Chart) -> Iterator[str]:
    """Yield title, bars with their labels, and a mark on each at which things are equal."""
    scale = (SVG_WIDTH - VALUE_ROOM) / max(value for _, value in chart.bars)
    yield f'<text class="title" x="4" y="18">{escape(chart.title)}</text>'
    for row, (label, value) in enumerate(chart.bars):
        top, end = TOP + BAR_STEP * row, scale * value
        yield f'<text x="4" y="{top + 12}">{escape(label)}</text>'
        yield f'<rect class="bar" x="4" y="{top + 17}" width="{end:.1f}" height="16" rx="3"/>'
        yield f'<text x="{end + 12:.1f}" y="{top + 30}">{escape(chart.value(value))}</text>'
    if chart.even is not None:
        place = 4 + scale * chart.even
        marks = (f"M{place:.1f} {TOP + BAR_STEP * row + 15}v20" for row in range(len(chart.bars)))
        yield f'<path class="even" d="{"".join(marks)}"/>'


@dataclass(frozen=True)
class Lines:
    """Lines over a common axis, with a title."""

    title: str
    across: str
    """What the axis counts."""
    lines: Mapping[str, Sequence[tuple[float, float]]]
    """The points of each line by its label, none of them negative; at most eight lines."""


def lines_sentence_of(chart: Lines) -> str:
    """Return a chart as the text in place of its picture."""
    parts = (
        f"{label} up to {max((y for _, y in points), default=0):,.4g}"
        for label, points in chart.lines.items()
    )
    return f"{chart.title}, by {chart.across}: {'; '.join(parts)}."


def lines_svg_of(chart: Lines) -> str:
    """Return a chart of lines as a picture for light and dark screens."""
    legend = TOP + PLOT_HEIGHT + 44
    height = legend + 20 * ceil(len(chart.lines) / LEGEND_COLUMNS)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {PLOT_WIDTH} {height}"'
        f' width="{PLOT_WIDTH}" height="{height}" role="img"'
        ' font-family="ui-sans-serif, system-ui, sans-serif" font-size="13">'
    )
    title = f"<title>{escape(lines_sentence_of(chart))}</title>"
    style = STYLE + LINES_STYLE
    shapes = _lines_shapes(chart, legend)
    return "\n".join([head, title, f"<style>{style}</style>", *shapes, "</svg>\n"])


def _lines_shapes(chart: Lines, legend: int) -> Iterator[str]:
    """Yield the title, the axes, the lines and their labels, which begin at the height
    ``legend``.
    """
    points = [point for line in chart.lines.values() for point in line]
    first, last = min(x for x, _ in points), max(x for x, _ in points)
    left, bottom, width = 64, TOP + PLOT_HEIGHT, PLOT_WIDTH - 64 - 12
    step = _step(max(y for _, y in points))
    most = step * max(1, ceil(max(y for _, y in points) / step))
    across, length = max(1, _step(last - first)), max(last - first, 1)
    yield f'<text class="title" x="4" y="18">{escape(chart.title)}</text>'
    for level in range(round(most / step) + 1):
        y = bottom - level * step / most * PLOT_HEIGHT
        yield f'<path class="axis" d="M{left} {y:.1f}h{width}"/>'
        yield f'<text class="tick" x="{left - 8}" y="{y + 4:.1f}">{level * step:,.4g}</text>'
    for tick in range(ceil(first / across), int(last / across) + 1):
        x = left + (tick * across - first) / length * width
        yield f'<text class="tick low" x="{x:.1f}" y="{bottom + 18}">{tick * across:,.4g}</text>'
    end = PLOT_WIDTH - 12
    yield f'<text class="tick" x="{end}" y="{bottom + 34}">{escape(chart.across)}</text>'
    for index, (label, line) in enumerate(chart.lines.items()):
        places = (
            f"{left + (x - first) / length * width:.1f} {bottom - y / most * PLOT_HEIGHT:.1f}"
            for x, y in line
        )
        yield f'<path class="line l{index}" d="M{"L".join(places)}"/>'
        x = 4 + index % LEGEND_COLUMNS * (PLOT_WIDTH // LEGEND_COLUMNS)
        y = legend + 20 * (index // LEGEND_COLUMNS)
        yield f'<path class="line l{index}" d="M{x} {y}h18"/>'
        yield f'<text x="{x + 24}" y="{y + 4}">{escape(label)}</text>'


def _step(span: float) -> float:
    """Return the distance of ticks over a span: 1, 2 or 5 times a power of ten, three to six in
    all.
    """
    if span <= 0:
        return 1.0
    power = 10.0 ** floor(log10(span / 3))
    return max(factor for factor in (1, 2, 5) if factor * power <= span / 3) * power
