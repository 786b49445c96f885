"""The laws of tables whose rows expire: what comes out is what the definition says, however records
are cut, restarted and spread; it adds up to the rows that are young enough; and whoever reads such
a table does as with one of that changelog. What has expired leaves the disk.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from itertools import accumulate
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from bench import runners
from bench.families import views
from bench.feeds import pipe_all
from bench.forced import HASHES, forced
from bench.models.views import Pipeline
from bench.parameters import slow_after
from bench.records import WHOLE, Record, Result, by_key, cut, parts

import dovetail as dt
from dovetail import testing
from dovetail.state.segment import SegmentCache
from dovetail.testing import Change

LIMITS = {"fanout": 2, "segment_bytes": 1, "compaction_bytes": 1}
RUNS: list[tuple[int, bool, int, str, Mapping[str, int]]] = [
    (WHOLE, False, 1, "own", {}),
    (1, True, 1, "own", LIMITS),
    (7, True, 4, "own", {"slice_bytes": 1}),
    (5, True, 3, "few", LIMITS),
    (WHOLE, False, 8, "own", {"slice_bytes": 1}),
]
"""Sizes of micro-batches, restarts, buckets, the hash of keys, sizes within."""
CUTS = ((4, 3), (WHOLE, 1), (1, 4), (1, 1), (WHOLE, 4))
"""Sizes of micro-batches and buckets; seed 0 has the first two."""
AFTER = (0, 1, 3, 10)


def times(random_: random.Random, count: int) -> list[int]:
    """Times that never fall, that nearly do not, that jump to and fro, that jump far."""
    steps = random_.choice([(0, 1, 1, 2, 9), (-1, 0, 1, 2, 3), (-8, -2, 0, 3, 8), (-9, 0, 1, 30)])
    return [max(time, 0) for time in accumulate(random_.choice(steps) for _ in range(count))]


def drawn(random_: random.Random) -> list[Record]:
    """Records of one table, of few keys or many, some of them tombstones or without a key."""
    keys = random_.choice([["a"], ["a", "b", "c", None], [*"abcdefghijkl"]])
    values = ["1", "2", "3"] if random_.random() < 0.5 else [str(n) for n in range(99)]
    return [
        Record(
            "T",
            random_.choice(keys),
            time,
            (random_.choice(values), random_.choice([True, True, False, None])),
            random_.random() < 0.1,
        )
        for time in times(random_, random_.choice([5, 30, 60]))
    ]


def pipeline(text: str) -> Pipeline:
    return views.read_join("view", text, {})


@pytest.mark.parametrize("seed", slow_after(3, range(24)))
def test_what_comes_out_is_what_the_definition_says(seed: int) -> None:
    random_ = random.Random(seed)
    after, later = random_.choice(AFTER), random_.choice(AFTER)
    text = random_.choice(
        [
            *(f"T expire {after}", f"T where expire {after}", f"T swap expire {after} to_stream"),
            *(f"T expire {after} where", f"T expire {after} expire {later}"),
        ]
    )
    records = drawn(random_)
    wanted = list(views.each_record(pipeline(text), records))
    for size, restart, buckets, hash_, limits in RUNS:
        with forced(hash_, limits):
            found = runners.driver(
                views,
                pipeline(text),
                cut(records, size),
                restart=restart,
                buckets=buckets,
                key_hash=HASHES[hash_],
            )
        # Of what is due at one time a later stage has the keys by their hashes.
        exactly = buckets == 1 and not re.search("expire .* (where|expire)", text)
        for one, other in zip(found, parts(wanted, size), strict=True):
            assert one == other if exactly else by_key(one) == by_key(other), (size, buckets)


@pytest.mark.parametrize("seed", slow_after(3, range(24)))
def test_by_batch_the_last_change_of_each_key_comes_out(seed: int) -> None:
    random_ = random.Random(seed)
    topology = pipeline(f"T expire {random_.choice(AFTER)}")
    records = [r._replace(value=(r.value[0], True)) for r in drawn(random_)]
    for size, restart, buckets, hash_, limits in RUNS:
        batches = cut(records, size)
        with forced(hash_, limits):
            found = runners.driver(
                views,
                topology,
                batches,
                emit="batch",
                restart=restart,
                buckets=buckets,
                key_hash=HASHES[hash_],
            )
        assert [*map(by_key, found)] == [*map(by_key, views.each_batch(topology, batches))]


@pytest.mark.parametrize("seed", slow_after(5, range(24)))
def test_the_changes_add_up_to_the_rows_that_are_young_enough(seed: int) -> None:
    """After each record: of each key the last row to come, if it is no further behind."""
    random_ = random.Random(seed)
    after = random_.choice(AFTER)
    rows: dict[Any, Result] = {}
    last: dict[Any, Record] = {}
    clock, records = -1, drawn(random_)
    for record, results in zip(
        records, views.each_record(pipeline(f"T expire {after}"), records), strict=True
    ):
        for result in results:
            assert (result.values is not None) or result.key in rows
            rows[result.key] = result
            if result.values is None:
                del rows[result.key]
        if record.key is not None:
            last[record.key], clock = record, max(clock, record.time)
        young = {
            key: (own.value[0],)
            for key, own in last.items()
            if not own.deleted and own.time >= clock - after
        }
        assert {key: result.values for key, result in rows.items()} == young


COLUMNS = {"k": pa.string(), "v": pa.string(), "fk": pa.string()}
READERS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "materialized": lambda t, u, s: t.materialize(),
    **{
        f"{how} of keys": lambda t, u, s, how=how: u.join(
            t, how=how, select={"a": "left.v", "b": "right.v"}
        )
        for how in ("inner", "left", "outer")
    },
    **{
        f"{how}, referred to": lambda t, u, s, how=how: u.join(
            t, on="fk", how=how, select={"a": "left.v", "b": "right.v"}
        )
        for how in ("inner", "left", "outer")
    },
    **{
        f"{how}, referring": lambda t, u, s, how=how: t.join(
            u, on="fk", how=how, select={"a": "left.v", "b": "right.v"}
        )
        for how in ("inner", "left", "outer")
    },
    "a stream's": lambda t, u, s: s.join(t, how="left", select={"a": "left.v", "b": "right.v"}),
    "count": lambda t, u, s: t.group_by("fk").agg(n=dt.count()),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("seed", slow_after(1, range(2)))
def test_whoever_reads_it_does_as_with_a_table_of_its_changelog(reader: str, seed: int) -> None:
    """In any number of buckets, cut anywhere: key by key."""
    random_ = random.Random(seed)
    after = random_.choice(AFTER)
    t, u = (testing.table(name, key="k", schema=COLUMNS) for name in "TU")
    s = testing.stream("S", key="k", schema=COLUMNS)
    inputs = {"T": t, "U": u, "S": s}
    used = {one.name for one in READERS[reader](t, u, s).plan.origins}
    ops = [
        (
            random_.choice([*"TT", *used]),
            {"k": random_.choice("abcd"), "v": str(n), "fk": random_.choice([*"abcd", None])},
            time,
            random_.random() < 0.1,
        )
        for n, time in enumerate(times(random_, 40))
    ]
    alone = testing.Driver(t.expire(after=timedelta(microseconds=after)))
    changelog = []
    for name, row, time, deleted in ops:
        if name != "T":
            changelog.append((name, row, time, deleted))
            continue
        for change in alone.pipe(t, row, timestamp=time, deleted=deleted):
            gone = change.values is None
            made = {**change.key, **(change.values or {})}
            changelog.append(("T", made, change.timestamp_us, gone))
    plain = testing.Driver(READERS[reader](t, u, s))
    with plain.batch() as wanted:
        pipe_all(plain, inputs, changelog)
    expiring = READERS[reader](t.expire(after=timedelta(microseconds=after)), u, s)
    for size, buckets in CUTS if seed else CUTS[:2]:
        driver = testing.Driver(expiring, buckets=buckets)
        found = []
        for batch in cut(ops, size):
            with driver.batch() as changes:
                pipe_all(driver, inputs, batch)
            found += changes
        assert shown(found) == shown(wanted), (size, buckets)


def shown(changes: list[Change]) -> dict[Any, list[Any]]:
    """What each key's changes say."""
    made: dict[Any, list[Any]] = {}
    for change in changes:
        said = (change.values, change.timestamp_us)
        made.setdefault(tuple(change.key.values()), []).append(said)
    return made


def clocked(random_: random.Random) -> Iterator[tuple[str, dict[str, Any], int, bool]]:
    for n, time in enumerate(times(random_, 40)):
        row = {"k": random_.choice("abcd"), "v": str(n), "fk": random_.choice("xyz")}
        yield random_.choice("TTU"), row, time, random_.random() < 0.15


@pytest.mark.parametrize("seed", slow_after(1, range(4)))
@pytest.mark.parametrize("how", ["keys", "references", "groups"])
def test_a_result_expires_by_the_time_of_what_it_is_made_of(how: str, seed: int) -> None:
    """Alike in any number of buckets, however it is cut."""
    random_ = random.Random(seed)
    t, u = (testing.table(name, key="k", schema=COLUMNS) for name in "TU")
    made = {
        "keys": lambda: t.join(u, how="outer", select={"a": "left.v", "b": "right.v"}),
        "references": lambda: t.join(u, on="fk", how="left", select={"a": "left.v"}),
        "groups": lambda: t.group_by("fk").agg(n=dt.count()),
    }[how]()
    expiring = made.expire(after=timedelta(microseconds=random_.choice(AFTER)))
    ops = [op for op in clocked(random_) if how != "groups" or op[0] == "T"]
    ops.append(("T", {"k": "e", "v": "last", "fk": "w"}, 10**6, False))
    answers = []
    for size, buckets in CUTS if seed else CUTS[:2]:
        driver = testing.Driver(expiring, buckets=buckets)
        for batch in cut(ops, size):
            with driver.batch():
                pipe_all(driver, {"T": t, "U": u}, batch)
        answers.append(shown(driver.read()))
    left = [key for key, said in answers[0].items() if said[-1][0] is not None]
    assert left == [("w" if how == "groups" else "e",)]
    assert all(answer == answers[0] for answer in answers)


@pytest.mark.parametrize("size", [1, 2, 6])
def test_a_result_expires_by_each_change_also_where_the_last_ones_come_out(size: int) -> None:
    """A change that another one in its micro-batch undoes moves stream time, and a repeated row
    starts anew.
    """
    types = {"k": pa.int64(), "v": pa.int64()}
    t = testing.table("T", key="k", schema=types)
    sums = t.group_by("k").agg(v=dt.sum("v"))
    expiring = sums.expire(after="4 us")
    driver = testing.Driver(expiring, sums, emit="batch")
    ops = [(1, 0, False), (2, 1, False), (2, 4, False), (3, 6, False), (3, 6, True), (3, 6, True)]
    for at in range(0, len(ops), size):
        with driver.batch():
            for key, time, deleted in ops[at : at + size]:
                driver.pipe(t, {"k": key, "v": key}, timestamp=time, deleted=deleted)
    rows: dict[int, Any] = {}
    for change in driver.read(expiring):
        rows[change.key["k"]] = change.values
    assert {key: values for key, values in rows.items() if values} == {2: {"v": 2}}


def test_right_rows_without_a_left_one_expire_and_move_stream_time() -> None:
    """Their key has nulls, but they are rows as others are."""
    t, u = (testing.table(name, key="k", schema=COLUMNS) for name in "TU")
    joined = t.join(u, on="fk", how="right", select={"v": "right.v"})
    driver = testing.Driver(joined.expire(after="1 us"))
    for key, time in (("x", 0), ("x", 5), ("y", 9)):
        driver.pipe(u, {"k": key, "v": f"v{time}"}, timestamp=time)
    assert [(c.key["right_k"], c.values, c.timestamp_us) for c in driver.read()] == [
        ("x", {"v": "v0"}, 0),
        ("x", None, 1),
        ("x", {"v": "v5"}, 5),
        ("x", None, 6),
        ("y", {"v": "v9"}, 9),
    ]


def stored_bytes(driver: testing.Driver) -> int:
    return sum(
        len(blob)
        for buckets in driver._root.buckets
        for blobs in buckets.blobs
        for name, blob in blobs.blobs.items()
        if name != "manifest"
    )


def test_what_has_expired_leaves_the_disk() -> None:
    """Rows that nobody deletes, and tombstones, while others come and when none do."""
    sessions = testing.table("sessions", key="k", schema={"k": pa.int64(), "v": pa.string()})
    driver = testing.Driver(sessions.expire(after="10 us"), buckets=2)
    kept = testing.Driver(sessions.materialize(), buckets=2)
    sizes: list[int] = []
    for time in range(120):
        rows = [{"k": 50 * time + n, "v": f"{time} {n}" * 9} for n in range(50)]
        gone = [{"k": 50 * (time - 3) + n} for n in range(0, 50, 2) if time >= 3]
        for one in (driver, kept):
            with one.batch():
                one.pipe(sessions, rows, timestamp=time)
                one.pipe(sessions, gone, timestamp=time, deleted=True)
        sizes.append(stored_bytes(driver))
    assert max(sizes[60:]) < 2 * max(sizes[20:60])
    assert max(sizes[60:]) < stored_bytes(kept) / 2
    last = [{"k": -1, "v": "last"}]
    assert len(driver.pipe(sessions, last, timestamp=1000)) == 1 + 3 * 50 + 8 * 25
    assert stored_bytes(driver) < 4000
    assert len(driver.advance_stream_time(2000)) == 1
    assert stored_bytes(driver) == 0


@pytest.mark.parametrize("late", ["ignore", "history"])
def test_a_history_does_not_expire(late: Any) -> None:
    prices = [
        testing.table(name, key="k", schema={"k": pa.int64(), name: pa.int64()}, versioned="1 day")
        for name in ("bid", "ask")
    ]
    both = prices[0].join(prices[1], late=late)
    with pytest.raises(
        dt.errors.PlanError, match=r"expire of bid: bid is versioned.* materialize\(\)"
    ):
        prices[0].expire(after="1 h")
    if late == "history":
        with pytest.raises(dt.errors.PlanError, match="emits corrections of its past"):
            both.expire(after="1 h")
    else:
        both.expire(after="1 h")


def test_a_large_table_is_read_where_a_batch_touches_it() -> None:
    """A row that expires, and one that comes, among many in small segments: few of them open."""
    rows = testing.table("rows", key="k", schema={"k": pa.int64(), "v": pa.int64()})
    with forced("own", {"segment_bytes": 1000}):
        driver = testing.Driver(rows.expire(after="1000 us"))
        for time in range(0, 200, 10):
            many = [{"k": 100 * time + n, "v": n} for n in range(200)]
            driver.pipe(rows, many, timestamp=[max(time, 1)] * 200)
        driver.pipe(rows, {"k": -1, "v": 0}, timestamp=0)
        opened, open_ = set(), SegmentCache.open
        with mock.patch.object(
            SegmentCache, "open", lambda *given: opened.add(given[1].id) or open_(*given)
        ):
            changes = driver.pipe(rows, {"k": -2, "v": 0}, timestamp=1001)
    assert [change.key["k"] for change in changes] == [-1, -2]
    stored = [name for name in driver._root.buckets[0].blobs[0].blobs if name != "manifest"]
    assert len(opened) < len(stored) / 3
