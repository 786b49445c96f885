"""What is read back of a store, against what was fed: after every micro-batch, whatever the sizes
of segments, the buckets, colliding keys and merges that are under way.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, NamedTuple, get_args

import pyarrow as pa
import pytest
from bench.forced import HASHES, forced
from bench.parameters import slow_after

import dovetail as dt
from dovetail import testing
from dovetail.arrays.timeline import NO_TIME
from dovetail.engine import store_contents
from dovetail.physical.specs.law import Kind, Store
from dovetail.state import manifest as manifests
from dovetail.state.runs import Runs
from dovetail.state.segment import SegmentCache

SECOND = 1_000_000
LIMITS: dict[str, dict[str, int]] = {
    "own sizes": {},
    "small segments": {"segment_bytes": 64, "fanout": 2, "compaction_bytes": 64},
    "a row each": {"segment_bytes": 1, "fanout": 3, "compaction_bytes": 0, "open_segments": 1},
}
COLUMNS = {"k": pa.string(), "v": pa.int64(), "f": pa.string()}
RIGHT = {"f": pa.string(), "w": pa.int64()}


class Fed(NamedTuple):
    """One record; ``v`` is None for a tombstone."""

    name: str
    k: str
    v: int | None
    f: str | None
    time: int


def stored(driver: testing.Driver, name: str, *, kind: str | None = None) -> list[dict[str, Any]]:
    """Return the rows of an input in all buckets of all stages, times in microseconds."""
    found = []
    for buckets in driver._root.buckets:
        for own in buckets.blobs:
            manifest = manifests.read(own)
            stores = buckets.fragment.stores if manifest is not None else {}
            for key, store in stores.items():
                if store.of == name and store.kind in ((kind,) if kind else get_args(Kind)):
                    assert manifest is not None
                    runs = manifest.stores.get(key, Runs())
                    beside = {n: manifest.stores.get(n, Runs()) for n in store.companion_stores}
                    horizon_us = store_contents.horizon_us(store, manifest)
                    cache = SegmentCache()
                    tables = store_contents.read_rows(store, runs, beside, horizon_us, own, cache)
                    for table in tables:
                        assert table.schema == store_contents.schema_of(store)
                        found += _plain(table).to_pylist()
    return found


def _plain(table: pa.Table) -> pa.Table:
    for number, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type):
            column = table.column(number).cast(pa.int64())
            table = table.set_column(number, field.name, column)
    return table


def records(seed: str, names: str, count: int, *, spread: int = 20) -> Iterator[list[Fed]]:
    """Micro-batches of random records, about in order of time."""
    random_, time, left = random.Random(seed), 0, count
    while left > 0:
        size = random_.choice([1, 3, 20])
        batch = []
        for _ in range(size):
            time += random_.randrange(3)
            batch.append(
                Fed(
                    random_.choice(names),
                    random_.choice("abcdefgh"),
                    None if random_.random() < 0.25 else random_.randrange(100),
                    random_.choice(["x", "y", "z", None]),
                    max(0, time - random_.randrange(spread)) * SECOND,
                )
            )
        left -= size
        yield batch


def fed(driver: testing.Driver, inputs: dict[str, Any], batch: list[Fed]) -> None:
    """One micro-batch."""
    with driver.batch():
        for one in batch:
            node = inputs[one.name]
            values = {"v": one.v, "f": one.f, "w": one.v}
            row = {n: {"k": one.k, **values}[n] for n in node.plan.row.names if n != "f"}
            if "f" in node.plan.row.names:
                row["f"] = one.f if "k" in row else one.k
            driver.pipe(node, row, timestamp=one.time, deleted=one.v is None)


def rows(found: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return sorted((tuple(row.values()) for row in found), key=repr)


@pytest.fixture(params=slow_after(1, ["own sizes", "a row each", "small segments"]))
def limits(request: pytest.FixtureRequest) -> Iterator[None]:
    with forced("own", LIMITS[request.param]):
        yield


def drivers(topology: Any) -> list[testing.Driver]:
    """On three buckets, and with keys that collide."""
    colliding = testing.Driver(topology, key_hash=HASHES["one"])
    return [testing.Driver(topology, buckets=3), colliding]


@pytest.mark.usefixtures("limits")
@pytest.mark.parametrize("emit", ["change", "materialized"])
def test_a_table_has_the_last_row_of_each_key(emit: str) -> None:
    left, right = (testing.table(n, key="k", schema=COLUMNS) for n in "lr")
    joined = left.join(right, how="outer", select={"v": "left.v"})
    for driver in drivers(joined.materialize() if emit == "materialized" else joined):
        expected: dict[str, dict[str, Any]] = {"l": {}, "r": {}}
        for batch in records("tables", "lr", 90):
            fed(driver, {"l": left, "r": right}, batch)
            for one in batch:
                expected[one.name].pop(one.k, None)
                if one.v is not None:
                    expected[one.name][one.k] = (one.k, one.v, one.f, one.time)
            for name in "lr":
                assert rows(stored(driver, name)) == sorted(expected[name].values(), key=repr)


@pytest.mark.usefixtures("limits")
@pytest.mark.parametrize("how", ["inner", "outer"])
def test_both_tables_of_a_foreign_key_join_have_their_rows(how: Any) -> None:
    """But an inner join's left rows that refer to nothing, which no result will ever need."""
    left = testing.table("l", key="k", schema=COLUMNS)
    right = testing.table("r", key="f", schema=RIGHT)
    for driver in drivers(left.join(right, on="f", how=how, select={"v": "left.v"})):
        expected: dict[str, dict[str, Any]] = {"l": {}, "r": {}}
        for batch in records("foreign", "lr", 90):
            fed(driver, {"l": left, "r": right}, batch)
            for one in batch:
                expected[one.name].pop(one.k, None)
                if one.v is not None:
                    values = (one.v, one.f) if one.name == "l" else (one.v,)
                    expected[one.name][one.k] = (one.k, *values, one.time)
            assert rows(stored(driver, "r")) == sorted(expected["r"].values(), key=repr)
            refer = [r for r in expected["l"].values() if how == "outer" or r[2] is not None]
            assert rows(stored(driver, "l")) == sorted(refer, key=repr)


@pytest.mark.usefixtures("limits")
def test_a_versioned_table_has_its_history() -> None:
    table = testing.table("t", key="k", schema=COLUMNS, versioned="30 seconds")
    stream = testing.stream("s", key="k", schema=COLUMNS)
    for driver in drivers(stream.join(table, select={"v": "left.v"})):
        versions: dict[tuple[str, int], tuple[Any, ...]] = {}
        latest = 0
        for batch in records("versions", "ts", 120, spread=50):
            fed(driver, {"t": table, "s": stream}, batch)
            for one in batch:
                if one.name == "t":
                    latest = max(latest, one.time)
                    if one.time >= latest - 30 * SECOND:
                        values = (None, None) if one.v is None else (one.v, one.f)
                        change = "delete" if one.v is None else "upsert"
                        versions[one.k, one.time] = (one.k, *values, one.time, change)
            found = stored(driver, "t")
            for row in found:
                if row["_change"] == "delete":
                    row |= {"v": None, "f": None}
            horizon = latest - 30 * SECOND
            for at in (horizon, horizon + 7 * SECOND, latest):
                assert _as_of(rows(found), at) == _as_of([*versions.values()], at)
            after = [row for row in versions.values() if row[3] > horizon]
            assert [row for row in rows(found) if row[3] > horizon] == sorted(after, key=repr)


def _as_of(versions: list[tuple[Any, ...]], at: int) -> list[tuple[Any, ...]]:
    last = {row[0]: row for row in sorted(versions, key=lambda row: row[3]) if row[3] <= at}
    return sorted(row for row in last.values() if row[-1] == "upsert")


@pytest.mark.usefixtures("limits")
@pytest.mark.parametrize("how", ["inner", "outer"])
def test_a_window_s_records_are_kept_and_those_without_a_match_wait(how: Any) -> None:
    left, right = (testing.stream(n, key="k", schema=COLUMNS) for n in "lr")
    within = dt.within(before="10 seconds", after="3 seconds", grace="5 seconds")
    topology = left.join(right, within=within, how=how, select={"v": "left.v", "w": "right.v"})
    for driver in drivers(topology):
        came: dict[str, list[Fed]] = {"l": [], "r": []}
        latest = 0
        for batch in records("streams", "lr", 100, spread=12):
            valued = [one for one in batch if one.v is not None]
            fed(driver, {"l": left, "r": right}, valued)
            for one in valued:
                latest = max(latest, one.time)
                came[one.name].append(one)
            retained = _retained(driver)
            for name in "lr":
                kept = [one for one in came[name] if one.time >= latest - retained]
                there = rows(stored(driver, name, kind="records"))
                assert {*there} <= {(o.k, o.v, o.f, o.time) for o in came[name]}
                assert there == sorted(((o.k, o.v, o.f, o.time) for o in kept), key=repr)
                waits = [
                    o
                    for o in kept
                    if not any(_match(o, p) for p in came["r" if name == "l" else "l"])
                ]
                if how == "inner":
                    assert not stored(driver, name, kind="queue")
                    continue
                for row in stored(driver, name, kind="queue"):
                    assert row["_due"] >= latest
                    one = Fed(name, row["k"], row["v"], row["f"], row["_timestamp"])
                    assert one in waits


def _match(one: Fed, other: Fed) -> bool:
    left, right = (one, other) if one.name == "l" else (other, one)
    return one.k == other.k and -10 * SECOND <= right.time - left.time <= 3 * SECOND


def _retained(driver: testing.Driver) -> int:
    (buckets,) = driver._root.buckets
    return next(s.span_us or 0 for s in buckets.fragment.stores.values() if s.kind == "records")


@pytest.mark.usefixtures("limits")
@pytest.mark.parametrize("waits", ["grace", "align"])
def test_records_wait_out_the_grace_period_or_for_the_other_side(waits: str) -> None:
    stream = testing.stream("s", key="k", schema=COLUMNS)
    versioned = "60 seconds" if waits == "grace" else None
    table = testing.table("t", key="k", schema=COLUMNS, versioned=versioned)
    options: dict[str, Any] = {"grace": "9 seconds"} if waits == "grace" else {"align": "1 hour"}
    for driver in drivers(stream.join(table, how="left", select={"v": "left.v"}, **options)):
        waiting: list[tuple[Any, ...]] = []
        clock = 0
        for batch in records(waits, "st", 90):
            valued = [one for one in batch if one.v is not None]
            fed(driver, {"s": stream, "t": table}, valued)
            for one in (one for one in valued if one.name == "s"):
                # Aligned records keep their order: each is due with the latest before it.
                clock = max(clock, one.time)
                due = one.time + 9 * SECOND if waits == "grace" else clock
                waiting.append((one.k, one.v, one.time, due))
            for change in driver.read():
                came = (change.key["k"], (change.values or {})["v"], change.timestamp_us)
                waiting.remove(next(one for one in waiting if one[:3] == came))
            found = stored(driver, "s", kind="queue")
            columns = ("k", "v", "_timestamp", "_due")
            assert sorted(tuple(row[c] for c in columns) for row in found) == sorted(waiting)


@pytest.mark.slow
@pytest.mark.usefixtures("limits")
@pytest.mark.parametrize("part", slow_after(1, [2, 1024]))
def test_groups_have_their_results(part: int) -> None:
    """Long lists, which lie in parts, included."""
    table = testing.table("t", key="k", schema=COLUMNS)
    grouped = table.group_by("f").agg(
        n=dt.count(),
        total=dt.sum("v"),
        mean=dt.mean("v"),
        least=dt.min("v"),
        most=dt.max("k"),
        all=dt.collect_list("v"),
        set=dt.collect_set("k"),
        top=dt.top(3, ["k", "v"], by="v"),
        lowest=dt.top(2, "k", by="v", descending=False),
        distinct=dt.count_distinct("v"),
    )
    with forced("own", {"part": part}):
        for driver in drivers(grouped):
            for batch in records("groups", "t", 150):
                fed(driver, {"t": table}, batch)
                expected = driver.table(grouped)
                found = stored(driver, grouped.plan.name)
                for row in found:
                    del row["_timestamp"]
                assert {row.pop("f"): row for row in found} == expected
                assert len(found) == len(expected)


@pytest.mark.usefixtures("limits")
@pytest.mark.parametrize("windows", ["tumbling", "session", "sliding"])
def test_windows_have_their_results_until_they_are_closed(windows: str) -> None:
    stream = testing.stream("s", key="k", schema=COLUMNS)
    shape = getattr(dt.windows, windows)("5 seconds", grace="3 seconds")
    grouped = stream.group_by("k").window(shape).agg(n=dt.count(), most=dt.max("v"))
    table = grouped.to_table()
    for driver in drivers(table):
        latest = 0
        for batch in records("kinds", "s", 90, spread=6):
            valued = [one for one in batch if one.v is not None]
            fed(driver, {"s": stream}, valued)
            latest = max([latest, *(one.time for one in valued)])
            wait_us = grouped.plan.windows.wait_us
            expected = {
                (k, start, end): tuple(values.values())
                for (k, start, end), values in driver.table(table).items()
                if _us(end) + wait_us >= latest
            }
            found = {
                (r["k"], r["window_start"], r["window_end"]): (r["n"], r["most"])
                for r in stored(driver, grouped.plan.name)
            }
            assert found == {(k, _us(s), _us(e)): v for (k, s, e), v in expected.items()}


def _us(time: Any) -> int:
    return round(time.timestamp() * SECOND)


@pytest.mark.usefixtures("limits")
def test_windows_that_are_open_have_their_rows() -> None:
    stream = testing.stream("s", key="k", schema=COLUMNS)
    hourly = stream.group_by("k").window(dt.windows.tumbling("10 seconds", grace="5 seconds"))
    windows = hourly.agg(n=dt.count(), total=dt.sum("v"))
    for driver in drivers(windows.to_table(windows="on_close")):
        counts: dict[tuple[str, int], list[int]] = {}
        latest = 0
        for batch in records("windows", "s", 90):
            valued = [one for one in batch if one.v is not None]
            fed(driver, {"s": stream}, valued)
            for one in valued:
                latest = max(latest, one.time)
                start = one.time - one.time % (10 * SECOND)
                if start + 15 * SECOND > latest:
                    assert one.v is not None
                    counts.setdefault((one.k, start), []).append(one.v)
            found = stored(driver, windows.plan.name, kind="rows")
            there = {(r["k"], r["window_start"]): (r["n"], r["total"]) for r in found}
            opened = {
                key: (len(values), sum(values))
                for key, values in counts.items()
                if key[1] + 15 * SECOND > latest
            }
            assert there == opened


@pytest.mark.parametrize(
    ("kind", "times_us", "horizon_us"),
    [
        ("rows", (50, 80), 40),
        ("rows", (50, None), NO_TIME),  # the other input may still bring its first, old record
        ("records", (50, 80), 70),
        ("records", (50, None), 40),
        ("rows", (None, None), NO_TIME),
    ],
)
def test_rows_are_of_use_as_long_as_for_their_operator(
    kind: Kind, times_us: tuple[int | None, ...], horizon_us: int
) -> None:
    store = Store("rows of windows", kind=kind, clocks=(0, 1), span_us=10)
    assert store_contents.horizon_us(store, manifests.Manifest("", 1, times_us)) == horizon_us
