"""A timeline as SVG: lanes from left to right, a mark for each record and each change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, groupby

from dovetail.base.text_cells import escaped
from dovetail.testing.timeline_layout import Lane, Mark, TimelineLayout, WindowBar

LIGHT = {
    "paper": "fill: #ffffff",
    "band": "fill: #f3f5f7",
    "words": "fill: #1f2328",
    "faint": "fill: #59636e",
    "lane": "stroke: #d1d9e0",
    "cause": "stroke: #59636e",
    "input": "fill: #0969da",
    "result": "fill: #1a7f37",
    "deleted": "stroke: #cf222e",
    "open": "fill: #9a6700",
    "grace": "fill: #d4b779",
    "closed": "stroke: #9a6700",
}
"""The colour of each kind of part, for a light page."""
DARK = {
    "paper": "fill: #0d1117",
    "band": "fill: #1b222c",
    "words": "fill: #e6edf3",
    "faint": "fill: #9198a1",
    "lane": "stroke: #3d444d",
    "cause": "stroke: #9198a1",
    "input": "fill: #4493f8",
    "result": "fill: #3fb950",
    "deleted": "stroke: #f85149",
    "open": "fill: #d29922",
    "grace": "fill: #6b5423",
    "closed": "stroke: #d29922",
}
"""The same for a dark page."""
SHAPES = """
.dovetail-timeline text { font: 12px ui-monospace, Menlo, Consolas, monospace; }
.dovetail-timeline .cause { stroke-dasharray: 2 3; }
.dovetail-timeline .deleted { stroke-width: 2.5; fill: none; }
.dovetail-timeline .closed { stroke-width: 2; }
"""
ROOT = 'xmlns="http://www.w3.org/2000/svg" class="dovetail-timeline" role="img"'
CHARACTER, LABEL = 7.25, 12
"""The width of a character, and the way from a mark to its label, in pixels."""
HEADER, ROW, GAP, MARGIN = 44, 20, 16, 12
"""Heights of the two lines above the lanes, of a mark and of the space around a lane."""


def svg_of(layout: TimelineLayout) -> str:
    """Return a timeline as the text of an ``<svg>`` element: notes, micro-batches with their times,
    a lane per input and result, and a bar per window. Without columns it has the names alone. All
    texts of ``layout`` are escaped.
    """
    names = [*(lane.name for lane in layout.lanes), *(bar.label for bar in layout.bars)]
    left = MARGIN + CHARACTER * max(map(len, [*names, layout.unit])) + 24
    widths = [_width(layout, column) for column in range(len(layout.columns))]
    edges = [*accumulate(widths, initial=left)]
    tops = [*accumulate(map(_height, layout.lanes), initial=HEADER + ROW * len(layout.notes))]
    bottom = tops[-1] + ROW * len(layout.bars)
    notes_width = CHARACTER * max(map(len, layout.notes), default=0) + 2 * MARGIN
    width, height = max(edges[-1] + MARGIN, notes_width), bottom + MARGIN
    parts = [
        *_notes(layout),
        *_header(layout, edges, ROW * len(layout.notes), bottom),
        *_causes(layout, edges, tops),
    ]
    for lane, top in zip(layout.lanes, tops, strict=False):
        parts += _lane(lane, edges, top)
    for row, bar in enumerate(layout.bars):
        parts += _bar(bar, edges, tops[-1] + row * ROW)
    size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
    return "\n".join(
        [
            f"<svg {ROOT} {size}>",
            f"<style>{_style()}</style>",
            f"<title>{escaped(layout.title)}</title>",
            '<rect class="paper" width="100%" height="100%" rx="6"/>',
            *parts,
            "</svg>",
        ]
    )


def _style() -> str:
    """Return the style sheet. Its rules hold in this SVG alone, also within a page."""

    def rules(colours: Mapping[str, str]) -> str:
        """Return a rule for each kind of part, one a line. ``colours``: a declaration of CSS by
        kind.
        """
        return "\n".join(f".dovetail-timeline .{kind} {{ {c}; }}" for kind, c in colours.items())

    return f"{SHAPES}{rules(LIGHT)}\n@media (prefers-color-scheme: dark) {{\n{rules(DARK)}\n}}\n"


def _width(layout: TimelineLayout, column: int) -> float:
    """Return the width of the column with index ``column``, from 0, in pixels: that of its widest
    label with the space around it.
    """
    labels = [layout.columns[column].label]
    labels += [mark.label for lane in layout.lanes for mark in lane.stacks.get(column, [])]
    return CHARACTER * max(map(len, labels)) + LABEL + 24


def _height(lane: Lane) -> int:
    """Return the height, in pixels, of a lane (the band of one input or result): that of its
    highest stack of marks, of one mark for an empty lane.
    """
    return GAP + ROW * max(map(len, lane.stacks.values()), default=1)


def _mark_x(edges: Sequence[float], column: int) -> float:
    """Return the horizontal position of a column's marks, in pixels. ``edges``: the left edge of
    each column, and the right edge of the last. ``column``: the column's index, from 0.
    """
    return edges[column] + LABEL


def _notes(layout: TimelineLayout) -> Iterator[str]:
    """Yield an SVG text element for each note, one below the other."""
    for row, note in enumerate(layout.notes, 1):
        yield _text(MARGIN, row * ROW, note, "faint")


def _header(
    layout: TimelineLayout, edges: Sequence[float], top: float, bottom: float
) -> Iterator[str]:
    """Yield the elements above the lanes: the micro-batches by index, counted from 1, with a band
    behind those of odd index, and the columns' times.

    ``edges``: the left edge of each column, and the right edge of the last, in pixels. ``top``,
    ``bottom``: the vertical ends of the bands, in pixels.
    """
    yield _text(MARGIN, top + 18, layout.unit, "faint")
    yield _text(MARGIN, top + 36, "time", "faint")
    columns = [*enumerate(layout.columns)]
    for batch, group in groupby(columns, key=lambda column: column[1].batch):
        batch_columns = [*group]
        start, end = edges[batch_columns[0][0]], edges[batch_columns[-1][0] + 1]
        if batch % 2:
            size = f'width="{end - start:.1f}" height="{bottom - top - 4:.1f}"'
            yield f'<rect class="band" x="{start:.1f}" y="{top + 4:.1f}" {size}/>'
        yield _text(start + 6, top + 18, str(batch), "faint")
        for n, column in batch_columns:
            yield _text(edges[n] + 6, top + 36, column.label, "faint")


def _causes(layout: TimelineLayout, edges: Sequence[float], tops: Sequence[float]) -> Iterator[str]:
    """Yield a dashed line from each record down to the last of the changes in its column. A column
    without changes has none.

    ``edges``: the left edge of each column, and the right edge of the last. ``tops``: the upper end
    of each lane (the band of one input or result), in the order of the layout. All are in pixels.
    """
    records = {column for lane in layout.lanes if not lane.result for column in lane.stacks}
    for column in sorted(records):
        ends = [
            top + GAP / 2 + ROW * (row + 0.5)
            for lane, top in zip(layout.lanes, tops, strict=False)
            for row, _ in enumerate(lane.stacks.get(column, []))
        ]
        if len(ends) > 1:
            x = f"{_mark_x(edges, column):.1f}"
            yield f'<line class="cause" x1="{x}" x2="{x}" y1="{ends[0]:.1f}" y2="{ends[-1]:.1f}"/>'


def _lane(lane: Lane, edges: Sequence[float], top: float) -> Iterator[str]:
    """Yield the elements of a lane, the band of one input or result: its name, the line at its
    upper end, and its marks. Marks of one column lie one below the other. Texts are escaped.

    ``lane``: its marks are by the index of their column in ``edges``, from 0. ``edges``: the left
    edge of each column, and the right edge of the last, in pixels. ``top``: the lane's upper end,
    in pixels.
    """
    middle = top + GAP / 2 + ROW / 2
    yield _text(MARGIN, middle + 4, lane.name)
    yield (
        f'<line class="lane" x1="{edges[0]:.1f}" x2="{edges[-1]:.1f}" '
        f'y1="{top:.1f}" y2="{top:.1f}"/>'
    )
    for column, marks in lane.stacks.items():
        for row, mark in enumerate(marks):
            kind = "result" if lane.result else "input"
            yield from _mark(mark, kind, _mark_x(edges, column), middle + row * ROW)


def _mark(mark: Mark, kind: str, x: float, y: float) -> Iterator[str]:
    """Yield the elements of a mark: a dot or, if deleted, a cross, with its label to the right. The
    mark's title is shown as a tooltip. Texts are escaped.

    ``kind``: the style of a dot, ``"input"`` or ``"result"``. ``x``, ``y``: the centre, in pixels.
    """
    yield f"<g><title>{escaped(mark.title)}</title>"
    if mark.deleted:
        yield f'<path class="deleted" d="M{x - 4:.1f} {y - 4:.1f}l8 8m0 -8l-8 8"/>'
    else:
        yield f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="5"/>'
    yield f"{_text(x + LABEL, y + 4, mark.label)}</g>"


def _bar(bar: WindowBar, edges: Sequence[float], top: float) -> Iterator[str]:
    """Yield the elements of a window: solid until its end, light in its grace period, a tick where
    it is closed. A window that is still open at the last column has no tick.

    ``edges``: the left edge of each column, and the right edge of the last. ``top``: the bar's
    upper end. All are in pixels.
    """
    places = [_mark_x(edges, column) for column in range(len(edges) - 1)] + [edges[-1]]
    first, closed = places[bar.first], places[bar.closed]
    ended = min(places[bar.ended], closed)
    yield f"<g><title>{escaped(bar.title)}</title>{_text(MARGIN, top + 14, bar.label, 'faint')}"
    for kind, start, end in (("open", first, ended), ("grace", ended, closed)):
        if end > start:
            size = f'width="{end - start:.1f}" height="8"'
            yield f'<rect class="{kind}" x="{start:.1f}" y="{top + 6:.1f}" {size}/>'
    if bar.closed < len(edges) - 1:
        x = f"{closed:.1f}"
        yield f'<line class="closed" x1="{x}" x2="{x}" y1="{top + 2:.1f}" y2="{top + 18:.1f}"/>'
    yield "</g>"


def _text(x: float, y: float, text: str, kind: str = "words") -> str:
    """Return the SVG element of a line of text, which is escaped, from ``x`` to the right, on the
    base line ``y``, in pixels. ``kind``: the element's class in the style sheet.
    """
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escaped(text)}</text>'
