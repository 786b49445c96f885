"""A hook of MkDocs: files outside ``docs/`` become pages, and links to them lead there.

``extra.outside`` in ``mkdocs.yml`` maps each file to its page. A link to another file outside
``docs/`` stays as it is, so the strict build fails on it.
"""

from __future__ import annotations

import re
from pathlib import Path
from posixpath import dirname, join, normpath, relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"(?<=\]\()[^)\s:#]+(?=[#)])")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each file that has none in ``docs/``."""
    for path, page in config.extra["outside"].items():
        if files.get_file_from_path(page) is None:
            text = (ROOT / path).read_text("utf-8")
            if not path.endswith(".md"):
                text = f"# {path}\n\n```{path.rpartition('.')[2]}\n{text}```\n"
            files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point each relative link at the page of the file that it names."""
    outside = config.extra["outside"]
    sources = {page: path for path, page in outside.items() if path != "README.md"}
    here = sources.get(page.file.src_uri, f"docs/{page.file.src_uri}")

    def moved(link: re.Match[str]) -> str:
        path = normpath(join(dirname(here), link[0]))
        target = outside.get(path) or path.removeprefix("docs/") * path.startswith("docs/")
        return relpath(target, dirname(page.file.src_uri) or ".") if target else link[0]

    return LINK.sub(moved, markdown)
