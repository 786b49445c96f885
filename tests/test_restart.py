"""A query that is interrupted, anywhere and any number of times, gives what an unbroken one gives.

Run as a script, this module is the driver process that a test kills.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import drivers
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import small_session
from bench import runners
from bench.families import tables as family
from bench.models import foreign_keys as fk_model
from bench.models.tables import static_join
from bench.parameters import slow_after
from bench.records import Record, cut, flat
from pyspark import SparkFiles
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

import dovetail as dt

TOPOLOGY = (("a", "outer", "b"), "left", "c")
TABLES = family.sources(TOPOLOGY)
COLUMNS = {"source": pa.string()} | TABLES["a"].columns | runners.CHANGELOG
LOG = pa.schema(list(COLUMNS.items()))
KEYS = "abcdefghij"


def batches(count: int, size: int) -> list[list[Record]]:
    """Micro-batches of random records: few keys, many tombstones, times in any order."""
    random_ = random.Random(count)
    records = [
        Record(
            table=random_.choice("abc"),
            key=random_.choice(KEYS),
            time=random_.randrange(1000),
            value=f"v{serial}",
            deleted=random_.random() < 0.3,
        )
        for serial in range(count * size)
    ]
    return cut(records, size)


def write(folder: Path, given: Sequence[Sequence[Record]]) -> None:
    """A log of all tables, a file per micro-batch; the source reads the oldest first."""
    (folder / "log").mkdir()
    for number, records in enumerate(given):
        rows = [
            {
                "source": r.table,
                "k": r.key,
                "v": r.value,
                runners.TIME: r.time * 1000,
                runners.GONE: r.deleted,
                runners.PLACE: s,
            }
            # Positions in the whole log: after a kill a micro-batch may read two files.
            for s, r in enumerate(records, start=number * len(given[0]))
        ]
        path = folder / "log" / f"{number}.parquet"
        pq.write_table(pa.Table.from_pylist(rows, schema=LOG), path)
        os.utime(path, (number, number))


def start(spark: SparkSession, folder: Path, sink: object, kind: str = "tree") -> StreamingQuery:
    """The query over the log, bound to its checkpoint.

    The log is one source: of several, Spark does not promise which of their rows a micro-batch
    takes together when it is planned again after a kill.
    """
    joined = KINDS[kind](tables_of_log(spark, folder))
    checkpoint = str(folder / "checkpoint")
    return joined.write_stream(sink, checkpoint=checkpoint, availableNow=True, buckets=2)


def tables_of_log(spark: SparkSession, folder: Path) -> dict[str, dt.Table]:
    """The log's tables."""
    schema = ", ".join(f"{name} {runners.SPARK[type_]}" for name, type_ in COLUMNS.items())
    reader = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
    log = reader.parquet(str(folder / "log"))
    frames = {name: log.where(F.col("source") == name).drop("source") for name in TABLES}
    return runners.read(TABLES, frames)  # type: ignore[return-value]


def tree(tables: dict[str, dt.Table]) -> dt.Table:
    """Three tables joined by key."""
    return family.build(TOPOLOGY, tables)


def by_foreign_key(tables: dict[str, dt.Table]) -> dt.Table:
    """Two tables joined by foreign key: the letter of a value's last digit."""
    letter = F.translate(F.right(F.col("v"), F.lit(1)), "0123456789", KEYS)
    select = {"c0": "left.v", "c1": "right.v"}
    return tables["a"].join(tables["b"], on=letter, how="left", select=select)


KINDS = {"tree": tree, "foreign key": by_foreign_key}


def expected(kind: str, records: Sequence[Record]) -> list[tuple[str, object, int]]:
    """What the records make the query emit, in order: key, values, time."""
    if kind == "tree":
        return [tuple(r[:3]) for r in flat(family.each_record(TOPOLOGY, records))]
    sides = {"a": "L", "b": "R"}
    named = [
        r._replace(
            table=sides[r.table],
            value=(KEYS[int(r.value[-1])], r.value) if r.table == "a" else r.value,
        )
        for r in records
        if r.table in sides
    ]
    named = [r._replace(value=None) if r.deleted else r for r in named]
    answers = fk_model.each_record(fk_model.ForeignKeyJoin("left"), named)
    return [
        (key[0], None if cells is None else (cells[0][0][1], cells[1] and cells[1][0]), time)
        for changes in answers
        for key, cells, time in changes
    ]


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


@pytest.mark.parametrize("times", slow_after(1, [2, 4]))
def test_a_killed_driver_loses_and_doubles_nothing(
    spark: SparkSession, tmp_path: Path, times: int
) -> None:
    """The process and its JVM, with two queries, are killed between and within micro-batches."""
    given = batches(3 * times, 6)
    for kind in KINDS:
        (tmp_path / kind).mkdir()
        write(tmp_path / kind, given)
    random_ = random.Random()
    kills = [
        ("tree", "offsets", 1),
        ("foreign key", "commits", 3),
        ("tree", "commits", 6),
        ("foreign key", "offsets", 8),
    ]
    for kind, log, number in kills[:times]:
        checkpoint = tmp_path / kind / "checkpoint"
        with drivers.running(__file__, str(tmp_path), folder=tmp_path) as driver:
            drivers.wait_until((checkpoint / log / str(number)).exists, driver, f"{log}/{number}")
            time.sleep(random_.uniform(0, 0.4))
        done = checkpoint / "commits" / f"{len(given) - 1}"
        assert not done.exists(), "it was done before it was killed"
    for kind in KINDS:
        own = tmp_path / kind
        start(spark, own, dt.to_parquet(str(own / "out")), kind).awaitTermination()
        refuse_other_changes(spark, own, kind, [r for records in given for r in records])


def refuse_other_changes(
    spark: SparkSession, folder: Path, kind: str, records: Sequence[Record]
) -> None:
    """What was written is what the records make the query emit, each key's in order."""
    emitted = spark.read.parquet(str(folder / "out"))
    values = [name for name in ("c0", "c1", "c2") if name in emitted.columns]
    rows = (
        emitted.select("k", *values, "_change", F.expr("unix_millis(_timestamp) ms"), "_position")
        .withColumn("bucket", F.expr("pmod(xxhash64(k), 2)"))
        .orderBy("bucket", "_position")
        .collect()
    )
    assert len(list((folder / "checkpoint" / "sources").iterdir())) == 1
    if kind == "tree":
        positions = [[row["_position"] for row in rows if row["bucket"] == b] for b in (0, 1)]
        assert positions == [list(range(len(own))) for own in positions]
    wanted = expected(kind, records)
    for key in KEYS:
        own = [row for row in rows if row["k"] == key]
        assert len({row["_position"] for row in own}) == len(own)
        assert [
            (None if r["_change"] == "delete" else tuple(r[v] for v in values), r["ms"])
            for r in own
        ] == [(row, time) for k, row, time in wanted if k == key]
    assert len(rows) == len(wanted)


def main(folder: Path) -> None:
    spark = small_session.builder().getOrCreate()
    queries = [
        start(spark, folder / kind, dt.to_parquet(str(folder / kind / "out")), kind)
        for kind in KINDS
    ]
    for query in queries:
        query.awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
