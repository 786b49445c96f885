"""On the site, the first use of a term leads to the glossary."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytest.importorskip("mkdocs", reason="needs the dependency group docs: ./dev test installs it")
sys.path.append(str(ROOT / "tools" / "docs_site"))

from glossary_links import PLAIN, linked, terms  # noqa: E402

GLOSSARY = (ROOT / "docs" / "glossary.md").read_text("utf-8")
TARGET = "../glossary.md"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("An upsert, an upsert.", "An [upsert](../glossary.md#upsert), an upsert."),
        ("Upserts come.", "[Upserts](../glossary.md#upsert) come."),
        (
            "In event\ntime.",
            "In [event\ntime](../glossary.md#event-time).",
        ),
        (
            "`upsert`, [upsert](a.md), upsert",
            "`upsert`, [upsert](a.md), [upsert](../glossary.md#upsert)",
        ),
        (
            "# Upsert\n\n| upsert |\n\n```\nupsert\n```\n",
            "# Upsert\n\n| upsert |\n\n```\nupsert\n```\n",
        ),
        (
            "upsert and [later](glossary.md#upsert)",
            "upsert and [later](glossary.md#upsert)",
        ),
        ("An upserted row.", "An upserted row."),
        (
            "A retraction of an upsert",
            "A [retraction](../glossary.md#retraction) of an [upsert](../glossary.md#upsert)",
        ),
    ],
)
def test_the_first_use_in_prose_is_linked(text: str, expected: str) -> None:
    assert linked(text, terms(GLOSSARY), TARGET) == expected


def test_plain_words_are_terms_of_the_glossary() -> None:
    """A word that leaves the glossary leaves the list, too."""
    named = set(re.findall(r"^### (.+)$", GLOSSARY, re.MULTILINE))
    assert named >= PLAIN
    assert {"Changelog", "Micro-batch", "Stream time"} <= set(terms(GLOSSARY))


def test_pages_of_the_site_lead_to_the_glossary(site: Path) -> None:
    page = (site / "recipes" / "sessions.html").read_text("utf-8")
    assert 'href="../glossary.html#stream-time"' in page
