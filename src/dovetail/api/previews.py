"""Previews: the first rows of a table, a stream or a windowed table, as text and as HTML."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from dovetail.base.columns import CHANGE, POSITION, TIMESTAMP, UPSERT
from dovetail.base.text_cells import aligned, cells_of, escaped, html_table, printable
from dovetail.base.validation import Positive, Rule, validated
from dovetail.errors import PlanError
from dovetail.plan.nodes import Node
from dovetail.plan.transforms.unwindow import windows_as_table
from dovetail.spark.query.preview import FirstRows, first_rows

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, repr=False)
class Preview:
    """The first rows of a table, a stream or a windowed table.

    ``preview`` makes it, and users do not construct it. It prints as a table in text, and a
    notebook shows it as a table.

    See Also
    --------
    Table.preview : Return the first rows.
    Table.show : Print the first rows.

    Examples
    --------
    >>> import dovetail as dt
    >>> rows = spark.createDataFrame([(1, 40), (2, 7)], "id long, amount long")
    >>> rows = rows.selectExpr("id", "amount", "timestamp_micros(id) AS at")
    >>> dt.Table.from_changelog(rows, key="id", timestamp="at", name="orders").preview()
    time | id | amount
    1    | 1  | 40
    2    | 2  | 7
    2 rows of orders
    """

    arrow: pa.Table
    """The rows with their columns' types. The event time is the column ``_timestamp``. Changes
    also have ``_change``, and so do a stream's records if one of them has no value."""
    notes: tuple[str, ...]
    """Lines that say how many rows these are, and of how many rows that were read."""

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows in the order of ``arrow``, each as a dict by the columns' names.

        The dicts have the columns of ``arrow``: key, values, ``_timestamp`` and, of changes,
        ``_change``. The time is an aware datetime in UTC, and a null is None.

        See Also
        --------
        Preview.to_pandas : Return the rows as a frame of pandas.

        Examples
        --------
        >>> import dovetail as dt
        >>> rows = spark.createDataFrame([(1, 40)], "id long, amount long")
        >>> rows = rows.selectExpr("id", "amount", "timestamp_micros(id) AS at")
        >>> orders = dt.Table.from_changelog(rows, key="id", timestamp="at", name="orders")
        >>> [(row["id"], row["amount"]) for row in orders.preview().rows]
        [(1, 40)]
        """
        return list(self.arrow.to_pylist())

    def to_pandas(self) -> pd.DataFrame:
        """Return the rows as a frame of pandas.

        Returns
        -------
        pandas.DataFrame
            The rows, with the columns of ``arrow``: key, values, ``_timestamp`` and, of changes,
            ``_change``. Times are in UTC. Types are those of ``pyarrow.Table.to_pandas``, so
            whole numbers with a null among them become floats.

        See Also
        --------
        Preview.rows : The rows as dicts.

        Examples
        --------
        >>> import dovetail as dt
        >>> rows = spark.createDataFrame([(1, 40)], "id long, amount long")
        >>> rows = rows.selectExpr("id", "amount", "timestamp_micros(id) AS at")
        >>> orders = dt.Table.from_changelog(rows, key="id", timestamp="at", name="orders")
        >>> orders.preview().to_pandas()[["id", "amount"]].values.tolist()
        [[1, 40]]
        """
        frame: pd.DataFrame = self.arrow.to_pandas()
        return frame

    def __len__(self) -> int:
        return int(self.arrow.num_rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)

    def __repr__(self) -> str:
        return "\n".join([*aligned(cells_of(self.arrow))[0], *self.notes])

    def _repr_html_(self) -> str:
        header, *rows = cells_of(self.arrow)
        notes = (f"<div>{escaped(note)}</div>" for note in self.notes)
        return "\n".join([html_table(header, rows), *notes])


def preview_of(
    node: Node, *, limit: int, changes: bool, input_rows: int, timeout_s: float
) -> Preview:
    """Run ``node`` over its first rows, and return them as a ``Preview``. A windowed table is shown
    as the table of its windows. Current rows are in the order of the key, changes and records in
    their own.

    ``limit``: the most rows to show. ``changes``: True for changes, False for current rows; a
    stream has its records either way. ``input_rows``: the most rows to read of a streaming input.
    ``timeout_s``: the most seconds to wait for inputs, and again for the result. Raises
    ``ConfigurationError`` if an input or the result takes too long or cannot be read, and
    ``PlanError`` if an input cannot be run.

    The preview has the columns of the changelog without ``_position``. Current rows have no
    ``_change``. Nor has a stream all of whose shown records have a value, unless ``changes``.
    """
    rowed = node if node.windows is None else windows_as_table(node, "on_change")
    first = first_rows(
        rowed, limit=limit, changes=changes, input_rows=input_rows, timeout_s=timeout_s
    )
    rows = first.rows.drop_columns([n for n in (POSITION,) if n in first.rows.column_names])
    if rowed.stream and not changes and pc.all(pc.equal(rows[CHANGE], UPSERT), min_count=0).as_py():
        rows = rows.drop_columns([CHANGE])
    noun = "changes" if CHANGE in rows.column_names and not rowed.stream else "rows"
    return Preview(rows, tuple(map(printable, _notes(first, noun, node.name))))


def _note_on_rows(shown: int, noun: str, origin: str, *, more: bool) -> str:
    """Return a note such as ``the first 2 changes of orders; there are more``, or ``no rows of
    orders``.

    ``shown``: the count of rows shown. ``noun``: the word for rows, in the plural with an s.
    ``origin``: the words after the noun, such as `` of orders``, or an empty text. ``more``: True
    if there are more rows; only then the note has ``the first``. One row is in the singular.
    """
    if not shown:
        return f"no {noun}{origin}"
    counted = f"{shown:,} {noun if shown > 1 else noun.removesuffix('s')}{origin}"
    return f"the first {counted}; there are more" if more else counted


def _notes(first: FirstRows, noun: str, name: str) -> Iterator[str]:
    """Yield the notes of a preview: a text on the count of rows shown, then a text on the rows that
    were read of each streaming input.

    ``first``: the rows shown and those read. ``noun``: the word for the rows shown, ``rows`` or
    ``changes``. ``name``: the name of the previewed node.
    """
    yield _note_on_rows(first.rows.num_rows, noun, f" of {name}", more=first.more)
    for read in first.read:
        if not read.rows:
            yield f"read: no row of {read.name}, it has none now"
        else:
            part = "the first" if read.cut else "all"
            yield f"read: {part} {read.rows:,} {'rows' if read.rows > 1 else 'row'} of {read.name}"


AFrame: TypeAlias = Annotated[
    DataFrame, Rule("a static frame with a changelog", lambda frame: not frame.isStreaming)
]


@validated
def preview(frame: AFrame, n: Positive = 20) -> Preview:
    """Return the first changes of a changelog that a query has written.

    It serves the table of ``to_memory``, the files of ``to_parquet`` and what
    ``to_foreach_batch`` gets.

    Parameters
    ----------
    frame : DataFrame
        A static frame with the columns of a changelog, ``_change``, ``_timestamp`` and
        ``_position`` among them.
    n : int, default 20
        The most rows to return.

    Returns
    -------
    Preview
        The changes with the smallest ``_position``, in its order, without that column. So the
        changes of a key are in their order. They are read at this call, print as a table in
        text, and notebooks show them as a table.

    Raises
    ------
    PlanError
        If ``frame`` is a streaming one, or lacks a column of a changelog.

    See Also
    --------
    Table.preview : Return the first rows of a table.
    to_memory : Write the changelog to a table in memory.
    read_current : Read the current rows of a changelog.

    Examples
    --------
    >>> import dovetail as dt
    >>> rows = spark.createDataFrame([(1, 40), (2, 7)], "id long, amount long")
    >>> rows = rows.selectExpr("id", "amount", "timestamp_micros(id) AS at")
    >>> orders = dt.Table.from_changelog(rows, key="id", timestamp="at", name="orders")
    >>> dt.preview(orders.changelog(), 1)
    time | id | amount | change
    1    | 1  | 40     | upsert
    the first 1 change; there are more
    """
    missing = [name for name in (CHANGE, TIMESTAMP, POSITION) if name not in frame.columns]
    if missing:
        raise PlanError(
            "preview",
            f"frame= has no column {missing[0]!r}",
            "Give a changelog, such as spark.table(name) of to_memory(name)",
        )
    rows = frame.orderBy(POSITION).limit(n + 1).toArrow().drop_columns([POSITION])
    shown = rows.slice(0, n)
    return Preview(shown, (_note_on_rows(shown.num_rows, "changes", "", more=rows.num_rows > n),))
