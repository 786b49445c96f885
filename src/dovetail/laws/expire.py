"""Expiry of a table's rows as stream time passes.

*Stream time* is the largest timestamp of the table's records so far, the arriving one's included.
For a table that is a result, the records are those of its inputs that have changed it so far. The
expiring table holds the rows that are at most ``after`` behind stream time. The last row of a key
to arrive counts, whatever its time.

- A row of time t stays while stream time is at most t + ``after``. The record that moves stream
  time past that removes it first, whatever the record's own key is. The removal is a tombstone of
  time t + ``after``.
- A record that gives its key a new row starts a new life, from the record's own time on. That holds
  even if the new row is older than the former one.
- A *late* row is more than ``after`` behind stream time when it arrives. It is not emitted. If its
  key has a row, that row is replaced and leaves, by a tombstone of the late row's t + ``after``.
- A tombstone is emitted if its key has a row, however old the tombstone is, and never otherwise.

Nothing depends on how records are cut into batches. Results depend on a key's records and on stream
time at each arrival. Source: spec/view/expire.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dovetail.arrays.timeline import Ints, Mask


@dataclass(frozen=True)
class VersionFates:
    """The fates of n versions of rows: bool[n] each but ``due_us``."""

    due_us: Ints
    """int64[n]: the first stream time at which the version has expired; of no meaning for a
    tombstone.
    """
    late: Mask
    """The version is a row that had expired when it arrived, so it does not enter the table."""
    stands: Mask
    """The version is a row that enters the table, even if another one replaces it later."""
    expires: Mask
    """The row enters the table, and is there until stream time removes it."""
    removes: Mask
    """The version is a tombstone or a late row whose key has a row just before, which it removes.
    """


def version_fates(
    group: Ints, time_us: Ints, present: Mask, stream_us: Ints, final_us: int, after_us: int
) -> VersionFates:
    """Return the fates of n versions of rows, which lie by (group, arrival). A version is a record
    of a key, or the key's stored row, which comes first.

    - ``group``, ``time_us``: int64[n], the key and the time of each version.
    - ``present``: bool[n], the version is a row, not a tombstone.
    - ``stream_us``: int64[n], stream time at its arrival, or before the batch for a stored version.
    - ``final_us``: stream time after the batch.
    - ``after_us``: a row of time t stays up to the stream time t + ``after_us``, inclusive.

    Fates are ``due_us``, the first stream time at which a version has expired, and flags:

    - ``late``: a row that has expired on arrival, so it does not enter the table.
    - ``stands``: a row that enters the table, even if another one replaces it later.
    - ``expires``: it stands, and stream time reaches ``due_us`` in the batch before another version
      has replaced it. The next version's own record may be the one that moves stream time there.
    - ``removes``: a tombstone or late row that arrives while its key has a row. A tombstone has
      no other flag, and its ``due_us`` means nothing.

    One key, ``after`` 3; the batch ends at stream time 12:

    | record | stream time | due | fate                                   |
    |--------|-------------|-----|----------------------------------------|
    | row 1  | 1           | 5   | stands, expires at 5, before row 5     |
    | row 5  | 5           | 9   | stands until row 2                     |
    | row 2  | 6           | 6   | late; removes row 5                    |
    | row 8  | 8           | 12  | stands, expires at 12                  |

    >>> key, times = np.array([7, 7]), np.array([1, 5])
    >>> made = version_fates(key, times, np.ones(2, bool), times, 8, 3)
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
    return VersionFates(due_us, late, stands, expires, removes)
