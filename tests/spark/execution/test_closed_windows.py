"""What stream time closes comes in the order of the record that closes it, as in the driver."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import dovetail as dt
from dovetail import testing

BEGIN = datetime(2024, 5, 1, tzinfo=timezone.utc)
RECORDS = [
    ("clicks", 8, 1, 1),
    ("prices", 15, 1, 1),
    ("clicks", 16, 2, 1),
    ("prices", 22, 1, 2),
    ("clicks", 25, 1, 2),
    ("prices", 30, 1, 3),
    ("prices", 31, 2, 4),
    ("clicks", 32, 2, 3),
    ("clicks", 33, 1, 4),
    ("clicks", 75, 3, 5),
    ("prices", 76, 1, 5),
    ("clicks", 77, 1, 6),
    ("clicks", 99, 3, 7),
]
"""Input, second, key and value of each record. That of second 75 closes several windows."""
TEN_SECONDS = dt.windows.tumbling("10 s")


def counts(clicks: dt.Stream) -> Any:
    return clicks.group_by("id").window(TEN_SECONDS).agg(n=dt.count(), last=dt.last("v"))


def unmatched(clicks: dt.Stream) -> dt.Stream:
    later = clicks.rename({"v": "w"})
    return clicks.join(
        later, how="left", within=dt.within(before="-1 s", after="4 s"), select=["v", "w"]
    )


TOPOLOGIES: dict[str, Callable[[dt.Stream, dt.Table], dt.Table | dt.Stream]] = {
    "windows with a table": lambda clicks, prices: (
        counts(clicks)
        .to_stream(windows="on_close")
        .join(prices, on="id", how="left", select=["n", "v"])
    ),
    "the last window of a key": lambda clicks, prices: (
        counts(clicks)
        .to_stream(windows="on_close")
        .select("n", "last")
        .to_table()
        .join(prices, how="left", select=["n", "last", "v"])
    ),
    "windows as a table": lambda clicks, prices: (
        counts(clicks)
        .to_table(windows="on_close")
        .group_by("id")
        .agg(n=dt.count())
        .join(prices, how="outer", select={"n": "left.n", "v": "right.v"})
    ),
    "windows with their stream": lambda clicks, prices: (
        counts(clicks)
        .to_stream(windows="on_close")
        .select("n", "last")
        .join(clicks, within=dt.within(before="20 s", after="5 s"), select=["n", "v"])
        .join(prices, how="left", select={"n": "left.n", "v": "left.v", "p": "right.v"})
    ),
    "unmatched records with a table": lambda clicks, prices: unmatched(clicks).join(
        prices, how="left", select={"v": "left.v", "p": "right.v"}
    ),
}


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_a_result_comes_where_its_window_is_closed(spark: SparkSession, name: str) -> None:
    schema = {"id": pa.int64(), "v": pa.int64()}
    clicks = testing.stream("clicks", key="id", schema=schema)
    prices = testing.table("prices", key="id", schema=schema)
    fed = {"clicks": clicks, "prices": prices}
    driver = testing.Driver(TOPOLOGIES[name](clicks, prices))
    changes = []
    for input_, second, id_, v in RECORDS:
        time = BEGIN + timedelta(seconds=second)
        changes += driver.pipe(fed[input_], {"id": id_, "v": v}, timestamp=time)
    changes += driver.end_input()
    expected: dict[Any, list[Any]] = defaultdict(list)
    for change in changes:
        expected[change.key["id"]].append(change.values)
    assert len(changes) > 5

    def read(input_: str) -> Any:
        rows = [(i, v, BEGIN + timedelta(seconds=s)) for n, s, i, v in RECORDS if n == input_]
        frame = spark.createDataFrame(rows, "id long, v long, at timestamp").coalesce(1)
        kind = dt.Stream if input_ == "clicks" else dt.Table
        return kind.from_changelog(frame, key="id", timestamp="at", name=input_)

    topology = TOPOLOGIES[name](read("clicks"), read("prices"))
    columns = [field.name for field in topology.plan.values]
    for buckets in (1, 3):
        found: dict[Any, list[Any]] = defaultdict(list)
        rows = topology.changelog(buckets=buckets).collect()
        for row in sorted(rows, key=lambda row: row["_position"]):
            gone = row.asDict().get("_change") == "delete"
            found[row["id"]].append(None if gone else {name: row[name] for name in columns})
        assert found == expected
