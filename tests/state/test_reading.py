"""A merge reads its inputs in their common order, a bounded step at a time, even where all rows are
equal in what orders them.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dovetail.state import run_state
from dovetail.state.blobs import MemoryBlobs
from dovetail.state.history import HistoryState
from dovetail.state.merge_extent import MergeInput, Order, step_end
from dovetail.state.queue import QueueState
from dovetail.state.run_state import RunState
from dovetail.state.runs import FANOUT, Runs, SortedRun
from dovetail.state.segment import SegmentCache, describe_segment

HISTORY = pa.schema(
    [
        ("_hash", pa.int64()),
        ("_event_time", pa.int64()),
        ("_deleted", pa.bool_()),
        ("k", pa.string()),
        ("n", pa.int64()),
    ]
)
QUEUE = pa.schema([("_due", pa.int64()), ("_event_time", pa.int64()), ("n", pa.int64())])


def inputs_of(random_: random.Random, columns: int) -> list[MergeInput]:
    """Runs of some segments, their rows numbered by run, few distinct values to each column."""
    tables: dict[str, pa.Table] = {}
    runs = []
    for number in range(random_.randint(1, 5)):
        count, most = random_.randint(1, 60), random_.choice([0, 1, 4, 100])
        rows = sorted(tuple(random_.randint(0, most) for _ in range(columns)) for _ in range(count))
        names = ["_hash", "_event_time"][:columns]
        data = {name: pa.array([row[i] for row in rows]) for i, name in enumerate(names)}
        table = pa.table({**data, "run": pa.array([number] * count)})
        segments, start = [], 0
        while start < count:
            part = table.slice(start, random_.randint(1, 20)).combine_chunks()
            segments.append(describe_segment(part, "_hash", names[-1]))
            tables[segments[-1].id] = part
            start += len(part)
        runs.append(MergeInput(SortedRun(0, tuple(segments)), lambda s: tables[s.id]))
    return runs


@pytest.mark.parametrize(
    "order",
    [Order(("_hash",)), Order(("_hash",), whole=True), Order(("_hash", "_event_time"))],
    ids=["a column", "whole", "two columns"],
)
@pytest.mark.parametrize("seed", range(40))
def test_steps_follow_the_common_order(seed: int, order: Order) -> None:
    random_ = random.Random(seed)
    inputs = inputs_of(random_, len(order.columns))
    size_bytes = random_.choice([1, 100, 400])
    read: tuple[int, ...] = (0,) * len(inputs)
    ends = tuple(i.run.rows for i in inputs)
    last: list[int] | None = None
    while read != ends:
        now = step_end(inputs, read, size_bytes, order)
        assert now != read
        assert all(a <= b for a, b in zip(read, now, strict=True))
        rows = [
            [row[name] for name in (*order.columns, "run")]
            for input_, start, end in zip(inputs, read, now, strict=True)
            for part in input_.slice_rows(start, end)
            for row in part.to_pylist()
        ]
        nbytes = 8 * (len(order.columns) + 1) * len(rows)
        if order.whole:
            assert last is None or min(rows)[0] > last[0]
        else:
            assert last is None or min(rows) >= last
            assert nbytes <= max(size_bytes, 8 * (len(order.columns) + 1) * len(inputs))
        last, read = max(rows), now


@pytest.fixture
def read_bytes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What each step of a merge reads."""
    read: list[int] = []
    step = RunState._advance_merge

    def counted(self: RunState, *arguments: Any) -> Any:
        made, size = step(self, *arguments)
        read.append(size)
        return made, size

    monkeypatch.setattr(RunState, "_advance_merge", counted)
    monkeypatch.setattr(run_state, "SEGMENT_BYTES_MAX", 64 << 10)
    return read


@pytest.mark.parametrize("same_time", [False, True])
@pytest.mark.parametrize("versioned", [False, True])
def test_a_hot_key_is_merged_within_the_budget(
    versioned: bool, same_time: bool, read_bytes: list[int]
) -> None:
    """One key's rows, many times what a step may read."""
    count = 20_000
    store = HistoryState(
        HISTORY, range(3, 4), Runs(), MemoryBlobs(), SegmentCache(), versioned=versioned
    )
    for run in range(FANOUT):
        numbers = np.arange(count) + run * count
        times = np.zeros(count) if same_time else np.arange(count) * FANOUT + (run * 3) % FANOUT
        columns = [np.full(count, 7), times.astype(np.int64), np.zeros(count, np.bool_)]
        rows = [*map(pa.array, columns), pa.array(["hot"] * count), pa.array(numbers)]
        store.append(pa.table(rows, schema=HISTORY))
    while len(store.runs.runs) > 1:
        read_bytes.clear()
        store.compact(200 << 10)
        assert sum(read_bytes) <= (200 + 64) << 10
        assert max(read_bytes) <= 64 << 10
    (run,) = store.runs.runs
    assert max(segment.size_bytes for segment in run.segments) <= 64 << 10
    key, time = pa.array(["hot"]), np.array([5 * FANOUT], np.int64)
    found = store.find_as_of(np.array([7]), [key], time)
    newest = (FANOUT - 1) * count + count - 1 if same_time else 5
    assert found.fetch(np.array([0]), [4]).column(0).to_pylist() == [newest]
    if not versioned:
        assert run.rows == FANOUT * count


def test_rows_due_at_one_time_are_merged_within_the_budget(read_bytes: list[int]) -> None:
    count = 20_000
    store = QueueState(QUEUE, Runs(), MemoryBlobs(), SegmentCache(), taken_us=0)
    for run in range(FANOUT):
        columns = [np.full(count, 9), np.full(count, 9), np.arange(count) + run * count]
        store.append(pa.table([pa.array(c) for c in columns], schema=QUEUE))
    while len(store.runs.runs) > 1:
        read_bytes.clear()
        store.compact(200 << 10)
        assert sum(read_bytes) <= (200 + 64) << 10
    assert store.take_due(9).column("n").to_pylist() == list(range(FANOUT * count))


def test_a_segment_is_cut_by_bytes(read_bytes: list[int]) -> None:
    """However the rows of a batch differ in size."""
    store = QueueState(
        pa.schema([*QUEUE, ("v", pa.string())]), Runs(), MemoryBlobs(), SegmentCache(), taken_us=0
    )
    values = ["x" * (40_000 if i % 100 < 5 else 1) for i in range(400)]
    columns = [pa.array(range(1, 401))] * 3
    store.append(pa.table([*columns, pa.array(values)], schema=store.schema))
    segments = store.runs.runs[0].segments
    assert max(segment.size_bytes for segment in segments) <= 64 << 10
    assert store.take_due(400).column("v").to_pylist() == values
