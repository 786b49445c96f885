"""A table's stored rows by a part of their key, against a dictionary: random appends and merges.

The law: whatever was merged, forgotten or restarted in between, a scan gives each key that begins
with what is asked, once, with the last row that was appended for it, and no deleted ones. Rows are
ordered as subscriptions are, by half of the prefix's hash and half of the rest's. Sizes are made
tiny so that a few rows are many segments.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pytest
from stored_runs import restored

from dovetail.arrays.hashing import combine_hashes, combined_hash_range, stable_hash
from dovetail.state import run_state
from dovetail.state.blobs import MemoryBlobs
from dovetail.state.run_state import Located
from dovetail.state.runs import FANOUT, Runs
from dovetail.state.segment import SegmentCache
from dovetail.state.table_state import TableState

Prefix: TypeAlias = "tuple[str | None, int | None]"
Key: TypeAlias = "tuple[str | None, int | None, str]"
Row: TypeAlias = "tuple[int, bool, str]"

SCHEMA = pa.schema(
    [
        ("_hash", pa.int64()),
        ("_event_time", pa.int64()),
        ("_deleted", pa.bool_()),
        ("f", pa.string()),
        ("g", pa.int64()),
        ("p", pa.string()),
        ("v", pa.string()),
    ]
)
PREFIXES: list[Prefix] = [(f, g) for f in ("a", "b", "", None) for g in (0, 1, None)]
KEYS: list[Key] = [(*prefix, f"p{i}") for prefix in PREFIXES for i in range(8)]

LOWEST, HIGHEST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


def spread(values: Sequence[tuple[Any, ...]]) -> list[int]:
    columns = [pa.array(column) for column in zip(*values, strict=True)]
    return [int(h) for h in stable_hash(columns)]


def at_the_ends(values: Sequence[tuple[Any, ...]]) -> list[int]:
    return [(LOWEST, HIGHEST, -1, 0)[hash_ % 4] for hash_ in spread(values)]


def one(values: Sequence[tuple[Any, ...]]) -> list[int]:
    return [7] * len(values)


Hashes: TypeAlias = "Callable[[Sequence[tuple[Any, ...]]], list[int]]"

# Of the prefix, then of the rest of the key.
HASHES: dict[str, tuple[Hashes, Hashes]] = {
    "spread": (spread, spread),
    "prefixes collide": (one, spread),
    "rests collide": (spread, one),
    "all collide": (one, one),
    "at the ends": (at_the_ends, at_the_ends),
}


def columns_of(values: Sequence[tuple[Any, ...]], first: int) -> list[pa.Array]:
    """Values as columns of the schema, from its ``first`` on."""
    width = len(values[0]) if values else 0
    types = SCHEMA.types[first : first + width]
    return [pa.array([v[i] for v in values], types[i]) for i in range(width)]


class Model:
    """The stored table beside a dictionary of what it should hold."""

    def __init__(self, hashes: tuple[Hashes, Hashes]) -> None:
        self.hashes = hashes
        self.blobs = MemoryBlobs()
        self.state = TableState(SCHEMA, 3, Runs(), self.blobs, SegmentCache())
        self.rows: dict[Key, Row] = {}
        self.appended = 0

    def ordered(self, keys: Sequence[Key]) -> tuple[Any, list[Key]]:
        """Keys in the store's order, with the number that orders them."""
        by_prefix, by_rest = self.hashes
        hash_ = np.array(by_prefix([key[:2] for key in keys]), np.int64)
        place = np.array(by_rest([key[2:] for key in keys]), np.int64)
        order = combine_hashes(hash_, place)
        arranged = np.argsort(order, kind="stable")
        return order[arranged], [keys[i] for i in arranged]

    def append(self, random_: random.Random, *, keys: list[Key], deletes: float) -> None:
        self.appended += 1
        new = {key: (self.appended, random_.random() < deletes, str(self.appended)) for key in keys}
        self.rows |= new
        order, arranged = self.ordered(keys)
        values = [(*new[key][:2], *key, new[key][2]) for key in arranged]
        self.state.append(pa.table([pa.array(order), *columns_of(values, 1)], schema=SCHEMA))

    def scan(self, prefixes: Sequence[Prefix]) -> tuple[list[Prefix], Any]:
        """A scan for these prefixes, in the order in which they are asked."""
        hashes = self.hashes[0](prefixes) if prefixes else []
        arranged = sorted(range(len(prefixes)), key=lambda i: hashes[i] >> 32)
        asked = [prefixes[i] for i in arranged]
        low, high = combined_hash_range(np.array([hashes[i] for i in arranged], np.int64))
        prefix = columns_of(asked, 3) if asked else [pa.array([], t) for t in SCHEMA.types[3:5]]
        return asked, self.state.scan(low, high, prefix)

    def check(self, prefixes: Sequence[Prefix]) -> None:
        asked, found = self.scan(prefixes)
        rows = found.located.fetch(np.arange(len(found.query)), range(1, 7)).to_pylist()
        scanned = [
            (asked[q], (row["f"], row["g"], row["p"]), (row["_event_time"], False, row["v"]))
            for q, row in zip(found.query, rows, strict=True)
        ]
        standing = {key: row for key, row in self.rows.items() if not row[1]}
        assert len(scanned) == len({key for _, key, _ in scanned})
        assert all(key[:2] == prefix for prefix, key, _ in scanned)
        expected = {key: row for key, row in standing.items() if key[:2] in asked}
        assert {key: row for _, key, row in scanned} == expected

    def restart(self) -> None:
        """Go on from stored bytes only."""
        runs = restored(self.state.runs)
        self.blobs = MemoryBlobs(dict(self.blobs.blobs))
        self.state = TableState(SCHEMA, 3, runs, self.blobs, SegmentCache())


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_state, "SEGMENT_BYTES_MAX", 300)


@pytest.mark.parametrize("hashes", HASHES.values(), ids=HASHES)
@pytest.mark.parametrize("seed", range(2))
def test_a_scan_gives_the_last_rows(seed: int, hashes: tuple[Hashes, Hashes]) -> None:
    random_ = random.Random(seed)
    model = Model(hashes)
    for _ in range(40):
        keys = random_.sample(KEYS, random_.randint(1, 15))
        model.append(random_, keys=keys, deletes=random_.random())
        if random_.random() < 0.9:
            model.state.compact(random_.choice([0, 1, 300, 2_000, 10**9]))
        if random_.random() < 0.3:
            model.restart()
        model.check(random_.sample(PREFIXES, random_.randint(0, len(PREFIXES))))
    model.check(PREFIXES)


@pytest.mark.parametrize("hashes", HASHES.values(), ids=HASHES)
def test_what_was_never_stored_is_not_found(hashes: tuple[Hashes, Hashes]) -> None:
    model = Model(hashes)
    model.check(PREFIXES)
    model.append(random.Random(0), keys=KEYS[:3], deletes=0)
    model.check(PREFIXES)
    model.check([])


@pytest.mark.parametrize("hashes", HASHES.values(), ids=HASHES)
def test_a_deleted_row_does_not_come_back(hashes: tuple[Hashes, Hashes]) -> None:
    """Merged or not, the tombstone stands before the row; in the end both are gone."""
    random_ = random.Random(1)
    model = Model(hashes)
    model.append(random_, keys=KEYS, deletes=0)
    for start in range(FANOUT - 1):
        model.append(random_, keys=KEYS[start :: FANOUT - 1], deletes=1)
        model.check(PREFIXES)
        model.restart()
        model.check(PREFIXES)
    model.state.compact(10**9)
    model.check(PREFIXES)
    assert model.state.runs == Runs()


def test_a_scan_reads_only_what_its_range_touches(monkeypatch: pytest.MonkeyPatch) -> None:
    """One prefix of many costs as many rows as it has, in segments as small as a row or few."""
    model = Model(HASHES["spread"])
    keys: list[Key] = [(f"f{i}", i, "p") for i in range(300)]
    model.append(random.Random(0), keys=keys, deletes=0)
    segments = sum(len(run.segments) for run in model.state.runs.runs)
    opened = []
    open_ = TableState._open_segment

    def counted(self: TableState, segment: Any) -> Any:
        opened.append(segment)
        return open_(self, segment)

    monkeypatch.setattr(TableState, "_open_segment", counted)
    model.check([("f7", 7)])
    assert segments > 20
    assert len(opened) == 1


def located(model: Model, keys: Sequence[Key]) -> tuple[list[Key], Located]:
    order, arranged = model.ordered(keys)
    return arranged, model.state.locate(order, columns_of(arranged, 3))


def test_some_answers_and_answers_side_by_side() -> None:
    """What is found by key and what is found by prefix is fetched alike; the absent stay absent."""
    random_ = random.Random(3)
    model = Model(HASHES["spread"])
    for _ in range(5):
        model.append(random_, keys=random_.sample(KEYS, 20), deletes=0.3)
    one_key, one_ = located(model, random_.sample(KEYS, 40))
    other_key, other = located(model, random_.sample(KEYS, 40))
    _, scanned = model.scan(PREFIXES[:4])
    which = [5, 3, 3, 39, 0]
    both = one_.take(np.array(which)).concatenate(other).concatenate(scanned.located)
    asked = [*(one_key[i] for i in which), *other_key]
    rows = [model.rows.get(key) for key in asked]
    assert [s >= 0 for s in both.segment[: len(asked)]] == [row is not None for row in rows]
    assert both.present.tolist() == [
        *(row is not None and not row[1] for row in rows),
        *[True] * len(scanned.query),
    ]
    present = np.flatnonzero(both.present).tolist()
    at = random_.sample(present, len(present))
    fetched = both.fetch(np.array(at), range(3, 7)).to_pylist()
    for number, row in zip(at, fetched, strict=True):
        key = (row["f"], row["g"], row["p"])
        assert number >= len(asked) or asked[number] == key
        assert number >= len(asked) or both.event_time_us[number] == model.rows[key][0]
        assert row["v"] == model.rows[key][2]
