"""Stream time goes on when nothing comes: what waits for it comes out, when it is due."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from bench.parameters import slow_after
from bench.runners import write_file
from bench.waiting import (
    KINDS,
    LEFT,
    RIGHT,
    SCHEMA,
    TABLE,
    S,
    check_however_cut,
    grace,
    unmatched,
)
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

import dovetail as dt
from dovetail import testing
from dovetail.engine.idle import IdleRules, idle_stream_times
from dovetail.errors import CheckpointError, PlanError
from dovetail.state.manifest import Manifest
from dovetail.testing import Change, Driver


@pytest.mark.parametrize("seed", slow_after(1, range(6)))
@pytest.mark.parametrize("kind", KINDS)
def test_after_a_long_silence_all_comes_out_however_it_was_cut(kind: str, seed: int) -> None:
    check_however_cut(kind, seed, idle="10 s")


def counted(stream: dt.Stream, by: str = "k") -> dt.Table:
    """Windows of ten seconds, each once when it closes."""
    windows = stream.group_by(by).window(dt.windows.tumbling("10 s", grace="30 s"))
    return windows.agg(n=dt.count(), last=dt.max("v")).to_table(windows="on_close")


def pipe(driver: Driver, at: float, key: str = "a", to: Any = LEFT) -> list[Change]:
    return driver.pipe(to, {"k": key, "v": int(at)}, timestamp=int(at * S))


def keys(changes: list[Change]) -> list[tuple[Any, int]]:
    return [(change.key["k"], int(change.key["window_start"].timestamp())) for change in changes]


def test_stream_time_stays_at_the_beginning_of_1970() -> None:
    """It is 0 there, which is a time like any other: an older one does not set it back."""
    manifest = Manifest("t", 1, stream_time_us=(0,), read_us=(-20,), heard_us=(100,))
    idle = IdleRules(runs=((0, 5),))
    assert [idle_stream_times(idle, manifest, now) for now in (110, 130)] == [(0,), (10,)]


def test_stream_time_goes_on_as_the_clock_does_once_the_silence_is_long_enough() -> None:
    driver = Driver(counted(LEFT), idle="20 s")
    pipe(driver, 5)
    pipe(driver, 15, "b")
    assert driver.advance_wall_clock("19999 ms") == []
    # The first window closes at 40 s, 25 s after the last record; the second ten seconds later.
    assert driver.advance_wall_clock("5 s") == []
    assert keys(driver.advance_wall_clock("1 ms")) == [("a", 0)]
    assert driver.advance_wall_clock("9999 ms") == []
    assert keys(driver.advance_wall_clock("1 ms")) == [("b", 10)]


def test_what_is_due_comes_out_not_before_the_silence_is_long_enough() -> None:
    driver = Driver(counted(LEFT), idle="1 min")
    pipe(driver, 5)
    assert driver.advance_wall_clock("59999 ms") == []
    assert keys(driver.advance_wall_clock("1 ms")) == [("a", 0)]


def test_a_record_ends_the_silence() -> None:
    driver = Driver(counted(LEFT), idle="20 s")
    pipe(driver, 5)
    driver.advance_wall_clock("19 s")
    pipe(driver, 5.5)
    assert driver.advance_wall_clock("19 s") == []
    pipe(driver, 6)
    assert driver.advance_wall_clock("33999 ms") == []
    (change,) = driver.advance_wall_clock("1 ms")
    assert change.values == {"n": 3, "last": 6}


def test_what_comes_after_it_is_late_by_the_time_that_has_gone_on() -> None:
    driver = Driver(counted(LEFT), idle="20 s")
    pipe(driver, 5)
    driver.advance_wall_clock("36 s")  # Stream time is 41 s.
    assert pipe(driver, 9) == []
    assert pipe(driver, 10) == []
    assert sum(driver.counts.values()) == 1
    (change,) = driver.advance_wall_clock("1 day")
    assert change.key["window_start"].timestamp() == 10
    # Time goes on from the record with the largest timestamp, not from where it had gone.
    driver = Driver(counted(LEFT), idle="20 s")
    pipe(driver, 5)
    driver.advance_wall_clock("36 s")
    pipe(driver, 12)
    assert driver.advance_wall_clock("37999 ms") == []
    assert keys(driver.advance_wall_clock("1 ms")) == [("a", 10)]


def test_time_does_not_go_on_while_another_input_brings_something() -> None:
    driver = Driver(unmatched(10), idle="20 s")
    pipe(driver, 5)
    for _ in range(20):
        driver.advance_wall_clock("19 s")
        assert pipe(driver, 5, "b", RIGHT) == []
    assert len(driver.advance_wall_clock("1 min")) == 21


def test_time_stands_while_the_query_does_not_run() -> None:
    topology = counted(LEFT)
    driver = Driver(topology, idle="20 s")
    pipe(driver, 5)
    driver.advance_wall_clock("19 s")
    driver = Driver.restore(topology, driver.snapshot(), idle="20 s")
    assert driver.advance_wall_clock("19999 ms") == []
    assert driver.advance_wall_clock("15 s") == []
    assert keys(driver.advance_wall_clock("1 ms")) == [("a", 0)]


def test_what_waits_for_another_side_is_let_through_before_time_goes_on() -> None:
    driver = Driver(grace(5, align="1 min"), idle="20 s")
    pipe(driver, 5)
    assert driver.advance_wall_clock("59999 ms") == []
    assert [change.key for change in driver.advance_wall_clock("1 ms")] == [{"k": "a"}]


def test_rows_expire() -> None:
    table = testing.table("plain", key="k", schema=SCHEMA)
    driver = Driver(table.expire(after="1 min"), idle="20 s")
    driver.pipe(table, {"k": "a", "v": 1}, timestamp=5 * S)
    assert driver.advance_wall_clock("59 s") == []
    (change,) = driver.advance_wall_clock("2 s")
    assert (change.key, change.values) == ({"k": "a"}, None)


CHAINS: dict[str, Callable[[dt.Table], dt.Table]] = {
    "windows of windows": lambda counts: counted(records_of(counts)),
    "through a stage without state": lambda counts: counted(records_of(named(counts))),
    "of changes": lambda counts: counted(counts.to_changes().rename({"last": "v"}).key_by("k")),
}


def named(counts: dt.Table) -> dt.Table:
    """By foreign key, whose answers a stage puts in order."""
    names = testing.table("names", key="v", schema={"v": pa.int64(), "name": pa.string()})
    select = {"n": "left.n", "last": "left.last", "name": "right.name"}
    return counts.join(names, on={"last": "v"}, how="left", select=select)


def records_of(counts: dt.Table) -> dt.Stream:
    return counts.to_stream().rename({"last": "v"}).key_by("k")


@pytest.mark.parametrize("buckets", [1, 3])
@pytest.mark.parametrize("chain_", CHAINS)
def test_a_stage_goes_on_with_those_that_it_reads(chain_: str, buckets: int) -> None:
    """A window of the second stage closes 40 s after the first stage's, by the time of its results,
    which are those of the windows' last records.
    """
    driver = Driver(CHAINS[chain_](counted(LEFT)), buckets=buckets, idle="20 s")
    for at in (5, 15, 25):
        for key in "abc":
            pipe(driver, at, key)
    changes = list[tuple[int, Change]]()
    for passed in range(1, 101):
        changes += [(passed, change) for change in driver.advance_wall_clock("1 s")]
    assert sorted(
        (change.key["k"], int(change.key["window_start"].timestamp()), change.values["n"])
        for _, change in changes
    ) == [(key, start, 1) for key in "abc" for start in (0, 10, 20)]


def test_idle_needs_something_that_waits() -> None:
    with pytest.raises(PlanError, match=r"^Driver: idle= is given, and nothing waits for stream"):
        Driver(LEFT.join(TABLE, on="k", select={"l": "left.v"}), idle="20 s")


def wait_until(query: Any, happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 240
    while not happened():
        assert query.isActive, query.exception()
        assert time.monotonic() < deadline, query.lastProgress
        time.sleep(0.05)


def counts_of(query: Any) -> dict[str, int]:
    progress = chain(*(one.observedMetrics.items() for one in query.recentProgress))
    return {name: row.records for name, row in progress if "records" in row and row.records}


def write(folder: Path, rows: list[dict[str, Any]], number: int) -> None:
    write_file(folder / "left", rows, SCHEMA | {"at": pa.timestamp("us", "UTC")}, number)


def stream_of(reader: Any, folder: Path) -> dt.Stream:
    """Of the files that ``write`` has written."""
    frame = reader.schema("k string, v long, at timestamp").parquet(str(folder / "left"))
    return dt.Stream.from_changelog(frame, key="k", timestamp="at", name="left")


@pytest.mark.slow
def test_a_query_goes_on_with_the_clock(spark: Any, tmp_path: Path) -> None:
    """It emits what a batch run does, once: failing where time has gone on, going on without idle=,
    and again with it.
    """

    for number, times in enumerate([(100, 900), (1100, 2300)]):
        write(tmp_path, [{"k": k, "v": at, "at": at * 1000} for at in times for k in "abc"], number)
    checkpoint, answers = tmp_path / "checkpoint", [dict[int, list[Any]](), dict[int, list[Any]]()]
    failed = list[tuple[int, list[Any]]]()

    def read(reader: Any) -> list[dt.Table]:
        counts = seconds(stream_of(reader, tmp_path))
        return [counts, seconds(records_of(counts))]

    def seconds(stream: dt.Stream) -> dt.Table:
        windows = stream.group_by("k").window(dt.windows.tumbling("1 s", grace="1 s"))
        return windows.agg(n=dt.count(), last=dt.max("v")).to_table(windows="on_close")

    def collect(result: int, changes: DataFrame, batch: int) -> None:
        rows = [tuple(row) for row in changes.drop("_position").collect()]
        if batch and rows and not result and not failed:
            failed.append((batch, rows))
            raise OSError("no room")
        answers[result][batch] = rows

    def start(**more: Any) -> Any:
        reader = spark.readStream.option("maxFilesPerTrigger", 1)
        return dt.run(
            {
                result: dt.to_foreach_batch(partial(collect, number))
                for number, result in enumerate(read(reader))
            },
            checkpoint=checkpoint,
            buckets=2,
            trigger={"processingTime": "100 milliseconds"},
            **more,
        )

    with pytest.raises(StreamingQueryException, match="no room"):
        start(idle="1 s").awaitTermination(240)
    wanted = [
        sorted(tuple(row) for row in result.changelog().drop("_position").collect())
        for result in read(spark.read)
    ]
    assert [len(rows) for rows in wanted] == [9, 9]
    ((batch, rows),) = failed
    query = start()
    try:
        wait_until(query, lambda: batch + 2 in answers[0])  # what was to be looked after was
    finally:
        query.stop()
    assert answers[0][batch] == rows
    query = start(idle="2 s")
    try:
        wait_until(
            query, lambda: [sorted(chain(*emitted.values())) for emitted in answers] == wanted
        )
    finally:
        query.stop()
    # What comes for a window that has closed since is late.
    write(tmp_path, [{"k": "a", "v": 1, "at": 2_400_000}], 2)
    query = start()
    try:
        wait_until(query, lambda: "left.late" in counts_of(query))
    finally:
        query.stop()
    assert counts_of(query)["left.late"] == 1
    assert [sorted(chain(*emitted.values())) for emitted in answers] == wanted


def test_idle_is_given_from_the_first_start_on(spark: Any, tmp_path: Path) -> None:
    write(tmp_path, [], 0)
    left = stream_of(spark.readStream, tmp_path)
    sink = dt.to_foreach_batch(lambda changes, _: changes.collect())
    with pytest.raises(PlanError, match=r"^write_stream: idle= is given with trigger="):
        counted(left).write_stream(
            sink, checkpoint=tmp_path / "checkpoint", trigger={"availableNow": True}, idle="1 min"
        )
    query = counted(left).write_stream(
        sink, checkpoint=tmp_path / "checkpoint", trigger={"availableNow": True}
    )
    assert query.awaitTermination(240)
    with pytest.raises(CheckpointError, match=r"idle= is given, and the query of .* begun without"):
        counted(left).write_stream(sink, checkpoint=tmp_path / "checkpoint", idle="1 min")


def test_a_query_that_begins_with_idle_ends_by_itself_without(spark: Any, tmp_path: Path) -> None:
    """Its stages have timers, which are not waited for."""
    rows = [{"k": "a", "v": 1, "at": 1}]
    write(tmp_path, rows, 0)
    left = stream_of(spark.readStream, tmp_path)
    emitted = dict[int, list[Any]]()
    sink = dt.to_foreach_batch(lambda changes, number: emitted.update({number: changes.collect()}))
    checkpoint = tmp_path / "checkpoint"
    query = counted(left).write_stream(sink, checkpoint=checkpoint, idle="1 day")
    try:
        wait_until(query, lambda: 0 in emitted)
    finally:
        query.stop()
    write(tmp_path, rows, 1)
    ending = counted(left).write_stream(sink, checkpoint=checkpoint, trigger={"availableNow": True})
    assert ending.awaitTermination(120)
