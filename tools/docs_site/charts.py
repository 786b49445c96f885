"""A hook of MkDocs: a fenced block ``chart`` becomes a bar chart of ``benchmarks/figures.json``.

The first line of a block names a chart of the file. The other lines are the chart in text, for
readers of the Markdown. The build fails where the text is not the file's.
``python tools/docs_site/charts.py`` writes it anew in all pages of ``docs/``.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from posixpath import dirname, relpath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from svg_charts import Chart, sentence_of, svg_of, text_of

ROOT = Path(__file__).parents[2]
FIGURES = ROOT / "benchmarks" / "figures.json"
BLOCK = re.compile(r"^```chart\n(.+)\n((?:.*\n)*?)```$", re.MULTILINE)


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


def written(markdown: str, charts: dict[str, Chart]) -> str:
    """Return a page with the text of each block as the file has it."""
    return BLOCK.sub(
        lambda block: f"```chart\n{block[1]}\n{text_of(charts[block[1]])}\n```", markdown
    )


if __name__ == "__main__":
    for page_path in sorted((ROOT / "docs").rglob("*.md")):
        text = page_path.read_text("utf-8")
        page_path.write_text(written(text, charts_of(FIGURES)), "utf-8")
