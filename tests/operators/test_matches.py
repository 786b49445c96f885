"""Records with and without a match, as joins count them, beside a count record by record.

The law: an upsert of a counted input matches if every other side has a row for it when it comes.
With ``emit="batch"`` a star counts each key once, by the rows at the end of the micro-batch.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

import dovetail as dt
from dovetail import testing
from dovetail.engine.bucket_report import BucketReport

RUNS = range(-(-int(os.environ.get("DOVETAIL_CASES", "200")) // 20))
SEED = int(os.environ.get("DOVETAIL_SEED", "7"))
KEYS = 4

Row = dict[str, Any]
State = Mapping[str, Mapping[int, Row]]
"""The rows of each input, by key."""


class Case(NamedTuple):
    """A join of inputs whose keys are named ``id`` and whose foreign keys are ``a`` and ``b``."""

    inputs: Mapping[str, dt.Table | dt.Stream]
    result: dt.Table | dt.Stream
    finds: Mapping[str, Callable[[State, Row], bool]]
    """For each counted input, whether a record finds rows on all other sides."""


def table(name: str, *references: str) -> dt.Table:
    columns = {"id": pa.int64(), **dict.fromkeys(references, pa.int64()), f"v_{name}": pa.int64()}
    return testing.table(name, key="id", schema=columns)


def by_key(how: str) -> Case:
    inputs = {name: table(name) for name in ("x", "y", "z")}
    joined = inputs["x"].join(inputs["y"], how=how).join(inputs["z"], how=how)  # type: ignore[arg-type]

    def of(name: str) -> Callable[[State, Row], bool]:
        others = [other for other in inputs if other != name]
        return lambda state, row: all(row["id"] in state[other] for other in others)

    return Case(inputs, joined, {name: of(name) for name in inputs})


def by_foreign_key(how: str) -> Case:
    inputs = {"x": table("x", "a"), "y": table("y")}
    joined = inputs["x"].join(inputs["y"], on="a", how=how)  # type: ignore[arg-type]
    return Case(inputs, joined, {"x": lambda state, row: row["a"] in state["y"]})


def star(how: str) -> Case:
    inputs = {"x": table("x", "a", "b"), "y": table("y"), "z": table("z")}
    joined = inputs["x"].join(inputs["y"], on="a", how=how)  # type: ignore[arg-type]
    joined = joined.join(inputs["z"], on="b", how=how)  # type: ignore[arg-type]
    finds = {"x": lambda state, row: row["a"] in state["y"] and row["b"] in state["z"]}
    return Case(inputs, joined, finds)


def stream_table(how: str) -> Case:
    schema = {"id": pa.int64(), "a": pa.int64(), "v_x": pa.int64()}
    stream, inputs = testing.stream("x", key="id", schema=schema), {"y": table("y")}
    joined = stream.join(inputs["y"], on="a", how=how)  # type: ignore[arg-type]
    return Case({"x": stream, **inputs}, joined, {"x": lambda state, row: row["a"] in state["y"]})


def streams(how: str) -> Case:
    inputs = {
        name: testing.stream(name, key="id", schema={"id": pa.int64(), f"v_{name}": pa.int64()})
        for name in ("x", "y")
    }
    joined = inputs["x"].join(inputs["y"], within=dt.within(before="1 day", after="1 day"), how=how)  # type: ignore[arg-type]
    finds = {
        name: lambda state, row, other=other: row["id"] in state[other]
        for name, other in (("x", "y"), ("y", "x"))
    }
    return Case(inputs, joined, finds)


CASES = {
    "by_key": (by_key, ("inner", "left", "outer")),
    "by_foreign_key": (by_foreign_key, ("inner", "left", "right", "outer")),
    "star": (star, ("inner", "left")),
    "stream_table": (stream_table, ("inner", "left")),
    "streams": (streams, ("inner", "left", "outer")),
}


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> list[Counter[tuple[str, bool]]]:
    """The numbers of records by input and by whether they match, of each bucket's work."""
    counted, add_pairs = list[Counter[tuple[str, bool]]](), BucketReport.add_pairs

    def add(report: BucketReport, counts: Any, names: Any) -> None:
        add_pairs(report, counts, names)
        for matched, numbers in ((True, report.matched), (False, report.unmatched)):
            numbers_of = zip(names, numbers, strict=True)
            counted.append(Counter({(name, matched): n for name, n in numbers_of}))

    monkeypatch.setattr(BucketReport, "add_pairs", add)
    return counted


@pytest.mark.parametrize("name", CASES)
def test_records_count_by_what_they_find(
    name: str, reports: list[Counter[tuple[str, bool]]]
) -> None:
    make, hows = CASES[name]
    for number in RUNS:
        choose = random.Random(f"{SEED} {name} {number}")
        reports.clear()
        case = make(choose.choice(hows))
        emit: Any = (
            choose.choice(["change", "batch"]) if isinstance(case.result, dt.Table) else "change"
        )
        driver = testing.Driver(case.result, buckets=choose.choice([1, 3]), emit=emit)
        expected, state = Counter[tuple[str, bool]](), {of: dict[int, Row]() for of in case.inputs}
        time, nets = 0, name == "star" and emit == "batch"
        for _ in range(5):
            came = list[tuple[str, Row]]()
            with driver.batch():
                for _ in range(choose.randrange(8)):
                    time += 1
                    came += fed(choose, case, driver, state, time)
                    if not nets:
                        expected.update(counted(case, state, came))
                        came.clear()
            last = {(of, row["id"]): row for of, row in came if row["id"] in state[of]}
            expected.update(counted(case, state, [(of, row) for (of, _), row in last.items()]))
        assert sum(reports, Counter()) == expected, (number, case.result)


def fed(
    choose: random.Random,
    case: Case,
    driver: testing.Driver,
    state: dict[str, dict[int, Row]],
    time: int,
) -> list[tuple[str, Row]]:
    """Pipe one record; if it is an upsert, its input and its row."""
    name = choose.choice([*case.inputs])
    input_, key = case.inputs[name], choose.randrange(KEYS)
    if isinstance(input_, dt.Table) and choose.random() < 0.25:
        driver.pipe(input_, {"id": key}, timestamp=time, deleted=True)
        state[name].pop(key, None)
        return []
    row = {"id": key, **{field: choose.randrange(KEYS) for field in input_.plan.values.names}}
    driver.pipe(input_, row, timestamp=time)
    state[name][key] = row
    return [(name, row)]


def counted(case: Case, state: State, came: list[tuple[str, Row]]) -> Counter[tuple[str, bool]]:
    """The numbers of records by input and by whether they match."""
    records = [(name, row) for name, row in came if name in case.finds]
    return Counter((name, case.finds[name](state, row)) for name, row in records)
