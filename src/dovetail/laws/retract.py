"""Tables grouped by other columns than their key: what a changed row says to its groups.

A record that changes a row from ``old`` to ``new`` takes the old one out of its group and puts the
new one into its own. Where both are one group that is one change with one result, so the first of
the two is silent. A row with a null among the columns it is grouped by is in no group.

Source: Kafka Streams join design, "KTable Aggregate"; spec/aggregate.
"""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.arrays.timeline import Mask

SILENT = 1
"""The bit of an instruction: another message of the same change emits the result."""


@dataclass(frozen=True)
class Moves:
    """What m changes of rows say: ``leaves``, ``enters``: bool[m], whether a row leaves a group and
    whether one enters a group; ``silent``: whether what leaves is emitted with what enters.
    """

    leaves: Mask
    enters: Mask
    silent: Mask


def moves(old: Mask, new: Mask, old_null: Mask, new_null: Mask, same: Mask) -> Moves:
    """What changes say: ``old``, ``new``: whether there is a row before and after; ``old_null``,
    ``new_null``: whether it is in no group; ``same``: whether both are of one group.
    """
    leaves, enters = old & ~old_null, new & ~new_null
    return Moves(leaves, enters, leaves & enters & same)
