"""Random foreign-key joins: the definition against Kafka Streams itself, event by event, and the
driver against the definition.

``DOVETAIL_CASES`` says how many cases to draw; ``DOVETAIL_SEED`` draws others.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from answers import by_key, flat
from fk_model import HOWS, ForeignKeyJoin, each_batch, each_record, in_key_order, seen
from fk_runners import Answers, Case, driver, kafka_can, kafka_streams
from matrix_runners import ORACLE
from naive import Record
from runners import cut, one_hash

CASES = int(os.environ.get("DOVETAIL_CASES", "200"))
SEED = int(os.environ.get("DOVETAIL_SEED", "77"))

# Keys and foreign keys, some of them prefixes of others, some ordered otherwise as UTF-16.
KEYS = ["k", "kj", ["a", "ab", "abc", "b", "B"], ["", "a", "ab", "é", "ÿ"], ["ﬁ", "𝕒", "z", "\x7f"]]
FOREIGN_KEYS = ["x", "xy", ["x", "xy", "é"], ["a", "ab", "abc"], ["ﬁ", "𝕒", "a"]]
RETENTIONS = [None, None, 0, 1, 5, 20, 10**6]


def draw(random_: random.Random, hows: Sequence[str]) -> Case:
    """Few keys, times in any order; values are distinct, or there is but one. The keys of both
    tables may be the same, as in a table that refers to itself.
    """
    left_versioned, right_versioned = (random_.choice(RETENTIONS) for _ in "LR")
    join = ForeignKeyJoin(random_.choice(hows), left_versioned, right_versioned)
    keys = {"L": random_.choice(KEYS), "R": random_.choice(FOREIGN_KEYS)}
    if random_.random() < 0.3:
        keys["R"] = keys["L"]
    deletes = random_.choice([0.0, 0.1, 0.3, 0.6])
    null_foreign_keys = random_.choice([0.0, 0.1, 0.3])
    null_keys = random_.choice([0.0, 0.1])
    last = random_.choice([3, 50, 200, 10**12])
    rights = random_.choice([0.2, 0.5, 0.7])
    distinct = random_.random() < 0.8

    def record(number: int) -> Record:
        side = "R" if random_.random() < rights else "L"
        key = None if random_.random() < null_keys else random_.choice(keys[side])
        value: Any = f"v{number}" if distinct else "v"
        if side == "L":
            names = random_.random() >= null_foreign_keys
            value = (random_.choice(keys["R"]) if names else None, value)
        deleted = random_.random() < deletes
        return Record(side, key, random_.randint(0, last), None if deleted else value, deleted)

    return join, [record(number) for number in range(random_.randint(1, 45))]


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    random_ = random.Random(SEED)
    found: list[Case] = []
    while len(found) < CASES:
        case = draw(random_, ["inner", "left"])
        if kafka_can(*case):
            found.append(case)
    return found


@pytest.fixture(scope="module")
def answers(cases: list[Case]) -> list[Answers]:
    return kafka_streams(cases)


@pytest.mark.skipif(not ORACLE.exists(), reason="Kafka Streams' oracle is not here")
def test_the_definition(cases: list[Case], answers: list[Answers]) -> None:
    for (join, records), expected in zip(cases, answers, strict=True):
        assert [seen(part) for part in each_record(join, records)] == expected, (join, records)


DRIVERS: dict[str, Callable[..., Answers]] = {
    "driver": driver,
    "restarted": partial(driver, restart=True),
    "colliding": partial(driver, key_hash=one_hash),
    "buckets": partial(driver, buckets=3, restart=True),
}


def drawn(how: str, name: str) -> list[tuple[ForeignKeyJoin, list[list[Record]]]]:
    """Cases with their records cut; a versioned table's row by row where there are several
    buckets, each of which knows its own time within a batch.
    """
    random_ = random.Random(f"{SEED} {how} {name}")
    found = []
    for _ in range(-(-CASES // 40)):
        join, records = draw(random_, [how])
        size = random_.choice([1, 3, 7, 10**6])
        if name == "buckets" and (join.left_versioned, join.right_versioned) != (None, None):
            size = 1
        found.append((join, cut(records, size)))
    return found


@pytest.mark.parametrize("name", DRIVERS)
@pytest.mark.parametrize("how", HOWS)
def test_single_changes(how: str, name: str) -> None:
    for join, batches in drawn(how, name):
        changes = each_record(join, flat(batches))
        expected = [flat(seen(next(changes)) for _ in batch) for batch in batches]
        answers = DRIVERS[name](join, batches)
        if name == "buckets":
            assert [*map(by_key, answers)] == [*map(by_key, expected)], (join, batches)
        else:
            assert answers == expected, (join, batches)


@pytest.mark.parametrize("name", DRIVERS)
@pytest.mark.parametrize("how", HOWS)
def test_batches(how: str, name: str) -> None:
    for join, batches in drawn(how, name):
        answers = DRIVERS[name](join, batches, emit="batch")
        expected = [seen(part) for part in each_batch(join, batches)]
        assert [*map(in_key_order, answers)] == expected, (join, batches)
