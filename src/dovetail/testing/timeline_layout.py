"""A timeline without its look: columns in the order of arrival, lanes of marks, bars of windows."""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.plan.nodes import Source


@dataclass(frozen=True)
class TimelineColumn:
    """A step of a timeline: a record, the changes of several records, or a move of the clock."""

    batch: int
    """The index of the micro-batch, from 1."""
    label: str
    """The record's event time, or words on the clock; empty for the changes of several records."""
    source: Source | None = None
    """The input of the record, or None."""
    time_us: int | None = None
    """The record's event time, or the stream time that is moved to, in microseconds since 1970;
    None without a time.
    """


@dataclass(frozen=True)
class Mark:
    """A record or a change, as a mark in a lane of a timeline."""

    column: int
    """The index of its column, from 0."""
    label: str
    """The key and the values, cut to a few characters; without values for a tombstone."""
    title: str
    """All columns by name, and the time."""
    deleted: bool
    """True for a tombstone, which is drawn as a cross."""


@dataclass(frozen=True)
class Lane:
    """An input or a result with its marks. Marks of one column are stacked."""

    name: str
    """The name of the input or result."""
    result: bool
    """True for a result, False for an input."""
    stacks: dict[int, list[Mark]]
    """The marks by the index of their column; columns without marks are left out."""


@dataclass(frozen=True)
class WindowBar:
    """A window of time, from its first record until it is closed."""

    label: str
    """The start and the end, and the grace period."""
    title: str
    """The aggregation, its windows, and the bar's own window in full."""
    first: int
    """The index of the column of its first record."""
    ended: int
    """The index of the column in which stream time reaches its end, or the count of columns if none
    does.
    """
    closed: int
    """The index of the column in which stream time reaches the end of its grace period, or the
    count of columns if none does.
    """


@dataclass(frozen=True)
class TimelineLayout:
    """The lanes, columns and marks of a timeline, whatever it looks like."""

    columns: list[TimelineColumn]
    """The steps, in the order of arrival."""
    lanes: list[Lane]
    """The inputs, then the results."""
    bars: list[WindowBar]
    """The windows, in the order of their first record."""
    notes: list[str]
    """Lines above the lanes, such as on what is left out."""
    unit: str = "batch"
    """The name of the groups that ``TimelineColumn.batch`` numbers."""
    title: str = "Records and changes in the order of arrival"
    """The text alternative of a picture."""
