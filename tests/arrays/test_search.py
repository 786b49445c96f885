"""Searches against loops."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.arrays.search import Ints, bisect, expand_ranges, last_below

LOWEST, HIGHEST = np.iinfo(np.int64).min, np.iinfo(np.int64).max

VALUE = st.integers(-4, 4) | st.sampled_from([LOWEST, HIGHEST])
QUERIES = st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99), VALUE), max_size=12)


def ints(values: Sequence[int]) -> Ints:
    return np.array(values, dtype=np.int64)


def transposed(queries: Sequence[tuple[int, int, int]]) -> list[Ints]:
    return [ints([query[i] for query in queries]) for i in range(3)]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(VALUE, max_size=9), max_size=5), QUERIES, st.booleans())
def test_bisect(parts: list[list[int]], drawn: list[tuple[int, int, int]], right: bool) -> None:
    """Each query searches some of one sorted part; the parts have no order."""
    values = [value for part in parts for value in sorted(part)]
    queries = []
    for which, where, sought in drawn if parts else []:
        number = which % len(parts)
        start = sum(len(part) for part in parts[:number])
        cut = where % (len(parts[number]) + 1)
        queries.append((start + cut // 2, start + len(parts[number]) - cut // 3, sought))
    plain = bisect_right if right else bisect_left
    found = bisect(ints(values), *transposed(queries), right=right)
    assert found.tolist() == [plain(values, q[2], q[0], max(q[0], q[1])) for q in queries]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(-3, 9), st.integers(-3, 9)), max_size=12))
def test_expand(ranges: list[tuple[int, int]]) -> None:
    which, member = expand_ranges(
        ints([first for first, _ in ranges]), ints([end for _, end in ranges])
    )
    expected = [(i, at) for i, (first, end) in enumerate(ranges) for at in range(first, end)]
    assert list(zip(which.tolist(), member.tolist(), strict=True)) == expected


@settings(max_examples=200, deadline=None)
@given(st.lists(VALUE, max_size=40), QUERIES)
def test_last_below(values: list[int], drawn: list[tuple[int, int, int]]) -> None:
    size = len(values) + 1
    queries = [(first % size, end % size, bound) for first, end, bound in drawn]
    expected = [
        max((at for at in range(first, end) if values[at] < bound), default=-1)
        for first, end, bound in queries
    ]
    assert last_below(ints(values), *transposed(queries)).tolist() == expected


@pytest.mark.parametrize("length", range(18))
def test_last_below_finds_every_single_place(length: int) -> None:
    """Of each length: the one low value is found from every range that holds it."""
    ranges = [(first, end) for first in range(length) for end in range(first, length + 1)]
    first, end = ints([f for f, _ in ranges]), ints([e for _, e in ranges])
    for place in range(length):
        values = np.where(np.arange(length) == place, 0, 5)
        found = last_below(values, first, end, np.ones(len(ranges), np.int64))
        assert found.tolist() == [place if f <= place < e else -1 for f, e in ranges]
