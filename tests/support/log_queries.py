"""Queries over one log of random records, and what they must emit, whatever is killed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from bench import runners
from bench.families import tables as family
from bench.models import foreign_keys as fk_model
from bench.records import Record, cut, flat
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from timed_files import timed_file

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
        with timed_file(folder / "log" / f"{number}.parquet", number) as path:
            pq.write_table(pa.Table.from_pylist(rows, schema=LOG), path)


def start(spark: SparkSession, folder: Path, sink: object, kind: str = "tree") -> StreamingQuery:
    """The query over the log, bound to its checkpoint.

    The log is one source: of several, Spark does not promise which of their rows a micro-batch
    takes together when it is planned again after a kill.
    """
    joined = KINDS[kind](tables_of_log(spark, folder))
    checkpoint = str(folder / "checkpoint")
    return joined.write_stream(
        sink, checkpoint=checkpoint, trigger={"availableNow": True}, buckets=2
    )


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
