"""Which rows of a table leave it as stream time passes, and when.

The law. *Stream time* is the largest timestamp of the table's records so far, the arriving one's
included; of a result, that of the records that it is made of, as far as they have changed it. The
table that expires has at any time those rows of the other that are no more than ``after`` behind
stream time. Of a key the last row to arrive counts there as here, whatever its time. So

- a row of time t stays while stream time is at most t + ``after``. The record, of whatever key, by
  which stream time passes that takes it away, before it says anything itself: by a tombstone of
  time t + ``after``;
- a record that gives a key a row gives it a new life, from the record's own time on, though that is
  older than the one before;
- a row that is *late*, more than ``after`` behind stream time as it comes, has expired at once: it
  is not emitted. If its key has a row that row is replaced, so it leaves, again by a tombstone of
  the late row's t + ``after``;
- a tombstone is emitted where its key has a row, however old it is, and nowhere else.

Nothing here depends on how records are cut: what a key's records say depends on these and on stream
time as each comes. Source: spec/view/expire.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dovetail.arrays.timeline import Ints, Mask


@dataclass(frozen=True)
class Lives:
    """What becomes of n versions of rows: bool[n] each, and ``due_us``: int64[n], the first stream
    time at which a version is gone.

    ``late``: a row that had expired as it came; ``stands``: a row that comes into the table;
    ``expires``: one that stands until stream time takes it away; ``removes``: what takes the row
    before it away and puts none in its place.
    """

    due_us: Ints
    late: Mask
    stands: Mask
    expires: Mask
    removes: Mask


def lives(
    group: Ints, time_us: Ints, present: Mask, stream_us: Ints, final_us: int, after_us: int
) -> Lives:
    """What becomes of versions in the order of (group, arrival), the stored ones among them.

    ``present``: whether it is a row, not a tombstone; ``stream_us``: stream time as it comes, of a
    stored one that before the batch; ``final_us``: that after the batch.

    >>> made = lives(np.array([7, 7]), np.array([1, 5]), np.ones(2, bool), np.array([1, 5]), 8, 3)
    >>> made.expires.tolist(), made.due_us.tolist()
    ([True, False], [5, 9])
    """
    due_us = time_us + after_us + 1
    follows = group[1:] == group[:-1]
    until_us = np.full(len(group), final_us)
    until_us[:-1][follows] = stream_us[1:][follows]
    late = present & (due_us <= stream_us)
    stands = present & ~late
    expires = stands & (due_us <= until_us)
    removes = np.zeros(len(group), np.bool_)
    removes[1:] = follows & (stands & ~expires)[:-1] & ~stands[1:]
    return Lives(due_us, late, stands, expires, removes)
