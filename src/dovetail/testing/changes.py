"""Changes one by one, and as tables in text that can be read back."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, time, timedelta, timezone
from typing import Any, Literal

import pyarrow as pa
from pyspark.sql.types import StructType

from dovetail.base.columns import DELETE, DELETED, EVENT_TIME, POSITION, UPSERT
from dovetail.base.hints import HintedChange
from dovetail.base.text_cells import CHANGE, TIME, aligned, cell_text, instant, microseconds_of
from dovetail.errors import DataError
from dovetail.plan.nodes import Entry, Node
from dovetail.plan.types.arrow import arrow_schema

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_WHOLE = re.compile(r"-?[0-9]+")
_JSON_TEXT = re.compile(r'"(?:[^"\\]|\\.)*"')


@dataclass(frozen=True, repr=False)
class Change(HintedChange):
    """One change of a topology's result.

    ``Driver.pipe`` and the other calls of a driver make it, and users do not construct it.
    It prints as ``<key: values @timestamp_us>``.

    See Also
    --------
    Driver.pipe : Feed rows and return the changes that they cause.
    Driver.as_text : Print changes as a table in text.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from dovetail import testing
    >>> schema = {"id": pa.int64(), "amount": pa.int64()}
    >>> orders = testing.table("orders", key="id", schema=schema)
    >>> driver = testing.Driver(orders)
    >>> change = driver.pipe(orders, {"id": 1, "amount": 40}, timestamp=3)[0]
    >>> change
    <id=1: amount=40 @3>
    >>> change.change, change.key, change.values, change.timestamp_us
    ('upsert', {'id': 1}, {'amount': 40}, 3)
    """

    key: dict[str, Any]
    """The key columns by name."""
    values: dict[str, Any] | None
    """The value columns by name; None for a tombstone (the delete of a table's row). A row that a
    stream withdraws (``unmatched="retract"``) is a ``delete`` with its values."""
    timestamp_us: int
    """The event time in microseconds since 1970."""
    change: Literal["upsert", "delete"]
    """The kind of the change."""
    position: int
    """A number that orders the changes of a key; 0 in changes that were read from a text."""

    @property
    def timestamp(self) -> datetime:
        """The event time as a datetime in UTC.

        Raises ``OverflowError`` outside of the years 1 to 9999.

        See Also
        --------
        Driver.pipe : Feed rows with their event times.

        Examples
        --------
        >>> from datetime import datetime
        >>> import pyarrow as pa
        >>> from dovetail import testing
        >>> schema = {"id": pa.int64(), "amount": pa.int64()}
        >>> orders = testing.table("orders", key="id", schema=schema)
        >>> driver = testing.Driver(orders)
        >>> row = {"id": 1, "amount": 40}
        >>> (change,) = driver.pipe(orders, row, timestamp=datetime(2024, 5, 1, 10))
        >>> change.timestamp.isoformat(), change.timestamp_us
        ('2024-05-01T10:00:00+00:00', 1714557600000000)
        """
        return _EPOCH + timedelta(microseconds=self.timestamp_us)

    def _columns(self) -> list[str]:
        """Return the names of the key and of the values, in order, with which hints compare a
        misspelled one.
        """
        return [*self.key, *(self.values or {})]

    def __repr__(self) -> str:
        values = "deleted" if self.values is None else columns_shown(self.values)
        withdrawn = "withdrawn " if self.values is not None and self.change == "delete" else ""
        return f"<{columns_shown(self.key)}: {withdrawn}{values} @{self.timestamp_us}>"


def changes_of_rows(node: Node, rows: pa.Table) -> Iterator[Change]:
    """Yield the rows of a result as changes, in order. For a tombstone of a table, ``values`` is
    None; a stream's record always has values.

    ``rows``: the node's key and value columns, ``_deleted``, ``_event_time`` in microseconds, and
    ``_position``. Raises ``DataError`` for a date or time outside the years 1 to 9999.
    """
    try:
        python_rows = rows.to_pylist()
    except (OverflowError, ValueError) as error:
        raise DataError(
            node.name,
            f"a value of its result is none of Python's: {error}",
            "Feed dates and times of the years 1 to 9999, which Python has",
        ) from error
    for row in python_rows:
        deleted = row[DELETED]
        values = {name: row[name] for name in node.values.names}
        yield Change(
            key={name: row[name] for name in node.key.names},
            values=None if deleted and not node.stream else values,
            timestamp_us=row[EVENT_TIME],
            change="delete" if deleted else "upsert",
            position=row[POSITION],
        )


class TextTable:
    """A table in text with the changes of a node: a header, then a line for each change.

    Cells are divided by bars. Columns: ``time`` first, the key, the values, and last ``change``,
    ``upsert`` or ``delete``. An empty cell is null. Other cells are written by the type of their
    column:

    - a text as it is. It is JSON if it is empty, begins or ends with a blank, or has a bar, a quote
      or an unprintable character;
    - an instant in microseconds since 1970 within the first day, otherwise in ISO 8601. Both are
      read anywhere;
    - binary as ``0x`` and hexadecimal digits; a duration in microseconds;
    - arrays, maps (a list of pairs) and structs as JSON.

    When a text is read, empty lines and lines that begin with ``#`` are skipped. Key and value
    columns may be in any order. A value column that is left out is null, and ``change`` is
    ``upsert``.
    """

    def __init__(self, node: Node) -> None:
        """Take the names and types of the columns of ``node``, the key's first."""
        self._title = node.title if isinstance(node, Entry) else node.name
        self._key = node.key.names
        fields = arrow_schema(StructType([*node.key.fields, *node.values.fields]))
        self._types = {field.name: field.type for field in fields}

    def lines(self, *parts: Sequence[Change]) -> list[list[str]]:
        """Return for each of ``parts`` a list of lines: the header, then one for each change. Cells
        are padded to the same widths in all parts.
        """
        header = [TIME, *self._types, CHANGE]
        return aligned(*([header, *map(self._cells, part)] for part in parts))

    def _cells(self, change: Change) -> list[str]:
        """Return the cells of a change as texts: time, key, values and kind. Those of missing
        values are empty.
        """
        row = {**change.key, **(change.values or {})}
        values = (cell_text(row.get(name), type_) for name, type_ in self._types.items())
        return [str(instant(change.timestamp_us)), *values, change.change]

    def read(self, text: str) -> list[Change]:
        """Return the changes in a text, line by line; none for a header alone.

        The first line is the header: ``time``, all key columns and any value columns, in any order
        after ``time``, and perhaps ``change`` as the last. Empty lines and lines that begin with
        ``#`` are skipped. The values of a tombstone are those in its cells, so nulls, not None.
        Positions are 0. Raises ``DataError`` for a text that is not such a table, and so for an
        empty one.
        """
        lines = ((n, line) for n, line in enumerate(text.split("\n"), 1) if line.strip())
        numbered_cells = [
            (n, _split_cells(line)) for n, line in lines if not line.lstrip().startswith("#")
        ]
        header = numbered_cells[0][1] if numbered_cells else []
        # A table may have a column of its own called "change".
        marked = header[-1:] == [CHANGE] and header.count(CHANGE) > (CHANGE in self._types)
        names = header[1 : len(header) - marked]
        strange = not {*self._key} <= {*names} <= {*self._types} or len({*names}) < len(names)
        if strange or header[0] != TIME:
            raise DataError(
                self._title,
                f"the text has the header {' | '.join(header)!r}",
                f"Its columns are {' | '.join([TIME, *self._types, CHANGE])}; value columns and "
                f"{CHANGE} may be left out",
            )
        return [
            self._read_line(line_number, cells, names, marked)
            for line_number, cells in numbered_cells[1:]
        ]

    def _read_line(
        self, line_number: int, cells: list[str], names: list[str], marked: bool
    ) -> Change:
        """Return the change of a line with these ``cells``: the time, the columns ``names`` and, if
        ``marked``, the kind. Columns without a cell are null; without a kind it is an upsert.

        ``line_number``: from 1, for errors. Raises ``DataError``, which names the line, for another
        count of cells and for a cell that does not fit.
        """
        where = f"line {line_number} of the text"
        if len(cells) != 1 + len(names) + marked:
            raise DataError(
                self._title,
                f"{where} has {len(cells)} cells, the header has {1 + len(names) + marked}",
                "Write a text that has a bar or a quote as JSON does, in quotes",
            )
        row = dict.fromkeys(self._types)
        try:
            name, cell, wanted = TIME, cells[0], "a time"
            time_us = _microseconds(cell)
            for name, cell in zip(names, cells[1:], strict=False):
                wanted = f"of type {self._types[name]}"
                row[name] = _cell_value(cell, self._types[name])
            name, cell, wanted = CHANGE, marked * cells[-1] or UPSERT, f"{UPSERT} or {DELETE}"
            change: Any = [UPSERT, DELETE][[UPSERT, DELETE].index(cell)]
        except (ValueError, TypeError, AttributeError, OverflowError, pa.ArrowException) as error:
            raise DataError(
                self._title,
                f"{where} has {cell!r} for {name}, which is not {wanted}",
                "Write it as as_text() prints it",
            ) from error
        key = {name: row.pop(name) for name in self._key}
        return Change(key, row, time_us, change, 0)


def _split_cells(line: str) -> list[str]:
    """Return a line's cells, at least one, without blanks at their ends. Bars within JSON texts (in
    double quotes) do not divide cells.
    """
    masked = _JSON_TEXT.sub(lambda match: "x" * len(match[0]), line)
    ends = [*(bar.start() for bar in re.finditer(r"\|", masked)), len(line)]
    starts = [0, *(end + 1 for end in ends)]
    return [line[start:end].strip() for start, end in zip(starts, ends, strict=False)]


def _cell_value(cell: str, type_: pa.DataType) -> Any:
    """Return the value of a cell in the type of its column; None for an empty cell. A text that
    begins with a double quote is read as JSON. Raises ``ValueError``, ``TypeError``,
    ``AttributeError`` or an error of Arrow for a cell that does not fit.
    """
    text = pa.types.is_string(type_)
    if not cell or (text and cell[0] != '"'):
        return cell or None
    data = json.loads(cell, parse_float=str) if text or pa.types.is_nested(type_) else cell
    return pa.scalar(_from_json(data, type_), type_).as_py()


def _from_json(data: Any, type_: pa.DataType) -> Any:
    """Return JSON data in the form that Arrow takes for the type, at any depth. Null stays None,
    and a struct's missing field is None. Maps are lists of pairs.
    """
    if data is None or not pa.types.is_nested(type_):
        return _scalar_from_json(data, type_)
    if pa.types.is_map(type_):
        return [(_from_json(k, type_.key_type), _from_json(v, type_.item_type)) for k, v in data]
    if pa.types.is_struct(type_):
        return {field.name: _from_json(data.get(field.name), field.type) for field in type_}
    return [_from_json(item, type_.value_type) for item in data]


def _scalar_from_json(data: Any, type_: pa.DataType) -> Any:
    """Return JSON data that is not nested in the form that Arrow takes for the type; None for null.
    Raises an error of Python or Arrow for data that does not fit.
    """
    if data is None or pa.types.is_string(type_):
        return data
    if pa.types.is_timestamp(type_):
        return _microseconds(data)
    if pa.types.is_duration(type_):
        return timedelta(microseconds=int(data))
    if pa.types.is_time(type_):
        return time.fromisoformat(data)
    if pa.types.is_binary(type_):
        return bytes.fromhex(data.removeprefix("0x"))
    return pa.scalar(data).cast(type_).as_py() if isinstance(data, str) else data


def _microseconds(moment: Any) -> int:
    """Return the microseconds since 1970 that ``moment`` stands for: an int, or a text with a whole
    number or in ISO 8601. A time without a zone is in UTC. Raises ``ValueError`` or ``TypeError``
    for anything else.
    """
    if isinstance(moment, int) or _WHOLE.fullmatch(moment):
        return int(moment)
    return microseconds_of(datetime.fromisoformat(moment.replace("Z", "+00:00")))


def columns_shown(values: Mapping[str, Any]) -> str:
    """Return columns as a text ``name=value``, with values as Python's ``repr``, separated by
    commas. An empty mapping gives an empty text.
    """
    return ", ".join(f"{name}={value!r}" for name, value in values.items())
