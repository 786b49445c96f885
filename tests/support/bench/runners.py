"""Every way to run a case: a family's join and its records, cut into micro-batches.

A runner returns what each micro-batch emits. ``restart``: only what is stored survives a
micro-batch, of a streaming query half of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from timed_files import timed_file

import dovetail as dt
from bench.family import Family, Join, Source
from bench.feeds import pipe_all
from bench.models.tables import names
from bench.records import Answers, Batches, Hash, Record, Result
from dovetail import testing
from dovetail.arrays.hashing import stable_hash
from dovetail.engine.batches.pieces import Piece
from dovetail.engine.fragment import process_batch
from dovetail.laws.joins.table_join import Tree, TreeLeaf
from dovetail.laws.joins.table_join import TreeJoin as JoinedBy
from dovetail.physical.fragment import Emit, Fragment, Operator
from dovetail.physical.source import RowArrival, RowShape, SourceSpec
from dovetail.physical.specs.by_key import TableJoinLaw
from dovetail.state.blobs import MemoryBlobs
from dovetail.state.segment import SegmentCache

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TIME, GONE, PLACE = "_t", "_d", "_s"
CHANGELOG = {TIME: pa.timestamp("us", "UTC"), GONE: pa.bool_(), PLACE: pa.int64()}
SPARK = {
    pa.int64(): "long",
    pa.string(): "string",
    pa.list_(pa.string()): "array<string>",
    pa.bool_(): "boolean",
    pa.timestamp("us", "UTC"): "timestamp",
}


def driver(
    family: Family,
    join: Join,
    batches: Batches,
    *,
    emit: Emit = "change",
    restart: bool = False,
    buckets: int = 1,
    key_hash: Hash | None = None,
    build: Any = None,
    session: SparkSession | None = None,
) -> Answers:
    """The public in-process driver; ``build``: in place of the family's; ``session``: evaluates
    expressions.
    """
    inputs = {
        name: testing.stream(name, key=source.key, schema=source.columns)
        if source.stream
        else testing.table(name, key=source.key, schema=source.columns, versioned=source.versioned)
        for name, source in family.sources(join).items()
    }
    topology = (build or family.build)(join, inputs)
    unit, number = family.unit_us(join), 0
    options: dict[str, Any] = {"emit": emit, "key_hash": key_hash, "spark": session}
    running = testing.Driver(topology, buckets=buckets, **options)
    answers = []
    for batch in batches:
        if restart:
            running = testing.Driver.restore(topology, running.snapshot(), **options)
        with running.batch() as changes:
            records = [record for record in batch if record.table in inputs]
            feeds = [
                (r.table, family.row(join, r, place), r.time * unit, r.deleted)
                for place, r in enumerate(records, number)
            ]
            pipe_all(running, inputs, feeds)
            number += len(records)
        assert changes == running.read()
        answers.append(
            [
                family.result(
                    join,
                    {**change.key, **(change.values or {})},
                    change.timestamp_us // unit,
                    deleted=change.change == "delete",
                )
                for change in changes
            ]
        )
    return answers


def stream(
    session: SparkSession,
    folder: Path,
    family: Family,
    join: Join,
    batches: Batches,
    *,
    emit: Emit = "change",
    restart: bool = False,
    buckets: int = 1,
) -> Answers:
    """A streaming query over files, one per input and micro-batch; ``restart``: another one goes on
    from its checkpoint after half of the micro-batches.
    """
    frames = {}
    for name, source in family.sources(join).items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        columns = (source.columns | CHANGELOG).items()
        schema = ", ".join(f"{column} {SPARK[type_]}" for column, type_ in columns)
        reader = session.readStream.schema(schema).option("maxFilesPerTrigger", 1)
        frames[name] = reader.parquet(str(folder / name))
    topology = family.build(join, read(family.sources(join), frames))
    answers: dict[int, list[Result]] = {}

    def collect(changes: DataFrame, batch: int) -> None:
        answers[batch] = collected(family, join, changes)

    last = len(batches) - 1
    ends = {last // 2, last} if restart else {last}
    for number, batch in enumerate(batches):
        write(folder, family, join, batch, number)
        if number in ends:
            query = topology.write_stream(
                dt.to_foreach_batch(collect),
                checkpoint=str(folder / "checkpoint"),
                trigger={"availableNow": True},
                emit=emit,
                buckets=buckets,
            )
            query.awaitTermination()
    return [answers[batch] for batch in sorted(answers)]


def static(
    session: SparkSession,
    folder: Path,
    family: Family,
    join: Join,
    records: Sequence[Record],
    *,
    emit: Emit = "change",
) -> list[Result]:
    """A batch run over static frames; the results of a key in their order, keys in any."""
    write(folder, family, join, records, 0)
    known = family.sources(join)
    frames = {name: session.read.parquet(str(folder / name)) for name in known}
    topology = family.build(join, read(known, frames))
    return collected(family, join, topology.changelog(emit=emit, buckets=1))


def read(
    sources: Mapping[str, Source], frames: Mapping[str, Any]
) -> dict[str, dt.Stream | dt.Table]:
    """Streams and tables over frames with the columns of ``CHANGELOG``."""
    columns: dict[str, Any] = {"timestamp": TIME, "deleted": GONE, "sequence": PLACE}
    columns["shared_log"] = True
    return {
        name: dt.Stream.from_changelog(frames[name], key=source.key, **columns, name=name)
        if source.stream
        else dt.Table.from_changelog(
            frames[name], key=source.key, **columns, name=name, versioned=source.versioned
        )
        for name, source in sources.items()
    }


def write(folder: Path, family: Family, join: Join, records: Sequence[Record], number: int) -> None:
    """The files of one micro-batch."""
    unit = family.unit_us(join)
    for name, source in family.sources(join).items():
        rows = [
            family.row(join, record, place)
            | {TIME: record.time * unit, GONE: record.deleted, PLACE: place}
            for place, record in enumerate(records)
            if record.table == name
        ]
        write_file(folder / name, rows, source.columns | CHANGELOG, number)


def write_file(
    folder: Path, rows: Sequence[dict[str, Any]], schema: Mapping[str, pa.DataType], number: int
) -> None:
    """A file of one micro-batch. The file source reads the oldest first, so age is set."""
    with timed_file(folder / f"{number:06}.parquet", 1_700_000_000 + number) as path:
        pq.write_table(pa.Table.from_pylist(rows, schema=pa.schema(list(schema.items()))), path)


def collected(family: Family, join: Join, changes: DataFrame) -> list[Result]:
    """The changes in a frame, in the order of their positions."""
    unit = family.unit_us(join)
    rows = changes.selectExpr("*", "unix_micros(_timestamp) us").collect()
    return [
        family.result(join, row.asDict(), row["us"] // unit, deleted=row["_change"] == "delete")
        for row in sorted(rows, key=lambda row: row["_position"])
    ]


# The stage of tables by itself.

_ROWS = pa.schema(
    [
        ("_hash", pa.int64()),
        ("_event_time", pa.int64()),
        ("_deleted", pa.bool_()),
        ("k", pa.string()),
        ("v", pa.string()),
    ]
)


def kernel(
    family: Family,
    join: Join,
    batches: Batches,
    *,
    emit: Emit = "change",
    restart: bool = False,
    key_hash: Hash = stable_hash,
) -> Answers:
    """A tree of tables as a stage by itself, on one bucket."""
    known = list(family.sources(join))
    assert isinstance(join, str | tuple)
    arrival = RowArrival(ordered_by="shared log")
    sources = tuple(SourceSpec(name, RowShape(_ROWS, keys=1), arrival=arrival) for name in known)
    operator = Operator(law=TableJoinLaw(_tree(join, known)), sources=sources, emit=emit)
    fragment = Fragment(topology="test", buckets=1, sources=sources, operators=(operator,))
    blobs, cache = MemoryBlobs(), SegmentCache()
    answers = []
    for batch in batches:
        if restart:
            blobs, cache = MemoryBlobs(dict(blobs.blobs)), SegmentCache()
        changes = process_batch(
            fragment, list(_pieces(fragment, batch, key_hash)), blobs, cache
        ).changes
        answers.append(
            [
                Result(
                    row["_k0"],
                    None
                    if row["_deleted"]
                    else tuple(row[f"_{leaf}_0"] for leaf in range(len(names(join)))),
                    row["_event_time"] // 1000,
                )
                for table in changes
                for row in table.to_pylist()
            ]
        )
    return answers


def _tree(topology: Any, known: list[str]) -> Tree:
    if isinstance(topology, str):
        return TreeLeaf(known.index(topology))
    left, how, right = topology
    return JoinedBy(_tree(left, known), _tree(right, known), how)


def _pieces(fragment: Fragment, batch: Sequence[Record], key_hash: Hash) -> Iterator[Piece]:
    for number, source in enumerate(fragment.sources):
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
