"""A hook of MkDocs: the reference has a page for each group of public names, and lists.

``extra.reference`` in ``mkdocs.yml`` maps the title of a page to its names. The lists are made of
the source: errors, counters, options and commands.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import command_line
import counters
import error_texts
import options
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from public_api import public_api, summary

INDEX = "reference/index.md"
LISTS: dict[str, Callable[[], str]] = {
    "all errors": error_texts.as_markdown,
    "all counters": counters.as_markdown,
    "options of sources": lambda: options.as_markdown(
        "Options of sources", "See at a glance what each reader takes.", options.SOURCES
    ),
    "options of sinks": lambda: options.as_markdown(
        "Options of sinks", "See at a glance what each sink and each start takes.", options.SINKS
    ),
    "command line": command_line.as_markdown,
}
"""The title of each page that is a list, and what makes it."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """List the pages in the navigation, once the groups are found complete."""
    pages = config.extra["reference"]
    counts = Counter(name for names in pages.values() for name in names)
    wrong = counts.keys() ^ public_api().keys() | {name for name, n in counts.items() if n > 1}
    if wrong:
        raise PluginError(f"mkdocs.yml: extra.reference must list once: {', '.join(sorted(wrong))}")
    for section in config.nav:
        if section == {"Reference": "reference/"}:
            section["Reference"] = [INDEX, *map(_uri, [*pages, *LISTS])]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each group. mkdocstrings puts a docstring in the place of each ``:::``."""
    for title, names in config.extra["reference"].items():
        links = ", ".join(f"[`{name}`][dovetail.{name}]" for name in names)
        parts = [f"# {title.capitalize()}", f"The public names: {links}."]
        parts += [f"::: dovetail.{name}" for name in names]
        files.append(File.generated(config, _uri(title), content="\n\n".join(parts)))
    for title, as_markdown in LISTS.items():
        files.append(File.generated(config, _uri(title), content=as_markdown()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """List all names in the first page of the reference."""
    parts = [markdown]
    if page.file.src_uri == INDEX:
        links = [f"[{title}]({_uri(title).removeprefix('reference/')})" for title in LISTS]
        parts.append(f"Lists of everything: {', '.join(links)}.")
    for title, names in config.extra["reference"].items() if page.file.src_uri == INDEX else ():
        rows = [f"| [`{name}`][dovetail.{name}] | {summary(name)} |" for name in names]
        parts += [f"## [{title.capitalize()}]({_uri(title).removeprefix('reference/')})"]
        parts += ["\n".join(["| name | purpose |", "|---|---|", *rows])]
    return "\n\n".join(parts)


def _uri(title: str) -> str:
    return f"reference/{title.replace(' ', '_').replace('-', '_')}.md"
