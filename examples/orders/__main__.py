"""A shop's orders from PostgreSQL by topics and joins into three targets, and a check of them."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from pathlib import Path

from examples.flights.__main__ import stderr_to
from examples.orders.demo import run, services
from examples.orders.query import Place, session
from tools.postgres import MissingError


def main() -> int:
    """Run the demo; the exit code is 0 if its check found the targets equal."""
    parser = argparse.ArgumentParser(prog="./dev demo orders", description=__doc__)
    parser.add_argument("--changes", type=int, default=3000, help="so many rows change [3000]")
    parser.add_argument("--per-second", type=int, default=100, help="in a second [100]")
    parser.add_argument("--directory", type=Path, help="keep all files here, in a new directory")
    arguments = parser.parse_args()
    if arguments.directory is not None and arguments.directory.exists():
        parser.error(f"--directory {arguments.directory} exists; name a new one")
    if arguments.changes < 1 or arguments.per_second < 1:
        parser.error("--changes and --per-second must be at least 1")
    # Stopped from outside, the demo stops what it has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory(prefix="dovetail-orders-") as temporary:
        directory = str((arguments.directory or Path(temporary)).absolute())
        Path(directory).mkdir(parents=True, exist_ok=True)
        try:
            with services() as (dsn, servers):
                place = Place(directory, servers, dsn)
                print(f"PostgreSQL and Kafka run; the query's log is {directory}/query.log")
                with stderr_to(Path(directory) / "spark.log"):
                    spark = session("dovetail shop", Path(directory) / "scratch-demo")
                try:
                    equal = run(
                        spark, place, changes=arguments.changes, per_second=arguments.per_second
                    )
                finally:
                    spark.stop()
        except MissingError as missing:
            sys.exit(f"dovetail: {missing}")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
