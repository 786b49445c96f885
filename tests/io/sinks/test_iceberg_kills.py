"""A query into Iceberg tables whose process is killed as it writes them: in the end each table has
the snapshots that an unbroken query makes, one of each micro-batch.

``DOVETAIL_KILLS=30 ./dev test -m slow tests/io/sinks/test_iceberg_kills.py`` is a campaign. Run as
a script, this module is the driver. It kills itself at a moment that is chosen, or is killed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any

import drivers
import iceberg_tables as iceberg
import pytest
import small_session
from bench.parameters import slow_after
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

import dovetail as dt
from dovetail.iceberg import replacement
from dovetail.io.sinks.iceberg.batch import IcebergAppender, IcebergMerger

KILLS = int(os.environ.get("DOVETAIL_KILLS", "12"))
START = datetime(2024, 1, 1, tzinfo=timezone.utc)
SCHEMA = "k long, v long, at timestamp, op string"
TABLES = ("orders", "versions", "log")
"""Rows that are merged, all versions of them, and a stream of them."""
MOMENTS: dict[str, tuple[list[Any], str, bool, Callable[..., str]]] = {
    "before the files": ([replacement], "commit", True, lambda table, *_, **__: table.name()[-1]),
    "after the files": ([SqlCatalog], "commit_table", True, lambda _, table, *__: table.name()[-1]),
    "within the commit": (
        [SqlCatalog],
        "_write_metadata",
        False,
        lambda metadata, *_, **__: metadata.location.rpartition("/")[2],
    ),
    "after the commit": (
        [SqlCatalog],
        "commit_table",
        False,
        lambda _, table, *__: table.name()[-1],
    ),
    "before Spark's commit": (
        [IcebergMerger, IcebergAppender],
        "write",
        False,
        lambda writer, *_: writer.target.address.short_name,
    ),
}
"""The functions around which a driver kills itself: before or after a call. The last part finds the
table's name in the arguments.
"""
ANY = "any moment"
Kill = tuple[str, str, int, float]
"""The arguments of ``killed``: a moment, a table, which of its turns, and a time for any moment."""


def add(folder: Path, draw: random.Random) -> None:
    """Write one more file of random changes. Spark reads the files in their order, one by one."""
    number = len(list(folder.glob("*.json")))
    lines = [
        json.dumps(
            {
                "k": draw.randrange(12),
                "v": draw.randrange(50),
                "at": (START + timedelta(minutes=draw.randrange(100))).isoformat(),
                "op": draw.choice("uud"),
            }
        )
        for _ in range(8)
    ]
    hidden = folder / f".{number}"
    hidden.write_text("\n".join(lines))
    os.utime(hidden, (1_700_000_000 + number,) * 2)
    hidden.rename(folder / f"{number}.json")


def start(spark: SparkSession, source: Path, folder: Path, trigger: Any) -> StreamingQuery:
    """One query into all three tables, of a catalog in this folder."""
    frame = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(source))
    orders = dt.Table.from_changelog(
        frame, key="k", timestamp="at", deleted=F.col("op") == "d", name="orders"
    )
    to_iceberg = partial(dt.to_iceberg, catalog=iceberg.properties(folder))
    return dt.run(
        {
            orders: [
                to_iceberg("shop.orders", partition_by="bucket(2, k)"),
                to_iceberg("shop.versions", history=True, partition_by="_current"),
            ],
            orders.to_stream(): to_iceberg("shop.log"),
        },
        checkpoint=folder / "checkpoint",
        trigger=trigger,
        buckets=1,
    )


def committed(folder: Path) -> int:
    """The number of micro-batches that Spark has noted."""
    return len(list((folder / "checkpoint/commits").glob("[0-9]*")))


def snapshots(folder: Path, table: str) -> list[tuple[str, list[str]]]:
    """The micro-batch and the rows of each snapshot of a table."""
    loaded = iceberg.opened(iceberg.properties(folder)).load_table(f"shop.{table}")
    return [
        (
            str(snapshot.summary and snapshot.summary["dovetail.batch"]),
            sorted(map(str, loaded.scan(snapshot_id=snapshot.snapshot_id).to_arrow().to_pylist())),
        )
        for snapshot in loaded.metadata.snapshots
    ]


def killed(folder: Path, source: Path, moment: str, table: str, turn: int, wait_s: float) -> None:
    """Run a driver until it is killed: at this moment of the table, at its turn; or some time after
    its first micro-batch has begun.
    """
    folder.mkdir(exist_ok=True)
    offsets = folder / "checkpoint/offsets" / str(committed(folder))
    arguments = (str(source), str(folder), moment, table, str(turn))
    with drivers.running(__file__, *arguments, folder=folder) as driver:
        if moment == ANY:
            drivers.wait_until(offsets.exists, driver, "a micro-batch")
            time.sleep(wait_s)
            driver.refuse_ended()
            os.kill(driver.pid, signal.SIGKILL)
        code = driver.wait(timeout=240)
    assert code == -signal.SIGKILL, driver.log.read_text(errors="replace")[-20_000:]


def assert_exact(spark: SparkSession, draw: random.Random, folder: Path, kills: list[Kill]) -> None:
    """Kill drivers one after another, and compare what is left with an unbroken query."""
    source = folder / "in"
    source.mkdir()
    for moment, table, turn, wait_s in kills:
        # The first turn may come in the second micro-batch, if the table has the first one.
        while len(list(source.glob("*.json"))) < committed(folder / "killed") + turn + 1:
            add(source, draw)
        killed(folder / "killed", source, moment, table, turn, wait_s)
    for name in ("killed", "unbroken"):
        (folder / name).mkdir(exist_ok=True)
        start(spark, source, folder / name, {"availableNow": True}).awaitTermination()
    files = len(list(source.glob("*.json")))
    assert committed(folder / "killed") == committed(folder / "unbroken") == files
    for table in TABLES:
        expected = snapshots(folder / "unbroken", table)
        assert snapshots(folder / "killed", table) == expected
        assert len(expected) > files // 2


@pytest.mark.long
@pytest.mark.parametrize(
    "kill",
    slow_after(
        1, [(("after the commit", "versions", 1, 0.0),), (("within the commit", "log", 1, 0.0),)]
    ),
    ids=lambda kill: kill[0],
)
def test_tables_are_exact_after_a_kill_around_a_commit(
    spark: SparkSession, tmp_path: Path, kill: Kill
) -> None:
    assert_exact(spark, random.Random(1), tmp_path, [kill])


@pytest.mark.slow
def test_tables_are_exact_whenever_the_process_is_killed(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Each moment in turn, with tables and micro-batches drawn at random; every third kill comes at
    any moment.
    """
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    moments = [[*MOMENTS][i % len(MOMENTS)] if i % 3 else ANY for i in range(KILLS)]
    draw.shuffle(moments)
    kills = [
        (moment, draw.choice(TABLES), draw.randrange(1, 3), draw.uniform(0, 4))
        for moment in moments
    ]
    assert_exact(spark, draw, tmp_path, kills)
    print(Counter(moments))


def main(source: str, folder: str, moment: str, table: str, turn: str) -> None:
    if moment != ANY:
        owners, name, first, name_of = MOMENTS[moment]
        drivers.die_at(
            owners, name, int(turn), first=first, counts=lambda *a, **o: name_of(*a, **o) == table
        )
    spark = small_session.builder().config("spark.sql.shuffle.partitions", "2").getOrCreate()
    start(spark, Path(source), Path(folder), None).awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
