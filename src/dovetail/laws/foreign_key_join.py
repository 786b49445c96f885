"""Joins by foreign key: what a changed left row says to right rows, and what they answer.

A left row subscribes to the right row that its foreign key names. The law, for a left record that
changes its row from ``old`` to ``new`` (each with its foreign key, which may be null):

- the former foreign key, where the present one differs, hears that the subscription ends. Where the
  present one does not answer it gives the tombstone (DELETE_KEY_AND_PROPAGATE), else nothing
  (DELETE_KEY_NO_PROPAGATE);
- the present foreign key hears of the new row, and answers with the joined row where there is a
  right row or left rows are preserved. Otherwise it gives a tombstone if the old row had another
  foreign key (PROPAGATE_NULL_IF_NO_FK_VAL_AVAILABLE), else nothing
  (PROPAGATE_ONLY_IF_FK_VAL_AVAILABLE);
- a null foreign key is one that no right row has; where left rows are not preserved it is none at
  all;
- the result's time is the record's or, of a row, and of a tombstone from a former foreign key where
  left rows are not preserved, the right row's, whichever is larger.

A right record answers every left row that is subscribed when it arrives, under its own time: with
the joined row, or, as a tombstone, with the left row alone where that is preserved and a tombstone
where not.

Where right rows are preserved, one that nobody subscribes to has a result of its own.

Source: KIP-213 "Tombstones & Foreign Key Changes"; spec/foreign_key.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dovetail.arrays.search import expand
from dovetail.arrays.timeline import Ints, Mask, Timeline

EMIT, FRESH, MOVED = 1, 2, 4
"""The bits of an instruction: say something even where no right row is; the subscription is new to
this foreign key; the primary key's results of this batch come from several buckets."""

SETTLED, BEFORE = -1, -2
"""As an epoch: the bucket's own order is the primary key's; the row before the batch."""

_LOW = (1 << 32) - 1


@dataclass(frozen=True)
class Messages:
    """What m changes of left rows say: ``ends``, ``begins``: bool[m], to the former and to the
    present foreign key; ``end_emits``, ``begin_emits``: bool[m], whether there is something to
    emit where no right row is; ``fresh``: bool[m], whether the present key hears of a new row.
    """

    ends: Mask
    end_emits: Mask
    begins: Mask
    begin_emits: Mask
    fresh: Mask


def messages(
    old: Mask, new: Mask, old_null: Mask, new_null: Mask, same: Mask, *, left_preserved: bool
) -> Messages:
    """What changes say: ``old``, ``new``: whether there is a row before and after; ``old_null``,
    ``new_null``: whether its foreign key is null; ``same``: whether both are equal.
    """
    named = old & (~old_null | left_preserved)
    names = new & (~new_null | left_preserved)
    stays = named & names & same
    return Messages(
        ends=named & ~stays,
        end_emits=named & ~names,
        begins=names,
        begin_emits=named & ~stays,
        fresh=names & ~stays,
    )


def combined(hash_: Ints, place: Ints) -> Ints:
    """The combined key as one number: the upper half of the foreign key's hash, then the lower half
    of the primary key's, so that one foreign key's subscriptions lie side by side.
    """
    return (hash_ & ~_LOW) | (place & _LOW)


def combined_range(hash_: Ints) -> tuple[Ints, Ints]:
    """The least and the greatest combined key of a foreign key."""
    return hash_ & ~_LOW, hash_ | _LOW


def low_half(hash_: Ints) -> Ints:
    """The part of a primary key's hash that its combined key has."""
    return hash_ & _LOW


def fan_out(
    timeline: Timeline, right: Ints, group: Ints, event: Ints, following: Ints, live: Mask
) -> tuple[Ints, Ints]:
    """Which subscriptions the right table's records meet: (subscription, event), int64[m] each.

    ``right``: the events that are changes of the right table, ascending; ``group``: of each
    subscription; ``event``: the one that makes it, -1 for one of an earlier batch; ``following``:
    the event that ends or replaces it, -1 for none; ``live``: false for what is no subscription.
    """
    count = np.zeros(len(timeline.row) + 1, np.int64)
    count[right + 1] = 1
    np.cumsum(count, out=count)
    end = np.append(timeline.start, len(timeline.row))
    first = np.where(event < 0, timeline.start[group], event + 1)
    last = np.where(following < 0, end[group + 1], following)
    low = count[first]
    subscription, met = expand(low, np.where(live, count[last], low))
    return subscription, right[met]


def references(group: Ints, change: Ints, initial: Ints) -> tuple[Ints, Ints]:
    """How many rows refer to each event's key before and after the event: int64[n] each.

    ``group``: int64[n], ascending; ``change``: int64[n], by how many; ``initial``: int64[groups].
    """
    total = np.cumsum(change)
    first = np.searchsorted(group, np.arange(len(initial)))
    at_start = np.append(0, total)[first]
    after = total - at_start[group] + initial[group]
    return after - change, after
