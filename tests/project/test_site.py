"""The site of the documentation: it builds, works offline, and leaves no page or name out."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from public_names import exported
from test_public_docstrings import public

ROOT = Path(__file__).parents[2]
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text("utf-8")
TERMS_MAX = 60
WORDS_MAX = 25
LANDING_WORDS_MAX = 700
LOADED = {("script", "src"), ("link", "href"), ("img", "src"), ("iframe", "src"), ("source", "src")}
"""The attributes that a browser loads without a click."""
REMOTE = re.compile(r"(?:https?:)?//")
REMOTE_STYLE = re.compile(r"(?:@import|url\()\s*[\"']?(?:https?:)?//")


class Tags(HTMLParser):
    """The tags of a page, each with its attributes."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, Tags]:
    """Each page by its path within the site."""
    return {page.relative_to(site).as_posix(): Tags(page) for page in site.rglob("*.html")}


def test_pages_load_nothing_from_elsewhere(site: Path, pages: dict[str, Tags]) -> None:
    remote = [
        (path, value)
        for path, page in pages.items()
        for tag, attributes in page.tags
        for name, value in attributes.items()
        if (tag, name) in LOADED and REMOTE.match(value or "")
    ]
    styles = [*site.rglob("*.css"), *site.rglob("*.html"), *site.rglob("*.svg")]
    assert remote == []
    assert [path for path in styles if REMOTE_STYLE.search(path.read_text("utf-8"))] == []


def test_no_page_needs_mermaid(pages: dict[str, Tags]) -> None:
    """Material fetches Mermaid from elsewhere where a page has such a diagram."""
    classes = {
        path: {
            name for _, attributes in page.tags for name in (attributes.get("class") or "").split()
        }
        for path, page in pages.items()
    }
    assert [path for path, names in classes.items() if "mermaid" in names] == []


def test_a_flowchart_is_shown_once_as_text(site: Path) -> None:
    assert (site / "results.html").read_text("utf-8").count("flowchart TD") == 1


def test_each_image_has_a_text(pages: dict[str, Tags]) -> None:
    images = [
        (path, attributes)
        for path, page in pages.items()
        for tag, attributes in page.tags
        if tag == "img"
    ]
    assert images
    assert [image for image in images if not image[1].get("alt")] == []


def test_the_reference_has_each_public_name(pages: dict[str, Tags]) -> None:
    anchors = {
        attributes.get("id")
        for path, page in pages.items()
        if path.startswith("reference/")
        for _, attributes in page.tags
    }
    wanted = {f"dovetail.{name}" for name, _ in (*exported(), *public())}
    assert sorted(wanted - anchors) == []


def test_llms_txt_lists_each_page(site: Path, pages: dict[str, Tags]) -> None:
    index = (site / "llms.txt").read_text("utf-8")
    full = (site / "llms-full.txt").read_text("utf-8")
    listed = re.findall(r"^- \[[^\]]+\]\((\S+)\.md\): \S", index, re.MULTILINE)
    assert sorted(listed) == sorted(
        path.removesuffix(".html") for path in pages.keys() - {"404.html"}
    )
    for path in listed:
        assert (site / f"{path}.md").read_text("utf-8") in full


def test_the_search_needs_no_server(site: Path) -> None:
    assert '"joins/foreign_key.html' in (site / "search" / "search_index.js").read_text("utf-8")


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_a_landing_page_is_short(page: str) -> None:
    assert len((ROOT / page).read_text("utf-8").split()) <= LANDING_WORDS_MAX


def test_the_glossary_is_short() -> None:
    terms = re.split(r"^### ", GLOSSARY, flags=re.MULTILINE)[1:]
    assert len(terms) <= TERMS_MAX
    for term in terms:
        text = re.sub(r"^## .*", "", term.partition("\n")[2], flags=re.MULTILINE).strip()
        sentences = re.split(r"(?<=\.)\s+", text)
        assert len(sentences) <= 2, term
        assert max(len(sentence.split()) for sentence in sentences) <= WORDS_MAX, term
