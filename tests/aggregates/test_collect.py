"""first, last, collect_list and collect_set against Python's lists."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from bench.models.aggregates import (
    COMPARED,
    PAIR,
    Held,
    Update,
    bits,
    by_group,
    check,
    check_merged,
    cuts,
    rank,
    run,
    scripts,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.aggregates import multiset
from dovetail.aggregates.aggregate import AggregateError, GroupUpdates, null_accumulators
from dovetail.aggregates.collect import CollectList, CollectSet
from dovetail.aggregates.first_last import End
from dovetail.aggregates.multiset import list_of
from dovetail.arrays.ordering import is_ordered


class EndModel:
    def __init__(self, last: bool, ignore_nulls: bool) -> None:
        self.place, self.ignore_nulls = (-1 if last else 0), ignore_nulls
        self.values: list[Any] = []

    def update(self, retracted: bool, *values: Any) -> None:
        self.values += [v for v in values if not (v is None and self.ignore_nulls)]

    def result(self) -> Any:
        return self.values[self.place] if self.values else None


class ListModel(Held):
    def result(self) -> list[Any]:
        return list(self.values)


class SetModel:
    """Counts, in the order in which values came to stay."""

    def __init__(self, ordered: bool) -> None:
        self.ordered = ordered
        self.counts: dict[str, tuple[Any, int]] = {}

    def update(self, retracted: bool, *values: Any) -> None:
        for value in values:
            if value is None:
                continue
            key = repr(bits(value))
            first, count = self.counts.get(key, (value, 0))
            self.counts[key] = (first, count + (-1 if retracted else 1))
            if self.counts[key][1] == 0:
                del self.counts[key]

    def result(self) -> list[Any]:
        values = [value for value, _ in self.counts.values()]
        return sorted(values, key=rank) if self.ordered else values


@pytest.mark.parametrize("ignore_nulls", [False, True])
@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("type_", COMPARED, ids=str)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_ends(data: st.DataObject, type_: pa.DataType, last: bool, ignore_nulls: bool) -> None:
    values = st.none() | COMPARED[type_]
    script, right = (data.draw(scripts(values, retracts=False)) for _ in range(2))
    aggregate = End(type_, last, ignore_nulls)
    cut = data.draw(cuts(script))
    check(aggregate, lambda: EndModel(last, ignore_nulls), script, [type_], cut)
    check_merged(aggregate, script, right, [type_])


@pytest.mark.parametrize("retracts", [False, True], ids=["grows", "changes"])
@pytest.mark.parametrize("type_", COMPARED, ids=str)
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_collections(data: st.DataObject, type_: pa.DataType, retracts: bool) -> None:
    values = st.none() | COMPARED[type_]
    script = data.draw(scripts(values, retracts=retracts))
    right = data.draw(scripts(values, retracts=retracts, size=8))
    cut = data.draw(cuts(script))
    for aggregate, make in (
        (CollectList(type_), ListModel),
        (CollectSet(type_, retracts), lambda: SetModel(is_ordered(type_))),
    ):
        check(aggregate, make, script, [type_], cut)
        if not (retracts and isinstance(aggregate, CollectList)):
            check_merged(aggregate, script, right, [type_])


def test_a_list_of_a_map() -> None:
    """Growing groups compare nothing, so any type will do."""
    type_ = pa.map_(pa.string(), pa.int64())
    script = [Update(0, False, (value,)) for value in ([("a", 1)], None, [])]
    emitted, _ = run(CollectList(type_), script, [type_], [1])
    assert emitted == [[[("a", 1)]], [[("a", 1)]], [[("a", 1)], []]]


def test_a_retracted_row_takes_the_first_equal_value() -> None:
    script = [Update(0, at == 3, (value,)) for at, value in enumerate(["a", "b", "a", "a", "c"])]
    for cut in ([], [1], [3], [2, 4]):
        emitted, _ = run(CollectList(pa.string()), script, [pa.string()], cut)
        assert emitted[3:] == [["b", "a"], ["b", "a", "c"]]


def test_a_value_that_went_and_came_is_last_of_an_unordered_set() -> None:
    x, y = [{"a": number, "b": None} for number in (1, 0)]
    updates = [(x, False), (y, False), (x, False), (x, True), (x, True), (x, False)]
    script = [Update(0, retracted, (value,)) for value, retracted in updates]
    for cut in ([], [1], [4], [5]):
        emitted, _ = run(CollectSet(PAIR, retractable=True), script, [PAIR], cut)
        assert emitted == [[x], [x, y], [x, y], [x, y], [y], [y, x]]


def test_collections_too_large_for_a_column(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiset, "_LIST_END_MAX", 9)
    script = [Update(0, False, (number,)) for number in range(4)]
    for aggregate in (CollectList(pa.int64()), CollectSet(pa.int64(), retractable=False)):
        with pytest.raises(AggregateError, match=r"10 elements.*Emit once per batch"):
            run(aggregate, script, [pa.int64()])
        run(aggregate, script[:3], [pa.int64()])


def test_slices_and_chunks_of_stored_lists() -> None:
    """State is read in slices of stored columns: offsets do not begin at 0."""
    stored = pa.array([["z"], ["x", "y"], None, ["b"]], list_of(pa.string())).slice(1)
    counts = pa.array([[5], [1, 2], None, [1]], list_of(pa.int64())).slice(1)
    updates, _ = by_group(
        [Update(0, True, ("x",)), Update(0, False, ("w",)), Update(1, False, ("",))]
    )
    updates = GroupUpdates(updates.group, 3, updates.retracted)
    values = [pa.array(["q", "x", "w", ""]).slice(1)]
    assert CollectList(pa.string()).fold(updates, [stored], values)[0].to_pylist() == [
        ["y", "w"],
        [""],
        ["b"],
    ]
    state = CollectSet(pa.string(), retractable=True).fold(updates, [stored, counts], values)
    assert [column.to_pylist() for column in state] == [
        [["w", "y"], [""], ["b"]],
        [[1, 2], [1], [1]],
    ]


@pytest.mark.parametrize(
    "aggregate",
    [CollectList(PAIR), CollectSet(PAIR, retractable=True), End(PAIR, False, False)],
    ids=["list", "set", "first"],
)
def test_no_groups_and_no_updates(aggregate: CollectList | CollectSet | End) -> None:
    for groups in (0, 2):
        updates = GroupUpdates(np.zeros(0, np.int64), groups, np.zeros(0, np.bool_))
        initial = null_accumulators(aggregate.state, groups)
        assert len(aggregate.scan(updates, initial, [pa.nulls(0, PAIR)])) == 0
        state = aggregate.fold(updates, initial, [pa.nulls(0, PAIR)])
        empty = None if isinstance(aggregate, End) else []
        assert aggregate.results(state).to_pylist() == [empty] * groups
        assert len(aggregate.merged(state, state)[0]) == groups
