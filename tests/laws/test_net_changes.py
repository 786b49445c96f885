"""Commits change of each key what is left of it, whatever else they say."""

from __future__ import annotations

import random
from collections import defaultdict

import numpy as np
import pyarrow as pa
import pytest

from dovetail.laws.net_changes import find_net_changes


def kept(changes: list[tuple[int, int, bool, float | None]]) -> list[int]:
    """By their numbers; a change is a commit, a key, whether the row goes, and the row."""
    commit, key, gone, row = zip(*changes, strict=True)
    stays = find_net_changes(
        [pa.array(key)],
        np.array(commit),
        np.array(gone),
        [pa.array(key), pa.array(row, pa.float64()), pa.array([[v] for v in row])],
    )
    return np.flatnonzero(stays).tolist()


def test_the_table_in_the_modules_text() -> None:
    a, b, c, d, e = map(float, range(5))
    assert kept(
        [
            *((7, 1, True, a), (7, 1, False, b), (7, 2, True, c), (7, 2, False, c)),
            *((7, 3, True, d), (8, 3, False, e)),
        ]
    ) == [1, 4, 5]


def test_a_key_that_is_none_loses_nothing() -> None:
    assert kept([(1, 1, True, 0.0), (1, 1, False, 0.0), (1, 1, False, 1.0)]) == [1, 2]


@pytest.mark.parametrize("seed", range(20))
def test_a_tables_commits_change_by_the_rows_that_differ(seed: int) -> None:
    """Rows are rewritten at random, equal ones too; a commit's changes come in any order."""
    draw = random.Random(seed)
    values = [None, float("nan"), -0.0, 0.0, 1.5]
    table: dict[int, float | None] = {}
    changes, expected = [], []
    for commit in range(30):
        before = dict(table)
        said = []
        for key in range(4):
            if draw.random() < 0.5:
                continue
            if key in table:
                said.append((commit, key, True, table.pop(key)))
            if draw.random() < 0.7:
                table[key] = draw.choice(values)
                said.append((commit, key, False, table[key]))
        draw.shuffle(said)
        for change in said:
            _, key, gone, _ = change
            same = key in before and key in table and repr(before[key]) == repr(table[key])
            if gone != (key in table) and not same:
                expected.append(len(changes))
            changes.append(change)
    assert kept(changes) == expected
    of_key = defaultdict(int)
    for number in expected:
        of_key[changes[number][:2]] += 1
    assert set(of_key.values()) == {1}
