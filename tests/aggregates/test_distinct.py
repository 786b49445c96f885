"""count_distinct against Python's sets, of groups that grow and of those that change."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from bench.models.aggregates import (
    COMPARED,
    Update,
    bits,
    check,
    check_merged,
    cuts,
    final,
    run,
    scripts,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.aggregates.aggregate import GroupUpdates, null_accumulators
from dovetail.aggregates.distinct import CountDistinct


def equal_zeros(value: Any) -> Any:
    if isinstance(value, float):
        return value + 0.0
    if isinstance(value, dict):
        return {name: equal_zeros(part) for name, part in value.items()}
    return value


class CountModel:
    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def update(self, retracted: bool, value: Any) -> None:
        if value is not None:
            self.counts[repr(bits(equal_zeros(value)))] += -1 if retracted else 1

    def result(self) -> int:
        return len(+self.counts)


@pytest.mark.parametrize("retracts", [False, True], ids=["grows", "changes"])
@pytest.mark.parametrize("type_", COMPARED, ids=str)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_distinct(data: st.DataObject, type_: pa.DataType, retracts: bool) -> None:
    values = st.none() | COMPARED[type_]
    script = data.draw(scripts(values, retracts=retracts, size=24))
    right = data.draw(scripts(values, retracts=retracts, size=8))
    aggregate = CountDistinct(type_, retracts)
    check(aggregate, CountModel, script, [type_], data.draw(cuts(script)))
    check_merged(aggregate, script, right, [type_])


def test_equal_rows_count_once_until_the_last_one_leaves() -> None:
    updates = [(5, False), (5, False), (None, False), (5, True), (7, False), (5, True), (5, False)]
    script = [Update(0, retracted, (value,)) for value, retracted in updates]
    for cut in ([], [1], [4], [5, 6]):
        emitted, state = run(CountDistinct(pa.int64(), True), script, [pa.int64()], cut)
        assert emitted == [1, 1, 1, 1, 2, 1, 2]
        assert [column[0].as_py() for column in state] == [[5, 7], [1, 1], 2]


def test_zeros_are_one_value_and_nans_are() -> None:
    negative = np.array([0xFFF8000000000001], np.uint64).view(np.float64)[0]
    script = [Update(0, False, (v,)) for v in [0.0, -0.0, math.nan, negative]]
    emitted, _ = run(CountDistinct(pa.float64(), True), script, [pa.float64()], [1])
    assert emitted == [1, 1, 2, 2]


def test_the_number_is_not_counted_anew() -> None:
    """Of a long list a batch has but the parts that it updates."""
    aggregate = CountDistinct(pa.int64(), True)
    state = final(aggregate, [Update(0, False, (n,)) for n in range(5)], [pa.int64()])
    part = [state[0].take(pa.array([0])), state[1].take(pa.array([0]))]
    lists = [pa.array([[2, 3]], column.type) for column in part[:1]]
    counts = [pa.array([[1, 1]], column.type) for column in part[1:]]
    updates = GroupUpdates(np.zeros(3, np.int64), 1, np.array([True, False, False]))
    values = [pa.array([3, 9, 9])]
    emitted = aggregate.scan(updates, [*lists, *counts, state[2].slice(0, 1)], values)
    assert emitted.to_pylist() == [4, 5, 5]


@pytest.mark.parametrize("retractable", [False, True])
def test_no_groups_and_no_updates(retractable: bool) -> None:
    aggregate = CountDistinct(pa.string(), retractable)
    for groups in (0, 2):
        updates = GroupUpdates(np.zeros(0, np.int64), groups, np.zeros(0, np.bool_))
        initial = null_accumulators(aggregate.state, groups)
        assert len(aggregate.scan(updates, initial, [pa.nulls(0, pa.string())])) == 0
        state = aggregate.fold(updates, initial, [pa.nulls(0, pa.string())])
        assert aggregate.results(state).to_pylist() == [0] * groups
        assert len(aggregate.merged(state, state)[0]) == groups
