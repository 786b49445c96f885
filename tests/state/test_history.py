"""Stored versions and stream rows against plain lists: random appends, lookups and merges.

The law: whatever was merged, forgotten or restarted in between, a lookup that can still be asked
for is answered from all that was ever appended: of a versioned table as of the horizon or later, of
a stream from the horizon on. What cannot be asked for disappears. Sizes are made tiny so that a few
rows are many segments.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from bench.parameters import slow_after
from stored_runs import restored

from dovetail.arrays.hashing import stable_hash
from dovetail.laws.versioning import LATEST
from dovetail.state import run_state
from dovetail.state.blobs import MemoryBlobs
from dovetail.state.history import HistoryState, last_versions
from dovetail.state.runs import FANOUT, Runs
from dovetail.state.segment import SegmentCache

SCHEMA = pa.schema(
    [
        ("_hash", pa.int64()),
        ("_event_time", pa.int64()),
        ("_deleted", pa.bool_()),
        ("k", pa.string()),
        ("n", pa.int64()),
    ]
)
KEYS = [f"k{i}" for i in range(7)]
NEVER_STORED = "k9"
START = -(10**9)

Hashes = Callable[[str], int]
HASHES: dict[str, Hashes] = {
    "spread": lambda key: int(stable_hash([pa.array([key], pa.string())])[0]),
    "some collide": lambda key: int(key[1:]) % 3 - 1,
    "all collide": lambda key: 7,
}

New = tuple[str, int, bool]
"""Key, time, deleted."""


class Model:
    """The store beside a list of all that was appended; ``n`` numbers the rows."""

    def __init__(self, *, versioned: bool, hashes: Hashes, cache: SegmentCache) -> None:
        self.versioned = versioned
        self.hashes = {key: hashes(key) for key in [*KEYS, NEVER_STORED]}
        self.blobs = MemoryBlobs()
        self.horizon_us = START
        self.rows: dict[str, list[tuple[int, bool, int]]] = {key: [] for key in self.hashes}
        self.appended = 0
        self.open(Runs(), cache)

    def open(self, runs: Runs, cache: SegmentCache) -> None:
        self.state = HistoryState(
            SCHEMA,
            range(3, 4),
            runs,
            self.blobs,
            cache,
            versioned=self.versioned,
            horizon_us=self.horizon_us,
        )

    def append(self, new: Sequence[New], horizon_us: int) -> None:
        """Append rows in their order of arrival; the horizon moves before they are merged."""
        self.horizon_us = self.state.horizon_us = horizon_us
        rows = []
        for key, time, deleted in new:
            self.rows[key].append((time, deleted, self.appended))
            rows.append((self.hashes[key], time, deleted, key, self.appended))
            self.appended += 1
        rows.sort(key=lambda row: row[:2])
        columns = [[row[i] for row in rows] for i in range(5)]
        self.state.append(pa.table([pa.array(c) for c in columns], schema=SCHEMA))

    def restart(self, cache: SegmentCache) -> None:
        """Go on from stored bytes only."""
        self.blobs = MemoryBlobs(dict(self.blobs.blobs))
        self.open(restored(self.state.runs), cache)

    def stood(self, key: str, time: int) -> tuple[int, bool, int] | None:
        """The last version at or before a time, of one time the last to arrive."""
        return max((r for r in self.rows[key] if r[0] <= time), key=lambda r: r[::2], default=None)

    def asked(self, keys: Sequence[str]) -> tuple[list[str], np.ndarray, list[pa.Array]]:
        """Keys as a lookup wants them: by hash."""
        names = sorted(keys, key=self.hashes.__getitem__)
        hash_ = np.array([self.hashes[key] for key in names], np.int64)
        return names, hash_, [pa.array(names, pa.string())]

    def check_as_of(self, queries: Sequence[tuple[str, int]]) -> None:
        names, hash_, keys = self.asked([key for key, _ in queries])
        times = sorted(queries, key=lambda query: self.hashes[query[0]])
        found = self.state.find_as_of(hash_, keys, np.array([time for _, time in times], np.int64))
        expected = [self.stood(*query) for query in times]
        assert found.present.tolist() == [row is not None and not row[1] for row in expected]
        for i, row in enumerate(expected):
            assert (found.segment[i] >= 0) or row is None or row[1]
            if row is not None and (not row[1] or row[0] > self.horizon_us):
                assert found.event_time_us[i] == row[0]  # its tombstone is still there
        which = np.flatnonzero(found.present)[::-1]
        fetched = found.fetch(which, range(len(found.schema)))
        assert fetched.column("k").to_pylist() == [names[i] for i in which]
        rows = [expected[i] for i in which]
        assert fetched.column("n").to_pylist() == [row[2] for row in rows if row is not None]

    def check_between(self, queries: Sequence[tuple[str, int, int]]) -> None:
        queries = sorted(queries, key=lambda query: self.hashes[query[0]])
        _, hash_, keys = self.asked([key for key, _, _ in queries])
        low, high = (np.array([q[i] for q in queries], np.int64) for i in (1, 2))
        found = self.state.find_between(hash_, keys, low, high)
        numbers = found.rows.column("n").to_pylist()
        assert len(set(numbers)) == len(numbers)
        assert set(found.row.tolist()) == set(range(len(numbers)))
        for i, (key, first, last) in enumerate(queries):
            stored = {n: (time, deleted) for time, deleted, n in self.rows[key]}
            answers = [numbers[row] for row in found.row[found.query == i]]
            assert len(set(answers)) == len(answers)
            assert all(first <= stored[n][0] <= last for n in answers)
            if not self.versioned:
                assert sorted(answers) == [n for n, (t, _) in stored.items() if first <= t <= last]
                continue
            standing = {stored[n][0]: n for n in sorted(stored) if first <= stored[n][0] <= last}
            known = {stored[n][0]: n for n in answers}
            for time, n in standing.items():
                dropped = stored[n][1] and time <= self.horizon_us
                assert known.get(time) == n or dropped

    def check(self, random_: random.Random) -> None:
        """Several random questions per key that can still be asked."""
        keys = random_.choices([*KEYS, NEVER_STORED], k=random_.randint(0, 20))
        as_of = [(key, self.horizon_us + random_.randint(0, 15)) for key in keys]
        ranges = []
        if self.versioned:
            self.check_as_of([*as_of, *((key, LATEST) for key in keys[:5])])
            for key, time in as_of:
                stood = self.stood(key, time)
                ranges.append((key, time if stood is None else stood[0], LATEST))
        for key, time in as_of:
            ranges.append((key, time + int(self.versioned), time + random_.randint(-1, 9)))
        self.check_between(ranges)

    def check_blobs(self) -> None:
        """Exactly the segments that the runs name are stored."""
        runs = self.state.runs
        named = [s.id for run in runs.runs for s in run.segments]
        named += [s.id for merge in runs.merges for s in merge.done]
        assert sorted(named) == sorted(self.blobs.blobs)

    def stored_rows(self) -> int:
        return sum(s.rows for run in self.state.runs.runs for s in run.segments)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_state, "SEGMENT_BYTES_MAX", 200)


def draw(random_: random.Random, horizon_us: int, most: int) -> list[New]:
    """Rows that the horizon still lets in: few keys, few times."""
    return [
        (random_.choice(KEYS), horizon_us + random_.randint(0, 12), random_.random() < 0.4)
        for _ in range(random_.randint(0, most))
    ]


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("hashes", HASHES.values(), ids=HASHES)
@pytest.mark.parametrize("place", ["memory", "files"])
@pytest.mark.parametrize("versioned", [True, False], ids=["versioned", "stream"])
@pytest.mark.parametrize("seed", slow_after(1, [1, 0]))
def test_what_can_be_asked_for_is_answered(
    seed: int, versioned: bool, place: str, hashes: Hashes, tmp_path: Path
) -> None:
    random_ = random.Random(seed)
    directory = None if place == "memory" else tmp_path / "segments"
    model = Model(versioned=versioned, hashes=hashes, cache=SegmentCache(directory))
    model.horizon_us = 0
    steps, most = random_.choice([([0, 0, 1, 1, 4], 9), ([0, 0, 0, 0, 0, 15], 4)])
    for _ in range(35):
        # A versioned table's rows may be older than the horizon that their own batch reaches.
        horizon_us = model.horizon_us + random_.choice(steps)
        new = draw(random_, model.horizon_us if versioned else horizon_us, most)
        model.append(new, horizon_us)
        model.state.compact(random_.choice([0, 20, 60, 300, 2_000, 10**9]))
        if not versioned:
            model.state.expire(horizon_us)
        model.check(random_)
        model.check_blobs()
        if random_.random() < 0.3:
            if directory is not None and random_.random() < 0.5:
                shutil.rmtree(directory)
            model.restart(SegmentCache(directory))
            model.check(random_)


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("versioned", [True, False], ids=["versioned", "stream"])
def test_state_stays_bounded(versioned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the budget that ``store`` grants, whatever is no longer asked for goes."""
    monkeypatch.setattr(run_state, "_COMPACTION_BYTES_MIN", 0)
    random_ = random.Random(5)
    model = Model(versioned=versioned, hashes=HASHES["spread"], cache=SegmentCache())
    alive_at_most = 3 * 20 + len(KEYS)
    for batch in range(100):
        times = random_.choices(range(batch - 2, batch + 1), k=20)
        model.append([(random_.choice(KEYS), t, False) for t in times], batch - 2)
        model.state.compact(2 * model.state.runs.count_tiers() * 20 * 33)
        if not versioned:
            model.state.expire(model.horizon_us)
        model.check_blobs()
        assert model.stored_rows() < 8 * alive_at_most
        assert len(model.state.runs.runs) < 3 * FANOUT
    model.check(random_)


@pytest.mark.usefixtures("tiny")
def test_a_stream_expires_whole() -> None:
    model = Model(versioned=False, hashes=HASHES["spread"], cache=SegmentCache())
    for time in range(5):
        model.append([(key, time, False) for key in KEYS], START)
    model.state.expire(3)
    assert [run.latest_us for run in model.state.runs.runs] == [3, 4]
    model.check_blobs()
    model.state.expire(5)
    assert model.state.runs == Runs()
    assert model.blobs.blobs == {}
    assert model.state.latest_us is None


@pytest.mark.usefixtures("tiny")
def test_runs_that_are_being_merged_do_not_expire() -> None:
    model = Model(versioned=False, hashes=HASHES["spread"], cache=SegmentCache())
    for time in range(FANOUT):
        model.append([(key, time, False) for key in KEYS], START)
    model.state.compact(1)
    assert len(model.state.runs.merges) == 1
    model.append([(KEYS[0], 0, False)], START)
    model.state.expire(FANOUT)
    assert len(model.state.runs.runs) == FANOUT
    model.check_blobs()


@pytest.mark.usefixtures("tiny")
def test_a_merge_drops_the_rows_of_a_stream_before_the_horizon() -> None:
    model = Model(versioned=False, hashes=HASHES["spread"], cache=SegmentCache())
    for _ in range(FANOUT):
        model.append([(key, time, False) for key in KEYS for time in (4, 5)], 5)
    model.state.compact(10**9)
    assert model.stored_rows() == FANOUT * len(KEYS)
    model.check_between([(key, 5, LATEST) for key in KEYS])


@pytest.mark.parametrize("hashes", HASHES.values(), ids=HASHES)
def test_deleted_keys_are_dropped_in_the_end(hashes: Hashes) -> None:
    model = Model(versioned=True, hashes=hashes, cache=SegmentCache())
    for time in range(FANOUT):
        model.append([(key, time, time == FANOUT - 1) for key in KEYS], FANOUT)
        model.state.compact(10**9)
    assert model.state.runs == Runs()
    assert model.blobs.blobs == {}


@pytest.mark.usefixtures("tiny")
def test_a_merged_tombstone_still_hides_a_version_that_came_late() -> None:
    """The late one lies in a newer run and ended at the tombstone, which must outlive it."""
    model = Model(versioned=True, hashes=HASHES["some collide"], cache=SegmentCache())
    for _ in range(FANOUT):
        model.append([("k0", 8, False), ("k2", 8, True)], 0)
    model.state.compact(1)  # begins the merge: what comes now is none of its inputs
    assert len(model.state.runs.merges) == 1
    model.append([("k2", 5, False)], 0)
    model.append([("k0", 20, False)], 10)
    model.state.compact(10**9)
    model.check_as_of([("k0", LATEST), ("k2", 10), ("k2", LATEST)])


def test_last_versions_by_hand() -> None:
    def kept(versions: Sequence[tuple[int, bool]], settled_us: int) -> list[int]:
        rows = [(1, time, deleted, "a", n) for n, (time, deleted) in enumerate(versions)]
        table = pa.table([list(c) for c in zip(*rows, strict=True)], schema=SCHEMA)
        found = last_versions(table.combine_chunks(), range(3, 4), 10, settled_us)
        return found.column("n").to_pylist()

    live, dead = False, True
    assert kept([(12, live), (5, live), (9, live), (12, live)], 0) == [2, 3]
    assert kept([(5, live), (10, live), (11, live)], 0) == [1, 2]
    assert kept([(5, live), (11, live)], 0) == [0, 1]
    assert kept([(5, live), (9, dead), (11, live)], 0) == [1, 2]
    assert kept([(5, live), (9, dead), (11, live)], 10) == [2]
    assert kept([(5, live), (11, dead)], 10) == [0, 1]
    assert kept([(11, dead)], 10) == [0]
    assert kept([(5, live), (9, dead)], 9) == [1]


def test_an_empty_store_answers_nothing() -> None:
    model = Model(versioned=True, hashes=HASHES["spread"], cache=SegmentCache())
    model.append([], 0)
    assert model.blobs.blobs == {}
    model.check_as_of([(key, LATEST) for key in KEYS])
    model.check_between([(key, 0, LATEST) for key in KEYS])
