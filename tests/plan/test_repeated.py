"""What would make other rows when a micro-batch is run again is refused as the plan is built."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

import dovetail as dt
from dovetail import testing

SCHEMA = {"id": pa.int64(), "v": pa.string()}


def table(name: str = "rows") -> dt.Table:
    return testing.table(name, key="id", schema=SCHEMA)


def stream() -> dt.Stream:
    return testing.stream("records", key="id", schema=SCHEMA)


def named() -> dt.Table:
    return testing.table("names", key="v", schema={"v": pa.string(), "long": pa.string()})


def windowed(name: str = "records") -> dt.WindowedTable:
    records = testing.stream(name, key="id", schema=SCHEMA)
    hours = records.group_by("v").window(dt.windows.tumbling("1 hour"))
    return hours.agg(n=dt.count())


# Each with what its error says of it; None for those that are the same each time.
EXPRESSIONS: dict[str, tuple[Callable[[], Column], str | None]] = {
    "rand": (F.rand, "rand()"),
    "seeded": (lambda: F.rand(7) + 1, "rand()"),
    "uuid": (lambda: F.expr("uuid()"), "uuid()"),
    "numbered": (F.monotonically_increasing_id, "monotonically_increasing_id()"),
    "partition": (F.spark_partition_id, "SPARK_PARTITION_ID()"),
    "shuffled": (lambda: F.shuffle(F.array("v"))[0], "shuffle"),
    "python": (
        lambda: F.udf(lambda _: random.random(), "double").asNondeterministic()("v"),
        "<lambda>",
    ),
    "same": (lambda: F.udf(lambda _: 1, "int")("v"), None),
    "now": (F.current_timestamp, None),
    "file": (lambda: F.concat(F.input_file_name(), "v"), None),
}
REFUSED: list[Callable[[Column], Any]] = [
    lambda c: table().with_columns(r=c),
    lambda c: table().with_columns(r=c).materialize(),
    lambda c: table().where(c.cast("string") > "5"),
    lambda c: stream().where(c.cast("string") > "5"),
    lambda c: stream().key_by(r=c.cast("string")),
    lambda c: table().key_by(r=c.cast("string")),
    lambda c: table().join(named(), on=c.cast("string")),
    lambda c: table().with_columns(r=c).union(table("b").with_columns(r=c), source="of"),
    lambda c: table().join(table("b").select(), select={"r": c}).group_by("r").agg(n=dt.count()),
    lambda c: table().join(table("b").select(), select={"r": c}).to_stream().key_by("r"),
    lambda c: (
        table()
        .group_by("v")
        .agg(n=dt.count())
        .to_stream()
        .with_columns(r=c)
        .rename({"r": "q"})
        .key_by("q")
    ),
    lambda c: windowed().to_stream(select={"r": c.cast("string"), "n": "n"}, key="r"),
    lambda c: (
        windowed()
        .join(windowed("others"), select={"r": c.cast("string")})
        .to_stream(select=["r"], key="r")
    ),
]
TAKEN: list[Callable[[Column], Any]] = [
    lambda c: table().join(table("b").select(), select={"r": c}),
    lambda c: table().group_by("v").agg(n=dt.count()).with_columns(r=c),
    lambda c: stream().with_columns(r=c).select("r"),
    lambda c: windowed().to_stream(select={"v": "v", "r": c}),
]


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_values_that_are_others_each_time(spark: SparkSession, name: str) -> None:
    made, said = EXPRESSIONS[name]
    for number, topology in enumerate([*REFUSED, *TAKEN]):
        if number % 3 and name not in ("rand", "now"):
            continue
        if number >= len(REFUSED) or said is None:
            testing.Driver(topology(made()), spark=spark)
            continue
        with pytest.raises(dt.errors.PlanError, match="run again after a failure") as refused:
            testing.Driver(topology(made()), spark=spark)
        assert said.lower() in str(refused.value).lower()


def test_what_reads_an_input(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.readStream.schema("id long, v string, at timestamp").json(str(tmp_path))
    draw = F.rand()

    def read(frame: Any, **roles: Any) -> Any:
        return dt.Table.from_changelog(frame, **{"key": "id", "timestamp": "at", **roles})

    refused: list[Callable[[], Any]] = [
        lambda: read(frame, timestamp=F.timestamp_seconds(draw)),
        lambda: read(frame, deleted=draw > 0),
        lambda: read(frame, sequence=(9 * draw).cast("long")),
        lambda: read(frame.withColumn("r", draw)),
        lambda: read(frame.where(draw > 0)),
        lambda: read(frame.sample(0.5)),
    ]
    for call in refused:
        with pytest.raises(dt.errors.PlanError, match=r"(rand|sample).*run again after a failure"):
            call()
    read(frame.withColumn("f", F.input_file_name()), timestamp=F.current_timestamp())
    # A frame that does not change is read once.
    rows = spark.createDataFrame([(1, "a")], "id long, v string").withColumn("r", draw)
    dt.Table.from_static(rows, key="id", name="rows")
