"""The examples of a page, and what they say they print."""

from __future__ import annotations

import re
from itertools import dropwhile, takewhile
from pathlib import Path

ROOT = Path(__file__).parents[2]

BROKER = "localhost:9092"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(page: Path) -> list[str]:
    """The Python examples of a page, in order."""
    return BLOCK.findall(page.read_text())


def without_broker(page: Path) -> list[str]:
    """The examples of a page before the first that names a broker."""
    return list(takewhile(lambda block: BROKER not in block, blocks(page)))


def with_broker(page: Path) -> list[str]:
    """The first example of a page that names a broker, and all after it."""
    return list(dropwhile(lambda block: BROKER not in block, blocks(page)))


def promised(block: str) -> list[str]:
    """The lines that an example says it prints: comments at its end."""
    lines = block.rstrip().splitlines()
    start = len(lines)
    while start and (lines[start - 1] + " ").startswith("# "):
        start -= 1
    return [line[2:] for line in lines[start:]]
