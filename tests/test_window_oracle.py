"""Random windowed counts: the definition and the driver against Kafka Streams itself.

``DOVETAIL_CASES`` says how many cases to draw; ``DOVETAIL_SEED`` draws others.

Of changes every event's results must be equal. Windows that are told when they are final Kafka
Streams tells later than they are due, and loses some where stream time jumps; where it does not,
both tell the same windows in the end.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from answers import flat
from matrix_runners import ORACLE
from naive import Record
from runners import cut
from window_gathering import Windows
from window_model import View, each_record, seen
from window_runners import Answers, Case, counted, driver, kafka_streams

CASES = int(os.environ.get("DOVETAIL_CASES", "200"))
SEED = int(os.environ.get("DOVETAIL_SEED", "77"))

pytestmark = pytest.mark.skipif(not ORACLE.exists(), reason="Kafka Streams' oracle is not here")

FLUSHING = "~"


def draw(random_: random.Random, *, final: bool) -> Case:
    """Few keys, times that repeat, fall back and jump; for ``final`` by no more than 1."""
    advance = random_.choice([1, 2, 5, 10])
    kind = random_.choice(["tumbling", "hopping"])
    size = advance * (random_.randint(1, 4) if kind == "hopping" else 1)
    windows = Windows(kind, size, advance, random_.choice([0, 1, 4, 30]))
    keys = random_.choice(["k", "ab", ["", "a", "ab", "é"]])
    steps = random_.choice([[0, 1], [0, 1, size], [0, size, 3 * size, 10**6]])
    backs = random_.choice([[0], [0, 0, 1, size], [0, size, 2 * size, 40]])
    nulls, null_keys = random_.choice([0.0, 0.3]), random_.choice([0.0, 0.1])
    now, clock = random_.choice([0, 500]), -1
    records = []
    for _ in range(random_.randint(1, 40)):
        now += random_.choice(steps)
        key = None if random_.random() < null_keys else random_.choice(keys)
        value = None if random_.random() < nulls else "v"
        time = max(0, now - random_.choice(backs))
        if final:
            time = time if clock < 0 else min(time, clock + 1)
            clock = clock if key is None else max(clock, time)
        records.append(Record("L", key, time, value, value is None))
    return View("L", (("L", windows),), final), records


def flushed(case: Case) -> Case:
    """With records of another key until all windows are closed."""
    view, records = case
    windows = view.windows[0][1]
    last = max([r.time for r in records if r.key is not None], default=0)
    end = last + 2 * (windows.size + windows.grace) + 3
    far = [Record("L", FLUSHING, time, "v", False) for time in range(last, end)]
    return view, records + far


def of_cases(*, final: bool) -> list[Case]:
    random_ = random.Random(f"{SEED} {final}")
    return [draw(random_, final=final) for _ in range(CASES)]


@pytest.fixture(scope="module")
def changes() -> tuple[list[Case], list[Answers]]:
    cases = of_cases(final=False)
    return cases, kafka_streams(cases)


def test_the_definition(changes: tuple[list[Case], list[Answers]]) -> None:
    for (view, records), expected in zip(*changes, strict=True):
        found = [seen(part) for part in each_record(view, records)]
        assert counted(found) == expected, (view, records)


@pytest.mark.parametrize("size", [1, 4, 10**6])
def test_the_driver(size: int, changes: tuple[list[Case], list[Answers]]) -> None:
    for (view, records), expected in list(zip(*changes, strict=True))[:: 8 if size < 5 else 2]:
        answers = counted(driver(view, cut(records, size), restart=size == 1))
        wanted = [flat(expected[i : i + size]) for i in range(0, len(expected), size)]
        assert answers == wanted, (view, records)


def told(answers: Any) -> Counter[Any]:
    return Counter(result for result in flat(answers) if result.key[0] != FLUSHING)


def test_final() -> None:
    """The definition; and, for some, the driver in batches."""
    cases = [flushed(case) for case in of_cases(final=True)]
    for number, ((view, records), expected) in enumerate(
        zip(cases, kafka_streams(cases), strict=True)
    ):
        found = [seen(part) for part in each_record(view, records)]
        assert told(counted(found)) == told(expected), (view, records)
        if number % 8 == 0:
            answers = driver(view, cut(records, 25))
            assert told(counted(answers)) == told(expected), (view, records)


def test_final_loses_nothing() -> None:
    """Where stream time jumps, each window is told as it last changed."""
    for view, records in of_cases(final=False)[::8]:
        last: dict[Any, Any] = {}
        for part in each_record(view, records):
            last |= {change.key: change for change in seen(part)}
        far = [*records, Record("L", FLUSHING, 10**12, "v", False)]
        answers = driver(replace(view, final=True), cut(far, 9))
        assert told(answers) == Counter(last.values()), (view, records)
