"""What commands write: tables, and JSON."""

from __future__ import annotations

import base64
import json
import math
import sys
from collections.abc import Mapping, Sequence
from datetime import date, datetime, timezone
from typing import Any

import pyarrow as pa
from rich.console import Console
from rich.table import Table as Grid

from dovetail.base.text_cells import printable


def print_table(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print ``rows`` under a header of ``names``. At a terminal the table is in colours and at most
    as wide as the screen, otherwise as wide as it needs to be. Cells are texts as ``as_text``
    returns them, with codes for characters that cannot be printed. Without rows, print the header
    alone.
    """
    grid = Grid(*map(printable, names))
    for row in rows:
        grid.add_row(*(printable(as_text(value)) for value in row))
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
    """Print a value as one line of JSON, and flush standard output. Times with a zone become ISO
    8601 in UTC, others and dates ISO 8601, bytes base64, mappings objects. Names of objects, NaN,
    infinities and all else become their text.
    """
    print(json.dumps(_json_data(value), ensure_ascii=False, allow_nan=False), flush=True)


def as_text(value: Any) -> str:
    """Return a value as the text of a table's cell: a datetime in ISO 8601, in UTC if it has a
    zone, None as an empty text, else Python's ``str``.
    """
    if isinstance(value, datetime):
        return _in_utc(value).isoformat()
    return "" if value is None else str(value)


def plain_value(value: Any, type_: pa.DataType) -> Any:
    """Return a value of a column of ``type_`` in one form for commands and JSON, at any depth. The
    forms in which Arrow and Spark give values are both taken. None stays None.

    - A timestamp with a zone becomes a datetime in UTC. Spark gives it in local time, without a
      zone. A timestamp without a zone stays without one.
    - A map becomes a dict, or a list of pairs if its keys are nested. Arrow gives pairs.
    - A struct becomes a dict, a list a list. All other values stay as they are.
    """
    if value is None or not (pa.types.is_nested(type_) or pa.types.is_timestamp(type_)):
        return value
    if pa.types.is_timestamp(type_):
        return value if type_.tz is None else value.astimezone(timezone.utc)
    if pa.types.is_map(type_):
        pairs = value.items() if isinstance(value, Mapping) else value
        members = [
            (plain_value(key, type_.key_type), plain_value(item, type_.item_type))
            for key, item in pairs
        ]
        return members if pa.types.is_nested(type_.key_type) else dict(members)
    if pa.types.is_struct(type_):
        return {field.name: plain_value(value[field.name], field.type) for field in type_}
    return [plain_value(item, type_.value_type) for item in value]


def _json_data(value: Any) -> Any:
    """Return a value as data of JSON's types, at any depth. Names of objects, NaN and infinities
    become their text, and other values that JSON lacks what ``_json_value`` says.
    """
    if isinstance(value, Mapping):
        return {_json_name(name): _json_data(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json_data(part) for part in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else json.dumps(value)
    return value if value is None or isinstance(value, (str, int)) else _json_value(value)


def _json_value(value: Any) -> str:
    """Return the text of a value that JSON lacks. A datetime becomes ISO 8601, in UTC with ``Z`` if
    it has a zone; a date ISO 8601; bytes base64; all else Python's ``str``.
    """
    if isinstance(value, datetime):
        return _in_utc(value).isoformat().replace("+00:00", "Z")
    if isinstance(value, (bytes, bytearray)):
        return base64.b64encode(value).decode()
    return value.isoformat() if isinstance(value, date) else str(value)


def _json_name(name: Any) -> str:
    """Return the key of a mapping as the name of a member of a JSON object. A text stays as it is;
    any other key becomes its text in JSON, such as ``1``, ``true`` and ``null``.
    """
    data = _json_data(name)
    return data if isinstance(data, str) else json.dumps(data)


def _in_utc(time: datetime) -> datetime:
    """Return a datetime in UTC; one without a zone as it is."""
    return time if time.tzinfo is None else time.astimezone(timezone.utc)
