"""Rows of random topologies, explained: the named rows alone make the row again."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from bench.forced import HASHES, forced
from fuzz import columns, judges, topologies
from fuzz.case import Case

from dovetail import testing
from dovetail.provenance.stored_rows import moment
from dovetail.testing.inputs import hashable
from dovetail.typing import RowExplanation

SEED = int(os.environ.get("DOVETAIL_SEED", "11"))
CASES = int(os.environ.get("DOVETAIL_CASES", "200")) // 4


def rows_of(case: Case, number: int) -> list[tuple[dict[str, Any], int, bool]]:
    """The records of an input: row, time and whether it deletes."""
    node = case.topology[number]
    rows = []
    for input_, key, time_us, value, deleted in case.records:
        if input_ == number:
            row = {}
            for part, fields in ((key, node["key"]), (value, node["values"])):
                for index, (name, type_) in enumerate(fields):
                    code = None if part is None else part[index]
                    row[name] = columns.array(type_, [code])[0].as_py()
            rows.append((row, time_us, deleted))
    return rows


def driven(case: Case, named: Mapping[str, list[RowExplanation]] | None) -> tuple[Any, Any, Any]:
    """A driver of the case's topology fed with all records or with the named rows only, its result,
    and its inputs by name.
    """
    topology, inputs = topologies.build(case.topology)
    by_name = {table.plan.name: table for table in inputs.values()}
    options = {"key_hash": HASHES[case.hash], "buckets": case.buckets}
    driver = testing.Driver(topology, **options)
    fed = {number: rows_of(case, number) for number in inputs}
    order = [record[0] for record in case.records]
    for number in order:
        row, time_us, deleted = fed[number].pop(0)
        table = inputs[number]
        names = table.plan.key.names
        if named is None or _is_named(named.get(table.plan.name, ()), names, row, time_us):
            driver.pipe(table, row, timestamp=time_us, deleted=deleted)
    return driver, topology, by_name


def _is_named(rows: Any, names: list[str], row: dict[str, Any], time_us: int) -> bool:
    key = [hashable(row[name]) for name in names]
    at = moment(time_us)
    return any(leaf.time == at and [*map(hashable, leaf.key.values())] == key for leaf in rows)


def key_as_given(key: Any, names: list[str]) -> dict[str, Any]:
    return dict(zip(names, key if len(names) > 1 else (key,), strict=True))


def leaves(explanation: RowExplanation) -> Iterator[RowExplanation]:
    if not explanation.inputs:
        yield explanation
    for part in explanation.inputs:
        yield from leaves(part)


def is_whole(explanation: RowExplanation) -> bool:
    """Whether an explanation goes down to rows of inputs everywhere."""
    return all(leaf.is_input and leaf.presence != "unknown" for leaf in leaves(explanation))


def wrong(case: Case, whole: list[bool] | None = None) -> str | None:
    """Say what is wrong with the explanations of a case's rows; None if all are right.

    ``whole`` gets for each row whether the named rows were computed again.
    """
    with forced(case.hash, case.limits):
        driver, topology, inputs = driven(case, None)
        names = topology.plan.key.names
        table = driver.table(topology)
        keys = {tuple(map(hashable, change.key.values())) for change in driver.read()}
        for parts in sorted(keys, key=repr):
            key = parts if len(names) > 1 else parts[0]
            explanation = driver.explain_row(key_as_given(key, names), members=10**6)
            if key in table:
                problem = not_that_row(case, key, table[key], explanation)
                if whole is not None:
                    whole.append(is_whole(explanation))
            else:
                problem = not_missing(driver, inputs, explanation)
            if problem is not None:
                return f"{key} {problem}:\n{explanation}"
    return None


def not_missing(
    driver: testing.Driver, inputs: Mapping[str, Any], explanation: RowExplanation
) -> str | None:
    """Say what is wrong with the explanation of a row that is not there."""
    if explanation.presence == "row":
        return "has no row"
    if not explanation.reason:
        return "has no reason"
    for leaf in leaves(explanation):
        if leaf.is_input and leaf.presence == "none":
            parts = tuple(map(hashable, leaf.key.values()))
            key = parts if len(parts) > 1 else parts[0]
            if key in driver.table(inputs[leaf.name]):
                return f"is missing, though {leaf.name} has {key}"
    return None


def not_that_row(
    case: Case, key: Any, values: Mapping[str, Any], explanation: RowExplanation
) -> str | None:
    """Say what is wrong with the explanation of a row with these values."""
    if explanation.presence == "none":
        return "has a row"
    actual, shown = in_order(values), in_order(explanation.values)
    if not shown.items() <= actual.items():
        return f"is {actual}"
    if not is_whole(explanation):
        return None
    other, topology, _ = driven(case, named_by(explanation))
    made = other.table(topology).get(key)
    lists = any(
        function == "collect_list"
        for node in case.topology
        for function, _ in node.get("aggregates", ())
    )
    compared = in_any_order if lists else in_order
    if made is None or compared(made) != compared(values):
        return f"is {actual}, and of the named rows {made}"
    return None


def in_order(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values in a form that can be compared."""
    return {name: hashable(value) for name, value in values.items()}


def in_any_order(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values with sorted arrays: their order may be that of older rows than those named."""
    return {
        name: sorted(map(hashable, value), key=repr) if isinstance(value, list) else hashable(value)
        for name, value in values.items()
    }


def wrong_change(case: Case) -> str | None:
    """Say what is wrong with the explanations of a case's first and last changes."""
    with forced(case.hash, case.limits):
        driver, topology, _ = driven(case, None)
        names, stream = topology.plan.key.names, topology.plan.stream
        changes = driver.read()
        for change in [*changes[:3], *changes[-3:]]:
            explanation = driver.explain_change(change, members=10**6)
            if explanation.presence != ("row" if change.change == "upsert" else "none"):
                return f"{change} is explained as\n{explanation}"
            if not stream or explanation.reason or change.values is None:
                continue
            if not is_whole(explanation):
                continue
            other, *_ = driven(case, named_by(explanation))
            emitted = [(one.key, one.values) for one in other.read()]
            key = {name: change.key[name] for name in names}
            if (key, change.values) not in emitted:
                return f"{change}, of the named records {emitted}:\n{explanation}"
    return None


def named_by(explanation: RowExplanation) -> dict[str, list[RowExplanation]]:
    """The rows of inputs that an explanation names, by input."""
    named: dict[str, list[RowExplanation]] = {}
    for leaf in explanation.input_rows:
        named.setdefault(leaf.name, []).append(leaf)
    return named


def cases(count: int, kinds: Sequence[str] = ("table",)) -> Iterator[Case]:
    """Cases whose results are of these kinds."""
    number = 0
    while count:
        case = judges.drawn(SEED, number, only="graph", largest=40)
        number += 1
        result = topologies.shapes(case.topology)[-1]
        if result.kind in kinds and not topologies.aligned(case.topology):
            count -= 1
            yield case


@pytest.mark.long
def test_rows_are_made_by_the_rows_that_are_named() -> None:
    for case in cases(3):
        assert wrong(case) is None, case.to_json()


def test_changes_are_made_by_the_records_that_are_named() -> None:
    for case in cases(3, ("table", "stream")):
        assert wrong_change(case) is None, case.to_json()


@pytest.mark.slow
def test_many_changes_are_made_by_the_records_that_are_named() -> None:
    for case in cases(CASES, ("table", "stream")):
        assert wrong_change(case) is None, case.to_json()


@pytest.mark.slow
def test_many_rows_are_made_by_the_rows_that_are_named() -> None:
    whole: list[bool] = []
    for case in cases(CASES):
        assert wrong(case, whole) is None, case.to_json()
    assert sum(whole) > 0.8 * len(whole)
