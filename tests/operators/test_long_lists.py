"""min, max, top, distinct values and collections of large groups of a table: lists in parts.

- Random rows that come, change, move and go, against plain Python: every emitted change, for all
  types, however the rows are cut, where hashes collide, with a few values in a part or segment.
- One changed row of a large group reads and writes as much where the group is ten times as large.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from bench.models.aggregates import bits
from bench.parameters import slow_after

import dovetail as dt
from dovetail import testing
from dovetail.aggregates import list_parts
from dovetail.physical.fragment import Emit
from dovetail.state import run_state
from dovetail.state.blobs import MemoryBlobs
from dovetail.state.run_state import Located
from dovetail.state.runs import FANOUT

FLOATS = [-math.inf, -0.0, 0.0, math.nan, math.inf, *(n / 4 for n in range(-40, 40))]
PAIR = pa.struct([("a", pa.int64()), ("b", pa.float64())])
VALUES: dict[pa.DataType, list[Any]] = {
    pa.int64(): [-(2**63), 2**63 - 1, *range(-40, 40)],
    pa.float64(): FLOATS,
    pa.string(): ["", "é", "\U0001f600", *(f"name-{n}" for n in range(80))],
    pa.float32(): FLOATS,
    pa.binary(): [bytes([n, 255 - n]) for n in range(40)],
    pa.timestamp("us", "UTC"): [datetime(2000, 1, 1, n, tzinfo=timezone.utc) for n in range(24)],
    pa.decimal128(38, 2): [Decimal(n).scaleb(-2) for n in range(-40, 40)],
    PAIR: [{"a": n % 7 or None, "b": n / 4 if n % 3 else math.nan} for n in range(40)],
    pa.list_(pa.int64()): [[n % 3] * (n % 11) for n in range(33)],
}
KEYS = 70


def rank(value: Any) -> Any:
    """What values are compared by."""
    if isinstance(value, float):
        return (math.isnan(value), 0 if math.isnan(value) else value, math.copysign(1, value))
    return value.encode() if isinstance(value, str) else value


class Group:
    """The rows of a group, and its values in order of arrival."""

    def __init__(self) -> None:
        self.rows: dict[int, Any] = {}
        self.values: list[Any] = []
        self.counts: Counter[str] = Counter()
        self.distinct: dict[str, Any] = {}

    def add(self, key: int, value: Any) -> None:
        self.rows[key] = value
        if value is not None:
            self.values.append(value)
            self.counts[name(value)] += 1
            self.distinct.setdefault(name(value), value)

    def remove(self, key: int, value: Any) -> None:
        del self.rows[key]
        if value is not None:
            del self.values[[name(other) for other in self.values].index(name(value))]
            self.counts[name(value)] -= 1
            if not self.counts[name(value)]:
                del self.distinct[name(value)]

    def emitted(self, ordered: bool) -> Any:
        if not self.rows:
            return None
        distinct = list(self.distinct.values())
        one_zero = {name(v + 0.0 if isinstance(v, float) else v) for v in distinct}
        shown: dict[str, Any] = {"set": distinct, "list": self.values, "distinct": len(one_zero)}
        if ordered:
            distinct.sort(key=rank)
            shown["low"], shown["high"] = (distinct[0], distinct[-1]) if distinct else (None, None)
            shown["top"] = [{"id": k, "v": self.rows[k]} for k in self.highest()[:3]]
        return bits(shown)

    def highest(self) -> list[int]:
        """The keys from the highest value down."""
        keys = sorted(key for key, value in self.rows.items() if value is not None)
        return sorted(keys, key=lambda key: rank_by(self.rows[key]), reverse=True)


def rank_by(value: Any) -> Any:
    """What rows are ordered by: zeros of either sign are one."""
    return rank(value + 0.0 if isinstance(value, float) else value)


def name(value: Any) -> str:
    return repr(bits(value))


class Model:
    """The table's rows and their groups."""

    def __init__(self, ordered: bool) -> None:
        self.ordered = ordered
        self.rows: dict[int, tuple[int, Any]] = {}
        self.groups: dict[int, Group] = {}

    def record(self, key: int, row: tuple[int, Any] | None) -> list[tuple[int, Any]]:
        """What a record emits: of the group that the row leaves, then of the one it enters."""
        old = self.rows.pop(key, None)
        groups = []
        if old is not None:
            self.groups[old[0]].remove(key, old[1])
            if row is None or row[0] != old[0]:
                groups.append(old[0])
        if row is not None:
            self.rows[key] = row
            self.groups.setdefault(row[0], Group()).add(key, row[1])
        changes = [(group, self.groups[group].emitted(self.ordered)) for group in groups]
        if row is not None:
            changes.append((row[0], self.groups[row[0]].emitted(self.ordered)))
        return changes


def topology(type_: pa.DataType, ordered: bool) -> tuple[dt.Table, dt.Table]:
    rows = testing.table("rows", key="id", schema={"id": pa.int64(), "g": pa.int64(), "v": type_})
    ends = {"low": dt.min("v"), "high": dt.max("v")} if ordered else {}
    if ordered:
        ends["top"] = dt.top(3, ["id", "v"], by="v")
    collections = {"set": dt.collect_set("v"), "list": dt.collect_list("v")}
    distinct = dt.count_distinct("v")
    return rows, rows.group_by("g").agg(**ends, **collections, distinct=distinct)


def emitted(changes: list[testing.Change]) -> list[tuple[int, Any]]:
    return [
        (change.key["g"], None if change.values is None else bits(change.values))
        for change in changes
    ]


def batches(
    random_: random.Random, values: list[Any]
) -> Iterator[list[tuple[int, tuple[int, Any] | None]]]:
    """Most rows are of group 0. It grows at once, changes, and shrinks until it is empty."""
    sizes = [KEYS, *random_.choices([1, 2, 4, 40], [8, 4, 2, 1], k=40)]
    for number, size in enumerate(sizes):
        goes = 0.0 if number == 0 else 0.1 if number < 28 else 0.6
        keys = random_.sample(range(KEYS), size)
        rows = [
            (random_.choice([0, 0, 0, 0, 0, 1, 2]), random_.choice([None, *values])) for _ in keys
        ]
        yield [(k, None if random_.random() < goes else r) for k, r in zip(keys, rows, strict=True)]
    gone = random_.sample(range(KEYS), KEYS)
    while gone:
        size = random_.choice([1, 3, 12])
        yield [(key, None) for key in gone[:size]]
        gone = gone[size:]


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(list_parts, "PART_MAX", 4)
    monkeypatch.setattr(list_parts, "_SPARSE", 2)
    monkeypatch.setattr(run_state, "SEGMENT_BYTES_MAX", 5000)
    monkeypatch.setattr(run_state, "_COMPACTION_BYTES_MIN", 500)


@pytest.mark.parametrize("type_", slow_after(3, VALUES), ids=str)
@pytest.mark.usefixtures("tiny")
def test_long_lists_in_parts(type_: pa.DataType) -> None:
    random_ = random.Random(str(type_))
    emit: Emit = random_.choice(["change", "batch"])
    collide = random_.random() < 0.3
    ordered = not pa.types.is_nested(type_)
    values = pa.array(VALUES[type_], type_).to_pylist()  # as the type rounds them
    rows, grouped = topology(type_, ordered)
    key_hash = (lambda keys: np.zeros(len(keys[0]), np.int64)) if collide else None
    driver = testing.Driver(grouped, emit=emit, key_hash=key_hash)
    model = Model(ordered)
    for batch in batches(random_, values):
        expected = []
        before = {group: held.emitted(ordered) for group, held in model.groups.items()}
        with driver.batch() as changes:
            for key, row in batch:
                own = {"id": key} if row is None else {"id": key, "g": row[0], "v": row[1]}
                driver.pipe(rows, own, timestamp=0, deleted=row is None)
                expected += model.record(key, row)
        if emit == "batch":
            net = dict(expected)
            expected = [(g, now) for g, now in net.items() if now != before.get(g)]
            assert sorted(emitted(changes), key=repr) == sorted(expected, key=repr)
        else:
            assert emitted(changes) == expected
        if random_.random() < 0.1:
            driver = testing.Driver.restore(
                grouped, driver.snapshot(), emit=emit, key_hash=key_hash
            )
    assert not model.rows


class Meter:
    """What a driver reads and writes from now on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.read_bytes = self.written_bytes = 0
        gathered, put = Located.fetch_by_segment, MemoryBlobs.put

        def read(located: Located, *args: Any) -> Any:
            found = gathered(located, *args)
            self.read_bytes += found[0].nbytes
            return found

        def written(blobs: MemoryBlobs, name: str, blob: bytes) -> None:
            self.written_bytes += len(blob)
            put(blobs, name, blob)

        monkeypatch.setattr(Located, "fetch_by_segment", read)
        monkeypatch.setattr(MemoryBlobs, "put", written)


CALLS = {
    "min": dt.min("v"),
    "max": dt.max("v"),
    "top": dt.top(3, "id", by="v"),
    "lowest": dt.top(40, ["v", "id"], by="v", descending=False),
    "count_distinct": dt.count_distinct("v"),
    "collect_set": dt.collect_set("v"),
    "collect_list": dt.collect_list("v"),
}


@pytest.mark.parametrize("type_", slow_after(1, [pa.int64(), pa.string()]), ids=str)
@pytest.mark.parametrize("call", CALLS)
def test_a_changed_row_costs_the_same_in_a_larger_group(
    call: str, type_: pa.DataType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reads of a collection do not: its result is as large as the group. The index of the parts is
    read as a whole, which shows where hardly anything else is.
    """
    costs = []
    random_ = random.Random(call)
    for size in (6_000, 60_000):
        schema = {"id": pa.int64(), "g": pa.int64(), "v": type_}
        rows = testing.table("rows", key="id", schema=schema)
        driver = testing.Driver(rows.group_by("g").agg(a=CALLS[call]), emit="batch")
        values = pa.array(random_.sample(range(10**6, 2 * 10**6), size)).cast(type_).to_pylist()
        driver.pipe(rows, [{"id": n, "g": 0, "v": v} for n, v in enumerate(values)], timestamp=0)
        low, middle, high = (values.index(sorted(values)[at]) for at in (0, size // 2, -1))
        with monkeypatch.context() as patch:
            meter = Meter(patch)
            for key in [low, high, *random_.sample(range(size), FANOUT - 4)]:
                driver.pipe(rows, {"id": key, "g": 0, "v": values[middle]}, timestamp=1)
        costs.append(meter)
    small, large = costs
    assert large.written_bytes < 1.3 * small.written_bytes
    if not call.startswith("collect"):
        most = 1.5 if call == "count_distinct" else 1.3
        assert large.read_bytes < most * small.read_bytes
