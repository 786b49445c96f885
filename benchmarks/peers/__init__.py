"""Peers: Pathway, Apache Flink and Spark's own operators, on the same CSV files in one run.

Each topology goes from files to nowhere, in a process of its own, on two cores. Systems run in
turn, round by round. Spark's own query shares a session with dovetail, so it runs after the others.
Then each computes the rows of fewer orders, which must be those of DuckDB, else no figure is given.
Spark's are those of its query over the same files as a batch. The systems:

- dovetail with ``emit="batch"`` in one micro-batch;
- Flink SQL on RocksDB with mini-batches, as ``benchmarks.flink`` sets it;
- Pathway in static mode, with two threads, a process a run, which keeps no state after it;
- Spark's stream-stream join or aggregation, where it has the same rows.

The seconds are those from the start of a query or job to its end. ``first_…`` compares our first
run in a new session with Pathway's runs, of which each has a new process. Starts of sessions and
imports are left out. The other ratios are of the medians of the last rounds: in the rounds before,
a JVM still compiles. With ``--kafka`` Kafka Streams joins the topics of ``./dev bench
foreign-key``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import foreign_key, harness
from benchmarks.peers import data
from benchmarks.peers.topologies import TOPOLOGIES

ORDERS, WARM_UP, ROUNDS = 1_000_000, 5, 3
CHECKED = 50_000
KAFKA_RECORDS = 1_000_000
TITLES = {"flink": "Flink", "pathway": "Pathway", "spark": "Spark"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--orders", type=int, default=ORDERS, help=f"of them ({ORDERS})")
    parser.add_argument(
        "--checked", type=int, default=CHECKED, help=f"orders whose rows are compared ({CHECKED})"
    )
    parser.add_argument(
        "--warm-up", type=int, default=WARM_UP, help=f"rounds before them ({WARM_UP})"
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"counted rounds ({ROUNDS})")
    parser.add_argument("--topologies", nargs="*", default=list(TOPOLOGIES), help="by default all")
    parser.add_argument("--kafka", action="store_true", help="beside Kafka Streams, too")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    table = [("topology", "records", "dovetail /s", *TITLES.values(), "first run")]
    for name in arguments.topologies:
        count = data.records(TOPOLOGIES[name].inputs, arguments.orders)
        run_count = arguments.warm_up + arguments.rounds
        numbers = map(str, (arguments.orders, run_count, arguments.checked))
        command = [sys.executable, "-m", "benchmarks.peers.contest", name, *numbers]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
        seconds = json.loads(done.stdout.splitlines()[-1])
        ours_s = median(seconds["dovetail"][arguments.warm_up :])
        overs = {peer: median(s[arguments.warm_up :]) / ours_s for peer, s in seconds.items()}
        first = median(seconds["pathway"]) / seconds["dovetail"][0]
        figures |= {
            f"{name}_over_{peer}": round(over, 2) for peer, over in overs.items() if peer in TITLES
        }
        figures[f"first_{name}_over_pathway"] = round(first, 2)
        cells = (f"{overs[peer]:.2f}" if peer in overs else "" for peer in TITLES)
        table.append((name, f"{count:,}", f"{count / ours_s:,.0f}", *cells, f"{first:.2f}"))
    if arguments.kafka:
        with harness.workspace() as directory:
            figures |= beside_kafka_streams(directory)
    harness.show(
        "times as fast as a peer, from CSV to nowhere; the first run over Pathway's", table
    )
    return figures


def beside_kafka_streams(directory: Path) -> dict[str, Any]:
    """Return the ratios over Kafka Streams of a join by foreign key, from Kafka to Kafka: at its
    defaults, and with the producer and memory settings of dovetail.
    """
    spark = harness.session(data.CORES)
    measured = foreign_key.kafka(spark, directory, KAFKA_RECORDS, 1, [])
    spark.stop()
    names = {
        "over_kafka_streams": "foreign_key_over_kafka_streams",
        "over_kafka_streams_same_settings": "foreign_key_over_kafka_streams_tuned",
    }
    return {names[name]: value for name, value in measured.items() if name in names}
