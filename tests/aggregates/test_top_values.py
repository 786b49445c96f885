"""top against Python's ``sorted``, of groups that grow and of those that change."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from bench.models.aggregates import (
    FLOATS,
    ORDERED,
    PAIR,
    Update,
    bits,
    check,
    check_merged,
    cuts,
    final,
    rank,
    run,
    scripts,
)
from bench.parameters import slow_after
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.aggregates import multiset
from dovetail.aggregates.aggregate import AggregateError, GroupUpdates, null_accumulators
from dovetail.aggregates.running_aggregates import first_over
from dovetail.aggregates.top_values import Top

NESTED = pa.struct([("p", PAIR), ("s", pa.string())])
PAIRS = st.fixed_dictionaries({"a": st.none() | st.integers(0, 1), "b": st.none() | FLOATS})
TOLD: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int64(): st.integers(0, 3),
    pa.float64(): FLOATS,
    pa.string(): st.sampled_from(["", "a", "b", "é"]),
    pa.decimal128(38, 2): st.integers(0, 3).map(lambda n: Decimal(n).scaleb(-2)),
    PAIR: PAIRS,
    NESTED: st.fixed_dictionaries({"p": st.none() | PAIRS, "s": st.sampled_from([None, "", "a"])}),
}


def place(value: Any) -> Any:
    """What rows of one value are compared by; fields are named in their order."""
    if isinstance(value, (dict, tuple)):
        parts = [v for _, v in sorted(value.items())] if isinstance(value, dict) else value
        return (True, tuple(place(part) for part in parts))
    return (False, 0) if value is None else (True, rank(value))


class TopModel:
    def __init__(self, n: int, *, single: bool, descending: bool) -> None:
        self.n, self.single, self.descending = n, single, descending
        self.rows: list[tuple[Any, ...]] = []

    def update(self, retracted: bool, by: Any, *shown: Any) -> None:
        if by is None:
            return
        row = (by + 0.0 if isinstance(by, float) else by, *shown)
        if retracted:
            del self.rows[[bits(held) for held in self.rows].index(bits(row))]
        else:
            self.rows.append(row)

    def result(self) -> list[Any]:
        rows = sorted(self.rows, key=lambda row: place(row[1:]))
        rows.sort(key=lambda row: rank(row[0]), reverse=self.descending)
        shown = [row[1] if self.single else dict(zip("xy", row[1:], strict=True)) for row in rows]
        return shown[: self.n]


def top(
    n: int, types: list[pa.DataType], *, descending: bool = True, retractable: bool = True
) -> Top:
    by, *shown = types
    row = shown[0] if len(shown) == 1 else pa.struct([*zip("xy", shown, strict=True)])
    return Top(n, by, row, len(shown) == 1, descending, retractable)


@pytest.mark.parametrize("retracts", [False, True], ids=["grows", "changes"])
@pytest.mark.parametrize("by", ORDERED, ids=str)
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_top(data: st.DataObject, by: pa.DataType, retracts: bool) -> None:
    descending = data.draw(st.booleans())
    n = data.draw(st.integers(1, 4) | st.just(2**31 - 1))
    types = [by, *data.draw(st.lists(st.sampled_from([*TOLD]), min_size=1, max_size=2))]
    values = [st.none() | known for known in (ORDERED[by], *(TOLD[type_] for type_ in types[1:]))]
    aggregate = top(n, types, descending=descending, retractable=retracts)
    script = data.draw(scripts(*values, retracts=retracts, size=24))
    right = data.draw(scripts(*values, retracts=retracts, size=8))
    check(
        aggregate,
        lambda: TopModel(n, single=aggregate.single, descending=descending),
        script,
        types,
        data.draw(cuts(script)),
    )
    check_merged(aggregate, script, right, types)


@pytest.mark.parametrize("n", slow_after(1, [50, 3, 1]))
def test_long_groups(n: int) -> None:
    """Many levels, many rows in the stored multiset, and groups of very different sizes."""
    random = np.random.default_rng(n)
    script: list[Update] = []
    present: list[list[tuple[int, int]]] = [[] for _ in range(4)]
    for value in random.integers(0, 60, 3000).tolist():
        group = int(random.choice(4, p=[0.9, 0.06, 0.03, 0.01]))
        rows = present[group]
        if rows and random.random() < 0.47:
            script.append(Update(group, True, rows.pop(random.integers(len(rows)))))
        else:
            rows.append((value, int(random.integers(3))))
            script.append(Update(group, False, rows[-1]))
    types = [pa.int64(), pa.int64()]
    for cut in ([1000, 1001, 2500], list(range(0, 3000, 40))):
        check(top(n, types), lambda: TopModel(n, single=True, descending=True), script, types, cut)


def test_rows_that_stay_are_forgotten_where_they_cannot_be_among_the_first() -> None:
    script = [Update(0, False, (value, value)) for value in [5, 1, 5, 4, 5, 9]]
    types = [pa.int64(), pa.int64()]
    listed = [
        final(top(3, types, retractable=retractable), script, types)[1][0].as_py()
        for retractable in (False, True)
    ]
    assert listed == [[1, 2], [1, 3, 1, 1]]


def test_zeros_are_one_value_and_nan_is_the_highest() -> None:
    rows = [(-0.0, 3), (0.0, 1), (-0.0, 2), (math.nan, 9), (math.inf, 8), (None, 7), (-math.nan, 6)]
    script = [Update(0, False, row) for row in rows] + [Update(0, True, (0.0, 2))]
    for descending, expected in ((True, [6, 9, 8, 1, 3]), (False, [1, 3, 8, 6, 9])):
        aggregate = top(9, [pa.float64(), pa.int64()], descending=descending)
        emitted, _ = run(aggregate, script, [pa.float64(), pa.int64()], [4])
        assert emitted[-1] == expected


def test_a_result_too_large_for_a_column(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiset, "_LIST_END_MAX", 9)
    script = [Update(0, False, (number, 0)) for number in range(4)]
    types = [pa.int64(), pa.int64()]
    with pytest.raises(AggregateError, match=r"10 elements.*Emit once per batch"):
        run(top(4, types), script, types)
    run(top(2, types), script, types)


@pytest.mark.parametrize("retractable", [False, True])
def test_no_groups_and_no_updates(retractable: bool) -> None:
    aggregate = top(2, [pa.float64(), PAIR], retractable=retractable)
    for groups in (0, 2):
        updates = GroupUpdates(np.zeros(0, np.int64), groups, np.zeros(0, np.bool_))
        initial = null_accumulators(aggregate.state, groups)
        none = [pa.nulls(0, pa.float64()), pa.nulls(0, PAIR)]
        assert len(aggregate.scan(updates, initial, none)) == 0
        state = aggregate.fold(updates, initial, none)
        assert aggregate.results(state).to_pylist() == [[]] * groups
        assert len(aggregate.merged(state, state)[0]) == groups


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 40), st.integers(1, 41)).filter(lambda item: item[0] < item[1]),
        max_size=12,
    ),
    st.integers(1, 4),
)
def test_first_over(ranges: list[tuple[int, int]], n: int) -> None:
    first, end = (np.array([r[i] for r in ranges], dtype=np.int64) for i in range(2))
    place, which = first_over(first, end, 41, n)
    expected = [
        (at, number)
        for at in range(41)
        for number in [i for i, (f, e) in enumerate(ranges) if f <= at < e][:n]
    ]
    assert [*zip(place.tolist(), which.tolist(), strict=True)] == expected
