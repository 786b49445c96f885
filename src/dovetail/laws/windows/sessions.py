"""Session windows: the sessions that a key's records make, extend and merge.

A session lasts from its first record to its last. No two open sessions of a key lie within the gap
of each other. The law, for a record at ``t`` that arrives at stream time ``clock``, the largest
timestamp so far:

- A session is closed when ``end + gap + grace < clock``, and takes no more records.
- The record makes one session of itself and the open ones within the gap, both ends included.
- The record is *late* and dropped if there are none and a session of it alone would be closed.
- A session that becomes another one, by a moved bound or a merge, is deleted first.

So the session that a record makes replaces at most two, and all sessions of a batch form a forest.
It is computed for all records at once. A key's records and stored sessions lie on a line, by time.
The place between two neighbours is *bridged* at the arrival that first has records on both sides
within the gap. The two are a record and its nearest earlier arrival. The session that a record
makes is all that is bridged around it when it arrives.

A record comes *behind* if a session of it alone would be closed. It bridges nothing and only moves
the start of the first open session.

Gap 5, nothing behind, records in the order of arrival a, b, c, d::

    time     10      14      16      20
    record   a       c       d       b
    bridged      c       d       d
    forest   0: a [10, 10]   1: c [10, 14], made of 0   2: b [20, 20]
             3: d [10, 20], made of 1 and 2

Source: Kafka Streams join design, "Windowed Aggregate"; spec/windowed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dovetail.aggregates.running_aggregates import lowest_over
from dovetail.arrays.grouping import start_mask
from dovetail.arrays.search import bisect, first_below, last_below, least_in_ranges
from dovetail.arrays.timeline import ABSENT, STORED, Ints, Mask

_NEVER = int(np.iinfo(np.int64).max)
_BLOCK = 1 << 10


@dataclass(frozen=True)
class Sessions:
    """The m sessions of some groups, ordered by (group, end): int64[m] each."""

    group: Ints
    """The index of each session's key."""
    start_us: Ints
    """The time of the first record of each session."""
    end_us: Ints
    """The time of the last record of each session, inclusive."""
    ref: Ints
    """The index of each session's accumulators."""

    def select(self, selected: Mask | Ints) -> Sessions:
        """Return the sessions that ``selected`` picks by flags or indices, in that order."""
        return Sessions(
            self.group[selected], self.start_us[selected], self.end_us[selected], self.ref[selected]
        )


@dataclass(frozen=True)
class Forest:
    """The n sessions that exist at some time in the batch, children before their parent.

    A session's children come right before it, the earlier in time first: the left one with all
    below it, the right one with all below it, then the session itself.
    """

    event: Ints
    """int64[n]: the event that makes the session, ABSENT for a stored one."""
    ref: Ints
    """int64[n]: the index of a stored session, ABSENT for others."""
    low: Ints
    """int64[n]: the first session below each one, itself for a leaf."""
    start_us: Ints
    """int64[n]: the time of the first record of each session."""
    end_us: Ints
    """int64[n]: the time of the last record of each session, inclusive."""
    late: Ints
    """int64: the indices of the events that are dropped."""

    @property
    def children(self) -> tuple[Ints, Ints]:
        """The two sessions that each session replaces, its children, as indices: int64[sessions]
        each, ABSENT for none. A session with one child has no second one.

        All descendants of a session lie right before it. So its first child is the session before
        it. The second, always the earlier in time, lies right before all descendants of the first.
        """
        session = np.arange(len(self.low))
        first_child = np.where(self.low < session, session - 1, ABSENT)
        end = self.low[first_child]
        return first_child, np.where((first_child != ABSENT) & (end > self.low), end - 1, ABSENT)


@dataclass(frozen=True)
class _Line:
    """The *entries* of all keys, by (group, time, arrival): the records that do not come behind,
    and the bounds of stored sessions.
    """

    time_us: Ints
    """int64[n]: the time of each entry."""
    arrival: Ints
    """int64[n]: the order of processing, ``STORED`` for the bounds of a stored session."""
    first: Ints
    """int64[groups]: the index of the first entry of each group."""
    end: Ints
    """int64[groups]: the exclusive end of each group."""
    bridged: Ints
    """int64[n]: the arrival from which on each entry and the next are in one session, ``_NEVER``
    for none.
    """

    @property
    def stretch_ends(self) -> Ints:
        """The indices of the line's entries (records and bounds of stored sessions) that are never
        in one session with the next entry, ascending: int64. The last entry of each group is always
        among them.
        """
        return np.flatnonzero(self.bridged == _NEVER)

    def stretch_around(self, group: Ints, index: Ints, arrival: Ints) -> tuple[Ints, Ints]:
        """Return the first and the last entry, both inclusive, of the session around each of m
        entries at an arrival: int64[m] each. An entry is a record or a bound of a stored session,
        by its index in the line.

        ``group``: int64[m], the group of each entry. ``index``: int64[m], the entry. ``arrival``:
        int64[m], the order of processing; entries joined at that arrival count.
        """
        ends, closed = self.stretch_ends, -self.bridged
        # Usually everything before the place that is ever bridged is bridged, and nothing after it.
        stretch = np.searchsorted(ends, index)
        low, high = np.append(0, ends + 1)[stretch], index.copy()
        width = int(self.arrival.max(initial=0)) + 2
        latest = np.minimum(self.bridged, width - 2) + 1
        latest = np.maximum.accumulate(
            latest + width * np.searchsorted(ends, np.arange(len(closed)))
        )
        far = np.flatnonzero((low < index) & (latest[index - 1] - width * stretch > arrival + 1))
        first = self.first[group[far]]
        last_closed = last_below(closed, first, index[far], -arrival[far])
        low[far] = np.where(last_closed < 0, first, last_closed + 1)
        far = np.flatnonzero(self.bridged[index] <= arrival)
        high[far] = first_below(closed, index[far], self.end[group[far]], -arrival[far])
        return low, high


def build_forest(
    group: Ints,
    time_us: Ints,
    arrival: Ints,
    closing_us: Ints,
    stored: Sessions,
    gap_us: int,
) -> Forest:
    """Return all sessions that exist at some time in the batch: those that events make, and the
    open stored ones that they may replace. A session has its event or stored session, its bounds,
    and the first session below it (``low``). It comes right after those that it replaces. Two
    events are in one session if they are at most ``gap_us`` apart.

    - ``group``, ``time_us``, ``arrival``: int64[events], the events by (group, arrival).
    - ``closing_us``: int64[events], non-decreasing by arrival. A session that ends before it is
      closed when the event arrives.
    - ``stored``: the stored sessions by (group, end), with bounds; those that are closed at their
      group's first event are left out.

    An event whose time is before its ``closing_us`` only joins a session that is open. Without one
    within the gap, it is dropped (``late``).
    """
    groups = int(group.max(initial=-1)) + 1
    behind = time_us < closing_us
    fresh, late = np.flatnonzero(~behind), np.flatnonzero(behind)
    begins = np.searchsorted(group, np.arange(groups))
    open_ref = np.flatnonzero(stored.end_us >= closing_us[begins][stored.group])
    open_sessions = stored.select(open_ref)
    line, index = _build_line(
        np.concatenate((group[fresh], open_sessions.group, open_sessions.group)),
        np.concatenate((time_us[fresh], open_sessions.start_us, open_sessions.end_us)),
        np.concatenate((arrival[fresh], np.full(2 * len(open_ref), STORED))),
        closing_us[fresh],
        groups,
        gap_us,
    )
    fresh_index = index[: len(fresh)]
    low, high = line.stretch_around(group[fresh], fresh_index, arrival[fresh])
    joins, first, last = _join_records_behind(
        line, group[late], time_us[late], arrival[late], closing_us[late], gap_us
    )
    dropped, late = late[~joins], late[joins]
    open_first, open_last = np.split(index[len(fresh) :], 2)
    low = np.concatenate((low, first[joins], open_first))
    high = np.concatenate((high, last[joins], open_last))
    none = np.full(len(open_ref), ABSENT)
    event = np.concatenate((fresh, late, none))
    order = np.lexsort((np.append(arrival, STORED)[event], high))
    event, low, high = event[order], low[order], high[order]
    start = line.time_us[low]
    below = np.searchsorted(high, low)
    if len(late):
        event_start = np.where(event == ABSENT, start, time_us[event])
        start = least_in_ranges(event_start, below, np.arange(len(order)) + 1)
    ref = np.append(np.full(len(fresh) + len(late), ABSENT), open_ref)[order]
    return Forest(event, ref, below, start, line.time_us[high], dropped)


# Gap 5, the module's example: records at 10, 20, 14 and 16 arrive as 0 to 3. Each is compared with
# its neighbours among earlier arrivals only, so n records give at most 2 n spans to bridge:
#
# | place                          | 0  | 1          | 2       | 3          |
# |--------------------------------|----|------------|---------|------------|
# | time                           | 10 | 14         | 16      | 20         |
# | arrival                        | 0  | 2          | 3       | 1          |
# | left: last earlier arrival     |    | 0, near    | 1, near | 0, too far |
# | right: next earlier arrival    |    | 3, too far | 3, near |            |
# | bridged after the place, at    | 2  | 3          | 3       | never      |
# | stretch around, at its arrival | 0  | 0 to 1     | 0 to 3  | 3          |
def _build_line(
    group: Ints, time_us: Ints, arrival: Ints, closing_us: Ints, groups: int, gap_us: int
) -> tuple[_Line, Ints]:
    """Build the line of n records and the bounds of m stored sessions: all these entries by (group,
    time, arrival). Return the line, and the index there of each entry, int64[n + 2m], in the order
    given.

    ``group``, ``time_us``, ``arrival``: int64[n + 2m], of n records, then of the starts, then of
    the ends of stored sessions, with the arrival ``STORED``. ``closing_us``: int64[n], the least
    end of a session that is open at the record's arrival. ``groups``: the count of groups.
    ``gap_us``: the largest distance of neighbours in a session.
    """
    order = np.lexsort((arrival, time_us, group))
    index = np.empty(len(order), np.int64)
    index[order] = np.arange(len(order))
    time_us, arrival = time_us[order], arrival[order]
    bounds = np.searchsorted(group[order], np.arange(groups + 1))
    record_index = index[: len(closing_us)]
    record_group = group[: len(closing_us)]
    record_arrival = arrival[record_index]
    left = _last_earlier_entry(arrival, bounds[record_group], record_index, record_arrival)
    right = first_below(arrival, record_index, bounds[record_group + 1], record_arrival)
    near_left = (left >= 0) & (time_us[record_index] - time_us[left] <= gap_us)
    near_left &= time_us[left] >= closing_us
    near_right = (right >= 0) & (time_us[right] - time_us[record_index] <= gap_us)
    starts, ends = np.split(index[len(closing_us) :], 2)
    bridged = lowest_over(
        np.concatenate((left[near_left], record_index[near_right], starts)),
        np.concatenate((record_index[near_left], right[near_right], ends)),
        np.concatenate(
            (record_arrival[near_left], record_arrival[near_right], np.full(len(starts), STORED))
        ),
        len(order),
        _NEVER,
    )
    return _Line(time_us, arrival, bounds[:-1], bounds[1:], bridged), index


def _last_earlier_entry(arrival: Ints, first: Ints, index: Ints, record_arrival: Ints) -> Ints:
    """Return for each record the index of the last entry before it, in its group, that has an
    earlier arrival: int64[records], -1 for none. Entries are the records and the bounds of stored
    sessions, by (group, time, arrival).

    ``arrival``: int64, the arrival of each entry. ``first``: int64[records], the first entry of the
    record's group. ``index``: int64[records], the record's own entry. ``record_arrival``:
    int64[records], its arrival.
    """
    earlier = index - 1
    far = np.flatnonzero((earlier < first) | (arrival[earlier] >= record_arrival))
    earlier[far] = last_below(arrival, first[far], index[far], record_arrival[far])
    return earlier


# A round handles a stretch of each session's records, by arrival: those that join, up to the first
# that does not, then those that do not, up to the first that does. Rounds work on blocks of
# records. So the whole takes O(n log n), however often the two alternate. Gap 5, one session that
# starts at 14:
#
# | record behind | start | joins                | round |
# |---------------|-------|----------------------|-------|
# | 10            | 14    | yes, start is now 10 | 1     |
# | 4             | 10    | no, it is dropped    | 1     |
# | 6             | 10    | yes, start is now 6  | 2     |
def _join_records_behind(
    line: _Line, group: Ints, time_us: Ints, arrival: Ints, closing_us: Ints, gap_us: int
) -> tuple[Mask, Ints, Ints]:
    """Decide which of n records that come behind join the first session open at their arrival:
    bool[n]. A record comes behind if a session of it alone would be closed. It joins if the
    session's start is at most ``gap_us`` after it, and becomes the new start.

    Also return the first and the last entry of that session in ``line``: int64[n] each, both 0 if
    none is open.

    ``line``: the other records and the bounds of stored sessions. ``group``, ``time_us``,
    ``arrival``: int64[n], of each record. ``closing_us``: int64[n], the least end of a session that
    is open at the arrival.
    """
    first, end = line.first[group], line.end[group]
    low = bisect(line.time_us, first, end, closing_us, right=False)
    there = first_below(line.arrival, low, end, arrival)
    joins = np.zeros(len(group), np.bool_)
    some = np.flatnonzero(there >= 0)
    low, high = np.zeros(len(group), np.int64), np.zeros(len(group), np.int64)
    low[some], high[some] = line.stretch_around(group[some], there[some], arrival[some])
    session = np.searchsorted(line.stretch_ends, there)
    some = some[np.lexsort((arrival[some], session[some]))]
    start = np.full(int(session.max(initial=0)) + 1, _NEVER)
    for block in range(0, len(some), _BLOCK):
        pending = some[block : block + _BLOCK]
        while len(pending):
            pending_session, time = session[pending], time_us[pending]
            new = start_mask(pending_session)
            begins = np.flatnonzero(new)
            block_session = np.cumsum(new) - 1
            session_start = np.minimum(line.time_us[low[pending]], start[pending_session])
            moved = np.append(_NEVER, time)[: len(time)]
            moved[begins] = _NEVER
            moved = _running_min(moved, block_session)
            ends = np.append(begins, len(pending))[1:]
            stop = _first_set_flag(np.minimum(session_start, moved) > time + gap_us, begins, ends)
            taken = np.arange(len(pending)) < stop[block_session]
            joins[pending[taken]] = True
            np.minimum.at(start, pending_session[taken], time[taken])
            session_start = np.minimum(line.time_us[low[pending]], start[pending_session])
            stop = _first_set_flag((session_start <= time + gap_us) & ~taken, begins, ends)
            pending = pending[np.arange(len(pending)) >= stop[block_session]]
    return joins, low, high


def _running_min(values: Ints, segment: Ints) -> Ints:
    """Return the smallest value so far, the value itself included, within each segment of equal
    neighbours in ``segment``: int64[n]. ``segment``: int64[n], non-decreasing.
    """
    distinct, rank = np.unique(values, return_inverse=True)
    shift = -segment * len(distinct)
    return distinct[np.minimum.accumulate(rank + shift) - shift]


def _first_set_flag(flags: Mask, begins: Ints, ends: Ints) -> Ints:
    """Return for each range the first index from ``begins``, inclusive, to ``ends``, exclusive,
    whose flag is set. The index is the range's end if none is set.

    ``flags``: bool[n]. ``begins``, ``ends``: int64[ranges].
    """
    at = np.flatnonzero(flags)
    next_flagged: Ints = np.append(at, len(flags))[np.searchsorted(at, begins)]
    return np.minimum(next_flagged, ends)
