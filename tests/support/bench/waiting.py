"""Topologies whose results wait for stream time, and by definition what comes out in the end."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate, product
from typing import Any, TypeAlias

import pyarrow as pa

import dovetail as dt
from bench.records import cut
from dovetail import testing
from dovetail.testing import Change

S = 1_000_000
SCHEMA = {"k": pa.string(), "v": pa.int64()}
LEFT = testing.stream("left", key="k", schema=SCHEMA)
RIGHT = testing.stream("right", key="k", schema=SCHEMA)
TABLE = testing.table("table", key="k", schema=SCHEMA, versioned="1000 s")
Records: TypeAlias = "list[tuple[Any, str, int, int]]"
"""Input, key, value, seconds."""


def drawn(random_: random.Random) -> Records:
    """Records whose times do not fall, of few keys."""
    times = accumulate(random_.choices([0, 1, 2, 9], k=random_.choice([12, 60])))
    return [
        (random_.choice([LEFT, RIGHT, TABLE]), random_.choice("abcd"), number, time)
        for number, time in enumerate(times)
    ]


def windows(size: int) -> dt.Table:
    one, other = (
        stream.group_by("k")
        .window(dt.windows.tumbling(f"{size} s", grace="30 s"))
        .agg(n=dt.count())
        for stream in (LEFT, RIGHT)
    )
    both = one.join(other, how="outer", select={"l": "left.n", "r": "right.n"})
    return both.to_table(windows="on_close")


def windows_wanted(size: int, records: Records) -> Counter[Any]:
    """Each window, with how many records of both sides are in it."""
    count = Counter((table, key, time // size) for table, key, _, time in records)
    places = {(key, window) for table, key, window in count if table is not TABLE}
    return Counter(
        (key, window * size, count[LEFT, key, window] or None, count[RIGHT, key, window] or None)
        for key, window in places
    )


def windows_found(changes: Iterable[Change]) -> Counter[Any]:
    return Counter(
        (c.key["k"], int(c.key["window_start"].timestamp()), c.values["l"], c.values["r"])
        for c in changes
        if c.values
    )


def unmatched(size: int) -> dt.Stream:
    within = dt.within(before=f"{size} s", after=f"{size} s", grace="5 s")
    return LEFT.join(RIGHT, how="outer", within=within, select={"l": "left.v", "r": "right.v"})


def unmatched_wanted(size: int, records: Records) -> Counter[Any]:
    """Each pair within the window, and each record that is in none."""
    streams = [record for record in records if record[0] is not TABLE]
    pairs = [
        (one, other)
        for one, other in product(streams, streams)
        if (one[0], other[0]) == (LEFT, RIGHT)
        and one[1] == other[1]
        and abs(one[3] - other[3]) <= size
    ]
    alone = [record for record in streams if not any(record in pair for pair in pairs)]
    return Counter(
        [
            *((one[2], other[2]) for one, other in pairs),
            *((v, None) if side is LEFT else (None, v) for side, _, v, _ in alone),
        ]
    )


def values_found(changes: Iterable[Change]) -> Counter[Any]:
    return Counter(tuple(c.values.values()) for c in changes if c.values)


def grace(size: int, **more: Any) -> dt.Stream:
    return LEFT.join(
        TABLE, how="left", on="k", grace=f"{size} s", select={"l": "left.v", "t": "right.v"}, **more
    )


def grace_wanted(_: int, records: Records) -> Counter[Any]:
    """Each record of the stream with the table's row as of its time."""
    rows = [r for r in records if r[0] is TABLE]
    return Counter(
        (v, max((row[2] for row in rows if row[1] == key and row[3] <= time), default=None))
        for table, key, v, time in records
        if table is LEFT
    )


KINDS: Mapping[str, tuple[Callable[..., Any], ...]] = {
    "windows": (windows, windows_wanted, windows_found),
    "unmatched": (unmatched, unmatched_wanted, values_found),
    "grace": (grace, grace_wanted, values_found),
}


def emitted(
    topology: Any,
    batches: list[Records],
    *,
    restart: bool,
    buckets: int,
    idle: str | None = None,
) -> list[Change]:
    """All changes of records that come in these micro-batches, a second apart by the wall clock,
    then of their end; with ``idle``, of a silence of a day in its place.
    """
    driver, changes = testing.Driver(topology, buckets=buckets, idle=idle), list[Change]()
    read = {node.name for node in topology.plan.origins}
    for batch in batches:
        if restart:
            driver = testing.Driver.restore(topology, driver.snapshot(), idle=idle)
        with driver.batch() as now:
            for table, key, value, time in batch:
                if table.plan.name in read:
                    driver.pipe(table, {"k": key, "v": value}, timestamp=time * S)
        changes += now + driver.advance_wall_clock("1 s")
    return changes + (driver.end_input() if idle is None else driver.advance_wall_clock("1 day"))


def check_however_cut(kind: str, seed: int, *, idle: str | None = None) -> None:
    """Assert that random records of a kind bring out in the end what they are to, in one
    micro-batch, each in one after a restart, and in several buckets.
    """
    random_ = random.Random(seed)
    build, wanted, found = KINDS[kind]
    size, records = random_.choice([2, 10, 40]), drawn(random_)
    topology = build(size)
    whole = emitted(topology, [records], restart=False, buckets=1, idle=idle)
    assert found(whole) == wanted(size, records)
    assert emitted(topology, cut(records, 1), restart=True, buckets=1, idle=idle) == whole
    spread = emitted(topology, cut(records, 7), restart=False, buckets=3, idle=idle)
    assert found(spread) == wanted(size, records)
