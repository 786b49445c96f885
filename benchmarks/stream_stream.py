"""Two streams joined within a window: the stage beside Spark's own stream-stream inner join.

Micro-batches of 200 thousand records, half of either side, 20 k keys, values of 100 bytes, from
Parquet files to nowhere; a window of a minute to both sides, a minute of grace or watermark. The
stage keeps its state on RocksDB; Spark's join is run on RocksDB, too, and on its default store,
which keeps the state in memory. The ratio is to the faster of the two.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

import dovetail as dt
from benchmarks import harness
from benchmarks.table_table import read_side, write_side

RECORDS, KEYS = 200_000, 20_000
WARM_UP, COUNTED = 1, 3
STORE = "spark.sql.streaming.stateStore.providerClass"
IN_MEMORY = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
SPAN = "1 minute"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=1, help="counted rounds (1)")


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
                dt.Stream.from_changelog(
                    read_side(spark, data, side), key="k", timestamp="ts", name=side
                )
                for side in ("left", "right")
            )
            joined = left.join(right, within=dt.within(before=SPAN, after=SPAN, grace=SPAN))
            return joined.write_stream(
                harness.Nowhere(), checkpoint=checkpoint, trigger={"availableNow": True}
            )

        def native(checkpoint: str, store: str) -> StreamingQuery:
            spark.conf.set(STORE, store)

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

        settings = dt.checkpoints.settings(partitions=2)
        for key, value in settings.items():
            spark.conf.set(key, value)
        contenders: dict[str, Callable[[str], StreamingQuery]] = {
            "native on RocksDB": lambda checkpoint: native(checkpoint, settings[STORE]),
            "native in memory": lambda checkpoint: native(checkpoint, IN_MEMORY),
            "stage": stage,
        }
        rates = harness.in_turn(contenders, data, rounds=arguments.rounds, warm_up=WARM_UP)
    natives = [name for name in rates if name != "stage"]
    over = {name: rates["stage"] / rates[name] for name in natives}
    harness.show(
        f"micro-batches of {RECORDS:,} records, {KEYS:,} keys, values of 100 bytes; the median, "
        f"{WARM_UP} first not counted",
        [
            ("", "records/s", "stage is"),
            *(
                (f"Spark's inner join, {name}", f"{rates[name]:,.0f}", f"{over[name]:.2f} x")
                for name in natives
            ),
            ("dovetail stage", f"{rates['stage']:,.0f}", ""),
        ],
    )
    spark.stop()
    return {"stage_over_native_join": round(min(over.values()), 3)}
