"""Records that leave values out, which stay as they were.

A record that does not bring a column leaves it as it is in the row before, which may have it from
the one before that. So a column's value is that of the last record that brought it, back to the
key's last tombstone.

Source: PATCH of a row; spec/view/former.
"""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.arrays.timeline import ABSENT, Ints, Mask, Timeline, versions


@dataclass(frozen=True)
class Former:
    """Where a column's values come from. ``reference``: int64[n], of each event the row that has
    its value, ABSENT for none; ``missing``: bool[n], whether it was left out and there is no row
    before.
    """

    reference: Ints
    missing: Mask


def former(events: Timeline, stored: Mask, unsent: Mask) -> Former:
    """Of one column. ``stored``: bool[groups], whether the key has a row; ``unsent``: bool[n],
    which events leave the column out.
    """
    unsent = unsent & ~events.deleted
    before, _ = versions(events, 0, stored)
    _, reference = versions(events, 0, stored, ~unsent)
    return Former(reference, unsent & (before == ABSENT))
