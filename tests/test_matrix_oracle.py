"""Random joins of streams and versioned tables against Kafka Streams itself.

``DOVETAIL_CASES`` says how many cases of each kind to draw; ``DOVETAIL_SEED`` draws others.

Kafka Streams answers each event at once, and must be met event by event. In joins of streams it has
two rules of its own, and its unmatched rows often come later than they are due:
``matrix_runners.agree`` says what holds for them.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from functools import partial
from itertools import chain, count
from typing import Any

import pytest
from matrix import Join, StreamStream, StreamTable, VersionedTables, each_record
from matrix_runners import (
    ORACLE,
    Answers,
    Case,
    agree,
    driver,
    flushed,
    kafka_can,
    kafka_streams,
)
from naive import Record
from runners import cut, one_hash

CASES = int(os.environ.get("DOVETAIL_CASES", "200"))
SEED = int(os.environ.get("DOVETAIL_SEED", "77"))

pytestmark = pytest.mark.skipif(not ORACLE.exists(), reason="Kafka Streams' oracle is not here")


# Drawing cases.


def stream_table(random_: random.Random) -> StreamTable:
    how = random_.choice(["inner", "left"])
    versioned = random_.choice([None, 0, 1, 5, 20, 10**6])
    graces = [None] if versioned is None else [None, 0, min(versioned, 3), versioned]
    return StreamTable(how, versioned, random_.choice(graces))


def stream_stream(random_: random.Random) -> StreamStream:
    before, after = random_.choice(
        [(0, 0), (0, 1), (3, 0), (2, 5), (10, 10), (-2, 6), (7, -3), (-4, 4), (50, 0)]
    )
    how = random_.choice(["inner", "left", "outer"])
    self_join = random_.random() < 0.15
    return StreamStream(how, before, after, random_.choice([0, 1, 4, 30]), self_join=self_join)


def versioned_tables(random_: random.Random) -> VersionedTables:
    how = random_.choice(["inner", "left", "outer"])
    left, right = (random_.choice([0, 1, 5, 20, 10**6]) for _ in "LR")
    return random_.choice(
        [
            VersionedTables(how, left_versioned=left),
            VersionedTables(how, right_versioned=right),
            VersionedTables(how, left, right),
        ]
    )


FAMILIES: dict[str, Callable[[random.Random], Join]] = {
    "stream-table": stream_table,
    "stream-stream": stream_stream,
    "versioned-tables": versioned_tables,
}


def draw(random_: random.Random, join: Join) -> list[Record]:
    """Few keys, times that repeat, fall back and jump; values are distinct."""
    keys = random_.choice(["k", "ab", "abc", ["", "a", "ab", "é"]])
    nulls = random_.choice([0.0, 0.1, 0.4])
    null_keys = random_.choice([0.0, 0.1])
    steps = random_.choice([[0, 1], [0, 1, 2, 5, 11], [1, 3, 40, 10**6]])
    backs = random_.choice([[0], [0, 0, 1, 3], [0, 2, 6, 21, 60]])
    sides = "L" if isinstance(join, StreamStream) and join.self_join else "LR"
    serial = count()
    now = 1000  # Kafka Streams clips windows at the epoch

    def record() -> Record:
        nonlocal now
        now += random_.choice(steps)
        time = max(0, now - random_.choice(backs))
        deleted = random_.random() < nulls
        key = None if random_.random() < null_keys else random_.choice(keys)
        value = None if deleted else f"v{next(serial)}"
        return Record(random_.choice(sides), key, time, value, deleted)

    while not kafka_can(join, records := [record() for _ in range(random_.randint(1, 40))]):
        pass
    return records


@pytest.fixture(scope="module")
def drawn() -> dict[str, list[Case]]:
    random_ = random.Random(SEED)
    found: dict[str, list[Case]] = {}
    for family, join_of in FAMILIES.items():
        joins = [join_of(random_) for _ in range(CASES)]
        found[family] = [(join, flushed(join, draw(random_, join))) for join in joins]
    return found


@pytest.fixture(scope="module")
def answers(drawn: dict[str, list[Case]]) -> dict[str, list[Answers]]:
    return {family: kafka_streams(cases) for family, cases in drawn.items()}


# The comparisons.


@pytest.mark.parametrize("family", FAMILIES)
def test_the_definition(family: str, drawn: Any, answers: Any) -> None:
    for (join, records), expected in zip(drawn[family], answers[family], strict=True):
        assert agree(join, records, list(each_record(join, records)), expected), (join, records)


# Each driver with the share of cases that it gets, by what it costs.
DRIVERS: dict[str, tuple[int, Callable[..., Answers]]] = {
    "driver": (3, driver),
    "restarted": (10, partial(driver, restart=True)),
    "colliding": (5, partial(driver, key_hash=one_hash)),
}


@pytest.mark.parametrize("name", DRIVERS)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_driver(name: str, family: str, drawn: Any, answers: Any) -> None:
    share, run = DRIVERS[name]
    cases = list(zip(drawn[family], answers[family], strict=True))
    for (join, records), expected in cases[::share]:
        assert agree(join, records, run(join, cut(records, 1)), expected), (join, records)


@pytest.mark.parametrize("size", [4, 10**6], ids=["by-four", "one-batch"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_driver_in_batches(size: int, family: str, drawn: Any) -> None:
    """A batch emits what its records emit one by one."""
    for join, records in drawn[family][:: 4 if size == 4 else 1]:
        expected = list(each_record(join, records))
        parts = [expected[i : i + size] for i in range(0, len(expected), size)]
        assert driver(join, cut(records, size)) == [list(chain(*p)) for p in parts], (join, records)
