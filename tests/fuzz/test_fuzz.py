"""Cases that once failed, replayed; and the fuzz itself: that a seed gives the same cases, that a
case survives its file, that it shrinks, and that its faults can be put in.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace

import pytest
from bench import forced

from dovetail.engine import pack
from fuzz import calls, faults, judges, shrink, sql, topologies
from fuzz import spark as on_spark
from fuzz.case import CASES, Case

FAMILIES = [*judges.WEIGHTS]
DRAWN = int(os.environ.get("DOVETAIL_CASES", "200")) // 8
DRAWN_FOR_CALLS = 500
SEED = int(os.environ.get("DOVETAIL_SEED", "77"))


@pytest.mark.parametrize("path", sorted(CASES.glob("*.json")), ids=lambda path: path.stem)
def test_cases_that_failed(path: object) -> None:
    assert judges.difference(Case.from_json(path.read_text())) is None  # type: ignore[attr-defined]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_seed_gives_the_same_cases_and_they_hold(family: str) -> None:
    for number in range(4):
        case = judges.drawn(7, number, only=family, largest=40)
        assert judges.drawn(7, number, only=family, largest=40) == case
        assert Case.from_json(case.to_json()) == case
        assert json.loads(case.to_json())["records"] == case.records
        assert sum(case.batches) == len(case.records)
        assert judges.difference(case) is None


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_random_cases(family: str) -> None:
    """``DOVETAIL_CASES`` says how many, ``DOVETAIL_SEED`` draws others."""
    for number in range(DRAWN):
        case = judges.drawn(SEED, number, only=family, largest=60)
        assert judges.difference(case) is None, case.to_json()


@pytest.mark.parametrize("fault", faults.FAULTS, ids=lambda fault: fault.name)
def test_every_fault_can_be_put_in(fault: faults.Fault) -> None:
    compile(faults.mutated(fault), fault.module, "exec")


def test_every_module_has_a_fault() -> None:
    """Of what runs on rows: operators, the engine, the laws and the state."""
    modules = {
        ".".join(path.relative_to(faults.SOURCE).with_suffix("").parts)
        for folder in ("operators", "engine", "laws", "state")
        for path in (faults.SOURCE / folder).rglob("*.py")
        if path.stem != "__init__"
    }
    assert {fault.module for fault in faults.FAULTS} >= modules - faults.FAULTLESS.keys()
    assert not faults.FAULTLESS.keys() & {fault.module for fault in faults.FAULTS}
    assert faults.FAULTLESS.keys() <= modules


def test_every_public_call_is_drawn() -> None:
    """Measured on cases of one seed, which are built, not run; but for those that are excused."""
    with calls.recorded() as used:
        for family in FAMILIES:
            for number in range(DRAWN_FOR_CALLS if family == "graph" else DRAWN_FOR_CALLS // 4):
                judges.build(judges.drawn(5, number, only=family, largest=40))
        used.update(
            call for number in range(60) for call in on_spark.calls_of(on_spark.drawn(5, number))
        )
    undrawn = calls.known() - used
    assert sorted(one for one in undrawn if not calls.excused(one)) == []
    stale = {one for one in calls.UNDRAWN if not any(u.startswith(one) for u in undrawn)}
    assert sorted(stale) == []


def test_a_case_shrinks() -> None:
    """To the one record that matters, and the plainest settings."""
    case = next(
        case
        for case in (judges.drawn(3, number, only="tree") for number in range(99))
        if len(case.records) > 20 and any(record[4] for record in case.records)
    )
    case = replace(case, buckets=8, hash="one", limits={"fanout": 2})
    small = shrink.shrunk(case, lambda one: any(record[4] for record in one.records))
    assert len(small.records) == 1
    assert (small.buckets, small.hash, small.limits, small.batches) == (1, "own", {}, [1])


def test_a_topology_shrinks() -> None:
    """To a join, where a join is what matters."""
    case = next(
        case
        for case in (judges.drawn(3, number, only="graph", largest=40) for number in range(999))
        if len(case.topology) > 4 and _joins(case) and case.topology[-1]["op"] != "join"
    )
    small = shrink.shrunk(case, _joins)
    assert [node["op"] for node in small.topology] in (
        ["table", "join"],
        ["table", "table", "join"],
    )
    assert small.records == []
    topologies.build(small.topology)


def _joins(case: Case) -> bool:
    return any(node["op"] == "join" for node in case.topology)


def test_every_operator_is_judged() -> None:
    assert set(sql.SQL) == {*topologies.BUILD, "table", "stream"}


def test_sizes_and_hashes_are_forced() -> None:
    module, constant = forced.LIMITS["fanout"]
    with forced.forced("one", {"fanout": 3}):
        assert getattr(module, constant) == 3
        assert pack.stable_hash is forced.HASHES["one"]
    assert getattr(module, constant) == 8
    assert pack.stable_hash is forced.stable_hash
