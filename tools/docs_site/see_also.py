"""An extension of Griffe: the names under ``See Also`` link to their place in the reference."""

from __future__ import annotations

import re
from typing import Any

import griffe
from public_api import MODULES, public_api

SECTION = re.compile(r"(?<=See Also\n--------\n)(?:.+\n?)+")
ENTRY = re.compile(r"^([\w.]+) : (.+(?:\n[ ]+.+)*)", re.MULTILINE)


class SeeAlso(griffe.Extension):
    """Make a list of links of each section ``See Also``."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite the section of one docstring."""
        if obj.docstring:
            text = obj.docstring.value
            obj.docstring.value = SECTION.sub(lambda part: ENTRY.sub(_linked, part[0]), text)


def _linked(entry: re.Match[str]) -> str:
    name, why = entry.groups()
    owner = name.partition(".")[0]
    for prefix in MODULES:
        full = f"{prefix}.{owner}".lstrip(".")
        if full in public_api():
            path = f"dovetail.{prefix}.{name}".replace("..", ".")
            return f"- [`{name}`][{path}]: {why}"
    return f"- `{name}`: {why}"
