"""min and max against Python's own, of groups that grow and of those that change."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from bench.models.aggregates import (
    ORDERED,
    Held,
    Update,
    bits,
    check,
    check_merged,
    cuts,
    rank,
    run,
    scripts,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.aggregates.aggregate import GroupUpdates, null_accumulators
from dovetail.aggregates.min_max import ChangingExtreme, Extreme
from dovetail.aggregates.running_aggregates import lowest_over
from dovetail.arrays.ordering import is_ordered, to_ordered_keys


class ExtremeModel(Held):
    def __init__(self, largest: bool) -> None:
        super().__init__()
        self.choose: Callable[..., Any] = max if largest else min

    def result(self) -> Any:
        return self.choose(self.values, key=rank) if self.values else None


@pytest.mark.parametrize("largest", [False, True], ids=["min", "max"])
@pytest.mark.parametrize("type_", ORDERED, ids=str)
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_extremes(data: st.DataObject, type_: pa.DataType, largest: bool) -> None:
    assert is_ordered(type_)
    values = st.none() | ORDERED[type_]
    for kernel, retracts in ((Extreme(type_, largest), False), (ChangingExtreme, True)):
        aggregate = kernel if isinstance(kernel, Extreme) else kernel(type_, largest)
        script = data.draw(scripts(values, retracts=retracts))
        check(aggregate, lambda: ExtremeModel(largest), script, [type_], data.draw(cuts(script)))
        right = data.draw(scripts(values, retracts=retracts, size=8))
        check_merged(aggregate, script, right, [type_])


@pytest.mark.parametrize("largest", [False, True], ids=["min", "max"])
def test_long_groups(largest: bool) -> None:
    """Many levels of painting, and many values in the stored multiset."""
    random = np.random.default_rng(2)
    script: list[Update] = []
    present: list[int] = []
    for value in random.integers(0, 200, 3000).tolist():
        if present and random.random() < 0.49:
            script.append(Update(0, True, (present.pop(random.integers(len(present))),)))
        else:
            present.append(value)
            script.append(Update(0, False, (value,)))
    aggregate = ChangingExtreme(pa.int64(), largest)
    check(aggregate, lambda: ExtremeModel(largest), script, [pa.int64()], [1000, 1001, 2500])


def test_a_multiset_keeps_what_a_group_has() -> None:
    """Distinct values ascending, with counts; none that are gone."""
    updates = [(2, False), (1, False), (2, False), (None, False), (3, False), (1, True)]
    script = [Update(0, retracted, (value,)) for value, retracted in updates]
    emitted, state = run(ChangingExtreme(pa.int64(), largest=False), script, [pa.int64()])
    assert emitted == [2, 1, 1, 1, 1, 2]
    assert [column[0].as_py() for column in state] == [[2, 3], [2, 1]]


def test_a_row_of_a_growing_group_is_not_retracted() -> None:
    updates = GroupUpdates(np.zeros(1, np.int64), 1, np.ones(1, np.bool_))
    aggregate = Extreme(pa.int64(), largest=False)
    with pytest.raises(AssertionError, match="cannot be retracted"):
        aggregate.fold(updates, null_accumulators(aggregate.state, 1), [pa.array([1])])


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 40), st.integers(1, 41), st.integers(-5, 5)).filter(
            lambda item: item[0] < item[1]
        ),
        max_size=12,
    )
)
def test_lowest_over(ranges: list[tuple[int, int, int]]) -> None:
    first, end, value = (np.array([r[i] for r in ranges], dtype=np.int64) for i in range(3))
    expected = [min((v for f, e, v in ranges if f <= at < e), default=9) for at in range(41)]
    assert lowest_over(first, end, value, 41, 9).tolist() == expected


@pytest.mark.parametrize("type_", ORDERED, ids=str)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_keys_compare_as_their_values(data: st.DataObject, type_: pa.DataType) -> None:
    """And lead back to them."""
    left, right = (data.draw(st.lists(ORDERED[type_], max_size=8)) for _ in range(2))
    found = to_ordered_keys([pa.array(left, type_), pa.array(right, type_)])
    values = pa.array([*left, *right], type_).to_pylist()  # as the type rounds them
    keys = np.concatenate(found.keys)
    assert bits(found.values(keys, np.ones(len(keys), np.bool_)).to_pylist()) == bits(values)
    for value, key in zip(values, keys.tolist(), strict=True):
        for other, other_key in zip(values, keys.tolist(), strict=True):
            a, b = rank(value), rank(other)
            if isinstance(value, float) and math.isnan(value) and math.isnan(other):
                assert key == other_key
            else:
                assert (key < other_key, key == other_key) == (a < b, a == b)


def test_nested_types_have_no_order() -> None:
    for type_ in (pa.list_(pa.int64()), pa.struct([("a", pa.int64())]), pa.null()):
        assert not is_ordered(type_)
