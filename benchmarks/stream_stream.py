"""Two streams joined within a window: the stage beside Spark's own stream-stream inner join.

Micro-batches of one million records, half of either side, 100 k keys, values of 100 bytes, from
Parquet files to nowhere; a window of a minute to both sides, a minute of grace or watermark. Both
keep their state on RocksDB with changelog checkpoints.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

import dovetail as dt
from benchmarks import harness
from benchmarks.table_table import KEYS, RECORDS, read_side, write_side

WARM_UP, COUNTED = 2, 2
SPAN = "1 minute"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=2, help="counted rounds (2)")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    spark = harness.session()
    with harness.workspace() as data:
        rng = np.random.default_rng(42)
        for side in ("left", "right"):
            for number in range(WARM_UP + COUNTED):
                keys = rng.integers(0, KEYS, RECORDS // 2)
                first = number * RECORDS + (side == "right")
                write_side(data / side / f"{number}.parquet", side, keys, first, 2)

        def stage(checkpoint: str) -> StreamingQuery:
            left, right = (
                dt.Stream.from_df(read_side(spark, data, side), key="k", timestamp="ts", name=side)
                for side in ("left", "right")
            )
            joined = left.join(right, within=dt.within(before=SPAN, after=SPAN, grace=SPAN))
            return joined.write_stream(
                harness.Nowhere(), checkpoint=checkpoint, trigger="available now"
            )

        def native(checkpoint: str) -> StreamingQuery:
            def side(name: str) -> DataFrame:
                frame = read_side(spark, data, name).withWatermark("ts", SPAN)
                return frame.withColumnsRenamed({"k": f"{name}_k", "ts": f"{name}_ts"})

            near = F.expr(
                "left_k = right_k AND right_ts >= left_ts - INTERVAL 1 MINUTE "
                "AND right_ts <= left_ts + INTERVAL 1 MINUTE"
            )
            joined = side("left").join(side("right"), near)
            writer = joined.writeStream.format("noop").outputMode("append")
            return (
                writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
            )

        for key, value in dt.settings(partitions=2).items():
            spark.conf.set(key, value)
        contenders = {"native": native, "stage": stage}
        rates = harness.in_turn(contenders, data, rounds=arguments.rounds, warm_up=WARM_UP)
    over = rates["stage"] / rates["native"]
    harness.show(
        f"micro-batches of {RECORDS:,} records, {KEYS:,} keys, values of 100 bytes; the median, "
        f"{WARM_UP} first not counted",
        [
            ("", "records/s", "stage is"),
            ("Spark's stream-stream inner join", f"{rates['native']:,.0f}", f"{over:.2f} x"),
            ("dovetail stage", f"{rates['stage']:,.0f}", ""),
        ],
    )
    spark.stop()
    return {"stage_over_native_join": round(over, 3)}
