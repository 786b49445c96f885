"""Buckets, input partitions and cuts change nothing: each key's changes, late records and all.

Stages run in this process, fed as Spark feeds them: several input partitions, many records a
micro-batch, ties and late records. What they say with one bucket, where a record's neighbours are
all records, they say with any number.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import pyarrow as pa
import pytest
from bench.parameters import slow_after

import dovetail as dt
from dovetail import testing
from dovetail.api.topology import Topology
from dovetail.arrays.hashing import stable_hash
from dovetail.base.columns import DELETED, EVENT_TIME, POSITION, SEQUENCE
from dovetail.engine.local import LocalRun, ResultRows
from dovetail.physical.inputs import Arrival
from dovetail.physical.planner import plan_of
from dovetail.plan.nodes import Node, Source

BUCKETS = (2, 8)
MANY = 64
KEYS = "abcdefghij"

Record: TypeAlias = "tuple[str, str | None, int, int, bool]"
"""Key, reference, value, time, whether it is deleted."""
Said: TypeAlias = "tuple[dict[Any, list[Any]], Counter[str]]"

SCHEMA = {"k": pa.string(), "r": pa.string(), "v": pa.int64()}


def table(name: str, **options: Any) -> dt.Table:
    return testing.table(name, key="k", schema=SCHEMA, **options)


def stream(name: str) -> dt.Stream:
    return testing.stream(name, key="k", schema=SCHEMA)


def counted(name: str, windows: Any) -> dt.WindowedTable:
    return stream(name).group_by("k").window(windows).agg(n=dt.count(), total=dt.sum("v"))


SIX = dt.windows.tumbling("6 us", grace="2 us", retention="20 us")
VERSIONED: dict[str, Any] = {"versioned": "8 us"}
NAMES = ["left.v", "right.v"]
VALUES = {"lv": "left.v", "rv": "right.v"}
LISTED: dict[str, Any] = {"all": dt.collect_list("v")}


def _placed() -> Topology:
    looks = testing.stream("l", key="k", schema={**SCHEMA, "w": pa.timestamp("us", "UTC")})
    return looks.join(
        counted("r", SIX), how="left", window_of="w", select={"lv": "left.v", "n": "n"}
    )


TOPOLOGIES: dict[str, Callable[[], Topology]] = {
    "tables": lambda: table("l").join(table("r"), how="outer", select=VALUES),
    "versioned tables": lambda: table("l", **VERSIONED).join(
        table("r", **VERSIONED), how="outer", select=VALUES
    ),
    "histories": lambda: table("l", **VERSIONED).join(
        table("r", **VERSIONED), how="left", late="history", select=VALUES
    ),
    "lookup": lambda: stream("l").join(table("r", **VERSIONED), how="left", select=VALUES),
    "lookup with grace": lambda: stream("l").join(
        table("r", **VERSIONED), how="left", grace="3 us", select=VALUES
    ),
    "foreign key": lambda: table("l").join(table("r"), on="r", how="left", select=VALUES),
    "foreign key of a versioned table": lambda: table("l", **VERSIONED).join(
        table("r", **VERSIONED), on="r", select=VALUES
    ),
    "foreign key, grouped": lambda: (
        table("l")
        .join(
            table("r"), on="r", how="left", select={"lv": "left.v", "rv": "right.v", "r": "left.r"}
        )
        .group_by("r")
        .agg(all=dt.collect_list("lv"), least=dt.min("rv"))
    ),
    "tumbling": lambda: counted("l", SIX).to_table(),
    "hopping": lambda: counted(
        "l", dt.windows.hopping("6 us", advance="2 us", grace="1 us")
    ).to_table(),
    "sliding": lambda: counted("l", dt.windows.sliding("3 us", grace="2 us")).to_table(),
    "session": lambda: counted("l", dt.windows.session("2 us", grace="2 us")).to_table(),
    "final": lambda: counted("l", SIX).to_table(windows="on_close"),
    "windows": lambda: (
        counted("l", SIX)
        .join(counted("r", SIX), how="outer", select={"a": "left.n", "b": "right.n"})
        .to_table()
    ),
    "final windows": lambda: (
        counted("l", SIX)
        .join(counted("r", SIX), how="left", select={"a": "left.n", "b": "right.n"})
        .to_table(windows="on_close")
    ),
    "windows with a table": lambda: (
        counted("l", SIX)
        .join(table("r"), how="left", select={"n": "n", "v": "v"})
        .to_table(windows="on_close")
    ),
    "streams": lambda: stream("l").join(
        stream("r"),
        how="outer",
        within=dt.within(before="3 us", after="2 us", grace="1 us"),
        select=VALUES,
    ),
    "streams, at once": lambda: stream("l").join(
        stream("r"),
        how="left",
        within=dt.within(before="2 us", after="2 us"),
        unmatched="eager",
        select=VALUES,
    ),
    "looked up, then by windows": lambda: (
        stream("l")
        .join(table("r"), how="left", select={"lv": "left.v", "r": "left.r"})
        .group_by("r")
        .window(SIX)
        .agg(all=dt.collect_list("lv"))
        .to_table()
    ),
    "looked up with grace, then by windows": lambda: (
        stream("l")
        .join(table("r", **VERSIONED), grace="3 us", select={"lv": "left.v", "r": "left.r"})
        .group_by("r")
        .window(SIX)
        .agg(all=dt.collect_list("lv"))
        .to_table(windows="on_close")
    ),
    "expiring": lambda: table("l").expire(after="3 us"),
    "expiring, joined": lambda: (
        table("l").expire(after="3 us").join(table("r"), how="outer", select=VALUES)
    ),
    "expiring, referred to": lambda: table("l").join(
        table("r").expire(after="3 us"), on="r", how="left", select=VALUES
    ),
    "expiring twice, grouped": lambda: (
        table("l").expire(after="5 us").expire(after="3 us").group_by("r").agg(**LISTED)
    ),
    "expiring result": lambda: (
        table("l").join(table("r"), how="outer", select=VALUES).expire(after="3 us")
    ),
    "expiring result by foreign key": lambda: (
        table("l").join(table("r"), on="r", how="outer", select=VALUES).expire(after="3 us")
    ),
    "expiring groups, joined": lambda: (
        table("l")
        .group_by("r")
        .agg(**LISTED)
        .expire(after="2 us")
        .join(table("r"), on={"r": "k"}, select=["all", "v"])
    ),
    "looked up with grace, expiring": lambda: (
        stream("l")
        .join(table("r", **VERSIONED), grace="3 us", select={"lv": "left.v", "r": "left.r"})
        .to_table()
        .expire(after="2 us")
        .group_by("r")
        .agg(all=dt.collect_list("lv"))
    ),
    "closed windows, expiring": lambda: (
        counted("l", SIX)
        .to_table(windows="on_close")
        .expire(after="4 us")
        .group_by("k")
        .agg(all=dt.collect_list("total"))
    ),
    "streams, expiring": lambda: (
        stream("l")
        .join(stream("r"), how="outer", within=dt.within(before="3 us"), select=VALUES)
        .to_table()
        .expire(after="2 us")
        .materialize()
    ),
}


def records(random_: random.Random, *, streams: bool) -> list[Record]:
    """Of one input partition in one micro-batch: ties, some late, some very late."""
    now, made = random_.randint(0, 5), []
    for _ in range(random_.randint(0, 14)):
        now += random_.choice([0, 0, 1, 1, 2, 5])
        late = random_.choice([0, 0, 0, 1, 3, 9, 30])
        made.append(
            (
                random_.choice(KEYS),
                random_.choice([*KEYS, None]),
                random_.randint(0, 99),
                max(now - late, 0),
                not streams and random_.random() < 0.2,
            )
        )
    return made


def rows_of(source: Source, given: Sequence[Record], base: int, sequence: int) -> pa.Table:
    key, reference, value, time, deleted = zip(*given, strict=True)
    times = [base + t for t in time]
    columns = {
        "k": pa.array(key, pa.string()),
        "r": pa.array(reference, pa.string()),
        "v": pa.array(value, pa.int64()),
        EVENT_TIME: pa.array(times, pa.int64()),
        DELETED: pa.array(deleted, pa.bool_()),
        SEQUENCE: pa.array(range(sequence, sequence + len(times)), pa.int64()),
    }
    return pa.table(columns)


def said(node: Node, results: Sequence[ResultRows], batch: int, into: dict[Any, Any]) -> None:
    """Each key's changes in order, and in which micro-batch they come."""
    keys = len(node.key)
    for _, made in results:
        for row in made.drop_columns([POSITION]).to_pylist():
            cells = list(row.values())
            into.setdefault(tuple(cells[:keys]), []).append((batch, *cells[keys:]))


def run(topology: Topology, batches: Sequence[Mapping[tuple[str, int], Any]], buckets: int) -> Said:
    """``batches``: per micro-batch the records of each source's input partitions."""
    node = topology.plan
    plan = plan_of([node], buckets=buckets, emit="change", arrival=Arrival.of(node))
    local = LocalRun(plan, stable_hash)
    sources = {source.name: source for source in node.origins}
    found: dict[Any, Any] = {}
    for number, batch in enumerate(batches):
        for (name, partition), (base, given) in batch.items():
            if given:
                rows = rows_of(sources[name], given, base, 0)
                local.accept_rows(sources[name], rows, partition)
        said(node, local.run_batch(number, 0), number, found)
    counts = sum((own.counts.number for own in local.buckets), Counter())
    return found, Counter({name: n for name, n in counts.items() if n})


def by_driver(name: str, log: Sequence[tuple[str, Record]], cuts: set[int], buckets: int) -> Said:
    """Each key's changes, all sources read from one log that is cut into micro-batches."""
    topology = TOPOLOGIES[name]()
    driver = testing.Driver(topology, buckets=buckets)
    sources = {source.name: source for source in topology.plan.origins}
    found: dict[Any, Any] = {}
    bounds = [0, *sorted(cuts), len(log)]
    for start, end in pairwise(bounds):
        with driver.batch() as changes:
            for source, record in log[start:end]:
                rows = rows_of(sources[source], [record], 0, driver._sequence)
                driver._root.accept_rows(sources[source], rows)
                driver._sequence += 1
        for change in changes:
            cells = None if change.values is None else tuple(map(str, change.values.values()))
            emitted = found.setdefault(tuple(change.key.values()), [])
            emitted.append((change.change, cells, change.timestamp_us))
    return found, Counter({count: n for count, n in driver.counts.items() if n})


@pytest.mark.parametrize("seeds", slow_after(1, [range(1), range(1, 3)]), ids=str)
@pytest.mark.parametrize("name", TOPOLOGIES)
def test_cuts_say_the_same(name: str, seeds: range) -> None:
    for seed in seeds:
        random_ = random.Random(f"{name} {seed}")
        sources = TOPOLOGIES[name]().plan.origins
        log = []
        for source in sources:
            log += [(source.name, r) for r in records(random_, streams=source.stream)]
        random_.shuffle(log)
        every = set(range(1, len(log)))
        some = {cut for cut in every if random_.random() < 0.2}
        expected = by_driver(name, log, every, 1)
        more = [(some, 1), (set[int](), 8), (every, 3)] if seed else []
        for cuts, buckets in ((set(), 1), (some, 8), *more):
            assert by_driver(name, log, cuts, buckets) == expected, (seed, len(cuts), buckets)


@pytest.mark.parametrize("seeds", slow_after(1, [range(1), range(1, 8)]), ids=str)
@pytest.mark.parametrize("name", TOPOLOGIES)
def test_any_number_of_buckets_says_the_same(name: str, seeds: range) -> None:
    late = 0
    for seed in seeds:
        random_ = random.Random(f"{name} {seed}")
        topology = TOPOLOGIES[name]()
        sources = topology.plan.origins
        batches = [
            {
                (source.name, partition): (8 * batch, records(random_, streams=source.stream))
                for source in sources
                for partition in range(random_.randint(1, 3))
            }
            for batch in range(3)
        ]
        expected = run(topology, batches, 1)
        late += sum(expected[1].values())
        for buckets in (*BUCKETS, *([MANY] if seed == 1 else [])):
            assert run(TOPOLOGIES[name](), batches, buckets) == expected, (seed, buckets)
    assert late or not any(kind in name for kind in ("tumbling", "hopping", "sliding", "session"))
