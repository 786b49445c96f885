"""A query that is interrupted, anywhere and any number of times, gives what an unbroken one gives.

Run as a script, this module is the driver process that a test kills.
"""

from __future__ import annotations

import random
import shutil
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import drivers
import pytest
import small_session
from bench.models.tables import static_join
from bench.parameters import slow_after
from bench.records import Record
from log_queries import (
    TOPOLOGY,
    batches,
    expected,
    refuse_other_changes,
    start,
    write,
)
from pyspark import SparkFiles
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession

import dovetail as dt


def put(content: bytes) -> Callable[[Path], None]:
    """Puts another file in the place of one, as a new one: what is mapped stays as it was."""

    def spoil(copy: Path) -> None:
        other = copy.with_name("spoiled")
        other.write_bytes(content)
        other.replace(copy)

    return spoil


def truncate(copy: Path) -> None:
    """Half of the file in its place."""
    whole = copy.read_bytes()
    put(whole[: len(whole) // 2])(copy)


SPOILS: dict[str, Callable[[Path], None]] = {
    "deleted": lambda copy: shutil.rmtree(copy.parent),
    "garbage": put(bytes(range(256)) * 20),
    "empty": put(b""),
    "truncated": truncate,
}


def test_every_batch_is_a_consistent_snapshot(spark: SparkSession, tmp_path: Path) -> None:
    """After batch n the table is the static join of all input up to n; though a sink fails, and
    the local copies of the state are deleted after every batch.
    """
    given = batches(7, 12)
    write(tmp_path, given)
    copies = Path(SparkFiles.getRootDirectory()) / "dovetail-segments"
    table: dict[str, tuple[object, ...]] = {}
    attempts: dict[int, list[list[Row]]] = defaultdict(list)
    snapshots, deleted_copies = [], 0

    def sink(changes: DataFrame, number: int) -> None:
        nonlocal deleted_copies
        rows = changes.orderBy("_position").collect()
        attempts[number].append(rows)
        if number == 3 and len(attempts[number]) == 1:
            raise RuntimeError("the sink fails once")
        for row in rows:
            table.pop(row["k"], None)
            if row["_change"] == "upsert":
                table[row["k"]] = (row["c0"], row["c1"], row["c2"])
        snapshots.append(dict(table))
        for copy in copies.iterdir():
            copy.unlink()
            deleted_copies += 1

    with pytest.raises(StreamingQueryException, match="the sink fails once"):
        start(spark, tmp_path, dt.to_foreach_batch(sink)).awaitTermination()
    start(spark, tmp_path, dt.to_foreach_batch(sink)).awaitTermination()

    seen: list[Record] = []
    for records, snapshot in zip(given, snapshots, strict=True):
        seen += records
        assert snapshot == static_join(TOPOLOGY, seen)
    assert [len(attempts[number]) for number in range(7)] == [1, 1, 1, 2, 1, 1, 1]
    failed, repeated = attempts[3]
    assert failed == repeated != []
    assert deleted_copies > 0


@pytest.mark.slow
@pytest.mark.parametrize("spoil", slow_after(2, SPOILS))
def test_local_copies_may_be_spoiled_between_and_within_micro_batches(
    spark: SparkSession, tmp_path: Path, spoil: str
) -> None:
    """All the time, while the query runs: its directory is deleted, or files that are no copies
    take the places of those that are.
    """
    given = batches(6, 40)
    write(tmp_path, given)
    copies = Path(SparkFiles.getRootDirectory()) / "dovetail-segments"
    emitted: list[Row] = []
    spoiled, done = 0, threading.Event()

    def spoil_all() -> None:
        nonlocal spoiled
        while not done.wait(0.002):
            for copy in [*copies.glob("*")]:
                with suppress(OSError):
                    SPOILS[spoil](copy)
                    spoiled += 1

    query = start(
        spark, tmp_path, dt.to_foreach_batch(lambda changes, _: emitted.extend(changes.collect()))
    )
    spoiler = threading.Thread(target=spoil_all)
    spoiler.start()
    try:
        query.awaitTermination()
    finally:
        done.set()
        spoiler.join()
    assert spoiled > 10
    last = {row["k"]: row for row in sorted(emitted, key=lambda row: row["_position"])}
    assert {
        key: (row["c0"], row["c1"], row["c2"])
        for key, row in last.items()
        if row["_change"] == "upsert"
    } == static_join(TOPOLOGY, [record for records in given for record in records])
    assert len(emitted) == len(expected("tree", [r for records in given for r in records]))


KILLS = [
    ("tree", "offsets", 1),
    ("foreign key", "commits", 3),
    ("tree", "commits", 6),
    ("foreign key", "offsets", 8),
]


@pytest.mark.long
@pytest.mark.parametrize("kills", slow_after(1, [KILLS[:1], KILLS]), ids=len)
def test_a_killed_driver_loses_and_doubles_nothing(
    spark: SparkSession, tmp_path: Path, kills: list[tuple[str, str, int]]
) -> None:
    """The process and its JVM, with a query of each kind, are killed between and within
    micro-batches.
    """
    given = batches(3 * len(kills) + 1, 6)
    kinds = sorted({kind for kind, _, _ in kills})
    for kind in kinds:
        (tmp_path / kind).mkdir()
        write(tmp_path / kind, given)
    random_ = random.Random()
    for kind, log, number in kills:
        checkpoint = tmp_path / kind / "checkpoint"
        with drivers.running(__file__, str(tmp_path), *kinds, folder=tmp_path) as driver:
            drivers.wait_until((checkpoint / log / str(number)).exists, driver, f"{log}/{number}")
            time.sleep(random_.uniform(0, 0.4))
        done = checkpoint / "commits" / f"{len(given) - 1}"
        assert not done.exists(), "it was done before it was killed"
    for kind in kinds:
        own = tmp_path / kind
        start(spark, own, dt.to_parquet(str(own / "out")), kind).awaitTermination()
        refuse_other_changes(spark, own, kind, [r for records in given for r in records])


def main(folder: Path, *kinds: str) -> None:
    spark = small_session.builder().getOrCreate()
    queries = [
        start(spark, folder / kind, dt.to_parquet(str(folder / kind / "out")), kind)
        for kind in kinds
    ]
    for query in queries:
        query.awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
