"""A hook of MkDocs: ``llms.txt`` lists all pages, ``llms-full.txt`` holds them, as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority
from mkdocs.structure.files import Files
from mkdocs.structure.nav import Navigation, Section
from mkdocs.structure.pages import Page
from public_api import as_markdown

OBJECT = re.compile(r"^::: dovetail\.(\S+)$", re.MULTILINE)
CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
SENTENCE = re.compile(r"^[A-Za-z`*\[][^|\n]*?(?:\n[^|\n]+?)*?\.(?=\s|$)", re.MULTILINE)
LINK = re.compile(r"\[([^\]]+)\][(\[][^)\]]*[)\]]")

sections: dict[str, list[Page]] = {}
texts: dict[str, str] = {}


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> None:
    """Note the pages of each part of the navigation."""
    sections.clear()
    sections.update((item.title, list(_pages(item))) for item in nav.items)


def _pages(item: Page | Section) -> Iterator[Page]:
    for child in item.children or [item]:
        yield from _pages(child) if child.children else [child]


@event_priority(-100)
def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> None:
    """Keep the page's text, with docstrings in the place of references to them."""
    texts[page.file.src_uri] = OBJECT.sub(lambda name: as_markdown(name[1]), markdown)


def on_post_build(config: MkDocsConfig) -> None:
    """Write both files, and each page beside its HTML."""
    site = Path(config.site_dir)
    index = [f"# {config.site_name}", f"> {config.site_description}."]
    for title, pages in sections.items():
        index += [f"## {title}", "\n".join(map(_entry, pages))]
    for uri, text in texts.items():
        (site / uri).write_text(text, "utf-8")
    (site / "llms.txt").write_text("\n\n".join(index) + "\n", "utf-8")
    listed = [texts[page.file.src_uri] for pages in sections.values() for page in pages]
    (site / "llms-full.txt").write_text("\n\n".join(listed), "utf-8")


def _entry(page: Page) -> str:
    first = SENTENCE.search(CODE.sub("", texts[page.file.src_uri]).partition("\n")[2])
    about = " ".join(LINK.sub(r"\1", first[0]).split()) if first else page.title
    return f"- [{page.title}]({page.file.src_uri}): {about}"
