"""A hook of MkDocs: flowcharts in Mermaid are left out, which only GitHub and the like draw.

A browser would have to fetch Mermaid's script. Each flowchart is also the printed result of the
example before it, so no page loses its text.
"""

from __future__ import annotations

import re

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

FLOWCHART = re.compile(r"^```mermaid\n(?s:.*?)^```\n\n?", re.MULTILINE)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Leave the flowcharts of a page out."""
    return FLOWCHART.sub("", markdown)
