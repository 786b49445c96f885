"""The end of the input ends all waiting: what comes out of a query then, however its input was cut,
is what comes out of a batch run over all of it; and then its checkpoint has ended.
"""

from __future__ import annotations

import json
import random
import time
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from bench.parameters import slow_after
from bench.records import cut
from bench.runners import write_file
from bench.waiting import (
    KINDS,
    LEFT,
    RIGHT,
    SCHEMA,
    TABLE,
    Records,
    S,
    check_however_cut,
    drawn,
    grace,
    windows,
)
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

import dovetail as dt
from dovetail import testing
from dovetail.errors import CheckpointError, PlanError
from dovetail.spark.checkpoints.stage_layout import FORMAT_VERSION
from dovetail.spark.query.end_of_input import CLOSING_MARK, refuse_ended
from dovetail.spark.query.planned_batches import plan_batch


@pytest.mark.parametrize("seed", slow_after(3, range(6)))
@pytest.mark.parametrize("kind", KINDS)
def test_at_the_end_all_comes_out_however_it_was_cut(kind: str, seed: int) -> None:
    check_however_cut(kind, seed)


def test_what_waits_for_another_side_comes_out_at_the_end() -> None:
    driver = testing.Driver(grace(0, align="1 min"))
    assert driver.pipe(LEFT, {"k": "a", "v": 1}, timestamp=5 * S) == []
    assert [change.key for change in driver.end_input()] == [{"k": "a"}]


def test_the_end_takes_no_row_away() -> None:
    table = testing.table("plain", key="k", schema=SCHEMA)
    driver = testing.Driver(table.expire(after="1 min"))
    driver.pipe(table, {"k": "a", "v": 1}, timestamp=5 * S)
    assert driver.end_input() == []


def test_nothing_comes_after_the_end() -> None:
    driver = testing.Driver(windows(2))
    driver.end_input()
    with pytest.raises(PlanError, match=r"the input has ended\. Call it before end_input\(\)"):
        driver.pipe(LEFT, {"k": "a", "v": 1}, timestamp=1)


def chained(left: dt.Stream, right: dt.Stream) -> tuple[dt.Stream, dt.Table]:
    """A join, and in a second stage windows over its unmatched records."""
    within = dt.within(before="2 s", after="2 s")
    joined = left.join(right, how="left", within=within, select={"l": "left.v", "r": "right.v"})
    counted = (
        joined.where("r IS NULL").group_by("k").window(dt.windows.tumbling("10 s", grace="10 s"))
    )
    totals = counted.agg(n=dt.count(), last=dt.max("l")).to_table(windows="on_close")
    return joined, totals


def read(reader: Any, folder: Path) -> tuple[dt.Stream, dt.Table]:
    frames = {
        name: reader.schema("k string, v long, at timestamp").parquet(str(folder / name))
        for name in ("left", "right")
    }
    return chained(
        *(
            dt.Stream.from_changelog(frame, key="k", timestamp="at", name=name)
            for name, frame in frames.items()
        )
    )


def write(folder: Path, records: Records, number: int) -> None:
    columns = SCHEMA | {"at": pa.timestamp("us", "UTC")}
    for side in (LEFT, RIGHT):
        rows = [{"k": k, "v": v, "at": at * S} for one, k, v, at in records if one is side]
        write_file(folder / side.plan.name, rows, columns, number)


def rows_of(frame: DataFrame) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in frame.drop("_position").collect()]


@pytest.mark.long
def test_a_query_that_is_closed(spark: Any, tmp_path: Path) -> None:
    """Stopped, and failing as it closes, it emits in the end what a batch run does."""
    records = [r for r in drawn(random.Random(0)) if r[0] is not TABLE]
    assert len(records) > 20
    batches = cut(records, len(records) // 2 + 1)
    for number, batch in enumerate(batches):
        write(tmp_path, batch, number)
    checkpoint = tmp_path / "checkpoint"
    binding = checkpoint / "dovetail.json"
    answers: list[dict[int, list[tuple[Any, ...]]]] = [{}, {}]
    failing = [len(batches)]

    def collect(result: int, changes: DataFrame, batch: int) -> None:
        if batch in failing:
            raise OSError(f"no room for {batch}")
        answers[result][batch] = rows_of(changes)

    def start(*, close: bool = True) -> Any:
        reader = spark.readStream.option("maxFilesPerTrigger", 1)
        results = enumerate(read(reader, tmp_path))
        return dt.run(
            {result: dt.to_foreach_batch(partial(collect, number)) for number, result in results},
            checkpoint=checkpoint,
            trigger={"availableNow": True},
            buckets=2,
            close_at_end=close,
        )

    stopped = start()
    # Before, the files of a source are noted, and a micro-batch that is planned anew has more.
    while not (checkpoint / "offsets" / "0").exists():
        assert stopped.isActive
        time.sleep(0.005)
    spark.streams.get(stopped.id).stop()
    stopped.awaitTermination()
    assert not stopped.isActive
    assert "closing" not in json.loads(binding.read_text())
    query = start()
    with pytest.raises(StreamingQueryException, match=f"no room for {len(batches)}"):
        query.awaitTermination(120)
    assert not query.isActive
    assert len(query.recentProgress) >= len(batches)
    assert "no room" in str(query.exception())
    with pytest.raises(CheckpointError, match="was stopped while close_at_end=True ended it"):
        start(close=False)
    failing.clear()
    query = start()
    assert query.awaitTermination(120)
    assert len(query.recentProgress) == 1
    for result, emitted in zip(read(spark.read, tmp_path), answers, strict=True):
        assert [*emitted] == [*range(len(batches) + 1)]
        assert emitted[len(batches)]
        batch_run = rows_of(result.changelog(buckets=2))
        assert sorted(chain(*emitted.values()), key=str) == sorted(batch_run, key=str)
    back = rf"has ended, by close_at_end=True.*batch={len(batches) - 1}\)"
    for close in (False, True):
        with pytest.raises(CheckpointError, match=back):
            start(close=close)
    with pytest.raises(CheckpointError, match=back):
        dt.checkpoints.upgrade(
            spark, checkpoint, tmp_path / "new", [*read(spark.readStream, tmp_path)]
        )
    assert (
        max(row.stream_time.year for row in dt.checkpoints.read_state(spark, checkpoint).collect())
        == 9999
    )
    dt.checkpoints.rewind(spark, checkpoint, batch=len(batches) - 1)
    assert "closing" not in json.loads(binding.read_text())


def test_only_what_has_an_end_is_closed(spark: Any, tmp_path: Path) -> None:
    write(tmp_path, [], 0)
    (topology, _), sink = read(spark.readStream, tmp_path), dt.to_foreach_batch(lambda *_: None)
    with pytest.raises(PlanError, match=r"^write_stream: close_at_end= is given without trigger="):
        topology.write_stream(sink, checkpoint=tmp_path / "checkpoint", close_at_end=True)


def test_a_checkpoint_that_has_read_nothing_has_not_ended(spark: Any, tmp_path: Path) -> None:
    """Though it is marked, by a run that found nothing or was killed as it was to end it."""
    bound = {"closing": True}
    refuse_ended(spark, str(tmp_path), bound, "it")
    assert not plan_batch(spark, str(tmp_path), CLOSING_MARK)
    (tmp_path / "offsets").mkdir()
    ran = {"batchWatermarkMs": 0, "batchTimestampMs": 5, "conf": {"a": "b"}}
    (tmp_path / "offsets" / "0").write_text(f"v1\n{json.dumps(ran)}\n-\n3")
    refuse_ended(spark, str(tmp_path), bound, "it")
    assert not plan_batch(spark, str(tmp_path), CLOSING_MARK)
    (tmp_path / "commits").mkdir()
    (tmp_path / "commits" / "0").touch()
    assert plan_batch(spark, str(tmp_path), CLOSING_MARK)
    version, said, *offsets = (tmp_path / "offsets" / "1").read_text().splitlines()
    assert (version, offsets) == ("v1", ["-", "3"])
    assert json.loads(said)["conf"] == {"a": "b", CLOSING_MARK: "true"}
    refuse_ended(spark, str(tmp_path), bound, "it")
    (tmp_path / "commits" / "1").touch()
    ended = r"^it: the query of .* has ended.*batch=0\)"
    with pytest.raises(CheckpointError, match=ended):
        refuse_ended(spark, str(tmp_path), bound, "it")
    binding = tmp_path / "dovetail.json"
    binding.write_text(json.dumps({**bound, "version": FORMAT_VERSION, "partitions": 1}))
    (tmp_path / "metadata").write_text(json.dumps({"id": str(uuid4())}))
    dt.checkpoints.rewind(spark, tmp_path, batch=1)
    with pytest.raises(CheckpointError, match=ended):
        refuse_ended(spark, str(tmp_path), json.loads(binding.read_text()), "it")
    dt.checkpoints.rewind(spark, tmp_path, batch=0)
    assert "closing" not in json.loads(binding.read_text())
