"""Random cases of all families against Kafka Streams itself, record by record: what the definition
gives, and what dovetail gives however the records are cut.

``DOVETAIL_CASES`` says how many cases of a family to draw; ``DOVETAIL_SEED`` draws others, and so
does ``./dev fuzz``, which judges cases of the same families in the same ways.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import window_cases
from bench import kafka_streams, runners
from bench.families import views, windows
from bench.family import Family
from bench.forced import HASHES, forced
from bench.parameters import slow_after
from bench.records import WHOLE, Answers, Record, by_key, cut, flat, parts
from fuzz.families import FAMILIES

KNOWN = [name for name, known in FAMILIES.items() if known.family is not views]
"""The families of which Kafka Streams has the operators."""
CASES = int(os.environ.get("DOVETAIL_CASES", "40"))
SEED = int(os.environ.get("DOVETAIL_SEED", "77"))

pytestmark = kafka_streams.needed


class Asked(NamedTuple):
    """A case with what Kafka Streams and the definition make of each record."""

    family: Family
    join: Any
    records: list[Record]
    kafka: Answers
    defined: Answers


@cache
def asked() -> dict[str, list[Asked]]:
    """Cases of each family that Kafka Streams can be asked; one process answers them all."""
    drawn = {name: cases(name) for name in KNOWN}
    answers = iter(kafka_streams.answers_of_all([case for own in drawn.values() for case in own]))
    return {
        name: [
            Asked(family, join, records, next(answers), list(family.each_record(join, records)))
            for family, join, records in own
        ]
        for name, own in drawn.items()
    }


def cases(name: str) -> list[tuple[Family, Any, list[Record]]]:
    random_, known = random.Random(f"{SEED} {name}"), FAMILIES[name]
    family, found = known.family, []
    while len(found) < CASES:
        if known.family is windows:
            kind = random_.choice(window_cases.FIXED)
            join = window_cases.views(random_, kind, "windows", shows="")
            records = window_cases.records(random_, join)
        else:
            topology, records = known.draw(random_, random_.randint(1, 45))
            join = known.read(topology)
        if records and family.kafka_can(join, records):
            found.append((family, join, family.flushed(join, records)))
    return found


@pytest.mark.long
@pytest.mark.parametrize("name", KNOWN)
def test_the_definition(name: str) -> None:
    for family, join, records, kafka, defined in asked()[name]:
        assert family.agree(join, records, defined, kafka), (join, records)


# Each runner with the share of cases that it gets, by what it costs.
RUNNERS: dict[str, tuple[int, int, dict[str, Any]]] = {
    "at once": (4, WHOLE, {}),
    "restarted": (8, 1, {"restart": True}),
    "colliding": (5, 7, {"key_hash": HASHES["one"]}),
    "8 buckets": (10, 4, {"buckets": 8, "restart": True}),
}


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("name", KNOWN)
def test_the_driver(name: str, runner: str) -> None:
    """What the definition gives, exactly, so that it agrees wherever that does."""
    share, size, options = RUNNERS[runner]
    for family, join, records, _, defined in asked()[name][::share]:
        with forced("one" if "key_hash" in options else "own", {}):
            found = runners.driver(family, join, cut(records, size), **options)
        expected = parts(defined, size)
        if "buckets" in options:
            found, expected = [*map(by_key, found)], [*map(by_key, expected)]  # type: ignore[misc]
        assert found == expected, (join, records)


@pytest.mark.parametrize("size", [4, WHOLE])
def test_the_stage_of_tables_by_itself(size: int) -> None:
    for family, join, records, _, defined in asked()["tree"][:: 2 if size > 4 else 5]:
        for options in ({}, {"restart": True, "key_hash": HASHES["one"]}):
            found = runners.kernel(family, join, cut(records, size), **options)  # type: ignore[arg-type]
            assert found == parts(defined, size), (join, records)


@pytest.mark.parametrize("how", slow_after(1, ["outer", "left", "inner"]))
def test_spark(how: str, spark: Any, tmp_path: Path) -> None:
    """All cases of a kind in one query, keys prefixed by the case; restarted between batches."""
    own = [case for case in asked()["tree"] if case.join[1] == how]
    everything, expected = [], []
    for number, case in enumerate(own):
        sides = {case.join[0]: "L", case.join[2]: "R"}
        for record in (r for r in case.records if r.table in sides and r.key is not None):
            key = f"{number}:{record.key}"
            everything.append(record._replace(key=key, table=sides[record.table]))
        expected += [r._replace(key=f"{number}:{r.key}") for r in flat(case.defined)]
    assert everything
    family, join = own[0].family, ("L", how, "R")
    if how == "inner":
        assert by_key(runners.static(spark, tmp_path, family, join, everything)) == by_key(expected)
    else:
        batches = cut(everything, -(-len(everything) // 2))
        found = runners.stream(spark, tmp_path, family, join, batches, restart=how == "outer")
        assert flat(found) == expected


def test_final_windows_lose_nothing() -> None:
    """Where stream time jumps, Kafka Streams does: each window comes as it last changed."""
    cases = [case for case in asked()["windows"] if not case.join.final][::8]
    for family, view, records, _, defined in cases:
        last = {result.key: result for result in flat(defined)}
        far = [*records, Record("L", windows.FLUSHING, 10**12, "v", False)]
        found = runners.driver(family, replace(view, final=True), cut(far, 9))
        emitted = Counter(r for r in flat(found) if r.key[0] != windows.FLUSHING)
        assert emitted == Counter(last.values()), (view, records)
