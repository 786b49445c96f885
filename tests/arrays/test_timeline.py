"""The order of arrival against a merge done by hand, and the layout by key against dictionaries."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dovetail.arrays.timeline import (
    ABSENT,
    SourceRows,
    Timeline,
    arrival_order,
    last_of_source,
    timeline,
    versions_around,
)
from dovetail.laws.arrival import running_clock

SEEDS = range(60)


def rows(
    events: Sequence[tuple[int, str, int, bool]],
    hashes: dict[str, int] | None = None,
    sequence: Sequence[int] | None = None,
) -> SourceRows:
    """Rows from (partition, key, time, deleted)."""
    keys = [key for _, key, _, _ in events]
    return SourceRows(
        keys=[pa.array(keys, pa.string())],
        hash=np.array([(hashes or {}).get(key, 0) for key in keys], dtype=np.int64),
        event_time_us=np.array([time for _, _, time, _ in events], dtype=np.int64),
        deleted=np.array([deleted for _, _, _, deleted in events], dtype=np.bool_),
        clock_us=running_clock(
            np.array([partition for partition, _, _, _ in events], dtype=np.int64),
            np.array([time for _, _, time, _ in events], dtype=np.int64),
        ),
        sequence=None if sequence is None else np.array(sequence, dtype=np.int64),
    )


def draw(random_: random.Random, keys: str = "abcdef") -> list[tuple[int, str, int, bool]]:
    """One source's rows: some partitions, times in any order, ties frequent."""
    return [
        (partition, random_.choice(keys), random_.randint(-3, 6), random_.random() < 0.3)
        for partition in range(random_.randint(1, 3))
        for _ in range(random_.randint(1 - min(partition, 1), 6))
    ]


def merged_by_hand(sources: Sequence[Sequence[tuple[int, str, int, bool]]]) -> list[int]:
    """Always the partition whose next record is oldest; ties: earlier source, lower partition."""
    queues: dict[tuple[int, int], list[tuple[int, int]]] = {}
    index = 0
    for number, source in enumerate(sources):
        for partition, _, time, _ in source:
            queues.setdefault((number, partition), []).append((time, index))
            index += 1
    order = []
    while any(queues.values()):
        place = min((q[0][0], place) for place, q in queues.items() if q)[1]
        order.append(queues[place].pop(0)[1])
    return order


@pytest.mark.parametrize("seed", SEEDS)
def test_arrival_is_a_merge_by_time(seed: int) -> None:
    random_ = random.Random(seed)
    sources = [draw(random_) for _ in range(random_.randint(1, 3))]
    assert arrival_order([rows(s) for s in sources]).tolist() == merged_by_hand(sources)


def test_a_shared_sequence_rules_over_time() -> None:
    left = rows([(0, "a", 9, False), (0, "a", 1, False)], sequence=[5, 1])
    right = rows([(0, "a", 0, False)], sequence=[3])
    assert arrival_order([left, right]).tolist() == [1, 2, 0]


HASHES = {
    "distinct": {key: i * 7 - 9 for i, key in enumerate("fcabde")},
    "some collide": {key: i % 2 for i, key in enumerate("fcabde")},
    "all collide": dict.fromkeys("abcdef", -1),
}


def events_by_hand(sources: Sequence[Sequence[tuple[int, str, int, bool]]]) -> list[Any]:
    """(source, row, key, time, deleted) in the order of arrival."""
    flat = [
        (number, row, *event[1:])
        for number, source in enumerate(sources)
        for row, event in enumerate(source)
    ]
    return [flat[i] for i in merged_by_hand(sources)]


def laid_out(found: Timeline) -> list[Any]:
    keys = found.keys[0].to_pylist()
    columns = (found.source, found.row, found.group, found.event_time_us, found.deleted)
    rows_ = zip(*(column.tolist() for column in columns), strict=True)
    return [(s, r, keys[g], t, d) for s, r, g, t, d in rows_]


@pytest.mark.parametrize("hashes", HASHES.values(), ids=HASHES)
@pytest.mark.parametrize("seed", SEEDS)
def test_groups_are_the_keys_in_the_order_of_arrival(seed: int, hashes: dict[str, int]) -> None:
    random_ = random.Random(seed)
    sources = [draw(random_) for _ in range(2)]
    expected = events_by_hand(sources)
    found = timeline([rows(s, hashes) for s in sources])
    by_arrival = dict(zip(found.arrival.tolist(), laid_out(found), strict=True))
    assert [by_arrival[i] for i in range(len(expected))] == expected
    assert (np.diff(found.group) >= 0).all()
    assert (np.diff(found.hash) >= 0).all()
    keys = found.keys[0].to_pylist()
    assert len(set(keys)) == len(keys) == found.groups
    assert [hashes[key] for key in keys] == found.hash.tolist()
    for group, start in enumerate(found.start):
        own = np.flatnonzero(found.group == group)
        assert own[0] == start
        assert (np.diff(found.arrival[own]) > 0).all()


@pytest.mark.parametrize("hashes", HASHES.values(), ids=HASHES)
@pytest.mark.parametrize("seed", SEEDS)
def test_versions_are_what_a_dictionary_holds(seed: int, hashes: dict[str, int]) -> None:
    random_ = random.Random(seed)
    sources = [draw(random_) for _ in range(2)]
    found = timeline([rows(s, hashes) for s in sources])
    stored = np.array([random_.random() < 0.5 for _ in range(found.groups)], dtype=np.bool_)
    for source in (0, 1):
        held = {group: group if stored[group] else ABSENT for group in range(found.groups)}
        before, after = versions_around(found, source, stored)
        last = {}
        for event in range(len(found.row)):
            group = int(found.group[event])
            assert before[event] == held[group]
            if found.source[event] == source:
                new = ABSENT if found.deleted[event] else found.groups + int(found.row[event])
                held[group] = new
                last[group] = event
            assert after[event] == held[group]
        assert last_of_source(found, source).tolist() == sorted(last.values())
