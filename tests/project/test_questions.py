"""Each question of a newcomer has an answer within two clicks, and on one screen."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
LANDING = DOCS / "index.md"
PAGE = DOCS / "questions.md"
QUESTIONS = [
    "Is my input a table or a stream?",
    "What happens if a dimension row comes late?",
    "Do I need a watermark?",
    "What does an update of one dimension row cost?",
    "Can I join two streams without a window?",
    "How do I leave out records that come twice?",
    "How do I see my table now?",
    "What does a delete do in Delta?",
    "Why does a key have several rows in my Parquet folder?",
    "How do I keep all versions of a row?",
    "Can one query write several results?",
    "Why does nothing come out?",
    "Why is a row missing?",
    "What happens to a record that cannot be read?",
    "Does a crash lose or double anything?",
    "Can I change the topology?",
    "Does the state grow for ever?",
    "How do I begin with the rows that I have today?",
    "How do I test a topology?",
    "What does a cluster need?",
]
WORDS_MAX = 300
LINES_MAX = 120
"""Of a section: what fits on one screen."""
ANSWER_WORDS_MAX = 50
CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^(#+) (.+)$")
LINK = re.compile(r"\[[^\]]+\]\(([^)#]+)#([^)]+)\)")


def anchor(title: str) -> str:
    """The anchor that GitHub and the site give a heading."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def sections(page: Path) -> dict[str, str]:
    """The text below each heading, up to the next of the same or a higher level, by anchor."""
    texts: dict[str, list[str]] = {}
    open_levels: dict[str, int] = {}
    in_code = False
    for line in page.read_text("utf-8").splitlines():
        in_code ^= line.startswith("```")
        heading = None if in_code else HEADING.match(line)
        if heading:
            level = len(heading[1])
            open_levels = {name: n for name, n in open_levels.items() if n < level}
            open_levels[anchor(heading[2])] = level
            texts.setdefault(anchor(heading[2]), [])
            continue
        for name in open_levels:
            texts[name].append(line)
    return {name: "\n".join(lines).strip() for name, lines in texts.items()}


ANSWERS = sections(PAGE)


def test_all_questions_are_answered() -> None:
    titles = re.findall(r"^### (.+)$", PAGE.read_text("utf-8"), re.MULTILINE)
    assert titles == QUESTIONS


def test_the_landing_page_leads_to_the_answers() -> None:
    assert f"]({PAGE.name})" in LANDING.read_text("utf-8")


@pytest.mark.parametrize("question", QUESTIONS)
def test_an_answer_is_short_and_leads_to_one_screen(question: str) -> None:
    answer = ANSWERS[anchor(question)]
    assert 3 <= len(LINK.sub("", answer).split()) <= ANSWER_WORDS_MAX
    links = LINK.findall(answer)
    assert links
    for path, name in links:
        texts = sections(DOCS / path)
        assert name in texts, f"{path} has no section {name}"
        assert len(CODE.sub("", texts[name]).split()) <= WORDS_MAX
        assert len(texts[name].splitlines()) <= LINES_MAX
