"""``./dev bench NAME``: runs a benchmark, prints a table and, with ``--json``, one JSON object
last."""

from __future__ import annotations

import argparse
import json

from benchmarks import (
    broadcast,
    delta_join,
    delta_sink,
    foreign_key,
    guard,
    iceberg_sink,
    kafka_exactly_once,
    large_state,
    latency,
    metrics,
    nexmark,
    peers,
    postgres_sink,
    scaling,
    snapshot_join,
    start,
    state,
    stream_stream,
    stream_table,
    table_table,
    windowed,
)

BENCHMARKS = {
    "table-table": table_table,
    "foreign-key": foreign_key,
    "delta-join": delta_join,
    "delta-sink": delta_sink,
    "iceberg-sink": iceberg_sink,
    "postgres-sink": postgres_sink,
    "kafka-exactly-once": kafka_exactly_once,
    "stream-table": stream_table,
    "broadcast": broadcast,
    "stream-stream": stream_stream,
    "windowed": windowed,
    "snapshot-join": snapshot_join,
    "nexmark": nexmark,
    "peers": peers,
    "start": start,
    "latency": latency,
    "large-state": large_state,
    "metrics": metrics,
    "scaling": scaling,
    "guard": guard,
    "state": state,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="./dev bench", description=__doc__)
    names = parser.add_subparsers(dest="name", required=True)
    for name, module in BENCHMARKS.items():
        one = names.add_parser(name, help=module.__doc__.splitlines()[0])
        one.add_argument("--json", action="store_true", help="one JSON object as the last line")
        module.add_arguments(one)
    arguments = parser.parse_args()
    figures = BENCHMARKS[arguments.name].run(arguments)
    if arguments.json:
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
