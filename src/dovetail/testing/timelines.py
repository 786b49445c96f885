"""Pictures of what was piped into a driver and of what came out."""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.base.validation import Positive, validated
from dovetail.plan.fingerprint import sources_of
from dovetail.testing.driver import Driver
from dovetail.testing.timeline_layout import TimelineLayout
from dovetail.testing.timeline_steps import first_shown_batch, records_of, steps_of
from dovetail.testing.timeline_svg import svg_of
from dovetail.testing.timeline_text import text_of
from dovetail.testing.timeline_windows import bars_of

BARS_MAX = 12
"""The largest number of windows in a timeline."""


@dataclass(frozen=True, repr=False)
class DriverTimeline:
    """A picture of what was piped into a driver and of what came out.

    ``timeline`` makes it, and users do not construct it. It prints as ``text``, and a notebook
    shows it as ``svg``.

    See Also
    --------
    timeline : Draw what was piped into a driver and what came out.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from dovetail import testing
    >>> schema = {"id": pa.int64(), "amount": pa.int64()}
    >>> orders = testing.table("orders", key="id", schema=schema)
    >>> driver = testing.Driver(orders)
    >>> rows = [{"id": 1, "amount": 40}, {"id": 2, "amount": 7}]
    >>> changes = driver.pipe(orders, rows, timestamp=3)
    >>> testing.timeline(driver)
    batch  | 1
    time   | 3         3
    orders | + 1: 40   + 2: 7
    orders |                    + 1: 40 @3
           |                    + 2: 7 @3
    """

    layout: TimelineLayout
    """The columns, the lanes and the bars of windows."""
    width: int
    """The largest number of characters in a line of ``text``, unless one column is wider."""

    @property
    def text(self) -> str:
        """The timeline as text: its times, then a lane for each input, result and window.

        A timeline that is wider than ``width`` goes on in further blocks.

        See Also
        --------
        timeline : Describes the text.

        Examples
        --------
        >>> import pyarrow as pa
        >>> from dovetail import testing
        >>> schema = {"id": pa.int64(), "amount": pa.int64()}
        >>> orders = testing.table("orders", key="id", schema=schema)
        >>> driver = testing.Driver(orders)
        >>> driver.pipe(orders, {"id": 1, "amount": 40}, timestamp=3)
        [<id=1: amount=40 @3>]
        >>> "+ 1: 40" in testing.timeline(driver).text
        True
        """
        return text_of(self.layout, self.width)

    @property
    def svg(self) -> str:
        """The timeline as SVG, which needs no other file.

        Colours follow the light or dark setting of the viewer. Each mark has all its columns
        as a title, which browsers show under the pointer.

        See Also
        --------
        timeline : Describes the lanes.

        Examples
        --------
        >>> from pathlib import Path
        >>> import pyarrow as pa
        >>> from dovetail import testing
        >>> schema = {"id": pa.int64(), "amount": pa.int64()}
        >>> orders = testing.table("orders", key="id", schema=schema)
        >>> driver = testing.Driver(orders)
        >>> driver.pipe(orders, {"id": 1, "amount": 40}, timestamp=3)
        [<id=1: amount=40 @3>]
        >>> "<title>orders: id=1, amount=40, time 3</title>" in testing.timeline(driver).svg
        True
        """
        return svg_of(self.layout)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return f'<div style="overflow-x: auto">{self.svg}</div>'


@validated
def timeline(driver: Driver, *, limit: Positive = 50, width: Positive = 100) -> DriverTimeline:
    """Draw what was piped into a driver and what came out, as text and as SVG.

    Time runs to the right, in the order of arrival. Each input and each result has a lane.

    Parameters
    ----------
    driver : Driver
        The driver. A restored one knows its micro-batches since then.
    limit : int, default 50
        The largest number of records, where a micro-batch without records counts as one. Earlier
        micro-batches are left out, and a line says so.
    width : int, default 100
        The largest number of characters in a line of the text. A longer timeline goes on in a
        further block. A single column may be wider.

    Returns
    -------
    DriverTimeline
        The picture, with ``text`` and ``svg``.

    Raises
    ------
    PlanError
        If ``driver`` is not a driver, or if ``limit`` or ``width`` is not above zero.

    See Also
    --------
    Driver.as_text : Print changes as a table in text.
    Driver.table : Return the rows of a table.

    Notes
    -----
    - The text has ``+`` before a row and ``x`` before a key that is deleted. A change shows its
      time where it differs from its record's.
    - The changes of a micro-batch with one record stand under the record. Those of a micro-batch
      with several records have a column of their own.
    - A window of an aggregation is a line of ``=``, from its first record on. Once it has ended,
      in its grace period, it is a line of ``-``.
    - Sliding windows and sessions are drawn as far as a result has them in its key. Of more than
      12 windows the last ones are drawn, and a line says so.
    - Keys with values are cut after 40 characters. Of more than 8 changes of a result in one
      place, the others are counted.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from dovetail import testing
    >>> schema = {"id": pa.int64(), "amount": pa.int64()}
    >>> orders = testing.table("orders", key="id", schema=schema)
    >>> schema = {"id": pa.int64(), "paid": pa.int64()}
    >>> payments = testing.table("payments", key="id", schema=schema)
    >>> driver = testing.Driver(orders.join(payments, how="left", name="due"))
    >>> changes = driver.pipe(orders, {"id": 1, "amount": 40}, timestamp=1)
    >>> changes = driver.pipe(payments, {"id": 1, "paid": 15}, timestamp=2)
    >>> changes = driver.pipe(orders, {"id": 1}, timestamp=3, deleted=True)
    >>> print(testing.timeline(driver))
    batch    | 1             | 2           | 3
    time     | 1             | 2           | 3
    orders   | + 1: 40       |             | x 1
    payments |               | + 1: 15     |
    due      | + 1: 40, null | + 1: 40, 15 | x 1
    """
    batches, results = driver.micro_batches, driver.results
    first = first_shown_batch(batches, limit)
    sources = sources_of(results)
    columns, lanes = steps_of(batches, sources, results, first=first, limit=limit)
    bars = bars_of(columns, batches, results, first)
    records = [*map(records_of, batches)]
    notes = [] if batches else ["nothing has been piped in"]
    if first:
        batch_count = f"{first} of {len(batches)} micro-batches"
        notes.append(f"left out: {batch_count}, {sum(records[:first])} of {sum(records)} records")
    if batches and records[-1] > limit:
        left_out = f"{records[-1] - limit} of {records[-1]} records"
        notes.append(f"left out: {left_out} of micro-batch {len(batches)}")
    if len(bars) > BARS_MAX:
        notes.append(f"left out: {len(bars) - BARS_MAX} of {len(bars)} windows")
    return DriverTimeline(TimelineLayout(columns, lanes, bars[-BARS_MAX:], notes), width)
