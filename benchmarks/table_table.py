"""Table-table inner joins by key: the stage beside Spark's own means, and Kafka Streams.

Three parts. ``speed``: micro-batches of one million records, 100 k keys, values of 100 bytes, from
Parquet files to nowhere. The stage gives every record's own result; Spark's native aggregation, in
update mode, one row per key, which is less work: each key's latest value, which like a join has to
keep the values, and for the record each key's count, which does not. A ``StatefulProcessor`` per
key is run on a sample. ``kafka``: the same from two topics to a topic, beside Kafka Streams and a
plain copy. ``state``: batches of 10 k records against 100 k to 10 M stored keys.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import dovetail as dt
from benchmarks import harness

RECORDS, KEYS = 1_000_000, 100_000
WARM_UP, COUNTED = 3, 3
SAMPLE = 20_000
STATE_KEYS = (100_000, 1_000_000, 10_000_000)
STATE_BATCHES, STATE_BATCH_RECORDS = 20, 10_000
PAD = "abcdefghijklmnopqrstuvwxyz" * 4
PARTS = ("speed", "kafka", "state")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=2, help="counted rounds (2)")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {','.join(PARTS)} (all)")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    parts = arguments.parts.split(",")
    spark = harness.session()
    figures: dict[str, Any] = {}
    with harness.workspace() as directory:
        if "speed" in parts:
            figures |= speed(spark, directory, arguments.rounds)
        if "kafka" in parts:
            figures |= kafka(spark, directory)
        if "state" in parts:
            figures |= state(spark, directory)
    spark.stop()
    return figures


def write_side(path: Path, side: str, keys: Any, first: int, step: int) -> None:
    """One Parquet file: record i has key ``keys[i]``, a value of 100 bytes and its own
    millisecond."""
    number = first + step * np.arange(len(keys))
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = {
        "k": joined("k", 1_000_000 + keys),
        side: pc.utf8_slice_codeunits(joined(side, number, PAD), 0, 100),
        "ts": pa.array(1_600_000_000_000_000 + 1000 * number, pa.timestamp("us", tz="UTC")),
    }
    pq.write_table(pa.table(columns), path)


def joined(prefix: str, numbers: Any, suffix: str = "") -> pa.Array:
    """Text around numbers."""
    return pc.binary_join_element_wise(prefix, pa.array(numbers).cast(pa.string()), suffix, "")


def read_side(spark: SparkSession, directory: Path, side: str) -> DataFrame:
    reader = spark.readStream.schema(f"k string, {side} string, ts timestamp")
    return reader.option("maxFilesPerTrigger", 1).parquet(str(directory / side))


def table(spark: SparkSession, directory: Path, side: str) -> dt.Table:
    frame = read_side(spark, directory, side)
    return dt.Table.from_changelog(frame, key="k", timestamp="ts", name=side)


def stage_query(spark: SparkSession, directory: Path, checkpoint: str) -> StreamingQuery:
    joined = table(spark, directory, "left").join(table(spark, directory, "right"))
    return joined.write_stream(
        harness.Nowhere(), checkpoint=checkpoint, trigger={"availableNow": True}
    )


def speed(spark: SparkSession, directory: Path, rounds: int) -> dict[str, Any]:
    data = directory / "speed"
    rng = np.random.default_rng(42)
    for side in ("left", "right"):
        for number in range(WARM_UP + COUNTED):
            keys = rng.integers(0, KEYS, RECORDS // 2)
            first = number * RECORDS + (side == "right")
            write_side(data / side / f"{number}.parquet", side, keys, first, 2)
        write_side(data / "sample" / side / "0.parquet", side, keys[: SAMPLE // 2], 0, 2)

    def native(checkpoint: str, *aggregates: Column) -> StreamingQuery:
        sides = [
            read_side(spark, data, side).withColumnRenamed(side, "value")
            for side in ("left", "right")
        ]
        grouped = sides[0].union(sides[1]).groupBy("k").agg(*aggregates)
        writer = grouped.writeStream.outputMode("update").format("noop")
        return writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()

    def per_key(checkpoint: str) -> StreamingQuery:
        sides = [
            read_side(spark, data / "sample", side)
            .withColumnRenamed(side, "value")
            .withColumn("side", F.lit(side))
            for side in ("left", "right")
        ]
        joined = (
            sides[0]
            .union(sides[1])
            .groupBy("k")
            .transformWithStateInPandas(
                PerKeyJoin(), "k string, left string, right string", "append", "none"
            )
        )
        writer = joined.writeStream.outputMode("append").format("noop")
        return writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()

    rates = harness.in_turn(
        {
            "native latest": lambda c: native(c, F.max_by("value", "ts")),
            "native count": lambda c: native(c, F.count("value"), F.max("ts")),
            "stage": lambda c: stage_query(spark, data, c),
        },
        directory,
        rounds=rounds,
        warm_up=WARM_UP,
    )
    rates |= harness.in_turn({"per key": per_key}, directory, rounds=1)
    over_latest = rates["stage"] / rates["native latest"]
    over_count = rates["stage"] / rates["native count"]
    over_per_key = rates["stage"] / rates["per key"]
    harness.show(
        f"micro-batches of {RECORDS:,} records, {KEYS:,} keys, values of 100 bytes; "
        f"the median, {WARM_UP} first not counted",
        [
            ("", "records/s", "stage is"),
            (
                "native aggregation, each key's latest value (one row per key)",
                f"{rates['native latest']:,.0f}",
                f"{over_latest:.2f} x",
            ),
            (
                "native aggregation, each key's count (no values; one row per key)",
                f"{rates['native count']:,.0f}",
                f"{over_count:.2f} x",
            ),
            ("dovetail stage (every record's result)", f"{rates['stage']:,.0f}", ""),
            (
                f"per-key processor (extrapolated from {SAMPLE:,} records)",
                f"{rates['per key']:,.0f}",
                f"{over_per_key:,.0f} x",
            ),
        ],
    )
    return {
        "stage_over_native": round(over_latest, 3),
        "stage_over_native_count": round(over_count, 3),
        "stage_over_per_key": round(over_per_key, 1),
    }


class PerKeyJoin(StatefulProcessor):
    """The join as PySpark's documentation teaches state: a call per key, a value per side."""

    def init(self, handle: Any) -> None:
        self.sides = {
            side: handle.getValueState(side, "value string") for side in ("left", "right")
        }

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        held = {side: state.get() for side, state in self.sides.items()}
        values = {side: row[0] if row is not None else None for side, row in held.items()}
        out = []
        for frame in rows:
            for row in frame.itertuples(index=False):
                values[row.side] = row.value
                if values["left"] is not None and values["right"] is not None:
                    out.append((key[0], values["left"], values["right"]))
        for side, value in values.items():
            if value is not None:
                self.sides[side].update((value,))
        if out:
            yield pd.DataFrame(out, columns=["k", "left", "right"])

    def close(self) -> None:
        pass


def kafka(spark: SparkSession, directory: Path) -> dict[str, Any]:
    peer = Path(__file__).resolve().parent.parent.parent / "shared" / "kafka-streams"
    if not (peer / "bench").exists() or not (harness.CACHE / "jars" / "kafka").exists():
        harness.note("kafka: skipped, Kafka Streams' benchmark or Kafka's jars are not here")
        return {}
    subprocess.run([peer / "broker" / "start"], check=True, capture_output=True)
    try:
        subprocess.run([peer / "bench", "gen", "kv"], check=True, capture_output=True)
        servers = "127.0.0.1:19092"

        def side(topic: str, name: str) -> dt.Table:
            return dt.Table.from_topic(spark, topic, servers=servers, name=name)

        def kafka_to_kafka(checkpoint: str) -> StreamingQuery:
            both = side("kv-L", "left").join(
                side("kv-R", "right"),
                select={"value": F.concat_ws("+", "left.value", "right.value")},
            )
            return both.write_stream(
                dt.to_topic("dovetail-out", servers=servers, key="string", value="string"),
                checkpoint=checkpoint,
                trigger={"availableNow": True},
            )

        def copy(checkpoint: str) -> StreamingQuery:
            frame = (
                spark.readStream.format("kafka")
                .option("kafka.bootstrap.servers", servers)
                .option("subscribe", "kv-L,kv-R")
                .option("startingOffsets", "earliest")
                .load()
            )
            writer = frame.select("key", "value").writeStream.format("kafka")
            return (
                writer.option("kafka.bootstrap.servers", servers)
                .option("topic", "dovetail-copy")
                .option("checkpointLocation", checkpoint)
                .trigger(availableNow=True)
                .start()
            )

        rates = harness.in_turn({"copy": copy, "stage": kafka_to_kafka}, directory, rounds=2)
        answer = subprocess.run(
            [peer / "bench", "run", "table_table_inner", "nocache"],
            check=True,
            capture_output=True,
            text=True,
        )
        streams = json.loads(answer.stdout.strip().splitlines()[-1])["in_per_s"]
    finally:
        subprocess.run([peer / "broker" / "stop", "wipe"], check=False, capture_output=True)
    over = rates["stage"] / streams
    harness.show(
        f"{RECORDS:,} records from Kafka to Kafka, one broker on this machine",
        [
            ("", "records/s", "stage is"),
            ("Kafka Streams, table-table inner, cache off", f"{streams:,.0f}", f"{over:.2f} x"),
            ("dovetail stage", f"{rates['stage']:,.0f}", ""),
            (
                "Spark, a plain copy",
                f"{rates['copy']:,.0f}",
                f"{rates['stage'] / rates['copy']:.2f} x",
            ),
        ],
    )
    return {
        "kafka_over_kafka_streams": round(over, 3),
        "kafka_over_copy": round(rates["stage"] / rates["copy"], 3),
    }


def state(spark: SparkSession, directory: Path) -> dict[str, Any]:
    """A left table of so many keys; then batches, half of them left and half right updates."""
    rows = [("stored keys", "median batch s", "slowest / median", "peak memory MB")]
    medians = {}
    worst = 0.0
    for keys in STATE_KEYS:
        data, checkpoint = directory / f"state-{keys}", directory / f"checkpoint-{keys}"
        loads = range(0, keys, 1_000_000)
        for number, first in enumerate(loads):
            loaded = np.arange(first, min(first + 1_000_000, keys))
            write_side(data / "left" / f"load{number:03d}.parquet", "left", loaded, first, 1)
        (data / "right").mkdir()
        harness.note(f"  state: storing {keys:,} keys")
        harness.timed(lambda c, d=data: stage_query(spark, d, c), checkpoint)
        rng = np.random.default_rng(7)
        for number in range(STATE_BATCHES):
            for side in ("left", "right"):
                updated = rng.integers(0, keys, STATE_BATCH_RECORDS // 2)
                first = keys + number * STATE_BATCH_RECORDS
                write_side(data / side / f"update{number:03d}.parquet", side, updated, first, 1)
        measured = harness.timed(lambda c, d=data: stage_query(spark, d, c), checkpoint)
        assert measured.rows == (STATE_BATCH_RECORDS,) * STATE_BATCHES, measured.rows
        batches = measured.batch_ms[2:]
        medians[keys] = median(batches)
        worst = max(worst, max(batches) / medians[keys])
        rows.append(
            (
                f"{keys:,}",
                f"{medians[keys] / 1000:.2f}",
                f"{max(batches) / medians[keys]:.2f}",
                f"{harness.peak_memory_mb():,}",
            )
        )
        shutil.rmtree(data)
        shutil.rmtree(checkpoint)
    harness.show(f"batches of {STATE_BATCH_RECORDS:,} records, the first two not counted", rows)
    return {
        "cost_10m_over_100k": round(medians[STATE_KEYS[-1]] / medians[STATE_KEYS[0]], 3),
        "slowest_over_median": round(worst, 2),
        "peak_memory_mb": harness.peak_memory_mb(),
    }
