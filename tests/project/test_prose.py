"""The prose of the documentation: short sentences, openings for readers, the field's own words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = {
    path.relative_to(ROOT).as_posix(): path
    for path in (
        ROOT / "README.md",
        ROOT / "ARCHITECTURE.md",
        *sorted((ROOT / "docs").rglob("*.md")),
    )
}
WORDS_MAX = 25
"""Of a sentence."""
OPENINGS = {"README.md", "docs/index.md"}
"""The landing pages, which say what the library is."""
VERB = re.compile(
    r"""
    Add | Aggregate | Answer | Ask | Begin | Bring | Build | Change | Choose | Compare |
    Compute | Copy | Count | Draw | Emit | Enrich | Fill | Filter | Find | Flag | Follow | Get
    | Give | Group | Join | Keep | Learn | Leave | Let | Look | Make | Map | Measure | Mend |
    Move | Name | Pair | Pick | Plan | Print | Put | Read | Replace | Reshape | Run | Say |
    See | Send | Set | Start | Sum | Take | Test | Translate | Try | Turn | Union | Use |
    Watch | Write
    """,
    re.VERBOSE,
)
"""With such a word a page begins: it tells the reader what to do with it."""
FORBIDDEN = re.compile(
    r"\b(?:loose views?|settled rows|the seeds'?|simply|obviously|of course|easily)\b",
    re.IGNORECASE,
)
"""Words with a clearer one in the field, and words that add nothing."""

NO_PROSE = re.compile(
    r"^---\n(?s:.*?)^---\n|^ *```(?s:.*?)^ *```$|^ *\|.*$|<[^>\n]+>|!\[.*?\]\(.*?\)|^#+ .*$",
    re.MULTILINE,
)
CODE = re.compile(r"`[^`]+`")
LINK = re.compile(r"\[([^\]]*)\](?:\([^)]*\)|\[[^\]]*\])")
ITEM = re.compile(r"^ *(?:[-*]|\d+\.) +", re.MULTILINE)
END = re.compile(r"(?<=[.!?])[)*_\"]*\s+")


def blocks(text: str) -> Iterator[str]:
    """The paragraphs and items of a page, without tables, headings and code."""
    plain = LINK.sub(r"\1", CODE.sub("x", NO_PROSE.sub("\n\n", text)))
    for block in re.split(r"\n\s*\n", ITEM.sub("\n\n", plain)):
        if block.strip():
            yield " ".join(block.split())


def long_sentences(text: str) -> list[str]:
    return [
        sentence
        for block in blocks(text)
        for sentence in END.split(block)
        if len(sentence.split()) > WORDS_MAX
    ]


def test_sentences_are_found() -> None:
    word = "word "
    text = f"# {word * 30}\n\nOne. {word * 26}.\n- {word * 20}\n- {word * 20}\n\n| {word * 30} |\n"
    assert [len(sentence.split()) for sentence in long_sentences(text)] == [27]
    assert long_sentences(f"{word * 13}; {word * 12}: {word * 2}.")
    assert long_sentences(f"```\n{word * 30}\n```\n") == []
    assert long_sentences(f"[{word * 13}](a) `{word * 13}` [{word * 11}][b]") == []


@pytest.mark.parametrize("name", PAGES)
def test_sentences_are_short(name: str) -> None:
    assert long_sentences(PAGES[name].read_text("utf-8")) == []


def opens_with_a_verb(text: str) -> bool:
    first = next(blocks(text), "")
    return bool(VERB.fullmatch(first.strip("*").partition(" ")[0].strip(",:")))


@pytest.mark.parametrize("name", sorted(PAGES.keys() - OPENINGS))
def test_a_page_begins_with_what_the_reader_can_do(name: str) -> None:
    assert opens_with_a_verb(PAGES[name].read_text("utf-8"))


@pytest.mark.parametrize("name", PAGES)
def test_words_that_say_nothing_are_left_out(name: str) -> None:
    prose = " ".join(blocks(PAGES[name].read_text("utf-8")))
    assert FORBIDDEN.findall(prose) == []
