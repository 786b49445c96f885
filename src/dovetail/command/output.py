"""What commands write: tables, and JSON."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Mapping, Sequence
from datetime import date, datetime, timezone
from typing import Any

from rich.console import Console
from rich.table import Table as Grid


def print_table(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print rows under a header of ``names``, as wide as they need, in colours where standard
    output is a terminal. Cells are as ``as_text`` returns them. Without rows, print the header
    alone.
    """
    grid = Grid(*names)
    for row in rows:
        grid.add_row(*map(as_text, row))
    console = Console()
    if not console.is_terminal:
        console = Console(width=max(Console(width=10**6).measure(grid).maximum, 1))
    console.print(grid)


def at_terminal() -> bool:
    """Say whether somebody can be asked: standard input and output are a terminal."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def print_json(value: Any) -> None:
    """Print a value as one line of JSON, and flush standard output. Values that JSON lacks are as
    ``_json_value`` returns them.
    """
    print(json.dumps(value, default=_json_value, ensure_ascii=False), flush=True)


def as_text(value: Any) -> str:
    """Return a value as the text of a table's cell: a time as ISO 8601 in UTC, None as an empty
    text, else Python's text. A time without a zone counts as local.
    """
    if isinstance(value, datetime):
        return _in_utc(value).isoformat()
    return "" if value is None else str(value)


def _json_value(value: Any) -> Any:
    """Return a value that JSON lacks as one that it has: times and dates in ISO 8601, bytes in
    base64, a mapping as a dict. All else is its text.
    """
    if isinstance(value, datetime):
        return _in_utc(value).isoformat().replace("+00:00", "Z")
    if isinstance(value, (bytes, bytearray)):
        return base64.b64encode(value).decode()
    if isinstance(value, Mapping):
        return dict(value)
    return value.isoformat() if isinstance(value, date) else str(value)


def _in_utc(time: datetime) -> datetime:
    """Return a time in UTC. A time without a zone counts as local, as in Spark's rows."""
    return time.astimezone(timezone.utc)
