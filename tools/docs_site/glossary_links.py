"""A hook of MkDocs: the first use of a term on a page leads to the glossary."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from posixpath import dirname, relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

GLOSSARY = "glossary.md"
PLAIN = {
    *(
        "Align",
        "Aggregate",
        "Bucket",
        "Cascade",
        "Initial rows",
        "Key",
        "Log",
        "Lookup",
        "Manifest",
    ),
    *("Materialize", "Position", "Segment", "Sequence", "Sink", "Source", "Stage", "State"),
    *("Store", "Stream", "Subscription", "Table", "Update before and update after", "Version"),
}
"""The terms that are words of everyday language, too: a link at each would only distract."""
NO_PROSE = re.compile(
    r"^---\n(?s:.*?)^---\n|^ *```(?s:.*?)^ *```$|^ *\|.*$|^#+ .*$|^:::.*$|<[^>\n]+>"
    r"|`[^`]+`|!?\[[^\]]*\](?:\([^)]*\)|\[[^\]]*\])",
    re.MULTILINE,
)
"""Parts of a page that stay as they are: code, tables, headings, links."""


def terms(glossary: str) -> list[str]:
    """Return the terms of the glossary that are linked, the longest first."""
    named = re.findall(r"^### (.+)$", glossary, re.MULTILINE)
    return sorted(set(named) - PLAIN, key=lambda term: (-len(term), term))


def linked(markdown: str, names: Iterable[str], target: str) -> str:
    """Link the first use of each term, unless the page links the term itself."""
    for name in names:
        anchor = f"#{name.lower().replace(' ', '-')}"
        if f"{GLOSSARY}{anchor})" not in markdown:
            markdown = _first(markdown, name, target + anchor)
    return markdown


def _first(markdown: str, name: str, link: str) -> str:
    words = r"\s+".join(map(re.escape, name.split()))
    use = re.compile(rf"\b{words}s?\b(?![-=])", re.IGNORECASE)
    end = 0
    for kept in [*NO_PROSE.finditer(markdown), None]:
        start = kept.start() if kept else len(markdown)
        found = use.search(markdown, end, start)
        if found:
            return f"{markdown[: found.start()]}[{found[0]}]({link}){markdown[found.end() :]}"
        end = kept.end() if kept else start
    return markdown


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Link the terms of a page that is neither the landing page nor a list of names."""
    uri = page.file.src_uri
    if uri in (GLOSSARY, "index.md") or uri.startswith(("reference/", "project/")):
        return markdown
    glossary = (Path(config.docs_dir) / GLOSSARY).read_text("utf-8")
    return linked(markdown, terms(glossary), relpath(GLOSSARY, dirname(uri) or "."))
