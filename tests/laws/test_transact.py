"""Rows of a key within a transaction: the law against a model that takes one event after the other,
and databases that check their keys late, whose tables are what is read.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import numpy as np
import pytest

from dovetail.arrays.timeline import ABSENT
from dovetail.laws.transact import (
    BARE,
    CHANGES,
    COMES,
    GOES,
    EventOutcomes,
    Steps,
    Tally,
    settle_events,
)
from dovetail.laws.transact import settle_stepwise as settled_by_steps

KINDS = [COMES, CHANGES, GOES, BARE]


class Event(NamedTuple):
    """An event of a key."""

    key: int
    kind: int
    transaction: int = ABSENT
    order: int = 0
    place: int = 0


@dataclass
class Key:
    """The law in plain Python."""

    rows: int = 0
    transaction: int = ABSENT
    order: int = 0
    place: int = 0
    skipped: bool = False

    def take(self, event: Event) -> tuple[bool, bool]:
        """Say whether an event is left out, and whether it repeats another."""
        if event.kind == BARE:
            skipped = self.skipped
            self.become(replace(self, skipped=False) if skipped else Key())
            return skipped, False
        same = event.transaction != ABSENT and event.transaction == self.transaction
        if same and event.order <= self.order and event.place <= self.place:
            self.skipped = event.kind == GOES
            return True, True
        rows = self.rows if same else min(self.rows, 1)
        goes = event.kind == GOES and rows > 1
        rows += {COMES: 1, CHANGES: 0, GOES: -1}[event.kind]
        self.rows = max(rows, 1 if event.kind == CHANGES else 0)
        self.order = max(self.order, event.order) if same else event.order
        self.place = max(self.place, event.place) if same else event.place
        self.transaction, self.skipped = event.transaction, goes
        if not self.rows:
            self.become(Key())
        return goes, False

    def become(self, other: Key) -> None:
        """Take over another state."""
        vars(self).update(vars(other))


def modelled(events: Sequence[Event]) -> tuple[list[tuple[bool, bool]], dict[int, Key]]:
    """The outcome of each event, and the keys afterwards."""
    keys: dict[int, Key] = {}
    return [keys.setdefault(one.key, Key()).take(one) for one in events], keys


class Run:
    """The law on events that come in parts."""

    def __init__(self, keys: int, law: object = settle_events) -> None:
        self.tally, self.law = Tally.empty(keys), law

    def take(self, events: Sequence[Event]) -> list[tuple[bool, bool]]:
        """The outcome of each event."""
        order = sorted(range(len(events)), key=lambda n: events[n].key)
        own = [events[n] for n in order]
        keys = np.array(sorted({one.key for one in own}), np.int64)
        start = np.searchsorted([one.key for one in own], keys)
        columns = ([getattr(one, f.name) for one in own] for f in fields(Steps))
        steps = Steps(*(np.array(column, np.int64) for column in columns))
        made: EventOutcomes = self.law(start, steps, self.tally.take(keys))  # type: ignore[operator]
        self.tally.replace(keys, made.tally)
        found = [(False, False)] * len(events)
        for place, n in enumerate(order):
            found[n] = bool(made.left_out[place]), bool(made.repeated[place])
        return found

    def keys(self) -> dict[int, Key]:
        """The state of the keys."""
        columns = zip(*(getattr(self.tally, f.name).tolist() for f in fields(Tally)), strict=True)
        return {number: Key(*state) for number, state in enumerate(columns)}


def drawn(draw: random.Random, count: int, keys: int) -> list[Event]:
    """Random events: transactions that last, orders that rise, now and then a resend."""
    found: list[Event] = []
    transaction, order, place = 1, 0, 0
    end = draw.choice([0.05, 0.3, 0.9])
    odd = draw.choice([0.0, 0.0, 0.1, 0.5])
    weights = draw.choice([[4, 1, 4, 0], [3, 3, 3, 1], [1, 0, 1, 0], [2, 1, 6, 2]])
    for _ in range(count):
        if draw.random() < end:
            transaction, order = transaction + 1, 0
        if draw.random() < odd:
            order, place = draw.randrange(4), place - draw.randrange(6)
            transaction -= draw.randrange(2)
        order, place = order + 1, place + draw.choice([0, 1, 1])
        kind = draw.choices(KINDS, weights)[0]
        outside = kind == BARE or draw.random() < odd / 2
        own = (ABSENT, 0, 0) if outside else (transaction, order, place)
        found.append(Event(draw.randrange(keys), kind, *own))
    return found


@pytest.mark.parametrize("seed", range(80))
def test_the_law_is_that_of_one_event_after_the_other(seed: int) -> None:
    draw = random.Random(seed)
    count, keys = draw.choice([(5, 1), (40, 1), (60, 4), (300, 20)])
    events = drawn(draw, count, keys)
    expected, states = modelled(events)
    for law in (settle_events, settled_by_steps):
        run, found = Run(keys, law), list[tuple[bool, bool]]()
        at = 0
        while at < count:
            step = draw.choice([1, 3, count])
            found += run.take(events[at : at + step])
            at += step
        assert found == expected
        assert run.keys() == {n: states.get(n, Key()) for n in range(keys)}
