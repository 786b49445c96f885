"""Random counts by sessions and sliding windows: the definition and the driver against Kafka
Streams itself, which ``kafka_streams/Windows.java`` runs.

Every record's changes must be equal, but for this:

- Kafka Streams deletes a session that a record falls into and adds it again, also where its bounds
  stay. Such deletions are left out.
- It emits some sliding windows twice for one record, and in an order of its own. They are compared
  once, by their starts.
- It knows a record by the sliding windows stored when it came, so it forgets one that was late for
  the window that ends at it. By the law the record is in the windows that were still open. No such
  records are drawn.

``DOVETAIL_CASES`` says how many cases to draw; ``DOVETAIL_SEED`` draws others.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import TypeAlias

import pytest
from bench.families import windows as family
from bench.kafka_streams import javac_needed, needed, run_java
from bench.models.gathering import Windows
from bench.models.windows import View
from bench.records import Answers, Record, Result, by_key, cut, parts
from bench.runners import driver

CASES = int(os.environ.get("DOVETAIL_CASES", "200"))
SEED = int(os.environ.get("DOVETAIL_SEED", "77"))
Case: TypeAlias = "tuple[View, list[Record]]"
SOURCE = Path(__file__).with_name("Windows.java")

pytestmark = [needed, javac_needed]


def draw(random_: random.Random, kind: str) -> Case:
    """Few keys, times that repeat, fall back and jump; of sliding windows by no more than grace."""
    size = random_.choice([1, 3, 10])
    windows = Windows(kind, size, 0, random_.choice([0, 1, 4, 30]), retention=10**9)
    keys = random_.choice(["k", "ab", ["a", "ab", "é"]])
    steps = random_.choice([[0, 1], [0, 1, size, size + 1], [0, size, 3 * size]])
    backs = random_.choice([[0], [0, 0, 1, size], [0, size, 2 * size, 40]])
    now = clock = 1000
    records = []
    for _ in range(random_.randint(1, 40)):
        now += random_.choice(steps)
        time = now - random_.choice(backs)
        if kind == "sliding":
            time = max(time, clock - windows.grace)
        clock = max(clock, time)
        records.append(Record("L", random_.choice(keys), time, "v", False))
    return View("L", (("L", windows),)), records


def kafka_streams(cases: list[Case]) -> list[Answers]:
    """What Kafka Streams emits for each record of each case."""
    asked = []
    for view, records in cases:
        windows = view.windows[0][1]
        head = f"{windows.kind} {windows.size} {windows.grace}"
        asked.append((head, [f"{record.key} {record.time}" for record in records]))
    both = zip(cases, run_java(SOURCE, asked), strict=True)
    return [[_as_we(view, _changes(line)) for line in emitted] for (view, _), emitted in both]


def _as_we(view: View, changes: list[Result]) -> list[Result]:
    if view.windows[0][1].kind == "sliding":
        return sorted(dict.fromkeys(changes), key=lambda change: change.key)
    last = {change.key: change for change in changes}
    return [change for change in changes if change is last[change.key]]


def _changes(line: str) -> list[Result]:
    changes = []
    for change in filter(None, line.split(",")):
        key, start, end, count, time = change.split(" ")
        values = None if count == "-" else (int(count),)
        changes.append(Result((key, int(start), int(end)), values, int(time)))
    return changes


def shown(answers: Answers) -> Answers:
    return [
        [r._replace(values=r.values and (len(r.values[0]),)) for r in part]  # type: ignore[arg-type]
        for part in answers
    ]


KINDS = ("session", "sliding")


@pytest.fixture(scope="module")
def answered() -> dict[str, list[tuple[Case, Answers]]]:
    """Cases by kind; one process answers them all."""
    drawn = {kind: random.Random(f"{SEED} {kind}") for kind in KINDS}
    cases = [draw(random_, kind) for kind, random_ in drawn.items() for _ in range(CASES)]
    pairs = list(zip(cases, kafka_streams(cases), strict=True))
    return {kind: pairs[n * CASES : (n + 1) * CASES] for n, kind in enumerate(KINDS)}


@pytest.mark.parametrize("kind", KINDS)
def test_the_definition(kind: str, answered: dict[str, list[tuple[Case, Answers]]]) -> None:
    for (view, records), expected in answered[kind]:
        found = shown(list(family.each_record(view, records)))
        assert found == expected, (view, records)


@pytest.mark.parametrize(
    ("size", "buckets", "share"), [(1, 1, 32), (4, 1, 24), (10**6, 1, 12), (10**6, 8, 24)]
)
@pytest.mark.parametrize("kind", KINDS)
def test_the_driver(
    kind: str, size: int, buckets: int, share: int, answered: dict[str, list[tuple[Case, Answers]]]
) -> None:
    for (view, records), expected in answered[kind][::share]:
        answers = shown(
            driver(family, view, cut(records, size), restart=size == 1, buckets=buckets)
        )
        wanted = parts(expected, size)
        if buckets == 1:
            assert answers == wanted, (view, records)
        else:
            assert [*map(by_key, answers)] == [*map(by_key, wanted)], (view, records)
