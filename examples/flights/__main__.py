"""A year of flights through streaming joins, and a check of the result."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

import dovetail as dt
from examples.flights.demo import run

if TYPE_CHECKING:
    from collections.abc import Iterator


def main() -> int:
    """Run the demo; the exit code is 0 if its check found the tables equal."""
    parser = argparse.ArgumentParser(prog="python -m examples.flights", description=__doc__)
    parser.add_argument("--rows", type=int, help="only the first so many flights of the year")
    parser.add_argument("--directory", type=Path, help="keep all files here, in a new directory")
    parser.add_argument(
        "--page", type=Path, default=Path("flights.html"), help="the report as a page"
    )
    arguments = parser.parse_args()
    if arguments.rows is not None and arguments.rows < 1:
        parser.error("--rows must be at least 1")
    if arguments.directory is not None and arguments.directory.exists():
        parser.error(f"--directory {arguments.directory} exists; name a new one")
    with tempfile.TemporaryDirectory(prefix="dovetail-flights-") as temporary:
        directory = arguments.directory or Path(temporary)
        if arguments.directory is not None:
            directory.mkdir(parents=True)
        spark = start_spark(Path(temporary), log=directory / "spark.log")
        try:
            equal = run(spark, directory, rows=arguments.rows, page_path=arguments.page)
        finally:
            spark.stop()
    return 0 if equal else 1


def start_spark(scratch: Path, log: Path) -> SparkSession:
    """A local session whose own messages, and those of its Python workers, go to a file."""
    with stderr_to(log):
        spark = (
            dt.configure(SparkSession.builder.master("local[*]"))
            .appName("dovetail flights")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.ui.enabled", "false")
            .config("spark.local.dir", str(scratch))
            .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
            .getOrCreate()
        )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


@contextmanager
def stderr_to(log: Path) -> Iterator[None]:
    """Processes started meanwhile inherit this file as their standard error, and keep it."""
    own = os.dup(2)
    with log.open("w") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(own, 2)
        os.close(own)


if __name__ == "__main__":
    sys.exit(main())
