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
    """Print ``rows`` under a header of ``names``. At a terminal the table is in colours and at most
    as wide as the screen, otherwise as wide as it needs to be. Cells are texts as ``as_text``
    returns them. Without rows, print the header alone.
    """
    grid = Grid(*names)
    for row in rows:
        grid.add_row(*map(as_text, row))
    console = literal_console()
    if not console.is_terminal:
        width = literal_console(width=10**6).measure(grid).maximum
        console = literal_console(width=max(width, 1))
    console.print(grid)


def literal_console(width: int | None = None) -> Console:
    """Return a console of standard output that prints all texts as they are. Users' values and
    names, such as ``[a]`` and ``:x:``, are neither markup nor emoji. ``width``: in characters, None
    for that of the screen.
    """
    return Console(width=width, markup=False, emoji=False)


def at_terminal() -> bool:
    """Return True if somebody can be asked: standard input and output are both a terminal."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def print_json(value: Any) -> None:
    """Print a value as one line of JSON, and flush standard output. Times become ISO 8601 in UTC,
    dates ISO 8601, bytes base64, mappings objects, and all else its text.
    """
    print(json.dumps(value, default=_json_value, ensure_ascii=False), flush=True)


def as_text(value: Any) -> str:
    """Return a value as the text of a table's cell: a datetime in ISO 8601 in UTC, None as an empty
    text, else Python's ``str``. A datetime without a zone counts as local time.
    """
    if isinstance(value, datetime):
        return _in_utc(value).isoformat()
    return "" if value is None else str(value)


def _json_value(value: Any) -> Any:
    """Return a value that JSON lacks as one that it has. A datetime becomes ISO 8601 in UTC, with
    ``Z``; a date ISO 8601; bytes base64; a mapping a dict; all else its text. A datetime without a
    zone counts as local time.
    """
    if isinstance(value, datetime):
        return _in_utc(value).isoformat().replace("+00:00", "Z")
    if isinstance(value, (bytes, bytearray)):
        return base64.b64encode(value).decode()
    if isinstance(value, Mapping):
        return dict(value)
    return value.isoformat() if isinstance(value, date) else str(value)


def _in_utc(time: datetime) -> datetime:
    """Return a datetime in UTC. One without a zone counts as local time, as in Spark's rows."""
    return time.astimezone(timezone.utc)
