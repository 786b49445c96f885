"""The public names of the library and their docstrings, read without importing it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from textwrap import indent

import griffe

SRC = Path(__file__).parents[2] / "src"
MODULES = (
    *("", "windows", "formats", "lookups", "checkpoints", "metrics", "errors", "typing"),
    *("testing", "testing.strategies"),
)
"""The modules that users import from: ``dovetail`` itself, and below it."""


@cache
def public_api() -> dict[str, griffe.Object | griffe.Alias]:
    """Each name in ``__all__``, such as ``Table`` and ``testing.Driver``, with its object."""
    package = griffe.load("dovetail", search_paths=[SRC])
    names = {}
    for prefix in MODULES:
        module = package[prefix] if prefix else package
        for name in module.exports:
            part = module[str(name)]
            if not part.is_module:
                names[f"{prefix}.{name}".lstrip(".")] = part
    return names


def summary(name: str) -> str:
    """Return the first line of a name's docstring."""
    docstring = public_api()[name].docstring
    return docstring.value.partition("\n\n")[0].replace("\n", " ") if docstring else ""


def as_markdown(name: str) -> str:
    """Return the signature and the docstring of a name, and of a class's public members."""
    return "\n\n".join(_described(name, public_api()[name]))


def _described(name: str, part: griffe.Object | griffe.Alias) -> Iterator[str]:
    docstring = part.docstring.value if part.docstring else ""
    title = part.signature(name=name) if part.is_function else name
    yield f"```\n{title}\n\n{indent(docstring, '    ')}\n```"
    if part.is_class:
        for member, value in part.all_members.items():
            if not member.startswith("_") and value.docstring:
                yield from _described(f"{name}.{member}", value)
