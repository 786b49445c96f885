"""Random cases against Kafka Streams itself: the same results, record by record.

The oracle is Kafka Streams' own ``TopologyTestDriver``. ``DOVETAIL_CASES`` says how many cases to
draw; ``DOVETAIL_SEED`` draws others.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from naive import Record, Result, each_record, seen
from runners import cut, driver, kernel, one_hash, static, stream

ORACLE = Path(__file__).parents[2] / "shared" / "kafka-streams" / "oracle"
CASES = int(os.environ.get("DOVETAIL_CASES", "200"))
SEED = int(os.environ.get("DOVETAIL_SEED", "77"))
HOWS = ("inner", "left", "outer")

pytestmark = pytest.mark.skipif(not ORACLE.exists(), reason="Kafka Streams' oracle is not here")


def draw(random_: random.Random, number: int) -> dict[str, Any]:
    """A case: few keys, many tombstones, times in any order."""
    serial = count()
    keys = random_.choice(["k", "ab", "abc", ["", "a", "ab", "é"]])
    null_keys = random_.random() < 0.2
    last = random_.choice([3, 50, 10**12])
    deletes = random_.choice([0.1, 0.3, 0.6])

    def event() -> dict[str, Any]:
        value = None if random_.random() < deletes else random_.choice(["", f"v{next(serial)}"])
        key = None if null_keys and random_.random() < 0.1 else random_.choice(keys)
        side = random_.choice("LR")
        return {"side": side, "key": key, "value": value, "ts": random_.randint(0, last)}

    events = [event() for _ in range(random_.randint(1, 40))]
    return {"id": str(number), "op": f"table_table_{random_.choice(HOWS)}", "events": events}


def records(case: dict[str, Any]) -> list[Record]:
    return [
        Record(e["side"], e["key"], e["ts"], e["value"], e["value"] is None) for e in case["events"]
    ]


def topology(case: dict[str, Any]) -> tuple[str, str, str]:
    return "L", case["op"].rpartition("_")[2], "R"


@pytest.fixture(scope="module")
def cases() -> list[dict[str, Any]]:
    random_ = random.Random(SEED)
    return [draw(random_, number) for number in range(CASES)]


@pytest.fixture(scope="module")
def answers(cases: list[dict[str, Any]]) -> list[list[list[Result]]]:
    """Per case and event what Kafka Streams emits; one process answers all cases."""
    asked = "".join(json.dumps(case) + "\n" for case in cases)
    told = subprocess.run([ORACLE], input=asked, capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in told.stdout.splitlines()]
    assert [line["id"] for line in lines] == [case["id"] for case in cases]
    return [[[result(change) for change in out] for out in line["out"]] for line in lines]


def result(change: dict[str, Any]) -> Result:
    """The oracle's joiner writes ``left+right``; values have no plus sign."""
    values = None if change["value"] is None else tuple(change["value"].split("+"))
    return Result(change["key"], values, change["ts"])


def printed(results: list[Result]) -> list[Result]:
    """Results with a missing side as the oracle's joiner prints it."""
    return [
        r._replace(values=r.values and tuple("null" if v is None else v for v in r.values))
        for r in results
    ]


def flat(parts: list[list[Result]]) -> Iterator[Result]:
    for part in parts:
        yield from part


IN_PROCESS = {
    "kernel": kernel,
    "kernel-restarted": partial(kernel, restart=True),
    "kernel-colliding": partial(kernel, key_hash=one_hash),
    "driver": driver,
    "driver-restarted": partial(driver, restart=True),
}


def test_the_definition(cases: list[dict[str, Any]], answers: list[list[list[Result]]]) -> None:
    for case, expected in zip(cases, answers, strict=True):
        changes = each_record(topology(case), records(case))
        assert [printed(seen(change)) for change in changes] == expected, case


@pytest.mark.parametrize("size", [1, 4, 10**6], ids=["row-by-row", "by-four", "one-batch"])
@pytest.mark.parametrize("runner", IN_PROCESS)
def test_the_runners_in_this_process(
    runner: str, size: int, cases: list[dict[str, Any]], answers: list[list[list[Result]]]
) -> None:
    share = {1: 10, 4: 5}.get(size, 1 if runner.startswith("kernel") else 4)  # by what they cost
    for case, expected in list(zip(cases, answers, strict=True))[::share]:
        told = IN_PROCESS[runner](topology(case), cut(records(case), size))
        wanted = [list(flat(expected[i : i + size])) for i in range(0, len(expected), size)]
        assert [printed(part) for part in told] == wanted, case


@pytest.mark.parametrize("how", HOWS)
def test_spark(
    how: str,
    cases: list[dict[str, Any]],
    answers: list[list[list[Result]]],
    spark: Any,
    tmp_path: Path,
) -> None:
    """All cases of a kind in one query, keys prefixed by the case; restarted between batches."""
    own = [(c, a) for c, a in zip(cases, answers, strict=True) if c["op"].endswith(how)]
    everything = [
        r._replace(key=r.key if r.key is None else f"{case['id']}:{r.key}")
        for case, _ in own
        for r in records(case)
    ]
    expected = [
        r._replace(key=f"{case['id']}:{r.key}") for case, answer in own for r in flat(answer)
    ]
    join = ("L", how, "R")
    if how == "inner":
        told = static(spark, tmp_path, join, everything)
        assert sorted_by_key(printed(told)) == sorted_by_key(expected)
    else:
        size = -(-len(everything) // 2)
        told = stream(spark, tmp_path, join, cut(everything, size), restart=how == "outer")
        assert printed(told) == expected


def sorted_by_key(results: list[Result]) -> list[Result]:
    return sorted(results, key=lambda r: r.key)
