"""Joins by foreign key: the messages of a changed left row to right rows, and their answers.

A left row subscribes to the right row that its foreign key names. The law, for a left record that
changes its row from ``old`` to ``new`` (each with its foreign key, which may be null):

- The former foreign key, if it differs, hears that the subscription ends. It answers with a
  tombstone if the present foreign key gives no answer (DELETE_KEY_AND_PROPAGATE). Otherwise it
  stays silent (DELETE_KEY_NO_PROPAGATE).
- The present foreign key hears of the new row. It answers with the joined row if there is a right
  row or left rows are preserved. Otherwise it gives a tombstone if the old row had another foreign
  key (PROPAGATE_NULL_IF_NO_FK_VAL_AVAILABLE), else nothing (PROPAGATE_ONLY_IF_FK_VAL_AVAILABLE).
- A null foreign key matches no right row. If left rows are not preserved, a row with a null key
  does not subscribe at all.
- The result's time is the larger of the record's and the right row's. The right row counts for a
  joined row, and for a tombstone from a former foreign key if left rows are not preserved.

A right record answers every left row that is subscribed when it arrives, under its own time. The
answer to a right row is the joined row. The answer to a right tombstone is the left row alone if it
is preserved, else a tombstone.

If right rows are preserved, a right row without subscribers has a result of its own.

Source: KIP-213 "Tombstones & Foreign Key Changes"; spec/foreign_key.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dovetail.arrays.search import expand_ranges
from dovetail.arrays.timeline import Ints, Mask, Timeline

EMIT, FRESH, MOVED = 1, 2, 4
"""The bits of an instruction. ``EMIT``: answer even without a right row. ``FRESH``: the
subscription is new to this foreign key. ``MOVED``: the primary key's results of this batch come
from several buckets.
"""

SETTLED, BEFORE = -1, -2
"""Special epochs. ``SETTLED``: the bucket's own order is that of the primary key. ``BEFORE``: the
row before the batch.
"""


@dataclass(frozen=True)
class Messages:
    """The messages that m changes of left rows send: bool[m] each."""

    ends: Mask
    """The former foreign key hears that the subscription ends."""
    end_emits: Mask
    """The former foreign key answers with a tombstone, because no present one will answer."""
    begins: Mask
    """The present foreign key hears of the new row."""
    begin_emits: Mask
    """The present foreign key answers even without a right row, by a tombstone at least. The flag
    means nothing without ``begins``.
    """
    fresh: Mask
    """The left row has not referred to the present foreign key before."""


def messages_of_changes(
    old: Mask, new: Mask, old_null: Mask, new_null: Mask, same: Mask, *, left_preserved: bool
) -> Messages:
    """Return the messages that m changes of left rows send, as flags, bool[m] each. A message goes
    to the bucket of a foreign key, which answers it with the join's result.

    - ``ends``: the former foreign key hears that the row no longer refers to it.
    - ``end_emits``: it answers with a tombstone, because no present foreign key will answer.
    - ``begins``: the present foreign key hears of the new row.
    - ``begin_emits``: it answers even without a right row, by a tombstone at least. It is true
      exactly if ``ends`` is, but means nothing without ``begins``.
    - ``fresh``: the row before, if any, did not refer to the present foreign key.

    ``old``, ``new``: bool[m], there is a row before, after. ``old_null``, ``new_null``: bool[m],
    its foreign key is null. ``same``: bool[m], both foreign keys are equal, two nulls, too; it
    counts only if there are rows before and after.

    ``left_preserved``: True if left rows are preserved. Then a null foreign key is a key like
    others; else it gets no message. The foreign key of one row over five changes, left rows not
    preserved:

    | old  | new  | ends | end_emits | begins | begin_emits | fresh |
    |------|------|------|-----------|--------|-------------|-------|
    | none | x    |      |           | yes    |             | yes   |
    | x    | x    |      |           | yes    |             |       |
    | x    | y    | yes  |           | yes    | yes         | yes   |
    | y    | null | yes  | yes       |        |             |       |
    | x    | none | yes  | yes       |        |             |       |
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


def fan_out(
    timeline: Timeline, right: Ints, group: Ints, event: Ints, following: Ints, live: Mask
) -> tuple[Ints, Ints]:
    """Return the subscriptions that the right table's records meet, as pairs of a subscription's
    and an event's index: int64[m] each, by subscription, then by event. A subscription is a left
    row's interest in the right row of its foreign key. A record meets those of its group that an
    earlier event made and no earlier one ended.

    - ``timeline``: the batch's events. ``right``: int64, the events that change the right table,
      ascending.
    - ``group``: int64[subscriptions], the group of each.
    - ``event``: int64[subscriptions], the event that makes it, -1 for one of an earlier batch.
    - ``following``: int64[subscriptions], the event that ends or replaces it, -1 for none.
    - ``live``: bool[subscriptions], false for one that meets nothing.

    One group with events 0 to 5, of which 1, 3 and 5 change the right table:

    | event | following | meets   |
    |-------|-----------|---------|
    | -1    | 2         | 1       |
    | 2     | 4         | 3       |
    | 4     | -1        | 5       |
    | 0     | -1        | 1, 3, 5 |
    """
    count = np.zeros(len(timeline.row) + 1, np.int64)
    count[right + 1] = 1
    np.cumsum(count, out=count)
    end = np.append(timeline.start, len(timeline.row))
    first = np.where(event < 0, timeline.start[group], event + 1)
    last = np.where(following < 0, end[group + 1], following)
    low = count[first]
    subscription, met = expand_ranges(low, np.where(live, count[last], low))
    return subscription, right[met]


def count_references(group: Ints, change: Ints, initial: Ints) -> tuple[Ints, Ints]:
    """Return the count of left rows that refer to each event's key, before and after the event:
    int64[n] each.

    ``group``: int64[n], the index of each event's key, non-decreasing. ``change``: int64[n], added
    to the count by each event. ``initial``: int64[groups], the counts before the batch; a group may
    have no events.

    >>> group, change = np.array([0, 0, 0, 1, 1]), np.array([1, 0, -1, 0, 1])
    >>> [numbers.tolist() for numbers in count_references(group, change, np.array([0, 2]))]
    [[0, 1, 1, 2, 2], [1, 1, 0, 2, 3]]
    """
    total = np.cumsum(change)
    first = np.searchsorted(group, np.arange(len(initial)))
    at_start = np.append(0, total)[first]
    after = total - at_start[group] + initial[group]
    return after - change, after
