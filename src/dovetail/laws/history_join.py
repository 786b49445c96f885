"""Joins of two versioned tables over all of their history (``late="history"``).

The law: after any order of arrival, the emitted points, the last one of each key and time standing,
are the history of the join of both complete histories. So a record that arrives late corrects the
past: it changes its side's row from its own time up to the next version of its key, and at its own
time and at every version of the other side in between the joined row is emitted, stamped with that
time. A point is emitted where there is a row now, where there was one before the record, or where
the record's previous point has a row that ends here; without a row it is a tombstone. A row that
now lasts up to its side's next version, where none did, is ended there if nothing follows.

Source: KIP-914 "Rejected alternatives", Attempt 2; spec/versioned.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dovetail.arrays.search import bisect, expand, first_below, last_below
from dovetail.arrays.timeline import ABSENT, Ints, Mask
from dovetail.laws.table_join import How, preserved
from dovetail.laws.versioning import LATEST


@dataclass(frozen=True)
class Points:
    """The versions of one side, stored ones and the batch's, by (group, time, arrival).

    ``start``: int64[groups + 1], where each group's begin; ``time_us``, ``arrival`` (-1 for a
    stored one): int64[n]; ``reference``: int64[n], the row, ABSENT for a tombstone;
    ``horizon_us``: int64[arrivals], the time after each arrival before which only a row that is
    still the latest version is known.
    """

    start: Ints
    time_us: Ints
    arrival: Ints
    reference: Ints
    horizon_us: Ints

    def standing(self, group: Ints, time_us: Ints, arrival: Ints) -> Ints:
        """The row that stood at a time, among the versions that had arrived before ``arrival``."""
        found = self._last(group, time_us, arrival)
        known = self._known(found, group, time_us, arrival)
        return np.where(known, np.append(self.reference, ABSENT)[found], ABSENT)

    def after(self, group: Ints, time_us: Ints, until_us: Ints, arrival: Ints) -> tuple[Ints, Ints]:
        """The known versions later than a time and before another that had arrived: for which
        query, and which, in order of time.
        """
        end = self.start[group + 1]
        first = bisect(self.time_us, self.start[group], end, time_us, right=True)
        end = bisect(self.time_us, first, end, until_us, right=False)
        query, at = expand(first, end)
        arrived = self.arrival[at] < arrival[query]
        query, at = query[arrived], at[arrived]
        last = np.ones(len(query), dtype=np.bool_)
        last[:-1] = (np.diff(query) != 0) | (np.diff(self.time_us[at]) != 0)
        query, at = query[last], at[last]
        known = self._known(at, group[query], self.time_us[at], arrival[query])
        return query[known], at[known]

    def next_time(self, group: Ints, time_us: Ints, arrival: Ints) -> Ints:
        """The time of the first version after a time that had arrived, ``LATEST`` for none."""
        end = self.start[group + 1]
        first = bisect(self.time_us, self.start[group], end, time_us, right=True)
        found = first_below(self.arrival, first, end, arrival)
        return np.append(self.time_us, LATEST)[found]

    def _last(self, group: Ints, time_us: Ints, arrival: Ints) -> Ints:
        first = self.start[group]
        end = bisect(self.time_us, first, self.start[group + 1], time_us, right=True)
        return last_below(self.arrival, first, end, arrival)

    def _known(self, found: Ints, group: Ints, time_us: Ints, arrival: Ints) -> Mask:
        """Whether versions that stand at a time are within the history, or are the latest row: a
        tombstone before the history says nothing that its absence does not.
        """
        latest = self._last(group, np.full(len(group), LATEST), arrival)
        row = np.append(self.reference, ABSENT)[found] != ABSENT
        return (time_us >= self.horizon_us[arrival]) | ((found == latest) & row)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Corrections:
    """m points in order: the record (its number in the arrays given) that causes each, its time,
    whether there is a row, and the rows of both sides.
    """

    record: Ints
    time_us: Ints
    present: Mask
    reference: tuple[Ints, ...]


def correct(
    how: How, side: int, group: Ints, time_us: Ints, arrival: Ints, row: Ints, points: list[Points]
) -> Corrections:
    """The points that the records of one side make, each record's in order of time.

    ``row``: what each puts in its place, ABSENT for a tombstone; ``points``: per side, the batch's
    own included.
    """
    own, other = points[side], points[1 - side]
    until = own.next_time(group, time_us, arrival)
    every = np.arange(len(group))
    ended = every[until != LATEST]
    between, at = other.after(group, time_us, until, arrival)
    # A record's own time, the other side's versions that follow, and where the next version begins.
    record = np.concatenate((every, between, ended))
    time = np.concatenate((time_us, other.time_us[at], until[ended]))
    order = np.lexsort((time, record))
    record, time = record[order], time[order]
    end = (np.arange(len(order)) >= len(every) + len(between))[order]
    at_time = group[record], time, arrival[record]
    theirs, stands = other.standing(*at_time), own.standing(*at_time)
    ours = np.where(end, stands, row[record])
    before = np.where(end, stands, own.standing(group, time_us, arrival)[record])
    keeps = preserved(how)

    def joined(mine: Ints) -> Mask:
        here, there = mine != ABSENT, theirs != ABSENT
        found: Mask = (here & there) | (here & keeps[side]) | (there & keeps[1 - side])
        return found

    def previous(which: Mask) -> Mask:
        last: Mask = np.append(False, which[:-1] & (record[1:] == record[:-1]))[: len(record)]
        return last

    present, was = joined(ours), joined(before)
    lasts = previous(present)
    kept = np.flatnonzero(np.where(end, lasts & ~previous(was) & ~present, present | was | lasts))
    sides = (ours, theirs) if side == 0 else (theirs, ours)
    references = (np.where(present, refs, ABSENT)[kept] for refs in sides)
    return Corrections(record[kept], time[kept], present[kept], tuple(references))
