"""Table-table inner joins by foreign key: beside Kafka Streams, every result counted, and skew.

``kafka``: a million records of two topics joined to a third, with every record's own result, by
this join, by Kafka Streams and, not joined, by a plain copy. The results that come are compared
with those owed, one by one. There are two inputs: left rows that come once, and left rows that come
ten times, mostly with another foreign key; and two ways to read them: all there is in one
micro-batch, as a query does by default, and in four. What Kafka Streams owes is
counted in the order of the records' times; it misses results where right records overtake left ones
on their way through its topics, and drops those of left rows that have changed meanwhile. The rates
leave out the start: of Kafka Streams, until it runs; of Spark, the planning of the first
micro-batch. They are medians of the rounds (of two in the middle Kafka Streams has the greater);
with dovetail's settings Kafka Streams runs once.

``files``: such inputs from Parquet files to Parquet files. ``fan-out``: updates of one right row to
which 2 k, 20 k and 200 k left rows refer. ``hot``: batches of cold keys, without and with a right
row beside them to which 200 k left rows refer. ``spread``: updates of one right row to which
``--hot-rows`` left rows refer, in turn by a join with ``spread=4`` and by one without.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

import dovetail as dt
from benchmarks import harness
from benchmarks.foreign_key_results import Difference, difference, owed
from benchmarks.table_table import PAD, joined
from dovetail.io.sources.kafka import SINK_DEFAULTS
from dovetail.spark.session import HUGE_PAGES, MEMORY

PARTS = ("kafka", "files", "fan-out", "hot", "spread")
ONCE, MOVING = "fku", "fk"
"""The inputs, as Kafka Streams' benchmark calls them."""

TITLES = {ONCE: "left rows that come once", MOVING: "left rows that come ten times"}
OPERATIONS = {ONCE: "fk_inner_uniq", MOVING: "fk_inner"}
BATCHES, PARTITIONS = 4, 4
WHOLE, CUT = "dovetail-1", f"dovetail-{BATCHES}"
READINGS = {WHOLE: 1, CUT: BATCHES}
"""Contenders by the number of micro-batches in which they read."""

RIGHT_EVERY = 50
FAN_OUTS = (2_000, 20_000, 200_000)
COLD_KEYS, COLD_ROWS, COLD_BATCH_RECORDS = 20_000, 200_000, 10_000
UPDATES, WARM_UP, TURNS = 8, 2, 2
SPREADS = (1, 4)
SERVERS = "127.0.0.1:19092"
PRODUCER = ",".join(
    f"producer.{name.removeprefix('kafka.')}={value}" for name, value in SINK_DEFAULTS.items()
)
"""For Kafka Streams what ``dt.to_topic`` sets for Spark's sink."""
PEER = Path(__file__).resolve().parent.parent.parent / "shared" / "kafka-streams"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=1, help="counted rounds (1)")
    parser.add_argument("--records", type=int, default=1_000_000, help="of each input (1000000)")
    parser.add_argument("--hot-rows", type=int, default=FAN_OUTS[-1], help="for spread (200000)")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {','.join(PARTS)} (all)")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    parts = arguments.parts.split(",")
    spark = harness.session()
    figures: dict[str, Any] = {}
    found: list[Difference] = []
    with harness.workspace() as directory:
        if "kafka" in parts:
            figures |= kafka(spark, directory, arguments.records, arguments.rounds, found)
        if "files" in parts:
            figures |= files(spark, directory, arguments.records, arguments.rounds, found)
        if "fan-out" in parts:
            figures |= fan_out(spark, directory)
        if "hot" in parts:
            figures |= hot(spark, directory)
        if "spread" in parts:
            figures |= spread(spark, directory, arguments.hot_rows)
    spark.stop()
    if found:
        figures |= {
            "results_owed": sum(one.owed for one in found),
            "results_dropped": sum(one.dropped for one in found),
            "results_surplus": sum(one.surplus for one in found),
            "results_in_order": all(one.in_order for one in found),
        }
    return figures


def foreign_key() -> Column:
    """The right key that a left value begins with, as in Kafka Streams' benchmark."""
    return F.left("value", F.lit(8))


def join(left: dt.Table, right: dt.Table, spread: int | None = None) -> dt.Table:
    both = F.concat_ws("+", "left.value", "right.value")
    return left.join(right, on=foreign_key(), select={"value": both}, spread=spread)


def result_columns() -> list[Column]:
    """Of a result, its key and the numbers of the records in it."""
    left, right = (F.regexp_extract("value", sign + r"(\d+):", 1) for sign in (r"\|L", r"\+R"))
    return [
        F.col("key").cast("string").alias("key"),
        left.try_cast("long").alias("left"),
        right.try_cast("long").alias("right"),
    ]


# From Kafka to Kafka.


def kafka(
    spark: SparkSession, directory: Path, records: int, rounds: int, found: list[Difference]
) -> dict[str, Any]:
    if not (PEER / "bench").exists() or not (harness.CACHE / "jars" / "kafka").exists():
        harness.note("kafka: skipped, Kafka Streams' benchmark or Kafka's jars are not here")
        return {}
    figures: dict[str, Any] = {}
    subprocess.run([PEER / "broker" / "start"], check=True, capture_output=True)
    try:
        for kind in (ONCE, MOVING):
            peer(records, "gen", kind)
            outputs = [
                f"{kind}-{name}-{number}" for name in READINGS for number in range(rounds + 1)
            ]
            create_topics(spark, [f"{kind}-copy", *outputs])
            contenders = {
                name: partial(to_kafka, spark, kind, records, batches)
                for name, batches in READINGS.items()
            }
            if kind == ONCE:
                contenders["copy"] = partial(copy, spark, kind)
            queries = harness.queries_in_turn(contenders, directory, rounds=rounds)
            rate = {name: median(one.running_rate for one in queries[name]) for name in queries}
            for name in READINGS:
                due = owed(read(spark, kind, queries[name][-1].ends))
                found.append(difference(written(spark, f"{kind}-{name}-{rounds}"), due))
            run = ("run", OPERATIONS[kind], "nocache")
            runs = [peer(records, *run) for _ in range(rounds)]
            streams = sorted(runs, key=lambda one: one["in_per_s"])[rounds // 2]
            peers = {"Kafka Streams, cache off": streams}
            if kind == ONCE:
                tuned = peer(records, *run, tuned=True)
                peers["  with the same producer and memory settings"] = tuned
                over = rate[WHOLE] / tuned["in_per_s"]
                figures["over_kafka_streams_same_settings"] = round(over, 3)
            starts_s = {
                name: median(one.start_ms / 1000 for one in queries[name]) for name in READINGS
            }
            show_kafka(kind, records, rate, starts_s, found[-len(READINGS) :], peers)
            name = "kafka_streams" if kind == ONCE else "kafka_streams_moving"
            figures[f"over_{name}"] = round(rate[WHOLE] / streams["in_per_s"], 3)
            figures[f"over_{name}_{BATCHES}_batches"] = round(rate[CUT] / streams["in_per_s"], 3)
            figures[f"{name}_results_owed"] = streams["expected_out"]
            figures[f"{name}_results_dropped"] = streams["expected_out"] - streams["out"]
            if kind == ONCE:
                figures["over_copy"] = round(rate[WHOLE] / rate["copy"], 3)
    finally:
        subprocess.run([PEER / "broker" / "stop", "wipe"], check=False, capture_output=True)
    return figures


def peer(records: int, *command: str, tuned: bool = False) -> Any:
    """What Kafka Streams' benchmark says; ``tuned``: with the settings that dovetail has here."""
    options = f"-Dbench.n={records} -Dbench.keys={records // 10}"
    if tuned:
        options += f" -Dbench.extra={PRODUCER} -XX:+IgnoreUnrecognizedVMOptions {HUGE_PAGES}"
    done = subprocess.run(
        [PEER / "bench", *command],
        check=True,
        capture_output=True,
        text=True,
        env={n: v for n, v in os.environ.items() if tuned or n not in MEMORY} | {"JOPTS": options},
    )
    return json.loads(done.stdout.strip().splitlines()[-1])


def create_topics(spark: SparkSession, names: list[str]) -> None:
    """A topic that is made by the first write to it may refuse that one and take the next."""
    kafka: Any = spark._jvm.org.apache.kafka.clients.admin  # type: ignore[union-attr]  # noqa: SLF001
    admin = kafka.Admin.create({"bootstrap.servers": SERVERS})
    admin.createTopics([kafka.NewTopic(name, PARTITIONS, 1) for name in names]).all().get()
    admin.close()


def to_kafka(
    spark: SparkSession, kind: str, records: int, batches: int, checkpoint: str
) -> StreamingQuery:
    rights = records // RIGHT_EVERY

    def side(topic: str, name: str, most: int) -> dt.Table:
        # A few more, for Spark rounds the share of a partition down.
        limit = None if batches == 1 else most // batches + 10
        return dt.Table.from_topic(spark, topic, servers=SERVERS, name=name, max_per_trigger=limit)

    left, right = side(f"{kind}-L", "left", records - rights), side(f"{kind}-R", "right", rights)
    sink = dt.to_topic(
        f"{kind}-{Path(checkpoint).name}", servers=SERVERS, key="string", value="string"
    )
    return join(left, right).write_stream(
        sink, checkpoint=checkpoint, trigger={"availableNow": True}
    )


def copy(spark: SparkSession, kind: str, checkpoint: str) -> StreamingQuery:
    frame = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", SERVERS)
        .option("subscribe", f"{kind}-L,{kind}-R")
        .option("startingOffsets", "earliest")
        .load()
    )
    writer = frame.select("key", "value").writeStream.format("kafka")
    return (
        writer.option("kafka.bootstrap.servers", SERVERS)
        .option("topic", f"{kind}-copy")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )


def topics(spark: SparkSession, names: str, *columns: Column) -> pl.DataFrame:
    """What topics hold."""
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", SERVERS)
    frame = reader.option("subscribe", names).load()
    frame = frame.withColumn("key", F.col("key").cast("string"))
    frame = frame.withColumn("value", F.col("value").cast("string"))
    table = frame.select("topic", "partition", "offset", "timestamp", *columns).toArrow()
    read = pl.from_arrow(table)
    assert isinstance(read, pl.DataFrame)
    return read


def read(spark: SparkSession, kind: str, ends: Any) -> pl.DataFrame:
    """The records in the order in which a query has read them: micro-batch by micro-batch, in each
    by time, which all records have their own of.
    """
    left, right = f"{kind}-L", f"{kind}-R"
    records = topics(
        spark,
        f"{left},{right}",
        F.col("key"),
        F.when(F.col("topic") == left, foreign_key()).alias("foreign"),
        F.regexp_extract("value", r"[LR](\d+):", 1).cast("long").alias("number"),
    )
    stood = pl.DataFrame(
        [
            {"topic": topic, "partition": int(partition), "end": end, "batch": number}
            for number, sources in enumerate(ends, start=1)
            for source in sources
            for topic, partitions in source.items()
            for partition, end in partitions.items()
        ]
    )
    read = records.sort("offset").join_asof(
        stood.sort("end", "batch").with_columns(pl.col("partition").cast(pl.Int32)),
        left_on="offset",
        right_on="end",
        by=["topic", "partition"],
        check_sortedness=False,
    )
    read = read.sort(pl.col("batch").fill_null(0), "timestamp").with_row_index("seq")
    side = pl.when(pl.col("topic") == left).then(pl.lit("left")).otherwise(pl.lit("right"))
    return read.select("seq", side.alias("side"), "key", "foreign", "number")


def written(spark: SparkSession, topic: str) -> pl.DataFrame:
    return topics(spark, topic, *result_columns()).sort("partition", "offset")


def show_kafka(
    kind: str,
    records: int,
    rate: dict[str, float],
    starts_s: dict[str, float],
    found: Sequence[Difference],
    peers: Mapping[str, Any],
) -> None:
    rows = [("", "records/s", "x Kafka Streams", "start s", "results owed", "emitted", "dropped")]
    first = next(iter(peers.values()))["in_per_s"]

    def show(name: str, rate: float, start: str, *counts: int) -> None:
        numbers = (f"{number:,}" for number in counts)
        rows.append((name, f"{rate:,.0f}", f"{rate / first:.2f}", start, *numbers))

    for name, one in peers.items():
        owes, emits = one["expected_out"], one["out"]
        start = f"{one['start_to_running_s']:.1f}"
        show(name, one["in_per_s"], start, owes, emits, owes - emits)
    for (name, batches), one in zip(READINGS.items(), found, strict=True):
        title = f"dovetail, {batches} micro-batch{'es' if batches > 1 else ''}"
        emits = one.owed - one.dropped + one.surplus
        show(title, rate[name], f"{starts_s[name]:.1f}", one.owed, emits, one.dropped)
    if "copy" in rate:
        rows.append(
            (
                "Spark, a plain copy",
                f"{rate['copy']:,.0f}",
                f"{rate['copy'] / first:.2f}",
                *[""] * 4,
            )
        )
    title = f"{TITLES[kind]}: {records:,} records from Kafka to Kafka, one broker on this machine"
    harness.show(title, rows)


# From files.


def write_records(path: Path, sign: str, keys: Any, numbers: Any, foreign: Any = None) -> None:
    """One Parquet file of records with values of 100 bytes as Kafka Streams' benchmark has them,
    each with its own millisecond. Keys are numbers.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    named = pa.scalar("") if foreign is None else joined("k", 1_000_000 + foreign, "|")
    value = pc.binary_join_element_wise(named, joined(sign, numbers, ":" + PAD), "")
    columns = {
        "key": joined("k", 1_000_000 + keys),
        "value": pc.utf8_slice_codeunits(value, 0, 100),
        "ts": pa.array(1_600_000_000_000_000 + 1000 * numbers, pa.timestamp("us", tz="UTC")),
    }
    pq.write_table(pa.table(columns), path)


def from_files(spark: SparkSession, data: Path, spread: int | None = None) -> dt.Table:
    def side(name: str) -> dt.Table:
        reader = spark.readStream.schema("key string, value string, ts timestamp")
        frame = reader.option("maxFilesPerTrigger", 1).parquet(str(data / name))
        return dt.Table.from_changelog(frame, key="key", timestamp="ts", name=name)

    return join(side("left"), side("right"), spread)


def files(
    spark: SparkSession, directory: Path, records: int, rounds: int, found: list[Difference]
) -> dict[str, Any]:
    shown: list[tuple[str, ...]] = [("", "records/s", "results owed", "emitted", "dropped")]
    figures = {}
    for kind in (ONCE, MOVING):
        data = directory / f"files-{kind}"
        given = write_input(data, kind, records)

        def to_files(checkpoint: str, data: Path = data) -> StreamingQuery:
            sink = dt.to_parquet(f"{data}/out-{Path(checkpoint).name}")
            return from_files(spark, data).write_stream(
                sink, checkpoint=checkpoint, trigger={"availableNow": True}
            )

        queries = harness.queries_in_turn({"dovetail": to_files}, directory, rounds=rounds)
        rate = median(one.rate for one in queries["dovetail"])
        came = spark.read.parquet(f"{data}/out-dovetail-{rounds}")
        emitted = pl.from_arrow(came.select("_position", *result_columns()).toArrow())
        assert isinstance(emitted, pl.DataFrame)
        one = difference(emitted.sort("_position"), owed(given))
        found.append(one)
        emitted = one.owed - one.dropped + one.surplus
        counts = (f"{number:,}" for number in (one.owed, emitted, one.dropped))
        shown.append((TITLES[kind], f"{rate:,.0f}", *counts))
        figures[f"files_records_per_s{'_moving' if kind == MOVING else ''}"] = round(rate)
    harness.show(f"{records:,} records from Parquet files to Parquet, {BATCHES} batches", shown)
    return figures


def write_input(data: Path, kind: str, records: int) -> pl.DataFrame:
    """Files of records as Kafka Streams' benchmark makes them; the same as ``owed`` takes them."""
    rng = np.random.default_rng(42)
    number = np.arange(records)
    right = number % RIGHT_EVERY == 0
    left_keys, right_keys = records // 10, records // 100
    left_key = np.cumsum(~right) - 1 if kind == ONCE else rng.integers(0, left_keys, records)
    key = np.where(right, rng.integers(0, right_keys, records), left_key)
    foreign = rng.integers(0, right_keys, records)
    for batch, own in enumerate(np.array_split(number, BATCHES)):
        rights, lefts = own[right[own]], own[~right[own]]
        write_records(data / "right" / f"{batch}.parquet", "R", key[rights], rights)
        write_records(data / "left" / f"{batch}.parquet", "L", key[lefts], lefts, foreign[lefts])
    return pl.DataFrame(
        {
            "seq": number,
            "side": np.where(right, "right", "left"),
            "key": joined("k", 1_000_000 + key).to_numpy(zero_copy_only=False),
            "foreign": joined("k", 1_000_000 + foreign).to_numpy(zero_copy_only=False),
            "number": number,
        }
    )


# Skew.


def to_nowhere(
    spark: SparkSession, data: Path, checkpoint: Path, spread: int | None = None
) -> harness.Timed:
    return harness.timed(
        lambda place: from_files(spark, data, spread).write_stream(
            harness.Nowhere(), checkpoint=place, trigger={"availableNow": True}
        ),
        checkpoint,
    )


def fan_out(spark: SparkSession, directory: Path) -> dict[str, Any]:
    """Batches of one record, an update of a right row to which so many left rows refer."""
    shown = [
        ("left rows", "median batch s", "slowest / median", "peak memory MB", "of its workers")
    ]
    seconds = {}
    for rows in FAN_OUTS:
        data, checkpoint = directory / f"fan-out-{rows}", directory / f"fan-out-checkpoint-{rows}"
        number = np.arange(rows)
        write_records(data / "left" / "load.parquet", "L", number, number, np.zeros(rows, np.int64))
        write_records(data / "right" / "load.parquet", "R", number[:1], number[:1])
        to_nowhere(spark, data, checkpoint)
        for update in range(WARM_UP + UPDATES):
            path = data / "right" / f"update{update:03d}.parquet"
            write_records(path, "R", number[:1], np.array([rows + update]))
        harness.forget_peaks()
        batches = to_nowhere(spark, data, checkpoint).batch_ms[WARM_UP:]
        assert len(batches) == UPDATES, batches
        seconds[rows] = median(batches) / 1000
        shown.append(
            (
                f"{rows:,}",
                f"{seconds[rows]:.2f}",
                f"{max(batches) / 1000 / seconds[rows]:.2f}",
                f"{harness.peak_memory_mb():,}",
                f"{harness.peak_memory_mb(workers=True):,}",
            )
        )
    harness.show("updates of one right row, each to every left row that refers to it", shown)
    some, many = (seconds[rows] for rows in FAN_OUTS[1:])
    return {
        "fan_out_200k_over_20k": round(many / some, 2),
        "fan_out_us_per_result": round(1e6 * (many - some) / (FAN_OUTS[2] - FAN_OUTS[1]), 2),
        "fan_out_peak_workers_mb": harness.peak_memory_mb(workers=True),
    }


def hot(spark: SparkSession, directory: Path) -> dict[str, Any]:
    """Batches of records of cold keys, half of them left and half right: in turn in a table without
    and in one with a hot key.
    """
    hot_rows = (0, FAN_OUTS[-1])
    batches: dict[int, list[int]] = {rows: [] for rows in hot_rows}
    for turn in range(1 + TURNS):
        for rows in hot_rows:
            data = directory / f"hot-{rows}"
            if turn == 0:
                load_cold(data, rows)
            else:
                update_cold(data, turn, np.random.default_rng(turn))
            measured = to_nowhere(spark, data, directory / f"hot-checkpoint-{rows}")
            batches[rows] += measured.batch_ms[WARM_UP:] if turn else ()
    seconds = {rows: median(batches[rows]) / 1000 for rows in hot_rows}
    harness.show(
        f"batches of {COLD_BATCH_RECORDS:,} records of {COLD_KEYS:,} cold keys with "
        f"{COLD_ROWS:,} left rows; the first {WARM_UP} not counted",
        [
            ("beside them", "median batch s", "slowest / median"),
            *(
                (
                    f"a right row with {rows:,} left rows" if rows else "nothing",
                    f"{seconds[rows]:.2f}",
                    f"{max(batches[rows]) / 1000 / seconds[rows]:.2f}",
                )
                for rows in hot_rows
            ),
        ],
    )
    return {"hot_over_cold": round(seconds[hot_rows[1]] / seconds[0], 3)}


def load_cold(data: Path, hot_rows: int) -> None:
    rows = np.arange(COLD_ROWS + hot_rows)
    refers = np.where(rows < COLD_ROWS, rows % COLD_KEYS, COLD_KEYS)
    write_records(data / "left" / "load.parquet", "L", rows, rows, refers)
    keys = np.arange(COLD_KEYS + (hot_rows > 0))
    write_records(data / "right" / "load.parquet", "R", keys, keys)


def update_cold(data: Path, turn: int, rng: np.random.Generator) -> None:
    half = COLD_BATCH_RECORDS // 2
    for update in range(WARM_UP + UPDATES):
        name = f"update-{turn}-{update:03d}.parquet"
        first = COLD_ROWS + FAN_OUTS[-1] + (100 * turn + update) * COLD_BATCH_RECORDS
        number = first + np.arange(COLD_BATCH_RECORDS)
        lefts, rights = rng.integers(0, COLD_ROWS, half), rng.integers(0, COLD_KEYS, half)
        named = rng.integers(0, COLD_KEYS, half)
        write_records(data / "left" / name, "L", lefts, number[::2], named)
        write_records(data / "right" / name, "R", rights, number[1::2])


def spread(spark: SparkSession, directory: Path, rows: int) -> dict[str, Any]:
    """Batches of one record, an update of a right row to which ``rows`` left rows refer: in turn by
    a join that has these in one bucket and by one that spreads them.
    """
    batches: dict[int, list[int]] = {buckets: [] for buckets in SPREADS}
    number = np.arange(rows)
    for turn in range(1 + TURNS):
        for buckets in SPREADS:
            data = directory / f"spread-{buckets}"
            if turn == 0:
                zeros = np.zeros(rows, np.int64)
                write_records(data / "left" / "load.parquet", "L", number, number, zeros)
                write_records(data / "right" / "load.parquet", "R", number[:1], number[:1])
            for update in range(WARM_UP + UPDATES if turn else 0):
                path = data / "right" / f"update-{turn}-{update:03d}.parquet"
                at = rows + 100 * turn + update
                write_records(path, "R", number[:1], np.array([at]))
            place = directory / f"spread-checkpoint-{buckets}"
            measured = to_nowhere(spark, data, place, buckets)
            batches[buckets] += measured.batch_ms[WARM_UP:] if turn else ()
    seconds = {buckets: median(batches[buckets]) / 1000 for buckets in SPREADS}
    rates = {buckets: rows / seconds[buckets] for buckets in SPREADS}
    harness.show(
        f"updates of one right row to which {rows:,} left rows refer; the first {WARM_UP} of "
        f"{WARM_UP + UPDATES} not counted",
        [
            ("spread", "median batch s", "results/s", "slowest / median"),
            *(
                (
                    str(buckets),
                    f"{seconds[buckets]:.2f}",
                    f"{rates[buckets]:,.0f}",
                    f"{max(batches[buckets]) / 1000 / seconds[buckets]:.2f}",
                )
                for buckets in SPREADS
            ),
        ],
    )
    one, several = SPREADS
    return {
        "spread_results_per_s": round(rates[several]),
        "spread_over_one_bucket": round(rates[several] / rates[one], 3),
    }
