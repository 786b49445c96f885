"""A replay at unlike speeds gives what the live run gave, where a join aligns its sides.

The live run reads both sides in the order of time. The replay throttles one side to a tenth of the
other's rate.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bench.parameters import slow_after
from timed_files import timed_file

import dovetail as dt
from dovetail import testing
from dovetail.api.topology import Topology
from dovetail.engine import alignment
from dovetail.operators.job import Batch
from dovetail.physical.source import RowArrival, RowShape, SourceSpec
from dovetail.testing import Change, Driver

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = {"k": pa.string(), "v": pa.string()}
SELECT = {"l": "left.v", "r": "right.v"}
WINDOW = dt.within(before="3 s", after="3 s", grace="1 s")

JOINS: dict[str, Callable[[str | None], tuple[Any, Any, Topology]]] = {}


def join(name: str) -> Any:
    def register(make: Any) -> Any:
        JOINS[name] = make
        return make

    return register


@join("stream-table")
def _(align: str | None) -> Any:
    left = testing.stream("L", key="k", schema=SCHEMA)
    right = testing.table("R", key="k", schema=SCHEMA)
    return left, right, left.join(right, how="left", align=align, select=SELECT)


@join("stream-stream")
def _(align: str | None) -> Any:
    left = testing.stream("L", key="k", schema=SCHEMA)
    right = testing.stream("R", key="k", schema=SCHEMA)
    joined = left.join(right, how="outer", within=WINDOW, align=align, select=SELECT)
    return left, right, joined


@join("table-table")
def _(align: str | None) -> Any:
    left = testing.table("L", key="k", schema=SCHEMA)
    right = testing.table("R", key="k", schema=SCHEMA)
    return left, right, left.join(right, how="outer", align=align, select=SELECT)


Record = tuple[str, str, str, int]


def history(seed: int, count: int = 60) -> list[Record]:
    """Records (side, key, value, seconds) of both sides, each second one."""
    random_ = random.Random(seed)
    return [(random_.choice("LR"), random_.choice("ab"), f"v{i}", i) for i in range(count)]


def throttled(records: list[Record], side: str) -> list[list[Record]]:
    """Micro-batches in which ``side`` brings a tenth of what the other does."""
    slow = [r for r in records if r[0] == side]
    fast = [r for r in records if r[0] != side]
    batches = []
    while slow or fast:
        batches.append([*fast[:10], *slow[:1]])
        fast, slow = fast[10:], slow[1:]
    return batches


def feed(driver: Driver, sides: tuple[Any, Any], batch: list[Record]) -> list[Change]:
    with driver.batch() as changes:
        for side, key, value, second in batch:
            moment = datetime.fromtimestamp(second, timezone.utc)
            driver.pipe(sides["LR".index(side)], {"k": key, "v": value}, timestamp=moment)
    return changes


def seen(changes: list[Change]) -> list[Any]:
    return [(c.key["k"], c.values, c.timestamp_us, c.change) for c in changes]


@pytest.mark.parametrize("restart", [False, True], ids=["running", "restarted"])
@pytest.mark.parametrize(("slow", "seeds"), slow_after(1, [("R", range(2)), ("L", range(5))]))
@pytest.mark.parametrize("kind", JOINS)
def test_a_replay_equals_the_live_run(kind: str, slow: str, seeds: range, restart: bool) -> None:
    for seed in seeds:
        records = history(seed)
        left, right, joined = JOINS[kind](None)
        driver = Driver(joined)
        live = seen([c for r in records for c in feed(driver, (left, right), [r])])
        left, right, aligned = JOINS[kind]("1 min")
        replay, emitted = Driver(aligned), []
        for batch in throttled(records, slow):
            if restart:
                replay = Driver.restore(aligned, replay.snapshot())
            emitted += feed(replay, (left, right), batch)
        emitted += replay.advance_wall_clock("1 min")
        assert seen(emitted) == live


def test_without_alignment_it_would_not() -> None:
    """The test can fail: the rows that are ahead meet a table that is behind."""
    records = history(0)
    left, right, joined = JOINS["stream-table"](None)
    live, replay = Driver(joined), Driver(joined)
    expected = seen([c for r in records for c in feed(live, (left, right), [r])])
    emitted = [c for batch in throttled(records, "R") for c in feed(replay, (left, right), batch)]
    assert seen(emitted) != expected


@pytest.mark.parametrize("restart", [False, True], ids=["running", "restarted"])
def test_rows_that_waited_and_rows_that_come_pass_in_the_order_of_their_clocks(
    restart: bool,
) -> None:
    """A micro-batch brings rows before, between, at and after the times of those that wait."""
    left, right, joined = JOINS["table-table"]("1 min")
    driver = Driver(joined)
    feed(driver, (left, right), [("R", "a", "old", 1)])
    waiting = [("L", "a", "w5", 5), ("L", "b", "w7", 7), ("L", "a", "w9", 9)]
    assert [c.values for c in feed(driver, (left, right), waiting)] == [{"l": None, "r": "old"}]
    if restart:
        driver = Driver.restore(joined, driver.snapshot())
    comes = [("L", "a", "c3", 3), ("L", "b", "c6", 6), ("L", "a", "c4", 4), ("L", "b", "c7", 7)]
    # Rows of a log keep their order, so what comes after w9 has its clock.
    emitted = feed(driver, (left, right), [*comes, ("R", "z", "new", 8)])
    assert [c.values and c.values["l"] for c in emitted] == ["w5", "w7", None]
    later = feed(driver, (left, right), [("R", "z", "x", 10), ("L", "b", "c10", 10)])
    assert [c.values and c.values["l"] for c in later] == [
        *("w9", "c3", "c6", "c4", "c7", "c10", None)
    ]


@pytest.mark.parametrize("partitioned", [False, True], ids=["one log", "partitions"])
def test_what_is_let_through_has_the_clocks_of_its_logs(partitioned: bool) -> None:
    """Of each log the rows in their order, with the largest time of the log so far as their clock;
    without partitions those that waited, then those that come.
    """
    own = [(name, pa.int64()) for name in ("_hash", "_event_time")]
    spec = SourceSpec(
        "L",
        RowShape(pa.schema([*own, ("_deleted", pa.bool_()), ("k", pa.string())]), keys=1),
        arrival=RowArrival(ordered_by="own logs" if partitioned else None, clocked=True),
    )

    def rows(times: list[int], log: list[int], place: list[int]) -> pa.Table:
        made = {"_hash": times, "_event_time": times, "_deleted": [False] * len(times)}
        made |= {"k": list(map(str, times)), "_clock": times}
        made |= {"_sequence": place, "_log_partition": log} if partitioned else {}
        return pa.table(made).select(spec.wire_schema.names).cast(spec.wire_schema)

    waited = rows([5, 8, 9], [1, 0, 1], [3, 1, 5])
    waited = waited.append_column("_due", waited.column("_event_time"))
    came = rows([3, 7, 99, 6], [0, 1, 0, 1], [0, 4, 2, 6])
    clock = np.array([3, 7, 99, 7])
    passing = np.array([True, True, False, True])
    made = alignment._let_through(spec, waited, Batch(came, clock, clock), passing, clock)
    times = made.rows.column("_event_time").to_pylist()
    expected = {
        False: ([5, 8, 9, 3, 7, 6], [5, 8, 9, 3, 7, 7]),
        True: ([3, 8, 5, 7, 9, 6], [3, 8, 5, 7, 9, 9]),
    }
    assert (times, made.clock_us.tolist()) == expected[partitioned]
    assert made.stream_us.tolist() == made.clock_us.tolist()


def test_an_idle_side_is_not_waited_for() -> None:
    left, right, joined = JOINS["stream-table"]("1 min")
    driver = Driver(joined)
    assert feed(driver, (left, right), [("L", "a", "v", 5)]) == []
    assert driver.advance_wall_clock("59 s") == []
    assert [c.values for c in driver.advance_wall_clock("1 s")] == [{"l": "v", "r": None}]
    assert [c.values for c in feed(driver, (left, right), [("L", "a", "w", 9)])] == [
        {"l": "w", "r": None}
    ]
    assert feed(driver, (left, right), [("R", "a", "x", 7)]) == []
    assert feed(driver, (left, right), [("L", "a", "y", 10)]) == []
    assert [c.values for c in feed(driver, (left, right), [("R", "b", "z", 10)])] == [
        {"l": "y", "r": "x"}
    ]


def test_rows_at_the_other_sides_time_pass() -> None:
    left, right, joined = JOINS["stream-table"]("1 min")
    driver = Driver(joined)
    both = [("R", "a", "x", 5), ("L", "a", "v", 5), ("L", "a", "w", 6)]
    # On a tie the left side comes first, as without alignment.
    assert [c.values for c in feed(driver, (left, right), both)] == [{"l": "v", "r": None}]


@pytest.mark.long
def test_spark(spark: SparkSession, tmp_path: Path) -> None:
    """The slow side's files hold a tenth of the rows of the other's. A query over what is there
    ends by itself; then it runs on, though nothing comes, until the clock lets the last rows pass.
    """
    records = history(9, count=16)
    left, right, joined = JOINS["stream-table"](None)
    driver = Driver(joined)
    live = seen([c for r in records for c in feed(driver, (left, right), [r])])
    written = time.time()
    files = pa.schema([*SCHEMA.items(), ("t", pa.timestamp("us", "UTC"))])
    for number, batch in enumerate(throttled(records, "R")):
        for side in "LR":
            rows = [
                {"k": k, "v": v, "t": datetime.fromtimestamp(s, timezone.utc)}
                for own, k, v, s in batch
                if own == side
            ]
            table = pa.Table.from_pylist(rows, schema=files)
            # Spark reads files by their time, which has a millisecond at best.
            with timed_file(tmp_path / side / f"{number:03}.parquet", written + number) as path:
                pq.write_table(table, path)

    def frame(side: str) -> Any:
        reader = spark.readStream.schema("k string, v string, t timestamp")
        return reader.option("maxFilesPerTrigger", 1).parquet(str(tmp_path / side))

    clicks = dt.Stream.from_changelog(frame("L"), key="k", timestamp="t", name="L")
    users = dt.Table.from_changelog(frame("R"), key="k", timestamp="t", name="R")
    aligned = clicks.join(users, how="left", align="5 s", select=SELECT)

    def start(**trigger: Any) -> Any:
        sink, checkpoint = dt.to_parquet(tmp_path / "out"), tmp_path / "checkpoint"
        return aligned.write_stream(sink, checkpoint=checkpoint, buckets=1, **trigger)

    def read_back() -> list[Any]:
        return collected(spark.read.schema(aligned.schema).parquet(str(tmp_path / "out")))

    assert start(trigger={"availableNow": True}).awaitTermination(120)
    assert 0 < len(read_back()) < len(live)
    query = start()
    emitted: list[Any] = []
    try:
        until = time.monotonic() + 120
        while len(emitted) < len(live) and time.monotonic() < until and query.isActive:
            time.sleep(0.3)
            emitted = read_back()
    finally:
        query.stop()
    assert query.exception() is None
    assert emitted == live


def collected(frame: DataFrame) -> list[Any]:
    rows = frame.orderBy("_position").selectExpr(
        "k", "l", "r", "unix_micros(_timestamp) AS us", "_change"
    )
    return [(row.k, {"l": row.l, "r": row.r}, row.us, row["_change"]) for row in rows.collect()]
