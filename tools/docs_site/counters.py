"""The counters of a query: their names from the source, their meaning from the documentation."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from error_texts import LINK

ROOT = Path(__file__).parents[2]
METRICS = ROOT / "src" / "dovetail" / "plan" / "metrics.py"
OPENING = """\
Look up a counter of a query's progress, and what to do about it.
[Running a query](../operations.md#counters) says how to read them."""
ROW = re.compile(r"^\| `<[^`]+>\.(\w+)` \|.*\|$", re.MULTILINE)


def kinds() -> list[str]:
    """Return the kinds of counters, as ``MetricKind`` lists them."""
    for node in ast.parse(METRICS.read_text("utf-8")).body:
        if isinstance(node, ast.AnnAssign) and getattr(node.target, "id", "") == "MetricKind":
            assert isinstance(node.value, ast.Subscript)
            return [str(kind) for kind in ast.literal_eval(node.value.slice)]
    raise LookupError(f"{METRICS} has no MetricKind")


def rows() -> dict[str, list[str]]:
    """Return the rows that the pages have of each kind, with links from ``docs/reference``."""
    described: dict[str, list[str]] = {}
    for page in sorted((ROOT / "docs").glob("*.md")):
        for row in ROW.finditer(page.read_text("utf-8")):
            described.setdefault(row[1], []).append(LINK.sub("](../", row[0]))
    return described


def as_markdown() -> str:
    """Return the page of all counters."""
    described = rows()
    wrong = set(kinds()) ^ described.keys()
    if wrong:
        raise LookupError(f"counters without a row in docs/, or rows without a counter: {wrong}")
    parts = [
        "# All counters",
        OPENING,
    ]
    for kind in sorted(described):
        table = ["| counter | counts | what to do |", "|---|---|---|", *described[kind]]
        parts += [f"## {kind}", "\n".join(table)]
    return "\n\n".join(parts) + "\n"
