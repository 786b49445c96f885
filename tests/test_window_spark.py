"""Aggregates and windowed tables in streaming queries: several micro-batches, the query restarted
between them, the key space in two parts.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from answers import by_key, flat
from naive import Record
from window_gathering import Windows
from window_model import Joined, Result, View, each_batch, each_record, in_key_order, seen
from window_runners import stream

KEYS = "abcdefghij"


def test_a_table_by_group(spark: Any, tmp_path: Path) -> None:
    """Of each batch the net changes: rows move between groups of both parts."""
    random_ = random.Random(7)
    batches = []
    for batch in range(4):
        records = []
        for number in range(25):
            deleted = random_.random() < 0.2
            value = None if deleted else (random_.choice(["x", "y", "z", "w", None]), "A")
            records.append(Record("G", random_.choice(KEYS), 100 * batch + number, value, deleted))
        batches.append(records)
    answers = stream(spark, tmp_path, View("G"), batches, emit="batch", restart=True, buckets=2)
    expected = [seen(part) for part in each_batch(View("G"), batches)]
    assert [*map(in_key_order, answers)] == expected
    assert any(result.values is None for result in flat(answers))


def test_windows_of_two_streams_and_a_table_when_they_are_final(spark: Any, tmp_path: Path) -> None:
    """Windows of keys without further records come out, too, in the batch that closes them."""
    windows = Windows("hopping", 20, 10, 5)
    join = Joined(Joined("L", "outer", "R"), "left", "T")
    view = View(join, (("L", windows), ("R", windows)), final=True)
    random_ = random.Random(8)
    batches = [[Record("T", key, 0, f"t{key}", False) for key in KEYS[:6]]]
    for batch in range(4):
        records = []
        for number in range(20):
            key, side = random_.choice(KEYS), random_.choice("LR")
            records.append(Record(side, key, 20 * batch + number, "A", False))
        batches.append(records)
    answers = stream(spark, tmp_path, view, batches, restart=True, buckets=2)
    changes = each_record(view, flat(batches))
    expected: list[list[Result]] = [flat(seen(next(changes)) for _ in batch) for batch in batches]
    assert [*map(by_key, answers)] == [*map(by_key, expected)]
    assert len(flat(answers)) > 20
