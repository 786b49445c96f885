"""The pages of joins and transformations have one form."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
COMMON = {"conditions.md", "lookup_sources.md", "index.md"}
"""The pages on what several joins or transformations have in common."""
PAGES = [
    page
    for folder in ("joins", "transformations")
    for page in sorted((DOCS / folder).glob("*.md"))
    if page.name not in COMMON
]
HEADINGS = ["What is emitted", "When not to take it", "Cost", "The same elsewhere", "Reference"]
OTHERS = ("Kafka Streams", "Flink", "Spark")
HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
FENCE = re.compile(r"^```(\w+)$", re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}/{page.name}")
def test_a_page_has_the_parts_of_all_pages(page: Path) -> None:
    text = page.read_text("utf-8")
    assert FENCE.findall(text)[0] == "timeline"
    assert "```python" in text
    assert [heading for heading in HEADING.findall(text) if heading in HEADINGS] == HEADINGS


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}/{page.name}")
def test_a_page_names_the_same_in_other_systems(page: Path) -> None:
    section = page.read_text("utf-8").partition("## The same elsewhere\n")[2]
    section = section.partition("\n## ")[0]
    assert [name for name in OTHERS if name not in section] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}/{page.name}")
def test_a_page_says_what_is_stored(page: Path) -> None:
    cost = page.read_text("utf-8").partition("## Cost\n")[2].partition("\n## ")[0]
    assert re.search(r"\b(state|keeps|accumulator)\b", cost)
