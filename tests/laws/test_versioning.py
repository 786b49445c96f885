"""Which records of a versioned table count and which version stood, against loops by arrival."""

from __future__ import annotations

import random

import numpy as np
import pytest

from dovetail.arrays.timeline import ABSENT, NO_TIME, Ints, Timeline
from dovetail.laws.versioning import (
    LATEST,
    batch_versions,
    find_latest_versions,
    records_within_retention,
    version_as_of,
)

SEEDS = range(80)


def draw(random_: random.Random, *, least: int = 0) -> Timeline:
    """Two sources' events of a few keys at few times."""
    n = random_.randint(least, 14)
    arrivals = random_.sample(range(n), n)
    events = sorted((random_.randint(0, 2), arrival) for arrival in arrivals)
    used = sorted({group for group, _ in events})
    group = np.array([used.index(g) for g, _ in events], dtype=np.int64)
    return Timeline(
        source=np.array([random_.randint(0, 1) for _ in events], dtype=np.int64),
        row=np.arange(n),
        group=group,
        arrival=np.array([arrival for _, arrival in events], dtype=np.int64),
        event_time_us=np.array([random_.randint(-3, 6) for _ in events], dtype=np.int64),
        deleted=np.zeros(n, np.bool_),
        start=np.searchsorted(group, np.arange(len(used))),
        hash=np.arange(len(used)),
        keys=[],
    )


def by_arrival(events: Timeline) -> list[int]:
    return [int(event) for event in np.argsort(events.arrival)]


def some(random_: random.Random, events: Timeline) -> Ints:
    return np.array([random_.random() < 0.7 for _ in events.row], dtype=np.bool_)


@pytest.mark.parametrize("initial_us", [NO_TIME, 2])
def test_retention_goes_by_the_clock(initial_us: int) -> None:
    for seed in SEEDS:
        random_ = random.Random(seed)
        events, retention_us = draw(random_), random_.randint(0, 4)
        now, clock_us, within = initial_us, np.zeros(len(events.row), np.int64), {}
        for event in by_arrival(events):
            time = int(events.event_time_us[event])
            own = events.source[event] == 1
            now = max(now, time) if own else now
            clock_us[event] = now
            within[event] = bool(own and time >= now - retention_us)
        taken = records_within_retention(events, 1, clock_us, retention_us)
        assert taken.tolist() == [within[event] for event in range(len(events.row))]


def test_newest() -> None:
    for seed in SEEDS:
        random_ = random.Random(seed)
        events = draw(random_)
        counted = some(random_, events)
        stored = [random_.choice([NO_TIME, -1, 3]) for _ in range(events.groups)]
        latest, expected = dict(enumerate(stored)), {}
        for event in by_arrival(events):
            group, time = int(events.group[event]), int(events.event_time_us[event])
            expected[event] = bool(counted[event]) and time >= latest[group]
            if expected[event]:
                latest[group] = time
        found = find_latest_versions(events, counted, np.array(stored, dtype=np.int64))
        assert found.tolist() == [expected[event] for event in range(len(events.row))]


def test_batch_versions_are_by_key_time_and_arrival() -> None:
    for seed in SEEDS:
        random_ = random.Random(seed)
        events = draw(random_)
        counted = some(random_, events)
        found = batch_versions(events, counted)
        columns = (events.group, events.event_time_us, events.arrival)
        expected = sorted(
            (*(int(column[event]) for column in columns), int(event))
            for event in np.flatnonzero(counted)
        )
        assert found.event.tolist() == [event for *_, event in expected]
        assert found.time_us.tolist() == [time for _, time, _, _ in expected]
        assert found.arrival.tolist() == [arrival for _, _, arrival, _ in expected]
        before = [sum(g < group for g, *_ in expected) for group in range(events.groups + 1)]
        assert found.start.tolist() == before


@pytest.mark.parametrize("counts", ["some", "none"])
def test_as_of(counts: str) -> None:
    for seed in SEEDS:
        random_ = random.Random(seed)
        events = draw(random_, least=1)
        counted = some(random_, events) & (counts == "some")
        queries = [
            (
                random_.randrange(events.groups),
                random_.choice([*range(-4, 8), LATEST]),
                random_.randint(0, len(events.row)),
            )
            for _ in range(20)
        ]
        expected = []
        for group, time, arrival in queries:
            best, found = (NO_TIME, -1), ABSENT
            for event in np.flatnonzero(counted & (events.group == group)):
                at = (int(events.event_time_us[event]), int(events.arrival[event]))
                if at[0] <= time and at[1] < arrival and at > best:
                    best, found = at, int(event)
            expected.append(found)
        asked = [np.array(column, dtype=np.int64) for column in zip(*queries, strict=True)]
        assert version_as_of(batch_versions(events, counted), *asked).tolist() == expected
