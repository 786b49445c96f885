"""Joins of two versioned tables over all of their history (``late="history"``).

The law: the emitted points are the history of the join of both complete histories, after any order
of arrival. The last point of each key and time counts. So a *late* record, one older than stream
time, corrects results of earlier times. It changes its side's row from its own time up to the next
version of its key. The joined row is emitted at the record's time and at every version of the other
side in between, stamped with that time.

A point is emitted in three cases: there is a row now, there was one before the record, or the
record's previous point has a row that ends here. A point without a row is a tombstone. If a row now
lasts up to its side's next version where none did, it is ended there if nothing follows.

Source: KIP-914 "Rejected alternatives", Attempt 2; spec/versioned.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dovetail.arrays.grouping import start_mask
from dovetail.arrays.search import bisect, expand_ranges, first_below, last_below
from dovetail.arrays.timeline import ABSENT, Ints, Mask
from dovetail.laws.joins.table_join import How, sides_preserved
from dovetail.laws.versioning import LATEST


@dataclass(frozen=True)
class Points:
    """The n versions of one side, stored ones and the batch's, by (group, time, arrival)."""

    start: Ints
    """int64[groups + 1]: the first version of each group, and n."""
    time_us: Ints
    """int64[n]: the event time of each version, in microseconds."""
    arrival: Ints
    """int64[n]: the order of processing, -1 for a stored version."""
    reference: Ints
    """int64[n]: the row, ABSENT for a tombstone."""
    horizon_us: Ints
    """int64[arrivals]: the start of the known history after each arrival. Before that time only a
    row that is still the latest version is known.
    """

    def row_standing_at(self, group: Ints, time_us: Ints, arrival: Ints) -> Ints:
        """Return for each query the row that its ``group`` had at ``time_us``, by the versions that
        arrived before ``arrival``: int64[queries], an element of ``reference``, ABSENT for none and
        for a tombstone.

        ``group``, ``time_us``, ``arrival``: int64[queries]. A version at the time itself counts; of
        one time the last to arrive does. If ``time_us`` is before the known history
        (``horizon_us``), a version counts only if it is still the key's latest.
        """
        version = self._last_version(group, time_us, arrival)
        in_history = self._known_versions(version, group, time_us, arrival)
        return np.where(in_history, np.append(self.reference, ABSENT)[version], ABSENT)

    def versions_between(
        self, group: Ints, time_us: Ints, until_us: Ints, arrival: Ints
    ) -> tuple[Ints, Ints]:
        """Return the known versions strictly between ``time_us`` and ``until_us`` that had arrived
        before ``arrival``, as pairs of a query's and a version's index: int64[m] each.

        The arguments are int64[queries]; ``group``: the key of each query. Pairs lie by query, then
        by time; of one time only the last to arrive counts. Tombstones are included, but not those
        before the known history. A query without any is not in the result.
        """
        end = self.start[group + 1]
        first = bisect(self.time_us, self.start[group], end, time_us, right=True)
        end = bisect(self.time_us, first, end, until_us, right=False)
        query, at = expand_ranges(first, end)
        arrived = self.arrival[at] < arrival[query]
        query, at = query[arrived], at[arrived]
        last = start_mask(query[::-1], self.time_us[at][::-1])[::-1]
        query, at = query[last], at[last]
        in_history = self._known_versions(at, group[query], self.time_us[at], arrival[query])
        return query[in_history], at[in_history]

    def next_time(self, group: Ints, time_us: Ints, arrival: Ints) -> Ints:
        """Return for each query the time in microseconds of the first version of its group after
        ``time_us``, exclusive: int64[queries], ``LATEST`` for none.

        ``group``, ``time_us``, ``arrival``: int64[queries]. Only versions that arrived before
        ``arrival`` count, tombstones and those before the known history included.
        """
        end = self.start[group + 1]
        first = bisect(self.time_us, self.start[group], end, time_us, right=True)
        next_version = first_below(self.arrival, first, end, arrival)
        return np.append(self.time_us, LATEST)[next_version]

    def _last_version(self, group: Ints, time_us: Ints, arrival: Ints) -> Ints:
        """Return for each query the index of the last version of its group at or before
        ``time_us``: int64[queries], -1 for none.

        ``group``, ``time_us``, ``arrival``: int64[queries]. Only versions that arrived before
        ``arrival`` count, tombstones included; of one time the last to arrive does.
        """
        first = self.start[group]
        end = bisect(self.time_us, first, self.start[group + 1], time_us, right=True)
        return last_below(self.arrival, first, end, arrival)

    def _known_versions(self, version: Ints, group: Ints, time_us: Ints, arrival: Ints) -> Mask:
        """Return a mask of the versions that are known at ``arrival``: bool[n]. A version is known
        if the time asked for lies within the history, or if it is the latest version and a row.

        ``version``: int64[n], indices of versions, -1 for none. ``group``, ``time_us``,
        ``arrival``: int64[n], the key, the time asked for and the order of processing. A tombstone
        before the history means the same as no version, so it is not known.
        """
        latest = self._last_version(group, np.full(len(group), LATEST), arrival)
        row = np.append(self.reference, ABSENT)[version] != ABSENT
        return (time_us >= self.horizon_us[arrival]) | ((version == latest) & row)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Corrections:
    """The m points to emit, in order of record and time."""

    record: Ints
    """int64[m]: the record that causes the point, as an index into the arrays given."""
    time_us: Ints
    """int64[m]: the event time of the point, in microseconds."""
    present: Mask
    """bool[m]: there is a row; false for a tombstone."""
    reference: tuple[Ints, ...]
    """The rows of the left and the right side: int64[m] each, ABSENT for none."""


def correct_points(
    how: How, side: int, group: Ints, time_us: Ints, arrival: Ints, row: Ints, points: list[Points]
) -> Corrections:
    """Return the points of the join's history that the records of ``side`` correct, by record, then
    by time. A point has its ``record``, its time, and the row of each side, ABSENT for none; it is
    a tombstone if not ``present``.

    At the record's time and at later versions of the other side, a point is emitted in three cases.
    It has a row now, it had one before, or it ends the row of the point before. At the side's own
    next version, a point is emitted only to end a row that now lasts up to there.

    - ``how``: the kind of join. ``side``: 0 for the left, 1 for the right.
    - ``group``, ``time_us``, ``arrival``: int64[n], the key, the time and the order of each record.
    - ``row``: int64[n], the row that each record puts in place, ABSENT for a tombstone.
    - ``points``: the versions of the left and of the right side, in a list of two. The batch's are
      among them.

    A left join whose left has a tombstone at 30 and whose right has x at 20. The late left row b at
    15 makes three points:

    | time | left before | left now | right | point     |
    |------|-------------|----------|-------|-----------|
    | 15   | none        | b        | none  | b + null  |
    | 20   | none        | b        | x     | b + x     |
    | 30   | none        | none     | x     | tombstone |
    """
    side_points, other_points = points[side], points[1 - side]
    until = side_points.next_time(group, time_us, arrival)
    every = np.arange(len(group))
    ended = every[until != LATEST]
    between, at = other_points.versions_between(group, time_us, until, arrival)
    # Points lie at the record's own time, at later versions of the other side, and at the next
    # version of the record's side.
    record = np.concatenate((every, between, ended))
    time = np.concatenate((time_us, other_points.time_us[at], until[ended]))
    order = np.lexsort((time, record))
    record, time = record[order], time[order]
    end = (np.arange(len(order)) >= len(every) + len(between))[order]
    at_time = group[record], time, arrival[record]
    theirs, stands = other_points.row_standing_at(*at_time), side_points.row_standing_at(*at_time)
    ours = np.where(end, stands, row[record])
    before = np.where(end, stands, side_points.row_standing_at(group, time_us, arrival)[record])
    keeps = sides_preserved(how)

    def has_row(mine: Ints) -> Mask:
        """Return a mask of the points (times in the join's history) at which the join has a row:
        bool[points]. ``how`` and the other side's rows at the points decide with ``mine``:
        int64[points], the row of the records' side at each point, ABSENT for none.
        """
        here, there = mine != ABSENT, theirs != ABSENT
        joined: Mask = (here & there) | (here & keeps[side]) | (there & keeps[1 - side])
        return joined

    def of_previous_point(which: Mask) -> Mask:
        """Return for each point the flag in ``which`` of the point before it: bool[points], false
        for a record's first point. ``which``: bool[points].
        """
        last: Mask = np.append(False, which[:-1] & (record[1:] == record[:-1]))[: len(record)]
        return last

    present, was = has_row(ours), has_row(before)
    lasts = of_previous_point(present)
    emitted = np.flatnonzero(
        np.where(end, lasts & ~of_previous_point(was) & ~present, present | was | lasts)
    )
    sides = (ours, theirs) if side == 0 else (theirs, ours)
    references = (np.where(present, refs, ABSENT)[emitted] for refs in sides)
    return Corrections(record[emitted], time[emitted], present[emitted], tuple(references))
