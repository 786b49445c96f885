"""Rows of a key within a transaction: the events that leave a table's row as it is.

A database may check a key only as a statement or a transaction ends. Until then a key may have two
rows: one that has come, and one that is yet to go. Events name rows by their keys alone. So the
rows of a key are counted, and the row that goes is the one that came first.

| event | rows after | effect |
|---|---|---|
| ``COMES``: a create, the read of a snapshot | one more | the key has this row |
| ``CHANGES``: an update | the same, at least one | the key has this row |
| ``GOES``: a delete, of one row | none | the key has no row |
| ``GOES``, of several rows | one less | none, it is left out |
| ``BARE``: a record without a value | none | the key has no row |

A transaction ends with one row of a key at most. So the count begins at one at most for the events
of another transaction, and for each event without one.

Source: Debezium's envelopes with ``provide.transaction.metadata``; PostgreSQL, ``SET CONSTRAINTS``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from dovetail.arrays.grouping import start_mask
from dovetail.arrays.search import expand_ranges
from dovetail.arrays.timeline import ABSENT, Ints, Mask

COMES: Final = 0
CHANGES: Final = 1
GOES: Final = 2
BARE: Final = 3


@dataclass(frozen=True)
class Steps:
    """The n events of a micro-batch, ordered by (key, arrival)."""

    kind: Ints
    """int64[n]: ``COMES``, ``CHANGES``, ``GOES`` or ``BARE``."""
    transaction: Ints
    """int64[n]: the index of the event's transaction, ABSENT for none, as for ``BARE``."""
    order: Ints
    """int64[n]: the ordinal of the event in its transaction, which restarts as the connector
    does.
    """
    place: Ints
    """int64[n]: the event's place in the database's log, 0 where it is unknown."""

    def take(self, which: Ints) -> Steps:
        """Return the events with the indices ``which``, in that order."""
        return Steps(
            self.kind[which], self.transaction[which], self.order[which], self.place[which]
        )


@dataclass(frozen=True)
class Tally:
    """The state of k keys. A key without a row has no other state."""

    rows: Ints
    """int64[k]: the count of rows at the moment."""
    transaction: Ints
    """int64[k]: the index of the transaction of the last event, ABSENT for none."""
    order: Ints
    """int64[k]: the largest ordinal of an event in that transaction."""
    place: Ints
    """int64[k]: the last place in the log of an event of that transaction."""
    skipped: Mask
    """bool[k]: the key's last event is a delete that was left out."""

    @staticmethod
    def empty(keys: int) -> Tally:
        """Return the state of ``keys`` keys without a row: no rows, no transaction (ABSENT), order
        and place 0, no skipped delete.
        """
        rows, order, place = np.zeros((3, keys), np.int64)
        return Tally(rows, np.full(keys, ABSENT), order, place, np.zeros(keys, np.bool_))

    def take(self, which: Ints) -> Tally:
        """Return the state of the keys at the indices ``which``, in that order."""
        return Tally(
            self.rows[which],
            self.transaction[which],
            self.order[which],
            self.place[which],
            self.skipped[which],
        )

    def copy(self) -> Tally:
        """Return a copy of the state of all keys that can be changed independently."""
        return self.take(np.arange(len(self.rows)))

    def replace(self, which: Ints, other: Tally) -> None:
        """Replace, in place, the state of the keys at the indices ``which`` by the state of the
        keys of ``other``.

        ``which``: int64, distinct indices. ``other`` has one key for each, in that order.
        """
        for name, column in vars(other).items():
            getattr(self, name)[which] = column

    def without_gone_keys(self) -> Tally:
        """Return a state in which keys without a row have no transaction, order, place or skipped
        delete. The result may share arrays with this one, which is not changed.
        """
        gone = self.rows == 0
        return Tally(
            self.rows,
            np.where(gone, ABSENT, self.transaction),
            np.where(gone, 0, self.order),
            np.where(gone, 0, self.place),
            self.skipped & ~gone,
        )


@dataclass(frozen=True)
class EventOutcomes:
    """The outcome of n events: those without effect, and the state of the keys afterwards."""

    left_out: Mask
    """bool[n]: the event leaves the table as it is."""
    repeated: Mask
    """bool[n]: the event was there before; such an event is also left out."""
    tally: Tally
    """The state of the keys afterwards."""


# A *span* is the events of one key and one transaction in a row. In it "change" moves the count,
# which is then at least "floor". With the sum s of the changes so far, the count after an event is
# s + max(rows at the span's begin, largest of floor - s so far). For a key with one row:
#
# | event | span | change | floor | s | largest floor - s | rows, from 0 | from 1 | left out |
# |---|---|---|---|---|---|---|---|---|
# | COMES, 7 | 0 | 1 | | 1 | | 1 | 2 | |
# | GOES, 7 | 0 | -1 | 0 | 0 | 0 | 0 | 1 | yes |
# | COMES, 8 | 1 | 1 | | 1 | | 1 | 2 | |
# | CHANGES, 8 | 1 | 0 | 1 | 1 | 0 | 1 | 2 | |
# | GOES, 8 | 1 | -1 | 0 | 0 | 0 | 0 | 1 | yes |
#
# A key's first span begins with known rows, each other one with 0 or 1. So both ways are counted,
# and ``_rows_at_begin`` finds which it is: here 1 both times.
#
# An event may repeat another one only if its order or its place falls within a span. The events of
# such spans are taken one after the other, those of all spans at once.
def settle_events(start: Ints, steps: Steps, tally: Tally) -> EventOutcomes:
    """Return the outcome of n events. It marks those that leave a table's row as it is
    (``left_out``) and those that were there before (``repeated``). It also has the state of the
    keys afterwards.

    ``start``: int64[k], the index in ``steps`` of each key's first event; each key has at least
    one. ``steps``: the n events, key by key, those of a key in the order of arrival. Each has its
    kind, transaction, order in the transaction, and place in the database's log. ``tally``: the
    state of these k keys before: counts of rows, and the last transaction. It is not changed.

    A delete is left out if the key has more than one row before it, which only events of one
    transaction can cause. For an event of another transaction, or of none, the key has at most one
    row. An event repeats another if neither its order nor its place is beyond those that its
    transaction has brought for the key; one without a transaction never does. It is left out, too.
    So is a record without a value (``BARE``) right after a delete that was left out.

    The outcome is that of ``settle_stepwise``, with less work for keys of many events.
    """
    count = len(steps.kind)
    group = np.repeat(np.arange(len(start)), np.diff(np.append(start, count)))
    first = start_mask(group)
    after_delete = np.append(False, steps.kind[:-1] == GOES)[:count]
    behind = (steps.kind == BARE) & np.where(first, tally.skipped[group], after_delete)
    counted_event = np.flatnonzero(~behind)
    counted = _settle_by_counting(steps.take(counted_event), group[counted_event], tally)
    left_out, repeated, reached = behind & first, np.zeros(count, np.bool_), counted.tally.copy()
    left_out[counted_event], repeated[counted_event] = counted.left_out, counted.repeated
    tail = np.flatnonzero(behind & ~first)
    left_out[tail] = left_out[tail - 1]
    last = np.append(start[1:], count) - 1
    reached.skipped[:] = (left_out & (steps.kind == GOES))[last]
    return EventOutcomes(left_out, repeated, reached.without_gone_keys())


def settle_stepwise(start: Ints, steps: Steps, tally: Tally) -> EventOutcomes:
    """Return the outcome of n events, taken one after the other, those of all keys at once. It
    marks those that leave a table's row as it is (``left_out``) and those that were there before
    (``repeated``). It also has the state of the keys afterwards.

    ``start``: int64[k], the index in ``steps`` of each key's first event; each key has at least
    one. ``steps``: the n events, key by key, those of a key in the order of arrival. ``tally``: the
    state of these k keys before; it is not changed.

    A delete is left out if the key has more than one row before it, which only events of one
    transaction can cause. For an event of another transaction, or of none, the key has at most one
    row. An event repeats another if neither its order nor its place is beyond those that its
    transaction has brought for the key; one without a transaction never does. It is left out, too.
    So is a record without a value (``BARE``) right after a delete that was left out.
    """
    count = len(steps.kind)
    length = np.diff(np.append(start, count))
    longest, tally = np.argsort(-length, kind="stable"), tally.copy()
    left_out, repeated = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
    for step in range(int(length.max(initial=0))):
        keys = longest[: np.searchsorted(-length[longest], -step)]
        event = start[keys] + step
        outcomes = _settle_one_event_per_key(steps.take(event), tally.take(keys))
        left_out[event], repeated[event] = outcomes.left_out, outcomes.repeated
        tally.replace(keys, outcomes.tally)
    return EventOutcomes(left_out, repeated, tally)


# Each event is one of its own key. With the state "2 rows, transaction 7, order 5, place 90":
#
# | kind | transaction, order, place | rows before | rows after | left out |
# |---|---|---|---|---|
# | GOES | 7, 6, 95 | 2 | 1 | yes |
# | GOES | 7, 4, 80 | 2 | 2 | yes, it repeats |
# | GOES | 7, 1, 95: the connector has restarted | 2 | 1 | yes |
# | GOES | 8, 1, 97 | 1 | 0 | |
# | CHANGES | none | 1 | 1 | |
def _settle_one_event_per_key(steps: Steps, tally: Tally) -> EventOutcomes:
    """Return the outcome of k events, the first of each of k keys: those that are ``left_out``,
    those that are ``repeated``, and the state of the keys afterwards, by the rules of
    ``settle_stepwise``. ``steps``: these events. ``tally``: the state of the k keys before, in the
    order of their events; it is not changed.
    """
    kind = steps.kind
    same = (steps.transaction != ABSENT) & (steps.transaction == tally.transaction)
    repeated = same & (steps.order <= tally.order) & (steps.place <= tally.place)
    behind = (kind == BARE) & tally.skipped
    before = np.where(same, tally.rows, np.minimum(tally.rows, 1))
    after = np.select(
        [kind == COMES, kind == CHANGES, kind == GOES],
        [before + 1, np.maximum(before, 1), np.maximum(before - 1, 0)],
    )
    stays = repeated | behind
    left_out = stays | ((kind == GOES) & (before > 1))
    order, place = (
        np.where(same, np.maximum(of_event, of_key), of_event)
        for of_event, of_key in ((steps.order, tally.order), (steps.place, tally.place))
    )
    state_after = Tally(
        np.where(stays, tally.rows, after),
        np.where(stays, tally.transaction, steps.transaction),
        np.where(stays, tally.order, order),
        np.where(stays, tally.place, place),
        left_out & (kind == GOES),
    )
    return EventOutcomes(left_out, repeated, state_after.without_gone_keys())


def _settle_by_counting(steps: Steps, group: Ints, tally: Tally) -> EventOutcomes:
    """Return the outcome of n events. It marks those that leave a table's row as it is
    (``left_out``) and those that were there before (``repeated``). It also has the state of all
    keys afterwards. Only events that may repeat others are taken one by one.

    ``steps``: n events by (key, arrival), each with its kind, transaction, order and place. None is
    a record without a value (``BARE``) right after a delete. ``group``: int64[n], non-decreasing,
    the index of each event's key in ``tally``. ``tally``: the state of all keys before; it is not
    changed. A key without an event keeps its state.
    """
    count, none = len(group), np.zeros(len(group), np.bool_)
    if not count:
        return EventOutcomes(none, none, tally)
    new = start_mask(group)
    transaction, order, place = (
        np.where(new, of_keys[group], np.append(0, column[:-1]))
        for of_keys, column in (
            (tally.transaction, steps.transaction),
            (tally.order, steps.order),
            (tally.place, steps.place),
        )
    )
    same = (steps.transaction != ABSENT) & (steps.transaction == transaction)
    falls = same & ((steps.order <= order) | (steps.place < place))
    opens = new | ~same
    begin, span = np.flatnonzero(opens), np.cumsum(opens) - 1
    end = np.append(begin[1:], count) - 1
    begun = np.where(same, tally.rows[group], np.minimum(tally.rows[group], 1))
    given = np.where(new, begun, ABSENT)[begin]
    change, lift = _running_changes(steps.kind, begin, span, int(tally.rows.max()))
    low, high = (
        np.minimum(change[end] + np.maximum(np.where(given == ABSENT, rows, given), lift[end]), 1)
        for rows in (0, 1)
    )
    doubtful = np.unique(span[falls])
    of_doubtful = (begin[doubtful], end[doubtful], given[doubtful])
    lanes = _settle_both_ways(steps, tally.take(group[begin[doubtful]]), *of_doubtful)
    for ends, lane in zip((low, high), lanes, strict=True):
        ends[doubtful] = np.minimum(lane.tally.rows, 1)
    base = np.where(given == ABSENT, _rows_at_begin(low, high), given)
    rows = change + np.maximum(base[span], lift)
    before = np.where(opens, base[span], np.append(0, rows[:-1]))
    outcomes = EventOutcomes(
        (steps.kind == GOES) & (before > 1),
        np.zeros(count, np.bool_),
        Tally(rows[end], steps.transaction[end], steps.order[end], steps.place[end], none[end]),
    )
    which, event = expand_ranges(begin[doubtful], end[doubtful] + 1)
    for rows_before, lane in enumerate(lanes):
        taken = np.minimum(base[doubtful], 1) == rows_before
        outcomes.tally.replace(doubtful[taken], lane.tally.take(np.flatnonzero(taken)))
        outcomes.left_out[event[taken[which]]] = lane.left_out[taken[which]]
        outcomes.repeated[event[taken[which]]] = lane.repeated[taken[which]]
    last = np.flatnonzero(np.append(given[1:] != ABSENT, True))
    reached = tally.copy()
    reached.replace(group[end[last]], outcomes.tally.take(last))
    return EventOutcomes(outcomes.left_out, outcomes.repeated, reached)


def _running_changes(kind: Ints, begin: Ints, span: Ints, rows_max: int) -> tuple[Ints, Ints]:
    """Return the sum of a span's changes up to each event, and the largest ``floor - sum`` so far
    in the span: int64[n] each.

    A *span* is the events of one key and transaction in a row. A *change* is added to the count of
    a key's rows by an event, and a *floor* is the least count after it. ``COMES`` adds 1, ``GOES``
    takes 1 down to 0, ``CHANGES`` has the floor 1, ``BARE`` takes all.

    ``kind``: int64[n], the kind of each event. ``begin``: int64[spans], the index of each span's
    first event. ``span``: int64[n], the span of each event, non-decreasing. ``rows_max``: the most
    rows that a key has had before.
    """
    large = len(kind) + 2 + rows_max
    change = np.select([kind == COMES, kind == GOES, kind == BARE], [1, -1, -large])
    floor = np.select([kind == COMES, kind == CHANGES], [-large, 1])
    total = np.cumsum(change)
    within = total - (total[begin] - change[begin])[span]
    apart = span * (4 * large)
    return within, np.maximum.accumulate(floor - within + apart) - apart


def _settle_both_ways(
    steps: Steps, tally: Tally, begin: Ints, end: Ints, given: Ints
) -> list[EventOutcomes]:
    """Return two outcomes of some spans, event by event: first as if they began with no row, then
    as if with one. A span is the events of one key and transaction in a row.

    ``steps``: all events. ``tally``: the state of the key of each span before the batch. ``begin``
    and ``end``: int64[spans], the indices of the first and the last event of each span, both
    inclusive. ``given``: int64[spans], the rows that a key's first span begins with in both
    outcomes, ABSENT for other spans.
    """
    spans = len(begin)
    which, event = expand_ranges(begin, end + 1)
    start = np.flatnonzero(start_mask(which))
    goes_on = np.flatnonzero((given != ABSENT) & (tally.transaction == steps.transaction[begin]))
    begun = Tally.empty(2 * spans)
    for rows in (0, 1):
        begun.replace(goes_on + rows * spans, tally.take(goes_on))
        begun.rows[rows * spans : (rows + 1) * spans] = np.where(given == ABSENT, rows, given)
    begun.skipped[:] = False
    both = settle_stepwise(
        np.append(start, start + len(event)), steps.take(np.tile(event, 2)), begun
    )
    parts = ((np.arange(n) + lane * n for n in (len(event), spans)) for lane in (0, 1))
    return [
        EventOutcomes(both.left_out[of_event], both.repeated[of_event], both.tally.take(of_span))
        for of_event, of_span in parts
    ]


# Most spans end with a row, or without one, however they begin: they are *fixed*. So is a key's
# first one. Others end as they begin, or, among events that make no sense, the other way round.
#
# | span | from 0 | from 1 | begins with | ends with |
# |---|---|---|---|---|
# | 0, fixed | 1 | 1 | | 1 |
# | 1 | 0 | 1 | 1 | 1 |
# | 2 | 1 | 0 | 1 | 0 |
# | 3, fixed | 0 | 0 | 0 | 0 |
# | 4 | 0 | 1 | 0 | 0 |
def _rows_at_begin(low: Ints, high: Ints) -> Ints:
    """Return the count of rows, 0 or 1, that each span begins with: int64[spans]. It means nothing
    for a key's first span. A span is the events of one key and transaction in a row.

    ``low``, ``high``: int64[spans], the rows, 0 or 1, that a span ends with if it begins with 0 or
    with 1. Both are equal for a key's first span.
    """
    fixed = np.maximum.accumulate(np.where(low == high, np.arange(len(low)), 0))
    turns = np.cumsum(low > high)
    ends = low[fixed] ^ ((turns - turns[fixed]) & 1)
    return np.append(0, ends[:-1])
