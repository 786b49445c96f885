"""Every way to run a topology of ``naive`` records: one signature, one kind of answer.

A runner takes a topology and its records cut into micro-batches and returns what each micro-batch
emits. All of them name keys, values and times as ``naive`` does, times in milliseconds.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from naive import Record, Result, Topology, names

import dovetail as dt
from dovetail import testing
from dovetail.kernels.table_join import Join, Leaf, Tree
from dovetail.plan.spec import Emit, SourceSpec, StageSpec, TableTree
from dovetail.runtime.stage import Piece, process
from dovetail.state.blobs import MemoryBlobs
from dovetail.state.segment import SegmentCache

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Batches: TypeAlias = Sequence[Sequence[Record]]
Hash: TypeAlias = Callable[[Sequence[pa.Array]], Any]

ROWS = pa.schema(
    [
        ("_hash", pa.int64()),
        ("_event_time", pa.int64()),
        ("_deleted", pa.bool_()),
        ("k", pa.string()),
        ("v", pa.string()),
    ]
)
FILES = pa.schema(
    [
        ("k", pa.string()),
        ("v", pa.string()),
        ("t", pa.timestamp("us", "UTC")),
        ("d", pa.bool_()),
        ("s", pa.int64()),
    ]
)
CHANGELOG = ("_change", "unix_millis(_timestamp) as ms", "_position")


def one_hash(keys: Sequence[pa.Array]) -> Any:
    """The hash under which all keys collide."""
    return np.full(len(keys[0]), 7)


def cut(records: Sequence[Record], size: int) -> list[list[Record]]:
    """Micro-batches of ``size`` records."""
    return [list(records[start : start + size]) for start in range(0, len(records), size)]


def tables(topology: Topology) -> list[str]:
    """The topology's tables, each once."""
    return list(dict.fromkeys(names(topology)))


def kernel(
    topology: Topology,
    batches: Batches,
    *,
    emit: Emit = "change",
    restart: bool = False,
    key_hash: Hash = testing.stable_hash,
) -> list[list[Result]]:
    """The stage by itself, on one bucket. ``restart``: only stored bytes survive a micro-batch."""
    known = tables(topology)
    sources = tuple(SourceSpec(name, ROWS, sequence=True) for name in known)
    spec = StageSpec("test", 1, sources, 1, TableTree(_tree(topology, known)), emit)
    blobs, cache = MemoryBlobs(), SegmentCache()
    answers = []
    for batch in batches:
        if restart:
            blobs, cache = MemoryBlobs(dict(blobs.blobs)), SegmentCache()
        changes = process(spec, list(_pieces(spec, batch, key_hash)), blobs, cache).changes
        rows = [row for table in changes for row in table.to_pylist()]
        width = len(spec.operator.leaves)
        answers.append(
            [
                Result(
                    row["_k0"],
                    None if row["_deleted"] else tuple(row[f"_{leaf}_0"] for leaf in range(width)),
                    row["_event_time"] // 1000,
                )
                for row in rows
            ]
        )
    return answers


def driver(
    topology: Topology,
    batches: Batches,
    *,
    emit: Emit = "change",
    restart: bool = False,
    buckets: int = 1,
    key_hash: Hash | None = None,
) -> list[list[Result]]:
    """The public in-process driver. ``restart``: cut and restored before each micro-batch."""
    schema = {"k": pa.string(), "v": pa.string()}
    inputs = {name: testing.table(name, key="k", schema=schema) for name in tables(topology)}
    joined, columns = joins(topology, inputs)
    running = testing.Driver(joined, emit=emit, buckets=buckets, key_hash=key_hash)
    answers = []
    for batch in batches:
        if restart:
            running = testing.Driver.restore(joined, running.cut(), emit=emit, key_hash=key_hash)
        with running.batch() as changes:
            for record in (record for record in batch if record.table in inputs):
                row = {"k": record.key, "v": record.value}
                time = record.time * 1000
                running.pipe(inputs[record.table], row, timestamp=time, deleted=record.deleted)
        assert changes == running.read()
        answers.append(
            [
                Result(
                    change.key["k"],
                    None if change.values is None else tuple(change.values[c] for c in columns),
                    change.timestamp_us // 1000,
                )
                for change in changes
            ]
        )
    return answers


def stream(
    session: SparkSession,
    folder: Path,
    topology: Topology,
    batches: Batches,
    *,
    emit: Emit = "change",
    restart: bool = False,
) -> list[Result]:
    """A streaming query over files, one per table and micro-batch.

    ``restart``: a query for each micro-batch, on one checkpoint.
    """
    joined, columns = joins(topology, _streams(session, folder, tables(topology)))
    for number in range(len(batches)):
        write(folder, tables(topology), batches[number], number)
        if restart or number == len(batches) - 1:
            query = joined.write_stream(
                dt.to_parquet(str(folder / "out")),
                checkpoint=str(folder / "checkpoint"),
                trigger="available now",
                emit=emit,
                buckets=1,
            )
            query.awaitTermination()
    frame = session.read.parquet(str(folder / "out"))
    return _collected(frame.orderBy("_position"), columns)


def static(
    session: SparkSession,
    folder: Path,
    topology: Topology,
    records: Sequence[Record],
    *,
    emit: Emit = "change",
) -> list[Result]:
    """A batch run over static frames; the results of a key in their order, keys in any."""
    write(folder, tables(topology), records, 0)
    inputs = {
        name: from_changelog(session.read.parquet(str(folder / name)), name)
        for name in tables(topology)
    }
    joined, columns = joins(topology, inputs)
    return _collected(joined.to_batch(emit=emit).orderBy("_position"), columns)


def joins(topology: Topology, inputs: dict[str, dt.Table]) -> tuple[dt.Table, list[str]]:
    """The topology over these tables, with the names of its value columns from left to right."""
    if isinstance(topology, str):
        return inputs[topology], ["v"]
    left, left_columns = joins(topology[0], inputs)
    right, right_columns = joins(topology[2], inputs)
    sides = [f"left.{c}" for c in left_columns] + [f"right.{c}" for c in right_columns]
    selection = {f"c{number}": column for number, column in enumerate(sides)}
    return left.join(right, how=topology[1], select=selection), list(selection)


def from_changelog(frame: Any, name: str) -> dt.Table:
    """A table over frames with the columns of ``FILES``."""
    return dt.Table.from_changelog(
        frame, key="k", timestamp="t", deleted="d", sequence="s", name=name
    )


def write(folder: Path, known: Sequence[str], records: Sequence[Record], number: int) -> None:
    """The files of one micro-batch. The file source reads the oldest first, so age is set."""
    for name in known:
        rows = [
            {"k": r.key, "v": r.value, "t": r.time * 1000, "d": r.deleted, "s": place}
            for place, r in enumerate(records)
            if r.table == name
        ]
        path = folder / name / f"{number:06}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows, schema=FILES), path)
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))


def _streams(session: SparkSession, folder: Path, known: Sequence[str]) -> dict[str, dt.Table]:
    schema = "k string, v string, t timestamp, d boolean, s long"
    for name in known:
        (folder / name).mkdir(parents=True, exist_ok=True)
    return {
        name: from_changelog(
            session.readStream.schema(schema)
            .option("maxFilesPerTrigger", 1)
            .parquet(str(folder / name)),
            name,
        )
        for name in known
    }


def _collected(frame: Any, columns: Sequence[str]) -> list[Result]:
    rows = frame.selectExpr("k", *columns, *CHANGELOG).collect()
    return [
        Result(
            row["k"],
            None if row["_change"] == "delete" else tuple(row[c] for c in columns),
            row["ms"],
        )
        for row in rows
    ]


def _tree(topology: Topology, known: list[str]) -> Tree:
    if isinstance(topology, str):
        return Leaf(known.index(topology))
    left, how, right = topology
    return Join(_tree(left, known), _tree(right, known), how)  # type: ignore[arg-type]


def _pieces(spec: StageSpec, batch: Sequence[Record], key_hash: Hash) -> Iterator[Piece]:
    for number, source in enumerate(spec.sources):
        own = [(i, r) for i, r in enumerate(batch) if r.table == source.name and r.key is not None]
        if own:
            keys = pa.array([record.key for _, record in own])
            columns = [
                pa.array(key_hash([keys]), pa.int64()),
                pa.array([record.time * 1000 for _, record in own]),
                pa.array([record.deleted for _, record in own]),
                keys,
                pa.array([record.value for _, record in own], pa.string()),
                pa.array([place for place, _ in own]),
            ]
            high = max(record.time * 1000 for _, record in own)
            rows = pa.table(columns, schema=source.wire_schema)
            yield Piece(number, 0, 0, high, rows)
