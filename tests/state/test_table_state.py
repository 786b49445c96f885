"""A table's stored rows against a dictionary: random appends, lookups and merges.

The law: whatever was merged, forgotten or restarted in between, a lookup gives the last row that
was appended for its key. Sizes are made tiny so that a few rows are many segments.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from stored_runs import restored

from dovetail.arrays.hashing import stable_hash
from dovetail.errors import StateError
from dovetail.state import run_state, segment
from dovetail.state.blobs import MemoryBlobs
from dovetail.state.run_state import RunState
from dovetail.state.runs import FANOUT, Runs
from dovetail.state.segment import SegmentCache
from dovetail.state.table_state import TableState, newest_of_key

SCHEMA = pa.schema(
    [
        ("_hash", pa.int64()),
        ("_event_time", pa.int64()),
        ("_deleted", pa.bool_()),
        ("k", pa.string()),
        ("v", pa.string()),
    ]
)
KEYS = [f"k{i}" for i in range(50)]
LOWEST, HIGHEST = np.iinfo(np.int64).min, np.iinfo(np.int64).max

HASHES: dict[str, Callable[[list[str]], list[int]]] = {
    "spread": lambda keys: stable_hash([pa.array(keys, pa.string())]).tolist(),
    "some collide": lambda keys: [hash_of(key) % 5 - 2 for key in keys],
    "all collide": lambda keys: [7] * len(keys),
    "at the ends": lambda keys: [(LOWEST, HIGHEST, HIGHEST - 1)[hash_of(k) % 3] for k in keys],
}


def hash_of(key: str) -> int:
    return int(key[1:])


class Model:
    """The stored table beside a dictionary of what it should hold."""

    def __init__(self, hashes: Callable[[list[str]], list[int]], cache: SegmentCache) -> None:
        self.hashes = hashes
        self.blobs = MemoryBlobs()
        self.cache = cache
        self.state = TableState(SCHEMA, 1, Runs(), self.blobs, cache)
        self.rows: dict[str, tuple[int, bool, str]] = {}
        self.appended = 0

    def rows_of(self, keys: list[str], rows: dict[str, tuple[int, bool, str]]) -> pa.Table:
        ordered = sorted(zip(self.hashes(keys), keys, strict=True))
        columns = zip(*((hash_, *rows[k][:2], k, rows[k][2]) for hash_, k in ordered), strict=True)
        arrays = [pa.array(c, t) for c, t in zip(columns, SCHEMA.types, strict=True)]
        return pa.table(arrays, schema=SCHEMA)

    def append(self, random_: random.Random, *, keys: list[str], deletes: float) -> int:
        self.appended += 1
        new = {
            key: (self.appended, random_.random() < deletes, f"{key} {self.appended}")
            for key in keys
        }
        self.rows |= new
        return self.state.append(self.rows_of(keys, new))

    def check(self, keys: list[str]) -> None:
        ordered = sorted(zip(self.hashes(keys), keys, strict=True))
        names = [key for _, key in ordered]
        hashes = np.array([hash_ for hash_, _ in ordered], dtype=np.int64)
        found = self.state.locate(hashes, [pa.array(names, pa.string())])
        present = [key in self.rows and not self.rows[key][1] for key in names]
        assert found.present.tolist() == present
        which = np.flatnonzero(found.present)
        random.Random(len(which)).shuffle(which)
        fetched = found.fetch(which, range(len(found.schema)))
        expected = [self.rows[names[i]] for i in which]
        assert fetched.column("k").to_pylist() == [names[i] for i in which]
        assert fetched.column("v").to_pylist() == [value for _, _, value in expected]
        assert found.event_time_us[which].tolist() == [time for time, _, _ in expected]

    def restart(self, cache: SegmentCache) -> None:
        """Go on from stored bytes only."""
        runs = restored(self.state.runs)
        self.blobs = MemoryBlobs(dict(self.blobs.blobs))
        self.cache = cache
        self.state = TableState(SCHEMA, 1, runs, self.blobs, cache)

    def check_blobs(self) -> None:
        """Exactly the segments that the runs name are stored."""
        runs = self.state.runs
        named = [s.id for run in runs.runs for s in run.segments]
        named += [s.id for merge in runs.merges for s in merge.done]
        assert sorted(named) == sorted(self.blobs.blobs)
        for run in runs.runs:
            ranges = [(s.first, s.last) for s in run.segments]
            assert all(first <= last for first, last in ranges)
            assert ranges == sorted(ranges)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_state, "SEGMENT_BYTES_MAX", 200)


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("hashes", HASHES.values(), ids=HASHES)
@pytest.mark.parametrize("place", ["memory", "files"])
@pytest.mark.parametrize("seed", range(2))
def test_a_lookup_gives_the_last_row(
    seed: int, place: str, hashes: Callable[[list[str]], list[int]], tmp_path: Path
) -> None:
    random_ = random.Random(seed)

    def cache() -> SegmentCache:
        return SegmentCache(None if place == "memory" else tmp_path / "segments")

    model = Model(hashes, cache())
    for _ in range(40):
        model.append(
            random_, keys=random_.sample(KEYS, random_.randint(1, 9)), deletes=random_.random()
        )
        if random_.random() < 0.9:
            model.state.compact(random_.choice([0, 1, 300, 2_000, 10**9]))
        chance = random_.random()
        if chance < 0.2:
            model.restart(cache())
        elif chance < 0.3:
            shutil.rmtree(tmp_path / "segments", ignore_errors=True)
            model.restart(cache())
        elif chance < 0.4 and place == "files":
            for path in (tmp_path / "segments").iterdir():
                if random_.random() < 0.5:
                    path.unlink()
            model.restart(cache())
        model.check(random_.sample(KEYS, random_.randint(0, len(KEYS))))
        model.check_blobs()
    model.check(KEYS)


@pytest.mark.usefixtures("tiny")
def test_a_key_that_was_never_stored_is_not_found() -> None:
    model = Model(HASHES["all collide"], SegmentCache())
    model.check(KEYS)
    model.append(random.Random(0), keys=KEYS[:3], deletes=0)
    model.check(KEYS)


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("hashes", HASHES.values(), ids=HASHES)
def test_tombstones_are_dropped_in_the_end(hashes: Callable[[list[str]], list[int]]) -> None:
    random_ = random.Random(1)
    model = Model(hashes, SegmentCache())
    for number in range(FANOUT):
        model.append(random_, keys=KEYS, deletes=float(number >= FANOUT // 2))
        model.state.compact(10**9)
        model.check(KEYS)
    assert all(deleted for _, deleted, _ in model.rows.values())
    assert model.state.runs == Runs()
    assert model.blobs.blobs == {}


@pytest.mark.usefixtures("tiny")
def test_a_tombstone_stays_while_an_older_row_lies_below() -> None:
    random_ = random.Random(1)
    model = Model(HASHES["spread"], SegmentCache())
    for start in range(FANOUT):  # a tier above, of all keys
        model.append(random_, keys=KEYS[start::FANOUT], deletes=0)
    model.state.compact(10**9)
    assert [run.tier for run in model.state.runs.runs] == [1]
    for _ in range(FANOUT):
        model.append(random_, keys=KEYS[:5], deletes=1)
    model.state.compact(10**9)
    model.check(KEYS)
    newer = [run for run in model.state.runs.runs if run.tier == 0]
    assert sum(s.rows for run in newer for s in run.segments) == 5


@pytest.mark.usefixtures("tiny")
def test_a_call_reads_about_its_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """However large the state, a call merges its budget's worth; a merge that is cut goes on."""
    read: list[int] = []
    step = RunState._advance_merge

    def counted(self: RunState, *arguments: Any) -> Any:
        made, read_bytes = step(self, *arguments)
        read.append(read_bytes)
        return made, read_bytes

    monkeypatch.setattr(RunState, "_advance_merge", counted)
    random_ = random.Random(3)
    model = Model(HASHES["spread"], SegmentCache())
    keys = [f"k{i}" for i in range(1_000)]
    for part in range(FANOUT):
        model.append(random_, keys=keys[part::FANOUT], deletes=0.1)
    calls = 0
    while len(model.state.runs.runs) > 1:
        read.clear()
        model.state.compact(3_000)
        assert sum(read) <= 3_000 + 6 * 200
        calls += 1
        model.restart(SegmentCache())
        if calls % 10 == 0:
            model.check(random_.sample(keys, 20))
            model.check_blobs()
    assert calls > 10
    model.check(keys)
    model.check_blobs()


@pytest.mark.parametrize("budget_bytes", [10**9, 25_000])
def test_a_merge_makes_segments_of_full_size(
    budget_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not a tail of ever smaller ones: every segment costs a file and a state call."""
    monkeypatch.setattr(run_state, "SEGMENT_BYTES_MAX", 4_000)
    model = Model(HASHES["spread"], SegmentCache())
    for part in range(FANOUT):
        keys = [f"k{i}" for i in range(part, 6_400, FANOUT)]
        model.append(random.Random(part), keys=keys, deletes=0)
    size = sum(run.size_bytes for run in model.state.runs.runs)
    while len(model.state.runs.runs) > 1:
        model.state.compact(budget_bytes)
    (merged,) = model.state.runs.runs
    assert len(merged.segments) < 1.5 * size / 4_000


@pytest.mark.usefixtures("tiny")
def test_nothing_is_read_without_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model(HASHES["spread"], SegmentCache())
    for _ in range(FANOUT):
        model.append(random.Random(0), keys=KEYS, deletes=0)
    monkeypatch.setattr(RunState, "_advance_merge", None)
    model.state.compact(0)
    model.check(KEYS)


def test_appending_nothing_writes_nothing() -> None:
    model = Model(HASHES["spread"], SegmentCache())
    assert model.state.append(SCHEMA.empty_table()) == 0
    assert model.blobs.blobs == {}
    assert model.state.runs == Runs()


def test_write_amplification_is_low(monkeypatch: pytest.MonkeyPatch) -> None:
    """Distinct keys, merged as the stage does: each byte is rewritten about once a tier."""
    written = 0
    encode = run_state.encode

    def counted(table: pa.Table) -> bytes:
        nonlocal written
        written += table.nbytes
        return encode(table)

    monkeypatch.setattr(run_state, "encode", counted)
    model = Model(HASHES["spread"], SegmentCache())
    appended = 0
    for batch in range(200):
        keys = [f"k{i}" for i in range(batch * 50, batch * 50 + 50)]
        size = model.append(random.Random(batch), keys=keys, deletes=0)
        model.state.compact(2 * model.state.runs.count_tiers() * size + 1_000)
        appended += size
    assert len(model.state.runs.runs) < 4 * FANOUT
    assert written < 4 * appended


@pytest.mark.parametrize("deleted", [False, True])
def test_newest_of_key_takes_the_last_piece(deleted: bool) -> None:
    def piece(rows: list[tuple[int, str, str]]) -> pa.Table:
        columns = zip(*((h, 0, deleted, k, v) for h, k, v in rows), strict=True)
        return pa.table([list(c) for c in columns], schema=SCHEMA)

    old = piece([(1, "a", "old"), (1, "b", "old"), (2, "c", "old")])
    new = piece([(1, "b", "new"), (1, "d", "new"), (3, "e", "new")])
    merged = newest_of_key([old, new], range(3, 4))
    assert merged.column("_hash").to_pylist() == [1, 1, 1, 2, 3]
    found = dict(zip(merged.column("k").to_pylist(), merged.column("v").to_pylist(), strict=True))
    assert found == {"a": "old", "b": "new", "c": "old", "d": "new", "e": "new"}
    assert newest_of_key([SCHEMA.empty_table()], range(3, 4)).num_rows == 0


def test_a_segment_of_another_version_is_refused() -> None:
    blob = segment.encode(SCHEMA.empty_table())
    assert segment.decode(blob).schema == SCHEMA
    with pytest.raises(StateError, match="format version 9, this version of dovetail reads 1"):
        segment.decode(bytes([9]) + blob[1:])
