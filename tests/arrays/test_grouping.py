"""Rows by key against dictionaries; keys of every kind, hashes that collide."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dovetail.arrays import grouping
from dovetail.arrays.equality import rows_equal
from dovetail.arrays.grouping import (
    any_null,
    argsort_distinct,
    bucket_of,
    by_group_and_time,
    by_key,
    lexsort,
    rank_of_keys,
    stable_argsort,
)

SEEDS = range(25)
NAN = float("nan")
_LEAST, _MOST = int(np.iinfo(np.int64).min), int(np.iinfo(np.int64).max)

POOLS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "text": (pa.string(), ["b", "", "a", "ab", None]),
    "number": (pa.int64(), [3, -1, 0, None, 2]),
    "float": (pa.float64(), [0.5, NAN, -1.0, None, 2.0]),
    "struct": (
        pa.struct([("x", pa.int64()), ("y", pa.string())]),
        [{"x": 1, "y": "a"}, {"x": 1, "y": None}, {"x": None, "y": None}, None, {"x": 2, "y": "a"}],
    ),
    "list": (pa.list_(pa.int64()), [[1], [], [1, 2], [None], None]),
}
SORTABLE = ("text", "number", "float")

HASHES = {
    "distinct": lambda number: (number * 7 - 9) % 31,
    "some collide": lambda number: number % 2 - 1,
    "all collide": lambda number: 5,
}


def draw(random_: random.Random, names: list[str]) -> tuple[list[pa.Array], list[str]]:
    """Key columns of a random length, and each row's key in a form that can be compared."""
    n = random_.randint(0, 14)
    values = [random_.choices(POOLS[name][1], k=n) for name in names]
    columns = [pa.array(v, POOLS[name][0]) for v, name in zip(values, names, strict=True)]
    return columns, [repr(row) for row in zip(*values, strict=True)]


def hashes_of(keys: list[str], name: str) -> np.ndarray:
    number = {key: i for i, key in enumerate(sorted(set(keys)))}
    return np.array([HASHES[name](number[key]) for key in keys], dtype=np.int64)


@pytest.mark.parametrize("hashes", HASHES)
@pytest.mark.parametrize("names", [*([name] for name in POOLS), ["list", "text"]], ids=str)
def test_by_key_puts_equal_keys_side_by_side(names: list[str], hashes: str) -> None:
    for seed in SEEDS:
        random_ = random.Random(seed)
        columns, keys = draw(random_, names)
        hash_ = hashes_of(keys, hashes)
        rows = random_.sample(range(len(keys)), random_.randint(0, len(keys)))
        first_seen: dict[str, int] = {}
        for place, row in enumerate(rows):
            first_seen.setdefault(keys[row], place)
        order, new, arranged = by_key(hash_, columns, np.array(rows, dtype=np.int64))
        expected = sorted(
            range(len(rows)), key=lambda i: (hash_[rows[i]], first_seen[keys[rows[i]]], i)
        )
        assert order.tolist() == expected
        by_hand = [keys[rows[i]] for i in expected]
        assert new.tolist() == [i == 0 or key != by_hand[i - 1] for i, key in enumerate(by_hand)]
        values = zip(*(column.to_pylist() for column in arranged), strict=True)
        assert [repr(row) for row in values] == by_hand


@pytest.mark.parametrize("names", [["text"], ["list", "text"]], ids=str)
def test_keys_that_collide_twice(names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        grouping, "stable_hash", lambda keys: np.arange(len(keys[0]), dtype=np.int64) * 0
    )
    test_by_key_puts_equal_keys_side_by_side(names, "all collide")


@pytest.mark.parametrize("size", [100, 5_000])
def test_many_keys_under_one_hash_cost_a_few_passes(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys with a null that came at one time have one hash, however many there are."""
    compared = []

    def counting(left: list[pa.Array], right: list[pa.Array]) -> Any:
        compared.append(len(left[0]))
        return rows_equal(left, right)

    monkeypatch.setattr(grouping, "rows_equal", counting)
    keys = [pa.nulls(size, pa.int64()), pa.array(range(size))]
    order, new, _ = by_key(np.zeros(size, np.int64), keys, np.arange(size))
    assert order.tolist() == list(range(size))
    assert new.all()
    assert sum(compared) < 5 * size


@pytest.mark.parametrize("names", [["text"], ["list", "number"], ["struct", "float"]], ids=str)
def test_any_null(names: list[str]) -> None:
    for seed in SEEDS:
        columns, _ = draw(random.Random(seed), names)
        rows = list(zip(*(column.to_pylist() for column in columns), strict=True))
        expected = [any(value is None for value in row) for row in rows]
        assert any_null(columns, len(rows)).tolist() == expected


def test_nan_and_nulls_inside_a_value_are_not_null() -> None:
    keys = [pa.array([NAN, 1.0]), pa.array([[None], []], pa.list_(pa.int64()))]
    assert any_null(keys, 2).tolist() == [False, False]


@pytest.mark.parametrize("hashes", HASHES)
@pytest.mark.parametrize("names", [*([name] for name in SORTABLE), ["text", "number"]], ids=str)
def test_ranks_are_those_of_the_sorted_keys(names: list[str], hashes: str) -> None:
    """By the first column, then the next; in each NaN comes after the numbers, null last."""

    def place(row: tuple[Any, ...]) -> list[tuple[int, Any]]:
        return [(2, 0) if v is None else (1, 0) if v != v else (0, v) for v in row]

    for seed in SEEDS:
        columns, keys = draw(random.Random(seed), names)
        rows = [place(row) for row in zip(*(c.to_pylist() for c in columns), strict=True)]
        distinct = sorted({repr(row): row for row in rows}.values())
        found = rank_of_keys(columns, hashes_of(keys, hashes))
        assert found.tolist() == [distinct.index(row) for row in rows]


@pytest.mark.parametrize("names", [["list"], ["text", "list"], ["struct"]], ids=str)
def test_keys_without_an_order_are_ranked_by_hash(names: list[str]) -> None:
    for seed in SEEDS:
        columns, keys = draw(random.Random(seed), names)
        hash_ = hashes_of(keys, "distinct")
        expected = np.unique(hash_, return_inverse=True)[1]
        assert rank_of_keys(columns, hash_).tolist() == expected.tolist()


def test_by_group_and_time_is_a_stable_sort() -> None:
    for seed in range(100):
        random_ = random.Random(seed)
        n = random_.randint(0, 12)
        group = sorted(random_.choices([-2, 0, 7], k=n))
        time = [random_.randint(-2, 2) for _ in range(n)]
        if seed % 3 == 0:  # already in order
            time = [t for _, t in sorted(zip(group, time, strict=True))]
        found = by_group_and_time(np.array(group, np.int64), np.array(time, np.int64))
        assert found.tolist() == sorted(range(n), key=lambda i: (group[i], time[i]))


VALUES: dict[str, Callable[[np.random.Generator, int], Any]] = {
    "few": lambda rng, n: rng.integers(-4, 4, n),
    "hashes": lambda rng, n: rng.integers(_LEAST, _MOST, n),
    "equal above": lambda rng, n: rng.integers(-3, 3, n) * 2**32 + rng.integers(0, 3, n),
    "about the widest that fits": lambda rng, n: rng.integers(0, 2**31 + 2, n) - 5,
    "ends": lambda rng, n: rng.choice(np.array([_LEAST, _MOST, 0, 2**32, 2**32 + 1, -1]), n),
}


@pytest.mark.parametrize("values", VALUES)
def test_stable_argsort(values: str) -> None:
    rng = np.random.default_rng(1)
    for count in [*range(40), 1000] * 5:
        drawn = VALUES[values](rng, count).astype(np.int64)
        expected = np.argsort(drawn, kind="stable")
        assert stable_argsort(drawn).tolist() == expected.tolist(), drawn


def test_lexsort() -> None:
    rng = np.random.default_rng(3)
    kinds = [*VALUES.values(), lambda _, n: np.arange(n), lambda _, n: np.zeros(n, np.int64)]
    for _ in range(2000):
        count = int(rng.integers(1, 30))
        drawn = [kinds[kind](rng, count) for kind in rng.integers(0, len(kinds), 3)]
        keys = [key.astype(np.int64) for key in drawn]
        assert lexsort(keys).tolist() == np.lexsort(keys).tolist(), keys
    assert lexsort([np.zeros(0, np.int64)] * 2).tolist() == []


def test_distinct_numbers_are_ordered_without_a_sort() -> None:
    rng = np.random.default_rng(2)
    for below in [1, 2, 30, 500]:
        for count in {0, 1, below // 20, below // 2, below}:
            numbers = rng.permutation(below)[:count]
            assert argsort_distinct(numbers, below).tolist() == np.argsort(numbers).tolist()


@pytest.mark.parametrize("buckets", [1, 2, 8, 256, 257, 65_536, 65_537, 70_000])
def test_bucket_of(buckets: int) -> None:
    hashes = [int(np.iinfo(np.int64).min), -1, 0, 1, 255, 256, 65_535, 65_536, 69_999, 1 << 62]
    found = bucket_of(np.array(hashes, np.int64), buckets)
    assert found.tolist() == [hash_ % buckets for hash_ in hashes]


def test_nulls_of_different_hashes_stay_apart_where_others_collide() -> None:
    keys = [pa.array([None, "", None])]
    order, new, _ = by_key(np.array([5, 5, 7]), keys, np.arange(3))
    assert order.tolist() == [0, 1, 2]
    assert new.tolist() == [True, True, True]
    order, new, _ = by_key(np.array([5, 5, 7]), keys, np.array([1, 0, 2]))
    assert order.tolist() == [0, 1, 2]
    assert new.tolist() == [True, True, True]
