"""A hook of MkDocs: a fenced block ``chart`` becomes a bar chart of ``benchmarks/figures.json``.

The first line of a block names a chart of the file. The other lines are the chart in text, for
readers of the Markdown. The build fails where the text is not the file's.
``python tools/docs_site/charts.py`` writes it anew in all pages of ``docs/``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from posixpath import dirname, relpath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
FIGURES = ROOT / "benchmarks" / "figures.json"
BLOCK = re.compile(r"^```chart\n(.+)\n((?:.*\n)*?)```$", re.MULTILINE)
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


@event_priority(-200)  # after llms.py, which keeps the text
def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put a picture in the place of each block."""

    def picture(block: re.Match[str]) -> str:
        charts = charts_of(FIGURES)
        if block[1] not in charts:
            raise PluginError(f"{page.file.src_uri}: {FIGURES.name} has no chart '{block[1]}'")
        chart = charts[block[1]]
        if block[2].rstrip("\n") != text_of(chart):
            stale = f"the text below '{block[1]}' is not that of {FIGURES.name}"
            raise PluginError(f"{page.file.src_uri}: {stale}. Run python tools/docs_site/charts.py")
        path = f"assets/charts/{block[1]}.svg"
        if files.get_file_from_path(path) is None:
            files.append(File.generated(config, path, content=svg_of(chart)))
        return f"![{sentence_of(chart)}]({relpath(path, dirname(page.file.src_uri) or '.')})"

    return BLOCK.sub(picture, markdown)


def charts_of(path: Path) -> dict[str, Chart]:
    """Return the charts of a file by their names."""
    charts: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return {
        name: Chart(one["title"], one["unit"], one["even"], [(k, v) for k, v in one["bars"]])
        for name, one in charts.items()
    }


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


def written(markdown: str, charts: dict[str, Chart]) -> str:
    """Return a page with the text of each block as the file has it."""
    return BLOCK.sub(
        lambda block: f"```chart\n{block[1]}\n{text_of(charts[block[1]])}\n```", markdown
    )


if __name__ == "__main__":
    for page_path in sorted((ROOT / "docs").rglob("*.md")):
        text = page_path.read_text("utf-8")
        page_path.write_text(written(text, charts_of(FIGURES)), "utf-8")
