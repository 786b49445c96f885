"""The explanation of one row: a tree of the rows that make it, as a value and as text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any, Literal, TypeAlias

from dovetail.base.text_cells import escaped, printable

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
Presence: TypeAlias = Literal["row", "none", "unknown"]
"""``"row"``: there is a row. ``"none"``: there is none. ``"unknown"``: the state does not tell."""


@dataclass(frozen=True, repr=False)
class RowExplanation:
    """A row of a table or a stream, with the rows that make it.

    It is a tree. The leaves are rows of inputs. ``explain_row`` returns it, and users do not
    construct it. As text it has a line for each row.

    Attributes
    ----------
    name : str
        The name of the input, the join, the view or the aggregate.
    step : str
        The step in words, as ``explain`` shows it.
    key : dict of str to object
        The columns of the key.
    presence : {"row", "none", "unknown"}
        ``"row"``: there is a row. ``"none"``: there is none. ``"unknown"``: what is stored does
        not tell.
    values : dict of str to object
        The value columns that are known; empty without a row.
    time : datetime or None
        The event time of the row in UTC, if it is known.
    reason : str
        One sentence: why there is no row, or what is not known. Empty if nothing is to be said.
    is_input : bool
        True for a row of an input.
    inputs : tuple of RowExplanation
        The rows that make this one, from left to right.
    cause : RowExplanation or None
        Of an emitted change, the record that caused it. None for a row, and if stream time did.

    See Also
    --------
    explain_row : Explain a row from a query's checkpoint.
    Driver.explain_row : Explain a row of a topology in process.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from dovetail import testing
    >>> schema = {"id": pa.int64(), "amount": pa.int64()}
    >>> orders = testing.table("orders", key="id", schema=schema)
    >>> schema = {"id": pa.int64(), "paid": pa.int64()}
    >>> payments = testing.table("payments", key="id", schema=schema)
    >>> driver = testing.Driver(orders.join(payments))
    >>> driver.pipe(orders, {"id": 1, "amount": 40}, timestamp=1)
    []
    >>> explanation = driver.explain_row(1)
    >>> explanation.presence, explanation.reason
    ('none', 'payments has no row with id 1')
    >>> [row.values for row in explanation.input_rows]
    [{'amount': 40}]
    """

    name: str
    step: str
    key: Mapping[str, Any]
    presence: Presence
    values: Mapping[str, Any] = field(default_factory=dict)
    time: datetime | None = None
    reason: str = ""
    is_input: bool = False
    inputs: tuple[RowExplanation, ...] = ()
    cause: RowExplanation | None = None

    @property
    def input_rows(self) -> tuple[RowExplanation, ...]:
        """The rows of inputs with the presence ``"row"``, at any depth of the tree, left to right.

        Empty if there are none. A row of an input gives itself. One that occurs twice comes twice.
        The ``cause`` is not among them.

        See Also
        --------
        explain_row : Explain a row from a query's checkpoint.

        Examples
        --------
        >>> from dovetail.typing import RowExplanation
        >>> order = RowExplanation("orders", "table", {"id": 1}, "row", is_input=True)
        >>> RowExplanation("paid", "left join by key", {"id": 1}, "row", inputs=(order,)).input_rows
        (orders: id 1,)
        """
        rows = (row for part in self.inputs for row in part.input_rows)
        return (self,) if self.is_input and self.presence == "row" else tuple(rows)

    def to_dict(self) -> dict[str, Any]:
        """Return the tree as dictionaries and lists of JSON's types.

        Returns
        -------
        dict
            The attributes by name; times in ISO 8601, and other values without a form in JSON, NaN
            and infinities among them, as text.

        See Also
        --------
        RowExplanation.to_json : Return the same as text.

        Examples
        --------
        >>> from dovetail.typing import RowExplanation
        >>> RowExplanation("orders", "orders", {"id": 1}, "none").to_dict()["key"]
        {'id': 1}
        """
        text = json.dumps(_attributes(self), default=_text_for_json)
        plain: dict[str, Any] = json.loads(text, parse_constant=str)
        return plain

    def to_json(self) -> str:
        """Return the tree as JSON in one line.

        Returns
        -------
        str
            The text of ``to_dict``.

        See Also
        --------
        RowExplanation.to_dict : Return the same as dictionaries.

        Examples
        --------
        >>> from dovetail.typing import RowExplanation
        >>> RowExplanation("orders", "orders", {"id": 1}, "none").to_json()[:26]
        '{"name": "orders", "step":'
        """
        return json.dumps(self.to_dict(), ensure_ascii=False)

    def __repr__(self) -> str:
        return "\n".join(_tree_lines(self, "", ""))

    def _repr_html_(self) -> str:
        causes = [] if self.cause is None else [f"<li>caused by {self.cause._repr_html_()}</li>"]
        rows = [f"<li>{part._repr_html_()}</li>" for part in self.inputs]
        parts = "".join([*causes, *rows])
        below = f"<ul>{parts}</ul>" if parts else ""
        return f"<strong>{escaped(_title(self))}</strong>: {escaped(_row_in_words(self))}{below}"


def _attributes(row: RowExplanation) -> dict[str, Any]:
    """Return the attributes of an explanation by name. Its inputs and its cause are such mappings,
    too, at any depth. The cause is the record that caused an emitted change, or None.
    """
    cause = None if row.cause is None else _attributes(row.cause)
    return {**vars(row), "inputs": [_attributes(part) for part in row.inputs], "cause": cause}


def _tree_lines(row: RowExplanation, first: str, rest: str) -> Iterator[str]:
    """Yield the lines of the tree of ``row``: the row, its cause if there is one, then its inputs.
    The cause is the record that caused an emitted change. It takes one line, without its own
    inputs.

    ``first``: the text before the row's own line, such as ``"├─ "``. ``rest``: the text of the same
    width before all other lines.
    """
    yield first + printable(f"{_title(row)}: {_row_in_words(row)}")
    if row.cause is not None:
        yield f"{rest}← {next(_tree_lines(row.cause, '', ''))}"
    for index, part in enumerate(row.inputs, start=1):
        branch, below = ("└─ ", "   ") if index == len(row.inputs) else ("├─ ", "│  ")
        yield from _tree_lines(part, rest + branch, rest + below)


def _title(row: RowExplanation) -> str:
    """Return the name of the input for a row of an input, or the step for any other row."""
    return row.name if row.is_input else row.step


def _row_in_words(row: RowExplanation) -> str:
    """Return the row in words, without its inputs: key, values, time, then the reason if there is
    one.

    Without a row: its key, and the reason why there is none or it is not known. A missing row of an
    input has no reason.
    """
    key = columns_in_words(row.key)
    if row.presence != "row":
        lead = "no row" if row.presence == "none" else "not known"
        # An input has no more to say than that it has no such row.
        reason = "" if row.is_input and row.presence == "none" else row.reason
        return f"{lead} with {key}" + (f", because {reason}" if reason else "")
    values = ", ".join(f"{name}={_value_in_words(value)}" for name, value in row.values.items())
    time = "" if row.time is None else f" @{readable_text(row.time)}"
    reason = f"; {row.reason}" if row.reason else ""
    return f"{key}{': ' if values else ''}{values}{time}{reason}"


def columns_in_words(columns: Mapping[str, Any]) -> str:
    """Return columns and their values in words, such as ``id 7, page 'home'``. Empty for no
    columns.
    """
    return ", ".join(f"{name} {_value_in_words(value)}" for name, value in columns.items())


def _value_in_words(value: Any) -> str:
    """Return a value as text for people: ``null`` for None, a time by ``readable_text``, else
    Python's ``repr``.
    """
    if value is None:
        return "null"
    return readable_text(value) if isinstance(value, datetime) else repr(value)


def _text_for_json(value: Any) -> str:
    """Return as text a value that JSON lacks: a time in ISO 8601, else Python's ``str``."""
    return value.isoformat() if isinstance(value, datetime) else str(value)


def readable_text(value: Any) -> str:
    """Return a value as text for people: a time in ISO 8601, with ``Z`` for UTC, anything else as
    Python's ``str``. A time without a zone is written without one.

    A time on the first day of 1970 is written as its microseconds since that day began, such as
    ``5``. Tests and examples count time so.
    """
    if not isinstance(value, datetime):
        return str(value)
    since = value.replace(tzinfo=value.tzinfo or timezone.utc) - _EPOCH
    if not since.days:
        return str(since // timedelta(microseconds=1))
    return value.isoformat().replace("+00:00", "Z")
