"""Tables grouped by other columns than their key: the messages of a changed row to its groups.

A record that changes a row takes the old row out of its group and adds the new row to another. If
both groups are the same, that is one change with one result, so the removal emits nothing. A row
with a null in a grouping column is in no group.

Source: Kafka Streams join design, "KTable Aggregate"; spec/aggregate.
"""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.arrays.timeline import Mask

SILENT = 1
"""The bit of an instruction: another message of the same change emits the result."""


@dataclass(frozen=True)
class RetractMessages:
    """The messages of m changes of rows to their groups: bool[m] each."""

    leaves: Mask
    """The old row leaves its group."""
    enters: Mask
    """The new row enters its group."""
    silent: Mask
    """The result is emitted by the row that enters, not by the one that leaves."""


def retract_messages(
    old: Mask, new: Mask, old_null: Mask, new_null: Mask, same: Mask
) -> RetractMessages:
    """Return the messages that m changes of rows send to their groups, as flags, bool[m] each. With
    ``leaves`` the old row leaves its group, with ``enters`` the new row enters one. Both happen
    even within one group. Then the change is ``silent``: only the entering row emits a result.

    ``old``, ``new``: bool[m], there is a row before, after. ``old_null``, ``new_null``: bool[m],
    that row is in no group, because of a null in the grouping columns; it sends nothing. ``same``:
    bool[m], both rows are in one group; it counts only if both send a message.
    """
    leaves, enters = old & ~old_null, new & ~new_null
    return RetractMessages(leaves, enters, leaves & enters & same)
