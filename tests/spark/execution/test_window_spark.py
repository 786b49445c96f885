"""Aggregates and windowed tables in streaming queries: several micro-batches, the query restarted
between them, the key space in two parts.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from bench.families import windows as family
from bench.models.gathering import Windows
from bench.models.windows import Joined, View
from bench.records import Record, by_key, flat, per_batch
from bench.runners import stream

import dovetail as dt
from dovetail import testing

KEYS = "abcdefghij"


def test_a_table_by_group(spark: Any, tmp_path: Path) -> None:
    """Of each batch the net changes: rows move between groups of both parts."""
    random_ = random.Random(7)
    batches = []
    for batch in range(4):
        records = []
        for number in range(25):
            deleted = random_.random() < 0.2
            value = None if deleted else (random_.choice(["x", "y", "z", "w", None]), "A")
            records.append(Record("G", random_.choice(KEYS), 100 * batch + number, value, deleted))
        batches.append(records)
    answers = stream(
        spark, tmp_path, family, View("G"), batches, emit="batch", restart=True, buckets=2
    )
    assert [*map(family.arranged, answers)] == list(family.each_batch(View("G"), batches))
    assert any(result.values is None for result in flat(answers))


def test_windows_of_two_streams_and_a_table_when_they_are_final(spark: Any, tmp_path: Path) -> None:
    """Windows of keys without further records come out, too, in the batch that closes them."""
    windows = Windows("hopping", 20, 10, 5)
    join = Joined(Joined("L", "outer", "R"), "left", "T")
    view = View(join, (("L", windows), ("R", windows)), final=True)
    random_ = random.Random(8)
    batches = [[Record("T", key, 0, f"t{key}", False) for key in KEYS[:6]]]
    for batch in range(4):
        records = []
        for number in range(20):
            key, side = random_.choice(KEYS), random_.choice("LR")
            records.append(Record(side, key, 20 * batch + number, "A", False))
        batches.append(records)
    answers = stream(spark, tmp_path, family, view, batches, restart=True, buckets=2)
    expected = per_batch(family.each_record(view, flat(batches)), batches)
    assert [*map(by_key, answers)] == [*map(by_key, expected)]
    assert len(flat(answers)) > 20


def test_late_records_are_counted_under_their_own_streams_name(spark: Any, tmp_path: Path) -> None:
    """Of every stream of a query that has windows, in the driver as on Spark. The example is of the
    one bucket that has some, although its text comes after "null".
    """
    times = {"views": [0, 60, 1], "clicks": [0, 60, 1, 2]}
    late = {"views.late": 1, "clicks.late": 2}
    schema = {"user": pa.int64(), "at": pa.timestamp("us", "UTC")}

    def joined(streams: dict[str, dt.Stream]) -> dt.Table:
        views, clicks = (
            streams[name]
            .group_by("user")
            .window(dt.windows.tumbling("10 s"))
            .agg(**{name: dt.count()})
            for name in times
        )
        return views.join(clicks, how="outer").to_table()

    given = {name: testing.stream(name, key="user", schema=schema) for name in times}
    driver = testing.Driver(joined(given))
    read = {}
    for name, seconds in times.items():
        rows = [{"user": 1, "at": 1_000_000 * at} for at in seconds]
        driver.pipe(given[name], rows, timestamp=[row["at"] for row in rows])
        (tmp_path / name).mkdir()
        pq.write_table(pa.Table.from_pylist(rows, pa.schema(schema)), tmp_path / name / "0.parquet")
        frame = spark.readStream.schema("user long, at timestamp").parquet(str(tmp_path / name))
        read[name] = dt.Stream.from_changelog(frame, key="user", timestamp="at", name=name)
    assert driver.counts == late

    query = joined(read).write_stream(
        dt.to_parquet(tmp_path / "out"),
        checkpoint=tmp_path / "checkpoint",
        trigger={"availableNow": True},
        buckets=2,
    )
    query.awaitTermination()
    counted, examples = Counter[str](), set[str]()
    for progress in query.recentProgress:
        unused = {n: row for n, row in progress.observedMetrics.items() if "records" in row}
        examples |= {row.example for row in unused.values() if row.records}
        counted.update({n: row.records for n, row in unused.items() if row.records})
    assert counted == late
    assert examples == {*driver.examples.values()}
