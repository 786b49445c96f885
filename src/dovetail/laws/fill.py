"""Partial records: columns that a record leaves out keep their former value.

A record leaves a column out by its name, or by a null. Such a column has the value of the key's
last record that brought it. The search goes back no further than the key's last tombstone.

Source: PATCH of a row; AUTO CDC, ``ignore_null_updates``; spec/view/former, spec/view/nulls.
"""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.arrays.timeline import ABSENT, Ints, Mask, Timeline, versions_around


@dataclass(frozen=True)
class ValueOrigins:
    """The origin of the values of one column."""

    reference: Ints
    """int64[n]: the row that has each event's value, ABSENT for none."""
    missing: Mask
    """bool[n]: the column was left out, and the key has no row to take it from."""


def find_value_origins(events: Timeline, stored: Mask, unsent: Mask) -> ValueOrigins:
    """Find for each event of the only source, 0, the row that has its value of one column.
    ``reference`` is that row: below the count of groups a stored row, else ``groups + row`` for a
    row of the batch, ABSENT for none.

    ``stored``: bool[groups], the key has a stored row. ``unsent``: bool[n], the events that leave
    the column out; for a tombstone it does not count. A value is ``missing`` if it is unsent and
    the key has no row before. If the next row leaves the column out, too, its reference is ABSENT,
    but it is not ``missing``.

    | event         | column | value comes from            |
    |---------------|--------|-----------------------------|
    | row 0         | x      | row 0                       |
    | row 1         | unsent | row 0                       |
    | row 2, delete |        | ABSENT                      |
    | row 3         | unsent | ABSENT, and it is missing   |
    """
    unsent = unsent & ~events.deleted
    before, _ = versions_around(events, 0, stored)
    _, reference = versions_around(events, 0, stored, ~unsent)
    return ValueOrigins(reference, unsent & (before == ABSENT))
