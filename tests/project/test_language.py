"""Rules of names and docstrings that a program can check, for the whole package."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src"
FILES = sorted(SRC.rglob("*.py"))
TREES = {path: ast.parse(path.read_text("utf-8")) for path in FILES}
WORDS_MAX = 25
"""Of a sentence in a docstring."""
OPENERS = {*["what", "which", "whether", "how", "where", "that", "those", "whose", "when", "as"]}
"""Words that begin a noun clause, which leaves out the subject."""
FILLERS = {
    *[
        "one",
        "own",
        "found",
        "made",
        "kept",
        "number",
        "place",
        "said",
        "known",
        "held",
        "told",
        "given",
        "came",
        "comes",
    ]
}
"""Names that say nothing of what a variable holds."""
FILLERS_MAX = 0.005
"""The largest share among names: ``number`` and the like may be fields of plain data."""

DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
BLOCK = re.compile(r"\n\s*\n")
LITERAL = re.compile(r"```.*?```|>>>.*|``[^`]*``|`[^`]*`|\|.*")


def docstrings(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Each name with its docstring."""
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and (text := ast.get_docstring(node)):
            yield getattr(node, "name", "module"), text


def sentences(text: str) -> Iterator[str]:
    for block in BLOCK.split(LITERAL.sub(" x ", text)):
        yield from re.split(r"(?<=[.!?:;])\s+", " ".join(block.split()))


def names(tree: ast.AST) -> Iterator[str]:
    """The names that are bound: variables and parameters."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SRC)))
def test_docstrings_are_short_sentences_with_a_subject(path: Path) -> None:
    for name, text in docstrings(TREES[path]):
        opener = re.match(r"\W*(\w+)", text)
        assert name == "module" or not opener or opener[1].lower() not in OPENERS, (name, text)
        for sentence in sentences(text):
            assert len(sentence.split()) <= WORDS_MAX, (name, sentence)


def test_a_class_has_a_name_of_its_own() -> None:
    places = defaultdict(list)
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(path.relative_to(SRC)))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_variables_say_what_they_hold() -> None:
    bound = [name for tree in TREES.values() for name in names(tree)]
    assert sum(name in FILLERS for name in bound) <= FILLERS_MAX * len(bound)
