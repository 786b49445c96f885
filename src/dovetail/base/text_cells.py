"""Rows and changes as a table in text: a header, then a line for each, with bars between cells.

The test driver, the console and previews print it alike. ``time`` is the first column and
``change``, if there is any, the last. Columns and cells as HTML are here, too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from html import escape
from itertools import chain
from textwrap import wrap
from typing import Any, Final

import pyarrow as pa

from dovetail.base.columns import CHANGE as CHANGED
from dovetail.base.columns import POSITION, TIMESTAMP

TIME, CHANGE = "time", "change"
CELL_MAX: Final = 100
"""The longest cell of a table that is only to be read, in characters."""
_COLUMNS_MAX: Final = 90
"""The longest line of columns in ``repr``, in characters."""
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_DAY_US = 86_400_000_000


def aligned(*tables: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return the lines of each of ``tables``: its cells padded and joined by `` | ``. Columns have
    the same widths, in characters, in all tables. A table is a list of rows, each a list of cells;
    it may be empty. Spaces at the end of a line are left out.

    Raises ``ValueError`` if a row of any table has another count of cells.

    >>> aligned([["id", "amount"], ["1", "40"]])
    [['id | amount', '1  | 40']]
    """
    widths = [max(map(len, column)) for column in zip(*chain(*tables), strict=True)]
    return [
        [" | ".join(map(str.ljust, cells, widths)).rstrip() for cells in table] for table in tables
    ]


def cells_of(rows: pa.Table) -> list[list[str]]:
    """Return a list of lines of cells: a header with the names of columns, then the texts of each
    row's values. A null is an empty text.

    ``rows``: a table with any columns and those of a changelog, all of which may be missing.
    ``_timestamp`` comes first, as ``time``, and ``_change`` last, as ``change``; ``_position`` is
    left out. Other columns, and rows, keep their order. Cells longer than ``CELL_MAX`` (100
    characters) are cut.
    """
    names = [name for name in rows.column_names if name not in (TIMESTAMP, CHANGED, POSITION)]
    header, columns = [*map(printable, names)], [*map(rows.column, names)]
    if TIMESTAMP in rows.column_names:
        header, columns = [TIME, *header], [rows.column(TIMESTAMP), *columns]
    if CHANGED in rows.column_names:
        header, columns = [*header, CHANGE], [*columns, rows.column(CHANGED)]
    return [header, *map(list, zip(*map(_column_texts, columns), strict=True))]


def changes_text(rows: pa.Table) -> str:
    """Return rows as a table in text: a header, then a line a row, with bars between cells.
    ``_timestamp`` is the first column, ``time``, and ``_change`` the last, ``change``;
    ``_position`` is left out. Each of these may be missing. Other columns, and rows, keep their
    order. A null is an empty cell, and a cell of more than 100 characters is cut. Without rows
    there is the header alone. No line break is at the end.
    """
    return "\n".join(aligned(cells_of(rows))[0])


def _column_texts(column: pa.ChunkedArray) -> list[str]:
    """Return the text of each value of a column, cut to ``CELL_MAX`` (100 characters) with ``…``. A
    null is an empty text. A timestamp is in ISO 8601, or its count of microseconds (``instant``);
    the column's unit must be microseconds.
    """
    type_ = column.type
    if pa.types.is_timestamp(type_):
        # Python has no times beyond the year 9999.
        moments = column.cast(pa.int64()).to_pylist()
        zone = "Z" if type_.tz else ""
        return ["" if us is None else str(instant(us, zone)) for us in moments]
    texts = (cell_text(value, type_) for value in column.to_pylist())
    return [text if len(text) <= CELL_MAX else f"{text[: CELL_MAX - 1]}…" for text in texts]


def columns_text(title: str, columns: Iterable[tuple[str, str]]) -> str:
    """Return the ``repr`` of something with columns: a line with a title, then names and types in
    two indented lines at most, of 90 characters each. Longer ones end in ``…``. Without columns
    there is the title alone. ``columns``: (name, type) each. Characters that cannot be printed are
    escaped.

    >>> print(columns_text("Table[orders; key id]", [("id", "bigint"), ("amount", "bigint")]))
    Table[orders; key id]
      id bigint, amount bigint
    """
    named = ", ".join(printable(f"{name} {type_}") for name, type_ in columns)
    lines = wrap(named, _COLUMNS_MAX, max_lines=2, placeholder=" …")
    return "\n  ".join([printable(title), *lines])


def html_columns(title: str, columns: Iterable[tuple[str, str]], keys: int) -> str:
    """Return columns as HTML: a title in bold, and a table with a row for each column: its name,
    its type, and ``key`` if it is one of the key.

    ``title``: a plain text. ``columns``: (name, type) each, as plain texts. ``keys``: the count of
    key columns, which come first. All texts are escaped here.
    """
    rows = (
        (name, type_, "key" if index < keys else "") for index, (name, type_) in enumerate(columns)
    )
    return f"<strong>{escaped(title)}</strong>\n{html_table(('column', 'type', ''), rows)}"


def html_table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return an HTML table with ``titles`` as its first row and a row for each of ``rows``. Cells
    are plain texts, which are escaped here; a line break becomes ``<br>``. The count of cells may
    differ from row to row.
    """
    lines = [_html_row("th", titles), *(_html_row("td", row) for row in rows)]
    return "\n".join(["<table>", *lines, "</table>"])


def _html_row(cell: str, texts: Sequence[str]) -> str:
    """Return one row of an HTML table. ``cell``: the tag of its cells, ``"th"`` or ``"td"``.
    ``texts``: plain texts of the cells, escaped here; a line break becomes ``<br>``.
    """
    cells = (f"<{cell}>{escaped(text).replace(chr(10), '<br>')}</{cell}>" for text in texts)
    return f"<tr>{''.join(cells)}</tr>"


def printable(text: str) -> str:
    r"""Return a text with JSON's escapes, such as ``\u001b``, in place of characters that cannot be
    printed, line breaks among them.

    >>> printable("a\x1b[31m")
    'a\\u001b[31m'
    """
    signs = (sign if sign.isprintable() else _escape_code(sign) for sign in text)
    return "".join(signs)


def escaped(text: str) -> str:
    r"""Return a plain text for HTML or SVG, with ``&``, ``<``, ``>`` and quotes as entities.
    Characters that cannot be printed become JSON's escapes, such as ``\u001b``; line breaks stay.

    XML has no control characters, so one would make a picture unreadable.
    """
    return escape("\n".join(map(printable, text.split("\n"))))


def _escape_code(sign: str) -> str:
    r"""Return JSON's escape of the character ``sign``: ``\u`` with four hexadecimal digits, or two
    of these for a character beyond 16 bits.
    """
    utf16 = sign.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{utf16[n : n + 4]}" for n in range(0, len(utf16), 4))


def microseconds_of(moment: datetime | int) -> int:
    """Return microseconds since 1970 in UTC: an int as it is, a datetime converted. A datetime
    without a zone counts as UTC.
    """
    if not isinstance(moment, datetime):
        return moment
    aware = moment.replace(tzinfo=timezone.utc) if moment.tzinfo is None else moment
    return (aware - _EPOCH) // timedelta(microseconds=1)


def cell_text(value: Any, type_: pa.DataType) -> str:
    """Return a value as the text of a table's cell; empty for null. Decimals, dates, times and
    bytes stand without quotes. So do texts (``pa.string()``), unless one could be misread, such as
    one with a bar (``_is_plain``). Everything else is JSON, a list or mapping too; NaN is ``NaN``.

    ``value``: as pyarrow's ``to_pylist`` returns it for ``type_``.
    """
    data = _json_data(value, type_)
    if data is None:
        return ""
    if isinstance(data, str) and (not pa.types.is_string(type_) or _is_plain(data)):
        return data
    return printable(json.dumps(data, ensure_ascii=False))


def _is_plain(text: str) -> bool:
    """Return True if a text can be a cell without JSON's quotes. A text cannot if it is empty, has
    spaces at an end, a bar or a double quote, or characters that cannot be printed.
    """
    return text.isprintable() and text == text.strip() != "" and not {*text} & {"|", '"'}


def _json_data(value: Any, type_: pa.DataType) -> Any:
    """Return a value of Arrow's ``type_``, as pyarrow's ``to_pylist`` returns it, as JSON data. A
    list is a list, a struct a dict by field name, a map a list of [key, value].

    Null, booleans, numbers and texts stay. Decimals and bytes become texts, a timestamp a text or
    its microseconds (``instant``), a duration its microseconds, and anything else its Python text.
    """
    if value is None or not pa.types.is_nested(type_):
        return _scalar_json_data(value, type_)
    if pa.types.is_map(type_):
        return [[_json_data(k, type_.key_type), _json_data(v, type_.item_type)] for k, v in value]
    if pa.types.is_struct(type_):
        return {field.name: _json_data(value[field.name], field.type) for field in type_}
    return [_json_data(item, type_.value_type) for item in value]


def _scalar_json_data(value: Any, type_: pa.DataType) -> bool | int | float | str | None:
    """Return a value that is not nested as JSON data. Null, booleans, numbers and texts stay, and
    so do NaN and infinities. A decimal is a text in plain digits.

    A timestamp is a text in ISO 8601, with ``Z`` if ``type_`` has a time zone, or its microseconds
    (``instant``). A duration is in microseconds, and bytes are ``0x…``. Everything else is its
    Python text.
    """
    if isinstance(value, datetime):
        return instant(microseconds_of(value), "Z" if type_.tz else "")
    if isinstance(value, timedelta):
        return value // timedelta(microseconds=1)
    if isinstance(value, bytes):
        return f"0x{value.hex()}"
    if isinstance(value, Decimal):
        return format(value, "f")
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def instant(us: int, zone: str = "Z") -> int | str:
    """Return a time as text in ISO 8601, or as the int ``us`` itself. The int stands for times
    within the first day of 1970, and outside of the years 1 to 9999. ``us``: microseconds since
    1970 in UTC. ``zone``: the text appended to a text in ISO 8601.
    """
    try:
        moment = _EPOCH + timedelta(microseconds=us)
    except OverflowError:
        return us
    return us if 0 <= us < _DAY_US else f"{moment.replace(tzinfo=None).isoformat()}{zone}"
