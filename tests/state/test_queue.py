"""Rows that wait against a list: each is taken once, when it is due, whatever was merged between.

Sizes are made tiny so that a few rows are many segments.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from stored_runs import restored

from dovetail.state import run_state
from dovetail.state.blobs import MemoryBlobs
from dovetail.state.queue import QueueState
from dovetail.state.runs import FANOUT, Runs
from dovetail.state.segment import SegmentCache

SCHEMA = pa.schema([("_due", pa.int64()), ("_event_time", pa.int64()), ("n", pa.int64())])
FAR = 10**12


class Model:
    """The store beside the list of what waits in it, as (due, number of arrival)."""

    def __init__(self, cache: SegmentCache) -> None:
        self.blobs = MemoryBlobs()
        self.taken_us = -1
        self.waiting: list[tuple[int, int]] = []
        self.appended = 0
        self.open(Runs(), cache)

    def open(self, runs: Runs, cache: SegmentCache) -> None:
        self.state = QueueState(SCHEMA, runs, self.blobs, cache, taken_us=self.taken_us)

    def append(self, dues: Sequence[int]) -> None:
        rows = sorted((due, self.appended + i) for i, due in enumerate(dues))
        self.appended += len(dues)
        self.waiting += rows
        columns = [[due for due, _ in rows], [-due for due, _ in rows], [n for _, n in rows]]
        self.state.append(pa.table([pa.array(c, pa.int64()) for c in columns], schema=SCHEMA))

    def take(self, upto_us: int) -> None:
        found = self.state.take_due(upto_us)
        assert found.schema == SCHEMA
        expected = sorted(row for row in self.waiting if row[0] <= upto_us)
        assert [(row["_due"], row["n"]) for row in found.to_pylist()] == expected
        assert all(row["_event_time"] == -row["_due"] for row in found.to_pylist())
        self.waiting = [row for row in self.waiting if row[0] > upto_us]
        self.taken_us = max(self.taken_us, upto_us)

    def restart(self, cache: SegmentCache) -> None:
        """Go on from stored bytes and the time up to which rows were taken."""
        self.blobs = MemoryBlobs(dict(self.blobs.blobs))
        self.open(restored(self.state.runs), cache)

    def check_blobs(self) -> None:
        """Exactly the segments that the runs name are stored."""
        runs = self.state.runs
        named = [s.id for run in runs.runs for s in run.segments]
        named += [s.id for merge in runs.merges for s in merge.done]
        assert sorted(named) == sorted(self.blobs.blobs)

    def stored_rows(self) -> int:
        return sum(s.rows for run in self.state.runs.runs for s in run.segments)


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_state, "SEGMENT_BYTES_MAX", 100)


@pytest.mark.parametrize("place", ["memory", "files"])
@pytest.mark.parametrize("seed", range(4))
def test_each_row_is_taken_once_when_it_is_due(seed: int, place: str, tmp_path: Path) -> None:
    random_ = random.Random(seed)
    directory = None if place == "memory" else tmp_path / "segments"
    model = Model(SegmentCache(directory))
    for _ in range(60):
        model.take(model.taken_us + random_.choice([0, 0, 1, 2, 5]))
        ahead = random_.choice([3, 30])
        dues = [model.taken_us + random_.randint(1, ahead) for _ in range(random_.randint(0, 12))]
        model.append(dues)
        model.state.compact(random_.choice([0, 1, 100, 1_000, 10**9]))
        model.check_blobs()
        if random_.random() < 0.3:
            model.restart(SegmentCache(directory))
    model.take(FAR)
    model.state.compact(10**9)
    model.state.expire_due()
    model.check_blobs()
    assert model.waiting == []
    assert model.state.runs.merges == ()
    assert model.stored_rows() == 0


def test_what_was_taken_goes_while_some_rows_wait_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the budget that ``store`` grants; every batch has one row that is never due."""
    monkeypatch.setattr(run_state, "_COMPACTION_BYTES_MIN", 0)
    model = Model(SegmentCache())
    for batch in range(80):
        model.take(batch)
        model.append([*(batch + 1 + i % 3 for i in range(9)), FAR])
        model.state.compact(2 * model.state.runs.count_tiers() * 10 * 24)
        model.check_blobs()
        assert len(model.state.runs.runs) < 3 * FANOUT
        assert model.stored_rows() < 2 * batch + 10 * 3 * FANOUT
    model.restart(SegmentCache())
    model.take(FAR)


def test_a_run_of_which_all_was_taken_is_dropped() -> None:
    model = Model(SegmentCache())
    model.append([1, 2, 2, 3] * 5)
    model.append([2, 9])
    assert len(model.state.runs.runs[0].segments) > 1
    model.take(2)
    assert len(model.state.runs.runs) == 2
    model.take(3)
    assert len(model.state.runs.runs) == 1
    model.check_blobs()
    model.take(9)
    assert model.state.runs == Runs()
    assert model.blobs.blobs == {}


def test_an_earlier_time_takes_nothing_and_brings_nothing_back() -> None:
    model = Model(SegmentCache())
    model.append([1, 5, 8])
    model.take(5)
    model.take(2)
    model.take(5)
    model.take(8)
    assert model.waiting == []


def test_rows_due_in_the_same_moment_keep_their_order_through_merges() -> None:
    model = Model(SegmentCache())
    for _ in range(2 * FANOUT + 3):
        model.append([7] * 5)
        model.state.compact(10**9)
    assert max(run.tier for run in model.state.runs.runs) > 0
    model.take(7)
