"""The examples of a page, and what they say they print."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(page: Path) -> list[str]:
    """The Python examples of a page, in order."""
    return BLOCK.findall(page.read_text())


def promised(block: str) -> list[str]:
    """The lines that an example says it prints: comments at its end."""
    lines = block.rstrip().splitlines()
    start = len(lines)
    while start and (lines[start - 1] + " ").startswith("# "):
        start -= 1
    return [line[2:] for line in lines[start:]]
