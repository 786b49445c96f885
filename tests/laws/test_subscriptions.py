"""What a changed left row says, as a whole truth table; the other functions against plain loops."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import product, zip_longest
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dovetail.arrays.timeline import SourceRows, Timeline, timeline
from dovetail.laws.joins.foreign_key_join import count_references, fan_out, messages_of_changes

# What is said of a left row: to the former foreign key that it "ends"; to the present one that it
# "begins", and that it is "fresh" there. Either "emits" something where no right row is.
# KIP-213: DELETE_KEY_AND_PROPAGATE is "ends emits", DELETE_KEY_NO_PROPAGATE "ends",
# PROPAGATE_NULL_IF_NO_FK_VAL_AVAILABLE "begins emits", PROPAGATE_ONLY_IF_FK_VAL_AVAILABLE "begins".
# A row is its foreign key: "-" no row; "0", "1" null ones; "x", "y".
INNER = {
    "--": "",
    "-0": "",
    "-x": "begins fresh",
    "0-": "",
    "00": "",
    "01": "",
    "0x": "begins fresh",
    "x-": "ends emits",
    "x0": "ends emits",
    "xx": "begins",
    "xy": "ends, begins emits fresh",
}
LEFT = {
    "--": "",
    "-0": "begins fresh",
    "-x": "begins fresh",
    "0-": "ends emits",
    "00": "begins",
    "01": "ends, begins emits fresh",
    "0x": "ends, begins emits fresh",
    "x-": "ends emits",
    "x0": "ends, begins emits fresh",
    "xx": "begins",
    "xy": "ends, begins emits fresh",
}


@pytest.mark.parametrize(("left_preserved", "law"), [(False, INNER), (True, LEFT)])
def test_what_a_changed_row_says(left_preserved: bool, law: dict[str, str]) -> None:
    """Of a row that is not there, the other inputs are of no matter."""
    cases = [
        (change, [old != "-", new != "-", old_null, new_null, same])
        for change in law
        for old, new in [tuple(change)]
        for old_null, new_null, same in product((False, True), repeat=3)
        if old == "-" or old_null == (old in "01")
        if new == "-" or new_null == (new in "01")
        if "-" in change or same == (old == new)
    ]
    columns = np.array([inputs for _, inputs in cases]).T
    said = messages_of_changes(*columns, left_preserved=left_preserved)
    for number, (change, inputs) in enumerate(cases):
        to_former = ["ends"] + ["emits"] * bool(said.end_emits[number])
        to_present = ["begins"] + ["emits"] * bool(said.begin_emits[number])
        to_present += ["fresh"] * bool(said.fresh[number])
        emitted = [" ".join(to_former)] * bool(said.ends[number])
        emitted += [" ".join(to_present)] * bool(said.begins[number])
        assert ", ".join(emitted) == law[change], (change, inputs)


def ints(values: Sequence[int]) -> Any:
    return np.array(values, np.int64)


def test_null_keys_of_different_hashes_stay_apart() -> None:
    """A row without foreign key lies where its primary key does; another's foreign key may be that
    very key, and then has its hash.
    """
    hash_ = ints([5, 5, 7, 6])
    keys = pa.array([None, 1, None, None], pa.int64())
    rows = SourceRows([keys], hash_, ints([0] * 4), hash_ < 0, ints([0] * 4))
    events = timeline([rows])
    assert events.group.tolist() == [0, 1, 2, 3]
    assert events.hash.tolist() == [5, 5, 6, 7]
    assert events.keys[0].to_pylist() == [None, 1, None, None]


def drawn_timeline(random_: random.Random) -> Timeline:
    """Events of two sources, few keys."""

    def rows() -> SourceRows:
        keys = sorted(random_.choices(range(3), k=random_.randint(0, 12)))
        random_.shuffle(keys)
        n = len(keys)
        times = np.array([random_.randint(0, 20) for _ in range(n)], np.int64)
        deleted = np.array([random_.random() < 0.3 for _ in range(n)], np.bool_)
        hash_ = np.array(keys, np.int64)
        return SourceRows(
            [pa.array(keys, pa.int64())], hash_, times, deleted, np.zeros(n, np.int64)
        )

    return timeline([rows(), rows()])


def drawn_subscriptions(random_: random.Random, events: Timeline) -> list[Any]:
    """(group, event, following, live): each left row's messages, after a stored one or not."""
    found: list[tuple[int, int, int, bool]] = []
    for group in range(events.groups):
        own = [
            e for e in range(len(events.row)) if (events.group[e], events.source[e]) == (group, 0)
        ]
        left_row = {e: random_.randrange(3) for e in own}
        for number in range(3):
            chain = [-1] * random_.randint(0, 1) + [e for e in own if left_row[e] == number]
            for event, following in zip_longest(chain, chain[1:], fillvalue=-1):
                found.append((group, event, following, event < 0 or random_.random() < 0.7))
    return list(zip(*found, strict=True)) or [()] * 4


@pytest.mark.parametrize("seed", range(200))
def test_a_right_record_meets_who_is_subscribed_when_it_arrives(seed: int) -> None:
    random_ = random.Random(seed)
    events = drawn_timeline(random_)
    right = [e for e in np.flatnonzero(events.source == 1).tolist() if random_.random() < 0.8]
    group, event, following, live = drawn_subscriptions(random_, events)
    expected = [
        (number, e)
        for number in range(len(group))
        for e in right
        if live[number]
        and events.group[e] == group[number]
        and event[number] < e
        and (following[number] < 0 or e < following[number])
    ]
    subscription, met = fan_out(
        events, ints(right), ints(group), ints(event), ints(following), np.array(live, np.bool_)
    )
    assert list(zip(subscription.tolist(), met.tolist(), strict=True)) == expected


@pytest.mark.parametrize("seed", range(100))
def test_references_are_counted_event_by_event(seed: int) -> None:
    random_ = random.Random(seed)
    groups = random_.randint(1, 5)
    initial = [random_.randint(0, 3) for _ in range(groups)]
    group = sorted(random_.choices(range(groups), k=random_.randint(0, 20)))
    change = [random_.choice([-1, 0, 1]) for _ in group]
    count = dict(enumerate(initial))
    expected = []
    for number, moves in zip(group, change, strict=True):
        was = count[number]
        count[number] += moves
        expected.append((was, count[number]))
    before, after = count_references(ints(group), ints(change), ints(initial))
    assert list(zip(before.tolist(), after.tolist(), strict=True)) == expected
