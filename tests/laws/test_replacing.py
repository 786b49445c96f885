"""Rows of a key in several logs, against their order written out, however they are cut."""

from __future__ import annotations

import random

import numpy as np
import pytest

from dovetail.laws.logs import find_effective_rows

Row = tuple[int, int, int, int]
"""Key, log, place and time."""


def drawn(seed: int) -> list[Row]:
    """Rows of a few keys in three logs, in the order in which some reader brings them."""
    random_ = random.Random(seed)
    logs = [
        [
            (random_.randrange(3), log, place, place + random_.randrange(8))
            for place in range(random_.randrange(9))
        ]
        for log in range(3)
    ]
    rows = []
    while any(logs):
        rows.append(random_.choice([log for log in logs if log]).pop(0))
    return rows


def newest(rows: list[Row]) -> dict[int, Row]:
    """By key the row that is there in the end: its order is by age, log and place."""
    ages: dict[tuple[int, int], int] = {}
    last: dict[int, tuple[tuple[int, int, int], Row]] = {}
    for row in rows:
        key, log, place, time = row
        ages[key, log] = max(time, ages.get((key, log), time))
        rank = (ages[key, log], log, place)
        if key not in last or rank > last[key][0]:
            last[key] = rank, row
    return {key: row for key, (_, row) in last.items()}


def read(rows: list[Row], cuts: list[int]) -> dict[int, Row]:
    """By key the row that is there once these have come in several micro-batches. Between them only
    the age and the log of each key's row is known.
    """
    last: dict[int, Row] = {}
    known: dict[int, tuple[int, int]] = {}
    for start, end in zip([0, *cuts], [*cuts, len(rows)], strict=True):
        came = rows[start:end]
        before = [(key, log, -1, age) for key, (age, log) in known.items()]
        all_rows = sorted([*before, *came], key=lambda row: row[0])
        if not all_rows:
            continue
        key, log, place, time = np.array(all_rows).T
        group = np.unique(key, return_inverse=True)[1]
        effect, age, ends = find_effective_rows(group, log, place, time)
        for number, row in enumerate(all_rows):
            if effect[number] and row[2] >= 0:
                last[row[0]] = row
        known = {int(key[n]): (int(age[n]), int(log[n])) for n in ends}
    return last


@pytest.mark.parametrize("part", range(4))
def test_the_newest_row_is_there_wherever_micro_batches_end(part: int) -> None:
    for seed in range(part * 100, part * 100 + 100):
        rows = drawn(seed)
        random_ = random.Random(seed)
        cuts = sorted(random_.choices(range(len(rows) + 1), k=random_.randrange(5)))
        assert read(rows, cuts) == newest(rows), seed


def test_within_a_log_a_later_row_replaces_one_of_any_time() -> None:
    assert read([(0, 1, 0, 9), (0, 1, 1, 3)], [1]) == {0: (0, 1, 1, 3)}


def test_between_logs_time_decides() -> None:
    assert read([(0, 1, 0, 9), (0, 0, 0, 3)], [1]) == {0: (0, 1, 0, 9)}
